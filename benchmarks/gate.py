"""What the gate costs: the same calls to a SuperLink through it and past it, in turns, and a run.

    python benchmarks/gate.py

Sends objects of 5 MiB, as Flower cuts messages, and short calls, signed by a registered node, to a
real SuperLink on loopback. Flower reads and parses each, and refuses what belongs to no run. Then
three nodes train in turns: through the gate, with all checks of replies, and past it, without them.
"""

from __future__ import annotations

import argparse
import http.client
import re
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration"))

from bare import machine, write_section
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from processes import FEDRC, Federation, wait_until

from deploy.control import nodes_of
from deploy.files import read_superlink_file
from deploy.membership import signed_headers

OBJECT = 5 * 2**20
NODES = 3
FOUND = 5  # the round after which every client gets one model
RUN = [
    "scenario=digits", f"data.clients={NODES}", "data.observers-per-concept=0",
    "model.hidden=1024", "rounds=15", f"federation.min-clients={NODES}", "run.evaluate-every=1000",
]  # fmt: skip
#: A node that does not refuse a SuperLink without a gate.
UNCHECKED = """
import sys
from pathlib import Path
import deploy.launch
deploy.launch.check_node = lambda file, alone: []
deploy.launch.launch_supernode(Path(sys.argv[1]))
"""
WAYS = {"through": [], "past": ["server.max-norm=0", "server.max-opposition=0"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--runs", type=int, default=3, help="whole runs of each kind")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        federation = Federation(Path(scratch))
        try:
            federation.start()
            federation.node("client-0", 0)
            rows, mega = measured(federation, arguments.calls)
            whole = trained(federation, arguments.runs)
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
            f"The gate's process: {mega:.1f} ms of processor time per MB.",
            "",
            *whole,
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


def trained(federation: Federation, times: int) -> list[str]:
    """Whole runs, in turns: as they are, and without the gate and the checks of replies."""
    for partition in range(1, NODES):
        federation.node(f"client-{partition}", partition)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    traffic = 0.0
    for turn in range(times):
        for way, settings in WAYS.items():
            name = f"{way}-{turn}"
            with nodes_that_go(federation, way):
                run = federation.run(name, *RUN, *settings)
                if federation.finish(run, seconds=1800):
                    raise SystemExit(run.log())
            rounds = federation.rounds(name)[FOUND:]
            seconds[way] += [event["seconds"] for event in rounds]
            traffic = median(event["bytes_up"] + event["bytes_down"] for event in rounds) / 1e6
    with_all, without = (median(seconds[way]) for way in WAYS)
    return [
        f"Whole runs, {times} of each kind in turns, {NODES} nodes and {traffic:.0f} MB a round; "
        "medians of the rounds after the concepts are found:",
        "",
        "| | seconds a round |",
        "|---|---|",
        f"| through the gate, replies checked | {with_all:.2f} |",
        f"| past the gate, replies not checked | {without:.2f} |",
        f"| ratio | {with_all / without:.2f} |",
    ]


@contextmanager
def nodes_that_go(federation: Federation, way: str) -> Iterator[None]:
    """The nodes, connected to the gate or to Flower's own port behind it, for the time being."""
    file = read_superlink_file(federation.file)
    assert file.inner_ca is not None
    assert file.tls is not None
    port, ca = (
        (federation.port, file.tls.ca) if way == "through" else (file.control.port, file.inner_ca)
    )
    aside = file.objects.with_name("aside")
    if way == "past":  # the directory that only the gate looks into
        file.objects.rename(aside)
    for name, node in federation.nodes.items():
        site = federation.folder / name
        (site / "ca.crt").write_bytes(ca.read_bytes())
        text = (site / "node.yaml").read_text("utf-8")
        text = re.sub(r"(?m)^superlink: .*$", f"superlink: 127.0.0.1:{port}", text)
        (site / "node.yaml").write_text(text, "utf-8")
        usual = [FEDRC, "supernode", str(site / "node.yaml")]
        node.arguments = usual if way == "through" else [sys.executable, "-c", UNCHECKED, usual[2]]
        node.start()
    try:
        wait_until(lambda: federation.online() == NODES, "the nodes")
        yield
    finally:
        for node in federation.nodes.values():
            node.stop_gently()
        if way == "past":
            aside.rename(file.objects)


def connection(port: int, ca: Path) -> http.client.HTTPSConnection:
    context = ssl.create_default_context(cafile=str(ca))
    return http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)


if __name__ == "__main__":
    main()
