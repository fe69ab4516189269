"""`DropoutAutoencoder` shrinks the principal components."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from lucidae import DropoutAutoencoder
from lucidae.dropout import DropoutObjective, LinearProblem, Weights


def test_autoencoder_spans_the_principal_components_and_shrinks_them():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 6)) * [6.0, 4.0, 2.0, 1.0, 0.5, 0.1] + 3.0
    model = DropoutAutoencoder(3, dropout=0.2).fit(X)
    covariance = np.cov(X.T, bias=True)
    variances, axes = np.linalg.eigh(covariance)
    deviations, axes = np.sqrt(variances[::-1]), axes[:, ::-1]
    assert_allclose(model.singular_values_, deviations[:3])
    gains = 1 - model.threshold_ / deviations[: model.rank_]
    expected = (axes[:, : model.rank_] * gains) @ axes[:, : model.rank_].T
    assert_allclose(model.left_ @ model.right_.T, expected, atol=1e-9)
    codes = model.transform(X)
    rebuilt = model.inverse_transform(codes)
    assert_allclose(rebuilt, (X - X.mean(0)) @ expected.T + X.mean(0), atol=1e-9)
    residual = np.sum((X - rebuilt) ** 2) / np.sum((X - X.mean(0)) ** 2)
    assert model.score(X) == pytest.approx(1 - residual)
    problem = LinearProblem(covariance, covariance, np.trace(covariance))
    weights = Weights(model.left_, model.right_)
    assert model.objective_ == pytest.approx(DropoutObjective(problem, 0.25).value(weights))
