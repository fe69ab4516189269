"""The expected dropout loss is what dropout minimises on average, and its derivatives are right."""

import numpy as np
import pytest
from hypothesis import given
from numpy.testing import assert_allclose

from dropout.problems import (
    dense_hessian,
    pack,
    problems,
    random_weights,
    sampled_loss,
    seeds,
    unpack,
)
from lucidae import SecondMoment, metrics
from lucidae.dropout import DropoutObjective, GaussianSource, LinearProblem, Weights, descend
from lucidae.dropout.problem import (
    draw_masks,
    paper_direction,
    sampled_gradient,
    varying,
)


@pytest.mark.parametrize("correlated", [False, True], ids=["white", "correlated"])
@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.8])
def test_expected_loss_is_the_mean_of_the_sampled_loss(correlated, dropout):
    rng = np.random.RandomState(0)
    X = rng.standard_normal((40, 5)) @ (rng.standard_normal((5, 5)) if correlated else np.eye(5))
    Y = rng.standard_normal((40, 3))
    if not correlated:
        X = np.linalg.qr(X)[0] * np.sqrt(40)
    joint = SecondMoment.of(np.hstack([X, Y]))
    problem = LinearProblem.from_moment(joint, 5, centered=False)
    weights = random_weights(problem, 4, rng)
    keep = np.array(1.0 - dropout)
    masks = draw_masks(rng, (4000, 40, 4), keep)
    losses = sampled_loss(weights, X, Y, masks, keep)
    expected = DropoutObjective(problem, dropout / (1 - dropout)).value(weights)
    error = losses.std() / np.sqrt(len(losses))
    assert abs(losses.mean() - expected) < 4 * error
    assert error < 0.05 * expected  # the comparison means something


def test_white_inputs_give_the_paper_objective():
    rng = np.random.default_rng(1)
    M, U, V = (rng.standard_normal(shape) for shape in [(4, 3), (4, 2), (3, 2)])
    objective = DropoutObjective(LinearProblem.from_matrix(M), 0.7)
    assert_allclose(objective.loss(Weights(U, V)), np.sum((M - U @ V.T) ** 2))
    assert_allclose(objective.regularizer(Weights(U, V)), 0.7 * metrics.path_norm(U, V) ** 2)
    assert_allclose(objective.importance(Weights(U, V)), metrics.importance_scores(U, V))


@given(problems(), seeds())
def test_gradient_matches_finite_differences(drawn, seed):
    problem, strength, width = drawn
    rng = np.random.default_rng(seed)
    objective = DropoutObjective(problem, strength)
    point = pack(random_weights(problem, width, rng))
    way = rng.standard_normal(point.size)
    step = 1e-5

    def value(t):
        return float(objective.value(unpack(point + t * way, problem, width)))

    slope = pack(objective.gradient(unpack(point, problem, width))) @ way
    numeric = (8 * (value(step) - value(-step)) - value(2 * step) + value(-2 * step)) / (12 * step)
    scale = abs(value(0.0)) + abs(slope)
    assert abs(slope - numeric) <= 1e-7 * scale


@given(problems(), seeds())
def test_hessian_product_is_the_derivative_of_the_gradient(drawn, seed):
    problem, strength, width = drawn
    rng = np.random.default_rng(seed)
    objective = DropoutObjective(problem, strength)
    point, way = pack(random_weights(problem, width, rng)), None
    way = rng.standard_normal(point.size)

    def gradient(t):
        return pack(objective.gradient(unpack(point + t * way, problem, width)))

    product = pack(
        objective.hessian_product(unpack(point, problem, width), unpack(way, problem, width))
    )
    step = 1e-5
    numeric = (gradient(step) - gradient(-step)) / (2 * step)
    assert_allclose(product, numeric, atol=1e-6 * (1 + np.abs(product).max()))


@given(seeds())
def test_tied_derivatives_match_the_papers_formula(seed):
    rng = np.random.default_rng(seed)
    square = rng.standard_normal((4, 4))
    M, U, strength = square + square.T, rng.standard_normal((4, 3)), 0.6
    objective = DropoutObjective(LinearProblem.from_matrix(M), strength)
    paper = 4 * (U @ U.T - M) @ U + 4 * strength * U * np.sum(U**2, axis=0)
    assert_allclose(objective.tied_gradient(U), paper, atol=1e-10)
    hessian = dense_hessian(
        lambda flat: objective.tied_hessian_product(U, flat.reshape(U.shape)).ravel(), U.size
    )
    assert_allclose(hessian, hessian.T, atol=1e-10)
    step = 1e-5 * rng.standard_normal(U.shape)
    change = objective.tied_gradient(U + step) - objective.tied_gradient(U - step)
    assert_allclose(hessian @ step.ravel() * 2, change.ravel(), atol=1e-9)


