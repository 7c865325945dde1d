"""Apps without torch, and messages to them, for a node without a SuperLink."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import Status
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run, RunStatus

from deploy.node.fleet import TooLarge
from deploy.node.frames import Outcome
from deploy.node.replies import packed

NODE_ID, SERVER = 7, 1
PROJECT = """
[project]
name = "tiny"
version = "1.0.0"
description = "An app for tests"
license = {{ file = "LICENSE" }}
dependencies = ["flwr>=1.41,<2"]
[tool.flwr.app]
publisher = "tests"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "tiny.app:app"
clientapp = "tiny.app:app"
[tool.flwr.app.config]
told = "{told}"
"""
HEAD = """
import os
import pathlib
import time

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    told = message.content["asked"]
"""
#: Counts its messages in Flower's context, and says which process it runs in.
COUNTING = """
    seen = int(context.state["seen"]["times"]) + 1 if "seen" in context.state else 1
    context.state["seen"] = ConfigRecord({"times": seen})
    answer = {"times": seen, "process": os.getpid(), "told": context.run_config["told"]}
    answer["node"] = context.node_config["name"]
    return Message(RecordDict({"answer": ConfigRecord(answer)}), reply_to=message)
"""


def bundle_of(folder: Path, body: str = COUNTING, told: str = "first") -> bytes:
    """An app whose client does ``body`` with a training message."""
    (folder / "tiny").mkdir(parents=True)
    (folder / "tiny" / "__init__.py").write_text("")
    (folder / "tiny" / "app.py").write_text(HEAD + body)
    (folder / "LICENSE").write_text("none")
    (folder / "pyproject.toml").write_text(PROJECT.format(told=told))
    return build_fab_from_disk(folder)


def run_of(number: int) -> Run:
    run = Run.create_empty(number)
    run.series_id = number
    run.status = RunStatus(Status.RUNNING, "", "")
    return run


def training_message(run: int, **asked: Any) -> tuple[Message, ObjectTree, dict[str, bytes]]:
    """A message as the fleet protocol hands it over: without content, its tree, its objects."""
    metadata = Metadata(
        run_id=run, message_id="", src_node_id=SERVER, dst_node_id=NODE_ID, reply_to_message_id="",
        group_id="1", created_at=now().timestamp(), ttl=600.0, message_type="train",
        src_task_id=1, dst_task_id=None,
    )  # fmt: skip
    whole = make_message(metadata, RecordDict({"asked": ConfigRecord(asked or {"nothing": 0})}))
    sent = packed(whole)
    bare = make_message(whole.metadata, RecordDict())
    return bare, ObjectTree.FromString(sent.tree), dict(sent.objects)


class FakeFleet:
    """A SuperLink's answers, and what a node pushed."""

    def __init__(self, bundles: Mapping[int, bytes]) -> None:
        self.bundles = dict(bundles)
        self.waiting: dict[str, dict[str, bytes]] = {}
        self.replies: list[Message] = []
        self.confirmed: list[str] = []
        self.signed_off = False

    def message(self, run: int, **asked: Any) -> tuple[Message, ObjectTree]:
        message, tree, objects = training_message(run, **asked)
        self.waiting[tree.object_id] = objects
        return message, tree

    def sign_on(self) -> int:
        return NODE_ID

    def run(self, number: int) -> tuple[Run, bytes]:
        return run_of(number), self.bundles[number]

    def objects(self, run: int, tree: ObjectTree, most: int) -> dict[str, bytes]:
        objects = self.waiting[tree.object_id]
        if sum(map(len, objects.values())) > most:
            raise TooLarge
        return objects

    def confirm(self, message: Message) -> None:
        self.confirmed.append(message.metadata.message_id)

    def push(
        self, reply: MessageProto, tree: ObjectTree, objects: Mapping[str, bytes], seconds: float
    ) -> None:
        whole = message_of(Outcome(b"", tree.SerializeToString(), objects, b""))
        assert whole.metadata.reply_to_message_id == reply.metadata.reply_to_message_id
        self.replies.append(whole)

    def hurried(self, seconds: float) -> Any:
        import contextlib

        return contextlib.nullcontext()

    def renew(self) -> None:
        pass

    def sign_off(self) -> None:
        self.signed_off = True


def message_of(outcome: Outcome) -> Message:
    tree = ObjectTree.FromString(outcome.tree)
    message = inflate_object_from_contents(tree.object_id, dict(outcome.objects))
    assert isinstance(message, Message)
    return message
