"""Exported models in a process that has torch or onnxruntime, and nothing of this package."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from trained_run import drawn_checkpoint, write_run

from fedrc_flwr.data.schema import plain_schema
from fedrc_flwr.errors import CheckpointError, ConfigError
from fedrc_flwr.inference import (
    Batch,
    Trained,
    Weights,
    export_model,
    load_exported,
    load_trained,
    predict,
)

VALUES = np.array([0.2, 0.5, 0.3])
#: Mixture weights by number of clusters.
WEIGHTS = {1: np.ones(1), 3: VALUES}
NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "cnn with a shared body": {"shared_body": True, "network": "cnn"},
    "resnet18 with GroupNorm": {
        "network": "resnet18", "norm": "group", "small_stem": True, "input_shape": (3, 8, 8),
        "clusters": 1,
    },
}  # fmt: skip

SUFFIXES = (".pt2", ".onnx")
ALONE = """
    import sys
    sys.path = [p for p in sys.path if p.startswith(sys.base_prefix)] + [{packages!r}]
    for name in {blocked!r}:
        sys.modules[name] = None  # importing it raises
    import numpy
    {load}
    for folder in {folders!r}:
        inputs = numpy.load(folder + "/inputs.npy")
        run = load(folder + "/model{suffix}")
        answers = [run(inputs[:n]) for n in (1, 2, len(inputs))]
        numpy.savez(folder + "/{suffix}.npz", one=answers[0], two=answers[1], all=answers[2])
"""
LOAD = {
    ".pt2": """
    import torch
    def load(path):
        module = torch.export.load(path).module()
        return lambda x: module(torch.from_numpy(x)).numpy()
""",
    ".onnx": """
    import onnxruntime
    def load(path):
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return lambda x: session.run(["probabilities"], dict(input=x))[0]
""",
}


def run_alone(folders: list[Path], suffix: str) -> None:
    """In a process of its own, ask the folders' models for 1, 2 and all of their samples."""
    blocked = ["fedrc_flwr", "flwr", *(["torch", "onnx"] if suffix == ".onnx" else ["onnxruntime"])]
    code = textwrap.dedent(ALONE).format(
        packages=str(Path(np.__file__).parents[1]), blocked=blocked, suffix=suffix,
        folders=[str(folder) for folder in folders], load=textwrap.dedent(LOAD[suffix]).strip(),
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def answers(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[np.ndarray, Path]]:
    """Of each network what it ought to answer, and a folder with what its exported files did."""
    found = {}
    for name, settings in NETWORKS.items():
        folder = tmp_path_factory.mktemp("alone")
        trained = load_trained(write_run(folder / "run", drawn_checkpoint(**settings)))
        weights = Weights(trained.clusters, WEIGHTS[len(trained.clusters)])
        inputs = np.random.default_rng(1).random((7, *trained.input_shape), dtype=np.float32)
        np.save(folder / "inputs.npy", inputs)
        (expected,) = predict(trained, weights, [Batch(inputs, None)])
        for suffix in SUFFIXES:
            export_model(folder / f"model{suffix}", trained, weights, hard=False)
        found[name] = expected.probabilities, folder
    for suffix in SUFFIXES:
        run_alone([folder for _, folder in found.values()], suffix)
    return found


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("network", NETWORKS)
def test_exported_file_gives_the_same_probabilities_alone(
    network: str, suffix: str, answers: dict[str, tuple[np.ndarray, Path]]
) -> None:
    expected, folder = answers[network]

    with np.load(folder / f"{suffix}.npz") as found:
        for key, length in (("one", 1), ("two", 2), ("all", 7)):
            np.testing.assert_allclose(found[key], expected[:length], atol=1e-5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return load_trained(write_run(tmp_path_factory.mktemp("run"), drawn_checkpoint()))


@pytest.fixture(scope="module")
def exported(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with hard.pt2 and hard.onnx."""
    folder = tmp_path_factory.mktemp("exported")
    for suffix in (".pt2", ".onnx"):
        weights = Weights(trained.clusters, VALUES)
        export_model(folder / f"hard{suffix}", trained, weights, hard=True)
    return folder


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_hard_model_is_the_one_network_alone(suffix: str, trained: Trained, exported: Path) -> None:
    weights = Weights(trained.clusters, VALUES)
    inputs = np.random.default_rng(1).random((4, 8, 8), dtype=np.float32)
    (expected,) = predict(trained, weights, [Batch(inputs, None)], hard=True)

    path = exported / f"hard{suffix}"
    model = load_exported(path, trusted=[str(path)])

    np.testing.assert_allclose(model.probabilities(inputs), expected.probabilities, atol=1e-6)
    assert (model.input_shape, model.classes) == ((8, 8), 10)
    assert sorted(p.name for p in exported.iterdir()) == ["hard.onnx", "hard.pt2"]
    if suffix == ".onnx":
        tensors = onnx.load(exported / "hard.onnx").graph.initializer
        size = sum(int(np.prod(t.dims)) for t in tensors)
    else:
        tensors = torch.export.load(exported / "hard.pt2").state_dict.values()
        size = sum(t.numel() for t in tensors)
    assert 0 <= size - trained.state.models[1].size < 10


def refused(path: Path, *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_exported(path, trusted=[str(path)])
    for word in [path.name, *words]:
        assert word in str(caught.value)


def test_torn_missing_and_strange_files_are_refused(exported: Path, tmp_path: Path) -> None:
    for suffix in (".pt2", ".onnx"):
        content = (exported / f"hard{suffix}").read_bytes()
        (tmp_path / f"torn{suffix}").write_bytes(content[: len(content) // 2])
        refused(tmp_path / f"torn{suffix}", "torn")
    refused(tmp_path / "gone.onnx", "no such file")
    (tmp_path / "a.bin").write_bytes(b"1")
    refused(tmp_path / "a.bin", ".pt2 or .onnx")


@pytest.mark.parametrize(
    ("about", "words"),
    [
        (None, ["not written by fedrc export"]),
        ({"schema": 5}, ["schema 5", "reads schema 2"]),
        ({"schema": 2}, ["data_schema"]),
        ({"schema": 2, "data_schema": plain_schema((9, 9), 10).text()}, ["(9, 9)"]),
        ({"schema": 2, "data_schema": plain_schema((8, 8), 4).text()}, ["expected 4", "(1, 10)"]),
    ],
)
@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_description_that_does_not_fit_is_refused(
    suffix: str, about: dict[str, Any] | None, words: list[str], exported: Path, tmp_path: Path
) -> None:
    path = tmp_path / f"m{suffix}"
    shutil.copy(exported / f"hard{suffix}", path)
    text = {} if about is None else {"fedrc": json.dumps(about)}
    if suffix == ".onnx":
        content = onnx.load(path)
        del content.metadata_props[:]
        onnx.helper.set_model_props(content, text)
        onnx.save(content, path)
    else:
        program = torch.export.load(path)
        torch.export.save(program, path, extra_files=text)

    refused(path, *words)


def test_name_of_another_form_is_refused(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.tflite.*\.pt2 or \.onnx"):
        export_model(tmp_path / "model.tflite", trained, Weights((0, 1, 2), VALUES), hard=False)
