"""Leading eigenpairs of a symmetric matrix, by a dense solver or by iterations.

Block Krylov iteration needs only products with the matrix, such as the second moment Σ of data
(m × m), which is not formed. The Krylov space of a block B of b random row vectors after q steps is
the span of the rows of B, BΣ, …, BΣ^(q−1). The eigenpairs of Σ restricted to this space (Ritz
pairs) converge to the leading eigenpairs of Σ. Each product of b vectors with Σ reads the data
once.

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
import scipy.linalg
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from lucidae.arrays import (
    Array,
    column_signs,
    diagonal,
    eigh_descending,
    eye_like,
    largest,
    like,
    machine_epsilon,
    namespace,
    normal,
    on_host,
    to_numpy,
    zeros_like_shape,
)
from lucidae.arrays.threads import one_scipy_thread

Vector = np.ndarray[Any, Any]

ITERATIVE_FEATURES = 3000
"""Smallest number of rows of a matrix for which block Krylov iteration is used. On two cores the
dense solver takes 0.27 s for 50 eigenpairs of 2000 rows, 1.0 s for 20 of 3000 and 3.0 s for 50 of
4000; this iteration takes 0.3 to 0.8 s for the first and 0.3 to 0.9 s for the second."""

ITERATIVE_ON_DEVICE = 8192
"""Smallest number of rows of a matrix on a GPU for which block Krylov iteration is used. Its dense
solver is fast, and the iteration consists of many small operations, each of which has to be
launched: on an H200, 21 eigenpairs of 784 rows take 8 ms against 50 ms."""

ITERATIVE_SHARE = 20
"""Block Krylov iteration is used if the number of rows of the matrix divided by the number of
wanted eigenpairs is at least this number."""

ARPACK_FEATURES = 300
"""Smallest number of rows of a matrix for which ARPACK is tried before the dense solver. With
eigenvalues that decay it takes less than a quarter of the time."""

ARPACK_LARGEST = 4096
"""Largest number of rows of a matrix for which ARPACK is tried before block Krylov iteration. A
larger matrix is read from memory for every product, and products with a block read it less often.
"""

ARPACK_PAIRS = 64
"""Largest number of wanted eigenpairs of a matrix for which ARPACK is tried: orthogonalising one
vector at a time takes most of the time if there are more."""

ARPACK_SHARE, ARPACK_LEAST = 0.1, 30
"""ARPACK is given up after `ARPACK_SHARE` times the number of rows of a matrix plus `ARPACK_LEAST`
products with vectors. They then have taken about as long as the dense solver would."""

SMALL = 128
"""Largest number of rows of a matrix of which all eigenpairs are computed, by NumPy: SciPy has
threads of its own, which wait for those of NumPy longer than so small a problem takes."""

LARGEST_WHOLE = 1200
"""Largest number of rows of a matrix of which all eigenpairs are computed if many are wanted."""

WHOLE_SHARE = 8
"""Many are more than the number of rows divided by this number. For 1000 rows, all eigenpairs take
105 ms, and 200 of them, by SciPy, 123 ms; 100 of them take 85 ms."""

SCIPY_ALONE = 1800
"""Largest number of rows of a matrix whose eigenpairs SciPy computes with one thread. With two
threads, 50 of 500 take 30 ms instead of 16 ms, because those of NumPy are still waiting for work;
from 2000 rows on, two threads are faster."""

SEARCHED = 6
"""Number of Lanczos steps by which eigenvectors that an iteration has missed are searched for."""

MISSED = 1e-9
"""An eigenvalue outside of the computed ones counts as missed if it exceeds the last of them by
this part of the largest."""

ROUNDING_ERRORS = 100.0
"""Tolerance for orthonormal eigenvectors V (m × k): no entry of VᵀV may differ from the identity by
more than this number times m times the machine epsilon."""

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


def leading_eigenpairs(matrix: Array, k: int) -> tuple[Array, Array]:
    """Return the `k` largest eigenvalues, descending, and orthonormal eigenvectors as columns.

    The error of an eigenvalue is about m (the size of the matrix) times the machine epsilon times
    the largest eigenvalue. Eigenvalues below this error and their eigenvectors are arbitrary, but
    the returned eigenvectors are always orthonormal.
    """
    size = matrix.shape[0]
    found = None
    smallest = ITERATIVE_FEATURES if on_host(matrix) else ITERATIVE_ON_DEVICE
    few = k <= size // ITERATIVE_SHARE
    vectors = ARPACK_FEATURES <= size <= ARPACK_LARGEST and k <= ARPACK_PAIRS
    if isinstance(matrix, np.ndarray) and few and vectors:
        found = _dense_arpack(matrix, k)
    if found is None and size >= smallest and few:
        # A dense solver takes about 6 size³ operations at the speed of products with vectors, which
        # is as much as this number of products with a block of k vectors.
        passes = 1.5 * size / min(k + EXTRA, WIDEST)
        found = krylov_eigenpairs(
            lambda rows: rows @ matrix, k, matrix[0, :], passes=passes, last=RESIDUAL
        )
    # NumPy computes all eigenpairs by another algorithm, which uses several threads better.
    whole = size <= SMALL or (size <= LARGEST_WHOLE and k > size // WHOLE_SHARE)
    if found is None and isinstance(matrix, np.ndarray) and k < size and not whole:
        found = subset_eigenpairs(matrix, k)
    if found is None:
        values, columns = eigh_descending(matrix)
        found = values[:k], columns[:, :k]
        if isinstance(
            matrix, np.ndarray
        ):  # LAPACK's syevd, whose eigenvectors are always orthonormal
            return found
    return found if are_orthonormal(found[1]) else all_eigenpairs(matrix, k)


def _dense_arpack(matrix: Array, k: int) -> tuple[Array, Array] | None:
    """Return the `k` leading eigenpairs of a dense matrix by ARPACK; None if it takes too long."""
    # Tolerances of small numbers are absolute, so that the trace is made 1.
    unit = float(np.trace(matrix))
    if matrix.dtype != np.float64 or not 0.0 < unit < np.inf:
        return None
    products = ARPACK_LEAST + int(ARPACK_SHARE * matrix.shape[0])
    found = arpack_eigenpairs(lambda v: (matrix @ v) / unit, matrix.shape[0], k, products)
    return None if found is None else (found[0] * unit, found[1])


def arpack_eigenpairs(
    apply: Callable[[Array], Array], size: int, k: int, products: int, *, rough: bool = False
) -> tuple[Array, Array] | None:
    """Return the `k` leading eigenpairs of a positive semidefinite matrix, one vector at a time.

    With `rough`, the last pair is only estimated.
    """
    rough = rough and k > 1
    count = k - 1 if rough else k
    kept = max(2 * count + 1, 20)  # vectors that ARPACK stores; a restart adds kept − count
    restarts = (products - kept) // (kept - count)
    if kept >= size or restarts < 1:
        return None
    operator = LinearOperator((size, size), matvec=apply, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(size)
    try:
        # NumPy computes the products; SciPy's threads would wait for those of NumPy.
        with one_scipy_thread():
            found = eigsh(operator, count, which="LA", v0=start, ncv=kept, maxiter=restarts)
    except ArpackError:
        return None
    values, vectors = found[0][::-1].copy(), np.linalg.qr(found[1][:, ::-1])[0]
    next_value, next_vector = _outside(apply, vectors)
    if not values[-1] > 0.0 or next_value > values[-1] + MISSED * values[0]:
        return None
    if rough:
        values = np.append(values, next_value)
        vectors = np.concatenate([vectors, next_vector[:, None]], axis=1)
    return values, vectors


def _outside(apply: Callable[[Array], Array], vectors: Array) -> tuple[float, Array]:
    """Estimate the largest eigenvalue of a matrix on the complement of orthonormal columns.

    A few Lanczos steps from a random vector give a Ritz value, a lower bound, and its vector.
    """
    size = vectors.shape[0]
    basis, images = np.empty((0, size)), np.empty((0, size))
    vector = np.random.default_rng(1).standard_normal(size)
    for _ in range(min(SEARCHED, size - vectors.shape[1])):
        for _ in range(2):  # twice is enough (Kahan, Parlett)
            vector = vector - vectors @ (vectors.T @ vector) - basis.T @ (basis @ vector)
        length = float(np.linalg.norm(vector))
        if not length > 0.0:
            break
        basis = np.concatenate([basis, vector[None, :] / length])
        vector = apply(basis[-1])
        images = np.concatenate([images, vector[None, :]])
    if not len(basis):
        return 0.0, np.zeros(size)
    values, turns = np.linalg.eigh(basis @ images.T)
    return float(values[-1]), turns[:, -1] @ basis


def are_orthonormal(vectors: Array) -> bool:
    """Tell whether the columns of `vectors` are orthonormal up to rounding errors."""
    gram = vectors.mT @ vectors
    allowed = ROUNDING_ERRORS * vectors.shape[0] * machine_epsilon(vectors)
    return bool(largest(gram - eye_like(gram.shape[0], gram)) <= allowed)


def subset_eigenpairs(matrix: Array, k: int) -> tuple[Array, Array] | None:
    """Return the `k` leading eigenpairs of a NumPy matrix by LAPACK's ``syevr``, or None.

    If the eigenvalues span more decades than the floating-point numbers have digits, the
    eigenvectors may not be orthogonal. The routine may fail or return fewer pairs if many
    eigenvalues are equal.
    """
    last = matrix.shape[0] - 1
    try:
        with one_scipy_thread(matrix.shape[0] <= SCIPY_ALONE):
            values, vectors = scipy.linalg.eigh(
                matrix, subset_by_index=[last - k + 1, last], check_finite=False
            )
    except np.linalg.LinAlgError:
        return None
    return (values[::-1], vectors[:, ::-1]) if len(values) == k else None


def all_eigenpairs(matrix: Array, k: int) -> tuple[Array, Array]:
    """Return the `k` leading eigenpairs from a full decomposition on the CPU.

    LAPACK's ``syevd`` computes the eigenvectors as a product of orthogonal matrices, so that they
    are orthonormal for every matrix.
    """
    values, vectors = np.linalg.eigh(to_numpy(matrix))
    values, vectors = values[::-1][:k].copy(), vectors[:, ::-1][:, :k].copy()
    return like(values, matrix), like(vectors, matrix)


def fix_signs(vectors: Array) -> Array:
    """Return `vectors` with the entry of largest magnitude of each column made positive."""
    return vectors * column_signs(vectors)


def orthonormal_rows(rows: Array) -> Array:
    """Return orthonormal rows with the same span as `rows`, by a QR factorisation.

    The triangular factor has a non-negative diagonal, which makes the result a continuous function
    of `rows` if these have full rank.
    """
    xp = namespace(rows)
    basis, triangle = xp.linalg.qr(rows.mT)
    signs = 1.0 - 2.0 * xp.astype(diagonal(triangle) < 0, rows.dtype)
    return (basis * signs[..., None, :]).mT


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
    block, _ = _orthonormal(normal(rng, (width, m), reference), None)
    space = _Space(block, np.zeros((0, 0)), block, 0, block)
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
            vectors = (like(turn[:, :k].T.copy(), space.basis) @ space.basis).mT
            return like(np.maximum(values[:k], 0.0), space.basis), vectors
        if math.isfinite(excess):
            seen.append((space.steps, excess))
        hopeless = space.steps >= passes / 4 and space.steps + steps_left(seen) > passes
        if hopeless or space.steps >= passes:
            return None
        if search.begins or not block.shape[0]:
            # The space is invariant, or converged: new random vectors find what it may have missed.
            # They join the next block; without that block, the residuals would be underestimated.
            xp, random = namespace(block), normal(rng, (search.rows, m), block)
            block = xp.concat([block, _orthonormal(random, xp.concat([space.basis, block]))[0]])
        space = _grown(space, values, turn, block, k)


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
