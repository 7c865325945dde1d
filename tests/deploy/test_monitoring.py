"""What Prometheus reads from a server: runs' files, the SuperLink's answers, and the port."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback import (
    HOST,
    at,
    free_port,
    make_certificates,
    superlink_file,
    superlink_yaml,
    taken_port,
)
from prometheus_client.parser import text_string_to_metric_families

from deploy.control import FlowerRun, Node
from deploy.fields import Address
from deploy.files import SuperLinkFile
from deploy.findings import ERROR, WARNING
from deploy.monitoring import endpoint, server
from deploy.monitoring.catalogue import MOST_NAMED, NODE, OTHERS, SERVER, Exposition, label
from deploy.monitoring.endpoint import Page, opened, serve_beside
from deploy.monitoring.runs import MOST_RUNS, Runs, WatchedRun
from deploy.monitoring.server import Server, SuperLink, status_of
from deploy.preflight import check_metrics, check_superlink
from fedrc_flwr.errors import LATE, ConfigError, RunError

Series = dict[tuple[str, ...], float]


def values(exposition: Exposition, name: str) -> Series:
    """A metric's values by the values of its labels, as Prometheus reads them."""
    return page_values(Page(exposition.families).text().decode(), name)


def page_values(page: str, name: str) -> Series:
    (labels,) = [metric.labels for metric in (*SERVER, *NODE) if metric.name == name][:1]
    return {
        tuple(sample.labels[each] for each in labels): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name
    }


def line(number: int, **changes: Any) -> dict[str, Any]:
    event: dict[str, Any] = {
        "event": "round", "round": number, "time": 1000.0 + number, "seconds": 2.0, "attempts": 1,
        "clusters": [0, 3], "shares": [0.25, 0.75], "members": [1, 3], "loss": 0.5,
        "bytes_down": 10, "bytes_up": 20, "replied": 2, "answered": ["a", "b"], "failed": {},
        "phases": {"training": 1.5, "waiting": 0.5}, "epsilon": 0.1 * number,
    }  # fmt: skip
    return event | changes


def write(directory: Path, *events: Any, tail: str = "") -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write("".join(json.dumps(event) + "\n" for event in events) + tail)


def exported(run: WatchedRun) -> Exposition:
    run.look()
    to = Exposition(SERVER)
    run.export(to)
    return to


# --- labels --------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.text(st.characters(), max_size=300))
def test_whatever_a_client_is_called_is_one_label_of_one_series(name: str) -> None:
    to = Exposition(SERVER)
    to.add("fedrc_node_online", 1, node=name)
    to.add("fedrc_superlink_up", 0)

    text = Page(to.families).text().decode()

    assert page_values(text, "fedrc_superlink_up") == {(): 0.0}
    (((found,), value),) = page_values(text, "fedrc_node_online").items()
    assert value == 1.0
    assert len(found) <= 128
    assert found.isprintable()


@pytest.mark.parametrize(
    "name",
    ['x"} 1\nfedrc_superlink_up 1\n#', "x\\", 'x",node="y', "\ud800", "a\u2028b", "\u202egnp.exe"],
)
def test_a_name_does_not_inject_a_line_or_a_label(name: str) -> None:
    to = Exposition(SERVER)
    to.add("fedrc_node_online", 1, node=name)

    lines = [line for line in generate_page(to).splitlines() if not line.startswith("#")]

    assert len(lines) == 1
    assert list(values(to, "fedrc_node_online")) == [(label(name),)]


def generate_page(to: Exposition) -> str:
    return Page(to.families).text().decode()


def test_two_names_that_become_the_same_share_a_series() -> None:
    to = Exposition(SERVER)
    for name in ("a\n", "a\t"):
        to.add("fedrc_enrolments_refused_total", 2, run="r", client=name)
        to.add("fedrc_node_online", 1, node=name)

    assert list(values(to, "fedrc_enrolments_refused_total").values()) == [4.0]
    assert list(values(to, "fedrc_node_online").values()) == [1.0]


