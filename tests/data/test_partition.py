"""Label shift: samples are dealt out in equal parts, once each, the same way every time."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrc_flwr.data.partition import Indices, dirichlet_split
from fedrc_flwr.errors import DataError

ROOT = Path(__file__).parents[2]
CLASSES = 10
BALANCED = np.repeat(np.arange(CLASSES), 400)

DIGEST = """
import hashlib
import numpy as np
from fedrc_flwr.data.partition import dirichlet_split
labels = np.repeat(np.arange(10), 400)
parts = dirichlet_split(labels, 20, 0, {alpha}, np.random.default_rng(7))
print(hashlib.sha256(np.stack(parts).tobytes()).hexdigest())
"""


def split(
    alpha: float, clients: int = 40, seed: int = 0, samples: int = 0, labels: Indices = BALANCED
) -> list[Indices]:
    return dirichlet_split(labels, clients, samples, alpha, np.random.default_rng(seed))


def effective_classes(part: Indices) -> float:
    """exp of the entropy of a client's class mix: C for an even mix, 1 for a single class."""
    shares = np.bincount(BALANCED[part], minlength=CLASSES) / len(part)
    shares = shares[shares > 0]
    return float(np.exp(-(shares * np.log(shares)).sum()))


def mean_effective_classes(alpha: float) -> float:
    return float(np.mean([effective_classes(p) for s in range(3) for p in split(alpha, seed=s)]))


@settings(max_examples=60)
@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=80),
    clients=st.integers(1, 12),
    samples=st.integers(0, 8),
    alpha=st.floats(min_value=0, exclude_min=True, allow_nan=False),
    seed=st.integers(0, 2**31 - 1),
)
def test_every_client_gets_equally_many_samples_that_nobody_else_has(
    labels: list[int], clients: int, samples: int, alpha: float, seed: int
) -> None:
    expected = samples or max(1, len(labels) // clients)
    if expected * clients > len(labels):
        with pytest.raises(DataError):
            split(alpha, clients, seed, samples, np.array(labels))
        return

    parts = split(alpha, clients, seed, samples, np.array(labels))

    assert [len(part) for part in parts] == [expected] * clients
    dealt = np.concatenate(parts)
    assert len(set(dealt.tolist())) == len(dealt)
    assert set(dealt.tolist()) <= set(range(len(labels)))


def test_number_of_samples_can_be_asked_for() -> None:
    parts = split(alpha=1.0, clients=5, samples=17)

    assert [len(part) for part in parts] == [17] * 5


@pytest.mark.parametrize("alpha", [0.1, 1.0, math.inf])
def test_same_seed_gives_the_same_split(alpha: float) -> None:
    one, again, other = split(alpha, seed=3), split(alpha, seed=3), split(alpha, seed=4)

    np.testing.assert_array_equal(np.stack(one), np.stack(again))
    assert not np.array_equal(np.stack(one), np.stack(other))


@pytest.mark.parametrize("alpha", [1.0, math.inf])
def test_another_process_gives_the_same_split(alpha: float) -> None:
    program = DIGEST.format(alpha=f"float('{alpha}')")
    mine = hashlib.sha256(np.stack(split(alpha, clients=20, seed=7)).tobytes()).hexdigest()

    theirs = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert theirs.stdout.strip() == mine


def test_skew_grows_as_alpha_falls() -> None:
    means = [mean_effective_classes(alpha) for alpha in (math.inf, 100.0, 10.0, 1.0, 0.1)]

    assert means == sorted(means, reverse=True)
    assert means[0] - means[-1] > 5.0


def test_alpha_of_one_gives_two_to_three_classes_a_client() -> None:
    assert 1.5 < mean_effective_classes(1.0) < 3.5


def test_infinite_alpha_gives_nearly_equal_mixes() -> None:
    parts = split(math.inf, clients=10)

    shares = np.array([np.bincount(BALANCED[part], minlength=CLASSES) for part in parts]) / 400
    assert np.abs(shares - 0.1).max() < 0.06
    assert min(effective_classes(part) for part in parts) > 9.5


def test_client_has_its_samples_in_no_order_of_class() -> None:
    part = BALANCED[split(math.inf, clients=10)[0]]

    assert not np.array_equal(part, np.sort(part))


def test_one_client_can_have_everything() -> None:
    (part,) = split(alpha=0.01, clients=1)

    np.testing.assert_array_equal(np.sort(part), np.arange(len(BALANCED)))


@pytest.mark.parametrize(
    ("labels", "clients", "samples"),
    [
        (np.zeros(3, dtype=np.int64), 4, 0),
        (np.zeros(10, dtype=np.int64), 4, 3),
        (np.zeros(0, dtype=np.int64), 1, 0),
    ],
)
def test_more_than_there_is_is_refused_with_both_numbers(
    labels: Indices, clients: int, samples: int
) -> None:
    with pytest.raises(DataError) as refusal:
        split(1.0, clients, samples=samples, labels=labels)

    message = str(refusal.value)
    assert f"{clients} clients of {samples or 1} samples" in message
    assert f"dataset has {len(labels)}" in message
    assert "lower clients or samples-per-client" in message
