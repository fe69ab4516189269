"""Eigenvalues and distances to the principal axes for certificates, from weights and data alone.

No code is shared with the solvers, so that a mistake in a solver is not repeated in its
certificate. The eigenvalues come from another LAPACK routine (`syevd`), or are bounded by a Krylov
space (`certificates.complement`); the bounds are wrong with a small probability, which is stated.

Rounding errors: for a second moment of m features with the largest eigenvalue σ₁² and the machine
epsilon ε, each eigenvalue is known up to m·ε·σ₁² (Weyl). A principal axis whose eigenvalue differs
from all others by at least `gap` is known up to the angle m·ε·σ₁²/gap (Davis & Kahan 1970).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from lucidae.certificates.complement import (
    STARTS,
    STEPS,
    Complement,
    digest_of,
    drawn_after,
)
from lucidae.linear.probe import EPS, FEWEST_ROUNDINGS, Estimate
from lucidae.linear.verified_data import SHORTEST, Data, KnownProducts
from lucidae.linear.verified_gram import GramFigures

__all__ = ["Leading", "leading_eigenpairs"]

Vector = np.ndarray[Any, Any]

NEARLY = 1e-6
"""Difference of squared cosines below which either of two columns may be nearer to an axis."""

TIED = 1e-9
"""Relative difference of eigenvalues up to which no further Krylov steps are made to decide which
of them is the larger one."""

UNDECIDED = 1e-9
"""Error of a mean squared sine above which it is computed in another way, for few rows."""

IDENTIFIABLE = 100.0
"""A component is identifiable if its eigengap exceeds this multiple of the eigenvalues' error.

Its principal axis is then known up to an angle of 1/100 (Davis & Kahan 1970)."""

FAR = 1e-3
"""Mean squared sine from which on it is known that the decoder spans another subspace."""

NEAR = 1e-4
"""Mean squared sine, times the number of latents, up to which it is known that the decoder spans
the principal subspace."""

SMALL_VARIANCE = 1e-4
"""Ratio of an eigenvalue to the largest one below which singular values of the rows determine its
axis more accurately than their second moment, by a factor of at least 50."""

_TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True, slots=True)
class Leading:
    """Leading eigenvalues of second moment, and the decoder's distance to the principal axes."""

    # (q,): leading eigenvalues, descending: all of them if `dense`; otherwise the k Ritz values of
    # the decoder's span, and the largest Ritz value outside of it
    values: Vector
    error: float  # bound on the error of each of the first k values
    outside: float  # upper bound on the (k+1)-th eigenvalue; 0 if there are only k features
    # mean squared sine of the angles between the decoder's span and the principal subspace
    subspace: Estimate
    # (k,): for each principal axis, the smallest squared sine of its angle to a decoder column; if
    # not `dense`, an upper bound on it
    misalignments: Vector
    angles: Vector  # (k,): bound on the error of each principal axis, as an angle
    dense: bool  # whether all eigenpairs were computed; otherwise they are only bounded
    ritz: Vector  # (k,): lower and upper bounds on the k leading eigenvalues
    upper: Vector
    # lower bound on the mean of the true misalignments; used only if not `dense`
    unaligned: float = 0.0
    by_gram: bool = False  # whether the eigenvalues are those of the Gram matrix of few rows
    by_rows: bool = False  # whether the eigenvalues are bounded by singular values of deflated rows
    # the part of `error` that products of the rows in single precision cause; 0 without them
    uncertainty: float = 0.0
    axes: Vector | None = None  # (m, k): the principal axes as columns if `dense`, otherwise None
    # (q,): bound on the error of each eigenvalue if these bounds differ, because the eigenvalues
    # are squares of singular values of the rows; None if `error` is the bound for all of them
    errors: Vector | None = None
    # whether rounding errors of the second moment hide a component of small variance that the rows
    # may determine, but the rows are not known
    hidden: bool = False

    def value_errors(self, k: int) -> Vector:
        """Return a bound on the error of each of the first k eigenvalues."""
        return np.full(k, self.error) if self.errors is None else self.errors[:k]

    def resolution(self, k: int) -> float:
        """Return by how much eigenvalue k must exceed eigenvalue k + 1 to determine their axes.

        If the difference is smaller, rounding errors hide which axis belongs to which of the two.
        """
        return max(IDENTIFIABLE * float(self.value_errors(k)[-1]), _TINY)

    def weakest(self, k: int) -> tuple[float, float]:
        """Return the difference of neighbouring eigenvalues that is least resolved.

        Of the differences between the first k eigenvalues and the next one, it is the one that is
        smallest compared with its `resolution`, which is returned as well.
        """
        steps = -np.diff(np.append(self.values[:k], self.outside))
        bounds = np.maximum(IDENTIFIABLE * self.value_errors(k), _TINY)
        least = int(np.argmin(steps / bounds)) if self.errors is not None else int(np.argmin(steps))
        return float(steps[least]), float(bounds[least])

    def unidentifiable(self, k: int) -> Vector:
        """Return the numbers, from 1 to k, of components whose eigenvalue is too close to another.

        It is too close if the distance to the nearest other eigenvalue is at most the `resolution`
        of the larger of the two.
        """
        steps = -np.diff(np.append(self.values[:k], self.outside))
        apart = steps > np.maximum(IDENTIFIABLE * self.value_errors(k), _TINY)
        return 1 + np.flatnonzero(~(apart & np.append(True, apart[:-1])))

    def times(self, factor: float) -> Leading:
        """Return the eigenvalues and distances for the second moment multiplied by `factor`."""
        return replace(
            self,
            values=factor * self.values,
            error=factor * self.error,
            outside=factor * self.outside,
            ritz=factor * self.ritz,
            upper=factor * self.upper,
            uncertainty=factor * self.uncertainty,
            errors=None if self.errors is None else factor * self.errors,
        )

    def determined(self, k: int) -> bool:
        """Tell whether eigenvalue k exceeds eigenvalue k + 1 by more than `resolution(k)`.

        Otherwise rounding errors hide the principal subspace.
        """
        return bool(self.values[k - 1] - self.outside > self.resolution(k))


