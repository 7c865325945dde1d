"""Settings: keys with their defaults, ranges and documentation, in sections.

A section is a frozen dataclass beside the code that reads it. Its fields are declared with ``key``.
Users write a key by its dotted name: the section's name, a dot, and its own name with dashes, as in
``local.learning-rate``. ``config.py`` puts the sections together.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from fedrc_flwr.errors import ConfigError

Scalar = bool | int | float | str
S = TypeVar("S")


def key(
    default: Scalar,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
    infinite: bool = False,
    numbers: bool = False,
    rounds: bool = False,
    common: bool = False,
) -> Any:
    """Declare a key.

    Parameters
    ----------
    low, high, above : the range of a number; ``above`` itself is not allowed
    choices : what a text may be
    infinite : whether infinity is allowed
    numbers : a text of numbers separated by commas, which may be given as a list or one number
    rounds : a number of rounds, which shrinks with a comparison's scale
    common : one of the keys that people usually set
    """
    metadata = {
        "doc": doc, "low": low, "high": high, "above": above, "choices": choices,
        "infinite": infinite, "numbers": numbers, "rounds": rounds, "common": common,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


def keys_of(section: type, prefix: str = "") -> dict[str, dataclasses.Field[Any]]:
    """The keys of a section by their dotted names."""
    dot = f"{prefix}." if prefix else ""
    return {
        f"{dot}{dashed(field.name)}": field
        for field in dataclasses.fields(section)
        if "doc" in field.metadata
    }


def build(section: type[S], prefix: str, values: Mapping[str, Any]) -> S:
    """A section filled from what was given by dotted name; other names are ignored."""
    checked = {
        field.name: check(name, values[name], field)
        for name, field in keys_of(section, prefix).items()
        if name in values
    }
    return section(**checked)


def flat(section: Any, prefix: str = "") -> dict[str, Scalar]:
    """Every key of a section by its dotted name; infinity, which JSON lacks, becomes text."""
    values = {
        name: getattr(section, field.name) for name, field in keys_of(type(section), prefix).items()
    }
    return {name: "inf" if value == math.inf else value for name, value in values.items()}


def check(name: str, value: Any, field: dataclasses.Field[Any]) -> Scalar:
    """The value in the field's own type, or an error that names key, value and what is allowed."""
    try:
        return _converted(value, field)
    except (ValueError, OverflowError):
        raise ConfigError(f"{name} = {value!r}: expected {allowed(field)}") from None


def _converted(value: Any, field: dataclasses.Field[Any]) -> Scalar:
    """The value in the field's own type; ValueError where it does not fit."""
    kind, meta = str(field.type), field.metadata
    if kind == "bool":
        if not isinstance(value, bool):
            raise ValueError
        return value
    if kind == "str":
        if meta["numbers"]:
            parts = value if isinstance(value, list) else [value]
            if all(type(part) in (int, float) for part in parts):
                value = ",".join(str(part) for part in parts)
        if not isinstance(value, str) or (meta["choices"] and value not in meta["choices"]):
            raise ValueError
        return value
    if kind == "float" and type(value) in (int, str):
        value = float(value)  # YAML takes `inf` and `1e-3` for text
    if type(value) not in (int, float) or value != value:
        raise ValueError
    if kind == "int":
        if isinstance(value, float) and not value.is_integer():
            raise ValueError
        value = int(value)
    if (
        (meta["low"] is not None and value < meta["low"])
        or (meta["high"] is not None and value > meta["high"])
        or (meta["above"] is not None and value <= meta["above"])
        or (value == math.inf and not meta["infinite"])
    ):
        raise ValueError
    return float(value) if kind == "float" else int(value)


def allowed(field: dataclasses.Field[Any]) -> str:
    """What a key may be, in words: ``a whole number from 1 to 500``."""
    meta = field.metadata
    if meta["choices"]:
        *first, last = (f"`{choice}`" for choice in meta["choices"])
        return f"{', '.join(first)} or {last}" if first else last
    if meta["numbers"]:
        return "numbers separated by commas"
    kinds = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "text"}
    low, above, high = (
        None if meta[bound] is None else _digits(meta[bound]) for bound in ("low", "above", "high")
    )
    bounds = ""
    if low is not None:
        bounds = f" of at least {low}" if high is None else f" from {low} to {high}"
    elif above is not None:
        bounds = f" above {above}" if high is None else f" above {above} and at most {high}"
    elif high is not None:
        bounds = f" of at most {high}"
    return f"{kinds[str(field.type)]}{bounds}"


def _digits(bound: float) -> str:
    return f"{bound:g}" if bound < 1e6 else f"{bound:.0f}"


def suggest(name: str, known: Iterable[str], prefer: str = "") -> str:
    """The end of a message about an unknown key: a similar key, or where to look.

    Of keys with the same last part, one of the section ``prefer`` comes first.
    """
    names = sorted(known, key=lambda full: not full.startswith(f"{prefer}."))
    wanted = name.replace("_", "-")
    ends = [full for full in names if full.rpartition(".")[2] == wanted]
    close = ends[:1] or difflib.get_close_matches(wanted, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else "; `fedrc config --all` lists the keys"


def dashed(name: str) -> str:
    """A field as users write it; a name that Python reserves ends with an underscore."""
    return name.rstrip("_").replace("_", "-")


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys: ``{"local": {"epochs": 3}}`` is ``{"local.epochs": 3}``.

    An empty table stays, so that its name can be checked.
    """
    result: dict[str, Any] = {}
    for name, value in values.items():
        whole = f"{prefix}{name}"
        found = flattened(value, f"{whole}.") if isinstance(value, Mapping) else {}
        for dotted, one in (found or {whole: value}).items():
            if dotted in result:
                raise ConfigError(f"{dotted} is given twice")
            result[dotted] = one
    return result
