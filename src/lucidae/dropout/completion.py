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
value decomposition, for which ‖X‖* = (‖A‖² + ‖B‖²)/2; both are the rows of one matrix Z = [A; B].
For a fixed number of columns this is a smooth problem, on which damped Newton steps are made
(conjugate gradients, preconditioned by the diagonal; exact line search, since the loss along a line
is a polynomial of degree four). Columns are added along the singular vectors of G whose singular
values exceed μ‖X‖*, and removed when their singular value vanishes. All products are those of a
sparse matrix with few columns: nothing of size n × m is formed unless many entries are observed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from sklearn.model_selection import KFold

from lucidae.arrays import column_signs, to_numpy
from lucidae.dropout.path import CrossValidation, PathOfRates, checked_splits
from lucidae.dropout.solvers import hidden_width, product_svd
from lucidae.dropout.theory import code_basis, dropout_of, strength_of
from lucidae.dropout.verify_completion import ZERO
from lucidae.iteration import Below, Solution, Status, iterate, limited_blas
from lucidae.validation import check_integer, check_number, check_rows

Matrix = np.ndarray[Any, Any]

ABSENT = "absent"
"""Value of `missing_values` for which entries that a sparse matrix does not store are missing."""

LARGEST_DENSE = 2**27
"""Largest size n · m of a sparse matrix that is converted to a dense one, with zeros for the
entries that it does not store, and of dense residuals."""

DENSE_SHARE = 1 / 16
"""Share of observed entries above which products UVᵀ and residuals of up to `LARGEST_DENSE` entries
are dense matrices: of 1797 × 64 entries, of which four fifths are observed, cross-validation takes
10 s, and 17 s with sparse matrices."""

BLOCK = 2**22
"""Largest number of entries of temporary arrays in the computation of single entries of products
and of codes."""


VANISHED = 1e-11
"""Singular values of the completed matrix below this multiple of the largest are set to zero."""


def marked(X: Any, missing_values: Any) -> Any:
    """Return a matrix in main memory: dense with NaN for missing entries, or without them."""
    absent = isinstance(missing_values, str) and missing_values == ABSENT
    number = isinstance(missing_values, float | np.floating)
    if not absent and not (number and np.isnan(missing_values)):
        raise ValueError(
            f"missing_values={missing_values!r} was given, expected numpy.nan (entries that are "
            "NaN are missing, and entries that a sparse matrix does not store are zeros) or "
            "'absent' (entries that a sparse matrix does not store are missing)."
        )
    if not scipy.sparse.issparse(X):
        X = to_numpy(X)
        if absent and np.isnan(X).any():
            raise ValueError(
                "X is dense and contains NaN, but missing_values='absent' was given: give "
                "missing_values=numpy.nan, or a sparse matrix of the observed entries."
            )
        return X
    if absent:
        return X.tocsr()
    if X.shape[0] * X.shape[1] > LARGEST_DENSE:
        raise ValueError(
            f"X is a sparse matrix of shape {X.shape}, whose absent entries are zeros for "
            "missing_values=nan; that many zeros cannot be stored. If absent entries are missing, "
            "give missing_values='absent'."
        )
    return X.toarray()


