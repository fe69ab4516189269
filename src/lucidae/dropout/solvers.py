"""The global minimum of the expected dropout loss, from one singular value decomposition.

The formulas are Mianjy et al. 2018, Theorem 3.6 for separate layers and inputs of any covariance,
and Theorem 2.4 for tied weights and white inputs (whose second moment is the identity).

Equalizers give all hidden units equal norms. An equalizer of the weights U (one column per hidden
unit, r columns) is an orthogonal matrix T for which all columns of UT have the same norm, that is,
for which Tᵀ(UᵀU)T has a constant diagonal. There are three methods: Givens rotations in O(r²), the
recursion over eigenvectors of Mianjy et al. 2018, Algorithm 2, in O(r⁴), and a Hadamard matrix if r
is a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse

from lucidae.arrays import (
    Array,
    as_double,
    column_signs,
    diagonal,
    eigh_descending,
    eye_like,
    largest,
    like,
    machine_epsilon,
    namespace,
    squared_norm,
    svd_thin,
    to_numpy,
    where_set,
    zeros_like_shape,
)
from lucidae.arrays.eigen import krylov_eigenpairs, leading_eigenpairs
from lucidae.dropout.problem import (
    CONSTANT,
    RANGE_FACTOR,
    LinearProblem,
    Weights,
    Whitened,
    WideRows,
    check_hidden_units,
    varying,
    whiten,
)
from lucidae.dropout.theory import optimal_rank, optimal_value, shrink
from lucidae.rows.operator import CsrRows, DenseRows, RowOperator
from lucidae.spectrum import costs, leading, refined
from lucidae.validation import check_choice, check_integer, check_number, check_rows

Triple = tuple[Array, Array, Array]


FEW = 4
"""`leading_svd` may use the Gram matrix if fewer than 1/FEW of all singular values are needed."""

SMALLEST_KRYLOV = 1024
"""If the smaller dimension of a matrix is at most this number, its leading singular vectors are not
computed by block Krylov iteration, because decomposing the Gram matrix is faster."""

SMALLEST_FAST = 400
"""`leading_svd` decomposes the whole matrix if its smaller dimension is below this number."""

TIE = 1e-9
"""Relative difference below which two singular values count as equal."""

FAINTEST = 1e-3
"""Smallest singular value, relative to the largest, for which the Gram matrix is accurate enough:
its eigenvalues are squares, so a singular vector of relative size 1e-3 loses three digits."""


@dataclass(frozen=True, slots=True, eq=False)
class ExactSolution:
    """Weights at a global minimum of the expected dropout loss, and the value of the loss.

    r is the number of hidden units, d1 and d2 are the numbers of outputs and inputs.

    Parameters
    ----------
    weights : Weights
        U and V for the original inputs. All hidden units have the same importance score
        ‖uᵢ‖ √(vᵢᵀC vᵢ), with the second moment C of the inputs.
    rank : int
        Rank ρ of the optimal product U Vᵀ.
    threshold : float
        Amount α by which dropout reduces each of the first ρ singular values.
    singular_values : array of shape (min(r, d1, q),)
        Leading singular values of the least-squares map in white coordinates, before shrinking;
        q is the rank of the inputs.
    value : float
        The minimum of the expected dropout loss.
    next_singular_value : float
        Singular value r + 1, the largest one that r hidden units cannot represent; 0 if there is
        none.
    """

    weights: Weights
    rank: int
    threshold: float
    singular_values: Array
    value: float
    next_singular_value: float

    @property
    def unique(self) -> bool:
        """Whether the optimal product U Vᵀ of the weights is unique.

        It is not if it has the full rank r and the singular values r and r + 1 are equal.
        """
        width = self.weights.left.shape[1]
        if self.rank < width:
            return True
        smallest = float(self.singular_values[width - 1])
        return self.next_singular_value < smallest * (1.0 - TIE)


def solve(problem: LinearProblem | WideRows, strength: float, width: int) -> ExactSolution:
    """Return weights U and V of the given width that minimise the expected dropout loss.

    For inputs x and outputs y, the loss is E‖y − UVᵀx‖² + λ Σᵢ ‖uᵢ‖² · vᵢᵀC vᵢ, with the columns uᵢ
    and vᵢ of U and V, the strength λ of dropout and the second moment C of the inputs (Mianjy et
    al. 2018, Theorem 3.6).

    Parameters
    ----------
    problem : LinearProblem
        Second moments of the data.
    strength : float
        Strength λ = dropout / (1 − dropout) of dropout, zero or more; zero gives reduced-rank
        least squares.
    width : int
        Number r of hidden units, at least one. It may be smaller or larger than the rank of the
        least-squares map, and is at most 16 384, or the larger dimension of the problem.

    Returns
    -------
    ExactSolution
        The optimal weights, the smallest loss, and the rank of the optimal product U Vᵀ.

    Examples
    --------
    >>> import numpy as np
    >>> solution = solve(LinearProblem.from_matrix(np.diag([3.0, 2.0])), strength=1.0, width=2)
    >>> solution.rank, solution.threshold, solution.value
    (2, 1.25, 6.25)
    """
    strength = check_number(strength, "strength", low=0.0)
    width = check_width(width, "width", max(problem.shape))
    return assemble(whiten(problem), strength, width)


def assemble(
    white: Whitened,
    strength: float,
    width: int,
    triple: Triple | None = None,
    total: float | None = None,
    *,
    shrinks: bool = True,
) -> ExactSolution:
    """Return the optimum from leading singular triples P, s, Qᵀ of the least-squares map.

    Without shrinkage the columns of U are P, orthonormal directions of the outputs by descending
    singular values, and those of V are the least-squares coefficients along them, with uncorrelated
    values vᵢᵀx; columns beyond the rank of the least-squares map are zero.
    """
    P, values, Qt = triple or leading_svd(white.matrix, width + 1, strength)
    xp, (rank, threshold, shrunk) = namespace(values), shrink(values, strength, width)
    signs = column_signs(P[:, :rank])
    left, right = P[:, :rank] * signs, Qt[:rank, :].mT * signs
    if shrinks:
        factors = equalized_factors(left, shrunk[:rank], right, width)
        if total is None and values.shape[0] < min(white.matrix.shape):
            total = float(squared_norm(white.matrix))
        value = optimal_value(values, strength, width, total)
    else:
        # M − PPᵀM is formed, because the difference of squared norms would cancel digits.
        value = float(squared_norm(white.matrix - left @ (left.mT @ white.matrix)))
        factors = tuple(
            xp.concat([part, zeros_like_shape((part.shape[0], width - rank), part)], axis=1)
            for part in (left, right * values[:rank])
        )
    left, right = factors
    return ExactSolution(
        Weights(left, right if white.lift is None else white.lift @ right),
        rank,
        threshold,
        values[:width],
        white.floor + value,
        float(values[width]) if values.shape[0] > width else 0.0,
    )


def solve_tied(matrix: Array, strength: float, width: int) -> ExactSolution:
    """Return the tied weights U that minimise ‖M − UUᵀ‖² + λΣ‖uᵢ‖⁴ for white inputs.

    U has `width` columns uᵢ, and both layers share it. UUᵀ is symmetric and positive semidefinite,
    so only the positive eigenvalues of the symmetric part of M can be approximated; the rest of M
    adds a constant to the loss (Mianjy et al. 2018, Theorem 2.4). White inputs have the identity as
    second moment.

    Parameters
    ----------
    matrix : array of shape (d, d)
        The target M, for white inputs.
    strength : float
        Strength λ = dropout / (1 − dropout) of dropout, zero or more.
    width : int
        Number r of hidden units, at least one.

    Returns
    -------
    ExactSolution
        The optimal weights, the smallest loss, and the rank of the optimal product.

    Examples
    --------
    >>> import numpy as np
    >>> solution = solve_tied(np.diag([3.0, -1.0]), strength=0.0, width=1)
    >>> solution.rank, solution.value
    (1, 1.0)
    """
    strength = check_number(strength, "strength", low=0.0)
    matrix = as_double(check_rows(matrix, accept_sparse=False, name="matrix"))
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"matrix has shape {tuple(matrix.shape)}, expected a square one for tied weights."
        )
    width = check_width(width, "width", matrix.shape[0])
    symmetric = (matrix + matrix.mT) / 2
    eigenvalues, vectors = eigh_descending(symmetric)
    positive = where_set(eigenvalues, eigenvalues < 0, 0.0)
    unreachable = float(squared_norm(matrix)) - float(positive @ positive)
    white = Whitened(symmetric, None, max(unreachable, 0.0))
    return assemble(white, strength, width, (vectors, positive, vectors.mT))


def leading_svd(matrix: Array, width: int, strength: float = 0.0) -> Triple:
    """Return at least the first `width` singular triples P, s, Qᵀ of a matrix, s descending.

    A few triples of a large matrix come from leading eigenvectors of its smaller Gram matrix and
    one projection; by block Krylov iteration, without the Gram matrix, if products with blocks of
    vectors cost less. The full decomposition is used if many are needed, or if the smallest
    singular value that dropout does not remove is too small for the Gram matrix (`FAINTEST`).
    """
    smaller = min(matrix.shape)
    if smaller < SMALLEST_FAST or width * FEW > smaller:
        return svd_thin(matrix)
    if matrix.shape[0] < matrix.shape[1]:
        P, values, Qt = leading_svd(matrix.mT, width, strength)
        return Qt.mT, values, P.mT
    # 1) The leading eigenvectors of AᵀA. The last one of the iteration is less accurate than the
    # others, so it is left out.
    directions, (n, m) = None, matrix.shape
    cost = costs(n, m, width + 1)
    if cost.iterates and smaller > SMALLEST_KRYLOV:
        found = krylov_eigenpairs(
            lambda rows: (rows @ matrix.mT) @ matrix, width + 1, matrix[0, :], passes=cost.passes
        )
        directions = None if found is None else found[1][:, :width]
    if directions is None:
        _, directions = leading_eigenpairs(matrix.mT @ matrix, width)
    # 2) They span the space W of the leading right singular vectors. AW = P diag(s) Qᵀ gives
    # A ≈ P diag(s) (WQ)ᵀ (one Rayleigh–Ritz step), whose singular values were never squared.
    P, values, Qt = svd_thin(matrix @ directions)
    rank = optimal_rank(values, strength, width)
    faint = rank > 0 and float(values[rank - 1]) < FAINTEST * float(values[0])
    return svd_thin(matrix) if faint else (P, values, Qt @ directions.mT)


def solve_autoencoder(rows: RowOperator, strength: float, width: int) -> ExactSolution:
    """Return the optimal autoencoder from the leading principal components of rows.

    With the eigenvalues λ and eigenvectors Q of the second moment, the least-squares map for white
    inputs is M = Qλ^½: one decomposition is enough. The rows are factorised if their second moment
    hides components of small variance that the optimum contains.
    """
    m = rows.n_features
    count = width + 1 if rows.rows is None else min(width + 1, rows.rows.shape[0])
    spectrum = leading(rows, min(count, m))
    if spectrum is None:
        raise ValueError(
            f"{width} hidden units need all principal components of {rows.rows.shape[0]} rows with "
            f"{m} features, which takes too much memory: give a smaller n_components."
        )
    xp = namespace(spectrum.values)
    scales = xp.sqrt(where_set(spectrum.values, spectrum.values < 0, 0.0))
    # Components that dropout removes need not be accurate.
    found = refined(rows, spectrum, shrink(scales, strength, width).rank)
    scales, axes = xp.sqrt(where_set(found.values, found.values < 0, 0.0)), found.vectors
    level = RANGE_FACTOR * m * machine_epsilon(scales)
    if rows.moment is None:
        assert isinstance(rows, DenseRows | CsrRows), "rows in memory"
        # Eigenvalues of the moment are squares, in which a deviation below √ε times the largest is
        # lost. The singular values of the rows on the span of the axes (a Rayleigh–Ritz step) have
        # an error of the order ε times the largest.
        table, mean = rows.products
        codes = table @ axes if scipy.sparse.issparse(table) else as_double(table) @ axes
        _, scales, turn = svd_thin((codes - mean @ axes) * xp.sqrt(rows.shares)[:, None])
        axes = axes @ turn.mT
    else:
        varies = varying(diagonal(rows.moment.covariance), rows.moment.mean)
        axes = axes * like(varies, axes)[:, None]
        level = level**0.5 if found is spectrum else level  # eigenvalues are squares
    level *= largest(scales[:1])
    if not rows.trace > float(xp.sum((CONSTANT * rows.mean) ** 2)):
        level = largest(scales[:1])  # equal rows, up to the rounding errors of their mean
    kept = max(int(xp.sum(xp.astype(scales > level, xp.int64))), 1)
    scales, axes = where_set(scales, scales <= level, 0.0)[:kept], axes[:, :kept]
    matrix, safe = axes * scales, where_set(scales, scales == 0, 1.0)
    white = Whitened(matrix, axes / safe, 0.0)
    return assemble(white, strength, width, (axes, scales, eye_like(kept, scales)), rows.trace)


# Equalizers of the hidden layer.

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


def hidden_width(n_components: Any, default: int, others: str = " or None") -> int:
    """Return the number of hidden units, which is `default` if `n_components` is None."""
    if n_components is None:
        return default
    return check_width(n_components, "n_components", default, others=others)


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
    matrix = check_rows(U, accept_sparse=False, name="U")
    double = as_double(matrix)
    double = double / (largest(double) or 1.0)  # squares of large entries would overflow
    level = EQUALIZERS[check_choice(method, "method", EQUALIZERS)]
    return like(level(to_numpy(double.mT @ double)), matrix)


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
    left = check_rows(U, accept_sparse=False, name="U")
    right = like(check_rows(V, accept_sparse=False, name="V"), left)
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
        # The rotation by θ sets entry i to the mean if c τ² + 2bτ + a = 0 for τ = tan θ, with the
        # excess a of entry i, c of entry j and b = work[i, j]. The root of smaller magnitude is
        # −a/(b ± √(b² − ac)) with the sign of b, which avoids cancellation; it is real because a
        # and c have opposite signs, up to rounding.
        excess, other, coupling = entries[i] - level, entries[j] - level, float(work[i, j])
        root = math.sqrt(max(coupling * coupling - excess * other, 0.0))
        denominator = coupling + math.copysign(root, coupling)
        tangent = -excess / denominator if denominator else 0.0
        cosine = 1.0 / math.hypot(1.0, tangent)
        sine = cosine * tangent
        first, second = turned[i], turned[j]
        turned[i], turned[j] = cosine * first + sine * second, cosine * second - sine * first
        # Row and column i are not used again. Entry (j, j) of `work` becomes stale; the diagonal
        # is tracked in `entries`, where the trace of the plane is preserved.
        row = cosine * work[j] - sine * work[i]
        work[j], work[:, j] = row, row
        entries[j] += entries[i] - level
        low[j] = high[j] = entries[j]
        low[i], high[i] = np.inf, -np.inf
    return turned.T


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
        unit = vectors.sum(axis=1) / math.sqrt(size - done)
        basis, _ = np.linalg.qr(unit[:, None], mode="complete")
        basis[:, 0] = unit  # instead of its negative
        rotation[:, done:] = rotation[:, done:] @ basis
        gram = (basis.T @ gram @ basis)[1:, 1:]
    return rotation


def level_by_hadamard(gram: Matrix) -> Matrix:
    """Return an orthogonal T for which TᵀGT has a constant diagonal, from a Hadamard matrix.

    T = V_G Z for the eigenvectors V_G of G and a Hadamard matrix Z with entries ±1/√r: ZᵀΛZ has the
    diagonal Σλᵢ/r (Mianjy et al. 2018, Remark 5.2, with the factor 1/√r).
    """
    size = gram.shape[0]
    if size & (size - 1):
        raise ValueError(
            f"method='hadamard' was given for weights of {size} columns, expected a power of two. "
            "Use method='givens', which works for any number of columns."
        )
    _, vectors = np.linalg.eigh(gram)
    return np.asarray(vectors @ scipy.linalg.hadamard(size)) / math.sqrt(size)


EQUALIZERS: dict[str, Callable[[Matrix], Matrix]] = {
    "givens": level_diagonal,
    "eigenvectors": level_by_eigenvectors,
    "hadamard": level_by_hadamard,
}


def product_svd(left: Array, right: Array) -> tuple[Array, Array, Array]:
    """Return P, s, Q of left · rightᵀ = P diag(s) Qᵀ, from QR factorisations of both."""
    xp = namespace(left)
    basis_left, triangle_left = xp.linalg.qr(left)
    basis_right, triangle_right = xp.linalg.qr(right)
    P, values, Qt = svd_thin(triangle_left @ triangle_right.mT)
    return basis_left @ P, values, basis_right @ Qt.mT
