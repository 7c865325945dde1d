"""Feature shift: corruptions of images, one style and severity per client.

Every style takes images in [0, 1], a severity from 1 to 5 and a generator, and returns new images
of the same shape and range. Lengths scale with the image's side, so that images of 8 x 8 and 28 x
28 pixels are affected equally.
"""

from __future__ import annotations

import numpy as np

from fedrc_flwr.data.corruptions.colour import COLOUR_STYLES
from fedrc_flwr.data.corruptions.common import Corruption, Images
from fedrc_flwr.data.corruptions.grey import GREY_STYLES, STYLES
from fedrc_flwr.errors import DataError

__all__ = [
    "COLOUR_STYLES",
    "GREY_STYLES",
    "SEVERITIES",
    "STYLES",
    "Corruption",
    "Images",
    "corrupt",
    "styles_for",
]

SEVERITIES = (1, 2, 3, 4, 5)


def styles_for(shape: tuple[int, ...]) -> dict[str, Corruption]:
    """The styles that fit one image's shape: (H, W) is grey, (3, H, W) is colour."""
    if len(shape) == 2:
        return GREY_STYLES
    if len(shape) == 3 and shape[0] == 3:
        return COLOUR_STYLES
    raise DataError(
        f"inputs of shape {shape} cannot be corrupted: expected grey images (H, W) or colour "
        "images (3, H, W); set every corrupted share to 0"
    )


def corrupt(images: Images, style: str, severity: int, rng: np.random.Generator) -> Images:
    """Apply one style to all of a client's images, (N, H, W) or (N, 3, H, W)."""
    styles = styles_for(images.shape[1:])
    if style not in styles:
        raise DataError(f"style {style!r}: expected one of {', '.join(sorted(styles))}")
    if severity not in SEVERITIES:
        raise DataError(f"severity {severity}: expected 1 to 5")
    return np.clip(styles[style](images, severity, rng), 0.0, 1.0).astype(np.float32)
