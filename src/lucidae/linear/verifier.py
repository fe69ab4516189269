"""Measured values for the certificate of a linear autoencoder, from weights and data alone.

The directions of the update rules are implemented here a second time, and losses and minima in
`verified_losses`, by naive formulas that share no code with the solvers. A mistake in a solver is
therefore not repeated in its certificate. For methods that users register themselves, the loss and
its minimum are those that the objective returns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from lucidae.arrays import as_double, to_numpy
from lucidae.linear.attributes import attribute_difference, verified_counts
from lucidae.linear.counting import ComponentCount
from lucidae.linear.methods import Method
from lucidae.linear.model import Model
from lucidae.linear.objectives import (
    ExpectedNestedDropout,
    LinearVAE,
    NonUniformL2,
    Reconstruction,
)
from lucidae.linear.optimizers import DescentSettings
from lucidae.linear.probe import EPS, Estimate
from lucidae.linear.rules import (
    BrockettRule,
    GeneralizedHebbianRule,
    RotationAugmentedRule,
)
from lucidae.linear.spectrum import Spectrum
from lucidae.linear.theory import predicted_epochs
from lucidae.linear.verified_data import Data, norm
from lucidae.linear.verified_losses import (
    LossTerms,
    gap_error,
    own_minimum,
    own_value,
    residual_variance,
)
from lucidae.linear.verified_spectrum import IDENTIFIABLE, Leading, leading_eigenpairs
from lucidae.linear.weights import map_fields
from lucidae.sampling import components_above_noise, separated_components, subspace_sampling_error

__all__ = ["LinearFigures", "measure"]

Vector = np.ndarray[Any, Any]

OWN_OBJECTIVES = (Reconstruction, NonUniformL2, ExpectedNestedDropout, LinearVAE)
"""Objectives whose value and minimum are computed in `verified_losses`, not by the objective."""

REACHED = 1e-3
"""Alignment distance (mean squared sine to the principal axes) for which `epochs` are predicted."""

MOST_EPOCHS = 1e15
"""Predictions above it are not reported: no descent takes so many steps."""

_TINY = float(np.finfo(float).tiny)


class Sampling(NamedTuple):
    """Result of the tests whether the components are separated from sampling noise."""

    rows: float  # number of rows minus one, because the mean was estimated
    separated: Vector  # (k,): which components pass
    # if the method finds the subspace alone, the expected mean squared sine of the angles between
    # the principal subspaces of the sample and of the population; otherwise None
    turned: float | None


@dataclass(frozen=True, slots=True)
class LinearFigures:
    """Measured values of given weights, from which the claims of the certificate follow.

    A value is None if it is not known, or if theory says nothing about it for this method. An
    `Estimate` is a value with a bound on its error.
    """

    method: Method  # the method with which the weights were trained
    k: int  # number of latents and of features
    n_features: int
    tolerance: float  # the estimator's argument `tol`, with which training stops
    # the leading eigenvalues of the second moment, and the distance of the decoder's columns from
    # the principal axes
    leading: Leading
    # largest increase of the variance from one latent to the next, divided by the largest
    rise: Estimate | None
    # norm of the update direction, divided by the norm of the weights and by a bound on the
    # curvature (see `_own_scale`)
    stationarity: Estimate | None
    # loss minus its global minimum, divided by the total variance (by the number of features for a
    # linear VAE)
    gap: Estimate | None
    # true if the gap was computed from the value and the minimum that a user's objective returns;
    # False if the verifier computed both
    declared: bool
    balance: Estimate | None  # ‖W₁W₁ᵀ − W₂ᵀW₂‖ / ‖W₂ᵀW₂‖ for the encoder W₁ and the decoder W₂
    zero_latents: Vector  # numbers, from 1, of the latents that are zero at the optimum
    # numbers, from 1, of the latents whose penalty differs from the eigenvalue by less than the
    # error of the eigenvalue
    uncertain_latents: Vector
    # condition number of the Hessian at the optimum; its zero eigenvalues are left out
    conditioning: float | None
    # predicted number of training epochs until the mean squared sine between the principal axes and
    # their nearest decoder columns is 1e-3
    epochs: float | None
    # largest relative difference of fitted attributes to those that follow from weights and data
    attributes: float | None
    # difference of the second moment to that of the rows along random directions, in standard
    # deviations
    moment: Estimate | None = None
    # tests of the components against sampling noise, or a sentence that says why these tests cannot
    # be made
    sampling: Sampling | str = ""
    # if `n_components` names a criterion, the number of components that it finds, then those of the
    # other criteria, or a sentence that says why they are not known; otherwise None
    counts: tuple[ComponentCount, ...] | str | None = None
    # relative error of the second moment with which the model was fitted, due to products in single
    # precision; see `SecondMoment.rounding`
    fit_rounding: float = 0.0
    # true if a pair of weights was given without an estimator; no advice on training applies
    from_elsewhere: bool = False
    # the numbers from which the measured values can be computed again
    evidence: dict[str, Any] = field(default_factory=dict, repr=False)


def measure(
    method: Method,
    weights: Any,
    data: Data,
    training: DescentSettings,
    learning_rate: float | None = None,
    model: Model | None = None,
    wanted: Any = None,
    running: bool = False,
) -> LinearFigures:
    """Measure how close weights are to the optimum for given data."""
    weights = map_fields(lambda rows: to_numpy(as_double(rows)), weights)
    # A figure of weights that overflow is infinite, and its claim fails.
    with np.errstate(over="ignore", invalid="ignore"):
        figures = _figures(method, weights, data, training, learning_rate, model, wanted, running)
    return replace(
        figures,
        rise=_infinite_if_nan(figures.rise),
        stationarity=_infinite_if_nan(figures.stationarity),
        gap=_infinite_if_nan(figures.gap),
        balance=_infinite_if_nan(figures.balance),
    )


def _infinite_if_nan(figure: Estimate | None) -> Estimate | None:
    """Return `figure`, with infinity in place of NaN.

    A measured value is NaN if it is the difference or the ratio of two numbers that overflow, or if
    the weights themselves are NaN.
    """
    return Estimate(math.inf) if figure is not None and math.isnan(figure.value) else figure


def _figures(
    method: Method,
    weights: Any,
    data: Data,
    training: DescentSettings,
    learning_rate: float | None,
    model: Model | None,
    wanted: Any,
    running: bool,
) -> LinearFigures:
    """Return all measured values of weights that are float64 NumPy arrays.

    The arguments are those of `measure`.
    """
    k, m = weights.encoder.shape
    data = data.remembering()
    leading = leading_eigenpairs(data, weights.atoms)
    unit = _unit(method, data)
    scaled = _Problem(method, weights, data, leading).in_units(unit)
    products = LossTerms.of(scaled.weights.encoder, scaled.weights.atoms, scaled.data)
    declared = type(method.objective) not in OWN_OBJECTIVES
    value, minimum, size = _loss_figures(*scaled, products, declared)
    zero, uncertain = _zero_latents(method, leading, k)
    return LinearFigures(
        method=method,
        k=k,
        n_features=m,
        tolerance=training.tol,
        leading=leading,
        rise=_rise(method, weights, products, data) if method.expected().orders else None,
        stationarity=_stationarity(*scaled, products),
        gap=_gap(value, minimum, size),
        declared=declared,
        balance=_imbalance(weights, m) if method.expected().balanced else None,
        zero_latents=zero,
        uncertain_latents=uncertain,
        conditioning=_conditioning(method, leading),
        epochs=_epochs(method, leading, k, data, learning_rate, training),
        attributes=attribute_difference(model, weights, data, leading, wanted, running),
        moment=data.difference,
        sampling=_sampling(method, leading, k, data),
        counts=None if model is None else verified_counts(wanted, leading, data.weight),
        from_elsewhere=model is None,
        evidence=_evidence(method, leading, k, data, (value, minimum, size), m * math.log(unit)),
    )


class _Problem(NamedTuple):
    """A method, its weights, the data, and the leading eigenvalues of the data's second moment."""

    method: Method
    weights: Any
    data: Data
    leading: Leading

    def in_units(self, unit: float) -> _Problem:
        """Return the equivalent problem for data divided by `unit`.

        Only the weights of a linear VAE depend on the unit of the data. For other methods `unit` is
        1, and the problem itself is returned.
        """
        if unit == 1.0:
            return self
        noise = self.method.objective.noise  # type: ignore[attr-defined]
        objective = LinearVAE(None if noise is None else noise / unit**2)
        return _Problem(
            replace(self.method, rule=objective, objective=objective),
            self.weights.in_units(1.0 / unit),
            self.data.in_units(unit),
            self.leading.times(unit**-2.0),
        )


