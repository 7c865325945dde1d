"""The expectation half of FedRC, as functions on arrays.

Symbols of the paper, spelled out: ``responsibilities`` (gamma, N x K), ``mixture_weights``
(omega, K), ``label_prior`` (C_{y,k}, K x C), ``label_counts`` (K x C), ``losses`` (f, N x K). All
arrays are float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.errors import WeightsError

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
LEAST_POOLED = 1e-30
PRIOR_FLOOR = 0.1  # smallest mass, in samples, of a label in a cluster's prior
TOLERATED = 1e-6  # allowed difference from 1 of the sum of weights
#: Mixture weight of a cluster that a client has given none so far.
UNSEEN = 1e-3


def e_step(
    losses: Floats,
    mixture_weights: Floats,
    label_prior: Floats | None,
    labels: Labels,
    exponent: float = 1.0,
) -> Floats:
    """Responsibilities of the clusters for each sample (eq. "update gamma").

    ``responsibilities[j, k]`` is proportional to
    ``(mixture_weights[k] * exp(-losses[j, k]) / label_prior[k, labels[j]]) ** exponent``.

    Parameters
    ----------
    losses : (N, K), the cross entropy of every model on every sample
    mixture_weights : (K,), zeros allowed as long as one is positive
    label_prior : (K, C), strictly positive, or None for an E-step without it (FedEM)
    labels : (N,)
    exponent : the inverse temperature of the annealed E-step; 1 is the paper's

    Returns
    -------
    (N, K), rows sum to one
    """
    with np.errstate(divide="ignore"):
        log_weights = np.log(mixture_weights)
    return _softmax(exponent * (log_weights[None, :] + _evidence(losses, label_prior, labels)))


def pooled_e_step(
    losses: Floats, label_prior: Floats | None, labels: Labels, exponent: float
) -> Floats:
    """Responsibilities that are the same for all of a client's samples.

    Each row is proportional to the geometric mean, over the samples, of
    ``exp(-losses[j, k]) / label_prior[k, labels[j]]``, to the power of ``exponent``. Parameters and
    result are those of ``e_step``.
    """
    pooled = _softmax(exponent * _evidence(losses, label_prior, labels).mean(axis=0, keepdims=True))
    # No weight may vanish: the plain E-step that follows could never revive it.
    pooled = np.maximum(pooled, LEAST_POOLED)
    return np.repeat(pooled / pooled.sum(), len(losses), axis=0)


def _evidence(losses: Floats, label_prior: Floats | None, labels: Labels) -> Floats:
    """The logarithm of ``exp(-losses) / label_prior`` for every sample and cluster, (N, K)."""
    return -losses if label_prior is None else -losses - np.log(label_prior).T[labels]


def _softmax(scores: Floats) -> Floats:
    unnormalised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(unnormalised / unnormalised.sum(axis=1, keepdims=True), dtype=np.float64)


def harden(responsibilities: Floats) -> Floats:
    """All of a client's samples to its likeliest cluster (TrHC); the first if several are equal."""
    hard = np.zeros_like(responsibilities)
    hard[:, responsibilities.mean(axis=0).argmax()] = 1.0
    return hard


def check_distribution(weights: Floats, shape: tuple[int, ...], what: str) -> None:
    """Refuse weights over clusters that are not a distribution along their last axis."""
    if (
        weights.shape != shape
        or not np.isfinite(weights).all()
        or (weights < 0).any()
        or (np.abs(weights.sum(axis=-1) - 1.0) > TOLERATED).any()
    ):
        raise WeightsError(
            f"{what}: expected finite, nonnegative weights of shape {shape} that sum to 1"
        )


def reachable(mixture_weights: Floats) -> Floats:
    """The same weights, (K,), with a small one instead of zero.

    A client that has only received its own cluster's model has zeros for the others. The E-step
    multiplies by the weights, so that it could never leave a zero again.
    """
    weights = np.where(mixture_weights > 0, mixture_weights, UNSEEN)
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def update_mixture_weights(responsibilities: Floats) -> Floats:
    """Mean responsibility of each cluster over a client's samples (eq. "update gamma")."""
    return np.asarray(responsibilities.mean(axis=0), dtype=np.float64)


def count_labels(responsibilities: Floats, labels: Labels, classes: int) -> Floats:
    """``label_counts[k, y]``: the responsibility that cluster k takes for samples of label y."""
    counts = np.zeros((classes, responsibilities.shape[1]))
    np.add.at(counts, labels, responsibilities)
    return counts.T.copy()


def normalise_label_prior(label_counts: Floats, floor: float) -> Floats:
    """The share of each label in each cluster, C_{y,k}.

    Counts below ``floor`` samples are raised to it: those of labels that a cluster never saw, and
    those that noise hides. This keeps the E-step's logarithm finite, and one unseen label from
    outweighing the models.
    """
    lifted = np.maximum(label_counts, floor)
    return np.asarray(lifted / lifted.sum(axis=1, keepdims=True), dtype=np.float64)


def uniform_prior(clusters: int, classes: int) -> Floats:
    """The uniform prior of the first round."""
    return np.full((clusters, classes), 1.0 / classes)


@dataclass(frozen=True)
class AdamMoments:
    """What the Adam variant of the E-step remembers of each sample, all (N, K)."""

    responsibilities: Floats
    first: Floats
    second: Floats

    @classmethod
    def start(cls, samples: int, clusters: int) -> AdamMoments:
        """Uniform responsibilities and empty moments, as before the first round."""
        zeros = np.zeros((samples, clusters))
        return cls(np.full((samples, clusters), 1.0 / clusters), zeros, zeros.copy())


