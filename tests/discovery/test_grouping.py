import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import federation, shifted

from fedrc_flwr.discovery.grouping import find, place
from fedrc_flwr.errors import DivergedError

several = settings(deadline=None, max_examples=8)


def three_concepts(seed=0, clients=12, classes=6, distance=6.0):
    """Concepts 0, 1, 2 in turn, three neighbouring labels a client."""
    concepts = [shifted(classes, i % 3) for i in range(clients)]
    held = [[(i + k) % classes for k in range(3)] for i in range(clients)]
    return federation(concepts, held, seed=seed, distance=distance)


def assert_same_groups(first, second):
    np.testing.assert_array_equal(first[:, None] == first, second[:, None] == second)


# --- what is found -------------------------------------------------------------------------------


def test_three_concepts_are_found():
    grouping = find(*three_concepts())

    assert grouping.groups.tolist() == [0, 1, 2] * 4
    assert grouping.established
    assert grouping.sentence == "3 concepts among 12 clients, in groups of 4, 4, 4"
    assert not grouping.alone.any()
    np.testing.assert_allclose(grouping.weights.sum(axis=1), 1.0)
    assert (grouping.weights[np.arange(12), grouping.groups] > 0.9).all()
    np.testing.assert_array_equal(grouping.evidence, grouping.evidence.T)


def test_nothing_to_part_without_concept_shift():
    held = [[i % 5, (i + 1) % 5] for i in range(8)]

    grouping = find(*federation([shifted(5, 0)] * 8, held))

    assert grouping.groups.tolist() == [0] * 8
    assert grouping.established
    assert grouping.sentence == "nothing to part: 8 clients mean the same by their labels"


def test_groups_are_numbered_by_size():
    concepts = [shifted(4, by) for by in (1, 0, 0, 2, 2, 2, 1)]

    grouping = find(*federation(concepts, [[0, 1, 2, 3]] * 7))

    assert grouping.groups.tolist() == [1, 2, 2, 0, 0, 0, 1]


def test_two_labels_that_some_clients_swap():
    grouping = find(*federation([[0, 1]] * 5 + [[1, 0]] * 3, [[0, 1]] * 8))

    assert grouping.groups.tolist() == [0] * 5 + [1] * 3
    assert grouping.established


def test_a_hundred_labels():
    held = [[(7 * i + 3 * k) % 100 for k in range(12)] for i in range(12)]
    concepts = [shifted(100, i % 2) for i in range(12)]

    grouping = find(*federation(concepts, held, features=64, samples=8))

    assert grouping.groups.tolist() == [0, 1] * 6


def test_clients_with_one_label_find_their_group():
    concepts = [shifted(4, i % 2) for i in range(12)]
    held = [[0, 1, 2, 3]] * 8 + [[0], [0], [2], [2]]

    grouping = find(*federation(concepts, held))

    assert grouping.groups.tolist() == [0, 1] * 6
    assert grouping.established


def test_client_that_contradicts_everybody_is_alone():
    concepts = [shifted(6, 0)] * 5 + [shifted(6, 2)] * 4 + [[5, 4, 3, 2, 1, 0]]

    grouping = find(*federation(concepts, [range(6)] * 10))

    assert grouping.groups.tolist() == [0] * 5 + [1] * 4 + [2]
    assert grouping.alone.tolist() == [False] * 9 + [True]
    assert grouping.established


def test_twins_are_together():
    fingerprints, scatter = three_concepts()

    grouping = find(np.concatenate([fingerprints, fingerprints]), 2 * scatter)

    assert grouping.groups.tolist() == [0, 1, 2] * 8


# --- what cannot be found ------------------------------------------------------------------------


def undecided(fingerprints, scatter):
    """The reason why nothing is found; all clients are together."""
    grouping = find(fingerprints, scatter)
    assert not grouping.established
    assert grouping.weights.shape == (len(fingerprints), 1)
    return grouping.sentence


