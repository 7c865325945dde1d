"""What the server makes of the clients' evaluations: means, and scores by client and by cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from fedrc_flwr.data.scenario import OBSERVE, TRAIN
from fedrc_flwr.engine.participation import MOST_SAMPLES
from fedrc_flwr.metrics import Counts, Evaluation, Scores, Tally, added, by_id, constant, scores_of
from fedrc_flwr.state import ClientRecord

SCOPES = {TRAIN: "local", OBSERVE: "global"}
#: Scores of each client that every evaluation records.
BY_CLIENT = ("balanced_accuracy", "macro_f1", "auc", "constant_accuracy")


def judge(
    evaluations: Mapping[str, Evaluation],
    clients: Mapping[str, ClientRecord],
    clusters: tuple[int, ...],
) -> dict[str, Any]:
    """The outcome of an evaluation.

    Accuracy and loss are means over training clients (local) and over observers (global).
    ``fit_accuracy`` is that of the same models on the training clients' own training samples.
    ``scores`` are pooled over test samples: those of the training clients, of the observers, and of
    each cluster's training clients, with how many of their samples each cluster's model alone
    predicts ``right``. ``tallies`` are the counts behind them.
    """
    outcome: dict[str, Any] = {}
    metrics = {name: dict(evaluation.metrics) for name, evaluation in evaluations.items()}
    for role, scope in SCOPES.items():
        members = [m for n, m in metrics.items() if clients[n].role == role and m.get("samples")]
        for metric, name in (
            ("accuracy", f"{scope}_accuracy"),
            ("loss", f"{scope}_loss"),
            ("fine_tuned_accuracy", f"fine_tuned_{scope}_accuracy"),  # training clients alone
        ):
            values = [m[metric] for m in members if metric in m]
            if values:
                outcome[name] = float(np.mean(values))
    fitted = {n: m["fit_accuracy"] for n, m in metrics.items() if "fit_accuracy" in m}
    if fitted:
        samples = [clients[name].samples for name in fitted]
        outcome["fit_accuracy"] = float(np.average(list(fitted.values()), weights=samples))
    tallies = _bounded(evaluations, clients)
    for name, counted in tallies.items():
        found = asdict(scores_of(counted))
        metrics[name] |= {key: found[key] for key in BY_CLIENT if found[key] is not None}
    if metrics:
        outcome["clients"] = {name: _shown(told) for name, told in metrics.items()}
    if tallies:
        cluster_of = {name: int(metrics[name].get("cluster", -1)) for name in tallies}
        roles = {name: clients[name].role for name in tallies}
        outcome |= _pooled(tallies, cluster_of, roles, clusters)
        outcome["tallies"] = tallies
    return outcome


def _bounded(
    evaluations: Mapping[str, Evaluation], clients: Mapping[str, ClientRecord]
) -> dict[str, Tally]:
    """The counts, of no client more than ten times the median of those with its role.

    Nobody can look whether a client has as many test samples as it says.
    """
    told = {n: e.tally for n, e in evaluations.items() if e.tally is not None}
    sizes = {name: int(tally.confusion.sum()) for name, tally in told.items()}
    usual = {
        role: float(np.median([s for n, s in sizes.items() if clients[n].role == role] or [0]))
        for role in SCOPES
    }
    return {
        name: tally.capped(MOST_SAMPLES * usual[clients[name].role]) for name, tally in told.items()
    }


def _shown(metrics: dict[str, float]) -> dict[str, float]:
    """What is recorded of one client: of one that adds noise, nothing but its size."""
    if "cluster" in metrics or "samples" not in metrics:
        return metrics
    return {"samples": metrics["samples"]}


def _pooled(
    tallies: dict[str, Tally],
    cluster_of: dict[str, int],
    roles: dict[str, str],
    clusters: tuple[int, ...],
) -> dict[str, Any]:
    """Scores over the samples of several clients.

    Everything pooled is compared with one constant answer for each cluster.
    """
    scores: dict[str, Any] = {"clusters": {}}
    outcome: dict[str, Any] = {"scores": scores}
    for role, scope in SCOPES.items():
        groups: dict[int, Tally] = {}
        for cluster in clusters:
            members = [
                t for n, t in tallies.items() if roles[n] == role and cluster_of[n] == cluster
            ]
            if (together := added(members)) is not None:
                groups[cluster] = together
        if role == TRAIN:
            scores["clusters"] = {
                str(cluster): asdict(scores_of(group)) | {"right": by_id(group.right, clusters)}
                for cluster, group in groups.items()
            }
        if (everyone := added(groups.values())) is not None:
            found = scores_of(everyone, _constants(groups.values()))
            scores[scope] = asdict(found)
            outcome |= _named(found, scope)
    return outcome


def _constants(groups: Iterable[Tally]) -> Counts:
    """What it looks like if each cluster always answers its most frequent label, (C, C)."""
    total: Counts = np.sum([constant(group.confusion) for group in groups], axis=0)
    return total


def _named(found: Scores, scope: str) -> dict[str, float]:
    """The pooled scores that loggers show."""
    named = {
        f"{scope}_balanced_accuracy": found.balanced_accuracy,
        f"{scope}_macro_f1": found.macro_f1,
    }
    return named | ({} if found.auc is None else {f"{scope}_auc": found.auc})
