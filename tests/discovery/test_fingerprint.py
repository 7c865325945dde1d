import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrc_flwr.discovery import fingerprint
from fedrc_flwr.discovery.fingerprint import MOST_FEATURES, consistent, project, take
from fedrc_flwr.errors import DivergedError


def test_counts_sums_and_scatter_by_hand():
    # Label 0 at (0, 1) and (2, 1): mean (1, 1), residuals (-1, 0) and (1, 0). Label 2 at (50, 50),
    # (50, 52): mean (50, 51), residuals (0, -1) and (0, 1). Nobody holds label 1.
    features = np.array([[0.0, 1.0], [2.0, 1.0], [50.0, 50.0], [50.0, 52.0]])

    taken, scatter = take(features, np.array([0, 0, 2, 2]), 3)

    np.testing.assert_allclose(taken[0], [[2, 2, 2], [0, 0, 0], [2, 100, 102]], atol=1e-12)
    np.testing.assert_array_equal(taken[1], 0.0)
    np.testing.assert_allclose(scatter, [[2, 0], [0, 2]], atol=1e-12)


def two_clouds(wrong, seed=0):
    """Forty samples of two labels, the first ``wrong`` of them with the other's label."""
    random = np.random.default_rng(seed)
    labels = np.repeat([0, 1], 20)
    features = 10.0 * labels[:, None] + random.normal(size=(40, 3))
    labels[:wrong] = 1
    return features, labels


def test_wrong_labels_are_left_out():
    features, labels = two_clouds(wrong=4)

    np.testing.assert_array_equal(consistent(features, labels, 2), [False] * 4 + [True] * 36)


def test_label_that_is_held_by_mistake_is_left_out_as_a_whole():
    features, labels = two_clouds(wrong=0)
    labels[:3] = 2  # three samples of label 0

    taken, _ = take(features, labels, 3)

    assert taken[0, :, 0].tolist() == [17, 20, 0]
    assert taken[1, :, 0].tolist() == [0, 0, 3]
    np.testing.assert_allclose(taken[1, 2, 1:], features[:3].sum(axis=0))


def test_rare_label_with_samples_of_its_own_is_kept():
    features, labels = two_clouds(wrong=0)
    features[:2], labels[:2] = -20.0, 2

    assert take(features, labels, 3)[0][0, :, 0].tolist() == [18, 20, 2]


def test_all_are_kept_where_no_majority_agrees():
    # Otherwise the samples that chance put close to their label's mean would be all that is left,
    # and labels would seem to differ that do not.
    random = np.random.default_rng(0)

    assert consistent(random.normal(size=(200, 20)), random.integers(0, 10, 200), 10).all()


@pytest.mark.parametrize(
    ("samples", "width", "labels"),
    [
        (1, 3, [0]),
        (2, 3, [0, 1]),
        (5, 3, [1, 1, 1, 1, 1]),
        (3, 40, [0, 1, 1]),
        (0, 3, []),
    ],
)
def test_few_samples_are_all_kept(samples, width, labels):
    features = (
        np.random.default_rng(0).normal(size=(samples, width))
        + 50.0 * np.eye(max(samples, 1), width)[:samples]
    )

    taken, scatter = take(features, np.array(labels, dtype=np.int64), 2)

    assert taken[0, :, 0].sum() == samples
    assert np.isfinite(scatter).all()


def test_same_input_with_two_labels_counts_as_the_more_frequent_one():
    taken, scatter = take(np.ones((5, 2)), np.array([0, 0, 0, 0, 1]), 2)

    np.testing.assert_allclose(taken, [[[4, 4, 4], [0, 0, 0]], [[0, 0, 0], [1, 1, 1]]])
    np.testing.assert_allclose(scatter, 0.0)


def test_many_features_are_projected_alike_for_everybody():
    random = np.random.default_rng(0)
    features = random.normal(size=(300, 1000))

    reduced = project(features)

    assert reduced.shape == (300, MOST_FEATURES)
    np.testing.assert_allclose(project(features[:3]), reduced[:3])
    # distances stay the same on average: a mean of 300 values that vary by sqrt(2/64) = 18 %
    lengths = np.square(reduced).sum(axis=1) / np.square(features).sum(axis=1)
    assert lengths.mean() == pytest.approx(1.0, abs=0.05)


def test_few_features_stay():
    features = np.random.default_rng(0).normal(size=(3, MOST_FEATURES))

    np.testing.assert_array_equal(project(features), features)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_not_finite_are_refused(value):
    with pytest.raises(DivergedError, match="not finite"):
        take(np.array([[1.0], [value]]), np.array([0, 0]), 1)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-3, 1e6]))
def test_order_of_samples_names_of_labels_and_scale_do_not_matter(seed, scale):
    random = np.random.default_rng(seed)
    samples, classes = int(random.integers(1, 30)), int(random.integers(1, 5))
    labels = random.integers(0, classes, samples)
    features = 3.0 * random.normal(size=(classes, 4))[labels] + random.normal(size=(samples, 4))
    order, names = random.permutation(samples), random.permutation(classes)

    taken, scatter = take(features, labels, classes)
    renamed, same_scatter = take(scale * features[order], names[labels[order]], classes)

    np.testing.assert_allclose(renamed[:, names, 0], taken[..., 0])
    np.testing.assert_allclose(renamed[:, names, 1:], scale * taken[..., 1:], rtol=1e-6,
                               atol=1e-9 * scale)  # fmt: skip
    np.testing.assert_allclose(same_scatter, scale**2 * scatter, rtol=1e-6, atol=1e-9 * scale**2)


def test_distance_from_the_other_samples_of_the_label_by_hand():
    # Without itself a mean of 3 is 3/2 as far away: 4 * (3/2)^2 = 9, less 2/2 for the noise of a
    # mean of two samples at the usual squared distance of 2. A sample that was left out is in no
    # mean: 4 - 2/3. The only sample of a label is at the usual distance.
    own, size = np.array([4.0, 4.0, 0.0]), np.array([3.0, 3.0, 1.0])

    found = fingerprint._without_itself(own, size, np.array([True, False, True]), 2.0)

    np.testing.assert_allclose(found, [8.0, 10 / 3, 2.0])
