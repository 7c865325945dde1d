"""The edge: what users write becomes the frozen configuration, or a refusal that helps."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fedrc_flwr import reference, settings
from fedrc_flwr.algorithms import ALGORITHMS
from fedrc_flwr.config import (
    SCENARIO_SECTIONS,
    SECTIONS,
    RunConfig,
    all_keys,
    build_algorithm,
    from_flower,
    load_config,
    parse_setting,
    read_recipe,
    read_scenario,
    recipe_names,
    recorded_config,
    scenario_names,
)
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.sgd import LocalSettings

ROOT = Path(__file__).parents[1]
KEYS = all_keys()
DOTTED = [name for name in KEYS if "." in name]
SHARES = ("data.concept-shares", "data.corrupted-shares")
FREE_TEXT = {
    "scenario", "recipe", "run.name", "run.output-dir", "run.loggers", "run.state-dir",
    "run.device", "data.dataset", "data.directory", "data.input-shape", *SHARES, "model.network",
    "model.weights", "data.label-column", "data.client-column", "data.ignore", "data.columns",
    "data.schema",
}  # fmt: skip


@pytest.fixture
def nothing(tmp_path: Path) -> dict[str, str]:
    """A scenario and a recipe that set nothing, so that the defaults are below the user's keys."""
    path = tmp_path / "empty.yaml"
    path.write_text("{}\n")
    return {"scenario": str(path), "recipe": str(path)}


def section_of(name: str) -> str:
    return name.rpartition(".")[0]


@cache
def documented_rows() -> dict[str, tuple[str, str]]:
    """Default and allowed values by key, as docs/config.md states them."""
    text = (ROOT / "docs" / "config.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z0-9.-]+)` \| (.+?) \| (.+?) \| .+ \|$", text, flags=re.MULTILINE)
    return {name: (default, allowed) for name, default, allowed in rows}


def wrong_types(name: str) -> list[Any]:
    kind = str(KEYS[name].type)
    if kind == "bool":
        return ["yes", 1, 0.0, None, [True]]
    if kind == "int":
        return ["three", 1.5, True, None, [1], math.nan, math.inf]
    if kind == "float":
        return ["much", "", True, None, [0.5], math.nan]
    return [True, None, *([] if KEYS[name].metadata["numbers"] else [1.5, [1, 2], []])]


def out_of_range(name: str) -> list[Any]:
    field = KEYS[name]
    meta, kind = field.metadata, str(field.type)
    if meta["choices"]:
        return ["something-else", ""]
    values: list[Any] = []
    if meta["low"] is not None:
        values += [int(meta["low"]) - 1, -(10**9)]
    if meta["above"] is not None:
        values += [meta["above"], meta["above"] - 1e-9, -1e9]
    if meta["high"] is not None:
        values += [meta["high"] + (1 if kind == "int" else 1e-6), 10**12]
    if kind == "float":
        values += [-math.inf, *([] if meta["infinite"] else [math.inf, "inf"])]
    return values


def inside_range(name: str) -> list[Any]:
    field = KEYS[name]
    meta, kind = field.metadata, str(field.type)
    if kind == "bool":
        return [True, False] if name != "resolved" else []
    if meta["choices"]:
        return list(meta["choices"])
    values = [meta[bound] for bound in ("low", "high") if meta[bound] is not None]
    if meta["above"] is not None:
        values.append(meta["above"] + 1e-9)
    return [int(v) if kind == "int" else v for v in values]


def keys_with(derive: Any) -> list[str]:
    """The keys that have any value of a kind."""
    return [name for name in KEYS if derive(name)]


# --- the documentation and the app's tables -----------------------------------------------------


def test_documentation_is_what_the_reference_makes() -> None:
    text = (ROOT / "docs" / "config.md").read_text("utf-8")

    assert text[text.index("### ") :] == reference.tables(everything=True), "run make docs"


@pytest.mark.parametrize("name", KEYS)
def test_documentation_states_default_and_range(name: str) -> None:
    meta, default = KEYS[name].metadata, KEYS[name].default

    documented_default, allowed = documented_rows()[name]

    assert documented_default == ("empty" if default == "" else f"`{default}`")
    assert re.findall(r"`([a-z0-9-]+)`", allowed) == list(meta["choices"])
    bounds = [meta[end] for end in ("above", "low", "high") if meta[end] is not None]
    assert [float(number) for number in re.findall(r"(?<!`)\b[0-9.]+\b", allowed)] == bounds


