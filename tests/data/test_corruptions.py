"""Feature shift: what every style of corruption keeps, and that severity means something."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import ndimage
from sklearn.datasets import load_digits, load_sample_images

from fedrc_flwr.data.corruptions import (
    COLOUR_STYLES,
    GREY_STYLES,
    SEVERITIES,
    STYLES,
    Images,
    corrupt,
    styles_for,
)
from fedrc_flwr.errors import DataError

ALL = [("colour", style) for style in COLOUR_STYLES] + [
    (kind, style) for kind in ("grey", "small grey") for style in GREY_STYLES
]
NOT_RANDOM = [
    ("colour", style)
    for style in (
        "defocus_blur", "zoom_blur", "gaussian_blur", "brightness", "contrast", "saturate",
        "pixelate", "jpeg_compression",
    )
] + [("grey", style) for style in (
    "blur", "brightness", "contrast", "scale", "stripe", "canny_edges"
)]  # fmt: skip
every_style = pytest.mark.parametrize(("kind", "style"), ALL)
every_severity = pytest.mark.parametrize("severity", SEVERITIES)


@cache
def images(kind: str) -> Images:
    """Crops of photographs at 32 x 32, or digits at 28 x 28 or as they are, at 8 x 8.

    The photographs' colours are taken halfway to grey: their mean saturation is then CIFAR's, 0.31.
    (scikit-learn's flower is so colourful that more saturation could hardly change it.)
    """
    if kind == "colour":
        crops = np.stack(
            [
                photograph[top : top + 160, left : left + 160].reshape(32, 5, 32, 5, 3)
                for photograph in load_sample_images().images
                for top in range(0, 241, 80)
                for left in range(0, 481, 80)
            ]
        ).mean(axis=(2, 4))
        crops = (crops + crops.mean(axis=3, keepdims=True)) / 2 / 255
        result = crops.transpose(0, 3, 1, 2).astype(np.float32)
    else:
        result = (load_digits().images[:60] / 16).astype(np.float32)
        if kind == "grey":
            result = np.clip(ndimage.zoom(result, (1, 3.5, 3.5), order=1), 0, 1)
    result.setflags(write=False)  # a corruption that writes into its input fails
    return result


@cache
def corrupted(kind: str, style: str, severity: int, seed: int = 0) -> Images:
    return corrupt(images(kind), style, severity, np.random.default_rng(seed))


def change(kind: str, style: str, severity: int) -> float:
    return float(np.abs(corrupted(kind, style, severity) - images(kind)).mean())


def test_registries_are_the_published_sets() -> None:
    assert set(COLOUR_STYLES) == {
        "gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "defocus_blur",
        "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur", "snow", "frost", "fog",
        "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression", "spatter",
        "saturate",
    }  # fmt: skip
    assert set(GREY_STYLES) == set(STYLES) | {
        "shot_noise", "impulse_noise", "glass_blur", "motion_blur", "shear", "scale", "rotate",
        "brightness", "translate", "stripe", "spatter", "dotted_line", "zigzag", "canny_edges",
        "fog",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("style", "mean"),
    [
        ("gaussian_noise", 0.3175525),
        ("shot_noise", 0.2872917),
        ("impulse_noise", 0.3107031),
        ("blur", 0.3029883),
        ("brightness", 0.6328437),
        ("contrast", 0.3029883),
    ],
)
def test_styles_of_the_demo_are_as_they_were(style: str, mean: float) -> None:
    digits = (load_digits().images[:50] / 16).astype(np.float32)

    result = corrupt(digits, style, 4, np.random.default_rng(7))

    assert len(STYLES) == 6
    assert GREY_STYLES[style] is STYLES[style]
    assert result.mean(dtype=np.float64) == pytest.approx(mean, abs=1e-6)


@every_style
def test_generator_alone_decides(kind: str, style: str) -> None:
    for severity in SEVERITIES:
        first = corrupted(kind, style, severity)
        np.random.seed(severity)
        torch.manual_seed(severity)
        before = np.random.get_state()[1].copy(), torch.get_rng_state()

        again = corrupt(images(kind), style, severity, np.random.default_rng(0))

        np.testing.assert_array_equal(first, again)
        np.testing.assert_array_equal(np.random.get_state()[1], before[0])
        assert torch.equal(torch.get_rng_state(), before[1])


@every_style
def test_random_styles_differ_between_generators_and_others_do_not(kind: str, style: str) -> None:
    same = np.array_equal(corrupted(kind, style, 3, seed=0), corrupted(kind, style, 3, seed=1))

    assert same == ((kind.removeprefix("small "), style) in NOT_RANDOM)


@every_style
def test_shape_range_and_type_are_kept(kind: str, style: str) -> None:
    for severity in SEVERITIES:
        result = corrupted(kind, style, severity)

        assert (result.shape, result.dtype) == (images(kind).shape, np.float32)
        assert np.isfinite(result).all()
        assert 0.0 <= result.min() < result.max() <= 1.0


@every_style
def test_images_change(kind: str, style: str) -> None:
    for severity in SEVERITIES:
        pixels = tuple(range(1, images(kind).ndim))

        changed = (corrupted(kind, style, severity) != images(kind)).any(axis=pixels)

        # Of the 64 pixels of a small digit one in a hundred may well be none.
        least = 0.4 if (kind, style) == ("small grey", "impulse_noise") else 1.0
        assert changed.mean() >= least


@every_style
def test_change_does_not_shrink_as_severity_grows(kind: str, style: str) -> None:
    changes = [change(kind, style, severity) for severity in SEVERITIES]

    assert changes[0] > 0
    assert all(weaker <= stronger for weaker, stronger in pairwise(changes))
    assert changes[-1] > 1.2 * changes[0]


@pytest.mark.parametrize("style", sorted(set(GREY_STYLES) - {"blur"}))
def test_small_and_large_images_suffer_alike(style: str) -> None:
    """Within a factor of two, on average over severities.

    The demo's blur is left out: 0.03 of 8 pixels is below what its weakest levels can show.
    """
    large, small = (
        np.mean([change(kind, style, severity) for severity in SEVERITIES])
        for kind in ("grey", "small grey")
    )

    assert 0.5 < small / large < 2


@pytest.mark.parametrize("style", COLOUR_STYLES)
def test_larger_colour_images_work(style: str) -> None:
    large = images("colour")[:4].repeat(2, axis=2).repeat(2, axis=3)

    result = corrupt(large, style, 3, np.random.default_rng(0))

    assert result.shape == (4, 3, 64, 64)
    assert 0.2 < np.abs(result - large).mean() / change("colour", style, 3) < 3


@pytest.mark.parametrize("kind", ["colour", "grey"])
@every_severity
def test_one_image_is_enough(kind: str, severity: int) -> None:
    for style in styles_for(images(kind).shape[1:]):
        result = corrupt(images(kind)[:1], style, severity, np.random.default_rng(0))

        assert result.shape == images(kind)[:1].shape
        assert not np.array_equal(result, images(kind)[:1])


@pytest.mark.parametrize(("kind", "style"), NOT_RANDOM)
def test_a_batch_is_its_images_one_by_one(kind: str, style: str) -> None:
    rng = np.random.default_rng(0)
    single = [corrupt(images(kind)[i : i + 1], style, 4, rng) for i in range(5)]

    np.testing.assert_allclose(corrupted(kind, style, 4)[:5], np.concatenate(single), atol=1e-6)


@pytest.mark.parametrize(("kind", "style"), [pair for pair in ALL if pair[0] != "small grey"])
def test_black_and_white_images_stay_numbers(kind: str, style: str) -> None:
    blank = np.zeros_like(images(kind)[:2])
    blank[1] = 1.0

    for severity in SEVERITIES:
        result = corrupt(blank, style, severity, np.random.default_rng(0))
        assert np.isfinite(result).all()


@pytest.mark.parametrize("style", sorted(STYLES))
def test_worst_images_of_the_demo_are_still_images(style: str) -> None:
    """A corruption is a feature shift, not the loss of all content."""
    pairs = zip(corrupted("small grey", style, 5), images("small grey"), strict=True)

    likeness = [np.corrcoef(worst.ravel(), original.ravel())[0, 1] for worst, original in pairs]

    assert np.mean(likeness) > 0.5


@pytest.mark.parametrize(
    ("shape", "style", "severity", "message"),
    [
        ((2, 8, 8), "snow", 1, r"style 'snow': expected one of blur, "),
        ((2, 3, 8, 8), "zigzag", 1, r"style 'zigzag': expected one of brightness, "),
        ((2, 8, 8), "blur", 6, r"severity 6: expected 1 to 5"),
        ((2, 8), "blur", 1, r"inputs of shape \(8,\) cannot be corrupted"),
        ((2, 4, 8, 8), "fog", 1, r"inputs of shape \(4, 8, 8\) cannot be corrupted"),
    ],
)
def test_what_does_not_fit_is_refused(
    shape: tuple[int, ...], style: str, severity: int, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        corrupt(np.zeros(shape, np.float32), style, severity, np.random.default_rng(0))


def test_heavy_libraries_are_loaded_only_when_needed() -> None:
    """Every message of a deployment starts a fresh process."""
    code = (
        "import sys, fedrc_flwr.data.corruptions;"
        "print(sorted({'PIL', 'scipy', 'torch', 'torchvision'} & set(sys.modules)))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert loaded.stdout.strip() == "[]"
