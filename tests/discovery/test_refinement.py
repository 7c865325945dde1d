import numpy as np
import pytest

from fedrc_flwr.discovery import refinement
from fedrc_flwr.discovery.distances import Distances
from fedrc_flwr.discovery.space import Means

DISTANCES = Distances(1, 0.3, 0.0, 1.0, 2.0, 1.0, share=0.5)


def line(*places, samples=10.0):
    """Clients on a line: for each client where its labels are; None where it does not hold one."""
    points = np.array([[0.0 if p is None else p for p in client] for client in places])
    held = np.array([[p is not None for p in client] for client in places])
    return Means(points[..., None], np.where(held, samples, 0.0))


def test_client_is_alone_from_four_nats_on_and_from_one_for_each_label():
    means = Means(np.zeros((2, 9, 1)), np.array([[1.0] * 2 + [0.0] * 7, [1.0] * 7 + [0.0] * 2]))

    assert refinement.alone_level(means).tolist() == [-4.0, -7.0]


@pytest.mark.parametrize(
    ("evidence", "sizes", "joined"),
    [
        (-1.9, (3, 3), True),
        (-2.1, (3, 3), False),
        # 20 clients are ten times as many as 2: log 10 = 2.30, so -4.30 is the limit
        (-4.2, (20, 2), True),
        (-4.4, (20, 2), False),
    ],
)
def test_groups_are_joined_unless_they_contradict_each_other(monkeypatch, evidence, sizes, joined):
    groups = np.repeat([0, 1], sizes)
    monkeypatch.setattr(
        refinement, "between_groups", lambda *_: np.array([[0.0, evidence], [evidence, 0.0]])
    )

    movers, target = refinement._best_join(line([0.0]), groups, DISTANCES, 0.0)

    assert movers.sum() == (min(sizes) if joined else 0)
    if sizes[0] > sizes[1] and joined:
        assert target == 0
        np.testing.assert_array_equal(movers, groups == 1)


def test_client_in_the_wrong_group_moves():
    here, swapped = [0.0, 60.0], [60.0, 0.0]
    means = line(here, here, here, swapped, swapped, swapped)

    groups = refinement.refine(means, np.array([0, 0, 1, 1, 1, 1]), DISTANCES, 0.0)

    assert groups.tolist() == [0, 0, 0, 1, 1, 1]


def test_group_that_says_the_same_is_joined():
    means = line(*[[0.0, 60.0]] * 5)

    assert refinement.refine(means, np.array([0, 0, 0, 1, 1]), DISTANCES, 0.0).tolist() == [0] * 5


def test_only_member_of_a_group_is_measured_by_the_level_of_being_alone():
    means = line([0.0, 60.0], [0.0, 60.0], [60.0, 0.0])

    groups = np.array([0, 0, 1])
    same, different = refinement.likelihoods_for_groups(means, groups, DISTANCES, 0.0)
    evidence = refinement.belonging(means, groups, same, different)

    assert evidence[2, 1] == -4.0
    # it contradicts the others with both labels: 2 log 0.05 = -5.99
    assert evidence[2, 0] == pytest.approx(2 * np.log(0.05), abs=1e-6)


def test_being_alone_is_likelier_where_different_concepts_agree():
    means = line([0.0, 60.0], [0.0, 60.0], [60.0, 0.0])

    groups = np.array([0, 0, 1])
    same, different = refinement.likelihoods_for_groups(means, groups, DISTANCES, 0.8)
    evidence = refinement.belonging(means, groups, same, different)

    # both labels contradict: log(0.8 * 0.05 + 0.2) = -1.4271 for each if it is another concept
    assert evidence[2, 1] == pytest.approx(-4.0 - 2 * 1.4271, abs=1e-4)


def test_handful_that_does_not_support_its_members_counts_as_being_alone():
    # 100 clients of two labels each: 98 in group 0, and a handful of 2 (at most 3 of 100).
    means = Means(np.zeros((100, 2, 1)), np.ones((100, 2)))
    groups = np.repeat([0, 1], (98, 2))
    same = np.tile([1.0, 0.0], (100, 1))
    same[98], same[99] = (-3.0, 2.9), (-3.0, 3.1)  # the handful supports only the last of them
    different = np.tile([-0.5, 0.0], (100, 1))

    evidence = refinement.belonging(means, groups, same, different)

    # Being alone: -4 for two labels, and -0.5 for the nearest other group.
    assert evidence[98].tolist() == [-3.0, -4.5]
    assert evidence[99].tolist() == [-3.0, 3.1]
    # Nobody joins the handful for want of a contradiction: alone is -4 and 0 with the handful.
    assert evidence[0].tolist() == [1.0, -4.0]


def test_groups_of_a_small_federation_are_no_handfuls():
    means = Means(np.zeros((30, 2, 1)), np.ones((30, 2)))
    same = np.tile([1.0, 0.0], (30, 1))

    evidence = refinement.belonging(means, np.repeat([0, 1], (28, 2)), same, np.zeros((30, 2)))

    np.testing.assert_array_equal(evidence, same)
