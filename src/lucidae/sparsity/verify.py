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

SMALLEST_NOISE, SMALLEST_LEARNED, FALLBACK = 1e-14, 1e-10, 0.1
"""Relative to the mean square response: the smallest γ that is allowed, that is learned, and the γ
of a single row, as the estimator documents them."""

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
"""Largest number of entries of a dictionary that are dense, and worked on, at a time."""

CORRELATION_STEP, LARGEST_CORRELATION = 0.01, 0.999
"""Change of artanh ρ to the correlations of responses that are compared, and the largest |ρ|."""

INVALID = "the fitted numbers are not those of any model"

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
    # how γ was found: one of `HELD_OUT`, "given", "learn", "fallback" or unknown
    rule: str = ""
    given_noise: Any = None  # γ of each problem that was asked for, or estimated on held-out rows
    predicted: Any = None  # (d, n): predicted means of the rows
    variances: Any = None  # (d,): posterior variances of these means
    support: Any = None
    covariances: Any = None  # (groups, m, m): Γ_b, and the roots A that it was computed from
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

    rows: Sequence[PreparedRows]  # for claims of uniqueness
    fit: Fit
    kind: EnergyKind
    n_active: int
    leverage: tuple[Any, Any, float]  # rows, their shares, and the largest share
    distances: dict[str, Distance] = field(default_factory=dict)  # by the name of the claim
    noise_rule: str = ""  # how γ was found, "floor" if learning ended at its smallest value
    tied: Sequence[Any] = ()  # sets of columns of which each can replace the others
    full_gains: int = 0  # collapsed latents that would lower the energy of the full posterior
    correlation: float | None = None  # smallest one of the strongest column and its successors
    evidence: dict[str, Any] = field(default_factory=dict)


# 1. Rows -------------------------------------------------------------------------------------


class PreparedRows(NamedTuple):
    """Rows of one problem: centred and whitened by their noise."""

    sample: Sample  # as they were given, with weights
    dictionary: Any  # (r, κ)
    responses: Any  # (r, n): rotated by the eigenvectors (n, n) of their covariance, if it is known
    shares: Any  # (d,): weight of each given row in the means; None without an intercept
    whitener: Any  # (r, d), sparse if the noise of the rows is independent
    total: float  # number of rows, and of independent ones, with their weights
    dimension: float
    distinct: int
    complex_: bool
    volume: float  # log|R| on its range
    outside: float  # share of the responses' power outside this range
    powers: Any  # (κ,): squared norms of the columns
    carried: Any  # (r,): share of each row in the squares of a column, averaged over columns
    turn: Any = None
    factors: Any = np.ones(1)  # (n,): variances λ of the rotated responses; (1,) if all are 1


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


def positive(values: Any) -> Any:
    """Return values with one in place of those that are not positive, as divisors."""
    return np.where(values > 0, values, 1.0)


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
    scales = np.sqrt(positive(variances))
    correlation = noise_cov / scales / scales[:, None]
    values, vectors = np.linalg.eigh((correlation + correlation.conj().T) / 2.0)
    seen = values > max(rounding * values[-1], -10.0 * values[0])
    if seen.all():  # rows in other units than others lose no digits
        volume = float(np.log(values).sum() + 2.0 * np.log(scales).sum())
        return (vectors / np.sqrt(values)).conj().T / scales, volume, np.eye(len(scales))
    # R = HHᴴ, and on the range of H = BU the inverse of H is U⁻¹Bᴴ.
    basis, R = np.linalg.qr(scales[:, None] * vectors[:, seen] * np.sqrt(values[seen]))
    volume = 2.0 * float(np.log(np.abs(np.diagonal(R))).sum())
    return solve_triangular(R, basis.conj().T), volume, basis.conj().T


def prepared(sample: Sample) -> PreparedRows:
    """Return the rows of positive weight, centred and whitened; frequencies are part of the noise.

    A row that is given m times is one row with noise variance R_ii/m.
    """
    Phi, X, weights, intercept, R = sample
    Phi = scipy.sparse.csc_array(Phi) if scipy.sparse.issparse(Phi) else Phi
    R = np.ones(len(X)) if R is None else R
    weights = np.ones(len(X)) if weights is None else weights
    sample = sample._replace(dictionary=Phi, weights=weights)
    # 1) the whitener T, with TRTᴴ = I on the range of R, and an orthonormal basis of the range
    if R.ndim == 1:
        kept, least = np.flatnonzero((R > 0) & (weights > 0)), 1e-7
        basis: Any = scipy.sparse.eye_array(len(X), format="csr")[kept]
        whitener = scipy.sparse.diags_array(np.sqrt(weights[kept] / R[kept])) @ basis
        volume, dimension = float(weights[kept] @ np.log(R[kept])), float(weights[kept].sum())
        distinct = count_distinct(basis @ Phi, X[kept], R[kept])
    else:
        single = np.complex64 if np.iscomplexobj(R) else np.float32
        stored = epsilon(single if (R.astype(single) == R).all() else float)
        least = max(1e-7, 10.0 * len(R) * stored)
        whitener, volume, basis = noise_whitener(R, 10.0 * len(R) * stored)
        distinct, dimension = len(whitener), float(len(whitener))
    # 2) the means of generalised least squares, unless R has no variance in their direction
    shares, total = None, dimension
    if intercept:
        shares, ones = weights / weights.sum(), whitener @ np.ones(len(X))
        if np.linalg.norm(ones) > least * abs(whitener).max() * ones.size**0.5:
            dimension = total - 1.0
            volume += float(np.log(power(ones)) - np.log(weights.sum()))
            shares = ones.conj() @ whitener
            shares = shares / shares.sum()
    # 3) dictionary and responses; what lies outside of the range of R is not used
    moved = centred(X, shares)
    lost = max(1.0 - power(basis @ moved) / power(moved), 0.0) if power(moved) > 0 else 0.0
    if scipy.sparse.issparse(Phi):
        found: Any = SparseColumns(sample, shares, whitener)
    else:
        found = whitener @ centred(Phi, shares)
    X = whitener @ moved
    imaginary = any(np.iscomplexobj(part) and bool(part.imag.any()) for part in (found, X))
    powers, carried = np.zeros(Phi.shape[1]), np.zeros(len(X))
    for part, block in column_blocks(found):
        powers[part] = squares(block).sum(axis=0)
        carried += squares(block) @ (1.0 / positive(powers[part]))
    return PreparedRows(
        sample, found, X, shares, whitener, total, dimension, distinct,
        imaginary, volume, lost, powers, carried / max(int((powers > 0).sum()), 1),
    )  # fmt: skip


