"""The reference of all settings, as Markdown and as the tables of ``pyproject.toml``."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from fedrc_flwr.algorithms import ALGORITHMS
from fedrc_flwr.config import SECTIONS, all_sections
from fedrc_flwr.flower import toml
from fedrc_flwr.settings import allowed, keys_of

TITLES = {
    "": "Run",
    "run": "Outputs and resuming",
    "data": "Data",
    "model": "Network",
    "local": "Local training",
    "server": "Aggregation and server optimizer",
    "federation": "Rounds and messages",
    "privacy": "Privacy of the statistics",
    "attack": "Attackers in a simulation",
}
HEAD = ["| key | default | allowed | meaning |", "|---|---|---|---|"]


def tables(everything: bool) -> str:
    """All settings by section, or one table of those that people usually change."""
    if not everything:
        common = [row for rows in _sections(common=True).values() for row in rows]
        return "\n".join([*HEAD, *common]) + "\n"
    lines: list[str] = []
    for name, rows in _sections(common=False).items():
        lines += ["", f"### {_title(name)}", "", *HEAD, *rows]
    return "\n".join(lines).strip() + "\n"


def toml_tables() -> str:
    """Every setting with its default, as Flower's run configuration wants them."""
    lines: list[str] = []
    for name, section in all_sections().items():
        lines += ["", f"[tool.flwr.app.config{'.' * bool(name)}{name}]"]
        for key, field in keys_of(section).items():
            default = "inf" if field.default == math.inf else toml(field.default)
            lines.append(f"{key} = {default}")
    return "\n".join(lines).strip() + "\n"


def _sections(common: bool) -> dict[str, list[str]]:
    """Rows by section; of the algorithms only FedRC's are common."""
    rows = {}
    for name, section in all_sections().items():
        if common and name not in ("", "fedrc", *SECTIONS):
            continue
        rows[name] = [
            _row(key, field)
            for key, field in keys_of(section, name).items()
            if field.metadata["common"] or not common
        ]
    return rows


def _row(name: str, field: dataclasses.Field[Any]) -> str:
    default = f"`{field.default}`" if field.default != "" else "empty"
    return f"| `{name}` | {default} | {allowed(field)} | {field.metadata['doc']} |"


def _title(name: str) -> str:
    if name in ALGORITHMS:
        return f"`{name}`: {ALGORITHMS[name].title}"
    return f"`{name}`: {TITLES[name]}" if name else TITLES[name]
