"""How often `fedrc assign` finds the right concept from few labels, against what it says.

The observers of a run's scenario give random draws of their samples. A cluster means the concept
that the training clients' largest part in it holds.

fedrc simulate --scenario fashion-mnist-30 --recipe paper --output outputs/fashion \
    --set model.network=mlp --set model.hidden=128 --set data.clients=16 --set data.alpha=10 \
    --set data.samples-per-client=600 --set fedrc.annealing-rounds=15 --set rounds=40 \
    --set local.epochs=3 --set local.batch-size=32 --set local.learning-rate=0.05 \
    --set server.optimizer=sgd
python benchmarks/assign.py outputs/fashion
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import numpy as np

from fedrc_flwr.data.scenario import OBSERVE, Split, scenario_of
from fedrc_flwr.inference import Trained, assign, load_trained

BINS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--sizes", default="5,10,20,50")
    parser.add_argument("--draws", type=int, default=50)
    arguments = parser.parse_args()
    trained = load_trained(arguments.run)
    meanings = concepts(trained)
    told = ", ".join(f"{cluster} means {concept}" for cluster, concept in meanings.items())
    print(f"clusters: {told}\n")
    scenario = scenario_of(trained.config.data, trained.config.seed)
    observers = [scenario.client(i) for i in range(scenario.clients, len(scenario))]
    rng = np.random.default_rng(0)
    sure, right = [], []
    print("| labelled samples | concept | right | mean sureness | lowest | unseen |")
    print("|---|---|---|---|---|---|")
    for size in map(int, arguments.sizes.split(",")):
        of_size = []
        for observer in observers:
            if observer.role != OBSERVE:
                continue
            rows = []
            for _ in range(arguments.draws):
                drawn = rng.choice(len(observer.fit), size, replace=False)
                found = assign(trained, Split(observer.fit.inputs[drawn],
                                              observer.fit.labels[drawn]))  # fmt: skip
                hit = meanings[found.weights.best] == observer.truth.concept
                rows.append((float(hit), found.sureness, float(found.unseen_concept)))
            of_size += rows
            print(row(str(size), str(observer.truth.concept), np.array(rows)))
        print(row(f"**{size}**", "all", np.array(of_size)), flush=True)
        right += [hit for hit, _, _ in of_size]
        sure += [stated for _, stated, _ in of_size]
    print("\n| stated sureness | draws | mean stated | right |\n|---|---|---|---|")
    stated, hits = np.array(sure), np.array(right)
    for low, high in itertools.pairwise(BINS):
        inside = (stated > low) & (stated <= high)
        if inside.any():
            print(
                f"| {low:.1f} to {high:.1f} | {inside.sum()} | {stated[inside].mean():.3f} "
                f"| {hits[inside].mean():.3f} |"
            )
    strangers(trained, observers[0].fit, rng, arguments.draws)


def concepts(trained: Trained) -> dict[int, int]:
    """The concept that each cluster's samples mostly have."""
    mass: dict[int, dict[int, float]] = {c: {} for c in trained.clusters}
    for record in trained.state.reported().values():
        weights = record.mixture_weights()
        if weights is None:
            continue
        for cluster, weight in zip(trained.clusters, weights, strict=True):
            by_concept = mass[cluster]
            by_concept[record.concept] = (
                by_concept.get(record.concept, 0.0) + weight * record.samples
            )
    return {c: max(found, key=lambda concept: found[concept]) for c, found in mass.items()}


def row(size: str, concept: str, rows: np.ndarray) -> str:
    hit, stated, unseen = rows.T
    return (
        f"| {size} | {concept} | {hit.mean():.3f} | {stated.mean():.3f} | {stated.min():.3f} "
        f"| {unseen.mean():.3f} |"
    )


def strangers(trained: Trained, samples: Split, rng: np.random.Generator, draws: int) -> None:
    """Clients whose labels are a fresh permutation: how many are flagged."""
    shares, stated, flagged = [], [], []
    for _ in range(draws):
        fresh = rng.permutation(trained.classes)
        drawn = rng.choice(len(samples), 50, replace=False)
        found = assign(trained, Split(samples.inputs[drawn], fresh[samples.labels[drawn]]))
        shares.append(found.unfamiliar_share)
        stated.append(found.sureness)
        flagged.append(found.unseen_concept)
    print(
        f"\n{draws} fresh permutations, 50 samples each: {np.mean(flagged):.0%} flagged, "
        f"unfamiliar {np.mean(shares):.2f} (lowest {min(shares):.2f}), mean sureness "
        f"{np.mean(stated):.2f}"
    )


if __name__ == "__main__":
    main()
