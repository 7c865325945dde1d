"""Samples to assign or predict: files of any size read in batches, or a scenario's client.

The forms are those of ``fedrc_flwr.data.own``, and values are treated as in training: bytes become
numbers from 0 to 1, everything else stays as it is. Labels may be missing.
"""

from __future__ import annotations

import itertools
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedrc_flwr.config import RunConfig
from fedrc_flwr.data.base import as_floats
from fedrc_flwr.data.images import read_image
from fedrc_flwr.data.own import ABOUT
from fedrc_flwr.data.reading import FOLDER, NPZ, TORN, csv_rows, form_of, image_files
from fedrc_flwr.data.scenario import ClientData, Split, scenario_of
from fedrc_flwr.data.tabular import numbers
from fedrc_flwr.errors import DataError

BATCH = 1024


@dataclass(frozen=True)
class Batch:
    """Inputs (N, ...) as float32, and their labels (N,) where they are known."""

    inputs: NDArray[np.float32]
    labels: NDArray[np.int64] | None


def read_batches(
    path: Path, input_shape: tuple[int, ...], classes: int, size: int = BATCH
) -> Iterator[Batch]:
    """The samples of a .npz or .csv file or of a folder of images, ``size`` at a time."""
    if not path.exists():
        raise DataError(f"{path}: no such file or folder: expected samples to read")
    parts: Iterator[tuple[NDArray[Any], NDArray[Any] | None]]
    form = form_of(path)
    if form == FOLDER:
        parts = _from_folder(path, input_shape, classes, size)
    elif form == NPZ:
        parts = _from_npz(path, input_shape, size)
    else:
        parts = _from_csv(path, input_shape, size)
    seen = 0
    for inputs, labels in parts:
        checked = _check_inputs(inputs, input_shape, path, seen)
        yield Batch(checked, None if labels is None else _check_labels(labels, classes, path, seen))
        seen += len(inputs)
    if not seen:
        raise DataError(f"{path}: holds no samples")


def read_labelled(path: Path, input_shape: tuple[int, ...], classes: int) -> Split:
    """All samples of a file with their labels."""
    inputs, labels = [], []
    for batch in read_batches(path, input_shape, classes):
        if batch.labels is None:
            raise DataError(f"{path}: has no labels: expected samples x and labels y")
        inputs.append(batch.inputs)
        labels.append(batch.labels)
    return Split(np.concatenate(inputs), np.concatenate(labels))


def scenario_client(config: RunConfig, name: str) -> ClientData:
    """A client of the run's scenario by its name, built as the run itself built it."""
    scenario = scenario_of(config.data, config.seed)
    names = []
    for index in range(len(scenario)):
        names.append(scenario.outline(index).name)
        if names[-1] == name:
            return scenario.client(index)
    raise DataError(f"client {name!r}: the run's scenario has {names[0]} to {names[-1]}")


def in_batches(split: Split, size: int = BATCH) -> Iterator[Batch]:
    """Samples in memory, as ``read_batches`` gives those of a file."""
    for start in range(0, len(split), size):
        part = slice(start, start + size)
        yield Batch(split.inputs[part], split.labels[part])


# --- the forms -----------------------------------------------------------------------------------


def _from_npz(
    path: Path, input_shape: tuple[int, ...], size: int
) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
    """Arrays ``x`` and, where there is one, ``y``; ``x`` is never held as a whole."""
    try:
        with zipfile.ZipFile(path) as archive:
            if "x.npy" not in archive.namelist():
                raise DataError(
                    f"{path}: has no array 'x': expected samples x, and labels y if any"
                )
            labels = None
            if "y.npy" in archive.namelist():
                with archive.open("y.npy") as member:
                    labels = npy.read_array(member, allow_pickle=False)
            with archive.open("x.npy") as member:
                shape, dtype = _header(member, path)
                if shape[1:] != input_shape:
                    raise _wrong_shape(path, input_shape, shape[1:])
                if labels is not None and labels.shape != shape[:1]:
                    raise DataError(
                        f"{path}: x has {shape[0]} samples, but y has the shape {labels.shape}"
                    )
                for start in range(0, shape[0], size):
                    rows = min(size, shape[0] - start)
                    wanted = rows * int(np.prod(input_shape)) * dtype.itemsize
                    content = member.read(wanted)
                    if len(content) != wanted:
                        raise DataError(f"{path}: x is cut short in sample {start}")
                    part = np.frombuffer(content, dtype).reshape(rows, *input_shape)
                    yield part, None if labels is None else labels[start : start + rows]
    except TORN as error:
        raise DataError(f"{path}: torn or not a .npz file of plain arrays ({error})") from None


