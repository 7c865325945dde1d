"""Concept shift: the same input has another label."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def concept_map(concept: int, classes: int, seed: int) -> NDArray[np.int64]:
    """``map[y]`` is the label that concept ``concept`` gives to class y.

    0 is the identity, 1 is C-1-y, 2 is (y+1) mod C; beyond that seeded permutations.
    """
    labels = np.arange(classes)
    if concept == 0:
        return labels
    if concept == 1:
        return labels[::-1].copy()
    if concept == 2:
        return (labels + 1) % classes
    return np.random.default_rng([seed, concept, 0xC0]).permutation(classes)


def flip_labels(
    labels: NDArray[np.int64], how: str, rate: float, classes: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Label noise: each label is wrong with probability ``rate``.

    ``pair`` flips to the next class, ``symmetric`` to any other class with equal probability;
    ``none`` flips nothing.
    """
    if how == "none" or classes < 2:
        return labels
    hit = rng.random(len(labels)) < rate
    steps = rng.integers(1, classes, len(labels)) if how == "symmetric" else 1
    flipped: NDArray[np.int64] = np.where(hit, (labels + steps) % classes, labels)
    return flipped


def assign_concepts(
    shares: tuple[float, ...],
    corrupted: tuple[float, ...],
    clients: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Concept of each client, and whether its images are corrupted, in exact shares.

    Fractional numbers are rounded by largest remainder, so that they add up.
    """
    sizes = _round_to_total(np.array(shares) * clients, clients)
    order = rng.permutation(clients)
    concepts = np.empty(clients, dtype=np.int64)
    styled = np.zeros(clients, dtype=np.bool_)
    start = 0
    for concept, size in enumerate(sizes):
        members = order[start : start + size]
        concepts[members] = concept
        styled[members[: int(np.floor(corrupted[concept] * size + 0.5))]] = True
        start += size
    return concepts, styled


def draw_concepts(
    concepts: int, styles: int, clients: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Concept of each client, and whether it has one of the styles, each drawn by itself.

    All concepts are equally likely, and so are all styles and having none.
    """
    return rng.integers(concepts, size=clients), rng.integers(styles + 1, size=clients) > 0


def _round_to_total(values: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    floors = np.floor(values + 1e-9).astype(np.int64)
    remainders = values - floors
    extra = np.argsort(-remainders, kind="stable")[: total - int(floors.sum())]
    floors[extra] += 1
    return floors
