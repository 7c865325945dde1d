"""A schema turns raw rows into inputs, is kept as JSON, and says what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedrc_flwr.data.encoding import Column, encode
from fedrc_flwr.data.schema import Schema, parse_schema, plain_schema, read_schema
from fedrc_flwr.errors import DataError

SCHEMA = Schema(
    classes=("cold", "flu"),
    columns=(
        Column("age", "number", centre=60.0, scale=20.0, missing=True),
        Column("sex", "category", categories=("f", "m"), missing=True),
        Column("note", "text", buckets=8),
        Column("id", "ignored"),
        Column(
            "seen", "date", centre=2020.0, scale=2.0, parts=("year", "season"), format="%d.%m.%Y"
        ),
    ),
    label="finding",
    client="hospital",
)


def encoded(column: Column, *values: Any) -> list[list[float]]:
    return encode(pd.DataFrame({column.name: list(values)}), (column,)).round(6).tolist()


# --- the kinds -----------------------------------------------------------------------------------


def test_numbers_are_centred_and_scaled_and_missing_ones_marked() -> None:
    age = Column("age", "number", centre=60, scale=20, missing=True)

    assert encoded(age, 80, 50.0, None) == [[1.0, 0.0], [-0.5, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("values", [["80", " 50,0", "NA"], ["80", "50.0", ""], ["8e1", "50", "-"]])
def test_numbers_may_be_texts_with_a_comma_and_marks_for_missing(values: list[str]) -> None:
    age = Column("age", "number", centre=60, scale=20, missing=True)

    assert encoded(age, *values) == [[1.0, 0.0], [-0.5, 0.0], [0.0, 1.0]]


def test_numbers_far_from_the_centre_are_cut_off() -> None:
    assert encoded(Column("crp", "number", centre=10, scale=20), 99999.0) == [[10.0]]


def test_categories_have_a_place_each_and_others_have_none() -> None:
    sex = Column("sex", "category", categories=("f", "m"), missing=True)

    assert encoded(sex, "m", "f", "other", None) == [
        [0, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 1],
    ]  # fmt: skip


@pytest.mark.parametrize("values", [[1, 2], [1.0, 2.0], ["1", "2"], ["1.0", "2.0"]])
def test_numbers_as_categories_have_one_name_however_they_are_stored(values: list[Any]) -> None:
    assert encoded(Column("grade", "category", categories=("1", "2")), *values) == [[1, 0], [0, 1]]


def test_texts_are_hashed_by_words_so_that_no_list_of_words_is_needed() -> None:
    note = Column("note", "text", buckets=32)

    cough, same, other, nothing = encoded(note, "dry cough", "Cough, dry", "fever", None)

    assert cough == same != other
    assert np.linalg.norm(cough) == pytest.approx(1, abs=1e-5)
    assert not any(nothing)


def test_dates_become_a_year_and_points_on_circles() -> None:
    seen = Column("seen", "date", centre=2020, scale=2, format="%d.%m.%Y",
                  parts=("year", "season", "weekday"))  # fmt: skip

    # The first day of 2022 was a Saturday, the sixth day of the week.
    ((year, *circles), nothing) = encoded(seen, "01.01.2022", None)

    assert year == 1.0
    angle = 2 * np.pi * 5 / 7
    np.testing.assert_allclose(circles, [0, 1, np.sin(angle), np.cos(angle)], atol=1e-5)
    assert nothing == [0.0] * 5


def test_hours_turn_once_a_day() -> None:
    seen = Column("seen", "date", parts=("hour",), format="ISO8601")

    found = encoded(seen, "2022-05-01T06:00", "2022-05-02T18:00:00")

    np.testing.assert_allclose(found, [[1, 0], [-1, 0]], atol=1e-6)


def test_columns_stand_side_by_side_in_their_order() -> None:
    frame = pd.DataFrame(
        {"note": ["a"], "seen": ["01.01.2022"], "sex": ["m"], "age": [80], "more": [1]}
    )

    inputs = SCHEMA.features(frame)

    assert SCHEMA.input_shape == (2 + 3 + 8 + 3,) == inputs.shape[1:]
    assert inputs.dtype == np.float32
    assert inputs[0, :5].tolist() == [1, 0, 0, 1, 0]
    np.testing.assert_allclose(inputs[0, -3:], [1, 0, 1], atol=1e-6)


def test_arrays_are_scaled_value_by_value_and_bytes_are_left_alone() -> None:
    schema = Schema(("a", "b"), shape=(2,), centre=(1.0, 0.0), scale=(2.0, 1.0))
    pixels = np.array([[0, 255]], dtype=np.uint8)

    assert schema.scaled(np.array([[5.0, 3.0], [np.nan, 1.0]])).tolist() == [[2, 3], [0, 1]]
    assert schema.scaled(pixels) is pixels
    assert plain_schema((2,), 3).scaled(np.array([[5.0, 300.0]])).tolist() == [[5, 300]]


# --- labels --------------------------------------------------------------------------------------


def test_labels_are_numbers_by_name_and_names_by_number() -> None:
    numbers = SCHEMA.numbers(pd.Series(["flu", " cold", None, "flu"]))

    assert numbers.tolist() == [1, 0, -1, 1]
    assert SCHEMA.names(numbers[[0, 1]]).tolist() == ["flu", "cold"]


def test_label_that_is_no_class_is_refused_with_its_row() -> None:
    with pytest.raises(DataError, match=r"label 'cough' in row 2 .* classes cold, flu") as refusal:
        SCHEMA.numbers(["flu", "cough"])

    assert (refusal.value.code, refusal.value.column) == ("unknown-label", "finding")


# --- rows that do not fit ------------------------------------------------------------------------


def test_all_columns_that_a_table_lacks_are_told_at_once() -> None:
    with pytest.raises(DataError, match=r"lacks columns .* 'sex', 'note', 'seen'") as refusal:
        SCHEMA.features(pd.DataFrame({"age": [1]}))

    assert (refusal.value.code, refusal.value.column) == ("missing-column", "sex")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("age", "old", r"'age' holds 'old' in row 2, expected a number"),
        ("age", np.inf, r"'age' holds inf in row 2"),
        ("seen", "2022-01-01", r"'seen' holds '2022-01-01' in row 2, .* %d.%m.%Y"),
    ],
)
def test_value_of_another_kind_is_refused_with_its_row(name: str, value: Any, words: str) -> None:
    good = {"age": 1, "sex": "m", "note": "", "seen": "01.01.2022"}
    frame = pd.DataFrame([good, {**good, name: value}])

    with pytest.raises(DataError, match=words) as refusal:
        SCHEMA.features(frame)

    assert (refusal.value.code, refusal.value.column) == ("wrong-kind", name)


# --- as a file -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA,
        plain_schema((3, 8, 8), 4),
        Schema(("é", "b"), shape=(2,), centre=(1.5, 0.0), scale=(2.0, 1.0)),
    ],
)
def test_schema_comes_back_from_its_text_and_from_its_file(schema: Schema, tmp_path: Path) -> None:
    schema.save(tmp_path / "schema.json")

    assert parse_schema(schema.text()) == schema
    assert read_schema(tmp_path / "schema.json") == schema


def test_file_has_a_line_for_each_column(tmp_path: Path) -> None:
    SCHEMA.save(tmp_path / "schema.json")

    lines = (tmp_path / "schema.json").read_text().splitlines()

    assert (
        '    {"name": "sex", "kind": "category", "categories": ["f", "m"], "missing": true},'
        in lines
    )


def edited(**changes: Any) -> str:
    return json.dumps({**json.loads(SCHEMA.text()), **changes})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "not a schema"),
        (edited(fedrc_schema=2), "not a schema"),
        (edited(colums=[]), "unknown field 'colums'"),
        (edited(classes=["a"]), "two classes or more"),
        (edited(classes=["a", "a"]), "'a' is there twice"),
        (edited(classes=[1, 2]), "expected a list of texts"),
        (edited(shape=[3]), "either columns or a shape"),
        (edited(columns=[]), "either columns or a shape"),
        (edited(columns=["age"]), "a column is 'age'"),
        (edited(columns=[{"name": "a", "kind": "int"}]), "'a': kind 'int': expected one of number"),
        (edited(columns=[{"name": "a", "kind": "number", "scale": 0}]), "a scale above 0"),
        (edited(columns=[{"name": "a", "kind": "number", "centre": "x"}]), "number as centre"),
        (edited(columns=[{"name": "a", "kind": "text", "buckets": 0}]), "buckets"),
        (edited(columns=[{"name": "a", "kind": "date", "parts": ["decade"]}]), "year, season"),
        (edited(columns=[{"name": "a", "kind": "number", "unit": "mg"}]), "unknown field 'unit'"),
        (edited(columns=[{"name": "a", "kind": "ignored"}]), "no column is left"),
    ],
)
def test_edited_file_that_makes_no_sense_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(text)

    with pytest.raises(DataError, match=words) as refusal:
        read_schema(tmp_path / "schema.json")

    assert "schema.json" in str(refusal.value)


def test_schema_that_is_not_there_is_told_with_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"fedrc check DATA --schema"):
        read_schema(tmp_path / "schema.json")
