import math

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrc_flwr import em
from fedrc_flwr.em import AdamMoments, AdamSettings

several = settings(deadline=None, max_examples=60)


@st.composite
def clients(draw, clusters=None, positive=True):
    """Losses (N, K), mixture weights (K,), label prior (K, C) and labels (N,) of one client."""
    samples, classes = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    clusters = clusters or draw(st.integers(1, 5))
    share = st.floats(0.01 if positive else 0.0, 1.0)
    losses = draw(hnp.arrays(float, (samples, clusters), elements=st.floats(0.0, 12.0)))
    weights = draw(hnp.arrays(float, clusters, elements=share))
    weights[draw(st.integers(0, clusters - 1))] += 0.01
    prior = draw(hnp.arrays(float, (clusters, classes), elements=st.floats(0.01, 1.0)))
    labels = draw(hnp.arrays(np.int64, samples, elements=st.integers(0, classes - 1)))
    return (
        losses,
        weights / weights.sum(),
        prior / prior.sum(axis=1, keepdims=True),
        labels,
    )


@st.composite
def rows_of_shares(draw, samples=None, clusters=None):
    """Responsibilities (N, K), zeros among them."""
    shape = (samples or draw(st.integers(1, 8)), clusters or draw(st.integers(1, 5)))
    values = draw(hnp.arrays(float, shape, elements=st.floats(0.0, 1.0)))
    values[:, draw(st.integers(0, shape[1] - 1))] += 0.01
    return values / values.sum(axis=1, keepdims=True)


# --- the E-step ----------------------------------------------------------------------------------


def test_e_step_of_two_clusters_and_three_labels_by_hand():
    # Prepare: exp(-f) = [[1/2, 1/4], [1/8, 1/2], [1/3, 1/3]]; w = [3/4, 1/4];
    # C = [[1/2, 1/4, 1/4], [1/4, 1/4, 1/2]].
    losses = -np.log([[1 / 2, 1 / 4], [1 / 8, 1 / 2], [1 / 3, 1 / 3]])
    weights, labels = np.array([3 / 4, 1 / 4]), np.array([0, 1, 2])
    prior = np.array([[1 / 2, 1 / 4, 1 / 4], [1 / 4, 1 / 4, 1 / 2]])

    # Execute
    result = em.e_step(losses, weights, prior, labels)

    # Assert, row by row w_k exp(-f_jk) / C_{y_j,k}:
    # y = 0: 3/4 * 1/2 / (1/2) = 3/4 and 1/4 * 1/4 / (1/4) = 1/4; sum 1
    # y = 1: 3/4 * 1/8 / (1/4) = 3/8 and 1/4 * 1/2 / (1/4) = 1/2; sum 7/8, so 3/7 and 4/7
    # y = 2: 3/4 * 1/3 / (1/4) = 1 and 1/4 * 1/3 / (1/2) = 1/6; sum 7/6, so 6/7 and 1/7
    expected = [[3 / 4, 1 / 4], [3 / 7, 4 / 7], [6 / 7, 1 / 7]]
    np.testing.assert_allclose(result, expected, atol=1e-12)
    # and the weights are the columns' means: (3/4 + 3/7 + 6/7) / 3 = (57/28) / 3 = 19/28
    np.testing.assert_allclose(em.update_mixture_weights(result), [19 / 28, 9 / 28], atol=1e-12)


def test_e_step_without_prior_leaves_the_labels_out():
    # Prepare
    losses, weights = -np.log([[1 / 2, 1 / 4]]), np.array([1 / 4, 3 / 4])

    # Execute
    result = em.e_step(losses, weights, None, np.array([2]))

    # Assert: 1/4 * 1/2 = 1/8 and 3/4 * 1/4 = 3/16
    np.testing.assert_allclose(result, [[2 / 5, 3 / 5]], atol=1e-12)


@several
@given(clients(positive=False), st.floats(0.05, 1.0), st.booleans())
def test_e_step_agrees_with_the_formula(client, exponent, with_prior):
    losses, weights, prior, labels = client
    prior = prior if with_prior else None

    result = em.e_step(losses, weights, prior, labels, exponent)

    expected = reference.responsibilities(losses, weights, prior, labels, exponent)
    np.testing.assert_allclose(result, expected, atol=1e-9)
    expected_weights = reference.column_means(expected)
    np.testing.assert_allclose(em.update_mixture_weights(result), expected_weights, atol=1e-9)


