"""A federation's models as a checkpoint holds them, ready to score samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrc_flwr.algorithms.base import ClusteredAlgorithm
from fedrc_flwr.algorithms.messages import Broadcast
from fedrc_flwr.bank import ModelBank, choose_device
from fedrc_flwr.checkpoint import CHECKPOINTS, Checkpoint, latest_checkpoint, load_checkpoint
from fedrc_flwr.config import RunConfig, build_algorithm, load_config
from fedrc_flwr.data.schema import Schema, parse_schema, plain_schema
from fedrc_flwr.errors import CheckpointError, ConfigError, DataError, WireError
from fedrc_flwr.models import build_model
from fedrc_flwr.plugins import refuse_code
from fedrc_flwr.state import Membership, ServerState
from fedrc_flwr.training import log_probabilities

#: How a function that a checkpoint names is trusted, in a command and in Python.
TRUST_IT = "pass --trust-code {value} (in Python, trusted=[{value!r}])"


@dataclass(frozen=True)
class Trained:
    """The models of one checkpoint.

    Parameters
    ----------
    where : the checkpoint's path, for messages
    schema : how raw samples become inputs, and the names of the classes
    broadcast : the last broadcast for evaluation: models and label prior
    """

    where: Path
    config: RunConfig
    state: ServerState
    input_shape: tuple[int, ...]
    classes: int
    schema: Schema
    layout: str
    bank: ModelBank
    algorithm: ClusteredAlgorithm
    broadcast: Broadcast

    @property
    def membership(self) -> Membership:
        """The current clusters, and what the others were merged into."""
        return self.state.membership

    @property
    def clusters(self) -> tuple[int, ...]:
        """Ids of the current clusters."""
        return self.state.clusters

    def log_probabilities(self, inputs: NDArray[np.float32]) -> Tensor:
        """Log of every cluster's predicted probabilities, (N, K, C), as in the run itself."""
        if inputs.shape[1:] != self.input_shape:
            raise DataError(
                f"expected samples of the shape {self.input_shape}, as {self.where} was trained "
                f"on, found {inputs.shape[1:]}"
            )
        tensor = as_tensor(inputs).to(self.bank.device)
        return log_probabilities(self.bank, tensor, len(self.clusters))


def load_trained(
    path: Path | str,
    device: str = "cpu",
    warn: Callable[[str], None] | None = None,
    trusted: Collection[str] = (),
) -> Trained:
    """The models in a run's directory (its newest checkpoint) or in one checkpoint file.

    Parameters
    ----------
    warn : called for each newer checkpoint of the directory that cannot be read
    trusted : functions that the checkpoint may name as its network or data. Any other is refused,
        because it would be executed.
    """
    path = Path(path)
    checkpoint, where = _find(path, warn or (lambda text: None))
    refuse_code(where, checkpoint.config, trusted, TRUST_IT)
    config = _config(checkpoint, where)
    algorithm = build_algorithm(config)
    bank = _bank(checkpoint, config, algorithm.shared_body, where, device)
    state = checkpoint.state
    _check_counts(checkpoint, where)
    return Trained(
        where=where,
        config=config,
        state=state,
        input_shape=checkpoint.input_shape,
        classes=checkpoint.classes,
        schema=_schema(checkpoint, where),
        layout=checkpoint.layout,
        bank=bank,
        algorithm=algorithm,
        broadcast=algorithm.broadcast(state, state.round, checkpoint.classes),
    )


def _find(path: Path, warn: Callable[[str], None]) -> tuple[Checkpoint, Path]:
    if not path.exists():
        raise CheckpointError(
            f"{path}: no such file or directory: expected a run's directory or a checkpoint of it"
        )
    if not path.is_dir():
        return load_checkpoint(path), path
    folder = path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path
    checkpoint, problems = latest_checkpoint(folder)
    for problem in problems:
        warn(f"skipped: {problem}")
    return checkpoint, folder / f"round-{checkpoint.state.round:06d}.safetensors"


def _config(checkpoint: Checkpoint, where: Path) -> RunConfig:
    """The run's configuration; its scenario file is not needed, since every key is in here."""
    try:
        return load_config({**checkpoint.config, "resolved": True})
    except (ConfigError, KeyError, TypeError) as error:
        raise CheckpointError(f"{where}: its configuration cannot be used here: {error}") from None


def _schema(checkpoint: Checkpoint, where: Path) -> Schema:
    """The run's schema; without one, nothing is done to arrays and classes have numbers."""
    shape, classes = checkpoint.input_shape, checkpoint.classes
    text = str(checkpoint.config.get("data.schema", ""))
    if not text:
        return plain_schema(shape, classes)
    try:
        schema = parse_schema(text)
    except DataError as error:
        raise CheckpointError(f"{where}: its schema cannot be used: {error}") from None
    if (schema.input_shape, len(schema.classes)) != (shape, classes):
        raise CheckpointError(
            f"{where}: its schema has inputs of shape {schema.input_shape} and "
            f"{len(schema.classes)} classes, its models {shape} and {classes}"
        )
    return schema


def _bank(
    checkpoint: Checkpoint, config: RunConfig, shared_body: bool, where: Path, device: str
) -> ModelBank:
    state, shape, classes = checkpoint.state, checkpoint.input_shape, checkpoint.classes
    try:
        models = [
            build_model(config.model, shape, classes, seed=0, weights=False) for _ in state.clusters
        ]
    except (ConfigError, RuntimeError, TypeError) as error:
        raise CheckpointError(f"{where}: its network cannot be built: {error}") from None
    bank = ModelBank(models, choose_device(device), shared_body, config.model.reduced_precision())
    if bank.layout != checkpoint.layout:
        raise CheckpointError(
            f"{where}: holds a network of layout {checkpoint.layout}, but "
            f"{config.model.chosen(shape)} for inputs {shape} and {classes} classes has layout "
            f"{bank.layout}: "
            "use the version and the network with which it was trained"
        )
    if (state.body is None) == shared_body:
        found = "none" if state.body is None else "one"
        raise CheckpointError(
            f"{where}: expected {'one' if shared_body else 'no'} shared body, found {found}"
        )
    try:
        bank.load([state.models[c] for c in state.clusters], state.body)
    except WireError as error:
        raise CheckpointError(f"{where}: {error}") from None
    return bank


def _check_counts(checkpoint: Checkpoint, where: Path) -> None:
    expected = (len(checkpoint.state.clusters), checkpoint.classes)
    for name, record in checkpoint.state.clients.items():
        if record.label_counts is not None and record.label_counts.shape != expected:
            raise CheckpointError(
                f"{where}: expected label counts of {expected[0]} clusters and {expected[1]} "
                f"classes, found {record.label_counts.shape} of {name}"
            )


def as_tensor(inputs: NDArray[np.float32]) -> Tensor:
    """An array as a tensor; copied if it is not writable, which torch requires."""
    return torch.from_numpy(np.require(inputs, requirements=["C", "W"]))


def is_checkpoint(path: Path) -> bool:
    """Whether a path names a run or a checkpoint, rather than an exported model."""
    return path.is_dir() or os.fspath(path).endswith(".safetensors")
