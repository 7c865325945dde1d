"""Submitting a run to a SuperLink, following it, and resuming it when its server side died."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy import flower
from deploy.files import SuperLinkFile
from fedrc_flwr.errors import RunError
from fedrc_flwr.report.log import CONFIG, METRICS, SUMMARY, Event, MetricsTail, read_json
from fedrc_flwr.simulation import find_app

STATUS_SECONDS = 15.0
PATIENCE_SECONDS = 300.0  # for a SuperLink that is being restarted


@dataclass(frozen=True)
class Submitted:
    """How a run ended."""

    completed: bool
    directory: Path
    summary: dict[str, Any]
    reason: str


def run(
    file: SuperLinkFile,
    settings: Mapping[str, Any],
    name: str,
    on_event: Callable[[Event], None],
    retries: int = 0,
    app: Path | None = None,
) -> Submitted:
    """Run under ``name`` with results in the operator's outputs directory.

    A run whose ServerApp or SuperLink died is resumed from its last checkpoint, at most
    ``retries`` times.
    """
    from fedrc_flwr.checkpoint import has_checkpoint

    directory = file.outputs / name
    settings = {**settings, "output-dir": str(file.outputs), "run-name": name}
    with tempfile.TemporaryDirectory(prefix="fedrc-") as scratch:
        control = connect(file, Path(scratch))
        source = app or find_app(Path(scratch))
        for attempt in range(retries + 1):
            resume = bool(settings.get("resume")) or (attempt > 0 and has_checkpoint(directory))
            if attempt > 0 and "resume-round" in settings:
                # Zero once the run has gone back to that round and finished the next one.
                settings["resume-round"] = read_json(directory / CONFIG).get("resume-round", 0)
            (directory / SUMMARY).unlink(missing_ok=True)
            patience = PATIENCE_SECONDS if attempt else 0.0
            run_id = _hand_in(control, source, {**settings, "resume": resume}, patience)
            on_event({"event": "submitted", "run_id": run_id})
            reason = follow(control, run_id, directory, on_event)
            if not reason:
                return Submitted(True, directory, read_json(directory / SUMMARY), "")
            if attempt < retries:
                on_event({"event": "retry", "attempt": attempt + 1, "reason": reason})
        return Submitted(False, directory, read_json(directory / SUMMARY), reason)


def _hand_in(
    control: flower.Control, source: Path, settings: Mapping[str, Any], patience: float
) -> str:
    """Submit; a SuperLink that is just being restarted is asked again."""
    ends = time.monotonic() + patience
    while True:
        try:
            return control.run(source, settings)
        except RunError:
            if time.monotonic() >= ends:
                raise
            time.sleep(5.0)


def connect(file: SuperLinkFile, scratch: Path) -> flower.Control:
    """Calls to the SuperLink of a file."""
    flower.write_connection(scratch / "flwr", str(file.address), file.tls.ca if file.tls else None)
    return flower.Control(scratch / "flwr", flower.environment())


def follow(
    control: flower.Control, run_id: str, directory: Path, on_event: Callable[[Event], None]
) -> str:
    """Pass the run's metrics on until it has ended; returns why it failed, or nothing."""
    tail = MetricsTail(directory / METRICS)
    asked = answered = time.monotonic()
    while True:
        for event in tail.read():
            on_event(event)
        ended = (directory / SUMMARY).exists()
        if ended or time.monotonic() - asked > STATUS_SECONDS:
            asked = time.monotonic()
            status = control.status(run_id)
            if status.startswith("finished"):
                break
            if status:
                answered = time.monotonic()
            elif time.monotonic() - answered > PATIENCE_SECONDS:
                return f"the SuperLink has not answered for {PATIENCE_SECONDS:.0f} seconds"
        time.sleep(0.5)
    for event in tail.read():
        on_event(event)
    summary = read_json(directory / SUMMARY)
    if status == "finished:completed" and summary.get("status") == "completed":
        return ""
    lines = [line for line in control.log(run_id).splitlines() if line.strip()]
    said = summary.get("reason") or "\n".join(lines[-10:])
    return f"Flower reports {status}: {said}"
