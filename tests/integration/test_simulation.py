"""`fedrc simulate` on real processes: Flower's SuperLink, its simulation engine, Ray's actors."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from fedrc_flwr.checkpoint import Checkpoint, latest_checkpoint
from fedrc_flwr.report.log import read_events

ROOT = Path(__file__).resolve().parents[2]
FEDRC = [str(Path(sys.executable).parent / "fedrc"), "simulate"]
SMALL = ["clients=6", "hidden=16", "local-epochs=1", "clusters=3", "annealing-rounds=0"]


def command(output: Path, *settings: str) -> list[str]:
    flags = [part for setting in settings for part in ("--set", setting)]
    return [*FEDRC, "--output", str(output), *flags]


def fedrc(arguments: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, capture_output=True, text=True, timeout=400, check=False, **options
    )


def marked(mark: str) -> list[psutil.Process]:
    """The living processes that inherited a mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get("FEDRC_TEST_MARK") == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


def rounds(output: Path) -> list[dict[str, Any]]:
    return [e for e in read_events(output / "metrics.jsonl") if e["event"] == "round"]


def last_checkpoint(output: Path) -> Checkpoint:
    return latest_checkpoint(output / "checkpoints")[0]


def wait_for(condition: Any, process: subprocess.Popen[str]) -> None:
    ends = time.monotonic() + 240
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.02)


