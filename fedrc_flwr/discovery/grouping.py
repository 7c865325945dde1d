"""Which clients share a concept, how many concepts there are, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrc_flwr.discovery.distances import Distances, contrast, fit, usual
from fedrc_flwr.discovery.evidence import AGREEMENTS, likelihoods
from fedrc_flwr.discovery.fingerprint import Flags
from fedrc_flwr.discovery.mixture import shares_of_concepts
from fedrc_flwr.discovery.refinement import (
    alone_level,
    belonging,
    likelihoods_for_groups,
    refine,
)
from fedrc_flwr.discovery.search import search_all
from fedrc_flwr.discovery.space import (
    Means,
    compare_in_space,
    counts_of,
    degrees_of_freedom,
)
from fedrc_flwr.em import Floats, Labels
from fedrc_flwr.errors import DivergedError
from fedrc_flwr.words import counted

#: How much different meanings must contradict each other, in nats a label, for finding no
#: contradiction to mean anything.
LEAST_CONTRAST = 0.5
#: A client fits more than one group if its likeliest has less weight than this.
SURE = 0.9
#: The largest share of clients that fit more than one group, or contradict their own, with which a
#: grouping is established.
MOST_UNSURE = 0.25


@dataclass(frozen=True)
class Grouping:
    """The concepts that were found.

    Parameters
    ----------
    groups : (n,), from 0, the largest group first; -1 for a client without samples
    weights : (n, K), how sure it is that a client belongs to a group, or the shares of the groups
        in its samples if it holds several concepts; rows sum to one, and are even for a client
        without samples
    several : (n,), the clients that hold several concepts
    evidence : (n, n), that two clients mean the same, in nats
    alone : (n,), the clients that contradict all others
    agreement : the share of labels on which different concepts agree
    established : whether the groups can be relied on
    sentence : what was found, or why nothing could be
    """

    groups: Labels
    weights: Floats
    several: Flags
    evidence: Floats
    alone: Flags
    agreement: float
    established: bool
    sentence: str


def find(fingerprints: Floats, scatter: Floats) -> Grouping:
    """Group the clients by what they mean by their labels.

    Parameters
    ----------
    fingerprints : (n, 2, C, 1 + D), see ``fingerprint.take``
    scatter : (D, D), the sum over these clients of their scatter within labels
    """
    counts = _checked(fingerprints, scatter)
    present: Flags = np.asarray(counts.any(axis=1))
    if present.sum() == 1:
        return _together(present, True, "nothing to part: there is only one client")
    # A client that shares no label with anybody must not change anything for the others.
    sharing = ((counts > 0) & ((counts > 0).sum(axis=0) > 1)).any(axis=1)
    fitted = _fit(fingerprints, scatter, sharing)
    if isinstance(fitted, str):
        return _together(present, False, f"undecided: {fitted}")
    means, apart, distances = fitted
    same, different = likelihoods(means.of(present), distances)
    compared = sharing[present]
    pairs = np.ix_(compared, compared)
    groups = np.full(len(counts), -1)
    groups[sharing], chosen = search_all(same[pairs], different[:, compared][:, :, compared])
    agreement = AGREEMENTS[chosen]
    groups[sharing] = refine(means.of(sharing), groups[sharing], distances, agreement)
    evidence = np.zeros((len(counts), len(counts)))
    evidence[np.ix_(present, present)] = same - different[chosen]
    weights, own = _weights(means, groups, distances, agreement)
    several, shares = shares_of_concepts(means, apart, groups, distances)
    groups = np.where(several, shares.argmax(axis=1), groups)
    weights = np.where(several[:, None], shares, weights)
    groups, weights = _by_size(*_settle(groups, weights, present))
    compared_means = means.of(sharing)
    doubt = ""
    if contrast(compared_means.of(usual(compared_means)), distances) < LEAST_CONTRAST:
        noisy = _noisy(fingerprints, scatter)
        doubt = f"the features{' with noise on them' * noisy} hardly tell labels apart"
    return _judged(groups, weights, several, evidence, own, agreement, doubt)


def place(
    fingerprints: Floats, scatter: Floats, groups: Labels, agreement: float
) -> tuple[Floats, Flags]:
    """Weights for clients that joined later, (n, K), and who holds several concepts, (n,).

    Nobody else moves. A row of zeros means that the client contradicts all groups. A client without
    samples gets equal weights. The rows of the clients that have a group say how sure that is, as
    in ``find``.

    Parameters
    ----------
    fingerprints : (n, 2, C, 1 + D)
    scatter : (D, D), the sum over these clients of their scatter within labels
    groups : (n,), from 0 to K - 1; -1 for the clients that are to be placed
    agreement : of the grouping that was found
    """
    counts = _checked(fingerprints, scatter)
    members = counts.any(axis=1) & (groups >= 0)
    fitted = _fit(fingerprints, scatter, members)
    if isinstance(fitted, str):
        count = int(groups.max(initial=0)) + 1
        return np.full((len(groups), count), 1.0 / count), np.zeros(len(groups), dtype=bool)
    means, apart, distances = fitted
    # A group that nobody is left in is no group to compare with.
    present, columns = np.unique(groups[members], return_inverse=True)
    occupied = np.full(len(groups), -1)
    occupied[members] = columns
    weights = np.zeros((len(groups), int(groups.max()) + 1))
    weights[:, present] = _weights(means, occupied, distances, agreement)[0]
    several, shares = shares_of_concepts(means, apart, occupied, distances)
    weights[np.ix_(several, present)] = shares[several]
    return weights, several


def _checked(fingerprints: Floats, scatter: Floats) -> Floats:
    """The number of samples of each label at each client, (n, C)."""
    if not (np.isfinite(fingerprints).all() and np.isfinite(scatter).all()):
        raise DivergedError("fingerprints are not finite: try a smaller local.learning-rate")
    return counts_of(fingerprints[:, 0])


def _fit(
    fingerprints: Floats, scatter: Floats, reference: Flags
) -> tuple[Means, Means, Distances] | str:
    """All clients' means and the distributions fitted to some of them, or why there are none.

    The means are those of the samples that agree with each other, and those of the rest.
    """
    if reference.sum() < 2:
        return "no two clients share a label, so that they cannot be compared"
    counts = counts_of(fingerprints[:, 0])
    if degrees_of_freedom(counts) <= 0 or not np.trace(scatter) > 0:
        if _noisy(fingerprints, scatter):
            return "the noise on the fingerprints hides how much samples of a label differ"
        return "the samples of a label do not differ, so that there is no measure of distance"
    both = compare_in_space(
        np.concatenate([fingerprints[:, 0], fingerprints[:, 1]]),
        scatter / degrees_of_freedom(counts),
        np.concatenate([reference, np.zeros_like(reference)]),
    )
    kept = np.arange(len(both.points)) < len(fingerprints)
    means = both.of(kept)
    distances = fit(means.of(reference))
    if distances is not None:
        return means, both.of(~kept), distances
    if (np.count_nonzero(counts[reference], axis=1) > 1).any():
        return (
            "what is far apart for one client is close for another, so that they cannot be compared"
        )
    return "no client holds two labels, so that it is unknown how far apart labels are"


def _noisy(fingerprints: Floats, scatter: Floats) -> bool:
    """Whether there are negative counts or variances, which only noise leaves."""
    return bool((fingerprints[:, 0, :, 0] < 0).any() or np.trace(scatter) < 0)


def _weights(
    means: Means, groups: Labels, distances: Distances, agreement: float
) -> tuple[Floats, Floats]:
    """How sure it is that each client belongs to each group, (n, K), and the most evidence, (n,).

    Rows are zero for clients that have no group and contradict them all.
    """
    from scipy.special import softmax  # slow to load

    same, different = likelihoods_for_groups(means, groups, distances, agreement)
    evidence = belonging(means, groups, same, different)
    best, rows = evidence.argmax(axis=1), np.arange(len(groups))
    contradicted = (evidence - different)[rows, best] < alone_level(means)
    nowhere = (groups < 0) & contradicted
    return np.where(nowhere[:, None], 0.0, softmax(evidence, axis=1)), evidence[rows, best]


def _settle(groups: Labels, weights: Floats, present: Flags) -> tuple[Labels, Floats]:
    """Give the clients that share no label with anybody a group: the likeliest, or one each."""
    waiting = present & (groups < 0)
    groups = np.where(waiting, weights.argmax(axis=1), groups)
    nowhere = np.flatnonzero(waiting & ~weights.any(axis=1))
    groups[nowhere] = weights.shape[1] + np.arange(len(nowhere))
    own = np.zeros((len(groups), len(nowhere)))
    own[nowhere, np.arange(len(nowhere))] = 1.0
    return groups, np.column_stack([weights, own])


def _by_size(groups: Labels, weights: Floats) -> tuple[Labels, Floats]:
    """Groups numbered by size, the largest first; of equal ones that of the first client.

    A group that nobody is left in, because its one client turned out to hold several concepts, is
    left out.
    """
    found, first, sizes = np.unique(groups[groups >= 0], return_index=True, return_counts=True)
    order = found[np.lexsort((first, -sizes))]
    rank = np.full(weights.shape[1], -1)
    rank[order] = np.arange(len(order))
    left = weights[:, order]
    return np.where(groups >= 0, rank[groups], -1), left / left.sum(axis=1, keepdims=True)


def _together(present: Flags, established: bool, sentence: str) -> Grouping:
    """All clients in one group."""
    count = len(present)
    return Grouping(
        groups=np.where(present, 0, -1),
        weights=np.ones((count, 1)),
        several=np.zeros(count, dtype=bool),
        evidence=np.zeros((count, count)),
        alone=np.zeros(count, dtype=bool),
        agreement=0.0,
        established=established,
        sentence=sentence,
    )


def _judged(
    groups: Labels, weights: Floats, several: Flags, evidence: Floats, own: Floats,
    agreement: float, doubt: str,
) -> Grouping:  # fmt: skip
    """The grouping with the verdict on it.

    Parameters
    ----------
    own : (n,), the evidence that a client belongs to its group
    agreement : the share of labels on which different concepts agree
    doubt : why clients that mean different things would not have contradicted each other, if so
    """
    present, count = groups >= 0, weights.shape[1]
    sizes = np.bincount(groups[present], minlength=count)
    alone = present & (sizes[groups] == 1)
    one = present & ~alone & ~several
    open_ = one & (weights.max(axis=1) < SURE)
    against = one & (own < 0)
    unsure = int((open_ | against).sum())
    clients = counted(int(present.sum()), "client")
    established = not alone[present].all() and unsure <= MOST_UNSURE * present.sum()
    if alone[present].all():
        sentence = f"undecided: no two of {clients} mean the same by their labels"
    elif doubt and (count == 1 or not established):
        established, sentence = False, f"undecided: {doubt}"
    elif not established:
        sentence = (
            f"undecided: {counted(count, 'group')} among {clients}, but {open_.sum()} fit "
            f"more than one group and {against.sum()} contradict their own"
        )
    elif count == 1:
        sentence = f"nothing to part: {clients} mean the same by their labels"
    else:
        sentence = f"{count} concepts among {clients}, in groups of {', '.join(map(str, sizes))}"
    return Grouping(
        groups, weights, several, evidence, alone, agreement, bool(established), sentence
    )
