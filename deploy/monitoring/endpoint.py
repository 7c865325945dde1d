"""The port that Prometheus asks: one page, made at most once a second, however many ask for it."""

from __future__ import annotations

import ipaddress
import math
import socket
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from deploy.fields import Address
from fedrc_flwr.errors import ConfigError

#: How long an answer is given again before another one is made.
KEPT_SECONDS = 1.0
#: Connections that are served at once, and seconds until a slow one is ended.
MOST_CONNECTIONS, CONNECTION_SECONDS = 32, 2.0
PATH = "/metrics"


class Page:
    """The text of all metrics, which ``collect`` gives."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self.collect = collect
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._lock = threading.Lock()
        self._made = -math.inf
        self._text = b""

    def describe(self) -> list[Metric]:
        """Nothing: asking for names must not collect values."""
        return []

    def text(self) -> bytes:
        """The page; whoever asks while it is made waits for it."""
        with self._lock:
            if time.monotonic() - self._made >= KEPT_SECONDS:
                self._text = generate_latest(self._registry)
                self._made = time.monotonic()
            return self._text


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: Address, page: Page) -> None:
        self.page = page
        self.on_loopback = address.on_loopback
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((address.host, address.port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        # Whoever comes while all are busy waits here, and the system's queue behind it.
        self._room.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The other side has gone, or was too slow."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = CONNECTION_SECONDS
    server_version, sys_version = "fedrc", ""

    def do_GET(self) -> None:
        if self.server.on_loopback and not _names_loopback(self.headers.get("Host", "")):
            # A page in a browser could otherwise read this under a name of its own.
            self._answer(421, b"ask for localhost or 127.0.0.1\n", "text/plain")
        elif self.path.partition("?")[0] != PATH:
            self._answer(404, f"only {PATH} is here\n".encode(), "text/plain")
        else:
            self._answer(200, self.server.page.text(), CONTENT_TYPE_LATEST)

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """A line for each question would fill the log."""


def _names_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return name in ("", "localhost")


def opened(address: Address, collect: Callable[[], Iterable[Metric]]) -> ThreadingHTTPServer:
    """The endpoint, which listens from now on and answers once it is served."""
    try:
        return _Server(address, Page(collect))
    except OSError as error:
        raise ConfigError(
            f"metrics = {address}: cannot listen there: {error.strerror or error}; choose another "
            "port"
        ) from None


def serve_beside(address: Address, collect: Callable[[], Iterable[Metric]]) -> ThreadingHTTPServer:
    """Answer in the background for as long as this process lives."""
    server = opened(address, collect)
    threading.Thread(target=server.serve_forever, daemon=True, name="metrics").start()
    return server
