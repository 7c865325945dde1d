"""Starting: checks first, then the program with the right flags in this very process."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import parse_config_args
from loopback import (
    HOST,
    at,
    free_port,
    health_server,
    make_certificates,
    make_inner_certificates,
    node_file,
    node_yaml,
    superlink_file,
    superlink_yaml,
    taken_port,
)

from deploy import launch as launch_module
from deploy.certificates import create_node_key, is_signed_by, load_certificate
from deploy.files import SuperLinkFile
from deploy.findings import ERROR, OK, WARNING, Finding
from deploy.gate import run as gate
from deploy.launch import (
    demand,
    ensure_secret,
    launch_clientapp,
    launch_serverapp,
    launch_superlink,
    launch_supernode,
    serverapp_command,
    superlink_command,
    supernode_command,
)
from fedrc_flwr import flower
from fedrc_flwr.errors import ConfigError


class Execution:
    """Takes the place of os.execve."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str], dict[str, str], Path]] = []
        self.children: list[tuple[list[str], dict[str, str], Path]] = []

    def __call__(self, path: str, arguments: list[str], environment: dict[str, str]) -> None:
        self.calls.append((path, arguments, environment, Path.cwd()))

    def start(self, arguments: list[str], cwd: Path, env: dict[str, str]) -> None:
        self.children.append((arguments, env, cwd))


