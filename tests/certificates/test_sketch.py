"""A sketch bounds the error of every matrix that is claimed to be the covariance of the rows."""

import pickle

import numpy as np
import pytest
import scipy.sparse
from scipy.stats import chi

import lucidae.certificates.sketch as module
from extras import require
from lucidae.certificates.sketch import Sketch


def rows(n=3000, m=40, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, m)) * np.linspace(1, 5, m) + 10 * rng.standard_normal(m)
    return X, rng.integers(0, 4, n).astype(float)


def moments(X, w):
    mean = np.average(X, axis=0, weights=w)
    return mean, ((X - mean).T * w) @ (X - mean) / w.sum()


def whole(X, w):
    return Sketch.of(X, w)


def batches(X, w):
    sketch = Sketch.of(X[:1], w[:1])
    for start in range(1, len(X), 700):
        sketch = sketch.update(X[start : start + 700], w[start : start + 700])
    return sketch


def merged(X, w):
    parts = [Sketch.of(X[i : i + 999], w[i : i + 999]) for i in range(0, len(X), 999)]
    first, second, *others = [pickle.loads(pickle.dumps(part)) for part in parts]
    sketch = first.merge(second)
    for part in others:
        sketch = sketch.merge(part)
    return sketch


def sparse(X, w):
    return Sketch.of(scipy.sparse.csc_matrix(X), w)


def torch_rows(X, w):
    torch = require("torch")
    return Sketch.of(torch.as_tensor(X), torch.as_tensor(w))


def mixed(X, w):
    return Sketch.of(X[:1000], w[:1000]).update(scipy.sparse.csr_array(X[1000:]), w[1000:])


WAYS = [whole, batches, merged, sparse, torch_rows, mixed]


@pytest.mark.parametrize("way", WAYS)
def test_the_true_moment_passes_and_an_error_is_bounded(way):
    X, w = rows()
    mean, covariance = moments(X, w)
    sketch = way(X, w)
    assert sketch.weight == w.sum()
    assert sketch.rows == len(X)
    np.testing.assert_allclose(sketch.mean, mean, rtol=1e-12, atol=1e-9)
    assert sketch.compare(covariance).high < 1e-8 * np.trace(covariance)
    rng = np.random.default_rng(1)
    for _ in range(20):
        # Errors of rank one are the hardest ones.
        error = rng.standard_normal() * np.outer(*rng.standard_normal((2, len(mean))))
        error *= 10.0 ** rng.uniform(-6, 0)
        size = np.linalg.norm(error)
        assert size <= sketch.compare(covariance + error).high <= 60 * size


@pytest.mark.parametrize("scale", [1e-140, 1.0, 1e140])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scale_and_precision_do_not_matter(scale, dtype):
    if dtype is np.float32 and scale != 1.0:
        pytest.skip("float32 has no such numbers")
    X, w = rows()
    X = (X * scale).astype(dtype)
    _, covariance = moments(X.astype(float), w)
    sketch = Sketch.of(X, w)
    assert sketch.compare(covariance).high < 1e-8 * np.trace(covariance)
    wrong = covariance.copy()
    wrong[:5] *= 1.001
    wrong[:, :5] *= 1.001
    apart = np.linalg.norm((wrong - covariance) / scale**2)
    assert sketch.compare(wrong).high / scale**2 >= apart


def test_the_bound_is_wrong_as_rarely_as_its_quantile_says():
    # With the quantile of one in ten instead of one in a billion, the bound fails as often.
    X, w = rows(200, 10)
    _, covariance = moments(X, w)
    sketch = Sketch.of(X, w)
    short = module.start_share(module.DIRECTIONS) / chi.ppf(0.1, module.DIRECTIONS)
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(2000):
        direction = rng.standard_normal(10)
        error = np.outer(rng.standard_normal(10), direction / np.linalg.norm(direction))
        wrong += short * sketch.compare(covariance + error).high < np.linalg.norm(error, 2)
    assert 0.05 < wrong / 2000 < 0.2


def test_the_rows_farthest_from_the_others_are_remembered():
    X, w = rows()
    X[137] *= 50
    w[137] = 1.0
    for way in (whole, batches, merged, sparse):
        sketch = way(X, w)
        assert sketch.peaks[0, 0] == 137
        assert sketch.peaks[1, 0] / sketch.size > 0.2
