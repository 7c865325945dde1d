"""The one worker of a node: started for the first message, kept while it is of use."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from contextlib import suppress
from logging import INFO, WARNING

from flwr.supercore import log

from deploy.bundle import hash_of
from deploy.files import NodeFile
from deploy.node.frames import Broken, Outcome, Task, WorkerDied, send
from fedrc_flwr import flower

#: How long a worker is kept without a message: it holds some hundred megabytes.
KEEP_SECONDS = 600.0
STOP_SECONDS = 5.0


class Abandoned(Exception):
    """Whoever wanted the answer has gone."""


class WarmWorker:
    """Executes tasks one at a time in a process that stays.

    Another app gets another process. So does the next task after one that left more memory behind
    than ``worker-memory`` allows, or whose app could not be loaded.
    """

    def __init__(self, file: NodeFile) -> None:
        self._file = file
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._app: tuple[str, bool] | None = None
        self._used = time.monotonic()
        self.started = 0
        self.memory = 0

    def execute(self, task: Task, asker: socket.socket | None = None) -> Outcome:
        """Answer a task. ``asker``: who waits for it; the worker is ended if they leave."""
        connection = self._ready(task)
        try:
            # The worker has the bundle from its start.
            Task(b"", task.installed, task.message, task.objects, task.context, task.received).send(
                connection
            )
            self._wait(connection, asker)
            outcome = Outcome.receive(connection)
        except Broken as error:
            raise WorkerDied(self._post_mortem(error)) from None
        except BaseException:
            self.stop()
            raise
        self._used, self.memory = time.monotonic(), outcome.memory
        self._replace_if_needed(outcome)
        return outcome

    def rest(self) -> None:
        """Let the worker go that has had nothing to do for long."""
        if self._process is not None and time.monotonic() - self._used > KEEP_SECONDS:
            log(INFO, "%s: no message for long: the worker is let go", self._file.name)
            self.stop()

    def stop(self) -> None:
        """End the worker, at whatever it is."""
        connection, self._connection = self._connection, None
        process, self._process = self._process, None
        self._app, self.memory = None, 0
        if connection is not None:
            connection.close()
        if process is None:
            return
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        if process.poll() is None:
            process.kill()
            process.wait()

    def _ready(self, task: Task) -> socket.socket:
        """A worker for a task's app."""
        app = (hash_of(task.bundle), task.installed)
        alive = self._process is not None and self._process.poll() is None
        if alive and self._app == app and self._connection is not None:
            return self._connection
        if alive:
            log(INFO, "%s: another app: another worker", self._file.name)
        self.stop()
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "deploy.node.worker"]
        threads = self._file.threads
        self._file.state.mkdir(parents=True, exist_ok=True)
        with theirs:
            self._process = subprocess.Popen(
                [*command, self._file.name, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=self._file.state,
                env={
                    **flower.environment(),
                    **({} if threads is None else {"OMP_NUM_THREADS": str(threads)}),
                },
            )
        self.started += 1
        self._connection, self._app = ours, app
        with suppress(Broken):  # told by whoever waits for the answer
            head = {"installed": task.installed, "isolated": self._file.isolate_tasks}
            send(ours, head, [task.bundle])
        return ours

    def _wait(self, connection: socket.socket, asker: socket.socket | None) -> None:
        """Until the worker answers or ends."""
        if asker is None:
            return
        while not (ready := select.select([connection, asker], [], [])[0]):
            continue
        # Whoever asked says nothing before the answer: they have gone.
        if asker in ready and connection not in ready:
            raise Abandoned

    def _post_mortem(self, error: Broken) -> str:
        """How the worker ended; there is none afterwards."""
        process = self._process
        code = None
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(STOP_SECONDS)
        self.stop()
        told = f"{error}" if code is None else f"exit code {code}"
        log(WARNING, "%s: the worker died: %s", self._file.name, told)
        return told

    def _replace_if_needed(self, outcome: Outcome) -> None:
        limit = self._file.worker_memory
        if limit is not None and outcome.memory > limit * 10**6:
            log(
                INFO, "%s: the worker holds %.0f MB, more than worker-memory: it is replaced",
                self._file.name, outcome.memory / 1e6,
            )  # fmt: skip
            self.stop()
        elif outcome.failed == "not loaded":
            self.stop()
