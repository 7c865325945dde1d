"""The rounds of a run on the server's side, on any engine."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from fedrc_flwr import __version__
from fedrc_flwr.aggregation import update_norm
from fedrc_flwr.algorithms.base import ClusteredAlgorithm
from fedrc_flwr.algorithms.messages import Broadcast, Reply, RoundResult
from fedrc_flwr.data.scenario import OBSERVE, TRAIN
from fedrc_flwr.engine.judging import judge
from fedrc_flwr.errors import RunError
from fedrc_flwr.metrics import Evaluation
from fedrc_flwr.settings import key
from fedrc_flwr.state import ClientRecord, ServerState
from fedrc_flwr.words import one_line

#: Clients whose mixture weights are recorded in every round.
MOST_WEIGHED = 200
RoundDone = Callable[[ServerState, dict[str, Any]], None]
log = logging.getLogger("flwr")  # Flower's logger, so that everything is in one log


@dataclass(frozen=True)
class Exchange:
    """How messages travel: how many at once, how long they may take, and in which precision."""

    window: int
    deadline: float
    enrolment_timeout: float
    half: bool


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
        "Precision in which networks and updates travel; `float16` halves the traffic.",
        choices=("float32", "float16"),
        common=True,
    )

    def exchange(self) -> Exchange:
        """What an engine needs to know to carry messages."""
        half = self.transport == "float16"
        return Exchange(self.window, self.deadline, self.enrolment_timeout, half)

    def awaited(self, trainers: int, everybody: int) -> tuple[int, int]:
        """How many training clients, and how many clients in all, a run waits for."""
        return (self.min_clients, 0) if self.min_clients else (trainers, everybody)

    def needed(self, sampled: int) -> int:
        """How many of the sampled clients must reply."""
        return max(1, math.ceil(self.min_replies * sampled))

    def sample_size(self, clients: int) -> int:
        """How many of the clients take part in a round."""
        return min(clients, max(1, math.floor(self.fraction * clients + 0.5)))


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

    def train(self, names: list[str], broadcast: Broadcast) -> Iterable[tuple[str, Reply]]:
        """Train these clients and yield their replies as they arrive."""

    def evaluate(self, names: list[str], broadcast: Broadcast) -> Iterable[tuple[str, Evaluation]]:
        """Evaluate these clients and yield what they report as it arrives."""

    def traffic(self) -> tuple[int, int]:
        """Bytes sent to and received from clients since the last call."""


class Rounds:
    """Samples clients, adds up their replies as they arrive, and evaluates the models.

    Parameters
    ----------
    algorithm : the server half
    state : where to start; a state from a checkpoint resumes the run after that round
    classes : number of labels
    settings : who takes part and how long the server waits
    seed : of the sampling
    """

    def __init__(
        self,
        algorithm: ClusteredAlgorithm,
        state: ServerState,
        classes: int,
        settings: FederationSettings,
        seed: int,
    ) -> None:
        self.algorithm = algorithm
        self.state = state
        self.classes = classes
        self.settings = settings
        self._seed = seed
        self._left_out: set[str] = set()  # clients without which the round is repeated
        self.failed: dict[str, str] = {}

    def run(self, carrier: Carrier, last: int, evaluate_every: int, round_done: RoundDone) -> None:
        """Run the rounds that are left, up to number ``last``.

        ``round_done`` is called after each round with the new state and the round's metrics.
        """
        for number in range(self.state.round + 1, last + 1):
            started = time.monotonic()
            metrics = self._train_until_enough(number, carrier)
            if number % evaluate_every == 0 or number == last:
                names = carrier.online(TRAIN) + carrier.online(OBSERVE)
                broadcast = self.broadcast(number, len(names))
                if number == last:
                    broadcast = replace(broadcast, phase=replace(broadcast.phase, decides=True))
                metrics |= self.judge(carrier.evaluate(names, broadcast))
            down, up = carrier.traffic()
            metrics |= {
                "seconds": round(time.monotonic() - started, 3),
                "bytes_down": down,
                "bytes_up": up,
                "failed": dict(self.failed),
            }
            self.failed = {}
            round_done(self.state, metrics)

    def _train_until_enough(self, number: int, carrier: Carrier) -> dict[str, Any]:
        for attempt in range(self.settings.attempts):
            self.enrol(carrier.refresh())
            online = carrier.online(TRAIN)
            names = self.sample(online, number, attempt)
            # Clients that are left out still count where nobody could take their place.
            sampled = self.settings.sample_size(len(online))
            replies = carrier.train(names, self.broadcast(number, len(names)))
            metrics = self.fold(number, replies, sampled)
            if metrics is not None:
                return metrics | {"attempts": attempt + 1}
        failures = "; ".join(f"{n}: {r}" for n, r in sorted(self.failed.items())[:5]) or "none"
        raise RunError(
            f"round {number} had too few usable replies {self.settings.attempts} times in a row "
            f"(federation.min-replies = {self.settings.min_replies}); the last failures: {failures}"
        )

    def enrol(self, newcomers: list[Enrolment]) -> None:
        """Enter newly enrolled clients in the state; what is known of a returning one stays."""
        clients = dict(self.state.clients)
        for newcomer in newcomers:
            record = clients.get(newcomer.name, ClientRecord(newcomer.role, newcomer.samples))
            clients[newcomer.name] = replace(
                record, role=newcomer.role, concept=newcomer.concept, style=newcomer.style
            )
            log.info(
                "%s enrolled: %s, %s samples, fedrc-flwr %s",
                newcomer.name, newcomer.role, newcomer.samples, newcomer.version,
            )  # fmt: skip
        self.state = replace(self.state, clients=clients)

    def sample(self, online: list[str], number: int, attempt: int) -> list[str]:
        """The round's clients: a pure function of seed, round, attempt and who can be reached."""
        names = [name for name in online if name not in self._left_out]
        size = self.settings.sample_size(len(names))
        if size >= len(names):
            return names
        rng = np.random.default_rng([self._seed, number, attempt, 0x5A])
        return sorted(str(name) for name in rng.choice(names, size, replace=False))

    def broadcast(self, number: int, cohort: int = 0) -> Broadcast:
        """What goes out for a round to so many clients."""
        broadcast = self.algorithm.broadcast(self.state, number, self.classes)
        return replace(broadcast, cohort=cohort)

    def fail(self, name: str, reason: str) -> None:
        """Record and log why a client's reply is not used, in one line."""
        line = one_line(reason, "unknown")
        self.failed[name] = line
        log.warning("%s: reply not used: %s", name, line)

    def fold(
        self, number: int, replies: Iterable[tuple[str, Reply]], sampled: int
    ) -> dict[str, Any] | None:
        """Take over the next state and return the round's metrics.

        None where the round has to be repeated: too few replies were usable, or the next state
        would not be finite. In that case the clients that caused it are left out next time.
        """
        result = self.algorithm.begin_round(self.state)
        for name, reply in replies:
            result.norms[name] = update_norm(reply.deltas.values())
            with np.errstate(over="ignore", invalid="ignore"):  # see ServerState.is_finite below
                self.algorithm.receive(self.state, result, name, reply)
        needed = self.settings.needed(sampled)
        if len(result.records) < needed:
            log.warning(
                "round %s: %s of %s replies are usable, %s are needed; the round is repeated",
                number, len(result.records), sampled, needed,
            )  # fmt: skip
            self._count_releases(result)
            return None
        phase = self.algorithm.phase(number, self.state)
        with np.errstate(over="ignore", invalid="ignore"):
            state, report = self.algorithm.end_round(self.state, result, number)
        if not state.is_finite():
            culprits = result.culprits()
            for name, reason in culprits.items():
                self.fail(name, reason)
            self._left_out |= set(culprits)
            log.warning(
                "round %s: the models would not be finite; the round is repeated without %s",
                number, ", ".join(sorted(culprits)),
            )  # fmt: skip
            self._count_releases(result)
            return None
        self.state = state
        self._left_out = set()
        if report.discovery is not None:
            log.info("round %s: %s", number, report.discovery["sentence"])
        return {
            "round": number,
            "exponent": phase.exponent,
            "clusters": list(state.clusters),
            "shares": state.shares().tolist(),
            "movement": report.movement,
            "removed": list(report.adaptation.removed),
            "merged": [list(pair) for pair in report.adaptation.merged],
            "undecided": report.adaptation.undecided,
            **({} if report.discovery is None else {"discovery": report.discovery}),
            "loss": _mean(result, "loss"),
            "train_accuracy": _mean(result, "accuracy"),
            "client_ready_seconds": _mean(result, "ready_seconds"),
            "client_seconds": _mean(result, "seconds"),
            "sampled": sampled,
            "replied": len(result.records),
            "started_afresh": sorted(n for n, m in result.metrics.items() if m.get("fresh")),
            "epsilon": self.algorithm.epsilon(state),
            "weights": _weights(state, list(result.records)),
        }

    def _count_releases(self, result: RoundResult) -> None:
        """Record what clients released in a round that is repeated."""
        clients = dict(self.state.clients)
        for name, record in result.records.items():
            clients[name] = replace(clients[name], releases=record.releases, spent=record.spent)
        self.state = replace(self.state, clients=clients)

    def judge(self, answers: Iterable[tuple[str, Evaluation]]) -> dict[str, Any]:
        """The outcome of an evaluation, see ``judging.judge``."""
        return judge(dict(answers), self.state.clients, self.state.clusters)


def _weights(state: ServerState, names: list[str]) -> dict[str, list[float]]:
    """The mixture weights of these clients over the current clusters.

    Large federations are thinned, because the metrics would grow by all of them in every round.
    """
    shown = sorted(names)[:: math.ceil(len(names) / MOST_WEIGHED)]
    weights = {name: state.clients[name].mixture_weights() for name in shown}
    return {n: [round(float(v), 3) for v in w] for n, w in weights.items() if w is not None}


def _mean(result: RoundResult, metric: str) -> float:
    """A metric's mean over the round's samples."""
    values = [m.get(metric, math.nan) for m in result.metrics.values()]
    return float(np.average(values, weights=[r.samples for r in result.records.values()]))
