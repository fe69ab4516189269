"""A `fit` or `partial_fit` that fails or is interrupted leaves every estimator as it was."""

import copy
import inspect
import pickle
import sys
import warnings
from functools import partial
from itertools import cycle

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.validation import check_is_fitted

from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
    LinearAutoencoder,
    SparseVAE,
)
from lucidae.iteration import ProgressBar

pd = pytest.importorskip("pandas")

ESTIMATORS = {
    "linear": lambda: LinearAutoencoder(2),
    "linear by descent": lambda: LinearAutoencoder(2, solver="gradient", random_state=0),
    "linear stream": lambda: LinearAutoencoder(2, solver="stochastic", tol=0.5, random_state=0),
    "nested dropout stream": lambda: LinearAutoencoder(
        2, method="nested_dropout", solver="stochastic", tol=0.5, random_state=0
    ),
    "regressor": lambda: DropoutRegressor(2),
    "regressor, cross-validated": lambda: DropoutRegressor(2, dropout="cv", cv=2),
    "regressor, rank cross-validated": lambda: DropoutRegressor("cv", shrink=False, cv=2),
    "regressor by sgd": lambda: DropoutRegressor(2, solver="sgd", tol=0.5, random_state=0),
    "autoencoder": lambda: DropoutAutoencoder(2),
    "autoencoder by sgd": lambda: DropoutAutoencoder(2, solver="sgd", tol=0.5, random_state=0),
    "factorization": lambda: DropoutFactorization(2),
    "sparse": lambda: SparseVAE(),
    "sparse, learned noise": lambda: SparseVAE(noise_variance="learn"),
}
STREAMS = ("linear", "linear stream", "nested dropout stream", "regressor", "autoencoder")

WRONG_ROWS = {
    "nan": lambda X: np.where(np.arange(X.shape[1]) == 1, np.nan, X),
    "infinity": lambda X: np.where(np.arange(X.shape[1]) == 1, np.inf, X),
    "text": lambda X: np.full(X.shape, "a"),
    "complex": lambda X: X + 1j,
    "one axis": lambda X: X[:, 0],
    "no rows": lambda X: X[:0],
    "no columns": lambda X: X[:, :0],
    "ragged": lambda X: [[1.0], [1.0, 2.0]],
    "none": lambda X: None,
}
WRONG_PARAMETERS = {
    "n_components": "two",
    "tol": "small",
    "max_iter": 0.5,
    "solver": "magic",
    "method": "magic",
    "dropout": 2.0,
    "posterior": "magic",
    "noise_variance": -1.0,
    "l2": [-1.0],
    "batch_size": 0,
    "groups": [[0, 0]],
    "group_covariance": "full",
}


def rows(seed=0, n_rows=24, n_features=5):
    X = np.random.default_rng(seed).standard_normal((n_rows, n_features)) * np.arange(
        n_features, 0, -1
    )
    return pd.DataFrame(X, columns=[f"column {j}" for j in range(n_features)])


def another(method):
    """Return other rows: of another width for `fit`, which may change it."""
    return rows(1, n_features=4 if method == "fit" else 5)


def targets(X):
    values = np.asarray(X, dtype=float)[:, :2]
    return values + 0.1 * np.random.default_rng(9).standard_normal(values.shape)


def call(estimator, name, X, y=None, **given):
    """Call `fit` or `partial_fit`, with targets where the estimator needs them."""
    method = getattr(estimator, name)
    if inspect.signature(method).parameters["y"].default is not None:
        given["y"] = targets(X) if y is None else y
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        return method(X, **given)


def fitted(name):
    return call(ESTIMATORS[name](), "fit", rows())


def outputs(estimator):
    X = rows(5)
    use = estimator.predict if hasattr(estimator, "predict") else estimator.transform
    return np.asarray(use(X)).tobytes(), estimator.certificate_.to_dict()