def test_no_clients():
    assert "no two clients" in undecided(np.zeros((0, 2, 3, 5)), np.zeros((4, 4)))


def test_one_client():
    grouping = find(*federation([shifted(3, 0)], [[0, 1, 2]]))

    assert grouping.groups.tolist() == [0]
    assert grouping.sentence == "nothing to part: there is only one client"


def test_clients_that_share_no_label():
    assert "no two clients" in undecided(*federation([shifted(4, 0)] * 2, [[0, 1], [2, 3]]))


def test_one_label_a_client():
    assert "no client holds two labels" in undecided(
        *federation([shifted(3, 0)] * 6, [[i % 3] for i in range(6)])
    )


def test_one_sample_of_each_label():
    assert "do not differ" in undecided(
        *federation([shifted(3, 0)] * 4, [[0, 1, 2]] * 4, samples=1)
    )


def test_samples_without_any_scatter():
    fingerprints, scatter = three_concepts()

    assert "do not differ" in undecided(fingerprints, np.zeros_like(scatter))


def test_one_class():
    assert "no client holds two labels" in undecided(*federation([[0]] * 3, [[0]] * 3))


@pytest.mark.parametrize("seed", range(3))
def test_labels_that_the_features_do_not_tell_apart(seed):
    grouping = find(*three_concepts(seed=seed, distance=0.0))

    assert not grouping.established
    assert grouping.sentence.startswith("undecided: ")


def test_no_contradiction_means_nothing_where_labels_are_hardly_told_apart():
    random = np.random.default_rng(0)
    held = [random.choice(10, 4, replace=False).tolist() for _ in range(30)]

    weak = undecided(*federation([shifted(10, 0)] * 30, held, distance=0.3))
    strong = find(*federation([shifted(10, 0)] * 30, held, distance=3.0))

    assert weak == "undecided: the features hardly tell labels apart"
    assert strong.established


def test_means_that_are_all_the_same_are_no_contradiction():
    fingerprints, scatter = federation([shifted(6, 0)] * 10, [range(6)] * 10)
    fingerprints[..., 1:] = 3.0 * fingerprints[..., :1]

    assert undecided(fingerprints, scatter) == "undecided: the features hardly tell labels apart"


@pytest.mark.parametrize("part", ["counts", "scatter"])
def test_noise_is_named_where_it_hides_the_scatter(part):
    fingerprints, scatter = three_concepts()
    if part == "counts":
        fingerprints[..., 0] = np.where(fingerprints[..., 0] > 0, 0.9, -0.9)
    else:
        scatter = -scatter

    sentence = undecided(fingerprints, scatter)

    assert sentence.startswith("undecided: the noise on the fingerprints hides")


def test_noise_is_named_where_it_hides_what_tells_labels_apart():
    fingerprints, scatter = federation([shifted(6, 0)] * 10, [range(6)] * 10)
    fingerprints[..., 1:] = 3.0 * fingerprints[..., :1]
    fingerprints[0, 0, 0, 0] = -0.1

    sentence = undecided(fingerprints, scatter)

    assert sentence == "undecided: the features with noise on them hardly tell labels apart"


def test_two_clients_that_differ_in_what_is_far_apart():
    # With two clients the median is in the middle: 100 times as far apart makes both unusual.
    fingerprints, scatter = federation([shifted(3, 0)] * 2, [range(3)] * 2)
    fingerprints[1, ..., 1:] *= 100.0
    fingerprints[0, ..., 1:] *= 0.01

    sentence = undecided(fingerprints, scatter)

    assert sentence.startswith("undecided: what is far apart for one client is close for another")


def test_everybody_means_something_else():
    random = np.random.default_rng(0)
    concepts = [random.permutation(8).tolist() for _ in range(16)]
    held = [random.choice(8, 4, replace=False).tolist() for _ in range(16)]

    assert find(*federation(concepts, held)).sentence.startswith("undecided: ")


