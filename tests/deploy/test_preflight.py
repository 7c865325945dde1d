"""Every finding of the checks before a start, each with what to do about it."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives import serialization
from loopback import (
    HOST,
    at,
    free_port,
    health_server,
    http_date,
    make_certificates,
    node_file,
    superlink_file,
    taken_port,
)

from deploy import membership, preflight
from deploy.certificates import create_node_key, issue_server_certificate
from deploy.fields import Address
from deploy.files import SuperLinkFile
from deploy.findings import ERROR, OK, WARNING, Finding
from deploy.preflight import (
    check_certificates,
    check_data,
    check_device,
    check_folder,
    check_node,
    check_port,
    check_ports,
    check_reachable,
    check_superlink,
)
from fedrc_flwr.data.encoding import NUMBER, Column
from fedrc_flwr.data.schema import Schema


def only(findings: Iterable[Finding], level: str) -> str:
    """The text of the one finding of a level."""
    texts = [finding.text for finding in findings if finding.level == level]
    assert len(texts) == 1, texts
    return texts[0]


def levels(findings: Iterable[Finding]) -> set[str]:
    return {finding.level for finding in findings}


@pytest.fixture
def server(tmp_path: Path) -> SuperLinkFile:
    """A server in good order."""
    make_certificates(tmp_path / "certificates")
    return superlink_file(tmp_path, health=f"{HOST}:{free_port()}")


@pytest.fixture
def made(server: SuperLinkFile) -> Path:
    """Its certificates."""
    assert server.certificates is not None
    return server.certificates


def test_a_finding_reads_as_a_line() -> None:
    assert str(Finding(ERROR, "broken")) == "error   broken"


# --- certificates --------------------------------------------------------------------------------


def test_a_server_in_good_order_has_only_good_findings(server: SuperLinkFile) -> None:
    findings = list(check_superlink(server))

    assert levels(findings) == {OK}
    texts = [finding.text for finding in findings]
    assert "authority certificate valid for 3650 more days" in texts
    assert "server certificate valid for 365 more days" in texts
    assert "server.key is private" in texts
    assert f"{server.listen} is free" in texts
    assert f"{server.health} is free" in texts


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
def test_a_missing_file_is_named(server: SuperLinkFile, made: Path, name: str) -> None:
    (made / name).unlink()

    said = only(check_certificates(server), ERROR)

    assert str(made / name) in said
    assert "No such file" in said
    assert "`fedrc certs init`" in said


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
def test_a_torn_file_is_named(server: SuperLinkFile, made: Path, name: str) -> None:
    (made / name).write_bytes((made / name).read_bytes()[:90])

    said = only(check_certificates(server), ERROR)

    assert f"{made / name} is not a PEM" in said


def test_a_key_with_a_passphrase_is_refused(server: SuperLinkFile, made: Path) -> None:
    key = serialization.load_pem_private_key((made / "server.key").read_bytes(), password=None)
    (made / "server.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"hush"),
        )
    )

    assert "without a passphrase" in only(check_certificates(server), ERROR)


def test_an_expired_server_certificate(
    server: SuperLinkFile, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at(monkeypatch, days=-400):
        issue_server_certificate(made, [HOST])

    said = only(check_certificates(server), ERROR)

    assert said == f"{made / 'server.crt'} expired 35 days ago: `fedrc certs renew`"


def test_an_expired_authority_is_not_helped_by_a_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at(monkeypatch, days=-3700):
        made = make_certificates(tmp_path / "certificates")
    issue_server_certificate(made, [HOST])

    said = only(check_certificates(superlink_file(tmp_path)), ERROR)

    assert f"{made / 'ca.crt'} expired 50 days ago" in said
    assert "replace the authority" in said
    assert "renew" not in said


def test_a_certificate_from_the_future(
    server: SuperLinkFile, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at(monkeypatch, days=3):
        issue_server_certificate(made, [HOST])

    said = only(check_certificates(server), ERROR)

    assert f"{made / 'server.crt'} is not valid before" in said
    assert "check this clock" in said


def test_a_certificate_that_expires_soon_is_a_warning(
    server: SuperLinkFile, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at(monkeypatch, days=-345):
        issue_server_certificate(made, [HOST])

    findings = list(check_certificates(server))

    assert only(findings, WARNING) == (
        "server certificate valid for 20 more days: `fedrc certs renew`"
    )
    assert ERROR not in levels(findings)


def test_a_certificate_for_other_names_comes_with_a_command_that_keeps_them(
    server: SuperLinkFile, made: Path
) -> None:
    issue_server_certificate(made, ["a.example.org", "localhost"])

    said = only(check_certificates(server), ERROR)

    assert f"is for a.example.org, localhost, but address is {HOST}" in said
    assert f"fedrc certs renew {made} --name a.example.org --name localhost --name {HOST}`" in said


def test_a_key_that_does_not_fit(server: SuperLinkFile, made: Path, tmp_path: Path) -> None:
    other = make_certificates(tmp_path / "other")
    shutil.copy(other / "server.key", made / "server.key")

    said = only(check_certificates(server), ERROR)

    assert f"{made / 'server.key'} is not the key of {made / 'server.crt'}" in said


@pytest.mark.parametrize("name", ["server.key", "ca.key"])
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_key_that_others_can_reach(
    server: SuperLinkFile, made: Path, name: str, mode: int
) -> None:
    (made / name).chmod(mode)

    said = only(check_certificates(server), ERROR)

    assert f"(mode {mode:04o}): chmod 600 {made / name}" in said


def test_the_authoritys_key_need_not_be_there(server: SuperLinkFile, made: Path) -> None:
    (made / "ca.key").unlink()

    assert levels(check_certificates(server)) == {OK}


def test_a_certificate_of_another_authority(
    server: SuperLinkFile, made: Path, tmp_path: Path
) -> None:
    other = make_certificates(tmp_path / "other")
    shutil.copy(other / "ca.crt", made / "ca.crt")

    said = only(check_certificates(server), ERROR)

    assert f"{made / 'server.crt'} was not issued by {made / 'ca.crt'}" in said


def test_plain_text_is_a_warning(tmp_path: Path) -> None:
    file = superlink_file(tmp_path, certificates=None, insecure=True)

    findings = list(check_superlink(file))

    assert "plain text, and any node may connect" in only(findings, WARNING)
    assert ERROR not in levels(findings)
    assert list(check_certificates(file)) == []


def test_a_secret_that_others_can_read(server: SuperLinkFile) -> None:
    server.state.mkdir()
    server.secret.write_text("hush")
    server.secret.chmod(0o644)

    said = only(check_superlink(server), ERROR)

    assert f"chmod 600 {server.secret}" in said
    assert "hush" not in said


# --- ports, folders, devices ---------------------------------------------------------------------


@pytest.mark.parametrize("key", ["listen", "health"])
def test_a_port_in_use(tmp_path: Path, key: str) -> None:
    with taken_port() as port:
        file = superlink_file(tmp_path, certificates=None, insecure=True, **{key: f"{HOST}:{port}"})
        said = only(check_superlink(file), ERROR)
        running = levels(check_superlink(file, starting=False))

    assert f"cannot listen on {HOST}:{port}" in said
    assert "is another one running?" in said
    assert ERROR not in running, "a server that runs has its own port"


def test_a_port_that_becomes_free_is_waited_for() -> None:
    port = free_port()
    listener = socket.create_server((HOST, port))
    threading.Timer(0.2, listener.close).start()

    assert [finding.level for finding in check_ports(Address(HOST, port))] == [OK]


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    finding = check_port(Address("192.0.2.1", 8000))

    assert finding.level == ERROR
    assert "192.0.2.1:8000" in finding.text


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_an_ipv6_port_in_use() -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with listener:
        finding = check_port(Address("::1", listener.getsockname()[1]))

    assert finding.level == ERROR
    assert "cannot listen on [::1]:" in finding.text


def test_a_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    finding = check_folder(tmp_path / "new" / "state", "state")

    assert finding == Finding(OK, f"state directory {tmp_path / 'new' / 'state'}")
    assert list((tmp_path / "new" / "state").iterdir()) == []


@pytest.mark.parametrize("key", ["state", "outputs"])
def test_a_folder_that_cannot_be_written_to(tmp_path: Path, key: str) -> None:
    (tmp_path / "file").write_text("in the way")
    file = superlink_file(tmp_path, certificates=None, insecure=True, **{key: "file"})

    said = only(check_superlink(file), ERROR)

    assert f"{key} directory {tmp_path / 'file'} cannot be written to" in said


def test_a_folder_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=preflight.FREE_BYTES - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)

    finding = check_folder(tmp_path, "outputs")

    assert finding == Finding(WARNING, f"outputs directory {tmp_path} has 1.0 GB left")


@pytest.mark.parametrize("name", ["auto", "cpu"])
def test_a_device_that_is_always_there(name: str) -> None:
    assert check_device(name) == Finding(OK, f"device {name}")


@pytest.mark.parametrize("name", ["cuda:63", "gpu"])
def test_a_device_that_is_missing(name: str) -> None:
    finding = check_device(name)

    assert finding.level == ERROR
    assert f"device {name} cannot be used" in finding.text
    assert "use auto or cpu" in finding.text
    assert "\n" not in finding.text


def test_a_device_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch, "zeros", lambda size, device: asked.append(device))

    assert check_device("cuda:1").level == OK
    assert asked == [torch.device("cuda:1")]


# --- the SuperLink as seen from elsewhere --------------------------------------------------------


@pytest.mark.parametrize("zone", ["GMT", "-0000", "+0000"])
def test_a_superlink_that_answers_at_the_same_time(made: Path, zone: str) -> None:
    with health_server(tls=made, date=http_date().replace("GMT", zone)) as port:
        findings = list(check_reachable(Address(HOST, port), made / "ca.crt"))

    answers = Finding(OK, f"the SuperLink at {HOST}:{port} answers")
    assert findings == [answers, Finding(OK, "clocks agree")]


@pytest.mark.parametrize("date", [None, "no date"])
def test_a_superlink_that_answers_without_a_time(made: Path, date: str | None) -> None:
    with health_server(tls=made, date=date) as port:
        findings = list(check_reachable(Address(HOST, port), made / "ca.crt"))

    assert findings == [Finding(OK, f"the SuperLink at {HOST}:{port} answers")]


def test_plain_text_on_both_sides() -> None:
    with health_server() as port:
        findings = list(check_reachable(Address(HOST, port), None))

    assert levels(findings) == {OK}


def test_nobody_there(made: Path) -> None:
    port = free_port()

    said = only(check_reachable(Address(HOST, port), made / "ca.crt"), ERROR)

    assert f"the SuperLink at {HOST}:{port} does not answer: Connection refused" in said
    assert "is it started" in said


def test_a_name_that_nobody_knows(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*arguments: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    said = only(check_reachable(Address("fedrc.invalid", 8000), made / "ca.crt"), ERROR)

    assert "fedrc.invalid:8000 does not answer: Name or service not known" in said


def test_plain_text_where_tls_is_expected(made: Path) -> None:
    with health_server() as port:
        said = only(check_reachable(Address(HOST, port), made / "ca.crt"), ERROR)

    assert f"{HOST}:{port} does not speak TLS" in said
    assert "insecure: true" in said


def test_tls_where_plain_text_is_expected(made: Path) -> None:
    with health_server(tls=made) as port:
        said = only(check_reachable(Address(HOST, port), None), ERROR)

    assert "it may expect TLS: give ca and key instead of insecure: true" in said


def test_a_server_of_another_authority(made: Path, tmp_path: Path) -> None:
    other = make_certificates(tmp_path / "other")
    with health_server(tls=made) as port:
        said = only(check_reachable(Address(HOST, port), other / "ca.crt"), ERROR)

    assert f"was not issued by {other / 'ca.crt'}: copy the server's ca.crt here again" in said


def test_a_server_with_another_name(made: Path) -> None:
    issue_server_certificate(made, ["fedrc.example.org"])
    with health_server(tls=made) as port:
        said = only(check_reachable(Address(HOST, port), made / "ca.crt"), ERROR)

    assert f"is not for {HOST}" in said
    assert f"--name {HOST} and every --name that it has" in said


@pytest.mark.parametrize(
    ("days", "expected"),
    [(-400, "has expired: renew it on the server"), (3, "is not valid yet: check this clock")],
)
def test_a_server_whose_certificate_is_out_of_time(
    made: Path, monkeypatch: pytest.MonkeyPatch, days: float, expected: str
) -> None:
    with at(monkeypatch, days=days):
        issue_server_certificate(made, [HOST])
    with health_server(tls=made) as port:
        said = only(check_reachable(Address(HOST, port), made / "ca.crt"), ERROR)

    assert f"the certificate of {HOST}:{port} {expected}" in said


@pytest.mark.parametrize(("seconds", "sign"), [(300, "-"), (-300, "+")])
def test_clocks_that_differ(made: Path, seconds: float, sign: str) -> None:
    with health_server(tls=made, date=http_date(seconds)) as port:
        said = only(check_reachable(Address(HOST, port), made / "ca.crt"), ERROR)

    assert said.startswith(f"this clock is {sign}")
    assert "set up NTP" in said


def test_a_server_that_is_not_well(made: Path) -> None:
    with health_server(tls=made, status=503) as port:
        said = only(check_reachable(Address(HOST, port), made / "ca.crt"), ERROR)

    assert "status 503" in said


@pytest.mark.parametrize("content", [None, b"torn"])
def test_a_ca_that_is_missing_or_torn(tmp_path: Path, content: bytes | None) -> None:
    ca = tmp_path / "ca.crt"
    if content is not None:
        ca.write_bytes(content)

    said = only(check_reachable(Address(HOST, free_port()), ca), ERROR)

    assert str(ca) in said


# --- a node as a whole ---------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path, made: Path) -> Path:
    """A node's folder, in good order."""
    site = tmp_path / "site"
    create_node_key(site / "node.key")
    shutil.copy(made / "ca.crt", site / "ca.crt")
    return site


