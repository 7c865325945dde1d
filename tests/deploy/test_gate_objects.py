"""Objects that nodes get and leave at the gate, and questions that it holds back."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import (
    Message,
    Metadata,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from gates import Opened, one_answer, open_gate, status_of

from deploy.gate.conversation import Limits
from deploy.gate.objects import Objects
from server_app.shelf import MIXED, POSTED, Shelf, signal, up

PULL, PUSH = b"/v1/fleet/pull-object", b"/v1/fleet/push-object"
REPLY, ASK = b"/v1/fleet/push-messages", b"/v1/fleet/pull-messages"
RUN, NODE, HOLD = 5, 7, 0.6
CONTENT = bytes(range(256)) * 4000
NAME = hashlib.sha256(CONTENT).hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()
MESSAGE = hashlib.sha256(b"message").hexdigest()


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with open_gate(tmp_path_factory.mktemp("gate"), Limits(refused=0.05, hold=HOLD)) as opened:
        yield opened


@pytest.fixture
def shelf(gate: Opened) -> Iterator[Shelf]:
    """A ServerApp's part of the directory."""
    gate.flower.requests.clear()
    gate.flower.answer = b"Flower's own"
    shelf = Shelf(gate.folder / "objects", RUN)
    send(shelf, MESSAGE)
    yield shelf
    shelf.close()


def send(shelf: Shelf, message: str) -> None:
    """A message of the server's, whose reply is then waited for."""
    shelf.put({message: [b"message"]})
    shelf.posted({message: [message]})


def ask(gate: Opened, target: bytes, body: bytes) -> tuple[bytes, bytes]:
    """Head and body of the answer."""
    with gate.connect() as connection:
        connection.sendall(gate.call(target, body))
        answer = one_answer(connection)
    assert status_of(answer) == 200
    head, _, content = answer.partition(b"\r\n\r\n")
    return head.lower(), content


def pull(gate: Opened, name: str, run: int = RUN) -> bytes:
    return ask(gate, PULL, PullObjectRequest(run_id=run, object_id=name).SerializeToString())[1]


def push(
    gate: Opened, name: str = NAME, content: bytes = CONTENT, run: int = RUN, session: str = "s"
) -> bytes:
    request = PushObjectRequest(
        run_id=run, object_id=name, object_content=content, session_id=session
    )
    return ask(gate, PUSH, request.SerializeToString())[1]


def reply(
    *parts: str, run: int = RUN, message: str = MESSAGE, node: int = NODE
) -> PushMessagesRequest:
    """A node's reply to a message, without its objects."""
    about = Metadata(run_id=run, src_node_id=node, reply_to_message_id=message)
    tree = ObjectTree(object_id=parts[0], children=[ObjectTree(object_id=p) for p in parts[1:]])
    return PushMessagesRequest(messages_list=[Message(metadata=about)], message_object_trees=[tree])


def announce(gate: Opened, *wanted: str, run: int = RUN, message: str = MESSAGE) -> None:
    """A reply that Flower takes, and whose objects it then wants."""
    request = reply(*wanted, run=run, message=message)
    answer = PushMessagesResponse(session_id="s", objects_to_push=wanted)
    gate.flower.answer = answer.SerializeToString()
    assert ask(gate, REPLY, request.SerializeToString())[1] == gate.flower.answer
    gate.flower.requests.clear()
    gate.flower.answer = b"Flower's own"


# --- down ---------------------------------------------------------------------------------------


def test_what_lies_here_is_given_to_a_node_and_flower_is_not_asked(
    gate: Opened, shelf: Shelf
) -> None:
    shelf.put({NAME: [CONTENT]})

    answer = PullObjectResponse.FromString(pull(gate, NAME))

    assert answer.object_found
    assert answer.object_available
    assert answer.object_content == CONTENT
    assert gate.flower.requests == []


@pytest.mark.parametrize("name", [OTHER, "", "../up", f"../../{RUN}/down/{NAME}", NAME.upper()])
def test_what_does_not_lie_here_is_not_waited_for(gate: Opened, shelf: Shelf, name: str) -> None:
    # Flower was never given it, and would tell the node that it is about to come.
    shelf.put({NAME: [CONTENT]})

    answer = PullObjectResponse.FromString(pull(gate, name))

    assert not answer.object_found
    assert gate.flower.requests == []


def test_the_objects_of_another_run_are_flowers_business(gate: Opened, shelf: Shelf) -> None:
    shelf.put({NAME: [CONTENT]})

    assert pull(gate, NAME, run=RUN + 1) == b"Flower's own"


