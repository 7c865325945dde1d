"""Labels: the names of the classes, and what cannot be one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedrc_flwr.data.encoding import as_names, as_numbers, without_marks
from fedrc_flwr.data.kinds import is_whole

if TYPE_CHECKING:
    from pandas import Series

#: Numbers with more different values than this are taken for a quantity, not for classes.
MOST_NUMBERS = 30


def class_names(labels: Series, classes: int = 0) -> tuple[tuple[str, ...], dict[str, int]]:
    """The classes in their order, and how many rows each has.

    Whole numbers from 0 without large gaps keep their numbers. Everything else is a name, and names
    come in alphabetical order.

    Parameters
    ----------
    classes : how many there are, where that is known; 0: find out
    """
    counts = counted(labels)
    numbers = [int(name) for name in counts if name.isdecimal() and str(int(name)) == name]
    largest = max(numbers, default=-1)
    if len(numbers) == len(counts) and (
        largest < classes or (not classes and 0 in numbers and largest < 2 * len(counts))
    ):
        names = tuple(str(number) for number in range(classes or largest + 1))
    else:
        names = tuple(sorted(counts, key=_order))
    return names, {name: counts.get(name, 0) for name in names}


def counted(values: Series) -> dict[str, int]:
    """How many rows each name has; missing values are left out."""
    codes, names = as_names(values)
    counts = np.bincount(codes[codes >= 0], minlength=len(names))
    return {name: int(count) for name, count in zip(names, counts, strict=True)}


def label_problems(labels: Series, what: str, classes: int = 0, other: str = "") -> list[str]:
    """Why these labels cannot be learned, in words.

    Parameters
    ----------
    classes : how many classes there are, where that is known; 0: find out
    other : how to choose other labels
    """
    labels = without_marks(labels)
    instead, or_else = (f"; {other}", f", or {other}") if other else ("", "")
    rows, distinct = int(labels.notna().sum()), len(counted(labels))
    if not rows:
        return [f"{what} has no values"]
    if classes:
        names, _ = class_names(labels, classes)
        wrong = f"{what} has {len(names)} classes, but data.classes says {classes}"
        return [wrong] if len(names) != classes else []
    if distinct == 1:
        return [
            f"{what} is {next(iter(counted(labels)))!r} in every row: there is nothing to tell "
            f"apart{instead}"
        ]
    numbers = as_numbers(labels)
    finite = numbers[np.isfinite(numbers)]
    quantity = len(finite) == rows and distinct > 10 and not is_whole(finite)
    quantity |= len(finite) == rows and distinct > max(MOST_NUMBERS, rows**0.5)
    if quantity:
        return [
            f"{what} has {distinct} different numbers from {finite.min():g} to {finite.max():g}: "
            "this looks like a quantity, and fedrc-flwr tells classes apart; cut it into classes"
            f"{or_else}"
        ]
    if rows <= 3 * distinct:
        return [
            f"{what} has {distinct} different values in {rows} rows, a value of its own for every "
            f"{_ordinal(rows // distinct)} row: too few rows to learn each of them{instead}"
        ]
    return []


def _ordinal(number: int) -> str:
    return {1: "single", 2: "second", 3: "third"}.get(number, f"{number}th")


def _order(name: str) -> tuple[int, float, str]:
    """Numbers by size, then texts by the alphabet."""
    try:
        return 0, float(name), name
    except ValueError:
        return 1, 0.0, name
