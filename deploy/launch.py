"""Starting server and node: check first, then replace this process by Flower's program."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from deploy.certificates import create_secret
from deploy.files import Address, NodeFile, SuperLinkFile, read_node_file, read_superlink_file
from deploy.preflight import (
    ERROR,
    OK,
    Finding,
    check_executor,
    check_folder,
    check_node,
    check_reachable,
    check_secret,
    check_superlink,
)
from fedrc_flwr import __version__, flower
from fedrc_flwr.errors import ConfigError


def launch_superlink(path: Path) -> None:
    """Check superlink.yaml and run the SuperLink in this process."""
    file = read_superlink_file(path)
    announce(f"SuperLink on {file.listen}")
    demand(check_superlink(file))
    ensure_secret(file.secret)
    _become(superlink_command(file))


def launch_serverapp(path: Path) -> None:
    """Run the executor of ServerApps, beside the SuperLink of the same file, in this process."""
    file = read_superlink_file(path)
    local = local_address(file)
    announce(f"executor of server apps for the SuperLink at {local}")
    demand(
        [
            *check_reachable(local, file.tls.ca if file.tls else None),
            *check_secret(file),
            check_folder(file.outputs, "outputs"),
        ]
    )
    ensure_secret(file.secret)
    _become(serverapp_command(file), cwd=file.outputs)


def launch_supernode(path: Path, alone: bool = False) -> None:
    """Check node.yaml and run the SuperNode in this process, with its executor as a child.

    ``alone``: `fedrc clientapp` runs the executor, as another user, who has no access to the key.
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
    else:
        subprocess.Popen(
            executor_command(path, os.getpid()),
            cwd=file.state,
            env={**flower.environment(), **_threads(file)},
        )
    _become(supernode_command(file), cwd=None if alone else file.state)


def launch_clientapp(path: Path) -> None:
    """Run the executor of a node's tasks in this process, beside `fedrc supernode --alone`."""
    file = read_node_file(path)
    announce(f"executor of the node {file.name} at {file.listen}")
    demand(check_executor(file))
    _become(executor_command(path), cwd=file.state, **_threads(file))


def executor_command(path: Path, parent: int | None = None) -> list[str]:
    """What executes the tasks of a node's file."""
    program = [sys.executable, "-m", "deploy.executor", str(path.resolve())]
    return program if parent is None else [*program, str(parent)]


def _threads(file: NodeFile) -> dict[str, str]:
    return {} if file.threads is None else {"OMP_NUM_THREADS": str(file.threads)}


def superlink_command(file: SuperLinkFile) -> list[str]:
    """What runs the SuperLink of a file."""
    health = str(file.health) if file.health else None
    return flower.superlink(
        file.listen.host, file.listen.port, file.tls, file.database, file.secret, health
    )


def serverapp_command(file: SuperLinkFile) -> list[str]:
    """What runs the ServerApps of a file."""
    ca = file.tls.ca if file.tls else None
    return flower.serverapp_executor(str(local_address(file)), ca, file.secret)


def supernode_command(file: NodeFile) -> list[str]:
    """What runs the node of a file."""
    health = str(file.health) if file.health else None
    return flower.supernode(
        str(file.superlink), file.ca, file.key, file.listen.host, file.listen.port,
        file.node_config(), health, file.secret,
    )  # fmt: skip


def local_address(file: SuperLinkFile) -> Address:
    """The address for programs on the server's own machine: a name of its certificate."""
    return file.address


def ensure_secret(path: Path) -> None:
    """Make the secret that SuperLink and executor share, once."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        create_secret(path, secrets.token_hex(32).encode())


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
    """Replace this process: signals and exit codes are Flower's own from here on."""
    if cwd is not None:
        os.chdir(cwd)
    os.execve(command[0], command, {**flower.environment(), **settings})