def _gaps(values: Vector) -> Vector:
    steps = values[:-1] - values[1:]
    return np.asarray(np.minimum(steps, np.append(math.inf, steps[:-1])))


def leading_eigenpairs(data: Data, atoms: Vector) -> Leading:
    """Return leading eigenvalues of the data, and the decoder's distance to the principal axes."""
    if data.matrix is not None:
        return _exacter(data, atoms, _dense(data, atoms))
    zero = not np.any(np.abs(atoms) > SHORTEST)
    if not np.all(np.isfinite(atoms)) or zero or not data.varies:
        distance = 1.0 if np.all(np.isfinite(atoms)) else math.nan
        known = _unknown(atoms.shape[0], distance, data.trace)
        # Constant rows have no principal subspace to miss.
        return known if data.varies else replace(known, subspace=Estimate.between(0.0, distance))
    # In units of the trace no square overflows.
    unit = data.trace
    scaled = data.in_units(math.sqrt(unit))
    if scaled.few_rows is None:
        return _exacter(scaled, atoms, _bounded(scaled, atoms)).times(unit)
    span, error = _column_space(atoms)
    found = scaled.few_rows.measured(span.T)
    if isinstance(data.remembered, KnownProducts):
        data.remembered.learn(span.T, unit * found.images)
    return _exacter(scaled, atoms, _from_gram(scaled, atoms, span, error, found)).times(unit)


def _dense(data: Data, atoms: Vector) -> Leading:
    k, m = atoms.shape
    ascending, vectors = np.linalg.eigh(np.asarray(data.matrix))
    values, axes = np.maximum(ascending[::-1], 0.0), vectors[:, ::-1][:, :k]
    error = max(m, FEWEST_ROUNDINGS) * EPS * float(values[0]) + data.uncertainty
    outside = float(values[k]) if m > k else 0.0
    distance, angles = _distances(atoms, axes, values, outside, error)
    return Leading(
        values,
        error,
        outside,
        distance,
        _misalignments(atoms, axes),
        angles,
        True,
        values[:k] - error,
        values[:k] + error,
        uncertainty=data.uncertainty,
        axes=axes,
    )


