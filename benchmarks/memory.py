"""The ServerApp's peak memory with few and with many virtual clients a round.

python benchmarks/memory.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from fedrc_flwr.config import load_config
from fedrc_flwr.report.log import METRICS, read_events
from fedrc_flwr.simulation import simulate

# A network of 1.1 million parameters, so that models outweigh what a process needs anyway.
SETTINGS = {
    "scenario": "digits", "recipe": "paper", "data.samples-per-client": 4,
    "data.test-fraction": 0.0, "model.hidden": 1000, "rounds": 3, "run.evaluate-every": 3,
}  # fmt: skip


def main() -> None:
    peaks = {}
    for clients in (30, 300):
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch) / "run"
            config = load_config({**SETTINGS, "data.clients": clients})
            outcome = simulate(config, directory, lambda event: None)
            if not outcome.completed:
                raise SystemExit(outcome.reason)
            events = [e for e in read_events(directory / METRICS) if e["event"] == "round"]
        peaks[clients] = events[-1]["server_peak_megabytes"]
        up = events[-1]["bytes_up"] / 1e6
        print(f"{clients} clients: peak {peaks[clients]:.0f} MB, {up:.0f} MB of replies a round")
    print(f"ratio 300 to 30: {peaks[300] / peaks[30]:.3f}")


if __name__ == "__main__":
    main()
