"""Certificates of fitted estimators judge what `predict` and `transform` use, on the given rows."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose
from sklearn.base import clone

from dropout.problems import regression_data
from lucidae import DropoutAutoencoder, DropoutFactorization, DropoutRegressor, certify

SGD = {"solver": "sgd", "tol": 0.02, "random_state": 0}
MODELS = {
    "regressor": DropoutRegressor(2, dropout=0.3),
    "one target": DropoutRegressor(2, dropout=0.3),
    "no intercept": DropoutRegressor(2, dropout=0.3, fit_intercept=False),
    "cross-validated": DropoutRegressor(2, dropout="cv", cv=2),
    "regressor by sgd": DropoutRegressor(2, dropout=0.3, **SGD),
    "autoencoder": DropoutAutoencoder(2, dropout=0.3),
    "autoencoder by sgd": DropoutAutoencoder(2, dropout=0.3, **SGD),
    "factorization": DropoutFactorization(2, dropout=0.3),
}


def data(name, seed=0, dtype=np.float64):
    X, Y = regression_data(seed)
    y = Y[:, 0] if name == "one target" else Y
    return X.astype(dtype), y.astype(dtype)


def verdicts(certificate):
    return [(claim.name, claim.verdict) for claim in certificate]


def streams(name):
    return name in ("regressor", "one target", "no intercept", "autoencoder")


CASES = [
    (name, way)
    for name in MODELS
    for way in ("fit", "sparse", "stream")
    if (way != "stream" or streams(name)) and (way, name) != ("sparse", "factorization")
]


@pytest.mark.covering
@pytest.mark.parametrize(
    ("dtype", "weighted", "shift"),
    [
        (np.float64, True, 1e4),
        (np.float32, False, 1e4),
        pytest.param(np.float64, False, 0.0, marks=pytest.mark.slow),
        pytest.param(np.float32, True, 0.0, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(("name", "way"), CASES)
def test_the_same_fit_gets_the_same_verdicts_both_ways(name, way, dtype, weighted, shift):
    X, y = data(name, dtype=dtype)
    X = (X + shift).astype(dtype)
    weights = np.random.default_rng(1).integers(0, 3, len(X)) if weighted else None
    extra = {} if weights is None or name == "factorization" else {"sample_weight": weights}
    model, given = clone(MODELS[name]), scipy.sparse.csr_array(X) if way == "sparse" else X
    if way == "stream":
        for start in range(0, len(X), 20):
            rows = slice(start, start + 20)
            part = {key: value[rows] for key, value in extra.items()}
            model.partial_fit(given[rows], y[rows], **part)
    else:
        model.fit(given, y, **extra)
    own, again = model.certificate_, certify(model, given, y, **extra)
    assert verdicts(own) == verdicts(again)
    if "sgd" not in name:
        assert own.holds is True, own.summary()
    assert own.holds is not False, own.summary()


@pytest.mark.covering
@pytest.mark.parametrize(("dtype", "amount"), [(np.float64, 1e-3), (np.float32, 100.0)])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "factorization"])
def test_shifted_rows_are_not_those_of_the_fit(name, amount, dtype):
    X, y = data(name, dtype=dtype)
    if name == "no intercept":  # such weights are almost optimal for rows that are shifted less
        amount = max(amount, 1.0)
    model = clone(MODELS[name]).fit(X, y)
    assert certify(model, X, y).holds is not False
    for column in range(X.shape[1]):
        moved = X.copy()
        moved[:, column] += amount * X[:, column].std()
        assert certify(model, moved, y).holds is False
    if isinstance(model, DropoutRegressor):
        assert certify(model, X, y + amount * y.std(0)).holds is False


def test_a_shift_of_a_feature_of_small_scale_is_noticed():
    X, _ = regression_data()
    X = X * [1e6, 1.0, 1e-6, 1.0, 1.0]
    model = DropoutAutoencoder(2).fit(X)
    assert certify(model, X).holds is True
    moved = X.copy()
    moved[:, 2] += 1e-8
    assert certify(model, moved)["attributes"].holds is False


ASSIGNED = {
    "mean_": lambda value: value + 1.0,
    "intercept_": lambda value: value + 1.0,
    "coef_": lambda value: 1.01 * value,
    "left_": lambda value: 1.01 * value,
    "right_": lambda value: 1.01 * value,
    "dropout_": lambda value: value / 2,
    "n_components_": lambda value: value + 1,
    "rank_": lambda value: value - 1,
    "threshold_": lambda value: 1.01 * value,
    "singular_values_": lambda value: 1.01 * value,
    "objective_": lambda value: 0.99 * value,
}


@pytest.mark.parametrize("name", [name for name in MODELS if "sgd" not in name])
def test_an_assigned_attribute_is_judged(name):
    X, y = data(name)
    model = clone(MODELS[name]).fit(X, y)
    names = [attribute for attribute in ASSIGNED if hasattr(model, attribute)]
    assert len(names) >= 8
    for attribute in names:
        setattr(model, attribute, ASSIGNED[attribute](getattr(model, attribute)))
        for certificate in (certify(model, X, y), certify(model), model.certificate_):
            assert certificate.holds is False, attribute
        assert model.fit(X, y).certificate_.holds is True  # a fit replaces what was assigned
        setattr(model, attribute, getattr(model, attribute))
        assert certify(model, X, y).holds is True
        assert model.certificate_.holds is True


@pytest.mark.covering
@pytest.mark.parametrize("alpha", [0.0, 3.0])
@pytest.mark.parametrize("features", [1100, 4200])
def test_an_assigned_attribute_of_many_features_is_judged(features, alpha):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((25, features)) * (rng.random((25, features)) < 0.1)
    X[:, 4] = 0.0
    X, y = scipy.sparse.csr_array(X), X[:, :5] @ rng.standard_normal((5, 3)) + 4.0
    best = DropoutRegressor(2, alpha=alpha).fit(X, y)
    left, right = best.left_, best.right_
    # The loss does not depend on weights of the feature that is zero in all rows.
    outside = np.zeros((features, 2))
    outside[4] = 0.1 * np.linalg.norm(right)
    noise = 0.1 * np.std(right) * rng.standard_normal(right.shape)
    for claim, changes in (
        ("gap", {"left_": 1.01 * left}),
        ("gap", {"right_": right + noise}),
        ("gap", {"left_": 0.0 * left}),
        ("equalized", {"left_": left * [2.0, 1.0]}),
        ("attributes", {"coef_": 1.001 * best.coef_}),
        ("attributes", {"intercept_": best.intercept_ + 0.1}),
        ("attributes", {"singular_values_": 1.01 * best.singular_values_}),
        ("attributes", {"right_": right + outside, "coef_": left @ (right + outside).T}),
    ):
        model = DropoutRegressor(2, alpha=alpha).fit(X, y)
        for name, value in changes.items():
            setattr(model, name, value)
        assert model.certificate_["attributes"].holds is False
        assert certify(model, X, y)[claim].holds is False, changes.keys()


def test_a_changed_coefficient_of_a_feature_of_large_scale_is_noticed():
    X, Y = regression_data()
    X = X * [1e6, 1.0, 1.0, 1.0, 1.0]
    model = DropoutRegressor(2, dropout=0.3).fit(X, Y)
    model.coef_ = model.coef_ * [1.01, 1.0, 1.0, 1.0, 1.0]
    assert certify(model, X, Y)["attributes"].holds is False


def test_junk_in_assigned_attributes_is_an_error():
    X, Y = regression_data()
    for attribute, wrong in (("left_", np.nan), ("right_", np.inf)):
        model = DropoutRegressor(2).fit(X, Y)
        setattr(model, attribute, np.full_like(getattr(model, attribute), wrong))
        with pytest.raises(ValueError, match=attribute):
            certify(model, X, Y)
    model = DropoutAutoencoder(2).fit(X)
    model.mean_ = np.zeros(3)
    with pytest.raises(ValueError, match="mean_ has shape"):
        certify(model, X)
    model = DropoutRegressor(2).fit(X, Y)
    model.left_ = 1e200 * model.left_
    with pytest.raises(ValueError, match="overflow"):
        certify(model, X, Y)


def test_predict_uses_what_a_user_assigned():
    X, Y = regression_data()
    model = DropoutRegressor(2, dropout=0.2).fit(X, Y)
    fitted = model.predict(X)
    model.intercept_ = model.intercept_ + 1.0
    assert_allclose(model.predict(X), fitted + 1.0)
    model.coef_ = 2 * model.coef_
    assert_allclose(model.predict(X), X @ model.coef_.T + model.intercept_)
    model.intercept_ = np.zeros(3)
    assert_allclose(model.predict(X), X @ model.coef_.T)
    coder = DropoutAutoencoder(2).fit(X)
    coder.mean_ = coder.mean_ + 1.0
    assert_allclose(coder.transform(X), (X - X.mean(0) - 1.0) @ coder.right_)
    factors = DropoutFactorization(2).fit(X)
    codes = factors.transform(X)
    factors.right_ = 2 * factors.right_
    assert_allclose(factors.transform(X), codes / 2)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("sparse", [False, True])
def test_means_far_above_the_deviations_lose_few_digits(dtype, sparse):
    rng = np.random.default_rng(0)
    mean = 1e8 if dtype is np.float64 else 1e3
    X = (mean + np.round(64 * rng.standard_normal((60, 4)))).astype(dtype)
    near = X.astype(float) - mean  # exact: the rows are whole numbers
    Y = near @ rng.standard_normal((4, 2)) + rng.standard_normal((60, 2)) + 3.0
    model = DropoutRegressor(dropout=0.0).fit(scipy.sparse.csr_array(X) if sparse else X, Y)
    reference = DropoutRegressor(dropout=0.0).fit(near, Y)
    tolerance = 1e-9 if dtype is np.float64 else 2e-5
    size = np.abs(Y).max()
    assert_allclose(model.predict(X), reference.predict(near), atol=tolerance * size)
    assert model.certificate_.holds is True, model.certificate_.summary()
    assert certify(model, X, Y).holds is True
    coder = DropoutAutoencoder(2).fit(X)
    expected = DropoutAutoencoder(2).fit(near).transform(near)
    assert_allclose(coder.transform(X), expected, atol=tolerance * np.abs(expected).max())
    assert coder.certificate_.holds is True


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))]
)
def test_features_of_very_different_scales_are_no_false_failure(seed):
    rng = np.random.default_rng(seed)
    n, m = rng.integers(5, 60), rng.integers(2, 9)
    X = rng.standard_normal((n, m)) @ rng.standard_normal((m, m))
    X = X * 10.0 ** rng.uniform(-6, 6, size=m)
    Y = X / X.std(0) @ rng.standard_normal((m, 3)) + rng.standard_normal((n, 3))
    for dropout in (0.0, 0.3, 1 - 1e-9):
        for width in (1, int(m)):
            coder = DropoutAutoencoder(width, dropout=dropout).fit(X)
            assert coder.certificate_.holds is True, coder.certificate_.summary()
            model = DropoutRegressor(width, dropout=dropout).fit(X, Y)
            assert model.certificate_.holds is not False, model.certificate_.summary()


@pytest.mark.parametrize("dropout", [1 - 1e-9, 1 - 2**-53])
@pytest.mark.parametrize("ties", [0.0, 1e-15, 1e-10])
def test_dropout_towards_one_leaves_the_rank_of_ties_undecided(dropout, ties):
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((20, 4)))[0]
    basis = np.linalg.qr(basis - basis.mean(0))[0]
    X = basis * (1 + ties * np.arange(4))
    for model in (
        DropoutRegressor(3, dropout=dropout).fit(X, X[:, :3]),
        DropoutAutoencoder(3, dropout=dropout).fit(X),
        DropoutFactorization(3, dropout=dropout).fit(X),
    ):
        assert model.certificate_.holds is not False, model.certificate_.summary()
        assert model.certificate_["gap"].holds is True


@pytest.mark.parametrize("mean", [0.0, 1e3, 1e5, 1e6])
def test_a_range_that_the_moment_does_not_resolve_is_undecided(mean):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6, 11)) + mean
    Y = X @ rng.standard_normal((11, 2))
    model = DropoutRegressor(2, dropout=0.1, fit_intercept=False)
    model.partial_fit(X[:3], Y[:3]).partial_fit(X[3:], Y[3:])
    if mean <= 1e3:
        assert model.certificate_.holds is True
        assert certify(model, X, Y).holds is True
    else:  # the digits of the moment do not show whether V is the one of smallest norm
        assert model.certificate_["attributes"].undecided
        assert model.certificate_.holds is None
        assert certify(model, X, Y).holds is not True


@pytest.mark.covering
@pytest.mark.parametrize(("dtype", "read_before"), [(np.float64, False), (np.float32, True)])
@pytest.mark.parametrize("name", [name for name in MODELS if "sgd" not in name])
def test_attributes_changed_in_place_are_judged(name, dtype, read_before):
    X, y = data(name, dtype=dtype)
    arrays = [
        key for key in ASSIGNED if isinstance(getattr(fitted(name, X, y), key, 0), np.ndarray)
    ]
    assert {"left_", "right_", "singular_values_"} <= set(arrays)
    for attribute in arrays:
        model = fitted(name, X, y)
        if read_before:
            assert model.certificate_.holds is True
        before = getattr(model, attribute).copy()
        getattr(model, attribute)[:] = 9.0 if attribute in ("mean_", "intercept_") else 0.0
        assert model.certificate_["attributes"].holds is False
        assert certify(model).holds is False
        assert certify(model, X, y).holds is False
        getattr(model, attribute)[:] = before  # the fitted state itself was not changed
        assert model.certificate_.holds is True
        getattr(model, attribute)[:] = np.nan
        assert model.certificate_.holds is False


def fitted(name, X, y):
    return clone(MODELS[name]).fit(X, y)
