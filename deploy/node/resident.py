"""The node's own process: it holds the key, checks every message, and executes nothing of a run."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from logging import ERROR, INFO, WARNING
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import httpx
from flwr.app import Context, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.common.config import get_fused_config_from_fab
from flwr.common.constant import ErrorCode
from flwr.common.serde import context_to_proto
from flwr.proto.message_pb2 import Context as ContextProto
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.recorddict_pb2 import RecordDict as RecordDictProto
from flwr.supercore import log
from flwr.supercore.run import Run

from deploy.bundle import check_bundle
from deploy.files import NodeFile, read_node_file
from deploy.monitoring.node import serve_node
from deploy.node.door import Door
from deploy.node.executor import RemoteWorker
from deploy.node.fleet import GOODBYE_SECONDS, Fleet, NotRegistered, RunOver, TooLarge
from deploy.node.frames import Broken, Outcome, Task, WorkerDied
from deploy.node.replies import checked, failure, packed, refused
from deploy.node.tally import Tally
from deploy.node.warm import WarmWorker
from deploy.policy import check_run
from fedrc_flwr.engine.admission import harmless
from fedrc_flwr.errors import FAILED, ConfigError, PolicyError

#: Seconds between questions for a message: soon after the last one, and when nothing happens.
QUICK, SLOW = 0.1, 2.0
#: The pause is this part of the time since the last message, and so many times the SuperLink's
#: answer, so that many nodes do not keep it busy with questions.
OF_SILENCE, OF_ANSWER = 1 / 30, 10.0
#: How long a reply waits for the confirmation of its message.
CONFIRM_SECONDS = 10.0
#: Runs whose app and state are kept in memory.
MOST_RUNS = 16


class Executes(Protocol):
    """Who executes tasks: this node's own worker, or another user's."""

    started: int
    memory: int

    def execute(self, task: Task) -> Outcome:
        """Answer a task."""

    def rest(self) -> None:
        """There is nothing to do."""

    def stop(self) -> None:
        """End what is under way."""


class Stopped(BaseException):
    """The process was told to end."""


@dataclass
class KnownRun:
    """What a run's messages have in common."""

    run: Run
    bundle: bytes
    verdicts: dict[tuple[str, ...], bool] = field(default_factory=dict)

    @cached_property
    def settings(self) -> UserConfig:
        """The run's settings. Only an app that is allowed is opened for them."""
        return get_fused_config_from_fab(self.bundle, self.run)

    def allowed(self, apps: tuple[str, ...]) -> bool:
        """Refuse an app that the node does not execute; whether it is the installed one."""
        if apps not in self.verdicts:
            self.verdicts[apps] = check_bundle(self.bundle, apps)
        return self.verdicts[apps]


def pause(silence: float, answer: float) -> float:
    """Seconds until the next question.

    Parameters
    ----------
    silence : seconds since the last message
    answer : seconds that the SuperLink took for its last answer
    """
    return min(max(QUICK, silence * OF_SILENCE, answer * OF_ANSWER), SLOW)


