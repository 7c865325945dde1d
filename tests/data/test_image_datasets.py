"""Image datasets: the usual files are read, broken and missing ones are told with a way out."""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import tiny_data

from fedrc_flwr.data import images
from fedrc_flwr.data.datasets import DATASETS
from fedrc_flwr.errors import DataError


@pytest.mark.parametrize("ending", [".gz", ""])
def test_idx_files_are_read_compressed_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(images, "DEBIAN", tmp_path / "none")
    tiny_data.fashion_mnist(tmp_path, ending)
    pixels = np.arange(200 * 784).reshape(200, 28, 28) % 251
    tiny_data.write_idx(tmp_path / f"train-images-idx3-ubyte{ending}", pixels)

    data = images.fashion_mnist(tmp_path)

    assert data.train_inputs.dtype == np.uint8
    np.testing.assert_array_equal(data.train_inputs, pixels)
    assert np.bincount(data.test_labels).tolist() == [4] * 10


def test_installed_package_is_found_without_a_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "DEBIAN", tmp_path / "debian")
    tiny_data.fashion_mnist(tmp_path / "debian")

    data = images.fashion_mnist(tmp_path / "nowhere")

    assert data.train_inputs.shape == (200, 28, 28)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fashion-mnist", ["dataset-fashion-mnist", "torchvision", "debian"]),
        ("cifar10", ["cifar-10-batches-py", "torchvision.datasets.CIFAR10"]),
        ("cifar100", ["cifar-100-python", "torchvision.datasets.CIFAR100"]),
        ("tiny-imagenet", ["tiny-imagenet-200"]),
        ("electricity", ["elec*.csv"]),
        ("airline", ["airline*.csv"]),
    ],
)
def test_missing_data_is_told_with_where_it_was_looked_for_and_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: list[str]
) -> None:
    monkeypatch.setattr(images, "DEBIAN", tmp_path / "debian")

    with pytest.raises(DataError) as refusal:
        DATASETS[name].load(tmp_path)

    for word in [*words, name, str(tmp_path), "data.directory"]:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    "content",
    [
        b"no gzip",
        gzip.compress(b""),
        gzip.compress(b"\0\0\x08\x03" + b"\0\0\0\x02" * 3 + b"short"),
        gzip.compress(b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0"),
        gzip.compress(b"\0\0\x08\x01\0\0\0\x02\0\0")[:-4],
    ],
    ids=["no-gzip", "empty", "cut-short", "of-floats", "torn"],
)
def test_broken_idx_file_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(images, "DEBIAN", tmp_path)
    tiny_data.fashion_mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(content)

    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte.gz"):
        images.fashion_mnist(tmp_path)


def test_cifar_images_have_their_channels_first(tmp_path: Path) -> None:
    tiny_data.cifar(tmp_path, 10)
    row = np.concatenate([np.full(1024, value, dtype=np.uint8) for value in (1, 2, 3)])
    content = {"data": np.tile(row, (10, 1)), "labels": list(range(10))}
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(content, 2))

    data = images.cifar(10, tmp_path)

    assert data.train_inputs.shape == (100, 3, 32, 32)
    assert data.test_inputs[0, :, 5, 5].tolist() == [1, 2, 3]


class Program:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("true",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps({"data": Program(), "labels": []}, 2), "system"),
        (b"no pickle", "not a CIFAR batch"),
        (pickle.dumps({"data": np.zeros((1, 3072), np.uint8)}, 2), "labels"),
        (pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}, 2), "fit together"),
    ],
    ids=["a-program", "no-pickle", "no-labels", "label-outside"],
)
def test_cifar_batch_that_is_none_is_refused_and_runs_nothing(
    tmp_path: Path, content: bytes, words: str
) -> None:
    tiny_data.cifar(tmp_path, 10)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(content)

    with pytest.raises(DataError, match=f"data_batch_3.*{words}"):
        images.cifar(10, tmp_path)


def test_tiny_imagenet_is_decoded_once_and_mapped_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_data.tiny_imagenet(tmp_path)
    first = images.tiny_imagenet(tmp_path)
    monkeypatch.setattr(images, "read_image", None)

    again = images.tiny_imagenet(tmp_path)

    assert isinstance(again.train_inputs, np.memmap)
    np.testing.assert_array_equal(again.train_inputs, first.train_inputs)
    assert again.train_labels.tolist() == again.test_labels.tolist() == list(range(200))
    assert abs(int(again.train_inputs[150, 0, 9, 9]) - 150) < 4
