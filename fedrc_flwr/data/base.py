"""A dataset: its arrays, and its description for those who do not have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.data.schema import Schema


@dataclass(frozen=True)
class Owner:
    """One client of a dataset that names the owner of each sample.

    Parameters
    ----------
    rows : which of the training samples are this client's
    concept : -1 if unknown
    """

    name: str
    observer: bool
    rows: NDArray[np.int64]
    concept: int
    style: str


@dataclass(frozen=True)
class Dataset:
    """Samples, labels, and the part that is held back for observers.

    Parameters
    ----------
    train_inputs : (N, ...), float32, or uint8 for images; colour images are (N, 3, H, W)
    train_labels : (N,)
    test_sets : (M,), which test set each test sample belongs to; None: there is only one
    owners : as in DatasetSpec
    """

    train_inputs: NDArray[Any]
    train_labels: NDArray[np.int64]
    test_inputs: NDArray[Any]
    test_labels: NDArray[np.int64]
    test_sets: NDArray[np.int64] | None = None
    owners: tuple[Owner, ...] = ()


@dataclass(frozen=True)
class DatasetSpec:
    """What a server needs to know about a dataset that it does not have.

    Parameters
    ----------
    load : reads the dataset; gets the directory to look in
    test_sets : how many test sets there are, one per observer
    styles : the corruptions that its clients may get; empty: all that fit its images
    owners : the clients, training ones first, where the dataset is not to be split
    schema : how its raw samples become inputs, and the names of its classes; None: nothing is
        done, and classes have numbers
    samples : how many there are for training and for observers; 0: known once it is loaded
    """

    classes: int
    input_shape: tuple[int, ...]
    load: Callable[[Path], Dataset]
    test_sets: int = 1
    styles: tuple[str, ...] = ()
    owners: tuple[Owner, ...] = ()
    schema: Schema | None = None
    samples: tuple[int, int] = (0, 0)


def as_floats(inputs: NDArray[Any]) -> NDArray[np.float32]:
    """A client's samples as float32; bytes become numbers from 0 to 1."""
    if inputs.dtype == np.uint8:
        return inputs.astype(np.float32) / np.float32(255)
    return inputs.astype(np.float32, copy=False)