@dataclass(frozen=True)
class ObservedEntries:
    """The observed entries of a matrix M, row by row."""

    shape: tuple[int, int]  # numbers n and m of rows and columns of M
    starts: Matrix  # (n + 1,): row i has the entries starts[i], …, starts[i + 1] − 1
    columns: Matrix  # column of each observed entry
    values: Matrix  # value of each observed entry

    @classmethod
    def of(cls, X: Any) -> ObservedEntries:
        """Return the entries that are not NaN and, of a sparse matrix, stored (also zeros)."""
        if scipy.sparse.issparse(X):
            rows = X.tocsr()
            seen = ~np.isnan(rows.data)
            counts = np.concatenate([[0], np.cumsum(seen)])
            return cls(
                (int(X.shape[0]), int(X.shape[1])),
                counts[rows.indptr],
                rows.indices[seen],
                np.asarray(rows.data[seen], dtype=np.float64),
            )
        seen = ~np.isnan(X)
        starts = np.concatenate([[0], np.cumsum(np.count_nonzero(seen, axis=1))])
        values = np.asarray(X[seen], dtype=np.float64)
        return cls((int(X.shape[0]), int(X.shape[1])), starts, np.nonzero(seen)[1], values)

    @cached_property
    def rows(self) -> Matrix:
        """Row of each observed entry."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.starts))

    @property
    def count(self) -> int:
        """Number of observed entries."""
        return len(self.values)

    @property
    def energy(self) -> float:
        """Sum of squares of the observed entries."""
        return float(self.values @ self.values)

    @property
    def complete(self) -> bool:
        """Whether no entry is missing."""
        return self.count == self.shape[0] * self.shape[1]

    def limited_threads(self) -> AbstractContextManager[None]:
        """Return a context manager in which BLAS has one thread if min(n, m), the rank, is small.

        The many products of thin factors are slower with more threads.
        """
        return limited_blas(min(self.shape))

    def taken(self, chosen: Matrix) -> ObservedEntries:
        """Return the observed entries with the given indices."""
        kept = np.zeros(self.count, dtype=bool)
        kept[chosen] = True
        counts = np.concatenate([[0], np.cumsum(kept)])
        return ObservedEntries(
            self.shape, counts[self.starts], self.columns[kept], self.values[kept]
        )

    def weighted(self, roots: Matrix) -> ObservedEntries:
        """Return the observed entries after multiplying row i of the matrix by ``roots[i]``."""
        return replace(self, values=self.values * roots[self.rows])

    @cached_property
    def mask(self) -> Matrix | None:
        """Dense matrix with 1 where an entry is observed; None if residuals are to be sparse."""
        size = math.prod(self.shape)
        if size > LARGEST_DENSE or self.count <= DENSE_SHARE * size:
            return None
        found = np.zeros(self.shape)
        found[self.rows, self.columns] = 1.0
        return found

    def matrix(self, values: Matrix) -> Any:
        """Return a matrix with given observed entries and zeros, dense if there is a `mask`."""
        if self.mask is None:
            return scipy.sparse.csr_array((values, self.columns, self.starts), shape=self.shape)
        found = np.zeros(self.shape)
        found[self.rows, self.columns] = values
        return found

    def projected(self, left: Matrix, right: Matrix) -> Any:
        """Return P_Ω(left · rightᵀ) as a matrix."""
        if self.mask is None:
            return self.matrix(self.product(left, right))
        return self.mask * (left @ right.T)

    def product(self, left: Matrix, right: Matrix) -> Matrix:
        """Return the entries of left · rightᵀ at the positions of the observed entries."""
        if self.mask is not None:
            return np.asarray((left @ right.T)[self.rows, self.columns])
        found = np.empty(self.count)
        step = max(1, BLOCK // max(left.shape[1], 1))
        for start in range(0, self.count, step):
            part = slice(start, start + step)
            found[part] = np.einsum("ij,ij->i", left[self.rows[part]], right[self.columns[part]])
        return found


def observed_codes(entries: ObservedEntries, right: Matrix, strength: float) -> Matrix:
    """Return the codes of incomplete rows that minimise their loss for a fixed factor V.

    The code of a row m with the observed entries o is (V_oᵀV_o + λ diag‖vₖ‖²)⁻¹V_oᵀm_o, and 0
    without any. At a minimum of F it is the row of U, so that training rows get the codes that they
    have in U.
    """
    codes = np.zeros((entries.shape[0], right.shape[1]))
    # V has the rank ρ ≤ r of X: with V diag‖vₖ‖⁻¹ = W diag(w) Tᵀ (singular value decomposition) and
    # B = W diag(w) the code is diag‖vₖ‖⁻¹ T z for z = (B_oᵀB_o + λI)⁻¹B_oᵀm_o, a system of size ρ.
    basis, _, back = code_basis(right)
    chosen = np.flatnonzero(np.diff(entries.starts))
    step = max(1, BLOCK // max(basis.shape[1] ** 2, 1))
    for start in range(0, len(chosen), step):
        part = chosen[start : start + step]
        grams = np.empty((len(part), basis.shape[1], basis.shape[1]))
        images = np.empty((len(part), basis.shape[1], 1))
        for place, row in enumerate(part):
            seen = slice(entries.starts[row], entries.starts[row + 1])
            block = basis[entries.columns[seen]]
            grams[place] = block.T @ block
            images[place, :, 0] = entries.values[seen] @ block
        grams += strength * np.eye(basis.shape[1])
        codes[part] = np.linalg.solve(grams, images)[:, :, 0] @ back
    return codes


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
(‖G‖₂/(μ‖X‖*) − 1)."""

