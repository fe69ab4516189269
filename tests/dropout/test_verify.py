"""The verifier: its imports, formulas, error bounds, and singular values that were not computed."""

import ast
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import lucidae.dropout
from dropout.problems import (
    dense_hessian,
    dropout_loss,
    numpy_optimum,
    pack,
    plain_value_and_gradient,
    random_weights,
    regression_data,
    seeds,
)
from lucidae import DropoutAutoencoder, DropoutFactorization, DropoutRegressor, certify
from lucidae.dropout import DropoutObjective, LinearProblem, Weights, solve, verify
from lucidae.dropout.claims import judged_rows, noise_level
from lucidae.dropout.problem import joint_moment
from lucidae.dropout.theory import optimal_value
from lucidae.dropout.verify import Slope

FOLDER = Path(lucidae.dropout.__file__).parent
WIDTH = 4


@pytest.mark.parametrize("module", ["verify", "verify_completion"])
def test_nothing_of_the_solver_is_imported(module):
    tree = ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)]
    imported = {
        name
        for node in nodes
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else
                     [alias.name for alias in node.names])
    }  # fmt: skip
    own = {name for name in imported if name.startswith("lucidae")}
    parts = ("bounds", "rows", "sketch")
    assert own <= {f"lucidae.certificates.{part}" for part in parts} | {"lucidae.dropout.verify"}
    standard = {"__future__", "math", "collections.abc", "dataclasses", "typing"}
    assert {name.split(".")[0] for name in imported - own - standard} <= {"numpy", "scipy"}


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("kind", ["dense", "sparse", "few rows", "autoencoder"])
@given(seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([0.0, 3.0, 6.0]))
@settings(max_examples=10, deadline=None)
def test_loss_minimum_and_their_error_bounds(kind, centered, seed, spread):
    """All ways to the white problem give the loss and the minimum within their error bounds."""
    rng = np.random.default_rng(seed)
    n, m = (6, 9) if kind == "few rows" else (30, 4)
    X = rng.standard_normal((n, m)) * 10.0 ** rng.uniform(-spread, spread, m) + 1.0
    if kind == "autoencoder":
        X, centered = X / np.abs(X).max(axis=0), True
    Y = X if kind == "autoencoder" else X / X.std(0) @ rng.standard_normal((m, 3)) + 2.0
    weights = rng.integers(0, 3, n).astype(float)
    U, V = rng.standard_normal((Y.shape[1], 2)), rng.standard_normal((m, 2)) / X.std(0)[:, None]
    best = numpy_optimum(X, Y, 0.3, 2, weights=weights, centered=centered)
    loss = dropout_loss(U, V, X, Y, 0.3, weights, centered=centered)
    given = scipy.sparse.csr_array(X) if kind == "sparse" else X
    data = judged_rows(given, None if kind == "autoencoder" else Y, weights, centered)
    for white in verify.problems(data, verify.Judged(U, V, 3 / 7)):
        figures = verify._measured(white, verify.Judged(U, V, 3 / 7), None)
        true = (loss - best.objective) / best.explained
        assert abs(figures.gap.value - true) <= figures.gap.error + 1e-9 * (1 + true)
    found = figures.evidence  # of the most accurate way
    assert found["value"] == pytest.approx(loss, rel=1e-8)
    assert found["bound"] == pytest.approx(best.objective, rel=1e-6, abs=1e-9 * loss)


@given(seed=seeds(), strength=st.sampled_from([0.0, 0.1, 3.0]))
def test_a_gap_bounds_the_distance_of_the_products(seed, strength):
    """The theorem in the docstring of the verifier, on random products of rank at most r."""
    rng = np.random.default_rng(seed)
    M, width = rng.standard_normal((4, 5)), int(rng.integers(1, 4))
    best = solve(LinearProblem.from_matrix(M), strength, width)
    objective = DropoutObjective(LinearProblem.from_matrix(M), strength)
    shrunk = np.clip(np.linalg.svd(M, compute_uv=False) - best.threshold, 0.0, None)
    kappa = 1 - shrunk[width] / shrunk[width - 1] if shrunk[width - 1] > 0 else 1.0
    for size in (1e-3, 0.1, 1.0):
        U, V = (part + size * rng.standard_normal(part.shape) for part in best.weights)
        gap = float(objective.value(Weights(U, V))) - best.value
        distance = np.linalg.norm(U @ V.T - best.weights.left @ best.weights.right.T)
        assert gap >= kappa * distance**2 - 1e-10


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), seeds())
def test_differences_give_the_exact_hessian(outputs, features, width, seed):
    rng = np.random.default_rng(seed)
    problem = LinearProblem.from_matrix(rng.standard_normal((outputs, features)))
    weights, strength = random_weights(problem, width, rng), 0.7
    slope = Slope(problem.cross, None, strength, pack(weights), width)
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


