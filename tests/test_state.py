from dataclasses import replace

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrc_flwr.em import AdamMoments
from fedrc_flwr.state import ClientRecord, ClientState, Membership, ServerState

several = settings(deadline=None, max_examples=60)
weights_of_four = hnp.arrays(float, 4, elements=st.floats(0.01, 1.0)).map(lambda w: w / w.sum())
counts_of_four = hnp.arrays(float, (4, 3), elements=st.floats(0.0, 50.0))


def server(counts, clusters=None, tables=None, **fields):
    """A server that knows one client per entry of ``counts``, each (K, C) or None."""
    clusters = clusters or tuple(range(len(next(c for c in counts if c is not None))))
    tables = tables or [None] * len(counts)
    records = {
        f"client-{i}": ClientRecord(
            "train",
            samples=10,
            label_counts=None if c is None else np.array(c, dtype=float),
            cross_losses=None if t is None else np.array(t, dtype=float),
        )
        for i, (c, t) in enumerate(zip(counts, tables, strict=True))
    }
    models = {c: np.full(2, float(c), dtype=np.float32) for c in clusters}
    return ServerState(3, Membership(clusters), models, None, records, parameters=2, **fields)


# --- membership ----------------------------------------------------------------------------------


def test_a_living_cluster_is_its_own_successor_at_its_new_position():
    membership = Membership((2, 5))

    assert [membership.successor(c) for c in (2, 5)] == [0, 1]


def test_a_removed_cluster_has_no_successor():
    assert Membership((2, 5)).successor(3) == -1


def test_a_chain_of_merges_leads_to_the_last_of_it():
    # 1 into 3, 3 into 4
    membership = Membership((0, 4), {1: 3, 3: 4})

    np.testing.assert_array_equal(membership.mapping_from((0, 1, 3, 4)), [0, 1, 1, 1])


def test_a_chain_of_merges_whose_end_was_removed_leads_nowhere():
    # 1 into 3, 3 into 4, then 4 removed
    membership = Membership((0,), {1: 3, 3: 4})

    np.testing.assert_array_equal(membership.mapping_from((0, 1, 3, 4)), [0, -1, -1, -1])


# --- a client's state ----------------------------------------------------------------------------


def test_a_client_that_comes_for_the_first_time_starts_uniform_over_the_living_clusters():
    state = ClientState.start((1, 4, 7))

    np.testing.assert_allclose(state.mixture_weights, [1 / 3] * 3)
    assert state.clusters == (1, 4, 7)
    assert (state.round, state.moments, state.releases) == (0, None, 0)


def test_a_state_over_the_same_clusters_is_left_as_it_is():
    state = ClientState(4, (0, 2), np.array([0.25, 0.75]))

    assert state.moved_to(Membership((0, 2), {1: 0})) is state


def test_a_cluster_removed_while_a_client_was_away_is_dropped_and_the_rest_renormalised():
    # Prepare: the client left with three clusters, cluster 1 is gone when it is back
    away = ClientState(4, (0, 1, 2), np.array([0.2, 0.5, 0.3]), releases=6)

    # Execute
    back = away.moved_to(Membership((0, 2)))

    # Assert: 0.2 and 0.3 of 0.5; what else it remembered stays
    np.testing.assert_allclose(back.mixture_weights, [0.4, 0.6], atol=1e-12)
    assert (back.round, back.clusters, back.releases) == (4, (0, 2), 6)


def test_weights_after_a_removal_are_the_mean_of_renormalised_responsibilities_by_hand():
    # Prepare: two samples; by their mean the weights are 0.3, 0.65 and 0.05
    rows = np.array([[0.5, 0.5, 0.0], [0.1, 0.8, 0.1]])
    away = ClientState(4, (0, 1, 2), rows.mean(axis=0), responsibilities=rows)

    # Execute
    back = away.moved_to(Membership((0, 2)))

    # Assert: 1 and 0, then 1/2 and 1/2; the weights themselves would give 6/7 and 1/7
    np.testing.assert_allclose(back.responsibilities, [[1, 0], [0.5, 0.5]], atol=1e-12)
    np.testing.assert_allclose(back.mixture_weights, [0.75, 0.25], atol=1e-12)


def test_a_client_all_of_whose_clusters_were_removed_starts_over_uniformly():
    away = ClientState(4, (0, 1, 2), np.array([0.0, 1.0, 0.0]))

    back = away.moved_to(Membership((0, 2)))

    np.testing.assert_allclose(back.mixture_weights, [0.5, 0.5], atol=1e-12)


