"""A whole round of `flwr run` against the library's client half on the same clients and cores.

    python benchmarks/simulation.py --clients 30 --samples 400
    python benchmarks/simulation.py --clients 300 --samples 200

The simulation's round has everything in it: messages, sums, server's step, checkpoint. Its first
round, in which worker processes start and clients' data is made, is told apart. The core is the
same client half in as many processes as the simulation has workers, over the same clients, right
before and right after the run: the machine may be another's too.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from bare import FASHION, machine, write_section

from fedrc_flwr.config import load_config
from fedrc_flwr.data.scenario import TRAIN
from fedrc_flwr.engine.in_process import in_memory
from fedrc_flwr.report.log import METRICS, read_events
from fedrc_flwr.simulation import simulate


def worker(settings: dict[str, Any], part: int, parts: int, barrier: Any, results: Any) -> None:
    """Time the client half of every ``parts``-th client."""
    torch.set_num_threads(1)
    rounds, carrier = in_memory(load_config(settings))
    clients = [carrier.participants[name] for name in carrier.online(TRAIN)[part::parts]]
    broadcast = rounds.broadcast(1)
    clients[0].train(broadcast, time.time())
    barrier.wait()
    started = time.perf_counter()
    for client in clients:
        client.train(broadcast, time.time())
    barrier.wait()
    results.put(time.perf_counter() - started)


def core_seconds(settings: dict[str, Any], workers: int) -> float:
    """Wall time of one round's client halves in ``workers`` processes."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(workers), context.Queue()
    processes = [
        context.Process(target=worker, args=(settings, part, workers, barrier, results))
        for part in range(workers)
    ]
    for process in processes:
        process.start()
    seconds = max(results.get() for _ in processes)
    for process in processes:
        process.join()
    return float(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    settings: dict[str, Any] = {
        **FASHION, "data.clients": arguments.clients, "data.samples-per-client": arguments.samples,
        "data.observers-per-concept": 0, "rounds": arguments.rounds, "run.evaluate-every": 1000,
    }  # fmt: skip
    workers = len(os.sched_getaffinity(0))
    before = core_seconds(settings, workers)
    with tempfile.TemporaryDirectory() as scratch:
        outcome = simulate(load_config(settings), Path(scratch) / "run", lambda event: None)
        if not outcome.completed:
            raise SystemExit(outcome.reason)
        events = [e for e in read_events(Path(scratch) / "run" / METRICS) if e["event"] == "round"]
    after = core_seconds(settings, workers)
    first = events[0]["seconds"]
    # From log line to log line, so that the checkpoint is in it. The last one is evaluated, which
    # the core is not.
    rounds = [b["elapsed"] - a["elapsed"] for a, b in itertools.pairwise(events)][:-1]
    core = (before + after) / 2
    write_section(
        f"simulation, {arguments.clients} clients",
        [
            f"{machine()}; {arguments.clients} clients of {arguments.samples} samples, 10 % of "
            f"them for testing; {workers} workers of one thread",
            "",
            "| | seconds | of the core's time |",
            "|---|---|---|",
            f"| core before and after | {before:.1f}, {after:.1f} | 1 |",
            f"| simulation, later rounds: {', '.join(f'{s:.1f}' for s in rounds)} "
            f"| {median(rounds):.1f} | {median(rounds) / core:.2f} |",
            f"| simulation, first round | {first:.1f} | {first / core:.2f} |",
        ],
    )


if __name__ == "__main__":
    main()