def test_documentation_has_no_other_keys() -> None:
    assert list(documented_rows()) == list(KEYS)


def test_tables_of_pyproject_are_what_the_reference_makes() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")

    start, end = text.index("[tool.flwr.app.config]"), text.index("[tool.ruff]")

    assert text[start:end].strip() + "\n" == reference.toml_tables(), "run make docs"
    assert '"auto"' not in text


def test_tables_of_pyproject_are_the_defaults() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

    given = settings.flattened(project["tool"]["flwr"]["app"]["config"])

    assert given == {name: field.default for name, field in KEYS.items()}
    assert from_flower(given) == load_config({})


def test_every_section_and_key_is_explained() -> None:
    assert set(reference.TITLES) == {"", *SECTIONS}
    assert all(field.metadata["doc"] for field in KEYS.values())


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KEYS)
def test_unknown_key_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^unknown key 'no-such-{name}'; "):
        load_config({f"no-such-{name}": 1})


@pytest.mark.parametrize("name", [name for name in KEYS if "-" in name])
def test_key_with_underscores_is_refused_with_the_right_spelling(name: str) -> None:
    misspelt = name.replace("-", "_")

    with pytest.raises(ConfigError) as refusal:
        load_config({misspelt: 1})

    assert str(refusal.value) == f"unknown key {misspelt!r}; did you mean {name!r}?"


@pytest.mark.parametrize("name", DOTTED)
def test_key_without_its_section_is_refused_with_the_whole_name(name: str) -> None:
    last = name.rpartition(".")[2]

    with pytest.raises(ConfigError) as refusal:
        load_config({last: 1})

    named = re.findall(rf"'([a-z-]+\.{last})'", str(refusal.value))
    assert f"unknown key {last!r}" in str(refusal.value)
    assert named
    assert set(named) <= set(KEYS)


@pytest.mark.parametrize("name", keys_with(wrong_types))
def test_wrong_type_is_refused(name: str) -> None:
    for value in wrong_types(name):
        with pytest.raises(ConfigError) as refusal:
            load_config({name: value})

        message = str(refusal.value)
        assert message.startswith(f"{name} = {value!r}: expected ")
        if name not in ("scenario", "recipe"):
            assert message.endswith(documented_rows()[name][1])


@pytest.mark.parametrize("name", keys_with(out_of_range))
def test_value_out_of_range_is_refused(name: str) -> None:
    for value in out_of_range(name):
        with pytest.raises(ConfigError) as refusal:
            load_config({name: value})

        assert str(refusal.value) == f"{name} = {value!r}: expected {documented_rows()[name][1]}"


def test_every_key_is_checked_for_something() -> None:
    unchecked = {name for name in KEYS if not out_of_range(name) and str(KEYS[name].type) != "bool"}

    assert unchecked == FREE_TEXT


@pytest.mark.parametrize("name", keys_with(inside_range))
def test_bounds_and_choices_themselves_are_accepted(name: str, nothing: dict[str, str]) -> None:
    section = section_of(name)
    algorithm = {"algorithm": section} if section in ALGORITHMS else {}

    field = name.partition(".")[2].replace("-", "_")
    defaults = ALGORITHMS[section].Settings() if algorithm else None
    start = defaults.needs_start(field) if defaults else ""
    needed: dict[str, Any] = {f"{section}.start": start} if start else {}
    if name == "federation.quorum":
        needed = {"federation.min-replies": 0.0}  # a quorum must be at least as large

    for value in inside_range(name):
        config = load_config({**nothing, **algorithm, **needed, name: value})

        assert config.to_dict()[name] == value


def test_number_beyond_all_floats_is_refused_for_a_float() -> None:
    with pytest.raises(ConfigError, match=r"data.alpha = 1000\d+: expected a number above 0"):
        load_config({"data.alpha": 10**400})


def test_number_beyond_all_floats_stays_a_whole_number() -> None:
    config = load_config({"data.samples-per-client": 10**400})

    assert config.to_dict()["data.samples-per-client"] == 10**400


@pytest.mark.parametrize("name", SHARES)
@pytest.mark.parametrize("text", ["a,b,c", "0.5;0.5", "-0.5,1.0,0.5", "1.5,0,0", "nan,0.5,0.5"])
def test_malformed_shares_are_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{name} = {text!r}: expected numbers")):
        load_config({name: text})


