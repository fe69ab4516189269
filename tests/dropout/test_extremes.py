"""Extreme scales, degenerate data and wrong parameters: finite results, or a sentence."""

import copy
import itertools
import warnings

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold

from dropout.problems import regression_data
from extras import require
from lucidae import DropoutAutoencoder, DropoutFactorization, DropoutRegressor, certify
from lucidae.dropout import (
    DropoutObjective,
    LinearProblem,
    Weights,
    certify_weights,
    descend,
    solve,
    solve_tied,
)
from lucidae.dropout.sgd import GaussianSource

SGD = {"solver": "sgd", "max_iter": 100, "random_state": 0}
MODELS = {
    "regressor": DropoutRegressor(2),
    "cross-validated": DropoutRegressor(2, dropout="cv", cv=3),
    "regressor by sgd": DropoutRegressor(2, **SGD),
    "autoencoder": DropoutAutoencoder(2),
    "autoencoder by sgd": DropoutAutoencoder(2, **SGD),
    "factorization": DropoutFactorization(2),
}
SCALES = {
    np.float32: (1e-30, 1e-20, 1.0, 1e20, 1e30),
    np.float64: (1e-300, 1e-160, 1e-140, 1e-80, 1.0, 1e80, 1e140, 1e160, 1e300),
}


def numbers(values):
    """Return every number in the fitted attributes of an estimator."""
    kinds = (float, int, np.ndarray)
    return np.concatenate([np.ravel(v).astype(float) for v in values if isinstance(v, kinds)])


def outputs(model, X):
    if hasattr(model, "predict"):
        return model.predict(X)
    return np.concatenate(
        [np.ravel(model.transform(X)), np.ravel(model.inverse_transform(model.transform(X)))]
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", SCALES)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_fit_at_any_scale_is_finite_or_an_error(name, dtype):
    rows, targets = regression_data(n=30)
    fitted, sentences = 0, []
    of_targets = SCALES[dtype] if isinstance(MODELS[name], DropoutRegressor) else (1.0,)
    for scale, other in itertools.product(SCALES[dtype], of_targets):
        X, Y = (scale * rows).astype(dtype), (other * targets).astype(dtype)
        try:
            model = clone(MODELS[name]).fit(X, Y)
        except ValueError as error:
            sentences.append(str(error))
            continue
        fitted += 1
        assert np.isfinite(numbers(vars(model._state)["_attributes"].values())).all()
        assert np.isfinite(outputs(model, X)).all()
        own, again = model.certificate_, certify(model, X, Y)
        assert [claim.verdict for claim in own] == [claim.verdict for claim in again]
        assert np.isfinite([claim.value for claim in own if claim.value is not None]).all()
        if "sgd" not in name:
            assert own.holds is True, (scale, other, own.summary())
    assert fitted >= 4
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
    with pytest.raises(ValueError, match="overflow float32"):
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
    with pytest.raises(ValueError, match="outputs"):
        certify(factors, X[:1])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda M: solve(LinearProblem.from_matrix(M), 1.0, 0), "width=0"),
        (lambda M: solve(LinearProblem.from_matrix(M), 1.0, 2.5), r"width=2\.5"),
        (lambda M: solve(LinearProblem.from_matrix(M), -1.0, 2), r"strength=-1\.0"),
        (lambda M: solve(LinearProblem.from_matrix(M), np.nan, 2), "strength=nan"),
        (lambda M: solve_tied(M, 1.0, 0), "width=0"),
        (lambda M: solve_tied(M[:2], 1.0, 1), "square"),
        (lambda M: LinearProblem.from_matrix(1e160 * M), "overflow"),
        (lambda M: LinearProblem.from_matrix(1e-160 * M), "underflow"),
        (
            lambda M: descend(GaussianSource(M), M, [0.5], 0, rng=np.random.RandomState(0)),
            "width=0",
        ),
        (lambda M: certify_weights(M, M, matrix=M, dropout=0.5, tied="no"), "tied='no'"),
        (lambda M: certify_weights(M, M, M, dropout=0.5, fit_intercept="no"), "fit_intercept"),
        (lambda M: certify_weights(M, M, matrix=M, dropout=0.5, tolerance=np.nan), "tolerance"),
        (lambda M: certify_weights(M, M, matrix=M, dropout=0.5j), r"dropout.*\[0, 1\)"),
    ],
)
def test_wrong_arguments_are_named(call, match):
    with pytest.raises(ValueError, match=match):
        call(np.arange(1.0, 10.0).reshape(3, 3))


JUNK = [
    ("n_components", "two", r"expected an integer of at least 1 or None"),
    ("dropout", 1.5, r"expected a number in \[0, 1\)"),
    ("dropout", 0.5 + 0j, r"dropout"),
    ("fit_intercept", "False", "expected True or False"),
    ("fit_intercept", 1, "expected True or False"),
    ("warm_start", "no", "expected True or False"),
    ("verbose", "yes", "verbose"),
    ("tol", np.nan, "tol=nan"),
    ("tol", 1j, "tol"),
    ("learning_rate", 1j, "'auto'"),
    ("random_state", "seed", "random_state"),
    ("batch_size", 2.0, "batch_size"),
]