def snapshot(estimator):
    """Return everything that a user can see of an estimator, and its state down to each number."""
    seen = outputs(estimator)  # before the values: some are computed when they are first read
    shown = [name for name in dir(estimator) if name.endswith("_") and not name.startswith("_")]
    values = pickle.dumps([getattr(estimator, name, None) for name in sorted(shown)])
    return seen, values, sorted(vars(estimator)), pickle.dumps(vars(estimator))


def same_objects(estimator, before):
    now = vars(estimator)
    return now.keys() == before.keys() and all(now[name] is before[name] for name in before)


def methods(name):
    return ("fit", "partial_fit") if name in STREAMS else ("fit",)


CALLS = [(name, method) for name in ESTIMATORS for method in methods(name)]


@pytest.mark.parametrize("wrong", WRONG_ROWS)
@pytest.mark.parametrize(("name", "method"), CALLS)
def test_wrong_rows_leave_the_last_fit(name, method, wrong):
    estimator = fitted(name)
    before, objects = snapshot(estimator), dict(vars(estimator))
    X = rows(1)
    if wrong == "complex" and name.startswith("sparse"):  # which this family takes
        call(estimator, method, WRONG_ROWS[wrong](X.to_numpy()), y=targets(X))
        assert np.iscomplexobj(estimator.coef_)
        return
    with pytest.raises((ValueError, TypeError)):
        call(estimator, method, WRONG_ROWS[wrong](X.to_numpy()), y=targets(X))
    assert same_objects(estimator, objects)
    assert snapshot(estimator) == before


@pytest.mark.parametrize("weights", [np.ones(3), -np.ones(24), np.full(24, np.nan), "heavy"])
@pytest.mark.parametrize(
    ("name", "method"), [(name, method) for name, method in CALLS if name != "factorization"]
)
def test_wrong_weights_leave_the_last_fit(name, method, weights):
    estimator = fitted(name)
    before, objects = snapshot(estimator), dict(vars(estimator))
    with pytest.raises((ValueError, TypeError)):
        call(estimator, method, another(method), sample_weight=weights)
    assert same_objects(estimator, objects)
    assert snapshot(estimator) == before


@pytest.mark.parametrize("name", STREAMS)
def test_a_batch_of_another_width_leaves_the_last_fit(name):
    estimator = fitted(name)
    before = snapshot(estimator)
    for X in (rows(1, n_features=4), rows(1, n_features=6), rows(1)[rows(1).columns[::-1]]):
        with pytest.raises(ValueError, match="feature"):
            call(estimator, "partial_fit", X)
    assert snapshot(estimator) == before


@pytest.mark.parametrize(
    ("name", "method", "wrong"),
    [
        (name, method, wrong)
        for name, method in CALLS
        for wrong in WRONG_PARAMETERS
        if wrong in ESTIMATORS[name]().get_params()
    ],
)
def test_wrong_parameters_leave_the_last_fit(name, method, wrong):
    estimator = fitted(name)
    before, good = snapshot(estimator), estimator.get_params()[wrong]
    estimator.set_params(**{wrong: WRONG_PARAMETERS[wrong]})
    objects = dict(vars(estimator))
    with pytest.raises((ValueError, AttributeError)):
        call(estimator, method, another(method))
    assert same_objects(estimator, objects)
    assert snapshot(estimator.set_params(**{wrong: good})) == before


class Interruption:
    """Raise an exception at the nth call of a function of the package or of its dependencies."""

    def __init__(self, when, error):
        self.when, self.error, self.calls = when, error, 0

    def __call__(self, frame, event, argument):
        # `call` itself uses `warnings` after the fit has ended.
        skipped = ("site-packages/pandas", "/warnings.py")
        if event != "call" or any(part in frame.f_code.co_filename for part in skipped):
            return
        self.calls += 1
        if self.calls == self.when:
            raise self.error

    def run(self, action):
        previous, hook = sys.gettrace(), sys.unraisablehook

        def ignore(unraisable):  # Python lets no exception out of a finaliser: the fit goes on
            if unraisable.exc_value is not self.error:
                hook(unraisable)

        sys.unraisablehook = ignore
        sys.settrace(self)
        try:
            action()
        finally:
            sys.settrace(previous)
            sys.unraisablehook = hook


