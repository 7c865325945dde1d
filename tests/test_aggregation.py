import math
from dataclasses import replace

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrc_flwr.aggregation import BODY, ServerSettings, UpdateSums, apply_updates
from fedrc_flwr.state import Membership, ServerState

vectors = hnp.arrays(np.float32, 3, elements=st.floats(-10.0, 10.0, width=32))
replies = st.lists(
    st.tuples(st.integers(1, 500), st.dictionaries(st.integers(-1, 2), vectors, max_size=4)),
    min_size=1,
    max_size=6,
)


def add_all(sums, given_replies):
    for samples, deltas in given_replies:
        sums.add(deltas, samples)
    return sums.means()


def floats(*values):
    return np.array(values, dtype=np.float32)


def server(body=None):
    models = {0: floats(1.0, 2.0), 2: floats(3.0, 4.0)}
    return ServerState(0, Membership((0, 2)), models, body, {}, parameters=2, body_parameters=2)


# --- sums ----------------------------------------------------------------------------------------


def test_means_over_all_clients_by_hand():
    # Prepare: 1 and 3 samples; only the first client sends cluster 2
    sums = UpdateSums(absent_is_zero=True)

    # Execute
    means = add_all(sums, [(1, {0: floats(4, 0), 2: floats(8, 8)}), (3, {0: floats(0, 4)})])

    # Assert: (1 * 4 + 3 * 0) / 4 and (1 * 0 + 3 * 4) / 4; the absent update counts as zero
    np.testing.assert_allclose(means[0], [1.0, 3.0], atol=1e-12)
    np.testing.assert_allclose(means[2], [2.0, 2.0], atol=1e-12)
    assert sums.samples == 4


def test_means_over_those_that_sent_a_cluster_by_hand():
    means = add_all(
        UpdateSums(absent_is_zero=False),
        [(1, {0: floats(4, 0), 2: floats(8, 8)}), (3, {0: floats(0, 4)})],
    )

    np.testing.assert_allclose(means[0], [1.0, 3.0], atol=1e-12)
    np.testing.assert_allclose(means[2], [8.0, 8.0], atol=1e-12)


def test_a_cluster_that_nobody_sent_has_no_mean():
    assert list(add_all(UpdateSums(absent_is_zero=True), [(5, {1: floats(1)})])) == [1]


@settings(deadline=None, max_examples=60)
@given(replies, st.booleans())
def test_means_agree_with_a_loop_over_clients(given_replies, absent_is_zero):
    means = add_all(UpdateSums(absent_is_zero), given_replies)

    for cluster in range(-1, 3):
        senders = [(n, d[cluster]) for n, d in given_replies if cluster in d]
        assert (cluster in means) == bool(senders)
        for position in range(3 if senders else 0):
            total = math.fsum(n * float(delta[position]) for n, delta in senders)
            mass = sum(n for n, _ in (given_replies if absent_is_zero else senders))
            assert means[cluster][position] == pytest.approx(total / mass, abs=1e-9)


