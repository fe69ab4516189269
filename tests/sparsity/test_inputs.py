"""Data, settings and parameters that cannot be meant are refused with a sentence."""

import warnings

import numpy as np
import pytest

from extras import require
from lucidae import SparseVAE, certify
from lucidae.sparsity import noise_path, solve_batch, solve_joint

rng = np.random.default_rng(0)
X = rng.standard_normal((30, 5))
Y = X @ rng.standard_normal((5, 3))
DATES = np.arange(30).astype("datetime64[s]")


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([1.0, None] * 15, "y contains NaN"),
        ([1.0, "a"] * 15, "a"),
        (np.where(Y > 1, 1j * np.inf, Y), "infinity"),
        (DATES, "datetime64"),
        (np.ma.masked_array(Y, Y > 1), "masked"),
        (np.where(Y > 1, np.inf, Y), "infinity"),
    ],
)
def test_responses_that_are_not_numbers_are_refused(y, words):
    with pytest.raises(ValueError, match=words):
        SparseVAE().fit(X, y)
    model = SparseVAE(noise_variance=0.1).fit(X, Y if np.ndim(y) == 2 else Y[:, 0])
    with pytest.raises(ValueError, match=r"y|could not convert"):
        certify(model, X, y)


def test_a_dask_array_is_refused_with_what_to_do():
    da = require("dask.array")
    for data in ((da.from_array(X), Y), (X, da.from_array(Y))):
        with pytest.raises(ValueError, match=r"Dask collection.*give [Xy]\.compute\(\)"):
            SparseVAE().fit(*data)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"fit_intercept": "False"}, "fit_intercept='False' was given, expected True or False"),
        ({"fit_intercept": 1}, "fit_intercept=1 was given, expected True or False"),
        ({"warm_start": "no"}, "warm_start='no' was given, expected True or False"),
        ({"verbose": "no"}, "verbose='no' was given, expected an integer of at least 0, True or"),
        ({"random_state": "x"}, "random_state='x' was given, expected an integer in"),
        ({"tol": 1j}, "tol=1j was given, expected a finite number of at least 0"),
        ({"tol": float("nan")}, "tol=nan"),
        ({"significance": 1 + 0j}, r"significance=.* expected a number in \(0, 1\]"),
        (
            {"noise_variance": 1j},
            "one of 'auto', 'learn', 'learn_diagonal', 'cv', 'cv_1se' or a finite number above 0",
        ),
        (
            {"noise_variance": True},
            "a finite number above 0 or one of 'auto', 'learn', 'learn_diagonal', 'cv', 'cv_1se'",
        ),
        ({"noise_variance": "cv", "cv": []}, "cv contains no folds"),
        (
            {"noise_variance": "cv", "cv": "5"},
            "cv='5' was given, expected an integer of at least 2",
        ),
        ({"noise_variance": "cv", "cv": 2.5}, "expected an integer of at least 2, a splitter"),
        ({"noise_variance": "cv", "cv": [([0, 1], [])]}, "two non-empty arrays of row indices"),
        ({"noise_variance": "cv", "cv": [([0, 1], [30])]}, r"row indices in \[0, 29\]"),
        ({"noise_variance": "cv", "cv": [([0.5], [1])]}, "row indices"),
        ({"noise_variance": "cv", "cv": [3]}, "cv contains the fold 3"),
    ],
)
def test_settings_are_refused_and_all_options_are_named(settings, words):
    with pytest.raises(ValueError, match=words):
        SparseVAE(**settings).fit(X, Y)


@pytest.mark.parametrize("flag", [True, False, np.True_, np.False_])
def test_flags_of_numpy_are_flags(flag):
    model = SparseVAE(noise_variance=0.1, fit_intercept=flag).fit(X, Y + 1.0)
    assert bool(model.intercept_.any()) is bool(flag)


@pytest.mark.parametrize(
    "weights", [DATES, np.ones(30) * 1j, ["a"] * 30, np.ones((30, 1)), [None] * 30, True]
)
def test_weights_that_are_not_numbers_are_refused(weights):
    with pytest.raises(ValueError, match="sample_weight"):
        SparseVAE(noise_variance=0.1).fit(X, Y, sample_weight=weights)
    model = SparseVAE(noise_variance=0.1).fit(X, Y)
    with pytest.raises(ValueError, match="sample_weight"):
        certify(model, X, Y, sample_weight=weights)


