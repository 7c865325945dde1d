"""What a run came to: numbers that can be checked by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from fedrc_flwr.config import RunConfig, build_algorithm
from fedrc_flwr.privacy import PrivacySettings
from fedrc_flwr.report.headline import Headline
from fedrc_flwr.report.summary import adjusted_rand_index, summarise
from fedrc_flwr.state import ClientRecord, Membership, ServerState

CLUSTERS = 3


def record(
    cluster: int | None, concept: int = -1, role: str = "train", **more: Any
) -> ClientRecord:
    """A client whose counts lie mostly in one cluster, or that never reported."""
    counts = None
    if cluster is not None:
        counts = np.full((CLUSTERS, 2), 1.0)
        counts[cluster] += 10.0
    return ClientRecord(role, 20, label_counts=counts, concept=concept, **more)


def state_of(*records: ClientRecord) -> ServerState:
    return ServerState(
        round=7,
        membership=Membership((0, 2, 5)),
        models={c: np.zeros(1, dtype=np.float32) for c in (0, 2, 5)},
        body=None,
        clients={f"client-{i}": r for i, r in enumerate(records)},
        parameters=1,
    )


def epsilon(state: ServerState, **privacy: float) -> float | None:
    config = RunConfig(privacy=PrivacySettings(**privacy))
    return build_algorithm(config).epsilon(state)


def test_perfect_clustering_scores_one_whatever_the_clusters_are_called() -> None:
    relabelled = {0: 2, 1: 0, 2: 1}

    state = state_of(*(record(relabelled[c], c) for c in (0, 0, 1, 1, 2, 2)))

    assert adjusted_rand_index(state) == 1.0


def test_random_clustering_scores_about_zero() -> None:
    rng = np.random.default_rng(0)

    state = state_of(*(record(int(rng.integers(3)), int(rng.integers(3))) for _ in range(2000)))

    assert adjusted_rand_index(state) == pytest.approx(0.0, abs=0.02)


def test_two_concepts_in_one_cluster_score_less_than_one() -> None:
    state = state_of(*(record(min(c, 1), c) for c in (0, 0, 1, 1, 2, 2)))

    score = adjusted_rand_index(state)

    assert score is not None
    assert 0.0 < score < 1.0


@pytest.mark.parametrize(
    "records",
    [
        [],
        [record(0), record(1)],
        [record(None, 0), record(None, 1)],
        [record(0, 0, role="observe"), record(1, 1, role="observe")],
    ],
    ids=["nobody", "concepts-unknown", "nothing-reported", "observers-only"],
)
def test_clustering_that_cannot_be_judged_has_no_score(records: list[ClientRecord]) -> None:
    assert adjusted_rand_index(state_of(*records)) is None


def test_clients_that_cannot_be_judged_do_not_count() -> None:
    judged = [record(c, c) for c in (0, 1, 2)]
    others = [record(1, -1), record(None, 2), record(1, 0, role="observe")]

    assert adjusted_rand_index(state_of(*judged, *others)) == 1.0


def test_epsilon_is_that_of_the_client_that_spent_most() -> None:
    modest, spender = record(0, noise=20.0, spent=0.01), record(1, noise=4.0, spent=1.0)

    found = epsilon(state_of(modest, spender), delta=1e-5)

    assert found is not None
    # delta(epsilon) of a Gaussian mechanism with mu = 1 (Dong et al. 2022, Corollary 1)
    delta = norm.cdf(0.5 - found) - math.exp(found) * norm.cdf(-0.5 - found)
    assert delta == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize(
    "records",
    [
        [],
        [record(None, noise=1.0)],
        [record(0, noise=1.0, spent=1.0), record(1, noise=1.0, spent=math.inf)],
    ],
    ids=["nobody", "nothing-reported", "one-without-a-bound"],
)
def test_no_epsilon_where_none_can_be_claimed(records: list[ClientRecord]) -> None:
    assert epsilon(state_of(*records)) is None


def test_client_that_never_reported_does_not_hide_epsilon() -> None:
    state = state_of(record(0, noise=50.0, spent=0.1), record(None, noise=0.0))

    assert epsilon(state) is not None


def test_summary_holds_the_runs_numbers() -> None:
    config = RunConfig(algorithm="fedrc", scenario="digits", seed=5)
    evaluation = {
        "round": 5,
        "local_accuracy": 0.9,
        "global_accuracy": 0.8,
        "fine_tuned_local_accuracy": 0.95,
        "scores": {"local": {"samples": 40}},
        "loss": 0.1,
    }

    summary = summarise(
        state_of(record(0, 0), record(1, 1)),
        config.to_dict(),
        "completed",
        1.23456,
        evaluation,
        epsilon=2.5,
        undecided="how many clusters there are",
        said=Headline((("undecided", "Undecided."), ("progress", "Three clusters."))),
    )

    assert summary == {
        "headline": "Undecided. Three clusters.",
        "verdict": "undecided",
        "status": "completed",
        "rounds": 7,
        "seconds": 1.235,
        "clusters": 3,
        "local_accuracy": 0.9,
        "global_accuracy": 0.8,
        "fine_tuned_local_accuracy": 0.95,
        "scores": {"local": {"samples": 40}},
        "adjusted_rand_index": 1.0,
        "epsilon": 2.5,
        "undecided": "how many clusters there are",
        "algorithm": "fedrc",
        "scenario": "digits",
        "seed": 5,
    }
    json.dumps(summary, allow_nan=False)


def test_summary_of_a_run_that_failed_at_once_says_why_and_has_no_numbers() -> None:
    summary = summarise(
        state_of(), RunConfig().to_dict(), "failed", 0.0, {}, epsilon=None, reason="nobody came"
    )

    assert (summary["status"], summary["reason"]) == ("failed", "nobody came")
    assert summary["local_accuracy"] is None
    assert summary["global_accuracy"] is None
    assert summary["adjusted_rand_index"] is None
