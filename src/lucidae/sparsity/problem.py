"""The normalised problem that every solver of this family works on.

Columns get unit norm, responses unit mean square, many responses become a square root of their
Gram matrix, and a dictionary with fewer columns than rows is reduced to its own span. Energies,
relevances and noise variances are carried back exactly by the `Units` that come along.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from lucidae._arrays import (
    Array,
    add_diagonal,
    cholesky,
    diagonal,
    inverse_lower,
    like,
    machine_epsilon,
    namespace,
    squared_norm,
)
from lucidae.sparsity.groups import Groups

NOISE_FLOOR = 1e-14
"""Smallest noise variance, in units of the mean square response, that doubles can resolve."""


LEAST_ACCURACY = 1e-2
"""Distance to optimality that is asked for however small the noise variance."""


class Problem(NamedTuple):
    """One normalised problem, or a stack of them along the leading axis of every field.

    Fields are the dictionary (d, κ) with unit columns, the responses (d, p) with
    YYᵀ = XXᵀ/n, the noise variance, the mean square of the responses outside the rows kept,
    and how many dimensions of pure noise those rows do not show.
    """

    dictionary: Array
    responses: Array
    noise: Array
    outside: Array
    spare: Array

    @property
    def rows(self) -> int:
        """Number of rows d that are kept."""
        return int(self.dictionary.shape[-2])

    @property
    def columns(self) -> int:
        """Number of columns κ."""
        return int(self.dictionary.shape[-1])

    def with_noise(self, noise: Any) -> Problem:
        """Return the same problem with another noise variance."""
        xp = namespace(self.noise)
        value = like(noise, self.noise) if not isinstance(noise, float) else noise
        return self._replace(noise=xp.zeros_like(self.noise) + value)


@dataclass(frozen=True, slots=True)
class Units:
    """How the normalised problem is measured in the units of the data."""

    norms: Array
    scale: Array
    dimension: float
    n_responses: int

    def relevance(self, normalised: Array) -> Array:
        """Return the relevances w of the caller's columns."""
        return normalised * (self.scale[..., None] / self.norms) ** 2

    def normalised_relevance(self, relevance: Array) -> Array:
        """Return relevances in the problem's own units."""
        return relevance * (self.norms / self.scale[..., None]) ** 2

    def noise(self, normalised: Array) -> Array:
        """Return the noise variance in squared units of the responses."""
        return normalised * self.scale**2

    def normalised_noise(self, noise: Any) -> Any:
        """Return the noise variance in the problem's own units, never below what doubles bear."""
        xp = namespace(self.scale)
        value = like(noise, self.scale) / self.scale / self.scale
        return xp.where(value < NOISE_FLOOR, xp.full_like(value, NOISE_FLOOR), value)

    def energy(self, per_response: Array) -> Array:
        """Return the energy of the caller's problem, summed over responses."""
        xp = namespace(self.scale)
        return self.n_responses * (per_response + 2.0 * self.dimension * xp.log(self.scale))


def safe_norm(A: Array, axis: Any) -> Array:
    """Euclidean norm along `axis` that neither overflows nor underflows."""
    xp = namespace(A)
    peak = xp.max(xp.abs(A), axis=axis, keepdims=True)
    peak = xp.where(peak > 0, peak, xp.ones_like(peak))
    norm = peak * xp.sqrt(xp.sum((A / peak) ** 2, axis=axis, keepdims=True))
    return xp.squeeze(norm, axis=axis)


def normalise(
    dictionary: Array,
    responses: Array,
    *,
    dimension: float | None = None,
    groups: Groups | None = None,
) -> tuple[Problem, Units]:
    """Return the normalised problem with noise variance 1, and the units to undo it.

    Parameters
    ----------
    dictionary : array of shape (..., d, κ)
    responses : array of shape (..., d, n)
    dimension : float, optional
        Number of independent rows that the data stand for (total weight, less the intercept);
        d by default.
    groups : Groups, optional
        Columns that share one relevance share one scale.

    Returns
    -------
    problem : Problem
    units : Units
    """
    xp = namespace(dictionary, responses)
    rows, n_responses = responses.shape[-2:]
    dimension = float(rows) if dimension is None else dimension
    norms = safe_norm(dictionary, -2)
    norms = norms if groups is None else groups.expand(safe_norm(groups.gather(norms), -1))
    norms = xp.where(norms > 0, norms, xp.ones_like(norms))
    scale = safe_norm(responses, (-2, -1)) / (rows * n_responses) ** 0.5
    scale = xp.where(scale > 0, scale, xp.ones_like(scale))
    unit = dictionary / norms[..., None, :]
    scaled = responses / scale[..., None, None] / n_responses**0.5
    unit, scaled, outside = _keep_span(unit, scaled)
    scaled = _gram_root(scaled)
    ones = xp.ones_like(scale)
    problem = Problem(unit, scaled, ones, outside, ones * (dimension - unit.shape[-2]))
    return problem, Units(norms, scale, dimension, n_responses)


def _keep_span(dictionary: Array, responses: Array) -> tuple[Array, Array, Array]:
    """Rotate to the κ rows that a tall dictionary spans; the rest is noise alone."""
    xp = namespace(dictionary)
    nothing = squared_norm(responses) * 0.0
    if dictionary.shape[-1] >= dictionary.shape[-2]:
        return dictionary, responses, nothing
    basis, triangle = xp.linalg.qr(dictionary)
    inside = xp.matrix_transpose(basis) @ responses
    return triangle, inside, squared_norm(responses - basis @ inside)


def _gram_root(responses: Array) -> Array:
    """Return at most d columns with the same Gram matrix YYᵀ."""
    xp = namespace(responses)
    if responses.shape[-1] <= responses.shape[-2]:
        return responses
    _, triangle = xp.linalg.qr(xp.matrix_transpose(responses))
    return xp.matrix_transpose(triangle)


def covariance(dictionary: Array, relevance: Array, noise: Array) -> Array:
    """Covariance of a response: Σ = Φ diag(w) Φᵀ + γI (Wipf 2023, eq. 18)."""
    xp = namespace(dictionary)
    weighted = dictionary * xp.sqrt(relevance)[..., None, :]
    return add_diagonal(weighted @ xp.matrix_transpose(weighted), noise[..., None])


class Whitening(NamedTuple):
    """Inverse Cholesky factor of Σ, the whitened responses and log|Σ|."""

    inverse: Array
    responses: Array
    log_determinant: Array

    @property
    def fit(self) -> Array:
        """The data term tr(YYᵀΣ⁻¹)."""
        return squared_norm(self.responses)


def whiten(sigma: Array, responses: Array) -> Whitening:
    """Factorise Σ once; NaN where it is not positive definite in floating point."""
    xp = namespace(sigma)
    factor, _ = cholesky(sigma)
    inverse = inverse_lower(factor)
    log_determinant = 2.0 * xp.sum(xp.log(diagonal(factor)), axis=-1)
    return Whitening(inverse, inverse @ responses, log_determinant)


def rounding_distance(problem: Problem) -> float:
    """Smallest distance to optimality that rounding lets anyone count on for this problem.

    Errors of Σ⁻¹ are relative to the condition number, which is of the order of 1/γ in units in
    which the responses have mean square 1.
    """
    xp = namespace(problem.noise)
    error = 32.0 * machine_epsilon(problem.noise) / float(xp.min(problem.noise))
    return min(error, LEAST_ACCURACY)
