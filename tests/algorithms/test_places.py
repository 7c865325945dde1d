"""Places after clients were measured again: which clusters go on, and with what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedrc_flwr.algorithms.places import (
    AGREEMENT,
    FOUND,
    NEXT,
    SEVERAL,
    UNPLACED,
    heard,
    regrouped,
)
from fedrc_flwr.data.scenario import TRAIN
from fedrc_flwr.discovery.grouping import Grouping
from fedrc_flwr.state import ClientRecord, Membership, ServerState

CLUSTERS = (0, 2, 3)


def state_of(places: dict[str, int], **shares: list[float]) -> ServerState:
    """Three clusters after a discovery, and a client with ten samples in each place."""
    clients = {}
    for name, cluster in places.items():
        weights = shares.get(name, [float(c == cluster) for c in CLUSTERS])
        counts = 10.0 * np.array(weights)[:, None]
        held = np.array(weights) if cluster == SEVERAL else None
        clients[name] = ClientRecord(TRAIN, 10, label_counts=counts, cluster=cluster, shares=held)
    return ServerState(
        round=8,
        membership=Membership(CLUSTERS, {1: 0}),
        models={c: np.full(2, c, dtype=np.float32) for c in CLUSTERS},
        body=None,
        clients=clients,
        parameters=2,
        body_parameters=0,
        optimizer={"momentum": {**{c: np.full(2, c / 10) for c in CLUSTERS}, -1: np.ones(3)}},
        numbers={FOUND: 3.0, NEXT: 4.0, AGREEMENT: 0.0},
    )


def grouping(*groups: int) -> Grouping:
    """A grouping that is sure of itself."""
    count = len(groups)
    return Grouping(
        np.array(groups), np.eye(max(groups) + 1)[list(groups)], np.zeros(count, dtype=bool),
        np.zeros((count, count)), np.zeros(count, dtype=bool), 0.0, True, "found",
    )  # fmt: skip


def placed(state: ServerState, measured: dict[str, int]) -> tuple[ServerState, Any]:
    return regrouped(state, grouping(*measured.values()), list(measured), 9)


def test_cluster_of_which_nobody_was_measured_stays_as_it_is() -> None:
    before = state_of({"a": 0, "b": 0, "c": 3, "absent": 2})

    state, told = placed(before, {"a": 0, "b": 1, "c": 1})

    assert state.clusters == CLUSTERS
    assert {n: r.cluster for n, r in state.clients.items()} == {"a": 0, "b": 3, "c": 3, "absent": 2}
    assert state.clients["absent"].mixture_weights().tolist() == [0.0, 1.0, 0.0]
    assert state.clients["b"].mixture_weights().tolist() == [0.0, 0.0, 1.0]
    np.testing.assert_array_equal(state.models[2], before.models[2])
    np.testing.assert_array_equal(state.optimizer["momentum"][2], [0.2, 0.2])
    assert told["sentence"] == "found; measured again, b moved; nobody in cluster 2 was measured"


def test_cluster_whose_members_went_elsewhere_is_merged_and_its_id_is_not_used_again() -> None:
    before = state_of({"a": 0, "b": 2, "c": 3, "d": 3, "absent": 2})

    state, _ = placed(before, {"a": 0, "b": 0, "c": 1, "d": 2})

    assert state.clusters == (0, 3, 4)
    assert state.membership.merged == {1: 0, 2: 0}
    assert state.clients["absent"].cluster == 0
    # The new cluster starts where its member was, with that cluster's momentum.
    np.testing.assert_array_equal(state.models[4], before.models[3])
    np.testing.assert_array_equal(state.optimizer["momentum"][4], [0.3, 0.3])
    np.testing.assert_array_equal(state.optimizer["momentum"][-1], np.ones(3))
    assert set(state.optimizer["momentum"]) == {-1, 0, 3, 4}
    assert state.numbers[NEXT] == 5.0


def test_client_with_several_concepts_keeps_its_shares_by_cluster() -> None:
    # Clusters 0, 2, 3 become 0, 3, 4, with 2 merged into 0: as many, but not the same.
    before = state_of(
        {"a": 0, "b": 2, "c": 3, "d": 3, "both": SEVERAL, "open": UNPLACED},
        both=[0.0, 0.4, 0.6], open=[0.7, 0.2, 0.1],
    )  # fmt: skip

    state, _ = placed(before, {"a": 0, "b": 0, "c": 1, "d": 2})

    assert state.clients["both"].cluster == SEVERAL
    assert state.clients["both"].mixture_weights() == pytest.approx([0.4, 0.6, 0.0])
    assert state.clients["open"].cluster == UNPLACED
    assert state.clients["open"].mixture_weights() == pytest.approx([1 / 3] * 3)


def test_absent_client_whose_two_clusters_became_one_is_in_that_cluster() -> None:
    before = state_of({"a": 0, "b": 2, "c": 3, "absent": SEVERAL}, absent=[0.5, 0.5, 0.0])

    state, _ = placed(before, {"a": 0, "b": 0, "c": 1})

    assert state.clusters == (0, 3)
    absent = state.clients["absent"]
    assert (absent.cluster, absent.shares) == (0, None)
    assert absent.mixture_weights().tolist() == [1.0, 0.0]


def test_client_that_listened_holds_several_concepts_only_if_two_have_a_share() -> None:
    state = state_of({"a": UNPLACED, "b": UNPLACED}, a=[0.6, 0.3, 0.1], b=[0.64, 0.36, 0.0])
    crumbs = np.array([0.6, *[0.05] * 8])
    many = replace(
        state,
        membership=Membership(tuple(range(9))),
        clients={"a": ClientRecord(TRAIN, 10, label_counts=10.0 * crumbs[:, None])},
    )

    assert heard(state, "a", 0.65)[0].cluster == SEVERAL
    assert heard(state, "b", 0.65)[0].shares.tolist() == pytest.approx([0.64, 0.36, 0.0])
    record, told = heard(many, "a", 0.65)
    assert (record.cluster, record.shares) == (0, None)
    assert told == "a is in cluster 0, by the models that fit it"


def test_client_with_several_concepts_keeps_its_shares_if_nobody_else_of_one_was_measured() -> None:
    places = {"a": 0, "b": 3, "both": SEVERAL, "other": SEVERAL, "absent": 2}
    before = state_of(places, both=[0.5, 0.5, 0.0], other=[0.5, 0.0, 0.5])

    state, _ = placed(before, {"a": 0, "b": 1, "both": 0, "other": 1})

    assert state.clusters == CLUSTERS
    assert state.clients["both"].cluster == SEVERAL
    assert state.clients["both"].shares.tolist() == [0.5, 0.5, 0.0]
    assert state.clients["both"].mixture_weights().tolist() == [0.5, 0.5, 0.0]
    # Both concepts of the other were measured, and it was found to hold one.
    assert (state.clients["other"].cluster, state.clients["other"].shares) == (3, None)
