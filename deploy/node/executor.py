"""The worker's user need not be the owner of the node's key: `fedrc clientapp`.

The node listens on loopback. Whoever knows the secret that both share becomes its executor and gets
its tasks; each side proves that it knows the secret without sending it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import select
import socket
import sys
import threading
import time
from contextlib import suppress
from logging import INFO, WARNING
from pathlib import Path

from flwr.supercore import log

from deploy.files import NodeFile, read_node_file
from deploy.node.door import CALLER_SECONDS, EXECUTOR, PROTOCOL
from deploy.node.frames import Broken, Outcome, Task, WorkerDied, receive, send
from deploy.node.warm import Abandoned, WarmWorker

RETRY_SECONDS = 1.0
#: How often an executor without a task looks whether its worker is still needed.
REST_SECONDS = 60.0
NONCE_BYTES, MOST_HEADERS = 32, 4096


class Stranger(Exception):
    """A caller that does not know the secret."""


def _proof(secret: bytes, side: bytes, *nonces: bytes) -> bytes:
    return hmac.digest(secret, b"\0".join([side, *nonces]), hashlib.sha256)


def prove_to_executor(connection: socket.socket, secret: bytes) -> None:
    """The node's half: who calls must know the secret, and is shown that the node does."""
    ours = secrets.token_bytes(NONCE_BYTES)
    send(connection, {}, [ours])
    theirs, proof = _two(connection)
    if not hmac.compare_digest(proof, _proof(secret, b"executor", ours, theirs)):
        raise Stranger
    send(connection, {}, [_proof(secret, b"node", theirs, ours)])


def prove_to_node(connection: socket.socket, secret: bytes) -> None:
    """The executor's half."""
    _, parts = receive(connection, MOST_HEADERS)
    ours = secrets.token_bytes(NONCE_BYTES)
    (theirs,) = parts if len(parts) == 1 else (b"",)
    send(connection, {}, [ours, _proof(secret, b"executor", theirs, ours)])
    _, parts = receive(connection, MOST_HEADERS)
    if len(parts) != 1 or not hmac.compare_digest(parts[0], _proof(secret, b"node", ours, theirs)):
        raise Stranger


def _two(connection: socket.socket) -> tuple[bytes, bytes]:
    _, parts = receive(connection, MOST_HEADERS)
    if len(parts) != 2 or len(parts[0]) != NONCE_BYTES:
        raise Broken("an introduction that cannot be read")
    return parts[0], parts[1]


class RemoteWorker:
    """The node's view of an executor: tasks go to whoever has introduced itself last."""

    def __init__(self, file: NodeFile) -> None:
        self._file = file
        self._secret = file.secret.read_bytes()
        self._connection: socket.socket | None = None
        self._gone = threading.Event()
        self.started = 0
        self.memory = 0

    def welcome(self, connection: socket.socket) -> None:
        """Take a caller as the executor, and keep its connection until it breaks."""
        try:
            prove_to_executor(connection, self._secret)
        except (Stranger, Broken, OSError) as error:
            who = "does not know the secret" if isinstance(error, Stranger) else str(error)
            log(WARNING, "%s: a caller on %s %s", self._file.name, self._file.listen, who)
            return
        connection.settimeout(None)
        gone = threading.Event()
        self._gone.set()  # an earlier executor's connection is over
        self._connection, self._gone = connection, gone
        self.started += 1
        log(INFO, "%s: an executor has come", self._file.name)
        gone.wait()

    @property
    def ready(self) -> bool:
        """Whether there is an executor."""
        connection = self._connection
        if connection is None:
            return False
        # It says nothing before it has a task: whatever can be read is its end.
        if select.select([connection], [], [], 0)[0]:
            self._drop(connection)
            return False
        return True

    def execute(self, task: Task) -> Outcome:
        """Have a task answered."""
        connection = self._connection
        if connection is None:
            raise WorkerDied("there is no executor")
        try:
            task.send(connection)
            outcome = Outcome.receive(connection)
        except Broken as error:
            self._drop(connection)
            raise WorkerDied(f"the executor has gone: {error}") from None
        self.memory = outcome.memory
        return outcome

    def rest(self) -> None:
        """Nothing: the executor sees to its worker."""

    def stop(self) -> None:
        """Break off: the executor ends a worker whose answer nobody waits for."""
        connection = self._connection
        if connection is not None:
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        if self._connection is connection:
            self._connection = None
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            self._gone.set()


def run_executor(path: Path) -> None:
    """Work for the node of a file until the process is stopped."""
    file = read_node_file(path)
    worker = WarmWorker(file)
    told = False
    while True:
        try:
            with _introduced(file) as connection:
                log(INFO, "%s: executing tasks of the node at %s", file.name, file.listen)
                told = False
                _serve(connection, worker)
        except Stranger:
            log(WARNING, "%s: who listens on %s has another secret", file.name, file.listen)
        except (OSError, Broken) as error:
            if not told:
                log(WARNING, "%s: no node on %s (%s): waiting", file.name, file.listen, error)
            told = True
        except Abandoned:
            log(WARNING, "%s: the node has gone, so the task is given up", file.name)
        time.sleep(RETRY_SECONDS)


def _introduced(file: NodeFile) -> socket.socket:
    """A connection to the node, which knows this executor."""
    address = (file.listen.host, file.listen.port)
    connection = socket.create_connection(address, timeout=CALLER_SECONDS)
    try:
        request = f"GET {EXECUTOR} HTTP/1.1\r\nHost: {file.listen}\r\n"
        request += f"Connection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n"
        connection.sendall(request.encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            byte = connection.recv(1)  # what follows the headers is not HTTP
            if not byte or len(answer) > MOST_HEADERS:
                raise Broken("the node does not take executors: is it started with --alone?")
            answer += byte
        if b" 101 " not in answer.partition(b"\r\n")[0]:
            raise Broken("the node does not take executors: is it started with --alone?")
        prove_to_node(connection, file.secret.read_bytes())
        connection.settimeout(None)
        return connection
    except BaseException:
        connection.close()
        raise


def _serve(connection: socket.socket, worker: WarmWorker) -> None:
    while True:
        while not select.select([connection], [], [], REST_SECONDS)[0]:
            worker.rest()
        task = Task.receive(connection)
        try:
            worker.execute(task, connection).send(connection)
        except WorkerDied as died:
            died.send(connection)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        run_executor(Path(sys.argv[1]))
