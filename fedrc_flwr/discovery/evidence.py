"""Evidence that clients mean the same by their labels, in nats.

A client's mean of label y is compared with the prototypes of somebody else: another client's means,
or those of a group. If both mean the same, the mean is where the other's prototype of y is. If not,
y may stand for any of the C contents, those of the other's labels among them:

    evidence(y) = log(ratio(y, y) / ((sum over the other's labels x of ratio(y, x) + C - k) / C))

with the k labels that the other holds, and a ratio of 1 for labels that it does not hold. A mean
that is close to a prototype of another label contradicts; one that is far from all the other's
prototypes says little. The evidence of a client is the sum over its labels.

Different concepts may agree on most labels: a hospital that swaps two codes of ten means the same
by the other eight. If they agree on a share r of their labels, the evidence of a label is

    evidence(y) - log(r * exp(evidence(y)) + 1 - r)

A label that agrees then says less, and one that contradicts decides.
"""

from __future__ import annotations

import numpy as np

from fedrc_flwr.discovery.distances import Distances
from fedrc_flwr.discovery.fingerprint import Flags
from fedrc_flwr.discovery.space import Means
from fedrc_flwr.em import Floats, Labels

#: Probability that a label's mean is not where its meaning is: at least this, and this over the
#: number of samples for means of few samples.
ERROR, ERROR_OF_ONE_SAMPLE = 0.05, 0.3
#: The same for the prototype of a group: the error of one client over the number of members, and at
#: least this.
ERROR_OF_GROUP = 0.02
#: Candidates for the share of labels on which different concepts agree.
AGREEMENTS = (0.0, 0.3, 0.6, 0.8, 0.9)
#: Numbers in a block of the table of ratios; a block fits the processor's cache.
BLOCK = 1 << 17


def likelihoods(
    means: Means, distances: Distances, agreements: tuple[float, ...] = AGREEMENTS
) -> tuple[Floats, Floats]:
    """How likely the means of two clients are, in nats beyond those of unrelated labels.

    Every client must hold a label.

    Returns
    -------
    (n, n), if both mean the same, symmetric with a diagonal of zeros; and (R, n, n), if they have
    different concepts, for each candidate for the share of labels on which these agree
    """
    same, *different = _directed(means, distances, _error(means), agreements)
    return same, np.stack(different)


def between_groups(means: Means, groups: Labels, distances: Distances, agreement: float) -> Floats:
    """The evidence that two groups mean the same, (K, K), symmetric with a diagonal of zeros.

    Parameters
    ----------
    groups : (n,), the group of each client, from 0 to K - 1 with none missing
    agreement : the share of labels on which different concepts agree
    """
    precision = _precision(means, distances)
    member = np.eye(groups.max() + 1)[groups]
    total = np.einsum("ik,iy->ky", member, precision)
    sums = np.einsum("ik,iy,iyq->kyq", member, precision, means.points)
    prototypes = Means(sums / np.where(total > 0, total, 1.0)[..., None], total)
    error = np.maximum(ERROR_OF_GROUP, ERROR / member.sum(axis=0))
    same, different = _directed(
        prototypes, distances, np.repeat(error[:, None], total.shape[1], axis=1), (agreement,)
    )
    return same - different


def for_group(
    means: Means, member: Flags, distances: Distances, agreement: float
) -> tuple[Floats, Floats]:
    """How likely each client's means are beside those of a group's members, (n,) each.

    The first is for a client that means the same, the second for one with a different concept. A
    member is compared with the other members. Both are zero if there are none.

    Parameters
    ----------
    member : (n,), who belongs to the group
    agreement : the share of labels on which different concepts agree
    """
    quotient = _beside(means, means, member, distances)
    return np.log(quotient).sum(axis=1), _different(quotient, agreement).sum(axis=1)


def label_evidence(some: Means, means: Means, member: Flags, distances: Distances) -> Floats:
    """The evidence of each label that a client means the same as a group, (n, C).

    It is zero for labels that a client does not hold.

    Parameters
    ----------
    some : means of the same clients from some of their samples
    means : from which the group's prototypes are made, without the client's own
    member : (n,), who belongs to the group
    """
    return np.asarray(np.log(_beside(some, means, member, distances)), dtype=np.float64)


