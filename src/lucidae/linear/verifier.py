"""Measured values for the certificate of a linear autoencoder, from weights and data alone.

Losses, minima and directions are those of `references`, which share no code with the solvers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from lucidae.arrays import as_double, to_numpy
from lucidae.counting import ComponentCount
from lucidae.linear.attributes import attribute_difference, verified_counts
from lucidae.linear.methods import Method
from lucidae.linear.model import Model
from lucidae.linear.optimizers import DescentSettings
from lucidae.linear.probe import EPS, Estimate
from lucidae.linear.references import Losses, LossTerms, Reference, reference_of
from lucidae.linear.theory import predicted_epochs
from lucidae.linear.verified_data import Data, norm
from lucidae.linear.verified_spectrum import IDENTIFIABLE, Leading, leading_eigenpairs
from lucidae.linear.weights import map_fields
from lucidae.rows.spectrum import Spectrum
from lucidae.sampling import components_above_noise, separated_components, subspace_sampling_error

__all__ = ["LinearFigures", "measure"]

Vector = np.ndarray[Any, Any]

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
    # curvature (see `Reference.scale`)
    stationarity: Estimate | None
    # loss minus its global minimum, divided by the total variance (by the number of features for a
    # linear VAE)
    gap: Estimate | None
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
    """Return all measured values of weights that are float64 NumPy arrays."""
    k, m = weights.encoder.shape
    data = data.remembering()
    leading = leading_eigenpairs(data, weights.atoms)
    reference = reference_of(method.objective)
    unit = reference.unit(data)
    terms, losses, stationarity = _trained(method, weights, data, leading, unit)
    zero, uncertain = reference.zero_latents(leading, k)
    evidence = _evidence(leading, k, data, losses, m * math.log(unit)) | reference.evidence()
    return LinearFigures(
        method=method,
        k=k,
        n_features=m,
        tolerance=training.tol,
        leading=leading,
        rise=_rise(reference, weights, terms, data) if method.expected().orders else None,
        stationarity=stationarity,
        gap=losses.gap,
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
        evidence=evidence,
    )


def _trained(
    method: Method, weights: Any, data: Data, leading: Leading, unit: float
) -> tuple[LossTerms, Losses, Estimate | None]:
    """Return products of the weights, the loss and the size of the update direction.

    They are those of the equivalent problem for data divided by `unit`, which is 1 unless the
    weights have a unit, as those of a linear VAE.
    """
    objective, rule = method.objective, method.expected()
    if unit != 1.0:
        objective = rule = reference_of(objective).in_units(unit)
        weights, data = weights.in_units(1.0 / unit), data.in_units(unit)
        leading = leading.times(unit**-2.0)
    terms = LossTerms(weights.encoder, weights.atoms, data)
    losses = reference_of(objective).losses(weights, terms, data, leading)
    return terms, losses, _stationarity(reference_of(rule), weights, terms, data, leading)


def _rise(reference: Any, weights: Any, terms: LossTerms, data: Data) -> Estimate:
    lengths = np.maximum(np.array([norm(row) for row in weights.atoms]), _TINY)[:, None]
    variances = np.sum((terms.decoded / lengths) * (weights.atoms / lengths), axis=1)
    variances = variances[reference.latent_order(len(variances))]
    top = max(float(np.max(variances)), _TINY)
    rise = float(np.max(np.diff(variances), initial=-top))
    # Variances that differ by more than the error of single precision keep their order.
    unsure = max(rise + 2 * data.uncertainty, 0.0) - max(rise, 0.0)
    return Estimate(max(rise, 0.0) / top, 4 * data.n_features * EPS + unsure / top)


def _imbalance(weights: Any, m: int) -> Estimate:
    gram, code = weights.atoms @ weights.atoms.T, weights.encoder @ weights.encoder.T
    size = max(norm(gram), _TINY)
    return Estimate(norm(code - gram) / size, 4 * m * EPS * (1 + norm(code) / size))


def _stationarity(
    reference: Reference, weights: Any, terms: LossTerms, data: Data, leading: Leading
) -> Estimate | None:
    """Return the norm of the update direction, divided by the curvature and the weights' norm.

    A norm of the weights below 1e-8 is replaced by 1e-8. The result is None if the direction would
    consist of rounding errors.
    """
    error = reference.direction_error(weights, leading, data)
    if error is None:
        return None
    direction = reference.direction(weights, terms, data)
    size = max(norm(np.array([norm(part) for part in weights])), 1e-8)
    length = norm(np.array([norm(part) for part in direction]))
    return Estimate(length / max(reference.scale(leading, data), _TINY) / size, error)


def _conditioning(method: Method, leading: Leading) -> float | None:
    """Return the condition number of the Hessian at the optimum, without its zero eigenvalues."""
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

    This distance is the mean squared sine between principal axes and nearest decoder columns.
    """
    if not leading.dense or data.trace <= 0.0:
        return None
    if learning_rate is None:
        zeros = np.zeros((data.n_features, k))  # eigenvectors, which no curvature depends on
        spectrum = Spectrum(leading.values[:k], zeros, data.trace)
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


def _evidence(leading: Leading, k: int, data: Data, losses: Losses, shift: float) -> dict[str, Any]:
    """Return the numbers from which the measured values can be computed again, by name.

    The losses were computed for data in another unit, which reduces them by the constant `shift`.
    """
    value, minimum, size = losses
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
    return found | ({"spectrum": leading.values} if leading.dense else {})
