"""Discovery: a run that begins with one model, finds the concepts, and gives each client its own.

Every client first trains the same model. Then its body is frozen as the yardstick with which each
client takes its fingerprint, once. The server groups the clients by their fingerprints, makes as
many models as there are groups, and from then on a client whose place is clear receives, trains and
sends one model. The others listen to all of them for some rounds, on samples that no model was
trained on, and are placed by what fits them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedrc_flwr.algorithms.base import ClusteredAlgorithm
from fedrc_flwr.algorithms.messages import Broadcast, RoundReport, RoundResult
from fedrc_flwr.algorithms.settings import SharedBodySettings
from fedrc_flwr.data.scenario import TRAIN
from fedrc_flwr.discovery import grouping
from fedrc_flwr.discovery.grouping import Grouping
from fedrc_flwr.em import Floats
from fedrc_flwr.settings import key
from fedrc_flwr.state import ClientRecord, Membership, ServerState

#: A client's place is clear if its group has at least this weight.
CLEAR = 0.45
#: A client that listened is placed if one cluster has at least this weight; else it keeps several.
PLACED = 0.75
#: Rounds for which clients listen before they are placed.
LISTENING = 5
#: Share of the training clients whose fingerprints discovery waits for.
ENOUGH = 0.8
#: Times `discover-after` rounds after which it no longer waits.
PATIENCE = 3
#: Models of the annealed E-step where nothing can be discovered; it removes and merges some.
FALLBACK_MODELS = 6
#: Standard deviation, relative to the model's own, by which models start apart without groups.
APART = 0.05


@dataclass(frozen=True)
class DiscoverySettings(SharedBodySettings):
    """Settings of an algorithm that can begin with discovery."""

    start: str = key(
        "paper",
        "`paper`: start from `clusters` random models; `discover`: train one model at first, find "
        "the concepts from the clients' fingerprints, and continue with a model for each.",
        choices=("paper", "discover"),
        common=True,
    )
    discover_after: int = key(
        5,
        "Round in which clients send their fingerprints. Until then all train one model.",
        low=2,
    )

    def models(self) -> int:
        """One model until the concepts are found; K if they are not looked for."""
        return 1 if self.discovers() else super().models()

    def discovers(self) -> bool:
        """Whether a run begins with discovery."""
        return self.start == "discover"

    def measuring_round(self) -> int:
        """The first round in which clients are measured."""
        return self.discover_after


class Discovering(ClusteredAlgorithm):
    """The server's side of discovery; a subclass has the E-step."""

    settings: DiscoverySettings
    #: Whether clients keep the places that were found for them; otherwise the algorithm's own
    #: E-step takes over after some rounds.
    keeps_places = True

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
        listens = record.cluster == UNPLACED and record.role == TRAIN
        return replace(own, phase=replace(own.phase, listens=listens and training))

    def _measures(self, state: ServerState, record: ClientRecord, round_number: int) -> bool:
        if state.numbers.get(FALLBACK):
            return False
        return record.fingerprint is None and round_number >= self.settings.measuring_round()

    def _released(self, state: ServerState, round_number: int) -> bool:
        """Whether the algorithm's own E-step runs again."""
        return not self.keeps_places and round_number > state.numbers[FOUND] + LISTENING

    # --- what the server makes of the replies ----------------------------------------------------

    def counts_absent(self, state: ServerState) -> bool:
        """Members are averaged once clients have places: the others have nothing to say."""
        return self.absent_is_zero and not is_found(state)

    def end_round(
        self, state: ServerState, result: RoundResult, round_number: int
    ) -> tuple[ServerState, RoundReport]:
        """As always; then look for concepts, and place clients that have listened."""
        if self.settings.discovers() and round_number == self.settings.measuring_round():
            first = next(iter(state.models.values())) if state.body is None else state.body
            state = replace(state, arrays={**state.arrays, "yardstick": first})
        after, report = super().end_round(state, result, round_number)
        if not self.settings.discovers() or state.numbers.get(FALLBACK):
            return after, report
        if result.scatter is not None:
            scatter = after.arrays.get("scatter", 0.0) + result.scatter
            after = replace(after, arrays={**after.arrays, "scatter": scatter})
        if not is_found(after):
            if not self._has_enough(after, round_number):
                return after, report
            after, found = self._discover(after, round_number)
            return after, replace(report, discovery=found)
        after, placed = self._place_listeners(after, round_number)
        return after, replace(report, discovery=placed)

    def _has_enough(self, state: ServerState, round_number: int) -> bool:
        """Whether enough clients have sent their fingerprints, or too much time has passed."""
        trainers = [r for r in state.clients.values() if r.role == TRAIN and not r.quarantined]
        measured = sum(r.fingerprint is not None for r in trainers)
        first = self.settings.measuring_round()
        late = round_number >= PATIENCE * first and measured > 0
        return round_number >= first and (measured >= ENOUGH * len(trainers) or late)

    def _discover(
        self, state: ServerState, round_number: int
    ) -> tuple[ServerState, dict[str, Any]]:
        """Group the clients that were measured, and make a model for each group."""
        names = measured_clients(state)
        found = grouping.find(fingerprints_of(state, names), state.arrays["scatter"])
        if not found.established:
            return self._fall_back(state, round_number), described(found, names, ())
        one = state.clusters[0]
        clusters = tuple(range(one, one + found.weights.shape[1]))
        clients = dict(state.clients)
        for row, name in enumerate(names):
            weights = found.weights[row]
            group = int(found.groups[row])
            clear = group >= 0 and weights[group] >= CLEAR
            clients[name] = replace(
                moved(clients[name], weights),
                cluster=clusters[group] if clear else UNPLACED,
                certainty=float(weights[group]) if group >= 0 else 0.0,
            )
        state = replace(
            state,
            membership=Membership(clusters),
            models=dict.fromkeys(clusters, state.models[one]),
            optimizer={
                slot: {c: v for c in clusters if (v := vectors.get(one)) is not None}
                | {c: v for c, v in vectors.items() if c < 0}
                for slot, vectors in state.optimizer.items()
            },
            clients={n: widened(r, len(clusters)) for n, r in clients.items()},
            numbers={**state.numbers, FOUND: float(round_number)},
        )
        return state, described(found, names, clusters)

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
            clients={n: widened(r, len(clusters)) for n, r in state.clients.items()},
            numbers={**state.numbers, FALLBACK: float(round_number)},
        )

    def _place_listeners(
        self, state: ServerState, round_number: int
    ) -> tuple[ServerState, dict[str, Any] | None]:
        """Place clients that listened for long enough, by the models that fit them."""
        since = round_number - state.numbers[FOUND]
        if since < LISTENING:
            return state, None
        clients, lines = dict(state.clients), []
        for name, record in state.reported().items():
            weights = record.mixture_weights()
            if record.cluster != UNPLACED or record.role != TRAIN or weights is None:
                continue
            best = int(weights.argmax())
            alone = weights[best] >= PLACED
            clients[name] = replace(
                record,
                cluster=state.clusters[best] if alone else SEVERAL,
                certainty=float(weights[best]),
            )
            where = f"in cluster {state.clusters[best]}" if alone else "between several clusters"
            lines.append(f"{name} is {where}")
        if not lines:
            return state, None
        sentence = f"Placed after listening: {'; '.join(sorted(lines))}."
        return replace(state, clients=clients), {"sentence": sentence}


