"""Standard errors of fitted values: derivatives by differences, closed forms, coverage."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose

from extras import require
from lucidae import DropoutRegressor

SETTINGS = {
    "rank 1": {"n_components": 1, "shrink": False},
    "rank 2": {"n_components": 2, "shrink": False},
    "least squares": {"shrink": False},
    "ridge of rank 2": {"n_components": 2, "shrink": False, "alpha": 4.0},
    "dropout": {"n_components": 3, "dropout": 0.2},
    "dropout of full rank": {"n_components": 2, "dropout": 0.05},
    "dropout and ridge": {"n_components": 3, "dropout": 0.2, "alpha": 4.0},
    "no intercept": {"n_components": 2, "shrink": False, "fit_intercept": False},
}


def low_rank(seed=0, n=40, features=4, targets=3, noise=0.5):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, features)) @ rng.standard_normal((features, features)) + 1.0
    left = np.linalg.qr(rng.standard_normal((targets, 2)))[0] * [3.0, 1.5]
    signal = X @ rng.standard_normal((features, 2)) @ left.T
    factor = noise * rng.standard_normal((targets, targets))
    return X, signal, factor


def noise_covariance(X, Y, fit_intercept=True):
    """Return the covariance of the residuals of least squares, with their degrees of freedom."""
    design = np.column_stack([np.ones(len(X)), X]) if fit_intercept else X
    residual = Y - design @ np.linalg.lstsq(design, Y, rcond=None)[0]
    return residual.T @ residual / (len(X) - design.shape[1])


@pytest.mark.covering
@pytest.mark.filterwarnings("ignore:components .* differ by")
@pytest.mark.filterwarnings("ignore:a singular value is")
@pytest.mark.parametrize("shape", [(4, 3), (3, 5)], ids=["few targets", "many targets"])
@pytest.mark.parametrize("name", SETTINGS)
def test_standard_errors_are_the_derivative_with_respect_to_every_target(name, shape):
    X, signal, factor = low_rank(3, 18, *shape)
    rng = np.random.default_rng(1)
    Y = signal + rng.standard_normal(signal.shape) @ factor.T
    new = X[:2] + rng.standard_normal((2, X.shape[1]))
    model = DropoutRegressor(**SETTINGS[name]).fit(X, Y)
    covariance, step = noise_covariance(X, Y, model.fit_intercept), 1e-5
    variances = np.zeros((2, Y.shape[1]))
    for row in range(len(Y)):
        slopes = np.empty((2, Y.shape[1], Y.shape[1]))
        for target in range(Y.shape[1]):
            fits = []
            for sign in (1, -1):
                moved = Y.copy()
                moved[row, target] += sign * step
                fits.append(DropoutRegressor(**SETTINGS[name]).fit(X, moved).predict(new))
            slopes[:, :, target] = (fits[0] - fits[1]) / (2 * step)
        variances += np.einsum("nij,jk,nik->ni", slopes, covariance, slopes)
    assert_allclose(model.predict(new, return_std=True)[1], np.sqrt(variances), rtol=1e-6)


def test_full_rank_has_the_standard_errors_of_least_squares():
    X, signal, factor = low_rank()
    Y = signal + np.random.default_rng(2).standard_normal(signal.shape) @ factor.T
    model = DropoutRegressor(shrink=False).fit(X, Y)
    fitted, errors = model.predict(X, return_std=True)
    design = np.column_stack([np.ones(len(X)), X])
    leverage = np.einsum("ij,jk,ik->i", design, np.linalg.inv(design.T @ design), design)
    variance = np.diag(noise_covariance(X, Y))
    assert_allclose(errors, np.sqrt(np.outer(leverage, variance)), rtol=1e-9)
    assert_allclose(fitted, model.predict(X), rtol=0)


def test_lower_rank_has_smaller_standard_errors_if_all_targets_have_equal_noise():
    X, signal, _ = low_rank(3, n=200)
    Y = signal + 0.5 * np.random.default_rng(2).standard_normal(signal.shape)
    errors = [
        DropoutRegressor(rank, shrink=False).fit(X, Y).predict(X, return_std=True)[1]
        for rank in (2, 3)
    ]
    assert np.all(errors[0].mean(axis=0) < errors[1].mean(axis=0))


def test_weights_count_as_repeated_rows_and_streams_agree():
    X, signal, factor = low_rank()
    Y = signal + np.random.default_rng(2).standard_normal(signal.shape) @ factor.T
    weights = np.random.default_rng(3).integers(1, 4, len(X))
    one = DropoutRegressor(2, shrink=False, alpha=1.0).fit(X, Y, weights)
    two = DropoutRegressor(2, shrink=False, alpha=1.0)
    two.fit(np.repeat(X, weights, 0), np.repeat(Y, weights, 0))
    stream = DropoutRegressor(2, shrink=False, alpha=1.0)
    stream.partial_fit(X[:9], Y[:9], weights[:9]).partial_fit(X[9:], Y[9:], weights[9:])
    expected = two.predict(X, return_std=True)[1]
    for model in (one, stream):
        assert_allclose(model.predict(X, return_std=True)[1], expected, rtol=1e-8)


def test_libraries_dtypes_and_shapes():
    X, signal, factor = low_rank()
    Y = signal + np.random.default_rng(2).standard_normal(signal.shape) @ factor.T
    reference = DropoutRegressor(2, shrink=False).fit(X, Y).predict(X, return_std=True)[1]
    flat = DropoutRegressor(1, shrink=False).fit(X, Y[:, 0]).predict(X, return_std=True)
    assert flat[0].shape == flat[1].shape == (40,)
    sparse = DropoutRegressor(2, shrink=False).fit(scipy.sparse.csr_array(X), Y)
    assert_allclose(sparse.predict(scipy.sparse.csr_array(X), return_std=True)[1], reference)
    single = DropoutRegressor(2, shrink=False).fit(X.astype(np.float32), Y.astype(np.float32))
    found = single.predict(X.astype(np.float32), return_std=True)[1]
    assert found.dtype == np.float32
    assert_allclose(found, reference, rtol=1e-3)
    torch = require("torch")
    tensors = DropoutRegressor(2, shrink=False).fit(torch.as_tensor(X), torch.as_tensor(Y))
    found = tensors.predict(torch.as_tensor(X), return_std=True)[1]
    assert isinstance(found, torch.Tensor)
    assert_allclose(found.numpy(), reference, rtol=1e-8)


def test_invalid_standard_errors_are_refused():
    X, signal, factor = low_rank()
    Y = signal + np.random.default_rng(2).standard_normal(signal.shape) @ factor.T
    with pytest.raises(ValueError, match="more rows than columns"):
        DropoutRegressor(1, shrink=False).fit(X[:5], Y[:5]).predict(X, return_std=True)
    with pytest.warns(UserWarning, match="degrees of freedom"):
        DropoutRegressor(shrink=False).fit(X[:9], Y[:9]).predict(X, return_std=True)
    trained = DropoutRegressor(2, solver="sgd", tol=0.5, random_state=0).fit(X, Y)
    with pytest.raises(ValueError, match="solver='sgd'"):
        trained.predict(X, return_std=True)
    model = DropoutRegressor(2, shrink=False).fit(X, Y)
    with pytest.raises(ValueError, match="return_std"):
        model.predict(X, return_std="yes")
    with pytest.raises(ValueError, match="read in blocks"):
        model.predict((rows for rows in [X]), return_std=True)
    model.coef_ = 2 * model.coef_
    with pytest.raises(ValueError, match="changed after the fit"):
        model.predict(X, return_std=True)


def test_components_that_are_not_separated_are_a_warning_and_ties_an_error():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((60, 4))
    white = np.linalg.qr(np.column_stack([np.ones(60), X]))[0][:, 1:] * np.sqrt(60)
    noisy = white[:, :3] * [3.0, 2.9, 1.0] + 0.5 * rng.standard_normal((60, 3))
    close = DropoutRegressor(1, shrink=False).fit(white, noisy)
    with pytest.warns(UserWarning, match="components 1 and 2 differ by"):
        close.predict(white, return_std=True)
    DropoutRegressor(2, shrink=False).fit(white, noisy).predict(white, return_std=True)
    tied = DropoutRegressor(1, shrink=False).fit(white, white[:, :2])
    with pytest.raises(ValueError, match="no derivative"):
        tied.predict(white, return_std=True)
    # The threshold of dropout at the last kept singular value: rate 1/2 for values 3 and 1.
    values = white[:, :2] * [3.0, 1.0]
    at_threshold = DropoutRegressor(2, dropout=0.5).fit(white, values)
    assert at_threshold.threshold_ == pytest.approx(1.0)
    with pytest.raises(ValueError, match="no derivative"):
        at_threshold.predict(white, return_std=True)


def coverage(settings, n, repeats, seed):
    """Return the share of intervals of ±1.96 standard errors that cover their expectation."""
    X, signal, factor = low_rank(seed, n)
    new = X[:10]
    target = DropoutRegressor(**settings).fit(X, signal).predict(new)
    rng = np.random.default_rng(seed)
    covered = []
    for _ in range(repeats):
        Y = signal + rng.standard_normal(signal.shape) @ factor.T
        fitted, errors = DropoutRegressor(**settings).fit(X, Y).predict(new, return_std=True)
        covered.append(np.abs(fitted - target) <= 1.96 * errors)
    return float(np.mean(covered))


@pytest.mark.parametrize("name", ["rank 2", "dropout of full rank"])
def test_intervals_cover(name):
    assert 0.92 < coverage(SETTINGS[name], 400, 40, 0) < 0.98


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "name", [name for name in SETTINGS if name not in ("rank 1", "no intercept")]
)
def test_intervals_cover_at_their_level(name, seed):
    assert 0.93 <= coverage(SETTINGS[name], 500, 400, seed) <= 0.97
