"""The user's data before anything is done to it: a table, or arrays, with labels and owners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.data.folders import find_images, read_images
from fedrc_flwr.data.images import read_image
from fedrc_flwr.data.reading import FOLDER, FORMS, NPZ, form_of, read_arrays, read_table
from fedrc_flwr.errors import DataError
from fedrc_flwr.plugins import is_reference, load_function

if TYPE_CHECKING:
    from pandas import DataFrame

#: What may be said about each sample besides its label.
ABOUT = ("client", "concept", "style", "observer")
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Content:
    """Where data come from, and what is in them.

    Parameters
    ----------
    name : where they come from, for messages
    words : what they are
    frame : the table, if it is one
    arrays : else ``y`` and what is known of ``ABOUT``, (N,) each
    shape : of one sample of an array
    samples : reads the samples of an array, (N, ...)
    lazy : whether reading them takes long, so that only the first was looked at
    """

    name: str
    words: str
    frame: DataFrame | None = None
    arrays: Arrays = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    samples: Callable[[], NDArray[Any]] = lambda: np.zeros((0, 1))
    lazy: bool = False


def content_of(source: Any, client: str = "") -> Content:
    """The content of a source; ``client`` says which folders of images are clients."""
    if isinstance(source, Mapping):
        return _of_arrays("the arrays", {str(name): np.asarray(a) for name, a in source.items()})
    if not isinstance(source, str | Path):
        return _of_table("the table", source)
    if isinstance(source, str) and is_reference(source):
        return _of_function(source)
    path = Path(source).expanduser()
    if not path.exists():
        raise DataError(f"{path.absolute()} does not exist: expected {FORMS}")
    return _of_path(path, client, path.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _of_path(path: Path, client: str, stamp: int) -> Content:
    """The content of a file, kept, because it is first looked at and then used."""
    form = form_of(path)
    if form == FOLDER:
        return _of_folder(path, client)
    if form == NPZ:
        return _of_arrays(str(path), read_arrays(path, ("x", "y", *ABOUT)))
    return _of_table(str(path), read_table(path))


def _of_table(name: str, frame: DataFrame) -> Content:
    if not hasattr(frame, "columns"):
        raise DataError(f"{name}: is {type(frame).__name__}, expected {FORMS}, a table or arrays")
    if not len(frame):
        raise DataError(f"{name}: holds no samples")
    frame = frame.rename(columns=str)
    if frame.columns.has_duplicates:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise DataError(f"{name}: two columns have the name {twice!r}")
    return Content(name, f"a table of {len(frame)} rows and {frame.shape[1]} columns", frame)


def _of_arrays(name: str, arrays: Arrays) -> Content:
    for needed in ("x", "y"):
        if needed not in arrays:
            raise DataError(f"{name}: has no array {needed!r}: expected samples x and labels y")
    lengths = {key: len(array) if array.ndim else 0 for key, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        told = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise DataError(f"{name}: the arrays differ in length: {told}")
    x, y = arrays["x"], arrays["y"]
    if not len(y):
        raise DataError(f"{name}: holds no samples")
    if x.ndim < 2 or x.dtype.kind not in "uifb":
        raise DataError(f"{name}: x is {x.dtype} {x.shape}, expected numbers, (N, ...)")
    flat = [key for key in arrays if key != "x" and arrays[key].ndim != 1]
    if flat:
        raise DataError(f"{name}: {flat[0]} has the shape {arrays[flat[0]].shape}, expected (N,)")
    about = {key: arrays[key] for key in ("y", *ABOUT) if key in arrays}
    shape = " x ".join(str(size) for size in x.shape[1:])
    kind = "samples of" if x.ndim > 2 else "rows of"
    words = f"{len(x)} {kind} {shape} numbers"
    return Content(name, words, None, about, x.shape[1:], lambda: x)


def _of_folder(path: Path, client: str) -> Content:
    images = find_images(path, client)
    if images.labels is None:
        raise DataError(f"{path}: expected a subfolder per class with images in it")
    first = read_image(images.files[0])
    about: Arrays = {"y": np.array(images.labels)}
    if images.clients is not None:
        about["client"] = np.array(images.clients)
    kind = "colour" if first.ndim == 3 else "grey"
    size = f"{first.shape[-2]} x {first.shape[-1]}"
    words = f"{len(images.files)} {kind} images of {size} pixels; {images.found}"
    return Content(
        str(path), words, None, about, first.shape, lambda: read_images(images.files), lazy=True
    )


def _of_function(reference: str) -> Content:
    function = load_function("data.dataset", reference)
    try:
        content = function()
    except Exception as error:
        raise DataError(
            f"data.dataset = {reference!r}: the function failed with {type(error).__name__}: "
            f"{error}"
        ) from error
    named = f"data.dataset = {reference!r}"
    if isinstance(content, Mapping):
        return _of_arrays(named, {str(name): np.asarray(array) for name, array in content.items()})
    if not hasattr(content, "columns"):
        raise DataError(
            f"{named}: the function returned {type(content).__name__}, expected a table, or a dict "
            f"of arrays: x, y, and optionally {', '.join(ABOUT)}"
        )
    return _of_table(named, content)