@several
@given(clients(positive=False), st.floats(0.01, 1.0))
def test_rows_of_responsibilities_and_mixture_weights_sum_to_one(client, exponent):
    result = em.e_step(*client, exponent)

    assert (result >= 0).all()
    np.testing.assert_allclose(result.sum(axis=1), 1.0, atol=1e-12)
    assert em.update_mixture_weights(result).sum() == pytest.approx(1.0, abs=1e-12)


@several
@given(clients(), st.randoms(use_true_random=False))
def test_permuting_the_clusters_permutes_the_responsibilities(client, random):
    losses, weights, prior, labels = client
    order = list(range(len(weights)))
    random.shuffle(order)

    permuted = em.e_step(losses[:, order], weights[order], prior[order], labels)

    expected = em.e_step(losses, weights, prior, labels)[:, order]
    np.testing.assert_allclose(permuted, expected, atol=1e-12)


@several
@given(clients(), st.randoms(use_true_random=False))
def test_permuting_the_samples_permutes_the_rows(client, random):
    losses, weights, prior, labels = client
    order = list(range(len(labels)))
    random.shuffle(order)

    permuted = em.e_step(losses[order], weights, prior, labels[order])

    expected = em.e_step(losses, weights, prior, labels)[order]
    np.testing.assert_allclose(permuted, expected, atol=1e-12)


@several
@given(clients(), st.floats(-50.0, 50.0))
def test_a_loss_added_to_all_clusters_of_a_sample_changes_nothing(client, shift):
    losses, weights, prior, labels = client

    shifted = em.e_step(losses + shift, weights, prior, labels)

    np.testing.assert_allclose(shifted, em.e_step(losses, weights, prior, labels), atol=1e-9)


@several
@given(clients())
def test_an_exponent_near_zero_gives_uniform_responsibilities(client):
    result = em.e_step(*client, exponent=1e-9)

    np.testing.assert_allclose(result, 1.0 / result.shape[1], atol=1e-6)


@several
@given(clients())
def test_a_uniform_prior_is_the_same_as_none(client):
    losses, weights, prior, labels = client

    result = em.e_step(losses, weights, em.uniform_prior(*prior.shape), labels)

    np.testing.assert_allclose(result, em.e_step(losses, weights, None, labels), atol=1e-12)


def test_zero_mixture_weight_stays_zero_and_the_others_share():
    losses = np.array([[0.0, 3.0, 3.0]])

    result = em.e_step(losses, np.array([0.0, 0.25, 0.75]), None, np.array([0]))

    np.testing.assert_allclose(result, [[0.0, 0.25, 0.75]], atol=1e-12)


def test_losses_far_beyond_the_range_of_exp_still_normalise():
    # exp(-2000) is zero in float64: only the difference of 1 nat may count.
    losses = np.array([[2000.0, 2001.0]])

    result = em.e_step(losses, np.array([0.5, 0.5]), None, np.array([0]))

    np.testing.assert_allclose(result, [[math.e / (1 + math.e), 1 / (1 + math.e)]], atol=1e-12)


def test_a_label_that_a_cluster_never_saw_gets_a_finite_responsibility():
    # Prepare: cluster 0 never saw label 2, so its prior there is floor / (2 + floor).
    prior = em.normalise_label_prior(np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 2.0]]), floor=0.5)
    losses = np.zeros((1, 2))

    # Execute
    result = em.e_step(losses, np.array([0.5, 0.5]), prior, np.array([2]))

    # Assert: the inverse priors are 2.5 / 0.5 = 5 and 4 / 2 = 2
    np.testing.assert_allclose(result, [[5 / 7, 2 / 7]], atol=1e-12)


def test_one_sample_makes_the_mixture_weights_its_responsibilities():
    result = em.e_step(np.array([[0.3, 1.1]]), np.array([0.5, 0.5]), None, np.array([1]))

    np.testing.assert_array_equal(em.update_mixture_weights(result), result[0])


# --- hard clustering -----------------------------------------------------------------------------


def test_harden_gives_all_samples_to_the_cluster_with_the_largest_weight():
    # Means 0.5 and 0.4667 of clusters 0 and 1, though cluster 1 wins two of the three samples.
    soft = np.array([[0.35, 0.65, 0.0], [0.25, 0.65, 0.1], [0.9, 0.1, 0.0]])

    hard = em.harden(soft)

    np.testing.assert_array_equal(hard, [[1, 0, 0]] * 3)


