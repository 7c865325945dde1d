"""The ``fedrc`` command: what it refuses before anything happens, and what it hands on."""

from __future__ import annotations

import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from settings_of import dotted
from typer.testing import CliRunner

from fedrc_flwr import __version__, config, reference, simulation
from fedrc_flwr.cli import FAILED, MISUSED, STOPPED, app
from fedrc_flwr.config import RunConfig, all_keys, load_config, recipe_names
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.report.log import write_json
from fedrc_flwr.simulation import Outcome

SUMMARY = {"status": "completed", "rounds": 2, "seconds": 1.0, "algorithm": "fedrc"}


class Simulation:
    """Stands in for the real one, which takes half a minute to start."""

    def __init__(self) -> None:
        self.calls: list[tuple[RunConfig, Path, int | None]] = []
        self.outcome = Outcome(completed=True, summary=SUMMARY, reason="")

    def __call__(
        self, config: RunConfig, directory: Path, on_event: Any, cpus: int | None = None
    ) -> Outcome:
        self.calls.append((config, directory, cpus))
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
    placed = load_config(dotted(settings)).placed(directory)
    write_json(directory / "config.json", placed.to_dict())
    (directory / "checkpoints").mkdir()
    (directory / "checkpoints" / "round-000001.safetensors").touch()
    return directory


# --- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "no-such-key=1"], ["no-such-key"]),
        (["--set", "rouns=1"], ["'rouns'", "did you mean 'rounds'"]),
        (["--set", "learning-rate=1"], ["did you mean 'local.learning-rate'"]),
        (["--set", "rounds=0"], ["rounds = 0", "a whole number from 1 to 100000"]),
        (["--set", "rounds=many"], ["rounds = 'many'", "whole number"]),
        (["--set", "rounds=2", "--set", "fedrc.adaptive=perhaps"], ["fedrc.adaptive = 'perhaps'"]),
        (["--set", "rounds"], ["'rounds'", "key=value"]),
        (["--set", "rounds=[1"], ["rounds=[1"]),
        (["--scenario", "nowhere"], ["scenario = 'nowhere'", "digits"]),
        (["--scenario", "gone.yaml"], ["gone.yaml"]),
        (["--recipe", "nowhere"], ["recipe = 'nowhere'", "default"]),
        (["--recipe", "gone.yaml"], ["gone.yaml"]),
        (["--data", "gone.npz"], ["gone.npz does not exist"]),
        (["--data", "x.npz", "--scenario", "digits"], ["either --data or --scenario"]),
        (["--engine", "steam"], ["--engine 'steam'", "flower or in-process"]),
        (["--set", "scenario=nowhere"], ["scenario = 'nowhere'"]),
        (["--resume"], ["--resume needs --output"]),
        (["--resume", "--output", "gone"], ["gone", "no run to resume"]),
        (["--from-round", "3"], ["--from-round needs --resume"]),
        (["--output", "a", "--set", "run.name=b"], ["run.name: --output says where"]),
        (["--output", "a", "--set", "run.output-dir=b"], ["run.output-dir: --output says where"]),
        (["--engine", "in-process", "--cpus", "2"], ["--cpus 2: in process, one client computes"]),
        (["--set", "run.resume-round=3"], ["run.resume-round = 3", "run.resume = true"]),
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


@pytest.mark.parametrize("command", [["simulate"], ["compare", "--scenario", "digits"]])
def test_output_below_a_file_is_refused(
    fake: Simulation, tmp_path: Path, command: list[str]
) -> None:
    file = tmp_path / "thesis.txt"
    file.write_text("precious")

    result = fedrc(*command, "--output", str(file / "sub" / "run"))

    assert result.exit_code == MISUSED
    assert f"{file} is a file: give a new directory" in result.stderr
    assert fake.calls == []


@pytest.mark.parametrize(
    ("left", "taken"),
    [
        (["run.log"], True),
        (["superlink.log", "summary.json", "clients"], True),
        (["run.log", "thesis.tex"], False),
        (["config.json"], False),
        (["run.log", "checkpoints"], False),
    ],
)
def test_directory_in_which_a_run_failed_to_start_can_be_used_again(
    fake: Simulation, tmp_path: Path, left: list[str], taken: bool
) -> None:
    output = tmp_path / "run"
    output.mkdir()
    for name in left:
        (output / name).write_text("{}") if "." in name else (output / name).mkdir()

    result = fedrc("simulate", "--output", str(output))

    assert result.exit_code == (0 if taken else MISUSED), result.output
    assert len(fake.calls) == taken
    assert all((output / name).exists() != taken for name in left)


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


