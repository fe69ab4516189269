"""Extreme scales and degenerate data: finite results that are certified, or a sentence."""

import copy
import itertools

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone

from dropout.problems import regression_data
from extras import require
from lucidae import DropoutAutoencoder, DropoutFactorization, DropoutRegressor, certify
from lucidae.dropout import DropoutObjective, LinearProblem, Weights, certify_weights

SGD = {"solver": "sgd", "max_iter": 100, "random_state": 0}
MODELS = {
    "regressor": DropoutRegressor(2),
    "cross-validated": DropoutRegressor(2, dropout="cv", cv=2),
    "regressor by sgd": DropoutRegressor(2, **SGD),
    "autoencoder": DropoutAutoencoder(2),
    "autoencoder by sgd": DropoutAutoencoder(2, **SGD),
    "factorization": DropoutFactorization(2),
}
NUMBERS = ("left_", "right_", "rank_", "threshold_", "singular_values_", "objective_")
NUMBERS += ("coef_", "intercept_", "mean_", "dropout_", "n_components_")
SCALES = {np.float32: (1e-30, 1e-20, 1.0, 1e20, 1e30), np.float64: (1e-300, 1e-140, 1.0, 1e140)}
MORE = {
    np.float32: (1e-37, 1e-30, 1e-20, 1e-10, 1.0, 1e10, 1e20, 1e30, 1e37),
    np.float64: (1e-300, 1e-160, 1e-140, 1e-80, 1.0, 1e80, 1e140, 1e160, 1e300),
}


def numbers(model):
    """Return every number in the fitted attributes of an estimator."""
    found = [np.ravel(getattr(model, name)) for name in NUMBERS if hasattr(model, name)]
    return np.concatenate(found).astype(float)


def outputs(model, X):
    if hasattr(model, "predict"):
        return model.predict(X)
    return np.concatenate(
        [np.ravel(model.transform(X)), np.ravel(model.inverse_transform(model.transform(X)))]
    )


