"""The edge: what users write becomes the frozen configuration, or a refusal that helps."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fedrc_flwr.config import RunConfig, dashed
from fedrc_flwr.configuration import (
    describe_keys,
    load_config,
    parse_setting,
    read_scenario,
    scenario_names,
)
from fedrc_flwr.errors import ConfigError

ROOT = Path(__file__).parents[1]
FIELDS = {dashed(field.name): field for field in dataclasses.fields(RunConfig)}
SHARES = {"concept-shares", "corrupted-shares"}
PATHS = {"output-dir", "state-dir", "data-dir", "model-weights"}
FREE_TEXT = {"scenario", "run-name", "loggers", "device", "dataset", "model", "input-shape"}
FREE_TEXT |= PATHS | SHARES


@pytest.fixture
def empty_scenario(tmp_path: Path) -> str:
    """A scenario that sets nothing, so that the defaults are what is below the user's values."""
    path = tmp_path / "empty.yaml"
    path.write_text("{}\n")
    return str(path)


def documented_rows() -> dict[str, tuple[str, str]]:
    """Default and allowed values by key, as docs/config.md states them."""
    text = (ROOT / "docs" / "config.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.+?) \| (.+?) \| .+ \|$", text, flags=re.MULTILINE)
    return {name: (default, allowed) for name, default, allowed in rows}


def wrong_types(name: str) -> list[Any]:
    kind = str(FIELDS[name].type)
    if kind == "bool":
        return ["yes", 1, 0.0, None, [True]]
    if kind == "int":
        return ["three", 1.5, True, None, [1], math.nan, math.inf]
    if kind == "float":
        return ["much", "", True, None, [0.5], math.nan]
    return [True, None, {"a": 1}, *([] if name in SHARES else [1.5, [1, 2], []])]


def out_of_range(name: str) -> list[Any]:
    field = FIELDS[name]
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
        values += [-math.inf, *([] if name == "alpha" else [math.inf, "inf"])]
    return values


def inside_range(name: str) -> list[Any]:
    field = FIELDS[name]
    meta, kind = field.metadata, str(field.type)
    if kind == "bool":
        return [True, False]
    if meta["choices"]:
        return list(meta["choices"])
    values = [meta[bound] for bound in ("low", "high") if meta[bound] is not None]
    if meta["above"] is not None:
        values.append(meta["above"] + 1e-9)
    return [int(v) if kind == "int" else v for v in values]


def cases(derive: Any) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}={value!r}")
        for name in FIELDS
        for value in derive(name)
    ]


# --- the documentation and the app's table ------------------------------------------------------


def test_documentation_is_the_reference_table() -> None:
    text = (ROOT / "docs" / "config.md").read_text("utf-8")

    assert text[text.index("### ") :] == describe_keys()


@pytest.mark.parametrize("name", FIELDS)
def test_documentation_states_default_and_range(name: str) -> None:
    meta, default = FIELDS[name].metadata, FIELDS[name].default

    documented_default, allowed = documented_rows()[name]

    assert documented_default == ("empty" if default == "" else f"`{default}`")
    assert re.findall(r"`([a-z0-9-]+)`", allowed) == list(meta["choices"])
    bounds = {"> ": meta["above"], ">= ": meta["low"], "<= ": meta["high"]}
    found = {sign: float(number) for sign, number in re.findall(r"(>=? |<= )([0-9.]+)", allowed)}
    assert found == {sign: bound for sign, bound in bounds.items() if bound is not None}


def test_documentation_has_no_other_keys() -> None:
    assert list(documented_rows()) == list(FIELDS)


def test_flower_app_knows_the_same_keys_and_leaves_all_but_the_scenario_open() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

    keys = project["tool"]["flwr"]["app"]["config"]

    assert set(keys) == set(FIELDS)
    assert {name for name, value in keys.items() if value != "auto"} == {"scenario"}
    assert load_config(keys) == load_config({})


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FIELDS)
def test_unknown_key_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown key 'no-such-{name}'"):
        load_config({f"no-such-{name}": 1})


@pytest.mark.parametrize("name", [name for name in FIELDS if "-" in name])
def test_key_with_underscores_is_refused_with_the_right_spelling(name: str) -> None:
    misspelt = name.replace("-", "_")

    with pytest.raises(ConfigError) as refusal:
        load_config({misspelt: 1})

    assert repr(misspelt) in str(refusal.value)
    assert f"did you mean {name!r}?" in str(refusal.value)


@pytest.mark.parametrize(("name", "value"), cases(wrong_types))
def test_wrong_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config({name: value})

    message = str(refusal.value)
    assert message.startswith(f"{name} = {value!r}: expected ")
    if name != "scenario":
        assert message.endswith(documented_rows()[name][1])


@pytest.mark.parametrize(("name", "value"), cases(out_of_range))
def test_value_out_of_range_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config({name: value})

    assert str(refusal.value) == f"{name} = {value!r}: expected {documented_rows()[name][1]}"


