"""The commands of inference: what they say, and what they refuse."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from trained_run import concept_checkpoint, write_run
from typer.testing import CliRunner

from fedrc_flwr.cli import MISUSED, app
from fedrc_flwr.data.datasets import load_dataset


def fedrc(*arguments: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run, and beside it mine.npz: digits under concept 1, and weights.json for them."""
    data = load_dataset("digits")
    np.savez(tmp_path / "mine.npz", x=data.test_inputs, y=9 - data.test_labels)
    np.savez(tmp_path / "x.npz", x=data.test_inputs)
    run = write_run(tmp_path / "run", concept_checkpoint())
    done = fedrc("assign", run, "--data", tmp_path / "mine.npz", "--out", tmp_path / "weights.json")
    assert done.exit_code == 0, done.output
    return run


def test_assign_says_and_saves_the_same(run: Path, tmp_path: Path) -> None:
    done = fedrc("assign", run, "--data", tmp_path / "mine.npz", "--out", tmp_path / "w.json")

    saved = json.loads((tmp_path / "w.json").read_text())
    assert done.exit_code == 0
    assert saved["clusters"] == [0, 4, 5]
    assert int(np.argmax(saved["mixture_weights"])) == 1
    assert "cluster 4 is the right one" in done.stdout
    assert f"at least {saved['sureness']:.2f}, from 360 samples" in done.stdout
    assert f"{len(saved['unfamiliar'])} of 360 samples disagree" in done.stdout
    assert f"margin {saved['margin']:.3f}" in done.stdout
    assert "not seen" not in done.stdout


def test_assign_warns_of_a_concept_not_seen_and_of_too_few_samples(
    run: Path, tmp_path: Path
) -> None:
    data = load_dataset("digits")
    np.savez(tmp_path / "fresh.npz", x=data.test_inputs, y=(data.test_labels + 5) % 10)
    np.savez(tmp_path / "few.npz", x=data.test_inputs[::90], y=9 - data.test_labels[::90])

    fresh = fedrc("assign", run, "--data", tmp_path / "fresh.npz", "--out", tmp_path / "w.json")
    few = fedrc("assign", run, "--data", tmp_path / "few.npz", "--out", tmp_path / "w.json")

    assert "has not seen" in fresh.stdout
    assert "more labelled samples" in few.stdout


def test_predict_writes_labels_for_unlabelled_samples(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    done = fedrc(
        "predict", run, "--data", tmp_path / "x.npz", "--weights", tmp_path / "weights.json",
        "--labels", "--batch", 100, "--out", out,
    )  # fmt: skip

    assert done.exit_code == 0, done.output
    assert "360 predictions" in done.stdout
    assert "accuracy" not in done.stdout
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["label"]
    found = np.array([int(row["label"]) for row in rows])
    assert (found == 9 - load_dataset("digits").test_labels).mean() > 0.9


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["assign", "RUN", "--out", "w.json"], ["either --data or --client", "neither"]),
        (
            ["assign", "RUN", "--data", "DIR/mine.npz", "--client", "a", "--out", "w.json"],
            ["either --data or --client", "both"],
        ),
        (["assign", "DIR/gone", "--client", "a", "--out", "w.json"], ["gone", "no such file"]),
        (["assign", "RUN", "--client", "nobody", "--out", "w.json"], ["'nobody'", "client-00"]),
        (["assign", "RUN", "--data", "DIR/x.npz", "--out", "w.json"], ["has no labels"]),
        (
            ["assign", "RUN", "--data", "DIR/mine.npz", "--out", "DIR/mine.npz/w.json"],
            ["--out", "mine.npz"],
        ),
        (
            ["predict", "RUN", "--data", "DIR/x.npz", "--out", "p.csv"],
            ["either --weights or --state", "neither"],
        ),
        (
            ["predict", "RUN", "--data", "DIR/x.npz", "--state", "DIR", "--out", "p"],
            ["p:", ".parquet"],
        ),
        (
            ["predict", "RUN", "--data", "DIR/x.npz", "--state", "DIR", "--out", "p.csv"],
            ["round 9 or earlier", "found none"],
        ),
        (["export", "RUN", "--weights", "DIR/weights.json", "--out", "m.pt"], [".pt2 or .onnx"]),
        (["serve", "RUN"], ["either --weights or --state"]),
        (["serve", "DIR/gone.onnx"], ["gone.onnx", "no such file"]),
        (["serve", "DIR/gone.onnx", "--hard"], ["weights built in"]),
        (
            ["serve", "RUN", "--weights", "DIR/weights.json", "--tls-cert", "DIR/mine.npz"],
            ["--tls-cert and --tls-key"],
        ),
        (
            ["serve", "RUN", "--weights", "DIR/weights.json", "--tls-cert", "DIR/mine.npz",
             "--tls-key", "DIR/mine.npz"],
            ["cannot be used"],
        ),
        (
            ["serve", "RUN", "--weights", "DIR/weights.json", "--host", "203.0.113.1", "--open"],
            ["cannot listen on 203.0.113.1:8001"],
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_with_a_reason(
    arguments: list[str], words: list[str], run: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    given = [a.replace("RUN", str(run)).replace("DIR", str(tmp_path)) for a in arguments]

    done = fedrc(*given)

    assert done.exit_code == MISUSED, done.output
    for word in ["fedrc: ", *words]:
        assert word in done.stderr
