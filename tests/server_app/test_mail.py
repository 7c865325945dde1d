"""Replies that are announced before they are complete."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from server_app import fetching, mail
from server_app.mail import FETCH_AT_ONCE, Mail

EVERYBODY = list("abcdefghijklmnopqrstuvwxyz")


@dataclass
class Superlink:
    """Announces replies at once and completes each when it is told to."""

    answered: set[str]
    complete: dict[str, threading.Event] = field(default_factory=dict)
    asked: list[list[str]] = field(default_factory=list)
    under_way: int = 0
    most: int = 0

    def announced(self, grid: Any, identities: list[str]) -> list[tuple[str, Any]]:
        self.asked.append(identities)
        # As Flower does: what has been announced is not announced again.
        found = [i for i in identities if i in self.answered]
        self.answered -= set(found)
        return [(identity, identity) for identity in found]

    def fetched(self, grid: Any, message: str, about: str, given_up: Any, shelf: Any) -> Any:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        while not given_up():
            if self.complete[about].wait(0.01):
                self.under_way -= 1
                return None if about == "never" else f"reply to {about}"
        return None


@pytest.fixture
def superlink(monkeypatch: pytest.MonkeyPatch) -> Superlink:
    names = [*EVERYBODY, "never"]
    link = Superlink(set(names), {name: threading.Event() for name in names})
    monkeypatch.setattr(fetching, "announced", link.announced)
    monkeypatch.setattr(fetching, "fetched", link.fetched)
    monkeypatch.setattr(fetching, "is_possible", lambda grid: True)
    monkeypatch.setattr(fetching, "shelf_of", lambda grid: None)
    monkeypatch.setattr(fetching, "confirm", lambda grid, about: None)
    return link


def collect(box: Mail, waiting: list[str], count: int) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for _ in range(1000):
        found += box.replies([i for i in waiting if i not in dict(found)])
        if len(found) >= count:
            return found
        box.wait(0.01)
    raise AssertionError(found)


def test_a_reply_that_is_not_complete_holds_up_no_other(superlink: Superlink) -> None:
    box = Mail(None)  # type: ignore[arg-type]
    superlink.complete["b"].set()

    first = collect(box, ["a", "b"], 1)
    superlink.complete["a"].set()
    second = collect(box, ["a"], 1)

    assert (first, second) == ([("b", "reply to b")], [("a", "reply to a")])
    assert superlink.asked == [["a", "b"]]  # nobody asks for what is being fetched
    box.close()


def test_a_few_are_fetched_at_a_time_and_all_of_them_in_the_end(superlink: Superlink) -> None:
    box, everybody = Mail(None), EVERYBODY  # type: ignore[arg-type]
    assert list(box.replies(everybody)) == []
    for event in superlink.complete.values():
        event.set()

    found = collect(box, everybody, len(everybody))

    assert sorted(identity for identity, _ in found) == everybody
    assert superlink.most <= FETCH_AT_ONCE < len(everybody)
    box.close()


def test_a_reply_whose_content_never_arrives_is_none(superlink: Superlink) -> None:
    box = Mail(None)  # type: ignore[arg-type]
    superlink.complete["never"].set()

    assert collect(box, ["never"], 1) == [("never", None)]
    box.close()


def test_a_reply_that_nobody_waits_for_any_more_is_given_up(superlink: Superlink) -> None:
    box = Mail(None)  # type: ignore[arg-type]
    assert list(box.replies(["a", "b"])) == []
    given_up = box._fetching["a"]

    list(box.replies(["b"]))

    assert given_up.result(timeout=10) is None
    superlink.complete["b"].set()
    assert collect(box, ["b"], 1) == [("b", "reply to b")]
    box.close()


def test_what_is_being_fetched_is_given_up_at_the_end(superlink: Superlink) -> None:
    box = Mail(None)  # type: ignore[arg-type]
    assert list(box.replies(["a"])) == []
    thread = next(iter(box._fetching.values()))

    box.close()

    assert thread.result(timeout=10) is None


def test_another_version_of_flower_pulls_as_it_always_did(monkeypatch: pytest.MonkeyPatch) -> None:
    class Grid:
        pulled: list[list[str]] = []  # noqa: RUF012

        def pull_messages(self, identities: list[str]) -> list[Any]:
            self.pulled.append(list(identities))
            return []

    monkeypatch.setattr(mail, "fetching", None)

    assert list(Mail(Grid()).replies(["a", "b"])) == []  # type: ignore[arg-type]
    assert Grid.pulled == [["a", "b"]]
