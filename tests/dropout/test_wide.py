"""Data with many features: the same optimum and the same verdicts as from the second moment."""

import pickle

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from extras import require
from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
    SecondMoment,
    certify,
    load,
    save,
)
from lucidae.dropout import LinearProblem, Weights, moments, projection, solvers, verifier, wide
from lucidae.dropout.estimators import autoencoder, regressor
from lucidae.dropout.moments import joint_moment, row_problem
from lucidae.dropout.solvers import leading_svd, solve
from lucidae.rows import sources as data

LIMIT = 40
"""Number of features above which these tests take the routes of many features."""

SHAPES = [(15, 60), (50, 60), (60, 50), (200, 45), (46, 45)]


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    """Let problems with more than `LIMIT` features count as large."""
    monkeypatch.setattr(wide, "STORED_FEATURES", LIMIT)
    monkeypatch.setattr(data, "STORED_FEATURES", LIMIT)
    monkeypatch.setattr(data, "_moment_is_cheapest", lambda *_: False)
    monkeypatch.setattr(projection, "SMALL", LIMIT)


def rows(n, m, sparse=False, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 6)) @ (
        rng.standard_normal((6, m)) * np.geomspace(4, 0.5, 6)[:, None]
    )
    X += 0.2 * rng.standard_normal((n, m)) + rng.standard_normal(m)
    return scipy.sparse.csr_array(X * (rng.random((n, m)) < 0.3)) if sparse else X


def frequencies(n, weighted):
    return np.random.default_rng(1).integers(0, 4, n) + 0.5 if weighted else None


def by_moment(monkeypatch, fit):
    """Return the result of a fit that uses the second moment of all features."""
    with monkeypatch.context() as patch:
        patch.setattr(autoencoder, "leading_source", lambda *_: None)
        patch.setattr(regressor, "is_wide", lambda _: False)
        return fit()


def verdicts(certificate):
    """Return the verdicts by name; curvature and sampling depend on what was computed."""
    return {c.name: c.holds for c in certificate if c.name not in ("curvature", "sampling")}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.2, 0.8])
def test_autoencoder_equals_that_of_the_moment(shape, sparse, weighted, dropout, monkeypatch):
    X, weights = rows(*shape, sparse), frequencies(shape[0], weighted)

    def fit():
        return DropoutAutoencoder(4, dropout=dropout).fit(X, sample_weight=weights)

    found, expected = fit(), by_moment(monkeypatch, fit)
    assert found._state.rows is not None
    assert isinstance(expected._state.moment, SecondMoment)
    scale = np.linalg.norm(expected.left_ @ expected.right_.T)
    assert_allclose(
        found.left_ @ found.right_.T, expected.left_ @ expected.right_.T, atol=1e-10 * scale
    )
    for name in ("singular_values_", "threshold_", "objective_", "rank_", "mean_"):
        assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-10, atol=1e-10)
    assert verdicts(found.certificate_) == verdicts(expected.certificate_)
    assert found.certificate_["gap"].holds
    assert certify(found, X, sample_weight=weights).holds
    assert_allclose(found.transform(X), expected.transform(X), atol=1e-7)
    others = X + X if sparse else X + 1.0
    score = found.score(others)
    monkeypatch.setattr(autoencoder, "has_many_features", lambda *_: False)
    assert_allclose(score, expected.score(others), rtol=1e-9, atol=1e-9)


def by_name(certificate):
    """Return the value of every claim by its name."""
    return {claim.name: (claim.holds, claim.value) for claim in certificate}


