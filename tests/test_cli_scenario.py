"""``fedrc scenario``: what ready-made and own scenarios hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fedrc_flwr import simulation
from fedrc_flwr.cli import MISUSED, app
from fedrc_flwr.config import scenario_names


def fedrc(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_list_names_every_ready_made_scenario() -> None:
    result = fedrc("scenario", "list")

    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert list(lines) == scenario_names()
    assert "12 clients" in lines["digits"]
    assert "--data" in lines["none"]
    assert "digits" not in lines["none"]


def test_show_prints_a_line_per_client_and_draws_the_picture(tmp_path: Path) -> None:
    picture = tmp_path / "digits.png"

    result = fedrc(
        "scenario", "show", "digits", "--set", "data.clients=5", "--output", str(picture)
    )

    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len(lines) == 1 + 5 + 3 + 1
    assert lines[1].startswith("client-0")
    assert lines[-1].startswith("5 training clients with 1,435 samples")
    assert picture.stat().st_size > 1000


def test_show_takes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("data: {clients: 3, observers-per-concept: 0}\n")

    result = fedrc("scenario", "show", str(path))

    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 1 + 3 + 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "no such scenario"),
        (["digit"], "no such scenario; did you mean 'digits'?"),
        (["digits", "--set", "data.clients=-1"], "data.clients = -1"),
        (["digits", "--set", "data.dataset=gone.npz"], "gone.npz does not exist"),
        (["digits", "--output", "picture.pdf"], "expected the name of a .png file"),
        (["digits", "--output", "no-such-folder/picture.png"], "no-such-folder"),
    ],
)
def test_misuse_is_told_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)

    result = fedrc("scenario", "show", *arguments)

    assert result.exit_code == MISUSED
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_simulation_with_missing_data_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(simulation, "simulate", None)

    result = fedrc("simulate", "--scenario", "cifar10")

    assert result.exit_code == MISUSED
    assert f"not found in {tmp_path}" in result.stderr
    assert not list(tmp_path.iterdir())