def test_concept_shares_that_do_not_sum_to_one_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data.concept-shares = '0.5,0.2,0.2': .* sum to 1"):
        load_config({"data.concept-shares": "0.5,0.2,0.2"})


def test_corrupted_shares_must_be_as_many_as_concepts() -> None:
    with pytest.raises(ConfigError, match=r"data.corrupted-shares = '0.1,0.1': expected 3 numbers"):
        load_config({"data.corrupted-shares": "0.1,0.1"})


@pytest.mark.parametrize("name", [".", "..", "a/b", "a\\b", "\0"])
def test_run_whose_name_is_a_path_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"run.name = {name!r}: ")):
        load_config({"run.name": name})


def test_round_to_resume_after_needs_resuming() -> None:
    with pytest.raises(ConfigError, match=r"run.resume-round = 3: only with run.resume = true"):
        load_config({"run.resume-round": 3})


def test_network_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model.network = 'vgg': expected mlp, cnn, "):
        load_config({"model.network": "vgg"})


def test_weights_of_a_network_that_takes_none_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model.weights = 'w.pth': only for model.network = "):
        load_config({"model.network": "mlp", "model.weights": "w.pth"})


def test_threshold_below_which_nobody_would_train_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"local.skip-below = 0.1: expected less than 1 / clust"):
        load_config({"fedrc.start": "paper", "fedrc.clusters": 10, "local.skip-below": 0.1})


def test_loggers_are_named_with_commas_and_others_refused() -> None:
    named = load_config({"run.loggers": "tensorboard, wandb"}).run.logger_names()

    assert named == ["tensorboard", "wandb"]
    assert load_config({}).run.logger_names() == []
    with pytest.raises(
        ConfigError, match=r"run.loggers = 'tensorbord': expected any of tensorboard"
    ):
        load_config({"run.loggers": "tensorbord"})


# --- what is accepted, in which form ------------------------------------------------------------


def test_shares_may_be_a_list_with_all_its_digits() -> None:
    thirds = [1 / 3, 1 / 3, 1 / 3]

    assert load_config({"data.concept-shares": thirds}).data.shares() == tuple(thirds)


def test_one_share_may_be_a_number() -> None:
    config = load_config({"data.concept-shares": 1, "data.corrupted-shares": 0.25})

    assert config.data.shares() == (1.0,)
    assert config.data.corrupted() == (0.25,)


@pytest.mark.parametrize("value", [math.inf, "inf", "Infinity", "+inf"])
def test_alpha_may_be_infinite(value: Any) -> None:
    assert load_config({"data.alpha": value}).data.alpha == math.inf


def test_sections_may_be_given_as_tables() -> None:
    nested = load_config({"data": {"clients": 5}, "local": {"epochs": 2}, "seed": 1})

    assert nested == load_config({"data.clients": 5, "local.epochs": 2, "seed": 1})


def test_configuration_is_frozen() -> None:
    config = load_config({})

    for section in (config, config.data, config.algorithm_settings):
        field = dataclasses.fields(section)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(section, field, 3)


# --- layers -------------------------------------------------------------------------------------


def test_user_wins_over_recipe_and_scenario_and_those_over_the_defaults(tmp_path: Path) -> None:
    scenario, recipe = tmp_path / "who.yml", tmp_path / "how.yaml"
    scenario.write_text("data: {clients: 7, alpha: inf}\nmodel.hidden: 32\n")
    recipe.write_text("rounds: 11\nlocal: {epochs: 4, momentum: 0.5}\n")

    config = load_config(
        {"scenario": str(scenario), "recipe": str(recipe), "data.clients": 8, "local.epochs": 5}
    )

    values = config.to_dict()
    assert (values["data.clients"], values["local.epochs"]) == (8, 5)
    assert (values["data.alpha"], values["model.hidden"]) == ("inf", 32)
    assert (values["rounds"], values["local.momentum"]) == (11, 0.5)
    assert values["local.learning-rate"] == KEYS["local.learning-rate"].default
    assert (config.scenario, config.recipe) == (str(scenario), str(recipe))


def test_files_that_set_nothing_leave_the_defaults(nothing: dict[str, str]) -> None:
    assert load_config(nothing) == RunConfig(**nothing)


def test_empty_file_sets_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing yet\n")

    assert read_scenario(str(tmp_path / "empty.yaml")) == {}
    assert read_recipe(str(tmp_path / "empty.yaml")) == {}


