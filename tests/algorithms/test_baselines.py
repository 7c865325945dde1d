"""The other algorithms against plain implementations: one client and one tensor at a time."""

import copy
import itertools
import zlib
from dataclasses import replace

import numpy as np
import pytest
import reference
import torch
from federation import Federation
from settings_of import configured
from steps import step_of
from torch import nn
from torch.nn import functional

from fedrc_flwr.algorithms.cfl import SCALE, bipartition, due
from fedrc_flwr.algorithms.fedsoft import importance
from fedrc_flwr.algorithms.fesem import LOCAL, nearest
from fedrc_flwr.algorithms.messages import Reply
from fedrc_flwr.checkpoint import (
    Checkpoint,
    load_checkpoint,
    pack_client,
    save_checkpoint,
    unpack_client,
)
from fedrc_flwr.config import build_algorithm, load_config
from fedrc_flwr.data.scenario import Scenario, Split
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.layout import to_vector
from fedrc_flwr.state import ClientRecord, ClientState, Membership, ServerState

torch.set_num_threads(1)

TINY = {
    "scenario": "digits",
    "clients": 4,
    "samples_per_client": 30,
    "hidden": 6,
    "epochs": 2,
    "batch_size": 8,
    "local.learning-rate": 0.1,
    "local.momentum": 0.9,
    "seed": 3,
}


def tiny(**keys):
    return configured(**{**TINY, **keys})


def federation(**keys):
    config = tiny(**keys)
    scenario = Scenario(config.data, config.seed)
    clients = [scenario.client(i) for i in range(len(scenario))]
    for index, size in enumerate((27, 9, 16, 1)):
        fit = clients[index].fit
        fit = Split(fit.inputs[:size], fit.labels[:size])
        clients[index] = replace(clients[index], fit=fit)
    return Federation(config, clients)


def training_clients(federated):
    return [c for c in federated.clients if c.role == "train"]


def tensors(client):
    return torch.from_numpy(client.fit.inputs), torch.from_numpy(client.fit.labels)


def steps_of(config, client, number, drawn=0):
    """The batches of a client's round; ``drawn`` numbers were taken from its generator before."""
    rng = np.random.default_rng([config.seed, number, zlib.crc32(client.name.encode())])
    for _ in range(drawn):
        rng.integers(config.algorithm_settings.clusters)
    return reference.batches(len(client.fit), config.local.batch_size, config.local.epochs, rng)


def sgd(config, model, client, number, drawn=0):
    inputs, labels = tensors(client)
    return reference.local_sgd(
        model,
        inputs,
        labels,
        torch.ones(len(labels)),
        steps_of(config, client, number, drawn),
        config.local.learning_rate,
        config.local.momentum,
    )


def weighted_mean(models, weights):
    mean = copy.deepcopy(models[0])
    with torch.no_grad():
        for position, parameter in enumerate(mean.parameters()):
            parameter.zero_()
            for model, weight in zip(models, weights, strict=True):
                parameter += weight / sum(weights) * list(model.parameters())[position]
    return mean


def distance(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return sum(float(((a - b) ** 2).sum().detach()) for a, b in pairs) ** 0.5


def assert_models(federated, models):
    for cluster, model in enumerate(models):
        expected = reference.flatten(model)
        np.testing.assert_allclose(federated.state.models[cluster], expected, atol=1e-5)


def mean_loss(model, client):
    inputs, labels = tensors(client)
    with torch.no_grad():
        return float(functional.cross_entropy(model(inputs), labels))


# --- FedProx and FedDecorr -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "term"), [("fedprox", {"prox_mu": 0.1}), ("feddecorr", {"decorr_beta": 0.1})]
)
def test_terms_by_name_are_fedavg_with_the_term(name, term):
    federated = federation(algorithm=name)
    [model] = federated.initial_models()

    for number in (1, 2):
        federated.round()
        trained = []
        for client in training_clients(federated):
            inputs, labels = tensors(client)
            trained.append(
                reference.local_sgd(
                    model,
                    inputs,
                    labels,
                    torch.ones(len(labels)),
                    steps_of(federated.config, client, number),
                    0.1,
                    0.9,
                    **term,
                )
            )
        model = weighted_mean(trained, [27, 9, 16, 1])

        assert_models(federated, [model])


