"""What a ServerApp and the gate hand each other as files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.proto.message_pb2 import PullObjectResponse, PushObjectRequest
from flwr.proto.runtime_pb2 import PushAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st

from fedrc_flwr.arrays import PackedArray
from server_app import fetching
from server_app.shelf import LARGEST, MIXED, POSTED, SHELF, Shelf, down, pull_answer, signals, up

RUN = 12345


@pytest.fixture(autouse=True)
def _task(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path, RUN)


class Flower:
    """In place of Flower's grid and its client: takes messages, and has no objects."""

    def __init__(self) -> None:
        self.run, self.node, self._runtime_client = SimpleNamespace(run_id=RUN), None, self
        self.objects: dict[str, bytes] = {}
        self.pushed: list[str] = []
        self.pulled: list[str] = []

    def PushMessages(self, request: Any) -> PushAppMessagesResponse:
        names = [tree.object_id for tree in request.message_object_trees]
        self.pushed += names
        return PushAppMessagesResponse(message_ids=names, objects_to_push=names, session_id="s")

    def PullObject(self, request: Any) -> PullObjectResponse:
        self.pulled.append(request.object_id)
        content = self.objects.get(request.object_id, b"")
        return PullObjectResponse(
            object_found=True, object_available=bool(content), object_content=content
        )


def message(node: int, number: float = 1.0) -> Message:
    numbers = np.full(2_000_000, number, dtype=np.float32)  # more than one of Flower's chunks
    record = ArrayRecord()
    record["x"] = PackedArray([numbers])
    content = RecordDict({"arrays": record, "about": ConfigRecord({"round": 3})})
    return Message(content, node, MessageType.TRAIN)


def objects_of(sent: Message) -> tuple[str, Any, dict[str, bytes]]:
    """Name, tree and objects of a message."""
    with no_object_id_recompute():
        name = sent.object_id
        objects = {n: each.deflate() for n, each in get_all_nested_objects(sent).items()}
        return name, get_object_tree(sent), objects


def lay(shelf: Shelf, reply: str, objects: dict[str, bytes]) -> None:
    """Put the objects of a reply where the gate puts them."""
    folder = up(shelf._run, reply)
    folder.mkdir(exist_ok=True)
    for name, content in objects.items():
        request = PushObjectRequest(run_id=RUN, object_id=name, object_content=content)
        body = folder / "body"
        body.write_bytes(request.SerializeToString())
        body.rename(folder / name)


@given(st.binary(max_size=300) | st.integers(0, 2**15).map(bytes))
def test_the_file_is_the_answer_to_a_pull(content: bytes) -> None:
    answer = PullObjectResponse.FromString(b"".join(pull_answer([content[:7], content[7:]])))

    assert answer == PullObjectResponse(
        object_found=True, object_available=True, object_content=content
    )


def test_messages_are_pushed_without_their_objects_which_lie_on_the_shelf(
    shelf: Shelf, tmp_path: Path
) -> None:
    flower, messages = Flower(), [message(7), message(8)]

    names = fetching.pushed(flower, messages, shelf)  # type: ignore[arg-type]

    assert names == flower.pushed == [objects_of(each)[0] for each in messages]
    assert signals(tmp_path / POSTED) == 1
    files = {path.name: path.read_bytes() for path in (shelf._run / "down").iterdir()}
    contents = {n: PullObjectResponse.FromString(c).object_content for n, c in files.items()}
    for name, sent in zip(names, messages, strict=True):
        found: Any = inflate_object_from_contents(name, dict(contents))
        assert found.metadata.dst_node_id == sent.metadata.dst_node_id
        arrived = found.content["arrays"]["x"].numpy()
        np.testing.assert_array_equal(arrived, sent.content["arrays"]["x"].numpy())


def test_what_messages_share_is_kept_until_the_last_of_them_is_answered(shelf: Shelf) -> None:
    first, second = fetching.pushed(Flower(), [message(7), message(8)], shelf)  # type: ignore[arg-type]
    whole = {path.name for path in (shelf._run / "down").iterdir()}

    shelf.keep({first, second})
    assert {path.name for path in (shelf._run / "down").iterdir()} == whole
    shelf.keep({second})
    assert {path.name for path in (shelf._run / "down").iterdir()} == whole - {first}
    shelf.keep(set())
    assert not list((shelf._run / "down").iterdir())


