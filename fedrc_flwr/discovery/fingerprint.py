"""A client's fingerprint: for each label, how many samples it holds and the sum of their features.

Samples whose label contradicts the client's other samples are counted apart: they are mistakes, or
belong to a second concept.

Clients take fingerprints with the same network, so that the features mean the same everywhere.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.em import Floats, Labels
from fedrc_flwr.errors import DivergedError

Flags = NDArray[np.bool_]
MOST_FEATURES = 64
#: What one sample adds at most to the norm of a fingerprint and of a scatter, if its features have
#: at most unit length: 1 and a vector of length 1; the square of a difference of length 2.
UNITS = (math.sqrt(2.0), 4.0)
#: Ridge on the scatter within a client's labels, as a share of the mean variance. A client has few
#: samples for the number of features.
RIDGE = 0.1
#: Exponent of the labels' frequencies. Above 1, because wrong labels are rarer than right ones.
FREQUENCY = 2.0
PASSES = 5
#: Labels with more samples than this say how far a sample usually is from its label's mean.
ENOUGH = 4


def take(features: Floats, labels: Labels, classes: int) -> tuple[Floats, Floats]:
    """The fingerprint of a client and the scatter of its features within labels.

    Parameters
    ----------
    features : (N, d), what the network's body makes of the samples
    labels : (N,), from 0 to ``classes`` - 1
    classes : C, the number of labels in the federation

    Returns
    -------
    (2, C, 1 + D), with D = min(d, ``MOST_FEATURES``): the number of samples of each label, and the
    sum of their features, first for the samples that agree with each other, then for those whose
    label contradicts them; and (D, D), the sum over the former of the outer products of the
    features' differences from their label's mean
    """
    features = np.asarray(features, dtype=np.float64)
    if not np.isfinite(features).all():
        raise DivergedError(
            "features of some samples are not finite: try a smaller local.learning-rate"
        )
    reduced = project(features)
    kept = consistent(reduced, labels, classes)
    parts = [
        np.column_stack(_by_label(reduced[some], labels[some], classes)) for some in (kept, ~kept)
    ]
    counts, sums = parts[0][:, 0], parts[0][:, 1:]
    residuals = (reduced - (sums / np.maximum(counts, 1.0)[:, None])[labels])[kept]
    return np.stack(parts), residuals.T @ residuals


def project(features: Floats) -> Floats:
    """At most ``MOST_FEATURES`` features, (N, D), by a random projection that depends on d alone.

    Distances stay the same on average.
    """
    width = features.shape[1]
    if width <= MOST_FEATURES:
        return features
    draw = np.random.default_rng(width).normal(size=(width, MOST_FEATURES))
    return np.asarray(features @ (draw / np.sqrt(MOST_FEATURES)), dtype=np.float64)


def consistent(features: Floats, labels: Labels, classes: int) -> Flags:
    """The samples whose own label is the likeliest given the client's other samples, (N,).

    A label's samples are taken as normal around its mean, with one covariance for all labels. A
    label that is held only by mistake has the mean of the samples that it was mistaken for, and
    loses to the more frequent label. Means and covariance are computed anew from the samples that
    were kept, until the choice no longer changes. If that leaves half of the samples or fewer,
    all are kept: what chance left would make labels differ that do not.
    """
    kept = np.ones(len(features), dtype=bool)
    rows = np.arange(len(features))
    for _ in range(PASSES):
        counts, sums = _by_label(features[kept], labels[kept], classes)
        if np.count_nonzero(counts) < 2:
            break
        means = sums / np.maximum(counts, 1.0)[:, None]
        squared = _mahalanobis(features, means, labels, kept, int(np.count_nonzero(counts)))
        own, size = squared[rows, labels], counts[labels]
        known = kept & (size > ENOUGH)
        usual = float(np.median(own[known])) if known.any() else float(features.shape[1])
        # A mean of m samples is off by 1/m of a sample's own distance.
        squared -= usual / np.maximum(counts, 1.0)
        squared[rows, labels] = _without_itself(own, size, kept, usual)
        squared -= 2.0 * FREQUENCY * np.log(np.maximum(counts, 1.0))
        squared[:, counts == 0] = np.inf
        chosen = squared.argmin(axis=1) == labels
        if (chosen == kept).all():
            break
        kept = chosen
    return kept if 2 * kept.sum() > len(kept) else np.ones_like(kept)


def _by_label(features: Floats, labels: Labels, classes: int) -> tuple[Floats, Floats]:
    """How many samples a label has, (C,), and the sum of their features, (C, D)."""
    sums = np.zeros((classes, features.shape[1]))
    np.add.at(sums, labels, features)
    return np.bincount(labels, minlength=classes).astype(np.float64), sums


def _mahalanobis(features: Floats, means: Floats, labels: Labels, kept: Flags, held: int) -> Floats:
    """Squared distances of all samples from all labels' means, (N, C).

    The unit is the scatter of the ``kept`` samples around the means of the ``held`` labels.
    """
    from scipy.linalg import solve_triangular  # slow to load

    width = features.shape[1]
    residuals = (features - means[labels])[kept]
    covariance = residuals.T @ residuals / max(len(residuals) - held, 1)
    ridge = RIDGE * np.trace(covariance) / width
    covariance[np.diag_indices(width)] += ridge if ridge > 0 else 1.0
    lower = np.linalg.cholesky(covariance)
    points = solve_triangular(lower, features.T, lower=True).T
    centres = solve_triangular(lower, means.T, lower=True).T
    squared = np.square(points).sum(axis=1)[:, None] + np.square(centres).sum(axis=1)
    return np.asarray(squared - 2.0 * points @ centres.T, dtype=np.float64)


def _without_itself(own: Floats, size: Floats, kept: Flags, usual: float) -> Floats:
    """Squared distances from the means of the other samples with the same label, (N,).

    A sample that is the only one of its label is taken to be at the usual distance.
    """
    others = np.maximum(size - 1.0, 1.0)
    left_out = own * (size / others) ** 2 - usual / others
    return np.where(kept, np.where(size > 1, left_out, usual), own - usual / np.maximum(size, 1.0))
