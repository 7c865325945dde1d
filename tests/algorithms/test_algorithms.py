import math
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

from fedrc_flwr.algorithms import ALGORITHMS, fedrc
from fedrc_flwr.config import build_algorithm
from fedrc_flwr.data.scenario import GroundTruth, Scenario, Split
from fedrc_flwr.em import PRIOR_FLOOR, AdamMoments
from fedrc_flwr.state import ClientState, Membership

torch.set_num_threads(1)

TINY = {
    "scenario": "digits",
    "clients": 4,
    "samples_per_client": 30,
    "observers_per_concept": 0,
    "hidden": 6,
    "epochs": 2,
    "batch_size": 8,
    "local.learning-rate": 0.1,
    "local.momentum": 0.9,
    "seed": 3,
    "skip_cluster_below": 0.0,  # the plain implementation leaves nothing out
}
NAMES = ["client-0", "client-1", "client-2", "client-3"]


def tiny(**keys):
    return configured(**{**TINY, **keys})


def uneven_clients(config):
    """The scenario's clients with 27, 9, 16 and 1 samples; client-2 has one class alone."""
    scenario = Scenario(config.data, config.seed)
    clients = [scenario.client(i) for i in range(4)]
    common = np.bincount(clients[2].fit.labels).argmax()
    same = np.flatnonzero(clients[2].fit.labels == common)
    keep = [np.arange(27), np.arange(9), np.resize(same, 16), np.arange(1)]
    return [
        replace(c, fit=Split(c.fit.inputs[rows], c.fit.labels[rows]))
        for c, rows in zip(clients, keep, strict=True)
    ]


def federation(clients=uneven_clients, **keys):
    config = tiny(**keys)
    return Federation(config, clients(config) if clients else [])


class PlainFederation:
    """Algorithm 1 and its relatives, one client, one sample and one model at a time."""

    def __init__(self, config, clients):
        self.config, self.clients = config, clients
        fresh = Federation(config, clients)
        self.models: list[nn.Module] = fresh.initial_models()
        uniform = [1.0 / len(self.models)] * len(self.models)
        self.weights = {c.name: uniform for c in clients}
        self.counts: dict[str, reference.Rows] = {}
        self.adam: dict[str, reference.Adam] = {}
        self.number = 0
        self.least = 1.0  # the smallest responsibility so far

    def prior(self):
        if (
            self.config.algorithm != "fedrc"
            or 0 < self.config.algorithm_settings.prior_rounds < self.number
        ):
            return None
        if not self.counts:
            return [[0.1] * 10 for _ in self.models]
        return reference.label_prior(list(self.counts.values()), PRIOR_FLOOR)

    def gammas(self, client, losses, prior):
        config, samples = self.config, len(client.fit)
        if config.algorithm == "fedavg":
            return [[1.0]] * samples
        if config.algorithm == "ifca":
            means = reference.column_means(losses)
            return [[float(k == means.index(min(means))) for k in range(len(means))]] * samples
        exponent, labels, own = 1.0, client.fit.labels, config.algorithm_settings
        if self.number <= own.annealing_rounds:
            progress = (self.number - 1) / own.annealing_rounds
            exponent = own.annealing_start ** (1.0 - progress)
        if self.number <= own.annealing_rounds and own.annealing_by == "client":
            exponent *= own.annealing_end**progress
            gammas = reference.pooled_responsibilities(losses, prior, labels, exponent)
        else:
            weights = self.weights[client.name]
            gammas = reference.responsibilities(losses, weights, prior, labels, exponent)
        if own.e_step == "adam":
            start = reference.Adam.start(samples, len(self.models))
            stepped = self.adam.get(client.name, start).step(gammas)
            if self.number <= own.annealing_rounds:
                stepped = replace(stepped, gamma=gammas)
            self.adam[client.name] = stepped
            return stepped.gamma
        return gammas

    def round(self, names):
        self.number += 1
        config, local, prior = self.config, self.config.local, self.prior()
        updates = [[] for _ in self.models]
        for client in self.clients:
            if client.name not in names:
                continue
            inputs, labels = map(torch.from_numpy, (client.fit.inputs, client.fit.labels))
            losses = reference.sample_losses(self.models, inputs, labels)
            gammas = self.gammas(client, losses, prior)
            self.least = min(self.least, *map(min, gammas))
            weights = reference.column_means(gammas)
            self.weights[client.name] = weights
            self.counts[client.name] = reference.label_counts(gammas, labels.tolist(), 10)
            chosen = weights.index(max(weights))
            if config.algorithm_settings.mode() == "hard-train":
                gammas = [[float(k == chosen) for k in range(len(weights))]] * len(gammas)
            for k, model in enumerate(self.models):
                if config.algorithm == "ifca" and k != chosen:
                    continue
                rng = np.random.default_rng(
                    [config.seed, self.number, zlib.crc32(client.name.encode())]
                )
                trained = reference.local_sgd(
                    model,
                    inputs,
                    labels,
                    torch.tensor([row[k] for row in gammas]),
                    reference.batches(len(labels), local.batch_size, local.epochs, rng),
                    local.learning_rate,
                    local.momentum,
                    local.weight_decay,
                    local.prox_mu,
                )
                updates[k].append((len(labels), trained))
        for model, trained_by in zip(self.models, updates, strict=True):
            total = sum(samples for samples, _ in trained_by)
            with torch.no_grad():
                for position, parameter in enumerate(model.parameters()):
                    step = torch.zeros_like(parameter)
                    for samples, trained in trained_by:
                        other = list(trained.parameters())[position]
                        step += samples / total * (other - parameter)
                    parameter += config.server.learning_rate * step


