"""Every named dataset in its own format, with a handful of samples."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
from PIL import Image

from fedrc_flwr.data.tabular import AIRLINE, ELECTRICITY

RNG = np.random.default_rng(1)


def write_idx(path: Path, array: np.ndarray) -> None:
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    content = head + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def fashion_mnist(folder: Path, ending: str = ".gz") -> None:
    """20 training and 4 test images of each of ten classes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, each in (("train", 20), ("t10k", 4)):
        images = RNG.integers(0, 256, (10 * each, 28, 28))
        write_idx(folder / f"{name}-images-idx3-ubyte{ending}", images)
        write_idx(folder / f"{name}-labels-idx1-ubyte{ending}", np.tile(np.arange(10), each))


def cifar(folder: Path, classes: int) -> None:
    """10 training and 2 test images of each class."""
    inside = folder / ("cifar-10-batches-py" if classes == 10 else "cifar-100-python")
    inside.mkdir(parents=True)
    names = [f"data_batch_{i}" for i in range(1, 6)] if classes == 10 else ["train"]
    for name in [*names, "test_batch" if classes == 10 else "test"]:
        each = 10 if name == "train" else 2
        content = {
            "data": RNG.integers(0, 256, (classes * each, 3072)).astype(np.uint8),
            "labels" if classes == 10 else "fine_labels": list(range(classes)) * each,
        }
        (inside / name).write_bytes(pickle.dumps(content, protocol=2))


def tiny_imagenet(folder: Path) -> None:
    """One training and one test image of each of 200 classes, 64 x 64."""
    root = folder / "tiny-imagenet-200"
    names = [f"n{number:08d}" for number in range(200)]
    (root / "val" / "images").mkdir(parents=True)
    (root / "wnids.txt").write_text("\n".join(reversed(names)))
    lines = []
    for number, name in enumerate(names):
        (root / "train" / name / "images").mkdir(parents=True)
        image = Image.new("RGB", (64, 64), (number, 255 - number, 7))
        image.save(root / "train" / name / "images" / f"{name}_0.JPEG")
        Image.new("RGB", (64, 64), (number, 255 - number, 70)).save(
            root / "val" / "images" / f"val_{number}.JPEG", "JPEG"
        )
        lines.append(f"val_{number}.JPEG\t{name}\t0\t0\t62\t62")
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines))


def electricity(folder: Path, rows: int = 300) -> None:
    lines = [",".join([*ELECTRICITY, "class"])]
    for row in range(rows):
        numbers = [f"{value:.4f}" for value in RNG.random(len(ELECTRICITY)) + row / rows]
        lines.append(",".join([*numbers, "UP" if row % 3 == 0 else "DOWN"]))
    content = "\n".join(lines).encode()
    (folder / "elec2_small.csv.gz").write_bytes(gzip.compress(content))


def airline(folder: Path, rows: int = 300) -> None:
    lines = [",".join([*AIRLINE, "UniqueCarrier", "Origin", "Dest", "ArrDelay"])]
    for row in range(rows):
        numbers = [str(value) for value in RNG.integers(0, 2000, len(AIRLINE))]
        names = ["NW" if row % 2 else "US", "LAX", f"D{row % 40}"]
        lines.append(",".join([*numbers, *names, str(5 if row % 3 == 0 else -5)]))
    (folder / "airline_small.csv").write_text("\n".join(lines))


def write_all(folder: Path) -> None:
    fashion_mnist(folder / "FashionMNIST" / "raw")
    cifar(folder, 10)
    cifar(folder, 100)
    tiny_imagenet(folder)
    electricity(folder)
    airline(folder)
