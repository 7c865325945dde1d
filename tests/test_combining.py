"""Robust averages of updates, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrc_flwr import combining
from fedrc_flwr.aggregation import BODY, ServerSettings, UpdateSums
from fedrc_flwr.combining import HeldUpdates


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_trimmed_mean_by_hand() -> None:
    updates = [floats(1, 0), floats(2, 1e30), floats(3, 1), floats(9, 2), floats(-1e30, 3)]

    # floor(0.25 * 5) = 1 at each end: (1 + 2 + 3) / 3 and (1 + 2 + 3) / 3
    np.testing.assert_allclose(combining.trimmed_mean(updates, 0.25), [2.0, 2.0])
    # Nothing is left out of four with a fifth: floor(0.8) = 0
    np.testing.assert_allclose(combining.trimmed_mean(updates[:1] + updates[2:4], 0.2)[0], 13 / 3)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_trimmed_mean_always_keeps_one(count: int) -> None:
    updates = [floats(1.0)] + [floats(5.0)] * (count - 1)

    assert combining.trimmed_mean(updates, 0.49)[0] == [1.0, 3.0, 5.0][count - 1]


def test_median_by_hand() -> None:
    assert combining.median([floats(5), floats(-1e30), floats(2)])[0] == 2.0
    assert combining.median([floats(5), floats(1), floats(2), floats(1e30)])[0] == 3.5


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_blocks_do_not_change_the_result(count: int, size: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32)
    before, combining.BLOCK = combining.BLOCK, 7
    try:
        found = combining.median(list(values))
    finally:
        combining.BLOCK = before

    np.testing.assert_allclose(found, np.median(values.astype(np.float64), axis=0))


def test_only_members_count_and_each_counts_the_same() -> None:
    held = HeldUpdates(absent_is_zero=False, combine=combining.median)
    held.add({0: floats(1), 1: floats(100)}, samples=1, home=0)
    held.add({0: floats(2)}, samples=1000, home=0)
    held.add({0: floats(9)}, samples=10, home=0)
    held.add({0: floats(-50), 1: floats(7)}, samples=10, home=1)

    means = held.means()

    assert means[0] == [2.0]
    assert means[1] == [7.0]


def test_members_are_scaled_by_their_share_where_absence_counts_as_zero() -> None:
    # 30 of 40 samples are those of cluster 0's members, as in FedRC's mean
    held = HeldUpdates(absent_is_zero=True, combine=combining.median)
    held.add({0: floats(4), BODY: floats(1)}, samples=10, home=0)
    held.add({0: floats(4), BODY: floats(1)}, samples=20, home=0)
    held.add({0: floats(0.1), BODY: floats(5)}, samples=10, home=1)

    means = held.means()

    assert means[0] == [3.0]
    assert means[BODY] == [1.0]


def test_held_updates_of_another_level_are_scaled() -> None:
    held, long = (HeldUpdates(False, combining.median) for _ in range(2))
    held.add({0: floats(1)}, 1)
    long.add({0: floats(10)}, 1)

    held.take_in(long, 0.3)

    assert held.means()[0] == pytest.approx([2.0])


def test_what_is_held_is_a_copy() -> None:
    held, sent = HeldUpdates(False, combining.median), floats(1.0)
    held.add({0: sent}, 1)
    sent[0] = 8.0

    assert held.means()[0] == [1.0]


@pytest.mark.parametrize(
    ("aggregation", "expected"), [("mean", 26.5), ("trimmed", 2.5), ("median", 2.5)]
)
def test_the_setting_chooses_the_average(aggregation: str, expected: float) -> None:
    collector = ServerSettings(aggregation=aggregation, trim=0.25).collector(False)
    for value in (1.0, 2.0, 3.0, 100.0):
        collector.add({0: floats(value)}, 5, home=0)

    assert collector.means()[0] == pytest.approx([expected])


def test_sums_of_another_level_are_scaled_and_keep_their_mass() -> None:
    # 1 sample at 2 and 3 samples at 8 scaled to 4: (1 * 2 + 3 * 4) / 4
    sums = UpdateSums(absent_is_zero=False)
    long = sums.empty()
    sums.add({0: floats(2)}, 1)
    long.add({0: floats(8)}, 3)

    sums.take_in(long, 0.5)

    assert sums.means()[0] == [3.5]
    assert sums.samples == 4
