"""Measured values of a linear autoencoder, from its rows and its weights alone.

Nothing is taken from solvers, moments or the reading of data: a test reads the imports. What is
known of the second moment Σ of the rows is a `lucidae.certificates.rows.Data`. From a factor of Σ,
or from its matrix for up to 1024 features, all eigenpairs follow (`_of_all_axes`). From products
they are enclosed by residuals of the decoder's span and a bound on the eigenvalues outside of it
(`_of_products`). Both give the same record (`Leading`). Errors are those of
`lucidae.certificates.bounds`.

`WeightFigures` divides all data by a power of two near their standard deviation first, so that
nothing over- or underflows, and judges the equivalent problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse
from scipy.sparse.csgraph import connected_components

from lucidae.arrays import as_double, like, to_numpy
from lucidae.certificates.bounds import (
    TINY,
    Ball,
    enclose_eigenvalues,
    enclose_singular_values,
    epsilon,
    gamma,
    turn,
)
from lucidae.certificates.rows import (
    Data,
    GivenRows,
    norm,
)
from lucidae.certificates.sketch import STARTS, STEPS, Complement, drawn_after, orthonormal

Vector = np.ndarray[Any, Any]
Product = Callable[[Vector], Vector]

# Largest number of features for which all eigenvalues are computed; otherwise they are bounded.
DENSE_FEATURES = 1024

# Largest number of sets of Ritz vectors, each of which improves the one before.
ROUNDS = 4

# A decoder column of smaller entries counts as zero: its direction has lost digits.
SHORTEST = 1e-290

# A component is identifiable if its eigengap exceeds this multiple of the eigenvalues' error: its
# principal axis is then known up to an angle of 1/100 (Davis & Kahan 1970).
IDENTIFIABLE = 100.0

# Ratio of an eigenvalue to the largest one below which the rows themselves have more digits of its
# axis than their second moment has.
SMALL_VARIANCE = 1e-4

# Mean squared sines, the second times the number of latents, between which neither a right nor a
# wrong subspace is known to be one.
FAR, NEAR = 1e-3, 1e-4

# Share of a component, or of the total variance, from which on a row is named. In the tables of
# scikit-learn the largest share is 0.35; a row that was multiplied by 500 has 0.7 of 100 000 rows.
LEVERAGE = 0.4

# Share of the total variance from which on a row is named as well if it is also this many times the
# average: one wild cell of thirty standardised features has the first, and no row of the tables of
# scikit-learn has both.
OUTLYING, FAR_ROW = 0.03, 50.0

# Largest number of entries of matrices that are in memory at a time.
POSTERIOR_ENTRIES = 2**21

# Largest number of features for which all pairs observed together are determined.
PAIRED_FEATURES = 8192

# Share of the rows with either of two features below which they hardly count as observed together:
# their covariance then has three times the standard error of the others, or more.
FEW_TOGETHER = 0.1

# Ratio of noise to mean variance below which the noise tends to zero: there is no maximum.
NO_NOISE = 1e-11

# A latent without a component must have at most this effect on the reconstruction.
ZERO_GAIN = 1e-7


class Leverage(NamedTuple):
    """Rows that carry more than their share of a component or of the total variance."""

    largest: float  # largest share of one row
    rows: Vector  # numbers, from 0, of the rows whose share exceeds the limit, largest first
    shares: Vector  # these shares
    components: Vector  # the component of each, from 0; −1 for the total variance


def _products_in(apply: Product, vectors: Vector) -> Product:
    """Return the products with Σ, of which those in the span of some vectors are computed at once.

    A certificate needs those of decoder, encoder and components, which have the same few
    directions: one pass over the rows serves for all of them.
    """
    basis = orthonormal(_unit_rows(vectors[np.all(np.isfinite(vectors), axis=1)]), ())
    images = apply(basis)

    def product(rows: Vector) -> Vector:
        codes = rows @ basis.T
        found = codes @ images
        lost = _lengths(rows - codes @ basis) > gamma(rows.shape[1]) / 2 * _lengths(rows)
        if np.any(lost):
            found[lost] = apply(rows[lost])
        return np.asarray(found)

    return product


# Eigenvalues and distances to the principal axes -------------------------------------------------


@dataclass(frozen=True)
class Leading:
    """Leading eigenvalues of Σ, and the distances of the decoder's columns to the principal axes.

    The decoder has k columns. Axes and components are counted from 0.
    """

    # (q,): leading eigenvalues, descending: all m of them if `complete`, otherwise k + 1
    values: Ball
    outside: float  # upper bound on the eigenvalues outside of the principal subspace
    subspace: Ball  # mean squared sine of the angles between decoder and principal subspace
    misalignments: Ball  # (k,): smallest squared sine of the angle of each axis to a column
    complete: bool  # whether all eigenpairs were computed; otherwise they are enclosed
    axes: Vector | None = None  # (m, k): the principal axes as columns, if `complete`
    # whether the rows may determine a component of small variance that Σ does not, but are unknown
    hidden: bool = False

    def steps(self, k: int) -> tuple[Vector, Vector]:
        """Return the differences of the first k eigenvalues to the next, and what resolves them."""
        values = self.values.value[:k]
        apart = values - np.append(values[1:], self.outside)
        return apart, np.maximum(IDENTIFIABLE * self.values.error[:k], TINY)

    def unidentifiable(self, k: int) -> Vector:
        """Return the components whose eigenvalue is too close to the one before or after it."""
        apart, needed = self.steps(k)
        resolved = apart > needed
        return np.flatnonzero(~(resolved & np.append(True, resolved[:-1])))


def find_leading(data: Data, atoms: Vector) -> tuple[Data, Leading]:
    """Return eigenvalues and distances for a decoder, and the data with all digits that it took.

    The rows of `atoms` are the columns of the decoder.
    """
    k = len(atoms)
    if data.factor is not None or (data.matrix is not None and data.n_features <= DENSE_FEATURES):
        found = _of_all_axes(data, atoms)
    else:
        found = _of_products(data, atoms)
    # 1) Components of small variance: the rows have more digits than their second moment.
    lost = found.unidentifiable(k)
    if data.rows is None and data.weight is not None:
        lost = lost[lost + 2 <= data.weight]  # centred rows have a rank below their number
    small = bool(np.any(found.values.value[lost] < SMALL_VARIANCE * found.values.value[0]))
    # 2) Bounds that decide neither that the subspace is right nor that it is wrong.
    open_ended = not found.complete and found.subspace.low < FAR and found.subspace.high > NEAR / k
    if data.factor is not None or not (small or open_ended):
        return data, found
    factored = data.refactored()
    if factored is None:
        return data, replace(found, hidden=data.rows is None and small and found.complete)
    other = _of_all_axes(factored, atoms)
    better = other.subspace.error <= found.subspace.error
    return (factored, other) if better else (data, found)


def _of_all_axes(data: Data, atoms: Vector) -> Leading:
    """Return the distances of a decoder to all eigenpairs of Σ, or singular pairs of its root."""
    k, m = atoms.shape
    if data.factor is None:
        found = enclose_eigenvalues(np.asarray(data.matrix), data.error, k)
    else:  # zeros are appended to few rows, of which axes are needed as well
        below = np.zeros((max(0, min(m, k + 1) - len(data.factor[0])), m))
        found = enclose_singular_values(np.vstack([data.factor[0], below]), data.factor[1])
    values = np.append(np.maximum(found.values, 0.0), np.zeros(m - len(found.values)))
    axes, known = found.axes[:, :k], Ball(values, np.full(m, found.error))
    subspace, misalignments = _distances(atoms, axes, np.append(values, 0.0), found.error)
    known = known if data.factor is None else known * known
    outside = float(np.append(known.value, 0.0)[k])
    return Leading(known, outside, subspace, misalignments, True, axes)


def _of_products(data: Data, atoms: Vector) -> Leading:
    """Return the distances of a decoder to Ritz pairs, and bounds on what is not known of them.

    Let the rows of U be orthonormal, UΣUᵀ = diag(θ), and R = UΣ − θU the residual. Then U are
    eigenvectors of Σ − RᵀU − UᵀR, whose other eigenvalues are those of Σ outside of the span of U.
    So Σ is known up to ‖R‖, with the axes U, if the eigenvalues outside of their span are below the
    last θ. The next eigenvalue of Σ plus ‖R‖ bounds them, if it is known and below the last θ
    (Weyl), and otherwise a Krylov space. U is first the span of the decoder. The vectors of the
    Krylov space, and the residual, improve it.
    """
    (k, m), upper_bounds = atoms.shape, data.eigenvalue_bounds()
    basis = _column_space(np.where(np.isfinite(atoms), atoms, 0.0))[0].T
    for _ in range(ROUNDS):
        images = data.apply(basis)
        inner = images @ basis.T
        values, turned = np.linalg.eigh((inner + inner.T) / 2)
        values, turned = values[::-1][:k], turned[:, ::-1][:, :k].T
        rows, images = turned @ basis, turned @ images
        residual = images - values[:, None] * rows
        size = norm(residual) + data.error
        # Starts that depend on the data: nobody can choose data that are orthogonal to them.
        count = min(max(STARTS, k - len(rows)), m - len(rows))
        starts = drawn_after((count, m), data.variances, data.mean.value, rows)
        rest = Complement(data.apply, rows.T, data.error, starts)
        # No eigenvalue outside of the span exceeds the trace outside of the span.
        rest.bound = max(data.trace - float(np.sum(values)), 0.0) + 4 * data.error
        known = len(rows) == k
        if known and upper_bounds is not None and k < len(upper_bounds):
            following = float(upper_bounds[k]) + size
            if values[-1] > following:
                rest.bound = min(rest.bound, following)
        level = float(values[-1]) - size / FAR if known else -math.inf
        rest.extend_until(level)
        if known and (rest.bound <= level or rest.found <= level):
            break
        rest.extend(STEPS[-1])
        basis = orthonormal(np.concatenate([rows, residual, rest.above(level)]), ())
    gap = float(values[-1]) - rest.bound
    subspace, misalignments = _distances(atoms, rows.T, np.append(values, rest.bound), size)
    # An eigenvalue is at least its Ritz value (Cauchy), and at most the i-th one of those of the
    # two parts plus ‖R‖ (Weyl), or plus ‖R‖²/gap (Li & Li 2005).
    drift = (min(size, size**2 / gap) if gap > 0 else size) + data.error
    most = np.sort(np.append(values, np.full(k, min(rest.bound, data.trace))))[::-1][:k] + drift
    upper = np.append(most, rest.bound)
    lower = np.minimum(np.maximum(np.append(values, rest.found) - data.error, 0.0), upper)
    return Leading(Ball.between(lower, upper), rest.bound, subspace, misalignments, complete=False)


def _distances(atoms: Vector, axes: Vector, values: Vector, error: float) -> tuple[Ball, Ball]:
    """Return the mean squared sine of a decoder to k axes, and that of each axis to a column.

    The axes are those of a matrix with these `values`, at least k + 1 of them, which is known up to
    `error`. It turns an axis by at most the error divided by the distance of its value to the
    others, and the span of all by the error divided by the last distance (Davis & Kahan 1970 for
    eigenvalues, Wedin 1972 for singular values).
    """
    m, k = axes.shape
    gaps = values[:k] - values[1 : k + 1]
    neighbours = np.minimum(gaps, np.append(math.inf, gaps[:-1]))
    span, basis_error = _column_space(atoms)
    # 1 − tr(UUᵀQQᵀ)/k as the mean of squared sines, which has no cancellation near 0.
    distance = norm(axes - span @ (span.T @ axes)) / math.sqrt(k)
    sine = Ball(distance, turn(error, gaps[-1]) + basis_error)
    sines = Ball(np.sqrt(_misalignments(atoms, axes)), turn(error, neighbours) + gamma(m))
    return sine * sine, sines * sines


def _column_space(atoms: Vector) -> tuple[Vector, float]:
    """Return an orthonormal basis (m × rank) of the decoder's span, and a bound on its angle error.

    The columns are scaled to unit length first. Directions whose singular value is then below m·ε
    are left out; the others are turned by at most m·ε divided by the smallest singular value.
    """
    m = atoms.shape[1]
    if not np.all(np.isfinite(atoms)):
        return np.full((m, 1), np.nan), math.nan
    units = _unit_rows(atoms)
    if not len(units):
        return np.zeros((m, 0)), gamma(m)
    # The eigenvectors of the Gram matrix would lose small directions.
    basis, factor = np.linalg.qr(units.T)
    left, sizes, _ = np.linalg.svd(factor)
    present = sizes > gamma(m)
    return np.asarray((basis @ left)[:, present]), gamma(m) / float(np.min(sizes[present]))


def _unit_rows(rows: Vector) -> Vector:
    """Return the rows scaled to unit length, without those that are zero."""
    lengths = _lengths(rows)
    return np.asarray(rows[~(lengths <= SHORTEST)] / lengths[~(lengths <= SHORTEST), None])


def _misalignments(atoms: Vector, axes: Vector) -> Vector:
    """Return, for each principal axis, its smallest squared sine to a decoder column."""
    if not np.all(np.isfinite(atoms)):
        return np.full(axes.shape[1], np.nan)
    units = _unit_rows(atoms)
    if not len(units):
        return np.ones(axes.shape[1])
    # One minus a squared cosine would have a rounding error of ε.
    nearest = units[np.argmax((units @ axes) ** 2, axis=0)].T
    return np.asarray(np.sum((nearest - np.sum(nearest * axes, axis=0) * axes) ** 2, axis=0))


def _lengths(rows: Vector) -> Vector:
    """Return the Euclidean norm of each row; entries are scaled, so that no square overflows."""
    peaks = np.max(np.abs(rows), axis=1, initial=0.0)
    units = rows / np.where((peaks > 0.0) & np.isfinite(peaks), peaks, 1.0)[:, None]
    return np.asarray(peaks * np.sqrt(np.einsum("ij,ij->i", units, units)))


# The figures -------------------------------------------------------------------------------------


class Terms:
    """Weights, their products with Σ, and the terms of the reconstruction loss, as balls."""

    def __init__(self, weights: Any, data: Data) -> None:
        self.weights, self.data = weights, data
        self.encoder, self.atoms = Ball(weights.encoder), Ball(weights.atoms)
        k, both = len(weights.encoder), np.concatenate([weights.encoder, weights.atoms])
        images = Ball(
            data.apply(both), gamma(data.n_features) * data.trace * _lengths(both)[:, None]
        )
        self.encoded, self.decoded = images[:k], images[k:]
        self.code_moment = self.encoded @ self.encoder.T
        self.gram = self.atoms @ self.atoms.T

    def gathered(self, encoder: Ball, atoms: Ball) -> tuple[Ball, ...]:
        """Return the gradients of both layers for untied weights, their mean for tied ones."""
        return (encoder, atoms) if len(self.weights) == 2 else ((encoder + atoms) * 0.5,)


class Losses(NamedTuple):
    """The loss of weights, its global minimum, and the number that divides their difference."""

    value: Ball
    minimum: Ball
    size: float

    @property
    def gap(self) -> Ball:
        """Loss minus minimum, divided by `size`."""
        found = (self.value - self.minimum) / self.size
        return found if math.isfinite(self.value.value) else Ball(math.inf)


class WeightFigures:
    """Measured values of given weights, from which the claims of a certificate follow.

    `objective` and `rule` are the reference formulas (`lucidae.linear.references`) of the loss and
    of the update direction, `model` is the fitted model, as arrays of NumPy, and `shown` are the
    attributes that users read. If variances are running averages (`running`), no data reproduce
    them. A value is None if it is not known, or if theory says nothing about it. A figure of
    weights that overflow is infinite.
    """

    def __init__(
        self,
        objective: Any,
        rule: Any,
        weights: Any,
        data: Data,
        model: Any,
        running: bool,
        shown: Mapping[str, Any],
    ) -> None:
        unit = 1.0
        if data.n_features > DENSE_FEATURES:
            data = replace(data, matrix=None)
        if 0.0 < data.trace < math.inf and objective.independent and rule.independent:
            unit = float(2.0 ** round(math.log2(data.trace / data.n_features) / 2))
        scaled = data.in_units(unit)
        weights = weights.in_units(1.0 / unit)
        if scaled.matrix is None and scaled.factor is None:
            used = [weights.atoms, weights.encoder]
            used += [] if model is None else [model.components, model.encoder, model.basis.T]
            scaled = replace(scaled, apply=_products_in(scaled.apply, np.concatenate(used)))
        scaled, self._leading = find_leading(scaled, weights.atoms)
        self._objective = objective.in_units(unit)
        self._rule = self._objective if rule is objective else rule  # others have no unit
        self._terms, self._unit = Terms(weights, scaled), unit
        self._model, self._running, self._shown = model, running, shown
        self.data = scaled.in_units(1.0 / unit)  # in the units of the user
        self.leverage = find_leverage(self.data, weights.atoms)
        known = self._leading
        self.leading = replace(
            known, values=known.values * unit**2, outside=known.outside * unit**2
        )
        # latents, from 0, that are zero at the optimum, and those of which it is not known
        self.zero_latents, self.uncertain_latents = objective.zero_latents(self.leading.values)

    @cached_property
    def losses(self) -> Losses | None:
        """The loss of the weights and its minimum; None if one of them is not known."""
        found: Losses | None = self._objective.losses(self._terms, self._leading)
        return found

    @property
    def loss_terms(self) -> dict[str, float | None]:
        """Loss, minimum and the number that divides their difference in the user's units."""
        losses, in_unit, m = self.losses, self._objective.loss_in_unit, self.data.n_features
        size = in_unit(self._objective.size(self._terms.data), self._unit, 0)
        if losses is None:
            return {"loss": None, "minimum": None, "loss_size": size}
        value, minimum = float(losses.value.value), float(losses.minimum.value)
        value, minimum = (in_unit(loss, self._unit, m) for loss in (value, minimum))
        return {"loss": value, "minimum": minimum, "loss_size": size}

    @property
    def rise(self) -> Ball:
        """Largest increase of the variance from one latent to the next, over the largest."""
        terms, data, atoms = self._terms, self._terms.data, self._terms.atoms.value
        lengths = np.maximum(_lengths(atoms), TINY)[:, None]
        variances = np.sum((terms.decoded.value / lengths) * (atoms / lengths), axis=1)
        variances = variances[self._objective.latent_order(len(atoms))]
        top = max(float(np.max(variances)), TINY)
        rise = float(np.max(np.diff(variances), initial=-top))
        # Variances that differ by more than the error of Σ keep their order.
        unsure = max(rise + 2 * data.error, 0.0) - max(rise, 0.0)
        return _finite(Ball(max(rise, 0.0) / top, gamma(4 * data.n_features) + unsure / top))

    @property
    def balance(self) -> Ball:
        """‖W₁W₁ᵀ − W₂ᵀW₂‖/‖W₂ᵀW₂‖ for the encoder W₁ and the decoder W₂."""
        terms = self._terms
        apart = terms.encoder @ terms.encoder.T - terms.gram
        return _finite(_norm(apart) / max(norm(terms.gram.value), TINY))

    @cached_property
    def stationarity(self) -> Ball | None:
        """Norm of the update direction, divided by the curvature and the weights' norm.

        A norm of the weights below 1e-8 is replaced by 1e-8. None if the direction would consist of
        rounding errors.
        """
        terms, rule = self._terms, self._rule
        sensitivity = rule.sensitivity(terms)
        if sensitivity is None:
            return None
        size = max(norm(np.array([norm(part) for part in terms.weights])), 1e-8)
        found = _norm(*rule.direction(terms)) + Ball(0.0, sensitivity * terms.data.error * size)
        top = float(self._leading.values.value[0])
        return _finite(found / (max(rule.scale(terms, top), TINY) * size))

    @property
    def attributes(self) -> tuple[str, float] | None:
        """The fitted attribute that differs most from what weights and data imply.

        Differences are relative, and those that the error of the data explains do not count.
        """
        model, k = self._model, len(self._terms.atoms.value)
        if model is None:
            return None
        if len({len(model.components), k, len(model.encoder), len(model.atoms)}) > 1:
            return "n_components_", math.inf
        pairs = _pairs_with_weights(model, self._terms.weights.in_units(self._unit))
        if not self._running:
            pairs += _pairs_with_data(model, self.data)
        found: dict[str, float] = {}
        for name, given, expected, size in (*pairs, *_pairs_with_model(self._shown, model)):
            found[name] = max(_apart(given, expected, size), found.get(name, 0.0))
        worst = max(found, key=lambda name: found[name])
        return worst, found[worst]


