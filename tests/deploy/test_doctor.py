"""Health of a side that runs: gRPC and HTTP health, nodes, the last round."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from loopback import (
    HOST,
    free_port,
    health_server,
    http_date,
    make_certificates,
    node_file,
    superlink_file,
)

from deploy import doctor
from deploy.certificates import create_node_key
from deploy.control import FlowerRun, Node
from deploy.doctor import (
    examine_node,
    examine_superlink,
    grpc_health,
    http_health,
    last_round,
    list_nodes,
)
from deploy.fields import Address
from deploy.files import SuperLinkFile
from deploy.findings import ERROR, OK, WARNING, Finding
from deploy.monitoring.endpoint import serve_beside
from fedrc_flwr.errors import RunError
from fedrc_flwr.report.log import MetricsLog

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@contextmanager
def grpc_server(status: int | None) -> Iterator[Address]:
    """A gRPC server with the health protocol, or without where status is None."""
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    if status is not None:
        servicer = health.HealthServicer()
        servicer.set("", status)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    address = Address(HOST, server.add_insecure_port(f"{HOST}:0"))
    server.start()
    try:
        yield address
    finally:
        server.stop(None).wait()


def know(monkeypatch: pytest.MonkeyPatch, nodes: list[Node] | None, *runs: FlowerRun) -> None:
    """The SuperLink knows these nodes and runs, or does not answer."""

    def nodes_of(file: SuperLinkFile) -> list[Node]:
        if nodes is None:
            raise RunError("the nodes cannot be listed: nobody there")
        return nodes

    monkeypatch.setattr(doctor, "nodes_of", nodes_of)
    monkeypatch.setattr(doctor, "runs_of", lambda file: list(runs))


# --- health --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "level", "word"),
    [
        (SERVING, OK, "SERVING"),
        (NOT_SERVING, ERROR, "NOT_SERVING"),
        (None, ERROR, "UNIMPLEMENTED"),
    ],
)
def test_grpc_health(status: int | None, level: str, word: str) -> None:
    with grpc_server(status) as address:
        finding = grpc_health(address, "SuperLink")

    assert finding == Finding(level, f"SuperLink's gRPC health at {address}: {word}")


def test_grpc_health_of_nobody() -> None:
    address = Address(HOST, free_port())

    finding = grpc_health(address, "SuperNode")

    assert finding == Finding(ERROR, f"SuperNode's gRPC health at {address}: UNAVAILABLE")


def test_grpc_health_is_not_asked_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.setenv(name, f"http://{HOST}:{free_port()}")

    with grpc_server(SERVING) as address:
        finding = grpc_health(address, "SuperLink")

    assert finding.level == OK


@pytest.mark.parametrize(("status", "level"), [(200, OK), (503, ERROR)])
def test_http_health(status: int, level: str) -> None:
    with health_server(status=status) as port:
        finding = http_health(Address(HOST, port))

    assert finding == Finding(level, f"{HOST}:{port}/health answers {status}")


def test_http_health_of_nobody() -> None:
    address = Address(HOST, free_port())

    finding = http_health(address)

    assert finding.level == ERROR
    assert f"{address}/health does not answer" in finding.text


def test_an_endpoint_for_metrics_that_does_not_answer_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, [])
    make_certificates(tmp_path / "certificates")
    shutil.copy(tmp_path / "certificates" / "ca.crt", tmp_path / "ca.crt")
    port = free_port()
    server = superlink_file(tmp_path, metrics=f"{HOST}:{port}")
    node = node_file(tmp_path, metrics=f"{HOST}:{port}")

    for findings in (examine_superlink(server), examine_node(node)):
        told = [finding for finding in findings if "/metrics" in finding.text]
        assert [finding.level for finding in told] == [ERROR]
        assert told[0].text.startswith(f"{HOST}:{port}/metrics does not answer")
    serving = serve_beside(Address(HOST, port), list)
    try:
        findings = list(examine_node(node))
    finally:
        serving.shutdown()
        serving.server_close()
    assert Finding(OK, f"{HOST}:{port}/metrics answers 200") in findings


# --- nodes ---------------------------------------------------------------------------------------


def test_nodes_are_counted_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    know(
        monkeypatch,
        [
            Node(11, "hospital-a", "online"),
            Node(22, "hospital-b", "offline"),
            Node(33, "", "registered"),
        ],
    )

    findings = list(list_nodes(superlink_file(tmp_path)))

    assert findings == [
        Finding(OK, "3 nodes registered, 1 online"),
        Finding(OK, "  hospital-a: online"),
        Finding(OK, "  hospital-b: offline"),
        Finding(OK, "  node 33: never online yet"),
    ]


@pytest.mark.parametrize(
    ("nodes", "counted"), [([], "0 nodes"), ([Node(1, "a", "offline")], "1 node")]
)
def test_nobody_online_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: list[Node], counted: str
) -> None:
    know(monkeypatch, nodes)

    first = next(iter(list_nodes(superlink_file(tmp_path))))

    assert first == Finding(WARNING, f"{counted} registered, 0 online")


# --- the last round ------------------------------------------------------------------------------


def a_run(outputs: Path, name: str, minutes_ago: float, *events: dict[str, Any]) -> None:
    log = MetricsLog(outputs / name)
    for event in events:
        log.append(event)
    then = time.time() - minutes_ago * 60
    os.utime(outputs / name / "metrics.jsonl", (then, then))


def rounds(last: int) -> list[dict[str, Any]]:
    return [{"event": "round", "round": number} for number in range(1, last + 1)]


END = {"event": "end", "status": "completed"}


def test_no_run_yet(tmp_path: Path) -> None:
    assert last_round(tmp_path) == Finding(OK, f"no run yet in {tmp_path}")


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (rounds(3), "under way: round 3"),
        ([*rounds(4), END], "completed: round 4"),
        ([*rounds(4), END, {"event": "round", "round": 5}], "under way: round 5"),
        ([END], "completed: no round yet"),
        ([{"event": "waiting"}], "under way: no round yet"),
    ],
)
def test_the_last_round_and_its_age(
    tmp_path: Path, events: list[dict[str, Any]], expected: str
) -> None:
    a_run(tmp_path, "first", 90, *events)

    assert last_round(tmp_path) == Finding(OK, f"run first {expected}, 90.0 minutes ago")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("finished:stopped", "stopped: round 3"),
        ("finished:failed", "failed: round 3"),
        ("running", "under way: round 3"),
    ],
)
def test_a_run_that_could_not_say_how_it_ended(tmp_path: Path, status: str, expected: str) -> None:
    a_run(tmp_path, "first", 90, *rounds(3))
    runs = [FlowerRun(3, "other", "running"), FlowerRun(2, "first", status),
            FlowerRun(1, "first", "finished:failed")]  # fmt: skip

    assert last_round(tmp_path, runs).text == f"run first {expected}, 90.0 minutes ago"


def test_of_several_runs_the_latest_counts(tmp_path: Path) -> None:
    a_run(tmp_path, "z-old", 500, *rounds(9))
    a_run(tmp_path, "a-new", 10, *rounds(2))

    assert "run a-new under way: round 2, 10.0 minutes ago" in last_round(tmp_path).text


def test_a_torn_line_is_not_stumbled_over(tmp_path: Path) -> None:
    a_run(tmp_path, "first", 0, *rounds(2))
    with open(tmp_path / "first" / "metrics.jsonl", "a") as file:
        file.write('{"event": "rou')

    assert "under way: round 2" in last_round(tmp_path).text


# --- both sides as a whole -----------------------------------------------------------------------


def test_a_server_that_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_certificates(tmp_path / "certificates")
    know(monkeypatch, [Node(11, "hospital-a", "online")])

    with health_server(tls=made, date=http_date()) as port, grpc_server(SERVING) as address:
        file = superlink_file(
            tmp_path, address=f"{HOST}:{port}", listen=f"{HOST}:{port}", health=str(address)
        )
        findings = list(examine_superlink(file))

    texts = [finding.text for finding in findings]
    assert {finding.level for finding in findings} == {OK}
    assert f"the SuperLink at {HOST}:{port} answers" in texts
    assert "clocks agree" in texts
    assert f"SuperLink's gRPC health at {address}: SERVING" in texts
    assert "1 node registered, 1 online" in texts
    assert texts[-1] == f"no run yet in {tmp_path / 'outputs'}"


def test_a_server_that_is_away_is_not_asked_for_its_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificates(tmp_path / "certificates")
    know(monkeypatch, [Node(11, "hospital-a", "online")])

    findings = list(examine_superlink(superlink_file(tmp_path)))

    assert any(f.level == ERROR and "does not answer" in f.text for f in findings)
    assert not any("registered" in finding.text for finding in findings)
    assert not any("admits nodes only" in finding.text for finding in findings)


def test_nodes_that_cannot_be_listed_are_an_error_not_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_certificates(tmp_path / "certificates")
    know(monkeypatch, None)

    with health_server(tls=made) as port:
        findings = list(examine_superlink(superlink_file(tmp_path, address=f"{HOST}:{port}")))

    assert Finding(ERROR, "the nodes cannot be listed: nobody there") in findings
    assert findings[-1].text.startswith("no run yet"), "the examination goes on"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    made = make_certificates(tmp_path / "certificates")
    create_node_key(tmp_path / "site" / "node.key")
    shutil.copy(made / "ca.crt", tmp_path / "site" / "ca.crt")
    return tmp_path / "site"


def test_a_node_that_is_well(site: Path, tmp_path: Path) -> None:
    with (
        health_server(tls=tmp_path / "certificates", date=http_date()) as superlink,
        health_server() as own,
        grpc_server(SERVING) as address,
    ):
        file = node_file(
            site, superlink=f"{HOST}:{superlink}", listen=f"{HOST}:{own}", health=str(address)
        )
        findings = list(examine_node(file))

    texts = [finding.text for finding in findings]
    assert {finding.level for finding in findings} == {OK}
    assert f"{HOST}:{own}/health answers 200" in texts
    assert f"SuperNode's gRPC health at {address}: SERVING" in texts


def test_a_node_that_does_not_run(site: Path, tmp_path: Path) -> None:
    with health_server(tls=tmp_path / "certificates") as superlink:
        file = node_file(site, superlink=f"{HOST}:{superlink}")
        findings = list(examine_node(file))

    assert findings[-1] == Finding(
        WARNING, f"nothing listens on {file.listen}: the node is not running"
    )
