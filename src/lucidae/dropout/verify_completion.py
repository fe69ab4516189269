"""Measured values for certificates of completed matrices, from factors and data alone.

The problem, its dual and the duality gap are derived in `lucidae.dropout.completion`. Nothing here
uses the solver: the residual is a sum over the observed entries, the nuclear norm comes from the
singular values of R Uᵀ with V = QR, and the spectral norm of the residual from a full decomposition
(small matrices) or from a Krylov bound that is wrong with a probability of at most 10⁻⁹.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from lucidae.certificates.bounds import gamma
from lucidae.certificates.rows import RowMatrix, complement_bound
from lucidae.dropout.verify import FittedArrays

Matrix = np.ndarray[Any, Any]

DENSE = 2**20
"""Largest number of entries n · m of a residual whose spectral norm is computed by LAPACK."""

CHUNK = 2**21
"""Largest number of products of entries of U and V that are formed at once."""

ZERO = 1e-7
"""Singular values of U Vᵀ below this multiple of the largest count as zero."""


@dataclass(frozen=True, slots=True)
class CompletionFigures:
    """Values measured for the certificate of a completed matrix X = UVᵀ.

    M is the matrix with missing entries, P_Ω sets the missing ones to zero, G = P_Ω(M − X) is the
    residual, μ = λ/r for the strength λ of dropout and r columns of U and V. Losses are divided by
    ‖P_Ω M‖².
    """

    value: float  # the loss ‖G‖² + λΣ‖uₖ‖²‖vₖ‖²
    # loss minus the lower bound of the dual problem, for the upper and for the lower bound on the
    # spectral norm ‖G‖₂. The two bounds differ only for large matrices
    gap: float
    smallest_gap: float
    # λΣ‖uₖ‖²‖vₖ‖² divided by its smallest value μ‖X‖*² for the same product, minus 1
    excess_penalty: float
    # norm of the gradient with respect to U and V, relative to the norms of its terms
    stationarity: float
    rank: int  # rank of X, and the number r of columns
    width: int
    # numbers of rows and columns of M without an observed entry (or with weight zero)
    empty_rows: int
    empty_columns: int
    share: float  # share of observed entries
    # largest relative difference between a fitted attribute and its measured value
    attributes: float
    # bound on the rounding error of the gap, and rounding unit of the dtype of the factors
    error: float
    precision: float

    @property
    def evidence(self) -> dict[str, Any]:
        """Numbers by name from which the claims can be checked, such as loss and lower bound."""
        return {
            "relative_loss": self.value,
            "relative_lower_bound": self.value - self.gap,
            "rank": self.rank,
            "observed_share": self.share,
        }


class _Observed(NamedTuple):
    """Rows, columns and values of the observed entries, divided by their largest magnitude."""

    rows: Matrix
    columns: Matrix
    values: Matrix
    shape: tuple[int, int]
    unit: float


def _observed(X: Any, roots: Matrix | None) -> _Observed:
    """Return the observed entries of a dense matrix with NaN, or of a sparse matrix."""
    if scipy.sparse.issparse(X):
        triple = X.tocoo()
        rows, columns, values = triple.row, triple.col, np.asarray(triple.data, dtype=float)
        seen = values == values
        rows, columns, values = rows[seen], columns[seen], values[seen]
    else:
        dense = np.asarray(X, dtype=float)
        rows, columns = np.where(dense == dense)  # NaN differs from itself
        values = dense[rows, columns]
    if roots is not None:
        values = values * roots[rows]
    unit = float(np.max(np.abs(values), initial=0.0)) or 1.0
    unit = 2.0 ** math.frexp(unit)[1]
    return _Observed(rows, columns, values / unit, (int(X.shape[0]), int(X.shape[1])), unit)


def measure_completion(
    X: Any,
    left: Any,
    right: Any,
    strength: float,
    *,
    sample_weight: Any = None,
    fitted: FittedArrays,
) -> CompletionFigures:
    """Return values measured for the certificate of factors of a matrix with missing entries."""
    roots = None if sample_weight is None else np.sqrt(np.asarray(sample_weight, dtype=float))
    data = _observed(X, roots)
    U, V = (np.asarray(part, dtype=float) / math.sqrt(data.unit) for part in (left, right))
    U = U if roots is None else U * roots[:, None]
    width = U.shape[1]
    penalty = strength / width
    residual = data.values - _product_at(data, U, V)
    _, triangle = np.linalg.qr(V)
    sizes = np.linalg.svd(triangle @ U.T, compute_uv=False)
    limit = max(ZERO, 64 * fitted.precision) * float(sizes.max(initial=0.0))
    rank = int(np.count_nonzero(sizes > limit))
    norm = float(np.sum(sizes))
    energy = float(data.values @ data.values) or 1.0
    lengths = np.sum(U * U, axis=0) * np.sum(V * V, axis=0)
    value = float(residual @ residual) + strength * float(np.sum(lengths))
    matrix = scipy.sparse.csr_array((residual, (data.rows, data.columns)), shape=data.shape)
    level = penalty * norm
    low, high = _spectral_norm(matrix, U, V, rank, level)
    along = float(residual @ data.values)
    gaps = [value - _dual_value(along, residual, size, penalty) for size in (high, low)]
    weighty = slice(None) if roots is None else roots[data.rows] > 0
    return CompletionFigures(
        value / energy,
        gaps[0] / energy,
        gaps[1] / energy,
        float(np.sum(lengths)) * width / norm**2 - 1.0 if norm > 0 else 0.0,
        _stationarity(matrix, U, V, strength),
        rank,
        width,
        int(data.shape[0] - np.unique(data.rows[weighty]).size),
        int(data.shape[1] - np.unique(data.columns[weighty]).size),
        data.rows.size / (data.shape[0] * data.shape[1]),
        _difference(fitted, value * data.unit**2, level * data.unit, sizes * data.unit),
        8 * gamma(data.rows.size) * (value + energy) / energy,
        fitted.precision,
    )


def _product_at(data: _Observed, U: Matrix, V: Matrix) -> Matrix:
    """Return the observed entries of UVᵀ, summed column by column of U and V."""
    total = np.zeros(data.rows.size)
    step = max(1, CHUNK // max(U.shape[1], 1))
    for start in range(0, data.rows.size, step):
        part = slice(start, start + step)
        total[part] = np.sum(U[data.rows[part]] * V[data.columns[part]], axis=1)
    return total


def _dual_value(along: float, residual: Matrix, spectral: float, penalty: float) -> float:
    """Return the lower bound max over t of 2t⟨G, M⟩ − t²(‖G‖² + ‖G‖₂²/μ) on the loss."""
    if along <= 0.0:
        return 0.0
    return along**2 / (float(residual @ residual) + spectral**2 / penalty)


def _stationarity(matrix: Any, U: Matrix, V: Matrix, strength: float) -> float:
    """Return the norm of the gradient of the loss, relative to the norms of its terms.

    Up to a factor it consists of GV − λU diag‖vₖ‖² and GᵀU − λV diag‖uₖ‖².
    """
    pulls = [matrix @ V, matrix.T @ U]
    pushes = [strength * U * np.sum(V * V, axis=0), strength * V * np.sum(U * U, axis=0)]
    size = sum(float(np.linalg.norm(part)) for part in (*pulls, *pushes))
    left = math.hypot(*(float(np.linalg.norm(a - b)) for a, b in zip(pulls, pushes, strict=True)))
    return left / size if size > 0 else 0.0


def _spectral_norm(
    matrix: Any, U: Matrix, V: Matrix, rank: int, level: float
) -> tuple[float, float]:
    """Return a lower and an upper bound on the spectral norm of the residual G.

    For large matrices they come from the Gram matrix K of the fewer rows or columns of G. Let S be
    an orthonormal basis of the corresponding factor, which at the optimum contains the singular
    vectors of the largest singular values. If the eigenvalues of K outside of its span are at most
    β, the norm of K is at most that of the 2 × 2 matrix of ‖SᵀKS‖, ‖(I − SSᵀ)KS‖ (twice) and β.
    """
    n, m = matrix.shape
    if n * m <= DENSE:
        norm = float(np.linalg.norm(matrix.toarray(), 2))
        return norm, norm * (1 + gamma(n + m))
    vectors = np.linalg.svd(V if n > m else U, full_matrices=False)[0][:, :rank]
    gram = RowMatrix(matrix)
    level = (level * (1 + ZERO)) ** 2
    outside, space = complement_bound(gram, vectors, level)
    images = gram.apply(vectors)
    inner = vectors.T @ images
    inside = float(np.linalg.norm(inner, 2))
    across = float(np.linalg.norm(images - vectors @ inner, 2)) + gram.rounding
    found = max(inside, space.found)
    bound = float(np.linalg.norm(np.array([[inside, across], [across, max(outside, 0.0)]]), 2))
    return math.sqrt(max(found, 0.0)), math.sqrt(max(bound, found, 0.0))


def _difference(fitted: FittedArrays, value: float, level: float, sizes: Matrix) -> float:
    """Return the largest relative difference between fitted attributes and measured values."""
    given = np.asarray(fitted.singular_values, dtype=float)
    count = int(fitted.rank)
    # A singular value close to the limit may count as zero or not.
    limit = max(ZERO, 64 * fitted.precision) * float(sizes.max(initial=0.0))
    least, most = (np.count_nonzero(sizes > factor * limit) for factor in (10, 0.1))
    if given.shape != (count,) or not least <= count <= most:
        return math.inf
    expected = sizes[:count] + level
    with np.errstate(invalid="ignore"):
        pairs = [
            (float(fitted.objective), value),
            (float(fitted.threshold), level),
            *zip(given.tolist(), expected.tolist(), strict=True),
            *fitted.settings,
        ]
        differences = [
            abs(found - truth) / abs(truth) if truth else abs(found) for found, truth in pairs
        ]
    worst = float(np.max(differences))  # NaN if one of them is NaN
    return math.inf if math.isnan(worst) else max(worst - 32 * fitted.precision, 0.0)
