"""What the clusters of a scenario part by: how fast small differences between the models grow.

python benchmarks/parting.py --scenario fashion-mnist-30 --seeds 0,1,2

The operators are those of docs/algorithm.md, on cells of one client and one class of images each.
Printed are the largest growth factors at exponent 1, with the share of each difference's variance
that the concepts explain. It reads the true concepts, so it is for federations made for study.
"""

from __future__ import annotations

import argparse

import numpy as np

from fedrc_flwr.config import load_config
from fedrc_flwr.data.concepts import concept_map
from fedrc_flwr.data.scenario import Scenario
from fedrc_flwr.em import Floats

SHOWN = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", default="fashion-mnist-30")
    parser.add_argument("--seeds", default="0,1,2")
    arguments = parser.parse_args()
    print("| seed | annealing | growth factors at exponent 1 | explained by the concepts |")
    print("|---|---|---|---|")
    for seed in arguments.seeds.split(","):
        cells, samples = cells_of(arguments.scenario, int(seed))
        client, image_class, concept, label = (cells[:, [column]] for column in range(4))
        within = averaging(client, samples)
        meaning = averaging(np.hstack([image_class, concept]), samples)
        learnt = meaning - averaging(image_class, samples) - averaging(label, samples)
        for name, operator in (("sample", within + learnt), ("client", within @ learnt @ within)):
            factors, differences = np.linalg.eig(operator)
            order = np.argsort(-factors.real)[:SHOWN]
            explained = [share(differences[:, k].real, concept, samples) for k in order]
            print(
                f"| {seed} | by {name} | {' '.join(f'{f:.2f}' for f in factors.real[order])} "
                f"| {' '.join(f'{e:.2f}' for e in explained)} |"
            )


def cells_of(scenario: str, seed: int) -> tuple[np.ndarray, Floats]:
    """Client, class of images, concept and label of every cell, and its samples."""
    config = load_config({"scenario": scenario, "seed": seed})
    built = Scenario(config.data, seed)
    cells, samples = [], []
    for index in range(built.clients):
        outline = built.outline(index)
        concept = outline.truth.concept
        images = np.argsort(concept_map(concept, built.classes, seed))
        labels, counts = np.unique(outline.labels[-outline.fit :], return_counts=True)
        cells += [(index, images[label], concept, label) for label in labels]
        samples += list(counts)
    return np.array(cells), np.array(samples, dtype=np.float64)


def averaging(groups: np.ndarray, samples: Floats) -> Floats:
    """The operator that replaces each cell's value by the mean over its group."""
    _, group = np.unique(groups, axis=0, return_inverse=True)
    member = np.eye(group.max() + 1)[group.ravel()]
    return np.asarray(member / (member.T @ samples) @ (member.T * samples))


def share(values: Floats, groups: np.ndarray, samples: Floats) -> float:
    """The share of the variance that the groups explain."""
    centred = values - np.average(values, weights=samples)
    fitted = averaging(groups, samples) @ centred
    return float((samples @ fitted**2) / (samples @ centred**2))


if __name__ == "__main__":
    main()