def _norm(*parts: Ball) -> Ball:
    """Return the Frobenius norm of balls together; no square overflows."""
    errors = [norm(np.broadcast_to(part.error, np.shape(part.value))) for part in parts]
    return Ball(norm(np.array([norm(np.asarray(p.value)) for p in parts])), norm(np.array(errors)))


def _finite(figure: Ball) -> Ball:
    """Return the figure, with infinity in place of NaN."""
    return Ball(math.inf) if math.isnan(float(figure.value)) else figure


# Fitted attributes -------------------------------------------------------------------------------

# Number of rounding errors of its dtype that are granted to an attribute beside the model.
ROUNDINGS = 8

# Name of a fitted attribute, a value that depends on it, the value that is expected, and the number
# that divides their difference; None for the largest expected entry.
Pair = tuple[str, Any, Any, float | None]


def _pairs_with_weights(model: Any, weights: Any) -> list[Pair]:
    """Return pairs that compare layers and components of a model with trained weights W₁ and W₂.

    The model has the latents sorted by variance, with fixed signs. This changes none of W₂W₁,
    W₁ᵀW₁ and W₂W₂ᵀ, so these products are compared, applied to random vectors.
    """
    encoder, atoms, components = model.encoder, model.atoms, model.components
    probe = np.random.default_rng(0).standard_normal((3, encoder.shape[1]))
    codes, known = probe @ encoder.T, probe @ weights.encoder.T
    outer, expected = probe @ atoms.T @ atoms, probe @ weights.atoms.T @ weights.atoms
    lengths = _lengths(atoms)
    nonzero = np.any(components != 0.0, axis=1)
    units = atoms[nonzero] / np.maximum(lengths, TINY)[nonzero, None]
    # A latent without a component must have no effect on the reconstruction.
    idle = np.any(~nonzero & (lengths * _lengths(encoder) > ZERO_GAIN))
    return [
        ("encoder_", codes @ atoms, known @ weights.atoms, None),
        ("encoder_", codes @ encoder, known @ weights.encoder, None),
        ("decoder_", outer, expected, None),
        ("components_", components[nonzero], units, None),
        ("components_", float(idle), 0.0, 1.0),
    ]


