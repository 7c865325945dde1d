"""Flower's programs: how they are found, what they are told, how their answers are read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import parse_config_args

from fedrc_flwr import flower
from fedrc_flwr.errors import ConfigError, RunError
from fedrc_flwr.flower import Control, environment, program, toml, write_connection


class Flwr:
    """Takes the place of subprocess.run."""

    def __init__(self, stdout: str = "", stderr: str = "") -> None:
        self.stdout, self.stderr = stdout, stderr
        self.calls: list[list[str]] = []
        self.options: dict[str, Any] = {}

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.calls.append(command[1:])
        self.options = options
        return subprocess.CompletedProcess(command, 0, self.stdout, self.stderr)


@pytest.fixture
def flwr(monkeypatch: pytest.MonkeyPatch) -> Flwr:
    flwr = Flwr()
    monkeypatch.setattr(subprocess, "run", flwr)
    return flwr


@pytest.fixture
def control(tmp_path: Path) -> Control:
    return Control(tmp_path, {"PATH": "somewhere"})


def success(**answer: Any) -> str:
    return "a line of chatter\n" + json.dumps({"success": True, **answer})


FAILURE = json.dumps({"success": False, "error-message": "no such thing"})


# --- programs and environment --------------------------------------------------------------------


def test_programs_are_those_beside_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("venv", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "flwr").touch(mode=0o755)
    (tmp_path / "path" / "other").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))

    assert program("flwr") == str(tmp_path / "venv" / "flwr")
    assert program("other") == str(tmp_path / "path" / "other")
    with pytest.raises(ConfigError, match="flower-nothing is not installed here: pip install"):
        program("flower-nothing")


def test_modules_of_the_users_directory_are_found_from_any_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([".", "lib", "/opt/lib"]))
    assert environment()["PYTHONPATH"].split(os.pathsep) == [
        str(tmp_path), str(tmp_path / "lib"), "/opt/lib",
    ]  # fmt: skip

    monkeypatch.delenv("PYTHONPATH")
    assert "PYTHONPATH" not in environment()


def test_the_environment_keeps_flower_offline_and_finds_its_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/elsewhere")
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.setenv("KEPT", "yes")

    told = environment()

    assert told["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/elsewhere"
    assert told["FLWR_TELEMETRY_ENABLED"] == "0"
    assert told["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert told["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert told["KEPT"] == "yes"
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "1"


# --- text for Flower -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [True, False, 0, -3, 0.5, 1e-05, 1e300, float("inf"), "", "plain", "two words", 'a "quote"',
     "back\\slash", "line\nbreak", "grün", "\N{GRINNING FACE}", "true", "1"],
)  # fmt: skip
def test_toml_is_read_back_as_it_was(value: Any) -> None:
    read = tomllib.loads(f"key = {toml(value)}")["key"]

    assert read == value
    assert type(read) is type(value)


def test_a_connection_with_tls(tmp_path: Path) -> None:
    write_connection(tmp_path / "home", "fedrc.example.org:8000", tmp_path / "a b" / "ca.crt")

    read = tomllib.loads((tmp_path / "home" / "config.toml").read_text())
    assert read == {
        "superlink": {
            "default": "fedrc",
            "fedrc": {
                "address": "fedrc.example.org:8000",
                "root-certificates": str(tmp_path / "a b" / "ca.crt"),
            },
        }
    }


def test_a_connection_in_plain_text(tmp_path: Path) -> None:
    write_connection(tmp_path, "127.0.0.1:8000", None)

    read = tomllib.loads((tmp_path / "config.toml").read_text())
    assert read["superlink"]["fedrc"] == {"address": "127.0.0.1:8000", "insecure": True}


# --- calls ---------------------------------------------------------------------------------------


def test_submitting_hands_the_configuration_over_in_a_file(
    flwr: Flwr, control: Control, tmp_path: Path
) -> None:
    flwr.stdout = success(**{"run-id": 12345678901234567890})

    run_id = control.run(tmp_path / "app", {"rounds": 3, "run.resume": False, "run.name": "a b"})

    overrides = tmp_path / "run-config.toml"
    assert run_id == "12345678901234567890"
    assert flwr.calls == [
        ["run", str(tmp_path / "app"), "fedrc", "--run-config", str(overrides), "--format", "json"]
    ]
    assert parse_config_args([str(overrides)]) == {
        "rounds": 3,
        "run.resume": False,
        "run.name": "a b",
    }
    assert flwr.options["env"] == {"PATH": "somewhere", "FLWR_HOME": str(tmp_path)}


def test_a_simulation_is_given_its_size(flwr: Flwr, control: Control, tmp_path: Path) -> None:
    flwr.stdout = success(**{"run-id": "1"})

    control.run(tmp_path, {}, federation="num-supernodes=3")

    (call,) = flwr.calls
    assert call[call.index("--federation-config") + 1] == "num-supernodes=3"


@pytest.mark.parametrize(
    ("stdout", "stderr", "said"),
    [
        (FAILURE, "", "no such thing"),
        ("", "cannot connect\n", "cannot connect"),
        ("{torn", "", "{torn"),
    ],
)
def test_a_refused_submission_says_why(
    flwr: Flwr, control: Control, tmp_path: Path, stdout: str, stderr: str, said: str
) -> None:
    flwr.stdout, flwr.stderr = stdout, stderr

    with pytest.raises(RunError) as caught:
        control.run(tmp_path, {})

    assert str(caught.value) == f"flwr run refused the app: {said}"


@pytest.mark.parametrize(
    ("stdout", "status"),
    [
        (success(runs=[{"status": "finished:completed"}]), "finished:completed"),
        (success(runs=[]), ""),
        (FAILURE, ""),
    ],
)
def test_the_status_is_empty_where_there_is_no_answer(
    flwr: Flwr, control: Control, stdout: str, status: str
) -> None:
    flwr.stdout = stdout

    assert control.status("7") == status
    assert flwr.calls == [["list", "fedrc", "--run-id", "7", "--format", "json"]]


def test_nodes_are_let_in_and_shut_out(flwr: Flwr, control: Control, tmp_path: Path) -> None:
    flwr.stdout = success(**{"node-id": "9"})

    let_in = control.register(tmp_path / "node.key.pub", "hospital-a")
    flwr.stdout = FAILURE
    shut_out = control.unregister("9")

    assert let_in == {"success": True, "node-id": "9"}
    assert shut_out == {"success": False, "error-message": "no such thing"}
    register, unregister = flwr.calls
    key = str(tmp_path / "node.key.pub")
    assert register[:6] == ["supernode", "register", key, "fedrc", "--name", "hospital-a"]
    assert unregister[:4] == ["supernode", "unregister", "9", "fedrc"]


def test_the_log_is_what_flower_shows(flwr: Flwr, control: Control) -> None:
    flwr.stdout = "one\ntwo\n"

    assert control.log("7") == "one\ntwo\n"
    assert flwr.calls == [["log", "7", "fedrc", "--show"]]


def test_a_simulation_listens_on_loopback_alone() -> None:
    command = flower.simulation_superlink(1234)

    assert command[1:] == ["--simulation", "--insecure", "--host", "127.0.0.1", "--port", "1234"]
