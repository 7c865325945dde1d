"""What the runs of a server have done so far, read from the files that they write.

Counters grow as lines are added. A resumed run cuts off the lines of the rounds that it repeats;
what they counted stays counted, because it happened.
"""

from __future__ import annotations

import math
import os
import stat
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.monitoring.catalogue import MOST_NAMED, OTHERS, Exposition, known
from fedrc_flwr.engine.progress import PHASES, STATUS
from fedrc_flwr.errors import LATE
from fedrc_flwr.report.log import CONFIG, EVALUATED, METRICS, Event, parse_lines, read_json

GOOD, FAILED, IS_LATE, REFUSED = "good", "failed", "late", "refused"
#: Runs that are exported: those that wrote last.
MOST_RUNS = 8
#: Bytes of a run's metrics that are read at once; the rest follows with the next look.
MOST_BYTES = 32 * 2**20
#: Bytes by which a file is known again.
MARK_BYTES = 4096
#: A status that is older than this was left by a run that was killed.
FRESH_SECONDS = 30.0


class WatchedRun:
    """One run's directory. Whatever its files hold, looking at them raises nothing."""

    def __init__(self, directory: Path) -> None:
        self.name = directory.name
        self.ended = ""  # how, if the run has said so
        self._directory = directory
        self._position, self._before = 0, b""  # where to go on, and what stood there
        self._seen = self._last_round = 0.0  # times of the last line and of the last round
        self._counted = 0.0  # lines up to here were counted before the file was written anew
        self._latest: Event = {}
        self._evaluated: Event = {}
        self._began = 0.0
        self._status: Event = {}
        self._clients: set[str] = set()
        self._totals: Counter[str] = Counter()
        self._phases: defaultdict[str, float] = defaultdict(float)
        self._replies: Counter[tuple[str, str]] = Counter()
        self._refused: Counter[str] = Counter()

    def look(self) -> None:
        """Read what was added since the last look."""
        for event in self._added():
            kind, moment = event.get("event"), number(event.get("time"), math.inf)
            if moment > time.time() + FRESH_SECONDS:
                moment = math.inf  # the clock was wrong then
            self.ended = text(event.get("status")) if kind == "end" else ""
            if kind == "round":
                self._latest = event
            elif kind == EVALUATED:
                self._evaluated = event
            if moment <= self._counted:
                continue
            self._seen = moment if moment < math.inf else self._seen
            if kind == "round":
                self._count(event)
            if kind in ("round", EVALUATED):
                self._count_work(event)
            elif kind == "refused":
                self._refused[self._named(event.get("client"))] += 1
        self._began = _changed(self._directory / CONFIG)
        status = _small_json(self._directory / STATUS)
        fresh = abs(time.time() - number(status.get("time"))) < FRESH_SECONDS
        self._status = status if fresh else {}

    @property
    def alive(self) -> bool:
        """Whether the run has told a moment ago what it is doing."""
        return bool(self._status)

    def _added(self) -> list[Event]:
        path = self._directory / METRICS
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return []
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return []
            file.seek(self._position - len(self._before))
            if file.read(len(self._before)) != self._before:
                self._position, self._before = 0, b""  # a resumed run has written it anew
                self._counted = self._seen
                file.seek(0)
            content = file.read(MOST_BYTES)
        whole = content[: content.rfind(b"\n") + 1]
        if not whole and len(content) == MOST_BYTES:
            whole = content  # no line of a run's is that long: it is passed over
        self._position += len(whole)
        self._before = (self._before + whole)[-MARK_BYTES:]
        return parse_lines(whole)

    def _count(self, event: Event) -> None:
        self._last_round = number(event.get("time"))
        self._totals["rounds"] += 1
        self._totals["repeats"] += max(0, round(number(event.get("attempts"), 1.0)) - 1)
        self._count_replies(event)

    def _count_work(self, event: Event) -> None:
        """What a round took, or the last evaluation, which no round carries."""
        for key in ("bytes_down", "bytes_up"):
            self._totals[key] += max(0, round(number(event.get(key))))
        for phase, seconds in table(event.get("phases")).items():
            if phase in PHASES:
                self._phases[phase] += max(0.0, number(seconds))

    def _count_replies(self, event: Event) -> None:
        answered, struck = names(event.get("answered")), table(event.get("strikes"))
        for client in answered:
            self._replies[self._named(client), GOOD] += 1
        unnamed = 0 if answered else max(0, round(number(event.get("replied"))))
        if unnamed:  # a large federation does not name them
            self._replies[OTHERS, GOOD] += unnamed
        for client, reason in table(event.get("failed")).items():
            late = IS_LATE if reason == LATE else FAILED
            self._replies[self._named(client), REFUSED if client in struck else late] += 1

    def _named(self, client: object) -> str:
        """The client's name, or that of all others once there are too many."""
        name = text(client)
        if name not in self._clients and len(self._clients) >= MOST_NAMED:
            return OTHERS
        self._clients.add(name)
        return name

    def export(self, to: Exposition) -> None:
        """Add what is known of the run."""
        run, latest = self.name, self._latest
        for name, value in (
            ("fedrc_rounds_total", self._totals["rounds"]),
            ("fedrc_round_repeats_total", self._totals["repeats"]),
            ("fedrc_sent_bytes_total", self._totals["bytes_down"]),
            ("fedrc_received_bytes_total", self._totals["bytes_up"]),
            ("fedrc_last_round_timestamp_seconds", max(self._last_round, self._began) or None),
            ("fedrc_round", known(latest.get("round"))),
            ("fedrc_round_seconds", known(latest.get("seconds"))),
            ("fedrc_epsilon_spent", known(latest.get("epsilon"))),
            ("fedrc_loss", known(latest.get("loss"))),
            ("fedrc_run_memory_bytes", known(self._status.get("memory"))),
            ("fedrc_messages_outstanding", known(self._status.get("outstanding"))),
        ):
            to.add(name, value, run=run)
        if self._status.get("phase") in PHASES:
            to.add("fedrc_run_phase", 1, run=run, phase=self._status["phase"])
        for phase, seconds in self._phases.items():
            to.add("fedrc_phase_seconds_total", seconds, run=run, phase=phase)
        for (client, outcome), count in self._replies.items():
            to.add("fedrc_replies_total", count, run=run, client=client, outcome=outcome)
        for client, count in self._refused.items():
            to.add("fedrc_enrolments_refused_total", count, run=run, client=client)
        for client in names(latest.get("quarantined")):
            to.add("fedrc_client_quarantined", 1, run=run, client=self._named(client))
        for scope in ("local", "global"):
            accuracy = known(self._evaluated.get(f"{scope}_accuracy"))
            to.add("fedrc_accuracy", accuracy, run=run, scope=scope)
        self._export_clusters(to)

    def _export_clusters(self, to: Exposition) -> None:
        clusters = [c for c in listed(self._latest.get("clusters")) if isinstance(c, int)]
        if clusters:
            to.add("fedrc_clusters", len(clusters), run=self.name)
        for name, key in (("fedrc_cluster_members", "members"), ("fedrc_cluster_share", "shares")):
            for cluster, value in zip(clusters, listed(self._latest.get(key)), strict=False):
                to.add(name, known(value), run=self.name, cluster=cluster)


