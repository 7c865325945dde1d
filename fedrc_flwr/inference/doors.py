"""Who gets in, and how long they may take: tokens, and limits on connections and requests."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

from fedrc_flwr.errors import ConfigError
from fedrc_flwr.inference.protocol import SERVICE

#: Shortest token, in characters.
SHORTEST = 16
#: Paths and methods that anybody may ask for: whether the server lives and is ready.
OPEN_PATHS = ("/v2/health/live", "/v2/health/ready")
OPEN_METHODS = (f"/{SERVICE}/ServerLive", f"/{SERVICE}/ServerReady", "/grpc.health.v1.Health/Check",
                "/grpc.health.v1.Health/Watch")  # fmt: skip


def read_token(path: Path) -> str:
    """The token in a file, which is the first line of it."""
    try:
        lines = path.read_text("utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {path}: {error}") from None
    if len(lines) != 1 or len(lines[0]) < SHORTEST or not lines[0].isascii():
        raise ConfigError(
            f"--token-file {path}: expected one word of at least {SHORTEST} characters, such as "
            "`openssl rand -hex 32` makes"
        )
    return lines[0]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def with_token(application: Any, token: str) -> Any:
    """An ASGI application that answers those who know the token."""

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        known = hmac.compare_digest(given, f"Bearer {token}".encode())
        if known or scope["path"] in OPEN_PATHS:
            await application(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer"),
                   (b"connection", b"close")]  # fmt: skip
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"error": "no valid token"}'})

    return guarded


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses gRPC calls without the token, before their message is read."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()
        # As a stream: the handler of a single message is not called before the message has arrived.
        self._refusal = grpc.stream_unary_rpc_method_handler(_unauthenticated)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        """The method's own handler, or one that refuses."""
        if details.method in OPEN_METHODS:
            return await continuation(details)
        given = dict(details.invocation_metadata or ()).get("authorization", "")
        given = given if isinstance(given, bytes) else str(given).encode()
        if hmac.compare_digest(given, self._expected):
            return await continuation(details)
        return self._refusal


async def _unauthenticated(requests: Any, context: Any) -> bytes:
    return await context.abort(  # type: ignore[no-any-return]
        grpc.StatusCode.UNAUTHENTICATED, "no valid token"
    )


class Turnstile:
    """How many connections there are, in all and from each address."""

    def __init__(self, most: int, most_from_one: int) -> None:
        self._most = most
        self._most_from_one = most_from_one
        self._from: Counter[str] = Counter()

    @property
    def full(self) -> bool:
        """Whether no further connection is accepted."""
        return self._from.total() >= self._most

    def enter(self, address: str) -> bool:
        """Count a connection in; False if there are too many."""
        if self.full or self._from[address] >= self._most_from_one:
            return False
        self._from[address] += 1
        return True

    def leave(self, address: str) -> None:
        """Count it out."""
        self._from[address] -= 1
        if self._from[address] <= 0:
            del self._from[address]


def limited_protocol(turnstile: Turnstile, seconds: float) -> type[asyncio.Protocol]:
    """Uvicorn's protocol, but a connection that sends no whole head of a request is closed.

    uvicorn itself waits for the rest of a head for ever.
    """
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class Limited(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        """One connection."""

        def connection_made(self, transport: Any) -> None:
            self._address = str((transport.get_extra_info("peername") or ("",))[0])
            self._inside = turnstile.enter(self._address)
            self._clock: asyncio.TimerHandle | None = None
            super().connection_made(transport)
            if self._inside:
                self._watch()
            else:
                transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            cycle = getattr(self, "cycle", None)
            if cycle is not None and not cycle.response_complete:
                self._stop_clock()
            elif self._clock is None:
                self._watch()

        def connection_lost(self, error: Exception | None) -> None:
            self._stop_clock()
            if self._inside:
                self._inside = False
                turnstile.leave(self._address)
            super().connection_lost(error)

        def _watch(self) -> None:
            loop = asyncio.get_running_loop()
            self._clock = loop.call_later(seconds, self.transport.abort)

        def _stop_clock(self) -> None:
            if self._clock is not None:
                self._clock.cancel()
                self._clock = None

    return Limited
