"""One noise variance for each row: updates never raise the energy, no other minimum is lower."""

import numpy as np
import pytest
import scipy.optimize
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

from lucidae import SparseVAE, certify
from lucidae.sparsity.row_noise import (
    longer_variances,
    majorized_variances,
    row_distance,
    row_figures,
)


def drawn(seed, d=14, kappa=5, n=60, level=0.0):
    rng = np.random.default_rng(seed)
    X, variances = rng.standard_normal((d, kappa)), rng.uniform(0.1, 2.0, d)
    y = X[:, :2] @ rng.standard_normal((2, n)) * 2.0 + level
    return X, y + np.sqrt(variances)[:, None] * rng.standard_normal((d, n)), variances


def energy(X, y, relevance, variances, intercept):
    """Return minus twice the log-likelihood, of what is orthogonal to ones with an intercept."""
    d = len(X)
    basis = np.linalg.svd(np.ones((1, d)))[2][1:] if intercept else np.eye(d)
    sigma = basis @ ((X * relevance) @ X.T + np.diag(variances)) @ basis.T
    y = basis @ y
    return np.trace(y.T @ np.linalg.solve(sigma, y)) + y.shape[1] * np.linalg.slogdet(sigma)[1]


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("update", [majorized_variances, longer_variances])
def test_updates_never_raise_the_energy_and_stop_at_stationary_points(update, intercept):
    for seed in range(5):
        X, y, _ = drawn(seed, n=5, level=3.0 * intercept)
        rng = np.random.default_rng(seed)
        relevance = np.where(rng.random(5) < 0.7, rng.uniform(0, 3, 5), 0.0)
        variances = rng.uniform(0.05, 5.0, 14)
        centred = [part - part.mean(axis=0) * intercept for part in (X, y)]
        values, distances = [], []
        for _ in range(40):
            figures = row_figures(*centred, relevance, variances, intercept)
            values.append(energy(X, y, relevance, variances, intercept))
            distances.append(row_distance(variances, figures, 1e-9))
            variances = update(variances, figures, 1e-9)
        assert (np.diff(values) <= 1e-9 * np.abs(values[0])).all()
        assert distances[-1] < 0.1 * distances[0]


@pytest.mark.parametrize("intercept", [False, True])
def test_figures_are_the_derivatives_of_the_energy(intercept):
    X, y, variances = drawn(1, level=1.0 * intercept)
    relevance = np.array([1.0, 0.5, 0.0, 0.2, 0.0])
    centred = [part - part.mean(axis=0) * intercept for part in (X, y)]
    figures = row_figures(*centred, relevance, variances, intercept)
    for row in range(0, 14, 3):
        step = np.zeros(14)
        step[row] = 1e-5
        up, down = (energy(X, y, relevance, variances + s * step, intercept) for s in (1, -1))
        slope = (up - down) / 2e-5 / y.shape[1]
        assert_allclose(figures.precision[row] - figures.power[row], slope, atol=1e-6)


@pytest.mark.parametrize("intercept", [False, True])
def test_a_quasi_newton_method_finds_nothing_lower(intercept):
    for seed in range(3):
        X, y, _ = drawn(seed, level=2.0 * intercept)
        model = SparseVAE(noise_variance="learn_diagonal", fit_intercept=intercept).fit(X, y)
        found = energy(X, y, model.relevance_, model.noise_variances_, intercept)
        assert_allclose(model.energy_, found, rtol=1e-9)
        rng, lowest = np.random.default_rng(seed), np.inf
        for _ in range(3):
            result = scipy.optimize.minimize(
                lambda p, X=X, y=y: energy(X, y, np.exp(p[:5]), np.exp(p[5:]), intercept),
                rng.normal(0.0, 1.0, 19), method="L-BFGS-B", bounds=[(-12, 6)] * 19,
            )  # fmt: skip
            lowest = min(lowest, result.fun)
        assert found <= lowest + 1e-3


def test_many_responses_give_the_true_variances_and_the_certificate_holds():
    X, y, variances = drawn(3, d=20, kappa=6, n=3000)
    model = SparseVAE(noise_variance="learn_diagonal").fit(X, y)
    assert_allclose(model.noise_variances_, variances, rtol=0.2)
    assert_allclose(model.noise_variance_, model.noise_variances_.mean())
    assert model.support_.tolist() == [0, 1]
    claim = model.certificate_["noise_variance"]
    assert claim.holds
    assert "every row" in claim.statement
    assert (np.diff(model.history_["energy"]) <= 1e-6).all()
    assert certify(model, X, y)["noise_variance"].holds
    with pytest.raises(ValueError, match="rows were learned"):
        certify(model, X[:10], y[:10])


def test_a_changed_noise_variance_is_noticed():
    X, y, _ = drawn(4)
    model = SparseVAE(noise_variance="learn_diagonal").fit(X, y)
    model.noise_variance_ *= 1.5
    assert certify(model, X, y)["noise_variance"].holds is False


def test_it_equals_a_fit_with_the_learned_covariance():
    X, y, _ = drawn(5)
    model = SparseVAE(noise_variance="learn_diagonal", tol=1e-8).fit(X, y)
    other = SparseVAE(noise_variance=1.0, tol=1e-8).fit(X, y, noise_cov=model.noise_variances_)
    assert_allclose(other.coef_, model.coef_, atol=1e-6)
    assert_allclose(other.energy_, model.energy_, rtol=1e-9)


def test_rows_that_are_interpolated_warn():
    rng = np.random.default_rng(6)
    X, y = rng.standard_normal((10, 40)), rng.standard_normal((10, 2))
    with pytest.warns(ConvergenceWarning, match=r"smallest value|limit"):
        SparseVAE(noise_variance="learn_diagonal", max_iter=50).fit(X, y)


@pytest.mark.parametrize(
    ("settings", "arguments", "sentence"),
    [
        ({"posterior": "diagonal"}, {}, "full posterior"),
        ({"posterior": "point"}, {}, "full posterior"),
        ({}, {"sample_weight": np.ones(14)}, "sample_weight"),
        ({}, {"noise_cov": np.ones(14)}, "noise_cov"),
    ],
)
def test_what_cannot_be_learned_is_refused(settings, arguments, sentence):
    X, y, _ = drawn(7)
    model = SparseVAE(noise_variance="learn_diagonal", **settings)
    with pytest.raises(ValueError, match=sentence):
        model.fit(X, y, **arguments)
    with pytest.raises(ValueError, match="at least 2 outputs"):
        SparseVAE(noise_variance="learn_diagonal").fit(X, y[:, 0])
