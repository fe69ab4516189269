"""Eigenvalues and distances to the principal axes for certificates, from weights and data alone.

Nothing here is shared with the solvers: the products with the data and the distances are written a
second time, by naive formulas, and the eigenvalues come from another LAPACK routine (`syevd`) or
from a Krylov space with a stated probability. What a solver gets wrong is therefore not repeated in
its certificate.

For a second moment of m features the eigenvalues are known to m·ε·σ₁², the rounding error of the
moment and of the eigenvalue routine (Weyl), and an axis whose neighbours are `gap` away to the
angle m·ε·σ₁²/gap (Davis & Kahan 1970).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from lucidae.arrays import as_double, is_numpy, like, namespace, scalar, to_numpy
from lucidae.linear.probe import EPS, Estimate, Probe
from lucidae.moments import SecondMoment

__all__ = ["Data", "Estimate", "Leading", "data_of", "leading_eigenpairs"]

Vector = np.ndarray[Any, Any]

DENSE_FEATURES = 1024
"""Largest m for which all eigenpairs of Σ are computed; above it, a Krylov space bounds them."""

MOMENT_FEATURES = 8192
"""Largest m for which Σ is formed, where there are not fewer rows than m/2."""

BLOCK_ROWS = 2048
"""Rows centred at a time."""

SHORTEST = 1e-290
"""Length below which a column of the decoder counts as zero.

The column space does not depend on the lengths of the columns, and a shorter column has lost digits
of its direction, because its entries are close to the smallest floating-point numbers.
"""

IDENTIFIABLE = 100.0
"""A component is identifiable when its eigengap exceeds this multiple of m·ε·σ₁².

Its axis is then known to an angle of 1/100, and the squared sine to a tenth of `DISTANCE`.
"""

LARGE_MEAN = 1.0
"""Squared length of the mean, in units of the total variance, above which rows are centred before
a product instead of afterwards."""

STARTS = 16
"""Random vectors in the start block of the Krylov space."""

FAILURE = 1e-9
"""Probability with which the bound from one Krylov space may be wrong."""

KRYLOV_STEPS = (4, 6, 8, 12, 16, 32)
"""Numbers of block steps after which the bound is tested; it is wrong with probability 6e-9."""

KRYLOV_ENTRIES = 2**24
"""Largest number of stored entries of the Krylov basis: 128 mebibytes."""

_TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True, slots=True)
class Data:
    """The second moment Σ of data: the matrix itself where m is small, else products with it.

    Parameters
    ----------
    mean : ndarray of shape (m,)
        Mean of the rows.
    trace : float
        Total variance, the sum of all eigenvalues of Σ.
    product : callable
        Returns rows Σ for an array of rows.
    matrix : ndarray of shape (m, m), optional
        Σ itself, for at most `DENSE_FEATURES` features.
    difference : Estimate, optional
        Difference of the stored moment to the rows, see `Probe.difference`.
    weight : float, optional
        Number of rows, or the sum of their weights.
    """

    mean: Vector
    trace: float
    product: Callable[[Vector], Vector]
    matrix: Vector | None = None
    difference: Estimate | None = None
    weight: float | None = None

    @property
    def n_features(self) -> int:
        """Dimension m."""
        return len(self.mean)

    def apply(self, rows: Vector) -> Vector:
        """Return rows Σ."""
        return self.product(rows)

    def in_units(self, unit: float) -> Data:
        """Return the second moment of the same data divided by `unit`."""
        matrix = None if self.matrix is None else self.matrix / unit**2
        return replace(
            self,
            mean=self.mean / unit,
            trace=self.trace / unit**2,
            product=lambda rows: self.product(rows) / unit**2,
            matrix=matrix,
        )


def data_of(X: Any, weights: Any = None, difference: Estimate | None = None) -> Data:
    """Return the second moment of checked rows, or that of a `SecondMoment`, for the verifier.

    Parameters
    ----------
    X : array of shape (n, m) or SecondMoment
        The data.
    weights : array of shape (n,), optional
        Frequencies of the rows.
    difference : Estimate, optional
        Difference of the moment to its rows, where this was measured before.
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

        return Data(mean, moment.trace, product, None, difference, moment.weight)
    matrix = to_numpy(covariance)
    trace = float(np.trace(matrix))
    return Data(mean, trace, lambda rows: rows @ matrix, matrix, difference, moment.weight)


