"""Checkpoints that are written while the run goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fedrc_flwr.engine import saving as module
from fedrc_flwr.engine.saving import Saving


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], threading.Event]:
    """What has been written, and what lets the disk go on."""
    written: list[Any] = []
    free = threading.Event()

    def save(directory: Path, checkpoint: Any, keep: int) -> Path:
        assert free.wait(10)
        if checkpoint == "too large":
            raise OSError("the disk is full")
        written.append((directory, checkpoint, keep))
        return directory

    monkeypatch.setattr(module, "save_checkpoint", save)
    return written, free


def test_the_run_goes_on_while_a_checkpoint_is_written(
    disk: tuple[list[Any], threading.Event], tmp_path: Path
) -> None:
    written, free = disk
    saving = Saving(tmp_path, keep=3)

    saving.save("first")  # type: ignore[arg-type]
    assert written == []
    free.set()
    saving.done()

    assert written == [(tmp_path, "first", 3)]
    saving.done()  # there is nothing left to wait for
    saving.close()


def test_what_went_wrong_is_raised_once(
    disk: tuple[list[Any], threading.Event], tmp_path: Path
) -> None:
    disk[1].set()
    saving = Saving(tmp_path, keep=1)
    saving.save("too large")  # type: ignore[arg-type]

    with pytest.raises(OSError, match="the disk is full"):
        saving.done()
    saving.done()
    saving.close()


def test_closing_waits_for_what_was_begun(
    disk: tuple[list[Any], threading.Event], tmp_path: Path
) -> None:
    written, free = disk
    saving = Saving(tmp_path, keep=1)
    saving.save("last")  # type: ignore[arg-type]
    threading.Timer(0.05, free.set).start()

    saving.close()

    assert len(written) == 1
