"""The images and Compose files of docker/ on a real engine."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from containers import (
    ENGINE,
    LASTING,
    OBSERVING,
    ROOT,
    SKIPPED,
    TRAINING,
    USER,
    Project,
    attempt,
    build_settings,
    call,
    rounds,
)
from processes import wait_until

from fedrc_flwr.checkpoint import latest_checkpoint
from fedrc_flwr.config import load_config
from fedrc_flwr.simulation import IN_PROCESS, run_here

pytestmark = [pytest.mark.docker, pytest.mark.timeout(3600)]

IMAGES = ("fedrc-flwr-server", "fedrc-flwr-client")
RUN = [
    "run", "/etc/fedrc/superlink.yaml", "--scenario=digits-edge", "--recipe=edge", "--set=seed=1",
    "--set=federation.enrolment-timeout=600",
]  # fmt: skip
# A key's first line and the beginning of what it holds: code that only names the line is none.
KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{40}")


@pytest.fixture(scope="session")
def settings() -> Iterator[dict[str, str]]:
    """An engine with the images built, and the variables under which they were."""
    try:
        for step in ("start", "images"):
            done = attempt(ENGINE, step, timeout=3000)
            if done.returncode == SKIPPED:
                pytest.skip(done.stdout.strip().splitlines()[-1])
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        yield build_settings()
    finally:
        call(ENGINE, "stop")


def lend(folder: Path) -> Path:
    """A new directory for the containers' user, who is not root even where root runs the tests."""
    folder.mkdir()
    if os.getuid() == 0:
        os.chown(folder, USER, USER)
    return folder


def identity() -> dict[str, str]:
    """The user that containers run as."""
    uid, gid = (USER, USER) if os.getuid() == 0 else (os.getuid(), os.getgid())
    return {"FEDRC_UID": str(uid), "FEDRC_GID": str(gid)}


def published() -> list[str]:
    """Addresses on which Docker listens on this host for the sake of a container."""
    forwarders = (p for p in psutil.process_iter(["name", "cmdline"]) if p.info["name"])
    return [" ".join(p.info["cmdline"]) for p in forwarders if p.info["name"] == "docker-proxy"]