@pytest.mark.parametrize(
    ("name", "strength", "term"),
    [("fedprox", "mu", "prox_mu"), ("feddecorr", "beta", "decorr_beta")],
)
def test_the_strength_of_a_term_is_a_key_of_its_algorithm(name, strength, term):
    algorithm = build_algorithm(tiny(algorithm=name, **{strength: 0.7}))

    assert getattr(algorithm.local_settings(30), term) == 0.7
    assert getattr(algorithm.local, term) == 0.0


# --- FeSEM ---------------------------------------------------------------------------------------


def test_fesem_agrees_with_a_plain_implementation():
    federated = federation(algorithm="fesem")
    config, models = federated.config, federated.initial_models()
    local = {}

    for number in (1, 2, 3):
        federated.round()
        groups = [[] for _ in models]
        for client in training_clients(federated):
            if number == 1:
                seed = [config.seed, number, zlib.crc32(client.name.encode())]
                chosen = int(np.random.default_rng(seed).integers(3))
            else:
                distances = [distance(local[client.name], model) for model in models]
                chosen = distances.index(min(distances))
            trained = sgd(config, models[chosen], client, number, drawn=int(number == 1))
            local[client.name] = trained
            groups[chosen].append((trained, len(client.fit)))
            weights = federated.client_states[client.name].mixture_weights
            assert weights.tolist() == [float(k == chosen) for k in range(3)]
        models = [
            weighted_mean([m for m, _ in group], [n for _, n in group]) if group else model
            for model, group in zip(models, groups, strict=True)
        ]

        assert_models(federated, models)


def test_the_nearest_model_by_hand():
    # Distances from (1, 1): sqrt(2), 1 and 1: the first of equals
    models = [np.float32([0, 0]), np.float32([1, 2]), np.float32([2, 1])]

    assert nearest(np.float32([1, 1]), models) == 1


def test_fesem_and_cfl_go_by_parameters_and_not_by_running_statistics():
    # Prepare: of three numbers the last is a variance, which points the other way
    fesem, cfl = (
        build_algorithm(tiny(algorithm=n, **{"cfl.warmup": 0, "cfl.eps1": 10.0}))
        for n in ("fesem", "cfl")
    )
    models = {0: np.float32([0, 0, 100]), 1: np.float32([5, 5, 9])}
    server = ServerState(0, Membership((0, 1)), models, None, {}, parameters=2)
    remembered = ClientState(
        1, (0, 1), np.array([0.0, 1.0]), vectors={LOCAL: np.float32([1, 1, 9])}
    )

    # Execute: distances of 1.4 and 5.7, with the variance 91 and 5.7
    broadcast = fesem.broadcast(server, 2, 10)
    step = step_of(np.zeros((4, 2)), np.zeros(4, dtype=int), broadcast, remembered)
    _, state = fesem.expectation(step)
    updates = {"a": [1, 0, 50], "b": [0, 2, 50], "c": [0.9, 0, -50]}
    records = {name: ClientRecord("train", 1, cluster=0) for name in updates}
    server = replace(server, membership=Membership((0,)), models={0: models[0]}, clients=records)
    result = cfl.begin_round(server)
    for name, update in updates.items():
        reply = Reply(1, {0: np.float32(update)}, np.ones((1, 10)), None, 0.0, 0, {"loss": 1.0})
        cfl.receive(server, result, name, reply)
    after, _ = cfl.end_round(server, result, 1)

    # Assert: b leaves a and c; the scale is the mean of 1, 2 and 0.9
    assert state.mixture_weights.tolist() == [1.0, 0.0]
    assert after.numbers[SCALE] == pytest.approx(1.3)
    assert {name: record.cluster for name, record in after.clients.items()} == {
        "a": 0, "b": 1, "c": 0
    }  # fmt: skip


def test_an_observer_of_fesem_takes_the_cluster_with_the_smallest_loss():
    federated = federation(algorithm="fesem")
    federated.round()
    models = federated.initial_models()
    for model, vector in zip(models, federated.state.models.values(), strict=True):
        nn.utils.vector_to_parameters(torch.from_numpy(vector), model.parameters())

    outcome = federated.evaluate()

    for client in federated.clients:
        if client.role == "observe":
            losses = [mean_loss(model, client) for model in models]
            assert outcome[client.name]["cluster"] == losses.index(min(losses))


# --- FedSoft -------------------------------------------------------------------------------------


