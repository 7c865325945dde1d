"""Feature shift: corruptions of grey images, one style and severity per client.

Every function takes images (N, H, W) in [0, 1], a severity from 1 to 5 and a generator, and returns
new images of the same shape and range. Lengths scale with the image's side, so that 8 x 8 and
28 x 28 images suffer alike.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.float32]
Corruption = Callable[[Images, int, np.random.Generator], NDArray[np.floating]]


def _level(severity: int, *levels: float) -> float:
    return levels[severity - 1]


def gaussian_noise(images: Images, severity: int, rng: np.random.Generator) -> NDArray[np.floating]:
    """Additive noise."""
    return images + rng.normal(0, _level(severity, 0.04, 0.06, 0.08, 0.10, 0.14), images.shape)


def shot_noise(images: Images, severity: int, rng: np.random.Generator) -> NDArray[np.floating]:
    """Photon noise: stronger where the image is bright."""
    photons = _level(severity, 60, 40, 25, 15, 10)
    return rng.poisson(images * photons) / photons


def impulse_noise(images: Images, severity: int, rng: np.random.Generator) -> NDArray[np.floating]:
    """Pixels stuck at black or white."""
    amount = _level(severity, 0.01, 0.02, 0.03, 0.05, 0.08)
    hit = rng.random(images.shape) < amount
    return np.where(hit, rng.integers(0, 2, images.shape), images)


def blur(images: Images, severity: int, rng: np.random.Generator) -> NDArray[np.floating]:
    """A camera out of focus."""
    sigma = _level(severity, 0.03, 0.04, 0.05, 0.06, 0.075) * images.shape[1]
    from scipy import ndimage  # slow to load, and few clients need it

    return ndimage.gaussian_filter(images, (0, sigma, sigma))


def brightness(images: Images, severity: int, rng: np.random.Generator) -> NDArray[np.floating]:
    """Everything lighter."""
    return images + _level(severity, 0.1, 0.2, 0.3, 0.4, 0.5)


def contrast(images: Images, severity: int, rng: np.random.Generator) -> NDArray[np.floating]:
    """Everything nearer to the image's mean."""
    means: Images = images.mean(axis=(1, 2), keepdims=True)
    return (images - means) * _level(severity, 0.75, 0.6, 0.5, 0.4, 0.3) + means


STYLES: dict[str, Corruption] = {
    f.__name__: f for f in (gaussian_noise, shot_noise, impulse_noise, blur, brightness, contrast)
}


def corrupt(images: Images, style: str, severity: int, rng: np.random.Generator) -> Images:
    """Apply one style to all of a client's images."""
    return np.clip(STYLES[style](images, severity, rng), 0.0, 1.0).astype(np.float32)