def _pairs_with_data(model: Any, data: Data) -> list[Pair]:
    """Return pairs that compare mean, weight and variances of a model with those of the data.

    The variances are unbiased: sums of squares divided by the total weight minus one.
    """
    encoder, components, basis = model.encoder, model.components, model.basis
    k, ratio = len(components), model.weight / max(model.weight - 1.0, gamma(0))
    images = data.apply(np.concatenate([components, encoder, basis.T]))
    # What rounding errors of the mean give must stay below the accuracy that is demanded.
    total = max(data.trace + 1e9 * data.rounding, TINY)
    along = np.sum(images[:k] * components, axis=1)
    codes = np.sqrt(np.maximum(np.sum(images[k : 2 * k] * encoder, axis=1), 0.0) * ratio)
    inside = images[2 * k :] @ basis
    outside = data.n_features - basis.shape[1]
    level = ratio * max(0.0, data.trace - float(np.trace(inside))) / outside if outside else 0.0
    # The deviation of a code is 1 if the code seems to have no variance. Otherwise what the error
    # of Σ explains does not count.
    rounding = 4 * (data.error + data.rounding) * ratio * np.sum(encoder**2, axis=1)
    varies = codes**2 > 100 * rounding
    granted = rounding / np.where(varies, codes, 1.0)
    away = np.where(varies, np.maximum(np.abs(model.code_deviations - codes) - granted, 0.0), 0.0)
    weight = model.weight if data.weight is None else data.weight
    rise = np.max(np.diff(model.variances), initial=0.0)
    return [
        ("explained_variance_", model.variances, along * ratio, total),
        ("explained_variance_", rise, 0.0, total),
        ("whitened codes", away, 0.0 * away, max(float(codes.max(initial=0.0)), TINY)),
        ("noise_variance_", model.inside, inside * ratio, total),
        ("noise_variance_", model.total_variance, data.trace * ratio, total),
        ("noise_variance_", model.noise_variance, level, total),
        ("noise_variance_", basis.T @ basis, np.eye(basis.shape[1]), 1.0),
        ("n_samples_seen_", model.weight, weight, None),
        ("mean_", mean_difference(model.mean, data), 0.0, 1.0),
    ]


