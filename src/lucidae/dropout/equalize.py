"""Equalizers: rotations of the hidden layer that give all hidden units equal norms.

An equalizer of the weights U (one column per hidden unit, r columns) is an orthogonal matrix T for
which all columns of UT have the same norm, that is, for which Tᵀ(UᵀU)T has a constant diagonal.
There are three methods: Givens rotations in O(r²), the recursion over eigenvectors of Mianjy et al.
2018, Algorithm 2, in O(r⁴), and a Hadamard matrix if r is a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    as_double,
    as_float,
    largest,
    like,
    namespace,
    svd_thin,
    to_numpy,
)
from lucidae.dropout.problem import check_hidden_units
from lucidae.validation import check_choice, check_integer, real_array

__all__ = ["EQUALIZERS", "equalize", "equalize_pair", "equalized_factors", "product_svd"]

Matrix = np.ndarray[Any, Any]

SPREAD = 4 * np.finfo(np.float64).eps
"""Squared column norms count as equal if their difference is at most this times their mean."""


WIDEST = 2**14
"""Largest number r of hidden units that is accepted if the data have smaller dimensions. Equalizing
r hidden units needs an r × r matrix."""


def check_width(width: Any, name: str, size: int, *, others: str = "") -> int:
    """Return a number of hidden units from 1 to the larger of `WIDEST` and `size`, a dimension."""
    checked = check_integer(width, name, low=1, others=others)
    return check_integer(checked, name, low=1, high=max(WIDEST, size), others=others)


def equalize(U: Any, *, method: str = "givens") -> Array:
    """Return an orthogonal matrix that makes all column norms of `U` equal.

    Parameters
    ----------
    U : array of shape (d, r)
        Weights of a hidden layer, one column for each of the r hidden units.
    method : {"givens", "eigenvectors", "hadamard"}, default="givens"
        ``"givens"`` applies r − 1 plane rotations, in O(r²) operations. ``"eigenvectors"`` is
        Mianjy et al. 2018, Algorithm 2, in O(r⁴) operations. ``"hadamard"`` is their Remark 5.2;
        r must be a power of two.

    Returns
    -------
    array of shape (r, r)
        T, orthogonal, such that the columns of ``U @ T`` have equal norms.

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae import equalize
    >>> U = np.array([[3.0, 0.0], [0.0, 1.0]])
    >>> np.linalg.norm(U @ equalize(U), axis=0).round(12)
    array([2.23606798, 2.23606798])
    """
    matrix = _weights(U, "U")
    rotation = EQUALIZERS[check_choice(method, "method", EQUALIZERS)](_scaled_gram(matrix))
    return like(rotation, matrix)


def equalize_pair(U: Any, V: Any) -> tuple[Array, Array]:
    """Return weights with the same product U Vᵀ whose hidden units have equal norms.

    Each column of both results has the squared norm ‖UVᵀ‖_* / r, where ‖·‖_* is the nuclear norm
    and r the number of hidden units. This minimises the path norm, √Σ‖uᵢ‖²‖vᵢ‖², over all weights
    with this product (Mianjy et al. 2018, Theorem 3.3).

    Parameters
    ----------
    U : array of shape (d1, r)
        Outgoing weights, one column for each of the r hidden units.
    V : array of shape (d2, r)
        Incoming weights, one column for each hidden unit.

    Returns
    -------
    left : array of shape (d1, r)
        New outgoing weights.
    right : array of shape (d2, r)
        New incoming weights.

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae import equalize_pair
    >>> U, V = np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([[5.0, 0.0], [1.0, 1.0]])
    >>> P, Q = equalize_pair(U, V)
    >>> np.allclose(P @ Q.T, U @ V.T)
    True
    >>> scores = np.linalg.norm(P, axis=0) * np.linalg.norm(Q, axis=0)
    >>> bool(np.ptp(scores) < 1e-12)
    True
    """
    left, right = _weights(U, "U"), _weights(V, "V")
    right = like(right, left)
    check_hidden_units(left, right)
    # Factors of entries up to 1 are decomposed, because the product of large ones may overflow.
    tops = [largest(as_double(part)) or 1.0 for part in (left, right)]
    P, values, Q = product_svd(as_double(left) / tops[0], as_double(right) / tops[1])
    size = math.sqrt(tops[0]) * math.sqrt(tops[1])
    first, second = equalized_factors(P, values, Q, left.shape[1])
    return like(size * first, left), like(size * second, left)


def equalized_factors(P: Array, values: Array, Q: Array, width: int) -> tuple[Array, Array]:
    """Return factors U and V of P diag(values) Qᵀ with `width` columns, all of equal norm.

    U = P diag(values)^½ T and V = Q diag(values)^½ T, padded with zeros before the product, both
    have the Gram matrix Tᵀ diag(values) T, so that one T levels both.
    """
    xp = namespace(values)
    count = min(values.shape[0], width)
    diagonal = np.zeros(width)
    diagonal[:count] = to_numpy(values)[:count]
    top = float(diagonal.max(initial=0.0))
    turn = level_diagonal(np.diag(diagonal / top if top > 0 else diagonal))[:count]
    spread = like(turn, values) * xp.sqrt(values[:count])[:, None]
    return P[:, :count] @ spread, Q[:, :count] @ spread


def level_diagonal(gram: Matrix) -> Matrix:
    """Return an orthogonal T for which TᵀGT has a constant diagonal, by Givens rotations.

    The trace is invariant, so the constant is the mean of the diagonal. As long as the diagonal is
    not constant, its smallest entry lies below the mean and its largest above it; by continuity
    some rotation in their plane sets one of them to the mean. That index is then finished, so that
    r − 1 rotations of O(r) operations suffice: only the rows of unfinished indices are updated.
    """
    work, turned = gram.copy(), np.eye(gram.shape[0])
    entries = np.diag(gram).copy()
    level = float(entries.mean())
    low, high = entries.copy(), entries.copy()  # finished entries become +inf and −inf
    for _ in range(len(entries) - 1):
        i, j = int(low.argmin()), int(high.argmax())
        if low[i] > high[j] - SPREAD * level:
            break
        if level - entries[i] > entries[j] - level:
            i, j = j, i  # finishing the entry nearer to the mean takes the smaller angle
        cosine, sine = _plane_rotation(entries[i] - level, entries[j] - level, work[i, j])
        turned[i], turned[j] = _rotated(turned[i], turned[j], cosine, sine)
        # Row and column i are not used again. Entry (j, j) of `work` becomes stale; the diagonal
        # is tracked in `entries`, where the trace of the plane is preserved.
        row = cosine * work[j] - sine * work[i]
        work[j], work[:, j] = row, row
        entries[j] += entries[i] - level
        low[j] = high[j] = entries[j]
        low[i], high[i] = np.inf, -np.inf
    return turned.T


def _plane_rotation(first: float, second: float, coupling: float) -> tuple[float, float]:
    """Return (cos θ, sin θ) for which cos²·first + 2 cos sin·coupling + sin²·second = 0.

    Dividing by cos² gives second·τ² + 2 coupling·τ + first = 0 for τ = tan θ. The root of smaller
    magnitude is −first / (coupling ± √(coupling² − first·second)) with the sign of coupling, which
    avoids cancellation; it is real because first and second have opposite signs, up to rounding.
    """
    root = math.sqrt(max(coupling * coupling - first * second, 0.0))
    denominator = coupling + math.copysign(root, coupling)
    if denominator == 0.0:
        return 1.0, 0.0
    tangent = -first / denominator
    cosine = 1.0 / math.hypot(1.0, tangent)
    return cosine, cosine * tangent


def _rotated(first: Matrix, second: Matrix, cosine: float, sine: float) -> tuple[Matrix, Matrix]:
    """Return two vectors after the plane rotation with the given cosine and sine."""
    return cosine * first + sine * second, cosine * second - sine * first


def level_by_eigenvectors(gram: Matrix) -> Matrix:
    """Return an orthogonal T for which TᵀGT has a constant diagonal, from eigenvectors of G.

    Mianjy et al. 2018, Algorithm 2: the normalised sum of the n orthonormal eigenvectors has the
    Rayleigh quotient Σλᵢ/n, the mean of the diagonal. It becomes the next column of T, and the
    recursion continues in its orthogonal complement, whose mean eigenvalue is the same.
    """
    size = gram.shape[0]
    rotation = np.eye(size)
    for done in range(size - 1):
        _, vectors = np.linalg.eigh(gram)
        basis = _basis_from(vectors.sum(axis=1) / math.sqrt(size - done))
        rotation[:, done:] = rotation[:, done:] @ basis
        gram = (basis.T @ gram @ basis)[1:, 1:]
    return rotation


def _basis_from(unit: Matrix) -> Matrix:
    """Return an orthonormal basis whose first vector is `unit`, by one Householder reflection."""
    mirror = unit.copy()
    sign = math.copysign(1.0, unit[0])
    mirror[0] += sign
    basis = np.eye(len(unit)) - np.outer(mirror, mirror) * (2.0 / (mirror @ mirror))
    basis[:, 0] = unit
    return basis


def level_by_hadamard(gram: Matrix) -> Matrix:
    """Return an orthogonal T for which TᵀGT has a constant diagonal, from a Hadamard matrix.

    T = V_G Z for the eigenvectors V_G of G and a Hadamard matrix Z with entries ±1/√r: ZᵀΛZ has the
    diagonal Σλᵢ/r (Mianjy et al. 2018, Remark 5.2, with the factor 1/√2 at each doubling).
    """
    size = gram.shape[0]
    if size & (size - 1):
        raise ValueError(
            f"method='hadamard' was given for weights of {size} columns, expected a power of two. "
            "Use method='givens', which works for any number of columns."
        )
    _, vectors = np.linalg.eigh(gram)
    return np.asarray(vectors @ hadamard(size))


def hadamard(size: int) -> Matrix:
    """Return the orthogonal Hadamard matrix of a size that is a power of two.

    A matrix Z is doubled to [[Z, Z], [−Z, Z]]/√2, starting from [[1]].
    """
    matrix = np.ones((1, 1))
    while matrix.shape[0] < size:
        matrix = np.block([[matrix, matrix], [-matrix, matrix]]) / math.sqrt(2.0)
    return matrix


EQUALIZERS: dict[str, Callable[[Matrix], Matrix]] = {
    "givens": level_diagonal,
    "eigenvectors": level_by_eigenvectors,
    "hadamard": level_by_hadamard,
}


def _weights(U: Any, name: str) -> Array:
    """Return `U` as a floating matrix if it is finite and has a column, else raise an error."""
    if scipy.sparse.issparse(U):
        raise ValueError(
            f"{name} is a sparse matrix, expected a dense array: give {name}.toarray()."
        )
    matrix = as_float(real_array(U, name))
    if matrix.ndim != 2 or matrix.shape[1] == 0:
        raise ValueError(
            f"{name} has shape {tuple(matrix.shape)}, expected (d, r): one column per hidden unit."
        )
    xp = namespace(matrix)
    if not bool(xp.all(xp.isfinite(matrix))):
        raise ValueError(
            f"{name} contains NaN or infinity, expected finite weights: check the "
            "training that produced them."
        )
    return matrix


def _scaled_gram(matrix: Array) -> Matrix:
    """Return the Gram matrix of the columns, divided by the largest entry against overflow."""
    double = as_double(matrix)
    top = largest(double)
    double = double / top if top > 0 else double
    return to_numpy(double.mT @ double)


def product_svd(left: Array, right: Array) -> tuple[Array, Array, Array]:
    """Return P, s, Q of left · rightᵀ = P diag(s) Qᵀ, from QR factorisations of both."""
    xp = namespace(left)
    basis_left, triangle_left = xp.linalg.qr(left)
    basis_right, triangle_right = xp.linalg.qr(right)
    P, values, Qt = svd_thin(triangle_left @ triangle_right.mT)
    return basis_left @ P, values, basis_right @ Qt.mT
