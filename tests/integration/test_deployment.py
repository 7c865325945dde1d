"""The deployment engine on real processes: TLS, authentication, and what happens when parts die."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from apps import misbehaving_app
from processes import Federation, Part, fedrc, wait_until
from settings_of import PLAIN, configured, dotted

from deploy.files import read_superlink_file
from deploy.launch import node_program
from deploy.submit import run as submit
from fedrc_flwr.checkpoint import latest_checkpoint
from fedrc_flwr.simulation import IN_PROCESS, run_here
from fedrc_flwr.state import ServerState

SETTINGS = {
    "clients": 3,
    "observers_per_concept": 1,
    "rounds": 4,
    "hidden": 16,
    "epochs": 5,
    "batch_size": 32,
    "evaluate_every": 4,
    "e_step": "adam",
    "adaptive": True,
    "settle_tolerance": 1.0,
    "settle_loss": 100.0,
    "settle_rounds": 2,
    "remove_below": 0.33,
    "min_clients": 3,
}


def flags(**changes: object) -> list[str]:
    settings = {**PLAIN, **dotted({**SETTINGS, **changes})}
    return [f"{k}={json.dumps(v) if isinstance(v, bool) else v}" for k, v in settings.items()]


pytestmark = [pytest.mark.deployment, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three training nodes and an observer, as the runbook sets them up."""
    made = Federation(tmp_path_factory.mktemp("federation"))
    try:
        made.start()
        for partition in range(3):
            # Some of the apps below are broken on purpose.
            apps = "{apps: [installed, any]}"
            made.node(f"client-{partition}", partition, policy=apps).start()
        made.node("observer-0", 3, role="observe", policy="{apps: [installed, any]}").start()
        wait_until(
            lambda: "4 nodes registered, 4 online" in fedrc("node", "list", made.file).stdout,
            "four nodes online",
        )
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same scenario without any disturbance, in this process."""
    directory = tmp_path_factory.mktemp("simulated") / "run"
    outcome = run_here(configured(**SETTINGS), directory, lambda event: None, IN_PROCESS)
    assert outcome.completed, outcome.reason
    return directory


def state_of(directory: Path) -> ServerState:
    return latest_checkpoint(directory / "checkpoints")[0].state


def assert_same_models(one: ServerState, other: ServerState, tolerance: float) -> None:
    assert one.round == other.round
    assert one.clusters == other.clusters
    for cluster, model in one.models.items():
        np.testing.assert_allclose(other.models[cluster], model, atol=tolerance)


def test_a_deployment_trains_to_the_accuracy_of_the_simulation(
    federation: Federation, simulated: Path
) -> None:
    run = federation.run("plain", *flags())

    assert federation.finish(run) == 0, run.log()

    assert f"results in {federation.outputs / 'plain'}" in run.log()
    summary = json.loads((federation.outputs / "plain" / "summary.json").read_text())
    expected = json.loads((simulated / "summary.json").read_text())
    assert summary["local_accuracy"] == pytest.approx(expected["local_accuracy"], abs=0.02)
    assert_same_models(state_of(simulated), state_of(federation.outputs / "plain"), 1e-5)
    assert len(state_of(simulated).clusters) < 3


def test_strangers_are_refused_and_seen_while_the_run_goes_on(federation: Federation) -> None:
    run = federation.run("strangers", *flags(rounds=2, evaluate_every=2))
    unregistered = federation.node("unregistered", 0, register=False)
    stolen = federation.node("stolen", 0, register=False)
    # The public half of a registered node is no secret; its private half is what counts.
    public = (federation.folder / "client-0" / "node.key.pub").read_bytes()
    (federation.folder / "stolen" / "node.key.pub").write_bytes(public)
    other = federation.folder / "other-authority"
    assert fedrc("certs", "init", other, "--name", "127.0.0.1").returncode == 0
    wrong_ca = federation.node("wrong-ca", 0, register=False)
    (federation.folder / "wrong-ca" / "ca.crt").write_bytes((other / "ca.crt").read_bytes())
    plain = federation.node("plain-text", 0, register=False, ca=None, key=None, insecure=True)

    # Past the checks of `fedrc supernode`: the server itself refuses it, too.
    command = node_program(federation.folder / "stolen" / "node.yaml")
    forced = Part(federation.folder, "forced", command, federation.mark)

    for node in (unregistered, stolen, wrong_ca, plain, forced):
        node.start()
        wait_until(lambda node=node: not node.running(), f"{node.name} to be refused")  # type: ignore[misc]
        assert node.process is not None
        assert node.process.returncode != 0

    assert "was not issued by" in wrong_ca.log()
    assert "it may expect TLS" in plain.log()
    for node in (unregistered, stolen):
        assert "this node is not registered" in node.log(), node.log()
    assert "does not know this node's key" in forced.log(), forced.log()
    refused = "activate-node: this key is not registered"
    assert refused in federation.superlink.log(), federation.superlink.log()[-2000:]
    assert federation.finish(run) == 0, run.log()
    assert all(e["sampled"] == 3 and not e["failed"] for e in federation.rounds("strangers"))


def test_a_node_killed_in_mid_training_comes_back_with_its_weights(federation: Federation) -> None:
    victim = federation.nodes["client-1"]
    run = federation.run("node-killed", *flags(rounds=5, epochs=60))
    federation.wait_for_round("node-killed", 2)
    wait_until(lambda: federation.at_work("client-1"), "client-1 at work")

    victim.kill()
    wait_until(
        lambda: not federation.processes("deploy.node.worker", "client-1"), "its worker to be gone"
    )
    federation.wait_for_round("node-killed", 3)

    def back() -> bool:
        # As systemd would: it is refused until its old session has expired.
        if not victim.running():
            victim.start()
        return "4 online" in fedrc("node", "list", federation.file).stdout

    wait_until(back, "the node to be let in again")
    assert federation.finish(run) == 0, run.log()
    rounds = federation.rounds("node-killed")
    third = rounds[2]
    assert third["replied"] >= 2
    assert any("client-1" in e["failed"] for e in rounds)
    assert not any(e["started_afresh"] for e in rounds)
    states = (federation.folder / "client-1" / "state" / "node-killed" / "client-1").iterdir()
    assert max(path.stem for path in states) >= "round-000002"


def test_a_node_stopped_in_mid_training_signs_off_and_its_successor_is_let_in_at_once(
    federation: Federation,
) -> None:
    node = federation.nodes["client-1"]
    wait_until(lambda: federation.online() == 4, "everybody, after what came before")
    # Rounds enough for the successor to take part in the last of them, and long enough to be
    # stopped in the middle of one. They begin with everybody: enrolling is work, too.
    run = federation.run("node-stopped", *flags(rounds=14, epochs=250, min_clients=3))
    federation.wait_for_round("node-stopped", 1)
    wait_until(lambda: not federation.at_work("client-1"), "client-1 between two rounds")
    wait_until(lambda: federation.at_work("client-1"), "client-1 at work")
    said = len(node.log())

    node.stop_gently()
    assert "signed off" in node.log()[said:]
    assert not federation.processes("deploy.node", "client-1")
    node.start()

    wait_until(lambda: "signed on" in node.log()[said:], "the successor")
    assert "an earlier session" not in node.log()[said:]
    assert federation.finish(run) == 0, run.log()
    rounds = federation.rounds("node-stopped")
    reasons = [reason for e in rounds for name, reason in e["failed"].items() if name == "client-1"]
    assert reasons
    assert all("stopped while it worked" in reason for reason in reasons)
    assert rounds[-1]["replied"] == 3


def test_an_app_of_another_version_in_mid_life_gets_a_worker_of_its_own(
    federation: Federation, simulated: Path, tmp_path: Path
) -> None:
    assert federation.finish(federation.run("version-a", *flags())) == 0
    (first,) = federation.processes("deploy.node.worker", "client-0")
    marker = tmp_path / "imported"
    app = misbehaving_app(
        tmp_path,
        f"    pathlib.Path({str(marker)!r}).touch()\n    return honest.train(message, context)\n",
    )
    server = read_superlink_file(federation.file)

    done = submit(server, configured(**SETTINGS), "version-b", lambda event: None, app=app)

    assert done.completed, done.reason
    assert marker.exists()
    (second,) = federation.processes("deploy.node.worker", "client-0")
    assert second.pid != first.pid
    marker.unlink()
    assert federation.finish(federation.run("version-a-again", *flags())) == 0
    assert not marker.exists()
    for name in ("version-a", "version-b", "version-a-again"):
        assert_same_models(state_of(simulated), state_of(federation.outputs / name), 1e-5)


def test_flowers_own_supernode_takes_part_beside_resident_nodes(federation: Federation) -> None:
    leaver = federation.nodes["client-2"]
    leaver.stop_gently()
    file = federation.folder / "client-2" / "node.yaml"
    resident = file.read_text()
    file.write_text(f"{resident}supernode: flower\n")
    try:
        leaver.start()
        wait_until(lambda: "SuperNode ID" in leaver.log(), "Flower's own SuperNode")
        run = federation.run("fallback", *flags(rounds=2, evaluate_every=2))
        assert federation.finish(run) == 0, run.log()
        assert "node.yaml says so" in leaver.log()
        assert all(event["replied"] == 3 for event in federation.rounds("fallback"))
    finally:
        leaver.stop_gently()
        file.write_text(resident)
        leaver.start()
        wait_until(lambda: federation.online() == 4, "the resident node again")


def test_a_killed_server_app_is_resumed_to_the_same_models(
    federation: Federation, simulated: Path
) -> None:
    run = federation.run("server-killed", *flags(), retries=1)
    federation.wait_for_round("server-killed", 2)

    (server,) = federation.processes("flwr-serverapp")
    server.kill()

    assert federation.finish(run) == 0, run.log()
    assert [e["round"] for e in federation.rounds("server-killed")] == [1, 2, 3, 4]
    assert_same_models(state_of(simulated), state_of(federation.outputs / "server-killed"), 1e-5)


def test_a_superlink_killed_and_restarted_loses_nothing(
    federation: Federation, simulated: Path
) -> None:
    run = federation.run("superlink-killed", *flags(), retries=1)
    federation.wait_for_round("superlink-killed", 2)

    federation.superlink.kill()
    federation.superlink.start()
    federation.wait_for_superlink()

    assert federation.finish(run) == 0, run.log()
    assert all(not e["failed"] for e in federation.rounds("superlink-killed"))
    assert_same_models(state_of(simulated), state_of(federation.outputs / "superlink-killed"), 1e-5)


def test_a_superlink_that_comes_back_late_gets_the_run_resumed(
    federation: Federation, simulated: Path
) -> None:
    run = federation.run("superlink-late", *flags(), retries=2)
    federation.wait_for_round("superlink-late", 2)

    federation.superlink.kill()
    time.sleep(100)  # longer than the heartbeats of nodes and ServerApp last
    federation.superlink.start()
    federation.wait_for_superlink()

    assert federation.finish(run, seconds=900) == 0, run.log()
    assert [e["round"] for e in federation.rounds("superlink-late")] == [1, 2, 3, 4]
    assert_same_models(state_of(simulated), state_of(federation.outputs / "superlink-late"), 1e-5)


def test_the_doctor_finds_both_sides_well_and_says_what_is_not(federation: Federation) -> None:
    server = fedrc("doctor", "--server", federation.file)
    node_file = federation.folder / "client-0" / "node.yaml"
    node = fedrc("doctor", "--node", node_file)
    broken = federation.folder / "broken.yaml"
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        text = node_file.read_text().replace(str(federation.port), str(port))
        (broken.parent / "client-0" / "broken.yaml").write_text(text)
        lost = fedrc("doctor", "--node", broken.parent / "client-0" / "broken.yaml")

    assert server.returncode == 0, server.stdout
    assert "SERVING" in server.stdout
    assert "4 online" in server.stdout
    assert "certificate valid for" in server.stdout
    assert node.returncode == 0, node.stdout
    assert "clocks agree" in node.stdout
    assert lost.returncode == 1
    assert "does not answer" in lost.stdout


# Busy until it is let go, which the test does two rounds later; else 20 deadlines long.
SLOW_CLIENT = """
    if who == 2 and round_number == 1:
        for _ in range(20 * 30):
            if pathlib.Path("{release}").exists():
                break
            time.sleep(1)
    return honest.train(message, context)
