"""Reading files of samples: which form a path has, and the rows or images in it.

Training reads a file as a whole, prediction a part at a time; both come here for what is the same.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import importlib.util
import itertools
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.errors import DataError

if TYPE_CHECKING:
    from pandas import DataFrame

NPZ, CSV, PARQUET, FOLDER = "npz", "csv", "parquet", "folder"
#: What a file of samples may be, in words.
FORMS = "a .csv, .tsv, .parquet or .npz file, or a folder of images"
SEPARATORS = ",;\t|"
#: What reading a damaged file raises.
TORN = (OSError, EOFError, ValueError, KeyError, zlib.error, zipfile.BadZipFile, csv.Error)


def form_of(path: Path) -> str:
    """The form of a file or folder of samples."""
    if path.is_dir():
        return FOLDER
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    forms = {".npz": NPZ, ".csv": CSV, ".tsv": CSV, ".parquet": PARQUET}
    if suffix not in forms or (path.suffix == ".gz" and forms[suffix] != CSV):
        raise DataError(f"{path}: expected {FORMS}")
    return forms[suffix]


def read_table(path: Path) -> DataFrame:
    """A whole CSV or Parquet file; the values of a CSV file are texts."""
    return next(table_parts(path, None))


def table_parts(path: Path, rows: int | None) -> Iterator[DataFrame]:
    """A CSV or Parquet file, ``rows`` at a time, or all at once."""
    try:
        if form_of(path) == PARQUET:
            yield from _parquet_parts(path, rows)
        else:
            yield from _csv_parts(path, rows)
    except Warning:
        raise DataError(
            f"{path}: its rows have more values than its first line has columns", "unreadable"
        ) from None
    except TORN as error:
        raise DataError(f"{path}: {' '.join(str(error).split())}", "unreadable") from None


def _csv_parts(path: Path, rows: int | None) -> Iterator[DataFrame]:
    import pandas as pd

    with _opened(path) as text:
        start = list(itertools.islice((line for line in text if line.strip()), 30))
    if not start:
        raise DataError(f"{path}: the file is empty")
    separator = _separator(start)
    first = [name.strip() for name in next(csv.reader(start, delimiter=separator))]
    named = not all(_is_number(name) for name in first)
    names = first if named else [str(place) for place in range(len(first))]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{path}: two columns have the name {twice!r}")
    with _opened(path) as text, warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # more values than columns
        parts = pd.read_csv(
            text, sep=separator, header=0 if named else None, names=names, dtype=str,
            keep_default_na=False, na_values=[""], chunksize=rows, iterator=True, index_col=False,
            on_bad_lines="error", skipinitialspace=True,
        )  # fmt: skip
        with parts:
            yield from [parts.read()] if rows is None else parts


def _parquet_parts(path: Path, rows: int | None) -> Iterator[DataFrame]:
    if importlib.util.find_spec("pyarrow") is None:
        raise DataError(f'{path}: Parquet needs pyarrow: pip install "fedrc-flwr[parquet]"')
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    if rows is None:
        yield file.read().to_pandas()
    else:
        for batch in file.iter_batches(rows):
            yield batch.to_pandas()


def _separator(lines: list[str]) -> str:
    """What separates the columns: what divides all lines alike, into as many as possible."""

    def columns(separator: str) -> int:
        counts = {len(row) for row in csv.reader(lines, delimiter=separator)}
        return counts.pop() if len(counts) == 1 else 0

    best = max(SEPARATORS, key=columns)
    if columns(best) > 1:
        return best
    # Lines of different lengths: what is most frequent in the first one.
    return max(SEPARATORS, key=lines[0].count)


def read_arrays(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """The arrays of a .npz file that have one of these names."""
    if path.exists() and not zipfile.is_zipfile(path):
        raise DataError(
            f"{path}: torn, or not a .npz file: expected what numpy.savez writes", "unreadable"
        )
    try:
        with np.load(path, allow_pickle=False) as content:
            return {name: content[name] for name in names if name in content}
    except TORN as error:
        if "allow_pickle" in str(error):
            raise DataError(
                f"{path}: holds an array of objects, which is never read: save arrays of numbers "
                "or texts"
            ) from None
        raise DataError(
            f"{path}: torn, or not a .npz file of plain arrays ({error})", "unreadable"
        ) from None


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True


def _opened(path: Path) -> IO[str]:
    """The file as text: in UTF-8, or else in the encoding that office programs use."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        try:
            while block := file.read(2**20):
                decoder.decode(block)
            decoder.decode(b"", final=True)
            encoding = "utf-8-sig"
        except UnicodeDecodeError:
            encoding = "cp1252"
    opened: IO[str] = opener(path, "rt", encoding=encoding, newline="")
    return opened
