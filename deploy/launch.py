"""Starting server and node: check first, then replace this process by the program itself."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from deploy.certificates import (
    CA_CERTIFICATE,
    CA_KEY,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    create_authority,
    create_secret,
    facts,
    issue_server_certificate,
    load_certificate,
)
from deploy.database import prepare_database
from deploy.files import FLOWER, NodeFile, SuperLinkFile, read_node_file, read_superlink_file
from deploy.findings import ERROR, OK, WARNING, Finding
from deploy.preflight import (
    check_executor,
    check_folder,
    check_node,
    check_reachable,
    check_secret,
    check_superlink,
)
from fedrc_flwr import __version__, flower
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.flower import Tls
from fedrc_flwr.machine import HOLDING
from server_app.names import REGISTRY
from server_app.shelf import LARGEST, SHELF

INNER_DAYS = 730
#: How long the executor of ServerApps waits for a SuperLink that is being started.
START_SECONDS = 30.0
#: The versions of Flower whose fleet protocol the resident node was run with: from, and below.
TESTED_FLOWER = ((1, 41), (1, 42))


def launch_superlink(path: Path) -> None:
    """Check superlink.yaml, then run Flower's SuperLink with the gate in front of it."""
    file = read_superlink_file(path)
    announce(f"SuperLink on {file.listen}")
    demand(check_superlink(file))
    database = file.database_file
    if database is not None and (given_back := prepare_database(database)):
        print(f"compacted {database}: {given_back / 1e6:.0f} MB given back", flush=True)
    ensure_secret(file.secret)
    os.umask(0o077)
    if file.metrics is not None:
        subprocess.Popen(
            monitor_command(path, os.getpid()), cwd=file.state, env=flower.environment()
        )
    if file.insecure:
        _become(superlink_command(file))
        return
    ensure_inner_certificate(file)
    from deploy.gate.run import run

    sys.exit(run(file, superlink_command(file), flower.environment()))


def launch_serverapp(path: Path) -> None:
    """Run the executor of ServerApps, beside the SuperLink of the same file, in this process."""
    file = read_superlink_file(path)
    announce(f"executor of server apps for the SuperLink at {file.flower}")
    demand(
        [
            *_answering(file, path),
            *check_secret(file),
            check_folder(file.outputs, "outputs"),
        ]
    )
    ensure_secret(file.secret)
    # What the gate knows and keeps: names belong to keys, which only nodes with keys have.
    gate = {} if file.insecure else {REGISTRY: str(file.nodes)}
    if gate and file.database_file is not None:
        gate[SHELF] = str(file.objects)
    gate[LARGEST] = str(file.largest_reply * 10**6)
    _become(serverapp_command(file), cwd=file.outputs, **gate)


def launch_supernode(path: Path, alone: bool = False) -> None:
    """Check node.yaml and run the node in this process; its worker is a child.

    ``alone``: `fedrc clientapp` runs the worker, as another user, who has no access to the key.
    """
    file = read_node_file(path)
    announce(f"node {file.name} of the SuperLink at {file.superlink}")
    if alone and file.executor_secret is None:
        raise ConfigError(
            f"{path}: --alone needs executor-secret, a file outside of `state` that both users can "
            "reach; it is made here, readable for this user's group"
        )
    demand(check_node(file, alone=alone))
    ensure_secret(file.secret)
    if alone:
        file.secret.chmod(0o640)
    folder = None if alone else file.state
    if (reason := fallback(file)) is None:
        _become([*node_program(path), *(["--alone"] if alone else [])], cwd=folder)
        return
    print(f"Flower's own SuperNode in place of the resident node: {reason}", flush=True)
    if file.metrics is not None:
        print(Finding(WARNING, "metrics: Flower's own SuperNode has no endpoint"), flush=True)
    if not alone:
        command = [*executor_command(path, file), str(os.getpid())]
        subprocess.Popen(command, cwd=file.state, env=flower.environment())
    _become(supernode_command(file), cwd=folder)


def launch_clientapp(path: Path) -> None:
    """Execute a node's tasks in this process, beside `fedrc supernode --alone`."""
    file = read_node_file(path)
    announce(f"executor of the node {file.name} at {file.listen}")
    demand(check_executor(file))
    if os.access(path, os.W_OK):
        warning = f"this user can write {path}, so that the code of a run could change its policy"
        print(Finding(WARNING, warning), flush=True)
    _become(executor_command(path, file), cwd=file.state)


