"""The verifier of the sparse family: measured values, from fitted numbers and given rows alone.

All fits are one model, Σ = γR + Σ_b Φ_bΓ_bΦ_bᴴ for blocks b of columns of a dictionary Φ. A column
is a 1 × 1 block Γ = w, a group has Γ = wI or a covariance of its own, and several problems share
their blocks. The gradient of the energy per response, log|Σ| + tr(Σ⁻¹XXᴴ)/n, is one matrix,

    M = Σ⁻¹ − Σ⁻¹(XXᴴ/n)Σ⁻¹,

and every condition of optimality follows from it: Φ_bᴴMΦ_b = S_b − Q_b of block b (for a single
column the numbers z and Q), tr(RM) of γ, and diag M of noise variances of rows.

The module reads the rows itself (centring, weights, whitening, units) and shares no code with the
solvers. Σ is never formed: with AAᴴ = Γ and the singular value decomposition ΦA = V diag(s) Pᴴ,

    Σ⁻¹ = V diag(1/(s² + γ)) Vᴴ + (I − VVᴴ)/γ,

which is accurate to ε√cond(Σ), while solvers that form Σ are accurate to ε cond(Σ). Responses with
a covariance B = T diag(λ) Tᴴ are independent after a rotation, x_t with the covariances λ_tΓ, so
that they only replace s² by λ_t s².
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from scipy.linalg import solve_triangular
from scipy.special import chdtrc

from lucidae.certificates.bounds import Ball, epsilon, gamma

FINEST = 1e-6
"""Smallest distance to stationarity that a certificate requires, even if `tol` is smaller."""

LOOSEST = 1e-2
"""Largest distance that counts as stationary, even if `tol` is larger."""

GIVEN = 1e-9
"""Largest relative difference of γ, or of B, from what was given; units cause about 1e-15."""

ENERGY = 1e-8
"""Largest relative difference of a reported energy, and decrease that is taken for rounding."""

ACTIVE = 1e-6
"""A latent is active if its posterior variance is below 1 by more than this; rows likewise."""

COLLAPSE = 1e-3
"""Relative excess (Q − z)/z from which a collapsed latent should be active: it gains 5e-7."""

SMALLEST_NOISE, SMALLEST_LEARNED, SMALLEST_ROW, FALLBACK = 1e-14, 1e-10, 1e-6, 0.1
"""Relative to the mean square response: the smallest γ that is allowed, that is learned, that is
learned for a row, and the γ of a single row, as the estimator documents them."""

HELD_OUT = ("auto", "cv", "cv_1se")
"""Rules by which γ follows from held-out rows, which the verifier does not predict again."""

REACHED = 56
"""Rounding errors of solvers that form Σ in float64, relative to cond(Σ)."""

STORED = 8.0
"""Error allowed because relevances are rounded when they are stored, divided by ε(1 + √a).

A relative change δ ≤ ε/2 of a relevances changes the measured values by at most (3 + 2√a)δ."""

DEPENDENT = 1e-10
"""Singular value of a group's unit columns, relative to the largest, that counts as zero."""

CONSTANT = 8
"""A column that varies by fewer rounding errors, relative to its largest entry, is constant."""

TIED, IN_USE, NEARLY = 1e-12, 0.01, 1e-4
"""Columns are tied if the squared sine of their angle is below the first number. Compared are those
whose latents have a variance of at most 1 − 0.01, with columns of equal z/‖φ‖² up to 1e-4."""

INFLUENCE = 0.5
"""Share of all responses, or of all columns, above which one row is named.

It is at most 0.38 in the data sets of scikit-learn; one row times 500 has it among 250 000."""

COEFFICIENT = 0.95
"""Share of the squares of a column in use above which the row that it rests on is named."""

BLOCK_ENTRIES = 2_000_000
"""Largest number of entries of a sparse dictionary that are dense at a time."""

CORRELATION_STEP, LARGEST_CORRELATION = 0.01, 0.999
"""Change of artanh ρ to the correlations of responses that are compared, and the largest |ρ|."""

BOUNDARY = {
    2: (0.1464, 0.3536, 0.3536, 0.1464),
    3: (0.0249, 0.1048, 0.2251, 0.2904, 0.2251, 0.1048, 0.0249),
    4: (0.0024, 0.0150, 0.0525, 0.1240, 0.1951, 0.2221, 0.1951, 0.1240, 0.0525, 0.0150, 0.0024),
}
"""For covariances of 2, 3 and 4 real columns, weights of χ² with 0, 1, … degrees of freedom."""


class Sample(NamedTuple):
    """Rows of data as they were given: d rows, κ columns and n responses."""

    dictionary: Any  # (d, κ), dense or a SciPy sparse matrix
    responses: Any  # (d, n)
    weights: Any = None  # (d,): frequencies of the rows
    intercept: bool = False
    noise_cov: Any = None  # (d, d) or its diagonal (d,): the covariance R of the noise, without γ


class Fit(NamedTuple):
    """Fitted numbers to be verified; a sequence has one entry for each problem."""

    coef: Sequence[Any]  # (κ, n) each
    relevance: Any = None  # (κ,); by default those that the coefficients imply
    noise: Sequence[float] | None = None  # γ of each problem
    energy: float | None = None
    # how γ was found: one of `HELD_OUT`, "given", "learn", "learn_diagonal", "fallback" or unknown
    rule: str = ""
    given_noise: Any = None  # γ of each problem that was asked for, or estimated on held-out rows
    predicted: Any = None  # (d, n): predicted means of the rows
    variances: Any = None  # (d,): posterior variances of these means
    support: Any = None
    covariances: Any = None  # (groups, m, m): Γ_b, and roots A of it, which keep more digits
    roots: Any = None
    responses: Any = None  # (n, n): covariance B of the responses, and the one that was given
    given_responses: Any = None
    row_variances: Any = None  # (d,): noise variance of each row
    # machine epsilon of the precision in which the numbers are stored
    rounding: float = epsilon(float)
    path: dict[str, Any] | None = None  # strongest columns at neighbouring γ, as the fit found them


class EnergyKind(NamedTuple):
    """The energy that a fit should minimise, its tolerance and its level of significance."""

    posterior: str = "full"
    # penalty of the point estimate: name and constants, or an object with value and supergradient
    penalty: Any = None
    labels: Any = None  # (κ,): the group of each column, or the number of columns in each group
    full_groups: bool = False  # whether each group has a covariance matrix of its own
    tolerance: float = FINEST
    significance: float = 0.05
    violation: float | None = None  # reported by an energy that the verifier does not know


class Distance(NamedTuple):
    """A distance from what a claim says, and the largest one at which the claim holds.

    It is undecided if it fails by no more than `reach`, the accuracy of solvers in float64: the
    verifier is accurate to ε√cond(Σ), so that what holds does hold, but solvers that form Σ are
    accurate to ε cond(Σ), and a distance within that may be as small as they can make it.
    """

    ball: Ball
    limit: float = 0.0
    reach: float = 0.0


@dataclass
class Figures:
    """The measured values of one fit."""

    n_columns: int
    n_active: int
    used: Any  # the columns with coefficients other than zero
    row_norms: Any  # of these columns: the norm of the row of U times that of the column
    relative_error: float  # ‖X − ΦU‖/‖X‖
    rows: Sequence[PreparedRows]  # for claims of uniqueness
    kind: EnergyKind
    distances: dict[str, Distance] = field(default_factory=dict)  # by the name of the claim
    noise_rule: str = ""  # how γ was found, "floor" if learning ended at its smallest value
    response_rule: str = ""  # how the covariance of the responses was found, if there is one
    tied: tuple[Any, ...] = ()  # sets of columns of which each can replace the others
    full_gains: int = 0  # collapsed latents that would lower the energy of the full posterior
    noise_rank: tuple[int, int, float] | None = None  # rank and size of R, power outside its range
    path: dict[str, Any] | None = None
    correlation: float | None = None  # smallest one of the strongest column and its successors
    leverage: tuple[Any, Any, float] | None = None  # rows, their shares, and the largest share
    evidence: dict[str, Any] = field(default_factory=dict)


# 1. Rows -------------------------------------------------------------------------------------


class PreparedRows(NamedTuple):
    """Rows of one problem: centred and whitened by their noise."""

    sample: Sample  # as they were given, with weights
    dictionary: Any  # (r, κ)
    responses: Any  # (r, n)
    shares: Any  # (d,): weight of each given row in the means; None without an intercept
    whitener: Any  # (d,) or (r, d)
    axis: Any  # (r,): unit vector of the whitened intercept
    total: float  # number of rows, with their weights, and of independent rows
    dimension: float
    distinct: int
    complex_: bool
    volume: float  # log|R| on its range
    outside: float  # share of the responses' power outside this range
    powers: Any  # (κ,): squared norms of the columns


