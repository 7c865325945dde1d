"""Snow, frost, fog and spatter on colour images (N, 3, H, W), with CIFAR-10-C's constants."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.data.corruptions.common import Images, Values, fog_over, plasma, smear, smooth
from fedrc_flwr.plugins import load_torchvision

#: The side, in pixels, for which CIFAR-10-C's lengths were chosen.
SIDE = 32
WATER = np.array([175, 238, 238]).reshape(3, 1, 1) / 255
MUD = np.array([63, 42, 20]).reshape(3, 1, 1) / 255


def snow(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Flakes blown downwards, over an image that is itself whitened."""
    mean, deviation, magnification, least, radius, sigma, kept = (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    )[severity - 1]
    number, (height, width) = len(images), images.shape[-2:]
    unit = height / SIDE
    flakes = magnified(
        rng.normal(mean, deviation, (number, 1, height, width)), magnification * max(unit, 1)
    )
    flakes = np.clip(np.where(flakes < least, 0, flakes), 0, 1)
    flakes = smear(flakes, radius * unit, sigma * unit, rng.uniform(-135, -45, number))
    whitened: Values = np.maximum(images, grey_of(images) * 1.5 + 0.5)
    return kept * images + (1 - kept) * whitened + flakes + flakes[..., ::-1, ::-1]


def frost(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Ice crystals over the image.

    CIFAR-10-C overlays crops of six photographs. Here the ice is drawn from the generator instead:
    the seams of a Voronoi tessellation, warped and broken up by plasma.
    """
    kept, added = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[severity - 1]
    return kept * images + added * ice(len(images), images.shape[2], images.shape[3], rng)


def fog(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Drifting fog."""
    density, decay = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))[severity - 1]
    return fog_over(images, density, decay, rng)


def spatter(images: Images, severity: int, rng: np.random.Generator) -> Values:
    """Drops of water or mud on the lens."""
    # The published order has the heaviest rain before the mud, which changes less.
    mean, deviation, sigma, least, strength, muddy = (
        (0.62, 0.1, 0.7, 0.7, 0.5, False),
        (0.65, 0.1, 0.8, 0.7, 0.5, False),
        (0.65, 0.1, 0.7, 0.69, 0.6, True),
        (0.65, 0.1, 0.5, 0.68, 0.6, True),
        (0.65, 0.3, 1, 0.69, 0.5, False),
    )[severity - 1]
    unit = images.shape[-2] / SIDE
    liquid = rng.normal(mean, deviation, (len(images), *images.shape[-2:]))
    # Smoothing over a longer way would also flatten the noise, and so change what is covered.
    liquid = mean + (smooth(liquid, sigma * unit) - mean) * max(unit, 1)
    covered = liquid > least
    if not muddy:
        return images + (strength * relief(covered, liquid))[:, None] * WATER
    mud = smooth(covered.astype(np.float32), strength * unit)
    mud = np.where(mud < 0.8, 0, mud)[:, None]
    return images * (1 - mud) + mud * MUD


def relief(covered: NDArray[np.bool_], liquid: Values) -> Values:
    """Light on drops: brightest where their thickness rises to the lower right; (N, H, W)."""
    from scipy import ndimage

    # The huge distance between images keeps each image's drops to itself.
    apart = (1e6, 1, 1)
    inner = covered & ndimage.binary_erosion(covered, np.ones((1, 3, 3), np.bool_))
    distance = ndimage.distance_transform_edt(~(covered & ~inner), sampling=apart)
    thickness = np.floor(ndimage.uniform_filter(np.minimum(distance, 20), (1, 3, 3)))
    ranks = np.zeros_like(thickness)
    for level in range(1, 21):  # a histogram equalisation: the share of thinner pixels
        reached = thickness >= level
        ranks += reached * (thickness == level - 1).mean(axis=(1, 2), keepdims=True)
    emboss = np.array([[[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]])
    light = np.clip(ndimage.correlate(ranks, emboss, mode="mirror"), 0, 1)
    shine: Values = covered * liquid * ndimage.uniform_filter(light, (1, 3, 3))
    brightest: Values = shine.max(axis=(1, 2), keepdims=True)
    return shine / np.maximum(brightest, 1e-6)


def ice(number: int, height: int, width: int, rng: np.random.Generator) -> Values:
    """Bluish-white crystals on dark glass: (number, 3, height, width) in [0, 1]."""
    side = max(height, width)
    bend = plasma(2 * number, side, 1.4, rng).reshape(2, number, side, side)
    down = np.arange(side)[:, None] / side + 0.25 * bend[0]
    right = np.arange(side)[None, :] / side + 0.25 * bend[1]
    nearest = np.full((number, side, side), np.inf)
    second = nearest.copy()
    for place in rng.uniform(0, 1.25, (14, 2, number, 1, 1)):
        distance = np.hypot(down - place[0], right - place[1])
        second = np.minimum(second, np.maximum(nearest, distance))
        nearest = np.minimum(nearest, distance)
    seams = np.exp(-(second - nearest) / 0.04)
    grain = plasma(number, side, 1.15, rng)
    crystals: Values = np.clip(1.6 * seams + 2.5 * (grain - 0.6), 0, 1)[:, :height, :width]
    tinted: Values = crystals[:, None] ** np.array([1.15, 1.0, 0.85]).reshape(3, 1, 1)
    return tinted


def magnified(values: Values, factor: float) -> Values:
    """The middle of (..., C, H, W), enlarged to the whole."""
    import torch

    transforms = load_torchvision("transforms.v2", "this corruption")
    return np.asarray(
        transforms.functional.affine(
            torch.tensor(values),
            angle=0.0,
            translate=[0, 0],
            scale=factor,
            shear=[0.0, 0.0],
            interpolation=transforms.InterpolationMode.BILINEAR,
        )
    )


def grey_of(images: Images) -> Values:
    """Luminance (N, 1, H, W)."""
    import torch

    functional = load_torchvision("transforms.v2.functional", "this corruption")
    return np.asarray(functional.rgb_to_grayscale(torch.tensor(images)))
