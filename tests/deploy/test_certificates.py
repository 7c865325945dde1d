"""The authority, the server's certificate against a real TLS server, and the nodes' keys."""

from __future__ import annotations

import os
import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from loopback import HOST, at, health_server, make_certificates

from deploy import certificates
from deploy.certificates import (
    create_authority,
    create_node_key,
    create_secret,
    facts,
    is_signed_by,
    issue_server_certificate,
    key_fits,
    load_certificate,
)
from fedrc_flwr.errors import ConfigError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def connect(port: int, host: str, ca: Path) -> str | None:
    """Speak TLS to a server on loopback as if it had been called ``host``."""
    context = ssl.create_default_context(cafile=str(ca))
    with (
        socket.create_connection((HOST, port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return secured.version()


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("host", ["fedrc.example.org", HOST])
def test_the_chain_verifies_for_each_of_its_names(tmp_path: Path, host: str) -> None:
    made = make_certificates(tmp_path / "certificates", "fedrc.example.org", HOST)

    with health_server(tls=made) as port:
        version = connect(port, host, made / "ca.crt")

    assert version == "TLSv1.3"


@pytest.mark.parametrize("host", ["other.example.org", "127.0.0.2"])
def test_another_name_or_address_is_refused(tmp_path: Path, host: str) -> None:
    made = make_certificates(tmp_path / "certificates", "fedrc.example.org", HOST)

    with (
        health_server(tls=made) as port,
        pytest.raises(ssl.SSLCertVerificationError, match="mismatch"),
    ):
        connect(port, host, made / "ca.crt")


def test_another_authority_is_refused_although_it_has_the_same_name(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certificates")
    other = make_certificates(tmp_path / "other")

    with health_server(tls=made) as port, pytest.raises(ssl.SSLCertVerificationError):
        connect(port, HOST, other / "ca.crt")

    server = load_certificate(made / "server.crt")
    assert is_signed_by(server, load_certificate(made / "ca.crt"))
    assert not is_signed_by(server, load_certificate(other / "ca.crt"))


def test_the_server_certificate_cannot_sign_others(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certificates")

    constraints = load_certificate(made / "server.crt").extensions.get_extension_for_class(
        certificates.x509.BasicConstraints
    )
    assert constraints.critical
    assert not constraints.value.ca


def test_renewal_keeps_authority_and_names_and_changes_the_key(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certificates", "fedrc.example.org", HOST)
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    names = facts(load_certificate(made / "server.crt")).names

    issue_server_certificate(made, names)

    after = {path.name: path.read_bytes() for path in made.iterdir()}
    assert after.keys() == before.keys(), "nothing is left lying about"
    assert {name for name in after if after[name] == before[name]} == {"ca.crt", "ca.key"}
    renewed = load_certificate(made / "server.crt")
    assert facts(renewed).names == ["fedrc.example.org", HOST]
    assert key_fits(made / "server.key", renewed)
    with health_server(tls=made) as port:
        assert connect(port, "fedrc.example.org", made / "ca.crt") == "TLSv1.3"


def test_a_failed_renewal_leaves_the_old_key_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_certificates(tmp_path / "certificates")
    before = (made / "server.key").read_bytes()

    def full_disk(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(certificates, "create_secret", full_disk)
    with pytest.raises(OSError, match="No space"):
        issue_server_certificate(made, [HOST])

    assert (made / "server.key").read_bytes() == before
    assert key_fits(made / "server.key", load_certificate(made / "server.crt"))


@pytest.mark.usefixtures("open_umask")
def test_all_keys_are_private_whatever_the_umask(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certificates")
    issue_server_certificate(made, [HOST])
    create_node_key(tmp_path / "node.key")

    keys = [made / "ca.key", made / "server.key", tmp_path / "node.key"]
    assert [mode(path) for path in keys] == [0o600] * 3


@pytest.mark.usefixtures("open_umask")
def test_a_secret_is_private_before_its_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = os.fdopen

    def spy(descriptor: int, how: str) -> object:
        seen.append((stat.S_IMODE(os.fstat(descriptor).st_mode), os.fstat(descriptor).st_size))
        return real(descriptor, how)

    monkeypatch.setattr(os, "fdopen", spy)
    create_secret(tmp_path / "secret", b"hush")

    assert seen == [(0o600, 0)]
    assert (tmp_path / "secret").read_bytes() == b"hush"


def test_a_secret_is_not_written_through_a_link_or_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "there").write_bytes(b"old")

    for name in ("link", "there"):
        with pytest.raises(FileExistsError):
            create_secret(tmp_path / name, b"new")

    assert not (tmp_path / "elsewhere").exists()
    assert (tmp_path / "there").read_bytes() == b"old"


@pytest.mark.parametrize("left", ["ca.key", "ca.crt"])
def test_an_authority_is_never_overwritten(tmp_path: Path, left: str) -> None:
    made = make_certificates(tmp_path / "certificates")
    gone = ({"ca.key", "ca.crt"} - {left}).pop()
    (made / gone).unlink()
    before = (made / left).read_bytes()

    with pytest.raises(ConfigError, match="holds an authority already"):
        create_authority(made)

    assert (made / left).read_bytes() == before
    assert not (made / gone).exists()


@pytest.mark.parametrize("left", ["node.key", "node.key.pub"])
def test_a_node_key_is_never_overwritten(tmp_path: Path, left: str) -> None:
    create_node_key(tmp_path / "node.key")
    gone = ({"node.key", "node.key.pub"} - {left}).pop()
    (tmp_path / gone).unlink()
    before = (tmp_path / left).read_bytes()

    with pytest.raises(ConfigError, match="exists already"):
        create_node_key(tmp_path / "node.key")

    assert (tmp_path / left).read_bytes() == before
    assert not (tmp_path / gone).exists()


def test_node_keys_are_openssh_p384_with_the_public_half_beside(tmp_path: Path) -> None:
    public_path = create_node_key(tmp_path / "new" / "site.key")

    private = serialization.load_ssh_private_key(
        (tmp_path / "new" / "site.key").read_bytes(), password=None
    )
    public = serialization.load_ssh_public_key(public_path.read_bytes())
    assert public_path == tmp_path / "new" / "site.key.pub"
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert isinstance(private.curve, ec.SECP384R1)
    assert private.public_key().public_numbers() == public.public_numbers()
    assert b"PRIVATE" not in public_path.read_bytes()


def test_two_nodes_have_different_keys(tmp_path: Path) -> None:
    one, other = (create_node_key(tmp_path / name) for name in ("one", "other"))

    assert one.read_bytes().split()[1] != other.read_bytes().split()[1]


@pytest.mark.parametrize(
    "name", ["", "fedrc.example.org:8000", "https://fedrc.example.org", "a b", "grün.example.org"]
)
def test_what_is_no_host_name_is_refused(tmp_path: Path, name: str) -> None:
    create_authority(tmp_path)

    with pytest.raises(ConfigError, match="expected a host name or an address") as caught:
        issue_server_certificate(tmp_path, [HOST, name])

    assert repr(name) in str(caught.value)
    assert not (tmp_path / "server.crt").exists()


def test_a_certificate_without_names_is_refused(tmp_path: Path) -> None:
    create_authority(tmp_path)

    with pytest.raises(ConfigError, match="at least one --name"):
        issue_server_certificate(tmp_path, [])


def test_an_authority_with_a_torn_or_foreign_key_issues_nothing(tmp_path: Path) -> None:
    made, other = make_certificates(tmp_path / "a"), make_certificates(tmp_path / "b")
    before = (made / "server.crt").read_bytes()
    whole = (made / "ca.key").read_bytes()

    for content, complaint in (
        (whole[:80], "not a PEM key"),
        ((other / "ca.key").read_bytes(), "is not the key of"),
    ):
        (made / "ca.key").write_bytes(content)
        with pytest.raises(ConfigError, match=complaint):
            issue_server_certificate(made, [HOST])
    (made / "ca.key").unlink()
    with pytest.raises(ConfigError, match=r"ca\.key.*cannot be read"):
        issue_server_certificate(made, [HOST])

    assert (made / "server.crt").read_bytes() == before


def test_dates_and_days_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with at(monkeypatch, days=-300):
        made = make_certificates(tmp_path)

    server, authority = (facts(load_certificate(made / f"{n}.crt")) for n in ("server", "ca"))

    assert 64 < server.days_left() < 66
    assert 3349 < authority.days_left() < 3351
    assert (server.not_after - server.not_before).days == 365


def test_a_torn_certificate_is_named(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    (made / "server.crt").write_bytes((made / "server.crt").read_bytes()[:100])

    with pytest.raises(ConfigError, match=r"server\.crt is not a PEM certificate"):
        load_certificate(made / "server.crt")
