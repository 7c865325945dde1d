"""What a quorum is worth with slow nodes: time to the same accuracy, in event time.

    python benchmarks/stragglers.py

Ten clients of the digits, three of which are ten times slower. The real server and client apps run
in one process; only the clock is made up: a fast node trains for ten seconds and evaluates for one,
and time passes when the server waits (tests/timed.py). Compared are a round that waits for
everybody and `federation.quorum = 0.7`.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from bare import machine, write_section
from timed import Clock, TimedGrid, event_time

from fedrc_flwr.config import load_config
from fedrc_flwr.report.log import read_events
from server_app.app import run_on_flower

CLIENTS, OBSERVERS, SLOW = 10, 3, 3
FAST_SECONDS, SLOWER = 10.0, 10.0
EVERY = 3
#: How the server waits, and how many rounds fit into 25 minutes.
WAYS: dict[str, tuple[dict[str, Any], int]] = {
    "everybody": ({"federation.grace": 0.0}, 15),
    "quorum": ({"federation.quorum": 0.7}, 150),
}
NAMES = {
    "everybody": "waits for everybody (`grace = 0`)",
    "quorum": "`quorum = 0.7`",
}


def run(seed: int, way: str, share: float = 1.0) -> dict[str, Any]:
    """One run: seconds and accuracy after each evaluated round, and the last accuracies."""
    settings, rounds = WAYS[way]
    config = load_config(
        {
            "scenario": "digits", "data.clients": CLIENTS, "data.observers-per-concept": 1,
            "rounds": max(4, round(share * rounds)), "seed": seed, "run.evaluate-every": EVERY,
            "federation.deadline": 1e5, **settings,
        }
    )  # fmt: skip
    slow = np.random.default_rng(seed).choice(CLIENTS, SLOW, replace=False)
    seconds = {100 + n: FAST_SECONDS for n in range(CLIENTS + OBSERVERS)}
    seconds |= {100 + int(n): SLOWER * FAST_SECONDS for n in slow}
    clock = Clock()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "run"
        values = {**config.placed(directory).to_dict(), "resolved": True}
        grid = TimedGrid(CLIENTS + OBSERVERS, values, seconds, clock)
        with event_time(clock):
            run_on_flower(config, directory, grid)  # type: ignore[arg-type]
        events = [e for e in read_events(directory / "metrics.jsonl") if e["event"] == "round"]
    ends = np.cumsum([event["seconds"] for event in events])
    curve = [
        [float(end), event["global_accuracy"]]
        for end, event in zip(ends, events, strict=True)
        if event.get("global_accuracy") is not None
    ]
    told = events[-1]["clients"]
    return {
        "seed": seed, "way": way, "curve": curve, "rounds": len(events),
        "round_seconds": median(event["seconds"] for event in events),
        "local": events[-1]["local_accuracy"], "global": curve[-1][1],
        "slow": [told[f"client-{n}"]["accuracy"] for n in slow if f"client-{n}" in told],
    }  # fmt: skip


def reached(curve: list[list[float]], target: float) -> float | None:
    """Seconds until an accuracy was reached first."""
    return next((seconds for seconds, accuracy in curve if accuracy >= target), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--share", type=float, default=1.0, help="of the rounds")
    parser.add_argument("--results", help="a file of lines to add to and to read from")
    parser.add_argument("--table", action="store_true", help="write it to README.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    path = Path(arguments.results) if arguments.results else None
    lines = path.read_text("utf-8").splitlines() if path is not None and path.exists() else []
    found = {(r["seed"], r["way"]): r for r in map(json.loads, lines)}
    for seed in seeds:
        for way in WAYS:
            if (seed, way) not in found:
                found[seed, way] = run(seed, way, arguments.share)
                if path is not None:
                    with path.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(found[seed, way]) + "\n")
    rows = []
    targets = {seed: 0.98 * found[seed, "everybody"]["global"] for seed in seeds}
    for way, name in NAMES.items():
        runs = [found[seed, way] for seed in seeds]
        times = [reached(r["curve"], targets[r["seed"]]) for r in runs]
        told = " ".join("-" if seconds is None else f"{seconds / 60:.1f}" for seconds in times)
        known = [seconds for seconds in times if seconds is not None]
        heard = [accuracy for r in runs for accuracy in r["slow"]]
        middle = f"{median(known) / 60:.1f}" if len(known) == len(times) else "-"
        rows.append(
            f"| {name} | {median(r['round_seconds'] for r in runs):.0f} | {middle} ({told}) "
            f"| {mean(r['global'] for r in runs):.3f} "
            f"| {f'{mean(heard):.3f}' if heard else 'not heard of'} |"
        )
    lines = [
        f"{machine()}; digits, {CLIENTS} clients, {SLOW} of them {SLOWER:.0f} times slower, "
        f"{OBSERVERS} observers; seeds {seeds[0]} to {seeds[-1]}; the target is 0.98 of what the "
        "observers reach at the end where everybody is waited for",
        "",
        "| a round | seconds of it | minutes to the target, median (each seed) "
        "| global accuracy at the end | of the slow clients, local |",
        "|---|---|---|---|---|",
        *rows,
    ]
    if arguments.table:
        write_section("stragglers", lines)
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
