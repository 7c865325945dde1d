"""Predictions for any number of samples, written to a file."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.data.schema import class_array
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.files import replacing
from fedrc_flwr.inference.samples import Batch
from fedrc_flwr.inference.trained import Trained
from fedrc_flwr.inference.weights import Weights
from fedrc_flwr.training import mix


@dataclass(frozen=True)
class Prediction:
    """What is predicted for a batch.

    Parameters
    ----------
    probabilities : (N, C)
    truth : (N,), the labels of the batch, if it has any; -1 where one is missing
    """

    probabilities: NDArray[np.float32]
    truth: NDArray[np.int64] | None

    @property
    def labels(self) -> NDArray[np.int64]:
        """The likeliest classes, (N,)."""
        likeliest: NDArray[np.int64] = self.probabilities.argmax(axis=1)
        return likeliest


def predict(
    trained: Trained, weights: Weights, batches: Iterable[Batch], hard: bool | None = None
) -> Iterator[Prediction]:
    """Predictions batch by batch, computed as the run's own evaluation computes them.

    Parameters
    ----------
    hard : the likeliest cluster alone instead of the mixture; None: as the run does
    """
    if hard is None:
        hard = runs_hard(trained)
    for batch in batches:
        mixed = mix(trained.log_probabilities(batch.inputs), weights.values, hard)
        yield Prediction(mixed.cpu().numpy(), batch.labels)


def runs_hard(trained: Trained) -> bool:
    """Whether the run itself predicts with the likeliest cluster alone."""
    return trained.algorithm.hard


@dataclass(frozen=True)
class Tally:
    """How many samples were predicted, and how many of those with a label rightly."""

    samples: int
    labelled: int
    right: int

    @property
    def accuracy(self) -> float | None:
        """Share of the labelled samples that are predicted rightly."""
        return self.right / self.labelled if self.labelled else None


def write_predictions(
    path: Path,
    predictions: Iterable[Prediction],
    classes: Sequence[str],
    probabilities: bool = True,
) -> Tally:
    """Write labels by name, and probabilities if wanted, as CSV, Parquet or .npz, as the path ends.

    CSV and Parquet are written as the predictions come; the file appears when it is complete.
    """
    samples = labelled = right = 0
    with _writer(path, tuple(classes), probabilities) as write:
        for prediction in predictions:
            write(prediction)
            samples += len(prediction.labels)
            if prediction.truth is not None:
                labelled += int((prediction.truth >= 0).sum())
                right += int((prediction.labels == prediction.truth).sum())
    return Tally(samples, labelled, right)


def check_output(path: Path) -> None:
    """Refuse an unknown suffix before anything is computed."""
    if path.suffix not in _WRITERS:
        raise ConfigError(f"--out {path}: expected a name that ends in {', '.join(_WRITERS)}")
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f'--out {path}: Parquet needs pyarrow: pip install "fedrc-flwr[parquet]"')


Write = Callable[[Prediction], None]


@contextmanager
def _writer(path: Path, classes: tuple[str, ...], probabilities: bool) -> Iterator[Write]:
    """A function that adds predictions to a file, which replaces ``path`` at the end."""
    check_output(path)
    try:
        with (
            replacing(path) as beside,
            _WRITERS[path.suffix](beside, class_array(classes), probabilities) as write,
        ):
            yield write
    except OSError as error:
        raise ConfigError(f"--out {path}: {error}") from None


@contextmanager
def _csv_writer(path: Path, names: NDArray[Any], probabilities: bool) -> Iterator[Write]:
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["label", *(_columns(names) if probabilities else [])])

        def write(prediction: Prediction) -> None:
            labels = names[prediction.labels].tolist()
            if not probabilities:
                rows.writerows([label] for label in labels)
                return
            pairs = zip(labels, prediction.probabilities.tolist(), strict=True)
            # Nine digits give back every float32.
            rows.writerows([label, *(f"{value:.9g}" for value in row)] for label, row in pairs)

        yield write


@contextmanager
def _parquet_writer(path: Path, names: NDArray[Any], probabilities: bool) -> Iterator[Write]:
    import pyarrow as arrow
    from pyarrow import parquet

    label = arrow.int64() if names.dtype.kind == "i" else arrow.string()
    columns = _columns(names) if probabilities else []
    schema = arrow.schema([("label", label), *((name, arrow.float32()) for name in columns)])
    with parquet.ParquetWriter(path, schema) as file:

        def write(prediction: Prediction) -> None:
            values: list[Any] = [names[prediction.labels].tolist()]
            values += list(prediction.probabilities.T[: len(columns)])
            file.write_table(arrow.table(values, schema=schema))

        yield write


@contextmanager
def _npz_writer(path: Path, names: NDArray[Any], probabilities: bool) -> Iterator[Write]:
    labels: list[NDArray[Any]] = []
    rows: list[NDArray[np.float32]] = []

    def write(prediction: Prediction) -> None:
        labels.append(names[prediction.labels])
        rows.append(prediction.probabilities)

    yield write
    arrays: dict[str, NDArray[Any]] = {"label": np.concatenate(labels)}
    if probabilities:
        arrays["probabilities"] = np.concatenate(rows)
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


_WRITERS = {".csv": _csv_writer, ".parquet": _parquet_writer, ".npz": _npz_writer}


def _columns(names: NDArray[Any]) -> list[str]:
    """A column of probabilities for each class."""
    return [f"p{name}" if names.dtype.kind == "i" else f"p_{name}" for name in names.tolist()]
