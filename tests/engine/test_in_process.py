"""A whole federation in one process: what it writes, how it ends, and how it continues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from settings_of import configured

from fedrc_flwr.checkpoint import CHECKPOINTS, latest_checkpoint
from fedrc_flwr.config import RunConfig, load_config, recorded_config
from fedrc_flwr.engine import in_process
from fedrc_flwr.engine.client import Participant
from fedrc_flwr.engine.in_process import in_memory, run_in_process
from fedrc_flwr.errors import ConfigError, RunError
from fedrc_flwr.report.log import METRICS, SUMMARY, read_events, read_json, together
from fedrc_flwr.simulation import IN_PROCESS, run_here
from fedrc_flwr.state import ServerState

SMALL: dict[str, Any] = {
    "clients": 4, "samples_per_client": 40, "hidden": 8, "batch_size": 16, "rounds": 4,
    "fraction": 0.75, "evaluate_every": 2, "seed": 3,
}  # fmt: skip


def small(directory: Path, **keys: Any) -> RunConfig:
    return configured(**{**SMALL, **keys}).placed(directory)


def rounds_of(directory: Path) -> list[dict[str, Any]]:
    return [e for e in read_events(directory / METRICS) if e["event"] == "round"]


def state_of(directory: Path) -> ServerState:
    return latest_checkpoint(directory / CHECKPOINTS)[0].state


def assert_same_models(one: ServerState, other: ServerState) -> None:
    assert (one.round, one.clusters) == (other.round, other.clusters)
    for cluster, vector in other.models.items():
        np.testing.assert_allclose(one.models[cluster], vector, atol=1e-6)
    for name, record in other.clients.items():
        counts = one.clients[name].label_counts
        assert (counts is None) == (record.label_counts is None)
        if counts is not None and record.label_counts is not None:
            np.testing.assert_allclose(counts, record.label_counts, atol=1e-4)


# --- to the end ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("pictures")
def test_a_run_writes_all_its_results_and_passes_its_rounds_on(tmp_path: Path) -> None:
    directory, events = tmp_path / "run", []
    config = small(directory)

    summary = run_in_process(config, directory, events.append)

    assert summary["status"] == "completed"
    assert summary == read_json(directory / SUMMARY)
    assert together(events) == rounds_of(directory)
    events = together(events)
    assert [event["round"] for event in events] == [1, 2, 3, 4]
    assert all(e["replied"] == e["sampled"] == 3 and not e["failed"] for e in events)
    assert all(event["bytes_down"] > 0 and event["bytes_up"] > 0 for event in events)
    # Evaluated after every other round, on clients and observers
    assert ["global_accuracy" in event for event in events] == [False, True, False, True]
    assert json.loads((directory / "config.json").read_text()) == config.to_dict()
    assert state_of(directory).round == 4
    assert (directory / "mixture_weights.png").stat().st_size > 5_000
    assert "completed after 4 rounds" in (directory / "run.log").read_text()
    clients = {path.parent.name for path in (directory / "clients").rglob("*.safetensors")}
    assert clients == {f"client-{index}" for index in range(4)}


def test_stepped_by_hand_a_federation_learns_the_same_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_in_process(small(tmp_path / "run"), tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    metrics: list[dict[str, Any]] = []

    rounds, carrier = in_memory(configured(**SMALL))
    evaluated: list[dict[str, Any]] = []
    rounds.run(
        carrier, 4, 2, lambda state, told: metrics.append(told),
        lambda state, told: evaluated.append(told),
    )  # fmt: skip

    assert_same_models(rounds.state, state_of(tmp_path / "run"))
    events = rounds_of(tmp_path / "run")
    assert [told["loss"] for told in metrics] == [e["loss"] for e in events]
    accuracies = {e["round"]: e["local_accuracy"] for e in events if "local_accuracy" in e}
    assert {told["round"]: told["local_accuracy"] for told in evaluated} == accuracies
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_half_precision_halves_the_bytes_and_changes_the_models_a_little(tmp_path: Path) -> None:
    directories = [tmp_path / transport for transport in ("float32", "float16")]
    for directory in directories:
        config = small(directory, transport=directory.name, rounds=1)
        run_in_process(config, directory)

    exact, half = (rounds_of(directory)[0] for directory in directories)
    for way in ("bytes_down", "bytes_up"):
        assert 0.45 * exact[way] < half[way] < 0.65 * exact[way]
    models = [state_of(directory).models for directory in directories]
    for cluster, vector in models[0].items():
        difference = np.abs(models[1][cluster] - vector).max()
        assert 0 < difference < 0.01 * np.abs(vector).max()


def test_a_directory_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    run_in_process(small(tmp_path / "run", rounds=1), tmp_path / "run")

    with pytest.raises(ConfigError, match="holds a run already"):
        run_in_process(small(tmp_path / "run", rounds=1), tmp_path / "run")


# --- interrupted --------------------------------------------------------------------------------


def interrupt(patch: pytest.MonkeyPatch, round_number: int) -> None:
    """Ctrl-C while the last of a round's clients trains, when the others have saved their state."""
    real, trained = Participant.train, []

    def train(self: Participant, broadcast: Any, received: float) -> Any:
        if broadcast.round == round_number:
            trained.append(self.data.name)
            if len(trained) == 3:
                raise KeyboardInterrupt
        return real(self, broadcast, received)

    patch.setattr(Participant, "train", train)


