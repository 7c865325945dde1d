"""What a comparison came to: figures of each run, means over seeds, and the tables."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrc_flwr.compare.plan import Cell, Comparison
from fedrc_flwr.compare.runner import RUNS
from fedrc_flwr.report.log import METRICS, SUMMARY, Event, read_events, read_json


@dataclass(frozen=True)
class Figures:
    """One run in numbers; accuracies are those of the round of best training accuracy."""

    round: int
    train: float
    local: float
    world: float  # global accuracy
    rand: float  # adjusted Rand index of the clusters with the true concepts, at the end
    clusters: int
    settled: int  # the round after which no cluster was removed or merged any more; 0: none ever
    seconds: float  # a round
    megabytes_up: float  # a round
    megabytes_down: float


@dataclass(frozen=True)
class Line:
    """One method on one federation: its runs over the seeds, with its best learning rate."""

    row: str
    column: str
    rate: float | None
    runs: list[Figures]

    def mean(self, value: Callable[[Figures], float]) -> float:
        """Mean over the seeds; NaN where the runs have no such figure."""
        return float(np.mean([value(run) for run in self.runs]))

    def deviation(self, value: Callable[[Figures], float]) -> float:
        """Sample standard deviation over the seeds; NaN for one seed."""
        values = [value(run) for run in self.runs]
        return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def figures(folder: Path) -> Figures | None:
    """The figures of a run that completed, or None."""
    summary = read_json(folder / SUMMARY)
    rounds = [e for e in read_events(folder / METRICS) if e.get("event") == "round"]
    judged = [e for e in rounds if e.get("local_accuracy") is not None or "global_accuracy" in e]
    if summary.get("status") != "completed" or not judged:
        return None
    best = max(judged, key=lambda event: _number(event.get("train_accuracy"), -math.inf))
    return Figures(
        round=int(best["round"]),
        train=_number(best.get("train_accuracy")),
        local=_number(best.get("local_accuracy")),
        world=_number(best.get("global_accuracy")),
        rand=_number(summary.get("adjusted_rand_index")),
        clusters=int(summary["clusters"]),
        settled=max(
            (int(e["round"]) for e in rounds if e.get("removed") or e.get("merged")), default=0
        ),
        seconds=_mean(rounds, "seconds"),
        megabytes_up=_mean(rounds, "bytes_up") / 1e6,
        megabytes_down=_mean(rounds, "bytes_down") / 1e6,
    )


def lines(directory: Path, comparison: Comparison) -> list[Line]:
    """All rows of the table as far as their runs are done.

    Of several learning rates the one with the best mean training accuracy counts: no test sample
    has a say in it. Only rates that have run with all of the seeds done so far compete.
    """
    cells: dict[tuple[str, str], dict[float | None, list[Figures]]] = {}
    for cell in comparison.cells():
        found = figures(directory / RUNS / cell.folder)
        if found is not None:
            cells.setdefault((cell.column, cell.row), {}).setdefault(cell.rate, []).append(found)
    result = []
    for (column, row), rates in cells.items():
        most = max(len(runs) for runs in rates.values())
        full = {rate: runs for rate, runs in rates.items() if len(runs) == most}
        best = max(full, key=lambda rate: float(np.mean([run.train for run in full[rate]])))
        result.append(Line(row, column, best, full[best]))
    order = list(comparison.columns), list(comparison.rows)
    return sorted(result, key=lambda x: (order[0].index(x.column), order[1].index(x.row)))


def best_cell(comparison: Comparison, line: Line) -> Cell:
    """The first seed's run that a line counts."""
    return next(
        cell
        for cell in comparison.cells()
        if (cell.row, cell.column, cell.rate) == (line.row, line.column, line.rate)
    )


def write_results(directory: Path, comparison: Comparison) -> list[Path]:
    """All tables and pictures of what is done so far."""
    from fedrc_flwr.compare import pictures

    table = lines(directory, comparison)
    paths = write_tables(directory, comparison, table)
    paths += pictures.draw_curves(directory, comparison, table)
    return paths + pictures.draw_clusters(directory, comparison, table)


def write_tables(directory: Path, comparison: Comparison, table: list[Line]) -> list[Path]:
    """``table.md``, ``table.csv`` with the same figures, ``runs.csv`` with those of each run."""
    markdown, values = directory / "table.md", directory / "table.csv"
    markdown.write_text(table_text(comparison, table), "utf-8")
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


CSV_HEADER = ["federation", "method", "learning_rate", "seeds", "figure", "mean", "deviation"]
RUNS_HEADER = ["federation", "method", "learning_rate", "seed"]
COLUMNS: list[tuple[str, Callable[[Figures], float]]] = [
    ("local", lambda run: run.local),
    ("global", lambda run: run.world),
    ("gap", lambda run: run.local - run.world),
    ("ARI", lambda run: run.rand),
    ("clusters", lambda run: float(run.clusters)),
    ("settled", lambda run: float(run.settled)),
    ("round", lambda run: float(run.round)),
    ("s a round", lambda run: run.seconds),
    ("MB up", lambda run: run.megabytes_up),
    ("MB down", lambda run: run.megabytes_down),
]
ACCURACIES = 4  # the first columns carry a deviation


def table_text(comparison: Comparison, table: list[Line]) -> str:
    """The table in Markdown, one part for each federation."""
    text = [f"# {comparison.title}", ""]
    text += [
        f"Seeds {', '.join(map(str, comparison.seeds))}; scale {comparison.scale:g}. Accuracies at "
        "the evaluated round of best training accuracy, mean and deviation over the seeds that are "
        "done; ARI and clusters at the end; settled: the round in which the last cluster went; "
        "seconds and megabytes a round.",
        "",
    ]
    for column in comparison.columns:
        members = [line for line in table if line.column == column]
        if not members:
            continue
        names = [name for name, _ in COLUMNS]
        text += [f"## {column}", "", f"| method | {' | '.join(names)} | rate | seeds |"]
        text += ["|---" * (len(names) + 3) + "|"]
        text += [_row(line) for line in members] + [""]
    return "\n".join(text)


def _row(line: Line) -> str:
    parts = []
    for index, (_, value) in enumerate(COLUMNS):
        mean, spread = line.mean(value), line.deviation(value)
        shown = f"{mean:.3f}" if index < ACCURACIES else f"{mean:.1f}"
        if index < ACCURACIES and not math.isnan(spread):
            shown += f" ± {spread:.3f}"
        parts.append("-" if math.isnan(mean) else shown)
    rate = "as set" if line.rate is None else f"{line.rate:g}"
    name = line.row.replace("|", "\\|")
    return f"| {name} | {' | '.join(parts)} | {rate} | {len(line.runs)} |"


def _number(value: object, missing: float = math.nan) -> float:
    return float(value) if isinstance(value, (int, float)) else missing


def _mean(rounds: list[Event], name: str) -> float:
    return float(np.mean([_number(event.get(name)) for event in rounds]))


def _exact(value: float) -> str:
    return "" if math.isnan(value) else repr(value)
