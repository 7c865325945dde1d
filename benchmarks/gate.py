"""What the gate costs: the same calls to a SuperLink through it and past it, in turns, and a run.

    python benchmarks/gate.py

Sends objects of 5 MiB, as Flower cuts messages, and short calls, signed by a registered node, to a
real SuperLink on loopback. Flower reads and parses each, and refuses what belongs to no run. Then
three nodes train, and the gate's processor time is compared with the time that the rounds took.
"""

from __future__ import annotations

import argparse
import http.client
import ssl
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration"))

from bare import machine, write_section
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from processes import Federation, fedrc, wait_until

from deploy.control import nodes_of
from deploy.files import read_superlink_file
from deploy.membership import signed_headers

OBJECT = 5 * 2**20
NODES = 3
RUN = [
    "scenario=digits", "recipe=paper", f"data.clients={NODES}", "data.observers-per-concept=0",
    "model.hidden=1024", "rounds=4", f"federation.min-clients={NODES}", "run.evaluate-every=1000",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=60)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        federation = Federation(Path(scratch))
        try:
            federation.start()
            federation.node("client-0", 0)
            rows, mega = measured(federation, arguments.calls)
            share = trained(federation)
        finally:
            federation.stop()
    write_section(
        "gate",
        [
            f"{machine()}; median of {arguments.calls} calls of each kind, in turns",
            "",
            "| | past the gate, ms | through it, ms | more, ms |",
            "|---|---|---|---|",
            *rows,
            "",
            f"The gate's process: {mega:.1f} ms of processor time per MB. {share}",
        ],
    )


def measured(federation: Federation, calls: int) -> tuple[list[str], float]:
    file = read_superlink_file(federation.file)
    (known,) = nodes_of(file)
    node = Node(node_id=known.id)
    key = federation.folder / "client-0" / "node.key"
    assert file.inner_ca is not None
    assert file.tls is not None
    assert federation.superlink.process is not None
    gate = psutil.Process(federation.superlink.process.pid)
    ways = {
        "past": connection(file.control.port, file.inner_ca),
        "through": connection(federation.port, file.tls.ca),
    }
    bodies = {
        "/v1/fleet/pull-messages": PullMessagesRequest(node=node).SerializeToString(),
        "/v1/fleet/push-object": PushObjectRequest(
            node=node, run_id=1, object_id="0" * 64, object_content=b"\x01" * OBJECT
        ).SerializeToString(),
    }
    rows, work = [], 0.0
    for path, body in bodies.items():
        took: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(calls):
            for way, to in ways.items():
                headers = {**signed_headers(key), "Content-Type": "application/protobuf"}
                before = sum(gate.cpu_times()[:2])
                started = time.perf_counter()
                to.request("POST", path, body, headers)
                answer = to.getresponse()
                answer.read()
                took[way].append(1000 * (time.perf_counter() - started))
                if way == "through" and len(body) > OBJECT:
                    work += sum(gate.cpu_times()[:2]) - before
        past, through = (median(took[way]) for way in ("past", "through"))
        what = "a short call" if len(body) < OBJECT else "an object of 5 MiB"
        rows.append(f"| {what} | {past:.1f} | {through:.1f} | {through - past:.1f} |")
    return rows, 1000 * work / (calls * OBJECT / 1e6)


def trained(federation: Federation) -> str:
    """A run, and how much of its rounds' time the gate was busy."""
    federation.nodes["client-0"].start()
    for partition in range(1, NODES):
        federation.node(f"client-{partition}", partition).start()
    wait_until(
        lambda: f"{NODES} online" in fedrc("node", "list", federation.file).stdout, "the nodes"
    )
    assert federation.superlink.process is not None
    gate = psutil.Process(federation.superlink.process.pid)
    run = federation.run("measured", *RUN)
    federation.wait_for_round("measured", 1, 600)
    before = sum(gate.cpu_times()[:2])
    if federation.finish(run, seconds=1800):
        raise SystemExit(run.log())
    work = sum(gate.cpu_times()[:2]) - before
    rounds = federation.rounds("measured")[1:]
    seconds = sum(event["seconds"] for event in rounds)
    traffic = sum(event["bytes_up"] + event["bytes_down"] for event in rounds) / len(rounds) / 1e6
    return (
        f"In a run of {NODES} nodes with {traffic:.0f} MB a round, it was busy for "
        f"{100 * work / seconds:.1f} % of the rounds' time ({work:.1f} of {seconds:.0f} seconds)."
    )


def connection(port: int, ca: Path) -> http.client.HTTPSConnection:
    context = ssl.create_default_context(cafile=str(ca))
    return http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)


if __name__ == "__main__":
    main()
