"""Feature shift: what every style of corruption keeps, and that severity means something."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fedrc_flwr.data.corruptions import STYLES, Images, corrupt
from fedrc_flwr.data.datasets import load_dataset

SEVERITIES = range(1, 6)
every_style = pytest.mark.parametrize("style", sorted(STYLES))
every_severity = pytest.mark.parametrize("severity", SEVERITIES)


def images(side: int = 8, number: int = 200) -> Images:
    digits = load_dataset("digits").train_inputs[:number]
    return np.ascontiguousarray(np.kron(digits, np.ones((1, side // 8, side // 8), np.float32)))


def corrupted(style: str, severity: int, seed: int = 0, side: int = 8) -> Images:
    return corrupt(images(side), style, severity, np.random.default_rng(seed))


@every_severity
@every_style
def test_same_generator_gives_the_same_images(style: str, severity: int) -> None:
    np.testing.assert_array_equal(corrupted(style, severity), corrupted(style, severity))


@pytest.mark.parametrize("style", ["gaussian_noise", "impulse_noise", "shot_noise"])
def test_noise_differs_between_generators(style: str) -> None:
    assert not np.array_equal(corrupted(style, 3, seed=0), corrupted(style, 3, seed=1))


@pytest.mark.parametrize("side", [8, 24])
@every_severity
@every_style
def test_shape_range_and_type_are_kept(style: str, severity: int, side: int) -> None:
    result = corrupted(style, severity, side=side)

    assert (result.shape, result.dtype) == ((200, side, side), np.float32)
    assert 0.0 <= result.min() < result.max() <= 1.0


@every_severity
@every_style
def test_originals_are_left_alone_and_the_copies_differ(style: str, severity: int) -> None:
    originals = images()

    result = corrupt(originals, style, severity, np.random.default_rng(0))

    np.testing.assert_array_equal(originals, images())
    changed = (result != originals).any(axis=(1, 2))
    assert changed.mean() > 0.4


@pytest.mark.parametrize("side", [8, 24])
@every_style
def test_change_does_not_shrink_as_severity_grows(style: str, side: int) -> None:
    changes = [
        float(np.abs(corrupted(style, severity, side=side) - images(side)).mean())
        for severity in SEVERITIES
    ]

    assert changes[0] > 0
    assert all(weaker <= stronger for weaker, stronger in pairwise(changes))
    assert changes[-1] > changes[0]


@every_style
def test_worst_images_are_still_images(style: str) -> None:
    """A corruption is a feature shift, not the loss of all content."""
    pairs = zip(corrupted(style, 5), images(), strict=True)

    likeness = [np.corrcoef(worst.ravel(), original.ravel())[0, 1] for worst, original in pairs]

    assert np.mean(likeness) > 0.5
