"""Junk input is refused by one sentence, and a fit that fails or is interrupted changes nothing."""

import copy
import datetime as dt
import inspect
import pickle
import re
import sys
import warnings
from functools import partial
from itertools import cycle

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.validation import check_is_fitted

from extras import require
from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
    LinearAutoencoder,
    SparseVAE,
)

pd = require("pandas")

pytestmark = [
    pytest.mark.filterwarnings("ignore:X does not have valid feature names"),
    pytest.mark.filterwarnings("ignore:X has feature names"),
]

ESTIMATORS = {
    "linear": lambda: LinearAutoencoder(2),
    "regressor": lambda: DropoutRegressor(2),
    "autoencoder": lambda: DropoutAutoencoder(2),
    "factorization": lambda: DropoutFactorization(2),
    "sparse": lambda: SparseVAE(noise_variance=0.1),
    "linear by descent": lambda: LinearAutoencoder(2, solver="gradient", random_state=0),
    "linear stream": lambda: LinearAutoencoder(2, solver="stochastic", tol=0.5, random_state=0),
    "nested dropout stream": lambda: LinearAutoencoder(
        2, method="nested_dropout", solver="stochastic", tol=0.5, random_state=0
    ),
    "regressor, cross-validated": lambda: DropoutRegressor(2, dropout="cv", cv=2),
    "regressor, rank cross-validated": lambda: DropoutRegressor("cv", shrink=False, cv=2),
    "regressor by sgd": lambda: DropoutRegressor(2, solver="sgd", tol=0.5, random_state=0),
    "autoencoder by sgd": lambda: DropoutAutoencoder(2, solver="sgd", tol=0.5, random_state=0),
    "sparse, learned noise": lambda: SparseVAE(noise_variance="learn"),
}
PLAIN = list(ESTIMATORS)[:5]
STREAMS = ("linear", "linear stream", "nested dropout stream", "regressor", "autoencoder")
CALLS = [
    (name, method)
    for name in ESTIMATORS
    for method in (("fit", "partial_fit") if name in STREAMS else ("fit",))
]

DATE = np.datetime64("2024-01-01")
DAY = dt.date(2024, 1, 1)
ANYTHING = (1j, DATE, np.timedelta64(3, "s"), DAY, b"1", {}, [1, [2]], object(), np.nan)
INTEGERS = (*ANYTHING, True, np.True_, 2.0, np.float64(2), "2", [2], 0, -1, -np.inf)
NUMBERS = (*ANYTHING, True, "0.1", [0.1], np.ones(2), -1.0, None, np.inf)
FLAGS = (*ANYTHING, "False", "True", "yes", 0, 1, 1.0, None, [True])
NAMES = (*ANYTHING, "magic", "", 1, True, ["exact"], None)
VECTORS = (*ANYTHING, True, "1", ["1", "2"], [1j, 2j], [DATE, DATE], [[1.0, 2.0]], [], None)
VECTORS += ([1.0, np.nan], [-1.0, 2.0], [True, False], [None, 1.0])
VECTORS += (np.ma.array([1.0, 2.0], mask=[0, 1]),)

# For each parameter the values that are refused, and words for what the error says is allowed.
PARAMETERS = {
    "n_components": (INTEGERS, "integer of at least 1", "None"),
    "method": (NAMES,),
    "solver": (NAMES,),
    "optimizer": (NAMES,),
    "learning_rate": ((*NUMBERS, 0.0, "fast"), "'auto'", "above 0"),
    "momentum": ((*NUMBERS, 1.0, 1.5), "[0, 1)"),
    "l2": (VECTORS, "'auto'", "at least 0", "per latent"),
    "prior": (
        (*VECTORS, 1.0, [0.0, 0.0]), "'geometric'", "'uniform'", "for each number of latents",
    ),
    "whiten": (FLAGS,),
    "batch_size": (INTEGERS,),
    "tied": (tuple(x for x in FLAGS if x is not True), "'auto'", "True", "False"),
    "init_scale": ((*NUMBERS, 0.0),),
    "max_iter": ((*INTEGERS, None),),
    "tol": (NUMBERS,),
    "random_state": (
        (*ANYTHING, "seed", -1, 1.5, True, 2**32, [1], np.random.default_rng(0)),
        "integer", "RandomState", "None",
    ),
    "warm_start": (FLAGS,),
    "verbose": ((*ANYTHING, "yes", None, -1, 0.5), "integer", "True", "False", "'auto'"),
    "n_jobs": ((*ANYTHING, "two", 0, True, 1.5, [2]),),
    "dropout": ((*NUMBERS, 1.0, 1.5, "best"), "[0, 1)"),
    "shrink": (FLAGS,),
    "alpha": (NUMBERS,),
    "fit_intercept": (FLAGS,),
    "schedule": (NAMES,),
    "posterior": (NAMES,),
    "group_covariance": (NAMES,),
    "noise_variance": ((*NUMBERS, "best"),),
    "significance": ((*NUMBERS, 1.5), "(0, 1]"),
    "penalty": (NAMES,),
}  # fmt: skip

