"""Solvers of `LinearAutoencoder`: closed form, and descent on all rows, mini-batches or a stream.

`solve` runs the solver that the arguments of the estimator ask for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
from scipy.special import chdtri
from sklearn.exceptions import ConvergenceWarning

from lucidae.arrays import (
    Array,
    as_double,
    column_signs,
    eye_like,
    fields_beside,
    largest,
    like,
    machine_epsilon,
    namespace,
    normal,
    on_host,
    to_numpy,
    where_set,
)
from lucidae.arrays.eigen import orthonormal_rows
from lucidae.arrays.graphs import keeper, replayable
from lucidae.counting import ComponentCount, count_in_spectrum, is_criterion
from lucidae.iteration import (
    Below,
    Solution,
    Status,
    iterate,
    log_grid,
    progress_bars,
)
from lucidae.linear.methods import (
    Method,
    Model,
    Options,
    TrainedWeights,
    check_features,
    reaching,
)
from lucidae.linear.objectives import Rule
from lucidae.linear.weights import Optimizer, axis_distances, frobenius, map_fields, of_states
from lucidae.rows.covariances import Covariance, DenseCovariance, rows_covariance
from lucidae.rows.operator import EXACT_FEATURES, STORED_FEATURES, RowOperator
from lucidae.spectrum import Spectrum, leading, refined, ritz_spectrum
from lucidae.validation import warn_user

Vector = np.ndarray[Any, Any]

CHECK_EVERY, CHECK_EVERY_ON_DEVICE = 20, 100
"""Numbers of steps between two evaluations of the stopping rule, which wait for a device."""

UNEQUAL = 5.0
"""Factor by which quantiles of the features' variances differ more than those of equal noise, from
which on the noise counts as unequal; parallel analysis then finds 3 components in independent
features of which 3 have 5, 3 and 2 times the standard deviation of 17 others."""

HORIZON = 200.0
"""Number of batches after which the step size has halved."""

STREAM_MEMORY = 20
"""Number of recent batches over which the covariance of the latents is averaged."""

DEFAULT_BATCH = 256
"""Default number of rows per step of the stochastic solver."""

ACCURATE = 1e-6
"""Largest excess of the loss over its minimum, in units of `Objective.size`, without a warning; the
certificate allows as much."""

ATTEMPTS = 5
"""Number of automatic step sizes that are tried, each a quarter of the one before, until descent
does not diverge."""

SMALLEST_NORM = 1e-8
"""Smallest norm of the weights by which the stopping rule divides; a smaller norm is replaced by
this number, because all latents may be zero at the optimum."""

ZERO_LATENT = 1e-8
"""A latent counts as zero if the length of its encoder row times the length of its decoder column
is at most this number. The product is the same if a factor is moved from one layer to the other."""

MARGIN = 1.1
"""Factor by which the bound on the curvature is raised, because it is computed from estimated
eigenvalues (Ritz values), which are smaller than the true ones."""


def solve(options: Options, rows: RowOperator, previous: Any = None) -> Model:
    """Fit the model by the solver that the estimator's arguments name."""
    wanted, m = options.n_components, rows.n_features
    # 1) The eigenpairs that are needed before the number of latents and the penalties are known.
    spectrum = None
    if options.closed_form:
        one_more = int(options.needs_spectrum)  # penalties depend on the gap after the last latent
        pairs = min(wanted + one_more, m) if isinstance(wanted, int) else None
        spectrum = leading(rows, pairs)
    elif options.solver == "stochastic":
        if options.needs_spectrum:
            spectrum = ritz_spectrum(rows, resolve_components(wanted, m)[0], rows.mean)
    elif options.needs_spectrum or not isinstance(wanted, int):
        spectrum = leading(rows, None)
    # 2) The method for this number of latents, and its weights.
    k, count = resolve_components(wanted, m, spectrum, rows.weight)
    if options.closed_form:
        assert spectrum is not None, "resolve_components refuses what needs a missing spectrum"
        model = closed_form(options, k, refined(rows, spectrum, k), rows)
        return model if count is None else replace(model, count=count)
    rng = options.rng()
    outcome = _trained_outcome(options, rows, options.make(k, spectrum, rng), k, rng, previous)
    return replace(build_model(outcome, rows), spectrum=spectrum, count=count)


