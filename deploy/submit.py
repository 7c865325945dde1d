"""Submitting a run to a SuperLink, following it, and resuming it if its server side failed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from deploy.control import FORGOTTEN, Node, Server, nodes_of, status_of
from deploy.files import SuperLinkFile
from fedrc_flwr import flower
from fedrc_flwr.config import RunConfig
from fedrc_flwr.errors import RunError
from fedrc_flwr.report.log import CONFIG, METRICS, SUMMARY, Event, MetricsTail, read_json
from server_app.names import write_names

STATUS_SECONDS = 5.0
NODES_SECONDS = 5.0
PENDING_SECONDS = 30.0  # after which a run should have been picked up
STOPPED = "it was stopped"
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
    config: RunConfig,
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
    config = config.placed(directory)
    with tempfile.TemporaryDirectory(prefix="fedrc-") as scratch:
        control = connect(file, Path(scratch))
        lookout = Lookout(file, directory, on_event)
        lookout.look()
        source = app or flower.find_app(Path(scratch))
        for attempt in range(retries + 1):
            if attempt > 0 and has_checkpoint(directory):
                # Zero once the run has gone back and finished the round after that one.
                again = read_json(directory / CONFIG).get("run.resume-round", 0)
                config = config.resumed(again)
            (directory / SUMMARY).unlink(missing_ok=True)
            patience = PATIENCE_SECONDS if attempt else 0.0
            run_id = _hand_in(control, source, config, patience)
            on_event({"event": "submitted", "run_id": run_id})
            ask, log = partial(status_of, file, run_id), partial(control.log, run_id)
            reason = follow(ask, log, directory, on_event, lookout.look)
            if not reason:
                return Submitted(True, directory, read_json(directory / SUMMARY), "")
            if reason == STOPPED:
                break
            if attempt < retries:
                on_event({"event": "retry", "attempt": attempt + 1, "reason": reason})
        return Submitted(False, directory, read_json(directory / SUMMARY), reason)


def _hand_in(control: flower.Control, source: Path, config: RunConfig, patience: float) -> str:
    """Submit; try again while the SuperLink is being restarted."""
    ends = time.monotonic() + patience
    while True:
        try:
            return control.run(source, config.to_dict())
        except RunError:
            if time.monotonic() >= ends:
                raise
            time.sleep(5.0)


def connect(file: Server, scratch: Path) -> flower.Control:
    """A connection to the SuperLink of a file."""
    flower.write_connection(scratch / "flwr", str(file.flower), file.inner_ca)
    return flower.Control(scratch / "flwr", flower.environment())


class Lookout:
    """Watches which nodes are online, and tells the run their names."""

    def __init__(
        self, file: SuperLinkFile, directory: Path, on_event: Callable[[Event], None]
    ) -> None:
        self._file = file
        self._directory = directory
        self._on_event = on_event
        self._seen: list[Node] | None = None

    def look(self) -> None:
        """Look once; an event says who is online and who is not, if that has changed."""
        try:
            nodes = nodes_of(self._file)
        except RunError:
            return  # whether the SuperLink answers is asked elsewhere
        if nodes == self._seen:
            return
        self._seen = nodes
        write_names(self._directory, {node.id: node.name for node in nodes})
        self._on_event(
            {
                "event": "nodes",
                "online": [node.called for node in nodes if node.online],
                "offline": [node.called for node in nodes if not node.online],
            }
        )


def follow(
    ask: Callable[[], str],
    log: Callable[[], str],
    directory: Path,
    on_event: Callable[[Event], None],
    look: Callable[[], None] = lambda: None,
) -> str:
    """Pass the run's metrics on until it has ended; returns why it failed, or nothing.

    Parameters
    ----------
    ask : the run's status, see ``control.status_of``
    log : what the run's ServerApp printed
    look : called every now and then until the first round has ended
    """
    tail = MetricsTail(directory / METRICS)
    started = asked = answered = looked = time.monotonic()
    training = picked_up = False
    while True:
        for event in tail.read():
            picked_up, training = True, training or event.get("event") == "round"
            on_event(event)
        if not training and time.monotonic() - looked > NODES_SECONDS:
            looked = time.monotonic()
            look()
        ended = (directory / SUMMARY).exists()
        if ended or time.monotonic() - asked > STATUS_SECONDS:
            asked = time.monotonic()
            status = ask()
            if status.startswith("finished"):
                break
            if status == FORGOTTEN:
                return "the SuperLink does not know the run any more: its database was lost"
            if status:
                answered = time.monotonic()
            elif time.monotonic() - answered > PATIENCE_SECONDS:
                return f"the SuperLink has not answered for {PATIENCE_SECONDS:.0f} seconds"
            if status == "pending" and not picked_up and asked - started > PENDING_SECONDS:
                picked_up = True  # say so once
                on_event({"event": "pending", "seconds": asked - started})
        time.sleep(0.5)
    for event in tail.read():
        on_event(event)
    if status == "finished:stopped":
        return STOPPED
    summary = read_json(directory / SUMMARY)
    if status == "finished:completed" and summary.get("status") == "completed":
        return ""
    if summary.get("reason"):
        return str(summary["reason"])
    lines = [line for line in log().splitlines() if line.strip()]
    return f"Flower reports {status}: " + "\n".join(lines[-10:])
