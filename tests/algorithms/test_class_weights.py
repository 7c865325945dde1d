"""Training in which rare labels count as much as frequent ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from federation import Federation
from settings_of import configured

from fedrc_flwr.algorithms import ALGORITHMS
from fedrc_flwr.sgd import MOST_EMPHASIS, LocalSettings
from fedrc_flwr.training import log_probabilities, losses_of

BALANCED = LocalSettings(class_weights="balanced")


def test_weights_by_hand() -> None:
    """Shares of 0.8 and 0.2 of two labels count 1 / (2 * 0.8) and 1 / (2 * 0.2)."""
    prior = np.array([[0.8, 0.2], [0.5, 0.5]])

    np.testing.assert_allclose(BALANCED.emphasis(prior), [[0.625, 2.5], [1.0, 1.0]])
    np.testing.assert_allclose(BALANCED.trained_prior(prior), [[0.5, 0.5], [0.5, 0.5]])


def test_without_weights_everything_counts_once() -> None:
    prior = np.array([[0.8, 0.2]])

    np.testing.assert_array_equal(LocalSettings().emphasis(prior), [[1.0, 1.0]])
    np.testing.assert_array_equal(LocalSettings().trained_prior(prior), prior)


def test_label_that_a_cluster_lacks_does_not_make_the_others_count_less() -> None:
    """Of four labels two occur: they count 1 / (2 * 0.75) and 1 / (2 * 0.25)."""
    prior = np.array([[0.75, 0.25, 1e-9, 1e-9]])

    np.testing.assert_allclose(BALANCED.emphasis(prior)[0, :2], [2 / 3, 2.0], rtol=1e-4)


def test_very_rare_label_counts_at_most_fifty_times() -> None:
    weights = BALANCED.emphasis(np.array([[0.999, 0.001]]))

    # Before the sum over the samples is made one again: 0.5005 and 50, instead of 500.
    total = 0.999 / (2 * 0.999) + 0.001 * MOST_EMPHASIS
    np.testing.assert_allclose(weights, [[1 / (2 * 0.999) / total, MOST_EMPHASIS / total]])


def rare(class_weights: str, algorithm: str = "fedavg", **settings: object) -> Federation:
    """Two clients of digits with skewed labels, after a round: the label prior is known."""
    keys = {"algorithm": algorithm, "clients": 2, "samples_per_client": 40, "hidden": 4}
    sgd = {"local.momentum": 0.0, "class_weights": class_weights}
    federated = Federation(configured(**keys, **sgd, **settings))
    federated.round()
    return federated


def test_update_is_that_of_the_weighted_loss() -> None:
    """One full batch: the update is the sum over labels of weight times the label's own update."""
    balanced, plain = rare("balanced"), rare("none")
    client = balanced.clients[0]
    prior = balanced.state.label_prior(10)
    labels, counts = np.unique(client.fit.labels, return_counts=True)

    balanced.state = replace(balanced.state, models=plain.state.models)
    balanced.round([client.name])
    got = balanced.replies[client.name].deltas[0]

    expected = np.zeros_like(got)
    weights = BALANCED.emphasis(prior)[0]
    for label, count in zip(labels, counts, strict=True):
        rows = client.fit.labels == label
        part = replace(client.fit, inputs=client.fit.inputs[rows], labels=client.fit.labels[rows])
        alone = replace(client, fit=part)
        broadcast = plain.algorithm.broadcast(plain.state, 2, 10)
        state = plain.client_states[client.name]
        reply, _ = plain.algorithm.train(broadcast, state, plain.runtime(alone, 2))
        expected += weights[label] * count / len(client.fit) * reply.deltas[0]
    np.testing.assert_allclose(got, expected, atol=1e-6)
    assert np.abs(weights - 1.0).max() > 0.1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_takes_class_weights(algorithm: str) -> None:
    """The first round has a uniform prior, so that only the second differs."""
    plain, balanced = rare("none", algorithm), rare("balanced", algorithm)
    same = [judged(plain) == judged(balanced)]

    for federated in (plain, balanced):
        federated.round()
    same.append(judged(plain) == judged(balanced))

    assert same == [True, False]
    assert np.isfinite(judged(balanced)).all()


def judged(federated: Federation) -> list[float]:
    """The losses of the training clients."""
    return [federated.evaluate()[name]["loss"] for name in federated.client_states]


def test_clusters_are_compared_by_the_same_weights() -> None:
    """Otherwise clusters that disagree about a rare label alone would be merged."""
    federated = rare("balanced", "fedrc", merge=True, adaptive=True, clusters=2)
    client = federated.clients[0]
    broadcast = federated.algorithm.broadcast(federated.state, 2, 10)
    federated.round()

    table = federated.replies[client.name].cross_losses

    federated.bank.load(broadcast.models, None)
    inputs, labels = federated.runtime(client, 2).tensors(client.fit)
    losses = losses_of(log_probabilities(federated.bank, inputs, 2), labels)
    kept = federated.client_states[client.name].responsibilities
    weights = BALANCED.emphasis(broadcast.label_prior)[:, client.fit.labels]
    assert table is not None
    assert kept is not None
    expected = [
        [sum(kept[j, a] * weights[a, j] * losses[j, b] for j in range(len(losses)))
         for b in range(2)]
        for a in range(2)
    ]  # fmt: skip
    np.testing.assert_allclose(table, expected, rtol=1e-5)
