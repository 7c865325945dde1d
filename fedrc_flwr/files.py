"""Replacing a file in one piece: a reader sees the old one or the new one, never a part."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path, durable: bool = False) -> Iterator[Path]:
    """A path to write to, which replaces ``path`` when the block ends and is removed if it fails.

    With ``durable``, the content is on the disk before anything is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp{path.suffix}")
    beside.unlink(missing_ok=True)
    os.close(not_following(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    try:
        yield beside
        if durable:
            _flush(beside)
        os.replace(beside, path)
        if durable:
            _flush(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def write_pieces(path: Path, pieces: Iterable[Any]) -> None:
    """Write bytes, or whatever lies in memory like bytes, without a copy of them."""
    with open(path, "wb", buffering=0) as file:
        for piece in pieces:
            left = memoryview(piece)
            while left:
                left = left[file.write(left) :]


def not_following(path: str | os.PathLike[str], flags: int) -> int:
    """An ``opener`` for a file to write: a symbolic link is refused, wherever it points to."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _flush(path: Path) -> None:
    """Wait until a file or a directory is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
