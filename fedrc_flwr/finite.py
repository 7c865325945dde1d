"""The check for NaN and infinity before anything is saved, loaded or used."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST = float(np.finfo(np.float32).max)


def finite(values: Iterable[NDArray[Any] | float | None]) -> bool:
    """Whether all numbers are finite and all arrays small enough to compute with.

    An array passes if the sum of its squares does not overflow float32. A network whose numbers are
    larger, though finite, has no finite outputs.
    """
    return all(value is None or _passes(value) for value in values)


def _passes(value: NDArray[Any] | float) -> bool:
    if not isinstance(value, np.ndarray):
        return math.isfinite(value)
    flat = value.ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.dot(flat, flat) <= MOST)  # False for NaN, too