def test_the_demo_runs_to_the_accuracy_of_the_simulation(
    settings: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    outputs = tmp_path / "outputs"
    project = Project("fedrc", ["compose.yml"], identity())
    before = published()
    with open(tmp_path / "demo.log", "wb") as log:
        demo = subprocess.Popen(
            [str(ROOT / "docker" / "demo")], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            env={**os.environ, **settings, "FEDRC_OUTPUTS": str(outputs)},
            start_new_session=True,
        )  # fmt: skip
    request.addfinalizer(lambda: demo.poll() is None and os.killpg(demo.pid, signal.SIGTERM))
    wait_until(lambda: len(list(outputs.glob("*/metrics.jsonl"))) == 1, "the run to start", 900)
    (directory,) = outputs.iterdir()
    wait_until(lambda: len(rounds(directory)) >= 1, "a round", 300)

    health = project.health()
    assert set(health) == set(LASTING)
    assert set(health.values()) == {"healthy"}, health
    for name, container in project.containers().items():
        processes = call("docker", "top", container["Id"], "-eo", "pid,uid,args").splitlines()[1:]
        assert processes
        assert not [line for line in processes if line.split()[1] == "0"], (name, processes)
        assert container["HostConfig"]["PortBindings"] in (None, {}), name
        assert container["HostConfig"]["ReadonlyRootfs"], name
        # Not the host's own network, where whatever listens listens on the host; and nodes are not
        # in the network of those who control the run.
        node = name.startswith(("client-", "observer-"))
        expected = {"fedrc_federation"} if node else {"fedrc_control"}
        expected |= {"fedrc_federation"} if name == "superlink" else set()
        assert set(container["NetworkSettings"]["Networks"]) == expected, name
    assert published() == before
    assert demo.wait(1800) == 0, (tmp_path / "demo.log").read_text()[-3000:]

    shown = (tmp_path / "demo.log").read_text()
    for number in range(1, 1 + len(rounds(directory))):
        assert re.search(rf"^round +{number}/", shown, re.MULTILINE), shown
    assert "adjusted Rand index" in shown
    assert project.containers() == {}
    for path in [directory, *directory.rglob("*")]:
        assert (path.stat().st_uid, path.stat().st_gid) == (os.getuid(), os.getgid()), path
    assert (directory / "mixture_weights.png").stat().st_size > 0
    assert latest_checkpoint(directory / "checkpoints")[0].state.round == len(rounds(directory))
    config = load_config({"scenario": "digits-edge", "recipe": "edge", "seed": 1})
    simulated = run_here(config, tmp_path / "simulated", lambda event: None, IN_PROCESS)
    assert simulated.completed, simulated.reason
    summary = json.loads((directory / "summary.json").read_text())
    for name in ("local_accuracy", "global_accuracy", "adjusted_rand_index"):
        assert summary[name] == pytest.approx(simulated.summary[name], abs=0.02), name
    assert summary["adjusted_rand_index"] == 1.0


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_holds_no_key_no_compiler_no_cache_and_only_pinned_packages(
    image: str, settings: dict[str, str], tmp_path: Path
) -> None:
    call("docker", "save", image, "--output", tmp_path / "image.tar")
    names = []
    with tarfile.open(tmp_path / "image.tar") as saved:
        layers = [m for m in saved.getmembers() if m.isfile() and _is_layer(saved, m)]
        assert len(layers) >= 3
        for layer in layers:
            with tarfile.open(fileobj=saved.extractfile(layer)) as content:
                for member in content:
                    names.append(member.name.removeprefix("./"))
                    file = content.extractfile(member) if member.isfile() else None
                    if file is not None and member.size < 1_000_000:
                        assert not KEY.search(file.read()), member.name
                    assert not member.name.endswith((".key", "id_rsa", "id_ecdsa", ".secret"))
    (tmp_path / "image.tar").unlink()

    programs = {Path(name).name for name in names if "bin/" in name}
    assert "fedrc" in programs
    assert not programs & {"gcc", "cc", "c++", "g++", "clang", "ld", "make", "cargo"}
    assert not [name for name in names if re.match(r"(certificates|var/lib/fedrc)/.", name)]
    # Debian's own venv keeps its wheels below /usr.
    wheels = [name for name in names if name.endswith(".whl") and not name.startswith("usr/")]
    assert not wheels + [name for name in names if "/.cache/" in name]
    user = json.loads(call("docker", "inspect", image))[0]["Config"]["User"]
    assert user not in ("", "root", "0")
    lister = (
        "import importlib.metadata as m; print(*(d.name+'=='+d.version for d in m.distributions()))"
    )
    entry = ("docker", "run", "--rm", "--entrypoint", "/opt/fedrc/bin/python3", image)
    installed = {_plain(one) for one in call(*entry, "-I", "-c", lister).split()}
    pinned = {_plain(line.split(";")[0].strip())
              for line in (ROOT / "docker" / "constraints.txt").read_text().splitlines()
              if "==" in line and not line.startswith("#")}  # fmt: skip
    ours = {one for one in installed if one.startswith("fedrc-flwr==")}
    assert len(ours) == 1
    assert installed - ours <= pinned, installed - ours - pinned
    assert not [one for one in installed if one.startswith(("ray==", "nvidia"))]


def _is_layer(saved: tarfile.TarFile, member: tarfile.TarInfo) -> bool:
    file = saved.extractfile(member)
    assert file is not None
    return member.size >= 512 and file.read(262)[257:262] == b"ustar"


def _plain(pin: str) -> str:
    name, version = pin.split("==")
    return f"{name.lower().replace('_', '-').replace('.', '-')}=={version.split('+')[0]}"


def test_compose_accepts_the_files_and_names_a_missing_value(
    settings: dict[str, str], tmp_path: Path
) -> None:
    complete = {"FEDRC_SITE": str(tmp_path), "FEDRC_UID": "1", "FEDRC_GID": "1"}
    Project("a", ["compose.yml"], {})("config")
    Project("b", ["compose.edge.yml"], complete)("config")
    Project("c", ["compose.edge.yml", "compose.gpu.yml"], complete)("config")
    opened = {"FEDRC_NAME": "localhost", "FEDRC_LISTEN": "127.0.0.1:8000"}
    Project("d", ["compose.yml", "compose.open.yml"], opened)("config")

    for files, values in (
        (["compose.edge.yml"], complete), (["compose.yml", "compose.open.yml"], opened)
    ):  # fmt: skip
        for name in values:
            left = {key: value for key, value in values.items() if key != name}
            with pytest.raises(AssertionError, match=f"set {name}"):
                Project("e", files, left)("config")


@pytest.fixture(scope="module")
def federation(
    settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Project, Path]]:
    """The demo's federation, kept up, with its gate published on the engine's bridge."""
    bridge = json.loads(call("docker", "network", "inspect", "bridge"))[0]["IPAM"]["Config"][0]
    gateway = bridge.get("Gateway", str(ipaddress.ip_network(bridge["Subnet"])[1]))
    outputs = lend(tmp_path_factory.mktemp("federation") / "outputs")
    environment = {
        **settings, **identity(), "FEDRC_OUTPUTS": str(outputs), "FEDRC_NAME": gateway,
        "FEDRC_LISTEN": f"{gateway}:18000",
    }  # fmt: skip
    project = Project("fedrc-kept", ["compose.yml", "compose.open.yml"], environment)
    try:
        project("up", "-d", *LASTING)
        project.wait_until_healthy(LASTING)
        yield project, outputs
    finally:
        project("down", "--volumes", "--timeout", "5")


