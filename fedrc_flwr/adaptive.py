"""Finding the number of concepts: removing clusters that nobody needs, merging those that agree.

Both wait until the federation has settled: until the clients' mixture weights and their loss have
moved less than a tolerance for some rounds in a row, after any annealing has ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fedrc_flwr import em
from fedrc_flwr.config import RunConfig
from fedrc_flwr.em import Floats
from fedrc_flwr.state import Membership, ServerState


@dataclass(frozen=True)
class Adaptation:
    """What became of the clusters in one round."""

    removed: tuple[int, ...] = ()
    merged: tuple[tuple[int, int], ...] = ()  # (cluster that went, cluster that took it over)


def noise_movement(noise: float, mass: float, clusters: int, classes: int) -> float:
    """The movement that noise alone makes the server see between two reports of a client.

    A cluster's row of counts carries noise of ``noise * sqrt(classes)``; the difference of two
    reports sqrt(2) times that; the mean absolute value of a Gaussian is sqrt(2 / pi) of it.
    ``mass`` is the sum of the counts as they were sent: clipping makes them smaller than the
    client's number of samples.
    """
    per_row = noise * math.sqrt(classes) / max(mass, 1.0)
    return 0.5 * clusters * per_row * math.sqrt(2.0) * math.sqrt(2.0 / math.pi)


def movement(before: ServerState, after: ServerState, names: list[str]) -> tuple[float, float]:
    """How much the weights of these clients moved in a round, and how much of it noise explains."""
    uniform = np.full(len(after.clusters), 1.0 / len(after.clusters))
    old, new, samples, expected = [], [], [], []
    for name in names:
        record = after.clients[name]
        previous = before.clients[name].mixture_weights() if name in before.clients else None
        old.append(uniform if previous is None else previous)
        new.append(record.mixture_weights())
        samples.append(record.samples)
        counts = record.label_counts
        if counts is not None:
            mass, classes = float(counts.sum()), counts.shape[1]
            expected.append(noise_movement(record.noise, mass, len(uniform), classes))
    weights = np.array(samples, dtype=np.float64)
    moved = em.mean_movement(np.array(old), np.array(new), weights)
    return moved, float(np.average(expected, weights=weights))


def learning(before: ServerState, after: ServerState, names: list[str]) -> float:
    """How much the mean loss of these clients changed since they last reported.

    Infinite where none of them reported before: nothing is known then.
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
    state: ServerState, moved: float, learnt: float, annealed: bool, config: RunConfig
) -> ServerState:
    """Note whether this round was quiet.

    Weights that rest are not enough. Models that start alike learn together at first, and nobody's
    weights move; they have yet to part.
    """
    still = moved < config.settle_tolerance and learnt < config.settle_loss
    quiet = still and not annealed
    return replace(state, quiet_rounds=state.quiet_rounds + 1 if quiet else 0)


def adapt(state: ServerState, config: RunConfig) -> tuple[ServerState, Adaptation]:
    """Check and remove (the paper's Algorithm 2), then merge, once the weights have settled."""
    if state.quiet_rounds < config.settle_rounds:
        return state, Adaptation()
    removed: tuple[int, ...] = ()
    merged: list[tuple[int, int]] = []
    if config.adaptive:
        state, removed = remove_small(state, config.remove_below)
    if config.merge:
        while pair := same_pair(state, config.merge_tolerance):
            state = merge_pair(state, *pair)
            merged.append(pair)
    return state, Adaptation(removed, tuple(merged))


def remove_small(state: ServerState, share: float) -> tuple[ServerState, tuple[int, ...]]:
    """Remove the clusters whose share of all samples is below ``share``; the largest stays."""
    shares = state.shares()
    small = (shares < share) & (np.arange(len(shares)) != shares.argmax())
    if not small.any():
        return state, ()
    kept = tuple(c for c, gone in zip(state.clusters, small, strict=True) if not gone)
    removed = tuple(c for c in state.clusters if c not in kept)
    return state.moved_to(Membership(kept, state.membership.merged)), removed


def cross_losses(state: ServerState) -> Floats:
    """Mean loss of model b on the samples that belong to cluster a, (K, K)."""
    records = state.reported().values()
    sums = sum((r.cross_losses for r in records if r.cross_losses is not None), start=np.zeros(()))
    masses = sum((r.label_counts.sum(axis=1) for r in records if r.label_counts is not None
                  and r.cross_losses is not None), start=np.zeros(()))  # fmt: skip
    if sums.ndim == 0:
        return np.full((len(state.clusters),) * 2, np.inf)
    return np.asarray(sums / np.maximum(masses, 1e-9)[:, None], dtype=np.float64)


def same_pair(state: ServerState, tolerance: float) -> tuple[int, int] | None:
    """Two clusters that mean the same: (the one to go, the one to stay).

    The model that serves the samples of both better stays as it is. Averaging the two parameter
    vectors would need them to be aligned, and two networks from different initial values are not.
    """
    if len(state.clusters) < 2:
        return None
    table = cross_losses(state)
    pair = em.find_same(table, tolerance)
    if pair is None:
        return None
    masses = state.shares()[list(pair)]
    first_serves, second_serves = masses @ table[np.ix_(pair, pair)]
    first, second = (state.clusters[position] for position in pair)
    return (second, first) if first_serves <= second_serves else (first, second)


def merge_pair(state: ServerState, gone: int, stays: int) -> ServerState:
    """Merge two clusters: weights and counts are added."""
    kept = tuple(c for c in state.clusters if c != gone)
    return state.moved_to(Membership(kept, {**state.membership.merged, gone: stays}))
