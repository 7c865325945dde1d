"""Who is in which cluster, from a run's latest checkpoint and evaluations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedrc_flwr.algorithms.places import SEVERAL
from fedrc_flwr.checkpoint import Checkpoint
from fedrc_flwr.data.scenario import OBSERVE, TRAIN
from fedrc_flwr.discovery.mixture import LEAST_SHARE
from fedrc_flwr.em import Floats
from fedrc_flwr.report.history import short, thin
from fedrc_flwr.report.tallies import Tallies, Triples, added
from fedrc_flwr.state import ClientRecord

MOST_CLIENTS = 2000
MOST_TRIPLES = 100_000  # of all clients' confusion matrices together
#: What is shown of a client's evaluation besides its accuracy.
SCORES = ("samples", "loss", "balanced_accuracy", "macro_f1", "auc", "constant_accuracy")
UNKNOWN = -1


@dataclass(frozen=True)
class Client:
    """A client as the report shows it.

    ``cluster`` is the likeliest one (-1: not known yet), ``weights`` follow the living clusters.
    ``scores`` are those of its latest evaluation. ``confusion`` and ``right`` are the counts behind
    them: see ``Tallies``. ``certainty`` is how sure discovery is of the cluster, if it ran, and
    ``several`` whether it found the client to hold several concepts.
    """

    name: str
    role: str
    samples: int
    cluster: int
    weights: list[float] | None
    concept: int
    style: str
    accuracy: float | None
    scores: dict[str, float] = field(default_factory=dict)
    confusion: Triples | None = None
    right: dict[str, int] = field(default_factory=dict)
    certainty: float | None = None
    several: bool = False


@dataclass(frozen=True)
class Cluster:
    """A living cluster: its share of the samples, its training clients, how well it serves them."""

    id: int
    share: float
    clients: int
    accuracy: float | None
    confusion: Triples = field(default_factory=list)


@dataclass(frozen=True)
class Table:
    """Samples by a property (rows) and living cluster (columns)."""

    rows: list[str]
    values: list[list[float]]


@dataclass(frozen=True)
class Population:
    """The federation after ``round``.

    Parameters
    ----------
    clients : sorted by cluster; at most ``MOST_CLIENTS``, evenly chosen from ``total``
    classes, styles, concepts : samples of the training clients in each cluster
    label_prior : (K, C), share of each label in each cluster
    labels : names of the labels
    """

    round: int
    clusters: list[Cluster]
    clients: list[Client]
    total: int
    training: int
    observers: int
    classes: Table
    styles: Table
    concepts: Table
    label_prior: list[list[float]]
    labels: list[str] = field(default_factory=list)


def nobody() -> Population:
    """Before the first checkpoint."""
    nothing = Table([], [])
    return Population(0, [], [], 0, 0, 0, nothing, nothing, nothing, [])


def population(
    checkpoint: Checkpoint, judged: dict[str, dict[str, float]], tallies: Tallies | None = None
) -> Population:
    """The federation according to the clients' latest counts and evaluations.

    Parameters
    ----------
    judged : for each client, its latest evaluation: accuracy, and the cluster of an observer
    tallies : the counts behind it
    """
    state, counted = checkpoint.state, tallies or Tallies()
    labels = label_names(checkpoint.config, checkpoint.classes)
    clients = [
        _client(name, record, state.clusters, judged.get(name, {}), counted)
        for name, record in state.clients.items()
    ]
    clients.sort(key=_order)
    training = [c for c in clients if c.role == TRAIN]
    reported = state.reported()
    shares = state.shares()
    clusters = [
        _cluster(cluster, float(share), [c for c in training if c.cluster == cluster])
        for cluster, share in zip(state.clusters, shares, strict=True)
    ]
    prior = state.label_prior(checkpoint.classes)
    counts = np.sum([np.zeros((len(clusters), checkpoint.classes))]
                    + [np.maximum(r.label_counts, 0.0) for r in reported.values()
                       if r.label_counts is not None], axis=0)  # fmt: skip
    return Population(
        round=state.round,
        clusters=clusters,
        clients=_bounded([clients[i] for i in thin(len(clients), MOST_CLIENTS)]),
        total=len(clients),
        training=len(training),
        observers=len(clients) - len(training),
        classes=Table(labels if reported else [],
                      _rounded(counts.T) if reported else []),
        styles=_samples_by(reported, style_of),
        concepts=_samples_by(
            reported, lambda r: "" if r.concept < 0 else f"concept {r.concept}"
        ),
        label_prior=_rounded(prior) if reported else [],
        labels=labels,
    )  # fmt: skip


def label_names(config: Mapping[str, Any], classes: int) -> list[str]:
    """The names of the labels, from the schema that a run of own data records; else numbers."""
    try:
        names = [str(name) for name in json.loads(str(config["data.schema"]))["classes"]]
    except (KeyError, TypeError, ValueError):
        names = []
    return names if len(names) == classes else [str(y) for y in range(classes)]


def _bounded(clients: list[Client]) -> list[Client]:
    """Without the clients' confusion matrices where they would make the page too large."""
    if sum(len(c.confusion or []) for c in clients) <= MOST_TRIPLES:
        return clients
    return [replace(client, confusion=None) for client in clients]


