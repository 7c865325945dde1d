"""Finding the number of concepts: removing clusters that nobody needs, merging those that agree.

Both wait until the federation has settled: until the clients' mixture weights and their loss have
moved less than a tolerance for some rounds in a row, after any annealing has ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fedrc_flwr import em
from fedrc_flwr.em import Floats
from fedrc_flwr.settings import key
from fedrc_flwr.state import ClientRecord, Membership, ServerState

#: How many standard errors an estimate must be away from a limit to be trusted.
SURE = 2.0
#: If noise hides movements larger than this, it is unknown whether the clients have settled.
BLIND = 0.25


@dataclass(frozen=True)
class AdaptiveSettings:
    """When clusters are removed and merged."""

    adaptive: bool = key(
        False, "Remove clusters with a small share once the federation has settled.", common=True
    )
    remove_below: float = key(
        0.05,
        "Share of all samples below which a cluster is removed (the paper's delta).",
        low=0.0,
        high=0.5,
    )
    merge: bool = key(False, "Merge clusters that mean the same once the federation has settled.")
    merge_tolerance: float = key(
        0.5,
        "Two clusters mean the same if the samples of each lose at most this many nats by using "
        "the other's model.",
        low=0.0,
    )
    settle_tolerance: float = key(
        0.02,
        "The federation has settled when the mixture weights move less than this in a round (total "
        "variation, mean over clients),",
        above=0.0,
        high=1.0,
    )
    settle_loss: float = key(0.02, "the clients' mean loss changes by less than this,", above=0.0)
    settle_rounds: int = key(3, "for this many rounds in a row, after any annealing.", low=1)

    def removes(self) -> bool:
        """Whether clusters may be removed."""
        return self.adaptive

    def needs_losses(self) -> bool:
        """Whether clients must send a loss table."""
        return self.merge


@dataclass(frozen=True)
class Adaptation:
    """Which clusters were removed or merged in a round, and what noise left undecided."""

    removed: tuple[int, ...] = ()
    merged: tuple[tuple[int, int], ...] = ()  # (merged cluster, cluster it became part of)
    undecided: str = ""


@dataclass(frozen=True)
class Movement:
    """How much the clients' mixture weights moved in a round.

    Without noise it is the mean total variation. With noise it is a root mean square, and
    ``resolution`` is the smallest movement that can be distinguished from noise.
    """

    moved: float
    resolution: float = 0.0

    @property
    def blind(self) -> bool:
        """Whether noise hides even large movements."""
        return self.resolution > BLIND

    def rests(self, tolerance: float) -> bool:
        """Whether the weights moved less than the tolerance, or less than can be seen."""
        return not self.blind and self.moved < max(tolerance, self.resolution)


def movement(before: ServerState, after: ServerState, names: list[str]) -> Movement:
    """How much the weights of these clients moved in a round."""
    records = [after.clients[name] for name in names]
    previous = [before.clients.get(name) for name in names]
    samples = np.array([record.samples for record in records], dtype=np.float64)
    if any(r.noise > 0 for r in (*records, *(p for p in previous if p is not None))):
        return _noisy_movement(records, previous, samples)
    uniform = np.full(len(after.clusters), 1.0 / len(after.clusters))
    new = np.array([record.mixture_weights() for record in records])
    known = [None if record is None else record.mixture_weights() for record in previous]
    old = np.array([uniform if weights is None else weights for weights in known])
    return Movement(em.mean_movement(old, new, samples))


def _noisy_movement(
    records: list[ClientRecord], previous: list[ClientRecord | None], samples: Floats
) -> Movement:
    new = np.array([_masses(record) for record in records])
    # Clipping makes the counts smaller than the number of samples; their sum says by how much.
    sizes = samples * max(new.sum(), 1.0) / samples.sum()
    old, variance = np.empty_like(new), np.empty(len(new))
    for i, (record, earlier) in enumerate(zip(records, previous, strict=True)):
        classes = 0 if record.label_counts is None else record.label_counts.shape[1]
        known = earlier is not None and earlier.label_counts is not None
        old[i] = _masses(earlier) if earlier and known else sizes[i] / new.shape[1]
        variance[i] = classes * (record.noise**2 + (earlier.noise**2 if earlier and known else 0))
    squared, error = em.squared_movement(old, new, sizes, variance)
    return Movement(math.sqrt(max(squared, 0.0)), math.sqrt(SURE * error))


def _masses(record: ClientRecord) -> Floats:
    """Samples of each cluster at one client, (K,), as it reported them."""
    return np.zeros(0) if record.label_counts is None else record.label_counts.sum(axis=1)


def learning(before: ServerState, after: ServerState, names: list[str]) -> float:
    """How much the mean loss of these clients changed since they last reported.

    Infinite if none of them reported before.
    """
    pairs = [
        (record.samples, record.loss - previous.loss)
        for name in names
        if (record := after.clients[name]).loss is not None
        and (previous := before.clients.get(name)) is not None
        and previous.loss is not None
    ]
    if not pairs:
        return math.inf
    samples, changes = zip(*pairs, strict=True)
    return abs(float(np.average(changes, weights=samples)))


def count_quiet_rounds(
    state: ServerState, moved: Movement, learnt: float, annealed: bool, settings: AdaptiveSettings
) -> ServerState:
    """Note whether this round was quiet.

    Weights that do not move are not enough: models that start close to each other learn together at
    first, and weights do not move although nothing has separated yet.
    """
    still = moved.rests(settings.settle_tolerance) and learnt < settings.settle_loss
    quiet = still and not annealed
    return replace(state, quiet_rounds=state.quiet_rounds + 1 if quiet else 0)


def adapt(
    state: ServerState, moved: Movement, settings: AdaptiveSettings, uneven: bool = False
) -> tuple[ServerState, Adaptation]:
    """Check and remove (the paper's Algorithm 2), then merge, once the weights have settled.

    If noise on the statistics hides the answer, nothing is removed or merged, and the result says
    what is undecided. ``uneven`` says that clipping may have scaled noisy counts differently from
    client to client, so that they do not tell a cluster's share.
    """
    if not (settings.adaptive or settings.merge):
        return state, Adaptation()
    if moved.blind:
        return state, Adaptation(undecided="whether the clients have settled")
    if state.quiet_rounds < settings.settle_rounds:
        return state, Adaptation()
    removed: tuple[int, ...] = ()
    merged: list[tuple[int, int]] = []
    undecided: list[str] = []
    if settings.adaptive and uneven and state.count_error() > 0:
        undecided.append("the shares of the clusters, because statistics are clipped")
    elif settings.adaptive:
        state, removed = remove_small(state, settings.remove_below)
        undecided += _undecided_shares(state, settings.remove_below)
    if settings.merge:
        while pair := same_pair(state, settings.merge_tolerance):
            state = merge_pair(state, *pair)
            merged.append(pair)
        undecided += _undecided_pairs(state, settings.merge_tolerance)
    return state, Adaptation(removed, tuple(merged), "; ".join(undecided))


def remove_small(state: ServerState, share: float) -> tuple[ServerState, tuple[int, ...]]:
    """Remove the clusters whose share of all samples is below ``share``; the largest stays.

    With noise, the share must be below it by two standard errors.
    """
    shares = state.shares()
    small = shares + SURE * state.share_error() < share
    small[shares.argmax()] = False
    if not small.any():
        return state, ()
    kept = tuple(c for c, gone in zip(state.clusters, small, strict=True) if not gone)
    removed = tuple(c for c in state.clusters if c not in kept)
    return state.moved_to(Membership(kept, state.membership.merged)), removed


def _undecided_shares(state: ServerState, share: float) -> list[str]:
    shares, error = state.shares(), SURE * state.share_error()
    unsure = (shares - error < share) & (shares + error >= share) & (error > 0)
    unsure[shares.argmax()] = False
    found = [c for c, open_ in zip(state.clusters, unsure, strict=True) if open_]
    return [f"whether {_named(found)} {'have' if len(found) > 1 else 'has'} less than "
            f"{share:.0%} of the samples"] if found else []  # fmt: skip


def cross_losses(state: ServerState) -> Floats:
    """Mean loss of model b on the samples that belong to cluster a, (K, K)."""
    sums, masses = _cross_sums(state)
    if sums.ndim == 0:
        return np.full((len(state.clusters),) * 2, np.inf)
    return np.asarray(sums / np.maximum(masses, 1e-9)[:, None], dtype=np.float64)


def _cross_sums(state: ServerState) -> tuple[Floats, Floats]:
    """Sums over the clients that sent a loss table: the tables, (K, K), and the masses, (K,)."""
    records = [r for r in state.reported().values() if r.cross_losses is not None]
    tables = sum((r.cross_losses for r in records if r.cross_losses is not None), np.zeros(()))
    return tables, sum((_masses(r) for r in records), np.zeros(()))


def table_unit(clusters: int, classes: int) -> float:
    """The unit of a noisy loss table.

    A difference of two losses is cut to twice the loss of a guess, ``2 log(classes)``: how wrong a
    model is beyond that does not matter. Divided by this unit, the table has a norm of at most the
    client's number of samples, like the counts.
    """
    return loss_bound(classes) * math.sqrt(max(clusters - 1, 1))


def loss_bound(classes: int) -> float:
    """The largest difference of two losses that a noisy loss table shows, in nats."""
    return 2.0 * math.log(max(classes, 2))


def _cross_error(state: ServerState) -> Floats:
    """Standard error of each row's differences in ``cross_losses``, as a column, (K, 1)."""
    records = [r for r in state.reported().values() if r.cross_losses is not None]
    noise = math.sqrt(sum(record.noise**2 for record in records))
    clusters = len(state.clusters)
    if noise == 0 or not records:
        return np.zeros((clusters, 1))
    counts = records[0].label_counts
    classes = 2 if counts is None else counts.shape[1]
    masses = _cross_sums(state)[1]
    hidden = masses <= SURE * noise * math.sqrt(classes)
    error = noise * table_unit(clusters, classes) / np.where(hidden, 1.0, masses)
    return np.where(hidden, np.inf, error)[:, None]


def _excess_bounds(state: ServerState) -> tuple[Floats, Floats]:
    """Lower and upper bound of what the worse served of two clusters loses, both (K, K)."""
    with np.errstate(invalid="ignore"):
        excess = em.mutual_excess(cross_losses(state))
    error = SURE * _cross_error(state)
    error = np.maximum(error, error.T)
    return excess - error, excess + error


def same_pair(state: ServerState, tolerance: float) -> tuple[int, int] | None:
    """Two clusters that mean the same beyond doubt: (the one to merge, the one to keep).

    The model that serves the samples of both better is kept as it is. Averaging would require
    aligned networks, and networks from different initial values are not aligned.
    """
    if len(state.clusters) < 2:
        return None
    pair = em.smallest_pair(_excess_bounds(state)[1], tolerance)
    if pair is None:
        return None
    masses = state.shares()[list(pair)]
    first_serves, second_serves = masses @ cross_losses(state)[np.ix_(pair, pair)]
    first, second = (state.clusters[position] for position in pair)
    return (second, first) if first_serves <= second_serves else (first, second)


def _undecided_pairs(state: ServerState, tolerance: float) -> list[str]:
    if len(state.clusters) < 2 or not _cross_error(state).any():
        return []
    least, most = _excess_bounds(state)
    unsure = np.triu((least <= tolerance) & (most > tolerance), k=1)
    involved = np.flatnonzero(unsure.any(axis=0) | unsure.any(axis=1))
    if not len(involved):
        return []
    return [f"which of {_named([state.clusters[k] for k in involved])} mean the same"]


def _named(clusters: list[int]) -> str:
    names = [str(cluster) for cluster in clusters]
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return f"cluster{'s' * (len(names) > 1)} {listed}"


def merge_pair(state: ServerState, gone: int, stays: int) -> ServerState:
    """Merge two clusters: weights and counts are added."""
    kept = tuple(c for c in state.clusters if c != gone)
    return state.moved_to(Membership(kept, {**state.membership.merged, gone: stays}))
