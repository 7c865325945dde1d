"""From what users write to the frozen configuration: parsed and checked once, at the edge.

Three layers, the later one wins: the defaults, the keys of the named scenario file, and what the
user set (``--run-config``, ``--set``). In Flower's run configuration a key that holds ``"auto"``
was not set by the user.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from fedrc_flwr.config import RunConfig, dashed
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.keys import MIXES, MODELS, PERSONAL, SINGLE, Scalar
from fedrc_flwr.plugins import is_reference

AUTO = "auto"
SCENARIOS = Path(__file__).parent / "scenarios"


def load_config(given: Mapping[str, Any]) -> RunConfig:
    """Check what the user gave, lay it over its scenario and the defaults, and freeze it."""
    user = {k: v for k, v in given.items() if v != AUTO}
    scenario = user.get("scenario", RunConfig.scenario)
    if not isinstance(scenario, str):
        raise ConfigError(f"scenario = {scenario!r}: expected the name or path of a scenario file")
    values = {**read_scenario(scenario), **user, "scenario": scenario}
    fields = {dashed(f.name): f for f in dataclasses.fields(RunConfig)}
    checked: dict[str, Scalar] = {}
    for name, value in values.items():
        if name not in fields:
            raise ConfigError(f"unknown key {name!r}{_suggest(name, fields)}")
        checked[fields[name].name] = _check(name, value, fields[name])
    config = RunConfig(**checked)  # type: ignore[arg-type]
    _check_together(config)
    return config


def scenario_names() -> list[str]:
    """Names of the ready-made scenarios."""
    return sorted(path.stem for path in SCENARIOS.glob("*.yaml"))


def read_scenario(name_or_path: str) -> dict[str, Any]:
    """The keys that a scenario file sets, unchecked."""
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        path = SCENARIOS / f"{name_or_path}.yaml"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"scenario = {name_or_path!r}: no such scenario; ready-made ones are "
            f"{', '.join(scenario_names())}, or give the path of a .yaml file"
        ) from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"scenario file {path}: {error}") from None
    if not isinstance(content, dict) or not all(isinstance(k, str) for k in content):
        raise ConfigError(f"scenario file {path}: expected lines of the form `key: value`")
    if "scenario" in content:
        raise ConfigError(f"scenario file {path}: a scenario cannot name another one")
    return content


def parse_setting(text: str) -> tuple[str, Any]:
    """``key=value`` as on the command line; the value is read as YAML (numbers, true/false)."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"{text!r}: expected key=value")
    try:
        parsed = yaml.safe_load(value) if value.strip() else ""
    except (ValueError, yaml.YAMLError) as error:  # ValueError: a date with a thirteenth month
        raise ConfigError(f"{text!r}: {error}") from None
    return name.strip(), parsed


def describe_keys() -> str:
    """The reference table of all keys, in Markdown."""
    lines: list[str] = []
    for field in dataclasses.fields(RunConfig):
        if group := field.metadata["group"]:
            lines += [
                "",
                f"### {group}",
                "",
                "| key | default | allowed | meaning |",
                "|---|---|---|---|",
            ]
        default = f"`{field.default}`" if field.default != "" else "empty"
        lines.append(
            f"| `{dashed(field.name)}` | {default} | {_allowed(field)} | {field.metadata['doc']} |"
        )
    return "\n".join(lines).strip() + "\n"


def _allowed(field: dataclasses.Field[Any]) -> str:
    meta = field.metadata
    if meta["choices"]:
        return ", ".join(f"`{choice}`" for choice in meta["choices"])
    bounds = []
    if meta["above"] is not None:
        bounds.append(f"> {meta['above']:g}")
    if meta["low"] is not None:
        bounds.append(f">= {meta['low']:g}")
    if meta["high"] is not None:
        bounds.append(f"<= {meta['high']:g}" if meta["high"] < 1e6 else f"<= {meta['high']:.0f}")
    kind = {"bool": "true or false", "int": "whole number", "float": "number", "str": "text"}
    return " ".join([kind[str(field.type)], *([", ".join(bounds)] if bounds else [])])