def test_default_scenario_and_recipe_are_used_where_none_is_named() -> None:
    values = load_config({}).to_dict()

    expected = read_scenario(RunConfig.scenario) | read_recipe(RunConfig.recipe)
    assert {name: values[name] for name in expected} == expected
    assert values["fedrc.start"] == "discover"
    assert values["local.clip"] == 1.0


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ({"fedrc.clusters": 4}, "paper"),
        ({"fedrc.annealing-rounds": 4}, "paper"),
        ({"fedrc.merge": True}, "paper"),
        ({"recipe": "paper", "fedrc.discover-after": 4}, "discover"),
        ({"algorithm": "ifca", "ifca.start": "discover", "ifca.clusters": 4}, "paper"),
    ],
)
def test_settings_of_the_other_start_are_refused(given: dict[str, Any], start: str) -> None:
    with pytest.raises(ConfigError, match=f"only read with [a-z]*.start = {start}"):
        load_config(given)


@pytest.mark.parametrize("recipe", recipe_names())
@pytest.mark.parametrize("scenario", scenario_names())
def test_any_recipe_learns_on_any_scenario(scenario: str, recipe: str) -> None:
    values = load_config({"scenario": scenario, "recipe": recipe}).to_dict()

    expected = read_scenario(scenario) | read_recipe(recipe)
    assert {name: values[name] for name in expected} == expected
    others = set(values) - set(expected) - {"scenario", "recipe"}
    assert {n: values[n] for n in others} == {n: KEYS[n].default for n in others}


@pytest.mark.parametrize("scenario", scenario_names())
def test_scenario_says_who_holds_what_and_no_more(scenario: str) -> None:
    content = read_scenario(scenario)

    assert bool(content) == (scenario != "none")
    assert {name.partition(".")[0] for name in content} <= {"data", "model"}


@pytest.mark.parametrize("recipe", recipe_names())
def test_recipe_names_its_algorithm_and_only_its_own_settings(recipe: str) -> None:
    content = read_recipe(recipe)

    shared = set(SECTIONS) - set(SCENARIO_SECTIONS)
    assert {section_of(name) for name in content} <= {"", content["algorithm"], *shared}


# --- each algorithm has its own settings --------------------------------------------------------


def test_ifca_does_not_take_over_what_the_default_recipe_says_of_fedrc() -> None:
    config = load_config({"algorithm": "ifca"})

    assert build_algorithm(config).models == 3
    assert config.to_dict()["ifca.clusters"] == 3
    assert not [name for name in config.to_dict() if "merge" in name or "adaptive" in name]


def test_fedem_does_not_take_over_what_a_recipe_says_of_fedrc() -> None:
    given = {"scenario": "fashion-mnist-30", "recipe": "fedrc-adaptive"}

    assert load_config(given).algorithm_settings.models() == 6
    assert load_config({**given, "algorithm": "fedem"}).algorithm_settings.models() == 3


def test_a_setting_of_an_algorithm_that_does_not_run_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"fedrc.clusters: a setting of fedrc, but .*'ifca' runs"):
        load_config({"algorithm": "ifca", "fedrc.clusters": 4})


def test_a_key_without_its_section_suggests_that_of_the_algorithm_that_runs() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'clusters'; did you mean 'ifca.clusters'"):
        load_config({"algorithm": "ifca", "clusters": 4})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_recipe_may_have_settings_for_several_algorithms(algorithm: str, tmp_path: Path) -> None:
    # Prepare: nine clusters for every algorithm but one
    others = {
        f"{other}.clusters": 9
        for other in ALGORITHMS
        if other != algorithm and f"{other}.clusters" in KEYS
    }
    empty, full = tmp_path / "empty.yaml", tmp_path / "full.yaml"
    empty.write_text("{}")
    full.write_text(yaml.safe_dump(others))

    # Execute
    plain, mixed = (
        load_config({"algorithm": algorithm, "recipe": str(path)}) for path in (empty, full)
    )

    # Assert
    assert mixed.algorithm_settings == plain.algorithm_settings


@pytest.mark.parametrize("name", ["run.resume", "run.name", "data.alpha", "seed"])
def test_a_recipe_sets_nothing_that_belongs_to_one_run_or_to_the_data(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"{name}: 1\n")

    with pytest.raises(ConfigError, match=f"{name} does not belong in a recipe"):
        load_config({"recipe": str(path)})


