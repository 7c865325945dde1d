import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from federation import Federation

from fedrc_flwr import adaptive
from fedrc_flwr.adaptive import Adaptation, AdaptiveSettings, Movement
from fedrc_flwr.config import load_config
from fedrc_flwr.state import ClientRecord, Membership, ServerState

torch.set_num_threads(1)
STILL = Movement(0.0)


def configure(**keys):
    base = {"settle_rounds": 2, "adaptive": True, "merge": True, "merge_tolerance": 0.5}
    return AdaptiveSettings(**{**base, **keys})


def server(counts, tables=None, clusters=None, **fields):
    """A server with one client per entry of ``counts``, (K, C), and of ``tables``, (K, K)."""
    clusters = clusters or tuple(range(len(counts[0])))
    tables = [None] * len(counts) if tables is None else tables
    records = {}
    for i, (count, table) in enumerate(zip(counts, tables, strict=True)):
        count = np.array(count, dtype=float)
        table = None if table is None else np.array(table, dtype=float)
        records[f"client-{i}"] = ClientRecord("train", int(count.sum()), count, table)
    models = {c: np.full(1, float(c), dtype=np.float32) for c in clusters}
    return ServerState(9, Membership(clusters), models, None, records, parameters=1, **fields)


# --- settling ------------------------------------------------------------------------------------


def test_movement_is_the_mean_change_of_the_clients_that_took_part():
    # Prepare: client-0 goes from (1, 0) to (1/2, 1/2) with 4 samples, client-1 does not move with
    # 12, client-2 moves but was not in the round
    before = server([[[4], [0]], [[6], [6]], [[4], [0]]])
    after = server([[[2], [2]], [[6], [6]], [[0], [4]]])

    # Execute
    movement = adaptive.movement(before, after, ["client-0", "client-1"])

    # Assert: (4 * 1/2 + 12 * 0) / 16
    assert movement.moved == pytest.approx(1 / 8, abs=1e-12)
    assert movement.resolution == 0.0


def test_a_client_that_comes_for_the_first_time_moves_from_uniform_weights():
    # Prepare: it was enrolled without a report, or not at all
    after = server([[[4], [0]], [[3], [1]]])
    enrolled = {"client-0": ClientRecord("train", 4)}
    before = replace(after, clients=enrolled)

    # Execute
    movement = adaptive.movement(before, after, ["client-0", "client-1"])

    # Assert: 1/2 and 1/4, of equal size
    assert movement.moved == pytest.approx(3 / 8, abs=1e-12)


def hundred_clients(clusters_of_clients, noise, rng, classes=10):
    """100 clients of 100 samples, each wholly in one of three clusters, with noisy counts."""
    state = server([np.zeros((3, classes))])
    records = {}
    for i, cluster in enumerate(clusters_of_clients):
        counts = np.zeros((3, classes))
        counts[cluster] = 100 / classes
        noisy = counts + rng.normal(0.0, noise, counts.shape)
        records[f"client-{i}"] = ClientRecord("train", 100, noisy, noise=noise)
    return replace(state, clients=records)


@pytest.mark.parametrize("noise", [5.0, 25.0])
def test_a_hundred_clients_that_all_change_their_cluster_are_not_at_rest(noise):
    # Prepare: everybody moves from cluster 0 to cluster 1
    rng = np.random.default_rng(1)
    before = hundred_clients([0] * 100, noise, rng)
    after = hundred_clients([1] * 100, noise, rng)

    # Execute
    movement = adaptive.movement(before, after, sorted(after.clients))

    # Assert
    assert movement.moved == pytest.approx(1.0, abs=0.4)
    assert not movement.rests(0.02)


def test_a_hundred_clients_at_rest_rest_under_a_noise_of_five():
    rng = np.random.default_rng(2)
    before, after = (hundred_clients([0, 1] * 50, 5.0, rng) for _ in range(2))

    movement = adaptive.movement(before, after, sorted(after.clients))

    assert not movement.blind
    assert movement.rests(0.02)


