"""The names under which nodes were registered, which Flower does not tell the ServerApp.

`fedrc run` asks the SuperLink for them and writes them into the run's directory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fedrc_flwr.files import replacing

NAMES = "nodes.json"


def registered_names(directory: Path) -> dict[int, str]:
    """The registered nodes by their ids, with an empty name for one that has none."""
    try:
        content = json.loads((directory / NAMES).read_text("utf-8"))
    except FileNotFoundError:
        return {}
    return {int(node): str(name) for node, name in content.items()}


def write_names(directory: Path, names: Mapping[int, str]) -> None:
    """Write the names of the nodes by their ids, for ``registered_names``."""
    directory.mkdir(parents=True, exist_ok=True)
    with replacing(directory / NAMES) as beside:
        beside.write_text(json.dumps({str(node): name for node, name in names.items()}), "utf-8")
