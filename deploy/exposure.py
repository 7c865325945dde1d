"""Whether strangers can reach what only operators may: Flower's control interface."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

from deploy.fields import Address
from deploy.files import SuperLinkFile
from deploy.findings import ERROR, OK, WARNING, Finding

CONNECT_SECONDS = 5.0
LIST_NODES = "/v1/control/list-nodes"
WHOEVER = "whoever reaches it can run code on the server and on every node"


def check_bound(file: SuperLinkFile) -> Finding:
    """Whether Flower listens where only operators are."""
    if file.flower.on_loopback:
        return Finding(OK, f"Flower listens on {file.flower}, on loopback")
    if file.insecure:
        return Finding(
            ERROR,
            f"insecure: true, but listen is {file.listen}: {WHOEVER}. Listen on 127.0.0.1, or make "
            "certificates (`fedrc certs init`) and drop insecure",
        )
    if file.isolated:
        return Finding(
            WARNING,
            f"isolated: true: Flower listens on {file.control}; {WHOEVER}, so nobody but operators "
            "may be on that network",
        )
    return Finding(
        ERROR,
        f"control is {file.control}, which is not on loopback: {WHOEVER}. Set it to "
        f"127.0.0.1:{file.control.port}; nodes use the gate on {file.listen}, operators SSH or "
        "`fedrc certs operator`",
    )


def check_open(address: Address, ca: Path | None) -> Finding:
    """Whether an address answers a stranger who asks for what only operators may see."""
    if _lists_nodes(address, ca):
        return Finding(
            ERROR,
            f"{address} is Flower itself, with no gate in front of it: {WHOEVER}. Start it with "
            "`fedrc superlink`, and let nothing but its gate be reached",
        )
    return Finding(OK, f"{address} admits nodes only")


def check_interfaces(file: SuperLinkFile) -> Iterator[Finding]:
    """Whether Flower answers on an address of this machine that others can reach."""
    if file.isolated:
        return
    import psutil

    for addresses in psutil.net_if_addrs().values():
        for entry in addresses:
            if entry.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            address = Address(entry.address.partition("%")[0], file.flower.port)
            if not address.on_loopback and _listens(address):
                yield Finding(
                    ERROR,
                    f"something listens on {address}, the port of control: {WHOEVER}. Bind Flower "
                    "to 127.0.0.1, as `fedrc superlink` does",
                )


def _listens(address: Address) -> bool:
    try:
        socket.create_connection((address.host, address.port), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _lists_nodes(address: Address, ca: Path | None) -> bool:
    connection: http.client.HTTPConnection
    if ca is None:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=CONNECT_SECONDS)
    else:
        context = ssl.create_default_context(cafile=str(ca))
        connection = http.client.HTTPSConnection(
            address.host, address.port, timeout=CONNECT_SECONDS, context=context
        )
    try:
        connection.request("POST", LIST_NODES, b"", {"Content-Type": "application/protobuf"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False  # whether it answers at all is checked elsewhere
    finally:
        connection.close()
