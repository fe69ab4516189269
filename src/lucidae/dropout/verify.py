"""Measured values for certificates of dropout weights, from the weights and the data alone.

Nothing here calls a solver, its moments or the reading of data; formulas that solver and verifier
both need are implemented a second time. U and V are the outgoing and incoming weights of the r
hidden units, λ is the strength of dropout, x are the inputs and y the outputs (x itself for an
autoencoder), centred unless there is no intercept, and C = E[xxᵀ] = RᵀR, which includes the ridge
penalty if there is one. With V' = RV and the least-squares map M = E[yxᵀ]R⁻¹ the expected dropout
loss is

    f = ‖M − UV'ᵀ‖² + λΣ‖uᵢ‖²‖v'ᵢ‖² + floor,   floor = E‖y‖² − ‖M‖².

All kinds of data lead to a factor F = [F_x | F_y] with FᵀF = E[(x, y)(x, y)ᵀ] and a bound on its
error (`RowFactor`), from which one function (`_of_factor`) computes M and V':

* rows [x | y] (`JudgedRows`, a `lucidae.certificates.rows.Data`) have a moment, tested by a sketch,
  of which F is a Cholesky factor with pivoting; where its digits do not suffice, F is the triangle
  of a QR factorisation of the rows themselves;
* fewer rows than features have a factor on the span of the rows, from QR factorisations of blocks
  of features;
* of an autoencoder with many features, or a large matrix, only a few directions matter, on which
  they are projected; singular values outside are bounded by a Krylov space (`leading_axes`);
* a matrix is M itself, as if the inputs were white.

**Errors.** Let σ be the smallest singular value of F_x with standardised columns. An error E of F
with ‖E‖ ≤ δ turns the range of F_x by at most δ/(σ − δ); an error of FᵀF with ‖E‖ ≤ η acts like
δ = η/σ, because in coordinates in which the known moment is the identity, the exact one differs
from it by at most η/σ². So V' has this relative error, and M an error of √(E‖y‖²) times it. An
autoencoder needs no inverse: M = F_xᵀ and V' = F_xV have the errors of F itself, and an error η of
FᵀF acts like δ = √η (Powers & Størmer 1970). f + floor is a sum of squares of F, or linear in FᵀF,
so that its error does not depend on σ.

**Minimum.** It is that of ‖M − X‖² + (λ/r)‖X‖_*² over X of rank at most r, plus floor. With the
singular values s of M and the solution α of α = (λ/r)Σ_{i≤r}(sᵢ − α)₊, the optimal X* has the
singular values ŝᵢ = (sᵢ − α)₊, i ≤ r. With κ = 1 − ŝ_{r+1}/ŝ_r, or 1 if ŝ_r = 0, every X has

    f − min f ≥ κ‖X − X*‖².

Proof: let X* = PΣQᵀ, and W the rest of M with its singular values cut at α. Let A have the singular
values (sᵢ − α)₊, and N = A − X*. Since ‖X‖_* ≥ ⟨PQᵀ + W/α, X⟩, f − min f is at least
‖A − X‖² − ‖A − X*‖² = ‖X − X*‖² − 2⟨N, X⟩. X* is the best approximation of rank r also of X* + tN
for t = ŝ_r/ŝ_{r+1} (Eckart & Young 1936), so that 2⟨N, X⟩ ≤ ‖X − X*‖²/t. So a gap below a tolerance
implies a bound on the distance of the products; the claims compare with that bound.

**Error of the gap.** Let M and V' be wrong by δ and ε. Near the optimum errors of first order
cancel: with the same inequality for M + δ, f − min f changes by at most
2‖δ‖‖X − X*‖ + ‖∂f/∂V'‖‖ε‖ + (‖δ‖ + ‖Uεᵀ‖)² + ‖δ‖²/κ + λΣ‖uᵢ‖²‖εᵢ‖².
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse

from lucidae.certificates.bounds import Ball, gamma, triangle
from lucidae.certificates.rows import LARGEST_FACTOR, Data, GivenRows
from lucidae.certificates.sketch import STARTS, STEPS, Complement, drawn_after

Matrix = np.ndarray[Any, Any]
Product = Callable[[Matrix], Matrix]

CERTIFIED = 1e-6
"""Weights count as optimal if their loss minus the global minimum is at most this times ‖M‖², the
part of E‖y‖² that least squares explains."""

LARGEST_ROWS = 16_384
"""Largest number of rows, fewer than features, that are factorised: two gibibytes."""

COLUMNS = 4096
"""Smallest number of features of such rows that are factorised at a time."""

SMALL = 1024
"""A matrix is projected on a few directions if its smaller dimension is larger than this; the rows
of an autoencoder are if they have more features than this."""

FEW = 8
"""All singular vectors of a large matrix are computed if more than 1/FEW of them are needed."""

NEGLIGIBLE = 1e-7
"""Singular values may be larger than the computed ones as long as this changes the minimum by at
most NEGLIGIBLE times the sum of squares of all: a tenth of the gap that certificates allow."""

WHITE = 1e-8
"""Inputs count as white if each entry of their second moment differs by at most this from the
identity."""

SINGLE = 1e-10
"""A rounding unit above this value means single precision."""

MOST_WEIGHTS = 500
"""Above this number of weights the smallest eigenvalue of the Hessian is not computed."""

ROUNDS = 4
"""Largest number of sets of Ritz vectors, each of which improves the one before."""

CONSTANT = 1e-6
"""Error of a moment, relative to the total variance, above which its constant columns may vary."""

UNKNOWN = 1e100
"""Error of a number of which nothing is known; products of it with zero are zero."""


@dataclass(frozen=True)
class JudgedRows:
    """What is known of rows [x | y], in units of its columns, and how the network uses them."""

    data: Data
    n_inputs: int | None  # number of inputs x; None for an autoencoder
    centered: bool = True  # whether there is an intercept

    @property
    def mean(self) -> Ball:
        """The mean in the units of the user, rounded to double precision."""
        data = self.data
        return Ball(data.mean.value * data.unit, data.offset.error * data.unit)

    @property
    def deviations(self) -> Matrix:
        """Root mean squares of the (centred) columns in the units of the user; 0 if constant."""
        data = self.data if self.centered else self.data.about_zero()
        return np.asarray(data.deviations * self.data.unit)

    @property
    def n_rows(self) -> float:
        """Number of rows, less one if centred."""
        return float(self.data.weight or 0.0) - self.centered

    def factor(self, precision: float) -> RowFactor:
        """Return the factor of these rows: their triangle, or a factor of their second moment.

        The factor of a moment comes from a Cholesky factorisation with pivoting, in units of
        deviations. `precision` is the rounding unit of the rows' dtype.
        """
        data = self.data
        if not self.centered:  # in units in which errors of moment and mean are equally small
            ratio = math.sqrt(gamma(0) / max(data.error, gamma(0)))
            data = data.in_units(np.hypot(1.0, ratio * data.mean.value)).about_zero()
        p, d = data.n_features, data.deviations
        m, varies, units = self.n_inputs or p, d > 0, data.unit + np.zeros(p)
        # An input of mean square q and standard deviation d that was rounded to float32 has errors
        # of up to ε√q/(2d), so that no direction of the standardised inputs has more than
        # ε/2 · √(Σ q/d²) by rounding alone; four times this counts as zero.
        ratios = (data.mean.value[:m] / _nonzero(d[:m]))[varies[:m]]
        level = 2.0 * precision * math.sqrt(float((1.0 + ratios**2).sum()))
        level = level if precision > SINGLE else 0.0
        if data.factor is not None:
            root, error = data.factor[0] * varies * units, data.factor[1]
            return RowFactor(root[:, :m], root[:, m:], units, error, level)
        # Columns may count as constant only if the moment is known to be that of the rows.
        known = bool(np.all(varies)) or data.error <= CONSTANT * data.trace
        error = min(data.error, UNKNOWN) if known else UNKNOWN
        d, least = _nonzero(d), 4 * gamma(p) * p
        standard = np.asarray(data.matrix) / d / d[:, None] * np.outer(varies, varies)
        shares = 2 * error * float((1.0 / d[varies] ** 2).max(initial=0.0))
        level = max(level, math.sqrt(max(least, shares) if shares < 2.0 else least))
        # LLᵀ ≈ A[order][:, order] from pivots down to `least`; a zero matrix has no order.
        lower, order, rank, _ = scipy.linalg.lapack.dpstrf(standard, tol=least, lower=1)
        root = np.zeros((max(rank, 1), p))
        if rank:
            root[:rank, order - 1] = np.tril(lower)[:, :rank].T * (d * units)[order - 1]
        # The part that is left out has at most the trace of its diagonal.
        rounding = gamma(p) * p + (int(varies.sum()) - rank) * least
        error += rounding * float((data.deviations**2).max(initial=0.0))
        return RowFactor(root[:, :m], root[:, m:], units, error, level, squared=True)


Subject = JudgedRows | Matrix
"""What weights are judged on: rows, or the matrix M that UVᵀ approximates."""


class Judged(NamedTuple):
    """Weights that are judged, the settings of their loss, and the gap that is allowed."""

    left: Matrix  # (d, r): U
    right: Matrix  # (m, r): V
    strength: float
    alpha: float = 0.0  # ridge penalty on the sum of squared errors
    tied: bool = False
    precision: float = 0.0  # rounding unit of the dtype of the inputs and of the fitted attributes
    shrink: bool = True  # whether they are those of dropout, not of reduced-rank regression
    tolerance: float = CERTIFIED  # largest gap that is allowed, relative to ‖M‖²

    @property
    def width(self) -> int:
        """The number r of hidden units."""
        return int(self.left.shape[1])

    @property
    def level(self) -> float:
        """Size of the distances that the allowed gap implies."""
        return math.sqrt(self.tolerance)

    @property
    def settings(self) -> dict[str, float]:
        """Values that the attributes ``n_components_`` and ``dropout_`` repeat."""
        return {"n_components_": self.width, "dropout_": self.strength / (1.0 + self.strength)}


class RowFactor(NamedTuple):
    """F_x and F_y with FᵀF = E[(x, y)(x, y)ᵀ], and a bound on the error of F."""

    inputs: Matrix  # (k, m)
    outputs: Matrix  # (k, d); d = 0 if the outputs are the inputs
    units: Matrix  # (m + d,): units of the columns of F in which the error is given
    error: float  # bound on the error of F in these units, in spectral norm
    level: float = 0.0  # pivots of the standardised inputs up to this count as zero
    noise: float = 0.0  # pivots up to this are rounding errors
    squared: bool = False  # whether the error is that of FᵀF
    loads: Matrix | None = None  # (m,): the sizes of the inputs, by default their norms


class White(NamedTuple):
    """The problem for white inputs, with bounds on its errors."""

    target: Matrix  # (d, q): M
    left: Matrix  # (d, r): U
    inner: Matrix  # (q, r): V'
    energy: float  # E‖y‖²
    floor: float = 0.0
    blur: float = 0.0  # bound on the error of M, in Frobenius norm
    tilt: float | None = None  # the same in spectral norm, if it is smaller
    wrong: Any = 0.0  # (r,): bounds on the errors of the columns of V'
    # bound on the error of √(f + floor), or that of f + floor itself if `squared`
    doubt: float = 0.0
    squared: bool = False
    rest: float = 0.0  # part of E‖y‖² outside of the directions on which the data were projected
    upper: Matrix | None = None  # bounds on the r leading singular values, if some may be missing
    lost: float = 0.0  # by how much inputs that count as constant may decrease the minimum
    condition: float = 1.0  # of the second moment of the standardised inputs, on their range
    dropped: int = 0  # number of directions in which the inputs count as constant
    outside: Ball = Ball(0.0)  # norm of the part of V outside of the range of C, relative to V
    residual: Matrix | None = None  # (d, d): second moment of the residuals of least squares
    # A, R and U with the loss ‖A − U(RU)ᵀ‖² + λΣ‖uᵢ‖²‖Ruᵢ‖² of tied weights
    tied: tuple[Matrix, Matrix, Matrix] | None = None
    known: bool = True  # whether the minimum is: not for tied weights and correlated inputs
    rows: JudgedRows | None = None

    @property
    def explained(self) -> float:
        """‖M‖², or E‖y‖² if that is zero."""
        return float((self.target**2).sum()) + self.rest or self.energy or 1.0


def problems(subject: Subject, judged: Judged) -> Iterator[White]:
    """Yield the problem for white inputs; if its digits do not suffice, a more accurate one.

    For too many rows with more features nothing is yielded.
    """
    if not isinstance(subject, JudgedRows):
        yield from _of_matrix(subject, judged)
        return
    data, rows, m = subject.data, subject.data.rows, len(judged.right)
    if subject.n_inputs is not None and isinstance(rows, GivenRows) and rows.shape[0] < m:
        if rows.shape[0] <= LARGEST_ROWS:
            yield _of_few_rows(rows, subject, judged)
        return
    wide = data.matrix is None and subject.n_inputs is None and m > SMALL and not judged.tied
    few = wide and FEW * (judged.width + 1) <= min(rows.shape if rows is not None else (m,))
    if few:
        yield _on_directions(subject, judged)
    elif data.factor is None and data.matrix is not None:
        yield _of_rows(subject, judged)
    exact = data if data.factor is not None else data.refactored()
    if exact is not None:
        subject = replace(subject, data=exact)
        if few and exact is not data:
            yield _on_directions(subject, judged)
        yield _of_rows(subject, judged)
    if wide and not few:
        yield _on_directions(subject, judged)


def _of_rows(subject: JudgedRows, judged: Judged) -> White:
    """Return the problem of rows from their factor."""
    factor = subject.factor(judged.precision)
    found = _of_factor(subject, factor, judged)
    if not judged.tied:
        return found
    outputs = factor.outputs if factor.outputs.shape[1] else factor.inputs
    return _tied(found, outputs, factor.inputs, judged.left)


def _nonzero(sizes: Matrix) -> Matrix:
    """Return sizes with zeros replaced by 1, so that one can divide by them."""
    return np.where(sizes > 0, sizes, 1.0)


def _of_factor(subject: JudgedRows, factor: RowFactor, judged: Judged) -> White:
    """Return the problem for white inputs, from a factor of the rows and a bound on its error."""
    inputs, m, autoencoder = factor.inputs, len(judged.right), not factor.outputs.shape[1]
    outputs = inputs if autoencoder else factor.outputs
    # 1) What needs no inverse: the loss, which is a norm of F times `scope`, a norm of the weights.
    energy, left, V = float((outputs**2).sum()), judged.left, judged.right
    units, beside = factor.units[:m], factor.units if autoencoder else factor.units[m:]
    scaled, spread = units[:, None] * V, float(np.linalg.norm(beside))
    lengths = np.linalg.norm(scaled, axis=0)
    # ‖UVᵀ‖² is far smaller than (Σ ‖uᵢ‖‖vᵢ‖)² if units of very different directions are equalized.
    reach = max(float(((left.T @ left) * (scaled.T @ scaled)).sum()), 0.0)
    dropped_out = float(np.linalg.norm(np.linalg.norm(left, axis=0) * lengths))
    scope = math.hypot(spread + math.sqrt(reach), math.sqrt(judged.strength) * dropped_out)
    doubt = factor.error * (scope**2 if factor.squared else scope)
    # 2) The ridge penalty adds inputs √ρ e₁, √ρ e₂, … with the outputs zero.
    varies, hidden = np.linalg.norm(inputs, axis=0) > 0, inputs @ V
    ridge = judged.alpha / (subject.data.weight or 1.0)
    if ridge > 0:
        inputs = np.vstack([inputs, math.sqrt(ridge) * np.diag(1.0 * varies)])
        outputs = np.vstack([outputs, np.zeros((m, outputs.shape[1]))])
    # 3) The range of the standardised inputs, by a QR factorisation with pivoting
    loads = _nonzero(np.linalg.norm(inputs, axis=0)) if factor.loads is None else factor.loads
    basis, pivoted, order = scipy.linalg.qr(inputs / loads, mode="economic", pivoting=True)
    pivots, upper = np.abs(np.diag(pivoted)), np.zeros_like(pivoted)
    upper[:, order] = pivoted
    exact = max(4 * gamma(m) * float(pivots.max(initial=0.0)), factor.noise)
    level = max(factor.level, exact)
    rank = int((pivots > level).sum())
    basis, upper, dropped = basis[:, :rank], upper[:rank], int(varies.sum()) - rank
    vague = dropped > 0 if factor.squared else int((pivots > exact).sum()) > rank
    sizes = scipy.linalg.svdvals(upper) if rank else np.ones(1)
    least = float(sizes[-1])
    error = factor.error * float((units / loads)[varies].max(initial=0.0)) ** (1 + factor.squared)
    error = error / least if factor.squared else error
    error = UNKNOWN if factor.error >= UNKNOWN else error  # also if no column seems to vary
    sine = error / (least - error) if error < least else UNKNOWN
    graded = loads[varies].max(initial=0.0) / loads[varies].min(initial=math.inf)
    outside = _outside(V, upper * loads, sine * float(graded))
    target = outputs.T @ basis
    residual = outputs - basis @ target.T
    floor = float((residual**2).sum())
    lost = floor if vague else 0.0
    found = White(
        target,
        left,
        upper @ (loads[:, None] * V),
        energy,
        floor,
        # It is not known what hidden directions add to the loss.
        doubt=doubt + (0.0 if factor.squared else math.sqrt(lost)),
        squared=factor.squared,
        lost=lost,
        condition=float(sizes[0] / least) ** 2,
        dropped=dropped,
        outside=Ball(outside.value, max(outside.error, outside.value)) if vague else outside,
        rows=subject,
    )
    # 4) The errors of the least-squares map and of the weights for white inputs.
    if autoencoder:
        error = math.sqrt(factor.error) if factor.squared else factor.error
        return found._replace(
            target=outputs.T,
            inner=hidden,
            floor=0.0,
            lost=0.0,
            blur=error * spread,
            tilt=error * float(units.max(initial=0.0)),
            wrong=error * lengths,
        )
    weak = (error + level * math.sqrt(dropped)) * np.linalg.norm(loads[:, None] * V, axis=0)
    # The entries of P, of unit columns, have rounding errors of that size.
    blur = max(math.sqrt(energy), spread) * (sine + error + gamma(sum(inputs.shape)))
    return found._replace(
        blur=blur + math.sqrt(lost),
        wrong=sine * np.linalg.norm(found.inner, axis=0) + weak,
        residual=residual.T @ residual,
    )


def _outside(right: Matrix, lower: Matrix, error: float) -> Ball:
    """Return the relative norm of the part of V outside of the span of the rows of `lower`.

    The loss does not depend on it; the weights of smallest norm, which estimators return, have
    none.
    """
    if lower.shape[0] in (0, lower.shape[1]):
        return Ball(1.0 if not len(lower) and np.any(right) else 0.0)
    basis, _ = scipy.linalg.qr(lower.T, mode="economic")
    size = float(np.linalg.norm(right)) or 1.0
    return Ball(float(np.linalg.norm(right - basis @ (basis.T @ right))) / size, error)


def _tied(white: White, outputs: Matrix, rows: Matrix, own: Matrix) -> White:
    """Return the problem of tied layers, given that of separate layers for weights U (`own`).

    If the inputs are not white, up to their size, no formula of the optimum is known.
    """
    size = float(np.linalg.norm(rows)) / math.sqrt(len(own)) or 1.0
    rows, own = rows / size, own * math.sqrt(size)
    if np.abs(rows.T @ rows - np.eye(rows.shape[1])).max() > WHITE:
        return white._replace(tied=(outputs.T, rows, own), known=False)
    cross = outputs.T @ rows
    symmetric = (cross + cross.T) / 2
    floor = white.energy - float((symmetric**2).sum())
    tied = symmetric, np.eye(len(symmetric)), own
    return white._replace(target=symmetric, left=own, inner=own, floor=floor, tied=tied)


def _of_matrix(matrix: Matrix, judged: Judged) -> Iterator[White]:
    """Yield the problem of a given matrix M: on a few directions if it is large, else as it is.

    The directions are leading right singular vectors, the weights, and MV' and MᵀU. The gradient
    lies in their span, so that nothing changes, except that the energy outside is a constant.
    """
    energy, left, inner = float((matrix**2).sum()), judged.left, judged.right
    size, white = min(matrix.shape), White(matrix, left, inner, energy)
    if judged.tied:
        yield _tied(white, matrix.T, np.eye(len(matrix)), left)
        return
    large = size > SMALL and FEW * (judged.width + 1) <= size
    if large:
        sides = [inner.T, _unit_rows(left.T) @ matrix]
        columns, upper = leading_axes(
            lambda rows: rows @ matrix.T @ matrix, energy, sides, judged.width, judged.strength
        )
        images = matrix @ columns.T
        rows = _span(left.T, images.T)
        inside, rounding = rows @ images, gamma(sum(matrix.shape))
        yield White(
            inside,
            rows @ left,
            columns @ inner,
            energy,
            blur=rounding * math.sqrt(energy),
            wrong=rounding * np.linalg.norm(inner, axis=0),
            rest=_rest(energy, inside),
            upper=upper,
        )
    if not large or size <= LARGEST_FACTOR:
        yield white


def _rest(energy: float, inside: Matrix) -> float:
    """Return the part of a sum of squares that is outside of some directions, 0 if by rounding."""
    rest = energy - float((inside**2).sum())
    return rest if rest > gamma(1000) * energy else 0.0


def _on_directions(subject: JudgedRows, judged: Judged) -> White:
    """Return the problem of an autoencoder with many features on few directions.

    They are leading axes of the second moment Σ, the weights and ΣV, in whose span the gradient
    lies. The units of the columns are powers of two, so that products with Σ have the rounding
    errors of rows in the units of the user.
    """
    data, U, V = subject.data, judged.left.T, judged.right.T
    energy = float((subject.deviations**2).sum())
    units = data.unit * (data.deviations > 0)

    def apply(rows: Matrix) -> Matrix:
        return np.asarray(data.apply(rows * units) * units)

    sides = [U, V, apply(_unit_rows(V))]
    basis, upper = leading_axes(apply, energy, sides, judged.width, judged.strength)
    if data.factor is None:
        inner, error = apply(basis) @ basis.T, gamma(data.n_features) * energy
        values, turned = scipy.linalg.eigh((inner + inner.T) / 2)
        root = np.sqrt(np.clip(values, 0.0, None))[:, None] * turned.T
    else:
        root, error = data.factor[0] @ (units * basis).T, data.factor[1] * float(units.max())
    few, squared = np.ones(len(basis)), data.factor is None
    factor = RowFactor(root, root[:, :0], few, error, squared=squared, loads=few)
    found = _of_factor(subject, factor, judged._replace(left=basis @ U.T, right=basis @ V.T))
    # Directions in which the factor is zero are no constant inputs.
    known: Any = {"outside": Ball(0.0), "dropped": 0, "condition": 1.0}
    return found._replace(energy=energy, rest=_rest(energy, root), upper=upper, **known)


def _of_few_rows(rows: GivenRows, subject: JudgedRows, judged: Judged) -> White:
    """Return the problem for white inputs of fewer rows A (n × m) than features.

    [Aᵀ V] = WR, from QR factorisations of blocks of features. The first n columns of W span the
    rows: the inputs Wᵀx have the factor Lᵀ if L are the first columns of R, and the other columns
    are the weights WᵀV and, below them, what they do not contain of V.
    """
    (n, m), V, deviations = (rows.shape[0], len(judged.right)), judged.right, subject.deviations
    center, varies = subject.mean.value * subject.centered, deviations > 0
    roots, size = np.sqrt(rows.shares)[:, None], float(np.linalg.norm(deviations[:m])) or 1.0
    sparse, unit = scipy.sparse.issparse(rows.X), size / (float(np.linalg.norm(V)) or 1.0)
    X = rows.X.tocsc() if sparse else rows.X
    found, error, step = np.zeros((0, n + V.shape[1])), 0.0, max(n, COLUMNS)
    for start in range(0, m, step):
        part = slice(start, min(start + step, m))
        table = X[:, part].toarray() if sparse else X[:, part]
        table = (table - center[part]) * varies[part] * roots
        found, added = triangle(np.vstack([found, np.column_stack([table.T, unit * V[part]])]))
        error += added / size
    inputs, outputs = found[:n, :n].T, (rows.Y - center[m:]) * varies[m:] * roots
    if subject.centered:  # also at the last digits of the mean
        inputs, outputs = (part - roots * (roots.T @ part) for part in (inputs, outputs))
    units = np.full(n, size)
    factor = RowFactor(
        inputs, outputs, np.append(units, deviations[m:]), error, noise=error, loads=units
    )
    codes = found[:n, n:] / unit
    white = _of_factor(subject, factor, judged._replace(right=codes))
    inside = white.outside.value * float(np.linalg.norm(codes)) * unit
    away = math.hypot(inside, float(np.linalg.norm(found[n:, n:]))) / size
    return white._replace(outside=Ball(away, white.outside.error), dropped=0)


def leading_axes(
    apply: Product, energy: float, sides: list[Matrix], width: int, strength: float = 0.0
) -> tuple[Matrix, Matrix]:
    """Return leading axes of Σ with `sides`, and bounds on the r largest roots of eigenvalues.

    `energy` is the trace of Σ. The axes are Ritz vectors, rows of S with R = SΣ − ΘS, at first of
    the sides, which contain the axes if the weights are optimal. If no eigenvalue outside of their
    span exceeds β, the i-th largest eigenvalue exceeds the i-th largest of Θ and β, β, … by at most
    ‖R‖ (Weyl 1912), or by ‖R‖²/gap if β is below all of Θ by a gap (Li & Li 2005). β comes from a
    Krylov space with random starts, whose vectors improve the axes, so that it does not rely on S
    being complete.
    """
    basis, size = _span(*sides), energy or 1.0
    m, negligible, rounding = basis.shape[1], NEGLIGIBLE / width, gamma(basis.shape[1])

    def product(rows: Matrix) -> Matrix:
        return apply(rows) / size

    for _ in range(ROUNDS):
        images = product(basis)
        values, turned = scipy.linalg.eigh((images @ basis.T + basis @ images.T) / 2)
        values, turned = np.clip(values[::-1][:width], 0.0, None), turned[:, ::-1][:, :width].T
        axes, residual = turned @ basis, turned @ images - values[:, None] * (turned @ basis)
        # An eigenvalue up to this level is not among the r largest, or dropout removes it.
        last = float(values[-1]) if len(values) == width else 0.0
        level = max(last, threshold(np.sqrt(values), strength, width) ** 2) + negligible
        starts = drawn_after((min(STARTS, m - len(axes)), m), axes)
        space = Complement(product, axes.T, rounding, starts)
        space.extend_until(level)
        space.bound = min(space.bound, max(1.0 - float(values.sum()), 0.0) + 4.0 * rounding)
        drift, gap = float(np.linalg.norm(residual)) + rounding, last - space.bound
        drift = min(drift, drift**2 / gap) if gap > 0 else drift
        if drift <= negligible and space.bound <= level:
            break
        space.extend(STEPS[-1])
        basis = _span(axes, residual, space.above(min(level, space.found) / 2))
    every = np.sort(np.append(values, np.full(width, max(space.bound, 0.0))))[::-1]
    following = space.above((1.0 - NEGLIGIBLE) * min(level, space.found))
    return _span(axes, following, *sides), np.sqrt(size * (every[:width] + drift))


def _span(*parts: Matrix) -> Matrix:
    """Return an orthonormal basis, as rows, of all rows; one direction if all are zero."""
    rows = np.concatenate([_unit_rows(part) for part in parts])
    if not rows.size:
        return np.eye(1, rows.shape[1])  # zero data, where every direction is as good
    span, upper, _ = scipy.linalg.qr(rows.T, mode="economic", pivoting=True)
    return np.asarray(span[:, np.abs(np.diag(upper)) > gamma(rows.shape[1])].T)


def _unit_rows(rows: Matrix) -> Matrix:
    """Return the nonzero rows, scaled to unit length without squaring large entries."""
    peaks = np.abs(rows).max(axis=1, initial=0.0)
    rows = rows[peaks > 0] / peaks[peaks > 0, None]
    return np.asarray(rows / np.linalg.norm(rows, axis=1)[:, None])


def threshold(leading: Matrix, strength: float, width: int) -> float:
    """Return the solution α of α = (λ/r) Σ (sᵢ − α)₊, for descending values s.

    If the first j values exceed α, it is αⱼ = λ Σ_{i≤j} sᵢ/(r + λj). As αⱼ increases with j if and
    only if sⱼ exceeds αⱼ₋₁, α is the largest αⱼ.
    """
    counts = np.arange(1, len(leading) + 1)
    candidates = strength * np.cumsum(leading) / (width + strength * counts)
    return float(candidates.max(initial=0.0))


class Slope(NamedTuple):
    """The loss ‖M − UV'ᵀ‖² + λΣ‖uᵢ‖²‖v'ᵢ‖² as a function of one vector of all weights."""

    target: Matrix  # (d, q): M, in units in which the size of the Hessian is about 1
    tie: Matrix | None  # (q, d): R with V' = RU for tied weights
    strength: float
    point: Matrix  # the weights that are examined: U and V' (tied: U alone), flattened and joined
    width: int

    def __call__(self, flat: Matrix) -> Matrix:
        """Return the gradient; leading batch axes are allowed."""
        stack, cut = flat.shape[:-1], self.target.shape[0] * self.width
        U = flat[..., :cut].reshape(*stack, -1, self.width)
        rest = flat[..., cut:].reshape(*stack, -1, self.width)
        V = rest if self.tie is None else self.tie @ U
        residual = U @ V.swapaxes(-1, -2) - self.target
        on_left = residual @ V + self.strength * U * (V**2).sum(axis=-2, keepdims=True)
        on_right = residual.swapaxes(-1, -2) @ U
        on_right += self.strength * V * (U**2).sum(axis=-2, keepdims=True)
        if self.tie is not None:
            return np.asarray(2 * (on_left + self.tie.T @ on_right).reshape(*stack, -1))
        both = [part.reshape(*stack, -1) for part in (on_left, on_right)]
        return np.asarray(2 * np.concatenate(both, axis=-1))

    def curvature_along(self, directions: Matrix) -> Matrix:
        """Return the products of the Hessian at `point` with directions (last axis).

        The gradient g is a polynomial, so that Im g(x + ihd)/h is the derivative along d up to
        terms of the order h², which vanish for a tiny step h (Squire & Trapp 1998).
        """
        step = 1e-100
        return np.asarray(self(self.point + 1j * step * directions).imag / step)

    def smallest_curvature(self) -> float:
        """Return the smallest eigenvalue of the Hessian."""
        hessian = self.curvature_along(np.eye(len(self.point)))
        return float(scipy.linalg.eigvalsh((hessian + hessian.T) / 2)[0])


ATTRIBUTES = 1e-6
"""Largest relative difference between a fitted attribute and its value computed from the data,
beyond the rounding of its dtype. On well-conditioned data the exact solver and the verifier agree
to about 1e-12."""


@dataclass(frozen=True)
class DropoutFigures:
    """Values measured for given weights U and V; balls are values with bounds on their errors."""

    judged: Judged
    white: White
    best: Optimum
    # (f − min f)/‖M‖², and how much of its error can only make the minimum smaller; if the minimum
    # is not known, that of separate layers, a lower bound, takes its place
    gap: Ball
    # part of that error caused by singular values that were not computed, or by inputs that count
    # as constant
    uncounted: float
    # Values of claims, each with the largest one that an allowed gap implies: product ‖UV'ᵀ − X*‖ /
    # ‖X*‖; equalized, the variance of the scores ‖uᵢ‖‖v'ᵢ‖ over their squared mean; path_norm,
    # Σ scoresᵢ² over its minimum for the same product, minus 1; stationarity, the norm of the
    # gradient in white coordinates, relative to 2‖M‖‖(U, V')‖
    implied: dict[str, tuple[Ball, float]]
    rank: int
    optimal_rank: int | None
    rank_band: tuple[int, int]  # ranks that a product with an allowed gap may have
    curvature: float | None  # smallest eigenvalue of the Hessian over ‖M‖
    reason: str  # why the curvature was not measured
    attributes: Ball | None  # largest relative difference of a fitted attribute, and which one
    attribute: str
    evidence: dict[str, Any]

    @property
    def vague(self) -> bool:
        """Tell whether rounding errors leave open what the claims say."""
        undecided = self.attributes is not None and self.attributes.verdict(ATTRIBUTES) is None
        steepness, limit = self.implied["stationarity"]
        coarse = self.gap.error > self.judged.tolerance
        return coarse or undecided or steepness.verdict(limit) is None


class Optimum(NamedTuple):
    """The minimum of f − floor over all products of rank at most r, and its product X*."""

    values: Matrix  # all singular values of M
    shrunk: Matrix  # the singular values of X*, positive
    product: Matrix  # (d, q): X*
    threshold: float
    tail: float  # sum of the squares of all singular values after the first r
    value: float


def _optimum(white: White, strength: float, width: int, tied: bool) -> Optimum:
    """Return the optimum; for tied weights M is symmetric and s are its positive eigenvalues."""
    target, missing = white.target, 0.0
    if tied:
        values, left = scipy.linalg.eigh(target)
        values, left = np.clip(values[::-1], 0.0, None), left[:, ::-1]
        right, missing = left.T, float((target**2).sum() - (values**2).sum())
    else:
        left, values, right = scipy.linalg.svd(target, full_matrices=False)
    level = threshold(values[:width], strength, width)
    tail = float((values[width:] ** 2).sum()) + white.rest
    # Σ min(sᵢ, α)² + rα²/λ + Σ_{i>r} sᵢ²
    value = float((np.minimum(values[:width], level) ** 2).sum()) + tail + missing
    value += width * level**2 / strength if strength > 0 else 0.0
    shrunk = values[:width][values[:width] > level] - level
    rank = len(shrunk)
    product = np.asarray((left[:, :rank] * shrunk) @ right[:rank])
    return Optimum(values, shrunk, product, level, tail, value)


def measure(
    subject: Subject, judged: Judged, shown: Mapping[str, Any] | None = None
) -> DropoutFigures | None:
    """Return the measured values from which the certificate of dropout weights is made.

    The result is None if they would take too much memory.
    """
    found = None
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for white in problems(subject, judged):
            found = _measured(white, judged, shown)
            if not found.vague:
                break
    return found


def _measured(white: White, judged: Judged, shown: Mapping[str, Any] | None) -> DropoutFigures:
    """Return the measured values of weights for white inputs."""
    left, inner, target, width = white.left, white.inner, white.target, judged.width
    strength, explained, level = judged.strength, white.explained, judged.level
    known = white.known
    best = _optimum(white, strength, width, white.tied is not None and known)
    # 1) the loss and its minimum, without the loss of least squares, which may be much larger
    size, outgoing, lengths = math.sqrt(explained), *(
        np.linalg.norm(part, axis=0) for part in (left, inner)
    )  # fmt: skip
    wrong = white.wrong + np.zeros(width)
    rest, scores = target - left @ inner.T, outgoing * lengths
    value = float((rest**2).sum() + strength * (scores**2).sum()) + white.rest
    if not math.isfinite(value):
        raise ValueError(
            "the loss of the weights overflows double precision: give the weights that belong to "
            "the data."
        )
    gap, rounding = value - best.value, gamma(sum(target.shape) + width)
    tilt = white.blur if white.tilt is None else white.tilt
    doubt = tilt + rounding * float(np.linalg.norm(target))
    rounding *= size + float(scores.sum())
    off = float(outgoing @ wrong) + math.sqrt(strength) * float(np.linalg.norm(outgoing * wrong))
    loss_error = _square(value, white.blur + off + rounding)
    error = loss_error + _square(best.value, white.blur + rounding)
    # 2) the product of the weights; near the optimum, errors of first order cancel in the gap
    learned = float(best.shrunk.max(initial=0.0)) > doubt or doubt == 0.0
    negligible = 0.0 if learned else level * size
    upper, lower = (scipy.linalg.qr(part, mode="economic")[1] for part in (left, inner))
    sizes = scipy.linalg.svdvals(upper @ lower.T)
    rank = _count(sizes, level, negligible)
    product, near, far = Ball(math.inf), math.inf, math.inf
    if known:
        near = _inverse_root(best, width, doubt)
        away = float(np.linalg.norm(left @ inner.T - best.product))
        length = (float(np.linalg.norm(best.shrunk)) or size) if learned else size
        steep = 2.0 * float(np.linalg.norm(strength * inner * outgoing**2 - rest.T @ left))
        second_order = 2.0 * white.blur * away + steep * float(np.linalg.norm(wrong))
        second_order += (white.blur + off) ** 2 + off**2 + (white.blur * near) ** 2
        error = min(error, second_order + 4.0 * rounding * size + rounding**2)
        if white.squared and white.residual is None:  # f and its minimum are linear in the moment
            error = min(error, 2.0 * white.doubt + 4.0 * rounding * size)
        far, bound = near * size / length, near * math.sqrt(max(gap + error, 0.0)) / length
        wrong_by = ((white.blur + doubt) * near**2 + off + gamma(width) * size) / length
        product = Ball(away / length, min(wrong_by, max(bound, away / length)))
    uncounted = white.lost / explained
    if white.upper is not None:
        # If Σ s² is known, the derivative of the minimum is −2(sᵢ − α)₊, and α increases with s.
        computed = np.append(best.values, np.zeros(width))[:width]
        both = (np.maximum(part - best.threshold, 0.0) for part in (white.upper, computed))
        largest, smallest = (float((part**2).sum()) for part in both)
        uncounted += max(largest - smallest, 0.0) / explained
    distance = Ball(gap / explained, error / explained + uncounted)
    # 3) relative errors of the scores, and of what follows from UV'ᵀ and M
    ratios = wrong / _nonzero(lengths)
    uneven = 4.0 * (gamma(sum(target.shape) + width) + float(ratios.max()))
    balanced = float(np.linalg.norm(ratios * np.sqrt(scores)) / (math.sqrt(scores.sum()) or 1.0))
    # The gradients are 2(U(V'ᵀV' + λ diag‖v'ᵢ‖²) − MV') and 2(V'(UᵀU + λ diag‖uᵢ‖²) − MᵀU).
    top = float(best.values.max(initial=0.0))
    bent = balanced * (3.0 * (1.0 + strength) * float(scores.sum()) + top)
    steep_error = (bent + tilt + 8.0 * rounding) / size
    # 4) derivatives
    slope, scale = _slope(white, judged, learned)
    inside = math.sqrt(max(1.0 - white.rest / explained, 0.0))
    steepness = inside * float(np.linalg.norm(slope(slope.point))) / scale
    curvature, reason = _curvature(slope, steepness, level, white.tied is not None and known)
    direct = white.doubt if white.squared else _square(value + white.floor, white.doubt)
    direct += 4.0 * gamma(sum(target.shape)) * white.energy
    total = Ball(value + white.floor, min(loss_error, direct) if white.rows else loss_error)
    attribute, worst = "", None
    if shown is not None:
        differences = compared(shown, judged, white, best, total, doubt)
        attribute, worst = max(differences, key=lambda pair: pair[1].low)
        if worst.low <= ATTRIBUTES:
            attribute, worst = max(differences, key=lambda pair: pair[1].high)
    # ψ² = Σ scoresᵢ² ≥ (Σ scoresᵢ)²/r by Cauchy–Schwarz, and Σ ‖uᵢ‖‖v'ᵢ‖ is at least the nuclear
    # norm of UV'ᵀ, whose square divided by r is therefore the minimum of ψ² for the same product.
    nuclear, present = float(sizes.sum()), bool((scores > negligible).any())

    def excess(total: float) -> Ball:
        """Return ψ² over total²/r, minus 1."""
        value = width * float(((scores / total) ** 2).sum()) - 1.0 if total > 0 else math.inf
        # It is quadratic in the scores, and zero at its minimum.
        return Ball(value, _square(value, uneven)) if present else Ball(0.0, uneven)

    # A gap of ε implies a distance of the product of at most far · √ε, and a variance of the
    # scores and an excess of the path norm of at most unequal · ε.
    unequal = explained * width / (strength * nuclear**2) if strength * nuclear > 0 else 1.0
    unequal = judged.tolerance * max(unequal, 1.0)
    return DropoutFigures(
        judged=judged,
        white=white,
        best=best,
        gap=distance,
        uncounted=uncounted,
        implied={
            "product": (product, level * max(far, 1.0)),
            "equalized": (excess(float(scores.sum())), unequal),
            "path_norm": (excess(nuclear), unequal),
            "stationarity": (Ball(steepness, steep_error), level),
        },
        rank=rank,
        optimal_rank=_count(best.shrunk, level, negligible) if known else None,
        rank_band=_band(best, width, level, doubt + (near * level * size if known else 0.0)),
        curvature=curvature,
        reason=reason,
        attributes=worst,
        attribute=attribute,
        evidence=_evidence(white, best, judged, total.value, scores, sizes),
    )


def _square(square: float, error: float) -> float:
    """Return a bound on the error of a number whose square root has the given error."""
    return 2.0 * math.sqrt(max(square, 0.0)) * error + error**2


def _count(values: Matrix, level: float, negligible: float) -> int:
    """Return how many singular values exceed `level` times the largest one, and `negligible`."""
    largest = float(values.max(initial=0.0))
    return int((values > max(level * largest, negligible)).sum()) if largest > 0 else 0


def _inverse_root(best: Optimum, width: int, doubt: float) -> float:
    """Return 1/√κ, for singular values with the error `doubt`."""
    convexity = 1.0
    if len(best.shrunk) == width and len(best.values) > width:
        last, following = float(best.shrunk[-1]), float(best.values[width]) - best.threshold
        if last > doubt:
            convexity = 1.0 - max(following + doubt, 0.0) / (last - doubt)
    return 1.0 / math.sqrt(convexity) if convexity > 0 else math.inf


def _band(best: Optimum, width: int, level: float, off: float) -> tuple[int, int]:
    """Return the smallest and the largest rank of a product whose gap is at most the tolerance.

    Its singular values differ from the optimal ones by at most its distance, part of `off` (Weyl).
    """
    # Differences sᵢ − α of the removed singular values are negative, but perhaps by rounding only.
    shrunk = best.values[:width] - best.threshold
    top = max(float(shrunk.max(initial=0.0)), 0.0)
    if top == 0.0:
        return 0, 0
    return int((shrunk > level * top + off).sum()), int((shrunk > level * top - off).sum())


def _slope(white: White, judged: Judged, learned: bool) -> tuple[Slope, float]:
    """Return the loss as a `Slope`, and the size of its gradient at weights far from optimal ones.

    For separate layers both weight vectors of a hidden unit get equal norms, which does not change
    the loss.
    """
    left, inner, target, tie, factor = white.left, white.inner, white.target, None, 2.0
    if white.tied is None:
        norms = np.linalg.norm(inner, axis=0), np.linalg.norm(left, axis=0)
        usable = (norms[0] > 0) & (norms[1] > 0)
        turn = np.sqrt(np.divide(*norms, out=np.ones(judged.width), where=usable))
        point = np.concatenate([(left * turn).ravel(), (inner / turn).ravel()])
        unit = float(np.linalg.norm(target)) or 1.0
    else:
        target, tie, own = white.tied
        point, factor, unit = own.ravel(), 4.0, float(np.linalg.norm(target @ tie)) or 1.0
    slope = Slope(target / unit, tie, judged.strength, point / math.sqrt(unit), judged.width)
    # Where the optimal weights are zero, weights are small compared with √‖M‖, one in this scale.
    length = max(float(np.linalg.norm(slope.point)), 0.0 if learned else 1.0)
    return slope, factor * length or 1.0


def _curvature(
    slope: Slope, steepness: float, level: float, white: bool
) -> tuple[float | None, str]:
    """Return the smallest eigenvalue of the Hessian at a critical point, and a sentence on it."""
    if steepness > level:
        return None, "Not measured: the gradient is not zero, so this is not a critical point."
    if len(slope.point) > MOST_WEIGHTS:
        return None, f"Not measured: the network has more than {MOST_WEIGHTS} weights."
    hint = "classify returns a direction" if white else "smallest_curvature returns the direction"
    return slope.smallest_curvature(), f"lucidae.dropout.{hint} in which the loss decreases."


def compared(
    shown: Mapping[str, Any], judged: Judged, white: White, best: Optimum, loss: Ball, doubt: float
) -> list[tuple[str, Ball]]:
    """Return the relative difference of each fitted attribute from what data and weights imply.

    NaN counts as infinite.
    """
    width, precision = judged.width, judged.precision
    # 1) What follows from the singular values; those outside of the range of the inputs may be
    # given as zeros or left out.
    values = np.append(best.values, np.zeros(width))
    top, given = float(values[0]) or 1.0, np.asarray(shown["singular_values_"], dtype=float)
    padded = np.append(given, np.zeros(width))[:width]
    away = np.clip(np.abs(padded - values[:width]) - precision * values[:width], 0.0, None)
    away = np.where(len(given) > width, math.inf, away / top)
    # α < s_ρ and, unless ρ = r, s_{ρ+1} ≤ α.
    rank, level = int(shown["rank_"]), float(shown["threshold_"])
    after = float(values[rank]) - level if 0 <= rank < width else 0.0
    before = level - float(values[rank - 1]) if 0 < rank <= width else 0.0
    misplaced = max(after, before, 0.0) if 0 <= rank <= width else math.inf
    error = (doubt + math.sqrt(white.lost)) / top  # also of directions that count as constant
    # Singular values that dropout removes may be bounded only.
    open_ended = 0.0 if white.upper is None else np.maximum(white.upper - values[:width], 0.0)
    found: list[tuple[str, Any, Any]] = []
    for name, value, off in (
        ("singular_values_", away, error + open_ended / top),
        ("threshold_", abs(level - best.threshold) / top, error),
        ("rank_", misplaced / top, error),
        ("right_", max(white.outside.value - precision, 0.0), white.outside.error),
    ):
        # The error of the moment itself may change the value by up to 10⁻³, as other distances;
        # only a difference above its limit must exceed this error, to be one for certain.
        share = np.where(np.asarray(value) > ATTRIBUTES, 1.0, math.sqrt(ATTRIBUTES))
        found.append((name, value, off * share))
    # 2) The digits of a loss below 10⁻⁶ of E‖y‖² are those of a difference of larger numbers.
    scale = max(loss.value, 4 * loss.error / ATTRIBUTES, 1e-6 * white.energy)
    scale = min(scale, white.energy or 1.0) or 1.0
    difference = abs(float(shown["objective_"]) - loss.value)
    found.append(("objective_", difference / scale, loss.error / scale))
    for name in judged.settings.keys() & shown.keys():
        value = judged.settings[name]
        found.append((name, abs(float(shown[name]) - value) / (abs(value) or 1.0), 0.0))
    if white.rows is not None:
        found += _of_function(shown, judged, white.rows, math.sqrt(white.energy) or 1.0)
    return [
        (name, Ball(float(a), float(e)) if math.isfinite(a) else Ball(math.inf))
        for name, value, off in found
        for a, e in np.broadcast(value, off)
    ]


def _of_function(
    shown: Mapping[str, Any], judged: Judged, rows: JudgedRows, size: float
) -> list[tuple[str, Any, Any]]:
    """Return relative differences of ``coef_``, ``intercept_`` and ``mean_``, and their errors.

    `size` is √(E‖y‖²).
    """
    precision, d, m = judged.precision, rows.deviations, len(judged.right)
    mean, error = rows.mean.value, rows.mean.error
    if "mean_" in shown:  # in deviations; a constant feature has none
        away = np.abs(shown["mean_"] - mean) - precision * np.abs(mean)
        exact = np.where((d > 0) | (away <= error), 0.0, math.inf)
        away = np.clip(away, 0.0, None) / _nonzero(d) * (d > 0) + exact
        return [("mean_", away, error / _nonzero(d))]
    product, coef = judged.left @ judged.right.T, shown["coef_"]
    wrong = np.clip(np.abs(coef - product) - precision * np.abs(product), 0.0, None)
    noise = gamma(judged.width) * (np.abs(judged.left) @ np.abs(judged.right).T)
    top = float(np.abs(product).max()) or 1.0
    # relative to ‖UVᵀ‖, and weighted by the deviations of the features to the predictions
    found: list[tuple[str, Any, Any]] = [
        ("coef_", np.linalg.norm(wrong * part), np.linalg.norm(noise * part))
        for part in (1.0 / top / (float(np.linalg.norm(product / top)) or 1.0), d[:m] / size)
    ]
    # the mean of y minus the prediction at the mean of x
    mean, error = mean * rows.centered, error * rows.centered
    away = np.abs(shown["intercept_"] - (mean[m:] - coef @ mean[:m]))
    rounding = np.abs(mean[m:]) + np.abs(coef) @ np.abs(mean[:m])
    away = away - (m + 8) * max(precision, gamma(0)) * rounding
    off = np.abs(coef) @ error[:m] + error[m:]
    return [*found, ("intercept_", np.clip(away, 0.0, None) / size, off / size)]


def _evidence(
    white: White, best: Optimum, judged: Judged, value: float, scores: Matrix, sizes: Matrix
) -> dict[str, Any]:
    """Return numbers by name from which the measured values can be computed again by hand."""
    found = {
        "strength": judged.strength,
        "width": judged.width,
        "energy": white.energy,
        "value": value,
        "importance": scores,
        "product_singular_values": sizes,
        "floor": white.floor,
        "target_squared_norm": float((white.target**2).sum()) + white.rest,
        "condition": white.condition,
        "dropped_directions": white.dropped,
        "n_rows": None if white.rows is None else white.rows.n_rows,
        "bound" if white.known else "lower_bound": best.value + white.floor,
    }
    spectrum = {
        "singular_values": best.values[: judged.width + 1],
        "threshold": best.threshold,
        "rank": len(best.shrunk),
        "tail": best.tail,
    }
    return found | spectrum if white.known else found