def _check(name: str, value: Any, field: dataclasses.Field[Any]) -> Scalar:
    """The value in the field's own type, or an error that names key, value and what is allowed."""
    problem = ConfigError(f"{name} = {value!r}: expected {_allowed(field)}")
    kind = str(field.type)
    if kind == "bool":
        if not isinstance(value, bool):
            raise problem
        return value
    if kind == "str":
        # `--set concept-shares=1` and YAML lists arrive as numbers and lists: shares are text.
        if field.name.endswith("_shares"):
            numbers = value if isinstance(value, list) else [value]
            if all(type(number) in (int, float) for number in numbers):
                value = ",".join(str(number) for number in numbers)
        if field.name == "input_shape" and type(value) is int:
            value = str(value)  # one number
        if not isinstance(value, str):
            raise problem
        if field.metadata["choices"] and value not in field.metadata["choices"]:
            raise problem
        return value
    if kind == "float" and type(value) in (int, str):
        try:
            value = float(value)  # YAML takes `inf` and `1e-3` for text
        except (ValueError, OverflowError):
            raise problem from None
    if type(value) not in (int, float) or value != value:
        raise problem
    if kind == "int":
        if isinstance(value, float) and not value.is_integer():
            raise problem
        value = int(value)
    meta = field.metadata
    if (
        (meta["low"] is not None and value < meta["low"])
        or (meta["high"] is not None and value > meta["high"])
        or (meta["above"] is not None and value <= meta["above"])
        or (value == math.inf and field.name != "alpha")
    ):
        raise problem
    return float(value) if kind == "float" else int(value)


def _check_together(config: RunConfig) -> None:
    """What no key can be checked for alone."""
    _check_names(config)
    concepts = len(config.shares())
    if len(config.corrupted()) != concepts:
        raise ConfigError(
            f"corrupted-shares = {config.corrupted_shares!r}: expected {concepts} numbers, one for "
            f"each of concept-shares = {config.concept_shares!r}"
        )
    if config.run_name in (".", "..") or set(config.run_name) & set("/\\\0"):
        raise ConfigError(
            f"run-name = {config.run_name!r}: expected the name of a directory, no path"
        )
    if config.resume_round and not config.resume:
        raise ConfigError(f"resume-round = {config.resume_round}: expected resume = true with it")
    if config.skip_below * config.clusters >= 1:
        raise ConfigError(
            f"skip-below = {config.skip_below}: expected less than 1 / clusters = "
            f"{1 / config.clusters:g}, or nobody would train"
        )
    if config.algorithm in (*PERSONAL, "cfl") and config.shared_body:
        raise ConfigError(
            f"shared-body = true: algorithm = {config.algorithm!r} trains whole networks"
        )
    if config.algorithm in ("fedsoft", "pfedme") and config.prox_mu > 0:
        raise ConfigError(
            f"prox-mu = {config.prox_mu}: algorithm = {config.algorithm!r} has a proximal term of "
            "its own"
        )
    if config.algorithm in SINGLE and config.clusters != 1:
        object.__setattr__(config, "clusters", 1)


def _check_names(config: RunConfig) -> None:
    """Texts that name one of several things."""
    if config.model not in MODELS and not is_reference(config.model):
        raise ConfigError(
            f"model = {config.model!r}: expected {', '.join(MODELS)} or package.module:function"
        )
    if config.model_weights and config.model not in ("mobilenet-v2", "resnet18"):
        raise ConfigError(
            f"model-weights = {config.model_weights!r}: expected no such file for model = "
            f"{config.model!r}, only for mobilenet-v2 and resnet18"
        )
    if not config.dataset.strip() or "\0" in config.dataset:
        raise ConfigError(
            f"dataset = {config.dataset!r}: expected a dataset's name, a path, or "
            "package.module:function"
        )
    config.shape()
    config.logger_names()
    for name in ("concept_shares", "corrupted_shares"):
        value = getattr(config, name)
        if config.mix in MIXES and value != getattr(RunConfig, name):
            raise ConfigError(
                f"{dashed(name)} = {value!r}: mix = {config.mix!r} sets the shares already; set "
                "mix = shares to choose them yourself"
            )


def _suggest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name.replace("_", "-"), list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else "; `fedrc config` lists the keys"
