"""Bring your own data: a .npz or .csv file, a folder of images, or a function.

Every form becomes arrays of equal length: ``x``, ``y`` and optionally ``client``, ``concept``,
``style`` and ``observer``. With ``client`` each client gets its own samples, and nothing is split
or shifted. Without it, the data is treated as any other dataset.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.data.base import Dataset, DatasetSpec, Owner
from fedrc_flwr.data.datasets import DATASETS
from fedrc_flwr.data.images import read_image
from fedrc_flwr.data.reading import CSV, FOLDER, NPZ, form_of, image_files
from fedrc_flwr.data.settings import DataSettings
from fedrc_flwr.data.tabular import numbers, read_columns
from fedrc_flwr.errors import DataError
from fedrc_flwr.plugins import is_reference, load_function

ABOUT = ("client", "concept", "style", "observer")
#: Fraction of each class that is held back for observers if the data names none.
HELD_BACK = 0.2
Arrays = dict[str, NDArray[Any]]


def own_path(settings: DataSettings) -> Path | None:
    """Where the data is looked for; None for a function."""
    if is_reference(settings.dataset):
        return None
    return Path(settings.directory).expanduser() / Path(settings.dataset).expanduser()


def located(settings: DataSettings) -> DataSettings:
    """The same with absolute paths: the app runs in another directory."""
    if not settings.directory and settings.dataset == DataSettings.dataset:
        return settings
    directory = Path(settings.directory).expanduser().resolve()
    dataset = settings.dataset
    if dataset not in DATASETS and not is_reference(dataset):
        dataset = str(directory / Path(dataset).expanduser())
    return replace(settings, directory=str(directory), dataset=dataset)


def own_spec(settings: DataSettings) -> DatasetSpec:
    """Description of the user's data: from the data itself, or from the keys if it is not here."""
    path, shape = own_path(settings), settings.shape()
    held_back = settings.observers_per_concept > 0
    if path is not None and not path.exists() and settings.classes and shape is not None:
        # A server without data: its clients have theirs.
        return DatasetSpec(settings.classes, shape, lambda _: _load(settings, held_back, 0))
    loaded = _load(settings, held_back, _stamp(path))
    classes = settings.classes or int(loaded.train_labels.max()) + 1
    return DatasetSpec(
        classes, loaded.train_inputs.shape[1:], lambda _: loaded, owners=loaded.owners
    )


def _stamp(path: Path | None) -> int:
    """Changes when the file does, so that a changed file is read again."""
    return path.stat().st_mtime_ns if path is not None and path.exists() else 0


def own_facts(settings: DataSettings) -> list[int]:
    """Size and time of the user's file, to notice that prepared data is out of date."""
    path = None if settings.dataset in DATASETS else own_path(settings)
    if path is None or not path.exists():
        return []
    return [path.stat().st_size, path.stat().st_mtime_ns]


def _load(settings: DataSettings, held_back: bool, stamp: int) -> Dataset:
    return _read(
        settings.dataset, settings.directory, settings.classes, settings.shape(), held_back, stamp
    )


@lru_cache(maxsize=4)
def _read(
    dataset: str,
    data_dir: str,
    classes: int,
    shape: tuple[int, ...] | None,
    held_back: bool,
    stamp: int,
) -> Dataset:
    where = dataset
    if is_reference(dataset):
        arrays = _from_function(dataset)
    else:
        path = Path(data_dir).expanduser() / Path(dataset).expanduser()
        where = str(path)
        arrays = _from_path(path)
    x, y = _check(arrays, where, classes, shape)
    if "client" in arrays:
        nothing = np.zeros(0, dtype=np.int64)
        return Dataset(x, y, x[:0], nothing, owners=_owners(arrays, where))
    useless = [name for name in ("concept", "style") if name in arrays]
    if useless:
        raise DataError(f"{where}: {' and '.join(useless)} without client: add an array client")
    observed = arrays.get("observer")
    test = np.flatnonzero(observed) if observed is not None else _held_back(y, held_back)
    train = np.setdiff1d(np.arange(len(y)), test)
    if not len(train):
        raise DataError(f"{where}: all samples belong to observers, none are left to train on")
    return Dataset(x[train], y[train], x[test], y[test])


# --- the forms -----------------------------------------------------------------------------------


def _from_path(path: Path) -> Arrays:
    if not path.exists():
        raise DataError(
            f"data.dataset: {path.absolute()} does not exist: give one of "
            f"{', '.join(DATASETS)}, or the path of a .npz or .csv file or of a folder of images; "
            "set data.directory to where it is, or, on a server without data, data.classes and "
            "data.input-shape"
        )
    readers = {FOLDER: _from_folder, NPZ: _from_npz, CSV: _from_csv}
    return readers[form_of(path)](path)


def _from_npz(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as content:
            return {name: content[name] for name in ("x", "y", *ABOUT) if name in content}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path}: {error}. Expected arrays of numbers and texts; object arrays are never read"
        ) from None


def _from_csv(path: Path) -> Arrays:
    """Column ``y``, or else the last one, is the label."""
    columns = read_columns(path)
    about: dict[str, NDArray[Any]] = {
        name: np.array(columns.pop(name)) for name in ABOUT if name in columns
    }
    if "client" in about and all(text.strip().isdecimal() for text in about["client"].tolist()):
        about["client"] = about["client"].astype(np.int64)
    if not columns:
        raise DataError(f"{path}: has no column of labels")
    label = "y" if "y" in columns else list(columns)[-1]
    y = numbers(columns.pop(label), label, path)
    if not columns:
        raise DataError(f"{path}: has no columns besides the labels")
    if "concept" in about:
        about["concept"] = numbers(about["concept"].tolist(), "concept", path)
    if "observer" in about:
        truths = [text.strip().lower() for text in about["observer"].tolist()]
        if not set(truths) <= {"true", "false", "1", "0"}:
            raise DataError(f"{path}: column 'observer': expected true or false in every row")
        about["observer"] = np.array([text in ("true", "1") for text in truths])
    features = [numbers(texts, name, path) for name, texts in columns.items()]
    return {"x": np.stack(features, axis=1), "y": y, **about}


