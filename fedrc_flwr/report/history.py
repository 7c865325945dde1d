"""The course of a run, round by round: series to draw, from its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrc_flwr.errors import LATE
from fedrc_flwr.report.log import Event

MOST_POINTS = 1000  # of one series
MOST_VALUES = 100_000  # of all clusters' shares together
MOST_FAILURES = 20_000
MOST_REASONS = 100
SETTLED_ROUNDS = 3  # over which the weights must have rested
OTHER = "another reason (run.log has it)"

Points = list[tuple[int, float]]


@dataclass(frozen=True)
class Series:
    """One line of a figure."""

    name: str
    points: Points


@dataclass(frozen=True)
class Change:
    """A cluster that was removed, or merged into another."""

    round: int
    cluster: int
    into: int | None

    @property
    def text(self) -> str:
        """What happened, in words."""
        if self.into is None:
            return f"cluster {self.cluster} removed"
        return f"cluster {self.cluster} merged into {self.into}"


@dataclass(frozen=True)
class Failures:
    """Replies that were not used: ``points`` are (round, index of client, index of reason)."""

    clients: list[str]
    reasons: list[str]
    points: list[tuple[int, int, int]]
    total: int

    def late(self) -> list[bool]:
        """For each reason, whether it means that the client was late."""
        return [reason == LATE for reason in self.reasons]


@dataclass(frozen=True)
class Course:
    """One client over the rounds: ``weights`` by cluster id, and its ``accuracy``."""

    weights: dict[int, Points]
    accuracy: Points


@dataclass(frozen=True)
class Discovery:
    """What was found out about the clients' concepts.

    Parameters
    ----------
    said : the round and the sentence of everything that was found, in order
    established : whether the latest grouping can be relied on; None if there is none yet
    clients, groups : who was compared, sorted by group, and the cluster of each; -1 for none
    evidence : (n, n), in nats, that two of them mean the same by their labels
    """

    said: list[tuple[int, str]]
    established: bool | None
    clients: list[str]
    groups: list[int]
    evidence: list[list[float]]


@dataclass(frozen=True)
class History:
    """A run's metrics over its rounds.

    Parameters
    ----------
    shares : for each cluster id, its share of all samples; zero once it is gone
    judged : for each client, its latest evaluation
    scores : pooled scores of the latest evaluation, see ``engine.judging``
    movement : how much the clients' weights moved in each of the last few rounds
    annealing : whether the last round was still annealed
    undecided : what noise on the statistics hid in the last round
    courses : for each client, its weights and accuracy over the rounds
    discovery : what was found out about concepts
    """

    last_round: int
    accuracy: list[Series]
    loss: list[Series]
    shares: dict[int, Points]
    changes: list[Change]
    failures: Failures
    seconds: list[Series]
    traffic: list[Series]
    epsilon: list[Series]
    judged: dict[str, dict[str, float]]
    elapsed: float
    scores: dict[str, Any]
    movement: list[float]
    annealing: bool
    undecided: str
    courses: dict[str, Course]
    discovery: Discovery


ACCURACY = {
    "local_accuracy": "training clients",
    "global_accuracy": "observers",
    "fine_tuned_local_accuracy": "training clients, fine-tuned",
    "train_accuracy": "while training",
}
LOSS = {"local_loss": "training clients", "global_loss": "observers", "loss": "while training"}
SECONDS = {"seconds": "whole round", "client_seconds": "one client's training, mean"}
TRAFFIC = {"bytes_down": "server to clients", "bytes_up": "clients to server"}
EPSILON = {"epsilon": "epsilon"}


def history(events: list[Event]) -> History:
    """Read the metrics of a run; missing ones are left out."""
    by_round = {e["round"]: e for e in events if type(e.get("round")) is int}
    rounds = [by_round[number] for number in sorted(by_round)]
    judged: dict[str, dict[str, float]] = {}
    for event in rounds:
        judged |= _table(event.get("clients"))
    return History(
        last_round=max(by_round, default=0),
        accuracy=_series(rounds, ACCURACY),
        loss=_series(rounds, LOSS),
        shares=_shares(rounds),
        changes=_changes(rounds),
        failures=_failures(rounds),
        seconds=_series(rounds, SECONDS),
        traffic=_series(rounds, TRAFFIC),
        epsilon=_series(rounds, EPSILON),
        judged=judged,
        elapsed=max((e.get("elapsed") or 0.0 for e in rounds), default=0.0),
        scores=next((e["scores"] for e in reversed(rounds) if _table(e.get("scores"))), {}),
        movement=_numbers(rounds[-SETTLED_ROUNDS:], "movement"),
        annealing=bool(rounds) and rounds[-1].get("exponent", 1.0) != 1.0,
        undecided=str(rounds[-1].get("undecided") or "") if rounds else "",
        courses=_courses(rounds),
        discovery=_discovery(rounds),
    )


def _discovery(rounds: list[Event]) -> Discovery:
    """The latest grouping with its evidence, clients in the order of their groups."""
    told = [(e["round"], found) for e in rounds if (found := _table(e.get("discovery")))]
    said = [(number, str(found.get("sentence") or "")) for number, found in told]
    grouped = [found for _, found in told if "established" in found]
    if not grouped:
        return Discovery(said, None, [], [], [])
    last = grouped[-1]
    names = [str(name) for name in last.get("clients") or []]
    groups = _table(last.get("groups"))
    order = sorted(range(len(names)), key=lambda i: (int(groups.get(names[i], -1)), i))
    table = last.get("evidence") or []
    if len(table) != len(names):
        order, table = [], []
    return Discovery(
        said,
        bool(last["established"]),
        [names[i] for i in order],
        [int(groups.get(names[i], -1)) for i in order],
        [[table[i][j] for j in order] for i in order],
    )


def _courses(rounds: list[Event]) -> dict[str, Course]:
    """Every client's course; long runs of many clients are thinned."""
    told = [e for e in rounds if _table(e.get("weights"))]
    values = sum(len(w) for e in told[-1:] for w in e["weights"].values())
    kept = [told[i] for i in thin(len(told), max(10, MOST_VALUES // max(1, values)))]
    courses: dict[str, Course] = {}
    for event in kept:
        for name, weights in event["weights"].items():
            course = courses.setdefault(name, Course({}, []))
            for cluster, weight in zip(event["clusters"], weights, strict=False):
                course.weights.setdefault(int(cluster), []).append((event["round"], weight))
    judged = [e for e in rounds if _table(e.get("clients"))]
    clients = max((len(e["clients"]) for e in judged), default=1)
    for index in thin(len(judged), max(10, MOST_VALUES // clients)):
        for name, metrics in judged[index]["clients"].items():
            if isinstance(metrics.get("accuracy"), float):
                course = courses.setdefault(name, Course({}, []))
                course.accuracy.append((judged[index]["round"], short(metrics["accuracy"])))
    return courses


def _numbers(rounds: list[Event], key: str) -> list[float]:
    return [float(e[key]) for e in rounds if isinstance(e.get(key), int | float)]


def thin(count: int, most: int) -> list[int]:
    """Positions of at most ``most`` of ``count`` entries, evenly, first and last among them."""
    if count <= most:
        return list(range(count))
    return sorted({int(i) for i in np.linspace(0, count - 1, most).round()})


def short(value: float) -> float:
    """Five digits, which are enough for a figure and keep the page small."""
    return float(f"{value:.5g}")


def _series(rounds: list[Event], names: dict[str, str]) -> list[Series]:
    found = []
    for key, name in names.items():
        points = [
            (e["round"], short(e[key])) for e in rounds if isinstance(e.get(key), int | float)
        ]
        if points:
            kept = thin(len(points), MOST_POINTS)
            found.append(Series(name, [points[i] for i in kept]))
    return found


def _shares(rounds: list[Event]) -> dict[int, Points]:
    """Each cluster's share; all clusters have the same rounds, so that they can be stacked."""
    told = [e for e in rounds if e.get("clusters") and len(e["clusters"]) == len(e["shares"])]
    clusters = sorted({int(c) for e in told for c in e["clusters"]} | _gone(told))
    most = min(MOST_POINTS, max(50, MOST_VALUES // max(1, len(clusters))))
    kept = set(thin(len(told), most))
    kept |= {i for i, e in enumerate(told) if e.get("removed") or e.get("merged")}
    shares: dict[int, Points] = {cluster: [] for cluster in clusters}
    for index in sorted(kept):
        event = told[index]
        now = dict(zip(event["clusters"], event["shares"], strict=True))
        for cluster in clusters:
            shares[cluster].append((event["round"], short(now.get(cluster) or 0.0)))
    return shares


def _gone(rounds: list[Event]) -> set[int]:
    """Clusters that were removed or merged in the first recorded round."""
    return {change.cluster for change in _changes(rounds)}


def _changes(rounds: list[Event]) -> list[Change]:
    changes = []
    for event in rounds:
        number = event["round"]
        changes += [Change(number, int(c), None) for c in event.get("removed") or []]
        changes += [Change(number, int(a), int(b)) for a, b in event.get("merged") or []]
    return changes


def _failures(rounds: list[Event]) -> Failures:
    told = [
        (event["round"], str(client), str(reason))
        for event in rounds
        for client, reason in sorted(_table(event.get("failed")).items())
    ]
    clients = {name: i for i, name in enumerate(sorted({client for _, client, _ in told}))}
    reasons: dict[str, int] = {}
    for _, _, reason in told:
        if reason not in reasons and len(reasons) < MOST_REASONS:
            reasons[reason] = len(reasons)
    if any(reason not in reasons for _, _, reason in told):
        reasons[OTHER] = len(reasons)
    points = [
        (number, clients[client], reasons.get(reason, len(reasons) - 1))
        for number, client, reason in (told[i] for i in thin(len(told), MOST_FAILURES))
    ]
    return Failures(list(clients), list(reasons), points, len(told))


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
