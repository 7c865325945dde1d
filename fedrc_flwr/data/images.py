"""Image datasets in their usual file formats."""

from __future__ import annotations

import gzip
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.data.base import Dataset
from fedrc_flwr.errors import DataError
from fedrc_flwr.files import replacing

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
TINY_SHAPE = (3, 64, 64)


def fashion_mnist(directory: Path) -> Dataset:
    """FashionMNIST from its four idx files, compressed or not: Debian's, or torchvision's."""
    places = [DEBIAN, directory / "FashionMNIST" / "raw", directory]
    how = (
        "install the Debian package dataset-fashion-mnist, or let "
        "torchvision.datasets.FashionMNIST(DIR, download=True) fetch it and set data.directory to "
        "DIR"
    )
    folder = _find("fashion-mnist", "train-images-idx3-ubyte", places, how)
    arrays: list[NDArray[Any]] = []
    for name in ("train", "t10k"):
        images = _read_idx(folder, f"{name}-images-idx3-ubyte", how)
        labels = _read_idx(folder, f"{name}-labels-idx1-ubyte", how).astype(np.int64)
        if images.shape[1:] != (28, 28) or len(images) != len(labels) or labels.max() > 9:
            raise DataError(f"fashion-mnist: the {name} files in {folder} do not fit together")
        arrays += [images, labels]
    return Dataset(arrays[0], arrays[1], arrays[2], arrays[3])


def cifar(classes: int, directory: Path) -> Dataset:
    """CIFAR-10 or CIFAR-100 as torchvision leaves it."""
    name = f"cifar{classes}"
    inside = "cifar-10-batches-py" if classes == 10 else "cifar-100-python"
    batches = [f"data_batch_{i}" for i in range(1, 6)] if classes == 10 else ["train"]
    test = "test_batch" if classes == 10 else "test"
    how = (
        f"let torchvision.datasets.CIFAR{classes}(DIR, download=True) fetch it and set "
        "data.directory to DIR"
    )
    folder = _find(name, test, [directory / inside, directory], how)
    key = "labels" if classes == 10 else "fine_labels"
    parts = [_read_cifar(folder / batch, key, classes) for batch in batches]
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Dataset(images, labels, *_read_cifar(folder / test, key, classes))


def tiny_imagenet(directory: Path) -> Dataset:
    """Tiny-ImageNet's usual folder: decoded once, then memory-mapped from a file next to it."""
    how = "unpack tiny-imagenet-200.zip (cs231n.stanford.edu) in DIR and set data.directory to DIR"
    folder = _find("tiny-imagenet", "wnids.txt", [directory / "tiny-imagenet-200", directory], how)
    names = {name: i for i, name in enumerate(sorted((folder / "wnids.txt").read_text().split()))}
    train = [
        (path, label)
        for name, label in names.items()
        for path in sorted((folder / "train" / name / "images").glob("*.JPEG"))
    ]
    try:
        lines = (folder / "val" / "val_annotations.txt").read_text().splitlines()
        pairs = [line.split("\t")[:2] for line in lines if line.strip()]
        test = [(folder / "val" / "images" / file, names[name]) for file, name in pairs]
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"tiny-imagenet: {folder}/val: {error!r}; {how}") from None
    arrays: list[NDArray[Any]] = []
    for part, items in (("train", train), ("val", test)):
        if not items:
            raise DataError(f"tiny-imagenet: no images in {folder / part}; {how}")
        arrays.append(_decoded(folder / f".{part}-uint8.npy", [path for path, _ in items]))
        arrays.append(np.array([label for _, label in items], dtype=np.int64))
    return Dataset(arrays[0], arrays[1], arrays[2], arrays[3])


def read_image(path: Path, mode: str = "") -> NDArray[np.uint8]:
    """One image as bytes: (H, W) where it is grey (mode L), else (3, H, W)."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            grey = image.mode in ("1", "L", "I", "I;16", "LA")
            pixels = np.asarray(image.convert(mode or ("L" if grey else "RGB")))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: not a readable image: {error}") from None
    return pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _find(name: str, file: str, places: list[Path], how: str) -> Path:
    for place in places:
        if (place / file).exists() or (place / f"{file}.gz").exists():
            return place
    looked = ", ".join(str(place) for place in places)
    raise DataError(f"{name}: {file} was not found in {looked}: {how}")


def _read_idx(folder: Path, name: str, how: str) -> NDArray[np.uint8]:
    """An array of bytes in LeCun's idx format."""
    path = folder / name if (folder / name).exists() else folder / f"{name}.gz"
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        zeros, kind, dimensions = struct.unpack_from(">HBB", content)
        shape = struct.unpack_from(f">{dimensions}I", content, 4)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise DataError(f"{path}: {error}; {how}") from None
    body = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions)
    if zeros or kind != 8 or not dimensions or body.size != np.prod(shape):
        raise DataError(f"{path}: not an idx file of bytes, or cut short; {how}")
    return body.reshape(shape)


class _PlainUnpickler(pickle.Unpickler):
    """CIFAR comes pickled: arrays, lists and texts are read, anything else is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name == "_reconstruct":
            return np.empty(0).__reduce__()[0]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"holds {module}.{name}, which is not part of CIFAR")


def _read_cifar(path: Path, key: str, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        with path.open("rb") as file:
            content = _PlainUnpickler(file, encoding="latin1").load()
        images = np.asarray(content["data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
        labels = np.asarray(content[key], dtype=np.int64)
    except (OSError, EOFError, pickle.UnpicklingError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not a CIFAR batch: {error!r}") from None
    if len(images) != len(labels) or not set(np.unique(labels)) <= set(range(classes)):
        raise DataError(f"{path}: images and labels do not fit together")
    return images, labels


def _decoded(cache: Path, paths: list[Path]) -> NDArray[np.uint8]:
    """The images as one array, from the file next to them, which is written the first time.

    If the folder is not writable, the array stays in memory.
    """
    shape = (len(paths), *TINY_SHAPE)
    if cache.exists():
        mapped: NDArray[np.uint8] = np.load(cache, mmap_mode="r")
        if mapped.shape == shape and mapped.dtype == np.uint8:
            return mapped
    images = np.empty(shape, dtype=np.uint8)
    for place, path in enumerate(paths):
        image = read_image(path, "RGB")
        if image.shape != TINY_SHAPE:
            raise DataError(f"{path}: expected an image of 64 x 64")
        images[place] = image
    try:
        with replacing(cache) as beside, open(beside, "wb") as file:
            np.save(file, images)
    except OSError:
        return images
    kept: NDArray[np.uint8] = np.load(cache, mmap_mode="r")
    return kept
