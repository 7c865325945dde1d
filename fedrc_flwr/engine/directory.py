"""The directory of a run: where its clients' states are, and whether a new run may use it."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from fedrc_flwr.engine.progress import STATUS
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.report.log import CONFIG, METRICS, SUMMARY

RUN_LOG, SUPERLINK_LOG, REPORT = "run.log", "superlink.log", "report.html"
CLIENTS, DATA = "clients", "data"
#: Held while a run writes here; and space kept for the summary of a run that fills the disk.
LOCK, RESERVE = ".lock", ".reserve"
RESERVED_BYTES = 2**20
IN_USE = "another run is writing to {directory}: wait for it, or choose another run.name"
#: What a run leaves that failed before its first checkpoint.
OF_A_FAILED_START = {
    CONFIG, METRICS, SUMMARY, RUN_LOG, SUPERLINK_LOG, REPORT, CLIENTS, DATA, LOCK, RESERVE,
    STATUS,
}  # fmt: skip


class Claim:
    """A run's directory for one run alone, until the claim is given up or the process ends.

    A directory that is a symbolic link, or holds one, is refused: the run would write elsewhere.
    """

    def __init__(self, directory: Path) -> None:
        self._reserve = directory / RESERVE
        _refuse_links(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(
            directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
        )
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ConfigError(IN_USE.format(directory=directory)) from None
        except OSError as error:  # some network file systems
            os.close(self._lock)
            raise ConfigError(
                f"{directory} cannot be locked: {error.strerror}: use a directory on another disk"
            ) from None
        try:
            self._reserve.write_bytes(b"\0" * RESERVED_BYTES)
        except OSError as error:
            self.give_up()
            raise ConfigError(f"{directory} cannot be written to: {error.strerror}") from None

    def free_reserve(self) -> None:
        """Give the reserved space back, to be written to."""
        self._reserve.unlink(missing_ok=True)

    def give_up(self) -> None:
        """Let others use the directory."""
        self.free_reserve()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _is_claimed(directory: Path) -> bool:
    """Whether a run is writing to a directory; nothing is changed in it."""
    try:
        lock = os.open(directory / LOCK, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
    return False


def _refuse_links(directory: Path) -> None:
    found = directory if directory.is_symlink() else None
    for folder, names, files in os.walk(directory):
        if found is None:
            links = (Path(folder) / name for name in (*names, *files))
            found = next((path for path in links if path.is_symlink()), None)
    if found is not None:
        raise ConfigError(
            f"{found} is a symbolic link: results are not written through links; remove it, or "
            "choose another directory"
        )


def client_states(directory: Path) -> Path:
    """Where the states of a run's virtual clients are kept."""
    return directory / CLIENTS


def check_place(directory: Path) -> None:
    """Refuse a path that cannot be made a directory."""
    nearest = next(place for place in (directory, *directory.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise ConfigError(f"{nearest} is a file: give a new directory")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(f"{nearest} cannot be written to: give another directory")


def check_new(directory: Path) -> None:
    """Refuse a directory that holds something else than a run that failed to start."""
    check_place(directory)
    found = {path.name for path in directory.iterdir()} if directory.exists() else set()
    if _is_claimed(directory):
        raise ConfigError(IN_USE.format(directory=directory))
    failed_start = found <= OF_A_FAILED_START and found & {RUN_LOG, SUPERLINK_LOG}
    if found and not failed_start:
        raise ConfigError(
            f"{directory} is not empty: give a new directory, or continue its run with --resume"
        )


def clear(directory: Path) -> None:
    """Remove what a run left that failed to start; ``check_new`` has looked at it."""
    shutil.rmtree(directory, ignore_errors=True)
