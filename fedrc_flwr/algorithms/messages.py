"""The messages between server and client, and the sums over a round's replies."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedrc_flwr.adaptive import Adaptation
from fedrc_flwr.aggregation import BODY, UpdateSums, update_norm
from fedrc_flwr.combining import HeldUpdates
from fedrc_flwr.discovery.space import pooled_scatter
from fedrc_flwr.em import Floats
from fedrc_flwr.finite import finite
from fedrc_flwr.layout import Vector
from fedrc_flwr.metrics import Evaluation
from fedrc_flwr.screening import Screening, Verdict
from fedrc_flwr.state import ClientRecord, Membership
from fedrc_flwr.transport import FLOAT32, size_of

#: An update larger than this multiple of the round's median norm is taken to have broken it.
FAR = 1000.0


@dataclass(frozen=True)
class Phase:
    """What kind of E-step a round has. The server decides, and sends it with the broadcast.

    Parameters
    ----------
    exponent : the inverse temperature of the E-step; 1 is the paper's
    pooled : whether all samples of a client get the same responsibilities
    prior : whether the E-step divides by the label prior
    compares : whether clients send their loss tables, by which clusters are merged
    measures : whether the client sends its fingerprint
    listens : whether the client only reports its mixture weights, and trains nothing
    decides : whether all models are compared, so that everybody receives them
    passes : how many times as many local epochs as usual the round has
    shares : of the client's concepts in its samples, if the server found it to hold several
    """

    exponent: float = 1.0
    pooled: bool = False
    prior: bool = True
    compares: bool = False
    measures: bool = False
    listens: bool = False
    decides: bool = False
    passes: int = 1
    shares: tuple[float, ...] = ()

    def releases(self) -> int:
        """How many statistics a client sends in such a round of training."""
        return 1 + self.compares + 2 * self.measures

    @property
    def annealed(self) -> bool:
        """Whether the round belongs to the annealing."""
        return self.exponent != 1.0 or self.pooled


@dataclass(frozen=True)
class Evaluates:
    """What a client evaluates before it trains: the models that it receives, as they are.

    Parameters
    ----------
    round : the round after which the models are these
    clusters : the ids of those that it is evaluated with
    prior : whether a client without a state is assigned by means of the label prior
    cohort : how many clients are evaluated
    """

    round: int
    clusters: tuple[int, ...]
    prior: bool
    cohort: int


@dataclass(frozen=True)
class Broadcast:
    """What the server sends to a client, in training and in evaluation.

    ``parameters`` and ``body_parameters`` are how many of the leading numbers of a model and of the
    body are parameters; the rest are running statistics. ``yardstick`` is the network with which
    the client takes its fingerprint, if that is not the one model that was sent. ``cohort`` is how
    many clients are asked in this round, 0 where nobody says. ``evaluates`` asks a client that
    trains to evaluate the models first.
    """

    round: int
    membership: Membership
    models: list[Vector]
    body: Vector | None
    parameters: int
    body_parameters: int
    label_prior: Floats
    phase: Phase
    assigned: int = -1  # id of the cluster that the server assigned, if it does
    yardstick: Vector | None = None
    cohort: int = 0
    evaluates: Evaluates | None = None

    def nbytes(self, precision: str = FLOAT32) -> int:
        """Bytes of its arrays as they travel."""
        sizes = [size_of(model, self.parameters, precision) for model in self.models]
        common = self.parameters if self.body is None else self.body_parameters
        shared = [vector for vector in (self.body, self.yardstick) if vector is not None]
        sizes += [size_of(vector, common, precision) for vector in shared]
        return sum(sizes) + self.label_prior.nbytes

    def kind(self) -> tuple[object, ...]:
        """What distinguishes a round's messages: two of the same kind are the same."""
        about = (self.round, self.cohort, self.evaluates, self.yardstick is None)
        return (self.membership.clusters, self.phase, self.assigned, *about)

    def to_evaluate(self) -> Broadcast | None:
        """What the client would have received if it had only been asked to evaluate."""
        if self.evaluates is None:
            return None
        asked = self.evaluates
        own = replace(
            self,
            round=asked.round,
            phase=replace(self.phase, prior=asked.prior),
            cohort=asked.cohort,
            evaluates=None,
        )
        return own if asked.clusters == self.membership.clusters else own.narrowed(asked.clusters)

    def hollow(self) -> Broadcast:
        """The same without the networks' numbers, for whoever only has to know their sizes."""

        def empty(vector: Vector) -> Vector:
            return np.broadcast_to(np.float32(0.0), vector.shape)

        body = None if self.body is None else empty(self.body)
        return replace(self, models=[empty(m) for m in self.models], body=body, yardstick=None)

    def narrowed(self, clusters: tuple[int, ...]) -> Broadcast:
        """The same for a client that takes part in these clusters only."""
        rows = [self.membership.clusters.index(c) for c in clusters]
        return replace(
            self,
            membership=replace(self.membership, clusters=clusters),
            models=[self.models[k] for k in rows],
            label_prior=self.label_prior[rows],
        )


