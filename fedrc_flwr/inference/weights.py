"""One client's mixture weights: from a file, or from a client's state."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedrc_flwr import em
from fedrc_flwr.checkpoint import load_client_state
from fedrc_flwr.em import Floats
from fedrc_flwr.errors import CheckpointError, WeightsError
from fedrc_flwr.inference.trained import Trained
from fedrc_flwr.report.log import write_json
from fedrc_flwr.state import ClientState

SCHEMA = 1
KIND = "fedrc-weights"


@dataclass(frozen=True)
class Weights:
    """Mixture weights over a checkpoint's living clusters, (K,), in their order.

    They are a distribution: whatever predicts with them relies on it.
    """

    clusters: tuple[int, ...]
    values: Floats

    def __post_init__(self) -> None:
        em.check_distribution(self.values, (len(self.clusters),), "mixture weights")

    @property
    def best(self) -> int:
        """Id of the likeliest cluster."""
        return self.clusters[int(self.values.argmax())]


def write_weights(path: Path, trained: Trained, weights: Weights, about: dict[str, Any]) -> None:
    """Save weights as JSON, with what is needed to check later that they fit a checkpoint."""
    write_json(
        path,
        {
            "kind": KIND,
            "schema": SCHEMA,
            "round": trained.state.round,
            "clusters": list(weights.clusters),
            "mixture_weights": [float(value) for value in weights.values],
            "layout": trained.layout,
            "input_shape": list(trained.input_shape),
            "classes": trained.classes,
            **about,
        },
    )


def read_weights(path: Path, trained: Trained) -> Weights:
    """Weights that ``write_weights`` saved, over the checkpoint's clusters.

    They may come from an earlier round of the run: weights of clusters that were merged since are
    added.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path}: no such file: make it with fedrc assign --out {path}"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: torn or not a file of weights ({error})") from None
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise CheckpointError(f"{path}: not a file of weights: make one with fedrc assign")
    if content.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{path}: schema {content.get('schema')}, but this version reads schema {SCHEMA}"
        )
    for key, word, expected in (
        ("classes", "classes", trained.classes),
        ("input_shape", "samples of shape", list(trained.input_shape)),
        ("layout", "the network", trained.layout),
    ):
        if content.get(key) != expected:
            raise CheckpointError(
                f"{path} does not fit {trained.where}: expected {word} {expected}, found "
                f"{content.get(key)}: run fedrc assign with this checkpoint"
            )
    try:
        clusters = tuple(int(c) for c in content["clusters"])
        values = np.array(content["mixture_weights"], dtype=np.float64)
        state = ClientState(int(content["round"]), clusters, values)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: incomplete ({error!r})") from None
    return _moved(state, trained, str(path))


def state_weights(folder: Path, trained: Trained) -> Weights:
    """The weights of a client that trained, from its state directory."""
    if trained.algorithm.is_personal:
        raise CheckpointError(
            f"{folder}: a client of {trained.algorithm.title} predicts with a network of its own, "
            "which this command cannot use; find weights with fedrc assign to predict with the "
            "run's shared models"
        )
    before = trained.state.round + 1
    state = load_client_state(folder, before)
    if state is None:
        newer = load_client_state(folder, sys.maxsize)
        found = "none" if newer is None else f"round {newer.round}"
        raise CheckpointError(
            f"{folder}: expected a client's state of round {trained.state.round} or earlier, found "
            f"{found}: name the folder with the client's round-*.safetensors"
        )
    return _moved(state, trained, str(folder))


def _moved(state: ClientState, trained: Trained, where: str) -> Weights:
    values = state.mixture_weights
    if values.shape != (len(state.clusters),) or not len(values):
        raise CheckpointError(
            f"{where}: expected one weight for each of {len(state.clusters)} clusters, found "
            f"{values.shape}"
        )
    try:
        em.check_distribution(values, values.shape, where)
    except WeightsError as error:
        raise CheckpointError(f"{error}, found {values.tolist()}") from None
    mapping = trained.membership.mapping_from(state.clusters)
    if not values[mapping >= 0].sum() > 0:
        raise CheckpointError(
            f"{where}: weighs the clusters {list(state.clusters)}, of which {trained.where} holds "
            f"none ({list(trained.clusters)}): run fedrc assign with this checkpoint"
        )
    moved = state.moved_to(trained.membership)
    return Weights(moved.clusters, moved.mixture_weights)
