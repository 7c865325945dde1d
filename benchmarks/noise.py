"""The table of docs/privacy.md: what noise on the statistics does to the clusters.

    fedrc compare digits-noise --output outputs/digits-noise
    python benchmarks/noise.py outputs/digits-noise

The server reads the clients' clusters off noisy counts. The clients know better: their own mixture
weights, from their state files, give a second index.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path
from statistics import mean

from sklearn.metrics import adjusted_rand_score

from fedrc_flwr.checkpoint import CHECKPOINTS, latest_checkpoint, load_client_state
from fedrc_flwr.data.scenario import TRAIN
from fedrc_flwr.engine.client import state_folder
from fedrc_flwr.report.log import SUMMARY, read_json


def own_index(run: Path) -> float:
    """Agreement of the clients' own likeliest clusters with their concepts."""
    state = latest_checkpoint(run / CHECKPOINTS, models=False)[0].state
    concepts, clusters = [], []
    for name, record in state.clients.items():
        if record.role == TRAIN:
            kept = load_client_state(state_folder(run / "clients", run.name, name), state.round + 1)
            if kept is not None:
                weights = kept.moved_to(state.membership).mixture_weights
                concepts.append(record.concept)
                clusters.append(int(weights.argmax()))
    return float(adjusted_rand_score(concepts, clusters))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    rows = defaultdict(list)
    with open(directory / "runs.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rows[row["method"]].append(row)
    print("| noise | clusters left, by seed | index, by the counts | index, by the clients' own "
          "weights | local | global | epsilon | seeds undecided |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    for method, found in rows.items():
        slug = method.lower().replace(", ", "-").replace(" ", "-")
        runs = [directory / "runs" / "digits" / slug / f"seed{row['seed']}" for row in found]
        summaries = [read_json(run / SUMMARY) for run in runs]
        epsilons = [s["epsilon"] for s in summaries if s.get("epsilon") is not None]
        print(
            f"| {method.rpartition(' ')[2]} "
            f"| {' '.join(str(s['clusters']) for s in summaries)} "
            f"| {mean(float(row['ARI']) for row in found):.2f} "
            f"| {mean(own_index(run) for run in runs):.2f} "
            f"| {mean(s['local_accuracy'] for s in summaries):.3f} "
            f"| {mean(s['global_accuracy'] for s in summaries):.3f} "
            f"| {f'{max(epsilons):,.0f}' if epsilons else '-'} "
            f"| {sum(bool(s.get('undecided')) for s in summaries)} of {len(summaries)} |"
        )


if __name__ == "__main__":
    main()
