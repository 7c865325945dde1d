"""FLUX's way of grouping clients, in place of discovery's (Fenoglio et al., NeurIPS 2025).

    python benchmarks/concepts.py --rows "found,flux,flux plain" --federations digits

It is written from the paper's abstract and from the authors' public repository
(dariofenoglio98/FLUX), with the constants that are the defaults there. None of its code is used.

What was read:

- The *latent* of a sample is what the last layers of the network receive. It is reduced to as many
  numbers as there are labels by the principal axes of 200 points that are drawn evenly from a cube,
  from 0 to 1.02 times the largest latent value of any client. The draw is the same for everybody,
  so that this is a random projection.
- A client's *descriptor* has the mean and the standard deviation of its latents. With the
  class-conditional part (the default), it also has both for each label. A label with fewer than two
  samples is described by -1 throughout.
- The server scales each part of the descriptor, that is the mean or the deviation of all samples or
  of one label, to between 0 and 1 over all clients. A part has one scale, not one for each number.
- DBSCAN with the Euclidean distance and two samples to a neighbourhood groups the descriptors. Its
  radius is the distance to the nearest neighbour, sorted over clients, at the curve's knee (Kneedle
  with a sensitivity of 1, for a convex curve that rises). A client that DBSCAN takes for noise is a
  group of its own. A client that is described later belongs to the nearest group's centre.

What was assumed:

- The latent is what the network's head receives. FLUX's LeNet has it two layers further down.
- The largest latent value is taken in the round in which clients are described, not in the one
  before. It decides only where -1 lies relative to the means.
- Where Kneedle finds no knee, the radius is the largest of the distances. (The authors' code would
  stop with an error.)
- When clients are described: FLUX does so once, when accuracy grows by less than 0.06 a round. Here
  it is in the rounds in which discovery measures clients, so that only the grouping differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.cluster import DBSCAN

from fedrc_flwr.discovery import fingerprint, grouping
from fedrc_flwr.discovery.fingerprint import Flags
from fedrc_flwr.discovery.grouping import Grouping
from fedrc_flwr.em import Floats, Labels

POINTS = 200
MARGIN = 1.02
NEIGHBOURHOOD = 2
SENSITIVITY = 1.0
MISSING = -1.0


@lru_cache
def axes(width: int, labels: int) -> tuple[Floats, Floats]:
    """Principal axes of points in the unit cube, (L, width), and where they put its centre, (L,).

    L is the number of labels, or that of latent values if there are fewer.
    """
    points = np.random.RandomState(1).uniform(0.0, 1.0, size=(POINTS, width))
    centre = points.mean(axis=0)
    found = np.linalg.svd(points - centre, full_matrices=False)[2][:labels]
    return found, found @ centre


def moments(latents: Floats, labels: Labels, classes: int) -> Floats:
    """What a client's descriptor is made of, (C, 2 + 3 L).

    For each label: how many samples there are, the sum of their reduced latents and of the squares;
    the centre of the unit cube, and the largest latent value.
    """
    latents = np.asarray(latents, dtype=np.float64)
    directions, centre = axes(latents.shape[1], classes)
    reduced = latents @ directions.T
    owns = np.equal.outer(np.arange(classes), labels).astype(np.float64)
    constants = np.tile([*centre, latents.max()], (classes, 1))
    sent = [owns.sum(axis=1)[:, None], owns @ reduced, owns @ reduced**2, constants]
    return np.hstack(sent)


def descriptors(sent: Floats, per_label: bool) -> list[Floats]:
    """The parts of all clients' descriptors, each (n, L), before they are scaled."""
    width = (sent.shape[2] - 2) // 3
    counts, sums, squares, centres = np.split(sent[..., :-1], [1, 1 + width, 1 + 2 * width], axis=2)
    origin = MARGIN * sent[..., -1].max() * centres[0, 0]

    def parts(number: Floats, total: Floats, square: Floats) -> list[Floats]:
        mean = total / np.maximum(number, 1.0)
        deviation = np.sqrt(np.maximum(square / np.maximum(number, 1.0) - mean**2, 0.0))
        few = number < NEIGHBOURHOOD
        return [np.where(few, MISSING, mean - origin), np.where(few, MISSING, deviation)]

    found = parts(counts.sum(axis=1), sums.sum(axis=1), squares.sum(axis=1))
    for label in range(sent.shape[1]) if per_label else ():
        found += parts(counts[:, label], sums[:, label], squares[:, label])
    return found


def scaled(parts: list[Floats], members: Labels) -> Floats:
    """All parts side by side, each from 0 to 1 over the ``members``, (n, P L)."""
    ranges = [(part[members].min(), np.ptp(part[members])) for part in parts]
    return np.hstack(
        [
            (part - low) / (span if span > 0 else 1.0)
            for part, (low, span) in zip(parts, ranges, strict=True)
        ]
    )


