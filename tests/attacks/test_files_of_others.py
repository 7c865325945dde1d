"""Reading what others wrote executes nothing: checkpoints, runs, scenarios, comparisons, models."""

from __future__ import annotations

import json
import pickle
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from trained_run import drawn_checkpoint, write_run
from typer.testing import CliRunner

from fedrc_flwr.checkpoint import Checkpoint
from fedrc_flwr.cli import app
from fedrc_flwr.errors import CheckpointError, ConfigError
from fedrc_flwr.inference import load_exported, load_trained
from fedrc_flwr.report.page import write_page
from fedrc_flwr.run import Run

NET = """
import pathlib
import torch
pathlib.Path(__file__).with_name("executed").touch()


def net(input_shape, classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))


def data():
    raise RuntimeError("executed")
"""


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module on the path, as any installed package is; ``executed`` appears beside it."""
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "evil_module.py").write_text(NET)
    monkeypatch.syspath_prepend(str(tmp_path / "evil"))
    monkeypatch.delitem(sys.modules, "evil_module", raising=False)
    return tmp_path / "evil" / "executed"


def poisoned(folder: Path, key: str, reference: str) -> Path:
    """A run's directory whose checkpoint and configuration name a function."""
    checkpoint = drawn_checkpoint()
    config = {**checkpoint.config, key: reference}
    run = write_run(folder, replace(checkpoint, config=config))
    (run / "config.json").write_text(json.dumps(config))
    return run


def fedrc(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code != 0, done.output
    return done.stderr


@pytest.mark.parametrize("key", ["model.network", "data.dataset"])
def test_a_checkpoint_that_names_a_module_is_not_imported(
    tmp_path: Path, evil: Path, key: str
) -> None:
    run = poisoned(tmp_path / "run", key, "evil_module:net")
    samples = tmp_path / "samples.npz"

    said = [
        fedrc("assign", run, "--client", "client-0", "--out", tmp_path / "w.json"),
        fedrc("predict", run, "--data", samples, "--weights", samples, "--out", tmp_path / "p.csv"),
        fedrc("export", run, "--weights", samples, "--out", tmp_path / "m.pt2"),
        fedrc("serve", run, "--weights", samples),
        fedrc("simulate", "--output", run, "--resume", "--engine", "in-process"),
    ]
    with pytest.raises(ConfigError, match="names code that would be executed"):
        Run.load(run)
    write_page(run)

    assert not evil.exists()
    assert all(f"{key} = 'evil_module:net'" in text for text in said), said
    assert ["--trust-code evil_module:net" in text for text in said[:4]] == [True] * 4
    assert f"--set {key}=evil_module:net" in said[4]


def test_a_function_that_is_trusted_by_name_is_executed(tmp_path: Path, evil: Path) -> None:
    run = poisoned(tmp_path / "run", "model.network", "evil_module:net")

    with pytest.raises(ConfigError):
        load_trained(run, trusted=["evil_module:other"])
    with pytest.raises(CheckpointError, match="holds a network of layout"):
        load_trained(run, trusted=["evil_module:net"])

    assert evil.exists()


@pytest.mark.parametrize("key", ["network", "dataset"])
def test_a_scenario_file_that_names_a_function_is_refused(
    tmp_path: Path, evil: Path, key: str
) -> None:
    section = {"network": "model", "dataset": "data"}[key]
    file = tmp_path / "theirs.yaml"
    file.write_text(f"{section}:\n  {key}: evil_module:net\n")

    said = fedrc("simulate", "--scenario", file, "--engine", "in-process")
    shown = fedrc("scenario", "show", file)

    assert not evil.exists()
    assert f"--set {section}.{key}=evil_module:net" in said
    assert "names code that would be executed" in shown


def test_a_comparison_file_that_names_a_function_is_refused(tmp_path: Path, evil: Path) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text(
        "title: theirs\nrows:\n  a: {algorithm: fedavg}\n"
        "columns:\n  one: {scenario: digits, model.network: 'evil_module:net'}\n"
    )

    said = fedrc("compare", file, "--output", tmp_path / "out")

    assert not evil.exists()
    assert "names code that would be executed: model.network = 'evil_module:net'" in said


class Bomb:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return (open, (str(self._path), "w"))


def test_an_exported_model_is_not_unpickled_unless_it_is_trusted(tmp_path: Path) -> None:
    loot = tmp_path / "loot"
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data/weights/weight_0", pickle.dumps(Bomb(loot)))

    with pytest.raises(CheckpointError, match="--trust-code"):
        load_exported(path)
    said = fedrc("serve", path)

    assert not loot.exists()
    assert f"pass --trust-code {path}" in said


def test_initial_weights_are_read_without_executing_anything(tmp_path: Path) -> None:
    loot = tmp_path / "loot"
    torch.save({"a": Bomb(loot)}, tmp_path / "weights.pt")

    said = fedrc(
        "simulate", "--engine", "in-process", "--set", "model.network=resnet18", "--set",
        f"model.weights={tmp_path / 'weights.pt'}", "--output", tmp_path / "run",
    )  # fmt: skip

    assert not loot.exists()
    assert "weights.pt" in said


def test_names_in_a_run_cannot_end_the_script_of_its_report(tmp_path: Path) -> None:
    bad = "</script><script>alert(1)</script>"
    checkpoint = drawn_checkpoint()
    clients = {bad + name: record for name, record in checkpoint.state.clients.items()}
    changed: Checkpoint = replace(checkpoint, state=replace(checkpoint.state, clients=clients))
    run = write_run(tmp_path / "run", changed)
    (run / "config.json").write_text(json.dumps(checkpoint.config))
    (run / "metrics.jsonl").write_text(json.dumps({"event": "note", "text": bad}) + "\n")

    page = write_page(run).read_text()

    assert "<script>alert(1)" not in page
