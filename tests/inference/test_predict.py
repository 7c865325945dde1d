"""Predictions: the run's own arithmetic, and files that give them back."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from federation import Federation
from pyarrow import parquet
from trained_run import concept_checkpoint, drawn_checkpoint, run_config, write_run

from fedrc_flwr.checkpoint import Checkpoint
from fedrc_flwr.config import load_config
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.inference import (
    Batch,
    Prediction,
    Weights,
    assign,
    in_batches,
    load_trained,
    personal,
    predict,
    scenario_client,
    write_predictions,
)
from fedrc_flwr.models import build_model

INPUTS = np.random.default_rng(0).random((11, 8, 8), dtype=np.float32)
VALUES = np.array([0.2, 0.5, 0.3])


def by_hand(checkpoint: Checkpoint, values: np.ndarray) -> np.ndarray:
    """The mixture of the drawn networks, which are those of seeds 0, 1, 2."""
    config = load_config(checkpoint.config)
    networks = [build_model(config.model, (8, 8), 10, seed=k).eval() for k in range(3)]
    if checkpoint.state.body is not None:
        for network in networks:
            network.body = networks[0].body
    with torch.no_grad():
        parts = [torch.softmax(n(torch.from_numpy(INPUTS)), dim=1).numpy() for n in networks]
    return np.einsum("k,knc->nc", values, np.stack(parts))


@pytest.mark.parametrize("shared_body", [False, True])
@pytest.mark.parametrize("hard", [False, True])
def test_predictions_are_the_weighted_mean_or_the_likeliest_model(
    shared_body: bool, hard: bool, tmp_path: Path
) -> None:
    given = drawn_checkpoint(shared_body=shared_body)
    trained = load_trained(write_run(tmp_path, given))
    weights = Weights(trained.clusters, VALUES)
    expected = by_hand(given, np.array([0.0, 1.0, 0.0]) if hard else VALUES)

    (found,) = predict(trained, weights, [Batch(INPUTS, None)], hard)
    served = personal(trained, weights, hard).probabilities(INPUTS)

    np.testing.assert_allclose(found.probabilities, expected, atol=1e-6)
    np.testing.assert_allclose(served, expected, atol=1e-6)
    np.testing.assert_array_equal(found.labels, expected.argmax(axis=1))


@pytest.mark.parametrize(("clustering", "hard"), [("soft", False), ("hard-test", True)])
def test_without_a_word_it_predicts_as_the_run_does(
    clustering: str, hard: bool, tmp_path: Path
) -> None:
    trained = load_trained(write_run(tmp_path, drawn_checkpoint(clustering=clustering)))
    weights = Weights(trained.clusters, VALUES)

    (found,) = predict(trained, weights, [Batch(INPUTS, None)])
    (expected,) = predict(trained, weights, [Batch(INPUTS, None)], hard)

    np.testing.assert_array_equal(found.probabilities, expected.probabilities)


@pytest.mark.parametrize("clustering", ["soft", "hard-test"])
def test_observers_accuracy_is_the_one_that_the_run_reports(
    clustering: str, tmp_path: Path
) -> None:
    config = run_config(
        clients=6, hidden=16, batch_size=16, clustering=clustering,
        **{"local.learning-rate": 0.1},
    )  # fmt: skip
    federation = Federation(config)
    for _ in range(3):
        federation.round()
    reported = federation.evaluate()
    scenario = federation.scenario
    layout = federation.bank.layout
    checkpoint = Checkpoint(federation.state, config.to_dict(), scenario.input_shape, 10, layout)
    trained = load_trained(write_run(tmp_path, checkpoint))

    for name in ("observer-0", "observer-1", "observer-2"):
        data = scenario_client(trained.config, name)
        weights = assign(trained, data.fit).weights
        tally = write_predictions(
            tmp_path / "p.csv",
            predict(trained, weights, in_batches(data.test, 50)),
            trained.schema.classes,
        )
        assert tally.samples == reported[name]["samples"]
        assert tally.accuracy == pytest.approx(reported[name]["accuracy"], abs=1e-9)
        assert weights.best == reported[name]["cluster"]


NUMBERED = ("0", "1", "2", "3")


def predictions() -> list[Prediction]:
    rng = np.random.default_rng(2)
    rows = rng.dirichlet(np.ones(4), 10).astype(np.float32)
    truth = rows.argmax(axis=1)
    truth[:2] = (truth[:2] + 1) % 4
    return [Prediction(rows[:6], truth[:6]), Prediction(rows[6:], None)]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
@pytest.mark.parametrize("probabilities", [True, False])
def test_every_form_gives_the_predictions_back(
    suffix: str, probabilities: bool, tmp_path: Path
) -> None:
    path = tmp_path / "new" / f"p{suffix}"

    tally = write_predictions(path, predictions(), NUMBERED, probabilities)

    if suffix == ".csv":
        with path.open() as file:
            rows = list(csv.DictReader(file))
        labels = [int(row["label"]) for row in rows]
        columns = {name: [float(row[name]) for row in rows] for name in list(rows[0])[1:]}
    elif suffix == ".parquet":
        columns = parquet.read_table(path).to_pydict()
        labels = columns.pop("label")
    else:
        with np.load(path) as content:
            labels = content["label"].tolist()
            table = content["probabilities"] if probabilities else np.zeros((10, 0))
        columns = {f"p{c}": table[:, c].tolist() for c in range(table.shape[1])}
    whole = np.concatenate([p.probabilities for p in predictions()])
    assert labels == whole.argmax(axis=1).tolist()
    assert list(columns) == ([f"p{c}" for c in range(4)] if probabilities else [])
    if probabilities:
        np.testing.assert_array_equal(
            np.stack(list(columns.values()), axis=1).astype(np.float32), whole
        )
    assert (tally.samples, tally.labelled, tally.right) == (10, 6, 4)
    assert tally.accuracy == pytest.approx(2 / 3)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_labels_with_names_are_written_by_name(suffix: str, tmp_path: Path) -> None:
    path, names = tmp_path / f"p{suffix}", ("cold", "flu", "cough", "fever")

    write_predictions(path, predictions(), names)

    whole = np.concatenate([p.probabilities for p in predictions()])
    expected = [names[label] for label in whole.argmax(axis=1)]
    if suffix == ".npz":
        with np.load(path) as content:
            assert content["label"].tolist() == expected
        return
    frame = pd.read_csv(path) if suffix == ".csv" else pd.read_parquet(path)
    assert frame["label"].tolist() == expected
    assert list(frame.columns[1:]) == ["p_cold", "p_flu", "p_cough", "p_fever"]


def test_samples_without_a_label_do_not_count_for_the_accuracy(tmp_path: Path) -> None:
    (first, _) = predictions()
    truth = first.labels.copy()
    truth[:3] = -1

    tally = write_predictions(
        tmp_path / "p.csv", [Prediction(first.probabilities, truth)], NUMBERED
    )

    assert (tally.samples, tally.labelled, tally.right) == (6, 3, 3)


def test_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("before")

    def failing():  # type: ignore[no-untyped-def]
        yield predictions()[0]
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_predictions(path, failing(), NUMBERED)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_unknown_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"p\.xlsx.*\.csv, \.parquet, \.npz"):
        write_predictions(tmp_path / "p.xlsx", predictions(), NUMBERED)


def test_clusters_with_no_weight_are_left_out_of_the_personal_model(tmp_path: Path) -> None:
    trained = load_trained(write_run(tmp_path, concept_checkpoint()))
    weights = Weights(trained.clusters, np.array([1 - 1e-9, 1e-9, 0.0]))

    served = personal(trained, weights, hard=False).probabilities(INPUTS)

    (whole,) = predict(trained, weights, [Batch(INPUTS, None)])
    np.testing.assert_allclose(served, whole.probabilities, atol=1e-7)
