"""What it takes the server to find the concepts: seconds and memory.

    python benchmarks/discovery.py --clients 1000

A made-up federation of three concepts. Every client holds all labels, which is the slowest case,
with a style of its own and a tenth of the clients far off. One thread.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import resource
import time

import numpy as np

from fedrc_flwr.discovery.grouping import find
from fedrc_flwr.em import Floats, Labels

CONCEPTS = 3


def federation(clients: int, labels: int, features: int) -> tuple[Floats, Floats, Labels]:
    """Fingerprints (n, 2, C, 1 + D), their pooled scatter (D, D), and the concepts (n,)."""
    random = np.random.default_rng(0)
    contents = random.normal(size=(labels, features))
    concept = random.integers(0, CONCEPTS, clients)
    style = np.where(random.random(clients) < 0.1, 1.0, 0.2)
    counts = 1 + np.floor(400 * random.dirichlet(np.ones(labels), clients))
    meant = (np.arange(labels) + concept[:, None]) % labels
    means = contents[meant] + style[:, None, None] * random.normal(size=(clients, 1, features))
    means += (
        random.normal(size=means.shape) * np.sqrt(1 / counts + 0.02 * style[:, None])[..., None]
    )
    scatter = np.eye(features) * (counts.sum() - counts.size)
    kept = np.concatenate([counts[..., None], counts[..., None] * means], 2)
    return np.stack([kept, np.zeros_like(kept)], axis=1), scatter, concept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--labels", type=int, default=10)
    parser.add_argument("--features", type=int, default=64)
    arguments = parser.parse_args()
    fingerprints, scatter, concept = federation(
        arguments.clients, arguments.labels, arguments.features
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    grouping = find(fingerprints, scatter)
    seconds = time.process_time() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    from bare import machine, write_section  # takes memory of its own
    from sklearn.metrics import adjusted_rand_score

    write_section(
        f"discovery, {arguments.clients} clients",
        [
            f"{machine()}; {arguments.labels} labels, {arguments.features} features, 1 thread",
            "",
            "| clients | processor seconds | peak memory, MB | before | groups | index |",
            "|---|---|---|---|---|---|",
            f"| {arguments.clients} | {seconds:.1f} | {memory / 1024:.0f} | {before / 1024:.0f} "
            f"| {grouping.weights.shape[1]} "
            f"| {adjusted_rand_score(concept, grouping.groups):.2f} |",
        ],
    )


if __name__ == "__main__":
    main()
