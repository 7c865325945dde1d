"""Operators who work from elsewhere: certificates of an authority that is for them alone.

The names of those who are admitted stand in a list. A certificate that is not listed is worth
nothing, so an operator is locked out by removing a line.
"""

from __future__ import annotations

import re
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from deploy import certificates
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.files import replacing

FOLDER, LIST = "operators", "admitted"
OPERATOR_DAYS = 365
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


def issue_operator(directory: Path, name: str, target: Path, days: int = OPERATOR_DAYS) -> None:
    """Make ``NAME.crt`` and ``NAME.key`` in ``target`` and admit their owner.

    An earlier certificate of the same name is no longer admitted.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r}: expected a name of 1 to 64 letters, digits and the characters . _ @ -"
        )
    authority = directory / FOLDER
    ensure_authority(directory)
    target.mkdir(parents=True, exist_ok=True)
    certificate = certificates.issue(
        authority, name, ExtendedKeyUsageOID.CLIENT_AUTH, days,
        target / f"{name}.crt", target / f"{name}.key",
    )  # fmt: skip
    shown = fingerprint(certificate.public_bytes(serialization.Encoding.DER))
    _write(authority, {**_without(authority, name), shown: name})


def ensure_authority(directory: Path) -> None:
    """Make the operators' authority, unless there is one."""
    if not (directory / FOLDER / certificates.CA_KEY).exists():
        certificates.create_authority(directory / FOLDER, "fedrc operators")


def withdraw_operator(directory: Path, name: str) -> None:
    """Admit an operator no longer."""
    authority = directory / FOLDER
    admitted = listed_operators(directory)
    if name not in admitted.values():
        known = ", ".join(sorted(admitted.values())) or "nobody"
        raise ConfigError(f"no operator is called {name!r}; admitted: {known}")
    _write(authority, _without(authority, name))


def operators_authority(directory: Path) -> Path | None:
    """The certificate of the operators' authority, if there is one."""
    path = directory / FOLDER / certificates.CA_CERTIFICATE
    return path if path.exists() else None


def listed_operators(directory: Path) -> dict[str, str]:
    """The names of the admitted operators by the fingerprints of their certificates."""
    try:
        lines = (directory / FOLDER / LIST).read_text("utf-8").splitlines()
    except FileNotFoundError:
        return {}
    pairs = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate in its binary form."""
    digest = hashes.Hash(hashes.SHA256())
    digest.update(certificate)
    return digest.finalize().hex()


def _without(authority: Path, name: str) -> dict[str, str]:
    return {mark: who for mark, who in listed_operators(authority.parent).items() if who != name}


def _write(authority: Path, admitted: dict[str, str]) -> None:
    lines = ["# Operators who are admitted through the gate. Remove a line to lock somebody out."]
    lines += [f"{name} {mark}" for mark, name in admitted.items()]
    with replacing(authority / LIST) as beside:
        beside.write_text("\n".join(lines) + "\n", "utf-8")
