"""Regression on few rows with very many features, by products with the rows."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose
from sklearn.base import clone

from extras import require
from lucidae import DropoutRegressor, certify, load, save
from lucidae.dropout import Weights, held_out, rank_path, verified_rows, wide
from lucidae.dropout.moments import ridged
from lucidae.dropout.objectives import DropoutObjective
from lucidae.dropout.row_space import WideRows

LIMIT = 40
"""Number of features above which these tests compute products with the rows."""


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    monkeypatch.setattr(wide, "STORED_FEATURES", LIMIT)
    monkeypatch.setattr(wide, "WIDE_FEATURES", LIMIT)
    monkeypatch.setattr(held_out, "WIDE_FEATURES", LIMIT)


def by_factors(monkeypatch, compute):
    """Return the result of `compute` where the rows are made dense and factorised."""
    with monkeypatch.context() as patch:
        patch.setattr(wide, "WIDE_FEATURES", 10**9)
        patch.setattr(held_out, "WIDE_FEATURES", 10**9)
        return compute()


def inputs(n=60, m=150, *, sparse=True, seed=0):
    """Return rows with about ten entries each; feature 3 is constant, and 4 is zero if sparse."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, m)) * (rng.random((n, m)) < 10 / m)
    X[:, 3], X[:, 4] = 2.5, 0.0
    X[:, 5] += 1e-3 * rng.standard_normal(n)
    X += 0.0 if sparse else 0.5
    return scipy.sparse.csr_array(X) if sparse else X


def targets(X, d=3, seed=1):
    rng = np.random.default_rng(seed)
    return X[:, :30] @ rng.standard_normal((30, d)) + rng.standard_normal((X.shape[0], d)) + 4.0


def verdicts(certificate):
    return {claim.name: claim.holds for claim in certificate}


SETTINGS = {
    "dropout": {"n_components": 2, "dropout": 0.3},
    "wide layer": {"n_components": 7, "dropout": 0.1},
    "ridge": {"n_components": 2, "dropout": 0.3, "alpha": 5.0},
    "reduced rank": {"n_components": 2, "shrink": False},
    "ridge of reduced rank": {"n_components": 2, "shrink": False, "alpha": 0.5},
    "cross-validated": {"dropout": "cv", "cv": 3},
    "cross-validated ridge": {"n_components": "cv", "shrink": False, "alpha": 2.0, "cv": 3},
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("weighted", "intercept"), [(True, True), (False, False)])
def test_products_with_the_rows_give_the_fit_of_their_factors(
    settings, sparse, weighted, intercept, monkeypatch
):
    X = inputs(sparse=sparse)
    y = targets(X)
    weights = np.arange(60) % 4 * 0.5 if weighted else None
    model = DropoutRegressor(fit_intercept=intercept, **SETTINGS[settings])

    def fit():
        return clone(model).fit(X, y, weights)

    found, expected = fit(), by_factors(monkeypatch, fit)
    assert isinstance(found._state.root, WideRows)
    assert not isinstance(expected._state.root, WideRows)
    for name in ("coef_", "intercept_", "singular_values_", "rank_", "threshold_", "dropout_"):
        value = getattr(expected, name)
        assert_allclose(getattr(found, name), value, rtol=0, atol=1e-10 * np.max(np.abs(value)))
    assert_allclose(found.objective_, expected.objective_, atol=1e-10)
    assert found.n_components_ == expected.n_components_
    assert_allclose(found.predict(X), expected.predict(X), atol=1e-9)
    if found.cv_ is not None:
        assert_allclose(found.cv_.errors, expected.cv_.errors, rtol=1e-8)
    before, after = verdicts(expected.certificate_), verdicts(found.certificate_)
    before.pop("curvature"), after.pop("curvature")  # measured in fewer coordinates
    assert before == after
    assert found.certificate_["gap"].holds
    assert certify(found, X, y, sample_weight=weights)["gap"].holds