GAIN = 1e-9
"""Smallest decrease of the loss, relative to the sum of squares of the observed entries, for which
columns of the factors are replaced by others."""


class _Triples(NamedTuple):
    """Leading singular values of a matrix, descending, with left and right singular vectors."""

    left: Matrix
    values: Matrix
    right: Matrix


def _outside(residual: Any, P: Matrix, Q: Matrix, count: int) -> _Triples:
    """Return leading singular triples of (I − PPᵀ)G(I − QQᵀ), with the singular vectors P, Q of X.

    At the optimum PPᵀGQQᵀ = μ‖X‖* PQᵀ: all singular values of that part of G are equal.
    """
    n, m = residual.shape
    # (I − PPᵀ)G(I − QQᵀ) = G − [P, (I − PPᵀ)GQ][GᵀP, Q]ᵀ
    images = residual @ Q
    tall, wide = np.hstack([P, images - P @ (P.T @ images)]), np.hstack([residual.T @ P, Q]).T
    if n * m <= DENSE_SPECTRUM:
        dense = residual if isinstance(residual, np.ndarray) else residual.toarray()
        left, values, right = np.linalg.svd(dense - tall @ wide, full_matrices=False)
        return _Triples(left[:, :count], values[:count], right[:count].T)
    whole, first, second = map(scipy.sparse.linalg.aslinearoperator, (residual, tall, wide))
    operator = whole - first @ second
    start = np.random.default_rng(0).standard_normal(min(n, m))
    count = min(count, min(n, m) - 1)
    left, values, right = scipy.sparse.linalg.svds(operator, count, v0=start, tol=1e-4)
    return _Triples(left[:, ::-1], values[::-1], right[::-1].T)


def _spectral_norm(residual: Any, P: Matrix, Q: Matrix, outside: float) -> float:
    """Return an upper bound on ‖G‖₂: the norm of the 2 × 2 matrix of the norms of its blocks.

    PPᵀ and QQᵀ divide G into four blocks; `outside` is the norm of (I − PPᵀ)G(I − QQᵀ).
    """
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
    """State of the iteration: balanced factors Z = [A; B] of X, their loss, and a lower bound."""

    factors: Matrix  # (n + m, ρ)
    values: Matrix  # singular values of X
    residual: Matrix  # observed entries of M − X
    gradient: Matrix  # half of the gradient
    value: float  # F(X)
    slope: float  # norm of the gradient, relative to μ‖X‖*‖(A, B)‖
    excess: float  # the last measured ‖G‖₂/(μ‖X‖*) − 1
    bound: float  # the largest lower bound so far
    limited: bool = False  # stationary, although the convex problem has an optimum of larger rank

    @property
    def rank(self) -> int:
        return len(self.values)


