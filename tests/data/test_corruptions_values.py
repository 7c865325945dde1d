"""Single corruptions on images whose result is known."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fedrc_flwr.data.corruptions import Images, corrupt
from fedrc_flwr.data.corruptions.common import plasma, smear
from fedrc_flwr.data.corruptions.grey import edges_of


def apply(images: Images, style: str, severity: int) -> Images:
    return corrupt(images, style, severity, np.random.default_rng(0))


def colour(*values: float) -> Images:
    """One image of a single colour."""
    return np.broadcast_to(np.array(values, np.float32).reshape(1, 3, 1, 1), (1, 3, 32, 32))


def dot(side: int = 29) -> Images:
    """A white pixel in the middle of black."""
    image = np.zeros((1, side, side), np.float32)
    image[0, side // 2, side // 2] = 1
    return image


def noise(*shape: int) -> Images:
    return np.random.default_rng(5).random(shape, dtype=np.float32)


@pytest.mark.parametrize(("severity", "deviation"), [(1, 0.04), (5, 0.10)])
def test_gaussian_noise_has_the_published_deviation(severity: int, deviation: float) -> None:
    result = apply(np.full((50, 3, 32, 32), 0.5, np.float32), "gaussian_noise", severity)

    assert result.std() == pytest.approx(deviation, rel=0.02)


def test_shot_noise_has_the_variance_of_counted_photons() -> None:
    result = apply(np.full((50, 3, 32, 32), 0.5, np.float32), "shot_noise", 5)

    assert result.var() == pytest.approx(0.5 / 50, rel=0.05)


def test_impulse_noise_is_half_salt_half_pepper_in_the_published_amount() -> None:
    result = apply(np.full((50, 3, 32, 32), 0.5, np.float32), "impulse_noise", 5)

    assert (result == 1).mean() == pytest.approx(0.035, rel=0.1)
    assert (result == 0).mean() == pytest.approx(0.035, rel=0.1)


def test_speckle_leaves_black_alone() -> None:
    assert not apply(colour(0, 0, 0), "speckle_noise", 5).any()


def test_brightness_raises_the_value_and_keeps_hue_and_saturation() -> None:
    result = apply(colour(0.2, 0.4, 0.1), "brightness", 4)

    np.testing.assert_allclose(result[0, :, 0, 0], [0.3, 0.6, 0.15], rtol=1e-5)
    np.testing.assert_allclose(apply(colour(0, 0, 0), "brightness", 4)[0, :, 0, 0], 0.2, rtol=1e-5)


def test_saturate_scales_the_saturation_and_keeps_the_value() -> None:
    # Value 0.8, saturation 0.5: at severity 2 it is 0.15, at severity 5 it would be 1.45.
    original = colour(0.8, 0.6, 0.4)

    np.testing.assert_allclose(
        apply(original, "saturate", 2)[0, :, 0, 0], [0.8, 0.74, 0.68], rtol=1e-5
    )
    np.testing.assert_allclose(
        apply(original, "saturate", 5)[0, :, 0, 0], [0.8, 0.4, 0.0], atol=1e-6
    )


def test_saturate_leaves_grey_alone() -> None:
    np.testing.assert_array_equal(apply(colour(0.5, 0.5, 0.5), "saturate", 5), 0.5)


def test_contrast_pulls_each_channel_to_its_own_mean() -> None:
    image = np.zeros((1, 3, 2, 2), np.float32)
    image[0, 0, 0] = 1

    result = apply(image, "contrast", 2)

    np.testing.assert_allclose(result[0, 0], [[0.75, 0.75], [0.25, 0.25]])
    np.testing.assert_array_equal(result[0, 1:], 0)


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_pixelate_is_pillow_s_box_filter(severity: int) -> None:
    original = noise(1, 3, 32, 32)
    side = int(32 * (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1])

    expected = [
        np.asarray(Image.fromarray(channel).resize((side, side), box).resize((32, 32), box))
        for channel in original[0]
        for box in [Image.Resampling.BOX]
    ]

    np.testing.assert_allclose(apply(original, "pixelate", severity)[0], expected, atol=1e-5)


@pytest.mark.parametrize("style", ["defocus_blur", "gaussian_blur", "zoom_blur", "motion_blur"])
def test_blurs_of_colour_leave_a_plain_image_alone(style: str) -> None:
    np.testing.assert_allclose(
        apply(colour(0.2, 0.5, 0.8), style, 5), colour(0.2, 0.5, 0.8), rtol=1e-5
    )


def test_defocus_spreads_a_point_over_a_disc() -> None:
    """Radius 1 covers a pixel and its four neighbours, a fifth each."""
    image = np.zeros((1, 3, 32, 32), np.float32)
    image[:, :, 16, 16] = 1

    result = apply(image, "defocus_blur", 4)[0, 0, 15:18, 15:18]

    np.testing.assert_allclose(result, [[0, 0.2, 0], [0.2, 0.2, 0.2], [0, 0.2, 0]], atol=1e-4)


def test_glass_takes_every_pixel_from_near_by() -> None:
    ramp = np.broadcast_to(np.arange(32, dtype=np.float32) / 32, (1, 3, 32, 32))

    moved = (ramp - apply(ramp, "glass_blur", 3)) * 32

    assert moved.min() == pytest.approx(0, abs=1e-4)
    assert moved.max() == pytest.approx(1, abs=1e-4)


def test_motion_is_half_a_gaussian_in_its_direction() -> None:
    image = np.zeros((2, 1, 9, 9))
    image[:, :, 4, 4] = 1
    weights = np.exp(-(np.arange(3) ** 2) / 2)

    result = smear(image, 1, 1, np.array([0.0, -90.0]))

    np.testing.assert_allclose(result[0, 0, 4, 4:1:-1], weights / weights.sum())
    np.testing.assert_allclose(result[1, 0, 4:7, 4], weights / weights.sum())


def test_elastic_moves_a_ramp_by_no_more_than_its_constants_allow() -> None:
    """At severity 1 there is only the affine map of three points, by 0.03 of the side each."""
    ramp = np.broadcast_to(np.arange(32, dtype=np.float32) / 32, (20, 3, 32, 32))

    moved = (apply(ramp, "elastic_transform", 1) - ramp)[:, :, 12:20, 12:20]

    assert 0 < np.abs(moved).max() < 2 * 0.03


@pytest.mark.parametrize("side", [8, 28, 32, 64])
def test_plasma_fills_the_range_in_every_image(side: int) -> None:
    clouds = plasma(5, side, 2, np.random.default_rng(0))

    assert clouds.shape == (5, side, side)
    assert clouds.min() >= 0
    assert clouds.max() <= 1
    assert clouds.std(axis=(1, 2)).min() > 0.05


def test_fog_is_smoother_with_more_decay() -> None:
    rough, fine = (plasma(20, 32, decay, np.random.default_rng(0)) for decay in (1.2, 3))

    assert np.abs(np.diff(fine)).mean() < 0.5 * np.abs(np.diff(rough)).mean()


@pytest.mark.parametrize("style", ["rotate", "shear", "scale"])
def test_linear_maps_keep_the_centre(style: str) -> None:
    assert apply(dot(), style, 5)[0, 14, 14] == pytest.approx(1, abs=1e-5)


def test_translate_moves_by_whole_pixels_along_both_axes() -> None:
    result = apply(dot(28), "translate", 3)

    row, column = np.argwhere(result[0] > 0.99)[0]
    assert {abs(int(row) - 14), abs(int(column) - 14)} == {3}


def test_scale_halves_the_side_at_worst() -> None:
    white = np.ones((1, 28, 28), np.float32)

    assert apply(white, "scale", 5).sum() == pytest.approx(14 * 14, rel=0.1)


def test_stripe_is_the_negative_in_the_middle() -> None:
    original = noise(1, 20, 20)

    result = apply(original, "stripe", 3)

    np.testing.assert_allclose(result[..., 8:12], 1 - original[..., 8:12], rtol=1e-5)
    np.testing.assert_array_equal(result[..., :8], original[..., :8])
    np.testing.assert_array_equal(result[..., 12:], original[..., 12:])


@pytest.mark.parametrize("style", ["dotted_line", "zigzag"])
def test_lines_only_add_ink_and_grow_thicker(style: str) -> None:
    black = np.zeros((4, 28, 28), np.float32)

    thin, thick = apply(black, style, 1), apply(black, style, 5)

    assert (thick >= thin).all()
    assert thin.max(axis=(1, 2)).min() > 0.5


def test_dotted_line_has_gaps_of_two_columns() -> None:
    inked = apply(np.zeros((1, 28, 28), np.float32), "dotted_line", 3)[0].any(axis=0)

    np.testing.assert_array_equal(inked, np.arange(28) % 4 >= 2)


def test_edges_of_a_square_are_its_outline_and_images_do_not_touch() -> None:
    images = np.zeros((2, 16, 16), np.float32)
    images[0, 4:12, 4:12] = 1

    edges = edges_of(images, 0.5)

    assert not edges[1].any()
    assert not edges[0, 6:10, 6:10].any()
    assert edges[0, 8].sum() == 2
    assert edges[0, :, 8].sum() == 2


def test_spatter_covers_the_share_that_severity_says() -> None:
    result = apply(np.ones((10, 28, 28), np.float32), "spatter", 5)

    assert (result < 0.6).mean() == pytest.approx(0.3, abs=0.03)
