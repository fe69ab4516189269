"""The only place that knows NumPy from torch from CuPy.

Everything else in the package is written once, against the array API standard, with the
helpers below. They accept leading batch axes wherever a matrix is expected.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import array_api_compat as compat
import numpy as np
import scipy.linalg

Array: TypeAlias = Any
Namespace: TypeAlias = Any


def is_array(x: Any) -> bool:
    """Tell whether `x` belongs to an array library that follows the standard."""
    return bool(compat.is_array_api_obj(x))


def is_numpy(x: Any) -> bool:
    """Tell whether `x` lives in NumPy (and so may be handed to SciPy and scikit-learn)."""
    return bool(compat.is_numpy_array(x))


def namespace(*arrays: Any) -> Namespace:
    """Return the array namespace shared by `arrays`; Python scalars and None are passed over."""
    found = [x for x in arrays if is_array(x)]
    return compat.array_namespace(*found) if found else compat.array_namespace(np.empty(0))


def device(x: Array) -> Any:
    """Return the device on which `x` lives."""
    return compat.device(x)


def like(x: Any, ref: Array) -> Array:
    """Bring `x` to the library, the dtype and the device of `ref`."""
    if is_array(x) and namespace(x) is namespace(ref):
        moved = compat.to_device(x, device(ref)) if device(x) != device(ref) else x
        return moved if moved.dtype == ref.dtype else namespace(ref).astype(moved, ref.dtype)
    return namespace(ref).asarray(to_numpy(x), dtype=ref.dtype, device=device(ref))


def as_float(x: Array) -> Array:
    """Return `x` if it is float32 or float64, else its float64 copy."""
    xp = namespace(x)
    return x if x.dtype in (xp.float32, xp.float64) else xp.astype(x, xp.float64)


def as_double(x: Array) -> Array:
    """Return `x` in float64, itself when it is so already."""
    xp = namespace(x)
    return x if x.dtype == xp.float64 else xp.astype(x, xp.float64)


def zeros_like_shape(shape: tuple[int, ...], ref: Array) -> Array:
    """Return zeros of `shape` with the dtype and on the device of `ref`."""
    return namespace(ref).zeros(shape, dtype=ref.dtype, device=device(ref))


def eye_like(size: int, ref: Array) -> Array:
    """Return the identity with the dtype and on the device of `ref`."""
    return namespace(ref).eye(size, dtype=ref.dtype, device=device(ref))


def arange_like(ref: Array, start: int = 0) -> Array:
    """Return start, start + 1, … as long as the last axis of `ref`, in its dtype."""
    xp = namespace(ref)
    return xp.arange(start, start + ref.shape[-1], dtype=ref.dtype, device=device(ref))


def add_diagonal(A: Array, values: Any) -> Array:
    """Return A + diag(values); a scalar is added to every diagonal entry."""
    identity = eye_like(A.shape[-1], A)
    if is_array(values) and values.ndim > 0:
        return A + identity * values[..., None, :]
    return A + identity * values


def diagonal(A: Array) -> Array:
    """Return the diagonals of the trailing matrices of `A`."""
    return namespace(A).linalg.diagonal(A)


def trace(A: Array) -> Array:
    """Return the traces of the trailing matrices of `A`."""
    return namespace(A).sum(diagonal(A), axis=-1)


def squared_norm(A: Array) -> Array:
    """Return the squared Frobenius norms of the trailing matrices of `A`."""
    return namespace(A).sum(A * A, axis=(-2, -1))


def cholesky(A: Array) -> tuple[Array, Array]:
    """Return (L, ok): lower Cholesky factors and, per matrix, whether it was positive definite.

    A matrix that is not gives NaN in its factor and False in `ok`; no library raises.
    """
    xp = namespace(A)
    if compat.is_torch_array(A):
        factor, info = xp.linalg.cholesky_ex(A)
        ok = (info == 0) & xp.all(xp.isfinite(factor), axis=(-2, -1))
        return xp.where(ok[..., None, None], factor, xp.nan), ok
    if not is_numpy(A):
        return _cholesky_or_nan(A)
    try:
        factor = np.linalg.cholesky(A)
    except np.linalg.LinAlgError:
        factor = _cholesky_one_by_one(A)
    ok = np.isfinite(factor).all(axis=(-2, -1))
    return factor, ok


def _cholesky_one_by_one(A: Array) -> Array:
    factors = np.full_like(A, np.nan)
    for index in np.ndindex(A.shape[:-2]):
        try:
            factors[index] = np.linalg.cholesky(A[index])
        except np.linalg.LinAlgError:
            continue
    return factors


def _cholesky_or_nan(A: Array) -> tuple[Array, Array]:
    xp = namespace(A)
    try:
        factor = xp.linalg.cholesky(A)
    except np.linalg.LinAlgError:
        factor = xp.asarray(_cholesky_one_by_one(to_numpy(A)), device=device(A))
    return factor, xp.all(xp.isfinite(factor), axis=(-2, -1))


def solve_lower(L: Array, B: Array, transpose: bool = False) -> Array:
    """Solve L X = B (or Lᵀ X = B) for lower triangular L; batch axes must agree."""
    xp = namespace(L, B)
    if compat.is_torch_array(L):
        return xp.linalg.solve_triangular(L.mT if transpose else L, B, upper=transpose)
    if is_numpy(L) and L.ndim == 2:
        return scipy.linalg.solve_triangular(
            L, B, trans=1 if transpose else 0, lower=True, check_finite=False
        )
    if is_numpy(L):
        solved = np.empty(np.broadcast_shapes(L.shape[:-2], B.shape[:-2]) + B.shape[-2:], B.dtype)
        for index in np.ndindex(solved.shape[:-2]):
            solved[index] = solve_lower(L[index], B[index], transpose)
        return solved
    if compat.is_cupy_array(L) and L.ndim == 2:
        from cupyx.scipy.linalg import solve_triangular

        return solve_triangular(L, B, trans=1 if transpose else 0, lower=True)
    return xp.linalg.solve(xp.matrix_transpose(L) if transpose else L, B)


def eigh_descending(A: Array) -> tuple[Array, Array]:
    """Return eigenvalues, largest first, and eigenvectors as columns of symmetric matrices."""
    xp = namespace(A)
    values, vectors = xp.linalg.eigh(A)
    return xp.flip(values, axis=-1), xp.flip(vectors, axis=-1)


def svd_thin(A: Array) -> tuple[Array, Array, Array]:
    """Return the thin singular value decomposition (U, s, Vᵀ), s descending."""
    U, s, Vt = namespace(A).linalg.svd(A, full_matrices=False)
    return U, s, Vt


def rank_one_(A: Array, x: Array, y: Array, scale: float) -> Array:
    """Add scale · x yᵀ to `A` in place and return it; for buffers that the caller owns."""
    if compat.is_torch_array(A):
        return A.addr_(x, y, alpha=scale)
    if is_numpy(A) and A.flags.c_contiguous and A.dtype == np.float64:
        # Row-major A is the column-major transpose: its rank-one term has x and y swapped.
        scipy.linalg.blas.dger(scale, y, x, a=A.T, overwrite_a=1)
        return A
    A += scale * (x[:, None] * y[None, :])
    return A


def where_set(A: Array, mask: Array, value: Any) -> Array:
    """Return `A` with `value` wherever `mask` is true."""
    filler = value if is_array(value) else namespace(A).full_like(A, value)
    return namespace(A).where(mask, filler, A)


def normal(rng: np.random.RandomState | np.random.Generator, shape: Any, ref: Array) -> Array:
    """Draw standard normal numbers by NumPy, then move them: one seed, one result, any device."""
    return like(rng.standard_normal(shape), ref)


def scalar(x: Any) -> float:
    """Return `x` as a Python float: the only place where the host waits for the device."""
    return float(x)


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """Return `x` as a NumPy array, from whatever device it lives on."""
    if compat.is_torch_array(x):
        return np.asarray(x.detach().cpu().numpy())
    if compat.is_cupy_array(x):
        return np.asarray(x.get())
    return np.asarray(x)


def machine_epsilon(x: Array) -> float:
    """Return the rounding unit of the dtype of `x`."""
    return float(namespace(x).finfo(x.dtype).eps)


def largest(x: Array) -> float:
    """Return the largest absolute entry of `x`, 0 where it is empty."""
    return scalar(namespace(x).max(abs(x))) if math.prod(x.shape) else 0.0
