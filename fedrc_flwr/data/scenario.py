"""A scenario: which client holds what. A client's data is a pure function of (config, index)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.config import RunConfig
from fedrc_flwr.data.concepts import assign_concepts, concept_map
from fedrc_flwr.data.corruptions import STYLES, corrupt
from fedrc_flwr.data.datasets import DATASETS, load_dataset
from fedrc_flwr.data.partition import dirichlet_split
from fedrc_flwr.errors import DataError

#: The configuration keys on which a client's data depends.
SCENARIO_KEYS = (
    "seed", "dataset", "clients", "samples_per_client", "alpha", "concept_shares",
    "corrupted_shares", "test_fraction", "observers_per_concept",
)  # fmt: skip
TRAIN = "train"
OBSERVE = "observe"


@dataclass(frozen=True)
class Split:
    """Inputs (N, ...) as float32 and their labels (N,)."""

    inputs: NDArray[np.float32]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class GroundTruth:
    """What only evaluation and pictures may see."""

    concept: int
    style: str


@dataclass(frozen=True)
class ClientData:
    """One client's name, role and samples.

    ``fit`` is what the E-step and, for training clients, the M-step see; ``test`` is what accuracy
    is measured on.
    """

    name: str
    role: str
    fit: Split
    test: Split
    classes: int
    truth: GroundTruth


@dataclass(frozen=True)
class Plan:
    """How the training set is dealt out: the part of a scenario that concerns all clients."""

    parts: list[NDArray[np.int64]]
    concepts: NDArray[np.int64]
    corrupted: NDArray[np.bool_]


class Scenario:
    """All clients of a configuration, each built when asked for.

    Training clients have the indices 0 to ``clients - 1``, observers follow.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._plan: Plan | None = None
        spec = DATASETS[config.dataset]
        self.classes = spec.classes
        self.input_shape = spec.input_shape
        self.clients = config.clients
        self.observers = len(config.shares()) * config.observers_per_concept

    def __len__(self) -> int:
        return self._config.clients + self.observers

    def client(self, index: int) -> ClientData:
        """The data of one client."""
        if not 0 <= index < len(self):
            raise DataError(
                f"client {index}: the scenario has {self._config.clients} training clients and "
                f"{self.observers} observers, indices 0 to {len(self) - 1}"
            )
        if index < self._config.clients:
            return self._training_client(index)
        return self._observer(index - self._config.clients)

    def _training_client(self, index: int) -> ClientData:
        config, plan = self._config, self._whole_plan()
        data = load_dataset(config.dataset)
        rng = np.random.default_rng([config.seed, index, 0xDA7A])
        concept = int(plan.concepts[index])
        inputs = data.train_inputs[plan.parts[index]]
        labels = concept_map(concept, self.classes, config.seed)[
            data.train_labels[plan.parts[index]]
        ]
        style = "none"
        if plan.corrupted[index]:
            name, severity = str(rng.choice(sorted(STYLES))), int(rng.integers(1, 6))
            inputs = corrupt(inputs, name, severity, rng)
            style = f"{name}-{severity}"
        held_out = min(round(config.test_fraction * len(labels)), len(labels) - 1)
        return ClientData(
            name=f"client-{index:0{len(str(config.clients - 1))}d}",
            role=TRAIN,
            fit=Split(inputs[held_out:], labels[held_out:]),
            test=Split(inputs[:held_out], labels[:held_out]),
            classes=self.classes,
            truth=GroundTruth(concept, style),
        )

    def _observer(self, index: int) -> ClientData:
        """The balanced test set under one concept: half to find its weights, half to be judged."""
        config = self._config
        data = load_dataset(config.dataset)
        concept = index // config.observers_per_concept
        labels = concept_map(concept, self.classes, config.seed)[data.test_labels]
        # Both halves hold every class alike: every other sample of each class.
        order = np.argsort(data.test_labels, kind="stable")
        fit, test = order[index % 2 :: 2], order[1 - index % 2 :: 2]
        return ClientData(
            name=f"observer-{index}",
            role=OBSERVE,
            fit=Split(data.test_inputs[fit], labels[fit]),
            test=Split(data.test_inputs[test], labels[test]),
            classes=self.classes,
            truth=GroundTruth(concept, "none"),
        )

    def _whole_plan(self) -> Plan:
        if self._plan is None:
            config = self._config
            rng = np.random.default_rng([config.seed, 0x5B117])
            parts = dirichlet_split(
                load_dataset(config.dataset).train_labels,
                config.clients,
                config.samples_per_client,
                config.alpha,
                rng,
            )
            concepts, corrupted = assign_concepts(
                config.shares(), config.corrupted(), config.clients, rng
            )
            self._plan = Plan(parts, concepts, corrupted)
        return self._plan


@lru_cache(maxsize=2)
def scenario_of(config: RunConfig) -> Scenario:
    """The scenario of a configuration, built once per process."""
    return Scenario(config)