def _pairs_with_model(shown: Mapping[str, Any], model: Any) -> Iterator[Pair]:
    """Yield pairs that compare what users read with what follows from the judged model.

    Differences within a few roundings of the attribute's dtype do not count.
    """
    variances, top = model.variances, math.sqrt(max(model.total_variance, 0.0))
    expected = {
        "mean_": model.mean,
        "encoder_": model.encoder,
        "decoder_": model.atoms.T,
        "components_": model.components,
        "explained_variance_": variances,
        "explained_variance_ratio_": variances / max(model.total_variance, TINY),
        "singular_values_": np.sqrt(variances * max(model.weight - 1.0, epsilon(float))),
        "noise_variance_": model.noise_variance,
        "n_components_": len(model.components),
    }
    for name in [name for name in expected if name in shown]:
        given, value = np.asarray(shown[name]), np.asarray(expected[name])
        size = max(float(np.max(np.abs(value), initial=top if name == "mean_" else 0.0)), TINY)
        kind = given.dtype if given.dtype.kind == "f" else float
        granted = ROUNDINGS * epsilon(kind) * size
        if given.shape == value.shape:
            given = given - np.clip(given - value, -granted, granted)
        yield name, given, value, size


def mean_difference(mean: Vector, data: Data, roundings: float = 0.0) -> float:
    """Return the largest difference of a mean to that of the data, in standard deviations.

    Each feature has its own deviation. Differences within the error of the mean of the data, and
    `roundings` times the mean, do not count.
    """
    # A solver adds the rows in another order: what is certain of one sum is granted to both.
    granted = 4 * data.mean.error + (roundings + gamma(0)) * np.abs(data.mean.value)
    excess = np.maximum(np.abs(mean - data.mean.value) - granted, 0.0)
    with np.errstate(over="ignore"):  # of a feature without variance
        return float(np.max(excess / np.sqrt(np.maximum(data.variances, TINY))))


