"""Checks before a start. Each says in a sentence what is wrong and what to do."""

from __future__ import annotations

import datetime
import email.utils
import http.client
import os
import shutil
import socket
import ssl
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from deploy import certificates
from deploy.database import files_of
from deploy.exposure import check_bound, check_open
from deploy.fields import Address
from deploy.files import NodeFile, SuperLinkFile
from deploy.findings import ERROR, OK, WARNING, Finding
from deploy.membership import check_registered
from deploy.policy import ANY
from fedrc_flwr.errors import ConfigError, DataError

DAYS_TO_WARN = 30
#: How long ports may take to become free.
RELEASE_SECONDS = 3.0
FREE_BYTES = 1_000_000_000
CLOCK_SKEW_SECONDS = 30.0
CONNECT_SECONDS = 5.0
RENEW = "`fedrc certs renew`"
FORGETS = (
    "database: memory: when this SuperLink stops, its run ends and the nodes have to be registered "
    "again"
)
REPLACE_AUTHORITY = "replace the authority, see deploy/README.md"


def check_superlink(file: SuperLinkFile, starting: bool = True) -> Iterator[Finding]:
    """Everything that the SuperLink needs. ``starting``: its port must still be free."""
    if file.tls is None:
        yield Finding(WARNING, "insecure: true: plain text, and any node may connect")
    else:
        yield from check_certificates(file)
    if file.database_file is None:
        yield Finding(WARNING, FORGETS)
    yield check_bound(file)
    yield from check_secret(file)
    yield check_folder(file.state, "state")
    yield check_folder(file.outputs, "outputs")
    yield from check_metrics(file.metrics)
    if starting:
        control = None if file.insecure else file.control
        yield from check_ports(file.listen, file.health, file.metrics, control)
    else:
        database = file.database_file
        yield from (check_private(path) for path in (files_of(database) if database else []))


def check_certificates(file: SuperLinkFile) -> Iterator[Finding]:
    """Whether the server's certificate exists, is valid, has the right names and a private key."""
    tls = file.tls
    if tls is None:
        return
    try:
        authority = certificates.load_certificate(tls.ca)
        certificate = certificates.load_certificate(tls.certificate)
        fits = certificates.key_fits(tls.key, certificate)
    except ConfigError as error:
        yield Finding(ERROR, f"{error}; `fedrc certs init` makes certificates")
        return
    if not fits:
        yield Finding(ERROR, f"{tls.key} is not the key of {tls.certificate}: {RENEW}")
    if not certificates.is_signed_by(certificate, authority):
        yield Finding(ERROR, f"{tls.certificate} was not issued by {tls.ca}: {RENEW}")
    yield check_dates("authority", tls.ca, certificates.facts(authority), REPLACE_AUTHORITY)
    yield check_dates("server", tls.certificate, certificates.facts(certificate), RENEW)
    names = certificates.facts(certificate).names
    if file.address.host not in names:
        all_names = " ".join(f"--name {name}" for name in [*names, file.address.host])
        yield Finding(
            ERROR,
            f"the certificate is for {', '.join(names)}, but address is {file.address.host}: "
            f"`fedrc certs renew {file.certificates} {all_names}`",
        )
    yield check_private(tls.key)
    authority_key = tls.ca.with_name(certificates.CA_KEY)
    if authority_key.exists():  # better kept on another machine
        yield check_private(authority_key)


def check_secret(file: SuperLinkFile) -> Iterator[Finding]:
    """The secret that SuperLink and executor share, once the first start has made it."""
    if file.secret.exists():
        yield check_private(file.secret)


def check_dates(
    name: str, path: Path, facts: certificates.CertificateFacts, remedy: str
) -> Finding:
    """Whether a certificate is valid now and for a while."""
    days = facts.days_left()
    if days < 0:
        return Finding(ERROR, f"{path} expired {-days:.0f} days ago: {remedy}")
    if facts.not_before > datetime.datetime.now(datetime.UTC):
        return Finding(ERROR, f"{path} is not valid before {facts.not_before}: check this clock")
    if days < DAYS_TO_WARN:
        return Finding(WARNING, f"{name} certificate valid for {days:.0f} more days: {remedy}")
    return Finding(OK, f"{name} certificate valid for {days:.0f} more days")


