"""The problem of the verifier: units, white coordinates, error bounds, and the loss of the rows."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose

from lucidae.dropout import DropoutObjective, LinearProblem, Weights, reduction
from lucidae.dropout.figures import ReportedAttributes
from lucidae.dropout.reduction import Case, DataUnits, Moments, reduce_inputs
from lucidae.moments import SecondMoment

EPS = float(np.finfo(float).eps)


def rows_of(seed=0, n=30):
    """Draw correlated inputs of different scales and outputs that depend on them."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3)) @ rng.standard_normal((3, 3)) * [0.1, 1.0, 20.0]
    return X, X @ rng.standard_normal((3, 2)) + rng.standard_normal((n, 2))


def moments_of(X, Y, *, root=False):
    joint = np.hstack([X, Y]) / math.sqrt(len(X))
    second = joint.T @ joint
    m = X.shape[1]
    return Moments(
        second[m:, :m],
        second[:m, :m],
        float(np.trace(second[m:, m:])),
        np.linalg.qr(joint)[1] if root else None,
        second[m:, m:],
        float(len(X)),
    )


def test_units_are_the_nearest_powers_of_four():
    for size, expected in ((0.0, 1.0), (1.9, 1.0), (2.1, 4.0), (0.13, 0.25), (0.12, 0.0625)):
        assert reduction._power_of_four(size) == expected
    inputs = np.diag([0.1, 9.0, 1.0])
    data = Moments(np.ones((1, 3)), inputs, 100.0, None, None, None)
    assert DataUnits.of(data) == (4.0, 16.0)
    assert DataUnits.of(data._replace(inputs=None, energy=0.0)) == (1.0, 1.0)
    assert DataUnits.of(data._replace(inputs=1e-4 * inputs / 9)).inputs == 4.0**-3


@pytest.mark.parametrize("tied", [False, True])
def test_weights_in_units_give_the_outputs_in_units(tied):
    rng = np.random.default_rng(1)
    U, V = rng.standard_normal((2, 3, 2))
    V = U if tied else V
    units = DataUnits(4.0, 64.0)
    left, right = units.weights(U, V, tied=tied)
    assert_allclose(left @ right.T, U @ V.T * (4.0 / 64.0))
    assert_allclose(left, U / 4 if tied else U / 8)


def test_weights_that_would_overflow_are_refused():
    units, ones = DataUnits(1.0, 1.0), np.ones((1, 1))
    units.weights(1e70 * ones, ones, tied=False)
    for wrong in ((1.01e70, 1.0), (1.0, 1.01e70), (np.nan, 1.0)):
        with pytest.raises(ValueError, match="overflows double precision"):
            units.weights(wrong[0] * ones, wrong[1] * ones, tied=False)


def test_attributes_in_units_by_hand():
    given = ReportedAttributes(
        *(3.0, 2, 5.0, np.array([7.0])),
        coef=np.array([[9.0]]),
        output_bias=np.array([11.0]),
        output_bias_error=np.array([13.0]),
        mean_shift=np.array([15.0]),
        rows=(17.0, 19.0),
    )
    found = DataUnits(4.0, 16.0).reported(given)
    assert found.objective == 3.0 / 256
    assert (found.rank, found.threshold) == (2, 5.0 / 16)
    assert found.singular_values.tolist() == [7.0 / 16]
    assert found.coef.tolist() == [[9.0 / 4]]
    assert found.output_bias.tolist() == [11.0 / 16]
    assert found.output_bias_error.tolist() == [13.0 / 16]
    assert found.mean_shift.tolist() == [15.0 / 4]
    assert found.rows == (17.0 / 256, 19.0 / 256)
    assert DataUnits(4.0, 16.0).reported(given._replace(rows=None, coef=None)).rows is None


def test_moments_in_units_are_those_of_divided_rows():
    X, Y = rows_of()
    found = moments_of(X, Y, root=True).in_units(DataUnits(4.0, 16.0))
    expected = moments_of(X / 4, Y / 16, root=True)
    for name in ("cross", "inputs", "energy", "root", "outputs", "n_rows"):
        assert_allclose(getattr(found, name), getattr(expected, name), err_msg=name)
    assert Moments.of(LinearProblem.from_matrix(np.eye(2))).in_units(DataUnits(4.0, 2.0)).white
    assert moments_of(X, Y)._replace(rest=3.0).in_units(DataUnits(4.0, 16.0)).rest == 3.0 / 256