def test_a_chain_of_merges_and_a_removal_while_a_client_was_away():
    # Prepare: 0 into 1, 1 into 2, then 2 removed; 3 into 4
    away = ClientState(4, (0, 1, 2, 3, 4, 5), np.array([0.1, 0.2, 0.1, 0.15, 0.15, 0.3]))

    # Execute
    back = away.moved_to(Membership((4, 5), {0: 1, 1: 2, 3: 4}))

    # Assert: 0.4 went with 2; 4 holds 0.15 + 0.15 and 5 holds 0.3 of the 0.6 that are left
    np.testing.assert_allclose(back.mixture_weights, [0.5, 0.5], atol=1e-12)


def test_adam_moments_follow_a_removal_and_a_merge():
    # Prepare: cluster 1 removed, 3 merged into 0; sample 1 belonged to cluster 1 alone
    moments = AdamMoments(
        np.array([[0.1, 0.5, 0.1, 0.3], [0.0, 1.0, 0.0, 0.0]]),
        np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]),
        np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]]),
    )
    state = ClientState(2, (0, 1, 2, 3), np.full(4, 0.25), moments)

    # Execute
    moved = state.moved_to(Membership((0, 2), {3: 0})).moments

    # Assert: 0.1 + 0.3 and 0.1 of 0.5; evenly where nothing is left
    np.testing.assert_allclose(moved.responsibilities, [[0.8, 0.2], [0.5, 0.5]], atol=1e-12)
    np.testing.assert_allclose(moved.first, [[5.0, 3.0], [13.0, 7.0]], atol=1e-12)
    np.testing.assert_allclose(moved.second, [[0.5, 0.3], [1.3, 0.7]], atol=1e-12)


@several
@given(weights_of_four, st.permutations(range(4)))
def test_merging_adds_the_weights_and_conserves_their_sum(weights, order):
    gone, stays = order[:2]
    kept = tuple(c for c in range(4) if c != gone)

    merged = ClientState(1, (0, 1, 2, 3), weights).moved_to(Membership(kept, {gone: stays}))

    expected = [weights[c] + (weights[gone] if c == stays else 0.0) for c in kept]
    np.testing.assert_allclose(merged.mixture_weights, expected, atol=1e-12)


@several
@given(weights_of_four, st.permutations(range(4)))
def test_two_removals_at_once_are_the_same_as_one_after_the_other(weights, order):
    start = ClientState(1, (0, 1, 2, 3), weights)
    one_gone, two_gone = tuple(sorted(order[1:])), tuple(sorted(order[2:]))

    at_once = start.moved_to(Membership(two_gone))
    in_turn = start.moved_to(Membership(one_gone)).moved_to(Membership(two_gone))

    np.testing.assert_allclose(at_once.mixture_weights, in_turn.mixture_weights, atol=1e-12)


# --- what the server knows of a client -----------------------------------------------------------


def test_mixture_weights_of_a_record_are_the_shares_of_its_counts():
    record = ClientRecord("train", 8, label_counts=np.array([[1.0, 2.0, 3.0], [0.0, 2.0, 0.0]]))

    np.testing.assert_allclose(record.mixture_weights(), [3 / 4, 1 / 4], atol=1e-12)


def test_a_record_without_a_report_has_no_mixture_weights():
    assert ClientRecord("train", 8).mixture_weights() is None


def test_a_cluster_whose_noisy_counts_sum_below_zero_has_no_weight():
    record = ClientRecord("train", 8, label_counts=np.array([[4.0, -1.0], [-3.0, 2.0]]))

    np.testing.assert_allclose(record.mixture_weights(), [1.0, 0.0], atol=1e-12)


def test_a_record_whose_noise_drowned_everything_has_uniform_weights():
    record = ClientRecord("train", 1, label_counts=np.array([[-4.0, 1.0], [-3.0, 2.0]]))

    np.testing.assert_allclose(record.mixture_weights(), [0.5, 0.5], atol=1e-12)


# --- the server's state --------------------------------------------------------------------------


def test_the_prior_is_uniform_before_the_first_report():
    state = server([None, None], clusters=(0, 1))

    np.testing.assert_allclose(state.label_prior(classes=4), np.full((2, 4), 0.25))


