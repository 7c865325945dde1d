"""Looking at data: what is in it, what will be done, and all that is wrong at once."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedrc_flwr.cli import MISUSED, app
from fedrc_flwr.data.inspection import Findings, inspect
from fedrc_flwr.data.kinds import rounded
from fedrc_flwr.data.reading import read_table
from fedrc_flwr.data.schema import read_schema
from fedrc_flwr.errors import DataError

ROWS = 60


def table(**columns: Any) -> pd.DataFrame:
    """A table that can be run, with further columns."""
    rng = np.random.default_rng(0)
    plain = {
        "site": np.repeat(["a", "b", "c"], ROWS // 3),
        "age": rng.normal(60, 18, ROWS).round(),
        "finding": np.tile(["cold", "flu"], ROWS // 2),
    }
    return pd.DataFrame({**plain, **columns})


def look(**column: Any) -> Any:
    """What a further column is taken for."""
    found = inspect(table(**column), "finding", "site")
    (name,) = column
    return next(one for one in found.looks if one.column.name == name)


def problem(data: Any, **options: Any) -> str:
    found = inspect(data, **options)
    assert found.schema is None
    (only,) = found.problems
    with pytest.raises(DataError):
        found.required()
    return only


# --- kinds ---------------------------------------------------------------------------------------


def test_number_is_scaled_by_rounded_figures() -> None:
    crp = look(crp=np.r_[np.full(30, 10.4), np.full(30, 50.0)])

    # Mean 30.2 and deviation 19.8.
    assert (crp.column.kind, crp.column.centre, crp.column.scale) == ("number", 30.0, 20.0)
    assert not crp.column.missing


@pytest.mark.parametrize(
    ("exact", "expected"),
    [
        ((61.3, 18.2), (60, 20)),
        ((36.84, 0.63), (36.8, 0.6)),
        ((0.004, 0.0196), (0.0, 0.02)),
        ((1234, 97), (1200, 100)),
        ((5.0, 0.0), (5.0, 1.0)),
    ],
)
def test_figures_have_one_digit_of_the_scale(
    exact: tuple[float, float], expected: tuple[float, float]
) -> None:
    assert rounded(*exact) == pytest.approx(expected)


@pytest.mark.parametrize("values", [["1,5", "2,25"], ["1.5", "2.25"], ["1e0", " 2"], [True, 2.5]])
def test_texts_of_numbers_are_numbers(values: list[Any]) -> None:
    assert look(value=pd.Series(values * (ROWS // 2), dtype=object)).column.kind == "number"


def test_few_texts_are_categories_and_rare_ones_are_none_of_them() -> None:
    ward = look(ward=["east"] * 30 + ["west"] * 26 + ["attic"] * 4)

    assert ward.column.categories == ("east", "west")
    assert "1 of them rare" in ward.content


def test_many_texts_are_hashed() -> None:
    note = look(note=[f"cough for {number} days" for number in range(ROWS)])

    assert (note.column.kind, note.column.buckets) == ("text", 64)


@pytest.mark.parametrize(
    ("written", "form"),
    [
        ("%Y-%m-%d", "ISO8601"), ("%Y-%m-%d %H:%M:%S", "ISO8601"), ("%d.%m.%Y", "%d.%m.%Y"),
        ("%d/%m/%Y", "%d/%m/%Y"), ("%m/%d/%Y", "%m/%d/%Y"), ("%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M"),
    ],
)  # fmt: skip
def test_dates_are_found_as_they_are_written(written: str, form: str) -> None:
    days = pd.Timestamp("2022-01-31 05:30") + pd.to_timedelta(np.arange(ROWS) * 7.1, "D")

    seen = look(seen=days.strftime(written))

    assert (seen.column.kind, seen.column.format) == ("date", form)
    assert ("hour" in seen.column.parts) == ("%H" in written)
    assert look(seen=days).column.kind == "date"


def test_missing_values_are_marked() -> None:
    values = pd.Series(np.arange(ROWS) % 7, dtype=object)
    values[:9] = ["NA", "", None, "n/a", "?", "-", np.nan, "null", " "]

    found = look(crp=values)

    assert (found.missing, found.column.kind, found.column.missing) == (9, "number", True)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.ones(ROWS), "same value in every row"),
        ([None] * ROWS, "no values"),
        (np.arange(ROWS) + 1000, "identifier"),
        ([f"P{number:04d}" for number in range(ROWS)], "identifier"),
    ],
)
def test_column_that_teaches_nothing_is_left_out(values: Any, reason: str) -> None:
    found = look(value=values)

    assert found.column.kind == "ignored"
    assert reason in found.reason


def test_columns_are_what_the_user_says() -> None:
    data = table(grade=np.arange(ROWS) % 3, number=np.arange(ROWS))

    found = inspect(data, "finding", "site", columns=["grade:category", "number"])

    assert found.schema is not None
    kinds = {column.name: column.kind for column in found.schema.columns}
    assert kinds == {"age": "ignored", "grade": "category", "number": "number"}
    ignored = inspect(data, "finding", "site", ignore=["age", "number"]).required()
    assert [column.kind for column in ignored.columns] == ["ignored", "number", "ignored"]


def test_column_that_tells_the_label_is_pointed_at() -> None:
    codes = np.tile(["J00", "J10"], ROWS // 2)
    order = np.tile([0.0, 100.0], ROWS // 2) + np.random.default_rng(1).random(ROWS)

    found = inspect(table(code=codes, score=order), "finding", "site")

    assert [note.split()[0] for note in found.notes] == ["'code'", "'score'"]
    assert "--ignore code" in found.notes[0]


# --- what it is not for --------------------------------------------------------------------------


def test_continuous_target_is_refused() -> None:
    words = problem(table(), label="age", client="site")

    assert "looks like a quantity" in words
    assert "or choose another column with --label" in words


def test_quantity_is_told_of_once_and_not_listed_as_classes() -> None:
    found = inspect(table(), label="age", client="site")

    assert found.classes == {}
    assert found.notes == ()


def test_label_with_a_value_for_every_third_row_is_refused() -> None:
    names = [f"code {number // 3}" for number in range(ROWS)]

    words = problem(table(finding=names), label="finding", client="site")

    assert "20 different values in 60 rows, a value of its own for every third row" in words


def test_one_class_is_refused() -> None:
    words = problem(table(finding="flu"), label="finding", client="site")

    assert "is 'flu' in every row: there is nothing to tell apart" in words


def test_client_with_one_row_and_row_without_client_are_refused() -> None:
    sites = ["a"] * 29 + ["b"] * 29 + ["c", None]

    found = inspect(table(site=sites), "finding", "site")

    assert len(found.problems) == 2
    assert "1 client of 'site' with a single row: c" in found.problems[0]
    assert "empty in 1 row" in found.problems[1]


def test_table_without_clients_is_refused_with_the_columns_that_could_be_one() -> None:
    words = problem(table(sex=np.tile(["f", "m"], ROWS // 2)), label="finding")

    assert "--client site" in words
    assert "--client sex" not in words
    assert "fedrc check --schema" in words
    assert "--set data.clients=12" in words
    assert inspect(table(), "finding", owners=False).schema is not None


def test_all_problems_are_told_at_once() -> None:
    data = table(finding="flu", site="a").drop(columns="age")

    found = inspect(data, "finding", "site")

    assert len(found.problems) == 3


def test_unknown_columns_are_told_with_the_known_ones() -> None:
    found = inspect(table(), "diagnosis", "hospital", ["id"], ["size", "age:int"])

    assert len(found.problems) == 5
    assert "--label diagnosis: there is no such column, only site, age, finding" in found.problems
    misspelt = inspect(table(), "findin", "site").problems[0]
    assert misspelt.endswith("finding; did you mean 'finding'?")


def test_rows_without_a_label_are_left_out_with_a_note() -> None:
    finding = ["cold", "flu"] * 28 + [None, "NA", "", "?"]

    found = inspect(table(finding=finding), "finding", "site")

    assert found.classes == {"cold": 28, "flu": 28}
    assert "4 rows without a label: left out" in found.notes


def test_imbalance_is_told() -> None:
    found = inspect(table(finding=["no"] * 57 + ["yes"] * 3), "finding", "site")

    assert "95.0% of the rows have one label" in " ".join(found.notes)


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separator_is_found(separator: str, tmp_path: Path) -> None:
    frame = table(note="a b")
    frame.to_csv(tmp_path / "a.csv", sep=separator, index=False)

    found = read_table(tmp_path / "a.csv")

    assert found.columns.tolist() == frame.columns.tolist()
    assert found["finding"].tolist() == frame["finding"].tolist()


def test_decimal_commas_go_with_semicolons(tmp_path: Path) -> None:
    frame = table(crp=np.linspace(0.5, 30, ROWS))
    frame.to_csv(tmp_path / "a.csv", sep=";", decimal=",", index=False)

    schema = inspect(tmp_path / "a.csv", "finding", "site").required()

    assert [c.kind for c in schema.columns] == ["number", "number"]
    inputs = schema.features(read_table(tmp_path / "a.csv"))
    crp = schema.columns[1]
    np.testing.assert_allclose(inputs[:, 1] * crp.scale + crp.centre, frame["crp"], rtol=1e-5)


def test_quoted_text_may_hold_the_separator_and_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a;b\n"x;\ny";1\nz;2\n')

    assert read_table(tmp_path / "a.csv").to_numpy().tolist() == [["x;\ny", "1"], ["z", "2"]]


def test_file_of_an_office_program_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("größe;y\n1;Ä\n2;B\n".encode("cp1252"))

    assert read_table(tmp_path / "a.csv").to_numpy().tolist() == [["1", "Ä"], ["2", "B"]]


def test_parquet_is_read_and_without_its_package_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table().to_parquet(tmp_path / "a.parquet")
    assert inspect(tmp_path / "a.parquet", "finding", "site").clients == {"a": 20, "b": 20, "c": 20}
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyarrow" else find(name)
    )

    with pytest.raises(DataError, match=r'pip install "fedrc-flwr\[parquet\]"'):
        read_table(tmp_path / "a.parquet")


def test_numbers_as_strings_and_frames_give_the_same_schema(tmp_path: Path) -> None:
    frame = table(sex=np.tile(["f", "m", "m"], ROWS // 3), grade=np.arange(ROWS) % 4)
    frame.to_csv(tmp_path / "a.csv", index=False)

    one = inspect(frame, "finding", "site").required()
    other = inspect(tmp_path / "a.csv", "finding", "site").required()

    assert one == other


def pictures(folder: Path, outer: list[str], inner: list[str]) -> Path:
    for first in outer:
        for second in inner:
            (folder / first / second).mkdir(parents=True)
            for number in range(4):
                Image.new("L", (4, 4), number).save(folder / first / second / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("outer", "inner", "client", "nesting"),
    [
        (["north", "south"], ["cat", "dog"], "", "CLIENT/CLASS"),
        (["cat", "dog"], ["hospital-1", "hospital-2", "hospital-3"], "", "CLASS/CLIENT"),
        (["cat", "dog"], ["north", "south"], "inner", "CLASS/CLIENT"),
        (["site 1", "site 2"], ["cat", "dog"], "outer", "CLIENT/CLASS"),
    ],
)
def test_folders_of_clients_and_classes_may_be_nested_either_way(
    outer: list[str], inner: list[str], client: str, nesting: str, tmp_path: Path
) -> None:
    found = inspect(pictures(tmp_path, outer, inner), client=client)

    clients, classes = (outer, inner) if nesting == "CLIENT/CLASS" else (inner, outer)
    assert nesting in found.words
    assert list(found.clients) == clients
    assert list(found.classes) == classes
    assert found.required().input_shape == (4, 4)


def test_folder_of_classes_alone_has_no_clients(tmp_path: Path) -> None:
    folder = pictures(tmp_path, ["cat", "dog"], ["images"])

    assert "CLASS/image" in inspect(folder, owners=False).words
    assert "--set data.clients=12" in problem(folder)
    with pytest.raises(DataError, match="expected outer or inner"):
        inspect(folder, client="hospital")


# --- the command ---------------------------------------------------------------------------------


def check(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["check", *map(str, arguments)])


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    frame = table(crp=[*np.linspace(1, 200, ROWS - 5), *[np.nan] * 5], patient=np.arange(ROWS))
    frame.to_csv(tmp_path / "hospitals.csv", sep=";", decimal=",", index=False)
    return tmp_path / "hospitals.csv"


def test_check_tells_everything_and_ends_well(hospitals: Path) -> None:
    done = check(hospitals, "--label", "finding", "--client", "site")

    assert done.exit_code == 0, done.output
    for words in ("60 rows and 5 columns", "Label 'finding': 2 classes", "flu", "50.0%",
                  "3, a (20 rows), b (20 rows), c (20 rows)", "missing in 5 rows", "identifier",
                  "It can be run. The network gets 3 numbers"):  # fmt: skip
        assert words in done.output


def test_check_of_data_that_cannot_be_run_ends_badly(hospitals: Path) -> None:
    done = check(hospitals, "--label", "age")

    assert done.exit_code == MISUSED
    assert "looks like a quantity" in done.output
    assert "--client site" in done.output


def test_check_writes_a_schema_once_and_checks_others_against_it(
    hospitals: Path, tmp_path: Path
) -> None:
    path = tmp_path / "schema.json"
    written = check(hospitals, "--label", "finding", "--ignore", "site", "--schema", path)
    before = path.read_text()
    other = read_table(hospitals).drop(columns=["site", "patient"])
    other.to_csv(tmp_path / "other.csv", index=False)
    fits = check(tmp_path / "other.csv", "--schema", path)
    other.drop(columns="age").to_csv(tmp_path / "third.csv", index=False)
    lacks = check(tmp_path / "third.csv", "--schema", path)

    assert written.exit_code == fits.exit_code == 0, written.output + fits.output
    assert "fits the schema: 60 rows, cold 30, flu 30" in fits.output
    assert lacks.exit_code == MISUSED
    assert "lacks columns that the schema has: 'age'" in lacks.output
    assert path.read_text() == before
    assert read_schema(path).classes == ("cold", "flu")


def test_options_about_columns_need_data() -> None:
    done = CliRunner().invoke(app, ["simulate", "--label", "y"])

    assert done.exit_code == MISUSED
    assert "need --data" in done.output


def test_findings_of_arrays_have_no_columns() -> None:
    found = inspect({"x": np.eye(40), "y": np.arange(40) % 2, "client": np.arange(40) % 4})

    assert isinstance(found, Findings)
    assert found.clients == {"0": 10, "1": 10, "2": 10, "3": 10}
    assert found.required().input_shape == (40,)
