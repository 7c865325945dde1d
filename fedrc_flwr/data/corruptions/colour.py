"""The 19 corruptions of Hendrycks and Dietterich (2019) for colour images (N, 3, H, W) in [0, 1].

The constants are those of CIFAR-10-C; lengths are multiplied with side / 32 for other sizes. Where
a table departs from the published one, its comment says so.
"""

from __future__ import annotations

from io import BytesIO

import numpy as np

from fedrc_flwr.data.corruptions.common import (
    Corruption,
    Images,
    Values,
    grid,
    sample,
    smear,
    smooth,
)
from fedrc_flwr.data.corruptions.weather import SIDE, fog, frost, magnified, snow, spatter
from fedrc_flwr.plugins import load_torchvision


def gaussian_noise(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Noise of a sensor in low light."""
    return images + rng.normal(0, (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1], images.shape)


def shot_noise(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Noise of counted photons: stronger where the image is bright."""
    photons = (500, 250, 100, 75, 50)[severity - 1]
    return rng.poisson(images * photons) / photons


def impulse_noise(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Values stuck at none or all, each channel by itself."""
    hit = rng.random(images.shape) < (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    return np.where(hit, rng.integers(0, 2, images.shape).astype(np.float32), images)


def speckle_noise(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Noise in proportion to the value."""
    deviation = (0.06, 0.1, 0.12, 0.16, 0.2)[severity - 1]
    return images * (1 + rng.normal(0, deviation, images.shape))


def defocus_blur(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """A lens out of focus: every point becomes a disc with softened edges."""
    from scipy import ndimage

    radius, softness = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))[severity - 1]
    unit = images.shape[-2] / SIDE
    around = np.arange(-int(radius * unit) - 1, int(radius * unit) + 2)
    disc = np.hypot(around[:, None], around) <= radius * unit
    near = np.exp(-(np.arange(-1, 2) ** 2) / (2 * (softness * unit) ** 2))
    kernel = ndimage.convolve(disc.astype(np.float64), np.outer(near, near), mode="constant")
    return ndimage.convolve(images, kernel[None, None] / kernel.sum(), mode="mirror")


def glass_blur(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Frosted glass: near pixels change places."""
    # The published order is 0.05, 0.25, 0.4 once, then 0.25, 0.4 twice; but the more the image is
    # blurred before, the less a shuffle changes it.
    sigma, rounds = ((0.4, 1), (0.25, 1), (0.05, 1), (0.4, 2), (0.25, 2))[severity - 1]
    unit = images.shape[-2] / SIDE
    mixed = shuffle_pixels(
        smooth(images, sigma * unit).astype(np.float32), max(1, round(unit)), rounds, rng
    )
    return smooth(mixed, sigma * unit)


def motion_blur(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """A moving camera, in a direction of its own for every image."""
    radius, sigma = ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))[severity - 1]
    unit = images.shape[-2] / SIDE
    return smear(images, radius * unit, sigma * unit, rng.uniform(-45, 45, len(images)))


def zoom_blur(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """A camera that moves towards the object: the mean of ever larger images."""
    farthest = (5, 10, 15, 20, 25)[severity - 1]
    total = 2 * images  # the image itself, and the first, unchanged enlargement
    for percent in range(1, farthest + 1):
        total += magnified(images, 1 + percent / 100)
    return total / (farthest + 2)


def gaussian_blur(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """An image without its finest detail."""
    import torch

    functional = load_torchvision("transforms.v2.functional", "gaussian_blur")
    sigma = (0.4, 0.6, 0.7, 0.8, 1)[severity - 1] * images.shape[-2] / SIDE
    size = 2 * int(np.ceil(4 * sigma)) + 1
    batch = torch.tensor(images)
    return np.asarray(functional.gaussian_blur(batch, [size, size], [sigma, sigma]))


def brightness(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """The V of hue, saturation and value raised."""
    value: Images = images.max(axis=1, keepdims=True)
    raised: Values = np.minimum(value + (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1], 1)
    return np.where(value > 0, images * raised / np.maximum(value, 1e-6), raised)


def contrast(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Every channel nearer to its mean."""
    means: Images = images.mean(axis=(2, 3), keepdims=True)
    return (images - means) * (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1] + means


def elastic_transform(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Small regions stretched, after a random affine map of the whole."""
    # The published shifts are the same five, but falling, and the whole change falls with them.
    strength, sigma, shift = (
        (0, 0, 0.03),
        (0.05, 0.2, 0.05),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.07),
        (0.1, 0.03, 0.08),
    )[severity - 1]
    number, (height, width) = len(images), images.shape[-2:]
    third = height // 3
    corners = np.array([[third, third], [third, -third], [-third, -third]], dtype=np.float64)
    moved = corners + rng.uniform(-shift * height, shift * height, (number, 3, 2))
    # Rows of `maps` give (row, column) of the source from (row, column, 1): (N, 3, 2).
    maps = np.linalg.solve(np.column_stack([corners, np.ones(3)]), moved)
    pushes = smooth(rng.uniform(-1, 1, (2, number, height, width)), sigma * height)
    rows, columns = (
        position + strength * height * push
        for position, push in zip(grid(height, width), pushes, strict=True)
    )
    row_of, column_of = (
        maps[:, 0, axis, None, None] * rows
        + maps[:, 1, axis, None, None] * columns
        + maps[:, 2, axis, None, None]
        for axis in (0, 1)
    )
    return sample(images, row_of, column_of, beyond="reflection")


def pixelate(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Shrunk by box filter, and enlarged again."""
    from PIL import Image

    share = (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1]
    result: Values = images
    for axis in (2, 3):
        side = images.shape[axis]
        # What the filter does to the unit vectors is its matrix: (side, side).
        lines = Image.fromarray(np.eye(side, dtype=np.float32))
        small = lines.resize((int(side * share), side), Image.Resampling.BOX)
        matrix = np.asarray(small.resize((side, side), Image.Resampling.BOX))
        result = np.moveaxis(np.moveaxis(result, axis, 3) @ matrix, 3, axis)
    return result


def jpeg_compression(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """The artefacts of JPEG, which Pillow makes one image at a time.

    torchvision's functional would do, but its JPEG code is to be removed.
    """
    from PIL import Image

    result = np.empty_like(images)
    for before, after in zip(np.rint(images * 255).astype(np.uint8), result, strict=True):
        coded = BytesIO()
        quality = (80, 65, 58, 50, 40)[severity - 1]
        Image.fromarray(before.transpose(1, 2, 0)).save(coded, "JPEG", quality=quality)
        after[...] = np.asarray(Image.open(coded)).transpose(2, 0, 1)
    return result / 255


def saturate(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """The S of hue, saturation and value scaled and raised; grey, which has no hue, stays grey."""
    # The published order is 0.3, 0.1, 1.5, 2, 2.5: but on CIFAR 1.5 changes the least.
    factor, offset = ((1.5, 0), (0.3, 0), (0.1, 0), (2, 0.1), (2.5, 0.2))[severity - 1]
    value: Images = images.max(axis=1, keepdims=True)
    below = value - images
    saturation: Values = below.max(axis=1, keepdims=True) / np.maximum(value, 1e-6)
    wanted = np.clip(saturation * factor + offset, 0, 1)
    lowered: Values = below * wanted / np.maximum(saturation, 1e-6)
    return value - lowered


def shuffle_pixels(images: Images, reach: int, rounds: int, rng: np.random.Generator) -> Images:
    """Replace every pixel of (N, ..., H, W) by a near one: at most ``reach`` pixels up or left.

    Down and right go one pixel less far, as in the published code. (That code means to swap, but
    swaps views of one array, and so in effect copies, too.)
    """
    number, (height, width) = len(images), images.shape[-2:]
    flat = images.reshape(number, -1, height * width)
    for _ in range(rounds):
        ways = rng.integers(-reach, reach, (2, number, height, width))
        rows = np.clip(np.arange(height)[:, None] + ways[0], 0, height - 1)
        columns = np.clip(np.arange(width) + ways[1], 0, width - 1)
        flat = np.take_along_axis(flat, (rows * width + columns).reshape(number, 1, -1), axis=2)
    return flat.reshape(images.shape)


COLOUR_STYLES: dict[str, Corruption] = {
    f.__name__: f
    for f in (
        gaussian_noise, shot_noise, impulse_noise, speckle_noise,
        defocus_blur, glass_blur, motion_blur, zoom_blur, gaussian_blur,
        snow, frost, fog, spatter,
        brightness, contrast, saturate, elastic_transform, pixelate, jpeg_compression,
    )
}  # fmt: skip