def _unit(method: Method, data: Data) -> float:
    """Return the power of two by which data are divided before losses and directions are computed.

    For a linear VAE it is close to the standard deviation per feature. The decoder of a VAE has the
    unit of the data, so that products with the second moment of large data would overflow. The
    division changes the loss and its minimum by the same constant. For other methods it is 1.
    """
    if type(method.objective) is not LinearVAE or not 0.0 < data.trace < math.inf:
        return 1.0
    return 2.0 ** round(math.log2(data.trace / data.n_features) / 2)


def _loss_figures(
    method: Method,
    weights: Any,
    data: Data,
    leading: Leading,
    products: LossTerms,
    declared: bool,
) -> tuple[Estimate | None, Estimate | None, float]:
    """Return the loss, its global minimum, and the number by which their difference is divided.

    Loss and minimum are None if they are not known. `declared` says whether the objective itself
    returns them; otherwise they are computed by `verified_losses`. `products` are the terms of the
    loss, and `leading` the leading eigenvalues of the second moment `data`.
    """
    k, m = weights.encoder.shape
    if declared:
        objective = method.objective
        spectrum = _spectrum(leading, m, data)
        best = objective.minimum(spectrum, k)
        size = objective.size(spectrum)
        if best is None or not math.isfinite(best) or not leading.dense:
            return None, None, size
        found = float(to_numpy(objective.value(weights, data)))
        rounding = (
            8 * m * EPS * (abs(found) + abs(best) + data.trace) + math.sqrt(m) * data.uncertainty
        )
        return Estimate(found, rounding), Estimate(best, k * leading.error), size
    size = float(m) if isinstance(method.objective, LinearVAE) else max(data.trace, _TINY)
    value = own_value(method.objective, weights, data, products)
    rest = float(np.sum(leading.values[k:])) if leading.dense else None
    minimum = own_minimum(method.objective, leading.values[:k], data.trace, m, rest)
    # The minimum decreases with every leading eigenvalue while the trace is fixed.
    # Errors of single precision change the loss and its minimum nearly alike, see `gap_error`.
    most, least = leading.upper - data.uncertainty, leading.ritz + data.uncertainty
    if not leading.dense:
        most, least = _within_trace(leading.upper, data.trace), leading.ritz
    low, high = (own_minimum(method.objective, values, data.trace, m) for values in (most, least))
    if value is None or not all(map(math.isfinite, (low, minimum, high))):
        return None, None, size
    rounding = 8 * m * EPS * (abs(minimum) + size)
    rounding += gap_error(method.objective, weights, leading, data)
    if leading.dense:
        error = max(abs(high - minimum), abs(minimum - low)) + rounding
        return value, Estimate(minimum, error), size
    middle = Estimate.between(low, high)
    return value, Estimate(middle.value, middle.error + rounding), size


