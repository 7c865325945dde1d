"""What goes into the images, as far as it can be told without an engine."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.exposure import check_bound
from deploy.files import read_superlink_file
from deploy.findings import WARNING
from fedrc_flwr.config import load_config, parse_setting
from fedrc_flwr.data.scenario import scenario_of

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"


def listed(*flags: str) -> list[Requirement]:
    script = [sys.executable, str(DOCKER / "requirements.py"), str(ROOT / "pyproject.toml")]
    done = subprocess.run([*script, *flags], capture_output=True, text=True, check=True)
    return [Requirement(line) for line in done.stdout.splitlines()]


def declared() -> list[Requirement]:
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    lines = project["dependencies"]
    return [Requirement(line) for line in lines]


def test_an_image_installs_what_the_project_declares_but_for_the_simulation() -> None:
    got = {one.name: one for one in listed()}

    assert set(got) == {one.name for one in declared()}
    assert all(got[one.name].specifier == one.specifier for one in declared())
    assert not any(one.extras for one in got.values())


def test_one_package_can_be_left_out() -> None:
    everything, fewer = ({one.name for one in listed(*f)} for f in ((), ("--without", "torch")))

    assert everything - fewer == {"torch"}
    assert "torchvision" in fewer


def test_every_requirement_is_pinned_to_a_version_that_it_allows() -> None:
    pins: dict[str, list[str]] = {}
    for line in (DOCKER / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            (specifier,) = pin.specifier
            assert specifier.operator == "=="
            if pin.marker is None or pin.marker.evaluate():
                pins.setdefault(canonicalize_name(pin.name), []).append(specifier.version)

    for requirement in [*listed(), Requirement("hatchling"), Requirement("uv")]:
        (version,) = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), requirement


@pytest.fixture(scope="module")
def compose() -> dict[str, dict[str, object]]:
    services = yaml.safe_load((DOCKER / "compose.yml").read_text())["services"]
    assert isinstance(services, dict)
    return services


def test_the_demo_has_a_container_for_each_client_and_observer_of_its_scenario(
    compose: dict[str, dict[str, object]],
) -> None:
    config = load_config({"scenario": "digits-edge", "recipe": "edge", "seed": 1})
    scenario = scenario_of(config.data, config.seed)
    expected = [f"client-{i}" for i in range(scenario.clients)]
    expected += [f"observer-{i}" for i in range(scenario.observers)]

    nodes = [n for n, s in compose.items() if str(s.get("command", "")).startswith("['supernode'")]
    assert nodes == expected
    # Everybody's volume goes to the setup under the node's partition, and to nobody else.
    mounts = compose["setup"]["volumes"]
    assert isinstance(mounts, list)
    for partition, name in enumerate(expected):
        assert f"{name}:/nodes/{partition}" in mounts
        users = [n for n, s in compose.items() if f"{name}:/" in str(s.get("volumes"))]
        assert users == ["setup", name]


def test_the_demo_asks_for_its_scenario_its_recipe_and_known_settings(
    compose: dict[str, dict[str, object]],
) -> None:
    command = compose["run"]["command"]
    assert isinstance(command, list)
    flags = [str(word).removeprefix("--").partition("=")[::2] for word in command[2:]]
    settings = dict(parse_setting(value) for flag, value in flags if flag == "set")
    named = {flag: value for flag, value in flags if flag in ("scenario", "recipe")}

    config = load_config({**named, **settings})

    assert (config.scenario, config.recipe, config.seed) == ("digits-edge", "edge", 1)
    assert config.federation.enrolment_timeout == 600.0


def test_no_service_publishes_a_port_and_every_service_has_its_limits(
    compose: dict[str, dict[str, object]],
) -> None:
    for name, service in compose.items():
        assert "ports" not in service, name
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "mem_limit" in service
        assert "pids_limit" in service
        user = str(service["user"])
        assert not re.search(r"(^|:-)0\b", user), name


def test_flower_is_on_a_network_of_the_operators_alone(
    compose: dict[str, dict[str, object]],
) -> None:
    file = read_superlink_file(DOCKER / "superlink.yaml")
    networks = {name: list(service["networks"]) for name, service in compose.items()}  # type: ignore[call-overload]

    assert networks["superlink"] == ["federation", "control"]
    assert compose["superlink"]["networks"]["control"] == {"aliases": [file.control.host]}  # type: ignore[index]
    for name, joined in networks.items():
        node = name.startswith(("client", "observer"))
        assert joined == (["federation"] if node else ["control"]) or name == "superlink"
    assert check_bound(file).level == WARNING


def test_on_an_edge_machine_another_user_than_the_keys_owner_executes_what_runs_send() -> None:
    services = yaml.safe_load((DOCKER / "compose.edge.yml").read_text())["services"]
    node, client = services["node"], services["clientapp"]

    assert node["command"][:2] == ["supernode", "--alone"]
    assert client["command"][0] == "clientapp"
    assert node["user"].startswith("${FEDRC_UID:")
    assert client["user"].startswith("${FEDRC_CLIENT_UID:-10002}:${FEDRC_GID:")
    assert client["network_mode"] == "service:node"
    assert [volume for volume in client["volumes"] if volume.endswith(":/site:ro")]
    assert "executor-secret: /run/fedrc/" in (DOCKER / "node.yaml").read_text()
