"""`DropoutFactorization`: codes of new rows, and no dropout."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from dropout.problems import seeds
from lucidae import DropoutFactorization


@settings(max_examples=60)
@given(seeds(), st.integers(1, 8), st.sampled_from([0.0, 1e-9, 0.01, 0.5, 0.99]))
def test_codes_of_training_rows_equal_fit_transform(seed, width, dropout):
    rng = np.random.default_rng(seed)
    rank = rng.integers(1, 5)
    M = rng.standard_normal((9, rank)) @ rng.standard_normal((rank, 5))
    model = DropoutFactorization(width, dropout=dropout)
    codes = model.fit_transform(M)
    scale = np.abs(codes).max()
    assert_allclose(model.transform(M), codes, atol=1e-9 * scale)
    assert_allclose(model.inverse_transform(codes), codes @ model.right_.T)
    if dropout > 0.001:
        gram = model.right_.T @ model.right_
        loaded = gram + dropout / (1 - dropout) * np.diag(np.diag(gram))
        assert_allclose(codes, np.linalg.solve(loaded, model.right_.T @ M.T).T, atol=1e-8 * scale)


def test_factorization_without_dropout_is_the_truncated_decomposition():
    M = np.random.default_rng(0).standard_normal((7, 5))
    P, s, Qt = np.linalg.svd(M, full_matrices=False)
    model = DropoutFactorization(3, dropout=0.0).fit(M)
    assert_allclose(model.left_ @ model.right_.T, (P[:, :3] * s[:3]) @ Qt[:3], atol=1e-12)
    assert model.objective_ == pytest.approx(np.sum(s[3:] ** 2))


def test_errors_on_incomplete_matrices_name_what_to_set():
    ratings = scipy.sparse.csr_matrix([[5.0, 0.0], [0.0, 3.0], [0.0, 1.0]])
    for options in ({}, {"missing_values": "absent"}):
        with pytest.raises(ValueError, match="handle_missing='complete' and missing_values='abs"):
            DropoutFactorization(1, **options).fit(ratings)
    with pytest.raises(ValueError, match="If entries are missing, use handle_missing='compl"):
        DropoutFactorization(1).fit([[1.0, np.nan], [2.0, 3.0]])
    with pytest.raises(ValueError, match="infinity"):
        DropoutFactorization(1).fit([[1.0, np.inf], [2.0, 3.0]])
    with pytest.raises(ValueError, match="'cv' or 'cv_1se'"):
        DropoutFactorization(1, dropout="half").fit(np.eye(3))
