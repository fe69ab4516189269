"""The methods that the sparse experiments compare; each solves many problems of one size.

Arguments of all methods: the dictionaries `Phi` (p, d, κ) of p problems with κ columns each, the
responses `X` (p, d, n), the noise variances `noise` (p,), and ``tol`` and ``max_iter``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lucidae.arrays import (
    Array,
    cholesky,
    device,
    eye_like,
    namespace,
    solve_lower,
    squared_moduli,
    squared_norm,
    to_numpy,
)
from lucidae.iteration import BatchSolution
from lucidae.sparsity.batch import SparseBatch, solve_batch
from lucidae.sparsity.penalties import PowerPenalty
from lucidae.sparsity.problem import covariance
from lucidae.sparsity.solvers import NOISE_FREE

__all__ = ["LIMITS", "METHODS", "SOLVERS"]

CROWDED = 0.9
"""An estimate that uses more than this share of the dictionary's rows is not called sparse."""

Solved = BatchSolution[Any]


def full(Phi: Array, X: Array, noise: Array, **limits: Any) -> Solved:
    """Return the minimisers of the energy of the full-covariance VAE (Wipf 2023, eq. 18).

    `Phi` are the dictionaries of several problems, `X` their responses and `noise` their noise
    variances. Each problem is solved by majorise–minimise (MM). A problem without noise whose
    solution is not sparse is solved by expectation–maximisation (EM) too, and the solution of lower
    energy is returned: EM makes smaller steps and finds lower minima if nearly as many columns have
    coefficients as the dictionary has rows.
    """
    found = solve_batch(Phi, X, posterior="full", noise_variance=noise, solver="mm", **limits)
    again = _not_sparse(Phi, X, noise, found.value)
    if not again.size:
        return found
    xp = namespace(X)
    index = xp.asarray(again, device=device(X))
    some = (xp.take(values, index, axis=0) for values in (Phi, X))
    slow = solve_batch(
        *some, posterior="full", noise_variance=xp.take(noise, index, axis=0), solver="em", **limits
    )
    return _lower(found, slow, again)


def _not_sparse(Phi: Array, X: Array, noise: Array, value: SparseBatch) -> np.ndarray[Any, Any]:
    """Return the indices of problems without noise whose estimate is not sparse.

    An estimate is not sparse if it uses more than the share `CROWDED` of the rows of the
    dictionary. `Phi` are the dictionaries, `X` the responses, `noise` the noise variances and
    `value` the estimates of all problems.
    """
    xp, rows = namespace(X), X.shape[-2]
    factor, _ = cholesky(covariance(Phi, value.relevance, noise))
    inverse = solve_lower(factor, xp.broadcast_to(eye_like(rows, X), factor.shape))
    # tr(Φ W Φᵀ Σ⁻¹) = d − γ tr Σ⁻¹ with Σ = γI + Φ W Φᵀ = LLᵀ, and tr Σ⁻¹ = ‖L⁻¹‖²_F: the number
    # of rows that the estimate explains by itself rather than as noise.
    used = rows - noise * squared_norm(inverse)
    noise_free = noise < NOISE_FREE * xp.mean(X * X, axis=(-2, -1))
    return np.flatnonzero(to_numpy(noise_free & (used > CROWDED * rows)))


def _lower(first: Solved, second: Solved, index: np.ndarray[Any, Any]) -> Solved:
    """Return `first` with those of its solutions replaced for which `second` has lower energy.

    The energy is the training loss of the VAE. `second` has solutions of the problems `index` only.
    """
    xp = namespace(first.value.energy)
    order = np.arange(len(first))
    better = to_numpy(second.value.energy) < to_numpy(first.value.energy)[index]
    order[index[better]] = len(first) + np.flatnonzero(better)
    chosen = xp.asarray(order, device=device(first.value.energy))
    value = SparseBatch(
        *(
            xp.take(xp.concat(both, axis=0), chosen, axis=0)
            for both in zip(first.value, second.value, strict=True)
        )
    )
    steps = first.n_iter.copy()
    steps[index] += second.n_iter
    status = (*first.status, *second.status)
    distance = np.concatenate([first.distance, second.distance])[order]
    tolerance = max(first.tolerance, second.tolerance)
    return BatchSolution(value, tuple(status[i] for i in order), steps, distance, tolerance)


def diagonal(Phi: Array, X: Array, noise: Array, **limits: Any) -> Solved:
    """Return the minimisers of the energy of the diagonal-covariance VAE (Wipf 2023, eq. 50).

    `Phi` are the dictionaries, `X` the responses and `noise` the noise variances of many problems.
    """
    return solve_batch(Phi, X, posterior="diagonal", noise_variance=noise, **limits)


def autoencoder(Phi: Array, X: Array, noise: Array, **limits: Any) -> Solved:
    """Return the minimisers of the autoencoder's training loss with a log penalty on row norms.

    This is the deterministic model of Wipf 2023, eq. 48. `Phi` are the dictionaries, `X` the
    responses and `noise` the noise variances of many problems.
    """
    return solve_batch(Phi, X, posterior="point", noise_variance=noise, **limits)


def group_lasso(Phi: Array, X: Array, noise: Array, **limits: Any) -> Solved:
    """Return the solutions of the group lasso, by reweighting, all problems at once.

    The group lasso minimises ½‖X − ΦU‖² + √γ Σⱼ‖uⱼ‖ over the code U with rows uⱼ, for responses X,
    a dictionary Φ and the noise variance γ. The point estimate with the penalty h(a) = 2√a
    minimises it: its energy is (1/γ')‖X − ΦU‖² + 2√n Σ‖uⱼ‖ in units of the root mean square s of
    the n columns of X, so that γ' = √γ s/√n.
    """
    xp = namespace(X)
    scale = xp.sqrt(xp.mean(squared_moduli(X), axis=(-2, -1)) / X.shape[-1])
    penalty = PowerPenalty(0.5)
    return solve_batch(
        Phi, X, posterior="point", noise_variance=xp.sqrt(noise) * scale, penalty=penalty, **limits
    )


def constrained_group_lasso(Phi: Array, X: Array, noise: Array, **limits: Any) -> Solved:
    """Return codes of the smallest sum of row norms that reproduce the responses exactly.

    This is the group lasso subject to X = ΦU for the responses X, the dictionary Φ and the code U.
    It is solved by reweighting, with a tiny noise variance.
    """
    penalty = PowerPenalty(0.5)
    return solve_batch(Phi, X, posterior="point", noise_variance=noise, penalty=penalty, **limits)


METHODS: dict[str, Callable[..., Solved]] = {
    "full": full,
    "diagonal": diagonal,
    "autoencoder": autoencoder,
    "group lasso": group_lasso,
    "constrained group lasso": constrained_group_lasso,
}
LIMITS = {"full": 600, "diagonal": 300, "autoencoder": 300, "group lasso": 300}
SOLVERS = {"full": "mm, or em where it ends lower"}
"""Description of the solver in the stored settings, for a method that uses several."""
