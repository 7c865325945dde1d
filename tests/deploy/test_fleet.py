"""A node's calls to its SuperLink: what is tried again, what is given up, what ends the node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.proto.fleet_pb2 import (
    ActivateNodeResponse,
    DeactivateNodeResponse,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesResponse,
    RegisterNodeFleetResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse, PushObjectResponse
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError
from loopback import node_file

from deploy.certificates import create_node_key
from deploy.node import fleet as module
from deploy.node.fleet import Fleet, NotRegistered, RunOver, TooLarge
from fedrc_flwr.errors import ConfigError


def failing(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "https://superlink")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status))


class Stub:
    """In place of Flower's client: each call gives the next of its prepared answers."""

    def __init__(self, **answers: list[Any] | Callable[[Any], Any]) -> None:
        self.answers = {
            "ActivateNode": [ActivateNodeResponse(node_id=7)],
            "DeactivateNode": [DeactivateNodeResponse()],
            "RegisterNode": [RegisterNodeFleetResponse(node_id=7)],
            "SendNodeHeartbeat": lambda request: SendNodeHeartbeatResponse(success=True),
            **answers,
        }
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        def call(request: Any) -> Any:
            self.calls.append(name)
            prepared = self.answers[name]
            answer = prepared(request) if callable(prepared) else prepared.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


Make = Callable[..., tuple[Fleet, Stub]]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    create_node_key(tmp_path / "node.key")
    monkeypatch.setattr(module, "FIRST_RETRY", 0.001)
    monkeypatch.setattr(module, "SESSION_RETRY", 0.001)
    monkeypatch.setattr(module, "OBJECT_RETRY", 0.001)

    def build(secure: bool = True, **answers: Any) -> tuple[Fleet, Stub]:
        stub = Stub(**answers)
        monkeypatch.setattr(module.FleetHttpClient, "from_server_address", lambda *arguments: stub)
        plain = {} if secure else {"ca": None, "key": None, "insecure": True}
        made = Fleet(node_file(tmp_path, **plain))
        return made, stub

    return build


def test_a_superlink_that_goes_away_and_returns_is_asked_again(make: Make) -> None:
    gone = [httpx.ConnectError("refused"), failing(503), httpx.ReadTimeout("late"), failing(500)]
    fleet, stub = make(PullMessages=[*gone, PullMessagesResponse()])
    fleet.sign_on()

    assert fleet.pull() is None

    assert stub.calls.count("PullMessages") == 5
    fleet.sign_off()
    assert stub.calls[-1] == "DeactivateNode"


def test_a_hurried_call_gives_up(make: Make) -> None:
    fleet, _ = make(PullMessages=lambda request: httpx.ConnectError("refused"))
    fleet.sign_on()

    with pytest.raises(httpx.ConnectError), fleet.hurried(0.02):
        fleet.pull()
    fleet.sign_off()


@pytest.mark.parametrize(
    ("status", "error"), [(401, NotRegistered), (403, RunOver), (404, httpx.HTTPStatusError)]
)
def test_what_another_attempt_does_not_help(
    make: Make, status: int, error: type[Exception]
) -> None:
    fleet, stub = make(PullMessages=[failing(status)])
    fleet.sign_on()

    with pytest.raises(error):
        fleet.pull()
    assert stub.calls.count("PullMessages") == 1
    fleet.sign_off()


def test_a_node_waits_until_its_earlier_session_is_over(make: Make) -> None:
    answers = [failing(412), failing(412), ActivateNodeResponse(node_id=9)]
    fleet, stub = make(ActivateNode=answers)

    assert fleet.sign_on() == 9
    assert stub.calls.count("ActivateNode") == 3
    assert "RegisterNode" not in stub.calls
    fleet.sign_off()


def test_two_nodes_with_one_key_are_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSION_SECONDS", 0.0)
    fleet, _ = make(ActivateNode=lambda request: failing(412))

    with pytest.raises(ConfigError, match="each needs its own key"):
        fleet.sign_on()


