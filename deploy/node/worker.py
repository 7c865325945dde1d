"""The process that executes an app's client: it keeps torch, data and networks between messages.

    python -m deploy.node.worker NAME SOCKET

It runs one app and no other, because an interpreter keeps the first version of a module that it
imported. Whoever started it has checked the app and the run against the node's policy.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from logging import ERROR, INFO

import psutil
from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import LoadClientAppError
from flwr.common.config import get_project_config
from flwr.common.constant import ErrorCode
from flwr.common.serde import context_from_proto, context_to_proto
from flwr.proto.message_pb2 import Context as ContextProto
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore import log
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_ref import load_app
from flwr.supercore.task_identity import TaskIdentity
from flwr.supercore.utils import get_flwr_home

from deploy.bundle import PACKAGES, hash_of, is_installed
from deploy.node.frames import Broken, Outcome, Task, receive
from deploy.node.replies import failure, packed
from fedrc_flwr.arrays import joined
from fedrc_flwr.engine.admission import harmless
from fedrc_flwr.errors import PolicyError

#: Errors of the app that have been through ``harmless``, or say nothing about files and data. By
#: name, because an app that was unpacked has classes of its own.
TOLD = ("RunError", "WireError", "DivergedError")
PARENT_SECONDS = 2.0
PR_SET_PDEATHSIG = 1


class Worker:
    """One app, imported with its first message."""

    def __init__(self, name: str, bundle: bytes, installed: bool) -> None:
        self._name = name
        self._bundle = bundle
        self._installed = installed
        self._app: ClientApp | None = None
        self._tasks = 0

    def load(self) -> None:
        """Import the app, once."""
        if self._app is None:
            self._app = _installed_app(self._bundle) if self._installed else _unpacked(self._bundle)
            self._bundle = b""

    def answer(self, task: Task) -> Outcome:
        """The reply to a message: the app's, or an error."""
        context = context_from_proto(ContextProto.FromString(task.context))
        self._tasks += 1
        TaskIdentity.task_id, TaskIdentity.run_id = self._tasks, context.run_id
        TaskIdentity.node_id = context.node_id
        reply, failed, refused = self._reply(_message_of(task), context)
        outcome = packed(reply, context_to_proto(context).SerializeToString(), failed, refused)
        memory = psutil.Process().memory_info().rss
        return replace(outcome, memory=memory, samples=_samples(reply))

    def _reply(self, message: Message, context: Context) -> tuple[Message, str, str]:
        try:
            self.load()
        except Exception as error:  # whatever an allowed app does when it is imported
            log(ERROR, "%s: the app cannot be loaded", self._name, exc_info=error)
            return _error(message, ErrorCode.LOAD_CLIENT_APP_EXCEPTION, error), "not loaded", ""
        try:
            if self._app is None:
                raise LoadClientAppError("no app")
            reply = self._app(message=message, context=context)
            return reply, "", _refusal(reply)
        except Exception as error:  # whatever the app raises
            log(ERROR, "%s: the app failed", self._name, exc_info=error)
            told = _error(message, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, error)
            return told, "failed", _refused_by(error)


def _message_of(task: Task) -> Message:
    tree = ObjectTree.FromString(task.message)
    contents = dict(task.objects)
    message = inflate_object_from_contents(tree.object_id, contents, objects=joined(contents))
    if not isinstance(message, Message):
        raise Broken(f"a {type(message).__name__} in place of a message")
    message.metadata.__dict__["_message_id"] = tree.object_id
    message.metadata.delivered_at = str(task.received)
    return message


def _refusal(reply: Message) -> str:
    """Why a client cannot take part, if its reply says so."""
    if reply.has_error() or "refusal" not in reply.content.config_records:
        return ""
    return str(reply.content.config_records["refusal"].get("code", ""))


def _refused_by(error: BaseException | None) -> str:
    """The code of the policy's refusal behind an error; the app's class has its own identity."""
    while error is not None and type(error).__name__ != PolicyError.__name__:
        error = error.__context__
    return str(getattr(error, "code", ""))


def _samples(reply: Message) -> int:
    """How many samples a reply to a training message says that it is about."""
    if reply.has_error() or reply.metadata.message_type != MessageType.TRAIN:
        return 0
    told = [record.get("samples", 0) for record in reply.content.config_records.values()]
    return max([n for n in told if type(n) is int], default=0)


def _error(message: Message, code: int, error: Exception) -> Message:
    """An error without what it says about the node's files and data, which its log has."""
    said = str(error) if type(error).__name__ in TOLD else harmless(error)
    return failure(message, code, said)


def _installed_app(content: bytes) -> ClientApp:
    """The app of the release that is installed, if its files still are those of the bundle."""
    if not is_installed(content):
        raise LoadClientAppError("the installed release has changed: restart the node")
    from client_app.app import app

    return app


def _unpacked(content: bytes) -> ClientApp:
    """An app that the node's policy lists, unpacked under the whole of its hash."""
    from flwr.cli.install import install_from_fab  # some 20 MB

    folder = install_from_fab(content, get_flwr_home() / hash_of(content), skip_prompt=True)
    reference = get_project_config(folder)["tool"]["flwr"]["app"]["components"]["clientapp"]
    log(INFO, "running %s of bundle %s", reference, hash_of(content))
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]  # the bundle has its own
    app = load_app(reference, LoadClientAppError, folder)
    if not isinstance(app, ClientApp):
        raise LoadClientAppError(f"{reference} is not a ClientApp")
    return app


def serve(name: str, connection: socket.socket) -> None:
    """Answer one task after the other, until the other side closes the connection."""
    head, (bundle,) = receive(connection)
    worker = Worker(name, bundle, bool(head["installed"]))
    while True:
        task = Task.receive(connection)
        if head["isolated"]:
            _in_child(worker, task, connection)
        else:
            worker.answer(task).send(connection)
        del task


def _in_child(worker: Worker, task: Task, connection: socket.socket) -> None:
    """Answer in a copy of this process, which has imported the app and computed nothing."""
    with suppress(Exception):  # the child tells
        worker.load()
    child = os.fork()
    if child == 0:
        end_with_parent()
        code = 1
        try:
            worker.answer(task).send(connection)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    if status:
        # It may have sent half of an answer: only a new connection is sure to be clean.
        sys.exit(f"{worker._name}: the task's process ended with status {status}")


def end_with_parent() -> None:
    """Do not outlive the process that started this one, whatever ends it."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it had gone already
            os._exit(1)
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    # Ctrl-C in a terminal reaches every process: whoever started this one ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(Broken):
        serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