def _header(member: IO[bytes], path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(member)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(member)
    if dtype.hasobject or len(shape) < 2:
        raise DataError(f"{path}: x is {dtype} {shape}, expected numbers, (N, ...)")
    if fortran:
        raise DataError(
            f"{path}: x is stored column by column: save numpy.ascontiguousarray(x) instead"
        )
    return shape, dtype


def _from_csv(
    path: Path, input_shape: tuple[int, ...], size: int
) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
    """As in training, column ``y`` or else the last one is the label, if there is a label.

    Columns ``client``, ``concept``, ``style`` and ``observer`` are left out.
    """
    if len(input_shape) != 1:
        raise _wrong_shape(path, input_shape, "rows of a table")
    with csv_rows(path) as (names, rows):
        features = [place for place, name in enumerate(names) if name not in ABOUT]
        label = next((place for place in features if names[place] == "y"), None)
        if label is None and len(features) == input_shape[0] + 1:
            label = features[-1]
        features = [place for place in features if place != label]
        if len(features) != input_shape[0]:
            raise _wrong_shape(path, input_shape, (len(features),))
        while part := list(itertools.islice(rows, size)):
            columns = [numbers([row[p] for row in part], names[p], path) for p in features]
            found = None
            if label is not None:
                found = numbers([row[label] for row in part], names[label], path)
            # Training read the columns as float64 and rounded them once.
            yield np.stack(columns, axis=1), found


def _from_folder(
    path: Path, input_shape: tuple[int, ...], classes: int, size: int
) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
    """Images without labels, or one subfolder per class in the order of their names."""
    mode = "L" if len(input_shape) == 2 else "RGB"
    folders, files = image_files(path)
    if folders and len(folders) != classes:
        raise DataError(
            f"{path}: expected {classes} subfolders, one per class and empty where there is no "
            f"image of it, found {len(folders)}"
        )
    while part := list(itertools.islice(files, size)):
        images = []
        for file, _ in part:
            image = read_image(file, mode)
            if image.shape != input_shape:
                raise _wrong_shape(file, input_shape, image.shape)
            images.append(image)
        labels = np.array([label for _, label in part]) if folders else None
        yield np.stack(images), labels


# --- checks --------------------------------------------------------------------------------------


def _wrong_shape(where: Path, expected: tuple[int, ...], found: object) -> DataError:
    return DataError(
        f"{where}: expected samples of the shape {expected}, as the models were trained on, found "
        f"{found}"
    )


def _check_inputs(
    inputs: NDArray[Any], input_shape: tuple[int, ...], where: Path, seen: int
) -> NDArray[np.float32]:
    if inputs.dtype.kind not in "uifb":
        raise DataError(f"{where}: x is {inputs.dtype}, expected numbers")
    if inputs.shape[1:] != input_shape:
        raise _wrong_shape(where, input_shape, inputs.shape[1:])
    floats = as_floats(inputs)
    bad = ~np.isfinite(floats).reshape(len(floats), -1).all(axis=1)
    if bad.any():
        raise DataError(
            f"{where}: sample {seen + int(bad.argmax())} holds NaN or infinity: fill or drop such "
            "samples first"
        )
    return floats


def _check_labels(labels: NDArray[Any], classes: int, where: Path, seen: int) -> NDArray[np.int64]:
    if labels.dtype.kind not in "uifb" or labels.ndim != 1:
        raise DataError(f"{where}: labels must be whole numbers from 0, one per sample")
    bad = ~((labels >= 0) & (labels < classes) & (labels == np.rint(labels)))
    if bad.any():
        place = int(bad.argmax())
        raise DataError(
            f"{where}: label {labels[place]:g} of sample {seen + place}: expected a whole number "
            f"from 0 to {classes - 1}, as the models have {classes} classes"
        )
    return labels.astype(np.int64)
