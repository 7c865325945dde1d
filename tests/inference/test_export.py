"""Exported models in a process that has torch or onnxruntime, and nothing of this package."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from trained_run import drawn_checkpoint, write_run

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
NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "cnn": {"model": "cnn"},
    "shared body": {"shared_body": True, "model": "cnn"},
    "resnet18 with GroupNorm": {
        "model": "resnet18", "norm": "group", "small_stem": True, "input_shape": (3, 8, 8)
    },
    "mobilenet with BatchNorm": {
        "model": "mobilenet-v2", "norm": "batch", "small_stem": True, "input_shape": (3, 8, 8)
    },
}  # fmt: skip

ALONE = """
    import sys
    sys.path = [p for p in sys.path if p.startswith(sys.base_prefix)] + [{packages!r}]
    for name in {blocked!r}:
        sys.modules[name] = None  # importing it raises
    import numpy
    inputs = numpy.load({inputs!r})
    {load}
    answers = [run(inputs[:n]) for n in (1, 2, len(inputs))]
    numpy.savez({outputs!r}, one=answers[0], two=answers[1], all=answers[2])
"""
WITH_TORCH = """
    import torch
    module = torch.export.load({model!r}).module()
    run = lambda x: module(torch.from_numpy(x)).numpy()
"""
WITH_ONNX = """
    import onnxruntime
    session = onnxruntime.InferenceSession({model!r}, providers=["CPUExecutionProvider"])
    run = lambda x: session.run(["probabilities"], {{"input": x}})[0]
"""


def run_alone(model: Path, inputs: np.ndarray) -> dict[str, np.ndarray]:
    """Ask an exported model in a process of its own for 1, 2 and all samples."""
    folder = model.parent
    np.save(folder / "inputs.npy", inputs)
    is_onnx = model.suffix == ".onnx"
    load = textwrap.dedent(WITH_ONNX if is_onnx else WITH_TORCH).format(model=str(model))
    blocked = ["fedrc_flwr", "flwr", *(["torch", "onnx"] if is_onnx else ["onnxruntime"])]
    code = textwrap.dedent(ALONE).replace("{load}", load.strip()).format(
        packages=sysconfig.get_paths()["purelib"], blocked=blocked,
        inputs=str(folder / "inputs.npy"), outputs=str(folder / "outputs.npz"),
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with np.load(folder / "outputs.npz") as content:
        return dict(content)


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
@pytest.mark.parametrize("network", NETWORKS)
def test_exported_file_gives_the_same_probabilities_alone(
    network: str, suffix: str, tmp_path: Path
) -> None:
    trained = load_trained(write_run(tmp_path / "run", drawn_checkpoint(**NETWORKS[network])))
    weights = Weights(trained.clusters, VALUES)
    inputs = np.random.default_rng(1).random((7, *trained.input_shape), dtype=np.float32)
    (expected,) = predict(trained, weights, [Batch(inputs, None)])

    export_model(tmp_path / f"model{suffix}", trained, weights, hard=False)
    found = run_alone(tmp_path / f"model{suffix}", inputs)

    for key, length in (("one", 1), ("two", 2), ("all", 7)):
        np.testing.assert_allclose(found[key], expected.probabilities[:length], atol=1e-5)


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    return load_trained(write_run(tmp_path / "run", drawn_checkpoint()))


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_hard_model_is_the_one_network_alone_and_a_third_as_large(
    suffix: str, trained: Trained, tmp_path: Path
) -> None:
    weights = Weights(trained.clusters, VALUES)
    inputs = np.random.default_rng(1).random((4, 8, 8), dtype=np.float32)
    (expected,) = predict(trained, weights, [Batch(inputs, None)], hard=True)

    for hard in (True, False):
        export_model(tmp_path / f"{hard}{suffix}", trained, weights, hard)
    model = load_exported(tmp_path / f"True{suffix}")

    np.testing.assert_allclose(model.probabilities(inputs), expected.probabilities, atol=1e-6)
    assert (model.input_shape, model.classes) == ((8, 8), 10)
    sizes = [(tmp_path / f"{hard}{suffix}").stat().st_size for hard in (True, False)]
    parameters = 4 * sum(v.size for v in trained.state.models.values())
    assert sizes[1] - sizes[0] > 0.6 * parameters
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"False{suffix}", f"True{suffix}", "run"]


def refused(path: Path, *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_exported(path)
    for word in [path.name, *words]:
        assert word in str(caught.value)


def test_exported_files_that_do_not_fit_are_refused(trained: Trained, tmp_path: Path) -> None:
    weights = Weights(trained.clusters, VALUES)
    for suffix in (".pt2", ".onnx"):
        path = tmp_path / f"torn{suffix}"
        export_model(path, trained, weights, hard=True)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        refused(path, "torn")
    refused(tmp_path / "gone.onnx", "no such file")
    (tmp_path / "a.bin").write_bytes(b"1")
    refused(tmp_path / "a.bin", ".pt2 or .onnx")


@pytest.mark.parametrize(
    ("about", "words"),
    [
        (None, ["not written by fedrc export"]),
        ({"schema": 5}, ["schema 5", "reads schema 1"]),
        ({"schema": 1, "input_shape": [9, 9], "classes": 10}, ["(9, 9)"]),
        ({"schema": 1, "input_shape": [8, 8], "classes": 4}, ["expected 4", "(1, 10)"]),
    ],
)
@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_description_that_does_not_fit_is_refused(
    suffix: str, about: dict[str, Any] | None, words: list[str], trained: Trained, tmp_path: Path
) -> None:
    path = tmp_path / f"m{suffix}"
    export_model(path, trained, Weights(trained.clusters, VALUES), hard=True)
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