def test_a_run_completes_says_so_and_leaves_no_process_behind(tmp_path: Path) -> None:
    output, mark = tmp_path / "run", uuid.uuid4().hex

    done = fedrc(
        command(output, *SMALL, "rounds=2", "evaluate-every=2"),
        env={**os.environ, "FEDRC_TEST_MARK": mark},
    )

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("round 1/2  3 clusters [")
    assert "global" in lines[1]
    assert str(output) in lines[-1]
    summary = json.loads((output / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["rounds"] == 2
    assert marked(mark) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_being_stopped_stops_everything_and_says_how_to_go_on(
    number: signal.Signals, tmp_path: Path
) -> None:
    output, mark = tmp_path / "run", uuid.uuid4().hex
    process = subprocess.Popen(
        command(output, *SMALL, "rounds=1000"),
        env={**os.environ, "FEDRC_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: len(rounds(output)) >= 2, process)

    process.send_signal(number)
    _, errors = process.communicate(timeout=120)

    assert process.returncode == 1
    assert "stopped by the user" in errors
    assert "--resume" in errors
    assert json.loads((output / "summary.json").read_text())["status"] == "stopped"
    assert marked(mark) == []


def test_a_server_app_killed_in_mid_round_resumes_to_the_same_models(tmp_path: Path) -> None:
    settings = [
        "clients=6", "hidden=16", "clusters=4", "rounds=8", "fraction=0.7", "e-step=adam",
        "adaptive=true", "merge=true", "annealing-rounds=0", "settle-tolerance=1.0",
        "settle-rounds=2", "remove-below=0.2", "evaluate-every=4", "local-epochs=20",
    ]  # fmt: skip
    whole, broken, mark = tmp_path / "whole", tmp_path / "broken", uuid.uuid4().hex
    done = fedrc(command(whole, *settings))
    assert done.returncode == 0, done.stderr
    process = subprocess.Popen(
        command(broken, *settings),
        env={**os.environ, "FEDRC_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def round_four_is_under_way() -> bool:
        finished = any((broken / "clients").rglob("round-000004.safetensors"))
        return finished and len(rounds(broken)) == 3

    wait_for(round_four_is_under_way, process)
    servers = [p for p in marked(mark) if "flwr-simulation" in " ".join(p.cmdline())]
    assert len(servers) == 1
    servers[0].kill()
    _, errors = process.communicate(timeout=200)

    assert process.returncode == 1
    assert "did not complete" in errors
    assert len(rounds(broken)) == 3
    assert marked(mark) == []

    resumed = fedrc([*FEDRC, "--output", str(broken), "--resume"])

    assert resumed.returncode == 0, resumed.stderr
    assert [e["round"] for e in rounds(broken)] == list(range(1, 9))
    expected, got = last_checkpoint(whole).state, last_checkpoint(broken).state
    assert expected.round == got.round == 8
    assert len(expected.clusters) < 4, "a cluster must have gone for this to show anything"
    assert got.clusters == expected.clusters
    for cluster, model in expected.models.items():
        np.testing.assert_allclose(got.models[cluster], model, atol=1e-5)


FAULTY_CLIENT = """
import time

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp

from client_app import app as honest

app = ClientApp()
app.query("enrol")(honest.enrol)
app.evaluate()(honest.evaluate)


@app.train()
def train(message, context):
    who = context.node_config["partition-id"]
    first_round = message.content["broadcast"]["round"] == 1
    if who == 0:
        raise ValueError("disk on fire")
    if who == 4:
        if first_round:
            time.sleep(25)  # far beyond the deadline
        raise TimeoutError("still not well")
    reply = honest.train(message, context)
    if who == 3:
        reply.content["reply"] = ConfigRecord({**reply.content["reply"], "schema": 99})
    if who in (1, 2):
        name, array = next(iter(reply.content["deltas"].items()))
        values = array.numpy().copy()
        values = values[:-1] if who == 2 else np.full_like(values, np.nan)
        reply.content["deltas"] = ArrayRecord({**reply.content["deltas"], name: Array(values)})
    return reply
"""


@pytest.fixture
def faulty_app(tmp_path: Path) -> Path:
    """This app, with a client half that misbehaves on five of ten clients."""
    app = tmp_path / "app"
    app.mkdir()
    for package in ("fedrc_flwr", "server_app", "client_app"):
        shutil.copytree(ROOT / package, app / package)
    (app / "faulty").mkdir()
    (app / "faulty" / "__init__.py").write_text("")
    (app / "faulty" / "app.py").write_text(FAULTY_CLIENT)
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, app / name)
    project = (ROOT / "pyproject.toml").read_text()
    lines = [line for line in project.splitlines() if not line.startswith("fab-exclude")]
    changed = "\n".join(lines).replace('"client_app.app:app"', '"faulty.app:app"')
    (app / "pyproject.toml").write_text(changed)
    return app


def test_five_kinds_of_bad_client_do_not_stop_a_simulation(
    faulty_app: Path, tmp_path: Path
) -> None:
    from fedrc_flwr.simulation import simulate

    output = tmp_path / "run"
    settings = {
        "clients": 10, "hidden": 16, "local-epochs": 1, "clusters": 3, "annealing-rounds": 0,
        "rounds": 3, "round-deadline": 12.0, "evaluate-every": 3,
    }  # fmt: skip

    outcome = simulate(settings, output, lambda event: None, app=faulty_app)

    assert outcome.completed, outcome.reason
    first = rounds(output)[0]["failed"]
    assert set(first) == {f"client-{i}" for i in range(5)}
    assert "disk on fire" in first["client-0"]
    assert "NaN" in first["client-1"]
    assert "shape" in first["client-2"]
    assert "schema version 99" in first["client-3"]
    assert first["client-4"] == "no reply before the deadline"
    assert all(e["replied"] == 5 for e in rounds(output))
    state = last_checkpoint(output).state
    assert all(np.isfinite(model).all() for model in state.models.values())
    assert set(state.reported()) == {f"client-{i}" for i in range(5, 10)}
    assert "client-3: reply not used" in (output / "run.log").read_text()


def test_a_run_that_fails_exits_with_an_error_and_the_reason(
    faulty_app: Path, tmp_path: Path
) -> None:
    from fedrc_flwr.simulation import simulate

    output = tmp_path / "run"
    settings = {
        "clients": 10, "hidden": 16, "local-epochs": 1, "clusters": 3, "annealing-rounds": 0,
        "rounds": 3, "round-deadline": 12.0, "min-replies": 0.9, "failed-rounds": 1,
    }  # fmt: skip

    outcome = simulate(settings, output, lambda event: None, app=faulty_app)

    assert not outcome.completed
    assert "round 1 had too few good replies" in outcome.reason
    assert "superlink.log" in outcome.reason
    assert json.loads((output / "summary.json").read_text())["status"] == "failed"
