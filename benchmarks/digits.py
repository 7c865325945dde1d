"""The demo's table: algorithms and seeds on `digits`, each run through `fedrc simulate`.

python benchmarks/digits.py --alpha 10 --algorithms fedrc,fedavg
python benchmarks/digits.py --alpha 1.0 --algorithms fedrc,fedem,ifca,fedavg
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fedrc_flwr.configuration import parse_setting
from fedrc_flwr.simulation import simulate

#: IFCA and FedAvg know no removal: they get the number of concepts, and one.
OWN_SETTINGS: dict[str, dict[str, Any]] = {
    "ifca": {"clusters": 3, "adaptive": False, "merge": False, "annealing-rounds": 0},
    "fedavg": {"adaptive": False, "merge": False, "annealing-rounds": 0},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alpha", type=float, default=10.0)
    parser.add_argument("--algorithms", default="fedrc,fedavg")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    extra = dict(parse_setting(text) for text in arguments.set)
    print("| algorithm | seed | clusters left | adjusted Rand index | local | global | seconds |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for algorithm in arguments.algorithms.split(","):
        rows = []
        for seed in arguments.seeds.split(","):
            settings = {
                "scenario": "digits",
                "algorithm": algorithm,
                "alpha": arguments.alpha,
                "seed": int(seed),
                "evaluate-every": 20,
                **OWN_SETTINGS.get(algorithm, {}),
                **extra,
            }
            with tempfile.TemporaryDirectory() as scratch:
                outcome = simulate(settings, Path(scratch) / "run", lambda event: None)
            if not outcome.completed:
                raise SystemExit(f"{algorithm}, seed {seed}: {outcome.reason}")
            summary = outcome.summary
            rows.append(summary)
            print(
                f"| {algorithm} | {seed} | {summary['clusters']} "
                f"| {summary['adjusted_rand_index']:.3f} | {summary['local_accuracy']:.3f} "
                f"| {summary['global_accuracy']:.3f} | {summary['seconds']:.0f} |",
                flush=True,
            )
        mean = {
            key: np.mean([row[key] for row in rows])
            for key in ("clusters", "adjusted_rand_index", "local_accuracy", "global_accuracy",
                        "seconds")
        }  # fmt: skip
        print(
            f"| **{algorithm}** | mean | {mean['clusters']:.1f} "
            f"| {mean['adjusted_rand_index']:.3f} | {mean['local_accuracy']:.3f} "
            f"| **{mean['global_accuracy']:.3f}** | {mean['seconds']:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