@pytest.mark.parametrize("closeness", [9e-11, 1e-13])
def test_weights_outside_of_the_span_of_the_inputs_are_noticed(closeness):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2))
    X = np.column_stack([X[:, 0], X[:, 0] + np.sqrt(closeness) * X[:, 1], X[:, 0]])
    y = X[:, 0] + 0.1 * rng.standard_normal(40)
    model = DropoutRegressor(1).fit(X, y)
    assert model.certificate_.holds is not False
    right = model.right_ + np.array([[1.0], [0.0], [-1.0]])  # the loss does not depend on it
    model.right_, model.coef_ = right, (model.left_ @ right.T)[0]
    assert certify(model, X, y)["attributes"].holds is not True


def test_a_certificate_that_cannot_be_drawn_says_why(monkeypatch):
    def fail(*args, **kwargs):
        raise ArithmeticError("no luck")

    monkeypatch.setattr("lucidae.dropout.claims.measure", fail)
    certificate = DropoutRegressor(2).fit(*regression_data()).certificate_
    assert certificate.holds is None
    assert "no luck" in certificate.summary()


def test_the_level_of_noise_is_that_of_reduced_rank_regression():
    # For many rows the confidence limit and the margin vanish: σ(√q + √m)/√n remains.
    n, features, targets, deviation = 1e9, 10_000, 400, 2.0
    level = noise_level(deviation**2 * np.eye(targets), features, n)
    assert level == pytest.approx(deviation * (100 + 20) / np.sqrt(n), rel=0.04)
    assert level > deviation * (100 + 20) / np.sqrt(n)
    assert noise_level(np.zeros((2, 2)), 3, 10.0) == 0.0


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 20))]
)
def test_weights_by_sgd_that_converged_are_certified_also_near_ties(seed):
    rng = np.random.default_rng(7)
    X = rng.standard_normal((300, 5))
    axes = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    Y = X[:, :4] * [2.0, 1.0, 0.98, 0.3] @ axes + 0.1 * rng.standard_normal((300, 4))
    model = DropoutRegressor(2, dropout=0.2, solver="sgd", random_state=seed).fit(X, Y)
    assert model.certificate_.holds is not False, model.certificate_
    assert model.certificate_["gap"].holds


@pytest.mark.parametrize("kind", ["fit", "sparse", "stream", "certify"])
def test_a_row_with_more_than_its_share_is_named(kind):
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((200, 6)), rng.standard_normal((200, 2))
    for factor, named in ((500.0, [137]), (1.0, [])):
        rows_ = X.copy()
        rows_[137] *= factor
        given = scipy.sparse.csr_array(rows_) if kind == "sparse" else rows_
        for model in (DropoutAutoencoder(2), DropoutRegressor(2)):
            if kind == "stream":
                for part in (slice(0, 90), slice(90, 200)):
                    model.partial_fit(given[part], Y[part])
            else:
                model.fit(given, Y)
            found = certify(model, given, Y) if kind == "certify" else model.certificate_
            assert found["leverage"].holds is None
            assert found.evidence["leverage_rows"] == named
            assert ("137" in found.summary().splitlines()[0]) is bool(named)


def test_what_is_not_known_independently_is_undecided(tmp_path):
    X, Y = regression_data()
    moment = joint_moment(X[:40], Y[:40])
    model = DropoutRegressor(2).fit_batches([(X[40:], Y[40:])], start=moment)
    assert model.certificate_.holds is None
    assert "lucidae.certify" in model.certificate_.summary()
    assert certify(model, X, Y).holds