def test_every_key_is_checked_for_something() -> None:
    unchecked = {
        name for name in FIELDS if not out_of_range(name) and str(FIELDS[name].type) != "bool"
    }

    assert unchecked == FREE_TEXT


@pytest.mark.parametrize(("name", "value"), cases(inside_range))
def test_bounds_and_choices_themselves_are_accepted(
    name: str, value: Any, empty_scenario: str
) -> None:
    config = load_config({"scenario": empty_scenario, name: value})

    assert getattr(config, FIELDS[name].name) == value


def test_number_beyond_all_floats_is_refused_for_a_float() -> None:
    with pytest.raises(ConfigError, match=r"alpha = 1000\d+: expected number > 0"):
        load_config({"alpha": 10**400})


def test_number_beyond_all_floats_stays_a_whole_number() -> None:
    assert load_config({"samples-per-client": 10**400}).samples_per_client == 10**400


@pytest.mark.parametrize("name", sorted(SHARES))
@pytest.mark.parametrize("text", ["", "a,b,c", "0.5;0.5", "-0.5,1.0,0.5", "1.5,0,0", "nan,0.5,0.5"])
def test_malformed_shares_are_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{name} = {text!r}: expected numbers")):
        load_config({name: text})


def test_concept_shares_that_do_not_sum_to_one_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"concept-shares = '0.5,0.2,0.2': .* sum to 1"):
        load_config({"concept-shares": "0.5,0.2,0.2"})


def test_corrupted_shares_must_be_as_many_as_concepts() -> None:
    with pytest.raises(ConfigError, match=r"corrupted-shares = '0.1,0.1': expected 3 numbers"):
        load_config({"corrupted-shares": "0.1,0.1"})


# --- what is accepted, in which form ------------------------------------------------------------


def test_shares_may_be_a_list_with_all_its_digits() -> None:
    thirds = [1 / 3, 1 / 3, 1 / 3]

    config = load_config({"concept-shares": thirds})

    assert config.shares() == tuple(thirds)


def test_one_share_may_be_a_number() -> None:
    config = load_config({"concept-shares": 1, "corrupted-shares": 0.25})

    assert config.shares() == (1.0,)
    assert config.corrupted() == (0.25,)


@pytest.mark.parametrize("value", [math.inf, "inf", "Infinity", "+inf"])
def test_alpha_may_be_infinite(value: Any) -> None:
    assert load_config({"alpha": value}).alpha == math.inf


def test_whole_number_for_a_float_becomes_a_float() -> None:
    config = load_config({"alpha": 2})

    assert config.alpha == 2.0
    assert isinstance(config.alpha, float)


def test_float_that_is_whole_for_an_integer_becomes_an_integer() -> None:
    config = load_config({"rounds": 20.0})

    assert config.rounds == 20
    assert isinstance(config.rounds, int)


def test_fedavg_has_one_cluster_whatever_the_scenario_says() -> None:
    assert load_config({"algorithm": "fedavg", "clusters": 6}).clusters == 1


def test_configuration_is_frozen() -> None:
    config = load_config({})

    with pytest.raises(dataclasses.FrozenInstanceError):
        config.rounds = 3  # type: ignore[misc]


@pytest.mark.parametrize("alpha", [0.5, math.inf])
def test_configuration_written_as_standard_json_loads_as_the_same(alpha: float) -> None:
    config = load_config({"alpha": alpha, "rounds": 7, "resume": True, "run-name": "again"})

    written = json.dumps(config.to_dict(), allow_nan=False)

    assert load_config(json.loads(written)) == config


# --- layers -------------------------------------------------------------------------------------


def test_user_wins_over_scenario_and_scenario_over_default(tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    path.write_text("rounds: 11\nclusters: 5\nalpha: inf\n")

    config = load_config({"scenario": str(path), "clusters": 4})

    assert (config.rounds, config.clusters, config.alpha) == (11, 4, math.inf)
    assert config.seed == RunConfig.seed
    assert config.scenario == str(path)


@pytest.mark.parametrize("name", FIELDS)
def test_auto_means_not_set(name: str) -> None:
    assert load_config({name: "auto"}) == load_config({})


def test_default_scenario_is_used_where_none_is_named() -> None:
    assert load_config({}).rounds == read_scenario(RunConfig.scenario)["rounds"]


def test_there_are_ready_made_scenarios() -> None:
    assert RunConfig.scenario in scenario_names()


@pytest.mark.parametrize("name", scenario_names())
def test_ready_made_scenario_loads_with_its_values(name: str) -> None:
    content = read_scenario(name)

    config = load_config({"scenario": name})

    assert content
    assert {key: config.to_dict()[key] for key in content} == content


# --- broken scenario files ----------------------------------------------------------------------


def test_unknown_scenario_names_the_ready_made_ones() -> None:
    with pytest.raises(ConfigError, match=r"'nowhere': no such scenario.*digits"):
        load_config({"scenario": "nowhere"})


@pytest.mark.parametrize("name", ["\x00", "\x00.yaml", "x" * 5000, "", ".."])
def test_scenario_that_cannot_be_a_files_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="scenario"):
        load_config({"scenario": name})


