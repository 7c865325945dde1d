"""In which precision networks and updates travel.

``float32`` is exact. ``float16`` divides the parameters by the largest of them, because float16
itself holds nothing above 65504. ``int8`` divides each block of them by its own largest and rounds
to 127 steps either way. Running statistics always stay float32: rounding could make a variance
negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.errors import WireError
from fedrc_flwr.layout import Vector

FLOAT32, FLOAT16, INT8 = TRANSPORTS = ("float32", "float16", "int8")
#: Numbers that share a scale in ``int8``; the scales add 1.6 % to the bytes.
BLOCK = 256
STEPS = 127
#: Suffixes of the arrays that belong to a vector's own.
SCALE, STATISTICS = "-scale", "-statistics"
#: Smaller numbers than this become zero: their scale could not be divided by.
SMALLEST = float(np.finfo(np.float32).tiny) * STEPS


def packed(name: str, vector: Vector, parameters: int, transport: str) -> dict[str, NDArray[Any]]:
    """A vector as the arrays that travel, by name.

    Parameters
    ----------
    parameters : how many of the leading numbers are parameters; the rest are running statistics
    """
    if transport == FLOAT32:
        return {name: vector}
    values, statistics = np.split(vector, [parameters])
    numbers, scales = _rounded(values, transport)
    apart = {name + STATISTICS: statistics} if len(statistics) else {}
    return {name: numbers, name + SCALE: scales, **apart}


def unpacked(name: str, arrays: Mapping[str, NDArray[Any]], parameters: int) -> Vector:
    """The inverse of ``packed``, whatever the precision; it refuses what does not fit together."""
    numbers = arrays[name]
    if numbers.dtype == np.float32:
        return numbers
    scales = arrays.get(name + SCALE)
    expected = (scale_count(parameters, str(numbers.dtype)),)
    if numbers.shape != (parameters,) or scales is None or scales.shape != expected:
        raise WireError(f"{name!r} does not travel with as many scales as {numbers.dtype} needs")
    if scales.dtype != np.float32 or not np.isfinite(scales).all() or (scales <= 0).any():
        raise WireError(f"{name!r} travels with scales that are no positive numbers")
    values = _restored(numbers, scales)
    if not np.isfinite(values).all():
        raise WireError(f"{name!r} is out of range")
    statistics = arrays.get(name + STATISTICS)
    return values if statistics is None else np.concatenate([values, statistics])


def as_it_arrives(vector: Vector, parameters: int, transport: str) -> Vector:
    """What the other side reads of a vector."""
    return unpacked("it", packed("it", vector, parameters, transport), parameters)


def size_of(vector: Vector, parameters: int, transport: str) -> int:
    """Bytes of a vector as it travels."""
    if transport == FLOAT32:
        return vector.nbytes
    numbers = parameters * (2 if transport == FLOAT16 else 1)
    return numbers + 4 * (scale_count(parameters, transport) + len(vector) - parameters)


def scale_count(parameters: int, transport: str) -> int:
    """How many scales so many parameters travel with."""
    return {FLOAT16: 1, INT8: -(-parameters // BLOCK)}.get(transport, 0)


def _rounded(values: Vector, transport: str) -> tuple[NDArray[Any], Vector]:
    """Numbers in fewer bits, and the scales to multiply them with."""
    if transport == FLOAT16:
        scale = np.float32(np.abs(values).max(initial=0.0) or 1.0)
        return (values / scale).astype(np.float16), np.full(1, scale)
    blocks = _blocks(values)
    largest = np.abs(blocks).max(axis=1)
    scales = np.where(largest >= SMALLEST, largest / np.float32(STEPS), np.float32(1.0))
    numbers = np.rint(blocks / scales[:, None]).astype(np.int8)
    return numbers.ravel()[: len(values)], scales.astype(np.float32)


def _restored(numbers: NDArray[Any], scales: Vector) -> Vector:
    with np.errstate(over="ignore"):  # what becomes infinite is refused
        if numbers.dtype == np.float16:
            return np.asarray(numbers.astype(np.float32) * scales[0])
        values = _blocks(numbers.astype(np.float32)) * scales[:, None]
    return values.ravel()[: len(numbers)]


def _blocks(values: Vector) -> Vector:
    """(n, BLOCK), the last row filled up with zeros."""
    rows = -(-len(values) // BLOCK)
    return np.pad(values, (0, rows * BLOCK - len(values))).reshape(rows, BLOCK)
