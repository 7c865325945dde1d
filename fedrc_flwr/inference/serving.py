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
from fedrc_flwr.inference.doors import (
    TokenInterceptor,
    Turnstile,
    is_loopback,
    limited_protocol,
    read_token,
    with_token,
)
from fedrc_flwr.inference.personalised import Personal
from fedrc_flwr.inference.protocol import SERVICE

#: How long a gRPC connection lasts; clients reconnect by themselves.
CONNECTION_MS = 300_000
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
    token_file : who asks must know the token in it
    client_ca : who asks must have a certificate of this authority
    open : serve everybody, on an address that others can reach too
    request_seconds : how long a request may take to arrive
    max_connections, max_per_address : of HTTP, in all and from each address
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
    token_file: Path | None = None
    client_ca: Path | None = None
    open: bool = False
    request_seconds: float = 10.0
    max_connections: int = 1024
    max_per_address: int = 256

    def check(self) -> None:
        """Refuse to serve strangers, or a token in plain text, unless that is asked for."""
        if self.client_ca is not None and self.tls_cert is None:
            raise ConfigError("--client-ca: client certificates need --tls-cert and --tls-key")
        if is_loopback(self.host) or self.open:
            return
        if self.token_file is None and self.client_ca is None:
            raise ConfigError(
                f"--host {self.host}: others can reach this address: give --token-file or "
                "--client-ca, or --open to serve whoever asks"
            )
        if self.tls_cert is None:
            raise ConfigError(
                f"--host {self.host}: a token needs TLS there: give --tls-cert and --tls-key, or "
                "--open if a proxy in front does it"
            )


def serve(model: Personal, options: ServeOptions, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then finish the requests in progress.

    Parameters
    ----------
    say : called with a line when the server is ready, and when it stops
    """
    asyncio.run(_serve_until_signal(model, options, say))


async def _serve_until_signal(
    model: Personal, options: ServeOptions, say: Callable[[str], None]
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve_until(stop, model, options, say)


async def serve_until(
    stop: asyncio.Event, model: Personal, options: ServeOptions, say: Callable[[str], None]
) -> None:
    """Serve until ``stop`` is set, then finish the requests in progress."""
    from fedrc_flwr.inference.endpoint import Endpoint

    options.check()
    credentials = _credentials(options)
    token = None if options.token_file is None else read_token(options.token_file)
    endpoint = Endpoint(
        options.name, model, options.max_batch, options.batch_delay, options.max_requests
    )
    try:
        rpc, port, checks = _grpc_server(endpoint, options, credentials, token)
        web = None if options.http_port is None else _HttpServer(endpoint, options, token)
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
    endpoint: Any, options: ServeOptions, credentials: Any, token: str | None
) -> tuple[Any, int, health.aio.HealthServicer]:
    from fedrc_flwr.inference.rpc import handlers

    server = grpc.aio.server(
        interceptors=[] if token is None else [TokenInterceptor(token)],
        options=[
            ("grpc.max_receive_message_length", options.max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # a second server on the same port is an error
            # gRPC silently cancels requests that wait for Python once there are 1000 of them, or
            # after 30 seconds. The endpoint has its own limit, which tells the client why.
            ("grpc.server.max_pending_requests", PENDING * options.max_requests),
            ("grpc.server.max_pending_requests_hard_limit", PENDING * options.max_requests),
            ("grpc.server_max_unrequested_time_in_server", 3600),
            ("grpc.max_metadata_size", 16_384),
            ("grpc.server_handshake_timeout_ms", round(1000 * options.request_seconds)),
            # A half-sent message ends with its connection at the latest.
            ("grpc.max_connection_age_ms", CONNECTION_MS),
            ("grpc.max_connection_age_grace_ms", round(1000 * options.grace)),
        ],
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

    def __init__(self, endpoint: Any, options: ServeOptions, token: str | None) -> None:
        import uvicorn

        from fedrc_flwr.inference.web import application

        doors = Turnstile(options.max_connections, options.max_per_address)
        web: Any = application(
            endpoint, options.max_message_bytes, options.request_seconds, lambda: doors.full
        )

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
        if options.client_ca is not None:
            tls |= {"ssl_ca_certs": str(options.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
        config = uvicorn.Config(
            web if token is None else with_token(web, token), log_level="warning",
            http=limited_protocol(doors, options.request_seconds), ws="none",
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
    if options.client_ca is None:
        return grpc.ssl_server_credentials([(key, certificate)])
    try:
        ssl.create_default_context(cafile=str(options.client_ca))
        authority = options.client_ca.read_bytes()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--client-ca {options.client_ca}: {error}") from None
    return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
