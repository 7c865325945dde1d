from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from client_app import prepared as module
from client_app.prepared import prepared
from fedrc_flwr.data.scenario import ClientData, scenario_of
from fedrc_flwr.data.settings import DataSettings

FOUR = DataSettings(clients=4)


def never() -> ClientData:
    raise AssertionError("built again")


def build(seed: int, index: int) -> ClientData:
    return scenario_of(FOUR, seed).client(index)


@pytest.mark.parametrize("index", [0, 4])
def test_second_process_maps_what_the_first_prepared(tmp_path: Path, index: int) -> None:
    expected = build(0, index)
    prepared(tmp_path, FOUR, 0, index, lambda: expected)

    found = prepared(tmp_path, FOUR, 0, index, never)

    assert (found.name, found.role, found.classes) == (
        expected.name, expected.role, expected.classes,
    )  # fmt: skip
    assert found.truth == expected.truth
    for got, wanted in ((found.fit, expected.fit), (found.test, expected.test)):
        np.testing.assert_array_equal(got.inputs, wanted.inputs)
        np.testing.assert_array_equal(got.labels, wanted.labels)
        assert isinstance(got.inputs, np.memmap)


def test_another_scenario_or_client_is_prepared_apart(tmp_path: Path) -> None:
    prepared(tmp_path, FOUR, 0, 0, lambda: build(0, 0))

    elsewhere = prepared(tmp_path, FOUR, 1, 0, lambda: build(1, 0))
    another = prepared(tmp_path, FOUR, 0, 1, lambda: build(0, 1))

    np.testing.assert_array_equal(elsewhere.fit.labels, build(1, 0).fit.labels)
    assert another.name == "client-1"


def test_preparing_that_was_cut_short_is_done_again(tmp_path: Path) -> None:
    (tmp_path / ".preparing-abc").mkdir()

    found = prepared(tmp_path, FOUR, 0, 0, lambda: build(0, 0))

    assert len(found.fit) > 0


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(DataSettings)])
def test_every_setting_of_the_data_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A setting that changes the data but not the digest would hand out the wrong samples."""
    data = build(0, 0)
    prepared(tmp_path, FOUR, 0, 0, lambda: data)
    other = copy.copy(FOUR)
    before = getattr(FOUR, name)
    changed = f"{before}x" if isinstance(before, str) else not before if before is False else 7
    object.__setattr__(other, name, changed)  # whether it makes sense is not the question
    monkeypatch.setattr(module, "own_facts", lambda settings: [])

    prepared(tmp_path, other, 0, 0, lambda: data)

    assert len(list(tmp_path.glob("prepared-*"))) == 2
