"""A run's outputs on disk: metrics as JSON lines, the configuration, the summary."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fedrc_flwr.files import not_following, replacing

Event = dict[str, Any]
METRICS, CONFIG, SUMMARY = "metrics.jsonl", "config.json", "summary.json"
#: The counts behind the latest evaluation, which would make the metrics too long.
EVALUATION = "evaluation.json"
#: The event of an evaluation, and what of it does not replace what its round's event says.
EVALUATED = "evaluation"
OF_A_ROUND = ("event", "time", "elapsed", "phases", "bytes_down", "bytes_up", "failed")


class MetricsLog:
    """Appends one JSON object per line; an incomplete last line after a crash is cut off."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / METRICS
        if self._path.exists():
            with open(self._path, "rb+", opener=not_following) as file:
                file.truncate(file.read().rfind(b"\n") + 1)

    def append(self, event: Event) -> None:
        """Add an event and flush it."""
        with open(self._path, "a", encoding="utf-8", opener=not_following) as file:
            file.write(json.dumps(plain(event), allow_nan=False) + "\n")

    def rewind(self, round_number: int) -> None:
        """Remove the lines of rounds after ``round_number``, which a resumed run repeats."""
        events = [
            event
            for event in _lines(self._path)
            if max(event.get("round", 0), event.get("rounds", 0)) <= round_number
        ]
        with replacing(self._path) as beside:
            beside.write_text("".join(json.dumps(e) + "\n" for e in events), encoding="utf-8")


def read_events(path: Path) -> list[Event]:
    """What a metrics file tells: an evaluation is part of the round that it belongs to.

    It has a line of its own, which is written during the next round, see ``together``.
    """
    return together(_lines(path))


def _lines(path: Path) -> list[Event]:
    """All complete lines of a metrics file."""
    return parse_lines(path.read_bytes()) if path.exists() else []


def together(events: list[Event]) -> list[Event]:
    """The events with every evaluation in its round's; what both count is added up."""
    found: list[Event] = []
    rounds: dict[Any, Event] = {}
    for event in events:
        whole = rounds.get(event.get("round"))
        if event.get("event") == EVALUATED and whole is not None:
            whole |= {k: v for k, v in event.items() if k not in OF_A_ROUND}
            for key in ("bytes_down", "bytes_up"):
                whole[key] = (whole.get(key) or 0) + (event.get(key) or 0)
            whole["failed"] = {**(whole.get("failed") or {}), **(event.get("failed") or {})}
            continue
        found.append(dict(event))
        if event.get("event") == "round":
            rounds[event.get("round")] = found[-1]
    return found


def parse_lines(content: bytes) -> list[Event]:
    """The JSON objects of some lines; what is no JSON object is passed over."""
    events: list[Event] = []
    for line in content.decode("utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            events.append(event)
    return events


def read_json(path: Path) -> Event:
    """The content of a JSON file; empty if there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return {}
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: Event) -> None:
    """Write a JSON file in one piece."""
    with replacing(path) as beside:
        beside.write_text(json.dumps(plain(content), indent=2, allow_nan=False) + "\n", "utf-8")


def plain(value: Any) -> Any:
    """Infinity and NaN, which JSON lacks, become null."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class MetricsTail:
    """Reads a metrics file as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # What an earlier run of this name wrote has been shown already.
        self._position = path.stat().st_size if path.exists() else 0

    def read(self) -> list[Event]:
        """The complete lines that were added since the last call."""
        if not self._path.exists():
            return []
        if self._path.stat().st_size < self._position:
            self._position = self._path.stat().st_size  # rewound by a resumed run
        with open(self._path, "rb") as file:
            file.seek(self._position)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._position += len(whole)
        # A file that was rewound and has grown since may be read from the middle of a line.
        return parse_lines(whole)
