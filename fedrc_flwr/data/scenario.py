"""A scenario: which client holds what.

A client's data is a pure function of the settings, the seed and its index.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.data.base import Dataset, as_floats
from fedrc_flwr.data.concepts import assign_concepts, concept_map, draw_concepts, flip_labels
from fedrc_flwr.data.corruptions import corrupt, styles_for
from fedrc_flwr.data.datasets import DATASETS, load_dataset
from fedrc_flwr.data.own import ON_NODES, is_on_nodes, own_facts, own_spec
from fedrc_flwr.data.partition import split_samples
from fedrc_flwr.data.schema import plain_schema
from fedrc_flwr.data.settings import USUAL_CLIENTS, DataSettings
from fedrc_flwr.errors import DataError
from fedrc_flwr.plugins import is_reference
from fedrc_flwr.words import counted

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
    """For evaluation and pictures only; concept is -1 if unknown."""

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
    """All clients, each built when asked for.

    Training clients have the indices 0 to ``clients - 1``, observers follow.
    """

    def __init__(self, settings: DataSettings, seed: int) -> None:
        self.settings = settings
        self._seed = seed
        self._plan: Plan | None = None
        self._spec = spec = DATASETS.get(settings.dataset) or own_spec(settings)
        self.classes = spec.classes
        self.input_shape = spec.input_shape
        #: How raw samples become inputs, and the names of the classes.
        self.schema = spec.schema or plain_schema(spec.input_shape, spec.classes)
        self.own = settings.dataset not in DATASETS
        #: Whether every node of a deployment brings its own data, and there is none here.
        self.on_nodes = is_on_nodes(settings)
        self.clients = settings.clients or USUAL_CLIENTS
        self.observers = len(settings.shares()) * spec.test_sets * settings.observers_per_concept
        #: Whether the data names the owner of each sample.
        self.grouped = bool(spec.owners)
        if self.grouped:
            self.observers = sum(owner.observer for owner in spec.owners)
            self.clients = len(spec.owners) - self.observers

    def __len__(self) -> int:
        return self.clients + self.observers

    def smaller(self, scale: float) -> dict[str, int]:
        """The keys of the same federation with fewer clients of the same size."""
        if self.grouped:
            return {}
        settings, size = self.settings, self.settings.samples_per_client
        if not size and settings.split != "dirichlet-by-class":
            size = self.outline(0).fit + self.outline(0).test
        least = max(math.ceil(self.clients * scale), 2 * len(settings.shares()))
        return {"data.clients": min(self.clients, least), "data.samples-per-client": size}

    def sizes(self) -> tuple[int, int]:
        """About how many samples a training client and an observer have, without any file."""
        train, test = self._spec.samples
        if not train:
            first, last = self.outline(0), self.outline(len(self) - 1)
            return len(first.labels), len(last.labels) if self.observers else 0
        each = train * self.settings.copies // self.clients
        return self.settings.samples_per_client or each, test // self._spec.test_sets

    def client(self, index: int) -> ClientData:
        """The data of one client."""
        if not 0 <= index < len(self):
            raise DataError(
                f"client {index}: the scenario has {self.clients} training clients and "
                f"{counted(self.observers, 'observer')}, indices 0 to {len(self) - 1}"
            )
        if self.grouped:
            return self._owner(index)
        if index < self.clients:
            return self._training_client(index)
        return self._observer(index - self.clients)

    def _dataset(self) -> Dataset:
        settings = self.settings
        if settings.dataset in DATASETS:
            return load_dataset(settings.dataset, settings.directory)
        return self._spec.load(Path())

    def outline(self, index: int) -> Outline:
        """What one client holds, without building its inputs."""
        if self.grouped or index >= self.clients:
            data = self.client(index)
            parts = [data.test.labels, data.fit.labels]
            same = data.role == OBSERVE and self.settings.observer_data == "same"
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
                    f"data.dataset = {self.settings.dataset!r}: corruptions need pixels from 0 to "
                    "1 or bytes: scale them, or set every corrupted share to 0"
                )
            name, _, severity = truth.style.rpartition("-")
            inputs = corrupt(inputs, name, int(severity), rng)
        return self._put_together(self._training_name(index), TRAIN, Split(inputs, labels), truth)

    def _training_facts(
        self, index: int
    ) -> tuple[NDArray[np.int64], GroundTruth, np.random.Generator]:
        """Labels and truth of a training client, and the generator for its images."""
        settings, plan = self.settings, self._whole_plan()
        rng = np.random.default_rng([self._seed, index, 0xDA7A])
        concept = int(plan.concepts[index])
        true_labels = self._dataset().train_labels[plan.parts[index]]
        labels = flip_labels(
            concept_map(concept, self.classes, self._seed)[true_labels],
            settings.label_noise,
            settings.label_noise_rate,
            self.classes,
            np.random.default_rng([self._seed, index, 0xF11B]),
        )
        style = "none"
        if plan.corrupted[index]:
            style = f"{rng.choice(self._styles())}-{rng.integers(1, 6)}"
        return labels, GroundTruth(concept, style), rng

    def _styles(self) -> Sequence[str]:
        return self._spec.styles or sorted(styles_for(self.input_shape))

    def _training_name(self, index: int) -> str:
        return f"client-{index:0{len(str(self.clients - 1))}d}"

    def _observer(self, index: int) -> ClientData:
        """A balanced test set under one concept."""
        settings, data = self.settings, self._dataset()
        concept, place = divmod(index, self._spec.test_sets * settings.observers_per_concept)
        test_set = place // settings.observers_per_concept
        rows = (
            np.arange(len(data.test_labels))
            if data.test_sets is None
            else np.flatnonzero(data.test_sets == test_set)
        )
        if len(rows) < 2:
            raise DataError(
                f"data.dataset = {settings.dataset!r}: too few samples are held back for "
                "observers: give more, or set data.observers-per-concept to 0"
            )
        # Both halves have the same classes: every other sample of each class.
        order = rows[np.argsort(data.test_labels[rows], kind="stable")]
        fit, test = order[index % 2 :: 2], order[1 - index % 2 :: 2]
        if settings.observer_data == "same":
            fit = test = order
        labels = concept_map(concept, self.classes, self._seed)[data.test_labels]
        return ClientData(
            name=f"observer-{index}",
            role=OBSERVE,
            fit=Split(as_floats(data.test_inputs[fit]), labels[fit]),
            test=Split(as_floats(data.test_inputs[test]), labels[test]),
            classes=self.classes,
            truth=GroundTruth(concept, "none" if data.test_sets is None else f"period-{test_set}"),
        )

    def _owner(self, index: int) -> ClientData:
        """A client of data that names the owner of each sample: shuffled, otherwise unchanged."""
        data, owner = self._dataset(), self._spec.owners[index]
        rows = np.random.default_rng([self._seed, index, 0x0E2]).permutation(owner.rows)
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
        if role == OBSERVE and self.settings.observer_data == "same":
            test = fit = whole
        return ClientData(name, role, fit, test, self.classes, truth)

    def _held_out(self, role: str, samples: int) -> int:
        """How many samples are kept for accuracy; at least one is left to fit."""
        fraction = self.settings.test_fraction if role == TRAIN else 0.5
        return min(round(fraction * samples), samples - 1)

    def _whole_plan(self) -> Plan:
        if self._plan is None:
            settings = self.settings
            rng = np.random.default_rng([self._seed, 0x5B117])
            labels = self._dataset().train_labels
            parts = split_samples(
                np.tile(labels, settings.copies),
                settings.split,
                self.clients,
                settings.samples_per_client,
                settings.alpha,
                settings.min_samples,
                rng,
            )
            if settings.at_random():
                concepts, corrupted = draw_concepts(
                    len(settings.shares()), len(self._styles()), self.clients, rng
                )
            else:
                concepts, corrupted = assign_concepts(
                    settings.shares(), settings.corrupted(), self.clients, rng
                )
            self._plan = Plan([part % len(labels) for part in parts], concepts, corrupted)
        return self._plan


def scenario_of(settings: DataSettings, seed: int) -> Scenario:
    """The scenario of these settings, built once per process and again if the file has changed."""
    return _scenario(settings, seed, tuple(own_facts(settings)))


@lru_cache(maxsize=2)
def _scenario(settings: DataSettings, seed: int, facts: tuple[int, ...]) -> Scenario:
    return Scenario(settings, seed)


def beside_own(settings: DataSettings) -> DataSettings:
    """The same for a node with data of its own, which opens no file that a run names.

    Left as it is where the run is on a ready-made dataset, or does not tell the shapes.
    """
    told = settings.schema or (settings.classes and settings.input_shape)
    if settings.dataset in DATASETS or is_reference(settings.dataset) or not told:
        return settings
    return replace(settings, dataset=ON_NODES, directory="")


def node_settings(settings: DataSettings, seed: int, dataset: str, role: str) -> DataSettings:
    """The settings under which a node reads a file of its own: nothing is split or shifted.

    Classes and input shape are those of the run.
    """
    run = scenario_of(settings, seed)
    plain = plain_schema(run.input_shape, run.classes)
    return replace(
        settings,
        dataset=dataset,
        directory="",
        schema="" if run.schema == plain else run.schema.text(),
        classes=run.classes,
        input_shape=",".join(str(size) for size in run.input_shape),
        clients=1,
        samples_per_client=0,
        split="iid",
        copies=1,
        mix="shares",
        concept_shares="1",
        corrupted_shares="0",
        test_fraction=settings.test_fraction if role == TRAIN else 0.5,
        label_noise="none",
        observers_per_concept=0,
    )


def node_client(settings: DataSettings, seed: int, index: int) -> ClientData:
    """The data of a node under ``node_settings``: all of it, unless it names several clients.

    What it says about concept and style stays on the node.
    """
    scenario = scenario_of(settings, seed)
    client = scenario.client(index if scenario.grouped else 0)
    return replace(client, truth=GroundTruth(-1, "none"))