def wrong_fits(model, X):
    """Yield attributes that do not belong to the optimum, each with the claim that fails."""
    left, right = model.left_, model.right_
    rng = np.random.default_rng(5)
    yield "gap", {"left_": 1.01 * left}
    yield "gap", {"right_": right + 0.01 * np.std(right) * rng.standard_normal(right.shape)}
    yield "gap", {"left_": 0.0 * left}
    yield "equalized", {"left_": left * [2.0, 1.0], "right_": right}
    yield "attributes", {"coef_": 1.001 * model.coef_}
    yield "attributes", {"intercept_": model.intercept_ + 0.1}
    yield "attributes", {"singular_values_": 1.01 * model.singular_values_}
    # The loss does not depend on weights outside of the span of the rows.
    outside = np.zeros(X.shape[1])
    outside[4] = 1.0  # the feature that is zero in all rows
    moved = right + 0.1 * np.linalg.norm(right) * outside[:, None]
    yield "attributes", {"right_": moved, "coef_": left @ moved.T}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 3.0])
def test_wrong_fits_fail(sparse, alpha):
    X = inputs(sparse=sparse)
    if not sparse:
        X[:, 4] = 0.0
    y = targets(X)
    for claim, changes in wrong_fits(DropoutRegressor(2, alpha=alpha).fit(X, y), X):
        model = DropoutRegressor(2, alpha=alpha).fit(X, y)
        for name, value in changes.items():
            setattr(model, name, value)
        assert model.certificate_[claim].holds is False, changes.keys()
        assert certify(model, X, y)[claim].holds is False, changes.keys()


@pytest.mark.parametrize("method", ["times", "back", "gram", "decomposed"])
def test_a_mistake_in_the_products_of_the_solver_is_noticed(method, monkeypatch):
    X = inputs()
    y = targets(X)
    exact = getattr(WideRows, method)

    def wrong(rows, *arguments):
        found = exact(rows, *arguments)
        return (found[0][::-1], found[1]) if method == "decomposed" else 1.01 * found

    monkeypatch.setattr(WideRows, method, wrong)
    assert not DropoutRegressor(2).fit(X, y).certificate_.holds


def test_weights_are_judged_as_by_the_factors_of_the_rows(monkeypatch):
    X = inputs()
    y = targets(X)
    rng = np.random.default_rng(3)
    model = DropoutRegressor(2, dropout=0.2).fit(X, y)
    noisy = model.left_ + 0.1 * rng.standard_normal(model.left_.shape)
    for weights in ((model.left_, model.right_), (noisy, model.right_)):

        def judge(weights=weights):
            return certify(weights, X, y, family="dropout", dropout=0.2)

        found, expected = judge(), by_factors(monkeypatch, judge)
        for name in ("gap", "stationarity", "subgradient", "product", "equalized", "rank"):
            assert found[name].holds == expected[name].holds
            assert_allclose(found[name].value, expected[name].value, rtol=1e-6, atol=1e-9)


def test_repeated_rows_reduce_the_rank(monkeypatch):
    X = scipy.sparse.vstack([inputs(30), inputs(30)], format="csr")
    y = np.random.default_rng(4).standard_normal((60, 2))

    def fit():
        return DropoutRegressor(2, dropout=0.2).fit(X, y)

    found, expected = fit(), by_factors(monkeypatch, fit)
    assert isinstance(found._state.root, WideRows)
    assert_allclose(found.coef_, expected.coef_, atol=1e-10 * np.abs(expected.coef_).max())
    assert found.certificate_.holds
    errors, wanted = (fit.predict(X, return_std=True)[1] for fit in (found, expected))
    assert_allclose(errors, wanted, rtol=1e-8)


def test_ill_conditioned_rows_are_factorised_unless_they_are_too_large(monkeypatch):
    X = inputs(sparse=False)
    X[7] = X[8] + 1e-5 * X[9]
    y = targets(X)
    assert not isinstance(DropoutRegressor(2).fit(X, y)._state.root, WideRows)
    monkeypatch.setattr(wide, "LARGEST_COPY", 100)
    model = DropoutRegressor(2).fit(X, y)
    assert isinstance(model._state.root, WideRows)
    assert model.certificate_["gap"].holds is not False


def test_a_large_mean_of_sparse_rows_is_subtracted_first_or_leaves_claims_undecided(monkeypatch):
    X = scipy.sparse.csr_array(inputs(sparse=False) + 1e6)
    y = targets(inputs())
    model = DropoutRegressor(2, dropout=0.2)
    expected = clone(model).fit(X, y)
    assert not isinstance(expected._state.root, WideRows)
    assert expected.certificate_.holds
    monkeypatch.setattr(wide, "LARGEST_COPY", 100)
    found = clone(model).fit(X, y)
    assert isinstance(found._state.root, WideRows)
    assert found.certificate_["conditioning"].holds is None
    assert not found.certificate_.holds