def _apart(found: Any, expected: Any, size: float | None) -> float:
    """Return the largest difference of two arrays, divided by `size` or the largest entry.

    It is infinite if the shapes differ, or if what was found is not finite.
    """
    if np.shape(found) != np.shape(expected) or not np.all(np.isfinite(found)):
        return math.inf
    size = max(float(np.max(np.abs(expected), initial=0.0)), TINY) if size is None else size
    return float(np.max(np.abs(found - expected), initial=0.0)) / size


# Influence of single rows ------------------------------------------------------------------------


def find_leverage(data: Data, atoms: Vector) -> Leverage | None:
    """Return the rows that carry a large share of a component or of the total variance.

    The share of a row x with the share p of all weights in a component of direction w is
    p⟨w, x − μ⟩² divided by the sum over all rows; in the total variance it is p‖x − μ‖²/tr Σ. If
    the rows are not known any more, the sketch has those farthest from the mean μ. Missing entries
    are replaced by their expectations.
    """
    if not data.trace > data.rounding or (data.weight or 0.0) < 10.0:
        return None
    rows = data.rows if data.filled is None else data.filled
    if not isinstance(rows, GivenRows):
        if data.peaks is None or not data.peaks.shape[1]:
            return None
        numbers, shares = data.peaks
        table = np.minimum(shares, 1.0)[:, None]
    else:
        units = _unit_rows(atoms[np.all(np.isfinite(atoms), axis=1)])
        # Single precision suffices for float32 rows, because the shares are not judged.
        V = units if scipy.sparse.issparse(rows.X) else like(units, rows.X)
        table = (to_numpy(rows.X @ V.T) - units @ data.mean.value) ** 2 * rows.shares[:, None]
        sums = np.sum(table, axis=0)
        # One row may well make a component of less than the average variance.
        table = table / np.where(sums > data.trace / data.n_features, sums, math.inf)
        total = rows.squared_distances(data.mean.value) * rows.shares / data.trace
        table = np.column_stack([total, table])
        numbers = np.arange(len(table))
    limits = np.full(table.shape[1], LEVERAGE)
    limits[0] = min(LEVERAGE, max(OUTLYING, FAR_ROW / float(data.weight or 1.0)))
    large = np.where(table > limits, table, 0.0)
    best, shares = np.argmax(large, axis=1), np.max(large, axis=1)
    order = np.argsort(-shares, kind="stable")
    order = order[shares[order] > 0.0][:100]
    return Leverage(float(np.max(table)), numbers[order].astype(int), shares[order],
                    best[order] - 1)  # fmt: skip