class ResidentNode:
    """Pulls a message, has it answered, and sends the reply, one at a time."""

    def __init__(self, path: Path, fleet: Fleet, worker: Executes, tally: Tally) -> None:
        self._path = path
        self._fleet = fleet
        self._worker = worker
        self._tally = tally
        self._runs: OrderedDict[int, KnownRun] = OrderedDict()
        self._states: OrderedDict[int, RecordDictProto] = OrderedDict()
        self._node_id = 0
        self._name = read_node_file(path).name
        self._unanswered: Message | None = None
        self._confirming: threading.Thread | None = None

    def work(self) -> None:
        """Sign on and answer messages for ever."""
        self._sign_on()
        last = time.monotonic()
        while True:
            if isinstance(self._worker, RemoteWorker) and not self._worker.ready:
                time.sleep(QUICK)
                continue
            asked = time.monotonic()
            try:
                pulled = self._fleet.pull()
            except RunOver:
                pulled = None
            except NotRegistered:
                if read_node_file(self._path).key is not None:
                    raise
                self._sign_on()  # without authentication, a new SuperLink is a new federation
                continue
            now = time.monotonic()
            if pulled is None:
                self._worker.rest()
                if not self._fleet.held:
                    time.sleep(pause(now - last, now - asked))
                continue
            self._handle(*pulled)
            last = time.monotonic()

    def leave(self) -> None:
        """End the worker, tell who waits for an answer that there will be none, and sign off."""
        self._worker.stop()
        self._fleet.renew()
        message, self._unanswered = self._unanswered, None
        with suppress(Exception), self._fleet.hurried(GOODBYE_SECONDS):
            if message is not None:
                told = "the node was stopped while it worked on this message"
                self._send(message, packed(failure(message, ErrorCode.CLIENT_APP_CRASHED, told)), 0)
        self._fleet.sign_off()
        self._tally.online = False
        log(INFO, "%s: signed off", self._name)

    def _sign_on(self) -> None:
        self._node_id = self._fleet.sign_on()
        self._tally.online = True
        log(INFO, "%s: signed on as node %s", self._name, self._node_id)

    def _handle(self, message: Message, tree: ObjectTree) -> None:
        """Answer one message. Whatever happens is told to the server, and the node goes on."""
        kind, run = message.metadata.message_type, message.metadata.run_id
        self._tally.arrived(kind)
        self._tally.busy, self._unanswered = True, message
        started = time.time()
        left = message.metadata.created_at + message.metadata.ttl - started
        try:
            with self._fleet.hurried(max(left, 1.0)):
                outcome = self._answered(message, tree, started)
            worked = time.time()
            if outcome.refused:
                self._tally.refuse(outcome.refused)
            else:
                self._tally.failed += bool(outcome.failed)
            self._tally.trained(outcome.samples)
            size = self._send(message, outcome, worked - started)
            self._tally.spent("send", time.time() - worked)
            log(
                INFO, "%s: %s of run %s: %s in %.2f s, %.1f MB sent in %.2f s", self._name, kind,
                run, outcome.failed or "answered", worked - started, size / 1e6,
                time.time() - worked,
            )  # fmt: skip
        except RunOver:
            log(INFO, "%s: nobody waits for an answer in run %s any more", self._name, run)
        except (httpx.HTTPError, Broken, RuntimeError) as error:
            log(ERROR, "%s: the reply could not be sent: %s", self._name, error)
        finally:
            self._tally.busy = False
            self._tally.workers, self._tally.worker_memory = (
                self._worker.started, self._worker.memory,
            )  # fmt: skip
        self._unanswered = None

    def _answered(self, message: Message, tree: ObjectTree, started: float) -> Outcome:
        """The reply to a message: the worker's, a refusal, or an error."""
        try:
            file = read_node_file(self._path)
            task = self._task(file, message, tree)
        except PolicyError as error:
            log(ERROR, "%s: %s", self._name, error)
            self._confirm(message)
            answer = refused(self._name, message, error)
            return packed(answer, failed=f"refused ({error})", refused=error.code)
        except TooLarge:
            told = "the message is larger than this node takes (largest-message)"
            log(ERROR, "%s: %s", self._name, told)
            return _error(message, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, told)
        except (RunOver, NotRegistered):
            raise
        except Exception as error:
            log(ERROR, "%s: the message cannot be handled", self._name, exc_info=error)
            return _error(message, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, harmless(error))
        ready = time.time()
        self._tally.spent("receive", ready - started)
        try:
            outcome = self._worker.execute(task)
            checked(outcome, message)
            self._keep_state(message.metadata.run_id, outcome)
        except (WorkerDied, Broken) as error:
            self._tally.died += 1
            told = "the process that worked on this message died"
            log(WARNING, "%s: %s: %s", self._name, told, error)
            return _error(message, ErrorCode.CLIENT_APP_CRASHED, told)
        self._tally.spent("work", time.time() - ready)
        return outcome

    def _task(self, file: NodeFile, message: Message, tree: ObjectTree) -> Task:
        """Check everything about a message, then fetch what belongs to it."""
        number = message.metadata.run_id
        run = self._known(number)
        installed = run.allowed(file.policy.apps)
        check_run(file.policy, run.settings, file.data is not None, file.count_noise)
        objects = self._fleet.objects(number, tree, file.largest_message * 10**6)
        self._confirming = threading.Thread(target=self._confirm, args=(message,), daemon=True)
        self._confirming.start()  # nobody waits for it: the SuperLink deletes what was sent
        self._tally.bytes_down += sum(map(len, objects.values()))
        context = context_to_proto(
            Context(
                run_id=number, node_id=self._node_id, node_config=file.node_config(),
                state=RecordDict(), run_config=run.settings, series_id=run.run.series_id,
            )
        )  # fmt: skip
        if run.run.series_id in self._states:
            context.state.CopyFrom(self._states[run.run.series_id])
        return Task(
            run.bundle, installed, tree.SerializeToString(), objects,
            context.SerializeToString(), time.time(),
        )  # fmt: skip

    def _confirm(self, message: Message) -> None:
        with suppress(httpx.HTTPError, RunOver, NotRegistered):
            self._fleet.confirm(message)

    def _known(self, number: int) -> KnownRun:
        if number not in self._runs:
            self._runs[number] = KnownRun(*self._fleet.run(number))
            _forget(self._runs)
        self._runs.move_to_end(number)
        return self._runs[number]

    def _keep_state(self, number: int, outcome: Outcome) -> None:
        """The client's state in Flower's context, for the next message of the run."""
        try:
            state = ContextProto.FromString(outcome.context).state
        except ValueError as error:
            raise Broken(f"a context that cannot be read: {error}") from None
        series = self._runs[number].run.series_id
        self._states[series] = state
        self._states.move_to_end(series)
        _forget(self._states)

    def _send(self, message: Message, outcome: Outcome, seconds: float) -> int:
        """Send a reply for as long as somebody waits for it; returns its bytes."""
        reply, tree = checked(outcome, message)
        if self._confirming is not None:
            self._confirming.join(CONFIRM_SECONDS)
        left = message.metadata.created_at + message.metadata.ttl - time.time()
        with self._fleet.hurried(max(left, 1.0)):
            self._fleet.push(reply, tree, outcome.objects, seconds)
        size = sum(map(len, outcome.objects.values()))
        self._tally.bytes_up += size
        return size