@dataclass(frozen=True)
class Reply:
    """What a client sends back after training.

    Parameters
    ----------
    deltas : update of each cluster by position; -1 is the shared body; absent means zero
    label_counts : (K, C), noisy where the client adds noise
    cross_losses : (K, K), sums over samples of responsibility for a times loss of b, or None; with
        noise, times the bounded difference between the losses of b and a
    fingerprint : (2, C, 1 + D), for each label the number of samples and the sum of their features,
        of the samples that agree with each other and of the rest, if it was asked for;
        ``scatter``, (D, D), is that of the former's features within labels
    evaluation : of the models that the client received, if it was asked for
    counts : whether the client counts where updates are averaged, even if it sends none
    age : how many rounds ago it was asked for
    """

    samples: int
    deltas: dict[int, Vector]
    label_counts: Floats
    cross_losses: Floats | None
    noise: float
    releases: int
    metrics: dict[str, float]
    fingerprint: Floats | None = None
    scatter: Floats | None = None
    evaluation: Evaluation | None = None
    counts: bool = True
    age: int = 0

    def without_updates(self) -> Reply:
        """The same of a client whose updates are not used."""
        return replace(self, deltas={}, counts=False)

    def statistics(self) -> list[Floats]:
        """Everything but the updates."""
        given = (self.label_counts, self.cross_losses, self.fingerprint, self.scatter)
        return [array for array in given if array is not None]

    def nbytes(self, broadcast: Broadcast, precision: str = FLOAT32) -> int:
        """Bytes of its arrays as they travel."""
        updates = sum(
            size_of(
                delta, broadcast.body_parameters if k == BODY else broadcast.parameters, precision
            )
            for k, delta in self.deltas.items()
        )
        counted = 0 if self.evaluation is None else self.evaluation.nbytes()
        return updates + sum(array.nbytes for array in self.statistics()) + counted

    def by_cluster(self, clusters: tuple[int, ...]) -> dict[int, Vector]:
        """The updates by the clusters' ids instead of their positions."""
        return {BODY if k == BODY else clusters[k]: delta for k, delta in self.deltas.items()}

    def is_finite(self) -> bool:
        """Whether all its numbers are finite."""
        return finite([*self.deltas.values(), *self.statistics(), *self.metrics.values()])

    def discounted(self) -> Reply:
        """The same with updates that count less the older they are (FedBuff's 1/sqrt(1 + age))."""
        if not self.age:
            return self
        factor = np.float32(1.0 / math.sqrt(1 + self.age))
        return replace(self, deltas={k: factor * delta for k, delta in self.deltas.items()})

    def capped(self, most: int) -> Reply:
        """The same from a client that counts as ``most`` samples, if it holds more."""
        if self.samples <= most:
            return self
        share = most / self.samples
        counts, table, measured, scatter = (
            None if array is None else share * array
            for array in (self.label_counts, self.cross_losses, self.fingerprint, self.scatter)
        )
        return replace(
            self,
            samples=most,
            label_counts=np.asarray(counts),
            cross_losses=table,
            noise=share * self.noise,
            fingerprint=measured,
            scatter=scatter,
        )

    def widened(self, own: Membership, everybody: Membership) -> Reply:
        """The same over all clusters, from a client that took part in some of them."""
        if own.clusters == everybody.clusters:
            return self
        rows = np.array([everybody.clusters.index(c) for c in own.clusters])
        counts = np.zeros((len(everybody.clusters), self.label_counts.shape[1]))
        counts[rows] = self.label_counts
        return replace(
            self,
            deltas={k if k == BODY else int(rows[k]): delta for k, delta in self.deltas.items()},
            label_counts=counts,
            cross_losses=None,
        )