@pytest.mark.parametrize(
    "change",
    [{"seed": 9}, {"algorithm": "fedavg"}, {"data": {"clients": 6}}, {"fedrc.clusters": 2},
     {"recipe": "paper"}, {"model.hidden": 3}],
)  # fmt: skip
def test_a_run_is_not_resumed_with_other_data_or_models(
    change: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(load_config({}).to_dict()))

    with pytest.raises(ConfigError, match="start a new run"):
        recorded_config(tmp_path, change)


def test_a_run_is_resumed_with_more_rounds_and_another_rate(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(load_config({}).to_dict()))

    resumed = load_config(recorded_config(tmp_path, {"rounds": 120, "local.learning-rate": 0.01}))

    assert resumed.rounds == 120
    assert resumed.local.learning_rate == 0.01
    assert resumed.run.resume


def test_settings_of_others_are_checked_all_the_same() -> None:
    with pytest.raises(
        ConfigError, match=r"ifca.clusters = 0: expected a whole number from 1 to 500"
    ):
        load_config({"algorithm": "fedrc", "ifca.clusters": 0})


# --- what is recorded ---------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_recorded_are_the_keys_that_the_run_reads(algorithm: str) -> None:
    recorded = load_config({"algorithm": algorithm}).to_dict()

    sections = {"", *SECTIONS, algorithm}
    assert set(recorded) == {name for name in KEYS if section_of(name) in sections}
    assert recorded["algorithm"] == algorithm


def test_strength_of_fedprox_is_recorded() -> None:
    assert load_config({"algorithm": "fedprox"}).to_dict()["fedprox.mu"] == 0.1


def test_no_merging_is_recorded_of_cfl() -> None:
    recorded = load_config({"algorithm": "cfl"}).to_dict()

    assert recorded["cfl.clusters"] == 3
    assert not [name for name in recorded if "merge" in name]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("alpha", [0.5, math.inf])
def test_configuration_written_as_standard_json_loads_as_the_same(
    algorithm: str, alpha: float
) -> None:
    config = load_config({"algorithm": algorithm, "data.alpha": alpha, "run.resume": True})

    for one in (config, config.placed(Path("/somewhere/run"))):
        written = json.dumps({**one.to_dict(), "resolved": True}, allow_nan=False)
        assert load_config(json.loads(written)) == replace(one, resolved=True)


def test_resolved_configuration_reads_neither_scenario_nor_recipe() -> None:
    recorded = load_config({"data.clients": 5}).placed(Path("/somewhere/run")).to_dict()
    recorded |= {"scenario": "/gone/who.yaml", "recipe": "/gone/how.yaml"}

    config = load_config(recorded)

    assert config.resolved
    assert config.to_dict() == recorded


def test_configuration_is_placed_located_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"data.dataset": "cifar10", "model.network": "resnet18", "model.weights": "w.pth"}

    config = load_config(given).located().placed(Path("/out/one"), Path("/states")).resumed(4)

    values = config.to_dict()
    assert (values["run.output-dir"], values["run.name"]) == ("/out", "one")
    assert (values["run.state-dir"], values["resolved"]) == ("/states", True)
    assert (values["run.resume"], values["run.resume-round"]) == (True, 4)
    assert values["data.directory"] == str(tmp_path)
    assert values["model.weights"] == str(tmp_path / "w.pth")


# --- from Flower --------------------------------------------------------------------------------


def flower_defaults(**changed: Any) -> dict[str, Any]:
    """What Flower hands over: every key of pyproject.toml, and what was set."""
    return {name: field.default for name, field in KEYS.items()} | changed


def test_from_flower_what_has_its_default_is_left_to_scenario_and_recipe() -> None:
    config = from_flower(flower_defaults(**{"data.clients": 5}))

    assert config == load_config({"data.clients": 5})
    assert (config.data.alpha, config.rounds) == (10.0, 60)


def test_from_flower_what_was_set_wins() -> None:
    given = {"recipe": "paper", "rounds": 7, "data.alpha": 3.0, "fedrc.clusters": 4}

    assert from_flower(flower_defaults(**given)) == load_config(given)


def test_from_flower_a_value_that_only_equals_the_default_was_set() -> None:
    assert KEYS["fedrc.merge"].default is False

    with pytest.raises(ConfigError, match=r"fedrc.merge = 0: expected true or false"):
        from_flower(flower_defaults(**{"fedrc.merge": 0}))


