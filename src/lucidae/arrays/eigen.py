"""Leading eigenpairs of a symmetric matrix, by a dense solver or by iterations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.linalg
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from lucidae.arrays import (
    Array,
    device,
    diagonal,
    eigh_descending,
    eye_like,
    is_numpy,
    largest,
    like,
    machine_epsilon,
    namespace,
    on_host,
    to_numpy,
)
from lucidae.arrays.krylov import EXTRA, RESIDUAL, WIDEST, krylov_eigenpairs
from lucidae.arrays.threads import one_scipy_thread

ITERATIVE_FEATURES = 3000
"""Smallest number of rows of a matrix for which block Krylov iteration is used. On two cores the
dense solver takes 0.27 s for 50 eigenpairs of 2000 rows, 1.0 s for 20 of 3000 and 3.0 s for 50 of
4000; this iteration takes 0.3 to 0.8 s for the first and 0.3 to 0.9 s for the second."""

ITERATIVE_ON_DEVICE = 8192
"""Smallest number of rows of a matrix on a GPU for which block Krylov iteration is used. Its dense
solver is fast, and the iteration consists of many small operations, each of which has to be
launched: on an H200, 21 eigenpairs of 784 rows take 8 ms against 50 ms."""

ITERATIVE_SHARE = 20
"""Block Krylov iteration is used if the number of rows of the matrix divided by the number of
wanted eigenpairs is at least this number."""

ARPACK_FEATURES = 300
"""Smallest number of rows of a matrix for which ARPACK is tried before the dense solver. With
eigenvalues that decay it takes less than a quarter of the time."""

ARPACK_LARGEST = 4096
"""Largest number of rows of a matrix for which ARPACK is tried before block Krylov iteration. A
larger matrix is read from memory for every product, and products with a block read it less often.
"""

ARPACK_PAIRS = 64
"""Largest number of wanted eigenpairs of a matrix for which ARPACK is tried: orthogonalising one
vector at a time takes most of the time if there are more."""

ARPACK_SHARE, ARPACK_LEAST = 0.1, 30
"""ARPACK is given up after `ARPACK_SHARE` times the number of rows of a matrix plus `ARPACK_LEAST`
products with vectors. They then have taken about as long as the dense solver would."""

SMALL = 128
"""Largest number of rows of a matrix of which all eigenpairs are computed, by NumPy: SciPy has
threads of its own, which wait for those of NumPy longer than so small a problem takes."""

LARGEST_WHOLE = 1200
"""Largest number of rows of a matrix of which all eigenpairs are computed if many are wanted."""

WHOLE_SHARE = 8
"""Many are more than the number of rows divided by this number. For 1000 rows, all eigenpairs take
105 ms, and 200 of them, by SciPy, 123 ms; 100 of them take 85 ms."""

SCIPY_ALONE = 1800
"""Largest number of rows of a matrix whose eigenpairs SciPy computes with one thread. With two
threads, 50 of 500 take 30 ms instead of 16 ms, because those of NumPy are still waiting for work;
from 2000 rows on, two threads are faster."""

SEARCHED = 6
"""Number of Lanczos steps by which eigenvectors that an iteration has missed are searched for."""

MISSED = 1e-9
"""An eigenvalue outside of the computed ones counts as missed if it exceeds the last of them by
this part of the largest."""

ROUNDING_ERRORS = 100.0
"""Tolerance for orthonormal eigenvectors V (m × k): no entry of VᵀV may differ from the identity by
more than this number times m times the machine epsilon."""


def leading_eigenpairs(matrix: Array, k: int) -> tuple[Array, Array]:
    """Return the `k` largest eigenvalues, descending, and orthonormal eigenvectors as columns.

    The error of an eigenvalue is about m (the size of the matrix) times the machine epsilon times
    the largest eigenvalue. Eigenvalues below this error and their eigenvectors are arbitrary, but
    the returned eigenvectors are always orthonormal.
    """
    size = matrix.shape[0]
    found = None
    smallest = ITERATIVE_FEATURES if on_host(matrix) else ITERATIVE_ON_DEVICE
    few = k <= size // ITERATIVE_SHARE
    vectors = ARPACK_FEATURES <= size <= ARPACK_LARGEST and k <= ARPACK_PAIRS
    if is_numpy(matrix) and few and vectors:
        found = _dense_arpack(matrix, k)
    if found is None and size >= smallest and few:
        # A dense solver takes about 6 size³ operations at the speed of products with vectors, which
        # is as much as this number of products with a block of k vectors.
        passes = 1.5 * size / min(k + EXTRA, WIDEST)
        found = krylov_eigenpairs(
            lambda rows: rows @ matrix, k, matrix[0, :], passes=passes, last=RESIDUAL
        )
    # NumPy computes all eigenpairs by another algorithm, which uses several threads better.
    whole = size <= SMALL or (size <= LARGEST_WHOLE and k > size // WHOLE_SHARE)
    if found is None and is_numpy(matrix) and k < size and not whole:
        found = subset_eigenpairs(matrix, k)
    if found is None:
        values, columns = eigh_descending(matrix)
        found = values[:k], columns[:, :k]
        if is_numpy(matrix):  # LAPACK's syevd, whose eigenvectors are always orthonormal
            return found
    return found if are_orthonormal(found[1]) else all_eigenpairs(matrix, k)


def _dense_arpack(matrix: Array, k: int) -> tuple[Array, Array] | None:
    """Return the `k` leading eigenpairs of a dense matrix by ARPACK; None if it takes too long."""
    # Tolerances of small numbers are absolute, so that the trace is made 1.
    unit = float(np.trace(matrix))
    if matrix.dtype != np.float64 or not 0.0 < unit < np.inf:
        return None
    products = ARPACK_LEAST + int(ARPACK_SHARE * matrix.shape[0])
    found = arpack_eigenpairs(lambda v: (matrix @ v) / unit, matrix.shape[0], k, products)
    return None if found is None else (found[0] * unit, found[1])


def arpack_eigenpairs(
    apply: Callable[[Array], Array], size: int, k: int, products: int, *, rough: bool = False
) -> tuple[Array, Array] | None:
    """Return the `k` leading eigenpairs of a positive semidefinite matrix, one vector at a time.

    With `rough`, the last pair is only estimated.
    """
    rough = rough and k > 1
    count = k - 1 if rough else k
    kept = max(2 * count + 1, 20)  # vectors that ARPACK stores; a restart adds kept − count
    restarts = (products - kept) // (kept - count)
    if kept >= size or restarts < 1:
        return None
    operator = LinearOperator((size, size), matvec=apply, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(size)
    try:
        # NumPy computes the products; SciPy's threads would wait for those of NumPy.
        with one_scipy_thread():
            found = eigsh(operator, count, which="LA", v0=start, ncv=kept, maxiter=restarts)
    except ArpackError:
        return None
    values, vectors = found[0][::-1].copy(), np.linalg.qr(found[1][:, ::-1])[0]
    next_value, next_vector = _outside(apply, vectors)
    if not values[-1] > 0.0 or next_value > values[-1] + MISSED * values[0]:
        return None
    if rough:
        values = np.append(values, next_value)
        vectors = np.concatenate([vectors, next_vector[:, None]], axis=1)
    return values, vectors


def _outside(apply: Callable[[Array], Array], vectors: Array) -> tuple[float, Array]:
    """Estimate the largest eigenvalue of a matrix on the complement of orthonormal columns.

    A few Lanczos steps from a random vector give a Ritz value, a lower bound, and its vector.
    """
    size = vectors.shape[0]
    basis, images = np.empty((0, size)), np.empty((0, size))
    vector = np.random.default_rng(1).standard_normal(size)
    for _ in range(min(SEARCHED, size - vectors.shape[1])):
        for _ in range(2):  # twice is enough (Kahan, Parlett)
            vector = vector - vectors @ (vectors.T @ vector) - basis.T @ (basis @ vector)
        length = float(np.linalg.norm(vector))
        if not length > 0.0:
            break
        basis = np.concatenate([basis, vector[None, :] / length])
        vector = apply(basis[-1])
        images = np.concatenate([images, vector[None, :]])
    if not len(basis):
        return 0.0, np.zeros(size)
    values, turns = np.linalg.eigh(basis @ images.T)
    return float(values[-1]), turns[:, -1] @ basis


def are_orthonormal(vectors: Array) -> bool:
    """Tell whether the columns of `vectors` are orthonormal up to rounding errors."""
    gram = vectors.mT @ vectors
    allowed = ROUNDING_ERRORS * vectors.shape[0] * machine_epsilon(vectors)
    return bool(largest(gram - eye_like(gram.shape[0], gram)) <= allowed)


def subset_eigenpairs(matrix: Array, k: int) -> tuple[Array, Array] | None:
    """Return the `k` leading eigenpairs of a NumPy matrix by LAPACK's ``syevr``, or None.

    If the eigenvalues span more decades than the floating-point numbers have digits, the
    eigenvectors may not be orthogonal. The routine may fail or return fewer pairs if many
    eigenvalues are equal.
    """
    last = matrix.shape[0] - 1
    try:
        with one_scipy_thread(matrix.shape[0] <= SCIPY_ALONE):
            values, vectors = scipy.linalg.eigh(
                matrix, subset_by_index=[last - k + 1, last], check_finite=False
            )
    except np.linalg.LinAlgError:
        return None
    return (values[::-1], vectors[:, ::-1]) if len(values) == k else None


def all_eigenpairs(matrix: Array, k: int) -> tuple[Array, Array]:
    """Return the `k` leading eigenpairs from a full decomposition on the CPU.

    LAPACK's ``syevd`` computes the eigenvectors as a product of orthogonal matrices, so that they
    are orthonormal for every matrix.
    """
    values, vectors = np.linalg.eigh(to_numpy(matrix))
    values, vectors = values[::-1][:k].copy(), vectors[:, ::-1][:, :k].copy()
    return like(values, matrix), like(vectors, matrix)


def fix_signs(vectors: Array) -> Array:
    """Return `vectors` with the entry of largest magnitude of each column made positive."""
    return vectors * column_signs(vectors)


def column_signs(vectors: Array) -> Array:
    """Return, for each column, the sign of its entry of largest magnitude; 1 for a zero column."""
    xp = namespace(vectors)
    rows = xp.argmax(xp.abs(vectors), axis=0)
    if is_numpy(vectors):
        peaks = vectors[rows, np.arange(vectors.shape[1])]
        return np.where(peaks < 0, vectors.dtype.type(-1), vectors.dtype.type(1))
    at_peak = xp.arange(vectors.shape[0], device=device(vectors))[:, None] == rows
    peaks = xp.sum(xp.where(at_peak, vectors, 0.0 * vectors), axis=0)
    return xp.where(peaks < 0, -xp.ones_like(peaks), xp.ones_like(peaks))


def orthonormal_rows(rows: Array) -> Array:
    """Return orthonormal rows with the same span as `rows`, by a QR factorisation.

    The triangular factor has a non-negative diagonal, which makes the result a continuous function
    of `rows` if these have full rank.
    """
    xp = namespace(rows)
    basis, triangle = xp.linalg.qr(rows.mT)
    signs = 1.0 - 2.0 * xp.astype(diagonal(triangle) < 0, rows.dtype)
    return (basis * signs[..., None, :]).mT
