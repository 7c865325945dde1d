"""The strategy: Flower's messages to calls of the algorithm's server half, and back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from fedrc_flwr import wire
from fedrc_flwr.aggregation import update_norm
from fedrc_flwr.algorithms.base import Broadcast, ClusteredAlgorithm, RoundResult
from fedrc_flwr.data.scenario import OBSERVE, TRAIN
from fedrc_flwr.errors import RunError, WireError
from fedrc_flwr.report.log import LATE
from fedrc_flwr.report.summary import epsilon
from fedrc_flwr.state import ClientRecord, ServerState
from fedrc_flwr.wire import Enrolment
from server_app.enrolment import Roster
from server_app.exchange import Answer, exchange

#: Seconds by which a message outlives the round: the deadline is ours to call.
TTL_GRACE = 10.0
RoundDone = Callable[[ServerState, dict[str, Any]], None]


@dataclass
class Traffic:
    """Bytes of arrays sent and received in a round."""

    down: int = 0
    up: int = 0


@dataclass
class FailedClients:
    """Why clients' replies were not used, by name."""

    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, reason: str) -> None:
        """Note and log a failure; one line of it is enough."""
        first_line = (reason.strip().splitlines() or ["unknown"])[-1][:300]
        self.reasons[name] = first_line
        log(WARNING, "%s: reply not used: %s", name, first_line)


