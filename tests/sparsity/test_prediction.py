"""Ranges and digits: data far from zero, of extreme magnitude, or in single precision."""

import contextlib
import warnings
from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require
from lucidae import SparseVAE, certify
from lucidae.datasets import make_sparse_regression
from lucidae.sparsity import solve_batch

ATTRIBUTES = ("coef_", "intercept_", "relevance_", "noise_variance_", "energy_")


def exactly_centred(columns):
    """Return columns less their exact means, rounded once, and the exact means."""
    exact = [[Fraction(value) for value in column] for column in np.asarray(columns, float).T]
    means = [sum(column) / len(column) for column in exact]
    moved = [[float(v - mean) for v in column] for column, mean in zip(exact, means, strict=True)]
    return np.array(moved).T, means


@pytest.mark.covering
@pytest.mark.parametrize("weights", [None, np.arange(30) % 3 + 1.0])
@pytest.mark.parametrize("posterior", ["full", "diagonal"])
@pytest.mark.parametrize("offset", [0.0, 1e6, 1e9, 1e12, 1e14])
def test_no_digits_are_lost_to_columns_far_from_zero(offset, posterior, weights):
    # column means of up to 1e14 standard deviations: the fit was off by 0.64 at 1e12
    rng = np.random.default_rng(5)
    X = rng.standard_normal((30, 5)) + offset
    y = exactly_centred(X)[0] @ [[1.0], [0.0], [-2.0], [0.5], [0.0]]
    y = y + 0.1 * rng.standard_normal((30, 1))
    model = SparseVAE(noise_variance=0.01, posterior=posterior)
    model.fit(X, y, sample_weight=weights)
    index = np.repeat(np.arange(30), 1 if weights is None else weights.astype(int))
    rows, _ = exactly_centred(X[index])
    targets, (level,) = exactly_centred(y[index])
    sigma = rows * model.relevance_ @ rows.T + 0.01 * np.eye(len(rows))
    mean = model.relevance_ * (rows.T @ np.linalg.solve(sigma, targets[:, 0]))
    assert_allclose(model.coef_[0], mean, atol=1e-12)
    expected = rows @ model.coef_[0] + float(level)
    assert_allclose(model.predict(X[index])[:, 0], expected, atol=1e-12)
    certificate = certify(model, X, y, sample_weight=weights)
    assert certificate.holds
    assert [c.verdict for c in certificate] == [c.verdict for c in model.certificate_]


def test_single_precision_rows_far_from_zero_are_predicted_in_doubles():
    rng = np.random.default_rng(6)
    X = (rng.standard_normal((30, 4)) + 1e5).astype(np.float32)
    y = X.astype(float) @ [1.0, 0.0, 0.0, -1.0] + 0.1 * rng.standard_normal(30)
    model = SparseVAE(noise_variance=0.01).fit(X, y)
    rows, _ = exactly_centred(X)
    expected = rows @ model.coef_.astype(float) + y.mean()
    assert_allclose(model.predict(X), expected, atol=1e-5)
    assert model.certificate_.holds


def test_responses_far_from_zero_leave_predictions_undecided():
    # a prediction of 1e12 ± 1 is rounded to 1e-4: the claim about predictions says so
    rng = np.random.default_rng(7)
    X = rng.standard_normal((30, 3))
    y = X[:, 0] + 0.1 * rng.standard_normal(30)
    near, far = (SparseVAE(noise_variance=0.01).fit(X, y + shift) for shift in (1e6, 1e12))
    assert near.certificate_.holds
    assert far.certificate_.holds is None
    assert far.certificate_["posterior_mean"].undecided
    assert_allclose(far.predict(X) - 1e12, near.predict(X) - 1e6, atol=1e-3)
    assert certify(far, X, y + 1e12 + 1000.0).holds is False


def exact_mean(X, y, relevance, noise):
    """Return the posterior mean (n, κ) in 60 digits."""
    mpmath = require("mpmath")
    with mpmath.workdps(60):
        active = np.flatnonzero(relevance)
        Phi = mpmath.matrix(X[:, active].tolist())
        prior = mpmath.diag([mpmath.mpf(float(each)) for each in relevance[active]])
        sigma = Phi * prior * Phi.T + mpmath.mpf(float(noise)) * mpmath.eye(X.shape[0])
        mean = prior * Phi.T * (sigma**-1 * mpmath.matrix(y.tolist()))
        found = np.zeros((y.shape[1], X.shape[1]))
        found[:, active] = np.array(mean.tolist(), dtype=float).T
    return found


def size(values):
    return float(np.abs(values).max())