def test_missing_scenario_file_is_refused_by_path(tmp_path: Path) -> None:
    path = tmp_path / "gone.yaml"

    with pytest.raises(ConfigError, match=re.escape(str(path))):
        load_config({"scenario": str(path)})


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"rounds: [1, 2\n", "expected"),
        (b"\xff\xfe\x00rounds", "decode"),
        (b"run-name: 2024-13-01\n", "month must be"),
        (b"- rounds\n- seed\n", "key: value"),
        (b"just words\n", "key: value"),
        (b"", "key: value"),
        (b"1: 2\n", "key: value"),
        (b"scenario: digits\n", "cannot name another"),
        (b"!!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
    ],
    ids=[
        "not-yaml",
        "not-text",
        "no-date",
        "a-list",
        "a-word",
        "empty",
        "numeric-key",
        "nested",
        "a-program",
    ],
)
def test_broken_scenario_file_is_refused_by_path(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)

    with pytest.raises(ConfigError) as refusal:
        load_config({"scenario": str(path)})

    assert str(path) in str(refusal.value)
    assert complaint in str(refusal.value)


def test_scenario_that_is_a_directory_is_refused_by_path(tmp_path: Path) -> None:
    path = tmp_path / "folder.yaml"
    path.mkdir()

    with pytest.raises(ConfigError, match=re.escape(str(path))):
        load_config({"scenario": str(path)})


@pytest.mark.parametrize(
    ("content", "complaint"),
    [("rouns: 3\n", "'rouns'; did you mean 'rounds'"), ("rounds: few\n", "rounds = 'few'")],
)
def test_scenario_file_is_checked_like_the_users_keys(
    tmp_path: Path, content: str, complaint: str
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(content)

    with pytest.raises(ConfigError, match=complaint):
        load_config({"scenario": str(path)})


# --- key=value ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rounds=20", ("rounds", 20)),
        ("alpha=0.5", ("alpha", 0.5)),
        ("alpha=.inf", ("alpha", math.inf)),
        ("adaptive=true", ("adaptive", True)),
        ("adaptive=false", ("adaptive", False)),
        ("run-name=", ("run-name", "")),
        ("run-name= ", ("run-name", "")),
        (" rounds = 20 ", ("rounds", 20)),
        ("output-dir=a=b", ("output-dir", "a=b")),
        ("concept-shares=0.5,0.5", ("concept-shares", "0.5,0.5")),
        ("concept-shares=[0.5, 0.5]", ("concept-shares", [0.5, 0.5])),
    ],
)
def test_setting_is_read_as_a_typed_value(text: str, expected: tuple[str, Any]) -> None:
    assert parse_setting(text) == expected


@pytest.mark.parametrize("text", ["rounds", "", "=3", " =3", "rounds: 3"])
def test_setting_without_key_or_equals_sign_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{text!r}: expected key=value")):
        parse_setting(text)


@pytest.mark.parametrize("text", ["rounds=[1", "rounds=\x00", "run-name=2024-13-01", "rounds=0x_"])
def test_setting_that_is_not_yaml_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(text))):
        parse_setting(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("alpha=inf", math.inf), ("learning-rate=1e-3", 0.001), ("alpha=1.5e2", 150.0)],
)
def test_numbers_that_yaml_takes_for_text_are_numbers(text: str, value: float) -> None:
    name, parsed = parse_setting(text)

    config = load_config({name: parsed})

    assert getattr(config, FIELDS[name].name) == value


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        outcome = parse_setting(text)[0]
    except ConfigError as error:
        outcome = str(error).partition(": ")[0]

    assert outcome in (text.partition("=")[0].strip(), repr(text).partition(": ")[0])


@given(st.sampled_from(sorted(FIELDS)), st.text(max_size=12))
def test_any_text_for_any_key_loads_or_is_refused_by_name(name: str, text: str) -> None:
    try:
        outcome = repr(load_config({name: text}))
    except ConfigError as error:
        outcome = str(error)

    assert outcome.startswith(("RunConfig(", f"{name} = {text!r}: ", "scenario file "))


def test_scenario_files_and_settings_read_values_alike(tmp_path: Path) -> None:
    path = tmp_path / "same.yaml"
    path.write_text("alpha: 3\nadaptive: false\nconcept-shares: 0.5,0.5\ncorrupted-shares: 0,0\n")
    settings = [f"{k}={v}" for k, v in yaml.safe_load(path.read_text()).items()]

    from_file = load_config({"scenario": str(path)})
    from_settings = load_config(dict(parse_setting(text.lower()) for text in settings))

    for name in ("alpha", "adaptive", "concept_shares", "corrupted_shares"):
        assert getattr(from_file, name) == getattr(from_settings, name)


def test_loggers_are_named_with_commas_and_others_refused():
    assert load_config({"loggers": "tensorboard, wandb"}).logger_names() == ["tensorboard", "wandb"]
    assert load_config({}).logger_names() == []
    with pytest.raises(ConfigError, match="loggers = 'tensorbord': expected any of tensorboard"):
        load_config({"loggers": "tensorbord"})
