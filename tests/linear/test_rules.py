"""Rules that are not gradients: fixed points, rates of alignment, and the effect of tying."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from linear.problems import centred_rows, covariance_from, orthogonal, size, spectrum_from
from lucidae import LinearAutoencoder
from lucidae.linear import (
    BrockettRule,
    GeneralizedHebbianRule,
    MethodSettings,
    NestedDropoutRule,
    Reconstruction,
    RotationAugmentedRule,
    TiedWeights,
    UntiedWeights,
    geometric_prior,
    make_method,
)
from lucidae.linear.objectives import brockett_ranks, rotation_generator
from lucidae.metrics import axis_alignment_distance
from lucidae.rows.covariances import RowsCovariance

VALUES = np.array([4.0, 2.6, 1.7, 1.0, 0.5, 0.2, 0.1, 0.05])
K = 4
seeds = st.integers(0, 2**32 - 1)


def settings_of(penalties=None):
    penalties = np.linspace(0.1, 0.6, K) if penalties is None else penalties
    return MethodSettings(penalties, geometric_prior(K), np.random.default_rng(0))


@settings(max_examples=30)
@given(seed=seeds)
def test_the_generator_is_skew_and_vanishes_only_for_diagonal_moments(seed):
    square = np.random.default_rng(seed).standard_normal((3, K, K))
    moment = square @ np.swapaxes(square, -1, -2)
    turn = rotation_generator(moment)
    assert_allclose(turn, -np.swapaxes(turn, -1, -2))
    assert_allclose(turn[0, 0, 2], moment[0, 0, 2] / 2)
    assert np.all(rotation_generator(moment * np.eye(K)) == 0)


@settings(max_examples=30)
@given(seed=seeds)
def test_untied_rag_rests_at_points_that_are_not_aligned_and_tied_rag_does_not(seed):
    """W₁ = OS⁻¹Uᵀ, W₂ = USOᵀ: zero gradient and a code moment OOᵀ = I for every orthogonal O."""
    spectrum = spectrum_from(VALUES, seed)
    covariance = covariance_from(spectrum)
    turn = orthogonal(np.random.default_rng(seed), K)
    axes, root = spectrum.vectors[:, :K].T, np.sqrt(VALUES[:K])[:, None]
    stuck = UntiedWeights(turn @ (axes / root), turn @ (axes * root))
    assert axis_alignment_distance(stuck.atoms.T, axes.T) > 1e-3
    assert size(RotationAugmentedRule().direction(stuck, covariance)) < 1e-12
    turned = TiedWeights(turn @ axes)
    assert size(Reconstruction().gradient(turned, covariance)) < 1e-12
    assert size(RotationAugmentedRule().direction(turned, covariance)) > 1e-3


@settings(max_examples=30)
@given(seed=seeds)
def test_the_rotation_leaves_the_loss_unchanged_to_first_order(seed):
    rng = np.random.default_rng(seed)
    covariance = covariance_from(spectrum_from(VALUES, seed))
    weights = UntiedWeights(*rng.standard_normal((2, K, len(VALUES))))
    full = RotationAugmentedRule().direction(weights, covariance)
    slope = Reconstruction().gradient(weights, covariance)
    turn = [a - b for a, b in zip(full, slope, strict=True)]
    change = sum(float(np.sum(a * b)) for a, b in zip(turn, slope, strict=True))
    assert abs(change) < 1e-12 * float(size(UntiedWeights(*turn)) * size(slope))


def test_discrete_untied_steps_drift_from_balance_and_end_unaligned():
    """From a balanced start α = 0.02 ends stationary but misaligned; tied it aligns."""
    spectrum = spectrum_from(VALUES, 3)
    covariance = covariance_from(spectrum)
    start = 0.5 * np.random.default_rng(3).standard_normal((K, len(VALUES)))
    ends = {}
    for weights in (UntiedWeights(start, start), TiedWeights(start)):
        rule = RotationAugmentedRule()
        for _ in range(12_000):
            direction = rule.direction(weights, covariance)
            weights = type(weights)(
                *(w - 0.02 * d for w, d in zip(weights, direction, strict=True))
            )
        assert size(rule.direction(weights, covariance)) < 1e-8
        ends[type(weights)] = axis_alignment_distance(weights.atoms.T, spectrum.vectors[:, :K])
    assert ends[UntiedWeights] > 1e-3
    assert ends[TiedWeights] < 1e-9


@pytest.mark.covering
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["rag", "gha", "brockett", "expected_nested_dropout"])
def test_rules_align_in_order_from_random_starts(name, seed):
    X = centred_rows(VALUES, seed=seed)
    fitted = LinearAutoencoder(
        K, method=name, solver="gradient", init_scale=0.1, tol=1e-8, random_state=seed
    ).fit(X)
    assert fitted.status_ == "converged"
    axes = np.linalg.svd(X)[2][:K]
    assert_allclose(np.abs(axes @ fitted.components_.T), np.eye(K), atol=1e-4)


def test_one_latent_of_sangers_rule_is_ojas():
    rng = np.random.default_rng(0)
    covariance = covariance_from(spectrum_from(VALUES))
    row = rng.standard_normal((1, len(VALUES)))
    sigma = covariance.matrix
    oja = sigma @ row[0] - (row[0] @ sigma @ row[0]) * row[0]
    direction = GeneralizedHebbianRule().direction(TiedWeights(row), covariance)
    assert_allclose(direction.encoder[0], -oja, rtol=1e-12)


def local_rate(name, values, k, seed=0):
    """Measure the slowest decay of misalignment per unit of training time, near the optimum."""
    spectrum = spectrum_from(values, seed)
    covariance, step = covariance_from(spectrum), 5e-3
    method = make_method(name, MethodSettings(np.linspace(0.1, 0.5, k), geometric_prior(k), None))
    best = method.objective.minimizer(spectrum, k)
    rng = np.random.default_rng(seed)
    nudge = 1e-2 * rng.standard_normal(best.encoder.shape)
    weights = method.start(best.encoder + nudge, best.atoms + nudge)
    errors, late = [], []
    for epoch in range(12_000):
        direction = method.rule.direction(weights, covariance)
        weights = type(weights)(*(w - step * d for w, d in zip(weights, direction, strict=True)))
        weights = method.rule.retract(weights)
        if epoch in (8_000, 11_999):
            errors.append(axis_error(weights.atoms, spectrum.vectors[:, :k]))
            late.append(epoch)
    return np.log(errors[0] / errors[1]) / (step * (late[1] - late[0]))


def axis_error(atoms, axes):
    """Return the norm of the part of the unit decoder columns that lies off their own axes."""
    unit = atoms / np.linalg.norm(atoms, axis=1, keepdims=True)
    own = np.sum(unit * axes.T, axis=1)[:, None] * axes.T
    return np.linalg.norm(unit - own)


@pytest.mark.covering
@pytest.mark.parametrize("values", [[2.0, 1.6, 0.3, 0.1], [2.0, 1.0, 0.8, 0.1]])
@pytest.mark.parametrize("name", ["rag", "gha", "brockett", "nonuniform_l2"])
def test_misalignment_decays_at_the_predicted_rate(name, values):
    method = make_method(name, MethodSettings(np.linspace(0.1, 0.5, 2), geometric_prior(2), None))
    predicted = method.rule.alignment_rate(np.array(values), 2)
    assert_allclose(local_rate(name, values, 2), predicted, rtol=0.02)


def test_rag_aligns_at_half_of_the_eigengap():
    """Bao et al. 2020, Theorem 5, with the ½ of Algorithm 1: rate g/2, not g."""
    values = [2.0, 1.6, 0.1, 0.05]
    assert_allclose(local_rate("rag", values, 2), 0.2, rtol=0.01)


def test_methods_that_do_not_align_have_no_rate():
    for name in ("plain", "uniform_l2"):
        rule = make_method(name, settings_of(np.full(K, 0.1))).rule
        assert rule.alignment_rate(VALUES, K) is None


def masked_loss(encoder, atoms, rows, shares, lengths):
    """Return Σ share ‖x − W₂π_b(W₁x)‖² over rows x with prefix lengths b, row by row."""
    total = 0.0
    for x, share, b in zip(rows, shares, lengths, strict=True):
        total += share * np.sum((x - atoms[:b].T @ (encoder[:b] @ x)) ** 2)
    return total


PRIOR = np.array([0.25, 0.5, 0.125, 0.125])
NUMBERS = np.array([[0.0, 0.2, 0.25, 0.7, 0.75], [0.8, 0.875, 0.99, 0.1, 0.3]])
LENGTHS = np.array([[1, 1, 2, 2, 3], [3, 4, 4, 1, 2]])
"""Prefix lengths of NUMBERS with the prior (1/4, 1/2, 1/8, 1/8)."""


def rows_problem(seed=0, runs=2):
    rng = np.random.default_rng(seed)
    rows, mean = rng.standard_normal((5, 6)), rng.standard_normal(6)
    weights = np.array([1.0, 2.0, 0.5, 1.5, 3.0])
    layers = rng.standard_normal((2, runs, K, 6))
    return RowsCovariance(rows, mean, weights, weights.sum()), UntiedWeights(*layers)


def test_the_gradient_with_given_masks_is_the_derivative_of_the_masked_loss():
    """The loss is quadratic in each layer, so that central differences are exact."""
    covariance, weights = rows_problem()
    found = NestedDropoutRule(PRIOR).sampled(weights, covariance, NUMBERS)
    shares, centred = covariance.weights / covariance.total, covariance.rows - covariance.mean
    for run in range(2):
        for part in range(2):
            layers = [layer[run].copy() for layer in weights]
            expected = np.empty((K, 6))
            for place in np.ndindex(K, 6):
                sides = []
                for step in (1.0, -2.0):
                    layers[part][place] += step
                    sides.append(masked_loss(*layers, centred, shares, LENGTHS[run]))
                layers[part][place] += 1.0
                expected[place] = (sides[0] - sides[1]) / 2
            assert_allclose(found[part][run], expected, rtol=1e-9, atol=1e-9)


def test_nested_dropout_draws_one_number_per_run_and_row():
    covariance, weights = rows_problem(1, runs=3)
    rule = NestedDropoutRule(PRIOR, np.random.default_rng(7))
    fixed = rule.drawn(weights, covariance)
    expected = rule.sampled(weights, covariance, np.random.default_rng(7).random((3, 5)))
    for _ in range(2):
        assert_allclose(fixed(weights, covariance), expected)
    single = UntiedWeights(weights.encoder[0], weights.atoms[0])
    found = rule.drawn(single, covariance)(single, covariance)
    assert found.encoder.shape == single.encoder.shape


def test_brocketts_direction_is_minus_the_projected_gradient():
    """At orthonormal W the tangent part of G is G − (GWᵀ + WGᵀ)W/2; G is by differences."""
    spectrum = spectrum_from(VALUES, 2)
    sigma, ranks = covariance_from(spectrum).matrix, np.array([2.0, 1.5, 0.5, 0.25])
    W = orthogonal(np.random.default_rng(2), len(VALUES))[:K]
    gradient = np.empty_like(W)
    for place in np.ndindex(W.shape):
        sides = []
        for step in (1.0, -1.0):
            moved = W.copy()
            moved[place] += step
            sides.append(np.trace(moved @ sigma @ moved.T @ np.diag(ranks)))
        gradient[place] = (sides[0] - sides[1]) / 2
    tangent = gradient - (gradient @ W.T + W @ gradient.T) @ W / 2
    found = BrockettRule(ranks).direction(TiedWeights(W), covariance_from(spectrum))
    assert_allclose(found.encoder, -tangent, atol=1e-12)
    assert_allclose(brockett_ranks(4), [1.0, 0.75, 0.5, 0.25])
