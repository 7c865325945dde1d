"""A node that points at a file of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from client_app.node import participant
from fedrc_flwr.data.encoding import CATEGORY, NUMBER, Column
from fedrc_flwr.data.scenario import ClientData
from fedrc_flwr.data.schema import Schema
from fedrc_flwr.engine.admission import REASONS
from fedrc_flwr.errors import DataError

RUN = {
    "scenario": "none", "recipe": "paper", "data.dataset": "their-own", "data.classes": 3,
    "data.input-shape": "5", "data.concept-shares": "1", "data.corrupted-shares": "0",
    "model.hidden": 4, "fedrc.clusters": 2,
}  # fmt: skip


def data_of(**node_config: Any) -> ClientData:
    keys = {name.replace("_", "-"): value for name, value in node_config.items()}
    context = Context(
        run_id=1, node_id=9, node_config={"partition-id": 3, "name": "hospital", **keys},
        state=RecordDict(), run_config=RUN,
    )  # fmt: skip
    return participant(context).data


def write(path: Path, samples: int = 20, **more: np.ndarray) -> str:
    np.savez(path, x=np.ones((samples, 5)), y=np.arange(samples) % 3, **more)
    return str(path)


@pytest.mark.parametrize(("role", "fit"), [("train", 18), ("observe", 10)])
def test_node_holds_its_file_whatever_its_partition(tmp_path: Path, role: str, fit: int) -> None:
    data = data_of(dataset=write(tmp_path / "own.npz"), role=role)

    assert (data.name, data.role, len(data.fit), len(data.test)) == (
        "hospital", role, fit, 20 - fit,
    )  # fmt: skip
    assert (data.classes, data.truth.concept) == (3, -1)


def test_file_of_several_clients_is_told_apart_by_partition(tmp_path: Path) -> None:
    path = write(tmp_path / "own.npz", client=np.repeat(np.arange(5), 4))

    assert len(data_of(dataset=path, partition_id=2).fit) == 4


def test_prepared_samples_follow_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "first.npz")
    first = data_of(dataset=path, state_dir=str(tmp_path / "state"))
    other = write(tmp_path / "second.npz", samples=40)

    second = data_of(dataset=other, state_dir=str(tmp_path / "state"))

    assert (len(first.fit), len(second.fit)) == (18, 36)
    assert isinstance(second.fit.inputs, np.memmap)
    assert len(list((tmp_path / "state").glob("prepared-*"))) == 2


@pytest.mark.parametrize("prepared", [False, True])
def test_a_file_that_changed_under_a_running_node_is_read_again(
    tmp_path: Path, prepared: bool
) -> None:
    keys = {"state_dir": str(tmp_path / "state")} if prepared else {}
    first = data_of(dataset=write(tmp_path / "own.npz"), **keys)
    same = data_of(dataset=str(tmp_path / "own.npz"), **keys)

    second = data_of(dataset=write(tmp_path / "own.npz", samples=40), **keys)

    assert (len(first.fit), len(second.fit)) == (18, 36)
    assert same.fit.inputs is first.fit.inputs  # nothing is read twice


def test_node_without_data_is_told_what_to_add() -> None:
    with pytest.raises(DataError, match="names none: add a line `data: FILE`") as caught:
        data_of(role="train")

    assert caught.value.code == "no-data"


# --- a run with a schema ------------------------------------------------------------------------

SCHEMA = Schema(
    classes=("cold", "flu"),
    columns=(Column("age", NUMBER, centre=50.0, scale=20.0),
             Column("sex", CATEGORY, categories=("f", "m"))),
    label="code",
)  # fmt: skip
ROWS = "age;sex;code\n" + "90;f;flu\n30;m;cold\n" * 10


def table_of(tmp_path: Path, rows: str, agreed: Schema = SCHEMA, **node_config: Any) -> ClientData:
    (tmp_path / "mine.csv").write_text(rows)
    run = {
        "recipe": "paper", "data.schema": agreed.text(), "model.hidden": 4, "fedrc.clusters": 2,
    }  # fmt: skip
    node = {"partition-id": 0, "name": "a", "dataset": str(tmp_path / "mine.csv"), **node_config}
    context = Context(run_id=1, node_id=9, node_config=node, state=RecordDict(), run_config=run)
    return participant(context).data


def test_table_becomes_what_the_runs_schema_says(tmp_path: Path) -> None:
    data = table_of(tmp_path, ROWS)

    rows = {(*x.tolist(), int(y)) for x, y in zip(data.fit.inputs, data.fit.labels, strict=True)}
    assert rows == {(2.0, 1.0, 0.0, 1), (-1.0, 0.0, 1.0, 0)}
    assert (len(data.fit), len(data.test), data.classes) == (18, 2, 2)


@pytest.mark.parametrize(
    ("rows", "code", "column"),
    [
        ("age;code\n90;flu\n30;cold\n", "missing-column", "sex"),
        ("age;sex\n90;f\n30;m\n", "missing-column", "code"),
        (ROWS.replace("cold", "cough"), "unknown-label", "code"),
        (ROWS.replace("30", "thirty"), "wrong-kind", "age"),
    ],
)
def test_table_that_does_not_fit_has_a_code_and_a_column(
    tmp_path: Path, rows: str, code: str, column: str
) -> None:
    with pytest.raises(DataError) as caught:
        table_of(tmp_path, rows)

    assert (caught.value.code, caught.value.column) == (code, column)
    assert caught.value.code in REASONS


def test_node_is_bound_to_the_schema_of_its_own_file(tmp_path: Path) -> None:
    SCHEMA.save(tmp_path / "schema.json")
    bound = {"schema": str(tmp_path / "schema.json")}

    assert len(table_of(tmp_path, ROWS, **bound).fit) == 18
    with pytest.raises(DataError, match="the run has another schema") as caught:
        table_of(tmp_path, ROWS, replace(SCHEMA, classes=("flu", "cold")), **bound)
    assert caught.value.code == "other-schema"
