"""A model and its preprocessing are one thing: raw rows in, names of labels out."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from trained_run import drawn_checkpoint, write_run
from typer.testing import CliRunner

from fedrc_flwr.checkpoint import Checkpoint
from fedrc_flwr.cli import app
from fedrc_flwr.data.encoding import Column
from fedrc_flwr.data.schema import Schema
from fedrc_flwr.errors import CheckpointError
from fedrc_flwr.inference import Weights, export_model, load_exported, load_trained
from fedrc_flwr.inference.client_model import ClientModel

TABLE = Schema(
    classes=("cold", "flu", "other"),
    columns=(
        Column("age", "number", centre=60, scale=20, missing=True),
        Column("sex", "category", categories=("f", "m")),
    ),
    label="finding",
)
ARRAYS = Schema(classes=("0", "1"), shape=(2,), centre=(100.0, 0.5), scale=(50.0, 0.1))
ROWS = pd.DataFrame({"age": [80, 20.0, None], "sex": ["m", "f", "x"]})


def checkpoint(schema: Schema) -> Checkpoint:
    found = drawn_checkpoint(schema.input_shape, len(schema.classes))
    found.config["data.schema"] = schema.text()
    return found


def model(schema: Schema, folder: Path) -> ClientModel:
    trained = load_trained(write_run(folder, checkpoint(schema)))
    values = np.full(len(trained.clusters), 1 / len(trained.clusters))
    return ClientModel("new", trained, Weights(trained.clusters, values))


def by_hand(found: ClientModel, inputs: np.ndarray) -> np.ndarray:
    each = found.trained.log_probabilities(inputs.astype(np.float32)).exp().numpy()
    mean: np.ndarray = each.mean(axis=1)
    return mean


def test_frames_and_rows_by_column_are_predicted_by_name(tmp_path: Path) -> None:
    found = model(TABLE, tmp_path)
    encoded = np.array([[1, 0, 0, 1], [-2, 0, 1, 0], [0, 1, 0, 0]])

    expected = by_hand(found, encoded)

    np.testing.assert_allclose(found.predict_proba(ROWS), expected, atol=1e-6)
    rows = [{"sex": "m", "age": "80"}, {"sex": "f", "age": 20}, {"sex": "x", "age": None}]
    np.testing.assert_allclose(found.predict_proba(rows), expected, atol=1e-6)
    assert found.predict(ROWS).tolist() == np.array(TABLE.classes)[expected.argmax(1)].tolist()


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_exported_model_scales_raw_arrays_itself(suffix: str, tmp_path: Path) -> None:
    found = model(ARRAYS, tmp_path / "run")
    raw = np.array([[150, 0.5], [0.0, 0.6], [9999, np.nan]], dtype=np.float32)

    export_model(tmp_path / f"m{suffix}", found.trained, found.mixture, hard=False)
    exported = load_exported(tmp_path / f"m{suffix}", [str(tmp_path / f"m{suffix}")])

    expected = by_hand(found, np.array([[1, 0], [-2, 1], [10, 0]]))
    np.testing.assert_allclose(exported.probabilities(raw), expected, atol=1e-5)
    np.testing.assert_allclose(found.predict_proba(raw), expected, atol=1e-5)
    assert exported.schema == ARRAYS


def test_exported_model_knows_the_columns_of_its_table(tmp_path: Path) -> None:
    found = model(TABLE, tmp_path / "run")

    found.export(tmp_path / "m.pt2")
    exported = load_exported(tmp_path / "m.pt2", [str(tmp_path / "m.pt2")])

    inputs = exported.schema.features(ROWS)
    np.testing.assert_allclose(exported.probabilities(inputs), found.predict_proba(ROWS), atol=1e-6)
    assert exported.schema.classes == ("cold", "flu", "other")


def test_commands_take_a_raw_table_and_answer_with_names(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", checkpoint(TABLE))
    ROWS.assign(finding=["flu", "cold", "flu"]).to_csv(tmp_path / "new.csv", sep=";", index=False)

    def fedrc(*arguments: object) -> str:
        done = CliRunner().invoke(app, list(map(str, arguments)))
        assert done.exit_code == 0, done.output
        return done.output

    fedrc("assign", run, "--data", tmp_path / "new.csv", "--out", tmp_path / "w.json")
    told = fedrc("predict", run, "--data", tmp_path / "new.csv", "--weights", tmp_path / "w.json",
                 "--out", tmp_path / "p.csv")  # fmt: skip

    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["label", "p_cold", "p_flu", "p_other"]
    assert {row["label"] for row in rows} <= set(TABLE.classes)
    assert "accuracy on the 3 samples with a label" in told


def test_schema_that_does_not_fit_the_models_is_refused(tmp_path: Path) -> None:
    found = drawn_checkpoint((9,), 3)
    found.config["data.schema"] = TABLE.text()

    with pytest.raises(CheckpointError, match=r"its schema has inputs of shape \(4,\)"):
        load_trained(write_run(tmp_path, found))
