"""HTTP with one caller: its requests as they arrive, and answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path

import h11

from deploy.gate.rules import HEADER_BYTES, Refusal
from deploy.gate.upstream import CHUNK

PIECE = 4 * CHUNK  # of a file
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Limits:
    """Seconds that a caller may take.

    Parameters
    ----------
    head : for the TLS handshake, and then for a request's head, before it is known who is calling
    idle : between two requests of a node or an operator
    pause : between two pieces of a body, in either direction
    slowest : bytes per second that a body must at least have, on average
    refused : to stop sending after a refusal; a connection that is closed sooner loses the answer
    hold : that a node's question for messages is held back while there are none
    """

    head: float = 10.0
    idle: float = 75.0
    pause: float = 30.0
    slowest: int = 16_384
    refused: float = 1.0
    hold: float = 2.0


class Conversation:
    """The requests of one connection and their answers."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits
    ) -> None:
        self._reader, self._writer = reader, writer
        self._limits = limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES)

    async def request(self, seconds: float) -> h11.Request | None:
        """The next request's head; None: the caller has left."""
        async with asyncio.timeout(seconds):
            event = await self._next()
        return event if isinstance(event, h11.Request) else None

    def goes_on(self) -> bool:
        """Whether another request may follow; prepares for it."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    @property
    def answering(self) -> bool:
        """Whether a part of an answer is out already."""
        return self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE)

    def is_left(self) -> bool:
        """Whether the caller has hung up."""
        return self._reader.at_eof() or self._writer.is_closing()

    async def encourage(self) -> None:
        """Let a caller send its body that asks first."""
        if self._http.they_are_waiting_for_100_continue:
            await self.send(h11.InformationalResponse(status_code=100, headers=[]))

    async def body(self, length: int) -> AsyncIterator[bytes]:
        """The pieces of a request's body, which may take only so long."""
        ends = time.monotonic() + self._limits.pause + length / self._limits.slowest
        while True:
            try:
                async with asyncio.timeout(min(self._limits.pause, ends - time.monotonic())):
                    event = await self._next()
            except TimeoutError:
                raise Refusal(408, "the body took too long") from None
            if isinstance(event, h11.EndOfMessage):
                return
            if not isinstance(event, h11.Data):
                raise ConnectionAbortedError
            yield bytes(event.data)

    async def small_body(self, length: int) -> bytes:
        """The whole of a body."""
        return b"".join([piece async for piece in self.body(length)])

    async def head(self, status: int, headers: Headers) -> None:
        """The beginning of an answer."""
        date = (b"date", formatdate(usegmt=True).encode())
        reason = HTTPStatus(status).phrase.encode() if status in _KNOWN else b""
        await self.send(h11.Response(status_code=status, headers=[*headers, date], reason=reason))

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer."""
        await self.head(status, headers)
        await self.send(h11.Data(data=body))
        await self.send(h11.EndOfMessage())

    async def give(self, place: Path) -> None:
        """Answer with a file."""
        with open(place, "rb", buffering=0) as file:
            await self.head(200, protobuf(place.stat().st_size))
            while piece := file.read(PIECE):  # from the file system's cache
                await self.send(h11.Data(data=piece))
        await self.send(h11.EndOfMessage())

    async def say(self, status: int, content: dict[str, str], bodiless: bool = False) -> None:
        """A short answer of the gate's own."""
        body = json.dumps(content).encode()
        headers = [
            (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)),
        ]  # fmt: skip
        if status >= 400:
            headers.append((b"connection", b"close"))
        await self.answer(status, headers, b"" if bodiless else body)

    async def linger(self) -> None:
        """Give a caller that is still sending a moment to see that it was refused."""
        with contextlib.suppress(h11.RemoteProtocolError):
            if isinstance(self._http.next_event(), h11.EndOfMessage):
                return
        left = 16 * CHUNK
        with contextlib.suppress(TimeoutError, ssl.SSLError):
            async with asyncio.timeout(self._limits.refused):
                while left > 0 and (data := await self._reader.read(CHUNK)):
                    left -= len(data)

    async def send(
        self, event: h11.InformationalResponse | h11.Response | h11.Data | h11.EndOfMessage
    ) -> None:
        """A part of an answer."""
        self._writer.write(self._http.send(event) or b"")
        async with asyncio.timeout(self._limits.pause):
            await self._writer.drain()

    async def _next(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(CHUNK))
        return event


_KNOWN = frozenset(map(int, HTTPStatus))


def protobuf(size: int) -> Headers:
    """The headers of an answer in Flower's protocol."""
    return [(b"content-type", b"application/protobuf"), (b"content-length", b"%d" % size)]


async def once(body: bytes) -> AsyncIterator[bytes]:
    """A body in one piece."""
    if body:
        yield body


async def pieces(path: Path) -> AsyncIterator[bytes]:
    """A body from a file."""
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(PIECE):
            yield piece