@settings(deadline=None, max_examples=30)
@given(replies, st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(given_replies, random):
    shuffled = list(given_replies)
    random.shuffle(shuffled)

    one = add_all(UpdateSums(absent_is_zero=True), given_replies)
    other = add_all(UpdateSums(absent_is_zero=True), shuffled)

    assert one.keys() == other.keys()
    for cluster, mean in one.items():
        np.testing.assert_allclose(mean, other[cluster], atol=1e-9)


def test_sums_are_kept_in_double_precision():
    # Prepare: in float32, 2^24 + 1 is 2^24
    sums = UpdateSums(absent_is_zero=True)
    sums.add({0: floats(2**24)}, 1)

    # Execute
    sums.add({0: floats(1)}, 1)

    # Assert
    assert sums.means()[0][0] == (2**24 + 1) / 2


def test_adding_does_not_change_the_reply():
    delta = floats(1, 2)

    add_all(UpdateSums(absent_is_zero=True), [(3, {0: delta}), (4, {0: floats(1, 1)})])

    np.testing.assert_array_equal(delta, [1, 2])


# --- the server's optimizer ----------------------------------------------------------------------


def test_sgd_adds_the_mean_times_the_global_learning_rate():
    state, settings = server(), ServerSettings(learning_rate=0.5)

    after = apply_updates(state, {0: np.array([2.0, -4.0])}, settings)

    np.testing.assert_allclose(after.models[0], [2.0, 0.0], atol=1e-6)
    np.testing.assert_array_equal(after.models[2], state.models[2])
    assert after.models[0].dtype == np.float32
    np.testing.assert_array_equal(state.models[0], [1.0, 2.0])


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_three_steps_agree_with_the_optimizers_formulas_number_by_number(optimizer):
    # Prepare: cluster 2 is not trained by anybody in the second round; the body is -1
    settings = ServerSettings(optimizer, learning_rate=0.3, momentum=0.8, beta2=0.95, epsilon=1e-2)
    rng = np.random.default_rng(3)
    rounds = [{c: rng.normal(size=2) for c in (0, 2, BODY)} for _ in range(3)]
    del rounds[1][2]
    state = server(body=floats(5.0, 6.0))
    plain = {(c, p): float(v[p]) for c, v in {**state.models, BODY: state.body}.items()
             for p in range(2)}  # fmt: skip
    first, second = dict.fromkeys(plain, 0.0), dict.fromkeys(plain, 0.0)

    for number, means in enumerate(rounds, start=1):
        # Execute
        state = apply_updates(state, means, settings)

        # Assert
        for place in plain:
            cluster, position = place
            mean = float(means[cluster][position]) if cluster in means else 0.0
            if optimizer == "sgd":
                step = mean
            elif optimizer == "momentum":
                first[place] = 0.8 * first[place] + mean
                step = first[place]
            else:
                first[place] = 0.8 * first[place] + 0.2 * mean
                second[place] = 0.95 * second[place] + 0.05 * mean**2
                step = (first[place] / (1 - 0.8**number)) / (
                    math.sqrt(second[place] / (1 - 0.95**number)) + 1e-2
                )
            plain[place] += 0.3 * step
            vector = state.body if cluster == BODY else state.models[cluster]
            assert vector[position] == pytest.approx(plain[place], abs=1e-6)
            if optimizer != "sgd":
                moment = state.optimizer["first"][cluster][position]
                assert moment == pytest.approx(first[place], abs=1e-12)
    assert state.optimizer_steps == 3
    assert list(state.models) == [0, 2]


@pytest.mark.parametrize(
    ("optimizer", "first"), [("sgd", 1 + 3 * 0.5), ("momentum", 1 + 3 * 0.5), ("adam", 1 + 3 * 1.0)]
)
def test_statistics_move_by_the_mean_update_whatever_the_optimizer_by_hand(optimizer, first):
    # Prepare: of a model's two numbers the first is a parameter, the second a variance of 2; the
    # body has statistics only
    settings = ServerSettings(optimizer, learning_rate=3.0, epsilon=1e-12)
    state = replace(server(body=floats(5.0, 6.0)), parameters=1, body_parameters=0)

    # Execute
    after = apply_updates(state, {0: np.array([0.5, -1.5]), BODY: np.array([-4.0, 1.0])}, settings)

    # Assert: 2 - 1.5, where a rate of 3 would give 2 - 4.5; Adam's first step is the sign
    np.testing.assert_allclose(after.models[0], [first, 0.5], atol=1e-6)
    np.testing.assert_allclose(after.body, [1.0, 7.0], atol=1e-6)
    for vectors in after.optimizer.values():
        assert len(vectors[0]) == 1
        assert len(vectors[BODY]) == 0


def test_a_step_leaves_the_state_before_it_alone():
    # Prepare
    settings = ServerSettings("momentum")
    before = apply_updates(server(), {0: np.ones(2)}, settings)
    remembered = before.optimizer["first"][0].copy()

    # Execute
    apply_updates(before, {0: np.ones(2)}, settings)

    # Assert
    np.testing.assert_array_equal(before.optimizer["first"][0], remembered)
    assert before.optimizer_steps == 1


def test_momentum_goes_on_for_a_cluster_that_nobody_trained():
    # Prepare
    settings = ServerSettings("momentum", momentum=0.5)
    state = apply_updates(server(), {0: np.array([2.0, 0.0])}, settings)

    # Execute
    after = apply_updates(state, {}, settings)

    # Assert: 1 + 2, then half of 2 more
    assert after.models[0][0] == pytest.approx(4.0)


def test_without_a_body_there_is_none_afterwards():
    after = apply_updates(server(), {0: np.ones(2)}, ServerSettings())

    assert after.body is None
    assert replace(after, models={}).models == {}
