"""The SuperLink's database: nobody else's business, and no larger than what it holds."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
FULL = 1  # SQLite's number for an automatic vacuum


def prepare_database(path: Path) -> int:
    """Make the database private and compact, before Flower opens it; returns the bytes given back.

    From then on SQLite gives the space of deleted messages back by itself. Its other files take
    over the permissions of this one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(PRIVATE_FOLDER)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE))
    for file in files_of(path):
        file.chmod(PRIVATE_FILE)
    before = path.stat().st_size
    connection = sqlite3.connect(path)
    try:
        (automatic,) = connection.execute("PRAGMA auto_vacuum").fetchone()
        (unused,) = connection.execute("PRAGMA freelist_count").fetchone()
        if automatic != FULL or unused:
            connection.execute("PRAGMA auto_vacuum = FULL")
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
    return max(0, before - path.stat().st_size)


def files_of(path: Path) -> list[Path]:
    """The database's files that exist."""
    suffixes = ("", "-wal", "-shm", "-journal")
    return [file for s in suffixes if (file := path.with_name(path.name + s)).exists()]