def _within_trace(upper: Vector, trace: float) -> Vector:
    """Return upper bounds on descending eigenvalues, lowered so that their sum is at most `trace`.

    `upper` are the given bounds, and `trace` is the sum of all eigenvalues.
    """
    left = trace - (np.cumsum(upper) - upper)
    return np.minimum(upper, np.maximum(left, 0.0))


def _gap(value: Estimate | None, minimum: Estimate | None, size: float) -> Estimate | None:
    if value is None or minimum is None:
        return None
    return Estimate((value.value - minimum.value) / size, (value.error + minimum.error) / size)


def _zero_latents(method: Method, leading: Leading, k: int) -> tuple[Vector, Vector]:
    """Return which of the k latents are zero at the optimum, and for which this is not known.

    Both are arrays of the numbers of latents, counted from 1. It is not known if a penalty differs
    from the eigenvalue by less than the error of the eigenvalue.
    """
    none = np.empty(0, dtype=int)
    if not method.objective.has_penalties:
        return none, none
    if not isinstance(method.objective, NonUniformL2):
        return method.objective.zero_latents(leading.values), none
    penalties = to_numpy(method.objective.penalties)
    order = np.argsort(penalties, kind="stable")  # the smallest penalty has the first component
    low, high, known = np.empty(k), np.empty(k), np.empty(k)
    low[order], high[order], known[order] = leading.ritz, leading.upper, leading.values[:k]
    free = penalties == 0.0  # without a penalty a latent is zero only if there is no variance
    zero = np.where(free, known <= 0.0, penalties >= high)
    nonzero = np.where(free, known > 0.0, penalties < low)
    return 1 + np.flatnonzero(zero), 1 + np.flatnonzero(~zero & ~nonzero)


