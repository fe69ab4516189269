"""Eigenvalues and distances to the principal axes for certificates, from weights and data alone.

No code is shared with the solvers, so that a mistake in a solver is not repeated in its
certificate. The eigenvalues come from another LAPACK routine (`syevd`), or are bounded by a Krylov
space; the bounds are wrong with a small probability, which is stated.

Rounding errors: for a second moment of m features with the largest eigenvalue σ₁² and the machine
epsilon ε, each eigenvalue is known up to m·ε·σ₁² (Weyl). A principal axis whose eigenvalue differs
from all others by at least `gap` is known up to the angle m·ε·σ₁²/gap (Davis & Kahan 1970).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from lucidae.arrays import as_double, diagonal, is_numpy, like, to_numpy
from lucidae.linear.probe import EPS, FEWEST_ROUNDINGS, Estimate, Probe, drawn_after
from lucidae.moments import SecondMoment

__all__ = ["Data", "Estimate", "Leading", "data_of", "leading_eigenpairs"]

Vector = np.ndarray[Any, Any]

DENSE_FEATURES = 1024
"""Largest number of features for which all eigenvalues are computed; otherwise they are bounded."""

MOMENT_FEATURES = 8192
"""Largest number of features for which the second moment is computed as a matrix.

With more features, or more than 1024 features and fewer rows than half of them, products with the
rows are used instead."""

BLOCK_ROWS = 2048
"""Number of rows that are centred and multiplied at a time."""

SHORTEST = 1e-290
"""A decoder column whose largest absolute entry is at most this counts as zero.

Its entries are so close to the smallest float64 numbers that its direction has lost digits."""

IDENTIFIABLE = 100.0
"""A component is identifiable if its eigengap exceeds this multiple of the eigenvalues' error.

Its principal axis is then known up to an angle of 1/100 (Davis & Kahan 1970)."""

LARGE_MEAN = 1.0
"""Ratio of the mean's squared length to the total variance above which rows are centred first.

