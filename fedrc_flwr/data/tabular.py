"""Time-ordered tables with drift: two balanced test sets, from the first and the last period."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.data.base import Dataset
from fedrc_flwr.data.reading import csv_rows, is_number
from fedrc_flwr.errors import DataError

#: Fraction of the rows at each end from which a test set is taken.
PERIOD = 0.1
ELECTRICITY = (
    "date", "day", "period", "nswprice", "nswdemand", "vicprice", "vicdemand", "transfer",
)  # fmt: skip
AIRLINE = (
    "Year", "Month", "DayofMonth", "DayofWeek", "CRSDepTime", "CRSArrTime", "FlightNum",
    "ActualElapsedTime", "Distance", "Diverted",
)  # fmt: skip
#: How many rows the paper uses, counted from the first.
AIRLINE_ROWS = 58_100
#: Columns of names and their numbers of hash buckets; hashing needs no list of all names.
AIRLINE_NAMES = {"UniqueCarrier": 32, "Origin": 64, "Dest": 64}
AIRLINE_SIZE = len(AIRLINE) + sum(AIRLINE_NAMES.values())


def electricity(directory: Path) -> Dataset:
    """Elec2: does the price in New South Wales go up? 8 features, class UP or DOWN."""
    patterns = ["elec*.csv", "elec*.csv.gz"]
    path = _find("electricity", directory, patterns, "the Elec2 table with a header line")
    columns = read_columns(path)
    labels = np.array([text == "UP" for text in _column(columns, "class", path)], dtype=np.int64)
    inputs = np.stack([numbers(_column(columns, n, path), n, path) for n in ELECTRICITY], axis=1)
    return _split_by_time(inputs, labels, scaled=len(ELECTRICITY))


def airline(directory: Path) -> Dataset:
    """US flights: is the arrival late? Ten numbers, and three columns of names, hashed."""
    patterns = ["airline*.csv", "airline*.csv.gz"]
    path = _find("airline", directory, patterns, "flights with the 13 attributes and ArrDelay")
    columns = {name: texts[:AIRLINE_ROWS] for name, texts in read_columns(path).items()}
    labels = (numbers(_column(columns, "ArrDelay", path), "ArrDelay", path) > 0).astype(np.int64)
    parts = [numbers(_column(columns, n, path), n, path)[:, None] for n in AIRLINE]
    parts += [hash_names(_column(columns, n, path), size) for n, size in AIRLINE_NAMES.items()]
    return _split_by_time(np.concatenate(parts, axis=1), labels, scaled=len(AIRLINE))


def read_columns(path: Path) -> dict[str, list[str]]:
    """The texts of a CSV file by column; columns without a header line are named 0, 1, ..."""
    with csv_rows(path) as (names, rows):
        columns = zip(*rows, strict=True)
        return dict(zip(names, map(list, columns), strict=False)) or {name: [] for name in names}


def numbers(texts: list[str], name: str, path: Path) -> NDArray[np.float64]:
    """A column of finite numbers."""
    try:
        values = np.array(texts, dtype=np.float64)
    except ValueError:
        values = np.full(len(texts), np.nan)
        for place, text in enumerate(texts):
            if is_number(text):
                values[place] = float(text)
    if not np.isfinite(values).all():
        place = int(np.flatnonzero(~np.isfinite(values))[0])
        raise DataError(
            f"{path}: column {name!r} holds {texts[place]!r} in its row {place + 1}, expected a "
            "number"
        )
    return values


def hash_names(names: list[str], size: int) -> NDArray[np.float64]:
    """(N, size), with a one in the place to which each name is hashed."""
    places = {name: zlib.crc32(name.encode()) % size for name in set(names)}
    return np.eye(size)[[places[name] for name in names]]


def _find(name: str, directory: Path, patterns: list[str], what: str) -> Path:
    found = sorted(path for pattern in patterns for path in directory.glob(pattern))
    if not found:
        raise DataError(
            f"{name}: {' or '.join(patterns)} was not found in {directory.absolute()}: put {what} "
            "into a directory and set data.directory to it"
        )
    return found[0]


def _column(columns: dict[str, list[str]], name: str, path: Path) -> list[str]:
    if name not in columns:
        raise DataError(f"{path}: has no column {name!r}, only {', '.join(columns)}")
    return columns[name]


def _split_by_time(inputs: NDArray[np.float64], labels: NDArray[np.int64], scaled: int) -> Dataset:
    """Hold balanced samples of the first and the last period back, and scale by the rest.

    Parameters
    ----------
    inputs : (N, D) in the order of time
    scaled : how many of the leading columns are scaled to mean 0 and deviation 1
    """
    rows, length = np.arange(len(labels)), int(PERIOD * len(labels))
    sets = [_balanced(period, labels) for period in (rows[:length], rows[len(rows) - length :])]
    held = np.concatenate(sets)
    kept = np.setdiff1d(rows, held)
    deviations = inputs[kept, :scaled].std(axis=0)
    inputs[:, :scaled] -= inputs[kept, :scaled].mean(axis=0)
    inputs[:, :scaled] /= np.where(deviations > 0, deviations, 1.0)
    small = inputs.astype(np.float32)
    which = np.repeat(np.arange(len(sets)), [len(rows) for rows in sets])
    return Dataset(small[kept], labels[kept], small[held], labels[held], which)


def _balanced(period: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """As many rows of either class, spread evenly over the period."""
    classes = [period[labels[period] == label] for label in (0, 1)]
    number = min(len(rows) for rows in classes)
    if not number:
        raise DataError("a period at either end of the table holds one class only")
    picks = [rows[np.linspace(0, len(rows) - 1, number).astype(np.int64)] for rows in classes]
    return np.sort(np.concatenate(picks))
