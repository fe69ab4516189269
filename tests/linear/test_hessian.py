"""The Hessian's spectrum by blocks, the paper's bounds on it, and the penalties that shape it."""

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from linear.problems import free
from lucidae.linear.data import DenseCovariance
from lucidae.linear.hessian import (
    AlignedPoint,
    condition_number,
    hessian_eigenvalues,
    rotation_blocks,
    scaling_blocks,
)
from lucidae.linear.objectives import ExpectedNestedDropout, NonUniformL2, geometric_prior
from lucidae.linear.penalties import (
    _pair_excess,
    best_penalties,
    paper_penalties,
    rotation_bound,
)
from lucidae.linear.theory import (
    nested_condition_bound,
    nonuniform_condition_bound,
    smallest_gap,
    unidentifiable,
    zero_latents,
)
from lucidae.linear.weights import UntiedWeights

seeds = st.integers(0, 2**32 - 1)


def smallest_curvature(values, penalties):
    """Return the smallest eigenvalue of the Hessian at the global minimum."""
    return hessian_eigenvalues(AlignedPoint.nonuniform(values, penalties))[0]


def spectra(random, m):
    """Draw a descending spectrum: clustered, ordinary or spread over decades."""
    shape = random.choice([0.3, 1.0, 3.0])
    return np.sort(random.gamma(1.0, 1.0, m) ** shape + 1e-3)[::-1]


def dense_eigenvalues(objective, weights, values):
    """Differentiate the gradient at one point in every coordinate: exact for a quartic."""
    covariance, shape = DenseCovariance(np.diag(values)), weights.encoder.shape
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
    return np.linalg.eigvalsh((hessian + hessian.T) / 2)


@settings(max_examples=25)
@given(seed=seeds, k=st.integers(1, 4), outside=st.integers(0, 3))
def test_blocks_give_all_eigenvalues_of_the_dense_hessian(seed, k, outside):
    random = np.random.default_rng(seed)
    values = spectra(random, k + outside)
    penalties = random.uniform(0.05, 1.3) * values[k - 1] * np.linspace(0.1, 1.0, k)
    prior = random.dirichlet(np.ones(k))
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
    random = np.random.default_rng(seed)
    values = spectra(random, k)
    penalties = np.sort(random.uniform(0, values[-1], k))
    found = np.linalg.eigvalsh(scaling_blocks(AlignedPoint.nonuniform(values, penalties)))
    expected = np.sort(np.stack([4 * penalties, 4 * (values - penalties)], axis=1))
    assert_allclose(found, expected, atol=1e-12 * values[0])


@settings(max_examples=200)
@given(seed=seeds, k=st.integers(2, 8), outside=st.integers(0, 4))
def test_the_papers_bounds_lie_below_the_true_condition_numbers(seed, k, outside):
    random = np.random.default_rng(seed)
    values = spectra(random, k + outside)
    penalties = np.sort(random.uniform(0.001, 0.999, k)) * values[k - 1]
    nonuniform = condition_number(AlignedPoint.nonuniform(values, penalties))
    assert nonuniform_condition_bound(values[:k]) <= nonuniform * (1 + 1e-9)
    prior = random.dirichlet(np.ones(k))
    nested = condition_number(AlignedPoint.nested(values, prior), effective=True)
    assert nested_condition_bound(values[:k]) <= nested * (1 + 1e-9)


@settings(max_examples=50)
@given(seed=seeds, k=st.integers(2, 8))
def test_paper_penalties_level_the_ratios_of_equation_16_and_no_choice_is_better(seed, k):
    random = np.random.default_rng(seed)
    values = spectra(random, k)
    penalties = paper_penalties(values)
    assert penalties[0] == 0.0
    assert_allclose(penalties[-1], values[-1], rtol=1e-9)
    assert np.all(np.diff(penalties) > 0)
    ratios = [rotation_bound_of_pair(values, penalties, j) for j in range(k - 1)]
    assert_allclose(ratios, rotation_bound(values, penalties), rtol=1e-6)
    for _ in range(50):
        other = np.sort(np.concatenate([[0.0], random.uniform(0, values[-1], k - 1)]))
        if np.all(np.diff(other) > 0):
            assert rotation_bound(values, other) >= rotation_bound(values, penalties) * (1 - 1e-6)


def rotation_bound_of_pair(values, penalties, j):
    kept = 1 - penalties / values
    gap = (penalties[j + 1] - penalties[j]) * (kept[j] - kept[j + 1])
    return 2 * (values[0] - values[-1]) * (kept[j] + kept[j + 1]) / gap


def test_paper_penalties_leave_the_true_hessian_singular():
    values = np.array([3.0, 2.0, 1.0])
    assert abs(smallest_curvature(values, paper_penalties(values))) < 1e-8
    assert smallest_curvature(values, best_penalties(values, 3)) > 0.01


def test_one_latent_has_the_papers_penalty_zero():
    assert_allclose(paper_penalties(np.array([2.0])), [0.0])


