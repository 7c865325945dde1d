"""A program's output as JSON, one object a line, for those who collect logs.

    python -m deploy.json_log PROGRAM < output

Flower's programs, gRPC and Python itself each print in a way of their own. So the output of a
program and of all that it starts goes through a process of its own, which puts each message into an
object with its time, level, program and text. A traceback belongs to the message before it.
"""

from __future__ import annotations

import datetime
import enum
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

#: After so many seconds without a line, a message is whole.
SILENCE_SECONDS = 0.3
#: A line that is longer is cut into several.
LONGEST_LINE = 2**20
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LEVELS = "DEBUG|INFO|WARNING|ERROR|CRITICAL"
_LEVEL = re.compile(
    rf"(?:({_LEVELS})\s*:|\d{{4}}-\d\d-\d\d[T ][\d:.,]+Z? ({_LEVELS}))\s*(.*)", re.DOTALL
)
_OWN = re.compile(r"(warning|error) (.*)", re.DOTALL)
_TRACEBACK = "Traceback (most recent call last):"
_CHAINS = ("During handling of the above exception", "The above exception was the direct cause")


class LogFormat(enum.StrEnum):
    """How a program writes its log."""

    text = "text"
    json = "json"


def log_as(log: LogFormat, program: str) -> None:
    """From now on, let all output of this process and of what it starts be in a format.

    The process stays the same, and so do its signals and its exit code.
    """
    if log is LogFormat.text:
        return
    command = [sys.executable, "-P", "-m", "deploy.json_log", program]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, preexec_fn=_outlive)
    if writer.stdin is None:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    for number in (1, 2):
        os.dup2(writer.stdin.fileno(), number)
    writer.stdin.close()


def _outlive() -> None:
    """Stay when a signal ends the program and all that it started: its last words follow."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


@dataclass
class _Record:
    level: str
    lines: list[str]
    time: datetime.datetime = field(default_factory=lambda: datetime.datetime.now(datetime.UTC))
    exception: list[str] = field(default_factory=list)
    told: bool = False  # whether the traceback has come to the line that names the error

    def continues(self, line: str) -> bool:
        """Whether a line belongs to this record."""
        if line.startswith(_TRACEBACK):
            return self.level in ("ERROR", "CRITICAL", "WARNING") or bool(self.exception)
        if self.exception:
            return not self.told or not line.strip() or line.startswith(_CHAINS)
        return not line.strip() or line[0].isspace()

    def take(self, line: str) -> None:
        """Add a line that belongs here."""
        if not self.exception and not line.startswith(_TRACEBACK):
            self.lines.append(line)
            return
        self.exception.append(line)
        names_error = bool(line.strip()) and not line[0].isspace()
        self.told = names_error and not line.startswith((_TRACEBACK, *_CHAINS))

    def to_json(self, program: str) -> str:
        """One line of JSON."""
        exception = "\n".join(self.exception).rstrip()
        message = "\n".join(self.lines).strip() or exception.rpartition("\n")[2]
        told = {
            "time": self.time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": self.level,
            "program": program,
            "message": message,
        }
        return json.dumps(told | ({"exception": exception} if exception else {}))


class Records:
    """Puts lines together that belong together."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._open: _Record | None = None

    def add(self, line: str) -> Iterator[str]:
        """A line more; yields the record that it ends."""
        line = _COLOUR.sub("", line).rstrip("\r\n")
        begun = _begun(line)
        if begun is None and self._open is not None and self._open.continues(line):
            self._open.take(line)
            return
        yield from self.flush()
        if line.startswith(_TRACEBACK):
            self._open = _Record("ERROR", [])
            self._open.take(line)
        elif line.strip():
            self._open = begun or _Record("INFO", [line])

    def flush(self) -> Iterator[str]:
        """Nothing follows for a while; yields the record that is open."""
        record, self._open = self._open, None
        if record is not None:
            yield record.to_json(self._program)


def _begun(line: str) -> _Record | None:
    """The record that a line begins, if it says its level."""
    if found := _LEVEL.match(line):
        return _Record(found[1] or found[2], [found[3]])
    if found := _OWN.match(line):
        return _Record(found[1].upper(), [found[2]])
    if line.startswith("fedrc: "):
        return _Record("ERROR", [line.removeprefix("fedrc: ")])
    return None


def convert(source: int, program: str) -> Iterator[str]:
    """The records of all lines until the end of a file."""
    records, rest = Records(program), b""
    while True:
        if not select.select([source], [], [], SILENCE_SECONDS)[0]:
            yield from records.flush()
            select.select([source], [], [])
        content = os.read(source, 65_536)
        *lines, rest = (rest + content).split(b"\n")
        if rest and (not content or len(rest) > LONGEST_LINE):
            lines, rest = [*lines, rest], b""
        for line in lines:
            yield from records.add(line.decode("utf-8", errors="replace"))
        if not content:
            yield from records.flush()
            return


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        for record in convert(0, sys.argv[1]):
            print(record, flush=True)
