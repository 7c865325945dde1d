"""The library's client half against the bare loop, before and after the clusters have formed.

    python benchmarks/core.py --run RUN

RUN is the directory of a finished run on FashionMNIST with the `cnn`, such as one of those that
benchmarks/skipping.py leaves: its scenario gives the clients, its last checkpoint the formed state.
Floor and core take turns on the same clients; a figure is the median of the repeats' ratios.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from bare import floor_round, machine, plain_cnn, write_section
from federation import Federation

from client_app.node import _folder_name
from fedrc_flwr.algorithms.base import Broadcast
from fedrc_flwr.checkpoint import CHECKPOINTS, latest_checkpoint, load_client_state
from fedrc_flwr.configuration import load_config
from fedrc_flwr.models import SplitModel
from fedrc_flwr.report.log import CONFIG, read_json
from fedrc_flwr.state import ClientState


def split_plain_cnn(input_shape: tuple[int, ...], classes: int) -> SplitModel:
    """The floor's network for the library."""
    *body, head = plain_cnn(classes)
    return SplitModel(torch.nn.Sequential(*body), head)


class Core:
    """The client half over a few clients, from the first round or from a run's last."""

    def __init__(self, settings: dict[str, Any], run: Path | None, clients: int) -> None:
        federation = Federation(load_config(settings))
        self.clients = [c for c in federation.clients if c.role == "train"][:clients]
        state = federation.state
        self.states = {c.name: ClientState.start(state.clusters) for c in self.clients}
        if run is not None:
            state = latest_checkpoint(run / CHECKPOINTS)[0].state
            for client in self.clients:
                kept = load_client_state(run / "clients" / run.name / _folder_name(client.name),
                                         state.round + 1)  # fmt: skip
                if kept is None:
                    raise SystemExit(f"{run} has no state of {client.name}")
                self.states[client.name] = kept
        self.federation = federation
        self.broadcast: Broadcast = federation.algorithm.broadcast(state, state.round + 1, 10)
        self.sent = 0

    def __call__(self) -> None:
        """One round of the client half, nothing sent."""
        self.sent = 0
        for client in self.clients:
            runtime = self.federation.runtime(client, self.broadcast.round)
            reply, _ = self.federation.algorithm.train(
                self.broadcast, self.states[client.name], runtime
            )
            self.sent += len(reply.deltas)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="1 is what a simulated client has")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    config = read_json(arguments.run / CONFIG)
    dense = {**config, "skip-below": 0.0, "skip-cluster-below": 0.0}
    plain = {**dense, "model": "core:split_plain_cnn"}
    count = arguments.clients
    parts: dict[str, Callable[[], None]] = {}
    core = Core(config, None, count)
    samples = [core.federation.runtime(c, 1).tensors(c.fit) for c in core.clients]
    bare = [plain_cnn() for _ in range(core.federation.config.clusters)]
    settings = core.federation.config
    parts["floor"] = lambda: floor_round(
        bare, samples, settings.batch_size, settings.learning_rate, settings.momentum
    )
    parts["core, first round"] = core
    without = Core(config, None, count)
    without.federation.algorithm.trains_scored = False  # type: ignore[misc]
    parts["... without reusing the E-step's pass"] = without
    parts["... nor the network's order and formats"] = other = Core(plain, None, count)
    other.federation.algorithm.trains_scored = False  # type: ignore[misc]
    parts["core, clusters formed"] = formed = Core(config, arguments.run, count)
    parts["... without skipping"] = Core(dense, arguments.run, count)
    times: dict[str, list[float]] = {name: [] for name in parts}
    for number in range(arguments.repeats + 1):
        for name, part in parts.items():
            started = time.perf_counter()
            part()
            if number:  # the first one warms up
                times[name].append(time.perf_counter() - started)
        print(f"repeat {number} of {arguments.repeats} done", file=sys.stderr, flush=True)
    lines = [
        f"{machine()}; {count} clients of {len(samples[0][1])} samples, "
        f"{arguments.threads} thread(s), {arguments.repeats} repeats",
        "",
        "| | of the floor's time | least | most | seconds a client |",
        "|---|---|---|---|---|",
    ]
    for name, seconds in times.items():
        ratios = [s / f for s, f in zip(seconds, times["floor"], strict=True)]
        lines.append(
            f"| {name} | {median(ratios):.2f} | {min(ratios):.2f} | {max(ratios):.2f} "
            f"| {median(seconds) / count:.2f} |"
        )
    lines += ["", f"Networks sent by a client once formed: {formed.sent / count:.2f}"]
    write_section(f"core, {arguments.threads} thread(s)", lines)


if __name__ == "__main__":
    main()