@pytest.fixture
def small_limit(monkeypatch):
    """Let problems with more than 40 rows and columns count as large."""
    monkeypatch.setattr(verify, "SMALL", 40)
    monkeypatch.setattr(verify, "FEW", 4)


def matrix_with(values, n=90, m=70, seed=0):
    """Return a matrix of shape (n, m) with the given singular values, and its right vectors."""
    rng = np.random.default_rng(seed)
    P, Q = (np.linalg.qr(rng.standard_normal((size, m)))[0] for size in (n, m))
    return (P * values) @ Q.T, Q


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.integers(1, 6),
    strength=st.sampled_from([0.0, 1e-3, 0.5, 4.0]),
)
def test_larger_singular_values_save_at_most_what_is_stated(seed, width, strength):
    """The minimum for the upper bounds, by the solver's own formula, is smaller by no more."""
    rng = np.random.default_rng(seed)
    values = np.sort(rng.exponential(size=9))[::-1]
    upper = np.sort(values[:width] + rng.exponential(size=width) * rng.integers(0, 2, width))[::-1]
    total = float(np.sum(values**2) + np.sum(upper**2) + 1.0)
    rest = total - float(np.sum(values**2))
    before, after = (optimal_value(v, strength, width, total) for v in (values, upper))
    judged = verify.Judged(np.zeros((9, width)), np.zeros((9, width)), strength)
    white = verify.White(np.diag(values), *judged[:2], total, rest=rest, upper=upper)
    stated = verify._measured(white, judged, None).uncounted * total
    assert stated >= before - after - 1e-9 * total
    if strength == 0.0:
        assert_allclose(stated, before - after, atol=1e-9 * total)


SPECTRA = {
    "decaying": 0.8 ** np.arange(70),
    "signal and noise": np.r_[np.geomspace(9, 3, 4), np.linspace(1.0, 0.5, 66)],
    "flat": np.linspace(1.0, 0.99, 70),
    "equal": np.ones(70),
    "pairs": np.repeat(0.9 ** np.arange(35), 2),
    "low rank": np.r_[3.0, 2.0, 1.0, 0.5, 0.1, np.zeros(65)],
}


@pytest.mark.parametrize("strength", [0.0, 0.3])
@pytest.mark.parametrize("name", SPECTRA)
def test_no_singular_value_exceeds_its_bound(name, strength, small_limit):
    """Of weights in which any of the leading singular vectors is missing."""
    values = SPECTRA[name]
    matrix, right = matrix_with(values)
    left, unit = matrix @ right / np.where(values > 0, values, 1.0), np.linalg.norm(values)
    for missing in (None, 0, 2, WIDTH - 1):
        kept = [i for i in range(WIDTH + 1) if i != (WIDTH if missing is None else missing)]
        judged = verify.Judged(left[:, kept] * values[kept], right[:, kept], strength)
        white = next(verify.problems(matrix, judged))
        found = np.linalg.svd(white.target, compute_uv=False)[:WIDTH]
        assert min(white.target.shape) < 30
        assert np.all(white.upper[:WIDTH] >= values[:WIDTH] - 1e-8 * unit)
        assert np.all(found <= values[: len(found)] + 1e-8 * unit)
        if name in ("decaying", "signal and noise", "low rank"):
            assert_allclose(found, values[:WIDTH], atol=1e-4 * unit)


def large_rows(kind):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((60, 5)) @ (rng.standard_normal((5, 50)) * 0.7 ** np.arange(5)[:, None])
    X = X + 0.05 * rng.standard_normal((60, 50))
    return scipy.sparse.csr_array(X) if kind == "sparse" else X


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_weights_that_miss_the_largest_singular_value_are_refuted(kind, dropout, small_limit):
    X = large_rows(kind)
    dense = np.asarray(X.todense()) if kind == "sparse" else X
    centred = dense - dense.mean(axis=0)
    axis = np.linalg.svd(centred, full_matrices=False)[2][0]
    wrong = DropoutAutoencoder(WIDTH, dropout=dropout).fit(centred - np.outer(centred @ axis, axis))
    weights = (wrong.left_, wrong.right_)
    judged = certify(weights, X, family="dropout", dropout=dropout)
    assert judged["gap"].holds is False
    assert judged.holds is False
    if kind == "dense":
        axis = np.linalg.svd(X, full_matrices=False)[2][0]
        factors = DropoutFactorization(WIDTH, dropout=dropout).fit(X - np.outer(X @ axis, axis))
        assert certify(factors, X)["gap"].holds is False