@given(seeds())
def test_sampled_gradient_matches_finite_differences_and_the_papers_step(seed):
    rng = np.random.RandomState(seed)
    X, Y = rng.standard_normal((6, 4)), rng.standard_normal((6, 3))
    weights = Weights(rng.standard_normal((3, 2)), rng.standard_normal((4, 2)))
    keep = np.array(0.6)
    masks = draw_masks(rng, (6, 2), keep)
    slope = sampled_gradient(weights, X, Y, masks, keep)
    way = Weights(rng.standard_normal((3, 2)), rng.standard_normal((4, 2)))

    def loss(t):
        moved = Weights(weights.left + t * way.left, weights.right + t * way.right)
        return sampled_loss(moved, X, Y, masks, keep)

    numeric = (loss(1e-5) - loss(-1e-5)) / 2e-5
    exact = np.sum(slope.left * way.left) + np.sum(slope.right * way.right)
    assert_allclose(exact, numeric, rtol=1e-6, atol=1e-6)
    paper = paper_direction(weights, X, Y, masks, keep)
    naive_left, naive_right = np.zeros((3, 2)), np.zeros((4, 2))
    for x, y, b in zip(X, Y, masks, strict=True):  # Algorithm 1, line 4, example by example
        residual = weights.left @ (b * (weights.right.T @ x)) / keep - y
        naive_left += np.outer(residual, (x @ weights.right) * b) / 6
        naive_right += np.outer(x, (residual @ weights.left) * b) / 6
    assert_allclose(paper.left, naive_left, atol=1e-12)
    assert_allclose(paper.right, naive_right, atol=1e-12)


def test_the_papers_step_is_the_exact_gradient_at_another_rate():
    M, keep, rate = np.random.default_rng(0).standard_normal((3, 4)), 0.6, 0.01
    settings = {"limit": 50, "batch_size": 1, "tolerance": 0.0}

    def run(direction, learning_rate):
        rng, settings["learning_rate"] = np.random.RandomState(3), learning_rate
        source = GaussianSource(M)
        return descend(source, M, [1 - keep], 2, rng=rng, direction=direction, **settings).value

    exact, paper = run(sampled_gradient, rate), run(paper_direction, 2 * rate / keep)
    assert_allclose(exact.left, paper.left, rtol=1e-10)


def test_rescaling_units_changes_nothing():
    rng = np.random.default_rng(3)
    problem = LinearProblem.from_matrix(rng.standard_normal((4, 5)))
    objective = DropoutObjective(problem, 0.4)
    weights = random_weights(problem, 3, rng)
    scale = np.array([0.1, 1.0, 20.0])
    assert_allclose(
        objective.value(Weights(weights.left * scale, weights.right / scale)),
        objective.value(weights),
    )


def test_a_stack_of_networks_equals_its_members(xp):
    rng = np.random.default_rng(4)
    matrix = xp.asarray(rng.standard_normal((3, 4)))
    stack = Weights(
        xp.asarray(rng.standard_normal((5, 3, 2))), xp.asarray(rng.standard_normal((5, 4, 2)))
    )
    strengths = xp.asarray(np.linspace(0.0, 1.0, 5))
    together = DropoutObjective(LinearProblem.from_matrix(matrix), strengths)
    values, slopes = together.value(stack), together.gradient(stack)
    for index in range(5):
        one = DropoutObjective(LinearProblem.from_matrix(matrix), float(strengths[index]))
        member = Weights(stack.left[index, ...], stack.right[index, ...])
        assert_allclose(float(values[index]), float(one.value(member)))
        assert_allclose(
            np.asarray(slopes.left[index, ...]), np.asarray(one.gradient(member).left), atol=1e-12
        )


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


def test_the_resolution_of_single_precision_exceeds_its_rounding_errors():
    """The smallest singular values of standardised low-rank inputs, rounded to float32."""
    precision = float(np.finfo(np.float32).eps)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        n, m = rng.integers(20, 200), rng.integers(2, 15)
        X = rng.standard_normal((n, 1)) @ rng.standard_normal((1, m)) + rng.uniform(-5, 5, m)
        rounded = X.astype(np.float32).astype(np.float64)
        mean, deviations = rounded.mean(axis=0), rounded.std(axis=0)
        noise = np.linalg.svd((rounded - mean) / deviations / np.sqrt(n))[1][1]
        moment = SecondMoment.of(rounded)
        level = LinearProblem.from_moment(moment, m, precision=precision).resolution
        assert noise < level < 1e3 * noise
        assert LinearProblem.from_moment(moment, m, precision=2.0**-52).resolution == 0.0


def test_a_column_varies_by_more_than_the_rounding_error_of_its_mean():
    eps = 2.0**-52
    deviations = np.array([0.0, 3.9 * eps, 4.1 * eps, 0.0, 1e-150])
    mean = np.array([1.0, 1.0, 1.0, 0.0, 0.0])
    assert varying(deviations**2, mean).tolist() == [0.0, 0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize("value", [1e300, -1e300])
def test_huge_constant_columns_do_not_overflow_silently(value):
    """Warnings are errors: the squares of these numbers are not computed."""
    mean = np.array([value, 0.0, 1.0])
    found = varying(np.array([0.0, 0.0, 1.0]), mean)
    np.testing.assert_array_equal(found, [0.0, 0.0, 1.0])


def test_equal_importance_alone_does_not_make_the_penalty_that_of_the_nuclear_norm():
    """Proof of Mianjy et al. 2018, Theorem 3.4: it is so at an optimum, not for every such pair."""
    U, V = np.array([[1.0, 1.0]]), np.array([[1.0, -1.0]])
    assert np.ptp(metrics.importance_scores(U, V)) == 0
    objective = DropoutObjective(LinearProblem.from_matrix(np.ones((1, 1))), 0.5)
    assert float(objective.regularizer(Weights(U, V))) == pytest.approx(1.0)
    assert np.linalg.norm(U @ V.T, "nuc") == 0
