"""A SuperLink that strangers can reach is refused with words."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from gates import open_gate
from loopback import HOST, make_certificates, server_context, superlink_file

from deploy import exposure
from deploy.exposure import check_bound, check_interfaces, check_open
from deploy.fields import Address
from deploy.findings import ERROR, OK, WARNING
from deploy.membership import check_registered
from deploy.preflight import check_superlink


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "localhost", "::1"])
def test_flower_on_loopback_is_well(tmp_path: Path, host: str) -> None:
    file = superlink_file(tmp_path, control=f"{host}:8002")

    assert check_bound(file).level == OK


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "fedrc.example.org"])
def test_flower_elsewhere_is_refused(tmp_path: Path, host: str) -> None:
    make_certificates(tmp_path / "certificates", HOST)
    file = superlink_file(tmp_path, control=f"{host}:8002")

    found = check_bound(file)

    assert found.level == ERROR
    assert "whoever reaches it can run code" in found.text
    assert found in list(check_superlink(file, starting=False))


def test_an_isolated_network_is_a_warning(tmp_path: Path) -> None:
    file = superlink_file(tmp_path, control="control:8002", isolated=True)

    assert check_bound(file).level == WARNING


@pytest.mark.parametrize(("listen", "level"), [("127.0.0.1:8000", OK), ("0.0.0.0:8000", ERROR)])
def test_plain_text_is_for_loopback_only(tmp_path: Path, listen: str, level: str) -> None:
    file = superlink_file(tmp_path, listen=listen, certificates=None, insecure=True)

    assert check_bound(file).level == level


class Open(http.server.BaseHTTPRequestHandler):
    """Flower as it is without a gate."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def unprotected(tmp_path: Path) -> Iterator[Address]:
    context = server_context(make_certificates(tmp_path / "certificates"))
    with http.server.ThreadingHTTPServer((HOST, 0), Open) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield Address(HOST, server.server_address[1])
        server.shutdown()
        thread.join()


def test_an_address_without_a_gate_is_refused(unprotected: Address, tmp_path: Path) -> None:
    found = check_open(unprotected, tmp_path / "certificates" / "ca.crt")

    assert found.level == ERROR
    assert "is Flower itself, with no gate in front of it" in found.text


def test_a_gate_is_well(tmp_path: Path) -> None:
    with open_gate(tmp_path) as gate:
        address = Address(HOST, gate.port)

        assert check_open(address, tmp_path / "certificates" / "ca.crt").level == OK


def test_flower_on_an_address_of_the_network_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = superlink_file(tmp_path, control="127.0.0.1:8002")
    monkeypatch.setattr(exposure, "_listens", lambda address: True)
    other = list(check_interfaces(file))
    monkeypatch.setattr(exposure, "_listens", lambda address: False)

    assert list(check_interfaces(file)) == []
    assert all(found.level == ERROR for found in other)
    assert not any("127.0.0.1:8002, the port" in found.text for found in other)


def test_a_node_asks_the_gate_under_which_name_its_key_is_known(tmp_path: Path) -> None:
    from loopback import node_file

    with open_gate(tmp_path) as gate:
        at = {"superlink": f"{HOST}:{gate.port}", "ca": "certificates/ca.crt"}
        mine = check_registered(node_file(tmp_path, name="client-0", **at), gate.key)
        other = check_registered(node_file(tmp_path, name="client-1", **at), gate.key)
        gate.nodes.clear()
    with open_gate(tmp_path) as gate:
        gate.nodes.clear()
        at = {"superlink": f"{HOST}:{gate.port}", "ca": "certificates/ca.crt"}
        unknown = check_registered(node_file(tmp_path, name="client-0", **at), gate.key)

    assert (mine.level, mine.text) == (OK, "registered as client-0")
    assert other.level == ERROR
    assert "this node's key is registered as client-0, but its name is client-1" in other.text
    assert unknown.level == ERROR
    assert "this node is not registered" in unknown.text


def test_the_context_of_a_stranger_is_not_what_protects(tmp_path: Path) -> None:
    """Whoever ignores the certificate gets no further."""
    with open_gate(tmp_path) as gate:
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(HOST, gate.port, context=context)
        connection.request("POST", "/v1/control/start-run", b"")
        assert connection.getresponse().status == 403
        connection.close()
        assert gate.flower.requests == []