def _data_of_rows(X: Any, weights: Any) -> Data:
    shares = np.ones(X.shape[0]) if weights is None else to_numpy(weights)
    weight = float(shares.sum())
    shares = shares / weight
    zero = np.zeros(X.shape[1])
    if scipy.sparse.issparse(X):
        mean = np.asarray(shares @ X.astype(np.float64)).ravel()
        squares = np.asarray(X.astype(np.float64).multiply(X).sum(axis=1)).ravel()
        total = float(shares @ squares) - float(mean @ mean)
        if float(mean @ mean) <= LARGE_MEAN * total:
            return Data(mean, total, _uncentred(X, shares, mean), weight=weight)
    # The mean of the deviations from a first mean corrects its rounding error.
    mean = sum((part for part, _ in _centred_sums(X, shares, zero, None)), zero)
    rest, total = zero, 0.0
    for part, size in _centred_sums(X, shares, mean, None):
        rest, total = rest + part, total + size
    mean, total = mean + rest, total - float(rest @ rest)
    if is_numpy(X) and X.dtype == np.float64 and float(mean @ mean) <= LARGE_MEAN * total:
        return Data(mean, total, _uncentred(X, shares, mean), weight=weight)

    def product(rows: Vector) -> Vector:
        return sum((part for part, _ in _centred_sums(X, shares, mean, rows)), 0.0 * rows)

    return Data(mean, float(total), product, weight=weight)


def _uncentred(X: Any, shares: Vector, mean: Vector) -> Callable[[Vector], Vector]:
    """Return the function rows ↦ rows Σ, by products with the rows of X as they are.

    With the shares p, Σ v = Xᵀc − (1ᵀc) μ, where c = p(Xv − 1 μᵀv) are the weighted codes of v.
    """

    def product(rows: Vector) -> Vector:
        codes = shares[:, None] * (np.asarray(X @ rows.T) - mean @ rows.T)
        return np.asarray(X.T @ codes - np.outer(mean, codes.sum(axis=0))).T

    return product


def _centred_sums(
    X: Any, shares: Vector, mean: Vector, rows: Vector | None
) -> Iterator[tuple[Any, Any]]:
    """Yield sums over blocks of rows x with shares p, centred about μ as dense arrays.

    Without `rows`, Σ p (x − μ) and Σ p ‖x − μ‖²; otherwise Σ p ⟨v, x − μ⟩(x − μ) for each row v.
    """
    for start in range(0, X.shape[0], BLOCK_ROWS):
        chosen = slice(start, min(start + BLOCK_ROWS, X.shape[0]))
        part, share = X[chosen, :], shares[chosen]
        block = part.toarray() if scipy.sparse.issparse(part) else part
        block = as_double(block) - like(mean, as_double(block))
        xp, share = namespace(block), like(share, block)
        if rows is None:
            yield to_numpy(share @ block), scalar(share @ xp.sum(block * block, axis=1))
        else:
            codes = block @ like(rows, block).mT
            yield to_numpy((codes * share[:, None]).mT @ block), None


