"""Datasets by name, loaded once per process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Dataset:
    """Inputs (N, ...) as float32, labels (N,), and the part held back for observers."""

    train_inputs: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test_inputs: NDArray[np.float32]
    test_labels: NDArray[np.int64]


def _digits() -> Dataset:
    """The 1,797 8 x 8 digits inside scikit-learn; a fifth of each class is the test set."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    inputs = (bunch.images / 16.0).astype(np.float32)
    labels = bunch.target.astype(np.int64)
    order = np.random.default_rng(0xD161).permutation(len(labels))
    per_class = 36
    test = np.concatenate([order[labels[order] == c][:per_class] for c in range(10)])
    train = np.setdiff1d(order, test)
    return Dataset(inputs[train], labels[train], inputs[test], labels[test])


@dataclass(frozen=True)
class DatasetSpec:
    """What a server must know of a dataset, without having it."""

    classes: int
    input_shape: tuple[int, ...]
    load: Callable[[], Dataset]


DATASETS = {"digits": DatasetSpec(classes=10, input_shape=(8, 8), load=_digits)}


@cache
def load_dataset(name: str) -> Dataset:
    """The named dataset."""
    return DATASETS[name].load()
