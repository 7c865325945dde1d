"""What fewer bits cost: accuracy and bytes of `federation.transport`, in one process.

    python benchmarks/transport.py

The digits with the default recipe, seeds 100 to 104.
"""

from __future__ import annotations

import argparse
from statistics import mean
from typing import Any

import torch
from bare import machine, write_section

from fedrc_flwr.config import load_config
from fedrc_flwr.engine.in_process import in_memory
from fedrc_flwr.report.summary import adjusted_rand_index
from fedrc_flwr.transport import TRANSPORTS


def run(seed: int, transport: str, length: int) -> dict[str, Any]:
    """One run: the last accuracies, the index, and the bytes of a round after discovery."""
    config = load_config(
        {"scenario": "digits", "seed": seed, "rounds": length, "federation.transport": transport}
    )
    rounds, carrier = in_memory(config)
    events: list[dict[str, Any]] = []
    outcomes: list[dict[str, Any]] = []
    rounds.run(
        carrier, config.rounds, config.rounds, lambda state, metrics: events.append(metrics),
        lambda state, outcome: outcomes.append(outcome),
    )  # fmt: skip
    return {
        "local": outcomes[-1]["local_accuracy"],
        "global": outcomes[-1]["global_accuracy"],
        "index": adjusted_rand_index(rounds.state),
        "down": events[-1]["bytes_down"],
        "up": events[-1]["bytes_up"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="100,101,102,103,104")
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    torch.set_num_threads(1)
    rows = []
    for transport in TRANSPORTS:
        found = [run(seed, transport, arguments.rounds) for seed in seeds]
        row = {name: mean(each[name] for each in found) for name in found[0]}
        alone = " ".join(f"{each['global']:.3f}" for each in found)
        rows.append(
            f"| `{transport}` | {row['local']:.3f} | {row['global']:.3f} ({alone}) "
            f"| {row['index']:.2f} | {row['down'] / 1e3:.0f} | {row['up'] / 1e3:.0f} |"
        )
        print(rows[-1], flush=True)
    write_section(
        "transport",
        [
            f"{machine()}; digits, 12 clients and 3 observers, {arguments.rounds} rounds, seeds "
            f"{seeds[0]} to {seeds[-1]}",
            "",
            "| transport | local accuracy | global accuracy (each seed) | index | kB down a round "
            "| kB up |",
            "|---|---|---|---|---|---|",
            *rows,
        ],
    )


if __name__ == "__main__":
    main()