@dataclass(frozen=True, slots=True)
class Leading:
    """The known leading eigenpairs of Σ, and the distance of given decoder columns from them.

    Parameters
    ----------
    values : ndarray of shape (q,)
        Leading eigenvalues: all m of a dense moment, otherwise the k Ritz values of the decoder's
        span and the largest one outside of it.
    error : float
        Bound on the error of each of the first k values.
    outside : float
        Upper bound on the (k+1)-th eigenvalue; 0 if there is none, because a component without
        variance is not determined either.
    subspace : Estimate
        Distance of the decoder's column space to the principal subspace.
    misalignments : ndarray of shape (k,)
        For each principal axis 1 − max cos², an upper bound where `dense` is false.
    angles : ndarray of shape (k,)
        Error of the angle of each axis.
    dense : bool
        Whether all eigenpairs were computed.
    ritz : ndarray of shape (k,)
        Lower bounds on the leading eigenvalues.
    upper : ndarray of shape (k,)
        Upper bounds on them.
    unaligned : float
        Lower bound on the mean misalignment where `dense` is false. A latent with a residual r has
        a sine of at least r/σ₁² to every axis. Axes that share a latent have a sum of squared sines
        of at least one less than their number, so that half the mean over the latents is a bound.
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
        """Return the distance of each of the first k eigenvalues to its nearest neighbour."""
        return _gaps(np.append(self.values[:k], self.outside))

    def resolution(self) -> float:
        """Return the eigengap above which a component is identifiable."""
        return max(IDENTIFIABLE * self.error, _TINY)

    def unidentifiable(self, k: int) -> Vector:
        """Return the components, counted from 1, whose eigengap the data do not resolve."""
        return 1 + np.flatnonzero(~(self.gaps(k) > self.resolution()))

    def times(self, factor: float) -> Leading:
        """Return what is known about the eigenpairs of Σ multiplied by a factor."""
        return replace(
            self,
            values=factor * self.values,
            error=factor * self.error,
            outside=factor * self.outside,
            ritz=factor * self.ritz,
            upper=factor * self.upper,
        )

    def determined(self, k: int) -> bool:
        """Return whether the gap after the k-th eigenvalue is resolved."""
        return bool(self.values[k - 1] - self.outside > self.resolution())


def _gaps(values: Vector) -> Vector:
    steps = values[:-1] - values[1:]
    return np.asarray(np.minimum(steps, np.append(math.inf, steps[:-1])))


def leading_eigenpairs(data: Data, atoms: Vector) -> Leading:
    """Return the leading eigenpairs, as far as they are needed to judge a decoder.

    Parameters
    ----------
    data : Data
        The second moment Σ.
    atoms : ndarray of shape (k, m)
        The decoder's columns, one in each row.
    """
    if data.matrix is not None:
        return _dense(data, atoms)
    zero = not np.any(np.abs(atoms) > SHORTEST)
    if not np.all(np.isfinite(atoms)) or zero or not data.trace > 0.0:
        distance = 1.0 if np.all(np.isfinite(atoms)) else math.nan
        return _unknown(atoms.shape[0], distance, data.trace)
    # In units of the trace no square overflows.
    unit = data.trace
    scaled = Data(data.mean, 1.0, lambda rows: data.product(rows) / unit)
    return _bounded(scaled, atoms).times(unit)


def norm(values: Vector) -> float:
    """Return the Frobenius norm, without an overflow or underflow of the squares."""
    peak = float(np.max(np.abs(values), initial=0.0))
    return peak * float(np.linalg.norm(values / peak)) if 0.0 < peak < math.inf else peak


def _dense(data: Data, atoms: Vector) -> Leading:
    k, m = atoms.shape
    ascending, vectors = np.linalg.eigh(np.asarray(data.matrix))
    values, axes = np.maximum(ascending[::-1], 0.0), vectors[:, ::-1][:, :k]
    error = m * EPS * float(values[0])
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
    """Return an orthonormal basis (columns) of the decoder's column space, and its angle's error.

    The decoder's columns (the rows of `atoms`) are scaled to unit length first. A direction whose
    singular value is then below m·ε is not determined and does not count. Otherwise the rounding
    errors m·ε of the unit columns turn the basis by an angle of up to m·ε over the smallest
    singular value.
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
    """Return the rows at unit length, without those that are zero."""
    peaks = np.max(np.abs(rows), axis=1, initial=0.0)
    rows = rows[~(peaks <= SHORTEST)] / peaks[~(peaks <= SHORTEST), None]
    return np.asarray(rows / np.sqrt(np.sum(rows * rows, axis=1))[:, None])


