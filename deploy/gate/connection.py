"""One caller's connection: a request is judged by its head and passed on piece by piece.

What Flower receives is written anew from what was understood, never copied, so caller and Flower
cannot disagree about where a request ends or which call it makes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path

import h11

from deploy.gate.identity import Node, Registry, node_of, operator_of
from deploy.gate.rules import (
    HEADER_BYTES,
    HEALTH,
    ME,
    PULL_MESSAGES,
    PUSH_OBJECT,
    Allowance,
    Call,
    Refusal,
    Who,
    body_length,
    call_of,
)
from deploy.gate.upstream import CHUNK, Link, Upstream, UpstreamError

PASSED = {b"content-type", b"accept", b"accept-encoding", b"user-agent"}
SECRET = b"flwr-superexec"  # for programs on the server's own machine
#: What belongs to one connection, or is written anew.
DROPPED = {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"server", b"date"}


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
    """

    head: float = 10.0
    idle: float = 75.0
    pause: float = 30.0
    slowest: int = 16_384
    refused: float = 1.0


@dataclass(frozen=True)
class Inside:
    """What is behind the gate.

    Parameters
    ----------
    operators : directory with the operators' list; None: operators are not admitted
    healthy : whether Flower is up
    refused : called with the caller's address, who it is, and why it was refused
    """

    upstream: Upstream
    registry: Registry
    allowance: Allowance
    operators: Path | None
    healthy: Callable[[], bool]
    refused: Callable[[str, str, str], None]


