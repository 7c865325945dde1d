"""What kind of values a column holds, and what is best done to them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.data.encoding import (
    CATEGORY,
    DATE,
    IGNORED,
    ISO,
    NUMBER,
    TEXT,
    Column,
    as_dates,
    as_names,
    as_numbers,
    is_textual,
    shown,
    without_marks,
    years,
)
from fedrc_flwr.errors import DataError

if TYPE_CHECKING:
    from pandas import Series

#: Texts with at most this many different values become categories.
MOST_CATEGORIES = 50
#: Categories with fewer rows count as none: they teach little, and may point at a person.
RARE = 5
#: Numbers that the words of a text are hashed to.
BUCKETS = 64
#: A column in which this share of the rows has a value of its own names the row.
UNIQUE = 0.98
#: Ways of writing a date, the likelier first.
FORMATS = (
    ISO, "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d/%m/%Y", "%m/%d/%Y",
    "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%Y/%m/%d", "%d-%m-%Y", "%d.%m.%y", "%Y%m%d",
)  # fmt: skip


@dataclass(frozen=True)
class Look:
    """What a column looks like.

    Parameters
    ----------
    column : what is done to it
    content : its values in words
    missing : how many rows have no value
    distinct : how many different values there are
    reason : why it is left out, if it is
    """

    column: Column
    content: str
    missing: int
    distinct: int
    reason: str = ""

    def left_out(self, reason: str) -> Look:
        """The same column, left out."""
        return replace(self, column=Column(self.column.name, IGNORED), reason=reason)


def look_at(values: Series, name: str, kind: str = "", keep: bool = False) -> Look:
    """Describe a column.

    Parameters
    ----------
    kind : what the user says it is; empty: find out
    keep : whether the user asked for it, so that it is not left out as an identifier
    """
    values = without_marks(values)
    missing = int(values.isna().sum())
    if missing == len(values):
        return Look(Column(name, IGNORED), "no values", missing, 0, "it has no values")
    found = _as_said(values, name, kind) if kind else _as_found(values, name)
    if missing and found.column.kind != IGNORED:
        found = replace(found, column=replace(found.column, missing=True))
    found = replace(found, missing=missing)
    if found.distinct == 1 and not missing and not kind:
        return found.left_out("it has the same value in every row")
    if kind or keep:
        return found
    share = found.distinct / max(1, len(values) - missing)
    names_rows = _is_key(values) if found.column.kind == NUMBER else _is_code(values, found)
    if share >= UNIQUE and len(values) >= 20 and names_rows:
        return found.left_out("a different value in every row, like an identifier")
    return found


def rounded(centre: float, scale: float) -> tuple[float, float]:
    """A scale with one digit, and a centre that is as exact.

    Scaling works as well, and figures such as 60 and 20 say next to nothing about the rows.
    """
    if not scale > 0 or not math.isfinite(scale):
        return float(f"{centre:.1g}"), 1.0
    digit = math.floor(math.log10(scale))
    if round(scale, -digit) >= 10.0 ** (digit + 1):
        digit += 1
    return round(centre, -digit), round(scale, -digit)


def is_whole(numbers: NDArray[np.float64]) -> bool:
    """Whether all numbers are whole."""
    return bool((numbers == np.rint(numbers)).all())


def _as_found(values: Series, name: str) -> Look:
    if values.dtype.kind == "M":
        return _date(values, name, ISO)
    if values.dtype.kind == "b":
        return _category(values, name)
    numbers = as_numbers(values)
    if not (np.isnan(numbers) & values.notna().to_numpy()).any():
        return _number(numbers, name)
    form = _date_format(values)
    if form:
        return _date(values, name, form)
    found = _category(values, name)
    return found if found.distinct <= MOST_CATEGORIES else _text(values, name, found.distinct)


def _as_said(values: Series, name: str, kind: str) -> Look:
    """The kind that the user says a column has."""
    if kind == CATEGORY:
        return _category(values, name)
    if kind == TEXT:
        return _text(values, name, values.nunique())
    if kind == IGNORED:
        return Look(Column(name, IGNORED), "", 0, 0, "you said so")
    numbers = as_numbers(values)
    wrong = np.isnan(numbers) & values.notna().to_numpy()
    if kind == NUMBER and not wrong.any():
        return _number(numbers, name)
    form = ISO if values.dtype.kind == "M" else _date_format(values)
    if kind == DATE and form:
        return _date(values, name, form)
    example = values[wrong].iloc[0] if wrong.any() else values.dropna().iloc[0]
    raise DataError(f"column {name!r} is no {kind}: it holds {shown(example)}")


def _number(numbers: NDArray[np.float64], name: str) -> Look:
    present = numbers[np.isfinite(numbers)]
    if not len(present):
        return Look(Column(name, IGNORED), "no finite numbers", 0, 0, "it has no values")
    centre, scale = rounded(float(present.mean()), float(present.std()))
    content = f"{present.min():g} to {present.max():g}, mean {present.mean():.3g}"
    distinct = len(np.unique(present))
    return Look(Column(name, NUMBER, centre=centre, scale=scale), content, 0, distinct)


def _category(values: Series, name: str) -> Look:
    codes, names = as_names(values)
    counts = np.bincount(codes[codes >= 0], minlength=len(names))
    order = sorted(range(len(names)), key=lambda place: (-counts[place], names[place]))
    kept = sorted(names[place] for place in order if counts[place] >= RARE)
    most = ", ".join(names[place][:20] for place in order[:4])
    rare = len(names) - len(kept)
    content = f"{len(names)} values: {most}{', ...' if len(names) > 4 else ''}"
    content += f"; {rare} of them rare" if rare else ""
    look = Look(Column(name, CATEGORY, categories=tuple(kept)), content, 0, len(names))
    return look if kept else look.left_out(f"each of its values has fewer than {RARE} rows")


def _text(values: Series, name: str, distinct: int) -> Look:
    words = values.dropna().astype("str").str.count(r"\w+").mean()
    content = f"{distinct} different texts of {words:.1f} words on average"
    return Look(Column(name, TEXT, buckets=BUCKETS), content, 0, distinct)


def _date(values: Series, name: str, form: str) -> Look:
    dates = as_dates(values, form).dropna()
    centre, scale = rounded(float(years(dates).mean()), float(years(dates).std()))
    timed = bool((dates.dt.hour.nunique() > 1) or (dates.dt.minute.nunique() > 1))
    parts = ("year", "season", "weekday", *(("hour",) if timed else ()))
    column = Column(name, DATE, centre=centre, scale=scale, parts=parts, format=form)
    content = f"{dates.min():%Y-%m-%d} to {dates.max():%Y-%m-%d}"
    return Look(column, content, 0, int(dates.nunique()))


def _date_format(values: Series) -> str:
    """The way in which all values are written as dates, or nothing."""
    if not is_textual(values):
        return ""
    present = values.dropna().drop_duplicates()
    first = present.iloc[:20]
    if not first.astype("str").str.match(r"\s*\d{1,4}[-./]?\d{1,2}[-./]?\d{2,4}").all():
        return ""
    for form in FORMATS:
        if as_dates(first, form).notna().all() and as_dates(present, form).notna().all():
            return form
    return ""


def _is_key(values: Series) -> bool:
    """Whether numbers count the rows: whole, and without large gaps."""
    numbers = as_numbers(values.dropna())
    return is_whole(numbers) and float(numbers.max() - numbers.min()) < 20 * len(numbers)


def _is_code(values: Series, found: Look) -> bool:
    """Whether texts are codes of one word, as identifiers are."""
    if found.column.kind == DATE:
        return False
    words = values.dropna().iloc[:1000].astype("str").str.strip()
    return bool(words.str.count(r"\s").mean() < 0.5)