class _Solver:
    """Newton steps for factors A and B, whose number of columns may change.

    The loss is ‖P_Ω(M − ABᵀ)‖² + μ(‖Z‖²/2)², which is F(ABᵀ) for balanced factors.
    """

    def __init__(self, entries: ObservedEntries, penalty: float, width: int) -> None:
        self.entries, self.penalty = entries, penalty  # the observed entries of M, and μ = λ/r
        self.width = min(width, *entries.shape)
        self.energy = entries.energy

    def parts(self, factors: Matrix) -> tuple[Matrix, Matrix]:
        """Return A and B of Z = [A; B]."""
        n = self.entries.shape[0]
        return factors[:n], factors[n:]

    def exchange(self, matrix: Any, factors: Matrix) -> Matrix:
        """Return [RB; RᵀA] for a matrix R."""
        left, right = self.parts(factors)
        return np.vstack([matrix @ right, matrix.T @ left])

    def moved(self, factors: Matrix, direction: Matrix) -> tuple[Matrix, Matrix]:
        """Return factors of A'Bᵀ + AB'ᵀ, by which the product changes in a direction [A'; B']."""
        (A, B), (A1, B1) = self.parts(factors), self.parts(direction)
        return np.hstack([A1, A]), np.hstack([B, B1])

    def measured(self, left: Matrix, right: Matrix, before: _Iterate | None = None) -> _Iterate:
        """Return the state of factors A and B, with `bound` and `excess` of the state `before`."""
        P, values, Q = product_svd(left, right)
        kept = values > VANISHED * values.max(initial=0.0)
        values = values[kept]
        factors = np.vstack([P[:, kept], Q[:, kept]]) * np.sqrt(values)
        norm = float(values.sum())
        residual = self.entries.values - self.entries.product(*self.parts(factors))
        pull = self.exchange(self.entries.matrix(residual), factors)
        gradient, size = (
            self.penalty * norm * factors - pull,
            self.penalty * norm * math.sqrt(2 * norm),
        )
        slope = float(np.linalg.norm(gradient)) / size if size > 0 else math.inf
        value = float(residual @ residual) + self.penalty * norm * norm
        excess, bound = (math.inf, 0.0) if before is None else (before.excess, before.bound)
        return _Iterate(factors, values, residual, gradient, value, slope, excess, bound)

    def gap(self, state: _Iterate) -> float:
        """Return the duality gap, relative to the sum of squares of the observed entries."""
        return (state.value - state.bound) / self.energy

    def step(self, state: _Iterate, tolerance: float) -> _Iterate:
        """Return the state after a Newton step and, if the gradient is small, with new columns."""
        state = self.newton(state)
        due = min(LOOSE * max(state.excess, math.sqrt(tolerance)), 0.1)
        if state.rank >= self.width and state.excess > tolerance:
            due = min(due, math.sqrt(tolerance) / 10)  # the limit of the rank may be final
        return self.searched(state) if state.slope <= due else state

    def newton(self, state: _Iterate) -> _Iterate:
        """Return the state after one damped Newton step; its number of columns stays."""
        Z, level = state.factors, self.penalty * float(state.values.sum())
        residual = self.entries.matrix(state.residual)

        def hessian(direction: Matrix) -> Matrix:
            """Return half of the Hessian times a direction.

            The residual changes by −P_Ω(A'Bᵀ + AB'ᵀ), and the nuclear norm by ⟨Z, Z'⟩.
            """
            moved = self.entries.projected(*self.moved(Z, direction))
            turned = self.penalty * float(np.vdot(Z, direction)) * Z
            return np.asarray(
                level * direction + turned + self.exchange(moved, Z)
                - self.exchange(residual, direction)
            )  # fmt: skip

        # a positive approximation to the diagonal of half of the Hessian
        diagonal = self.exchange(self.entries.matrix(np.ones(self.entries.count)), Z * Z) + level
        forcing = min(NEWTON_FORCING, math.sqrt(state.slope))
        direction = conjugate_gradients(hessian, state.gradient, diagonal, forcing)
        moved = Z + self.best_length(state, direction) * direction
        return self.measured(*self.parts(moved), state)

    def best_length(self, state: _Iterate, direction: Matrix) -> float:
        """Return the step t with the smallest loss along a direction [A'; B'], by a cubic equation.

        The residual R becomes R − tE − t²E' with E = P_Ω(A'Bᵀ + AB'ᵀ) and E' = P_Ω(A'B'ᵀ), the
        nuclear norm N at most N + tS + t²S' with S = ⟨Z, Z'⟩ and S' = ‖Z'‖²/2.
        """
        Z, R = state.factors, state.residual
        E = self.entries.product(*self.moved(Z, direction))
        E2 = self.entries.product(*self.parts(direction))
        N, S, S2 = state.values.sum(), np.vdot(Z, direction), np.vdot(direction, direction) / 2
        loss = np.array([E2 @ E2, 2 * E @ E2, E @ E - 2 * R @ E2, -2 * R @ E, 0.0])
        norms = np.array([S2 * S2, 2 * S * S2, S * S + 2 * N * S2, 2 * N * S, 0.0])
        polynomial = loss + self.penalty * norms
        roots = np.roots(np.polyder(polynomial))
        real = np.append(roots.real[np.abs(roots.imag) <= 1e-6 * np.abs(roots)], 0.0)
        return float(real[np.argmin(np.polyval(polynomial, real))])

    def searched(self, state: _Iterate) -> _Iterate:
        """Return the state with a new lower bound, and with new columns if they reduce the loss."""
        residual = self.entries.matrix(state.residual)
        span = self.parts(state.factors / np.sqrt(state.values))
        level = self.penalty * float(state.values.sum())
        count = max(NEW_COLUMNS, state.rank)
        found = _outside(residual, *span, min(count, min(self.entries.shape)))
        outside = float(found.values.max(initial=0.0))
        spectral = _spectral_norm(residual, *span, outside)
        # D(tG) for the best t
        along = max(float(state.residual @ self.entries.values), 0.0)
        curvature = float(state.residual @ state.residual) + spectral * spectral / self.penalty
        bound = max(state.bound, along * along / curvature if along else 0.0)
        state = replace(state, bound=bound, excess=max(outside / level - 1.0, 0.0))
        new = int(np.count_nonzero(found.values > level * (1.0 + 1e-12)))
        if not new:
            return state
        if state.rank < self.width:
            return self.extended(state, found, min(new, self.width - state.rank))
        # The rank is the largest allowed one: columns are added and optimised, and the smallest
        # singular values removed. If that does not reduce the loss, the state is `limited`.
        wider = self.extended(state, found, min(new, NEW_COLUMNS))
        for _ in range(5):
            wider = self.newton(wider)
        cut = self.measured(*self.parts(wider.factors[:, : self.width]), state)
        for _ in range(10):
            if cut.value < state.value - GAIN * self.energy:
                return cut
            cut = self.newton(cut)
        return replace(state, limited=True)

    def extended(self, state: _Iterate, found: _Triples, new: int) -> _Iterate:
        """Return the state with `new` further columns along singular vectors of the residual.

        With its singular triples σᵢ, pᵢ, qᵢ and α = μ‖X‖* the matrix X changes by t Σᵢ (σᵢ − α)
        pᵢqᵢᵀ. The nuclear norm is at most ‖X‖* + t Σᵢ (σᵢ − α), so that the loss has a bound
        quadratic in t.
        """
        P, values, Q = found.left[:, :new], found.values[:new], found.right[:, :new]
        sizes = values - self.penalty * float(state.values.sum())
        total, moved = float(sizes.sum()), self.entries.product(P * sizes, Q)
        curvature = float(moved @ moved) + self.penalty * total * total
        roots = np.sqrt(float(sizes @ sizes) / curvature * sizes)
        A, B = self.parts(state.factors)
        return self.measured(np.hstack([A, P * roots]), np.hstack([B, Q * roots]), state)


