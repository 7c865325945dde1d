"""Copies of this app whose client half misbehaves on purpose."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

HEAD = """
import pathlib
import time

import numpy as np
from flwr.app import ConfigRecord
from flwr.clientapp import ClientApp

from client_app import app as honest
from fedrc_flwr.records import closed, opened

app = ClientApp()
app.query("enrol")(honest.enrol)
app.evaluate()(honest.evaluate)


@app.train()
def train(message, context):
    who = context.node_config["partition-id"]
    round_number = message.content["broadcast"]["round"]
"""


def misbehaving_app(folder: Path, body: str) -> Path:
    """The app with ``body`` as its train handler; it knows ``who`` and ``round_number``."""
    app = folder / "app"
    app.mkdir()
    for package in ("fedrc_flwr", "server_app", "client_app"):
        shutil.copytree(ROOT / package, app / package)
    (app / "faulty").mkdir()
    (app / "faulty" / "__init__.py").write_text("")
    (app / "faulty" / "app.py").write_text(HEAD + body)
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, app / name)
    project = (ROOT / "pyproject.toml").read_text()
    lines = [line for line in project.splitlines() if not line.startswith("fab-exclude")]
    changed = "\n".join(lines).replace('"client_app.app:app"', '"faulty.app:app"')
    (app / "pyproject.toml").write_text(changed)
    return app
