"""What the server makes of evaluations: by client, by cluster, pooled."""

from __future__ import annotations

import numpy as np
import pytest

from fedrc_flwr.engine.judging import judge
from fedrc_flwr.metrics import Evaluation, Tally
from fedrc_flwr.state import ClientRecord

CLIENTS = {
    "a": ClientRecord("train", 30),
    "b": ClientRecord("train", 10),
    "c": ClientRecord("train", 10),
    "o": ClientRecord("observe", 10),
}


def evaluated(cluster: float, confusion: list[list[int]], right: list[int]) -> Evaluation:
    counts = np.array(confusion)
    accuracy = float(counts.trace() / counts.sum())
    metrics = {"samples": float(counts.sum()), "accuracy": accuracy, "loss": 1.0}
    return Evaluation({**metrics, "cluster": cluster}, Tally(counts, np.array(right)))


EVALUATIONS = {
    "a": evaluated(0.0, [[8, 0], [1, 1]], [9, 2]),
    "b": evaluated(0.0, [[4, 0], [0, 1]], [5, 1]),
    "c": evaluated(3.0, [[1, 1], [0, 8]], [3, 9]),
    "o": evaluated(3.0, [[5, 0], [0, 5]], [5, 5]),
}


def test_pooled_scores_by_hand() -> None:
    scores = judge(EVALUATIONS, CLIENTS, (0, 3))["scores"]

    assert scores["clusters"]["0"]["samples"] == 15
    assert scores["clusters"]["0"]["accuracy"] == pytest.approx(14 / 15)
    assert scores["clusters"]["0"]["balanced_accuracy"] == pytest.approx((1 + 2 / 3) / 2)
    assert scores["clusters"]["0"]["right"] == {"0": 14, "3": 3}
    assert scores["clusters"]["3"]["right"] == {"0": 3, "3": 9}
    assert scores["local"]["samples"] == 25
    assert scores["global"]["accuracy"] == 1.0


def test_pooled_scores_are_compared_with_a_constant_answer_per_cluster() -> None:
    """Cluster 0 always answers 0 and cluster 3 always 1: 12 + 8 right of 25."""
    local = judge(EVALUATIONS, CLIENTS, (0, 3))["scores"]["local"]

    assert local["constant_accuracy"] == pytest.approx(20 / 25)
    assert local["constant_balanced_accuracy"] == pytest.approx((12 / 14 + 8 / 11) / 2)


def test_each_client_has_scores_of_its_own() -> None:
    outcome = judge(EVALUATIONS, CLIENTS, (0, 3))

    assert outcome["clients"]["a"]["balanced_accuracy"] == pytest.approx(0.75)
    assert outcome["clients"]["a"]["constant_accuracy"] == pytest.approx(0.8)
    assert outcome["local_balanced_accuracy"] == outcome["scores"]["local"]["balanced_accuracy"]
    assert set(outcome["tallies"]) == set(EVALUATIONS)


def test_clients_that_send_no_counts_are_left_out_of_what_is_pooled() -> None:
    silent = {**EVALUATIONS, "a": Evaluation(EVALUATIONS["a"].metrics)}

    outcome = judge(silent, CLIENTS, (0, 3))

    assert outcome["local_accuracy"] == pytest.approx((0.9 + 1.0 + 0.9) / 3)
    assert outcome["scores"]["local"]["samples"] == 15
    assert "balanced_accuracy" not in outcome["clients"]["a"]


def test_without_any_counts_there_are_no_scores() -> None:
    silent = {name: Evaluation(e.metrics) for name, e in EVALUATIONS.items()}

    outcome = judge(silent, CLIENTS, (0, 3))

    assert "scores" not in outcome
    assert "tallies" not in outcome
    assert outcome["global_accuracy"] == 1.0