class Runs:
    """The runs of an outputs directory that wrote last."""

    def __init__(self, outputs: Path) -> None:
        self._outputs = outputs
        self.watched: dict[str, WatchedRun] = {}

    def look(self) -> None:
        """Read what has been added, and forget the runs that others have superseded."""
        newest = sorted(self._found(), reverse=True)[:MOST_RUNS]
        self.watched = {
            name: self.watched.get(name) or WatchedRun(self._outputs / name)
            for _, name in sorted(newest, key=lambda each: each[1])
        }
        for run in self.watched.values():
            run.look()

    def _found(self) -> Iterator[tuple[float, str]]:
        try:
            entries = list(os.scandir(self._outputs))
        except OSError:
            return
        for entry in entries:
            try:
                if not entry.is_dir(follow_symlinks=False):
                    continue
                path = Path(entry.path)
                written = max(_changed(path / METRICS), _changed(path / CONFIG))
                if written:
                    yield written, entry.name
            except OSError:
                continue


def _changed(path: Path) -> float:
    """When a file was last written to; 0 if there is none."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _small_json(path: Path) -> Event:
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return {}
        return read_json(path)
    except (OSError, ValueError, RecursionError):
        return {}


def number(value: Any, otherwise: float = 0.0) -> float:
    """A finite number, or another one for anything else."""
    found = known(value)
    return otherwise if found is None else found


def text(value: Any) -> str:
    """A text, or nothing for anything else."""
    return value if isinstance(value, str) else ""


def table(value: Any) -> dict[str, Any]:
    """A JSON object, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    """A list, or an empty one for anything else."""
    return value if isinstance(value, list) else []


def names(value: Any) -> list[str]:
    """The texts of a list."""
    return [each for each in listed(value) if isinstance(each, str)]
