"""What several corruptions are made of. Every function works on a whole batch at once.

Lengths are in pixels of the image at hand: the callers scale them with the image's side.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.float32]
Values = NDArray[np.floating]
Corruption = Callable[[Images, int, np.random.Generator], Values]


def smooth(values: Values, sigma: float) -> Values:
    """Gaussian blur over the last two axes."""
    from scipy import ndimage

    return ndimage.gaussian_filter(values, sigma, axes=(-2, -1))


def plasma(number: int, side: int, decay: float, rng: np.random.Generator) -> Values:
    """Cloudy textures (number, side, side) in [0, 1], by midpoint displacement on a torus.

    Each halving of the step divides the random part by ``decay`` squared, as the published code
    does: it multiplies its amplitude with a draw that scales with the amplitude once more.
    """
    size = 1 << max(side - 1, 1).bit_length()
    heights = np.zeros((number, size, size))
    step, amplitude = size, 1.0
    while step >= 2:
        half = step // 2
        corners = heights[:, ::step, ::step]
        pairs = corners + np.roll(corners, -1, axis=1)
        heights[:, half::step, half::step] = _displaced(
            pairs + np.roll(pairs, -1, axis=2), amplitude, rng
        )
        centres = heights[:, half::step, half::step]
        for axis, edges in (
            (2, heights[:, ::step, half::step]),
            (1, heights[:, half::step, ::step]),
        ):
            total = corners + np.roll(corners, -1, axis) + centres + np.roll(centres, 1, 3 - axis)
            edges[...] = _displaced(total, amplitude, rng)
        step, amplitude = half, amplitude / decay**2
    heights -= heights.min(axis=(1, 2), keepdims=True)
    heights /= heights.max(axis=(1, 2), keepdims=True)
    return heights[:, :side, :side]


def _displaced(total: Values, amplitude: float, rng: np.random.Generator) -> Values:
    return total / 4 + rng.uniform(-amplitude, amplitude, total.shape)


def fog_over(images: Images, density: float, decay: float, rng: np.random.Generator) -> Values:
    """Clouds added, then all scaled back so that the brightest value stays: (N, ..., H, W)."""
    clouds = plasma(len(images), max(images.shape[-2:]), decay, rng)
    clouds = clouds[:, : images.shape[-2], : images.shape[-1]]
    spread = (len(images),) + (1,) * (images.ndim - 1)
    brightest: Images = images.reshape(len(images), -1).max(axis=1).reshape(spread)
    layer: Values = clouds.reshape(len(images), *(1,) * (images.ndim - 3), *clouds.shape[1:])
    return (images + density * layer) * brightest / (brightest + density)


def smear(values: Values, radius: float, sigma: float, angles: Values) -> Values:
    """Motion blur of (N, C, H, W) along one direction per image, ``angles`` (N,) in degrees.

    Half a Gaussian: a pixel collects what lies ahead of it; beyond the border lies the border.
    """
    steps = np.arange(2 * int(np.ceil(radius)) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    height, width = values.shape[-2:]
    radians = np.deg2rad(angles)
    batch = np.arange(len(values))[:, None, None]
    result = np.zeros_like(values)
    for step, weight in zip(steps, weights, strict=True):
        down, right = np.rint(step * np.sin(radians)), np.rint(step * np.cos(radians))
        rows = np.clip(np.arange(height) + down[:, None], 0, height - 1).astype(np.int64)
        columns = np.clip(np.arange(width) + right[:, None], 0, width - 1).astype(np.int64)
        moved = values[batch, :, rows[:, :, None], columns[:, None, :]]
        result += weight * moved.transpose(0, 3, 1, 2)
    return result


def grid(height: int, width: int) -> tuple[Values, Values]:
    """Row and column of every pixel, measured from the image's centre: (H, 1) and (1, W)."""
    rows, columns = np.arange(height), np.arange(width)
    return (rows - (height - 1) / 2)[:, None], (columns - (width - 1) / 2)[None, :]


def sample(images: Images, rows: Values, columns: Values, beyond: str) -> Images:
    """Pixels of (N, C, H, W) read at other places, bilinearly.

    ``rows`` and ``columns`` (N, H, W) are measured from the centre; ``beyond`` the border lie
    ``zeros`` or the image's ``reflection``. (torchvision's affine and elastic functionals know only
    one transformation for the whole batch.)
    """
    import torch
    from torch.nn import functional

    height, width = images.shape[-2:]
    places = np.stack([columns * 2 / (width - 1), rows * 2 / (height - 1)], axis=-1)
    return np.asarray(
        functional.grid_sample(
            torch.tensor(images),
            torch.tensor(places, dtype=torch.float32),
            padding_mode=beyond,
            align_corners=True,
        )
    )


def signs(shape: int | tuple[int, ...], rng: np.random.Generator) -> Values:
    """Minus one or one, by the toss of a coin."""
    return rng.choice(np.array([-1.0, 1.0]), shape)
