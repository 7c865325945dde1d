"""Which clusters the groups of a new grouping continue."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrc_flwr.em import Labels


@dataclass(frozen=True)
class Succession:
    """How groups follow on clusters.

    Parameters
    ----------
    clusters : the id of each group's cluster
    origins : for each group, the earlier cluster whose model it starts from: its own, or the one
        that most of its members come from
    heirs : for each cluster that no group continues, the cluster that most of its members are in
    """

    clusters: tuple[int, ...]
    origins: tuple[int, ...]
    heirs: dict[int, int]


def succession(groups: Labels, before: Labels, clusters: tuple[int, ...], new: int) -> Succession:
    """Let each group continue the cluster with which it shares the most clients.

    Parameters
    ----------
    groups : (n,), the new group of each client; -1 for none
    before : (n,), the id of each client's cluster so far; any other number for none
    clusters : the ids of all clusters so far
    new : the smallest id that was never used
    """
    from scipy.optimize import linear_sum_assignment  # slow to load

    count = int(groups.max()) + 1
    known = (groups >= 0) & np.isin(before, clusters)
    shared = np.zeros((count, len(clusters)))
    columns = np.searchsorted(clusters, before[known])
    np.add.at(shared, (groups[known], columns), 1.0)
    ids = np.full(count, -1)
    for group, column in zip(*linear_sum_assignment(-shared), strict=True):
        if shared[group, column] > 0:
            ids[group] = clusters[column]
    fresh = np.flatnonzero(ids < 0)
    ids[fresh] = new + np.arange(len(fresh))
    gone = [c for c in clusters if c not in ids]
    return Succession(
        clusters=tuple(int(c) for c in ids),
        origins=tuple(
            int(c) if c in clusters else clusters[int(shared[group].argmax())]
            for group, c in enumerate(ids)
        ),
        heirs={c: int(ids[shared[:, clusters.index(c)].argmax()]) for c in gone},
    )
