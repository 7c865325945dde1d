"""The server's endpoint, a process beside the SuperLink.

    python -m deploy.monitoring.server superlink.yaml PARENT

It reads the files of the runs and asks the SuperLink, so it outlives a ServerApp that dies, and
whatever it does keeps neither the gate nor a run waiting. It ends with the SuperLink.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil
from prometheus_client.core import Metric

from deploy.control import FlowerRun, Node, nodes_of, runs_of
from deploy.files import SuperLinkFile, read_superlink_file
from deploy.monitoring.catalogue import MOST_NAMED, SERVER, Exposition
from deploy.monitoring.endpoint import opened
from deploy.monitoring.expiry import export_expiry
from deploy.monitoring.runs import MOST_RUNS, Runs
from fedrc_flwr import __version__
from fedrc_flwr.errors import ConfigError, RunError

#: The SuperLink is asked again after this many seconds, since it logs each question.
ASK_SECONDS = 30.0
#: How long an answer of the endpoint waits for the SuperLink.
WAIT_SECONDS = 3.0
#: How long the endpoint may outlive the SuperLink.
PARENT_SECONDS = 0.5
PENDING, RUNNING, UNKNOWN = "pending", "running", "unknown"
NEVER = "never online"


class SuperLink:
    """What the SuperLink said when it was last asked.

    It is asked only if somebody wants to know, in the background: one that hangs keeps nobody
    waiting for long.
    """

    def __init__(self, file: SuperLinkFile) -> None:
        self._file = file
        self._asked = -ASK_SECONDS
        self._asking: threading.Thread | None = None
        self.up = False
        self.nodes: list[Node] = []
        self.runs: list[FlowerRun] = []

    def refresh(self) -> None:
        """Ask, if the last question is some time ago."""
        busy = self._asking is not None and self._asking.is_alive()
        if not busy and time.monotonic() - self._asked >= ASK_SECONDS:
            self._asked = time.monotonic()
            self._asking = threading.Thread(target=self._ask, daemon=True)
            self._asking.start()
        if self._asking is not None:
            self._asking.join(WAIT_SECONDS)
            # One that does not answer is down, whatever it said before.
            self.up = self.up and not self._asking.is_alive()

    def _ask(self) -> None:
        try:
            self.nodes, self.runs = nodes_of(self._file), runs_of(self._file)
            self.up = True
        except RunError:
            self.up = False


class Server:
    """Everything that is exported of one server."""

    def __init__(self, file: SuperLinkFile, parent: int) -> None:
        self._file = file
        self._parent = parent
        self._runs = Runs(file.outputs)
        self._superlink = SuperLink(file)

    def collect(self) -> Iterable[Metric]:
        """All values of this moment."""
        self._runs.look()
        self._superlink.refresh()
        to = Exposition(SERVER)
        to.add("fedrc_build_info", 1, version=__version__)
        to.add("fedrc_superlink_up", self._superlink.up)
        to.add("fedrc_superlink_memory_bytes", _memory(self._parent))
        if self._file.tls is not None:
            export_expiry(to, authority=self._file.tls.ca, server=self._file.tls.certificate)
        self._export_nodes(to)
        self._export_status(to)
        for run in self._runs.watched.values():
            run.export(to)
        return to.families()

    def _export_nodes(self, to: Exposition) -> None:
        if not self._superlink.up:
            return  # nobody knows
        nodes = self._superlink.nodes
        status = Counter(NEVER if n.status == "registered" else n.status for n in nodes)
        for name in ("online", "offline", NEVER):
            to.add("fedrc_nodes", status[name], status=name)
        for node in nodes[:MOST_NAMED]:
            to.add("fedrc_node_online", node.online, node=node.called)

    def _export_status(self, to: Exposition) -> None:
        """How each run stands: what Flower says, unless the run itself says that it failed."""
        flower: dict[str, str] = {}
        for listed in self._superlink.runs:  # newest first
            flower.setdefault(listed.name, listed.status)
        known = dict.fromkeys([*self._runs.watched, *list(flower)[:MOST_RUNS]])
        for name in known:
            watched = self._runs.watched.get(name)
            own, alive = (watched.ended, watched.alive) if watched else ("", False)
            status = status_of(flower.get(name, ""), own, alive)
            to.add("fedrc_run_status", 1, run=name, status=status)


def status_of(flower: str, own: str, alive: bool) -> str:
    """A run's status.

    Parameters
    ----------
    flower : what Flower says, nothing if it does not know the run
    own : how the run itself says that it has ended, nothing if it has not
    alive : whether it has told a moment ago what it is doing
    """
    if flower == PENDING:
        return PENDING
    if flower.startswith("finished:"):
        how = flower.partition(":")[2]
        return own if how == "completed" and own else how
    return RUNNING if flower or alive else own or UNKNOWN


def _memory(parent: int) -> float | None:
    """Memory of the SuperLink's processes, without this one."""
    try:
        first = psutil.Process(parent)
        family = [first, *first.children(recursive=True)]
    except psutil.Error:
        return None
    total = 0
    for process in family:
        with suppress(psutil.Error):
            total += process.memory_info().rss if process.pid != os.getpid() else 0
    return total


def main(path: Path, parent: int) -> None:
    """Answer until the SuperLink has gone."""
    file = read_superlink_file(path)
    if file.metrics is None:
        raise ConfigError(f"{path}: metrics is missing: expected host:port")
    server = opened(file.metrics, Server(file, parent).collect)
    print(f"metrics: http://{file.metrics}/metrics", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while os.getppid() == parent:  # also of a SuperLink that was killed and not waited for
        time.sleep(PARENT_SECONDS)


if __name__ == "__main__":
    try:
        with suppress(KeyboardInterrupt):
            main(Path(sys.argv[1]), int(sys.argv[2]))
    except ConfigError as error:
        print(f"fedrc: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