def conjugate_gradients(
    hessian: Callable[[Matrix], Matrix], gradient: Matrix, diagonal: Matrix, forcing: float
) -> Matrix:
    """Return an approximate solution of H d = −g, a direction of descent.

    The iteration, preconditioned by a positive diagonal, ends when the residual is at most
    `forcing` times that of d = 0, or at a direction of negative curvature.
    """
    residual, direction = -gradient, 0.0 * gradient
    search = residual / diagonal
    product = float(np.vdot(residual, search))
    target = forcing * forcing * product
    for number in range(CONJUGATE_STEPS):
        image = hessian(search)
        curvature = float(np.vdot(search, image))
        if curvature <= 0.0:
            return search if number == 0 else direction
        length = product / curvature
        direction = direction + length * search
        residual = residual - length * image
        scaled = residual / diagonal
        before, product = product, float(np.vdot(residual, scaled))
        if product <= target:
            break
        search = scaled + (product / before) * search
    return direction


@dataclass(frozen=True, eq=False)
class Completion:
    """Singular value decomposition of the completed matrix X, and its loss F(X)."""

    left: Matrix
    values: Matrix
    right: Matrix  # the largest entry of each column is positive
    value: float  # the loss F(X)
    gap: float  # upper bound on F(X) minus its minimum over all matrices, relative to ‖P_Ω M‖²

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
) -> Solution[Completion]:
    """Return the matrix X that minimises ‖P_Ω(M − X)‖² + (λ/r)‖X‖*² over rank at most r."""
    if not np.any(entries.values):
        n, m = entries.shape
        zero = Completion(np.zeros((n, 0)), np.zeros(0), np.zeros((m, 0)), 0.0, 0.0)
        return Solution(zero, Status.CONVERGED, 0, 0.0, tolerance)
    # Division by a power of two is exact, and no square overflows or underflows after it.
    unit = 2.0 ** math.frexp(float(np.abs(entries.values).max()))[1]
    solver = _Solver(replace(entries, values=entries.values / unit), strength / width, width)
    solution = iterate(
        lambda state: solver.step(state, tolerance),
        _started(solver, start, unit),
        stop=Below(lambda state: 0.0 if state.limited else solver.gap(state), tolerance),
        limit=limit,
    )
    state = solution.value
    left, right = solver.parts(state.factors / np.sqrt(state.values))
    turn = column_signs(right)
    found = Completion(
        left * turn,
        state.values * unit,
        right * turn,
        state.value * unit * unit,
        max(solver.gap(state), 0.0),
    )
    return replace(solution, value=found)  # type: ignore[arg-type,return-value]