# Rows with missing entries -----------------------------------------------------------------------
#
# A row x has the covariance C = WWᵀ + γI with loadings W (m × k) and noise variance γ, restricted
# to its observed entries o. With G = W_oᵀW_o + γI (k × k), Woodbury's identity gives
# a = C_oo⁻¹(x − μ)_o = ((x − μ)_o − W_o G⁻¹W_oᵀ(x − μ)_o)/γ, from which the likelihood and its
# derivatives follow row by row. A `model` has the arrays `mean` (m,) and `loadings`, the number
# `noise`, and the `weight` of the rows it was fitted to.


class ObservedFigures(NamedTuple):
    """What the rows with missing entries say of the parameters; None if they were not stored."""

    gradient: Ball | None  # norm of the gradient of the log-likelihood per row
    noiseless: bool  # whether the noise tends to zero, so that the likelihood has no maximum
    pairs: Vector | None  # (p, 2): features that were hardly ever observed together, if examined
    apart: bool  # whether groups of features were never observed together
    lost: Vector | None  # (k,): share of the variance of each code that is undetermined
    evidence: dict[str, Any]
    converged: bool


def observed_figures(
    model: Any, encoder: Vector, X: Any, weights: Any, converged: bool
) -> tuple[Data, ObservedFigures]:
    """Return the covariance WWᵀ + γI as data, and what rows X with missing entries say of it.

    X is None if they were not stored.
    """
    W, noise, m = model.loadings, model.noise, len(model.mean)
    variances = np.sum(W**2, axis=1) + noise

    def product(vectors: Vector) -> Vector:
        return np.asarray((vectors @ W) @ W.T + noise * vectors)

    data = Data(
        model.mean,
        Ball(0.0 * model.mean, 0.0 * model.mean),
        variances,
        product,
        gamma(m) * float(np.sum(variances)),
        model.weight,
        product(np.eye(m)) if m <= DENSE_FEATURES else None,
        origin="given",
    )
    evidence: dict[str, Any] = {"noise_variance": noise}
    noiseless = noise <= NO_NOISE * float(np.mean(variances))
    if X is None:
        return data, ObservedFigures(None, noiseless, None, False, None, evidence, converged)
    # 1) Likelihood and codes. The relative error of G⁻¹ is its condition number times ε.
    rows = to_numpy(as_double(X)).copy()
    seen = ~np.isnan(rows)
    mass = np.any(seen, axis=1) * (1.0 if weights is None else to_numpy(weights))
    total = float(np.sum(mass))
    if not total > 0.0:
        raise ValueError("X has no observed entry in a row of positive weight: nothing is judged.")
    value, size, lost = _sums_over_rows(model, encoder, rows, mass)
    top = float(np.max(np.sum(W**2, axis=0), initial=0.0))
    gradient = Ball(
        math.inf if math.isnan(size) else size / total, gamma(8 * m) * (1 + top / noise)
    )
    # 2) Features that were observed together.
    used, pairs, never, apart = seen[mass > 0.0], None, None, False
    if m <= PAIRED_FEATURES:
        together = used.astype(np.float32)
        count = (together.T @ together).astype(float)
        most = np.max(count - np.diag(np.diag(count)), axis=1)
        hardly = (count < 0.5) | (count < FEW_TOGETHER * np.minimum.outer(most, most))
        pairs = np.argwhere(np.triu(hardly, 1))
        never = pairs[count[tuple(pairs.T)] < 0.5]
        apart = connected_components(count > 0.5, directed=False)[0] > 1
    evidence |= {
        "log_likelihood": value,
        "missing_share": 1.0 - float(mass @ seen.mean(axis=1)) / total,
        "n_patterns": len(np.unique(np.packbits(used, axis=1), axis=0)),
        "never_observed_together": never,
        "lost_code_variance": lost,
    }
    data = replace(data, weight=total, filled=GivenRows(rows, weights))
    return data, ObservedFigures(gradient, noiseless, pairs, apart, lost, evidence, converged)


