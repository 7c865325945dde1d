"""Runs a comparison's cells one after the other, through the same engine as any other run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedrc_flwr.checkpoint import has_checkpoint
from fedrc_flwr.compare.plan import Cell, Comparison
from fedrc_flwr.configuration import load_config
from fedrc_flwr.data.own import located
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.report.log import SUMMARY, Event, plain, read_json, write_json
from fedrc_flwr.simulation import Outcome, simulate

PLAN = "comparison.json"
RUNS = "runs"


class Stopped(Exception):
    """The user stopped the comparison; what is done is kept."""


def open_directory(directory: Path, comparison: Comparison) -> None:
    """Make the comparison's directory, or go on in it; refuse another comparison's."""
    plan = directory / PLAN
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory} is a file: give a directory")
    if plan.exists():
        if read_json(plan) != plain(comparison.to_json()):
            raise ConfigError(
                f"{directory} holds another comparison: give the same rows, columns, seeds and "
                "settings as then to go on with it, or another --output"
            )
        return
    if directory.exists() and any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty and holds no comparison: give another one")
    write_json(plan, comparison.to_json())


def finished(directory: Path, cell: Cell) -> bool:
    """Whether a cell has run to its end."""
    return bool(read_json(directory / RUNS / cell.folder / SUMMARY).get("status") == "completed")


def run_cell(
    directory: Path, cell: Cell, on_event: Callable[[Event], None], cpus: int | None
) -> Outcome:
    """One run, from where an earlier try of it ended."""
    folder = directory / RUNS / cell.folder
    settings: dict[str, Any] = dict(cell.settings)
    if has_checkpoint(folder):
        settings["resume"] = True
    elif folder.exists():
        shutil.rmtree(folder)  # it did not get as far as its first checkpoint
    settings |= located(load_config(settings))
    config = load_config(settings)
    # Flower takes scalars only: lists and the like go on as they were read.
    settings = {name: value for name, value in config.to_dict().items() if name in settings}
    outcome = simulate(settings, folder, on_event, cpus=cpus)
    if outcome.summary.get("status") == "stopped":
        raise Stopped
    return outcome
