"""Theory from eigenvalues: blocks of the Hessian, condition bounds, gaps, zero latents, epochs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from linear.problems import Moment, spectra
from lucidae.linear import (
    ExpectedNestedDropout,
    NonUniformL2,
    UntiedWeights,
    geometric_prior,
    theory,
)
from lucidae.linear.theory import (
    AlignedPoint,
    condition_number,
    hessian_eigenvalues,
    pair_blocks,
    scaling_blocks,
)
from lucidae_papers.linear.penalties import nested_condition_bound, nonuniform_condition_bound

seeds = st.integers(0, 2**32 - 1)


def dense_eigenvalues(objective, weights, values):
    """Return the eigenvalues of the Hessian of the loss at one point."""
    return np.linalg.eigvalsh(dense_hessian(objective, weights, values))


def dense_hessian(objective, weights, values):
    """Differentiate the gradient at one point in every coordinate: exact for a quartic."""
    covariance, shape = Moment(np.diag(values)), weights.encoder.shape
    size = 2 * weights.encoder.size
    basis = np.eye(size).reshape(size, 2, *shape)

    def gradients(step):
        moved = UntiedWeights(
            weights.encoder + step * basis[:, 0], weights.atoms + step * basis[:, 1]
        )
        return np.stack(objective.gradient(moved, covariance), axis=1).reshape(size, size)

    # Two central differences cancel the third derivative, the highest that a gradient has.
    near, far = (gradients(h) - gradients(-h) for h in (0.01, 0.02))
    hessian = (8 * near - far) / 0.12
    return (hessian + hessian.T) / 2


@settings(max_examples=25)
@given(seed=seeds, k=st.integers(1, 4), outside=st.integers(0, 3))
def test_blocks_give_all_eigenvalues_of_the_dense_hessian(seed, k, outside):
    rng = np.random.default_rng(seed)
    values = spectra(rng, k + outside)
    penalties = rng.uniform(0.05, 1.3) * values[k - 1] * np.linspace(0.1, 1.0, k)
    prior = rng.dirichlet(np.ones(k))
    axes = np.eye(k + outside)[:k]
    cases = (
        (NonUniformL2(penalties), AlignedPoint.nonuniform(values, penalties)),
        (ExpectedNestedDropout(prior), AlignedPoint.nested(values, prior)),
    )
    for objective, point in cases:
        weights = UntiedWeights(point.encoder[:, None] * axes, point.decoder[:, None] * axes)
        found, expected = hessian_eigenvalues(point), dense_eigenvalues(objective, weights, values)
        assert len(found) == 2 * k * (k + outside)
        assert_allclose(found, expected, atol=1e-10 * expected[-1])


def test_nested_dropout_has_one_flat_scale_per_latent():
    values = np.array([4.0, 2.0, 1.0, 0.3])
    eigenvalues = hessian_eigenvalues(AlignedPoint.nested(values, geometric_prior(3)))
    assert np.sum(np.abs(eigenvalues) < 1e-12) == 3
    point = AlignedPoint.nested(values, geometric_prior(3))
    assert condition_number(point) == np.inf
    assert_allclose(
        condition_number(point, effective=True), eigenvalues[-1] / eigenvalues[3], rtol=1e-12
    )


@settings(max_examples=25)
@given(seed=seeds, k=st.integers(1, 5))
def test_scaling_blocks_curve_with_four_times_penalty_and_margin(seed, k):
    rng = np.random.default_rng(seed)
    values = spectra(rng, k)
    penalties = np.sort(rng.uniform(0, values[-1], k))
    found = np.linalg.eigvalsh(scaling_blocks(AlignedPoint.nonuniform(values, penalties)))
    expected = np.sort(np.stack([4 * penalties, 4 * (values - penalties)], axis=1))
    assert_allclose(found, expected, atol=1e-12 * values[0])


def test_lengths_at_the_minimum_by_hand():
    point = AlignedPoint.nonuniform(np.array([4.0, 2.0, 0.0]), np.array([2.0, 1.0, 0.0]))
    # Ascending, the penalties 0, 1, 2 meet the eigenvalues 4, 2, 0.
    assert_allclose(point.encoder**2, [1.0, 0.5, 0.0])
    assert_allclose(AlignedPoint.nonuniform(np.array([0.0]), np.array([0.0])).decoder, [0.0])


def test_condition_numbers_of_degenerate_points():
    """Without data every eigenvalue is zero; a latent with penalty 0 has a flat scale."""
    nothing = AlignedPoint.nonuniform(np.zeros(2), np.zeros(1))
    assert condition_number(nothing) == condition_number(nothing, effective=True) == np.inf
    # The eigenvalues of one latent on σ² = 1/8 with λ = 1/32 are 4λ and 4(σ² − λ).
    small = AlignedPoint.nonuniform(np.array([0.125]), np.array([0.03125]))
    assert_allclose(condition_number(small), 3.0)
    flat = AlignedPoint.nonuniform(np.array([0.5]), np.array([0.0]))
    assert condition_number(flat) == np.inf
    assert_allclose(condition_number(flat, effective=True), 1.0)
    for penalty, expected in ((0.9e-12, 1.0), (1.1e-12, 1 / 1.1e-12)):
        nearly = AlignedPoint.nonuniform(np.array([1.0]), np.array([penalty]))
        assert_allclose(condition_number(nearly, effective=True), expected, rtol=1e-3)


@pytest.mark.parametrize("nested", [False, True])
def test_blocks_are_entries_of_the_dense_hessian_at_any_aligned_point(nested):
    """Eigenvalues alone would not show the signs of the entries beside the diagonal."""
    values, k = np.array([4.0, 2.5, 1.5, 0.7, 0.0]), 3
    encoder, decoder = np.array([0.8, 1.3, 0.4]), np.array([1.1, 0.6, 0.9])
    penalties, prior = np.array([0.2, 0.5, 0.9]), np.array([0.2, 0.5, 0.3])
    objective = ExpectedNestedDropout(prior) if nested else NonUniformL2(penalties)
    point = AlignedPoint(
        *(values, encoder, decoder, penalties * (not nested)),
        np.array([1.0, 0.8, 0.3]) if nested else np.ones(k),
    )
    axes = np.eye(5)[:k]
    weights = UntiedWeights(encoder[:, None] * axes, decoder[:, None] * axes)
    hessian = dense_hessian(objective, weights, values)

    def entries(*places):
        """Return the block of the entries (layer, i, j), with the transposed decoder as layer 1."""
        index = [layer * 15 + i * 5 + j for layer, i, j in places]
        return hessian[np.ix_(index, index)]

    for i in range(k):
        assert_allclose(scaling_blocks(point)[i], entries((0, i, i), (1, i, i)), atol=1e-10)
    pairs = [(i, j) for i in range(k) for j in range(i + 1, 5)]
    for (i, j), found, inside in zip(pairs, *pair_blocks(point), strict=True):
        assert inside == (j < k)
        others = ((0, j, i), (1, j, i)) if inside else ()
        expected = entries((0, i, j), (1, i, j), *others)
        assert_allclose(found[: len(expected), : len(expected)], expected, atol=1e-10)


@settings(max_examples=200)
@given(seed=seeds, k=st.integers(2, 8), outside=st.integers(0, 4))
def test_the_papers_bounds_lie_below_the_true_condition_numbers(seed, k, outside):
    rng = np.random.default_rng(seed)
    values = spectra(rng, k + outside)
    penalties = np.sort(rng.uniform(0.001, 0.999, k)) * values[k - 1]
    nonuniform = condition_number(AlignedPoint.nonuniform(values, penalties))
    assert nonuniform_condition_bound(values[:k]) <= nonuniform * (1 + 1e-9)
    prior = rng.dirichlet(np.ones(k))
    nested = condition_number(AlignedPoint.nested(values, prior), effective=True)
    assert nested_condition_bound(values[:k]) <= nested * (1 + 1e-9)


def test_two_latents_die_in_the_papers_mnist_setting():
    """√λ equally spaced 0.1 … 0.9, σ₁₉² = 0.626, σ₂₀² = 0.608 (pixels in [0, 1])."""
    penalties = np.linspace(0.1, 0.9, 20) ** 2
    values = np.concatenate([np.linspace(5.117, 0.673, 18), [0.626, 0.608]])
    assert_allclose(theory.zero_latents(values, penalties), [19, 20])
    assert_allclose(theory.zero_latents(values, penalties[::-1]), [1, 2])
    weights = NonUniformL2(penalties).squared_lengths(values)
    assert_allclose(np.flatnonzero(weights == 0), [18, 19])


def test_condition_bound_of_the_nonuniform_objective_by_hand():
    # 2·3·(8 − 2)·((6 − 2) + (4 − 2))/(8·2) = 216/16.
    assert nonuniform_condition_bound([8.0, 6.0, 4.0, 2.0]) == 13.5
    assert nonuniform_condition_bound([8.0, 2.0]) == 0.0


def test_condition_bound_of_nested_dropout_by_hand():
    # 8·9·2²/(9 − 1) = 36, and no bound without a spread.
    assert nested_condition_bound([9.0, 4.0, 1.0]) == 36.0
    assert nested_condition_bound([2.0, 2.0]) == math.inf
    assert nested_condition_bound([2.0, 1.9999]) == pytest.approx(8 * 2.0 / 1e-4)


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
    assert theory.predicted_epochs(0.1, 5e-324, 0.0, 1e-3) == math.inf  # the speed underflows
