"""What Prometheus reads from a node."""

from __future__ import annotations

import math
import os
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from loopback import HOST, free_port, make_certificates, node_file, taken_port
from prometheus_client.parser import text_string_to_metric_families

from client_app.ledger import Ledger
from deploy.findings import ERROR
from deploy.monitoring import node
from deploy.monitoring.catalogue import NODE
from deploy.monitoring.endpoint import Page
from deploy.monitoring.node import NodeMetrics, serve_node
from deploy.node.tally import Tally
from deploy.preflight import check_node
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.privacy import PrivacySettings, epsilon_spent

CATALOGUE = {metric.name: metric for metric in NODE}


def values(text: str) -> dict[str, Any]:
    """The value of each series, by the name of its metric and the values of its labels."""
    return {
        " ".join([sample.name, *(sample.labels[k] for k in CATALOGUE[sample.name].labels)]): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def page(tmp_path: Path, tally: Tally, heard: float = math.inf, **changes: Any) -> dict[str, Any]:
    moment = min(heard, time.monotonic())
    metrics = NodeMetrics(node_file(tmp_path, **changes), tally, lambda: moment)
    return values(Page(metrics.collect).text().decode())


def test_a_node_tells_what_it_has_done(tmp_path: Path) -> None:
    tally = Tally(online=True, busy=True, failed=2, died=1, bytes_down=30, bytes_up=20, workers=3)
    for kind in ("train", "train", "query.enrol", "query.secret", "system"):
        tally.arrived(kind)
    tally.refuse("too-little-noise")
    tally.refuse("/home/me/patients.csv")  # an app may say anything
    tally.spent("work", 1.5)
    tally.trained(215)
    tally.worker_memory = 5 * 10**8
    os.replace(make_certificates(tmp_path / "made") / "ca.crt", tmp_path / "ca.crt")

    found = page(tmp_path, tally)

    assert found["fedrc_node_connected"] == found["fedrc_node_busy"] == 1.0
    assert found["fedrc_node_messages_total train"] == 2.0
    assert found["fedrc_node_messages_total enrol"] == 1.0
    assert found["fedrc_node_messages_total other"] == 2.0
    assert found["fedrc_node_refusals_total too-little-noise"] == 1.0
    assert found["fedrc_node_refusals_total failed"] == 1.0
    assert found["fedrc_node_seconds_total work"] == 1.5
    assert found["fedrc_node_samples_total"] == 215.0
    assert found["fedrc_node_failures_total"] == 2.0
    assert found["fedrc_node_worker_deaths_total"] == 1.0
    assert found["fedrc_node_workers_total"] == 3.0
    assert found["fedrc_node_received_bytes_total"] == 30.0
    assert found["fedrc_node_sent_bytes_total"] == 20.0
    assert found["fedrc_node_memory_bytes worker"] == 5e8
    assert found["fedrc_node_memory_bytes node"] > 1e6
    assert abs(found["fedrc_node_last_message_timestamp_seconds"] - time.time()) < 600
    assert found["fedrc_certificate_expiry_timestamp_seconds authority"] > time.time()
    assert "patients" not in " ".join(found)


def test_a_node_that_does_nothing_yet_has_no_last_message(tmp_path: Path) -> None:
    found = page(tmp_path, Tally())

    assert found["fedrc_node_connected"] == 0.0
    assert "fedrc_node_last_message_timestamp_seconds" not in found
    assert "fedrc_node_epsilon_limit" not in found
    assert found["fedrc_node_epsilon_spent"] == 0.0


def test_a_superlink_that_was_not_heard_of_for_a_minute_is_not_connected(tmp_path: Path) -> None:
    long_ago = time.monotonic() - node.HEARD_SECONDS - 1

    assert page(tmp_path, Tally(online=True), heard=long_ago)["fedrc_node_connected"] == 0.0
    assert page(tmp_path, Tally(online=True))["fedrc_node_connected"] == 1.0


def test_epsilon_is_that_of_the_ledger_beside_its_limit(tmp_path: Path) -> None:
    settings = PrivacySettings()
    Ledger(tmp_path / "state", 8.0, 1e-5).charge(settings, samples=100, noise=500.0, releases=3)

    found = page(tmp_path, Tally(), count_noise=500.0, policy={"most-epsilon": 8, "delta": 1e-5})

    assert found["fedrc_node_epsilon_limit"] == 8.0
    by_hand = epsilon_spent(math.sqrt(settings.cost(100, 500.0, 3)), 1e-5)
    assert 0 < by_hand < 8
    assert found["fedrc_node_epsilon_spent"] == pytest.approx(by_hand)


def test_a_ledger_that_cannot_be_read_leaves_the_rest(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "released.json").write_text("{")

    found = page(tmp_path, Tally(online=True))

    assert "fedrc_node_epsilon_spent" not in found
    assert found["fedrc_node_connected"] == 1.0


@pytest.mark.parametrize("samples", [-5, 0, 10**400])
def test_what_a_worker_says_about_samples_is_not_always_believed(
    tmp_path: Path, samples: int
) -> None:
    tally = Tally(worker_memory=10**400)
    tally.trained(samples)

    found = page(tmp_path, tally)

    assert found["fedrc_node_samples_total"] == 0.0
    assert "fedrc_node_memory_bytes worker" not in found


def test_the_endpoint_is_where_the_file_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    file = node_file(tmp_path, metrics=f"{HOST}:{port}")

    serve_node(file, Tally(online=True), time.monotonic)
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=30) as answer:
        found = values(answer.read().decode())

    assert found["fedrc_node_connected"] == 1.0
    assert f"http://{HOST}:{port}/metrics" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="cannot listen"):
        serve_node(file, Tally(), time.monotonic)


def test_without_the_key_there_is_no_port(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve_node(node_file(tmp_path), Tally(), time.monotonic)

    assert capsys.readouterr().out == ""


def test_a_port_that_is_taken_is_found_before_the_start(tmp_path: Path) -> None:
    with taken_port() as port:
        findings = list(check_node(node_file(tmp_path, metrics=f"{HOST}:{port}")))

    told = [finding.text for finding in findings if finding.level == ERROR]
    assert any(f"cannot listen on {HOST}:{port}" in text for text in told)
