"""Projection of large problems on the few directions that a certificate of dropout weights needs.

Let A be the n centred rows of m features, each multiplied by the square root of its share of the
total weight, and C = AᵀA. The loss of an autoencoder with weights U and V depends on UᵀCV, VᵀCV and
tr C, and its gradient lies in the span of U, V, CU and CV. The global minimum depends on tr C and
on the r leading singular values of A, for r hidden units. So nothing changes if the problem is
projected on an orthonormal basis W of these vectors and of the leading right singular vectors,
except that the variance outside of W, tr C − ‖AW‖², becomes a constant (`LinearProblem.rest`). Of a
matrix M that is factorised, the rows are projected on V, MᵀU and the leading right singular
vectors, the columns on U, MV and the leading left singular vectors.

The verifier computes singular vectors by ARPACK's Lanczos iteration, or from a Gram matrix by
LAPACK's driver "evr". Lanczos iteration may miss some, so that the singular values are bounded
(`LinearProblem.largest_values`). Let G (q × q) be the Gram matrix of the data, S the eigenvectors
that were found with the eigenvalues Θ, and R = GS − SΘ. If no eigenvalue of G outside of the span
of S exceeds β, the i-th largest eigenvalue of G exceeds the i-th largest of Θ and β, β, … by at
most ‖R‖ (Weyl). β does not rely on S being complete. It comes

* from the bound of `certificates.complement` from a block Krylov space with random starts, which
  is wrong with a probability of at most 10⁻⁹;
* or, if the spectrum is too flat for that, from a Cholesky factorisation of βI − PGP, with the
  projection P onto the complement of S: it exists only if all eigenvalues of PGP are below β, up to
  rounding errors (Rump 2006, "Verification of positive definiteness").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from lucidae.arrays import Array, to_numpy
from lucidae.certificates.complement import STARTS, STEPS, Complement, digest_of, drawn_after
from lucidae.dropout.figures import EPSILON
from lucidae.dropout.problem import LinearProblem, Weights

Matrix = np.ndarray[Any, Any]

SMALL = 1024
"""A matrix is projected if its smaller dimension is larger than this; the rows of an autoencoder
are projected if they have more features than this."""

FEW = 8
"""Singular vectors are computed by Lanczos iteration if fewer than 1/FEW of them are needed."""

LARGEST_GRAM = 8192
"""Largest dimension of a Gram matrix that is decomposed if Lanczos iteration does not converge."""

CONSTANT = 4 * EPSILON
"""All rows count as equal if the square root of their total variance is at most this times the norm
of their mean, because the mean has rounding errors of this size."""

OUTSIDE = 1e-12
"""The part of a unit vector outside of the span of a basis counts as zero if it is shorter than
this."""

LARGE_MEAN = 100.0
"""Sparse rows are converted to dense ones before centring if the squared norm of their mean exceeds
their total variance by this factor: centring without conversion subtracts squares and loses
digits."""

LARGEST_COPY = 2**27
"""Largest number of entries of sparse rows that are made dense: one gibibyte."""

RESTARTS = 200
"""Largest number of restarts of the Lanczos iteration."""


ATTEMPTS = 3
"""Largest number of Lanczos iterations that are made until none of the leading singular values is
known to be missing."""


class UnprojectedError(ValueError):
    """Error for data whose leading singular vectors the verifier could not compute."""


class Projection(NamedTuple):
    """Second moments of data and weights of a network, in the coordinates of a few directions."""

    problem: LinearProblem
    weights: Weights
    deviations: Matrix | None = None  # (m,): of all features; None if a matrix is factorised


class _Operator(NamedTuple):
    """A matrix A (n × m) by its products Av and Aᵀu with blocks of columns."""

    shape: tuple[int, int]
    times: Callable[[Matrix], Matrix]
    back: Callable[[Matrix], Matrix]
    total: float  # sum of squares of the entries
    digest: bytes  # hash of the entries
    dense: Matrix | None = None  # A itself, if it is stored

    def gram(self, unit: float) -> Gram:
        """Return the smaller one of AAᵀ and AᵀA, after dividing A by `unit`."""
        n, m = self.shape
        first, second = (self.times, self.back) if n > m else (self.back, self.times)
        dense = self.dense

        def apply(block: Matrix) -> Matrix:
            return second(first(block) / unit) / unit

        def whole() -> Matrix:
            if dense is None:
                found = apply(np.eye(min(n, m)))
            else:
                scaled = dense / unit
                found = scaled.T @ scaled if n > m else scaled @ scaled.T
            return np.asarray((found + found.T) / 2)

        total = self.total / unit / unit
        return Gram(min(n, m), max(n, m), apply, whole, total, self.digest)


def is_large(shape: tuple[int, ...], width: int) -> bool:
    """Tell whether a matrix of this shape is projected before its factors are judged."""
    return min(shape) > SMALL and FEW * (width + 1) <= min(shape)


def has_many_features(shape: tuple[int, ...], width: int) -> bool:
    """Tell whether rows of this shape are projected to judge an autoencoder."""
    n, m = shape
    return m > SMALL and (n < m or FEW * (width + 1) <= m)


def projected_matrix(matrix: Any, weights: Weights, strength: float) -> Projection:
    """Return the problem of factorising a matrix, projected on a few directions."""
    given = np.asarray(to_numpy(matrix), dtype=np.float64)
    left, right = (np.asarray(to_numpy(part), dtype=np.float64) for part in weights)
    energy = float((given**2).sum())
    unit = _unit(energy)
    scaled = given / unit
    operator = _Operator(
        given.shape,
        lambda v: scaled @ v,
        lambda u: scaled.T @ u,
        energy / unit / unit,
        digest_of(given),
        scaled,
    )
    first, second, found = _leading(operator, 1.0, strength, left.shape[1])
    rows = _basis(first, [left, scaled @ _unit_columns(right)])
    columns = _basis(second, [right, scaled.T @ _unit_columns(left)])
    inside = unit * (rows.T @ scaled @ columns)
    rest = _remainder(energy, float((inside**2).sum()))
    upper = None if found.upper is None else unit * found.upper
    problem = LinearProblem(inside, None, energy, rest=rest, largest_values=upper)
    return Projection(problem, Weights(rows.T @ left, columns.T @ right))


def projected_rows(
    X: Any,
    sample_weight: Array | None,
    weights: Weights,
    strength: float,
    *,
    centered: bool = True,
) -> Projection:
    """Return the problem of an autoencoder, projected on a few directions."""
    left, right = (np.asarray(to_numpy(part), dtype=np.float64) for part in weights)
    with np.errstate(over="ignore", invalid="ignore"):
        operator, variances, total = _rows(X, sample_weight, centered)
    energy = float(variances.sum())
    if not math.isfinite(energy):
        raise ValueError(
            "the squares of X overflow double precision: divide X by a constant, and give the "
            "result to both fit and certify."
        )
    unit = _unit(energy)  # nothing overflows in units in which the total variance is about one
    _, leading, found = _leading(operator, unit, strength, left.shape[1])
    sides = _unit_columns(np.concatenate([left, right], axis=1))
    images = operator.back(operator.times(sides) / unit) / unit
    basis = _basis(leading, [left, right, images])
    triangle = scipy.linalg.qr(operator.times(basis), mode="r")[0][: basis.shape[1]]
    moment = triangle.T @ triangle
    problem = LinearProblem(
        moment,
        moment,
        energy,
        np.concatenate([triangle, triangle], axis=1),
        n_rows=total - centered,
        rest=_remainder(energy, float((triangle**2).sum())),
        largest_values=None if found.upper is None else unit * found.upper,
    )
    inside = Weights(basis.T @ left, basis.T @ right)
    return Projection(problem, inside, np.sqrt(np.clip(variances, 0.0, None)))


def _rows(X: Any, sample_weight: Array | None, centered: bool) -> tuple[_Operator, Matrix, float]:
    """Return the rows A as an operator, the diagonal of AᵀA, and the sum of the weights.

    The mean is subtracted from products with sparse rows.
    """
    n, m = X.shape
    given = np.ones(n) if sample_weight is None else to_numpy(sample_weight)
    total = float(np.sum(given, dtype=np.float64))
    share = np.asarray(given, dtype=np.float64) / total
    root = np.sqrt(share)
    if scipy.sparse.issparse(X):
        scaled = scipy.sparse.csr_array(X.astype(np.float64).multiply(root[:, None]))
        mean = scaled.T @ root if centered else np.zeros(m)

        def times(v: Matrix) -> Matrix:
            return np.asarray(scaled @ v - np.multiply.outer(root, mean @ v))

        def back(u: Matrix) -> Matrix:
            return np.asarray(scaled.T @ u - np.multiply.outer(mean, root @ u))

        squares = np.asarray(scaled.multiply(scaled).sum(axis=0)).ravel()
        variances = np.clip(squares - mean**2, 0.0, None)
        if float(mean @ mean) <= LARGE_MEAN * float(variances.sum()) or n * m > LARGEST_COPY:
            digest = digest_of(scaled)
            return (
                _Operator((n, m), times, back, float(variances.sum()), digest),
                variances,
                total,
            )
        X = X.toarray()  # the difference of the squares would lose digits
    dense = np.array(to_numpy(X), dtype=np.float64)
    size = 0.0
    if centered:
        mean = share @ dense
        size = float(mean @ mean)
        dense -= mean
        dense -= share @ dense  # the rounding error of the mean
    dense *= root[:, None]
    variances = np.einsum("ij,ij->j", dense, dense)
    if not float(variances.sum()) > CONSTANT**2 * size:  # equal rows, up to rounding errors
        dense, variances = 0.0 * dense, 0.0 * variances
    operator = _Operator(
        (n, m),
        lambda v: dense @ v,
        lambda u: dense.T @ u,
        float(variances.sum()),
        digest_of(dense),
        dense,
    )
    return operator, variances, total


def _leading(
    operator: _Operator, unit: float, strength: float, width: int
) -> tuple[Matrix, Matrix, Found]:
    """Return leading left and right singular vectors of a matrix A, and bounds on singular values.

    They are eigenvectors of the smaller Gram matrix and the normalised products of A or Aᵀ with
    them, one more than hidden units, less those of singular values that are zero.
    """
    n, m = operator.shape
    gram = operator.gram(unit)
    found = _eigenvectors(gram, strength, width)
    vectors = np.concatenate([found.vectors, found.missed], axis=1)
    images = (operator.times if n > m else operator.back)(vectors)
    basis = scipy.linalg.qr(images, mode="economic")[0] if vectors.size else images
    return (basis, vectors, found) if n > m else (vectors, basis, found)


def _eigenvectors(gram: Gram, strength: float, width: int) -> Found:
    """Return leading eigenvectors of a Gram matrix, one more than hidden units."""
    size, count = gram.size, min(width + 1, gram.size)
    if not gram.total > 0:
        return Found(np.zeros((size, 0)), None, np.zeros((size, 0)))
    if size > SMALL and FEW * count <= size:
        try:
            return _by_lanczos(gram, count, strength, width)
        except ArpackError as error:  # no convergence, or a start that the matrix maps to zero
            if size > LARGEST_GRAM:
                raise UnprojectedError(
                    f"the {count} leading singular values of the data were not found by "
                    f"{RESTARTS} restarts of the Lanczos iteration, because they are too close to "
                    "each other: the weights cannot be judged. With another number of hidden "
                    "units the values may be found."
                ) from error
    whole = gram.dense()
    try:
        values, vectors = scipy.linalg.eigh(
            whole, driver="evr", subset_by_index=[size - count, size - 1]
        )
    except np.linalg.LinAlgError:
        values = np.empty(0)
    if len(values) < count:  # as LAPACK's driver "evr" does for eigenvalues that are all equal
        values, vectors = scipy.linalg.eigh(whole, driver="evd")
        values, vectors = values[-count:], vectors[:, -count:]
    return Found(_nonzero(gram, values, vectors)[1], None, np.zeros((size, 0)))


def _by_lanczos(gram: Gram, count: int, strength: float, width: int) -> Found:
    """Return the `count` leading eigenvectors of a Gram matrix by Lanczos iteration, with bounds.

    If the bounds show that eigenvectors were missed, such as those of equal eigenvalues, the
    iteration starts again from a vector that contains them.
    """
    size = gram.size
    operator = LinearOperator(
        (size, size), matvec=lambda v: gram.apply(np.asarray(v).reshape(-1)), dtype=np.float64
    )
    start = drawn_after((1, size), gram.digest)[0]
    for _ in range(ATTEMPTS):
        values, vectors = eigsh(
            operator,
            k=count,
            which="LA",
            v0=start,
            ncv=min(size, max(2 * count + 1, count + 20)),
            tol=1e-10,
            maxiter=RESTARTS,
        )
        found = with_bounds(gram, *_nonzero(gram, values, vectors), strength, width)
        if not found.missed.size:
            break
        start = found.missed.sum(axis=1) + start / np.linalg.norm(start)
    return found


def _nonzero(gram: Gram, values: Matrix, vectors: Matrix) -> tuple[Matrix, Matrix]:
    """Return eigenvalues, descending, and their eigenvectors, without those that are zero."""
    values, vectors = values[::-1], vectors[:, ::-1]
    largest = max(float(values.max(initial=0.0)), 1e-300)
    present = values > max(gram.size, gram.other) * EPSILON * largest
    return values[present], vectors[:, present]


def _basis(first: Matrix, others: list[Matrix]) -> Matrix:
    """Return an orthonormal basis of all columns, which begins with those of `first`."""
    columns = np.concatenate([_unit_columns(other) for other in others], axis=1)
    if not first.size and not columns.size:
        return np.eye(len(first), 1)  # zero data, where every direction is as good
    for _ in range(2):  # twice is enough (Kahan, Parlett)
        columns = columns - first @ (first.T @ columns)
    if not columns.size:
        return first
    span, triangle, _ = scipy.linalg.qr(columns, mode="economic", pivoting=True)
    span = span[:, np.abs(np.diag(triangle)) > OUTSIDE]
    span, _ = scipy.linalg.qr(span - first @ (first.T @ span), mode="economic")
    return np.concatenate([first, span], axis=1)


def _unit_columns(columns: Matrix) -> Matrix:
    """Return the nonzero columns, scaled to unit length without squaring large entries."""
    peaks = np.abs(columns).max(axis=0, initial=0.0)
    columns = columns[:, peaks > 0] / peaks[peaks > 0]
    return np.asarray(columns / np.sqrt((columns**2).sum(axis=0)))


def _unit(energy: float) -> float:
    """Return the power of two nearest to the square root of `energy`; 1 if `energy` is zero."""
    return 2.0 ** round(math.log2(energy) / 2) if energy > 0 else 1.0


def _remainder(energy: float, inside: float) -> float:
    """Return the sum of squares outside of a basis; 0 if it is as small as rounding errors."""
    rest = energy - inside
    return rest if math.isfinite(rest) and rest > 1e3 * EPSILON * energy else 0.0


NEGLIGIBLE = 1e-7
"""Singular values may be larger than the computed ones as long as this changes the minimum by at
most NEGLIGIBLE times the sum of squares of all: a tenth of the gap that certificates allow."""

LARGEST_CHOLESKY = 2**36
"""The Gram matrix is formed and factorised only if forming it takes at most this many
multiplications."""


class Found(NamedTuple):
    """Leading eigenvectors of a Gram matrix G, and bounds on the singular values of the data."""

    vectors: Matrix  # (q, c): leading eigenvectors as columns, orthonormal
    # (r,): upper bounds on the r largest singular values of the data, the square roots of the
    # eigenvalues of G; None if the computed ones are the largest
    upper: Matrix | None
    # (q, b): further vectors, in whose span G has eigenvalues that exceed some of the leading ones:
    # those that the search for the leading eigenvectors has missed
    missed: Matrix


class Gram(NamedTuple):
    """The Gram matrix G (q × q) of data, by its products."""

    size: int  # the dimension q of G, and the other dimension of the data
    other: int
    # function that returns the product of G with a block of columns
    apply: Callable[[Matrix], Matrix]
    dense: Callable[[], Matrix]  # function that returns G itself
    total: float  # trace of G, the sum of squares of the data
    digest: bytes  # A hash of the data, with which random starts are seeded

    @property
    def rounding(self) -> float:
        """Bound on the rounding error of a product of G with a unit vector."""
        return (self.size + self.other) * EPSILON * self.total


def threshold(leading: Matrix, strength: float, width: int) -> float:
    """Return the solution α of α = (λ/r) Σ (sᵢ − α)₊ by bisection; the right side decreases."""
    low, high = 0.0, float(leading.max(initial=0.0))
    for _ in range(200):
        middle = (low + high) / 2
        if strength / width * float(np.clip(leading - middle, 0.0, None).sum()) > middle:
            low = middle
        else:
            high = middle
    return low if strength > 0 else 0.0


def smallest_loss(leading: Matrix, tail: float, strength: float, width: int) -> float:
    """Return the minimum of the dropout loss, without the loss of least squares.

    It is Σ min(sᵢ, α)² + rα²/λ + Σ_{i>r} sᵢ², with the threshold α.
    """
    level = threshold(leading, strength, width)
    penalty = width * level**2 / strength if strength > 0 else 0.0
    return float((np.minimum(leading, level) ** 2).sum()) + tail + penalty


def possible_saving(
    leading: Matrix, tail: float, upper: Matrix, strength: float, width: int
) -> float:
    """Return how much smaller the minimal loss can be if singular values are up to `upper`.

    The sum of squares of all is known. The minimum decreases in sᵢ: its derivative is −2(sᵢ − α)₊.
    """
    computed = np.zeros(len(upper))
    computed[: len(leading)] = leading[: len(upper)]
    largest = np.maximum(computed, upper)
    left = tail + float((computed**2).sum() - (largest**2).sum())
    saving = smallest_loss(computed, tail, strength, width) - smallest_loss(
        largest, left, strength, width
    )
    return max(saving, 0.0)


def with_bounds(gram: Gram, values: Matrix, vectors: Matrix, strength: float, width: int) -> Found:
    """Return eigenvectors of a Gram matrix, and upper bounds on the r largest singular values."""
    residual = float(np.linalg.norm(gram.apply(vectors) - vectors * values)) + gram.rounding
    leading = np.sqrt(np.clip(values[:width], 0.0, None))
    last = float(values[width - 1]) if len(values) >= width else 0.0
    # An eigenvalue up to this level would not be among the r largest, or dropout would remove it.
    level = max(last, threshold(leading, strength, width) ** 2)
    level += NEGLIGIBLE * gram.total / width
    bound, space = complement_bound(gram, vectors, level)
    missed = space.above(level) if space.found > level else space.basis[:0]
    others = np.full(width, max(bound, 0.0))
    upper = np.sort(np.concatenate([np.clip(values, 0.0, None), others]) + residual)[::-1]
    return Found(vectors, np.sqrt(upper[:width]), missed.T)


def complement_bound(gram: Gram, vectors: Matrix, level: float) -> tuple[float, Complement]:
    """Return a bound on the eigenvalues outside of the span of `vectors`, and its Krylov space.

    The search ends when the bound is at most `level`.
    """
    space = _searched(gram, vectors, level)
    bound = space.bound
    if bound > level >= space.found and gram.size**2 * gram.other <= LARGEST_CHOLESKY:
        bound = min(bound, _factorised_bound(gram, vectors, level))
    return bound, space


def _searched(gram: Gram, vectors: Matrix, level: float) -> Complement:
    """Return a Krylov space outside of the span of `vectors`, with its bound on eigenvalues.

    It is extended until its bound is at most `level`, until it contains an eigenvalue above
    `level`, or until further steps cannot decide which of the two is the case.
    """
    count = min(STARTS, gram.size - vectors.shape[1])
    starts = drawn_after((count, gram.size), gram.digest, vectors)
    space = Complement(lambda rows: gram.apply(rows.T).T, vectors, gram.rounding, starts)
    space.bound = max(gram.total, 0.0)
    for steps in STEPS:
        hopeless = space.found + space.final_slack() > level
        if space.bound <= level or hopeless or not space.extend(steps):
            break
    return space


def _factorised_bound(gram: Gram, vectors: Matrix, level: float) -> float:
    """Return a bound near `level` if the Cholesky factor of level · I − PGP exists, else ∞.

    Its rounding errors change no eigenvalue by more than (q + 1) · ε times the trace.
    """
    size = gram.size
    matrix = gram.dense()
    images = matrix @ vectors
    inside = vectors.T @ images
    matrix = images @ vectors.T + vectors @ images.T - vectors @ inside @ vectors.T - matrix
    matrix.flat[:: size + 1] += level
    _, failed = scipy.linalg.lapack.dpotrf(matrix, lower=1, clean=0, overwrite_a=1)
    rounding = (size + 1) * EPSILON * size * level + 4 * gram.rounding
    return math.inf if failed else level + rounding