FOUND, FALLBACK = "found", "fallback"  # numbers of the state: the round in which it happened
UNPLACED, SEVERAL = -1, -2  # in place of a cluster's id: not known yet; several of them


def is_found(state: ServerState) -> bool:
    """Whether the concepts have been found."""
    return FOUND in state.numbers


def measured_clients(state: ServerState) -> list[str]:
    """The clients whose fingerprints have arrived, sorted."""
    return sorted(n for n, r in state.clients.items() if r.fingerprint is not None)


def fingerprints_of(state: ServerState, names: list[str]) -> Floats:
    """(n, C, 1 + D)."""
    return np.stack([np.asarray(state.clients[name].fingerprint) for name in names])


def moved(record: ClientRecord, weights: Floats) -> ClientRecord:
    """The record with its samples shared out by these weights, (K,)."""
    if record.label_counts is None:
        return record
    counts = weights[:, None] * record.label_counts.sum(axis=0, keepdims=True)
    return replace(record, label_counts=counts, cross_losses=None)


def widened(record: ClientRecord, clusters: int) -> ClientRecord:
    """The record over so many clusters, evenly where nothing is known."""
    if record.label_counts is None or len(record.label_counts) == clusters:
        return record
    return moved(record, np.full(clusters, 1.0 / clusters))


def described(found: Grouping, names: list[str], clusters: tuple[int, ...]) -> dict[str, Any]:
    """What the metrics tell about a discovery."""
    about: dict[str, Any] = {"sentence": found.sentence, "established": found.established}
    if clusters:
        about["groups"] = {
            name: clusters[group] for name, group in zip(names, found.groups, strict=True)
            if group >= 0
        }  # fmt: skip
        about["weights"] = {
            name: [round(float(w), 3) for w in row]
            for name, row in zip(names, found.weights, strict=True)
        }
    if len(names) <= MOST_SHOWN:
        about["evidence"] = [[round(float(v), 1) for v in row] for row in found.evidence]
        about["clients"] = names
    return about


MOST_SHOWN = 100  # clients whose evidence is in the metrics, which would otherwise be too large
