"""The inverse covariance of a response from the active columns alone, by Woodbury's identity.

The covariance is Σ = SSᵀ + γI with the a columns S = ΦT of the dictionary Φ that are active, each
times a root of its prior variance, and with the noise variance γ. With SᵀS + γI = LLᵀ and K =
L⁻¹Sᵀ, Woodbury's identity gives Σ⁻¹ = (I − KᵀK)/γ. So a form uᵀΣ⁻¹v is (uᵀv − (Ku)ᵀKv)/γ, and if
the products uᵀv are known, it costs as many operations as there are active columns instead of rows.
"""

from __future__ import annotations

from typing import NamedTuple

from lucidae.arrays import Array, add_diagonal, adjoint, cholesky, solve_lower
from lucidae.sparsity.problem import root_by_qr

WELL_CONDITIONED = 1e6
"""Largest sum of the prior variances, relative to the noise variance, for accurate forms.

The relative error of φᵀΣ⁻¹φ for an active column φ and the covariance Σ of a response is then below
1e-4, and below 1e-9 unless active columns are nearly dependent. With larger prior variances columns
are evaluated by a factor of Σ."""


class LowRank(NamedTuple):
    """The inverse covariance Σ⁻¹ = (I − KᵀK)/γ of a response."""

    noise: Array  # (): the noise variance γ
    lower: Array  # (a, a): the Cholesky factor L of SᵀS + γI, for the a scaled columns S
    reduced: Array  # (a, d): K = L⁻¹Sᵀ, for d rows

    @classmethod
    def of(cls, scaled: Array, noise: Array) -> LowRank:
        """Return the inverse for the columns `scaled` and the noise variance `noise`.

        If rounding errors make SᵀS + γI indefinite, its factor is computed by QR decomposition.
        """
        system = add_diagonal(adjoint(scaled) @ scaled, noise[None])
        if not scaled.shape[1]:
            return cls(noise, system, adjoint(scaled))
        lower, definite = cholesky(system)
        if bool(definite):
            return cls(noise, lower, solve_lower(lower, adjoint(scaled)))
        lower, basis = root_by_qr(scaled, noise)  # S = BLᵀ, so that K = L⁻¹Sᵀ = Bᵀ
        return cls(noise, lower, adjoint(basis))

    def forms(self, products: Array, explained: Array) -> Array:
        """Return uᵀΣ⁻¹v from `products`, which are uᵀv, and from `explained`, which are (Ku)ᵀKv."""
        return (products - explained) / self.noise
