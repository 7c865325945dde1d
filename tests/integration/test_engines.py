"""The engine in process and Flower's simulation engine give the same models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedrc_flwr.algorithms import ALGORITHMS
from fedrc_flwr.checkpoint import CHECKPOINTS, latest_checkpoint
from fedrc_flwr.config import load_config, recorded_config
from fedrc_flwr.report.log import METRICS, read_events
from fedrc_flwr.simulation import FLOWER, IN_PROCESS, run_here
from fedrc_flwr.state import ServerState

pytestmark = pytest.mark.engines
SMALL = {
    "recipe": "paper", "scenario": "digits", "data.clients": 4, "data.samples-per-client": 40,
    "model.hidden": 8, "local.batch-size": 16, "federation.fraction": 0.75, "rounds": 2,
    "run.evaluate-every": 1, "seed": 3,
}  # fmt: skip
VARIANTS = {name: {"algorithm": name} for name in ALGORITHMS} | {
    "half precision": {"federation.transport": "float16"},
    "8 bits": {"federation.transport": "int8"},
    "default recipe": {"recipe": "default"},
    "local models shared": {"algorithm": "local-only", "local-only.share-models": True},
}


def run_and_resume(settings: dict[str, object], directory: Path, engine: str) -> ServerState:
    """Two rounds, and a third in another process or at least from what is on disk."""
    config = load_config(settings)
    assert run_here(config, directory, lambda event: None, engine).completed
    again = load_config({**recorded_config(directory), "rounds": 3})
    assert run_here(again, directory, lambda event: None, engine).completed
    return latest_checkpoint(directory / CHECKPOINTS)[0].state


@pytest.mark.parametrize("name", VARIANTS)
def test_both_engines_give_the_same_models(name: str, tmp_path: Path) -> None:
    settings = {**SMALL, **VARIANTS[name]}

    simulated = run_and_resume(settings, tmp_path / "flower", FLOWER)
    in_process = run_and_resume(settings, tmp_path / "in-process", IN_PROCESS)

    assert simulated.round == in_process.round == 3
    assert simulated.clusters == in_process.clusters
    for cluster, vector in simulated.models.items():
        np.testing.assert_allclose(in_process.models[cluster], vector, atol=1e-6)
    for client, record in simulated.clients.items():
        counts = in_process.clients[client].label_counts
        assert (counts is None) == (record.label_counts is None)
        if counts is not None and record.label_counts is not None:
            np.testing.assert_allclose(counts, record.label_counts, atol=1e-4)
    accuracies = [
        [event.get("local_accuracy") for event in read_events(tmp_path / folder / METRICS)
         if event["event"] == "round"]
        for folder in ("flower", "in-process")
    ]  # fmt: skip
    assert accuracies[0] == pytest.approx(accuracies[1], abs=1e-6)
