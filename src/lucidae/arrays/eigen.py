"""Leading eigenpairs of one symmetric matrix: by a dense solver or by Lanczos iteration."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse.linalg

from lucidae.arrays import (
    Array,
    device,
    eigh_descending,
    eye_like,
    is_numpy,
    largest,
    like,
    machine_epsilon,
    namespace,
    to_numpy,
)

ITERATIVE_FEATURES = 2000
"""Number of features from which few eigenvectors are computed by Lanczos iteration."""

ITERATIVE_SHARE = 20
"""Lanczos iteration is used for at most one eigenpair per this many features."""


ROUNDING_ERRORS = 100.0
"""Eigenvectors count as orthonormal if VᵀV differs from the identity by at most this many m·ε."""


def leading_eigenpairs(matrix: Array, k: int) -> tuple[Array, Array]:
    """Return the `k` largest eigenvalues, descending, and orthonormal eigenvectors as columns.

    An eigenvalue is accurate to the rounding error m·ε times the largest one. Below this error
    neither the value nor the direction of its eigenvector is determined, but the eigenvectors that
    are returned are orthonormal in any case.

    Parameters
    ----------
    matrix : array of shape (m, m)
        A symmetric matrix.
    k : int
        Number of eigenpairs, from 1 to m.

    Returns
    -------
    values : array of shape (k,)
    vectors : array of shape (m, k)
    """
    size = matrix.shape[0]
    found = None
    if is_numpy(matrix) and size >= ITERATIVE_FEATURES and k <= size // ITERATIVE_SHARE:
        found = lanczos_eigenpairs(matrix, k)
    if found is None and is_numpy(matrix) and k < size:
        found = subset_eigenpairs(matrix, k)
    if found is None:
        values, vectors = eigh_descending(matrix)
        found = values[:k], vectors[:, :k]
    return found if are_orthonormal(found[1]) else all_eigenpairs(matrix, k)


def are_orthonormal(vectors: Array) -> bool:
    """Tell whether the columns are orthonormal up to rounding."""
    gram = vectors.mT @ vectors
    allowed = ROUNDING_ERRORS * vectors.shape[0] * machine_epsilon(vectors)
    return bool(largest(gram - eye_like(gram.shape[0], gram)) <= allowed)


def subset_eigenpairs(matrix: Array, k: int) -> tuple[Array, Array]:
    """Return the `k` leading eigenpairs of a NumPy matrix by LAPACK's `evr`.

    It computes only the eigenvectors that are asked for. Where eigenvalues span more decades than
    the floating-point numbers have digits, its eigenvectors may not be orthogonal: the caller has
    to test them.
    """
    last = matrix.shape[0] - 1
    values, vectors = scipy.linalg.eigh(
        matrix, subset_by_index=[last - k + 1, last], check_finite=False
    )
    return values[::-1], vectors[:, ::-1]


def all_eigenpairs(matrix: Array, k: int) -> tuple[Array, Array]:
    """Return the `k` leading eigenpairs of a decomposition of the whole matrix on the CPU.

    LAPACK's `evd` forms the eigenvectors as a product of orthogonal matrices, so that they are
    orthonormal for every spectrum.
    """
    values, vectors = np.linalg.eigh(to_numpy(matrix))
    values, vectors = values[::-1][:k].copy(), vectors[:, ::-1][:, :k].copy()
    return like(values, matrix), like(vectors, matrix)


def lanczos_eigenpairs(matrix: Array, k: int) -> tuple[Array, Array] | None:
    """Return the `k` leading eigenpairs by Lanczos iteration, or None if it is not reliable.

    A Krylov space of one start vector contains only one eigenvector of a repeated eigenvalue, so
    that the iteration may miss the others. A second run from another start, on A − Σ λᵢvᵢvᵢᵀ with
    the found pairs, must therefore not find an eigenvalue above the smallest found one.
    """
    try:
        values, vectors = _lanczos(matrix, k, seed=0)
        (rest,), _ = _lanczos(_deflated(matrix, values, vectors), 1, seed=1, tolerance=1e-6)
    except scipy.sparse.linalg.ArpackError:
        return None
    return None if rest > values[-1] + 1e-6 * values[0] else (values, vectors)


def _lanczos(operator: Any, k: int, seed: int, tolerance: float = 0.0) -> tuple[Array, Array]:
    # A fixed start keeps the result reproducible.
    start = np.random.default_rng(seed).standard_normal(operator.shape[0])
    values, vectors = scipy.sparse.linalg.eigsh(operator, k=k, which="LA", v0=start, tol=tolerance)
    order = np.argsort(values)[::-1]
    return values[order], vectors[:, order]


def _deflated(matrix: Array, values: Array, vectors: Array) -> Any:
    def apply(x: Array) -> Array:
        return matrix @ x - vectors @ (values * (vectors.T @ x))

    return scipy.sparse.linalg.LinearOperator(matrix.shape, matvec=apply, dtype=matrix.dtype)


def fix_signs(vectors: Array) -> Array:
    """Return `vectors` with the entry of largest magnitude of each column positive."""
    return vectors * column_signs(vectors)


def column_signs(vectors: Array) -> Array:
    """Return the sign of the entry of largest magnitude of each column, 1 where it is 0."""
    xp = namespace(vectors)
    rows = xp.argmax(xp.abs(vectors), axis=0)
    if is_numpy(vectors):
        peaks = vectors[rows, np.arange(vectors.shape[1])]
        return np.where(peaks < 0, vectors.dtype.type(-1), vectors.dtype.type(1))
    at_peak = xp.arange(vectors.shape[0], device=device(vectors))[:, None] == rows
    peaks = xp.sum(xp.where(at_peak, vectors, 0.0 * vectors), axis=0)
    return xp.where(peaks < 0, -xp.ones_like(peaks), xp.ones_like(peaks))