def test_the_prior_of_two_clusters_and_three_labels_by_hand():
    # Prepare: two clients reported, a third is enrolled only
    state = server([[[1, 0, 2], [3, 0, 0]], [[0, 0, 1], [1, 2, 0]], None])

    # Execute
    prior = state.label_prior(floor=0.5, classes=3)

    # Assert: sums [1, 0, 3] and [4, 2, 0]; lifted [1, 1/2, 3] of 9/2 and [4, 2, 1/2] of 13/2
    expected = [[2 / 9, 1 / 9, 6 / 9], [8 / 13, 4 / 13, 1 / 13]]
    np.testing.assert_allclose(prior, expected, atol=1e-12)


@several
@given(st.lists(hnp.arrays(float, (2, 3), elements=st.floats(-5.0, 50.0)), min_size=1, max_size=4))
def test_the_prior_agrees_with_a_loop_over_clients(counts):
    prior = server(counts).label_prior(floor=0.1, classes=3)

    np.testing.assert_allclose(prior, reference.label_prior(counts, 0.1), atol=1e-9)


def test_shares_weigh_the_clients_by_their_samples():
    # Prepare: client-0 with weights 1/4, 3/4 and 4 samples, client-1 with 1, 0 and 12
    state = server([[[1, 0], [3, 0]], [[4, 8], [0, 0]], None])

    # Execute
    shares = state.shares()

    # Assert: (4 * 1/4 + 12 * 1) / 16
    np.testing.assert_allclose(shares, [13 / 16, 3 / 16], atol=1e-12)


def test_noise_is_summed_before_anything_is_cut_off():
    # Prepare: the second cluster is empty; noise made it +6 at one client and -5 at the other
    state = server([[[10], [6]], [[9], [-5]]])

    # Execute
    masses, error = state.masses()

    # Assert
    np.testing.assert_allclose(masses, [19, 1], atol=1e-12)
    assert error == 0.0
    np.testing.assert_allclose(state.shares(), [19 / 20, 1 / 20], atol=1e-12)


def test_the_prior_lifts_what_noise_hides_to_the_noise():
    # Prepare: a noise of 3 and of 4 on two clients' counts: 5 on their sum
    state = server([[[40, 1], [8, 30]], [[20, 1], [4, 8]]])
    noises = dict(zip(state.clients, (3.0, 4.0), strict=True))
    clients = {n: replace(r, noise=noises[n]) for n, r in state.clients.items()}

    # Execute
    prior = replace(state, clients=clients).label_prior(floor=0.1, classes=2)

    # Assert: sums (60, 2) and (12, 38); 2 is lifted to 5
    np.testing.assert_allclose(prior, [[60 / 65, 5 / 65], [12 / 50, 38 / 50]], atol=1e-12)


def test_shares_are_uniform_before_the_first_report():
    np.testing.assert_allclose(server([None], clusters=(0, 1)).shares(), [0.5, 0.5])


def test_only_clients_with_counts_have_reported():
    assert list(server([[[1], [1]], None]).reported()) == ["client-0"]


def test_removing_a_cluster_spreads_its_counts_label_by_label():
    # Prepare: cluster 1 goes; label 1 belonged to it alone
    state = server([[[2, 0, 1], [4, 6, 1], [2, 0, 3]]])

    # Execute
    after = state.moved_to(Membership((0, 2)))

    # Assert: label 0's 8 by 2 : 2, label 1's 6 evenly, label 2's 5 by 1 : 3
    counts = after.clients["client-0"].label_counts
    np.testing.assert_allclose(counts, [[4, 3, 5 / 4], [4, 3, 15 / 4]], atol=1e-12)


@several
@given(counts_of_four, st.integers(0, 3))
def test_removing_a_cluster_keeps_how_many_samples_a_client_has_of_each_label(counts, gone):
    after = server([counts]).moved_to(Membership(tuple(c for c in range(4) if c != gone)))

    left = after.clients["client-0"].label_counts
    np.testing.assert_allclose(left.sum(axis=0), counts.sum(axis=0), atol=1e-9)
    assert (left >= 0).all()


def test_removing_a_cluster_with_noise_negative_counts_keeps_the_label_totals():
    # Prepare: label 0 sums to 5 - 1 + 2 = 6, label 1 to -1 + 3 + 1 = 3
    state = server([[[5, -1], [-1, 3], [2, 1]]])

    # Execute
    left = state.moved_to(Membership((0, 1))).clients["client-0"].label_counts

    # Assert: what noise made negative gets nothing
    np.testing.assert_allclose(left, [[6, 0], [0, 3]], atol=1e-12)


