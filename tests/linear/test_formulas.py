"""Formulas of the linear family against figures computed by hand."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from linear.problems import covariance_from, spectrum_from, variational
from lucidae.linear import theory
from lucidae.linear.objectives import (
    NOISE_FLOOR,
    ExpectedNestedDropout,
    LinearVAE,
    NonUniformL2,
    Objective,
    Reconstruction,
)
from lucidae.linear.prefixes import geometric_prior, uniform_prior
from lucidae.rows.spectrum import TINY, Spectrum


def test_condition_bound_of_the_nonuniform_objective_by_hand():
    # 2·3·(8 − 2)·((6 − 2) + (4 − 2))/(8·2) = 216/16.
    assert theory.nonuniform_condition_bound([8.0, 6.0, 4.0, 2.0]) == 13.5
    assert theory.nonuniform_condition_bound([8.0, 2.0]) == 0.0


def test_condition_bound_of_nested_dropout_by_hand():
    # 8·9·2²/(9 − 1) = 36, and no bound without a spread.
    assert theory.nested_condition_bound([9.0, 4.0, 1.0]) == 36.0
    assert theory.nested_condition_bound([2.0, 2.0]) == math.inf
    assert theory.nested_condition_bound([2.0, 1.9999]) == pytest.approx(8 * 2.0 / 1e-4)


def test_zero_latents_are_counted_from_one_in_the_given_order():
    # Sorted, the penalties 1, 2, 3 belong to the eigenvalues 5, 2.5, 2.
    assert theory.zero_latents([5.0, 2.5, 2.0], [3.0, 1.0, 2.0]).tolist() == [1]
    assert theory.zero_latents([5.0, 2.0, 2.0], [3.0, 1.0, 2.0]).tolist() == [1, 3]


def test_gaps_by_hand():
    values = [9.0, 7.0, 6.5, 3.0, 2.9]
    assert theory.smallest_gap(values, 1) == 2.0
    assert theory.smallest_gap(values, 2) == 0.5
    assert theory.smallest_gap(values, 4) == pytest.approx(0.1)
    assert theory.smallest_gap(values, 9) == pytest.approx(0.1)
    assert theory.inner_gap(values, 1) == math.inf
    assert theory.inner_gap(values, 2) == 2.0
    assert theory.inner_gap(values, 3) == 0.5
    assert theory.outer_gap(values, 1) == 2.0
    assert theory.outer_gap(values, 3) == 3.5
    assert theory.outer_gap(values, 5) == math.inf


def test_predicted_epochs_by_hand():
    # exp(−2·rate·α/(1 − μ)·t) = target/start: 2·0.5·0.1/(1 − 0.9) = 1 per epoch.
    assert theory.predicted_epochs(0.5, 0.1, 0.9, 0.5 / math.e**3) == pytest.approx(3.0)
    assert theory.predicted_epochs(0.5, 0.1, 0.9, 0.25, 0.25 * math.e) == pytest.approx(1.0)
    assert theory.predicted_epochs(0.25, 0.1, 0.5, 0.5 / math.e) == pytest.approx(10.0)
    assert theory.predicted_epochs(0.5, 0.1, 0.9, 0.9) == 0.0
    assert theory.predicted_epochs(0.5, 0.1, 0.9, 0.4) == pytest.approx(math.log(1.25))
    for rate in (0.0, -1.0):
        assert theory.predicted_epochs(rate, 0.1, 0.9, 0.1) == math.inf
    assert_allclose(theory.predicted_epochs(1e-9, 1.0, 0.0, 0.25), math.log(2) / 2e-9)
    assert np.isfinite(theory.predicted_epochs(0.9, 1e-3, 0.0, 1e-12))


def curved(curvatures, aligns=True):
    """Return an objective whose Hessian has given eigenvalues."""

    class Curved(Reconstruction):
        def hessian_eigenvalues(self, values):
            return None if curvatures is None else np.array(curvatures)

    Curved.aligns = aligns
    return Curved()


@pytest.mark.parametrize(
    ("curvatures", "aligns", "rate"),
    [
        ([0.0, 1.9e-12, 2.1e-12, 0.5, 2.0], True, 2.1e-12),
        ([0.25, 1.0], True, 0.25),
        ([1e-12, 1.0], True, 1.0),
        ([0.0, 0.0], True, 0.0),
        ([0.25, 1.0], False, None),
        (None, True, None),
    ],
)
def test_the_alignment_rate_is_the_smallest_curvature_above_rounding(curvatures, aligns, rate):
    assert Objective.alignment_rate(curved(curvatures, aligns), np.ones(2), 1) == rate


def spectrum(*values):
    return Spectrum(np.array(values), np.eye(len(values)), float(sum(values)))


def test_defaults_of_an_objective_promise_nothing():
    objective = Reconstruction()
    assert Objective.zero_latents(objective, np.ones(3)).shape == (0,)
    assert Objective.unit(objective, None) == 1.0
    assert Objective.size(objective, spectrum(3.0, 1.0)) == 4.0
    assert Objective.size(objective, spectrum(0.0, 0.0)) == TINY


def test_penalised_minimum_by_hand():
    # Penalties 1 and 3 on 4 and 2: 2·1 − 1/4 for the first; the second is zero and costs 2, the
    # eigenvalue 1 behind it costs 1.
    objective = NonUniformL2(np.array([3.0, 1.0]))
    assert objective.minimum(spectrum(4.0, 2.0, 1.0), 2) == pytest.approx(2 - 1 / 4 + 2 + 1)
    assert_allclose(objective.squared_lengths(np.array([4.0, 2.0])), [0.75, 0.0])
    assert_allclose(objective.squared_lengths(np.array([4.0, 3.0])), [0.75, 0.0])
    assert objective.curvature(spectrum(4.0, 2.0)) == 4 * 4.0 + 4 * 3.0
    assert objective.latent_order(2).tolist() == [1, 0]
    assert objective.zero_latents(np.array([4.0, 2.0, 1.0])).tolist() == [1]
    assert objective.aligns
    assert not NonUniformL2(np.array([1.0, 2.0, 1.0])).aligns
    assert NonUniformL2(np.array([0.1, 0.3, 0.2])).aligns


def test_an_eigenvalue_and_a_penalty_of_zero_give_a_zero_latent():
    objective = NonUniformL2(np.zeros(2))
    assert_allclose(objective.squared_lengths(np.array([4.0, 0.0])), [1.0, 0.0])
    assert objective.minimum(spectrum(4.0, 0.0, 0.0), 2) == 0.0


def test_nested_dropout_aligns_if_every_prefix_is_drawn():
    assert ExpectedNestedDropout(np.array([0.25, 0.5, 0.25])).aligns
    assert not ExpectedNestedDropout(np.array([0.5, 0.0, 0.5])).aligns


def test_priors_by_hand():
    assert_allclose(geometric_prior(4, 0.5), [0.5, 0.25, 0.125, 0.125])
    assert_allclose(geometric_prior(2), [0.1, 0.9])
    assert_allclose(geometric_prior(1), [1.0])
    assert_allclose(uniform_prior(4), 0.25)


def test_a_vae_starts_with_unit_variances():
    encoder, atoms = np.random.default_rng(0).standard_normal((2, 5, 3, 4))
    start = LinearVAE().start(encoder, atoms, tied=False)
    assert start.encoder is encoder
    assert start.atoms is atoms
    assert start.log_variances.shape == (5, 3, 1)
    assert start.log_noise.shape == (5, 1, 1)
    assert not start.log_variances.any()
    assert not start.log_noise.any()


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_a_small_noise_variance_is_raised_to_its_floor(factor):
    weights = variational(np.random.default_rng(0), (3, 4))
    weights = weights._replace(log_noise=np.full((1, 1), math.log(factor * NOISE_FLOOR)))
    kept = LinearVAE().retract(weights)
    assert kept.log_noise[0, 0] == pytest.approx(math.log(max(factor, 1.0) * NOISE_FLOOR))
    assert kept.encoder is weights.encoder


def test_curvature_of_a_vae_by_hand():
    # 2 max(σ₁⁴, 1)/s² + m/2; a learned noise s² is the mean of the eigenvalues that are left out.
    of = spectrum(3.0, 1.0, 0.5, 0.25)
    assert LinearVAE(0.5).curvature(of) == 2 * 9.0 / 0.5 + 2
    assert LinearVAE().curvature(of.leading(2)) == 2 * 9.0 / 0.375 + 2
    assert LinearVAE(0.25).curvature(spectrum(0.5, 0.25)) == 2 / 0.25 + 1
    assert LinearVAE(1e-9).curvature(spectrum(2.0)) == pytest.approx(2 * 4.0 / NOISE_FLOOR + 0.5)
    assert LinearVAE(1e-9).curvature(spectrum(0.5)) == pytest.approx(2 / NOISE_FLOOR + 0.5)
    assert LinearVAE().preconditioned_curvature(of) == 2.0
    assert LinearVAE().n_eigenvalues(3) == 3
    assert LinearVAE().steepening(None) == 1.0
    assert LinearVAE().scale(of) == LinearVAE().size(of) == 4.0


def test_the_unit_of_a_vae_is_the_root_of_the_mean_variance():
    assert LinearVAE().unit(covariance_from(spectrum_from([9.0, 4.0, 2.0]))) == pytest.approx(
        5**0.5
    )
    assert LinearVAE().unit(covariance_from(spectrum_from([0.25, 0.0]))) == pytest.approx(8**-0.5)
    assert LinearVAE().unit(covariance_from(spectrum_from([0.0, 0.0]))) == 1.0


@pytest.mark.parametrize(("noise", "zero"), [(None, 0), (0.3, 2)])
def test_completed_weights_have_the_best_posterior_variances(noise, zero):
    of = spectrum_from([4.0, 2.5, 1.5, 0.7, 0.3])
    weights = variational(np.random.default_rng(1), (3, 5))
    weights.atoms[zero] = 0.0
    full = LinearVAE(noise).completed(weights, 0.3)
    assert full.log_noise.tolist() == [[math.log(0.3)]]
    assert_allclose(full.encoder, weights.encoder)
    gradient = LinearVAE(noise).gradient(full, covariance_from(of))
    assert_allclose(gradient.log_variances, np.zeros((3, 1)), atol=1e-13)


@pytest.mark.parametrize("noise", [None, 0.7])
def test_preconditioning_a_vae_is_a_newton_step_of_each_field(noise):
    """−ELBO is quadratic in the encoder and in the decoder: one step reaches the best of each."""
    objective, covariance = LinearVAE(noise), covariance_from(spectrum_from([4.0, 2.5, 1.5, 0.3]))
    weights = variational(np.random.default_rng(2), (2, 3, 4), 0.4)
    weights = weights._replace(log_variances=weights.log_variances - [[0.0], [1.0], [2.0]])
    gradient = objective.gradient(weights, covariance)
    steps = objective.preconditioned(gradient, weights, covariance)
    for name in ("encoder", "atoms"):
        best = weights._replace(**{name: getattr(weights, name) - getattr(steps, name)})
        left = getattr(objective.gradient(best, covariance), name)
        assert_allclose(left, np.zeros((2, 3, 4)), atol=1e-12)
    near, far = (
        objective.gradient(
            weights._replace(log_variances=weights.log_variances + side), covariance
        ).log_variances
        for side in (1e-4, -1e-4)
    )
    newton = gradient.log_variances / ((near - far) / 2e-4)
    assert (newton < -1).any()
    assert (np.abs(newton) < 1).any()
    assert_allclose(steps.log_variances, np.clip(newton, -1, 1), rtol=1e-6)
    assert_allclose(steps.log_noise, np.clip(gradient.log_noise / 2, -1, 1))


def test_newton_steps_of_logarithms_are_limited_to_one():
    objective, covariance = LinearVAE(), covariance_from(spectrum_from([4.0, 2.5, 1.5, 0.3]))
    weights = variational(np.random.default_rng(2), (3, 4), 0.1)
    for shift, limits in ((-6.0, (-1.0, -1.0)), (6.0, (0.9, 1.0))):
        moved = weights._replace(
            log_variances=weights.log_variances + shift, log_noise=weights.log_noise + shift
        )
        steps = objective.preconditioned(objective.gradient(moved, covariance), moved, covariance)
        for step in (steps.log_variances, steps.log_noise):
            assert np.all((limits[0] <= step) & (step <= limits[1])), (shift, step)


@pytest.mark.parametrize("noise", [None, 0.0])
def test_a_vae_without_noise_has_a_finite_minimizer(noise):
    """A level of 0 is replaced by the smallest normal number; latents without variance are zero."""
    best = LinearVAE(noise).minimizer(spectrum(4.0, 1.0, 0.0), 3)
    tiny = np.finfo(float).smallest_normal
    assert_allclose(best.encoder, np.diag([0.5, 1.0, 0.0]))
    assert_allclose(best.atoms, np.diag([2.0, 1.0, 0.0]))
    assert best.log_noise[0, 0] == pytest.approx(math.log(tiny))
    assert_allclose(best.log_variances[:, 0], math.log(tiny) - np.log([4.0, 1.0, 1.0]))


def test_every_gradient_of_a_fixed_noise_is_zero():
    weights = variational(np.random.default_rng(0), (3, 4))
    covariance = covariance_from(spectrum_from([4.0, 2.5, 1.5, 0.3]))
    assert LinearVAE(0.5).gradient(weights, covariance).log_noise.tolist() == [[0.0]]
    # Without data and decoder nothing is wrong: misfit and logarithm of the noise are 0.
    nothing, zero = covariance_from(spectrum_from(np.zeros(4))), np.zeros((3, 4))
    gradient = LinearVAE(0.5).gradient(LinearVAE(0.5).start(zero, zero, tied=False), nothing)
    assert gradient.log_noise.tolist() == [[0.0]]
    assert not gradient.atoms.any()


@pytest.mark.parametrize("noise", [None, 0.3])
@pytest.mark.parametrize("size", [0.3, 3.0])
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 5)])
def test_the_preconditioned_direction_is_the_preconditioned_gradient(noise, size, shape):
    rng = np.random.default_rng(len(shape))
    covariance = covariance_from(spectrum_from(np.geomspace(3.0, 0.2, 5)))
    objective, weights = LinearVAE(noise), variational(rng, shape, size)
    if size == 3.0:
        weights = weights._replace(log_variances=weights.log_variances - 8.0)
    found = objective.preconditioned_direction(weights, covariance)
    gradient = objective.gradient(weights, covariance)
    expected = objective.preconditioned(gradient, weights, covariance)
    for name, one, other in zip(expected._fields, found, expected, strict=True):
        assert one.shape == other.shape, name
        assert_allclose(one, other, rtol=1e-9, atol=1e-12, err_msg=name)
    # Small variances are so far from the minimum that steps in their logarithms are limited.
    assert (found.log_variances == -1.0).any() == (size == 3.0)
