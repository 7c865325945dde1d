"""The node's own port, on loopback: its health, and where its executor comes in."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from deploy.fields import Address
from deploy.node.tally import Tally

#: How long a caller may take for a request, and how many are served at the same time.
CALLER_SECONDS, MOST_CALLERS = 10.0, 32
EXECUTOR = "/executor"
PROTOCOL = "fedrc-executor"


class Door(ThreadingHTTPServer):
    """Answers ``GET /health``; with ``welcome``, lets an executor in.

    Parameters
    ----------
    welcome : gets the connection of a caller that wants to be the executor, and keeps it until it
        returns
    """

    daemon_threads = True

    def __init__(
        self, listen: Address, tally: Tally, welcome: Callable[[socket.socket], None] | None
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        super().__init__((listen.host, listen.port), _Caller)
        self.tally = tally
        self.welcome = welcome
        self.room = threading.BoundedSemaphore(MOST_CALLERS)

    def open(self) -> None:
        """Serve in the background."""
        threading.Thread(target=self.serve_forever, daemon=True, name="door").start()


class _Caller(BaseHTTPRequestHandler):
    timeout = CALLER_SECONDS
    server: Door

    def handle(self) -> None:
        """Serve one caller, if there is room."""
        if not self.server.room.acquire(blocking=False):
            return
        try:
            super().handle()
        except OSError:  # it left
            pass
        finally:
            self.server.room.release()

    def do_GET(self) -> None:
        """Health, or an executor that introduces itself."""
        if self.path == "/health":
            self._health()
        elif self.path == EXECUTOR and self.server.welcome is not None:
            self.send_response(HTTPStatus.SWITCHING_PROTOCOLS)
            self.send_header("Upgrade", PROTOCOL)
            self.send_header("Connection", "Upgrade")
            self.end_headers()
            self.close_connection = True
            self.server.welcome(self.connection)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _health(self) -> None:
        online, busy = self.server.tally.online, self.server.tally.busy
        told = json.dumps({"status": "ok" if online else "not signed on", "busy": busy}).encode()
        self.send_response(HTTPStatus.OK if online else HTTPStatus.SERVICE_UNAVAILABLE)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: health is asked every few seconds."""
