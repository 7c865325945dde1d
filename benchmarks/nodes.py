"""What a resident node takes: idle, over a long run, and as a federation grows to forty nodes.

    python benchmarks/nodes.py --rounds 200
    python benchmarks/nodes.py --nodes 4,10,20,40

A federation on loopback, as deploy/README.md sets it up, with TLS and node authentication; the data
is `digits`, the network small, one model each way. Memory is the resident set of a node's two
processes: the one that holds the key, and the worker.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from bare import machine, write_section

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration"))

from processes import Federation, Part, fedrc, marked, wait_until

SETTINGS = {
    "scenario": "digits", "recipe": "default", "data.observers-per-concept": 0,
    "model.hidden": 32, "run.evaluate-every": 1000, "federation.deadline": 600,
    "federation.enrolment-timeout": 900,
}  # fmt: skip
#: After so many seconds without a message a node asks as rarely as it ever does.
SETTLING, IDLE = 70.0, 60.0
WARM_ROUND = 10
MB = 1e6


def settings(nodes: int, rounds: int, **changes: Any) -> list[str]:
    values = {
        **SETTINGS, "data.clients": nodes, "federation.min-clients": nodes, "rounds": rounds,
        **changes,
    }  # fmt: skip
    return [f"{key}={value}" for key, value in values.items()]


def of_node(federation: Federation, name: str) -> list[psutil.Process]:
    """A node's processes: itself, and its worker if it has one."""
    found = []
    for process in marked(federation.mark):
        try:
            command = " ".join(process.cmdline())
            if process.environ().get("FEDRC_TEST_PART") == name and "deploy.node" in command:
                found.append(process)
        except psutil.Error:
            continue
    return found


def of_server(federation: Federation) -> list[psutil.Process]:
    """The gate and Flower's SuperLink."""
    return [*federation.processes("fedrc superlink"), *federation.processes("flower-superlink")]


def held(processes: Sequence[psutil.Process]) -> float:
    """Megabytes."""
    return sum(process.memory_info().rss for process in processes) / MB


def busy(processes: Sequence[psutil.Process]) -> float:
    """Seconds of processor time so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def add(federation: Federation, number: int) -> None:
    """As many nodes as there should be, all online."""
    for partition in range(len(federation.nodes), number):
        federation.node(f"client-{partition}", partition, threads=1).start()
    wait_until(
        lambda: f"{number} online" in fedrc("node", "list", federation.file).stdout,
        f"{number} nodes", 900,
    )  # fmt: skip


def finished(federation: Federation, run: Part) -> None:
    if federation.finish(run, 3600):
        raise SystemExit(run.log())


def long_run(rounds: int) -> None:
    """An idle node, and how one grows with the rounds that it trains."""
    with tempfile.TemporaryDirectory() as scratch:
        federation = Federation(Path(scratch))
        try:
            federation.start()
            add(federation, 2)
            time.sleep(SETTLING)
            idle = of_node(federation, "client-0")
            before = busy(idle)
            time.sleep(IDLE)
            share, idle_memory = (busy(idle) - before) / IDLE, held(idle)
            run = federation.run("long", *settings(2, rounds))
            federation.wait_for_round("long", WARM_ROUND, 900)
            early = held(of_node(federation, "client-0"))
            finished(federation, run)
            late = held(of_node(federation, "client-0"))
            measured = federation.rounds("long")[WARM_ROUND:-1]
        finally:
            federation.stop()
    ready = sorted(event["client_ready_seconds"] for event in measured)
    write_section(
        "resident node",
        [
            f"{machine()}; two nodes of one thread, {rounds} rounds",
            "",
            "| a node | |",
            "|---|---|",
            f"| idle, before its first message: of one core | {100 * share:.2f} % |",
            f"| idle: memory | {idle_memory:.0f} MB |",
            f"| at work, after {WARM_ROUND} rounds: memory | {early:.0f} MB |",
            f"| after {rounds} rounds | {late:.0f} MB ({100 * (late / early - 1):+.1f} %) |",
            "| from a message that has arrived to the first batch, mean of clients: median round, "
            f"95th of a hundred | {median(ready):.2f} s, {ready[int(0.95 * len(ready))]:.2f} s |",
        ],
    )


def growth(numbers: Sequence[int], rounds: int) -> None:
    """The same with ever more nodes."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        federation = Federation(Path(scratch))
        try:
            federation.start()
            for number in numbers:
                add(federation, number)
                rows.append(one_size(federation, number, rounds))
                print(rows[-1], flush=True)
        finally:
            federation.stop()
    write_section(
        "many nodes",
        [
            f"{machine()}; nodes of one thread, medians of {rounds - 2} rounds of each size",
            "",
            "| nodes | a round | computing of all clients | server's processor time a round "
            "| server's memory | a node's memory | replies missing |",
            "|---|---|---|---|---|---|---|",
            *rows,
        ],
    )


def one_size(federation: Federation, number: int, rounds: int) -> str:
    """A row of the table."""
    name = f"nodes-{number}"
    run = federation.run(name, *settings(number, rounds))
    federation.wait_for_round(name, 1, 1200)
    server = of_server(federation)
    before = busy(server)
    federation.wait_for_round(name, rounds - 1, 1800)
    spent = (busy(server) - before) / (rounds - 2)
    finished(federation, run)
    nodes = [held(of_node(federation, each)) for each in federation.nodes]
    events = federation.rounds(name)[1:-1]  # the last one is evaluated
    missing = sum(number - event["replied"] for event in federation.rounds(name))
    work = median(
        (event["client_seconds"] - event["client_ready_seconds"]) * event["replied"]
        for event in events
    )
    return (
        f"| {number} | {median(e['seconds'] for e in events):.1f} s | {work:.1f} s | {spent:.1f} s "
        f"| {held(server):.0f} MB | {median(nodes):.0f} MB | {missing} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, help="a long run of two nodes")
    parser.add_argument("--nodes", help="ever more nodes, such as 4,10,20,40")
    arguments = parser.parse_args()
    if arguments.rounds:
        long_run(arguments.rounds)
    if arguments.nodes:
        growth([int(number) for number in arguments.nodes.split(",")], rounds=8)


if __name__ == "__main__":
    main()
