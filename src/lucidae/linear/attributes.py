"""Checks of fitted attributes: against weights and data, and for overflow."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from lucidae.arrays import Array, as_double, namespace, to_numpy
from lucidae.counting import CRITERIA, ComponentCount, count_wanted, is_criterion
from lucidae.linear.model import Model
from lucidae.linear.probe import EPS, FEWEST_ROUNDINGS
from lucidae.linear.verified_data import Data
from lucidae.linear.verified_spectrum import Leading

__all__ = [
    "attribute_difference",
    "check_range",
    "finite",
    "mean_difference",
    "verified_counts",
]

Vector = np.ndarray[Any, Any]
AnyMethod = TypeVar("AnyMethod", bound=Callable[..., Array])

SUMMED = 1e4
"""Largest number of rounding errors that are granted to a mean of many rows."""

_TINY = float(np.finfo(float).tiny)


def check_range(variance: float, reference: Array) -> None:
    """Raise a ValueError if the total variance of the data overflows or underflows their dtype."""
    if variance == 0.0 or in_range(variance, reference):
        return
    small = variance < 1.0
    raise ValueError(
        f"the variance of X is {variance:.3g}, which is {'below' if small else 'above'} the range "
        f"of its dtype {reference.dtype}. Give X as float64, or "
        f"{'multiply' if small else 'divide'} it by a constant first."
    )


def in_range(variance: float, reference: Array) -> bool:
    """Tell whether a positive number is a normal number of the dtype of an array."""
    limits = namespace(reference).finfo(reference.dtype)
    return float(limits.smallest_normal) <= variance <= float(limits.max)


def finite(name: str) -> Callable[[AnyMethod], AnyMethod]:
    """Return a decorator of methods that return an array; overflow raises an error."""

    def decorate(method: AnyMethod) -> AnyMethod:
        @wraps(method)
        def checked(*args: Any, **kwargs: Any) -> Array:
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                values = method(*args, **kwargs)
            xp = namespace(values)
            if bool(xp.all(xp.isfinite(values))):
                return values
            raise ValueError(
                f"{name} overflow {values.dtype}: give X as float64, or fit again with X divided "
                "by a constant."
            )

        return checked  # type: ignore[return-value]

    return decorate


def attribute_difference(
    model: Model | None, weights: Any, data: Data, leading: Leading, wanted: Any, running: bool
) -> float | None:
    """Return the largest relative difference of a model's attributes to their recomputed values.

    The values are computed anew from the weights and the data.
    """
    if model is None:
        return None
    k = len(weights.encoder)
    same = model.components.shape[0] == k == model.encoder.shape[0] == model.atoms.shape[0]
    if not same or not _wanted_number(k, wanted, leading, data.weight):
        return math.inf
    encoder, atoms, components, variances = (
        to_numpy(as_double(part))
        for part in (model.encoder, model.atoms, model.components, model.variances)
    )
    if not all(np.all(np.isfinite(part)) for part in (encoder, atoms, components, variances)):
        return math.inf
    of_weights = _difference_to_weights(encoder, atoms, components, weights)
    return of_weights if running else max(of_weights, _difference_to_data(model, data))


def verified_count(
    wanted: Any, leading: Leading, weight: float, factor: float = 1.0
) -> ComponentCount:
    """Return the number of components that a criterion finds, from the verifier's eigenvalues.

    `wanted`, the estimator's argument `n_components`, names the criterion. Eigenvalues of at most
    `factor` times their rounding error are set to zero.
    """
    values = np.where(leading.values > factor * leading.error, leading.values, 0.0)
    return count_wanted(wanted, values, weight, len(values))


def verified_counts(
    wanted: Any, leading: Leading, weight: float | None
) -> tuple[ComponentCount, ...] | str | None:
    """Return the numbers of components that all criteria find, from the verifier's eigenvalues.

    The criterion `wanted`, which the argument `n_components` names, comes first, then the others of
    `CRITERIA`.
    """
    if not is_criterion(wanted):
        return None
    if not leading.dense or weight is None:
        return "Not all eigenvalues were computed, because there are more than 1024 features."
    chosen = verified_count(wanted, leading, weight)
    others = (name for name in CRITERIA if name != chosen.criterion)
    return chosen, *(verified_count(name, leading, weight) for name in others)


def _wanted_number(k: int, wanted: Any, leading: Leading, weight: float | None) -> bool:
    """Tell whether the number of latents k agrees with the estimator's argument `n_components`.

    `wanted` is this argument: an integer is the number itself, a float is the share of the variance
    that the latents must explain, and None stands for the rank. For the rank, eigenvalues between
    0.01 and 100 times their rounding error may count or not. A criterion of
    `lucidae.counting` is applied to the verifier's eigenvalues `leading` and to the number
    of rows `weight`. If the eigenvalues or the number of rows are not known, the result is True.
    """
    if isinstance(wanted, int):
        return k == wanted
    if not leading.dense:
        return True
    fewest, most = (max(1, int(np.sum(leading.values > f * leading.error))) for f in (1e2, 1e-2))
    if wanted is None:
        return fewest <= k <= most
    if is_criterion(wanted):
        return weight is None or any(
            k == max(1, verified_count(wanted, leading, weight, factor).n_components)
            for factor in (1.0, 1e2, 1e-2)
        )
    shares = np.cumsum(leading.values) / max(float(np.sum(leading.values)), _TINY)
    enough = bool(shares[k - 1] >= wanted - 1e-9) or k >= fewest
    return enough and (k == 1 or bool(shares[k - 2] < wanted + 1e-9))


def _difference_to_weights(
    encoder: Vector, atoms: Vector, components: Vector, weights: Any
) -> float:
    """Return the largest relative difference of a model's layers and components to the weights.

    The model contains the encoder W₁ and the decoder W₂ with latents sorted by variance and with
    fixed signs. This changes none of W₂W₁, W₁ᵀW₁ and W₂W₂ᵀ, so these three products are compared
    with those of the trained weights, applied to random vectors.
    """
    probe = np.random.default_rng(0).standard_normal((3, encoder.shape[1]))
    lengths = np.sqrt(np.sum(atoms**2, axis=1))
    nonzero = np.any(components != 0.0, axis=1)
    # A latent without a component must have no effect on the reconstruction.
    gains = lengths * np.sqrt(np.sum(encoder**2, axis=1))
    return max(
        _apart(probe @ encoder.T @ atoms, probe @ weights.encoder.T @ weights.atoms),
        _apart(probe @ encoder.T @ encoder, probe @ weights.encoder.T @ weights.encoder),
        _apart(probe @ atoms.T @ atoms, probe @ weights.atoms.T @ weights.atoms),
        _apart(components[nonzero], atoms[nonzero] / np.maximum(lengths, _TINY)[nonzero, None]),
        float(np.any(~nonzero & (gains > 1e-7))),
    )


def _difference_to_data(model: Model, data: Data) -> float:
    """Return the largest relative difference of a model's mean and variances to those of the data.

    The variances of the model are unbiased: sums of squares divided by the number of rows (or the
    sum of their weights) minus one.
    """
    encoder, components, variances, deviations, basis, mean = (
        to_numpy(as_double(part))
        for part in (
            model.encoder,
            model.components,
            model.variances,
            model.code_deviations,
            model.basis,
            model.mean,
        )
    )
    ratio = model.weight / max(model.weight - 1.0, EPS)
    images = data.apply(np.concatenate([components, encoder, basis.T]))
    # What rounding errors of the mean give must stay below the accuracy that is demanded.
    k, total = len(components), max(data.trace + 1e9 * data.rounding, _TINY)
    along = np.sum(images[:k] * components, axis=1)
    codes = np.sqrt(np.maximum(np.sum(images[k : 2 * k] * encoder, axis=1), 0.0) * ratio)
    inside = images[2 * k :] @ basis
    outside = data.n_features - basis.shape[1]
    level = ratio * max(0.0, data.trace - float(np.trace(inside))) / outside if outside else 0.0
    # The deviation of a code is compared where Σ has digits in the direction of its encoder row.
    rounding = (data.n_features * EPS * data.trace + data.rounding) * ratio
    rounding = rounding * np.sum(encoder**2, axis=1)
    whole = codes**2 > 1e10 * rounding
    return max(
        _apart(variances, along * ratio, total),
        float(np.max(np.diff(variances), initial=0.0)) / total,
        _apart(deviations[whole], codes[whole]),
        _apart(to_numpy(model.inside), inside * ratio, total),
        _apart(
            np.array([model.total_variance, model.noise_variance]),
            np.array([data.trace * ratio, level]),
            total,
        ),
        _apart(basis.T @ basis, np.eye(basis.shape[1])),
        _weight_difference(model.weight, data),
        mean_difference(mean, data),
    )


def _weight_difference(weight: float, data: Data) -> float:
    """Return the relative difference between the total row weight of a fit and that of the data.

    The divisor of the variances, and so `singular_values_`, depend on this weight.
    """
    return 0.0 if data.weight is None else abs(weight - data.weight) / max(data.weight, _TINY)


def mean_difference(mean: Vector, data: Data, eps: float = EPS) -> float:
    """Return the largest difference of a mean to that of the data, in standard deviations.

    Each feature has its own standard deviation; rounding errors of its mean do not count.
    """
    terms = FEWEST_ROUNDINGS + min(data.weight or 0.0, SUMMED)
    apart = np.abs(mean - data.mean)
    excess = np.maximum(apart - terms * eps * np.abs(data.mean), 0.0)
    with np.errstate(over="ignore"):  # of a feature without variance
        return float(np.max(excess / np.sqrt(np.maximum(data.variances, _TINY))))


def _apart(found: Vector, expected: Vector, size: float | None = None) -> float:
    """Return the largest absolute difference of two arrays, divided by `size`.

    By default `size` is the largest absolute entry of `expected`.
    """
    size = max(float(np.max(np.abs(expected), initial=0.0)), _TINY) if size is None else size
    return float(np.max(np.abs(found - expected), initial=0.0)) / size
