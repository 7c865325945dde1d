"""``fedrc forgive`` and ``fedrc forget`` on the directory of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from settings_of import configured
from typer.testing import CliRunner

from fedrc_flwr.checkpoint import CHECKPOINTS, latest_checkpoint, rewrite_checkpoints
from fedrc_flwr.cli import app
from fedrc_flwr.config import load_config, recorded_config
from fedrc_flwr.engine import conduct
from fedrc_flwr.engine.directory import Claim
from fedrc_flwr.engine.in_process import run_in_process
from fedrc_flwr.report.log import METRICS, read_events
from fedrc_flwr.state import ServerState

SMALL = {"clients": 4, "samples_per_client": 40, "hidden": 8, "batch_size": 16, "rounds": 3}


def struck_run(directory: Path) -> Path:
    """A run with client-1 in quarantine, in all of its checkpoints."""
    run_in_process(configured(**SMALL).placed(directory), directory)

    def three_strikes(state: ServerState) -> ServerState:
        record = replace(state.clients["client-1"], strikes=3)
        return replace(state, clients={**state.clients, "client-1": record})

    assert rewrite_checkpoints(directory / CHECKPOINTS, three_strikes) == 3
    return directory


def states_of(directory: Path) -> list[ServerState]:
    found: list[ServerState] = []
    rewrite_checkpoints(directory / CHECKPOINTS, lambda state: found.append(state) or state)
    return found


def said(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, " ".join((result.output + (result.stderr or "")).split())


def continued(directory: Path) -> dict[str, object]:
    given = recorded_config(directory, {"rounds": 4})
    run_in_process(load_config(given), directory)
    return [e for e in read_events(directory / METRICS) if e["event"] == "round"][-1]


def test_forgiven_client_takes_part_again(tmp_path: Path) -> None:
    run = struck_run(tmp_path / "run")
    before = latest_checkpoint(run / CHECKPOINTS)[0].state

    code, words = said("forgive", run, "client-1")

    assert code == 0
    assert "client-1 has no strikes any more" in words
    after = latest_checkpoint(run / CHECKPOINTS)[0].state
    assert [conduct.quarantined(state) for state in states_of(run)] == [[], [], []]
    np.testing.assert_array_equal(after.models[0], before.models[0])
    assert continued(run)["replied"] == 4


def test_without_forgiveness_it_stays_out(tmp_path: Path) -> None:
    last = continued(struck_run(tmp_path / "run"))

    assert (last["replied"], last["quarantined"]) == (3, ["client-1"])


def test_forgotten_client_is_in_no_checkpoint(tmp_path: Path) -> None:
    run = struck_run(tmp_path / "run")

    code, words = said("forget", run, "client-2")

    assert code == 0
    assert "The models keep what they learnt from it" in words
    assert all("client-2" not in state.clients for state in states_of(run))
    assert all("client-3" in state.clients for state in states_of(run))
    for path in (run / CHECKPOINTS).iterdir():
        assert b"client-2" not in path.read_bytes()


@pytest.mark.parametrize("command", ["forgive", "forget"])
def test_refused_while_the_run_is_running(tmp_path: Path, command: str) -> None:
    run = struck_run(tmp_path / "run")
    claim = Claim(run)
    try:
        code, words = said(command, run, "client-1")
    finally:
        claim.give_up()

    assert code == 2
    assert "another run is writing to" in words
    assert conduct.quarantined(latest_checkpoint(run / CHECKPOINTS)[0].state) == ["client-1"]


def test_unknown_names_are_said(tmp_path: Path) -> None:
    run = struck_run(tmp_path / "run")

    assert said("forgive", run, "client-9")[0] == 2
    assert (
        "no client 'client-9'; there are client-0, client-1" in said("forget", run, "client-9")[1]
    )
    assert "holds no checkpoint" in said("forgive", tmp_path, "client-1")[1]
