"""What a deployment adds to a round: SuperLink and four SuperNodes on loopback, with TLS.

    python benchmarks/deployment.py

Sets up a federation as deploy/README.md says, FashionMNIST with the `cnn`, K = 3, and tells a
round's seconds apart: the clients' computing, their processes' start (a deployed client is a new
process each round), and the rest: messages, sums, the server's step.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration"))

from bare import FASHION, machine, write_section
from processes import Federation, fedrc, wait_until

NODES = 4
ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=400)
    arguments = parser.parse_args()
    settings = [
        *(f"{key}={value}" for key, value in FASHION.items()),
        f"data.clients={NODES}", f"data.samples-per-client={arguments.samples}",
        "data.observers-per-concept=0", f"rounds={ROUNDS}", f"federation.min-clients={NODES}",
        "run.evaluate-every=1000", "federation.deadline=1200",
    ]  # fmt: skip
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
            run = federation.run("measured", *settings)
            if federation.finish(run, seconds=3600):
                raise SystemExit(run.log())
            rounds = federation.rounds("measured")[1:-1]  # the last one is evaluated
        finally:
            federation.stop()
    whole = median(e["seconds"] for e in rounds)
    start = median(e["client_ready_seconds"] for e in rounds)
    compute = median(e["client_seconds"] - e["client_ready_seconds"] for e in rounds)
    up, down = (rounds[-1][f"bytes_{way}"] / 1e6 for way in ("up", "down"))
    write_section(
        "deployment",
        [
            f"{machine()}; {NODES} nodes of one thread, {arguments.samples} samples each, "
            f"median of {len(rounds)} rounds, {down:.0f} MB down and {up:.0f} MB up a round",
            "",
            "| | seconds | of the computing |",
            "|---|---|---|",
            f"| a round | {whole:.1f} | {whole / compute:.2f} |",
            f"| computing, mean of the clients | {compute:.1f} | 1 |",
            f"| from a client's process to its first batch | {start:.1f} | {start / compute:.2f} |",
            f"| all the rest | {whole - compute - start:.1f} "
            f"| {(whole - compute - start) / compute:.2f} |",
        ],
    )


if __name__ == "__main__":
    main()
