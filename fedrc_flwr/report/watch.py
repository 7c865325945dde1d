"""The report served live: the same page, with new contents as the run writes them.

It only reads the run's files, so it never affects the run.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import secrets
import socket
import threading
from pathlib import Path

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from fedrc_flwr.checkpoint import CHECKPOINTS
from fedrc_flwr.errors import ConfigError, DataError
from fedrc_flwr.report.contents import gather
from fedrc_flwr.report.log import CONFIG, METRICS, SUMMARY
from fedrc_flwr.report.page import render, to_text

COOKIE = "fedrc-watch"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
HEADERS = {
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Contents:
    """The run's contents as JSON, made again only when its files have changed."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._stamp: object = None
        self._text = ""
        self._tag = ""

    def read(self) -> tuple[str, str]:
        """The JSON and a tag that changes with it."""
        with self._lock:
            stamp = _stamp(self._run)
            if stamp != self._stamp:
                self._text = to_text(gather(self._run))
                self._tag = f'"{hashlib.sha256(self._text.encode()).hexdigest()[:32]}"'
                self._stamp = stamp
            return self._text, self._tag


def _stamp(run: Path) -> list[tuple[str, int, int]]:
    files = [run / METRICS, run / SUMMARY, run / CONFIG, *(run / CHECKPOINTS).glob("round-*")]
    found = []
    for path in files:
        try:
            about = path.stat()
        except FileNotFoundError:  # not there yet, or no longer
            continue
        found.append((path.name, about.st_size, about.st_mtime_ns))
    return sorted(found)


def viewer(run: Path, token: str | None) -> FastAPI:
    """The web app.

    Parameters
    ----------
    token : what a request must carry; None if only this machine can connect. Then the Host header
        must name this machine, as a defence against DNS rebinding
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    contents = Contents(run)

    def guard(request: Request) -> None:
        if token is None:
            if request.url.hostname not in LOOPBACK_NAMES:
                raise HTTPException(421, "ask for localhost or 127.0.0.1", HEADERS)
        elif not any(_same(given, token) for given in _given(request)):
            raise HTTPException(
                401, "open the address that fedrc watch printed, with its token", HEADERS
            )

    allowed = [Depends(guard)]

    @app.get("/", dependencies=allowed)
    def page(request: Request) -> Response:
        if token is not None and "token" in request.query_params:
            # The token is removed from the address, so that it is not kept in the history.
            reply: Response = RedirectResponse("/", 303, HEADERS)
            reply.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return reply
        try:
            return HTMLResponse(render(gather(run), live=True), headers=HEADERS)
        except DataError as error:
            raise HTTPException(404, str(error), HEADERS) from None

    @app.get("/contents.json", dependencies=allowed)
    def read(request: Request) -> Response:
        try:
            text, tag = contents.read()
        except DataError as error:
            raise HTTPException(404, str(error), HEADERS) from None
        headers = {**HEADERS, "ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(text, media_type="application/json", headers=headers)

    return app


def _given(request: Request) -> list[str]:
    """Every place in which a request may carry the token."""
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    return [
        request.query_params.get("token", ""),
        request.cookies.get(COOKIE, ""),
        credentials if scheme.lower() == "bearer" else "",
    ]


def _same(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode(), token.encode())


def bind(host: str, port: int) -> tuple[socket.socket, bool]:
    """A listening socket, and whether only this machine can reach it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--host {host} --port {port}: cannot listen there ({error}); choose another port, or "
            "--port 0 for any free one"
        ) from None
    return listening, ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback


def address_of(listening: socket.socket, host: str, token: str | None) -> str:
    """What to type into a browser."""
    name = f"[{host}]" if ":" in host else host
    port = listening.getsockname()[1]
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def serve(run: Path, listening: socket.socket, token: str | None) -> None:
    """Answer until stopped by Ctrl-C."""
    os.nice(5)  # training has priority
    # No access log: it would hold the token.
    config = uvicorn.Config(viewer(run, token), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listening])
