"""Runs a comparison's cells one after the other, as any other run is run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fedrc_flwr.checkpoint import has_checkpoint
from fedrc_flwr.compare.plan import Cell, Comparison
from fedrc_flwr.config import load_config
from fedrc_flwr.engine.directory import check_place
from fedrc_flwr.errors import ConfigError, RunError
from fedrc_flwr.report.log import SUMMARY, Event, plain, read_json, write_json
from fedrc_flwr.simulation import Outcome, run_here

PLAN = "comparison.json"
RUNS = "runs"


#: The status of a run that was ended because it is behind.
BEHIND = "behind"


class Behind(RunError):
    """A run is ended because it is plainly behind."""


class Stopped(Exception):
    """The user stopped the comparison; finished runs are kept."""


def open_directory(directory: Path, comparison: Comparison) -> None:
    """Make the comparison's directory, or continue in it; refuse that of another comparison."""
    plan = directory / PLAN
    check_place(directory)
    if plan.exists():
        if read_json(plan) != plain(comparison.to_json()):
            raise ConfigError(
                f"{directory} holds another comparison: to continue it, give the same rows, "
                "columns, seeds and settings; otherwise choose another --output"
            )
        return
    if directory.exists() and any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty and holds no comparison: choose another one")
    write_json(plan, comparison.to_json())


def finished(directory: Path, cell: Cell) -> bool:
    """Whether a cell has run to its end."""
    return _status(directory, cell) == "completed"


def was_ended(directory: Path, cell: Cell) -> bool:
    """Whether a cell's run was ended early, because it was behind."""
    return _status(directory, cell) == BEHIND


def _status(directory: Path, cell: Cell) -> str:
    return str(read_json(directory / RUNS / cell.folder / SUMMARY).get("status", ""))


def run_cell(
    directory: Path,
    cell: Cell,
    followers: Sequence[Callable[[Event], None]],
    engine: str,
    cpus: int | None,
) -> Outcome:
    """One run; an interrupted one is resumed.

    Each of the ``followers`` is called with every line of its metrics, and may raise ``Behind``.
    """
    folder = directory / RUNS / cell.folder
    config = load_config(cell.settings).located()
    if has_checkpoint(folder):
        config = config.resumed()
    elif folder.exists():
        shutil.rmtree(folder)  # it did not get as far as its first checkpoint
    behind: list[Behind] = []

    def follow(event: Event) -> None:
        for follower in followers:
            try:
                follower(event)
            except Behind as error:
                behind.append(error)
                raise

    outcome = run_here(config, folder, follow, engine, cpus)
    if behind:
        summary = {**outcome.summary, "status": BEHIND, "reason": str(behind[0])}
        write_json(folder / SUMMARY, summary)
        return replace(outcome, summary=summary, reason=f"behind: {behind[0]}")
    if outcome.summary.get("status") == "stopped":
        raise Stopped
    return outcome
