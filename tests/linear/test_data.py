"""Products with the second moment: blocks of rows, and estimates of the leading eigenvalues."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from linear.problems import covariance_from, spectrum_from
from lucidae.rows.covariances import StreamCovariance, ritz_spectrum


@pytest.mark.parametrize("condition", [1.0, 3.0, 1e2, 1e6])
def test_power_iterations_find_the_largest_eigenvalue_to_a_tenth(condition):
    values = np.geomspace(1, 1 / condition, 400)
    found = ritz_spectrum(covariance_from(spectrum_from(values)), 1, values)
    assert 0.92 <= float(found.values[0]) <= 1 + 1e-12


@pytest.mark.parametrize("weighted", [False, True])
def test_blocks_of_rows_multiply_like_the_matrix(weighted, monkeypatch):
    monkeypatch.setitem(StreamCovariance._blocks.__globals__, "BLOCK_ROWS", 8)
    rng = np.random.default_rng(0)
    X, weights = 3 + rng.standard_normal((50, 7)), np.ones(50)
    if weighted:
        weights = rng.integers(0, 3, 50).astype(float)
        weights[:8] = 0.0
    mean = weights @ X / weights.sum()
    sigma = (X - mean).T @ ((X - mean) * weights[:, None]) / weights.sum()
    stream, rows = StreamCovariance(X, mean, weights), rng.standard_normal((2, 3, 7))
    assert_allclose(stream.apply(rows), rows @ sigma, rtol=1e-11, atol=1e-13)
    assert_allclose(stream.trace, np.trace(sigma), rtol=1e-12)
