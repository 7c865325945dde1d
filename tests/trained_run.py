"""Run directories without a run: checkpoints of networks trained or drawn here."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from settings_of import configured
from torch.nn import functional

from fedrc_flwr.checkpoint import CHECKPOINTS, Checkpoint, save_checkpoint
from fedrc_flwr.config import RunConfig, build_algorithm
from fedrc_flwr.data.concepts import concept_map
from fedrc_flwr.data.datasets import load_dataset
from fedrc_flwr.layout import count_parameters, fingerprint, to_vector
from fedrc_flwr.models import SplitModel, build_model
from fedrc_flwr.state import ClientRecord, Membership, ServerState


def run_config(**settings: Any) -> RunConfig:
    return configured(**{"scenario": "digits", "hidden": 32, **settings})


def drawn_checkpoint(
    input_shape: tuple[int, ...] = (8, 8), classes: int = 10, **settings: Any
) -> Checkpoint:
    """Random networks and random label counts."""
    config = run_config(**settings)
    algorithm = build_algorithm(config)
    models = [
        build_model(config.model, input_shape, classes, seed=k) for k in range(algorithm.models)
    ]
    state = algorithm.initial_state(models)
    rng = np.random.default_rng(3)
    counts = rng.uniform(1, 30, (len(models), classes))
    record = ClientRecord("train", 40, label_counts=counts)
    state = replace(state, round=7, clients={"client-00": record})
    layout = fingerprint(models[0], algorithm.shared_body)
    return Checkpoint(state, config.to_dict(), input_shape, classes, layout)


def write_run(folder: Path, checkpoint: Checkpoint) -> Path:
    save_checkpoint(folder / CHECKPOINTS, checkpoint, keep=3)
    return folder


@lru_cache(maxsize=1)
def concept_checkpoint() -> Checkpoint:
    """Clusters 0, 4 and 5, each trained on all digits under one concept; 2 was merged into 4."""
    config = run_config()
    data = load_dataset("digits")
    models = {}
    for cluster, concept in ((0, 0), (4, 1), (5, 2)):
        labels = concept_map(concept, 10, config.seed)[data.train_labels]
        models[cluster] = _fitted(config, data.train_inputs, labels)
    counts = np.full((3, 10), 20.0)
    state = ServerState(
        round=9,
        membership=Membership((0, 4, 5), {2: 4}),
        models={cluster: to_vector(model) for cluster, model in models.items()},
        body=None,
        clients={"client-00": ClientRecord("train", 600, label_counts=counts)},
        parameters=count_parameters(models[0]),
    )
    layout = fingerprint(models[0], shared_body=False)
    return Checkpoint(state, config.to_dict(), (8, 8), 10, layout)


def _fitted(config: RunConfig, inputs: np.ndarray, labels: np.ndarray) -> SplitModel:
    model = build_model(config.model, (8, 8), 10, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    x, y = torch.from_numpy(inputs), torch.from_numpy(labels)
    rng = np.random.default_rng(0)
    for _ in range(25):
        for rows in np.array_split(rng.permutation(len(y)), 20):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model.eval()
