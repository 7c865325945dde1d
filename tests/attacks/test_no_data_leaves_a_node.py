"""The same on real processes: nothing of a table is in the server's files, logs and database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import Federation, fedrc, wait_until
from test_no_data_leaves import MARKER, ROWS, SCHEMA

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(900)]


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    (tmp_path / "federation").mkdir()
    made = Federation(tmp_path / "federation")
    yield made
    made.stop()


def test_a_row_that_cannot_be_read_stays_on_its_node(federation: Federation) -> None:
    federation.start()
    tables = {"good": ROWS, "better": ROWS, "bad": ROWS + f"{MARKER};f;flu\n"}
    for name, rows in tables.items():
        node = federation.node(name, 0, data=f"{MARKER}.csv")
        (federation.folder / name / f"{MARKER}.csv").write_text(rows)
        node.start()
    wait_until(lambda: "3 online" in fedrc("node", "list", federation.file).stdout, "three nodes")
    SCHEMA.save(federation.folder / "schema.json")

    run = federation.part(
        "run", "run", federation.file, "--name", "rows", "--schema",
        federation.folder / "schema.json", "--recipe", "paper", "--set", "rounds=1",
        "--set", "federation.min-clients=3", "--set", "federation.enrolment-timeout=45",
    )  # fmt: skip
    run.start()

    assert federation.finish(run) == 1, run.log()
    assert "column 'age' of its table does not hold what the schema says" in run.log()
    assert MARKER in federation.nodes["bad"].log(), "its own operator reads what is wrong"
    ours = [federation.outputs, federation.folder / "state"]
    files = [p for folder in ours for p in folder.rglob("*") if p.is_file()]
    files += [part.log_path for part in (run, federation.superlink, federation.serverapp)]
    assert (federation.outputs / "rows" / "run.log") in files
    assert [p.name for p in files if MARKER.encode() in p.read_bytes()] == []