def test_fingerprints_that_are_not_finite_are_refused():
    fingerprints, scatter = three_concepts()
    fingerprints[0, 0, 0, 1] = np.nan

    with pytest.raises(DivergedError, match="not finite"):
        find(fingerprints, scatter)


# --- what makes no difference --------------------------------------------------------------------


@several
@given(st.integers(0, 2**32 - 1), st.sampled_from([1.0, 6.0]))
def test_renaming_clients_and_labels_changes_nothing_but_the_numbering(seed, distance):
    random = np.random.default_rng(seed)
    fingerprints, scatter = three_concepts(seed=seed % 1000, distance=distance)
    clients, labels = random.permutation(12), random.permutation(6)

    before = find(fingerprints, scatter)
    after = find(fingerprints[clients][:, :, labels], scatter)

    np.testing.assert_allclose(after.evidence, before.evidence[np.ix_(clients, clients)], atol=1e-6)
    assert_same_groups(after.groups, before.groups[clients])
    assert after.established == before.established
    own = before.weights[np.arange(12), before.groups][clients]
    np.testing.assert_allclose(after.weights[np.arange(12), after.groups], own, atol=1e-6)


@several
@given(st.integers(0, 1000), st.sampled_from([1e-6, 1e12]))
def test_scale_of_the_features_does_not_matter(seed, scale):
    fingerprints, scatter = three_concepts(seed=seed)
    scaled = fingerprints.copy()
    scaled[..., 1:] *= scale

    before, after = find(fingerprints, scatter), find(scaled, scale**2 * scatter)

    np.testing.assert_allclose(after.evidence, before.evidence, atol=1e-6)
    np.testing.assert_array_equal(after.groups, before.groups)


def test_scale_of_a_single_feature_does_not_matter():
    fingerprints, scatter = three_concepts()
    scale = np.array([1e6, 1.0, 1.0, 1e-6, 1.0, 1.0])
    scaled = np.concatenate([fingerprints[..., :1], scale * fingerprints[..., 1:]], axis=3)

    before, after = find(fingerprints, scatter), find(scaled, scatter * scale * scale[:, None])

    np.testing.assert_allclose(after.evidence, before.evidence, atol=1e-6)


def test_client_whose_features_are_far_off_does_no_harm_to_the_others():
    fingerprints, scatter = three_concepts()
    fingerprints[0, ..., 1:] *= 1e6

    assert find(fingerprints, scatter).groups[1:].tolist() == ([0, 1, 2] * 4)[1:]


def test_feature_that_never_varies_is_ignored():
    fingerprints, scatter = three_concepts()
    scatter[2], scatter[:, 2] = 0.0, 0.0

    assert find(fingerprints, scatter).groups.tolist() == [0, 1, 2] * 4


@several
@given(st.integers(0, 1000), st.floats(-1e3, 1e3))
def test_client_that_shares_no_label_changes_nothing_for_the_others(seed, place_of_it):
    # The newcomer's scatter is like everybody's, so that the pooled covariance stays.
    fingerprints, scatter = three_concepts(seed=seed)
    fingerprints = np.concatenate([fingerprints, np.zeros((12, 2, 1, 7))], axis=2)
    stranger = np.zeros((1, 2, 7, 7))
    stranger[0, 0, 6] = 11.0 * place_of_it
    stranger[0, 0, 6, 0] = 11.0
    freedom = fingerprints[..., 0].sum() - 36

    before = find(fingerprints, scatter)
    after = find(np.concatenate([fingerprints, stranger]), scatter * (freedom + 10) / freedom)

    np.testing.assert_allclose(after.evidence[:12, :12], before.evidence, atol=1e-8)
    assert_same_groups(after.groups[:12], before.groups)
    own = before.weights[np.arange(12), before.groups]
    np.testing.assert_allclose(after.weights[np.arange(12), after.groups[:12]], own, atol=1e-8)


