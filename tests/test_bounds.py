"""What an honest client's statistics can be, with and without noise."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedrc_flwr import privacy
from fedrc_flwr.algorithms.messages import Reply
from fedrc_flwr.bounds import MOST_NOISE, problem
from fedrc_flwr.discovery import fingerprint
from fedrc_flwr.discovery.fingerprint import UNITS
from fedrc_flwr.privacy import PrivacySettings


def honest(**changes: Any) -> Reply:
    """Ten samples: six of label 0 and four of label 2, in two clusters."""
    counts = np.array([[4.0, 0.0, 1.5], [2.0, 0.0, 2.5]])
    metrics = {"loss": 0.5, "accuracy": 0.9}
    return replace(Reply(10, {}, counts, None, 0.0, 0, metrics), **changes)


def measured(samples: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = np.abs(rng.normal(size=(samples, width)))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return fingerprint.take(features, rng.integers(0, 3, samples), 3)


def test_honest_reply_has_no_problem() -> None:
    assert problem(honest(), 10) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"samples": 10**12}, "claims 1000000000000 samples, but enrolled with 10"),
        ({"label_counts": np.full((2, 3), 1e6)}, "label counts are from 1e\\+06"),
        ({"label_counts": np.array([[12.0, 0, 0], [-2.0, 0, 0]])}, "label counts are from -2"),
        ({"label_counts": np.full((2, 3), 1.0)}, "label counts sum to 6, not to its 10 samples"),
        ({"label_counts": np.full((2, 3), 2.0)}, "label counts sum to 12, not to its 10 samples"),
        ({"cross_losses": np.array([[1.0, -3.0], [1.0, 1.0]])}, "loss table is from -3"),
        ({"cross_losses": np.full((2, 2), 1e9)}, "loss table is from 1e\\+09"),
        ({"metrics": {"loss": -1.0, "accuracy": 0.9}}, "its loss -1"),
        ({"metrics": {"loss": 0.5, "accuracy": 1.5}}, "accuracy is 1.5"),
        ({"noise": 10 * MOST_NOISE + 1}, "more than 10 times its 10 samples"),
    ],
)
def test_impossible_reply_is_named(changes: dict[str, Any], words: str) -> None:
    assert re.search(words, problem(honest(**changes), 10) or "none")


@pytest.mark.parametrize("clip", [1.0, 0.2, 0.0])
@pytest.mark.parametrize("noise", [0.5, 10.0, 100.0])
def test_noise_on_an_honest_reply_stays_within_bounds(noise: float, clip: float) -> None:
    settings = PrivacySettings(count_clip=clip)
    counts, rng = honest().label_counts, np.random.default_rng(1)
    taken = measured(10, 64)
    for _ in range(100):
        noisy, *parts = (
            privacy.release([counts], settings.sensitivity(10), noise, rng)
            + privacy.release(
                [p / u for p, u in zip(taken, UNITS, strict=True)],
                settings.sensitivity(10, 2), noise, rng,
            )
        )  # fmt: skip
        found, scatter = (p * u for p, u in zip(parts, UNITS, strict=True))
        reply = honest(label_counts=noisy, noise=noise, fingerprint=found, scatter=scatter)
        assert problem(reply, 10) is None


def test_noise_is_no_excuse_for_anything() -> None:
    # One number beyond 10 + 6 * 0.5, or below -6 * 0.5
    high, low = np.full((2, 3), -0.5), np.full((2, 3), 2.6)
    high[0, 0], low[0, 0] = 13.1, -3.1
    for counts in (high, low):
        reason = problem(honest(label_counts=counts, noise=0.5), 10)
        assert reason is not None
        assert "label counts are from" in reason
    # Each number is within 6 standard deviations, but all together are not
    counts = honest().label_counts + 5 * 0.5
    reason = problem(honest(label_counts=counts, noise=0.5), 10)
    assert reason is not None
    assert "sum to 25" in reason
    assert "with a noise of 0.5" in reason


@pytest.mark.parametrize("width", [8, 64, 300])
def test_honest_fingerprint_has_no_problem(width: int) -> None:
    taken, scatter = measured(50, width)
    reply = honest(samples=50, fingerprint=taken, scatter=scatter)
    reply = replace(reply, label_counts=honest().label_counts * 5)

    assert problem(reply, 50) is None


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("fingerprint", lambda a: a * 1e6, "fingerprint counts"),
        ("fingerprint", lambda a: -a, "fingerprint counts"),
        ("fingerprint", lambda a: a * np.array([1.0] + [5.0] * 8), "sums of features"),
        ("fingerprint", lambda a: 0 * a, "counts 0 of its 10 samples"),
        ("fingerprint", lambda a: 0.3 * a, "counts 3 of its 10 samples"),
        ("fingerprint", lambda a: np.stack([0.5 * a.sum(0), 0.5 * a.sum(0)]), "only 5 of its 10"),
        ("fingerprint", lambda a: np.stack([0 * a[0], a.sum(0)]), "only 0 of its 10"),
        ("scatter", lambda a: a * 1e9, "larger than its samples"),
        ("scatter", lambda a: -a, "not that of any samples"),
        ("scatter", lambda a: a + np.triu(np.ones_like(a), 1), "not that of any samples"),
    ],
)
def test_impossible_fingerprint_is_named(part: str, change: Any, words: str) -> None:
    taken, scatter = measured(10, 8)
    reply = honest(fingerprint=taken, scatter=scatter)

    reason = problem(replace(reply, **{part: change(getattr(reply, part))}), 10)

    assert reason is not None
    assert words in reason


def test_reply_counts_as_at_most_so_many_samples() -> None:
    reply = honest(noise=4.0).capped(5)

    assert reply.samples == 5
    assert reply.label_counts.sum() == pytest.approx(5.0)
    assert reply.noise == 2.0
    assert honest().capped(10).samples == 10
