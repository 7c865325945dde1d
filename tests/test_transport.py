"""Networks in fewer bits: what arrives, and how many bytes it takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrc_flwr import transport
from fedrc_flwr.transport import BLOCK, TRANSPORTS, as_it_arrives, packed, size_of


def by_hand(values: np.ndarray) -> np.ndarray:
    """``int8`` one block after the other, in float64."""
    result = []
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK].astype(np.float64)
        scale = np.abs(block).max() / 127 or 1.0
        result += [round(float(value / scale)) * scale for value in block]
    return np.array(result)


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_every_block_has_a_scale_of_its_own(length: int) -> None:
    values = np.random.default_rng(length).normal(size=length).astype(np.float32)
    values[:BLOCK] *= 1e-4  # beside the others it would be nothing

    arrived = as_it_arrives(values, length, "int8")

    np.testing.assert_allclose(arrived, by_hand(values), rtol=1e-5, atol=1e-12)
    assert np.abs(arrived - values)[:BLOCK].max() <= np.abs(values[:BLOCK]).max() / 254 * 1.001


@given(seed=st.integers(0, 1000), exponent=st.integers(-30, 30))
def test_what_was_rounded_once_stays_as_it_is(seed: int, exponent: int) -> None:
    values = np.random.default_rng(seed).normal(size=300).astype(np.float32)
    once = as_it_arrives(values * np.float32(10.0**exponent), 300, "int8")

    np.testing.assert_allclose(as_it_arrives(once, 300, "int8"), once, rtol=1e-6)


@pytest.mark.parametrize("tiny", [0.0, 1e-45, 1e-38])
def test_numbers_too_small_for_a_scale_become_zero(tiny: float) -> None:
    values = np.full(5, tiny, dtype=np.float32)

    assert not as_it_arrives(values, 5, "int8").any()


@pytest.mark.parametrize("precision", TRANSPORTS)
@pytest.mark.parametrize(("length", "parameters"), [(700, 700), (700, 650), (3, 0)])
def test_bytes_are_those_of_what_travels(length: int, parameters: int, precision: str) -> None:
    vector = np.random.default_rng(0).normal(size=length).astype(np.float32)

    arrays = packed("it", vector, parameters, precision)

    assert sum(array.nbytes for array in arrays.values()) == size_of(vector, parameters, precision)
    assert transport.unpacked("it", arrays, parameters).shape == vector.shape


@pytest.mark.parametrize("precision", TRANSPORTS)
def test_running_statistics_arrive_as_they_are(precision: str) -> None:
    vector = np.float32([0.5, -0.25, 1e6, 1e-6])

    np.testing.assert_array_equal(as_it_arrives(vector, 2, precision)[2:], vector[2:])
