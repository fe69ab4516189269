"""Every objective: its gradient, its closed-form minimizer and its minimum are what they say."""

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from linear.problems import (
    Moment,
    covariance_from,
    free,
    map_fields,
    spectrum_from,
    tied,
    variational,
)
from lucidae.linear import (
    METHODS,
    ExpectedNestedDropout,
    LinearVAE,
    MethodSettings,
    NonUniformL2,
    Objective,
    Reconstruction,
    Spectrum,
    TiedWeights,
    UntiedWeights,
    geometric_prior,
    make_method,
    uniform_prior,
)

VALUES = np.array([4.0, 2.5, 1.5, 0.7, 0.3, 0.1])
DATE = np.datetime64("2024-01-01")
K, M = 3, len(VALUES)

SETTINGS = MethodSettings(np.array([0.2, 0.5, 0.9]), geometric_prior(K), np.random.default_rng(0))
OBJECTIVES = {name: make_method(name, SETTINGS).objective for name in METHODS} | {
    "uniform_l2": NonUniformL2(np.full(K, 0.4)),
    "any order": NonUniformL2(np.array([0.9, 0.2, 0.5])),
    "one dead": NonUniformL2(np.array([0.5, 1.8, 1.0])),
    "two dead": NonUniformL2(np.array([9.0, 0.5, 2.6])),
    "all dead": NonUniformL2(np.array([9.0, 5.0, 4.0])),
    "uniform prior": ExpectedNestedDropout(uniform_prior(K)),
    "explicit prior": ExpectedNestedDropout(np.array([0.2, 0.5, 0.3])),
    "fixed noise": LinearVAE(0.35),
    "noise above an eigenvalue": LinearVAE(1.9),
}
for _rule in ("rag", "gha", "brockett", "nested_dropout"):  # whose objectives are among the others
    del OBJECTIVES[_rule]

each_objective = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
TIEABLE = {name: one for name, one in OBJECTIVES.items() if one.tying != "refused"}
each_tieable = pytest.mark.parametrize("objective", TIEABLE.values(), ids=TIEABLE)


def draw(objective, rng, shape, scale=1.0):
    """Draw weights of the type that the objective trains."""
    start = objective.start(np.zeros(shape), np.zeros(shape), tied=False)
    return map_fields(lambda field: scale * rng.standard_normal(field.shape), start)


def moved(weights, change, size=1.0):
    return map_fields(lambda w, d: w + size * d, weights, change)


def inner(first, second):
    return sum(float(np.sum(a * b)) for a, b in zip(first, second, strict=True))


def slope(objective, weights, change, covariance, step=1e-3):
    """Differentiate the value along a line, to fourth order in the step."""

    def value(size):
        return objective.value(moved(weights, change, size), covariance)

    near, far = value(step) - value(-step), value(2 * step) - value(-2 * step)
    return (8 * near - far) / (12 * step)


@each_objective
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_gradient_is_the_derivative_of_the_value(objective, seed):
    rng = np.random.default_rng(seed)
    covariance = covariance_from(spectrum_from(VALUES, seed))
    weights, change = (draw(objective, rng, (K, M), 0.7) for _ in range(2))
    gradient = objective.gradient(weights, covariance)
    size = 1 + abs(float(objective.value(weights, covariance)))
    expected = slope(objective, weights, change, covariance)
    assert_allclose(inner(gradient, change), expected, rtol=1e-7, atol=1e-8 * size)


@each_tieable
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_tied_gradient_is_half_the_derivative_along_tied_weights(objective, seed):
    rng = np.random.default_rng(seed)
    covariance = covariance_from(spectrum_from(VALUES, seed))
    weights, change = (tied(rng, (K, M), 0.7) for _ in range(2))
    gradient = objective.gradient(weights, covariance)
    assert isinstance(gradient, TiedWeights)
    expected = slope(objective, weights, change, covariance)
    assert_allclose(2 * inner(gradient, change), expected, rtol=1e-7, atol=1e-7)


