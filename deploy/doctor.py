"""Checks of a server or node that is running: the preflight, and its health."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from deploy.control import FlowerRun, Server, nodes_of, runs_of
from deploy.exposure import check_interfaces, check_open
from deploy.fields import Address
from deploy.files import NodeFile, SuperLinkFile
from deploy.findings import ERROR, OK, WARNING, Finding
from deploy.preflight import check_node, check_port, check_reachable, check_superlink
from fedrc_flwr.errors import RunError
from fedrc_flwr.report.log import METRICS, read_events
from fedrc_flwr.words import counted

HEALTH_SECONDS = 5.0


def examine_superlink(file: SuperLinkFile) -> Iterator[Finding]:
    """Files, certificates, health, nodes, and the age of the last round."""
    runs: list[FlowerRun] = []
    yield from check_superlink(file, starting=False)
    findings = list(check_reachable(file.address, file.tls.ca if file.tls else None))
    answers = all(finding.level != ERROR for finding in findings)
    yield from findings
    if not file.insecure:
        if answers:
            yield check_open(file.address, file.tls.ca if file.tls else None)
        yield from check_interfaces(file)
    if file.health is not None:
        yield grpc_health(file.health, "SuperLink")
    if file.metrics is not None:
        yield http_health(file.metrics, "/metrics")
    if answers:
        try:
            yield from list_nodes(file)
            runs = runs_of(file)
        except RunError as error:
            yield Finding(ERROR, str(error))
    yield last_round(file.outputs, runs)


def examine_node(file: NodeFile) -> Iterator[Finding]:
    """Files, key, the SuperLink as seen from here, and the node's own health."""
    # With a secret of its own, the executor is another user's, and so are data and state.
    yield from check_node(file, starting=False, alone=file.executor_secret is not None)
    if check_port(file.listen).level == OK:
        yield Finding(WARNING, f"nothing listens on {file.listen}: the node is not running")
    else:
        yield http_health(file.listen)
    if file.health is not None:
        yield grpc_health(file.health, "SuperNode")
    if file.metrics is not None:
        yield http_health(file.metrics, "/metrics")


def http_health(address: Address, path: str = "/health") -> Finding:
    """Ask a program on this machine for a page."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=HEALTH_SECONDS)
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return Finding(ERROR, f"{address}{path} does not answer: {error}")
    finally:
        connection.close()
    return Finding(OK if status == 200 else ERROR, f"{address}{path} answers {status}")


def grpc_health(address: Address, who: str) -> Finding:
    """Ask through the gRPC health protocol."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    # Never through a proxy from the environment, because health is checked on this network.
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(str(address), options=options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=HEALTH_SECONDS)
        except grpc.RpcError as error:
            return Finding(ERROR, f"{who}'s gRPC health at {address}: {error.code().name}")
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    level = OK if status == "SERVING" else ERROR
    return Finding(level, f"{who}'s gRPC health at {address}: {status}")


def list_nodes(file: Server) -> Iterator[Finding]:
    """Which nodes are registered, and which of them are online."""
    nodes = nodes_of(file)
    online = sum(node.online for node in nodes)
    yield Finding(
        OK if online else WARNING, f"{counted(len(nodes), 'node')} registered, {online} online"
    )
    for node in nodes:
        status = "never online yet" if node.status == "registered" else node.status
        yield Finding(OK, f"  {node.called}: {status}")


def last_round(outputs: Path, runs: Iterable[FlowerRun] = ()) -> Finding:
    """How the latest run stands, and how long ago its last round ended.

    ``runs`` are the SuperLink's, newest first: a run that was stopped or killed cannot say so.
    """
    logs = sorted(outputs.glob(f"*/{METRICS}"), key=lambda path: path.stat().st_mtime)
    if not logs:
        return Finding(OK, f"no run yet in {outputs}")
    events = read_events(logs[-1])
    name = logs[-1].parent.name
    rounds = [event["round"] for event in events if event.get("event") == "round"]
    minutes = (time.time() - logs[-1].stat().st_mtime) / 60
    # A resumed run's log contains the end of the previous attempt.
    ended = events and events[-1].get("event") == "end"
    state = str(events[-1].get("status", "ended")) if ended else "under way"
    seen = next((known for known in runs if known.name == name), None)
    if seen is not None and seen.finished and seen.status != "finished:completed":
        state = seen.status.partition(":")[2]
    number = f"round {rounds[-1]}" if rounds else "no round yet"
    return Finding(OK, f"run {name} {state}: {number}, {minutes:.1f} minutes ago")
