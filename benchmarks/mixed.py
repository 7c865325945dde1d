"""Clients that hold two concepts at once, for benchmarks/concepts.py.

In a federation of the library's, two training clients get half of their samples labelled by another
concept: the first client of concept 0 by concept 1, and the first of concept 1 by concept 2.
Training is not told.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from fedrc_flwr.config import RunConfig
from fedrc_flwr.data.concepts import concept_map
from fedrc_flwr.data.scenario import TRAIN, ClientData, GroundTruth, Scenario, Split
from fedrc_flwr.state import ServerState

PAIRS = ((0, 1), (1, 2))


def two_in_one(config: RunConfig) -> tuple[list[ClientData], dict[str, tuple[int, int]]]:
    """The federation's clients, and the concepts of those that hold two."""
    scenario = Scenario(config.data, config.seed)
    clients = [scenario.client(index) for index in range(len(scenario))]
    concepts: dict[str, tuple[int, int]] = {}
    for first, second in PAIRS:
        place, client = next(
            (i, c)
            for i, c in enumerate(clients)
            if c.role == TRAIN and c.truth.concept == first and c.name not in concepts
        )
        back = np.argsort(concept_map(first, client.classes, config.seed))
        relabelled = concept_map(second, client.classes, config.seed)[back]
        clients[place] = replace(
            client,
            fit=half(client.fit, relabelled),
            test=half(client.test, relabelled),
            truth=GroundTruth(-1, client.truth.style),
        )
        concepts[client.name] = (first, second)
    return clients, concepts


def half(split: Split, relabelled: np.ndarray) -> Split:
    """The same samples; every other one of each label has its new label."""
    order = np.argsort(split.labels, kind="stable")
    swapped = np.zeros(len(split), dtype=bool)
    swapped[order[::2]] = True
    return replace(split, labels=np.where(swapped, relabelled[split.labels], split.labels))


def shares(
    state: ServerState, concepts: dict[str, tuple[int, int]]
) -> dict[str, tuple[float, float, float] | None]:
    """The weights of the clusters of a client's two concepts, and of all others.

    A concept's cluster is the one that most of the clients that hold it alone belong to. If both
    concepts have the same one, the second counts as not found. None: the client is in quarantine.
    """
    homes: dict[int, Counter[int]] = {}
    for record in state.clients.values():
        weights = record.mixture_weights()
        if record.role == TRAIN and record.concept >= 0 and weights is not None:
            homes.setdefault(record.concept, Counter())[int(weights.argmax())] += 1
    found: dict[str, tuple[float, float, float] | None] = {}
    for name, pair in concepts.items():
        weights = state.clients[name].mixture_weights()
        first, second = (homes[concept].most_common(1)[0][0] for concept in pair)
        if weights is None:
            found[name] = None
            continue
        own, other = float(weights[first]), float(weights[second]) if second != first else 0.0
        found[name] = (round(own, 2), round(other, 2), round(1.0 - own - other, 2))
    return found
