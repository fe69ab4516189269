"""The posterior of the coefficients in both of its forms."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from lucidae.sparsity.posterior import ActiveFactor, posterior_mean


@pytest.mark.parametrize("n_active", [0, 3, 8, 20])
def test_mean_and_covariance_are_the_dense_ones(n_active):
    rng = np.random.default_rng(n_active)
    Phi, X = rng.standard_normal((8, 20)), rng.standard_normal((8, 4))
    relevance = np.zeros(20)
    relevance[rng.choice(20, n_active, replace=False)] = rng.uniform(0.1, 2, n_active)
    W, noise = np.diag(relevance), 0.3
    sigma = Phi @ W @ Phi.T + noise * np.eye(8)
    factor = ActiveFactor.of(Phi, relevance, noise)
    assert factor.explicit is (n_active <= 8)
    mean = W @ Phi.T @ np.linalg.solve(sigma, X)
    assert_allclose(factor.mean(X), mean, atol=1e-12)
    assert_allclose(posterior_mean(Phi, X, relevance, noise), mean, atol=1e-12)
    dense = W - W @ Phi.T @ np.linalg.solve(sigma, Phi @ W)
    posterior = factor.posterior(noise)
    assert_allclose(posterior.covariance(np.arange(20)), dense, atol=1e-12)
    rows = rng.standard_normal((5, 20))
    assert_allclose(posterior.variance(rows), np.diag(rows @ dense @ rows.T), atol=1e-12)
