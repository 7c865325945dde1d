"""Datasets by name, loaded once per process."""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from fedrc_flwr.data import images, tabular
from fedrc_flwr.data.base import Dataset, DatasetSpec
from fedrc_flwr.data.corruptions import STYLES

__all__ = ["DATASETS", "Dataset", "DatasetSpec", "load_dataset"]


def _digits(directory: Path) -> Dataset:
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


DATASETS = {
    "digits": DatasetSpec(10, (8, 8), _digits, styles=tuple(sorted(STYLES)), samples=(1_437, 360)),
    "fashion-mnist": DatasetSpec(10, (28, 28), images.fashion_mnist, samples=(60_000, 10_000)),
    "cifar10": DatasetSpec(10, (3, 32, 32), partial(images.cifar, 10), samples=(50_000, 10_000)),
    "cifar100": DatasetSpec(100, (3, 32, 32), partial(images.cifar, 100), samples=(50_000, 10_000)),
    "tiny-imagenet": DatasetSpec(
        200, images.TINY_SHAPE, images.tiny_imagenet, samples=(100_000, 10_000)
    ),
    "electricity": DatasetSpec(
        2, (len(tabular.ELECTRICITY),), tabular.electricity, test_sets=2, samples=(37_636, 7_676)
    ),
    "airline": DatasetSpec(
        2, (tabular.AIRLINE_SIZE,), tabular.airline, test_sets=2, samples=(41_632, 8_850)
    ),
}


@lru_cache(maxsize=4)
def load_dataset(name: str, data_dir: str = "") -> Dataset:
    """The named dataset, looked for in a directory where it is not embedded."""
    return DATASETS[name].load(Path(data_dir).expanduser().absolute())
