"""What passes between the processes of a node: a head in JSON, and bytes."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_LENGTH = struct.Struct(">I")
#: The longest head: it lists the objects of a message, 70 bytes each.
MOST_HEAD = 16 * 2**20
#: The longest frame. The other side is a process of this node, but it executes the code of a run.
MOST_BYTES = 16 * 2**30


class Broken(Exception):
    """The other side has gone, or does not keep to the protocol."""


def send(connection: socket.socket, head: Mapping[str, Any], parts: Sequence[bytes] = ()) -> None:
    """Send one frame."""
    told = json.dumps({**head, "parts": [len(part) for part in parts]}).encode()
    try:
        connection.sendall(_LENGTH.pack(len(told)) + told)
        for part in parts:
            connection.sendall(part)
    except OSError as error:
        raise Broken(f"the other side has gone: {error}") from None


def receive(
    connection: socket.socket, most: int = MOST_BYTES
) -> tuple[dict[str, Any], list[bytes]]:
    """Wait for one frame of at most so many bytes."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > min(most, MOST_HEAD):
        raise Broken(f"a head of {length} bytes")
    try:
        head = json.loads(_exactly(connection, length))
        sizes = [int(size) for size in head.pop("parts")]
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise Broken(f"a head that cannot be read: {error}") from None
    if min(sizes, default=0) < 0 or sum(sizes) > most:
        raise Broken(f"a frame of {sum(sizes)} bytes")
    return head, [_exactly(connection, size) for size in sizes]


def _exactly(connection: socket.socket, size: int) -> bytes:
    content = bytearray(size)
    view, done = memoryview(content), 0
    while done < size:
        try:
            count = connection.recv_into(view[done:])
        except OSError as error:
            raise Broken(f"the other side has gone: {error}") from None
        if count == 0:
            raise Broken("the other side has gone")
        done += count
    return bytes(content)


@dataclass(frozen=True)
class Task:
    """A message and all that a worker needs to answer it.

    Parameters
    ----------
    bundle : the run's app
    installed : whether the installed release is run in its place, because its files are the same
    message : the message's tree of objects, as Flower's protocol has it
    objects : the contents of those objects by their hashes
    context : Flower's context with the client's state, as Flower's protocol has it
    received : when the whole message was there, in seconds since 1970
    """

    bundle: bytes
    installed: bool
    message: bytes
    objects: Mapping[str, bytes]
    context: bytes
    received: float

    def send(self, connection: socket.socket) -> None:
        """Send this task."""
        head = {
            "installed": self.installed,
            "received": self.received,
            "objects": list(self.objects),
        }
        parts = [self.bundle, self.message, self.context, *self.objects.values()]
        send(connection, head, parts)

    @staticmethod
    def receive(connection: socket.socket) -> Task:
        """Wait for a task."""
        head, parts = receive(connection)
        try:
            objects = dict(zip(head["objects"], parts[3:], strict=True))
            received, installed = float(head["received"]), bool(head["installed"])
            return Task(parts[0], installed, parts[1], objects, parts[2], received)
        except (LookupError, ValueError, TypeError) as error:
            raise Broken(f"a task that cannot be read: {error}") from None


@dataclass(frozen=True)
class Outcome:
    """A worker's answer.

    Parameters
    ----------
    reply : the reply without its content, as Flower's protocol has it
    tree, objects : its tree of objects, and their contents by their hashes
    context : the context afterwards
    failed : what went wrong, for the log; empty: nothing
    refused : why the node does not take part, see ``engine.admission.REASONS``; empty: it does
    memory : bytes that the worker holds
    samples : how many it trained on
    """

    reply: bytes
    tree: bytes
    objects: Mapping[str, bytes]
    context: bytes
    failed: str = ""
    refused: str = ""
    memory: int = 0
    samples: int = 0

    def send(self, connection: socket.socket) -> None:
        """Send this answer."""
        head = {
            "failed": self.failed, "refused": self.refused, "memory": self.memory,
            "samples": self.samples, "objects": list(self.objects),
        }  # fmt: skip
        send(connection, head, [self.reply, self.tree, self.context, *self.objects.values()])

    @staticmethod
    def receive(connection: socket.socket) -> Outcome:
        """Wait for an answer."""
        head, parts = receive(connection)
        if "died" in head:
            raise WorkerDied(str(head["died"]))
        try:
            objects = dict(zip(head["objects"], parts[3:], strict=True))
            words = str(head["failed"]), str(head["refused"])
            numbers = int(head["memory"]), int(head["samples"])
            return Outcome(parts[0], parts[1], objects, parts[2], *words, *numbers)
        except (LookupError, ValueError, TypeError) as error:
            raise Broken(f"an answer that cannot be read: {error}") from None


class WorkerDied(Exception):
    """The process that worked on a task ended without an answer."""

    def send(self, connection: socket.socket) -> None:
        """Tell the other side."""
        send(connection, {"died": str(self)})
