"""A run's directory: one run at a time, no links, no names that break out, and a full disk."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict
from settings_of import configured

from fedrc_flwr import __version__, checkpoint, wire
from fedrc_flwr.engine.admission import Refusal
from fedrc_flwr.engine.carrier import Enrolment
from fedrc_flwr.engine.directory import LOCK, RESERVE, Claim, check_new
from fedrc_flwr.engine.outputs import RunSettings
from fedrc_flwr.engine.run import Run
from fedrc_flwr.errors import ConfigError, WireError
from fedrc_flwr.records import SCHEMA
from fedrc_flwr.simulation import IN_PROCESS, run_here
from fedrc_flwr.words import one_line

SMALL = configured(clients=3, rounds=2, hidden=4, observers_per_concept=0)


def run(directory: Path) -> dict[str, Any]:
    outcome = run_here(SMALL, directory, lambda event: None, IN_PROCESS)
    return {**outcome.summary, "completed": outcome.completed, "told": outcome.reason}


# --- two runs into one directory -----------------------------------------------------------------


def test_a_second_run_into_the_same_directory_is_refused_while_the_first_writes(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "run"
    other = subprocess.Popen(
        [sys.executable, "-c",
         "import sys, pathlib\nfrom fedrc_flwr.engine.directory import Claim\n"
         f"claim = Claim(pathlib.Path({str(directory)!r}))\nprint('held', flush=True)\n"
         "sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"

    with pytest.raises(ConfigError, match="another run is writing to"):
        Claim(directory)
    with pytest.raises(ConfigError, match="another run is writing to"):
        check_new(directory)
    with pytest.raises(ConfigError, match="another run is writing to"):
        run(directory)
    other.kill()
    other.wait()

    assert run(directory)["completed"], "a lock does not outlive its process"


def test_nothing_but_the_lock_is_left_of_it(tmp_path: Path) -> None:
    run(tmp_path / "run")

    assert not (tmp_path / "run" / RESERVE).exists()
    assert (tmp_path / "run" / LOCK).stat().st_size == 0


# --- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "run.log", "summary.json", "checkpoints", LOCK, RESERVE, ""]
)
def test_results_are_not_written_through_a_link(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir() if name in ("checkpoints", "") else victim.write_text("precious")
    directory = tmp_path / "outputs" / "run"
    (directory if name else directory.parent).mkdir(parents=True)
    (directory / name if name else directory).symlink_to(victim)

    with pytest.raises(ConfigError, match="is a symbolic link"):
        Run(SMALL, directory)

    assert list(victim.iterdir()) == [] if victim.is_dir() else victim.read_text() == "precious"


def test_a_link_that_appears_while_the_run_goes_on_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    directory = tmp_path / "run"

    def plant(event: dict[str, Any]) -> None:
        path = directory / "metrics.jsonl"
        path.unlink(missing_ok=True)
        path.symlink_to(victim)

    outcome = run_here(SMALL, directory, plant, IN_PROCESS)

    assert not outcome.completed
    assert victim.read_text() == "precious"


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a\nb", "a\x1b[2Jb", "../up", "a/b", "n" * 129, "n" * 1_000_000, "a\u202eb"]
)
def test_a_run_cannot_be_called_so(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RunSettings(name=name)

    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("field", ["name", "style", "version"])
@pytest.mark.parametrize("value", ["a\nb", "a\x1b[2Jb", "n" * 1_000_000, 7])
def test_a_client_cannot_introduce_itself_so(field: str, value: Any) -> None:
    fields = {**vars(Enrolment("h", "train", 5, 3, 0, "none", __version__)), field: value}
    content = RecordDict({"enrolment": ConfigRecord({"schema": SCHEMA, **fields})})

    with pytest.raises(WireError) as caught:
        wire.decode_enrolment(content, 3, ("train",))

    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("field", ["name", "code", "column", "version"])
def test_nor_refuse_so(field: str) -> None:
    fields = {**vars(Refusal("h", "data")), field: "a\nb"}
    content = RecordDict({"refusal": ConfigRecord({"schema": SCHEMA, **fields})})

    with pytest.raises(WireError):
        wire.decode_refusal(content)


def test_what_a_node_says_of_an_error_cannot_move_the_operators_cursor() -> None:
    assert one_line("first\nlast \x1b[2J\x07" + "x" * 999, "none") == "last ?[2J?" + "x" * 290


# --- a full disk ---------------------------------------------------------------------------------


def says_that_the_disk_is_full(directory: Path) -> None:
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert f"the disk of {directory} is full" in summary["reason"]
    last = (directory / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["event"] == "end"


def test_a_full_disk_leaves_a_summary_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_atomically", full)

    assert not run(tmp_path / "run")["completed"]

    says_that_the_disk_is_full(tmp_path / "run")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "fedrc-test", str(place)],
        capture_output=True, check=False,
    )  # fmt: skip
    if os.geteuid() != 0 or mounted.returncode != 0:
        pytest.skip("needs the right to mount a small disk")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    directory = small_disk / "run"

    def fill(event: dict[str, Any]) -> None:
        with open(small_disk / "filler", "ab") as file:
            try:
                while True:
                    file.write(b"0" * 4096)
                    file.flush()
            except OSError:
                return

    outcome = run_here(SMALL, directory, fill, IN_PROCESS)

    assert not outcome.completed
    says_that_the_disk_is_full(directory)
