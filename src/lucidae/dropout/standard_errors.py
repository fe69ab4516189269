"""Standard errors of the fitted values of a reduced-rank or dropout regression (delta method).

The targets are y = B₀x + e with independent errors e of covariance S, and the inputs of the n rows
count as fixed. In white coordinates w = Lᵀx (of identity second moment, if there is no ridge
penalty) the least-squares map is M = PsQᵀ (singular value decomposition), and its sampling error N
has the covariance S/n ⊗ G, with the second moment G of w. The fit replaces the singular values s by
f: it keeps the first k without change, or as sᵢ − α for the threshold α of dropout, and sets the
others to zero. To first order the fitted map changes by P(A∘Ñ + B∘Ñᵀ)Qᵀ with Ñ = PᵀNQ and the
elementwise product ∘, where A = (D + E)/2, B = (D − E)/2, Dᵢⱼ = (fᵢ − fⱼ)/(sᵢ − sⱼ) (1 if both
values are kept) and Eᵢⱼ = (fᵢ + fⱼ)/(sᵢ + sⱼ); and by the change of α, which is κ Σ Ñᵢᵢ over the
kept values, with κ = λ/(r + λρ) for the strength λ of dropout, r hidden units and the rank ρ. For a
target of exact rank k and no shrinkage this is the asymptotic covariance of reduced-rank regression
(Anderson 1951; Izenman 1975): N − (I − PPᵀ)N(I − QQᵀ).

If the rank is limited, the first order is valid if the last kept singular value is clearly larger
than the next one. With dropout alone it is valid if no singular value is close to the threshold. S
is estimated from the residuals of least squares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import like
from lucidae.dropout.problem import LinearProblem, host, whiten
from lucidae.dropout.solvers import TIE
from lucidae.dropout.theory import shrink
from lucidae.validation import warn_user

Matrix = np.ndarray[Any, Any]

SEPARATED = 3.0
"""A warning is given if the last singular value that a limit on the rank keeps and the next one
differ by less than this many standard errors. In simulations, intervals of 95 % cover 88 % to 95 %
below this value."""

NEAR_THRESHOLD = 0.3
"""A warning is given if a singular value differs from the threshold of dropout by less than this
many standard errors. This is less critical than a limit on the rank, because the fitted values are
continuous at the threshold."""

FEW_DEGREES = 10.0
"""A warning is given if the noise is estimated with fewer degrees of freedom than this."""

ENTRIES = 1_000_000
"""Number of derivatives that are computed at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class FittedValueErrors:
    """The derivative of the fitted values of a regression with respect to its targets."""

    lift: Matrix  # (d2, q): map from centred inputs x to white inputs w = liftᵀ x
    left: Matrix  # singular vectors P and Q of the least-squares map M for white inputs
    right: Matrix
    straight: Matrix  # (m, m): A; m is the smaller of the numbers of targets and of white inputs
    crossed: Matrix  # (m, m): B
    ratios: Matrix  # (m,): quotients of the singular values of the fitted map and of M
    kept: int  # rank ρ of the fitted map
    coupling: float  # κ, the derivative of the threshold with respect to each kept singular value
    noise: Matrix  # (d1, d1): covariance of the mean of the targets' errors
    gram: Matrix | None  # (q, q): second moment G of the white inputs; None if it is the identity
    intercept: bool  # whether the mean target is estimated too

    def of(self, rows: Matrix) -> Matrix:
        """Return standard errors of fitted values, shape (n, d1), of centred inputs."""
        size = self.left.shape[0] * (self.left.shape[1] + 1) ** 2
        step = max(1, ENTRIES // size)
        parts = [self._variances(rows[i : i + step] @ self.lift) for i in range(0, len(rows), step)]
        variances = np.concatenate(parts) if parts else np.empty((0, len(self.left)))
        if self.intercept:
            variances = variances + np.diag(self.noise)
        return np.asarray(np.sqrt(np.clip(variances, 0.0, None)))

    def _variances(self, white: Matrix) -> Matrix:
        """Return the variances of the fitted values of white inputs, without the intercept.

        A fitted value depends on N along P and Q and two further directions only: the parts of its
        target and of its input outside of their spans. The derivative is therefore a matrix of m +
        1 rows and columns for each input and target.
        """
        P, h, m = self.left, self.ratios, self.left.shape[1]
        codes = white @ self.right
        outside = white - codes @ self.right.T
        lengths = np.sqrt((outside**2).sum(axis=1))
        change = np.zeros((len(white), len(P), m + 1, m + 1))
        change[:, :, :m, :m] = (P[:, :, None] * self.straight)[None] * codes[:, None, None, :]
        change[:, :, :m, :m] += (P[:, None, :] * self.crossed.T)[None] * codes[:, None, :, None]
        fitted = codes[:, : self.kept] @ P[:, : self.kept].T
        for i in range(self.kept):
            change[:, :, i, i] -= self.coupling * fitted
        change[:, :, :m, m] = (P * h)[None] * lengths[:, None, None]
        change[:, :, m, :m] = (codes * h)[:, None, :]
        spread = change
        if self.gram is not None:
            units = outside / np.where(lengths > 0, lengths, 1.0)[:, None]
            spread = change @ _along(self.gram, self.right, units)[:, None]
        through = _along(self.noise, P, np.eye(len(P)) - P @ P.T) @ change
        return np.asarray((spread * through).sum(axis=(2, 3)))


def _along(matrix: Matrix, basis: Matrix, directions: Matrix) -> Matrix:
    """Return the products of a symmetric matrix with a basis and each of the directions (rows)."""
    m, through = basis.shape[1], directions @ matrix
    found = np.empty((len(directions), m + 1, m + 1))
    found[:, :m, :m] = basis.T @ matrix @ basis
    found[:, :m, m] = found[:, m, :m] = through @ basis
    found[:, m, m] = (through * directions).sum(axis=1)
    return found


def fitted_value_errors(
    plain: LinearProblem, alpha: float, *, strength: float, width: int, centered: bool
) -> FittedValueErrors:
    """Return the derivative from which the standard errors of fitted values are computed.

    The strength of dropout is zero in reduced-rank regression, which keeps values as they are.
    """
    # 1) The covariance S/n of the mean of the targets' errors, from the residuals of least squares
    assert plain.n_rows is not None
    matrix = host(whiten(plain).matrix)
    weight, degrees = plain.n_rows + centered, plain.n_rows - matrix.shape[1]
    if degrees < 1:
        raise ValueError(
            f"the number of rows (less one, if the mean was estimated) is {plain.n_rows:g}, and "
            f"X has {matrix.shape[1]} linearly independent columns, so that the variance of the "
            "noise of the targets cannot be estimated: standard errors need more rows than "
            "columns."
        )
    values, vectors = np.linalg.eigh(host(plain.outputs) - matrix @ matrix.T)
    noise = (vectors * np.clip(values, 0.0, None)) @ vectors.T / degrees
    # 2) The fitted map
    white = whiten(plain, alpha / weight)
    lift = host(white.lift)
    P, s, Qt = np.linalg.svd(host(white.matrix), full_matrices=False)
    gram = None
    if alpha > 0:
        gram = lift.T @ host(plain.through_inputs(like(lift, white.matrix)))
    kept, threshold, f = shrink(s, strength, width)
    coupling = strength / (width + strength * kept)
    spread = np.sqrt(np.clip(np.einsum("ai,ab,bi->i", P, noise, P), 0.0, None))
    _check_separation(s, threshold, kept, spread, limited=0 < kept < len(s) and kept == width)
    if degrees < FEW_DEGREES:
        warn_user(
            f"the variance of the noise of the targets is estimated with only {degrees:g} degrees "
            "of freedom, so that "
            "the standard errors are unreliable: give more rows."
        )
    straight, crossed = _derivatives(s, f, kept)
    ratios = np.divide(f, s, out=np.zeros_like(s), where=s > 0)
    return FittedValueErrors(
        lift, P, Qt.T, straight, crossed, ratios, kept, coupling, noise, gram, centered
    )


def _derivatives(s: Matrix, f: Matrix, kept: int) -> tuple[Matrix, Matrix]:
    """Return the matrices A and B of the first-order change A∘Ñ + B∘Ñᵀ of the fitted map."""
    inside = np.arange(len(s)) < kept
    both, one = np.outer(inside, inside), inside[:, None] != inside
    difference, total = np.subtract.outer(s, s), np.add.outer(s, s)
    minus = np.divide(np.subtract.outer(f, f), difference, out=1.0 * both, where=one)
    plus = np.divide(np.add.outer(f, f), total, out=np.zeros_like(total), where=total > 0)
    return (minus + plus) / 2, (minus - plus) / 2


def _check_separation(
    s: Matrix, threshold: float, kept: int, spread: Matrix, *, limited: bool
) -> None:
    """Warn if the choice of components is uncertain; raise an error if it is arbitrary (a tie).

    It depends on the next singular value if the rank is `limited`, else on the threshold of
    dropout.
    """
    if limited:
        near = [(s[kept - 1] - s[kept], math.hypot(spread[kept - 1], spread[kept]))]
        values, least, setting = f"components {kept} and {kept + 1}", SEPARATED, "n_components"
    else:
        places = [i for i in (kept - 1, kept) if 0 <= i < len(s) and threshold > 0]
        near = [(abs(s[i] - threshold), spread[i]) for i in places]
        values, least = "a singular value and the threshold of dropout", NEAR_THRESHOLD
        setting = "dropout"
    for gap, error in near:
        if gap <= TIE * s[0]:
            raise ValueError(
                f"{values} are equal, so that the fitted values have no derivative and no standard "
                f"errors: use another {setting}."
            )
        if gap < least * error:
            warn_user(
                f"{values} differ by only {gap / error:.1g} standard errors: a fit to another "
                "sample may use other components, so that the standard errors of the predictions "
                f"are approximate. Use another {setting}."
            )
