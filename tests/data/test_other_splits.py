"""Classes dealt out by Dirichlet, and samples dealt out at random."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrc_flwr.data.partition import dirichlet_by_class, split_samples
from fedrc_flwr.errors import DataError

LABELS = np.repeat(np.arange(10), 200)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 40),
    st.sampled_from([1e-9, 1e-3, 0.1, 1.0, 100.0, math.inf]),
    st.integers(1, 50),
    st.integers(0, 99),
)
def test_every_sample_goes_to_one_client_and_nobody_has_too_few(
    clients: int, alpha: float, fewest: int, seed: int
) -> None:
    parts = dirichlet_by_class(LABELS, clients, alpha, fewest, np.random.default_rng(seed))

    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(LABELS)))
    assert min(len(part) for part in parts) >= fewest


def test_small_alpha_gives_a_class_to_few_clients_and_a_large_one_to_all() -> None:
    def largest_share(alpha: float) -> float:
        parts = dirichlet_by_class(LABELS, 10, alpha, 1, np.random.default_rng(0))
        counts = np.stack([np.bincount(LABELS[part], minlength=10) for part in parts])
        return float((counts.max(axis=0) / 200).mean())

    assert largest_share(0.05) > 0.7
    assert largest_share(1000.0) < 0.13
    assert largest_share(math.inf) == 0.1


def test_same_generator_gives_the_same_split() -> None:
    one, other = (
        dirichlet_by_class(LABELS, 8, 0.5, 10, np.random.default_rng(3)) for _ in range(2)
    )

    for part, same in zip(one, other, strict=True):
        np.testing.assert_array_equal(part, same)


def test_samples_of_a_client_come_in_no_order() -> None:
    part = dirichlet_by_class(LABELS, 2, 100.0, 10, np.random.default_rng(0))[0]

    assert (np.diff(LABELS[part]) < 0).mean() > 0.3


def test_more_samples_than_there_are_cannot_be_the_fewest() -> None:
    with pytest.raises(DataError, match=r"50 clients of at least min-samples = 41 need 2050"):
        dirichlet_by_class(LABELS, 50, 1.0, 41, np.random.default_rng(0))


def test_iid_parts_are_equal_disjoint_and_alike_in_classes() -> None:
    parts = split_samples(LABELS, "iid", 7, 0, 0.1, 10, np.random.default_rng(0))

    assert {len(part) for part in parts} == {2000 // 7}
    assert len(np.unique(np.concatenate(parts))) == 7 * (2000 // 7)
    assert min(np.bincount(LABELS[part], minlength=10).min() for part in parts) > 10


def test_iid_split_of_more_than_there_is_is_refused() -> None:
    with pytest.raises(DataError, match="3 clients of 1000 samples need 3000"):
        split_samples(LABELS, "iid", 3, 1000, 0.1, 10, np.random.default_rng(0))
