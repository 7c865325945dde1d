"""A scenario as a table and as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from fedrc_flwr.data.scenario import GroundTruth, Outline
from fedrc_flwr.report.scenario import draw, table, totals


def outline(name: str, labels: list[int], concept: int, style: str, role: str = "train") -> Outline:
    return Outline(name, role, np.array(labels), len(labels) - 1, 1, GroundTruth(concept, style))


OUTLINES = [
    outline("client-0", [2, 2, 0], 0, "none"),
    outline("client-1", [1, 1, 1, 1], 1, "motion_blur-3"),
    outline("observer-0", [0, 1, 2], -1, "none", role="observe"),
]


def test_table_tells_samples_labels_and_truth_of_every_client() -> None:
    header, *lines = table(OUTLINES)

    assert header.split() == ["client", "role", "fit", "test", "concept", "style", "labels"]
    assert [line.split() for line in lines] == [
        ["client-0", "train", "2", "1", "0", "none", "2:2", "0:1"],
        ["client-1", "train", "3", "1", "1", "motion_blur-3", "1:4"],
        ["observer-0", "observe", "2", "1", "unknown", "none", "0:1", "1:1", "2:1"],
    ]


def test_many_labels_are_cut_short() -> None:
    (_, line) = table([outline("client-0", list(range(100)), 0, "none")])

    assert line.endswith("5:1 and 94 more")


def test_totals_count_training_clients_only() -> None:
    assert totals(OUTLINES) == (
        "2 training clients with 7 samples (concept 0: 1, concept 1: 1; 1 corrupted), 1 observer"
    )


def test_picture_is_drawn_and_leaves_no_room_empty(tmp_path: Path) -> None:
    many = [outline(f"client-{i}", [i % 3], i % 2, "none") for i in range(80)]

    for number, rows in enumerate((OUTLINES, many)):
        draw(rows, 3, "title", tmp_path / f"{number}.png")

    for number in (0, 1):
        with Image.open(tmp_path / f"{number}.png") as image:
            pixels = np.asarray(image.convert("L"))
        assert min(pixels.shape) > 400
        assert (pixels < 250).mean() > 0.05