def style_of(record: ClientRecord) -> str:
    """How a client's inputs look, without the severity."""
    name, dash, severity = record.style.rpartition("-")
    return name if dash and severity.isdecimal() else record.style


def _client(
    name: str,
    record: ClientRecord,
    clusters: tuple[int, ...],
    judged: dict[str, float],
    tallies: Tallies,
) -> Client:
    weights = record.mixture_weights() if record.role == TRAIN else None
    cluster = UNKNOWN
    if weights is not None:
        cluster = clusters[int(weights.argmax())]
    elif judged.get("cluster") in clusters:
        cluster = int(judged["cluster"])
    accuracy = judged.get("accuracy")
    return Client(
        name=name,
        role=record.role,
        samples=record.samples,
        cluster=cluster,
        weights=None if weights is None else [round(float(w), 4) for w in weights],
        concept=record.concept,
        style=record.style,
        accuracy=None if accuracy is None else short(accuracy),
        scores={key: short(judged[key]) for key in SCORES if judged.get(key) is not None},
        confusion=tallies.confusion.get(name),
        right=tallies.right.get(name, {}),
        certainty=short(record.certainty) if record.certainty > 0 else None,
        several=weights is not None and _holds_several(record, weights),
    )


def _holds_several(record: ClientRecord, weights: Floats) -> bool:
    """Whether discovery found several concepts, unless the algorithm's own E-step chose since."""
    return record.cluster == SEVERAL and int(np.count_nonzero(weights >= LEAST_SHARE)) > 1


def _order(client: Client) -> tuple[bool, bool, int, int, float, str]:
    """Sort by role, cluster, concept, and weight of the cluster."""
    sure = max(client.weights) if client.weights else 0.0
    return (
        client.role == OBSERVE,
        client.cluster == UNKNOWN,
        client.cluster,
        client.concept,
        -sure,
        client.name,
    )


def _cluster(cluster: int, share: float, members: list[Client]) -> Cluster:
    judged = [m.accuracy for m in members if m.accuracy is not None]
    accuracy = short(float(np.mean(judged))) if judged else None
    confusion = added(m.confusion for m in members if m.confusion)
    return Cluster(cluster, short(share), len(members), accuracy, confusion)


def _samples_by(
    records: dict[str, ClientRecord], property_of: Callable[[ClientRecord], str]
) -> Table:
    """Each cluster's samples of the clients with a property; clients without one are left out."""
    sums: dict[str, Floats] = {}
    for record in records.values():
        name, weights = property_of(record), record.mixture_weights()
        if name and weights is not None:
            sums[name] = sums.get(name, np.zeros(len(weights))) + record.samples * weights
    rows = sorted(sums, key=lambda name: (name != "none", len(name), name))
    return Table(rows, _rounded(np.array([sums[row] for row in rows])) if rows else [])


def _rounded(values: Floats) -> list[list[float]]:
    return [[short(float(v)) for v in row] for row in values]