def _rise(method: Method, weights: Any, products: LossTerms, data: Data) -> Estimate:
    lengths = np.maximum(np.array([norm(row) for row in weights.atoms]), _TINY)[:, None]
    variances = np.sum((products.decoded / lengths) * (weights.atoms / lengths), axis=1)
    variances = variances[_variance_order(method.objective, len(variances))]
    top = max(float(np.max(variances)), _TINY)
    rise = float(np.max(np.diff(variances), initial=-top))
    # Variances that differ by more than the error of single precision keep their order.
    unsure = max(rise + 2 * data.uncertainty, 0.0) - max(rise, 0.0)
    return Estimate(max(rise, 0.0) / top, 4 * data.n_features * EPS + unsure / top)


def _variance_order(objective: Any, k: int) -> Vector:
    if isinstance(objective, NonUniformL2):
        return np.argsort(to_numpy(objective.penalties), kind="stable")
    return np.asarray(objective.latent_order(k))


def _imbalance(weights: Any, m: int) -> Estimate:
    gram, code = weights.atoms @ weights.atoms.T, weights.encoder @ weights.encoder.T
    size = max(norm(gram), _TINY)
    return Estimate(norm(code - gram) / size, 4 * m * EPS * (1 + norm(code) / size))


def _stationarity(
    method: Method, weights: Any, data: Data, leading: Leading, products: LossTerms
) -> Estimate | None:
    """Return the norm of the update direction, divided by the curvature and the weights' norm.

    The curvature is an upper bound: a multiple of the largest eigenvalue of the second moment, plus
    a multiple of the largest penalty (see `_own_scale`). A norm of the weights below 1e-8 is
    replaced by 1e-8. The result is None for a linear VAE whose noise variance is below the rounding
    error of the total variance. Its gradient contains the inverse noise variance and would consist
    of rounding errors.
    """
    followed, m = method.expected(), data.n_features
    error = 8 * m * EPS
    if type(method.objective) is LinearVAE:
        given = method.objective.noise
        noise = given or math.exp(float(weights.log_noise[0, 0]))
        # Without variance a noise that is trained tends to zero, and no weights are stationary.
        if not noise > m * EPS * data.trace or (given is None and not data.varies):
            return None
        error = error * (1 + data.trace / noise) + 2 * data.uncertainty / noise
    else:
        error += 2 * data.uncertainty / max(float(leading.values[0]), _TINY)
    direction = _own_direction(followed, weights, products, data)
    if direction is None:
        direction = tuple(to_numpy(part) for part in followed.direction(weights, data))
    scale = _own_scale(followed, float(leading.values[0]), m)
    if scale is None:
        scale = followed.scale(_spectrum(leading, m, data))
    size = max(norm(np.array([norm(part) for part in weights])), 1e-8)
    length = norm(np.array([norm(part) for part in direction]))
    return Estimate(length / max(scale, _TINY) / size, error)


