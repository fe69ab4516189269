"""Values of the wrong kind are refused for every parameter of every estimator, by one sentence."""

import datetime as dt
import re

import numpy as np
import pytest
from sklearn.base import clone

from extras import require
from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
    LinearAutoencoder,
    SparseVAE,
)

ESTIMATORS = {
    "linear": LinearAutoencoder(2),
    "regressor": DropoutRegressor(2),
    "autoencoder": DropoutAutoencoder(2),
    "factorization": DropoutFactorization(2),
    "sparse": SparseVAE(noise_variance=0.1),
}
SUPERVISED = ("regressor", "sparse")

DATE = np.datetime64("2024-01-01")
ANYTHING = (
    1j,
    DATE,
    np.timedelta64(3, "s"),
    dt.date(2024, 1, 1),
    b"1",
    {},
    [1, [2]],
    object(),
    np.nan,
)
INTEGERS = (*ANYTHING, True, np.True_, 2.0, np.float64(2), "2", [2], 0, -1, -np.inf)
NUMBERS = (*ANYTHING, True, "0.1", [0.1], np.ones(2), -1.0, None, np.inf)
FLAGS = (*ANYTHING, "False", "True", "yes", 0, 1, 1.0, None, [True])
NAMES = (*ANYTHING, "magic", "", 1, True, ["exact"], None)
VECTORS = (*ANYTHING, True, "1", ["1", "2"], [1j, 2j], [DATE, DATE], [[1.0, 2.0]], [], None)
VECTORS += ([1.0, np.nan], [-1.0, 2.0], [True, False], [None, 1.0])
VECTORS += (np.ma.array([1.0, 2.0], mask=[0, 1]),)

JUNK = {
    "n_components": INTEGERS,
    "method": NAMES,
    "solver": NAMES,
    "optimizer": NAMES,
    "learning_rate": (*NUMBERS, 0.0, "fast"),
    "momentum": (*NUMBERS, 1.0, 1.5),
    "l2": VECTORS,
    "prior": (*VECTORS, 1.0, [0.0, 0.0]),
    "whiten": FLAGS,
    "batch_size": INTEGERS,
    "tied": tuple(value for value in FLAGS if value is not True),
    "init_scale": (*NUMBERS, 0.0),
    "max_iter": (*INTEGERS, None),
    "tol": NUMBERS,
    "random_state": (*ANYTHING, "seed", -1, 1.5, True, 2**32, [1], np.random.default_rng(0)),
    "warm_start": FLAGS,
    "verbose": (*ANYTHING, "yes", None, -1, 0.5),
    "n_jobs": (*ANYTHING, "two", 0, True, 1.5, [2]),
    "dropout": (*NUMBERS, 1.0, 1.5, "best"),
    "shrink": FLAGS,
    "alpha": NUMBERS,
    "fit_intercept": FLAGS,
    "schedule": NAMES,
    "posterior": NAMES,
    "group_covariance": NAMES,
    "noise_variance": (*NUMBERS, "best"),
    "significance": (*NUMBERS, 1.5),
    "penalty": NAMES,
}
CASES = [
    (name, parameter)
    for name, estimator in ESTIMATORS.items()
    for parameter in estimator.get_params()
    if parameter in JUNK
]


def rows():
    X = np.random.default_rng(0).standard_normal((24, 5)) * np.arange(5, 0, -1)
    return X, X[:, :2] + 0.1 * np.random.default_rng(1).standard_normal((24, 2))


def fit(name, estimator, X, y, **given):
    arguments = (X, y) if name in SUPERVISED else (X,)
    return clone(estimator).fit(*arguments, **given)


@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_a_wrong_value_is_refused_by_its_name(name, parameter):
    for junk in JUNK[parameter]:
        estimator = clone(ESTIMATORS[name])
        setattr(estimator, parameter, junk)
        with pytest.raises(ValueError, match=rf"(?s){parameter}.*expected") as refused:
            estimator.fit(*(rows() if name in SUPERVISED else rows()[:1]))
        assert len(str(refused.value)) < 400


OPTIONS = {
    "n_components": ("integer of at least 1", "None"),
    "learning_rate": ("'auto'", "above 0"),
    "tied": ("'auto'", "True", "False"),
    "l2": ("'auto'", "at least 0", "per latent"),
    "prior": ("'geometric'", "'uniform'", "for each number of latents"),
    "random_state": ("integer", "RandomState", "None"),
    "verbose": ("integer", "True", "False", "'auto'"),
    "dropout": ("[0, 1)",),
    "momentum": ("[0, 1)",),
    "significance": ("(0, 1]",),
}


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        (name, parameter)
        for name, estimator in ESTIMATORS.items()
        for parameter in OPTIONS
        if parameter in estimator.get_params()
    ],
)
def test_the_error_lists_everything_that_is_allowed(name, parameter):
    estimator = clone(ESTIMATORS[name])
    for junk in JUNK[parameter]:
        setattr(estimator, parameter, junk)
        with pytest.raises(ValueError, match="expected") as refused:
            estimator.fit(*(rows() if name in SUPERVISED else rows()[:1]))
        for option in OPTIONS[parameter]:
            assert option in str(refused.value), junk