EVERYTHING = {
    "clusters": 3, "e_step": "adam", "adaptive": True, "merge": True, "remove_below": 0.3,
    "settle_tolerance": 1.0, "settle_loss": 100.0, "settle_rounds": 1, "optimizer": "adam",
    "server.learning-rate": 0.05,
}  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [EVERYTHING, {"algorithm": "local-only"}, {"algorithm": "apfl"}],
    ids=["fedrc", "local-only", "apfl"],
)
def test_an_interrupted_run_continues_to_the_models_of_an_unbroken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    # Prepare
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_in_process(small(whole, **settings), whole)
    with monkeypatch.context() as patch:
        interrupt(patch, round_number=3)
        with pytest.raises(KeyboardInterrupt):
            run_in_process(small(broken, **settings), broken)
    assert state_of(broken).round == 2
    assert len(list((broken / "clients").rglob("round-000003.safetensors"))) == 2

    # Execute
    summary = run_in_process(load_config(recorded_config(broken)), broken)

    # Assert
    assert summary["status"] == "completed"
    assert [event["round"] for event in rounds_of(broken)] == [1, 2, 3, 4]
    assert not any(event["started_afresh"] for event in rounds_of(broken)[2:])
    assert_same_models(state_of(broken), state_of(whole))
    scores = [rounds_of(directory)[-1]["clients"] for directory in (whole, broken)]
    assert scores[0].keys() == scores[1].keys()
    assert all(scores[1][name] == pytest.approx(metrics) for name, metrics in scores[0].items())
    if settings is EVERYTHING:
        assert len(state_of(whole).clusters) < 3, "a cluster must have gone for this to show much"


def test_an_interrupt_leaves_a_summary_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run"
    interrupt(monkeypatch, round_number=3)

    outcome = run_here(configured(**SMALL), directory, lambda event: None, IN_PROCESS)

    assert not outcome.completed
    assert outcome.reason == "stopped by the user"
    summary = read_json(directory / SUMMARY)
    assert (summary["status"], summary["reason"]) == ("stopped", "stopped by the user")
    assert summary["rounds"] == 2
    assert read_events(directory / METRICS)[-1]["status"] == "stopped"
    assert "stopped after 2 rounds" in (directory / "run.log").read_text()


def test_statistics_of_a_round_that_was_cut_off_still_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run"
    noisy = {"count_noise": 5.0, "fraction": 1.0}
    with monkeypatch.context() as patch:
        interrupt(patch, round_number=3)
        with pytest.raises(KeyboardInterrupt):
            run_in_process(small(directory, **noisy), directory)

    run_in_process(load_config(recorded_config(directory)), directory)

    records = state_of(directory).clients
    releases = {name: r.releases for name, r in records.items() if r.role == "train"}
    assert releases == {"client-0": 5, "client-1": 5, "client-2": 4, "client-3": 4}


def test_a_run_goes_back_to_an_earlier_round(tmp_path: Path) -> None:
    # Prepare: rounds three and four spoilt by another learning rate
    whole, again = tmp_path / "whole", tmp_path / "again"
    run_in_process(small(whole), whole)
    run_in_process(small(again, rounds=2), again)
    run_in_process(small(again, **{"local.learning-rate": 0.5}).resumed(), again)
    spoilt = state_of(again)

    # Execute
    run_in_process(small(again).resumed(after_round=2), again)

    # Assert
    assert_same_models(state_of(again), state_of(whole))
    assert any(np.abs(spoilt.models[c] - v).max() > 0.01 for c, v in state_of(whole).models.items())
    assert [event["round"] for event in rounds_of(again)] == [1, 2, 3, 4]


# --- clients that fail --------------------------------------------------------------------------


def test_a_client_that_diverges_is_left_out_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Prepare: a client whose samples are beyond all measure
    directory = tmp_path / "run"
    real = in_process.participants

    def participants(*arguments: Any) -> Iterator[Participant]:
        for each in real(*arguments):
            fit = each.data.fit
            if each.data.name == "client-1":
                fit = replace(fit, inputs=np.full_like(fit.inputs, 1e38))
            yield replace(each, data=replace(each.data, fit=fit))

    everybody = {"fraction": 1.0}
    rounds, carrier = in_memory(configured(**{**SMALL, **everybody}))
    del carrier.participants["client-1"]
    monkeypatch.setattr(in_process, "participants", participants)

    # Execute
    summary = run_in_process(small(directory, **everybody), directory)
    rounds.run(carrier, 4, 2, lambda state, told: None)

    # Assert: the models are those of the others
    assert summary["status"] == "completed"
    for event in rounds_of(directory):
        assert (event["sampled"], event["replied"]) == (4, 3)
        assert list(event["failed"]) == ["client-1"]
        assert "DivergedError" in event["failed"]["client-1"]
    assert_same_models(state_of(directory), rounds.state)
    assert state_of(directory).clients["client-1"].label_counts is None
    assert not (directory / "clients" / "run" / "client-1").exists()
    assert "client-1: reply not used: DivergedError" in (directory / "run.log").read_text()


def test_a_run_all_of_whose_clients_diverge_fails_and_says_why(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    config = small(directory, **{"local.learning-rate": 1e30, "attempts": 2})

    with pytest.raises(RunError, match="round 1 had too few usable replies 2 times"):
        run_in_process(config, directory)

    summary = read_json(directory / SUMMARY)
    assert (summary["status"], summary["rounds"]) == ("failed", 0)
    assert "lower local.learning-rate" in summary["reason"]


def test_a_fault_of_the_program_ends_the_run_with_a_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run"
    monkeypatch.setattr(Participant, "train", lambda *_: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        run_in_process(small(directory), directory)

    summary = read_json(directory / SUMMARY)
    assert summary["status"] == "failed"
    assert summary["reason"] == "ZeroDivisionError: division by zero"


def test_run_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    config = small(directory, device="cuda:99")

    with pytest.raises(ConfigError, match="cuda:99"):
        run_in_process(config, directory)

    assert not directory.exists()
