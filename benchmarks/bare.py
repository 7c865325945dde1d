"""What the speed benchmarks measure against: a loop over clients that a researcher would write.

The floor does the arithmetic of one round and nothing else: for every client a forward pass of K
networks over its samples (E-step) and an epoch of SGD of each of the K (M-step), in PyTorch as it
comes: no federation, no messages, no averaging, no copies of models.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from federation import Federation

from fedrc_flwr.configuration import load_config
from fedrc_flwr.state import ClientState

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


def formed(settings: dict[str, Any]) -> Federation:
    """A federation on FashionMNIST whose clusters have formed, in this process.

    For a few rounds every client's mixture weight is on the cluster of its concept, which the
    E-step then leaves there. After that all weights are even again, and the clusters have to hold
    by themselves.
    """
    config = load_config(
        {"scenario": "fashion-mnist-30", "alpha": 10.0, "learning-rate": 0.1, **settings}
    )
    federation = Federation(config)
    clusters = federation.state.clusters
    for client in federation.clients:
        mine = np.eye(len(clusters))[client.truth.concept]
        federation.client_states[client.name] = ClientState(0, clusters, mine)
    for _ in range(FORMING):
        federation.round()
    for client in federation.clients:
        if client.role == "train":
            federation.client_states[client.name] = ClientState.start(clusters)
        else:
            del federation.client_states[client.name]
    return federation


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
