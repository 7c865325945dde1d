"""Label shift: how a dataset's samples are dealt out to clients."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.errors import DataError

Indices = NDArray[np.int64]


def dirichlet_split(
    labels: Indices, clients: int, samples: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """Deal samples to clients of equal size with skewed class mixes (LDA, Hsu et al. 2019).

    Client after client draws its class mix from Dirichlet(alpha * p), where p are the class
    proportions of what is left (they sum to 1), then takes its samples without replacement. With
    ten classes, alpha = 1 is 0.1 per class: two to three classes a client.

    Parameters
    ----------
    labels : (N,)
    samples : how many each client gets; 0 for N // clients
    alpha : ``math.inf`` for class mixes equal to p

    Returns
    -------
    one array of indices into ``labels`` per client, disjoint
    """
    samples = samples or max(1, len(labels) // clients)
    if samples * clients > len(labels):
        raise DataError(
            f"{clients} clients of {samples} samples need {samples * clients} samples, "
            f"but the dataset has {len(labels)}: lower clients or samples-per-client"
        )
    classes = int(labels.max()) + 1
    queues = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
    taken = np.zeros(classes, dtype=np.int64)
    left = np.array([len(queue) for queue in queues], dtype=np.int64)
    parts: list[Indices] = []
    for _ in range(clients):
        counts = _draw_counts(left, samples, alpha, rng)
        part = [queues[c][taken[c] : taken[c] + counts[c]] for c in np.flatnonzero(counts)]
        parts.append(rng.permutation(np.concatenate(part)))
        taken += counts
        left -= counts
    return parts


def _draw_counts(left: Indices, samples: int, alpha: float, rng: np.random.Generator) -> Indices:
    """How many of each class one client takes from what is left."""
    available = left > 0
    proportions = left[available] / left.sum()
    mix = np.zeros(len(left))
    mix[available] = (
        proportions if math.isinf(alpha) else rng.dirichlet(np.maximum(alpha * proportions, 1e-12))
    )
    counts = np.zeros(len(left), dtype=np.int64)
    while (missing := samples - int(counts.sum())) > 0:
        # A class that runs out gives its part to the others of the mix, and to whatever is left
        # once the whole mix has run out.
        mix = np.where(left > counts, mix, 0.0)
        if not mix.sum() > 0:
            mix = (left - counts).astype(np.float64)
        drawn = rng.multinomial(missing, mix / mix.sum())
        counts += np.minimum(drawn, left - counts)
    return counts
