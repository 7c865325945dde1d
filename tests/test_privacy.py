import math

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from fedrc_flwr import privacy
from fedrc_flwr.privacy import PrivacySettings


def delta_of(epsilon, mu):
    """The analytic Gaussian mechanism (Balle and Wang 2018), by scipy's normal distribution."""
    falling = np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))
    return norm.cdf(mu / 2 - epsilon / mu) - falling


def delta_by_integration(epsilon, mu):
    """From the definition: E (1 - exp(epsilon - L))_+ of the privacy loss L ~ N(mu^2/2, mu^2)."""
    lowest = (epsilon - mu**2 / 2) / mu

    def integrand(t):
        z = lowest + t
        return -math.expm1(-mu * t) * norm.pdf(z)

    return quad(integrand, 0.0, max(12.0, 12.0 - lowest), limit=400, epsabs=0, epsrel=1e-10)[0]


# --- clipping and noise --------------------------------------------------------------------------


def test_clipping_scales_a_matrix_to_the_norm_by_hand():
    # Prepare: norm 5
    values = np.array([[3.0, 0.0], [0.0, 4.0]])

    # Execute
    (clipped,) = privacy.clip([values], 1.0)

    # Assert
    np.testing.assert_allclose(clipped, [[0.6, 0.0], [0.0, 0.8]], atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(hnp.arrays(float, (2, 3), elements=st.floats(-1e3, 1e3)), st.floats(0.1, 100.0))
def test_clipping_bounds_the_norm_and_leaves_what_is_within_it(values, bound):
    (clipped,) = privacy.clip([values], bound)

    length = math.sqrt(sum(float(v) ** 2 for v in values.ravel()))
    assert math.sqrt(sum(float(v) ** 2 for v in clipped.ravel())) <= bound * (1 + 1e-12)
    if length <= bound * (1 - 1e-12):
        np.testing.assert_array_equal(clipped, values)
    if length > 0:
        np.testing.assert_allclose(clipped * length, values * min(length, bound), atol=1e-6)


def test_clipping_leaves_zeros_alone():
    (clipped,) = privacy.clip([np.zeros((2, 2))], 1.0)

    np.testing.assert_array_equal(clipped, np.zeros((2, 2)))


def test_parts_are_clipped_by_one_factor_so_that_their_ratio_stays():
    # Prepare: a joint norm of sqrt(16 + 9) = 5
    counts, table = np.array([[4.0]]), np.array([[3.0]])

    # Execute
    clipped = privacy.clip([counts, table], 2.5)

    # Assert
    assert [part.item() for part in clipped] == pytest.approx([2.0, 1.5], abs=1e-12)


@pytest.mark.parametrize(
    ("share", "parts", "norm"), [(1.0, 1, 90.0), (0.5, 1, 45.0), (0.5, 4, 90.0), (0.0, 1, math.inf)]
)
def test_the_norm_that_is_kept_follows_from_the_number_of_samples(share, parts, norm):
    settings = PrivacySettings(count_clip=share)

    assert settings.sensitivity(90, parts) == pytest.approx(norm)


@pytest.mark.parametrize(("own", "noise"), [(None, 2.0), (0.5, 0.5), (0.0, 0.0)])
def test_a_clients_own_noise_comes_before_the_runs(own, noise):
    assert PrivacySettings(count_noise=2.0).noise_of(own) == noise


def test_a_release_is_clipped_first_and_then_noised_entry_by_entry():
    # Prepare
    values, noise = np.array([[30.0, 40.0]]), 2.5

    # Execute
    (released,) = privacy.release([values], 5.0, noise, np.random.default_rng(7))

    # Assert
    draws = noise * np.random.default_rng(7).standard_normal((1, 2))
    np.testing.assert_allclose(released, np.array([[3.0, 4.0]]) + draws, atol=1e-9)
    np.testing.assert_array_equal(values, [[30.0, 40.0]])


def test_noise_has_the_asked_deviation_and_no_bias():
    # Prepare
    samples, noise = 40_000, 3.0

    # Execute
    (released,) = privacy.release([np.zeros(samples)], 1.0, noise, np.random.default_rng(1))

    # Assert: five standard errors of the mean, and of the deviation
    assert abs(released.mean()) < 5 * noise / math.sqrt(samples)
    assert abs(released.std() - noise) < 5 * noise / math.sqrt(2 * samples)


def test_the_noise_does_not_follow_from_any_seed():
    # Prepare: whatever can be seeded globally
    np.random.seed(0)
    one = privacy.secret_generator().standard_normal(4)

    # Execute
    np.random.seed(0)
    other = privacy.secret_generator().standard_normal(4)

    # Assert
    assert (one != other).all()


# --- accounting ----------------------------------------------------------------------------------


def test_composition_by_hand():
    # sqrt(4) * 3 / 2
    assert privacy.gaussian_mu(4, norm=3.0, noise=2.0) == pytest.approx(3.0, abs=1e-12)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 1000), st.floats(0.1, 100.0), st.floats(0.1, 100.0))
def test_many_releases_are_one_with_less_noise(releases, bound, noise):
    # One release of all the arrays side by side: its norm is at most sqrt(T) * S.
    together = privacy.gaussian_mu(1, math.sqrt(releases) * bound, noise)

    assert privacy.gaussian_mu(releases, bound, noise) == pytest.approx(together, rel=1e-12)