# --- up -----------------------------------------------------------------------------------------


def test_a_reply_is_left_here_and_flower_never_sees_its_objects(gate: Opened, shelf: Shelf) -> None:
    announce(gate, NAME, OTHER)
    before = shelf.arrived()

    assert PushObjectResponse.FromString(push(gate)).stored
    assert shelf.is_whole(MESSAGE)
    assert shelf.arrived() == before  # a part is still missing
    assert PushObjectResponse.FromString(push(gate, OTHER, b"other")).stored

    assert gate.flower.requests == []
    assert shelf.arrived() == before + 1
    assert shelf.object(MESSAGE, NAME) == CONTENT
    assert shelf.object(MESSAGE, OTHER) == b"other"


@pytest.mark.parametrize(
    "changed",
    [
        {"name": OTHER},  # the content is not what its name says
        {"name": OTHER, "content": b"other"},  # not asked for
        {"session": "another"},
        {"run": RUN + 1},
    ],
    ids=["damaged", "unasked", "session", "run"],
)
def test_what_flower_did_not_ask_for_is_passed_on_to_it(
    gate: Opened, shelf: Shelf, changed: dict[str, object]
) -> None:
    announce(gate, NAME)

    assert push(gate, **changed) == b"Flower's own"  # type: ignore[arg-type]

    ((_, body),) = gate.flower.requests
    passed = PushObjectRequest.FromString(body)
    assert passed.object_content == changed.get("content", CONTENT)
    assert not list(up(shelf._run, MESSAGE).iterdir())
    assert not list((gate.folder / "objects").glob("*.body"))


def test_an_object_is_taken_once(gate: Opened, shelf: Shelf) -> None:
    announce(gate, NAME, OTHER)

    push(gate)

    assert push(gate) == b"Flower's own"


def test_without_a_serverapp_that_looks_here_everything_is_flowers(gate: Opened) -> None:
    announce(gate, NAME, run=RUN + 9)

    assert push(gate, run=RUN + 9) == b"Flower's own"
    assert not (gate.folder / "objects" / str(RUN + 9)).exists()


@pytest.mark.parametrize("name", ["../../../tricked", "/tricked", "tricked\0", "tricked" * 9999])
def test_a_message_whose_name_is_a_path_makes_no_directory(
    gate: Opened, shelf: Shelf, name: str
) -> None:
    assert gate.status(gate.call(REPLY, reply(NAME, message=name).SerializeToString())) == 403

    assert gate.flower.requests == []
    assert not list(gate.folder.rglob("*tricked*"))


@pytest.mark.parametrize(
    "told",
    [
        {"node": 1, "message": ""},  # an instruction, as if it were the server's
        {"node": NODE, "message": ""},
        {"node": NODE + 1},  # the reply of another node
    ],
    ids=["instruction", "no reply", "another's"],
)
def test_a_node_sends_its_own_replies_and_nothing_else(
    gate: Opened, shelf: Shelf, told: dict[str, Any]
) -> None:
    # Flower itself believes what a message says about its sender.
    own, other = reply(NAME), reply(NAME, **told)
    own.messages_list.extend(other.messages_list)

    for request in (other, own):
        assert gate.status(gate.call(REPLY, request.SerializeToString())) == 400

    assert gate.flower.requests == []


def test_a_reply_that_comes_too_late_is_not_taken(gate: Opened, shelf: Shelf) -> None:
    shelf.keep(set())

    assert gate.status(gate.call(REPLY, reply(NAME).SerializeToString())) == 403
    assert gate.flower.requests == []


def test_an_upload_that_is_given_up_leaves_nothing_behind(gate: Opened, shelf: Shelf) -> None:
    announce(gate, NAME, OTHER)
    push(gate)
    rest = PushObjectRequest(
        run_id=RUN, object_id=OTHER, object_content=b"other", session_id="s"
    ).SerializeToString()

    shelf.keep(set())

    assert gate.status(gate.call(PUSH, rest)) == 403
    assert gate.flower.requests == []
    assert not list((shelf._run / "up").iterdir())
    assert not list((gate.folder / "objects").glob("*.body"))


def test_a_part_that_flower_has_got_already_is_asked_of_flower(gate: Opened, shelf: Shelf) -> None:
    # Flower knows objects by their content: another reply may have brought the same one.
    answer = PushMessagesResponse(session_id="s", objects_to_push=[NAME])
    gate.flower.answer = answer.SerializeToString()

    ask(gate, REPLY, reply(NAME, OTHER).SerializeToString())

    assert (up(shelf._run, MESSAGE) / MIXED).exists()


