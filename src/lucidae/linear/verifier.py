"""The figures of a certificate, computed from weights and data alone.

The losses, their minima and the directions of the rules are written here a second time, by naive
formulas, so that what a solver gets wrong is not repeated in its certificate. Methods that were
registered from outside are judged by the value and the minimum that their objective declares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from lucidae.arrays import as_double, to_numpy
from lucidae.linear.attributes import attribute_difference
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
from lucidae.linear.verified_spectrum import Data, Leading, leading_eigenpairs, norm
from lucidae.linear.weights import map_fields
from lucidae.sampling import components_above_noise, separated_components, subspace_sampling_error

__all__ = ["LinearFigures", "measure"]

Vector = np.ndarray[Any, Any]

OWN_OBJECTIVES = (Reconstruction, NonUniformL2, ExpectedNestedDropout, LinearVAE)
"""Objectives whose value and minimum the verifier computes itself."""

REACHED = 1e-3
"""Alignment distance up to which `epochs` are predicted."""

_TINY = float(np.finfo(float).tiny)


class Sampling(NamedTuple):
    """Which components are separated from sampling noise.

    Parameters
    ----------
    rows : float
        Number of rows less one, because the mean was estimated.
    separated : ndarray of bool of shape (k,)
        For methods that promise axes, the components that are separated; for others, those whose
        eigenvalues exceed the noise.
    turned : float or None
        For methods that promise the subspace alone, the expected mean squared sine of the angles
        between the subspaces of the sample and of the population.
    """

    rows: float
    separated: Vector
    turned: float | None


@dataclass(frozen=True, slots=True)
class LinearFigures:
    """Figures about given weights, from which the claims follow. None: not known or not promised.

    Parameters
    ----------
    method : Method
        What the weights were trained for.
    k, n_features : int
        Number of latents and of features.
    tolerance : float
        The tolerance of the stopping rule.
    leading : Leading
        The leading eigenvalues, and how far the decoder is from the principal axes.
    rise : Estimate or None
        Largest relative increase of the variance from one latent to the next.
    stationarity : Estimate or None
        ‖direction‖ / (scale · ‖weights‖).
    gap : Estimate or None
        Excess of the loss over its minimum, relative to the size of the loss; it may be negative.
    declared : bool
        Whether the gap is that of an objective from outside, by its own value and minimum.
    balance : Estimate or None
        ‖W₁W₁ᵀ − W₂ᵀW₂‖ / ‖W₂ᵀW₂‖.
    zero_latents, uncertain_latents : ndarray of int
        Latents, counted from 1, that are zero at the optimum, and those for which the difference of
        penalty and eigenvalue is below its error.
    conditioning : float or None
        Condition number of the Hessian at the optimum, zero eigenvalues left out.
    epochs : float or None
        Predicted epochs of descent to an alignment distance of 1e-3.
    attributes : float or None
        Largest relative difference of fitted attributes to those that follow from weights and data.
    moment : Estimate or None
        Difference of the second moment to the rows along random directions.
    sampling : Sampling or str
        Which components are separated from sampling noise, or why this is not known.
    from_elsewhere : bool
        Whether the weights were given without an estimator, so that no advice on training applies.
    evidence : dict
        The numbers from which the figures can be computed again.
    """

    method: Method
    k: int
    n_features: int
    tolerance: float
    leading: Leading
    rise: Estimate | None
    stationarity: Estimate | None
    gap: Estimate | None
    declared: bool
    balance: Estimate | None
    zero_latents: Vector
    uncertain_latents: Vector
    conditioning: float | None
    epochs: float | None
    attributes: float | None
    moment: Estimate | None = None
    sampling: Sampling | str = ""
    from_elsewhere: bool = False
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
    """Measure the figures of given weights on given data.

    Parameters
    ----------
    method : Method
        The method, with its penalties or prior.
    weights : weights
        Encoder and decoder as trained, latents in their own order.
    data : Data
        The second moment, see `data_of`.
    training : DescentSettings
        Tolerance and momentum of the fit.
    learning_rate : float, optional
        The step size that was used, for the prediction of epochs; by default the automatic one.
    model : Model, optional
        The fitted model, whose attributes are compared with the weights and the data.
    wanted : int, float or None
        The argument `n_components` of the fit, where `model` is given.
    running : bool, default=False
        Whether mean and variances of the model are running averages over a stream.
    """
    weights = map_fields(lambda rows: to_numpy(as_double(rows)), weights)
    # A figure of weights that overflow is infinite or NaN, and its claim fails.
    with np.errstate(over="ignore", invalid="ignore"):
        return _figures(method, weights, data, training, learning_rate, model, wanted, running)


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
    """Return all figures, as described in `measure`; the weights are NumPy arrays."""
    k, m = weights.encoder.shape
    leading = leading_eigenpairs(data, weights.atoms)
    scaled = _Problem(method, weights, data, leading).in_units(_unit(method, data))
    products = _Products.of(scaled.weights.encoder, scaled.weights.atoms, scaled.data)
    declared = type(method.objective) not in OWN_OBJECTIVES
    value, minimum, size = _loss_figures(*scaled, products, declared)
    zero, uncertain = _zero_latents(method, leading, k)
    return LinearFigures(
        method=method,
        k=k,
        n_features=m,
        tolerance=training.tol,
        leading=leading,
        rise=_rise(method, weights, products, m) if method.expected().orders else None,
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
        from_elsewhere=model is None,
        evidence=_evidence(method, leading, k, data, (value, minimum, size)),
    )


class _Problem(NamedTuple):
    """A method, its weights, the data, and what is known about their eigenvalues."""

    method: Method
    weights: Any
    data: Data
    leading: Leading

    def in_units(self, unit: float) -> _Problem:
        """Return the same problem for data divided by `unit`."""
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
    """Return the unit of length in which losses and directions are computed: a power of two.

    The weights of a linear VAE have the unit of the data, so that products with Σ would overflow
    for large data. A change of units adds the same constant to its loss and to the minimum.
    """
    if type(method.objective) is not LinearVAE or not 0.0 < data.trace < math.inf:
        return 1.0
    return 2.0 ** round(math.log2(data.trace / data.n_features) / 2)


class _Products:
    """Products of weights with Σ, and the terms of the reconstruction loss per pair of latents."""

    def __init__(self, encoded: Vector, decoded: Vector, encoder: Vector, atoms: Vector) -> None:
        self.encoded, self.decoded = encoded, decoded
        self.code_moment, self.gram = encoded @ encoder.T, atoms @ atoms.T
        self.cross = np.sum(encoded * atoms, axis=1)

    @classmethod
    def of(cls, encoder: Vector, atoms: Vector, data: Data) -> _Products:
        """Multiply both layers with Σ."""
        both = data.apply(np.concatenate([encoder, atoms]))
        return cls(both[: len(encoder)], both[len(encoder) :], encoder, atoms)


def _loss_figures(
    method: Method,
    weights: Any,
    data: Data,
    leading: Leading,
    products: _Products,
    declared: bool,
) -> tuple[Estimate | None, Estimate | None, float]:
    """Return the loss and its minimum, with errors, and what their difference is divided by."""
    k, m = weights.encoder.shape
    if declared:
        objective = method.objective
        spectrum = _spectrum(leading, m, data)
        best = objective.minimum(spectrum, k)
        size = objective.size(spectrum)
        if best is None or not math.isfinite(best) or not leading.dense:
            return None, None, size
        found = float(to_numpy(objective.value(weights, data)))
        rounding = 8 * m * EPS * (abs(found) + abs(best) + data.trace)
        return Estimate(found, rounding), Estimate(best, k * leading.error), size
    size = float(m) if isinstance(method.objective, LinearVAE) else max(data.trace, _TINY)
    value = _own_value(method.objective, weights, data, products)
    rest = float(np.sum(leading.values[k:])) if leading.dense else None
    minimum = _own_minimum(method.objective, leading.values[:k], data.trace, m, rest)
    # The minimum decreases with every leading eigenvalue while the trace is fixed.
    low, high = (
        _own_minimum(method.objective, values, data.trace, m)
        for values in (leading.upper, leading.ritz)
    )
    if value is None or not all(map(math.isfinite, (low, minimum, high))):
        return None, None, size
    rounding = 8 * m * EPS * (abs(minimum) + size)
    if leading.dense:
        error = max(abs(high - minimum), abs(minimum - low)) + rounding
        return value, Estimate(minimum, error), size
    middle = Estimate.between(low, high)
    return value, Estimate(middle.value, middle.error + rounding), size


def _gap(value: Estimate | None, minimum: Estimate | None, size: float) -> Estimate | None:
    if value is None or minimum is None:
        return None
    return Estimate((value.value - minimum.value) / size, (value.error + minimum.error) / size)


def _own_value(objective: Any, weights: Any, data: Data, products: _Products) -> Estimate | None:
    """Return the loss of the weights by its definition."""
    encoder, atoms = weights.encoder, weights.atoms
    if isinstance(objective, ExpectedNestedDropout):
        prior = to_numpy(objective.prior)
        parts = [_prefix_loss(products, b, data.trace, data.n_features) for b in _prefixes(prior)]
        value = sum(p * part.value for p, part in zip(prior, parts, strict=True))
        return Estimate(float(value), max(part.error for part in parts))
    whole = _residual_variance(encoder, atoms, data, products)
    if isinstance(objective, NonUniformL2):
        penalties = to_numpy(objective.penalties)
        decay = float(penalties @ (np.sum(encoder**2, axis=1) + np.sum(atoms**2, axis=1)))
        return Estimate(whole.value + decay, whole.error + 4 * data.n_features * EPS * decay)
    if isinstance(objective, LinearVAE):
        return _negative_elbo(objective, weights, whole, products)
    return whole


def _prefixes(prior: Vector) -> range:
    return range(1, len(prior) + 1)


def _prefix_loss(products: _Products, b: int, trace: float, m: int) -> Estimate:
    """Return tr((I − W₂ᵇW₁ᵇ)Σ(I − W₂ᵇW₁ᵇ)ᵀ) for the first b latents."""
    square = products.gram[:b, :b] * products.code_moment[:b, :b]
    cross = products.cross[:b]
    size = trace + 2 * float(np.sum(np.abs(cross))) + float(np.sum(np.abs(square)))
    return Estimate(trace - 2 * float(np.sum(cross)) + float(np.sum(square)), 4 * m * EPS * size)


def _residual_variance(encoder: Vector, atoms: Vector, data: Data, products: _Products) -> Estimate:
    """Return tr((I − W₂W₁)Σ(I − W₂W₁)ᵀ), from the m × m matrix where it is there."""
    if data.matrix is None:
        return _prefix_loss(products, len(encoder), data.trace, data.n_features)
    m = data.n_features
    residual = np.eye(m) - atoms.T @ encoder
    image = residual @ data.matrix
    value = float(np.sum(image * residual))
    # Σ itself is known to m·ε·σ₁², and each of the two products adds m rounding errors.
    size = float(np.sum(np.abs(image) * np.abs(residual)))
    known = m * EPS * norm(residual) * norm(image)
    return Estimate(value, 4 * m * EPS * size + known)


def _negative_elbo(
    objective: LinearVAE, weights: Any, whole: Estimate, products: _Products
) -> Estimate | None:
    """Return −ELBO: Gaussian misfit with noise s², plus the divergence of q(z|x) from N(0, I)."""
    k, m = weights.encoder.shape
    given = objective.noise
    log_noise = float(weights.log_noise[0, 0]) if given is None else math.log(given)
    noise, logs = math.exp(log_noise), weights.log_variances[:, 0]
    if not noise > 0.0:
        return None
    variances = np.exp(logs)
    spread = float(variances @ np.diag(products.gram))
    divergence = float(np.sum(np.diag(products.code_moment) + variances - logs)) - k
    fit = m * math.log(2 * math.pi) + m * log_noise + (whole.value + spread) / noise
    rounding = 8 * m * EPS * (abs(fit) + abs(divergence) + m * abs(log_noise))
    return Estimate((fit + divergence) / 2, whole.error / (2 * noise) + rounding)


def _own_minimum(
    objective: Any, values: Vector, trace: float, m: int, rest: float | None = None
) -> float:
    """Return the global minimum for given leading eigenvalues and the sum of the others.

    Bao et al. 2020: Theorem 3 and Appendix F; each by minimising the loss of one latent.
    """
    rest = max(trace - float(np.sum(values)), 0.0) if rest is None else rest
    if isinstance(objective, NonUniformL2):
        # A latent of squared length a on its axis has the loss σ²(1 − a)² + 2λa.
        penalties = np.sort(to_numpy(objective.penalties))
        safe = np.where(values > 0.0, values, 1.0)
        length = np.where(values > 0.0, np.maximum(1 - penalties / safe, 0.0), 0.0)
        return float(np.sum(values * (1 - length) ** 2 + 2 * penalties * length)) + rest
    if isinstance(objective, ExpectedNestedDropout):
        prior = to_numpy(objective.prior)
        return float(sum(p * (trace - np.sum(values[:b])) for b, p in enumerate(prior, start=1)))
    if isinstance(objective, LinearVAE):
        return _vae_minimum(objective.noise, values, rest, m)
    return rest


def _vae_minimum(given: float | None, values: Vector, rest: float, m: int) -> float:
    """Return −log-likelihood of N(0, C) with C = max(σ², s²) in the subspace and s² outside.

    Where no noise variance is given and the variance `rest` outside of the subspace is zero up to
    rounding, the likelihood is not bounded.
    """
    k = len(values)
    noise = rest / max(m - k, 1) if given is None else given
    if noise <= (0.0 if given is not None else m * EPS * (float(np.sum(values)) + rest)):
        return -math.inf
    model = np.append(np.maximum(values, noise), np.full(m - k, noise))
    data = np.append(values, np.full(m - k, rest / max(m - k, 1)))
    return float(m * math.log(2 * math.pi) + np.sum(np.log(model) + data / model)) / 2


def _zero_latents(method: Method, leading: Leading, k: int) -> tuple[Vector, Vector]:
    """Return the latents that are zero at the optimum, and those that cannot be decided."""
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


def _rise(method: Method, weights: Any, products: _Products, m: int) -> Estimate:
    lengths = np.maximum(np.array([norm(row) for row in weights.atoms]), _TINY)[:, None]
    variances = np.sum((products.decoded / lengths) * (weights.atoms / lengths), axis=1)
    variances = variances[_variance_order(method.objective, len(variances))]
    top = max(float(np.max(variances)), _TINY)
    return Estimate(float(np.max(np.diff(variances), initial=0.0)) / top, 4 * m * EPS)


def _variance_order(objective: Any, k: int) -> Vector:
    if isinstance(objective, NonUniformL2):
        return np.argsort(to_numpy(objective.penalties), kind="stable")
    return np.asarray(objective.latent_order(k))


def _imbalance(weights: Any, m: int) -> Estimate:
    gram, code = weights.atoms @ weights.atoms.T, weights.encoder @ weights.encoder.T
    size = max(norm(gram), _TINY)
    return Estimate(norm(code - gram) / size, 4 * m * EPS * (1 + norm(code) / size))


def _stationarity(
    method: Method, weights: Any, data: Data, leading: Leading, products: _Products
) -> Estimate | None:
    """Return ‖direction‖ / (scale · ‖weights‖); weights below 1e-8 are compared with 1e-8.

    The gradient of a linear VAE is divided by its noise variance: it has no digits where that is
    below the rounding error of the total variance.
    """
    followed, m = method.expected(), data.n_features
    error = 8 * m * EPS
    if type(method.objective) is LinearVAE:
        noise = method.objective.noise or math.exp(float(weights.log_noise[0, 0]))
        if not noise > m * EPS * data.trace:
            return None
        error *= 1 + data.trace / noise
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
    rule: Any, weights: Any, products: _Products, data: Data
) -> tuple[Vector, ...] | None:
    """Return the direction of a rule of the package by its definition; None for others."""
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
    """Return the change of each field: tied weights take the mean over both layers."""
    return (encoder, atoms) if len(weights) == 2 else ((encoder + atoms) / 2,)


def _nested_gradient(prior: Vector, weights: Any, products: _Products) -> tuple[Vector, Vector]:
    """Sum the gradients over all prefix lengths b, each with its probability."""
    encoder, atoms = np.zeros_like(weights.encoder), np.zeros_like(weights.atoms)
    for b, p in enumerate(prior, start=1):
        M, G = products.code_moment[:b, :b], products.gram[:b, :b]
        encoder[:b] += 2 * p * (G @ products.encoded[:b] - products.decoded[:b])
        atoms[:b] += 2 * p * (M @ weights.atoms[:b] - products.encoded[:b])
    return encoder, atoms


def _elbo_gradient(
    given: float | None,
    weights: Any,
    products: _Products,
    data: Data,
    halves: tuple[Vector, Vector],
) -> tuple[Vector, ...]:
    """Return the gradient of −ELBO from half the gradient of the reconstruction loss."""
    m = data.n_features
    noise = math.exp(float(weights.log_noise[0, 0])) if given is None else given
    variances = np.exp(weights.log_variances)
    lengths = np.diag(products.gram)[:, None]
    misfit = _residual_variance(weights.encoder, weights.atoms, data, products).value
    slope = 0.0 if given is not None else m - (misfit + float(np.sum(variances * lengths))) / noise
    return (
        halves[0] / noise + products.encoded,
        (halves[1] + variances * weights.atoms) / noise,
        (variances * (1 + lengths / noise) - 1) / 2,
        np.full((1, 1), slope / 2),
    )


def _own_scale(rule: Any, top: float, m: int) -> float | None:
    """Return the size with which a direction is compared; None for rules from outside."""
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
    """Return the eigenvalues in the form that objectives and rules ask for."""
    q = min(len(leading.values), m)
    return Spectrum(leading.values[:q], np.zeros((m, q)), data.trace)


def _conditioning(method: Method, leading: Leading) -> float | None:
    """Return the condition number that the objective declares; it is reported and not judged."""
    if not leading.dense:
        return None
    curvatures = method.objective.hessian_eigenvalues(leading.values)
    if curvatures is None:
        return None
    positive = curvatures[curvatures > 1e-12 * curvatures[-1]]
    return float(positive[-1] / positive[0]) if positive.size else None


def _epochs(
    method: Method,
    leading: Leading,
    k: int,
    data: Data,
    learning_rate: float | None,
    training: DescentSettings,
) -> float | None:
    """Return the epochs that theory predicts; they are reported and not judged."""
    if not leading.dense or data.trace <= 0.0:
        return None
    if learning_rate is None:
        spectrum = _spectrum(leading, data.n_features, data).leading(k)
        learning_rate = training.rate(method.rule.curvature(spectrum))
    rate = method.expected().alignment_rate(leading.values, k)
    if rate is None:
        return None
    epochs = predicted_epochs(rate, learning_rate, training.effective_momentum, REACHED)
    return epochs if math.isfinite(epochs) else None


def _sampling(method: Method, leading: Leading, k: int, data: Data) -> Sampling | str:
    """Return which components are separated from sampling noise, or why it is not known."""
    if not leading.dense:
        return "Not all eigenvalues were computed, because there are more than 1024 features."
    if data.weight is None:
        return "The rows were not centred, and the theory is one of covariances."
    if not data.weight > 2.0 or not data.trace > 0.0:
        return "At least three rows that differ are needed."
    # Eigenvalues below their rounding error are no noise of the data.
    values, rows = np.where(leading.values > leading.error, leading.values, 0.0), data.weight - 1.0
    if method.expected().aligns:
        return Sampling(rows, separated_components(values, rows, k), None)
    if k == data.n_features:
        return "The subspace contains all features, so that no sample can change it."
    turned = subspace_sampling_error(values, rows, k)
    return Sampling(rows, components_above_noise(values, rows, k), turned)


def _evidence(
    method: Method,
    leading: Leading,
    k: int,
    data: Data,
    loss: tuple[Estimate | None, Estimate | None, float],
) -> dict[str, Any]:
    """Return the numbers from which the figures can be computed again."""
    value, minimum, size = loss
    objective = method.objective
    found: dict[str, Any] = {
        "eigenvalues": leading.values[: k + 1],
        "eigenvalue_error": leading.error,
        "eigenvalue_after_k_at_most": leading.outside,
        "all_eigenvalues_computed": leading.dense,
        "trace": data.trace,
        "n_rows": data.weight,
        "misalignments": leading.misalignments,
        "loss": None if value is None else value.value,
        "minimum": None if minimum is None else minimum.value,
        "loss_size": size,
    }
    if leading.dense:
        found["spectrum"] = leading.values
    if isinstance(objective, NonUniformL2):
        found["penalties"] = to_numpy(objective.penalties)
    if isinstance(objective, ExpectedNestedDropout):
        found["prior"] = to_numpy(objective.prior)
    return found