def check_private(path: Path) -> Finding:
    """Whether a key can be read by its owner alone."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        return Finding(ERROR, f"{path}: {error.strerror}")
    if mode & 0o077:
        return Finding(ERROR, f"{path} can be read by others (mode {mode:04o}): chmod 600 {path}")
    return Finding(OK, f"{path.name} is private")


def check_folder(path: Path, name: str) -> Finding:
    """Whether a directory is writable and has free space."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".fedrc-probe"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        return Finding(ERROR, f"{name} directory {path} cannot be written to: {error.strerror}")
    free = shutil.disk_usage(path).free
    if free < FREE_BYTES:
        return Finding(WARNING, f"{name} directory {path} has {free / 1e9:.1f} GB left")
    return Finding(OK, f"{name} directory {path}")


def check_port(address: Address) -> Finding:
    """Whether a port can be listened on."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            return Finding(
                ERROR, f"cannot listen on {address}: {error.strerror}; is another one running?"
            )
    return Finding(OK, f"{address} is free")


def check_ports(*addresses: Address | None) -> Iterator[Finding]:
    """Whether each of these ports can be listened on.

    One that was killed a moment ago may still hold its ports.
    """
    ends = time.monotonic() + RELEASE_SECONDS
    for address in addresses:
        if address is None:
            continue
        while (finding := check_port(address)).level == ERROR and time.monotonic() < ends:
            time.sleep(0.05)
        yield finding


def check_metrics(address: Address | None) -> Iterator[Finding]:
    """Warn of metrics that others can read."""
    if address is not None and not address.on_loopback:
        yield Finding(
            WARNING,
            f"metrics = {address}: whoever reaches it reads the names of nodes and runs and how "
            "they are doing; let a firewall admit Prometheus alone",
        )


def check_executor(file: NodeFile) -> Iterator[Finding]:
    """Everything that the executor of a node's tasks needs."""
    try:
        file.secret.read_bytes()
        yield Finding(OK, f"{file.secret.name} can be read")
    except OSError as error:
        yield Finding(ERROR, f"{file.secret}: {error.strerror}: start `fedrc supernode` first")
    if file.key is not None and os.access(file.key, os.R_OK):
        yield Finding(
            ERROR,
            f"this user can read {file.key}, and so could the code of a run: use another user than "
            "the owner of the key, or `fedrc supernode` without --alone",
        )
    if file.data is not None:
        yield check_data(file.data, file.schema)
    yield check_folder(file.state, "state")
    yield check_device(file.device)


def check_node(file: NodeFile, starting: bool = True, alone: bool = False) -> Iterator[Finding]:
    """Everything that a node needs. ``starting``: its port must still be free.

    ``alone``: its executor, which reads data and keeps state, is another user's.
    """
    if file.insecure:
        yield Finding(WARNING, "insecure: true: plain text, and this node is not authenticated")
    if file.key is not None:
        if file.key.exists():
            yield check_private(file.key)
        else:
            yield Finding(ERROR, f"{file.key} is missing: `fedrc node key {file.key}` makes it")
    answers = True
    for finding in check_reachable(file.superlink, file.ca):
        answers = answers and finding.level != ERROR
        yield finding
    if answers and not file.insecure:
        yield check_open(file.superlink, file.ca)
    if answers and file.key is not None and file.key.exists():
        yield check_registered(file, file.key)
    if ANY in file.policy.apps:
        yield Finding(
            WARNING,
            f"policy: apps has `{ANY}`: whoever may submit a run executes code of their own here",
        )
    if not alone:
        if file.data is not None:
            yield check_data(file.data, file.schema)
        yield check_folder(file.state, "state")
        yield check_device(file.device)
    yield from check_metrics(file.metrics)
    if starting:
        yield from check_ports(file.listen, file.health, file.metrics)