@pytest.mark.parametrize("settings", [{"noise_variance": "learn"}, {}])
def test_weights_of_zero_rows_are_refused_where_the_energy_would_not_be_finite(settings):
    zero, model = np.zeros((1, 2)), SparseVAE(fit_intercept=False, **settings)
    with pytest.raises(ValueError, match=r"sample_weight sums to 1e\+298; .* at most 1e\+150"):
        model.fit(zero, [2e-75], sample_weight=[1e298])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # learning ends at the smallest noise variance
        model.fit(zero, [2e-75], sample_weight=[1e150])
    assert np.isfinite(model.energy_)
    with pytest.raises(ValueError, match="sample_weight sums to 1e"):
        certify(model, zero, [0.0], sample_weight=[1e308])


def test_folds_without_weight_are_refused():
    weights = np.r_[np.zeros(10), np.ones(20)]
    folds = [(np.arange(10), np.arange(10, 30))]
    model = SparseVAE(noise_variance="cv", cv=folds)
    with pytest.raises(ValueError, match="all have weight zero"):
        model.fit(X, Y, sample_weight=weights)
    masks = [(np.arange(30) < 20, np.arange(30) >= 20)]
    assert SparseVAE(noise_variance="cv", cv=masks).fit(X, Y).noise_variance_ > 0


def test_certify_refuses_what_fit_refuses():
    model = SparseVAE(noise_variance=0.1).fit(X, Y)
    for data in ((X * 1e160, Y), (X, Y * 1e160), (X * 1e-160, Y), (X * np.nan, Y)):
        with pytest.raises(ValueError, match=r"largest absolute value|NaN"):
            certify(model, *data)
    with pytest.raises(ValueError, match="expecting 5 features"):
        certify(model, X[:, :4], Y)


STACK = np.stack([X, X]), np.stack([Y, Y])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tol": 1j}, "tol=1j was given"),
        ({"tol": float("nan")}, "tol=nan was given"),
        ({"max_iter": 1.5}, "max_iter=1.5 was given, expected an integer of at least 1"),
        ({"n_jobs": 0}, "n_jobs=0 was given, expected None or an integer other than 0"),
        ({"n_jobs": "two"}, "n_jobs='two' was given"),
        ({"n_jobs": True}, "n_jobs=True was given"),
        ({"noise_variance": "cv"}, "expected one of 'learn', a finite number above 0 or an array"),
        ({"noise_variance": None}, "a finite number above 0 for all problems, an array of them or"),
        ({"noise_variance": True}, "noise_variance=True was given"),
        (
            {"noise_variance": [1.0, 2.0, 3.0]},
            r"shape \(3,\), expected one number or an array of 2",
        ),
        ({"noise_variance": [1.0, -1.0]}, "expected a finite number above 0 for every problem"),
        ({"noise_variance": np.array([1j, 1j])}, "complex128"),
        ({"solver": "coordinate"}, "expected one of 'auto', 'em', 'mm', 'mackay'"),
        ({"posterior": 3}, "posterior=3 was given, expected one of 'full', 'diagonal', 'point'"),
        ({"penalty": "l0"}, "penalty='l0' was given, expected one of 'log', 'power', 'arctan'"),
    ],
)
def test_settings_of_a_batch_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        solve_batch(*STACK, **settings)


