"""`fedrc node allow`: the hash of an app, and adding it to a node's file."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import yaml

from deploy.bundle import hash_of
from fedrc_flwr.errors import ConfigError


def bundle_hash(app: str) -> str:
    """The hash of a bundle: as given, of a .fab file, or of what an app's directory makes."""
    if re.fullmatch(r"[0-9a-fA-F]{64}", app):
        return app.lower()
    path = Path(app).expanduser()
    if path.is_file():
        return hash_of(path.read_bytes())
    if not (path / "pyproject.toml").is_file():
        raise ConfigError(f"{app}: expected a hash, a .fab file, or an app's directory")
    from flwr.cli.build import build_fab_from_disk

    return hash_of(build_fab_from_disk(path))


def allow(path: Path, apps: Sequence[str], added: str) -> None:
    """Write the hash into ``policy.apps`` of node.yaml; the rest of the file stays as it is."""
    if added in apps:
        return
    text = path.read_text("utf-8")
    value = f"[{', '.join([*apps, added])}]"
    root = yaml.compose(text, yaml.SafeLoader)
    policy = _value(root, "policy")
    if policy is None:
        text = f"{text.rstrip()}\n\npolicy:\n  apps: {value}\n"
    elif (listed := _value(policy, "apps")) is not None:
        # A list of lines ends where the next key begins.
        old = text[listed.start_mark.index : listed.end_mark.index]
        blank = old[len(old.rstrip()) :]
        text = text[: listed.start_mark.index] + value + blank + text[listed.end_mark.index :]
    elif isinstance(policy, yaml.MappingNode) and not policy.flow_style:
        start = policy.start_mark
        text = f"{text[: start.index]}apps: {value}\n{' ' * start.column}{text[start.index :]}"
    else:
        raise ConfigError(f"{path}: write policy with one key per line, so that apps can be added")
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, "utf-8")
    beside.chmod(path.stat().st_mode & 0o777)
    os.replace(beside, path)


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)
