"""Products of vectors with the second moment of rows that are read in pieces."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from lucidae.rows import covariances
from lucidae.rows.covariances import has_fast_products, moment_product


def naive(vectors, X, weights):
    X = X.astype(float)
    shares = weights / weights.sum()
    centred = X - shares @ X
    return vectors @ (centred.T * shares) @ centred


@pytest.mark.covering
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("shape", "width"), [((301, 40), 4), ((50, 70), 1), ((7, 90_000), 12)])
def test_the_product_is_that_of_the_centred_rows(monkeypatch, threads, weighted, shape, width):
    monkeypatch.setattr(covariances, "blas_threads", lambda: threads)
    monkeypatch.setattr(covariances, "THREADED_PASS", 0)
    monkeypatch.setattr(covariances, "SMALL_PRODUCT", 10_000)
    rng = np.random.default_rng(0)
    X = rng.standard_normal(shape) + 0.5
    weights = rng.uniform(0.5, 2.0, shape[0]) if weighted else np.ones(shape[0])
    shares = weights / weights.sum()
    vectors = rng.standard_normal((width, shape[1]))
    found = moment_product(vectors, X, shares @ X, shares if weighted else None)
    expected = naive(vectors, X, weights)
    assert_allclose(found, expected, atol=1e-13 * np.abs(expected).max() * shape[0])


def test_single_precision_has_its_rounding_errors_and_double_precision_does_not():
    rng = np.random.default_rng(1)
    X = (rng.standard_normal((400, 60)) + 0.5).astype(np.float32)
    vectors, mean = rng.standard_normal((3, 60)), X.mean(axis=0, dtype=float)
    expected = naive(vectors, X, np.ones(400))
    size = np.abs(expected).max()
    error = np.abs(moment_product(vectors, X, mean, None, single=True) - expected).max() / size
    assert 1e-9 < error < 1e-5
    assert np.abs(moment_product(vectors, X, mean, None) - expected).max() < 1e-13 * size


def test_small_rows_and_rows_of_other_types_are_not_read_in_pieces():
    assert not has_fast_products(np.ones((10, 10)), 4)
    assert not has_fast_products(np.ones((1000, 1000), dtype=int), 4)
    assert not has_fast_products(np.ones((2, 500_000)), 4)
    assert has_fast_products(np.ones((1000, 1000)), 4)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_few_wide_rows_are_centred_in_double_precision(monkeypatch, threads, weighted):
    monkeypatch.setattr(covariances, "blas_threads", lambda: threads)
    monkeypatch.setattr(covariances, "THREADED_PASS", 0)
    monkeypatch.setattr(covariances, "CACHED_BYTES", 5000)
    rng = np.random.default_rng(3)
    X = (rng.standard_normal((7, 2001)) + 5).astype(np.float32)
    vectors, shares = rng.standard_normal((3, 2001)), rng.random(7)
    shares = shares / shares.sum() if weighted else np.full(7, 1 / 7)
    mean = shares @ X
    centred = X.astype(np.float64) - mean
    expected = (vectors @ centred.T * shares) @ centred
    found = moment_product(vectors, X, mean, shares)
    assert np.abs(found - expected).max() < 1e-13 * np.abs(expected).max()
