"""What a run is doing at the moment: its phase, whom it waits for, and where the time went."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from fedrc_flwr.report.log import write_json

WAITING, TRAINING, EVALUATION = "waiting", "training", "evaluation"
AGGREGATION, CHECKPOINT = "aggregation", "checkpoint"
PHASES = (WAITING, TRAINING, EVALUATION, AGGREGATION, CHECKPOINT)
#: In the run's directory: what it was doing a moment ago.
STATUS = "status.json"
PULSE_SECONDS = 2.0


class Progress:
    """Adds up seconds by phase, and knows which clients have been asked and have not answered.

    A phase within another one is not part of it: what the server computes while replies arrive is
    aggregation, and only the rest of that time is training.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._phases: list[str] = []
        self._since = clock()
        self._seconds: dict[str, float] = {}
        self._asked: set[str] = set()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The time in here belongs to a phase."""
        self._note()
        self._phases.append(name)
        try:
            yield
        finally:
            self._note()
            self._phases.pop()

    def _note(self) -> None:
        now = self._clock()
        if self._phases:
            name = self._phases[-1]
            self._seconds[name] = self._seconds.get(name, 0.0) + now - self._since
        self._since = now

    def taken(self) -> dict[str, float]:
        """Seconds by phase since the last call."""
        self._note()
        seconds, self._seconds = self._seconds, {}
        return {name: round(seconds[name], 3) for name in PHASES if name in seconds}

    def asked(self, names: Iterable[str]) -> None:
        """Messages are sent to these clients."""
        self._asked = set(names)

    def answered(self, name: str) -> None:
        """A client has answered, or is no longer waited for."""
        self._asked.discard(name)

    @property
    def outstanding(self) -> int:
        """How many clients have been asked and have not answered."""
        return len(self._asked)

    @property
    def now(self) -> str:
        """The phase at the moment; nothing between phases."""
        return next(iter(self._phases[-1:]), "")


class Pulse:
    """Writes what a run is doing into its directory every few seconds, until the run has ended.

    Whoever watches the run reads it there, and sees by its age whether the run is still alive. A
    full disk does not end the run.
    """

    def __init__(self, directory: Path, progress: Progress, round_number: Callable[[], int]):
        self._path = directory / STATUS
        self._progress = progress
        self._round = round_number
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._ended.set()
        self._thread.join()
        self._path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while True:
            with suppress(OSError):
                write_json(self._path, self.status())
            if self._ended.wait(PULSE_SECONDS):
                return

    def status(self) -> dict[str, Any]:
        """What is written."""
        return {
            "time": round(time.time(), 3),
            "round": self._round(),
            "phase": self._progress.now,
            "outstanding": self._progress.outstanding,
            "memory": psutil.Process().memory_info().rss,
        }
