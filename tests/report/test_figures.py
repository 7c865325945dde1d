"""Pictures: written, and showing what they should."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.image import imread

from fedrc_flwr.report.figures import draw_mixture_weights
from fedrc_flwr.state import ClientRecord, Membership, ServerState

DARKEST = np.array(colormaps["Blues"](1.0)[:3])
CONCEPT_LINE = np.array([0xC2, 0x41, 0x0C]) / 255


def state_of(weights: list[list[float]], concepts: list[int]) -> ServerState:
    clusters = tuple(range(0, 2 * len(weights[0]), 2))
    clients = {
        f"client-{i:03d}": ClientRecord(
            "train", 10, label_counts=np.array(row)[:, None] * 10.0, concept=concept
        )
        for i, (row, concept) in enumerate(zip(weights, concepts, strict=True))
    }
    others = {"observer": ClientRecord("observe", 5), "silent": ClientRecord("train", 5)}
    models = {c: np.zeros(1, dtype=np.float32) for c in clusters}
    return ServerState(9, Membership(clusters), models, None, clients | others, parameters=1)


def drawn(state: ServerState, path: Path) -> np.ndarray:
    draw_mixture_weights(state, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    return imread(path)[:, :, :3]


def share_of(picture: np.ndarray, colour: np.ndarray) -> float:
    return float((np.abs(picture - colour).max(axis=2) < 0.02).mean())


def test_certain_weights_are_dark_cells_and_even_weights_are_not(tmp_path: Path) -> None:
    certain = drawn(state_of([[1, 0], [1, 0], [0, 1]], [0, 0, 1]), tmp_path / "certain.png")
    even = drawn(state_of([[0.5, 0.5]] * 3, [0, 0, 1]), tmp_path / "even.png")

    assert certain.std() > 0.05
    assert even.std() > 0.05
    # Half of the cells are dark; the rest of the darkest colour is the end of the colour bar.
    assert share_of(certain, DARKEST) > 0.1
    assert share_of(even, DARKEST) < 0.02


def test_concepts_are_marked_where_they_are_known(tmp_path: Path) -> None:
    weights = [[1.0, 0.0], [0.0, 1.0]]

    known = drawn(state_of(weights, [0, 1]), tmp_path / "known.png")
    unknown = drawn(state_of(weights, [-1, -1]), tmp_path / "unknown.png")

    assert share_of(known, CONCEPT_LINE) > 0
    assert share_of(unknown, CONCEPT_LINE) == 0


@pytest.mark.parametrize(("clients", "clusters"), [(1, 1), (100, 3), (4, 12)])
def test_any_size_of_federation_can_be_drawn(tmp_path: Path, clients: int, clusters: int) -> None:
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(clusters), size=clients).tolist()

    picture = drawn(state_of(weights, [i % 3 for i in range(clients)]), tmp_path / "any.png")

    assert picture.std() > 0.05
