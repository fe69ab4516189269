"""Comparison of the fitted attributes of a model with its weights and its data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lucidae.arrays import as_double, to_numpy
from lucidae.linear.model import Model
from lucidae.linear.probe import EPS
from lucidae.linear.verified_spectrum import Data, Leading

__all__ = ["attribute_difference"]

Vector = np.ndarray[Any, Any]

_TINY = float(np.finfo(float).tiny)


def attribute_difference(
    model: Model | None, weights: Any, data: Data, leading: Leading, wanted: Any
) -> float | None:
    """Return the difference of the attributes, infinite where the number of latents is wrong."""
    if model is None:
        return None
    k = len(weights.encoder)
    same = model.components.shape[0] == k == model.encoder.shape[0] == model.atoms.shape[0]
    if not same or not _wanted_number(k, wanted, leading):
        return math.inf
    return _difference(model, weights, data)


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


def _difference(model: Model, weights: Any, data: Data) -> float:
    """Return the largest relative difference of the model's fields to weights and data.

    The model lists the latents by variance with fixed signs, so that W₂W₁, W₁ᵀW₁ and W₂W₂ᵀ stay as
    they were trained; its variances have the divisor Σw − 1.
    """
    encoder, atoms, components, variances, deviations, basis, mean = (
        to_numpy(as_double(part))
        for part in (
            model.encoder,
            model.atoms,
            model.components,
            model.variances,
            model.code_deviations,
            model.basis,
            model.mean,
        )
    )
    if not all(np.all(np.isfinite(part)) for part in (encoder, atoms, components, variances)):
        return math.inf
    ratio = model.weight / max(model.weight - 1.0, EPS)
    probe = np.random.default_rng(0).standard_normal((3, data.n_features))
    images = data.apply(np.concatenate([components, encoder, basis.T]))
    k, total = len(components), max(data.trace, _TINY)
    along = np.sum(images[:k] * components, axis=1)
    codes = np.sqrt(np.maximum(np.sum(images[k : 2 * k] * encoder, axis=1), 0.0) * ratio)
    inside = images[2 * k :] @ basis
    outside = data.n_features - basis.shape[1]
    level = ratio * max(0.0, data.trace - float(np.trace(inside))) / outside if outside else 0.0
    lengths = np.sqrt(np.sum(atoms**2, axis=1))
    nonzero = np.any(components != 0.0, axis=1)
    # A latent without a component must be zero: short, or without effect on the reconstruction.
    gains = lengths * np.sqrt(np.sum(encoder**2, axis=1))
    lost = ~nonzero & (lengths > 1e-7 * np.max(lengths)) & (gains > 1e-7)
    # The deviation of a code is compared where Σ has digits in the direction of its encoder row.
    rounding = data.n_features * EPS * data.trace * ratio * np.sum(encoder**2, axis=1)
    whole = codes**2 > 1e10 * rounding
    return max(
        _apart(probe @ encoder.T @ atoms, probe @ weights.encoder.T @ weights.atoms),
        _apart(probe @ encoder.T @ encoder, probe @ weights.encoder.T @ weights.encoder),
        _apart(probe @ atoms.T @ atoms, probe @ weights.atoms.T @ weights.atoms),
        _apart(lengths[nonzero, None] * components[nonzero], atoms[nonzero]),
        float(np.any(lost)),
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