def fedsoft_local(config, models, weights, client, number):
    """torch's SGD on loss(w) + lambda/2 sum_k u_k |w - theta_k|^2, from sum_k u_k theta_k."""
    trained = weighted_mean(models, weights)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
    inputs, labels = tensors(client)
    for rows in steps_of(config, client, number):
        objective = functional.cross_entropy(trained(inputs[rows]), labels[rows])
        for model, weight in zip(models, weights, strict=True):
            pull = sum(
                ((w - theta.detach()) ** 2).sum()
                for w, theta in zip(trained.parameters(), model.parameters(), strict=True)
            )
            objective = objective + config.algorithm_settings.lambda_ / 2 * weight * pull
        optimizer.zero_grad()
        objective.backward()
        optimizer.step()
    return trained


@pytest.mark.parametrize(("every", "looks"), [(1, (1, 2, 3)), (2, (1, 3)), (3, (1,))])
def test_fedsoft_agrees_with_a_plain_implementation(every, looks):
    federated = federation(algorithm="fedsoft", floor=0.01, every=every, **{"fedsoft.lambda": 0.5})
    config, models = federated.config, federated.initial_models()
    weights = {}

    for number in (1, 2, 3):
        federated.round()
        sent = []
        for client in training_clients(federated):
            if number in looks:
                inputs, labels = tensors(client)
                losses = reference.sample_losses(models, inputs, labels)
                wins = [0.0] * 3
                for row in losses:
                    wins[row.index(min(row))] += 1 / len(losses)
                lifted = [max(share, 0.01) for share in wins]
                weights[client.name] = [share / sum(lifted) for share in lifted]
            own = fedsoft_local(config, models, weights[client.name], client, number)
            sent.append((own, weights[client.name], len(client.fit)))
            state = federated.client_states[client.name]
            np.testing.assert_allclose(state.mixture_weights, weights[client.name], atol=1e-9)
            np.testing.assert_allclose(state.vectors["personal"], reference.flatten(own), atol=1e-5)
        models = [
            weighted_mean([own for own, _, _ in sent], [u[k] * n for _, u, n in sent])
            for k in range(3)
        ]

        assert_models(federated, models)


def test_importances_by_hand():
    # Cluster 0 is best on two samples of four, cluster 2 on the others, cluster 1 on none:
    # 0.5, 0.1 (the floor) and 0.5, over 1.1
    losses = np.array([[1.0, 2.0, 3.0], [0.1, 5.0, 0.2], [3.0, 2.0, 1.0], [9.0, 8.0, 7.0]])

    np.testing.assert_allclose(importance(losses, 0.1), np.array([5, 1, 5]) / 11)


def test_a_client_of_fedsoft_sends_one_network_and_predicts_with_it():
    federated = federation(algorithm="fedsoft")
    federated.round()

    outcome = federated.evaluate()

    for client in training_clients(federated):
        assert len(federated.replies[client.name].deltas) == 1
        vector = federated.client_states[client.name].vectors["personal"]
        assert outcome[client.name]["accuracy"] == accuracy_of(federated, vector, client)


def test_a_client_of_fedsoft_is_judged_on_its_training_samples_with_its_own_network():
    # Prepare
    federated = federation(algorithm="fedsoft")
    federated.round()
    own = {name: state.vectors["personal"] for name, state in federated.client_states.items()}

    # Execute: evaluated after the first round, then a second round from there
    metrics = federated.evaluate()
    federated.round()

    # Assert
    for client in training_clients(federated):
        expected = accuracy_of(federated, own[client.name], client, client.fit)
        assert metrics[client.name]["fit_accuracy"] == pytest.approx(expected)
        assert federated.replies[client.name].metrics["accuracy"] == pytest.approx(expected)


def accuracy_of(federated, vector, client, split=None):
    split = client.test if split is None else split
    model = federated.initial_models()[0]
    nn.utils.vector_to_parameters(torch.from_numpy(vector), model.parameters())
    with torch.no_grad():
        predicted = model(torch.from_numpy(split.inputs)).argmax(dim=1)
    return float((predicted == torch.from_numpy(split.labels)).double().mean())


