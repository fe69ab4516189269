"""Completion of a matrix with missing entries by a convex problem, with a bound on the error.

Let M be a matrix (n × m) of which only the entries in a set Ω are observed, P_Ω the projection that
sets all other entries to zero, r the number of columns of the factors U and V and λ the strength of
dropout. `DropoutFactorization` with ``handle_missing="complete"`` minimises

    ‖P_Ω(M − UVᵀ)‖² + λ Σₖ ‖uₖ‖²‖vₖ‖²

over factors with the columns uₖ and vₖ. Among all factors of one product X = UVᵀ of rank at most r,
the smallest penalty is (λ/r)‖X‖*², with the nuclear norm ‖X‖* (the sum of the singular values).
With μ = λ/r the problem is therefore

    F(X) = ‖P_Ω(M − X)‖² + μ‖X‖*²   over all X of rank at most r,

which is convex apart from the limit on the rank. Fenchel's duality theorem gives its dual: since
the conjugate of μ‖·‖*² is ‖·‖₂²/(4μ), with the spectral norm ‖·‖₂ (the largest singular value),

    F(X) ≥ D(Y) = 2⟨Y, M⟩ − ‖Y‖² − ‖Y‖₂²/μ   for all X and all Y that vanish outside of Ω,

without any constraint on Y. So every X gives a lower bound of the minimum: that of Y = tG with the
residual G = P_Ω(M − X) and the best factor t = ⟨G, M⟩/(‖G‖² + ‖G‖₂²/μ). F(X) − D(tG) is the duality
gap, an upper bound on what could be gained. It is zero if and only if ‖G‖₂ ≤ μ‖X‖* and ⟨G, X⟩ =
μ‖X‖*², and X is then optimal among all matrices, of any rank.

*This is not dropout on the observed entries.* There the mean over the masks adds the penalty
λ Σₖ Σ_{(i,j)∈Ω} uᵢₖ²vⱼₖ², which counts observed pairs only; that problem is not convex in X. The
theorems of Mianjy et al. 2018 hold for it only if nothing is missing.

*Solver.* X = ABᵀ is stored as balanced factors A = P diag(s)^½ and B = Q diag(s)^½ of its singular
value decomposition, for which ‖X‖* = (‖A‖² + ‖B‖²)/2. For a fixed number of columns this is a
smooth problem, on which damped Newton steps are made (conjugate gradients, preconditioned by the
diagonal; exact line search, since the loss along a line is a polynomial of degree four). Columns
are added along the singular vectors of G whose singular values exceed μ‖X‖*, and removed when their
singular value vanishes. All products are those of a sparse matrix with few columns: nothing of size
n × m is formed unless many entries are observed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse.linalg

from lucidae.arrays.eigen import column_signs
from lucidae.dropout.observed import CompletionObjective, Factors, ObservedEntries
from lucidae.iteration import Below, Solution, Status, iterate

__all__ = ["Completion", "complete"]

Matrix = np.ndarray[Any, Any]

DENSE_SPECTRUM = 2**18
"""Largest number of entries n · m of a residual whose singular values are all computed."""

NEW_COLUMNS = 6
"""Largest number of columns that are added at once to factors with fewer columns than this; to
factors with more columns, at most as many are added as they have."""


NEWTON_FORCING = 0.1
"""Largest norm of the residual of the Newton equations, relative to that of the gradient."""

CONJUGATE_STEPS = 60
"""Largest number of steps of conjugate gradients for one Newton step."""

LOOSE = 0.2
"""New columns are searched for when the relative norm of the gradient is below LOOSE ·
(‖G‖₂/(μ‖X‖*) − 1), with the symbols of the docstring of this module: X is the current matrix, G its
residual on the observed entries, and μ the factor of the penalty."""

GAIN = 1e-9
"""Smallest decrease of the loss, relative to the sum of squares of the observed entries, for which
columns of the factors are replaced by others."""


class _Triples(NamedTuple):
    """Leading singular values of a matrix, descending, with left and right singular vectors."""

    left: Matrix
    values: Matrix
    right: Matrix


def _outside(residual: Any, span: Factors, count: int) -> _Triples:
    """Return leading singular triples of (I − PPᵀ)G(I − QQᵀ), for orthonormal P and Q.

    `residual` is the sparse matrix G of the residuals on the observed entries, `span` contains P
    and Q, the left and right singular vectors of the current matrix X, and `count` is the number of
    triples. At the optimum, PPᵀGQQᵀ = μ‖X‖* PQᵀ, with the factor μ of the penalty and the nuclear
    norm ‖X‖*: all singular values of this part of G are equal.
    """
    P, Q = span
    n, m = residual.shape
    if n * m <= DENSE_SPECTRUM:
        dense = residual.toarray()
        dense = dense - P @ (P.T @ dense)
        dense = dense - (dense @ Q) @ Q.T
        left, values, right = np.linalg.svd(dense, full_matrices=False)
        return _Triples(left[:, :count], values[:count], right[:count].T)

    def forward(x: Matrix) -> Matrix:
        x = x - Q @ (Q.T @ x)
        y = residual @ x
        return np.asarray(y - P @ (P.T @ y))

    def backward(y: Matrix) -> Matrix:
        y = y - P @ (P.T @ y)
        x = residual.T @ y
        return np.asarray(x - Q @ (Q.T @ x))

    operator = scipy.sparse.linalg.LinearOperator(
        (n, m), matvec=forward, rmatvec=backward, matmat=forward, rmatmat=backward, dtype=float
    )
    start = np.random.default_rng(0).standard_normal(min(n, m))
    count = min(count, min(n, m) - 1)
    left, values, right = scipy.sparse.linalg.svds(operator, count, v0=start, tol=1e-4)
    return _Triples(left[:, ::-1], values[::-1], right[::-1].T)


def _spectral_norm(residual: Any, span: Factors, outside: float) -> float:
    """Return an upper bound on the largest singular value ‖G‖₂ of the residual from its blocks.

    `span` contains the left and right singular vectors P and Q of the current matrix. The
    projections PPᵀ and QQᵀ divide G (`residual`) into four blocks, and `outside` is the norm of the
    block (I − PPᵀ)G(I − QQᵀ). The norm of G is at most that of the 2 × 2 matrix of the norms of the
    blocks.
    """
    P, Q = span
    right, left = residual @ Q, residual.T @ P
    inner = P.T @ right
    blocks = np.array(
        [
            [np.linalg.norm(inner, 2), np.linalg.norm(left - Q @ inner.T, 2)],
            [np.linalg.norm(right - P @ inner, 2), outside],
        ]
    )
    return float(np.linalg.norm(blocks, 2))


@dataclass(frozen=True)
class _Iterate:
    """State of the iteration: balanced factors A and B of X, their loss, and a lower bound.

    X = ABᵀ is the current matrix with the singular values `values`, G (`residual`) contains its
    residuals on the observed entries, and μ is the factor of the penalty μ‖X‖*² with the nuclear
    norm ‖X‖*. `slope` is the norm of the gradient relative to μ‖X‖*‖(A, B)‖, `excess` the last
    measured ‖G‖₂/(μ‖X‖*) − 1, and `bound` the largest lower bound so far. `limited` says whether
    the factors are stationary although the optimum of the convex problem has a larger rank than is
    allowed.
    """

    factors: Factors
    values: Matrix
    residual: Matrix
    value: float
    slope: float
    excess: float
    bound: float
    limited: bool = False

    @property
    def rank(self) -> int:
        return len(self.values)

    @property
    def span(self) -> Factors:
        """Orthonormal left and right singular vectors of the current matrix X."""
        roots = np.sqrt(self.values)
        return Factors(self.factors.left / roots, self.factors.right / roots)


class _Solver:
    """Steps of the solver: Newton steps for factors A and B, whose number of columns may change.

    The loop over the steps is `lucidae.iteration.iterate`.
    """

    def __init__(self, objective: CompletionObjective, width: int) -> None:
        self.objective, self.entries = objective, objective.entries
        self.width = min(width, *self.entries.shape)
        self.energy = self.entries.energy

    def measured(self, factors: Factors, before: _Iterate | None = None) -> _Iterate:
        """Return the state of balanced `factors`, with its loss and the norm of its gradient.

        The lower bound on the loss (`bound`) and `excess` are copied from the state `before`, if it
        is given.
        """
        factors, values = factors.balanced()
        norm, residual = float(values.sum()), self.objective.residual(factors)
        gradient = self.objective.gradient(factors, self.entries.sparse(residual), norm)
        size = self.objective.penalty * norm * math.sqrt(2 * norm)
        slope = math.sqrt(gradient.dot(gradient)) / size if size > 0 else math.inf
        value = self.objective.value(residual, norm)
        excess, bound = (math.inf, 0.0) if before is None else (before.excess, before.bound)
        return _Iterate(factors, values, residual, value, slope, excess, bound)

    def gap(self, state: _Iterate) -> float:
        """Return the loss minus its largest known lower bound (duality gap).

        It is divided by the sum of squares of the observed entries.
        """
        return (state.value - state.bound) / self.energy

    def step(self, state: _Iterate, tolerance: float) -> _Iterate:
        """Return the state after one Newton step, with further columns if these reduce the loss.

        Further columns are searched for only when the gradient is small. `tolerance` is the
        relative duality gap at which the iteration ends.
        """
        state = self.measured(self.newton(state), state)
        due = min(LOOSE * max(state.excess, tolerance), 0.1)
        if state.rank >= self.width and state.excess > tolerance:
            due = min(due, math.sqrt(tolerance) / 10)  # the limit of the rank may be final
        return self.searched(state) if state.slope <= due else state

    def newton(self, state: _Iterate) -> Factors:
        """Return factors after one damped Newton step from `state`.

        The numbers of their columns do not change.
        """
        objective, factors = self.objective, state.factors
        norm, residual = float(state.values.sum()), self.entries.sparse(state.residual)
        gradient = objective.gradient(factors, residual, norm)
        forcing = min(NEWTON_FORCING, math.sqrt(state.slope))
        direction = conjugate_gradients(
            objective.hessian(factors, residual, norm),
            gradient,
            objective.curvatures(factors, norm),
            forcing,
        )
        return factors.plus(direction, self.best_length(state, direction))

    def best_length(self, state: _Iterate, direction: Factors) -> float:
        """Return the step length t with the smallest loss along a direction, by a cubic equation.

        After a step t from the factors (A, B) along the direction (A', B'), the residual R on the
        observed entries Ω becomes R − tE − t²E', where E = P_Ω(A'Bᵀ + AB'ᵀ) and E' = P_Ω(A'B'ᵀ).
        The nuclear norm N becomes at most N + tS + t²S', where S = ⟨A, A'⟩ + ⟨B, B'⟩ and S' =
        (‖A'‖² + ‖B'‖²)/2.
        """
        factors, entries, R = state.factors, self.entries, state.residual
        E = entries.product(
            np.hstack([direction.left, factors.left]), np.hstack([factors.right, direction.right])
        )
        E2 = entries.product(*direction)
        N, S, S2 = state.values.sum(), factors.dot(direction), direction.dot(direction) / 2
        loss = np.array([E2 @ E2, 2 * E @ E2, E @ E - 2 * R @ E2, -2 * R @ E, 0.0])
        norms = np.array([S2 * S2, 2 * S * S2, S * S + 2 * N * S2, 2 * N * S, 0.0])
        polynomial = loss + self.objective.penalty * norms
        roots = np.roots(np.polyder(polynomial))
        real = np.append(roots.real[np.abs(roots.imag) <= 1e-6 * np.abs(roots)], 0.0)
        return float(real[np.argmin(np.polyval(polynomial, real))])

    def searched(self, state: _Iterate) -> _Iterate:
        """Return the state with a new lower bound, and with new columns if they reduce the loss.

        New columns of the factors are searched for along leading singular vectors of the residual.
        """
        residual, span = self.entries.sparse(state.residual), state.span
        level = self.objective.penalty * float(state.values.sum())
        count = max(NEW_COLUMNS, state.rank)
        found = _outside(residual, span, min(count, min(self.entries.shape)))
        outside = float(found.values.max(initial=0.0))
        spectral = _spectral_norm(residual, span, outside)
        bound = max(state.bound, self.objective.lower_bound(state.residual, spectral))
        state = replace(state, bound=bound, excess=max(outside / level - 1.0, 0.0))
        new = int(np.count_nonzero(found.values > level * (1.0 + 1e-12)))
        if not new:
            return state
        if state.rank < self.width:
            new = min(new, self.width - state.rank)
            return self.measured(self.extended(state, found, new), state)
        return self.exchanged(state, found, new)

    def extended(self, state: _Iterate, found: _Triples, new: int) -> Factors:
        """Return factors with `new` further columns along singular vectors of the residual.

        X is the current matrix with the nuclear norm ‖X‖*, M the matrix to be completed, P_Ω
        selects its observed entries, and the loss is ‖P_Ω(M − X)‖² + μ‖X‖*². With the singular
        values σᵢ and vectors pᵢ, qᵢ of the residual (`found`) and α = μ‖X‖*, the matrix X changes
        by t Σᵢ (σᵢ − α) pᵢqᵢᵀ. Along this line the loss has an upper bound that is quadratic in t,
        since the nuclear norm is at most ‖X‖* + tS with the sum S of all σᵢ − α; its minimum gives
        t.
        """
        P, values, Q = found.left[:, :new], found.values[:new], found.right[:, :new]
        level = self.objective.penalty * float(state.values.sum())
        sizes = values - level
        total = float(sizes.sum())
        moved = self.entries.product(P * sizes, Q)
        curvature = float(moved @ moved) + self.objective.penalty * total * total
        length = float(sizes @ sizes) / curvature
        roots = np.sqrt(length * sizes)
        return Factors(
            np.hstack([state.factors.left, P * roots]), np.hstack([state.factors.right, Q * roots])
        )

    def exchanged(self, state: _Iterate, found: _Triples, new: int) -> _Iterate:
        """Return a state of the largest allowed rank with a smaller loss.

        `new` columns along the singular triples `found` of the residual are added and optimised,
        and then the smallest singular values are removed. If this does not reduce the loss, the
        given state is returned with `limited` set to True.
        """
        wider = self.measured(self.extended(state, found, min(new, NEW_COLUMNS)), state)
        for _ in range(5):
            wider = self.measured(self.newton(wider), state)
        cut = self.measured(Factors(*(part[:, : self.width] for part in wider.factors)), state)
        for _ in range(10):
            if cut.value < state.value - GAIN * self.energy:
                return cut
            cut = self.measured(self.newton(cut), state)
        return replace(state, limited=True)


def conjugate_gradients(
    hessian: Callable[[Factors], Factors], gradient: Factors, diagonal: Factors, forcing: float
) -> Factors:
    """Return an approximate Newton direction, a direction of descent.

    Conjugate gradients for H d = −g, preconditioned by a positive diagonal, end when the residual
    is at most `forcing` times that of d = 0, or at a direction of negative curvature.
    """
    residual = gradient.times(-1.0)
    scaled = Factors(residual.left / diagonal.left, residual.right / diagonal.right)
    direction, search = scaled.times(0.0), scaled
    product = residual.dot(scaled)
    target = forcing * forcing * product
    for number in range(CONJUGATE_STEPS):
        image = hessian(search)
        curvature = search.dot(image)
        if curvature <= 0.0:
            return search if number == 0 else direction
        length = product / curvature
        direction = direction.plus(search, length)
        residual = residual.plus(image, -length)
        scaled = Factors(residual.left / diagonal.left, residual.right / diagonal.right)
        before, product = product, residual.dot(scaled)
        if product <= target:
            break
        search = scaled.plus(search, product / before)
    return direction


@dataclass(frozen=True, eq=False)
class Completion:
    """Solution of a completion problem: singular value decomposition and loss of the matrix X.

    The loss is F(X) = ‖P_Ω(M − X)‖² + μ‖X‖*², where P_Ω selects the observed entries of the given
    matrix M, ‖X‖* is the nuclear norm and μ the factor of the penalty. ρ is the rank of X (n × m).
    """

    # singular vectors and singular values of X; of each right singular vector the entry of largest
    # magnitude is positive
    left: Matrix
    values: Matrix
    right: Matrix
    value: float  # the loss F(X)
    gap: float  # upper bound on F(X) minus its minimum over all matrices, relative to ‖P_Ω M‖²
    # whether the minimum over all matrices has a larger rank than the factors have columns
    limited: bool

    @property
    def rank(self) -> int:
        """Rank of the completed matrix X."""
        return len(self.values)

    @property
    def norm(self) -> float:
        """Nuclear norm of the completed matrix X, the sum of its singular values."""
        return float(self.values.sum())


def complete(
    entries: ObservedEntries,
    strength: float,
    width: int,
    *,
    start: Completion | None = None,
    tolerance: float = 1e-6,
    limit: int = 500,
    callbacks: Sequence[Callable[..., Any]] = (),
) -> Solution[Completion]:
    """Return the matrix X that minimises ‖P_Ω(M − X)‖² + (λ/r)‖X‖*² over rank at most r."""
    if not np.any(entries.values):
        n, m = entries.shape
        zero = Completion(np.zeros((n, 0)), np.zeros(0), np.zeros((m, 0)), 0.0, 0.0, False)
        return Solution(zero, Status.CONVERGED, 0, 0.0, tolerance)
    # Division by a power of two is exact, and no square overflows or underflows after it.
    unit = 2.0 ** math.frexp(float(np.abs(entries.values).max()))[1]
    objective = CompletionObjective(entries.with_values(entries.values / unit), strength / width)
    solver = _Solver(objective, width)
    solution = iterate(
        lambda state: solver.step(state, tolerance),
        _started(solver, start, unit),
        stop=Below(lambda state: 0.0 if state.limited else solver.gap(state), tolerance),
        limit=limit,
        callbacks=callbacks,
        size=max(entries.shape),
    )
    state = solution.value
    turn = column_signs(state.span.right)
    found = Completion(
        state.span.left * turn,
        state.values * unit,
        state.span.right * turn,
        state.value * unit * unit,
        max(solver.gap(state), 0.0),
        state.limited,
    )
    return Solution(
        found,
        solution.status,
        solution.n_iter,
        solution.distance,
        solution.tolerance,
        solution.history,
    )


def _started(solver: _Solver, start: Completion | None, unit: float) -> _Iterate:
    """Return the first state: that of a given solution, or the best multiple of a rank-one matrix.

    If `start` is None, the first matrix is a multiple of the product of the leading left and right
    singular vectors of the matrix in which missing entries are zero. `unit` is the number by which
    its entries have been divided.
    """
    if start is not None and start.rank:
        count = min(start.rank, solver.width)
        roots = np.sqrt(start.values[:count] / unit)
        given = Factors(start.left[:, :count] * roots, start.right[:, :count] * roots)
        return solver.searched(solver.measured(given))
    n, m = solver.entries.shape
    none = Factors(np.zeros((n, 0)), np.zeros((m, 0)))
    residual = solver.entries.values
    empty = _Iterate(none, np.zeros(0), residual, solver.energy, math.inf, math.inf, 0.0)
    found = _outside(solver.entries.sparse(), none, min(NEW_COLUMNS, n, m))
    new = min(solver.width, int(np.count_nonzero(found.values > 0.1 * found.values[0])))
    return solver.measured(solver.extended(empty, found, new))
