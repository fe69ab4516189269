"""Every threshold of the dropout family, from both sides.

Each figure is placed a factor of three above and below its threshold, so that a threshold that is
loosened or tightened tenfold changes a verdict.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq

from lucidae.dropout import DropoutObjective, LinearProblem, Weights, certify_weights, solve
from lucidae.dropout.certificate import claims
from lucidae.dropout.differences import DENSE, MOST_WEIGHTS
from lucidae.dropout.estimators.network import SOLVERS
from lucidae.dropout.figures import ReportedAttributes
from lucidae.dropout.landscape import classify, is_equalized
from lucidae.dropout.moments import input_range, joint_moment, row_problem, whiten
from lucidae.dropout.solvers import _faint
from lucidae.dropout.theory import breakpoints, optimal_rank, optimal_value, rank_tolerance
from lucidae.dropout.verifier import measure

EPSILON = np.finfo(float).eps
M = np.diag([3.0, 2.0, 1.0])
STRENGTH = 0.25
BEST = solve(LinearProblem.from_matrix(M), STRENGTH, 2)


def scaled(amount):
    return Weights((1 + amount) * BEST.weights.left, BEST.weights.right)


def turned(angle):
    """Rotate both layers, which keeps the product and makes the units unequal."""
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return Weights(BEST.weights.left @ turn, BEST.weights.right @ turn)


def claim_at(family, name, target, **settings):
    """Return the claim at the member of a family of weights whose figure is `target`."""

    def judged(logarithm):
        weights = family(math.exp(logarithm))
        return certify_weights(*weights, matrix=M, dropout=0.2, **settings)[name]

    root = brentq(lambda x: math.log(judged(x).value / target), math.log(1e-7), math.log(0.5))
    found = judged(root)
    assert found.value == pytest.approx(target, rel=1e-3)
    return found


@pytest.mark.parametrize("tolerance", [1e-6, 1e-4])
@pytest.mark.parametrize(
    ("family", "name", "power"),
    [
        (scaled, "gap", 1.0),
        (scaled, "subgradient", 0.5),
        (scaled, "product", 0.5),
        (scaled, "stationarity", 0.5),
        (turned, "equalized", 1.0),
        (turned, "path_norm", 1.0),
    ],
)
def test_figures_three_times_above_fail_and_below_hold(family, name, power, tolerance):
    level = tolerance**power
    assert claim_at(family, name, 3 * level, tolerance=tolerance).holds is False
    assert claim_at(family, name, level / 3, tolerance=tolerance).holds is True


@pytest.mark.parametrize(("depth", "holds"), [(3e-3, False), (3e-4, True)])
def test_curvature(depth, holds):
    # One unit at (s₁, 1) with r = 2 and λ = 0: the direction of s₂ has the curvature −2 s₂.
    second = depth / 2
    matrix = np.diag([1.0, second])
    unit = np.array([[1.0, 0.0], [0.0, 0.0]])
    claim = certify_weights(unit, unit, matrix=matrix, dropout=0.0)["curvature"]
    assert claim.value == pytest.approx(-depth, rel=1e-3)
    assert claim.holds is holds


@pytest.mark.parametrize(("second", "holds"), [(4e-3, False), (2e-3, None), (2.5e-4, True)])
def test_rank(second, holds):
    unit = np.array([[1.0, 0.0], [0.0, 0.0]])
    claim = certify_weights(unit, unit, matrix=np.diag([1.0, second]), dropout=0.0)["rank"]
    assert claim.holds is holds


def figures_of(weights=BEST.weights, matrix=M, **settings):
    return measure(LinearProblem.from_matrix(matrix), weights, STRENGTH, **settings)


def judged(figures, name, tolerance=1e-6):
    return next(claim for claim in claims(figures, tolerance) if claim.name == name)


@pytest.mark.parametrize(
    "change",
    [
        lambda best, d: best._replace(singular_values=best.singular_values * (1 + d)),
        lambda best, d: best._replace(threshold=best.threshold + 3 * d),
        lambda best, d: best._replace(objective=best.objective + 14 * d),
        lambda best, d: best._replace(coef=(1 + d) * BEST.weights.left @ BEST.weights.right.T),
        lambda best, d: best._replace(settings=((0.2 * (1 + d), 0.2),)),
        lambda best, d: best._replace(rows=(best.objective + 14 * d, 0.0)),
    ],
)
def test_attributes(change):
    value = float(DropoutObjective(LinearProblem.from_matrix(M), STRENGTH).value(BEST.weights))
    exact = ReportedAttributes(value, BEST.rank, BEST.threshold, BEST.singular_values)
    assert judged(figures_of(reported=exact), "attributes").holds
    for amount, holds in ((3e-6, False), (3e-7, True)):
        claim = judged(figures_of(reported=change(exact, amount)), "attributes")
        assert claim.value == pytest.approx(amount, rel=1e-3)
        assert claim.holds is holds
    for rank in (BEST.rank - 1, BEST.rank + 1):
        assert judged(figures_of(reported=exact._replace(rank=rank)), "attributes").holds is False


def collinear(spread=1e-5):
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((50, 4))
    X = Z[:, :1] + spread * Z
    return X, X @ rng.standard_normal((4, 3)) + rng.standard_normal((50, 3))


@pytest.mark.parametrize(("shift", "holds"), [(1.5e-9, False), (1.5e-10, True)])
def test_factorised_rows_agree_with_the_moment(shift, holds):
    X, Y = collinear()
    problem = row_problem(X, Y, None, joint_moment(X, Y), centered=True)
    weights = solve(problem, STRENGTH, 2).weights
    wrong = replace(problem, root=problem.root * (1 + shift))
    assert judged(measure(wrong, weights, STRENGTH), "conditioning").holds is holds


def test_a_gap_below_minus_the_tolerance_fails():
    figures = figures_of()
    for shift, holds in ((-3e-6, False), (-3e-7, True), (3e-7, True), (3e-6, False)):
        moved = replace(figures, excess=figures.excess + shift * figures.explainable)
        assert judged(moved, "gap").holds is holds
        assert judged(moved, "gap").value == pytest.approx(shift, rel=1e-3)


def test_a_figure_within_its_error_has_no_verdict():
    figures = figures_of()
    assert judged(replace(figures, gap_error=3e-6), "gap").holds is None
    assert judged(replace(figures, gap_error=3e-6), "conditioning").holds is None
    assert judged(replace(figures, gap_error=3e-7), "conditioning").holds is True
    assert judged(replace(figures, gap_error=3e-6), "equalized").holds is None
    near = replace(figures, excess=1.1e-6 * figures.explainable, gap_error=3e-7)
    assert judged(near, "gap").holds is None
    assert "float64" in judged(near, "gap").advice


def test_the_curvature_of_a_point_that_is_not_quite_critical_is_uncertain():
    figures = replace(figures_of(), curvature=-1.3e-3)
    assert judged(replace(figures, stationarity=2.5e-5), "curvature").holds is False
    assert judged(replace(figures, stationarity=2.5e-4), "curvature").holds is None


@pytest.mark.parametrize(("tol", "gap"), [(1e-9, 1e-6), (7e-3, 7e-3), (0.06, 0.02), (10.0, 0.02)])
def test_sgd_is_allowed_a_gap_of_tol_within_bounds(tol, gap):
    assert SOLVERS["sgd"].allowed_gap(tol) == gap
    assert SOLVERS["exact"].allowed_gap(tol) == 1e-6


@pytest.mark.parametrize(("condition", "factorised"), [(3e6, True), (3e5, False)])
def test_rows_are_factorised_where_their_moment_is_ill_conditioned(condition, factorised):
    base = np.linalg.qr(np.random.default_rng(0).standard_normal((30, 4)))[0]
    base = np.linalg.qr(base - base.mean(0))[0]
    X = base * [1.0, 1.0, 0.5, condition**-0.5]
    problem = row_problem(X, X[:, :1], None, joint_moment(X, X[:, :1]), centered=True)
    assert (problem.root is not None) is factorised


@pytest.mark.parametrize(("off", "white"), [(3e-8, False), (3e-9, True)])
def test_inputs_are_white_up_to_a_tolerance(off, white):
    inputs = np.eye(3)
    inputs[0, 1] = inputs[1, 0] = off
    problem = LinearProblem(M, inputs, 14.0)
    assert problem.is_white is white
    assert measure(problem, BEST.weights, STRENGTH).white is white


@pytest.mark.parametrize(("factor", "count"), [(3.0, 2), (1 / 3, 1)])
def test_the_range_of_the_inputs_ends_at_the_level_of_rounding(factor, count):
    level = 10 * 2 * EPSILON
    assert len(input_range(np.diag([1.0, factor * level]))[0]) == count
    # Of standardised inputs the verifier counts pivots, 1 − c² for the correlation c.
    correlation = math.sqrt(1 - factor * level)
    inputs = np.array([[1.0, correlation], [correlation, 1.0]])
    problem = LinearProblem(np.ones((1, 2)), inputs, 2.0)
    weights = Weights(np.ones((1, 1)), np.ones((2, 1)))
    assert measure(problem, weights, STRENGTH).dropped == 2 - count


@pytest.mark.parametrize(("factor", "count"), [(3.0, 2), (1 / 3, 1)])
def test_the_range_of_factorised_rows_ends_at_the_level_of_rounding(factor, count):
    level = 10 * 2 * EPSILON
    root = np.array([[1.0, 1.0, 0.5], [0.0, factor * level, 0.5], [0.0, 0.0, 1.0]])
    second = root.T @ root
    problem = replace(LinearProblem.from_second(second, 2), root=root)
    weights = Weights(np.ones((1, 1)), np.ones((2, 1)))
    assert measure(problem, weights, STRENGTH).dropped == 2 - count
    # The singular values of [1 1; 0 δ] are about √2 and δ/√2, with the ratio δ/2.
    root[1, 1] *= 2
    assert whiten(replace(problem, root=root)).matrix.shape[1] == count


@pytest.mark.parametrize(("factor", "rank"), [(3.0, 2), (1 / 3, 1)])
def test_singular_values_at_the_level_of_rounding_count_as_zero(factor, rank):
    values = np.array([1.0, 10 * EPSILON * factor])
    assert rank_tolerance(values) == pytest.approx(10 * EPSILON)
    assert optimal_rank(values, 0.0, 2) == rank
    assert (breakpoints(values, 2) > 0).sum() == rank


def test_the_minimum_counts_singular_values_that_were_not_computed():
    values = np.array([3.0, 2.0, 1.0, 0.5])
    total = float((values**2).sum())
    expected = optimal_value(values, 0.5, 2)
    assert optimal_value(values[:2], 0.5, 2, total) == pytest.approx(expected, rel=1e-12)
    assert optimal_value(values[:3], 0.5, 2, total) == pytest.approx(expected, rel=1e-12)
    assert optimal_value(values[:2], 0.5, 2) == pytest.approx(expected - 1.25, rel=1e-12)


@pytest.mark.parametrize(("smallest", "faint"), [(3e-3, False), (3e-4, True)])
def test_the_gram_matrix_serves_singular_values_that_are_not_faint(smallest, faint):
    assert _faint(np.array([1.0, smallest]), 0.0, 2) is faint


@pytest.mark.parametrize(("spread", "equal"), [(3e-6, False), (3e-7, True)])
def test_columns_are_equalized_up_to_a_tolerance(spread, equal):
    assert is_equalized(np.diag([1.0, math.sqrt(1 + spread)])) is equal


@pytest.mark.parametrize(("amount", "kind"), [(3e-6, "not critical"), (3e-7, "global minimum")])
def test_a_point_is_the_global_minimum_up_to_a_gap(amount, kind):
    factor = np.sqrt(np.diag([3.0, 2.0, 1.0]))

    def gap(step):
        return classify(factor * (1 + step), M, 0.0).gap / 14 / amount - 1

    step = brentq(gap, 1e-6, 0.1)
    assert classify(factor * (1 + step), M, 0.0).kind == kind


def test_the_curvature_is_always_measured_on_small_networks():
    for size, measured in ((10, True), (11, False)):
        # 2 · size · 20 weights: at most DENSE, or more.
        matrix = np.diag(np.arange(1.0, size + 1))
        weights = solve(LinearProblem.from_matrix(matrix), STRENGTH, 20).weights
        figures = measure(LinearProblem.from_matrix(matrix), weights, STRENGTH)
        assert (2 * size * 20 <= DENSE) is measured
        assert (figures.curvature is not None) is measured
    saddle = Weights(np.zeros((11, 20)), np.zeros((11, 20)))
    lowest = measure(LinearProblem.from_matrix(matrix), saddle, STRENGTH).curvature
    assert lowest == pytest.approx(-2 * 11 / np.linalg.norm(matrix), rel=1e-3)
    assert MOST_WEIGHTS == 20_000


@pytest.mark.parametrize(("difference", "unique"), [(3e-9, True), (3e-10, False)])
def test_the_optimal_product_is_unique_unless_singular_values_tie(difference, unique):
    matrix = np.diag([2.0, 1.0, 1.0 - difference])
    assert solve(LinearProblem.from_matrix(matrix), 0.1, 2).unique is unique


@pytest.mark.parametrize(("closeness", "measured"), [(9e-11, True), (1e-11, False)])
def test_weights_outside_the_range_are_noticed_where_the_range_is_clear(closeness, measured):
    # Features (x₁, x₂, x₁): the range ends at 1 − c², a null direction is (1, 0, −1).
    c = math.sqrt(1 - closeness)
    inputs = np.array([[1.0, c, 1.0], [c, 1.0, c], [1.0, c, 1.0]])
    problem = LinearProblem(np.array([[1.0, c, 1.0]]), inputs, 1.0)
    weights = Weights(np.ones((1, 1)), np.array([[0.5], [0.0], [-0.3]]))
    plain = measure(problem, weights, STRENGTH)
    found = plain.evidence
    exact = ReportedAttributes(
        plain.value, found["rank"], found["threshold"], found["singular_values"][:1]
    )
    judged_attributes = measure(problem, weights, STRENGTH, reported=exact).attributes
    assert (judged_attributes > 0.1) is measured


def test_the_remedy_for_lost_digits_is_centring_where_the_outputs_are_mostly_unexplained():
    figures = replace(figures_of(), gap_error=3e-6)
    for factor, centring in ((0.9e6, False), (1.1e6, True)):
        lost = replace(figures, energy=factor * figures.explainable)
        assert ("fit_intercept=True" in judged(lost, "conditioning").advice) is centring