ROWS = {
    "nan": lambda X: np.where(np.arange(X.shape[1]) == 1, np.nan, X),
    "infinity": lambda X: np.where(np.arange(X.shape[1]) == 1, np.inf, X),
    "text": lambda X: np.full(X.shape, "a"),
    "complex": lambda X: X + 0j,
    "one axis": lambda X: X[:, 0],
    "no rows": lambda X: X[:0],
    "no columns": lambda X: X[:, :0],
    "ragged": lambda X: [[1.0], [1.0, 2.0]],
    "none": lambda X: None,
    "masked": lambda X: np.ma.array(X, mask=np.arange(X.size).reshape(X.shape) == 3),
    "dates": lambda X: np.full(X.shape, DATE),
    "durations": lambda X: np.full(X.shape, np.timedelta64(1, "D")),
    "list of dates": lambda X: [[DATE] * X.shape[1]] * len(X),
    "list of masked rows": lambda X: [np.ma.array(row, mask=row > 0) for row in X],
    "polars frame of dates": lambda X: require("polars").DataFrame(
        {f"c{j}": [DAY] * len(X) for j in range(X.shape[1])}
    ),
    "frame of dates": lambda X: pd.DataFrame(X).astype("datetime64[ns]"),
}
NO_NUMBERS = ("complex", *list(ROWS)[9:])

WEIGHTS = (
    np.ones(3),
    -np.ones(24),
    np.full(24, np.nan),
    np.ones(24) + 1j,
    np.ones(24, dtype=complex),
    np.full(24, DATE),
    np.full(24, np.timedelta64(1, "D")),
    ["1"] * 24,
    [None] * 24,
    np.ma.array(np.ones(24), mask=np.arange(24) == 3),
    True,
    "1",
    1j,
    np.nan,
)


def rows(seed=0, n_features=5):
    X = np.random.default_rng(seed).standard_normal((24, n_features))
    columns = [f"column {j}" for j in range(n_features)]
    return pd.DataFrame(X * np.arange(n_features, 0, -1), columns=columns)


def another(method):
    """Return other rows: of another width for `fit`, which may change it."""
    return rows(1, n_features=4 if method == "fit" else 5)


def targets(X):
    values = np.asarray(X, dtype=float)[:, :2]
    return values + 0.1 * np.random.default_rng(9).standard_normal(values.shape)


def is_supervised(estimator):
    return inspect.signature(estimator.fit).parameters["y"].default is not None


def call(estimator, name, X, y=None, **given):
    """Call `fit` or `partial_fit`, with targets where the estimator needs them."""
    if is_supervised(estimator):
        given["y"] = targets(X) if y is None else y
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return getattr(estimator, name)(X, **given)


def fitted(name):
    return call(ESTIMATORS[name](), "fit", rows())


def snapshot(estimator):
    """Return everything that a user can see of an estimator, and its state down to each number."""
    use = estimator.predict if hasattr(estimator, "predict") else estimator.transform
    # Before the values: some are computed when they are first read.
    seen = np.asarray(use(rows(5))).tobytes(), estimator.certificate_.to_dict()
    shown = [name for name in dir(estimator) if name.endswith("_") and not name.startswith("_")]
    values = pickle.dumps([getattr(estimator, name, None) for name in sorted(shown)])
    return seen, values, sorted(vars(estimator)), pickle.dumps(vars(estimator))


class Unchanged:
    """A fitted estimator, and whether it is still what it was."""

    def __init__(self, name):
        self.name, self.estimator = name, fitted(name)
        self.before, self.objects = snapshot(self.estimator), dict(vars(self.estimator))

    def check(self, *, whole=True):
        now = vars(self.estimator)
        assert now.keys() == self.objects.keys()
        assert all(now[name] is self.objects[name] for name in now)
        assert not whole or snapshot(self.estimator) == self.before

    def refuses(self, words, method, X, y=None, **given):
        """Make sure that a call is refused by a sentence of these words, and changes nothing."""
        with pytest.raises((ValueError, TypeError), match=words) as refused:
            call(self.estimator, method, X, y, **given)
        assert len(str(refused.value)) < 600
        self.check(whole=False)
        return str(refused.value)


@pytest.mark.parametrize(("name", "method"), CALLS)
def test_rows_and_weights_that_are_junk_are_refused_and_change_nothing(name, method):
    kept, X = Unchanged(name), rows(1).to_numpy()
    for junk, change in ROWS.items():
        if junk == "complex" and name.startswith("sparse"):  # which this family takes
            continue
        no_numbers = r"masked|expected real numbers|no numeric column|is not numeric|[Cc]omplex"
        words = no_numbers if junk in NO_NUMBERS else "."
        kept.refuses(words, method, change(X), targets(X))
        if junk in NO_NUMBERS and method == "fit":
            use = getattr(kept.estimator, "predict", None) or kept.estimator.transform
            with pytest.raises(ValueError, match=no_numbers):
                use(change(rows(1).to_numpy()))
            if is_supervised(kept.estimator):
                kept.refuses(no_numbers, method, X, change(targets(X)))
    if name != "factorization":
        for junk in WEIGHTS:
            kept.refuses("sample_weight", method, another(method), sample_weight=junk)
    if method == "partial_fit":
        for X in (rows(1, 4), rows(1, 6), rows(1)[rows(1).columns[::-1]]):
            kept.refuses("feature", method, X)
    if hasattr(kept.estimator, "fit_batches"):
        batches = [rows().to_numpy()[:12], rows().to_numpy()[12:]]
        given = {"y": targets(rows())} if is_supervised(kept.estimator) else {}
        for junk in WEIGHTS[3:]:
            with pytest.raises(ValueError, match="sample_weight"):
                kept.estimator.fit_batches(batches, **given, sample_weight=junk)
    kept.check()


