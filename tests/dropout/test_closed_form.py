"""The closed form is the global minimum: no descent beats it, and descent reaches it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from dropout.problems import best_descent, problems, random_weights, seeds, symmetric
from lucidae import SecondMoment
from lucidae.dropout import (
    DropoutObjective,
    LinearProblem,
    Weights,
    regularization_path,
    solve,
    solve_tied,
)
from lucidae.dropout.solvers import leading_svd
from lucidae.dropout.theory import (
    breakpoints,
    code_map,
    optimal_rank,
    optimal_value,
    shrink,
    small_dropout_bound,
    strength_of,
)


def check_against_descent(drawn, seed, starts):
    problem, strength, width = drawn
    solution = solve(problem, strength, width)
    value = float(DropoutObjective(problem, strength).value(solution.weights))
    assert value == pytest.approx(solution.value, abs=1e-9 * problem.energy)
    rng, goal = np.random.default_rng(seed), value + 1e-9 * problem.energy
    reached = best_descent(problem, strength, width, rng, starts, goal)
    assert value <= reached + 1e-10 * problem.energy  # never loses
    assert reached <= value + 1e-8 * problem.energy  # and is reached


@settings(max_examples=200)
@given(problems(largest=5), seeds())
def test_closed_form_equals_the_best_descent_on_200_problems(drawn, seed):
    check_against_descent(drawn, seed, starts=3)


@pytest.mark.slow
@settings(max_examples=200)
@given(problems(largest=5), seeds())
def test_closed_form_equals_the_best_of_20_descents_on_200_problems(drawn, seed):
    check_against_descent(drawn, seed, starts=20)


@given(problems(), seeds())
def test_optimum_is_stationary_equalized_and_beats_perturbations(drawn, seed):
    problem, strength, width = drawn
    rng = np.random.default_rng(seed)
    solution = solve(problem, strength, width)
    objective = DropoutObjective(problem, strength)
    assert float(objective.stationarity(solution.weights)) < 1e-7
    scores = objective.importance(solution.weights)
    assert np.ptp(scores) <= 1e-9 * scores.max() + 1e-14
    for size in (1e-3, 0.1, 1.0):
        noise = random_weights(problem, width, rng, size)
        moved = Weights(*(a + b for a, b in zip(solution.weights, noise, strict=True)))
        assert objective.value(moved) >= solution.value - 1e-9 * problem.energy


@given(problems())
def test_product_is_the_shrunken_least_squares_map(drawn):
    problem, strength, width = drawn
    solution = solve(problem, strength, width)
    left, right = solution.weights
    if problem.inputs is not None:
        return
    P, s, Qt = np.linalg.svd(problem.cross, full_matrices=False)
    kept = np.where(np.arange(s.size) < solution.rank, s - solution.threshold, 0.0)
    assert_allclose(left @ right.T, (P * kept) @ Qt, atol=1e-9 * (1 + s[0]))
    assert_allclose(solution.singular_values, s[:width], atol=1e-12 * (1 + s[0]))


@given(problems(), seeds())
def test_singular_inputs_leave_no_weight_on_directions_that_do_not_exist(drawn, seed):
    problem, strength, width = drawn
    if problem.inputs is None:
        return
    values, vectors = np.linalg.eigh(problem.inputs)
    missing = vectors[:, values < 1e-10 * values[-1]]
    right = solve(problem, strength, width).weights.right
    assert_allclose(missing.T @ right, 0.0, atol=1e-8 * (1 + np.abs(right).max()))


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


def test_threshold_is_over_r_plus_lambda_rho_not_over_r():
    # The statement of Theorem 3.6 prints the threshold over r; descent agrees with Algorithm 3.
    problem = LinearProblem.from_matrix(np.diag([3.0, 2.0]))
    solution = solve(problem, 1.0, 2)
    assert solution.threshold == pytest.approx(1.0 * 5.0 / (2 + 1.0 * 2))
    reached = best_descent(problem, 1.0, 2, np.random.default_rng(0), 5, 0.0)
    assert reached == pytest.approx(solution.value, rel=1e-9)


def test_width_below_the_rank_cuts_there():
    solution = solve(LinearProblem.from_matrix(np.diag([5.0, 4.0, 3.0])), 0.01, 2)
    product = solution.weights.left @ solution.weights.right.T
    assert solution.rank == np.linalg.matrix_rank(product) == 2


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


def test_no_dropout_is_reduced_rank_least_squares():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 4)) @ rng.standard_normal((4, 4))
    Y = rng.standard_normal((50, 3))
    X -= X.mean(0)
    Y -= Y.mean(0)
    problem = LinearProblem.from_moment(SecondMoment.of(np.hstack([X, Y])), 4)
    least_squares = np.linalg.lstsq(X, Y, rcond=None)[0]
    left, right = solve(problem, 0.0, 3).weights
    assert_allclose(left @ right.T, least_squares.T, atol=1e-10)
    left, right = solve(problem, 0.0, 1).weights
    _, _, Qt = np.linalg.svd(X @ least_squares, full_matrices=False)
    assert_allclose(left @ right.T, (least_squares @ np.outer(Qt[0], Qt[0])).T, atol=1e-10)


def test_nothing_to_learn_gives_zero_weights():
    for problem in (
        LinearProblem.from_matrix(np.zeros((3, 2))),
        LinearProblem(np.zeros((3, 2)), np.zeros((2, 2)), 5.0),
    ):
        solution = solve(problem, 0.5, 4)
        assert solution.rank == 0
        assert solution.threshold == 0.0
        assert solution.value == problem.energy
        assert not solution.weights.left.any()
        assert not solution.weights.right.any()


@settings(max_examples=30)
@given(seeds(), st.integers(1, 5), st.sampled_from([0.0, 0.1, 1.0, 10.0]))
def test_tied_closed_form_is_the_best_of_many_descents(seed, width, strength):
    rng = np.random.default_rng(seed)
    M = symmetric(rng, 4, shift=0.5)
    objective = DropoutObjective(LinearProblem.from_matrix(M), strength)
    solution = solve_tied(M, strength, width)
    value = float(objective.tied_value(solution.weights.left))
    assert value == pytest.approx(solution.value, rel=1e-9, abs=1e-9)

    def both(flat):
        U = flat.reshape(4, width)
        return float(objective.tied_value(U)), objective.tied_gradient(U).ravel()

    reached = min(
        minimize(both, rng.standard_normal(4 * width), jac=True, method="L-BFGS-B").fun
        for _ in range(5)
    )
    assert value <= reached + 1e-9
    assert reached <= value + 1e-5


@given(st.lists(st.floats(0.01, 10.0), min_size=2, max_size=6), st.floats(0.001, 20.0))
def test_small_dropout_condition_says_that_the_rank_is_full(values, strength):
    s = np.sort(np.array(values))[::-1]
    bound = small_dropout_bound(s, len(s))
    if abs(bound - strength) > 1e-9 * bound:
        assert (strength < bound) == (optimal_rank(s, strength, len(s)) == len(s))
    paper = len(s) * s[-1] / (s.sum() - len(s) * s[-1]) if np.ptp(s) > 1e-9 else np.inf
    assert bound == pytest.approx(paper, rel=1e-6)


def test_path_equals_one_solve_per_rate_and_breaks_where_the_rank_falls():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((60, 5)) @ rng.standard_normal((5, 5))
    Y = X @ rng.standard_normal((5, 4)) + rng.standard_normal((60, 4))
    problem = LinearProblem.from_moment(SecondMoment.of(np.hstack([X, Y])), 5)
    rates = np.linspace(0.0, 0.99, 23)
    path = regularization_path(problem, 3, rates)
    for index, rate in enumerate(rates):
        solution = solve(problem, strength_of(rate), 3)
        objective = DropoutObjective(problem, 0.0)
        assert path.rank[index] == solution.rank
        assert path.threshold[index] == pytest.approx(solution.threshold)
        assert path.objective[index] == pytest.approx(solution.value, rel=1e-9)
        assert path.error[index] == pytest.approx(float(objective.loss(solution.weights)), rel=1e-9)
    assert np.all(np.diff(path.rank) <= 0)
    assert np.all(np.diff(path.error) >= -1e-9)
    for position, limit in enumerate(path.breaks):
        if limit < 1:
            around = regularization_path(problem, 3, [limit - 1e-6, limit + 1e-6])
            assert list(around.rank) == [position + 1, position]
    default = regularization_path(problem, 3)
    assert default.dropout[0] == 0.0
    assert np.all(np.diff(default.dropout) > 0)


def test_breakpoints_by_hand():
    assert_allclose(breakpoints(np.array([3.0, 2.0, 1.0]), 3), [np.inf, 6.0, 1.0])


@pytest.mark.parametrize("shape", [(500, 430), (430, 500)])
def test_few_triples_of_a_large_matrix_equal_the_full_decomposition(shape):
    rng = np.random.default_rng(0)
    P, _ = np.linalg.qr(rng.standard_normal((shape[0], 430)))
    Q, _ = np.linalg.qr(rng.standard_normal((shape[1], 430)))
    s = np.exp(-0.02 * np.arange(430))
    M = (P * s) @ Q.T
    left, values, rightt = leading_svd(M, 20)
    assert values.shape[0] == 20
    assert_allclose(values, s[:20], rtol=1e-10)
    assert_allclose((left * values) @ rightt, (P[:, :20] * s[:20]) @ Q[:, :20].T, atol=1e-10)


def test_faint_triples_come_from_the_full_decomposition():
    rng = np.random.default_rng(1)
    P, _ = np.linalg.qr(rng.standard_normal((420, 410)))
    s = np.exp(-1.0 * np.arange(410))
    M = P * s
    _, values, _ = leading_svd(M, 30)
    assert_allclose(values[:30], s[:30], rtol=1e-3)  # e⁻²⁹ ≈ 3e-13 of the first
    few = leading_svd(M, 30, strength=5.0)[1]
    assert few.shape[0] == 30  # only the leading few survive: no need for the full one
    solution = solve(LinearProblem.from_matrix(M), 5.0, 30)
    assert solution.value == pytest.approx(optimal_value(s, 5.0, 30), rel=1e-12)


def test_codes_solve_the_ridge_problem_of_the_docstring():
    rng = np.random.default_rng(2)
    V, strength = rng.standard_normal((6, 3)), 0.7
    gram = V.T @ V
    expected = V @ np.linalg.inv(gram + strength * np.diag(np.diag(gram)))
    assert_allclose(code_map(V, strength), expected, atol=1e-12)
    deficient = V[:, [0, 0, 1]]
    assert_allclose(code_map(deficient, 0.0), np.linalg.pinv(deficient).T, atol=1e-10)
    assert not code_map(np.zeros((6, 3)), 0.5).any()


def test_tie_at_the_cut_is_not_unique():
    problem = LinearProblem.from_matrix(np.diag([2.0, 1.0, 1.0]))
    assert not solve(problem, 0.01, 2).unique
    assert solve(problem, 0.01, 3).unique
    assert solve(problem, 100.0, 2).unique  # dropout removes both


def test_closed_form_on_every_library(xp):
    rng = np.random.default_rng(6)
    data = rng.standard_normal((20, 7))
    reference = solve(LinearProblem.from_moment(SecondMoment.of(data), 4), 0.5, 3)
    moment = SecondMoment.of(xp.asarray(data))
    solution = solve(LinearProblem.from_moment(moment, 4), 0.5, 3)
    assert solution.value == pytest.approx(reference.value, rel=1e-12)
    product = np.asarray(solution.weights.left @ solution.weights.right.mT)
    expected = reference.weights.left @ reference.weights.right.T
    assert_allclose(product, expected, atol=1e-10)
    tied = solve_tied(moment.covariance, 0.5, 3)
    assert tied.value == pytest.approx(
        solve_tied(SecondMoment.of(data).covariance, 0.5, 3).value, rel=1e-12
    )


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 1.5, np.nan, np.inf, "half", None, True])
def test_impossible_dropout_is_refused(dropout):
    with pytest.raises(ValueError, match="dropout"):
        strength_of(dropout)
