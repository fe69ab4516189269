"""The inverse covariance of a response from the active columns alone, by Woodbury's identity.

Let S = ΦT be the active columns, each times a root of its prior variance, SᵀS + γI = LLᵀ and K =
L⁻¹Sᵀ. Then Σ⁻¹ = (I − KᵀK)/γ, and a form uᵀΣ⁻¹v is (uᵀv − (Ku)ᵀKv)/γ.
"""

from __future__ import annotations

from typing import NamedTuple

from lucidae.arrays import Array, add_diagonal, adjoint, cholesky, solve_lower
from lucidae.sparsity.problem import root_by_qr

WELL_CONDITIONED = 1e6
"""Largest sum of the prior variances, relative to γ, for accurate forms.

The relative error of φᵀΣ⁻¹φ is then below 1e-4, and below 1e-9 unless columns are nearly dependent.
"""


class LowRank(NamedTuple):
    """The inverse covariance Σ⁻¹ = (I − KᵀK)/γ of a response."""

    noise: Array  # (): the noise variance γ
    lower: Array  # (a, a): the Cholesky factor L of SᵀS + γI, for the a scaled columns S
    reduced: Array  # (a, d): K = L⁻¹Sᵀ, for d rows

    @classmethod
    def of(cls, scaled: Array, noise: Array) -> LowRank:
        """Return the inverse, by QR if rounding errors make SᵀS + γI indefinite."""
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