@each_objective
def test_runs_along_leading_axes_do_not_meet(objective):
    rng = np.random.default_rng(1)
    covariance = covariance_from(spectrum_from(VALUES))
    stack = draw(objective, rng, (2, 5, K, M))
    values, gradients = objective.value(stack, covariance), objective.gradient(stack, covariance)
    assert values.shape == (2, 5)
    for index in np.ndindex(2, 5):
        one = map_fields(lambda field, index=index: field[index], stack)
        assert_allclose(values[index], objective.value(one, covariance), rtol=1e-12)
        for whole, part in zip(gradients, objective.gradient(one, covariance), strict=True):
            assert_allclose(whole[index], part, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("objective", [LinearVAE(), LinearVAE(0.35)], ids=str)
def test_a_fixed_noise_has_no_gradient_and_a_learned_one_has(objective):
    weights = variational(np.random.default_rng(2), (K, M))
    gradient = objective.gradient(weights, covariance_from(spectrum_from(VALUES)))
    assert (gradient.log_noise != 0).all() == (objective.noise is None)


@each_objective
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_minimum_is_the_value_of_a_stationary_minimizer(objective, seed):
    values = np.sort(np.random.default_rng(seed).gamma(1.0, 2.0, M) + 0.05)[::-1]
    spectrum = spectrum_from(values, seed)
    covariance, weights = covariance_from(spectrum), objective.minimizer(spectrum, K)
    value = float(objective.value(weights, covariance))
    assert_allclose(value, objective.minimum(spectrum, K), rtol=1e-11, atol=1e-11 * values[0])
    gradient = objective.gradient(weights, covariance)
    assert all(np.max(np.abs(part)) < 1e-10 * (1 + values[0] / values[-1]) for part in gradient)


@each_objective
def test_the_leading_eigenpairs_suffice(objective):
    spectrum = spectrum_from(VALUES)
    few = spectrum.leading(K)
    assert_allclose(objective.minimum(few, K), objective.minimum(spectrum, K), rtol=1e-13)
    for some, every in zip(
        objective.minimizer(few, K), objective.minimizer(spectrum, K), strict=True
    ):
        assert_allclose(some, every, rtol=1e-13)


@each_objective
def test_no_random_perturbation_of_the_minimizer_is_better(objective):
    rng = np.random.default_rng(3)
    spectrum = spectrum_from(VALUES)
    covariance, best = covariance_from(spectrum), objective.minimizer(spectrum, K)
    size = 10.0 ** rng.uniform(-5, 1, (10_000, 1, 1))
    change = draw(objective, rng, (10_000, K, M))
    tried = map_fields(lambda w, d: w + size * d, best, change)
    if isinstance(objective, LinearVAE):
        tried = tried._replace(
            log_variances=np.maximum(tried.log_variances, -30),
            log_noise=np.maximum(tried.log_noise, -30),
        )
    assert np.min(objective.value(tried, covariance)) >= objective.minimum(spectrum, K) - 1e-12


@each_objective
def test_descent_from_random_starts_reaches_the_minimum_and_never_passes_it(objective):
    rng = np.random.default_rng(4)
    spectrum = spectrum_from(VALUES)
    covariance = covariance_from(spectrum)
    template = draw(objective, rng, (K, M))

    def unpack(vector):
        ends = np.cumsum([field.size for field in template])[:-1]
        parts = np.split(vector, ends)
        return type(template)(*(p.reshape(f.shape) for p, f in zip(parts, template, strict=True)))

    def both(vector):
        weights = unpack(vector)
        gradient = objective.gradient(weights, covariance)
        flat = np.concatenate(
            [np.ravel(np.broadcast_to(g, w.shape)) for g, w in zip(gradient, weights, strict=True)]
        )
        return float(objective.value(weights, covariance)), flat

    ends = [
        scipy.optimize.minimize(
            both,
            np.concatenate([field.ravel() for field in draw(objective, rng, (K, M), 0.5)]),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 5000, "maxfun": 10_000, "ftol": 1e-15, "gtol": 1e-9},
        ).fun
        for _ in range(3)
    ]
    minimum = objective.minimum(spectrum, K)
    assert min(ends) >= minimum - 1e-10
    assert min(ends) <= minimum + 1e-6


def test_penalties_in_any_order_give_their_latents_the_same_place():
    spectrum = spectrum_from(VALUES)
    sorted_weights = NonUniformL2(np.array([0.2, 0.5, 0.9])).minimizer(spectrum, K)
    shuffled = NonUniformL2(np.array([0.9, 0.2, 0.5])).minimizer(spectrum, K)
    assert_allclose(shuffled.encoder, sorted_weights.encoder[[2, 0, 1]], atol=1e-15)


def test_a_latent_whose_penalty_reaches_its_eigenvalue_is_exactly_zero():
    spectrum = spectrum_from(VALUES)
    weights = NonUniformL2(np.array([1.0, VALUES[1], 1.6])).minimizer(spectrum, K)
    # Ascending, the penalties 1.0, 1.6, 2.5 meet the eigenvalues 4.0, 2.5, 1.5.
    assert_allclose(np.linalg.norm(weights.atoms, axis=1)[1], 0.0, atol=0)
    assert np.linalg.norm(weights.atoms, axis=1)[[0, 2]].min() > 0.1


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_expected_nested_dropout_is_the_average_over_prefixes(seed):
    rng = np.random.default_rng(seed)
    prior = rng.dirichlet(np.ones(K))
    sigma = covariance_from(spectrum_from(VALUES, seed)).matrix
    weights = free(rng, (K, M))
    expected = 0.0
    for b, probability in enumerate(prior, start=1):
        left = np.eye(M) - weights.atoms[:b].T @ weights.encoder[:b]
        expected += probability * np.trace(left @ sigma @ left.T)
    value = ExpectedNestedDropout(prior).value(weights, Moment(sigma))
    assert_allclose(value, expected, rtol=1e-11)


