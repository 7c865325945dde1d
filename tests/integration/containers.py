"""The Compose files of docker/, driven the way docker/README.md says."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from processes import wait_until

from fedrc_flwr.report.log import read_events

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "tests" / "integration" / "engine.sh"
SKIPPED = 3
USER = 10001  # whoever runs the tests, root included: no container runs as root
TRAINING = [f"client-{i}" for i in range(6)]
OBSERVING = [f"observer-{i}" for i in range(3)]
LASTING = ["superlink", "serverapp", *TRAINING, *OBSERVING]


def call(*command: Any, environment: dict[str, str] | None = None, timeout: float = 1800) -> str:
    """The output of a command that must succeed."""
    done = attempt(*command, environment=environment, timeout=timeout)
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def attempt(
    *command: Any, environment: dict[str, str] | None = None, timeout: float = 1800
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=timeout,
        env={**os.environ, **(environment or {})}, check=False,
    )  # fmt: skip


def compose_program() -> list[str]:
    plugin = attempt("docker", "compose", "version").returncode == 0
    return ["docker", "compose"] if plugin else ["docker-compose"]


def build_settings() -> dict[str, str]:
    """What engine.sh found out about this machine, as the Compose files want it."""
    state = os.environ.get("FEDRC_ENGINE_STATE", f"{tempfile.gettempdir()}/fedrc-engine")
    lines = (Path(state) / "env").read_text().split()
    return dict(line.split("=", 1) for line in lines)


class Project:
    """A Compose project."""

    def __init__(self, name: str, files: Sequence[str], environment: dict[str, str]) -> None:
        self.name = name
        self.environment = environment
        flags = [flag for file in files for flag in ("--file", str(ROOT / "docker" / file))]
        self._command = [*compose_program(), "--project-name", name, *flags]

    def __call__(self, *arguments: Any, timeout: float = 1800) -> str:
        return call(*self._command, *arguments, environment=self.environment, timeout=timeout)

    def background(self, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
        with open(log, "wb") as output:
            return subprocess.Popen(
                [*self._command, *arguments], stdout=output, stderr=output,
                stdin=subprocess.DEVNULL, env={**os.environ, **self.environment},
            )  # fmt: skip

    def containers(self) -> dict[str, dict[str, Any]]:
        """What `docker inspect` says of the living containers, by service."""
        label = f"label=com.docker.compose.project={self.name}"
        ids = call("docker", "ps", "--quiet", "--filter", label).split()
        found = json.loads(call("docker", "inspect", *ids)) if ids else []
        return {one["Config"]["Labels"]["com.docker.compose.service"]: one for one in found}

    def health(self) -> dict[str, str]:
        return {
            name: one["State"]["Health"]["Status"]
            for name, one in self.containers().items()
            if "Health" in one["State"]
        }

    def wait_until_healthy(self, names: Sequence[str], seconds: float = 600) -> None:
        def well() -> bool:
            time.sleep(2)  # asking costs the engine some work
            health = self.health()
            return all(health.get(name) == "healthy" for name in names)

        wait_until(well, f"{', '.join(names)} to be healthy", seconds)

    def container(self, service: str) -> str:
        return str(self.containers()[service]["Id"])

    def at_work(self, service: str) -> bool:
        """Whether a node's container is just computing."""
        containers = self.containers()
        if service not in containers:
            return False
        ask = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9094/health').read())"
        told = attempt("docker", "exec", containers[service]["Id"], "python3", "-c", ask)
        return '"busy": true' in told.stdout


def rounds(directory: Path) -> list[dict[str, Any]]:
    events = read_events(directory / "metrics.jsonl")
    return [event for event in events if event["event"] == "round"]
