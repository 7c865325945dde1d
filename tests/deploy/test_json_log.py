"""The log as JSON: each message one object, tracebacks with the message that they belong to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from deploy.json_log import LONGEST_LINE, convert


def converted(text: str | bytes) -> list[dict[str, Any]]:
    reading, writing = os.pipe()
    content = text if isinstance(text, bytes) else text.encode()
    process = os.fork()
    if process == 0:
        with open(writing, "wb") as pipe:
            pipe.write(content)
        os._exit(0)
    os.close(writing)
    try:
        return [json.loads(line) for line in convert(reading, "superlink")]
    finally:
        os.waitpid(process, 0)
        os.close(reading)


def told(text: str | bytes) -> list[tuple[str, str]]:
    return [(record["level"], record["message"]) for record in converted(text)]


@pytest.mark.parametrize(
    ("line", "level", "message"),
    [
        ("INFO :      Starting Flower SuperLink", "INFO", "Starting Flower SuperLink"),
        ("\x1b[93mWARNING \x1b[0m:   clock is off", "WARNING", "clock is off"),
        ("INFO:     Started server process [7]", "INFO", "Started server process [7]"),
        ("2026-01-31T12:00:00.1Z INFO [uvicorn] POST 200", "INFO", "[uvicorn] POST 200"),
        ("warning insecure: true: plain text", "WARNING", "insecure: true: plain text"),
        ("fedrc: not started: no key", "ERROR", "not started: no key"),
        ("fedrc-flwr 0.1.0: SuperLink on here", "INFO", "fedrc-flwr 0.1.0: SuperLink on here"),
        ('a "quoted" \\ line', "INFO", 'a "quoted" \\ line'),
    ],
)
def test_a_line_says_its_level_or_is_information(line: str, level: str, message: str) -> None:
    assert told(f"{line}\n") == [(level, message)]


def test_every_record_has_its_time_and_its_program() -> None:
    (record,) = converted("hello\n")

    assert list(record) == ["time", "level", "program", "message"]
    assert record["program"] == "superlink"
    assert record["time"].endswith("Z")


def test_lines_that_belong_together_are_one_message() -> None:
    text = "INFO :      a table\n    first\n\n    second\nINFO :      next\n\nplain\nplain again\n"

    assert told(text) == [
        ("INFO", "a table\n    first\n\n    second"), ("INFO", "next"), ("INFO", "plain"),
        ("INFO", "plain again"),
    ]  # fmt: skip


TRACEBACK = textwrap.dedent("""\
    Traceback (most recent call last):
      File "a.py", line 1, in <module>
        fail()
        ^^^^^^
    KeyError: 'x'

    During handling of the above exception, another exception occurred:

    Traceback (most recent call last):
      File "b.py", line 2, in <module>
    ValueError: two words
    """)


def test_a_traceback_belongs_to_the_message_before_it() -> None:
    records = converted(f"ERROR :     the app failed\n{TRACEBACK}INFO :      next\n")

    assert [record["message"] for record in records] == ["the app failed", "next"]
    assert records[0]["exception"] == TRACEBACK.strip()
    assert "exception" not in records[1]


def test_a_traceback_without_a_message_is_an_error_by_the_name_of_the_exception() -> None:
    records = converted(f"INFO :      at work\n{TRACEBACK}and on\n")

    assert [(r["level"], r["message"]) for r in records] == [
        ("INFO", "at work"), ("ERROR", "ValueError: two words"), ("INFO", "and on"),
    ]  # fmt: skip
    assert records[1]["exception"] == TRACEBACK.strip()


def test_what_is_no_text_or_has_no_end_is_written_too() -> None:
    assert told(b"\xff\xfe bad\nlast words") == [("INFO", "�� bad"), ("INFO", "last words")]
    assert sum(len(message) for _, message in told("x" * (3 * LONGEST_LINE))) == 3 * LONGEST_LINE


def program(body: str) -> subprocess.CompletedProcess[str]:
    """A program whose log is JSON, as `fedrc` starts one."""
    start = "from deploy.json_log import LogFormat, log_as\nlog_as(LogFormat.json, 'run')\n"
    return subprocess.run(
        [sys.executable, "-c", start + textwrap.dedent(body)],
        capture_output=True, text=True, check=False, timeout=60, start_new_session=True,
    )  # fmt: skip


def test_a_program_what_it_starts_and_how_it_dies_are_one_log() -> None:
    done = program(
        """
        import os, subprocess, sys
        print("said", flush=True)
        subprocess.run(["sh", "-c", "echo 'INFO : a child' >&2"], check=True)
        raise RuntimeError("the end")
        """
    )

    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.stderr == ""
    assert done.returncode == 1
    assert [(r["level"], r["message"]) for r in records] == [
        ("INFO", "said"), ("INFO", "a child"), ("ERROR", "RuntimeError: the end"),
    ]  # fmt: skip
    assert records[-1]["exception"].endswith("RuntimeError: the end")


def test_a_program_that_becomes_another_one_is_still_the_same_log() -> None:
    done = program(
        """
        import os
        print("first", flush=True)
        os.execv("/bin/sh", ["sh", "-c", "echo second; exit 7"])
        """
    )

    assert done.returncode == 7
    assert [json.loads(line)["message"] for line in done.stdout.splitlines()] == [
        "first", "second",
    ]  # fmt: skip


def test_the_last_words_after_a_signal_to_all_processes_are_written() -> None:
    done = program(
        """
        import os, signal, sys
        signal.signal(signal.SIGTERM, lambda *_: (print("bye", flush=True), sys.exit(3)))
        os.killpg(os.getpgrp(), signal.SIGTERM)
        """
    )

    assert done.returncode == 3
    assert [json.loads(line)["message"] for line in done.stdout.splitlines()] == ["bye"]
