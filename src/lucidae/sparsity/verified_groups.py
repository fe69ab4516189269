"""Verification of fits with a covariance matrix for every group of columns.

With Φ_g = BR the coefficients of B have the covariance RΓ_gRᵀ = V diag(w) Vᵀ. Those of the columns
BV are independent with relevances w, and all measured values for relevances apply, except for the
KKT conditions and the test of significance, which are computed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.stats

from lucidae.sparsity.evaluation import Evaluation, Weighted

UNIT = float(np.finfo(float).eps)

FINE_UNIT = float(np.finfo(np.longdouble).eps)
"""Machine epsilon of the precision in which covariances change their basis."""

DEPENDENT = 1e-10
"""Singular value of a group's unit columns, relative to the largest, that counts as zero.

Solver and verifier round differently: numbers must be zero only below half of it, and conditions
for more variance apply only above twice of it."""

INDEPENDENT = 1e-4
"""Smallest eigenvalue of the Gram matrix of unit columns above which it is accurate enough."""

WORN = 100.0
"""Factor by which cancelling may enlarge the rounding error of a covariance before it is counted.
"""

MIXTURES = {
    2: (0.1464, 0.3536, 0.3536, 0.1464),
    3: (0.0249, 0.1048, 0.2251, 0.2904, 0.2251, 0.1048, 0.0249),
    4: (0.0024, 0.0150, 0.0525, 0.1240, 0.1951, 0.2221, 0.1951, 0.1240, 0.0525, 0.0150, 0.0024),
}
"""For groups of 2, 3 and 4 real columns, weights of χ² variables with 0, 1, … degrees of freedom.
"""


class PrincipalRows(NamedTuple):
    """Rows with the columns of each group along the principal axes of its covariance."""

    rows: Weighted  # the rows, with rotated columns
    coef: Any  # (κ, n): the coefficients along the axes, for κ columns and n responses
    relevance: Any  # (κ,): the prior variances along the axes
    # largest relative deviation of the covariances from symmetric, positive semi-definite matrices
    # whose diagonals are the relevances
    distance: float
    # largest error of the covariance of a response because nearly dependent columns have large
    # covariances, which cancel, and which are stored in float64
    lost: float
    # largest error of the columns Φ_gA for the same reason, where the root A of a covariance AAᵀ
    # was given
    blurred: float
    clipped: float  # size of the largest negative variance along an axis
    # smallest singular value of the unit columns of a group with a covariance other than zero,
    # relative to the largest
    weakest: float


def in_principal_axes(
    rows: Weighted, coef: Any, covariances: Any, roots: Any, relevance: Any, labels: Any
) -> PrincipalRows | None:
    """Return the rows in the principal axes of the covariances; None if numbers are not finite."""
    groups = _by_size(labels)
    count, largest = int(labels.max()) + 1, groups[-1][1].shape[1]
    shape = (count, largest, largest)
    if covariances.shape != shape or not np.isfinite(covariances).all():
        return None
    if not np.isfinite(relevance).all():
        return None
    if roots is None or roots.shape != shape or not np.isfinite(roots).all():
        roots = np.zeros(shape)
    kind = complex if np.iscomplexobj(covariances) or np.iscomplexobj(roots) else float
    Phi = rows.dictionary.astype(np.result_type(rows.dictionary, kind))
    turned = coef.astype(np.result_type(Phi, coef))
    points = Phi[:0] if rows.points is None else rows.points.astype(Phi.dtype)
    points, given_points = np.zeros_like(points), points
    w, weakest = np.zeros(labels.size), 1.0
    errors: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)  # distance, lost, blurred, clipped
    for chosen, members in groups:  # all groups of one size at once
        size = members.shape[1]
        columns = np.moveaxis(Phi[:, members], 1, 0)
        part = _orthogonal(columns)
        padded, block = covariances[chosen], covariances[chosen, :size, :size]
        if np.count_nonzero(padded) > np.count_nonzero(block):
            errors = (np.inf, *errors[1:])
        # The columns of a group share their power of two.
        exponents = (rows.shifts[members[:, :1]] - rows.shift).astype(int)
        lengths = np.ldexp(part.lengths, exponents)
        scales = lengths[:, :, None] * lengths[:, None, :]
        amounts = part.lengths[:, :, None] * turned[members]
        distances = (
            errors[0],
            _deviation(block * scales, relevance[members] * lengths**2),
            _share_outside(part.outside, 0.5 * (block + _adjoint(block)) * scales),
            _share_outside(part.outside, amounts),
        )
        errors = (float(np.max(distances)), *errors[1:])  # NaN stays NaN
        Phi[:, members] = np.moveaxis(part.reached, 0, 1)
        live = np.flatnonzero(block.any(axis=(1, 2)) | amounts.any(axis=(1, 2)))
        if not live.size:
            continue
        part, columns = part.take(live), columns[live]
        half = _half_columns(
            part, columns, block[live], roots[chosen[live], :size, :size], exponents[live]
        )
        errors = tuple(np.maximum(errors, half.errors).tolist())
        weakest = min(weakest, float(part.weakest.min()))
        axes, variances, mixing = _principal(part.reached, half.columns)
        w[members[live]] = variances
        Phi[:, members[live]] = np.moveaxis(axes, 0, 1)
        shares = np.moveaxis(given_points[:, members[live]] / part.lengths, 1, 0)
        points[:, members[live]] = np.moveaxis(shares @ (half.root @ mixing), 0, 1)
        turned[members[live]] = (
            _product(_adjoint(axes), columns / part.lengths[:, None, :]) @ amounts[live]
        )
    kept = None if rows.points is None else points
    rows = rows._replace(dictionary=Phi, points=kept)
    distance, lost, blurred, clipped = errors
    return PrincipalRows(rows, turned, w, distance, lost, blurred, clipped, weakest)


class _Half(NamedTuple):
    """Square roots Φ_gA of what groups contribute to Σ, and their errors."""

    columns: Any
    root: Any
    errors: tuple[float, ...]


def _half_columns(
    part: _Orthogonal, columns: Any, covariances: Any, roots: Any, exponents: Any
) -> _Half:
    """Return the square roots of the covariances of groups, for groups of one size."""
    size = columns.shape[2]
    lengths = np.ldexp(part.lengths, exponents)
    given = 0.5 * (covariances + _adjoint(covariances))
    given = given * lengths[:, :, None] * lengths[:, None, :]
    inside = _in_basis(part, columns, covariances, exponents)
    scale, before = (np.abs(each).max(axis=(1, 2)) for each in (inside, given))
    rounding = np.where(before > WORN * scale, 4.0 * UNIT * float(size) * before, 0.0)
    values, vectors = np.linalg.eigh(0.5 * (inside + _adjoint(inside)))
    negative = np.maximum(-values[:, 0], 0.0)
    beyond = np.maximum(negative - rounding, 0.0)  # more than the stored numbers explain
    distance = beyond / np.where(scale > 0, scale, 1.0)
    half = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    found, root = part.basis @ half, part.inverse @ half
    same, blurred = _is_root(roots, covariances), np.zeros_like(rounding)
    if same.any():
        scaled = np.ldexp(1.0, exponents[same])[:, :, None] * roots[same]
        found[same] = _product(columns[same], scaled)
        root[same] = part.lengths[same][:, :, None] * scaled
        sizes = np.linalg.norm(found[same], axis=(1, 2))
        before = np.linalg.norm(root[same], axis=(1, 2))
        # A product of unit columns and A with sums of m terms has an error of at most mε/2 times
        # the sums of absolute values, hence of norm m√m ε‖A‖/2.
        worn = 0.5 * UNIT * float(size) ** 1.5 * before
        blurred[same] = np.where(before > WORN * sizes, worn, 0.0)
        rounding[same], negative[same], distance[same] = 0.0, 0.0, 0.0
    errors = (distance, rounding, blurred, negative)
    return _Half(found, root, tuple(float(each.max()) for each in errors))


def _is_root(roots: Any, covariances: Any) -> Any:
    """Tell for each matrix A and covariance Γ whether Γ = AAᵀ up to a few ε√(Γᵢᵢ Γⱼⱼ)."""
    deviations = np.sqrt(np.abs(np.diagonal(covariances, axis1=1, axis2=2)))
    allowed = 8.0 * (roots.shape[1] + 1) * UNIT * deviations[:, :, None] * deviations[:, None, :]
    return (np.abs(roots @ _adjoint(roots) - covariances) <= allowed).all(axis=(1, 2))


def _principal(basis: Any, half: Any) -> tuple[Any, Any, Any]:
    """Return the principal axes of the covariances of groups, and the variances along them.

    With half H = P diag(s) Zᵀ the axes are P with the variances s², completed to a basis of the
    span of `basis`. The third result is Z diag(1/s), so that P = HZ diag(1/s).
    """
    _, rows, size = half.shape
    padding = ((0, 0), (0, max(size - rows, 0)), (0, 0))
    left, values, right = np.linalg.svd(np.pad(half, padding), full_matrices=False)
    active = values**2 > UNIT * values[:, :1] ** 2
    left = np.where(active[:, None, :], left, 0.0)
    rank = basis.any(axis=1).sum(axis=1)[:, None]
    basis = np.pad(basis, padding)
    rest = np.linalg.svd(basis - left @ (_adjoint(left) @ basis), full_matrices=False)[0]
    count, place = active.sum(axis=1)[:, None], np.arange(size)
    index = np.where(place < count, place, size + place - count)
    axes = np.take_along_axis(np.concatenate([left, rest], axis=2), index[:, None, :], axis=2)
    axes = np.where((place < np.maximum(count, rank))[:, None, :], axes, 0.0)
    inverse = np.where(active, 1.0 / np.where(active, values, 1.0), 0.0)
    return (
        axes[:, :rows],
        np.where(active, values, 0.0) ** 2,
        _adjoint(right) * inverse[:, None, :],
    )


def _product(first: Any, second: Any) -> Any:
    """Return the product of stacks of matrices, computed in extended precision if there is one."""
    kind = np.result_type(first, second)
    wide = np.result_type(kind, np.longdouble)
    return (first.astype(wide) @ second.astype(wide)).astype(kind)


class _Orthogonal(NamedTuple):
    """The decompositions Φ_g = BRL of the columns Φ_g of several groups, with B orthonormal."""

    basis: Any
    triangle: Any
    inverse: Any
    outside: Any
    lengths: Any
    rank: Any
    weakest: Any

    @property
    def reached(self) -> Any:
        """B without the directions that the columns reach only by very large coefficients."""
        return np.where(
            (np.arange(self.basis.shape[2]) < self.rank[:, None])[:, None], self.basis, 0.0
        )

    def take(self, index: Any) -> _Orthogonal:
        """Return the decompositions of the groups with the given indices."""
        return _Orthogonal(*(each[index] for each in self))


def _adjoint(matrices: Any) -> Any:
    """Return the conjugate transposes of matrices."""
    return np.swapaxes(matrices.conj(), -1, -2)


def _orthogonal(columns: Any) -> _Orthogonal:
    """Return an orthonormal basis of the columns of each group, and the columns in this basis."""
    size = columns.shape[2]
    lengths = np.linalg.norm(columns, axis=1)
    lengths = np.where(lengths > 0, lengths, 1.0)
    basis, triangle = _qr(columns / lengths[:, None, :])
    left, values, right = np.linalg.svd(triangle)
    kept = values > 0.5 * DEPENDENT * values[:, :1]
    left = np.where(kept[:, None, :], left, 0.0)
    right = np.where(kept[:, :, None], right, 0.0)
    inverted = np.where(kept, 1.0 / np.where(kept, values, 1.0), 0.0)
    outside = np.eye(size) - _adjoint(right) @ right
    outside[kept.all(axis=1)] = 0.0
    smallest = np.where(kept, values, np.inf).min(axis=1) / np.maximum(values[:, 0], UNIT)
    return _Orthogonal(
        basis @ left,
        _adjoint(left) @ triangle,
        _adjoint(right) * inverted[:, None, :],
        outside,
        lengths,
        (values > 2.0 * DEPENDENT * values[:, :1]).sum(axis=1),
        np.where(kept.any(axis=1), smallest, 1.0),
    )


def _qr(units: Any) -> tuple[Any, Any]:
    """Return QR decompositions of unit columns, by Cholesky where they are far from dependent."""
    _, rows, size = units.shape
    gram = _adjoint(units) @ units
    poor = ~(np.linalg.eigvalsh(gram)[:, 0] > INDEPENDENT)
    triangle = _adjoint(np.linalg.cholesky(np.where(poor[:, None, None], np.eye(size), gram)))
    basis = units @ np.linalg.inv(triangle)
    if poor.any():
        padded = np.concatenate([units[poor], np.zeros((int(poor.sum()), size, size))], axis=1)
        turned, triangle[poor] = np.linalg.qr(padded)
        basis[poor] = turned[:, :rows]
    return basis, triangle


def _in_basis(part: _Orthogonal, columns: Any, covariances: Any, exponents: Any) -> Any:
    """Return the covariances of groups in the orthonormal bases of their columns.

    Entries cancel if columns are nearly dependent: products are in extended precision where there
    is one.
    """
    kind = np.result_type(part.triangle, covariances)
    wide = np.result_type(kind, np.longdouble)
    factor = np.ldexp(np.ones(1), exponents)[:, :, None].astype(np.longdouble)
    triangle = factor * (_adjoint(part.basis).astype(wide) @ columns.astype(wide))
    given = covariances.astype(wide)
    moved = triangle @ (given + _adjoint(given)) @ _adjoint(triangle)
    return 0.5 * moved.astype(kind)


def _share_outside(outside: Any, values: Any) -> float:
    """Return the largest norm of a matrix after the projection `outside`, relative to its norm."""
    sizes = np.linalg.norm(values, axis=(1, 2))
    left = np.linalg.norm(outside @ values, axis=(1, 2))
    return float((left / np.where(sizes > 0, sizes, 1.0)).max(initial=0.0))


def _deviation(blocks: Any, diagonals: Any) -> float:
    """Return the largest relative deviation of matrices from covariances with given diagonals."""
    scale = np.abs(blocks).max(axis=(1, 2))
    skewed = np.abs(blocks - _adjoint(blocks)).max(axis=(1, 2))
    apart = np.abs(np.diagonal(blocks, axis1=1, axis2=2) - diagonals).max(axis=1)
    gap = np.maximum(skewed, apart)
    lowest = np.linalg.eigvalsh(0.5 * (blocks + _adjoint(blocks)))[:, 0]
    size = np.where(scale > 0, scale, 1.0)
    found = np.where(scale > 0, np.maximum(gap, -lowest) / size, np.where(gap == 0, 0.0, np.inf))
    return float(found.max(initial=0.0))


def _by_size(labels: Any) -> list[tuple[Any, Any]]:
    """Return numbers (k,) and columns (k, m) of the groups of each size m, ascending."""
    order, sizes = np.argsort(labels, kind="stable"), np.bincount(labels)
    first = np.cumsum(sizes) - sizes
    return [
        (numbers, order[first[numbers][:, None] + np.arange(size)])
        for size in np.unique(sizes)
        for numbers in (np.flatnonzero(sizes == size),)
    ]


def _blocks(at: Evaluation, labels: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the columns of groups and two matrices for each group, one size of groups at a time."""
    n = at.mean.shape[1]
    for _, members in _by_size(labels):
        columns = np.moveaxis(at.whitened[:, members], 1, 0)
        loading = at.loading[members]
        yield (
            members,
            np.swapaxes(columns.conj(), 1, 2) @ columns,
            loading @ np.swapaxes(loading.conj(), 1, 2) / n,
        )


