"""Operators from elsewhere: their certificates, their list, and their way through the gate."""

from __future__ import annotations

import http.client
import stat
from pathlib import Path

import pytest
from cryptography.x509 import ExtendedKeyUsage
from cryptography.x509.oid import ExtendedKeyUsageOID
from gates import open_gate
from loopback import make_certificates, superlink_yaml, write_yaml

from deploy.certificates import is_signed_by, load_certificate
from deploy.operators import issue_operator, listed_operators, withdraw_operator
from deploy.tunnel import reaching, read_operator_file
from fedrc_flwr.errors import ConfigError


def operator_yaml(folder: Path, port: int) -> Path:
    """The file of the operator alice, for a gate on this machine."""
    return write_yaml(
        folder / "operator.yaml",
        {
            "superlink": f"127.0.0.1:{port}",
            "ca": "certificates/ca.crt",
            "certificate": "alice.crt",
            "key": "alice.key",
        },
    )


def test_an_operators_certificate_is_of_no_other_use(tmp_path: Path) -> None:
    federation = make_certificates(tmp_path / "certificates")

    issue_operator(federation, "alice", tmp_path)

    certificate = load_certificate(tmp_path / "alice.crt")
    usage = certificate.extensions.get_extension_for_class(ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not is_signed_by(certificate, load_certificate(federation / "ca.crt"))
    assert is_signed_by(certificate, load_certificate(federation / "operators" / "ca.crt"))
    assert stat.S_IMODE((tmp_path / "alice.key").stat().st_mode) == 0o600
    assert certificate.subject.rfc4514_string() == "CN=alice"


def test_operators_are_listed_until_they_are_withdrawn(tmp_path: Path) -> None:
    for name in ("alice", "bob"):
        issue_operator(tmp_path, name, tmp_path)
    assert sorted(listed_operators(tmp_path).values()) == ["alice", "bob"]
    before = listed_operators(tmp_path)

    issue_operator(tmp_path, "bob", tmp_path)  # a new certificate takes the old one's place
    renewed = listed_operators(tmp_path)
    withdraw_operator(tmp_path, "alice")

    assert sorted(renewed.values()) == ["alice", "bob"]
    assert renewed != before
    assert list(listed_operators(tmp_path).values()) == ["bob"]
    with pytest.raises(ConfigError, match="no operator is called 'alice'; admitted: bob"):
        withdraw_operator(tmp_path, "alice")


@pytest.mark.parametrize("name", ["", "a b", "../a", "a\nb", "-a", "a" * 65])
def test_a_name_that_does_not_fit_into_the_list_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="expected a name"):
        issue_operator(tmp_path, name, tmp_path)

    assert listed_operators(tmp_path) == {}


def test_the_control_interface_is_reached_through_the_gate(tmp_path: Path) -> None:
    make_certificates(tmp_path / "certificates")
    issue_operator(tmp_path / "certificates", "alice", tmp_path)
    with open_gate(tmp_path) as gate:
        file = operator_yaml(tmp_path, gate.port)
        with reaching(file) as server:
            assert server.flower.on_loopback
            assert server.inner_ca is None
            for target, status in (("/v1/control/list-nodes", 200), ("/docs", 404)):
                connection = http.client.HTTPConnection(server.flower.host, server.flower.port)
                connection.request("POST", target, b"")
                assert connection.getresponse().status == status
                connection.close()

        withdraw_operator(tmp_path / "certificates", "alice")
        with pytest.raises(ConfigError, match=r"refuses .*alice.crt: .* withdrawn"), reaching(file):
            pass


def test_a_tunnel_that_is_closed_says_nothing_about_open_connections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_certificates(tmp_path / "certificates")
    issue_operator(tmp_path / "certificates", "alice", tmp_path)
    with open_gate(tmp_path) as gate:
        with reaching(operator_yaml(tmp_path, gate.port)) as server:
            kept = http.client.HTTPConnection(server.flower.host, server.flower.port)
            kept.request("POST", "/v1/control/list-nodes", b"")
            assert kept.getresponse().read() == gate.flower.answer
        kept.close()

    assert [record.getMessage() for record in caplog.records] == []


def test_a_certificate_of_another_federation_is_told(tmp_path: Path) -> None:
    for folder in ("certificates", "others"):
        make_certificates(tmp_path / folder)
        issue_operator(tmp_path / folder, "alice", tmp_path)  # the others' is the one that stays
    with open_gate(tmp_path) as gate:
        file = operator_yaml(tmp_path, gate.port)
        with pytest.raises(ConfigError, match=r"hangs up on .*alice.crt"), reaching(file):
            pass
    with pytest.raises(ConfigError, match="cannot be reached"), reaching(file):
        pass


def test_an_operators_file_without_a_certificate_is_known_as_one(tmp_path: Path) -> None:
    path = write_yaml(tmp_path / "operator.yaml", {"superlink": "a:1", "ca": "ca"})

    with pytest.raises(ConfigError, match="certificate"), reaching(path):
        pass


def test_on_the_server_the_control_interface_is_where_its_file_says(tmp_path: Path) -> None:
    with reaching(superlink_yaml(tmp_path, control="127.0.0.1:8002")) as server:
        assert str(server.flower) == "127.0.0.1:8002"
        assert server.inner_ca == tmp_path / "state" / "control" / "ca.crt"


def test_a_tunnel_opens_on_loopback_only(tmp_path: Path) -> None:
    values = {"superlink": "a:1", "ca": "ca", "certificate": "c", "key": "k", "listen": "0.0.0.0:1"}

    with pytest.raises(ConfigError, match=r"listen = 0.0.0.0:1: expected an address on loopback"):
        read_operator_file(write_yaml(tmp_path / "operator.yaml", values))


def test_a_missing_certificate_is_told(tmp_path: Path) -> None:
    values = {"superlink": "a:1", "ca": "ca", "certificate": "c", "key": "k"}
    path = write_yaml(tmp_path / "operator.yaml", values)

    with pytest.raises(ConfigError, match="fedrc certs operator"), reaching(path):
        pass