# --- local training ------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
def test_local_training_goes_on_where_it_was_and_sends_only_what_was_asked_for(shared):
    federated = federation(algorithm="local-only", share_models=shared)
    config, [start] = federated.config, federated.initial_models()
    own = {client.name: start for client in training_clients(federated)}

    for number in (1, 2):
        federated.round()
        for client in training_clients(federated):
            own[client.name] = sgd(config, own[client.name], client, number)
            vector = federated.client_states[client.name].vectors["personal"]
            np.testing.assert_allclose(vector, reference.flatten(own[client.name]), atol=1e-5)
            assert bool(federated.replies[client.name].deltas) == shared

    average = weighted_mean(list(own.values()), [27, 9, 16, 1])
    assert_models(federated, [average if shared else start])
    outcome = federated.evaluate()
    for client in training_clients(federated):
        vector = federated.client_states[client.name].vectors["personal"]
        assert outcome[client.name]["accuracy"] == accuracy_of(federated, vector, client)


@pytest.mark.parametrize(
    "keys",
    [
        {"server.learning-rate": 0.3},
        {"optimizer": "momentum"},
        {"optimizer": "adam", "server.learning-rate": 2.0},
    ],
)
def test_the_servers_model_is_the_average_of_local_ones_whatever_its_optimizer(keys):
    federated = federation(algorithm="local-only", share_models=True, **keys)

    for _ in range(3):
        federated.round()

    vectors = [
        federated.client_states[c.name].vectors["personal"] for c in training_clients(federated)
    ]
    expected = np.average(vectors, axis=0, weights=[27, 9, 16, 1])
    np.testing.assert_allclose(federated.state.models[0], expected, atol=1e-5)


# --- pFedMe --------------------------------------------------------------------------------------


def test_pfedme_agrees_with_a_plain_implementation():
    keys = {"pfedme.lambda": 3.0, "steps": 4, "rate": 0.05, "server.learning-rate": 0.8}
    federated = federation(algorithm="pfedme", **keys)
    config, [model] = federated.config, federated.initial_models()

    for number in (1, 2):
        federated.round()
        copies = []
        for client in training_clients(federated):
            inputs, labels = tensors(client)
            w, theta = copy.deepcopy(model), copy.deepcopy(model)
            for rows in steps_of(config, client, number):
                inner = torch.optim.SGD(theta.parameters(), lr=0.05)
                for _ in range(4):
                    objective = functional.cross_entropy(theta(inputs[rows]), labels[rows])
                    for t, anchor in zip(theta.parameters(), w.parameters(), strict=True):
                        objective = objective + 1.5 * ((t - anchor.detach()) ** 2).sum()
                    inner.zero_grad()
                    objective.backward()
                    inner.step()
                with torch.no_grad():
                    for t, outer in zip(theta.parameters(), w.parameters(), strict=True):
                        outer -= config.local.learning_rate * 3.0 * (outer - t)
            copies.append(w)
            vector = federated.client_states[client.name].vectors["personal"]
            np.testing.assert_allclose(vector, reference.flatten(theta), atol=1e-5)
        mean = weighted_mean(copies, [27, 9, 16, 1])
        model = weighted_mean([model, mean], [0.2, 0.8])

        assert_models(federated, [model])


def test_pfedme_inner_solve_by_hand():
    # One sample, one step: theta = w - rate * g, then w -= eta * lambda * (w - theta)
    federated = federation(algorithm="pfedme", steps=1, epochs=1)
    config, [model] = federated.config, federated.initial_models()
    client = training_clients(federated)[3]
    inputs, labels = tensors(client)
    gradient = torch.autograd.grad(
        functional.cross_entropy(model(inputs), labels), list(model.parameters())
    )
    slope = torch.cat([g.reshape(-1) for g in gradient]).numpy()

    federated.round([client.name])

    start = reference.flatten(model)
    theta = start - config.algorithm_settings.rate * slope
    np.testing.assert_allclose(
        federated.client_states[client.name].vectors["personal"], theta, atol=1e-6
    )
    outer = config.local.learning_rate * config.algorithm_settings.lambda_
    np.testing.assert_allclose(
        federated.state.models[0], start - outer * (start - theta), atol=1e-6
    )


