"""Clients that hold several concepts at once: a ward with two ways of coding, two sensors merged.

The labels of such a client contradict each other, so that many of its samples are counted apart in
its fingerprint. Each of its labels, in either part, supports one group or another. The shares of
the concepts in its samples are those under which its labels are likeliest:

    likelihood = product over labels of (sum over groups of share * exp(evidence))

They are found by EM, with a label's number of samples as its weight.
"""

from __future__ import annotations

import numpy as np

from fedrc_flwr.discovery.distances import Distances
from fedrc_flwr.discovery.evidence import label_evidence
from fedrc_flwr.discovery.fingerprint import Flags
from fedrc_flwr.discovery.space import Means
from fedrc_flwr.em import Floats, Labels

#: A client may hold several concepts if the share of its samples that agree with each other is less
#: than this part of what is usual.
AGREEING = 0.8
#: It does if its second concept has at least this share of its samples, and if several concepts
#: explain its labels better than any one does, by this many nats.
LEAST_SECOND, LEAST_GAIN = 0.25, 1.0
#: Concepts with a smaller share are left out.
LEAST_SHARE = 0.1
STEPS = 100


def shares_of_concepts(
    kept: Means, apart: Means, groups: Labels, distances: Distances
) -> tuple[Flags, Floats]:
    """Who holds several concepts, (n,), and the concepts' shares of their samples, (n, K).

    Rows of shares are zero for the other clients.

    Parameters
    ----------
    kept, apart : the means of the samples that agree with the client's others, and of the rest
    groups : (n,), from 0 to K - 1; -1 for clients that belong to none
    """
    count = int(groups.max(initial=0)) + 1
    several = np.zeros(len(groups), dtype=bool)
    shares = np.zeros((len(groups), count))
    candidates = _contradicting(kept, apart)
    if count < 2 or not candidates.any():
        return several, shares
    members = [groups == group for group in range(count)]
    evidence = np.concatenate(
        [
            np.stack([label_evidence(part, kept, m, distances) for m in members], axis=2)
            for part in (kept, apart)
        ],
        axis=1,
    )[candidates]
    counts = np.concatenate([kept.counts, apart.counts], axis=1)[candidates]
    # A group of the client alone is no group to compare it with.
    others = np.bincount(groups[groups >= 0], minlength=count) - np.stack(members, axis=1)
    evidence = np.where((others[candidates] > 0)[:, None], evidence, -np.inf)
    found = _likeliest(np.exp(evidence), counts)
    mixed = np.log(np.einsum("oyk,ok->oy", np.exp(evidence), found)).sum(axis=1)
    gain = mixed - evidence.sum(axis=1).max(axis=1)
    enough = (np.sort(found, axis=1)[:, -2] >= LEAST_SECOND) & (gain >= LEAST_GAIN)
    several[candidates] = enough
    shares[several] = without_crumbs(found[enough])
    return several, shares


def without_crumbs(shares: Floats) -> Floats:
    """Shares (n, K) without those that are too small to mean anything; rows sum to one.

    The largest stays, however many concepts there are.
    """
    least = np.minimum(LEAST_SHARE, shares.max(axis=1, keepdims=True))
    left = np.where(shares >= least, shares, 0.0)
    return np.asarray(left / left.sum(axis=1, keepdims=True), dtype=np.float64)


def _contradicting(kept: Means, apart: Means) -> Flags:
    """The clients whose samples agree with each other less than is usual, (n,)."""
    agreeing, all_ = kept.counts.sum(axis=1), (kept.counts + apart.counts).sum(axis=1)
    shares = agreeing / np.maximum(all_, 1.0)
    usual = float(np.median(shares[all_ > 0])) if (all_ > 0).any() else 0.0
    return np.asarray((all_ > 0) & (shares < AGREEING * usual), dtype=np.bool_)


def _likeliest(likelihoods: Floats, counts: Floats) -> Floats:
    """The shares (m, K) under which labels with likelihoods (m, L, K) are likeliest."""
    weights = counts / counts.sum(axis=1, keepdims=True)
    shares = np.full((len(likelihoods), likelihoods.shape[2]), 1.0 / likelihoods.shape[2])
    for _ in range(STEPS):
        responsible = likelihoods * shares[:, None]
        responsible /= responsible.sum(axis=2, keepdims=True)
        shares = np.einsum("oy,oyk->ok", weights, responsible)
    return shares
