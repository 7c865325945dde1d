"""The systemd units, as systemd itself reads them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).parents[2] / "deploy" / "systemd").glob("*.service"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_understands_the_unit(tmp_path: Path, unit: Path) -> None:
    copy = tmp_path / unit.name
    # Where /opt/fedrc does not exist, systemd would only say that.
    copy.write_text(re.sub(r"/opt/fedrc/\.venv/bin/fedrc", sys.executable, unit.read_text()))

    read = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, check=False
    )

    assert (read.returncode, read.stdout + read.stderr) == (0, "")


def test_code_of_a_run_has_another_user_than_the_key() -> None:
    users = {unit.stem: re.findall(r"^User=(.*)$", unit.read_text(), re.M) for unit in UNITS}

    assert users["fedrc-clientapp"] == ["fedrc-client"]
    assert users["fedrc-supernode"] == ["fedrc"]