def count_distinct(Phi: Any, X: Any, noise: Any) -> int:
    """Return the number of different rows of dictionary, responses and noise taken together."""
    if scipy.sparse.issparse(Phi):
        # Random projections of equal rows are equal, since the entries are added in one order.
        Phi = scipy.sparse.csr_array(Phi, copy=True)
        Phi.sum_duplicates()
        Phi = Phi @ np.random.default_rng(0).standard_normal((Phi.shape[1], 2))
    return len({row.tobytes() for row in np.column_stack([Phi, X, noise]) + 0.0})


def centred_columns(sample: Sample, shares: Any, columns: Any) -> Any:
    """Return columns of the dictionary as a dense array, minus their means."""
    block = sample.dictionary[:, columns]
    return centred(block.toarray() if scipy.sparse.issparse(block) else block, shares)


class SparseColumns:
    """A sparse dictionary whose columns are centred, whitened and made dense when they are read."""

    def __init__(self, sample: Sample, shares: Any, whitener: Any) -> None:
        self.sample, self.shares, self.whitener = sample, shares, whitener
        self.shape = whitener.shape[0], sample.dictionary.shape[1]
        self.dtype = sample.dictionary.dtype

    def __getitem__(self, key: Any) -> Any:
        return self.whitener @ centred_columns(self.sample, self.shares, key[1])


