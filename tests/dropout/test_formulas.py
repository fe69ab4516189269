"""Formulas of the dropout family against figures computed by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from lucidae.dropout import DropoutObjective, LinearProblem, Weights, theory
from lucidae.dropout.objectives import check_hidden_units, draw_masks, second_about
from lucidae.moments import SecondMoment

EPS = float(np.finfo(float).eps)


def test_strength_and_dropout_are_inverse_of_each_other():
    assert theory.strength_of(0.75) == 3.0
    assert theory.dropout_of(3.0) == 0.75
    assert theory.strength_of(0) == theory.dropout_of(0.0) == 0.0


def test_rank_and_threshold_by_hand():
    # s = (5, 3, 2), r = 4, λ = 4: r sⱼ against λ Σ(sᵢ − sⱼ): 12 > 8 keeps two, 8 < 16 drops one.
    s = np.array([5.0, 3.0, 2.0])
    assert theory.optimal_rank(s, 4.0, 4) == 2
    rank, threshold, values = theory.shrink(s, 4.0, 4)
    # α = λ Σs/(r + λρ) = 4·8/12.
    assert (rank, threshold) == (2, pytest.approx(8 / 3))
    assert_allclose(values, [5 - 8 / 3, 3 - 8 / 3, 0.0])
    # λ(Σs)²/(r + λρ) + 2² = 4·64/12 + 4.
    assert theory.optimal_value(s, 4.0, 4) == pytest.approx(64 / 3 + 4)
    assert theory.optimal_value(s[:2], 4.0, 4, 38.0) == pytest.approx(64 / 3 + 4)
    # A total below the squares of the given values cannot be: their tail counts.
    assert theory.optimal_value(s, 4.0, 4, 30.0) == pytest.approx(64 / 3 + 4)


def test_at_a_breakpoint_the_smaller_rank_is_taken():
    # r s₂ = λ(s₁ − s₂) at λ = 2·1/(3 − 1)·… : s = (3, 1), r = 2 gives λ₂ = 1.
    s = np.array([3.0, 1.0])
    assert_allclose(theory.breakpoints(s, 2), [np.inf, 1.0])
    assert theory.optimal_rank(s, 1.0, 2) == 1
    assert theory.optimal_rank(s, 1.0 - 1e-12, 2) == 2
    assert theory.shrink(s, 1.0, 2).values.tolist() == [2.0, 0.0]


def test_the_rank_is_at_most_the_width_and_zero_for_no_singular_values():
    s = np.array([3.0, 2.9, 2.8])
    assert [theory.optimal_rank(s, 0.1, width) for width in (1, 2, 3, 4)] == [1, 2, 3, 3]
    assert theory.optimal_rank(np.array([]), 1.0, 2) == 0
    assert theory.shrink(np.zeros(2), 1.0, 2)[:2] == (0, 0.0)
    assert theory.shrink(np.zeros(2), 1.0, 2).values.tolist() == [0.0, 0.0]


def test_singular_values_at_rounding_level_count_as_zero():
    sizes = ((2, 9.0, 1), (2, 10.0, 1), (2, 11.0, 2), (12, 11.0, 1), (12, 13.0, 12))
    for size, last, rank in sizes:
        s = np.r_[1.0, np.full(size - 1, last * EPS)]
        assert theory.optimal_rank(s, 0.0, size) == rank
    assert theory.rank_tolerance(np.array([2.0, 1.0])) == 20 * EPS
    assert theory.rank_tolerance(np.array([2.0, 1.0]), 3) == 6 * EPS
    for last in (9, 10):
        assert theory.breakpoints(np.array([1.0, last * EPS]), 2)[1] == 0.0


def test_breakpoints_are_where_the_condition_of_the_paper_fails():
    s = np.array([5.0, 4.0, 4.0, 1.0])
    # r sⱼ / Σ(sᵢ − sⱼ) with r = 3: the first is infinite, then 12/1, 12/1.
    assert_allclose(theory.breakpoints(s, 3), [np.inf, 12.0, 12.0])
    assert_allclose(theory.breakpoints(s, 6), [np.inf, 24.0, 24.0, 6 / 10])
    assert_allclose(theory.breakpoints(np.array([1.0, 0.75]), 2), [np.inf, 6.0])
    assert np.isinf(theory.breakpoints(np.array([2.0, 2.0]), 2)).all()


def test_small_dropout_bound_counts_positive_eigenvalues_alone():
    assert theory.small_dropout_bound(np.array([3.0, 2.0]), 3) == 0.0
    assert theory.small_dropout_bound(np.array([3.0, -1.0]), 2) == 0.0
    assert theory.small_dropout_bound(np.array([3.0, 2.0, 1.0]), 2) == 4.0
    assert theory.small_dropout_bound(np.array([3.0, 2.0, 1.0]), 3) == 1.0
    assert theory.small_dropout_bound(np.array([3.0, 0.5]), 2) == 0.4


def test_codes_of_zero_columns_are_zero_and_the_others_are_as_without_them():
    rng = np.random.default_rng(0)
    V = rng.standard_normal((5, 2))
    padded = np.column_stack([V[:, 0], np.zeros(5), V[:, 1]])
    found = theory.code_map(padded, 0.3)
    assert_allclose(found[:, [0, 2]], theory.code_map(V, 0.3), atol=1e-14)
    assert not found[:, 1].any()
    wide = theory.code_map(V.T, 0.5)
    gram = V @ V.T
    assert_allclose(wide, V.T @ np.linalg.inv(gram + 0.5 * np.diag(np.diag(gram))), atol=1e-12)


def test_directions_of_the_codes_at_rounding_level_are_left_out():
    # Unit columns whose second singular value is a rounding error: the pseudo-inverse ignores it.
    V = np.array([[1.0, 1.0], [0.0, 1e-16], [0.0, 0.0]])
    assert_allclose(
        theory.code_map(V, 0.0), np.full((3, 2), [0.5, 0.5]) * [[1], [0], [0]], atol=1e-9
    )
    # The rounding error grows with the larger one of the two dimensions.
    tall = np.zeros((300, 2))
    tall[:2] = [[1.0, 1.0], [0.0, 100 * EPS]]
    assert_allclose(theory.code_map(tall, 0.0)[:2], [[0.5, 0.5], [0.0, 0.0]], atol=1e-9)
    kept = np.array([[1.0, 1.0], [0.0, 1e-9], [0.0, 0.0]])
    assert np.abs(theory.code_map(kept, 0.0)[1]).max() > 1e8


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_codes_scale_inversely_with_the_weights(scale):
    V = np.random.default_rng(1).standard_normal((4, 3))
    assert_allclose(theory.code_map(scale * V, 0.2), theory.code_map(V, 0.2) / scale, rtol=1e-9)


def test_layers_need_the_same_hidden_units():
    check_hidden_units(np.ones((2, 3)), np.ones((5, 3)))
    with pytest.raises(ValueError, match=r"U has 3 columns and V has 2"):
        check_hidden_units(np.ones((2, 3)), np.ones((3, 2)))


@pytest.mark.parametrize(("error", "white"), [(0.0, True), (1e-8, True), (1.1e-8, False)])
def test_inputs_are_white_up_to_their_tolerance(error, white):
    inputs = np.eye(2) + error * np.array([[0.0, 1.0], [1.0, 0.0]])
    assert LinearProblem(np.ones((1, 2)), inputs, 1.0).is_white is white
    assert LinearProblem(np.ones((1, 2)), None, 1.0).is_white is True


def test_second_moment_about_any_center():
    X = np.random.default_rng(0).standard_normal((9, 3)) + 1.0
    for center in (np.zeros(3), np.array([2.0, -1.0, 0.5])):
        expected = (X - center).T @ (X - center) / 9
        assert_allclose(second_about(SecondMoment.of(X), center), expected, atol=1e-14)


def test_a_triangular_factor_of_the_rows_gives_the_same_figures_as_their_moment():
    rng = np.random.default_rng(1)
    X, Y = rng.standard_normal((20, 3)), rng.standard_normal((20, 2))
    rows = np.hstack([X, Y]) / np.sqrt(20)
    plain = LinearProblem.from_second(rows.T @ rows, 3)
    rooted = LinearProblem(plain.cross, plain.inputs, plain.energy, np.linalg.qr(rows)[1])
    weights = Weights(rng.standard_normal((2, 4)), rng.standard_normal((3, 4)))
    U, V = weights
    expected = np.mean(np.sum((Y - X @ V @ U.T) ** 2, axis=1))
    scores = np.linalg.norm(U, axis=0) * np.sqrt(np.mean((X @ V) ** 2, axis=0))
    for problem in (plain, rooted):
        objective = DropoutObjective(problem, 0.7)
        assert float(objective.loss(weights)) == pytest.approx(expected)
        assert_allclose(objective.importance(weights), scores)
        assert float(objective.value(weights)) == pytest.approx(expected + 0.7 * np.sum(scores**2))


@pytest.mark.parametrize("centered", [False, True])
def test_problems_of_a_moment_count_its_rows(centered):
    rows = np.random.default_rng(2).standard_normal((9, 3)) + 1.0
    moment, center = SecondMoment.of(rows), rows.mean(axis=0) * centered
    second = (rows - center).T @ (rows - center) / 9
    joint = LinearProblem.from_moment(moment, 2, centered=centered)
    assert joint.n_rows == 9 - centered
    assert_allclose(joint.cross, second[2:, :2], atol=1e-14)
    own = LinearProblem.autoencoder(moment, centered=centered)
    assert own.n_rows == 9 - centered
    assert_allclose(own.cross, second, atol=1e-14)
    assert_allclose(own.inputs, second, atol=1e-14)
    assert own.energy == pytest.approx(np.trace(second))


def test_squares_of_a_matrix_that_leave_double_precision_are_refused():
    for size, words in ((1e160, "overflow.* Divide"), (1e-145, "underflow.* Multiply")):
        with pytest.raises(ValueError, match=words):
            LinearProblem.from_matrix(np.array([[size, 0.0]]))
    assert LinearProblem.from_matrix(np.zeros((1, 2))).energy == 0.0
    assert LinearProblem.from_matrix(np.array([[1e-139]])).energy == pytest.approx(1e-278)


@pytest.mark.parametrize("size", [0.1, 3.0])
@pytest.mark.parametrize("cross", [0.1, 3.0, 1e150])
def test_stationarity_is_the_relative_norm_of_the_gradient(size, cross):
    rng = np.random.default_rng(3)
    matrix = cross * (lambda A: A + A.T)(rng.standard_normal((3, 3)))
    objective = DropoutObjective(LinearProblem.from_matrix(matrix), 0.5)
    U, V = size * rng.standard_normal((2, 3, 2))
    norm = np.linalg.norm(matrix / cross) * cross
    on_left, on_right = objective.gradient(Weights(U, V))
    expected = np.hypot(np.linalg.norm(on_left / norm), np.linalg.norm(on_right / norm))
    expected /= 2 * np.sqrt(np.sum(U**2) + np.sum(V**2))
    assert float(objective.stationarity(Weights(U, V))) == pytest.approx(expected)
    tied = np.linalg.norm(objective.tied_gradient(U) / norm) / (4 * np.linalg.norm(U))
    assert float(objective.tied_stationarity(U)) == pytest.approx(tied)


def test_stationarity_without_data_or_weights():
    U = np.random.default_rng(4).standard_normal((3, 2))
    nothing = DropoutObjective(LinearProblem.from_matrix(np.zeros((3, 3))), 0.5)
    expected = np.linalg.norm(nothing.tied_gradient(U))
    assert float(nothing.tied_stationarity(U)) == pytest.approx(expected)
    some = DropoutObjective(LinearProblem.from_matrix(np.eye(3)), 0.5)
    assert float(some.tied_stationarity(0.0 * U)) == 0.0


def test_a_unit_is_kept_if_its_number_is_below_the_probability():
    # The numbers are in [0, 1): a number equal to the probability is not below it.
    rng = SimpleNamespace(random_sample=lambda shape: np.linspace(0.0, 0.75, *shape))
    assert draw_masks(rng, (4,), np.array(0.5)).tolist() == [1.0, 1.0, 0.0, 0.0]


def test_few_rows_and_their_moment_are_the_same_problem():
    rng = np.random.default_rng(3)
    root = rng.standard_normal((4, 7))
    second = root.T @ root
    found = LinearProblem.from_root(root, 5, 4.0)
    assert found.inputs is None
    assert_allclose(found.cross, second[5:, :5])
    assert_allclose(found.outputs, second[5:, 5:])
    assert found.energy == pytest.approx(np.trace(second[5:, 5:]))
    assert found.n_rows == 4.0
    assert not found.is_white
    given = LinearProblem(second[5:, :5], second[:5, :5], found.energy)
    for right in (rng.standard_normal((5, 3)), rng.standard_normal((2, 5, 3))):
        assert_allclose(found.through_inputs(right), given.through_inputs(right))
        assert_allclose(found.through_inputs(right), second[:5, :5] @ right)
