from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from client_app.prepared import prepared
from fedrc_flwr.config import RunConfig
from fedrc_flwr.configuration import load_config
from fedrc_flwr.data.scenario import SCENARIO_KEYS, ClientData, scenario_of


def never() -> ClientData:
    raise AssertionError("built again")


def build(config: RunConfig, index: int) -> ClientData:
    return scenario_of(config).client(index)


@pytest.mark.parametrize("index", [0, 4])
def test_second_process_maps_what_the_first_prepared(tmp_path: Path, index: int) -> None:
    config = load_config({"clients": 4})
    expected = build(config, index)
    prepared(tmp_path, config, index, lambda: expected)

    found = prepared(tmp_path, config, index, never)

    assert (found.name, found.role, found.classes) == (
        expected.name, expected.role, expected.classes,
    )  # fmt: skip
    assert found.truth == expected.truth
    for got, wanted in ((found.fit, expected.fit), (found.test, expected.test)):
        np.testing.assert_array_equal(got.inputs, wanted.inputs)
        np.testing.assert_array_equal(got.labels, wanted.labels)
        assert isinstance(got.inputs, np.memmap)


def test_another_scenario_or_client_is_prepared_apart(tmp_path: Path) -> None:
    config = load_config({"clients": 4})
    prepared(tmp_path, config, 0, lambda: build(config, 0))
    other = load_config({"clients": 4, "seed": 1})

    elsewhere = prepared(tmp_path, other, 0, lambda: build(other, 0))
    another = prepared(tmp_path, config, 1, lambda: build(config, 1))

    np.testing.assert_array_equal(elsewhere.fit.labels, build(other, 0).fit.labels)
    assert another.name == "client-1"


def test_preparing_that_was_cut_short_is_done_again(tmp_path: Path) -> None:
    config = load_config({"clients": 4})
    (tmp_path / ".preparing-abc").mkdir()

    found = prepared(tmp_path, config, 0, lambda: build(config, 0))

    assert len(found.fit) > 0


def test_every_key_of_the_scenario_counts() -> None:
    """A key that changes the data but not the digest would hand out the wrong samples."""
    fields = dataclasses.fields(RunConfig)
    groups = [i for i, f in enumerate(fields) if f.metadata["group"]]
    start = next(i for i in groups if fields[i].metadata["group"] == "Scenario")
    end = next(i for i in groups if i > start)
    network = {"model", "hidden", "standardise", "width", "model_weights", "small_stem", "norm"}

    names = {f.name for f in fields[start:end]} - network

    assert names | {"seed"} == set(SCENARIO_KEYS)