def _own_direction(
    rule: Any, weights: Any, products: LossTerms, data: Data
) -> tuple[Vector, ...] | None:
    """Return the update direction of a rule by its definition, one array per field of the weights.

    The result is None for rules that are not part of the package.
    """
    W, A = weights.encoder, weights.atoms
    M, G = products.code_moment, products.gram
    if type(rule) is GeneralizedHebbianRule:
        return (np.tril(M) @ W - products.encoded,)
    if type(rule) is BrockettRule:
        D = np.diag(to_numpy(rule.ranks))
        return (2 * D @ products.encoded - (D @ M + M @ D) @ W,)
    encoder, atoms = 2 * (G @ products.encoded - products.decoded), 2 * (M @ A - products.encoded)
    if type(rule) is RotationAugmentedRule:
        turn = (np.triu(M, 1) - np.tril(M, -1)) / 2
        return _gathered(weights, encoder - turn @ W, atoms - turn @ A)
    # What remains is descent on an objective, along its gradient.
    if type(rule) is Reconstruction:
        return _gathered(weights, encoder, atoms)
    if type(rule) is NonUniformL2:
        decay = 2 * to_numpy(rule.penalties)[:, None]
        return _gathered(weights, encoder + decay * W, atoms + decay * A)
    if type(rule) is ExpectedNestedDropout:
        return _gathered(weights, *_nested_gradient(to_numpy(rule.prior), weights, products))
    if type(rule) is LinearVAE:
        return _elbo_gradient(rule.noise, weights, products, data, (encoder / 2, atoms / 2))
    return None


def _gathered(weights: Any, encoder: Vector, atoms: Vector) -> tuple[Vector, ...]:
    """Return one array per field of the weights from the gradients of encoder and decoder.

    Untied weights have both gradients, tied weights their mean.
    """
    return (encoder, atoms) if len(weights) == 2 else ((encoder + atoms) / 2,)


def _nested_gradient(prior: Vector, weights: Any, products: LossTerms) -> tuple[Vector, Vector]:
    """Return the gradients of the expected nested-dropout loss for encoder and decoder.

    Nested dropout keeps the first b latents, where the prefix length b is random. `prior` contains
    the probability of each prefix length; the gradients of the losses of all prefixes are
    multiplied by these probabilities and summed.
    """
    encoder, atoms = np.zeros_like(weights.encoder), np.zeros_like(weights.atoms)
    for b, p in enumerate(prior, start=1):
        M, G = products.code_moment[:b, :b], products.gram[:b, :b]
        encoder[:b] += 2 * p * (G @ products.encoded[:b] - products.decoded[:b])
        atoms[:b] += 2 * p * (M @ weights.atoms[:b] - products.encoded[:b])
    return encoder, atoms


def _elbo_gradient(
    given: float | None,
    weights: Any,
    products: LossTerms,
    data: Data,
    halves: tuple[Vector, Vector],
) -> tuple[Vector, ...]:
    """Return the gradient of a linear VAE's loss, one array per field of the weights.

    `given` is the fixed noise variance, or None if it is learned. `halves` contains half of the
    gradients of the reconstruction loss for encoder and decoder.
    """
    m = data.n_features
    noise = math.exp(float(weights.log_noise[0, 0])) if given is None else given
    variances = np.exp(weights.log_variances)
    lengths = np.diag(products.gram)[:, None]
    misfit = residual_variance(weights.encoder, weights.atoms, data, products).value
    slope = 0.0 if given is not None else m - (misfit + float(np.sum(variances * lengths))) / noise
    return (
        halves[0] / noise + products.encoded,
        (halves[1] + variances * weights.atoms) / noise,
        (variances * (1 + lengths / noise) - 1) / 2,
        np.full((1, 1), slope / 2),
    )


def _own_scale(rule: Any, top: float, m: int) -> float | None:
    """Return the bound on the curvature by which the norm of an update direction is divided.

    It is a multiple of the largest eigenvalue `top` of the second moment, plus a multiple of the
    largest penalty if there are penalties. For a linear VAE it is the number of features m. The
    result is None for rules that are not part of the package.
    """
    if type(rule) is GeneralizedHebbianRule:
        return 2 * top
    if type(rule) is BrockettRule:
        return 4 * top * float(np.max(to_numpy(rule.ranks)))
    if type(rule) is RotationAugmentedRule:
        return 4 * top
    if type(rule) is NonUniformL2:
        return 4 * top + 4 * float(np.max(to_numpy(rule.penalties)))
    if type(rule) is LinearVAE:
        return float(m)
    return 4 * top if type(rule) in OWN_OBJECTIVES else None


