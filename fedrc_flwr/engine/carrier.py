"""What brings the server's letters to its clients, on any engine."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from fedrc_flwr import __version__
from fedrc_flwr.algorithms.messages import Reply
from fedrc_flwr.data.scenario import OBSERVE, TRAIN
from fedrc_flwr.engine.letters import Letter
from fedrc_flwr.metrics import Evaluation


@dataclass(frozen=True)
class Enrolment:
    """How a client introduces itself.

    It does not tell which labels it holds, because that is what noise on the counts protects.
    """

    name: str
    role: str
    samples: int
    classes: int
    concept: int
    style: str
    version: str = __version__


class Carrier(Protocol):
    """Sends broadcasts to clients and returns their replies.

    A client that gives no usable answer is reported to ``Rounds.fail`` and left out.
    """

    def refresh(self) -> list[Enrolment]:
        """Look for new clients; returns those that have enrolled since the last call."""

    def online(self, role: str) -> list[str]:
        """Names of the reachable clients with a role, sorted."""

    def deliver(
        self, letters: list[Letter], enough: int | None = None
    ) -> Iterable[tuple[Letter, Reply | Evaluation]]:
        """Send these letters and yield the answers as they arrive, those to earlier ones, too.

        With ``enough``, it ends when so many of them have been answered with an update. The others
        stay under way.
        """

    def under_way(self) -> Collection[Letter]:
        """The letters that may still be answered."""

    def traffic(self) -> tuple[int, int]:
        """Bytes sent to and received from clients since the last call."""


def at_hand(carrier: Carrier, number: int) -> list[str]:
    """Names of the training clients that can be asked: not one that is still at an older round."""
    behind = {
        letter.name
        for letter in carrier.under_way()
        if letter.trains and letter.broadcast.round < number
    }
    return [name for name in carrier.online(TRAIN) if name not in behind]


def reachable(carrier: Carrier) -> list[str]:
    """Names of all clients that can be reached, those that train first."""
    return carrier.online(TRAIN) + carrier.online(OBSERVE)
