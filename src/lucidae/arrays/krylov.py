"""Leading eigenpairs of a second moment by block Krylov iteration, without forming its matrix.

Let Σ be the second moment of the data (m × m). The Krylov space of a block B of b random row
vectors after q steps is the span of the rows of B, BΣ, …, BΣ^(q−1). The eigenpairs of Σ restricted
to this space (Ritz pairs) converge to the leading eigenpairs of Σ. Each product of b vectors with Σ
reads the data once.

The iteration stores an orthonormal basis Q of the space, as rows, and the matrix T = QΣQᵀ. Let N be
the newest block, and βN' with orthonormal rows N' the part of NΣ that is outside the space,
NΣ − (NΣQᵀ)Q. Then N' is the next block, and the residual of a Ritz pair with eigenvalue θ and
coefficients s is ‖sQΣ − θsQ‖ = ‖s_N β‖, where s_N are the entries of s that belong to N. When the
basis has become too large, it is replaced by its leading Ritz vectors (thick restart, Wu & Simon
2000). The residuals of all of these lie in the span of N', so that the iteration goes on as before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import (
    Array,
    diagonal,
    largest,
    like,
    namespace,
    normal,
    to_numpy,
    zeros_like_shape,
)

Vector = np.ndarray[Any, Any]

EXTRA = 2
"""Number of vectors in a block beyond the number of wanted eigenpairs; they make the last wanted
eigenpairs converge faster."""

WIDEST = 32
"""Largest number of vectors in a block; products with more vectors are not faster per vector."""

RESIDUAL = 1e-13
"""An eigenpair has converged when the norm of its residual is at most this number times the largest
eigenvalue."""

LAST_RESIDUAL = 1e-2
"""Default tolerance of the residual of the last eigenpair, divided by the largest eigenvalue. It is
larger than that of the others, because most callers use only the eigenvalue of the last pair, whose
error is of the order of the squared residual."""

KEPT = 24
"""Smallest number of Ritz vectors beyond the wanted eigenpairs that a restart keeps."""

WELL_SEPARATED = 0.1
"""New directions are orthogonalised a second time if the smallest is at most this part of the
largest, because rounding errors grow with the ratio."""

FRESH_STEPS = 4
"""Number of steps that are made from new random vectors before the iteration ends, to find further
eigenvectors of a repeated eigenvalue that were missed."""

SETTLED = 1e-8
"""Size of the residuals, divided by the largest eigenvalue, at which these steps begin. The error
of an eigenvalue is of the order of the squared residual, so that it then grows only if an
eigenvector was missed."""

NEARLY = 10.0
"""Largest ratio of a residual to its tolerance at which they begin if this tolerance is not small.
"""


@dataclass
class _Space:
    """A Krylov space of a symmetric matrix Σ.

    `basis` has orthonormal rows Q that span the space, and `restricted` is QΣQᵀ without the rows
    and columns of the newest block. `block` are the rows of Q that were added last and are to be
    multiplied with Σ next, and `steps` is the number of products so far. The basis is a view of the
    first rows of `storage`, which has more rows, so that the basis can grow without a copy.
    """

    basis: Array
    restricted: Vector
    block: Array
    steps: int
    storage: Array


@dataclass
class _Search:
    """The search for copies of eigenvectors that a Krylov space has missed.

    Shortly before convergence, when the eigenvalues change no more, random rows are added to the
    space, and at least `steps` more steps are made. If the sum of the wanted eigenvalues grows in
    these steps, the search begins again with twice as many rows.

    `left` is the number of steps still to be made, `begins` tells whether rows are to be added now,
    `rows` is their number, and `total` is the sum of the wanted eigenvalues when the search began.
    """

    steps: int
    rows: int
    left: int = -1
    begins: bool = False
    total: float = -math.inf

    def update(self, settled: bool, total: float, k: int) -> None:
        """Decide after one more step how the search goes on; k eigenvalues have the sum `total`."""
        self.begins = False
        if self.left < 0:
            self.left = self.steps
        if not settled or not self.steps:
            self.left = self.steps
        elif total > self.total + 1e-10 * abs(total):
            self.rows = self.rows if math.isinf(self.total) else min(2 * self.rows, max(k, 1))
            self.total, self.left, self.begins = total, self.steps, True
        else:
            self.left = max(self.left - 1, 0)


def krylov_eigenpairs(
    apply: Callable[[Array], Array],
    k: int,
    reference: Array,
    *,
    passes: float = math.inf,
    widest: int = WIDEST,
    last: float = LAST_RESIDUAL,
    residual: float = RESIDUAL,
) -> tuple[Array, Array] | None:
    """Return the `k` leading eigenpairs of a symmetric, positive semidefinite matrix."""
    m, rng = int(reference.shape[0]), np.random.default_rng(0)
    width = min(k + EXTRA, widest, m)
    search = _Search(0 if width >= k else FRESH_STEPS, width)  # k vectors contain k copies
    space = _start(normal(rng, (width, m), reference))
    seen: list[tuple[int, float]] = []
    while True:
        outside = _extend(space, apply)
        values, turn = np.linalg.eigh(space.restricted)
        values, turn = values[::-1], turn[:, ::-1]
        block, coupling = _orthonormal(outside, space.basis)
        size = space.basis.shape[0]
        excess = _excess(values, turn, coupling, k, last, residual) if size >= k else math.inf
        # The last eigenvalue still grows if only its residual has a large tolerance.
        strict = k - 1 if last > residual and k > 1 else k
        settled = excess <= max(NEARLY, SETTLED / residual)
        search.update(settled, float(np.sum(values[:strict])), k)
        if excess <= 1.0 and (not search.left or size >= m):
            return _ritz(space, values, turn, k)
        if math.isfinite(excess):
            seen.append((space.steps, excess))
        hopeless = space.steps >= passes / 4 and space.steps + steps_left(seen) > passes
        if hopeless or space.steps >= passes:
            return None
        if search.begins or not block.shape[0]:
            # The space is invariant, or converged: new random vectors find what it may have missed.
            # They join the next block; without that block, the residuals would be underestimated.
            block = _with_random_rows(block, space.basis, rng, search.rows)
        space = _grown(space, values, turn, block, k)


def _start(rows: Array) -> _Space:
    block, _ = _orthonormal(rows, None)
    return _Space(block, np.zeros((0, 0)), block, 0, block)


def _with_random_rows(block: Array, basis: Array, rng: np.random.Generator, count: int) -> Array:
    """Return `block` and `count` random rows, orthonormal to each other and to the rows `basis`."""
    xp = namespace(basis)
    rows = normal(rng, (count, int(basis.shape[1])), basis)
    fresh, _ = _orthonormal(rows, xp.concat([basis, block]))
    return xp.concat([block, fresh])


def _extend(space: _Space, apply: Callable[[Array], Array]) -> Array:
    """Multiply the newest block with the matrix; return the part outside of the space."""
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
    """Return orthonormal rows N for the part of `rows` orthogonal to `basis`, and coefficients β.

    `rows` equal βN plus a part in the span of `basis`. A direction whose part outside this span
    consists of rounding errors is not included in N.
    """
    xp, scale = namespace(rows), largest(rows)
    if basis is not None:
        rows = rows - (rows @ basis.mT) @ basis
    if not scale or not largest(rows) > 1e-15 * scale:
        return rows[:0, :], np.zeros((rows.shape[0], 0))
    columns, triangle = xp.linalg.qr(rows.mT)
    left, singular, turn = np.linalg.svd(to_numpy(triangle).T)
    size = scale * math.sqrt(rows.shape[1])
    kept = int(np.sum(singular > 1e-14 * size))
    block = (columns @ like(turn[:kept].T.copy(), rows)).mT
    if basis is not None and kept and singular[kept - 1] < WELL_SEPARATED * size:
        # A direction that was small has kept rounding errors in the basis; its sign must stay.
        columns, triangle = xp.linalg.qr((block - (block @ basis.mT) @ basis).mT)
        block = columns.mT * xp.sign(diagonal(triangle))[:, None]
    return block, left[:, :kept] * singular[:kept]


def _excess(
    values: Vector, turn: Vector, coupling: Vector, k: int, last: float, residual: float
) -> float:
    """Return the largest ratio of the residual of a Ritz pair to its tolerance."""
    if not coupling.shape[1] or not values[0] > 0.0:
        return 0.0
    rows = coupling.shape[0]
    # In units of the largest eigenvalue no square overflows or underflows.
    residuals = np.linalg.norm(turn[-rows:, :k].T @ (coupling / values[0]), axis=1)
    tolerances = np.full(k, residual)
    if k > 1:
        tolerances[-1] = last
    return float(np.max(residuals / tolerances))


def steps_left(seen: list[tuple[int, float]]) -> float:
    """Return a prediction of the number of steps until convergence; 0 for fewer than four steps.

    `seen` has, for each step, its number and the largest ratio of a residual to its tolerance. The
    decay rate over the second half of the steps is extrapolated, and half of the result is
    returned, because convergence gets faster.
    """
    if len(seen) < 4 or seen[-1][1] <= 1.0:
        return 0.0
    (first, before), (last, now) = seen[min(len(seen) // 2, len(seen) - 4)], seen[-1]
    rate = math.log(before / now) / (last - first)
    return math.log(now) / rate / 2 if rate > 0.0 else math.inf


def _grown(space: _Space, values: Vector, turn: Vector, block: Array, k: int) -> _Space:
    """Return the Krylov space with `block` added to its basis, if need be after a restart."""
    (size, m), width = space.basis.shape, block.shape[0]
    kept = k + max(2 * width, KEPT)
    most, storage, restricted = 2 * kept + 4 * width, space.storage, space.restricted
    if size + width > most:
        storage[:kept, :] = like(turn[:, :kept].T.copy(), space.basis) @ space.basis
        size, restricted = kept, np.diag(values[:kept])
    if size + width > storage.shape[0]:
        storage = zeros_like_shape((most, m), block)
        storage[:size, :] = space.basis
    storage[size : size + width, :] = block
    return _Space(storage[: size + width, :], restricted, block, space.steps, storage)


def _ritz(space: _Space, values: Vector, turn: Vector, k: int) -> tuple[Array, Array]:
    vectors = (like(turn[:, :k].T.copy(), space.basis) @ space.basis).mT
    return like(np.maximum(values[:k], 0.0), space.basis), vectors
