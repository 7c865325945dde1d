"""Vectors as Flower's arrays and back, without a copy where that is possible."""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray

from fedrc_flwr.errors import WireError

HEADER_AT_MOST = 4096  # bytes before an array's numbers


class VectorArray(Array):
    """An Array that is packed into bytes only when bytes are needed.

    Between the processes of a simulation the vector itself is passed on in shared memory, without a
    copy on arrival.
    """

    __qualname__ = Array.__qualname__  # the name under which Flower sends it in a deployment

    def __init__(self, vector: NDArray[Any]) -> None:
        self.vector = vector
        self.dtype, self.shape, self.stype = str(vector.dtype), vector.shape, "numpy.ndarray"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """NumPy's own pickle of the vector, which leaves its bytes out of the stream."""
        return _as_array, (self.vector,)

    @functools.cached_property
    def data(self) -> bytes:  # type: ignore[override]
        """The bytes. Flower's own implementation uses a growing buffer, at ten times the cost."""
        return b"".join((_header(self.vector), np.ascontiguousarray(self.vector).data))

    def numpy(self) -> NDArray[Any]:
        """The vector itself, not to be written to."""
        return self.vector


def _as_array(vector: NDArray[Any]) -> VectorArray:
    return VectorArray(vector)


def _header(vector: NDArray[Any]) -> bytes:
    """The header of an array in NumPy's format."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(vector))
    return header.getvalue()


def size_of(array: Array) -> int:
    """Bytes of an array as it travels."""
    if isinstance(array, VectorArray):
        return len(_header(array.vector)) + array.vector.nbytes
    return len(array.data)


def unpack(array: Array) -> NDArray[Any]:
    """The content of an Array without a copy; not to be written to."""
    if isinstance(array, VectorArray):
        return array.vector
    header = io.BytesIO(array.data[:HEADER_AT_MOST])
    version = np.lib.format.read_magic(header)
    if version != (1, 0) or array.stype != "numpy.ndarray":
        raise ValueError(f"{array.stype} in version {version}, expected NumPy's own in (1, 0)")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(header)
    values = np.frombuffer(array.data, dtype, offset=header.tell())
    return values.reshape(shape, order="F" if fortran else "C")


def checked_array(array: Array, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
    """What an array from elsewhere holds: finite numbers of this shape and type, or an error."""
    # The declared shape is checked before anything is unpacked, the real one after.
    if tuple(array.shape) != shape:
        raise WireError(f"{name!r} has shape {tuple(array.shape)}, expected {shape}")
    try:
        values = unpack(array)
    except Exception as error:  # NumPy may raise anything on foreign bytes
        raise WireError(f"{name!r} cannot be read: {error}") from None
    if values.shape != shape or values.dtype != dtype:
        raise WireError(
            f"{name!r} is {values.dtype} of shape {values.shape}, expected {np.dtype(dtype)} of "
            f"shape {shape}"
        )
    if not np.isfinite(values).all():
        raise WireError(f"{name!r} holds NaN or infinity")
    return values
