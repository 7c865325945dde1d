"""Somebody who has nothing but the public ca.crt, at every door of a real SuperLink."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import BIN, Federation, Part, fedrc, wait_until

from deploy.files import read_node_file
from deploy.launch import supernode_command
from fedrc_flwr import flower

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(900)]

REFUSED = "for operators with a certificate only"
APP = {
    "pyproject.toml": """
[project]
name = "mallory"
version = "1.0.0"
license = { file = "LICENSE" }
dependencies = ["flwr[simulation]>=1.41,<2"]
[tool.flwr.app]
publisher = "mallory"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "mallory.app:server"
clientapp = "mallory.app:client"
[tool.flwr.app.config]
""",
    "LICENSE": "none",
    "README.md": "none",
    "mallory/__init__.py": "",
    "mallory/app.py": """
import pathlib
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
server = ServerApp()
client = ClientApp()

@server.main()
def main(grid, context):
    pathlib.Path("{mark}").write_text("executed")
""",
}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server with an operator, alice, and one node."""
    made = Federation(tmp_path_factory.mktemp("federation"))
    folder = made.folder
    done = fedrc("certs", "operator", folder / "certificates", "alice", "--output", folder)
    assert done.returncode == 0, done.stderr
    try:
        made.start()
        made.node("client-0", 0).start()
        wait_until(
            lambda: "1 node registered, 1 online" in fedrc("node", "list", made.file).stdout,
            "a node online",
        )
        yield made
    finally:
        made.stop()


def ask(federation: Federation, method: str, path: str, **more: Any) -> int:
    context = ssl.create_default_context(cafile=str(federation.folder / "certificates" / "ca.crt"))
    connection = http.client.HTTPSConnection(
        "127.0.0.1", federation.port, context=context, timeout=30
    )
    try:
        connection.request(method, path, **more)
        return connection.getresponse().status
    finally:
        connection.close()


def flwr(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**flower.environment(), "FLWR_HOME": str(home)}
    return subprocess.run(
        [str(BIN / "flwr"), *arguments], env=environment, cwd=home, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture
def stranger(federation: Federation, tmp_path: Path) -> Path:
    """A Flower home that points to the federation's public address, with its public ca.crt."""
    ca = tmp_path / "ca.crt"
    shutil.copy(federation.folder / "certificates" / "ca.crt", ca)
    flower.write_connection(tmp_path, f"127.0.0.1:{federation.port}", ca)
    return tmp_path


def test_a_stranger_runs_no_code(federation: Federation, stranger: Path) -> None:
    mark = stranger / "mark"
    for name, content in APP.items():
        path = stranger / "app" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content.replace("{mark}", str(mark)))

    done = flwr(stranger, "run", str(stranger / "app"), flower.CONNECTION, "--format", "json")

    assert REFUSED in done.stdout + done.stderr, done.stdout + done.stderr
    assert "run-id" not in done.stdout
    assert not mark.exists()
    assert "start-run HTTP/1.1" not in federation.superlink.log(), "it did not reach Flower"

    # The same app is executed where there is no gate in between: on the server's own machine.
    inner = federation.folder / "state" / "control" / "ca.crt"
    flower.write_connection(stranger, f"127.0.0.1:{federation.control}", inner)
    done = flwr(stranger, "run", str(stranger / "app"), flower.CONNECTION, "--format", "json")
    assert "run-id" in done.stdout, done.stdout + done.stderr
    wait_until(mark.exists, "the app to be executed")


def test_a_stranger_registers_no_node_and_sees_none(federation: Federation, stranger: Path) -> None:
    assert fedrc("node", "key", stranger / "mallory.key").returncode == 0
    public = str(stranger / "mallory.key.pub")

    registered = flwr(stranger, "supernode", "register", public, flower.CONNECTION)
    listed = flwr(stranger, "supernode", "list", flower.CONNECTION)

    for done in (registered, listed):
        assert REFUSED in done.stdout + done.stderr, done.stdout + done.stderr
    assert "client-0" not in listed.stdout
    assert "1 node registered" in fedrc("node", "list", federation.file).stdout


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/docs", 404),
        ("/openapi.json", 404),
        ("/v1/runtime/acquire-task", 404),
        ("/v1/control/list-runs", 403),
        ("/v1/fleet/register-node", 404),
        ("/v1/fleet/pull-messages", 401),
        ("/v1/fleet/push-object", 401),
    ],
)
def test_every_door_is_closed(federation: Federation, path: str, status: int) -> None:
    method = "GET" if path in ("/docs", "/openapi.json") else "POST"

    assert ask(federation, method, path, headers={"Content-Type": "application/protobuf"}) == status