@pytest.mark.parametrize(
    ("name", "parameter"),
    [(n, p) for n in PLAIN for p in ESTIMATORS[n]().get_params() if p in PARAMETERS],
)
def test_a_wrong_parameter_is_refused_by_its_name_and_changes_nothing(name, parameter):
    kept = Unchanged(name)
    good, (wrong, *options) = kept.estimator.get_params()[parameter], PARAMETERS[parameter]
    for junk in wrong:
        kept.objects[parameter] = junk
        setattr(kept.estimator, parameter, junk)
        said = kept.refuses(rf"(?s){parameter}.*expected", "fit", another("fit"))
        assert all(option in said for option in options), junk
    kept.objects[parameter] = good
    setattr(kept.estimator, parameter, good)
    kept.check()


@pytest.mark.parametrize(("name", "method"), [call for call in CALLS if call[0] not in PLAIN])
def test_a_wrong_setting_of_other_solvers_changes_nothing(name, method):
    kept = Unchanged(name)
    wrong = {"n_components": "two", "tol": "small", "max_iter": 0.5, "solver": "magic"}
    wrong |= {"method": "magic", "dropout": 2.0, "batch_size": 0, "groups": [[0, 0]]}
    for parameter, junk in wrong.items():
        if parameter in kept.estimator.get_params():
            good = getattr(kept.estimator, parameter)
            kept.objects[parameter] = junk
            setattr(kept.estimator, parameter, junk)
            kept.refuses(".", method, another(method))
            kept.objects[parameter] = good
            setattr(kept.estimator, parameter, good)
    kept.check()


def test_a_share_of_the_variance_is_among_the_options_of_the_linear_autoencoder():
    for junk in ("two", 0, 1.0, True):
        with pytest.raises(ValueError, match=re.escape("a share of the variance in (0, 1)")):
            LinearAutoencoder(junk).fit(rows())


@pytest.mark.parametrize("name", PLAIN)
def test_unusual_numbers_are_taken(name):
    X = rows().to_numpy()

    def certificate(X, **given):
        return call(ESTIMATORS[name](), "fit", X, **given).certificate_.to_dict()

    assert certificate(np.ma.array(X)) == certificate(X)  # a mask without masked entries
    if name == "factorization":
        return
    expected = certificate(X, sample_weight=np.ones(24))
    whole = ([1] * 24, np.ones(24, dtype=bool), np.ma.ones(24), 1, np.ones(24, dtype=object))
    for weights in whole:
        assert certificate(X, sample_weight=weights) == expected


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


@pytest.mark.parametrize(("name", "method"), CALLS)
def test_an_interruption_anywhere_leaves_the_last_fit(name, method):
    kept, X = Unchanged(name), another(method)
    watch = Interruption(0, None)
    watch.run(lambda: call(copy.deepcopy(kept.estimator), method, X))
    # The first calls, the last ones and some in between.
    times = sorted({*np.linspace(1, watch.calls, 7).astype(int).tolist(), 2, watch.calls - 1})
    errors, stopped = cycle((KeyboardInterrupt, RuntimeError, MemoryError)), 0
    for when, error in zip(times, errors, strict=False):
        try:
            Interruption(when, error()).run(partial(call, kept.estimator, method, X))
        except error:
            stopped += 1
            kept.check()
        else:  # a function that catches every exception: the fit went on to its end
            kept = Unchanged(name)
    assert stopped >= 3


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "factorization"])
def test_an_interrupted_callback_leaves_the_last_fit(name, monkeypatch):
    kept, calls = Unchanged(name), []
    kept.estimator.set_params(verbose=True)
    kept.before, kept.objects = snapshot(kept.estimator), dict(vars(kept.estimator))

    def interrupt(*_):
        calls.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr("lucidae.iteration.ProgressBar.__call__", interrupt)
    try:
        call(kept.estimator, "fit", another("fit"))
    except KeyboardInterrupt:
        kept.check()
    iterates = ("descent", "stream", "sgd", "sparse", "cross-validated")
    assert bool(calls) == any(word in name for word in iterates)


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
        before, X = snapshot(estimator), another("fit")
        with pytest.raises(ConvergenceWarning):
            estimator.fit(X, targets(X))
        assert snapshot(estimator) == before


@pytest.mark.parametrize("name", STREAMS)
def test_a_copy_does_not_share_the_batches_of_its_original(name):
    kept = Unchanged(name)
    shared = copy.copy(kept.estimator)
    call(shared, "partial_fit", rows(1))
    kept.check()
    assert snapshot(shared) != kept.before


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