"""


def test_a_slow_node_costs_a_deadline_and_its_late_reply_is_dropped(
    federation: Federation, tmp_path: Path
) -> None:
    release = tmp_path / "release"
    app = misbehaving_app(tmp_path, SLOW_CLIENT.format(release=release))
    changes = {"rounds": 16, "evaluate_every": 100, "deadline": 30.0}
    config = configured(**{**SETTINGS, **changes})
    waited = []

    def on_event(event: dict[str, object]) -> None:
        if event["event"] == "round":
            waited.append(event)
        if len(waited) == 2:
            release.touch()

    done = submit(read_superlink_file(federation.file), config, "slow", on_event, app=app)

    assert done.completed, done.reason
    rounds = federation.rounds("slow")
    assert rounds[0]["failed"] == {"client-2": "no reply before the deadline"}
    assert all(event["replied"] >= 2 for event in rounds)
    # It stays enrolled; silent twice in a row, it is left alone for one round. How soon it is back
    # after that depends on what it still has to do.
    assert [event["sampled"] for event in rounds[:4]] == [3, 3, 2, 3]
    # It did its first round late: it has weights from then on, but no round counted that reply.
    assert not any(event["started_afresh"] for event in rounds)
    assert [event["replied"] for event in rounds[:2]] == [2, 2]
    assert rounds[-1]["replied"] == 3


def test_nodes_join_late_leave_and_come_back_after_a_cluster_was_removed(
    federation: Federation,
) -> None:
    late = federation.node("client-3", 3, role="train")
    leaver = federation.nodes["client-0"]
    settings = flags(
        clients=4,
        rounds=30,
        min_clients=3,
        evaluate_every=100,
        settle_rounds=5,
        remove_below=0.34,
        epochs=60,
    )
    run = federation.run("coming-and-going", *settings)
    federation.wait_for_round("coming-and-going", 2)
    late.start()
    federation.wait_for_round("coming-and-going", 4)
    leaver.stop_gently()

    def someone_was_removed() -> bool:
        return any(event["removed"] for event in federation.rounds("coming-and-going"))

    wait_until(someone_was_removed, "a cluster to be removed", 400)

    def back() -> bool:
        if not leaver.running():
            leaver.start()
        return "5 online" in fedrc("node", "list", federation.file).stdout

    wait_until(back, "the node to be back")

    assert federation.finish(run) == 0, run.log()
    rounds = federation.rounds("coming-and-going")
    assert rounds[0]["sampled"] == 3
    assert max(event["sampled"] for event in rounds) == 4
    assert min(event["replied"] for event in rounds) >= 2
    assert not any("client-0" in event["started_afresh"] for event in rounds)
    for event in rounds:
        assert sum(event["shares"]) == pytest.approx(1.0)
        assert all(np.isfinite(event["shares"]))


def test_a_superlink_in_memory_forgets_its_nodes_and_its_run_which_is_resumed(
    tmp_path: Path, simulated: Path
) -> None:
    forgetful = Federation(tmp_path, database="memory")
    try:
        forgetful.start()
        names = [*(f"client-{n}" for n in range(3)), "observer-0"]
        for partition, name in enumerate(names):
            role = "observe" if name == "observer-0" else "train"
            forgetful.node(name, partition, role=role).start()
        run = forgetful.run("forgotten", *flags())
        forgetful.wait_for_round("forgotten", 2)

        forgetful.superlink.kill()
        forgetful.superlink.start()
        forgetful.wait_for_superlink()

        assert forgetful.finish(run) != 0
        listed = fedrc("node", "list", forgetful.file).stdout
        assert not any(name in listed for name in names), listed
        assert not list((tmp_path / "state").glob("*.db*"))
        for name in names:
            key = tmp_path / name / "node.key.pub"
            done = fedrc("node", "register", forgetful.file, key, "--name", name)
            assert done.returncode == 0, done.stderr
        for name in names:  # a node whose key is unknown ends; systemd would start it again
            if not forgetful.nodes[name].running():
                forgetful.nodes[name].start()
        again = forgetful.run("forgotten", *flags(), resume=True)
        assert forgetful.finish(again, seconds=900) == 0, again.log()
        assert [e["round"] for e in forgetful.rounds("forgotten")] == [1, 2, 3, 4]
        assert_same_models(state_of(simulated), state_of(forgetful.outputs / "forgotten"), 1e-5)
    finally:
        forgetful.stop()