OFFSETS = [
    *({"solver": solver} for solver in ("auto", "mm", "em", "mackay", "coordinate")),
    *({"posterior": posterior} for posterior in ("diagonal", "point")),
    *({"posterior": name, "groups": np.arange(40) // 2} for name in ("full", "diagonal", "point")),
]


@pytest.mark.parametrize("options", OFFSETS)
def test_offsets_without_an_intercept_do_not_make_a_fit_diverge(options):
    # columns are equal to 1e-6 and γ is 1e-10: rounding makes Σ indefinite
    p = make_sparse_regression(20, 40, 4, 6, 3, snr_db=20, random_state=0)
    X, y = p.dictionary + 1e6, p.responses[:, 0 if "solver" in options else slice(None)]
    model = SparseVAE(fit_intercept=False, noise_variance=1e-10, max_iter=60, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model.fit(X, y)
    assert model.status_ != "diverged"
    assert all(np.isfinite(getattr(model, name)).all() for name in ATTRIBUTES)
    assert np.isfinite(model.predict(X)).all()
    assert model.certificate_.holds is not True  # float64 does not decide it, or refutes it
    expected = exact_mean(X, y.reshape(20, -1), model.relevance_, model.noise_variance_)
    assert_allclose(
        model.coef_, expected.reshape(model.coef_.shape), rtol=0, atol=1e-7 * size(expected)
    )
    # Coefficients of 1e3 that cancel must agree in so many digits that they predict, too.
    assert_allclose(model.predict(X), (X @ expected.T).reshape(y.shape), atol=1e-5 * size(y))


@pytest.mark.covering
@pytest.mark.parametrize("solver", ["auto", "mackay"])
@pytest.mark.parametrize("kappa", [8, 40])
def test_offsets_do_not_spoil_the_coefficients_of_a_stack(kappa, solver):
    problems = [make_sparse_regression(20, kappa, 4, 6, 3, random_state=i) for i in range(3)]
    X = np.stack([p.dictionary + offset for p, offset in zip(problems, (1e6, 0, 1e5), strict=True)])
    y = np.stack([p.responses for p in problems])
    found = solve_batch(X, y, noise_variance=[1e-10, 0.1, 1e-9], solver=solver, max_iter=100).value
    for i in range(3):
        expected = exact_mean(X[i], y[i], found.relevance[i], found.noise_variance[i])
        assert_allclose(found.coef[i], expected, rtol=0, atol=1e-7 * size(expected))
        predicted = X[i] @ found.coef[i].T
        assert_allclose(predicted, X[i] @ expected.T, rtol=0, atol=1e-5 * size(y[i]))


@pytest.mark.covering
@pytest.mark.parametrize(
    ("posterior", "noise"), [("full", "cv"), ("diagonal", 1e-3), ("point", 1e-3)]
)
@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e-30, 1e20, 1e300])
@pytest.mark.parametrize("scaled", ["X", "y"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extreme_magnitudes_give_finite_numbers_or_an_error(dtype, scaled, scale, noise, posterior):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((12, 4))
    y = X @ rng.standard_normal((4, 2)) + 0.1 * rng.standard_normal((12, 2))
    if scaled == "X":
        X = X * scale
        if dtype == np.float32 and not 1e-37 < scale < 1e37:
            return  # the data themselves leave the range
    else:
        y = y * scale
        noise = noise if noise == "cv" else noise * scale * scale
        if noise in (0.0, np.inf):
            return
    model = SparseVAE(posterior=posterior, noise_variance=noise, penalty="arctan", max_iter=5000)
    with contextlib.suppress(ValueError):
        model.fit(X.astype(dtype), y)
    if not model.__sklearn_is_fitted__():
        with pytest.raises(ValueError, match="escale"):  # the message says what to do
            model.fit(X.astype(dtype), y)
        assert dtype == np.float32 or not 1e-75 < scale < 1e75
        return
    assert all(np.isfinite(getattr(model, name)).all() for name in ATTRIBUTES)
    mean, spread = model.predict(X.astype(dtype), return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(spread).all()
    relative = np.linalg.norm(mean - y) / np.linalg.norm(y)
    assert relative < 0.5  # a fit that underflowed would predict nothing but the mean
    assert model.certificate_["posterior_mean"].holds is not False


@pytest.mark.parametrize("noise", [5e-324, 1e-320, 1e-300, 1e-100, 1e100, 1e300, 1.7e308])
def test_extreme_noise_variances_give_finite_numbers(noise):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((12, 4))
    y = X @ rng.standard_normal((4, 2)) + 0.1 * rng.standard_normal((12, 2))
    model = SparseVAE(noise_variance=noise).fit(X, y)
    assert all(np.isfinite(getattr(model, name)).all() for name in ATTRIBUTES)
    assert model.certificate_.holds is (True if noise > 1 else None)
    certificate = certify(model.coef_, X, y, noise_variance=noise)
    assert (certificate.holds is False) == (noise < 1)  # the coefficients are those of a larger γ


def test_predictions_that_leave_the_range_are_refused():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((12, 3))
    y = X @ [1e30, 0.0, 1e30]
    model = SparseVAE(noise_variance=1e50).fit(X, y)
    with pytest.raises(
        ValueError,
        match=r"the prediction has an entry .*, which is outside the range of",
    ):
        model.predict((X * 1e10).astype(np.float32))
    with pytest.raises(ValueError, match="the prediction is not finite"):
        model.predict(np.full((1, 3), 1e300))
    model.noise_variance_ = -1e60
    with pytest.raises(ValueError, match="the standard deviation is not finite"):
        model.predict(X, return_std=True)


@pytest.mark.covering
@pytest.mark.parametrize("route", ["numpy", "torch", "batch", "torch batch"])
@pytest.mark.parametrize("posterior", ["full", "diagonal", "point"])
@pytest.mark.parametrize("noise", ["learn", "cv", 0.1])
def test_a_fit_without_columns_writes_nothing_to_stderr(capfd, route, posterior, noise):
    if posterior == "point" and noise == "learn":
        return
    rng = np.random.default_rng(0)
    y = rng.standard_normal((30, 2))
    ones, zeros = np.ones((30, 5)), np.zeros((30, 5))
    pairs = [(ones, y), (zeros, y)]
    as_array = require("torch").asarray if "torch" in route else np.asarray
    for X, y in pairs:
        X, y = as_array(X), as_array(y)
        if "batch" in route:
            if noise != "cv":
                solve_batch(X, y[None, ...], posterior=posterior, noise_variance=noise)
            continue
        model = SparseVAE(posterior=posterior, noise_variance=noise)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            model.fit(X, y)
        model.predict(X, return_std=True)
        model.posterior_covariance([0, 1])
        assert certify(model, X, y).holds is not False
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("posterior", "groups", "noise"),
    [
        ("full", None, "cv"), ("full", 4, "given"), ("diagonal", None, "given"),
        ("diagonal", 4, "given"), ("point", 4, "given"), ("point", None, "cv"),
    ],
)  # fmt: skip
def test_scaling_changes_neither_support_nor_iterations(posterior, groups, noise):
    p = make_sparse_regression(20, 24, 3, 4, 3, snr_db=20, random_state=0)
    labels = None if groups is None else np.arange(24) // groups
    found = []
    for of_x, of_y in [(1, 1), (1e6, 1), (1e-6, 3.7e6), (3.7, 1e-6)]:
        level = "cv" if noise == "cv" else p.noise_variance * of_y**2
        model = SparseVAE(posterior=posterior, groups=labels, noise_variance=level)
        model.set_params(penalty="arctan", max_iter=5000)
        model.fit(p.dictionary * of_x, p.responses * of_y)
        found.append((model.n_iter_, model.support_.tolist(), model.noise_variance_ / of_y**2))
    for n_iter, support, level in found[1:]:
        assert n_iter == found[0][0]
        assert support == found[0][1]
        assert level == pytest.approx(found[0][2], rel=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("penalty", ["log", "power", "arctan"])
def test_the_energy_of_a_point_estimate_is_that_of_the_stored_relevances(dtype, penalty):
    p = make_sparse_regression(20, 40, 4, 6, 3, snr_db=20, random_state=0)
    model = SparseVAE(posterior="point", penalty=penalty, max_iter=5000, noise_variance=0.01)
    model.fit(p.dictionary.astype(dtype), p.responses)
    claim = model.certificate_["energy"]
    assert claim.holds
    assert claim.threshold == 1e-8


def test_standard_deviations_have_the_noise_of_held_out_rows_however_large_gamma_is():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((80, 120))
    y = X[:, :3] @ rng.standard_normal((3, 8)) + 0.1 * rng.standard_normal((80, 8))
    models = [SparseVAE(noise_variance=rule).fit(X[:60], y[:60]) for rule in ("auto", "cv")]
    spreads = [model.predict(X[60:], return_std=True)[1] for model in models]
    assert models[0].noise_variance_ > 3 * models[1].noise_variance_
    assert np.all(spreads[0] < 1.5 * spreads[1])
    error = np.sqrt(np.mean((models[1].predict(X[60:]) - y[60:]) ** 2))
    assert 0.5 * error < np.mean(spreads[1]) < 2 * error
