"""The SuperLink's database: private and compact."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

from deploy.database import files_of, prepare_database

BLOB = 1_000_000


def fill(path: Path, blobs: int) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE IF NOT EXISTS object (content BLOB)")
    for _ in range(blobs):
        connection.execute("INSERT INTO object VALUES (?)", (os.urandom(BLOB),))
        connection.commit()
    return connection


def test_only_its_owner_can_read_it_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "state" / "superlink.db"
    before = os.umask(0)
    try:
        prepare_database(path)
        connection = fill(path, 1)
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in files_of(path)}
        connection.close()
    finally:
        os.umask(before)

    assert modes == {"superlink.db": 0o600, "superlink.db-wal": 0o600, "superlink.db-shm": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_one_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "state" / "superlink.db"
    path.parent.mkdir(mode=0o755)
    fill(path, 1).close()
    path.chmod(0o644)

    prepare_database(path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_space_of_earlier_messages_is_given_back_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "state" / "superlink.db"
    path.parent.mkdir()
    connection = fill(path, 8)
    connection.execute("DELETE FROM object WHERE rowid > 1")
    connection.commit()
    connection.close()
    assert path.stat().st_size > 7 * BLOB

    given_back = prepare_database(path)

    assert given_back > 6 * BLOB
    assert path.stat().st_size < 2 * BLOB
    with sqlite3.connect(path) as again:
        assert again.execute("SELECT count(*) FROM object").fetchone() == (1,)
    assert prepare_database(path) == 0


def test_space_of_deleted_messages_is_given_back_while_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "state" / "superlink.db"
    prepare_database(path)
    connection = fill(path, 8)
    connection.execute("DELETE FROM object WHERE rowid > 1")
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    assert path.stat().st_size < 2 * BLOB
    connection.close()