def knee(values: Floats) -> int | None:
    """Kneedle (Satopaa et al. 2011): where a sorted, convex curve bends upwards.

    The curve is turned by 180 degrees, so that the knee of a concave one is sought. Its difference
    from the diagonal has a knee at a local maximum, if it then falls by more than the mean step
    along the curve before it rises again, or falls below zero. The ends can be extrema, as in
    kneed 0.8.5, the library's release of the time.
    """
    count, span = len(values), float(np.ptp(values))
    if count < NEIGHBOURHOOD or span == 0:
        return None
    above = (values.max() - values[::-1]) / span - np.linspace(0.0, 1.0, count)
    before, after = above[np.r_[0, : count - 1]], above[np.r_[1:count, count - 1]]
    peaks, valleys = (above >= before) & (above >= after), (above <= before) & (above <= after)
    peak, threshold = -1, -np.inf
    for i in range(count - 1):
        if peaks[i]:
            peak, threshold = i, above[i] - SENSITIVITY / (count - 1)
        if valleys[i] and peak >= 0:
            threshold = 0.0
        if above[i + 1] < threshold:
            return count - 1 - peak
    return None


def clusters(points: Floats) -> Labels:
    """DBSCAN at the knee; every client that it takes for noise is a cluster of its own, (n,)."""
    distances = cdist(points, points)
    np.fill_diagonal(distances, np.inf)
    ascending = np.sort(distances.min(axis=1))
    bend = knee(ascending)
    radius = float(ascending[-1] if bend is None else ascending[bend])
    labels = DBSCAN(eps=max(radius, 1e-12), min_samples=NEIGHBOURHOOD).fit_predict(points)
    noise = labels < 0
    labels[noise] = labels.max() + 1 + np.arange(noise.sum())
    return np.asarray(labels)


def grouped(sent: Floats, per_label: bool) -> Grouping:
    """FLUX's groups as a grouping of discovery's, the largest first."""
    groups = clusters(scaled(descriptors(sent, per_label), np.arange(len(sent))))
    order = np.argsort(-np.bincount(groups), kind="stable")
    groups = np.argsort(order)[groups]
    sizes = np.bincount(groups)
    return Grouping(
        groups=groups,
        weights=np.eye(len(sizes))[groups],
        several=np.zeros(len(groups), dtype=bool),
        evidence=np.zeros((len(groups), len(groups))),
        alone=sizes[groups] == 1,
        agreement=0.0,
        established=True,
        sentence=f"FLUX: {len(sizes)} groups of {', '.join(map(str, sizes))}",
    )


def nearest(sent: Floats, per_label: bool, groups: Labels) -> Floats:
    """All weight to the group whose centre is nearest, (n, K), for clients without a group."""
    points = scaled(descriptors(sent, per_label), np.flatnonzero(groups >= 0))
    count = int(groups.max()) + 1
    centres = np.full((count, points.shape[1]), np.inf)
    for group in np.unique(groups[groups >= 0]):
        centres[group] = points[groups == group].mean(axis=0)
    closest = cdist(points, centres).argmin(axis=1)
    return np.eye(count)[np.where(groups >= 0, groups, closest)]


@contextmanager
def described() -> Iterator[Callable[[Floats], Floats]]:
    """Clients in this block take their fingerprints as ever, and keep their moments beside them.

    What it gives looks up the moments of some clients, (n, C, 2 + 3 L), by their fingerprints.
    """
    taken = fingerprint.take
    known: dict[bytes, Floats] = {}

    def take(features: Floats, labels: Labels, classes: int) -> tuple[Floats, Floats]:
        result = taken(features, labels, classes)
        known[result[0].tobytes()] = moments(features, labels, classes)
        return result

    fingerprint.take = take
    try:
        yield lambda fingerprints: np.stack([known[one.tobytes()] for one in fingerprints])
    finally:
        fingerprint.take = taken


@contextmanager
def in_place_of_discovery(per_label: bool) -> Iterator[None]:
    """Runs in this block group clients as FLUX does; training is the same."""
    found, placed = grouping.find, grouping.place
    with described() as sent:

        def find(fingerprints: Floats, scatter: Floats) -> Grouping:
            return grouped(sent(fingerprints), per_label)

        def place(
            fingerprints: Floats, scatter: Floats, groups: Labels, agreement: float
        ) -> tuple[Floats, Flags]:
            weights = nearest(sent(fingerprints), per_label, groups)
            return weights, np.zeros(len(groups), dtype=bool)

        grouping.find, grouping.place = find, place
        try:
            yield
        finally:
            grouping.find, grouping.place = found, placed
