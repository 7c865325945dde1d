"""The library's client half against the bare loop, before and after the clusters have formed.

    python benchmarks/core.py

FashionMNIST, the `cnn`, K = 3, batches of 128, in the first round and with formed clusters (see
bare.formed). Floor and core take turns on one client after the other, in an order that is drawn
anew each time; a figure is the median of the repeats' ratios.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from bare import FASHION, floor_round, formed, machine, one_round, plain_cnn, write_section

from fedrc_flwr.config import load_config
from fedrc_flwr.data.scenario import TRAIN
from fedrc_flwr.engine.in_process import InProcess, in_memory
from fedrc_flwr.engine.rounds import Rounds
from fedrc_flwr.models import SplitModel


def split_plain_cnn(input_shape: tuple[int, ...], classes: int) -> SplitModel:
    """The floor's network for the library."""
    *body, head = plain_cnn(classes)
    return SplitModel(torch.nn.Sequential(*body), head)


class Core:
    """The client half over a few clients of a federation."""

    def __init__(self, rounds: Rounds, carrier: InProcess, clients: int) -> None:
        self.clients = [carrier.participants[name] for name in carrier.online(TRAIN)[:clients]]
        self.broadcast = rounds.broadcast(rounds.state.round + 1)
        self.sent = [0] * clients

    def __call__(self, number: int) -> None:
        """The client half of a round on one client, nothing sent."""
        reply, _ = self.clients[number].train(self.broadcast, time.time())
        self.sent[number] = len(reply.deltas)


def fresh(settings: dict[str, Any], reuse: bool = True) -> tuple[Rounds, InProcess]:
    """A federation before its first round."""
    rounds, carrier = in_memory(load_config({**FASHION, **settings}))
    for client in carrier.participants.values():
        client.algorithm.trains_scored = reuse  # type: ignore[misc]
    return rounds, carrier


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1, help="1 is what a simulated client has")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    count = arguments.clients
    local = load_config(FASHION).local
    core = Core(*fresh({}), count)
    samples = [client.runtime(1).tensors(client.data.fit) for client in core.clients]
    bare = [plain_cnn() for _ in core.broadcast.models]
    rounds, carrier = formed({"data.clients": 6})
    for _ in range(4):
        one_round(rounds, carrier)  # the weights find the clusters again
    after = Core(rounds, carrier, count)
    plain = Core(*fresh({"model.network": "core:split_plain_cnn"}, reuse=False), count)
    parts: dict[str, Callable[[int], None]] = {
        "floor": lambda number: floor_round(
            bare, [samples[number]], local.batch_size, local.learning_rate, local.momentum
        ),
        "core, first round": core,
        "... without reusing the E-step's pass": Core(*fresh({}, reuse=False), count),
        "... nor the network's order and memory formats": plain,
        "core, clusters formed": after,
    }
    times: dict[str, list[float]] = {name: [] for name in parts}
    for repeat in range(arguments.repeats + 1):
        seconds = dict.fromkeys(parts, 0.0)
        for number in range(count):
            for name in random.sample(list(parts), len(parts)):
                started = time.perf_counter()
                parts[name](number)
                seconds[name] += time.perf_counter() - started
        for name, taken in seconds.items():
            if repeat:  # the first one warms up
                times[name].append(taken)
        print(f"repeat {repeat} of {arguments.repeats} done", file=sys.stderr, flush=True)
    lines = [
        f"{machine()}; {count} clients of {len(samples[0][1])} samples, "
        f"{arguments.threads} thread(s), {arguments.repeats} repeats",
        "",
        "| | of the floor's time | least | most | seconds a client |",
        "|---|---|---|---|---|",
    ]
    for name, each in times.items():
        ratios = [s / f for s, f in zip(each, times["floor"], strict=True)]
        lines.append(
            f"| {name} | {median(ratios):.2f} | {min(ratios):.2f} | {max(ratios):.2f} "
            f"| {median(each) / count:.2f} |"
        )
    lines += ["", f"Networks sent by a client once formed: {sum(after.sent) / count:.2f}"]
    write_section(f"core, {arguments.threads} thread(s)", lines)


if __name__ == "__main__":
    main()
