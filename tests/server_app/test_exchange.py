from __future__ import annotations

from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from grid import InMemoryGrid

from server_app.exchange import Answer, Outbox, ready_in_simulation
from server_app.exchange import exchange as exchanged
from server_app.grace import Grace


def messages(nodes: list[int]) -> list[tuple[str, Message]]:
    content = RecordDict({"enrol": ConfigRecord({"schema": 1})})
    return [(f"node-{n}", Message(content, n, "query.enrol", ttl=10)) for n in nodes]


def exchange(
    grid: Any, messages: list[tuple[str, Message]], window: int, deadline: float
) -> list[Answer[str]]:
    outbox: Outbox[str] = Outbox(grid, window)
    return list(exchanged(outbox, messages, deadline, Grace(0, 0.0, {}, {})))


def names(answers: list[Answer[str]], replied: bool) -> set[str]:
    return {a.about for a in answers if (a.reply is not None) == replied}


def test_every_message_is_answered_once_whatever_the_window() -> None:
    for window in (0, 1, 3, 100):
        grid = InMemoryGrid(7, {"data.clients": 7})

        answers = exchange(grid, messages(list(range(100, 107))), window, deadline=60)

        assert len(answers) == 7
        assert names(answers, replied=True) == {f"node-{n}" for n in range(100, 107)}
        assert grid.most_under_way <= (window or 32)


def test_the_silent_are_answered_for_at_the_deadline_and_the_unsent_too() -> None:
    grid = InMemoryGrid(5, {"data.clients": 5})
    grid.behaviours = {n: lambda message, answer: None for n in (100, 101)}

    answers = exchange(grid, messages(list(range(100, 105))), 2, deadline=0.1)

    # Two silent ones fill the window, so the other three are never sent.
    assert names(answers, replied=False) == {f"node-{n}" for n in range(100, 105)}
    assert [node for node, _ in grid.sent] == [100, 101]


def test_a_reply_after_the_deadline_is_never_looked_at() -> None:
    grid = InMemoryGrid(2, {"data.clients": 2})
    held: list[Any] = []

    def hold(message: Message, answer: Any) -> None:
        held.append((message, answer()))

    grid.behaviours[100] = hold
    first = exchange(grid, messages([100, 101]), 0, deadline=0.1)
    message, late = held[0]
    late.metadata.__dict__["_reply_to_message_id"] = message.metadata.message_id
    grid._replies[message.metadata.message_id] = late
    grid.behaviours.clear()

    second = exchange(grid, messages([100, 101]), 0, deadline=60)

    assert names(first, replied=False) == {"node-100"}
    assert all(a.reply is not late for a in second)
    assert names(second, replied=True) == {"node-100", "node-101"}


def test_a_message_that_cannot_be_pushed_counts_as_unanswered() -> None:
    class Full(InMemoryGrid):
        def push_messages(self, messages: Any) -> list[str]:
            return []

    grid = Full(1, {"data.clients": 1})

    answers = exchange(grid, messages([100]), 0, deadline=60)

    assert answers == [Answer("node-100", None)]


def test_a_reply_that_comes_twice_counts_once() -> None:
    class Stutters(InMemoryGrid):
        def pull_messages(self, message_ids: Any) -> list[Message]:
            return [reply for reply in super().pull_messages(message_ids) for _ in range(2)]

    grid = Stutters(2, {"data.clients": 2})

    answers = exchange(grid, messages([100, 101]), 0, deadline=60)

    assert len(answers) == 2


@pytest.mark.parametrize(
    ("replies", "seconds", "expected"),
    [
        (0, 0.0, 12),  # at first: three for each of four cores
        (5, 10.0, 12),  # slow clients
        (100, 2.0, 25),  # what is answered in half a second
        (9000, 3.0, 128),  # no more than 32 for each core
    ],
)
def test_a_simulation_holds_as_many_messages_as_keep_its_workers_busy(
    replies: int, seconds: float, expected: int
) -> None:
    assert ready_in_simulation(replies, seconds, cores=4) == expected


def test_a_deployment_sends_all_messages_of_a_round_together() -> None:
    class Deployment(InMemoryGrid):
        batches: list[int] = []  # noqa: RUF012

        def push_messages(self, messages: Any) -> list[str]:
            self.batches.append(len(messages))
            # As Flower's HTTP grid does, in place: the third cannot be sent.
            return [i if n != 2 else "" for n, i in enumerate(super().push_messages(messages))]

    grid = Deployment(5, {"data.clients": 5})

    answers = exchange(grid, messages(list(range(100, 105))), 0, deadline=60)

    assert grid.batches == [5]
    assert names(answers, replied=False) == {"node-102"}
    assert len(answers) == 5
