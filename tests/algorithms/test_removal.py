"""Check and remove (the paper's Algorithm 2) against plain loops over samples."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import reference
import torch
from federation import Federation
from settings_of import configured
from torch import nn

from fedrc_flwr.checkpoint import pack_client, unpack_client

torch.set_num_threads(1)


def federation(**keys: Any) -> Federation:
    """Three clients; clusters with less than 0.245 of the samples go in the second round."""
    settings = {
        "scenario": "digits",
        "clients": 3,
        "samples_per_client": 30,
        "hidden": 6,
        "clusters": 4,
        "epochs": 2,
        "batch_size": 8,
        "local.learning-rate": 0.1,
        "adaptive": True,
        "remove_below": 0.245,
        "settle_tolerance": 1.0,
        "settle_loss": 1e9,
        "settle_rounds": 1,
        "skip_below": 0.0,
        "skip_cluster_below": 0.0,
        "seed": 3,
    }
    return Federation(configured(**{**settings, **keys}))


def networks(federated: Federation) -> list[nn.Module]:
    """The server's models as torch modules."""
    modules = []
    for vector in federated.state.models.values():
        module = copy.deepcopy(federated.initial_models()[0])
        nn.utils.vector_to_parameters(torch.from_numpy(vector.copy()), module.parameters())
        modules.append(module)
    return modules


def plain_e_step(federated: Federation, weights: dict[str, list[float]]) -> dict[str, Any]:
    """gamma of every training client from the state as it is, by the reference."""
    models = networks(federated)
    prior = federated.state.label_prior(10).tolist()
    if federated.config.algorithm == "fedem":
        prior = None
    rows = {}
    for client in federated.clients:
        if client.role == "train":
            inputs = torch.from_numpy(client.fit.inputs)
            labels = torch.from_numpy(client.fit.labels)
            losses = reference.sample_losses(models, inputs, labels)
            rows[client.name] = reference.responsibilities(
                losses, weights[client.name], prior, labels.tolist()
            )
    return rows


@pytest.mark.parametrize("algorithm", ["fedrc", "fedem"])
def test_weights_after_a_removal_are_the_mean_of_renormalised_responsibilities(
    algorithm: str,
) -> None:
    # Prepare: the round in which clusters go
    federated = federation(algorithm=algorithm)
    names = [c.name for c in federated.clients if c.role == "train"]
    weights = {name: [0.25] * 4 for name in names}
    for _ in range(2):
        clusters = federated.state.clusters
        gamma = plain_e_step(federated, weights)
        weights = {name: reference.column_means(gamma[name]) for name in names}
        federated.round()
    kept = [clusters.index(c) for c in federated.state.clusters]
    assert 1 < len(kept) < 4
    expected = {}
    differences = []
    for name in names:
        renormalised = [[row[k] / sum(row[i] for i in kept) for k in kept] for row in gamma[name]]
        expected[name] = reference.column_means(renormalised)
        shares = np.array(weights[name])[kept]
        differences.append(np.abs(shares / shares.sum() - expected[name]).max())
    assert max(differences) > 1e-4  # renormalised weights would not do

    # Execute: a client's state goes to its disk and back
    membership = federated.state.membership
    states = {n: unpack_client(*pack_client(federated.client_states[n])) for n in names}

    # Assert: at once, and in the E-step of the next round
    for name in names:
        moved = states[name].moved_to(membership).mixture_weights
        np.testing.assert_allclose(moved, expected[name], atol=1e-6)
    gamma = plain_e_step(federated, expected)
    federated.client_states = states
    federated.round()
    for name in names:
        after = federated.client_states[name].mixture_weights
        np.testing.assert_allclose(after, reference.column_means(gamma[name]), atol=1e-6)


def test_responsibilities_are_kept_only_where_clusters_may_be_removed() -> None:
    federated = federation(adaptive=False)

    federated.round()

    for state in federated.client_states.values():
        assert state.responsibilities is None
