"""How far apart two means of the same meaning are, and how far two of different meanings.

Two labels within one client have different meanings: their distances say what "far" is. The
distances between clients' means of the same label are a mixture of that distribution, for clients
that mean different things by it, and of one of smaller distances.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedrc_flwr.discovery.fingerprint import Flags
from fedrc_flwr.discovery.space import Means
from fedrc_flwr.em import Floats

#: Degrees of freedom of the Student distribution: a heavy tail, because some clients' inputs are
#: badly corrupted.
TAIL = 4.0
#: Candidates for the variance between clients that mean the same, in units of the variance between
#: samples of one label.
SPREADS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
#: Probability that the distance between two means says nothing.
MISLEADING = 0.1
#: Bound on the logarithm of a likelihood ratio.
BOUND = 30.0
LEAST_SQUARED = 1e-6
LEAST_SCALE, LEAST_SCALE_DIFFERENT = 0.1, 0.2
#: A client whose labels are closer to each other than the median client's, or farther apart, by
#: more than this factor does not say what is near and what is far.
UNUSUAL = 4.0
MOST_PAIRS = 50_000
STEPS = 50
#: Log likelihoods that differ by less than this share of theirs are equal.
ROUNDING = 1e-9
HALF_LOG_2PI = 0.5 * float(np.log(2.0 * np.pi))
STUDENT = math.lgamma((TAIL + 1) / 2) - math.lgamma(TAIL / 2) - 0.5 * math.log(TAIL * math.pi)


@dataclass(frozen=True)
class Distances:
    """The two distributions of the logarithm of a distance.

    Parameters
    ----------
    directions : q, of the space
    spread : the variance between clients that mean the same by a label
    same_mean, same_scale : of the Student distribution of the log distance relative to what noise
        and spread alone give, for the same meaning
    different_mean, different_scale : of the normal distribution of the log distance, for different
        meanings
    share : of the pairs of clients that mean the same by a label that they share
    """

    directions: int
    spread: float
    same_mean: float
    same_scale: float
    different_mean: float
    different_scale: float
    share: float

    def ratio(self, squared: Floats, noise: Floats) -> Floats:
        """How much likelier a distance is between the same meanings than between different ones.

        It never grows with the distance: below the usual distance of the same meaning and above
        that of different meanings, the densities stay at their maximum.

        Parameters
        ----------
        squared : squared distances, of any shape
        noise : of the same shape, the sum of the two means' sampling variances
        """
        log_squared = np.log(np.maximum(squared, LEAST_SQUARED))
        near = 0.5 * (log_squared - np.log(self.directions * (self.spread + noise)))
        near -= self.same_mean
        np.maximum(near, 0.0, out=near)
        far = 0.5 * log_squared - self.different_mean
        np.minimum(far, 0.0, out=far)
        log_ratio = self._same(near) - self._different(far)
        np.clip(log_ratio, -BOUND, BOUND, out=log_ratio)
        return np.asarray(MISLEADING + (1.0 - MISLEADING) * np.exp(log_ratio), dtype=np.float64)

    def _same(self, deviation: Floats) -> Floats:
        return _student(deviation, self.same_scale)

    def _different(self, deviation: Floats) -> Floats:
        return _normal(deviation, self.different_scale)


def fit(means: Means) -> Distances | None:
    """Fit the two distributions, or None if there are no pairs of labels to fit one of them to."""
    means = means.of(usual(means))
    different = _log_distance(_within(means)[0])
    same, noise = _log_distances_between(means)
    if not len(different) or not len(same):
        return None
    mean, scale = float(different.mean()), max(float(different.std()), LEAST_SCALE_DIFFERENT)
    as_different = _normal(same - mean, scale)
    best, best_likelihood = None, -np.inf
    for spread in SPREADS:
        q = means.points.shape[2]
        relative = same - 0.5 * np.log(q * (spread + noise))
        centre, width, share, likelihood = _mixture(relative, as_different)
        # If all means have the same noise, every spread is as likely: rounding must not choose.
        if best is None or likelihood > best_likelihood + ROUNDING * abs(best_likelihood):
            best_likelihood = likelihood
            best = Distances(q, spread, centre, width, mean, scale, share)
    return best


def usual(means: Means) -> Flags:
    """The clients whose labels are about as far apart as is usual, or who hold but one, (n,).

    One that invents its features could otherwise make all labels look alike.
    """
    apart = np.full(len(means.points), np.nan)
    for client in range(len(apart)):
        found = _log_distance(_within(means.of(np.array([client])))[0])
        apart[client] = np.median(found) if len(found) else np.nan
    known = ~np.isnan(apart)
    if not known.any():
        return np.ones_like(known)
    centre = float(np.median(apart[known]))
    return np.asarray(~known | (np.abs(apart - centre) <= np.log(UNUSUAL)), dtype=np.bool_)


def contrast(means: Means, distances: Distances) -> float:
    """How much a pair of different meanings contradicts being the same, in nats, on average.

    The pairs are the labels within clients. The result is near zero if the features do not tell
    labels apart.
    """
    squared, noise = _within(means)
    return -float(np.log(distances.ratio(squared, noise)).mean())


def _mixture(values: Floats, as_different: Floats) -> tuple[float, float, float, float]:
    """EM for a Student distribution beside a known one.

    Parameters
    ----------
    values : (P,), log distances
    as_different : (P,), their log densities under the known distribution

    Returns
    -------
    mean and scale of the Student distribution, its share, and the log likelihood
    """
    centre, scale, share = float(np.quantile(values, 0.2)), 0.5, 0.5
    for _ in range(STEPS):
        as_same = _student(values - centre, scale)
        mixed = np.logaddexp(np.log(share) + as_same, np.log1p(-share) + as_different)
        responsible = np.exp(np.log(share) + as_same - mixed)
        weights = responsible * (TAIL + 1.0) / (TAIL + ((values - centre) / scale) ** 2)
        share = float(np.clip(responsible.mean(), 0.02, 0.98))
        centre = float(weights @ values / weights.sum())
        variance = float(weights @ (values - centre) ** 2 / responsible.sum())
        scale = max(float(np.sqrt(variance)), LEAST_SCALE)
    return centre, scale, share, float(mixed.sum())


def _within(means: Means) -> tuple[Floats, Floats]:
    """Squared distances between the labels of each client, and the noise in them, both (P,)."""
    grams = np.einsum("iyq,ixq->iyx", means.points, means.points)
    norms = np.einsum("iyy->iy", grams)
    squared = norms[:, :, None] + norms[:, None, :] - 2.0 * grams
    upper = np.triu(np.ones(grams.shape[1:], dtype=bool), 1)
    pairs = means.held[:, :, None] & means.held[:, None, :] & upper
    return squared[pairs], (means.noise[:, :, None] + means.noise[:, None, :])[pairs]


def _log_distances_between(means: Means) -> tuple[Floats, Floats]:
    """Log distances between clients' means of the same label, and the noise in them, both (P,).

    If there are many clients, some of them stand for all: evenly spaced in the order of their
    distance from the centre, which does not depend on the order of the clients.
    """
    from scipy.spatial.distance import pdist  # slow to load

    classes = means.points.shape[1]
    most = max(int(np.sqrt(2.0 * MOST_PAIRS / classes)), 2)
    squared, noise = [], []
    for label in range(classes):
        holders = np.flatnonzero(means.held[:, label])
        if len(holders) > most:
            order = np.argsort(np.square(means.points[holders, label]).sum(axis=1), kind="stable")
            holders = holders[order[np.linspace(0, len(order) - 1, most).round().astype(np.int64)]]
        if len(holders) < 2:
            continue
        first, second = np.triu_indices(len(holders), 1)
        squared.append(pdist(means.points[holders, label], "sqeuclidean"))
        variances = means.noise[holders, label]
        noise.append(variances[first] + variances[second])
    if not squared:
        return np.zeros(0), np.zeros(0)
    return _log_distance(np.concatenate(squared)), np.concatenate(noise)


def _log_distance(squared: Floats) -> Floats:
    return np.asarray(0.5 * np.log(np.maximum(squared, LEAST_SQUARED)), dtype=np.float64)


def _student(deviation: Floats, scale: float) -> Floats:
    tail = -0.5 * (TAIL + 1.0) * np.log1p(np.square(deviation / scale) / TAIL)
    return np.asarray(tail + (STUDENT - np.log(scale)), dtype=np.float64)


def _normal(deviation: Floats, scale: float) -> Floats:
    return np.asarray(
        -0.5 * np.square(deviation / scale) - (HALF_LOG_2PI + np.log(scale)), dtype=np.float64
    )