@dataclass
class RoundResult:
    """The replies of one round, summed as they arrive.

    Parameters
    ----------
    sums : what the reply that is being received is added to: those of its level of length
    home : the cluster that the client of that reply is a member of, if it is known
    screening : the lengths of the updates
    norms : of each reply's update, all clusters together
    updates : by client, if they are compared
    scatters : by client, of those that were measured
    """

    sums: UpdateSums | HeldUpdates
    records: dict[str, ClientRecord] = field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    updates: dict[str, Vector] = field(default_factory=dict)
    scatters: dict[str, Floats] = field(default_factory=dict)
    screening: Screening = field(default_factory=lambda: Screening({}, np.inf))
    home: int | None = None

    def __post_init__(self) -> None:
        self._levels: dict[int, Any] = {0: self.sums}

    @property
    def scatter(self) -> Floats | None:
        """The sum of the clients' scatters, if any were measured."""
        if not self.scatters:
            return None
        samples = np.array([self.records[name].samples for name in self.scatters], dtype=float)
        return pooled_scatter(np.stack(list(self.scatters.values())), samples)

    def expect(self, name: str, reply: Reply, clusters: tuple[int, ...]) -> Reply:
        """Choose the sums for a reply, and return it with its long updates scaled down.

        A client is a member of the cluster of which it sends the longest update: training weights
        each cluster by its share of the client's samples. The counts say the same, but noise on
        them may be larger than they are.
        """
        updates = reply.by_cluster(clusters)
        lengths = {cluster: update_norm([update]) for cluster, update in updates.items()}
        own = {cluster: length for cluster, length in lengths.items() if cluster != BODY}
        self.home = max(own, key=lambda cluster: own[cluster]) if own else None
        level, factors = self.screening.take(name, lengths, self.home)
        if level not in self._levels:
            self._levels[level] = self.sums.empty()
        self.sums = self._levels[level]
        self.norms[name] = float(np.linalg.norm(list(lengths.values())))
        if not factors:
            return reply
        ids = {k: BODY if k == BODY else clusters[k] for k in reply.deltas}
        scaled = {k: np.float32(factors.get(ids[k], 1.0)) * d for k, d in reply.deltas.items()}
        return replace(reply, deltas=scaled)

    def settle(self) -> Verdict:
        """Bring the levels together, and leave out whoever is refused."""
        verdict = self.screening.verdict()
        self.sums, self.home = self._levels.pop(0), None
        for level, sums in sorted(self._levels.items()):
            if verdict.factors[level] > 0:
                self.sums.take_in(sums, verdict.factors[level])
        self._levels = {0: self.sums}
        for name in verdict.refused:
            for kept in (self.records, self.metrics, self.norms, self.updates, self.scatters):
                kept.pop(name, None)
        return verdict

    def culprits(self) -> dict[str, str]:
        """Whose replies to leave out if the next state is not finite, and why.

        These are clients whose statistics are too large, or whose update is far larger than usual
        in this round. If there are none, it is the client with the largest update.
        """
        found = {
            name: "its statistics are too large to compute with"
            for name, record in self.records.items()
            if not record.is_finite()
        }
        usual = float(np.median(list(self.norms.values())))
        largest = max(self.norms, key=lambda name: self.norms[name])
        far = [name for name, norm in self.norms.items() if norm > FAR * usual]
        for name in far or ([] if found else [largest]):
            found[name] = (
                f"with its update the models are no longer finite: its norm is "
                f"{self.norms[name]:.3g}, the round's median is {usual:.3g}"
            )
        return found


@dataclass(frozen=True)
class RoundReport:
    """What the server reports about a finished round."""

    movement: float
    adaptation: Adaptation = field(default_factory=Adaptation)
    discovery: dict[str, Any] | None = None  # what was found in this round, if it was looked for
