"""Small servers on loopback, and the files that point to them."""

from __future__ import annotations

import datetime
import email.utils
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from deploy import certificates, preflight
from deploy.certificates import create_authority, issue_server_certificate
from deploy.files import NodeFile, SuperLinkFile, read_node_file, read_superlink_file
from deploy.launch import ensure_inner_certificate

HOST = "127.0.0.1"


def http_date(seconds_off: float = 0.0) -> str:
    now = datetime.datetime.now(datetime.UTC)
    return email.utils.format_datetime(now + datetime.timedelta(seconds=seconds_off), usegmt=True)


def server_context(directory: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.crt", directory / "server.key")
    return context


@contextmanager
def health_server(
    tls: Path | None = None, status: int = 200, date: str | None = None, port: int = 0
) -> Iterator[int]:
    """Answers GET /health as told, all else with 400; yields its port."""
    context = server_context(tls) if tls else None
    with socket.create_server((HOST, port)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            while True:
                connection, _ = listener.accept()
                if stopped.is_set():
                    connection.close()
                    return
                try:
                    if context is not None:
                        connection = context.wrap_socket(connection, server_side=True)
                    _answer(connection, status, date)
                except OSError:  # the other side hung up, or spoke no TLS
                    pass
                finally:
                    connection.close()

        stopped = threading.Event()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield port
        finally:
            stopped.set()
            socket.create_connection((HOST, port)).close()
            thread.join()


def _answer(connection: socket.socket, status: int, date: str | None) -> None:
    request = connection.recv(65_536)
    while request.startswith(b"GET ") and not request.endswith(b"\r\n\r\n"):
        request += connection.recv(65_536)
    if not request.startswith(b"GET /health "):
        status = 400
    lines = [f"HTTP/1.1 {status} Whatever", "Content-Length: 0", "Connection: close"]
    if date is not None:
        lines.append(f"Date: {date}")
    connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())


@contextmanager
def taken_port() -> Iterator[int]:
    """A port that stays taken, so that nobody has to wait for it."""
    waits = patch.object(preflight, "RELEASE_SECONDS", 0.0)
    with socket.create_server((HOST, 0)) as listener, waits:
        yield listener.getsockname()[1]


_handed_out: set[int] = set()


def free_port() -> int:
    """A port that nobody listens on, and another one with each call."""
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        if port not in _handed_out:
            _handed_out.add(port)
            return port


def make_certificates(directory: Path, *names: str) -> Path:
    create_authority(directory)
    issue_server_certificate(directory, names or (HOST, "localhost"))
    return directory


def make_inner_certificates(folder: Path) -> Path:
    """What `fedrc superlink` makes for Flower itself."""
    ensure_inner_certificate(superlink_file(folder))
    return folder / "state" / "control"


@contextmanager
def at(monkeypatch: pytest.MonkeyPatch, days: float) -> Iterator[None]:
    """Certificates are made as if today were some days off."""
    then = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "_now", lambda: then)
        yield


def write_yaml(path: Path, values: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({k: v for k, v in values.items() if v is not None}))
    return path


def superlink_yaml(folder: Path, **changes: Any) -> Path:
    """A secure server's file; a change to None drops a key."""
    port = free_port()
    values = {
        "address": f"{HOST}:{port}", "listen": f"{HOST}:{port}", "control": f"{HOST}:{free_port()}",
        "certificates": "certificates", "state": "state", "outputs": "outputs",
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }  # fmt: skip
    return write_yaml(folder / "superlink.yaml", values)


def node_yaml(folder: Path, **changes: Any) -> Path:
    """A secure node's file; a change to None drops a key."""
    values = {
        "name": "hospital-a", "superlink": f"{HOST}:{free_port()}", "ca": "ca.crt",
        "key": "node.key", "partition": 0, "state": "state", "listen": f"{HOST}:{free_port()}",
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }  # fmt: skip
    return write_yaml(folder / "node.yaml", values)


def superlink_file(folder: Path, **changes: Any) -> SuperLinkFile:
    return read_superlink_file(superlink_yaml(folder, **changes))


def node_file(folder: Path, **changes: Any) -> NodeFile:
    return read_node_file(node_yaml(folder, **changes))
