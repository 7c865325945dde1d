"""One caller's connection: a request is judged by its head and passed on piece by piece.

What Flower receives is written anew from what was understood, never copied, so caller and Flower
cannot disagree about where a request ends or which call it makes.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import h11
from flwr.proto.message_pb2 import PushObjectResponse

from deploy.gate.conversation import Conversation, Limits, once, pieces, protobuf
from deploy.gate.identity import Node, Registry, node_of, operator_of
from deploy.gate.objects import Objects
from deploy.gate.rules import (
    HEALTH,
    ME,
    PULL_MESSAGES,
    PULL_OBJECT,
    PUSH_MESSAGES,
    PUSH_OBJECT,
    Allowance,
    Call,
    Refusal,
    Who,
    body_length,
    call_of,
)
from deploy.gate.upstream import Link, Upstream, UpstreamError

PASSED = {b"content-type", b"accept", b"accept-encoding", b"user-agent"}
SECRET = b"flwr-superexec"  # for programs on the server's own machine
#: What belongs to one connection, or is written anew.
DROPPED = {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"server", b"date"}
#: Says that a question was held back until there was an answer: it may be asked again at once.
HELD = b"fedrc-held"


@dataclass(frozen=True)
class Inside:
    """What is behind the gate.

    Parameters
    ----------
    operators : directory with the operators' list; None: operators are not admitted
    healthy : whether Flower is up
    objects : what is handed over past Flower
    refused : called with the caller's address, who it is, and why it was refused
    """

    upstream: Upstream
    registry: Registry
    allowance: Allowance
    operators: Path | None
    healthy: Callable[[], bool]
    refused: Callable[[str, str, str], None]
    objects: Objects


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
        self._writer = writer
        self._inside, self._limits, self._known = inside, limits, known
        self._http = Conversation(reader, writer, limits)
        peer = writer.get_extra_info("peername") or ("?",)
        self.address = str(peer[0])
        self._who = self._what = ""

    async def serve(self) -> None:
        """Answer until the caller leaves, takes too long or is refused."""
        wait = self._limits.head
        while True:
            try:
                request = await self._http.request(wait)
                if request is None:
                    return
                await self._answer(request)
            except Refusal as refusal:
                await self._refuse(refusal)
                return
            except h11.RemoteProtocolError as error:
                await self._refuse(Refusal(400, f"not HTTP as it should be: {error}"))
                return
            if not self._http.goes_on():
                return
            wait = self._limits.idle if self._who else self._limits.head

    async def _answer(self, request: h11.Request) -> None:
        asked = bytes(request.method[:10] + b" " + request.target[:80])
        self._what = f"{asked.decode('ascii', 'replace')}: "
        call = call_of(request)
        if call is HEALTH:
            up = self._inside.healthy()
            return await self._http.say(200 if up else 503, {"status": "ok" if up else "starting"})
        headers = {bytes(name): bytes(value) for name, value in request.headers}
        node = await self._identify(call, headers)
        if call is ME and node is not None:
            return await self._http.say(200, {"name": node[1].name})
        # Before a byte of the body is read.
        length = body_length(request, call.largest)
        if node is not None and call.target == PUSH_OBJECT:
            self._inside.allowance.upload(node[0], length)
        await self._http.encourage()
        try:
            if node is not None and call.target in (PULL_MESSAGES, PUSH_MESSAGES):
                await self._exchange(call, headers, length, *node)
            elif node is None or not await self._hand_over(call, headers, length, node[0]):
                await self._relay(call, headers, length, self._http.body(length))
        except UpstreamError as error:
            if self._http.answering:
                raise ConnectionAbortedError from None  # half an answer is out already
            raise Refusal(502, str(error)) from None
        return None

    async def _relay(
        self, call: Call, headers: dict[bytes, bytes], length: int, body: AsyncIterator[bytes]
    ) -> None:
        """Pass a request on and the answer back, piece by piece."""
        async with self._inside.upstream.link() as link:
            await self._pass_on(call, headers, length, link, body)
            await self._pass_back(call, link)

    async def _exchange(
        self, call: Call, headers: dict[bytes, bytes], length: int, key: bytes, node: Node
    ) -> None:
        """A node asks for messages, or sends a reply without its objects."""
        body, objects = await self._http.small_body(length), self._inside.objects
        pushed = objects.replies(body, node.id) if call.target == PUSH_MESSAGES else None
        ends, held = time.monotonic() + self._limits.hold, False
        while True:
            seen = objects.posted()
            async with self._inside.upstream.link() as link:
                await self._pass_on(call, headers, length, link, once(body))
                response, answer = await link.answer()
            left = ends - time.monotonic()
            asks = call.target == PULL_MESSAGES and response.status_code == 200 and not answer
            if not asks or left <= 0 or not objects.runs():
                break
            held = True
            await objects.news(seen, left)
            if self._http.is_left():  # Flower would take a message for delivered
                raise ConnectionAbortedError
        if response.status_code == 200 and pushed is not None:
            objects.announced(key, pushed, answer)
        elif response.status_code == 200 and answer:
            self._inside.allowance.asked(key)
        kept = [(n, v) for n, v in response.headers if bytes(n) not in DROPPED]
        await self._http.answer(response.status_code, [*kept, *[(HELD, b"1")] * held], answer)

    async def _hand_over(
        self, call: Call, headers: dict[bytes, bytes], length: int, node: bytes
    ) -> bool:
        """Answer a node's call about an object from the shelf, or pass it on after a look at it."""
        objects = self._inside.objects
        if call.target == PULL_OBJECT:
            asked = await self._http.small_body(length)
            answer = objects.pulled(asked)
            if answer is None:
                await self._relay(call, headers, length, once(asked))
            elif isinstance(answer, bytes):
                await self._http.answer(200, protobuf(len(answer)), answer)
            else:
                await self._http.give(answer)
            return True
        if call.target != PUSH_OBJECT or not objects.expects(node):
            return False
        body = objects.body()
        try:
            with open(body, "xb", buffering=0) as file:
                async for piece in self._http.body(length):
                    file.write(piece)
            if await objects.left(node, body):
                done = PushObjectResponse(stored=True).SerializeToString()
                await self._http.answer(200, protobuf(len(done)), done)
            else:
                await self._relay(call, headers, length, pieces(body))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise Refusal(507, "the server's disk is full") from None
        finally:
            body.unlink(missing_ok=True)
        return True

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
        self,
        call: Call,
        headers: dict[bytes, bytes],
        length: int,
        link: Link,
        body: AsyncIterator[bytes],
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
        async for piece in body:
            await link.send(h11.Data(data=piece))
        await link.send(h11.EndOfMessage())

    async def _pass_back(self, call: Call, link: Link) -> None:
        """Send Flower's answer to the caller as it arrives."""
        while True:
            event = await link.receive(None) if call.streams else await link.receive()
            if isinstance(event, h11.Response):
                kept = [(n, v) for n, v in event.headers if bytes(n) not in DROPPED]
                await self._http.head(event.status_code, kept)
            elif isinstance(event, h11.Data):
                await self._http.send(h11.Data(data=event.data))
            elif isinstance(event, h11.EndOfMessage):
                await self._http.send(h11.EndOfMessage())
                return
            elif not isinstance(event, h11.InformationalResponse):
                raise UpstreamError("Flower broke off")

    async def _refuse(self, refusal: Refusal) -> None:
        """Say why."""
        self._inside.refused(self.address, self._who, f"{self._what}{refusal.reason}")
        if not self._http.answering:
            bodiless = self._what.startswith("HEAD ")
            await self._http.say(refusal.status, {"detail": refusal.reason}, bodiless)
            await self._http.linger()