def column_blocks(Phi: Any) -> Iterator[tuple[slice, Any]]:
    """Return slices of the columns of a dictionary, each with its columns as a dense array."""
    width = max(BLOCK_ENTRIES // max(Phi.shape[0], 1), 1)
    parts = (slice(first, first + width) for first in range(0, Phi.shape[1], width))
    return ((part, Phi[:, part]) for part in parts)


def group_numbers(groups: Any, count: int) -> Any:
    """Return the number of each column's group, from 0 in the order of the given labels.

    `groups` are labels, or the number of consecutive columns in each group, None for 1.
    """
    labels = np.arange(count) // (groups or 1) if np.ndim(groups) == 0 else groups
    return np.unique(labels, return_inverse=True)[1]


def totals_in(values: Any, labels: Any) -> Any:
    """Return, for each column, the sum of the values of its group."""
    if isinstance(values, Ball):
        return Ball(totals_in(values.value, labels), totals_in(values.error, labels))
    return np.bincount(labels, values)[labels]


def blocks_by_size(labels: Any) -> list[tuple[Any, Any]]:
    """Return numbers (k,) and columns (k, m) of the groups of each size m, ascending."""
    order, sizes = np.argsort(labels, kind="stable"), np.bincount(labels)
    first = np.cumsum(sizes) - sizes
    return [
        (numbers, order[first[numbers][:, None] + np.arange(size)])
        for size in np.unique(sizes)
        for numbers in (np.flatnonzero(sizes == size),)
    ]


# 2. Prior ------------------------------------------------------------------------------------


class Prior(NamedTuple):
    """Prior covariances of the blocks, with a root A of those that are not zero."""

    relevance: Any  # (κ,): the relevances w, or the diagonals of Γ
    columns: Any  # (a,): the columns of these blocks
    root: Any  # (a, a): a block for each of them, sparse
    deviation: float = 0.0  # from the diagonals w
    blurred: float = 0.0  # error of ΦA because A is rounded, where columns are nearly dependent
    implied: float = 0.0  # relative error of relevances that coefficients imply

    def inexact(self, noise: float) -> float:
        """Return the error that cancelling entries of A, or implied ones, cause relative to Σ."""
        return float(self.blurred / noise**0.5 + self.implied)


def full_prior(fit: Fit, w: Any, rows: PreparedRows, labels: Any) -> Prior:
    """Return the prior of groups with covariances of their own; their units are unit columns."""
    given, known, largest = fit.covariances, fit.roots, int(np.bincount(labels).max())
    shape = (labels.max() + 1, largest, largest)
    if not np.shape(given) == np.shape(known) == shape or not np.isfinite(given).all():
        raise np.linalg.LinAlgError(INVALID)
    lengths = np.sqrt(positive(rows.powers))
    in_use, deviation, blurred = given.any(axis=(1, 2)), 0.0, 0.0
    columns, roots = [np.zeros(0, int)], [np.zeros((0, 0))]
    for number in np.flatnonzero(in_use):
        members = np.flatnonzero(labels == number)
        size, scales = members.size, lengths[members]
        covariance = given[number, :size, :size] * scales * scales[:, None]
        root, sizes = known[number, :size, :size] * scales[:, None], np.diagonal(covariance).real
        # Γ loses digits where columns are nearly dependent; A does not, and gives Γ up to rounding.
        allowed = gamma(16.0 * (size + 1)) + 4.0 * fit.rounding
        same = np.abs(root @ adjoint(root) - covariance) <= allowed * np.sqrt(
            np.outer(sizes, sizes)
        )
        if not same.all() or np.count_nonzero(given[number]) > np.count_nonzero(covariance):
            raise np.linalg.LinAlgError(INVALID)
        # Where the columns of a group are dependent, the data say nothing: there Γ is zero.
        _, unseen = group_axes(rows.dictionary, members[None], 0.5 * DEPENDENT)
        beyond = np.linalg.norm(unseen[0] @ covariance) / np.linalg.norm(covariance)
        apart = np.abs(sizes - w[members] * scales**2).max() / np.abs(covariance).max()
        deviation = max(deviation, beyond, apart)
        axes, spreads, _ = np.linalg.svd(root)  # latents along the principal axes of Γ
        blurred = max(blurred, gamma(size) * float(np.linalg.norm(spreads)))
        columns.append(members)
        roots.append(axes * spreads / scales[:, None])
    if w[~in_use[labels]].any():
        raise np.linalg.LinAlgError(INVALID)
    root = scipy.sparse.block_diag(roots, "csr")
    return Prior(w, np.concatenate(columns), root, deviation, blurred)


def group_axes(Phi: Any, members: Any, least: float) -> tuple[Any, Any]:
    """Return orthonormal bases (k, r, m) of the columns of groups, and (k, m, m) where they vanish.

    Directions in which the unit columns have a singular value of at most `least` times the largest
    are zero in the bases, and are the rows of the second matrices.
    """
    columns = np.moveaxis(Phi[:, members.ravel()].reshape(-1, *members.shape), 1, 0)
    units = columns / positive(np.linalg.norm(columns, axis=1, keepdims=True))
    size, wide = members.shape[1], members.shape[1] > columns.shape[1]
    left, values, right = np.linalg.svd(units, full_matrices=wide)
    values = np.pad(values, ((0, 0), (0, size - values.shape[1])))
    left = np.pad(left, ((0, 0), (0, 0), (0, size - left.shape[2])))
    seen = (values > least * values[:, :1])[:, :, None]
    return np.where(adjoint(seen), left, 0.0), np.where(seen, 0.0, right)


# 3. Evaluation -------------------------------------------------------------------------------


class At(NamedTuple):
    """One problem at given prior covariances and a noise variance; ΦA = V diag(s) Pᴴ."""

    rows: PreparedRows
    noise: float
    left: Any  # (r, k): V
    right: Any  # (a, k): P
    powers: Any  # (k, n) or (k, 1): λs²
    level: Any  # (k + r, n) or (k + r, 1): λs² + γ, and γ in the coordinates beyond V
    targets: Any  # (k + r, n): VᴴX and X − VVᴴX
    fit: float  # tr(XᴴΣ⁻¹X)/n
    rounding: float  # bound on the relative error of Σ^½
    reach: float  # expected error of solvers that form Σ in float64
    z: Any = None  # Ball of (κ,) each: the diagonals of S and Q, averages over the responses
    q: Any = None
    mean: Any = None  # (κ, n): the posterior mean ΓΦᴴΣ⁻¹X

    @property
    def n(self) -> int:
        """Number of responses."""
        return int(self.targets.shape[1])

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
        """√λAᴴΦᴴΣ⁻¹X, the posterior mean of the latents over √λ."""
        count = len(self.powers)
        return self.right @ (np.sqrt(self.powers) * self.targets[:count] / self.level[:count])

    def ratio_error(self, sizes: Any, members: int) -> Any:
        """Return bounds on the errors of eigenvalues of Q, of given sizes, relative to S.

        Q and S are the squares of Σ^{-½}Φ_b, which an error of Σ^½ changes by its share of them,
        and of that times Σ^{-½}X/√n.
        """
        shift = 2.0 * self.rounding * self.fit**0.5
        return members * (2.0 * self.rounding + 2.0 * np.sqrt(sizes) * shift + shift * shift)

    def whitened(self, block: Any) -> Any:
        """Return W with WᴴW = BᴴΣ⁻¹B for a block B of columns, if λ = 1, or of responses."""
        return split(self.left, block) / np.sqrt(self.level)


def split(left: Any, block: Any) -> Any:
    """Return VᴴB and B − VVᴴB for a block B of columns."""
    inside = left.conj().T @ block
    return np.vstack([inside, block - left @ inside])


def evaluated(rows: PreparedRows, prior: Prior, noise: float) -> At:
    """Return all quantities that follow from the prior covariances and the noise variance."""
    Phi, factors, (size, n) = rows.dictionary, rows.factors, rows.responses.shape
    half = Phi[:, prior.columns] @ prior.root
    left, values, right = np.linalg.svd(half, full_matrices=False)
    powers, targets = values[:, None] ** 2 * factors, split(left, rows.responses)
    level = np.vstack([powers, np.zeros((size, len(factors)))]) + noise
    # Rounding errors of a factorisation grow as the root of its size (Higham & Mary 2019).
    condition = float(level.max(initial=noise)) / noise
    steps = gamma(8.0 * (size + len(prior.columns) + 8) ** 0.5) * condition**0.5
    cancelled = prior.inexact(noise)
    fit = float((squares(targets) / level).sum()) / n
    at = At(
        rows, noise, left, right.conj().T, powers, level, targets, fit, steps + cancelled,
        gamma(REACHED) * condition + cancelled,
    )  # fmt: skip
    # In these coordinates Σ⁻¹ is diagonal, and φᴴΣ⁻¹X is a sum in which nothing cancels.
    precise = compressed(targets / level * np.sqrt(factors))
    inverse = (factors / level).mean(axis=1)
    z, q = np.zeros(Phi.shape[1]), np.zeros(Phi.shape[1])
    for part, block in column_blocks(Phi):
        turned = split(left, block)
        z[part] = inverse @ squares(turned)
        q[part] = squares(turned.conj().T @ precise).sum(axis=1) / n
    mean = np.zeros((Phi.shape[1], n), np.result_type(left, targets))
    mean[prior.columns] = prior.root @ (np.sqrt(factors) * at.loading)
    errors = z * 2.0 * at.rounding, z * at.ratio_error(q / positive(z), 1)
    return at._replace(z=Ball(z, errors[0]), q=Ball(q, errors[1]), mean=mean)


# 4. The measured values ----------------------------------------------------------------------


class Evaluation(NamedTuple):
    """All that the measured values of a fit are computed from."""

    fit: Fit
    kind: EnergyKind
    prior: Prior
    ats: list[At]  # one for each problem
    labels: Any  # (κ,): number of the block of each column
    ties: Sequence[Any] = ()  # sets of columns of which each can replace the others

    @property
    def tolerance(self) -> float:
        """Tolerance of the fit, between `FINEST` and `LOOSEST`, and above rounding of `stored`."""
        return max(min(self.kind.tolerance, LOOSEST), FINEST, self.stored)

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
    def mean_square(self) -> float:
        """Mean square of the responses in distinct rows, the unit of noise variances."""
        entries = sum(at.rows.distinct * at.n for at in self.ats)
        return sum(power(at.rows.responses) for at in self.ats) / entries or 1.0

    def spread(self, at: At) -> Any:
        """Return the eigenvalues λs² of ΦΓΦᴴ or, for a diagonal posterior, w‖φ‖² in their place.

        They have the log-volume Σ log(λs² + γ), and λs²/(λs² + γ) sum to the effective parameters.
        """
        if self.kind.posterior != "diagonal":
            return at.powers
        return (self.prior.relevance * at.rows.powers)[:, None]

    def pressure(self, at: At) -> Ball:
        """Return the slope of the log-volume: z, or ‖φ‖²/(γ + w‖φ‖²) of a diagonal posterior."""
        if self.kind.posterior != "diagonal":
            return at.z  # type: ignore[no-any-return]
        return Ball(at.rows.powers / (at.noise + self.prior.relevance * at.rows.powers))


@np.errstate(all="ignore")  # figures of absurd numbers may overflow, and then fail
def measure(samples: Sequence[Sample], fit: Fit, kind: EnergyKind = EnergyKind()) -> Figures:  # noqa: B008
    """Return the measured values of a fit on the rows of one or several problems."""
    # 1) what coefficients alone tell
    problems = [prepared(sample) for sample in samples]
    figures = _of_coefficients(problems, fit, kind)
    if fit.noise is None:
        return figures

    # 2) every problem at the prior covariances; an invalid fit has infinite distances
    figures.noise_rule, distances = fit.rule, figures.distances
    attributes: dict[str, tuple[Any, Callable[[Evaluation], Distance | None]]] = {
        "noise_variance": (fit.noise, _noise_distance),
        "energy": (fit.energy if kind.violation is None else None, _energy_distance),
        "predictive_variance": (fit.variances, _variance_distance),
        "support": (fit.support, _support),
        "response_covariance": (fit.responses, _response),
    }
    given = [name for name, (value, _) in attributes.items() if value is not None]
    blocks = ["group_covariances"] * (fit.covariances is not None)
    try:
        state = _evaluation(problems, fit, kind)
    except np.linalg.LinAlgError:
        names = ["stationarity", "posterior_mean", "posterior_collapse", *blocks, *given]
        distances |= dict.fromkeys(names, Distance(Ball(np.inf)))
        return figures

    # 3) the conditions of optimality, all from S and Q
    violation, mean = _optimality(figures, state), _mean_distance(state)
    distances["stationarity"] = Distance(violation, state.tolerance, state.reach)
    distances["posterior_mean"] = Distance(mean, max(FINEST, state.stored), state.reach)

    # 4) what is reported beside the relevances, and what is noticed
    deviation = Ball(max(state.prior.deviation - 4.0 * fit.rounding, 0.0))
    distances |= dict.fromkeys(blocks, Distance(deviation, FINEST))
    found = {name: attributes[name][1](state) for name in given}
    distances |= {name: each for name, each in found.items() if each is not None}
    if fit.rule == "learn" and any(_floored(state, at) for at in state.ats):
        figures.noise_rule = "floor"
    figures.tied = [each for each in state.ties if np.isin(each, fit.support).any()]
    figures.correlation = _path_correlation(state)
    parts: dict[str, list[float]] = {
        "noise_variance": [at.noise for at in state.ats], "n_responses": [at.n for at in state.ats],
        "data_term": [at.fit for at in state.ats],
        "dimension": [at.rows.dimension for at in state.ats],
        "residual": [power(at.residuals) / at.n for at in state.ats],
    }  # fmt: skip
    single = len(state.ats) == 1
    figures.evidence |= {
        name: each[0] if single else np.array(each) for name, each in parts.items()
    }
    figures.evidence |= {
        "energy": energy_of(state) if kind.violation is None else None, "tolerance": kind.tolerance,
        "significance": kind.significance, "given_noise": fit.given_noise,
        "mean_distance": mean.value,
    }  # fmt: skip
    if figures.tied:
        figures.evidence["tied_columns"] = [np.sort(each).tolist() for each in figures.tied]
    return figures


def _of_coefficients(problems: Sequence[PreparedRows], fit: Fit, kind: EnergyKind) -> Figures:
    """Return the measured values that do not need a noise variance."""
    total, residual = sum(power(rows.responses) for rows in problems), 0.0
    norms = np.zeros(len(fit.coef[0]))
    for rows, U in zip(problems, fit.coef, strict=True):
        used = np.flatnonzero(U.any(axis=1))
        residual += power(rows.responses - rows.dictionary[:, used] @ U[used])
        norms += squares(U).sum(axis=1) * rows.powers
    norms = np.sqrt(norms)
    used = np.flatnonzero(norms > ACTIVE * norms.max(initial=0.0))
    error = (residual / total) ** 0.5 if total > 0 else (np.inf if residual > 0 else 0.0)
    shares = norms[used] / max(total**0.5, 1e-300)
    leverage = _leverage(problems, used)
    evidence = {
        "relative_error": error, "used": used, "row_norms": shares, "leverage_rows": leverage[0],
        "leverage_shares": leverage[1],
    }  # fmt: skip
    return Figures(problems, fit, kind, int(used.size), leverage, evidence=evidence)


def _evaluation(problems: list[PreparedRows], fit: Fit, kind: EnergyKind) -> Evaluation:
    """Return every problem at the fitted covariances; raise an error if these are not valid."""
    w, implied, noise = fit.relevance, 0.0, np.array(fit.noise)
    if w is None:
        w, implied = implied_relevance(problems[0], fit.coef[0], noise[0], fit.rounding)
    finite = all(np.isfinite(each).all() for each in (*fit.coef, w, noise))
    if not (finite and (w >= 0).all() and (noise > 0).all()):
        raise np.linalg.LinAlgError(INVALID)
    labels, used = group_numbers(kind.labels, w.size), np.flatnonzero(w)
    if kind.full_groups:
        prior = full_prior(fit, w, problems[0], labels)
    else:
        root = scipy.sparse.diags_array(np.sqrt(w[used]))
        prior = Prior(w, used, root, implied=implied)
    if fit.responses is not None:
        factors, turn = np.linalg.eigh(fit.responses)
        if len(turn) != problems[0].responses.shape[1]:
            raise np.linalg.LinAlgError(INVALID)
        rotated = {"responses": problems[0].responses @ turn, "turn": turn}
        problems = [problems[0]._replace(factors=np.maximum(factors, 0.0), **rotated)]
    ats = [evaluated(rows, prior, level) for rows, level in zip(problems, noise, strict=True)]
    state = Evaluation(fit, kind, prior, ats, labels)
    return state._replace(ties=tied_columns(state)) if kind.labels is None else state


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
    size = rounding * np.linalg.norm(np.abs(Phi) @ np.abs(U[used]) + np.abs(X))
    return w, float((np.sqrt(rows.powers[used]) * size / lengths).max(initial=0.0))


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
    kind, labels, prior, w = state.kind, state.labels, state.prior, state.prior.relevance
    z, q = state.average(at.z for at in state.ats), state.average(at.q for at in state.ats)
    own = state.average(state.pressure(at) for at in state.ats)
    alignment, curvature, pressure = (totals_in(each, labels) for each in (q, z, own))
    slack = (alignment - pressure).abs() * w
    excess = (alignment - pressure) * (1.0 / positive(pressure.value))
    full_excess = (alignment - curvature) * (1.0 / positive(curvature.value))
    if kind.full_groups:
        slack, excess = _group_conditions(state)
        full_excess = excess
    latent = np.zeros(w.size)  # one minus the posterior variances of the latents
    latent[prior.columns] = state.average(
        (squares(at.right) @ at.shares).mean(axis=1) for at in state.ats
    )
    violation = largest(slack, excess)
    if kind.posterior == "point":
        violation = _point_violation(state)
    if kind.violation is not None:
        violation = Ball(kind.violation)
    elif not kind.full_groups:
        # Columns of a group share one relevance, also those that are zero on these rows.
        shared = totals_in(w, labels) / totals_in(np.ones_like(w), labels)
        if (np.abs(shared - w) > FINEST * w).any():
            violation = Ball(np.inf)
    # An evaluation that is worse than this has lost its meaning, unless relevances are implied.
    violation = Ball(violation.value, min(violation.error, max(LOOSEST, prior.implied)))

    # Latents that are not active, and have a slope that exceeds that of their stationary point.
    active = totals_in(latent, labels) > ACTIVE
    bar, dormant = max(COLLAPSE, 10.0 * state.tolerance), ~(active | (z.value == 0))
    outside = np.where(dormant, full_excess.value, -np.inf)
    if kind.posterior in ("full", "diagonal"):
        wrong = dormant & (excess.low > bar + state.reach)
        open_ = dormant & (excess.high > bar) & ~wrong
        collapse = Ball(float(wrong.sum()), 0.0 if wrong.any() else float(open_.sum()))
        figures.distances["posterior_collapse"] = Distance(collapse)
    chosen, worst = np.flatnonzero(active), int(np.argmax(outside))
    figures.full_gains = int((dormant & (full_excess.low > bar + state.reach)).sum())
    figures.n_active = int((latent > ACTIVE).sum())
    figures.evidence |= {
        "active": chosen, "relevance": w[chosen], "curvature": z.value[chosen],
        "alignment": q.value[chosen], "ratio": 1.0 + full_excess.value[chosen],
        "worst_inactive": worst, "largest_ratio_outside": float(outside[worst]) + 1.0,
        "violation": violation.value,
    }  # fmt: skip
    return violation


def _group_conditions(state: Evaluation) -> tuple[Ball, Ball]:
    """Return slack and excess of the group of each column."""
    at, labels = state.ats[0], state.labels
    slack, excess = np.zeros((2, 2, labels.max() + 1))  # values and errors
    numbers, found = group_slack(at, labels[state.prior.columns])
    slack[:, numbers] = found.value, found.error
    for numbers, members in blocks_by_size(labels):
        found = group_ratios(at, members)[:, -1]
        excess[:, numbers] = found.value - 1.0, found.error
    return Ball(*slack[:, labels]), Ball(*excess[:, labels])


def group_slack(at: At, owners: Any) -> tuple[Any, Ball]:
    """Return the owners of blocks of A, and the largest eigenvalue of |Aᴴ(Q − S)A| of each."""
    half, loading = np.sqrt(at.shares[:, 0]) * at.right, at.loading
    numbers, values, errors = np.unique(owners), [], []
    for here in (owners == number for number in numbers):
        explained = loading[here] @ loading[here].conj().T / at.n
        change = explained - half[here] @ half[here].conj().T
        values.append(float(np.abs(np.linalg.eigvalsh(change)).max()))
        errors.append(float(at.ratio_error(np.trace(explained).real, int(here.sum()))))
    return numbers, Ball(np.array(values), np.array(errors))


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
    return Ball(values, at.ratio_error(np.maximum(values, 1.0), members.shape[1]))


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
    labels, norms = state.labels, totals_in(state.ats[0].rows.powers, state.labels)
    w = state.prior.relevance * positive(norms) / state.mean_square
    powers = totals_in(w * state.prior.relevance * np.maximum(alignment, 0.0), labels)
    return np.maximum(powers / totals_in(np.ones_like(w), labels), 1e-300), w


def _point_violation(state: Evaluation) -> Ball:
    """Return the largest |1/h′(a) − w| over the larger of both plus γ, for the penalty h."""
    found = []
    for alignment in (state.ats[0].q.value, state.ats[0].q.low, state.ats[0].q.high):
        powers, relevance = _penalised(state, alignment)
        target = 1.0 / penalty_of(state.kind.penalty)[1](powers)
        target = np.where(target > 2e-300, target, 0.0)
        size = np.maximum(target, relevance) + state.ats[0].noise / state.mean_square
        found.append(float((np.abs(target - relevance) / size).max()))
    return Ball(found[0], max(abs(end - found[0]) for end in found))


def _mean_distance(state: Evaluation) -> Ball:
    """Return the largest distance of coefficients from their posterior mean.

    Each coefficient is compared in units of its prior standard deviation times √n, or, if that is
    negligible, in units of the responses. The sum over columns of groups is compared in units of
    Σ^½, since coefficients of nearly dependent columns cancel. What rounding of the stored
    coefficients explains is subtracted.
    """
    values, error, w = [0.0], 0.0, state.prior.relevance
    for at, U in zip(state.ats, state.fit.coef, strict=True):
        rows, columns = at.rows, state.prior.columns
        apart = (U if rows.turn is None else U @ rows.turn) - at.mean
        lost = (0.5 * state.fit.rounding + gamma(0)) * np.linalg.norm(U, axis=1)
        distance = np.maximum(np.linalg.norm(apart, axis=1) - lost, 0.0)
        seen, norms = w * rows.powers > gamma(0) * at.noise, np.sqrt(rows.powers)
        unit = power(rows.responses) ** 0.5 or 1.0
        spread = np.where(seen, (at.n * w) ** 0.5, unit / positive(norms))
        values.append(float((distance / spread).max()))
        if state.kind.full_groups:
            together = power(at.whitened(rows.dictionary[:, columns] @ apart[columns])) ** 0.5
            together -= float((norms * lost).sum()) / at.noise**0.5
            values.append(together / at.n**0.5)
        error = max(error, 2.0 * at.rounding * at.fit**0.5)
    error = min(error, max(LOOSEST, state.prior.implied))
    if state.fit.predicted is not None:
        other = prediction_distance(state.ats[0].rows, state.fit.coef[0], state.fit.predicted)
        values.append(other.value)
        error = max(error, other.error)
    return Ball(float(np.max(values)), error)


def prediction_distance(rows: PreparedRows, coef: Any, predicted: Any) -> Ball:
    """Return the largest difference between predictions and the linear model ȳ + (x − x̄)U."""
    used, sample = np.flatnonzero(coef.any(axis=1)), rows.sample
    Phi, U = centred_columns(sample, rows.shares, used), coef[used]
    moved = centred(sample.responses, rows.shares)
    mean = (sample.responses - moved)[0]
    size = np.sqrt(sample.weights @ squares(moved) / sample.weights.sum())
    size = positive(np.where(size > 0, size, np.abs(mean)))
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
    kept = np.flatnonzero(abs(rows.whitener).sum(axis=0))
    half = (centred_columns(sample, rows.shares, prior.columns) @ prior.root)[kept]
    along = half @ at.right
    beyond = squares(half - along @ at.right.conj().T).sum(axis=1)[:, None] * rows.factors
    spread = beyond / at.noise + squares(along) @ (rows.factors / (at.powers + at.noise))
    if rows.turn is not None:
        spread = spread @ (rows.turn**2).T
    given = state.fit.variances[kept].reshape(len(kept), -1) / at.noise
    # Relative to the noise of the row, and to the largest variance if rows have other noise.
    counted, size = sample.weights[kept, None], 1.0
    if sample.noise_cov is not None:
        counted, size = np.ones(1), max(float(spread.max(initial=0.0)), 1.0)
    distance = float((counted * np.abs(given - spread)).max(initial=0.0)) / size
    # Variances are differences of numbers of the size of γ cond(Σ).
    return Distance(Ball(distance, 4.0 * at.rounding), FINEST, min(at.reach, 1.0))


def _floored(state: Evaluation, at: At) -> bool:
    """Tell whether γ is the smallest that is learned."""
    return at.noise <= 1.01 * SMALLEST_LEARNED * state.mean_square


def _noise_change(state: Evaluation, at: At) -> float:
    """Return the distance to stationarity of γ: γ|tr(RM)| over the number of rows.

    The trace is the mean square residual over γ, plus the effective parameters, minus the number of
    rows. At its lower limit γ also counts as stationary if a smaller one would lower the energy.
    """
    spread, errors = state.spread(at), power(at.residuals) / (at.n * at.noise)
    freedom = (spread / (spread + at.noise)).mean(axis=1).sum()
    change = float((errors + freedom) / at.rows.dimension - 1.0)
    return max(change, 0.0) if _floored(state, at) else abs(change)


def _noise_distance(state: Evaluation) -> Distance | None:
    """Return the relative distance of γ from what its rule gives; None if that is unknown."""
    fit, rule, rows, found = state.fit, state.fit.rule, state.ats[0].rows, []
    noise, asked = np.array([at.noise for at in state.ats]), fit.given_noise
    if rule == "fallback":
        asked = FALLBACK * power(rows.responses) / (rows.total * rows.responses.shape[1])
    if asked is not None:
        asked = np.maximum(asked, SMALLEST_NOISE * state.mean_square)
        found.append(np.abs(noise / asked - 1.0).max())
    cov = rows.sample.noise_cov
    if fit.row_variances is not None and cov is not None:
        expected = noise[0] * (cov if cov.ndim == 1 else np.diagonal(cov)).real
        if fit.row_variances.shape != expected.shape:
            return Distance(Ball(np.inf))
        sizes = np.where(expected > 0, expected, expected.max(initial=0.0))
        found.append((np.abs(fit.row_variances - expected) / sizes).max())
    learned = rule == "learn" and all(at.rows.dimension > 0 for at in state.ats)
    if learned:
        found += [_noise_change(state, at) for at in state.ats]
        errors = [at.rounding * (len(at.powers) + at.fit) / at.rows.dimension for at in state.ats]
        ball = Ball(float(np.max(found)), 4.0 * max(errors))
        return Distance(ball, state.tolerance, state.reach)
    return None if asked is None else Distance(Ball(float(np.max(found))), GIVEN)


def energy_of(state: Evaluation) -> float:
    """Return the energy of all samples in the units of the data."""
    total = 0.0
    for at in state.ats:
        if state.kind.posterior == "point":
            penalties = penalty_of(state.kind.penalty)[0](_penalised(state, at.q.value)[0])
            total += power(at.residuals) / at.noise + at.n * np.sum(penalties)
            continue
        volume = np.log1p(state.spread(at) / at.noise).mean(axis=1).sum()
        determinant = volume + at.rows.dimension * np.log(at.noise) + at.rows.volume
        total += at.n * (at.fit + determinant)
    return float(total)


def _energy_distance(state: Evaluation) -> Distance:
    """Return the relative difference of the reported energy from the verifier's."""
    entries, at = sum(at.n * max(at.rows.dimension, 1.0) for at in state.ats), state.ats[0]
    energy = energy_of(state)
    size = max(abs(energy), entries)
    # A relative error of Σ changes the data term by its share, and each eigenvalue's logarithm.
    lost = state.prior.inexact(at.noise) * (at.n * at.fit + entries) / size
    return Distance(Ball(abs((state.fit.energy or 0.0) - energy) / size, lost), ENERGY, state.reach)


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
    values = at.powers[:, -1:] / at.rows.factors[-1]
    inside = at.targets[: len(values)] @ at.rows.turn.T  # of the responses as they are given

    def energy(angle: float) -> float:
        factors, turn = np.linalg.eigh(np.tanh(angle) ** places)
        level = values * np.maximum(factors, 0.0) + at.noise
        return float((squares(inside @ turn) / level + np.log(level)).sum()) / n

    angle, bound = np.arctanh(correlation), np.arctanh(LARGEST_CORRELATION) + 1e-6
    beside = [angle + sign * CORRELATION_STEP for sign in (-1.0, 1.0)]
    others = [energy(each) for each in beside if abs(each) <= bound]
    return Distance(Ball(max(0.0, energy(angle) - min(others))), ENERGY)


# 5. Support, leverage, stability -------------------------------------------------------------


def _support(state: Evaluation) -> Distance:
    """Return how many columns `support_` contains or lacks wrongly.

    A block is significant if the tail probability of its evidence, twice the log-likelihood that is
    lost without it, is below α over the number of blocks. Tied columns, each of which can replace
    the others, are left out together, and the first of those in use stands for them.
    """
    blocks, columns = state.labels, state.prior.columns
    level, owners = state.kind.significance / (int(blocks.max()) + 1), blocks[columns]
    for found in state.ties:
        owners[np.isin(columns, found)] = found[0]
    expected, close = np.zeros((2, blocks.size), dtype=bool)
    for number in np.unique(owners):
        members = blocks == number
        evidence, error = _evidence_of(state, owners == number)
        error += 1e-9 * abs(evidence)
        nearby = np.array([evidence, evidence + error, evidence - error])
        likely, low, high = _tails(state, nearby, int(members.sum()))
        expected |= members & (likely < level)
        close |= members & (low < level <= high)
    support = np.asarray(state.fit.support, dtype=int)
    claimed = np.isin(np.arange(blocks.size), support)
    different = claimed != expected
    wrong = int((different & ~close).sum()) + support.size - int(claimed.sum())
    return Distance(Ball(float(wrong), 0.0 if wrong else float((different & close).sum())))


def tied_columns(state: Evaluation) -> list[Any]:
    """Return sets of proportional columns; the first is the first one that is in use.

    Columns that explain less than a hundredth of their prior variance cannot be in the support.
    Proportional columns have equal z/‖φ‖²: only columns where it is nearly equal are compared.
    """
    w, dictionaries = state.prior.relevance, [at.rows.dictionary for at in state.ats]
    norms = sum(at.rows.powers for at in state.ats)
    z = state.average(at.z for at in state.ats).value
    level, found, done = z / positive(norms), [], norms <= 0
    for column in np.flatnonzero(w * z > IN_USE):
        near = np.flatnonzero(~done & (np.abs(level - level[column]) <= NEARLY * level[column]))
        near = near[near != column]
        if done[column] or not near.size:
            continue
        inner: Any = sum(Phi[:, [column]].conj().T @ Phi[:, near] for Phi in dictionaries)
        tied = near[squares(inner[0]) >= (1.0 - TIED) * norms[column] * norms[near]]
        if tied.size:
            found.append(np.append(column, tied))
            done[found[-1]] = True
    return found


def _evidence_of(state: Evaluation, members: Any) -> tuple[float, float]:
    """Return twice the log-likelihood lost without some columns H of ΦA, and its error.

    Without them Σ becomes Σ − HHᴴ, with the determinant |Σ||V|, V = I − HᴴΣ⁻¹H, and the inverse Σ⁻¹
    + Σ⁻¹HV⁻¹HᴴΣ⁻¹ (Woodbury). For a single column of one problem it is n(t − 1 − log t) with t =
    Q/(z(1 − wz)), zero if t ≤ 1: what is lost if its relevance is first made the best one.
    """
    lost = error = 0.0
    single = state.kind.labels is None and len(state.ats) == 1 and state.ats[0].rows.turn is None
    for at in state.ats:
        parts, right, loading = 1 + at.rows.complex_, at.right[members], at.loading[members]
        # one posterior covariance of the latents for each of the different responses
        metric = np.einsum("ak,kt,bk->tab", right, at.shares, right.conj())
        explained, axes = np.linalg.eigh(metric)
        left = np.maximum(1.0 - explained, gamma(0))
        along = squares(adjoint(axes) @ loading.T[:, :, None])[:, :, 0]
        own = (along / left).sum() + at.n / len(left) * np.log(left).sum()
        if single:
            t = max(float(along.sum() / at.n / (explained[0, -1] * left[0, -1])), 1.0)
            own = at.n * (t - 1.0 - np.log(t))
        lost += parts * own
        error += 8.0 * parts * at.rounding / left.min() * (abs(own) + at.n * left.shape[1])
    return float(lost), float(error)


def _tails(state: Evaluation, evidence: Any, size: int) -> Any:
    """Return the probabilities that a block of such a size has more evidence by chance alone.

    That of one variance is χ²₁ (Wilks 1938). For a covariance it is a mixture at the boundary of
    the semi-definite matrices (`BOUNDARY`), or χ² with as many degrees of freedom as parameters.
    """
    weights: tuple[float, ...] = (0.0, 1.0)
    if state.kind.full_groups:
        complex_ = state.ats[0].rows.complex_
        weights = (0.0,) * (size**2 if complex_ else size * (size + 1) // 2) + (1.0,)
        weights = weights if complex_ else BOUNDARY.get(size, weights)
    tails = [weight * chdtrc(k, evidence) for k, weight in enumerate(weights) if k and weight]
    return np.where(evidence > 0, np.sum(tails, axis=0), 1.0)


def _leverage(problems: Sequence[PreparedRows], used: Any) -> tuple[Any, Any, float]:
    """Return the rows that carry more than their share, these shares, and the largest share.

    Shares are those of the squares of the responses, relative to the noise of the row, and of the
    columns of the dictionary, on average. The coefficients of a column in use rest on the rows in
    which its squares are; a column that has one value in all other rows does so by design. A row
    that is given m times has m shares.
    """
    parts, most = [], 0.0
    for rows, sample in ((rows, rows.sample) for rows in problems):
        parts.append(np.zeros(len(sample.responses)))
        if not scipy.sparse.issparse(rows.whitener):
            continue  # rows are mixed by the whitener
        kept = rows.whitener.indices
        weights = np.maximum(sample.weights[kept], 1.0)
        shares = squares(rows.responses).sum(axis=1) / max(power(rows.responses), 1e-300)
        shares = np.maximum(shares, rows.carried) / weights
        high = np.where(shares > INFLUENCE, shares, 0.0)
        terms = squares(rows.dictionary[:, used]) / positive(rows.powers[used]) / weights[:, None]
        for row, place in zip(*np.nonzero(terms > COEFFICIENT), strict=True):
            column = centred_columns(sample, rows.shares, [used[place]])
            others = np.delete(column[kept, 0], row)
            if others.size > 1 and (others != others[0]).any():
                high[row] = max(high[row], terms[row, place])
        parts[-1][kept], most = high, max(most, float(shares.max()))
    high = np.concatenate(parts)
    named = np.flatnonzero(high)
    return named, high[named], max(most, float(high.max()))


def _path_correlation(state: Evaluation) -> float | None:
    """Return the smallest correlation of the strongest column with those that replace it.

    It is that of the spans of their groups, if there are any: 1 if the strongest column stays.
    """
    path = state.fit.path
    if path is None or path.get("overlap") is None or path["column"] < 0:
        return None
    level, noise = np.asarray(path["noise"]), state.ats[0].noise
    near = (level >= noise / 10.0) & (level <= 10.0 * noise)
    changed = np.asarray(path.get("changed", path["strongest"] != path["column"]), dtype=bool)
    others = np.unique(np.asarray(path["strongest"])[changed & near])

    def span(column: int) -> Any:
        members = np.flatnonzero(state.labels == state.labels[column])
        return group_axes(state.ats[0].rows.dictionary, np.array([members]), DEPENDENT)[0][0]

    here = span(path["column"])
    found = [float(np.linalg.norm(here.conj().T @ span(int(other)), 2)) for other in others]
    return min([1.0, *found])