# --- a run's files -------------------------------------------------------------------------------


def test_a_run_is_counted_by_hand(tmp_path: Path) -> None:
    write(
        tmp_path / "first",
        {"event": "refused", "client": "c", "reason": "no data", "time": 900.0},
        line(1),
        line(2, attempts=3, answered=["a"], failed={"b": LATE, "c": "error 2: it raised",
             "d": "too long"}, strikes={"d": "too long"}),
        {"event": "evaluation", "round": 2, "local_accuracy": 0.75, "global_accuracy": 0.5,
         "bytes_down": 3, "bytes_up": 4, "phases": {"evaluation": 0.5}, "time": 1002.5},
        line(3, answered=["a"], quarantined=["d"], epsilon=None, phases={"training": 2.0}),
    )  # fmt: skip

    to = exported(WatchedRun(tmp_path / "first"))

    run = ("first",)
    for name, expected in {
        "fedrc_rounds_total": 3.0, "fedrc_round_repeats_total": 2.0, "fedrc_round": 3.0,
        "fedrc_sent_bytes_total": 33.0, "fedrc_received_bytes_total": 64.0,
        "fedrc_last_round_timestamp_seconds": 1003.0, "fedrc_round_seconds": 2.0,
        "fedrc_clusters": 2.0, "fedrc_loss": 0.5,
    }.items():  # fmt: skip
        assert values(to, name) == {run: expected}, name
    assert values(to, "fedrc_replies_total") == {
        ("first", "a", "good"): 3.0, ("first", "b", "good"): 1.0, ("first", "b", "late"): 1.0,
        ("first", "c", "failed"): 1.0, ("first", "d", "refused"): 1.0,
    }  # fmt: skip
    assert values(to, "fedrc_phase_seconds_total") == {
        ("first", "training"): 5.0, ("first", "waiting"): 1.0, ("first", "evaluation"): 0.5,
    }  # fmt: skip
    assert values(to, "fedrc_enrolments_refused_total") == {("first", "c"): 1.0}
    assert values(to, "fedrc_client_quarantined") == {("first", "d"): 1.0}
    assert values(to, "fedrc_cluster_members") == {("first", "0"): 1.0, ("first", "3"): 3.0}
    assert values(to, "fedrc_cluster_share") == {("first", "0"): 0.25, ("first", "3"): 0.75}
    assert values(to, "fedrc_epsilon_spent") == {}, "none can be claimed any more"
    assert values(to, "fedrc_accuracy") == {("first", "local"): 0.75, ("first", "global"): 0.5}


def test_a_torn_line_counts_once_it_is_whole(tmp_path: Path) -> None:
    run = WatchedRun(tmp_path / "first")
    whole = json.dumps(line(2))
    write(tmp_path / "first", line(1), tail=whole[:40])

    before = values(exported(run), "fedrc_rounds_total")
    write(tmp_path / "first", tail=whole[40:] + "\n")
    after = values(exported(run), "fedrc_rounds_total")

    assert (before, after) == ({("first",): 1.0}, {("first",): 2.0})
    assert values(exported(run), "fedrc_rounds_total") == after


@pytest.mark.parametrize("grown", [False, True], ids=["shorter", "longer than before"])
def test_a_resumed_run_goes_on_counting(tmp_path: Path, grown: bool) -> None:
    run, path = WatchedRun(tmp_path / "first"), tmp_path / "first" / "metrics.jsonl"
    write(tmp_path / "first", *(line(n) for n in (1, 2, 3)))
    run.look()

    path.unlink()  # as MetricsLog.rewind does: another file takes its place
    write(tmp_path / "first", line(1), line(2))
    if not grown:
        run.look()
    write(tmp_path / "first", line(3, time=2000.0), line(4, time=2001.0))

    to = exported(run)
    assert values(to, "fedrc_rounds_total") == {("first",): 5.0}, "the third round took place twice"
    assert values(to, "fedrc_round") == {("first",): 4.0}


