"""Ready-made YAML files by name, and the user's own by path: scenarios, recipes, comparisons."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from fedrc_flwr.errors import ConfigError
from fedrc_flwr.words import similar

#: libyaml's parser where PyYAML was built with it; it is ten times as fast.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _UniqueKeys(_Loader):  # type: ignore[misc]
    """Refuses a key that is given twice; YAML would let the last one win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.value in lines and isinstance(key, yaml.ScalarNode):
                raise ConfigError(
                    f"{key.value} is given twice, in line {lines[key.value]} and in line {line}"
                )
            if isinstance(key, yaml.ScalarNode):
                lines[key.value] = line
        return dict(super().construct_mapping(node, deep))


def names(folder: Path) -> list[str]:
    """The ready-made files of a folder."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def read(kind: str, name_or_path: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """A ready-made file of the folder, or the user's own: its path and its content."""
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        path = folder / f"{name_or_path}.yaml"
    try:
        content = yaml.load(path.read_text("utf-8"), _UniqueKeys)
    except FileNotFoundError:
        known = names(folder)
        raise ConfigError(
            f"{kind} = {name_or_path!r}: no such {kind}{similar(name_or_path, known) or '.'} "
            f"Ready-made ones are {', '.join(known)}; or give the path of a .yaml file"
        ) from None
    except (OSError, ValueError, yaml.YAMLError, ConfigError) as error:
        raise ConfigError(f"{kind} file {path}: {error}") from None
    content = {} if content is None else content
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ConfigError(f"{kind} file {path}: expected lines of the form `key: value`")
    return path, content
