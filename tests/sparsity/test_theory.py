"""Bounds that certify uniqueness, in closed form."""

import numpy as np
from numpy.testing import assert_allclose

from lucidae.sparsity.theory import (
    coherence,
    row_scale_ratios,
    spark_bound,
    uniqueness_bound,
)


def test_coherence_spark_and_rank_in_closed_form():
    rng = np.random.default_rng(7)
    Phi = rng.standard_normal((5, 2500))
    Phi[:, 7] = 0.0
    Phi[:, 2400] = -3.0 * Phi[:, 3]
    assert_allclose(coherence(Phi), 1.0)
    small = Phi[:, :6]
    unit = small / np.linalg.norm(small, axis=0)
    assert_allclose(coherence(small), np.abs(unit.T @ unit - np.eye(6)).max())
    assert coherence(np.eye(3)) == 0.0
    assert spark_bound(0.0) == np.inf
    assert spark_bound(0.5) == 3.0
    assert uniqueness_bound(11, 3) == 6.5
    assert_allclose(row_scale_ratios(np.array([4.0, 0.0, 1.0, 2.0])), [0.5, 0.5])
