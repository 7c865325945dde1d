import math

import by_hand
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrc_flwr.discovery import evidence
from fedrc_flwr.discovery.distances import SPREADS, Distances, fit
from fedrc_flwr.discovery.search import search
from fedrc_flwr.discovery.space import Means

several = settings(deadline=None, max_examples=40)


@st.composite
def means(draw):
    """Some clients' means; every client holds a label."""
    clients, classes = draw(st.integers(1, 6)), draw(st.integers(2, 4))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    counts = random.integers(0, 12, (clients, classes)) * (random.random((clients, classes)) < 0.7)
    counts[np.arange(clients), random.integers(0, classes, clients)] += 1
    points = draw(st.sampled_from([0.1, 3.0, 50.0])) * random.normal(
        size=(clients, classes, draw(st.integers(1, 3)))
    )
    points[-1] = points[0]  # twins
    return Means(np.where(counts[..., None] > 0, points, 0.0), counts.astype(np.float64))


@st.composite
def distances(draw, directions):
    """Two distributions, close together or far apart."""
    values = [draw(st.floats(low, high)) for low, high in
              ((0.01, 3.0), (-1.0, 1.0), (0.1, 1.0), (0.0, 3.0), (0.2, 1.0))]  # fmt: skip
    return Distances(directions, *values, share=0.5)


def between_clients(means, distances, agreement=0.0):
    """The evidence that two clients mean the same, (n, n)."""
    same, different = evidence.likelihoods(means, distances, (agreement,))
    return same - different[0]


# --- by hand -------------------------------------------------------------------------------------


FAR = math.exp(2.0)


def four_clients():
    """Four clients, three labels, two features; ten samples a mean.

    The contents are the corners of a triangle whose sides are FAR. Client A holds all labels, B
    labels 0 and 1 with A's meaning, C the same two swapped, and D label 0 at a distance of 1 from
    where A has it.
    """
    corners = np.array([[0.0, 0.0], [FAR, 0.0], [FAR / 2, FAR * math.sqrt(3) / 2]])
    points, counts = np.zeros((4, 3, 2)), np.zeros((4, 3))
    for client, label, point in (
        (0, 0, corners[0]), (0, 1, corners[1]), (0, 2, corners[2]),
        (1, 0, corners[0]), (1, 1, corners[1]),
        (2, 0, corners[1]), (2, 1, corners[0]),
        (3, 0, (-1.0, 0.0)),
    ):  # fmt: skip
        points[client, label], counts[client, label] = point, 10.0
    return Means(points, counts)


#: 2 directions * (spread 0.3 + noise 1/10 + 1/10) = 1: log distances are measured as they are.
HAND = Distances(2, 0.3, 0.0, 1.0, 2.0, 1.0, share=0.5)


def test_ratios_of_four_clients_by_hand():
    # Student's density with four degrees of freedom is 3/8 at its centre, the normal one
    # 1/sqrt(2 pi): the quotient is 3/8 * 2.5066 = 0.9400.
    # distance 1: Student at its centre, normal two deviations off: 0.9400 * e^2 = 6.9455,
    #   and 0.1 + 0.9 * 6.9455 = 6.3510
    # distance e^2: Student at 2: (1 + 4/4)^-2.5 = 0.1768; 0.9400 * 0.1768 = 0.1662; 0.2496
    # distance e^2 + 1 = 8.3891, its logarithm 2.1269: (1 + 1.1310)^-2.5 = 0.1509; 0.2276
    # distance from (-1, 0) to the third corner: sqrt(4.6945^2 + 6.3991^2) = 7.9365, its
    #   logarithm 2.0715: (1 + 1.0727)^-2.5 = 0.1617; 0.2368
    squared = np.array([1.0, FAR, FAR + 1.0, 7.9365]) ** 2

    ratios = HAND.ratio(squared, np.full(4, 0.2))

    np.testing.assert_allclose(ratios, [6.3510, 0.2496, 0.2276, 0.2368], atol=1e-4)


def test_evidence_between_four_clients_by_hand():
    # At the same point the ratio r is so large (e^30) that r / (r + anything) is 1. The evidence of
    # such a label is log(0.95 * 3 + 0.05) = log 2.9 = 1.0647; that of a label found at the point
    # of another one log(0.05) = -2.9957.
    # A, B: labels 0 and 1 agree; A's label 2, which B lacks, is far from both of B's:
    #   log(2.85 / (2 * 0.2496 + 1) + 0.05) = log 1.9511 = 0.6684
    #   A against B 2 * 1.0647 + 0.6684 = 2.7978; B against A 2.1294; mean 2.4636
    # A, C: 2 * -2.9957 + 0.6684 = -5.3231 and -5.9915; mean -5.6573
    # B, C: -5.9915 both ways
    # A, D: A's 0: log(2.85 * 6.3510 / (6.3510 + 2) + 0.05) = log 2.2174 = 0.7964;
    #   A's 1: log(2.85 / 2.2276 + 0.05) = 0.2847; A's 2: log(2.85 / 2.2368 + 0.05) = 0.2808;
    #   D's 0: log(2.85 * 6.3510 / (6.3510 + 0.2276 + 0.2368) + 0.05) = log 2.7058 = 0.9954
    #   mean of 1.3619 and 0.9954: 1.1786
    # B, D: 0.7964 + 0.2847 = 1.0811; log(2.85 * 6.3510 / (6.3510 + 0.2276 + 1) + 0.05) = 0.8913;
    #   mean 0.9862
    # C, D: C's 0 at D's distance e^2 + 1: log(2.85 * 0.2276 / 2.2276 + 0.05) = -1.0752; C's 1,
    #   which D lacks, close to D's 0: log(2.85 / 8.3510 + 0.05) = -0.9383;
    #   D's 0: log(2.85 * 0.2276 / (0.2276 + 6.3510 + 1) + 0.05) = -1.9980; mean -2.0058
    found = between_clients(four_clients(), HAND)

    expected = np.array([
        [0.0, 2.4636, -5.6573, 1.1786],
        [2.4636, 0.0, -5.9915, 0.9862],
        [-5.6573, -5.9915, 0.0, -2.0058],
        [1.1786, 0.9862, -2.0058, 0.0],
    ])  # fmt: skip
    np.testing.assert_allclose(found, expected, atol=2e-4)
    assert len(set(search(found)[[0, 1, 3]])) == 1
    assert search(found)[2] != search(found)[0]