def test_the_certificate_is_measured_when_it_is_first_read(monkeypatch):
    X = rows(30, 60)
    lazy = DropoutAutoencoder(4, dropout=0.3).fit(X)
    assert lazy._state.figures is None
    assert lazy._state.rows.rows is X
    with monkeypatch.context() as patch:  # as for rows that take too much memory
        patch.setattr(autoencoder.TrainingRows, "referenced", lambda *_: None)
        eager = DropoutAutoencoder(4, dropout=0.3).fit(X)
    assert eager._state.figures is not None
    assert by_name(lazy.certificate_) == by_name(eager.certificate_)
    assert lazy._state.rows is None


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_changed_before_the_certificate_is_read_leave_it_undecided(sparse):
    X = rows(30, 60, sparse)
    model = DropoutAutoencoder(4).fit(X)
    if sparse:
        X.data[3] += 1.0
    else:
        X[3, 5] += 1.0
    (claim,) = model.certificate_
    assert claim.holds is None
    assert "changed in place" in claim.advice
    assert model._state.rows is None


def test_a_saved_model_has_the_certificate_and_not_the_rows(tmp_path):
    X = rows(30, 60)
    expected = by_name(DropoutAutoencoder(4).fit(X).certificate_)
    model = DropoutAutoencoder(4).fit(X)
    save(model, tmp_path / "model.npz")
    again = pickle.loads(pickle.dumps(DropoutAutoencoder(4).fit(X)))
    X[:] = 0.0
    for found in (load(tmp_path / "model.npz"), again, model):
        assert found._state.rows is None
        assert by_name(found.certificate_) == expected


def test_attributes_changed_by_a_user_do_not_enter_the_certificate_of_the_fit():
    X = rows(30, 60)
    model = DropoutAutoencoder(4).fit(X)
    model.left_ *= 2.0
    assert not certify(model, X).holds


@pytest.mark.parametrize("width", [3, 20])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_leading_components_of_a_moment_give_the_optimum_of_all(width, dropout, monkeypatch):
    X = rows(700, 500)[:, :LIMIT]
    wide_rows = np.hstack([X * scale for scale in np.geomspace(1, 0.1, 12)])
    wide_rows += 0.1 * np.random.default_rng(2).standard_normal(wide_rows.shape)

    def fit():
        return DropoutAutoencoder(width, dropout=dropout).fit(wide_rows)

    found = by_moment(monkeypatch, fit)
    monkeypatch.setattr(moments, "leading_eigenpairs", None)
    original = moments.input_range
    monkeypatch.setattr(
        moments, "input_range", lambda inputs, resolution=0.0, leading=None: original(inputs)
    )
    expected = by_moment(monkeypatch, fit)
    assert_allclose(found.objective_, expected.objective_, rtol=1e-12)
    assert_allclose(found.singular_values_, expected.singular_values_, rtol=1e-12)
    assert_allclose(found.threshold_, expected.threshold_, rtol=1e-12)
    product = expected.left_ @ expected.right_.T
    assert_allclose(found.left_ @ found.right_.T, product, atol=1e-9 * np.linalg.norm(product))
    assert found.certificate_.holds


@pytest.mark.parametrize("width", [1, 30, 44, 60, None])
def test_any_number_of_hidden_units(width, monkeypatch):
    X = rows(30, 50)

    def fit():
        return DropoutAutoencoder(width, dropout=0.3).fit(X)

    found, expected = fit(), by_moment(monkeypatch, fit)
    assert_allclose(found.left_ @ found.right_.T, expected.left_ @ expected.right_.T, atol=1e-10)
    assert found.rank_ == expected.rank_
    assert_allclose(found.objective_, expected.objective_, rtol=1e-10)
    assert found.certificate_["gap"].holds


