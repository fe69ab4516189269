"""Rows whose second moment has given eigenvalues."""

import numpy as np


def rows_with(values, n, m, seed=0):
    """Return n centred rows whose second moment has the given eigenvalues, and the eigenvectors."""
    rng = np.random.default_rng(seed)
    left = rng.standard_normal((n, len(values)))
    left, _ = np.linalg.qr(left - left.mean(axis=0))
    right, _ = np.linalg.qr(rng.standard_normal((m, len(values))))
    return (left * np.sqrt(n * np.asarray(values))) @ right.T, right
