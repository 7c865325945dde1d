"""The configuration of a run, put together from the sections beside the code that reads them.

Four layers, later ones win: the defaults, a scenario (who holds which data), a recipe (how to
learn), and what the user set. A scenario and a recipe never set the same key.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import yaml

from fedrc_flwr import settings, yaml_files
from fedrc_flwr.aggregation import ServerSettings
from fedrc_flwr.algorithms import ALGORITHMS
from fedrc_flwr.algorithms.base import ClusteredAlgorithm
from fedrc_flwr.algorithms.settings import AlgorithmSettings
from fedrc_flwr.attacks import AttackSettings
from fedrc_flwr.data.own import carried, implied, located
from fedrc_flwr.data.settings import DataSettings, title
from fedrc_flwr.engine.outputs import RunSettings
from fedrc_flwr.engine.participation import FederationSettings
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.models import ModelSettings
from fedrc_flwr.plugins import refuse_code
from fedrc_flwr.privacy import PrivacySettings
from fedrc_flwr.report.log import CONFIG
from fedrc_flwr.settings import Scalar, key
from fedrc_flwr.sgd import LocalSettings

SCENARIOS = Path(__file__).parent / "scenarios"
RECIPES = Path(__file__).parent / "recipes"
#: The sections that a scenario may set; everything else is a recipe's.
SCENARIO_SECTIONS = ("data", "model", "attack")
#: What a run can only be resumed with as it was started, besides data and network.
FIXED = ("scenario", "recipe", "algorithm", "seed")
FIXED_OF_ALGORITHMS = ("clusters", "shared-body", "initial-spread")
#: Keys that neither may set.
RUN_KEYS = ("scenario", "recipe", "seed", "resolved")


#: How a function that a file names is trusted.
NAME_IT = "set it yourself: --set {key}={value}"


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run; of the algorithms' sections, only that of its algorithm."""

    scenario: str = key(
        "digits",
        "Who holds which data: the name of a ready-made scenario, or the path of a scenario file.",
        common=True,
    )
    recipe: str = key(
        "default",
        "How to learn: the name of a ready-made recipe, or the path of a recipe file.",
        common=True,
    )
    algorithm: str = key("fedrc", "The algorithm.", choices=tuple(ALGORITHMS), common=True)
    rounds: int = key(
        100, "Number of communication rounds.", low=1, high=100_000, rounds=True, common=True
    )
    seed: int = key(
        0,
        "Seed of the data split, the initial models, the client sampling and the batches.",
        low=0,
        high=2**31 - 1,
        common=True,
    )
    resolved: bool = key(
        False,
        "Set by the `fedrc` command: every key is given, so that scenario and recipe are not read "
        "again.",
    )
    run: RunSettings = field(default_factory=RunSettings)
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    local: LocalSettings = field(default_factory=LocalSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    federation: FederationSettings = field(default_factory=FederationSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    attack: AttackSettings = field(default_factory=AttackSettings)
    algorithm_settings: AlgorithmSettings = field(default_factory=ALGORITHMS["fedrc"].Settings)

    def placed(self, directory: Path, state_dir: Path | None = None) -> RunConfig:
        """The same for a run in this directory, with every key given."""
        return replace(self, resolved=True, run=self.run.placed(directory, state_dir))

    def carried(self) -> RunConfig:
        """The same with the content of files that other machines need."""
        return replace(self, data=carried(self.data))

    def located(self) -> RunConfig:
        """The same with absolute paths: the app runs in another directory."""
        return replace(self, data=located(self.data), model=self.model.located())

    def named(self) -> str:
        """What the run is called: after its scenario, or after the user's own data."""
        return title(self.scenario, str(self.to_dict()["data.dataset"]))

    def resumed(self, after_round: int = 0) -> RunConfig:
        """The same, to continue the run in its directory."""
        return replace(self, run=self.run.resumed(after_round))

    def needs_start(self, name: str) -> str:
        """The `start` of the algorithm with which alone it reads a key; empty: it reads it."""
        section, _, key_name = name.partition(".")
        if section != self.algorithm:
            return ""
        return self.algorithm_settings.needs_start(key_name.replace("-", "_"))

    def to_dict(self) -> dict[str, Scalar]:
        """Every key that this run reads and its value, under dotted names."""
        values = settings.flat(self)
        for name in SECTIONS:
            values |= settings.flat(getattr(self, name), name)
        return values | settings.flat(self.algorithm_settings, self.algorithm)


#: The sections that every run has.
SECTIONS: dict[str, type] = {
    section.name: cast(type, section.default_factory)
    for section in dataclasses.fields(RunConfig)
    if "doc" not in section.metadata and section.name != "algorithm_settings"
}


def all_sections() -> dict[str, type]:
    """Every section by name: top-level keys, those that every run has, and each algorithm's."""
    return {"": RunConfig, **SECTIONS, **{name: cls.Settings for name, cls in ALGORITHMS.items()}}


def all_keys() -> dict[str, dataclasses.Field[Any]]:
    """All keys by dotted name."""
    found: dict[str, dataclasses.Field[Any]] = {}
    for name, section in all_sections().items():
        found |= settings.keys_of(section, name)
    return found


def load_config(given: Mapping[str, Any]) -> RunConfig:
    """Combine defaults, scenario, recipe and what the user set, and check the result."""
    user = settings.flattened(given)
    _refuse_unknown(user, prefer=str(user.get("algorithm", RunConfig.algorithm)))
    if user.get("resolved") is True:
        return _build(user)
    user = {**implied(user), **user}
    names = {name: user.get(name, getattr(RunConfig, name)) for name in ("scenario", "recipe")}
    for name, value in names.items():
        if not isinstance(value, str):
            raise ConfigError(f"{name} = {value!r}: expected the name or path of a {name} file")
    scenario = read_scenario(names["scenario"])
    unset = {name: value for name, value in scenario.items() if name not in user}
    refuse_code(f"scenario file {names['scenario']}", unset, (), NAME_IT)
    recipe = read_recipe(names["recipe"])
    config = _build({**scenario, **recipe, **user})
    for name in user:
        section = name.partition(".")[0]
        if "." in name and section in ALGORITHMS and section != config.algorithm:
            raise ConfigError(
                f"{name}: a setting of {section}, but algorithm = {config.algorithm!r} runs"
            )
    known = all_keys()
    for name, value in {**recipe, **user}.items():
        start = config.needs_start(name)
        if start and not _is(value, known[name].default):
            raise ConfigError(
                f"{name}: only read with {config.algorithm}.start = {start}; set that too, or "
                "leave it out"
            )
    return config


def from_flower(run_config: Mapping[str, Any]) -> RunConfig:
    """The configuration that Flower hands to an app.

    Flower fills in every key from ``pyproject.toml``. Unless the run was submitted by the ``fedrc``
    command, a key that has its default was not set, and the scenario or the recipe may set it.
    """
    known = all_keys()
    given = settings.flattened(run_config)
    if given.get("resolved") is True:
        return load_config(given)
    return load_config(
        {
            name: value
            for name, value in given.items()
            if name not in known or not _is(value, known[name].default)
        }
    )


def _is(value: Any, default: Any) -> bool:
    """Whether a value is the default, and not only equal to it, as 0 is to false."""
    return type(value) is type(default) and value == default


def build_algorithm(config: RunConfig) -> ClusteredAlgorithm:
    """The algorithm of a configuration, with its settings."""
    return ALGORITHMS[config.algorithm](
        config.algorithm_settings, config.local, config.server, config.privacy
    )


def recorded_config(directory: Path, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The settings to continue the run in a directory with: as recorded, but for some changes.

    What the clients' data or the models depend on cannot be changed.
    """
    try:
        recorded: dict[str, Any] = json.loads((directory / CONFIG).read_text("utf-8"))
        resumed = {**recorded, "resolved": True, "run.resume": True}
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{directory} holds no run to resume: {error}") from None
    refuse_code(directory, recorded, settings.flattened(changes or {}).values(), NAME_IT)
    for name, value in settings.flattened(changes or {}).items():
        section, _, last = name.rpartition(".")
        fixed = name in FIXED or section in SCENARIO_SECTIONS or last in FIXED_OF_ALGORITHMS
        if fixed and name != "data.directory" and value != recorded.get(name):
            raise ConfigError(
                f"{name} = {value!r}: a run can only be resumed with the value that it was started "
                f"with, {recorded.get(name)!r}; start a new run"
            )
        resumed[name] = value
    return resumed


def scenario_names() -> list[str]:
    """Names of the ready-made scenarios."""
    return yaml_files.names(SCENARIOS)


def recipe_names() -> list[str]:
    """Names of the ready-made recipes."""
    return yaml_files.names(RECIPES)


def read_scenario(name_or_path: str) -> dict[str, Any]:
    """The keys that a scenario sets: who holds which data, and nothing about learning."""
    return _read_file(
        "scenario",
        name_or_path,
        SCENARIOS,
        lambda name: name.partition(".")[0] in SCENARIO_SECTIONS,
        "a scenario, which says who holds which data: put it into a recipe, or set it with --set",
    )


def read_recipe(name_or_path: str) -> dict[str, Any]:
    """The keys that a recipe sets: how to learn, and nothing about the data."""
    return _read_file(
        "recipe",
        name_or_path,
        RECIPES,
        lambda name: (
            name.partition(".")[0] not in (*SCENARIO_SECTIONS, "run") and name not in RUN_KEYS
        ),
        "a recipe, which says how to learn: set it with --set, or put it into a scenario if it is "
        "about the data",
    )


def parse_setting(text: str) -> tuple[str, Any]:
    """``key=value`` as on the command line; the value is read as YAML (numbers, true/false)."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"{text!r}: expected key=value")
    if name.strip() == "resolved":
        raise ConfigError("resolved: only the fedrc command itself sets it")
    try:
        parsed = yaml.safe_load(value) if value.strip() else ""
    except (ValueError, yaml.YAMLError) as error:  # ValueError: a date with a thirteenth month
        raise ConfigError(f"{text!r}: {error}") from None
    return name.strip(), parsed


def _read_file(
    kind: str, name_or_path: str, folder: Path, belongs: Callable[[str], bool], elsewhere: str
) -> dict[str, Any]:
    """The keys that a file sets, checked."""
    path, content = yaml_files.read(kind, name_or_path, folder)
    known, sections = all_keys(), all_sections()
    try:
        values = {
            name: value
            for name, value in settings.flattened(content).items()
            if name not in sections or value not in (None, {})  # an empty section
        }
        _refuse_unknown(values)
        for name, value in values.items():
            if not belongs(name):
                raise ConfigError(f"{name} does not belong in {elsewhere}")
            settings.check(name, value, known[name])
    except ConfigError as error:
        raise ConfigError(f"{kind} file {path}: {error}") from None
    return values


def _refuse_unknown(names: Iterable[str], prefer: str = "") -> None:
    known = all_keys()
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown key {name!r}{settings.suggest(name, known, prefer)}")


def _build(values: Mapping[str, Any]) -> RunConfig:
    """Check all values, including those of algorithms that do not run."""
    top: dict[str, Any] = {
        declared.name: settings.check(name, values[name], declared)
        for name, declared in settings.keys_of(RunConfig).items()
        if name in values
    }
    algorithm = top.get("algorithm", RunConfig.algorithm)
    sections: dict[str, Any] = {
        name: settings.build(section, name, values) for name, section in SECTIONS.items()
    }
    for name, cls in ALGORITHMS.items():
        section = settings.build(cls.Settings, name, values)
        if name == algorithm:
            sections["algorithm_settings"] = section
            sections["server"] = cls.server_settings(sections["server"])
    config = RunConfig(**top, **sections)
    build_algorithm(config)  # refuses settings that contradict each other
    return config
