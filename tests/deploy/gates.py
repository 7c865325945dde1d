"""A gate on loopback in front of a Flower that only writes down what reaches it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from loopback import HOST, make_certificates, make_inner_certificates, server_context

from deploy.certificates import create_node_key, public_half
from deploy.fields import Address
from deploy.gate.connection import Inside
from deploy.gate.conversation import Limits
from deploy.gate.identity import Node, Registry
from deploy.gate.objects import Objects
from deploy.gate.rules import Allowance
from deploy.gate.server import Gate, tls_context
from deploy.gate.upstream import Upstream
from deploy.membership import signed_headers
from deploy.operators import operators_authority
from fedrc_flwr.flower import Tls

CHUNK = 65_536


@dataclass
class Flower:
    """Answers every request alike, and keeps what it got."""

    answer: bytes = b"fine"
    status: bytes = b"200 OK"
    requests: list[tuple[bytes, bytes]] = field(default_factory=list)  # head, body

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                body, left = b"", length
                while left:
                    part = await reader.read(min(left, CHUNK))
                    if not part:
                        return
                    left -= len(part)
                    body += part
                self.requests.append((head, body))
                if head.startswith(b"GET /health"):
                    self.requests.pop()
                size = b"content-length: %d\r\n" % len(self.answer)
                head = b"HTTP/1.1 " + self.status + b"\r\nserver: flower\r\n"
                writer.write(head + size + b"\r\n")
                writer.write(self.answer)
                await writer.drain()
        writer.close()


@dataclass
class Opened:
    """An open gate, and what is known about it."""

    folder: Path
    port: int
    flower: Flower
    nodes: dict[bytes, Node]
    refused: list[tuple[str, str, str]]
    questions: list[None]
    healthy: list[bool]

    @property
    def key(self) -> Path:
        """The key of a registered node."""
        return self.folder / "node.key"

    def context(self, operator: str = "") -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.folder / "certificates" / "ca.crt"))
        if operator:
            site = self.folder / "operator"
            context.load_cert_chain(site / f"{operator}.crt", site / f"{operator}.key")
        return context

    def connect(self, operator: str = "") -> ssl.SSLSocket:
        raw = socket.create_connection((HOST, self.port), timeout=20)
        return self.context(operator).wrap_socket(raw, server_hostname=HOST)

    def talk(self, request: bytes, operator: str = "") -> bytes:
        """Everything that comes back until the gate closes or falls silent."""
        with self.connect(operator) as connection:
            connection.sendall(request)
            connection.settimeout(1.5)
            return read_all(connection)

    def status(self, request: bytes, operator: str = "") -> int:
        with self.connect(operator) as connection:
            connection.sendall(request)
            return status_of(one_answer(connection))

    def signed(self, key: Path | None = None) -> bytes:
        headers = signed_headers(key or self.key)
        return b"".join(f"{name}: {value}\r\n".encode() for name, value in headers.items())

    def call(self, target: bytes, body: bytes = b"", extra: bytes = b"") -> bytes:
        """A node's request, as a SuperNode would make it."""
        length = b"Content-Length: %d\r\n" % len(body)
        kind = b"Content-Type: application/protobuf\r\n"
        head = b"POST " + target + b" HTTP/1.1\r\nHost: gate\r\n" + kind + length
        return head + self.signed() + extra + b"\r\n" + body


def read_all(connection: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(OSError):
        while part := connection.recv(CHUNK):
            parts.append(part)
    return b"".join(parts)


def one_answer(connection: socket.socket) -> bytes:
    """A whole answer; the connection stays open."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        part = connection.recv(CHUNK)
        assert part, answer
        answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    (length,) = [line for line in head.lower().splitlines() if line.startswith(b"content-length")]
    while len(body) < int(length.partition(b":")[2]):
        body += connection.recv(CHUNK)
    return head + b"\r\n\r\n" + body


def status_of(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer[:200]
    return int(answer.split()[1])


@contextlib.contextmanager
def open_gate(
    folder: Path, limits: Limits | None = None, connections: int = 64, reply: int = 10**9
) -> Iterator[Opened]:
    """A gate in a thread of its own, with one registered node, client-0."""
    certificates = folder / "certificates"
    if not certificates.exists():
        make_certificates(certificates)
    inner = make_inner_certificates(folder)
    if not (folder / "node.key").exists():
        create_node_key(folder / "node.key")
    flower = Flower()
    nodes = {public_half(folder / "node.key"): Node(7, "client-0")}
    opened = Opened(folder, 0, flower, nodes, [], [], [True])

    async def ask() -> dict[bytes, Node]:
        opened.questions.append(None)
        return dict(nodes)

    async def everything(ready: threading.Event) -> None:
        behind = await asyncio.start_server(flower.serve, HOST, 0, ssl=server_context(inner))
        port = behind.sockets[0].getsockname()[1]
        upstream = Upstream(
            Address(HOST, port), ssl.create_default_context(cafile=str(inner / "ca.crt"))
        )
        authority = operators_authority(certificates)
        inside = Inside(
            upstream, Registry(ask, lambda nodes: None), Allowance(reply),
            certificates if authority else None, lambda: opened.healthy[0],
            lambda *what: opened.refused.append(what), Objects(folder / "objects"),
        )  # fmt: skip
        tls = Tls(*(certificates / name for name in ("ca.crt", "server.crt", "server.key")))
        gate = Gate(tls_context(tls, authority), inside, connections, limits)

        def known(port: int) -> None:
            opened.port = port
            ready.set()

        async with behind:
            try:
                await gate.serve(Address(HOST, 0), known)
            finally:
                upstream.close()
                await asyncio.sleep(0.05)  # Flower sees that they are closed

    with _in_a_thread(everything):
        yield opened


@contextlib.contextmanager
def _in_a_thread(work: Callable[[threading.Event], Awaitable[None]]) -> Iterator[None]:
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    tasks: list[asyncio.Future[None]] = []

    async def main() -> None:
        tasks.append(asyncio.ensure_future(work(ready)))
        with contextlib.suppress(asyncio.CancelledError):
            await tasks[0]
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(tasks[0].cancel)
        thread.join(20)
        loop.close()