@pytest.mark.parametrize(("parameter", "value", "match"), JUNK)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("name", ["regressor", "autoencoder", "factorization"])
def test_junk_is_refused_with_what_is_allowed(name, method, parameter, value, match):
    model = clone(MODELS[name])
    if parameter not in model.get_params() or not hasattr(model, method):
        pytest.skip("no such parameter or method")
    X, Y = regression_data()
    with pytest.raises(ValueError, match=match):
        getattr(model.set_params(**{parameter: value}), method)(X, Y)
    assert not hasattr(model, "n_features_in_")


def test_the_error_on_dropout_names_cross_validation_where_there_is_one():
    X, Y = regression_data()
    for wrong in ("half", 1.0, None):
        with pytest.raises(ValueError, match=r"\[0, 1\), 'cv' or 'cv_1se'"):
            DropoutRegressor(dropout=wrong).fit(X, Y)
        with pytest.raises(ValueError, match=r"\[0, 1\)\."):
            DropoutAutoencoder(dropout=wrong).fit(X)


@pytest.mark.parametrize(
    "weights",
    [
        np.full(80, "2020-01-01", dtype="datetime64[D]"),
        np.ones(80) * (1 + 0j),
        np.full(80, "one"),
        np.ma.masked_equal(np.arange(80.0), 3.0),
    ],
    ids=["dates", "complex", "text", "masked"],
)
def test_weights_that_are_no_numbers_are_refused(weights):
    X, Y = regression_data()
    for model in (DropoutRegressor(2), DropoutAutoencoder(2)):
        with pytest.raises(ValueError, match="sample_weight"):
            model.fit(X, Y, sample_weight=weights)
        with pytest.raises(ValueError, match="sample_weight"):
            certify(clone(model).fit(X, Y), X, Y, sample_weight=weights)


@pytest.mark.parametrize(
    ("cv", "match"),
    [
        ([], "at least one fold"),
        (5, "weight zero"),
        ([(np.arange(10), np.arange(0))], "no rows"),
        ([(np.arange(0), np.arange(10))], "no rows"),
        ([(np.arange(10), np.array([99]))], "from 0 to 29"),
        ([(np.arange(10), np.array([0.5]))], "expected row indices"),
        ("five", "cv"),
        (1, "k-fold|cv"),
    ],
)
def test_folds_that_cannot_be_used_are_named(cv, match):
    X, Y = regression_data(n=30)
    weights = np.ones(30)
    weights[:6] = 0.0
    with pytest.raises(ValueError, match=match):
        DropoutRegressor(2, dropout="cv", cv=cv).fit(X, Y, weights)


def test_shuffled_folds_work_with_weights_of_zero():
    X, Y = regression_data(n=30)
    weights = np.ones(30)
    weights[:6] = 0.0
    cv = KFold(3, shuffle=True, random_state=0)
    model = DropoutRegressor(2, dropout="cv", cv=cv).fit(X, Y, weights)
    assert 0.0 <= model.dropout_ < 1.0
    masks = [(np.arange(30) % 2 == k, np.arange(30) % 2 != k) for k in (0, 1)]
    numbers = [(np.flatnonzero(a), np.flatnonzero(b)) for a, b in masks]
    fits = [DropoutRegressor(2, dropout="cv", cv=folds).fit(X, Y) for folds in (masks, numbers)]
    assert fits[0].dropout_ == fits[1].dropout_


def test_a_diverging_descent_warns_and_stays_finite():
    X, Y = regression_data()
    model = DropoutRegressor(2, solver="sgd", learning_rate=1e3, random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, Y)
    assert any(warning.category is ConvergenceWarning for warning in caught)
    assert np.isfinite(model.coef_).all()
    assert model.certificate_.holds is False


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
    for scale, other in itertools.product((*SCALES[np.float32], 1e37, 1e-37), (1e-20, 1.0, 1e20)):
        X, Y = (scale * rows).astype("f4"), (other * targets).astype("f4")
        fresh, further = kind(2), copy.deepcopy(fitted)
        sentences += [refusal(fresh.partial_fit, X, Y), refusal(further.partial_fit, X, Y)]
        # A first batch is refused if and only if `fit` refuses it; a refused batch changes nothing.
        assert bool(sentences[-2]) == bool(refusal(kind(2).fit, X, Y))
        assert fresh.__sklearn_is_fitted__() == (not sentences[-2])
        for model in (fresh, further):
            if model.__sklearn_is_fitted__():
                assert np.isfinite(numbers(model._state.attributes.values())).all()
        if sentences[-1]:
            assert all(np.array_equal(before[name], getattr(further, name)) for name in before)
    refused = [sentence for sentence in sentences if sentence]
    assert all("represent" in sentence or "flow" in sentence for sentence in refused)
    # The weights of an autoencoder have no units; those of a regressor have the units of y / x.
    assert bool(refused) == (kind is DropoutRegressor)
