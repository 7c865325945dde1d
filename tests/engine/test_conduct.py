"""Strikes, quarantine and pauses, round by round."""

from __future__ import annotations

import numpy as np
import pytest

from fedrc_flwr.engine import conduct
from fedrc_flwr.state import ClientRecord, Membership, ServerState

NAMES = ["a", "b", "c", "d"]


def federation() -> ServerState:
    records = {n: ClientRecord("train", 5, np.ones((1, 2)), loss=0.5) for n in NAMES}
    models = {0: np.zeros(2, np.float32)}
    return ServerState(0, Membership((0,)), models, None, records, parameters=2)


def test_three_strikes_put_a_client_into_quarantine_and_its_reports_out_of_use() -> None:
    state = federation()
    for number in range(3):
        assert conduct.quarantined(state) == [], number
        assert state.clients["b"].label_counts is not None
        state = conduct.struck(state, ["b"], ["a", "b"])

    assert conduct.quarantined(state) == ["b"]
    assert state.clients["b"].label_counts is None
    assert state.masses()[0].tolist() == [6.0]  # of the other three
    assert conduct.to_be_asked(state, ["a", "b", "c"], 4, needed=3) == ["a", "c"]


def test_strikes_are_taken_away_by_ten_replies_in_a_row() -> None:
    state = conduct.struck(federation(), ["b"], [])
    state = conduct.struck(state, ["b"], [])
    for _ in range(9):
        state = conduct.struck(state, [], ["b"])
    assert state.clients["b"].strikes == 2

    assert conduct.struck(state, [], ["b"]).clients["b"].strikes == 1
    # A strike in between starts the count again
    again = conduct.struck(conduct.struck(federation(), ["b"], []), [], ["b"])
    again = conduct.struck(again, ["b"], ["b"])
    assert (again.clients["b"].strikes, again.clients["b"].clean) == (2, 0)


def test_quarantine_is_not_outlived() -> None:
    state = federation()
    for _ in range(3):
        state = conduct.struck(state, ["b"], [])
    for _ in range(50):
        state = conduct.struck(state, [], ["a", "c"])

    assert conduct.quarantined(state) == ["b"]


def test_forgiven_client_is_asked_again() -> None:
    state = federation()
    for _ in range(3):
        state = conduct.struck(state, ["b"], [])

    state = conduct.forgiven(state, "b")

    assert conduct.quarantined(state) == []
    assert conduct.to_be_asked(state, ["a", "b"], 4, needed=1) == ["a", "b"]


def test_forgotten_client_leaves_nothing_behind() -> None:
    state = conduct.forgotten(federation(), "b")

    assert sorted(state.clients) == ["a", "c", "d"]
    assert state.masses()[0].tolist() == [6.0]


@pytest.mark.parametrize(("times", "rest"), [(1, 0), (2, 1), (3, 3), (4, 7), (5, 15), (9, 15)])
def test_silent_client_rests_longer_and_longer(times: int, rest: int) -> None:
    state = federation()
    for _ in range(times):
        state = conduct.noticed(state, ["a"], ["b"], NAMES, round_number=20)

    expected = {"b": 20 + rest + 1} if rest else {}
    assert conduct.resting(state, 21) == expected
    assert ("b" in conduct.to_be_asked(state, ["a", "b", "c"], 21, needed=2)) == (rest == 0)
    assert "b" in conduct.to_be_asked(state, ["a", "b", "c"], 21 + rest, needed=2)


def test_client_that_cannot_be_reached_is_silent_but_is_asked_when_it_is_back() -> None:
    state = federation()
    for number in range(1, 9):
        state = conduct.noticed(state, ["a", "c", "d"], [], ["a", "c", "d"], number)

    assert {n: r.silent for n, r in state.clients.items()} == {"a": 0, "b": 1, "c": 0, "d": 0}
    assert conduct.to_be_asked(state, NAMES, 9, needed=1) == NAMES
    state = conduct.noticed(state, NAMES, [], NAMES, 9)
    assert state.clients["b"].silent == 0


def test_answer_ends_the_pauses() -> None:
    state = federation()
    for _ in range(4):
        state = conduct.noticed(state, [], ["b"], NAMES, round_number=3)

    state = conduct.noticed(state, ["b"], [], NAMES, round_number=30)

    assert (state.clients["b"].silent, state.clients["b"].rests) == (0, 0)


def test_resting_clients_are_asked_where_the_others_are_too_few() -> None:
    state = federation()
    for _ in range(3):
        state = conduct.noticed(state, [], ["b", "c", "d"], NAMES, round_number=3)

    assert conduct.to_be_asked(state, ["a", "b", "c", "d"], 4, needed=1) == ["a"]
    assert conduct.to_be_asked(state, ["a", "b", "c", "d"], 4, needed=2) == ["a", "b", "c", "d"]
