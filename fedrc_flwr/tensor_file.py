"""One safetensors file: arrays and JSON, written atomically and verified by their checksums.

The numbers are tensors; everything else is JSON in the file's metadata. Nothing is pickled, so
reading a file that somebody else wrote runs no code. The JSON holds a checksum of every tensor, and
the metadata one of the JSON: only what is read needs to be verified.
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from fedrc_flwr.errors import CheckpointError
from fedrc_flwr.files import replacing, write_pieces

SCHEMA = 2
CHECKSUM, CHECKSUMS = "checksum", "checksums"  # of the JSON, and within it of the arrays
Arrays = dict[str, np.ndarray]
#: How safetensors calls NumPy's types.
DTYPES = {"<f8": "F64", "<f4": "F32", "<i8": "I64", "<u4": "U32"}
ALIGNED = 8


def write_atomically(
    path: Path, arrays: Arrays, about: dict[str, Any], durable: bool = True
) -> None:
    """Write arrays and JSON with their checksums: a reader sees the old file or the new one."""
    # The widest numbers first, so that all of them are aligned in the file.
    widest = sorted(arrays, key=lambda name: -arrays[name].itemsize)
    arrays = {name: np.ascontiguousarray(arrays[name]) for name in widest}
    checksums = {name: _checksum(array) for name, array in arrays.items()}
    text = json.dumps({"schema": SCHEMA, **about, CHECKSUMS: checksums})
    head = _head(arrays, {"fedrc": text, CHECKSUM: _text_checksum(text)})
    with replacing(path, durable) as beside:
        write_pieces(
            beside, [head, *(array.reshape(-1).view(np.uint8) for array in arrays.values())]
        )


def _head(arrays: Arrays, metadata: dict[str, str]) -> bytes:
    """The beginning of a safetensors file; the arrays follow it as they are.

    The library's own function copies every array twice, which takes a large network's checkpoint
    longer than writing it.
    """
    about: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        about[name] = {
            "dtype": DTYPES[array.dtype.str], "shape": array.shape, "data_offsets": (start, end),
        }  # fmt: skip
    text = json.dumps(about).encode()
    text += b" " * (-len(text) % ALIGNED)
    return struct.pack("<Q", len(text)) + text


def read_file(path: Path, prefix: str | None = "") -> tuple[Arrays, dict[str, Any]]:
    """Arrays whose names start with ``prefix``, and JSON, of what ``write_atomically`` wrote.

    What is read is verified by its checksums. A prefix of None reads the JSON alone.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            text = metadata.get("fedrc", "null")
            about = json.loads(text)
            if not isinstance(about, dict):
                raise CheckpointError(f"{path}: a safetensors file, but not one of fedrc-flwr")
            _check_schema(path, about)
            checksums = about.pop(CHECKSUMS, None)
            names = set(file.keys())
            intact = (
                metadata.get(CHECKSUM) == _text_checksum(text)
                and isinstance(checksums, dict)
                and names == set(checksums)
            )
            wanted = [name for name in names if prefix is not None and name.startswith(prefix)]
            arrays = {name: file.get_tensor(name) for name in sorted(wanted)} if intact else {}
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: torn or not a checkpoint ({error})") from None
    if not intact or any(_checksum(array) != checksums[name] for name, array in arrays.items()):
        raise CheckpointError(f"{path}: damaged: its checksum does not match")
    return arrays, about


def _check_schema(path: Path, about: dict[str, Any]) -> None:
    if about.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{path}: schema {about.get('schema')}, but this version reads schema {SCHEMA}: it was "
            "written by another version of fedrc-flwr; use that version, or start a new run"
        )


def _checksum(array: np.ndarray) -> int:
    """CRC-32 of an array's type, shape and numbers."""
    return zlib.crc32(
        np.ascontiguousarray(array).data, zlib.crc32(repr((array.dtype.str, array.shape)).encode())
    )


def _text_checksum(text: str) -> str:
    return str(zlib.crc32(text.encode()))
