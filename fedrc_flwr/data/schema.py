"""The schema of a dataset: what its samples look like, what is done to them, and its classes.

A schema is a description, kept as JSON: with the run, with its models, and in a file that the
nodes of a deployment share. It says all that is needed to turn a raw row into a network's input.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.data.encoding import (
    CATEGORY,
    DATE,
    KINDS,
    NUMBER,
    PARTS,
    TEXT,
    Column,
    as_names,
    encode,
    row_name,
    scaled,
)
from fedrc_flwr.errors import DataError
from fedrc_flwr.files import replacing

if TYPE_CHECKING:
    from pandas import DataFrame

VERSION = 1
#: The fields of a column that are written, by its kind.
FIELDS = {
    NUMBER: ("centre", "scale"),
    CATEGORY: ("categories",),
    TEXT: ("buckets",),
    DATE: ("format", "parts", "centre", "scale"),
}


@dataclass(frozen=True)
class Schema:
    """A table with ``columns``, or arrays of ``shape``.

    Parameters
    ----------
    classes : names of the classes, in the order of their numbers
    label, client : the columns with the labels and with the owners of the rows; empty: none
    shape : of one sample of an array
    centre, scale : of an array: one number for all values, or one for each
    """

    classes: tuple[str, ...]
    columns: tuple[Column, ...] = ()
    label: str = ""
    client: str = ""
    shape: tuple[int, ...] = ()
    centre: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as the network sees it."""
        return self.shape or (sum(column.width for column in self.columns),)

    @property
    def is_table(self) -> bool:
        """Whether samples are rows of a table."""
        return bool(self.columns)

    def column_names(self) -> set[str]:
        """The names of all columns that it knows."""
        return {column.name for column in self.columns} | {self.label, self.client} - {""}

    def features(self, frame: DataFrame) -> NDArray[np.float32]:
        """Rows of a table as inputs of a network, (N, D)."""
        if not self.is_table:
            raise DataError(f"expected arrays of the shape {self.shape}, found a table")
        return encode(frame, self.columns)

    def scaled(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Samples of an array as inputs of a network, (N, ...); bytes stay as they are."""
        if samples.dtype == np.uint8:
            return samples
        if self.plain:
            return samples.astype(np.float32, copy=False)
        centre, scale = np.array(self.centre), np.array(self.scale)
        return scaled(samples, centre, scale).astype(np.float32)

    @property
    def plain(self) -> bool:
        """Whether the samples of an array are inputs of the network as they are."""
        return not self.is_table and self.centre == (0.0,) and self.scale == (1.0,)

    def numbers(self, labels: Any) -> NDArray[np.int64]:
        """Labels by name as the numbers of their classes, (N,); -1 where one is missing."""
        import pandas as pd

        values = pd.Series(labels)
        codes, names = as_names(values)
        places = pd.Index(self.classes).get_indexer(names)
        unknown = [name for name, place in zip(names, places, strict=True) if place < 0]
        if unknown:
            row = row_name(values, int(np.flatnonzero(codes == names.index(unknown[0]))[0]))
            raise DataError(
                f"label {unknown[0]!r} in {row} is none of the {len(self.classes)} classes "
                f"{listed(self.classes)}",
                "unknown-label",
                self.label,
            )
        return np.append(places, -1)[codes].astype(np.int64)

    def names(self, numbers: NDArray[np.int64]) -> NDArray[np.object_]:
        """Classes by their numbers, (N,), as names."""
        return np.array(self.classes, dtype=object)[numbers]

    def text(self) -> str:
        """The schema as one line of JSON."""
        return json.dumps(self._content(), ensure_ascii=False)

    def save(self, path: Path) -> None:
        """Write the schema to a file, a column per line, so that people can read and edit it."""
        content = self._content()
        rows = content.pop("columns", [])
        head = json.dumps(content, ensure_ascii=False, indent=2)
        lines = ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in rows)
        tail = f',\n  "columns": [\n{lines}\n  ]\n}}' if rows else "\n}"
        try:
            with replacing(path) as beside:
                beside.write_text(f"{head[:-2]}{tail}\n", encoding="utf-8")
        except OSError as error:
            raise DataError(f"{path}: the schema cannot be written: {error}") from None

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = {"fedrc_schema": VERSION, "classes": list(self.classes)}
        content |= {name: getattr(self, name) for name in ("label", "client")}
        if self.is_table:
            return {**content, "columns": [_column_content(column) for column in self.columns]}
        return {
            **content,
            "shape": list(self.shape),
            "centre": list(self.centre),
            "scale": list(self.scale),
        }


def class_array(classes: Sequence[str]) -> NDArray[Any]:
    """The classes as people know them, (C,): numbers where their names are their numbers."""
    numbered = list(classes) == [str(number) for number in range(len(classes))]
    return np.arange(len(classes)) if numbered else np.array(classes)


def plain_schema(shape: tuple[int, ...], classes: int) -> Schema:
    """The schema of arrays that are left as they are, with classes by number."""
    return Schema(classes=tuple(str(number) for number in range(classes)), shape=shape)


def read_schema(path: Path) -> Schema:
    """The schema in a file."""
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: the schema cannot be read ({error}): make one with "
            f"fedrc check DATA --schema {path}"
        ) from None
    return parse_schema(text, str(path))


@lru_cache(maxsize=8)
def parse_schema(text: str, where: str = "data.schema") -> Schema:
    """The inverse of ``Schema.text``, with checks: people edit these files."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}") from None
    if not isinstance(content, dict) or content.get("fedrc_schema") != VERSION:
        raise DataError(f'{where}: not a schema: expected JSON with "fedrc_schema": {VERSION}')
    known = {"fedrc_schema", *(field.name for field in dataclasses.fields(Schema))}
    _refuse_unknown(content, known, where)
    try:
        schema = Schema(
            classes=_names(content["classes"], "classes", where),
            columns=tuple(_column(entry, where) for entry in content.get("columns", [])),
            label=str(content.get("label", "")),
            client=str(content.get("client", "")),
            shape=tuple(int(size) for size in content.get("shape", [])),
            centre=tuple(float(number) for number in content.get("centre", [0.0])),
            scale=tuple(float(number) for number in content.get("scale", [1.0])),
        )
    except KeyError as error:
        raise DataError(f"{where}: {error} is missing") from None
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: {error}") from None
    _check(schema, where)
    return schema


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names in a row, shortened where there are many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _column_content(column: Column) -> dict[str, Any]:
    content: dict[str, Any] = {"name": column.name, "kind": column.kind}
    content |= {name: getattr(column, name) for name in FIELDS.get(column.kind, ())}
    return {**content, **({"missing": True} if column.missing else {})}


