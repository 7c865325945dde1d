"""A run whose data only the nodes have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from grid import InMemoryGrid

from fedrc_flwr.config import load_config
from fedrc_flwr.errors import RunError
from fedrc_flwr.report.log import read_events, read_json
from server_app.app import run_on_flower
from server_app.names import write_names


class Remote(InMemoryGrid):
    """Not a simulation: nodes come and go."""


def run_it(tmp_path: Path, columns: tuple[int, ...], **settings: object) -> None:
    """A round with a node for each number of columns; four nodes are registered."""
    config = load_config(
        {
            "recipe": "paper", "rounds": 1, "data.classes": 3, "data.input-shape": "5",
            "model.hidden": 4, "fedrc.clusters": 2, "federation.enrolment-timeout": 0.3,
            **settings,
        }
    ).placed(tmp_path / "run")  # fmt: skip
    grid = Remote(0, dict(config.to_dict()))
    for i, width in enumerate(columns):
        path = tmp_path / f"{i}.npz"
        np.savez(path, x=np.ones((20, width)), y=np.arange(20) % 3)
        role = "observe" if i == 0 else "train"
        grid.add_node(100 + i, 0, name=f"h{i}", dataset=str(path), role=role)
    write_names(tmp_path / "run", {100 + i: f"h{i}" for i in range(4)})
    run_on_flower(config, tmp_path / "run", grid)  # type: ignore[arg-type]


def test_classes_and_shape_stand_for_data_on_the_nodes(tmp_path: Path) -> None:
    run_it(tmp_path, (5, 5, 5, 5))

    events = read_events(tmp_path / "run" / "metrics.jsonl")
    enrolled = [(e["client"], e["role"]) for e in events if e["event"] == "enrolled"]
    assert enrolled == [("h0", "observe"), ("h1", "train"), ("h2", "train"), ("h3", "train")]
    assert read_json(tmp_path / "run" / "summary.json")["status"] == "completed"


def test_every_registered_node_is_waited_for(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        run_it(tmp_path, (5, 5, 6))

    said = str(caught.value)
    assert said.startswith("2 of 4 clients are enrolled; start the nodes that are missing")
    assert "h2: its samples do not have this run's shape; its own log says more" in said
    assert said.endswith("h3: offline")
    assert str(tmp_path) not in said


def test_fewer_are_enough_if_the_settings_say_so(tmp_path: Path) -> None:
    run_it(tmp_path, (5, 5, 6), **{"federation.min-clients": 1})

    assert read_json(tmp_path / "run" / "summary.json")["status"] == "completed"
