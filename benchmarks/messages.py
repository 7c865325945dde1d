"""Large models through the deployment engine: K = 3 networks of 45 MB, 2 nodes, one round.

    python benchmarks/messages.py

Sets up a federation on loopback as deploy/README.md says and prints the seconds of a round, the
bytes each way and the peak memory of every process.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration"))

from processes import Federation, fedrc, marked, wait_until

SETTINGS = ["recipe=paper", "data.clients=2", "data.observers-per-concept=0", "rounds=2",
            "local.batch-size=16", "federation.min-clients=2", "federation.deadline=1200",
            "run.evaluate-every=2"]  # fmt: skip


def watch(mark: str, peaks: dict[str, float], stop: threading.Event) -> None:
    """Note the largest resident size of every kind of process."""
    while not stop.wait(1.0):
        for process in marked(mark):
            try:
                program = Path(process.cmdline()[1]).name
                name = f"{process.environ().get('FEDRC_TEST_PART')}: {program}"
                memory = process.memory_info().rss / 1e6
            except (psutil.Error, IndexError):
                continue
            peaks[name] = max(peaks.get(name, 0.0), memory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=3320, help="3320 makes 45 MB a network")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        federation = Federation(Path(scratch))
        peaks: dict[str, float] = {}
        stop = threading.Event()
        watcher = threading.Thread(target=watch, args=(federation.mark, peaks, stop))
        try:
            federation.start()
            for partition in range(2):
                federation.node(f"client-{partition}", partition).start()
            wait_until(
                lambda: "2 online" in fedrc("node", "list", federation.file).stdout, "two nodes"
            )
            watcher.start()
            run = federation.run("large", *SETTINGS, f"model.hidden={arguments.hidden}")
            if federation.finish(run, seconds=3600):
                raise SystemExit(run.log())
            for event in federation.rounds("large"):
                print(
                    f"round {event['round']}: {event['seconds']:.0f} s, "
                    f"{event['bytes_down'] / 1e6:.0f} MB down, {event['bytes_up'] / 1e6:.0f} MB up"
                )
        finally:
            stop.set()
            if watcher.is_alive():
                watcher.join()
            federation.stop()
    print("| process | peak MB |\n|---|---|")
    for name, peak in sorted(peaks.items()):
        print(f"| {name} | {peak:.0f} |")


if __name__ == "__main__":
    main()