def test_harden_takes_the_first_of_equal_clusters():
    hard = em.harden(np.array([[0.2, 0.4, 0.4], [0.2, 0.4, 0.4]]))

    np.testing.assert_array_equal(hard, [[0, 1, 0]] * 2)


# --- label counts and prior ----------------------------------------------------------------------


def test_counts_and_prior_of_two_clusters_and_three_labels_by_hand():
    # Prepare: three samples of labels 0, 2, 0
    shares, labels = np.array([[1 / 4, 3 / 4], [1, 0], [1 / 2, 1 / 2]]), np.array([0, 2, 0])

    # Execute
    counts = em.count_labels(shares, labels, 3)
    prior = em.normalise_label_prior(counts, floor=1 / 4)

    # Assert: cluster 0 has 1/4 + 1/2 of label 0 and 1 of label 2; cluster 1 has 3/4 + 1/2 of 0
    np.testing.assert_allclose(counts, [[3 / 4, 0, 1], [5 / 4, 0, 0]], atol=1e-12)
    # Lifted to 1/4: cluster 0 is 3/4, 1/4, 1 of 2; cluster 1 is 5/4, 1/4, 1/4 of 7/4
    expected = [[3 / 8, 1 / 8, 1 / 2], [5 / 7, 1 / 7, 1 / 7]]
    np.testing.assert_allclose(prior, expected, atol=1e-12)


@several
@given(st.data())
def test_counts_agree_with_a_loop_and_conserve_the_labels(data):
    shares = data.draw(rows_of_shares())
    labels = data.draw(hnp.arrays(np.int64, len(shares), elements=st.integers(0, 3)))

    counts = em.count_labels(shares, labels, 4)

    np.testing.assert_allclose(counts, reference.label_counts(shares, labels, 4), atol=1e-9)
    np.testing.assert_allclose(counts.sum(axis=0), np.bincount(labels, minlength=4), atol=1e-9)


@several
@given(
    hnp.arrays(float, (3, 4), elements=st.floats(-20.0, 100.0)),
    hnp.arrays(float, (3, 4), elements=st.floats(-20.0, 100.0)),
    st.floats(1e-3, 5.0),
)
def test_prior_agrees_with_a_loop_and_is_positive(one, other, floor):
    prior = em.normalise_label_prior(one + other, floor)

    np.testing.assert_allclose(prior, reference.label_prior([one, other], floor), atol=1e-9)
    assert (prior > 0).all()
    np.testing.assert_allclose(prior.sum(axis=1), 1.0, atol=1e-12)


def test_counts_that_noise_made_negative_are_lifted_to_the_floor():
    prior = em.normalise_label_prior(np.array([[-3.0, 1.5, 0.0]]), floor=0.25)

    # 1/4, 3/2, 1/4 of 2
    np.testing.assert_allclose(prior, [[1 / 8, 3 / 4, 1 / 8]], atol=1e-12)


def test_an_empty_cluster_has_a_uniform_prior():
    prior = em.normalise_label_prior(np.zeros((1, 4)), floor=0.1)

    np.testing.assert_allclose(prior, em.uniform_prior(1, 4), atol=1e-12)


def test_a_client_with_one_class_counts_in_one_column():
    counts = em.count_labels(np.array([[0.25, 0.75], [0.5, 0.5]]), np.array([1, 1]), 3)

    np.testing.assert_allclose(counts, [[0, 0.75, 0], [0, 1.25, 0]], atol=1e-12)


# --- the Adam variant ----------------------------------------------------------------------------