Below it, products use the rows as they are, and the mean is subtracted from the result."""

STARTS = 16
"""Number of random vectors from which the block Krylov space starts."""

FAILURE = 1e-9
"""Probability that the bound on the largest eigenvalue from one Krylov space is wrong."""

KRYLOV_STEPS = (4, 6, 8, 12, 16, 32)
"""Numbers of Krylov steps after which the bound is used: six bounds, each wrong with `FAILURE`."""

KRYLOV_ENTRIES = 2**24
"""Largest number of stored entries of the Krylov basis: 128 mebibytes."""

_TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True, slots=True)
class Data:
    """The second moment Σ (m × m) of data, as a matrix if m is small, otherwise by its products.

    Parameters
    ----------
    mean : ndarray of shape (m,)
        Mean of the rows.
    trace : float
        Total variance, the sum of all eigenvalues of Σ.
    product : callable
        Function that returns the product of an array of shape (q, m) with Σ.
    variances : ndarray of shape (m,)
        Variance of each feature, the diagonal of Σ.
    matrix : ndarray of shape (m, m), optional
        Σ itself, for at most `DENSE_FEATURES` features.
    difference : Estimate, optional
        Difference of the stored moment to that of the rows, see `Probe.difference`.
    weight : float, optional
        Number of rows, or the sum of their weights; None if Σ is not a covariance.
    """

    mean: Vector
    trace: float
    product: Callable[[Vector], Vector]
    variances: Vector
    matrix: Vector | None = None
    difference: Estimate | None = None
    weight: float | None = None

    @property
    def n_features(self) -> int:
        """Number of features m."""
        return len(self.mean)

    @property
    def rounding(self) -> float:
        """Variance that constant rows would seem to have, due to rounding errors of the mean."""
        size = FEWEST_ROUNDINGS * EPS * norm(self.mean)
        return size * size  # infinite for a huge mean, where ** would raise an error

    @property
    def varies(self) -> bool:
        """Whether the total variance is more than the rounding errors of the mean explain."""
        return self.trace > self.rounding

    def apply(self, rows: Vector) -> Vector:
        """Return the product of `rows`, of shape (q, m), with the second moment."""
        return self.product(rows)

    def in_units(self, unit: float) -> Data:
        """Return the second moment of the same rows after their division by `unit`."""
        matrix = None if self.matrix is None else self.matrix / unit**2
        return replace(
            self,
            mean=self.mean / unit,
            trace=self.trace / unit**2,
            product=lambda rows: self.product(rows) / unit**2,
            variances=self.variances / unit**2,
            matrix=matrix,
        )


def data_of(X: Any, weights: Any = None, difference: Estimate | None = None) -> Data:
    """Return the second moment of rows, or of a `SecondMoment`, in the form the verifier uses.

    Parameters
    ----------
    X : array of shape (n, m) or SecondMoment
        The validated rows, or their moment.
    weights : array of shape (n,), optional
        Weight of each row; by default 1.
    difference : Estimate, optional
        Difference of a given `SecondMoment` to its rows, if it was measured before.
    """
    if isinstance(X, SecondMoment):
        return _data_of_moment(X, difference)
    n, m = X.shape
    if m > DENSE_FEATURES and (m > MOMENT_FEATURES or n <= m // 2):
        return _data_of_rows(X, weights)
    moment = SecondMoment.of(X, weights)
    probe = Probe.of(X, weights, moment)
    return _data_of_moment(moment, None if probe is None else probe.difference(moment))


def _data_of_moment(moment: SecondMoment, difference: Estimate | None) -> Data:
    covariance, mean = moment.covariance, to_numpy(moment.mean)
    if moment.n_features > DENSE_FEATURES:

        def product(rows: Vector) -> Vector:
            return to_numpy(like(rows, covariance) @ covariance)

        own = to_numpy(diagonal(covariance))
        return Data(mean, moment.trace, product, own, None, difference, moment.weight)
    matrix = to_numpy(covariance)
    own = np.diag(matrix)
    trace = float(np.sum(own))
    return Data(mean, trace, lambda rows: rows @ matrix, own, matrix, difference, moment.weight)


def _data_of_rows(X: Any, weights: Any) -> Data:
    shares = np.ones(X.shape[0]) if weights is None else to_numpy(weights)
    weight = float(shares.sum())
    shares = shares / weight
    zero = np.zeros(X.shape[1])
    if scipy.sparse.issparse(X):
        mean = np.asarray(shares @ X.astype(np.float64)).ravel()
        own = np.asarray(shares @ X.astype(np.float64).power(2)).ravel() - mean**2
        total = float(np.sum(own))
        if float(mean @ mean) <= LARGE_MEAN * total:
            return Data(mean, total, _uncentred(X, shares, mean), own, weight=weight)
    # The mean of the deviations from a first mean corrects its rounding error.
    mean = sum((part for part, _ in _centred_sums(X, shares, zero, None)), zero)
    rest, own = zero, zero
    for part, squares in _centred_sums(X, shares, mean, None):
        rest, own = rest + part, own + squares
    mean, own = mean + rest, own - rest**2
    total = float(np.sum(own))
    if is_numpy(X) and X.dtype == np.float64 and float(mean @ mean) <= LARGE_MEAN * total:
        return Data(mean, total, _uncentred(X, shares, mean), own, weight=weight)

    def product(rows: Vector) -> Vector:
        return sum((part for part, _ in _centred_sums(X, shares, mean, rows)), 0.0 * rows)

    return Data(mean, total, product, own, weight=weight)


def _uncentred(X: Any, shares: Vector, mean: Vector) -> Callable[[Vector], Vector]:
    """Return a function that multiplies rows with the covariance Σ of X without centring X.

    For the mean μ and the weights p (`shares`, of sum 1), Σv = Xᵀc − (1ᵀc)μ with the weighted
    projections c = p(Xv − 1μᵀv).
    """

    def product(rows: Vector) -> Vector:
        codes = shares[:, None] * (np.asarray(X @ rows.T) - mean @ rows.T)
        return np.asarray(X.T @ codes - np.outer(mean, codes.sum(axis=0))).T

    return product


def _centred_sums(
    X: Any, shares: Vector, mean: Vector, rows: Vector | None
) -> Iterator[tuple[Any, Any]]:
    """Yield weighted sums over `BLOCK_ROWS` rows x of X at a time, centred about the mean μ.

    Each pair contains Σ p (x − μ) and, per feature, Σ p (x − μ)² if `rows` is None; otherwise an
    array with Σ p ⟨v, x − μ⟩(x − μ) for each v in `rows`, and None. p are the weights (`shares`),
    and μ is `mean`.
    """
    for start in range(0, X.shape[0], BLOCK_ROWS):
        chosen = slice(start, min(start + BLOCK_ROWS, X.shape[0]))
        part, share = X[chosen, :], shares[chosen]
        block = part.toarray() if scipy.sparse.issparse(part) else part
        block = as_double(block) - like(mean, as_double(block))
        share = like(share, block)
        if rows is None:
            yield to_numpy(share @ block), to_numpy(share @ (block * block))
        else:
            codes = block @ like(rows, block).mT
            yield to_numpy((codes * share[:, None]).mT @ block), None


@dataclass(frozen=True, slots=True)
class Leading:
    """Leading eigenvalues of the second moment, and the decoder's distance to the principal axes.

    Parameters
    ----------
    values : ndarray of shape (q,)
        Leading eigenvalues, descending: all of them if `dense`; otherwise the k Ritz values of the
        decoder's span, and the largest Ritz value outside of it.
    error : float
        Bound on the error of each of the first k values.
    outside : float
        Upper bound on the (k+1)-th eigenvalue; 0 if there are only k features.
    subspace : Estimate
        Mean squared sine of the angles between the decoder's span and the principal subspace.
    misalignments : ndarray of shape (k,)
        For each principal axis, the smallest squared sine of its angle to a decoder column; if not
        `dense`, an upper bound on it.
    angles : ndarray of shape (k,)
        Bound on the error of each principal axis, as an angle.
    dense : bool
        Whether all eigenpairs were computed; otherwise they are only bounded.
    ritz, upper : ndarrays of shape (k,)
        Lower and upper bounds on the k leading eigenvalues.
    unaligned : float
        Lower bound on the mean of the true misalignments; used only if not `dense`. A decoder
        column of unit length with residual r has a sine of at least r/σ₁² to every axis, where σ₁²
        is the largest eigenvalue. Half the mean square over the columns is a bound, since several
        axes may share a column: their squared sines sum to at least their number minus one.
    """

    values: Vector
    error: float
    outside: float
    subspace: Estimate
    misalignments: Vector
    angles: Vector
    dense: bool
    ritz: Vector
    upper: Vector
    unaligned: float = 0.0

    def gaps(self, k: int) -> Vector:
        """Return the distance of each of the first k eigenvalues to the nearest other one."""
        return _gaps(np.append(self.values[:k], self.outside))

    def resolution(self) -> float:
        """Return the eigengap above which rounding errors do not hide a principal axis.

        The eigengap is the distance of an eigenvalue to the nearest other one.
        """
        return max(IDENTIFIABLE * self.error, _TINY)

    def unidentifiable(self, k: int) -> Vector:
        """Return the numbers, from 1 to k, of components whose eigenvalue is too close to another.

        Too close is a distance to the nearest other eigenvalue of at most `resolution()`.
        """
        return 1 + np.flatnonzero(~(self.gaps(k) > self.resolution()))

    def times(self, factor: float) -> Leading:
        """Return the same values and distances for the second moment multiplied by `factor`."""
        return replace(
            self,
            values=factor * self.values,
            error=factor * self.error,
            outside=factor * self.outside,
            ritz=factor * self.ritz,
            upper=factor * self.upper,
        )

    def determined(self, k: int) -> bool:
        """Tell whether eigenvalue k exceeds the next one by more than rounding errors.

        They are those that `resolution` returns; otherwise the principal subspace is not
        determined.
        """
        return bool(self.values[k - 1] - self.outside > self.resolution())


def _gaps(values: Vector) -> Vector:
    steps = values[:-1] - values[1:]
    return np.asarray(np.minimum(steps, np.append(math.inf, steps[:-1])))


def leading_eigenpairs(data: Data, atoms: Vector) -> Leading:
    """Return the leading eigenvalues of the data, and the decoder's distance to the principal axes.

    Parameters
    ----------
    data : Data
        The second moment of the data.
    atoms : ndarray of shape (k, m)
        The decoder's columns, one in each row.
    """
    if data.matrix is not None:
        return _dense(data, atoms)
    zero = not np.any(np.abs(atoms) > SHORTEST)
    if not np.all(np.isfinite(atoms)) or zero or not data.varies:
        distance = 1.0 if np.all(np.isfinite(atoms)) else math.nan
        known = _unknown(atoms.shape[0], distance, data.trace)
        # Constant rows have no principal subspace to miss.
        return known if data.varies else replace(known, subspace=Estimate.between(0.0, distance))
    # In units of the trace no square overflows.
    unit = data.trace
    product = data.product
    scaled = Data(data.mean, 1.0, lambda rows: product(rows) / unit, data.variances / unit)
    return _bounded(scaled, atoms).times(unit)


def norm(values: Vector) -> float:
    """Return the Frobenius norm of an array; no square overflows or underflows."""
    peak = float(np.max(np.abs(values), initial=0.0))
    return peak * float(np.linalg.norm(values / peak)) if 0.0 < peak < math.inf else peak


def _dense(data: Data, atoms: Vector) -> Leading:
    k, m = atoms.shape
    ascending, vectors = np.linalg.eigh(np.asarray(data.matrix))
    values, axes = np.maximum(ascending[::-1], 0.0), vectors[:, ::-1][:, :k]
    error = max(m, FEWEST_ROUNDINGS) * EPS * float(values[0])
    outside = float(values[k]) if m > k else 0.0
    span, basis_error = _column_space(atoms)
    # 1 − tr(UUᵀQQᵀ)/k as the mean of squared sines, which has no cancellation near 0.
    missing = axes - span @ (span.T @ axes)
    distance = float(np.sum(missing * missing)) / k
    gaps = _gaps(np.append(values[:k], outside))
    angles = np.minimum(1.0, error / np.maximum(gaps, _TINY)) + m * EPS
    angle = min(1.0, error / max(float(values[k - 1]) - outside, _TINY)) + basis_error
    return Leading(
        values,
        error,
        outside,
        Estimate(distance, 2 * math.sqrt(distance) * angle + angle**2),
        _misalignments(atoms, axes),
        angles,
        True,
        values[:k] - error,
        values[:k] + error,
    )


def _column_space(atoms: Vector) -> tuple[Vector, float]:
    """Return an orthonormal basis (m × rank) of the decoder's span, and a bound on its error.

    The decoder's columns (the rows of `atoms`) are scaled to unit length first. Directions whose
    singular value is then below m·ε, with the machine epsilon ε, are left out. The rounding errors
    rotate the basis by an angle of up to m·ε divided by the smallest singular value that is kept.
    """
    m = atoms.shape[1]
    if not np.all(np.isfinite(atoms)):
        return np.full((m, 1), np.nan), math.nan
    units = _unit_rows(atoms)
    if not len(units):
        return np.zeros((m, 0)), m * EPS
    # The eigenvectors of the Gram matrix would lose small directions; a QR with an SVD of its
    # triangle does not.
    basis, triangle = np.linalg.qr(units.T)
    left, sizes, _ = np.linalg.svd(triangle)
    present = sizes > m * EPS
    return np.asarray((basis @ left)[:, present]), m * EPS / float(np.min(sizes[present]))


def _unit_rows(rows: Vector) -> Vector:
    """Return the rows scaled to unit length; rows that are zero (see `SHORTEST`) are left out."""
    peaks = np.max(np.abs(rows), axis=1, initial=0.0)
    rows = rows[~(peaks <= SHORTEST)] / peaks[~(peaks <= SHORTEST), None]
    return np.asarray(rows / np.sqrt(np.sum(rows * rows, axis=1))[:, None])


def _misalignments(atoms: Vector, axes: Vector) -> Vector:
    """Return, for each principal axis, its smallest squared sine to a decoder column.

    The axes are the columns of `axes`, and the decoder's columns are the rows of `atoms`.
    """
    units = _unit_rows(atoms)
    found = np.ones(axes.shape[1])
    for i, axis in enumerate(axes.T):
        if len(units):
            away = units - (units @ axis)[:, None] * axis
            found[i] = np.min(np.sum(away * away, axis=1))
    return found if np.all(np.isfinite(atoms)) else np.full(len(found), np.nan)


def krylov_error(steps: int, n_features: int) -> float:
    """Return a relative error δ of the largest eigenvalue found by block Krylov iteration.

    The largest eigenvalue ξ of the matrix restricted to the Krylov space (Ritz value) is a lower
    bound; the largest eigenvalue λ₁ of the matrix is at most ξ/(1 − δ), except with probability
    `FAILURE`. For q Lanczos steps from one random start and m features, P{λ₁ − ξ ≥ δλ₁} ≤ 1.648 √m
    e^(−√δ(2q−1)) (Kuczyński & Woźniakowski 1992). The block has `STARTS` independent starts and
    fails only if all of them fail, so each may fail with probability `FAILURE`^(1/`STARTS`).
    """
    each = FAILURE ** (1.0 / STARTS)
    root = math.log(1.648 * math.sqrt(n_features) / each) / (2 * steps - 1)
    return root * root


def _bounded(data: Data, atoms: Vector) -> Leading:
    """Return bounds on the eigenvalues and on the decoder's distance to the principal axes.

    They follow from the residuals ΣQ − QΘ of an orthonormal basis Q of the decoder's span, where Σ
    is the second moment and Θ are the eigenvalues of QᵀΣQ (Ritz values), and from a bound on the
    eigenvalues of Σ outside of that span.
    """
    k = atoms.shape[0]
    span, basis_error = _column_space(atoms)
    probed = data.apply(np.concatenate([span.T, drawn_after(1, data.variances, span)]))
    image = probed[:-1]
    inside, turn = np.linalg.eigh((image @ span + (image @ span).T) / 2)
    inside, span, image = inside[::-1], (span @ turn)[:, ::-1], turn[:, ::-1].T @ image
    residual = image - inside[:, None] * span.T
    left = min(STARTS, data.n_features - span.shape[1])
    starts = drawn_after(left, probed, data.mean)
    rest = _Complement(data, span, data.trace - float(np.sum(inside)), starts)
    size = float(np.linalg.norm(residual)) + data.n_features * EPS * data.trace
    for steps in KRYLOV_STEPS:
        # More steps help as long as the bound on the complement decides, and not its Ritz value.
        gap, best = float(inside[-1]) - rest.bound, float(inside[-1]) - rest.found
        decided = best <= 0.0 or size < 1e-3 * gap or (gap > best / 2 and rest.steps > 0)
        if decided or not rest.extend(steps):
            break
    ritz = rest.ritz(residual, image)
    return _judged(data, _latents(data, atoms), inside, size, rest, ritz, k, basis_error)


class _Complement:
    """Block Krylov space of the second moment in the orthogonal complement of the decoder's span.

    `bound` is an upper bound on the largest eigenvalue there, `found` the largest eigenvalue of the
    second moment restricted to the Krylov space (Ritz value).
    """

    def __init__(self, data: Data, span: Vector, trace: float, starts: Vector) -> None:
        self.data, self.span, self.steps = data, span, 0
        self.left = data.n_features - span.shape[1]
        # The largest eigenvalue of a positive semidefinite matrix is at most its trace.
        self.bound = max(trace, 0.0) + 4 * data.n_features * EPS * data.trace
        self.found, self.exhausted = 0.0, self.left == 0
        self.block = starts
        self.basis = np.empty((0, data.n_features))
        self.images = np.empty((0, data.n_features))

    def extend(self, steps: int) -> bool:
        """Extend the Krylov space to `steps` block steps and update `bound` and `found`.

        Both are about the largest eigenvalue outside the decoder's span: an upper bound, and the
        largest one found. Returns whether a step was made; none is made if the space is complete or
        too large.
        """
        if self.exhausted:
            return False
        before = self.steps
        while self.steps < steps and self._affordable():
            fresh = _orthonormal(self.block, (self.span.T, self.basis))
            if not len(fresh):
                self.exhausted = True
                break
            image = self.data.apply(fresh)
            self.basis = np.concatenate([self.basis, fresh])
            self.images = np.concatenate([self.images, image])
            self.block, self.steps = image, self.steps + 1
        self.exhausted |= len(self.basis) >= self.left
        if self.steps > before:
            inner = self.basis @ self.images.T
            self.found = float(np.linalg.eigvalsh((inner + inner.T) / 2)[-1])
            # An invariant space of a random start contains an eigenvector of every eigenvalue.
            share = 0.0 if self.exhausted else krylov_error(self.steps, self.left)
            if share < 1.0:
                rounding = self.data.n_features * EPS * self.data.trace
                self.bound = min(self.bound, self.found / (1 - share) + rounding)
        return self.steps > before

    def _affordable(self) -> bool:
        grown = len(self.basis) + len(self.block)
        return len(self.basis) < self.left and (
            self.steps < KRYLOV_STEPS[0] or grown * self.data.n_features <= KRYLOV_ENTRIES
        )

    def ritz(self, residual: Vector, image: Vector) -> Vector:
        """Return lower bounds on the eigenvalues of the second moment, descending (Cauchy).

        They are the eigenvalues of the second moment restricted to a space (Ritz values): the sum
        of the decoder's span, the span's residuals and the Krylov space. `image` is the product of
        the span's basis with the second moment.
        """
        fresh = _orthonormal(residual, (self.span.T, self.basis))
        basis = np.concatenate([self.span.T, self.basis, fresh])
        images = np.concatenate([image, self.images, self.data.apply(fresh)])
        inner = basis @ images.T
        return np.asarray(np.linalg.eigvalsh((inner + inner.T) / 2)[::-1])


def _orthonormal(rows: Vector, others: tuple[Vector, ...]) -> Vector:
    """Return an orthonormal basis, as rows, of the part of `rows` orthogonal to all of `others`."""
    lengths = np.sqrt(np.sum(rows * rows, axis=1))
    rows = rows[lengths > 0.0] / lengths[lengths > 0.0, None]
    for _ in range(2):  # twice is enough (Kahan, Parlett)
        for basis in others:
            rows = rows - (rows @ basis.T) @ basis
    if not len(rows):
        return rows
    basis, triangle = np.linalg.qr(rows.T)
    left, sizes, _ = np.linalg.svd(triangle)
    fresh: Vector = (basis @ left).T[sizes > 1e-10]
    for other in others:
        fresh = fresh - (fresh @ other.T) @ other
    return np.asarray(fresh / np.sqrt(np.sum(fresh * fresh, axis=1))[:, None])


class _Latents(NamedTuple):
    """Rayleigh quotients ρ = wᵀΣw and residuals ‖Σw − ρw‖ of unit decoder columns w.

    Σ is the second moment of the data.
    """

    quotients: Vector
    residuals: Vector


def _latents(data: Data, atoms: Vector) -> _Latents:
    units = _unit_rows(atoms)
    image = data.apply(units)
    quotients = np.sum(image * units, axis=1)
    sizes = np.linalg.norm(image - quotients[:, None] * units, axis=1)
    return _Latents(quotients, sizes + data.n_features * EPS * data.trace)


def _judged(
    data: Data,
    latents: _Latents,
    inside: Vector,
    size: float,
    rest: _Complement,
    ritz: Vector,
    k: int,
    basis_error: float,
) -> Leading:
    """Return the bounds that follow from the residuals of the decoder's span and its complement.

    `inside` are the eigenvalues of the second moment restricted to the span (Ritz values), `size`
    is the norm of their residual, `rest` bounds the eigenvalues outside, `ritz` are lower bounds on
    all eigenvalues (see `_Complement.ritz`), and `basis_error` is the error of the span's basis as
    an angle.
    """
    rank, rounding = len(inside), data.n_features * EPS * data.trace
    gap = float(inside[-1]) - rest.bound
    # Davis–Kahan: ‖sin Θ‖_F ≤ ‖ΣQ − QΛ‖_F / gap, and the subspace distance is ‖sin Θ‖_F²/k; each
    # missing direction adds 1/k. An eigenvalue lies at most `drift` above its Ritz value
    # (Li & Li 2005).
    missing = (k - rank) / k
    turned = size / gap + basis_error if gap > 0 else math.inf
    high = min(1.0, missing + turned**2 / k)
    drift = (min(size, size**2 / gap) if gap > 0 else size) + rounding
    # Weyl: the i-th eigenvalue is at most the i-th of the block diagonal part plus ‖R‖.
    upper = np.sort(np.append(inside, np.full(k, rest.bound)))[::-1][:k] + drift
    # Against a decoder of full rank: tr(UᵀΣU) − tr(QᵀΣQ) ≤ σ₁² ‖sin Θ‖_F², and Ritz values of a
    # larger space lie below the eigenvalues.
    lower = np.append(ritz, np.zeros(k))[:k]
    excess = float(np.sum(lower) - np.sum(inside)) - 4 * k * rounding if rank == k else 0.0
    sines = max(0.0, excess) / max(float(upper[0]), _TINY)
    low = missing + max(0.0, math.sqrt(sines) - basis_error) ** 2 / k
    padded = np.append(inside, np.zeros(k - rank))
    outside = rest.bound if data.n_features > rank else 0.0
    away = np.minimum(1.0, latents.residuals / max(float(upper[0]), _TINY))
    away = np.maximum(0.0, away - 4 * data.n_features * EPS)
    return Leading(
        np.append(padded, rest.found),
        drift,
        outside,
        Estimate.between(min(low, high), high),
        _misalignment_bounds(latents, padded, inside, drift, outside),
        np.zeros(k),
        False,
        np.maximum(lower - rounding, 0.0),
        upper,
        float(np.sum(away**2)) / (2 * k),
    )


def _misalignment_bounds(
    latents: _Latents, values: Vector, inside: Vector, drift: float, outside: float
) -> Vector:
    """Return, for each principal axis, an upper bound on its squared sine to a decoder column.

    A decoder column w of unit length with Rayleigh quotient ρ = wᵀΣw, for the second moment Σ, is
    assigned to the axis of the nearest Ritz value (eigenvalue of Σ restricted to the decoder's
    span). The sine of their angle is at most ‖Σw − ρw‖ divided by the distance of ρ to the
    intervals that contain the other eigenvalues (Davis & Kahan 1970). An axis without a column gets
    1.
    """
    found = np.ones(len(values))
    for quotient, size in zip(*latents, strict=True):
        own = int(np.argmin(np.abs(inside - quotient)))
        others = np.delete(inside, own)
        away = np.maximum(others - quotient, quotient - others - drift)
        gap = float(min(np.min(away, initial=np.inf), quotient - outside))
        if gap > 0.0:
            found[own] = min(found[own], (float(size) / gap) ** 2)
    return found


def _unknown(k: int, distance: float, trace: float) -> Leading:
    """Return trivial bounds, for a decoder that is zero or not finite, or data without variance.

    Each eigenvalue lies between 0 and the trace, and every squared sine is `distance`.
    """
    zeros, most = np.zeros(k), np.full(k, max(trace, 0.0))
    all_of_it = Estimate(distance, 0.0)
    far = np.full(k, distance)
    return Leading(np.zeros(k + 1), 0.0, math.inf, all_of_it, far, zeros, False, zeros, most)