def test_deviations_come_from_the_moment_or_else_from_the_rows():
    root = np.array([[3.0, 1.0, 9.0], [4.0, 2.0, 9.0], [0.0, 2.0, 9.0]])
    data = Moments(np.ones((1, 2)), np.diag([4.0, 9.0]), 1.0, root, None, None)
    assert_allclose(data.deviations, [2.0, 3.0])
    assert_allclose(data._replace(inputs=None).deviations, [5.0, 3.0])
    assert_allclose(data._replace(inputs=None, root=None).deviations, [1.0, 1.0])
    assert_allclose(data._replace(inputs=np.diag([-1e-20, 4.0])).deviations, [0.0, 2.0])
    assert data._replace(inputs=None, root=None).white
    assert not data._replace(inputs=None).white


def test_the_part_of_the_outputs_outside_of_the_coordinates_is_explained_but_not_reduced():
    # E‖y‖² = 30 is the sum of ‖M‖² = 5, of the residual and of the rest, here 8.
    matrix = np.array([[2.0, 1.0]])
    found = reduce_inputs(Moments(matrix, None, 30.0, None, None, None, 8.0))
    assert (found.floor, found.rest) == (17.0, 8.0)
    root = np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0], [0.0, 0.0, 3.0]])
    data = Moments(matrix, None, 22.0, root, None, None, 8.0)
    found = reduce_inputs(data)
    assert_allclose(np.abs(found.matrix @ found.lower), matrix)
    assert (found.floor, found.rest) == (pytest.approx(9.0), 8.0)
    assert found.inconsistency == pytest.approx(0.0, abs=1e-15)
    wrong = reduce_inputs(data._replace(rest=19.0))
    assert wrong.inconsistency == pytest.approx(0.5)
    case = Case(
        units=None, data=data, reduced=found, left=None, right=None, inner=None, product=None,
        target=None, optimum=None, bound=None, strength=1.0, tied=False, white=True,
    )  # fmt: skip
    assert case.explainable == pytest.approx(13.0)


@pytest.mark.parametrize(("n", "m"), [(7, 3), (3, 3), (3, 7), (1, 5)])
def test_pivoted_factors_give_the_rows_back(n, m):
    rows = np.random.default_rng(n).standard_normal((n, m)) * np.geomspace(0.1, 3.0, m)
    basis, factor, pivots = reduction._pivoted(rows)
    rank = min(n, m)
    assert (basis.shape, factor.shape, pivots.shape) == ((n, rank), (rank, m), (rank,))
    assert_allclose(basis @ factor, rows, atol=1e-13)
    assert_allclose(basis.T @ basis, np.eye(rank), atol=1e-13)
    assert np.all(np.diff(pivots) <= 0)
    # The product of the pivots is the volume that the singular values span.
    assert np.prod(pivots) == pytest.approx(np.prod(np.linalg.svd(rows, compute_uv=False)))


@pytest.mark.parametrize(("error", "white"), [(0.0, True), (1e-8, True), (1.1e-8, False)])
def test_moments_are_white_up_to_their_tolerance(error, white):
    inputs = np.eye(2) + error * np.array([[0.0, -1.0], [-1.0, 0.0]])
    assert Moments(np.ones((1, 2)), inputs, 1.0, None, None, None).white is white


def test_figures_of_a_case_by_hand():
    data = Moments(np.ones((1, 2)), None, 0.5, None, None, None)
    bound = SimpleNamespace(singular_values=np.array([0.25, 0.125]))
    case = Case(
        units=None, data=data, reduced=reduce_inputs(data)._replace(matrix=np.array([[2.0, 1.0]])),
        left=np.ones((1, 4)), right=None, inner=None, product=None, target=np.ones((3, 2)),
        optimum=None, bound=bound, strength=1.0, tied=False, white=True,
    )  # fmt: skip
    assert (case.width, case.scale, case.explainable) == (4, 0.5, 5.0)
    assert case.uncertainty == pytest.approx(15 * EPS * 0.25, rel=1e-9, abs=0)
    blurred = case._replace(reduced=case.reduced._replace(blur=0.75, matrix=np.zeros((1, 2))))
    assert blurred.uncertainty == pytest.approx(0.75)
    assert blurred.explainable == 0.5
    empty = blurred._replace(data=data._replace(energy=0.0))
    assert (empty.scale, empty.explainable) == (1.0, 1.0)


def test_white_inputs_need_no_reduction():
    matrix = np.array([[1.0, 2.0], [0.0, 1.0]])
    found = reduce_inputs(Moments(matrix, None, 10.0, None, None, None))
    assert found.lower is None
    assert_allclose(found.matrix, matrix)
    assert found[2:5] == (4.0, 0.0, 0.0)
    assert (found.condition, found.dropped, found.inconsistency) == (1.0, 0, 0.0)
    assert found.doubts.shape == (0,)


