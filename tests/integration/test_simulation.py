"""`fedrc simulate` on real processes: Flower's SuperLink, its simulation engine, Ray's actors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apps import misbehaving_app
from processes import FEDRC as PROGRAM
from processes import marked, wait_until
from settings_of import configured

from fedrc_flwr.checkpoint import Checkpoint, latest_checkpoint
from fedrc_flwr.config import load_config
from fedrc_flwr.report.log import read_events
from fedrc_flwr.simulation import IN_PROCESS, run_here, simulate

FEDRC = [PROGRAM, "simulate"]
SMALL = ["recipe=paper", "data.clients=6", "model.hidden=16"]


def command(output: Path, *settings: str) -> list[str]:
    flags = [part for setting in settings for part in ("--set", setting)]
    return [*FEDRC, "--output", str(output), "--cpus", "1", *flags]


def fedrc(arguments: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, capture_output=True, text=True, timeout=400, check=False, **options
    )


def rounds(output: Path) -> list[dict[str, Any]]:
    return [e for e in read_events(output / "metrics.jsonl") if e["event"] == "round"]


def last_checkpoint(output: Path) -> Checkpoint:
    return latest_checkpoint(output / "checkpoints")[0]


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    wait_until(lambda: condition() or process.poll() is not None, "the run to get there", 240)
    assert process.poll() is None, process.communicate()


def test_a_run_completes_says_so_and_leaves_no_process_behind(tmp_path: Path) -> None:
    output, mark = tmp_path / "run", uuid.uuid4().hex

    done = fedrc(
        command(output, *SMALL, "rounds=2", "run.evaluate-every=2"),
        env={**os.environ, "FEDRC_TEST_MARK": mark},
    )

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("fedrc on digits: 6 clients and 3 observers")
    assert lines[2].startswith("round 1/2  3 clusters [")
    assert lines[3].startswith("round 2/2")
    assert "accuracy after round 2:" in lines[4]
    assert "global" in lines[4]
    assert str(output) in lines[-1]
    summary = json.loads((output / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["rounds"] == 2
    assert marked(mark) == []


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.deployment)]
)
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
        # Whoever runs the tests in the background ignores SIGINT, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    wait_for(lambda: len(rounds(output)) >= 2, process)

    process.send_signal(number)
    try:
        _, errors = process.communicate(timeout=120)
    finally:
        left = marked(mark)
        for one in left:
            one.kill()

    assert process.returncode == 130
    assert "stopped by the user" in errors
    assert "--resume" in errors
    assert json.loads((output / "summary.json").read_text())["status"] == "stopped"
    assert left == []


@pytest.mark.deployment  # with the other long trials of `make test-deployment`
def test_a_server_app_killed_in_mid_round_resumes_to_the_same_models(tmp_path: Path) -> None:
    settings = [
        *SMALL, "rounds=6", "federation.fraction=0.7", "run.evaluate-every=4", "local.epochs=8",
        "fedrc.clusters=4", "fedrc.e-step=adam", "fedrc.adaptive=true", "fedrc.merge=true",
        "fedrc.settle-tolerance=1.0", "fedrc.settle-loss=100.0", "fedrc.settle-rounds=2",
        "fedrc.remove-below=0.2",
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
    assert [e["round"] for e in rounds(broken)] == list(range(1, 7))
    expected, got = last_checkpoint(whole).state, last_checkpoint(broken).state
    assert expected.round == got.round == 6
    assert len(expected.clusters) < 4, "a cluster must have gone for this to show anything"
    assert got.clusters == expected.clusters
    for cluster, model in expected.models.items():
        np.testing.assert_allclose(got.models[cluster], model, atol=1e-5)


FIVE_FAULTS = """
    if who == 0:
        raise ValueError("disk on fire")
    if who == 4:
        if round_number == 1:
            time.sleep(25)  # far beyond the deadline
        raise TimeoutError("still not well")
    reply = honest.train(message, context)
    if who == 3:
        reply.content["reply"] = ConfigRecord({**reply.content["reply"], "schema": 99})
    if who in (1, 2):
        parcel = opened(reply.content, "reply")
        name = next(name for name in parcel.arrays if name.startswith("cluster-"))
        values = parcel.arrays[name]
        parcel.arrays[name] = values[:-1] if who == 2 else np.full_like(values, np.nan)
        reply.content.clear()
        reply.content.update(closed("reply", parcel))
    return reply
"""

ONE_FAULT = """
    if who == 0:
        raise ValueError("disk on fire")
    return honest.train(message, context)
"""

# A tenth of the replies, drawn anew for every client and round.
RANDOM_FAULTS = """
    if np.random.default_rng([round_number, who]).random() < 0.1:
        raise ConnectionError("a bad day")
    return honest.train(message, context)
"""


@pytest.mark.deployment  # with the other long trials of `make test-deployment`
def test_five_kinds_of_bad_client_do_not_stop_a_simulation(tmp_path: Path) -> None:
    app = misbehaving_app(tmp_path, FIVE_FAULTS)
    output = tmp_path / "run"
    config = configured(clients=10, hidden=16, rounds=3, deadline=12.0, evaluate_every=3)

    outcome = simulate(config, output, lambda event: None, app=app)

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


def test_a_run_that_fails_exits_with_an_error_and_the_reason(tmp_path: Path) -> None:
    app = misbehaving_app(tmp_path, ONE_FAULT)
    output = tmp_path / "run"
    config = configured(clients=6, hidden=16, rounds=3, min_replies=0.9, attempts=1)

    outcome = simulate(config, output, lambda event: None, app=app, cpus=1)

    assert not outcome.completed
    assert "round 1 had too few usable replies" in outcome.reason
    assert "the last failures: client-0: " in outcome.reason
    assert "disk on fire" in outcome.reason
    assert "superlink.log" in outcome.reason
    assert json.loads((output / "summary.json").read_text())["status"] == "failed"


@pytest.mark.deployment  # with the other long trials of `make test-deployment`
def test_a_tenth_of_the_replies_failing_at_random_changes_no_cluster(tmp_path: Path) -> None:
    app = misbehaving_app(tmp_path, RANDOM_FAULTS)
    config = load_config({"rounds": 30, "run.evaluate-every": 30})
    calm, rough = tmp_path / "calm", tmp_path / "rough"

    undisturbed = run_here(config, calm, lambda event: None, IN_PROCESS)
    disturbed = simulate(config, rough, lambda event: None, app=app)

    assert undisturbed.completed, undisturbed.reason
    assert disturbed.completed, disturbed.reason
    assert [e["round"] for e in rounds(rough)] == list(range(1, 31))
    assert all(e["attempts"] == 1 for e in rounds(rough))
    failed = sum(len(e["failed"]) for e in rounds(rough))
    assert 15 <= failed <= 60, "about a tenth of 30 x 12"
    assert clusters_by_client(calm) == clusters_by_client(rough)


def clusters_by_client(output: Path) -> dict[str, int]:
    state = last_checkpoint(output).state
    weights = {name: record.mixture_weights() for name, record in state.reported().items()}
    return {name: int(w.argmax()) for name, w in weights.items() if w is not None}
