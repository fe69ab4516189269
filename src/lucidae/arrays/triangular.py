"""Cholesky factors and triangular systems, with the same behaviour for all array libraries."""

from __future__ import annotations

from typing import Any

import array_api_compat as compat
import numpy as np
import scipy.linalg.blas as blas
import scipy.linalg.lapack as lapack

from lucidae.arrays.helpers import (
    Array,
    adjoint,
    diagonal,
    eye_like,
    is_numpy,
    like,
    namespace,
    to_numpy,
    where_set,
)

_SOLVE = {"f": lapack.strtrs, "F": lapack.ctrtrs, "D": lapack.ztrtrs}
_INVERT = {"f": lapack.strtri, "F": lapack.ctrtri, "D": lapack.ztrtri}
"""LAPACK functions by the code of the dtype; those of float64 serve all other dtypes."""

_MULTIPLY = {"f": blas.strmm, "d": blas.dtrmm, "F": blas.ctrmm, "D": blas.ztrmm}


def cholesky(A: Array) -> tuple[Array, Array]:
    """Return lower Cholesky factors of matrices `A` (…, n, n), and which are positive definite.

    The result is a tuple (L, ok) with factors L (…, n, n) and booleans ok (…). If a matrix is not
    positive definite, its factor is NaN and its `ok` is False; no error is raised. (NumPy and torch
    would raise different errors, and CuPy returns NaN.)
    """
    xp = namespace(A)
    factor, valid = _cholesky_factor(A)
    # L[i, i]² = A[i, i] − Σⱼ L[i, j]²: an entry that is not finite shows on the diagonal.
    ok = valid & xp.all(xp.isfinite(diagonal(factor)), axis=-1)
    if is_numpy(A) and ok.all():
        return factor, ok
    return where_set(factor, ~ok[..., None, None], xp.nan), ok


def _cholesky_factor(A: Array) -> tuple[Array, Any]:
    """Return lower Cholesky factors of matrices `A`, and a mask of those that are valid.

    The other factors have undefined entries. The mask may be the single value True.
    """
    xp = namespace(A)
    if compat.is_torch_array(A):
        factor, failed = xp.linalg.cholesky_ex(A)
        return factor, failed == 0
    try:
        return xp.linalg.cholesky(A), True
    except np.linalg.LinAlgError:
        return like(_cholesky_one_by_one(to_numpy(A)), A), True


def solve_positive(A: Array, B: Array) -> Array:
    """Return A⁻¹B for positive definite matrices `A` (…, n, n) and matrices `B` (…, n, k).

    The result is NaN for a matrix `A` that is not positive definite.
    """
    if compat.is_torch_array(A):
        # Two CUDA kernels instead of the ten of `cholesky`, whose tests find infinite factors too.
        factor, failed = namespace(A).linalg.cholesky_ex(A)
        factor = factor.masked_fill_(failed[..., None, None] != 0, float("nan"))
    else:
        factor, _ = cholesky(A)
    return solve_lower(factor, solve_lower(factor, B), transpose=True)


def _cholesky_one_by_one(A: Array) -> Array:
    factors = np.full_like(A, np.nan)
    for index in np.ndindex(A.shape[:-2]):
        try:
            factors[index] = np.linalg.cholesky(A[index])
        except np.linalg.LinAlgError:
            continue
    return factors


def solve_lower(L: Array, B: Array, transpose: bool = False) -> Array:
    """Return the solution X of L X = B, or of Lᴴ X = B with `transpose`, for lower triangular L.

    Lᴴ is the conjugate transpose, which is Lᵀ for real numbers. `L` has shape (…, n, n) and `B`
    shape (…, n, k), with leading axes that broadcast; `B` may also be one vector of shape (n,).
    """
    xp = namespace(L, B)
    if B.ndim == 1:
        return solve_lower(L, B[:, None], transpose)[..., 0]
    if compat.is_torch_array(L):
        return xp.linalg.solve_triangular(adjoint(L) if transpose else L, B, upper=transpose)
    if is_numpy(L):
        return _solve_lower_numpy(L, B, transpose)
    if compat.is_cupy_array(L) and L.ndim == B.ndim == 2:  # pragma: no cover (needs a GPU)
        from cupyx.scipy.linalg import solve_triangular

        return solve_triangular(L, B, trans=2 if transpose else 0, lower=True)
    return xp.linalg.solve(adjoint(L) if transpose else L, B)


