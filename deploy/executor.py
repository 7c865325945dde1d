"""The node's executor: fetches the SuperNode's tasks and starts a process for each.

It takes the place of Flower's ``flower-superexec``, and may run as another user than the SuperNode:
it needs the node's data and state, and not its key.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from logging import ERROR, INFO
from pathlib import Path

import httpx
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore import log
from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient

from deploy.files import NodeFile, read_node_file

POLL_SECONDS = 1.0
#: Seconds between attempts while the SuperNode does not answer.
RETRY_SECONDS = 3.0
ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})


def run_executor(path: Path, parent: int | None = None) -> None:
    """Work until the process is stopped, or until ``parent`` is gone."""
    if parent is not None:
        start_parent_process_monitor(parent)
    file = read_node_file(path)
    client = _connected(file)
    children: list[subprocess.Popen[bytes]] = []
    log(INFO, "%s: executing tasks of the node at %s", file.name, file.listen)
    while True:
        children = [child for child in children if child.poll() is None]
        try:
            # Tasks of every kind are taken: one that nobody takes would block the node for ever.
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types=list(TaskType)))
        except httpx.HTTPError as error:
            log(ERROR, "the node at %s does not answer: %s", file.listen, error)
            time.sleep(RETRY_SECONDS)
            continue
        if found.HasField("task") and found.token:
            children.append(_start(path, file, found.token))
        time.sleep(POLL_SECONDS)


def _connected(file: NodeFile) -> RuntimeHttpClient:
    return RuntimeHttpClient.from_server_address(
        server_address=str(file.listen),
        insecure=True,  # the node's own port, on loopback
        root_certificates=None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(
                master_secret=file.secret.read_bytes(), protected_methods=ACQUIRE
            ),
        ],
        retry_invoker=make_simple_http_retry_invoker(),
    )


def _start(path: Path, file: NodeFile, token: str) -> subprocess.Popen[bytes]:
    """A process for one task. The token is written to it, since others can read a command line."""
    command = [sys.executable, "-m", "deploy.task", str(path), str(file.listen), str(os.getpid())]
    child = subprocess.Popen(command, stdin=subprocess.PIPE)
    if child.stdin is not None:
        child.stdin.write(f"{token}\n".encode())
        child.stdin.close()
    return child


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # also raised when the SuperNode is gone
        run_executor(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