def pivots_of(found, deviations):
    """Return the pivots of the standardised factor: the largest entries of its rows."""
    return np.abs(found.lower / deviations).max(axis=1)


@pytest.mark.parametrize("root", [False, True])
def test_reduced_inputs_are_white_and_their_bounds_follow_the_pivots(root):
    X, Y = rows_of()
    data = moments_of(X, Y, root=root)
    found = reduce_inputs(data)
    assert_allclose(found.lower.T @ found.lower, data.inputs, rtol=1e-9)
    assert_allclose(found.matrix @ found.lower, data.cross, rtol=1e-9)
    residual = Y - X @ np.linalg.lstsq(X, Y, rcond=None)[0]
    assert found.floor == pytest.approx(np.sum(residual**2) / len(X))
    assert found.dropped == 0
    deviations = np.sqrt(np.diag(data.inputs))
    standard = data.inputs / np.outer(deviations, deviations)
    assert found.condition == pytest.approx(np.linalg.cond(standard))
    # Errors η of the moment enter column j by η(‖mⱼ‖/(2pⱼ) + √E‖y‖²/√pⱼ) with the squared pivot pⱼ,
    # those of the rows by η√E‖y‖²/√pⱼ.
    noise, energy = (3 + 2 + 10) * EPS, math.sqrt(data.energy)
    lengths = np.linalg.norm(found.matrix, axis=0)
    pivots = pivots_of(found, deviations) ** 2
    wrong = noise * energy / np.sqrt(pivots)
    doubts = noise / np.sqrt(pivots)
    if not root:
        wrong += noise * lengths / (2 * pivots)
        doubts += noise / (2 * pivots)
    undecided = np.sum(2 * lengths * wrong + wrong**2 + noise * lengths**2)
    assert found.undecided == pytest.approx(undecided, rel=1e-9, abs=0)
    assert found.blur == pytest.approx(np.linalg.norm(wrong), rel=1e-9, abs=0)
    assert_allclose(found.doubts, doubts)
    # Outputs that are not correlated with the inputs leave the squares of the errors.
    joint = np.diag([2.0, 1.0, 3.0])
    apart = Moments(np.zeros((1, 2)), joint[:2, :2] ** 2, 9.0, joint if root else None, None, None)
    second = 2 * (13 * EPS * 3.0) ** 2
    assert reduce_inputs(apart).undecided == pytest.approx(second, rel=1e-9, abs=0)


@pytest.mark.parametrize("root", [False, True])
def test_one_input_that_varies_after_one_that_does_not(root):
    joint = np.array([[0.0, 2.0, 1.0], [0.0, 0.0, 1.0]])
    second = joint.T @ joint
    factor = joint if root else None
    data = Moments(second[2:, :2], second[:2, :2], second[2, 2], factor, None, None)
    found = reduce_inputs(data)
    assert_allclose(np.abs(found.lower), [[0.0, 2.0]])
    assert_allclose(found.matrix @ found.lower, [[0.0, 2.0]])
    assert (found.floor, found.dropped) == (pytest.approx(1.0), 0)


@pytest.mark.parametrize("root", [False, True])
def test_constant_and_dependent_inputs_are_dropped(root):
    X, Y = rows_of()
    X = np.column_stack([X, np.zeros(len(X)), X[:, 0] - X[:, 1]])
    data = moments_of(X, Y, root=root)
    found = reduce_inputs(data)
    assert found.matrix.shape == (2, 3)
    assert found.dropped == 1
    assert_allclose(found.lower.T @ found.lower, data.inputs, atol=1e-9)
    # Directions of the moment that were dropped might explain all of the residual.
    lost = 0.0 if root else found.floor
    assert found.floor > 0.1
    assert found.undecided == pytest.approx(lost, abs=1e-8)
    assert found.blur == pytest.approx(math.sqrt(lost), abs=1e-8)


@pytest.mark.parametrize(("factor", "rank"), [(0.9, 1), (1.1, 2)])
def test_a_pivot_at_rounding_level_counts_as_zero(factor, rank):
    # The second pivot of [[1, √(1 − p)], [√(1 − p), 1]] is p, here about 10 · 2 · ε.
    p = round(factor * 20) * EPS
    inputs = np.array([[1.0, 1.0 - p / 2], [1.0 - p / 2, 1.0]])
    data = Moments(np.array([[1.0, 1.0]]), inputs, 2.0, None, None, None)
    assert reduce_inputs(data).matrix.shape[1] == rank
    # In the rows, the pivots themselves are compared with that limit.
    root = np.array([[1.0, 1.0, 1.0], [0.0, p, 0.0], [0.0, 0.0, 1.0]])
    assert reduce_inputs(data._replace(root=root)).matrix.shape[1] == rank