# --- APFL ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("adaptive", [True, False])
def test_apfl_agrees_with_a_plain_implementation(adaptive):
    federated = federation(
        algorithm="apfl", alpha=0.3, adaptive=adaptive, **{"local.momentum": 0.5}
    )
    config, [model] = federated.config, federated.initial_models()
    own = {c.name: copy.deepcopy(model) for c in training_clients(federated)}
    alphas = {c.name: 0.3 for c in training_clients(federated)}

    for number in (1, 2):
        federated.round()
        copies = []
        for client in training_clients(federated):
            inputs, labels = tensors(client)
            w, v = copy.deepcopy(model), own[client.name]
            w_steps = torch.optim.SGD(w.parameters(), lr=0.1, momentum=0.5)
            v_steps = torch.optim.SGD(v.parameters(), lr=0.1, momentum=0.5)
            for index, rows in enumerate(steps_of(config, client, number)):
                alpha = alphas[client.name]
                mixed = {
                    name: alpha * p + (1 - alpha) * dict(w.named_parameters())[name].detach()
                    for name, p in v.named_parameters()
                }
                mixed_loss = functional.cross_entropy(
                    torch.func.functional_call(v, mixed, (inputs[rows],)), labels[rows]
                )
                at_mixture = torch.autograd.grad(
                    mixed_loss, list(mixed.values()), retain_graph=True
                )
                if index == 0 and adaptive:
                    slope = sum(
                        float(((a - b) * g).detach().sum())
                        for a, b, g in zip(v.parameters(), w.parameters(), at_mixture, strict=True)
                    )
                    alphas[client.name] = min(max(alpha - 0.1 * slope, 0.0), 1.0)
                v_steps.zero_grad()
                mixed_loss.backward()
                w_steps.zero_grad()
                functional.cross_entropy(w(inputs[rows]), labels[rows]).backward()
                w_steps.step()
                v_steps.step()
            copies.append(w)
            state = federated.client_states[client.name]
            np.testing.assert_allclose(state.vectors["personal"], reference.flatten(v), atol=1e-5)
            assert state.numbers["alpha"] == pytest.approx(alphas[client.name], abs=1e-5)
        model = weighted_mean(copies, [27, 9, 16, 1])

        assert_models(federated, [model])
    assert (set(alphas.values()) == {0.3}) != adaptive


def test_a_client_of_apfl_predicts_with_the_mixture():
    federated = federation(algorithm="apfl", alpha=0.25, adaptive=False)
    federated.round()

    outcome = federated.evaluate()

    for client in training_clients(federated):
        own = federated.client_states[client.name].vectors["personal"]
        vector = np.float32(0.25 * own + 0.75 * federated.state.models[0])
        assert outcome[client.name]["accuracy"] == accuracy_of(federated, vector, client)


# --- CFL -----------------------------------------------------------------------------------------


def test_the_split_criterion_by_hand():
    # Equal samples: the mean of (1, 0) and (-1, 0.2) is (0, 0.1), the largest norm 1.02
    updates, samples = [np.float32([1, 0]), np.float32([-1, 0.2])], np.array([1.0, 1.0])

    assert due(updates, samples, eps1=0.11, eps2=1.01)
    assert not due(updates, samples, eps1=0.09, eps2=1.01)
    assert not due(updates, samples, eps1=0.11, eps2=1.03)
    # Thrice the samples of the first: the mean is (0.5, 0.05)
    assert not due(updates, np.array([3.0, 1.0]), eps1=0.5, eps2=1.01)
    assert due(updates, np.array([3.0, 1.0]), eps1=0.51, eps2=1.01)


def test_bipartition_by_hand():
    # Two to the right, two upwards, whatever their lengths
    updates = [np.float32(u) for u in ([0, 1], [5, 0.1], [0.1, 3], [0.2, 0])]

    np.testing.assert_array_equal(bipartition(updates), [False, True, False, True])


def test_bipartition_cuts_at_the_widest_gap():
    # On the circle at 0, 40, 85 and 135 degrees: the gaps are 40, 45 and 50 degrees, so the largest
    # similarity across the two groups is smallest, cos 50, where 135 goes alone.
    angles = np.radians([0, 40, 85, 135])
    updates = [np.float32([np.cos(a), np.sin(a)]) for a in angles]

    np.testing.assert_array_equal(bipartition(updates), [False, False, False, True])


def cosine(one, other):
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def largest_across(updates, leaves):
    """The largest similarity of two clients in different groups."""
    pairs = itertools.combinations(range(len(updates)), 2)
    return max(cosine(updates[i], updates[j]) for i, j in pairs if leaves[i] != leaves[j])


