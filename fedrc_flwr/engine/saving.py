"""Checkpoints that are written while the run goes on."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from fedrc_flwr.checkpoint import Checkpoint, save_checkpoint


class Saving:
    """Writes a run's checkpoints, each while the next round is under way.

    Whatever kills the run in the meantime costs one round more.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        self._directory, self._keep = directory, keep
        self._pool = ThreadPoolExecutor(1, "checkpoint")  # starts no thread by itself
        self._under_way: Future[Path] | None = None

    def save(self, checkpoint: Checkpoint) -> None:
        """Begin to write a checkpoint; the one before it must be ``done``."""
        self._under_way = self._pool.submit(
            save_checkpoint, self._directory, checkpoint, self._keep
        )

    def done(self) -> None:
        """Wait until what was begun is on the disk; raises what went wrong with it."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def close(self) -> None:
        """Wait for what was begun, whatever became of it."""
        self._pool.shutdown()
