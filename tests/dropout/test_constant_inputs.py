"""Inputs that do not vary, or vary by rounding errors only: they must not depend on units."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose
from sklearn.base import clone

from lucidae import DropoutAutoencoder, DropoutRegressor, certify
from lucidae.dropout import projection, wide
from lucidae.dropout.objectives import data_resolution, varying
from lucidae.rows import sources as linear_data

CONSTANTS = [0.0, 1.0, 1 / 3, -1e3 / 7]


def verdicts(certificate):
    """Return the verdicts by the name of the claim; sampling has none."""
    return {claim.name: claim.holds for claim in certificate if claim.name != "sampling"}


def problem(constant, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((40, 5))
    Y = X @ rng.standard_normal((5, 3)) + 0.3 * rng.standard_normal((40, 3))
    X[:, 1] = constant
    return X, Y, rng.uniform(0.5, 2.0, 40)


def fitted(X, Y, weights, intercept, route):
    model = DropoutRegressor(2, dropout=0.3, fit_intercept=intercept)
    if route == "stream":
        for part in (slice(0, 17), slice(17, 40)):
            model.partial_fit(X[part], Y[part], None if weights is None else weights[part])
        return model, X
    X = scipy.sparse.csr_array(X) if route == "sparse" else X
    return model.fit(X, Y, weights), X


@pytest.mark.parametrize("constant", CONSTANTS)
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("route", ["rows", "sparse", "stream"])
def test_units_of_a_constant_column_change_nothing(constant, intercept, weighted, route):
    X, Y, weights = problem(constant)
    weights = weights if weighted else None
    expected, given = fitted(X, Y, weights, intercept, route)
    assert expected.certificate_.holds
    others = np.where(np.arange(5) == 1, 1.0, 1e12)
    for units in (np.full(5, 1e12), np.full(5, 1e-12), others, 1 / others, 1e12 / others):
        found, given = fitted(X * units, Y, weights, intercept, route)
        assert_allclose(found.coef_ * units, expected.coef_, rtol=0, atol=1e-9)
        assert_allclose(found.objective_, expected.objective_, rtol=1e-9)
        assert verdicts(found.certificate_) == verdicts(expected.certificate_)
        assert certify(found, given, Y, sample_weight=weights).holds
        if intercept or constant == 0.0:
            assert np.all(found.coef_[:, 1] == 0.0)


@pytest.mark.parametrize("constant", CONSTANTS)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_a_constant_column_of_few_rows_has_no_weight(constant, weighted, sparse, monkeypatch):
    """With fewer rows than features, rounding errors of its mean were taken for variance."""
    monkeypatch.setattr(wide, "STORED_FEATURES", 40)
    rng = np.random.default_rng(1)
    X, Y = rng.standard_normal((30, 60)), rng.standard_normal((30, 3))
    weights = rng.uniform(0.5, 2.0, 30) if weighted else None
    X[:, 7] = constant
    plain = DropoutRegressor(2, dropout=0.3).fit(np.delete(X, 7, axis=1), Y, weights)
    given = scipy.sparse.csr_array(X) if sparse else X
    found = DropoutRegressor(2, dropout=0.3).fit(given, Y, weights)
    assert np.all(found.coef_[:, 7] == 0.0)
    assert_allclose(np.delete(found.coef_, 7, axis=1), plain.coef_, atol=1e-9)
    assert found.certificate_.holds
    assert certify(found, given, Y, sample_weight=weights).holds


def test_rows_of_zero_weight_do_not_make_a_column_vary():
    X, Y, _ = problem(1 / 3)
    weights = np.ones(40)
    weights[7] = 0.0
    expected = DropoutRegressor(2).fit(np.delete(X, 7, 0), np.delete(Y, 7, 0))
    X[7, 1] = 5.0
    for given in (X, scipy.sparse.csr_array(X)):
        found = DropoutRegressor(2).fit(given, Y, weights)
        assert_allclose(found.coef_, expected.coef_, atol=1e-12)
        assert found.certificate_.holds
        assert certify(found, given, Y, sample_weight=weights).holds
    X[7, 1], Y[7] = 1 / 3, 1e6
    Y[:, 0] = np.where(np.arange(40) == 7, 9.0, 2.0)
    assert DropoutRegressor(2).fit(X, Y, weights).certificate_.holds


@pytest.mark.parametrize("shape", [(60, 50), (45, 50), (60, 30)], ids=str)
@pytest.mark.parametrize("weighted", [True, False])
def test_an_autoencoder_of_equal_rows_learns_nothing(shape, weighted, monkeypatch):
    monkeypatch.setattr(wide, "STORED_FEATURES", 40)
    monkeypatch.setattr(linear_data, "STORED_FEATURES", 40)
    monkeypatch.setattr(projection, "SMALL", 40)
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.5, 2.0, shape[0]) if weighted else None
    for scale in (1.0, 1e12, 1e-12):
        X = np.tile(scale * rng.standard_normal(shape[1]), (shape[0], 1))
        model = DropoutAutoencoder(3, dropout=0.3).fit(X, sample_weight=weights)
        assert model.rank_ == 0
        assert model.objective_ <= (1e-15 * np.linalg.norm(X[0])) ** 2
        assert model.certificate_.holds
        assert certify(model, X, sample_weight=weights).holds
        assert_allclose(model.inverse_transform(model.transform(X)), X, rtol=1e-14)


@pytest.mark.parametrize("size", [1e-5, 1e-6, 1e-7])
@pytest.mark.parametrize("dropout", [0.0, 1e-9, 0.3])
def test_small_singular_values_of_many_features_are_found(size, dropout, monkeypatch):
    """The eigenvalues of the second moment are squares, in which they were lost."""
    monkeypatch.setattr(wide, "STORED_FEATURES", 40)
    monkeypatch.setattr(linear_data, "STORED_FEATURES", 40)
    monkeypatch.setattr(projection, "SMALL", 40)
    rng = np.random.default_rng(0)
    P = np.linalg.qr(rng.standard_normal((150, 6)))[0]
    P = np.linalg.qr(P - P.mean(axis=0))[0]
    Q = np.linalg.qr(rng.standard_normal((200, 6)))[0]
    values = np.r_[1.0, size / np.arange(1, 6)]
    X = np.sqrt(150) * (P * values) @ Q.T
    model = DropoutAutoencoder(4, dropout=dropout).fit(X)
    assert_allclose(model.singular_values_, values[:4], rtol=1e-3 if size < 1e-6 else 1e-6)
    for certificate in (model.certificate_, certify(model, X)):
        assert certificate["gap"].holds
        assert certificate.holds is not False


def low_rank(rank, seed):
    rng = np.random.default_rng(seed)
    X = (rng.standard_normal((60, rank)) @ rng.standard_normal((rank, 6))).astype(np.float32)
    Y = X @ rng.standard_normal((6, 3)) + 0.1 * rng.standard_normal((60, 3))
    return X, Y.astype(np.float32)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_directions_that_single_precision_does_not_resolve_count_as_constant(rank, seed):
    """They are rounding errors; the certificate is open about what they would explain."""
    X, Y = low_rank(rank, seed)
    model = DropoutRegressor(2, dropout=0.3)
    stream = clone(model).partial_fit(X[:30], Y[:30]).partial_fit(X[30:], Y[30:])
    sparse = clone(model).fit(scipy.sparse.csr_array(X), Y)
    exact = clone(model).fit(np.float64(X) @ np.eye(6)[:, :rank], np.float64(Y))
    for found in (clone(model).fit(X, Y), stream, sparse):
        assert_allclose(found.predict(X), exact.predict(X[:, :rank]), atol=1e-4)
        assert np.abs(found.coef_).max() < 100
        for certificate in (found.certificate_, certify(found, X, Y), certify(found, X + 0.0, Y)):
            assert certificate.holds is None
            assert certificate["gap"].holds is None
            assert "float32" in certificate["gap"].advice
    explained = clone(model).fit(X, X[:, :2] @ np.eye(2, 3, dtype=np.float32))
    assert explained.certificate_["gap"].holds
    assert explained.certificate_["rank"].holds
    wrong = clone(model).fit(X, Y)
    wrong.left_ = 1.5 * wrong.left_
    assert certify(wrong, X, Y)["gap"].holds is False


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
        level = data_resolution(precision, deviations, mean)
        assert noise < level < 1e3 * noise
        assert data_resolution(2.0**-52, deviations, mean) == 0.0


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
