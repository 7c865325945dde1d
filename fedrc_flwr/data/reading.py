"""Reading files of samples: which form a path has, and the rows or images in it.

Training reads a file as a whole, prediction a part at a time; both come here for what is the same.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedrc_flwr.errors import DataError

NPZ, CSV, FOLDER = "npz", "csv", "folder"
IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}
#: What reading a damaged file raises.
TORN = (OSError, EOFError, ValueError, KeyError, zlib.error, zipfile.BadZipFile, csv.Error)


def form_of(path: Path) -> str:
    """The form of a file or folder of samples."""
    if path.is_dir():
        return FOLDER
    if path.suffix == ".npz":
        return NPZ
    if path.suffix == ".csv" or path.suffixes[-2:] == [".csv", ".gz"]:
        return CSV
    raise DataError(f"{path}: expected a .npz, .csv or .csv.gz file, or a folder of images")


@contextmanager
def csv_rows(path: Path) -> Iterator[tuple[list[str], Iterator[list[str]]]]:
    """The names of a table's columns and its rows; without a header line they are 0, 1, ..."""
    try:
        with _opened(path) as text:
            rows: Iterator[list[str]] = (row for row in csv.reader(text) if row)
            first = next(rows, None)
            if first is None:
                raise DataError(f"{path}: the file is empty")
            names, number = [name.strip() for name in first], 2
            if all(is_number(name) for name in names):
                names, number = [str(place) for place in range(len(names))], 1
                rows = itertools.chain([first], rows)
            if len(set(names)) != len(names):
                raise DataError(f"{path}: two columns have the same name")
            yield names, _even(rows, len(names), number, path)
    except TORN as error:
        raise DataError(f"{path}: {error}") from None


def image_files(path: Path) -> tuple[list[Path], Iterator[tuple[Path, int]]]:
    """The subfolders, one per class in the order of their names, and the images with their class.

    Without subfolders all images are of class 0.
    """
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir())
    files = (
        (file, label)
        for label, folder in enumerate(folders or [path])
        for file in sorted(folder.rglob("*"))
        if file.suffix.lower() in IMAGES
    )
    return folders, files


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _even(rows: Iterator[list[str]], columns: int, first: int, path: Path) -> Iterator[list[str]]:
    for number, row in enumerate(rows, start=first):
        if len(row) != columns:
            raise DataError(
                f"{path}: row {number} has {len(row)} columns, the first one has {columns}"
            )
        yield row