def closed_form(options: Options, k: int, spectrum: Spectrum, data: Any) -> Model:
    """Return the method's optimum for `k` latents from the leading eigenpairs of Σ.

    `data` has a mean, a weight, and products with Σ.
    """
    method = options.make(k, spectrum)
    outcome = TrainedWeights(method.objective.minimizer(spectrum, k), method)
    return build_model(outcome, data, spectrum)


def build_model(outcome: TrainedWeights, data: Any, spectrum: Spectrum | None = None) -> Model:
    """Return the fitted model: latents ordered by variance, with fixed signs and their variances.

    `data` has a mean, a weight, a trace, and products with Σ. `spectrum` are the eigenpairs from
    which a closed form was computed.
    """
    encoder, atoms = as_double(outcome.weights.encoder), as_double(outcome.weights.atoms)
    xp, (k, m), eps = namespace(atoms), atoms.shape, machine_epsilon(atoms)
    # 1) Components: decoder columns of unit length, and zeros for latents without any effect.
    norms = xp.sqrt(xp.sum(atoms * atoms, axis=-1))
    lengths = norms if encoder is atoms else xp.sqrt(xp.sum(encoder * encoder, axis=-1))
    zero = norms * lengths <= ZERO_LATENT
    components = atoms / where_set(norms, zero, 1.0)[:, None]
    components = where_set(components, zero[:, None], 0.0)
    # 2) Covariance in an orthonormal basis of their span.
    chosen = np.flatnonzero(~to_numpy(zero))
    chosen = xp.asarray(chosen if len(chosen) else [0], device=atoms.device)
    basis = xp.take(components, chosen, axis=0)
    r, trace, exact = basis.shape[0], max(0.0, float(data.trace)), None
    if spectrum is not None and largest(basis - spectrum.vectors[:, :r].mT) <= 16 * eps:
        exact = spectrum if spectrum.factored else None
    else:
        basis = orthonormal_rows(basis)
    if exact is not None:
        # The digits of small eigenvalues, which products with Σ would lose.
        inside, left = eye_like(r, basis) * exact.values[:r], exact.noise(r) * (m - r)
    else:
        inside = data.apply(basis) @ basis.mT
        left = max(0.0, trace - float(xp.linalg.trace(inside)))
    inside = (inside + inside.mT) / 2
    # Variances along the components, and of the codes, whose encoder may leave the span.
    turns = (components @ basis.mT, encoder @ basis.mT)
    along, codes = (xp.sum((turn @ inside) * turn, axis=-1) for turn in turns)
    if largest(encoder - turns[1] @ basis) > 16 * eps * largest(encoder):
        codes = xp.sum(data.apply(encoder) * encoder, axis=-1)
    # 3) Zero latents come last, all others by descending variance, with fixed signs.
    order = np.lexsort((-to_numpy(along), to_numpy(zero)))
    index = xp.asarray(order, device=atoms.device)
    components = xp.take(components, index, axis=0)
    signs = column_signs(components.mT)[:, None]
    encoder, atoms = (xp.take(rows, index, axis=0) * signs for rows in (encoder, atoms))
    along, codes = xp.take(along, index), xp.take(codes, index)
    # A variance of a code that is a rounding error, for the length of its encoder row, counts as
    # none: such codes are not scaled.
    squares = xp.take(lengths * lengths, index)
    relative = codes / where_set(squares, squares <= 0.0, 1.0)
    negligible = relative <= eps * k * max(float(xp.max(relative)), 0.0)
    ratio = data.weight / max(data.weight - 1.0, np.finfo(float).eps)
    outside = m - r
    return Model(
        data.mean,
        encoder,
        atoms,
        components * signs,
        ratio * where_set(along, along < 0, 0.0),
        xp.sqrt(where_set(ratio * codes, negligible, 1.0)),
        ratio * trace,
        basis.mT,
        ratio * inside,
        ratio * left / outside if outside else 0.0,
        data.weight,
        outcome,
        spectrum,
    )


