"""The evidence between clients where their groups are not exactly right, as a picture.

    python benchmarks/evidence.py --runs five-concepts:4,a-third:2 --picture evidence.png

Each run is one of benchmarks/concepts.py, `federation:seed`. Clients are sorted by their true
concept, and lines separate the concepts. Blue is evidence that two clients mean the same by their
labels, red that they do not. The clients that are in the wrong cluster at the end are named, with
their style and the certainty of their cluster.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from concepts import settings
from matplotlib.axes import Axes

from fedrc_flwr.algorithms import places
from fedrc_flwr.config import load_config
from fedrc_flwr.discovery import grouping
from fedrc_flwr.discovery.grouping import Grouping
from fedrc_flwr.em import Floats
from fedrc_flwr.engine.in_process import in_memory
from fedrc_flwr.state import ClientRecord, ServerState

MOST = 10.0  # nats at which the colours end


@dataclass
class Measured:
    """The last grouping of a run, and the clients in its order."""

    found: Grouping
    names: list[str]


def trained(federation: str, seed: int) -> tuple[ServerState, Measured]:
    """A run from beginning to end."""
    config = load_config(settings(federation, seed))
    rounds, carrier = in_memory(config)
    asked: list[list[str]] = []
    last: list[Measured] = []
    find, collect = grouping.find, places.fingerprints_of

    def collected(state: ServerState, names: list[str]) -> Floats:
        asked.append(names)
        return collect(state, names)

    def kept(fingerprints: Floats, scatter: Floats) -> Grouping:
        found = find(fingerprints, scatter)
        last.append(Measured(found, asked[-1]))
        return found

    grouping.find, places.fingerprints_of = kept, collected
    try:
        rounds.run(carrier, config.rounds, 1000, lambda state, metrics: None)
    finally:
        grouping.find, places.fingerprints_of = find, collect
    return rounds.state, last[-1]


def misplaced(clients: dict[str, ClientRecord]) -> dict[str, ClientRecord]:
    """The clients whose cluster is mostly that of another concept."""
    homes: dict[int, Counter[int]] = {}
    for record in clients.values():
        homes.setdefault(record.cluster, Counter())[record.concept] += 1
    concept = {cluster: counts.most_common(1)[0][0] for cluster, counts in homes.items()}
    return {n: r for n, r in clients.items() if r.cluster < 0 or concept[r.cluster] != r.concept}


def draw(axes: Axes, title: str, state: ServerState, measured: Measured) -> None:
    """One run."""
    clients = {name: state.clients[name] for name in measured.names}
    order = sorted(clients, key=lambda name: (clients[name].concept, name))
    rows = [measured.names.index(name) for name in order]
    axes.imshow(measured.found.evidence[np.ix_(rows, rows)], cmap="RdBu", vmin=-MOST, vmax=MOST)
    concepts = np.array([clients[name].concept for name in order])
    for border in np.flatnonzero(np.diff(concepts)) + 0.5:
        axes.axhline(border, color="black", linewidth=0.8)
        axes.axvline(border, color="black", linewidth=0.8)
    wrong = misplaced(clients)
    marked = [i for i, name in enumerate(order) if name in wrong]
    labels = [
        f"{order[i]}, {wrong[order[i]].style}, {wrong[order[i]].certainty:.2f}" for i in marked
    ]
    axes.set_yticks(marked, labels, fontsize=7)
    axes.set_xticks([])
    axes.set_title(title, fontsize=9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", required=True)
    parser.add_argument("--picture", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = [text.rsplit(":", 1) for text in options.runs.split(",")]
    figure, panels = plt.subplots(
        1, len(runs), figsize=(4.6 * len(runs), 3.4), squeeze=False, layout="constrained"
    )
    for axes, (federation, seed) in zip(panels[0], runs, strict=True):
        state, measured = trained(federation, int(seed))
        draw(axes, f"{federation}, seed {seed}", state, measured)
        wrong = misplaced({n: state.clients[n] for n in measured.names})
        print(federation, seed, {n: (r.concept, r.style, r.certainty) for n, r in wrong.items()})
    figure.savefig(options.picture, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    main()