def test_nothing_released_costs_nothing_and_no_noise_costs_everything():
    assert privacy.gaussian_mu(0, 50.0, 0.0) == 0.0
    assert privacy.gaussian_mu(3, 50.0, 0.0) == math.inf
    assert privacy.epsilon_spent(0.0, 1e-5) == 0.0
    assert privacy.epsilon_spent(math.inf, 1e-5) == math.inf


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
@pytest.mark.parametrize("mu", [0.05, 0.3, 1.0, 3.0, 10.0])
def test_epsilon_agrees_with_a_root_of_the_analytic_formula(mu, delta):
    epsilon = privacy.epsilon_spent(mu, delta)

    expected = brentq(lambda e: delta_of(e, mu) - delta, 0.0, 500.0, xtol=1e-12, rtol=1e-12)
    assert epsilon == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("mu", "delta"), [(50.0, 1e-12), (50.0, 1e-5), (1.0, 1e-12), (1e-3, 1e-9)])
def test_epsilon_at_the_extremes_gives_back_delta(mu, delta):
    epsilon = privacy.epsilon_spent(mu, delta)

    assert epsilon > 0
    assert delta_by_integration(epsilon, mu) == pytest.approx(delta, rel=1e-5)


@settings(deadline=None, max_examples=40)
@given(st.floats(0.01, 20.0), st.floats(1e-10, 1e-2))
def test_epsilon_inverts_the_definition_of_delta(mu, delta):
    epsilon = privacy.epsilon_spent(mu, delta)

    if epsilon == 0.0:
        assert delta_by_integration(0.0, mu) <= delta * (1 + 1e-6)
    else:
        assert delta_by_integration(epsilon, mu) == pytest.approx(delta, rel=1e-5)


@pytest.mark.parametrize(("mu", "delta"), [(1e-20, 1e-12), (1e-12, 1e-12), (1e-6, 1e-6)])
def test_a_tiny_mechanism_costs_nothing_beyond_delta(mu, delta):
    # At epsilon = 0, delta is 2 Phi(mu / 2) - 1, which is less than mu * 0.4.
    assert 0.4 * mu < delta

    assert privacy.epsilon_spent(mu, delta) == 0.0


@settings(deadline=None, max_examples=40)
@given(st.floats(0.01, 50.0), st.floats(1.01, 3.0), st.floats(1e-12, 0.1))
def test_epsilon_grows_with_mu_and_falls_with_delta(mu, factor, delta):
    epsilon = privacy.epsilon_spent(mu, delta)

    assert privacy.epsilon_spent(mu * factor, delta) >= epsilon
    assert privacy.epsilon_spent(mu, delta / factor) >= epsilon


# --- the federation's epsilon --------------------------------------------------------------------


def test_the_largest_epsilon_is_that_of_the_client_that_spent_most():
    # Prepare: clipped to half of the samples: sqrt(4) * 20 / 10 = 4, 15 / 5 = 3, nothing sent
    settings = PrivacySettings(count_clip=0.5, delta=1e-3)
    spent = [settings.cost(40, 10.0, 4), settings.cost(30, 5.0, 1), settings.cost(1000, 1.0, 0)]

    # Execute
    epsilon = privacy.largest_epsilon(spent, settings)

    # Assert
    assert spent == pytest.approx([16.0, 9.0, 0.0])
    assert delta_by_integration(epsilon, 4.0) == pytest.approx(1e-3, rel=1e-5)


def test_releases_of_different_noise_add_up():
    # Prepare: mu of 3 and of 4 compose to 5
    settings = PrivacySettings(delta=1e-3)
    spent = settings.cost(30, 10.0, 1) + settings.cost(40, 10.0, 1)

    # Execute
    epsilon = privacy.largest_epsilon([spent], settings)

    # Assert
    assert delta_by_integration(epsilon, 5.0) == pytest.approx(1e-3, rel=1e-5)


@pytest.mark.parametrize(
    ("clients", "clip"),
    [([], 1.0), ([(40, 10.0, 4), (30, 0.0, 0)], 1.0), ([(40, 10.0, 4)], 0.0)],
    ids=["nobody", "a-client-without-noise", "no-clipping"],
)
def test_no_epsilon_is_claimed_where_nothing_bounds_it(clients, clip):
    settings = PrivacySettings(count_clip=clip)

    spent = [settings.cost(*client) for client in clients]

    assert privacy.largest_epsilon(spent, settings) is None


@pytest.mark.parametrize(
    ("run", "noise", "own", "own_noise", "sent"),
    [
        ("without-noise", 0.0, None, None, True),
        ("without-noise", 5.0, None, None, False),
        ("without-noise", 5.0, None, 0.0, True),
        ("always", 5.0, None, None, True),
        ("always", 0.0, None, 5.0, False),  # the run does not overrule a node that asks for noise
        ("always", 0.0, "never", None, False),
        ("never", 0.0, None, None, False),
        ("never", 0.0, "always", 5.0, True),
    ],
)
def test_who_sends_counts_of_predictions(
    run: str, noise: float, own: str | None, own_noise: float | None, sent: bool
) -> None:
    settings = PrivacySettings(count_noise=noise, confusion=run)

    assert settings.sends_confusion(own, own_noise) == sent