def test_inputs_without_variance_leave_nothing():
    data = Moments(np.zeros((2, 2)), np.zeros((2, 2)), 3.0, None, None, None)
    for given in (data, data._replace(root=np.zeros((1, 4)))):
        found = reduce_inputs(given)
        assert found.matrix.shape == (2, 0)
        assert (found.condition, found.dropped) == (1.0, 0)
    assert reduce_inputs(data).floor == 3.0


def test_the_condition_of_a_triangle_by_hand():
    assert reduction._condition(np.diag([4.0, 0.5])) == pytest.approx(8.0)
    assert reduction._condition(np.zeros((0, 3))) == 1.0
    assert reduction._condition(np.zeros((1, 3))) == math.inf
    for columns in (2, 3, 4, 5, 9):
        wide = np.random.default_rng(columns).standard_normal((2, columns))
        assert reduction._condition(wide) == pytest.approx(np.linalg.cond(wide))


@pytest.mark.parametrize("energy", [4.0, 0.25])
def test_moments_that_contradict_their_rows_are_measured_in_deviations(energy):
    deviation = math.sqrt(energy)
    joint = np.diag([2.0, 8.0, deviation])
    data = Moments(np.zeros((1, 2)), np.diag([4.0, 64.0]), energy, joint, None, None)
    assert reduce_inputs(data).inconsistency == 0.0
    inputs = data.inputs + np.array([[0.0, 0.0], [-0.32, 0.0]])
    assert reduce_inputs(data._replace(inputs=inputs)).inconsistency == pytest.approx(0.02)
    cross = np.array([[0.0, -0.16 * deviation]])
    assert reduce_inputs(data._replace(cross=cross)).inconsistency == pytest.approx(0.02)
    changed = data._replace(energy=energy * 0.75)
    assert reduce_inputs(changed).inconsistency == pytest.approx(1 / 3)
    silent = data._replace(energy=0.0)
    assert reduce_inputs(silent).inconsistency == pytest.approx(energy)


def test_relative_distances_by_hand():
    assert reduction.relative_distance(np.array([3.0, 0.0]), np.array([0.0, 4.0])) == 1.25
    assert reduction.relative_distance(np.array([3.0]), np.array([0.0])) == 3.0
    assert reduction.relative_distance(np.ones(2), np.ones(3)) == math.inf


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_loss_of_the_rows_is_that_of_their_moments(monkeypatch, centered, weighted, sparse):
    monkeypatch.setattr(reduction, "ROWS", 7)
    monkeypatch.setattr(reduction, "SPARSE_ROWS", 7)
    rng = np.random.default_rng(3)
    X, Y = rows_of(3)
    X, Y = X + 3.0, Y - 2.0
    counts = rng.integers(1, 4, len(X)).astype(float) if weighted else None
    weights = Weights(rng.standard_normal((2, 4)), rng.standard_normal((3, 4)))
    weights.left[0, 0] = weights.right[1, 0] = X[4, 0] = 0.0
    moment = SecondMoment.of(np.hstack([X, Y]), counts)
    problem = LinearProblem.from_moment(moment, 3, centered=centered)
    given = scipy.sparse.csr_array(X) if sparse else X
    value, error = reduction.row_objective(given, Y, counts, weights, 0.7, centered)
    assert value == pytest.approx(float(DropoutObjective(problem, 0.7).value(weights)))
    # The bound: a hidden unit is wrong by ηhᵢ, hᵢ = Σⱼ|vⱼᵢ||xⱼ|, a residual by η(‖y‖ + Σ‖uᵢ‖hᵢ).
    shares = np.ones(len(X)) if counts is None else counts
    shares = shares / shares.sum()
    center = shares @ X if centered else 0.0, shares @ Y if centered else 0.0
    x, y = X - center[0], Y - center[1]
    hidden = x @ weights.right
    loss = np.sum(shares @ (y - hidden @ weights.left.T) ** 2)
    lengths = np.linalg.norm(weights.left, axis=0)
    reach = np.sqrt(shares @ x**2) @ np.abs(weights.right)
    noise = (2 + 3 + 4 + 10) * EPS
    residual = math.sqrt(np.sum(shares @ y**2)) + lengths @ reach
    bound = 2 * math.sqrt(loss) * residual + noise * residual**2 + value
    bound += 0.7 * np.sum(lengths**2 * (2 * np.sqrt(shares @ hidden**2) * reach + noise * reach**2))
    assert error == pytest.approx(noise * bound, rel=1e-9, abs=0)


