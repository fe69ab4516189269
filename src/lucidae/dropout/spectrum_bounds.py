"""Upper bounds on singular values that the verifier did not compute, and how they change the loss.

The minimum of the dropout loss depends on the r largest singular values of the data, for r hidden
units, and on the sum of squares of all. For large data the verifier computes the leading ones by
Lanczos iteration, which may miss some. Let G be the Gram matrix of the data, S the eigenvectors
that were found (as columns) with the eigenvalues Θ, and R = GS − SΘ their residual. If no
eigenvalue of G outside of the span of S exceeds β, the i-th largest eigenvalue of G exceeds the
i-th largest of Θ and β, β, … by at most ‖R‖ (Weyl). β does not rely on S being complete. It comes

* from the bound of `lucidae.eigenvalue_bounds` from a block Krylov space with random starts,
  which is wrong with a probability of at most 10⁻⁹;
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

from lucidae.dropout.figures import EPSILON
from lucidae.eigenvalue_bounds import STARTS, STEPS, Complement, drawn_after

Matrix = np.ndarray[Any, Any]

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
    """Return the amount α by which dropout reduces the r largest singular values, by bisection.

    α solves α = (λ/r) Σ (sᵢ − α)₊ for the r largest singular values sᵢ (`leading`) and the strength
    λ of dropout; the right side decreases in α.
    """
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

    It is Σ min(sᵢ, α)² + rα²/λ + Σ_{i>r} sᵢ², with the r largest singular values sᵢ (`leading`),
    the sum of squares of all others (`tail`), the strength λ of dropout and its threshold α.
    """
    level = threshold(leading, strength, width)
    penalty = width * level**2 / strength if strength > 0 else 0.0
    return float((np.minimum(leading, level) ** 2).sum()) + tail + penalty


def possible_saving(
    leading: Matrix, tail: float, upper: Matrix, strength: float, width: int
) -> float:
    """Return how much smaller the minimal loss can be if computed singular values are too small.

    `leading` are the r largest singular values that were computed, `upper` are upper bounds on the
    true ones, and `tail` is the sum of squares of all others. The sum of squares of all singular
    values is known and stays the same. The minimum decreases in each singular value sᵢ: its
    derivative is −2(sᵢ − α)₊, with the threshold α.
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
    """Return eigenvectors of a Gram matrix G, and upper bounds on the data's singular values.

    The bounds are on the r largest singular values, for r hidden units.
    """
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
    """Return an upper bound on the eigenvalues of a Gram matrix outside of the span of `vectors`.

    `vectors` are orthonormal columns. The search ends when the bound is at most `level`. The Krylov
    space that gave the bound is returned, too; its attribute `found` is a lower bound on the
    largest of these eigenvalues.
    """
    space = _searched(gram, vectors, level)
    bound = space.bound
    if bound > level >= space.found and gram.size**2 * gram.other <= LARGEST_CHOLESKY:
        bound = min(bound, _factorised_bound(gram, vectors, level))
    return bound, space


def _searched(gram: Gram, vectors: Matrix, level: float) -> Complement:
    """Return a Krylov space outside of the span of `vectors`, with its bound on eigenvalues.

    The eigenvalues are those of the Gram matrix `gram`. The space is extended until its bound is at
    most `level`, until it contains an eigenvalue above `level`, or until further steps cannot
    decide which of the two is the case.
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
    """Return a bound near `level` on the eigenvalues of a Gram matrix outside a subspace.

    The subspace is the span of `vectors`, P is the projection onto its complement and G the Gram
    matrix. The bound is infinite if the Cholesky factorisation of level · I − PGP does not exist.
    If it exists, its rounding errors change no eigenvalue by more than (q + 1) · ε times the trace,
    with the dimension q and the rounding unit ε.
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