def _exacter(data: Data, atoms: Vector, known: Leading) -> Leading:
    """Return `known`, or what singular values of the rows say, if they decide more.

    They are computed if rounding errors of the second moment hide an axis of small variance, and if
    bounds on the eigenvalues do not decide whether the decoder spans the principal subspace. Their
    result is returned if its bound on the error of the subspace distance is not larger.
    """
    k, rows = atoms.shape[0], data.rows
    hidden = known.unidentifiable(k) - 1
    small = bool(np.any(known.values[hidden] < SMALL_VARIANCE * known.values[0]))
    if rows is None:
        # The centred rows have a rank below their number, so that later eigenvalues are zero.
        # Moments about zero (weight None) are given without rows, even if these are known.
        hidden = hidden[hidden + 1 < (data.weight or 0.0)]
        small = bool(np.any(known.values[hidden] < SMALL_VARIANCE * known.values[0]))
        return replace(known, hidden=small and known.dense)
    low, high = (known.subspace.value + sign * known.subspace.error for sign in (-1.0, 1.0))
    open_ended = not known.dense and low < FAR and high > NEAR / k
    if not small and not open_ended:
        return known
    found = (
        _by_singular_values(data, atoms) if rows.small else _by_deflated_rows(data, atoms, known)
    )
    return found if found and found.subspace.error <= known.subspace.error else known


def _by_deflated_rows(data: Data, atoms: Vector, known: Leading) -> Leading | None:
    """Return bounds on eigenvalues and distances from singular values in a decoder's span.

    The estimate of the eigenvalue after the last latent is that of `known`.
    """
    assert data.rows is not None, "the caller has tested it"
    k = atoms.shape[0]
    span, basis_error = _column_space(atoms)
    found = data.rows.bounded(span) if span.shape[1] == k else None
    if found is None:
        return None
    roots, error = found.values, found.error
    size = float(np.linalg.norm(found.residuals)) + error
    outside = found.outside + size
    gap = float(roots[-1]) - outside - error
    if not gap > 0.0:
        return None
    high = min(1.0, (size / gap + basis_error) ** 2 / k)
    drift = size + error
    # Each axis is turned by its own residual, divided by the distance to other singular values.
    gaps = _gaps(np.append(roots, outside)) - 2 * drift
    angles = (found.residuals + error) / np.maximum(gaps, _TINY) + basis_error
    sines = np.sqrt(_misalignments(atoms, found.axes))
    return Leading(
        np.append(roots**2, known.values[k]),
        drift * (2 * float(roots[0]) + drift),
        outside**2,
        Estimate.between(0.0, high),
        np.minimum(1.0, sines + angles) ** 2,
        np.zeros(k),
        False,
        np.maximum(roots - error, 0.0) ** 2,
        (roots + drift) ** 2,
        float(np.mean(np.maximum(sines - angles, 0.0) ** 2)),
        by_rows=True,
        errors=drift * (2 * np.append(roots, outside) + drift),
    )


def _by_singular_values(data: Data, atoms: Vector) -> Leading:
    """Return all eigenvalues and the distances to the axes from singular values of the rows."""
    assert data.rows is not None, "the caller has tested it"
    k, m = atoms.shape
    roots, axes, error = data.rows.decomposed(k)
    values, errors = roots**2, error * (2 * roots + error)
    after = float(roots[k]) if m > k else 0.0
    distance, angles = _distances(atoms, axes, roots, after, error)
    return Leading(
        values,
        float(errors[0]),
        after**2,
        distance,
        _misalignments(atoms, axes),
        angles,
        True,
        values[:k] - errors[:k],
        values[:k] + errors[:k],
        axes=axes,
        errors=errors,
    )


