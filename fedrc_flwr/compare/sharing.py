"""Runs that begin alike: what one has computed is taken over by the others.

Some settings matter only from the round on in which the clusters first change, such as the share
below which one is removed. Of two runs that differ in these alone, the one that changes clusters
earlier goes first. When it does, the other continues from the round before. Settings that matter
for evaluation alone never part two runs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedrc_flwr.checkpoint import CHECKPOINTS, find_checkpoint
from fedrc_flwr.compare.plan import Cell
from fedrc_flwr.compare.runner import RUNS, finished
from fedrc_flwr.config import load_config
from fedrc_flwr.engine.directory import LOCK, REPORT, RESERVE
from fedrc_flwr.errors import CheckpointError
from fedrc_flwr.report.log import METRICS, SUMMARY, Event, read_events
from fedrc_flwr.settings import Scalar

#: Settings of an algorithm that matter once clusters change; the larger, the earlier they do.
LATE = {".adaptive", ".remove-below", ".merge", ".merge-tolerance"}
#: CFL splits alike up to the smaller limit.
CLUSTERS = ".clusters"
#: A setting of evaluation alone, and how what it adds to a round's metrics begins.
TUNE, TUNED = ".fine-tune", "fine_tuned_"


class Sharing:
    """Who begins like whom among a comparison's runs."""

    def __init__(self, directory: Path, cells: Sequence[Cell]) -> None:
        self._directory = directory
        self._settings = {cell.folder: _settings(cell) for cell in cells}
        groups: dict[object, list[Cell]] = {}
        for cell in cells:
            groups.setdefault((cell.column, cell.seed, cell.rate), []).append(cell)
        self._leaders: dict[Path, Cell] = {}
        for group in groups.values():
            for cell in group:
                alike = [other for other in group if self._follows(cell, other)]
                # The one that follows nobody, so that nobody follows a follower.
                heads = (o for o in alike if not any(self._follows(o, x) for x in group))
                if first := next(heads, None):
                    self._leaders[cell.folder] = first
        places = {cell.folder: number for number, cell in enumerate(cells)}

        def place(cell: Cell) -> tuple[int, bool]:
            first = self._leaders.get(cell.folder)
            own = places[cell.folder]
            return (own, False) if first is None else (max(own, places[first.folder]), True)

        #: The same runs, those that others begin like before these; otherwise as they were.
        self.cells = sorted(cells, key=place)

    def take_over(self, cell: Cell) -> str:
        """Take over a finished run that this one never parts from; returns its row, or nothing.

        Nothing is done where the run has begun already.
        """
        first = self._leaders.get(cell.folder)
        target = self._directory / RUNS / cell.folder
        if first is None or target.exists() or not finished(self._directory, first):
            return ""
        source = self._directory / RUNS / first.folder
        if any(self._parts(cell, first, event) for event in read_events(source / METRICS)):
            return ""
        self._copy(source, target, cell)
        return first.row

    def forking(self, cell: Cell) -> Callable[[Event], None]:
        """Follows a run; gives others their beginning in the round in which they part from it."""
        waiting = [o for o in self.cells if self._leaders.get(o.folder) == cell]
        source = self._directory / RUNS / cell.folder

        def follow(event: Event) -> None:
            for other in [other for other in waiting if self._parts(other, cell, event)]:
                waiting.remove(other)
                target, before = self._directory / RUNS / other.folder, int(event["round"]) - 1
                if not target.exists() and _has(source, before):
                    # The run goes on in the meantime, and may delete an old checkpoint.
                    with suppress(OSError, CheckpointError):
                        self._copy(source, target, other, before)

        return follow

    def _follows(self, cell: Cell, other: Cell) -> bool:
        return _begins_like(self._settings[cell.folder], self._settings[other.folder])

    def _parts(self, cell: Cell, first: Cell, event: Event) -> bool:
        """Whether an event of the other run is no longer one of this run."""
        if event.get("event") != "round":
            return False
        own, other = self._settings[cell.folder], self._settings[first.folder]
        differs = _differences(own, other)
        if CLUSTERS in differs and len(event.get("clusters") or ()) > float(own[CLUSTERS]):
            return True
        changed = bool(event.get("removed") or event.get("merged"))
        return changed and bool(differs & LATE)

    def _copy(self, source: Path, target: Path, cell: Cell, last: int | None = None) -> None:
        """Copy a run up to a round, as a run of another cell that was interrupted there."""
        unfinished = target.with_name(target.name + ".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(
            source, unfinished, ignore=shutil.ignore_patterns(LOCK, RESERVE, SUMMARY, REPORT)
        )
        if last is not None:
            kept = find_checkpoint(unfinished / CHECKPOINTS, last)
            for path in (unfinished / CHECKPOINTS).iterdir():
                if path.name > kept.name:
                    path.unlink()
        tunes = bool(self._settings[cell.folder].get(TUNE))
        lines = [
            json.dumps(event if tunes else _untuned(event))
            for event in read_events(source / METRICS)
            if event.get("event") == "round" and (last is None or int(event["round"]) <= last)
        ]
        (unfinished / METRICS).write_text("".join(f"{line}\n" for line in lines), "utf-8")
        unfinished.rename(target)


def _settings(cell: Cell) -> dict[str, Scalar]:
    """A run's settings; those of its algorithm without the algorithm's name."""
    config = load_config(cell.settings)
    section = f"{config.algorithm}."
    return {
        name[len(section) - 1 :] if name.startswith(section) else name: value
        for name, value in config.to_dict().items()
    }


def _differences(own: dict[str, Scalar], other: dict[str, Scalar]) -> set[str]:
    return {name for name, value in own.items() if value != other[name]}


def _begins_like(own: dict[str, Scalar], other: dict[str, Scalar]) -> bool:
    """Whether a run begins like another one, which changes its clusters no later."""
    if own["algorithm"] != other["algorithm"]:
        return False
    differs = _differences(own, other)
    late = LATE | {TUNE} | ({CLUSTERS} if own["algorithm"] == "cfl" else set())
    ahead = all(float(own[name]) <= float(other[name]) for name in differs & late)
    return bool(differs) and differs <= late and ahead


def _has(run: Path, number: int) -> bool:
    try:
        return find_checkpoint(run / CHECKPOINTS, number).exists()
    except CheckpointError:
        return False


def _untuned(content: Any) -> Any:
    """The same without what fine-tuning adds, at any depth."""
    if not isinstance(content, dict):
        return content
    return {name: _untuned(value) for name, value in content.items() if not _is_tuned(name)}


def _is_tuned(name: str) -> bool:
    return name.startswith(TUNED)
