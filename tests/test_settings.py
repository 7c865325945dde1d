"""What a key is: its names, its type and range, and how a section is filled and written."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from fedrc_flwr.errors import ConfigError
from fedrc_flwr.settings import (
    allowed,
    build,
    check,
    dashed,
    flat,
    flattened,
    key,
    keys_of,
    suggest,
)


@dataclass(frozen=True)
class Oven:
    """A section with a key of every kind."""

    degrees: float = key(200.0, "How hot.", above=0.0, high=300.0)
    top_heat: bool = key(True, "From above, too.")
    shelves: int = key(2, "How many.", low=1, high=2_000_000)
    mode: str = key("fan", "How it heats.", choices=("fan", "grill"))
    minutes: float = key(math.inf, "How long.", low=0.0, infinite=True)
    stages: str = key("1,2", "Degrees of each stage.", numbers=True)
    lambda_: float = key(0.5, "A name that Python reserves.")
    serial: str = "not a key"


FIELDS = keys_of(Oven)


# --- names --------------------------------------------------------------------------------------


def test_keys_are_named_with_dashes_under_their_section() -> None:
    assert list(keys_of(Oven, "oven"))[:3] == ["oven.degrees", "oven.top-heat", "oven.shelves"]
    assert list(FIELDS) == ["degrees", "top-heat", "shelves", "mode", "minutes", "stages", "lambda"]


def test_name_that_python_reserves_has_no_trailing_dash() -> None:
    assert dashed("lambda_") == "lambda"


def test_nested_tables_are_dotted_keys() -> None:
    nested = {"a": 1, "b": {"c": 2, "d": {"e": 3}}, "f.g": 4, "h": {}}  # the empty one stays

    assert flattened(nested) == {"a": 1, "b.c": 2, "b.d.e": 3, "f.g": 4, "h": {}}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("top-heat", "; did you mean 'oven.top-heat'?"),
        ("top_heat", "; did you mean 'oven.top-heat'?"),
        ("oven.top_heat", "; did you mean 'oven.top-heat'?"),
        ("oven.tp-heat", "; did you mean 'oven.top-heat'?"),
        ("zzz", "; `fedrc config --all` lists the keys"),
    ],
)
def test_unknown_name_is_answered_with_one_that_is_spelt_alike(name: str, words: str) -> None:
    assert suggest(name, keys_of(Oven, "oven")) == words


# --- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("degrees", 180, 180.0),
        ("degrees", "1e2", 100.0),
        ("degrees", 300, 300.0),
        ("top-heat", False, False),
        ("shelves", 3.0, 3),
        ("shelves", 1, 1),
        ("mode", "grill", "grill"),
        ("minutes", "inf", math.inf),
        ("minutes", 0, 0.0),
        ("stages", [180, 0.5], "180,0.5"),
        ("stages", 3, "3"),
        ("stages", "4,5", "4,5"),
    ],
)
def test_value_is_taken_in_the_keys_own_type(name: str, value: Any, expected: Any) -> None:
    found = check(name, value, FIELDS[name])

    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("degrees", 0, "a number above 0 and at most 300"),
        ("degrees", 300.5, "a number above 0 and at most 300"),
        ("degrees", math.nan, "a number above 0 and at most 300"),
        ("degrees", "hot", "a number above 0 and at most 300"),
        ("degrees", True, "a number above 0 and at most 300"),
        ("degrees", 10**400, "a number above 0 and at most 300"),
        ("top-heat", 1, "true or false"),
        ("shelves", 1.5, "a whole number from 1 to 2000000"),
        ("shelves", "3", "a whole number from 1 to 2000000"),
        ("shelves", math.inf, "a whole number from 1 to 2000000"),
        ("mode", "steam", "`fan` or `grill`"),
        ("minutes", -1, "a number of at least 0"),
        ("stages", [1, "b"], "numbers separated by commas"),
        ("stages", [True], "numbers separated by commas"),
        ("lambda", math.inf, "a number"),
    ],
)
def test_other_value_is_refused_with_key_value_and_what_is_allowed(
    name: str, value: Any, expected: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        check(name, value, FIELDS[name])

    assert str(refusal.value) == f"{name} = {value!r}: expected {expected}"
    assert allowed(FIELDS[name]) == expected


# --- sections -----------------------------------------------------------------------------------


def test_section_is_filled_from_its_own_keys_alone() -> None:
    built = build(Oven, "oven", {"oven.shelves": 4, "shelves": 5, "fridge.degrees": 7})

    assert built == Oven(shelves=4)


def test_section_is_checked_as_it_is_filled() -> None:
    with pytest.raises(ConfigError, match=r"^oven\.mode = 'steam': expected `fan` or `grill`$"):
        build(Oven, "oven", {"oven.mode": "steam"})


def test_section_written_and_filled_again_is_the_same() -> None:
    oven = Oven(degrees=99.0, minutes=math.inf, lambda_=0.25)

    written = flat(oven, "oven")

    assert written["oven.minutes"] == "inf"
    assert written["oven.lambda"] == 0.25
    assert "oven.serial" not in written
    assert build(Oven, "oven", written) == oven


def test_key_that_is_given_nested_and_dotted_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^local.epochs is given twice$"):
        flattened({"local": {"epochs": 3}, "local.epochs": 4})