def test_adam_takes_two_steps_of_two_clusters_by_hand():
    # Prepare: beta1 = 1/2, beta2 = 3/4, alpha = 1/2, epsilon all but zero
    adam = AdamSettings(step=0.5, beta1=0.5, beta2=0.75, epsilon=1e-12)

    # Execute
    first = em.adam_e_step(np.array([[0.75, 0.25]]), AdamMoments.start(1, 2), adam)
    second = em.adam_e_step(np.array([[0.75, 0.25]]), first, adam)

    # Assert. Step 1: g = 1/2 - 3/4 = -1/4 and +1/4; nu = g/2; a = g^2/4 = 1/64. Corrected, nu is g
    # and sqrt(a) is |g|, so each moves by alpha: 1/2 + 1/2 = 1 and 1/2 - 1/2 = 0.
    np.testing.assert_allclose(first.responsibilities, [[1.0, 0.0]], atol=1e-9)
    np.testing.assert_allclose(first.first, [[-1 / 8, 1 / 8]], atol=1e-12)
    np.testing.assert_allclose(first.second, [[1 / 64, 1 / 64]], atol=1e-12)
    # Step 2: g = 1 - 3/4 = 1/4 and -1/4; nu = 1/8 - 1/16 = 1/16 and -1/16;
    # a = 1/64 + 3/4 * 1/64 = 7/256. Corrected nu = +-1/8, sqrt(4 a) = sqrt(7)/8, so the step is
    # 1/2 * 1/sqrt(7): 1 - 1/(2 sqrt 7) and 0 + 1/(2 sqrt 7), which sum to one already.
    moved = 1 / (2 * math.sqrt(7))
    np.testing.assert_allclose(second.first, [[1 / 16, -1 / 16]], atol=1e-12)
    np.testing.assert_allclose(second.second, [[7 / 256, 7 / 256]], atol=1e-12)
    np.testing.assert_allclose(second.responsibilities, [[1 - moved, moved]], atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_adam_agrees_with_the_formulas_over_several_rounds(seed):
    # Prepare: the paper's hyper-parameters
    rng = np.random.default_rng(seed)
    moments, plain = AdamMoments.start(7, 3), reference.Adam.start(7, 3)

    for _ in range(5):
        proposal = rng.dirichlet([0.5] * 3, size=7)

        # Execute
        moments = em.adam_e_step(proposal, moments, AdamSettings())
        plain = plain.step(proposal.tolist())

        # Assert
        np.testing.assert_allclose(moments.responsibilities, plain.gamma, atol=1e-6)
        np.testing.assert_allclose(moments.first, plain.nu, atol=1e-9)
        np.testing.assert_allclose(moments.second, plain.a, atol=1e-9)


def test_adam_starts_from_uniform_responsibilities():
    moments = AdamMoments.start(2, 4)

    np.testing.assert_array_equal(moments.responsibilities, np.full((2, 4), 0.25))
    assert not moments.first.any()
    assert not moments.second.any()


@several
@given(rows_of_shares(4, 3), rows_of_shares(4, 3), st.floats(0.01, 3.0))
def test_adam_rows_sum_to_one_and_are_not_negative(start, proposal, step):
    moments = AdamMoments(start, np.zeros((4, 3)), np.zeros((4, 3)))

    result = em.adam_e_step(proposal, moments, AdamSettings(step=step)).responsibilities

    assert (result >= 0).all()
    np.testing.assert_allclose(result.sum(axis=1), 1.0, atol=1e-12)


def test_adam_with_all_clusters_clipped_to_zero_takes_the_proposal():
    # Prepare: old momentum pushes both clusters down by far more than they have
    proposal = np.array([[0.3, 0.7], [0.6, 0.4]])
    moments = AdamMoments(
        np.full((2, 2), 0.5), np.array([[9.0, 9.0], [0.0, 0.0]]), np.full((2, 2), 1e-4)
    )

    # Execute
    result = em.adam_e_step(proposal, moments, AdamSettings())

    # Assert: only for the sample concerned
    np.testing.assert_array_equal(result.responsibilities[0], [0.3, 0.7])
    assert result.responsibilities[1, 0] > 0.6


# --- annealing -----------------------------------------------------------------------------------


def test_annealing_grows_geometrically_from_its_start_to_one():
    # 4 rounds from 1/16: a factor of 2 each
    exponents = [em.annealing_exponent(r, rounds=4, start=1 / 16) for r in range(1, 8)]

    np.testing.assert_allclose(exponents, [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 1, 1], atol=1e-12)


def test_annealing_by_client_grows_beyond_one_and_ends_with_the_plain_e_step():
    exponents = [em.annealing_exponent(r, rounds=4, start=1 / 2, end=8) for r in range(1, 7)]

    np.testing.assert_allclose(exponents, [1 / 2, 1, 2, 4, 1, 1], atol=1e-12)


def test_a_cluster_that_pooling_ruled_out_can_come_back():
    # 100 * 12 nats are beyond the smallest double; 80 nats of later evidence outweigh 1e-30
    losses = np.array([[0.0, 12.0]])
    label = np.array([0])
    pooled = em.pooled_e_step(losses, None, label, exponent=100.0)

    revived = em.e_step(np.array([[80.0, 0.0]]), pooled[0], None, label)

    np.testing.assert_allclose(pooled, [[1.0, 1e-30]])
    assert revived[0, 1] > 0.99


def test_a_pooled_e_step_weighs_all_samples_as_one():
    # By hand: cluster 0 says 1/2 and 1/8 of the two labels, cluster 1 says 1/4 of both; the priors
    # of the labels are 1/2 and 1/2 in cluster 0, 1/4 and 3/4 in cluster 1. The likelihoods are
    # 1 and 1/4 against 1 and 1/3; their geometric means 1/2 and sqrt(1/3); squared, 1/4 and 1/3.
    losses = np.log([[2.0, 4.0], [8.0, 4.0]])
    prior = np.array([[1 / 2, 1 / 2], [1 / 4, 3 / 4]])

    result = em.pooled_e_step(losses, prior, np.array([0, 1]), exponent=2.0)

    np.testing.assert_allclose(result, [[3 / 7, 4 / 7]] * 2, atol=1e-12)


def test_no_annealing_is_the_plain_e_step_from_round_one():
    assert em.annealing_exponent(1, rounds=0, start=0.05) == 1.0


# --- removing and merging ------------------------------------------------------------------------


@several
@given(rows_of_shares(clusters=4), st.integers(0, 3))
def test_removing_a_cluster_renormalises_the_others(shares, gone):
    # Prepare
    kept = [k for k in range(4) if k != gone]
    mapping = np.array([kept.index(k) if k in kept else -1 for k in range(4)])

    # Execute
    result = em.renormalise(em.regroup(shares, mapping, 3, axis=1), axis=1)

    # Assert
    for row, before in zip(result, shares, strict=True):
        rest = sum(before[k] for k in kept)
        expected = [before[k] / rest if rest > 0 else 1 / 3 for k in kept]
        np.testing.assert_allclose(row, expected, atol=1e-9)


@several
@given(rows_of_shares(clusters=4), st.permutations(range(4)))
def test_merging_conserves_mass(shares, order):
    # Prepare: `gone` becomes part of `stays`
    gone, stays = order[:2]
    kept = [k for k in range(4) if k != gone]
    mapping = np.array([kept.index(stays if k == gone else k) for k in range(4)])

    # Execute
    result = em.regroup(shares, mapping, 3, axis=1)

    # Assert
    np.testing.assert_allclose(result.sum(axis=1), shares.sum(axis=1), atol=1e-12)
    merged = shares[:, gone] + shares[:, stays]
    np.testing.assert_allclose(result[:, kept.index(stays)], merged, atol=1e-12)


def test_regroup_moves_rows_or_columns_alike():
    values, mapping = np.arange(6.0).reshape(3, 2), np.array([1, -1, 1])

    rows = em.regroup(values, mapping, 2, axis=0)
    columns = em.regroup(values.T.copy(), mapping, 2, axis=1)

    # rows 0 and 2, [0, 1] and [4, 5], go to place 1; row 1 goes nowhere; place 0 gets nothing
    np.testing.assert_array_equal(rows, [[0, 0], [4, 6]])
    np.testing.assert_array_equal(columns, rows.T)


def test_renormalise_spreads_evenly_what_has_no_mass_and_scales_to_totals():
    values = np.array([[0.0, 1.0], [0.0, 3.0]])

    result = em.renormalise(values, axis=0, total=np.array([[6.0, 2.0]]))

    # column 0 has no mass: 6 spread evenly; column 1 is a quarter and three quarters of 2
    np.testing.assert_allclose(result, [[3.0, 0.5], [3.0, 1.5]], atol=1e-12)


def test_mean_movement_is_total_variation_weighed_by_samples():
    before = np.array([[1.0, 0.0], [0.5, 0.5]])
    after = np.array([[0.0, 1.0], [0.25, 0.75]])

    moved = em.mean_movement(before, after, np.array([1.0, 3.0]))

    # client 0 moved by 1, client 1 by 1/4: (1 * 1 + 3 * 1/4) / 4
    assert moved == pytest.approx(7 / 16, abs=1e-12)


def find_same(table, tolerance):
    """Two clusters whose samples lose at most the tolerance by using each other's model."""
    return em.smallest_pair(em.mutual_excess(table), tolerance)


def test_find_same_takes_the_pair_that_loses_least():
    # Excess of b's model on a's samples: (0, 1) 0.3 and 0.1; (0, 2) 0.2 and 0.2; (1, 2) 2 and 0.
    table = np.array([[1.0, 1.3, 1.2], [2.1, 2.0, 4.0], [0.7, 0.5, 0.5]])

    # the worse direction decides: 0.3, 0.2 and 2
    assert find_same(table, 0.25) == (0, 2)
    assert find_same(table, 0.19) is None


def test_clusters_that_serve_only_one_way_are_not_the_same():
    # Cluster 1 serves 0's samples as well as 0 does, 0 fails on those of 1.
    assert find_same(np.array([[1.0, 1.0], [9.0, 1.0]]), 0.5) is None


@pytest.mark.parametrize("table", [np.zeros((0, 0)), np.ones((1, 1)), np.full((2, 2), np.nan)])
def test_find_same_finds_nothing_where_there_is_no_pair(table):
    assert find_same(table, 10.0) is None


@several
@given(hnp.arrays(float, (4, 4), elements=st.floats(0.0, 5.0)), st.permutations(range(4)))
def test_find_same_does_not_depend_on_the_order_of_the_clusters(table, order):
    found = find_same(table, 1.0)

    permuted = find_same(table[np.ix_(order, order)], 1.0)

    def worse(pair):
        a, b = pair
        return max(table[a, b] - table[a, a], table[b, a] - table[b, b])

    if found is None:
        assert permuted is None
    else:
        a, b = permuted
        assert worse((order[a], order[b])) == worse(found)


def test_the_excess_of_another_model_is_bounded_sample_by_sample():
    # Prepare: two samples, two clusters; differences of 3 and -1 nats as seen from cluster 0
    responsibilities = np.array([[0.75, 0.25], [0.5, 0.5]])
    losses = np.array([[1.0, 4.0], [2.0, 1.0]])

    # Execute
    table = em.bounded_excess(responsibilities, losses, bound=2.0)

    # Assert: 0.75 * 2 - 0.5 * 1 for cluster 0; -0.25 * 2 + 0.5 * 1 for cluster 1
    np.testing.assert_allclose(table, [[0.0, 1.0], [0.0, 0.0]], atol=1e-12)


def test_squared_movement_by_hand_without_noise():
    # Prepare: client 0 (4 samples) moves wholly, client 1 (2 samples) by half
    before, after = np.array([[4.0, 0.0], [2.0, 0.0]]), np.array([[0.0, 4.0], [1.0, 1.0]])

    # Execute
    squared, error = em.squared_movement(before, after, np.array([4.0, 2.0]), np.zeros(2))

    # Assert: (16 * 1 + 4 * 1/4) / (16 + 4)
    assert squared == pytest.approx(17 / 20, abs=1e-12)
    assert error == 0.0


@pytest.mark.parametrize("moving", [0.0, 0.3])
def test_squared_movement_sees_through_noise_as_often_as_its_error_says(moving):
    # Prepare: 100 clients of 100 samples; a share of them changes from cluster 0 to cluster 1
    rng, clients, deviation = np.random.default_rng(3), 100, 40.0
    before = np.tile([100.0, 0.0, 0.0], (clients, 1))
    after = before.copy()
    after[: int(moving * clients)] = [0.0, 100.0, 0.0]
    variance = np.full(clients, deviation**2)

    # Execute: noise on the difference, 2,000 times
    found = []
    for _ in range(2000):
        noisy = after + rng.normal(0.0, deviation, after.shape)
        found.append(em.squared_movement(before, noisy, np.full(clients, 100.0), variance))
    estimates, errors = np.array(found).T

    # Assert: no bias, and at rest the deviation that is claimed
    assert estimates.mean() == pytest.approx(moving, abs=5 * estimates.std() / np.sqrt(2000))
    if moving == 0.0:
        assert estimates.std() == pytest.approx(errors[0], rel=0.05)


def test_cluster_without_weight_stays_reachable():
    # One sample that the second model fits by 9 nats better: 1 against 0.001 * exp(9) = 8.10.
    losses, labels = np.array([[10.0, 1.0]]), np.array([0])
    start = em.reachable(np.array([1.0, 0.0]))

    np.testing.assert_allclose(start, [1 / 1.001, 0.001 / 1.001])
    np.testing.assert_allclose(
        em.e_step(losses, start, None, labels), [[0.1099, 0.8901]], atol=1e-4
    )


def test_weights_above_zero_stay_as_they_are():
    weights = np.array([0.3, 1e-12, 0.7 - 1e-12])

    np.testing.assert_allclose(em.reachable(weights), weights, rtol=1e-12)
