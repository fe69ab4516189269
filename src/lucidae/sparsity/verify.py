"""The verifier of the sparse family: measured values, from fitted numbers and given rows alone.

All fits are one model, Σ = γR + Σ_b Φ_bΓ_bΦ_bᴴ for blocks b of columns of a dictionary Φ. A column
is a 1 × 1 block Γ = w, a group has Γ = wI or a covariance of its own, and several problems share
their blocks. The gradient of the energy per response, log|Σ| + tr(Σ⁻¹XXᴴ)/n, is one matrix,

    M = Σ⁻¹ − Σ⁻¹(XXᴴ/n)Σ⁻¹,

and every condition of optimality follows from it: Φ_bᴴMΦ_b of block b, tr(RM) of γ, and diag M of
noise variances of rows. With Σ = TᴴT, C = T⁻ᴴΦ and Y = T⁻ᴴX, M is T⁻¹(I − YYᴴ/n)T⁻ᴴ: the block has
S_b − Q_b with S = CᴴC and Q = CᴴYYᴴC/n, for a single column the numbers z and Q.

The module reads the rows itself (centring, weights, whitening, units) and shares no code with the
solvers. T is the triangle of [(ΦA)ᴴ; √γ I] with AAᴴ = Γ, so that Σ is never formed: results are
accurate to ε√cond(Σ), while solvers that form Σ are accurate to ε cond(Σ).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from scipy.linalg import solve_triangular
from scipy.special import chdtrc

from lucidae.certificates.bounds import EPS, TINY, Ball, epsilon, gamma, triangle

FINEST = 1e-6
"""Smallest distance to stationarity that a certificate requires, even if `tol` is smaller."""

LOOSEST = 1e-2
"""Largest distance that counts as stationary, even if `tol` is larger."""

ACTIVE = 1e-6
"""A latent is active if its posterior variance is below 1 by more than this; rows likewise."""

COLLAPSE = 1e-3
"""Relative excess (Q − z)/z from which a collapsed latent should be active: it gains 5e-7."""

SMALLEST_NOISE, SMALLEST_LEARNED, SMALLEST_ROW, FALLBACK = 1e-14, 1e-10, 1e-6, 0.1
"""Relative to the mean square response: the smallest γ that is allowed, that is learned, that is
learned for a row, and the γ of a single row, as the estimator documents them."""

REACHED = 32.0
"""Error of solvers that form Σ in float64, in units of ε cond(Σ)."""

STORED = 8.0
"""Error allowed because relevances are rounded when they are stored, divided by ε(1 + √a).

A relative change δ ≤ ε/2 of a relevances changes the measured values by at most (3 + 2√a)δ."""

DEPENDENT = 1e-10
"""Singular value of a group's unit columns, relative to the largest, that counts as zero."""

INDEPENDENT = 1e-4
"""Smallest eigenvalue of the Gram matrix of unit columns above which it is accurate enough."""

CONSTANT = 8.0
"""A column that varies by fewer ε, relative to its largest entry, is constant."""

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
    # how γ was found: "given", "learn", "learn_diagonal", "cv", "cv_1se", "fallback" or unknown
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
    rounding: float = EPS  # machine epsilon of the precision in which the numbers are stored
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


@dataclass(frozen=True)
class Figures:
    """Measured values of one fit; None means that there is nothing to measure."""

    n_columns: int
    n_rows: int
    n_active: int
    used: Any  # the columns with coefficients other than zero
    row_norms: Any  # of these columns: the norm of the row of U times that of the column
    relative_error: float  # ‖X − ΦU‖/‖X‖
    posterior: str = "full"
    full_groups: bool = False
    violation: Ball | None = None  # distance to the KKT conditions
    tolerance: float = FINEST
    covariance: float | None = None  # deviation of group_covariances_ from covariances
    mean: Ball | None = None  # distance of the coefficients from the posterior mean
    mean_tolerance: float = FINEST
    noise_rule: str = ""
    noise: Ball | None = None  # relative distance of γ from what its rule gives
    energy: Ball | None = None  # relative difference of the reported energy
    variance: Ball | None = None  # difference of the predictive variances, divided by γ
    support: Ball | None = None  # number of columns that are wrong in support_; error: undecided
    tied: tuple[Any, ...] = ()  # sets of columns of which each can replace the others
    collapse: Ball | None = None  # number of collapsed latents that would lower the energy
    full_gains: int = 0  # the same for the energy of the full posterior
    reach: float = 0.0  # expected distance of solvers that form Σ in float64
    noise_rank: tuple[int, int, float] | None = None  # rank and size of R, power outside its range
    path: dict[str, Any] | None = None
    correlation: float | None = None  # smallest one of the strongest column and its successors
    leverage: tuple[Any, Any, float] | None = None  # rows, their shares, and the largest share
    response: tuple[str, float] | None = None  # how B was found, and its error
    evidence: dict[str, Any] = field(default_factory=dict)
    rows: Any = None  # the prepared rows (Φ, X), for claims of uniqueness


# 1. Rows -------------------------------------------------------------------------------------


class PreparedRows(NamedTuple):
    """Rows of one problem: centred, whitened by their noise, divided by powers of two."""

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
    powers: Any = None  # (κ,): squared norms of the columns

    @property
    def mean_square(self) -> float:
        """Sum of squares of responses over distinct rows and responses, the unit of γ."""
        return power(self.responses) / (self.distinct * self.responses.shape[1]) or 1.0


def squares(values: Any) -> Any:
    """Return the squares of the absolute values of real or complex numbers."""
    return values.real**2 + values.imag**2 if np.iscomplexobj(values) else values**2


def power(values: Any) -> float:
    """Return the sum of squares of all numbers."""
    return float(np.vdot(values, values).real)


def adjoint(matrices: Any) -> Any:
    """Return the conjugate transposes of matrices."""
    return np.swapaxes(matrices.conj(), -1, -2)


def times_power(values: Any, exponents: Any) -> Any:
    """Return numbers times two to the power of the exponents, without rounding."""
    if not np.iscomplexobj(values):
        return np.ldexp(values, exponents)
    return np.ldexp(values.real, exponents) + 1j * np.ldexp(values.imag, exponents)


def centred(values: Any, shares: Any) -> tuple[Any, Any]:
    """Return values minus their means, and how far the means are from row 0.

    Columns that vary by rounding errors only become exactly zero.
    """
    # The difference of two doubles is rounded relative to itself, so no digits are lost however
    # far the rows are from zero; the second mean removes the rounding errors of the first.
    moved = values - values[0]
    mean = shares @ moved
    moved = moved - mean
    rest = shares @ moved
    moved = moved - rest
    constant = np.abs(moved).max(axis=0) <= CONSTANT * EPS * np.abs(values).max(axis=0)
    return np.where(constant, 0.0, moved), mean + rest


def noise_whitener(noise_cov: Any, rounding: float) -> tuple[Any, float, Any]:
    """Return T with TRTᴴ = I on the range of a matrix R, log|R| there, and a basis of the range.

    Eigenvalues of the correlation matrix that rounding alone produces are left out.
    """
    variances = np.diagonal(noise_cov).real
    scales = np.sqrt(np.where(variances > 0, variances, 1.0))
    correlation = noise_cov / scales / scales[:, None]
    values, vectors = np.linalg.eigh((correlation + correlation.conj().T) / 2.0)
    rank = int((values > max(rounding * values[-1], -10.0 * values[0])).sum())
    if rank == len(noise_cov):
        volume = float(np.log(values).sum() + 2.0 * np.log(scales).sum())
        return (vectors / np.sqrt(values)).conj().T / scales, volume, None
    # R = AAᴴ, and on the range of A = QU the inverse of A is U⁻¹Qᴴ.
    half = scales[:, None] * vectors[:, -rank:] * np.sqrt(values[-rank:])
    basis, upper = np.linalg.qr(half)
    matrix = solve_triangular(upper, basis.conj().T)
    return matrix, 2.0 * float(np.log(np.abs(np.diagonal(upper))).sum()), basis


