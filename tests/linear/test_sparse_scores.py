"""Likelihoods of sparse rows are those of the same rows as a dense array."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose

from lucidae import LinearAutoencoder
from lucidae.data import blocks


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("make", [scipy.sparse.csr_array, scipy.sparse.csc_matrix])
@pytest.mark.parametrize("block_bytes", [2**25, 1000])
def test_likelihoods_of_sparse_rows_are_those_of_dense_rows(dtype, make, block_bytes):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 12)) * np.arange(12, 0, -1) + 1
    X = (X * (rng.random(X.shape) < 0.3)).astype(dtype)
    model = LinearAutoencoder(3).fit(X)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        found, score = model.score_samples(make(X)), model.score(make(X))
    assert found.dtype == model.score_samples(X).dtype
    assert_allclose(found, model.score_samples(X), rtol=1e-6 if dtype is np.float32 else 1e-12)
    assert_allclose(score, model.score(X), rtol=1e-5 if dtype is np.float32 else 1e-12)