def test_a_noise_of_twenty_five_hides_whether_a_hundred_clients_rest():
    # Prepare
    rng = np.random.default_rng(2)
    before, after = (hundred_clients([0, 1] * 50, 25.0, rng) for _ in range(2))

    # Execute
    movement = adaptive.movement(before, after, sorted(after.clients))
    settled = replace(after, quiet_rounds=99)
    state, adaptation = adaptive.adapt(settled, movement, configure())

    # Assert: whatever it looks like, nothing is done, and it is said why
    assert movement.blind
    assert not movement.rests(1.0)
    assert state is settled
    assert adaptation == Adaptation(undecided="whether the clients have settled")


@pytest.mark.parametrize(("noise", "error"), [(5.0, 0.0158), (25.0, 0.079)])
def test_an_empty_cluster_reads_as_empty_to_within_the_error_that_is_claimed(noise, error):
    # Prepare: cluster 2 is empty; the error of its sum is noise * sqrt(100 clients * 10 classes),
    # over 10,000 samples
    rng = np.random.default_rng(5)
    states = [hundred_clients([0, 1] * 50, noise, rng) for _ in range(40)]

    # Execute
    empty = [state.masses()[0][2] / 10_000 for state in states]

    # Assert
    assert np.mean(empty) == pytest.approx(0.0, abs=4 * error / math.sqrt(40))
    assert np.std(empty) == pytest.approx(error, rel=0.4)
    assert np.mean([state.share_error() for state in states]) == pytest.approx(error, rel=0.1)
    assert max(state.shares()[2] for state in states) < 3 * error


def test_a_change_of_loss_is_that_of_the_clients_that_reported_twice():
    # Prepare: client-0 learns 0.4 with 4 samples, client-1 forgets 0.2 with 12, client-2 comes for
    # the first time, client-3 was not in the round
    after = server([[[4], [0]], [[6], [6]], [[4], [0]], [[4], [0]]])

    def with_losses(*losses):
        pairs = zip(after.clients.items(), losses, strict=True)
        return replace(after, clients={n: replace(r, loss=loss) for (n, r), loss in pairs})

    before, now = with_losses(2.0, 1.0, None, 3.0), with_losses(1.6, 1.2, 0.5, 9.0)

    # Execute
    learnt = adaptive.learning(before, now, ["client-0", "client-1", "client-2"])
    unknown = adaptive.learning(before, now, ["client-2"])

    # Assert: (4 * -0.4 + 12 * 0.2) / 16
    assert learnt == pytest.approx(0.05, abs=1e-12)
    assert unknown == math.inf


@pytest.mark.parametrize(
    ("moved", "learnt", "annealed", "quiet"),
    [
        (0.01, 0.02, False, True),
        (0.03, 0.02, False, False),
        (0.01, 0.04, False, False),
        (0.01, math.inf, False, False),
        (0.01, 0.02, True, False),
    ],
)
def test_a_round_is_quiet_when_weights_and_loss_rest_after_the_annealing(
    moved, learnt, annealed, quiet
):
    settings = configure(settle_tolerance=0.02, settle_loss=0.03)
    state = server([[[1], [1]]], quiet_rounds=1)

    after = adaptive.count_quiet_rounds(state, Movement(moved), learnt, annealed, settings)

    assert after.quiet_rounds == (2 if quiet else 0)


def test_nothing_is_removed_or_merged_before_the_weights_have_settled():
    state = server([[[99], [1]]], [[[0, 0], [0, 0]]], quiet_rounds=1)

    after, adaptation = adaptive.adapt(state, STILL, configure())

    assert after is state
    assert adaptation == Adaptation()


# --- removing ------------------------------------------------------------------------------------


def test_a_cluster_below_the_share_is_removed():
    # Prepare: shares 0.5, 0.04, 0.46
    state = server([[[50], [4], [46]]])

    # Execute
    after, removed = adaptive.remove_small(state, 0.05)

    # Assert
    assert removed == (1,)
    assert after.clusters == (0, 2)
    expected = [0.5 / 0.96, 0.46 / 0.96]
    np.testing.assert_allclose(after.shares(), expected, atol=1e-12)