def _distances(
    atoms: Vector, axes: Vector, values: Vector, outside: float, error: float
) -> tuple[Estimate, Vector]:
    """Return the distance of the decoder's span to that of the axes, and bounds on their angles.

    The k columns of `axes` belong to the first of `values`, which are eigenvalues or singular
    values in descending order with an error of at most `error`; `outside` is the next one. Such an
    error turns an axis by at most the error divided by the distance of its value to the others, and
    the span of all by the error divided by the last distance (Davis & Kahan 1970 for eigenvalues,
    Wedin 1972 for singular values).
    """
    k, m = atoms.shape
    span, basis_error = _column_space(atoms)
    # 1 − tr(UUᵀQQᵀ)/k as the mean of squared sines, which has no cancellation near 0.
    missing = axes - span @ (span.T @ axes)
    distance = float(np.sum(missing * missing)) / k
    gaps = _gaps(np.append(values[:k], outside))
    angles = np.minimum(1.0, error / np.maximum(gaps, _TINY)) + m * EPS
    angle = min(1.0, error / max(float(values[k - 1]) - outside, _TINY)) + basis_error
    return Estimate(distance, 2 * math.sqrt(distance) * angle + angle**2), angles


def _column_space(atoms: Vector) -> tuple[Vector, float]:
    """Return an orthonormal basis (m × rank) of the decoder's span, and a bound on its error.

    The decoder's columns (the rows of `atoms`) are scaled to unit length first. Directions whose
    singular value is then below m·ε, with the machine epsilon ε, are left out. The rounding errors
    rotate the basis by an angle of up to m·ε divided by the smallest other singular value.
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
    if not np.all(np.isfinite(atoms)):
        return np.full(axes.shape[1], np.nan)
    units, found = _unit_rows(atoms), np.ones(axes.shape[1])
    if not len(units):
        return found
    # One minus a squared cosine has a rounding error of about ε, so it shows which columns may be
    # nearest; their sines are computed without cancellation.
    cosines = (units @ axes) ** 2
    near = cosines >= np.max(cosines, axis=0) - NEARLY
    for i, axis in enumerate(axes.T):
        rows = units[near[:, i]]
        away = rows - (rows @ axis)[:, None] * axis
        found[i] = np.min(np.sum(away * away, axis=1))
    return found


def _bounded(data: Data, atoms: Vector) -> Leading:
    """Return bounds on the eigenvalues and on the decoder's distance to the principal axes.

    They follow from the residuals ΣQ − QΘ of an orthonormal basis Q of the decoder's span, where Σ
    is the second moment and Θ are the eigenvalues of QᵀΣQ (Ritz values), and from a bound on the
    eigenvalues of Σ outside of that span.
    """
    k = atoms.shape[0]
    span, basis_error = _column_space(atoms)
    rounding = data.n_features * EPS * data.trace + data.uncertainty
    m, known = data.n_features, (data.variances, data.mean, span)
    seen = data.fingerprint or digest_of(data.apply(drawn_after((1, m), *known)))
    starts = drawn_after((min(STARTS, m - span.shape[1]), m), seen, *known)
    rest = Complement(data.product, span, rounding, starts)
    # One pass over the data serves for the decoder's span and for the first Krylov step.
    images = data.apply(np.concatenate([span.T, rest.block]))
    image = images[: span.shape[1]]
    if len(rest.block):
        rest.add(images[span.shape[1] :])
    inside, turn = np.linalg.eigh((image @ span + (image @ span).T) / 2)
    inside, span, image = inside[::-1], (span @ turn)[:, ::-1], turn[:, ::-1].T @ image
    residual = image - inside[:, None] * span.T
    size = float(np.linalg.norm(residual)) + rounding
    # No eigenvalue outside of the span exceeds the trace outside of the span.
    rest.bound = max(data.trace - float(np.sum(inside)), 0.0) + 4 * rounding
    for steps in STEPS:
        # More steps help as long as the bound on the complement decides, and not its Ritz value,
        # and if the decoder misses a larger eigenvalue, which they determine more accurately.
        gap, best = float(inside[-1]) - rest.bound, float(inside[-1]) - rest.found
        tied = abs(best) <= TIED * float(inside[-1])
        decided = size < 1e-3 * gap or (gap > best / 2 > 0.0 and rest.found > 0.0)
        hopeless = best > 0.0 and rest.final_slack() > best
        if tied or decided or hopeless or not rest.extend(steps):
            break
    # Residuals that are nearly zero do not raise the Ritz values of the span.
    tiny = size**2 <= rounding * float(inside[0])
    ritz = rest.ritz(span.T, image, residual[:0] if tiny else residual)
    return _judged(data, _latents(data, atoms), inside, size, rest, ritz, k, basis_error)


def _from_gram(
    data: Data, atoms: Vector, span: Vector, basis_error: float, found: GramFigures
) -> Leading:
    """Return bounds on the eigenvalues and on the decoder's distance to the principal axes.

    They follow from all eigenvalues of the Gram matrix of few rows.
    """
    k = atoms.shape[0]
    inner = found.images @ span
    inside, turn = np.linalg.eigh((inner + inner.T) / 2)
    inside, turn = inside[::-1], turn[:, ::-1]
    residual = turn.T @ found.images - inside[:, None] * (span @ turn).T
    size = float(np.linalg.norm(residual)) + data.n_features * EPS * data.trace
    rest = _Outside(found.complement(float(inside[-1]), size), found.value(len(inside)))
    values = np.array([found.value(i) for i in range(k + 1)])
    latents = _latents(data, atoms)
    bounds = _judged(data, latents, inside, size, rest, values[:k] - found.error, k, basis_error)
    subspace = bounds.subspace
    if len(inside) == k and subspace.error > UNDECIDED:
        exact = found.distance(k)
        subspace = exact if exact.error < subspace.error else subspace
    return replace(
        bounds,
        values=values,
        error=found.error,
        subspace=subspace,
        upper=values[:k] + found.error,
        by_gram=True,
    )


class _Outside(NamedTuple):
    """The largest eigenvalue of the second moment outside of a decoder's span.

    `bound` is an upper bound on it, and `found` an estimate.
    """

    bound: float
    found: float


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
    return _Latents(quotients, sizes + data.n_features * EPS * data.trace + data.uncertainty)


def _judged(
    data: Data,
    latents: _Latents,
    inside: Vector,
    size: float,
    rest: Complement | _Outside,
    ritz: Vector,
    k: int,
    basis_error: float,
) -> Leading:
    """Return bounds on the eigenvalues and on the decoder's distance to the principal axes.

    The eigenvalues are those of the second moment. The bounds follow from the residuals of the
    decoder's columns (`latents`) and of their span.
    """
    rank, rounding = len(inside), data.n_features * EPS * data.trace + data.uncertainty
    gap = float(inside[-1]) - rest.bound
    # Davis–Kahan: ‖sin Θ‖_F ≤ ‖ΣQ − QΛ‖_F / gap, and the subspace distance is ‖sin Θ‖_F²/k; each
    # missing direction adds 1/k. An eigenvalue lies at most `drift` above its Ritz value
    # (Li & Li 2005).
    # Directions in which the data do not vary cannot be missed.
    missing = (k - rank) / k if rest.bound > 8 * rounding else 0.0
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
    # `residuals` contain their rounding errors, which are no lower bound.
    known = 4 * data.n_features * EPS + 2 * data.uncertainty / max(float(upper[0]), _TINY)
    away = np.maximum(0.0, away - known)
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
        uncertainty=data.uncertainty,
    )


def _misalignment_bounds(
    latents: _Latents, values: Vector, inside: Vector, drift: float, outside: float
) -> Vector:
    """Return, for each principal axis, an upper bound on its squared sine to a decoder column.

    A decoder column w of unit length with Rayleigh quotient ρ = wᵀΣw, for the second moment Σ, is
    assigned to the axis of the nearest Ritz value (eigenvalue of Σ restricted to the decoder's
    span). The sine of their angle is at most ‖Σw − ρw‖ divided by the distance of ρ to the
    intervals that contain the other eigenvalues (Davis & Kahan 1970). For an axis without a column
    the bound is 1.
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

    Each of the k leading eigenvalues lies between 0 and the trace, and every squared sine between
    decoder and principal axes is `distance`.
    """
    zeros, most = np.zeros(k), np.full(k, max(trace, 0.0))
    all_of_it = Estimate(distance, 0.0)
    far = np.full(k, distance)
    return Leading(np.zeros(k + 1), 0.0, math.inf, all_of_it, far, zeros, False, zeros, most)
