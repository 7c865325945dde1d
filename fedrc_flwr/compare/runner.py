"""Runs a comparison's cells one after the other, as any other run is run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from fedrc_flwr.checkpoint import has_checkpoint
from fedrc_flwr.compare.plan import Cell, Comparison
from fedrc_flwr.config import load_config
from fedrc_flwr.engine.directory import check_place
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.report.log import SUMMARY, Event, plain, read_json, write_json
from fedrc_flwr.simulation import Outcome, run_here

PLAN = "comparison.json"
RUNS = "runs"


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
    return bool(read_json(directory / RUNS / cell.folder / SUMMARY).get("status") == "completed")


def run_cell(
    directory: Path,
    cell: Cell,
    on_event: Callable[[Event], None],
    engine: str,
    cpus: int | None,
) -> Outcome:
    """One run; an interrupted one is resumed."""
    folder = directory / RUNS / cell.folder
    config = load_config(cell.settings).located()
    if has_checkpoint(folder):
        config = config.resumed()
    elif folder.exists():
        shutil.rmtree(folder)  # it did not get as far as its first checkpoint
    outcome = run_here(config, folder, on_event, engine, cpus)
    if outcome.summary.get("status") == "stopped":
        raise Stopped
    return outcome