def test_a_share_of_the_variance_is_among_the_options_of_the_linear_autoencoder():
    for junk in ("two", 0, 1.0, True):
        with pytest.raises(ValueError, match=re.escape("a share of the variance in (0, 1)")):
            LinearAutoencoder(junk).fit(rows()[0])


JUNK_WEIGHTS = {
    "complex": np.ones(24) + 1j,
    "complex without imaginary part": np.ones(24, dtype=complex),
    "dates": np.full(24, DATE),
    "durations": np.full(24, np.timedelta64(1, "D")),
    "text": ["1"] * 24,
    "objects": [None] * 24,
    "masked": np.ma.array(np.ones(24), mask=np.arange(24) == 3),
    "one boolean": True,
    "one text": "1",
    "one complex number": 1j,
    "not a number": np.nan,
}


@pytest.mark.parametrize("junk", JUNK_WEIGHTS)
@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "factorization"])
def test_weights_that_are_no_numbers_are_refused(name, junk):
    X, y = rows()
    with pytest.raises(ValueError, match="sample_weight"):
        fit(name, ESTIMATORS[name], X, y, sample_weight=JUNK_WEIGHTS[junk])


@pytest.mark.parametrize("junk", JUNK_WEIGHTS)
@pytest.mark.parametrize("name", ["linear", "regressor", "autoencoder"])
def test_weights_that_are_no_numbers_are_refused_with_batches(name, junk):
    X, y = rows()
    estimator = clone(ESTIMATORS[name])
    targets = {"y": y} if name in SUPERVISED else {}
    with pytest.raises(ValueError, match="sample_weight"):
        estimator.fit_batches([X[:12], X[12:]], **targets, sample_weight=JUNK_WEIGHTS[junk])


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "factorization"])
def test_whole_weights_of_any_kind_are_accepted(name):
    X, y = rows()
    expected = fit(name, ESTIMATORS[name], X, y, sample_weight=np.ones(24)).certificate_.to_dict()
    for weights in (
        [1] * 24,
        np.ones(24, dtype=bool),
        np.ma.ones(24),
        1,
        np.ones(24, dtype=object),
    ):
        found = fit(name, ESTIMATORS[name], X, y, sample_weight=weights).certificate_.to_dict()
        assert found == expected


JUNK_ROWS = {
    "masked": lambda X: np.ma.array(X, mask=np.arange(X.size).reshape(X.shape) == 3),
    "dates": lambda X: np.full(X.shape, DATE),
    "durations": lambda X: np.full(X.shape, np.timedelta64(1, "D")),
    "complex": lambda X: X + 0j,
    "list of dates": lambda X: [[DATE] * X.shape[1]] * len(X),
    "list of masked rows": lambda X: [np.ma.array(row, mask=row > 0) for row in X],
    "polars frame of dates": lambda X: require("polars").DataFrame(
        {f"c{j}": [dt.date(2024, 1, 1)] * len(X) for j in range(X.shape[1])}
    ),
    "frame of dates": lambda X: require("pandas").DataFrame(X).astype("datetime64[ns]"),
}


@pytest.mark.parametrize("junk", JUNK_ROWS)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_rows_that_are_no_numbers_are_refused(name, junk):
    X, y = rows()
    wrong = JUNK_ROWS[junk]
    if (name, junk) == ("sparse", "complex"):  # which this family takes
        assert fit(name, ESTIMATORS[name], wrong(X), y).certificate_.holds
        return
    with pytest.raises(ValueError, match=r"masked|expected real numbers|[Cc]omplex"):
        fit(name, ESTIMATORS[name], wrong(X), y)
    fitted = fit(name, ESTIMATORS[name], X, y)
    use = fitted.predict if name in SUPERVISED else fitted.transform
    with pytest.raises(ValueError, match=r"masked|expected real numbers|[Cc]omplex"):
        use(wrong(X))
    if name in SUPERVISED:
        with pytest.raises(ValueError, match=r"masked|expected real numbers|[Cc]omplex"):
            fit(name, ESTIMATORS[name], X, wrong(y))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_mask_without_masked_entries_is_no_obstacle(name):
    X, y = rows()
    plain, masked = (fit(name, ESTIMATORS[name], rows, y) for rows in (X, np.ma.array(X)))
    assert masked.certificate_.to_dict() == plain.certificate_.to_dict()
