"""Shrinkage, breakpoints and codes in closed form: conditions, lemmas, figures by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from dropout.problems import seeds, symmetric
from lucidae.dropout import DropoutObjective, LinearProblem, solve
from lucidae.dropout.theory import (
    breakpoints,
    code_map,
    dropout_of,
    optimal_rank,
    optimal_value,
    rank_tolerance,
    shrink,
    small_dropout_bound,
    strength_of,
)

EPS = float(np.finfo(float).eps)


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


def test_strength_and_dropout_are_inverse_of_each_other():
    assert strength_of(0.75) == 3.0
    assert dropout_of(3.0) == 0.75
    assert strength_of(0) == dropout_of(0.0) == 0.0


def test_at_a_breakpoint_the_smaller_rank_is_taken():
    # r s₂ = λ(s₁ − s₂) at λ = 2·1/(3 − 1)·… : s = (3, 1), r = 2 gives λ₂ = 1.
    s = np.array([3.0, 1.0])
    assert_allclose(breakpoints(s, 2), [np.inf, 1.0])
    assert optimal_rank(s, 1.0, 2) == 1
    assert optimal_rank(s, 1.0 - 1e-12, 2) == 2
    assert shrink(s, 1.0, 2).values.tolist() == [2.0, 0.0]


def test_the_rank_is_at_most_the_width_and_zero_for_no_singular_values():
    s = np.array([3.0, 2.9, 2.8])
    assert [optimal_rank(s, 0.1, width) for width in (1, 2, 3, 4)] == [1, 2, 3, 3]
    assert optimal_rank(np.array([]), 1.0, 2) == 0
    assert shrink(np.zeros(2), 1.0, 2)[:2] == (0, 0.0)
    assert shrink(np.zeros(2), 1.0, 2).values.tolist() == [0.0, 0.0]


def test_singular_values_at_rounding_level_count_as_zero():
    sizes = ((2, 9.0, 1), (2, 10.0, 1), (2, 11.0, 2), (12, 11.0, 1), (12, 13.0, 12))
    for size, last, rank in sizes:
        s = np.r_[1.0, np.full(size - 1, last * EPS)]
        assert optimal_rank(s, 0.0, size) == rank
    assert rank_tolerance(np.array([2.0, 1.0])) == 20 * EPS
    assert rank_tolerance(np.array([2.0, 1.0]), 3) == 6 * EPS
    for last in (9, 10):
        assert breakpoints(np.array([1.0, last * EPS]), 2)[1] == 0.0


def test_breakpoints_are_where_the_condition_of_the_paper_fails():
    s = np.array([5.0, 4.0, 4.0, 1.0])
    # r sⱼ / Σ(sᵢ − sⱼ) with r = 3: the first is infinite, then 12/1, 12/1.
    assert_allclose(breakpoints(s, 3), [np.inf, 12.0, 12.0])
    assert_allclose(breakpoints(s, 6), [np.inf, 24.0, 24.0, 6 / 10])
    assert_allclose(breakpoints(np.array([1.0, 0.75]), 2), [np.inf, 6.0])
    assert np.isinf(breakpoints(np.array([2.0, 2.0]), 2)).all()


def test_codes_of_zero_columns_are_zero_and_the_others_are_as_without_them():
    rng = np.random.default_rng(0)
    V = rng.standard_normal((5, 2))
    padded = np.column_stack([V[:, 0], np.zeros(5), V[:, 1]])
    found = code_map(padded, 0.3)
    assert_allclose(found[:, [0, 2]], code_map(V, 0.3), atol=1e-14)
    assert not found[:, 1].any()
    wide = code_map(V.T, 0.5)
    gram = V @ V.T
    assert_allclose(wide, V.T @ np.linalg.inv(gram + 0.5 * np.diag(np.diag(gram))), atol=1e-12)


@given(st.integers(1, 6), st.integers(1, 9), st.floats(0, 50))
def test_the_inverse_of_the_identity_plus_ones(rank, width, strength):
    """Mianjy et al. 2018, Lemma A.2."""
    ones, identity = np.ones((rank, rank)), np.eye(rank)
    product = (identity + strength / width * ones) @ (
        identity - strength / (width + strength * rank) * ones
    )
    assert_allclose(product, identity, atol=1e-10)


@given(seeds(), st.floats(0.01, 20), st.integers(1, 6))
def test_the_loss_falls_with_the_rank_and_the_optimum_is_the_last_feasible_one(
    seed, strength, width
):
    """Mianjy et al. 2018, Lemma A.3, and the step of Theorem 2.4 that follows from it."""
    a = np.sort(np.random.default_rng(seed).uniform(0, 3, 6))[::-1]
    losses, feasible = [], [0]
    for rank in range(1, width + 1):
        level = strength * a[:rank].sum() / (width + strength * rank)
        shrunk = a[:rank] - level
        by_definition = rank * level**2 + np.sum(a[rank:] ** 2)
        by_definition += strength / width * shrunk.sum() ** 2
        head = a[:rank].sum()
        simplified = strength * head**2 / (width + strength * rank) + np.sum(a[rank:] ** 2)
        assert by_definition == pytest.approx(simplified, rel=1e-12)
        losses.append(simplified)
        if shrunk[-1] > 0:
            feasible.append(rank)
    assert np.all(np.diff(losses) <= 1e-12)
    assert feasible == list(range(len(feasible)))  # a prefix
    assert shrink(a, strength, width).rank == feasible[-1]
    assert optimal_value(a, strength, width) == pytest.approx(losses[feasible[-1] - 1])


@given(seeds(), st.integers(1, 6))
def test_the_mean_of_the_eigenvectors_has_the_mean_eigenvalue(seed, size):
    """Mianjy et al. 2018, Claim 1 in the proof of Theorem 2.2."""
    G = symmetric(np.random.default_rng(seed), size)
    _, vectors = np.linalg.eigh(G)
    w = vectors.sum(axis=1) / np.sqrt(size)
    assert np.linalg.norm(w) == pytest.approx(1.0)
    assert w @ G @ w == pytest.approx(np.trace(G) / size, abs=1e-10)
