"""A deployment in event time: nodes of given speeds run the real ClientApp in this process.

Time passes only when the server sleeps, so that an hour with slow nodes takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from flwr.app import Message
from grid import InMemoryGrid


class Clock:
    """Stands for the module ``time`` in the server's exchange."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class TimedGrid(InMemoryGrid):
    """Nodes that take their time, and do one thing after the other.

    Parameters
    ----------
    seconds : by node, how long it trains; evaluating takes a tenth of that
    """

    def __init__(
        self, nodes: int, run_config: dict[str, Any], seconds: Mapping[int, float], clock: Clock
    ) -> None:
        super().__init__(nodes, run_config)
        self.seconds = seconds
        self.clock = clock
        self._free: dict[int, float] = {}
        self._due: dict[str, float] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        identities = list(super().push_messages(messages))
        for message, identity in zip(messages, identities, strict=True):
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            share = {"train": 1.0, "evaluate": 0.1}.get(kind, 0.0)
            begins = max(self.clock.now, self._free.get(node, 0.0))
            self._free[node] = begins + share * self.seconds.get(node, 1.0)
            self._due[identity] = self._free[node]
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return super().pull_messages([i for i in message_ids if self._due[i] <= self.clock.now])


@contextmanager
def event_time(clock: Clock) -> Iterator[None]:
    """The server's exchange and its rounds go by this clock."""
    with (
        patch("server_app.exchange.time", clock),
        patch("server_app.enrolment.time", clock),
        patch("fedrc_flwr.engine.rounds.time", clock),
    ):
        yield
