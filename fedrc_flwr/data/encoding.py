"""Columns of a table as numbers that a network can learn from.

What is done to a column is given by its description alone; nothing is learned here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.errors import DataError

if TYPE_CHECKING:
    from pandas import DataFrame, Series

NUMBER, CATEGORY, TEXT, DATE, IGNORED = "number", "category", "text", "date", "ignored"
KINDS = (NUMBER, CATEGORY, TEXT, DATE, IGNORED)
#: Parts of a date, and how many numbers each becomes: all but the year go round in a circle.
PARTS = {"year": 1, "season": 2, "weekday": 2, "hour": 2}
#: Texts that mean that a value is missing, in lower case.
MISSING = ("", "na", "n/a", "nan", "null", "none", "<na>", "nat", "-", "?", ".")
#: Numbers further than this many scales from the centre are cut off.
FURTHEST = 10.0
ISO = "ISO8601"
_WHOLE = re.compile(r"(-?\d+)\.0*")


@dataclass(frozen=True)
class Column:
    """One column of a table, and what is done to it.

    Parameters
    ----------
    centre, scale : of a number, or of the year of a date: ``(value - centre) / scale``
    categories : the values that get a number of their own; all others count as none of them
    buckets : how many numbers the words of a text are hashed to
    parts, format : of a date: keys of ``PARTS``, and how it is written
    missing : whether a further number says that the value is missing
    """

    name: str
    kind: str
    centre: float = 0.0
    scale: float = 1.0
    categories: tuple[str, ...] = ()
    buckets: int = 0
    parts: tuple[str, ...] = ()
    format: str = ""
    missing: bool = False

    @property
    def width(self) -> int:
        """How many numbers the column becomes."""
        if self.kind == IGNORED:
            return 0
        widths = {
            NUMBER: 1,
            CATEGORY: len(self.categories),
            TEXT: self.buckets,
            DATE: sum(PARTS[part] for part in self.parts),
        }
        return widths[self.kind] + int(self.missing)


def encode(frame: DataFrame, columns: tuple[Column, ...]) -> NDArray[np.float32]:
    """The columns as numbers, side by side in their order: (N, sum of their widths)."""
    used = [column for column in columns if column.kind != IGNORED]
    absent = [column.name for column in used if column.name not in frame.columns]
    if absent:
        named = ", ".join(repr(name) for name in absent)
        found = ", ".join(map(repr, list(frame.columns)[:20]))
        raise DataError(
            f"the table lacks columns that the schema has: {named}; it has {found}",
            "missing-column",
            absent[0],
        )
    encoded = np.zeros((len(frame), sum(column.width for column in used)), dtype=np.float32)
    _fill_categories(frame, used, encoded)
    start = 0
    for column in used:
        block = encoded[:, start : start + column.width]
        if column.kind != CATEGORY or column.missing:
            values = without_marks(frame[column.name])
            if column.kind != CATEGORY:
                _FILL[column.kind](values, column, block)
            if column.missing:
                block[:, -1] = values.isna().to_numpy()
        start += column.width
    return encoded


def without_marks(values: Series) -> Series:
    """The same column, with proper missing values where a text such as ``NA`` means one."""
    if not is_textual(values):
        return values
    marks = each(values, lambda found: found.astype("str").str.strip().str.lower().isin(MISSING))
    return values.where(marks != 1.0)


def each(values: Series, change: Callable[[Series], Any]) -> NDArray[np.float64]:
    """Numbers for all rows, computed once for each different value; NaN where it is missing."""
    import pandas as pd

    codes, found = pd.factorize(values)
    changed = np.asarray(change(pd.Series(found)), dtype=np.float64)
    numbers: NDArray[np.float64] = np.append(changed, np.nan)[codes]
    return numbers


def is_textual(values: Series) -> bool:
    """Whether a column holds texts, or objects of any kind."""
    return values.dtype == object or str(values.dtype) in ("str", "string", "category")


def as_numbers(values: Series) -> NDArray[np.float64]:
    """Numbers, NaN where a value is missing or is not a number; a decimal comma is understood."""
    import pandas as pd

    if not is_textual(values):
        return np.asarray(pd.to_numeric(values, errors="coerce"), dtype=np.float64)

    def parsed(found: Series) -> Series:
        numbers = pd.to_numeric(found, errors="coerce")
        if numbers.isna().any():
            texts = found.astype("str").str.strip().str.replace(",", ".", regex=False)
            numbers = pd.to_numeric(texts, errors="coerce")
        return numbers

    return each(values, parsed)


def as_dates(values: Series, form: str) -> Series:
    """Points in time; missing where a value is missing or written otherwise."""
    import pandas as pd

    if values.dtype.kind == "M":
        return values
    codes, found = pd.factorize(values)
    dates = pd.to_datetime(pd.Series(found), format=form or ISO, errors="coerce")
    return dates.reindex(codes).set_axis(values.index)


def as_names(values: Series) -> tuple[NDArray[np.int64], list[str]]:
    """For each row the index of its value in a list of texts, -1 where it is missing.

    A number that is whole has the same name however it is stored: 1, 1.0 and "1.0" are "1".
    """
    import pandas as pd

    codes, values_found = pd.factorize(without_marks(values))
    names = [_name(value) for value in values_found]
    places, unique = pd.factorize(pd.Series(names, dtype=object))
    renamed = np.append(places, -1)[codes]
    return renamed.astype(np.int64), [str(name) for name in unique]


def _name(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = str(value).strip()
    whole = _WHOLE.fullmatch(text)
    return whole.group(1) if whole else text


# --- the kinds -----------------------------------------------------------------------------------


def _fill_categories(frame: DataFrame, used: list[Column], encoded: NDArray[np.float32]) -> None:
    """All categories at once, because a call of the encoder has a cost of its own."""
    from sklearn.preprocessing import OneHotEncoder

    chosen = [column for column in used if column.kind == CATEGORY and column.categories]
    if not chosen or not len(frame):
        return
    texts = np.empty((len(frame), len(chosen)), dtype=object)
    for place, column in enumerate(chosen):
        codes, names = as_names(frame[column.name])
        texts[:, place] = np.array([*names, ""], dtype=object)[codes]
    encoder = OneHotEncoder(
        categories=[list(column.categories) for column in chosen],
        handle_unknown="ignore",
        sparse_output=False,
        dtype=np.float32,
    )
    ones = encoder.fit_transform(texts)  # the categories are given: there is nothing to fit
    starts = dict(zip(used, np.cumsum([0, *(column.width for column in used)]), strict=False))
    taken = 0
    for column in chosen:
        size = len(column.categories)
        encoded[:, starts[column] : starts[column] + size] = ones[:, taken : taken + size]
        taken += size


def _fill_number(values: Series, column: Column, block: NDArray[np.float32]) -> None:
    numbers = as_numbers(values)
    refuse_unlike(values, np.isfinite(numbers), column, "a number")
    block[:, 0] = scaled(numbers, column.centre, column.scale)


def _fill_text(values: Series, column: Column, block: NDArray[np.float32]) -> None:
    from sklearn.feature_extraction.text import HashingVectorizer

    hashing = HashingVectorizer(n_features=column.buckets, token_pattern=r"(?u)\b\w+\b")
    codes, texts = as_names(values)
    counts = hashing.transform([*texts, ""]).toarray()  # nothing for a missing text
    block[:, : column.buckets] = counts[codes]


def _fill_date(values: Series, column: Column, block: NDArray[np.float32]) -> None:
    dates = as_dates(values, column.format)
    refuse_unlike(values, dates.notna().to_numpy(), column, f"a date written as {column.format}")
    numbers: list[NDArray[np.float64]] = []
    for part in column.parts:
        if part == "year":
            numbers.append(scaled(years(dates), column.centre, column.scale))
        else:
            angle = 2 * np.pi * _turn(dates, part)
            numbers += [np.nan_to_num(np.sin(angle)), np.nan_to_num(np.cos(angle))]
    block[:, : len(numbers)] = np.stack(numbers, axis=1)


_FILL = {NUMBER: _fill_number, TEXT: _fill_text, DATE: _fill_date}


def years(dates: Series) -> NDArray[np.float64]:
    """Points in time as decimal years."""
    return _field(dates, "year") + _turn(dates, "season")


def _turn(dates: Series, part: str) -> NDArray[np.float64]:
    """How much of its circle a part of a date has gone through, from 0 to 1."""
    if part == "season":
        return (_field(dates, "day_of_year") - 1) / 366
    if part == "weekday":
        return _field(dates, "day_of_week") / 7
    return (_field(dates, "hour") + _field(dates, "minute") / 60) / 24


def _field(dates: Series, name: str) -> NDArray[np.float64]:
    """A part of dates as numbers, NaN where the date is missing."""
    return np.asarray(getattr(dates.dt, name), dtype=np.float64)


def scaled(
    numbers: NDArray[Any], centre: float | NDArray[Any], scale: float | NDArray[Any]
) -> NDArray[np.float64]:
    """Centred and scaled; missing numbers become 0, the centre, and far ones are cut off."""
    moved = np.clip((numbers - centre) / scale, -FURTHEST, FURTHEST)
    return np.nan_to_num(np.asarray(moved, dtype=np.float64))


def refuse_unlike(values: Series, fits: NDArray[np.bool_], column: Column, expected: str) -> None:
    """Refuse values that are there but are not what the schema says."""
    wrong = np.flatnonzero(~fits & values.notna().to_numpy())
    if len(wrong):
        raise DataError(
            f"column {column.name!r} holds {shown(values.iloc[wrong[0]])} in "
            f"{row_name(values, int(wrong[0]))}, expected {expected}",
            "wrong-kind",
            column.name,
        )


def shown(value: Any) -> str:
    """A value as messages show it."""
    return repr(value) if isinstance(value, str) else str(value)


def row_name(values: Series, place: int) -> str:
    """A row in words: counted from 1, also where a table comes in parts."""
    index = values.index[place]
    return f"row {index + 1}" if isinstance(index, int) else f"row {index!r}"
