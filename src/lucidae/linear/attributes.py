"""Comparison of the fitted attributes of a model with its weights and its data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from lucidae.arrays import Array, as_double, is_array, namespace, to_numpy
from lucidae.linear.model import Model
from lucidae.linear.probe import EPS
from lucidae.linear.verified_spectrum import Data, Leading

__all__ = ["attribute_difference", "changed_attributes", "check_range", "finite"]

Vector = np.ndarray[Any, Any]
AnyMethod = TypeVar("AnyMethod", bound=Callable[..., Array])

CHANGED = 16.0
"""An attribute was changed if it differs from the fitted one by more than this many rounding units
of its dtype, relative to its largest entry."""

_TINY = float(np.finfo(float).tiny)


def check_range(variance: float, reference: Array) -> None:
    """Raise an error if the total variance of the data is outside of the range of their dtype.

    Parameters
    ----------
    variance : float
        The total variance, computed in double precision.
    reference : array
        An array of the dtype in which the fitted attributes are returned.
    """
    limits = namespace(reference).finfo(reference.dtype)
    low, high = float(limits.smallest_normal), float(limits.max)
    if variance == 0.0 or low <= variance <= high:
        return
    small = variance < low
    raise ValueError(
        f"the variance of X is {variance:.3g}, which is {'below' if small else 'above'} the range "
        f"of its dtype {reference.dtype}. Give X as float64, or "
        f"{'multiply' if small else 'divide'} it by a constant first."
    )


def finite(name: str) -> Callable[[AnyMethod], AnyMethod]:
    """Decorate a method that returns an array: entries that are not finite raise an error.

    Parameters
    ----------
    name : str
        What the array contains, in the plural, for the sentence.
    """

    def decorate(method: AnyMethod) -> AnyMethod:
        @wraps(method)
        def checked(*args: Any, **kwargs: Any) -> Array:
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                values = method(*args, **kwargs)
            xp = namespace(values)
            if bool(xp.all(xp.isfinite(values))):
                return values
            raise ValueError(
                f"{name} overflow {values.dtype}: give X as float64, or divide it by a constant "
                "first."
            )

        return checked  # type: ignore[return-value]

    return decorate


def changed_attributes(shown: Mapping[str, Any], fitted: Mapping[str, Any]) -> dict[str, float]:
    """Return the attributes that a user assigned or changed in place, with their difference.

    Parameters
    ----------
    shown : mapping
        The attributes as the estimator shows them, by name.
    fitted : mapping
        The attributes that follow from the fitted state.

    Returns
    -------
    dict
        For each attribute that differs by more than rounding, the largest difference relative to
        the largest fitted entry; infinite where the shape or the kind of the value differs.
    """
    differences = {name: _change(shown[name], fitted[name]) for name in shown}
    return {name: size for name, size in differences.items() if not size <= 0.0}


def _change(shown: Any, fitted: Any) -> float:
    """Return the relative difference of two values of an attribute, 0 up to rounding."""
    if shown is fitted:
        return 0.0
    if not is_array(fitted) and not isinstance(fitted, int | float):
        return 0.0 if type(shown) is type(fitted) and shown == fitted else math.inf
    expected = to_numpy(fitted)
    try:
        found = np.asarray(to_numpy(shown), dtype=float)
    except (TypeError, ValueError):
        return math.inf
    if found.shape != expected.shape or not np.all(np.isfinite(found)):
        return math.inf
    floats = expected.dtype if expected.dtype.kind == "f" else np.dtype(float)
    size = _apart(found, expected.astype(float))
    return 0.0 if size <= CHANGED * float(np.finfo(floats).eps) else size


def attribute_difference(
    model: Model | None, weights: Any, data: Data, leading: Leading, wanted: Any, running: bool
) -> float | None:
    """Return the largest relative difference of a model's fields to its weights and data.

    Parameters
    ----------
    model : Model or None
        The fitted model; without it the result is None.
    weights : weights
        The weights as trained, as NumPy arrays in double precision.
    data : Data
        The second moment of the data.
    leading : Leading
        What is known about its eigenvalues.
    wanted : int, float or None
        The argument `n_components` of the fit.
    running : bool
        Whether mean and variances are running averages over a stream, which no data reproduce;
        they are not compared then.

    Returns
    -------
    float or None
        Infinite where the number of latents is wrong.
    """
    if model is None:
        return None
    k = len(weights.encoder)
    same = model.components.shape[0] == k == model.encoder.shape[0] == model.atoms.shape[0]
    if not same or not _wanted_number(k, wanted, leading):
        return math.inf
    encoder, atoms, components, variances = (
        to_numpy(as_double(part))
        for part in (model.encoder, model.atoms, model.components, model.variances)
    )
    if not all(np.all(np.isfinite(part)) for part in (encoder, atoms, components, variances)):
        return math.inf
    of_weights = _difference_to_weights(encoder, atoms, components, weights)
    return of_weights if running else max(of_weights, _difference_to_data(model, data))


def _wanted_number(k: int, wanted: Any, leading: Leading) -> bool:
    """Return whether k is the number, the share of the variance or the rank that was asked for.

    An eigenvalue within two decades of the rounding error may count for the rank or not.
    """
    if isinstance(wanted, int):
        return k == wanted
    if not leading.dense:
        return True
    fewest, most = (max(1, int(np.sum(leading.values > f * leading.error))) for f in (1e2, 1e-2))
    if wanted is None:
        return fewest <= k <= most
    shares = np.cumsum(leading.values) / max(float(np.sum(leading.values)), _TINY)
    enough = bool(shares[k - 1] >= wanted - 1e-9) or k >= fewest
    return enough and (k == 1 or bool(shares[k - 2] < wanted + 1e-9))


def _difference_to_weights(
    encoder: Vector, atoms: Vector, components: Vector, weights: Any
) -> float:
    """Return the largest relative difference of encoder, decoder and components to the weights.

    The model lists the latents by variance with fixed signs, so that W₂W₁, W₁ᵀW₁ and W₂W₂ᵀ are
    those of the weights as trained. The three products are compared on random vectors.
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
    """Return the largest relative difference of variances and mean to those of the data.

    The variances of the model have the divisor Σw − 1.
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
    k, total = len(components), max(data.trace, _TINY)
    along = np.sum(images[:k] * components, axis=1)
    codes = np.sqrt(np.maximum(np.sum(images[k : 2 * k] * encoder, axis=1), 0.0) * ratio)
    inside = images[2 * k :] @ basis
    outside = data.n_features - basis.shape[1]
    level = ratio * max(0.0, data.trace - float(np.trace(inside))) / outside if outside else 0.0
    # The deviation of a code is compared where Σ has digits in the direction of its encoder row.
    rounding = data.n_features * EPS * data.trace * ratio * np.sum(encoder**2, axis=1)
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
        _apart(mean, data.mean, math.sqrt(total) + float(np.max(np.abs(data.mean)))),
    )


def _apart(found: Vector, expected: Vector, size: float | None = None) -> float:
    """Return the largest difference, relative to the largest entry or to a given size."""
    size = max(float(np.max(np.abs(expected), initial=0.0)), _TINY) if size is None else size
    return float(np.max(np.abs(found - expected), initial=0.0)) / size
