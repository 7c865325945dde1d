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
#: A group with no more than this share of the clients may be a handful that fit nowhere: each of
#: them counts as alone unless the others support it by so many nats.
HANDFUL, SUPPORTED = 0.03, 3.0
LEAST_GAIN = 1e-6


def refine(means: Means, groups: Labels, distances: Distances, agreement: float) -> Labels:
    """Move clients and join groups until nothing is gained by it, (n,), numbered from 0.

    Parameters
    ----------
    groups : (n,), where the search by pairs put the clients
    agreement : the share of labels on which different concepts agree
    """
    groups = compact(groups)
    same, different = likelihoods_for_groups(means, groups, distances, agreement)
    # Each client is judged without itself, so that two could take turns for ever.
    for _ in range(2 * len(groups)):
        movers, target = _best_move(belonging(means, groups, same, different), groups)
        if not movers.any():
            movers, target = _best_join(means, groups, distances, agreement)
        if not movers.any():
            break
        source = int(groups[movers][0])
        groups = np.where(movers, target, groups)
        for changed in (source, target):
            same[:, changed], different[:, changed] = for_group(
                means, groups == changed, distances, agreement
            )
        if not (groups == source).any():
            same, different = (np.delete(table, source, axis=1) for table in (same, different))
            groups = compact(groups)
    return groups


def likelihoods_for_groups(
    means: Means, groups: Labels, distances: Distances, agreement: float
) -> tuple[Floats, Floats]:
    """How likely each client is in each group, without the client itself, (n, K), and outside."""
    columns = [
        for_group(means, groups == group, distances, agreement) for group in range(groups.max() + 1)
    ]
    return np.column_stack([c[0] for c in columns]), np.column_stack([c[1] for c in columns])


def belonging(means: Means, groups: Labels, same: Floats, different: Floats) -> Floats:
    """The evidence that a client belongs to each group, (n, K).

    For a client that is alone in its group it is how little the other groups must support it. The
    same goes for a handful of clients that do not support one another: they often hold labels that
    the others of the handful do not, which would otherwise speak for them more than labels that
    fit badly in a large group.
    """
    members = groups[:, None] == np.arange(same.shape[1])
    sizes = members.sum(axis=0)
    few = sizes <= max(1.0, HANDFUL * np.count_nonzero(groups >= 0))
    single = members & (sizes == 1)
    if same.shape[1] == 1:
        return np.where(single, alone_level(means)[:, None], same)
    others = np.where(members, -np.inf, same)
    nearest = others.argmax(axis=1)
    outside = (alone_level(means) + different[np.arange(len(groups)), nearest])[:, None]
    unsupported = few & (same < SUPPORTED)
    alone = single | (members & unsupported)
    joining = ~members & unsupported
    return np.where(alone, outside, np.where(joining, np.minimum(same, outside), same))


def alone_level(means: Means) -> Floats:
    """The evidence below which a client does not belong to a group, (n,)."""
    labels = means.held.sum(axis=1)
    return np.asarray(-np.maximum(CONTRADICTED, labels), dtype=np.float64)


def _best_move(evidence: Floats, groups: Labels) -> tuple[Flags, int]:
    """The client that gains most by another group, and that group."""
    gains = evidence - evidence[np.arange(len(groups)), groups][:, None]
    client, target = np.unravel_index(int(gains.argmax()), gains.shape)
    gained = bool(gains[client, target] > LEAST_GAIN)
    return (np.arange(len(groups)) == client) & gained, int(target)


def _best_join(
    means: Means, groups: Labels, distances: Distances, agreement: float
) -> tuple[Flags, int]:
    """The smaller of two groups that contradict each other too little to be two concepts."""
    sizes = np.bincount(groups)
    evidence = between_groups(means, groups, distances, agreement)
    evidence += np.log(sizes / sizes[:, None])
    np.fill_diagonal(evidence, -np.inf)
    evidence[sizes[:, None] > sizes] = -np.inf
    source, target = np.unravel_index(int(evidence.argmax()), evidence.shape)
    one_concept = bool(evidence[source, target] > -TWO_CONCEPTS)
    return (groups == source) & one_concept, int(target)
