"""Both endpoints and the log as JSON on a real federation, while its parts die."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from processes import Federation, fedrc, free_port, wait_until
from prometheus_client.parser import text_string_to_metric_families
from settings_of import PLAIN, dotted

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(1200)]
#: It looks like the end of a label, and like a line of its own.
ODD = "x} 1 fedrc_superlink_up{a=\\ 9"
PORTS: dict[str, int] = {}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three nodes that Prometheus may ask, one of them with an odd name."""
    made = Federation(tmp_path_factory.mktemp("federation"))
    made.superlink.arguments += ["--log", "json"]
    try:
        made.start()
        for partition in range(3):
            name = f"client-{partition}"
            PORTS[name] = free_port()
            odd, metrics = partition == 2, f"127.0.0.1:{PORTS[name]}"
            node = made.node(name, partition, register=not odd, metrics=metrics)
            if odd:
                site = made.folder / name
                written = (site / "node.yaml").read_text()
                renamed = written.replace(f"name: {name}\n", f"name: {json.dumps(ODD)}\n")
                (site / "node.yaml").write_text(renamed)
                done = fedrc("node", "register", made.file, site / "node.key.pub", "--name", ODD)
                assert done.returncode == 0, done.stderr
                node.arguments += ["--log", "json"]
            node.start()
        wait_until(
            lambda: "3 online" in fedrc("node", "list", made.file).stdout, "three nodes online"
        )
        yield made
    finally:
        made.stop()


def scraped(port: int) -> dict[tuple[str, ...], float]:
    """Every value by the metric's name and the values of its labels in their order by name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def flags(**settings: object) -> list[str]:
    common = {"clients": 3, "observers_per_concept": 0, "hidden": 16, "min_clients": 3}
    every = {**PLAIN, **dotted({**common, **settings})}
    return [f"{k}={json.dumps(v) if isinstance(v, bool) else v}" for k, v in every.items()]


def test_both_endpoints_tell_of_a_run(federation: Federation) -> None:
    run = federation.run("watched", *flags(rounds=4, evaluate_every=2))
    federation.wait_for_round("watched", 2)
    during = scraped(federation.metrics)
    assert federation.finish(run) == 0, run.log()
    wait_until(
        lambda: scraped(federation.metrics).get(("fedrc_run_status", "watched", "completed")) == 1,
        "the run's end",
    )
    after = scraped(federation.metrics)

    assert during["fedrc_superlink_up",] == 1
    assert during["fedrc_run_status", "watched", "running"] == 1
    assert ("fedrc_messages_outstanding", "watched") in during
    assert after["fedrc_rounds_total", "watched"] == after["fedrc_round", "watched"] == 4
    for name in ("client-0", "client-1", ODD):
        assert after["fedrc_node_online", name] == 1
        assert after["fedrc_replies_total", name, "good", "watched"] == 4
    rounds = federation.rounds("watched")
    assert after["fedrc_sent_bytes_total", "watched"] >= sum(e["bytes_down"] for e in rounds) > 0
    assert after["fedrc_phase_seconds_total", "training", "watched"] > 0
    assert ("fedrc_accuracy", "watched", "local") in after
    assert not [key for key in after if key[0] == "fedrc_run_phase"], "it does nothing any more"
    for name, port in PORTS.items():
        node = scraped(port)
        assert node["fedrc_node_connected",] == 1
        assert node["fedrc_node_messages_total", "train"] == 4
        assert node["fedrc_node_samples_total",] > 0
        assert not [key for key in node if str(federation.folder) in " ".join(key)], name


def test_the_endpoint_answers_when_the_server_app_has_died(federation: Federation) -> None:
    run = federation.run("killed", *flags(rounds=40))
    federation.wait_for_round("killed", 1)
    (server,) = federation.processes("flwr-serverapp")
    server.kill()

    assert federation.finish(run) == 1, run.log()
    wait_until(
        lambda: scraped(federation.metrics).get(("fedrc_run_status", "killed", "failed")) == 1,
        "the run's end",
    )
    found = scraped(federation.metrics)
    assert found["fedrc_rounds_total", "killed"] == len(federation.rounds("killed"))
    assert ("fedrc_run_status", "watched", "completed") in found


def test_logs_are_json_and_an_endpoint_ends_with_its_program(federation: Federation) -> None:
    node, other = federation.nodes["client-2"], federation.nodes["client-1"]
    node.stop_gently()
    other.kill()
    federation.superlink.kill()

    for port in (PORTS["client-2"], PORTS["client-1"], federation.metrics):
        wait_until(lambda port=port: not answers(port), "the port to close")  # type: ignore[misc]
    for part, program in ((federation.superlink, "superlink"), (node, "supernode")):
        records = [json.loads(line) for line in part.log().splitlines()]
        assert {record["program"] for record in records} == {program}
        assert {"time", "level", "message"} <= set(records[0])
        assert any(record["level"] == "INFO" for record in records)


def answers(port: int) -> bool:
    try:
        scraped(port)
    except (urllib.error.URLError, OSError):
        return False
    return True
