"""What a round of FedRC costs once the concepts are found, beside a round of FedAvg.

    python benchmarks/cost.py --clients 30,300

Both train the same small network on the same clients in one process. After FedRC has found the
concepts, the two take turns, round by round. Printed are the bytes of a round's arrays and the
processor time of the whole round, as ratios of medians.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch
from bare import machine, write_section
from concepts import MLP

from fedrc_flwr.algorithms.places import is_found
from fedrc_flwr.config import load_config
from fedrc_flwr.engine.in_process import InProcess, in_memory
from fedrc_flwr.engine.rounds import Rounds

ROUNDS = 10
FAR = 10**6  # a last round that is never reached, so that nothing is evaluated


class OneRound(Exception):
    """A round has ended; its bytes are the argument."""


def begin(algorithm: str, clients: int) -> tuple[Rounds, InProcess]:
    """A federation before its first round."""
    config = load_config(
        {
            "scenario": "fashion-mnist", "data.clients": clients, "data.samples-per-client": 200,
            "algorithm": algorithm, **MLP,
        }
    )  # fmt: skip
    return in_memory(config)


def step(rounds: Rounds, carrier: InProcess) -> tuple[float, int]:
    """One more round without an evaluation: processor seconds and bytes."""
    started = time.process_time()

    def done(state: object, metrics: dict[str, int]) -> None:
        raise OneRound(metrics["bytes_down"] + metrics["bytes_up"])

    try:
        rounds.run(carrier, FAR, FAR, done)
    except OneRound as ended:
        return time.process_time() - started, int(ended.args[0])
    raise RuntimeError("no round was run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", default="30,300")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        machine(),
        "",
        "| clients | clusters | bytes, FedRC / FedAvg | processor time | no place yet |",
    ]
    lines.append("|---|---|---|---|---|")
    for clients in map(int, options.clients.split(",")):
        ours, theirs = begin("fedrc", clients), begin("fedavg", clients)
        while not is_found(ours[0].state):
            step(*ours)
        pairs = [(step(*ours), step(*theirs)) for _ in range(ROUNDS)]
        seconds = median(a[0] for a, _ in pairs) / median(b[0] for _, b in pairs)
        size = median(a[1] for a, _ in pairs) / median(b[1] for _, b in pairs)
        state = ours[0].state
        waiting = sum(r.role == "train" and r.cluster < 0 for r in state.clients.values())
        lines.append(
            f"| {clients} | {len(state.clusters)} | {size:.3f} | {seconds:.3f} | {waiting} |"
        )
    write_section("cost of a round once the concepts are found", lines)


if __name__ == "__main__":
    main()
