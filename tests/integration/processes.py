"""A real federation on loopback, set up the way deploy/README.md says."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from deploy.files import read_node_file
from fedrc_flwr.report.log import read_events

BIN = Path(sys.executable).parent
FEDRC = str(BIN / "fedrc")
MARK = "FEDRC_TEST_MARK"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fedrc(*arguments: Any, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [FEDRC, *map(str, arguments)], capture_output=True, text=True, timeout=timeout, check=False
    )


def marked(mark: str) -> list[psutil.Process]:
    """The living processes that inherited a mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(MARK) == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 180) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"waited in vain for: {what}"
        time.sleep(0.05)


class Part:
    """One long-lived program, with its log."""

    def __init__(self, folder: Path, name: str, arguments: list[str], mark: str) -> None:
        self.log_path = folder / f"{name}.log"
        self.arguments = arguments
        # Several nodes share this machine's cores: one thread each.
        threads = {"OMP_NUM_THREADS": "1"}
        self._environment = {**os.environ, **threads, MARK: mark, "FEDRC_TEST_PART": name}
        self.name = name
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.arguments, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env=self._environment, start_new_session=True,
            )  # fmt: skip

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL of this program alone: its children find out by themselves."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop_gently(self) -> None:
        """SIGTERM, as systemd would."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(60)

    def log(self) -> str:
        return self.log_path.read_text("utf-8", errors="replace")


class Federation:
    """A SuperLink with TLS and node authentication, its executor, and nodes."""

    def __init__(self, folder: Path, **superlink: Any) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.port, self.control, self.metrics = free_port(), free_port(), free_port()
        self.file = folder / "superlink.yaml"
        self.outputs = folder / "outputs"
        self.nodes: dict[str, Part] = {}
        made = fedrc("certs", "init", folder / "certificates", "--name", "127.0.0.1")
        assert made.returncode == 0, made.stderr
        self.file.write_text(
            f"address: 127.0.0.1:{self.port}\nlisten: 127.0.0.1:{self.port}\n"
            f"control: 127.0.0.1:{self.control}\n"
            f"health: 127.0.0.1:{free_port()}\ncertificates: certificates\n"
            f"metrics: 127.0.0.1:{self.metrics}\nstate: state\noutputs: outputs\n"
            + "".join(f"{key}: {value}\n" for key, value in superlink.items())
        )
        self.superlink = self.part("superlink", "superlink", self.file)
        self.serverapp = self.part("serverapp", "serverapp", self.file)

    def part(self, name: str, *arguments: Any) -> Part:
        return Part(self.folder, name, [FEDRC, *map(str, arguments)], self.mark)

    def start(self) -> None:
        self.superlink.start()
        self.wait_for_superlink()
        self.serverapp.start()

    def wait_for_superlink(self) -> None:
        def answers() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        wait_until(lambda: answers() or not self.superlink.running(), "the SuperLink")
        assert self.superlink.running(), self.superlink.log()

    def node(self, name: str, partition: int, register: bool = True, **settings: Any) -> Part:
        """A node with a key of its own, registered but not started."""
        site = self.folder / name
        site.mkdir()
        (site / "ca.crt").write_bytes((self.folder / "certificates" / "ca.crt").read_bytes())
        made = fedrc("node", "key", site / "node.key")
        assert made.returncode == 0, made.stderr
        values = {
            "name": name, "superlink": f"127.0.0.1:{self.port}", "ca": "ca.crt", "key": "node.key",
            "partition": partition, "state": "state", "listen": f"127.0.0.1:{free_port()}",
            **settings,
        }  # fmt: skip
        (site / "node.yaml").write_text(
            "".join(f"{k}: {str(v).lower() if isinstance(v, bool) else v}\n"
                    for k, v in values.items() if v is not None)
        )  # fmt: skip
        if register:
            done = fedrc("node", "register", self.file, site / "node.key.pub", "--name", name)
            assert done.returncode == 0, done.stderr
        part = self.part(name, "supernode", site / "node.yaml")
        self.nodes[name] = part
        return part

    def run(self, name: str, *settings: str, resume: bool = False, retries: int = 0) -> Part:
        """Submit a run in the background."""
        flags = [part for setting in settings for part in ("--set", setting)]
        part = self.part(
            f"run-{name}-{uuid.uuid4().hex[:6]}", "run", self.file, "--name", name, *flags,
            "--retries", retries, *(["--resume"] if resume else []),
        )  # fmt: skip
        part.start()
        return part

    def rounds(self, name: str) -> list[dict[str, Any]]:
        events = read_events(self.outputs / name / "metrics.jsonl")
        return [event for event in events if event["event"] == "round"]

    def wait_for_round(self, name: str, number: int, seconds: float = 300) -> None:
        wait_until(lambda: len(self.rounds(name)) >= number, f"round {number}", seconds)

    def finish(self, run: Part, seconds: float = 400) -> int:
        assert run.process is not None
        return int(run.process.wait(seconds))

    def online(self) -> int:
        """How many nodes are online."""
        told = fedrc("node", "list", self.file).stdout
        found = re.search(r"(\d+) online", told)
        return int(found[1]) if found else 0

    def at_work(self, node: str) -> bool:
        """Whether a node is working on a message, as its own port says."""
        file = read_node_file(self.folder / node / "node.yaml")
        try:
            with urllib.request.urlopen(f"http://{file.listen}/health", timeout=5) as answer:
                return bool(json.loads(answer.read())["busy"])
        except OSError:
            return False

    def processes(self, program: str, part: str | None = None) -> list[psutil.Process]:
        """Processes of this federation that run a program of Flower's."""
        found = []
        for process in marked(self.mark):
            try:
                if program in " ".join(process.cmdline()) and (
                    part is None or process.environ().get("FEDRC_TEST_PART") == part
                ):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def stop(self) -> None:
        for process in marked(self.mark):
            try:
                process.kill()
            except psutil.Error:
                continue
