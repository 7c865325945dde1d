"""How a simulated round grows: with the clients, with the clusters, with the size of the network.

    python benchmarks/growth.py                    # the curves: some 10 minutes on 2 cores
    python benchmarks/growth.py --thousand         # one round of 1000 clients with the `cnn`
    python benchmarks/growth.py --extractor        # bytes with a shared feature extractor

Writes a table, the fitted slopes and benchmarks/growth.png. A slope is that of a straight line
through the logarithms: 1 is growth in proportion, less is less. Memory is the proportional set
size, which counts a page that processes share once.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
import numpy as np
import psutil
from bare import FASHION, machine, write_section

from fedrc_flwr.config import load_config
from fedrc_flwr.layout import to_vector
from fedrc_flwr.models import build_model
from fedrc_flwr.report.log import METRICS, read_events
from fedrc_flwr.simulation import MARK, simulate

mpl.use("Agg")
import matplotlib.pyplot as plt

PICTURE = Path(__file__).with_name("growth.png")
KINDS = {
    "ClientAppActor": "worker", "flwr-simulation": "ServerApp", "flower-superlink": "SuperLink",
    "ray": "Ray", "gcs_server": "Ray", "flower-superexec": "SuperLink",
}  # fmt: skip
SETTINGS: dict[str, Any] = {
    **FASHION, "data.samples-per-client": 50, "data.test-fraction": 0.0,
    "data.observers-per-concept": 0, "model.network": "mlp", "model.hidden": 200, "rounds": 3,
    "run.evaluate-every": 1000, "local.batch-size": 25, "local.skip-below": 0.0,
    "local.skip-cluster-below": 0.0,
}  # fmt: skip
SERIES = {
    "clients": [("data.clients", n) for n in (10, 30, 100, 300, 1000)],
    "clusters": [("fedrc.clusters", n) for n in (1, 2, 3, 6)],
    "network": [("model.hidden", n) for n in (30, 200, 800, 3000)],
}


class Memory:
    """The largest proportional set size of each kind of process, looked at every other second."""

    def __init__(self) -> None:
        self.peaks: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *about: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(2.0):
            sums: dict[str, float] = {}
            for kind, size in self._sizes():
                sums[kind] = sums.get(kind, 0.0) + size
            sums["all"] = sum(sums.values())
            for kind, size in sums.items():
                self.peaks[kind] = max(self.peaks.get(kind, 0.0), size)

    def _sizes(self) -> Iterator[tuple[str, float]]:
        for process in psutil.process_iter():
            try:
                if MARK not in process.environ():
                    continue
                command = " ".join(process.cmdline())
                kind = next((k for word, k in KINDS.items() if word in command), "other")
                yield kind, process.memory_full_info().pss / 1e6
            except psutil.Error:
                continue


def measure(settings: dict[str, Any]) -> dict[str, float]:
    """Seconds and bytes of a round, and peaks of memory."""
    with tempfile.TemporaryDirectory() as scratch, Memory() as memory:
        outcome = simulate(load_config(settings), Path(scratch) / "run", lambda event: None)
        if not outcome.completed:
            raise SystemExit(outcome.reason)
        events = [e for e in read_events(Path(scratch) / "run" / METRICS) if e["event"] == "round"]
    later = events[1:] or events
    return {
        "seconds": median(e["seconds"] for e in later),
        "down": events[-1]["bytes_down"] / 1e6,
        "up": events[-1]["bytes_up"] / 1e6,
        "server_peak": events[-1]["server_peak_megabytes"],
        **{f"memory {kind}": peak for kind, peak in memory.peaks.items()},
    }


def megabytes(settings: dict[str, Any]) -> float:
    """The size of one network."""
    return to_vector(build_model(load_config(settings).model, (28, 28), 10, 0)).nbytes / 1e6


def slope(xs: list[float], ys: list[float]) -> float:
    return float(np.polyfit(np.log(xs), np.log(ys), 1)[0])


HEADER = [
    "| | seconds a round | MB down | MB up | ServerApp's peak MB | workers | all processes |",
    "|---|---|---|---|---|---|---|",
]


def row(name: str, found: dict[str, float]) -> str:
    return (
        f"| {name} | {found['seconds']:.2f} | {found['down']:.0f} | {found['up']:.0f} "
        f"| {found['server_peak']:.0f} | {found.get('memory worker', 0):.0f} "
        f"| {found['memory all']:.0f} |"
    )


def curves() -> None:
    lines = [machine(), "", *HEADER]
    slopes = []
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for axis, (series, points) in zip(axes, SERIES.items(), strict=True):
        xs, found = [], []
        for key, value in points:
            settings = {**SETTINGS, key: value}
            size = megabytes(settings)
            xs.append(size if series == "network" else float(value))
            found.append(measure(settings))
            name = f"network of {size:.1f} MB" if series == "network" else f"{value} {series}"
            lines.append(row(name, found[-1]))
            print(lines[-1], flush=True)
        for column, label in (
            ("seconds", "seconds"),
            ("up", "MB up"),
            ("server_peak", "server MB"),
        ):
            ys = [f[column] for f in found]
            axis.loglog(xs, ys, marker="o", label=f"{label}, slope {slope(xs, ys):.2f}")
        tail = len(xs) // 2
        slopes.append(
            f"- {series}: seconds {slope(xs, [f['seconds'] for f in found]):.2f} (the larger half "
            f"{slope(xs[-tail:], [f['seconds'] for f in found][-tail:]):.2f}), "
            f"bytes {slope(xs, [f['up'] + f['down'] for f in found]):.2f}, "
            f"ServerApp's memory {slope(xs, [f['server_peak'] for f in found]):.2f}"
        )
        axis.set_xticks(xs, [f"{x:.4g}" for x in xs])
        axis.minorticks_off()
        axis.set_xlabel("MB of a network" if series == "network" else series)
        axis.legend(fontsize=8)
        axis.grid(alpha=0.3)
    figure.savefig(PICTURE, dpi=110)
    write_section("growth", [*lines, "", "Slopes:", "", *slopes, "", "![curves](growth.png)"])


def extractor() -> None:
    """What the shared feature extractor saves on the way down."""
    settings = {
        **SETTINGS, "data.clients": 4, "model.network": "cnn", "rounds": 1, "local.batch-size": 128
    }  # fmt: skip
    whole, shared = (measure({**settings, "fedrc.shared-body": on}) for on in (False, True))
    head = build_model(load_config(settings).model, (28, 28), 10, 0).head
    heads, network = to_vector(head).nbytes / 1e6, megabytes(settings)
    write_section(
        "extractor",
        [
            "| 4 clients, K = 3, `cnn` | MB down a client, training and evaluation | of K |",
            "|---|---|---|",
            f"| K networks | {whole['down'] / 4:.2f} | 1 |",
            f"| one body, K heads of {heads:.2f} MB | {shared['down'] / 4:.2f} "
            f"| {shared['down'] / whole['down']:.4f} |",
            "",
            f"1/K and the heads would be {1 / 3 + heads / network:.4f}.",
        ],
    )


def thousand() -> None:
    settings = {
        **SETTINGS, "data.clients": 1000, "data.samples-per-client": 40, "model.network": "cnn",
        "rounds": 1, "local.batch-size": 128, "federation.deadline": 3600.0,
    }  # fmt: skip
    found = measure(settings)
    kinds = [k for k in sorted(found) if k.startswith("memory")]
    write_section(
        "thousand",
        [machine(), "", *HEADER, row("1000 clients, K = 3, `cnn`", found), ""]
        + [f"- {kind.removeprefix('memory ')}: peak {found[kind]:.0f} MB" for kind in kinds],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--thousand", action="store_true")
    parser.add_argument("--extractor", action="store_true")
    arguments = parser.parse_args()
    (thousand if arguments.thousand else extractor if arguments.extractor else curves)()


if __name__ == "__main__":
    main()
