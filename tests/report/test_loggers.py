"""Loggers: what reaches them, and that none of them can hurt a run.

TensorBoard's files are read back by its own reader; MLflow and wandb are the real packages where
they are installed (the extras `mlflow` and `wandb`), writing to this machine only.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until

from fedrc_flwr.report import loggers as module
from fedrc_flwr.report.loggers import LOGGERS, Loggers, numbers

EVENT = {
    "event": "round", "round": 1, "clusters": [0, 4], "shares": [0.25, 0.75], "loss": 2.0,
    "local_accuracy": 0.5, "epsilon": None, "failed": {"a": "late"}, "merged": [], "elapsed": 3.0,
    "clients": {"a": {"accuracy": 1.0}},
}  # fmt: skip
NUMBERS = {
    "loss": 2.0, "local_accuracy": 0.5, "clusters": 2.0, "failed": 1.0,
    "share/cluster-0": 0.25, "share/cluster-4": 0.75,
}  # fmt: skip
CONFIG = {"scenario": "digits", "rounds": 3, "data.alpha": 1.0, "run.resume": False, "run.name": ""}
DONE = {"status": "completed", "rounds": 2, "clusters": 2, "epsilon": None}


class Recorder:
    """Keeps what it is told; may raise or hang."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.broken_in = ""
        self.gate = threading.Event()
        self.gate.set()

    def _note(self, kind: str, *more: Any) -> None:
        self.gate.wait()
        if self.broken_in == kind:
            raise ZeroDivisionError("broken")
        self.told.append((kind, *more))

    def start(self, config: Mapping[str, Any], directory: Path, first_round: int) -> None:
        self._note("start", dict(config), directory, first_round)

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        self._note("round", number, dict(metrics))

    def end(self, summary: Mapping[str, Any]) -> None:
        self._note("end", dict(summary))


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> dict[str, Recorder]:
    made = {"tensorboard": Recorder(), "mlflow": Recorder()}
    for name, recorder in made.items():
        monkeypatch.setitem(LOGGERS, name, lambda recorder=recorder: recorder)
    return made


def logged(names: list[str], directory: Path, warnings: list[str]) -> None:
    loggers = Loggers(names, warnings.append)
    loggers.start(CONFIG, directory, 1)
    loggers.round(EVENT)
    loggers.round({**EVENT, "round": 2, "loss": 1.0})
    loggers.end(DONE)


def test_numbers_of_a_round() -> None:
    assert numbers(EVENT) == NUMBERS


def test_all_loggers_are_told_everything_in_order(
    recorders: dict[str, Recorder], tmp_path: Path
) -> None:
    warnings: list[str] = []

    logged(["tensorboard", "mlflow"], tmp_path, warnings)

    expected = [
        ("start", CONFIG, tmp_path, 1),
        ("round", 1, NUMBERS),
        ("round", 2, {**NUMBERS, "loss": 1.0}),
        ("end", DONE),
    ]
    assert [recorder.told for recorder in recorders.values()] == [expected, expected]
    assert warnings == []


@pytest.mark.parametrize("kind", ["start", "round", "end"])
def test_logger_that_fails_is_warned_of_once_and_left_out(
    recorders: dict[str, Recorder], tmp_path: Path, kind: str
) -> None:
    recorders["tensorboard"].broken_in = kind
    warnings: list[str] = []

    logged(["tensorboard", "mlflow"], tmp_path, warnings)

    assert len(recorders["mlflow"].told) == 4
    assert len(warnings) == 1
    assert "logger tensorboard failed and is left out (ZeroDivisionError: broken)" in warnings[0]


def test_logger_that_hangs_does_not_keep_the_run(
    recorders: dict[str, Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.05)
    recorders["mlflow"].gate.clear()
    warnings: list[str] = []

    logged(["mlflow"], tmp_path, warnings)

    assert recorders["mlflow"].told == []
    assert len(warnings) == 1
    assert "did not end" in warnings[0]
    recorders["mlflow"].gate.set()


def test_package_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    warnings: list[str] = []

    logged(["wandb"], tmp_path, warnings)

    assert len(warnings) == 1
    assert "pip install 'fedrc-flwr[wandb]'" in warnings[0]


def test_without_loggers_no_thread_is_started(tmp_path: Path) -> None:
    before = threading.active_count()

    logged([], tmp_path, [])

    assert threading.active_count() == before


# --- the real ones ------------------------------------------------------------------------------


def test_tensorboard_files_read_back_and_a_repeated_round_counts_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    warnings: list[str] = []
    logged(["tensorboard"], tmp_path, warnings)
    again = Loggers(["tensorboard"], warnings.append)  # resumed after round 1
    again.start(CONFIG, tmp_path, 2)
    again.round({**EVENT, "round": 2, "loss": 0.5})
    again.end(DONE)

    assert warnings == []
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in found.Scalars("loss")] == [(1, 2.0), (2, 0.5)]
    assert [e.value for e in found.Scalars("share/cluster-4")] == [0.75, 0.75]
    assert "scenario = digits" in str(found.Tensors("config/text_summary")[0])


def test_mlflow_holds_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    (tmp_path / "run").mkdir()
    warnings: list[str] = []

    logged(["mlflow"], tmp_path / "run", warnings)
    again = Loggers(["mlflow"], warnings.append)
    again.start(CONFIG, tmp_path / "run", 3)
    again.round({**EVENT, "round": 3, "loss": 0.5})
    again.end({"status": "failed"})

    assert warnings == []
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("fedrc")
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(m.step, m.value) for m in history] == [(1, 2.0), (2, 1.0), (3, 0.5)]
    assert run.data.params["scenario"] == "digits"
    assert run.info.status == "FAILED"


def test_wandb_offline_run_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 120.0)
    warnings: list[str] = []

    logged(["wandb"], tmp_path, warnings)

    assert warnings == []
    (written,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    # wandb's own process writes the file, a moment after it was told.
    wait_until(lambda: b"share/cluster-4" in written.read_bytes(), "wandb's file", 120)
    assert (tmp_path / "wandb.id").read_text().encode() in written.read_bytes()