def test_a_node_in_good_order(site: Path, made: Path) -> None:
    with health_server(tls=made, date=http_date()) as port:
        file = node_file(site, superlink=f"{HOST}:{port}", health=f"{HOST}:{free_port()}")
        findings = list(check_node(file))

    assert levels(findings) == {OK}
    assert f"{file.listen} is free" in [finding.text for finding in findings]
    assert f"{file.health} is free" in [finding.text for finding in findings]


def test_a_node_key_that_is_missing_or_open(site: Path, made: Path) -> None:
    key = site / "node.key"
    with health_server(tls=made) as port:
        file = node_file(site, superlink=f"{HOST}:{port}")
        key.chmod(0o644)
        opened = only(check_node(file), ERROR)
        key.unlink()
        missing = only(check_node(file), ERROR)

    assert opened == f"{key} can be read by others (mode 0644): chmod 600 {key}"
    assert missing == f"{key} is missing: `fedrc node key {key}` makes it"


@pytest.mark.parametrize("key", ["listen", "health"])
def test_a_node_whose_port_is_in_use(site: Path, made: Path, key: str) -> None:
    with health_server(tls=made) as port, taken_port() as taken:
        file = node_file(site, superlink=f"{HOST}:{port}", **{key: f"{HOST}:{taken}"})
        said = only(check_node(file), ERROR)
        running = levels(check_node(file, starting=False))

    assert f"cannot listen on {HOST}:{taken}" in said
    assert running == {OK}