def _error(message: Message, code: int, told: str) -> Outcome:
    return packed(failure(message, code, told), failed="failed")


def _forget(kept: OrderedDict[int, Any]) -> None:
    while len(kept) > MOST_RUNS:
        kept.popitem(last=False)


def run_node(path: Path, alone: bool) -> int:
    """Be a node until a signal ends it; returns the exit code."""
    _on_signals(_stop)
    file, tally = read_node_file(path), Tally()
    worker = RemoteWorker(file) if alone else WarmWorker(file)
    door = Door(file.listen, tally, worker.welcome if isinstance(worker, RemoteWorker) else None)
    door.open()
    if file.health is not None:
        from flwr.supercore.grpc_health import run_health_server_grpc_no_tls

        health = run_health_server_grpc_no_tls(str(file.health))  # noqa: F841  kept while it serves
    fleet = Fleet(file)
    serve_node(file, tally, lambda: fleet.heard)
    node = ResidentNode(path, fleet, worker, tally)
    code = 0
    try:
        node.work()
    except Stopped:
        pass
    except NotRegistered:
        print(f"fedrc: {file.superlink} does not know this node's key (any more)", file=sys.stderr)
        code = FAILED
    except ConfigError as error:
        print(f"fedrc: {error}", file=sys.stderr)
        code = FAILED
    finally:
        _on_signals(signal.SIG_IGN)  # the farewell is short
        node.leave()
    return code


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped


def _on_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)