@pytest.mark.parametrize("shape", [(15, 60), (50, 60), (41, 42)], ids=str)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("dropout", [0.1, "cv"])
def test_regression_on_rows_equals_that_of_the_moment(
    shape, sparse, weighted, intercept, dropout, monkeypatch
):
    X, weights = rows(*shape, sparse), frequencies(shape[0], weighted)
    rng = np.random.default_rng(2)
    y = X[:, :5] @ rng.standard_normal((5, 3)) + rng.standard_normal((shape[0], 3))
    model = DropoutRegressor(2, dropout=dropout, fit_intercept=intercept, cv=3)

    def fit():
        return clone(model).fit(X, y, weights)

    found, expected = fit(), by_moment(monkeypatch, fit)
    assert isinstance(found._state.moment, wide.RowMean)
    for name in ("coef_", "intercept_", "singular_values_", "rank_", "threshold_"):
        expected_value = getattr(expected, name)
        limit = 1e-10 * np.abs(expected_value).max()
        assert_allclose(getattr(found, name), expected_value, rtol=0, atol=limit)
    assert_allclose(found.objective_, expected.objective_, atol=1e-10)
    assert found.dropout_ == expected.dropout_
    if dropout == "cv":
        assert_allclose(found.cv_.errors, expected.cv_.errors, rtol=1e-9)
        assert_allclose(found.cv_.weights, expected.cv_.weights)
    assert verdicts(found.certificate_) == verdicts(expected.certificate_)
    assert found.certificate_["gap"].holds
    assert certify(found, X, y, sample_weight=weights)["gap"].holds


def test_few_well_conditioned_rows_are_decomposed_by_their_gram_matrix(monkeypatch):
    rng = np.random.default_rng(3)
    X, y = rng.standard_normal((100, 900)) + 1.0, rng.standard_normal((100, 2))
    found = DropoutRegressor(dropout=0.1).fit(X, y)
    monkeypatch.setattr("lucidae.dropout.moments.FEWEST_GRAM_ROWS", 10**9)
    assert_allclose(found.coef_, DropoutRegressor(dropout=0.1).fit(X, y).coef_, atol=1e-12)


