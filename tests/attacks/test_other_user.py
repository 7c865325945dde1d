"""The code of a run is executed by a user who cannot read the node's key, on real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import FEDRC, MARK, Federation, fedrc, wait_until
from settings_of import configured
from test_foreign_code import SETTINGS, hostile_app

from deploy.files import read_superlink_file
from deploy.submit import run as submit

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="starts processes as two other users"),
]
OWNER, CLIENT, GROUP = 61_001, 61_002, 61_001


def others_can_run_python() -> bool:
    try:
        tried = subprocess.run(
            [sys.executable, "-c", "import deploy"],
            user=CLIENT, group=CLIENT, extra_groups=[], capture_output=True, check=False,
        )  # fmt: skip
    except PermissionError:
        return False
    return tried.returncode == 0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that other users may enter, unlike pytest's."""
    made = Path(tempfile.mkdtemp(prefix="fedrc-users-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def test_an_allowed_app_cannot_read_the_key(folder: Path) -> None:
    if not others_can_run_python():
        pytest.skip("this Python is installed for its owner alone")
    federation = Federation(folder)
    started: list[subprocess.Popen[bytes]] = []

    def start(user: int, *arguments: object) -> None:
        environment = {**os.environ, MARK: federation.mark, "HOME": str(site / f"home-{user}")}
        with open(folder / f"{arguments[0]}.log", "ab") as log:
            started.append(
                subprocess.Popen(
                    [sys.executable, FEDRC, *map(str, arguments)], stdout=log, stderr=log,
                    user=user, group=GROUP if user == OWNER else CLIENT, extra_groups=[GROUP],
                    env=environment, umask=0o077, cwd="/",
                )
            )  # fmt: skip

    try:
        federation.start()
        federation.node("hospital", 0)
        site = folder / "hospital"
        secret = {"executor-secret": "shared/executor.secret"}
        file = site / "node.yaml"
        file.write_text(file.read_text() + "".join(f"{k}: {v}\n" for k, v in secret.items()))
        for name, owner in (("state", CLIENT), ("shared", OWNER),
                            (f"home-{OWNER}", OWNER), (f"home-{CLIENT}", CLIENT)):  # fmt: skip
            (site / name).mkdir()
            os.chown(site / name, owner, GROUP)
            (site / name).chmod(0o750)
        os.chown(site / "node.key", OWNER, GROUP)
        loot = site / "state" / "loot"
        app = hostile_app(folder, loot)
        stealing = (
            f"try: text = pathlib.Path({str(site / 'node.key')!r}).read_text()\n"
            "except OSError as error: text = type(error).__name__\n"
        )
        client = app / "client_app" / "app.py"
        client.write_text(
            client.read_text().replace(
                f"pathlib.Path({str(loot)!r}).write_text('taken')",
                f"{stealing}pathlib.Path({str(loot)!r}).write_text(text)",
            )
        )
        assert fedrc("node", "allow", file, app).returncode == 0
        start(OWNER, "supernode", "--alone", file)
        wait_until((site / "shared" / "executor.secret").exists, "the shared secret")
        start(CLIENT, "clientapp", file)
        wait_until(lambda: "1 online" in fedrc("node", "list", federation.file).stdout, "the node")
        server = read_superlink_file(federation.file)

        done = submit(server, configured(**SETTINGS), "theft", lambda event: None, app=app)

        logs = (folder / "supernode.log").read_text() + (folder / "clientapp.log").read_text()
        assert done.completed, (done.reason, logs)
        assert loot.read_text() == "PermissionError"
        assert loot.stat().st_uid == CLIENT
    finally:
        federation.stop()
        for process in started:
            process.kill()
