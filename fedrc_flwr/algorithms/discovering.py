"""Discovery: a run that begins with one model, finds the concepts, and gives each client its own.

Every client first trains the same model. Then its body is frozen as the yardstick with which each
client takes its fingerprint. The server groups the clients by their fingerprints, makes as many
models as there are groups, and from then on a client whose place is clear receives, trains and
sends one model, and one that holds several concepts a model for each of them. The others listen to
all models, on samples that no model was trained on in the meantime, and are placed by what fits
them. Some rounds later all are measured again with a better body, and those that were misplaced
move.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedrc_flwr.algorithms import places
from fedrc_flwr.algorithms.base import ClusteredAlgorithm
from fedrc_flwr.algorithms.messages import Broadcast, Reply, RoundReport, RoundResult
from fedrc_flwr.algorithms.places import (
    FALLBACK,
    FOUND,
    GROUPED,
    MEASURED,
    is_found,
)
from fedrc_flwr.algorithms.settings import ClusteredSettings
from fedrc_flwr.data.scenario import TRAIN
from fedrc_flwr.discovery import grouping
from fedrc_flwr.em import Floats
from fedrc_flwr.settings import key
from fedrc_flwr.state import ClientRecord, Membership, ServerState

#: A client that listened is placed if one cluster has at least this weight; else it keeps several.
PLACED = 0.65
#: Rounds after a grouping for which clients listen before they are placed.
LISTENING = 5
#: Share of the training clients whose fingerprints discovery waits for.
ENOUGH = 0.8
#: Share of the training clients, those that no longer answer among them, from whose fingerprints
#: the concepts are first found: a network that is down for two rounds must not leave a handful.
FEWEST = 0.5
#: Clients are measured again after this many times as many rounds as before.
AGAIN = 3
#: Times as many local epochs as usual before the concepts are found, unless their number is set:
#: fingerprints need a body that tells inputs apart, and one model is cheap.
WARM_UP = 3
#: Models of the annealed E-step where nothing can be discovered; it removes and merges some.
FALLBACK_MODELS = 6
#: Standard deviation, relative to the model's own, by which models start apart without groups.
APART = 0.05


def beginning(usual: str) -> Any:
    """Declare the key that says how a run begins."""
    return key(
        usual,
        "`discover`: train one model at first, find the concepts and their number from the "
        "clients' fingerprints, and continue with a model for each; `paper`: start from `clusters` "
        "random models.",
        choices=("discover", "paper"),
        common=True,
    )


@dataclass(frozen=True)
class DiscoverySettings(ClusteredSettings):
    """Settings of an algorithm that can begin with discovery."""

    start: str = beginning("paper")
    discover_after: int = key(
        5,
        "Round in which clients send their fingerprints. Until then all train one model. They are "
        "measured again after three times as many rounds, and so on, unless they add noise.",
        low=2,
    )

    def models(self) -> int:
        """One model until the concepts are found; K if they are not looked for."""
        return 1 if self.discovers() else super().models()

    def discovers(self) -> bool:
        """Whether a run begins with discovery."""
        return self.start == "discover"

    def needs_start(self, field: str) -> str:
        """Discovery finds the number of clusters and needs no schedule to part them."""
        if not self.discovers():
            return "discover" if field == "discover_after" else ""
        return "paper" if field in ("clusters", "initial_spread") else ""

    def measuring_round(self) -> int:
        """The first round in which clients are measured."""
        return self.discover_after

    def measures_again(self, round_number: int) -> bool:
        """Whether all clients are measured anew in a round."""
        number = self.discover_after
        while number < round_number:
            number *= AGAIN
        return number == round_number > self.discover_after


class Discovering(ClusteredAlgorithm):
    """The server's side of discovery; a subclass has the E-step."""

    settings: DiscoverySettings
    #: Whether clients keep the places that were found for them; otherwise the algorithm's own
    #: E-step takes over after some rounds.
    keeps_places = False

    # --- what a client receives ------------------------------------------------------------------

    def addressed(
        self, state: ServerState, broadcast: Broadcast, name: str, training: bool
    ) -> Broadcast:
        """One model for a client whose place is clear; all of them for the others."""
        own = super().addressed(state, broadcast, name, training)
        if not self.settings.discovers():
            return own
        record = state.clients[name]
        if training and record.role == TRAIN and self._measures(state, record, broadcast.round):
            own = replace(
                own,
                phase=replace(own.phase, measures=True),
                yardstick=state.arrays.get("yardstick"),
            )
        if not is_found(state) or self._released(state, broadcast.round) or own.phase.decides:
            return own
        if record.cluster in state.clusters:
            return own.narrowed((record.cluster,))
        if record.shares is not None:
            held = record.shares > 0
            own = own.narrowed(tuple(c for c, h in zip(state.clusters, held, strict=True) if h))
            return replace(own, phase=replace(own.phase, shares=tuple(record.shares[held])))
        return replace(own, phase=replace(own.phase, listens=places.listens(record) and training))

    def broadcast(self, state: ServerState, round_number: int, classes: int) -> Broadcast:
        """As always; clients train more before the concepts are found."""
        broadcast = super().broadcast(state, round_number, classes)
        warm_up = (
            self.settings.discovers() and not is_found(state) and FALLBACK not in state.numbers
        )
        if not warm_up or not self.local.chooses_epochs():
            return broadcast
        return replace(broadcast, phase=replace(broadcast.phase, passes=WARM_UP))

    def _measures(self, state: ServerState, record: ClientRecord, round_number: int) -> bool:
        if state.numbers.get(FALLBACK) or self._released(state, round_number):
            return False
        return record.fingerprint is None and round_number >= self.settings.measuring_round()

    def _released(self, state: ServerState, round_number: int) -> bool:
        """Whether the algorithm's own E-step runs again."""
        if self.keeps_places or not is_found(state):
            return False
        return round_number > state.numbers[FOUND] + LISTENING

    # --- what the server makes of the replies ----------------------------------------------------

    def brought_up(
        self, state: ServerState, name: str, sent: Broadcast, everybody: Membership, reply: Reply
    ) -> Reply:
        """As always; a fingerprint counts if it was taken with the present yardstick."""
        reply = super().brought_up(state, name, sent, everybody, reply)
        if sent.round >= state.numbers.get(MEASURED, 0.0):
            return reply
        return replace(reply, fingerprint=None, scatter=None)

    def counts_absent(self, state: ServerState) -> bool:
        """Members are averaged once clients have places: the others have nothing to say."""
        return self.absent_is_zero and not is_found(state)

    def compares_directions(self, state: ServerState) -> bool:
        """Also once the members of a cluster are known to have the same concept."""
        agree = is_found(state) and not self._released(state, state.round + 1)
        return agree or super().compares_directions(state)

    def end_round(
        self, state: ServerState, result: RoundResult, round_number: int
    ) -> tuple[ServerState, RoundReport]:
        """As always; then group the clients, or place those that are new or have listened."""
        if self.settings.discovers() and round_number == self.settings.measuring_round():
            first = next(iter(state.models.values())) if state.body is None else state.body
            state = with_yardstick(state, first, round_number)
        after, report = super().end_round(state, result, round_number)
        if not self.settings.discovers() or FALLBACK in state.numbers:
            return after, report
        if result.scatter is not None:
            scatter = after.arrays.get("scatter", 0.0) + result.scatter
            after = replace(after, arrays={**after.arrays, "scatter": scatter})
        found = None
        if self._released(after, round_number):
            return after, report
        if self._groups(after, round_number):
            after, found = self._discover(after, round_number)
        elif is_found(after):
            after, found = self._place(state, after, result)
        if self._measures_again(after, round_number + 1):
            body = places.largest_model(after) if after.body is None else after.body
            after = with_yardstick(after, body, round_number + 1)
        return after, replace(report, discovery=found)

    def _groups(self, state: ServerState, round_number: int) -> bool:
        """Whether enough clients have sent their fingerprints since the yardstick was chosen.

        It does not wait for clients that no longer answer, nor for those that are not measured
        again. As long as no concepts are known, it needs half of all clients, but does not wait
        for ever.
        """
        if state.numbers.get(GROUPED, 0) >= state.numbers.get(MEASURED, np.inf):
            return False
        trainers, first = _trainers(state), self.settings.measuring_round()
        measured = sum(map(places.is_measured, trainers))
        awaited = sum(r.fingerprint is None and not r.silent for r in trainers)
        fewest = 1.0 if is_found(state) else max(FEWEST * len(trainers), 1.0)
        latest = AGAIN * state.numbers.get(MEASURED, first)
        late = not is_found(state) and round_number >= latest and measured > 0
        enough = measured >= max(ENOUGH * (measured + awaited), fewest)
        return round_number >= first and (enough or late)

    def _measures_again(self, state: ServerState, round_number: int) -> bool:
        """Whether the next round begins with a new yardstick.

        Clients that add noise are not measured again. If they are many, nobody is.
        """
        trainers = _trainers(state)
        noisy = sum(r.noise > 0 for r in trainers) > (1.0 - ENOUGH) * len(trainers)
        waiting = state.numbers.get(GROUPED, 0) < state.numbers.get(MEASURED, np.inf)
        again = self.settings.measures_again(round_number) and FALLBACK not in state.numbers
        return again and not noisy and not waiting and not self._released(state, round_number)

    def _discover(
        self, state: ServerState, round_number: int
    ) -> tuple[ServerState, dict[str, Any] | None]:
        """Group the clients that were measured, and make a model for each group."""
        names = places.measured_clients(state)
        found = grouping.find(places.fingerprints_of(state, names), state.arrays["scatter"])
        if not found.established:
            state = replace(state, numbers={**state.numbers, GROUPED: float(round_number)})
            if is_found(state):
                return state, None
            described = places.described(found, names, ())
            again = AGAIN * self.settings.measuring_round()
            if round_number < again and self._measures_again(state, again):
                described["sentence"] += f"; the clients are measured again in round {again}"
                return state, described
            return self._fall_back(state, round_number), described
        return places.regrouped(state, found, names, round_number)

    def _fall_back(self, state: ServerState, round_number: int) -> ServerState:
        """Several models near the one that was trained, for the annealed E-step."""
        one = state.clusters[0]
        clusters = tuple(range(one, one + FALLBACK_MODELS))
        model = state.models[one]
        rng = np.random.default_rng([round_number, len(clusters)])
        parameters = np.arange(len(model)) < state.parameters
        scale = APART * float(model[parameters].std())
        models = {
            c: (model + scale * parameters * rng.normal(size=len(model))).astype(np.float32)
            for c in clusters
        }
        return replace(
            state,
            membership=Membership(clusters),
            models=models,
            optimizer={},
            clients={n: places.widened(r, len(clusters)) for n, r in state.clients.items()},
            numbers={**state.numbers, FALLBACK: float(round_number)},
        )

    def _place(
        self, before: ServerState, state: ServerState, result: RoundResult
    ) -> tuple[ServerState, dict[str, Any] | None]:
        """Place clients that have just been measured, or that have listened for long enough."""
        clients, lines = dict(state.clients), []
        open_ = [n for n in sorted(result.records) if places.listens(before.clients[n])]
        new = [
            n
            for n in open_
            if before.clients[n].fingerprint is None and clients[n].fingerprint is not None
        ]
        if new and state.numbers[GROUPED] >= state.numbers[MEASURED]:
            for name, (weights, several) in places.for_newcomers(state, new).items():
                clients[name], line = places.settled(state, name, weights, several)
                lines.append(line)
        if is_found(before) and state.round - state.numbers[GROUPED] >= LISTENING:
            for name in sorted(set(open_) - set(new)):
                clients[name], line = places.heard(state, name, PLACED)
                lines += [line] if line else []
        state = replace(state, clients=clients)
        return state, {"sentence": "; ".join(sorted(lines))} if lines else None


def _trainers(state: ServerState) -> list[ClientRecord]:
    """The clients that train and are not in quarantine."""
    return [r for r in state.clients.values() if r.role == TRAIN and not r.quarantined]


def with_yardstick(state: ServerState, body: Any, round_number: int) -> ServerState:
    """The state with a network that all clients are to be measured with, from a round on.

    An empty fingerprint takes the place of one with noise, which is not asked for again.
    """
    arrays = {name: array for name, array in state.arrays.items() if name != "scatter"}
    return replace(
        state,
        arrays={**arrays, "yardstick": body},
        clients={n: replace(r, fingerprint=_empty(r)) for n, r in state.clients.items()},
        numbers={**state.numbers, MEASURED: float(round_number)},
    )


def _empty(record: ClientRecord) -> Floats | None:
    if record.fingerprint is None or record.noise == 0:
        return None
    return np.zeros_like(record.fingerprint)