def prepared(sample: Sample) -> PreparedRows:
    """Return the rows of positive weight, centred and whitened; frequencies are part of the noise.

    A row that is given m times is one row with noise variance R_ii/m.
    """
    Phi, X, R = sample.dictionary, sample.responses, sample.noise_cov
    weights = np.ones(Phi.shape[0]) if sample.weights is None else sample.weights
    total, volume, lost = float(weights.sum()), 0.0, 0.0
    shares, axis, whitener, ones = weights / total, None, np.sqrt(weights), None
    basis = None
    if R is not None and R.ndim == 1:
        seen = R > 0
        whitener = np.sqrt(np.where(seen, weights / np.where(seen, R, 1.0), 0.0))
        volume = float(weights[seen] @ np.log(R[seen]))
        total = float(weights[seen].sum())
    elif R is not None:
        whitener, volume, basis = noise_whitener(R, 10.0 * len(R) * apparent_rounding(R))
        total = float(len(whitener))
    dimension, intercept = total, sample.intercept
    if intercept and R is not None:
        ones = whitener if whitener.ndim == 1 else whitener.sum(axis=1)
        sizes = whitener if whitener.ndim == 1 else np.linalg.norm(whitener, axis=1)
        least = 1e-7 if R.ndim == 1 else max(1e-7, 10.0 * len(R) * apparent_rounding(R))
        intercept = bool(np.linalg.norm(ones) > least * sizes.max() * ones.size**0.5)
        if intercept:  # the means of generalised least squares
            shares = ones**2 if whitener.ndim == 1 else ones.conj() @ whitener
            shares = shares / shares.sum()
            volume += float(np.log(power(ones)) - np.log(weights.sum()))
    if intercept:
        dimension -= 1.0
    kept = np.flatnonzero(whitener) if whitener.ndim == 1 else np.arange(len(whitener))
    if intercept and ones is not None:
        axis = (ones / np.linalg.norm(ones))[kept]
    if R is None:
        distinct = count_distinct(Phi[kept], X[kept])
    mean = shares if sample.intercept else None
    moved = X if mean is None else centred(X, mean)[0]
    if R is not None and power(moved) > 0:  # what lies outside of the range of R
        inside = moved[R > 0] if R.ndim == 1 else moved
        inside = inside if basis is None else basis.conj().T @ moved
        lost = max(1.0 - power(inside) / power(moved), 0.0)
    X = whitened(whitener, moved, kept)
    if scipy.sparse.issparse(Phi):
        Phi = SparseColumns(Phi, mean, whitener)
    else:
        Phi = whitened(whitener, Phi if mean is None else centred(Phi, mean)[0], kept)
    if R is not None:
        column = (whitener if whitener.ndim == 1 else whitener.sum(axis=1))[kept]
        distinct = count_distinct(np.column_stack([Phi, column]), X)
    imaginary = any(np.iscomplexobj(part) and bool(part.imag.any()) for part in (Phi, X))
    return PreparedRows(
        Phi, X, mean, whitener, axis, total, dimension, distinct, imaginary, volume, lost,
    )  # fmt: skip


def whitened(whitener: Any, values: Any, kept: Any) -> Any:
    """Return T times the values; a vector is a diagonal matrix of which rows are `kept`."""
    if whitener.ndim == 2:
        return whitener @ values
    if (whitener == 1.0).all():
        return values
    return whitener[kept, None] * values[kept]


def apparent_rounding(values: Any) -> float:
    """Return the machine epsilon of float32 for numbers that it represents, else of float64."""
    single = np.complex64 if np.iscomplexobj(values) else np.float32
    return epsilon(single) if (values.astype(single) == values).all() else EPS