@settings(max_examples=15)
@given(seed=seeds, k=st.integers(1, 4), outside=st.integers(0, 3))
def test_best_penalties_lose_to_no_search_and_lie_inside(seed, k, outside):
    random = np.random.default_rng(seed)
    values = spectra(random, k + outside)
    best = best_penalties(values, k)
    assert best[0] > 0
    assert best[-1] < values[k - 1]
    assert np.all(np.diff(best) >= 0)
    reached = condition_number(AlignedPoint.nonuniform(values, best))

    def condition(logits):
        penalties = np.sort(values[k - 1] * scipy.special.expit(logits))
        return np.log(min(condition_number(AlignedPoint.nonuniform(values, penalties)), 1e300))

    start = scipy.special.logit(np.clip(best / values[k - 1], 1e-12, 1 - 1e-12))
    searches = [
        scipy.optimize.minimize(
            condition,
            start + shift * random.standard_normal(k),
            method="Nelder-Mead",
            options={"maxiter": 300},
        ).fun
        for shift in (0.0, 0.5)
    ]
    guesses = [condition(random.normal(0, 3, k)) for _ in range(100)]
    assert reached <= 1.05 * np.exp(min(searches))
    assert reached <= np.exp(min(guesses)) * (1 + 1e-3)


@settings(max_examples=50)
@given(seed=seeds)
def test_the_schur_complement_has_the_sign_of_the_blocks_smallest_eigenvalue(seed):
    random = np.random.default_rng(seed)
    own, following = np.sort(random.gamma(1.0, 1.0, 2) + 0.01)[::-1]
    last, penalty = np.sort(random.uniform(0, following, 2))
    pair, both = np.array([own, following]), np.array([last, penalty])
    (block,) = rotation_blocks(AlignedPoint.nonuniform(pair, both))
    smallest = np.linalg.eigvalsh(block)[0]
    for floor in smallest * np.array([0.5, 0.999, 1.001, 2.0]):
        excess = _pair_excess(own, following, last, penalty, floor)
        assert (excess > 0) == (floor < smallest)


@pytest.mark.parametrize("scale", [1e-200, 1e-100, 1e100, 1e140])
def test_penalties_scale_with_the_data(scale):
    values = np.array([3.0, 2.0, 1.0, 0.2])
    assert_allclose(best_penalties(values * scale, 3), best_penalties(values, 3) * scale, rtol=1e-6)
    assert_allclose(paper_penalties(values * scale), paper_penalties(values) * scale, rtol=1e-6)


@pytest.mark.parametrize(
    "values", [[3.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 0.1], [1.0, 1.0, 1.0, 1.0]]
)
def test_best_penalties_bear_repeated_eigenvalues(values):
    """Equal eigenvalues leave flat directions; all others curve as well as they can."""
    values = np.array(values)
    best = best_penalties(values, 3)
    assert np.all(np.diff(best) >= 0)
    assert best[0] > 0
    assert best[-1] < values[2]
    assert condition_number(AlignedPoint.nonuniform(values, best), effective=True) < 30


def test_latents_beyond_the_rank_get_penalties_that_let_them_die():
    best = best_penalties(np.array([2.0, 1.0, 0.0, 0.0]), 4)
    assert_allclose(zero_latents([2.0, 1.0, 0.0, 0.0], best), [3, 4])
    assert np.all(best_penalties(np.zeros(3), 2) > 0)


@pytest.mark.parametrize("values", [[1.0, 2.0], [1.0, 0.0], [1.0, -1.0], [[1.0]], []])
def test_paper_penalties_refuse_what_is_no_positive_descending_spectrum(values):
    with pytest.raises(ValueError, match="positive eigenvalues in descending order"):
        paper_penalties(np.array(values))


def test_two_latents_die_in_the_papers_mnist_setting():
    """√λ equally spaced 0.1 … 0.9, σ₁₉² = 0.626, σ₂₀² = 0.608 (pixels in [0, 1])."""
    penalties = np.linspace(0.1, 0.9, 20) ** 2
    values = np.concatenate([np.linspace(5.117, 0.673, 18), [0.626, 0.608]])
    assert_allclose(zero_latents(values, penalties), [19, 20])
    assert_allclose(zero_latents(values, penalties[::-1]), [1, 2])
    weights = NonUniformL2(penalties).kept_power(values)
    assert_allclose(np.flatnonzero(weights == 0), [18, 19])


def test_a_penalty_equal_to_its_eigenvalue_kills():
    assert_allclose(zero_latents([2.0, 1.0], [0.5, 1.0]), [2])
    assert_allclose(zero_latents([2.0, 1.0], [0.5, 1.0 - 1e-12]), [])


def test_components_that_share_an_eigenvalue_are_named():
    assert_allclose(unidentifiable([3.0, 2.0, 2.0, 1.0], 3), [2, 3])
    assert_allclose(unidentifiable([3.0, 2.0, 1.0, 1.0], 3), [3])
    assert_allclose(unidentifiable([3.0, 2.0, 1.0, 1.0], 2), [])
    assert_allclose(unidentifiable([0.0, 0.0], 2), [1, 2])
    assert smallest_gap([3.0, 2.5, 1.0], 1) == 0.5
    assert smallest_gap([3.0], 1) == 3.0


def test_the_dense_differences_are_exact():
    """Guard the guard: on a quadratic objective the dense Hessian is known."""
    values = np.array([2.0, 1.0])
    weights = free(np.random.default_rng(0), (1, 2), 0.0)
    found = dense_eigenvalues(NonUniformL2(np.array([3.0])), weights, values)
    # At 0 the Hessian is [[2λ, −2σ²], [−2σ², 2λ]] in each feature.
    assert_allclose(found, np.sort([6 - 4, 6 + 4, 6 - 2, 6 + 2]), atol=1e-10)
