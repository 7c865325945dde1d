"""Results of a comparison: figures of each run, means over seeds, and the tables."""

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
    train: float  # accuracy of the evaluated models on training samples
    local: float
    world: float  # global accuracy
    rand: float  # adjusted Rand index of the clusters with the true concepts, at the end
    clusters: int
    settled: float  # the round in which the last cluster was removed or merged; NaN: none was
    seconds: float  # per round
    megabytes_up: float  # per round
    megabytes_down: float


@dataclass(frozen=True)
class Line:
    """One method on one federation: its runs by their seeds, with its best learning rate."""

    row: str
    column: str
    rate: float | None
    runs: dict[int, Figures]

    def counts(self, cell: Cell) -> bool:
        """Whether a run is one of the line's."""
        mine = (cell.row, cell.column, cell.rate) == (self.row, self.column, self.rate)
        return mine and cell.seed in self.runs

    def mean(self, value: Callable[[Figures], float]) -> float:
        """Mean over the seeds that have the figure; NaN where none has."""
        values = self._values(value)
        return float(np.mean(values)) if values else math.nan

    def deviation(self, value: Callable[[Figures], float]) -> float:
        """Sample standard deviation over the seeds; NaN for one seed."""
        values = self._values(value)
        return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan

    def _values(self, value: Callable[[Figures], float]) -> list[float]:
        return [number for run in self.runs.values() if not math.isnan(number := value(run))]


def figures(folder: Path) -> Figures | None:
    """The figures of a run that completed, or None.

    Every evaluation also scores its models on the training clients' training samples, and the best
    of these training accuracies decides which evaluation counts. The ``train_accuracy`` of a round
    is not used, because it belongs to the models before the round.
    """
    summary = read_json(folder / SUMMARY)
    rounds = [e for e in read_events(folder / METRICS) if e.get("event") == "round"]
    judged = [e for e in rounds if not math.isnan(_number(e.get("fit_accuracy")))]
    if summary.get("status") != "completed" or not judged:
        return None
    best = max(judged, key=lambda event: _number(event["fit_accuracy"]))
    return Figures(
        round=int(best["round"]),
        train=_number(best["fit_accuracy"]),
        local=judgement(best, "local"),
        world=judgement(best, "global"),
        rand=_number(summary.get("adjusted_rand_index")),
        clusters=int(summary["clusters"]),
        settled=max(
            (float(e["round"]) for e in rounds if e.get("removed") or e.get("merged")),
            default=math.nan,
        ),
        seconds=_mean(rounds, "seconds"),
        megabytes_up=_mean(rounds, "bytes_up") / 1e6,
        megabytes_down=_mean(rounds, "bytes_down") / 1e6,
    )


SCOPES = ("local", "global")


def judgement(event: Event, scope: str) -> float:
    """A round's accuracy, after fine-tuning if clients fine-tune; NaN: not evaluated.

    Observers are never fine-tuned: global accuracy always belongs to the federation's models.
    """
    plain = _number(event.get(f"{scope}_accuracy"))
    return _number(event.get(f"fine_tuned_{scope}_accuracy"), plain)


def lines(directory: Path, comparison: Comparison) -> list[Line]:
    """All rows of the table as far as their runs are done.

    Of several learning rates the one with the best mean training accuracy is used; test samples
    play no part. Only rates with the largest number of finished seeds are compared, on the seeds
    that they share.
    """
    cells: dict[tuple[str, str], dict[float | None, dict[int, Figures]]] = {}
    for cell in comparison.cells():
        found = figures(directory / RUNS / cell.folder)
        if found is not None:
            rates = cells.setdefault((cell.column, cell.row), {})
            rates.setdefault(cell.rate, {})[cell.seed] = found
    result = []
    for (column, row), rates in cells.items():
        best = _best_rate(rates)
        result.append(Line(row, column, best, rates[best]))
    order = list(comparison.columns), list(comparison.rows)
    return sorted(result, key=lambda x: (order[0].index(x.column), order[1].index(x.row)))


def _best_rate(rates: dict[float | None, dict[int, Figures]]) -> float | None:
    most = max(len(runs) for runs in rates.values())
    full = {rate: runs for rate, runs in rates.items() if len(runs) == most}
    shared = set.intersection(*(set(runs) for runs in full.values()))

    def trained(rate: float | None) -> float:
        return float(np.mean([full[rate][seed].train for seed in shared or full[rate]]))

    return max(full, key=trained)


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
    ("settled", lambda run: run.settled),
    ("round", lambda run: float(run.round)),
    ("s per round", lambda run: run.seconds),
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
        "done; ARI and clusters at the end; settled: the round in which the last cluster was "
        "removed or merged, over the seeds where one was; seconds and megabytes per round.",
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
