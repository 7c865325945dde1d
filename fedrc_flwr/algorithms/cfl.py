"""CFL (Sattler et al. 2020): clusters are split in two where the members' updates disagree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedrc_flwr.algorithms.ifca import HardChoice
from fedrc_flwr.algorithms.messages import Broadcast, Reply, RoundReport, RoundResult
from fedrc_flwr.algorithms.settings import AlgorithmSettings
from fedrc_flwr.algorithms.step import ClientRuntime, Step
from fedrc_flwr.em import Floats
from fedrc_flwr.layout import Vector
from fedrc_flwr.metrics import Evaluation
from fedrc_flwr.models import SplitModel
from fedrc_flwr.settings import key
from fedrc_flwr.state import ClientRecord, ClientState, Membership, ServerState

SCALE = "update-scale"


@dataclass(frozen=True)
class CFLSettings(AlgorithmSettings):
    """Settings of CFL."""

    clusters: int = key(3, "Largest number of clusters.", low=1, high=500)
    eps1: float = key(
        0.4,
        "A cluster is split when the norm of its mean update is below this share of the mean norm "
        "of the clients' updates in round 1,",
        above=0.0,
    )
    eps2: float = key(0.6, "the norm of one member's update is above this share of it,", above=0.0)
    warmup: int = key(10, "and this many rounds have passed.", low=0, rounds=True)

    def models(self) -> int:
        """The largest number; the run starts with one."""
        return self.clusters


class CFL(HardChoice):
    """Starts with one cluster; the server assigns clients; ``clusters`` is the limit.

    The two thresholds are shares of the mean norm of the clients' updates in the first round, which
    calibrates them to any network and learning rate. Norms and similarities use parameters only,
    not BatchNorm's running statistics. To compare updates, the server holds those of all clients of
    a round, so this is the only algorithm whose memory grows with the number of clients. A client
    that was absent when its cluster was split, or is new, takes the cluster with the smallest loss.
    """

    name = "cfl"
    title = "CFL"
    Settings: ClassVar[type[AlgorithmSettings]] = CFLSettings
    settings: CFLSettings

    # --- client half -----------------------------------------------------------------------------

    def expectation(self, step: Step) -> tuple[Floats, ClientState]:
        """All samples to the cluster that the server named."""
        if step.broadcast.assigned < 0:
            return super().expectation(step)
        return step.everywhere(_alone(step.broadcast))

    def evaluate(
        self, broadcast: Broadcast, state: ClientState | None, client: ClientRuntime
    ) -> Evaluation:
        """A client that was moved to a new cluster is evaluated there right away."""
        if state is not None and broadcast.assigned >= 0:
            clusters = broadcast.membership.clusters
            state = replace(state, clusters=clusters, mixture_weights=_alone(broadcast))
        return super().evaluate(broadcast, state, client)

    # --- server half -----------------------------------------------------------------------------

    def initial_state(self, models: list[SplitModel]) -> ServerState:
        """Everybody begins with the same model."""
        return super().initial_state(models[:1])

    def assigned(self, state: ServerState, name: str) -> int:
        """The cluster that a client was put into."""
        record = state.clients.get(name)
        return -1 if record is None else record.cluster

    def receive(self, state: ServerState, result: RoundResult, name: str, reply: Reply) -> None:
        """Keep the update until all have arrived."""
        super().receive(state, result, name, replace(reply, deltas={}))
        record, chosen = result.records[name], -1
        for position, delta in reply.deltas.items():
            chosen = state.clusters[position]
            # A copy, since the round's messages must not be kept: see arrays.PackedArray.
            result.updates[name] = delta.copy()
        result.records[name] = replace(record, cluster=chosen)

    def end_round(
        self, state: ServerState, result: RoundResult, round_number: int
    ) -> tuple[ServerState, RoundReport]:
        """Split where it is due, then average within each cluster."""
        norms = {
            name: float(np.linalg.norm(update[: state.parameters].astype(np.float64)))
            for name, update in result.updates.items()
        }
        if SCALE not in state.numbers and norms:
            scale = float(np.mean(list(norms.values())))
            state = replace(state, numbers={**state.numbers, SCALE: scale})
        for cluster in state.clusters:
            members = sorted(n for n in norms if result.records[n].cluster == cluster)
            room = len(state.clusters) < self.settings.clusters
            if round_number > self.settings.warmup and room:
                state = self._split_if_due(state, result, cluster, members, norms)
        for name, update in result.updates.items():
            record = result.records[name]
            result.sums.add({record.cluster: update}, record.samples)
        return super().end_round(state, result, round_number)

    def _split_if_due(
        self,
        state: ServerState,
        result: RoundResult,
        cluster: int,
        members: list[str],
        norms: dict[str, float],
    ) -> ServerState:
        updates = [result.updates[name][: state.parameters] for name in members]
        samples = np.array([result.records[name].samples for name in members], dtype=np.float64)
        limits = (self.settings.eps1, self.settings.eps2)
        thresholds = [share * state.numbers.get(SCALE, 0.0) for share in limits]
        if len(members) < 2 or not due(updates, samples, *thresholds):
            return state
        second = set(np.array(members)[bipartition(updates)].tolist())
        new = max(state.clusters) + 1
        for name in second:
            result.records[name] = replace(result.records[name], cluster=new)
        # A client that was absent chooses again.
        absent = {
            name: replace(record, cluster=-1)
            for name, record in state.clients.items()
            if record.cluster == cluster and name not in norms
        }
        clients = {
            name: _with_room(record, name in second, state.clusters.index(cluster))
            for name, record in {**state.clients, **absent}.items()
        }
        for name, record in result.records.items():
            position = state.clusters.index(cluster)
            result.records[name] = _with_room(record, name in second, position)
        return replace(
            state,
            membership=Membership((*state.clusters, new), state.membership.merged),
            models={**state.models, new: state.models[cluster]},
            optimizer={
                slot: {**vectors, **({new: vectors[cluster]} if cluster in vectors else {})}
                for slot, vectors in state.optimizer.items()
            },
            clients=clients,
        )


def due(updates: list[Vector], samples: Floats, eps1: float, eps2: float) -> bool:
    """Whether the cluster as a whole has converged while some member has not."""
    mean = np.average(updates, axis=0, weights=samples)
    largest = max(float(np.linalg.norm(update.astype(np.float64))) for update in updates)
    return bool(np.linalg.norm(mean) < eps1 and largest > eps2)


def bipartition(updates: list[Vector]) -> np.ndarray:
    """Which of at least two clients leave, (n,); the group of the first client stays.

    The two groups minimise the largest cosine similarity across them, as in Sattler et al. Single
    linkage finds them: its last step joins the two groups that are farthest apart by their nearest
    members.
    """
    from scipy.cluster.hierarchy import cut_tree, linkage  # slow to load

    stacked = np.stack(updates).astype(np.float64)
    lengths = np.linalg.norm(stacked, axis=1, keepdims=True)
    directions = stacked / np.maximum(lengths, 1e-12)
    distances = np.clip(1.0 - directions @ directions.T, 0.0, 2.0)
    condensed = distances[np.triu_indices(len(updates), k=1)]
    groups = cut_tree(linkage(condensed, method="single"), n_clusters=[2])[:, 0]
    return np.asarray(groups != groups[0])


def _alone(broadcast: Broadcast) -> Floats:
    """All weight on the cluster that the server named."""
    return np.array([float(c == broadcast.assigned) for c in broadcast.membership.clusters])


def _with_room(record: ClientRecord, moves: bool, position: int) -> ClientRecord:
    """A record with a row for one more cluster, into which a client that moves takes its counts."""
    if record.label_counts is None:
        return record
    row = np.zeros((1, record.label_counts.shape[1]))
    counts = np.concatenate([record.label_counts, row])
    if moves:
        counts[[position, -1]] = counts[[-1, position]]
    return replace(record, label_counts=counts)