@dataclass(frozen=True)
class AdamSettings:
    """Hyper-parameters of the Adam variant; the defaults are the paper's."""

    step: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-8


def adam_e_step(proposal: Floats, moments: AdamMoments, settings: AdamSettings) -> AdamMoments:
    """One step of FedRC-Adam from last round's responsibilities towards ``proposal``.

    The bias correction is the paper's: by ``1 - beta``, not by ``1 - beta ** t``. A sample all of
    whose clusters were clipped to zero takes the proposal itself.
    """
    gradient = moments.responsibilities - proposal
    first = (1 - settings.beta1) * gradient + settings.beta1 * moments.first
    second = (1 - settings.beta2) * gradient**2 + settings.beta2 * moments.second
    scaled = (first / (1 - settings.beta1)) / (
        np.sqrt(second / (1 - settings.beta2)) + settings.epsilon
    )
    stepped = np.maximum(moments.responsibilities - settings.step * scaled, 0.0)
    totals = stepped.sum(axis=1, keepdims=True)
    stepped = np.where(totals > 0, stepped / np.where(totals > 0, totals, 1.0), proposal)
    return AdamMoments(stepped, first, second)


def annealing_exponent(round_number: int, rounds: int, start: float, end: float = 1.0) -> float:
    """The E-step's exponent in round 1, 2, ...: geometrically from ``start`` to ``end``, then 1.

    Equal ratios, because it is the order of magnitude of the exponent that decides at which round
    a difference between two clusters begins to grow.
    """
    if round_number > rounds:
        return 1.0
    progress = (round_number - 1) / rounds
    return float(start ** (1.0 - progress) * end**progress)


def regroup(columns: Floats, mapping: NDArray[np.int64], clusters: int, axis: int) -> Floats:
    """Carry values per old cluster over to the clusters that are left.

    ``mapping[old]`` is the position of the cluster that old became part of, or -1 where it was
    removed. Values of merged clusters are added; those of removed ones are dropped.
    """
    moved = np.moveaxis(columns, axis, 0)
    result = np.zeros((clusters, *moved.shape[1:]))
    kept = mapping >= 0
    np.add.at(result, mapping[kept], moved[kept])
    return np.moveaxis(result, 0, axis)


def renormalise(values: Floats, axis: int, total: Floats | float = 1.0) -> Floats:
    """Scale ``values`` to sum to ``total`` along ``axis``; spread evenly where all is zero."""
    sums = values.sum(axis=axis, keepdims=True)
    even = np.ones_like(values) / values.shape[axis]
    shares = np.where(sums > 0, values / np.where(sums > 0, sums, 1.0), even)
    return np.asarray(shares * total, dtype=np.float64)


def mean_movement(before: Floats, after: Floats, samples: Floats) -> float:
    """How much mixture weights moved: total variation per client, averaged by samples.

    ``before`` and ``after`` are (clients, K); 0 means no change, 1 that every sample changed its
    cluster.
    """
    distance = 0.5 * np.abs(after - before).sum(axis=1)
    return float(np.average(distance, weights=samples))


def squared_movement(
    before: Floats, after: Floats, samples: Floats, variance: Floats
) -> tuple[float, float]:
    """The mean square of the clients' movements, estimated through noise, and its standard error.

    Noise adds a known amount to a squared distance on average. That amount is subtracted from the
    sum over all clients. Negative values of single clients are kept, because otherwise the noise
    would not average out. The estimate may be negative.
    The standard error is that of clients that do not move.

    Parameters
    ----------
    before, after : (clients, K), the noisy masses of the clusters at each client
    samples : (clients,), the size of each client in the same units; the weights are its squares
    variance : (clients,), of the noise on one entry of ``after - before``
    """
    clusters = before.shape[1]
    squared = 0.5 * np.square(after - before).sum(axis=1)
    scale = float(np.square(samples).sum())
    estimate = float((squared - 0.5 * clusters * variance).sum()) / scale
    error = 0.5 * np.sqrt(2.0 * clusters) * float(np.linalg.norm(variance)) / scale
    return estimate, error


def bounded_excess(responsibilities: Floats, losses: Floats, bound: float) -> Floats:
    """How much more model b costs the samples of cluster a than a's own model, (K, K).

    Entry (a, b) is the sum over samples of the responsibility for a times the difference of the
    losses, cut to ``bound`` on either side. The diagonal is zero.
    """
    rows = [
        responsibilities[:, a] @ np.clip(losses - losses[:, [a]], -bound, bound)
        for a in range(losses.shape[1])
    ]
    return np.array(rows)


def mutual_excess(cross_losses: Floats) -> Floats:
    """What the worse served of two clusters loses by using the other's model, (K, K), symmetric.

    ``cross_losses[a, b]`` is the mean loss of model b on the samples that belong to a.
    """
    excess = cross_losses - np.diag(cross_losses)[:, None]
    return np.asarray(np.maximum(excess, excess.T), dtype=np.float64)


def smallest_pair(values: Floats, limit: float) -> tuple[int, int] | None:
    """The pair of clusters with the smallest value of a symmetric table, if it is within a limit.

    Clusters are not compared with themselves.
    """
    upper = values.copy()
    upper[np.tril_indices(len(values))] = np.inf
    if not len(values) or np.isnan(upper).any() or upper.min() > limit:
        return None
    first, second = np.unravel_index(int(upper.argmin()), upper.shape)
    return int(first), int(second)
