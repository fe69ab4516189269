"""What all estimators promise: scikit-learn's checks, libraries, dtypes, pipelines, errors."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from dropout.problems import regression_data
from extras import require
from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
    certify,
    equalize,
    equalize_pair,
)
from lucidae.dropout import (
    GaussianSource,
    LinearProblem,
    certify_weights,
    descend,
    solve,
    solve_tied,
)

SGD = {"solver": "sgd", "max_iter": 50, "tol": 1e-6, "batch_size": 16}
ESTIMATORS = [
    DropoutRegressor(),
    DropoutRegressor("cv_1se", shrink=False, alpha=0.5, cv=2),
    DropoutRegressor(3, dropout=0.1, **SGD),
    DropoutAutoencoder(2, dropout=0.1),
    DropoutAutoencoder(2, **SGD),
    DropoutFactorization(2, dropout=0.1),
    DropoutFactorization(2, **SGD),
    DropoutFactorization(3, handle_missing="complete"),
]
OTHERS = [
    DropoutRegressor(2, dropout=0.0, fit_intercept=False),
    DropoutRegressor(dropout="cv", cv=2),
    DropoutRegressor(dropout="cv_1se", alpha=0.5, cv=2),
    DropoutRegressor(1, shrink=False),
    DropoutAutoencoder(),
    DropoutFactorization(),
    DropoutFactorization(2, dropout=0.0),
    DropoutFactorization(2, dropout="cv", cv=2, handle_missing="complete"),
]


def expected_failures(estimator):
    """Name what cannot be met in principle."""
    checks = [f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse")]
    if isinstance(estimator, DropoutFactorization) and estimator.dropout == "cv":
        return dict.fromkeys(checks, "the folds are of entries: equal rows need not share one")
    if getattr(estimator, "solver", "exact") == "sgd":
        return dict.fromkeys(checks, "a row given twice is drawn by other random numbers")
    return {}


# A run of 50 steps is cut short on purpose.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failures)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(OTHERS, expected_failed_checks=expected_failures)
def test_scikit_learn_checks_of_other_settings(estimator, check):
    check(estimator)


ALL = [DropoutRegressor(2), DropoutAutoencoder(2), DropoutFactorization(2)]
X, Y = regression_data()


def of_each_estimator(test):
    return pytest.mark.parametrize("model", ALL, ids=lambda model: type(model).__name__)(test)


@of_each_estimator
def test_single_precision_in_single_precision_out(model):
    fitted = clone(model).fit(X.astype(np.float32), Y.astype(np.float32))
    double = clone(model).fit(*(part.astype(np.float32).astype(float) for part in (X, Y)))
    for name in ("left_", "right_", "singular_values_"):
        assert getattr(fitted, name).dtype == np.float32
        assert_allclose(getattr(fitted, name), getattr(double, name), rtol=1e-4, atol=1e-5)
    method = fitted.predict if hasattr(fitted, "predict") else fitted.transform
    assert method(X.astype(np.float32)).dtype == np.float32


@of_each_estimator
def test_torch_in_torch_out(model):
    torch = require("torch")
    tensors = torch.as_tensor(X), torch.as_tensor(Y)
    reference, fitted = clone(model).fit(X, Y), clone(model).fit(*tensors)
    assert isinstance(fitted.left_, torch.Tensor)
    product = (fitted.left_ @ fitted.right_.mT).numpy()
    assert_allclose(product, reference.left_ @ reference.right_.T, atol=1e-9)
    single = clone(model).fit(tensors[0].to(torch.float32), tensors[1])
    assert single.left_.dtype == torch.float32
    if isinstance(model, DropoutRegressor):
        assert isinstance(fitted.predict(tensors[0]), torch.Tensor)
        assert fitted.score(*tensors) == pytest.approx(reference.score(X, Y))
        assert_allclose(fitted.predict(X), reference.predict(X), atol=1e-9)
        assert clone(model).fit(tensors[0], tensors[1][:, 0]).predict(tensors[0]).shape == (80,)
        few = DropoutRegressor(2).fit(torch.as_tensor(wide), tensors[1][:20])
        assert_allclose(few.coef_.numpy(), DropoutRegressor(2).fit(wide, Y[:20]).coef_, atol=1e-9)
        sgd = clone(model).set_params(**SGD | {"tol": 10.0}).fit(*tensors)
        assert isinstance(sgd.coef_, torch.Tensor)
        chosen = clone(model).set_params(dropout="cv", cv=3)
        assert clone(chosen).fit(*tensors).dropout_ == pytest.approx(chosen.fit(X, Y).dropout_)
    else:
        codes = fitted.transform(tensors[0])
        assert isinstance(codes, torch.Tensor)
        assert isinstance(fitted.inverse_transform(codes), torch.Tensor)
        few = clone(model).fit(torch.as_tensor(wide))
        assert_allclose(few.right_.numpy(), clone(model).fit(wide).right_, atol=1e-8)
    assert fitted.certificate_.holds
    assert few.certificate_.holds
    assert pickle.loads(pickle.dumps(fitted)).rank_ == fitted.rank_


wide = np.random.default_rng(0).standard_normal((20, 1100)) * np.geomspace(3, 1, 20)[:, None]


def test_data_frames_pipelines_and_searches():
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = DropoutRegressor(2).fit(frame, pd.DataFrame(Y))
    assert list(model.feature_names_in_) == list("abcde")
    assert_allclose(model.predict(frame), DropoutRegressor(2).fit(X, Y).predict(X))
    assert_allclose(DropoutRegressor(2).fit(pl.DataFrame(X), Y).coef_, model.coef_)
    coder = DropoutAutoencoder(2).set_output(transform="pandas").fit(frame)
    codes = coder.transform(frame)
    assert list(codes.columns) == ["dropoutautoencoder0", "dropoutautoencoder1"]
    factors = DropoutFactorization(2).set_output(transform="polars")
    assert isinstance(factors.fit_transform(frame), pl.DataFrame)
    pipeline = make_pipeline(StandardScaler(), DropoutAutoencoder(3), DropoutRegressor(2))
    search = GridSearchCV(pipeline, {"dropoutregressor__dropout": [0.0, 0.3]}, cv=3)
    assert 0.0 < search.fit(X, Y).best_score_ <= 1.0
    coder = GridSearchCV(DropoutAutoencoder(), {"n_components": [1, 3]}, cv=3).fit(X)
    assert coder.best_params_["n_components"] == 3


@of_each_estimator
def test_cloning_pickling_and_html(model):
    before = X.copy(), Y.copy()
    fitted = clone(model).fit(X, Y)
    assert fitted.get_params() == model.get_params()
    assert_allclose(X, before[0], rtol=0)
    assert_allclose(Y, before[1], rtol=0)
    copied = pickle.loads(pickle.dumps(fitted))
    assert_allclose(copied.left_, fitted.left_, rtol=0)
    assert copied.certificate_.to_dict() == fitted.certificate_.to_dict()
    with pytest.raises(NotFittedError):
        clone(fitted).certificate_  # noqa: B018
    assert not hasattr(clone(fitted), "left_")
    assert "lucidae-certificate" in fitted._repr_html_()
    assert "lucidae-certificate" not in clone(fitted)._repr_html_()


@of_each_estimator
def test_one_sample_and_constant_columns(model):
    one = clone(model).fit(X[:1], Y[:1])
    assert np.isfinite(one.left_).all()
    assert one.certificate_.holds is not False
    constant = clone(model).fit(np.ones((10, 3)), Y[:10])
    assert np.isfinite(constant.right_).all()
    if isinstance(model, DropoutRegressor):
        assert_allclose(one.predict(X[:1]), Y[:1])
        assert_allclose(constant.predict(np.ones((2, 3))), np.tile(Y[:10].mean(0), (2, 1)))


# The values of every parameter that are wrong by their kind are in tests/test_junk.py.
SETTINGS = [
    ({"n_components": 0}, r"n_components=0 .*integer of at least 1"),
    ({"n_components": 10**6}, r"n_components=1000000 was given, expected an integer"),
    ({"dropout": 1.0}, r"dropout=1\.0 .*\[0, 1\)"),
    ({"dropout": "half"}, "dropout"),
    ({"solver": "magic"}, "solver"),
    ({"solver": "sgd", "batch_size": 0}, "batch_size"),
    ({"solver": "sgd", "max_iter": 0}, "max_iter"),
    ({"solver": "sgd", "tol": -1.0}, "tol"),
    ({"solver": "sgd", "learning_rate": 0.0}, "learning_rate"),
    ({"solver": "sgd", "schedule": "cosine"}, "schedule"),
    ({"dropout": "cv", "cv": 1}, r"cv=1 .*integer of at least 2"),
    ({"dropout": "cv", "cv": 2.5}, r"cv=2\.5 .*integer of at least 2"),
    ({"dropout": "cv", "cv": 100}, r"cv=100 folds .* X has n_samples=80.*smaller cv"),
    ({"dropout": "cv", "cv": "five"}, "cv"),
    ({"dropout": "cv", "cv": np.array(0.5)}, "cv="),
    ({"dropout": "cv", "cv": []}, "at least one fold"),
    ({"dropout": "cv", "cv": [(1, 2, 3)]}, "fold 0 of cv is"),
    ({"dropout": "cv", "cv": {1}}, "fold 0 of cv is"),
    ({"dropout": "cv", "cv": [(np.arange(10), np.arange(0))]}, "no rows"),
    ({"dropout": "cv", "cv": [(np.arange(10), np.array([99]))]}, "from 0 to 79"),
    ({"dropout": "cv", "cv": [(np.arange(10), np.array([0.5]))]}, "expected row indices"),
]


@pytest.mark.parametrize(("settings", "match"), SETTINGS, ids=str)
@of_each_estimator
def test_wrong_settings_are_refused(model, settings, match):
    if not settings.keys() <= model.get_params().keys():
        return
    if isinstance(model, DropoutFactorization) and "cv" in settings:
        return  # its folds are of entries
    names = {"fit"} if settings.get("dropout") == "cv" else {"fit", "partial_fit"}
    for name in names:
        fresh = clone(model).set_params(**settings)
        if hasattr(fresh, name):
            with pytest.raises(ValueError, match=match):
                getattr(fresh, name)(X, Y)
            assert not hasattr(fresh, "n_features_in_")


def test_the_error_on_dropout_names_cross_validation_where_there_is_one():
    with pytest.raises(ValueError, match=r"\[0, 1\), 'cv' or 'cv_1se'"):
        DropoutRegressor(dropout="half").fit(X, Y)
    with pytest.raises(ValueError, match=r"\[0, 1\)\."):
        DropoutAutoencoder(dropout="half").fit(X)


def test_folds_as_generators_masks_and_with_weights_of_zero():
    weights = np.where(np.arange(80) < 16, 0.0, 1.0)
    model = DropoutRegressor(2, dropout="cv")
    with pytest.raises(ValueError, match="weight zero"):
        clone(model).fit(X, Y, weights)
    shuffled = clone(model).set_params(cv=KFold(3, shuffle=True, random_state=0))
    assert 0.0 <= shuffled.fit(X, Y, weights).dropout_ < 1.0
    masks = [(np.arange(80) % 2 == k, np.arange(80) % 2 != k) for k in (0, 1)]
    numbers = [(np.flatnonzero(a), np.flatnonzero(b)) for a, b in masks]
    rates = {
        DropoutRegressor(2, dropout="cv", cv=folds).fit(X, Y).dropout_
        for folds in (masks, numbers, (fold for fold in numbers))
    }
    assert len(rates) == 1


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_bad_targets_are_refused(library):
    rows = require("torch").as_tensor(X) if library == "torch" else X
    for y in (Y[:10], np.full_like(Y, np.nan), None, Y[:, :, None], Y[:, :0]):
        with pytest.raises(ValueError, match=r"y|inconsistent|dim"):
            DropoutRegressor(2).fit(rows, y)


def test_bad_weights_and_codes_are_refused():
    dates = np.full(80, "2020-01-01", dtype="datetime64[D]")
    masked = np.ma.masked_equal(np.arange(80.0), 3.0)
    wrong = (np.ones(3), -np.ones(80), np.zeros(80), np.full(80, np.nan), dates, masked)
    for weights in (*wrong, np.ones(80) * (1 + 0j), np.full(80, "one")):
        for estimator in ALL[:2]:
            with pytest.raises(ValueError, match="weight"):
                clone(estimator).fit(X, Y, sample_weight=weights)
            with pytest.raises(ValueError, match="weight"):
                certify(clone(estimator).fit(X, Y), X, Y, sample_weight=weights)
    for estimator in ALL[1:]:
        with pytest.raises(ValueError, match="codes per row"):
            clone(estimator).fit(X).inverse_transform(np.ones((4, 3)))
    with pytest.raises(ValueError, match="features"):
        DropoutAutoencoder(2).fit(X).transform(X[:, :2])


A = np.random.default_rng(0).standard_normal((12, 4))
NO_MATRICES = {
    "scalar": 3.5,
    "vector": A[0],
    "set": {1.0},
    "empty": [[]],
    "sparse": scipy.sparse.csr_array(A),
    "missing": np.array([[None, 1.0]]),
    "dates": np.array([["2020-01-01"]], dtype="M8[D]"),
    "complex": A + 1j,
    "masked": np.ma.array(A, mask=A > 1),
    "not finite": np.full((2, 2), np.inf),
    "text": "matrix",
}
FUNCTIONS = {
    "solve": lambda given: solve(LinearProblem.from_matrix(given), 1.0, 2),
    "solve_tied": lambda given: solve_tied(given, 1.0, 2),
    "equalize": equalize,
    "equalize_pair, first": lambda given: equalize_pair(given, A),
    "equalize_pair, second": lambda given: equalize_pair(A, given),
}


@pytest.mark.covering
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("given", NO_MATRICES.values(), ids=NO_MATRICES)
def test_what_is_no_matrix_is_refused(given, function):
    with pytest.raises((ValueError, TypeError)) as refused:
        function(given)
    assert type(refused.value) in (ValueError, TypeError)  # no LinAlgError, which is a ValueError
    words = ("operand", "sequence.", "attribute", "broadcast")
    assert not any(word in str(refused.value) for word in words)


def test_masked_arrays_without_masked_entries_lists_and_single_precision_are_matrices():
    expected = solve(LinearProblem.from_matrix(A), 1.0, 2)
    for given in (np.ma.array(A, mask=False), A.tolist(), np.asfortranarray(A)):
        found = solve(LinearProblem.from_matrix(given), 1.0, 2)
        assert_allclose(found.weights.left, expected.weights.left)
        assert_allclose(equalize_pair(given, given)[0], equalize_pair(A, A)[0])
    single = LinearProblem.from_matrix(A.astype(np.float32))
    assert single.cross.dtype == np.float64
    assert_allclose(solve(single, 1.0, 2).value, expected.value, rtol=1e-6)


M = np.arange(1.0, 10.0).reshape(3, 3)
U, V = np.ones((3, 2)), np.ones((5, 2))


def judge(left=U, right=V, *data, dropout=0.5, **settings):
    return certify_weights(left, right, *data, dropout=dropout, **settings)


def train(matrix=M, width=2, **settings):
    rng = np.random.RandomState(0)
    return descend(GaussianSource(matrix), matrix, [0.5], width, rng=rng, **settings)


ARGUMENTS = [
    *(
        (lambda w=w: solve(LinearProblem.from_matrix(M), 1.0, w), "width=.* expected an int")
        for w in (-1, 0, 2.5, "2", None, [2], True, 10**6)
    ),
    *(
        (lambda s=s: solve(LinearProblem.from_matrix(M), s, 2), "strength=")
        for s in (-1.0, np.nan, "auto", None, [1.0], 10**400)
    ),
    (lambda: solve_tied(M, 1.0, 0), "width=0"),
    (lambda: solve_tied(M, -1.0, 2), "strength="),
    (lambda: solve_tied(M[:2], 1.0, 1), "square"),
    (lambda: LinearProblem.from_matrix(1e160 * M), "overflow.* Divide"),
    (lambda: LinearProblem.from_matrix(1e-160 * M), "underflow.* Multiply"),
    (lambda: train(width=0), "width=0"),
    (lambda: train(M[:2], tied=True), "tied"),
    (lambda: train(start=(M, M)), "start"),
    (lambda: train(schedule="cosine"), "schedule"),
    (lambda: train(learning_rate=-1.0), "learning"),
    (lambda: equalize(np.ones((2, 3)), method="hadamard"), "power of two"),
    (lambda: equalize(np.ones((2, 3)), method="magic"), "method"),
    (lambda: equalize_pair(np.ones((2, 3)), np.ones((2, 4))), "U has 3 columns and V has 4"),
    (lambda: judge(M, M, matrix=M, tied="no"), "tied='no'"),
    (lambda: judge(M, M, M, fit_intercept="no"), "fit_intercept"),
    (lambda: judge(M, M, matrix=M, tolerance=0.0), "tolerance"),
    (lambda: judge(M, M, matrix=M, dropout=0.5j), r"dropout.*\[0, 1\)"),
    (lambda: judge(), "data"),
    (lambda: judge(U, V, X, Y, matrix=X), "either"),
    (lambda: judge(U, V[:, :1], X, Y), "columns"),
    (lambda: judge(U, V, Y, X), "rows"),
    (lambda: judge(U, V, X, Y[:5]), "rows"),
    (lambda: judge(np.nan * U, V, X, Y), "NaN"),
    (lambda: judge(U, V, np.full_like(X, np.inf), Y), "inf"),
    (lambda: judge(U[:, 0], V, X, Y), "1D|2D"),
    (lambda: certify(DropoutRegressor(2).fit(X, Y), X), "given without y"),
    (lambda: certify(DropoutFactorization(2).fit(X), X[:1]), "outputs"),
]


@pytest.mark.parametrize(("call", "match"), ARGUMENTS)
def test_wrong_arguments_are_named(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_more_hidden_units_than_the_limit_are_allowed_where_the_data_are_as_large():
    long = np.zeros((1, 2**14 + 5))
    long[0, :2] = 1.0
    with pytest.raises(ValueError, match=rf"\[1, {2**14 + 5}\]"):
        DropoutFactorization(2**14 + 6).fit(long)
