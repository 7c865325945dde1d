"""Every metric that is exported, and how values become Prometheus' lines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

COUNTER, GAUGE = "counter", "gauge"
#: Characters of a label's value. Names of nodes and runs are not longer.
LONGEST_LABEL = 128
#: Clients, and nodes, that have series of their own; all others are one, or are only counted.
MOST_NAMED, OTHERS = 200, "others"


@dataclass(frozen=True)
class Exported:
    """A metric: its name as Prometheus knows it, its kind, what it means, and its labels."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


BUILD = Exported("fedrc_build_info", GAUGE, "1, with the version that runs.", ("version",))
CERTIFICATE = Exported(
    "fedrc_certificate_expiry_timestamp_seconds", GAUGE,
    "When a certificate expires: that of the federation's authority, or of the server.",
    ("certificate",),
)  # fmt: skip

SERVER = (
    BUILD,
    Exported("fedrc_superlink_up", GAUGE, "Whether the SuperLink answered when last asked."),
    Exported("fedrc_superlink_memory_bytes", GAUGE, "Memory of the gate and the SuperLink."),
    CERTIFICATE,
    Exported("fedrc_nodes", GAUGE, "Registered nodes by status: online, offline, never online.",
             ("status",)),
    Exported("fedrc_node_online", GAUGE, "Whether a registered node is online.", ("node",)),
    Exported("fedrc_run_status", GAUGE,
             "1 for a run's status: pending, running, completed, failed, stopped or unknown.",
             ("run", "status")),
    Exported("fedrc_run_phase", GAUGE,
             "1 for what a run is doing: waiting, training, evaluation, aggregation or checkpoint.",
             ("run", "phase")),
    Exported("fedrc_run_memory_bytes", GAUGE, "Memory of a run's ServerApp.", ("run",)),
    Exported("fedrc_messages_outstanding", GAUGE,
             "Clients that have been asked and have not answered yet.", ("run",)),
    Exported("fedrc_round", GAUGE, "Number of the last round that ended.", ("run",)),
    Exported("fedrc_rounds_total", COUNTER, "Rounds that ended.", ("run",)),
    Exported("fedrc_round_repeats_total", COUNTER,
             "Attempts at a round that had too few usable replies.", ("run",)),
    Exported("fedrc_last_round_timestamp_seconds", GAUGE,
             "When the last round ended, or the run was started or resumed, if that is later.",
             ("run",)),
    Exported("fedrc_round_seconds", GAUGE, "How long the last round took.", ("run",)),
    Exported("fedrc_phase_seconds_total", COUNTER, "Seconds by phase, see fedrc_run_phase.",
             ("run", "phase")),
    Exported("fedrc_sent_bytes_total", COUNTER, "Bytes of arrays sent to clients.", ("run",)),
    Exported("fedrc_received_bytes_total", COUNTER, "Bytes of arrays received from clients.",
             ("run",)),
    Exported("fedrc_replies_total", COUNTER,
             "Replies by client and outcome: good, failed, late, or refused (a strike).",
             ("run", "client", "outcome")),
    Exported("fedrc_enrolments_refused_total", COUNTER,
             "How often a client could not enrol, for a new reason each time.", ("run", "client")),
    Exported("fedrc_client_quarantined", GAUGE,
             "1 for a client that is in quarantine after three strikes.", ("run", "client")),
    Exported("fedrc_clusters", GAUGE, "Clusters that are left.", ("run",)),
    Exported("fedrc_cluster_members", GAUGE, "Clients whose largest weight is on a cluster.",
             ("run", "cluster")),
    Exported("fedrc_cluster_share", GAUGE, "A cluster's share of all samples.",
             ("run", "cluster")),
    Exported("fedrc_epsilon_spent", GAUGE,
             "The largest epsilon that a client has spent in a run; absent where none can be "
             "claimed.", ("run",)),
    Exported("fedrc_loss", GAUGE, "Mean training loss of the last round.", ("run",)),
    Exported("fedrc_accuracy", GAUGE,
             "Accuracy at the last evaluation: local (training clients) and global (observers).",
             ("run", "scope")),
)  # fmt: skip

NODE = (
    BUILD,
    CERTIFICATE,
    Exported("fedrc_node_connected", GAUGE,
             "Whether the node has signed on and the SuperLink has answered in the last minute."),
    Exported("fedrc_node_busy", GAUGE, "Whether the node is working on a message."),
    Exported("fedrc_node_messages_total", COUNTER,
             "Messages that arrived, by kind: enrol, train, evaluate, other.", ("kind",)),
    Exported("fedrc_node_refusals_total", COUNTER,
             "Messages that the node refused because of its policy or its data, by reason.",
             ("reason",)),
    Exported("fedrc_node_failures_total", COUNTER,
             "Messages that were answered with another error."),
    Exported("fedrc_node_seconds_total", COUNTER,
             "Seconds spent on messages, by phase: receive, work, send.", ("phase",)),
    Exported("fedrc_node_samples_total", COUNTER, "Samples of the rounds that it trained in."),
    Exported("fedrc_node_received_bytes_total", COUNTER, "Bytes of messages."),
    Exported("fedrc_node_sent_bytes_total", COUNTER, "Bytes of replies."),
    Exported("fedrc_node_last_message_timestamp_seconds", GAUGE, "When the last message arrived."),
    Exported("fedrc_node_memory_bytes", GAUGE,
             "Memory by program: the node itself, and the worker that executes apps.",
             ("program",)),
    Exported("fedrc_node_workers_total", COUNTER, "Workers that were started."),
    Exported("fedrc_node_worker_deaths_total", COUNTER, "Workers that ended without an answer."),
    Exported("fedrc_node_epsilon_spent", GAUGE,
             "Epsilon that the node has spent in its lifetime, over all runs."),
    Exported("fedrc_node_epsilon_limit", GAUGE,
             "The most that it may spend: most-epsilon of its policy; absent without a limit."),
)  # fmt: skip


def known(value: object) -> float | None:
    """A finite number, or None for anything else."""
    if not isinstance(value, bool | int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def label(text: object) -> str:
    """A text from outside as the value of a label: short, in one line, and valid Unicode."""
    shown = str(text)[:LONGEST_LABEL]
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in shown)


class Exposition:
    """The values of one moment, for ``prometheus_client``.

    Two texts that become the same label share a series, because Prometheus refuses all values of an
    answer that has a series twice.
    """

    def __init__(self, catalogue: tuple[Exported, ...]) -> None:
        self._metrics = {metric.name: metric for metric in catalogue}
        self._values: dict[str, dict[tuple[str, ...], float]] = {}

    def add(self, name: str, value: float | None, **labels: object) -> None:
        """Add a value; None and what is not finite is left out."""
        metric = self._metrics[name]
        value = known(value)
        if value is None:
            return
        series = self._values.setdefault(name, {})
        key = tuple(label(labels[each]) for each in metric.labels)
        before = series.get(key)
        if before is not None:
            value = before + value if metric.kind == COUNTER else max(before, value)
        series[key] = value

    def families(self) -> Iterator[Metric]:
        """What has a value, in the order of the catalogue."""
        for name, metric in self._metrics.items():
            if name not in self._values:
                continue
            kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
            family = kind(name.removesuffix("_total"), metric.help, labels=metric.labels)
            for key, value in self._values[name].items():
                family.add_metric(list(key), value)
            yield family
