"""Who is enrolled, who is not and why, and who is told so."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import ConfigRecord, Message
from grid import InMemoryGrid, broken_config
from settings_of import configured
from timed import Clock

from fedrc_flwr import __version__, wire
from fedrc_flwr.errors import RunError
from server_app import enrolment
from server_app.enrolment import Roster


class Remote(InMemoryGrid):
    """Not a simulation: nodes come and go."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(enrolment, "time", made)
    monkeypatch.setattr("server_app.exchange.time", made)
    return made


def make_roster(
    nodes: int = 2, *, keys: bool = False, **registered: int
) -> tuple[Roster, Remote, list[dict[str, Any]]]:
    config = configured(clients=3, observers_per_concept=0, hidden=4, clusters=2)
    grid = Remote(nodes, {**config.to_dict(), "resolved": True})
    events: list[dict[str, Any]] = []
    names = {node: name for name, node in registered.items()}
    roster = Roster(grid, 10, 0, lambda: names, events.append, keys)  # type: ignore[arg-type]
    return roster, grid, events


def refusing(**fields: str) -> Any:
    def act(message: Message, answer: Any) -> Message:
        reply = answer()
        del reply.content["enrolment"]
        reply.content["refusal"] = ConfigRecord({"schema": wire.SCHEMA, **fields})
        return reply

    return act


def silent(message: Message, answer: Any) -> None:
    return None


def test_nodes_are_enrolled_and_told_of_by_name() -> None:
    roster, _, events = make_roster()

    enrolled = roster.refresh()

    assert [client.name for client in enrolled] == ["client-0", "client-1"]
    assert events[0] == {"event": "enrolled", "client": "client-0", "role": "train", "samples": 431}
    assert roster.refresh() == []


def test_refusal_is_told_at_once_with_its_reason_and_the_node_is_asked_again(clock: Clock) -> None:
    roster, grid, events = make_roster(1)
    grid.behaviours[100] = refusing(name="a", code="missing-column", column="crp")

    roster.refresh()
    roster.refresh()

    reason = "its table has no column 'crp'; its own log says more"
    assert events == [{"event": "refused", "client": "a", "reason": reason}]
    assert len(grid.sent) == 1, "not asked again at once"
    grid.behaviours.clear()  # the operator has mended the file
    clock.sleep(enrolment.ASK_AGAIN)
    assert [client.name for client in roster.refresh()] == ["client-0"]


def test_same_refusal_is_told_once_and_asked_for_ever_more_rarely(clock: Clock) -> None:
    roster, grid, events = make_roster(1)
    grid.behaviours[100] = refusing(name="a", code="unreadable")
    asked = []

    for _ in range(400):
        roster.refresh()
        if len(grid.sent) > len(asked):
            asked.append(clock.now)
        clock.sleep(1.0)

    assert asked == [0, 10, 30, 70, 150, 310]
    assert len(events) == 1


def test_code_of_a_later_release_is_still_a_refusal() -> None:
    roster, grid, events = make_roster(1)
    grid.behaviours[100] = refusing(name="a", code="new-in-2030")

    assert roster.refresh() == []
    assert "a reason that this release does not know" in events[0]["reason"]


def test_node_of_another_release_is_refused() -> None:
    roster, grid, events = make_roster(2)
    patch = ".".join([*__version__.split(".")[:2], "999"])
    grid.behaviours = {
        100: lambda _, answer: broken_config(answer(), "enrolment", version="7.5.0"),
        101: lambda _, answer: broken_config(answer(), "enrolment", version=patch),
    }

    enrolled = roster.refresh()

    assert [client.name for client in enrolled] == ["client-1"], "a patch release may differ"
    assert events[0]["reason"].startswith(
        f"it has fedrc-flwr 7.5.0, but this run needs {__version__}"
    )


def test_node_under_a_name_that_it_was_not_registered_under_is_refused() -> None:
    roster, _, events = make_roster(2, **{"client-0": 100, "hospital-b": 101})

    enrolled = roster.refresh()

    assert [client.name for client in enrolled] == ["client-0"]
    reason = "it was registered as hospital-b, but its node.yaml has the name client-1"
    assert events[-1] == {"event": "refused", "client": "hospital-b", "reason": reason}


