"""Runs that are plainly behind, which are ended early if the user asks for it.

A method with several learning rates is shown with one of them. A rate that trains plainly worse
than another one of the same method, federation and seed will not be that one, so its run can end.
As in the choice of the rate itself, test samples play no part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path

from fedrc_flwr.compare.plan import Cell, Comparison
from fedrc_flwr.compare.runner import RUNS, Behind, finished, was_ended
from fedrc_flwr.report.log import EVALUATED, METRICS, SUMMARY, Event, read_events, read_json

#: Nothing is ended before this share of the rounds, nor before this many evaluations in a row.
PATIENCE, EVALUATIONS = 0.25, 2


def course(folder: Path) -> dict[int, float]:
    """Training accuracy by evaluated round."""
    found: dict[int, float] = {}
    for event in read_events(folder / METRICS):
        trained = event.get("fit_accuracy")
        if event.get("event") == "round" and isinstance(trained, (int, float)):
            found[int(event["round"])] = float(trained)
    return found


class Watch:
    """Follows a run, and ends it when it is behind another rate by more than the margin.

    Parameters
    ----------
    rivals : courses of the same method with other rates, as far as they got to the end
    rounds : of the whole run
    """

    def __init__(self, rivals: Iterable[dict[int, float]], rounds: int, margin: float) -> None:
        self._rivals, self._rounds, self._margin = list(rivals), rounds, margin
        self._behind = 0

    def follow(self, event: Event) -> None:
        """Raises ``Behind``. An evaluation has an event of its own."""
        trained = event.get("fit_accuracy")
        if event.get("event") != EVALUATED or not isinstance(trained, (int, float)):
            return
        number = int(event["round"])
        best = max((rival.get(number, -math.inf) for rival in self._rivals), default=-math.inf)
        self._behind = self._behind + 1 if best - trained > self._margin else 0
        late = self._rounds * PATIENCE <= number < self._rounds
        if late and self._behind >= EVALUATIONS:
            raise Behind(
                f"round {number} of {self._rounds}: training accuracy {trained:.3f}, with another "
                f"learning rate {best:.3f}"
            )


def watching(
    directory: Path, comparison: Comparison, cell: Cell, rounds: int, margin: float
) -> Callable[[Event], None]:
    """What ends a cell's run when it is behind."""
    rivals = [
        course(directory / RUNS / other.folder)
        for other in comparison.cells()
        if (other.row, other.column, other.seed) == (cell.row, cell.column, cell.seed)
        and other.rate != cell.rate
        and finished(directory, other)
    ]
    return Watch(rivals, rounds, margin).follow


def ended(directory: Path, comparison: Comparison) -> list[str]:
    """A sentence for each run that was ended early."""
    return [
        f"Ended early: {cell.name}, {_reason(directory / RUNS / cell.folder)}."
        for cell in comparison.cells()
        if was_ended(directory, cell)
    ]


def _reason(folder: Path) -> str:
    return str(read_json(folder / SUMMARY).get("reason", ""))