def assert_same(federated, plain, tolerance=1e-5):
    for k, model in enumerate(plain.models):
        np.testing.assert_allclose(
            federated.state.models[k], reference.flatten(model), atol=tolerance
        )
    for name, counts in plain.counts.items():
        state = federated.client_states[name]
        np.testing.assert_allclose(state.mixture_weights, plain.weights[name], atol=tolerance)
        record = federated.state.clients[name]
        np.testing.assert_allclose(record.label_counts, counts, atol=30 * tolerance)


# --- whole rounds against the plain implementation -----------------------------------------------

VARIANTS = {
    "fedrc": {"algorithm": "fedrc"},
    "fedem": {"algorithm": "fedem"},
    "ifca": {"algorithm": "ifca"},
    "ifca-nothing-skipped": {"algorithm": "ifca", "skip_below": 0.0},
    "fedavg": {"algorithm": "fedavg"},
    "adam": {"e_step": "adam"},
    "annealing": {"annealing_rounds": 3, "annealing_start": 0.1},
    "annealing-then-adam": {"annealing_rounds": 1, "e_step": "adam"},
    "annealing-by-client": {
        "annealing_rounds": 3,
        "annealing_start": 0.5,
        "annealing_by": "client",
        "annealing_end": 9.0,
    },
    "annealing-by-client-for-a-round": {"annealing_rounds": 1, "annealing_by": "client"},
    "fedem-annealing-by-client": {
        "algorithm": "fedem",
        "annealing_rounds": 3,
        "annealing_by": "client",
    },
    "prior-for-a-round": {"prior_rounds": 1},
    "hard-train": {"clustering": "hard-train"},
    "hard-test": {"clustering": "hard-test"},
    "penalties": {"weight_decay": 0.05, "prox_mu": 0.2, "server.learning-rate": 0.7},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_rounds_agree_with_a_plain_implementation(variant):
    # Prepare
    federated = federation(**VARIANTS[variant])
    plain = PlainFederation(federated.config, federated.clients)
    start = [vector.copy() for vector in federated.state.models.values()]

    for _ in range(2):
        # Execute
        federated.round()
        plain.round(NAMES)

        # Assert
        assert_same(federated, plain)
    moved = [np.abs(federated.state.models[k] - old).max() for k, old in enumerate(start)]
    assert max(moved) > 1e-2


@pytest.mark.parametrize("algorithm", ["fedrc", "ifca"])
def test_partial_participation_agrees_with_a_plain_implementation(algorithm):
    # Prepare: nobody takes part in every round, and client-2 comes for the first time in the third
    federated = federation(algorithm=algorithm)
    plain = PlainFederation(federated.config, federated.clients)

    for names in (NAMES[:2], [NAMES[0], NAMES[3]], NAMES[1:3]):
        # Execute
        federated.round(names)
        plain.round(names)

        # Assert
        assert_same(federated, plain)


def sampled(config, number, names):
    """Half of the clients, drawn as the server draws them."""
    rng = np.random.default_rng([config.seed, number, 0, 0x5A])
    return sorted(rng.choice(names, len(names) // 2, replace=False).tolist())


HALF = {
    "clients": 6, "fraction": 0.5, "clusters": 2, "hidden": 12, "local.learning-rate": 0.2,
    "epochs": 5,
}  # fmt: skip


def test_six_rounds_of_half_the_clients_agree_with_a_plain_implementation():
    # Prepare
    federated = Federation(tiny(**HALF, skip_below=0.0))
    plain = PlainFederation(federated.config, federated.clients)
    names = sorted(client.name for client in federated.clients)
    late = set()

    for number in range(1, 7):
        # Execute
        chosen = sampled(federated.config, number, names)
        late |= {name for name in chosen if number > 1 and name not in plain.counts}
        federated.round(chosen)
        plain.round(chosen)

        # Assert
        assert_same(federated, plain)
    assert late
    # At the default threshold samples would have been left out
    assert plain.least < 1e-3


def longest_gradient(models, clients):
    """The largest norm of the gradient of any sample's loss."""
    longest = 0.0
    for model in models:
        for client in clients:
            for x, y in zip(*map(torch.from_numpy, vars(client.fit).values()), strict=True):
                loss = functional.cross_entropy(model(x[None]), y[None])
                slopes = torch.autograd.grad(loss, list(model.parameters()))
                longest = max(longest, math.sqrt(sum(float((s**2).sum()) for s in slopes)))
    return longest


def test_the_thresholds_change_nothing_before_a_responsibility_falls_below_them():
    # Prepare
    federated = Federation(tiny(**HALF, skip_cluster_below=0.1))
    plain = PlainFederation(federated.config, federated.clients)
    names = sorted(client.name for client in federated.clients)
    local = federated.config.local
    assert local.skip_below == 1e-3
    number = 0

    # Execute
    while plain.least >= local.skip_below and number < 6:
        if number:
            assert_same(federated, plain)
        number += 1
        steepest = longest_gradient(plain.models, plain.clients)
        chosen = sampled(federated.config, number, names)
        federated.round(chosen)
        plain.round(chosen)

    # Assert: in this round they do, by less than what is left out could move a model
    assert number > 1
    assert plain.least < local.skip_below
    moved = max(
        np.linalg.norm(federated.state.models[k] - reference.flatten(model))
        for k, model in enumerate(plain.models)
    )
    steps = local.epochs * math.ceil(max(len(c.fit) for c in plain.clients) / 8)
    per_gradient = local.learning_rate * steps / (1 - local.momentum) * local.skip_below
    assert 1e-5 < moved < per_gradient * steepest


def test_every_algorithm_is_registered_under_its_name():
    assert list(ALGORITHMS) == [
        "fedrc", "fedem", "ifca", "fesem", "cfl", "fedsoft", "fedavg",
        "apfl", "feddecorr", "fedprox", "local-only", "pfedme",
    ]  # fmt: skip
    assert all(build_algorithm(tiny(algorithm=name)).name == name for name in ALGORITHMS)


# --- what the server sends -----------------------------------------------------------------------


def test_the_first_round_has_no_bias():
    federated = federation()

    broadcast = federated.algorithm.broadcast(federated.state, 1, 10)

    np.testing.assert_allclose(broadcast.label_prior, np.full((3, 10), 0.1))


def test_label_counts_of_absent_clients_are_remembered():
    # Prepare
    federated = federation()
    federated.round(NAMES[:2])
    first = {n: federated.replies[n].label_counts for n in NAMES[:2]}
    federated.round(NAMES[1:3])
    second = {n: federated.replies[n].label_counts for n in NAMES[1:3]}

    # Execute
    prior = federated.algorithm.broadcast(federated.state, 3, 10).label_prior

    # Assert: client-0 from round 1, client-1 and client-2 from round 2, client-3 never came
    latest = [first["client-0"], second["client-1"], second["client-2"]]
    expected = reference.label_prior(latest, PRIOR_FLOOR)
    np.testing.assert_allclose(prior, expected, atol=1e-9)
    assert federated.state.clients["client-3"].label_counts is None


def test_annealed_rounds_broadcast_a_growing_exponent_and_begin_near_uniform():
    # Prepare: 2 rounds from 1e-4
    federated = federation(annealing_rounds=2, annealing_start=1e-4)

    # Execute
    phases = [federated.algorithm.broadcast(federated.state, r, 10).phase for r in (1, 2, 3)]
    federated.round()

    # Assert
    np.testing.assert_allclose([p.exponent for p in phases], [1e-4, 1e-2, 1.0], rtol=1e-9)
    assert [p.annealed for p in phases] == [True, True, False]
    assert not any(p.pooled for p in phases)
    for name in NAMES:
        weights = federated.client_states[name].mixture_weights
        np.testing.assert_allclose(weights, 1 / 3, atol=1e-3)


def test_rounds_annealed_by_client_are_pooled_and_the_exponent_grows_to_its_end():
    # Prepare: over 2 rounds from 1/4 towards 4, so half way in equal ratios is 1
    keys = {"annealing_rounds": 2, "annealing_start": 0.25, "annealing_end": 4.0}
    federated = federation(annealing_by="client", **keys)

    # Execute
    phases = [federated.algorithm.broadcast(federated.state, r, 10).phase for r in (1, 2, 3)]

    # Assert: the second round's exponent is that of a plain E-step, but it is still pooled
    np.testing.assert_allclose([p.exponent for p in phases], [0.25, 1.0, 1.0], rtol=1e-9)
    assert [p.pooled for p in phases] == [True, True, False]
    assert [p.annealed for p in phases] == [True, True, False]


@pytest.mark.parametrize(
    ("algorithm", "prior_rounds", "expected"),
    [
        ("fedrc", 0, [True, True, True]),
        ("fedrc", 2, [True, True, False]),
        ("fedem", 0, [False, False, False]),
        ("fedem", 2, [False, False, False]),
    ],
)
def test_a_round_says_whether_the_e_step_divides_by_the_label_prior(
    algorithm, prior_rounds, expected
):
    federated = federation(algorithm=algorithm, prior_rounds=prior_rounds)

    phases = [federated.algorithm.broadcast(federated.state, r, 10).phase for r in (1, 2, 3)]

    assert [phase.prior for phase in phases] == expected


def test_the_label_prior_counts_for_its_rounds_and_the_likelihood_alone_after_them():
    # Prepare, by hand: one sample of likelihood 1/2 and 1/4, whose label is 1/5 and 1/20 of the
    # clusters. With the prior 5/2 : 5, without it 1/2 : 1/4.
    federated = federation(clusters=2, prior_rounds=2)
    losses, labels = np.log([[2.0, 4.0]]), np.array([1])
    prior = np.full((2, 10), 0.1)
    prior[:, 1] = 0.2, 0.05
    weights = []

    # Execute
    for number in (2, 3):
        broadcast = federated.algorithm.broadcast(federated.state, number, 10)
        broadcast = replace(broadcast, label_prior=prior)
        step = step_of(losses, labels, broadcast, ClientState.start((0, 1)))
        gammas, _ = federated.algorithm.expectation(step)
        weights.append((gammas[0], federated.algorithm.assign(losses, labels, broadcast).argmax()))

    # Assert: those who train, and those who only find their weights
    np.testing.assert_allclose(weights[0][0], [1 / 3, 2 / 3])
    np.testing.assert_allclose(weights[1][0], [2 / 3, 1 / 3])
    assert [chosen for _, chosen in weights] == [1, 0]


# --- clients that come and go --------------------------------------------------------------------


def e_step_of(federated, client, weights, broadcast):
    """The plain E-step of a client on the broadcast's models."""
    models = federated.initial_models()[: len(broadcast.models)]
    for model, vector in zip(models, broadcast.models, strict=True):
        nn.utils.vector_to_parameters(torch.from_numpy(vector), model.parameters())
    inputs, labels = map(torch.from_numpy, (client.fit.inputs, client.fit.labels))
    losses = reference.sample_losses(models, inputs, labels)
    return reference.responsibilities(losses, weights, broadcast.label_prior, client.fit.labels)


def test_a_cluster_removed_while_a_client_was_away_is_dropped_when_it_is_back():
    # Prepare: client-0 takes part, then cluster 1 goes
    federated = federation()
    federated.round()
    remembered = federated.client_states["client-0"].mixture_weights
    federated.state = federated.state.moved_to(Membership((0, 2)))
    client, broadcast = federated.clients[0], federated.algorithm.broadcast(federated.state, 2, 10)

    # Execute
    federated.round(["client-0"])

    # Assert: its E-step starts from what is left of its weights
    rest = remembered[0] + remembered[2]
    start = [remembered[0] / rest, remembered[2] / rest]
    gammas = e_step_of(federated, client, start, broadcast)
    back = federated.client_states["client-0"]
    assert back.clusters == (0, 2)
    np.testing.assert_allclose(back.mixture_weights, reference.column_means(gammas), atol=1e-5)
    counts = reference.label_counts(gammas, client.fit.labels, 10)
    np.testing.assert_allclose(federated.replies["client-0"].label_counts, counts, atol=1e-4)


def test_updates_go_to_the_cluster_they_were_made_for_after_a_removal():
    # Prepare: the clusters at positions 0 and 1 have the ids 0 and 2
    federated = federation()
    federated.round()
    federated.state = federated.state.moved_to(Membership((0, 2)))
    before = dict(federated.state.models)

    # Execute
    federated.round(["client-0"])

    # Assert
    assert list(federated.state.models) == [0, 2]
    for position, cluster in enumerate((0, 2)):
        delta = federated.replies["client-0"].deltas[position]
        expected = before[cluster] + delta
        np.testing.assert_allclose(federated.state.models[cluster], expected, atol=1e-6)


def test_a_client_that_comes_for_the_first_time_starts_from_uniform_weights():
    # Prepare
    federated = federation()
    federated.round(NAMES[:3])
    federated.round(NAMES[:3])
    broadcast = federated.algorithm.broadcast(federated.state, 3, 10)

    # Execute
    federated.round(["client-3"])

    # Assert
    gammas = e_step_of(federated, federated.clients[3], [1 / 3] * 3, broadcast)
    weights = federated.client_states["client-3"].mixture_weights
    np.testing.assert_allclose(weights, reference.column_means(gammas), atol=1e-5)


def test_adam_moments_whose_shape_no_longer_fits_start_over():
    # Prepare: client-0 remembers 27 samples and now has 20
    federated = federation(e_step="adam")
    federated.round()
    client, state = federated.clients[0], federated.client_states["client-0"]
    shorter = replace(client, fit=Split(client.fit.inputs[:20], client.fit.labels[:20]))
    broadcast = federated.algorithm.broadcast(federated.state, 2, 10)

    # Execute
    _, after = federated.algorithm.train(broadcast, state, federated.runtime(shorter, 2))

    # Assert: the weights are remembered, the moments are those of a first step
    proposal = e_step_of(federated, shorter, state.mixture_weights, broadcast)
    first = reference.Adam.start(20, 3).step(proposal)
    assert state.moments.responsibilities.shape == (27, 3)
    np.testing.assert_allclose(after.moments.responsibilities, first.gamma, atol=1e-4)
    np.testing.assert_allclose(after.moments.first, first.nu, atol=1e-5)


def test_adam_takes_its_first_step_after_the_annealing_with_the_moments_gathered_during_it():
    # Prepare: exponents 1/4, 1/2 and 1; likelihoods of one sample with odds of 16, 8 and 3/8
    federated = federation(
        algorithm="fedem", clusters=2, annealing_rounds=2, annealing_start=0.25, e_step="adam"
    )
    algorithm = federated.algorithm
    state, labels = ClientState.start((0, 1)), np.array([0])
    found = []

    # Execute
    for number, odds in ((1, 16.0), (2, 8.0), (3, 3 / 8)):
        broadcast = algorithm.broadcast(federated.state, number, 10)
        losses = np.array([[0.0, math.log(odds)]])
        gamma, state = algorithm.expectation(step_of(losses, labels, broadcast, state))
        found.append(gamma[0, 0])

    # Assert: 16^(1/4) = 2, then (2 * 8)^(1/2) = 4, as without Adam; then 4 * 3/8 = 3/2 proposes 3/5
    assert found[:2] == pytest.approx([2 / 3, 4 / 5])
    # The gradients were 1/2 - 2/3, 2/3 - 4/5 and 4/5 - 3/5, with the weights 0.81, 0.9 and 1:
    # -0.135 - 0.12 + 0.2 = -0.055, and of their squares, with the weights 0.9801, 0.99 and 1,
    # 0.027225 + 0.0176 + 0.04 = 0.084825. Empty moments would have made it a step of the sign, to
    # nothing.
    assert found[2] == pytest.approx(4 / 5 + 0.055 / math.sqrt(0.084825))


def test_the_plain_e_step_keeps_no_moments():
    # Prepare: a state from a run with the Adam variant
    federated = federation()
    federated.client_states["client-0"] = ClientState(
        0, (0, 1, 2), np.full(3, 1 / 3), AdamMoments.start(27, 3)
    )

    # Execute
    federated.round()

    # Assert
    assert federated.client_states["client-0"].moments is None


# --- IFCA ----------------------------------------------------------------------------------------


def test_ifca_chooses_the_smallest_mean_loss_and_the_first_of_equals():
    # Prepare: means 2, 1.5, 1.5, though cluster 0 is best on the first sample
    federated = federation(algorithm="ifca")
    broadcast = federated.algorithm.broadcast(federated.state, 1, 10)
    losses = np.array([[0.5, 1.0, 2.0], [3.5, 2.0, 1.0]])
    state = ClientState.start((0, 1, 2))

    # Execute
    step = step_of(losses, np.array([0, 1]), broadcast, state)
    shares, state = federated.algorithm.expectation(step)

    # Assert
    np.testing.assert_array_equal(shares, [[0, 1, 0], [0, 1, 0]])
    np.testing.assert_array_equal(state.mixture_weights, [0, 1, 0])


@pytest.mark.parametrize("skip_below", [0.0, 1e-6])
def test_ifca_averages_a_cluster_over_the_clients_that_chose_it(skip_below):
    # Prepare
    federated = federation(algorithm="ifca", skip_below=skip_below)
    before = dict(federated.state.models)

    # Execute
    federated.round()

    # Assert
    choices = {n: int(s.mixture_weights.argmax()) for n, s in federated.client_states.items()}
    assert len(set(choices.values())) > 1
    for cluster, old in before.items():
        members = [n for n in NAMES if choices[n] == cluster]
        step = np.zeros(len(old))
        for name in members:
            reply = federated.replies[name]
            total = sum(federated.replies[n].samples for n in members)
            step += reply.samples / total * reply.deltas[cluster]
        np.testing.assert_allclose(federated.state.models[cluster], old + step, atol=1e-6)


# --- FedRC's variants ----------------------------------------------------------------------------


def test_hard_training_trains_the_likeliest_cluster_alone_and_counts_softly():
    federated = federation(clustering="hard-train")

    federated.round()

    for name in NAMES:
        weights, reply = federated.client_states[name].mixture_weights, federated.replies[name]
        assert list(reply.deltas) == [int(weights.argmax())]
        assert weights.max() < 1.0
        np.testing.assert_allclose(reply.label_counts.sum(axis=1) / reply.samples, weights)


def plain_judgement(federated, client, weights, hard=False, models=None, split=None):
    """Accuracy and loss on the test part or another, one sample and one model at a time."""
    split = client.test if split is None else split
    if models is None:
        models = federated.initial_models()[: len(weights)]
        for model, vector in zip(models, federated.state.models.values(), strict=True):
            nn.utils.vector_to_parameters(torch.from_numpy(vector), model.parameters())
    if hard:
        weights = [float(k == int(np.argmax(weights))) for k in range(len(weights))]
    right, total = 0, 0.0
    for x, y in zip(split.inputs, split.labels, strict=True):
        mixed = [0.0] * 10
        for weight, model in zip(weights, models, strict=True):
            with torch.no_grad():
                probabilities = functional.softmax(model(torch.from_numpy(x)[None]), dim=1)[0]
            mixed = [m + weight * float(p) for m, p in zip(mixed, probabilities, strict=True)]
        right += mixed.index(max(mixed)) == y
        total -= math.log(mixed[y])
    return {"accuracy": right / len(split), "loss": total / len(split)}


@pytest.mark.parametrize("clustering", ["soft", "hard-test", "hard-train"])
def test_evaluation_agrees_with_the_formula_of_the_prediction(clustering):
    # Prepare
    federated = federation(clustering=clustering)
    federated.round()

    # Execute
    metrics = federated.evaluate()

    # Assert
    for client in federated.clients:
        weights = federated.client_states[client.name].mixture_weights
        expected = plain_judgement(federated, client, weights, hard=clustering != "soft")
        got = metrics[client.name]
        assert got["accuracy"] == pytest.approx(expected["accuracy"])
        assert got["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert got["cluster"] == int(weights.argmax())
        assert got["samples"] == len(client.test) > 0
        # and the same rule on the training samples, with the models that are judged
        on_fit = plain_judgement(
            federated, client, weights, hard=clustering != "soft", split=client.fit
        )
        assert got["fit_accuracy"] == pytest.approx(on_fit["accuracy"])


@pytest.mark.parametrize("clustering", ["soft", "hard-test", "hard-train"])
def test_the_accuracy_while_training_follows_the_rule_of_the_prediction(clustering):
    # Prepare: a second round, so that the models differ in what they know
    federated = federation(clustering=clustering, **{"local.learning-rate": 0.3})
    federated.round()
    models = federated.initial_models()
    for model, vector in zip(models, federated.state.models.values(), strict=True):
        nn.utils.vector_to_parameters(torch.from_numpy(vector), model.parameters())

    # Execute
    federated.round()

    # Assert: the broadcast models, with the weights of this round's E-step
    mixed, likeliest = [], []
    for client in federated.clients:
        weights = federated.client_states[client.name].mixture_weights
        for hard, found in ((False, mixed), (True, likeliest)):
            told = plain_judgement(federated, client, weights, hard, models, client.fit)
            found.append(told["accuracy"])
    expected = mixed if clustering == "soft" else likeliest
    got = [federated.replies[name].metrics["accuracy"] for name in NAMES]
    assert got == pytest.approx(expected)
    assert mixed != likeliest


def test_hard_clustering_at_test_time_trains_softly():
    soft, hard = federation(), federation(clustering="hard-test")

    for run in (soft, hard):
        run.round()

    for k in range(3):
        np.testing.assert_array_equal(soft.state.models[k], hard.state.models[k])


def test_a_client_that_never_trained_finds_its_weights_by_e_steps_until_they_settle():
    # Prepare: observers, after two rounds of the training clients
    federated = federation(clients=None, observers_per_concept=1, clusters=2)
    federated.round()
    federated.round()
    observer = next(c for c in federated.clients if c.role == "observe")
    short = replace(observer, fit=Split(observer.fit.inputs[:40], observer.fit.labels[:40]))
    broadcast = federated.algorithm.broadcast(federated.state, 2, 10)

    # Execute
    metrics = federated.algorithm.evaluate(broadcast, None, federated.runtime(short, 0)).metrics

    # Assert
    weights = [0.5, 0.5]
    for _ in range(fedrc.MOST_STEPS):
        previous = weights
        weights = reference.column_means(e_step_of(federated, short, previous, broadcast))
        if max(abs(a - b) for a, b in zip(weights, previous, strict=True)) < 1e-6:
            break
    expected = plain_judgement(federated, short, weights)
    assert metrics["accuracy"] == pytest.approx(expected["accuracy"])
    assert metrics["loss"] == pytest.approx(expected["loss"], abs=1e-4)
    assert metrics["cluster"] == weights.index(max(weights))
    assert observer.name not in federated.client_states


def test_at_most_so_many_e_steps_assign_a_client(monkeypatch):
    # Prepare: exp(-f) = (2/3, 1/3), so each step doubles the odds of cluster 0
    losses, labels = -np.log([[2 / 3, 1 / 3]]), np.array([0])
    federated = federation(algorithm="fedem", clusters=2)
    broadcast = federated.algorithm.broadcast(federated.state, 1, 10)
    monkeypatch.setattr(fedrc, "MOST_STEPS", 3)

    # Execute
    weights = federated.algorithm.assign(losses, labels, broadcast)

    # Assert: odds of 2^3
    np.testing.assert_allclose(weights, [8 / 9, 1 / 9], atol=1e-12)


def test_fine_tuning_is_one_local_epoch_weighed_by_the_mixture_weights():
    # Prepare: local training takes two epochs, fine-tuning one
    federated = federation(fine_tune=True)
    federated.round()
    before = {k: v.copy() for k, v in federated.state.models.items()}

    # Execute
    metrics = federated.evaluate()

    # Assert
    config = federated.config
    for client in federated.clients:
        weights = federated.client_states[client.name].mixture_weights
        inputs, labels = map(torch.from_numpy, (client.fit.inputs, client.fit.labels))
        tuned = []
        for k, model in enumerate(federated.initial_models()):
            nn.utils.vector_to_parameters(torch.from_numpy(before[k]), model.parameters())
            rng = np.random.default_rng([config.seed, 0, zlib.crc32(client.name.encode())])
            tuned.append(
                reference.local_sgd(
                    model,
                    inputs,
                    labels,
                    torch.full((len(labels),), float(weights[k])),
                    reference.batches(len(labels), config.local.batch_size, 1, rng),
                    config.local.learning_rate,
                    config.local.momentum,
                )
            )
        expected = plain_judgement(federated, client, weights, models=tuned)
        got = metrics[client.name]
        assert got["fine_tuned_loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert got["fine_tuned_accuracy"] == pytest.approx(expected["accuracy"])
        # and what is reported without fine-tuning is not touched by it
        untuned = plain_judgement(federated, client, weights)
        assert got["loss"] == pytest.approx(untuned["loss"], abs=1e-5)
        assert got["loss"] != got["fine_tuned_loss"]


def test_an_observer_is_never_fine_tuned():
    # Prepare
    plain, tuned = (
        federation(clients=None, observers_per_concept=1, fine_tune=on) for on in (False, True)
    )
    for run in (plain, tuned):
        run.round()
    observers = [c for c in tuned.clients if c.role == "observe"]
    broadcast = tuned.algorithm.broadcast(tuned.state, 1, 10)

    for observer in observers:
        # Execute
        runtime = tuned.runtime(observer, 0)
        got = tuned.algorithm.evaluate(broadcast, None, runtime).metrics

        # Assert: the networks are still the federation's, and it is judged with them alone
        for k, unit in enumerate(tuned.bank.units):
            np.testing.assert_array_equal(unit.vector.numpy(), tuned.state.models[k])
        assert got == plain.evaluate()[observer.name]
        assert not any(name.startswith("fine_tuned") for name in got)
    assert observers


def test_a_training_client_that_was_never_sampled_is_fine_tuned():
    federated = federation(fine_tune=True)
    federated.round(NAMES[:2])

    metrics = federated.evaluate()

    assert all("fine_tuned_accuracy" in metrics[name] for name in NAMES)


def test_a_client_without_test_samples_reports_none():
    federated = federation(test_fraction=0.0)
    federated.round()

    metrics = federated.evaluate()

    assert metrics["client-0"].keys() == {"samples", "cluster", "fit_accuracy"}
    assert metrics["client-0"]["samples"] == 0.0


def test_a_shared_body_moves_by_the_mean_of_the_clients_updates():
    # Prepare
    federated = federation(shared_body=True)
    body, heads = federated.state.body, dict(federated.state.models)

    # Execute
    federated.round()

    # Assert
    replies = federated.replies.values()
    total = sum(r.samples for r in replies)
    step = sum(r.samples / total * r.deltas[-1] for r in replies)
    assert np.abs(step).max() > 1e-3
    np.testing.assert_allclose(federated.state.body, body + step, atol=1e-6)
    for k, head in heads.items():
        step = sum(r.samples / total * r.deltas[k] for r in replies)
        np.testing.assert_allclose(federated.state.models[k], head + step, atol=1e-6)
        # 6 hidden units, 10 classes
        assert len(head) == 6 * 10 + 10


# --- merging -------------------------------------------------------------------------------------


def test_the_loss_table_is_the_sum_of_responsibility_times_loss():
    # Prepare
    federated = federation(merge=True)
    client, models = federated.clients[0], federated.initial_models()
    inputs, labels = map(torch.from_numpy, (client.fit.inputs, client.fit.labels))
    losses = reference.sample_losses(models, inputs, labels)
    gammas = reference.responsibilities(losses, [1 / 3] * 3, None, labels)

    # Execute
    federated.round()

    # Assert: row a, column b is the sum over samples of gamma_ja f_jb
    table = federated.replies["client-0"].cross_losses
    for a in range(3):
        for b in range(3):
            expected = sum(g[a] * f[b] for g, f in zip(gammas, losses, strict=True))
            assert table[a, b] == pytest.approx(expected, abs=1e-4)


def test_without_merging_no_loss_table_leaves_the_client():
    federated = federation()

    federated.round()

    assert all(reply.cross_losses is None for reply in federated.replies.values())


# --- adapting within the rounds ------------------------------------------------------------------

SETTLED = {"settle_tolerance": 1.0, "settle_loss": 100.0}  # whatever moves, it counts as quiet


def test_clusters_are_merged_in_a_run_and_the_clients_follow():
    # Prepare: any movement counts as quiet, and any two clusters as the same
    federated = federation(**SETTLED, merge=True, settle_rounds=2, merge_tolerance=50.0)

    # Execute
    first, second, third = federated.round(), federated.round(), federated.round()
    federated.round()

    # Assert: the first round has no loss to compare with, so the third is the second quiet one;
    # then there is one cluster with everybody in it
    assert first.adaptation.merged == second.adaptation.merged == ()
    assert len(third.adaptation.merged) == 2
    assert len(federated.state.clusters) == 1
    for name in NAMES:
        assert federated.client_states[name].clusters == federated.state.clusters
        np.testing.assert_allclose(federated.client_states[name].mixture_weights, [1.0])


def test_no_cluster_goes_while_the_e_step_is_annealed():
    federated = federation(
        **SETTLED, merge=True, settle_rounds=1, merge_tolerance=50.0, annealing_rounds=2
    )

    first, second, third = federated.round(), federated.round(), federated.round()

    assert first.adaptation.merged == second.adaptation.merged == ()
    assert len(third.adaptation.merged) == 2


@pytest.mark.parametrize(("settle_loss", "left"), [(0.005, 3), (100.0, 1)])
def test_models_that_learn_together_are_not_merged_before_they_part(settle_loss, left):
    # Prepare: three models that start nearly alike
    keys = {"settle_loss": settle_loss, "settle_rounds": 1, "initial_spread": 1e-6}
    federated = federation(merge=True, **keys)

    # Execute
    reports = [federated.round() for _ in range(3)]

    # Assert: the weights rest, only the loss tells that there is something to wait for
    assert all(report.movement < 1e-3 for report in reports)
    assert len(federated.state.clusters) == left


# --- a client with one model ---------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fedavg", "fedrc", "ifca", "fedem"])
def test_a_client_with_one_model_makes_no_pass_of_its_own_before_it_trains(algorithm, monkeypatch):
    # Prepare: one batch, so that the loss while training is that before it
    start = {} if algorithm == "fedavg" else {"clusters": 1, "start": "paper"}
    federated = federation(algorithm=algorithm, batch_size=32, epochs=1, **start)
    broadcast = federated.algorithm.broadcast(federated.state, 1, 10)
    client = federated.clients[0]
    runtime = federated.runtime(client, 1)
    runtime.bank.load(broadcast.models, None)
    inputs, labels = runtime.tensors(client.fit)
    with torch.no_grad():
        logits = runtime.bank.units[0].module(inputs)

    # Execute
    monkeypatch.setattr("fedrc_flwr.algorithms.base.log_probabilities", None)
    monkeypatch.setattr("fedrc_flwr.algorithms.base.score", None)
    reply, _ = train_once(federated)

    # Assert
    assert reply.metrics["loss"] == pytest.approx(float(functional.cross_entropy(logits, labels)))
    right = (logits.argmax(1) == labels).double().mean()
    assert reply.metrics["accuracy"] == pytest.approx(float(right))
    assert np.any(reply.deltas[0])


def test_an_algorithm_with_a_training_of_its_own_gets_the_losses_before_it(monkeypatch):
    class Own(type(federation(algorithm="fedavg").algorithm)):
        def maximisation(self, step, responsibilities):
            assert np.all(step.losses > 0)
            return super().maximisation(step, responsibilities)

    federated = federation(algorithm="fedavg")
    monkeypatch.setattr(federated.algorithm, "__class__", Own)

    reply, _ = train_once(federated)

    assert reply.metrics["loss"] > 0


# --- noise on the statistics ---------------------------------------------------------------------


def train_once(federated, noise_rng=None, state=None):
    client = federated.clients[0]
    runtime = federated.runtime(client, 1)
    if noise_rng is not None:
        runtime.noise_rng = noise_rng
    broadcast = federated.algorithm.broadcast(federated.state, 1, 10)
    return federated.algorithm.train(
        broadcast, state or ClientState.start(federated.state.clusters), runtime
    )


def test_a_replys_statistics_are_clipped_and_noised_and_nothing_else_is():
    # Prepare: 27 samples and a share of 0.1, which is below the joint norm of counts and table
    exact, _ = train_once(federation(merge=True))
    noisy = federation(merge=True, count_noise=1.5, count_clip=0.1)

    # Execute
    reply, state = train_once(noisy, np.random.default_rng(4))

    # Assert: the table is of differences from the own loss, in units of 2 log(10) * sqrt(K - 1);
    # untrained networks differ by less than the bound
    unit = 2 * math.log(10) * math.sqrt(len(exact.label_counts) - 1)
    table = (exact.cross_losses - np.diag(exact.cross_losses)[:, None]) / unit
    length = math.sqrt(sum(float(v) ** 2 for v in [*exact.label_counts.ravel(), *table.ravel()]))
    factor = 0.1 * 27 * math.sqrt(2) / length
    assert exact.samples == 27
    assert factor < 1
    draws = np.random.default_rng(4)
    counts = factor * exact.label_counts + 1.5 * draws.standard_normal(exact.label_counts.shape)
    expected = unit * (factor * table + 1.5 * draws.standard_normal(table.shape))
    np.fill_diagonal(expected, 0.0)
    np.testing.assert_allclose(reply.label_counts, counts, atol=1e-9)
    np.testing.assert_allclose(reply.cross_losses, expected, atol=1e-9)
    for k, delta in exact.deltas.items():
        np.testing.assert_array_equal(reply.deltas[k], delta)
    exact_weights = exact.label_counts.sum(axis=1) / exact.samples
    np.testing.assert_allclose(state.mixture_weights, exact_weights, atol=1e-9)


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_raw_counts_are_noised_as_in_the_paper(clip):
    # Prepare: neither without clipping nor by default is anything scaled down
    exact, _ = train_once(federation())

    # Execute
    reply, _ = train_once(federation(count_noise=25.0, count_clip=clip), np.random.default_rng(4))

    # Assert
    noise = 25.0 * np.random.default_rng(4).standard_normal(exact.label_counts.shape)
    np.testing.assert_allclose(reply.label_counts, exact.label_counts + noise, atol=1e-9)


@pytest.mark.parametrize("clip", [0.0, 0.1, 1.0])
def test_a_tiny_noise_leaves_the_mean_losses_as_they_are(clip):
    # Prepare: however much is clipped, counts and losses must stay comparable
    exact, _ = train_once(federation(merge=True))

    # Execute
    reply, _ = train_once(federation(merge=True, count_noise=1e-9, count_clip=clip))

    # Assert: what a cluster's samples lose by using another model, per sample
    def mean_excess(sent):
        means = sent.cross_losses / sent.label_counts.sum(axis=1)[:, None]
        return means - np.diag(means)[:, None]

    np.testing.assert_allclose(mean_excess(reply), mean_excess(exact), atol=1e-6)


def test_the_noise_is_not_derived_from_the_runs_seed():
    # Prepare: the same client, round and seed twice
    federated = federation(count_noise=1.5)

    # Execute
    (one, _), (other, _) = train_once(federated), train_once(federated)

    # Assert
    assert (one.label_counts != other.label_counts).all()
    for k, delta in one.deltas.items():
        np.testing.assert_array_equal(delta, other.deltas[k])


@pytest.mark.parametrize(
    ("keys", "a_round"),
    [
        ({"count_noise": 1.0}, 1),
        ({"count_noise": 1.0, "merge": True}, 2),
        ({"merge": True}, 0),
    ],
)
def test_noisy_releases_are_counted(keys, a_round):
    federated = federation(**keys)

    for _ in range(3):
        federated.round()

    for name in NAMES:
        assert federated.client_states[name].releases == 3 * a_round
        assert federated.state.clients[name].releases == 3 * a_round


def test_epsilon_never_falls_when_a_client_changes_its_noise():
    # Prepare: 27 samples and a noise of 9: mu^2 of 9 for client-0; then a noise of 900
    federated = federation(count_noise=9.0)
    federated.round()
    first = federated.algorithm.epsilon(federated.state)
    loud = {n: replace(p, noise=900.0) for n, p in federated.participants.items()}

    # Execute
    federated.participants = loud
    federated.round()

    # Assert
    spent = federated.state.clients["client-0"].spent
    assert spent == pytest.approx(9.0 + 0.0009)
    assert federated.algorithm.epsilon(federated.state) >= first


def test_one_report_without_noise_leaves_no_epsilon_to_claim():
    # Prepare
    federated = federation()
    federated.round()
    federated.participants = {n: replace(p, noise=900.0) for n, p in federated.participants.items()}

    # Execute
    federated.round()

    # Assert
    assert federated.algorithm.epsilon(federated.state) is None


def test_releases_that_never_arrived_are_counted_by_the_client():
    # Prepare: a reply that got lost
    federated = federation(count_noise=1.0)
    _, federated.client_states["client-0"] = train_once(federated)

    # Execute
    federated.round()

    # Assert
    assert federated.state.clients["client-0"].releases == 2
    assert federated.state.clients["client-1"].releases == 1


def test_releases_before_a_client_lost_its_state_still_count():
    # Prepare
    federated = federation(count_noise=1.0, merge=True)
    federated.round()
    federated.round()
    del federated.client_states["client-0"]

    # Execute
    federated.round()

    # Assert: two a round, and the client knows of the last round alone
    assert federated.client_states["client-0"].releases == 2
    assert federated.state.clients["client-0"].releases == 6


# --- the ground truth ----------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_training_never_reads_the_ground_truth(algorithm):
    # Prepare: one federation with its concepts and styles, one with them scrambled; where clusters
    # may go, they do from the second round on
    adapts = algorithm in ("fedrc", "fedem")
    adaptation = {"adaptive": True, "remove_below": 0.3, "merge": True, "settle_rounds": 1}
    honest = federation(algorithm=algorithm, **(adaptation | SETTLED if adapts else {}))
    lies = [GroundTruth(9 - c.truth.concept, "a lie") for c in honest.clients]
    scrambled = Federation(
        honest.config,
        [replace(c, truth=lie) for c, lie in zip(honest.clients, lies, strict=True)],
    )

    # Execute
    reports = [[run.round(), run.round()] for run in (honest, scrambled)]

    # Assert
    assert honest.state.clients["client-0"].concept != scrambled.state.clients["client-0"].concept
    assert reports[0] == reports[1]
    assert not adapts or len(honest.state.clusters) < 3
    assert honest.state.membership == scrambled.state.membership
    for cluster, vector in honest.state.models.items():
        np.testing.assert_array_equal(vector, scrambled.state.models[cluster])
    for name in NAMES:
        np.testing.assert_array_equal(
            honest.client_states[name].mixture_weights,
            scrambled.client_states[name].mixture_weights,
        )
    assert honest.evaluate() == scrambled.evaluate()


@pytest.mark.parametrize("shared_body", [False, True])
def test_initial_spread_moves_each_model_from_the_first_towards_its_own_draw(shared_body):
    far = federation(shared_body=shared_body).state.models
    near = federation(shared_body=shared_body, initial_spread=0.25).state.models

    np.testing.assert_array_equal(near[0], far[0])
    for k in (1, 2):
        np.testing.assert_allclose(near[k], 0.75 * far[0] + 0.25 * far[k], rtol=1e-5, atol=1e-7)
        assert near[k].dtype == np.float32
        assert np.abs(near[k] - near[0]).max() > 0
