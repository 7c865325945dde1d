"""Tables in the order of time: balanced test sets from both ends, features scaled by the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_data

from fedrc_flwr.data import tabular
from fedrc_flwr.errors import DataError


@pytest.fixture(params=["electricity", "airline"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_two_balanced_test_sets_come_from_the_first_and_the_last_period(tmp_path: Path) -> None:
    # Prepare: the first feature tells the time
    lines = [",".join([*tabular.ELECTRICITY, "class"])]
    lines += [f"{row},0,0,0,0,0,0,0,{'UP' if row % 3 == 0 else 'DOWN'}" for row in range(300)]
    (tmp_path / "elec.csv").write_text("\n".join(lines))

    # Execute
    data = tabular.electricity(tmp_path)

    # Assert: a tenth of 300 rows holds 10 UP
    assert data.test_sets is not None
    for number in (0, 1):
        assert np.bincount(data.test_labels[data.test_sets == number]).tolist() == [10, 10]
    times = [data.test_inputs[data.test_sets == number, 0] for number in (0, 1)]
    middle = np.median(data.train_inputs[:, 0])
    assert times[0].max() < middle < times[1].min()
    assert len(data.train_labels) == 300 - 40


def test_features_are_scaled_by_training_statistics(tmp_path: Path, name: str) -> None:
    getattr(tiny_data, name)(tmp_path)

    data = getattr(tabular, name)(tmp_path)

    scaled = data.train_inputs[:, : len(getattr(tabular, name.upper()))]
    np.testing.assert_allclose(scaled.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(axis=0), 1.0, atol=1e-5)
    assert data.train_inputs.dtype == np.float32


@pytest.mark.parametrize(("rows", "used"), [(58_103, 58_100), (500, 500)])
def test_airline_is_cut_to_its_first_rows_as_in_the_paper(
    tmp_path: Path, rows: int, used: int
) -> None:
    # Prepare: the first attribute tells the time
    lines = [",".join([*tabular.AIRLINE, *tabular.AIRLINE_NAMES, "ArrDelay"])]
    rest = ",".join(["0"] * (len(tabular.AIRLINE) - 1) + ["NW", "LAX", "PHX"])
    lines += [f"{row},{rest},{1 - row % 2}" for row in range(rows)]
    (tmp_path / "airline.csv").write_text("\n".join(lines))

    # Execute
    data = tabular.airline(tmp_path)

    # Assert: as many rows, of which none is from after the cut
    times = np.concatenate([data.train_inputs[:, 0], data.test_inputs[:, 0]]).astype(np.float64)
    assert len(times) == used
    steps = np.diff(np.sort(times))
    assert steps.max() == pytest.approx(steps.min(), rel=0.05)
    assert data.test_inputs[:, 0].max() == times.max()


def test_constant_feature_is_zero_and_not_nan(tmp_path: Path) -> None:
    lines = [",".join([*tabular.ELECTRICITY, "class"])]
    lines += [f"1,2,3,4,5,6,7,{row},{'UP' if row % 2 else 'DOWN'}" for row in range(40)]
    (tmp_path / "elec.csv").write_text("\n".join(lines))

    data = tabular.electricity(tmp_path)

    assert not data.train_inputs[:, :7].any()
    assert np.isfinite(data.train_inputs).all()


def test_names_become_places_that_do_not_depend_on_the_other_names() -> None:
    one = tabular.hash_names(["LAX", "PHX", "LAX"], 16)
    other = tabular.hash_names(["DTW", "PHX"], 16)

    assert one.sum(axis=1).tolist() == [1, 1, 1]
    np.testing.assert_array_equal(one[0], one[2])
    np.testing.assert_array_equal(one[1], other[1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("nswprice", "price"), "no column 'nswprice'"),
        (("\n0.", "\ncheap0."), "column 'date' holds 'cheap0.*expected a number"),
        (("\n0.", "\nnan,0."), "more values than its first line has columns"),
        (("DOWN", "UP"), "one class only"),
    ],
)
def test_broken_table_is_refused_with_the_place(
    tmp_path: Path, change: tuple[str, str], words: str
) -> None:
    lines = [",".join([*tabular.ELECTRICITY, "class"])]
    lines += [f"0.{row},1,1,1,1,1,1,1,{'UP' if row % 2 else 'DOWN'}" for row in range(40)]
    (tmp_path / "elec.csv").write_text("\n".join(lines).replace(*change))

    with pytest.raises(DataError, match=words):
        tabular.electricity(tmp_path)
