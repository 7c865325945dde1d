"""A scenario: which client holds what. A client's data is a pure function of (config, index)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.config import RunConfig
from fedrc_flwr.data.base import Dataset, as_floats
from fedrc_flwr.data.concepts import assign_concepts, concept_map, flip_labels
from fedrc_flwr.data.corruptions import corrupt, styles_for
from fedrc_flwr.data.datasets import DATASETS, load_dataset
from fedrc_flwr.data.own import own_spec
from fedrc_flwr.data.partition import split_samples
from fedrc_flwr.errors import DataError

#: The configuration keys on which a client's data depends.
SCENARIO_KEYS = (
    "seed", "dataset", "data_dir", "classes", "input_shape", "clients", "samples_per_client",
    "split", "alpha", "min_samples", "copies", "mix", "concept_shares", "corrupted_shares",
    "test_fraction", "label_noise", "label_noise_rate", "observers_per_concept", "observer_data",
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
    """What only evaluation and pictures may see; concept -1 where it is not known."""

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
class Outline:
    """One client without its inputs.

    Parameters
    ----------
    labels : (N,), the test part first
    fit, test : how many samples each part has
    """

    name: str
    role: str
    labels: NDArray[np.int64]
    fit: int
    test: int
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
        self._spec = spec = DATASETS.get(config.dataset) or own_spec(config)
        self.classes = spec.classes
        self.input_shape = spec.input_shape
        self.clients = config.clients
        self.observers = len(config.shares()) * spec.test_sets * config.observers_per_concept
        #: Whether the data says itself who holds what.
        self.grouped = bool(spec.owners)
        if self.grouped:
            self.observers = sum(owner.observer for owner in spec.owners)
            self.clients = len(spec.owners) - self.observers

    def __len__(self) -> int:
        return self.clients + self.observers

    def client(self, index: int) -> ClientData:
        """The data of one client."""
        if not 0 <= index < len(self):
            raise DataError(
                f"client {index}: the scenario has {self.clients} training clients and "
                f"{self.observers} observers, indices 0 to {len(self) - 1}"
            )
        if self.grouped:
            return self._owner(index)
        if index < self.clients:
            return self._training_client(index)
        return self._observer(index - self.clients)

    def _dataset(self) -> Dataset:
        config = self._config
        if config.dataset in DATASETS:
            return load_dataset(config.dataset, config.data_dir)
        return self._spec.load(Path())

    def outline(self, index: int) -> Outline:
        """What one client holds, without building its inputs."""
        if self.grouped or index >= self.clients:
            data = self.client(index)
            parts = [data.test.labels, data.fit.labels]
            same = data.role == OBSERVE and self._config.observer_data == "same"
            labels = parts[0] if same else np.concatenate(parts)
            return Outline(data.name, data.role, labels, len(data.fit), len(data.test), data.truth)
        labels, truth, _ = self._training_facts(index)
        test = self._held_out(TRAIN, len(labels))
        name = self._training_name(index)
        return Outline(name, TRAIN, labels, len(labels) - test, test, truth)

    def _training_client(self, index: int) -> ClientData:
        labels, truth, rng = self._training_facts(index)
        inputs = as_floats(self._dataset().train_inputs[self._whole_plan().parts[index]])
        if truth.style != "none":
            if not (inputs.min() >= 0 and inputs.max() <= 1):
                raise DataError(
                    f"dataset = {self._config.dataset!r}: corruptions need pixels from 0 to 1 or "
                    "bytes: scale them, or set every corrupted share to 0"
                )
            name, _, severity = truth.style.rpartition("-")
            inputs = corrupt(inputs, name, int(severity), rng)
        return self._put_together(self._training_name(index), TRAIN, Split(inputs, labels), truth)

    def _training_facts(
        self, index: int
    ) -> tuple[NDArray[np.int64], GroundTruth, np.random.Generator]:
        """Labels and truth of a training client, and the generator for its images."""
        config, plan = self._config, self._whole_plan()
        rng = np.random.default_rng([config.seed, index, 0xDA7A])
        concept = int(plan.concepts[index])
        true_labels = self._dataset().train_labels[plan.parts[index]]
        labels = flip_labels(
            concept_map(concept, self.classes, config.seed)[true_labels],
            config.label_noise,
            config.label_noise_rate,
            self.classes,
            np.random.default_rng([config.seed, index, 0xF11B]),
        )
        style = "none"
        if plan.corrupted[index]:
            names = self._spec.styles or sorted(styles_for(self.input_shape))
            style = f"{rng.choice(names)}-{rng.integers(1, 6)}"
        return labels, GroundTruth(concept, style), rng

    def _training_name(self, index: int) -> str:
        return f"client-{index:0{len(str(self.clients - 1))}d}"

    def _observer(self, index: int) -> ClientData:
        """A balanced test set under one concept."""
        config, data = self._config, self._dataset()
        concept, place = divmod(index, self._spec.test_sets * config.observers_per_concept)
        test_set = place // config.observers_per_concept
        rows = (
            np.arange(len(data.test_labels))
            if data.test_sets is None
            else np.flatnonzero(data.test_sets == test_set)
        )
        if len(rows) < 2:
            raise DataError(
                f"dataset = {config.dataset!r}: too few samples are held back for observers: give "
                "more, or set observers-per-concept to 0"
            )
        # Both halves hold every class alike: every other sample of each class.
        order = rows[np.argsort(data.test_labels[rows], kind="stable")]
        fit, test = order[index % 2 :: 2], order[1 - index % 2 :: 2]
        if config.observer_data == "same":
            fit = test = order
        labels = concept_map(concept, self.classes, config.seed)[data.test_labels]
        return ClientData(
            name=f"observer-{index}",
            role=OBSERVE,
            fit=Split(as_floats(data.test_inputs[fit]), labels[fit]),
            test=Split(as_floats(data.test_inputs[test]), labels[test]),
            classes=self.classes,
            truth=GroundTruth(concept, "none" if data.test_sets is None else f"period-{test_set}"),
        )

    def _owner(self, index: int) -> ClientData:
        """A client of data that says itself who holds what: shuffled, otherwise as it is."""
        config, data, owner = self._config, self._dataset(), self._spec.owners[index]
        rows = np.random.default_rng([config.seed, index, 0x0E2]).permutation(owner.rows)
        return self._put_together(
            owner.name,
            OBSERVE if owner.observer else TRAIN,
            Split(as_floats(data.train_inputs[rows]), data.train_labels[rows]),
            GroundTruth(owner.concept, owner.style),
        )

    def _put_together(self, name: str, role: str, whole: Split, truth: GroundTruth) -> ClientData:
        """A client whose first samples are kept for its accuracy."""
        held_out = self._held_out(role, len(whole))
        test = Split(whole.inputs[:held_out], whole.labels[:held_out])
        fit = Split(whole.inputs[held_out:], whole.labels[held_out:])
        if role == OBSERVE and self._config.observer_data == "same":
            test = fit = whole
        return ClientData(name, role, fit, test, self.classes, truth)

    def _held_out(self, role: str, samples: int) -> int:
        """How many samples are kept for accuracy; at least one is left to fit."""
        fraction = self._config.test_fraction if role == TRAIN else 0.5
        return min(round(fraction * samples), samples - 1)

    def _whole_plan(self) -> Plan:
        if self._plan is None:
            config = self._config
            rng = np.random.default_rng([config.seed, 0x5B117])
            labels = self._dataset().train_labels
            parts = split_samples(
                np.tile(labels, config.copies),
                config.split,
                config.clients,
                config.samples_per_client,
                config.alpha,
                config.min_samples,
                rng,
            )
            concepts, corrupted = assign_concepts(
                config.shares(), config.corrupted(), config.clients, rng
            )
            self._plan = Plan([part % len(labels) for part in parts], concepts, corrupted)
        return self._plan


@lru_cache(maxsize=2)
def scenario_of(config: RunConfig) -> Scenario:
    """The scenario of a configuration, built once per process."""
    return Scenario(config)


def node_config(config: RunConfig, dataset: str, role: str) -> RunConfig:
    """The configuration under which a node reads a file of its own: nothing is split or shifted.

    The run's classes and input shape hold for it too.
    """
    run = scenario_of(config)
    return replace(
        config,
        dataset=dataset,
        data_dir="",
        classes=run.classes,
        input_shape=",".join(str(size) for size in run.input_shape),
        clients=1,
        samples_per_client=0,
        split="iid",
        copies=1,
        mix="shares",
        concept_shares="1",
        corrupted_shares="0",
        test_fraction=config.test_fraction if role == TRAIN else 0.5,
        label_noise="none",
        observers_per_concept=0,
    )


def node_client(config: RunConfig, index: int) -> ClientData:
    """The data of a node under ``node_config``: the whole file, unless it names several clients."""
    scenario = scenario_of(config)
    if scenario.grouped:
        return scenario.client(index)
    return replace(scenario.client(0), truth=GroundTruth(-1, "none"))
