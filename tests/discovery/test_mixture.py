"""Clients that hold several concepts at once."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import shifted

from fedrc_flwr.discovery.fingerprint import take
from fedrc_flwr.discovery.grouping import find, place
from fedrc_flwr.discovery.mixture import _likeliest, without_crumbs

CLASSES, FEATURES, CLIENTS, MIXED = 6, 5, 13, 12


def measured(share=0.5, second=2, held=range(CLASSES), seed=0):
    """Clients with concept 0 or 2 in turn; the last has both, with this share of the second."""
    random = np.random.default_rng(seed)
    contents = 6.0 * random.normal(size=(CLASSES, FEATURES))
    taken = []
    for client in range(CLIENTS):
        content = np.repeat(np.arange(CLASSES), 20)
        labels = np.array(shifted(CLASSES, 2 * (client % 2)))[content]
        if client == MIXED:
            content = np.repeat(list(held), [40 - 5 * i for i in range(len(held))])
            swapped = np.arange(len(content)) % 20 < 20 * share
            labels = np.where(swapped, np.array(shifted(CLASSES, second))[content], content)
        features = contents[content] + random.normal(size=(len(content), FEATURES))
        taken.append(take(features, labels, CLASSES))
    return np.stack([f for f, _ in taken]), np.sum([s for _, s in taken], axis=0)


def test_shares_by_hand():
    # Three samples fit the first group alone, one the second alone; in the second client two labels
    # fit both groups alike, so that only the third tells anything.
    likelihoods = np.array([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [[1, 1], [1, 1], [1, 0]]])
    counts = np.array([[3.0, 1.0, 0.0], [2.0, 2.0, 1.0]])

    np.testing.assert_allclose(_likeliest(likelihoods, counts)[0], [0.75, 0.25])
    np.testing.assert_allclose(_likeliest(likelihoods, counts)[1], [1.0, 0.0], atol=1e-6)


def test_shares_are_the_likeliest_of_all():
    # Against a search over a grid, which knows nothing of EM.
    random = np.random.default_rng(1)
    likelihoods, counts = random.random((1, 7, 2)), random.integers(1, 9, (1, 7)).astype(float)
    grid = np.linspace(0, 1, 1001)
    logs = np.log(grid[:, None] * likelihoods[0, :, 0] + (1 - grid)[:, None] * likelihoods[0, :, 1])

    found = _likeliest(likelihoods, counts)[0]

    assert found[0] == pytest.approx(grid[(logs @ counts[0]).argmax()], abs=0.01)


def test_small_shares_are_left_out():
    np.testing.assert_allclose(
        without_crumbs(np.array([[0.54, 0.4, 0.06]])), [[27 / 47, 20 / 47, 0]]
    )


def test_shares_of_many_concepts_that_are_all_small_stay():
    even = np.full((1, 12), 1 / 12)

    np.testing.assert_allclose(without_crumbs(even), even)


@pytest.mark.parametrize("share", [0.4, 0.5, 0.65])
@pytest.mark.parametrize("held", [range(CLASSES), (0, 1), (1, 4, 5)])
def test_client_with_two_concepts_shows_both(share, held):
    grouping = find(*measured(share, held=held))

    assert grouping.several.tolist() == [False] * MIXED + [True]
    own = grouping.groups[:2]  # of the clients that hold one concept, in turn
    assert own[0] != own[1]
    assert grouping.groups[:MIXED].tolist() == [*own] * (MIXED // 2)
    assert grouping.weights[MIXED, own] == pytest.approx([1 - share, share], abs=0.15)
    assert grouping.established
    np.testing.assert_allclose(grouping.weights.sum(axis=1), 1.0)


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_client_with_one_concept_and_some_mistakes_holds_one(share):
    grouping = find(*measured(share))

    assert not grouping.several.any()
    assert grouping.weights[MIXED, 0] > 0.9


def test_samples_that_fit_no_group_are_no_second_concept():
    # Half of its samples are named as nobody else names them.
    grouping = find(*measured(0.5, second=3))

    assert not grouping.several.any()


def test_client_with_two_concepts_that_joins_later_shows_both():
    fingerprints, scatter = measured()

    weights, several = place(fingerprints, scatter, np.array([0, 1] * 6 + [-1]), 0.0)

    assert several.tolist() == [False] * MIXED + [True]
    assert weights[MIXED] == pytest.approx([0.5, 0.5], abs=0.15)


def test_nobody_holds_two_concepts_where_there_is_one():
    fingerprints, scatter = measured(0.5)
    same = fingerprints[::2]

    assert not find(same, scatter).several.any()
