"""Checkpoints for inference: what is read from them, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from trained_run import drawn_checkpoint, write_run

from fedrc_flwr import tensor_file
from fedrc_flwr.checkpoint import Checkpoint, save_client_state
from fedrc_flwr.errors import CheckpointError, ConfigError, DataError
from fedrc_flwr.inference import load_trained
from fedrc_flwr.models import build_model
from fedrc_flwr.state import ClientState


def only_file(run: Path) -> Path:
    (path,) = (run / "checkpoints").iterdir()
    return path


def refused(path: Path, *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_trained(path)
    for word in words:
        assert word in str(caught.value)


def test_models_and_prior_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    given = drawn_checkpoint()
    inputs = np.random.default_rng(0).random((5, 8, 8), dtype=np.float32)

    trained = load_trained(write_run(tmp_path, given))

    counts = given.state.clients["client-00"].label_counts
    assert counts is not None
    np.testing.assert_allclose(
        trained.broadcast.label_prior, counts / counts.sum(axis=1, keepdims=True)
    )
    found = trained.log_probabilities(inputs)
    for k in range(3):
        network = build_model(trained.config.model, (8, 8), 10, seed=k)
        expected = torch.log_softmax(network(torch.from_numpy(inputs)), dim=1)
        torch.testing.assert_close(found[:, k], expected.detach())


def test_a_run_a_folder_of_checkpoints_and_a_file_are_the_same(tmp_path: Path) -> None:
    run = write_run(tmp_path, drawn_checkpoint())

    found = [load_trained(path) for path in (run, run / "checkpoints", only_file(run))]

    assert {trained.where for trained in found} == {only_file(run)}


def test_newest_checkpoint_is_taken_and_a_torn_newer_one_is_told(tmp_path: Path) -> None:
    given = drawn_checkpoint()
    write_run(tmp_path, given)
    write_run(tmp_path, replace(given, state=replace(given.state, round=8)))
    assert load_trained(tmp_path).state.round == 8
    path = tmp_path / "checkpoints" / "round-000008.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    told: list[str] = []

    assert load_trained(tmp_path, warn=told.append).state.round == 7
    assert len(told) == 1
    assert str(path) in told[0]


def test_scenario_file_is_not_needed(tmp_path: Path) -> None:
    given = drawn_checkpoint()
    given = replace(given, config={**given.config, "scenario": "/gone/away.yaml"})

    assert load_trained(write_run(tmp_path, given)).config.scenario == "/gone/away.yaml"


def test_torn_file_is_refused(tmp_path: Path) -> None:
    path = only_file(write_run(tmp_path, drawn_checkpoint()))
    path.write_bytes(path.read_bytes()[:-100])

    refused(path, str(path), "torn")


def test_other_schema_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_file, "SCHEMA", 99)
    write_run(tmp_path, drawn_checkpoint())
    monkeypatch.undo()

    refused(tmp_path, "schema 99", "reads schema 2")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("classes", 7, ["(8, 8)", "7 classes", "layout"]),
        ("input_shape", (4, 4), ["(4, 4)", "10 classes", "layout"]),
    ],
)
def test_other_classes_or_input_shape_than_the_models_have_are_refused(
    field: str, value: object, words: list[str], tmp_path: Path
) -> None:
    given: Checkpoint = replace(drawn_checkpoint(), **{field: value})

    refused(write_run(tmp_path, given), *words)


def test_vector_of_another_length_is_refused(tmp_path: Path) -> None:
    given = drawn_checkpoint()
    models = {c: vector[:-3] for c, vector in given.state.models.items()}

    refused(write_run(tmp_path, replace(given, state=replace(given.state, models=models))), "shape")


def test_model_with_nan_is_refused(tmp_path: Path) -> None:
    path = only_file(write_run(tmp_path, drawn_checkpoint()))
    arrays, about = tensor_file.read_file(path)
    arrays["model/1"] = arrays["model/1"].copy()
    arrays["model/1"][5] = np.nan
    tensor_file.write_atomically(path, arrays, about)

    refused(path, str(path), "not finite")


def test_counts_of_other_clusters_are_refused(tmp_path: Path) -> None:
    given = drawn_checkpoint()
    record = replace(given.state.clients["client-00"], label_counts=np.ones((2, 10)))
    state = replace(given.state, clients={"client-00": record})

    refused(write_run(tmp_path, replace(given, state=state)), "3 clusters", "(2, 10)")


def test_body_where_none_is_shared_is_refused(tmp_path: Path) -> None:
    given = drawn_checkpoint()
    state = replace(given.state, body=np.zeros(3, dtype=np.float32))

    refused(write_run(tmp_path, replace(given, state=state)), "no shared body", "found one")


def test_clients_state_is_not_a_checkpoint(tmp_path: Path) -> None:
    save_client_state(tmp_path, ClientState.start((0, 1)))

    refused(tmp_path / "round-000000.safetensors", "incomplete or of another kind")


def test_nothing_there_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "gone", "no such file or directory")
    refused(tmp_path, "no readable checkpoint")


def test_configuration_of_another_version_is_refused(tmp_path: Path) -> None:
    given = drawn_checkpoint()
    given = replace(given, config={**given.config, "telepathy": True})

    refused(write_run(tmp_path, given), "unknown key 'telepathy'")


def test_samples_of_another_shape_and_unknown_device_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path, drawn_checkpoint())

    with pytest.raises(DataError, match=r"expected samples of the shape \(8, 8\).*found \(9, 8\)"):
        load_trained(run).log_probabilities(np.zeros((2, 9, 8), dtype=np.float32))
    with pytest.raises(ConfigError, match="device = 'abacus'"):
        load_trained(run, device="abacus")
