"""Certificate of a completed matrix: values measured from factors and data alone, and claims.

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

from lucidae.certificates.claims import Certificate, Claim, at_most, reported, undecided
from lucidae.certificates.complement import digest_of
from lucidae.dropout.figures import ATTRIBUTES, EPSILON, ReportedAttributes
from lucidae.dropout.projection import Gram, complement_bound

__all__ = [
    "CompletionFigures",
    "completion_certificate",
    "completion_claims",
    "measure_completion",
]

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
    spectral: float  # ‖G‖₂/(μ‖X‖*) − 1, for the upper and for the lower bound on ‖G‖₂
    smallest_spectral: float
    complementarity: float  # |⟨G, X⟩ − μ‖X‖*²|
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
    reported: ReportedAttributes,
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
    limit = max(ZERO, 64 * reported.precision) * float(sizes.max(initial=0.0))
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
    inner = float(residual @ (data.values - residual))
    return CompletionFigures(
        value / energy,
        gaps[0] / energy,
        gaps[1] / energy,
        _excess(high, level),
        _excess(low, level),
        abs(inner - penalty * norm * norm) / energy,
        float(np.sum(lengths)) * width / norm**2 - 1.0 if norm > 0 else 0.0,
        _stationarity(matrix, U, V, strength),
        rank,
        width,
        int(data.shape[0] - np.unique(data.rows[_weighty(data, roots)]).size),
        int(data.shape[1] - np.unique(data.columns[_weighty(data, roots)]).size),
        data.rows.size / (data.shape[0] * data.shape[1]),
        _difference(reported, value * data.unit**2, rank, level * data.unit, sizes * data.unit),
        4 * EPSILON * data.rows.size * (value + energy) / energy,
        reported.precision,
    )


def _excess(spectral: float, level: float) -> float:
    """Return ‖G‖₂ divided by its bound `level`, minus 1."""
    if level > 0.0:
        return spectral / level - 1.0
    return math.inf if spectral > 0.0 else 0.0


def _weighty(data: _Observed, roots: Matrix | None) -> Matrix:
    """Return which observed entries belong to rows of positive weight, as a mask."""
    return np.ones(data.rows.size, dtype=bool) if roots is None else roots[data.rows] > 0


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
        return norm, norm * (1 + 4 * (n + m) * EPSILON)
    columns, small = (V, m) if m <= n else (U, n)
    tall = matrix if m <= n else matrix.T.tocsr()
    vectors = np.linalg.svd(columns, full_matrices=False)[0][:, :rank]
    gram = Gram(
        small,
        max(n, m),
        lambda block: tall.T @ (tall @ block),
        lambda: (tall.T @ tall).toarray(),
        float(matrix.data @ matrix.data),
        digest_of(matrix),
    )
    outside, space = complement_bound(gram, vectors, (level * (1 + ZERO)) ** 2)
    images = gram.apply(vectors)
    inner = vectors.T @ images
    inside = float(np.linalg.norm(inner, 2))
    across = float(np.linalg.norm(images - vectors @ inner, 2)) + gram.rounding
    found = max(inside, space.found)
    bound = float(np.linalg.norm(np.array([[inside, across], [across, max(outside, 0.0)]]), 2))
    return math.sqrt(max(found, 0.0)), math.sqrt(max(bound, found, 0.0))


def _difference(
    reported: ReportedAttributes, value: float, rank: int, level: float, sizes: Matrix
) -> float:
    """Return the largest relative difference between fitted attributes and measured values."""
    given = np.asarray(reported.singular_values, dtype=float)
    count = int(reported.rank)
    # A singular value close to the limit may count as zero or not.
    limit = max(ZERO, 64 * reported.precision) * float(sizes.max(initial=0.0))
    doubtful = (sizes > 0.1 * limit) & (sizes < 10 * limit)
    lowest, highest = rank - int(doubtful[:rank].sum()), rank + int(doubtful[rank:].sum())
    if given.shape != (count,) or not lowest <= count <= highest:
        return math.inf
    expected = sizes[:count] + level
    with np.errstate(invalid="ignore"):
        pairs = [
            (float(reported.objective), value),
            (float(reported.threshold), level),
            *zip(given.tolist(), expected.tolist(), strict=True),
            *reported.settings,
        ]
        differences = [
            abs(found - truth) / abs(truth) if truth else abs(found) for found, truth in pairs
        ]
    worst = float(np.max(differences))  # NaN if one of them is NaN
    return math.inf if math.isnan(worst) else max(worst - 32 * reported.precision, 0.0)


def completion_claims(figures: CompletionFigures, tolerance: float) -> tuple[Claim, ...]:
    """Return the claims about a completed matrix.

    The tolerance is increased for factors of type float32, whose rounding changes the residual.
    """
    tolerance = max(tolerance, 64 * figures.precision)
    rows, columns = figures.empty_rows, figures.empty_columns
    note = (
        f"{rows} rows and {columns} columns have no observed entry: the completed matrix is zero "
        "there."
        if rows or columns
        else ""
    )
    return (
        _gap(figures, tolerance),
        _spectral(figures, tolerance),
        at_most(
            "complementarity",
            "the inner product of residual and U Vᵀ is λ/r times the squared nuclear norm of U Vᵀ "
            "(λ = dropout / (1 − dropout), r columns)",
            _DUALITY,
            figures.complementarity,
            math.sqrt(tolerance),
            _AGAIN,
            error=figures.error,
        ),
        at_most(
            "equalized",
            "of all factors with the same product U Vᵀ, these have the smallest penalty "
            "Σ‖uᵢ‖²‖vᵢ‖²",
            "Srebro, Rennie & Jaakkola 2004, and the Cauchy–Schwarz inequality",
            figures.excess_penalty,
            math.sqrt(tolerance),
            "lucidae.equalize_pair makes the norms equal without changing the product U Vᵀ.",
            error=figures.error,
        ),
        at_most(
            "stationarity",
            "the gradient of the loss on the observed entries is zero",
            "derivatives of the loss with respect to U and V",
            figures.stationarity,
            math.sqrt(tolerance),
            _AGAIN,
            error=figures.error,
        ),
        _rank(figures),
        reported(
            "observed_share",
            "share of the entries of the matrix that are observed",
            "number of observed entries divided by the number of all entries",
            figures.share,
            note,
        ),
        at_most(
            "attributes",
            "the fitted attributes agree with the factors and the data",
            "definition of the attributes",
            figures.attributes,
            max(ATTRIBUTES, 64 * figures.precision),
            "The fitted attributes belong to other factors or data, or were assigned after the "
            "fit. Call fit again.",
        ),
    )


_DUALITY = "Rockafellar 1970, Theorem 31.1 (Fenchel duality)"

_AGAIN = "The iteration has not converged, or the factors belong to other data. Call fit again."


def _limited(figures: CompletionFigures, tolerance: float) -> bool:
    """Tell whether the factors are stationary and use all columns, so that more may be needed.

    The lower bound on the loss holds for matrices of any rank, so that factors with a limited
    number of columns may be optimal without attaining it. If a column were zero, the loss could be
    decreased by this column, unless the bound is attained.
    """
    return figures.rank >= figures.width and figures.stationarity <= math.sqrt(tolerance)


def _gap(figures: CompletionFigures, tolerance: float) -> Claim:
    """Return the claim that loss minus a lower bound of its minimum is at most the tolerance."""
    statement = "the loss exceeds its smallest value over all matrices by at most the tolerance"
    if figures.gap > tolerance >= figures.smallest_gap:
        why = (
            "The bound on the spectral norm of the residual is not tight enough. The loss exceeds "
            f"the minimum by at most {figures.gap:.2g} times ‖P_Ω M‖², the sum of squares of the "
            "observed entries."
        )
        return undecided("gap", statement, _DUALITY, why, figures.gap, tolerance)
    if figures.gap > tolerance and _limited(figures, tolerance):
        why = (
            f"The factors use all of their {figures.width} columns and are a stationary point, but "
            "the lower bound, which is that of matrices of any rank, is not attained: its minimum "
            "has a larger rank, or there are better factors (with a limited rank the problem is "
            f"not convex). At most {figures.gap:.2g} times ‖P_Ω M‖², the sum of squares of the "
            "observed entries, could be gained. Increase n_components or dropout."
        )
        return undecided("gap", statement, _DUALITY, why, figures.gap, tolerance)
    return at_most("gap", statement, _DUALITY, figures.gap, tolerance, _AGAIN, error=figures.error)


def _spectral(figures: CompletionFigures, tolerance: float) -> Claim:
    """Return the claim that the spectral norm of the residual is at most (λ/r)‖X‖*."""
    statement = (
        "the residual's largest singular value is at most λ/r times the nuclear norm of U Vᵀ "
        "(λ = dropout / (1 − dropout), r columns)"
    )
    level = math.sqrt(tolerance)
    value = figures.spectral
    if value > level and _limited(figures, tolerance):
        why = (
            "All columns of the factors are used. The best factors with this number of columns "
            "need not meet this condition; it is meant for matrices of any rank."
        )
        return undecided("spectral_norm", statement, _DUALITY, why, value, level)
    if value > level >= figures.smallest_spectral:
        why = "Only a bound on the spectral norm of the residual is known, and it is too large."
        return undecided("spectral_norm", statement, _DUALITY, why, value, level)
    if not math.isfinite(value):
        value = math.inf
    return at_most("spectral_norm", statement, _DUALITY, value, level, _AGAIN)


def _rank(figures: CompletionFigures) -> Claim:
    """Return a claim that reports the rank of the completed matrix."""
    note = (
        f"All {figures.width} columns of the factors are used; matrices of a larger rank are "
        "excluded."
        if figures.rank >= figures.width
        else ""
    )
    statement = f"rank of the completed matrix, which is at most {figures.width}"
    return reported("rank", statement, "singular values of U Vᵀ", float(figures.rank), note)


def completion_certificate(title: str, figures: CompletionFigures, tolerance: float) -> Certificate:
    """Return the certificate of a completed matrix, with the claims about its measured values."""
    return Certificate(title, completion_claims(figures, tolerance), figures.evidence)