def moments_of_interruption(count, trials=12):
    """Return positions among `count` calls: the first ones, the last ones and some in between."""
    return sorted({*np.linspace(1, count, trials).astype(int).tolist(), 2, count - 1})


@pytest.mark.parametrize("errors", [(KeyboardInterrupt,), (RuntimeError, MemoryError)])
@pytest.mark.parametrize(("name", "method"), CALLS)
def test_an_interruption_anywhere_leaves_the_last_fit(name, method, errors):
    estimator = fitted(name)
    before, objects = snapshot(estimator), dict(vars(estimator))
    X = another(method)
    y = targets(X)
    watch = Interruption(0, None)
    watch.run(lambda: call(copy.deepcopy(estimator), method, X, y))
    stopped = 0
    for when, error in zip(moments_of_interruption(watch.calls), cycle(errors), strict=False):
        try:
            Interruption(when, error()).run(partial(call, estimator, method, X, y))
        except error:
            stopped += 1
            assert same_objects(estimator, objects)
            assert snapshot(estimator) == before
        else:  # a function that catches every exception: the fit went on to its end
            estimator = fitted(name)
            before, objects = snapshot(estimator), dict(vars(estimator))
    assert stopped >= 5


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "factorization"])
def test_an_interrupted_callback_leaves_the_last_fit(name, monkeypatch):
    estimator = fitted(name)
    estimator.set_params(verbose=True)
    before, calls = snapshot(estimator), []

    def interrupt(*_):
        calls.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(ProgressBar, "__call__", interrupt)
    try:
        call(estimator, "fit", rows(1, n_features=4))
    except KeyboardInterrupt:
        assert snapshot(estimator) == before
    iterates = any(
        word in name for word in ("descent", "stream", "sgd", "sparse", "cross-validated")
    )
    assert bool(calls) == iterates


@pytest.mark.parametrize(("name", "method"), CALLS)
def test_a_failed_first_fit_leaves_the_estimator_unfitted(name, method):
    estimator = ESTIMATORS[name]()
    untouched = dict(vars(estimator))
    with pytest.raises(ValueError, match="NaN"):
        call(estimator, method, rows().to_numpy() * np.nan, y=targets(rows()))
    assert vars(estimator) == untouched
    with pytest.raises(NotFittedError):
        check_is_fitted(estimator)
    call(estimator, method, rows(n_features=7))
    assert estimator.n_features_in_ == 7


def test_a_warning_that_is_an_error_leaves_the_last_fit():
    for estimator in (
        LinearAutoencoder(2, solver="gradient", max_iter=1, random_state=0),
        DropoutRegressor(2, solver="sgd", max_iter=1, tol=0.0, random_state=0),
        SparseVAE(noise_variance=0.1, max_iter=1, tol=0.0),
    ):
        call(estimator, "fit", rows())
        before, X = snapshot(estimator), rows(1, n_features=4)
        with pytest.raises(ConvergenceWarning):
            estimator.fit(X, targets(X))
        assert snapshot(estimator) == before


@pytest.mark.parametrize("name", STREAMS)
def test_a_copy_does_not_share_the_batches_of_its_original(name):
    original = fitted(name)
    before = snapshot(original)
    shared = copy.copy(original)
    call(shared, "partial_fit", rows(1))
    assert snapshot(original) == before
    assert snapshot(shared) != before


@pytest.mark.parametrize("name", ["linear", "regressor", "autoencoder"])
def test_an_error_in_the_certificate_is_undecided_and_not_remembered(name, monkeypatch):
    estimator = call(ESTIMATORS[name](), "partial_fit", rows())
    with monkeypatch.context() as broken:
        broken.setattr(type(estimator._state), "compute_certificate", lambda *_: 1 / 0)
        (claim,) = estimator.certificate_
        assert claim.undecided
        assert "ZeroDivisionError" in claim.advice
        assert estimator.certificate_.holds is None
    assert estimator.certificate_.holds is not None