def count_distinct(Phi: Any, X: Any) -> int:
    """Return the number of different rows of the dictionary and the responses taken together."""
    if not scipy.sparse.issparse(Phi):
        first = {row.tobytes() for row in np.ascontiguousarray(Phi[:, :4]) + 0.0}
        if len(first) == len(Phi):  # rows whose first entries differ are different
            return len(first)
        return len({row.tobytes() for row in np.hstack([Phi, X]) + 0.0})
    rows = scipy.sparse.csr_array(Phi, copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    bounds = zip(rows.indptr[:-1], rows.indptr[1:], X + 0.0, strict=True)
    return len({(rows.indices[a:b].tobytes(), rows.data[a:b].tobytes(), x.tobytes())
                for a, b, x in bounds})  # fmt: skip


class SparseColumns:
    """A sparse dictionary whose columns are centred, weighted and made dense when they are read."""

    def __init__(self, matrix: Any, shares: Any, whitener: Any) -> None:
        self.kept = np.flatnonzero(whitener)
        self.matrix = scipy.sparse.csc_array(matrix)
        self.roots, self.dtype = whitener, matrix.dtype
        self.shape = self.kept.size, matrix.shape[1]
        self.shifts = np.zeros(self.shape[1], dtype=int)
        self.lowest, self.mean = np.zeros(self.shape[1]), np.zeros(self.shape[1])
        self.varying, self.peaks = np.ones(self.shape[1]), np.zeros(self.shape[1])
        for part in self.parts():
            block = self.matrix[:, part].toarray()
            if shares is not None:
                moved, self.mean[part] = centred(block, shares)
                self.lowest[part], self.varying[part] = block[0], moved.any(axis=0)
                block = moved
            self.peaks[part] = np.abs(block * whitener[:, None]).max(axis=0)

    def parts(self) -> Iterator[slice]:
        """Return slices of the columns that fit in memory."""
        width = max(BLOCK_ENTRIES // self.matrix.shape[0], 1)
        return (slice(a, min(a + width, self.shape[1])) for a in range(0, self.shape[1], width))

    def __getitem__(self, key: Any) -> Any:
        index = key[1]
        moved = (self.matrix[:, index].toarray() - self.lowest[index]) - self.mean[index]
        moved = moved * self.varying[index] * self.roots[:, None]
        return np.ldexp(moved[self.kept], -self.shifts[index])

    def row_blocks(self, X: Any) -> Iterator[Any]:
        """Yield blocks of the rows of [Φ | X]."""
        rows = scipy.sparse.csr_array(self.matrix)[self.kept]
        step = max(BLOCK_ENTRIES // (self.shape[1] + X.shape[1]), self.shape[1] + X.shape[1])
        for start in range(0, self.shape[0], step):
            part = slice(start, start + step)
            moved = ((rows[part].toarray() - self.lowest) - self.mean) * self.varying
            scaled = np.ldexp(moved * self.roots[self.kept][part, None], -self.shifts)
            yield np.hstack([scaled, X[part]])


def column_blocks(Phi: Any) -> Iterator[tuple[slice, Any]]:
    """Return slices of the columns of a dictionary, each with its columns as a dense array."""
    if isinstance(Phi, SparseColumns):
        return ((part, Phi[:, part]) for part in Phi.parts())
    return iter([(slice(0, Phi.shape[1]), Phi)])


def column_powers(Phi: Any) -> Any:
    """Return the squared norms of the columns of a dictionary."""
    found = [np.einsum("ij,ij->j", block.conj(), block).real for _, block in column_blocks(Phi)]
    return np.concatenate(found)


class PowersOfTwo(NamedTuple):
    """Exponents of the powers of two by which columns and responses are divided, for all problems.

    They make the measured values independent of the units of the data, and prevent overflow.
    """

    columns: Any  # (κ,)
    responses: int

    @property
    def coefficients(self) -> Any:
        """Exponents for coefficients."""
        return self.columns - self.responses


def in_units(problems: list[PreparedRows], labels: Any) -> tuple[list[PreparedRows], PowersOfTwo]:
    """Return the rows with columns and responses divided by powers of two; groups share theirs."""

    def exponents(peaks: Any) -> Any:
        return np.where(peaks > 0, np.frexp(peaks)[1], 0)

    dictionaries = [rows.dictionary for rows in problems]
    peaks = [each.peaks if isinstance(each, SparseColumns) else np.abs(each).max(axis=0, initial=0)
             for each in dictionaries]  # fmt: skip
    shifts = exponents(largest_in(np.max(peaks, axis=0), labels))
    shift = int(exponents(max(float(np.abs(rows.responses).max()) for rows in problems)))
    scaled = []
    for rows in problems:
        if isinstance(rows.dictionary, SparseColumns):
            rows.dictionary.shifts, Phi = shifts, rows.dictionary
        else:
            Phi = times_power(rows.dictionary, -shifts)
        X = times_power(rows.responses, -shift)
        scaled.append(rows._replace(dictionary=Phi, responses=X, powers=column_powers(Phi)))
    return scaled, PowersOfTwo(shifts, shift)


def group_numbers(groups: Any, count: int) -> Any:
    """Return the number of each column's group, from 0 in the order of the given labels.

    `groups` are labels, or the number of consecutive columns in each group, or None.
    """
    if groups is None:
        return None
    labels = np.arange(count) // groups if np.ndim(groups) == 0 else groups
    return np.unique(labels, return_inverse=True)[1]


def largest_in(values: Any, labels: Any) -> Any:
    """Return, for each column, the largest of the values of its group."""
    if labels is None:
        return values
    largest = np.full(labels.max() + 1, -np.inf)
    np.maximum.at(largest, labels, values)
    return largest[labels]


def totals_in(values: Any, labels: Any) -> Any:
    """Return, for each column, the sum of the values of its group."""
    return values if labels is None else np.bincount(labels, values)[labels]


def blocks_by_size(labels: Any, count: int) -> list[tuple[Any, Any]]:
    """Return numbers (k,) and columns (k, m) of the blocks of each size m, ascending."""
    if labels is None:
        return [(np.arange(count), np.arange(count)[:, None])]
    order, sizes = np.argsort(labels, kind="stable"), np.bincount(labels)
    first = np.cumsum(sizes) - sizes
    return [
        (numbers, order[first[numbers][:, None] + np.arange(size)])
        for size in np.unique(sizes)
        for numbers in (np.flatnonzero(sizes == size),)
    ]


# 2. Prior ------------------------------------------------------------------------------------


class Prior(NamedTuple):
    """Prior covariances of the blocks, as roots A of those that are not zero."""

    relevance: Any  # (κ,): the relevances w, or the diagonals of Γ
    blocks: list[tuple[Any, Any]]  # columns (k, m) and roots (k, m, m), or (k, 1, 1) = √w
    width: int  # number of columns of ΦA
    labels: Any  # of groups that have covariances of their own
    deviation: float | None = None  # from symmetric, positive semi-definite, diagonal w
    # bounds on errors because entries of Γ cancel where columns are nearly dependent, relative to
    # Σ and to √Σ; and the precision to which such columns determine the weakest direction
    lost: float = 0.0
    blurred: float = 0.0
    vague: float = 0.0

    @property
    def columns(self) -> Any:
        """The columns that the columns of ΦA belong to."""
        return np.concatenate([np.zeros(0, int), *(members.ravel() for members, _ in self.blocks)])

    def inexact(self, noise: float) -> float:
        """Return the error that cancelling entries of Γ cause, relative to Σ."""
        return float(self.lost / noise + self.blurred / noise**0.5)

    def half(self, Phi: Any) -> Any:
        """Return ΦA."""
        parts = [np.zeros((Phi.shape[0], 0))]
        for members, roots in self.blocks:
            if members.shape[1] == 1:
                parts.append(Phi[:, members[:, 0]] * roots[:, 0, 0])
                continue
            columns = stacked(Phi, members)
            found = columns @ roots
            worn = np.linalg.norm(columns, axis=(1, 2)) * np.linalg.norm(roots, axis=(1, 2))
            worn = worn > 100.0 * np.linalg.norm(found, axis=(1, 2))
            if worn.any():  # nearly dependent columns: entries cancel
                found[worn] = extended_product(columns[worn], roots[worn])
            parts.append(np.moveaxis(found, 0, 1).reshape(Phi.shape[0], -1))
        return np.hstack(parts)

    def split(self, half: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Yield columns, roots and the parts (k, r, m) of a matrix with the columns of ΦA."""
        start = 0
        for members, roots in self.blocks:
            part = half[:, start : start + members.size].reshape(len(half), *members.shape)
            yield members, roots, np.moveaxis(part, 0, 1)
            start += members.size


def extended_product(first: Any, second: Any) -> Any:
    """Return the product of stacks of matrices, computed in extended precision if there is one."""
    kind = np.result_type(first, second)
    wide = np.result_type(kind, np.longdouble)
    return (first.astype(wide) @ second.astype(wide)).astype(kind)


def shared_prior(relevance: Any) -> Prior:
    """Return the prior of single columns, or of groups whose columns share one relevance."""
    used = np.flatnonzero(relevance)
    blocks = [(used[:, None], np.sqrt(relevance[used])[:, None, None])]
    return Prior(relevance, blocks, used.size, None)


def full_prior(fit: Fit, relevance: Any, Phi: Any, units: PowersOfTwo, labels: Any) -> Prior | None:
    """Return the prior of groups with covariances of their own; None if numbers are not finite."""
    sizes = blocks_by_size(labels, labels.size)
    largest = sizes[-1][1].shape[1]
    shape = (int(labels.max()) + 1, largest, largest)
    given, roots = fit.covariances, fit.roots
    if np.shape(given) != shape or not np.isfinite(given).all():
        return None
    if np.shape(roots) != shape or not np.isfinite(roots).all():
        roots = np.zeros(shape)
    lengths = np.sqrt(column_powers(Phi))
    lengths = np.where(lengths > 0, lengths, 1.0)
    blocks, live, deviation, lost, blurred, weakest = [], 0, 0.0, 0.0, 0.0, 1.0
    for numbers, members in sizes:
        size = members.shape[1]
        own = given[numbers, :size, :size]
        if np.count_nonzero(given[numbers]) > np.count_nonzero(own):  # padding that is not zero
            deviation = np.inf
        exponents = units.coefficients[members[:, :1]].astype(int)
        scales = lengths[members]
        scaled = times_power(own, 2 * exponents[:, :, None])
        scaled = scaled * scales[:, :, None] * scales[:, None, :]
        diagonal = relevance[members] * scales**2
        deviation = float(np.max([deviation, covariance_deviation(scaled, diagonal)]))
        used = np.flatnonzero(own.any(axis=(1, 2)))
        if not used.size:
            continue
        own, scaled, scales = own[used], scaled[used], scales[used]
        factor = times_power(roots[numbers[used], :size, :size], exponents[used][:, :, None])
        same = is_root(roots[numbers[used], :size, :size], own)
        if not same.all():  # the root of Γ itself, which loses digits that cancel
            found, axes = np.linalg.eigh(0.5 * (scaled + adjoint(scaled))[~same])
            half = axes * np.sqrt(np.maximum(found, 0.0))[:, None, :] / scales[~same][:, :, None]
            factor = factor.astype(np.result_type(factor, half))
            factor[~same] = half
            lost = max(lost, float((gamma(size) * np.abs(scaled[~same]).sum(axis=(1, 2))).max()))
        columns = stacked(Phi, members[used]) / scales[:, None, :]
        _, values, right = np.linalg.svd(columns, full_matrices=size > columns.shape[1])
        values = np.pad(values, ((0, 0), (0, size - values.shape[1])))
        seen = values > 0.5 * DEPENDENT * values[:, :1]
        # Where columns are dependent, the data say nothing: there a covariance is zero.
        beyond = np.where(seen[:, :, None], 0.0, right) @ scaled
        share = np.linalg.norm(beyond, axis=(1, 2)) / np.linalg.norm(scaled, axis=(1, 2))
        deviation = float(np.max([deviation, np.where(seen.all(axis=1), 0.0, share).max()]))
        values = np.where(seen, values, np.inf)
        weakest = min(weakest, float((values.min(axis=1) / values[:, 0]).min()))
        # Products ΦA of unit columns in extended precision; see `Prior.half`.
        wide = epsilon(np.longdouble)
        norms = np.linalg.norm(scales[:, :, None] * factor, axis=(1, 2))
        found = np.linalg.norm(columns @ (scales[:, :, None] * factor), axis=(1, 2))
        worn = np.where(norms > 100.0 * found, wide * size**1.5 * norms, 0.0)
        blurred = max(blurred, float(worn.max()))
        blocks.append((members[used], factor))
        live += members[used].size
    vague = EPS / weakest
    return Prior(relevance, blocks, live, labels, deviation, lost, blurred, vague)


def is_root(roots: Any, covariances: Any) -> Any:
    """Tell for each matrix A and covariance Γ whether Γ = AAᴴ up to a few ε√(Γᵢᵢ Γⱼⱼ)."""
    deviations = np.sqrt(np.abs(np.diagonal(covariances, axis1=1, axis2=2)))
    allowed = gamma(16.0 * (roots.shape[1] + 1)) * deviations[:, :, None] * deviations[:, None, :]
    return (np.abs(roots @ adjoint(roots) - covariances) <= allowed).all(axis=(1, 2))


def covariance_deviation(blocks: Any, diagonals: Any) -> float:
    """Return the largest relative deviation of matrices from covariances with given diagonals."""
    scale = np.abs(blocks).max(axis=(1, 2))
    skewed = np.abs(blocks - adjoint(blocks)).max(axis=(1, 2))
    apart = np.abs(np.diagonal(blocks, axis1=1, axis2=2) - diagonals).max(axis=1)
    gap = np.maximum(skewed, apart)
    lowest = np.linalg.eigvalsh(0.5 * (blocks + adjoint(blocks)))[:, 0]
    size = np.where(scale > 0, scale, 1.0)
    found = np.where(scale > 0, np.maximum(gap, -lowest) / size, np.where(gap == 0, 0.0, np.inf))
    return float(found.max(initial=0.0))


# 3. Evaluation -------------------------------------------------------------------------------


class Spanned(NamedTuple):
    """Dictionary and responses in an orthonormal basis of the span of the columns."""

    dictionary: Any
    responses: Any
    outside: float  # sum of squares of the responses outside of the span


def in_span(Phi: Any, X: Any) -> Spanned:
    """Return the problem in as few rows as there are columns, if there are more rows."""
    count = Phi.shape[1]
    if Phi.shape[0] <= count:
        return Spanned(Phi, X, 0.0)
    if isinstance(Phi, SparseColumns):
        R, _ = triangle(Phi.row_blocks(X))
        return Spanned(R[:count, :count], R[:count, count:], power(R[count:, count:]))
    Q, R = np.linalg.qr(Phi)
    inside = Q.conj().T @ X
    return Spanned(R, inside, power(X - Q @ inside))


class At(NamedTuple):
    """One problem at given prior covariances, scaled by a factor, and a noise variance."""

    rows: PreparedRows
    spanned: Spanned
    noise: float
    scale: float
    targets: Any  # (r, n): Y = T⁻ᴴX
    half: Any  # (r, a): K = T⁻ᴴΦA, so that KᴴK is one minus the posterior covariance of latents
    columns: Any  # (r, κ): C = T⁻ᴴΦ; None for a sparse dictionary
    root: Any  # (r, ·): a matrix with the same YYᴴ and at most r columns
    z: Any  # (κ,): the diagonals of S and Q
    q: Any
    mean: Any  # (κ, n): the posterior mean ΓΦᴴΣ⁻¹X
    triangle: Any  # (r, r): T
    precise: Any  # (r, n): Σ⁻¹X in the span
    fit: float  # tr(XᴴΣ⁻¹X)/n
    log_determinant: float  # log|Σ| on the span
    residual: float  # ‖X − ΦU‖²/n
    rounding: float  # bound on the relative error of T
    reach: float  # expected error of solvers that form Σ in float64

    @property
    def n(self) -> int:
        """Number of responses."""
        return int(self.targets.shape[1])

    def slope_errors(self) -> Any:
        """Return bounds on the rounding errors of Q − z, one for each column."""
        # An error E of T changes φᴴΣ⁻¹φ by at most 2z‖E‖/√γ and ‖φᴴΣ⁻¹X‖/√n by at most
        # 2√(z fit)‖E‖/√γ.
        shift = 2.0 * self.rounding * np.sqrt(self.z * self.fit)
        return 2.0 * self.rounding * self.z + 2.0 * np.sqrt(self.q) * shift + shift**2


def upper(matrix: Any) -> Any:
    """Return the triangular factor of the QR decomposition of a matrix."""
    return np.linalg.qr(matrix, mode="r")


def factorised(half: Any, X: Any, noise: float) -> tuple[Any, Any]:
    """Return T with Σ = TᴴT = ΦΓΦᴴ + γI for half ΦA, and T⁻ᴴX."""
    T = upper(np.vstack([half.conj().T, noise**0.5 * np.eye(len(X))]))
    return T, solve_triangular(T, X, trans="C", check_finite=False)


def evaluated(
    rows: PreparedRows, spanned: Spanned, prior: Prior, noise: float, scale: float = 1.0
) -> At:
    """Return all quantities that follow from the prior covariances and the noise variance."""
    Phi, X, outside = spanned
    size, n = X.shape
    half = scale**0.5 * prior.half(Phi)
    T, targets = factorised(half, X, noise)

    def whiten(block: Any) -> Any:
        return solve_triangular(T, block, trans="C", check_finite=False)

    root = upper(targets.conj().T).conj().T if n > size else targets
    half, columns = whiten(half), None
    z, q = np.zeros(Phi.shape[1]), np.zeros(Phi.shape[1])
    for part, block in column_blocks(Phi):
        columns = whiten(block)
        z[part] = column_powers(columns)
        q[part] = squares(columns.conj().T @ root).sum(axis=1) / n
    latent = half.conj().T @ targets
    mean = np.zeros((Phi.shape[1], n), np.result_type(half, targets))
    for members, roots, part in prior.split(latent.conj().T):
        found = scale**0.5 * roots @ adjoint(part)
        mean[members] = found
    precise = solve_triangular(T, targets, check_finite=False)
    # ‖T‖² ≤ min(‖T‖₁‖T‖_∞, ‖T‖_F²), and the rounding errors of a factorisation grow as the root
    # of its size (Higham & Mary 2019).
    norm = min(float(np.linalg.norm(T, 1) * np.linalg.norm(T, np.inf)), power(T))
    condition = max(norm / noise, 1.0)
    return At(
        rows, spanned, noise, scale, targets, half,
        None if isinstance(Phi, SparseColumns) else columns, root, z, q, mean, T, precise,
        (power(targets) + outside / noise) / n,
        2.0 * float(np.log(np.abs(np.diagonal(T))).sum()),
        (power(noise * precise) + outside) / n,
        gamma(8.0 * (size + prior.width + 8) ** 0.5) * condition**0.5 + prior.inexact(noise),
        REACHED * EPS * condition + prior.inexact(noise),
    )  # fmt: skip


# 4. The measured values ----------------------------------------------------------------------


def measure(samples: Sequence[Sample], fit: Fit, kind: EnergyKind = EnergyKind()) -> Figures:  # noqa: B008
    """Return the measured values of a fit on the rows of one or several problems."""
    with np.errstate(all="ignore"):  # figures of absurd numbers may overflow, and then fail
        return _measured(samples, fit, kind)


def _measured(samples: Sequence[Sample], fit: Fit, kind: EnergyKind) -> Figures:
    kind = kind._replace(labels=group_numbers(kind.labels, len(fit.coef[0])))
    labels, tolerance = kind.labels, max(min(kind.tolerance, LOOSEST), FINEST)
    problems, units = in_units([prepared(sample) for sample in samples], labels)
    coef = [times_power(U, units.coefficients[:, None]) for U in fit.coef]
    figures = _of_coefficients(problems, coef, kind)
    if samples[0].noise_cov is not None:
        found = len(problems[0].responses), len(samples[0].responses), problems[0].outside
        figures = replace(figures, noise_rank=found)
    if fit.noise is None:
        return figures
    noise = [float(np.ldexp(level, -2 * units.responses)) for level in fit.noise]

    # 1) the prior covariances: relevances, what coefficients imply, or covariances of groups
    implied = 0.0
    if fit.relevance is None:
        w, implied = implied_relevance(problems[0], coef[0], noise[0], fit.rounding)
    else:
        w = np.ldexp(np.asarray(fit.relevance, dtype=float), 2 * units.coefficients)
    finite = all(np.isfinite(U).all() for U in coef) and np.isfinite(w).all() and (w >= 0).all()
    if not (finite and all(0 < level < np.inf for level in noise)):
        return _failed(figures, fit, tolerance)
    prior: Prior | None = shared_prior(w)
    if kind.full_groups:
        prior = full_prior(fit, w, problems[0].dictionary, units, labels)
    if prior is None or (prior.deviation is not None and not prior.deviation < np.inf):
        return _failed(replace(figures, covariance=np.inf), fit, tolerance)
    if prior.deviation is not None:
        figures = replace(figures, covariance=max(prior.deviation - 4.0 * fit.rounding, 0.0))

    # 2) every problem at these covariances. Correlated responses with B = VΛVᴴ are independent
    # problems with the responses Xv and the covariances λΓ.
    turn, scales = None, None
    if fit.responses is not None:
        if not is_response_covariance(fit.responses, problems[0].responses.shape[1]):
            return _failed(replace(figures, response=("given", np.inf)), fit, tolerance)
        scales, turn = np.linalg.eigh(fit.responses)
    try:
        groups = [
            _evaluated(rows, prior, level, scales, turn)
            for rows, level in zip(problems, noise, strict=True)
        ]
    except np.linalg.LinAlgError:  # γ is so small that its root is lost beside the columns
        return _failed(figures, fit, tolerance)
    state = Evaluation(samples, fit, kind, tolerance, units, problems, coef, prior, groups, turn)
    ats = state.ats

    # 3) the conditions of optimality, all from S and Q
    n_used = int(np.count_nonzero(w))
    stored = STORED * max(fit.rounding, prior.vague) * (1.0 + n_used**0.5)
    reach = min(max(at.reach * (1.0 + at.fit) ** 0.5 for at in ats), LOOSEST)
    figures = replace(
        figures, tolerance=max(tolerance, stored), mean_tolerance=max(FINEST, stored), reach=reach
    )
    figures = _optimality(figures, state, implied)

    # 4) what is reported beside the relevances: coefficients, γ, energy, predictions, support
    mean = _mean_distance(state)
    mean = Ball(mean.value, mean.error + implied * (ats[0].fit + 1.0) ** 0.5)
    if fit.predicted is not None:
        other = prediction_distance(samples[0], problems[0], fit.coef[0], fit.predicted)
        mean = Ball(float(np.max([mean.value, other.value])), max(mean.error, other.error))
    violation = figures.violation
    if fit.relevance is None and violation is not None:
        # Stationary relevances say nothing if they do not give these coefficients.
        worse = float(np.max([violation.value, mean.value]))
        figures = replace(figures, violation=Ball(worse, violation.error))
    variance = None if fit.variances is None else _variance_distance(state)
    support, tied = (None, ()) if fit.support is None else _support(state)
    rows, shares, most = _leverage(state)
    return replace(
        figures, mean=mean, variance=variance, support=support, tied=tied,
        noise_rule=_rule(state), noise=_noise_distance(state, figures),
        energy=_energy_distance(state), response=_response(state),
        leverage=(rows, shares, most), path=fit.path, correlation=_path_correlation(state),
        evidence=figures.evidence | _evidence(state) | {
            "mean_distance": mean.value, "leverage_rows": rows, "leverage_shares": shares,
        } | ({"tied_columns": [found.tolist() for found in tied]} if tied else {}),
    )  # fmt: skip


class Evaluation(NamedTuple):
    """All that the measured values of a fit are computed from."""

    samples: Sequence[Sample]
    fit: Fit
    kind: EnergyKind
    tolerance: float
    units: PowersOfTwo
    problems: list[PreparedRows]
    coef: list[Any]
    prior: Prior
    groups: list[list[At]]  # the evaluated problems of each sample
    turn: Any  # eigenvectors of the covariance of the responses

    @property
    def ats(self) -> list[At]:
        """All evaluated problems."""
        return [at for group in self.groups for at in group]

    @property
    def weights(self) -> list[float]:
        """Share of each evaluated problem in all responses."""
        total = sum(at.n for at in self.ats)
        return [at.n / total for at in self.ats]

    def average(self, values: Callable[[At], Any]) -> Any:
        """Return the mean over all responses of derivatives in the relevances."""
        return sum(weight * at.scale * values(at)
                   for weight, at in zip(self.weights, self.ats, strict=True))  # fmt: skip

    @property
    def pressure(self) -> Any:
        """Derivative of the log-volume: φᴴΣ⁻¹φ, or ‖φ‖²/(γ + w‖φ‖²) of a diagonal posterior."""
        return self.average(lambda at: pressure_of(at, self))


def pressure_of(at: At, state: Evaluation) -> Any:
    """Return the derivatives of the log-volume of one problem in the relevances."""
    if state.kind.posterior != "diagonal":
        return at.z
    norms = at.rows.powers
    return norms / (at.noise + state.prior.relevance * norms)


def _evaluated(rows: PreparedRows, prior: Prior, noise: float, scales: Any, turn: Any) -> list[At]:
    spanned = in_span(rows.dictionary, rows.responses)
    if turn is None:
        return [evaluated(rows, spanned, prior, noise)]
    rotated = [
        spanned._replace(responses=spanned.responses @ turn[:, [t]], outside=0.0)
        for t in range(len(turn))
    ]
    # Outside of the span every direction has the covariance γ alone.
    beyond = rows.responses @ turn
    outside = squares(beyond).sum(axis=0) - [power(each.responses) for each in rotated]
    rotated = [each._replace(outside=max(float(left), 0.0))
               for each, left in zip(rotated, outside, strict=True)]  # fmt: skip
    return [evaluated(rows, each, prior, noise, max(float(value), 0.0))
            for each, value in zip(rotated, scales, strict=True)]  # fmt: skip


def is_response_covariance(matrix: Any, n: int) -> bool:
    """Tell whether `matrix` is a finite symmetric n × n matrix with mean diagonal entry 1."""
    if np.shape(matrix) != (n, n) or not np.isfinite(matrix).all():
        return False
    symmetric = bool(np.abs(matrix - matrix.T).max() <= 1e-10)
    return symmetric and abs(float(np.trace(matrix)) / n - 1.0) <= 1e-10


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
    norms = np.linalg.norm(U[used], axis=1)
    w[used] = noise * norms / lengths
    if not used.size or not np.isfinite(w).all():
        return w, 0.0
    size = rounding * np.linalg.norm(np.abs(Phi) @ np.abs(U[used]) + np.abs(X))
    errors = np.linalg.norm(Phi, axis=0) * size / lengths
    return w, float(errors.max() * (3.0 + 2.0 * used.size**0.5))


def _of_coefficients(problems: list[PreparedRows], coef: list[Any], kind: EnergyKind) -> Figures:
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
        norms.size, sum(len(rows.responses) for rows in problems), int(used.size), used,
        norms[used], error, kind.posterior, kind.full_groups, rows=problems,
        evidence={
            "relative_error": error, "used": used,
            "row_norms": norms[used] / max(total**0.5, 1e-300),
        },
    )  # fmt: skip


def _failed(figures: Figures, fit: Fit, tolerance: float) -> Figures:
    """Return measured values with infinite distances to optimality, for an invalid fit."""
    wrong = Ball(np.inf)
    return replace(
        figures, violation=wrong, tolerance=tolerance, mean=wrong, noise_rule=fit.rule,
        noise=wrong, energy=None if fit.energy is None else wrong,
        support=None if fit.support is None else Ball(float(np.size(fit.support))),
        variance=None if fit.variances is None else wrong,
    )  # fmt: skip


def ratio(values: Any, sizes: Any) -> Any:
    """Return `values` divided by `sizes`, and zero for every entry whose divisor is zero."""
    return np.where(sizes > 0, values / np.where(sizes > 0, sizes, 1.0), 0.0)


def largest(values: Any, errors: Any) -> Ball:
    """Return the largest of several numbers with error bounds; NaN if one of them is."""
    value = float(np.max(values, initial=0.0))
    high, low = (float(np.max(values + sign * errors, initial=0.0)) for sign in (1.0, -1.0))
    return Ball(value, max(high - value, value - low))


def _optimality(figures: Figures, state: Evaluation, implied: float) -> Figures:
    """Return the distance to the KKT conditions, and the collapsed latents that should be active.

    For single columns these are w|Q − z| and (Q − z)/z, for groups of one relevance the same with
    traces. For a group with a covariance AAᴴ they are the eigenvalues of |Aᴴ(Q − S)A| and the
    largest eigenvalue of S^{-½}QS^{-½} minus one.
    """
    kind, prior, ats, labels = state.kind, state.prior, state.ats, state.kind.labels
    w = prior.relevance
    z, Q = state.average(lambda at: at.z), state.average(lambda at: at.q)
    error = state.average(At.slope_errors)
    # one minus the posterior variances of the latents
    latent = np.max([at.scale * w * at.z for at in ats], axis=0)
    sums = [totals_in(each, labels) for each in (Q, z, state.pressure, error)]
    alignment, curvature, pressure, bound = sums
    excess, wide = ratio(alignment - pressure, pressure), ratio(bound, pressure)
    full_excess, full_wide = ratio(alignment - curvature, curvature), ratio(bound, curvature)
    slack, slack_error = w * np.abs(alignment - pressure), w * bound
    if kind.full_groups:
        latent = np.zeros(w.size)
        for members, _, half in prior.split(ats[0].half):
            latent[members] = np.linalg.eigvalsh(adjoint(half) @ half)
        slack, slack_error = _group_slack(state)
        excess, wide = _group_excess(state)
        full_excess, full_wide = excess, wide
    active = totals_in(latent, labels) > ACTIVE
    violation = largest(np.append(slack, excess), np.append(slack_error, wide))
    if kind.posterior == "point":
        violation = _point_violation(ats[0], state)
    if kind.violation is not None:
        violation = Ball(kind.violation)
    # Columns of a group share one relevance, also those that are zero on these rows.
    elif not kind.full_groups and (np.abs(w - largest_in(w, labels)) > FINEST * w).any():
        violation = Ball(np.inf)
    # An evaluation that is worse than this has lost its meaning, and so have the relevances.
    share = implied * float(max((w * (z + Q)).max(initial=0.0), (1.0 + ratio(Q, z)).max()))
    violation = Ball(violation.value, min(violation.error, LOOSEST) + share)
    bar = max(COLLAPSE, 10.0 * state.tolerance)
    dormant = ~(active | (z == 0))
    outside = np.where(dormant, full_excess, -np.inf)
    worst = int(np.argmax(outside)) if outside.size else 0
    collapse = None
    gains = int((outside - full_wide > bar + figures.reach).sum())
    if implied < 1.0 and kind.posterior in ("full", "diagonal"):
        own = np.where(dormant, excess, -np.inf)
        wrong = own - wide > bar + figures.reach
        open_ = int(((own + wide > bar) & ~wrong).sum())
        collapse = Ball(float(wrong.sum()), 0.0 if wrong.any() else float(open_))
    chosen, shift = np.flatnonzero(active), state.units.coefficients
    return replace(
        figures, violation=violation, collapse=collapse, full_gains=gains,
        n_active=int((latent > ACTIVE).sum()),
        evidence=figures.evidence | {
            "active": chosen,
            "relevance": np.ldexp(w[chosen], -2 * shift[chosen]),
            "curvature": np.ldexp(z[chosen], 2 * shift[chosen]),
            "alignment": np.ldexp(Q[chosen], 2 * shift[chosen]),
            "ratio": 1.0 + full_excess[chosen],
            "worst_inactive": worst,
            "largest_ratio_outside": float(outside[worst]) + 1.0 if outside.size else 0.0,
            "rounding": max(at.rounding for at in ats),
            "reach": max(at.reach for at in ats),
            "violation": violation.value,
        },
    )  # fmt: skip


def _group_slack(state: Evaluation) -> tuple[Any, Any]:
    """Return the largest eigenvalue of |Aᴴ(Q − S)A| for the group of each column, and its error."""
    at, size = state.ats[0], len(state.coef[0])
    slack, error = np.zeros(size), np.zeros(size)
    for members, _, half in state.prior.split(at.half):
        loading = adjoint(half) @ at.root
        explained = loading @ adjoint(loading) / at.n
        found = np.linalg.eigvalsh(explained - adjoint(half) @ half)
        slack[members] = np.abs(found).max(axis=1)[:, None]
        shift = 2.0 * at.rounding * at.fit**0.5
        roots = np.sqrt(np.trace(explained, axis1=1, axis2=2).real)
        bound = 2.0 * at.rounding + 2.0 * roots * shift + shift**2
        error[members] = (members.shape[1] * bound)[:, None]
    return slack, error


def _group_excess(state: Evaluation) -> tuple[Any, Any]:
    """Return the largest eigenvalue of S^{-½}QS^{-½} minus one for the group of each column.

    If it is positive, the energy falls if the covariance grows in some direction.
    """
    at, labels = state.ats[0], state.kind.labels
    excess, error = np.zeros(labels.size), np.zeros(labels.size)
    for _, members in blocks_by_size(labels, labels.size):
        columns = stacked(at.columns, members)
        basis, poor, lost = orthonormal(columns, EPS)
        # The likelihood does not depend on directions that the columns of Φ hardly reach. Where
        # there are any, columns of C are nearly dependent too, unless Σ is ill-conditioned.
        poor = poor | (at.reach > 0.1)
        if poor.any():
            reached = orthonormal(stacked(at.spanned.dictionary, members[poor]), 2.0 * DEPENDENT)[0]
            flat = np.moveaxis(reached, 0, 1).reshape(reached.shape[1], -1)
            turned = solve_triangular(at.triangle, flat, trans="C", check_finite=False)
            turned = np.moveaxis(turned.reshape(len(flat), *members[poor].shape), 0, 1)
            basis[poor], _, lost[poor] = orthonormal(turned, EPS)
        inner = adjoint(basis) @ at.root
        ratios = np.linalg.eigvalsh(inner @ adjoint(inner))[:, -1] / at.n
        seen = basis.any(axis=(1, 2))
        shift = 2.0 * at.rounding * at.fit**0.5
        high = np.maximum(ratios, 1.0)
        bound = members.shape[1] * (2.0 * at.rounding + 2.0 * np.sqrt(high) * shift + shift**2)
        bound = bound + 8.0 * members.shape[1] * high * lost
        excess[members] = np.where(seen, ratios - 1.0, 0.0)[:, None]
        error[members] = np.where(seen, bound, 0.0)[:, None]
    return excess, error


def orthonormal(columns: Any, least: float) -> tuple[Any, Any, Any]:
    """Return orthonormal bases of stacks (k, r, m) of columns, without their weakest directions.

    Directions are left out (columns of zeros) if the singular value of the unit columns is below
    `least` times the largest. With them come the stacks with nearly dependent columns, and bounds
    on the relative errors of the bases.
    """
    lengths = np.linalg.norm(columns, axis=1)
    units = columns / np.where(lengths > 0, lengths, 1.0)[:, None, :]
    # The Gram matrix is fast, but has the squared condition number: where columns are nearly
    # dependent they are decomposed themselves.
    values, axes = np.linalg.eigh(adjoint(units) @ units)
    poor = ~(values[:, 0] > INDEPENDENT)
    safe = np.where(poor[:, None], 1.0, values)
    basis = units @ (axes / np.sqrt(safe)[:, None, :])
    lost = gamma(columns.shape[1]) / safe[:, 0]
    if poor.any():
        left, found, _ = np.linalg.svd(units[poor], full_matrices=False)
        kept = found > least * np.maximum(found[:, :1], TINY)
        padding = ((0, 0), (0, 0), (0, columns.shape[2] - found.shape[1]))
        basis[poor] = np.pad(np.where(kept[:, None, :], left, 0.0), padding)
        smallest = np.where(kept, found, np.inf).min(axis=1) / np.where(
            found[:, 0] > 0, found[:, 0], 1
        )
        lost[poor] = EPS / np.where(np.isfinite(smallest), smallest, 1.0)
    return basis, poor, lost


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


def _penalised(at: At, state: Evaluation, alignment: Any) -> tuple[Any, Any]:
    """Return mean squares of the coefficients, and relevances, in the units of the penalty."""
    labels = state.kind.labels
    norms = totals_in(at.rows.powers, labels)
    norms = np.where(norms > 0, norms, 1.0) / at.rows.mean_square
    powers = state.prior.relevance**2 * alignment * norms
    count = totals_in(np.ones_like(powers), labels)
    return totals_in(powers, labels) / count, state.prior.relevance * norms


def _point_violation(at: At, state: Evaluation) -> Ball:
    """Return the largest |1/h′(a) − w| over the larger of both plus γ, for the penalty h."""
    noise = at.noise / at.rows.mean_square

    def distance(alignment: Any) -> float:
        powers, relevance = _penalised(at, state, np.maximum(alignment, 0.0))
        target = 1.0 / penalty_of(state.kind.penalty)[1](np.maximum(powers, 1e-300))
        target = np.where(target > 2e-300, target, 0.0)
        return float((np.abs(target - relevance) / (np.maximum(target, relevance) + noise)).max())

    error = at.slope_errors()
    value = distance(at.q)
    return Ball(value, max(abs(distance(at.q + sign * error) - value) for sign in (-1.0, 1.0)))


def _mean_distance(state: Evaluation) -> Ball:
    """Return the largest distance of a block's coefficients from their posterior mean.

    It is divided by √(nw), the prior standard deviation. If w is negligible, the distance times the
    norm of the column is divided by that of the responses. What rounding of the stored
    coefficients explains is subtracted.
    """
    prior, values, errors = state.prior, [0.0], [0.0]
    for rows, U, group in zip(state.problems, state.coef, state.groups, strict=True):
        norms, n = np.sqrt(rows.powers), U.shape[1]
        mean = np.hstack([at.mean for at in group])
        mean = mean if state.turn is None else mean @ state.turn.T
        share = np.linalg.norm(U - mean, axis=1)
        share = np.maximum(share - 0.5 * state.fit.rounding * np.linalg.norm(U, axis=1), 0.0)
        w = np.zeros(len(U)) if state.kind.full_groups else prior.relevance
        seen = w * norms**2 > EPS * group[0].noise
        total = power(rows.responses) ** 0.5
        relative = share * norms / (total if total > 0 else 1.0)
        if state.kind.full_groups:
            own, live = _block_distances(state, group[0], U, norms)
            values.append(own)
            relative[live] = 0.0
        within = share / np.sqrt(n * np.where(seen, w, 1.0))
        values.append(float(np.where(seen, within, relative).max(initial=0.0)))
        errors += [2.0 * at.rounding * at.fit**0.5 for at in group]
    return Ball(float(np.max(values)), min(max(errors), LOOSEST))


def _block_distances(state: Evaluation, at: At, U: Any, norms: Any) -> tuple[float, Any]:
    """Return the largest distance of coefficients of groups from their mean, and their columns.

    Nearly dependent columns have large coefficients that cancel. So the contributions Φ_bU_b are
    compared, relative to their largest standard deviation, and the coefficients likewise.
    """
    Phi, n, values, live = at.spanned.dictionary, U.shape[1], [0.0], [np.zeros(0, dtype=int)]
    latents = at.half.conj().T @ at.targets
    given = state.prior.split(np.vstack([state.prior.half(Phi), latents.conj().T]))
    for members, roots, stack in given:
        live.append(members.ravel())
        step = max(1, BLOCK_ENTRIES // (len(Phi) * n))
        for part in (slice(a, a + step) for a in range(0, len(members), step)):
            index, root = members[part], roots[part]
            half, latent = stack[part, : len(Phi)], adjoint(stack[part, len(Phi) :])
            sizes, scaled = norms[index][:, :, None] * U[index], norms[index][:, :, None] * root
            lost = np.linalg.norm(sizes, axis=2).sum(axis=1)
            lost = (0.5 * state.fit.rounding + gamma(index.shape[1])) * lost
            for apart, root in (
                (stacked(Phi, index) @ U[index] - half @ latent, half),
                (sizes - scaled @ latent, scaled),
            ):
                largest_root = n**0.5 * np.linalg.norm(root, 2, axis=(1, 2))
                values.append(((np.linalg.norm(apart, axis=(1, 2)) - lost) / largest_root).max())
    return float(np.max(values)), np.concatenate(live)


def prediction_distance(sample: Sample, rows: PreparedRows, coef: Any, predicted: Any) -> Ball:
    """Return the largest difference between predictions and the linear model ȳ + (x − x̄)U."""
    used = np.flatnonzero(coef.any(axis=1))
    Phi, X, U = sample.dictionary[:, used], sample.responses, coef[used]
    Phi = Phi.toarray() if scipy.sparse.issparse(Phi) else Phi
    weights = np.ones(len(X)) if sample.weights is None else sample.weights
    first, mean = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    if rows.shares is not None:
        first = X[0]
        Phi = centred(Phi, rows.shares)[0]
        X, mean = centred(X, rows.shares)
    size = np.sqrt(weights @ squares(X) / weights.sum())
    size = np.where(size > 0, size, np.abs(first + mean))
    size = np.where(size > 0, size, 1.0)
    distance = np.abs(predicted - first - mean - Phi @ U).max(axis=0) / size
    # A prediction is a sum with the mean response, so that it is rounded relative to this mean.
    terms = (np.abs(Phi) @ np.abs(U)).max(axis=0)
    error = (EPS * np.abs(predicted).max(axis=0) + gamma(2.0 * used.size**0.5) * terms) / size
    return Ball(float(distance.max()), float(error.max()))


class Points(NamedTuple):
    """The given rows of positive weight, centred and in the verifier's units."""

    sample: Sample
    shares: Any
    units: PowersOfTwo
    kept: Any

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return self.kept.size, self.sample.dictionary.shape[1]

    def __getitem__(self, key: Any) -> Any:
        values = self.sample.dictionary[:, key[1]]
        values = values.toarray() if scipy.sparse.issparse(values) else values
        values = values if self.shares is None else centred(values, self.shares)[0]
        return times_power(values[self.kept], -self.units.columns[key[1]])


def _variance_distance(state: Evaluation) -> Ball:
    """Return the largest error of the posterior variances of predicted means, divided by γ.

    With S = ΦA and [S; √γ I] = QT, the variance at a row x is γ‖T⁻ᴴAᴴxᴴ‖². If there are more
    columns than rows it is ‖xA‖² − ‖KᴴT⁻ᴴ…‖² by Woodbury's identity.
    """
    sample, rows = state.samples[0], state.problems[0]
    given = np.asarray(state.fit.variances, dtype=float) / state.fit.noise[0]  # type: ignore[index]
    kept = np.ones(len(given), bool) if sample.weights is None else sample.weights > 0
    half = state.prior.half(Points(sample, rows.shares, state.units, np.flatnonzero(kept)))
    expected, error = [], 0.0
    for at in state.groups[0]:
        scaled = at.scale**0.5 * state.prior.half(at.spanned.dictionary)
        here = at.scale**0.5 * half
        if scaled.shape[1] <= len(scaled):
            T = np.linalg.qr(np.vstack([scaled, at.noise**0.5 * np.eye(scaled.shape[1])]), mode="r")
            found = squares(solve_triangular(T, here.conj().T, trans="C", check_finite=False))
            expected.append(found.sum(axis=0))
        else:
            sizes = squares(here).sum(axis=1) / at.noise
            expected.append(sizes - squares(here @ at.half.conj().T).sum(axis=1) / at.noise)
            error = max(error, gamma(len(scaled)) * float(sizes.max(initial=0.0)))
        error = max(error, 4.0 * at.rounding)
    spread = np.stack(expected, axis=1)
    if state.turn is not None:
        spread = spread @ (state.turn**2).T
    given = given[kept].reshape(spread.shape if given.ndim == 2 else (-1, 1))
    # Relative to the noise of the row, and to the largest variance if rows have other noise.
    size = 1.0 if sample.noise_cov is None else max(float(spread.max(initial=0.0)), 1.0)
    counted = np.ones(len(spread)) if sample.weights is None else sample.weights[kept]
    counted = counted if sample.noise_cov is None else np.ones(len(spread))
    distance = float((counted[:, None] * np.abs(given - spread)).max(initial=0.0)) / size
    return Ball(distance, error)


def _rule(state: Evaluation) -> str:
    """Return how γ was found: "floor" if learning ended at the smallest allowed value."""
    low = [at.noise <= 1.01 * SMALLEST_LEARNED * _mean_square(state) for at in state.ats]
    return "floor" if state.fit.rule == "learn" and any(low) else state.fit.rule


def _mean_square(state: Evaluation) -> float:
    """Return the mean square response over all problems, the unit of noise variances."""
    total = sum(power(rows.responses) for rows in state.problems)
    entries = sum(rows.distinct * rows.responses.shape[1] for rows in state.problems)
    return total / entries or 1.0


def _noise_distance(state: Evaluation, figures: Figures) -> Ball | None:
    """Return the relative distance of γ from what its rule gives; None if that is unknown."""
    fit, rule, lowest = state.fit, state.fit.rule, SMALLEST_NOISE * _mean_square(state)
    noise = np.array([group[0].noise for group in state.groups])
    found: Ball | None = None
    if fit.given_noise is not None and rule in ("given", "cv", "cv_1se"):
        asked = np.ldexp(np.asarray(fit.given_noise, dtype=float), -2 * state.units.responses)
        asked = np.maximum(asked, lowest) if rule == "given" else asked
        found = Ball(float(np.abs(noise / asked - 1.0).max()))
    elif rule == "fallback":
        rows = state.problems[0]
        share = power(rows.responses) / (rows.total * rows.responses.shape[1])
        found = Ball(float(abs(noise[0] / max(FALLBACK * share, lowest) - 1.0)))
    elif rule == "learn_diagonal":
        found = Ball(_row_noise_distance(state))
    elif rule == "learn" and min(rows.dimension for rows in state.problems) > 0:
        # tr(RM) = 0 where γ = (‖X − ΦU‖²/n + γ dof)/d.
        changes = []
        for rows, group in zip(state.problems, state.groups, strict=True):
            freedom = float(np.mean([_freedom(at, state) for at in group]))
            residual = float(np.mean([at.residual for at in group])) / group[0].noise
            change = (residual + freedom) / rows.dimension - 1.0
            floored = group[0].noise <= 1.01 * SMALLEST_LEARNED * _mean_square(state)
            changes.append(max(change, 0.0) if floored else abs(change))
        found = Ball(float(np.max(changes)))
    if found is not None and rule in ("learn", "learn_diagonal") and figures.violation is not None:
        # The learned γ inherits the rounding errors of z and Q, summed over the active columns.
        found = Ball(found.value, figures.violation.error * max(1, figures.n_active))
    cov = state.samples[0].noise_cov
    if fit.row_variances is None or cov is None or fit.noise is None:
        return found
    expected = fit.noise[0] * (cov if cov.ndim == 1 else np.diagonal(cov)).real
    given = np.asarray(fit.row_variances, dtype=float)
    if given.shape != expected.shape:
        return Ball(np.inf)
    sizes = np.where(expected > 0, expected, expected.max(initial=0.0))
    distance = float((np.abs(given - expected) / sizes).max())
    known = found or Ball(0.0)
    return Ball(float(np.max([known.value, distance])), known.error)


def _freedom(at: At, state: Evaluation) -> float:
    """Return the degrees of freedom tr(ΦΓΦᴴΣ⁻¹), or those of the diagonal posterior."""
    if state.kind.posterior != "diagonal":
        return power(at.half)
    return float((state.prior.relevance * pressure_of(at, state)).sum())


def _row_noise_distance(state: Evaluation) -> float:
    """Return the largest distance to stationarity of the noise variances Λᵢ of rows.

    It is Λᵢ|Mᵢᵢ|. In whitened rows Λᵢ(Σ⁻¹)ᵢᵢ is one minus the leverage and the share of the
    intercept. At its lower limit a noise variance also counts as stationary if a smaller one would
    lower the energy.
    """
    sample, rows, at = state.samples[0], state.problems[0], state.ats[0]
    X = sample.responses
    X = centred(X, np.full(len(X), 1.0 / len(X)))[0] if sample.intercept else X
    level = state.fit.noise[0] * sample.noise_cov  # type: ignore[index]
    half = state.prior.half(rows.dictionary)
    T = upper(np.vstack([half, at.noise**0.5 * np.eye(half.shape[1])]))
    leverage = squares(solve_triangular(T, half.conj().T, trans="C")).sum(axis=0)
    left = 1.0 - leverage - (0.0 if rows.axis is None else squares(rows.axis))
    used = np.flatnonzero(state.prior.relevance)
    residual = rows.responses - rows.dictionary[:, used] @ at.mean[used]
    slope = left - squares(residual).mean(axis=1) / at.noise
    lowest = level <= 1.01 * SMALLEST_ROW * squares(X).mean()
    return float(np.where((slope > 0) & lowest, 0.0, np.abs(slope)).max())


def _log_volume(at: At, state: Evaluation) -> float:
    """Return the log-volume of the energy per response, for all rows, in the units of the data."""
    rows, logarithm = at.rows, float(np.log(at.noise))
    if state.kind.posterior == "diagonal":
        norms = rows.powers
        volume = float(np.log1p(state.prior.relevance * norms / at.noise).sum())
        volume += rows.dimension * logarithm
    else:
        spare = rows.dimension - min(rows.dictionary.shape)
        volume = at.log_determinant + spare * logarithm
    shift = 2.0 * rows.dimension * state.units.responses * np.log(2.0)
    return float(volume + shift + rows.volume)


def energies(state: Evaluation) -> list[float] | None:
    """Return the energy of each sample in the units of the data; None if its formula is unknown."""
    at = state.ats[0]
    if state.kind.posterior == "point":
        powers, _ = _penalised(at, state, at.q)
        penalties = penalty_of(state.kind.penalty)[0](np.maximum(powers, 1e-300))
        return [float(at.n * (at.residual / at.noise + np.sum(penalties)))]
    if state.kind.posterior not in ("full", "diagonal"):
        return None
    return [sum(at.n * (at.fit + _log_volume(at, state)) for at in group)
            for group in state.groups]  # fmt: skip


def _energy_distance(state: Evaluation) -> Ball | None:
    """Return the relative difference of the reported energy from the verifier's."""
    found = energies(state)
    if state.fit.energy is None or found is None:
        return None
    size = max(
        abs(sum(found)),
        sum(rows.responses.shape[1] * max(rows.dimension, 1.0) for rows in state.problems),
    )
    distance = float(abs(state.fit.energy - sum(found)) / size)
    distance = max(0.0, distance - state.prior.vague) if np.isfinite(distance) else distance
    at = state.ats[0]
    lost = state.prior.inexact(at.noise) * (1.0 + at.fit / max(at.rows.dimension, 1.0))
    return Ball(distance, lost)


def _evidence(state: Evaluation) -> dict[str, Any]:
    """Return, by name, the numbers from which measured values can be computed again."""
    found, shift = energies(state), 2 * state.units.responses
    one = len(state.problems) == 1
    common = {
        "noise_variance": state.fit.noise[0] if one else np.asarray(state.fit.noise, float),  # type: ignore[index]
        "energy": None if found is None else sum(found),
        "n_responses": [rows.responses.shape[1] for rows in state.problems],
    }
    if not one:
        return common | {
            "energies": found, "n_responses": np.array(common["n_responses"]),
            "given_noise": state.fit.given_noise, "tolerance": state.kind.tolerance,
            "significance": state.kind.significance,
        }  # fmt: skip
    group = state.groups[0]
    return common | {
        "n_responses": state.problems[0].responses.shape[1],
        "data_term": float(np.mean([at.fit for at in group])),
        "residual": float(np.ldexp(np.mean([at.residual for at in group]), shift)),
        "dimension": state.problems[0].dimension,
    }


def _response(state: Evaluation) -> tuple[str, float] | None:
    """Return how the covariance of the responses was found, and its error."""
    fit = state.fit
    if fit.responses is None:
        return None
    if fit.given_responses is not None:
        return "given", float(np.abs(fit.responses - fit.given_responses).max())
    return "learn", correlation_gain(state)


def correlation_gain(state: Evaluation) -> float:
    """Return by how much the energy per response falls at nearby correlations of the responses.

    These are the ρ at which artanh ρ differs by `CORRELATION_STEP`. Infinite if the covariance is
    not that of an AR(1) model.
    """
    covariance, rows = state.fit.responses, state.problems[0]
    n, correlation = len(covariance), float(covariance[0, 1] / covariance[0, 0])
    places = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    same = abs(correlation) < 1.0 and np.abs(correlation**places - covariance).max() <= 1e-8
    if not same:
        return np.inf
    used = np.flatnonzero(state.prior.relevance)
    half = rows.dictionary[:, used] * np.sqrt(state.prior.relevance[used])
    spanned = in_span(half, rows.responses)

    def energy(angle: float) -> float:
        values, turn = np.linalg.eigh(np.tanh(angle) ** places)
        rotated, total = spanned.responses @ turn, 0.0
        for value, target in zip(np.maximum(values, 0.0), rotated.T, strict=True):
            T, Y = factorised(value**0.5 * spanned.dictionary, target[:, None], state.ats[0].noise)
            total += power(Y) + 2.0 * float(np.log(np.abs(np.diagonal(T))).sum())
        return total / n

    angle, bound = np.arctanh(correlation), np.arctanh(LARGEST_CORRELATION) + 1e-6
    beside = [angle + sign * CORRELATION_STEP for sign in (-1.0, 1.0)]
    others = [energy(each) for each in beside if abs(each) <= bound]
    return float(max(0.0, energy(angle) - min(others)))


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
    if labels is None and len(state.ats) == 1:
        found: Any = [each[numbers] for each in _column_evidence(state, sets)]
    else:
        order = np.argsort(owners, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(owners[order])) + 1) if order.size else []
        own = dict(zip(np.unique(owners).tolist(), parts, strict=True))
        chosen = [
            np.concatenate([own.get(int(each), []) for each in sets.get(int(number), [number])])
            for number in numbers
        ]
        found = _lost_evidence(state, chosen)
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
    w, dictionaries = state.prior.relevance, [rows.dictionary for rows in state.problems]
    norms = sum(rows.powers for rows in state.problems)
    z = state.average(lambda at: at.z)
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
    z, Q, n = at.z, at.q, at.n * (2 if at.rows.complex_ else 1)
    variance = np.maximum(1.0 - w * z, EPS)
    growth = np.maximum(ratio(Q, z * variance), 1.0)
    evidence = np.where(w > 0, n * (growth - 1.0 - np.log(growth)), 0.0)
    relative = 2.0 * at.rounding * (1.0 + 2.0 * np.sqrt(ratio(z * at.fit, Q)) + w * z / variance)
    return evidence, np.where(w > 0, n * growth * relative, 0.0)


def _lost_evidence(state: Evaluation, chosen: list[Any]) -> tuple[Any, Any]:
    """Return twice the log-likelihood lost without some columns of ΦA, and its error.

    Without them Σ becomes Σ − HHᴴ for H = ΦA, with the determinant |Σ||V|, V = I − KᴴK, and the
    inverse Σ⁻¹ + Σ⁻¹HV⁻¹HᴴΣ⁻¹ (Woodbury).
    """
    sizes = np.array([len(each) for each in chosen], dtype=int)
    lost, error = np.zeros(sizes.size), np.zeros(sizes.size)
    for size in np.unique(sizes):
        here = np.flatnonzero(sizes == size)
        members = np.array([chosen[place] for place in here], dtype=int)
        for at in state.ats:
            half, n = stacked(at.half, members), at.n * (2 if at.rows.complex_ else 1)
            values, axes = np.linalg.eigh(np.eye(size) - adjoint(half) @ half)
            values = np.maximum(values, EPS)
            powers = squares(adjoint(axes) @ (adjoint(half) @ at.root)).sum(axis=2) / at.n
            own = n * (np.log(values) + powers / values).sum(axis=1)
            lost[here] += own
            error[here] += 8.0 * at.rounding / values[:, 0] * (np.abs(own) + n * size)
    return lost, error


def _tails(state: Evaluation, evidence: Any, sizes: Any) -> Any:
    """Return the probabilities that blocks of such sizes have more evidence by chance alone.

    That of one variance is χ²₁ (Wilks 1938). For a covariance it is a mixture at the boundary of
    the semi-definite matrices (`BOUNDARY`), or χ² with as many degrees of freedom as parameters.
    """
    positive = np.maximum(evidence, 0.0)
    if not state.kind.full_groups:
        return chdtrc(1, positive)
    real, found = not state.problems[0].complex_, np.ones(positive.shape)
    for size in np.unique(sizes):
        here = np.broadcast_to(sizes == size, positive.shape) & (positive > 0)
        parameters = size * (size + 1) // 2 if real else size**2
        weights = BOUNDARY.get(int(size)) if real else None
        weights = (0.0,) * parameters + (1.0,) if weights is None else weights
        tails = [w * chdtrc(k, positive[here]) for k, w in enumerate(weights) if k and w]
        found[here] = np.sum(tails, axis=0)
    return found


def stacked(Phi: Any, members: Any) -> Any:
    """Return the columns of blocks (k, m) as an array of shape (k, r, m)."""
    columns = Phi[:, members.ravel()]
    return np.moveaxis(columns.reshape(len(columns), *members.shape), 1, 0)


def _leverage(state: Evaluation) -> tuple[Any, Any, float]:
    """Return the rows that carry more than their share, these shares, and the largest share.

    Shares are those of the squares of the responses, relative to the noise of the row, and of the
    columns of a dense dictionary, on average. The coefficients of a column in use rest on the rows
    in which its squares are; a column that has one value in all other rows does so by design. A row
    that is given m times has m shares.
    """
    found, values, most, offset = [np.zeros(0, dtype=int)], [np.zeros(0)], 0.0, 0
    used = np.flatnonzero(state.prior.relevance * state.average(lambda at: at.z) > ACTIVE)
    for sample, rows in zip(state.samples, state.problems, strict=True):
        if rows.whitener.ndim == 2:
            continue  # rows are mixed by the whitener
        kept = np.flatnonzero(rows.whitener)
        weights = np.ones(kept.size) if sample.weights is None else sample.weights[kept]
        Phi, weights = rows.dictionary, np.maximum(weights, 1.0)
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
    level, noise = np.asarray(path["noise"]), state.fit.noise[0]  # type: ignore[index]
    near = (level >= noise / 10.0) & (level <= 10.0 * noise)
    changed = np.asarray(path.get("changed", path["strongest"] != path["column"]), dtype=bool)
    others = np.unique(np.asarray(path["strongest"])[changed & near])

    def span(column: int) -> Any:
        members = [column] if labels is None else np.flatnonzero(labels == labels[column])
        columns = state.problems[0].dictionary[:, np.asarray(members)]
        return orthonormal(columns[None], DEPENDENT)[0][0]

    here = span(path["column"])
    found = [float(np.linalg.norm(here.conj().T @ span(int(other)), 2)) for other in others]
    return min([1.0, *found])
