"""Real tables that need no download: who swaps two labels, and how well each client is served.

scikit-learn's breast cancer, wine and digits are dealt to eight clients, three of which swap two
labels. For each table and seed this prints how well the clients' clusters agree with the truth
(adjusted Rand index, 1 is perfect) and the mean accuracy on held-out rows, beside the accuracy of
being told who swaps: one federation for each group.

    python benchmarks/tables.py [--rounds 60] [--seeds 0,1,2,3,4] [--set key=value ...]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets

from fedrc_flwr.config import load_config, parse_setting
from fedrc_flwr.engine.in_process import in_memory
from fedrc_flwr.report.summary import adjusted_rand_index

CLIENTS, SWAPPING = 8, (1, 4, 6)
TABLES = {
    "breast cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
    "digits": datasets.load_digits,
}


def dealt(name: str, seed: int) -> dict[str, np.ndarray]:
    """The table's rows dealt to the clients at random; labels 0 and 1 are swapped on some."""
    x, y = TABLES[name](return_X_y=True)
    client = np.random.default_rng(seed).permutation(len(y)) % CLIENTS
    swaps = np.isin(client, SWAPPING)
    labels = np.where(swaps & (y < 2), 1 - y, y)
    return {"x": x, "y": labels, "client": client, "concept": swaps.astype(np.int64)}


def learned(arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> tuple[float | None, dict]:
    """The index, and each client's share of right answers with the number of its test rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.npz"
        np.savez(path, **arrays)
        config = load_config({"data.dataset": str(path), "data.test-fraction": 0.25, **settings})
        rounds, carrier = in_memory(config)
        rounds.run(carrier, config.rounds, config.rounds, lambda state, metrics: None)
        names = carrier.online("train")
        algorithm, state = rounds.algorithm, rounds.state
        broadcast = algorithm.broadcast(state, state.round, rounds.classes)
        asked = rounds.letters(broadcast, names, trains=False)
        judged = {letter.name: answer.metrics for letter, answer in carrier.deliver(asked)}
        return adjusted_rand_index(state), judged


def accuracy(*parts: dict[str, Any]) -> float:
    """Right answers over all test rows."""
    rows = [judged for part in parts for judged in part.values()]
    samples = sum(row["samples"] for row in rows)
    return float(sum(row["accuracy"] * row["samples"] for row in rows) / samples)


def main() -> None:
    """Print a line for each table and seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--set", action="append", default=[], dest="settings")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = dict(parse_setting(text) for text in options.settings)
    print(f"{'table':<15}{'seed':>4}{'index':>8}{'accuracy':>10}{'told':>8}")
    for name in options.tables.split(","):
        for seed in map(int, options.seeds.split(",")):
            arrays = dealt(name, seed)
            common = {"rounds": options.rounds, "seed": seed}
            index, found = learned(arrays, {**common, **chosen})
            told = [
                learned(
                    {key: array[arrays["concept"] == concept] for key, array in arrays.items()},
                    {**common, "algorithm": "fedavg"},
                )[1]
                for concept in (0, 1)
            ]
            print(
                f"{name:<15}{seed:>4}{index:>8.3f}{accuracy(found):>10.3f}{accuracy(*told):>8.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