def check_data(data: Path, schema: Path | None) -> Finding:
    """Whether a node's own data is there and, where the node has a schema, fits it."""
    from fedrc_flwr.data.own import fits
    from fedrc_flwr.data.settings import DataSettings

    if not data.exists():
        return Finding(ERROR, f"data {data} does not exist")
    if schema is None:
        return Finding(OK, f"data {data}")
    try:
        return Finding(OK, fits(DataSettings(dataset=str(data), schema=str(schema))))
    except DataError as error:
        return Finding(ERROR, f"data does not fit {schema}: {error}")


def check_device(name: str) -> Finding:
    """Whether the device exists."""
    if name in ("auto", "cpu"):
        return Finding(OK, f"device {name}")
    import torch

    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        return Finding(ERROR, f"device {name} cannot be used: {reason}; use auto or cpu")
    return Finding(OK, f"device {name}")


def check_reachable(address: Address, ca: Path | None) -> Iterator[Finding]:
    """Whether the SuperLink answers with a trusted certificate, and the clocks agree."""
    try:
        response_date = fetch_health(address, ca)
    except ssl.SSLCertVerificationError as error:
        yield Finding(ERROR, _explain_certificate(address, ca, error))
        return
    except ssl.SSLError as error:
        yield Finding(
            ERROR,
            f"{address} does not speak TLS ({error.reason}): is it started with insecure: true?",
        )
        return
    except ConfigError as error:
        yield Finding(ERROR, str(error))
        return
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        hint = "is it started, is the address right, is there a firewall in between?"
        if ca is None and isinstance(error, (http.client.HTTPException, ConnectionError)):
            hint = "it may expect TLS: give ca and key instead of insecure: true"
        yield Finding(ERROR, f"the SuperLink at {address} does not answer: {reason}; {hint}")
        return
    yield Finding(OK, f"the SuperLink at {address} answers")
    if response_date is not None:
        yield check_clock(response_date)


def check_clock(theirs: datetime.datetime) -> Finding:
    """Whether two clocks agree; Flower refuses messages whose time stamps are off."""
    skew = (datetime.datetime.now(datetime.UTC) - theirs).total_seconds()
    if abs(skew) > CLOCK_SKEW_SECONDS:
        return Finding(ERROR, f"this clock is {skew:+.0f} seconds off the server's: set up NTP")
    return Finding(OK, "clocks agree")


def fetch_health(address: Address, ca: Path | None) -> datetime.datetime | None:
    """Ask for /health; returns the server's time. Raises what went wrong."""
    connection: http.client.HTTPConnection
    if ca is None:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=CONNECT_SECONDS)
    else:
        certificates.load_certificate(ca)
        context = ssl.create_default_context(cafile=str(ca))
        connection = http.client.HTTPSConnection(
            address.host, address.port, timeout=CONNECT_SECONDS, context=context
        )
    try:
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        if response.status != 200:
            raise http.client.HTTPException(f"status {response.status}")
        date = response.getheader("Date")
        return _parse_date(date) if date else None
    finally:
        connection.close()


def _parse_date(text: str) -> datetime.datetime | None:
    try:
        date = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return date if date.tzinfo else date.replace(tzinfo=datetime.UTC)


def _explain_certificate(
    address: Address, ca: Path | None, error: ssl.SSLCertVerificationError
) -> str:
    if "not yet valid" in error.verify_message:
        return f"the certificate of {address} is not valid yet: check this clock and the server's"
    if "expired" in error.verify_message:
        return f"the certificate of {address} has expired: renew it on the server"
    if "mismatch" in error.verify_message or "not valid for" in error.verify_message:
        return (
            f"the certificate of {address} is not for {address.host}: on the server, "
            f"`fedrc certs renew` with --name {address.host} and every --name that it has"
        )
    return (
        f"the certificate of {address} was not issued by {ca}: copy the server's ca.crt here again "
        f"({error.verify_message})"
    )
