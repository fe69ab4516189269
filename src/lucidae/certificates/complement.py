"""An upper bound on the largest eigenvalue of the second moment outside of a decoder's span.

Only verifiers use this module, those of the linear and of the dropout family; no solver does. Let Σ
be the second moment of the data (m × m), P the projection onto the orthogonal complement of the
decoder's span, and A = PΣP. The largest eigenvalue λ of A is bounded from products with Σ
alone. Let the rows of Q be an orthonormal basis of a block Krylov space of A that starts with s
random rows Ω of standard normal entries, T = QAQᵀ, and N = QA − TQ the part of QA outside of the
space. Of a unit eigenvector v with eigenvalue λ, y = Qv is the part inside of the space and r,
‖r‖ ≤ 1, the part outside. The projection of Av = λv onto the space is

    Ty + Nr = λy,   so that   y = (λ − T)⁻¹Nr   if λ exceeds all eigenvalues of T.

The random start is not orthogonal to v: Ωv has s standard normal entries, so its squared length
exceeds the quantile c of the chi-squared distribution except with the probability `FAILURE`. Let
y₁ be the entries of y that belong to the first block of Q, and L the coefficients of PΩ in this
block. Then ‖y₁‖ ≥ ‖Ωv‖/‖L‖ ≥ τ with τ = √c/‖L‖. Hence every eigenvalue λ of A above those of T has

    ‖E₁ᵀ(λ − T)⁻¹N‖ ≥ τ,

where E₁ᵀ selects the first block. The norm tends to 0 for large λ, and equals τ exactly if λ is an
eigenvalue of the matrix

    [ T          NNᵀ/τ ]
    [ E₁E₁ᵀ/τ    T     ]

(Boyd & Balakrishnan 1990, who bound a transfer function along the imaginary axis this way). So the
largest real part of the eigenvalues of this matrix is an upper bound on λ. In contrast to bounds
that hold for every spectrum (Kuczyński & Woźniakowski 1992) it uses the computed T and N; three
steps usually suffice if the eigenvalues decay.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

from lucidae.iteration.loop import limited_blas

__all__ = ["Complement", "drawn_after", "eigenvalue_bound", "start_share"]

Vector = np.ndarray[Any, Any]

# Number s of random rows from which the block Krylov space starts.
STARTS = 16

# Probability that one bound on the largest eigenvalue is wrong.
FAILURE = 1e-9

# Numbers of Krylov steps after which a bound is computed. All of these bounds are wrong only in the
# same event, that of a short ‖Ωv‖.
STEPS = (2, 3, 4, 5, 6, 8, 10, 12, 16)

# Number of Krylov steps that are made in any case, however many features there are.
FEWEST_STEPS = 4

# Largest number of stored entries of the Krylov basis: 128 mebibytes.
LARGEST_BASIS = 2**24


def drawn_after(shape: tuple[int, int], *seen: Vector) -> Vector:
    """Return random standard normal entries, seeded by a hash of arrays that the data determine.

    They are the starts of a Krylov iteration, whose bound on the probability of missing an
    eigenvalue holds for starts that are independent of the data. If the seed were known beforehand,
    data could be chosen that are orthogonal to all starts. A hash of means, variances or computed
    eigenvectors gives the same starts for the same data, but other data change the starts too.
    """
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in seen))
    rng = np.random.default_rng(int.from_bytes(digest.digest(), "little"))
    return rng.standard_normal(shape)


def start_share(starts: int) -> float:
    """Return the length ‖Ωv‖ that random starts Ω exceed, except with probability `FAILURE`.

    Ω has `starts` rows of independent standard normal entries, and v is a unit vector that does not
    depend on Ω. The squared length has a chi-squared distribution; the root of its quantile is
    returned.
    """
    return math.sqrt(2.0 * float(scipy.special.gammaincinv(starts / 2.0, FAILURE)))


def eigenvalue_bound(inner: Vector, outer: Vector, first: int, share: float) -> float:
    """Return an upper bound on the largest eigenvalue λ of a symmetric matrix A.

    The bound holds if the eigenvector v of λ has at least the length `share` in the first block of
    the basis Q; see the module's docstring.
    """
    q = len(inner)
    selected = np.zeros((q, q))
    selected[range(first), range(first)] = 1.0 / share
    matrix = np.block([[inner, outer / share], [selected, inner]])
    with limited_blas(0):  # several threads slow LAPACK's nonsymmetric eigensolver down
        found = np.linalg.eigvals(matrix)
    return max(float(np.max(found.real)), float(np.linalg.eigvalsh(inner)[-1]))


class Complement:
    """Block Krylov space of the second moment in the orthogonal complement of a decoder's span.

    The second moment is a matrix (m, m) for m features, and the span has the dimension r.
    """

    def __init__(
        self,
        product: Callable[[Vector], Vector],
        span: Vector,
        rounding: float,
        starts: Vector,
    ) -> None:
        self.product, self.span, self.rounding = product, span, rounding
        self.left = span.shape[0] - span.shape[1]
        self.bound, self.found, self.steps = math.inf, 0.0, 0
        self.slacks: list[tuple[int, float]] = []
        self.basis = np.empty((0, span.shape[0]))
        self.images = np.empty((0, span.shape[0]))
        self.block = orthonormal(starts, (span.T,))
        self.first, self.share = len(self.block), 0.0
        if self.first:
            length = float(np.linalg.norm(starts @ self.block.T, 2))
            self.share = start_share(len(starts)) / length

    @property
    def exhausted(self) -> bool:
        """Whether the Krylov space is invariant: products with the second moment add nothing."""
        return not len(self.block) or len(self.basis) >= self.left

    def add(self, image: Vector) -> None:
        """Add the rows `block` to the Krylov space; `image` is `block` times the second moment."""
        image = image - (image @ self.span) @ self.span.T
        self.basis = np.concatenate([self.basis, self.block])
        self.images = np.concatenate([self.images, image])
        self.block = orthonormal(image, (self.span.T, self.basis))
        self.steps += 1

    def extend(self, steps: int) -> bool:
        """Extend the Krylov space until it has `steps` block steps; update `bound` and `found`.

        Return whether it has that many steps. It has fewer if it is invariant, or would become
        larger than allowed.
        """
        while not self.exhausted and self.steps < steps and self._affordable():
            self.add(self.product(self.block))
        if self.steps:
            self._update()
        return self.steps >= steps

    def final_slack(self) -> float:
        """Return a prediction of the difference between `bound` and `found` after all steps.

        After q steps the difference is roughly proportional to (2q − 1)^(−5/2) if the eigenvalues
        are nearly equal. If it has decreased twice as fast since the last bound, the same factor
        per step is assumed for all further steps.
        """
        if self.steps < FEWEST_STEPS or len(self.slacks) < 2:
            return 0.0
        (before, earlier), (now, slack) = self.slacks[-2:]
        flat = [(2 * now - 1) / (2 * q - 1) for q in (before, STEPS[-1])]
        if slack * flat[0] ** 2.5 > earlier / 2:
            return float(slack * flat[1] ** 2.5)
        return float(slack * (slack / earlier) ** ((STEPS[-1] - now) / (now - before)))

    def _update(self) -> None:
        inner = self.basis @ self.images.T
        inner = (inner + inner.T) / 2
        self.found = float(np.linalg.eigvalsh(inner)[-1])
        bound = self.found
        if len(self.basis) < self.left:  # otherwise the space is the whole complement
            rest = self.images - inner @ self.basis
            bound = eigenvalue_bound(inner, rest @ rest.T, self.first, self.share)
        self.bound = min(self.bound, bound + 4 * self.rounding)
        self.slacks.append((self.steps, max(self.bound - self.found, self.rounding)))

    def _affordable(self) -> bool:
        grown = len(self.basis) + len(self.block)
        return self.steps < FEWEST_STEPS or grown * self.span.shape[0] <= LARGEST_BASIS

    def ritz(self, rows: Vector, images: Vector, fresh: Vector) -> Vector:
        """Return lower bounds on the eigenvalues of the second moment, descending (Cauchy).

        They are the Ritz values of the second moment in the space that is spanned by three sets of
        vectors: this Krylov space, the orthonormal `rows`, whose products with the second moment
        are `images`, and the rows `fresh`.
        """
        fresh = orthonormal(fresh, (rows, self.basis))
        basis = np.concatenate([rows, self.basis, fresh])
        # The stored images lack their part in the decoder's span, which `rows` contain.
        across = images @ basis.T
        added = self.product(fresh) if len(fresh) else fresh
        inner = np.concatenate([self.images, added]) @ basis.T
        inner = np.concatenate([across, inner])
        inner[len(rows) :, : len(rows)] = across[:, len(rows) :].T
        return np.asarray(np.linalg.eigvalsh((inner + inner.T) / 2)[::-1])

    def above(self, level: float) -> Vector:
        """Return the Ritz vectors of this space, as rows, whose Ritz values exceed `level`."""
        inner = self.basis @ self.images.T
        values, vectors = np.linalg.eigh((inner + inner.T) / 2)
        return np.asarray(vectors[:, values > level].T @ self.basis)


def orthonormal(rows: Vector, others: tuple[Vector, ...]) -> Vector:
    """Return an orthonormal basis, as rows, of the part of `rows` orthogonal to all of `others`."""
    lengths = np.sqrt(np.sum(rows * rows, axis=1))
    rows = rows[lengths > 0.0] / lengths[lengths > 0.0, None]
    for _ in range(2):  # twice is enough (Kahan, Parlett)
        for basis in others:
            rows = rows - (rows @ basis.T) @ basis
    if not len(rows):
        return rows
    basis, triangle = np.linalg.qr(rows.T)
    left, sizes, _ = np.linalg.svd(triangle)
    fresh: Vector = (basis @ left).T[sizes > 1e-10]
    for other in others:
        fresh = fresh - (fresh @ other.T) @ other
    return np.asarray(fresh / np.sqrt(np.sum(fresh * fresh, axis=1))[:, None])
