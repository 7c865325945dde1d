"""The names under which nodes were registered, which Flower does not tell the ServerApp.

Where nodes have keys, the gate in front of the SuperLink keeps them in a file that ``fedrc
serverapp`` names in the environment. In a trial without keys, `fedrc run` asks the SuperLink and
writes what it knows into the run's directory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from fedrc_flwr.files import replacing

NAMES = "nodes.json"
REGISTRY = "FEDRC_NODES"


def nodes_have_keys() -> bool:
    """Whether a name belongs to a key here, so that nobody else may use it."""
    return REGISTRY in os.environ


def registered_names(directory: Path) -> dict[int, str]:
    """The registered nodes by their ids, with an empty name for one that has none."""
    registry = os.environ.get(REGISTRY)
    try:
        content = json.loads(Path(registry or directory / NAMES).read_text("utf-8"))
    except FileNotFoundError:
        return {}
    return {int(node): str(name) for node, name in content.items()}


def write_names(directory: Path, names: Mapping[int, str]) -> None:
    """Write the names of the nodes by their ids, for ``registered_names``."""
    write_registry(directory / NAMES, names)


def write_registry(path: Path, names: Mapping[int, str]) -> None:
    """Write the names of the nodes by their ids to a file."""
    with replacing(path) as beside:
        beside.write_text(json.dumps({str(node): name for node, name in names.items()}), "utf-8")
