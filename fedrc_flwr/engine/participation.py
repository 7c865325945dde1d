"""Who takes part in a round, how long the server waits, and how messages travel."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedrc_flwr.errors import ConfigError
from fedrc_flwr.settings import key
from fedrc_flwr.transport import TRANSPORTS

#: Without a setting, a client counts as at most so many times the median number of samples.
MOST_SAMPLES = 10


@dataclass(frozen=True)
class Exchange:
    """How messages travel: how many at once, how long they may take, and in which precision."""

    window: int
    deadline: float
    enrolment_timeout: float
    transport: str
    grace: float


@dataclass(frozen=True)
class FederationSettings:
    """Who takes part in a round, how long the server waits, and how messages travel."""

    fraction: float = key(
        1.0,
        "Fraction of the training clients that is sampled each round.",
        above=0.0,
        high=1.0,
        common=True,
    )
    min_clients: int = key(
        0,
        "Training clients that must have enrolled before round 1. 0: all of the scenario's.",
        low=0,
        common=True,
    )
    enrolment_timeout: float = key(120.0, "Seconds to wait for clients to enrol.", above=0.0)
    min_replies: float = key(
        0.5,
        "Fraction of the sampled clients that must reply for a round to count.",
        low=0.0,
        high=1.0,
    )
    deadline: float = key(
        600.0,
        "Seconds after which a round continues without the clients that have not replied.",
        above=0.0,
        common=True,
    )
    grace: float = key(
        3.0,
        "Once `min-replies` have arrived, the server waits for each of the others so many times "
        "as long as a reply took in the median (longer for a client with more samples or that took "
        "longer before), at least ten seconds. 0: until the deadline.",
        low=0.0,
    )
    quorum: float = key(
        1.0,
        "A round closes as soon as this fraction of the sampled clients, rounded up, has replied "
        "(0.7 of three clients are three, 0.6 are two). Those that "
        "are late go on, are not asked again in the meantime, and count in the round in which "
        "their reply arrives: an update that is n rounds old is multiplied by 1/sqrt(1+n). 1: a "
        "round waits for everybody, and late replies do not count.",
        above=0.0,
        high=1.0,
        common=True,
    )
    max_samples: int = key(
        0,
        "A client counts as at most this many samples, however many it claims. 0: ten times the "
        "median of the training clients.",
        low=0,
    )
    attempts: int = key(
        3, "How often a round with too few replies is tried before the run stops.", low=1
    )
    window: int = key(
        0,
        "Most messages in flight, which bounds the server's memory. 0: as many as keep the workers "
        "of a simulation busy; all of them in a deployment.",
        low=0,
    )
    transport: str = key(
        "float32",
        "Precision in which networks and updates travel. `float16` halves the traffic; `int8` "
        "quarters it: every 256 numbers have a scale of their own, and what rounding takes from a "
        "client's update is added to its next one.",
        choices=TRANSPORTS,
        common=True,
    )

    def __post_init__(self) -> None:
        if self.quorum < self.min_replies:
            raise ConfigError(
                f"federation.quorum = {self.quorum}: expected at least federation.min-replies = "
                f"{self.min_replies}, or no round would have enough replies"
            )

    def enough(self, sampled: int) -> int | None:
        """How many of the sampled clients close a round; None: it waits for all of them."""
        return None if self.quorum == 1.0 else max(1, math.ceil(self.quorum * sampled))

    def exchange(self) -> Exchange:
        """What an engine needs to know to carry messages."""
        return Exchange(
            self.window, self.deadline, self.enrolment_timeout, self.transport, self.grace
        )

    def most_samples(self, samples: list[int]) -> int:
        """What a client counts as at most, given how many samples the training clients hold."""
        return self.max_samples or MOST_SAMPLES * max(1, round(float(np.median(samples))))

    def awaited(self, trainers: int, everybody: int) -> tuple[int, int]:
        """How many training clients, and how many clients in all, a run waits for."""
        return (self.min_clients, 0) if self.min_clients else (trainers, everybody)

    def needed(self, sampled: int, asked: int | None = None) -> int:
        """How many of the sampled clients must reply, if so many of them were asked."""
        needed = math.ceil(self.min_replies * sampled)
        return max(1, needed if asked is None else min(needed, asked))

    def sample_size(self, clients: int) -> int:
        """How many of the clients take part in a round."""
        return min(clients, max(1, math.floor(self.fraction * clients + 0.5)))

    def tries(self) -> int:
        """How often a round is tried."""
        return self.attempts

    def required(self) -> str:
        """The setting that says how many must reply."""
        return f"federation.min-replies = {self.min_replies}"