def test_a_reply_between_the_parts_of_another_does_not_hide_the_rest(
    gate: Opened, shelf: Shelf
) -> None:
    second = hashlib.sha256(b"second message").hexdigest()
    send(shelf, second)
    announce(gate, NAME, OTHER)
    announce(gate, NAME, OTHER)  # once more, since the answer was lost
    assert shelf.is_whole(MESSAGE)

    announce(gate, NAME, message=second)

    assert not shelf.is_whole(MESSAGE)  # what is missing goes to Flower now
    assert shelf.is_whole(second)


def test_objects_are_checked_one_after_the_other(tmp_path: Path) -> None:
    import asyncio

    at_once, most = 0, []

    def slow(body: Path) -> None:
        nonlocal at_once
        at_once += 1
        most.append(at_once)
        time.sleep(0.01)
        at_once -= 1

    async def scene() -> None:
        objects = Objects(tmp_path)
        await asyncio.gather(*[objects.left(b"node", objects.body()) for _ in range(8)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deploy.gate.objects._read", slow)
        asyncio.run(scene())
    assert most == [1] * 8


def test_a_reply_that_is_dropped_meanwhile_does_not_keep_a_gate_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf(tmp_path, RUN)
    gone = up(shelf._run, MESSAGE)
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [gone] if "up" in pattern else [])

    Objects(tmp_path)

    assert not gone.exists()


def test_a_node_cannot_leave_the_objects_of_another_ones_reply(tmp_path: Path) -> None:
    import asyncio

    answer = PushMessagesResponse(session_id="s", objects_to_push=[NAME]).SerializeToString()
    pushed = PushObjectRequest(run_id=RUN, object_id=NAME, object_content=CONTENT, session_id="s")

    async def scene() -> tuple[bool, bool]:
        objects = Objects(tmp_path)
        send(Shelf(tmp_path, RUN), MESSAGE)
        objects.announced(b"alice", reply(NAME), answer)
        body = objects.body()
        body.write_bytes(pushed.SerializeToString())
        return await objects.left(b"mallory", body), await objects.left(b"alice", body)

    assert asyncio.run(scene()) == (False, True)


def test_a_new_gate_says_that_flower_may_have_the_rest(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, RUN)
    up(shelf._run, MESSAGE).mkdir()
    (tmp_path / "3.body").write_bytes(b"half of an upload")
    assert shelf.is_whole(MESSAGE)

    Objects(tmp_path)

    assert (up(shelf._run, MESSAGE) / MIXED).exists()
    assert not shelf.is_whole(MESSAGE)
    assert not (tmp_path / "3.body").exists()


# --- questions that are held back ---------------------------------------------------------------


def test_a_question_is_held_back_until_messages_are_posted(gate: Opened, shelf: Shelf) -> None:
    gate.flower.answer = b""
    answers: list[tuple[bytes, bytes]] = []
    asking = threading.Thread(target=lambda: answers.append(ask(gate, ASK, b"")))
    asking.start()
    while not gate.flower.requests:
        time.sleep(0.001)
    gate.flower.answer = b"a message"

    signal(gate.folder / "objects" / POSTED)
    asking.join(10)

    ((head, body),) = answers
    assert body == b"a message"
    assert b"fedrc-held: 1" in head
    assert len(gate.flower.requests) == 2


def test_nothing_is_fetched_for_a_caller_that_has_hung_up(gate: Opened, shelf: Shelf) -> None:
    # Flower would take the message for delivered, and the node would never see it.
    gate.flower.answer = b""
    with gate.connect() as connection:
        connection.sendall(gate.call(ASK, b""))
        while not gate.flower.requests:
            time.sleep(0.001)
        connection.shutdown(socket.SHUT_RDWR)
    time.sleep(HOLD / 4)
    gate.flower.answer = b"a message"

    signal(gate.folder / "objects" / POSTED)
    time.sleep(HOLD)

    assert len(gate.flower.requests) == 1


def test_a_question_without_an_answer_is_not_held_for_ever(gate: Opened, shelf: Shelf) -> None:
    gate.flower.answer = b""

    head, body = ask(gate, ASK, b"")

    assert body == b""
    assert b"fedrc-held: 1" in head


def test_nothing_is_held_back_where_no_serverapp_tells_about_messages(gate: Opened) -> None:
    gate.flower.requests.clear()
    gate.flower.answer = b""

    head, _ = ask(gate, ASK, b"")

    assert b"fedrc-held" not in head
    assert len(gate.flower.requests) == 1