def test_a_cluster_at_the_share_stays():
    state = server([[[19], [1]]])

    after, removed = adaptive.remove_small(state, 0.05)

    assert removed == ()
    assert after is state


def test_an_empty_cluster_is_removed():
    _, removed = adaptive.remove_small(server([[[1], [0], [1]]]), 0.05)

    assert removed == (1,)


def test_the_largest_cluster_is_never_removed():
    # Prepare: shares 0.26, 0.24, 0.25, 0.25, all below 0.5
    state = server([[[26], [24], [25], [25]]])

    # Execute
    after, removed = adaptive.remove_small(state, 0.5)

    # Assert
    assert removed == (1, 2, 3)
    assert after.clusters == (0,)
    np.testing.assert_allclose(after.clients["client-0"].label_counts, [[100]], atol=1e-9)


def test_removal_remembers_earlier_merges():
    state = replace(
        server([[[9], [0]]], clusters=(2, 3)), membership=Membership((2, 3), {0: 1, 1: 3})
    )

    after, removed = adaptive.remove_small(state, 0.05)

    assert removed == (3,)
    assert after.membership.successor(0) == -1
    assert after.membership.merged == {0: 1, 1: 3}


def test_settled_state_without_adaptive_removes_nothing():
    state = server([[[99], [1]]], quiet_rounds=2)

    after, adaptation = adaptive.adapt(state, STILL, configure(adaptive=False, merge=False))

    assert after is state
    assert adaptation == Adaptation()


def test_a_small_share_that_noise_may_have_made_is_left_alone():
    # Prepare: shares 0.5, 0.02, 0.48 of 1,000 samples; the error of a share is
    # 4 * sqrt(10 classes * 4 clients) / 1000 = 0.025
    counts = np.array([[500.0], [20.0], [480.0]]) * np.full((1, 10), 0.1) / 4
    state = server([counts] * 4, quiet_rounds=2)
    noisy = {n: replace(r, noise=4.0) for n, r in state.clients.items()}
    state = replace(state, clients=noisy)

    # Execute
    after, adaptation = adaptive.adapt(state, STILL, configure(merge=False))

    # Assert: 0.02 + 2 * 0.025 is above 0.05
    assert after is state
    assert adaptation == Adaptation(undecided="whether cluster 1 has less than 5% of the samples")


def test_a_share_that_is_small_in_spite_of_noise_is_removed():
    # Prepare: as above, with an error of 0.0125
    counts = np.array([[500.0], [20.0], [480.0]]) * np.full((1, 10), 0.1) / 4
    state = server([counts] * 4, quiet_rounds=2)
    noisy = {n: replace(r, noise=2.0) for n, r in state.clients.items()}

    after, adaptation = adaptive.adapt(replace(state, clients=noisy), STILL, configure(merge=False))

    assert adaptation == Adaptation(removed=(1,))
    assert after.clusters == (0, 2)


# --- merging -------------------------------------------------------------------------------------


def test_mean_losses_are_sums_over_clients_by_mass():
    # Prepare: masses 4 and 6 from client-0, 1 and 4 from client-1; client-2 sent no table
    state = server(
        [[[1, 3], [6, 0]], [[1, 0], [2, 2]], [[50, 0], [0, 50]]],
        [[[4, 8], [12, 3]], [[1, 2], [8, 7]], None],
    )

    # Execute
    table = adaptive.cross_losses(state)

    # Assert: (4 + 1) / 5, (8 + 2) / 5; (12 + 8) / 10, (3 + 7) / 10
    np.testing.assert_allclose(table, [[1, 2], [2, 1]], atol=1e-12)


def test_without_any_table_nothing_is_the_same():
    state = server([[[1], [1]]])

    assert np.isinf(adaptive.cross_losses(state)).all()
    with np.errstate(invalid="ignore"):
        assert adaptive.same_pair(state, tolerance=100.0) is None


def test_a_single_cluster_has_nothing_to_merge_with():
    assert adaptive.same_pair(server([[[5]]], [[[1]]]), tolerance=100.0) is None


