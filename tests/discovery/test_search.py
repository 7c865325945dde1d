import numpy as np
import pytest
from synthetic import federation, shifted

from fedrc_flwr.discovery.grouping import find
from fedrc_flwr.discovery.search import compact, search, within


def all_groupings(count):
    """Every grouping of so many clients, (B, n): Bell's number of them."""
    groupings = [[0]]
    for _ in range(count - 1):
        groupings = [[*g, k] for g in groupings for k in range(max(g) + 2)]
    return np.array(groupings)


GROUPINGS = all_groupings(8)
TOGETHER = (GROUPINGS[:, :, None] == GROUPINGS[:, None, :]).reshape(len(GROUPINGS), -1)


def symmetric(values):
    values = values + values.T
    np.fill_diagonal(values, 0.0)
    return values


def matrices():
    """Evidence between eight clients: noise, noise that leans to one side, whole numbers."""
    random = np.random.default_rng(0)
    for _ in range(20):
        values = random.normal(size=(8, 8))
        yield symmetric(values)
        yield symmetric(values + 0.4)
        yield symmetric(values - 0.4)
        yield symmetric(np.round(2 * values))


def found_evidence():
    """Evidence between eight clients of federations, with few labels and little between them."""
    for seed in range(8):
        random = np.random.default_rng(seed)
        concepts = [shifted(5, int(random.integers(0, 3))) for _ in range(8)]
        held = [random.choice(5, 2, replace=False).tolist() for _ in range(8)]
        yield find(*federation(concepts, held, distance=0.8, seed=seed)).evidence


def test_there_are_as_many_groupings_as_bell_says():
    assert len(GROUPINGS) == 4140


@pytest.mark.parametrize("make", [matrices, found_evidence])
def test_search_finds_the_best_of_all_groupings(make):
    for evidence in make():
        best = (TOGETHER @ evidence.ravel()).max() / 2

        assert within(evidence, search(evidence)) == pytest.approx(best, abs=1e-9)


def test_within_counts_every_pair_once():
    evidence = symmetric(np.array([[0.0, 1.0, 2.0], [0.0, 0.0, 4.0], [0.0, 0.0, 0.0]]))

    assert within(evidence, np.array([0, 0, 0])) == 7.0
    assert within(evidence, np.array([0, 1, 1])) == 4.0


def test_order_of_clients_does_not_matter():
    random = np.random.default_rng(1)
    evidence = symmetric(random.normal(size=(40, 40)))
    order = random.permutation(40)

    groups, permuted = search(evidence), search(evidence[np.ix_(order, order)])

    np.testing.assert_array_equal(
        permuted[:, None] == permuted, groups[order][:, None] == groups[order]
    )


@pytest.mark.parametrize("count", [1, 2])
def test_hardly_any_clients(count):
    assert search(np.zeros((count, count))).shape == (count,)


def test_one_group_of_all():
    assert (search(np.ones((200, 200)) - np.eye(200)) == 0).all()


def test_compact_numbers_without_gaps():
    assert compact(np.array([7, 3, 7, 9])).tolist() == [1, 0, 1, 2]
