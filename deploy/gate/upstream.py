"""Flower behind the gate: connections to it, and requests that the gate makes itself."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator

import h11

from deploy.fields import Address

CHUNK = 65_536
#: Flower closes a connection that was idle for 5 seconds; an older one is not used again.
FRESH_SECONDS = 2.0
#: Requests that Flower works on at the same time; others wait.
AT_ONCE = 256
CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 300.0
MOST_IDLE = 16


class UpstreamError(Exception):
    """Flower cannot be reached, or broke off."""


class Link:
    """One connection to Flower."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT)
        self.used = time.monotonic()

    async def send(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        """Send a part of a request."""
        try:
            self._writer.write(self._http.send(event) or b"")
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._writer.drain()
        except (OSError, TimeoutError, h11.ProtocolError) as error:
            raise UpstreamError(f"Flower broke off: {error}") from None

    async def receive(
        self, seconds: float | None = ANSWER_SECONDS
    ) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next part of the answer."""
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                async with asyncio.timeout(seconds):
                    data = await self._reader.read(CHUNK)
                self._http.receive_data(data)
        except (OSError, TimeoutError, h11.ProtocolError) as error:
            raise UpstreamError(f"Flower broke off: {error or type(error).__name__}") from None
        return event

    async def answer(self) -> tuple[h11.Response, bytes]:
        """The whole of a small answer."""
        response, parts = None, []
        while not isinstance(event := await self.receive(), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
            elif isinstance(event, h11.ConnectionClosed):
                raise UpstreamError("Flower broke off")
        if response is None:
            raise UpstreamError("Flower broke off")
        return response, b"".join(parts)

    def reusable(self) -> bool:
        """Whether another request may follow on this connection; prepares for it."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        self.used = time.monotonic()
        return True

    def fresh(self) -> bool:
        """Whether Flower has surely not closed it meanwhile."""
        young = time.monotonic() - self.used < FRESH_SECONDS
        return young and not self._writer.is_closing() and not self._reader.at_eof()

    def close(self) -> None:
        """Close without ceremony: Flower is on the same machine."""
        self._writer.transport.abort()


class Upstream:
    """Flower's SuperLink.

    Parameters
    ----------
    address : where it listens
    context : trusts its certificate and no other
    """

    def __init__(self, address: Address, context: ssl.SSLContext) -> None:
        self._address = address
        self._context = context
        self._idle: list[Link] = []
        self._room = asyncio.Semaphore(AT_ONCE)

    @contextlib.asynccontextmanager
    async def link(self) -> AsyncIterator[Link]:
        """A connection for one request; it is kept for others where the answer was complete."""
        async with self._room:
            link = self._kept() or await self._connect()
            try:
                yield link
            except BaseException:
                link.close()
                raise
            if link.reusable() and len(self._idle) < MOST_IDLE:
                self._idle.append(link)
            else:
                link.close()

    async def ask(self, method: bytes, target: bytes, body: bytes = b"") -> tuple[int, bytes]:
        """A request of the gate's own: status and body of the answer."""
        headers = [
            (b"host", str(self._address).encode()), (b"content-length", b"%d" % len(body)),
            (b"content-type", b"application/protobuf"), (b"accept", b"application/protobuf"),
        ]  # fmt: skip
        async with self.link() as link:
            await link.send(h11.Request(method=method, target=target, headers=headers))
            await link.send(h11.Data(data=body))
            await link.send(h11.EndOfMessage())
            response, answer = await link.answer()
        return response.status_code, answer

    async def answers(self) -> bool:
        """Whether Flower is up."""
        try:
            return (await self.ask(b"GET", b"/health"))[0] == 200
        except UpstreamError:
            return False

    def close(self) -> None:
        """Close the connections that are kept."""
        while self._idle:
            self._idle.pop().close()

    def host(self) -> bytes:
        """The Host of requests to it."""
        return str(self._address).encode()

    def _kept(self) -> Link | None:
        while self._idle:
            link = self._idle.pop()
            if link.fresh():
                return link
            link.close()
        return None

    async def _connect(self) -> Link:
        try:
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection(
                    self._address.host, self._address.port, ssl=self._context, limit=CHUNK
                ),
                CONNECT_SECONDS,
            )
        except (OSError, TimeoutError) as error:
            raise UpstreamError(f"Flower cannot be reached: {error}") from None
        return Link(reader, writer)