@pytest.mark.parametrize(("masses", "pair"), [((8, 2), (0, 1)), ((2, 8), (1, 0))])
def test_the_model_that_serves_the_samples_of_both_better_stays(masses, pair):
    # Prepare: mean losses [[1.0, 0.9], [1.3, 1.0]] or its mirror: the better one on both
    means = {(0, 1): [[1.0, 0.9], [1.3, 1.0]], (1, 0): [[1.0, 1.3], [0.9, 1.0]]}[pair]
    first, second = masses
    table = np.array(means) * np.array([[first], [second]])
    state = server([[[first], [second]]], [table])

    # Execute
    found = adaptive.same_pair(state, tolerance=0.5)

    # Assert: 8 and 2 samples: model 0 costs 0.8 * 1.0 + 0.2 * 1.3 = 1.06, model 1 0.92; mirrored
    assert found == pair


def test_mass_decides_which_of_two_models_stays():
    # Prepare: each serves its own samples better by 0.2 nats; cluster 1 has more of them
    table = np.array([[1.0, 1.2], [1.2, 1.0]]) * [[2], [6]]

    # Execute
    found = adaptive.same_pair(server([[[2], [6]]], [table]), tolerance=0.5)

    # Assert: model 0 costs (2 * 1.0 + 6 * 1.2) / 8 = 1.15, model 1 costs 1.05
    assert found == (0, 1)


def test_merging_keeps_the_model_that_stays_and_adds_the_counts():
    # Prepare
    state = server([[[1, 2], [3, 4], [5, 6]]], [np.ones((3, 3))])

    # Execute
    after = adaptive.merge_pair(state, gone=0, stays=2)

    # Assert
    assert after.clusters == (1, 2)
    assert after.membership.merged == {0: 2}
    np.testing.assert_array_equal(after.models[2], state.models[2])
    np.testing.assert_allclose(after.clients["client-0"].label_counts, [[3, 4], [6, 8]], atol=1e-9)
    np.testing.assert_allclose(after.shares().sum(), 1.0, atol=1e-12)


def test_a_cluster_may_be_merged_more_than_once_in_a_round():
    # Prepare: three clusters of one concept, one of another; losses 1 within, 5 across
    masses = np.array([5.0, 4.0, 3.0, 8.0])
    means = np.full((4, 4), 5.0)
    means[:3, :3] = means[3, 3] = 1.0
    state = server([masses[:, None]], [means * masses[:, None]], quiet_rounds=2)

    # Execute
    after, adaptation = adaptive.adapt(state, STILL, configure())

    # Assert: one of the three is left, with the mass of all; the other concept stands alone
    assert len(adaptation.merged) == 2
    assert len(after.clusters) == 2
    assert 3 in after.clusters
    assert {after.membership.successor(c) for c in (0, 1, 2)} == {0}
    np.testing.assert_allclose(after.shares(), [12 / 20, 8 / 20], atol=1e-12)


def test_removal_comes_before_merging_and_both_start_the_count_of_quiet_rounds_again():
    # Prepare: 0 and 1 are the same concept, 2 is small
    masses = np.array([50.0, 48.0, 2.0])
    means = np.array([[1.0, 1.1, 9.0], [1.1, 1.0, 9.0], [9.0, 9.0, 9.0]])
    state = server([masses[:, None]], [means * masses[:, None]], quiet_rounds=2)

    # Execute
    after, adaptation = adaptive.adapt(state, STILL, configure())

    # Assert: model 0 has the larger mass
    assert adaptation == Adaptation(removed=(2,), merged=((1, 0),))
    assert after.clusters == (0,)
    assert after.quiet_rounds == 0


def test_removing_a_cluster_leaves_the_mean_losses_of_the_others_as_they_were():
    # Prepare: the removed cluster's mass goes to the other two, 4 + 4 of 100
    masses = np.array([46.0, 46.0, 8.0])
    means = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    state = server([masses[:, None]], [means * masses[:, None]])

    # Execute
    after, removed = adaptive.remove_small(state, 0.1)

    # Assert
    assert removed == (2,)
    np.testing.assert_allclose(adaptive.cross_losses(after), means[:2, :2], rtol=1e-9)


