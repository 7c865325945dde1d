"""The gate's socket: TLS, and how many connections there may be."""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import contextlib
import gc
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deploy.fields import Address
from deploy.gate.connection import Caller, Inside
from deploy.gate.conversation import Limits
from deploy.gate.upstream import CHUNK
from fedrc_flwr.flower import Tls

#: Connections of one node or operator; the oldest one makes room for another.
EACH = 8
BACKLOG = 1024
BUFFER = 65_536
#: asyncio's objects for TLS refer to each other, so what a connection held is freed only by a
#: collection. Left to itself, Python collects after thousands of connections.
COLLECT_EACH = 64
CLOSING_SECONDS = 2.0


def tls_context(tls: Tls, operators: Path | None) -> ssl.SSLContext:
    """TLS as the gate speaks it. A caller may show a certificate, of an operator and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(tls.certificate, tls.key)
    context.set_alpn_protocols(["http/1.1"])
    if operators is not None:
        context.load_verify_locations(operators)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


@dataclass(eq=False)
class _Guest:
    """A connection that is served."""

    task: asyncio.Task[None] | None = None
    owner: bytes = b""


class Gate:
    """Accepts connections and serves them.

    Past ``connections``, the oldest one of whoever has not shown yet that it is a node makes room,
    so nodes are let in however many idle connections a stranger holds.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        inside: Inside,
        connections: int,
        limits: Limits | None = None,
    ) -> None:
        self._context = context
        self._inside = inside
        self._most = connections
        self._limits = limits or Limits()
        self._guests: dict[_Guest, None] = {}  # oldest first
        self._ended = 0
        # asyncio takes a buffer of 256 KiB for each connection unless it is told otherwise.
        asyncio.sslproto.SSLProtocol.max_size = BUFFER

    async def serve(
        self, listen: Address, opened: Callable[[int], None] = lambda port: None
    ) -> None:
        """Listen until cancelled; ``opened`` is called with the port."""
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        with socket.create_server(
            (listen.host, listen.port), family=family, backlog=BACKLOG
        ) as listener:
            listener.setblocking(False)
            opened(listener.getsockname()[1])
            try:
                while True:
                    await self._accept(listener)
            finally:
                await self._part()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, _ = await loop.sock_accept(listener)
        except OSError:  # out of descriptors, or the caller left at once
            await asyncio.sleep(0.1)
            return
        if len(self._guests) >= self._most and not self._make_room():
            connection.close()
            return
        guest = _Guest()
        self._guests[guest] = None
        guest.task = loop.create_task(self._serve(connection, guest))

        def ended(task: asyncio.Task[None]) -> None:
            self._guests.pop(guest, None)
            connection.close()
            self._ended += 1
            if self._ended % COLLECT_EACH == 0:
                gc.collect()
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error  # a mistake in the gate: asyncio logs it and goes on

        guest.task.add_done_callback(ended)

    def _make_room(self, owner: bytes = b"") -> bool:
        """End the oldest connection of a caller; by default, of the strangers."""
        oldest = next((guest for guest in self._guests if guest.owner == owner), None)
        if oldest is None or oldest.task is None:
            return False
        self._guests.pop(oldest)
        oldest.task.cancel()
        return True

    def _recognise(self, guest: _Guest, owner: bytes) -> None:
        """A connection turned out to be a node's or an operator's."""
        if guest.owner == owner or guest not in self._guests:
            return
        if sum(other.owner == owner for other in self._guests) >= EACH:
            self._make_room(owner)
        guest.owner = owner

    async def _serve(self, connection: socket.socket, guest: _Guest) -> None:
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await self._greet(connection)
            known = lambda owner: self._recognise(guest, owner)  # noqa: E731
            await Caller(reader, writer, self._inside, self._limits, known).serve()
            writer.close()
            await asyncio.wait_for(writer.wait_closed(), CLOSING_SECONDS)
        except (OSError, TimeoutError, EOFError):
            pass  # it left, took too long, or spoke no TLS
        finally:
            if writer is not None:
                writer.transport.abort()

    async def _greet(
        self, connection: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The TLS handshake."""
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        reader = asyncio.StreamReader(limit=CHUNK, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=self._context,
            ssl_handshake_timeout=self._limits.head, ssl_shutdown_timeout=CLOSING_SECONDS,
        )  # fmt: skip
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _part(self) -> None:
        """End all connections."""
        tasks = [guest.task for guest in self._guests if guest.task is not None]
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
