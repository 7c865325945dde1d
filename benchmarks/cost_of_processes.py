"""What a round of FedRC costs in processes of their own, beside a round of FedAvg.

    python benchmarks/cost_of_processes.py --clients 30,300
    python benchmarks/cost_of_processes.py --nodes 4

`cost.py` measures the same in one process. Here FedRC and FedAvg run side by side on Flower's
simulation engine, or one after the other in a deployment on loopback with TLS. Measured are the
rounds after the one in which the concepts are found. Bytes are those of the runs' logs. Processor
time is that of all processes of a simulation, or of all processes of a deployment's nodes,
including the start of a process for a message. In the last column it is the log's: how long
clients train, on average, from the first batch to the reply.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from bare import machine, write_section
from concepts import MLP

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration"))

from processes import FEDRC, Federation, Part, fedrc, marked, wait_until

from fedrc_flwr.report.log import METRICS, read_events

FOUND = 5  # the round in which clients are measured
ALGORITHMS = ("fedrc", "fedavg")
POLL = 0.1  # seconds


@dataclass
class Course:
    """A run that is watched: what its log says of each round, and the processor time by then."""

    log: Path
    rounds: list[dict[str, Any]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def watch(self, processes: list[psutil.Process]) -> None:
        """Note the processor time if the log has a new round."""
        if not self.log.exists():
            return
        events = [event for event in read_events(self.log) if event["event"] == "round"]
        if len(events) > len(self.rounds):
            self.seconds += [processor_seconds(processes)] * (len(events) - len(self.rounds))
            self.rounds = events

    def found(self) -> str:
        """What was found, in words."""
        told = [event["discovery"] for event in self.rounds if event.get("discovery")]
        return str(told[0]["sentence"]) if told else "-"

    def cost(self, last: int) -> tuple[float, float, float]:
        """Bytes, processor seconds and a client's training of a round, after ``FOUND`` + 1."""
        some = self.rounds[FOUND + 1 : last]
        traffic = median(event["bytes_down"] + event["bytes_up"] for event in some)
        trained = median(e["client_seconds"] - e["client_ready_seconds"] for e in some)
        spent = self.seconds[last - 1] - self.seconds[FOUND]
        return traffic, spent / (last - 1 - FOUND), trained


def processor_seconds(processes: list[psutil.Process]) -> float:
    """What these processes and their ended children have used."""
    total = 0.0
    for process in processes:
        try:
            used = process.cpu_times()
        except psutil.Error:
            continue
        total += used.user + used.system + used.children_user + used.children_system
    return total


def simulations(clients: int, rounds: int, scratch: Path) -> dict[str, Course]:
    """Both algorithms side by side on Flower's simulation engine."""
    courses, started = {}, {}
    settings = {"data.clients": clients, "data.samples-per-client": 200, "rounds": rounds,
                "data.observers-per-concept": 0, "run.evaluate-every": 1000, **MLP}  # fmt: skip
    for algorithm in ALGORITHMS:
        folder, mark = scratch / algorithm, uuid.uuid4().hex
        given = {**settings, "algorithm": algorithm}
        flags = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
        part = Part(
            scratch, f"log-{algorithm}",
            [FEDRC, "simulate", "--scenario", "fashion-mnist", "--engine", "flower", *flags,
             "--output", str(folder)],
            mark,
        )  # fmt: skip
        part.start()
        courses[algorithm], started[algorithm] = Course(folder / METRICS), (part, mark)
    while any(part.running() for part, _ in started.values()):
        for algorithm, (_, mark) in started.items():
            courses[algorithm].watch(marked(mark))
        time.sleep(POLL)
    for part, _ in started.values():
        if part.process is None or part.process.returncode:
            raise SystemExit(part.log())
    return courses


def deployments(nodes: int, rounds: int, scratch: Path) -> dict[str, Course]:
    """One algorithm after the other, with the same nodes: two concepts, half of the nodes each."""
    settings = {
        "scenario": "fashion-mnist", "data.clients": nodes, "data.samples-per-client": 400,
        "data.mix": "shares", "data.concept-shares": "0.5,0.5", "data.corrupted-shares": "0,0",
        "data.alpha": 10.0, "data.observers-per-concept": 0, "rounds": rounds,
        "run.evaluate-every": 1000, "federation.min-clients": nodes, **MLP,
    }  # fmt: skip
    federation, courses = Federation(scratch), {}
    try:
        federation.start()
        for partition in range(nodes):
            federation.node(f"client-{partition}", partition).start()
        wait_until(
            lambda: f"{nodes} online" in fedrc("node", "list", federation.file).stdout, "the nodes"
        )
        for algorithm in ALGORITHMS:
            given = {**settings, "algorithm": algorithm}
            run = federation.run(algorithm, *(f"{key}={value}" for key, value in given.items()))
            course = courses[algorithm] = Course(federation.outputs / algorithm / METRICS)
            while run.running():
                course.watch([p for p in marked(federation.mark) if of_a_node(p)])
                time.sleep(POLL)
            if run.process is None or run.process.returncode:
                raise SystemExit(run.log())
    finally:
        federation.stop()
    return courses


def of_a_node(process: psutil.Process) -> bool:
    try:
        return str(process.environ().get("FEDRC_TEST_PART", "")).startswith("client-")
    except psutil.Error:
        return False


def line(what: str, courses: dict[str, Course], last: int) -> str:
    """A row of the table."""
    ours, theirs = (courses[algorithm].cost(last) for algorithm in ALGORITHMS)
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    clusters = len(courses["fedrc"].rounds[last - 1]["clusters"])
    print(what, courses["fedrc"].found(), ours, theirs, flush=True)
    return (
        f"| {what} | {clusters} | {ratios[0]:.3f} | {ratios[1]:.3f} "
        f"({ours[1]:.1f} and {theirs[1]:.1f} s) | {ratios[2]:.3f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", default="")
    parser.add_argument("--nodes", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=14, help="the last one is evaluated")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        lines = []
        for clients in map(int, filter(None, options.clients.split(","))):
            folder = Path(scratch) / str(clients)
            folder.mkdir()
            courses = simulations(clients, options.rounds, folder)
            lines.append(line(f"{clients} clients", courses, options.rounds - 1))
        write("simulation", options.rounds, lines)
        if options.nodes:
            courses = deployments(options.nodes, options.rounds, Path(scratch))
            lines = [line(f"{options.nodes} nodes", courses, options.rounds - 1)]
            write("deployment", options.rounds, lines)


def write(engine: str, rounds: int, lines: list[str]) -> None:
    """Put a table into the README, if there is one."""
    head = [
        f"{machine()}; rounds {FOUND + 2} to {rounds - 1}",
        "",
        f"| {engine} | clusters | bytes, FedRC / FedAvg | processor time | a client's training |",
        "|---|---|---|---|---|",
    ]
    if lines:
        write_section(f"cost of a round in a {engine}", [*head, *lines])


if __name__ == "__main__":
    main()