def _solve_lower_numpy(L: Array, B: Array, transpose: bool) -> Array:
    if L.ndim == B.ndim == 2:
        return _solve_lower_once(L, B, transpose)
    stack = np.broadcast_shapes(L.shape[:-2], B.shape[:-2])
    L, B = (np.broadcast_to(A, stack + A.shape[-2:]) for A in (L, B))
    solved = np.empty(B.shape, np.result_type(L, B))
    for index in np.ndindex(stack):
        solved[index] = _solve_lower_once(L[index], B[index], transpose)
    return solved


def _solve_lower_once(L: Array, B: Array, transpose: bool) -> Array:
    """Return the solution of one triangular system L X = B, or Lᴴ X = B with `transpose`.

    LAPACK's trtrs is called directly, because SciPy's wrapper takes longer than a small system.
    LAPACK is column-major and reads the memory of a row-major L as the upper triangular Lᵀ. So Lᵀ
    is passed without a copy, and L X = B is solved as (Lᵀ)ᵀ X = B, that is with trans=1. For
    complex numbers, Lᴴ X = B is solved as Lᵀ X̄ = B̄.
    """
    dtype = np.result_type(L, B)
    if not B.size:  # LAPACK would write a complaint to stderr
        return np.zeros(B.shape, dtype)
    conjugated = transpose and L.dtype.kind == "c"
    solve = _SOLVE.get(dtype.char, lapack.dtrtrs)
    solved, info = solve(L.T, B.conj() if conjugated else B, lower=0, trans=0 if transpose else 1)
    if info > 0:
        raise np.linalg.LinAlgError(
            f"the triangular matrix has a zero on its diagonal, in row {info - 1}, so that it is "
            "singular and the linear system has no unique solution."
        )
    return solved.conj() if conjugated else solved


def inverse_lower(L: Array) -> Array:
    """Return the inverses of lower triangular matrices `L` of shape (…, n, n), in that shape."""
    if not is_numpy(L):
        identity = eye_like(L.shape[-1], L)
        return solve_lower(L, namespace(L).broadcast_to(identity, L.shape))
    if L.ndim == 2:
        return _inverse_lower_once(L)
    inverses = np.empty_like(L)
    for index in np.ndindex(L.shape[:-2]):
        inverses[index] = _inverse_lower_once(L[index])
    return inverses


def multiply_lower(L: Array, A: Array) -> Array:
    """Return the product LA of a lower triangular matrix L with another matrix A.

    For NumPy arrays, BLAS's trmm skips the zeros of `L`, which halves the number of operations.
    """
    plain = is_numpy(A) and A.ndim == 2 and A.size and L.dtype == A.dtype
    if not plain or A.dtype.char not in _MULTIPLY:
        return L @ A
    # As in `_solve_lower_once`, row-major matrices are passed as their transposes: (LA)ᵀ = AᵀLᵀ.
    return _MULTIPLY[A.dtype.char](1.0, L.T, A.T, side=1, lower=0).T


def _inverse_lower_once(L: Array) -> Array:
    """Return the inverse of one lower triangular matrix, computed by LAPACK's trtri.

    It takes a third of the operations of solving L X = I, since it skips zeros. As in
    `_solve_lower_once`, Lᵀ is passed as the column-major view of L without a copy; its inverse is
    transposed afterwards.
    """
    if not L.size:  # LAPACK would write a complaint to stderr
        return L
    invert = _INVERT.get(L.dtype.char, lapack.dtrtri)
    inverse, info = invert(L.T, lower=0)
    if info > 0:
        raise np.linalg.LinAlgError(
            f"the triangular matrix has a zero on its diagonal, in row {info - 1}, so that it is "
            "singular and the linear system has no unique solution."
        )
    return inverse.T
