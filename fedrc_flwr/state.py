"""What the server and a client remember between rounds: explicit and serialisable."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr import em
from fedrc_flwr.em import AdamMoments, Floats
from fedrc_flwr.finite import finite
from fedrc_flwr.layout import Vector

#: Strikes that put a client into quarantine.
STRIKES = 3


@dataclass(frozen=True)
class Membership:
    """The current clusters, and what the others were merged into.

    ``merged`` maps the id of a merged cluster to the id that it became part of (which may have been
    merged or removed later); a removed cluster has no entry. Ids are never reused.
    """

    clusters: tuple[int, ...]
    merged: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for cluster in self.merged:
            seen = {cluster}
            while (cluster := self.merged.get(cluster, -1)) in self.merged:
                if cluster in seen:  # nobody would ever arrive at a successor
                    raise ValueError(f"cluster {cluster} was merged into itself")
                seen.add(cluster)

    def successor(self, cluster: int) -> int:
        """Position of the current cluster that ``cluster`` became part of, or -1."""
        while cluster in self.merged:
            cluster = self.merged[cluster]
        return self.clusters.index(cluster) if cluster in self.clusters else -1

    def mapping_from(self, clusters: tuple[int, ...]) -> np.ndarray:
        """For each old cluster, its ``successor``."""
        return np.array([self.successor(c) for c in clusters], dtype=np.int64)


@dataclass(frozen=True)
class ClientState:
    """A client's mixture weights after a round, by cluster id, and the Adam variant's memory.

    ``responsibilities``, (N, K), are those of the round. They are kept if clusters may be removed,
    to renormalise each sample's. (The Adam variant has them in its moments.) ``releases`` counts
    the noisy statistics sent so far, including those that never arrived. ``vectors`` and
    ``numbers`` hold what some algorithms keep in addition: the client's own network, or how much of
    it to use.
    """

    round: int
    clusters: tuple[int, ...]
    mixture_weights: Floats
    moments: AdamMoments | None = None
    responsibilities: Floats | None = None
    releases: int = 0
    vectors: dict[str, Vector] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)

    @classmethod
    def start(cls, clusters: tuple[int, ...]) -> ClientState:
        """Uniform weights, as before the first round."""
        return cls(0, clusters, np.full(len(clusters), 1.0 / len(clusters)))

    def is_finite(self) -> bool:
        """Whether all its numbers are finite."""
        moments = self.moments
        memory = (
            () if moments is None else (moments.responsibilities, moments.first, moments.second)
        )
        weights = (self.mixture_weights, self.responsibilities)
        return finite([*weights, *memory, *self.vectors.values(), *self.numbers.values()])

    def is_plain(self) -> bool:
        """Whether it has nothing but mixture weights."""
        return self.moments is None and self.responsibilities is None and not self.vectors

    def is_repeated(self, later: ClientState) -> bool:
        """Whether a plain state of a later round is the same."""
        return (
            self.is_plain()
            and later.is_plain()
            and self.clusters == later.clusters
            and np.array_equal(self.mixture_weights, later.mixture_weights)
            and (self.releases, self.numbers) == (later.releases, later.numbers)
        )

    def moved_to(self, membership: Membership) -> ClientState:
        """The same state over the current clusters (the paper's Algorithm 2).

        Without responsibilities the weights themselves are renormalised, which is exact if all
        samples of a client have the same.
        """
        if self.clusters == membership.clusters:
            return self
        mapping, alive = membership.mapping_from(self.clusters), len(membership.clusters)

        def left(responsibilities: Floats) -> Floats:
            return em.renormalise(em.regroup(responsibilities, mapping, alive, 1), axis=1)

        weights = em.renormalise(em.regroup(self.mixture_weights, mapping, alive, 0), axis=0)
        moments, responsibilities = self.moments, self.responsibilities
        if moments is not None:
            moments = AdamMoments(
                left(moments.responsibilities),
                em.regroup(moments.first, mapping, alive, 1),
                em.regroup(moments.second, mapping, alive, 1),
            )
            weights = em.update_mixture_weights(moments.responsibilities)
        if responsibilities is not None:
            responsibilities = left(responsibilities)
            weights = em.update_mixture_weights(responsibilities)
        return replace(
            self,
            clusters=membership.clusters,
            mixture_weights=weights,
            moments=moments,
            responsibilities=responsibilities,
        )


@dataclass(frozen=True)
class ClientRecord:
    """What the server remembers of a client, by its stable name.

    Mixture weights are never sent: the server computes them from the (possibly noisy) counts.

    Parameters
    ----------
    cluster : id of the cluster that the server assigned, if the algorithm does so
    label_counts : (K, C), the latest report, or None before the first
    cross_losses : (K, K), the latest sums of responsibility times loss, or None; only differences
        within a row matter
    spent : what its releases cost so far, see ``PrivacySettings.cost``; infinite if one of its
        reports had no noise or no bound
    loss : the latest mean loss of its mixture, or None before the first report
    fingerprint : (2, C, 1 + D), what its labels mean, or None before it was measured
    shares : (K,), of the clusters in its samples, if it was found to hold several concepts
    certainty : how sure the server is of ``cluster``, if it found that out from fingerprints
    strikes : how many of its replies could not have come from an honest client
    clean : how many replies it has sent since the last of them
    silent : how many times in a row it did not answer; at least 1 while it cannot be reached
        or is still at an older round
    rests : the last round in which it is not asked, because it kept silent before
    opposed : how far its updates point against those of the others, from 0 to 1
    compared : how many rounds that is found from
    """

    role: str
    samples: int
    label_counts: Floats | None = None
    cross_losses: Floats | None = None
    noise: float = 0.0
    releases: int = 0
    spent: float = 0.0
    concept: int = -1
    style: str = ""
    cluster: int = -1
    loss: float | None = None
    fingerprint: Floats | None = None
    shares: Floats | None = None
    certainty: float = 0.0
    strikes: int = 0
    clean: int = 0
    silent: int = 0
    rests: int = 0
    opposed: float = 0.0
    compared: float = 0.0

    @property
    def quarantined(self) -> bool:
        """Whether it is no longer asked, because of its strikes."""
        return self.strikes >= STRIKES

    def mixture_weights(self) -> Floats | None:
        """Each cluster's share of this client's samples, according to its counts."""
        if self.label_counts is None:
            return None
        return em.renormalise(np.maximum(self.label_counts.sum(axis=1), 0.0), axis=0)

    def is_finite(self) -> bool:
        """Whether all its numbers are finite."""
        return finite(
            [
                self.label_counts,
                self.cross_losses,
                self.fingerprint,
                self.shares,
                self.noise,
                self.loss,
            ]
        )


@dataclass(frozen=True)
class ServerState:
    """Everything that a run needs to continue after ``round``.

    Parameters
    ----------
    models : one flat vector per cluster (its head if the body is shared)
    body : the shared feature extractor, if any
    parameters : how many of the leading numbers of each model are parameters; the rest are running
        statistics, which are averaged
    body_parameters : the same of the body
    optimizer : named slots of the server's optimizer: a vector per cluster, -1 for the body, as
        long as there are parameters
    quiet_rounds : rounds in a row in which weights and loss hardly changed
    numbers, arrays : what an algorithm keeps in addition
    """

    round: int
    membership: Membership
    models: dict[int, Vector]
    body: Vector | None
    clients: dict[str, ClientRecord]
    parameters: int = field(kw_only=True)
    body_parameters: int = field(default=0, kw_only=True)
    optimizer: dict[str, dict[int, Floats]] = field(default_factory=dict)
    optimizer_steps: int = 0
    quiet_rounds: int = 0
    numbers: dict[str, float] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def clusters(self) -> tuple[int, ...]:
        """Ids of the current clusters."""
        return self.membership.clusters

    def is_finite(self) -> bool:
        """Whether all its numbers are finite: models, optimizer slots, statistics."""
        slots = (vector for vectors in self.optimizer.values() for vector in vectors.values())
        vectors = [*self.models.values(), self.body, *slots, *self.arrays.values()]
        numbers = [*vectors, *self.numbers.values()]
        return finite(numbers) and all(record.is_finite() for record in self.clients.values())

    def reported(self) -> dict[str, ClientRecord]:
        """The clients that have sent counts at least once."""
        return {n: r for n, r in self.clients.items() if r.label_counts is not None}

    def label_prior(self, classes: int, floor: float = em.PRIOR_FLOOR) -> Floats:
        """C_{y,k} from the latest counts of all clients that ever reported; uniform before.

        Counts smaller than the noise on them are raised to its standard deviation: the more noise,
        the closer the prior is to uniform.
        """
        counts = [r.label_counts for r in self.clients.values() if r.label_counts is not None]
        if not counts:
            return em.uniform_prior(len(self.clusters), classes)
        return em.normalise_label_prior(np.sum(counts, axis=0), max(floor, self.count_error()))

    def count_error(self) -> float:
        """Standard deviation of the noise on one entry of the sum of all clients' counts."""
        return math.sqrt(sum(record.noise**2 for record in self.reported().values()))

    def masses(self) -> tuple[Floats, float]:
        """Samples of each cluster, (K,), summed over the clients, and the error of each sum.

        With noise a sum may be negative. Negative counts of single clients are kept, because
        otherwise noise would not average out.
        """
        counts = [r.label_counts for r in self.clients.values() if r.label_counts is not None]
        if not counts:
            return np.zeros(len(self.clusters)), 0.0
        total = np.sum(counts, axis=0)
        return total.sum(axis=1), math.sqrt(total.shape[1]) * self.count_error()

    def shares(self) -> Floats:
        """Each cluster's share of all samples of the clients that ever reported."""
        return em.renormalise(np.maximum(self.masses()[0], 0.0), axis=0)

    def share_error(self) -> float:
        """The standard error of each share; 0 without noise."""
        masses, error = self.masses()
        total = float(np.maximum(masses, 0.0).sum())
        if total > 0:
            return error / total
        return math.inf if error > 0 else 0.0

    def _usual_shares(self, mapping: NDArray[np.int64], alive: int) -> Floats:
        """Each living cluster's share of a label over all clients, (K, C)."""
        counts = [r.label_counts for r in self.clients.values() if r.label_counts is not None]
        kept = em.regroup(np.sum(counts, axis=0), mapping, alive, 0)
        return em.renormalise(np.maximum(kept, 0.0), axis=0)

    def moved_to(self, membership: Membership) -> ServerState:
        """The same state with clusters removed or merged; the clients' counts keep their labels.

        The counts of a removed cluster go to the others label by label, as if all of a client's
        samples of one label had the same responsibilities. This is an approximation until the
        client's next report, because the server does not know single samples. Noisy counts are
        distributed as the federation's are on the whole: nothing is cut off client by client. A
        noisy loss table is dropped, since the error of what it would become is not known.
        """
        mapping, alive = membership.mapping_from(self.clusters), len(membership.clusters)
        columns = [self.clusters.index(c) for c in membership.clusters]
        gone = mapping < 0
        clients = dict(self.clients)
        before, after = np.zeros(alive), np.zeros(alive)
        for name, record in self.reported().items():
            counts, table = record.label_counts, record.cross_losses
            if counts is None:
                continue
            totals = np.maximum(counts.sum(axis=0, keepdims=True), 0.0)
            released = counts[gone].sum(axis=0, keepdims=True)
            counts = em.regroup(counts, mapping, alive, 0)
            before += counts.sum(axis=1)
            if gone.any() and record.noise > 0:
                counts = counts + self._usual_shares(mapping, alive) * released
            elif gone.any():
                counts = em.renormalise(np.maximum(counts, 0.0), axis=0, total=totals)
            after += counts.sum(axis=1)
            if table is not None:
                noisy = record.noise > 0
                table = None if noisy else em.regroup(table, mapping, alive, 0)[:, columns]
            clients[name] = replace(record, label_counts=counts, cross_losses=table)
        # Samples from a removed cluster come without losses: the sums are scaled with the masses,
        # so that the mean losses do not change.
        growth = np.where(before > 0, after / np.where(before > 0, before, 1.0), 1.0)[:, None]
        for name, record in clients.items():
            if record.cross_losses is not None:
                clients[name] = replace(record, cross_losses=record.cross_losses * growth)
        return replace(
            self,
            membership=membership,
            models={c: self.models[c] for c in membership.clusters},
            optimizer={
                slot: {c: v for c, v in vectors.items() if c in membership.clusters or c < 0}
                for slot, vectors in self.optimizer.items()
            },
            clients=clients,
            quiet_rounds=0,
        )
