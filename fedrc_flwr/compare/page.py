"""The page of a comparison: what its tables and pictures show, in one file."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedrc_flwr.compare.behind import ended
from fedrc_flwr.compare.pictures import curve, first_run
from fedrc_flwr.compare.plan import Comparison
from fedrc_flwr.compare.results import SCOPES, Line
from fedrc_flwr.compare.runner import finished
from fedrc_flwr.compare.tables import MEANING, baseline, cells, gain_over, heads
from fedrc_flwr.report.contents import gather
from fedrc_flwr.report.log import plain
from fedrc_flwr.report.page import PAGE, write_comparison

#: Global accuracies that are less apart than this are called level.
LEVEL = 0.005


def write_page(directory: Path, comparison: Comparison, table: list[Line]) -> Path:
    """``report.html`` in the comparison's directory."""
    return write_comparison(contents(directory, comparison, table), directory / PAGE)


def contents(directory: Path, comparison: Comparison, table: list[Line]) -> dict[str, Any]:
    """What the page shows, as plain lists, texts and numbers; no infinity and no NaN."""
    runs = list(comparison.cells())
    done = sum(finished(directory, cell) for cell in runs)
    stands = comparison.reproduces
    facts = [
        ("runs done", f"{done} of {len(runs)}"),
        ("seeds", ", ".join(map(str, comparison.seeds))),
        ("learning rates", ", ".join(f"{rate:g}" for rate in comparison.rates)),
        ("scale", "" if comparison.scale == 1 else f"{comparison.scale:g}"),
    ]
    columns = [name for name in comparison.columns if any(x.column == name for x in table)]
    told: dict[str, Any] = plain(
        {
            "title": comparison.title,
            "stands": f"Corresponds to {stands} of the FedRC paper." if stands else "",
            "outcomes": [outcome(name, table) for name in columns],
            "facts": [(label, text) for label, text in facts if text],
            "differs": list(comparison.differs) if stands else [],
            "ended": ended(directory, comparison),
            "meaning": MEANING,
            "columns": [
                {
                    "name": name,
                    "heads": heads(comparison, name),
                    "lines": [
                        _line(directory, comparison, line, table)
                        for line in table
                        if line.column == name
                    ],
                }
                for name in columns
            ],
        }
    )
    return told


def outcome(column: str, table: list[Line]) -> str:
    """Which method has the best global accuracy on a federation, and by how much."""
    ranked = sorted(
        (line for line in table if line.column == column and not math.isnan(_world(line))),
        key=lambda line: -_world(line),
    )
    if not ranked:
        return f"{column}: no observers were evaluated."
    best, seeds = ranked[0], min(len(line.runs) for line in ranked)
    text = f"{column}: {best.row} has the best global accuracy, {_world(best):.1%}"
    if len(ranked) > 1:
        lead = _world(best) - _world(ranked[1])
        text += f"; next is {ranked[1].row}, {100 * lead:.1f} points below"
        text += ", which is level" if lead < LEVEL else ""
    return (
        f"{text}. One seed: differences of a few points mean little." if seeds < 2 else f"{text}."
    )


def _world(line: Line) -> float:
    return line.mean(lambda run: run.world)


def _line(directory: Path, comparison: Comparison, line: Line, table: list[Line]) -> dict[str, Any]:
    name, local, world = baseline(comparison), line.mean(lambda run: run.local), _world(line)
    paper = comparison.paper.get(line.column, {}).get(line.row)
    folder, seed = first_run(directory, comparison, line)
    people = gather(folder).population
    gain = gain_over(name, line, table) if name and name != line.row else math.nan
    rand = line.mean(lambda run: run.rand)
    return {
        "row": line.row,
        "cells": cells(comparison, line, table),
        "local": _known(local),
        "global": _known(world),
        "gap": _known(local - world),
        "gain": _known(gain),
        "rand": _known(rand),
        "paper": None if paper is None else dict(zip(SCOPES, paper, strict=True)),
        "curves": {
            scope: list(zip(*curve(directory, comparison, line, scope), strict=True))
            for scope in SCOPES
        },
        "seed": seed,
        "population": {
            "clusters": [{"id": cluster.id} for cluster in people.clusters],
            "concepts": asdict(people.concepts),
            "styles": asdict(people.styles),
            "classes": asdict(people.classes),
        },
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)