def excess_of_groups(at: Evaluation, labels: Any) -> tuple[Any, Any]:
    """Return the largest eigenvalue of S^{-½}QS^{-½} minus one for the group of each column.

    If it is positive, the energy falls if the covariance grows in some direction. The second array
    bounds rounding errors.
    """
    excess, error = np.zeros(labels.size), np.zeros(labels.size)
    for _, members in _by_size(labels):
        columns = np.moveaxis(at.whitened[:, members], 1, 0)
        values, axes, lost = _singular_values(columns)
        # Columns of zeros stand for directions that the columns of the group do not reach.
        rank = columns.any(axis=1).sum(axis=1)[:, None]
        kept = (np.arange(values.shape[1]) < rank) & (values > 0)
        roots = np.where(kept, 1.0 / np.where(kept, values, 1.0), 0.0)
        half = roots[:, :, None] * (axes @ at.loading[members])
        ratios = np.linalg.eigvalsh(half @ _adjoint(half))[:, -1] / at.mean.shape[1]
        excess[members] = (ratios - 1.0)[:, None]
        # In every direction, vᵀΣ⁻¹v has a relative error of 2ρ and vᵀΣ⁻¹X one of 2ρ√fit, with ρ =
        # `rounding`; the singular values of C that are divided by lose digits too.
        shift = 2.0 * at.rounding * np.sqrt(at.fit)
        large = np.maximum(ratios, 1.0)
        bound = members.shape[1] * (2.0 * at.rounding + 2.0 * np.sqrt(large) * shift + shift**2)
        bound = bound + 8.0 * members.shape[1] * large * lost
        error[members] = np.where(kept.any(axis=1), bound, 0.0)[:, None]
        excess[members[~kept.any(axis=1)]] = 0.0
    return excess, error


