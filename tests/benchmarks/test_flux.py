"""FLUX's descriptors and groups, as the comparison of benchmarks/concepts.py has them."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
flux = SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks" / "flux.py")))

LATENTS = np.array([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0], [4.0, 4.0, 4.0], [1.0, 0.0, 3.0]])
LABELS = np.array([0, 0, 1, 0])


def test_a_descriptor_has_means_and_deviations_of_all_samples_and_of_each_label() -> None:
    others = LATENTS[::-1] * 1.5  # the largest latent value of any client is 6

    sent = np.stack([flux.moments(x, LABELS, 2) for x in (LATENTS, others)])
    mean, deviation, *by_label = (part[0] for part in flux.descriptors(sent, per_label=True))

    # Two axes, because there are two labels, of points that are drawn alike everywhere.
    points = 1.02 * 6.0 * np.random.RandomState(1).uniform(size=(200, 3))
    axes = np.linalg.svd(points - points.mean(axis=0))[2][:2]
    reduced = (LATENTS - points.mean(axis=0)) @ axes.T
    np.testing.assert_allclose(mean, reduced.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(deviation, reduced.std(axis=0), atol=1e-9)
    np.testing.assert_allclose(by_label[0], reduced[LABELS == 0].mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(by_label[1], reduced[LABELS == 0].std(axis=0), atol=1e-9)
    # A single sample is as good as none.
    np.testing.assert_array_equal(by_label[2:], np.full((2, 2), -1.0))
    assert len(flux.descriptors(sent, per_label=False)) == 2


def test_a_part_of_the_descriptors_has_one_scale() -> None:
    part = np.array([[0.0, 2.0], [4.0, 1.0], [8.0, 8.0]])

    scaled = flux.scaled([part, np.ones((3, 2))], np.array([0, 1]))

    np.testing.assert_allclose(scaled[:, :2], part / 4.0)  # from 0 to 4 among the first two
    np.testing.assert_array_equal(scaled[:, 2:], np.zeros((3, 2)))


@pytest.mark.parametrize(
    ("values", "bend"),
    [
        # Turned round: 0 1 1 1 1, above the diagonal by 0 .75 .5 .25 0. The peak is the second from
        # the right, and .25 is the first that is below .75 - 1/4.
        ([1.0, 1.0, 1.0, 1.0, 5.0], 3),
        ([1.0, 2.0, 3.0, 4.0], None),
        ([2.0, 2.0, 2.0], None),
    ],
)
def test_the_knee_is_where_the_distances_begin_to_grow(
    values: list[float], bend: int | None
) -> None:
    assert flux.knee(np.array(values)) == bend


def test_the_radius_is_at_the_knee_and_noise_stays_alone() -> None:
    # Nearest neighbours are at 1 1 1 1 1 149 and 149, so that the radius is 1.
    points = np.array([[0.0], [1.0], [2.0], [50.0], [51.0], [200.0], [349.0]])

    groups = flux.clusters(points)

    assert [set(np.flatnonzero(groups == g)) for g in dict.fromkeys(groups)] == [
        {0, 1, 2}, {3, 4}, {5}, {6},
    ]  # fmt: skip


def test_clients_that_label_otherwise_are_told_apart_by_labels_and_not_without_them() -> None:
    rng = np.random.default_rng(0)
    contents = np.repeat([0, 1], 40)
    clients = []
    for swaps in (False, False, False, False, True, True, True, True):
        latents = 5.0 * np.eye(3)[contents] + rng.normal(0.0, 0.1, (80, 3))
        clients.append(flux.moments(latents, contents ^ swaps, 2))
    sent = np.stack(clients)

    by_label = flux.clusters(flux.scaled(flux.descriptors(sent, True), np.arange(8)))
    later = flux.nearest(sent, True, np.array([0, 0, 0, -1, 1, 1, 1, -1]))

    assert not set(by_label[:4]) & set(by_label[4:])
    np.testing.assert_array_equal(later.argmax(axis=1), [0, 0, 0, 0, 1, 1, 1, 1])
    means = [part[:, None] for part in flux.descriptors(sent, False)]
    assert max(np.abs(part - part.swapaxes(0, 1)).max() for part in means) < 0.5
