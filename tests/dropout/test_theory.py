"""Shrinkage, breakpoints and codes in closed form satisfy their optimality conditions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from lucidae.dropout import (
    DropoutObjective,
    LinearProblem,
    solve,
)
from lucidae.dropout.theory import (
    breakpoints,
    code_map,
    optimal_rank,
    optimal_value,
    shrink,
    small_dropout_bound,
    strength_of,
)


@given(
    st.lists(st.floats(0.0, 1e3), min_size=1, max_size=8),
    st.floats(0.0, 1e6),
    st.integers(1, 10),
)
def test_shrinkage_satisfies_the_optimality_conditions(values, strength, width):
    s = np.sort(np.array(values))[::-1]
    rank, _threshold, shrunk = shrink(s, strength, width)
    scale = s[0] + 1e-300
    assert np.all(shrunk >= 0)
    assert np.all(shrunk[rank:] == 0)
    assert rank <= width
    # 2(ŝᵢ − sᵢ) + 2(λ/r)Σŝ vanishes where ŝᵢ > 0 and is not negative on the other candidates.
    slope = (shrunk - s + strength / width * shrunk.sum())[:width]
    loaded = 1.0 + strength  # rounding in Σŝ is multiplied by λ/r
    assert np.all(np.abs(slope[:rank]) <= 1e-12 * loaded * scale)
    assert np.all(slope[rank:] >= -1e-12 * loaded * scale)
    value = np.sum((s - shrunk) ** 2) + strength / width * shrunk.sum() ** 2
    assert value == pytest.approx(optimal_value(s, strength, width), rel=1e-9, abs=1e-12 * scale**2)
    assert optimal_value(s, strength, width, float(np.sum(s**2))) == pytest.approx(
        optimal_value(s, strength, width), rel=1e-9, abs=1e-12 * scale**2
    )


def test_shrinkage_by_hand_and_the_papers_figure_one():
    # M = 2, r = 2: u₁² + u₂² = 2 − 2λ/(2 + λ) = 4/(2 + λ).
    for strength in (0.1, 0.5, 1.0):
        rank, threshold, values = shrink(np.array([2.0]), strength, 2)
        assert (rank, values[0]) == (1, pytest.approx(4 / (2 + strength)))
        assert threshold == pytest.approx(2 * strength / (2 + strength))


@pytest.mark.parametrize("strength", [1e8, 1e15, strength_of(1 - 2**-53)])
def test_dropout_near_one_stays_right(strength):
    # With nearly everything dropped only the leading singular value survives: ŝ = r s/(r + λ).
    s = np.array([3.0, 2.0, 1.0])
    rank, _, values = shrink(s, strength, 3)
    assert rank == 1
    assert values[0] == pytest.approx(9.0 / (3 + strength), rel=1e-12)
    equal = shrink(np.array([2.0, 2.0]), strength, 2)
    assert equal.rank == 2
    assert_allclose(equal.values, 4.0 / (2 + 2 * strength), rtol=1e-12)
    solution = solve(LinearProblem.from_matrix(np.diag(s)), strength, 3)
    assert float(
        DropoutObjective(LinearProblem.from_matrix(np.diag(s)), strength).value(solution.weights)
    ) == pytest.approx(solution.value, rel=1e-6)


@given(st.lists(st.floats(0.01, 10.0), min_size=2, max_size=6), st.floats(0.001, 20.0))
def test_small_dropout_condition_says_that_the_rank_is_full(values, strength):
    s = np.sort(np.array(values))[::-1]
    bound = small_dropout_bound(s, len(s))
    if abs(bound - strength) > 1e-9 * bound:
        assert (strength < bound) == (optimal_rank(s, strength, len(s)) == len(s))
    paper = len(s) * s[-1] / (s.sum() - len(s) * s[-1]) if np.ptp(s) > 1e-9 else np.inf
    assert bound == pytest.approx(paper, rel=1e-6)


def test_breakpoints_by_hand():
    assert_allclose(breakpoints(np.array([3.0, 2.0, 1.0]), 3), [np.inf, 6.0, 1.0])


def test_codes_solve_the_ridge_problem_of_the_docstring():
    rng = np.random.default_rng(2)
    V, strength = rng.standard_normal((6, 3)), 0.7
    gram = V.T @ V
    expected = V @ np.linalg.inv(gram + strength * np.diag(np.diag(gram)))
    assert_allclose(code_map(V, strength), expected, atol=1e-12)
    deficient = V[:, [0, 0, 1]]
    assert_allclose(code_map(deficient, 0.0), np.linalg.pinv(deficient).T, atol=1e-10)
    assert not code_map(np.zeros((6, 3)), 0.5).any()


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 1.5, np.nan, np.inf, "half", None, True])
def test_impossible_dropout_is_refused(dropout):
    with pytest.raises(ValueError, match="dropout"):
        strength_of(dropout)
