"""Array functions that behave alike for NumPy, torch, CuPy and array-api-strict.

The rest of the package uses only the array API standard and these functions, and need not know the
array library of its data. A function that takes a matrix also takes an array with leading axes,
(…, rows, columns), as a batch of matrices.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeAlias

import array_api_compat as compat
import numpy as np
import scipy.linalg.blas as blas
import scipy.linalg.lapack as lapack

Array: TypeAlias = Any
Namespace: TypeAlias = Any

_NUMPY: Namespace = compat.array_namespace(np.empty(0))

_OUTER_PRODUCTS = {
    "f": blas.sger,
    "d": blas.dger,
    "F": blas.cgeru,
    "D": blas.zgeru,
}
"""BLAS function that adds an outer product to a matrix in place, by the code of the dtype."""


is_array = compat.is_array_api_obj  # whether an object is an array of a library of the standard
device = compat.device


def namespace(*arrays: Any) -> Namespace:
    """Return the array API namespace of `arrays`; scalars and None are ignored."""
    for x in arrays:
        if type(x) is not np.ndarray and not isinstance(x, np.generic):
            break
    else:
        return _NUMPY  # a shortcut for the solvers of small problems, which call this very often
    found = [x for x in arrays if is_array(x) and not isinstance(x, np.generic)]
    return compat.array_namespace(*found) if found else _NUMPY


def on_host(x: Array) -> bool:
    """Tell whether the array `x` is on the CPU, so that reading a value does not wait for a GPU."""
    return type(x) is np.ndarray or "cpu" in str(device(x)).lower()


def like(x: Any, ref: Array) -> Array:
    """Return `x` in the library, dtype and device of `ref`; itself if it has all three already.

    An array of another library is always copied, so that two libraries never share memory.
    """
    if type(x) is np.ndarray and type(ref) is np.ndarray:
        return x if x.dtype == ref.dtype else x.astype(ref.dtype)
    if is_array(x) and namespace(x) is namespace(ref):
        moved = compat.to_device(x, device(ref)) if device(x) != device(ref) else x
        return moved if moved.dtype == ref.dtype else namespace(ref).astype(moved, ref.dtype)
    return namespace(ref).asarray(np.array(to_numpy(x)), dtype=ref.dtype, device=ref.device)


def beside(x: Array, ref: Array) -> Array:
    """Return `x` in the library and on the device of `ref`; if it is moved, also in its dtype."""
    together = namespace(x) is namespace(ref) and device(x) == device(ref)
    return x if together else like(x, ref)


def fields_beside(values: Any, ref: Array) -> Any:
    """Return a dataclass with its arrays like `ref`; other objects unchanged."""
    if not is_dataclass(values) or isinstance(values, type):
        return values
    found = {field.name: getattr(values, field.name) for field in fields(values)}
    moved = {name: like(value, ref) for name, value in found.items() if is_array(value)}
    return replace(values, **moved) if moved else values


def as_plain(x: Array) -> Array:
    """Return `x` without automatic differentiation; sparse tensors and old CuPy are refused."""
    # The attribute is looked up in the class: of an array with one axis, CuPy raises a ValueError.
    if compat.is_cupy_array(x) and not hasattr(type(x), "mT"):
        raise ValueError(
            "an array of an old version of CuPy was given, expected CuPy 14 or later, whose arrays "
            "have the attribute mT: update CuPy, or give a NumPy or torch array."
        )
    if not compat.is_torch_array(x):
        return x
    if x.layout != namespace(x).strided:
        raise ValueError(
            f"a tensor of layout {x.layout} was given, expected a dense tensor: call .to_dense(), "
            "or give a SciPy sparse matrix."
        )
    return x.detach()


def as_float(x: Array) -> Array:
    """Return `x`; unless it is float32, float64, complex64 or complex128, in double precision."""
    xp = namespace(x)
    known = x.dtype in (xp.float32, xp.float64, xp.complex64, xp.complex128)
    return x if known else as_double(x)


def as_double(x: Array) -> Array:
    """Return `x` in double precision: as complex128 if it is complex, otherwise as float64."""
    if type(x) is np.ndarray and x.dtype == np.float64:
        return x
    xp = namespace(x)
    wide = xp.complex128 if is_complex(x) else xp.float64
    return x if x.dtype == wide else xp.astype(x, wide)


def matched(x: Array, ref: Array) -> Array:
    """Return `x` in library, precision and device of `ref`; complex numbers stay complex."""
    if type(x) is np.ndarray and type(ref) is np.ndarray and x.dtype == ref.dtype:
        return x
    kind = zeros_like_shape((0,), ref)
    return like(x, as_complex(kind) if is_complex(x) else real_part(kind))


def is_complex(x: Array) -> bool:
    """Tell whether `x` has a complex dtype."""
    if type(x) is np.ndarray or isinstance(x, np.generic):
        return bool(x.dtype.kind == "c")
    if compat.is_torch_array(x):  # the standard's test takes longer than a small product
        return bool(x.is_complex())
    return bool(namespace(x).isdtype(x.dtype, "complex floating"))


def as_complex(x: Array) -> Array:
    """Return `x` if it is complex, else its complex copy of the same precision."""
    if is_complex(x):
        return x
    xp = namespace(x)
    return xp.astype(x, xp.complex64 if x.dtype == xp.float32 else xp.complex128)


def real_part(x: Array) -> Array:
    """Return the real parts of the entries of `x`; a real array is returned unchanged."""
    return namespace(x).real(x) if is_complex(x) else x


def conjugate(x: Array) -> Array:
    """Return the complex conjugates of the entries of `x`; a real array is returned unchanged."""
    return namespace(x).conj(x) if is_complex(x) else x


def of_one_kind(*arrays: Array) -> tuple[Array, ...]:
    """Return the arrays, all complex if one is: torch multiplies no real with a complex array."""
    return tuple(map(as_complex, arrays)) if any(map(is_complex, arrays)) else arrays


def adjoint(A: Array) -> Array:
    """Return the conjugate transposes of matrices `A`; for real matrices a view of `A`."""
    return namespace(A).conj(A.mT) if is_complex(A) else A.mT


def squared_moduli(A: Array) -> Array:
    """Return the squares |a|² of the absolute values of the entries of `A`, as real numbers."""
    if not is_complex(A):
        return A**2
    xp = namespace(A)
    return xp.real(A) ** 2 + xp.imag(A) ** 2


def zeros_like_shape(shape: tuple[int, ...], ref: Array) -> Array:
    """Return an array of zeros of the given shape, with the dtype and on the device of `ref`."""
    return namespace(ref).zeros(shape, dtype=ref.dtype, device=ref.device)


def eye_like(size: int, ref: Array) -> Array:
    """Return the identity matrix (size, size) with the dtype and on the device of `ref`."""
    return namespace(ref).eye(size, dtype=ref.dtype, device=ref.device)


def arange_like(ref: Array, start: int = 0) -> Array:
    """Return the vector start, start + 1, … with as many entries as the last axis of `ref`."""
    xp = namespace(ref)
    return xp.arange(start, start + ref.shape[-1], dtype=ref.dtype, device=ref.device)


def add_diagonal(A: Array, values: Any) -> Array:
    """Return matrices with `values`, a number or an array (…, size), added to their diagonals."""
    if isinstance(A, np.ndarray) and np.ndim(values) < A.ndim:
        # A view of the diagonal: ten times faster than the sum with a diagonal matrix.
        total = A.copy()
        np.einsum("...ii->...i", total)[...] += np.asarray(values, dtype=A.dtype)
        return total
    if compat.is_torch_array(A) and (not is_array(values) or values.ndim < A.ndim):
        total = A.clone()
        total.diagonal(dim1=-2, dim2=-1).add_(_unpromoting(values, A))
        return total
    values = _unpromoting(values, A)
    on_diagonal = eye_like(A.shape[-1], A) != 0
    added = values[..., None, :] if is_array(values) and values.ndim else values
    return namespace(A).where(on_diagonal, A + added, A)


def diagonal(A: Array) -> Array:
    """Return the diagonals (…, n) of matrices (…, n, n)."""
    return namespace(A).linalg.diagonal(A)


def squared_norm(A: Array) -> Array:
    """Return the squared Frobenius norms (…) of matrices (…, n, m)."""
    squares = squared_moduli(A) if is_complex(A) else A * A
    return namespace(A).sum(squares, axis=(-2, -1))


def eigh_descending(A: Array) -> tuple[Array, Array]:
    """Return eigenvalues (…, n), descending, and eigenvectors as columns of symmetric matrices."""
    xp = namespace(A)
    values, vectors = xp.linalg.eigh(A)
    return xp.flip(values, axis=-1), xp.flip(vectors, axis=-1)


def svd_thin(A: Array) -> tuple[Array, Array, Array]:
    """Return the thin singular value decomposition (U, s, Vᵀ), with s descending."""
    U, s, Vt = namespace(A).linalg.svd(A, full_matrices=False)
    return U, s, Vt


def column_signs(vectors: Array) -> Array:
    """Return, for each column, the sign of its entry of largest magnitude; 1 for a zero column."""
    xp = namespace(vectors)
    rows = xp.argmax(xp.abs(vectors), axis=0)
    if isinstance(vectors, np.ndarray):
        peaks = vectors[rows, np.arange(vectors.shape[1])]
        return np.where(peaks < 0, vectors.dtype.type(-1), vectors.dtype.type(1))
    at_peak = xp.arange(vectors.shape[0], device=vectors.device)[:, None] == rows
    peaks = xp.sum(xp.where(at_peak, vectors, 0.0 * vectors), axis=0)
    return xp.where(peaks < 0, -xp.ones_like(peaks), xp.ones_like(peaks))


def add_gram_(A: Array | None, rows: Array) -> Array:
    """Add ``rows.T @ rows`` to `A` (None: zeros) in place; only the lower triangle is defined.

    For this product NumPy calls BLAS's syrk, which computes one triangle (half the operations of a
    product). Large float64 products are added by the dsyrk of SciPy, without a temporary array.
    BLAS is column-major: it reads `rows` as its transpose without a copy, and the upper triangle
    that it writes is the lower one of the returned matrix.
    """
    if isinstance(rows, np.ndarray) and rows.dtype == np.float64 and rows.shape[1] > _LARGE_GRAM:
        into = {} if A is None else {"c": A.T, "overwrite_c": 1, "beta": 1.0}
        return blas.dsyrk(1.0, rows.T, **into).T
    product = rows.mT @ rows
    if A is None:
        return product
    A += product
    return A


_LARGE_GRAM = 2048
"""Smallest number of columns for which SciPy computes a product of rows, because a temporary array
would take much memory. Below it NumPy does, whose threads compute the rest of a fit as well."""


def mirrored(A: Array) -> Array:
    """Return the symmetric matrix that has the lower triangle of `A`."""
    if isinstance(A, np.ndarray):
        found = A.copy()
        for row in range(len(A)):
            found[row, row:] = A[row:, row]
        return found
    xp = namespace(A)
    return xp.tril(A) + xp.tril(A, k=-1).mT


def rank_one_(A: Array, x: Array, y: Array, scale: float) -> Array:
    """Add scale · x yᵀ to the matrix `A` in place; complex vectors are not conjugated."""
    if isinstance(A, np.ndarray) and A.flags.forc and A.dtype.char in _OUTER_PRODUCTS:
        ger = _OUTER_PRODUCTS[A.dtype.char]
        if A.flags.f_contiguous:
            ger(scale, x, y, a=A, overwrite_a=1)
        else:  # Aᵀ is column-major, and (x yᵀ)ᵀ = y xᵀ
            ger(scale, y, x, a=A.T, overwrite_a=1)
        return A
    if compat.is_torch_array(A):
        return A.addr_(x, y, alpha=scale)
    A += float(scale) * (x[:, None] * y[None, :])
    return A


def clamped(x: Array, low: float, high: float) -> Array:
    """Return `x` with all entries limited to the interval from `low` to `high`."""
    if compat.is_torch_array(x):
        return x.clamp(low, high)
    if isinstance(x, np.ndarray):
        return namespace(x).clip(x, low, high)
    # The clip of array_api_compat selects entries by a mask, for which a GPU is waited for.
    return where_set(where_set(x, x < low, low), x > high, high)


def squared_norms(A: Array, axis: int) -> Array:
    """Return the squared norms of the vectors of `A` along axis -1 or -2."""
    if isinstance(A, np.ndarray) and A.ndim == 2 and not is_complex(A):
        # vecdot copies A to bring the first axis to the end, and is slower for small matrices.
        return np.einsum("ij,ij->j" if axis == -2 else "ij,ij->i", A, A)
    return real_part(namespace(A).vecdot(A, A, axis=axis))


def where_set(A: Array, mask: Array, value: Any) -> Array:
    """Return a copy of `A`, in the same dtype, with `value` in all entries where `mask` is true."""
    value = value if type(value) is float else _unpromoting(value, A)
    return namespace(A).where(mask, value, A)


def _unpromoting(value: Any, ref: Array) -> Any:
    """Return `value` in a form that does not change the dtype of `ref` in arithmetic with it.

    NumPy's float64 scalars would turn float32 arrays into float64 ones; Python floats do not.
    """
    is_number = not is_array(value) or isinstance(value, np.generic)
    return float(value) if is_number else like(value, ref)


def normal(rng: np.random.RandomState | np.random.Generator, shape: Any, ref: Array) -> Array:
    """Return standard normal numbers like `ref`, drawn by NumPy: the same for all libraries."""
    return like(rng.standard_normal(shape), ref)


def number(x: Array) -> float | complex:
    """Return an array without axes as a Python float, or as a complex number if it is complex."""
    return complex(x) if is_complex(x) else float(x)


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """Return `x` as a NumPy array; an array on a GPU is copied to the CPU."""
    if compat.is_torch_array(x):
        return np.asarray(x.detach().cpu().numpy())
    if compat.is_cupy_array(x):  # pragma: no cover (needs a GPU)
        return np.asarray(x.get())
    return np.asarray(x)


def machine_epsilon(x: Array) -> float:
    """Return the machine epsilon of the dtype of `x`: the gap between 1 and the next number."""
    return float(namespace(x).finfo(x.dtype).eps)


def apparent_epsilon(values: Any) -> float:
    """Return the machine epsilon with which numbers in a float64 NumPy array were rounded.

    It is that of float32 if all of them are float32 numbers, unless all have at most 11 significant
    bits, such as small integers, which are probably exact.
    """
    parts = (values.real, values.imag) if np.iscomplexobj(values) else (values,)
    with np.errstate(over="ignore"):
        single = all((part.astype(np.float32) == part).all() for part in parts)
    digits = [np.ldexp(np.frexp(part)[0], 11) for part in parts]
    simple = all((part == np.rint(part)).all() for part in digits)
    return float(np.finfo(np.float32 if single and not simple else np.float64).eps)


def largest(x: Array) -> float:
    """Return the largest absolute value of the entries of `x`; 0 if `x` is empty."""
    return float(namespace(x).max(abs(x))) if math.prod(x.shape) else 0.0


_SOLVE = {"f": lapack.strtrs, "F": lapack.ctrtrs, "D": lapack.ztrtrs}
_INVERT = {"f": lapack.strtri, "F": lapack.ctrtri, "D": lapack.ztrtri}
"""LAPACK functions by the code of the dtype; those of float64 serve all other dtypes."""

_MULTIPLY = {"f": blas.strmm, "d": blas.dtrmm, "F": blas.ctrmm, "D": blas.ztrmm}


def cholesky(A: Array) -> tuple[Array, Array]:
    """Return lower Cholesky factors of matrices, and which of them are positive definite.

    The factor of another matrix is NaN. (NumPy and torch would raise different errors.)
    """
    xp, valid = namespace(A), True
    if compat.is_torch_array(A):
        factor, failed = xp.linalg.cholesky_ex(A)
        valid = failed == 0
    else:
        try:
            factor = xp.linalg.cholesky(A)
        except np.linalg.LinAlgError:
            given = to_numpy(A)
            factors = np.full_like(given, np.nan)
            for index in np.ndindex(given.shape[:-2]):
                with suppress(np.linalg.LinAlgError):
                    factors[index] = np.linalg.cholesky(given[index])
            factor = like(factors, A)
    # L[i, i]² = A[i, i] − Σⱼ L[i, j]²: an entry that is not finite shows on the diagonal.
    ok = valid & xp.all(xp.isfinite(xp.linalg.diagonal(factor)), axis=-1)
    if isinstance(A, np.ndarray) and ok.all():
        return factor, ok
    return where_set(factor, ~ok[..., None, None], xp.nan), ok


def solve_positive(A: Array, B: Array) -> Array:
    """Return A⁻¹B for positive definite matrices `A`; NaN for other ones."""
    if compat.is_torch_array(A):
        # Two CUDA kernels instead of the ten of `cholesky`, whose tests find infinite factors too.
        factor, failed = namespace(A).linalg.cholesky_ex(A)
        factor = factor.masked_fill_(failed[..., None, None] != 0, float("nan"))
    else:
        factor, _ = cholesky(A)
    return solve_lower(factor, solve_lower(factor, B), transpose=True)


def solve_lower(L: Array, B: Array, transpose: bool = False) -> Array:
    """Return the solution X of L X = B, or of Lᴴ X = B with `transpose`; `B` may be a vector."""
    xp = namespace(L, B)
    if B.ndim == 1:
        return solve_lower(L, B[:, None], transpose)[..., 0]
    if compat.is_torch_array(L):
        return xp.linalg.solve_triangular(adjoint(L) if transpose else L, B, upper=transpose)
    if isinstance(L, np.ndarray):
        return _solve_lower_numpy(L, B, transpose)
    if compat.is_cupy_array(L) and L.ndim == B.ndim == 2:  # pragma: no cover (needs a GPU)
        from cupyx.scipy.linalg import solve_triangular

        return solve_triangular(L, B, trans=2 if transpose else 0, lower=True)
    return xp.linalg.solve(adjoint(L) if transpose else L, B)


def _solve_lower_numpy(L: Array, B: Array, transpose: bool) -> Array:
    """Return the solutions of triangular systems.

    LAPACK's trtrs is called directly, because SciPy's wrapper takes longer than a small system.
    LAPACK is column-major and reads the memory of a row-major L as the upper triangular Lᵀ. So Lᵀ
    is passed without a copy, and L X = B is solved as (Lᵀ)ᵀ X = B, that is with trans=1. For
    complex numbers, Lᴴ X = B is solved as Lᵀ X̄ = B̄.
    """
    stack, dtype = np.broadcast_shapes(L.shape[:-2], B.shape[:-2]), np.result_type(L, B)
    L, B = (np.broadcast_to(A, stack + A.shape[-2:]) for A in (L, B))
    solved = np.zeros(B.shape, dtype)
    if not B.size:  # LAPACK would write a complaint to stderr
        return solved
    conjugated = transpose and L.dtype.kind == "c"
    solve, B = _SOLVE.get(dtype.char, lapack.dtrtrs), B.conj() if conjugated else B
    for index in np.ndindex(stack):
        solved[index], info = solve(L[index].T, B[index], lower=0, trans=0 if transpose else 1)
        if info > 0:
            raise _singular(info)
    return solved.conj() if conjugated else solved


def _singular(info: int) -> np.linalg.LinAlgError:
    """Return the error for a triangular matrix in which LAPACK has found a zero on the diagonal."""
    return np.linalg.LinAlgError(
        f"the triangular matrix has a zero on its diagonal, in row {info - 1}, so that it is "
        "singular and the linear system has no unique solution."
    )


def inverse_lower(L: Array) -> Array:
    """Return the inverses of lower triangular matrices, by LAPACK's trtri, which skips zeros."""
    if not isinstance(L, np.ndarray):
        identity = eye_like(L.shape[-1], L)
        return solve_lower(L, namespace(L).broadcast_to(identity, L.shape))
    inverses = np.empty_like(L)
    invert = _INVERT.get(L.dtype.char, lapack.dtrtri)
    for index in np.ndindex(L.shape[:-2] if L.size else (0,)):
        inverse, info = invert(L[index].T, lower=0)
        if info > 0:
            raise _singular(info)
        inverses[index] = inverse.T
    return inverses


def multiply_lower(L: Array, A: Array) -> Array:
    """Return LA for a lower triangular matrix L; BLAS's trmm skips its zeros."""
    plain = isinstance(A, np.ndarray) and A.ndim == 2 and A.size and L.dtype == A.dtype
    if not plain or A.dtype.char not in _MULTIPLY:
        return L @ A
    # As in `_solve_lower_numpy`, row-major matrices are passed as their transposes: (LA)ᵀ = AᵀLᵀ.
    return _MULTIPLY[A.dtype.char](1.0, L.T, A.T, side=1, lower=0).T
