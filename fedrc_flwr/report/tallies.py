"""The counts behind the latest evaluation, as a file: who predicted what on how many samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedrc_flwr.metrics import Counts, Tally, by_id
from fedrc_flwr.report.log import Event, read_json
from fedrc_flwr.state import ServerState

#: A confusion matrix without its zeros: label, predicted label, samples.
Triples = list[tuple[int, int, int]]


@dataclass(frozen=True)
class Tallies:
    """The counts of each client that sent them.

    Parameters
    ----------
    confusion : by client
    right : by client and cluster id, how many samples that cluster's model alone predicts right
    """

    round: int = 0
    confusion: dict[str, Triples] = field(default_factory=dict)
    right: dict[str, dict[str, int]] = field(default_factory=dict)


def recorded_tallies(state: ServerState, tallies: Mapping[str, Tally]) -> Event:
    """The content of the file."""
    return {
        "round": state.round,
        "clients": {
            name: {
                "confusion": triples(counted.confusion),
                "right": by_id(counted.right, state.clusters),
            }
            for name, counted in tallies.items()
        },
    }


def read_tallies(path: Path) -> Tallies:
    """What the file holds; nothing if there is none, or if another version wrote it."""
    content: dict[str, Any] = read_json(path)
    try:
        clients = content["clients"].items()
        confusion = {name: [tuple(map(int, t)) for t in c["confusion"]] for name, c in clients}
        right = {name: {k: int(v) for k, v in c["right"].items()} for name, c in clients}
        return Tallies(int(content["round"]), confusion, right)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError, AttributeError):
        return Tallies()


def added(parts: Iterable[Triples]) -> Triples:
    """The sum of confusion matrices."""
    total: Counter[tuple[int, int]] = Counter()
    for part in parts:
        for label, predicted, samples in part:
            total[label, predicted] += samples
    return [(label, predicted, samples) for (label, predicted), samples in sorted(total.items())]


def triples(confusion: Counts) -> Triples:
    """A confusion matrix without its zeros."""
    labels, predicted = np.nonzero(confusion)
    counts = confusion[labels, predicted]
    return list(zip(labels.tolist(), predicted.tolist(), counts.tolist(), strict=True))
