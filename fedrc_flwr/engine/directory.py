"""The directory of a run: where its clients' states are, and whether a new run may use it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fedrc_flwr.errors import ConfigError
from fedrc_flwr.report.log import CONFIG, METRICS, SUMMARY

RUN_LOG, SUPERLINK_LOG, REPORT = "run.log", "superlink.log", "report.html"
CLIENTS, DATA = "clients", "data"
#: What a run leaves that failed before its first checkpoint.
OF_A_FAILED_START = {CONFIG, METRICS, SUMMARY, RUN_LOG, SUPERLINK_LOG, REPORT, CLIENTS, DATA}


def client_states(directory: Path) -> Path:
    """Where the states of a run's virtual clients are kept."""
    return directory / CLIENTS


def check_place(directory: Path) -> None:
    """Refuse a path that cannot be made a directory."""
    nearest = next(place for place in (directory, *directory.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise ConfigError(f"{nearest} is a file: give a new directory")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(f"{nearest} cannot be written to: give another directory")


def check_new(directory: Path) -> None:
    """Refuse a directory that holds something else than a run that failed to start."""
    check_place(directory)
    found = {path.name for path in directory.iterdir()} if directory.exists() else set()
    failed_start = found <= OF_A_FAILED_START and found & {RUN_LOG, SUPERLINK_LOG}
    if found and not failed_start:
        raise ConfigError(f"{directory} is not empty: give a new directory, or resume its run")


def clear(directory: Path) -> None:
    """Remove what a run left that failed to start; ``check_new`` has looked at it."""
    shutil.rmtree(directory, ignore_errors=True)
