"""A YAML file whose keys are the fields of a dataclass."""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deploy.policy import Policy
from fedrc_flwr.errors import ConfigError


@dataclass(frozen=True)
class Address:
    """``host:port``."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def on_loopback(self) -> bool:
        """Whether only programs on the same machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def read_file(path: Path, kind: type[Any]) -> dict[str, Any]:
    """The values of a YAML file whose keys are the fields of a dataclass."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from None
    return _converted(path, content, kind)


def _converted(path: Path, content: Any, kind: type[Any], section: str = "") -> dict[str, Any]:
    """The values of a file, or of a section of it, for the fields of ``kind``."""
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: {section}expected lines of the form `key: value`")
    fields = {f.name.replace("_", "-"): f for f in dataclasses.fields(kind)}
    values = {}
    for name, value in content.items():
        if name not in fields:
            close = difflib.get_close_matches(str(name), list(fields), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(fields)}"
            raise ConfigError(f"{path}: {section}unknown key {name!r}{hint}")
        values[fields[name].name] = _convert(path, name, value, str(fields[name].type))
    for name, declared in fields.items():
        optional = (declared.default, declared.default_factory) != (dataclasses.MISSING,) * 2
        if not optional and declared.name not in values:
            raise ConfigError(f"{path}: {name} is missing: expected {_wanted(str(declared.type))}")
    return values


def _convert(path: Path, name: str, value: Any, kind: str) -> Any:
    problem = ConfigError(f"{path}: {name} = {value!r}: expected {_wanted(kind)}")
    match kind.removesuffix(" | None"):
        case "Address":
            host, colon, port = str(value).rpartition(":")
            if not colon or not host or set(host) & set("/ @") or not port.isdecimal():
                raise problem
            if not 0 < int(port) < 65_536:
                raise problem
            return Address(host.strip("[]"), int(port))
        case "Path":
            if not isinstance(value, str) or not value:
                raise problem
            return (path.resolve().parent / Path(value).expanduser()).resolve()
        case "bool":
            if not isinstance(value, bool):
                raise problem
        case "int":
            if not isinstance(value, int) or isinstance(value, bool):
                raise problem
        case "float":
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                raise problem
        case "str":
            if not isinstance(value, str):
                raise problem
        case "tuple[str, ...]":
            if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
                raise problem
            return tuple(value)
        case "Policy":
            try:
                return Policy(**_converted(path, value, Policy, "policy: "))
            except ConfigError as error:
                told = str(error)
                raise ConfigError(
                    told if told.startswith(str(path)) else f"{path}: policy: {told}"
                ) from None
    return value


def _wanted(kind: str) -> str:
    return {
        "Address": "host:port", "Path": "a path", "bool": "true or false",
        "int": "a whole number", "float": "a number", "str": "text",
        "tuple[str, ...]": "a list, such as [a, b]", "Policy": "a section of keys",
    }[kind.removesuffix(" | None")]  # fmt: skip
