"""Data in words: what was found in it, and what a run does to it."""

from __future__ import annotations

from collections.abc import Sequence

from fedrc_flwr.data.encoding import CATEGORY, DATE, IGNORED, NUMBER, TEXT, Column
from fedrc_flwr.data.inspection import Findings
from fedrc_flwr.data.kinds import Look
from fedrc_flwr.data.scenario import Scenario
from fedrc_flwr.data.schema import Schema, listed
from fedrc_flwr.words import counted

#: Clients and classes that are listed one by one.
MOST = 12
PLURALS = {NUMBER: "numbers", CATEGORY: "categories", TEXT: "texts", DATE: "dates"}


def report(found: Findings) -> list[str]:
    """All that was found, for ``fedrc check``."""
    lines = [f"{found.name}: {found.words}"]
    if found.classes:
        lines += ["", f"Label {found.label!r}: {len(found.classes)} classes", *_shares(found)]
    if found.clients:
        lines += ["", f"Clients by {found.client!r}: {_clients(found)}"]
    if found.looks:
        lines += ["", "Columns", *_table(found.looks)]
    if found.notes:
        lines += ["", "Worth a look", *(f"  - {note}" for note in found.notes)]
    if found.problems:
        lines += ["", "It cannot be run like this", *(f"  - {text}" for text in found.problems)]
    elif found.schema is not None:
        lines += ["", f"It can be run. {learned_from(found.schema)}"]
    return lines


def learned_from(schema: Schema) -> str:
    """What the network gets, in one sentence."""
    if not schema.is_table:
        shape = " x ".join(str(size) for size in schema.shape)
        how = "as they are" if schema.plain else "centred and scaled"
        return f"The network gets {shape} numbers for each sample, {how}."
    used = [column for column in schema.columns if column.kind != IGNORED]
    parts = [
        f"{count} {PLURALS[kind] if count > 1 else kind}"
        for kind in PLURALS
        if (count := sum(column.kind == kind for column in used))
    ]
    left_out = [column.name for column in schema.columns if column.kind == IGNORED]
    without = f", without {listed(left_out, 5)}" if left_out else ""
    return (
        f"The network gets {schema.input_shape[0]} numbers for each row, from "
        f"{' and '.join(part for part in (', '.join(parts[:-1]), parts[-1]) if part)}{without}."
    )


def done_to(scenario: Scenario) -> list[str]:
    """What a run does to the user's own data, for its first lines."""
    if not scenario.own:
        return []
    settings = scenario.settings
    if scenario.grouped:
        done = "each client has its own rows"
    else:
        done = f"the rows are dealt out to {scenario.clients} made-up clients, as data.clients says"
        held = "a fifth is held back for observers"
        done += f", and {held}" if scenario.observers else ""
        if len(settings.shares()) > 1:
            done += "; clients are relabelled, as data.concept-shares or data.mix says"
        if any(settings.corrupted()):
            done += "; images are corrupted, as data.corrupted-shares or data.mix says"
        if settings.label_noise != "none":
            done += "; labels are flipped, as data.label-noise says"
    as_it_is = ": nothing is relabelled, corrupted or split" if scenario.grouped else ""
    classes = f"classes {listed(scenario.schema.classes, MOST)}"
    return [f"your data: {done}{as_it_is}; {classes}", learned_from(scenario.schema)]


def _shares(found: Findings) -> list[str]:
    total = sum(found.classes.values())
    items = list(found.classes.items())
    width = max(len(name) for name, _ in items[:MOST])
    lines = [
        f"  {name:<{width}}  {rows:>8} rows  {rows / total:6.1%}" for name, rows in items[:MOST]
    ]
    return [*lines, *([f"  and {len(items) - MOST} more"] if len(items) > MOST else [])]


def _clients(found: Findings) -> str:
    sizes = sorted(found.clients.values())
    each = [f"{name} ({counted(rows, 'row')})" for name, rows in found.clients.items()]
    if len(each) <= MOST:
        return f"{len(each)}, {', '.join(each)}"
    middle = sizes[len(sizes) // 2]
    return f"{len(each)} with {sizes[0]} to {sizes[-1]} rows, half of them fewer than {middle}"


def _table(looks: Sequence[Look]) -> list[str]:
    width = min(30, max(len(look.column.name) for look in looks))
    lines = []
    for look in looks[:200]:
        missing = f", missing in {look.missing} rows" if look.missing else ""
        kind = "left out" if look.column.kind == IGNORED else look.column.kind
        done = look.reason or what_is_done(look.column)
        content = f"{look.content}{missing}: " if look.content else ""
        lines.append(f"  {look.column.name:<{width}}  {kind:<8}  {content}{done}")
    return [*lines, *([f"  and {len(looks) - 200} more"] if len(looks) > 200 else [])]


def what_is_done(column: Column) -> str:
    """What is done to a column, in words."""
    marked = ", and a 0 or 1 for missing" if column.missing else ""
    if column.kind == NUMBER:
        return f"minus {column.centre:g}, divided by {column.scale:g}{marked}"
    if column.kind == CATEGORY:
        return f"a 0 or 1 for each of {counted(len(column.categories), 'value')}{marked}"
    if column.kind == TEXT:
        return f"words hashed to {column.buckets} numbers{marked}"
    return f"its {', '.join(column.parts)}, read as {column.format}{marked}"
