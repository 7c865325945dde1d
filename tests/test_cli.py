"""The ``fedrc`` command: what it refuses before anything happens, and what it hands on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fedrc_flwr import simulation
from fedrc_flwr.cli import FAILED, MISUSED, app
from fedrc_flwr.configuration import describe_keys, load_config
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.report.log import write_json
from fedrc_flwr.simulation import Outcome

SUMMARY = {"status": "completed", "rounds": 2, "seconds": 1.0, "algorithm": "fedrc"}


class Simulation:
    """Stands in for the real one, which takes half a minute to start."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, Any], Path, int | None]] = []
        self.outcome = Outcome(completed=True, summary=SUMMARY, reason="")

    def __call__(
        self, settings: dict[str, Any], directory: Path, on_event: Any, cpus: int | None = None
    ) -> Outcome:
        self.calls.append((dict(settings), directory, cpus))
        return self.outcome


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Simulation:
    """No simulation is started; the working directory is empty."""
    fake = Simulation()
    monkeypatch.setattr(simulation, "simulate", fake)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return fake


def fedrc(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def files_under(directory: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


def finished_run(directory: Path, **settings: Any) -> Path:
    """A run's directory as the server app leaves it."""
    write_json(directory / "config.json", load_config(settings).to_dict())
    (directory / "checkpoints").mkdir()
    (directory / "checkpoints" / "round-000001.safetensors").touch()
    return directory


# --- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "no-such-key=1"], ["no-such-key"]),
        (["--set", "rouns=1"], ["'rouns'", "did you mean 'rounds'"]),
        (["--set", "rounds=0"], ["rounds = 0", ">= 1"]),
        (["--set", "rounds=many"], ["rounds = 'many'", "whole number"]),
        (["--set", "rounds=2", "--set", "adaptive=perhaps"], ["adaptive = 'perhaps'"]),
        (["--set", "rounds"], ["'rounds'", "key=value"]),
        (["--set", "rounds=[1"], ["rounds=[1"]),
        (["--scenario", "nowhere"], ["scenario = 'nowhere'", "digits"]),
        (["--scenario", "gone.yaml"], ["gone.yaml"]),
        (["--set", "scenario=nowhere"], ["scenario = 'nowhere'"]),
        (["--resume"], ["--resume needs --output"]),
        (["--resume", "--output", "gone"], ["gone", "no run to resume"]),
        (["--from-round", "3"], ["--from-round needs --resume"]),
        (["--set", "resume-round=3"], ["resume-round = 3", "resume = true"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_misuse_ends_with_2_and_the_reason_and_touches_nothing(
    fake: Simulation, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    result = fedrc("simulate", *arguments)

    assert result.exit_code == MISUSED == 2
    for word in words:
        assert word in result.stderr
    assert "Traceback" not in result.output
    assert fake.calls == []
    assert files_under(tmp_path) == {"cwd": None}


def test_output_directory_that_holds_something_is_refused_and_left_alone(
    fake: Simulation, tmp_path: Path
) -> None:
    output = finished_run(tmp_path / "run", rounds=9)
    (output / "summary.json").write_text("{}")
    before = files_under(tmp_path)

    result = fedrc("simulate", "--output", str(output), "--set", "rounds=2")

    assert result.exit_code == MISUSED
    assert f"{output} is not empty" in result.stderr
    assert fake.calls == []
    assert files_under(tmp_path) == before


@pytest.mark.parametrize("resume", [True, False])
def test_output_that_is_a_file_is_refused_and_left_alone(
    fake: Simulation, tmp_path: Path, resume: bool
) -> None:
    output = tmp_path / "thesis.txt"
    output.write_text("precious")

    result = fedrc("simulate", "--output", str(output), *(["--resume"] if resume else []))

    assert result.exit_code == MISUSED
    assert str(output) in result.stderr
    assert fake.calls == []
    assert output.read_text() == "precious"


@pytest.mark.parametrize("content", [b"", b"{torn", b"[1]", b"\xff\xfe"])
def test_run_whose_configuration_is_broken_cannot_be_resumed(
    fake: Simulation, tmp_path: Path, content: bytes
) -> None:
    output = finished_run(tmp_path / "run")
    (output / "config.json").write_bytes(content)

    result = fedrc("simulate", "--resume", "--output", str(output))

    assert result.exit_code == MISUSED
    assert f"{output} holds no run to resume" in result.stderr
    assert fake.calls == []


def test_refusal_by_the_simulation_itself_ends_with_2(
    fake: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Outcome:
        raise ConfigError("flower-superlink is not installed")

    monkeypatch.setattr(simulation, "simulate", refuse)

    result = fedrc("simulate")

    assert result.exit_code == MISUSED
    assert "flower-superlink is not installed" in result.stderr


# --- handed on ----------------------------------------------------------------------------------


def test_settings_reach_the_simulation_as_checked_scalars(fake: Simulation, tmp_path: Path) -> None:
    texts = ["rounds=2", "alpha=inf", "learning-rate=1e-3", "adaptive=false"]
    lists = ["concept-shares=[0.5, 0.5]", "corrupted-shares=[0, 0]"]

    result = fedrc(
        "simulate", "--output", str(tmp_path / "new"), "--cpus", "3",
        *(part for text in texts + lists for part in ("--set", text)),
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    ((settings, directory, cpus),) = fake.calls
    assert (directory, cpus) == (tmp_path / "new", 3)
    assert all(isinstance(value, bool | int | float | str) for value in settings.values())
    config = load_config(settings)
    assert (config.rounds, config.alpha, config.learning_rate) == (2, math.inf, 0.001)
    assert (config.adaptive, config.shares()) == (False, (0.5, 0.5))


@pytest.mark.parametrize("how", [["--scenario"], ["--set"]])
def test_scenario_file_is_found_from_wherever_the_app_runs(
    fake: Simulation, tmp_path: Path, how: list[str]
) -> None:
    Path("mine.yaml").write_text("rounds: 2\n")
    name = "scenario=mine.yaml" if how == ["--set"] else "mine.yaml"

    result = fedrc("simulate", *how, name)

    assert result.exit_code == 0, result.output
    assert fake.calls[0][0]["scenario"] == str(tmp_path / "cwd" / "mine.yaml")


def test_without_output_the_directory_tells_what_ran(fake: Simulation) -> None:
    fedrc("simulate", "--set", "algorithm=ifca", "--set", "seed=4")

    directory = fake.calls[0][1]
    assert directory.parent == Path("outputs")
    assert directory.name.startswith("digits-ifca-seed4-")


def test_empty_output_directory_is_taken(fake: Simulation, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    result = fedrc("simulate", "--output", str(tmp_path / "empty"))

    assert result.exit_code == 0
    assert len(fake.calls) == 1


def test_resumed_run_goes_on_with_its_configuration_and_what_is_set_now(
    fake: Simulation, tmp_path: Path
) -> None:
    output = finished_run(tmp_path / "run", rounds=2, seed=5, alpha="inf", clusters=4)

    result = fedrc("simulate", "--resume", "--output", str(output), "--set", "rounds=8")

    assert result.exit_code == 0, result.output
    config = load_config(fake.calls[0][0])
    assert (config.resume, config.rounds, config.seed) == (True, 8, 5)
    assert (config.alpha, config.clusters) == (math.inf, 4)


def test_run_goes_back_to_the_round_that_is_named(fake: Simulation, tmp_path: Path) -> None:
    output = finished_run(tmp_path / "run", rounds=2)

    result = fedrc("simulate", "--resume", "--output", str(output), "--from-round", "1")

    assert result.exit_code == 0, result.output
    config = load_config(fake.calls[0][0])
    assert (config.resume, config.resume_round) == (True, 1)


def test_round_without_a_checkpoint_is_refused_before_anything_starts(
    fake: Simulation, tmp_path: Path
) -> None:
    output = finished_run(tmp_path / "run", rounds=2)

    result = fedrc("simulate", "--resume", "--output", str(output), "--from-round", "7")

    assert result.exit_code == MISUSED
    assert "no checkpoint of round 7; there are checkpoints of rounds: 1" in result.stderr
    assert fake.calls == []


def test_completed_run_prints_its_summary(fake: Simulation, tmp_path: Path) -> None:
    result = fedrc("simulate", "--output", str(tmp_path / "new"))

    assert result.exit_code == 0
    assert "completed after 2 rounds" in result.stdout
    assert f"results in {tmp_path / 'new'}" in result.stdout


@pytest.mark.parametrize("checkpoints", [True, False])
def test_run_that_failed_ends_with_1_and_says_how_to_go_on_where_it_can(
    fake: Simulation, tmp_path: Path, checkpoints: bool
) -> None:
    output = tmp_path / "run"
    fake.outcome = Outcome(completed=False, summary={}, reason="out of memory")
    if checkpoints:
        finished_run(output)

    result = fedrc("simulate", "--output", str(output), *(["--resume"] if checkpoints else []))

    assert result.exit_code == FAILED == 1
    assert "did not complete: out of memory" in result.stderr
    assert (f"--output {output} --resume" in result.stderr) == checkpoints


def test_config_prints_the_reference_table() -> None:
    result = fedrc("config")

    assert result.exit_code == 0
    assert result.stdout == describe_keys()


def test_config_written_by_a_run_is_the_configuration(tmp_path: Path) -> None:
    output = finished_run(tmp_path / "run", alpha="inf", rounds=3)

    again = load_config(json.loads((output / "config.json").read_text()))

    assert again == load_config({"alpha": math.inf, "rounds": 3})
