"""Results of a comparison: figures of each run, and means over seeds."""

from __future__ import annotations

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
    best: float  # the best global accuracy of any evaluated round, which test samples choose
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

    def above(self, other: Line) -> float:
        """By how much its global accuracy is above another line's, on the seeds of both."""
        shared = [seed for seed in self.runs if seed in other.runs]
        gains = [self.runs[seed].world - other.runs[seed].world for seed in shared]
        return float(np.mean(gains)) if gains else math.nan

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
        best=max(judgement(event, "global") for event in judged),
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


def _number(value: object, missing: float = math.nan) -> float:
    return float(value) if isinstance(value, (int, float)) else missing


def _mean(rounds: list[Event], name: str) -> float:
    return float(np.mean([_number(event.get(name)) for event in rounds]))