def resolve_components(
    wanted: Any, m: int, spectrum: Spectrum | None = None, weight: float = 0.0
) -> tuple[int, ComponentCount | None]:
    """Return the number of latents that `n_components` means for data with m features.

    If it names a criterion, its result is returned too; `weight` is the sum of the rows' weights.
    """
    if isinstance(wanted, int):
        check_features(wanted, m)
        return wanted, None
    if spectrum is None:
        raise ValueError(
            f"n_components={wanted!r} was given, which needs all eigenvalues of the covariance. "
            "They are not computed by the stochastic solver, nor for more than 8192 features if "
            "there are as many rows or X is read in blocks. Give n_components as an integer."
        )
    rank = max(1, spectrum.rank())
    if wanted is None:
        return rank, None
    if is_criterion(wanted):
        count = count_in_spectrum(wanted, spectrum, weight)
        _warn_of_unequal_noise(count, spectrum)
        return latents_counted(count), count
    return min(rank, reaching(wanted, to_numpy(spectrum.values), spectrum.trace)), None


def latents_counted(count: ComponentCount) -> int:
    """Return the number of latents to fit if a criterion found `count` components.

    If it found none, one latent is fitted, and a warning says so.
    """
    if count.n_components == 0:
        warn_user(
            f"{count.summary()} One component was fitted nevertheless, because an autoencoder "
            "needs at least one latent; do not interpret it."
        )
    return max(1, count.n_components)