def test_terms_of_second_order_in_the_bound_count_where_nothing_else_does():
    """Without residual and hidden values only the squares of the errors are left."""
    left, right = np.array([[2.0]]), np.array([[3.0]])
    value, error = reduction._with_error(0.0, 0.0, np.array([5.0]), np.zeros(1), left, right, 0.5)
    noise = 13 * EPS
    # The hidden unit is wrong by 15η, the residual by 30η.
    assert value == 0.0
    assert error == pytest.approx(
        noise * (noise * 30.0**2 + 0.5 * noise * 4.0 * 15.0**2), rel=1e-9, abs=0
    )
    nothing = reduction._with_error(0.0, 0.0, np.ones(1), np.zeros(1), left, 0 * right, 0.5)
    assert nothing == (0.0, 0.0)


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_the_bound_does_not_overflow_before_it_must(scale):
    left, right = np.array([[1.0]]), np.array([[scale]])
    sizes = np.array([scale**-0.75])
    _, error = reduction._with_error(0.0, 0.0, sizes, np.zeros(1), left, right, 0.0)
    # The hidden unit is wrong by η · scale^(−3/4) · scale.
    assert error == pytest.approx((13 * EPS) ** 2 * scale**0.5, rel=1e-9, abs=0)


def test_the_loss_of_one_row_by_hand():
    one, weights = np.ones((1, 1)), Weights(np.array([[2.0]]), np.array([[3.0]]))
    # The residual of x = 1, y = 4 is 4 − 2·3·1, and the penalty λ·2²·3².
    value, _ = reduction.row_objective(one, 4 * one, None, weights, 0.5, False)
    assert value == pytest.approx(4.0 + 0.5 * 36.0)
    value, _ = reduction.row_objective(one, 4 * one, None, weights, 0.5, True)
    assert value == 0.0


def moments(**given):
    fields = {"cross": np.ones((1, 2)), "inputs": np.eye(2), "energy": 1.0, "root": None}
    return reduction.Moments(**{**fields, "outputs": None, "n_rows": None, **given})


def test_all_moments_are_divided_by_the_units_of_the_data():
    data = moments(largest_values=np.array([48.0]), rest=512.0, energy=1024.0)
    found = data.in_units(reduction.DataUnits(4.0, 16.0))
    assert (found.largest_values[0], found.rest, found.energy) == (3.0, 2.0, 4.0)
    assert found.cross[0, 0] == 1.0 / 64.0
    assert found.inputs[0, 0] == 1.0 / 16.0


@pytest.mark.parametrize(("pivot", "rank"), [(2e-4, 2), (5e-5, 1)])
def test_a_moment_is_resolved_to_the_square_of_the_rows_resolution(pivot, rank):
    correlation = math.sqrt(1.0 - pivot)
    inputs = np.array([[1.0, correlation], [correlation, 1.0]])
    found = reduction.reduce_inputs(moments(inputs=inputs, energy=10.0, resolution=1e-2))
    assert found.matrix.shape[1] == rank


def test_what_unresolved_directions_explain_is_left_open():
    """Pivots 1, about 1e-3 and about 1e-6: a resolution of 1e-4 drops the last direction."""
    inward = np.array([[1.0, 1.0, 1.0], [0.0, 1e-3, 0.0], [0.0, 0.0, 1e-6]])
    outward = np.array([[2.0], [3.0], [0.5]])
    root = np.hstack([inward, outward])
    data = moments(
        cross=outward.T @ inward, inputs=inward.T @ inward, energy=13.25, root=root, resolution=1e-4
    )
    found, whole = (
        reduction.reduce_inputs(data),
        reduction.reduce_inputs(data._replace(resolution=0.0)),
    )
    assert (found.matrix.shape[1], whole.matrix.shape[1]) == (2, 3)
    assert float((found.matrix**2).sum()) == pytest.approx(13.0, rel=1e-9)
    assert found.floor == pytest.approx(0.25, rel=1e-9)
    # The dropped direction explains 0.5² of the outputs; rounding errors are much smaller.
    assert found.undecided == pytest.approx(0.25, rel=1e-6)
    assert found.blur == pytest.approx(0.5, rel=1e-6)
    assert whole.undecided < 1e-6