def squares(values: Any) -> Any:
    """Return the squares of the absolute values of real or complex numbers."""
    return values.real**2 + values.imag**2 if np.iscomplexobj(values) else values**2


def power(values: Any) -> float:
    """Return the sum of squares of all numbers."""
    return float(np.vdot(values, values).real)


def adjoint(matrices: Any) -> Any:
    """Return the conjugate transposes of matrices."""
    return np.swapaxes(matrices.conj(), -1, -2)


def upper(matrix: Any) -> Any:
    """Return the triangular factor of the QR decomposition of a matrix."""
    return np.linalg.qr(matrix, mode="r")


def compressed(matrix: Any) -> Any:
    """Return a matrix with the products MMᴴ of a given one, and no more columns than rows."""
    few = matrix.shape[1] <= len(matrix)
    return matrix if few else upper(matrix.conj().T).conj().T


def centred(values: Any, shares: Any) -> Any:
    """Return values minus their means with the given shares of the rows, if there are any.

    Columns that vary by rounding errors only become exactly zero.
    """
    if shares is None:
        return values
    # The difference of two doubles is rounded relative to itself, so no digits are lost however
    # far the rows are from zero; the second mean removes the rounding errors of the first.
    moved = values - values[0]
    moved = moved - shares @ moved
    moved = moved - shares @ moved
    constant = np.abs(moved).max(axis=0) <= gamma(CONSTANT) * np.abs(values).max(axis=0)
    return np.where(constant, 0.0, moved)


def noise_whitener(noise_cov: Any, rounding: float) -> tuple[Any, float, Any]:
    """Return T with TRTᴴ = I on the range of a matrix R, log|R| there, and a basis of the range.

    Eigenvalues of the correlation matrix that rounding alone produces are left out.
    """
    variances = np.diagonal(noise_cov).real
    scales = np.sqrt(np.where(variances > 0, variances, 1.0))
    correlation = noise_cov / scales / scales[:, None]
    values, vectors = np.linalg.eigh((correlation + correlation.conj().T) / 2.0)
    seen = values > max(rounding * values[-1], -10.0 * values[0])
    if seen.all():  # rows in other units than others lose no digits
        volume = float(np.log(values).sum() + 2.0 * np.log(scales).sum())
        return (vectors / np.sqrt(values)).conj().T / scales, volume, np.eye(len(scales))
    # R = HHᴴ, and on the range of H = BU the inverse of H is U⁻¹Bᴴ.
    basis, R = np.linalg.qr(scales[:, None] * vectors[:, seen] * np.sqrt(values[seen]))
    volume = 2.0 * float(np.log(np.abs(np.diagonal(R))).sum())
    return solve_triangular(R, basis.conj().T), volume, basis


def prepared(sample: Sample) -> PreparedRows:
    """Return the rows of positive weight, centred and whitened; frequencies are part of the noise.

    A row that is given m times is one row with noise variance R_ii/m.
    """
    Phi, X, R = sample.dictionary, sample.responses, sample.noise_cov
    R = np.ones(len(X)) if R is None else R
    weights = np.ones(len(X)) if sample.weights is None else sample.weights
    sample = sample._replace(weights=weights)
    diagonal, least = R.ndim == 1, 1e-7
    basis: Any = None
    # 1) the whitener T, with TRTᴴ = I on the range of R, and T1, the whitened intercept
    if diagonal:
        seen = R > 0
        whitener = np.sqrt(np.where(seen, weights / np.where(seen, R, 1.0), 0.0))
        volume, total = float(weights[seen] @ np.log(R[seen])), float(weights[seen].sum())
        kept, ones, sizes = np.flatnonzero(whitener), whitener, whitener
    else:
        limit = 10.0 * len(R) * apparent_rounding(R)
        whitener, volume, basis = noise_whitener(R, limit)
        total, least, kept = float(len(whitener)), max(least, limit), np.arange(len(whitener))
        ones, sizes = whitener.sum(axis=1), np.linalg.norm(whitener, axis=1)
    # 2) the means of generalised least squares, unless R has no variance in their direction
    dimension, shares, axis = total, None, None
    if sample.intercept:
        shares = weights / weights.sum()
        if np.linalg.norm(ones) > least * sizes.max() * ones.size**0.5:
            dimension, axis = dimension - 1.0, (ones / np.linalg.norm(ones))[kept]
            volume += float(np.log(power(ones)) - np.log(weights.sum()))
            shares = ones**2 if diagonal else ones.conj() @ whitener
            shares = shares / shares.sum()

    def whitened(values: Any) -> Any:
        return whitener[kept, None] * values[kept] if diagonal else whitener @ values

    # 3) dictionary and responses; what lies outside of the range of R is not used
    moved = centred(X, shares)
    inside = moved[R > 0] if diagonal else basis.conj().T @ moved
    lost = max(1.0 - power(inside) / power(moved), 0.0) if power(moved) > 0 else 0.0
    if scipy.sparse.issparse(Phi):
        found: Any = SparseColumns(Phi, shares, whitener)
    else:
        found = whitened(centred(Phi, shares))
    given = (Phi[kept], X[kept], R[kept]) if diagonal else (found, whitened(moved), ones)
    X = whitened(moved)
    imaginary = any(np.iscomplexobj(part) and bool(part.imag.any()) for part in (found, X))
    powers = [np.einsum("ij,ij->j", block.conj(), block).real for _, block in column_blocks(found)]
    return PreparedRows(
        sample, found, X, shares, whitener, axis, total, dimension, count_distinct(*given),
        imaginary, volume, lost, np.concatenate(powers),
    )  # fmt: skip


def apparent_rounding(values: Any) -> float:
    """Return the machine epsilon of float32 for numbers that it represents, else of float64."""
    single = np.complex64 if np.iscomplexobj(values) else np.float32
    return epsilon(single if (values.astype(single) == values).all() else float)


def count_distinct(Phi: Any, X: Any, noise: Any) -> int:
    """Return the number of different rows of dictionary, responses and noise taken together."""
    if scipy.sparse.issparse(Phi):
        # Random projections of equal rows are equal, since the entries are added in one order.
        Phi = scipy.sparse.csr_array(Phi, copy=True)
        Phi.sum_duplicates()
        Phi = Phi @ np.random.default_rng(0).standard_normal((Phi.shape[1], 2))
    return len({row.tobytes() for row in np.column_stack([Phi, X, noise]) + 0.0})


class SparseColumns:
    """A sparse dictionary whose columns are centred, weighted and made dense when they are read."""

    def __init__(self, matrix: Any, shares: Any, whitener: Any) -> None:
        self.matrix, self.shares = scipy.sparse.csc_array(matrix), shares
        self.kept, self.dtype = np.flatnonzero(whitener), matrix.dtype
        self.roots, self.shape = whitener[self.kept, None], (self.kept.size, matrix.shape[1])

    def __getitem__(self, key: Any) -> Any:
        block = centred(self.matrix[:, key[1]].toarray(), self.shares)
        return self.roots * block[self.kept]