def test_lines_of_the_same_moment_all_count(tmp_path: Path) -> None:
    run = WatchedRun(tmp_path / "first")
    write(tmp_path / "first", line(1, time=1000.0), line(2, time=1000.0), line(3, time=999.9))

    assert values(exported(run), "fedrc_rounds_total") == {("first",): 3.0}


def test_a_large_federation_has_series_for_some_of_its_clients(tmp_path: Path) -> None:
    names = [f"client-{n}" for n in range(MOST_NAMED + 50)]
    write(tmp_path / "a", line(1, answered=[], replied=300, failed=dict.fromkeys(names, LATE)))

    found = values(exported(WatchedRun(tmp_path / "a")), "fedrc_replies_total")

    assert len(found) == MOST_NAMED + 2
    assert found["a", OTHERS, "late"] == 50.0
    assert found["a", OTHERS, "good"] == 300.0


def test_what_a_run_does_at_the_moment_is_told_while_it_is_fresh(tmp_path: Path) -> None:
    write(tmp_path / "a", line(1))
    status = {"time": time.time(), "phase": "training", "outstanding": 3, "memory": 5e8}
    (tmp_path / "a" / "status.json").write_text(json.dumps(status))
    run = WatchedRun(tmp_path / "a")

    to = exported(run)

    assert values(to, "fedrc_run_phase") == {("a", "training"): 1.0}
    assert values(to, "fedrc_messages_outstanding") == {("a",): 3.0}
    assert values(to, "fedrc_run_memory_bytes") == {("a",): 5e8}
    (tmp_path / "a" / "status.json").write_text(json.dumps(status | {"time": 1e9}))
    assert values(exported(run), "fedrc_run_phase") == {}
    assert not run.alive


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(max_examples=200)
@given(
    st.dictionaries(st.sampled_from([*line(1), "strikes", "quarantined", "local_accuracy"]), JSON)
)
def test_no_line_of_a_file_stops_the_others(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]
) -> None:
    directory = tmp_path_factory.mktemp("outputs") / "a"
    damaged = json.dumps({**line(1), **changes, "event": "round", "time": 1001.0})
    deep = "[" * 100_000
    write(directory, tail=f"{damaged}\n{deep}\n\0\xff\n{'9' * 5000}\n")
    write(directory, line(2))
    (directory / "status.json").write_text(json.dumps(changes))

    to = exported(WatchedRun(directory))

    assert values(to, "fedrc_rounds_total") == {("a",): 2.0}
    assert values(to, "fedrc_round") == {("a",): 2.0}


def test_only_the_runs_that_wrote_last_are_exported_and_nothing_is_followed(tmp_path: Path) -> None:
    for number in range(MOST_RUNS + 3):
        write(tmp_path / f"run-{number}", line(1))
        os.utime(tmp_path / f"run-{number}" / "metrics.jsonl", (number, number))
    write(tmp_path.parent / "elsewhere", line(1))
    (tmp_path / "link").symlink_to(tmp_path.parent / "elsewhere")
    (tmp_path / "file").write_text("no run")
    (tmp_path / f"run-{MOST_RUNS}" / "metrics.jsonl").unlink()
    os.mkfifo(tmp_path / f"run-{MOST_RUNS}" / "metrics.jsonl")
    runs = Runs(tmp_path)

    runs.look()

    assert len(runs.watched) == MOST_RUNS
    assert "link" not in runs.watched
    assert "run-0" not in runs.watched
    assert f"run-{MOST_RUNS}" in runs.watched, "a pipe is not read, and not waited for"
    Runs(tmp_path / "missing").look()


# --- the SuperLink -------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> SuperLinkFile:
    make_certificates(tmp_path / "certificates")
    return superlink_file(tmp_path, metrics=f"{HOST}:{free_port()}")


