"""Every critical point of the tied problem is a global minimum or a strict saddle, for every λ."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from dropout.problems import dense_hessian, pack, seeds, symmetric, unpack
from lucidae.dropout import (
    DropoutObjective,
    LinearProblem,
    Weights,
    classify,
    equalized_critical_points,
    scalar_surface,
    smallest_curvature,
    solve_tied,
)


def tied_objective(M, strength):
    return DropoutObjective(LinearProblem.from_matrix(M), strength)


def tied_hessian(objective, U):
    return dense_hessian(
        lambda flat: objective.tied_hessian_product(U, flat.reshape(U.shape)).ravel(), U.size
    )


@st.composite
def tied_problems(draw, size=4):
    rng = np.random.default_rng(draw(seeds()))
    M = symmetric(rng, size, shift=draw(st.sampled_from([0.0, 1.0])))
    return M, draw(st.sampled_from([0.01, 0.3, 1.0, 8.0])), draw(st.integers(1, 5)), rng


@settings(max_examples=60)
@given(tied_problems())
def test_equalized_critical_points_have_the_stated_value_and_index(drawn):
    M, strength, width, _ = drawn
    objective = tied_objective(M, strength)
    points = equalized_critical_points(M, strength, width)
    best = solve_tied(M, strength, width).value
    for point in points:
        gradient = objective.tied_gradient(point.factor)
        assert np.abs(gradient).max() < 1e-9
        assert float(objective.tied_value(point.factor)) == pytest.approx(point.value, rel=1e-9)
        eigenvalues = np.linalg.eigvalsh(tied_hessian(objective, point.factor))
        assert np.sum(eigenvalues < -1e-8) == point.index
        # The only one without negative curvature is the global minimum.
        assert (point.index == 0) == (point.value <= best + 1e-9)
    assert points[0].value == pytest.approx(best, rel=1e-9)


@settings(max_examples=60)
@given(tied_problems())
def test_strict_saddles_are_confirmed_by_the_dense_hessian(drawn):
    M, strength, width, _ = drawn
    objective = tied_objective(M, strength)
    for point in equalized_critical_points(M, strength, width):
        verdict = classify(point.factor, M, strength)
        lowest = np.linalg.eigvalsh(tied_hessian(objective, point.factor))[0]
        if point.index == 0:
            assert verdict.kind == "global minimum"
            assert not verdict.direction.any()
            continue
        assert verdict.kind == "strict saddle: equalized"
        assert verdict.curvature == pytest.approx(lowest, rel=1e-6)  # no direction has less
        assert np.linalg.norm(verdict.direction) == pytest.approx(1.0)
        step = 1e-3 * verdict.direction
        value = objective.tied_value(point.factor)
        assert objective.tied_value(point.factor + step) < value
        assert objective.tied_value(point.factor - step) < value


@given(seeds(), st.sampled_from([0.1, 1.0, 5.0]))
def test_unequalized_critical_points_are_strict_saddles(seed, strength):
    # Columns along different eigenvectors, each shrunk on its own: critical, of unequal norms.
    rng = np.random.default_rng(seed)
    eigenvalues = np.array([3.0, 2.0, 1.2, 0.5]) + rng.uniform(-0.2, 0.2, 4)
    Q, _ = np.linalg.qr(rng.standard_normal((4, 4)))
    M = (Q * eigenvalues) @ Q.T
    U = Q[:, :2] * np.sqrt(eigenvalues[:2] / (1 + strength))
    objective = tied_objective(M, strength)
    assert np.abs(objective.tied_gradient(U)).max() < 1e-10
    verdict = classify(U, M, strength)
    lengths = np.sum(U**2, axis=0)
    assert verdict.kind == "strict saddle: not equalized"
    rotation = np.column_stack([U[:, 1], -U[:, 0]])
    product = objective.tied_hessian_product(U, rotation)
    along = np.sum(rotation * product)
    assert along == pytest.approx(-4 * strength * (lengths[0] - lengths[1]) ** 2, abs=1e-9)
    lowest = np.linalg.eigvalsh(tied_hessian(objective, U))[0]
    assert lowest - 1e-9 <= verdict.curvature < 0


@settings(max_examples=60)
@given(tied_problems())
def test_every_local_minimum_is_global_for_every_strength(drawn):
    """Stronger than Theorem 4.3: descent from any start ends at a global minimum."""
    M, strength, width, rng = drawn
    objective = tied_objective(M, strength)

    def both(flat):
        U = flat.reshape(4, width)
        return float(objective.tied_value(U)), objective.tied_gradient(U).ravel()

    start = rng.standard_normal(4 * width)
    options = {"maxiter": 4000, "maxfun": 8000, "ftol": 0.0, "gtol": 1e-8}
    ended = minimize(both, start, jac=True, method="L-BFGS-B", options=options)
    verdict = classify(ended.x.reshape(4, width), M, strength, tolerance=1e-5)
    assert verdict.kind == "global minimum", verdict


@given(seeds(), st.sampled_from([0.1, 1.0, 8.0]), st.integers(1, 5))
def test_critical_points_of_a_positive_target_lie_below_it(seed, strength, width):
    """Mianjy et al. 2018, Lemma D.1, which needs M ⪰ 0 for directions outside of the range of U."""
    square = np.random.default_rng(seed).standard_normal((4, 4))
    M = square @ square.T
    for point in equalized_critical_points(M, strength, width):
        assert np.linalg.eigvalsh(M - point.factor @ point.factor.T)[0] > -1e-9
    M = np.diag([2.0, -1.0])
    point = equalized_critical_points(M, strength, width)[0]
    assert np.linalg.eigvalsh(M - point.factor @ point.factor.T)[0] == pytest.approx(-1.0)


def test_the_papers_condition_is_not_needed():
    # λ = 5 is far above the bound of Theorem 4.3, and the saddle that the theorem leaves open,
    # the leading eigenvector alone although the optimum has two, still has negative curvature.
    M, strength, width = np.diag([3.0, 2.7, 0.2]), 5.0, 3
    assert strength > width * 0.2 / (2.8 + 2.5)
    points = {p.eigenvectors: p for p in equalized_critical_points(M, strength, width)}
    assert points[(0, 1)].index == 0
    saddle = points[(0,)]
    expected = -4 * (2.7 - strength * 3.0 / (width + strength))
    verdict = classify(saddle.factor, M, strength)
    assert verdict.curvature == pytest.approx(expected)


def test_points_that_are_not_critical_get_the_negative_gradient():
    M = np.diag([2.0, 1.0])
    U = np.array([[1.0, 0.2], [0.3, 0.5]])
    verdict = classify(U, M, 0.5)
    assert verdict.kind == "not critical"
    objective = tied_objective(M, 0.5)
    assert objective.tied_value(U + 1e-4 * verdict.direction) < objective.tied_value(U)


def test_without_dropout_columns_may_be_unequal():
    M = np.diag([3.0, 1.0])
    assert classify(np.diag([3.0, 1.0]) ** 0.5, M, 0.0).kind == "global minimum"
    assert classify(np.array([[0.0], [1.0]]), M, 0.0).kind == "strict saddle: equalized"


def test_negative_targets_have_zero_as_their_minimum():
    assert classify(np.zeros((2, 3)), -np.eye(2), 0.5).kind == "global minimum"
    assert len(equalized_critical_points(-np.eye(2), 0.5, 3)) == 1


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("size", [4, 20])
def test_smallest_curvature_equals_the_dense_hessian(tied, size):
    rng = np.random.default_rng(0)
    M = symmetric(rng, size)
    objective = DropoutObjective(LinearProblem.from_matrix(M), 0.5)
    width = 3 if size == 4 else 9
    U = rng.standard_normal((size, width))
    weights = Weights(U, U if tied else rng.standard_normal((size, width)))
    if tied:
        hessian = tied_hessian(objective, U)
    else:
        hessian = dense_hessian(
            lambda flat: pack(
                objective.hessian_product(weights, unpack(flat, objective.problem, width))
            ),
            2 * U.size,
        )
    curvature, direction = smallest_curvature(objective, weights, tied=tied)
    lowest = np.linalg.eigvalsh(hessian)[0]
    assert curvature == pytest.approx(lowest, rel=1e-3)
    flat = direction.left.ravel() if tied else pack(direction)
    assert flat @ hessian @ flat == pytest.approx(lowest, rel=1e-3)


def test_surface_of_the_papers_first_figure():
    for strength in (0.1, 0.5, 1.0):
        surface = scalar_surface(2.0, strength, points=401)
        lowest = np.unravel_index(np.argmin(surface.values), surface.values.shape)
        found = np.abs([surface.axis[lowest[1]], surface.axis[lowest[0]]])
        assert_allclose(found, np.abs(surface.minima[0]), atol=0.02)
        objective = tied_objective([[2.0]], strength)
        for minimum in surface.minima:  # parallel to (±1, ±1), and critical
            assert abs(minimum[0]) == abs(minimum[1])
            assert np.abs(objective.tied_gradient(minimum[None, :])).max() < 1e-12
        value = objective.tied_value(surface.axis[[30, 70]][None, :])
        assert surface.values[70, 30] == pytest.approx(float(value))
        assert np.all(np.diff(surface.levels) > 0)
    circle = scalar_surface(2.0, 0.0)
    assert circle.minima.shape == (0, 2)
    assert_allclose(scalar_surface(-1.0, 0.5).minima, [[0.0, 0.0]])


def test_verdicts_on_torch_tensors():
    torch = pytest.importorskip("torch")
    M = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))
    U = torch.zeros((2, 2), dtype=torch.float64, requires_grad=True)
    verdict = classify(U, M, 0.5)
    assert verdict.kind == "strict saddle: equalized"
    assert isinstance(verdict.direction, torch.Tensor)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: classify(np.ones((2, 2)), np.ones((2, 3)), 0.5), "square"),
        (lambda: classify(np.ones((3, 2)), np.eye(2), 0.5), "rows"),
        (lambda: classify(np.ones((2, 2)), np.eye(2), -1.0), "strength"),
        (lambda: classify(np.full((2, 2), np.nan), np.eye(2), 0.5), "NaN"),
        (lambda: equalized_critical_points(np.eye(40), 0.5, 20), "Give a smaller M"),
        (lambda: equalized_critical_points(np.eye(2), 0.5, 0), "width"),
        (lambda: scalar_surface(np.nan), "target"),
        (lambda: scalar_surface(1.0, points=1), "points"),
        (lambda: scalar_surface(1.0, extent=0.0), "extent"),
    ],
)
def test_bad_input_is_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()