def test_too_many_rows_leave_the_certificate_undecided(monkeypatch):
    X = inputs()
    model = DropoutRegressor(2).fit(X, targets(X))
    monkeypatch.setattr("lucidae.dropout.certificate.LARGEST_ROWS", 50)
    (claim,) = certify(model, X, targets(X))
    assert claim.holds is None
    assert "60 rows" in claim.advice
    assert verified_rows.LARGEST_ROWS > 50


def test_no_dense_matrix_of_all_rows_and_features_is_formed(monkeypatch):
    X = inputs()
    y = targets(X)

    def refuse(*_, **__):
        raise AssertionError("rows were made dense")

    monkeypatch.setattr(wide, "row_factor", refuse)
    monkeypatch.setattr("lucidae.dropout.estimators.network.PROBED_ENTRIES", 0)
    model = DropoutRegressor(2).fit(X, y)
    assert model.certificate_.holds
    assert certify(model, X, y).holds


def test_saved_models_and_the_path_of_ranks(tmp_path, monkeypatch):
    X = inputs()
    y = targets(X)
    model = DropoutRegressor(2).fit(X, y)
    save(model, tmp_path / "model.npz")
    again = load(tmp_path / "model.npz")
    assert_allclose(again.coef_, model.coef_)
    assert verdicts(again.certificate_) == verdicts(model.certificate_)
    with pytest.raises(ValueError, match="does not store the second moment"):
        model.partial_fit(X, y)

    def path():
        return rank_path(X, y, cv=3)

    found, expected = path(), by_factors(monkeypatch, path)
    assert_allclose(found.error, expected.error, atol=1e-10)
    assert_allclose(found.cv.errors, expected.cv.errors, rtol=1e-8)


@pytest.mark.parametrize("sparse", [False, True])
def test_the_loss_and_its_gradient_are_those_of_the_rows(sparse, monkeypatch):
    X = inputs(sparse=sparse)
    y, rng = targets(X), np.random.default_rng(6)
    weights = Weights(rng.standard_normal((3, 2)), rng.standard_normal((150, 2)))

    def objective():
        problem = ridged(wide.rows_problem(X, y, None, centered=True)[0], 0.0)
        return DropoutObjective(problem, 0.4)

    found, expected = objective(), by_factors(monkeypatch, objective)
    assert found.problem.rows is not None
    assert not found.problem.is_white
    assert_allclose(found.value(weights), expected.value(weights), rtol=1e-12)
    for ours, theirs in zip(found.gradient(weights), expected.gradient(weights), strict=True):
        assert_allclose(ours, theirs, atol=1e-10 * np.abs(theirs).max())


@pytest.mark.parametrize(("factor", "word"), [(1e160, "overflow"), (1e-170, "underflow")])
def test_squares_out_of_range_are_refused(factor, word):
    X = factor * inputs()
    with pytest.raises(ValueError, match=word):
        DropoutRegressor(2).fit(X, targets(inputs()))


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_constant_inputs_have_zero_coefficients(value):
    X = scipy.sparse.csr_array(np.full((20, 60), value))
    model = DropoutRegressor().fit(X, np.random.default_rng(0).standard_normal(20))
    assert np.all(model.coef_ == 0)
    assert model.certificate_.holds


def test_single_precision_and_torch():
    X = inputs(sparse=False)
    y = targets(X)
    expected = DropoutRegressor(2).fit(X, y).coef_
    limit = 1e-4 * np.abs(expected).max()
    single = DropoutRegressor(2).fit(X.astype(np.float32), y.astype(np.float32))
    assert single.coef_.dtype == np.float32
    assert_allclose(single.coef_, expected, rtol=0, atol=limit)
    assert single.certificate_["gap"].holds
    torch = require("torch")
    there = DropoutRegressor(2).fit(torch.as_tensor(X), torch.as_tensor(y))
    assert isinstance(there._state.root, WideRows)
    assert_allclose(there.coef_.numpy(), expected, atol=1e-10 * np.abs(expected).max())
    assert there.certificate_.holds
