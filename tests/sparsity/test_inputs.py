"""Data, settings and combinations that cannot be meant are refused in one sentence."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose

from extras import require
from lucidae import SparseVAE, certify
from lucidae.sparsity import (
    group_lasso,
    joint_blocks,
    noise_free_group_lasso,
    noise_path,
    solve_batch,
    solve_joint,
)

rng = np.random.default_rng(0)
X = rng.standard_normal((30, 6))
Y = X @ rng.standard_normal((6, 3)) + 0.1 * rng.standard_normal((30, 3))
DATES = np.arange(30).astype("datetime64[s]")
LARGE = sp.random(600, 500, 0.02, format="csr", random_state=0)
FULL = {"groups": 3, "group_covariance": "full"}

SETTINGS = [
    ({"posterior": "half"}, "posterior='half' was given, expected one of 'full'"),
    ({"posterior": 3}, "posterior=3 was given, expected one of 'full', 'diagonal', 'point'"),
    ({"solver": "magic"}, "solver='magic'"),
    ({"solver": "em", "posterior": "diagonal"}, "use solver='auto'"),
    ({"solver": "coordinate", "posterior": "diagonal"}, "only the full energy has it"),
    ({"noise_variance": 0.0}, "noise_variance=0.0"),
    ({"noise_variance": -1.0}, "noise_variance=-1.0"),
    ({"noise_variance": float("nan")}, "noise_variance=nan"),
    ({"noise_variance": "guess"}, "noise_variance='guess'"),
    ({"noise_variance": None}, "noise_variance=None"),
    ({"noise_variance": 1j},
     "one of 'auto', 'learn', 'cv', 'cv_1se' or a finite number above 0"),
    ({"noise_variance": True},
     "a finite number above 0 or one of 'auto', 'learn', 'cv', 'cv_1se'"),
    ({"noise_variance": "learn", "posterior": "point"}, "point estimate without one"),
    ({"noise_variance": "learn_diagonal"}, "noise_variance='learn_diagonal'"),
    ({"significance": 0.0}, "significance=0.0"),
    ({"significance": 2.0}, "significance=2.0"),
    ({"significance": 1 + 0j}, r"significance=.* expected a number in \(0, 1\]"),
    ({"tol": -1e-3}, "tol=-0.001"),
    ({"tol": 1j}, "tol=1j was given, expected a finite number of at least 0"),
    ({"tol": float("nan")}, "tol=nan"),
    ({"max_iter": 0}, "max_iter=0"),
    ({"max_iter": 2.5}, "max_iter=2.5"),
    ({"fit_intercept": "False"}, "fit_intercept='False' was given, expected True or False"),
    ({"fit_intercept": 1}, "fit_intercept=1 was given, expected True or False"),
    ({"warm_start": "no"}, "warm_start='no' was given, expected True or False"),
    ({"verbose": "no"}, "verbose='no' was given, expected an integer of at least 0, True, "),
    ({"random_state": "x"}, "random_state='x' was given, expected an integer in"),
    ({"penalty": "l0"}, "penalty='l0'"),
    ({"penalty": object()}, "supergradient"),
    ({"groups": [0, 1]}, "one label per column"),
    ({"groups": [0.5] * 6}, "expected integers"),
    ({"groups": np.ones(6, dtype=complex)}, "groups has dtype complex128, expected integers"),
    *(({"groups": groups}, r"groups=.* was given, expected an integer number")
      for groups in (2.0, True, "abc", np.timedelta64(3, "s"))),
    *(({"groups": count}, "divides the number of columns") for count in (4, 0, -3)),
    ({"group_covariance": "diagonal"}, "group_covariance='diagonal'"),
    ({"group_covariance": "full"}, "needs groups of columns and posterior='full'"),
    (FULL | {"posterior": "diagonal"}, "posterior='full'"),
    (FULL | {"posterior": "point"}, "posterior='full'"),
    (FULL | {"solver": "em"}, "use solver='auto'"),
    (FULL | {"response_covariance": "learn"}, "response_covariance"),
    *(({"noise_variance": "cv", "cv": cv}, words) for cv, words in (
        (1, "cv=1"), ([], "cv contains no folds"), (2.5, "expected an integer of at least 2, a sp"),
        ("5", "cv='5' was given, expected an integer of at least 2"),
        ([([0, 1], [])], "training rows or the test rows all have"),
        ([([0, 1], [30])], r"row indices \(integers from 0 to 29\)"),
        ([([0.5], [1])], "row indices"),
        ([3], "fold 0 of cv is 3, expected row indices"),
    )),
    ({"response_covariance": "full"}, "response_covariance='full' was given"),
    ({"response_covariance": "learn", "posterior": "diagonal"}, "posterior='full'"),
    ({"response_covariance": "learn", "solver": "em"}, "solver='auto'"),
    ({"response_covariance": {"a": 1}}, "expected None, 'learn'"),
    ({"response_covariance": np.eye(2)}, r"has shape \(2, 2\)"),
    ({"response_covariance": -np.eye(3)}, "positive semi-definite"),
    ({"response_covariance": np.eye(3) - 1.0}, "smallest eigenvalue of its .* is -2"),
    ({"response_covariance": np.zeros((3, 3))}, "is zero"),
    ({"response_covariance": np.triu(np.ones((3, 3)))}, "not symmetric"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "words"), SETTINGS)
def test_settings_are_refused_and_nothing_is_fitted(settings, words):
    model = SparseVAE(**{"noise_variance": 0.1} | settings)
    with pytest.raises(ValueError, match=words):
        model.fit(X, Y)
    assert not hasattr(model, "coef_")
    assert "n_features_in_" not in vars(model)


ZERO, CONSTANT = "y is zero", r"y is zero \(or constant"
DATA = [
    (X * np.nan, Y, "NaN"), (X + 1j * np.nan, Y, "X contains NaN or infinity"),
    (X, np.full_like(Y, np.inf), "infinity"), (X, [1.0, None] * 15, "y contains NaN"),
    (X, Y + complex(0, np.inf), "y contains NaN or infinity"), (X, ["a"] * 30, "dtype <U1"),
    (X, DATES, "datetime64"), (X, np.ma.masked_array(Y, Y > 1), "masked"),
    (X[:0], Y[:0], "0 sample"), (X[:0] + 0j, Y[:0], "is empty"), (X[:, :0], Y, "0 feature"),
    (X[0], Y, "1D array"), (X[:, 0] + 0j, Y, "must have two dimensions"),
    (X, Y[:5], "X has 30 rows and y has 5"), (X[:5] + 0j, Y, "X has 5 rows and y has 30"),
    (X * 1e80, Y, "largest absolute value"), (X, Y * 1e-80, "largest absolute value"),
    (X, 1e80j * Y, "too large or too small for float64"),
    (sp.csr_array(np.where(X > 2, np.nan, X) * np.nan), Y, "NaN"),
    (sp.csr_array(X * 1e80), Y, r"largest absolute value is \d\.?\d*e\+80"),
    (X, sp.csr_array(Y), "y is a sparse matrix"),
    (sp.csr_array(X), Y + 1j, "sparse X was given with complex"),
    (sp.csr_array(X + 1j), Y, "sparse X was given with complex"),
    (X, np.full(30, 7.0), CONSTANT), (X, np.full((30, 2), 0.1) * [1.0, 3.0], CONSTANT),
    (X, np.full(30, 1.0 + 2.0j), CONSTANT), (X, np.zeros((30, 3), dtype=complex), ZERO),
    (X[:1], [2.0], "1 sample, which fit_intercept=True removes"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "y", "words"), DATA)
def test_data_are_refused_by_fits_and_paths_in_the_same_sentence(given, y, words):
    model = SparseVAE(noise_variance=0.1)
    with pytest.raises(ValueError, match=words) as caught:
        model.fit(given, y)
    assert not hasattr(model, "coef_")
    with pytest.raises(ValueError, match=words) as of_path:
        noise_path(given, y, [0.1], cv=False)
    assert str(of_path.value) == str(caught.value)


@pytest.mark.parametrize("noise", ["auto", "learn", "cv", "cv_1se", 0.1])
def test_responses_without_variation_are_refused_with_every_noise_variance(noise):
    for y, intercept in (
        (np.zeros((30, 1)), False),
        (np.zeros((30, 2)), False),
        (Y * 0 + 1.0, True),
    ):
        model = SparseVAE(noise_variance=noise, fit_intercept=intercept)
        with pytest.raises(ValueError, match=ZERO if not intercept else f"{ZERO}|no noise"):
            model.fit(X, y)
        assert not hasattr(model, "coef_")


def a_covariance(change):
    cov = np.eye(30) + 0.1
    change(cov)
    return cov


SKEW = np.eye(30) + 0.1j * (np.eye(30, k=1) - np.eye(30, k=-1))
FIT = [
    *(({"sample_weight": w}, "sample_weight") for w in (
        np.ones(3), -np.ones(30), np.zeros(30), np.full(30, np.nan), DATES, np.ones(30) * 1j,
        ["a"] * 30, np.ones((30, 1)), [None] * 30, True,
    )),
    *(({"sample_weight": np.full(30, size)}, "X times the square roots of sample_weight has a col")
      for size in (1e300, 1e-300)),
    ({"noise_cov": np.eye(29)}, "has shape"), ({"noise_cov": np.ones((30, 2))}, "has shape"),
    ({"noise_cov": [[1.0, 0.0], [1.0]]}, "expected real numbers"),
    ({"noise_cov": np.full(30, np.nan)}, "NaN"),
    ({"noise_cov": a_covariance(lambda c: c.__setitem__((0, 1), np.inf))}, "NaN or infinity"),
    ({"noise_cov": a_covariance(lambda c: c.__setitem__((0, 1), 5.0))}, "not symmetric"),
    ({"noise_cov": np.eye(30) - np.ones((30, 30)) / 15}, "not positive semi-definite"),
    ({"noise_cov": np.ones((30, 30)) - np.eye(30) * 0.5}, "not positive semi-definite"),
    ({"noise_cov": -np.eye(30)}, "not positive semi-definite"),
    ({"noise_cov": -np.ones(30)}, "negative variance"),
    ({"noise_cov": np.zeros((30, 30))}, "is zero"), ({"noise_cov": np.zeros(30)}, "is zero"),
    ({"noise_cov": np.array(["a"] * 30)}, "expected real numbers"),
    ({"noise_cov": SKEW}, r"^noise_cov is complex, but X and y are real"),
    ({"noise_cov": np.eye(30), "sample_weight": np.full(30, 2.0)}, "repeated rows is not known"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "words"), FIT)
def test_weights_and_covariances_are_refused_by_fits_paths_and_certificates(given, words):
    model = SparseVAE(noise_variance=0.1)
    fitted = SparseVAE(noise_variance=0.1).fit(X, Y)
    for call in (model.fit, lambda *a, **k: certify(fitted, *a, **k), noise_path):
        with pytest.raises(ValueError, match=words):
            call(X, Y, **given)
    assert not model.__sklearn_is_fitted__()


COMBINATIONS = [
    ({"response_covariance": "learn"}, {"noise_cov": np.ones(30)}, "response_covariance"),
    ({"response_covariance": "learn"}, {"y": Y[:, :1]}, "two outputs or more"),
    ({"response_covariance": "learn"}, {"y": 1j * Y}, "complex data"),
    *((settings, fit | {"X": LARGE, "y": np.arange(1200.0).reshape(600, 2)},
       "with a sparse X, but needs a dense one")
      for settings, fit in (({}, {"noise_cov": np.ones(600)}),
                            ({"groups": 2, "group_covariance": "full"}, {}))),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "fit", "words"), COMBINATIONS)
def test_combinations_are_refused_and_nothing_is_fitted(settings, fit, words):
    model = SparseVAE(**settings)
    with pytest.raises(ValueError, match=words):
        model.fit(**{"X": X, "y": Y} | fit)
    assert not hasattr(model, "coef_")


def test_a_dask_array_is_refused_with_what_to_do():
    da = require("dask.array")
    for data in ((da.from_array(X), Y), (X, da.from_array(Y))):
        with pytest.raises(ValueError, match=r"Dask collection.*give [Xy]\.compute\(\)"):
            SparseVAE().fit(*data)


@pytest.mark.parametrize("flag", [True, False, np.True_, np.False_])
def test_flags_of_numpy_are_flags(flag):
    model = SparseVAE(noise_variance=0.1, fit_intercept=flag).fit(X, Y + 1.0)
    assert bool(model.intercept_.any()) is bool(flag)


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


def test_folds_need_rows_with_weight():
    weights, folds = np.r_[np.zeros(10), np.ones(20)], [(np.arange(10), np.arange(10, 30))]
    with pytest.raises(ValueError, match="all have weight zero"):
        SparseVAE(noise_variance="cv", cv=folds).fit(X, Y, sample_weight=weights)
    masks = [(np.arange(30) < 20, np.arange(30) >= 20)]
    assert SparseVAE(noise_variance="cv", cv=masks).fit(X, Y).noise_variance_ > 0
    with pytest.raises(ValueError, match="at least 2 distinct rows"):
        SparseVAE(noise_variance="cv", fit_intercept=False).fit(np.ones((3, 2)), np.ones(3))


def test_responses_of_which_the_noise_covariance_leaves_nothing_are_refused():
    root = np.eye(30)[:, :3]  # noise in the first three rows alone
    outside = np.r_[np.zeros(3), np.ones(27)]
    model = SparseVAE(noise_variance=0.1, fit_intercept=False)
    with pytest.raises(ValueError, match="on the range of noise_cov"):
        model.fit(X, outside, noise_cov=root @ root.T)
    assert not hasattr(model, "coef_")
    assert model.fit(X, outside + 1.0, noise_cov=root @ root.T).energy_ < np.inf


def test_certify_and_predict_refuse_what_fit_refuses():
    model = SparseVAE(noise_variance=0.1).fit(X, Y)
    for data in ((X * 1e160, Y), (X, Y * 1e160), (X * 1e-160, Y), (X * np.nan, Y)):
        with pytest.raises(ValueError, match=r"largest absolute value|NaN"):
            certify(model, *data)
    with pytest.raises(ValueError, match="expecting 6 features"):
        certify(model, X[:, :4], Y)
    with pytest.raises(ValueError, match=r"y has 2 outputs, .* was fitted to 3"):
        certify(model, X, Y[:, 1:])
    with pytest.raises(ValueError, match="X is complex, but the estimator was fitted to real data"):
        model.predict(X + 0j)
    for indices in ([6], [-1], [0.5], [], [[0]]):
        with pytest.raises(ValueError, match="expected a list of integers"):
            model.posterior_covariance(indices)


STACK = np.stack([X, X]), np.stack([Y, Y])
BATCH = [
    ({"tol": 1j}, "tol=1j was given"), ({"tol": float("nan")}, "tol=nan was given"),
    ({"max_iter": 1.5}, "max_iter=1.5 was given, expected an integer of at least 1"),
    ({"n_jobs": 0}, "n_jobs=0 was given, expected None or an integer other than 0"),
    ({"n_jobs": "two"}, "n_jobs='two' was given"), ({"n_jobs": True}, "n_jobs=True was given"),
    ({"noise_variance": "cv"}, "expected one of 'learn', a finite number above 0 or an array of 2"),
    ({"noise_variance": None}, "a finite number above 0 or an array of 2 of them, or 'learn'"),
    ({"noise_variance": [1.0, 2.0, 3.0]}, "a finite number above 0 or an array of 2 of them"),
    ({"noise_variance": [1.0, -1.0]}, "a finite number above 0 or an array of 2 of them"),
    *(({"noise_variance": noise}, "noise_variance") for noise in (
        -1.0, True, [], np.array([]), [None], np.array([[0.1]]), {0.1}, np.datetime64("2020"),
        np.array([0.0, 1.0]), np.array([1j, 1j]),
    )),
    ({"posterior": "point"}, "needs a posterior"), ({"posterior": "half"}, "posterior='half'"),
    ({"solver": "coordinate"}, "expected one of 'auto', 'em', 'mm', 'mackay'"),
    ({"penalty": "l0"}, "penalty='l0' was given, expected one of 'log', 'power', 'arctan'"),
    ({"groups": 5}, "divides the number of columns"),
    (FULL | {"groups": None}, "needs groups of columns"),
    (FULL | {"posterior": "diagonal"}, "posterior='diagonal'"),
    (FULL | {"group_covariance": "diagonal"}, "group_covariance='diagonal' was given"),
    (FULL | {"solver": "em"}, "solver='em' needs"),
    ({"X": X, "y": Y}, r"expected X of shape .problems, rows, columns."),
    ({"X": STACK[0][:, :2]}, "must agree"), ({"y": STACK[1] * np.nan}, "NaN"),
    ({"X": sp.csr_array(np.eye(3))}, "expected a dense stack"),
    ({"y": STACK[1] * [[[1.0]], [[0.0]]]}, r"y\[1\] is zero"),
    (FULL | {"y": STACK[1] * [[[1.0]], [[0.0]]], "noise_variance": 0.1}, r"y\[1\] is zero"),
    *((data, "X|y") for data in (
        {"X": STACK[0] * 1e160j}, {"y": STACK[1] + 1j * np.nan}, {"X": "a"}, {"y": X},
        {"X": STACK[0] * 1e160}, {"y": STACK[1] * 1e-300}, {"X": STACK[0].astype(str)},
    )),
]  # fmt: skip


@pytest.mark.parametrize(("given", "words"), BATCH)
def test_stacks_that_cannot_be_solved_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        solve_batch(**{"X": STACK[0], "y": STACK[1]} | given)


PARTS = [X[:10], X[10:24], X[24:]], [Y[:10], Y[10:24, :2], Y[24:, :1]]
JOINT = [
    ({"y": PARTS[1][:2]}, "X contains 3 dictionaries and y contains 2 arrays"),
    ({"X": [], "y": []}, "expected at least one"),
    ({"X": [PARTS[0][0], PARTS[0][1][:, :5], PARTS[0][2]]}, "with 5 and 6 columns"),
    ({"X": [X[:3], *PARTS[0][1:]]}, "X has 3 rows and y has 10"),
    ({"X": [X[:10] + np.nan, *PARTS[0][1:]]}, r"X\[0\] contains NaN"),
    ({"y": [Y[:10], 0 * Y[10:24], Y[24:]]}, r"y\[1\] is zero"),
    ({"noise_variance": -1.0}, "noise_variance=-1.0 was given"),
    ({"noise_variance": [0.1, 0.2]}, "an array of 3 of them"),
    ({"noise_variance": "cv"}, "noise_variance='cv' was given"),
    ({"solver": "coordinate"}, "solver='coordinate' was given"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "words"), JOINT)
def test_parts_that_do_not_belong_together_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        solve_joint(**{"X": PARTS[0], "y": PARTS[1]} | given)
    with pytest.raises(ValueError, match="arrays of y have 1 and 2 and 3 responses"):
        joint_blocks(*PARTS)


PATH = [
    *(({"noise_variances": levels}, "above 0")
      for levels in ([0.1, -1.0], [0.0], [], [np.nan], "cv")),
    ({"noise_variance": 0.1}, "varies along the path"), ({"cv": 1}, "cv"),
    ({"groups": [1]}, "groups has shape"),
    ({"response_covariance": "learn"}, "noise_path was given response_covariance"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "words"), PATH)
def test_paths_that_cannot_be_computed_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        noise_path(X, Y, **given)


@pytest.mark.parametrize("function", [group_lasso, noise_free_group_lasso])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tol", np.timedelta64(3, "s")), ("tol", -1.0), ("tol", "small"), ("max_iter", 0),
        ("max_iter", 1.5), ("noise_variance", np.timedelta64(3, "s")), ("noise_variance", -1.0),
    ],
)  # fmt: skip
def test_settings_of_the_group_lasso_are_refused(function, name, value):
    with pytest.raises(ValueError, match=f"{name}=.*was given, expected"):
        function(X, Y, **{"noise_variance": 1.0, name: value})


@pytest.mark.covering
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


def test_a_sparse_noise_covariance_is_accepted():
    cov = np.diag(np.arange(1.0, 31.0))
    dense, sparse = (
        SparseVAE(noise_variance=0.1).fit(X, Y, noise_cov=each) for each in (cov, sp.csr_array(cov))
    )
    assert_allclose(sparse.coef_, dense.coef_)
