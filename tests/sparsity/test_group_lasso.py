"""The convex relative, through the field's own solvers."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from lucidae.datasets import make_sparse_regression
from lucidae.sparsity import group_lasso, noise_free_group_lasso
from lucidae.sparsity.objectives import GroupLasso


@pytest.mark.parametrize("n", [1, 5])
def test_the_subgradient_conditions_hold_at_the_square_root_of_the_noise(n):
    p = make_sparse_regression(20, 30, 3, n, snr_db=10, random_state=0)
    U = group_lasso(p.dictionary, p.responses, noise_variance=p.noise_variance)
    lasso = GroupLasso(np.sqrt(p.noise_variance))
    assert U.shape == (30, n)
    assert lasso.violation(p.dictionary, p.responses, U) < 1e-3
    best = lasso.value(p.dictionary, p.responses, U)
    rng = np.random.default_rng(0)
    for _ in range(200):
        moved = U + 10 ** rng.uniform(-4, -1) * rng.standard_normal(U.shape)
        assert lasso.value(p.dictionary, p.responses, moved) >= best - 1e-9


def test_without_noise_the_norm_is_minimal_among_exact_fits():
    p = make_sparse_regression(12, 20, 2, 4, random_state=1)
    U = noise_free_group_lasso(p.dictionary, p.responses)
    assert_allclose(p.dictionary @ U, p.responses, atol=1e-6)
    norm = np.linalg.norm(U, axis=1).sum()
    _, _, basis = np.linalg.svd(p.dictionary)
    rng = np.random.default_rng(0)
    for _ in range(200):
        step = basis[12:].T @ rng.standard_normal((8, 4)) * 10 ** rng.uniform(-4, 0)
        assert np.linalg.norm(U + step, axis=1).sum() >= norm - 1e-5
    assert_allclose(U, p.coef.T, atol=1e-4)
