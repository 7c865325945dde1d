"""Folders of images: which folders are classes, which are clients, and the images in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.data.images import read_image
from fedrc_flwr.errors import DataError

IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}
#: What the user may say about the client's folder.
OUTER, INNER = "outer", "inner"
_LIKE_A_CLIENT = re.compile(
    r"(client|hospital|clinic|site|cent(er|re)|node|user|device|station|region|school|ward)"
    r"[-_ ]?\w*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Images:
    """The images of a folder, one entry per image.

    Parameters
    ----------
    labels, clients : names of the folders that tell; None: nothing tells
    found : in words, which folders were taken for what
    """

    files: list[Path]
    labels: list[str] | None
    clients: list[str] | None
    found: str


def find_images(path: Path, client: str = "") -> Images:
    """The images below a folder.

    Parameters
    ----------
    client : ``outer`` or ``inner``, the folders that are clients; empty: find out
    """
    if client not in ("", OUTER, INNER):
        raise DataError(f"{path}: the client's folder is {client!r}: expected {OUTER} or {INNER}")
    files = [file for file in sorted(path.rglob("*")) if file.suffix.lower() in IMAGES]
    if not files:
        raise DataError(f"{path}: no images: expected a subfolder per class with images in it")
    folders = [file.relative_to(path).parts[:-1] for file in files]
    outer = [parts[0] for parts in folders if parts]
    if len(outer) != len(files):
        if outer:
            raise DataError(f"{path}: has images beside its subfolders: move them into one")
        return Images(files, None, None, "images without subfolders, so without labels")
    inner = [parts[1] for parts in folders if len(parts) > 1]
    if len(inner) != len(files) or (len(set(inner)) < 2 and not client):
        if client:
            raise DataError(f"{path}: has one level of subfolders, so none of clients")
        return Images(files, outer, None, "a folder per class: CLASS/image")
    if (client or _client_level(outer, inner)) == OUTER:
        return Images(files, inner, outer, "a folder per client, with one per class: CLIENT/CLASS")
    return Images(files, outer, inner, "a folder per class, with one per client: CLASS/CLIENT")


def _client_level(outer: list[str], inner: list[str]) -> str:
    """The level whose names look like clients; where none does, the outer one."""

    def likeness(names: list[str]) -> float:
        unique = set(names)
        return sum(_LIKE_A_CLIENT.fullmatch(name) is not None for name in unique) / len(unique)

    return INNER if likeness(inner) > likeness(outer) else OUTER


def read_images(files: list[Path], mode: str = "") -> NDArray[np.uint8]:
    """Images of one size as bytes, (N, H, W) or (N, 3, H, W); ``mode``: L or RGB."""
    first = read_image(files[0], mode)
    mode = mode or ("L" if first.ndim == 2 else "RGB")
    images = np.empty((len(files), *first.shape), dtype=np.uint8)
    for place, file in enumerate(files):
        image: NDArray[Any] = read_image(file, mode)
        if image.shape != first.shape:
            raise DataError(
                f"{file}: is {image.shape[-2]} x {image.shape[-1]} pixels, {files[0].name} is "
                f"{first.shape[-2]} x {first.shape[-1]}: bring all images to one size first"
            )
        images[place] = image
    return images
