"""docs/deployment-own-data.md, followed as printed on loopback; only names and ports differ."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import BIN, Part, fedrc, free_port, marked, wait_until

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "deployment-own-data.md"
BLOCK = re.compile(r"^```(bash|yaml)\n# (.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NODES = ("hospital-1", "hospital-2", "hospital-3")
LASTING = ("superlink", "serverapp", "supernode")
SERVER = "fedrc.example.org"

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(1200)]

#: Copies between the folders that stand for machines.
SCP = """#!/bin/sh
from=$(echo "$1" | sed "s|^[^/]*:federation/|{root}/server/|")
to=$(echo "$2" | sed "s|^[^/]*:federation/|{root}/server/|")
exec cp "$from" "$to"
"""


class Machines:
    """A folder for the server and one for each node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.mark = uuid.uuid4().hex
        self.port = free_port()
        self.parts: dict[str, Part] = {}
        self.outputs: list[str] = []
        for name in ("server", *NODES, "bin"):
            (root / name).mkdir()
        scp = root / "bin" / "scp"
        scp.write_text(SCP.format(root=root))
        scp.chmod(scp.stat().st_mode | stat.S_IXUSR)
        path = os.pathsep.join([str(root / "bin"), str(BIN), os.environ["PATH"]])
        self.environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}

    def adapt(self, text: str, machine: str) -> str:
        """The same text for another node, and for loopback."""
        if machine in NODES:
            text = text.replace(NODES[0], machine)
        text = text.replace(f"{SERVER}:8000", f"127.0.0.1:{self.port}")
        text = text.replace("0.0.0.0:8000", f"127.0.0.1:{self.port}")
        return text.replace(f"--name {SERVER}", "--name 127.0.0.1")

    def write(self, name: str, content: str) -> None:
        """One of the page's files, on every machine that needs it."""
        for machine in NODES if name == "node.yaml" else ("server",):
            # All nodes share this machine: each needs a port of its own.
            own = f"listen: 127.0.0.1:{free_port()}\n" if machine in NODES else ""
            (self.root / machine / name).write_text(self.adapt(content, machine) + own)

    def execute(self, machine: str, block: str) -> None:
        """A block of commands on one machine; programs that go on are left running."""
        for line in self.adapt(block, machine).splitlines():
            words = line.partition("#")[0].split()
            if words[:1] == ["fedrc"] and words[1] in LASTING:
                self._launch(machine, words)
                continue
            done = subprocess.run(
                line, shell=True, cwd=self.root / machine, env=self.environment,
                capture_output=True, text=True, timeout=900, check=False,
            )  # fmt: skip
            self.outputs.append(done.stdout)
            assert done.returncode == 0, f"{machine}: {line}\n{done.stdout}\n{done.stderr}"

    def _launch(self, machine: str, words: list[str]) -> None:
        file = self.root / machine / words[2]
        name = machine if words[1] == "supernode" else words[1]
        self.parts[name] = Part(
            self.root, name, [str(BIN / "fedrc"), words[1], str(file)], self.mark
        )
        self.parts[name].start()
        if words[1] == "superlink":
            wait_until(
                lambda: fedrc("node", "list", file).returncode == 0, "the SuperLink to answer"
            )

    def stop(self) -> None:
        for process in marked(self.mark):
            process.kill()


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """All of the page's blocks in order."""
    machines = Machines(tmp_path_factory.mktemp("machines"))
    blocks = BLOCK.findall(PAGE.read_text("utf-8"))
    try:
        for language, where, text in blocks:
            if language == "yaml":
                machines.write(where, text)
            elif where == "in a clone of this repository":
                command = [sys.executable, str(ROOT / text.split()[1]), *text.split()[2:]]
                subprocess.run(command, cwd=machines.root, check=True)
                for node in NODES:
                    table = (machines.root / f"{node}.csv").read_bytes()
                    (machines.root / node / f"{node}.csv").write_bytes(table)
            else:
                chosen = {
                    "on every node": NODES, "on every other node": NODES[1:],
                    "on hospital-1": NODES[:1], "on the server": ("server",),
                }[where]  # fmt: skip
                for machine in chosen:
                    machines.execute(machine, text)
        yield machines
    finally:
        machines.stop()


def test_page_leads_to_the_hospital_that_swaps_two_codes(followed: Machines) -> None:
    said = followed.outputs[-1]

    for node in NODES:
        assert f"{node} enrolled: train, 135 samples" in said
    summary = json.loads((followed.root / "server/outputs/first/summary.json").read_text())
    assert summary["status"] == "completed"
    found = re.sub(r"cluster \d+", "cluster", said)
    assert "cluster (1 client: hospital-3)" in found
    assert "cluster (2 clients: hospital-1, hospital-2)" in found
    assert (followed.root / "server/outputs/first/report.html").exists()


def test_table_that_does_not_fit_is_told_of_on_both_sides(followed: Machines) -> None:
    # The table is changed under a node that runs already, as an export of the next day might be.
    table = followed.root / "hospital-3" / "hospital-3.csv"
    whole = table.read_text()
    table.write_text(whole.replace("crp", "c-reactive protein"))

    done = fedrc(
        "run", followed.root / "server" / "superlink.yaml", "--schema",
        followed.root / "server" / "schema.json", "--name", "second", "--set",
        "federation.enrolment-timeout=40", "--recipe", "edge", timeout=400,
    )  # fmt: skip

    assert done.returncode == 1
    reason = "hospital-3 is not enrolled: its table has no column 'crp'; its own log says more"
    assert reason in done.stdout
    assert "2 of 3 clients are enrolled" in done.stderr
    assert str(followed.root / "hospital-3") not in done.stdout + done.stderr
    log = followed.parts["hospital-3"].log()
    assert f"hospital-3 cannot take part: {table}: the table lacks columns" in log
