"""A small run in one process against the same run on Flower's simulation engine.

    python benchmarks/engines.py

Both through `fedrc simulate`, from the command to its end, in turns: 12 clients on digits. The
rounds alone leave out what starting and stopping takes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bare import machine, write_section

from fedrc_flwr.report.log import METRICS, read_events
from fedrc_flwr.simulation import FLOWER, IN_PROCESS

PARTS = ("the command", "its rounds alone")


def measure(engine: str, rounds: int) -> tuple[float, float]:
    """Seconds of a command from start to end, and of its rounds."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "run"
        command = [
            str(Path(sys.executable).parent / "fedrc"), "simulate", "--scenario", "digits",
            "--engine", engine, "--set", "data.clients=12", "--set", f"rounds={rounds}",
            "--output", str(directory),
        ]  # fmt: skip
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        whole = time.perf_counter() - started
        if done.returncode:
            raise SystemExit(done.stderr or done.stdout)
        events = [e for e in read_events(directory / METRICS) if e["event"] == "round"]
    return whole, sum(event["seconds"] for event in events)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {IN_PROCESS: [], FLOWER: []}
    for repeat in range(arguments.repeats):
        for engine, times in found.items():
            times.append(measure(engine, arguments.rounds))
        print(f"repeat {repeat + 1} of {arguments.repeats} done", file=sys.stderr, flush=True)
    lines = [
        f"{machine()}; 12 clients on digits, {arguments.rounds} rounds, medians of "
        f"{arguments.repeats}",
        "",
        "| | in process, seconds | Flower's simulation, seconds | simulation / in process |",
        "|---|---|---|---|",
    ]
    for part, name in enumerate(PARTS):
        here, there = ([times[part] for times in found[engine]] for engine in found)
        ratios = [b / a for a, b in zip(here, there, strict=True)]
        lines.append(
            f"| {name} | {median(here):.1f} | {median(there):.1f} | {median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}) |"
        )
    write_section("engines", lines)


if __name__ == "__main__":
    main()