def test_where_nodes_have_keys_a_node_without_a_registered_name_is_refused() -> None:
    roster, _, events = make_roster(2, keys=True, **{"client-0": 100, "": 101})

    enrolled = roster.refresh()

    assert [client.name for client in enrolled] == ["client-0"]
    assert events[-1]["client"] == "node 101"
    assert events[-1]["reason"].startswith("it calls itself client-1, but was registered without")


def test_a_name_belongs_to_the_first_of_two_nodes_that_were_registered_under_it() -> None:
    names = {100: "client-0"}
    config = configured(clients=3, observers_per_concept=0, hidden=4, clusters=2)
    grid = Remote(1, {**config.to_dict(), "resolved": True})
    roster = Roster(grid, 10, 0, lambda: names, lambda event: None, keys=True)  # type: ignore[arg-type]
    roster.refresh()
    grid.add_node(200, 0)  # calls itself client-0, too
    names[200] = "client-0"

    assert roster.refresh() == []
    assert "the name client-0 belongs to another node" in roster.refused["client-0"]
    assert roster.node("client-0") == 100


def test_a_node_with_a_rotated_key_keeps_its_name() -> None:
    names = {100: "client-0"}
    config = configured(clients=3, observers_per_concept=0, hidden=4, clusters=2)
    grid = Remote(1, {**config.to_dict(), "resolved": True})
    roster = Roster(grid, 10, 0, lambda: names, lambda event: None, keys=True)  # type: ignore[arg-type]
    roster.refresh()
    grid.add_node(200, 0)
    del names[100]
    names[200] = "client-0"

    assert [client.name for client in roster.refresh()] == ["client-0"]
    assert roster.node("client-0") == 200


def test_slow_node_does_not_keep_others_from_enrolling(clock: Clock) -> None:
    roster, grid, events = make_roster(2)
    grid.behaviours[100] = silent

    first = roster.refresh()
    grid.add_node(102, 2)
    second = roster.refresh()
    clock.sleep(enrolment.ANSWER_SECONDS)
    roster.refresh()

    assert [client.name for client in [*first, *second]] == ["client-1", "client-2"]
    assert events[-1] == {
        "event": "refused", "client": "node 100", "reason": "it has not answered",
    }  # fmt: skip


def test_waiting_says_who_is_missing_by_name_and_ends_with_their_reasons() -> None:
    roster, grid, events = make_roster(3, **{"client-0": 100, "b": 101, "c": 102, "d": 103})
    grid.behaviours = {101: silent, 102: refusing(name="c", code="no-data")}

    with pytest.raises(RunError) as caught:
        roster.wait(3, 0, 30.0, lambda clients: None)

    waiting = [event for event in events if event["event"] == "waiting"]
    assert waiting[0] == {
        "event": "waiting", "trainers": 3, "everybody": 0, "training": ["client-0"],
        "observing": [], "asked": ["b"], "offline": ["d"], "refused": ["c"], "seconds": 29,
    }  # fmt: skip
    said = str(caught.value)
    assert said.startswith("1 of 3 training clients are enrolled; start the nodes that are missing")
    assert "virtual" not in said
    assert "Not enrolled: c: it has no data for this run: " in said
    assert said.endswith("d: offline")


def test_wait_ends_as_soon_as_enough_are_there(clock: Clock) -> None:
    roster, _, events = make_roster(3)
    seen: list[str] = []

    roster.wait(3, 3, 60.0, lambda clients: seen.extend(client.name for client in clients))

    assert seen == ["client-0", "client-1", "client-2"]
    assert clock.now < 2
    assert not [event for event in events if event["event"] == "waiting"]


@pytest.mark.parametrize("all_needed", [True, False])
def test_wait_for_all_does_not_start_without_one(all_needed: bool) -> None:
    roster, _, _ = make_roster(2, **{"client-0": 100, "client-1": 101, "": 102})

    def wait() -> None:
        roster.wait(1, 3, 20.0, lambda clients: None, all_needed)

    if not all_needed:
        wait()
        return
    with pytest.raises(RunError, match=r"^2 of 3 clients are enrolled; .* node 102: offline$"):
        wait()