def _sums_over_rows(
    model: Any, encoder: Vector, rows: Vector, mass: Vector
) -> tuple[float, float, Vector]:
    """Return log-likelihood, size of its gradient, and the undetermined share of each code.

    Missing entries of the rows, whose weights are `mass`, are replaced by their expectations
    μ + WG⁻¹W_oᵀ(x − μ)_o. The derivative ∂ℓ/∂w for the loadings w of feature j is the sum of
    aⱼaᵀW − wᵀG⁻¹, because C_oo⁻¹W_o = W_oG⁻¹; ∂ℓ/∂γ is half the sum of ‖a‖² − tr C_oo⁻¹. The size
    √(γ‖∂ℓ/∂(W, μ)‖² + (2/m)(γ ∂ℓ/∂γ)²) does not depend on units. With the missing entries u of a
    row, the encoder E and B = E_uW_u, the covariance of the codes is γ(BG⁻¹Bᵀ + E_uE_uᵀ), whose
    diagonal is divided by the variance of the codes.
    """
    (W, noise), (m, k) = (model.loadings, model.noise), model.loadings.shape
    outer = np.einsum("ja,jb->jab", W, W).reshape(m, -1)
    mixed = np.einsum("ij,jb->jib", encoder, W).reshape(m, -1)
    value, on_loadings, on_mean, on_noise = 0.0, np.zeros((m, k)), np.zeros(m), 0.0
    left = np.zeros(len(encoder))
    step = max(1, POSTERIOR_ENTRIES // max(k * k, m, mixed.shape[1]))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        mask, weight = (~np.isnan(rows[part])).astype(float), mass[part]
        rest = np.where(mask > 0.0, rows[part] - model.mean, 0.0)
        inverse = np.linalg.inv((mask @ outer).reshape(-1, k, k) + noise * np.eye(k))
        codes = np.einsum("nab,nb->na", inverse, rest @ W)
        rows[part] = np.where(mask > 0.0, rows[part], model.mean + codes @ W.T)
        # 1) The likelihood and its derivatives.
        a = (rest - mask * (codes @ W.T)) / noise
        through = mask.T @ (inverse * weight[:, None, None]).reshape(-1, k * k)
        on_loadings += (a * weight[:, None]).T @ (a @ W)
        on_loadings -= np.einsum("jab,jb->ja", through.reshape(m, k, k), W)
        count = mask.sum(axis=1)
        traces = (count - k + noise * np.trace(inverse, axis1=1, axis2=2)) / noise
        log_det = (count - k) * math.log(noise) - np.linalg.slogdet(inverse)[1]
        misfit = np.sum(a * rest, axis=1)
        value -= float(weight @ (misfit + log_det + count * math.log(2 * math.pi))) / 2
        on_noise += float(weight @ (np.sum(a**2, axis=1) - traces)) / 2
        on_mean += weight @ a
        # 2) The variances of the codes, given the observed entries.
        B = ((1.0 - mask) @ mixed).reshape(-1, len(encoder), k)
        spread = np.einsum("nia,nab,nib->ni", B, inverse, B) + (1.0 - mask) @ (encoder**2).T
        left += noise * (weight @ spread)
    squares = float(np.sum(on_loadings**2) + np.sum(on_mean**2))
    size = math.sqrt(noise * squares + 2 / m * (noise * on_noise) ** 2)
    variances = np.sum((encoder @ W) ** 2, axis=1) + noise * np.sum(encoder**2, axis=1)
    return value, size, left / np.sum(mass) / np.maximum(variances, TINY)
