"""The part of an energy that does not see the data: the log-volume of the model.

The full and the diagonal VAE share the data term tr(XXᵀΣ⁻¹) and differ in their volume. Value,
slope and curvature of the volume are all that a second-order method has to know about that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lucidae._arrays import Array, eye_like, namespace
from lucidae.sparsity.problem import Problem


class Volume(Protocol):
    """Value, gradient and (negated) Hessian of a log-volume in the relevances."""

    def value(self, problem: Problem, relevance: Array, log_determinant: Array) -> Array:
        """Return the log-volume of the rows kept."""
        ...

    def pressure(self, problem: Problem, relevance: Array, curvature: Array) -> Array:
        """Return its derivative in each relevance."""
        ...

    def bend(self, metric: Array, pressure: Array) -> Array:
        """Return minus its Hessian."""
        ...


@dataclass(frozen=True, slots=True)
class LogDeterminant:
    """log|Σ|: slope z = diag(G), Hessian −G ∘ G with G = ΦᵀΣ⁻¹Φ (Wipf 2023, eq. 18)."""

    def value(self, problem: Problem, relevance: Array, log_determinant: Array) -> Array:  # noqa: ARG002
        """Return log|Σ|."""
        return log_determinant

    def pressure(self, problem: Problem, relevance: Array, curvature: Array) -> Array:  # noqa: ARG002
        """Return z."""
        return curvature

    def bend(self, metric: Array, pressure: Array) -> Array:  # noqa: ARG002
        """Return G ∘ G."""
        return metric * metric


@dataclass(frozen=True, slots=True)
class SumOfLogs:
    """Σⱼ log(γ + wⱼ‖φⱼ‖²) + (d − κ) log γ: separable (Wipf 2023, eq. 50)."""

    def value(self, problem: Problem, relevance: Array, log_determinant: Array) -> Array:  # noqa: ARG002
        """Return the sum of logarithms for d rows."""
        xp = namespace(relevance)
        norms = xp.sum(problem.dictionary**2, axis=-2)
        ratios = relevance * norms / problem.noise[..., None]
        return xp.sum(xp.log1p(ratios), axis=-1) + problem.rows * xp.log(problem.noise)

    def pressure(self, problem: Problem, relevance: Array, curvature: Array) -> Array:  # noqa: ARG002
        """Return ‖φ‖²/(γ + w‖φ‖²)."""
        norms = namespace(relevance).sum(problem.dictionary**2, axis=-2)
        return norms / (problem.noise[..., None] + relevance * norms)

    def bend(self, metric: Array, pressure: Array) -> Array:
        """Return diag(pressure²)."""
        return eye_like(metric.shape[-1], metric) * (pressure**2)[..., None, :]
