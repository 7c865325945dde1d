"""Time-ordered tables with drift: two balanced test sets, from the first and the last period."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.data.base import Dataset
from fedrc_flwr.data.encoding import as_numbers, shown
from fedrc_flwr.data.reading import read_table
from fedrc_flwr.errors import DataError

if TYPE_CHECKING:
    from pandas import DataFrame

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
    frame = _columns(path, [*ELECTRICITY, "class"])
    labels = np.asarray(frame["class"] == "UP", dtype=np.int64)
    return _split_by_time(_numbers(frame, ELECTRICITY, path), labels, scaled=len(ELECTRICITY))


def airline(directory: Path) -> Dataset:
    """US flights: is the arrival late? Ten numbers, and three columns of names, hashed."""
    patterns = ["airline*.csv", "airline*.csv.gz"]
    path = _find("airline", directory, patterns, "flights with the 13 attributes and ArrDelay")
    frame = _columns(path, [*AIRLINE, *AIRLINE_NAMES, "ArrDelay"])[:AIRLINE_ROWS]
    labels = (_numbers(frame, ("ArrDelay",), path)[:, 0] > 0).astype(np.int64)
    parts = [_numbers(frame, AIRLINE, path)]
    parts += [hash_names(frame[n].tolist(), size) for n, size in AIRLINE_NAMES.items()]
    return _split_by_time(np.concatenate(parts, axis=1), labels, scaled=len(AIRLINE))


def _columns(path: Path, names: list[str]) -> DataFrame:
    frame = read_table(path)
    absent = [name for name in names if name not in frame.columns]
    if absent:
        raise DataError(f"{path}: has no column {absent[0]!r}, only {', '.join(frame.columns)}")
    return frame


def _numbers(frame: DataFrame, names: tuple[str, ...], path: Path) -> NDArray[np.float64]:
    """Columns of finite numbers, (N, D)."""
    numbers = np.stack([as_numbers(frame[name]) for name in names], axis=1)
    if not np.isfinite(numbers).all():
        row, column = np.argwhere(~np.isfinite(numbers))[0]
        name = names[column]
        raise DataError(
            f"{path}: column {name!r} holds {shown(frame[name].iloc[row])} in its row {row + 1}, "
            "expected a number"
        )
    return numbers


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
