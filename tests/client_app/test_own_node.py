"""A node that points at a file of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from client_app.node import participant
from fedrc_flwr.data.scenario import ClientData
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


def test_node_without_the_runs_data_is_told_where_it_was_looked_for() -> None:
    with pytest.raises(DataError, match="their-own does not exist"):
        data_of(role="train")