def _singular_values(columns: Any) -> tuple[Any, Any, Any]:
    """Return the singular values and right singular vectors of matrices of shape (k, d, m)."""
    # The Gram matrix is fast, but its relative error is that of the squared condition number. So
    # matrices C whose columns are nearly dependent are decomposed themselves: C = U diag(s) Vᵀ.
    _, rows, size = columns.shape
    columns = np.pad(columns, ((0, 0), (0, max(size - rows, 0)), (0, 0)))
    powers, axes = np.linalg.eigh(_adjoint(columns) @ columns)
    values = np.sqrt(np.maximum(powers[:, ::-1], 0.0))
    axes = _adjoint(axes[:, :, ::-1])
    largest = np.where(values[:, 0] > 0, values[:, 0], 1.0)
    smallest = values[:, -1] / largest
    poor = ~(smallest**2 > INDEPENDENT)
    lost = UNIT * columns.shape[1] / np.where(poor, 1.0, smallest) ** 2
    if poor.any():
        _, values[poor], right = np.linalg.svd(columns[poor], full_matrices=False)
        axes[poor] = right
        kept = np.where(values > UNIT * values[:, :1], values, values[:, :1])[poor]
        largest = np.where(values[poor, 0] > 0, values[poor, 0], 1.0)
        smallest = kept.min(axis=1) / largest
        lost[poor] = UNIT / np.where(smallest > 0, smallest, 1.0)
    return values, axes, lost