def test_what_came_of_a_reply_that_is_given_up_is_deleted(shelf: Shelf) -> None:
    first, second = fetching.pushed(Flower(), [message(7), message(8)], shelf)  # type: ignore[arg-type]
    for name in (first, second):
        lay(shelf, name, {"a": b"part"})

    shelf.keep({second})

    assert [path.name for path in (shelf._run / "up").iterdir()] == [second]


def test_a_reply_is_read_from_the_shelf_and_removed(shelf: Shelf) -> None:
    flower = Flower()
    name, tree, objects = objects_of(message(1, number=2.5))
    lay(shelf, name, objects)

    reply = fetching.fetched(flower, name, (name, tree), lambda: False, shelf)  # type: ignore[arg-type]

    assert reply is not None
    assert (reply.content["arrays"]["x"].numpy().view(np.float32) == 2.5).all()
    assert flower.pulled == []
    assert not up(shelf._run, name).exists()


def test_a_reply_that_cannot_be_read_never_arrived(shelf: Shelf) -> None:
    name, tree, objects = objects_of(message(1))
    lay(shelf, name, dict.fromkeys(objects, b"no object of Flower's"))

    assert fetching.fetched(Flower(), name, (name, tree), lambda: False, shelf) is None  # type: ignore[arg-type]


def test_a_reply_that_becomes_far_larger_than_what_was_sent_is_not_put_together(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = ArrayRecord()
    record["x"] = PackedArray([np.zeros(40_000_000, dtype=np.uint32)])  # equal chunks, sent once
    name, tree, objects = objects_of(Message(RecordDict({"arrays": record}), 1, MessageType.TRAIN))
    assert sum(map(len, objects.values())) < 20e6

    for most, taken in ((200e6, True), (100e6, False)):
        lay(shelf, name, objects)
        monkeypatch.setenv(LARGEST, str(most))
        reply = fetching.fetched(Flower(), name, (name, tree), lambda: False, shelf)  # type: ignore[arg-type]
        assert (reply is not None) == taken


def test_flower_is_not_asked_about_a_reply_that_is_still_being_left_here(shelf: Shelf) -> None:
    flower = Flower()
    name, tree, objects = objects_of(message(1))
    lay(shelf, name, {})
    asked: list[None] = []

    def given_up() -> bool:
        asked.append(None)
        if len(asked) == 3:  # the upload goes on
            lay(shelf, name, objects)
        return False

    assert fetching.fetched(flower, name, (name, tree), given_up, shelf) is not None  # type: ignore[arg-type]
    assert flower.pulled == []


def test_what_a_new_gate_passed_on_is_asked_of_flower(shelf: Shelf) -> None:
    flower = Flower()
    name, tree, objects = objects_of(message(1))
    here, there = dict(list(objects.items())[:2]), dict(list(objects.items())[2:])
    lay(shelf, name, here)
    (up(shelf._run, name) / MIXED).touch()
    flower.objects = there

    assert fetching.fetched(flower, name, (name, tree), lambda: False, shelf) is not None  # type: ignore[arg-type]
    assert sorted(flower.pulled) == sorted(there)


def test_a_reply_that_is_not_here_at_all_is_flowers(shelf: Shelf) -> None:
    flower = Flower()
    name, tree, flower.objects = objects_of(message(1))

    assert fetching.fetched(flower, name, (name, tree), lambda: False, shelf) is not None  # type: ignore[arg-type]
    assert sorted(set(flower.pulled)) == sorted(flower.objects)


def test_there_is_a_shelf_only_where_a_gate_has_made_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SHELF, raising=False)
    assert Shelf.of(RUN) is None
    monkeypatch.setenv(SHELF, str(tmp_path / "objects"))
    assert Shelf.of(RUN) is None

    (tmp_path / "objects").mkdir()
    shelf = Shelf.of(RUN)

    assert shelf is not None
    shelf.put({"a": [b"content"]})
    assert down(tmp_path / "objects" / str(RUN), "a").exists()
    shelf.close()
    assert not (tmp_path / "objects" / str(RUN)).exists()