def test_from_flower_tables_are_taken_too() -> None:
    assert from_flower({"local": {"epochs": 3}}) == load_config({"local.epochs": 3})


def test_from_flower_a_resolved_configuration_is_taken_as_it_is() -> None:
    # 1.0 is the default; the scenario would say 10.
    submitted = load_config({"data.alpha": 1.0, "algorithm": "ifca"}).placed(Path("/out/run"))

    config = from_flower(flower_defaults(**submitted.to_dict()))

    assert config == submitted
    assert config.data.alpha == 1.0


def test_from_flower_an_unknown_key_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'data.client'; did you mean 'data.client"):
        from_flower(flower_defaults(**{"data.client": 3}))


# --- broken scenario and recipe files -----------------------------------------------------------


@pytest.mark.parametrize("kind", ["scenario", "recipe"])
def test_unknown_name_is_told_with_the_ready_made_ones(kind: str) -> None:
    one = {"scenario": "digits", "recipe": "paper"}[kind]
    with pytest.raises(ConfigError, match=rf"{kind} = 'nowhere': no such {kind}.*{one}"):
        load_config({kind: "nowhere"})


@pytest.mark.parametrize("kind", ["scenario", "recipe"])
@pytest.mark.parametrize("name", ["\x00", "\x00.yaml", "x" * 5000, "", ".."])
def test_what_cannot_be_a_files_name_is_refused(kind: str, name: str) -> None:
    with pytest.raises(ConfigError, match=kind):
        load_config({kind: name})


@pytest.mark.parametrize("kind", ["scenario", "recipe"])
def test_missing_file_and_directory_are_refused_by_path(kind: str, tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()

    for name in ("gone.yaml", "folder.yaml"):
        with pytest.raises(ConfigError, match=re.escape(str(tmp_path / name))):
            load_config({kind: str(tmp_path / name)})


@pytest.mark.parametrize("kind", ["scenario", "recipe"])
@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"rounds: [1, 2\n", "expected"),
        (b"\xff\xfe\x00rounds", "decode"),
        (b"rounds: 2024-13-01\n", "month must be"),
        (b"- rounds\n- seed\n", "key: value"),
        (b"just words\n", "key: value"),
        (b"1: 2\n", "key: value"),
        (b"!!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
        (b"rouns: 3\n", "unknown key 'rouns'; did you mean 'rounds'?"),
        (b"data: {client: 3}\n", "unknown key 'data.client'; did you mean 'data.clients'?"),
        (b"learning-rate: 3\n", "did you mean 'local.learning-rate'?"),
    ],
    ids=[
        "not-yaml",
        "not-text",
        "no-date",
        "a-list",
        "a-word",
        "numeric-key",
        "a-program",
        "unknown",
        "unknown-in-table",
        "undotted",
    ],
)
def test_broken_file_is_refused_by_path(
    tmp_path: Path, kind: str, content: bytes, complaint: str
) -> None:
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)

    with pytest.raises(ConfigError) as refusal:
        load_config({kind: str(path)})

    assert str(path) in str(refusal.value)
    assert complaint in str(refusal.value)


@pytest.mark.parametrize("name", [n for n in KEYS if section_of(n) not in SCENARIO_SECTIONS])
def test_scenario_that_sets_what_is_not_its_own_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"data.clients": 3, name: KEYS[name].default}))

    with pytest.raises(ConfigError) as refusal:
        load_config({"scenario": str(path)})

    message = str(refusal.value)
    assert message.startswith(f"scenario file {path}: {name} does not belong in a scenario")
    assert "put it into a recipe, or set it with --set" in message


@pytest.mark.parametrize(
    "name",
    [
        *(n for n in KEYS if section_of(n) in SCENARIO_SECTIONS),
        "scenario",
        "recipe",
        "seed",
        "resolved",
    ],
)
def test_recipe_that_sets_what_is_not_its_own_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"rounds": 3, name: KEYS[name].default}))

    with pytest.raises(ConfigError) as refusal:
        load_config({"recipe": str(path)})

    message = str(refusal.value)
    assert message.startswith(f"recipe file {path}: {name} does not belong in a recipe")
    assert "set it with --set" in message


