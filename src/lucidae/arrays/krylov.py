"""Leading eigenpairs of a second moment that is not formed, by block Krylov iteration.

Let Σ be the second moment. The Krylov space of a block B of b random vectors after q steps is the
span of B, BΣ, …, BΣ^(q−1). The eigenpairs of Σ restricted to it (Ritz pairs) converge to the
leading eigenpairs of Σ, and all products with b vectors read the data once.

The iteration keeps an orthonormal basis Q of the space (rows) and T = QΣQᵀ. With the newest block N
and its image NΣ, the part of the image outside of the space, R = NΣ − (NΣQᵀ)Q = βN', gives the next
block N' and the residual of each Ritz pair (θ, s): ‖sQΣ − θsQ‖ = ‖s_N β‖, where s_N are the entries
of s that belong to N. When the basis has become too large, it is replaced by its leading Ritz
vectors (thick restart, Wu & Simon 2000): the residuals of all of them lie in the span of N', so
that the iteration goes on as before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays.helpers import Array, diagonal, largest, like, namespace, normal, to_numpy

Vector = np.ndarray[Any, Any]

EXTRA = 6
"""Vectors in a block beyond the number of wanted eigenpairs; they speed up the last ones."""

WIDEST = 32
"""Largest number of vectors in a block: a wider one saves no time per vector."""

RESIDUAL = 1e-13
"""An eigenpair has converged when its residual is at most this share of the largest eigenvalue."""

LAST_RESIDUAL = 1e-6
"""The same for the pair after the last wanted one: only its eigenvalue is used, whose error is of
the order of the squared residual."""

LARGEST_BASIS = 2**26
"""Largest number of stored entries of the basis: half a gibibyte."""

FRESH_STEPS = 4
"""Steps from new random vectors after convergence, which find missed copies of an eigenvalue."""


@dataclass
class _Space:
    """A Krylov space: orthonormal rows, Σ restricted to them, and the next block."""

    basis: Array
    restricted: Vector
    block: Array
    steps: int = 0


def krylov_eigenpairs(
    apply: Callable[[Array], Array], k: int, reference: Array, *, passes: float = math.inf
) -> tuple[Array, Array] | None:
    """Return the `k` leading eigenpairs of a symmetric, positive semidefinite matrix.

    Parameters
    ----------
    apply : callable
        Returns the product of rows of shape (b, m) with the matrix of shape (m, m).
    k : int
        Number of eigenpairs. All but the last have a residual of at most `RESIDUAL` times the
        largest eigenvalue, the last one of at most `LAST_RESIDUAL` times it.
    reference : array of shape (m,)
        An array whose library and device are used.
    passes : float
        Largest number of products with a block. The iteration ends earlier when the convergence
        rate seen so far predicts that it would take more.

    Returns
    -------
    tuple of arrays of shapes (k,) and (m, k), or None
        Eigenvalues, descending, and orthonormal eigenvectors as columns; None if the pairs would
        take more than `passes` products.
    """
    m, rng = int(reference.shape[0]), np.random.default_rng(0)
    width = min(k + EXTRA, WIDEST, m)
    fresh = 0 if width >= k else FRESH_STEPS  # a block of k vectors contains k copies
    space = _start(normal(rng, (width, m), reference))
    seen: list[tuple[int, float]] = []
    while True:
        outside = _extend(space, apply)
        values, turn = np.linalg.eigh(space.restricted)
        values, turn = values[::-1], turn[:, ::-1]
        block, coupling = _orthonormal(outside, space.basis)
        size = space.basis.shape[0]
        excess = _excess(values, turn, coupling, k) if size >= k else math.inf
        if excess <= 1.0 and (not fresh or size >= m):
            return _ritz(space, values, turn, k)
        if math.isfinite(excess):
            seen.append((space.steps, excess))
        if space.steps + _steps_left(seen) > passes:
            return None
        if excess <= 1.0 or not block.shape[0]:
            # The space is invariant, or converged: new random vectors find what it may have missed.
            fresh = max(0, fresh - 1)
            block, _ = _orthonormal(normal(rng, (width, m), reference), space.basis)
        space = _grown(space, values, turn, block, k)


def _start(rows: Array) -> _Space:
    block, _ = _orthonormal(rows, None)
    return _Space(block, np.zeros((0, 0)), block)


def _extend(space: _Space, apply: Callable[[Array], Array]) -> Array:
    """Multiply the newest block with Σ, extend T by it, and return the image outside the space."""
    image = apply(space.block)
    across = image @ space.basis.mT  # the new rows of T = QΣQᵀ
    size, old = space.basis.shape[0], space.restricted.shape[0]
    restricted = np.zeros((size, size))
    restricted[:old, :old] = space.restricted
    new = to_numpy(across)
    restricted[old:, :] = new
    restricted[:, old:] = new.T
    restricted[old:, old:] = (new[:, old:] + new[:, old:].T) / 2
    space.restricted, space.steps = restricted, space.steps + 1
    return image - across @ space.basis


def _orthonormal(rows: Array, basis: Array | None) -> tuple[Array, Vector]:
    """Return orthonormal rows N orthogonal to `basis`, and β with rows = βN + a part in the basis.

    Directions that the projection reduces to rounding errors are left out.
    """
    xp, scale = namespace(rows), largest(rows)
    if basis is not None:
        # The second projection removes what the rounding errors of the first have left.
        for _ in range(2):
            rows = rows - (rows @ basis.mT) @ basis
    if not scale or not largest(rows) > 1e-15 * scale:
        return rows[:0, :], np.zeros((rows.shape[0], 0))
    left, singular, right = xp.linalg.svd(rows, full_matrices=False)
    kept = int(np.sum(to_numpy(singular) > 1e-14 * scale * math.sqrt(rows.shape[1])))
    block = right[:kept, :]
    if basis is not None and kept:
        # A direction that was small has kept rounding errors in the basis; its sign must stay.
        columns, triangle = xp.linalg.qr((block - (block @ basis.mT) @ basis).mT)
        block = columns.mT * xp.sign(diagonal(triangle))[:, None]
    return block, to_numpy(left[:, :kept] * singular[:kept])


def _excess(values: Vector, turn: Vector, coupling: Vector, k: int) -> float:
    """Return the largest residual divided by its tolerance."""
    if not coupling.shape[1] or not values[0] > 0.0:
        return 0.0
    rows = coupling.shape[0]
    residuals = np.linalg.norm(turn[-rows:, :k].T @ coupling, axis=1)
    tolerances = np.full(k, RESIDUAL)
    if k > 1:
        tolerances[-1] = LAST_RESIDUAL
    return float(np.max(residuals / (tolerances * float(values[0]))))


def _steps_left(seen: list[tuple[int, float]]) -> float:
    """Return the number of steps until convergence at the rate of the last three steps.

    Convergence gets faster from step to step, so that half the predicted number is counted.
    """
    if len(seen) < 3:
        return 0.0
    (first, before), (last, now) = seen[max(0, len(seen) - 4)], seen[-1]
    if now <= 1.0:
        return 0.0
    rate = math.log(before / now) / (last - first)
    return math.log(now) / rate / 2 if rate > 0.0 else math.inf


def _grown(space: _Space, values: Vector, turn: Vector, block: Array, k: int) -> _Space:
    """Return the space with one more block, compressed to its Ritz vectors if it is too large."""
    xp = namespace(block)
    size, m = space.basis.shape
    if (size + block.shape[0]) * m > LARGEST_BASIS and size > 2 * (k + block.shape[0]):
        kept = k + block.shape[0]
        basis = like(turn[:, :kept].T.copy(), space.basis) @ space.basis
        return _Space(xp.concat([basis, block]), np.diag(values[:kept]), block, space.steps)
    return _Space(xp.concat([space.basis, block]), space.restricted, block, space.steps)


def _ritz(space: _Space, values: Vector, turn: Vector, k: int) -> tuple[Array, Array]:
    vectors = (like(turn[:, :k].T.copy(), space.basis) @ space.basis).mT
    return like(np.maximum(values[:k], 0.0), space.basis), vectors
