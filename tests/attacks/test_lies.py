"""Figures that a client or a server invents: releases, noise, evaluations, rounds, memberships."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from settings_of import configured
from test_wire import CLASSES, make_broadcast

from fedrc_flwr import bounds, wire
from fedrc_flwr.algorithms.messages import Reply
from fedrc_flwr.checkpoint import CheckpointError, _unpacked
from fedrc_flwr.engine.in_process import in_memory
from fedrc_flwr.engine.judging import judge
from fedrc_flwr.errors import WireError
from fedrc_flwr.metrics import Evaluation, Tally
from fedrc_flwr.records import Parcel, closed, opened
from fedrc_flwr.state import ClientRecord, Membership

TINY = {"recipe": "default", "data.clients": 5, "rounds": 3, "model.hidden": 8}


# --- a client ------------------------------------------------------------------------------------


def honest_reply() -> Reply:
    counts = np.array([[60.0, 40.0]])
    return Reply(100, {}, counts, None, 0.0, 0, {"accuracy": 0.5, "loss": 1.0})


@pytest.mark.parametrize(
    ("noise", "releases"), [(1e-200, 1), (5e-324, 1), (1.0, 2**63 - 1), (1e-150, 2**40)]
)
def test_releases_that_nobody_makes_are_refused(noise: float, releases: int) -> None:
    """They ended the run with an overflow, or made its epsilon 1e22."""
    lie = replace(honest_reply(), noise=noise, releases=releases)

    assert bounds.problem(honest_reply(), 100) is None
    assert "releases with a noise of" in str(bounds.problem(lie, 100))


def tally(right: int, wrong: int) -> Tally:
    return Tally(np.array([[right, wrong], [0, 0]]), np.array([right]))


def judged(samples: float, **told: float) -> Evaluation:
    return Evaluation({"samples": samples, "accuracy": 0.75, "loss": 0.5, **told}, tally(3, 1))


LIES: dict[str, tuple[Evaluation, str]] = {
    "accuracy": (Evaluation({"samples": 4.0, "accuracy": 1e300}), "accuracy = 1e.300, which"),
    "negative": (Evaluation({"samples": -4.0}), "samples = -4, which cannot be"),
    "half a sample": (Evaluation({"samples": 4.5}), "reports 4.5 test samples"),
    "other counts": (judged(4.0, accuracy=1.0), "accuracy of 1, and counts that give 0.75"),
    "cluster": (judged(4.0, cluster=7.0), "cluster 7, which does not exist"),
    "unknown": (judged(4.0, praise=1.0), "'praise', which nobody asked for"),
    "loss": (judged(4.0, loss=1e30), "loss = 1e.30, which cannot be"),
    "more than before": (judged(4.0), "reports 4 test samples, and before 3"),
}


@pytest.mark.parametrize("lie", LIES)
def test_evaluation_that_cannot_be_is_refused(lie: str) -> None:
    evaluation, words = LIES[lie]
    before = 3 if lie == "more than before" else None

    assert bounds.evaluation_problem(judged(4.0, cluster=1.0), (1, 2), 4) is None
    found = bounds.evaluation_problem(evaluation, (1, 2), before)
    assert found is not None
    assert re.search(words, found)


def test_claim_of_many_test_samples_does_not_decide_the_score_of_all() -> None:
    clients = {f"client-{i}": ClientRecord("train", 10) for i in range(5)}
    told = {n: Evaluation({"samples": 4.0, "cluster": 0.0}, tally(3, 1)) for n in clients}
    liar = Tally(np.array([[0, 4 * 10**8], [0, 0]]), np.array([0]))
    told["client-0"] = Evaluation({"samples": 4e8, "cluster": 0.0}, liar)

    scores = judge(told, clients, (0,))["scores"]["local"]

    # Ten times the median: 40 wrong of its own, and 12 right of 16 of the others.
    assert scores["samples"] == 40 + 16
    assert scores["accuracy"] == pytest.approx(12 / 56)


def test_number_of_test_samples_is_the_same_in_the_whole_run() -> None:
    rounds, carrier = in_memory(configured(**TINY))
    rounds.state = replace(rounds.state, round=1)
    name = carrier.online("train")[0]
    told = iter((4.0, 4.0, 9.0))

    def deliver(letters: Any, enough: Any) -> Any:
        for letter in letters:
            if letter.name == name and not letter.trains:
                yield letter, Evaluation({"samples": next(told)})

    for _ in range(3):
        rounds._owe(carrier, decides=True)
        letters = rounds._evaluations.letters([name])
        with patch.object(carrier, "deliver", deliver):
            list(rounds._exchanged(carrier, letters))

    assert "reports 9 test samples, and before 4" in rounds.failed[name]
    assert name in rounds._strikes


# --- a server ------------------------------------------------------------------------------------


Change = Callable[[Parcel], Any]


def with_prior(prior: Any) -> Change:
    return lambda parcel: parcel.arrays.update({"label-prior": np.asarray(prior, dtype=float)})


def with_value(name: str, value: Any) -> Change:
    return lambda parcel: parcel.values.update({name: value})


BROADCASTS: dict[str, Change] = {
    "clusters merged in a circle": with_value("merged", [0, 1, 1, 0]),
    "a cluster merged into itself": with_value("merged", [0, 0]),
    "half a pair": with_value("merged", [0]),
    "a thousand times the epochs": with_value("passes", 1000),
    "no epochs": with_value("passes", 0),
    "an exponent that is not finite": with_value("exponent", float("nan")),
    "shares that are no distribution": with_value("shares", [0.5, 0.6]),
    "a negative share": with_value("shares", [1.5, -0.5]),
    "shares of other clusters": with_value("shares", [0.2, 0.3, 0.5]),
    "shares that are not finite": with_value("shares", [float("nan"), 1.0]),
    "a cluster without a model": with_value("clusters", [3, 7, 9]),
    "no cluster": with_value("clusters", []),
    "words for numbers": with_value("round", "x" * 10**6),
    "a prior of zeros": with_prior(np.zeros((2, CLASSES))),
    "a prior that is not finite": with_prior(np.full((2, CLASSES), np.inf)),
    "a prior of another shape": with_prior(np.ones(2)),
    "no layout": lambda parcel: parcel.values.pop("layout"),
    "no models": lambda parcel: parcel.arrays.clear(),
}


@pytest.mark.parametrize("what", BROADCASTS)
def test_client_refuses_a_broadcast_in_one_short_line(what: str) -> None:
    """The first two kept the node computing for ever."""
    content = wire.encode_broadcast(make_broadcast(), "layout")
    wire.decode_broadcast(content, "layout")
    parcel = opened(content, "broadcast")
    BROADCASTS[what](parcel)

    with pytest.raises(WireError) as caught:
        wire.decode_broadcast(closed("broadcast", parcel), "layout")
    assert len(str(caught.value)) < 200


# --- a file --------------------------------------------------------------------------------------


def test_checkpoint_with_clusters_merged_in_a_circle_is_refused(tmp_path: Any) -> None:
    with pytest.raises(CheckpointError, match="merged into itself"):
        _unpacked(tmp_path, lambda: Membership((2,), {0: 1, 1: 0}))
    assert Membership((2,), {0: 1, 1: 2}).successor(0) == 0
