"""A node's endpoint, in the node's own process, which executes nothing of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import psutil
from prometheus_client.core import Metric

from client_app.ledger import Ledger
from deploy.files import NodeFile
from deploy.monitoring.catalogue import NODE, Exposition
from deploy.monitoring.endpoint import serve_beside
from deploy.monitoring.expiry import export_expiry
from deploy.node.tally import Tally
from fedrc_flwr import __version__
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.records import ENROL

#: A SuperLink that has not answered for longer is not connected.
HEARD_SECONDS = 60.0
#: The messages of this project; a server may send others.
KINDS = {ENROL: "enrol", "train": "train", "evaluate": "evaluate"}
OTHER = "other"


class NodeMetrics:
    """Everything that is exported of one node.

    Parameters
    ----------
    heard : when the SuperLink last answered, by the clock ``time.monotonic``
    """

    def __init__(self, file: NodeFile, tally: Tally, heard: Callable[[], float]) -> None:
        self._file = file
        self._tally = tally
        self._heard = heard
        self._process = psutil.Process()

    def collect(self) -> Iterable[Metric]:
        """All values of this moment."""
        to, tally = Exposition(NODE), self._tally
        recently = time.monotonic() - self._heard() < HEARD_SECONDS
        to.add("fedrc_build_info", 1, version=__version__)
        if self._file.ca is not None:
            export_expiry(to, authority=self._file.ca)
        for name, value in (
            ("fedrc_node_connected", tally.online and recently),
            ("fedrc_node_busy", tally.busy),
            ("fedrc_node_failures_total", tally.failed),
            ("fedrc_node_samples_total", tally.samples),
            ("fedrc_node_received_bytes_total", tally.bytes_down),
            ("fedrc_node_sent_bytes_total", tally.bytes_up),
            ("fedrc_node_last_message_timestamp_seconds", tally.last_message or None),
            ("fedrc_node_workers_total", tally.workers),
            ("fedrc_node_worker_deaths_total", tally.died),
        ):
            to.add(name, value)
        to.add("fedrc_node_memory_bytes", self._process.memory_info().rss, program="node")
        to.add("fedrc_node_memory_bytes", tally.worker_memory, program="worker")
        for kind, count in dict(tally.messages).items():
            to.add("fedrc_node_messages_total", count, kind=KINDS.get(kind, OTHER))
        for reason, count in dict(tally.refused).items():
            to.add("fedrc_node_refusals_total", count, reason=reason)
        for phase, seconds in dict(tally.seconds).items():
            to.add("fedrc_node_seconds_total", seconds, phase=phase)
        self._export_epsilon(to)
        return to.families()

    def _export_epsilon(self, to: Exposition) -> None:
        policy = self._file.policy
        to.add("fedrc_node_epsilon_limit", policy.most_epsilon)
        try:
            spent = Ledger(self._file.state, policy.most_epsilon, policy.delta).epsilon()
        except ConfigError:
            return  # it belongs to another user, or is damaged
        to.add("fedrc_node_epsilon_spent", spent)


def serve_node(file: NodeFile, tally: Tally, heard: Callable[[], float]) -> None:
    """Answer Prometheus in the background, where node.yaml says."""
    if file.metrics is not None:
        serve_beside(file.metrics, NodeMetrics(file, tally, heard).collect)
        print(f"metrics: http://{file.metrics}/metrics", flush=True)
