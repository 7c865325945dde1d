"""Samples to assign or predict: files of any size read in batches, or a scenario's client.

The forms are those of ``fedrc_flwr.data.own``, and raw values are treated as in training, by the
schema that the run recorded. Labels may be missing.
"""

from __future__ import annotations

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
from fedrc_flwr.data.content import ABOUT
from fedrc_flwr.data.encoding import as_numbers, row_name, shown
from fedrc_flwr.data.folders import find_images, read_images
from fedrc_flwr.data.reading import CSV, FOLDER, NPZ, PARQUET, TORN, form_of, table_parts
from fedrc_flwr.data.scenario import ClientData, Split, scenario_of
from fedrc_flwr.data.schema import Schema, listed
from fedrc_flwr.errors import DataError

BATCH = 1024


@dataclass(frozen=True)
class Batch:
    """Inputs (N, ...) as float32, and their labels (N,), if any; -1 where one is missing."""

    inputs: NDArray[np.float32]
    labels: NDArray[np.int64] | None


def read_batches(path: Path, schema: Schema, size: int = BATCH) -> Iterator[Batch]:
    """The samples of a table, a .npz file or a folder of images, ``size`` at a time."""
    if not path.exists():
        raise DataError(f"{path}: no such file or folder: expected samples to read")
    form = form_of(path)
    if schema.is_table:
        if form not in (CSV, PARQUET):
            raise DataError(f"{path}: the models were trained on a table: expected a table")
        parts = _from_table(path, schema, size)
    elif form == FOLDER:
        parts = _from_folder(path, schema, size)
    elif form == NPZ:
        parts = _from_npz(path, schema, size)
    else:
        parts = _from_numbers(path, schema, size)
    seen = 0
    for inputs, labels in parts:
        checked = _check_inputs(inputs, schema.input_shape, path, seen)
        yield Batch(checked, None if labels is None else _labels(labels, schema, path))
        seen += len(inputs)
    if not seen:
        raise DataError(f"{path}: holds no samples")


def read_labelled(path: Path, schema: Schema) -> Split:
    """All samples of a file that have a label."""
    inputs, labels = [], []
    for batch in read_batches(path, schema):
        if batch.labels is None:
            wanted = f"a column {schema.label!r}" if schema.is_table else "samples x and labels y"
            raise DataError(f"{path}: has no labels: expected {wanted}")
        inputs.append(batch.inputs[batch.labels >= 0])
        labels.append(batch.labels[batch.labels >= 0])
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


Part = tuple[NDArray[Any], Any]


def _from_table(path: Path, schema: Schema, size: int) -> Iterator[Part]:
    """Rows of a table as they are, with the columns of the schema in any order."""
    for frame in table_parts(path, size):
        yield schema.features(frame), frame.get(schema.label)


def _from_npz(path: Path, schema: Schema, size: int) -> Iterator[Part]:
    """Arrays ``x`` and, where there is one, ``y``; ``x`` is never held as a whole."""
    input_shape = schema.input_shape
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
                    yield (
                        schema.scaled(part),
                        None if labels is None else labels[start : start + rows],
                    )
    except TORN as error:
        raise DataError(f"{path}: torn or not a .npz file of plain arrays ({error})") from None


def _header(member: IO[bytes], path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(member)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(member)
    if dtype.kind not in "uifb" or len(shape) < 2:
        raise DataError(f"{path}: x is {dtype} {shape}, expected numbers, (N, ...)")
    if fortran:
        raise DataError(
            f"{path}: x is stored column by column: save numpy.ascontiguousarray(x) instead"
        )
    return shape, dtype


def _from_numbers(path: Path, schema: Schema, size: int) -> Iterator[Part]:
    """A table of numbers for models of arrays: column ``y``, or one more than needed, is the label.

    Columns ``client``, ``concept``, ``style`` and ``observer`` are left out.
    """
    if len(schema.input_shape) != 1:
        raise _wrong_shape(path, schema.input_shape, "rows of a table")
    width = schema.input_shape[0]
    for frame in table_parts(path, size):
        names = [name for name in frame.columns if name not in ABOUT]
        label = "y" if "y" in names else names[-1] if len(names) == width + 1 else ""
        names = [name for name in names if name != label]
        if len(names) != width:
            raise _wrong_shape(path, schema.input_shape, (len(names),))
        numbers = np.stack([as_numbers(frame[name]) for name in names], axis=1)
        if np.isnan(numbers).any():
            row, place = np.argwhere(np.isnan(numbers))[0]
            found = frame[names[place]].iloc[row]
            raise DataError(
                f"{path}: column {names[place]!r} holds {shown(found)} in "
                f"{row_name(frame, int(row))}, expected a number"
            )
        yield schema.scaled(numbers), frame[label] if label else None


def _from_folder(path: Path, schema: Schema, size: int) -> Iterator[Part]:
    """Images without labels, or with one subfolder per class."""
    images = find_images(path)
    mode = "L" if len(schema.input_shape) == 2 else "RGB"
    unknown = sorted(set(images.labels or ()) - set(schema.classes))
    if unknown:
        raise DataError(
            f"{path}: the subfolder {unknown[0]!r} is none of the {len(schema.classes)} classes "
            f"{listed(schema.classes)}"
        )
    for start in range(0, len(images.files), size):
        part = slice(start, start + size)
        labels = None if images.labels is None else np.array(images.labels[part])
        yield read_images(images.files[part], mode), labels


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


def _labels(labels: Any, schema: Schema, where: Path) -> NDArray[np.int64]:
    try:
        return schema.numbers(labels)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
