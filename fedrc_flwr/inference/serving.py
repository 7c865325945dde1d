"""A server for one client's model: gRPC and HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from fedrc_flwr.errors import ConfigError
from fedrc_flwr.inference.personalised import Personal
from fedrc_flwr.inference.protocol import SERVICE

#: Requests that may wait, for each one that may be in progress.
PENDING = 4


@dataclass(frozen=True)
class ServeOptions:
    """How a model is served; see ``fedrc serve --help``.

    Parameters
    ----------
    port, http_port : 0: any that is free; None: not at all
    batch_delay : seconds to wait for more samples
    grace : seconds to finish requests in progress on shutdown
    """

    name: str = "fedrc"
    host: str = "127.0.0.1"
    port: int = 8001
    http_port: int | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    max_batch: int = 256
    batch_delay: float = 0.0
    max_requests: int = 1024
    max_message_bytes: int = 16 * 2**20
    grace: float = 30.0


def serve(model: Personal, options: ServeOptions, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then finish the requests in progress.

    Parameters
    ----------
    say : called with a line when the server is ready, and when it stops
    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise ConfigError(
            'serving needs prometheus-client: pip install "fedrc-flwr[serve]"'
        ) from None
    asyncio.run(_serve(model, options, say))


async def _serve(model: Personal, options: ServeOptions, say: Callable[[str], None]) -> None:
    from fedrc_flwr.inference.endpoint import Endpoint

    credentials = _credentials(options)
    endpoint = Endpoint(
        options.name, model, options.max_batch, options.batch_delay, options.max_requests
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        rpc, port, checks = _grpc_server(endpoint, options, credentials)
        web = None if options.http_port is None else _HttpServer(endpoint, options)
        await checks.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        await rpc.start()
        where = f"gRPC on {options.host}:{port}"
        if web is not None:
            await web.start()
            where += f", HTTP on {options.host}:{web.port}"
        say(f"serving {options.name}: {where}" + (", with TLS" if credentials else ""))
        await stop.wait()
        say("stopping: finishing the requests in progress")
        endpoint.ready = False
        await checks.enter_graceful_shutdown()
        await asyncio.gather(rpc.stop(options.grace), *([web.stop()] if web else []))
    finally:
        await endpoint.close()


def _grpc_server(
    endpoint: Any, options: ServeOptions, credentials: Any
) -> tuple[Any, int, health.aio.HealthServicer]:
    from fedrc_flwr.inference.rpc import handlers

    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", options.max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # a second server on the same port is an error
            # gRPC silently cancels requests that wait for Python once there are 1000 of them, or
            # after 30 seconds. The endpoint has its own limit, which tells the client why.
            ("grpc.server.max_pending_requests", PENDING * options.max_requests),
            ("grpc.server.max_pending_requests_hard_limit", PENDING * options.max_requests),
            ("grpc.server_max_unrequested_time_in_server", 3600),
        ]
    )
    server.add_generic_rpc_handlers((handlers(endpoint),))
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    address = f"{options.host}:{options.port}"
    try:
        port = (
            server.add_secure_port(address, credentials)
            if credentials
            else server.add_insecure_port(address)
        )
    except RuntimeError as error:
        raise ConfigError(f"cannot listen on {address}: {error}") from None
    return server, port, checks


class _HttpServer:
    """uvicorn in the same event loop, without signal handlers of its own."""

    def __init__(self, endpoint: Any, options: ServeOptions) -> None:
        import uvicorn

        from fedrc_flwr.inference.web import application

        class Quiet(uvicorn.Server):
            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield

        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        self._socket = socket.socket(family)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((options.host, options.http_port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {options.host}:{options.http_port}: {error}"
            ) from None
        self.port: int = self._socket.getsockname()[1]
        tls: dict[str, Any] = {}
        if options.tls_cert is not None:
            tls = {"ssl_certfile": options.tls_cert, "ssl_keyfile": options.tls_key}
        config = uvicorn.Config(
            application(endpoint, options.max_message_bytes), log_level="warning",
            timeout_graceful_shutdown=max(1, round(options.grace)), lifespan="off", **tls,
        )  # fmt: skip
        self._server = Quiet(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve([self._socket]))
        while not self._server.started:
            if self._task.done():
                raise ConfigError(f"HTTP on port {self.port} did not start")
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task


def _credentials(options: ServeOptions) -> Any:
    """The gRPC server's TLS credentials, checked before it starts; None without TLS."""
    files = {"--tls-cert": options.tls_cert, "--tls-key": options.tls_key}
    given = [name for name, path in files.items() if path is not None]
    if not given:
        return None
    if len(given) != 2:
        raise ConfigError(f"TLS: expected --tls-cert and --tls-key, found {given[0]} alone")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            str(options.tls_cert), str(options.tls_key)
        )
        certificate = Path(str(options.tls_cert)).read_bytes()
        key = Path(str(options.tls_key)).read_bytes()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS: certificate and key cannot be used: {error}") from None
    return grpc.ssl_server_credentials([(key, certificate)])
