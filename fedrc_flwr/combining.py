"""Robust averages: the trimmed mean and the median of a cluster's updates, number by number.

Both need all updates of a cluster at once, so the server holds a round's updates until its end:
memory grows with the number of clients that are asked in a round, as it does not with the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedrc_flwr.em import Floats
from fedrc_flwr.layout import Vector

BODY = -1  # key of the shared feature extractor among the clusters
#: Numbers that are sorted at once, for all clients together.
BLOCK = 1 << 20
#: From the updates of some clients to one, (P,).
Combine = Callable[[list[Vector]], Floats]


def trimmed_mean(updates: list[Vector], trim: float) -> Floats:
    """The mean of each number over clients without the largest and smallest values, (P,).

    Of n values, ``floor(trim * n)`` are left out at each end, and at least one is kept.
    """
    count = len(updates)
    cut = min(math.floor(trim * count), (count - 1) // 2)
    return _by_blocks(updates, lambda ordered: ordered[cut : count - cut].mean(axis=0))


def median(updates: list[Vector]) -> Floats:
    """The median of each number over clients, (P,)."""
    low, high = (len(updates) - 1) // 2, len(updates) // 2
    return _by_blocks(updates, lambda ordered: 0.5 * (ordered[low] + ordered[high]))


def _by_blocks(updates: list[Vector], combine: Callable[[Floats], Floats]) -> Floats:
    """What ``combine`` makes of the sorted values (n, p) of one block of numbers after another."""
    size, step = len(updates[0]), max(1, BLOCK // len(updates))
    combined = np.empty(size)
    for start in range(0, size, step):
        block = np.stack([update[start : start + step] for update in updates]).astype(np.float64)
        block.sort(axis=0)
        combined[start : start + step] = combine(block)
    return combined


@dataclass(frozen=True)
class Held:
    """One client's update of one cluster, until the round ends."""

    cluster: int
    update: Vector
    samples: float
    factor: float = 1.0


class HeldUpdates:
    """A round's updates, combined by a robust average among each cluster's members.

    Every member counts the same: its number of samples is only what it claims.
    """

    def __init__(self, absent_is_zero: bool, combine: Combine) -> None:
        self._absent_is_zero = absent_is_zero
        self._combine = combine
        self._held: list[Held] = []
        self.samples = 0.0

    def empty(self) -> HeldUpdates:
        """Another of the same kind, without updates."""
        return HeldUpdates(self._absent_is_zero, self._combine)

    def add(self, deltas: dict[int, Vector], samples: float, home: int | None = None) -> None:
        """Keep what one client sent for the cluster that is its ``home`` (None: for all)."""
        for cluster, delta in deltas.items():
            if home is None or cluster in (home, BODY):
                # A copy, since the round's messages must not be kept: see arrays.PackedArray.
                self._held.append(Held(cluster, delta.copy(), samples))
        self.samples += samples

    def take_in(self, other: HeldUpdates, factor: float) -> None:
        """Keep another's updates as well, scaled."""
        self._held += [Held(h.cluster, h.update, h.samples, h.factor * factor) for h in other._held]
        self.samples += other.samples

    def means(self) -> dict[int, Floats]:
        """The robust average of each cluster that anybody trained.

        FedRC's mean divides by the samples of all clients (see ``UpdateSums.means``), so the
        members' average is scaled by their share of the samples.
        """
        means = {}
        for cluster in sorted({held.cluster for held in self._held}):
            members = [held for held in self._held if held.cluster == cluster]
            mean = self._combine([h.update * np.float32(h.factor) for h in members])
            share = sum(h.samples for h in members) / self.samples if self._absent_is_zero else 1.0
            means[cluster] = share * mean
        return means
