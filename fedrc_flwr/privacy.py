"""Privacy of the label counts: clipping, Gaussian noise, and the exact epsilon spent.

This protects one client's released statistics (its label counts, and the loss table where merging
is on) against the server, as a whole: with or without that client's statistics the server sees
nearly the same. It does not protect the model updates, the number of samples or the metrics.
"""

from __future__ import annotations

import math

import numpy as np

from fedrc_flwr.em import Floats


def clip(values: Floats, norm: float) -> Floats:
    """Scale an array down so that its L2 norm is at most ``norm``."""
    length = float(np.linalg.norm(values))
    return values if length <= norm else values * (norm / length)


def release(values: Floats, norm: float, noise: float, rng: np.random.Generator) -> Floats:
    """Clip to ``norm``, then add N(0, noise^2) to every entry; untouched where noise is 0."""
    if noise <= 0:
        return values
    return clip(values, norm) + rng.normal(0.0, noise, values.shape)


def secret_generator() -> np.random.Generator:
    """A generator seeded by the operating system: noise that the run's seed gives away is none."""
    return np.random.default_rng()


def gaussian_mu(releases: int, norm: float, noise: float) -> float:
    """The one Gaussian mechanism that ``releases`` of them compose to: mu = sqrt(T) * S / xi."""
    if releases == 0:
        return 0.0
    return math.inf if noise <= 0 else math.sqrt(releases) * norm / noise


def epsilon_spent(mu: float, delta: float) -> float:
    """Smallest epsilon for which a mu-Gaussian mechanism is (epsilon, delta) private.

    Inverts ``delta(epsilon) = Phi(mu/2 - epsilon/mu) - exp(epsilon) * Phi(-mu/2 - epsilon/mu)``,
    which falls in epsilon, by bisection in logarithms.
    """
    if mu <= 0:
        return 0.0
    if math.isinf(mu):
        return math.inf
    if _log_delta(0.0, mu) <= math.log(delta):
        return 0.0
    low, high = 0.0, 1.0
    while _log_delta(high, mu) > math.log(delta):
        low, high = high, 2 * high
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if _log_delta(middle, mu) > math.log(delta):
            low = middle
        else:
            high = middle
    return high


def _log_delta(epsilon: float, mu: float) -> float:
    from scipy.special import log_ndtr  # slow to load, and clients never need it

    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    if second >= first:
        return -math.inf
    return first + math.log1p(-math.exp(second - first))