@pytest.mark.parametrize("shape", [(300, 420), (420, 300), (330, 310)], ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_factorization_equals_the_full_decomposition(shape, dropout, monkeypatch):
    M = rows(*shape)
    model = DropoutFactorization(5, dropout=dropout)
    monkeypatch.setattr("lucidae.dropout.solvers.SMALLEST_FAST", 100)
    found = clone(model).fit(M)
    monkeypatch.setattr("lucidae.dropout.solvers.SMALLEST_FAST", 10**9)
    monkeypatch.setattr(verifier, "is_large", lambda *_: False)
    expected = clone(model).fit(M)
    scale = np.linalg.norm(M)
    assert_allclose(
        found.left_ @ found.right_.T, expected.left_ @ expected.right_.T, atol=1e-10 * scale
    )
    assert_allclose(found.singular_values_, expected.singular_values_, rtol=1e-10)
    assert_allclose(found.objective_, expected.objective_, rtol=1e-10)
    assert verdicts(found.certificate_) == verdicts(expected.certificate_)


@pytest.mark.parametrize("decay", [0.5, 0.999])
def test_block_krylov_gives_the_leading_singular_triples(decay, monkeypatch):
    rng = np.random.default_rng(4)
    P, Q = (np.linalg.qr(rng.standard_normal((n, 450)))[0] for n in (600, 450))
    values = np.maximum(decay ** np.arange(450), 1e-4)
    M, calls = (P * values) @ Q.T, []
    krylov = solvers._krylov_directions
    monkeypatch.setattr(
        solvers, "_krylov_directions", lambda *given: calls.append(krylov(*given)) or calls[-1]
    )
    left, found, right = leading_svd(M, 6)
    assert len(calls) == 1
    assert_allclose(found[:6], values[:6], rtol=1e-10)
    assert_allclose((left * found) @ right @ right.T, M @ right.T, atol=1e-10)


def wrong_weights(model, X):
    """Yield weights that are not optimal, each with the claim that they violate."""
    left, right = model.left_, model.right_
    yield "gap", Weights(1.1 * left, right)
    yield "gap", Weights(left + 0.05 * np.random.default_rng(0).standard_normal(left.shape), right)
    yield "equalized", Weights(2 * left * np.eye(4)[0] + left * (1 - np.eye(4)[0]), right)
    # The optimal network for rows without their first principal component misses this component.
    centred = X - X.mean(axis=0)
    axis = np.linalg.svd(centred, full_matrices=False)[2][0]
    other = DropoutAutoencoder(4, dropout=0.2).fit(centred - np.outer(centred @ axis, axis))
    yield "gap", Weights(other.left_, other.right_)
    yield "gap", Weights(0 * left, 0 * right)


@pytest.mark.parametrize("shape", [(15, 60), (60, 50)], ids=str)
def test_wrong_weights_are_refused_with_the_figures_of_the_moment(shape, monkeypatch):
    X = rows(*shape)
    model = DropoutAutoencoder(4, dropout=0.2).fit(X)
    for claim, weights in wrong_weights(model, X):
        found = certify(tuple(weights), X, family="dropout", dropout=0.2)
        with monkeypatch.context() as patch:
            patch.setattr("lucidae.dropout.batches.has_many_features", lambda *_: False)
            expected = certify(tuple(weights), X, family="dropout", dropout=0.2)
        assert found[claim].holds is False
        assert verdicts(found) == verdicts(expected)
        for name in ("gap", "stationarity", "subgradient", "product"):
            assert_allclose(found[name].value, expected[name].value, rtol=1e-6, atol=1e-9)


def test_a_wrong_matrix_factorization_is_refused():
    M = rows(60, 50)
    model = DropoutFactorization(4, dropout=0.2).fit(M)
    model.left_ = 1.01 * model.left_
    assert certify(model, M)["gap"].holds is False
    assert certify(DropoutFactorization(4, dropout=0.2).fit(M), M).holds


@pytest.mark.parametrize("n", [20, 60])
def test_single_precision_and_torch(n):
    X = rows(n, 50)
    exact = DropoutAutoencoder(3, dropout=0.2).fit(X)
    narrow = DropoutAutoencoder(3, dropout=0.2).fit(X.astype(np.float32))
    assert narrow.left_.dtype == np.float32
    assert_allclose(narrow.left_ @ narrow.right_.T, exact.left_ @ exact.right_.T, rtol=0, atol=1e-5)
    assert narrow.certificate_["gap"].holds
    y = X[:, :2] + X[:, 2:4]
    wanted = DropoutRegressor(dropout=0.2).fit(X, y)
    single = DropoutRegressor(dropout=0.2).fit(X.astype(np.float32), y.astype(np.float32))
    assert_allclose(single.coef_, wanted.coef_, rtol=0, atol=1e-4 * np.abs(wanted.coef_).max())
    torch = require("torch")
    there = DropoutAutoencoder(3, dropout=0.2).fit(torch.as_tensor(X))
    assert isinstance(there.left_, torch.Tensor)
    assert_allclose(there.left_.numpy(), exact.left_, atol=1e-8)
    coefficients = DropoutRegressor(dropout=0.2).fit(torch.as_tensor(X), torch.as_tensor(y)).coef_
    assert_allclose(coefficients.numpy(), wanted.coef_, atol=1e-10)


def test_saved_states_are_read_again(tmp_path):
    X = rows(15, 60)
    for model in (
        DropoutAutoencoder(3).fit(X),
        DropoutRegressor(2).fit(X, X[:, :3]),
    ):
        save(model, tmp_path / "model.npz")
        again = load(tmp_path / "model.npz")
        assert_array_equal(again.left_, model.left_)
        assert verdicts(again.certificate_) == verdicts(model.certificate_)


def test_what_the_mean_alone_cannot_do_is_refused():
    X = rows(15, 60)
    model = DropoutAutoencoder(3).fit(X)
    with pytest.raises(ValueError, match="does not store the second moment of 60 features"):
        model.partial_fit(X)
    regression = DropoutRegressor(2).fit(X, X[:, :3])
    with pytest.raises(ValueError, match="does not store the second moment"):
        regression.partial_fit(X, X[:, :3])
    model.left_ = 2 * model.left_
    assert model.certificate_["attributes"].holds is False
    assert "certify" in model.certificate_["attributes"].advice
    assert certify(model, X)["gap"].holds is False
    with pytest.raises(ValueError, match="features"):
        certify(DropoutAutoencoder(3).fit(X), X[:, :59])


def test_no_square_matrix_of_the_features_is_formed(monkeypatch):
    def refuse(*_):
        raise AssertionError("a second moment of all features was formed")

    X = rows(30, 300)
    y = X[:, :3]
    monkeypatch.setattr(SecondMoment, "of", refuse)
    for model in (DropoutAutoencoder(3).fit(X), DropoutRegressor(2, dropout="cv", cv=3).fit(X, y)):
        assert model.certificate_.holds
    assert certify(model, X, y).holds
    assert DropoutRegressor(2).fit(scipy.sparse.csr_array(X), y).certificate_.holds


def test_a_problem_of_rows_is_that_of_their_moment():
    X = rows(15, 60)
    y = X[:, :2] ** 2
    mean, factor = wide.row_factor(X, y, None, centered=True)
    problem = LinearProblem.from_root(factor, 60, 14.0)
    moment = joint_moment(X, y)
    expected = row_problem(X, y, None, moment, centered=True)
    assert_allclose(mean.mean, moment.mean, atol=1e-13)
    assert_allclose(problem.cross, expected.cross, atol=1e-12)
    assert not problem.is_white
    V = np.random.default_rng(0).standard_normal((60, 2))
    assert_allclose(problem.through_inputs(V), expected.through_inputs(V), atol=1e-11)
    assert_allclose(solve(problem, 0.5, 2).value, solve(expected, 0.5, 2).value, rtol=1e-12)


EXTREMES = {
    "constant": np.ones((10, 60)),
    "zero": np.zeros((10, 60)),
    "one row": rows(1, 60),
    "repeated rows": np.repeat(rows(5, 60), 3, axis=0),
    "constant columns": np.where(np.arange(60) < 30, 3.0, rows(15, 60)),
    "large mean": rows(15, 60) + 1e9,
    "huge": 1e140 * rows(15, 60),
    "tiny": 1e-120 * rows(15, 60),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_rows_are_fitted_and_certified(name):
    X = EXTREMES[name]
    y = rows(len(X), 2, seed=1)
    for model in (
        DropoutAutoencoder(3, dropout=0.2).fit(X),
        DropoutRegressor(dropout=0.2).fit(X, y),
        DropoutFactorization(3, dropout=0.2).fit(X),
    ):
        assert model.certificate_.holds
        assert np.isfinite(model.left_).all()


@pytest.mark.parametrize(("factor", "word"), [(1e160, "overflow"), (1e-170, "underflow")])
def test_squares_out_of_range_are_refused(factor, word):
    X = factor * rows(15, 60)
    with pytest.raises(ValueError, match=word):
        DropoutAutoencoder(3).fit(X)
    with pytest.raises(ValueError, match=word):
        DropoutRegressor(2).fit(X, rows(15, 2))


def test_singular_values_that_are_not_found_leave_the_certificate_undecided(monkeypatch):
    monkeypatch.setattr(projection, "RESTARTS", 1)
    monkeypatch.setattr(projection, "LARGEST_GRAM", 10)
    monkeypatch.setattr(projection, "FEW", 1)
    X = np.random.default_rng(0).standard_normal((300, 250))
    for model in (DropoutAutoencoder(20).fit(X), DropoutFactorization(20).fit(X)):
        assert model.rank_ == 20
        assert model.certificate_.holds is None
        assert "certify" in model.certificate_.summary()
        with pytest.raises(ValueError, match="leading singular values"):
            certify(model, X)
        monkeypatch.setattr(projection, "RESTARTS", 200)
        assert certify(model, X)["gap"].holds
        monkeypatch.setattr(projection, "RESTARTS", 1)