def monitor_command(path: Path, parent: int) -> list[str]:
    """What answers Prometheus beside the SuperLink of a file."""
    return [
        sys.executable, "-P", "-m", "deploy.monitoring.server", str(path.resolve()), str(parent),
    ]  # fmt: skip


def fallback(file: NodeFile) -> str | None:
    """Why Flower's own SuperNode is run in place of this project's node, if it is."""
    if file.supernode == FLOWER:
        return "node.yaml says so"
    if TESTED_FLOWER[0] <= flower.version() < TESTED_FLOWER[1]:
        return None
    return f"it was not tried with Flower {'.'.join(map(str, flower.version()))}"


def node_program(path: Path) -> list[str]:
    """What runs the resident node of a file: an interpreter without what the checks imported."""
    return [sys.executable, "-P", "-m", "deploy.node", str(path.resolve())]


def executor_command(path: Path, file: NodeFile) -> list[str]:
    """What executes the tasks of a node's file."""
    module = "deploy.node.superexec" if fallback(file) else "deploy.node.executor"
    return [sys.executable, "-P", "-m", module, str(path.resolve())]


def superlink_command(file: SuperLinkFile) -> list[str]:
    """What runs Flower's SuperLink of a file."""
    health = str(file.health) if file.health else None
    inner = file.inner
    tls = Tls(inner / CA_CERTIFICATE, inner / SERVER_CERTIFICATE, inner / SERVER_KEY)
    return flower.superlink(
        file.flower.host, file.flower.port, None if file.insecure else tls,
        file.database_file, file.secret, health,
    )  # fmt: skip


def serverapp_command(file: SuperLinkFile) -> list[str]:
    """What runs the ServerApps of a file."""
    return flower.serverapp_executor(str(file.flower), file.inner_ca, file.secret)


def supernode_command(file: NodeFile) -> list[str]:
    """What runs the node of a file."""
    health = str(file.health) if file.health else None
    return flower.supernode(
        str(file.superlink), file.ca, file.key, file.listen.host, file.listen.port,
        file.node_config(), health, file.secret,
    )  # fmt: skip


def ensure_secret(path: Path) -> None:
    """Make the secret that SuperLink and executor share, once."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        create_secret(path, secrets.token_hex(32).encode())


def ensure_inner_certificate(file: SuperLinkFile) -> None:
    """Make Flower's own certificate, which nobody outside this machine sees, and renew it in time.

    Its authority stays the same: the executor of ServerApps trusts it from its start on.
    """
    if not (file.inner / CA_KEY).exists():
        create_authority(file.inner, "fedrc control interface")
    names = list(dict.fromkeys([file.control.host, "127.0.0.1", "localhost"]))
    try:
        known = facts(load_certificate(file.inner / SERVER_CERTIFICATE))
        if known.days_left() > INNER_DAYS / 2 and set(names) <= set(known.names):
            return
    except ConfigError:
        pass
    issue_server_certificate(file.inner, names, INNER_DAYS)


def _answering(file: SuperLinkFile, path: Path) -> list[Finding]:
    """Whether the SuperLink answers; one that was started a moment ago is waited for."""
    ends = time.monotonic() + START_SECONDS
    said = False
    while True:
        if file.inner_ca is not None and not file.inner_ca.exists():
            missing = f"the SuperLink was never started here: start `fedrc superlink {path}`"
            findings = [Finding(ERROR, missing)]
        else:
            findings = list(check_reachable(file.flower, file.inner_ca))
        if all(finding.level != ERROR for finding in findings) or time.monotonic() >= ends:
            return findings
        if not said:
            print(f"waiting for the SuperLink, up to {START_SECONDS:.0f} seconds", flush=True)
            said = True
        time.sleep(0.5)


def announce(what: str) -> None:
    """The first line of a program's log."""
    print(f"fedrc-flwr {__version__}: {what}", flush=True)


def demand(findings: Iterable[Finding]) -> None:
    """Print the warnings, and stop with all errors if there are any."""
    errors = []
    for finding in findings:
        if finding.level == ERROR:
            errors.append(finding.text)
        elif finding.level != OK:
            print(finding, flush=True)
    if errors:
        raise ConfigError("not started: " + "; ".join(errors))


def _become(command: list[str], cwd: Path | None = None, **settings: str) -> None:
    """Replace this process: signals and exit codes are the program's own from here on."""
    if cwd is not None:
        os.chdir(cwd)
    os.execve(command[0], command, {**HOLDING, **flower.environment(), **settings})