@pytest.mark.covering
@pytest.mark.parametrize("scales", [SCALES, pytest.param(MORE, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", SCALES)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_fit_at_any_scale_is_finite_or_an_error(name, dtype, scales):
    rows, targets = regression_data(n=30)
    fitted, sentences = 0, []
    of_targets = scales[dtype] if isinstance(MODELS[name], DropoutRegressor) else (1.0,)
    for scale, other in itertools.product(scales[dtype], of_targets):
        X, Y = (scale * rows).astype(dtype), (other * targets).astype(dtype)
        try:
            model = clone(MODELS[name]).fit(X, Y)
        except ValueError as error:
            sentences.append(str(error))
            continue
        fitted += 1
        assert np.isfinite(numbers(model)).all()
        assert np.isfinite(outputs(model, X)).all()
        own, again = model.certificate_, certify(model, X, Y)
        assert [claim.verdict for claim in own] == [claim.verdict for claim in again]
        assert np.isfinite([claim.value for claim in own if claim.value is not None]).all()
        if "sgd" not in name:
            assert own.holds is True, (scale, other, own.summary())
    assert fitted >= 3
    words = ("cannot represent", "overflow", "underflow")
    assert all(any(word in sentence for word in words) for sentence in sentences)


def test_single_precision_that_overflows_is_an_error_that_names_the_attribute():
    X, Y = regression_data(n=30)
    small, large = (X * 1e-20).astype(np.float32), Y * 1e20
    model = DropoutRegressor(2)
    with pytest.raises(ValueError, match=r"coef_ has entries of the size .* float32"):
        model.fit(small, large)
    assert not hasattr(model, "coef_")
    assert DropoutRegressor(2).fit(X * 1e-20, large).certificate_.holds is True
    stream = DropoutRegressor(2)
    with pytest.raises(ValueError, match=r"coef_ has entries of the size .* float32"):
        stream.partial_fit(small, large)
    assert not hasattr(stream, "coef_")
    torch = require("torch")
    with pytest.raises(ValueError, match="coef_"):
        DropoutRegressor(2).fit(torch.as_tensor(small), torch.as_tensor(large))


def test_weights_that_single_precision_makes_worse_are_said_to_be_rounded():
    rng = np.random.default_rng(3)
    Z = rng.standard_normal((50, 4))
    X = (Z[:, :1] + 1e-6 * Z).astype(np.float32)
    Y = (X @ rng.standard_normal((4, 3)) + rng.standard_normal((50, 3))).astype(np.float32)
    model = DropoutRegressor(3, dropout=0.2).fit(X, Y)
    assert model.certificate_["gap"].holds is False
    assert "float64" in model.certificate_["gap"].advice
    assert certify(model, X, Y)["gap"].advice == model.certificate_["gap"].advice
    assert DropoutRegressor(3, dropout=0.2).fit(X.astype(float), Y).certificate_.holds is True


@pytest.mark.parametrize("name", ["regressor", "autoencoder", "factorization"])
def test_outputs_that_overflow_are_an_error(name):
    X, Y = regression_data(n=30)
    model = clone(MODELS[name]).fit((X * 1e-3).astype(np.float32), Y.astype(np.float32) * 1e3)
    with pytest.raises(ValueError, match="overflows float32"):
        outputs(model, np.full((2, 5), 3e38, dtype=np.float32))


def test_targets_keep_their_digits_beside_inputs_in_single_precision():
    X, Y = regression_data()
    X = X.astype(np.float32)
    mixed = DropoutRegressor(2).fit(X, Y + 1e6)
    double = DropoutRegressor(2).fit(X.astype(float), Y + 1e6)
    assert mixed.objective_ == pytest.approx(double.objective_, rel=1e-10)


def test_columns_whose_squares_underflow_are_an_error():
    X, Y = regression_data()
    with pytest.raises(ValueError, match="squares of y underflow"):
        DropoutRegressor(2).fit(X, 1e-170 * Y)
    with pytest.raises(ValueError, match="column 1 of X underflow"):
        DropoutRegressor(2).fit(X * [1.0, 1e-170, 1.0, 1.0, 1.0], Y)
    with pytest.raises(ValueError, match="column 1 of X underflow"):
        DropoutRegressor(2).fit(scipy.sparse.csr_array(X * [1.0, 1e-170, 1.0, 1.0, 1.0]), Y)
    with pytest.raises(ValueError, match="squares of y overflow"):
        DropoutRegressor(2).fit(X, 1e170 * Y)
    assert DropoutRegressor(2).fit(X * [1.0, 0.0, 1.0, 1.0, 1.0], Y).certificate_.holds is True


@pytest.mark.parametrize("scale", [1e-140, 1e-100, 1e100, 1e140])
def test_the_relative_gradient_does_not_depend_on_the_units(scale):
    rng = np.random.default_rng(0)
    M, U, V = (rng.standard_normal(shape) for shape in ((3, 3), (3, 2), (3, 2)))
    plain = DropoutObjective(LinearProblem.from_matrix(M), 0.5)
    scaled = DropoutObjective(LinearProblem.from_matrix(scale * M), 0.5)
    root = scale**0.5
    expected = plain.stationarity(Weights(U, V))
    assert scaled.stationarity(Weights(root * U, root * V)) == pytest.approx(expected)
    assert scaled.tied_stationarity(root * U) == pytest.approx(plain.tied_stationarity(U))


def test_degenerate_data_are_certified_without_an_error():
    X, Y = regression_data()
    best = DropoutRegressor(2).fit(X, Y)
    coder, factors = DropoutAutoencoder(2).fit(X), DropoutFactorization(2).fit(X)
    others = [(X[:1], Y[:1]), (np.ones_like(X), Y), (X, 0 * Y), (0 * X, 0 * Y), (X, 0 * Y + 5.0)]
    for rows, targets in others:
        assert certify(best, rows, targets).holds is False
        certificate = certify_weights(best.left_, best.right_, rows, targets, dropout=0.5)
        assert certificate["gap"].holds is not None
        again = DropoutRegressor(2).fit(rows, targets)
        assert again.certificate_.holds is True, again.certificate_.summary()
        assert certify(again, rows, targets).holds is True
        assert np.isfinite(again.predict(rows)).all()
    for rows in (X[:1], np.ones_like(X), 0 * X):
        assert certify(coder, rows).holds is False
        again = DropoutAutoencoder(2).fit(rows)
        assert certify(again, rows).holds is True
        if rows.shape == X.shape:
            assert certify(factors, rows).holds is False


def refusal(fit, X, Y):
    """Return the sentence with which `fit` refuses the rows; an empty one if it takes them."""
    try:
        fit(X, Y)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", [DropoutRegressor, DropoutAutoencoder])
def test_partial_fit_refuses_rows_whose_weights_the_dtype_cannot_represent(kind):
    rows, targets = regression_data(n=30)
    fitted = kind(2).partial_fit(rows.astype("f4"), targets.astype("f4"))
    before = {name: getattr(fitted, name) for name in ("left_", "right_", "rank_")}
    sentences = []
    for scale, other in itertools.product(MORE[np.float32], (1e-20, 1.0, 1e20)):
        X, Y = (scale * rows).astype("f4"), (other * targets).astype("f4")
        fresh, further = kind(2), copy.deepcopy(fitted)
        sentences += [refusal(fresh.partial_fit, X, Y), refusal(further.partial_fit, X, Y)]
        # A first batch is refused if and only if `fit` refuses it; a refused batch changes nothing.
        assert bool(sentences[-2]) == bool(refusal(kind(2).fit, X, Y))
        assert fresh.__sklearn_is_fitted__() == (not sentences[-2])
        for model in (fresh, further):
            if model.__sklearn_is_fitted__():
                assert np.isfinite(numbers(model)).all()
        if sentences[-1]:
            assert all(np.array_equal(before[name], getattr(further, name)) for name in before)
    refused = [sentence for sentence in sentences if sentence]
    assert all("represent" in sentence or "flow" in sentence for sentence in refused)
    # The weights of an autoencoder have no units; those of a regressor have the units of y / x.
    assert bool(refused) == (kind is DropoutRegressor)


WIDE = np.random.default_rng(0).standard_normal((15, 1100)) + 1.0
FEW_ROWS = {
    "constant": np.ones((10, 1100)),
    "zero": np.zeros((10, 1100)),
    "one row": WIDE[:1],
    "repeated rows": np.repeat(WIDE[:5], 3, axis=0),
    "constant columns": np.where(np.arange(1100) < 600, 3.0, WIDE),
    "large mean": WIDE + 1e9,
    "huge": 1e140 * WIDE,
    "tiny": 1e-120 * WIDE,
}


@pytest.mark.parametrize("name", FEW_ROWS)
def test_extreme_rows_of_many_features_are_fitted_and_certified(name):
    X = FEW_ROWS[name]
    y = np.random.default_rng(1).standard_normal((len(X), 2))
    for model in (
        DropoutAutoencoder(3, dropout=0.2).fit(X),
        DropoutRegressor(dropout=0.2).fit(X, y),
        DropoutFactorization(3, dropout=0.2).fit(X),
    ):
        assert model.certificate_.holds
        assert np.isfinite(model.left_).all()


def test_rows_far_from_zero_whose_squares_overflow_are_refused_without_an_intercept():
    X, Y = regression_data()
    model = DropoutRegressor(2, fit_intercept=False).fit(X, Y)
    for attempt in (model.fit, lambda X, y: certify(model, X, y)):
        with pytest.raises(ValueError, match=r"squares of X (or y )?overflow") as refused:
            attempt(np.full_like(X, 1e300), Y)
        assert type(refused.value) is ValueError
