"""Penalties: those of the paper, and those that minimise the condition number of the Hessian."""

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.datasets import load_breast_cancer

from linear.problems import spectra
from lucidae.linear.theory import (
    COARSE,
    AlignedPoint,
    _equal_ratio_penalties,
    _highest_floor,
    _next_paper_penalty,
    best_penalties,
    condition_number,
    hessian_eigenvalues,
    nonuniform_penalties,
    paper_penalties,
    uniform_penalties,
    zero_latents,
)
from lucidae_papers.linear.penalties import rotation_bound

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
    unit = values / values[0]
    assert paper_penalties(unit)[-1] <= unit[-1]
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


@pytest.mark.parametrize(
    "values", [[1.0, 2.0], [1.0, 0.0], [1.0, -1.0], [[1.0]], [], [np.inf, 1.0]]
)
def test_paper_penalties_refuse_what_is_no_positive_descending_spectrum(values):
    with pytest.raises(ValueError, match="positive eigenvalues in descending order"):
        paper_penalties(np.array(values))


@pytest.mark.parametrize(
    ("values", "k", "sentence"),
    [
        ([1.0, 2.0], 1, "descending order"),
        ([1.0, -0.5], 1, "descending order"),
        ([np.nan, 1.0], 1, "descending order"),
        (np.ones((3, 2)), 1, "descending order"),
        (1.0, 1, "descending order"),
        (None, 1, "expected real numbers"),
        ([1j, 0.0], 1, "expected real numbers"),
        (["2", "1"], 1, "expected real numbers"),
        ([2.0, 1.0], 3, "at least k=3: one per latent"),
        ([2.0, 1.0], 0, "^k=0 .* an integer of at least 1"),
        ([2.0, 1.0], 1.5, "^k=1.5 .* an integer of at least 1"),
    ],
)
def test_best_penalties_say_what_is_wrong(values, k, sentence):
    with pytest.raises(ValueError, match=sentence):
        best_penalties(values, k)


@pytest.mark.parametrize("chosen", [nonuniform_penalties, uniform_penalties])
@pytest.mark.parametrize("l2", [[1j, 1j], [np.nan, 1.0], [-1.0, 1.0], None, np.ones((2, 1))])
def test_penalties_that_are_no_numbers_are_refused(chosen, l2):
    with pytest.raises(ValueError, match=r"(?s)^l2=.* was given, expected"):
        chosen(l2, None, 2)


def assert_strictly_inside(penalties, values, k):
    assert penalties[0] > 0
    assert np.all(np.diff(penalties) > 0)
    assert penalties[-1] < values[k - 1]


def spread_spectrum(seed):
    """Draw up to 12 decades of eigenvalues and up to 30 latents."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, 31))
    exponents = rng.uniform(0, rng.uniform(0, 12), k + int(rng.integers(0, 6)))
    return np.sort(10.0**-exponents)[::-1], k


def check_spread_spectra(seeds):
    for seed in seeds:
        values, k = spread_spectrum(seed)
        assert_strictly_inside(best_penalties(values, k), values, k)


# Some of these ended at or above σ_k² (4, 5, 7, 8), others with equal neighbours (4, 126).
def test_best_penalties_lie_strictly_inside_for_spectra_over_decades():
    check_spread_spectra([*range(3), 126])


@pytest.mark.slow
def test_best_penalties_lie_strictly_inside_for_3000_spectra_over_decades():
    check_spread_spectra(range(3000))


@pytest.mark.parametrize("k", [1, 8, 15, 16, 22, 30])
def test_best_penalties_of_real_data_lie_strictly_inside(k):
    values = np.linalg.eigvalsh(np.cov(load_breast_cancer().data.T, bias=True))[::-1]
    assert_strictly_inside(best_penalties(values, k), values, k)


@pytest.mark.slow
def test_best_penalties_of_real_data_lie_strictly_inside_for_every_k():
    for k in range(1, 31):
        test_best_penalties_of_real_data_lie_strictly_inside(k)


def test_penalties_of_equal_eigenvalues_differ():
    """Equal penalties would void the promise of axes for all latents."""
    values = np.array([3.0, 2.0, 2.0, 1.0, 1.0, 1.0])
    for k in range(1, 7):
        assert_strictly_inside(best_penalties(values, k), values, k)


@pytest.mark.parametrize("ratio", [60.0, 100.0, 500.0])
def test_penalties_of_a_common_ratio_have_this_ratio(ratio):
    values = np.array([3.5, 2.5, 2.4, 1.0])
    chosen = _equal_ratio_penalties(values, ratio)
    assert chosen[0] == 0.0
    found = [rotation_bound_of_pair(values, chosen, j) for j in range(3)]
    assert_allclose(found, ratio, rtol=1e-9)
    assert _next_paper_penalty(2.0, 1.0, 3.0, ratio) == 3.0  # beyond the eigenvalue: no root


def test_uniform_penalties_by_hand():
    values = np.array([4.0, 2.0, 1.0])
    assert uniform_penalties("auto", values, 2).tolist() == [1.0, 1.0]
    assert uniform_penalties("auto", values, 4).tolist() == [0.5] * 4
    assert uniform_penalties("auto", np.array([4.0, 0.0]), 2).tolist() == [2e-12] * 2
    assert uniform_penalties(0.3, None, 3).tolist() == [0.3] * 3
    assert uniform_penalties([0.3, 0.3], None, 2).tolist() == [0.3, 0.3]
    with pytest.raises(ValueError, match="expected one number"):
        uniform_penalties([0.3, 0.4], None, 2)
    assert nonuniform_penalties([0.3, 0.1], None, 2).tolist() == [0.3, 0.1]
    for wrong in ([0.3], [0.1, 0.2, 0.3]):
        with pytest.raises(ValueError, match="expected 2: one per latent"):
            nonuniform_penalties(wrong, None, 2)


@pytest.mark.covering
@pytest.mark.parametrize("k", [6, 12])
@pytest.mark.parametrize("last", [0.5, 0.05, 1e-4])
def test_no_first_penalty_on_a_grid_is_better(k, last):
    values = np.geomspace(1.0, last, k + 2)
    best = condition_number(AlignedPoint.nonuniform(values, best_penalties(values, k)))
    for share in np.geomspace(1e-6, 0.999, 40):
        trial = _highest_floor(values, k, share * values[k - 1], COARSE)
        assert condition_number(AlignedPoint.nonuniform(values, trial)) >= best
