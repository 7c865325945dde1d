"""When a round stops waiting, with times worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from grid import InMemoryGrid

from server_app import grace
from server_app.exchange import Outbox, exchange
from server_app.grace import LEAST, Grace, RoundsGrace

SAMPLES = {"a": 100, "b": 100, "c": 100, "d": 100, "large": 500}


def asked(needed: int, factor: float = 3.0, **before: float) -> Grace:
    """Everybody was asked at 0 seconds; a, b and c have answered after 10, 20 and 30."""
    waited = Grace(needed, factor, SAMPLES, before)
    for name in SAMPLES:
        waited.sent(name, 0.0)
    for name, seconds in {"a": 10.0, "b": 20.0, "c": 30.0}.items():
        waited.answered(name, seconds)
    return waited


def test_three_times_the_median_once_enough_have_answered() -> None:
    assert not asked(needed=3).is_over({"d"}, 59.0)
    assert asked(needed=3).is_over({"d"}, 60.0)
    assert not asked(needed=4).is_over({"d"}, 10_000.0)


def test_more_samples_have_more_time() -> None:
    assert not asked(needed=3).is_over({"d", "large"}, 299.0)
    assert asked(needed=3).is_over({"d", "large"}, 300.0)


def test_who_took_longer_before_has_more_time() -> None:
    assert not asked(needed=3, d=50.0).is_over({"d"}, 149.0)
    assert asked(needed=3, d=50.0).is_over({"d"}, 150.0)


def test_everybody_has_some_seconds() -> None:
    waited = Grace(1, 3.0, SAMPLES, {})
    waited.sent("a", 0.0)
    waited.sent("d", 5.0)
    waited.answered("a", 0.1)

    assert not waited.is_over({"d"}, 4.9 + LEAST)
    assert waited.is_over({"d"}, 5.0 + LEAST)


def test_without_a_factor_the_deadline_alone_counts() -> None:
    assert not asked(needed=1, factor=0.0).is_over({"d"}, 1e9)


def test_exchange_ends_long_before_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grace, "LEAST", 0.05)
    grid = InMemoryGrid(4, {"data.clients": 4})
    grid.behaviours = {103: lambda message, answer: None}
    content = RecordDict({"enrol": ConfigRecord({"schema": 1})})
    messages = [(str(n), Message(content, n, "query.enrol", ttl=10)) for n in range(100, 104)]
    waited = Grace(3, 3.0, {str(n): 1 for n in range(100, 104)}, {})

    outbox: Outbox[str] = Outbox(grid, 0)  # type: ignore[arg-type]
    answers = list(exchange(outbox, messages, 1e6, waited))

    assert [a.about for a in answers if a.reply is None] == ["103"]
    assert sorted(waited.took) == ["100", "101", "102"]


def test_those_that_only_evaluate_are_measured_by_each_other() -> None:
    @dataclass(eq=False)
    class Asked:
        name: str
        trains: bool

    letter: Any = Asked

    training, evaluation = (Grace(1, 3.0, SAMPLES, {}) for _ in range(2))
    both = RoundsGrace(training, evaluation)
    trainers = [letter("a", True), letter("b", True)]
    observers = [letter("c", False), letter("d", False)]
    for each in trainers + observers:
        both.sent(each, 0.0)
    both.answered(trainers[0], 100.0)
    both.answered(observers[0], 20.0)

    assert not both.is_over([trainers[1]], 299.0)
    assert both.is_over([trainers[1]], 300.0)
    assert not both.is_over([observers[1]], 59.0)
    assert both.is_over([observers[1]], 60.0)
    assert not both.is_over([trainers[1], observers[1]], 299.0)
    assert both.is_over([trainers[1], observers[1]], 300.0)


def test_with_a_quorum_the_rest_is_not_waited_for() -> None:
    @dataclass(eq=False)
    class Asked:
        name: str
        trains: bool

    def round_of(enough: int) -> tuple[RoundsGrace, list[Any]]:
        made: list[Any] = [Asked(name, True) for name in "abcd"] + [Asked("large", False)]
        waited = RoundsGrace(*(Grace(1, 0.0, SAMPLES, {}) for _ in range(2)), enough)
        for letter in made:
            waited.sent(letter, 0.0)
        return waited, made

    waited, made = round_of(enough=2)
    waited.answered(made[0], 1.0)
    assert not waited.is_over(made[1:], 2.0)
    waited.answered(Asked("late", True), 2.0)  # of an earlier round: it does not count
    assert not waited.is_over(made[1:], 2.0)
    waited.answered(made[1], 3.0)
    assert waited.is_over(made[2:], 3.0)
    # Nobody is left who trains: the evaluation goes on while the next round trains.
    waited, made = round_of(enough=9)
    for letter in made[:4]:
        waited.answered(letter, 1.0)
    assert waited.is_over(made[4:], 1.0)