def _started(solver: _Solver, start: Completion | None, unit: float) -> _Iterate:
    """Return the first state: a given one, or the best multiple of leading singular vectors."""
    if start is not None and start.rank:
        count = min(start.rank, solver.width)
        roots = np.sqrt(start.values[:count] / unit)
        return solver.searched(
            solver.measured(start.left[:, :count] * roots, start.right[:, :count] * roots)
        )
    n, m = solver.entries.shape
    none, residual = np.zeros((n + m, 0)), solver.entries.values
    empty = _Iterate(none, np.zeros(0), residual, none, solver.energy, math.inf, math.inf, 0.0)
    found = _outside(solver.entries.matrix(residual), none[:n], none[n:], min(NEW_COLUMNS, n, m))
    new = min(solver.width, int(np.count_nonzero(found.values > 0.1 * found.values[0])))
    return solver.extended(empty, found, new)


Vector = np.ndarray[Any, Any]

STRENGTHS = np.geomspace(1e3, 1e-4, 29)
"""Strengths dropout/(1 − dropout) that are compared, descending: four per decade."""

PATIENCE = 2
"""Number of successive rates without a smaller held-out error (`GAINED`) after which smaller rates
are not tried: with less and less dropout the factors only follow the noise more closely."""

GAINED = 3e-3
"""Smallest relative decrease of the held-out error that counts. As dropout vanishes, X tends to the
matrix of least nuclear norm that agrees with the observed entries, and the error to a constant."""

FOLD_TOLERANCE = 1e-4
"""Duality gap of the solutions that are compared on held-out entries, relative to the loss of the
solution from which they start. (Relative to ‖P_Ω M‖², which little dropout makes much larger than
the loss, the solution of the rate before would pass as that of the next.)"""

FOLD_STEPS = 100
"""Largest number of Newton steps for one solution that is compared on held-out entries."""


@dataclass(frozen=True, slots=True, eq=False)
class CompletionPath(PathOfRates):
    """Completed matrices for several dropout rates, for a fixed number r of columns of the factors.

    Parameters
    ----------
    dropout : ndarray of shape (n,)
        Dropout rates, ascending.
    rank : ndarray of int, shape (n,)
        Rank of the completed matrix X.
    threshold : ndarray of shape (n,)
        (λ/r)‖X‖∗, with the strength λ = dropout/(1 − dropout) and the nuclear norm of X. If the
        missing entries are replaced by those of X, X results from reducing all singular values
        by this threshold.
    error : ndarray of shape (n,)
        Mean squared error on the observed entries.
    objective : ndarray of shape (n,)
        The loss ‖P_Ω(M − X)‖² + (λ/r)‖X‖∗², where P_Ω selects the observed entries of M.
    gap : ndarray of shape (n,)
        Upper bound on the loss minus its minimum over all matrices, relative to ‖P_Ω M‖².

    Notes
    -----
    Notebooks show the path as a table, and `plot` draws it.
    """

    gap: Vector

    def _repr_html_(self) -> str:
        title = f"Completed matrices for {len(self.dropout)} dropout rates"
        return self._table(title, **{"duality gap": self.gap})