@pytest.mark.parametrize(
    "data",
    [
        (STACK[0] * 1e160j, STACK[1]), (STACK[0], STACK[1] + 1j * np.nan), ("a", STACK[1]),
        (STACK[0] * 1e160, STACK[1]), (STACK[0], STACK[1] * 1e-300), (STACK[0], X),
        (STACK[0] * np.nan, STACK[1]), (STACK[0].astype(str), STACK[1]),
        (STACK[0][:, :2], STACK[1]),
    ],
)  # fmt: skip
def test_data_of_a_batch_are_refused(data):
    with pytest.raises(ValueError, match=r"X|y"):
        solve_batch(*data)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("of_x", "of_y", "words"),
    [
        (1e-10, 1.0, None), (1e10, 1.0, None), (1.0, 1e-10, None),
        (1e-20, 1.0, "relevance has an entry"), (1.0, 1e20, "relevance has an entry"),
        (1e-30, 1e8, "coef has an entry|relevance has an entry"), (1e30, 1e-15, "coef has entries"),
    ],
)  # fmt: skip
def test_a_batch_in_single_precision_is_finite_or_refused(library, of_x, of_y, words):
    as_array = require("torch").asarray if library == "torch" else np.asarray
    single = [as_array(part.astype(np.float32)) for part in STACK]
    stack, settings = (single[0] * of_x, single[1] * of_y), {"noise_variance": 1e-3 * of_y**2}
    if words is not None:
        with pytest.raises(ValueError, match=words):
            solve_batch(*stack, **settings)
        return
    solution = solve_batch(*stack, **settings)
    assert all(np.isfinite(np.asarray(part)).all() for part in solution.value)
    assert np.asarray(solution.value.coef).any()


@pytest.mark.parametrize("noise", ["auto", "learn", "learn_diagonal", "cv", "cv_1se", 0.1])
def test_responses_of_zeros_are_refused_and_nothing_is_fitted(noise):
    X = np.random.default_rng(0).standard_normal((20, 5))
    for y in (np.zeros(20), np.zeros((20, 2)), np.zeros(20, dtype=int)):
        model = SparseVAE(noise_variance=noise, fit_intercept=False)
        with pytest.raises(ValueError, match="y is zero") as caught:
            model.fit(X, y)
        assert not hasattr(model, "coef_")
        with pytest.raises(ValueError, match="y is zero") as of_path:
            noise_path(X, y)
        assert str(of_path.value) == str(caught.value)


def refused(X, y, match, **fit):
    """Check that a fit and a path are refused in the same sentence, and nothing is fitted."""
    model = SparseVAE(noise_variance=0.1)
    with pytest.raises(ValueError, match=match) as caught:
        model.fit(X, y, **fit)
    assert not hasattr(model, "coef_")
    with pytest.raises(ValueError, match=match) as of_path:
        noise_path(X, y, **fit)
    assert str(of_path.value) == str(caught.value)


def test_responses_of_which_centring_leaves_nothing_are_refused():
    X = np.random.default_rng(0).standard_normal((20, 5))
    for y in (np.full(20, 3.0), np.full((20, 2), 0.1) * [1.0, 3.0], np.full(20, 1.0 + 2.0j)):
        refused(X, y, "y is zero .or constant")
        assert hasattr(SparseVAE(noise_variance=0.1, fit_intercept=False).fit(X, y), "coef_")
    refused(X[:1], [2.0], "1 sample, which fit_intercept=True removes")


def test_responses_of_which_the_noise_covariance_leaves_nothing_are_refused():
    X = np.random.default_rng(0).standard_normal((6, 5))
    root = np.eye(6)[:, :3]  # noise in the first three rows alone
    outside = np.r_[np.zeros(3), 1.0, 2.0, 3.0]
    options = {"noise_variance": 0.1, "fit_intercept": False}
    model = SparseVAE(**options)
    with pytest.raises(ValueError, match="on the range of noise_cov"):
        model.fit(X, outside, noise_cov=root @ root.T)
    assert not hasattr(model, "coef_")
    assert SparseVAE(**options).fit(X, outside + 1.0, noise_cov=root @ root.T).energy_ < np.inf


@pytest.mark.parametrize("options", [{}, {"groups": 2, "group_covariance": "full"}])
def test_several_problems_name_the_one_whose_responses_are_zero(options):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((3, 8, 6)), rng.standard_normal((3, 8, 2))
    y[1] = 0.0
    with pytest.raises(ValueError, match=r"y\[1\] is zero"):
        solve_batch(X, y, noise_variance=0.1, **options)
    with pytest.raises(ValueError, match=r"y\[1\] is zero"):
        solve_joint(list(X), list(y), noise_variance=0.1)
