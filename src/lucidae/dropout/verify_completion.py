"""Measured values for certificates of completed matrices, from factors and data alone.

The problem, its dual and the duality gap are derived in `lucidae.dropout.completion`. Nothing here
uses the solver: the residual is a sum over the observed entries, the nuclear norm comes from the
singular values of R Uᵀ with V = QR, and the spectral norm of the residual from all eigenvalues of
its Gram matrix, or from a Krylov bound that is wrong with a probability of at most 10⁻⁹.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from lucidae.certificates.bounds import gamma
from lucidae.certificates.rows import LARGEST_FACTOR
from lucidae.dropout.verify import Judged, leading_axes

Matrix = np.ndarray[Any, Any]

DENSE = 2**20
"""Largest number of entries n · m of a residual whose Gram matrix is decomposed at once."""

CHUNK = 2**21
"""Largest number of products of entries of U and V that are formed at once."""

ZERO = 1e-7
"""Singular values of U Vᵀ below this multiple of the largest count as zero."""


class CompletionFigures(NamedTuple):
    """Values measured for the certificate of a completed matrix X = UVᵀ.

    M is the matrix with missing entries, P_Ω sets the missing ones to zero, G = P_Ω(M − X) is the
    residual, μ = λ/r for the strength λ of dropout and r columns of U and V. Losses are divided by
    ‖P_Ω M‖².
    """

    # loss minus the lower bound of the dual problem, for the upper and for the lower bound on the
    # spectral norm ‖G‖₂. The two bounds differ only for large matrices
    gap: float
    smallest_gap: float
    # λΣ‖uₖ‖²‖vₖ‖² divided by its smallest value μ‖X‖*² for the same product, minus 1
    excess_penalty: float
    # norm of the gradient with respect to U and V, relative to the norms of its terms
    stationarity: float
    rank: int  # of X
    # numbers of rows and columns of M without an observed entry (or with weight zero)
    empty_rows: int
    empty_columns: int
    share: float  # share of observed entries
    # largest relative difference between a fitted attribute and its measured value
    attributes: float
    error: float  # bound on the rounding error of the gap
    # numbers by name from which the claims can be checked, such as loss and lower bound
    evidence: dict[str, Any]


def measure_completion(
    X: Any, judged: Judged, shown: Mapping[str, Any], sample_weight: Any = None
) -> CompletionFigures:
    """Return values measured for the certificate of factors of a matrix with missing entries.

    `shown` are the fitted attributes by name.
    """
    # 1) The observed entries of M, of a dense matrix with NaN or of a sparse one, and the factors
    n, m = shape = tuple(X.shape)
    if scipy.sparse.issparse(X):
        triple = X.tocoo()
        rows, columns, values = triple.row, triple.col, np.asarray(triple.data, dtype=float)
    else:
        dense = np.asarray(X, dtype=float)
        rows, columns = np.nonzero(~np.isnan(dense))
        values = dense[rows, columns]
    seen = ~np.isnan(values)
    rows, columns, values = rows[seen], columns[seen], values[seen]
    roots = np.ones(n) if sample_weight is None else np.sqrt(np.asarray(sample_weight, dtype=float))
    values = values * roots[rows]
    # Division by a power of two is exact.
    unit = 2.0 ** math.frexp(float(np.max(np.abs(values), initial=0.0)) or 1.0)[1]
    values = values / unit
    U, V = (part / math.sqrt(unit) for part in (judged.left, judged.right))
    U = U * roots[:, None]
    # 2) The residual, the loss and the nuclear norm
    width, strength, coarse = judged.width, judged.strength, 64 * judged.precision
    penalty, step, residual = strength / width, max(1, CHUNK // max(width, 1)), values.copy()
    for start in range(0, len(values), step):
        part = slice(start, start + step)
        residual[part] -= np.sum(U[rows[part]] * V[columns[part]], axis=1)
    outgoing, incoming = np.sum(U * U, axis=0), np.sum(V * V, axis=0)
    lengths, energy = float(outgoing @ incoming), float(values @ values) or 1.0
    value = float(residual @ residual) + strength * lengths
    sizes = np.linalg.svd(np.linalg.qr(V)[1] @ U.T, compute_uv=False)
    norm, top = float(np.sum(sizes)), float(sizes.max(initial=0.0))
    limit = max(ZERO, coarse) * top
    rank, level = int(np.count_nonzero(sizes > limit)), penalty * norm
    # 3) The lower bound max over t of 2t⟨G, M⟩ − t²(‖G‖² + ‖G‖₂²/μ) on the loss
    G = scipy.sparse.csr_array((residual, (rows, columns)), shape=shape)
    along, square = max(float(residual @ values), 0.0), float(residual @ residual)
    smallest, gap = (
        (value - (along**2 / (square + size**2 / penalty) if along else 0.0)) / energy
        for size in _spectral_norm(G, U, V, rank)
    )
    # 4) The gradient, up to a factor GV − λU diag‖vₖ‖² and GᵀU − λV diag‖uₖ‖²
    pulls, pushes = (G @ V, G.T @ U), (strength * U * incoming, strength * V * outgoing)
    scale = sum(float(np.linalg.norm(part)) for part in (*pulls, *pushes)) or 1.0
    slope = math.hypot(*(float(np.linalg.norm(a - b)) for a, b in zip(pulls, pushes, strict=True)))
    # 5) The fitted attributes; a singular value close to the limit may count as zero or not.
    given, count = np.asarray(shown["singular_values_"], dtype=float), int(shown["rank_"])
    least, most = (np.count_nonzero(sizes > factor * limit) for factor in (10, 0.1))
    difference = math.inf
    if given.shape == (count,) and least <= count <= most:
        found, truth = np.transpose(
            [
                (float(shown["objective_"]), value * unit**2),
                (float(shown["threshold_"]), level * unit),
                *zip(given, (sizes[:count] + level) * unit, strict=True),
                *((float(shown[name]), wanted) for name, wanted in judged.settings.items()),
            ]
        )
        differences = np.abs(found - truth) / np.where(truth == 0, 1.0, np.abs(truth))
        worst = float(np.max(differences))  # NaN if one of them is NaN
        difference = math.inf if math.isnan(worst) else max(worst - coarse / 2, 0.0)
    used = roots[rows] > 0
    share = len(rows) / (n * m)
    return CompletionFigures(
        gap,
        smallest,
        lengths * width / norm**2 - 1.0 if norm > 0 else 0.0,
        slope / scale,
        rank,
        int(n - np.unique(rows[used]).size),
        int(m - np.unique(columns[used]).size),
        share,
        difference,
        8 * gamma(len(rows)) * (value + energy) / energy,
        {
            "relative_loss": value / energy,
            "relative_lower_bound": value / energy - gap,
            "rank": rank,
            "observed_share": share,
        },
    )


def _spectral_norm(matrix: Any, U: Matrix, V: Matrix, rank: int) -> tuple[float, float]:
    """Return a lower and an upper bound on the spectral norm of the residual G.

    Those of a large matrix come from its leading axes. If they do not decide, or the matrix is
    small, all eigenvalues of the Gram matrix of the fewer rows or columns are computed.
    """
    tall, factor = (matrix, V) if matrix.shape[0] > matrix.shape[1] else (matrix.T, U)
    total = float((matrix.data**2).sum())
    if math.prod(matrix.shape) > DENSE:
        axes, upper = leading_axes(
            lambda rows: (tall.T @ (tall @ rows.T)).T, total, [factor.T], max(rank, 1)
        )
        found, bound = float(np.linalg.norm(tall @ axes.T, 2)), float(upper[0])
        if bound <= found * (1.0 + ZERO) or tall.shape[1] > LARGEST_FACTOR:
            return found, max(bound, found)
    square = max(float(np.linalg.eigvalsh((tall.T @ tall).toarray())[-1]), 0.0)
    return math.sqrt(square), math.sqrt(square + gamma(sum(matrix.shape)) * total)
