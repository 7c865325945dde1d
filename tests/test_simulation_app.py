"""Where the Flower app comes from when the package was installed rather than cloned."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedrc_flwr.flower import find_app

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A directory laid out as the wheel lays out site-packages."""
    site = tmp_path / "site"
    for name in ("fedrc_flwr", "server_app", "client_app", "deploy"):
        shutil.copytree(ROOT / name, site / name, ignore=shutil.ignore_patterns("__pycache__"))
    (site / "fedrc_flwr" / "app").mkdir()
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, site / "fedrc_flwr" / "app" / name)
    return site


def test_a_clone_is_the_app_itself(tmp_path: Path) -> None:
    assert find_app(tmp_path) == ROOT
    assert list(tmp_path.iterdir()) == []


def test_flower_builds_the_app_of_an_installed_package(installed: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    code = (
        "import sys, pathlib; from fedrc_flwr.flower import find_app; "
        "print(find_app(pathlib.Path(sys.argv[1])))"
    )
    environment = {**os.environ, "PYTHONPATH": str(installed), "FLWR_HOME": str(tmp_path / "home")}
    found = subprocess.run(
        [sys.executable, "-c", code, str(scratch)],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip

    built = subprocess.run(
        [str(Path(sys.executable).parent / "flwr"), "build", "--app", found.stdout.strip()],
        env=environment, cwd=scratch, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert built.returncode == 0, built.stdout + built.stderr
    assert list(scratch.glob("*.fab"))