def _column(entry: Any, where: str) -> Column:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise DataError(f"{where}: a column is {entry!r}, expected an object with a name")
    named, kind = f"{where}: column {entry['name']!r}", entry.get("kind")
    if kind not in KINDS:
        raise DataError(f"{named}: kind {kind!r}: expected one of {', '.join(KINDS)}")
    _refuse_unknown(entry, {"name", "kind", "missing", *FIELDS.get(kind, ())}, named)
    values = {name: entry[name] for name in entry if name not in ("categories", "parts")}
    column = Column(
        **values,
        categories=_names(entry.get("categories", []), "categories", named),
        parts=_names(entry.get("parts", []), "parts", named),
    )
    wrong = [
        (kind in (NUMBER, DATE) and not (_is_number(column.centre) and _is_number(column.scale))),
        (kind in (NUMBER, DATE) and not column.scale > 0),
        (kind == TEXT and not (isinstance(column.buckets, int) and 0 < column.buckets <= 2**16)),
        (kind == DATE and not (column.parts and set(column.parts) <= set(PARTS))),
        not isinstance(column.missing, bool),
    ]
    if any(wrong):
        raise DataError(
            f"{named}: expected a number as centre, a scale above 0, 1 to 65536 buckets, parts "
            f"among {', '.join(PARTS)}, and missing true or false"
        )
    return column


def _check(schema: Schema, where: str) -> None:
    names = [column.name for column in schema.columns]
    for what, given in (("columns", names), ("classes", list(schema.classes))):
        if len(set(given)) != len(given):
            twice = next(name for name in given if given.count(name) > 1)
            raise DataError(f"{where}: {what}: {twice!r} is there twice")
    if len(schema.classes) < 2:
        raise DataError(f"{where}: expected two classes or more, found {list(schema.classes)}")
    if schema.is_table == bool(schema.shape):
        raise DataError(f"{where}: expected either columns or a shape")
    if min(schema.input_shape) < 1:
        raise DataError(f"{where}: no column is left to learn from")
    sizes = {len(schema.centre), len(schema.scale)}
    if sizes not in ({1}, {schema.input_shape[-1]}) or not all(s > 0 for s in schema.scale):
        raise DataError(
            f"{where}: centre and scale: expected one number each or one for each value, and "
            "scales above 0"
        )


def _names(values: Any, what: str, where: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DataError(f"{where}: {what} = {values!r}: expected a list of texts")
    return tuple(values)


def _refuse_unknown(content: dict[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(content) - known)
    if unknown:
        raise DataError(
            f"{where}: unknown field {unknown[0]!r}: expected {', '.join(sorted(known))}"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value)