def _warn_of_unequal_noise(count: ComponentCount, spectrum: Spectrum) -> None:
    """Warn if features differ in what the counted components leave of them.

    The criteria assume noise of the same variance in every feature; otherwise most eigenvalues
    stand out of those of the quiet features. What k components leave of features with equal noise
    varies no more than chi-squared variables of r − k degrees, with the rank r. At most half of the
    components are removed, because a count may be wrong by including nearly all of them.
    """
    rank = spectrum.rank()
    k, values = min(count.n_components, rank // 2), to_numpy(spectrum.values)
    squares = to_numpy(spectrum.vectors) ** 2
    before, left = squares @ values, squares[:, k:] @ values[k:]
    left = left[before > 1e-12 * np.max(before, initial=0.0)]  # constant features have no noise
    if len(left) < 2 or count.n_components < 2:
        return
    low, high = np.quantile(left, [0.1, 0.9])
    if high > UNEQUAL * np.divide(*chdtri(rank - k, [0.1, 0.9])) * low:
        warn_user(
            f"{count.summary()} This assumes noise of the same variance in every feature, but "
            f"without the first {k} components the variances of the features differ by a factor of "
            f"{high / max(low, np.finfo(float).tiny):.2g} (10 % and 90 % quantiles), so that the "
            "number may be far too large. Features in different units, which can be standardised, "
            "or a few outlying rows may be the cause; otherwise give n_components as an integer or "
            "as a share of the variance."
        )


def _trained_outcome(
    options: Options,
    rows: RowOperator,
    method: Method,
    k: int,
    rng: np.random.Generator,
    previous: Any,
) -> TrainedWeights:
    """Return the weights after descent from random weights, or from those of an earlier fit."""
    automatic = options.learning_rate == "auto"
    # 1) The history has the distances to the principal axes. They are for the record alone: what is
    # computed for them is not kept with the rows.
    measures = {}
    if rows.n_features <= STORED_FEATURES:
        apart = rows if rows.moment is not None else RowOperator.of(rows.rows, rows.weights)
        axes = leading(apart, k)
        measures = {} if axes is None else axis_distances(axes.vectors[:, :k])
    # 2) The number of rows per step; None for steps with the second moment of all rows. One batch
    # of all rows is full-batch descent, except for a rule that draws masks for rows.
    size, dense = None, not options.draws_rows and rows.n_features <= EXACT_FEATURES
    if options.draws_rows:
        size = n_rows = int(rows.rows.shape[0])
        if options.solver == "stochastic":
            size = min(options.batch_size or DEFAULT_BATCH, n_rows)
        size = None if size == n_rows and not method.rule.needs_rows else size
    # 3) Data in units in which automatic step sizes work; of blocks only the matrix is divided.
    data: Any = DenseCovariance(rows.covariance) if dense else rows
    divisible = automatic and (dense or rows.rows is not None)
    unit = method.objective.unit(rows) if divisible else 1.0
    if unit != 1.0 and dense:
        data = DenseCovariance(rows.covariance / unit**2)
    elif unit != 1.0:
        data = RowOperator.of(rows.rows / unit, rows.weights)
    # 4) First weights, and step sizes: smaller ones if descent diverges.
    start = random_start(method, k, rows.n_features, options.init_scale, rng, rows.mean)
    if previous is not None:
        start = _warm_start(method, previous.in_units(1.0 / unit), start)
    sampled = size if size is not None and size < rows.rows.shape[0] else None
    stiff = stiffness(method, data, start, options, sampled)
    for _ in range(ATTEMPTS):
        solution = descend(method, data, start, options, stiff, measures, size, rng)
        if solution.status is not Status.DIVERGED or not automatic:
            break
        # Rows far from the others can make a batch steeper than the bound on the curvature.
        stiff = stiff._replace(curvature=4.0 * stiff.curvature)
    _warn_of_accuracy(solution, method, data, options)
    return TrainedWeights(
        solution.value.in_units(unit),
        method,
        solution.status,
        max(1, solution.n_iter),
        solution.history,
        options.rate(stiff.curvature) / unit**2,
    )


def _warn_of_accuracy(
    solution: Solution[Any], method: Method, covariance: Covariance, training: Options
) -> None:
    """Warn if descent did not converge, or if its loss is known to be above the minimum.

    Converged descent can be above the minimum, because the stopping rule divides by the largest
    curvature. As long as latents with small eigenvalues are close to zero, their directions are too
    small to delay the stop.
    """
    excess = known_excess(method, solution.value, covariance)
    if solution.status.ok and excess <= max(ACCURATE, training.tol):
        return
    words, objective = solution.advice, method.objective
    if solution.status.ok:
        words += " Components of small eigenvalues have not converged: lower tol, raise max_iter."
    if excess > 0.0:
        words += f" The loss exceeds its minimum by at least {excess:.2g} {objective.size_name}."
    if training.learning_rate != "auto":
        words += " Use learning_rate='auto', or a smaller number."
    else:
        if objective.has_minimizer:
            words += " solver='exact' gives the optimum in closed form."
        words += (
            " Descent is slow if the leading eigenvalues of the covariance of X are close to each "
            "other. If they differ by orders of magnitude, scale the columns."
        )
    warn_user(words, ConvergenceWarning)


def known_excess(method: Method, weights: Any, covariance: Covariance) -> float:
    """Return a lower bound on the loss of `weights` minus its minimum, divided by `Objective.size`.

    The minimum is replaced by the loss of the closed form on estimated eigenvectors, which is at
    least as large.
    """
    objective = method.objective
    if not objective.has_minimizer:
        return 0.0
    k = weights.encoder.shape[-2]
    spectrum = ritz_spectrum(covariance, k, weights.encoder)
    with np.errstate(all="ignore"):  # weights that diverged, or noise that is zero
        losses = [
            float(objective.value(candidate, covariance))
            for candidate in (weights, objective.minimizer(spectrum, k))
        ]
        excess = (losses[0] - losses[1]) / objective.size(spectrum)
    return max(excess, 0.0) if math.isfinite(excess) else 0.0


def _warm_start(method: Method, previous: Any, start: Any) -> Any:
    """Return the weights `previous` of an earlier fit, from which descent starts.

    They are converted to the type that `method` trains. If they do not have the shape of the random
    weights `start`, a warning is issued and `start` is returned.
    """
    old, new = previous.encoder, start.encoder
    if old.shape != new.shape:
        warn_user(
            "warm_start=True was given, but the weights of the last fit have shape "
            f"{tuple(old.shape)}, expected {tuple(new.shape)}: training starts from random weights."
        )
        return start
    return method.adopt(map_fields(lambda rows: like(rows, new), previous))


class Stiffness(NamedTuple):
    """Curvature of a method's loss on given data, from which step size and stopping rule follow."""

    # upper bound on the curvature (largest eigenvalue of the Hessian), for the step size
    curvature: float
    # curvature at the optimum, by which the stopping rule divides the norm of a direction
    scale: float


def stiffness(
    method: Method,
    covariance: Covariance,
    start: Any,
    options: Options,
    batch_size: int | None = None,
) -> Stiffness:
    """Return a bound on the curvature of a method's loss, estimated by a few power iterations.

    The bound on the curvature at the optimum is raised by three factors: one for the error of the
    estimated eigenvalues (`MARGIN`), one for the larger curvature at the first weights
    (`Rule.steepening`), and one for the sampling error of a batch, if steps use batches. A sample
    of b rows adds about 1/b of the total variance to the largest eigenvalue, and momentum μ adds up
    the directions of about 1/(1 − μ) batches.
    """
    rule, noise = method.rule, 0.0
    spectrum = ritz_spectrum(covariance, start.encoder.shape[-2], start.encoder)
    preconditioned = options.preconditions and batch_size is None
    bound = rule.preconditioned_curvature if preconditioned else rule.curvature
    top, curvature = float(spectrum.values[0]), bound(spectrum)
    if top <= 0.0:
        return Stiffness(1.0, 1.0)  # no variance: any step is stable
    if batch_size is not None:
        noise = 1.0 / (batch_size * (1.0 - options.effective_momentum))
    factor = MARGIN * (1.0 + noise * spectrum.trace / top) * rule.steepening(start)
    return Stiffness(factor * curvature, rule.scale(spectrum))


def random_start(method: Method, k: int, m: int, scale: float, rng: Any, ref: Array) -> Any:
    """Return random initial weights for k latents and m features.

    The entries are independent and normal with standard deviation `scale`.
    """
    encoder = scale * normal(rng, (k, m), ref)
    atoms = encoder if method.tied else scale * normal(rng, (k, m), ref)
    return method.start(encoder, atoms)


def moved(rule: Rule, optimizer: Optimizer, state: Any, direction: Any) -> Any:
    """Return the state of the optimizer after one step."""
    after = optimizer.update(state, direction)
    return after._replace(weights=rule.retract(after.weights))


class ReducedVariance:
    """Variance-reduced directions of descent on mini-batches (SVRG, Johnson & Zhang 2013).

    Let d_B(w) be the direction of a batch B at the weights w, d(w) that of all rows, and a earlier
    weights, the anchor. The corrected direction is d_B(w) − d_B(a) + d(a). Its mean over batches is
    d(w), as for d_B(w) alone, but its noise vanishes as w approaches a. With a constant step size,
    the weights therefore converge to d(w) = 0 at the rate of full-batch descent, and not only to a
    neighbourhood whose size depends on the noise of a batch. At every evaluation of the stopping
    rule, which computes d(w) anyway, the current weights become the anchor.
    """

    def __init__(self, method: Method) -> None:
        self.rule = method.rule
        self.expected = method.expected()  # a sampled direction is never zero
        self.anchor: Any = None
        self.full: Any = None

    def move_anchor(self, weights: Any, rows: Covariance) -> Any:
        """Store `weights` as the anchor, and return the direction of all rows at these weights.

        The anchor are the earlier weights at which the directions of batches are compared with that
        of all rows, in order to reduce the noise of later directions.
        """
        self.anchor, self.full = weights, self.expected.direction(weights, rows)
        return self.full

    def __call__(self, weights: Any, batch: Covariance) -> Any:
        """Return the direction of a batch at `weights`, corrected to have less noise.

        The direction of the batch at earlier weights (the anchor) is subtracted, and that of all
        rows at the anchor is added.
        """
        direction = self.rule.drawn(weights, batch)
        here, there = direction(weights, batch), direction(self.anchor, batch)
        return map_fields(lambda w, a, full: w - a + full, here, there, self.full)


def descend(
    method: Method,
    data: Any,
    start: Any,
    training: Options,
    stiff: Stiffness,
    measures: Mapping[str, Callable[[Any], Array]],
    batch_size: int | None,
    rng: np.random.Generator,
) -> Solution[Any]:
    """Minimise by descent, and return the solution with the trained weights.

    A step uses the second moment of all rows, of which only products are computed, or that of a
    mini-batch of so many rows. For m features and k latents, mini-batches need O(mk) memory. Each
    evaluation of the stopping rule is one pass over all rows; the direction found there also
    corrects the directions of the following batches (`ReducedVariance`). The history records the
    loss and `measures`, functions of the weights by name.
    """
    # Arrays of the rule are beside the weights, so that a step copies nothing to a device.
    rule = fields_beside(method.rule, start.encoder)
    every = CHECK_EVERY if on_host(start.encoder) else CHECK_EVERY_ON_DEVICE
    optimizer = training.build(stiff.curvature)
    toward = rule.preconditioned_direction if training.preconditions else rule.direction
    reduced: ReducedVariance | None = None
    record_at: Any = log_grid(training.max_iter, stride=every)
    if batch_size is not None:
        n_rows = data.rows.shape[0]
        batches, reduced = shuffled(n_rows, batch_size, rng), ReducedVariance(method)
        every, record_at = max(1, -(-n_rows // batch_size), every), None

    def step(state: Any) -> Any:
        if reduced is None:
            return moved(rule, optimizer, state, toward(state.weights, data))
        batch = data.batch(np.sort(next(batches)))  # rows are read in their order
        if batch.total == 0.0:
            return state
        return moved(rule, optimizer, state, reduced(state.weights, batch))

    def distance(state: Any) -> Array:
        find = rule.direction if reduced is None else reduced.move_anchor
        # 0 at a fixed point, and of order 1 at a random start.
        size = frobenius(state.weights)
        size = where_set(size, size < SMALLEST_NORM, SMALLEST_NORM)
        return frobenius(find(state.weights, data)) / (stiff.scale * size)

    losses = {"loss": lambda weights: method.objective.value(weights, data)}
    recorded = replayable(step, start) if batch_size is None else step
    solution = iterate(
        recorded,
        optimizer.start(start),
        stop=Below(distance, training.tol),
        limit=training.max_iter,
        check_every=every,
        record=of_states({**losses, **measures}),
        record_at=record_at,
        callbacks=progress_bars("training", training.verbose),
        copy=keeper(recorded),
        size=data.n_features,
    )
    return replace(solution, value=solution.value.weights)


def shuffled(n_rows: int, batch_size: int, rng: np.random.Generator) -> Iterator[Vector]:
    """Yield arrays of row indices without end, one per batch.

    Each pass over the `n_rows` rows is a new random permutation, divided into batches.
    """
    while True:
        order = rng.permutation(n_rows)
        yield from (order[start : start + batch_size] for start in range(0, n_rows, batch_size))


# Descent on a stream of batches ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LowRankCovariance:
    """The approximation QMQᵀ + s²(I − QQᵀ) of the second moment of weighted rows (m × m).

    Q has orthonormal columns, M is the second moment in their span, and s² is the variance in every
    direction orthogonal to them; it follows from the trace.
    """

    basis: Array  # (m, r): the columns Q
    inside: Array  # (r, r): the matrix M
    trace: float  # total variance: the trace of the approximation
    mean: Array  # (m,): mean of the rows
    weight: float  # sum of their weights

    def apply(self, rows: Array) -> Array:
        """Return the product of `rows`, of shape (…, k, m), with the approximated second moment."""
        outside = self.basis.shape[0] - self.basis.shape[1]
        captured = float(namespace(rows).linalg.trace(self.inside))
        level = max(0.0, self.trace - captured) / outside if outside else 0.0
        codes = rows @ self.basis
        return codes @ self.inside @ self.basis.mT + level * (rows - codes @ self.basis.mT)


class Stream(NamedTuple):
    """State of the optimizer, and the number of steps taken."""

    optimizer: Any
    steps: int

    @property
    def weights(self) -> Any:
        """The current weights of the autoencoder."""
        return self.optimizer.weights


@dataclass(frozen=True, slots=True)
class StreamFit:
    """State of training on a stream of batches: weights, optimizer, running mean and variances.

    `after` returns the state after one more batch and leaves this one unchanged.
    """

    options: Options  # the checked arguments of the estimator
    method: Method  # the training method
    state: Stream  # weights, state of the optimizer and number of steps
    mean: Annotated[Array, "m"]  # mean of the rows seen
    weight: float  # sum of the weights of the rows seen
    variance: float  # weighted sum of the squared distances of the rows seen from their mean
    curvature: float  # largest bound on the curvature of the batches seen, for the step size
    # running average of the covariance of the batches in an orthonormal basis of the span of the
    # decoder's columns
    inside: Annotated[Array, "kk"]

    @classmethod
    def begin(cls, options: Options, X: Any, weights: Array | None) -> StreamFit:
        """Return the state before the first batch, with random weights.

        The batch X (n, m) is used only to choose the number of latents and automatic penalties, not
        for training.
        """
        source = RowOperator.of(X, weights)
        k, _ = resolve_components(options.n_components, source.n_features)
        rng = options.rng()
        spectrum = ritz_spectrum(source, k, source.mean) if options.needs_spectrum else None
        method = options.make(k, spectrum, rng)
        start = random_start(method, k, source.n_features, options.init_scale, rng, source.mean)
        first = Stream(options.build(1.0).start(start), 0)
        inside = 0.0 * (start.atoms @ start.atoms.mT)
        return cls(options, method, first, source.mean, 0.0, 0.0, 0.0, inside)

    @classmethod
    def resume(cls, options: Options, model: Model) -> StreamFit:
        """Return the state with which training continues from a fitted model.

        The weights, the mean and the variances are those of the model.
        """
        outcome = model.outcome
        weights = outcome.method.adopt(outcome.weights)
        state = Stream(options.build(1.0).start(weights), outcome.n_iter)
        share = model.degrees / model.weight
        inside, trace = model.inside * share, model.total_variance * share
        known = LowRankCovariance(model.basis, inside, trace, model.mean, model.weight)
        return cls(
            options,
            outcome.method,
            state,
            model.mean,
            model.weight,
            model.total_variance * model.degrees,
            0.0,
            _inside(weights, known),
        )

    def check_continued(self, options: Options) -> None:
        """Raise an error if method or number of latents differ from those of earlier batches."""
        k = int(self.state.weights.encoder.shape[-2])
        wanted = options.n_components if isinstance(options.n_components, int) else k
        if wanted != k or options.method != self.method.name:
            raise ValueError(
                f"n_components={options.n_components} and method={options.method!r} were given, "
                f"but training was started with {k} latents by method={self.method.name!r}. Give "
                "the same values as for the earlier batches, or start a new estimator."
            )

    def after(self, X: Any, weights: Array | None) -> StreamFit:
        """Return the state after one step of descent on a batch of rows X (n, m)."""
        source = RowOperator.of(X, weights)
        total = self.weight + source.weight
        shift = source.mean - self.mean
        xp = namespace(shift)
        mean = self.mean + shift * (source.weight / total)
        # Sums of squares about two means merge by one term in their difference (Chan et al. 1983).
        with np.errstate(over="ignore"):
            between = float(xp.sum(shift * shift)) * self.weight * source.weight / total
        if not math.isfinite(between):
            raise ValueError(
                "the squared distance of the mean of X from the mean of earlier batches overflows "
                "double precision. Divide X by a constant, and start a new estimator."
            )
        variance = self.variance + source.trace * source.weight + between
        batch = rows_covariance(X, mean, source.shares)
        stiff = stiffness(self.method, batch, self.state.weights, self.options, X.shape[0])
        # A first batch of one row has no variance, and no curvature can be estimated from it.
        curvature = max(self.curvature, stiff.curvature if batch.trace > 0.0 else 0.0)
        # The rates sum to infinity and their squares do not, as convergence requires (Robbins &
        # Monro 1951): after `HORIZON` steps they have halved.
        optimizer = self.options.build(curvature or 1.0)
        scale = 1.0 / (1.0 + self.state.steps / HORIZON)
        optimizer = replace(optimizer, rate=scale * optimizer.rate)
        method = deepcopy(self.method)  # a rule that samples changes its generator at each step
        direction = method.rule.direction(self.state.weights, batch)
        stepped = moved(method.rule, optimizer, self.state.optimizer, direction)
        state = Stream(stepped, self.state.steps + 1)
        inside = _inside(state.weights, batch)
        # A plain average of the first batches, then an exponential one: old weights are forgotten.
        share = 1.0 / min(state.steps, STREAM_MEMORY)
        return replace(
            self,
            method=method,
            state=state,
            mean=mean,
            weight=total,
            variance=variance,
            curvature=curvature,
            inside=self.inside + share * (inside - self.inside),
        )

    def model(self) -> Model:
        """Return the model with the current weights; its status is `Status.STOPPED`."""
        outcome = TrainedWeights(
            self.state.weights,
            self.method,
            Status.STOPPED,
            max(1, self.state.steps),
            learning_rate=self.options.rate(self.curvature or 1.0),
        )
        basis = orthonormal_rows(as_double(self.state.weights.atoms)).mT
        trace = self.variance / self.weight
        known = LowRankCovariance(basis, self.inside, trace, self.mean, self.weight)
        return build_model(outcome, known)


def _inside(weights: Any, batch: Any) -> Array:
    """Return the second moment of a batch in the span of the decoder's columns, of shape (k, k).

    It is BΣBᵀ with an orthonormal basis of the span as the rows of B (k, m).
    """
    basis = orthonormal_rows(as_double(weights.atoms))
    inside = batch.apply(basis) @ basis.mT
    return (inside + inside.mT) / 2