def test_a_node_that_nobody_registered_is_refused_by_the_gate(federation: Federation) -> None:
    node = federation.node("unregistered", 0, register=False)
    node.start()
    wait_until(lambda: not node.running(), "the node to be refused")
    assert "this node is not registered" in node.log()

    # Past the checks of `fedrc supernode`.
    command = supernode_command(read_node_file(federation.folder / "unregistered" / "node.yaml"))
    secret = read_node_file(federation.folder / "unregistered" / "node.yaml").secret
    secret.parent.mkdir(parents=True, exist_ok=True)
    secret.write_text("0" * 64)
    path = f"PATH={flower.environment()['PATH']}"
    forced = Part(federation.folder, "forced", ["env", path, *command], federation.mark)
    forced.start()
    wait_until(lambda: not forced.running(), "the forced node to be refused")
    assert "this key is not registered" in federation.superlink.log()


def test_flower_itself_listens_on_loopback_only(federation: Federation) -> None:
    (server,) = federation.processes("flower-superlink", "superlink")
    listening = [c.laddr for c in server.net_connections() if c.status == "LISTEN"]

    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert federation.control in {address.port for address in listening}
    with socket.create_connection(("127.0.0.1", federation.port)):
        pass  # the gate is another process
    assert federation.port not in {address.port for address in listening}


def test_an_operator_with_a_certificate_works_from_elsewhere(
    federation: Federation, tmp_path: Path
) -> None:
    folder = federation.folder
    shutil.copy(folder / "certificates" / "ca.crt", tmp_path / "ca.crt")
    for name in ("alice.crt", "alice.key"):
        shutil.copy(folder / name, tmp_path / name)
    (tmp_path / "operator.yaml").write_text(
        f"superlink: 127.0.0.1:{federation.port}\nca: ca.crt\ncertificate: alice.crt\n"
        "key: alice.key\n"
    )
    file = tmp_path / "operator.yaml"

    listed = fedrc("node", "list", file)
    assert "client-0: online" in listed.stdout, listed.stderr
    assert fedrc("node", "key", tmp_path / "new.key").returncode == 0
    added = fedrc("node", "register", file, tmp_path / "new.key.pub", "--name", "client-9")
    assert added.stdout == "registered client-9\n", added.stderr
    again = fedrc("node", "register", file, tmp_path / "new.key.pub", "--name", "client-0")
    assert "a name belongs to one key" in again.stderr
    assert fedrc("node", "remove", file, "client-9").stdout == "removed client-9\n"

    assert fedrc("certs", "withdraw", folder / "certificates", "alice").returncode == 0
    refused = fedrc("node", "list", file)
    assert refused.returncode != 0
    assert "403, this operator's certificate was withdrawn" in refused.stderr


def test_the_database_and_its_directory_are_private(federation: Federation) -> None:
    state = federation.folder / "state"

    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    files = [path for path in state.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"superlink.db", "executor.secret", "nodes.json"}
    for path in files:
        if path.suffix != ".crt":
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_the_doctor_is_content_with_a_closed_server_and_refuses_an_open_one(
    federation: Federation, tmp_path: Path
) -> None:
    closed = fedrc("doctor", "--server", federation.file)
    assert closed.returncode == 0, closed.stdout
    assert f"127.0.0.1:{federation.port} admits nodes only" in closed.stdout

    text = federation.file.read_text()
    opened = federation.folder / "open.yaml"
    opened.write_text(
        text.replace(f"control: 127.0.0.1:{federation.control}", "control: 0.0.0.0:1")
    )
    told = fedrc("doctor", "--server", opened)
    started = fedrc("superlink", opened)
    assert told.returncode == 1
    assert started.returncode != 0
    for said in (told.stdout, started.stderr):
        assert "which is not on loopback: whoever reaches it can run code" in said

    # A node whose `superlink` is Flower itself.
    inner = federation.folder / "state" / "control" / "ca.crt"
    values = (federation.folder / "client-0" / "node.yaml").read_text()
    values = values.replace(str(federation.port), str(federation.control))
    node = federation.folder / "client-0" / "astray.yaml"
    node.write_text(values.replace("ca: ca.crt", f"ca: {inner}"))
    astray = fedrc("doctor", "--node", node)
    assert astray.returncode == 1
    assert "is Flower itself, with no gate in front of it" in astray.stdout


def test_a_gate_that_is_killed_takes_flower_with_it_and_both_come_back(
    federation: Federation,
) -> None:
    federation.superlink.kill()
    wait_until(
        lambda: not federation.processes("flower-superlink", "superlink"), "Flower to end", 30
    )
    federation.superlink.start()
    federation.wait_for_superlink()

    assert "client-0" in fedrc("node", "list", federation.file).stdout
    names = json.loads((federation.folder / "state" / "nodes.json").read_text())
    assert "client-0" in names.values()
    assert os.access(federation.folder / "state" / "superlink.db", os.R_OK)
