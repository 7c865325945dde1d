"""Corruptions of grey images (N, H, W) in [0, 1]: the demo's six, and a set after MNIST-C.

MNIST-C (Mu and Gilmer, 2019) has one severity of each style; the code behind it has five of most.
Shear, scale, rotate, translate and brightness have those five. The demo's six keep the demo's
levels, and the others are milder than there, or have levels of their own, so that a severity of 5
still shows what the image was. Lengths are given for a side of 28 pixels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.data.corruptions.common import (
    Corruption,
    Images,
    Values,
    fog_over,
    grid,
    sample,
    signs,
    smear,
    smooth,
)

#: The side, in pixels, for which the lengths below are given.
SIDE = 28


def _level(severity: int, *levels: float) -> float:
    return levels[severity - 1]


def gaussian_noise(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Additive noise."""
    return images + rng.normal(0, _level(severity, 0.04, 0.06, 0.08, 0.10, 0.14), images.shape)


def shot_noise(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Photon noise: stronger where the image is bright."""
    photons = _level(severity, 60, 40, 25, 15, 10)
    return rng.poisson(images * photons) / photons


def impulse_noise(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Pixels stuck at black or white."""
    amount = _level(severity, 0.01, 0.02, 0.03, 0.05, 0.08)
    hit = rng.random(images.shape) < amount
    return np.where(hit, rng.integers(0, 2, images.shape), images)


def blur(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """A camera out of focus."""
    return smooth(images, _level(severity, 0.03, 0.04, 0.05, 0.06, 0.075) * images.shape[1])


def brightness(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Everything lighter."""
    return images + _level(severity, 0.1, 0.2, 0.3, 0.4, 0.5)


def contrast(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Everything nearer to the image's mean."""
    means: Images = images.mean(axis=(1, 2), keepdims=True)
    return (images - means) * _level(severity, 0.75, 0.6, 0.5, 0.4, 0.3) + means


def glass_blur(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Frosted glass: every pixel shows a place near by."""
    sigma, way = ((0.7, 1), (0.9, 1.5), (1, 2), (1.1, 3), (1.5, 4))[severity - 1]
    unit = images.shape[1] / SIDE
    down, right = way * unit * rng.uniform(-1, 1, (2, *images.shape))
    rows, columns = grid(*images.shape[1:])
    soft = smooth(images, sigma * unit)[:, None]
    return smooth(sample(soft, rows + down, columns + right, "reflection")[:, 0], sigma * unit)


def motion_blur(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """A moving camera, in a direction of its own for every image."""
    radius, sigma = ((6, 1.5), (8, 2), (10, 3), (12, 4), (15, 5))[severity - 1]
    unit = images.shape[1] / SIDE
    angles = rng.uniform(-45, 45, len(images))
    return smear(images[:, None], radius * unit, sigma * unit, angles)[:, 0]


def shear(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Sheared to the left or right."""
    angles = _level(severity, 0.2, 0.4, 0.6, 0.8, 1.0) * signs(len(images), rng)
    return _mapped(images, 1, 0, np.sin(angles), np.cos(angles))


def scale(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Shrunk, to half the side at worst."""
    factor = 1 / _level(severity, 0.9, 0.8, 0.7, 0.6, 0.5)
    return _mapped(images, factor, 0, 0, factor)


def rotate(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Turned to the left or right, by a radian at worst."""
    angles = _level(severity, 0.2, 0.4, 0.6, 0.8, 1.0) * signs(len(images), rng)
    return _mapped(images, np.cos(angles), np.sin(angles), -np.sin(angles), np.cos(angles))


def translate(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Moved along both axes."""
    way = _level(severity, 1, 2, 3, 4, 5) / SIDE * images.shape[1]
    down, right = way * signs((2, len(images), 1, 1), rng)
    rows, columns = grid(*images.shape[1:])
    everywhere = np.zeros(images.shape)
    moved = sample(images[:, None], rows + down + everywhere, columns + right + everywhere, "zeros")
    return moved[:, 0]


def stripe(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """The negative in a vertical stripe through the middle."""
    columns = grid(*images.shape[1:])[1]
    width = _level(severity, 0.1, 0.15, 0.2, 0.25, 0.3) * images.shape[2]
    inside: Values = np.clip(width / 2 - np.abs(columns) + 0.5, 0, 1)
    return images + inside * (1 - 2 * images)


def fog(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Drifting fog."""
    density, decay = ((0.5, 2), (0.75, 2), (1, 2), (1.5, 2), (2, 1.7))[severity - 1]
    return fog_over(images, density, decay, rng)


def spatter(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Dark grey mud on the lens."""
    share = _level(severity, 0.05, 0.1, 0.15, 0.2, 0.3)
    unit = images.shape[1] / SIDE
    layer = smooth(rng.normal(0, 1, images.shape), 1.5 * unit)
    least = np.quantile(layer, 1 - share, axis=(1, 2), keepdims=True)
    mud = smooth((layer > least).astype(np.float32), 0.5 * unit)
    return images * (1 - mud) + mud * 63 / 255


def dotted_line(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """A dotted line from the left border to the right."""
    left, right = rng.uniform(2, SIDE - 2, (2, len(images), 1))
    return images + _ink(
        images.shape,
        lambda columns: left + (right - left) * columns / SIDE,
        lambda columns: columns % 4 >= 2,
        severity,
    )


def zigzag(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """A zigzag line from left to right."""
    left = rng.uniform(6, SIDE - 6, (len(images), 1))
    fall = rng.uniform(-5, 5, (len(images), 1))
    return images + _ink(
        images.shape,
        # Teeth of 4 pixels' width, 2 up and 2 down.
        lambda columns: left + fall * columns / SIDE + np.abs((columns + 2) % 8 - 4) - 2,
        lambda columns: (columns >= 2) & (columns <= SIDE - 2),
        severity,
    )


def canny_edges(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """The image on its way to its own outline (Canny, 1986), which severity 5 is."""
    share = _level(severity, 0.2, 0.4, 0.6, 0.8, 1.0)
    return (1 - share) * images + share * edges_of(images, images.shape[1] / SIDE)


def _mapped(
    images: Images,
    across: Values | float,
    down: Values | float,
    slant: Values | float,
    along: Values | float,
) -> Values:
    """A linear map about the centre, black beyond the border.

    A pixel's source is (``along`` row + ``down`` column, ``slant`` row + ``across`` column), each
    factor a number or (N,).
    """
    rows, columns = grid(*images.shape[1:])
    factors = np.broadcast_arrays(along, down, slant, across, np.zeros(len(images)))
    row_row, row_column, column_row, column_column = (f[:, None, None] for f in factors[:4])
    sources = (row_row * rows + row_column * columns, column_row * rows + column_column * columns)
    return sample(images[:, None], *sources, beyond="zeros")[:, 0]


def _ink(
    shape: tuple[int, ...],
    curve: Callable[[Values], Values],
    drawn: Callable[[Values], NDArray[np.bool_]],
    severity: int,
) -> Values:
    """A line (N, H, W) as thick as the severity says; MNIST-C's is severity 3.

    ``curve`` gives the line's row (N, columns) and ``drawn`` says whether there is ink, both in
    pixels of a side of 28: smaller images get the mean of what such an image would show.
    """
    number, height, width = shape
    reach = _level(severity, 1.5, 1.9, 2.3, 2.7, 3.1)
    fine = max(1, -(-SIDE // height))
    rows = (np.arange(height * fine) + 0.5) * SIDE / (height * fine)
    columns = (np.arange(width * fine) + 0.5) * SIDE / (width * fine)
    distance = np.abs(rows[:, None] - curve(columns)[:, None, :])
    ink = 1 + np.log(np.maximum(1 - distance / reach, 1e-6))
    ink = np.clip(ink, 0, 1) * drawn(columns)
    means: Values = ink.reshape(number, height, fine, width, fine).mean(axis=(2, 4))
    return means


def edges_of(images: Images, sigma: float) -> NDArray[np.bool_]:
    """Canny's edges (N, H, W): ridges of the gradient that hang together with a strong one.

    Weak and strong are a tenth and a fifth of the image's steepest gradient.
    """
    from scipy import ndimage

    soft = smooth(images, sigma)
    slope = np.outer([-1, 0, 1], [1, 2, 1])
    down, right = (ndimage.correlate(soft, kernel[None]) for kernel in (slope, slope.T))
    steepness = np.hypot(down, right)
    height, width = images.shape[1:]
    padded = np.pad(steepness, ((0, 0), (1, 1), (1, 1)))
    # The gradient's direction in eighths of a turn, opposite ones alike.
    direction = np.rint(np.arctan2(down, right) / (np.pi / 4)).astype(np.int64) % 4
    ridge = np.zeros(images.shape, dtype=np.bool_)
    for number, (row, column) in enumerate(((0, 1), (1, 1), (1, 0), (1, -1))):
        ahead = padded[:, 1 + row : 1 + row + height, 1 + column : 1 + column + width]
        behind = padded[:, 1 - row : 1 - row + height, 1 - column : 1 - column + width]
        ridge |= (direction == number) & (steepness >= ahead) & (steepness > behind)
    steepest = steepness.max(axis=(1, 2), keepdims=True)
    weak = ridge & (steepness > 0.1 * steepest)
    within = np.zeros((3, 3, 3))
    within[1] = 1  # pixels of different images never touch
    groups, number_of_groups = ndimage.label(weak, within)
    strong = np.zeros(number_of_groups + 1, dtype=np.bool_)
    strong[groups[weak & (steepness > 0.2 * steepest)]] = True
    strong[0] = False
    return strong[groups]


STYLES: dict[str, Corruption] = {
    f.__name__: f for f in (gaussian_noise, shot_noise, impulse_noise, blur, brightness, contrast)
}
GREY_STYLES: dict[str, Corruption] = {
    **STYLES,
    **{
        f.__name__: f
        for f in (
            glass_blur, motion_blur, shear, scale, rotate, translate, stripe, fog, spatter,
            dotted_line, zigzag, canny_edges,
        )
    },
}  # fmt: skip
