"""Penalties: those of the paper, and those that minimise the condition number of the Hessian."""

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from linear.problems import spectra
from lucidae.linear.hessian import (
    AlignedPoint,
    condition_number,
    hessian_eigenvalues,
    rotation_blocks,
)
from lucidae.linear.penalties import (
    _pair_excess,
    best_penalties,
    paper_penalties,
    rotation_bound,
)
from lucidae.linear.theory import (
    zero_latents,
)

seeds = st.integers(0, 2**32 - 1)


def smallest_curvature(values, penalties):
    """Return the smallest eigenvalue of the Hessian at the global minimum."""
    return hessian_eigenvalues(AlignedPoint.nonuniform(values, penalties))[0]


@settings(max_examples=50)
@given(seed=seeds, k=st.integers(2, 8))
def test_paper_penalties_level_the_ratios_of_equation_16_and_no_choice_is_better(seed, k):
    rng = np.random.default_rng(seed)
    values = spectra(rng, k)
    penalties = paper_penalties(values)
    assert penalties[0] == 0.0
    assert_allclose(penalties[-1], values[-1], rtol=1e-9)
    assert np.all(np.diff(penalties) > 0)
    ratios = [rotation_bound_of_pair(values, penalties, j) for j in range(k - 1)]
    assert_allclose(ratios, rotation_bound(values, penalties), rtol=1e-6)
    for _ in range(50):
        other = np.sort(np.concatenate([[0.0], rng.uniform(0, values[-1], k - 1)]))
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
    rng = np.random.default_rng(seed)
    values = spectra(rng, k + outside)
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
            start + shift * rng.standard_normal(k),
            method="Nelder-Mead",
            options={"maxiter": 300},
        ).fun
        for shift in (0.0, 0.5)
    ]
    guesses = [condition(rng.normal(0, 3, k)) for _ in range(100)]
    assert reached <= 1.05 * np.exp(min(searches))
    assert reached <= np.exp(min(guesses)) * (1 + 1e-3)


@settings(max_examples=50)
@given(seed=seeds)
def test_the_schur_complement_has_the_sign_of_the_blocks_smallest_eigenvalue(seed):
    rng = np.random.default_rng(seed)
    own, following = np.sort(rng.gamma(1.0, 1.0, 2) + 0.01)[::-1]
    last, penalty = np.sort(rng.uniform(0, following, 2))
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