def group_violation(
    at: Evaluation, labels: Any, slope_error: Any, excess: tuple[Any, Any]
) -> tuple[float, float]:
    """Return the distance of the covariances to optimality, and a bound on its rounding error.

    Optimal means that W^½(Q − S)W^½ is zero and that no direction has vᵀQv > vᵀSv. The distance is
    the largest eigenvalue of |W^½(Q − S)W^½| or `excess_of_groups`.
    """
    worst, error = 0.0, 0.0
    for members, metric, explained in _blocks(at, labels):
        w = at.relevance[members]
        active = w.any(axis=1)
        roots = np.sqrt(w[active])
        slack = roots[:, :, None] * (explained - metric)[active] * roots[:, None, :]
        worst = max(worst, float(np.abs(np.linalg.eigvalsh(slack)).max(initial=0.0)))
        error = max(error, float((w * slope_error[members]).sum(axis=1).max(initial=0.0)))
    above, margin = excess
    highest = max(worst + error, float((above + margin).max(initial=0.0)))
    value = max(worst, float(above.max(initial=0.0)))
    return value, highest - value


def covariance_support_differences(
    at: Evaluation, labels: Any, significance: float, support: Any, parts: int
) -> tuple[int, int]:
    """Return how many columns `support` contains or lacks wrongly, and how many are undecided.

    Evidence is judged by its tail probability, that of `MIXTURES` or, for complex data or m > 4,
    that of χ² with m(m + 1)/2 (complex: m²) degrees of freedom.
    """
    count, n = int(labels.max()) + 1, at.mean.shape[1]
    claimed = np.zeros(labels.size, dtype=bool)
    claimed[support] = True
    wrong, undecided = 0, 0
    for members, metric, explained in _blocks(at, labels):
        size = members.shape[1]
        roots = np.sqrt(at.relevance[members])
        both = roots[:, :, None] * roots[:, None, :]
        values, vectors = np.linalg.eigh(np.eye(size) - metric * both)
        values = np.maximum(values, UNIT)
        inner = np.swapaxes(vectors.conj(), 1, 2) @ (explained * both) @ vectors
        powers = np.diagonal(inner, axis1=1, axis2=2).real
        evidence = parts * n * (np.log(values) + powers / values).sum(axis=1)
        error = 8.0 * at.rounding / values[:, 0] * (np.abs(evidence) + parts * n * size)
        error = error + 1e-9 * np.abs(evidence)
        low, high = (_tail(evidence + sign * error, size, parts) for sign in (1.0, -1.0))
        level = significance / count
        different = claimed[members] != (_tail(evidence, size, parts) < level)[:, None]
        close = ~((high < level) | (low >= level))[:, None]
        wrong += int((different & ~close).sum())
        undecided += int((different & close).sum())
    return wrong, undecided


def _tail(evidence: Any, size: int, parts: int) -> Any:
    """Return the probability that a group of `size` columns has more evidence by chance alone."""
    if parts == 1 and size in MIXTURES:
        weights = MIXTURES[size]
        positive = np.maximum(evidence, 0.0)
        tails = sum(w * scipy.stats.chi2.sf(positive, k) for k, w in enumerate(weights) if k)
        return np.where(evidence > 0.0, tails, 1.0)
    dof = size * (size + 1) // 2 if parts == 1 else size**2
    return np.where(evidence > 0.0, scipy.stats.chi2.sf(evidence, dof), 1.0)