@pytest.mark.parametrize("estimator", [DropoutAutoencoder, DropoutFactorization])
def test_components_that_dropout_removes_are_compared_too(estimator, small_limit, monkeypatch):
    monkeypatch.setattr("lucidae.dropout.claims.SMALL", 40)
    monkeypatch.setattr("lucidae.dropout.claims.SMALL_ROWS", 0)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 5)) * [9.0, 7.0, 2.0, 1.5, 1.2] @ rng.standard_normal((5, 90))
    X = X + 0.05 * rng.standard_normal(X.shape)
    model = estimator(5, dropout=0.6).fit(X)
    assert model.rank_ < 5
    assert model.certificate_.holds
    model.singular_values_ = model.singular_values_ * [1.0, 1.0, 1.0, 1.0, 1.01]
    assert certify(model, X)["attributes"].holds is False
    monkeypatch.setattr(verify, "LARGEST_FACTOR", 0)  # too large to be factorised
    monkeypatch.setattr("lucidae.certificates.rows.LARGEST_FACTOR", 0)
    for dropout, removes in ((0.6, True), (0.05, False)):
        large = estimator(5, dropout=dropout).fit(X).certificate_
        assert large["gap"].holds
        assert large["attributes"].undecided is removes
        assert ("only bounded" in large["attributes"].advice) is removes


def test_bounds_that_decide_nothing_leave_the_certificate_undecided(small_limit, monkeypatch):
    """A flat spectrum without a bound from a Krylov space, of a matrix too large to factorise."""
    X = np.random.default_rng(0).standard_normal((400, 300))
    assert certify(DropoutFactorization(5, dropout=0.1).fit(X), X).holds
    monkeypatch.setattr(verify, "LARGEST_FACTOR", 0)
    monkeypatch.setattr("lucidae.certificates.sketch.STEPS", (2, 3))
    monkeypatch.setattr(verify, "STEPS", (2, 3))
    model = DropoutFactorization(5, dropout=0.1).fit(X)
    assert model.certificate_.holds is None
    assert model.certificate_["gap"].holds is None
    assert model.certificate_["conditioning"].holds is None
    assert "separates them" in model.certificate_["gap"].advice
    model.left_ = 1.5 * model.left_
    assert certify(model, X)["gap"].holds is False


def test_rows_too_large_to_copy_are_judged_as_far_as_their_digits_allow(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((25, 4200))
    y = rng.standard_normal((25, 2))
    monkeypatch.setattr("lucidae.rows.operator.FACTORED_ENTRIES", {False: 100, True: 100})
    monkeypatch.setattr("lucidae.certificates.rows.LARGEST_COPY", 100)
    assert DropoutRegressor(2).fit(X, y).certificate_.holds
    X[7] = X[8] + 1e-5 * X[9]
    assert DropoutRegressor(2).fit(X, y).certificate_["gap"].holds is not False
    X, y = X + 1e6, y - y.mean(axis=0)
    far = DropoutRegressor(2).fit(scipy.sparse.csr_array(X), y)
    P = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[0]
    M = y.T @ P[:, :24]  # the rows are of rank 24
    hidden = P[:, :24].T @ (X - X.mean(axis=0)) @ far.right_
    scores = np.sum(far.left_**2, axis=0) @ np.sum(hidden**2, axis=0) / 25
    loss = np.linalg.norm(M - far.left_ @ hidden.T) ** 2 / 25 + scores
    least = optimal_value(np.linalg.svd(M, compute_uv=False) / 5, 1.0, 2)
    explained = np.linalg.norm(M) ** 2 / 25
    assert far.certificate_["gap"].value == pytest.approx((loss - least) / explained, rel=1e-3)
    model = DropoutRegressor(2).fit(X, y)
    monkeypatch.setattr(verify, "LARGEST_ROWS", 20)
    (claim,) = certify(model, X, y)
    assert claim.holds is None
    assert "too much memory" in claim.advice