def column_blocks(Phi: Any) -> Iterator[tuple[slice, Any]]:
    """Return slices of the columns of a dictionary, each with its columns as a dense array."""
    if not isinstance(Phi, SparseColumns):
        return iter([(slice(0, Phi.shape[1]), Phi)])
    width = max(BLOCK_ENTRIES // max(Phi.shape[0], 1), 1)
    parts = (slice(first, first + width) for first in range(0, Phi.shape[1], width))
    return ((part, Phi[:, part]) for part in parts)


def group_numbers(groups: Any, count: int) -> Any:
    """Return the number of each column's group, from 0 in the order of the given labels.

    `groups` are labels, or the number of consecutive columns in each group, or None.
    """
    if groups is None:
        return None
    labels = np.arange(count) // groups if np.ndim(groups) == 0 else groups
    return np.unique(labels, return_inverse=True)[1]


def totals_in(values: Any, labels: Any) -> Any:
    """Return, for each column, the sum of the values of its group."""
    if isinstance(values, Ball):
        return Ball(totals_in(values.value, labels), totals_in(values.error, labels))
    return values if labels is None else np.bincount(labels, values)[labels]


def blocks_by_size(labels: Any) -> list[tuple[Any, Any]]:
    """Return numbers (k,) and columns (k, m) of the groups of each size m, ascending."""
    order, sizes = np.argsort(labels, kind="stable"), np.bincount(labels)
    first = np.cumsum(sizes) - sizes
    return [
        (numbers, order[first[numbers][:, None] + np.arange(size)])
        for size in np.unique(sizes)
        for numbers in (np.flatnonzero(sizes == size),)
    ]


def stacked(Phi: Any, members: Any) -> Any:
    """Return the columns of blocks (k, m) as an array of shape (k, r, m)."""
    columns = Phi[:, members.ravel()]
    return np.moveaxis(columns.reshape(len(columns), *members.shape), 1, 0)


# 2. Prior ------------------------------------------------------------------------------------


class Prior(NamedTuple):
    """Prior covariances of the blocks, as roots A of those that are not zero."""

    relevance: Any  # (κ,): the relevances w, or the diagonals of Γ
    blocks: list[tuple[Any, Any]]  # columns (k, m) and roots (k, m, m), or (k, 1, 1) = √w
    deviation: float = 0.0  # from symmetric, positive semi-definite, diagonal w
    # errors of ΦΓΦᴴ and of ΦA because Γ and A are rounded, where columns are nearly dependent
    lost: float = 0.0
    blurred: float = 0.0

    def inexact(self, noise: float) -> float:
        """Return the error that cancelling entries of Γ cause, relative to Σ."""
        return float(self.lost / noise + self.blurred / noise**0.5)

    @property
    def columns(self) -> Any:
        """The columns that the columns of ΦA belong to."""
        return np.concatenate([np.zeros(0, int), *(members.ravel() for members, _ in self.blocks)])

    def half(self, Phi: Any) -> Any:
        """Return ΦA."""
        parts = [np.zeros((Phi.shape[0], 0))]
        for members, roots in self.blocks:
            found = np.moveaxis(stacked(Phi, members) @ roots, 0, 1)
            parts.append(found.reshape(Phi.shape[0], -1))
        return np.hstack(parts)

    def split(self, half: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Yield columns, roots and the parts (k, r, m) of a matrix with the columns of ΦA."""
        start = 0
        for members, roots in self.blocks:
            part = half[:, start : start + members.size].reshape(len(half), *members.shape)
            yield members, roots, np.moveaxis(part, 0, 1)
            start += members.size


def shared_prior(relevance: Any) -> Prior:
    """Return the prior of single columns, or of groups whose columns share one relevance."""
    used = np.flatnonzero(relevance)
    return Prior(relevance, [(used[:, None], np.sqrt(relevance[used])[:, None, None])])


def full_prior(fit: Fit, w: Any, rows: PreparedRows, labels: Any) -> Prior:
    """Return the prior of groups with covariances of their own; their units are unit columns."""
    sizes = blocks_by_size(labels)
    given, largest = fit.covariances, sizes[-1][1].shape[1]
    if np.shape(given) != (len(np.unique(labels)), largest, largest):
        return Prior(w, [], np.inf)
    known = fit.roots if np.shape(fit.roots) == np.shape(given) else np.zeros(np.shape(given))
    lengths = np.sqrt(np.where(rows.powers > 0, rows.powers, 1.0))
    blocks, deviation, lost, blurred = [], 0.0, 0.0, 0.0
    for numbers, members in sizes:
        size, scales = members.shape[1], lengths[members]
        own = given[numbers, :size, :size]
        scaled = own * scales[:, :, None] * scales[:, None, :]
        padded = np.count_nonzero(given[numbers]) > np.count_nonzero(own)
        if padded or not np.isfinite(scaled).all():
            return Prior(w, [], np.inf)
        found = covariance_deviation(scaled, w[members] * scales**2)
        # Where the columns of a group are dependent, the data say nothing: there Γ is zero.
        used = own.any(axis=(1, 2))
        _, unseen = group_axes(rows.dictionary, members[used], 0.5 * DEPENDENT)
        beyond = np.linalg.norm(unseen @ scaled[used], axis=(1, 2))
        beyond = ratio(beyond, np.linalg.norm(scaled[used], axis=(1, 2)))
        deviation = float(np.max([deviation, found, beyond.max(initial=0.0)]))
        roots = known[numbers, :size, :size] * scales[:, :, None]
        # the given root, if it is one up to a few ε√(Γᵢᵢ Γⱼⱼ); that of Γ itself loses digits
        sizes_ = np.sqrt(np.abs(np.diagonal(scaled, axis1=1, axis2=2)))
        allowed = gamma(16.0 * (size + 1)) * sizes_[:, :, None] * sizes_[:, None, :]
        same = (np.abs(roots @ adjoint(roots) - scaled) <= allowed).all(axis=(1, 2))
        variances, axes = np.linalg.eigh(0.5 * (scaled + adjoint(scaled)))
        own_root = axes * np.sqrt(np.maximum(variances, 0.0))[:, None, :]
        roots = np.where(same[:, None, None], roots, own_root)
        blocks.append((members[used], (roots / scales[:, :, None])[used]))
        sums = np.where(same, 0.0, np.abs(scaled).sum(axis=(1, 2)))
        lost = max(lost, gamma(size) * float(sums.max()))
        blurred = max(blurred, gamma(size) * float(np.linalg.norm(roots, axis=(1, 2)).max()))
    return Prior(w, blocks, deviation, lost, blurred)


def group_axes(Phi: Any, members: Any, least: float) -> tuple[Any, Any]:
    """Return orthonormal bases (k, r, m) of the columns of groups, and (k, m, m) where they vanish.

    Directions in which the unit columns have a singular value of at most `least` times the largest
    are zero in the bases, and are the rows of the second matrices.
    """
    columns = stacked(Phi, members)
    lengths = np.linalg.norm(columns, axis=1, keepdims=True)
    units = columns / np.where(lengths > 0, lengths, 1.0)
    size, wide = members.shape[1], members.shape[1] > columns.shape[1]
    left, values, right = np.linalg.svd(units, full_matrices=wide)
    values = np.pad(values, ((0, 0), (0, size - values.shape[1])))
    left = np.pad(left, ((0, 0), (0, 0), (0, size - left.shape[2])))
    seen = (values > least * values[:, :1])[:, :, None]
    return np.where(adjoint(seen), left, 0.0), np.where(seen, 0.0, right)


def covariance_deviation(blocks: Any, diagonals: Any) -> float:
    """Return the largest relative deviation of matrices from covariances with given diagonals."""
    scale = np.abs(blocks).max(axis=(1, 2))
    skewed = np.abs(blocks - adjoint(blocks)).max(axis=(1, 2))
    apart = np.abs(np.diagonal(blocks, axis1=1, axis2=2) - diagonals).max(axis=1)
    lowest = np.linalg.eigvalsh(0.5 * (blocks + adjoint(blocks)))[:, 0]
    gap = np.maximum(np.maximum(skewed, apart), -lowest)
    return float(np.where(gap > 0, gap / scale, 0.0).max(initial=0.0))


# 3. Evaluation -------------------------------------------------------------------------------


class At(NamedTuple):
    """One problem at given prior covariances and a noise variance; ΦA = V diag(s) Pᴴ."""

    rows: PreparedRows
    noise: float
    left: Any  # (r, k): V
    right: Any  # (a, k): P
    factors: Any  # (n,): the variances λ of rotated responses; (1,) if they are all 1
    powers: Any  # (k, n) or (k, 1): λs²
    targets: Any  # (k + r, n): VᴴX and X − VVᴴX
    z: Any = None  # Ball of (κ,) each: the diagonals of S and Q, averages over the responses
    q: Any = None
    mean: Any = None  # (κ, n): the posterior mean ΓΦᴴΣ⁻¹X
    fit: float = 0.0  # tr(XᴴΣ⁻¹X)/n
    rounding: float = 0.0  # bound on the relative error of Σ^½
    reach: float = 0.0  # expected error of solvers that form Σ in float64

    @property
    def n(self) -> int:
        """Number of responses."""
        return int(self.targets.shape[1])

    @property
    def level(self) -> Any:
        """Eigenvalues of Σ along V, and γ in the coordinates beyond V, for each response."""
        return np.vstack([self.powers, np.zeros((len(self.left), len(self.factors)))]) + self.noise

    @property
    def shares(self) -> Any:
        """λs²/(λs² + γ), whose sum over k are the degrees of freedom."""
        return self.powers / (self.powers + self.noise)

    @property
    def residuals(self) -> Any:
        """X − ΦU = γΣ⁻¹X."""
        found = self.noise / self.level * self.targets
        return self.left @ found[: len(self.powers)] + found[len(self.powers) :]

    @property
    def loading(self) -> Any:
        """AᴴΦᴴΣ⁻¹X, if λ = 1."""
        inside = self.targets[: len(self.powers)]
        return self.right @ (np.sqrt(self.powers) * inside / (self.powers + self.noise))

    def split(self, block: Any) -> Any:
        """Return VᴴB and B − VVᴴB for a block B of columns."""
        inside = self.left.conj().T @ block
        return np.vstack([inside, block - self.left @ inside])

    def ratio_error(self, sizes: Any, members: Any) -> Any:
        """Return bounds on the errors of eigenvalues of Q, of given sizes, relative to S."""
        shift = 2.0 * self.rounding * self.fit**0.5
        return members.shape[1] * (2.0 * self.rounding + 2.0 * np.sqrt(sizes) * shift + shift**2)

    def whitened(self, block: Any) -> Any:
        """Return W with WᴴW = BᴴΣ⁻¹B for a block B of columns, if λ = 1."""
        return self.split(block) / np.sqrt(self.level[:, :1])


def evaluated(rows: PreparedRows, prior: Prior, noise: float, turn: Any, factors: Any) -> At:
    """Return all quantities that follow from the prior covariances and the noise variance."""
    Phi, X = rows.dictionary, rows.responses if turn is None else rows.responses @ turn
    size, n = X.shape
    left, values, right = np.linalg.svd(prior.half(Phi), full_matrices=False)
    at = At(rows, noise, left, right.conj().T, factors, values[:, None] ** 2 * factors, X)
    at = at._replace(targets=at.split(X))
    level = at.level
    # Rounding errors of a factorisation grow as the root of its size (Higham & Mary 2019).
    condition = float(level.max(initial=noise)) / noise
    steps, cancelled = gamma(8.0 * (size + len(prior.columns) + 8) ** 0.5), prior.inexact(noise)
    rounding = steps * condition**0.5 + cancelled
    fit = float((squares(at.targets) / level).sum()) / n
    # In these coordinates Σ⁻¹ is diagonal, and φᴴΣ⁻¹X is a sum in which nothing cancels.
    precise = compressed(at.targets / level * np.sqrt(factors))
    inverse = (factors / level).mean(axis=1)
    z, q = np.zeros(Phi.shape[1]), np.zeros(Phi.shape[1])
    for part, block in column_blocks(Phi):
        turned = at.split(block)
        z[part] = inverse @ squares(turned)
        q[part] = squares(turned.conj().T @ precise).sum(axis=1) / n
    # z and Q are the squares of ‖Σ^{-½}φ‖ and ‖φᴴΣ⁻¹X‖/√n, which an error of Σ^½ changes by at
    # most its share of them, and of ‖Σ^{-½}φ‖‖Σ^{-½}X‖/√n.
    roots = (
        Ball(np.sqrt(z), rounding * np.sqrt(z)),
        Ball(np.sqrt(q), 2 * rounding * np.sqrt(z * fit)),
    )
    mean = np.zeros((Phi.shape[1], n), np.result_type(left, X))
    for members, block_roots, part in prior.split((np.sqrt(factors) * at.loading).conj().T):
        mean[members] = block_roots @ adjoint(part)
    return at._replace(
        z=roots[0] * roots[0], q=roots[1] * roots[1], mean=mean if turn is None else mean @ turn.T,
        fit=fit, rounding=rounding, reach=gamma(REACHED) * condition + cancelled,
    )  # fmt: skip


# 4. The measured values ----------------------------------------------------------------------


@np.errstate(all="ignore")  # figures of absurd numbers may overflow, and then fail
def measure(samples: Sequence[Sample], fit: Fit, kind: EnergyKind = EnergyKind()) -> Figures:  # noqa: B008
    """Return the measured values of a fit on the rows of one or several problems."""
    # 1) what coefficients alone tell
    kind = kind._replace(labels=group_numbers(kind.labels, len(fit.coef[0])))
    problems = [prepared(sample) for sample in samples]
    figures = _of_coefficients(problems, fit.coef, kind)
    if samples[0].noise_cov is not None:
        given = len(samples[0].responses)
        figures.noise_rank = len(problems[0].responses), given, problems[0].outside
    if fit.noise is None:
        return figures

    # 2) every problem at the prior covariances; an invalid fit has infinite distances
    figures.noise_rule, distances = fit.rule, figures.distances
    if fit.responses is not None:
        figures.response_rule = "learn" if fit.given_responses is None else "given"
    state = _evaluation(distances, problems, fit, kind)
    if state is None:
        reported = {"energy": fit.energy, "predictive_variance": fit.variances}
        names = ["stationarity", "posterior_mean", "noise_variance"]
        names += [name for name, value in reported.items() if value is not None]
        distances |= dict.fromkeys(names, Distance(Ball(np.inf)))
        if fit.support is not None:
            distances["support"] = Distance(Ball(float(np.size(fit.support))))
        return figures

    # 3) the conditions of optimality, all from S and Q
    violation, stored, reach = _optimality(figures, state), state.stored, state.reach
    mean = _mean_distance(state)
    if fit.relevance is None:
        # Stationary relevances say nothing if they do not give these coefficients.
        violation = Ball(float(np.max([violation.value, mean.value])), violation.error)
    found = {
        "stationarity": Distance(violation, max(state.tolerance, stored), reach),
        "posterior_mean": Distance(mean, max(FINEST, stored), reach),
        # 4) what is reported beside the relevances: γ, energy, predictions, support
        "noise_variance": _noise_distance(state, violation.error * max(1, figures.n_active)),
        "energy": _energy_distance(state),
    }
    distances |= {name: each for name, each in found.items() if each is not None}
    if fit.variances is not None:
        distances["predictive_variance"] = _variance_distance(state)
    if fit.support is not None:
        wrong, figures.tied = _support(state)
        distances["support"] = Distance(wrong)
        if figures.tied:
            figures.evidence["tied_columns"] = [columns.tolist() for columns in figures.tied]
    if fit.responses is not None:
        distances["response_covariance"] = _response(state)
    figures.path, figures.correlation = fit.path, _path_correlation(state)
    if fit.rule == "learn" and any(_floored(state, at) for at in state.ats):
        figures.noise_rule = "floor"
    figures.leverage = rows, shares, _ = _leverage(state)
    known = {"mean_distance": mean.value, "leverage_rows": rows, "leverage_shares": shares}
    figures.evidence |= _evidence(state) | known
    return figures


class Evaluation(NamedTuple):
    """All that the measured values of a fit are computed from."""

    fit: Fit
    kind: EnergyKind
    prior: Prior
    ats: list[At]  # one for each problem
    turn: Any  # eigenvectors of the covariance of the responses
    implied: float  # error of relevances that coefficients imply

    @property
    def tolerance(self) -> float:
        """Tolerance of the fit, between `FINEST` and `LOOSEST`."""
        return max(min(self.kind.tolerance, LOOSEST), FINEST)

    @property
    def stored(self) -> float:
        """What rounding of the stored relevances explains."""
        used = np.count_nonzero(self.prior.relevance)
        return float(STORED * self.fit.rounding * (1.0 + used**0.5))

    @property
    def reach(self) -> float:
        """Expected distance of solvers that form Σ in float64."""
        return float(min(max(at.reach * (1.0 + at.fit) ** 0.5 for at in self.ats), LOOSEST))

    def average(self, values: Iterable[Any]) -> Any:
        """Return the mean over all responses of derivatives in the relevances."""
        total = sum(at.n for at in self.ats)
        return sum(at.n / total * each for at, each in zip(self.ats, values, strict=True))

    @property
    def z(self) -> Ball:
        """The numbers z, the diagonal of ΦᴴΣ⁻¹Φ, averaged over all responses."""
        return self.average(at.z for at in self.ats)  # type: ignore[no-any-return]

    @property
    def mean_square(self) -> float:
        """Mean square of the responses in distinct rows, the unit of noise variances."""
        entries = sum(at.rows.distinct * at.n for at in self.ats)
        return sum(power(at.rows.responses) for at in self.ats) / entries or 1.0

    def pressure(self, at: At) -> Ball:
        """Return the slope of the log-volume: z, or ‖φ‖²/(γ + w‖φ‖²) of a diagonal posterior."""
        if self.kind.posterior != "diagonal":
            return at.z  # type: ignore[no-any-return]
        return Ball(at.rows.powers / (at.noise + self.prior.relevance * at.rows.powers))

    def freedom(self, at: At) -> float:
        """Return the degrees of freedom of the posterior; tr(ΦΓΦᴴΣ⁻¹)/n of the full one."""
        if self.kind.posterior != "diagonal":
            return float(at.shares.mean(axis=1).sum())
        return float((self.prior.relevance * self.pressure(at).value).sum())


def _evaluation(
    distances: dict[str, Distance], problems: Sequence[PreparedRows], fit: Fit, kind: EnergyKind
) -> Evaluation | None:
    """Return every problem at the fitted covariances; None if these numbers are not valid."""
    w, implied, noise = fit.relevance, 0.0, fit.noise or ()
    if w is None:
        w, implied = implied_relevance(problems[0], fit.coef[0], noise[0], fit.rounding)
    finite = all(np.isfinite(U).all() for U in fit.coef) and np.isfinite(w).all()
    if not (finite and (w >= 0).all() and all(0 < level < np.inf for level in noise)):
        return None
    prior = shared_prior(w)
    if kind.full_groups:
        prior = full_prior(fit, w, problems[0], kind.labels)
        deviation = Ball(max(prior.deviation - 4.0 * fit.rounding, 0.0))
        distances["group_covariances"] = Distance(deviation, FINEST)
        if not prior.deviation < np.inf:
            return None
    turn, factors, B = None, np.ones(1), fit.responses
    if B is not None:
        n = problems[0].responses.shape[1]
        valid = np.shape(B) == (n, n) and np.isfinite(B).all() and abs(B - B.T).max() <= 1e-10
        if not (valid and abs(np.trace(B) / n - 1.0) <= 1e-10):
            distances["response_covariance"] = Distance(Ball(np.inf))
            return None
        factors, turn = np.linalg.eigh(B)
        factors = np.maximum(factors, 0.0)
    try:
        ats = [evaluated(rows, prior, level, turn, factors)
               for rows, level in zip(problems, noise, strict=True)]  # fmt: skip
    except np.linalg.LinAlgError:
        return None
    return Evaluation(fit, kind, prior, ats, turn, implied)


def implied_relevance(
    rows: PreparedRows, U: Any, noise: float, rounding: float
) -> tuple[Any, float]:
    """Return the relevances for which coefficients are the posterior mean, and their error.

    A posterior mean U satisfies X − ΦU = γΣ⁻¹X and uⱼ = wⱼφⱼᴴΣ⁻¹X, so wⱼ = γ‖uⱼ‖/‖φⱼᴴ(X − ΦU)‖. It
    is infinite if only the divisor vanishes; then U is not a posterior mean.
    """
    used, w = np.flatnonzero(U.any(axis=1)), np.zeros(len(U))
    Phi, X = rows.dictionary[:, used], rows.responses
    lengths = np.linalg.norm(Phi.conj().T @ (X - Phi @ U[used]), axis=1)
    w[used] = noise * np.linalg.norm(U[used], axis=1) / lengths
    if not used.size or not np.isfinite(w).all():
        return w, 0.0
    size = rounding * np.linalg.norm(np.abs(Phi) @ np.abs(U[used]) + np.abs(X))
    errors = np.linalg.norm(Phi, axis=0) * size / lengths
    return w, float(errors.max() * (3.0 + 2.0 * used.size**0.5))


def _of_coefficients(
    problems: Sequence[PreparedRows], coef: Sequence[Any], kind: EnergyKind
) -> Figures:
    """Return the measured values that do not need a noise variance."""
    total = residual = 0.0
    norms = np.zeros(len(coef[0]))
    for rows, U in zip(problems, coef, strict=True):
        used = np.flatnonzero(U.any(axis=1))
        total += power(rows.responses)
        residual += power(rows.responses - rows.dictionary[:, used] @ U[used])
        norms += squares(U).sum(axis=1) * rows.powers
    norms = np.sqrt(norms)
    used = np.flatnonzero(norms > ACTIVE * norms.max(initial=0.0))
    error = (residual / total) ** 0.5 if total > 0 else (np.inf if residual > 0 else 0.0)
    return Figures(
        norms.size, int(used.size), used,
        norms[used], error, problems, kind, evidence={
            "relative_error": error, "used": used,
            "row_norms": norms[used] / max(total**0.5, 1e-300),
        },
    )  # fmt: skip


def ratio(values: Any, sizes: Any) -> Any:
    """Return `values` divided by `sizes`, and zero for every entry whose divisor is zero."""
    if isinstance(values, Ball):
        return Ball(ratio(values.value, sizes), ratio(values.error, sizes))
    return np.where(sizes > 0, values / np.where(sizes > 0, sizes, 1.0), 0.0)


def largest(*balls: Ball) -> Ball:
    """Return the largest of several numbers with error bounds; NaN if one of them is."""
    values, errors = (np.concatenate(part) for part in zip(
        *((ball.value, ball.error) for ball in balls), strict=True))  # fmt: skip
    value = float(np.max(values, initial=0.0))
    high, low = (float(np.max(values + sign * errors, initial=0.0)) for sign in (1.0, -1.0))
    return Ball(value, max(high - value, value - low))


def _optimality(figures: Figures, state: Evaluation) -> Ball:
    """Return the distance to the KKT conditions, and count the latents that should be active.

    For single columns these are w|Q − z| and (Q − z)/z, for groups of one relevance the same with
    traces. For a group with a covariance AAᴴ they are the eigenvalues of |Aᴴ(Q − S)A| and the
    largest eigenvalue of S^{-½}QS^{-½} minus one.
    """
    kind, labels, w, implied = state.kind, state.kind.labels, state.prior.relevance, state.implied
    z, Q = state.z, state.average(at.q for at in state.ats)
    count = totals_in(np.ones_like(w), labels)
    own = state.average(state.pressure(at) for at in state.ats)
    alignment, curvature, pressure = (totals_in(each, labels) for each in (Q, z, own))
    z, Q = z.value, Q.value
    slack, excess = (alignment - pressure).abs() * w, ratio(alignment - pressure, pressure.value)
    full_excess, latent = ratio(alignment - curvature, curvature.value), w * z
    if kind.full_groups:
        slack, excess, latent = _group_conditions(state)
        full_excess = excess
    active = totals_in(latent, labels) > ACTIVE
    violation = largest(slack, excess)
    if kind.posterior == "point":
        violation = _point_violation(state)
    if kind.violation is not None:
        violation = Ball(kind.violation)
    # Columns of a group share one relevance, also those that are zero on these rows.
    elif (
        not kind.full_groups
        and (np.abs(totals_in(w, labels) - count * w) > FINEST * count * w).any()
    ):
        violation = Ball(np.inf)
    # An evaluation that is worse than this has lost its meaning, and so have the relevances.
    share = implied * float(max((w * (z + Q)).max(initial=0.0), (1.0 + ratio(Q, z)).max()))
    violation = Ball(violation.value, min(violation.error, LOOSEST) + share)
    bar, dormant = max(COLLAPSE, 10.0 * state.tolerance), ~(active | (z == 0))
    outside = np.where(dormant, full_excess.value, -np.inf)
    worst = int(np.argmax(outside)) if outside.size else 0
    gains = dormant & (full_excess.low > bar + state.reach)
    if implied < 1.0 and kind.posterior in ("full", "diagonal"):
        wrong = dormant & (excess.low > bar + state.reach)
        open_ = dormant & (excess.high > bar) & ~wrong
        collapse = Ball(float(wrong.sum()), 0.0 if wrong.any() else float(open_.sum()))
        figures.distances["posterior_collapse"] = Distance(collapse)
    chosen = np.flatnonzero(active)
    figures.full_gains, figures.n_active = int(gains.sum()), int((latent > ACTIVE).sum())
    figures.evidence |= {
        "active": chosen,
        "relevance": w[chosen], "curvature": z[chosen], "alignment": Q[chosen],
        "ratio": 1.0 + full_excess.value[chosen],
        "worst_inactive": worst,
        "largest_ratio_outside": float(outside[worst]) + 1.0 if outside.size else 0.0,
        "rounding": max(at.rounding for at in state.ats),
        "reach": max(at.reach for at in state.ats),
        "violation": violation.value,
    }  # fmt: skip
    return violation


def _group_conditions(state: Evaluation) -> tuple[Ball, Ball, Any]:
    """Return slack and excess of the group of each column, and one minus its latent variances."""
    at, labels = state.ats[0], state.kind.labels
    slack, excess, latent = (np.zeros(labels.size) for _ in range(3))
    errors = np.zeros((2, labels.size))
    for members, found, hidden in group_slack(at, state.prior):
        slack[members], errors[0, members] = found.value[:, None], found.error[:, None]
        latent[members] = hidden
    for _, members in blocks_by_size(labels):
        found = group_ratios(at, members)
        excess[members], errors[1, members] = found.value[:, -1:] - 1.0, found.error[:, -1:]
    return Ball(slack, errors[0]), Ball(excess, errors[1]), latent


def group_slack(at: At, prior: Prior) -> Iterator[tuple[Any, Ball, Any]]:
    """Yield columns (k, m) of blocks, eigenvalues of |Aᴴ(Q − S)A|, and one minus latent variances.

    Of the eigenvalues it is the largest one; the latents have the variances of I − AᴴSA.
    """
    half, loading = np.sqrt(at.shares[:, :1]) * at.right.conj().T, at.loading
    for members, _, part in prior.split(np.vstack([half, loading.conj().T])):
        here, moved = part[:, : len(half)], adjoint(part[:, len(half) :])
        explained, metric = moved @ adjoint(moved) / at.n, adjoint(here) @ here
        slack = np.abs(np.linalg.eigvalsh(explained - metric)).max(axis=1)
        size = np.trace(explained, axis1=1, axis2=2).real
        yield members, Ball(slack, at.ratio_error(size, members)), np.linalg.eigvalsh(metric)


def group_ratios(at: At, members: Any) -> Ball:
    """Return the eigenvalues of S^{-½}QS^{-½}, ascending, of blocks of columns (k, m).

    With orthonormal bases B of Σ^{-½}Φ_b they are those of BᴴYYᴴB/n for Y = Σ^{-½}X. If one exceeds
    1, the energy falls if Γ_b grows in some direction.
    """
    basis, _ = group_axes(at.rows.dictionary, members, 2.0 * DEPENDENT)
    turned = at.whitened(np.moveaxis(basis, 0, 1).reshape(basis.shape[1], -1))
    basis, _ = group_axes(turned, np.arange(members.size).reshape(members.shape), gamma(0))
    inner = adjoint(basis) @ compressed(at.whitened(at.rows.responses))
    values = np.linalg.eigvalsh(inner @ adjoint(inner)) / at.n
    return Ball(values, at.ratio_error(np.maximum(values, 1.0), members))


def penalty_of(given: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return a penalty h(a) of mean square coefficients a, and its derivative."""
    if not isinstance(given, dict):
        return given.value, given.supergradient
    p, width = given.get("exponent", 1.0), given.get("width", 1.0)
    known: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
        "log": (np.log, lambda a: 1.0 / a),
        "power": (lambda a: a**p / p, lambda a: a ** (p - 1.0)),
        "arctan": (lambda a: np.arctan(a / width), lambda a: width / (width**2 + a**2)),
    }
    return known[given["name"]]


def _penalised(state: Evaluation, alignment: Any) -> tuple[Any, Any]:
    """Return mean squares of the coefficients, and relevances, in the units of the penalty."""
    rows, labels = state.ats[0].rows, state.kind.labels
    norms = totals_in(rows.powers, labels)
    norms = np.where(norms > 0, norms, 1.0) / state.mean_square
    powers = state.prior.relevance**2 * alignment * norms
    count = totals_in(np.ones_like(powers), labels)
    return totals_in(powers, labels) / count, state.prior.relevance * norms


def _point_violation(state: Evaluation) -> Ball:
    """Return the largest |1/h′(a) − w| over the larger of both plus γ, for the penalty h."""
    at = state.ats[0]
    noise = at.noise / state.mean_square

    def distance(alignment: Any) -> float:
        powers, relevance = _penalised(state, np.maximum(alignment, 0.0))
        target = 1.0 / penalty_of(state.kind.penalty)[1](np.maximum(powers, 1e-300))
        target = np.where(target > 2e-300, target, 0.0)
        return float((np.abs(target - relevance) / (np.maximum(target, relevance) + noise)).max())

    value = distance(at.q.value)
    ends = distance(at.q.low), distance(at.q.high)
    return Ball(value, max(abs(end - value) for end in ends))


def _mean_distance(state: Evaluation) -> Ball:
    """Return the largest distance of a block's coefficients from their posterior mean.

    Coefficients times the norms of their columns are compared, relative to √n times their largest
    prior standard deviation, and for groups their contributions Φ_bU_b likewise, since coefficients
    of nearly dependent columns cancel. If the deviation is negligible, the distance is divided by
    the norm of the responses. What rounding of the stored coefficients explains is subtracted.
    """
    values, errors = [0.0], [0.0]
    for at, U in zip(state.ats, state.fit.coef, strict=True):
        norms, total = np.sqrt(at.rows.powers)[:, None], power(at.rows.responses) ** 0.5
        sizes, apart = np.linalg.norm(norms * U, axis=1), U - at.mean
        rest = np.linalg.norm(norms * apart, axis=1) / (total if total > 0 else 1.0)
        for members, roots in state.prior.blocks:
            lost = (0.5 * state.fit.rounding + gamma(members.shape[1])) * sizes[members].sum(axis=1)
            scales = [norms[members] * np.eye(members.shape[1])]
            if members.shape[1] > 1:
                scales.append(upper(stacked(at.rows.dictionary, members)))
            for scale in scales:
                spread = np.linalg.norm(scale @ roots, 2, axis=(1, 2))
                seen = spread**2 > gamma(0) * at.noise
                found = np.linalg.norm(scale @ apart[members], axis=(1, 2))
                found = np.maximum(found - lost, 0.0) / (at.n**0.5 * spread)
                values.append(float(found[seen].max(initial=0.0)))
                rest[members[seen]] = 0.0
        values.append(float(rest.max(initial=0.0)))
        errors.append(2.0 * at.rounding * at.fit**0.5)
    error = min(max(errors), LOOSEST) + state.implied * (state.ats[0].fit + 1.0) ** 0.5
    if state.fit.predicted is not None:
        other = prediction_distance(state.ats[0].rows, state.fit.coef[0], state.fit.predicted)
        values.append(other.value)
        error = max(error, other.error)
    return Ball(float(np.max(values)), error)


def prediction_distance(rows: PreparedRows, coef: Any, predicted: Any) -> Ball:
    """Return the largest difference between predictions and the linear model ȳ + (x − x̄)U."""
    used, sample = np.flatnonzero(coef.any(axis=1)), rows.sample
    Phi, X, U = sample.dictionary[:, used], sample.responses, coef[used]
    Phi = Phi.toarray() if scipy.sparse.issparse(Phi) else Phi
    Phi, moved = centred(Phi, rows.shares), centred(X, rows.shares)
    mean = (X - moved)[0]
    size = np.sqrt(sample.weights @ squares(moved) / sample.weights.sum())
    size = np.where(size > 0, size, np.abs(mean))
    size = np.where(size > 0, size, 1.0)
    distance = np.abs(predicted - mean - Phi @ U).max(axis=0) / size
    # A prediction is a sum with the mean response, so that it is rounded relative to this mean.
    terms = (np.abs(Phi) @ np.abs(U)).max(axis=0)
    error = (gamma(0) * np.abs(predicted).max(axis=0) + gamma(2.0 * used.size**0.5) * terms) / size
    return Ball(float(distance.max()), float(error.max()))


def _variance_distance(state: Evaluation) -> Distance:
    """Return the largest error of the posterior variances of predicted means, divided by γ.

    The latents have the posterior covariance I − P diag(λs²/(λs² + γ)) Pᴴ. A row h of ΦA that is
    not whitened has the variance ‖h − hPPᴴ‖² + γ Σ|hP|²/(λs² + γ), for each response.
    """
    at, prior, rows, sample = state.ats[0], state.prior, state.ats[0].rows, state.ats[0].rows.sample
    kept = np.arange(len(sample.responses))
    if rows.whitener.ndim == 1:
        kept = np.flatnonzero(rows.whitener)
        half = prior.half(rows.dictionary) / rows.whitener[kept, None]
    else:
        half = prior.half(centred(sample.dictionary, rows.shares))
    along = half @ at.right
    beyond = squares(half - along @ at.right.conj().T).sum(axis=1)[:, None] * at.factors
    spread = beyond / at.noise + squares(along) @ (at.factors / (at.powers + at.noise))
    if state.turn is not None:
        spread = spread @ (state.turn**2).T
    given = state.fit.variances[kept].reshape(len(kept), -1) / at.noise
    # Relative to the noise of the row, and to the largest variance if rows have other noise.
    size, counted = 1.0, sample.weights[kept]
    if sample.noise_cov is not None:
        size, counted = max(float(spread.max(initial=0.0)), 1.0), np.ones(len(kept))
    distance = float((counted[:, None] * np.abs(given - spread)).max(initial=0.0)) / size
    # Variances are differences of numbers of the size of γ cond(Σ).
    return Distance(Ball(distance, 4.0 * at.rounding), FINEST, min(at.reach, 1.0))


def _floored(state: Evaluation, at: At) -> bool:
    """Tell whether γ is the smallest that is learned."""
    return at.noise <= 1.01 * SMALLEST_LEARNED * state.mean_square


def _noise_distance(state: Evaluation, error: float) -> Distance | None:
    """Return the relative distance of γ from what its rule gives; None if that is unknown.

    A learned γ inherits `error`, that of z and Q summed over the active columns.
    """
    fit, rule, lowest = state.fit, state.fit.rule, SMALLEST_NOISE * state.mean_square
    noise, rows = np.array([at.noise for at in state.ats]), state.ats[0].rows
    found = None
    if fit.given_noise is not None and rule in ("given", *HELD_OUT):
        asked = np.maximum(fit.given_noise, lowest) if rule == "given" else fit.given_noise
        found = float(np.abs(noise / asked - 1.0).max())
    elif rule == "fallback":
        share = power(rows.responses) / (rows.total * rows.responses.shape[1])
        found = float(abs(noise[0] / max(FALLBACK * share, lowest) - 1.0))
    elif rule == "learn_diagonal":
        found = _row_noise_distance(state)
    elif rule == "learn" and min(at.rows.dimension for at in state.ats) > 0:
        # tr(RM) = 0 where γ = (‖X − ΦU‖²/n + γ dof)/d.
        changes = []
        for at in state.ats:
            ratio = power(at.residuals) / (at.n * at.noise) + state.freedom(at)
            change = ratio / at.rows.dimension - 1.0
            changes.append(max(change, 0.0) if _floored(state, at) else abs(change))
        found = float(np.max(changes))
    cov = rows.sample.noise_cov
    if fit.row_variances is not None and cov is not None:
        expected = noise[0] * (cov if cov.ndim == 1 else np.diagonal(cov)).real
        given = fit.row_variances
        if given.shape != expected.shape:
            return Distance(Ball(np.inf))
        sizes = np.where(expected > 0, expected, expected.max(initial=0.0))
        found = float(np.max([found or 0.0, (np.abs(given - expected) / sizes).max()]))
    if found is None:
        return None
    learned = rule in ("learn", "learn_diagonal")
    return (
        Distance(Ball(found, error), max(state.tolerance, state.stored), state.reach)
        if learned
        else Distance(Ball(found), GIVEN)
    )


def _row_noise_distance(state: Evaluation) -> float:
    """Return the largest distance to stationarity of the noise variances Λᵢ of rows.

    It is Λᵢ|Mᵢᵢ|. In whitened rows Λᵢ(Σ⁻¹)ᵢᵢ is one minus the leverage and the share of the
    intercept. At its lower limit a noise variance also counts as stationary if a smaller one would
    lower the energy.
    """
    sample, at = state.ats[0].rows.sample, state.ats[0]
    count = len(sample.responses)
    X = centred(sample.responses, np.full(count, 1.0 / count) if sample.intercept else None)
    level = at.noise * sample.noise_cov
    left = (
        1.0
        - squares(at.left) @ at.shares[:, 0]
        - (0.0 if at.rows.axis is None else squares(at.rows.axis))
    )
    slope = left - squares(at.residuals).mean(axis=1) / at.noise
    lowest = level <= 1.01 * SMALLEST_ROW * squares(X).mean()
    return float(np.where((slope > 0) & lowest, 0.0, np.abs(slope)).max())


def energies(state: Evaluation) -> list[float] | None:
    """Return the energy of each sample in the units of the data; None if its formula is unknown."""
    found = []
    for at in state.ats:
        rows, w = at.rows, state.prior.relevance
        if state.kind.posterior == "point":
            powers, _ = _penalised(state, at.q.value)
            penalties = penalty_of(state.kind.penalty)[0](np.maximum(powers, 1e-300))
            return [float(power(at.residuals) / at.noise + at.n * np.sum(penalties))]
        if state.kind.posterior not in ("full", "diagonal"):
            return None
        volume = float(np.log1p(at.powers / at.noise).mean(axis=1).sum())
        if state.kind.posterior == "diagonal":
            volume = float(np.log1p(w * rows.powers / at.noise).sum())
        volume += rows.dimension * np.log(at.noise) + rows.volume
        found.append(float(at.n * (at.fit + volume)))
    return found


def _energy_distance(state: Evaluation) -> Distance | None:
    """Return the relative difference of the reported energy from the verifier's."""
    found = energies(state)
    if state.fit.energy is None or found is None:
        return None
    entries = sum(at.n * max(at.rows.dimension, 1.0) for at in state.ats)
    size, at = max(abs(sum(found)), entries), state.ats[0]
    # A relative error of Σ changes the data term by its share, and each eigenvalue's logarithm.
    lost = state.prior.inexact(at.noise) * (at.n * at.fit + entries) / size
    apart = Ball(float(abs(state.fit.energy - sum(found)) / size), lost)
    return Distance(apart, ENERGY, state.reach)


def _evidence(state: Evaluation) -> dict[str, Any]:
    """Return, by name, the numbers from which measured values can be computed again."""
    found, fit, kind = energies(state), state.fit, state.kind
    energy = None if found is None else sum(found)
    if len(state.ats) > 1:
        return {
            "noise_variance": np.array([at.noise for at in state.ats]), "energy": energy,
            "n_responses": np.array([at.n for at in state.ats]), "energies": found,
            "given_noise": fit.given_noise, "tolerance": kind.tolerance,
            "significance": kind.significance,
        }  # fmt: skip
    (at,) = state.ats
    return {
        "noise_variance": at.noise, "energy": energy, "n_responses": at.n, "data_term": at.fit,
        "dimension": at.rows.dimension, "residual": power(at.residuals) / at.n,
    }  # fmt: skip


def _response(state: Evaluation) -> Distance:
    """Return the distance of the covariance of the responses from what it should be.

    For a learned one it is by how much the energy per response falls at nearby correlations ρ, at
    which artanh ρ differs by `CORRELATION_STEP`; infinite if it is not that of an AR(1) model.
    """
    covariance, at = state.fit.responses, state.ats[0]
    if state.fit.given_responses is not None:
        apart = float(np.abs(covariance - state.fit.given_responses).max())
        return Distance(Ball(apart), GIVEN)
    n, correlation = len(covariance), float(covariance[0, 1] / covariance[0, 0])
    places = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    if not abs(correlation) < 1 or np.abs(correlation**places - covariance).max() > 1e-8:
        return Distance(Ball(np.inf))
    values = np.linalg.svd(state.prior.half(at.rows.dictionary), compute_uv=False)[:, None] ** 2
    inside = at.targets[: len(values)] @ state.turn.T  # of the responses as they are given

    def energy(angle: float) -> float:
        factors, turn = np.linalg.eigh(np.tanh(angle) ** places)
        level = values * np.maximum(factors, 0.0) + at.noise
        return float((squares(inside @ turn) / level + np.log(level)).sum()) / n

    angle, bound = np.arctanh(correlation), np.arctanh(LARGEST_CORRELATION) + 1e-6
    beside = [angle + sign * CORRELATION_STEP for sign in (-1.0, 1.0)]
    others = [energy(each) for each in beside if abs(each) <= bound]
    return Distance(Ball(max(0.0, energy(angle) - min(others))), ENERGY)


# 5. Support, leverage, stability -------------------------------------------------------------


def _support(state: Evaluation) -> tuple[Ball, tuple[Any, ...]]:
    """Return how many columns `support_` contains or lacks wrongly, and the sets of tied columns.

    A block is significant if the tail probability of its evidence, twice the log-likelihood that is
    lost without it, is below α over the number of blocks. Tied columns, each of which can replace
    the others, are left out together, and the first of those in use stands for them.
    """
    w, labels = state.prior.relevance, state.kind.labels
    blocks = np.arange(w.size) if labels is None else labels
    owners = blocks[state.prior.columns]
    level = state.kind.significance / (int(blocks.max()) + 1)
    ties = tied_columns(state) if labels is None else []
    sets = {int(found[0]): found for found in ties}
    passed = {int(number) for found in ties for number in found[1:]}
    numbers = np.array([number for number in np.unique(owners) if int(number) not in passed], int)
    if labels is None and len(state.ats) == 1 and state.turn is None:
        found: Any = [each[numbers] for each in _column_evidence(state, sets)]
    else:
        chosen = [sets.get(int(number), [number]) for number in numbers]
        found = _lost_evidence(state, [np.flatnonzero(np.isin(owners, each)) for each in chosen])
    sizes = np.bincount(blocks)[numbers]
    evidence, error = found[0], found[1] + 1e-9 * np.abs(found[0])
    bounds = np.stack([evidence, evidence + error, evidence - error])
    likely, low, high = _tails(state, bounds, sizes)
    expected = np.isin(blocks, numbers[likely < level])
    close = np.isin(blocks, numbers[(low < level) & (level <= high)])
    support = np.asarray(state.fit.support, dtype=int)
    claimed = np.isin(np.arange(w.size), support)
    different = claimed != expected
    wrong = int((different & ~close).sum()) + support.size - int(claimed.sum())
    named = tuple(np.sort(found) for found in ties if claimed[found].any())
    return Ball(float(wrong), 0.0 if wrong else float((different & close).sum())), named


def tied_columns(state: Evaluation) -> list[Any]:
    """Return sets of proportional columns; the first is the first one that is in use.

    Columns that explain less than a hundredth of their prior variance cannot be in the support.
    Proportional columns have equal z/‖φ‖²: only columns where it is nearly equal are compared.
    """
    w, dictionaries = state.prior.relevance, [at.rows.dictionary for at in state.ats]
    norms = sum(at.rows.powers for at in state.ats)
    z = state.z.value
    level = ratio(z, norms)
    order = np.argsort(level)
    places = np.searchsorted(level[order], [level * (1.0 - NEARLY), level * (1.0 + NEARLY)])
    found, done = [], norms <= 0
    for column in np.flatnonzero((w * z > IN_USE) & (places[1] - places[0] > 1)):
        near = np.sort(order[places[0, column] : places[1, column]])
        near = near[~done[near]]
        if done[column] or near.size < 2:
            continue
        inner = sum(Phi[:, [column]].conj().T @ Phi[:, near] for Phi in dictionaries)[0]
        tied = near[squares(inner) >= (1.0 - TIED) * norms[column] * norms[near]]
        if tied.size > 1:
            found.append(np.append(column, tied[tied != column]))
            done[tied] = True
    return found


def _column_evidence(state: Evaluation, sets: dict[int, Any]) -> tuple[Any, Any]:
    """Return n(t − 1 − log t) with t = Q/(z(1 − wz)), zero if t ≤ 1, for single columns.

    Proportional columns act as one, with the sum of their relevances.
    """
    at, w = state.ats[0], state.prior.relevance.copy()
    norms = at.rows.powers
    for first, found in sets.items():
        w[first] = (w[found] * norms[found]).sum() / norms[first]
    z, Q, n = at.z.value, at.q.value, at.n * (2 if at.rows.complex_ else 1)
    variance = np.maximum(1.0 - w * z, gamma(0))
    growth = np.maximum(ratio(Q, z * variance), 1.0)
    evidence = np.where(w > 0, n * (growth - 1.0 - np.log(growth)), 0.0)
    relative = 2.0 * at.rounding * (1.0 + 2.0 * np.sqrt(ratio(z * at.fit, Q)) + w * z / variance)
    return evidence, np.where(w > 0, n * growth * relative, 0.0)


def _lost_evidence(state: Evaluation, chosen: list[Any]) -> tuple[Any, Any]:
    """Return twice the log-likelihood lost without some columns of ΦA, and its error.

    Without them Σ becomes Σ − HHᴴ for H = ΦA, with the determinant |Σ||V|, V = I − KᴴK, and the
    inverse Σ⁻¹ + Σ⁻¹HV⁻¹HᴴΣ⁻¹ (Woodbury).
    """
    lost, error = np.zeros(len(chosen)), np.zeros(len(chosen))
    for at in state.ats:
        parts, loading = (2 if at.rows.complex_ else 1), at.loading
        for place, members in enumerate(chosen):
            right = at.right[members]
            # one posterior covariance of the latents for each of the different responses
            metric = np.einsum("ak,kt,bk->tab", right, at.shares, right.conj())
            values, axes = np.linalg.eigh(np.eye(len(members)) - metric)
            values = np.maximum(values, gamma(0))
            along = squares(adjoint(axes) @ loading[members].T[:, :, None])[:, :, 0]
            own = (along / values).sum() + at.n / len(values) * np.log(values).sum()
            lost[place] += parts * own
            size = abs(own) + at.n * len(members)
            error[place] += 8.0 * parts * at.rounding / values.min() * size
    return lost, error


def _tails(state: Evaluation, evidence: Any, sizes: Any) -> Any:
    """Return the probabilities that blocks of such sizes have more evidence by chance alone.

    That of one variance is χ²₁ (Wilks 1938). For a covariance it is a mixture at the boundary of
    the semi-definite matrices (`BOUNDARY`), or χ² with as many degrees of freedom as parameters.
    """
    positive = np.maximum(evidence, 0.0)
    if not state.kind.full_groups:
        return chdtrc(1, positive)
    real, found = not state.ats[0].rows.complex_, np.ones(positive.shape)
    for size in np.unique(sizes):
        here = np.broadcast_to(sizes == size, positive.shape) & (positive > 0)
        parameters = size * (size + 1) // 2 if real else size**2
        weights = BOUNDARY.get(int(size)) if real else None
        weights = (0.0,) * parameters + (1.0,) if weights is None else weights
        tails = [w * chdtrc(k, positive[here]) for k, w in enumerate(weights) if k and w]
        found[here] = np.sum(tails, axis=0)
    return found


def _leverage(state: Evaluation) -> tuple[Any, Any, float]:
    """Return the rows that carry more than their share, these shares, and the largest share.

    Shares are those of the squares of the responses, relative to the noise of the row, and of the
    columns of a dense dictionary, on average. The coefficients of a column in use rest on the rows
    in which its squares are; a column that has one value in all other rows does so by design. A row
    that is given m times has m shares.
    """
    found, values, most, offset = [np.zeros(0, dtype=int)], [np.zeros(0)], 0.0, 0
    used = np.flatnonzero(state.prior.relevance * state.z.value > ACTIVE)
    for rows, sample in ((at.rows, at.rows.sample) for at in state.ats):
        if rows.whitener.ndim == 2:
            continue  # rows are mixed by the whitener
        kept = np.flatnonzero(rows.whitener)
        Phi, weights = rows.dictionary, np.maximum(sample.weights[kept], 1.0)
        shares = squares(rows.responses).sum(axis=1) / max(power(rows.responses), 1e-300)
        if not isinstance(Phi, SparseColumns):
            inverse = ratio(1.0, rows.powers) / max(np.count_nonzero(rows.powers), 1)
            columns = np.einsum("ij,ij,j->i", Phi.conj(), Phi, inverse).real
            shares = np.maximum(shares, columns)
        shares = shares / weights
        high = np.where(shares > INFLUENCE, shares, 0.0)
        terms = squares(Phi[:, used]) * ratio(1.0, rows.powers[used]) / weights[:, None]
        for row, place in zip(*np.nonzero(terms > COEFFICIENT), strict=True):
            column = sample.dictionary[:, [used[place]]]
            column = column.toarray() if scipy.sparse.issparse(column) else column
            others = np.delete(column[kept, 0], row)
            if others.size > 1 and (others != others[0]).any():
                high[row] = max(high[row], terms[row, place])
        found.append(kept[high > 0] + offset)
        values.append(high[high > 0])
        most = max(most, float(shares.max()), float(high.max()))
        offset += len(sample.responses)
    return np.concatenate(found), np.concatenate(values), most


def _path_correlation(state: Evaluation) -> float | None:
    """Return the smallest correlation of the strongest column with those that replace it.

    It is that of the spans of their groups, if there are any: 1 if the strongest column stays.
    """
    path, labels = state.fit.path, state.kind.labels
    if path is None or path.get("overlap") is None or path["column"] < 0:
        return None
    level, noise = np.asarray(path["noise"]), state.ats[0].noise
    near = (level >= noise / 10.0) & (level <= 10.0 * noise)
    changed = np.asarray(path.get("changed", path["strongest"] != path["column"]), dtype=bool)
    others = np.unique(np.asarray(path["strongest"])[changed & near])

    def span(column: int) -> Any:
        members = np.flatnonzero(labels == labels[column]) if labels is not None else [column]
        return group_axes(state.ats[0].rows.dictionary, np.array([members]), DEPENDENT)[0][0]

    here = span(path["column"])
    found = [float(np.linalg.norm(here.conj().T @ span(int(other)), 2)) for other in others]
    return min([1.0, *found])
