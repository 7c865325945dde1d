"""Updates that are too long for their cluster, worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrc_flwr.aggregation import BODY
from fedrc_flwr.screening import LEVELS, Screening


def screened(norms: dict[str, float], usual: dict[int, float], multiple: float = 1.5) -> Screening:
    screening = Screening(usual, multiple)
    for name, norm in norms.items():
        screening.take(name, {0: norm}, home=0)
    return screening


def test_updates_of_usual_length_are_added_at_once_and_longer_ones_scaled_down() -> None:
    screening = Screening({0: 1.0, 1: 4.0}, 1.5)

    assert screening.take("a", {0: 1.5}, 0) == (0, {})
    assert screening.take("b", {1: 6.0}, 1) == (0, {})
    assert screening.take("c", {}, None) == (0, {})
    assert screening.take("d", {0: 3.0, 1: 1.0}, 0) == (0, {0: 0.5})
    assert screening.take("e", {0: 6.0}, 0) == (0, {0: 0.25})
    assert screening.take("f", {0: 6.1}, 0) == (1, {})  # up to 12
    assert screening.take("g", {0: 13.0}, 0) == (2, {})
    assert screening.take("h", {0: 1e30}, 0) == (LEVELS, {})


def test_slightly_long_is_clipped_and_far_too_long_is_refused() -> None:
    # The lower median of 1, 1, 1, 4 and 1e30 is 1: up to 1.5 as it is, up to 6 clipped
    screening = screened({"a": 1.0, "b": 1.0, "c": 1.0, "d": 4.0, "e": 1e30}, {0: 1.0})

    verdict = screening.verdict()

    assert verdict.usual == {0: 1.0}
    assert verdict.clipped == {"d": 4.0}
    assert set(verdict.refused) == {"e"}
    assert "cluster 0 has a norm of 1e+30" in verdict.refused["e"]
    assert "the median of 1" in verdict.refused["e"]
    assert verdict.factors == {0: 1.0, LEVELS: 0.0}


def test_where_everybody_s_updates_grew_nobody_is_refused() -> None:
    # Far longer than in the round before, but the median is 10: all on one level, as they are
    verdict = screened({"a": 9.0, "b": 10.0, "c": 11.0}, {0: 1.0}).verdict()

    assert verdict.usual == {0: 10.0}
    assert not verdict.refused
    assert verdict.factors == {1: 1.0}


def test_level_with_short_and_long_updates_is_scaled_by_the_longest() -> None:
    # All between 4 and 16 in the first round; 14 is 3.5 times the median, so the level is scaled
    # down by 3 / 3.5
    verdict = screened({"a": 4.0001, "b": 4.0001, "c": 4.0001, "d": 14.00035}, {}).verdict()

    assert list(verdict.clipped) == ["d"]
    assert list(verdict.factors.values()) == pytest.approx([3.0 / 3.5])


def test_in_the_first_round_the_replies_themselves_are_the_measure() -> None:
    screening = screened({"a": 1e30, "b": 1.0, "c": 1.2, "d": 0.9, "e": 1e30}, {})

    verdict = screening.verdict()

    assert verdict.usual == {0: 1.2}
    assert set(verdict.refused) == {"a", "e"}
    assert sorted(verdict.factors.values()) == [0.0, 1.0, 1.0]


def test_arrival_first_is_no_advantage() -> None:
    norms = {"a": 1e30, "b": 1e30, "c": 1.0, "d": 1.0, "e": 1.0}

    there = screened(norms, {}).verdict()
    back = screened(dict(reversed(norms.items())), {}).verdict()

    assert there.refused == back.refused
    assert there.factors == back.factors


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(0.5, 2.0), min_size=3, max_size=15),
    st.floats(13.0, 1e30),
    st.booleans(),
)
def test_fewer_than_half_cannot_hide(honest: list[float], norm: float, known: bool) -> None:
    norms = {f"h{i}": value for i, value in enumerate(honest)}
    false = {f"a{i}": norm for i in range(len(honest) - 1)}

    verdict = screened({**false, **norms}, {0: 1.0} if known else {}).verdict()

    assert set(verdict.refused) == set(false)


def test_one_of_two_who_was_away_is_scaled_down_and_not_refused() -> None:
    # 22 times the median is refused among many. Of two, nobody knows who is the unusual one.
    many = screened({"a": 1.0, "b": 1.0, "c": 1.0, "away": 22.0}, {0: 1.0}).verdict()
    two = screened({"a": 1.0, "away": 22.0}, {0: 1.0})
    verdict = two.verdict()
    level, factors = Screening({0: 1.0}, 1.5).take("away", {0: 22.0}, home=0)

    assert set(many.refused) == {"away"}
    assert not verdict.refused
    assert verdict.clipped == {"away": 22.0}
    assert factors == {}
    assert 22.0 * verdict.factors[level] == pytest.approx(1.5)  # as long as any update may be


def test_one_who_was_away_does_not_cover_for_an_attacker_elsewhere() -> None:
    screening = Screening({0: 1.0, 1: 1.0}, 1.5)
    for name, norm in {"a": 1.0, "away": 22.0}.items():
        screening.take(name, {0: norm}, home=0)
    for name, norm in {"c": 1.0, "d": 1.0, "e": 1.0, "attacker": 22.0}.items():
        screening.take(name, {1: norm}, home=1)

    verdict = screening.verdict()

    assert set(verdict.refused) == {"attacker"}
    assert set(verdict.clipped) == {"away"}


def test_what_no_training_gives_is_refused_among_two_as_well() -> None:
    verdict = screened({"a": 1.0, "b": 1e30}, {0: 1.0}).verdict()

    assert set(verdict.refused) == {"b"}
    assert verdict.factors[LEVELS] == 0.0


def test_members_are_those_whose_samples_are_mostly_there() -> None:
    # Others train the cluster a little; their short updates do not make a member's too long
    screening = Screening({0: 1.0}, 1.5)
    for name in ("a", "b"):
        screening.take(name, {0: 1.0}, home=0)
    for name in ("c", "d", "e", "f"):
        screening.take(name, {0: 0.01, 1: 1.0}, home=1)

    verdict = screening.verdict()

    assert verdict.usual == {0: 1.0, 1: 1.0}
    assert not verdict.refused
    assert not verdict.clipped


def test_body_is_everybody_s() -> None:
    screening = Screening({}, 1.5)
    for name, norm in {"a": 1.0, "b": 2.0, "c": 50.0}.items():
        screening.take(name, {BODY: norm}, home=0)

    verdict = screening.verdict()

    assert verdict.usual == {BODY: 2.0}
    assert "the shared body" in verdict.refused["c"]


def test_lone_member_is_compared_with_the_round_before() -> None:
    assert screened({"a": 1e30}, {0: 1.0}).verdict().usual == {0: 4.0}
    assert set(screened({"a": 1e30}, {0: 1.0}).verdict().refused) == {"a"}
    assert screened({"a": 3.0}, {0: 1.0}).verdict().refused == {}


def test_lone_member_of_the_first_round_is_compared_with_other_clusters() -> None:
    screening = Screening({}, 1.5)
    screening.take("a", {0: 1.0}, home=0)
    screening.take("b", {0: 1.0}, home=0)
    screening.take("c", {1: 1e12}, home=1)

    verdict = screening.verdict()

    assert verdict.usual == {0: 1.0, 1: 4.0}
    assert set(verdict.refused) == {"c"}


def test_median_falls_slowly_so_that_one_with_harder_samples_is_not_struck() -> None:
    verdict = screened({"a": 0.1, "b": 0.1, "c": 0.1, "d": 1.4}, {0: 1.0}).verdict()

    assert verdict.usual == {0: 0.95}
    assert not verdict.refused
    assert not verdict.clipped


def test_new_cluster_is_compared_with_the_others() -> None:
    screening = Screening({0: 1.0, 1: 2.0}, 1.5)

    assert screening.take("a", {7: 1.5}, 7) == (0, {})
    assert screening.take("b", {7: 3.0}, 7) == (0, {7: 0.5})


def test_zero_switches_it_off() -> None:
    screening = screened({"a": 1.0, "b": 1.0, "c": 1e30}, {}, math.inf)

    verdict = screening.verdict()

    assert verdict.factors == {0: 1.0}
    assert not verdict.refused


@pytest.mark.parametrize("usual", [{}, {0: 1.0}])
def test_who_trained_nothing_is_neither_long_nor_short(usual: dict[int, float]) -> None:
    screening = Screening(usual, 1.5)
    screening.take("listens", {}, 0)
    screening.take("still", {0: 0.0}, 0)

    assert screening.verdict().usual == {}