class FedRC(Strategy):
    """Keeps K models, sends them to sampled clients, folds the replies in as they arrive.

    Despite its name it runs any of the library's clustered algorithms.

    Parameters
    ----------
    algorithm : the server half
    state : where to start; a state from a checkpoint resumes the run after that round
    roster : the enrolled clients
    layout : fingerprint of the network's layout
    classes : number of labels
    round_done : called after each round with the new state and the round's metrics
    """

    def __init__(
        self,
        algorithm: ClusteredAlgorithm,
        state: ServerState,
        roster: Roster,
        layout: str,
        classes: int,
        round_done: RoundDone,
    ) -> None:
        self.algorithm = algorithm
        self.config = algorithm.config
        self.state = state
        self.roster = roster
        self.layout = layout
        self.classes = classes
        self.round_done = round_done
        self._attempt = 0
        self._broadcast: Broadcast | None = None
        self._names: dict[int, str] = {}
        self._traffic = Traffic()
        self._failed = FailedClients()
        self._left_out: set[str] = set()  # clients without which the round is repeated

    def summary(self) -> None:
        """Log what is about to run."""
        log(
            INFO,
            "%s on %s: %s clusters, rounds %s to %s",
            self.config.algorithm,
            self.config.scenario,
            len(self.state.clusters),
            self.state.round + 1,
            self.config.rounds,
        )

    # --- one round -------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to this round's sample of the training clients."""
        self.enrolled(self.roster.refresh(self.config.round_deadline))
        names = self.sample(server_round, self._attempt)
        return self._messages(names, server_round, MessageType.TRAIN)

    def sample(self, server_round: int, attempt: int) -> list[str]:
        """The round's clients: a pure function of seed, round, attempt and who can be reached."""
        names = [name for name in self.roster.online(TRAIN) if name not in self._left_out]
        size = max(1, math.floor(self.config.fraction * len(names) + 0.5))
        if size >= len(names):
            return names
        rng = np.random.default_rng([self.config.seed, server_round, attempt, 0x5A])
        return sorted(str(name) for name in rng.choice(names, size, replace=False))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the replies into the next state; Flower's own loop may call this."""
        answers = (Answer(self._name_of(reply), reply) for reply in replies)
        metrics = self._fold(server_round, answers, sampled=len(self._names))
        return None, None if metrics is None else MetricRecord({"loss": float(metrics["loss"])})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to all reachable clients, where this is a round to evaluate."""
        every = self.config.evaluate_every
        if server_round % every and server_round != self.config.rounds:
            return []
        names = self.roster.online(TRAIN) + self.roster.online(OBSERVE)
        return self._messages(names, server_round, MessageType.EVALUATE)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Mean local and global accuracy; Flower's own loop may call this."""
        outcome = self._judge(Answer(self._name_of(reply), reply) for reply in replies)
        return _numbers(outcome)

    # --- the run ---------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 0,
        timeout: float = 0.0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds that are left.

        Flower's own loop counts from 1, takes every round as it comes and holds all replies at
        once; this one resumes, repeats a round with too few good replies, and streams. Rounds and
        deadline come from the run configuration.
        """
        self.summary()
        result = Result()
        empty = ConfigRecord()
        for server_round in range(self.state.round + 1, self.config.rounds + 1):
            started = time.monotonic()
            metrics = self._train_until_enough(server_round, grid, empty)
            messages = self.configure_evaluate(server_round, initial_arrays, empty, grid)
            outcome = self._judge(self._exchange(grid, messages))
            metrics |= outcome
            metrics |= {
                "seconds": round(time.monotonic() - started, 3),
                "bytes_down": self._traffic.down,
                "bytes_up": self._traffic.up,
                "failed": dict(self._failed.reasons),
            }
            self._traffic, self._failed = Traffic(), FailedClients()
            self.round_done(self.state, metrics)
            result.train_metrics_clientapp[server_round] = MetricRecord(
                {name: float(metrics[name]) for name in ("loss", "train_accuracy")}
            )
            if numbers := _numbers(outcome):
                result.evaluate_metrics_clientapp[server_round] = numbers
        broadcast = self.algorithm.broadcast(self.state, self.state.round, self.classes)
        result.arrays = wire.models_of(wire.encode_broadcast(broadcast, self.layout))
        return result

    def enrolled(self, newcomers: list[Enrolment]) -> None:
        """Enter newly enrolled clients in the state; what is known of a returning one stays."""
        clients = dict(self.state.clients)
        for newcomer in newcomers:
            record = clients.get(newcomer.name, ClientRecord(newcomer.role, newcomer.samples))
            clients[newcomer.name] = replace(
                record, role=newcomer.role, concept=newcomer.concept, style=newcomer.style
            )
            log(INFO, "%s enrolled: %s, %s samples", newcomer.name, newcomer.role, newcomer.samples)
        self.state = replace(self.state, clients=clients)

    def _train_until_enough(
        self, server_round: int, grid: Grid, empty: ConfigRecord
    ) -> dict[str, Any]:
        for attempt in range(self.config.failed_rounds):
            self._attempt = attempt
            messages = self.configure_train(server_round, ArrayRecord(), empty, grid)
            sampled = len(self._names) + len(self._left_out)
            metrics = self._fold(server_round, self._exchange(grid, messages), sampled)
            if metrics is not None:
                return metrics | {"attempts": attempt + 1}
        raise RunError(
            f"round {server_round} had too few good replies {self.config.failed_rounds} times in a "
            f"row (min-replies = {self.config.min_replies}); the last failures: "
            + (
                "; ".join(f"{n}: {r}" for n, r in sorted(self._failed.reasons.items())[:5])
                or "none"
            )
        )

    def _messages(self, names: list[str], server_round: int, kind: str) -> Iterator[Message]:
        """One message per client, all sharing the same records."""
        self._names = {self.roster.node(name): name for name in names}
        self._broadcast = self.algorithm.broadcast(self.state, server_round, self.classes)
        content = wire.encode_broadcast(self._broadcast, self.layout, self.config.half())
        size = wire.payload(content)

        def stream() -> Iterator[Message]:
            for name in names:
                self._traffic.down += size
                assigned = self.algorithm.assigned(self.state, name)
                yield Message(
                    content if assigned < 0 else wire.addressed(content, assigned),
                    self.roster.node(name),
                    kind,
                    ttl=self.config.round_deadline + TTL_GRACE,
                    group_id=str(server_round),
                )

        return stream()

    def _exchange(self, grid: Grid, messages: Iterable[Message]) -> Iterator[Answer]:
        named = ((self._names[m.metadata.dst_node_id], m) for m in messages)
        return exchange(grid, named, self.config.window, self.config.round_deadline)

    def _name_of(self, reply: Message) -> str:
        return self._names.get(reply.metadata.src_node_id, f"node {reply.metadata.src_node_id}")

    def _fold(
        self, server_round: int, answers: Iterable[Answer], sampled: int
    ) -> dict[str, Any] | None:
        """Take over the next state and return the round's metrics.

        None where the round has to be repeated: too few replies were good, or the next state would
        not be finite, in which case the clients that caused it are left out of the repetition.
        """
        if self._broadcast is None:
            raise RunError("replies without a broadcast: configure_train comes first")
        result = self.algorithm.begin_round()
        for answer in answers:
            content = self._content(answer)
            if content is None:
                continue
            try:
                reply = wire.decode_reply(content, self._broadcast, self.classes, self.config.merge)
            except WireError as error:
                self._failed.add(answer.name, str(error))
                continue
            self._traffic.up += wire.payload(content)
            result.norms[answer.name] = update_norm(reply.deltas.values())
            with np.errstate(over="ignore", invalid="ignore"):  # see ServerState.is_finite below
                self.algorithm.receive(self.state, result, answer.name, reply)
        needed = max(1, math.ceil(self.config.min_replies * sampled))
        if len(result.records) < needed:
            log(WARNING, "round %s: %s of %s good replies, %s needed; it is repeated",
                server_round, len(result.records), sampled, needed)  # fmt: skip
            self._count_releases(result)
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            state, report = self.algorithm.end_round(self.state, result, server_round)
        if not state.is_finite():
            culprits = result.culprits()
            for name, reason in culprits.items():
                self._failed.add(name, reason)
            self._left_out |= set(culprits)
            log(WARNING, "round %s: the models would not be finite; it is repeated without %s",
                server_round, ", ".join(sorted(culprits)))  # fmt: skip
            self._count_releases(result)
            return None
        self.state = state
        self._left_out = set()
        return {
            "round": server_round,
            "exponent": self._broadcast.exponent,
            "clusters": list(self.state.clusters),
            "shares": self.state.shares().tolist(),
            "movement": report.movement,
            "removed": list(report.adaptation.removed),
            "merged": [list(pair) for pair in report.adaptation.merged],
            "undecided": report.adaptation.undecided,
            "loss": _mean(result, "loss"),
            "train_accuracy": _mean(result, "accuracy"),
            "client_ready_seconds": _mean(result, "ready_seconds"),
            "client_seconds": _mean(result, "seconds"),
            "sampled": sampled,
            "replied": len(result.records),
            "started_afresh": sorted(n for n, m in result.metrics.items() if m.get("fresh")),
            "epsilon": epsilon(self.state, self.config),
        }

    def _count_releases(self, result: RoundResult) -> None:
        """Remember of a round that does not count what its clients have released in it."""
        clients = dict(self.state.clients)
        for name, record in result.records.items():
            clients[name] = replace(clients[name], releases=record.releases)
        self.state = replace(self.state, clients=clients)

    def _judge(self, answers: Iterable[Answer]) -> dict[str, Any]:
        """Mean accuracy over training clients (local) and over observers (global).

        ``fit_accuracy`` is that of the same models on the training clients' own training samples.
        """
        by_client: dict[str, dict[str, float]] = {}
        for answer in answers:
            content = self._content(answer)
            if content is None:
                continue
            try:
                by_client[answer.name] = wire.decode_metrics(content)
            except WireError as error:
                self._failed.add(answer.name, str(error))
        outcome: dict[str, Any] = {}
        for role, scope in ((TRAIN, "local"), (OBSERVE, "global")):
            members = [
                m for n, m in by_client.items()
                if self.roster.clients[n].role == role and m.get("samples")
            ]  # fmt: skip
            for key, name in (
                ("accuracy", f"{scope}_accuracy"),
                ("loss", f"{scope}_loss"),
                ("fine_tuned_accuracy", f"fine_tuned_{scope}_accuracy"),  # training clients alone
            ):
                values = [m[key] for m in members if key in m]
                if values:
                    outcome[name] = float(np.mean(values))
        fitted = {n: m["fit_accuracy"] for n, m in by_client.items() if "fit_accuracy" in m}
        if fitted:
            samples = [self.state.clients[name].samples for name in fitted]
            outcome["fit_accuracy"] = float(np.average(list(fitted.values()), weights=samples))
        if by_client:
            outcome["clients"] = by_client
        return outcome

    def _content(self, answer: Answer) -> RecordDict | None:
        if answer.reply is None:
            self._failed.add(answer.name, LATE)
            return None
        if answer.reply.has_error():
            error = answer.reply.error
            self._failed.add(answer.name, f"error {error.code}: {error.reason}")
            return None
        return answer.reply.content


def _mean(result: RoundResult, metric: str) -> float:
    """A metric's mean over the round's samples."""
    values = [m.get(metric, math.nan) for m in result.metrics.values()]
    return float(np.average(values, weights=[r.samples for r in result.records.values()]))


def _numbers(outcome: dict[str, Any]) -> MetricRecord | None:
    numbers: dict[str, Any] = {k: v for k, v in outcome.items() if isinstance(v, float)}
    return MetricRecord(numbers) if numbers else None