def test_a_label_that_agrees_says_less_where_concepts_agree_on_most_labels():
    # Two labels that agree have a quotient of 2.9 each, two that contradict one of 0.05. If
    # different concepts agree on 0.8 of the labels, one that agrees has an evidence of
    # log(2.9 / (0.8 * 2.9 + 0.2)) = 0.1405, one that contradicts -1.5686 = log(0.05 / 0.24).
    clients = four_clients()

    found = between_clients(clients, HAND, agreement=0.8)

    assert found[1, 2] == pytest.approx(2 * -1.5686, abs=1e-4)  # B and C swap both labels
    twins = between_clients(clients.of(np.array([1, 1])), HAND, agreement=0.8)
    assert twins[0, 1] == pytest.approx(2 * 0.1405, abs=1e-4)


def test_few_samples_count_less():
    # A mean of one sample is wrong with probability 0.3, one of two with 0.15, one of ten or more
    # with 0.05: that bounds how much a contradiction can say.
    two = four_clients().of(np.array([1, 2]))
    for samples, error in ((1.0, 0.3), (2.0, 0.15), (1000.0, 0.05)):
        scarce = Means(two.points, np.where(two.held, samples, 0.0))

        found = between_clients(scarce, HAND)

        assert found[0, 1] == pytest.approx(2 * math.log(error), abs=1e-6)


# --- against loops -------------------------------------------------------------------------------


@several
@given(st.data())
def test_evidence_agrees_with_loops(data):
    some = data.draw(means())
    model = data.draw(distances(some.points.shape[2]))
    random = np.random.default_rng(len(some.points))
    groups = np.unique(random.integers(0, 3, len(some.points)), return_inverse=True)[1]

    agreement = data.draw(st.sampled_from(evidence.AGREEMENTS))

    np.testing.assert_allclose(
        between_clients(some, model, agreement),
        by_hand.between_clients(some, model, agreement),
        atol=1e-9,
    )
    np.testing.assert_allclose(
        evidence.between_groups(some, groups, model, agreement),
        by_hand.between_groups(some, groups, model, agreement),
        atol=1e-9,
    )
    for group in range(3):
        same, different = evidence.for_group(some, groups == group, model, agreement)
        np.testing.assert_allclose(
            same - different, by_hand.for_group(some, groups == group, model, agreement), atol=1e-9
        )


def test_blocks_make_no_difference(monkeypatch):
    random = np.random.default_rng(0)
    some = Means(random.normal(size=(7, 3, 2)), np.full((7, 3), 5.0))
    whole = between_clients(some, HAND)

    monkeypatch.setattr(evidence, "BLOCK", 1)

    np.testing.assert_allclose(between_clients(some, HAND), whole, atol=1e-12)


# --- the two distributions -----------------------------------------------------------------------


def test_fit_finds_what_was_drawn():
    # Prepare: half of the clients swap the labels pairwise; labels lie at a distance of 10 from
    # each other, clients 0.3 around them (variance of a difference 2 * 0.09 = 0.18).
    random = np.random.default_rng(0)
    corners = 10.0 / math.sqrt(2.0) * np.eye(4)
    points = np.stack([corners if i % 2 else corners[[1, 0, 3, 2]] for i in range(60)])
    points = points + 0.3 * random.normal(size=points.shape)

    # Execute
    found = fit(Means(points, np.full((60, 4), 1e6)))

    # Assert: half of the pairs are of the same half.
    assert found is not None
    assert found.different_mean == pytest.approx(math.log(10.0), abs=0.05)
    assert found.share == pytest.approx(0.5, abs=0.05)
    usual = math.exp(found.same_mean) * math.sqrt(found.directions * found.spread)
    assert usual == pytest.approx(math.sqrt(4 * 0.18), rel=0.15)


@pytest.mark.parametrize("seed", range(5))
def test_rounding_does_not_choose_the_spread_where_all_means_have_the_same_noise(seed):
    # Every spread is as likely then: it only moves the centre of the distribution.
    random = np.random.default_rng(seed)
    points = 5.0 * random.normal(size=(1, 4, 3)) + random.normal(size=(8, 4, 3))

    found = {fit(Means(points[order], np.ones((8, 4)))).spread
             for order in (random.permutation(8) for _ in range(6))}  # fmt: skip

    assert found == {min(SPREADS)}


def test_nothing_to_fit_without_two_labels_in_a_client_or_a_shared_one():
    points = np.ones((2, 2, 1))

    assert fit(Means(points, np.array([[5.0, 0.0], [5.0, 0.0]]))) is None
    assert fit(Means(points, np.array([[5.0, 5.0], [0.0, 0.0]]))) is None
