"""A client's model as one file that does not need this package: torch.export or ONNX."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import os
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedrc_flwr.data.schema import parse_schema
from fedrc_flwr.errors import CheckpointError, ConfigError, DataError
from fedrc_flwr.files import replacing
from fedrc_flwr.inference.personalised import Personal, personal_module, torch_runner
from fedrc_flwr.inference.trained import Trained
from fedrc_flwr.inference.weights import Weights

SCHEMA = 2
ABOUT = "fedrc"  # the name of the description within the file
INPUT, PROBABILITIES = "input", "probabilities"
SUFFIXES = (".pt2", ".onnx")


def export_model(path: Path, trained: Trained, weights: Weights, hard: bool) -> None:
    """Write one client's model; its first axis, the batch, may have any length.

    Parameters
    ----------
    path : ends in ``.pt2`` (torch.export) or ``.onnx``
    hard : the likeliest cluster alone instead of the mixture
    """
    check_export(path)
    module = personal_module(trained, weights, hard).cpu()
    about = {
        "schema": SCHEMA,
        "data_schema": trained.schema.text(),
        "round": trained.state.round,
        "hard": hard,
        "clusters": list(weights.clusters),
        "mixture_weights": weights.values.tolist(),
    }
    # Two samples: a batch of one would be taken for a fixed length.
    example = (torch.zeros(2, *trained.input_shape),)
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    try:
        with replacing(path) as beside, _quiet():
            if path.suffix == ".onnx":
                _write_onnx(beside, module, example, shapes, about)
            else:
                program = torch.export.export(module, example, dynamic_shapes=shapes)
                torch.export.save(program, beside, extra_files={ABOUT: json.dumps(about)})
    except OSError as error:
        raise ConfigError(f"--out {path}: {error}") from None


def check_export(path: Path) -> None:
    """Refuse an unknown suffix, or a format whose packages are missing."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"--out {path}: expected a name that ends in {' or '.join(SUFFIXES)}")
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if path.suffix == ".onnx" and missing:
        raise ConfigError(
            f'--out {path}: ONNX needs {", ".join(missing)}: pip install "fedrc-flwr[export]"'
        )


def load_exported(path: Path, trusted: Collection[str] = ()) -> Personal:
    """Load a file that ``export_model`` wrote, to be run by torch or onnxruntime.

    torch reads parts of a .pt2 file as pickles, which may execute anything. Such a file is refused
    unless its path is among ``trusted``.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file: expected a model by fedrc export")
    if path.suffix not in SUFFIXES:
        raise CheckpointError(
            f"{path}: expected a run's directory, a .safetensors checkpoint, or an exported "
            f"{' or '.join(SUFFIXES)} file"
        )
    if path.suffix == ".onnx":
        return _load_onnx(path)
    if os.fspath(path) not in trusted:
        raise CheckpointError(
            f"{path}: torch reads parts of a .pt2 file as pickles, which may execute anything. If "
            f"you trust whoever made it, pass --trust-code {path} (in Python, trusted=[...]), or "
            "use a .onnx file"
        )
    return _load_torch(path)


def _write_onnx(
    path: Path, module: torch.nn.Module, example: Any, shapes: Any, about: dict[str, Any]
) -> None:
    program = torch.onnx.export(
        module, example, dynamo=True, dynamic_shapes=shapes, input_names=[INPUT],
        output_names=[PROBABILITIES], verbose=False,
    )  # fmt: skip
    if program is None:
        raise ConfigError("torch.onnx gave no program: use .pt2 instead")
    program.model.metadata_props[ABOUT] = json.dumps(about)
    program.save(path, external_data=False)


def _load_torch(path: Path) -> Personal:
    files = {ABOUT: ""}
    try:
        with _quiet():
            module = torch.export.load(path, extra_files=files).module()
    except Exception as error:  # torch raises various errors for a truncated file
        raise CheckpointError(f"{path}: torn or not a torch.export file ({error})") from None
    about = _about(files[ABOUT], path)
    run = torch_runner(module, torch.device("cpu"))
    return _checked(path, about, run, "pytorch_export")


def _load_onnx(path: Path) -> Personal:
    try:
        import onnxruntime
    except ImportError:
        raise ConfigError(
            f'{path}: ONNX needs onnxruntime: pip install "fedrc-flwr[export]"'
        ) from None
    try:
        session = onnxruntime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's error classes are not public
        raise CheckpointError(f"{path}: torn or not an ONNX file ({error})") from None
    about = _about(session.get_modelmeta().custom_metadata_map.get(ABOUT, ""), path)

    def run(inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        probabilities: NDArray[np.float32] = session.run([PROBABILITIES], {INPUT: inputs})[0]
        return probabilities

    return _checked(path, about, run, "onnx_onnxv1")


def _about(text: str | bytes, path: Path) -> dict[str, Any]:
    try:
        about = json.loads(text)
    except ValueError:
        raise CheckpointError(
            f"{path}: not written by fedrc export: expected its description within, found none"
        ) from None
    if about.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{path}: schema {about.get('schema')}, but this version reads schema {SCHEMA}"
        )
    return dict(about)


def _checked(path: Path, about: dict[str, Any], run: Any, platform: str) -> Personal:
    """The model, once it has answered for one sample of zeros as its description says."""
    try:
        schema = parse_schema(str(about["data_schema"]), str(path))
    except (KeyError, DataError) as error:
        raise CheckpointError(f"{path}: its description cannot be used: {error}") from None
    shape, classes = schema.input_shape, len(schema.classes)
    try:
        found = run(np.zeros((1, *shape), dtype=np.float32)).shape
    except Exception as error:  # runtimes raise various errors for a wrong shape
        raise CheckpointError(f"{path}: does not take inputs of shape {shape} ({error})") from None
    if found != (1, classes):
        raise CheckpointError(f"{path}: expected {classes} probabilities per sample, found {found}")
    return Personal(schema, run, platform)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters' logs and warnings; errors are still raised."""
    level = logging.getLogger("torch.onnx").level
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        try:
            yield
        finally:
            logging.getLogger("torch.onnx").setLevel(level)