def _spectrum(leading: Leading, m: int, data: Data) -> Spectrum:
    """Return a `Spectrum` with the known eigenvalues, zeros as eigenvectors, and the trace.

    Objectives and rules take their eigenvalues in this form.
    """
    q = min(len(leading.values), m)
    return Spectrum(leading.values[:q], np.zeros((m, q)), data.trace)


def _conditioning(method: Method, leading: Leading) -> float | None:
    """Return the condition number of the Hessian at the optimum, without its zero eigenvalues.

    The result is None if the objective does not know its Hessian, if not all eigenvalues of the
    second moment were computed, or if products in single precision make the smallest one uncertain.
    """
    if not leading.dense:
        return None
    curvatures = method.objective.hessian_eigenvalues(leading.values)
    if curvatures is None:
        return None
    positive = curvatures[curvatures > 1e-12 * curvatures[-1]]
    if not positive.size or positive[0] <= IDENTIFIABLE * leading.uncertainty:
        return None
    return float(positive[-1] / positive[0])


def _epochs(
    method: Method,
    leading: Leading,
    k: int,
    data: Data,
    learning_rate: float | None,
    training: DescentSettings,
) -> float | None:
    """Return the predicted number of training epochs until the alignment distance is `REACHED`.

    This distance is the mean squared sine between principal axes and nearest decoder columns. The
    result is None if the rate of convergence is not known or is zero.
    """
    if not leading.dense or data.trace <= 0.0:
        return None
    if learning_rate is None:
        spectrum = _spectrum(leading, data.n_features, data).leading(k)
        learning_rate = training.rate(method.rule.curvature(spectrum))
    rate = method.expected().alignment_rate(leading.values, k)
    if rate is None:
        return None
    epochs = predicted_epochs(rate, learning_rate, training.effective_momentum, REACHED)
    return epochs if epochs <= MOST_EPOCHS else None


def _sampling(method: Method, leading: Leading, k: int, data: Data) -> Sampling | str:
    """Return which of the k components are separated from sampling noise.

    If this cannot be tested, a sentence is returned that says why.
    """
    if not leading.dense:
        return "Not all eigenvalues were computed, because there are more than 1024 features."
    if data.weight is None:
        return "The rows were not centred, but the theory of sampling noise holds for covariances."
    if not data.weight > 2.0 or not data.trace > 0.0:
        return "At least three rows, not all equal, are needed to judge sampling noise."
    # Eigenvalues below their rounding error are not sampling noise of the data.
    known = leading.values > leading.value_errors(len(leading.values))
    values, rows = np.where(known, leading.values, 0.0), data.weight - 1.0
    if method.expected().aligns:
        return Sampling(rows, separated_components(values, rows, k), None)
    if k == data.n_features:
        return "There are as many components as features, so the subspace is the whole space."
    turned = subspace_sampling_error(values, rows, k)
    return Sampling(rows, components_above_noise(values, rows, k), turned)


def _evidence(
    method: Method,
    leading: Leading,
    k: int,
    data: Data,
    loss: tuple[Estimate | None, Estimate | None, float],
    shift: float,
) -> dict[str, Any]:
    """Return the numbers from which the measured values can be computed again, by name.

    `loss` contains the loss, its minimum, and the number by which their difference is divided. Both
    were computed after a division of the data by `_unit`, which reduces them by a constant; this
    constant, `shift`, is added again.
    """
    value, minimum, size = loss
    objective = method.objective
    found: dict[str, Any] = {
        "eigenvalues": leading.values[: k + 1],
        "eigenvalue_error": leading.error,
        "eigenvalue_after_k_at_most": leading.outside,
        "all_eigenvalues_computed": leading.dense,
        "trace": data.trace,
        "n_rows": data.weight,
        "error_of_single_precision": data.uncertainty,
        "misalignments": leading.misalignments,
        "loss": None if value is None else value.value + shift,
        "minimum": None if minimum is None else minimum.value + shift,
        "loss_size": size,
    }
    if leading.dense:
        found["spectrum"] = leading.values
    if isinstance(objective, NonUniformL2):
        found["penalties"] = to_numpy(objective.penalties)
    if isinstance(objective, ExpectedNestedDropout):
        found["prior"] = to_numpy(objective.prior)
    return found