def completion_path(
    X: Any,
    n_components: int | None = None,
    dropouts: Sequence[float] | Vector | None = None,
    *,
    missing_values: Any = np.nan,
    tol: float = 1e-6,
    max_iter: int = 500,
) -> CompletionPath:
    """Return rank, error and loss of the completed matrix for several dropout rates.

    The problem of the largest rate is solved first; the others start from the solution for the next
    larger rate.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features) or sparse matrix
        The matrix with missing entries.
    n_components : int or None, default=None
        Number r of columns of the factors; None means the number of features.
    dropouts : sequence of float, optional
        Rates in (0, 1); by default 29 rates for which log(dropout/(1 − dropout)) is equally spaced.
    missing_values : nan or "absent", default=nan
        What marks a missing entry, as in `DropoutFactorization`.
    tol : float, default=1e-6
        Duality gap, relative to the sum of squares of the observed entries, at which an iteration
        ends.
    max_iter : int, default=500
        Largest number of Newton steps for each rate.

    Returns
    -------
    CompletionPath
        Rank, error and loss of the completed matrix at each dropout rate.

    Examples
    --------
    >>> import numpy as np
    >>> M = np.diag([3.0, 2.0, 1.0])
    >>> M[0, 1] = np.nan
    >>> path = completion_path(M, 3, [0.1, 0.9])
    >>> path.rank
    array([3, 1])
    """
    tol = check_number(tol, "tol", low=0.0, open_low=True)
    max_iter = check_integer(max_iter, "max_iter", low=1)
    entries = ObservedEntries.of(marked(check_rows(X, finite="allow-nan"), missing_values))
    width = hidden_width(n_components, entries.shape[1])
    strengths = STRENGTHS
    if dropouts is not None:
        strengths = np.sort([strength_of(rate) for rate in dropouts])[::-1]
    if np.any(strengths <= 0.0):
        raise ValueError("a dropout rate of 0 was given, expected rates in (0, 1): leave it out.")
    found: list[Completion] = []
    with entries.limited_threads():
        for strength in strengths:
            start = found[-1] if found else None
            solution = complete(
                entries, float(strength), width, start=start, tolerance=tol, limit=max_iter
            )
            found.append(solution.value)
    strengths, found = strengths[::-1], found[::-1]
    norms = np.array([part.norm for part in found])
    objective = np.array([part.value for part in found])
    return CompletionPath(
        np.array([dropout_of(float(strength)) for strength in strengths]),
        np.array([np.sum(part.values > ZERO * part.values.max(initial=0.0)) for part in found]),
        strengths / width * norms,
        (objective - strengths / width * norms**2) / max(entries.count, 1),
        objective,
        np.array([part.gap for part in found]),
    )


def cross_validate_entries(
    entries: ObservedEntries, width: int, cv: Any, roots: Vector | None
) -> tuple[CrossValidation, dict[float, Completion]]:
    """Return the errors on held-out entries, and for every rate the completion of the first fold.

    Strengths of dropout descend, and each solution starts from the one before it in its fold;
    `PATIENCE` strengths without a smaller mean error end the search. `roots` are the square roots
    of the weights of the rows.
    """
    cv = 5 if cv is None else cv
    if isinstance(cv, Integral):
        folds = check_integer(cv, "cv", low=2, high=entries.count)
        cv = KFold(folds, shuffle=True, random_state=0)
    splits = checked_splits(cv, entries.count, None)
    scale = np.ones(entries.count) if roots is None else roots[entries.rows]
    scaled = entries if roots is None else entries.weighted(roots)
    parts = [(scaled.taken(train), scaled.taken(np.sort(test))) for train, test in splits]
    weights = np.array([float(np.sum(scale[test] ** 2)) for _, test in splits])
    solutions: list[list[Completion]] = []  # of the folds, for every strength
    errors: list[list[float]] = []
    smallest, waited = math.inf, 0
    for strength in STRENGTHS:
        before = solutions[-1] if solutions else [None] * len(parts)
        solutions.append([])
        errors.append([])
        for (training, held_out), weight, start in zip(parts, weights, before, strict=True):
            share = start.value / training.energy if start is not None and start.rank else 1.0
            tolerance = FOLD_TOLERANCE * min(share, 1.0)
            found = complete(
                training, float(strength), width, start=start, tolerance=tolerance, limit=FOLD_STEPS
            ).value
            missed = held_out.values - held_out.product(found.left * found.values, found.right)
            solutions[-1].append(found)
            errors[-1].append(float(missed @ missed) / max(weight, np.finfo(float).tiny))
        mean = float(np.average(errors[-1], weights=weights))
        if mean < (1.0 - GAINED) * smallest:
            smallest, waited = mean, 0
            continue
        waited += 1
        if waited == PATIENCE:
            break
    rates = [dropout_of(float(strength)) for strength in STRENGTHS[: len(errors)]]
    compared = CrossValidation(np.array(rates[::-1]), np.array(errors)[::-1].T, weights)
    return compared, {rate: found[0] for rate, found in zip(rates, solutions, strict=True)}