def test_a_node_that_executes_every_app_is_warned(site: Path, made: Path) -> None:
    with health_server(tls=made) as port:
        file = node_file(site, superlink=f"{HOST}:{port}", policy={"apps": ["any"]})
        said = only(check_node(file), WARNING)

    assert "whoever may submit a run executes code of their own here" in said


def test_a_node_in_plain_text_is_warned(site: Path) -> None:
    with health_server() as port:
        file = node_file(site, superlink=f"{HOST}:{port}", ca=None, key=None, insecure=True)
        findings = list(check_node(file))

    assert "this node is not authenticated" in only(findings, WARNING)
    assert ERROR not in levels(findings)


@pytest.mark.parametrize(
    ("answer", "level", "said"),
    [
        ((200, "hospital-a"), OK, "registered as hospital-a"),
        ((200, ""), ERROR, "this node's key is registered as a node without a name"),
        ((200, "other"), ERROR, "this node's key is registered as other, but its name is hospital"),
        ((401, ""), ERROR, "this node is not registered: copy "),
    ],
)
def test_registration_is_known_by_the_key(
    site: Path,
    made: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: tuple[int, str],
    level: str,
    said: str,
) -> None:
    monkeypatch.setattr(membership, "who_am_i", lambda file, key: answer)

    with health_server(tls=made) as port:
        findings = list(check_node(node_file(site, superlink=f"{HOST}:{port}")))

    (found,) = [finding for finding in findings if said in finding.text]
    assert found.level == level


def test_a_gate_that_hides_the_nodes_is_no_error(site: Path, made: Path) -> None:
    with health_server(tls=made) as port:  # it refuses everything but /health
        findings = list(check_node(node_file(site, superlink=f"{HOST}:{port}")))

    assert Finding(OK, "whether this node is registered cannot be seen from here") in findings


def test_data_of_a_node_is_checked_against_its_schema(tmp_path: Path) -> None:
    data, schema, other = (tmp_path / name for name in ("mine.csv", "one.json", "two.json"))
    assert check_data(data, None) == Finding(ERROR, f"data {data} does not exist")
    data.write_text("age,code\n" + "70,flu\n30,cold\n" * 10)
    assert check_data(data, None) == Finding(OK, f"data {data}")

    Schema(("cold", "flu"), (Column("age", NUMBER),), "code").save(schema)
    fits = check_data(data, schema)
    Schema(("cold", "flu"), (Column("crp", NUMBER),), "code").save(other)
    lacks = check_data(data, other)

    assert fits == Finding(OK, f"{data} fits the schema: 20 rows, cold 10, flu 10")
    assert lacks.level == ERROR
    assert lacks.text.startswith(f"data does not fit {other}: {data}: ")
    assert "'crp'" in lacks.text
