"""Concept shift: the maps by hand, and exact shares of clients."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrc_flwr.data.concepts import assign_concepts, concept_map, draw_concepts, flip_labels


def sizes(shares: tuple[float, ...], clients: int, seed: int = 0) -> list[int]:
    nobody = (0.0,) * len(shares)
    concepts, _ = assign_concepts(shares, nobody, clients, np.random.default_rng(seed))
    return np.bincount(concepts, minlength=len(shares)).tolist()


@pytest.mark.parametrize(
    ("concept", "expected"), [(0, [0, 1, 2, 3]), (1, [3, 2, 1, 0]), (2, [1, 2, 3, 0])]
)
def test_first_three_concepts_are_the_papers(concept: int, expected: list[int]) -> None:
    assert concept_map(concept, 4, seed=5).tolist() == expected


@pytest.mark.parametrize("concept", range(8))
def test_every_concept_is_a_permutation(concept: int) -> None:
    assert sorted(concept_map(concept, 10, seed=1).tolist()) == list(range(10))


def test_concepts_beyond_the_third_differ_from_each_other_and_follow_the_seed() -> None:
    maps = [concept_map(concept, 10, seed=1).tolist() for concept in range(8)]

    assert all(a != b for i, a in enumerate(maps) for b in maps[:i])
    assert concept_map(5, 10, seed=1).tolist() == maps[5]
    assert concept_map(5, 10, seed=2).tolist() != maps[5]


@pytest.mark.parametrize(
    ("shares", "clients", "expected"),
    [
        ((0.5, 0.25, 0.25), 12, [6, 3, 3]),
        ((0.8, 0.1, 0.1), 10, [8, 1, 1]),
        ((0.1, 0.2, 0.7), 10, [1, 2, 7]),
        ((1 / 3, 1 / 3, 1 / 3), 10, [4, 3, 3]),
        ((0.5, 0.3, 0.2), 4, [2, 1, 1]),
        ((0.6, 0.4), 1, [1, 0]),
        ((1.0,), 7, [7]),
    ],
)
def test_shares_of_clients_are_exact_to_the_largest_remainder(
    shares: tuple[float, ...], clients: int, expected: list[int]
) -> None:
    assert sizes(shares, clients) == expected


@given(
    weights=st.lists(st.integers(0, 100), min_size=1, max_size=6).filter(any),
    clients=st.integers(1, 300),
)
def test_no_concept_is_off_by_a_whole_client(weights: list[int], clients: int) -> None:
    shares = tuple(weight / sum(weights) for weight in weights)

    found = sizes(shares, clients)

    assert sum(found) == clients
    assert all(abs(n - share * clients) < 1 for n, share in zip(found, shares, strict=True))


def test_corrupted_clients_are_exact_within_each_concept() -> None:
    concepts, corrupted = assign_concepts(
        (0.5, 0.25, 0.25), (0.4, 0.2, 1.0), 40, np.random.default_rng(0)
    )

    assert [int(corrupted[concepts == c].sum()) for c in range(3)] == [8, 2, 10]


def test_who_has_which_concept_follows_the_generator() -> None:
    def draw(seed: int) -> list[int]:
        rng = np.random.default_rng(seed)
        return assign_concepts((0.5, 0.5), (0.5, 0.5), 30, rng)[0].tolist()

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert any(a > b for a, b in pairwise(draw(1)))


# --- label noise --------------------------------------------------------------------------------


def test_pair_noise_flips_to_the_next_class_at_its_rate() -> None:
    labels = np.repeat(np.arange(4), 5000)

    noisy = flip_labels(labels, "pair", 0.3, 4, np.random.default_rng(0))

    steps = np.bincount((noisy - labels) % 4, minlength=4) / len(labels)
    np.testing.assert_allclose(steps, [0.7, 0.3, 0, 0], atol=0.02)


def test_symmetric_noise_flips_to_every_other_class_alike() -> None:
    labels = np.repeat(np.arange(4), 5000)

    noisy = flip_labels(labels, "symmetric", 0.3, 4, np.random.default_rng(0))

    steps = np.bincount((noisy - labels) % 4, minlength=4) / len(labels)
    np.testing.assert_allclose(steps, [0.7, 0.1, 0.1, 0.1], atol=0.02)


@pytest.mark.parametrize(
    ("how", "rate", "classes"), [("none", 1, 4), ("pair", 0, 4), ("pair", 1, 1)]
)
def test_labels_without_noise_stay(how: str, rate: float, classes: int) -> None:
    labels = np.arange(20) % classes

    noisy = flip_labels(labels, how, rate, classes, np.random.default_rng(0))

    np.testing.assert_array_equal(noisy, labels)


def test_drawn_concepts_and_styles_are_equally_likely_and_independent() -> None:
    # 19 styles or none: one client in twenty has none, whatever its concept
    concepts, styled = draw_concepts(3, 19, 60_000, np.random.default_rng(0))

    assert np.bincount(concepts) / 60_000 == pytest.approx([1 / 3] * 3, abs=0.01)
    for concept in range(3):
        assert 1 - styled[concepts == concept].mean() == pytest.approx(0.05, abs=0.006)