def submit(project: Project, outputs: Path, name: str, *settings: str) -> subprocess.Popen[bytes]:
    flags = [flag for setting in settings for flag in ("--set", setting)]
    return project.background(
        outputs.parent / f"{name}.log", "run", "-T", "--rm", "--no-deps", "run", *RUN,
        "--name", name, "--retries", "3", *flags,
    )  # fmt: skip


def test_a_client_container_killed_in_mid_round_is_missed_and_comes_back(
    federation: tuple[Project, Path],
) -> None:
    project, outputs = federation
    directory = outputs / "client-killed"
    # Long rounds, so that the kill comes while it trains.
    run = submit(project, outputs, directory.name, "rounds=5", "local.epochs=60")
    wait_until(lambda: len(rounds(directory)) >= 1, "a round", 600)
    wait_until(lambda: project.at_work("client-1"), "client-1 to train", 120)

    victim = project.container("client-1")
    call("docker", "kill", victim)
    wait_until(lambda: len(rounds(directory)) >= 3, "the rounds after that", 600)
    call("docker", "start", victim)

    assert run.wait(1800) == 0, (outputs.parent / "client-killed.log").read_text()
    seen = rounds(directory)
    assert [event["round"] for event in seen] == [1, 2, 3, 4, 5]
    assert any("client-1" in event["failed"] for event in seen)
    assert all(event["replied"] >= 5 for event in seen)
    project.wait_until_healthy(["client-1"])
    assert not any(event["started_afresh"] for event in seen)


def test_a_killed_serverapp_container_costs_no_round(
    federation: tuple[Project, Path],
) -> None:
    project, outputs = federation
    directory = outputs / "server-killed"
    run = submit(project, outputs, directory.name, "rounds=4")
    wait_until(lambda: len(rounds(directory)) >= 2, "two rounds", 600)

    victim = project.container("serverapp")
    call("docker", "kill", victim)
    call("docker", "start", victim)

    assert run.wait(1800) == 0, (outputs.parent / "server-killed.log").read_text()
    assert "trying again" in (outputs.parent / "server-killed.log").read_text()
    assert [event["round"] for event in rounds(directory)] == [1, 2, 3, 4]
    assert json.loads((directory / "summary.json").read_text())["status"] == "completed"


def test_a_container_whose_program_dies_is_restarted_by_its_policy(
    federation: tuple[Project, Path],
) -> None:
    project, _ = federation
    before = project.containers()["client-2"]

    # The container's first process, as the host sees it: a crash and no order of Docker's.
    psutil.Process(before["State"]["Pid"]).kill()

    wait_until(lambda: project.containers().get("client-2", before)["RestartCount"]
               > before["RestartCount"], "the restart", 60)  # fmt: skip
    project.wait_until_healthy(["client-2"])


