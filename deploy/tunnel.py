"""An operator's way to the control interface from elsewhere: through the gate, with a certificate.

Flower's programs cannot show a certificate. So they connect to a port on loopback, from which
everything is passed on to the gate.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from deploy.exposure import CONNECT_SECONDS, LIST_NODES
from deploy.fields import Address, read_file
from deploy.files import read_superlink_file
from deploy.gate.upstream import CHUNK
from fedrc_flwr.errors import ConfigError

HERE = Address("127.0.0.1", 8003)


@dataclass(frozen=True)
class OperatorFile:
    """An operator's file.

    Parameters
    ----------
    superlink : the gate's address, as nodes use it
    ca : the federation's ca.crt
    certificate, key : what `fedrc certs operator` made
    listen : where `fedrc tunnel` listens, on loopback
    """

    superlink: Address
    ca: Path
    certificate: Path
    key: Path
    listen: Address = HERE


@dataclass(frozen=True)
class Reach:
    """Where Flower's control interface is, as seen from here."""

    flower: Address
    inner_ca: Path | None


def read_operator_file(path: Path) -> OperatorFile:
    """Read and check operator.yaml."""
    file = OperatorFile(**read_file(path, OperatorFile))
    if not file.listen.on_loopback:
        raise ConfigError(f"{path}: listen = {file.listen}: expected an address on loopback")
    return file


@contextlib.contextmanager
def reaching(path: Path) -> Iterator[Reach]:
    """The control interface of a superlink.yaml on the server, or of an operator.yaml elsewhere."""
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if isinstance(content, dict) and "superlink" in content:
        with _opened(read_operator_file(path)) as address:
            yield Reach(address, None)
    else:
        server = read_superlink_file(path)
        yield Reach(server.flower, server.inner_ca)


def keep_open(file: OperatorFile, opened: Callable[[Address], None]) -> None:
    """Pass on until interrupted."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(file.superlink, _admitted(file), file.listen, opened))


@contextlib.contextmanager
def _opened(file: OperatorFile) -> Iterator[Address]:
    """Pass on in the background, from a port that is free."""
    context = _admitted(file)
    ready = threading.Event()
    found: list[Address] = []
    stops: list[Callable[[], object]] = []

    def opened(address: Address) -> None:
        found.append(address)
        ready.set()

    async def work() -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        stops.append(lambda: loop.call_soon_threadsafe(stopped.set))
        serving = asyncio.create_task(
            _serve(file.superlink, context, Address("127.0.0.1", 0), opened)
        )
        serving.add_done_callback(lambda _: ready.set())
        await stopped.wait()
        serving.cancel()

    # Its end waits for the connections that are open still.
    thread = threading.Thread(target=lambda: asyncio.run(work()), daemon=True)
    thread.start()
    ready.wait()
    try:
        if not found:
            raise ConfigError("no port on loopback could be opened")
        yield found[0]
    finally:
        stops[0]()
        thread.join()


async def _serve(
    gate: Address, context: ssl.SSLContext, listen: Address, opened: Callable[[Address], None]
) -> None:
    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(gate.host, gate.port, ssl=context, limit=CHUNK)
        except OSError as error:
            print(f"{gate} cannot be reached: {error}", flush=True)
            writer.transport.abort()
            return
        try:
            await asyncio.gather(_pump(reader, there[1]), _pump(there[0], writer))
        except (OSError, asyncio.CancelledError):
            pass  # one side hung up, or the tunnel is being closed
        finally:
            writer.transport.abort()
            there[1].transport.abort()

    server = await asyncio.start_server(pass_on, listen.host, listen.port, limit=CHUNK)
    async with server:
        opened(Address(listen.host, server.sockets[0].getsockname()[1]))
        await server.serve_forever()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
    writer.close()


def _context(file: OperatorFile) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=str(file.ca))
        context.load_cert_chain(file.certificate, file.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{file.certificate}, {file.key} or {file.ca} cannot be used: {error}; `fedrc certs "
            "operator` makes a certificate on the server"
        ) from None
    return context


def _admitted(file: OperatorFile) -> ssl.SSLContext:
    """What to connect with, once the gate has admitted this operator."""
    context = _context(file)
    gate = file.superlink
    connection = http.client.HTTPSConnection(
        gate.host, gate.port, timeout=CONNECT_SECONDS, context=context
    )
    try:
        connection.connect()
    except OSError as error:
        raise ConfigError(f"{gate} cannot be reached: {error}") from None
    try:
        # With TLS 1.3 the other side's verdict on a certificate arrives with the first answer.
        connection.request("POST", LIST_NODES, b"", {"Content-Type": "application/protobuf"})
        response = connection.getresponse()
        content = response.read()
    except (OSError, http.client.HTTPException):
        raise ConfigError(
            f"{gate} hangs up on {file.certificate}: it is not a certificate of this server's "
            "operators, or it has expired; `fedrc certs operator` makes one on the server"
        ) from None
    finally:
        connection.close()
    if response.status == http.HTTPStatus.FORBIDDEN:
        raise ConfigError(f"{gate} refuses {file.certificate}: {json.loads(content)['detail']}")
    return context
