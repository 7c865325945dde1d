"""The executor beside Flower's own SuperNode, for versions of Flower that the node does not know.

    python -m deploy.node.superexec node.yaml [PARENT]

It takes the place of ``flower-superexec``, which would start a process for every message and import
whatever the server sends. Here the policy comes first, and a warm worker executes the message.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from logging import ERROR, INFO
from pathlib import Path

import httpx
from flwr.app import Context, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import context_from_proto, context_to_proto
from flwr.proto.message_pb2 import Context as ContextProto
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore import log
from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from deploy.bundle import check_bundle
from deploy.files import NodeFile, read_node_file
from deploy.node.frames import Outcome, Task, WorkerDied
from deploy.node.replies import failure, packed, refused
from deploy.node.warm import WarmWorker
from deploy.policy import check_run
from fedrc_flwr.errors import PolicyError

POLL_SECONDS = 0.2
#: Seconds between attempts while the SuperNode does not answer.
RETRY_SECONDS = 3.0
#: How often the input of a task is asked for: the SuperNode creates a task before it has stored
#: its message.
INPUT_TRIES = 50
ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})


def run_executor(path: Path, parent: int | None = None) -> None:
    """Work until the process is stopped, or until ``parent`` is gone."""
    if parent is not None:
        start_parent_process_monitor(parent)
    file = read_node_file(path)
    secret = SuperExecAuthHttpInterceptor(
        master_secret=file.secret.read_bytes(), protected_methods=ACQUIRE
    )
    client = _connected(file, RuntimeVersionHttpInterceptor(component_name="SuperExec"), secret)
    worker = WarmWorker(file)
    log(INFO, "%s: executing tasks of the node at %s", file.name, file.listen)
    while True:
        try:
            # Tasks of every kind are taken: one that nobody takes would block the node for ever.
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types=list(TaskType)))
        except httpx.HTTPError as error:
            log(ERROR, "the node at %s does not answer: %s", file.listen, error)
            time.sleep(RETRY_SECONDS)
            continue
        if found.HasField("task") and found.token:
            _work(path, worker, found.token)
        else:
            worker.rest()
            time.sleep(POLL_SECONDS)


def _connected(
    file: NodeFile,
    version: RuntimeVersionHttpInterceptor,
    who: SuperExecAuthHttpInterceptor | RuntimeTokenHttpInterceptor,
) -> RuntimeHttpClient:
    return RuntimeHttpClient.from_server_address(
        server_address=str(file.listen),
        insecure=True,  # the node's own port, on loopback
        root_certificates=None,
        interceptors=[version, who],
        retry_invoker=make_simple_http_retry_invoker(),
    )


def _work(path: Path, worker: WarmWorker, token: str) -> None:
    """Answer the message that a token stands for."""
    file = read_node_file(path)
    version = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
    client = _connected(file, version, RuntimeTokenHttpInterceptor(token))
    heartbeat = HeartbeatSender(_beating(client))
    heartbeat.start()
    context, failed = None, "the message could not be read"
    try:
        message, context, bundle = _input(client)
        reply, failed = _answer(file, worker, message, context, bundle)
        push_message(client, reply, context)
    except (httpx.HTTPError, RuntimeError) as error:
        log(ERROR, "%s: %s: %s", file.name, failed or "the reply could not be sent", error)
    finally:
        status = SubStatus.FAILED if failed else SubStatus.COMPLETED
        push_task_output(client, context, status, failed)
        if heartbeat.is_running:
            heartbeat.stop()
        client.close()


def _beating(client: RuntimeHttpClient) -> Callable[[], bool]:
    def beat() -> bool:
        with suppress(httpx.HTTPError):
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        return True  # a task that is lost is noticed when its reply is sent

    return beat


def _input(client: RuntimeHttpClient) -> tuple[Message, Context, Fab]:
    for attempt in range(INPUT_TRIES):
        try:
            message, context, _, bundle = pull_task_input(client)
            return message, context, bundle
        except RuntimeError:
            if attempt == INPUT_TRIES - 1:
                raise
            time.sleep(POLL_SECONDS)
    raise RuntimeError("unreachable")


def _answer(
    file: NodeFile, worker: WarmWorker, message: Message, context: Context, bundle: Fab
) -> tuple[Message, str]:
    """The reply to a message, and what failed; nothing of a refused run is imported."""
    try:
        installed = check_bundle(bundle.content, file.policy.apps)
        check_run(file.policy, context.run_config, file.data is not None, file.count_noise)
    except PolicyError as error:
        log(ERROR, "%s: %s", file.name, error)
        return refused(file.name, message, error), str(error)
    sent = packed(message)
    state = context_to_proto(context).SerializeToString()
    task = Task(bundle.content, installed, sent.tree, sent.objects, state, time.time())
    try:
        outcome = worker.execute(task)
    except WorkerDied:
        told = "the process that worked on this message died"
        return failure(message, ErrorCode.CLIENT_APP_CRASHED, told), told
    context.state = context_from_proto(ContextProto.FromString(outcome.context)).state
    return _message_of(outcome), outcome.failed


def _message_of(outcome: Outcome) -> Message:
    tree = ObjectTree.FromString(outcome.tree)
    reply = inflate_object_from_contents(tree.object_id, dict(outcome.objects))
    if not isinstance(reply, Message):
        raise RuntimeError(f"a {type(reply).__name__} in place of a reply")
    return reply


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # also raised when the SuperNode is gone
        run_executor(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
