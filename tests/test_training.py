import copy
from dataclasses import replace

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from settings_of import configured
from torch import nn
from torch.nn import functional

from fedrc_flwr.algorithms.step import ClientRuntime
from fedrc_flwr.bank import ModelBank
from fedrc_flwr.config import build_algorithm
from fedrc_flwr.data.scenario import Scenario
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.layout import to_vector
from fedrc_flwr.models import SplitModel, build_model
from fedrc_flwr.sgd import LocalSettings, active_clusters, decorrelation
from fedrc_flwr.state import ClientRecord, ClientState
from fedrc_flwr.training import accuracy, log_probabilities, losses_of, mix, score, train

torch.set_num_threads(1)
CPU = torch.device("cpu")
CLASSES, SAMPLES = 3, 23


def network(seed, batch_norm=False):
    """Four inputs, a hidden layer of five, three classes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Flatten(), nn.Linear(4, 5), *([nn.BatchNorm1d(5)] if batch_norm else [])]
        return SplitModel(nn.Sequential(*layers, nn.Tanh()), nn.Linear(5, CLASSES))


@pytest.fixture
def client():
    """Inputs (N, 2, 2), labels (N,) and responsibilities (N, 3) that sum to one."""
    rng = np.random.default_rng(5)
    inputs = torch.from_numpy(rng.normal(size=(SAMPLES, 2, 2)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, CLASSES, SAMPLES))
    return inputs, labels, rng.dirichlet([0.7, 0.7, 0.7], size=SAMPLES)


def bank_of(models, **options):
    """A bank that has loaded the models, built from others."""
    bank = ModelBank([copy.deepcopy(models[0]) for _ in models], CPU, **options)
    shared = options.get("shared_body", False)
    bank.load(
        [to_vector(m.head if shared else m) for m in models],
        to_vector(models[0].body) if shared else None,
    )
    return bank


def sgd(epochs, batch_size, learning_rate, momentum=0.0, skip_below=0.0, **terms):
    """Settings of plain SGD on all samples, but for what is asked for."""
    return LocalSettings(
        epochs, batch_size, learning_rate, momentum, skip_below=skip_below, **terms
    )


def column(responsibilities, k):
    return torch.from_numpy(responsibilities[:, k]).float()


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "batch_size", "epochs"),
    [
        (0, 16, 5),
        (1, 16, 5),  # never less than 16 a step, never more than 5 epochs
        (64, 16, 3),  # 200 / 64 = 3.1
        (100, 16, 2),  # 100 / 6 = 17 is nearest to 16
        (180, 32, 1),  # 30
        (360, 64, 1),  # 60
        (1000, 128, 1),  # 167
        (100_000, 128, 1),  # never more than 128 a step, never less than an epoch
    ],
)
def test_batch_size_and_epochs_by_the_clients_size(samples, batch_size, epochs):
    chosen = LocalSettings().for_samples(samples)

    assert (chosen.batch_size, chosen.epochs) == (batch_size, epochs)


@pytest.mark.parametrize(
    ("given_epochs", "given_batch", "samples", "epochs", "batch_size"),
    [
        (3, 0, 1000, 3, 128),
        (0, 50, 100, 2, 50),  # 200 / 100
        (0, 50, 2000, 1, 50),
        (0, 1, 100, 2, 1),  # a batch size that is given may be below 16
        (0, 1000, 100, 2, 1000),  # and above 128
        (9, 7, 1000, 9, 7),
    ],
)
def test_what_is_given_of_batch_size_and_epochs_stays(
    given_epochs, given_batch, samples, epochs, batch_size
):
    chosen = LocalSettings(given_epochs, given_batch).for_samples(samples)

    assert (chosen.epochs, chosen.batch_size) == (epochs, batch_size)


def test_all_other_settings_stay_whatever_the_size():
    settings_of_run = LocalSettings(
        0, 0, 0.3, 0.5, weight_decay=0.1, prox_mu=0.2, decorr_beta=0.4, skip_below=0.01,
        skip_cluster_below=0.2,
    )  # fmt: skip

    chosen = settings_of_run.for_samples(320)

    assert chosen == replace(settings_of_run, epochs=1, batch_size=64)


def test_an_algorithm_trains_each_client_by_its_size():
    algorithm = build_algorithm(configured(epochs=0, batch_size=0))

    small, large = (algorithm.local_settings(samples) for samples in (100, 2560))

    assert (small.batch_size, small.epochs) == (16, 2)
    assert (large.batch_size, large.epochs) == (128, 1)


@pytest.mark.parametrize(
    ("settings_of_run", "expected"),
    [
        # 0.1 / 4 of an even share is 0.025: cluster 1, with 0.02, is below it, cluster 3 is empty
        (LocalSettings(), [0, 2]),
        (LocalSettings(skip_cluster_below=0.08), [0, 1, 2]),  # 0.02 is not below 0.02
        (LocalSettings(skip_cluster_below=0.0), [0, 1, 2]),
        # Cluster 1 has no responsibility above 0.04
        (LocalSettings(skip_cluster_below=0.0, skip_below=0.04), [0, 1, 2]),
        (LocalSettings(skip_cluster_below=0.0, skip_below=0.05), [0, 2]),
        # An empty cluster is left out even without thresholds
        (LocalSettings(skip_cluster_below=0.0, skip_below=0.0), [0, 1, 2]),
        (LocalSettings(skip_cluster_below=0.5), [0, 2]),  # 0.125
    ],
)
def test_active_clusters_of_two_samples_by_hand(settings_of_run, expected):
    # The clusters' means are 0.5, 0.02, 0.48 and 0
    weights = np.array([[0.96, 0.04, 0.0, 0.0], [0.04, 0.0, 0.96, 0.0]])

    assert active_clusters(weights, settings_of_run) == expected


def test_one_sample_among_many_does_not_make_its_cluster_active():
    # 1 of 100 samples is 0.01, where 0.1 / 2 is asked for
    weights = np.repeat([[1.0, 0.0]], 100, axis=0)
    weights[7] = 0.0, 1.0

    assert active_clusters(weights, LocalSettings()) == [0]
    assert active_clusters(weights, LocalSettings(skip_cluster_below=0.02)) == [0, 1]


@pytest.mark.parametrize(("clusters", "refused"), [(9, False), (10, True), (11, True)])
def test_a_threshold_that_an_undecided_client_falls_below_is_refused(clusters, refused):
    # 0.1 is less than 1 / 9 and no less than 1 / 10
    keys = {"skip_below": 0.1, "clusters": clusters}

    if refused:
        with pytest.raises(ConfigError, match=r"local\.skip-below = 0\.1: expected less than"):
            configured(**keys)
    else:
        assert configured(**keys).local.skip_below == 0.1


# --- local training of several models ------------------------------------------------------------

VARIANTS = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "weight-decay": {"weight_decay": 0.3},
    "fedprox": {"prox_mu": 0.7},
    "feddecorr": {"decorr_beta": 0.5},
    "all": {"momentum": 0.9, "weight_decay": 0.1, "prox_mu": 0.5, "decorr_beta": 0.2},
}


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_training_all_models_is_the_same_as_torchs_sgd_on_each_of_them(client, variant, epochs):
    # Prepare: 23 samples in batches of 6, so that the last one has 5
    inputs, labels, responsibilities = client
    models = [network(k) for k in range(3)]
    settings_of_run = sgd(epochs, 6, learning_rate=0.2, **VARIANTS[variant])
    rng = np.random.default_rng(11)

    # Execute
    deltas = train(
        bank_of(models), inputs, labels, responsibilities, [0, 1, 2], settings_of_run, rng
    )

    # Assert
    steps = reference.batches(SAMPLES, 6, epochs, np.random.default_rng(11))
    assert deltas.body is None
    for k, model in enumerate(models):
        trained = reference.local_sgd(
            model, inputs, labels, column(responsibilities, k), steps, 0.2, **VARIANTS[variant]
        )
        expected = reference.flatten(trained) - reference.flatten(model)
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(deltas.clusters[k], expected, atol=1e-5)


def test_a_cluster_without_a_sample_in_a_batch_rolls_on_by_its_momentum(client):
    # Prepare: the first batch is all cluster 0's, the second one cluster 1's
    inputs, labels, _ = (part[:8] for part in client)
    local = sgd(1, 4, learning_rate=0.2, momentum=0.5, skip_below=0.1)
    order = np.random.default_rng(3).permutation(8)
    responsibilities = np.zeros((8, 2))
    responsibilities[order[:4], 0] = responsibilities[order[4:], 1] = 1.0
    model = network(0)

    # Execute
    deltas = train(
        bank_of([model, network(1)]), inputs, labels, responsibilities, [0, 1], local,
        np.random.default_rng(3),
    )  # fmt: skip

    # Assert: a step of 0.2 g, and half of it once more
    rows = torch.from_numpy(order[:4])
    loss = functional.cross_entropy(model(inputs[rows]), labels[rows])
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, model.parameters())])
    np.testing.assert_allclose(deltas.clusters[0], -0.2 * 1.5 * gradient.numpy(), atol=1e-6)


def test_a_last_batch_of_one_sample_is_trained_without_a_correlation_of_features(client):
    # Prepare: 7 samples in batches of 6
    inputs, labels, responsibilities = (part[:7] for part in client)
    model = network(0)
    with_term = sgd(1, 6, 0.2, decorr_beta=0.5)

    # Execute
    deltas = train(
        bank_of([model]), inputs, labels, responsibilities, [0], with_term, np.random.default_rng(1)
    )

    # Assert
    steps = reference.batches(7, 6, 1, np.random.default_rng(1))
    weights = column(responsibilities, 0)
    trained = reference.local_sgd(model, inputs, labels, weights, steps, 0.2, decorr_beta=0.5)
    expected = reference.flatten(trained) - reference.flatten(model)
    np.testing.assert_allclose(deltas.clusters[0], expected, atol=1e-5)


def test_a_client_with_one_sample_takes_one_step(client):
    # Prepare
    inputs, labels, responsibilities = (part[:1] for part in client)
    model = network(0)

    # Execute
    deltas = train(
        bank_of([model]),
        inputs,
        labels,
        responsibilities,
        [0],
        sgd(1, 128, 0.2),
        np.random.default_rng(1),
    )

    # Assert: minus the learning rate times the responsibility times the gradient
    loss = functional.cross_entropy(model(inputs), labels)
    gradient = torch.cat(
        [g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))]
    )
    expected = -0.2 * responsibilities[0, 0] * gradient.numpy()
    np.testing.assert_allclose(deltas.clusters[0], expected, atol=1e-6)


def test_inactive_clusters_are_neither_trained_nor_reported(client):
    # Prepare
    inputs, labels, responsibilities = client
    bank = bank_of([network(k) for k in range(3)])
    before = bank.units[1].vector.clone()

    # Execute
    deltas = train(
        bank,
        inputs,
        labels,
        responsibilities,
        [0, 2],
        sgd(1, 8, 0.2),
        np.random.default_rng(1),
    )

    # Assert
    assert list(deltas.clusters) == [0, 2]
    torch.testing.assert_close(bank.units[1].vector, before, rtol=0, atol=0)


def test_training_nobody_changes_nothing_and_draws_nothing(client):
    # Prepare
    inputs, labels, responsibilities = client
    rng = np.random.default_rng(1)

    # Execute
    deltas = train(bank_of([network(0)]), inputs, labels, responsibilities, [], sgd(1, 8, 0.2), rng)

    # Assert
    assert deltas.clusters == {}
    assert deltas.body is None
    assert rng.random() == np.random.default_rng(1).random()


def test_momentum_does_not_outlive_a_round(client):
    # Prepare: the same bank trained before, and a fresh one
    inputs, labels, responsibilities = client
    models, local = [network(0)], sgd(1, 8, 0.2, momentum=0.9)
    used, fresh = bank_of(models), bank_of(models)
    train(used, inputs, labels, responsibilities, [0], local, np.random.default_rng(1))
    used.load([to_vector(models[0])], None)

    # Execute
    again, first = (
        train(bank, inputs, labels, responsibilities, [0], local, np.random.default_rng(2))
        for bank in (used, fresh)
    )

    # Assert
    np.testing.assert_array_equal(again.clusters[0], first.clusters[0])


def test_a_client_without_part_in_a_cluster_does_not_pull_at_it(client):
    # Prepare: no responsibility, but every penalty there is
    inputs, labels, _ = client
    penalties = sgd(1, 8, 0.2, 0.9, weight_decay=0.3, prox_mu=0.5, decorr_beta=0.5)

    # Execute
    deltas = train(
        bank_of([network(0)]),
        inputs,
        labels,
        np.zeros((SAMPLES, 1)),
        [0],
        penalties,
        np.random.default_rng(1),
    )

    # Assert
    assert not deltas.clusters[0].any()


# --- one body, several heads ---------------------------------------------------------------------


def test_a_shared_bodys_gradient_is_the_sum_over_the_clusters(client):
    # Prepare: one step on all samples, so that the deltas are the gradients
    inputs, labels, responsibilities = client
    models = [network(k) for k in range(3)]
    bank = bank_of(models, shared_body=True)

    # Execute
    deltas = train(
        bank,
        inputs,
        labels,
        responsibilities,
        [0, 1, 2],
        sgd(1, SAMPLES, 0.2),
        np.random.default_rng(1),
    )

    # Assert: one cluster at a time, each head on the first model's body
    body = models[0].body
    total = torch.zeros(4 * 5 + 5)
    for k, model in enumerate(models):
        losses = functional.cross_entropy(model.head(body(inputs)), labels, reduction="none")
        objective = (column(responsibilities, k) * losses).mean()
        gradients = torch.autograd.grad(objective, [*body.parameters(), *model.head.parameters()])
        total += torch.cat([g.reshape(-1) for g in gradients[:2]])
        head = torch.cat([g.reshape(-1) for g in gradients[2:]])
        np.testing.assert_allclose(deltas.clusters[k], -0.2 * head.numpy(), atol=1e-6)
    np.testing.assert_allclose(deltas.body, -0.2 * total.numpy(), atol=1e-6)


def test_a_shared_body_without_parameters_needs_no_step(client):
    inputs, labels, gammas = client
    model = SplitModel(nn.Flatten(), nn.Linear(4, CLASSES))
    bank = bank_of([copy.deepcopy(model) for _ in range(3)], shared_body=True)

    deltas = train(
        bank, inputs, labels, gammas, [0, 1, 2], sgd(1, 8, 0.1, 0.9), np.random.default_rng(1)
    )

    assert deltas.body is not None
    assert len(deltas.body) == 0
    assert all(np.any(delta) for delta in deltas.clusters.values())


def test_training_with_a_shared_body_is_the_same_as_torchs_sgd_on_the_summed_objective(client):
    # Prepare
    inputs, labels, responsibilities = client
    models = [network(k) for k in range(2)]
    shares = responsibilities[:, :2]
    bank = bank_of(models, shared_body=True)
    local = sgd(2, 6, 0.2, 0.9, weight_decay=0.1, prox_mu=0.3, decorr_beta=0.2)

    # Execute
    deltas = train(bank, inputs, labels, shares, [0, 1], local, np.random.default_rng(4))

    # Assert: the body decays and is pulled back in full, the heads by the client's part in them
    body, heads = copy.deepcopy(models[0].body), [copy.deepcopy(m.head) for m in models]
    parts = [body, *heads]
    starts = [[p.detach().clone() for p in part.parameters()] for part in parts]
    client_parts = [1.0, shares[:, 0].mean(), shares[:, 1].mean()]
    optimizer = torch.optim.SGD(
        [
            {"params": list(part.parameters()), "weight_decay": 0.1 * share}
            for part, share in zip(parts, client_parts, strict=True)
        ],
        lr=0.2,
        momentum=0.9,
    )
    for rows in reference.batches(SAMPLES, 6, 2, np.random.default_rng(4)):
        objective = torch.zeros(())
        for k, head in enumerate(heads):
            features, weights = body(inputs[rows]), column(shares, k)[rows]
            losses = functional.cross_entropy(head(features), labels[rows], reduction="none")
            objective = objective + (weights * losses).mean()
            objective = objective + 0.2 * weights.mean() * reference.correlation_penalty(features)
        for part, start, share in zip(parts, starts, client_parts, strict=True):
            for parameter, old in zip(part.parameters(), start, strict=True):
                objective = objective + 0.5 * 0.3 * share * ((parameter - old) ** 2).sum()
        optimizer.zero_grad()
        objective.backward()
        optimizer.step()
    before = reference.flatten(models[0].body)
    np.testing.assert_allclose(deltas.body, reference.flatten(body) - before, atol=1e-5)
    for k, head in enumerate(heads):
        expected = reference.flatten(head) - reference.flatten(models[k].head)
        np.testing.assert_allclose(deltas.clusters[k], expected, atol=1e-5)


# --- BatchNorm -----------------------------------------------------------------------------------


def test_running_statistics_of_batch_norm_travel_in_the_update(client):
    # Prepare
    inputs, labels, responsibilities = client
    model = network(0, batch_norm=True)
    bank = bank_of([model])

    # Execute
    deltas = train(
        bank,
        inputs,
        labels,
        responsibilities,
        [0],
        sgd(1, 5, 0.2, 0.9),
        np.random.default_rng(3),
    )

    # Assert: 20 + 5, 5 + 5, 15 + 3 parameters, then 5 means and 5 variances
    steps = reference.batches(SAMPLES, 5, 1, np.random.default_rng(3))
    weights = column(responsibilities, 0)
    trained = reference.local_sgd(model, inputs, labels, weights, steps, 0.2, 0.9)
    norm, old = trained.body[2], model.body[2]
    expected = np.concatenate(
        [
            reference.flatten(trained) - reference.flatten(model),
            (norm.running_mean - old.running_mean).numpy(),
            (norm.running_var - old.running_var).numpy(),
        ]
    )
    assert len(deltas.clusters[0]) == 53 + 10
    np.testing.assert_allclose(deltas.clusters[0], expected, atol=1e-5)


def test_batch_norms_counter_stays_an_integer_that_no_broadcast_touches(client):
    # Prepare
    inputs, labels, responsibilities = client
    model = network(0, batch_norm=True)
    bank = bank_of([model])
    counter = bank.units[0].module.body[2].num_batches_tracked

    # Execute: 23 samples in batches of 8 are 3
    train(
        bank,
        inputs,
        labels,
        responsibilities,
        [0],
        sgd(1, 8, 0.2),
        np.random.default_rng(3),
    )
    bank.load([to_vector(model)], None)

    # Assert
    assert counter.dtype == torch.int64
    assert int(bank.units[0].module.body[2].num_batches_tracked) == 3


def test_scoring_uses_the_running_statistics_and_leaves_them(client):
    # Prepare
    inputs, _, _ = client
    model = network(0, batch_norm=True)
    model.body[2].running_mean.fill_(0.3)
    bank = bank_of([model])
    bank.train_mode(True)
    before = bank.units[0].vector.clone()

    # Execute
    scores = log_probabilities(bank, inputs, 1)

    # Assert
    expected = functional.log_softmax(model.eval()(inputs), dim=1)
    torch.testing.assert_close(scores[:, 0], expected.detach())
    torch.testing.assert_close(bank.units[0].vector, before, rtol=0, atol=0)


# --- skipping ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["skip_below", "skip_cluster_below"])
def test_skipping_a_cluster_changes_the_aggregate_by_less_than_the_threshold(key):
    # Prepare: a client of the digits whose weight for cluster 1 is 2e-4
    def aggregate(threshold):
        thresholds = {"skip_below": 0.0, "skip_cluster_below": 0.0, key: threshold}
        config = configured(
            clients=4, samples_per_client=60, clusters=2, hidden=16, epochs=3, batch_size=16,
            **{"local.learning-rate": 0.1}, **thresholds,
        )  # fmt: skip
        data, algorithm = Scenario(config.data, config.seed).client(0), build_algorithm(config)
        models = [build_model(config.model, (8, 8), 10, seed) for seed in (1, 2)]
        state = algorithm.initial_state(models)
        state.clients["one"] = ClientRecord("train", len(data.fit))
        bank = ModelBank([build_model(config.model, (8, 8), 10, 0) for _ in range(2)], CPU)
        runtime = ClientRuntime(
            "one", "train", bank, data.fit, data.test, 10, 0.0, np.random.default_rng(2)
        )
        remembered = ClientState(0, (0, 1), np.array([1 - 2e-4, 2e-4]))

        # Execute
        reply, after = algorithm.train(algorithm.broadcast(state, 1, 10), remembered, runtime)
        result = algorithm.begin_round(state)
        algorithm.receive(state, result, "one", reply)
        return reply, after, algorithm.end_round(state, result, 1)[0].models

    reply, kept, models = aggregate(0.0)
    skipping_reply, skipping, skipping_models = aggregate(1e-3)

    # Assert: cluster 1 was left out, and it would have moved by something below the threshold
    assert list(reply.deltas) == [0, 1]
    assert list(skipping_reply.deltas) == [0]
    np.testing.assert_array_equal(models[0], skipping_models[0])
    assert 0 < np.abs(models[1] - skipping_models[1]).max() < 1e-3
    # and the statistics are those of all clusters
    np.testing.assert_array_equal(reply.label_counts, skipping_reply.label_counts)
    np.testing.assert_array_equal(kept.mixture_weights, skipping.mixture_weights)


# --- the E-step's pass, used again ---------------------------------------------------------------


@pytest.mark.parametrize("shared_body", [False, True])
@pytest.mark.parametrize("skip_below", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("batch_size", [6, 23, 100])
def test_training_on_from_the_e_steps_pass_is_training_anew(
    client, shared_body, skip_below, batch_size
):
    # Prepare: with 0.3 less than two thirds of the first batch are left, with 0.05 more
    inputs, labels, responsibilities = client
    models = [network(k) for k in range(3)]
    local = sgd(2, batch_size, 0.2, momentum=0.9, prox_mu=0.3, skip_below=skip_below)
    bank = bank_of(models, shared_body=shared_body)
    rng = np.random.default_rng(11)

    # Execute
    scores, first_pass = score(bank, inputs, 3, local, rng)
    kept = train(bank, inputs, labels, responsibilities, [0, 2], local, rng, first_pass)

    # Assert
    anew = bank_of(models, shared_body=shared_body)
    torch.testing.assert_close(scores, log_probabilities(anew, inputs, 3))
    expected = train(
        anew, inputs, labels, responsibilities, [0, 2], local, np.random.default_rng(11)
    )
    assert first_pass is not None
    for k in (0, 2):
        assert np.abs(expected.clusters[k]).max() > 1e-3
        np.testing.assert_allclose(kept.clusters[k], expected.clusters[k], atol=1e-6)


@pytest.mark.parametrize(("epochs", "batch_norm"), [(1, False), (2, False), (2, True)])
def test_the_kept_logits_are_those_of_each_batch_before_its_step(client, epochs, batch_norm):
    inputs, labels, _ = client
    model = network(1, batch_norm)
    local, plain = sgd(epochs, 8, 0.2), copy.deepcopy(model)

    bank = bank_of([model])
    ones, rng = np.ones((SAMPLES, 1)), np.random.default_rng(3)
    deltas = train(bank, inputs, labels, ones, [0], local, rng, keep_logits=True)

    order = np.random.default_rng(3).permutation(SAMPLES)
    expected = torch.zeros(SAMPLES, CLASSES)
    optimizer = torch.optim.SGD(plain.parameters(), 0.2)
    plain.train()
    for batch in (order[:8], order[8:16], order[16:]):
        logits = plain(inputs[batch])
        expected[batch] = logits.detach()
        optimizer.zero_grad()
        functional.cross_entropy(logits, labels[batch]).backward()
        optimizer.step()
    torch.testing.assert_close(deltas.logits, expected, atol=1e-6, rtol=1e-5)


def test_a_network_that_behaves_otherwise_in_training_is_passed_through_again(client):
    # Prepare
    inputs, _, _ = client
    model = SplitModel(nn.Sequential(nn.Flatten(), nn.Dropout(0.5)), nn.Linear(4, CLASSES))
    rng = np.random.default_rng(1)

    # Execute
    scores, first_pass = score(bank_of([model]), inputs, 1, sgd(1, 8, 0.2), rng)

    # Assert: scored without dropout, and the batches are still to be drawn
    assert first_pass is None
    expected = functional.log_softmax(model.eval()(inputs), dim=1)
    torch.testing.assert_close(scores[:, 0], expected.detach())
    assert rng.random() == np.random.default_rng(1).random()


# --- scoring and predicting ----------------------------------------------------------------------


@pytest.mark.parametrize("shared_body", [False, True])
def test_losses_agree_with_one_sample_and_one_model_at_a_time(client, shared_body):
    # Prepare
    inputs, labels, _ = client
    models = [network(k) for k in range(3)]
    bank = bank_of(models, shared_body=shared_body)

    # Execute
    losses = losses_of(log_probabilities(bank, inputs, 3), labels)

    # Assert
    if shared_body:
        models = [SplitModel(models[0].body, m.head) for m in models]
    expected = reference.sample_losses(models, inputs, labels)
    np.testing.assert_allclose(losses, expected, atol=1e-5)
    assert losses.dtype == np.float64


def test_scoring_more_samples_than_a_batch_holds_gives_each_its_own_row():
    # Prepare: 1,500 samples, scored 256 at a time
    model = network(0)
    inputs = torch.from_numpy(np.random.default_rng(0).normal(size=(1500, 2, 2))).float()

    # Execute
    scores = log_probabilities(bank_of([model]), inputs, 1)

    # Assert
    expected = functional.log_softmax(model(inputs), dim=1)
    torch.testing.assert_close(scores[:, 0], expected.detach())


def test_only_the_living_clusters_are_scored(client):
    inputs, _, _ = client

    scores = log_probabilities(bank_of([network(k) for k in range(3)]), inputs, 2)

    assert scores.shape == (SAMPLES, 2, CLASSES)


def test_prediction_of_two_clusters_and_three_labels_by_hand():
    # Prepare: one sample; w = (1/4, 3/4)
    log_probs = torch.tensor([[[0.8, 0.1, 0.1], [0.2, 0.4, 0.4]]], dtype=torch.float64).log()
    weights = np.array([1 / 4, 3 / 4])

    # Execute
    soft, hard = mix(log_probs, weights), mix(log_probs, weights, hard=True)

    # Assert: 0.8 / 4 + 0.2 * 3 / 4 = 0.35; 0.1 / 4 + 0.4 * 3 / 4 = 0.325
    np.testing.assert_allclose(soft, [[0.35, 0.325, 0.325]], atol=1e-9)
    np.testing.assert_allclose(hard, [[0.2, 0.4, 0.4]], atol=1e-9)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1))
def test_prediction_agrees_with_a_loop_and_is_a_distribution(seed):
    # Prepare
    rng = np.random.default_rng(seed)
    samples, clusters, classes = rng.integers(1, 5, size=3)
    probabilities = rng.dirichlet(np.ones(classes), size=(samples, clusters))
    weights = rng.dirichlet(np.ones(clusters))

    # Execute
    mixed = mix(torch.from_numpy(np.log(probabilities)), weights).numpy()

    # Assert
    for j in range(samples):
        for c in range(classes):
            expected = sum(weights[k] * probabilities[j, k, c] for k in range(clusters))
            assert mixed[j, c] == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose(mixed.sum(axis=1), 1.0, atol=1e-9)


def test_accuracy_is_the_share_of_right_predictions():
    probabilities = torch.tensor([[0.6, 0.4], [0.6, 0.4], [0.1, 0.9], [0.9, 0.1]])

    assert accuracy(probabilities, torch.tensor([0, 1, 1, 0])) == 0.75


def test_decorrelation_of_two_features_by_hand():
    # Prepare: deviations (-1, 0, 1) and (-1, 2, -1): variances 1 and 3, covariance 0; and a copy
    apart = torch.tensor([[-1.0, -1.0], [0.0, 2.0], [1.0, -1.0]], dtype=torch.float64)
    same = apart[:, [0, 0]]

    # Execute and assert: z'z is [[2, 0], [0, 2]], then all 2; the mean of the squares off the
    # diagonal is 0, then 4, over three samples
    assert float(decorrelation(apart)) == pytest.approx(0.0, abs=1e-6)
    assert float(decorrelation(same)) == pytest.approx(4 / 3, abs=1e-6)


@pytest.mark.parametrize(("samples", "features"), [(128, 64), (16, 5)])
def test_decorrelation_is_stronger_than_the_printed_formula_by_the_batch(samples, features):
    # Prepare: the printed formula, squared Frobenius norm of the correlations over d^2
    values = np.random.default_rng(0).normal(size=(samples, features)) @ np.random.default_rng(
        1
    ).normal(size=(features, features))
    ours, printed = (torch.from_numpy(values).requires_grad_() for _ in range(2))

    # Execute
    decorrelation(ours).backward()
    (torch.corrcoef(printed.T).square().sum() / features**2).backward()

    # Assert: (n - 1)^2 / n times d / (d - 1), 128 for batches of 128 and 64 features
    factor = (samples - 1) ** 2 / samples * features / (features - 1)
    torch.testing.assert_close(ours.grad, factor * printed.grad, rtol=1e-5, atol=1e-9)


def test_a_single_feature_has_nothing_to_be_correlated_with():
    assert float(decorrelation(torch.arange(4.0)[:, None])) == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_decorrelation_agrees_with_a_loop_over_pairs_of_features(seed):
    features = torch.from_numpy(np.random.default_rng(seed).normal(size=(9, 4)))

    penalty = decorrelation(features)

    assert float(penalty) == pytest.approx(float(reference.correlation_penalty(features)), abs=1e-9)


def test_decorrelation_of_constant_features_is_finite():
    # A dead unit has no spread to divide by.
    assert float(decorrelation(torch.ones(4, 3))) == 0.0


def test_mixed_precision_computes_in_bfloat16_and_keeps_parameters_in_float32():
    # Prepare: the same networks with and without it
    def bank(mixed):
        torch.manual_seed(0)
        model = SplitModel(nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 3))
        return ModelBank([model], torch.device("cpu"), mixed_precision=mixed)

    exact, mixed = bank(False), bank(True)
    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(16) % 3
    settings = sgd(epochs=1, batch_size=8, learning_rate=0.1)

    # Execute
    one = log_probabilities(exact, inputs, 1)
    other = log_probabilities(mixed, inputs, 1)
    deltas = train(mixed, inputs, labels, np.ones((16, 1)), [0], settings, np.random.default_rng(0))

    # Assert: near, but not the same; what travels is float32
    assert not torch.equal(one, other)
    torch.testing.assert_close(one, other, atol=0.05, rtol=0.05)
    assert mixed.units[0].vector.dtype == torch.float32
    assert deltas.clusters[0].dtype == np.float32
    assert np.abs(deltas.clusters[0]).max() > 0