def test_priors_are_distributions():
    for prior in (geometric_prior(7), uniform_prior(7), geometric_prior(1)):
        assert_allclose(prior.sum(), 1.0, rtol=1e-14)
    assert_allclose(geometric_prior(3), [0.1, 0.09, 0.81], rtol=1e-14)


@pytest.mark.parametrize("noise", [None, 0.2, 1.0])
def test_the_best_elbo_is_the_exact_likelihood_of_probabilistic_pca(noise):
    X = np.random.default_rng(5).standard_normal((40, 4)) @ np.diag([3.0, 2.0, 1.0, 0.5])
    X -= X.mean(axis=0)
    values, vectors = np.linalg.eigh(X.T @ X / len(X))
    spectrum = Spectrum(values[::-1], vectors[:, ::-1], values.sum())
    objective = LinearVAE(noise)
    best = objective.minimizer(spectrum, 2)
    level = float(np.exp(best.log_noise[0, 0])) if noise is None else noise
    model = scipy.stats.multivariate_normal(
        np.zeros(4), best.atoms.T @ best.atoms + level * np.eye(4)
    )
    assert_allclose(objective.minimum(spectrum, 2), -np.mean(model.logpdf(X)), rtol=1e-12)
    if noise is None:
        assert_allclose(level, values[:2].mean(), rtol=1e-12)


def test_without_variance_outside_the_likelihood_is_unbounded():
    assert LinearVAE().minimum(spectrum_from([2.0, 1.0, 0.0]), 2) == -np.inf


def test_balanced_weights_have_the_value_of_their_definition():
    """All values use tr((I − W₂W₁)Σ(I − W₂W₁)ᵀ), not half of it."""
    sigma = np.diag(VALUES)
    weights = UntiedWeights(np.zeros((K, M)), np.zeros((K, M)))
    for name in ("plain", "nonuniform_l2", "expected_nested_dropout"):
        assert_allclose(OBJECTIVES[name].value(weights, Moment(sigma)), VALUES.sum())


@pytest.mark.parametrize("prior", [geometric_prior, uniform_prior])
@pytest.mark.parametrize("k", [0, -1, 1.5, np.nan, np.inf, "2", None, DATE])
def test_a_prior_needs_a_number_of_latents(prior, k):
    with pytest.raises(ValueError, match=r"^k=.* expected an integer of at least 1"):
        prior(k)


@pytest.mark.parametrize("ratio", [0, 1, -0.5, 1e300, np.nan, np.inf, 1j, "0.9", np.ones(5), DATE])
def test_a_geometric_prior_needs_a_ratio_below_one(ratio):
    with pytest.raises(ValueError, match=r"^ratio=.* expected a number in \(0, 1\)"):
        geometric_prior(3, ratio)


# By hand.


def test_the_sum_of_other_eigenvalues_survives_a_shorter_spectrum():
    """`beyond` has digits that the difference of the trace and the eigenvalues has not."""
    of = Spectrum(np.array([1e16, 3.0, 2.0]), np.eye(5)[:, :3], 1e16, 1.0)
    assert [of.noise(k) for k in (1, 3, 5)] == [6.0 / 4, 0.5, 0.0]
    assert of.leading(1).noise(1) == 6.0 / 4


def spectrum(*values):
    return Spectrum(np.array(values), np.eye(len(values)), float(sum(values)))


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


def test_nested_dropout_aligns_if_every_prefix_is_drawn():
    assert ExpectedNestedDropout(np.array([0.25, 0.5, 0.25])).aligns
    assert not ExpectedNestedDropout(np.array([0.5, 0.0, 0.5])).aligns


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
    weights = weights._replace(log_noise=np.full((1, 1), math.log(factor * 1e-6)))
    kept = LinearVAE().retract(weights)
    assert kept.log_noise[0, 0] == pytest.approx(math.log(max(factor, 1.0) * 1e-6))
    assert kept.encoder is weights.encoder


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
    steps = objective.preconditioned_direction(weights, covariance)
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


@pytest.mark.parametrize("noise", [None, 0.0])
def test_a_vae_without_noise_has_a_finite_minimizer(noise):
    """A level of 0 is replaced by the smallest normal number; latents without variance are zero."""
    best = LinearVAE(noise).minimizer(spectrum(4.0, 1.0, 0.0), 3)
    tiny = np.finfo(float).smallest_normal
    assert_allclose(best.encoder, np.diag([0.5, 1.0, 0.0]))
    assert_allclose(best.atoms, np.diag([2.0, 1.0, 0.0]))
    assert best.log_noise[0, 0] == pytest.approx(math.log(tiny))
    assert_allclose(best.log_variances[:, 0], math.log(tiny) - np.log([4.0, 1.0, 1.0]))
