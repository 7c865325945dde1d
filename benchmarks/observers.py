"""What an observer's score owes to how its clusters are combined.

    python benchmarks/observers.py outputs/gains/runs/*/fedsoft/*

For runs of clustered algorithms that were made with a scenario: the observers of the last
checkpoint predict with the mixture of all clusters' models, and with the likeliest cluster's alone.
Nothing is trained.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from fedrc_flwr.checkpoint import CHECKPOINTS, latest_checkpoint
from fedrc_flwr.config import load_config, recorded_config
from fedrc_flwr.data.scenario import OBSERVE
from fedrc_flwr.engine.in_process import in_memory
from fedrc_flwr.training import log_probabilities, losses_of


def scores(directory: Path) -> tuple[float, float]:
    """Mean accuracy of a run's observers: of the mixture, and of the likeliest cluster."""
    rounds, carrier = in_memory(load_config(recorded_config(directory)))
    rounds.state = latest_checkpoint(directory / CHECKPOINTS)[0].state
    broadcast = rounds.broadcast(rounds.state.round)
    observers = [p for p in carrier.participants.values() if p.data.role == OBSERVE]
    soft, hard = [], []
    for observer in observers:
        client = observer.runtime(rounds.state.round)
        bank, algorithm = observer.bank, observer.algorithm
        bank.load(broadcast.models, broadcast.body)
        weights = weights_of(algorithm, broadcast, client)
        probabilities, labels = algorithm._predict(client, client.test, weights)
        soft.append(float((probabilities.argmax(1) == labels).double().mean()))
        likeliest = np.eye(len(weights))[weights.argmax()]
        probabilities, labels = algorithm._predict(client, client.test, likeliest)
        hard.append(float((probabilities.argmax(1) == labels).double().mean()))
    return float(np.mean(soft)), float(np.mean(hard))


def weights_of(algorithm: Any, broadcast: Any, client: Any) -> Any:
    """The mixture weights that an observer finds on its labelled part."""
    inputs, labels = client.tensors(client.fit)
    losses = losses_of(log_probabilities(client.bank, inputs, len(broadcast.models)), labels)
    return algorithm.assigned_weights(losses, client.fit.labels, broadcast)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    arguments = parser.parse_args()
    print("| run | mixture of all clusters | likeliest cluster alone |")
    print("|---|---|---|")
    for run in arguments.runs:
        soft, hard = scores(run)
        print(f"| {'/'.join(run.parts[-3:])} | {soft:.3f} | {hard:.3f} |")


if __name__ == "__main__":
    main()
