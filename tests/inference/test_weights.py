"""Mixture weights on disk: kept exactly, followed over merged clusters, refused where unfit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trained_run import concept_checkpoint, write_run

from fedrc_flwr.checkpoint import save_client_state
from fedrc_flwr.errors import CheckpointError, WeightsError
from fedrc_flwr.inference import (
    Trained,
    Weights,
    load_trained,
    read_weights,
    state_weights,
    write_weights,
)
from fedrc_flwr.state import ClientState


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    return load_trained(write_run(tmp_path / "run", concept_checkpoint()))


def written(trained: Trained, path: Path, **changes: Any) -> Path:
    write_weights(path, trained, Weights((0, 4, 5), np.array([0.2, 0.7, 0.1])), {"samples": 3})
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


def test_weights_come_back_as_they_were(trained: Trained, tmp_path: Path) -> None:
    values = np.array([1 / 3, 2 / 3, 1e-300])
    write_weights(tmp_path / "w.json", trained, Weights((0, 4, 5), values), {})

    found = read_weights(tmp_path / "w.json", trained)

    assert found.clusters == (0, 4, 5)
    assert found.best == 4
    np.testing.assert_array_equal(found.values, values)


def test_weights_of_an_earlier_round_follow_merged_and_removed_clusters(
    trained: Trained, tmp_path: Path
) -> None:
    # 2 became part of 4, 3 was removed: 0.2, 0.1 + 0.3 and 0.2 of 0.8 are left.
    path = written(
        trained, tmp_path / "w.json", clusters=[0, 2, 3, 4, 5],
        mixture_weights=[0.2, 0.1, 0.2, 0.3, 0.2],
    )  # fmt: skip

    np.testing.assert_allclose(read_weights(path, trained).values, [0.25, 0.5, 0.25])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": 7}, ["expected classes 10", "found 7"]),
        ({"input_shape": [3, 4]}, ["expected samples of shape [8, 8]", "found [3, 4]"]),
        ({"layout": "abc"}, ["expected the network", "found abc"]),
        ({"schema": 2}, ["schema 2", "reads schema 1"]),
        ({"kind": "poem"}, ["not a file of weights"]),
        ({"mixture_weights": [0.5, 0.5]}, ["each of 3 clusters", "(2,)"]),
        ({"mixture_weights": [0.5, 0.9, 0.1]}, ["sum to 1"]),
        ({"mixture_weights": [-1.0, 1.0, 1.0]}, ["sum to 1"]),
        ({"mixture_weights": [0.0, 0.0, 0.0]}, ["sum to 1"]),
        ({"mixture_weights": [0.2, 0.7, 0.10001]}, ["sum to 1"]),
        ({"mixture_weights": "all"}, ["incomplete"]),
        ({"clusters": [7, 8, 9]}, ["[7, 8, 9]", "[0, 4, 5]"]),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    changes: dict[str, Any], words: list[str], trained: Trained, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_weights(written(trained, tmp_path / "w.json", **changes), trained)

    for word in ["w.json", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "values", [[0.0, 0.0, 0.0], [0.5, 0.6, -0.1], [np.nan, 0.5, 0.5], [0.5, 0.5], [0.3, 0.3, 0.3]]
)
def test_weights_that_are_no_distribution_do_not_come_into_being(values: list[float]) -> None:
    with pytest.raises(WeightsError, match="sum to 1"):
        Weights((0, 4, 5), np.array(values))


@pytest.mark.parametrize("content", [b"", b'{"kind": "fedrc-wei', b"[1]", b"\xff\xfe"])
def test_torn_weights_are_refused(content: bytes, trained: Trained, tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    path.write_bytes(content)

    with pytest.raises(CheckpointError, match=r"w\.json"):
        read_weights(path, trained)


def test_missing_weights_say_how_to_make_them(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="fedrc assign"):
        read_weights(tmp_path / "w.json", trained)


def test_state_of_a_client_that_trained_gives_its_weights_up_to_the_checkpoint(
    trained: Trained, tmp_path: Path
) -> None:
    for number, values in ((8, [0.1, 0.2, 0.7]), (9, [0.3, 0.3, 0.4]), (10, [1.0, 0.0, 0.0])):
        save_client_state(tmp_path, ClientState(number, (0, 4, 5), np.array(values)))

    np.testing.assert_array_equal(state_weights(tmp_path, trained).values, [0.3, 0.3, 0.4])


def test_state_directory_without_a_state_is_refused(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="round 9 or earlier, found none"):
        state_weights(tmp_path, trained)
    save_client_state(tmp_path, ClientState(10, (0, 4, 5), np.full(3, 1 / 3)))
    with pytest.raises(CheckpointError, match="round 9 or earlier, found round 10"):
        state_weights(tmp_path, trained)