@pytest.mark.parametrize(
    ("kind", "content", "complaint"),
    [
        ("scenario", "data: {clients: few}\n", "data.clients = 'few': expected a whole number"),
        ("recipe", "rounds: few\n", "rounds = 'few': expected a whole number"),
        ("recipe", "algorithm: fedrcc\n", "algorithm = 'fedrcc': expected `fedrc`"),
        ("recipe", "rounds: 3\nseed: 1\nrounds: 4\n", "rounds is given twice, in line 1 and in "),
        ("recipe", "local:\n  epochs: 3\nlocal.epochs: 4\n", "local.epochs is given twice"),
        ("recipe", "locl: {}\n", "unknown key 'locl'"),
        ("recipe", "locl:\n", "unknown key 'locl'"),
        ("recipe", "local: 0\n", "unknown key 'local'"),
    ],
)
def test_file_with_a_wrong_value_is_named(
    tmp_path: Path, kind: str, content: str, complaint: str
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(content)

    with pytest.raises(ConfigError, match=re.escape(f"{kind} file {path}: {complaint}")):
        load_config({kind: str(path)})


@pytest.mark.parametrize("content", ["local: {}\n", "local:\nrounds: 3\n"])
def test_empty_section_of_a_file_sets_nothing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content)

    assert load_config({"recipe": str(path)}).local == LocalSettings()


# --- key=value ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rounds=20", ("rounds", 20)),
        ("data.alpha=0.5", ("data.alpha", 0.5)),
        ("data.alpha=.inf", ("data.alpha", math.inf)),
        ("fedrc.adaptive=true", ("fedrc.adaptive", True)),
        ("fedrc.adaptive=false", ("fedrc.adaptive", False)),
        ("run.name=", ("run.name", "")),
        ("run.name= ", ("run.name", "")),
        (" rounds = 20 ", ("rounds", 20)),
        ("run.output-dir=a=b", ("run.output-dir", "a=b")),
        ("data.concept-shares=0.5,0.5", ("data.concept-shares", "0.5,0.5")),
        ("data.concept-shares=[0.5, 0.5]", ("data.concept-shares", [0.5, 0.5])),
    ],
)
def test_setting_is_read_as_a_typed_value(text: str, expected: tuple[str, Any]) -> None:
    assert parse_setting(text) == expected


@pytest.mark.parametrize("text", ["rounds", "", "=3", " =3", "rounds: 3"])
def test_setting_without_key_or_equals_sign_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{text!r}: expected key=value")):
        parse_setting(text)


@pytest.mark.parametrize("text", ["rounds=[1", "rounds=\x00", "run.name=2024-13-01", "rounds=0x_"])
def test_setting_that_is_not_yaml_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(text))):
        parse_setting(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("data.alpha=inf", "inf"), ("local.learning-rate=1e-3", 0.001), ("data.alpha=1.5e2", 150.0)],
)
def test_numbers_that_yaml_takes_for_text_are_numbers(text: str, value: Any) -> None:
    name, parsed = parse_setting(text)

    assert load_config({name: parsed}).to_dict()[name] == value


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        outcome = parse_setting(text)[0]
    except ConfigError as error:
        outcome = str(error).partition(": ")[0]

    assert outcome in (text.partition("=")[0].strip(), repr(text).partition(": ")[0])


@given(st.sampled_from(sorted(KEYS)), st.text(max_size=12))
def test_any_text_for_any_key_loads_or_is_refused_by_name(name: str, text: str) -> None:
    try:
        outcome = repr(load_config({name: text}))
    except ConfigError as error:
        outcome = str(error)

    known = (
        "RunConfig(", f"{name} = {text!r}: ", f"{name}: a setting of ", "scenario file ",
        "recipe file ",
    )  # fmt: skip
    assert outcome.startswith(known)


def test_files_and_settings_read_values_alike(tmp_path: Path) -> None:
    path = tmp_path / "same.yaml"
    path.write_text(
        "data.alpha: 3\ndata.copies: 2\ndata.concept-shares: 0.5,0.5\ndata.corrupted-shares: 0,0\n"
        "model.standardise: false\n"
    )
    texts = [f"{k}={v}" for k, v in yaml.safe_load(path.read_text()).items()]

    from_file = load_config({"scenario": str(path)})
    from_settings = load_config(
        {"scenario": "none", **dict(parse_setting(text.lower()) for text in texts)}
    )

    assert from_file.data == from_settings.data
    assert from_file.model == from_settings.model
