"""A run whose app or settings a node has not allowed, on a real federation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from apps import ROOT
from processes import Federation, Part, fedrc, wait_until
from settings_of import configured

from deploy.allowing import bundle_hash
from deploy.files import read_superlink_file
from deploy.submit import Submitted
from deploy.submit import run as submit
from fedrc_flwr.report.log import Event

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(900)]
SETTINGS = {
    "clients": 2, "rounds": 1, "hidden": 4, "clusters": 2, "min_clients": 1, "evaluate_every": 1,
    "enrolment_timeout": 45.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("federation"))
    try:
        made.start()
        made.node("hospital", 0).start()
        wait_until(
            lambda: (
                "1 nodes registered, 1 online" in fedrc("node", "list", made.file).stdout
                or "1 node registered, 1 online" in fedrc("node", "list", made.file).stdout
            ),
            "the node online",
        )
        yield made
    finally:
        made.stop()


def attempt(
    federation: Federation, name: str, app: Path | None = None, **settings: object
) -> tuple[Submitted, list[Event]]:
    events: list[Event] = []
    config = configured(**{**SETTINGS, **settings})
    server = read_superlink_file(federation.file)
    done = submit(server, config, name, events.append, app=app)
    return done, events


def reasons(events: list[Event]) -> str:
    return " ".join(str(e["reason"]) for e in events if e.get("event") == "refused")


def hostile_app(folder: Path, loot: Path) -> Path:
    """This app, but whoever imports its client writes what it has read to ``loot``."""
    app = folder / "app"
    app.mkdir()
    for package in ("fedrc_flwr", "server_app", "client_app"):
        shutil.copytree(ROOT / package, app / package)
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, app / name)
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    kept = [line for line in lines if not line.startswith("fab-exclude")]
    (app / "pyproject.toml").write_text("\n".join(kept))
    client = app / "client_app" / "app.py"
    client.write_text(
        f"import pathlib\npathlib.Path({str(loot)!r}).write_text('taken')\n"
        + client.read_text().replace("from __future__ import annotations\n", "")
    )
    return app


def node(federation: Federation) -> Part:
    return federation.nodes["hospital"]


def test_an_app_that_the_node_has_not_allowed_is_not_imported(
    federation: Federation, tmp_path: Path
) -> None:
    loot = tmp_path / "loot"
    app = hostile_app(tmp_path, loot)

    done, events = attempt(federation, "hostile", app)

    assert not done.completed
    assert not loot.exists()
    assert "its policy does not allow this app" in reasons(events)
    assert bundle_hash(str(app)) in reasons(events)
    assert "app-not-allowed" in node(federation).log()


def test_a_run_that_names_a_function_on_the_node_is_refused(
    federation: Federation, tmp_path: Path
) -> None:
    # The server can import it, so that only the node stands in the way.
    loot = tmp_path / "loot"
    module = tmp_path / "theirs.py"
    module.write_text(
        "import os, pathlib\nfrom torch import nn\n"
        f"if 'deploy.node' in open('/proc/self/cmdline').read(): "
        f"pathlib.Path({str(loot)!r}).write_text('taken')\n"
        "def net(input_shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )

    done, events = attempt(federation, "function", network=f"{module}:net")

    assert not done.completed
    assert not loot.exists()
    assert "its policy does not allow what this run asks for in 'model.network'" in reasons(events)


def test_an_honest_run_goes_through_and_so_does_an_app_that_was_allowed(
    federation: Federation, tmp_path: Path
) -> None:
    done, events = attempt(federation, "honest")

    assert done.completed, (done.reason, node(federation).log()[-3000:])
    loot = tmp_path / "loot"
    app = hostile_app(tmp_path, loot)
    allowed = fedrc("node", "allow", federation.folder / "hospital" / "node.yaml", app)
    assert allowed.returncode == 0, allowed.stderr

    done, events = attempt(federation, "allowed", app)

    assert done.completed, (done.reason, reasons(events), node(federation).log()[-3000:])
    assert loot.read_text() == "taken"
    summary = json.loads((federation.outputs / "allowed" / "summary.json").read_text())
    assert summary["status"] == "completed"


def test_an_app_that_is_not_allowed_is_refused_while_the_worker_of_another_is_warm(
    federation: Federation, tmp_path: Path
) -> None:
    done, _ = attempt(federation, "warm")
    assert done.completed, done.reason
    (worker,) = federation.processes("deploy.node.worker")
    loot = tmp_path / "loot"

    done, events = attempt(federation, "hostile-beside-a-warm-one", hostile_app(tmp_path, loot))

    assert not done.completed
    assert not loot.exists()
    assert "its policy does not allow this app" in reasons(events)
    assert federation.processes("deploy.node.worker") == [worker]
