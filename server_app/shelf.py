"""Objects that the gate and a ServerApp hand each other as files, past Flower's database.

Flower's SuperLink takes every object of a message through TLS, a protocol buffer and its database,
in and out again, which for a large network costs more than training it. The gate and the ServerApp
see the same directory, so the bytes wait there, and Flower carries the messages alone:

    posted                   grows by a byte whenever messages have been pushed
    RUN/arrived              grows by a byte whenever a reply is complete
    RUN/down/OBJECT          of the server's messages: the gate's whole answer to a node's pull
    RUN/up/MESSAGE/OBJECT    of the reply to a message: the whole of a node's push
    RUN/up/MESSAGE/.mixed    some of this reply's objects may be in Flower's store

The gate makes the directory, and a ServerApp that uses it makes the run's, so each knows about the
other. What is not here is asked of Flower, as it would be without the directory.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.proto.message_pb2 import PullObjectResponse, PushObjectRequest

from fedrc_flwr.files import write_pieces

SHELF = "FEDRC_OBJECTS"  # names the directory in the environment
LARGEST = "FEDRC_LARGEST_REPLY"  # names the bytes of the largest reply there
POSTED, ARRIVED, MIXED = "posted", "arrived", ".mixed"
_CONTENT = bytes([PullObjectResponse.DESCRIPTOR.fields_by_name["object_content"].number << 3 | 2])


def signal(path: Path) -> None:
    """Tell whoever watches this file."""
    with open(path, "ab", buffering=0) as file:
        file.write(b".")


def signals(path: Path) -> int:
    """How often the watchers of this file have been told."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def down(run: Path, name: str) -> Path:
    """The file of an object that the server sends."""
    return run / "down" / name


def up(run: Path, message: str) -> Path:
    """The directory of the objects of the reply to a message."""
    return run / "up" / message


def pull_answer(content: Sequence[Any]) -> Iterator[Any]:
    """The pieces of Flower's answer to a pull of an object, from the pieces of the object."""
    yield PullObjectResponse(object_found=True, object_available=True).SerializeToString()
    yield _CONTENT + _varint(sum(map(len, content)))
    yield from content


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


class Shelf:
    """One run's part of the directory, as its ServerApp uses it."""

    def __init__(self, root: Path, run: int) -> None:
        self._posted = root / POSTED
        self._run = root / str(run)
        self._held: dict[str, list[str]] = {}  # objects of the messages that are under way
        self._uses: Counter[str] = Counter()
        for folder in (self._run / "down", self._run / "up"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @staticmethod
    def of(run: int) -> Shelf | None:
        """The run's part, where there is a gate that looks into it."""
        root = Path(os.environ.get(SHELF, ""))
        return Shelf(root, run) if SHELF in os.environ and root.is_dir() else None

    def put(self, objects: Mapping[str, Sequence[Any]]) -> None:
        """Lay out objects, each in pieces, for the nodes."""
        for name, content in objects.items():
            place = down(self._run, name)
            if place.exists():
                continue
            write_pieces(place.with_suffix(".part"), pull_answer(content))
            place.with_suffix(".part").rename(place)

    def posted(self, messages: Mapping[str, Collection[str]]) -> None:
        """Messages, with the names of their objects, are ready to be pulled."""
        for message, names in messages.items():
            self._held[message] = list(names)
            self._uses.update(names)
        signal(self._posted)

    def keep(self, messages: Collection[str]) -> None:
        """Delete what no message needs but others than these, and what came in reply to those."""
        for message in [message for message in self._held if message not in messages]:
            self.drop(message)
            for name in self._held.pop(message):
                self._uses[name] -= 1
                if not self._uses[name]:
                    del self._uses[name]
                    down(self._run, name).unlink(missing_ok=True)

    def arrived(self) -> int:
        """A number that changes when a reply is complete."""
        return signals(self._run / ARRIVED)

    def object(self, message: str, name: str) -> bytes | None:
        """An object of the reply to a message, if it is here."""
        try:
            content = (up(self._run, message) / name).read_bytes()
        except FileNotFoundError:
            return None
        return bytes(PushObjectRequest.FromString(content).object_content)

    def is_whole(self, message: str) -> bool:
        """Whether all objects of the reply to a message are, or will be, here."""
        folder = up(self._run, message)
        return folder.exists() and not (folder / MIXED).exists()

    def drop(self, message: str) -> None:
        """Delete the objects of the reply to a message."""
        shutil.rmtree(up(self._run, message), ignore_errors=True)

    def close(self) -> None:
        """Delete everything of this run."""
        with suppress(OSError):
            shutil.rmtree(self._run)
