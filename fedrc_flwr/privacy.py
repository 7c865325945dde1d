"""Privacy of a client's statistics: clipping, Gaussian noise, and the exact epsilon spent.

This protects one client's released statistics (its label counts, and the loss table where merging
is on) against the server, as a whole: with or without that client's statistics the server sees
nearly the same. It does not protect the model updates, the number of samples or the metrics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedrc_flwr.em import Floats
from fedrc_flwr.settings import key

#: When counts of predictions are sent.
CONFUSION = ("without-noise", "always", "never")


@dataclass(frozen=True)
class PrivacySettings:
    """Noise on the statistics that clients release."""

    count_noise: float = key(
        0.0,
        "Standard deviation xi of the Gaussian noise on label counts, for clients whose node "
        "configuration sets none. 0: no noise.",
        low=0.0,
        common=True,
    )
    count_clip: float = key(
        1.0,
        "L2 norm to which a client's statistics are clipped before noise is added, as a share of "
        "its number of samples. At 1 nothing is ever clipped; less costs accuracy and spends less "
        "epsilon. 0: no clipping, and no epsilon is claimed.",
        low=0.0,
        high=1.0,
    )
    confusion: str = key(
        CONFUSION[0],
        "Whether clients send counts of their predictions on test samples (confusion matrices) "
        "when they are evaluated. `without-noise`: only if they add no noise to their statistics, "
        "because the counts show which labels a client holds. A node's own configuration takes "
        "precedence.",
        choices=CONFUSION,
    )
    delta: float = key(1e-5, "The delta for which epsilon is reported.", above=0.0, high=0.5)

    def sensitivity(self, samples: int, parts: int = 1) -> float:
        """The joint L2 norm to which a client's statistics are clipped; infinite without clipping.

        Each part of a release has a norm of at most the client's number of samples.
        """
        share = self.count_clip
        return math.sqrt(parts) * share * samples if share > 0 else math.inf

    def clips_unevenly(self) -> bool:
        """Whether clipping may scale some clients' counts down and leave others as they are."""
        return 0 < self.count_clip < 1

    def cost(self, samples: int, noise: float, releases: int) -> float:
        """What releases of a client cost: mu^2, which adds up over releases of any kind.

        Infinite if there is no noise or no clipping, because nothing is bounded then.
        """
        if noise <= 0 or self.count_clip == 0:
            return math.inf
        return gaussian_mu(releases, self.sensitivity(samples), noise) ** 2

    def clipped_to(self, largest: float) -> PrivacySettings:
        """The same with a clip of at most ``largest``; a run cannot do without clipping then."""
        return replace(self, count_clip=min(self.count_clip or 1.0, largest))

    def noise_of(self, own: float | None) -> float:
        """A client's noise: its own setting, if it has one."""
        return self.count_noise if own is None else own

    def sends_confusion(self, own: str | None, own_noise: float | None) -> bool:
        """Whether a client sends counts of its predictions.

        Parameters
        ----------
        own : the policy that its node's configuration names, if any
        own_noise : the noise that its node's configuration asks for. A node that asks for noise
            itself is not overruled by the run.
        """
        policy = own or self.confusion
        if policy == "without-noise" or (own_noise and not own):
            return policy != "never" and self.noise_of(own_noise) <= 0
        return policy == "always"


def clip(parts: Sequence[Floats], norm: float) -> list[Floats]:
    """Scale arrays down, all by one factor, so that their joint L2 norm is at most ``norm``.

    One factor, because the parts are divided by each other later on.
    """
    length = math.sqrt(sum(float(np.square(part).sum()) for part in parts))
    return [part if length <= norm else part * (norm / length) for part in parts]


def release(
    parts: Sequence[Floats], norm: float, noise: float, rng: np.random.Generator
) -> list[Floats]:
    """Clip the parts jointly to ``norm``, then add N(0, noise^2) to every entry."""
    return [part + rng.normal(0.0, noise, part.shape) for part in clip(parts, norm)]


def secret_generator() -> np.random.Generator:
    """A generator seeded by the operating system, because the server knows the run's seed."""
    return np.random.default_rng()


def gaussian_mu(releases: int, norm: float, noise: float) -> float:
    """The one Gaussian mechanism that ``releases`` of them compose to: mu = sqrt(T) * S / xi.

    One release of n parts with a joint norm of sqrt(n) * S counts as n releases with norm S.
    """
    if releases == 0:
        return 0.0
    return math.inf if noise <= 0 else math.sqrt(releases) * norm / noise


def largest_epsilon(spent: Iterable[float], settings: PrivacySettings) -> float | None:
    """The largest epsilon over clients, each given as the sum of what its releases cost.

    None if nobody has released anything, or if for any client no bound can be claimed: one of its
    reports had no noise, or was not clipped.
    """
    costs = list(spent)
    if not costs or math.inf in costs:
        return None
    return epsilon_spent(math.sqrt(max(costs)), settings.delta)


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