def test_settings_reach_the_simulation_checked(fake: Simulation, tmp_path: Path) -> None:
    texts = ["rounds=2", "data.alpha=inf", "local.learning-rate=1e-3", "fedrc.fine-tune=true"]
    lists = ["data.concept-shares=[0.5, 0.5]", "data.corrupted-shares=[0, 0]"]

    result = fedrc(
        "simulate", "--output", str(tmp_path / "new"), "--cpus", "3",
        *(part for text in texts + lists for part in ("--set", text)),
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    ((config, directory, cpus),) = fake.calls
    assert (directory, cpus) == (tmp_path / "new", 3)
    values = config.to_dict()
    assert all(isinstance(value, bool | int | float | str) for value in values.values())
    assert (values["rounds"], values["data.alpha"]) == (2, "inf")
    assert (values["local.learning-rate"], values["fedrc.fine-tune"]) == (0.001, True)
    assert config.data.shares() == (0.5, 0.5)


@pytest.mark.parametrize(
    ("option", "name", "content"),
    [
        ("--scenario", "scenario", "data: {clients: 5}\n"),
        ("--recipe", "recipe", "rounds: 2\nfedrc: {start: paper, clusters: 4}\n"),
    ],
)
@pytest.mark.parametrize("by_set", [True, False])
def test_scenario_and_recipe_files_need_not_be_where_the_app_runs(
    fake: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, name: str,
    content: str, by_set: bool,
) -> None:  # fmt: skip
    Path("mine.yaml").write_text(content)

    result = fedrc(
        "simulate", *(["--set", f"{name}=mine.yaml"] if by_set else [option, "mine.yaml"])
    )

    assert result.exit_code == 0, result.output
    config = fake.calls[0][0]
    assert config == load_config({name: "mine.yaml"})
    submitted = config.placed(tmp_path / "run").to_dict()
    monkeypatch.chdir(tmp_path)
    assert load_config(submitted).to_dict() == submitted


def test_own_data_come_without_a_scenarios_shifts(fake: Simulation, tmp_path: Path) -> None:
    np.savez("mine.npz", x=np.zeros((40, 3)), y=np.arange(40) % 2)

    result = fedrc("simulate", "--data", "mine.npz", "--set", "data.clients=4")

    assert result.exit_code == 0, result.output
    config = fake.calls[0][0]
    assert config.to_dict()["data.dataset"] == str(tmp_path / "cwd" / "mine.npz")
    assert (config.scenario, config.data.shares(), config.data.corrupted()) == (
        "none",
        (1.0,),
        (0.0,),
    )


def test_what_was_chosen_is_said_before_it_starts(fake: Simulation) -> None:
    result = fedrc("simulate", "--set", "local.learning-rate=0.25")

    assert "fedrc on digits: 12 clients and 3 observers, 10 classes" in result.stdout
    assert "network mlp; 2 local epochs in batches of 16, learning rate 0.25" in result.stdout


def test_without_output_the_directory_tells_what_ran(fake: Simulation) -> None:
    fedrc("simulate", "--set", "algorithm=ifca", "--set", "seed=4")

    directory = fake.calls[0][1]
    assert directory.parent == Path("outputs")
    assert directory.name.startswith("digits-ifca-seed4-")


@pytest.mark.parametrize(
    ("settings", "directory"),
    [
        (["run.name=mine"], Path("outputs/mine")),
        (["run.name=mine", "run.output-dir=there"], Path("there/mine")),
    ],
)
def test_run_can_be_named_by_its_settings(
    fake: Simulation, settings: list[str], directory: Path
) -> None:
    result = fedrc("simulate", *(part for text in settings for part in ("--set", text)))

    assert result.exit_code == 0, result.output
    assert fake.calls[0][1] == directory


def test_empty_output_directory_is_taken(fake: Simulation, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    result = fedrc("simulate", "--output", str(tmp_path / "empty"))

    assert result.exit_code == 0
    assert len(fake.calls) == 1


def test_resumed_run_goes_on_with_its_configuration_and_what_is_set_now(
    fake: Simulation, tmp_path: Path
) -> None:
    output = finished_run(
        tmp_path / "run", rounds=2, seed=5, alpha="inf", start="paper", clusters=4
    )

    result = fedrc("simulate", "--resume", "--output", str(output), "--set", "rounds=8")

    assert result.exit_code == 0, result.output
    values = fake.calls[0][0].to_dict()
    assert (values["run.resume"], values["rounds"], values["seed"]) == (True, 8, 5)
    assert (values["data.alpha"], values["fedrc.clusters"]) == ("inf", 4)


def test_resumed_run_needs_neither_scenario_nor_recipe_again(
    fake: Simulation, tmp_path: Path
) -> None:
    Path("mine.yaml").write_text("rounds: 7\n")
    output = finished_run(tmp_path / "run", recipe="mine.yaml")
    Path("mine.yaml").unlink()

    result = fedrc("simulate", "--resume", "--output", str(output))

    assert result.exit_code == 0, result.output
    assert fake.calls[0][0].rounds == 7


def test_run_goes_back_to_the_round_that_is_named(fake: Simulation, tmp_path: Path) -> None:
    output = finished_run(tmp_path / "run", rounds=2)

    result = fedrc("simulate", "--resume", "--output", str(output), "--from-round", "1")

    assert result.exit_code == 0, result.output
    values = fake.calls[0][0].to_dict()
    assert (values["run.resume"], values["run.resume-round"]) == (True, 1)


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


def test_run_that_was_stopped_ends_with_130(fake: Simulation, tmp_path: Path) -> None:
    fake.outcome = Outcome(False, {"status": "stopped"}, "stopped by the user")

    result = fedrc("simulate", "--output", str(tmp_path / "run"))

    assert result.exit_code == STOPPED == 130


def test_version_is_printed() -> None:
    result = fedrc("--version")

    assert (result.exit_code, result.stdout) == (0, f"fedrc-flwr {__version__}\n")
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["version"] == __version__


def rows(text: str) -> list[str]:
    """The keys of a printed table."""
    return re.findall(r"^\| `([a-z0-9.-]+)` \|", text, flags=re.MULTILINE)


def test_config_prints_the_keys_that_people_usually_set() -> None:
    result = fedrc("config")

    assert result.exit_code == 0
    assert result.stdout == reference.tables(everything=False)
    found = rows(result.stdout)
    assert 10 < len(found) <= 30
    assert {"scenario", "recipe", "rounds", "local.learning-rate", "fedrc.clusters"} <= set(found)
    assert not {"ifca.clusters", "resolved"} & set(found)


def test_config_prints_all_keys_by_section() -> None:
    result = fedrc("config", "--all")

    assert result.exit_code == 0
    assert result.stdout == reference.tables(everything=True)
    sections = re.split(r"^### .*$", result.stdout, flags=re.MULTILINE)[1:]
    assert rows(result.stdout) == list(all_keys())
    for section in sections:
        assert len({key.rpartition(".")[0] for key in rows(section)}) == 1


def test_config_prints_the_tables_of_pyproject() -> None:
    result = fedrc("config", "--toml")

    assert result.exit_code == 0
    assert result.stdout == reference.toml_tables()


def test_recipes_are_listed_with_what_they_are() -> None:
    result = fedrc("recipe", "list")

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == recipe_names()
    assert all(len(line.split()) > 4 for line in lines)


def test_recipe_without_a_description_is_listed_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bare.yaml").touch()
    monkeypatch.setattr(config, "RECIPES", tmp_path)

    result = fedrc("recipe", "list")

    assert (result.exit_code, result.stdout) == (0, "bare\n")


def test_config_written_by_a_run_is_the_configuration(tmp_path: Path) -> None:
    output = finished_run(tmp_path / "run", alpha="inf", rounds=3)

    again = load_config(json.loads((output / "config.json").read_text()))

    assert again == load_config({"data.alpha": math.inf, "rounds": 3}).placed(output)