@pytest.fixture
def execution(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Execution:
    """No program is started; the working directory is put back afterwards."""
    execution = Execution()
    monkeypatch.setattr(os, "execve", execution)
    monkeypatch.setattr(subprocess, "Popen", execution.start)
    monkeypatch.chdir(tmp_path)
    return execution


def option(command: list[str], name: str) -> str:
    """The value that follows a flag that is given once."""
    assert command.count(name) == 1, command
    return command[command.index(name) + 1]


# --- demand --------------------------------------------------------------------------------------


def test_warnings_are_printed_and_do_not_stop(capsys: pytest.CaptureFixture[str]) -> None:
    demand([Finding(OK, "fine"), Finding(WARNING, "soon")])

    assert capsys.readouterr().out == "warning soon\n"


def test_errors_are_all_told_once_and_stop(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [Finding(ERROR, "one"), Finding(OK, "fine"), Finding(ERROR, "two")]

    with pytest.raises(ConfigError, match="not started: one; two"):
        demand(findings)

    assert capsys.readouterr().out == ""


# --- the secret ----------------------------------------------------------------------------------


def test_the_secret_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "state" / "executor.secret"
    before = os.umask(0)
    try:
        ensure_secret(path)
    finally:
        os.umask(before)
    first = path.read_bytes()

    ensure_secret(path)

    assert path.read_bytes() == first
    assert len(bytes.fromhex(first.decode())) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_servers_have_different_secrets(tmp_path: Path) -> None:
    for name in ("one", "other"):
        ensure_secret(tmp_path / name)

    assert (tmp_path / "one").read_bytes() != (tmp_path / "other").read_bytes()


# --- the commands --------------------------------------------------------------------------------


def test_the_superlink_has_tls_and_authentication_by_default(tmp_path: Path) -> None:
    file = superlink_file(
        tmp_path, listen="0.0.0.0:8000", control="127.0.0.1:8002", health="127.0.0.1:8001"
    )

    command = superlink_command(file)

    assert Path(command[0]).name == "flower-superlink"
    inner = tmp_path / "state" / "control"
    assert option(command, "--ssl-ca-certfile") == str(inner / "ca.crt")
    assert option(command, "--ssl-certfile") == str(inner / "server.crt")
    assert option(command, "--ssl-keyfile") == str(inner / "server.key")
    assert "--enable-supernode-auth" in command
    assert "--insecure" not in command
    assert (option(command, "--host"), option(command, "--port")) == ("127.0.0.1", "8002")
    assert option(command, "--isolation") == "process"
    assert option(command, "--database") == str(tmp_path / "state" / "superlink.db")
    assert option(command, "--superexec-auth-secret-file") == str(file.secret)
    assert option(command, "--health-server-address") == "127.0.0.1:8001"


def test_a_superlink_that_keeps_everything_in_memory_has_no_database(tmp_path: Path) -> None:
    file = superlink_file(tmp_path, database="memory")

    assert option(superlink_command(file), "--database") == ":flwr-in-memory:"
    assert file.database_file is None


def test_the_executor_trusts_the_authority_and_shares_the_secret(tmp_path: Path) -> None:
    file = superlink_file(tmp_path, address="fedrc.example.org:8000", control="127.0.0.1:8002")

    command = serverapp_command(file)

    assert Path(command[0]).name == "flower-superexec"
    assert option(command, "--root-certificates") == str(tmp_path / "state/control/ca.crt")
    assert option(command, "--runtime-api-address") == "127.0.0.1:8002"
    assert option(command, "--superexec-auth-secret-file") == str(file.secret)
    assert "--insecure" not in command


def test_a_node_has_tls_and_its_key_by_default(tmp_path: Path) -> None:
    file = node_file(tmp_path, superlink="fedrc.example.org:8000", listen="127.0.0.1:9094")

    command = supernode_command(file)

    assert Path(command[0]).name == "flower-supernode"
    assert option(command, "--superlink") == "fedrc.example.org:8000"
    assert option(command, "--root-certificates") == str(tmp_path / "ca.crt")
    assert option(command, "--auth-supernode-private-key") == str(tmp_path / "node.key")
    assert (option(command, "--host"), option(command, "--port")) == ("127.0.0.1", "9094")
    assert 'name="hospital-a"' in option(command, "--node-config")
    assert "--insecure" not in command
    assert "--health-server-address" not in command


def test_plain_text_only_when_asked_for(tmp_path: Path) -> None:
    server = superlink_file(tmp_path, certificates=None, insecure=True)
    node = node_file(tmp_path, ca=None, key=None, insecure=True)

    commands = [superlink_command(server), serverapp_command(server), supernode_command(node)]

    for command in commands:
        assert command.count("--insecure") == 1
        assert not [part for part in command if part.startswith(("--ssl", "--root", "--auth"))]
        assert "--enable-supernode-auth" not in command


# --- starting ------------------------------------------------------------------------------------


def test_a_superlink_in_plain_text_becomes_flowers_program(
    tmp_path: Path, execution: Execution
) -> None:
    launch_superlink(superlink_yaml(tmp_path, certificates=None, insecure=True))

    ((program, command, environment, _),) = execution.calls
    assert Path(program).name == "flower-superlink"
    assert program == command[0]
    assert os.access(program, os.X_OK)
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    secret = Path(option(command, "--superexec-auth-secret-file"))
    assert secret.exists()
    assert secret.read_text() not in " ".join(command)


def test_metrics_are_answered_by_a_process_beside_the_superlink(
    tmp_path: Path, execution: Execution
) -> None:
    path = superlink_yaml(
        tmp_path, certificates=None, insecure=True, metrics=f"{HOST}:{free_port()}"
    )

    launch_superlink(path)

    ((command, _, directory),) = execution.children
    assert command[1:] == ["-P", "-m", "deploy.monitoring.server", str(path), str(os.getpid())]
    assert directory == tmp_path / "state"
    assert len(execution.calls) == 1


def test_the_superlink_runs_behind_the_gate_with_a_private_state(
    tmp_path: Path, execution: Execution, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificates(tmp_path / "certificates")
    port = free_port()
    started: list[list[str]] = []
    monkeypatch.setattr(gate, "run", lambda file, command, environment: started.append(command))
    before = os.umask(0)
    try:
        with pytest.raises(SystemExit):
            launch_superlink(superlink_yaml(tmp_path, control=f"{HOST}:{port}"))
    finally:
        os.umask(before)

    (command,) = started
    assert execution.calls == []
    assert (option(command, "--host"), option(command, "--port")) == (HOST, str(port))
    assert Path(option(command, "--ssl-keyfile")).exists()
    state = tmp_path / "state"
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "superlink.db").stat().st_mode) == 0o600


def test_flowers_own_certificate_is_kept_and_renewed_by_the_same_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at(monkeypatch, -500):
        inner = make_inner_certificates(tmp_path)
    authority, old = (inner / "ca.crt").read_bytes(), (inner / "server.crt").read_bytes()

    make_inner_certificates(tmp_path)
    renewed = (inner / "server.crt").read_bytes()
    make_inner_certificates(tmp_path)

    assert (inner / "ca.crt").read_bytes() == authority
    assert renewed != old
    assert (inner / "server.crt").read_bytes() == renewed
    assert is_signed_by(load_certificate(inner / "server.crt"), load_certificate(inner / "ca.crt"))


def test_the_executor_becomes_flowers_program_among_the_outputs(
    tmp_path: Path, execution: Execution
) -> None:
    inner = make_inner_certificates(tmp_path)
    with health_server(tls=inner) as port:
        launch_serverapp(superlink_yaml(tmp_path, control=f"{HOST}:{port}"))

    ((program, command, environment, directory),) = execution.calls
    assert Path(program).name == "flower-superexec"
    assert option(command, "--runtime-api-address") == f"{HOST}:{port}"
    assert directory == tmp_path / "outputs"
    assert environment["FEDRC_NODES"] == str(tmp_path / "state" / "nodes.json")
    assert environment["FEDRC_OBJECTS"] == str(tmp_path / "state" / "objects")
    assert float(environment["FEDRC_LARGEST_REPLY"]) == SuperLinkFile.largest_reply * 10**6


def test_the_executor_waits_for_a_superlink_that_is_being_started(
    tmp_path: Path,
    execution: Execution,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with contextlib.ExitStack() as servers:
        port = free_port()
        path = superlink_yaml(tmp_path, control=f"{HOST}:{port}")

        def superlink_starts(seconds: float) -> None:
            inner = make_inner_certificates(tmp_path)
            servers.enter_context(health_server(tls=inner, port=port))

        monkeypatch.setattr(launch_module.time, "sleep", superlink_starts)
        launch_serverapp(path)

    assert "waiting for the SuperLink" in capsys.readouterr().out
    assert len(execution.calls) == 1


def test_with_a_database_in_memory_nothing_of_a_message_is_a_file(
    tmp_path: Path, execution: Execution
) -> None:
    inner = make_inner_certificates(tmp_path)
    with health_server(tls=inner) as port:
        launch_serverapp(superlink_yaml(tmp_path, control=f"{HOST}:{port}", database="memory"))

    assert "FEDRC_OBJECTS" not in execution.calls[0][2]


def test_a_node_becomes_the_resident_one_in_its_state(tmp_path: Path, execution: Execution) -> None:
    made = make_certificates(tmp_path / "certificates")
    shutil.copy(made / "ca.crt", tmp_path / "ca.crt")
    create_node_key(tmp_path / "node.key")
    with health_server(tls=made) as port:
        launch_supernode(node_yaml(tmp_path, superlink=f"{HOST}:{port}"))

    ((_, command, environment, directory),) = execution.calls
    assert command[1:] == ["-P", "-m", "deploy.node", str(tmp_path / "node.yaml")]
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert directory == tmp_path / "state"
    assert not execution.children


@pytest.mark.parametrize(
    ("version", "supernode", "told"),
    [
        ((1, 41), "flower", "node.yaml says so"),
        ((1, 40), "resident", "it was not tried with Flower 1.40"),
        ((2, 0), "resident", "it was not tried with Flower 2.0"),
    ],
)
def test_flowers_own_supernode_is_the_fallback_with_an_executor_that_checks(
    tmp_path: Path,
    execution: Execution,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    version: tuple[int, int],
    supernode: str,
    told: str,
) -> None:
    monkeypatch.setattr(flower, "version", lambda: version)
    made = make_certificates(tmp_path / "certificates")
    shutil.copy(made / "ca.crt", tmp_path / "ca.crt")
    create_node_key(tmp_path / "node.key")
    with health_server(tls=made) as port:
        launch_supernode(node_yaml(tmp_path, superlink=f"{HOST}:{port}", supernode=supernode))

    ((program, command, _, directory),) = execution.calls
    assert Path(program).name == "flower-supernode"
    assert option(command, "--superlink") == f"{HOST}:{port}"
    assert option(command, "--isolation") == "process"
    assert directory == tmp_path / "state"
    ((executor, _, directory),) = execution.children
    path = str(tmp_path / "node.yaml")
    assert executor[1:] == ["-P", "-m", "deploy.node.superexec", path, str(os.getpid())]
    assert directory == tmp_path / "state"
    assert capsys.readouterr().out.count(told) == 1


def test_a_node_alone_leaves_data_and_state_to_its_executor(
    tmp_path: Path, execution: Execution
) -> None:
    made = make_certificates(tmp_path / "certificates")
    shutil.copy(made / "ca.crt", tmp_path / "ca.crt")
    create_node_key(tmp_path / "node.key")
    with health_server(tls=made) as port:
        path = node_yaml(
            tmp_path, superlink=f"{HOST}:{port}", data="missing.csv", executor_secret="secret"
        )
        launch_supernode(path, alone=True)

    ((_, command, _, _),) = execution.calls
    assert command[3:] == ["deploy.node", str(path), "--alone"]
    assert not execution.children
    assert not (tmp_path / "state").exists()
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o640
    with pytest.raises(ConfigError, match="--alone needs executor-secret"):
        launch_supernode(node_yaml(tmp_path), alone=True)


def test_an_executor_needs_the_secret_and_no_key(tmp_path: Path, execution: Execution) -> None:
    path = node_yaml(tmp_path)
    with pytest.raises(ConfigError, match="start `fedrc supernode` first"):
        launch_clientapp(path)
    ensure_secret(tmp_path / "state" / "executor.secret")

    create_node_key(tmp_path / "node.key")
    with pytest.raises(ConfigError, match="so could the code of a run"):
        launch_clientapp(path)
    (tmp_path / "node.key").unlink()
    launch_clientapp(path)

    ((_, command, _, directory),) = execution.calls
    assert command[1:] == ["-P", "-m", "deploy.node.executor", str(path)]
    assert directory == tmp_path / "state"


@pytest.mark.parametrize(
    ("launch", "write", "changes", "reason"),
    [
        (launch_superlink, superlink_yaml, {}, "ca.crt"),
        (launch_serverapp, superlink_yaml, {}, "start `fedrc superlink"),
        (launch_serverapp, superlink_yaml, {"certificates": None, "insecure": True}, "not answer"),
        (launch_supernode, node_yaml, {}, "node.key"),
        (launch_supernode, node_yaml, {"ca": None, "key": None, "insecure": True}, "not answer"),
    ],
)
def test_nothing_starts_after_a_failed_check(
    tmp_path: Path,
    execution: Execution,
    launch: Callable[[Path], None],
    write: Callable[..., Path],
    changes: dict[str, Any],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch_module, "START_SECONDS", 0.0)
    path = write(tmp_path, **changes)

    with pytest.raises(ConfigError, match="not started: ") as caught:
        launch(path)

    assert reason in str(caught.value)
    assert execution.calls == []
    assert not (tmp_path / "state" / "executor.secret").exists()


def test_a_superlink_does_not_start_on_a_port_in_use(tmp_path: Path, execution: Execution) -> None:
    make_certificates(tmp_path / "certificates")
    with taken_port() as port, pytest.raises(ConfigError, match="cannot listen"):
        launch_superlink(superlink_yaml(tmp_path, listen=f"{HOST}:{port}"))

    assert execution.calls == []


def test_neither_half_of_the_server_starts_with_a_secret_that_others_can_read(
    tmp_path: Path, execution: Execution
) -> None:
    make_certificates(tmp_path / "certificates")
    inner = make_inner_certificates(tmp_path)
    (tmp_path / "state" / "executor.secret").write_text("hush")
    (tmp_path / "state" / "executor.secret").chmod(0o644)

    with health_server(tls=inner) as port:
        path = superlink_yaml(tmp_path, control=f"{HOST}:{port}")
        for launch in (launch_superlink, launch_serverapp):
            with pytest.raises(ConfigError, match=r"executor\.secret can be read by others"):
                launch(path)

    assert execution.calls == []


def test_an_executor_without_a_place_for_results_does_not_start(
    tmp_path: Path, execution: Execution
) -> None:
    inner = make_inner_certificates(tmp_path)
    (tmp_path / "outputs").write_text("a file in the way")

    with health_server(tls=inner) as port, pytest.raises(ConfigError, match="outputs directory"):
        launch_serverapp(superlink_yaml(tmp_path, control=f"{HOST}:{port}"))

    assert execution.calls == []


@pytest.mark.parametrize(
    "name", ["hospital-a", "Haus Grün", "it's = here", "back\\slash", "\N{GRINNING FACE}"]
)
def test_flower_reads_the_node_config_as_it_was(tmp_path: Path, name: str) -> None:
    file = node_file(tmp_path / "a folder", name=name, partition=3, count_noise=0.25)
    command = supernode_command(file)

    read = parse_config_args([command[command.index("--node-config") + 1]])

    assert read == file.node_config()


def test_a_quotation_mark_that_flower_cannot_read_is_refused(tmp_path: Path) -> None:
    file = node_file(tmp_path, name='the "best" one')

    with pytest.raises(ConfigError, match=r"name = .*expected no quotation marks"):
        supernode_command(file)
