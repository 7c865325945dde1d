"""A small certificate authority and the nodes' key pairs."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedrc_flwr.errors import ConfigError
from fedrc_flwr.files import replacing

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY = "server.crt", "server.key"
CA_DAYS, SERVER_DAYS = 3650, 365
HOST_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.IGNORECASE)


def create_authority(directory: Path, title: str = "fedrc federation authority") -> None:
    """Make ``ca.crt`` and ``ca.key``; an existing authority is never overwritten."""
    if (directory / CA_KEY).exists() or (directory / CA_CERTIFICATE).exists():
        raise ConfigError(
            f"{directory} holds an authority already: `fedrc certs renew` renews the server's "
            "certificate; a new authority needs a new directory, and its ca.crt on every node"
        )
    directory.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, title)])
    certificate = (
        _builder(name, name, key.public_key(), CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True, key_cert_sign=True, crl_sign=True,
                content_commitment=False, key_encipherment=False, data_encipherment=False,
                key_agreement=False, encipher_only=False, decipher_only=False,
            ),
            critical=True,
        )
        .sign(key, hashes.SHA384())
    )  # fmt: skip
    create_secret(directory / CA_KEY, _pem(key))
    _write(directory / CA_CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))


def issue_server_certificate(
    directory: Path, names: Iterable[str], days: int = SERVER_DAYS
) -> x509.Certificate:
    """Make ``server.crt`` and ``server.key`` for these hosts; earlier ones are replaced."""
    names = list(dict.fromkeys(names))
    general_names = check_names(names)
    return issue(
        directory, names[0][:64], ExtendedKeyUsageOID.SERVER_AUTH, days,
        directory / SERVER_CERTIFICATE, directory / SERVER_KEY, general_names,
    )  # fmt: skip


def issue(
    directory: Path,
    name: str,
    usage: x509.ObjectIdentifier,
    days: int,
    certificate_path: Path,
    key_path: Path,
    names: Iterable[x509.GeneralName] = (),
) -> x509.Certificate:
    """Make a key and a certificate for one use, by the authority of a directory."""
    authority = load_certificate(directory / CA_CERTIFICATE)
    authority_key = _load_key(directory / CA_KEY)
    if not isinstance(authority_key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{directory / CA_KEY} is not a key that `fedrc certs init` made")
    if not key_fits(directory / CA_KEY, authority):
        raise ConfigError(f"{directory / CA_KEY} is not the key of {directory / CA_CERTIFICATE}")
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        _builder(subject, authority.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(authority_key, hashes.SHA384())
    _replace_secret(key_path, _pem(key))
    _write(certificate_path, certificate.public_bytes(serialization.Encoding.PEM))
    return certificate


def check_names(names: Iterable[str]) -> list[x509.GeneralName]:
    """The names of a certificate, once they are known to be host names or addresses."""
    general_names = [_general_name(name) for name in names]
    if not general_names:
        raise ConfigError("a server certificate needs at least one --name that nodes use")
    return general_names


def create_node_key(path: Path) -> Path:
    """Make a node's key pair, private at ``path`` and public next to it; returns the public one."""
    public_path = path.with_name(path.name + ".pub")
    if path.exists() or public_path.exists():
        raise ConfigError(f"{path} exists already: to rotate a node's key, see deploy/README.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    create_secret(
        path,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        ),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write(public_path, public + b" " + path.stem.encode() + b"\n")
    return public_path


@dataclass(frozen=True)
class CertificateFacts:
    """A certificate's names and dates."""

    names: list[str]
    not_before: datetime.datetime
    not_after: datetime.datetime

    def days_left(self) -> float:
        """Days until it expires; negative afterwards."""
        return (self.not_after - _now()).total_seconds() / 86_400


def facts(certificate: x509.Certificate) -> CertificateFacts:
    """Names and dates of a certificate."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = [str(name.value) for name in extension.value]
    except x509.ExtensionNotFound:
        names = []
    return CertificateFacts(
        names, certificate.not_valid_before_utc, certificate.not_valid_after_utc
    )


def load_certificate(path: Path) -> x509.Certificate:
    """Read a PEM certificate."""
    try:
        return x509.load_pem_x509_certificate(_read(path, "a certificate"))
    except ValueError as error:
        raise ConfigError(f"{path} is not a PEM certificate: {error}") from None


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether an authority signed a certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def key_fits(key_path: Path, certificate: x509.Certificate) -> bool:
    """Whether a private key is the one of a certificate."""
    key = _load_key(key_path)
    encoding = (
        serialization.Encoding.DER,
        serialization.PublicFormat.SubjectPublicKeyInfo,
    )
    return key.public_key().public_bytes(*encoding) == certificate.public_key().public_bytes(
        *encoding
    )


def public_half(key_path: Path) -> bytes:
    """The public key of a node's private one, as PEM, as a SuperLink lists it."""
    return (
        _node_key(key_path)
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def sign(key_path: Path, text: bytes) -> bytes:
    """A node's signature, as its SuperNode signs."""
    return _node_key(key_path).sign(text, ec.ECDSA(hashes.SHA256()))


def public_key_of(path: Path) -> bytes:
    """The public key of a ``.pub`` file, as PEM."""
    try:
        key = serialization.load_ssh_public_key(_read(path, "a public key"))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} is not a .pub file of `fedrc node key`: {error}") from None
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _node_key(path: Path) -> ec.EllipticCurvePrivateKey:
    problem = f"{path} is not a key that `fedrc node key` makes"
    try:
        key = serialization.load_ssh_private_key(_read(path, "a key"), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{problem}: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(problem)
    return key


def create_secret(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, from its first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _replace_secret(path: Path, content: bytes) -> None:
    """Replace a file in the same way; after a crash the old one is intact."""
    with replacing(path) as beside:
        beside.unlink(missing_ok=True)
        create_secret(beside, content)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    # An hour of tolerance for clocks that are behind.
    start = _now() - datetime.timedelta(hours=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if not HOST_NAME.fullmatch(name):
            raise ConfigError(f"--name {name!r}: expected a host name or an address") from None
        return x509.DNSName(name)


def _load_key(path: Path) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(_read(path, "a key"), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} is not a PEM key without a passphrase: {error}") from None


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as beside:
        beside.write_bytes(content)


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {what} cannot be read: {error.strerror}") from None


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