def answering(
    monkeypatch: pytest.MonkeyPatch, nodes: list[Node], runs: list[FlowerRun]
) -> list[str]:
    asked: list[str] = []
    monkeypatch.setattr(server, "nodes_of", lambda file: asked.append("nodes") or nodes)
    monkeypatch.setattr(server, "runs_of", lambda file: asked.append("runs") or runs)
    return asked


def page_of(made: Server) -> str:
    return Page(made.collect).text().decode()


def test_nodes_runs_and_certificates_of_a_server(
    file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [Node(1, "a", "online"), Node(2, "b", "offline"), Node(3, "", "registered")]
    runs = [
        FlowerRun(9, "waits", "pending"), FlowerRun(8, "first", "running"),
        FlowerRun(7, "first", "finished:failed"), FlowerRun(6, "old", "finished:completed"),
    ]  # fmt: skip
    answering(monkeypatch, nodes, runs)
    write(file.outputs / "first", line(1))
    write(file.outputs / "old", line(1), {"event": "end", "status": "failed"})

    page = page_of(Server(file, os.getpid()))

    assert page_values(page, "fedrc_superlink_up") == {(): 1.0}
    assert page_values(page, "fedrc_nodes") == {
        ("online",): 1.0, ("offline",): 1.0, ("never online",): 1.0,
    }  # fmt: skip
    assert page_values(page, "fedrc_node_online") == {
        ("a",): 1.0, ("b",): 0.0, ("node 3",): 0.0,
    }  # fmt: skip
    assert set(page_values(page, "fedrc_run_status")) == {
        ("waits", "pending"), ("first", "running"), ("old", "failed"),
    }  # fmt: skip
    assert set(page_values(page, "fedrc_rounds_total")) == {("first",), ("old",)}
    expiry = page_values(page, "fedrc_certificate_expiry_timestamp_seconds")
    assert set(expiry) == {("authority",), ("server",)}
    assert min(expiry.values()) > time.time()
    assert page_values(page, "fedrc_superlink_memory_bytes") == {(): 0.0}, (
        "this process is left out"
    )


def test_the_date_is_that_of_the_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at(monkeypatch, -5000):
        make_certificates(tmp_path / "certificates")
    answering(monkeypatch, [], [])

    page = page_of(Server(superlink_file(tmp_path), os.getpid()))

    expiry = page_values(page, "fedrc_certificate_expiry_timestamp_seconds")
    assert expiry["server",] < time.time()


@pytest.mark.parametrize(
    ("flower", "own", "alive", "expected"),
    [
        ("pending", "", False, "pending"),
        ("pending", "failed", False, "pending"),
        ("starting", "", False, "running"),
        ("running", "failed", True, "running"),
        ("finished:completed", "completed", False, "completed"),
        ("finished:completed", "failed", False, "failed"),
        ("finished:failed", "", True, "failed"),
        ("finished:stopped", "", False, "stopped"),
        ("", "completed", False, "completed"),
        ("", "", True, "running"),
        ("", "", False, "unknown"),
    ],
)
def test_a_runs_status_is_flowers_unless_the_run_knows_better(
    flower: str, own: str, alive: bool, expected: str
) -> None:
    assert status_of(flower, own, alive) == expected


def test_the_superlink_is_not_asked_with_every_scrape(
    file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answering(monkeypatch, [], [])
    made = Server(file, os.getpid())

    for _ in range(5):
        page_of(made)

    assert asked == ["nodes", "runs"]


def test_a_superlink_that_is_away_or_hangs_is_down(
    file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ASK_SECONDS", -1.0)
    monkeypatch.setattr(server, "WAIT_SECONDS", 0.05)
    answering(monkeypatch, [Node(1, "a", "online")], [])
    link, hanging = SuperLink(file), threading.Event()
    link.refresh()
    first = link.up

    def hang(file: SuperLinkFile) -> list[Node]:
        hanging.wait()
        raise RunError("away")

    monkeypatch.setattr(server, "nodes_of", hang)
    link.refresh()
    while_it_hangs = link.up
    hanging.set()
    link.refresh()

    assert (first, while_it_hangs, link.up) == (True, False, False)
    write(file.outputs / "first", line(1))
    page = page_of(Server(file, os.getpid()))
    assert page_values(page, "fedrc_superlink_up") == {(): 0.0}
    assert page_values(page, "fedrc_node_online") == {}
    assert page_values(page, "fedrc_rounds_total") == {("first",): 1.0}


# --- the port ------------------------------------------------------------------------------------


@pytest.fixture
def served() -> Iterator[tuple[int, list[int]]]:
    """An endpoint, and how often its values were collected."""
    collected: list[int] = []

    def collect() -> Any:
        collected.append(1)
        to = Exposition(SERVER)
        to.add("fedrc_superlink_up", 1)
        return to.families()

    port = free_port()
    serving = serve_beside(Address(HOST, port), collect)
    yield port, collected
    serving.shutdown()
    serving.server_close()


def fetch(port: int, path: str = "/metrics", **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(f"http://{HOST}:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_prometheus_gets_its_page_and_nothing_else_is_there(
    served: tuple[int, list[int]],
) -> None:
    port, _ = served

    status, page = fetch(port)

    assert status == 200
    assert page_values(page, "fedrc_superlink_up") == {(): 1.0}
    assert fetch(port, "/metrics?name[]=x")[0] == 200
    assert fetch(port, "/../etc/passwd")[0] == 404
    assert fetch(port, Host="localhost:1")[0] == 200
    assert fetch(port, Host="[::1]:9100")[0] == 200
    assert fetch(port, Host="evil.example.org")[0] == 421


def test_a_storm_of_scrapes_makes_one_page(
    served: tuple[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "KEPT_SECONDS", 3600.0)
    port, collected = served
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(fetch(port)[0])) for _ in range(100)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert answers == [200] * 100
    assert len(collected) == 1


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with taken_port() as port:
        with pytest.raises(ConfigError, match=f"metrics = {HOST}:{port}: cannot listen"):
            opened(Address(HOST, port), list)
        make_certificates(tmp_path / "certificates")
        findings = list(check_superlink(superlink_file(tmp_path, metrics=f"{HOST}:{port}")))

    errors = [finding.text for finding in findings if finding.level == ERROR]
    assert len(errors) == 1
    assert f"cannot listen on {HOST}:{port}" in errors[0]


def test_metrics_that_others_can_read_are_warned_of() -> None:
    assert list(check_metrics(None)) == list(check_metrics(Address("::1", 9100))) == []
    (finding,) = check_metrics(Address("0.0.0.0", 9100))
    assert finding.level == WARNING


def test_without_the_key_there_is_no_port(tmp_path: Path) -> None:
    assert superlink_file(tmp_path).metrics is None
    with pytest.raises(ConfigError, match="metrics is missing"):
        server.main(superlink_yaml(tmp_path), os.getpid())


def test_the_endpoint_is_a_program_that_ends_with_the_superlink(tmp_path: Path) -> None:
    make_certificates(tmp_path / "certificates")
    port = free_port()
    path = superlink_yaml(tmp_path, metrics=f"{HOST}:{port}")
    # A parent that is killed and that nobody waits for, as a SuperLink may be.
    body = (
        "import os, pathlib, subprocess, time\n"
        "from deploy.launch import monitor_command\n"
        f"path = pathlib.Path({str(path)!r})\n"
        "subprocess.Popen(monitor_command(path, os.getpid()))\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", body], stdout=subprocess.DEVNULL) as parent:
        while not answers(port):
            assert parent.poll() is None
        status, page = fetch(port)
        parent.kill()
        while answers(port):
            pass

    assert status == 200
    assert page_values(page, "fedrc_superlink_up") == {(): 0.0}


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
