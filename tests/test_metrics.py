"""Scores from counts, against hand-worked numbers and scikit-learn's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from fedrc_flwr.metrics import (
    BINS,
    MOST_CLASSES,
    Tally,
    added,
    area,
    balanced_error,
    constant,
    scores_of,
    tally,
)

RARE = np.array([[97, 1], [1, 1]])  # 98 negatives and 2 positives, one of which is found


def made(confusion: np.ndarray) -> Tally:
    return Tally(confusion, np.array([int(confusion.trace())]))


def test_scores_of_a_rare_class_beside_the_constant_answer() -> None:
    found = scores_of(made(RARE))

    assert found.samples == 100
    assert found.accuracy == pytest.approx(0.98)
    assert found.balanced_accuracy == pytest.approx((97 / 98 + 1 / 2) / 2)
    assert found.macro_f1 == pytest.approx((2 * 97 / (98 + 98) + 2 * 1 / (2 + 2)) / 2)
    assert found.constant_accuracy == pytest.approx(0.98)
    assert found.constant_balanced_accuracy == pytest.approx(0.5)
    assert found.constant_macro_f1 == pytest.approx(2 * 98 / (98 + 100) / 2)


def test_one_positive_of_two_is_not_better_than_a_constant_answer() -> None:
    # The shares are 98 / 100 and 2 / 4 with one right and one wrong sample more.
    error = math.sqrt(0.98 * 0.02 / 100 + 0.5 * 0.5 / 4) / 2

    assert balanced_error(RARE) == pytest.approx(error)
    assert not scores_of(made(RARE)).better  # 0.745 - 0.5 is less than 2 * 0.1254
    assert scores_of(made(10 * RARE)).better


def test_a_constant_answer_is_not_better_than_itself() -> None:
    assert not scores_of(made(constant(RARE))).better
    assert constant(RARE).tolist() == [[98, 0], [2, 0]]


@pytest.mark.parametrize("classes", [2, 5])
def test_scores_are_those_of_scikit_learn(classes: int) -> None:
    rng = np.random.default_rng(classes)
    labels = rng.integers(0, classes, 300)
    logits = rng.normal(0, 1, (300, classes)) + 1.5 * np.eye(classes)[labels]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    predicted = probabilities.argmax(axis=1)

    counted = tally(probabilities, labels, np.array([0]))

    assert counted is not None
    found = scores_of(counted)
    matrix = sklearn_metrics.confusion_matrix(labels, predicted)
    assert counted.confusion.tolist() == matrix.tolist()
    assert found.accuracy == pytest.approx(sklearn_metrics.accuracy_score(labels, predicted))
    expected = sklearn_metrics.balanced_accuracy_score(labels, predicted)
    assert found.balanced_accuracy == pytest.approx(expected)
    expected = sklearn_metrics.f1_score(labels, predicted, average="macro")
    assert found.macro_f1 == pytest.approx(expected)
    if classes == 2:
        assert found.auc is not None
        assert found.auc_error is not None
        exact = sklearn_metrics.roc_auc_score(labels, probabilities[:, 1])
        assert abs(found.auc - exact) <= found.auc_error < 0.01
    else:
        assert found.auc is None


def test_area_by_hand_with_a_tie() -> None:
    scores = np.zeros((2, BINS), dtype=np.int64)
    scores[0, [10, 20]] = 1, 3
    scores[1, [20, 30]] = 1, 1

    # Of 4 x 2 pairs the positive is higher in 1 + 4, and 3 are ties.
    assert area(scores) == (pytest.approx(5 / 8 + 3 / 16), pytest.approx(3 / 16))


def test_scores_that_rank_are_told_from_those_that_do_not() -> None:
    """10 negatives and 5 positives: chance is 1/2 with an error of sqrt(16 / (12 * 50)) = 0.163."""
    bins = np.zeros((2, BINS), dtype=np.int64)
    bins[0, :10], bins[1, 5:10] = 1, 1
    always_no = np.array([[10, 0], [5, 0]])

    # Positives in bins 5 to 9 are above 5.5, 6.5, ... 9.5 of the ten negatives: 37.5 of 50 pairs.
    some = scores_of(Tally(always_no, np.array([10]), bins))
    bins[1, 5:10], bins[1, 10:15] = 0, 1
    all_above = scores_of(Tally(always_no, np.array([10]), bins))

    assert some.auc == pytest.approx(0.75)
    assert (some.ranks, some.better) == (False, False)
    assert (all_above.ranks, all_above.better) == (True, False)


def test_area_needs_both_classes() -> None:
    assert area(np.eye(2, BINS, dtype=np.int64) * np.array([[1], [0]])) == (None, None)


def test_rare_scores_do_not_fall_into_one_bin() -> None:
    """All probabilities are below 0.01, and still the order of the samples is seen."""
    scores = np.linspace(0.0001, 0.01, 200)
    labels = (np.arange(200) >= 150).astype(np.int64)

    counted = tally(np.stack([1 - scores, scores], axis=1), labels, np.array([0]))

    assert counted is not None
    assert scores_of(counted).auc == pytest.approx(1.0, abs=0.01)


def test_counts_add_up_over_clients_as_if_they_were_one() -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.uniform(0, 1, 60), rng.integers(0, 2, 60)
    probabilities = np.stack([1 - scores, scores], axis=1)
    parts = [
        tally(probabilities[rows], labels[rows], np.array([2]))
        for rows in (slice(0, 20), slice(20, 60))
    ]

    together = added(part for part in parts if part is not None)

    whole = tally(probabilities, labels, np.array([4]))
    assert together is not None
    assert whole is not None
    assert together.right.tolist() == [4]
    assert scores_of(together) == scores_of(whole)
    assert added([]) is None


def test_labels_that_never_occur_do_not_count() -> None:
    """Of three labels the third is neither held nor predicted."""
    confusion = np.array([[3, 1, 0], [0, 4, 0], [0, 0, 0]])

    found = scores_of(made(confusion))

    assert found.balanced_accuracy == pytest.approx((3 / 4 + 1) / 2)
    assert found.macro_f1 == pytest.approx((6 / 7 + 8 / 9) / 2)
    assert found.constant_balanced_accuracy == pytest.approx(0.5)


def test_no_matrix_for_very_many_classes() -> None:
    probabilities = np.full((1, MOST_CLASSES + 1), 1 / (MOST_CLASSES + 1))

    assert tally(probabilities, np.array([0]), np.array([1])) is None
