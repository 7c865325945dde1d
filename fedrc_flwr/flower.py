"""Flower's programs and their flags, in one place: they change between releases."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from fedrc_flwr.errors import ConfigError, RunError

CONNECTION = "fedrc"
CALL_SECONDS = 300
#: In place of a SuperLink's database: everything is kept in memory.
MEMORY = ":flwr-in-memory:"


@dataclass(frozen=True)
class Tls:
    """Paths of the certificates that a server shows."""

    ca: Path
    certificate: Path
    key: Path


def program(name: str) -> str:
    """A program of the environment that this one runs in."""
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        raise ConfigError(f"{name} is not installed here: pip install 'flwr[simulation]>=1.41'")
    return path


def version() -> tuple[int, int]:
    """Major and minor number of the Flower that is installed."""
    major, minor = metadata.version("flwr").split(".")[:2]
    return int(major), int(minor)


def environment() -> dict[str, str]:
    """Environment in which Flower works offline and installs nothing."""
    return {
        **os.environ,
        **_python_path(),
        # Flower starts its parts by name.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
    }


def _python_path() -> dict[str, str]:
    """PYTHONPATH with absolute paths, because Flower's programs run in other directories."""
    given = os.environ.get("PYTHONPATH")
    if not given:
        return {}
    paths = given.split(os.pathsep)
    return {"PYTHONPATH": os.pathsep.join(str(Path(p).resolve()) for p in paths)}


def simulation_superlink(port: int) -> list[str]:
    """A SuperLink that simulates, on loopback."""
    return [program("flower-superlink"), "--simulation", "--insecure", "--host", "127.0.0.1",
            "--port", str(port)]  # fmt: skip


def superlink(
    host: str, port: int, tls: Tls | None, database: Path | None, secret: Path, health: str | None
) -> list[str]:
    """The server's long-lived half; the ServerApp runs in a process of its own.

    Without a ``database``, it keeps everything in memory.
    """
    command = [
        program("flower-superlink"), "--host", host, "--port", str(port),
        "--isolation", "process", "--database", str(database or MEMORY),
        "--superexec-auth-secret-file", str(secret), "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    if tls is None:
        command.append("--insecure")
    else:
        command += ["--ssl-ca-certfile", str(tls.ca), "--ssl-certfile", str(tls.certificate),
                    "--ssl-keyfile", str(tls.key), "--enable-supernode-auth"]  # fmt: skip
    if health is not None:
        command += ["--health-server-address", health]
    return command


def serverapp_executor(address: str, ca: Path | None, secret: Path) -> list[str]:
    """The program that runs the ServerApp, in a process separate from the SuperLink."""
    command = [program("flower-superexec"), "--runtime-api-address", address,
               "--superexec-auth-secret-file", str(secret)]  # fmt: skip
    return [*command, *(["--insecure"] if ca is None else ["--root-certificates", str(ca)])]


def supernode(
    superlink_address: str,
    ca: Path | None,
    key: Path | None,
    host: str,
    port: int,
    node_config: Mapping[str, Any],
    health: str | None,
    secret: Path,
) -> list[str]:
    """A client node. Its messages are executed by whoever shares the secret."""
    for name, value in node_config.items():
        if '"' in str(value):
            # Flower splits the text at quotes before it reads it.
            raise ConfigError(f"{name} = {value!r}: expected no quotation marks")
    settings = " ".join(f"{name}={toml(value)}" for name, value in node_config.items())
    command = [program("flower-supernode"), "--superlink", superlink_address, "--host", host,
               "--port", str(port), "--node-config", settings, "--isolation", "process",
               "--superexec-auth-secret-file", str(secret)]  # fmt: skip
    command += ["--insecure"] if ca is None else ["--root-certificates", str(ca)]
    if key is not None:
        command += ["--auth-supernode-private-key", str(key)]
    if health is not None:
        command += ["--health-server-address", health]
    return command


def write_connection(home: Path, address: str, ca: Path | None) -> None:
    """A Flower home that knows one SuperLink."""
    home.mkdir(parents=True, exist_ok=True)
    trust = "insecure = true" if ca is None else f"root-certificates = {toml(str(ca))}"
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        f"address = {toml(address)}\n{trust}\n",
        encoding="utf-8",
    )


class Control:
    """Calls of ``flwr`` against one SuperLink."""

    def __init__(self, home: Path, environment_: Mapping[str, str]) -> None:
        self._environment = {**environment_, "FLWR_HOME": str(home)}
        self._directory = home

    def run(self, app: Path, run_config: Mapping[str, Any], federation: str | None = None) -> str:
        """Submit the app; returns the run's id."""
        overrides = self._directory / "run-config.toml"
        lines = [f"{name} = {toml(value)}\n" for name, value in run_config.items()]
        overrides.write_text("".join(lines), encoding="utf-8")
        simulated = [] if federation is None else ["--federation-config", federation]
        answer = self._call("run", str(app), CONNECTION, "--run-config", str(overrides), *simulated)
        if not answer.get("success"):
            raise RunError(f"flwr run refused the app: {answer.get('error-message', answer)}")
        return str(answer["run-id"])

    def status(self, run_id: str) -> str:
        """``finished:completed`` is what a run that went well ends with."""
        runs = self._call("list", CONNECTION, "--run-id", run_id).get("runs") or [{}]
        return str(runs[0].get("status", ""))

    def stop(self, run_id: str) -> dict[str, Any]:
        """Stop a run."""
        return self._call("stop", run_id, CONNECTION)

    def register(self, public_key: Path, name: str) -> dict[str, Any]:
        """Register a node under a name."""
        return self._call("supernode", "register", str(public_key), CONNECTION, "--name", name)

    def unregister(self, node_id: str) -> dict[str, Any]:
        """Remove a node."""
        return self._call("supernode", "unregister", node_id, CONNECTION)

    def log(self, run_id: str) -> str:
        """What the run's ServerApp printed."""
        done = self._execute("log", run_id, CONNECTION, "--show")
        return done.stdout

    def _call(self, *arguments: str) -> dict[str, Any]:
        done = self._execute(*arguments, "--format", "json")
        start = done.stdout.find("{")
        try:
            answer = json.loads(done.stdout[start:]) if start >= 0 else {}
        except json.JSONDecodeError:
            answer = {}
        if isinstance(answer, dict) and answer:
            return answer
        return {"success": False, "error-message": (done.stderr or done.stdout).strip()[-2000:]}

    def _execute(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [program("flwr"), *arguments]
        try:
            return subprocess.run(
                command, env=self._environment, cwd=self._directory, capture_output=True,
                stdin=subprocess.DEVNULL, text=True, timeout=CALL_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            problem = f"flwr {arguments[0]} did not end within {CALL_SECONDS} seconds"
            return subprocess.CompletedProcess(command, 1, "", problem)


def toml(value: Any) -> str:
    """A scalar as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # TOML knows no surrogate pairs
    return repr(value)


def find_app(scratch: Path) -> Path:
    """The Flower app's directory: the source tree, or a copy of the installed package."""
    package = Path(__file__).resolve().parent
    if (package.parent / "pyproject.toml").exists():
        return package.parent
    target = scratch / "app"
    shutil.copytree(package / "app", target)
    for name in ("fedrc_flwr", "server_app", "client_app"):
        shutil.copytree(
            package.parent / name,
            target / name,
            ignore=shutil.ignore_patterns("__pycache__", "app"),
        )
    # What it leaves out of the bundle is not here, and Flower refuses a pattern without a match.
    project = target / "pyproject.toml"
    lines = project.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not line.startswith("fab-exclude")]
    project.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return target
