"""Fits and certificates of more than 1024 features, and of data whose eigenvalues are all equal."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose

from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    LinearAutoencoder,
    SecondMoment,
    certify,
)


@pytest.mark.parametrize(("shape", "k"), [((100, 120), 1), ((100, 100), 5), ((300, 400), 200)])
def test_equal_eigenvalues_have_as_many_components_as_asked_for(shape, k):
    """LAPACK's evr returns fewer eigenpairs of such a matrix, or fails."""
    values, vectors = SecondMoment.of(np.eye(*shape)).spectrum(k)
    assert values.shape == (k,)
    assert_allclose(vectors.T @ vectors, np.eye(k), atol=1e-12)
    model = LinearAutoencoder(k, method="plain").fit(np.eye(*shape))
    assert model.components_.shape == (k, shape[1])
    assert_allclose(model.explained_variance_, 1 / (shape[0] - 1), rtol=1e-10)


def test_more_copies_than_the_blocks_of_sparse_rows_have_vectors():
    n, m, k = 400, 1100, 150
    X = sp.csr_array((np.ones(n), (np.arange(n),) * 2), shape=(n, m))
    model = LinearAutoencoder(k, method="plain").fit(X)
    assert_allclose(model.explained_variance_.sum(), k / (n - 1), rtol=1e-10)
    assert model.certificate_.holds is not False


@pytest.mark.parametrize("scale", [1e-90, 1e-40, 1.0, 1e90])
def test_the_scale_of_sparse_rows_does_not_matter(scale):
    X = sp.random_array((100, 1100), density=0.1, rng=np.random.default_rng(0)).tocsr()
    model = LinearAutoencoder(3).fit(scale * X)
    assert_allclose(model.components_, LinearAutoencoder(3).fit(X).components_, atol=1e-8)
    assert model.certificate_.holds


def test_the_scale_of_a_large_matrix_does_not_matter():
    rng = np.random.default_rng(0)
    M = rng.standard_normal((1050, 3)) @ rng.standard_normal((3, 1050))
    for scale in (1e-100, 1e100):
        assert DropoutFactorization(3).fit(scale * M).certificate_.holds


def test_a_feature_that_varies_only_in_rows_without_weight():
    X, w = np.random.default_rng(0).standard_normal((80, 1100)), np.ones(80)
    X[:, 0], X[3, 0], w[3] = 0.0, 0.1, 0.0
    assert LinearAutoencoder(2).fit(X, sample_weight=w).certificate_["attributes"].holds


def test_a_singular_vector_orthogonal_to_the_numbers_of_a_known_seed_is_found():
    n, rng = 1100, np.random.default_rng(5)
    start = np.random.default_rng(0).standard_normal(n)
    U = np.linalg.qr(np.c_[start, rng.standard_normal((n, n - 1))])[0]
    V = np.linalg.qr(rng.standard_normal((n, n)))[0]
    rest = np.c_[U[:, 0], U[:, 2:]] @ np.linalg.qr(rng.standard_normal((n - 1, n - 1)))[0]
    squares = np.r_[1.01, 1.0, 0.95, np.sort(rng.uniform(0, 0.5, n - 3))[::-1]]
    M = (np.c_[U[:, 1], rest] * np.sqrt(squares)) @ V.T
    second = certify((rest[:, :1], V[:, 1:2]), family="dropout", matrix=M, dropout=0.0)
    assert second.holds is False


def test_directions_without_variance_are_not_missed():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3)) @ rng.standard_normal((3, 1100))
    rows = np.zeros((5, 1100))
    rows[:3] = np.linalg.svd(X - X.mean(0), full_matrices=False)[2][:3]
    assert certify((rows, rows.T), X, family="linear", method="plain").holds


@pytest.mark.parametrize("X", [sp.csr_array((40, 1100)), np.zeros((1100, 1100))])
def test_rows_of_zeros(X):
    assert LinearAutoencoder(1).fit(X).certificate_.holds is not False
    assert DropoutAutoencoder(1).fit(X).certificate_.holds is not False


def test_sparse_rows_with_a_large_mean_have_the_certificate_of_dense_rows():
    X = np.random.default_rng(0).standard_normal((60, 1100)) + 1e6
    assert DropoutAutoencoder(5).fit(X).certificate_.holds
    assert DropoutAutoencoder(5).fit(sp.csr_array(X)).certificate_.holds


def test_rows_whose_squares_overflow_are_refused_by_certify():
    X = np.random.default_rng(0).standard_normal((60, 1100))
    for model in (LinearAutoencoder(2).fit(X), DropoutAutoencoder(2).fit(X)):
        with pytest.raises(ValueError, match="squares of X overflow"):
            certify(model, 1e160 * X)
