"""All arrays of a message as one of Flower's, and back without a copy.

In a deployment every array is an object of its own, with a request for each on every hop.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_object_body,
    get_object_head_values_from_object_content,
)
from numpy.typing import NDArray

from fedrc_flwr.errors import WireError

HEADER_AT_MOST = 4096  # bytes before an array's numbers
#: Each part begins at a multiple of this many bytes, so that it can be used where it lies.
ALIGNED = 16
#: What a part may consist of.
DTYPES = {name: np.dtype(name) for name in ("float64", "float32", "float16", "int8", "uint32")}

#: Type and shape of a part.
Outline = tuple[str, tuple[int, ...]]


class Chunk(ArrayChunk):
    """A part of an array's bytes, which is hashed and sent where it lies."""

    __qualname__ = ArrayChunk.__qualname__  # the name under which Flower sends it

    def pieces(self) -> tuple[bytes, memoryview]:
        """What ``deflate`` returns, in two pieces."""
        return _BEFORE + str(len(self.data)).encode() + _AFTER, self.data

    @functools.cached_property
    def object_id(self) -> str:
        """The hash by which Flower knows it."""
        digest = hashlib.sha256()
        for piece in self.pieces():
            digest.update(piece)
        return digest.hexdigest()


#: What is before and after the length of a chunk.
_BEFORE, _AFTER = Chunk(memoryview(b"")).deflate().rsplit(b"0", 1)


class PackedArray(Array):
    """Several arrays one behind the other, which become bytes only when bytes are needed.

    Between the processes of a simulation the parts themselves are passed on in shared memory,
    without a copy on arrival.
    """

    __qualname__ = Array.__qualname__  # the name under which Flower sends it in a deployment

    def __init__(self, parts: Sequence[NDArray[Any]]) -> None:
        self.parts = list(parts)
        length = _length([outline(part) for part in self.parts])
        self.dtype, self.shape, self.stype = "uint8", (length,), "numpy.ndarray"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """NumPy's own pickle of the parts, which leaves their bytes out of the stream."""
        return _as_packed, (self.parts,)

    @functools.cached_property
    def data(self) -> bytes:  # type: ignore[override]
        """The bytes, in NumPy's format."""
        pieces: list[Any] = [_header(self.shape[0])]
        for part in self.parts:
            pieces += [np.ascontiguousarray(part).data, bytes(-part.nbytes % ALIGNED)]
        return b"".join(pieces)

    def slice_array(self) -> list[tuple[str, Any]]:
        """Flower's chunks of it, with their names."""
        if "_chunks" not in self.__dict__:
            view, size = memoryview(self.data), FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
            chunks = [Chunk(view[start : start + size]) for start in range(0, len(view), size)]
            self.__dict__["_chunks"] = [(chunk.object_id, chunk) for chunk in chunks]
        return list(self.__dict__["_chunks"])

    def numpy(self) -> NDArray[Any]:
        """The bytes as an array."""
        return unpack(Array(self.dtype, self.shape, self.stype, self.data))


def pieces_of(deflatable: Any) -> tuple[Any, ...]:
    """What one of Flower's objects is sent as, in pieces that are not copied."""
    return deflatable.pieces() if isinstance(deflatable, Chunk) else (deflatable.deflate(),)


def joined(contents: Mapping[str, bytes], most: float = math.inf) -> dict[str, InflatableObject]:
    """The arrays among the objects of a message, for Flower's ``inflate_object_from_contents``.

    Flower itself copies the bytes of an array three times. A chunk may occur in an array any number
    of times, so a small message can become a large one: of more than ``most`` bytes it is refused.
    """
    arrays: dict[str, InflatableObject] = {}
    size = 0
    for name, content in contents.items():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind == Array.__qualname__:
            about = json.loads(get_object_body(content, Array))
            chunks, places = [contents[child] for child in children], about["arraychunk_ids"]
            bodies = [memoryview(c)[c.index(_AFTER) + len(_AFTER) :] for c in chunks]
            size += sum(len(bodies[place]) for place in places)
            if size > most:
                raise WireError(f"its arrays have {size} bytes, expected at most {most:.0f}")
            shape = tuple(about["shape"])
            arrays[name] = Array(
                about["dtype"], shape, about["stype"], b"".join(bodies[p] for p in places)
            )
    return arrays


