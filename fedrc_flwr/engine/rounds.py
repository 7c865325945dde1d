"""The rounds of a run on the server's side, on any engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedrc_flwr import bounds
from fedrc_flwr.algorithms.base import ClusteredAlgorithm
from fedrc_flwr.algorithms.direction import Directions
from fedrc_flwr.algorithms.messages import Broadcast, Reply, RoundResult
from fedrc_flwr.algorithms.server import with_usual_norms
from fedrc_flwr.data.scenario import TRAIN
from fedrc_flwr.engine import conduct, round_metrics
from fedrc_flwr.engine.carrier import Carrier, Enrolment, at_hand, reachable
from fedrc_flwr.engine.letters import Evaluations, Letter, updates
from fedrc_flwr.engine.participation import FederationSettings
from fedrc_flwr.engine.progress import AGGREGATION, EVALUATION, TRAINING, WAITING, Progress
from fedrc_flwr.errors import LATE, RunError
from fedrc_flwr.metrics import Evaluation
from fedrc_flwr.screening import Verdict
from fedrc_flwr.state import ServerState
from fedrc_flwr.words import one_line

Replies = Iterable[tuple[str, Reply]]
RoundDone = Callable[[ServerState, dict[str, Any]], None]
log = logging.getLogger("flwr")  # Flower's logger, so that everything is in one log


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
        self.secret = seed  # what clients could exploit is drawn by it; a deployment has another
        self._left_out: set[str] = set()  # clients without which the round is repeated
        self._enrolled: dict[str, int] = {}  # how many samples each client enrolled with
        self._strikes: dict[str, str] = {}  # in this round, and why
        self._silent: set[str] = set()  # who did not answer in this round
        self._verdict: Verdict | None = None
        self._evaluations = Evaluations(algorithm)
        self.failed: dict[str, str] = {}
        self.progress = Progress()

    def run(
        self,
        carrier: Carrier,
        last: int,
        evaluate_every: int,
        round_done: RoundDone,
        evaluated: RoundDone = lambda state, outcome: None,
        owed: bool = False,
    ) -> None:
        """Run the rounds that are left, up to number ``last``.

        Parameters
        ----------
        round_done : called after each round with the new state and the round's metrics
        evaluated : called with the state that was evaluated and the outcome: during the round after
            it, or at the end of the run
        owed : whether the state to start from has still to be evaluated, if that is its turn
        """

        def owe() -> None:
            if self.state.round and (
                self.state.round % evaluate_every == 0 or self.state.round == last
            ):
                self._owe(carrier, decides=self.state.round == last)

        if owed:
            owe()
        for number in range(self.state.round + 1, last + 1):
            started = time.monotonic()
            metrics = self._train_until_enough(number, carrier, evaluated)
            answered = set(metrics.pop("answered"))
            down, up = carrier.traffic()
            metrics |= {
                "seconds": round(time.monotonic() - started, 3),
                "bytes_down": down,
                "bytes_up": up,
                "phases": self.progress.taken(),
                "failed": dict(self.failed),
                **self._conclude(number, answered, at_hand(carrier, number)),
            }
            self.failed = {}
            round_done(self.state, metrics)
            owe()
        self._evaluate_the_last(carrier, evaluated)

    def _owe(self, carrier: Carrier, decides: bool) -> None:
        """Remember that the state has to be evaluated, by everybody who can be reached."""
        names = self._asked(reachable(carrier), self.state.round)
        broadcast = self.broadcast(self.state.round, len(names))
        broadcast = replace(broadcast, phase=replace(broadcast.phase, decides=decides))
        self._evaluations.owe(self.state, names, broadcast)

    def _evaluate_the_last(self, carrier: Carrier, evaluated: RoundDone) -> None:
        """Evaluate the last round, which no other follows."""
        started, number = time.monotonic(), self.state.round
        letters = self._evaluations.letters(reachable(carrier))
        if not letters:
            return
        self.progress.asked(letter.name for letter in letters)
        with self.progress.phase(EVALUATION):
            answers = list(self._exchanged(carrier, letters))
        # What is late for ever still cost what it told about its client.
        late = self.algorithm.begin_round(self.state)
        for name, reply in self._updates(answers, number + 1):
            self.algorithm.receive(self.state, late, name, reply)
        self.state = conduct.released(self.state, late.records)
        told = self._conclude(number, {a.name for a, _ in answers}, at_hand(carrier, number))
        down, up = carrier.traffic()
        more = {
            "evaluation_seconds": round(time.monotonic() - started, 3), "bytes_down": down,
            "bytes_up": up, "phases": self.progress.taken(), "failed": dict(self.failed),
            **{name: value for name, value in told.items() if name != "answered"},
        }  # fmt: skip
        self.failed = {}
        for state, outcome in self._evaluations.finished():
            evaluated(state, outcome | more)

    def _exchanged(
        self, carrier: Carrier, letters: list[Letter], enough: int | None = None
    ) -> Iterator[tuple[Letter, Reply | Evaluation]]:
        """Deliver letters and keep the evaluations that come back."""
        for letter, answer in carrier.deliver(letters, enough):
            self.progress.answered(letter.name)
            if objection := self._evaluations.take(letter, answer):
                self.refuse(letter.name, objection)
            yield letter, answer

    def _updates(
        self, answers: Iterable[tuple[Letter, Reply | Evaluation]], number: int
    ) -> Replies:
        return updates(answers, number, partial(self.algorithm.brought_up, self.state))

    def _asked(self, names: list[str], number: int, needed: int = 0) -> list[str]:
        """Who of these clients is asked; never one that has been silent in this round."""
        awake = [name for name in names if name not in self._silent]
        return conduct.to_be_asked(self.state, awake, number, needed)

    def _conclude(self, number: int, answered: set[str], online: list[str]) -> dict[str, Any]:
        """Remember how clients behaved in a round, and return what the metrics tell about it."""
        before = set(conduct.quarantined(self.state))
        state, silent = conduct.struck(self.state, self._strikes, answered), self._silent
        self.state = conduct.noticed(state, answered - silent, silent, online, number)
        for name in sorted(set(conduct.quarantined(self.state)) - before):
            log.warning(
                "%s is in quarantine after %s strikes, the last: %s. It is no longer asked, and "
                "what it reported no longer counts; `fedrc forgive` lets it back in",
                name, self.state.clients[name].strikes, self._strikes[name],
            )  # fmt: skip
        told = round_metrics.behaved(self.state, number, answered, self._strikes, self._verdict)
        self._strikes, self._silent, self._verdict = {}, set(), None
        return told

    def _train_until_enough(
        self, number: int, carrier: Carrier, evaluated: RoundDone
    ) -> dict[str, Any]:
        attempts = self.settings.tries()
        for attempt in range(attempts):
            with self.progress.phase(WAITING):
                self.enrol(carrier.refresh())
            online = carrier.online(TRAIN)
            online = self._asked(online, number, self.settings.needed(len(online)))
            # Clients that are left out still count where nobody could take their place.
            sampled = self.settings.sample_size(len(online))
            enough, under_way = self.settings.enough(sampled), carrier.under_way()
            busy = {letter.name for letter in under_way if letter.trains}
            names = self.sample(online, number, attempt, busy)
            broadcast = self.broadcast(number, len(names))
            letters = self._evaluations.beside(self.letters(broadcast, names))
            letters += self._evaluations.letters(reachable(carrier), under_way)
            self.progress.asked(letter.name for letter in letters)
            with self.progress.phase(TRAINING):
                replies = self._updates(self._exchanged(carrier, letters, enough), number)
                metrics = self.fold(number, replies, sampled, len(names) if busy else None)
            # Where training failed, the client may still evaluate.
            if again := self._evaluations.failed(self._silent, carrier.under_way()):
                with self.progress.phase(EVALUATION):
                    list(self._exchanged(carrier, again, enough))
            for state, outcome in self._evaluations.finished(carrier.under_way()):
                evaluated(state, outcome)
            if metrics is not None:
                return metrics | {"attempts": attempt + 1}
        failures = "; ".join(f"{n}: {r}" for n, r in sorted(self.failed.items())[:5]) or "none"
        raise RunError(
            f"round {number} had too few usable replies {attempts} times in a row "
            f"({self.settings.required()}); the last failures: {failures}"
        )

    def letters(
        self, broadcast: Broadcast, names: Iterable[str], trains: bool = True
    ) -> list[Letter]:
        """A broadcast as each of these clients receives it."""
        own = {
            name: self.algorithm.addressed(self.state, broadcast, name, trains) for name in names
        }
        return [Letter(name, sent, broadcast.membership, trains) for name, sent in own.items()]

    def enrol(self, newcomers: list[Enrolment]) -> None:
        """Enter newly enrolled clients in the state."""
        self.state = conduct.enrolled(self.state, newcomers, self._enrolled)

    def sample(
        self, online: list[str], number: int, attempt: int, busy: Collection[str] = ()
    ) -> list[str]:
        """The round's clients: a pure function of seed, round, attempt and who can be reached.

        Those that are ``busy`` with an earlier round are replaced by others where there are any.
        """
        names = [name for name in online if name not in self._left_out]
        size = self.settings.sample_size(len(names))
        names = [name for name in names if name not in busy]
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
        self.progress.answered(name)
        line = one_line(reason, "unknown")
        self.failed[name] = line
        log.warning("%s: reply not used: %s", name, line)

    def refuse(self, name: str, reason: str) -> None:
        """Record that no honest client sends such a reply: a strike, at most one in a round."""
        self.fail(name, reason)
        self._strikes[name] = self.failed[name]

    def miss(self, name: str) -> None:
        """Record that a client did not answer in time."""
        self.fail(name, LATE)
        self._silent.add(name)

    def fold(
        self, number: int, replies: Replies, sampled: int, asked: int | None = None
    ) -> dict[str, Any] | None:
        """Take over the next state and return the round's metrics.

        None where the round has to be repeated: too few replies were usable, or the next state
        would not be finite. In that case the clients that caused it are left out next time.
        ``asked`` is how many of the sampled clients were asked, if some are busy.
        """
        result, answered = self.algorithm.begin_round(self.state), []
        directions, most = self.algorithm.directions(self.state, self.secret), self._most_samples()
        ages: dict[str, int] = {}
        for name, reply in replies:
            answered.append(name)
            ages |= {name: reply.age} if reply.age else {}
            self.progress.answered(name)
            with self.progress.phase(AGGREGATION):
                self._receive(result, directions, name, reply, most)
        with self.progress.phase(AGGREGATION):
            needed = self.settings.needed(sampled, asked)
            if (metrics := self._settled(number, result, sampled, needed)) is None:
                return None
        clients, opposed = directions.judged(self.state.clients)
        self.state, self._strikes = replace(self.state, clients=clients), self._strikes | opposed
        return metrics | {"answered": answered} | ({"late": ages} if ages else {})

    def _settled(
        self, number: int, result: RoundResult, sampled: int, needed: int
    ) -> dict[str, Any] | None:
        """What ``fold`` returns, once all replies have arrived."""
        verdict = result.settle()
        for name, reason in verdict.refused.items():
            self.refuse(name, reason)
        if len(result.records) < needed:
            log.warning(
                "round %s: %s of %s replies are usable, %s are needed; the round is repeated",
                number, len(result.records), sampled, needed,
            )  # fmt: skip
            self.state = conduct.released(self.state, result.records)
            return None
        phase = self.algorithm.phase(number, self.state)
        with np.errstate(over="ignore", invalid="ignore"):
            state, report = self.algorithm.end_round(self.state, result, number)
        if not state.is_finite():
            culprits = result.culprits()
            for name, reason in culprits.items():
                self.refuse(name, reason)
            self._left_out |= set(culprits)
            log.warning(
                "round %s: the models would not be finite; the round is repeated without %s",
                number, ", ".join(sorted(culprits)),
            )  # fmt: skip
            self.state = conduct.released(self.state, result.records)
            return None
        self.state = with_usual_norms(state, verdict.usual)
        self._verdict, self._left_out = verdict, set()
        if report.discovery is not None:
            log.info("round %s: %s", number, report.discovery["sentence"])
        metrics = round_metrics.trained(self.state, result, report, phase, sampled)
        return metrics | {"epsilon": self.algorithm.epsilon(state)}

    def _receive(
        self, result: RoundResult, directions: Directions, name: str, reply: Reply, most: int
    ) -> None:
        """Fold a reply of ``most`` samples at the most into the round, if it can be honest."""
        samples = self._enrolled.get(name, self.state.clients[name].samples)
        reason = bounds.problem(reply, samples)
        if reason is not None:
            self.refuse(name, reason)
            return
        if reason := directions.take(name, reply, self.state):
            # Its statistics place it in a cluster, where the others show whether it was wronged.
            self.fail(name, reason)
            reply = reply.without_updates()
        reply = reply.capped(most)
        reply = result.expect(name, reply, self.state.clusters).discounted()
        with np.errstate(over="ignore", invalid="ignore"):  # see ServerState.is_finite
            self.algorithm.receive(self.state, result, name, reply)

    def _most_samples(self) -> int:
        trainers = {n: r for n, r in self.state.clients.items() if r.role == TRAIN}
        samples = [self._enrolled.get(name, r.samples) for name, r in trainers.items()]
        return self.settings.most_samples(samples)