def test_without_authentication_a_node_registers_itself(make: Make) -> None:
    fleet, stub = make(secure=False, UnregisterNode=[None])

    fleet.sign_on()
    fleet.sign_off()

    assert stub.calls[:2] == ["RegisterNode", "ActivateNode"]
    assert "UnregisterNode" in stub.calls


TREE = ObjectTree(object_id="a", children=[ObjectTree(object_id="b"), ObjectTree(object_id="b")])


def test_objects_that_are_announced_and_not_there_yet_are_waited_for(make: Make) -> None:
    asked: list[str] = []

    def pull(request: Any) -> PullObjectResponse:
        asked.append(request.object_id)
        there = asked.count(request.object_id) > 2
        return PullObjectResponse(
            object_found=True, object_available=there, object_content=request.object_id.encode()
        )

    fleet, _ = make(PullObject=pull)
    fleet.sign_on()

    assert fleet.objects(1, TREE, 100) == {"a": b"a", "b": b"b"}
    assert len(asked) == 6
    fleet.sign_off()


def test_a_message_is_not_read_beyond_its_limit(make: Make) -> None:
    def pull(request: Any) -> PullObjectResponse:
        return PullObjectResponse(
            object_found=True, object_available=True, object_content=b"x" * 60
        )

    fleet, _ = make(PullObject=pull)
    fleet.sign_on()

    with pytest.raises(TooLarge):
        fleet.objects(1, TREE, 100)
    fleet.sign_off()


def test_an_object_that_does_not_exist_is_an_error(make: Make) -> None:
    fleet, _ = make(PullObject=lambda request: PullObjectResponse(object_found=False))
    fleet.sign_on()

    with pytest.raises(ObjectPullError):
        fleet.objects(1, TREE, 100)
    fleet.sign_off()


def test_an_upload_that_was_broken_off_is_made_again_once(make: Make) -> None:
    stored = [False, True, True, False, False]
    wanted = PushMessagesResponse(objects_to_push=["a"], session_id="s")
    fleet, stub = make(
        PushMessages=lambda request: wanted,
        PushObject=lambda request: PushObjectResponse(stored=stored.pop(0)),
    )
    fleet.sign_on()
    objects = {"a": b"1", "b": b"2"}

    fleet.push(MessageProto(), TREE, objects, 1.0)
    assert stub.calls.count("PushObject") == 2, "only what the server has not got"
    fleet.push(MessageProto(), TREE, objects, 1.0)
    with pytest.raises(ObjectPushError):
        fleet.push(MessageProto(), TREE, objects, 1.0)
    fleet.sign_off()


def test_an_object_that_the_server_has_got_already_does_not_keep_the_others_back(
    make: Make,
) -> None:
    # The SuperLink was killed after it had stored "a". It then takes "a" no more, and does not say
    # again what is missing, because the server waits for this reply already.
    answers = [
        PushMessagesResponse(objects_to_push=["a", "b", "c"], session_id="s"),
        PushMessagesResponse(session_id="t"),
    ]
    pushed: list[str] = []

    def push(request: Any) -> PushObjectResponse:
        pushed.append(request.object_id)
        return PushObjectResponse(stored=request.object_id != "a")

    fleet, _ = make(PushMessages=answers, PushObject=push)
    fleet.sign_on()

    fleet.push(MessageProto(), TREE, {"a": b"1", "b": b"2", "c": b"3"}, 1.0)

    assert sorted(pushed) == ["a", "b", "c"]
    fleet.sign_off()


def test_the_gate_tells_that_it_held_a_question_back() -> None:
    holding = module.Holding()

    def asked(message: Any, **headers: str) -> bool:
        context = SimpleNamespace(message=message)
        holding.intercept(context, lambda context: httpx.Response(200, headers=headers))  # type: ignore[arg-type]
        return holding.held

    assert not asked(PullMessagesRequest())
    assert asked(PullMessagesRequest(), **{"fedrc-held": "1"})
    assert asked(PullObjectResponse())  # an answer to something else says nothing
    assert not asked(PullMessagesRequest())