def test_bipartition_is_the_best_of_all_in_200_random_cases():
    for case in range(200):
        rng = np.random.default_rng(case)
        number, size = int(rng.integers(2, 9)), int(rng.integers(2, 6))
        updates = [rng.normal(size=size).astype(np.float32) for _ in range(number)]

        leaves = bipartition(updates)

        every = itertools.product([False, True], repeat=number - 1)
        best = min(largest_across(updates, (False, *rest)) for rest in every if any(rest))
        assert not leaves[0]
        assert largest_across(updates, leaves) == pytest.approx(best, abs=1e-6), case


@pytest.mark.parametrize(
    "updates", [[[1, 0]] * 2, [[1, 0]] * 5, [[0, 0]] * 3, [[1, 0], [0, 1], [-1, 0], [0, -1]]]
)
def test_bipartition_makes_two_groups_even_of_equal_similarities(updates):
    leaves = bipartition([np.float32(u) for u in updates])

    assert not leaves[0]
    assert leaves.any()


def test_cfl_agrees_with_a_plain_implementation_over_a_split():
    # Thresholds that hold from the second round on: the one cluster is split then
    federated = federation(algorithm="cfl", clusters=2, warmup=1, eps1=100.0, eps2=1e-6)
    config, models = federated.config, federated.initial_models()[:1]
    members = {0: [c.name for c in training_clients(federated)]}
    clients = {c.name: c for c in training_clients(federated)}

    for number in (1, 2, 3):
        federated.round()
        trained = {}
        for cluster, names in members.items():
            for name in names:
                trained[name] = sgd(config, models[cluster], clients[name], number)
        if number == 2:
            start = reference.flatten(models[0])
            steps = {n: reference.flatten(m) - start for n, m in trained.items()}
            members = halves(steps)
            models = [models[0], models[0]]
        models = [
            weighted_mean([trained[n] for n in names], [len(clients[n].fit) for n in names])
            for _, names in sorted(members.items())
        ]

        assert_models(federated, models)
        assert federated.state.clusters == tuple(range(len(models)))
        for cluster, names in members.items():
            for name in names:
                record = federated.state.clients[name]
                assert record.cluster == cluster
                assert record.mixture_weights().argmax() == cluster
    assert len(models) == 2
    assert federated.state.numbers[SCALE] > 0


def halves(steps):
    """The best of all ways to split; the group with the first name is cluster 0."""
    names = sorted(steps)
    ways = [way for way in itertools.product([0, 1], repeat=len(names)) if way[0] == 0 and any(way)]
    best = min(ways, key=lambda way: largest_across([steps[n] for n in names], way))
    return {k: [n for n, side in zip(names, best, strict=True) if side == k] for k in (0, 1)}


def test_cfl_stops_at_the_limit_and_waits_for_the_warm_up():
    waiting = federation(algorithm="cfl", clusters=3, warmup=2, eps1=100.0, eps2=1e-6)

    counts = []
    for _ in range(5):
        waiting.round()
        counts.append(len(waiting.state.clusters))

    assert counts == [1, 1, 2, 3, 3]


def test_a_client_absent_at_a_split_takes_the_cluster_with_the_smallest_loss():
    federated = federation(algorithm="cfl", clusters=2, warmup=1, eps1=100.0, eps2=1e-6)
    names = [c.name for c in training_clients(federated)]
    federated.round()
    federated.round(names[:3])
    assert federated.state.clients[names[3]].cluster == -1
    assert len(federated.state.clusters) == 2
    models = [copy.deepcopy(federated.initial_models()[0]) for _ in range(2)]
    for model, vector in zip(models, federated.state.models.values(), strict=True):
        nn.utils.vector_to_parameters(torch.from_numpy(vector), model.parameters())
    losses = [mean_loss(model, training_clients(federated)[3]) for model in models]

    federated.round(names[3:])

    assert federated.state.clients[names[3]].cluster == losses.index(min(losses))


def test_a_moved_client_is_judged_in_its_new_cluster_at_once():
    federated = federation(algorithm="cfl", clusters=2, warmup=1, eps1=100.0, eps2=1e-6)
    federated.round()
    federated.round()

    outcome = federated.evaluate()

    for client in training_clients(federated):
        cluster = federated.state.clients[client.name].cluster
        assert outcome[client.name]["cluster"] == cluster
        vector = federated.state.models[cluster]
        assert outcome[client.name]["accuracy"] == accuracy_of(federated, vector, client)