def _as_packed(parts: list[NDArray[Any]]) -> PackedArray:
    return PackedArray(parts)


def _header(length: int) -> bytes:
    """The header of an array of so many bytes in NumPy's format."""
    header = io.BytesIO()
    about = {"descr": "|u1", "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(header, about)
    return header.getvalue()


def outline(part: NDArray[Any]) -> Outline:
    """Type and shape of a part."""
    return str(part.dtype), part.shape


def _places(outlines: Sequence[Outline]) -> Iterator[tuple[int, int]]:
    """Where each part begins and ends, in bytes."""
    start = 0
    for dtype, shape in outlines:
        size = DTYPES[dtype].itemsize * math.prod(shape)
        yield start, start + size
        start += size + -size % ALIGNED


def _length(outlines: Sequence[Outline]) -> int:
    return sum(end - start + -(end - start) % ALIGNED for start, end in _places(outlines))


def size_of(array: Array) -> int:
    """Bytes of an array as it travels."""
    if isinstance(array, PackedArray):
        return len(_header(array.shape[0])) + array.shape[0]
    return len(array.data)


def parts_of(array: Array, outlines: Sequence[Outline]) -> list[NDArray[Any]]:
    """The parts of a packed array, not to be written to; refused if they are not as announced."""
    if isinstance(array, PackedArray):
        if [outline(part) for part in array.parts] != list(outlines):
            raise WireError("its arrays are not those that it announces")
        return array.parts
    try:
        whole = unpack(array)
    except Exception as error:  # NumPy may raise anything on foreign bytes
        raise WireError(f"its arrays cannot be read: {error}") from None
    expected = _length(outlines)
    if whole.dtype != np.uint8 or whole.shape != (expected,):
        raise WireError(
            f"its arrays are {whole.dtype} of shape {whole.shape}, announced are {expected} bytes"
        )
    return [
        whole[start:end].view(DTYPES[dtype]).reshape(shape)
        for (dtype, shape), (start, end) in zip(outlines, _places(outlines), strict=True)
    ]


def unpack(array: Array) -> NDArray[Any]:
    """The content of an Array without a copy; not to be written to."""
    header = io.BytesIO(array.data[:HEADER_AT_MOST])
    version = np.lib.format.read_magic(header)
    if version != (1, 0) or array.stype != "numpy.ndarray":
        raise ValueError(f"{array.stype} in version {version}, expected NumPy's own in (1, 0)")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(header)
    values = np.frombuffer(array.data, dtype, offset=header.tell())
    return values.reshape(shape, order="F" if fortran else "C")


def checked(values: NDArray[Any], name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An array from elsewhere: finite numbers of this shape and type, or an error."""
    if values.shape != shape:
        raise WireError(f"{name!r} has shape {values.shape}, expected {shape}")
    if values.dtype != dtype:
        raise WireError(f"{name!r} is {values.dtype}, expected {np.dtype(dtype)}")
    if not np.isfinite(values).all():
        raise WireError(f"{name!r} holds NaN or infinity")
    return values


def flat_shapes(outlines: Sequence[Outline]) -> tuple[list[int], list[int]]:
    """The shapes as they travel: how many axes each has, and the lengths of all of them."""
    shapes = [shape for _, shape in outlines]
    return [len(shape) for shape in shapes], list(itertools.chain.from_iterable(shapes))


def outlines_of(dtypes: list[Any], axes: list[Any], lengths: list[Any]) -> list[Outline]:
    """The inverse of ``flat_shapes``; refuses what cannot be an array's type and shape."""
    if not all(dtype in DTYPES for dtype in dtypes):
        raise WireError(f"an array is of a type other than {', '.join(DTYPES)}")
    if not all(type(number) is int and number >= 0 for number in [*axes, *lengths]):
        raise WireError("the shape of an array is not made of whole numbers")
    if len(axes) != len(dtypes) or sum(axes) != len(lengths):
        raise WireError("the shapes of its arrays are incomplete")
    rest = iter(lengths)
    return [
        (dtype, tuple(itertools.islice(rest, count)))
        for dtype, count in zip(dtypes, axes, strict=True)
    ]