def test_client_without_samples_changes_nothing():
    fingerprints, scatter = three_concepts()
    before = find(fingerprints, scatter)

    after = find(np.concatenate([np.zeros((1, 2, 6, 7)), fingerprints]), scatter)

    assert after.groups.tolist() == [-1, *before.groups]
    np.testing.assert_allclose(after.weights[0], 1 / 3)
    np.testing.assert_allclose(after.weights[1:], before.weights)
    assert after.sentence == before.sentence


# --- concepts that agree on most labels ----------------------------------------------------------


def test_two_labels_of_ten_that_are_swapped_are_found():
    swapping = [1, 0, *range(2, 10)]
    concepts = [list(range(10)), swapping, list(range(10)), swapping] * 2
    fingerprints, scatter = federation(concepts, [range(10)] * 8)

    found = find(fingerprints, scatter)

    assert found.established
    assert found.agreement == 0.8
    assert found.groups.tolist() == [0, 1] * 4


# --- clients that join later ---------------------------------------------------------------------


def test_newcomer_is_placed_with_its_concept():
    fingerprints, scatter = three_concepts()

    weights, _ = place(fingerprints, scatter, np.array([0, 1, 2] * 3 + [-1] * 3), 0.0)

    assert weights[9:].argmax(axis=1).tolist() == [0, 1, 2]
    assert (weights[9:].max(axis=1) > 0.9).all()


def test_given_groups_are_not_questioned():
    fingerprints, scatter = three_concepts()
    swapped = np.array([2, 0, 1] * 3 + [-1] * 3)

    weights, _ = place(fingerprints, scatter, swapped, 0.0)

    assert weights[9:].argmax(axis=1).tolist() == [2, 0, 1]


def test_newcomer_that_contradicts_all_groups_has_no_weights():
    concepts = [shifted(6, 0)] * 5 + [shifted(6, 2)] * 4 + [[5, 4, 3, 2, 1, 0]]
    fingerprints, scatter = federation(concepts, [range(6)] * 10)

    weights, _ = place(fingerprints, scatter, np.array([0] * 5 + [1] * 4 + [-1]), 0.0)

    assert weights[9].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(weights[:9].sum(axis=1), 1.0)


def test_newcomer_without_samples_has_even_weights():
    fingerprints, scatter = three_concepts()
    fingerprints[-1] = 0.0

    weights, _ = place(fingerprints, scatter, np.array([0, 1, 2] * 3 + [0, 1, -1]), 0.0)

    np.testing.assert_allclose(weights[-1], 1 / 3)


def test_group_that_nobody_is_left_in_gets_no_newcomers():
    fingerprints, scatter = three_concepts()

    weights, _ = place(fingerprints, scatter, np.array([0, 1, 3] * 3 + [-1] * 3), 0.0)

    assert weights.shape == (12, 4)
    assert weights[9:].argmax(axis=1).tolist() == [0, 1, 3]
    assert (weights[:, 2] == 0.0).all()


def test_group_that_nobody_is_left_in_makes_no_difference_to_the_weights():
    # Concepts that agree on some labels, and groups of one, which are weighed against being alone.
    concepts = [shifted(6, 0)] * 4 + [shifted(6, 2), [1, 0, 2, 3, 4, 5]]
    fingerprints, scatter = federation(concepts, [range(6)] * 6)

    gone, _ = place(fingerprints, scatter, np.array([1, 1, 1, 1, 3, -1]), 0.6)

    np.testing.assert_array_equal(gone[:, [0, 2]], 0.0)
    without, _ = place(fingerprints, scatter, np.array([0, 0, 0, 0, 1, -1]), 0.6)
    np.testing.assert_allclose(gone[:, [1, 3]], without)


def test_weights_are_even_where_the_groups_cannot_be_compared():
    fingerprints, scatter = federation([shifted(3, 0)] * 3, [[0], [1], [0]])

    weights, several = place(fingerprints, scatter, np.array([0, 1, -1]), 0.0)

    np.testing.assert_allclose(weights, 0.5)
    assert not several.any()