@several
@given(counts_of_four, st.permutations(range(4)))
def test_merging_adds_the_counts_and_conserves_them(counts, order):
    gone, stays = order[:2]
    kept = tuple(c for c in range(4) if c != gone)

    after = server([counts]).moved_to(Membership(kept, {gone: stays}))

    expected = [counts[c] + (counts[gone] if c == stays else 0.0) for c in kept]
    np.testing.assert_allclose(after.clients["client-0"].label_counts, expected, atol=1e-9)


def test_merging_adds_noisy_counts_as_they_are():
    # Prepare: noise made counts negative, in the merged pair (0, 1) and beside it
    state = server([[[5, -1], [-2, 3], [-1, 4]]])

    # Execute
    after = state.moved_to(Membership((0, 2), {1: 0})).clients["client-0"].label_counts

    # Assert: sums of noisy counts are unbiased; the cluster not concerned keeps its own
    np.testing.assert_allclose(after, [[3, 2], [-1, 4]], atol=1e-12)


def test_merging_adds_the_rows_of_the_loss_table_and_keeps_the_models_that_stay():
    # Prepare: 1 becomes part of 0; model 1's column goes
    state = server([[[1], [2], [3]]], tables=[[[1, 2, 3], [4, 5, 6], [7, 8, 9]]])

    # Execute
    after = state.moved_to(Membership((0, 2), {1: 0}))

    # Assert: losses on 0's and 1's samples add, of models 0 and 2
    np.testing.assert_array_equal(after.clients["client-0"].cross_losses, [[5, 9], [7, 9]])


def test_models_and_optimizer_of_a_cluster_that_went_go_with_it_and_the_bodys_stay():
    # Prepare: -1 is the shared body
    slots = {"first": {c: np.array([float(c)]) for c in (-1, 0, 1, 2)}}
    state = server([[[1], [1], [1]]], optimizer=slots, optimizer_steps=7, quiet_rounds=3)

    # Execute
    after = state.moved_to(Membership((0, 2), {1: 2}))

    # Assert
    assert sorted(after.models) == [0, 2]
    np.testing.assert_array_equal(after.models[2], state.models[2])
    assert sorted(after.optimizer["first"]) == [-1, 0, 2]
    assert (after.optimizer_steps, after.quiet_rounds, after.round) == (7, 0, 3)


def test_a_client_that_never_reported_stays_without_counts_when_clusters_go():
    after = server([[[1], [1]], None]).moved_to(Membership((1,)))

    record = after.clients["client-1"]
    assert record.label_counts is None
    assert record.cross_losses is None


@pytest.mark.parametrize("merged", [{}, {0: 1}])
def test_client_and_server_agree_on_the_weights_after_a_change_of_clusters(merged):
    # Prepare: a client with one class, whose counts are its weights times its samples
    weights = np.array([0.2, 0.3, 0.5])
    client, state = ClientState(1, (0, 1, 2), weights), server([10 * weights[:, None]])
    membership = Membership((1, 2), merged)

    # Execute
    client, state = client.moved_to(membership), state.moved_to(membership)

    # Assert
    seen = state.clients["client-0"].mixture_weights()
    np.testing.assert_allclose(seen, client.mixture_weights, atol=1e-12)


def test_removing_a_cluster_distributes_noisy_counts_without_cutting_any_off():
    # Prepare: two labels, three clusters; the third goes. Over both clients, label 0 is 30 to 10
    # in the clusters that stay, label 1 is 5 to 15
    counts = [[[20, 6], [-2, 5], [4, 1]], [[10, -1], [12, 10], [-8, 3]]]
    state = server(counts)
    noisy = {name: replace(r, noise=2.0) for name, r in state.clients.items()}
    state = replace(state, clients=noisy)

    # Execute
    after = state.moved_to(Membership((0, 1)))

    # Assert: 3/4 and 1/4 of 4 and -8 samples of label 0; 1/4 and 3/4 of 1 and 3 of label 1
    first, second = (after.clients[f"client-{i}"].label_counts for i in range(2))
    np.testing.assert_allclose(first, [[23, 6.25], [-1, 5.75]], atol=1e-12)
    np.testing.assert_allclose(second, [[4, -0.25], [10, 12.25]], atol=1e-12)
    assert after.masses()[0].sum() == pytest.approx(state.masses()[0].sum())
