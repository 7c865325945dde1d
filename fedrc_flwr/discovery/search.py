"""The grouping with the most evidence within its groups (correlation clustering).

The number of groups is not given: two clients are together if that adds evidence.
"""

from __future__ import annotations

import numpy as np

from fedrc_flwr.em import Floats, Labels

#: Random starts: this many, and more for few clients, where they cost nothing.
RESTARTS, CLIENTS_TO_START = 20, 600
#: Random starts have up to this many groups.
MOST_STARTING_GROUPS = 8
LEAST_GAIN = 1e-9


def search_all(same: Floats, different: Floats) -> tuple[Labels, int]:
    """The likeliest grouping over several hypotheses about clients that are not together, (n,).

    Parameters
    ----------
    same : (n, n), the log likelihood of each pair of clients if they are together
    different : (R, n, n), if they are not, under each of R hypotheses

    Returns
    -------
    the grouping, and the hypothesis under which it is likeliest
    """
    best, found = 0, np.zeros(len(same), dtype=np.int64)
    most = -np.inf
    for number, apart in enumerate(different):
        groups = search(same - apart)
        likelihood = within(same - apart, groups) + float(apart.sum()) / 2.0
        if likelihood > most + LEAST_GAIN:
            best, found, most = number, groups, likelihood
    return found, best


def search(evidence: Floats) -> Labels:
    """The best grouping that local search finds from several starts, (n,).

    The result does not depend on the order of the clients: they are sorted by their total evidence
    first.

    Parameters
    ----------
    evidence : (n, n), symmetric with a diagonal of zeros
    """
    count = len(evidence)
    order = np.argsort(evidence.sum(axis=1), kind="stable")
    sorted_evidence = evidence[np.ix_(order, order)]
    random = np.random.default_rng(0)
    starts = [np.arange(count), np.zeros(count, dtype=np.int64)]
    starts += [
        random.integers(0, random.integers(2, MOST_STARTING_GROUPS + 1), count)
        for _ in range(max(RESTARTS, CLIENTS_TO_START // max(count, 1)))
    ]
    found = [_climb(sorted_evidence, start) for start in starts]
    best = max(found, key=lambda groups: within(sorted_evidence, groups))
    groups = np.empty(count, dtype=np.int64)
    groups[order] = best
    return groups


def within(evidence: Floats, groups: Labels) -> float:
    """The sum of the evidence over all pairs of clients in the same group."""
    return float(evidence[groups[:, None] == groups].sum()) / 2.0


def _climb(evidence: Floats, groups: Labels) -> Labels:
    """Move clients and merge groups as long as that adds evidence."""
    while True:
        groups = _move(evidence, compact(groups))
        member = np.eye(groups.max() + 1)[groups]
        gains = member.T @ evidence @ member
        np.fill_diagonal(gains, -np.inf)
        if gains.max() <= LEAST_GAIN:
            return groups
        first, second = np.unravel_index(int(gains.argmax()), gains.shape)
        groups = np.where(groups == second, first, groups)


def _move(evidence: Floats, groups: Labels) -> Labels:
    """Move one client at a time, the one that gains most, to another group or one of its own."""
    groups, rows = groups.copy(), np.arange(len(groups))
    sums = evidence @ np.eye(groups.max() + 2)[groups]  # the last group is empty
    sizes = np.bincount(groups, minlength=sums.shape[1])
    while True:
        gains = sums - sums[rows, groups][:, None]
        client, target = np.unravel_index(int(gains.argmax()), gains.shape)
        if gains[client, target] <= LEAST_GAIN:
            return compact(groups)
        source, groups[client] = groups[client], target
        sums[:, source] -= evidence[:, client]
        sums[:, target] += evidence[:, client]
        sizes[source] -= 1
        sizes[target] += 1
        if sizes.all():
            sums = np.column_stack([sums, np.zeros(len(sums))])
            sizes = np.append(sizes, 0)


def compact(groups: Labels) -> Labels:
    """The same groups, numbered from 0 without gaps."""
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)
