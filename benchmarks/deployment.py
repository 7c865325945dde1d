"""What a deployment adds to a round: SuperLink and four nodes on loopback, with TLS.

    python benchmarks/deployment.py

Sets up a federation as deploy/README.md says and takes a round's seconds apart: the clients'
computing, the time from a message that has arrived to the first batch, and the rest: messages on
their way, sums, the server's step, the checkpoint. Measured are the rounds after the one in which
the concepts are found, or all but the first with the paper's start, where every client trains K
networks in each round. A round lasts from the end of the one before it to its own end.

Computing is what the clients say that it took, by the clock: nodes that compute at the same time
share the cores. Beside it is what the machine needs for it at the least: the processor seconds of
all the nodes' workers, divided by the number of cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration"))

from bare import FASHION, machine, write_section
from processes import Federation, fedrc, wait_until

from fedrc_flwr.machine import usable_cores

NODES = 4
FOUND = 6  # rounds after which the concepts are known
FASHION_FOUND = {
    "scenario": "fashion-mnist-30", "recipe": "default", "local.epochs": 1, "local.batch-size": 128,
}  # fmt: skip
#: What runs in a federation, by a part of its command.
PARTS = {
    "workers": "-m deploy.node.worker", "nodes": "-m deploy.node ", "gate": "fedrc superlink",
    "Flower's SuperLink": "flower-superlink", "ServerApp": "flwr-serverapp",
}  # fmt: skip
DIGITS = {"scenario": "digits-edge", "recipe": "edge"}


@dataclass(frozen=True)
class Measured:
    """The rounds of a run that count, and what each part of the federation needed for one."""

    rounds: Sequence[dict[str, Any]]
    whole: Sequence[float]
    processor: dict[str, float]  # seconds of a round, by what ``PARTS`` calls it


def measured(
    federation: Federation, name: str, settings: dict[str, Any], first: int, rounds: int
) -> Measured:
    """The rounds of a run from ``first`` on, without the last, which is evaluated."""
    values = {
        **settings, "data.clients": NODES, "data.observers-per-concept": 0, "rounds": rounds,
        "federation.min-clients": NODES, "run.evaluate-every": 1000, "federation.deadline": 1200,
    }  # fmt: skip
    run = federation.run(name, *(f"{key}={value}" for key, value in values.items()))
    federation.wait_for_round(name, first, 1800)
    before, begun = worked(federation), len(federation.rounds(name))
    federation.wait_for_round(name, rounds - 1, 1800)
    after, ended = worked(federation), len(federation.rounds(name))
    if federation.finish(run, seconds=3600):
        raise SystemExit(run.log())
    events = federation.rounds(name)
    whole = [event["time"] - earlier["time"] for earlier, event in pairwise(events)]
    used = {part: (after[part] - before[part]) / (ended - begun) for part in PARTS}
    return Measured(events[first:-1], whole[first - 1 : -1], used)


def worked(federation: Federation) -> dict[str, float]:
    """Processor seconds of each part until now."""
    used = dict.fromkeys(PARTS, 0.0)
    for part, program in PARTS.items():
        for process in federation.processes(program):
            times = process.cpu_times()
            used[part] += times.user + times.system
    return used


def row(what: str, run: Measured) -> str:
    rounds, whole = run.rounds, median(run.whole)
    ready = median(e["client_ready_seconds"] for e in rounds)
    work = median(e["client_seconds"] - e["client_ready_seconds"] for e in rounds)
    least = run.processor["workers"] / usable_cores()
    up, down = (median(e[f"bytes_{way}"] for e in rounds) / 1e6 for way in ("up", "down"))
    return (
        f"| {what} | {whole:.2f} | {work:.2f} | {whole / work:.2f} | {least:.2f} "
        f"| {whole / least:.2f} | {ready:.2f} | {down:.1f} | {up:.1f} |"
    )


def processor_row(what: str, run: Measured) -> str:
    seconds = [*run.processor.values(), sum(run.processor.values())]
    return f"| {what} | {' | '.join(f'{each:.2f}' for each in seconds)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=400)
    arguments = parser.parse_args()
    size = {"data.samples-per-client": arguments.samples}
    with tempfile.TemporaryDirectory() as scratch:
        federation = Federation(Path(scratch))
        try:
            federation.start()
            for partition in range(NODES):
                federation.node(f"client-{partition}", partition).start()
            wait_until(
                lambda: f"{NODES} online" in fedrc("node", "list", federation.file).stdout,
                "the nodes",
            )
            runs = {
                "`digits-edge`, the recipe's small network, concepts found": measured(
                    federation, "digits", DIGITS, FOUND, 14
                ),
                "the CNN of `fashion-mnist-30`, concepts found": measured(
                    federation, "found", {**FASHION_FOUND, **size}, FOUND, 12
                ),
            }
            for precision in ("float16", "int8"):
                fewer = {**FASHION_FOUND, **size, "federation.transport": precision}
                runs[f"the same with `federation.transport = {precision}`"] = measured(
                    federation, precision, fewer, FOUND, 12
                )
            runs["the CNN with the paper's start, three networks each way"] = measured(
                federation, "paper", {**FASHION, **size}, 1, 5
            )
        finally:
            federation.stop()
    write_section(
        "deployment",
        [
            f"{machine()}; {NODES} nodes of one thread, {arguments.samples} samples each of "
            "FashionMNIST; seconds, medians of the rounds",
            "",
            "| | a round | computing, mean of the clients | ratio "
            "| workers' processor seconds / cores | ratio | message to first batch "
            "| MB down | MB up |",
            "|---|---|---|---|---|---|---|---|---|",
            *(row(what, run) for what, run in runs.items()),
            "",
            "Processor seconds of a round, all nodes together:",
            "",
            f"| | {' | '.join(PARTS)} | together |",
            f"|---|{'---|' * len(PARTS)}---|",
            *(processor_row(what, run) for what, run in runs.items()),
        ],
    )


if __name__ == "__main__":
    main()