def _beside(some: Means, means: Means, member: Flags, distances: Distances) -> Floats:
    """exp(evidence) of each client's labels beside a group's prototypes, (n, C).

    It is 1 where a client does not hold a label, or nobody else in the group holds any.
    """
    clients, labels = np.nonzero(some.held)
    own = _precision(means, distances) * member[:, None]
    holders = (means.held & member[:, None]).sum(axis=0) - (means.held & member[:, None])
    total = np.where(holders > 0, own.sum(axis=0) - own, 1.0)
    sums = np.einsum("iy,iyq->yq", own, means.points) - own[..., None] * means.points
    prototypes = np.where(holders[..., None] > 0, sums / total[..., None], 0.0)
    squared = _squared_distances(some.points, prototypes)[some.held]
    noise = some.noise[some.held][:, None] + (1.0 / total)[clients]
    compared = holders[clients] > 0
    ratio = np.where(compared, distances.ratio(squared, noise), 1.0)
    found = _quotient(
        ratio[np.arange(len(ratio)), labels],
        ratio.sum(axis=1),
        _error(some)[some.held],
        ratio.shape[1],
    )
    quotient = np.ones(some.held.shape)
    quotient[some.held] = np.where(compared.any(axis=1), found, 1.0)
    return quotient


def _directed(
    means: Means, distances: Distances, error: Floats, agreements: tuple[float, ...]
) -> list[Floats]:
    """How likely each client's means are beside each client's prototypes, (n, n) each.

    First if both mean the same, then if different concepts agree on so many of the labels. The two
    directions of a pair are averaged.
    """
    clients, labels = np.nonzero(means.held)
    points, noise = means.points[means.held], means.noise[means.held]
    norms, error = np.square(points).sum(axis=1), error[means.held]
    starts = np.flatnonzero(np.diff(clients, prepend=-1))
    # Column of each client's mean of a label; one past the end, where the ratio is 1, if missing.
    column = np.full(means.held.shape, len(points))
    column[means.held] = np.arange(len(points))
    missing = means.held.shape[1] - means.held.sum(axis=1)
    tables = [np.zeros((len(starts), len(starts))) for _ in range(1 + len(agreements))]
    rows = max(BLOCK // len(points), 1)
    for first in range(0, len(points), rows):
        block = slice(first, first + rows)
        squared = norms[block, None] + norms - 2.0 * points[block] @ points.T
        ratio = distances.ratio(squared, noise[block, None] + noise)
        total = np.add.reduceat(ratio, starts, axis=1) + missing
        ratio = np.column_stack([ratio, np.ones(len(ratio))])
        own = np.take_along_axis(ratio, column[:, labels[block]].T, axis=1)
        quotient = _quotient(own, total, error[block, None], means.held.shape[1])
        np.add.at(tables[0], clients[block], np.log(quotient))
        for table, agreement in zip(tables[1:], agreements, strict=True):
            if agreement > 0:
                np.add.at(table, clients[block], _different(quotient, agreement))
    return [_symmetric(table) for table in tables]


def _quotient(own: Floats, total: Floats, error: Floats, classes: int) -> Floats:
    """exp(evidence) of labels, from the ratios with their own prototype and with all C of them."""
    return np.asarray((1.0 - error) * own * classes / total + error, dtype=np.float64)


def _different(quotient: Floats, agreement: float) -> Floats:
    """The log likelihood of labels of different concepts that agree on a share of them."""
    return np.asarray(np.log(agreement * quotient + (1.0 - agreement)), dtype=np.float64)


def _error(means: Means) -> Floats:
    return np.minimum(np.maximum(ERROR, ERROR_OF_ONE_SAMPLE * means.noise), 1.0)


def _precision(means: Means, distances: Distances) -> Floats:
    """The weight of a client's mean in a prototype, (n, C); zero where there is none."""
    return np.asarray(1.0 / (distances.spread + means.noise), dtype=np.float64)


def _squared_distances(first: Floats, second: Floats) -> Floats:
    """Between the labels of two lists of means, client by client: (n, C, q) twice to (n, C, C)."""
    cross = np.einsum("iyq,ixq->iyx", first, second)
    norms = np.square(first).sum(axis=2)[:, :, None] + np.square(second).sum(axis=2)[:, None, :]
    return np.asarray(norms - 2.0 * cross, dtype=np.float64)


def _symmetric(directed: Floats) -> Floats:
    symmetric = 0.5 * (directed + directed.T)
    np.fill_diagonal(symmetric, 0.0)
    return symmetric