def _misalignments(atoms: Vector, axes: Vector) -> Vector:
    """Return, for each axis, the smallest squared sine of its angle to a decoder column."""
    units = _unit_rows(atoms)
    found = np.ones(axes.shape[1])
    for i, axis in enumerate(axes.T):
        if len(units):
            away = units - (units @ axis)[:, None] * axis
            found[i] = np.min(np.sum(away * away, axis=1))
    return found if np.all(np.isfinite(atoms)) else np.full(len(found), np.nan)


def krylov_error(steps: int, n_features: int) -> float:
    """Return ε such that the largest eigenvalue is at most ξ/(1 − ε), ξ the largest Ritz value.

    From a random start, Lanczos iteration with q steps has P{λ₁ − ξ ≥ ελ₁} ≤ 1.648 √m e^(−√ε(2q−1))
    (Kuczyński & Woźniakowski 1992). A block of independent starts contains the Krylov
    space of each, so that it fails only where all fail: each may fail with `FAILURE`^(1/`STARTS`).
    """
    each = FAILURE ** (1.0 / STARTS)
    root = math.log(1.648 * math.sqrt(n_features) / each) / (2 * steps - 1)
    return root * root


def _bounded(data: Data, atoms: Vector) -> Leading:
    """Bound distances and eigenvalues by residuals and the largest eigenvalue of the complement."""
    k = atoms.shape[0]
    span, basis_error = _column_space(atoms)
    image = data.apply(span.T)
    inside, turn = np.linalg.eigh((image @ span + (image @ span).T) / 2)
    inside, span, image = inside[::-1], (span @ turn)[:, ::-1], turn[:, ::-1].T @ image
    residual = image - inside[:, None] * span.T
    rest = _Complement(data, span, data.trace - float(np.sum(inside)))
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
    """A block Krylov space of Σ on the orthogonal complement of a span, with full orthogonality."""

    def __init__(self, data: Data, span: Vector, trace: float) -> None:
        self.data, self.span, self.steps = data, span, 0
        self.left = data.n_features - span.shape[1]
        # The largest eigenvalue of a positive semidefinite matrix is at most its trace.
        self.bound = max(trace, 0.0) + 4 * data.n_features * EPS * data.trace
        self.found, self.exhausted = 0.0, self.left == 0
        rng = np.random.default_rng(0)
        self.block = rng.standard_normal((min(STARTS, self.left), data.n_features))
        self.basis = np.empty((0, data.n_features))
        self.images = np.empty((0, data.n_features))

    def extend(self, steps: int) -> bool:
        """Extend the space to a number of block steps; return whether anything was learned."""
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
        """Return the eigenvalues of Σ in the span, its residuals and the Krylov space, descending.

        They are lower bounds on the eigenvalues of Σ (Cauchy).
        """
        fresh = _orthonormal(residual, (self.span.T, self.basis))
        basis = np.concatenate([self.span.T, self.basis, fresh])
        images = np.concatenate([image, self.images, self.data.apply(fresh)])
        inner = basis @ images.T
        return np.asarray(np.linalg.eigvalsh((inner + inner.T) / 2)[::-1])


def _orthonormal(rows: Vector, others: tuple[Vector, ...]) -> Vector:
    """Return orthonormal rows for the part of `rows` that is orthogonal to the rows of `others`."""
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
    """Rayleigh quotients ρ of the decoder's columns w at unit length, and residuals ‖Σw − ρw‖."""

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
    """Return what the residuals and the complement prove, for and against the decoder."""
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
    """Bound the misalignment of each axis by (‖Σw − ρw‖ / gap)², w the best latent assigned to it.

    A latent is assigned to the axis of the nearest Ritz value; the sine of its angle to that axis
    is at most ‖Σw − ρw‖ / gap (Davis & Kahan 1970), the gap taken to the intervals of the other
    eigenvalues. An axis without a latent has 1.
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
    """Return what is known without a direction: an eigenvalue lies between 0 and the trace."""
    zeros, most = np.zeros(k), np.full(k, max(trace, 0.0))
    all_of_it = Estimate(distance, 0.0)
    far = np.full(k, distance)
    return Leading(np.zeros(k + 1), 0.0, math.inf, all_of_it, far, zeros, False, zeros, most)
