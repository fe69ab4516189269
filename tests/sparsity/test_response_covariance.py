"""Responses whose coefficients are correlated over time: one model, one likelihood, one minimum."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

import lucidae
from lucidae import SparseVAE, certify


def autoregressive(rho, n):
    return rho ** np.abs(np.subtract.outer(np.arange(n), np.arange(n)))


def series(seed, d=12, kappa=48, r=8, n=20, rho=0.99, snr=20):
    """Return a dictionary, responses from r columns with AR(1) coefficients, columns and noise."""
    rng = np.random.default_rng(seed)
    X, used = rng.standard_normal((d, kappa)), np.sort(rng.choice(kappa, r, replace=False))
    U = np.zeros((kappa, n))
    U[used] = rng.standard_normal((r, n)) @ np.linalg.cholesky(autoregressive(rho, n)).T
    y = X @ U
    noise = (y**2).mean() * 10 ** (-snr / 10)
    return X, y + noise**0.5 * rng.standard_normal(y.shape), used, noise


def dense_energy(X, y, w, covariance, noise):
    """Minus twice the log-likelihood of all responses together, by the definition."""
    sigma = np.kron(covariance, X * w @ X.T) + noise * np.eye(y.size)
    vector = y.T.ravel()
    return np.linalg.slogdet(sigma)[1] + vector @ np.linalg.solve(sigma, vector)


@pytest.mark.covering
@pytest.mark.parametrize("rule", ["given", "learn"])
@pytest.mark.parametrize("covariance", ["learn", autoregressive(0.7, 4)])
def test_the_fit_is_a_minimum_of_the_joint_likelihood_of_all_responses(covariance, rule):
    X, y, _, noise = series(1, d=20, kappa=9, r=3, n=4, rho=0.9, snr=5)
    model = SparseVAE(
        noise_variance=noise if rule == "given" else "learn", response_covariance=covariance,
        fit_intercept=False, tol=1e-8,
    ).fit(X, y)  # fmt: skip
    w, noise, B = model.relevance_, model.noise_variance_, model.response_covariance_
    found = dense_energy(X, y, w, B, noise)
    assert_allclose(model.energy_, found, rtol=1e-10)
    assert (np.diff(model.history_["energy"]) <= 1e-9).all()
    assert (w == 0).any()
    for j in range(9):
        step = 1e-5 * (np.arange(9) == j)
        slope = (dense_energy(X, y, w + step, B, noise) - found) / 1e-5
        assert slope > -1e-2  # no relevance gains if it grows
        assert w[j] == 0 or abs(w[j] * slope) < 1e-2
    if rule == "learn":
        for factor in (0.97, 1.03):
            assert dense_energy(X, y, w, B, factor * noise) > found
    if isinstance(covariance, str):
        for rho in np.linspace(-0.99, 0.99, 41):
            assert dense_energy(X, y, w, autoregressive(rho, 4), noise) >= found - 1e-6


def test_independent_responses_are_the_model_without_a_covariance():
    X, y, _, noise = series(4, r=3, n=4)
    plain = SparseVAE(noise_variance=noise).fit(X, y)
    given = SparseVAE(noise_variance=noise, response_covariance=5.0 * np.eye(4)).fit(X, y)
    assert_allclose(given.energy_, plain.energy_, rtol=1e-8)
    assert_allclose(given.relevance_, plain.relevance_, atol=1e-5)


@pytest.mark.parametrize(("count", "more"), [(8, 2), pytest.param(30, 7, marks=pytest.mark.slow)])
def test_correlated_responses_recover_columns_that_independent_ones_miss(count, more):
    # 12 sensors, 8 sources and 20 samples with the correlation 0.99: success is that the columns
    # with the largest relevances are the true ones (seen: 7 and 18 of 30)
    successes = np.zeros(2, dtype=int)
    for seed in range(count):
        X, y, used, noise = series(seed)
        options = {"noise_variance": noise, "fit_intercept": False, "tol": 1e-3, "max_iter": 300}
        for k, covariance in enumerate((None, "learn")):
            found = SparseVAE(response_covariance=covariance, **options).fit(X, y)
            largest = np.sort(np.argsort(-found.relevance_)[:8])
            successes[k] += np.array_equal(largest, used)
    assert successes[1] >= successes[0] + more


OPTIONS = [
    {"noise_variance": "given"},
    {"noise_variance": "learn"},
    {"noise_variance": "cv", "cv": 2},
    {"noise_variance": "given", "groups": np.arange(48) // 2},
    {"noise_variance": "given", "response_covariance": 3.0 * autoregressive(0.9, 6)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(map(str, options)))
def test_the_estimator_is_certified(options):
    X, y, used, noise = series(3, r=3, n=6)
    options = {"response_covariance": "learn"} | options
    given = noise if options["noise_variance"] == "given" else options["noise_variance"]
    model = SparseVAE(**options | {"noise_variance": given}, max_iter=3000).fit(X + 5.0, y)
    if options["noise_variance"] != "cv":  # half of 12 rows overestimate the noise variance
        assert set(used) <= set(model.support_)
    assert model.certificate_.holds
    assert model.certificate_["response_covariance"].holds
    again = certify(model, X + 5.0, y)
    assert [claim.verdict for claim in again] == [c.verdict for c in model.certificate_]
    if "groups" not in options:
        model.response_covariance_ = autoregressive(0.3, 6)
        assert not certify(model, X + 5.0, y).holds


def test_mean_and_posterior_are_those_of_the_joint_gaussian_of_all_coefficients(tmp_path):
    X, y, _, noise = series(5, d=6, kappa=8, r=2, n=3)
    model = SparseVAE(noise_variance=noise, response_covariance="learn", fit_intercept=False).fit(
        X, y
    )
    B, W = model.response_covariance_, np.diag(model.relevance_)
    prior, design = np.kron(B, W), np.kron(np.eye(3), X)
    gain = prior @ design.T @ np.linalg.inv(design @ prior @ design.T + noise * np.eye(18))
    assert_allclose(model.coef_.ravel(), gain @ y.T.ravel(), atol=1e-10)
    posterior = (prior - gain @ design @ prior).reshape(3, 8, 3, 8)
    for response in range(3):
        block = posterior[response, :, response]
        assert_allclose(model.posterior_covariance(np.arange(8))[response], block, atol=1e-10)
    rows = np.random.default_rng(0).standard_normal((4, 8))
    _, deviations = model.predict(rows, return_std=True)
    expected = [np.diag(rows @ posterior[t, :, t] @ rows.T) + noise for t in range(3)]
    assert_allclose(deviations, np.sqrt(expected).T, atol=1e-10)
    lucidae.save(model, tmp_path / "model.npz")
    loaded = lucidae.load(tmp_path / "model.npz")
    assert_allclose(loaded.predict(rows, return_std=True)[1], deviations, rtol=1e-12)
    assert_allclose(loaded.response_covariance_, B)


def test_sparse_dictionaries_have_correlated_responses_too():
    rng = np.random.default_rng(6)
    X = rng.standard_normal((60, 3500))
    X = X * (np.abs(X) > 2.0)  # with more entries than are stored densely
    y = X[:, :3] @ rng.standard_normal((3, 6)) + 0.1 * rng.standard_normal((60, 6))
    model = SparseVAE(noise_variance=0.01, response_covariance=autoregressive(0.9, 6))
    sparse, dense = (model.fit(each, y).relevance_ for each in (sp.csr_array(X), X))
    assert_allclose(sparse, dense, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("covariance", [None, "learn", autoregressive(0.8, 5)])
def test_a_learned_noise_variance_that_falls_to_its_limit_is_said(covariance):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 6))
    y = X[:, :2] @ rng.standard_normal((2, 5))  # no noise at all
    model = SparseVAE(noise_variance="learn", response_covariance=covariance, fit_intercept=False)
    with pytest.warns(ConvergenceWarning, match="smallest value that is allowed"):
        model.fit(X, y)
    claim = model.certificate_["noise_variance"]
    assert claim.holds is None
    assert "no minimum" in claim.advice
