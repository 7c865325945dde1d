"""Samples in memory as the user has them: arrays, tensors, tables, rows by column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.data.base import as_floats
from fedrc_flwr.data.schema import Schema
from fedrc_flwr.errors import DataError


def samples_of(schema: Schema, x: Any) -> NDArray[np.float32]:
    """Samples as ``Personal`` takes them, (N, ...): rows of a table encoded, arrays as they are.

    Parameters
    ----------
    x : an array or a tensor; where the models were trained on a table, a table, or a list of rows
        by column
    """
    if schema.is_table:
        return schema.features(table_of(x))
    found, shape = as_array(x), schema.input_shape
    if found.shape == shape:
        raise DataError(
            f"x has the shape {found.shape}, which is one sample: give several, or x[None]"
        )
    if found.ndim < 2 or found.shape[1:] != shape:
        expected = ", ".join(map(str, ("N", *shape)))
        raise DataError(f"x has the shape {found.shape}: expected samples, ({expected})")
    if found.dtype.kind not in "uifb":
        raise DataError(f"x holds {found.dtype}: expected numbers")
    inputs = as_floats(found)
    bad = ~np.isfinite(inputs).all(axis=tuple(range(1, inputs.ndim)))
    if schema.plain and bad.any():
        raise DataError(f"sample {int(bad.argmax())} of x holds NaN or infinity: fill or drop it")
    return inputs


def inputs_of(schema: Schema, x: Any) -> NDArray[np.float32]:
    """Samples as the run's networks take them, (N, ...)."""
    samples = samples_of(schema, x)
    if schema.is_table:
        return samples
    scaled: NDArray[np.float32] = schema.scaled(samples)
    return scaled


def table_of(x: Any) -> Any:
    """A table, or a list of rows by column, or one row, as a table."""
    import pandas as pd

    if isinstance(x, pd.DataFrame):
        return x.rename(columns=str)
    if isinstance(x, Mapping):
        x = [x]
    if not isinstance(x, list) or not x or not all(isinstance(row, Mapping) for row in x):
        raise DataError(
            f"x is {type(x).__name__}: the models were trained on a table: expected a table, or a "
            "list of rows such as {'column': value}"
        )
    return pd.DataFrame(x)


def as_array(values: Any) -> NDArray[Any]:
    """An array of what may be a tensor on any device, with or without a gradient."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    return np.asarray(values)


def labels_of(schema: Schema, y: Any, samples: int) -> NDArray[np.int64]:
    """Labels by name as the numbers of their classes, (N,)."""
    labels = as_array(y)
    if labels.shape != (samples,):
        raise DataError(f"y has the shape {labels.shape}: expected a label per sample, ({samples})")
    try:
        numbers = schema.numbers(labels)
    except DataError as error:
        raise DataError(f"y: {error}") from None
    if (numbers < 0).any():
        raise DataError(f"y: sample {int((numbers < 0).argmax())} has no label")
    return numbers