def test_server_momentum_goes_with_a_split_cluster():
    federated = federation(
        algorithm="cfl",
        clusters=2,
        warmup=1,
        eps1=100.0,
        eps2=1e-6,
        optimizer="momentum",
    )
    federated.round()
    before = federated.state.optimizer["first"][0]

    federated.round()

    slots, records = federated.state.optimizer["first"], federated.state.clients
    for cluster in (0, 1):
        names = [n for n, r in records.items() if r.cluster == cluster]
        deltas = [federated.replies[n].deltas[0] for n in names]
        mean = np.average(deltas, axis=0, weights=[records[n].samples for n in names])
        np.testing.assert_allclose(slots[cluster], 0.9 * before + mean, atol=1e-6)


# --- what all have in common ---------------------------------------------------------------------

EVERY = ["fesem", "cfl", "fedsoft", "fedprox", "feddecorr", "local-only", "pfedme", "apfl"]


@pytest.mark.parametrize("algorithm", EVERY)
def test_states_survive_the_disk(algorithm, tmp_path):
    # Prepare: two rounds, one of them after everything was written and read
    keys = {"cfl.warmup": 0, "cfl.eps1": 100.0, "cfl.eps2": 1e-6}
    unbroken, resumed = (federation(algorithm=algorithm, **keys) for _ in range(2))
    unbroken.round()
    resumed.round()

    # Execute
    path = save_checkpoint(
        tmp_path, Checkpoint(resumed.state, resumed.config.to_dict(), (64,), 10, ""), keep=1
    )
    resumed.state = load_checkpoint(path).state
    resumed.client_states = {
        name: unpack_client(*pack_client(state)) for name, state in resumed.client_states.items()
    }
    unbroken.round()
    resumed.round()

    # Assert
    assert resumed.state.clusters == unbroken.state.clusters
    for cluster, vector in unbroken.state.models.items():
        np.testing.assert_array_equal(resumed.state.models[cluster], vector)
    assert resumed.evaluate() == unbroken.evaluate()


@pytest.mark.parametrize("algorithm", EVERY)
def test_a_client_that_comes_late_is_taken_in(algorithm):
    federated = federation(algorithm=algorithm)
    names = [c.name for c in training_clients(federated)]
    federated.round(names[:2])
    federated.round(names[1:])

    outcome = federated.evaluate()

    assert set(federated.state.reported()) == set(names)
    assert all(np.isfinite(m["accuracy"]) for m in outcome.values() if m["samples"])
    for vector in federated.state.models.values():
        assert np.isfinite(vector).all()


@pytest.mark.parametrize("algorithm", ["fedsoft", "local-only", "pfedme", "apfl", "cfl"])
def test_there_is_no_shared_body_where_whole_networks_are_trained(algorithm):
    with pytest.raises(ConfigError, match=f"unknown key '{algorithm}.shared-body'"):
        load_config({"algorithm": algorithm, f"{algorithm}.shared-body": True})

    assert not build_algorithm(tiny(algorithm=algorithm)).shared_body


@pytest.mark.parametrize("algorithm", ["fedsoft", "pfedme", "fedprox"])
def test_a_second_proximal_term_is_refused(algorithm):
    with pytest.raises(ConfigError, match=r"local\.prox-mu = 0\.1: .* a proximal term of its own"):
        tiny(algorithm=algorithm, prox_mu=0.1)


def test_a_second_decorrelation_term_is_refused():
    words = r"local\.decorr-beta = 0\.1: .* a decorrelation term of its own"
    with pytest.raises(ConfigError, match=words):
        tiny(algorithm="feddecorr", decorr_beta=0.1)


def test_personal_networks_never_leave_the_client():
    for algorithm in ("local-only", "pfedme", "apfl"):
        federated = federation(algorithm=algorithm)
        federated.round()
        for name, reply in federated.replies.items():
            own = federated.client_states[name].vectors["personal"]
            sent = [federated.initial_models()[0], *reply.deltas.values()]
            start = to_vector(sent[0])
            assert not any(np.array_equal(start + delta, own) for delta in sent[1:])


def test_a_state_without_the_newer_fields_is_read():
    arrays, about = pack_client(ClientState.start((0, 1)))
    del about["numbers"]

    assert unpack_client(arrays, about).numbers == {}
