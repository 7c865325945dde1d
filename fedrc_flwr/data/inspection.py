"""Looking at data before anything is trained: what is in it, what will be done, what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.data.content import ABOUT, Content, content_of
from fedrc_flwr.data.encoding import (
    CATEGORY,
    IGNORED,
    KINDS,
    NUMBER,
    Column,
    as_names,
    as_numbers,
)
from fedrc_flwr.data.kinds import Look, look_at, rounded
from fedrc_flwr.data.labels import class_names, counted, label_problems
from fedrc_flwr.data.schema import Schema, listed
from fedrc_flwr.errors import DataError
from fedrc_flwr.words import counted as in_words
from fedrc_flwr.words import similar

if TYPE_CHECKING:
    from pandas import DataFrame, Series

#: Names that a column of labels often has.
LABELS = ("y", "label", "target", "class", "outcome", "diagnosis")
#: Words in the name of a column that often holds the owners of the rows.
OWNERS = ("client", "hospital", "clinic", "site", "cent", "node", "user", "region", "device")
OTHER = "choose another column with --label"
#: From this share of rows of which a column tells the label, it counts as a leak.
TELLING = 0.995


@dataclass(frozen=True)
class Findings:
    """What is in the data.

    Parameters
    ----------
    words : what the data are, in words
    looks : the columns of a table but for label and client
    classes, clients : rows by name; ``clients`` is empty if nothing names them
    notes : what to know, though it can be run
    problems : why it cannot be run, all at once
    schema : what will be done; None if there are problems
    """

    name: str
    words: str
    label: str
    client: str
    looks: tuple[Look, ...] = ()
    classes: dict[str, int] = field(default_factory=dict)
    clients: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    schema: Schema | None = None

    def required(self) -> Schema:
        """The schema, or an error with all problems."""
        if self.problems or self.schema is None:
            raise DataError(f"{self.name}: " + "; ".join(self.problems))
        return self.schema


def inspect(
    data: Any,
    label: str = "",
    client: str = "",
    ignore: Iterable[str] = (),
    columns: Iterable[str] = (),
    owners: bool = True,
    classes: int = 0,
) -> Findings:
    """Look at a file, a folder, a table or arrays.

    Parameters
    ----------
    data : a path, ``package.module:function``, a pandas frame, or a dict of arrays x, y, client
    label, client : the columns with the labels and the owners of the rows; empty: find out
    ignore : columns to leave out
    columns : the only columns to use, each as ``name`` or ``name:kind``; empty: all
    owners : whether something must name the owner of each row; not so where all rows are one's own
    classes : how many classes there are, where that is known; 0: find out
    """
    content = data if isinstance(data, Content) else content_of(data, client)
    if content.frame is None:
        return _inspect_arrays(content, owners, classes)
    return _inspect_table(content, label, client, tuple(ignore), tuple(columns), owners, classes)


# --- tables --------------------------------------------------------------------------------------


def _inspect_table(
    content: Content,
    label: str,
    client: str,
    ignore: tuple[str, ...],
    columns: tuple[str, ...],
    owners: bool,
    classes: int,
) -> Findings:
    frame: Any = content.frame
    names = [str(name) for name in frame.columns]
    kinds, wrong = _chosen(columns, names)
    named = {"--label": [label], "--client": [client], "--ignore": ignore, "--columns": kinds}
    problems = [*_unknown(named, names), *wrong]
    client = client or ("client" if "client" in names else "")
    label = label or _likely_label([name for name in names if name not in (client, *ABOUT)])
    if not label:
        problems.append("it has no column of labels")
    if problems:
        return Findings(content.name, content.words, label, client, problems=tuple(problems))
    names_of_classes, counts = class_names(frame[label], classes)
    problems += label_problems(frame[label], f"the label {label!r}", classes, OTHER)
    if problems:
        counts = {}  # what is no label has no classes to list
    special = {label, client, *(ABOUT if client else ())}
    looks = tuple(_look(frame[name], name, ignore, kinds) for name in names if name not in special)
    clients = counted(frame[client]) if client else {}
    if client and owners:
        problems += client_problems(clients, int(frame[client].isna().sum()), client)
    elif owners:
        problems.append(no_client([look.column.name for look in looks if _may_own(look, frame)]))
    if not sum(look.column.width for look in looks):
        problems.append("no column is left to learn from")
    notes = [*label_notes(frame[label], counts, label), *_column_notes(frame, looks, label)]
    schema = Schema(names_of_classes, tuple(look.column for look in looks), label, client)
    return Findings(
        content.name, content.words, label, client, looks, counts, clients, tuple(notes),
        tuple(problems), None if problems else schema,
    )  # fmt: skip


def _chosen(columns: tuple[str, ...], names: list[str]) -> tuple[dict[str, str], list[str]]:
    """The columns that the user chose with their kinds, and what is wrong with these."""
    kinds, problems = {}, []
    for entry in columns:
        name, colon, kind = (entry, "", "") if entry in names else entry.rpartition(":")
        if colon and kind not in KINDS:
            problems.append(f"--columns {entry}: kind {kind!r}: expected {', '.join(KINDS)}")
        kinds[name if colon else entry] = kind if colon else ""
    return kinds, problems


def _unknown(named: Mapping[str, Iterable[str]], names: list[str]) -> list[str]:
    absent = [(option, name) for option, given in named.items() for name in given if name]
    return [
        f"{option} {name}: there is no such column, only {listed(names)}{similar(name, names)}"
        for option, name in absent
        if name not in names
    ]


def _likely_label(names: list[str]) -> str:
    known = [name for wanted in LABELS for name in names if name.lower() == wanted]
    return [*known, *names[-1:], ""][0]


def _look(values: Series, name: str, ignore: tuple[str, ...], kinds: Mapping[str, str]) -> Look:
    if name in ignore:
        return Look(Column(name, IGNORED), "", 0, 0, "as you said")
    if kinds and name not in kinds:
        return Look(Column(name, IGNORED), "", 0, 0, "it is not among --columns")
    return look_at(values, name, kinds.get(name, ""), keep=name in kinds)


def _may_own(look: Look, frame: DataFrame) -> bool:
    """Whether a column could name the owners of the rows."""
    like = look.column.kind == CATEGORY or any(word in look.column.name.lower() for word in OWNERS)
    return like and 2 <= look.distinct <= len(frame) / 5 and not look.missing


def no_client(candidates: list[str]) -> str:
    """Why data without owners is refused, and what to do."""
    likely = [name for name in candidates if any(word in name.lower() for word in OWNERS)]
    named = [f"--client {name}" for name in (likely or candidates)[:3]]
    could = f", such as {' or '.join(named)}" if named else ""
    return (
        f"nothing says which client each row belongs to: name the column with --client{could}; to "
        "simulate made-up clients instead, use --set data.clients=12; if it is all the data of one "
        "node of a deployment, check it with fedrc check --schema FILE"
    )


def client_problems(clients: Mapping[str, int], missing: int, column: str) -> list[str]:
    """Why these owners make no federation."""
    problems = []
    if len(clients) < 2:
        problems.append(f"the client column {column!r} names one client: expected two or more")
    small = [name for name, rows in clients.items() if rows < 2]
    if small:
        problems.append(
            f"{in_words(len(small), 'client')} of {column!r} with a single row: "
            f"{listed(small, 5)}; expected two rows or more each, to learn from and to test on"
        )
    if missing:
        problems.append(f"the client column {column!r} is empty in {in_words(missing, 'row')}")
    return problems


def label_notes(labels: Series, counts: Mapping[str, int], label: str) -> list[str]:
    """What to know about the labels."""
    notes: list[str] = []
    if not counts:
        return notes
    missing = len(labels) - sum(counts.values())
    if missing:
        notes.append(f"{in_words(missing, 'row')} without a label: left out")
    rare = [name for name, rows in counts.items() if 0 < rows < 10]
    if rare:
        notes.append(f"labels with fewer than 10 rows, hard to learn: {listed(rare, 6)}")
    largest = max(counts.values())
    if largest > 0.9 * sum(counts.values()):
        notes.append(
            f"{largest / sum(counts.values()):.1%} of the rows have one label: always answering it "
            "scores as much"
        )
    return notes


def _column_notes(frame: DataFrame, looks: tuple[Look, ...], label: str) -> list[str]:
    notes = []
    labels, _ = as_names(frame[label])
    for look in looks:
        name = look.column.name
        if look.column.kind == IGNORED:
            continue
        if look.missing > len(frame) / 2:
            notes.append(f"{name!r} is missing in {look.missing / len(frame):.0%} of the rows")
        if tells_label(frame[name], look, labels):
            notes.append(
                f"{name!r} alone tells the label: if it is only known after the label, it is a "
                f"leak; leave it out with --ignore {name}"
            )
    return notes


def tells_label(values: Series, look: Look, labels: NDArray[np.int64]) -> bool:
    """Whether knowing a column is knowing the label.

    Either each of its values goes with one label, or, for numbers, each label has a range of its
    own.
    """
    import pandas as pd

    codes, _ = pd.factorize(values)
    known = (codes >= 0) & (labels >= 0)
    codes, labels = codes[known], labels[known]
    classes = len(np.unique(labels))
    if classes < 2:
        return False
    if look.distinct <= len(labels) / 5:
        sizes = (int(codes.max()) + 1, int(labels.max()) + 1)
        table = np.bincount(codes * sizes[1] + labels, minlength=sizes[0] * sizes[1]).reshape(sizes)
        return bool(table.max(axis=1).sum() >= TELLING * len(labels))
    if look.column.kind != NUMBER:
        return False
    ordered = labels[np.argsort(as_numbers(values)[known], kind="stable")]
    return int((np.diff(ordered) != 0).sum()) == classes - 1


# --- arrays --------------------------------------------------------------------------------------


def _inspect_arrays(content: Content, owners: bool, classes: int) -> Findings:
    import pandas as pd

    labels = pd.Series(content.arrays["y"])
    names, counts = class_names(labels, classes)
    problems = label_problems(labels, "the label y", classes)
    if problems:
        counts = {}
    clients: dict[str, int] = {}
    if "client" in content.arrays:
        clients = counted(pd.Series(content.arrays["client"]))
    if clients and owners:
        problems += client_problems(clients, 0, "client")
    elif owners:
        problems.append(no_client([]))
    samples = np.zeros((1, *content.shape), np.uint8) if content.lazy else content.samples()
    centre, scale, wrong, more = _array_scale(samples)
    problems, notes = [*problems, *wrong], [*label_notes(labels, counts, "y"), *more]
    schema = Schema(names, shape=content.shape, centre=centre, scale=scale)
    return Findings(
        content.name, content.words, "y", "client" if clients else "", (), counts, clients,
        tuple(notes), tuple(problems), None if problems else schema,
    )  # fmt: skip


def _array_scale(
    x: NDArray[Any],
) -> tuple[tuple[float, ...], tuple[float, ...], list[str], list[str]]:
    """Centre and scale of arrays, problems and notes.

    Rows of numbers get a pair for each column. Images keep their values if these are bytes or
    between 0 and 1, and get one pair otherwise.
    """
    if x.dtype == np.uint8:
        return (0.0,), (1.0,), [], []
    numbers = x.astype(np.float64)
    bad = ~np.isfinite(numbers)
    if x.ndim > 2 and bad.any():
        row = int(np.argwhere(bad)[0][0])
        return (0.0,), (1.0,), [f"sample {row} of x holds NaN or infinity: leave it out"], []
    if x.ndim > 2:
        if numbers.min() >= 0 and numbers.max() <= 1:
            return (0.0,), (1.0,), [], []
        one = rounded(float(numbers.mean()), float(numbers.std()))
        return (one[0],), (one[1],), [], []
    numbers[bad] = np.nan
    notes = [f"{in_words(int(bad.sum()), 'missing number')} in x: filled with the column's centre"]
    empty = bad.all(axis=0)
    numbers[:, empty] = 0.0
    centres, scales = np.nanmean(numbers, axis=0), np.nanstd(numbers, axis=0)
    pairs = [rounded(float(c), float(s)) for c, s in zip(centres, scales, strict=True)]
    return tuple(p[0] for p in pairs), tuple(p[1] for p in pairs), [], notes if bad.any() else []
