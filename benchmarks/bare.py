"""What the speed benchmarks measure against: a loop over clients that a researcher would write.

The floor does the arithmetic of one round and nothing else: for every client a forward pass of K
networks over its samples (E-step) and an epoch of SGD of each of the K (M-step), in PyTorch as it
comes: no federation, no messages, no averaging, no copies of models.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedrc_flwr.algorithms.messages import Reply
from fedrc_flwr.config import load_config
from fedrc_flwr.data.scenario import TRAIN
from fedrc_flwr.engine.in_process import InProcess, in_memory
from fedrc_flwr.engine.letters import updates
from fedrc_flwr.engine.rounds import Rounds
from fedrc_flwr.state import ClientState

#: The federation of the speed benchmarks, and how it learns.
FASHION: dict[str, Any] = {
    "scenario": "fashion-mnist-30", "recipe": "paper", "local.epochs": 1, "local.batch-size": 128,
    "local.learning-rate": 0.2, "server.optimizer": "momentum", "server.momentum": 0.9,
    "fedrc.clusters": 3, "fedrc.initial-spread": 0.001,
}  # fmt: skip
FORMING = 16  # rounds
README = Path(__file__).with_name("README.md")


def plain_cnn(classes: int = 10) -> nn.Module:
    """The network `cnn` as its description reads: convolution, rectifier, pooling, twice."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)),
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 2048),
        nn.ReLU(),
        nn.Linear(2048, classes),
    )


def floor_round(
    models: list[nn.Module],
    clients: list[tuple[Tensor, Tensor]],
    batch_size: int,
    learning_rate: float,
    momentum: float,
) -> None:
    """One round's arithmetic for all clients."""
    for inputs, labels in clients:
        with torch.no_grad():
            losses = torch.stack(
                [functional.cross_entropy(m(inputs), labels, reduction="none") for m in models], 1
            )
        weights = torch.softmax(-losses, dim=1)
        for k, model in enumerate(models):
            optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=momentum)
            for rows in torch.split(torch.randperm(len(labels)), batch_size):
                optimizer.zero_grad()
                batch = functional.cross_entropy(
                    model(inputs[rows]), labels[rows], reduction="none"
                )
                (weights[rows, k] * batch).mean().backward()
                optimizer.step()


def one_round(rounds: Rounds, carrier: InProcess) -> float:
    """A round of all training clients; returns how many networks a client sent, in the mean."""
    number, names = rounds.state.round + 1, carrier.online(TRAIN)
    sent = []

    def replies() -> Iterator[tuple[str, Reply]]:
        letters = rounds.letters(rounds.broadcast(number), names)
        for name, reply in updates(carrier.deliver(letters)):
            sent.append(len(reply.deltas))
            yield name, reply

    if rounds.fold(number, replies(), len(names)) is None:
        raise SystemExit(f"round {number} failed: {rounds.failed}")
    return mean(sent)


def formed(settings: dict[str, Any]) -> tuple[Rounds, InProcess]:
    """A federation on FashionMNIST whose clusters have formed, in this process.

    For a few rounds every client's mixture weight is on the cluster of its concept, which the
    E-step then leaves there. After that all weights are even again, and the clusters have to hold
    by themselves.
    """
    given = {**FASHION, "data.alpha": 10.0, "local.learning-rate": 0.1, **settings}
    rounds, carrier = in_memory(load_config(given))
    clusters = rounds.state.clusters
    clients = [carrier.participants[name] for name in carrier.online(TRAIN)]
    for client in clients:
        mine = np.eye(len(clusters))[client.data.truth.concept]
        client.states.save(ClientState(0, clusters, mine))
    for _ in range(FORMING):
        one_round(rounds, carrier)
    for client in clients:
        client.states.save(ClientState.start(clusters))  # of round 0: the later ones are dropped
    return rounds, carrier


def machine() -> str:
    """The machine in a line."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
    memory = int(Path("/proc/meminfo").read_text("utf-8").split()[1]) / 1024**2
    cores = len(os.sched_getaffinity(0))
    vectors = "AVX-512" if "avx512f" in Path("/proc/cpuinfo").read_text("utf-8") else "AVX2"
    return (
        f"{cores} cores of {model} ({vectors}), {memory:.0f} GiB, no GPU; Python "
        f"{platform.python_version()}, torch {torch.__version__.partition('+')[0]}"
    )


def write_section(name: str, lines: list[str]) -> None:
    """Print a benchmark's outcome and put it between its marks in benchmarks/README.md."""
    text = "\n".join(lines)
    print(text)
    opening, closing = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    page = README.read_text("utf-8")
    before, _, rest = page.partition(opening)
    _, _, after = rest.partition(closing)
    README.write_text(f"{before}{opening}{text}\n{closing}{after}", "utf-8")