# Run inside a container that has the federation's ca.crt: the status of each answer.
ASK = """
import http.client, ssl, sys
context = ssl.create_default_context(cafile="/certificates/ca.crt")
context.check_hostname = False
for path in sys.argv[2:]:
    connection = http.client.HTTPSConnection(sys.argv[1], context=context)
    connection.request("POST", path, b"", {"Content-Type": "application/protobuf"})
    print(connection.getresponse().status)
"""


def test_the_gate_lets_nodes_through_and_no_operator(federation: tuple[Project, Path]) -> None:
    project, _ = federation
    control, fleet = "/v1/control/list-runs", "/v1/fleet/pull-messages"
    others = ["/v1/fleet/../control/list-runs", "/v1/fleet/..%2fcontrol/list-runs", "/v1/runtime/x"]
    python = ("exec", "-T", "superlink", "/opt/fedrc/bin/python3", "-c", ASK)

    answers = project(*python, "superlink:8000", control, fleet, *others).split()

    assert answers == ["403", "401", "404", "404", "404"]


def test_a_nodes_container_does_not_reach_flower_itself(federation: tuple[Project, Path]) -> None:
    project, _ = federation
    look = "import socket; print(socket.gethostbyname('control'))"
    address = project("exec", "-T", "serverapp", "/opt/fedrc/bin/python3", "-c", look).strip()
    reach = (
        "import socket, sys\n"
        "for host in ('control', sys.argv[1]):\n"
        "    try: socket.create_connection((host, 8002), 5); print('reached')\n"
        "    except OSError: print('not reached')"
    )

    for name, expected in (("serverapp", "reached"), ("client-0", "not reached")):
        python = ("exec", "-T", name, "/opt/fedrc/bin/python3", "-c", reach)
        assert project(*python, address).splitlines() == [expected] * 2


def test_an_edge_machine_joins_from_a_network_of_its_own_and_takes_part(
    federation: tuple[Project, Path], settings: dict[str, str], tmp_path: Path
) -> None:
    project, outputs = federation
    gateway = project.environment["FEDRC_NAME"]
    site = lend(tmp_path / "site")
    node_file = (ROOT / "docker" / "node.yaml").read_text()
    node_file = node_file.replace("hospital-a", "hospital").replace(
        "fedrc.example.org:8000", f"{gateway}:18000"
    )
    (site / "node.yaml").write_text(node_file.replace("partition: 0", "partition: 6"))
    superlink = project.container("superlink")
    call("docker", "cp", f"{superlink}:/certificates/ca.crt", site / "ca.crt")
    (site / "ca.crt").chmod(0o644)
    edge = Project(
        "fedrc-edge", ["compose.edge.yml"], {**settings, **identity(), "FEDRC_SITE": str(site)}
    )
    try:
        edge("run", "-T", "--rm", "node", "node", "key", "/site/node.key")
        assert (site / "node.key").stat().st_mode & 0o777 == 0o600
        shutil.copy(site / "node.key.pub", tmp_path / "hospital.pub")
        project(
            "run", "-T", "--rm", "--no-deps", "-v", f"{tmp_path}/hospital.pub:/tmp/hospital.pub",
            "run", "node", "register", "/etc/fedrc/superlink.yaml", "/tmp/hospital.pub",
        )  # fmt: skip
        edge("up", "-d")
        edge.wait_until_healthy(["node"])
        networks = edge.containers()["node"]["NetworkSettings"]["Networks"]
        assert set(networks) == {"fedrc-edge_default"}

        run = submit(
            project, outputs, "edge", "data.clients=7", "federation.min-clients=7", "rounds=2"
        )

        assert run.wait(1800) == 0, (outputs.parent / "edge.log").read_text()
    finally:
        edge("down", "--volumes", "--timeout", "5")
    directory = outputs / "edge"
    assert [(event["sampled"], event["replied"]) for event in rounds(directory)] == [(7, 7)] * 2
    reported = latest_checkpoint(directory / "checkpoints")[0].state.reported()
    assert set(reported) == {"hospital", *TRAINING}
    judged = rounds(directory)[-1]["clients"]
    assert set(judged) == {"hospital", *TRAINING, *OBSERVING}