def test_an_empty_cluster_divides_nothing_by_zero():
    # Prepare: cluster 1 has no samples, so its row of sums is zero
    state = server([[[4], [0]]], [[[4, 20], [0, 0]]])

    # Execute
    table = adaptive.cross_losses(state)

    # Assert: it is not taken for the same, as its model costs 0's samples 4 nats more
    assert np.isfinite(table).all()
    assert math.isclose(table[0, 1] - table[0, 0], 4.0)
    assert adaptive.same_pair(state, tolerance=0.5) is None


def noisy_tables(noise, clients=4):
    """Two clusters of 100 samples a client that lose 0.1 nats by using each other's model."""
    table = [[0.0, 10.0], [10.0, 0.0]]
    state = server([[[50, 50], [50, 50]]] * clients, [table] * clients, quiet_rounds=2)
    return replace(state, clients={n: replace(r, noise=noise) for n, r in state.clients.items()})


@pytest.mark.parametrize(("noise", "merged", "undecided"), [
    (20.0, ((1, 0),), ""),
    (40.0, (), "which of clusters 0 and 1 mean the same"),
])  # fmt: skip
def test_merging_allows_for_the_noise_on_the_loss_table(noise, merged, undecided):
    # Prepare: masses of 400, and an error of noise * sqrt(4) * 2 log(2) * sqrt(1) / 400 nats:
    # 0.14 and 0.28; twice that and 0.1 are below and above the tolerance of 0.5
    state = noisy_tables(noise)

    # Execute
    _, adaptation = adaptive.adapt(state, STILL, configure(adaptive=False))

    # Assert
    assert adaptation == Adaptation(merged=merged, undecided=undecided)


def test_noisy_loss_tables_decide_one_merge_and_then_wait_for_new_ones():
    # Prepare: three clusters that serve each other's samples equally well
    table = np.full((3, 3), 1.0) - np.eye(3)
    state = server([np.full((3, 2), 500.0)] * 4, [table] * 4, quiet_rounds=2)
    noisy = {name: replace(r, noise=1.0) for name, r in state.clients.items()}

    # Execute
    after, adaptation = adaptive.adapt(
        replace(state, clients=noisy), STILL, configure(adaptive=False)
    )

    # Assert: what the merged rows' error would be is not known
    assert len(adaptation.merged) == 1
    assert all(record.cross_losses is None for record in after.clients.values())


def test_unevenly_clipped_counts_remove_nobody():
    # Prepare: 3 % of what was sent, which clipping may have made of more
    state = server([[[97, 0], [3, 0]]], quiet_rounds=2)
    noisy = {name: replace(r, noise=0.01) for name, r in state.clients.items()}
    state = replace(state, clients=noisy)

    # Execute
    after, adaptation = adaptive.adapt(state, STILL, configure(merge=False), uneven=True)

    # Assert
    assert after is state
    assert "because statistics are clipped" in adaptation.undecided


def test_a_cluster_that_noise_hides_is_merged_with_nobody():
    # Prepare: masses of 400, hidden by a noise of 2 * 150 * sqrt(4 clients * 2 labels)
    state = noisy_tables(150.0)

    # Execute: any tolerance
    assert adaptive.same_pair(state, tolerance=1e6) is None


def test_ten_rounds_of_digits_edge_leave_a_cluster_for_each_concept():
    # Seed 2 is among the slowest to settle
    keys = {"scenario": "digits-edge", "recipe": "edge", "seed": 2}
    federation = Federation(load_config(keys))
    for _ in range(federation.config.rounds):
        federation.round()

    clusters: dict[int, set[int]] = {}
    for client in federation.clients:
        if client.role == "train":
            state = federation.client_states[client.name].moved_to(federation.state.membership)
            likeliest = int(state.mixture_weights.argmax())
            clusters.setdefault(client.truth.concept, set()).add(likeliest)

    assert len(federation.state.clusters) == 3
    assert sorted(map(sorted, clusters.values())) == [[0], [1], [2]]
