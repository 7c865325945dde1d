"""From clients compared in pairs to clients compared with whole groups.

A pair of clients with few labels says little. The prototypes of a group are made of many clients,
and bring home those that the pairs left over.
"""

from __future__ import annotations

import numpy as np

from fedrc_flwr.discovery.distances import Distances
from fedrc_flwr.discovery.evidence import between_groups, for_group
from fedrc_flwr.discovery.fingerprint import Flags
from fedrc_flwr.discovery.search import compact
from fedrc_flwr.discovery.space import Means
from fedrc_flwr.em import Floats, Labels

#: A client is alone if every group is contradicted by this many nats, and by one for each of its
#: labels.
CONTRADICTED = 4.0
#: Groups are two concepts if they contradict each other by this many nats, and by the logarithm of
#: the ratio of their sizes: a client taken at random is that much likelier to be in the larger one.
TWO_CONCEPTS = 2.0
LEAST_GAIN = 1e-6


def refine(means: Means, groups: Labels, distances: Distances) -> Labels:
    """Move clients and join groups until nothing is gained by it, (n,), numbered from 0.

    Parameters
    ----------
    groups : (n,), where the search by pairs put the clients
    """
    groups = compact(groups)
    evidence = evidence_for_groups(means, groups, distances)
    # Each client is judged without itself, so that two could take turns for ever.
    for _ in range(2 * len(groups)):
        movers, target = _best_move(evidence, groups)
        if not movers.any():
            movers, target = _best_join(means, groups, distances)
        if not movers.any():
            break
        source = int(groups[movers][0])
        groups = np.where(movers, target, groups)
        for changed in (source, target):
            evidence[:, changed] = _for_group(means, groups == changed, distances)
        if not (groups == source).any():
            evidence, groups = np.delete(evidence, source, axis=1), compact(groups)
    return groups


def evidence_for_groups(means: Means, groups: Labels, distances: Distances) -> Floats:
    """The evidence that a client belongs to each group, without the client itself, (n, K).

    For the only member of a group it is how much the other groups must at least be contradicted.
    """
    return np.column_stack(
        [_for_group(means, groups == group, distances) for group in range(groups.max() + 1)]
    )


def alone_level(means: Means) -> Floats:
    """The evidence below which a client does not belong to a group, (n,)."""
    labels = means.held.sum(axis=1)
    return np.asarray(-np.maximum(CONTRADICTED, labels), dtype=np.float64)


def _for_group(means: Means, member: Flags, distances: Distances) -> Floats:
    evidence = for_group(means, member, distances)
    return np.where(member, alone_level(means), evidence) if member.sum() == 1 else evidence


def _best_move(evidence: Floats, groups: Labels) -> tuple[Flags, int]:
    """The client that gains most by another group, and that group."""
    gains = evidence - evidence[np.arange(len(groups)), groups][:, None]
    client, target = np.unravel_index(int(gains.argmax()), gains.shape)
    gained = bool(gains[client, target] > LEAST_GAIN)
    return (np.arange(len(groups)) == client) & gained, int(target)


def _best_join(means: Means, groups: Labels, distances: Distances) -> tuple[Flags, int]:
    """The smaller of two groups that contradict each other too little to be two concepts."""
    sizes = np.bincount(groups)
    evidence = between_groups(means, groups, distances) + np.log(sizes / sizes[:, None])
    np.fill_diagonal(evidence, -np.inf)
    evidence[sizes[:, None] > sizes] = -np.inf
    source, target = np.unravel_index(int(evidence.argmax()), evidence.shape)
    one_concept = bool(evidence[source, target] > -TWO_CONCEPTS)
    return (groups == source) & one_concept, int(target)
