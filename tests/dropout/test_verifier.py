"""The verifier shares no code with the solver, and agrees with it on healthy problems."""

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import lucidae.dropout
from dropout.problems import (
    dense_hessian,
    pack,
    plain_value_and_gradient,
    problems,
    random_weights,
    regression_data,
    seeds,
)
from lucidae import DropoutAutoencoder, DropoutRegressor, certify
from lucidae.dropout import DropoutObjective, LinearProblem, Weights, solve
from lucidae.dropout.differences import Slope
from lucidae.dropout.moments import joint_moment, row_root
from lucidae.dropout.reduction import row_objective
from lucidae.dropout.verifier import measure

FOLDER = Path(lucidae.dropout.__file__).parent


@pytest.mark.parametrize(
    "module",
    [
        "verifier",
        "reduction",
        "projection",
        "spectrum_bounds",
        "differences",
        "figures",
        "attributes",
        "noise",
        "verified_rows",
    ],
)
def test_nothing_of_the_solver_is_imported(module):
    tree = ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))
    imported = {
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("lucidae")
        for alias in node.names
    }
    allowed = {"lucidae.arrays", "lucidae.io.models", "lucidae.sampling"}
    own = ("figures", "differences", "reduction", "projection", "attributes", "noise")
    allowed |= {f"lucidae.dropout.{name}" for name in (*own, "spectrum_bounds", "verified_rows")}
    allowed |= {"lucidae.eigenvalue_bounds"}  # which only verifiers import
    names = ("LinearProblem", "RowReduction", "Weights")
    containers = {("lucidae.dropout.objectives", name) for name in names}
    containers |= {("lucidae.dropout.row_space", "WideRows")}
    assert all(source in allowed or (source, name) in containers for source, name in imported)


@given(problems(), seeds())
def test_value_and_minimum_agree_with_the_solver(drawn, seed):
    problem, strength, width = drawn
    weights = random_weights(problem, width, np.random.default_rng(seed))
    figures = measure(problem, weights, strength)
    value = float(DropoutObjective(problem, strength).value(weights))
    size = max(abs(value), problem.energy, 1e-300)
    assert figures.value == pytest.approx(value, abs=1e-12 * size)
    optimum = solve(problem, strength, width)
    assert figures.optimum == pytest.approx(optimum.value, rel=1e-7, abs=1e-9 * problem.energy)
    best = measure(problem, optimum.weights, strength)
    assert abs(best.gap) < 1e-9
    assert best.subgradient < 1e-6


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), seeds())
def test_differences_give_the_exact_hessian(outputs, features, width, seed):
    rng = np.random.default_rng(seed)
    problem = LinearProblem.from_matrix(rng.standard_normal((outputs, features)))
    weights, strength = random_weights(problem, width, rng), 0.7
    slope = Slope(problem.cross, None, strength, False, pack(weights), (outputs, features, width))
    assert_allclose(
        slope(pack(weights)), plain_value_and_gradient(problem, strength, width)(pack(weights))[1]
    )
    objective = DropoutObjective(problem, strength)
    cut = outputs * width

    def product(flat):
        direction = Weights(flat[:cut].reshape(outputs, width), flat[cut:].reshape(-1, width))
        return pack(objective.hessian_product(weights, direction))

    size = len(pack(weights))
    expected = dense_hessian(product, size)
    assert_allclose(
        slope.curvature_along(np.eye(size)), expected, atol=1e-9 * (1 + np.abs(expected).max())
    )


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("centered", [False, True])
def test_the_objective_of_rows_is_that_of_their_moment(sparse, weighted, centered):
    X, Y = regression_data(n=300)
    rng = np.random.default_rng(1)
    frequencies = rng.integers(0, 3, 300).astype(float) if weighted else None
    moment = joint_moment(X, Y, frequencies)
    problem = LinearProblem.from_moment(moment, 5, centered=centered)
    weights = random_weights(problem, 2, rng)
    rows = scipy.sparse.csr_array(X) if sparse else X
    value, error = row_objective(rows, Y, frequencies, weights, 0.5, centered)
    expected = float(DropoutObjective(problem, 0.5).value(weights))
    assert abs(value - expected) < 1e-12 * expected
    assert 0 < error < 1e-9 * expected


@pytest.mark.parametrize("centered", [False, True])
def test_the_factor_of_the_rows_is_a_root_of_their_moment(centered):
    X, Y = regression_data(n=300)
    frequencies = np.random.default_rng(1).integers(0, 3, 300).astype(float)
    moment = joint_moment(X, Y, frequencies)
    root = row_root(X, Y, frequencies, moment, centered=centered)
    problem = LinearProblem.from_moment(moment, 5, centered=centered)
    second = root.T @ root
    assert_allclose(second[:5, :5], problem.inputs, atol=1e-12 * np.abs(second).max())
    assert_allclose(second[5:, :5], problem.cross, atol=1e-12 * np.abs(second).max())
    weights = random_weights(problem, 2, np.random.default_rng(0))
    with_root = DropoutObjective(replace(problem, root=root), 0.5)
    assert with_root.value(weights) == pytest.approx(DropoutObjective(problem, 0.5).value(weights))
    assert solve(replace(problem, root=root), 0.5, 2).value == pytest.approx(
        solve(problem, 0.5, 2).value, rel=1e-10
    )


@pytest.mark.parametrize("estimator", [DropoutRegressor(2), DropoutAutoencoder(2)])
def test_a_moment_of_other_rows_is_noticed(estimator, monkeypatch):
    from lucidae.moments import SecondMoment

    X, Y = regression_data()
    healthy = SecondMoment.of.__func__
    monkeypatch.setattr(
        SecondMoment, "of", classmethod(lambda cls, X, w=None: healthy(cls, X[:-5], w))
    )
    estimator.fit(X, Y)
    assert estimator.certificate_["attributes"].holds is False


def test_a_stream_that_loses_directions_says_so_and_rows_decide():
    X, Y = regression_data()
    twice = np.column_stack([X, X[:, 0]])
    stream = DropoutRegressor(2, dropout=0.3).partial_fit(twice, Y)
    assert stream.certificate_.holds is None
    advice = stream.certificate_["conditioning"].advice
    assert "constant up to rounding errors: 1." in advice
    assert "all rows at once" in advice
    assert certify(stream, twice, Y).holds is True
    assert DropoutRegressor(2, dropout=0.3).fit(twice, Y).certificate_.holds is True
    # Without noise nothing can be gained from what was lost.
    clean = X @ np.ones((5, 2))
    assert DropoutRegressor(2, dropout=0.3).partial_fit(twice, clean).certificate_.holds is True
    assert DropoutAutoencoder(2, dropout=0.3).partial_fit(twice).certificate_.holds is True
