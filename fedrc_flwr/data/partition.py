"""Label shift: how a dataset's samples are dealt out to clients."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.errors import DataError

Indices = NDArray[np.int64]
TRIES = 20


def split_samples(
    labels: Indices,
    how: str,
    clients: int,
    samples: int,
    alpha: float,
    min_samples: int,
    rng: np.random.Generator,
) -> list[Indices]:
    """Split samples over clients by the named method; disjoint arrays of indices."""
    if how == "dirichlet-by-class":
        return dirichlet_by_class(labels, clients, alpha, min_samples, rng)
    if how == "iid":
        samples = _samples_each(len(labels), clients, samples)
        return list(rng.permutation(len(labels))[: clients * samples].reshape(clients, samples))
    return dirichlet_split(labels, clients, samples, alpha, rng)


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
    samples = _samples_each(len(labels), clients, samples)
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


def dirichlet_by_class(
    labels: Indices, clients: int, alpha: float, min_samples: int, rng: np.random.Generator
) -> list[Indices]:
    """Deal each class out over the clients in proportions drawn from Dirichlet(alpha).

    Every sample is used, and sizes differ. If a client has fewer than ``min_samples``, the whole
    split is drawn again; if that does not help, the largest clients give samples away.
    """
    if clients * min_samples > len(labels):
        raise DataError(
            f"{clients} clients of at least min-samples = {min_samples} need "
            f"{clients * min_samples} samples, but the dataset has {len(labels)}: lower one of them"
        )
    members = [np.flatnonzero(labels == label) for label in range(int(labels.max()) + 1)]
    for _ in range(TRIES):
        owners = np.empty(len(labels), dtype=np.int64)
        for places in members:
            mix = (
                np.full(clients, 1 / clients)
                if math.isinf(alpha)
                else rng.dirichlet(np.full(clients, alpha))
            )
            # A small alpha can make every draw underflow to zero: one client then has it all.
            if not mix.sum() > 0:
                mix = np.eye(clients)[rng.integers(clients)]
            ends = np.rint(np.cumsum(mix / mix.sum()) * len(places)).astype(np.int64)
            owners[rng.permutation(places)] = np.repeat(
                np.arange(clients), np.diff(ends, prepend=0)
            )
        sizes = np.bincount(owners, minlength=clients)
        if sizes.min() >= min_samples:
            break
    while sizes.min() < min_samples:
        poorest, richest = int(sizes.argmin()), int(sizes.argmax())
        number = min(min_samples - sizes[poorest], sizes[richest] - min_samples)
        owners[rng.permutation(np.flatnonzero(owners == richest))[:number]] = poorest
        sizes = np.bincount(owners, minlength=clients)
    order = rng.permutation(len(labels))
    order = order[np.argsort(owners[order], kind="stable")]
    return np.split(order, np.cumsum(sizes)[:-1])


def _samples_each(available: int, clients: int, samples: int) -> int:
    samples = samples or max(1, available // clients)
    if samples * clients > available:
        raise DataError(
            f"{clients} clients of {samples} samples need {samples * clients} samples, "
            f"but the dataset has {available}: lower clients or samples-per-client"
        )
    return samples


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
        # If a class runs out, its share goes to the other classes of the mix, and to any other
        # class once all of those have run out.
        mix = np.where(left > counts, mix, 0.0)
        if not mix.sum() > 0:
            mix = (left - counts).astype(np.float64)
        drawn = rng.multinomial(missing, mix / mix.sum())
        counts += np.minimum(drawn, left - counts)
    return counts