def _from_folder(path: Path) -> Arrays:
    """One subfolder per class, in the order of their names."""
    folders, found = image_files(path)
    files = list(found) if folders else []
    if not files:
        raise DataError(f"{path}: expected a subfolder per class with images in it")
    first = read_image(files[0][0])
    mode = "L" if first.ndim == 2 else "RGB"
    x = np.empty((len(files), *first.shape), dtype=np.uint8)
    for place, (file, _) in enumerate(files):
        image = read_image(file, mode)
        if image.shape != first.shape:
            raise DataError(
                f"{file}: is {image.shape[-2]} x {image.shape[-1]} pixels, {files[0][0].name} is "
                f"{first.shape[-2]} x {first.shape[-1]}: bring all images to one size first"
            )
        x[place] = image
    return {"x": x, "y": np.array([label for _, label in files])}


def _from_function(reference: str) -> Arrays:
    function = load_function("data.dataset", reference)
    try:
        content = function()
    except Exception as error:
        raise DataError(
            f"data.dataset = {reference!r}: the function failed with {type(error).__name__}: "
            f"{error}"
        ) from error
    if not isinstance(content, Mapping):
        raise DataError(
            f"data.dataset = {reference!r}: the function returned {type(content).__name__}, "
            f"expected a dict of arrays: x, y, and optionally {', '.join(ABOUT)}"
        )
    return {str(name): np.asarray(array) for name, array in content.items()}


# --- checks --------------------------------------------------------------------------------------


def _check(
    arrays: Arrays, where: str, classes: int, shape: tuple[int, ...] | None
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Samples as uint8 or float32 and labels as int64, if they can be trained on."""
    for name in ("x", "y"):
        if name not in arrays:
            raise DataError(f"{where}: has no array {name!r}: expected samples x and labels y")
    objects = [name for name, array in arrays.items() if array.dtype.hasobject]
    if objects:
        raise DataError(f"{where}: {objects[0]} is an array of objects, expected numbers or texts")
    x, y = arrays["x"], arrays["y"]
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"{where}: the arrays differ in length: {told}")
    if not len(y):
        raise DataError(f"{where}: holds no samples")
    if x.ndim < 2 or x.dtype.kind not in "uifb":
        raise DataError(f"{where}: x is {x.dtype} {x.shape}, expected numbers, (N, ...)")
    if shape is not None and x.shape[1:] != shape:
        raise DataError(
            f"{where}: samples have the shape {x.shape[1:]}, but data.input-shape says {shape}"
        )
    if x.dtype != np.uint8:
        x = x.astype(np.float32)
        if not np.isfinite(x).all():
            row = int(np.argwhere(~np.isfinite(x))[0][0])
            raise DataError(
                f"{where}: sample {row} of x holds NaN or infinity: fill or drop such samples first"
            )
    if y.ndim != 1 or y.dtype.kind not in "uifb" or not (np.isfinite(y) & (y == np.rint(y))).all():
        raise DataError(f"{where}: labels must be whole numbers from 0, one per sample")
    outside = np.flatnonzero((y < 0) | (y >= (classes or np.inf)))
    if len(outside):
        last = f"to {classes - 1}, as data.classes = {classes} says" if classes else "on"
        raise DataError(
            f"{where}: label {y[outside[0]]:g} of sample {outside[0]}: expected numbers from 0 "
            f"{last}"
        )
    return x, y.astype(np.int64)


def _owners(arrays: Arrays, where: str) -> tuple[Owner, ...]:
    """The clients, in the order of their names or numbers, observers last."""
    rows = len(arrays["y"])
    observer = arrays.get("observer", np.zeros(rows, dtype=np.bool_)).astype(np.bool_)
    concept = arrays.get("concept", np.full(rows, -1))
    style = arrays.get("style", np.full(rows, "none"))
    owners = []
    values, of_row, sizes = np.unique(arrays["client"], return_inverse=True, return_counts=True)
    by_client = np.split(np.argsort(of_row, kind="stable"), np.cumsum(sizes)[:-1])
    for value, mine in zip(values, by_client, strict=True):
        if observer[mine].any() != observer[mine].all():
            raise DataError(f"{where}: client {value} is an observer in some rows only")
        role = "observer" if observer[mine[0]] else "client"
        concepts, styles = np.unique(concept[mine]), np.unique(style[mine])
        owners.append(
            Owner(
                name=str(value) if values.dtype.kind == "U" else f"{role}-{value}",
                observer=role == "observer",
                rows=mine,
                concept=int(concepts[0]) if len(concepts) == 1 else -1,
                style=str(styles[0]) if len(styles) == 1 else "mixed",
            )
        )
    if all(owner.observer for owner in owners):
        raise DataError(f"{where}: all clients are observers, none is left to train")
    return tuple(sorted(owners, key=lambda owner: owner.observer))


def _held_back(labels: NDArray[np.int64], held_back: bool) -> NDArray[np.int64]:
    """A part of each class, the same whatever the seed."""
    if not held_back:
        return np.zeros(0, dtype=np.int64)
    order = np.random.default_rng(0x0B5).permutation(len(labels))
    parts = [order[labels[order] == label] for label in np.unique(labels)]
    return np.sort(np.concatenate([part[: int(HELD_BACK * len(part))] for part in parts]))
