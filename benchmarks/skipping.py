"""What leaving out negligible responsibilities saves, and what it does to the result.

    python benchmarks/skipping.py --keep runs

On each seed the same federation is run twice through `fedrc simulate`: dense, and with the default
thresholds of `skip-below` and `skip-cluster-below`. FashionMNIST, three concepts, the `cnn`. The
runs stay in the directory given with --keep; benchmarks/core.py takes one of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, median
from typing import Any

from bare import machine, write_section

from fedrc_flwr.configuration import load_config
from fedrc_flwr.layout import to_vector
from fedrc_flwr.models import build_model
from fedrc_flwr.report.log import METRICS, read_events
from fedrc_flwr.simulation import simulate

DENSE = {"skip-below": 0.0, "skip-cluster-below": 0.0}
LAST = 5  # rounds over which seconds and uploads are taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", default="0,1,2")
    arguments = parser.parse_args()
    settings: dict[str, Any] = {
        "scenario": "fashion-mnist-30", "clients": arguments.clients, "rounds": arguments.rounds,
        "alpha": 10.0,
        "evaluate-every": arguments.rounds,
    }  # fmt: skip
    size = to_vector(build_model(load_config(settings), (28, 28), 10, 0)).nbytes
    lines = [
        f"{machine()}; {arguments.clients} clients of 400 samples, {arguments.rounds} rounds; "
        f"seconds and uploads of the last {LAST} before the evaluation",
        "",
        "| seed | | local | global | adjusted Rand index | seconds a round | networks sent |",
        "|---|---|---|---|---|---|---|",
    ]
    accuracies: dict[str, list[float]] = {}
    for seed in arguments.seeds.split(","):
        for name, more in (("dense", DENSE), ("skipping", {})):
            directory = arguments.keep / f"{name}-{seed}"
            run = {**settings, **more, "seed": int(seed)}
            outcome = simulate(run, directory, lambda event: None)
            if not outcome.completed:
                raise SystemExit(outcome.reason)
            events = [e for e in read_events(directory / METRICS) if e["event"] == "round"]
            last = events[-LAST - 1 : -1]
            summary = outcome.summary
            accuracies.setdefault(f"{name} local", []).append(summary["local_accuracy"])
            accuracies.setdefault(f"{name} global", []).append(summary["global_accuracy"])
            lines.append(
                f"| {seed} | {name} | {summary['local_accuracy']:.4f} "
                f"| {summary['global_accuracy']:.4f} | {summary['adjusted_rand_index']:.2f} "
                f"| {median(e['seconds'] for e in last):.1f} "
                f"| {mean(e['bytes_up'] for e in last) / size / arguments.clients:.2f} |"
            )
            print(lines[-1], flush=True)
    lines.append("")
    for scope in ("local", "global"):
        dense, skipping = (mean(accuracies[f"{name} {scope}"]) for name in ("dense", "skipping"))
        lines.append(
            f"- {scope} accuracy, mean: dense {dense:.4f}, skipping {skipping:.4f}, "
            f"difference {100 * (skipping - dense):+.2f} points"
        )
    write_section("skipping", lines)


if __name__ == "__main__":
    main()
