"""Closed form of the global optimum, and the proof that every local minimum is global.

Notation: the loss is ‖M − UVᵀ‖² + λ Σᵢ ‖uᵢ‖²‖vᵢ‖², where M is the target (the least-squares map for
white inputs, whose second moment is the identity), U and V are the outgoing and incoming weights, λ
is the strength of dropout and r the number of hidden units. s₁ ≥ s₂ ≥ … are the singular values of
M (for tied weights, V = U, the positive eigenvalues of its symmetric part).

**Every local minimum of the tied problem is global, for every λ ≥ 0.** Mianjy et al. 2018,
Theorem 4.3 proves it for λ < r s_r / (Σ_{i≤r} sᵢ − r s_r), which says that the optimum has full
rank r. The condition is not needed: every critical point U of
f(U) = ‖M − UUᵀ‖² + λ Σᵢ ‖uᵢ‖⁴ that is not a global minimum has a direction of negative curvature.

*Proof.* Write ⟨Z, HZ⟩ for the second derivative of f along Z.

1. *Columns of unequal norm.* Let λ > 0 and ‖u₁‖ > ‖u₂‖. Rotating these two columns into each
   other leaves the loss as it is, so the derivative of f along Z = (u₂, −u₁, 0, …) is
   4λ u₁ᵀu₂ (‖u₁‖² − ‖u₂‖²), which vanishes at a critical point: u₁ᵀu₂ = 0. The second derivative
   along the rotation is then −4λ(‖u₁‖² − ‖u₂‖²)² < 0.
2. *Columns of equal norm* √t, t = ‖U‖²/r (or λ = 0, where t does not matter). The critical
   equation is (M − UUᵀ)U = λt U. Hence UUᵀ commutes with M, and the range of U is spanned by
   eigenvectors wᵢ of M, i in a set E, with eigenvalues mᵢ = σᵢ² + λt > λt, where σᵢ are the
   singular values of U. Let μ be the largest eigenvalue of M outside E, with eigenvector w.

   a. |E| < r and μ > λt. Take a unit vector a orthogonal to the rows of U and Z = w aᵀ. As
      ZUᵀ = 0 and UᵀZ = 0, ⟨Z, HZ⟩ = −4(μ − λt) < 0. (With E the r' largest eigenvalues,
      λt = λ Σ_{i≤r'} mᵢ / (r + λr').)
   b. |E| = r and μ > mⱼ for some j in E. Take Z = w wⱼᵀU, which turns wⱼ towards w:
      ⟨Z, HZ⟩ = −4(μ − mⱼ) ‖Z‖² < 0.
   c. Otherwise E holds the largest eigenvalues, and either |E| = r or none outside exceeds λt.
      So ŝᵢ = σᵢ² = mᵢ − λt on E and 0 elsewhere satisfies the Karush–Kuhn–Tucker conditions of
      the convex problem min Σᵢ (mᵢ − ŝᵢ)² + (λ/r)(Σᵢ ŝᵢ)² over ŝ ≥ 0 supported on the r largest
      eigenvalues, whose minimum bounds f from below (Mianjy et al. 2018, Theorem 2.4): U is a
      global minimum. ∎
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lucidae.arrays import (
    Array,
    arange_like,
    largest,
    machine_epsilon,
    namespace,
    svd_thin,
    where_set,
)
from lucidae.validation import check_number


def strength_of(dropout: float) -> float:
    """Return the strength λ = p / (1 − p) of dropout for the probability p of dropping a unit."""
    dropped = checked_dropout(dropout)
    return dropped / (1.0 - dropped)


def checked_dropout(dropout: Any, others: str = "") -> float:
    """Return a dropout rate in [0, 1) as a float; anything else is an error."""
    return check_number(dropout, "dropout", low=0.0, high=1.0, open_high=True, others=others)


def is_auto(value: Any) -> bool:
    """Tell whether a setting is left to the estimator."""
    return isinstance(value, str) and value == "auto"


def checked_rate(learning_rate: float | str) -> float | None:
    """Return a learning rate as a positive float, None for "auto"."""
    if is_auto(learning_rate):
        return None
    return check_number(learning_rate, "learning_rate", low=0.0, open_low=True, others=" or 'auto'")


def dropout_of(strength: float) -> float:
    """Return the probability λ / (1 + λ) of dropping a unit, for the strength λ of dropout.

    This is the inverse of `strength_of`.
    """
    return strength / (1.0 + strength)


class Shrinkage(NamedTuple):
    """Singular values of the optimal product U Vᵀ of the weights, and how they are obtained."""

    rank: int  # the rank ρ of the optimal product
    # the amount α by which the first ρ singular values of the least-squares map are reduced
    threshold: float
    # singular values of the optimal product: sᵢ − α for i ≤ ρ, with the singular values sᵢ of the
    # least-squares map, and zero for i > ρ
    values: Array


def shrink(singular_values: Array, strength: float, width: int) -> Shrinkage:
    """Return the singular values of the optimal product, from those of the least-squares map.

    `singular_values` s₁ ≥ s₂ ≥ … are those of the least-squares map, descending. Dropout reduces
    all by one threshold, and those that would be negative become zero (Mianjy et al. 2018,
    Algorithm 3). With the strength λ of dropout and the number r of hidden units (`width`), the
    rank ρ of the optimum is the largest j ≤ r for which r sⱼ > λ Σ_{i≤j} (sᵢ − sⱼ). This is the
    condition of Mianjy et al. 2018 written without cancellation, so that it is accurate also as λ →
    ∞. Singular values below `rank_tolerance` count as zero.
    """
    rank = optimal_rank(singular_values, strength, width)
    if rank == 0:
        return Shrinkage(0, 0.0, 0.0 * singular_values)
    xp = namespace(singular_values)
    # ŝᵢ = sᵢ − α cancels for large λ, where α → s. Instead ŝᵢ = (sᵢ − sᵨ) + ŝᵨ with
    # ŝᵨ = sᵨ − λΣs/(r + λρ) = (r sᵨ − λΣ(sᵢ − sᵨ))/(r + λρ), a sum of terms of the size of ŝ.
    kept = singular_values[:rank]
    smallest = float(kept[-1])
    excess = float(xp.sum(kept - smallest))
    loaded = width + strength * rank
    last = max((width * smallest - strength * excess) / loaded, 0.0)
    threshold = strength * float(xp.sum(kept)) / loaded
    shrunk = singular_values - smallest + last
    removed = arange_like(singular_values) >= rank
    return Shrinkage(rank, threshold, where_set(shrunk, removed, 0.0))


def optimal_rank(singular_values: Array, strength: float, width: int) -> int:
    """Return the rank of the optimal product: how many singular values dropout does not remove.

    `shrink` states the condition.
    """
    if singular_values.shape[0] == 0:
        return 0
    xp, survives = namespace(singular_values), strength < breakpoints(singular_values, width)
    return int(xp.sum(xp.astype(survives, xp.int64)))  # the condition holds for a prefix


def rank_tolerance(singular_values: Array, size: int | None = None) -> float:
    """Return the value below which a singular value counts as a rounding error.

    It is size · ε · s₁, with the largest singular value s₁ and the rounding unit ε of its dtype;
    `size` is by default the number of singular values, but at least 10.
    """
    size = max(singular_values.shape[0], 10) if size is None else size
    return size * machine_epsilon(singular_values) * largest(singular_values[:1])


def breakpoints(singular_values: Array, width: int) -> Array:
    """Return the strengths of dropout at which the rank of the optimum falls below 1, 2, …, r.

    r is the number of hidden units (`width`) and s are the descending singular values of the
    least-squares map. The rank is at least j if and only if the strength of dropout is below r sⱼ /
    Σ_{i≤j} (sᵢ − sⱼ), which is infinite if the leading singular values are equal.
    """
    xp = namespace(singular_values)
    candidates = singular_values[:width]
    # Σ_{i≤j} (sᵢ − sⱼ) as a sum of non-negative terms, without cancellation
    gaps = xp.concat([0.0 * candidates[:1], candidates[:-1] - candidates[1:]])
    excess = xp.cumulative_sum(arange_like(candidates) * gaps)
    safe = xp.where(excess > 0, excess, xp.ones_like(excess))
    limits = xp.where(excess > 0, width * candidates / safe, xp.full_like(excess, xp.inf))
    return where_set(limits, candidates <= rank_tolerance(singular_values), 0.0)


def optimal_value(
    singular_values: Array, strength: float, width: int, total: float | None = None
) -> float:
    """Return the minimum of ‖M − UVᵀ‖² + λΣ‖uᵢ‖²‖vᵢ‖² over all U and V of the given width.

    This is the expected dropout loss of outgoing weights U and incoming weights V with columns uᵢ
    and vᵢ, for a target M. With the rank ρ of the optimum and the singular values sᵢ of M the
    minimum is λ(Σ_{i≤ρ} sᵢ)²/(r + λρ) + Σ_{i>ρ} sᵢ², with the threshold α = λ Σ_{i≤ρ} sᵢ/(r + λρ).
    """
    xp = namespace(singular_values)
    rank, threshold, _ = shrink(singular_values, strength, width)
    kept, left = singular_values[:rank], singular_values[rank:]
    tail = float(xp.sum(left * left))
    if total is not None:
        tail = max(total - float(xp.sum(kept * kept)), tail)
    return threshold * float(xp.sum(kept)) + tail


def small_dropout_bound(eigenvalues: Array, width: int) -> float:
    """Return the strength of dropout below which Mianjy et al. 2018, Theorem 4.3 applies.

    The theorem says that every local minimum of tied weights is global. The bound is the strength
    at which the rank of the optimum falls below the width. The conclusion of the theorem holds
    above the bound too: see the proof in the docstring of this module.
    """
    if eigenvalues.shape[0] < width:
        return 0.0
    positive = where_set(eigenvalues, eigenvalues < 0, 0.0)
    return float(breakpoints(positive, width)[-1])


def code_map(right: Array, strength: float) -> Array:
    """Return the matrix that maps rows to their optimal codes under dropout, for fixed weights V.

    The matrix is V(VᵀV + λ diag‖vᵢ‖²)⁺, with the columns vᵢ of V (`right`), the strength λ of
    dropout and the pseudoinverse ⁺. Let V = WD with unit columns W and D = diag‖vᵢ‖. Then the
    matrix is W(WᵀW + λI)⁺D⁻¹: a singular value w of W becomes w/(w² + λ). This is accurate also for
    λ → 0 and for a V of deficient rank.
    """
    basis, w, back = code_basis(right)
    return (basis / (w * w + strength)) @ back


def code_basis(right: Array) -> tuple[Array, Array, Array]:
    """Return P diag(w), w and QᵀD⁻¹ of VD⁻¹ = P diag(w) Qᵀ, for D = diag‖vᵢ‖; w has no zeros."""
    xp = namespace(right)
    lengths = xp.sqrt(xp.sum(right * right, axis=0))
    reciprocal = xp.where(lengths > 0, 1.0 / xp.where(lengths > 0, lengths, 1.0 + lengths), lengths)
    P, w, Qt = svd_thin(right * reciprocal)
    rank = int(xp.sum(xp.astype(w > rank_tolerance(w, max(right.shape)), xp.int64)))
    return P[:, :rank] * w[:rank], w[:rank], Qt[:rank, :] * reciprocal
