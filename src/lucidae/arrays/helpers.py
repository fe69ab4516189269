"""Elementary array functions with one behaviour for NumPy, torch, CuPy and array-api-strict.

The rest of the package is written once, against the array API standard and these functions. They
accept leading batch axes wherever a matrix is expected.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import array_api_compat as compat
import numpy as np
import scipy.linalg

Array: TypeAlias = Any
Namespace: TypeAlias = Any

_NUMPY: Namespace = compat.array_namespace(np.empty(0))


def is_array(x: Any) -> bool:
    """Tell whether `x` is an array of a library that follows the array API standard."""
    return type(x) is np.ndarray or bool(compat.is_array_api_obj(x))


def is_numpy(x: Any) -> bool:
    """Tell whether `x` is a NumPy array, which SciPy and scikit-learn accept."""
    return type(x) is np.ndarray or bool(compat.is_numpy_array(x))


def namespace(*arrays: Any) -> Namespace:
    """Return the array namespace shared by `arrays`; scalars and None are ignored."""
    if len(arrays) == 1 and type(arrays[0]) is np.ndarray:
        return _NUMPY  # a shortcut for the solvers of small problems, which call this very often
    found = [x for x in arrays if is_array(x) and not isinstance(x, np.generic)]
    return compat.array_namespace(*found) if found else _NUMPY


def device(x: Array) -> Any:
    """Return the device of `x`."""
    return "cpu" if type(x) is np.ndarray else compat.device(x)


def on_host(x: Array) -> bool:
    """Tell whether `x` is on the CPU, so that reading a value needs no synchronisation."""
    return "cpu" in str(device(x)).lower()


def like(x: Any, ref: Array) -> Array:
    """Convert `x` to the library, the dtype and the device of `ref`.

    An array of another library is copied, so that the result never shares its memory.
    """
    if type(x) is np.ndarray and type(ref) is np.ndarray:
        return x if x.dtype == ref.dtype else x.astype(ref.dtype)
    if is_array(x) and namespace(x) is namespace(ref):
        moved = compat.to_device(x, device(ref)) if device(x) != device(ref) else x
        return moved if moved.dtype == ref.dtype else namespace(ref).astype(moved, ref.dtype)
    return namespace(ref).asarray(np.array(to_numpy(x)), dtype=ref.dtype, device=device(ref))


def beside(x: Array, ref: Array) -> Array:
    """Move `x` to the library and the device of `ref`; if it is there, its dtype is unchanged."""
    together = namespace(x) is namespace(ref) and device(x) == device(ref)
    return x if together else like(x, ref)


def as_plain(x: Array) -> Array:
    """Return `x` detached from automatic differentiation; sparse tensors raise an error."""
    if not compat.is_torch_array(x):
        return x
    if x.layout != namespace(x).strided:
        raise ValueError(
            f"a tensor of layout {x.layout} was given, expected a dense tensor: call .to_dense(), "
            "or give a SciPy sparse matrix."
        )
    return x.detach()


def as_float(x: Array) -> Array:
    """Return `x` if it is float32 or float64, else its float64 copy."""
    xp = namespace(x)
    return x if x.dtype in (xp.float32, xp.float64) else xp.astype(x, xp.float64)


def as_double(x: Array) -> Array:
    """Return `x` if it is float64, else its float64 copy."""
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
    values = _unpromoting(values, A)
    if is_numpy(A) and np.ndim(values) < A.ndim:
        # A view of the diagonal: ten times faster than the sum with a diagonal matrix.
        total = A.copy()
        np.einsum("...ii->...i", total)[...] += values
        return total
    on_diagonal = eye_like(A.shape[-1], A) > 0
    added = values[..., None, :] if is_array(values) and values.ndim else values
    return namespace(A).where(on_diagonal, A + added, A)


def diagonal(A: Array) -> Array:
    """Return the diagonals of the trailing matrices of `A`."""
    return namespace(A).linalg.diagonal(A)


def trace(A: Array) -> Array:
    """Return the traces of the trailing matrices of `A`."""
    return namespace(A).sum(diagonal(A), axis=-1)


def squared_norm(A: Array) -> Array:
    """Return the squared Frobenius norms of the trailing matrices of `A`."""
    return namespace(A).sum(A * A, axis=(-2, -1))


def eigh_descending(A: Array) -> tuple[Array, Array]:
    """Return eigenvalues, largest first, and eigenvectors as columns of symmetric matrices."""
    xp = namespace(A)
    values, vectors = xp.linalg.eigh(A)
    return xp.flip(values, axis=-1), xp.flip(vectors, axis=-1)


def svd_thin(A: Array) -> tuple[Array, Array, Array]:
    """Return the thin singular value decomposition (U, s, Vᵀ), s descending."""
    U, s, Vt = namespace(A).linalg.svd(A, full_matrices=False)
    return U, s, Vt


def add_gram_(A: Array | None, rows: Array) -> Array:
    """Add rowsᵀ rows to the lower triangle of `A`, in place; the upper triangle is undefined.

    NumPy arrays use dsyrk, which computes one triangle (half the operations of a product) and adds
    it to `A` without a temporary. BLAS is column-major and reads `rows` as rowsᵀ without a copy,
    and its upper triangle is the lower triangle of the transpose that is returned.
    """
    if is_numpy(rows) and rows.dtype == np.float64:
        into = {} if A is None else {"c": A.T, "overwrite_c": 1, "beta": 1.0}
        return scipy.linalg.blas.dsyrk(1.0, rows.T, **into).T
    product = rows.mT @ rows
    if A is None:
        return product
    A += product
    return A


def weighted_sum(weights: Array | None, rows: Array) -> Array:
    """Return Σ wᵢ xᵢ over the rows, by the BLAS of `add_gram_` to avoid a second thread pool."""
    if weights is None:
        weights = namespace(rows).ones(rows.shape[0], dtype=rows.dtype, device=device(rows))
    if is_numpy(rows) and rows.dtype == np.float64:
        return scipy.linalg.blas.dgemv(1.0, rows.T, weights)
    return weights @ rows


def mirrored(A: Array) -> Array:
    """Return the symmetric matrix with the lower triangle of `A`."""
    xp = namespace(A)
    return xp.tril(A) + xp.tril(A, k=-1).mT


def rank_one_(A: Array, x: Array, y: Array, scale: float) -> Array:
    """Add scale · x yᵀ to one matrix `A` in place and return it; `A` must belong to the caller."""
    if is_numpy(A) and A.flags.forc and A.dtype in (np.float32, np.float64):
        ger = scipy.linalg.blas.sger if A.dtype == np.float32 else scipy.linalg.blas.dger
        if A.flags.f_contiguous:
            ger(scale, x, y, a=A, overwrite_a=1)
        else:  # Aᵀ is column-major, and (x yᵀ)ᵀ = y xᵀ
            ger(scale, y, x, a=A.T, overwrite_a=1)
        return A
    if compat.is_torch_array(A):
        return A.addr_(x, y, alpha=scale)
    A += float(scale) * (x[:, None] * y[None, :])
    return A


def squared_norms(A: Array, axis: int) -> Array:
    """Return the squared norms of the vectors along an axis, -1 or -2, without a temporary."""
    return namespace(A).vecdot(A, A, axis=axis)


def where_set(A: Array, mask: Array, value: Any) -> Array:
    """Return `A` with `value` wherever `mask` is true, in the dtype of `A`."""
    return namespace(A).where(mask, _unpromoting(value, A), A)


def put(A: Array, positions: Any, part: Array) -> Array:
    """Return `A` with `part` at ascending positions (NumPy integers) of its first axis."""
    xp = namespace(A)
    chosen = np.zeros(A.shape[0], dtype=bool)
    chosen[positions] = True
    changed = xp.asarray(A, copy=True)
    changed[xp.asarray(chosen, device=device(A))] = part
    return changed


def _unpromoting(value: Any, ref: Array) -> Any:
    """Return `value` as a Python float or an array like `ref`, which cannot promote `ref`.

    NumPy's float64 scalars would promote float32 arrays. A Python float also needs no transfer.
    """
    is_number = not is_array(value) or isinstance(value, np.generic)
    return float(value) if is_number else like(value, ref)


def normal(rng: np.random.RandomState | np.random.Generator, shape: Any, ref: Array) -> Array:
    """Draw standard normal numbers by NumPy and move them: they depend on the seed only."""
    return like(rng.standard_normal(shape), ref)


def scalar(x: Any) -> float:
    """Return `x` as a Python float, which waits for the device if there is one."""
    return float(x)


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """Return `x` as a NumPy array, from any device."""
    if compat.is_torch_array(x):
        return np.asarray(x.detach().cpu().numpy())
    if compat.is_cupy_array(x):
        return np.asarray(x.get())
    return np.asarray(x)


def machine_epsilon(x: Array) -> float:
    """Return the rounding unit of the dtype of `x`."""
    return float(namespace(x).finfo(x.dtype).eps)


def largest(x: Array) -> float:
    """Return the largest absolute entry of `x`, 0 if it is empty."""
    return scalar(namespace(x).max(abs(x))) if math.prod(x.shape) else 0.0
