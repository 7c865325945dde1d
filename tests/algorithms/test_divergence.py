"""Training that diverges, and weights that are no distribution: typed errors, nothing kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from federation import Federation
from settings_of import configured

from fedrc_flwr.aggregation import UpdateSums, update_norm
from fedrc_flwr.algorithms import ALGORITHMS
from fedrc_flwr.algorithms.messages import RoundResult
from fedrc_flwr.algorithms.pfedme import PFedMeSettings
from fedrc_flwr.algorithms.step import Step
from fedrc_flwr.errors import DivergedError, WeightsError
from fedrc_flwr.finite import finite
from fedrc_flwr.state import ClientRecord, ClientState

torch.set_num_threads(1)

TINY = {
    "clients": 3, "concept_shares": "1.0", "corrupted_shares": "0.0", "samples_per_client": 30,
    "observers_per_concept": 1, "hidden": 6, "fedrc.clusters": 2, "ifca.clusters": 2,
    "batch_size": 8, "epochs": 3, "local.learning-rate": 0.1,
}  # fmt: skip


def federation(**keys: Any) -> Federation:
    return Federation(configured(**{**TINY, **keys}))


# --- the test of finiteness ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "passes"),
    [
        (np.zeros(0, np.float32), True), (np.ones((2, 3)), True), (0.5, True), (3, True),
        (None, True), (np.array([1e19, 0], np.float32), True), (np.array([1e19, 0.0]), True),
        (np.array([1e19, 1.6e19], np.float32), False),  # 1e38 + 2.56e38 > 3.40e38
        (np.array([1e19, 1.6e19]), False), (np.array([0, 1e38], np.float32), False),
        (np.array([np.nan]), False), (np.array([[1.0, -np.inf]]), False),
        (float("nan"), False), (float("inf"), False),
    ],
)  # fmt: skip
def test_finite_is_what_can_be_squared_in_float32(value: Any, passes: bool) -> None:
    assert finite([1.0, value]) == passes


# --- clients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_client_that_diverges_says_so_and_its_state_stays(algorithm: str) -> None:
    federated = federation(algorithm=algorithm)
    federated.round()
    before, server = dict(federated.client_states), federated.state
    clients = federated.participants.items()
    federated.participants = {name: replace(client, noise=1.0) for name, client in clients}
    wild = federated.algorithm
    wild.local = replace(wild.local, learning_rate=1e25)
    if isinstance(wild.settings, PFedMeSettings):
        wild.settings = replace(wild.settings, rate=1e25)

    with pytest.raises(DivergedError) as caught:
        federated.round()

    assert "training diverged in round 2" in str(caught.value)
    assert "lower local.learning-rate" in str(caught.value)
    assert federated.client_states == before
    assert federated.state is server


def test_losses_that_are_not_finite_are_no_reason_to_choose_a_cluster() -> None:
    # The mean of NaN is NaN, and NumPy takes the first NaN for the smallest number.
    federated = federation(algorithm="ifca")
    broadcast = federated.algorithm.broadcast(federated.state, 1, 10)
    losses = np.array([[0.5, np.nan], [0.5, 0.1]])

    with pytest.raises(DivergedError, match="after round 1 give losses that are not finite"):
        federated.algorithm.assigned_weights(losses, np.array([0, 1]), broadcast)


# --- weights ------------------------------------------------------------------------------------

BAD = [[0.0, 0.0], [0.5, 0.6], [1.2, -0.2], [np.nan, 1.0], [1.0]]


@pytest.mark.parametrize("weights", BAD)
def test_expectation_that_gives_no_distribution_is_refused(
    weights: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    federated = federation()

    def only_weights(step: Step) -> Any:
        even = np.full_like(step.losses, 0.5)
        return even, replace(step.state, mixture_weights=np.array(weights))

    def only_rows(step: Step) -> Any:
        return np.repeat([weights], len(step.losses), axis=0), step.state

    for expectation in (only_weights, only_rows):
        monkeypatch.setattr(federated.algorithm, "expectation", expectation)
        with pytest.raises(
            WeightsError, match=r"fedrc\.expectation: expected finite, nonnegative weights"
        ):
            federated.round()
    assert federated.client_states == {}


@pytest.mark.parametrize("weights", BAD)
def test_observer_is_not_judged_by_weights_that_are_no_distribution(
    weights: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    federated = federation()
    federated.round()
    monkeypatch.setattr(federated.algorithm, "assign", lambda *_: np.array(weights))

    with pytest.raises(WeightsError, match=r"fedrc\.assign: expected finite, nonnegative weights"):
        federated.evaluate()


def test_client_is_not_judged_by_a_state_without_a_distribution() -> None:
    federated = federation()
    federated.round()
    federated.client_states["client-0"] = ClientState(1, (0, 1), np.zeros(2))

    with pytest.raises(WeightsError, match="the client's state"):
        federated.evaluate()


# --- the server ---------------------------------------------------------------------------------


def test_norm_is_that_of_all_vectors_and_never_overflows() -> None:
    def vector(*values: float) -> np.ndarray:
        return np.array(values, dtype=np.float32)

    assert update_norm([]) == 0.0
    assert update_norm([vector(3, 4), vector(-12)]) == pytest.approx(13.0)
    assert update_norm([vector(3e38, -3e38), vector(1)]) == pytest.approx(3e38 * 2**0.5)


@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ({"a": 1.0, "b": 2.0, "c": 2001.0}, {"c"}),  # the median is 2
        ({"a": 1.0, "b": 2.0, "c": 1999.0}, {"c"}),  # none is far from it: the largest
        ({"a": 1e30, "b": 1.0, "c": 3.0, "d": 2.0, "e": 1e38}, {"a", "e"}),
        ({"a": 0.0, "b": 0.0, "c": 0.5}, {"c"}),
        ({"a": 1.0}, {"a"}),
    ],
)
def test_culprits_are_the_updates_far_larger_than_usual(
    norms: dict[str, float], expected: set[str]
) -> None:
    result = RoundResult(UpdateSums(True), norms=norms)

    found = result.culprits()

    assert set(found) == expected
    assert all("no longer finite" in reason for reason in found.values())


def test_culprit_may_be_the_one_whose_statistics_are_too_large() -> None:
    fine = ClientRecord("train", 3, label_counts=np.ones((2, 2)))
    huge = replace(fine, label_counts=np.full((2, 2), 1e200))
    norms = {"a": 1.0, "b": 9.0, "c": 2.0}
    result = RoundResult(UpdateSums(True), {"a": huge, "b": fine, "c": fine}, norms=norms)

    assert result.culprits() == {"a": "its statistics are too large to compute with"}
