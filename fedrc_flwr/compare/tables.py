"""The tables of a comparison: one in Markdown, the same figures as CSV, and those of each run."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path

from fedrc_flwr.compare.behind import ended
from fedrc_flwr.compare.plan import Comparison, Published
from fedrc_flwr.compare.results import Figures, Line, figures
from fedrc_flwr.compare.runner import RUNS

CSV_HEADER = ["federation", "method", "learning_rate", "seeds", "figure", "mean", "deviation"]
RUNS_HEADER = ["federation", "method", "learning_rate", "seed"]
COLUMNS: list[tuple[str, Callable[[Figures], float]]] = [
    ("local", lambda run: run.local),
    ("global", lambda run: run.world),
    ("gap", lambda run: run.local - run.world),
    ("best global", lambda run: run.best),
    ("ARI", lambda run: run.rand),
    ("clusters", lambda run: float(run.clusters)),
    ("settled", lambda run: run.settled),
    ("round", lambda run: float(run.round)),
    ("s per round", lambda run: run.seconds),
    ("MB up", lambda run: run.megabytes_up),
    ("MB down", lambda run: run.megabytes_down),
]
ACCURACIES = 5  # the first columns carry a deviation
#: The columns in words, for readers of a table.
MEANING = (
    "Accuracies at the evaluated round of best training accuracy, mean and deviation over the "
    "seeds that are done; gap: local minus global; best global: of any evaluated round, chosen by "
    "test samples; ARI and clusters at the end; settled: the round in which the last "
    "cluster was removed or merged, over the seeds where one was; seconds and megabytes per round."
)


def write_tables(directory: Path, comparison: Comparison, table: list[Line]) -> list[Path]:
    """``table.md``, ``table.csv`` with the same figures, ``runs.csv`` with those of each run."""
    markdown, values = directory / "table.md", directory / "table.csv"
    markdown.write_text(table_text(directory, comparison, table), "utf-8")
    with open(values, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(CSV_HEADER)
        for line in table:
            for name, value in COLUMNS:
                writer.writerow(
                    [line.column, line.row, "" if line.rate is None else line.rate, len(line.runs),
                     name, _exact(line.mean(value)), _exact(line.deviation(value))]
                )  # fmt: skip
    return [markdown, values, _write_runs(directory, comparison)]


def _write_runs(directory: Path, comparison: Comparison) -> Path:
    path = directory / "runs.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(RUNS_HEADER + [name for name, _ in COLUMNS])
        for cell in comparison.cells():
            found = figures(directory / RUNS / cell.folder)
            if found is not None:
                rate = "" if cell.rate is None else cell.rate
                exact = [_exact(value(found)) for _, value in COLUMNS]
                writer.writerow([cell.column, cell.row, rate, cell.seed, *exact])
    return path


def table_text(directory: Path, comparison: Comparison, table: list[Line]) -> str:
    """The table in Markdown, one part for each federation."""
    text = [f"# {comparison.title}", ""]
    if comparison.reproduces:
        text += [f"Corresponds to {comparison.reproduces} of the FedRC paper.", ""]
    seeds = ", ".join(map(str, comparison.seeds))
    text += [f"Seeds {seeds}; scale {comparison.scale:g}. {MEANING}", ""]
    for column in comparison.columns:
        members = [line for line in table if line.column == column]
        if not members:
            continue
        names = heads(comparison, column)
        text += [f"## {column}", "", f"| method | {' | '.join(names)} |"]
        text += ["|---" * (len(names) + 1) + "|"]
        text += [_row(comparison, line, table) for line in members] + [""]
    text += [f"- {sentence}" for sentence in remarks(directory, comparison)]
    return "\n".join(text).rstrip() + "\n"


def remarks(directory: Path, comparison: Comparison) -> list[str]:
    """What differs from the paper, and which runs were ended early."""
    differs = comparison.differs if comparison.reproduces else ()
    return [*differs, *ended(directory, comparison)]


def heads(comparison: Comparison, column: str) -> list[str]:
    """The heads of a federation's table, but for the first."""
    names = [name for name, _ in COLUMNS]
    names[3:3] = ["gain"] if baseline(comparison) else []
    names[2:2] = ["the paper"] if comparison.paper.get(column) else []
    return [*names, "rate", "seeds"]


def cells(comparison: Comparison, line: Line, table: list[Line]) -> list[str]:
    """A line's texts under the heads."""
    parts = []
    for index, (_, value) in enumerate(COLUMNS):
        mean, spread = line.mean(value), line.deviation(value)
        shown = f"{mean:.3f}" if index < ACCURACIES else f"{mean:.1f}"
        if index < ACCURACIES and not math.isnan(spread):
            shown += f" ± {spread:.3f}"
        parts.append("-" if math.isnan(mean) else shown)
    if name := baseline(comparison):
        gain = gain_over(name, line, table)
        parts[3:3] = ["-" if math.isnan(gain) else f"{gain:+.3f}"]
    if figures_there := comparison.paper.get(line.column):
        parts[2:2] = [published(figures_there.get(line.row))]
    parts.append("as set" if line.rate is None else f"{line.rate:g}")
    return [*parts, str(len(line.runs))]


def baseline(comparison: Comparison) -> str:
    """The row over which the others gain: plain FedAvg, if there is one."""
    names = (row for row, own in comparison.rows.items() if own.get("algorithm") == "fedavg")
    return next(names, "")


def gain_over(name: str, line: Line, table: list[Line]) -> float:
    """By how much a line is above a row on the same federation; NaN where that is not done."""
    others = (other for other in table if (other.row, other.column) == (name, line.column))
    other = next(others, None)
    return math.nan if other is None else line.above(other)


def published(pair: Published | None) -> str:
    """The paper's local and global accuracy."""
    return " / ".join("-" if one is None else f"{one:.3f}" for one in pair or (None, None))


def _row(comparison: Comparison, line: Line, table: list[Line]) -> str:
    name = line.row.replace("|", "\\|")
    return f"| {name} | {' | '.join(cells(comparison, line, table))} |"


def _exact(value: float) -> str:
    return "" if math.isnan(value) else repr(value)
