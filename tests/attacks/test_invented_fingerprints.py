"""One client that invents its fingerprint or its scatter, against the groups of the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fedrc_flwr.discovery.fingerprint import take
from fedrc_flwr.discovery.grouping import find
from fedrc_flwr.discovery.space import pooled_scatter

CLIENTS, CLASSES, FEATURES, SAMPLES = 15, 6, 8, 20
ATTACKER = 4
Invent = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def measured() -> tuple[np.ndarray, np.ndarray]:
    """Fingerprints and scatters of clients with three concepts in turn; features of unit length."""
    rng = np.random.default_rng(3)
    contents = rng.normal(size=(CLASSES, FEATURES))
    taken = []
    for client in range(CLIENTS):
        labels = np.repeat(np.arange(CLASSES), SAMPLES)
        features = contents[(labels + client % 3) % CLASSES]
        features = features + 0.15 * rng.normal(size=(len(labels), FEATURES))
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        taken.append(take(features, labels, CLASSES))
    return np.stack([f for f, _ in taken]), np.stack([s for _, s in taken])


def alike(means: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.repeat(means.mean(axis=(0, 1))[None], CLASSES, axis=0)


def far(means: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    centre = means.mean(axis=(0, 1))
    return np.repeat(-centre[None] / np.linalg.norm(centre), CLASSES, axis=0)


def anywhere(means: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    drawn = rng.normal(size=(CLASSES, FEATURES))
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def between(means: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return 0.5 * (means[0] + means[1])


def half_each(means: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.where(np.arange(CLASSES)[:, None] % 2 == 0, means[0], means[1])


MEANS: dict[str, Invent] = {
    "all labels alike": alike, "far from all": far, "random": anywhere,
    "between two concepts": between, "half of each concept": half_each,
}  # fmt: skip
#: What a client may send as its scatter: its own, none, all in one direction, and what the claim
#: to have added noise lets pass.
TIMES = {"own": 0.0, "most of its samples": 1.0, "by its noise": 240.0, "negative": -240.0}


@pytest.mark.parametrize("means", MEANS)
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("apart", [0.0, 0.5])
def test_others_stay_in_their_groups(means: str, times: str, apart: float) -> None:
    fingerprints, scatters = measured()
    honest = find(fingerprints, pooled_scatter(scatters, np.full(CLIENTS, 120.0)))
    rng = np.random.default_rng(0)
    usual = fingerprints[:, 0, :, 1:] / fingerprints[:, 0, :, :1]
    counts = np.full(CLASSES, float(SAMPLES))
    invented = np.column_stack([counts, counts[:, None] * MEANS[means](usual, rng)])
    # Its samples may contradict each other as much as it likes.
    fingerprints[ATTACKER] = np.stack([1.0 - apart, apart])[:, None, None] * invented
    if TIMES[times]:
        telling = np.linalg.svd((usual - usual.mean(axis=(0, 1))).reshape(-1, FEATURES))[2][0]
        scatters[ATTACKER] = TIMES[times] * CLASSES * SAMPLES * np.outer(telling, telling)

    found = find(fingerprints, pooled_scatter(scatters, np.full(CLIENTS, 120.0)))

    others = [i for i in range(CLIENTS) if i != ATTACKER]
    assert honest.groups.tolist() == [0, 1, 2] * 5
    assert found.established
    same = found.groups[others][:, None] == found.groups[others]
    np.testing.assert_array_equal(same, np.subtract.outer(others, others) % 3 == 0)


def test_scatter_of_one_client_is_no_larger_than_three_times_the_median() -> None:
    scatters = np.stack([np.eye(3)] * 4 + [np.diag([1e9, 0.0, 0.0])])

    pooled = pooled_scatter(scatters, np.full(5, 10.0))

    np.testing.assert_allclose(pooled, 4 * np.eye(3) + np.diag([3 * np.sqrt(3), 0, 0]))


def test_noise_that_is_not_symmetric_is() -> None:
    scatters = np.stack([np.arange(4.0).reshape(2, 2)] * 2)

    np.testing.assert_allclose(pooled_scatter(scatters, np.ones(2)), [[0, 3], [3, 6]])
