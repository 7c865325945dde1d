"""How well predictions fit: counts that add up over clients, and the scores that follow from them.

A client counts its test samples. The server adds the counts up and computes the scores of a client,
of a cluster and of all together in the same way, each beside the score of a constant answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.em import Floats, Labels

Counts = NDArray[np.int64]
#: Above this many classes no confusion matrix is made: it would be larger than what it describes.
MOST_CLASSES = 256
#: In place of a count: the client did not receive that model.
UNKNOWN = -1
#: Scores of two classes are counted in bins of equal width of the log-odds, -12 to 12.
BINS, FARTHEST = 256, 12.0
#: How many standard errors a score must be above a constant answer's to count as better.
SURE = 2.0


@dataclass(frozen=True)
class Tally:
    """Counts over test samples.

    Parameters
    ----------
    confusion : (C, C), samples by label (row) and predicted label (column)
    right : (K,), samples that each cluster's model alone predicts right; ``UNKNOWN`` for a model
        that the client did not receive
    scores : (2, BINS), samples by label and bin of the score, where there are two classes
    """

    confusion: Counts
    right: Counts
    scores: Counts | None = None

    def flat(self) -> NDArray[np.uint32]:
        """All counts in one vector, as they travel."""
        parts = [self.confusion, self.right, *([] if self.scores is None else [self.scores])]
        return np.concatenate([part.ravel() for part in parts]).astype(np.uint32)

    @staticmethod
    def length(classes: int, clusters: int) -> int:
        """The length of that vector."""
        return classes**2 + clusters + (2 * BINS if classes == 2 else 0)

    @classmethod
    def unflat(cls, counts: NDArray[np.uint32], classes: int, clusters: int) -> Tally:
        """The inverse of ``flat``."""
        ends = [classes**2, classes**2 + clusters]
        confusion, right, scores = np.split(counts.astype(np.int64), ends)
        return cls(
            confusion.reshape(classes, classes),
            right,
            scores.reshape(2, BINS) if classes == 2 else None,
        )

    def capped(self, most: float) -> Tally:
        """The counts of about ``most`` samples, if there are more."""
        samples = int(self.confusion.sum())
        if samples <= most:
            return self
        share = most / samples

        def scaled(counts: Counts) -> Counts:
            return np.where(counts > 0, np.rint(share * counts), counts).astype(np.int64)

        scores = None if self.scores is None else scaled(self.scores)
        return Tally(scaled(self.confusion), scaled(self.right), scores)

    def fits(self, samples: float) -> bool:
        """Whether these are counts of so many samples, at least one."""
        whole = [self.confusion, *([] if self.scores is None else [self.scores])]
        return samples >= max(1, self.right.max()) and all(a.sum() == samples for a in whole)


@dataclass(frozen=True)
class Evaluation:
    """What a client reports of the models on its test part.

    Parameters
    ----------
    metrics : numbers by name, among them ``samples`` and, from a client that adds no noise to its
        statistics, the id of its likeliest ``cluster``
    tally : None if the client's policy is not to send it, or if there is nothing to count
    """

    metrics: dict[str, float] = field(default_factory=dict)
    tally: Tally | None = None

    def nbytes(self) -> int:
        """Bytes of its arrays as they travel."""
        return 0 if self.tally is None else self.tally.flat().nbytes

    def widened(self, own: tuple[int, ...], clusters: tuple[int, ...]) -> Evaluation:
        """The same over all clusters, from a client that received the models of some."""
        if self.tally is None or own == clusters:
            return self
        right = np.full(len(clusters), UNKNOWN, dtype=np.int64)
        right[[clusters.index(c) for c in own]] = self.tally.right
        return replace(self, tally=replace(self.tally, right=right))


@dataclass(frozen=True)
class Scores:
    """Scores of predictions, and those of a constant answer on the same samples.

    Parameters
    ----------
    samples : test samples behind the figures
    balanced_accuracy : mean over the labels that occur of the share of their samples that is right
    macro_f1 : mean over the labels that occur or are predicted of their F1
    error : standard error of the balanced accuracy
    better : whether the balanced accuracy is above a constant answer's by two standard errors
    auc : area under the ROC curve where there are two classes
    auc_error : how far the bins may have moved it, at most
    ranks : whether the area is above 1/2 by two standard errors in spite of the bins: the scores
        tell the classes apart, even if the predictions do not
    """

    samples: int
    accuracy: float
    balanced_accuracy: float
    macro_f1: float
    error: float
    constant_accuracy: float
    constant_balanced_accuracy: float
    constant_macro_f1: float
    auc: float | None = None
    auc_error: float | None = None
    ranks: bool = False
    better: bool = False


def tally(probabilities: Floats, labels: Labels, right: Counts) -> Tally | None:
    """Count a client's predictions.

    Parameters
    ----------
    probabilities : (N, C)
    labels : (N,)
    right : (K,), samples that each cluster's model alone predicts right
    """
    classes = probabilities.shape[1]
    if classes > MOST_CLASSES:
        return None
    pairs = labels * classes + probabilities.argmax(axis=1)
    confusion = np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
    return Tally(confusion, right, _binned(probabilities, labels) if classes == 2 else None)


def _binned(probabilities: Floats, labels: Labels) -> Counts:
    """Samples by label and bin of the log-odds of class 1, (2, BINS).

    Bins of the probability would hold nearly all samples in one of them where a class is rare.
    """
    logs = np.log(np.maximum(probabilities, 1e-12))
    places = (logs[:, 1] - logs[:, 0] + FARTHEST) / (2 * FARTHEST) * BINS
    bins = np.clip(places, 0, BINS - 1).astype(np.int64)
    return np.bincount(labels * BINS + bins, minlength=2 * BINS).reshape(2, BINS)


def added(tallies: Iterable[Tally]) -> Tally | None:
    """The sum of tallies over the same clusters; None of none."""
    tallies = list(tallies)
    if not tallies:
        return None
    scores = [t.scores for t in tallies if t.scores is not None]
    right = np.stack([t.right for t in tallies])
    return Tally(
        np.sum([t.confusion for t in tallies], axis=0),
        np.where((right == UNKNOWN).any(axis=0), UNKNOWN, right.sum(axis=0)),
        np.sum(scores, axis=0) if scores else None,
    )


def by_id(right: Counts, clusters: tuple[int, ...]) -> dict[str, int]:
    """Counts of clusters under their ids."""
    known = zip(clusters, right, strict=True)
    return {str(c): int(count) for c, count in known if count != UNKNOWN}


def constant(confusion: Counts) -> Counts:
    """The confusion matrix of always answering the most frequent label, (C, C)."""
    frequency = confusion.sum(axis=1)
    answers = np.zeros_like(confusion)
    answers[:, frequency.argmax()] = frequency
    return answers


def scores_of(counted: Tally, baseline: Counts | None = None) -> Scores:
    """The scores of a tally with at least one sample.

    ``baseline`` is the confusion matrix of what it is compared with; default: a constant answer.
    """
    baseline = constant(counted.confusion) if baseline is None else baseline
    auc, auc_error = (None, None) if counted.scores is None else area(counted.scores)
    balanced, error = balanced_accuracy(counted.confusion), balanced_error(counted.confusion)
    found = Scores(
        samples=int(counted.confusion.sum()),
        accuracy=accuracy(counted.confusion),
        balanced_accuracy=balanced,
        macro_f1=macro_f1(counted.confusion),
        error=error,
        constant_accuracy=accuracy(baseline),
        constant_balanced_accuracy=balanced_accuracy(baseline),
        constant_macro_f1=macro_f1(baseline),
        better=balanced > balanced_accuracy(baseline) + SURE * error,
    )
    if auc is None or auc_error is None:
        return found
    ranks = auc - auc_error > 0.5 + SURE * area_error(counted.confusion)
    return replace(found, auc=auc, auc_error=auc_error, ranks=ranks)


def accuracy(confusion: Counts) -> float:
    """Share of the samples that is right."""
    return float(confusion.trace() / confusion.sum())


def balanced_accuracy(confusion: Counts) -> float:
    """Mean over the labels that occur of the share of their samples that is right."""
    frequency = confusion.sum(axis=1)
    occurs = frequency > 0
    return float((confusion.diagonal()[occurs] / frequency[occurs]).mean())


def balanced_error(confusion: Counts) -> float:
    """Standard error of the balanced accuracy.

    Each label's share counts one right and one wrong sample more than there were, because a share
    of 0 or 1 from a few samples is not certain.
    """
    frequency = confusion.sum(axis=1)
    occurs = frequency > 0
    samples = frequency[occurs] + 2
    share = (confusion.diagonal()[occurs] + 1) / samples
    return float(math.sqrt((share * (1 - share) / samples).sum()) / occurs.sum())


def macro_f1(confusion: Counts) -> float:
    """Mean F1 over the labels that occur or are predicted."""
    both = confusion.sum(axis=0) + confusion.sum(axis=1)
    counts = both > 0
    return float((2 * confusion.diagonal()[counts] / both[counts]).mean())


def area_error(confusion: Counts) -> float:
    """Standard error of the area under the ROC curve if the scores say nothing (Mann-Whitney)."""
    negative, positive = confusion.sum(axis=1).tolist()
    return math.sqrt((negative + positive + 1) / (12 * negative * positive))


def area(scores: Counts) -> tuple[float | None, float | None]:
    """Area under the ROC curve from binned scores, (2, BINS), and how far the bins may move it.

    Two samples in the same bin count as a tie. In truth either may have the higher score, so the
    area may be off by half of the share of such pairs.
    """
    negative, positive = scores.astype(np.float64)
    pairs = negative.sum() * positive.sum()
    if pairs == 0:
        return None, None
    below = np.cumsum(negative) - negative
    tied = float((positive * negative).sum() / pairs)
    return float((positive * below).sum() / pairs) + tied / 2, tied / 2
