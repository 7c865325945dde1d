"""Which cluster a newcomer belongs to, how sure that is, and what no cluster has seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from trained_run import concept_checkpoint, drawn_checkpoint, write_run

from fedrc_flwr.algorithms.fedrc import MOST_STEPS
from fedrc_flwr.data.concepts import concept_map
from fedrc_flwr.data.datasets import load_dataset
from fedrc_flwr.data.scenario import Split
from fedrc_flwr.errors import DataError, WeightsError
from fedrc_flwr.inference import Trained, assign, load_trained

CLUSTER_OF = {0: 0, 1: 4, 2: 5}  # see concept_checkpoint


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return load_trained(write_run(tmp_path_factory.mktemp("run"), concept_checkpoint()))


def newcomer(concept: int | np.ndarray, rows: slice | np.ndarray = np.s_[:]) -> Split:
    """Test digits under one of the three concepts, or under any other map of labels."""
    data = load_dataset("digits")
    labels = concept_map(concept, 10, 0) if isinstance(concept, int) else concept
    return Split(data.test_inputs[rows], labels[data.test_labels][rows])


def test_weights_are_those_of_e_steps_until_they_settle(tmp_path: Path) -> None:
    trained = load_trained(write_run(tmp_path, drawn_checkpoint()))
    samples = newcomer(0, np.arange(0, 360, 9))
    counts = trained.state.clients["client-00"].label_counts
    assert counts is not None
    prior = counts / counts.sum(axis=1, keepdims=True)
    probabilities = trained.log_probabilities(samples.inputs).exp().double().numpy()
    likelihood = probabilities[np.arange(40), :, samples.labels]
    expected = np.full(3, 1 / 3)
    for _ in range(MOST_STEPS):
        joint = expected * likelihood / prior[:, samples.labels].T
        joint /= joint.sum(axis=1, keepdims=True)
        change = np.abs(joint.mean(axis=0) - expected).max()
        expected = joint.mean(axis=0)
        if change < 1e-6:
            break

    found = assign(trained, samples)

    np.testing.assert_allclose(found.weights.values, expected, rtol=1e-6)
    positive = expected[expected > 0]
    assert found.entropy == pytest.approx(-(positive * np.log(positive)).sum(), abs=1e-6)
    first, second = np.sort(expected)[::-1][:2]
    assert found.margin == pytest.approx(first - second, abs=1e-6)


@pytest.mark.parametrize("concept", [0, 1, 2])
def test_known_concept_is_found_and_nothing_is_called_unseen(
    concept: int, trained: Trained
) -> None:
    found = assign(trained, newcomer(concept))

    assert found.weights.best == CLUSTER_OF[concept]
    assert found.sureness > 0.9
    assert found.margin > 0.8
    assert found.unfamiliar_share < 0.1
    assert not found.unseen_concept


def test_fresh_permutation_of_the_labels_is_flagged(trained: Trained) -> None:
    # y + 5 agrees with y never, with 9 - y at 2 and 7 only, with y + 1 never.
    fresh = (np.arange(10) + 5) % 10
    samples = newcomer(fresh)

    found = assign(trained, samples)

    assert found.unseen_concept
    assert found.unfamiliar_share > 0.6
    assert found.sureness < 0.5
    disagree = np.flatnonzero(~np.isin(load_dataset("digits").test_labels, [2, 7]))
    assert np.isin(found.unfamiliar, disagree).mean() > 0.95


def test_unfamiliar_samples_are_those_to_which_no_cluster_gives_more_than_chance(
    trained: Trained,
) -> None:
    samples = newcomer(0)
    wrong = samples.labels.copy()
    wrong[:20] = (wrong[:20] + 4) % 10
    probabilities = trained.log_probabilities(samples.inputs).exp().numpy()
    best = probabilities[np.arange(len(wrong)), :, wrong].max(axis=1)

    found = assign(trained, Split(samples.inputs, wrong))

    np.testing.assert_array_equal(found.unfamiliar, np.flatnonzero(best <= 0.1))
    assert np.count_nonzero(found.unfamiliar < 20) >= 10


def test_sureness_grows_with_samples_that_agree(trained: Trained) -> None:
    everything = newcomer(1)
    clear = assign(trained, everything).unfamiliar
    rows = np.setdiff1d(np.arange(len(everything)), clear)
    rows = np.random.default_rng(0).permutation(rows)
    sure = [assign(trained, newcomer(1, rows[:n])) for n in (2, 8, 32, 128)]

    assert [s.agreement for s in sure[1:]] == pytest.approx([1.0] * 3, abs=0.05)
    assert sure == sorted(sure, key=lambda s: s.sureness)
    for found, samples in zip(sure, (2, 8, 32, 128), strict=True):
        expected = (samples * found.agreement + 1) / (samples + 3)
        assert found.sureness == pytest.approx(expected)


def test_halves_of_a_client_between_two_concepts_disagree(trained: Trained) -> None:
    rows = np.arange(0, 360, 18)
    one, other = newcomer(0, rows), newcomer(2, rows + 1)
    both = Split(
        np.concatenate([one.inputs, other.inputs]), np.concatenate([one.labels, other.labels])
    )

    found = assign(trained, both)

    assert found.agreement < 0.95
    assert found.movement > 0.05
    assert found.entropy > 0.5


def test_one_sample_says_nothing_and_none_are_refused(trained: Trained) -> None:
    found = assign(trained, newcomer(0, np.s_[:1]))

    assert found.agreement == pytest.approx(1 / 3)
    assert found.sureness <= 1 / 3
    with pytest.raises(DataError, match="no labelled samples"):
        assign(trained, newcomer(0, np.s_[:0]))


def test_one_cluster_leaves_no_choice(tmp_path: Path) -> None:
    given = drawn_checkpoint(algorithm="fedavg")

    found = assign(load_trained(write_run(tmp_path, given)), newcomer(0))

    np.testing.assert_array_equal(found.weights.values, [1.0])
    assert (found.margin, found.entropy, found.agreement) == (1.0, 0.0, 1.0)


def test_ifca_takes_the_cluster_with_the_smallest_loss(tmp_path: Path) -> None:
    given = drawn_checkpoint(algorithm="ifca")
    trained = load_trained(write_run(tmp_path, given))
    samples = newcomer(0)
    index = torch.from_numpy(samples.labels)
    chosen = trained.log_probabilities(samples.inputs)[torch.arange(len(index)), :, index]

    found = assign(trained, samples)

    assert found.weights.values.tolist() == np.eye(3)[int(chosen.mean(dim=0).argmax())].tolist()


@pytest.mark.parametrize(
    "weights", [[0.0, 0.0, 0.0], [0.5, 0.6, 0.1], [1.5, -0.5, 0.0], [np.nan, 0.5, 0.5], [0.5, 0.5]]
)
def test_weights_that_are_no_distribution_are_refused(
    weights: list[float], trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(trained.algorithm), "assign", lambda *_: np.array(weights))

    with pytest.raises(
        WeightsError, match=r"fedrc\.assign: expected finite, nonnegative weights of shape \(3,\)"
    ):
        assign(trained, newcomer(0))


def test_same_samples_give_the_same_answer(trained: Trained) -> None:
    samples = newcomer(2, np.arange(0, 360, 30))
    first, again = assign(trained, samples), assign(trained, samples)

    assert replace(first, weights=again.weights, unfamiliar=again.unfamiliar) == again
    np.testing.assert_array_equal(first.weights.values, again.weights.values)
