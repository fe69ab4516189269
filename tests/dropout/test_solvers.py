"""The closed form is the global minimum: no descent is lower, and descent reaches it."""

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
    solve,
    solve_tied,
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


@settings(max_examples=40)
@given(problems(largest=5), seeds())
def test_closed_form_equals_the_best_descent(drawn, seed):
    check_against_descent(drawn, seed, starts=2)


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


def test_tie_at_the_cut_is_not_unique():
    problem = LinearProblem.from_matrix(np.diag([2.0, 1.0, 1.0]))
    assert not solve(problem, 0.01, 2).unique
    assert solve(problem, 0.01, 3).unique
    assert solve(problem, 100.0, 2).unique  # dropout removes both
    for difference, unique in ((3e-9, True), (3e-10, False)):
        near = LinearProblem.from_matrix(np.diag([2.0, 1.0, 1.0 - difference]))
        assert solve(near, 0.1, 2).unique is unique


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