class Caller:
    """Serves the requests of one connection, one after the other.

    Parameters
    ----------
    known : called with the caller's key once it has shown that it is a node or an operator
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        inside: Inside,
        limits: Limits,
        known: Callable[[bytes], None],
    ) -> None:
        self._reader, self._writer = reader, writer
        self._inside, self._limits, self._known = inside, limits, known
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES)
        peer = writer.get_extra_info("peername") or ("?",)
        self.address = str(peer[0])
        self._who = self._what = ""

    async def serve(self) -> None:
        """Answer until the caller leaves, takes too long or is refused."""
        wait = self._limits.head
        while True:
            try:
                async with asyncio.timeout(wait):
                    request = await self._next()
                if not isinstance(request, h11.Request):
                    return
                await self._answer(request)
            except Refusal as refusal:
                await self._refuse(refusal)
                return
            except h11.RemoteProtocolError as error:
                await self._refuse(Refusal(400, f"not HTTP as it should be: {error}"))
                return
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return
            self._http.start_next_cycle()
            wait = self._limits.idle if self._who else self._limits.head

    async def _answer(self, request: h11.Request) -> None:
        asked = bytes(request.method[:10] + b" " + request.target[:80])
        self._what = f"{asked.decode('ascii', 'replace')}: "
        call = call_of(request)
        if call is HEALTH:
            up = self._inside.healthy()
            return await self._say(200 if up else 503, {"status": "ok" if up else "starting"})
        headers = {bytes(name): bytes(value) for name, value in request.headers}
        node = await self._identify(call, headers)
        if call is ME and node is not None:
            return await self._say(200, {"name": node[1].name})
        # Before a byte of the body is read.
        length = body_length(request, call.largest)
        if node is not None and call.target == PUSH_OBJECT:
            self._inside.allowance.upload(node[0], length)
        if self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        try:
            async with self._inside.upstream.link() as link:
                await self._pass_on(call, headers, length, link)
                size = await self._pass_back(call, link)
        except UpstreamError as error:
            if self._http.our_state is not h11.SEND_RESPONSE:
                raise ConnectionAbortedError from None  # half an answer is out already
            raise Refusal(502, str(error)) from None
        if node is not None and call.target == PULL_MESSAGES and size:
            self._inside.allowance.asked(node[0])
        return None

    async def _identify(self, call: Call, headers: dict[bytes, bytes]) -> tuple[bytes, Node] | None:
        """Who makes a call, if that is somebody who may; a node comes with its key."""
        if call.who is Who.OPERATOR:
            tls = self._writer.get_extra_info("ssl_object")
            certificate = tls.getpeercert(binary_form=True) if tls is not None else None
            self._who = operator_of(certificate, self._inside.operators)
            self._known(b"operator " + self._who.encode())
            return None
        try:
            key, node = await node_of(headers, self._inside.registry)
        except UpstreamError as error:
            raise Refusal(503, str(error)) from None
        self._who = node.name or f"node {node.id}"
        self._known(key)
        return key, node

    async def _pass_on(
        self, call: Call, headers: dict[bytes, bytes], length: int, link: Link
    ) -> None:
        """Send a request to Flower, its body as it arrives."""
        kept = [
            (name, value) for name, value in headers.items()
            if name in PASSED or (name.startswith(b"flwr-") and not name.startswith(SECRET))
        ]  # fmt: skip
        kept += [
            (b"host", self._inside.upstream.host()), (b"content-length", b"%d" % length),
            (b"x-forwarded-for", self.address.encode()),
        ]  # fmt: skip
        await link.send(h11.Request(method=call.method, target=call.target, headers=kept))
        try:
            async with asyncio.timeout(self._limits.pause + length / self._limits.slowest):
                while not isinstance(event := await self._body(), h11.EndOfMessage):
                    await link.send(h11.Data(data=event.data))
        except TimeoutError:
            raise Refusal(408, "the body took too long") from None
        await link.send(h11.EndOfMessage())

    async def _body(self) -> h11.Data | h11.EndOfMessage:
        async with asyncio.timeout(self._limits.pause):
            event = await self._next()
        if not isinstance(event, h11.Data | h11.EndOfMessage):
            raise ConnectionAbortedError
        return event

    async def _pass_back(self, call: Call, link: Link) -> int:
        """Send Flower's answer to the caller as it arrives; returns the size of its body."""
        size = 0
        while True:
            event = await link.receive(None) if call.streams else await link.receive()
            if isinstance(event, h11.Response):
                kept = [(n, v) for n, v in event.headers if bytes(n) not in DROPPED]
                date = (b"date", formatdate(usegmt=True).encode())
                await self._send(h11.Response(status_code=event.status_code, headers=[*kept, date]))
            elif isinstance(event, h11.Data):
                size += len(event.data)
                await self._send(h11.Data(data=event.data))
            elif isinstance(event, h11.EndOfMessage):
                await self._send(h11.EndOfMessage())
                return size
            elif not isinstance(event, h11.InformationalResponse):
                raise UpstreamError("Flower broke off")

    async def _next(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(CHUNK))
        return event

    async def _say(self, status: int, content: dict[str, str]) -> None:
        """A short answer of the gate's own."""
        body = json.dumps(content).encode()
        headers = [
            (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)),
            (b"date", formatdate(usegmt=True).encode()),
        ]  # fmt: skip
        if status >= 400:
            headers.append((b"connection", b"close"))
        reason = HTTPStatus(status).phrase.encode()
        await self._send(h11.Response(status_code=status, headers=headers, reason=reason))
        if not self._what.startswith("HEAD "):
            await self._send(h11.Data(data=body))
        await self._send(h11.EndOfMessage())

    async def _refuse(self, refusal: Refusal) -> None:
        """Say why, and give a caller that is still sending a moment to see it."""
        self._inside.refused(self.address, self._who, f"{self._what}{refusal.reason}")
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        await self._say(refusal.status, {"detail": refusal.reason})
        with contextlib.suppress(h11.RemoteProtocolError):
            if isinstance(self._http.next_event(), h11.EndOfMessage):
                return
        left = 16 * CHUNK
        with contextlib.suppress(TimeoutError, ssl.SSLError):
            async with asyncio.timeout(self._limits.refused):
                while left > 0 and (data := await self._reader.read(CHUNK)):
                    left -= len(data)

    async def _send(
        self, event: h11.InformationalResponse | h11.Response | h11.Data | h11.EndOfMessage
    ) -> None:
        self._writer.write(self._http.send(event) or b"")
        async with asyncio.timeout(self._limits.pause):
            await self._writer.drain()
