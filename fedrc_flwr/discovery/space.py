"""The space in which labels' means are compared: differences within a client count, style does not.

How a client's inputs look (its style) shifts all of its means alike. So directions are chosen by
how much labels differ within clients, and distances are measured in units of the scatter of samples
within a label of a client.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedrc_flwr.discovery.fingerprint import Flags
from fedrc_flwr.em import Floats, Labels

MOST_DIRECTIONS = 9
#: Added to the variances of the pooled scatter, in units of a feature's variance.
RIDGE = 1e-3
#: A mean is at most so many times the usual distance away from the centre.
FARTHEST = 3.0
#: A client adds at most so many times what the median client does to the scatter, per sample, and
#: one whose labels differ by more says nothing about the directions. One that invents its features
#: would otherwise decide for all.
MOST_INFLUENCE = 3.0
#: A client holds a label from this many samples on. Noise on the counts can leave fractions.
LEAST_COUNT = 0.5


@dataclass(frozen=True)
class Means:
    """The clients' means of each label, in the space where they are compared.

    Parameters
    ----------
    points : (n, C, q), zeros where a client does not hold a label
    counts : (n, C), how many samples a mean is made of; zero where there is none
    """

    points: Floats
    counts: Floats

    @cached_property
    def held(self) -> Flags:
        """Which labels each client holds, (n, C)."""
        return np.asarray(self.counts > 0)

    @cached_property
    def noise(self) -> Floats:
        """The sampling variance of a mean, in every direction, (n, C); infinite without samples."""
        with np.errstate(divide="ignore"):
            return np.asarray(1.0 / self.counts, dtype=np.float64)

    def of(self, clients: Flags | Labels) -> Means:
        """The means of some of the clients."""
        return Means(self.points[clients], self.counts[clients])


def counts_of(fingerprints: Floats) -> Floats:
    """How many samples of each label the clients hold, (n, C), without what noise left over."""
    counts = fingerprints[..., 0]
    return np.where(counts >= LEAST_COUNT, counts, 0.0)


def degrees_of_freedom(counts: Floats) -> float:
    """How many samples there are beyond the means that were estimated from them."""
    return float(counts.sum() - np.count_nonzero(counts))


def compare_in_space(fingerprints: Floats, covariance: Floats, reference: Flags) -> Means:
    """The label means of all clients in the directions that separate labels within clients.

    Parameters
    ----------
    fingerprints : (n, C, 1 + D)
    covariance : (D, D), of the features within labels
    reference : (n,), the clients that decide which directions are kept
    """
    counts = counts_of(fingerprints)
    means = fingerprints[..., 1:] / np.maximum(counts, LEAST_COUNT)[..., None]
    whitened = means @ _whitening(covariance)
    whitened = np.where(counts[..., None] > 0, _bounded(whitened, counts, reference), 0.0)
    directions = _between_labels(whitened[reference], counts[reference])
    most = min(MOST_DIRECTIONS, counts.shape[1] - 1, len(covariance))
    return Means(whitened @ directions[:, :most], counts)


def _whitening(covariance: Floats) -> Floats:
    """The matrix (D, D) that makes the covariance within labels the identity."""
    # Features are brought to the same scale first. One that never varies has no scale; noise on the
    # scatter can make small variances negative.
    diagonal = np.diag(covariance)
    scale = np.zeros(len(covariance))
    scale[diagonal > 0] = 1.0 / np.sqrt(diagonal[diagonal > 0])
    variances, axes = np.linalg.eigh(covariance * scale[:, None] * scale)
    variances = np.maximum(variances, 0.0) + RIDGE
    return np.asarray(scale[:, None] * axes / np.sqrt(variances), dtype=np.float64)


def _bounded(means: Floats, counts: Floats, reference: Flags) -> Floats:
    """Means around the centre of all, (n, C, D), and none too far away from it.

    A client whose features are off would otherwise decide for all what is near and what is far.
    """
    known = means[reference][counts[reference] > 0]
    centre = np.median(known, axis=0)
    usual = float(np.median(np.linalg.norm(known - centre, axis=1)))
    lengths = np.linalg.norm(means - centre, axis=2, keepdims=True)
    shortened = FARTHEST * usual / np.maximum(lengths, FARTHEST * usual) if usual > 0 else 1.0
    return np.asarray((means - centre) * shortened, dtype=np.float64)


def pooled_scatter(scatters: Floats, samples: Floats) -> Floats:
    """The sum (D, D) of the clients' scatters, (n, D, D), none of which may dominate it.

    Parameters
    ----------
    samples : (n,), how many samples each client holds
    """
    # Noise is drawn for each entry; the two halves of a scatter are the same without it.
    symmetric = 0.5 * (scatters + scatters.transpose(0, 2, 1))
    sizes = np.linalg.norm(symmetric, axis=(1, 2)) / np.maximum(samples, 1.0)
    return np.asarray(np.einsum("i,ijk->jk", _limited(sizes), symmetric), dtype=np.float64)


def _limited(sizes: Floats) -> Floats:
    """What to multiply by, so that nobody is larger than a multiple of the median."""
    most = MOST_INFLUENCE * float(np.median(sizes)) if len(sizes) else 0.0
    return np.asarray(np.where(sizes > most, most / np.where(sizes > 0, sizes, 1.0), 1.0))


def _between_labels(means: Floats, counts: Floats) -> Floats:
    """Orthogonal directions (D, D), the one in which labels within clients differ most first."""
    totals = np.maximum(counts.sum(axis=1), LEAST_COUNT)
    centres = np.einsum("iy,iyp->ip", counts, means) / totals[:, None]
    residuals = (means - centres[:, None]) * np.sqrt(counts)[..., None]
    energy = np.square(residuals).sum(axis=(1, 2)) / totals
    flat = residuals[_limited(energy) == 1.0].reshape(-1, means.shape[2])
    _, axes = np.linalg.eigh(flat.T @ flat)
    return np.asarray(axes[:, ::-1], dtype=np.float64)
