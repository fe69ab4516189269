"""Measured values for certificates of dropout weights, from the weights and the data alone.

Nothing here calls a solver, its moments or the reading of data; formulas that solver and verifier
both need are implemented a second time. U and V are the outgoing and incoming weights of the r
hidden units, λ is the strength of dropout, x are the inputs and y the outputs (x itself for an
autoencoder), centred unless there is no intercept, and C = E[xxᵀ] = RᵀR, which includes the ridge
penalty if there is one. With V' = RV and the least-squares map M = E[yxᵀ]R⁻¹ the expected dropout
loss is

    f = ‖M − UV'ᵀ‖² + λΣ‖uᵢ‖²‖v'ᵢ‖² + floor,   floor = E‖y‖² − ‖M‖².

All kinds of data lead to M and V' with bounds on their errors (`White`):

* rows (`JudgedRows`) are summed to their moment, which is factorised by Cholesky's method with
  pivoting; where its digits do not suffice, the rows themselves are factorised (QR with pivoting);
* of fewer rows than features the range is computed from their Gram matrix;
* the moment that a solver used (`TestedMoment`) is as good as that of the rows up to the bound of a
  `Sketch`, which was made while the rows passed;
* a matrix (`GivenMatrix`) is M itself, as if the inputs were white.

**Errors.** Let C′ = C + E be the known moment of standardised inputs, ‖E‖ ≤ η, and μ the smallest
eigenvalue of C′. In coordinates in which C′ is the identity, C is I − Ẽ with ‖Ẽ‖ ≤ η/μ, so that V'
has a relative error of at most η/μ, and M an error of at most ‖M‖η/(μ − η) + √(E‖y‖²) η/√μ. √f
and the root of its minimum change by at most as much as M − UV'ᵀ and √λ‖uᵢ‖‖v'ᵢ‖ do, because one is
a norm and the other the distance from a set. For an autoencoder f = tr CK with a positive
semidefinite K that depends on the weights, so that f changes by at most η tr DKD for the standard
deviations D, and its minimum by at most η tr C.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse
from scipy.optimize import minimize
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from lucidae.certificates.bounds import Ball, gamma, triangle
from lucidae.certificates.complement import STARTS, STEPS, Complement, digest_of, drawn_after
from lucidae.certificates.sketch import Sketch

Matrix = np.ndarray[Any, Any]

BLOCK_ROWS = 2048
"""Number of rows that are summed at a time: the error of a sum grows with its length."""

PEAKS = 8
"""Number of rows with the largest shares of the energy that are remembered."""

LARGEST_WEIGHT = 1e70
"""Largest weight that is accepted, for data scaled to the order of one. The loss contains fourth
powers of weights, which are finite up to this value."""

LARGEST_COPY = 2**27
"""Largest number of entries of rows that are made dense to factorise them: one gibibyte."""

LARGEST_ROWS = 16_384
"""Largest number of rows whose Gram matrix is factorised: two gibibytes."""

LARGE_MEAN = 100.0
"""Sparse rows are made dense if the squared norm of their mean exceeds their total variance by this
factor: centring without a dense copy subtracts squares and loses digits."""

CLEAR = 1e-4
"""The rank of few rows is read from their Gram matrix if its pivots are above this share of the
largest, or rounding errors."""

SMALL = 1024
"""A matrix is projected on a few directions if its smaller dimension is larger than this; the rows
of an autoencoder are if they have more features than this."""

FEW = 8
"""Singular vectors are computed by Lanczos iteration if fewer than 1/FEW of them are needed."""

LARGEST_GRAM = 8192
"""Largest dimension of a Gram matrix that is decomposed if Lanczos iteration does not converge."""

LARGEST_CHOLESKY = 2**36
"""A Gram matrix is formed and factorised if that takes at most this many multiplications."""

RESTARTS = 200
"""Largest number of restarts of the Lanczos iteration."""

ATTEMPTS = 3
"""Largest number of Lanczos iterations until no leading singular value is known to be missing."""

NEGLIGIBLE = 1e-7
"""Singular values may be larger than the computed ones as long as this changes the minimum by at
most NEGLIGIBLE times the sum of squares of all: a tenth of the gap that certificates allow."""

WHITE = 1e-8
"""Inputs count as white if each entry of their second moment differs by at most this from the
identity."""

SINGLE = 1e-10
"""A rounding unit above this value means single precision."""

DENSE = 400
"""Up to this number of weights the smallest eigenvalue of the Hessian is always computed."""

MOST_WEIGHTS = 20_000
"""Above this number of weights the smallest eigenvalue of the Hessian is not computed."""

DESCENT_WORK = 4e9
"""Number of floating point operations after which a descent stops, a few seconds' work."""


CONSTANT = 1e-6
"""Error of a moment, relative to the total variance, above which its constant columns may vary."""

UNKNOWN = 1e100
"""Error of a number of which nothing is known; products of it with zero are zero."""


class UnprojectedError(ValueError):
    """Error for data whose leading singular vectors the verifier could not compute."""


@dataclass(frozen=True)
class JudgedRows:
    """Rows as they were given: inputs X, outputs Y (None for X itself) and weights, or blocks."""

    X: Any  # (n, m): dense or sparse; None if the rows are read in blocks
    Y: Any = None  # (n, d)
    weights: Any = None  # (n,)
    centered: bool = True  # whether there is an intercept
    read: Callable[[], Any] | None = None  # function that yields blocks of rows, outputs, weights
    repeatable: bool = True  # whether `read` may be called again
    dense: bool = False  # whether sparse rows are made dense, so that they can be centred

    def blocks(self) -> Iterator[tuple[Any, Matrix | None]]:
        """Yield blocks of the rows [x | y] in float64, sparse if X is, with their weights."""
        for x, y, w in ((self.X, self.Y, self.weights),) if self.read is None else self.read():
            for start in range(0, x.shape[0], BLOCK_ROWS):
                part = slice(start, start + BLOCK_ROWS)
                share = None if w is None else np.asarray(w[part], dtype=float)
                block = _joined(x[part], None if y is None else y[part])
                yield _dense(block) if self.dense else block, share


def _joined(x: Any, y: Any) -> Any:
    """Return rows [x | y] in float64."""
    if not scipy.sparse.issparse(x):
        return _dense(x) if y is None else np.hstack([_dense(x), _dense(y)])
    x = scipy.sparse.csr_array(x, dtype=np.float64)
    return x if y is None else scipy.sparse.hstack([x, _dense(y)], format="csr")


def _dense(values: Any) -> Matrix:
    """Return a matrix as a dense float64 array; a vector as one column."""
    values = values.toarray() if scipy.sparse.issparse(values) else values
    found = np.asarray(values, dtype=np.float64)
    return found[:, None] if found.ndim == 1 else found


@dataclass(frozen=True)
class TestedMoment:
    """Covariance of [x | y] that a solver used, and the sketch of [x | y]/`scales` to test it."""

    covariance: Matrix  # (p, p), about the mean
    weight: float
    sketch: Sketch
    scales: Matrix  # (p,): powers of two
    n_features: int | None  # number of inputs x; None for an autoencoder
    centered: bool = True

    __test__ = False  # not a class of tests


@dataclass(frozen=True)
class GivenMatrix:
    """The matrix M that UVᵀ approximates."""

    matrix: Matrix


Data = JudgedRows | TestedMoment | GivenMatrix


@dataclass(frozen=True)
class FittedArrays:
    """Fitted attributes of an estimator that its certificate compares with the data."""

    objective: float
    rank: int
    threshold: float
    singular_values: Matrix
    coef: Matrix | None = None  # (d, m)
    # ``intercept_`` has the rounding errors of the means, which are large if those are. `predict`
    # therefore subtracts a mean of x, stored as two vectors, and adds the prediction at this mean.
    intercept: Matrix | None = None  # (d,)
    center: tuple[Matrix, Matrix] | None = None  # (m,) each
    bias: Matrix | None = None  # (d,)
    mean: Matrix | None = None  # (m,): ``mean_``
    # pairs of an attribute that repeats a setting, such as ``dropout_``, and the setting
    settings: tuple[tuple[float, float], ...] = ()
    precision: float = 0.0  # rounding unit of the dtype of the attributes


class KnownMoment(NamedTuple):
    """What one pass over rows [x | y] shows: mean, second moment, errors, the largest rows."""

    shift: Matrix  # (p,): a point near the mean
    offset: Matrix  # (p,): the mean minus `shift`
    mean_error: Matrix  # (p,)
    deviations: Matrix  # (p,): root mean squares of the centred columns; 0 for constant ones
    weight: float
    centered: bool
    peaks: Matrix  # (2, ≤ PEAKS): numbers of rows, and their shares of the energy
    second: Matrix = np.zeros((0, 0))  # (p, p): about the mean, or zero without an intercept
    # bounds on the spectral norms of its errors, in units of `deviations`: of the inputs, of inputs
    # and outputs, of the outputs; and that of all in the units of the rows
    errors: tuple[float, float, float] = (0.0, 0.0, 0.0)
    absolute: float | None = None

    def resolution(self, size: int, precision: float) -> float:
        """Return the standard deviation that float32 gives to constant standardised inputs.

        An input of mean square q and standard deviation d has rounding errors of up to ε√q/(2d), so
        that no direction has more than ε/2 · √(Σ q/d²) by rounding alone; four times this is
        returned, and 0 for double precision.
        """
        if precision <= SINGLE:
            return 0.0
        mean, deviations = (self.shift + self.offset)[:size], self.deviations[:size]
        mean, varies = mean * self.centered, deviations > 0
        ratios = np.divide(mean, deviations, out=np.zeros_like(mean), where=varies)
        return 2.0 * precision * math.sqrt(float(np.sum((1.0 + ratios**2)[varies])))


class White(NamedTuple):
    """The problem for white inputs, in units of order one, with bounds on its errors."""

    target: Matrix  # (d, q): M
    left: Matrix  # (d, r): U
    inner: Matrix  # (q, r): V'
    floor: float
    energy: float  # E‖y‖²
    unit: float  # unit of the outputs
    blur: float = 0.0  # bound on the error of M, in Frobenius norm
    wrong: Any = 0.0  # (r,): bounds on the errors of the columns of V'
    losses: tuple[float, float] | None = None  # bounds on the errors of f and of its minimum
    value: float | None = None  # f, if more accurate than from M and V'
    doubt: float | None = None  # bound on the error of f + floor, if better than from M and V'
    square: float = 0.0  # bound on the error of the squared singular values, of an autoencoder
    # bounds on the errors of X and M relative to ‖M‖, and of the gradient relative to its size, if
    # better than from the errors of M and V'
    relative: float | None = None
    slope: float | None = None
    diagonal: bool = False  # whether M is diagonal, with descending entries
    rest: float = 0.0  # part of E‖y‖² outside of the directions on which the data were projected
    upper: Matrix | None = None  # bounds on the r leading singular values, if some may be missing
    lost: float = 0.0  # by how much inputs that count as constant may decrease the minimum
    condition: float = 1.0  # of the second moment of the standardised inputs, on their range
    dropped: int = 0  # number of directions in which the inputs count as constant
    outside: Ball = Ball(0.0)  # norm of the part of V outside of the range of C, relative to V
    from_rows: bool = True  # whether the rows were factorised, not their moment
    n_rows: float | None = None  # number of rows, less one if centred; None for a given matrix
    residual: Matrix | None = None  # (d, d): second moment of the residuals of least squares
    tied_problem: tuple[Matrix, Matrix | None, Matrix] | None = None  # E[yxᵀ], C and U, if tied
    moment: KnownMoment | None = None

    @property
    def explained(self) -> float:
        """‖M‖², or E‖y‖² if that is zero."""
        return float((self.target**2).sum()) + self.rest or self.energy or 1.0


def _unit(size: float) -> float:
    """Return the power of four that is nearest to a positive number; 1 for zero."""
    return 4.0 ** round(math.log(size, 4.0)) if size > 0 else 1.0


def summed(rows: JudgedRows, n_features: int) -> KnownMoment:
    """Return the second moment of rows, from one pass over their blocks."""
    total, depth, longest, seen, shift = 0.0, 0, 0, 0, np.zeros(0)
    sums = squares = np.zeros(0)
    peaks = []
    for block, weights in rows.blocks():
        (n, p), sparse = block.shape, scipy.sparse.issparse(block)
        if not seen:
            # A point near the mean; sparse rows are not shifted, so that zeros stay zeros.
            counted = np.arange(n) if weights is None else np.flatnonzero(weights > 0)
            near = rows.centered and not sparse and len(counted)
            shift = block[counted[:64]].mean(axis=0) if near else np.zeros(p)
            sums, squares = np.zeros(p), np.zeros((p, p))
        away = block if sparse else block - shift
        if weights is not None:
            roots = np.sqrt(weights)[:, None]
            away = scipy.sparse.csr_array(away.multiply(roots)) if sparse else away * roots
            sums += roots[:, 0] @ away
        else:
            sums += away.sum(axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            product = away.T @ away
            lengths = np.asarray((away.multiply(away) if sparse else away**2).sum(axis=1)).ravel()
            squares += product.toarray() if sparse else product
        top = np.argsort(-lengths, kind="stable")[:PEAKS]
        peaks.append(np.stack([seen + top, lengths[top]]))
        total += float(n if weights is None else weights.sum())
        seen, depth, longest = seen + n, depth + 1, max(longest, n)
    if not total > 0:
        raise ValueError("the rows have no positive weight: give at least one row.")
    offset, second, rounding = sums / total, squares / total, gamma(depth + longest)
    spread = np.sqrt(np.diag(second))
    if not math.isfinite(float(spread.sum())):
        raise ValueError(
            "the squares of X or y overflow double precision: their rows lie too far from the "
            "center. Give X and y divided by a constant."
        )
    if rows.centered:
        second = second - np.outer(offset, offset)
    deviations = _deviations(second, (shift + offset) * rows.centered)
    ratios = np.divide(spread, deviations, out=np.zeros_like(spread), where=deviations > 0)
    every = np.concatenate(peaks, axis=1)
    every = every[:, np.argsort(-every[1], kind="stable")[:PEAKS]]
    return KnownMoment(
        shift,
        offset,
        rounding * spread,
        deviations,
        total,
        rows.centered,
        np.stack([every[0], every[1] / (float(np.trace(squares)) or 1.0)]),
        second * np.outer(deviations > 0, deviations > 0),
        # Errors of sums are at most γ times the product of root mean squares (Cauchy–Schwarz).
        _blocks(4.0 * rounding, *(np.linalg.norm(part) for part in np.split(ratios, [n_features]))),
    )


def _blocks(error: float, inputs: Any, outputs: Any) -> tuple[float, float, float]:
    """Return an error times the squares and the product of the sizes of inputs and outputs."""
    return error * float(inputs) ** 2, error * float(inputs * outputs), error * float(outputs) ** 2


def _deviations(second: Matrix, mean: Matrix) -> Matrix:
    """Return root mean squares of columns; 0 if constant: their mean has rounding errors."""
    found = np.sqrt(np.clip(np.diag(second), 0.0, None))
    return np.where(found > gamma(0) * np.abs(mean), found, 0.0)


def tested(data: TestedMoment) -> KnownMoment:
    """Return the moment that a solver used, with the bound of the sketch on its error."""
    sketch, scales = data.sketch, data.scales
    second = data.covariance / np.outer(scales, scales)
    error, offset = sketch.moment_error(second), sketch.sums / sketch.weight
    if not abs(data.weight - sketch.weight) <= gamma(sketch.rows) * sketch.weight:
        error = UNKNOWN  # the moment of other rows
    error = min(error, UNKNOWN)
    spread = np.sqrt(np.clip(np.diag(second), 0.0, None) + offset**2)
    about, mean = gamma(sketch.depth) * spread, sketch.shift + offset
    if not data.centered:
        second = second + np.outer(mean, mean)
    deviations = _deviations(second, mean * data.centered)
    m, varies = data.n_features or len(scales), deviations > 0
    if not np.all(varies) and error > CONSTANT * sketch.size / sketch.weight:
        raise ValueError(
            "the covariance that the fit used has columns without variance, and it is not that of "
            "the rows: nothing can be judged by it. Give X to lucidae.certify."
        )
    ones, wrong, mean_ = (
        np.split(np.divide(part, deviations, out=np.zeros_like(part), where=varies), [m])
        for part in (np.ones_like(scales), about, np.abs(mean))
    )
    errors = np.array(_blocks(error, ones[0].max(initial=0.0), ones[1].max(initial=0.0)))
    if not data.centered:  # second moments about zero have the errors of the means too
        (a, b), (c, d) = map(np.linalg.norm, wrong), map(np.linalg.norm, mean_)
        errors += [a * (2 * c + a), a * d + b * c + a * b, b * (2 * d + b)]
        errors += _blocks(gamma(0), c, d)
    rows, energies = sketch.peaks
    return KnownMoment(
        sketch.shift * scales,
        offset * scales,
        about * scales,
        deviations * scales,
        sketch.weight,
        data.centered,
        np.stack([rows, energies / (sketch.size or 1.0)]),
        second * np.outer(scales * varies, scales * varies),
        (float(errors[0]), float(errors[1]), float(errors[2])),
        error if data.n_features is None and np.all(scales == 1.0) else None,
    )


class Judged(NamedTuple):
    """Weights that are judged, and the settings of their loss."""

    left: Matrix  # (d, r): U
    right: Matrix  # (m, r): V
    strength: float
    alpha: float = 0.0  # ridge penalty on the sum of squared errors
    tied: bool = False
    precision: float = 0.0  # rounding unit of the dtype of the inputs

    @property
    def width(self) -> int:
        """The number r of hidden units."""
        return int(self.left.shape[1])


def _scaled(judged: Judged, hidden: Matrix, unit: float) -> tuple[Matrix, Matrix]:
    """Return U and V' for outputs divided by `unit`, from U and V' = `hidden`."""
    left, inner = judged.left / math.sqrt(unit), hidden / math.sqrt(unit)
    size = max(float(np.abs(part).max(initial=0.0)) for part in (left, inner))
    if not size <= LARGEST_WEIGHT:
        raise ValueError(
            f"the weights are about {size:.1g} times as large as weights that fit the data, so "
            "that their loss overflows double precision. Give the weights that belong to the data."
        )
    return left, inner


def problems(data: Data, judged: Judged) -> Iterator[White]:
    """Yield the problem for white inputs; if its digits do not suffice, a more accurate one."""
    many = isinstance(data, JudgedRows) and data.Y is None and not judged.tied
    if isinstance(data, GivenMatrix):
        yield _of_matrix(data.matrix, judged)
    elif isinstance(data, TestedMoment):
        yield _of_moment(tested(data), data.n_features, judged)
    elif data.X is not None and many and has_many_features(data.X.shape, judged.width):
        yield _projected_rows(data, judged)
    elif data.X is not None and data.Y is not None and data.X.shape[0] < data.X.shape[1]:
        yield from _of_few_rows(data, judged)
    else:
        moment = summed(data, len(judged.right))
        mean, spread = moment.shift + moment.offset, moment.deviations
        if np.any(mean**2 > LARGE_MEAN * spread**2) and data.centered and data.repeatable:
            sparse = data.X is None or scipy.sparse.issparse(data.X)
            data = replace(data, dense=True)
            moment = summed(data, len(judged.right)) if sparse else moment
        n_features = len(judged.right) if len(judged.right) < len(moment.shift) else None
        yield _of_moment(moment, n_features, judged)
        if data.repeatable and not judged.tied:
            yield _of_triangle(data, moment, n_features, judged)


def _of_matrix(matrix: Matrix, judged: Judged) -> White:
    """Return the problem of a given matrix, projected on a few directions if it is large."""
    energy = float((matrix**2).sum())
    unit = _unit(math.sqrt(energy))
    scaled = matrix / unit
    left, inner = _scaled(judged, judged.right, unit)
    if judged.tied:
        own = judged.left / math.sqrt(unit)
        symmetric = (scaled + scaled.T) / 2
        floor = float((scaled**2).sum() - (symmetric**2).sum())
        problem = (scaled, None, own)
        return White(symmetric, own, own, floor, energy / unit**2, unit, tied_problem=problem)
    if not (min(matrix.shape) > SMALL and FEW * (judged.width + 1) <= min(matrix.shape)):
        return White(scaled, left, inner, 0.0, energy / unit**2, unit)
    operator = Operator(scaled, None)
    first, second, upper = _leading(operator, judged.strength, judged.width)
    rows = _basis(first, [left, operator.times(_unit_columns(inner))])
    columns = _basis(second, [inner, operator.back(_unit_columns(left))])
    inside = rows.T @ operator.times(columns)
    rest = _remainder(operator.total, float((inside**2).sum()))
    blur = gamma(sum(matrix.shape)) * math.sqrt(operator.total)
    return White(
        inside,
        rows.T @ left,
        columns.T @ inner,
        0.0,
        operator.total,
        unit,
        blur=blur,
        wrong=gamma(sum(matrix.shape)) * np.linalg.norm(inner, axis=0),
        rest=rest,
        upper=upper,
    )


def _of_moment(moment: KnownMoment, n_features: int | None, judged: Judged) -> White:
    """Return the problem for white inputs, from the second moment of [x | y]."""
    if judged.tied:
        return _of_tied(moment, n_features, judged)
    if n_features is None:
        return _of_covariance(moment, judged)
    m, second, d = n_features, moment.second, moment.deviations
    outputs = second[m:, m:]
    energy = float(np.trace(outputs))
    unit = _unit(math.sqrt(energy))
    varies = d[:m] > 0
    # The ridge penalty adds inputs √ρ e₁, √ρ e₂, … with the outputs zero.
    ridge = judged.alpha / moment.weight
    scales = np.where(varies, np.hypot(d[:m], math.sqrt(ridge)), 1.0)
    standard = (second[:m, :m] + np.diag(ridge * varies)) / scales / scales[:, None]
    standard = standard * np.outer(varies, varies)
    noise, across, beyond = (error + gamma(m) * m for error in moment.errors)
    level = max(4 * gamma(m) * m, moment.resolution(m, judged.precision) ** 2)
    level = max(level, 2 * noise) if noise < 1.0 else level
    found = _range(standard, level)
    rank, least, placed = len(found.chosen), found.least, found.placed
    cross = (second[m:, :m] / unit / scales)[:, found.chosen]
    target = scipy.linalg.solve_triangular(found.triangle, cross.T, trans="T").T
    size = float(np.linalg.norm(target))
    turned = noise / (least - noise) if noise < least else UNKNOWN
    weights = judged.right * scales[:, None] * varies[:, None]
    left, inner = _scaled(judged, placed @ weights, unit)
    weights = weights / math.sqrt(unit)
    dropped = m - rank - int((~varies).sum())
    floor = energy / unit / unit - size**2
    lengths = np.linalg.norm(weights, axis=0)
    wrong = turned * np.linalg.norm(inner, axis=0) + gamma(m) * math.sqrt(m) * lengths
    wrong = wrong + (math.sqrt(level * dropped) * lengths if dropped else 0.0)
    blur = size * turned + math.sqrt(energy) / unit * across / math.sqrt(least)
    # In features of very different scales the range is known to the precision of the largest.
    grading = float(d[:m].max(initial=0.0) / d[:m][varies].min(initial=math.inf))
    # f + floor = tr CK with the second moment of [x | y], as for an autoencoder.
    gram = left.T @ left + judged.strength * np.diag((left**2).sum(axis=0))
    total, fitted = energy / unit / unit, float(((weights @ gram) * weights).sum())
    doubt = beyond * total + 2 * across * math.sqrt(total * fitted) + noise * fitted
    return White(
        target,
        left,
        inner,
        floor,
        energy / unit / unit,
        unit,
        blur,
        wrong,
        doubt=doubt,
        lost=max(floor, 0.0) if dropped else 0.0,
        condition=found.condition,
        dropped=dropped,
        outside=_outside(
            judged.right, placed * scales * varies, turned * grading, certain=not dropped
        ),
        from_rows=False,
        n_rows=moment.weight - moment.centered,
        residual=outputs / unit / unit - target @ target.T,
        moment=moment,
    )


def _of_covariance(moment: KnownMoment, judged: Judged) -> White:
    """Return the problem of an autoencoder, in the coordinates of the eigenvectors of C."""
    second, d = moment.second, moment.deviations
    varies = d > 0
    total = float((d**2).sum())
    unit = _unit(math.sqrt(total))
    values, axes = scipy.linalg.eigh(second * np.outer(varies, varies) / unit / unit)
    values, axes = values[::-1], axes[:, ::-1]
    roots = np.sqrt(np.clip(values, 0.0, None))
    left, inner = _scaled(judged, unit * roots[:, None] * (axes.T @ judged.right), unit)
    left = axes.T @ left
    # Weights of features of small scale may be large, and lose their digits in the axes.
    turned = (
        gamma(len(d)) * math.sqrt(unit) * float(roots[0]) * np.linalg.norm(judged.right, axis=0)
    )
    noise = moment.errors[0] + gamma(len(d)) * len(d)
    scaled = (d / unit) ** 2
    energy, top = float(scaled.sum()), float(scaled.max(initial=0.0))
    plain = noise * top if moment.absolute is None else moment.absolute / unit / unit
    plain += gamma(len(d)) * energy
    # K = (I − VUᵀ)(I − UVᵀ) + λV diag‖uᵢ‖² Vᵀ; only its diagonal is needed.
    U, V = judged.left, judged.right
    gram = U.T @ U + judged.strength * np.diag((U**2).sum(axis=0))
    diagonal = 1.0 + np.abs(2 * (U * V).sum(axis=1)) + ((V @ gram) * V).sum(axis=1)
    doubt = min(noise * float(scaled @ diagonal), plain * float(diagonal.sum()))
    low = min(noise * energy, plain * len(d))
    safe = np.where(varies, d, 1.0)
    standard = second / safe / safe[:, None]
    found = _range(standard, 4 * gamma(len(d)) * len(d))
    outward, inward = ((d / unit)[:, None] * part for part in (U, V))
    seen = standard @ inward
    value = energy - 2 * float((outward * seen).sum()) + float((gram * (inward.T @ seen)).sum())
    grading = float(d.max(initial=0.0) / d[varies].min(initial=math.inf))
    square = min(noise * top, plain)
    # ‖√A − √B‖ ≤ √‖A − B‖. The gradients are 2√C(V(UᵀU + λ diag‖uᵢ‖²) − U), whose bracket is zero
    # at the optimum, and 2(U(VᵀCV + λ diag vᵢᵀCvᵢ) − CV), which is linear in C.
    size = math.sqrt(energy) or 1.0
    norms = np.linalg.norm(left, axis=0), np.linalg.norm(inner, axis=0)
    turn = np.sqrt(np.divide(norms[1], norms[0], out=np.ones(len(gram)), where=norms[0] > 0))
    turn = np.where(turn > 0, turn, 1.0)
    on_right = np.linalg.norm((V @ gram - U) * turn) * math.sqrt(square / unit)
    lengths = np.linalg.norm(V, axis=0)
    on_left = 1.0 + float(np.linalg.norm(U)) * float(lengths.sum()) * (1.0 + judged.strength)
    on_left = on_left * float(np.linalg.norm(lengths / turn)) * square * math.sqrt(unit)
    length = np.hypot(np.linalg.norm(left * turn), np.linalg.norm(inner / turn)) or 1.0
    slope = float(np.hypot(on_right, on_left) / size / length)
    last = float(values[len(found.chosen) - 1]) if len(found.chosen) else 0.0
    apart = plain / last if last > 0 else UNKNOWN  # the sine of the angle (Davis & Kahan 1970)
    return White(
        np.diag(roots),
        left,
        inner,
        0.0,
        energy,
        unit,
        math.sqrt(low),  # ‖√A − √B‖² ≤ tr|A − B| (Powers & Størmer 1970)
        turned
        + math.sqrt(unit)
        * np.sqrt(np.minimum(noise * (scaled @ V**2), plain * (V**2).sum(axis=0))),
        (doubt, low),
        value=value,
        doubt=doubt,
        square=square,
        relative=math.sqrt(square)
        * (1.0 + math.sqrt(len(gram)) + float(np.linalg.norm(U @ V.T)))
        / size,
        slope=slope,
        diagonal=True,
        condition=found.condition,
        outside=_outside(
            V, found.placed * d, min(noise / found.least * grading, apart), certain=False
        ),
        from_rows=False,
        n_rows=moment.weight - moment.centered,
        moment=moment,
    )


class Range(NamedTuple):
    """Pivoted Cholesky factorisation C = TᵀT of a standardised second moment of rank q."""

    triangle: Matrix  # (q, q): the columns of T that were chosen
    chosen: Matrix  # (q,): their numbers
    placed: Matrix  # (q, m): T
    least: float  # smallest eigenvalue of the part of C that was chosen
    condition: float


def _range(standard: Matrix, level: float) -> Range:
    """Return the factorisation of a standardised second moment; pivots up to `level` are zero."""
    m = len(standard)
    factor, order, rank, _ = scipy.linalg.lapack.dpstrf(standard, tol=level, lower=0)
    # A zero matrix has rank 0; LAPACK then leaves the order unset.
    order = np.arange(m) if rank == 0 else order - 1
    upper, placed = np.triu(factor)[:rank], np.zeros((rank, m))
    placed[:, order] = upper
    sizes = scipy.linalg.svdvals(upper[:, :rank]) if rank else np.ones(1)
    condition = float(sizes[0] / max(sizes[-1], 1e-300)) ** 2
    return Range(upper[:, :rank], order[:rank], placed, float(sizes[-1]) ** 2, condition)


def _outside(right: Matrix, lower: Matrix, error: float, *, certain: bool = True) -> Ball:
    """Return the relative norm of the part of V outside of the span of the rows of `lower`.

    The loss does not depend on it; the weights of smallest norm, which estimators return, have
    none. It is not `certain` if a second moment may hide directions of small variance.
    """
    if lower.shape[0] in (0, lower.shape[1]):
        return Ball(1.0 if not len(lower) and np.any(right) else 0.0)
    basis, _ = scipy.linalg.qr(lower.T, mode="economic")
    size = float(np.linalg.norm(right)) or 1.0
    value = float(np.linalg.norm(right - basis @ (basis.T @ right))) / size
    return Ball(value, error if certain else max(error, value))


def _of_tied(moment: KnownMoment, n_features: int | None, judged: Judged) -> White:
    """Return the problem of tied layers; if the inputs are not white, that of separate layers."""
    m = len(moment.deviations) if n_features is None else n_features
    inputs = moment.second[:m, :m]
    cross = inputs if n_features is None else moment.second[m:, :m]
    white = _of_moment(moment, n_features, judged._replace(tied=False))
    a, b = _unit(float(moment.deviations[:m].max(initial=0.0))), white.unit
    own = judged.left * (math.sqrt(a) / math.sqrt(b))
    cross, inputs = cross / a / b, inputs / a / a
    if np.abs(inputs - np.eye(m)).max() > WHITE:
        return white._replace(tied_problem=(cross, inputs, own))
    symmetric = (cross + cross.T) / 2
    floor = white.energy - float((symmetric**2).sum())
    return white._replace(
        target=symmetric,
        left=own,
        inner=own,
        floor=floor,
        losses=None,
        diagonal=False,
        tied_problem=(cross, None, own),
    )


def _of_triangle(
    data: JudgedRows, moment: KnownMoment, n_features: int | None, judged: Judged
) -> White:
    """Return the problem for white inputs from a QR factorisation of the rows [x | y].

    Errors δ of the standardised rows turn the range of the inputs by δ/σ with the smallest singular
    value σ: they are proportional to the condition number, not to its square.
    """
    scales = np.where(moment.deviations > 0, moment.deviations, 1.0)
    varies = moment.deviations > 0

    def blocks() -> Iterator[Matrix]:
        for block, weights in data.blocks():
            rows = (_dense(block) - moment.shift - moment.offset * data.centered) / scales * varies
            rows /= math.sqrt(moment.weight)
            yield rows if weights is None else rows * np.sqrt(weights)[:, None]

    m = len(scales) if n_features is None else n_features
    factor, error = triangle(blocks())
    energy_of = moment.deviations[m:] if n_features is not None else moment.deviations
    energy = float((energy_of**2).sum())
    unit = _unit(math.sqrt(energy))
    inward, outward = factor[:, :m], factor * (scales * varies / unit)
    outward = outward if n_features is None else outward[:, m:]
    ridge = judged.alpha / moment.weight
    loads = np.ones(m)
    if ridge > 0:
        added = np.diag(math.sqrt(ridge) / scales[:m] * varies[:m])
        inward = np.vstack([inward, added])
        outward = np.vstack([outward, np.zeros((m, outward.shape[1]))])
        loads = np.maximum(np.linalg.norm(inward, axis=0), 1.0)
        inward = inward / loads
    basis, upper, pivots = _pivoted(inward)
    level = 4 * gamma(m) * max(float(pivots.max(initial=0.0)), 1e-300)
    rank = int((pivots > max(level, moment.resolution(m, judged.precision))).sum())
    unresolved = basis[:, rank : int((pivots > level).sum())]
    lost = float(((outward.T @ unresolved) ** 2).sum())
    basis, upper = basis[:, :rank], upper[:rank]
    target = outward.T @ basis
    sizes = scipy.linalg.svdvals(upper) if rank else np.ones(1)
    turned = error / (float(sizes[-1]) - error) if error < sizes[-1] else UNKNOWN
    weights = judged.right * (scales[:m] * loads * varies[:m])[:, None]
    left, inner = _scaled(judged, upper @ weights, unit)
    lengths = np.linalg.norm(weights, axis=0) / math.sqrt(unit)
    d = moment.deviations[:m][varies[:m]]
    rest = outward - basis @ target.T
    # f + floor is a sum of squares of the rows themselves, whose errors are not magnified.
    outgoing = np.linalg.norm(left, axis=0)
    root = float(np.linalg.norm(rest)) + float(np.linalg.norm(target - left @ inner.T))
    root += math.sqrt(judged.strength) * float(outgoing @ np.linalg.norm(inner, axis=0))
    off = math.sqrt(energy) / unit + (1 + math.sqrt(judged.strength)) * float(outgoing @ lengths)
    return White(
        target,
        left,
        inner,
        float((rest**2).sum()),
        energy / unit / unit,
        unit,
        math.sqrt(energy) / unit * (turned + error) + math.sqrt(lost),
        turned * np.linalg.norm(inner, axis=0) + error * lengths,
        doubt=_square(root**2, error * off),
        lost=lost,
        condition=float(sizes[0] / sizes[-1]) ** 2,
        dropped=m - rank - int((~varies[:m]).sum()),
        outside=_outside(
            judged.right,
            upper * (scales[:m] * loads * varies[:m]),
            turned * float(d.max(initial=0.0) / d.min(initial=math.inf)),
        ),
        n_rows=moment.weight - moment.centered,
        residual=None if n_features is None else rest.T @ rest,
        moment=moment,
    )


def _pivoted(rows: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """Return Q and T of a pivoted QR factorisation A = QT, T in the order of A, and its pivots.

    If A has fewer rows than columns, Aᵀ is first factorised without pivoting, which is faster.
    """
    if rows.shape[0] >= rows.shape[1]:
        basis, upper, order = scipy.linalg.qr(rows, mode="economic", pivoting=True)
        placed = np.zeros_like(upper)
        placed[:, order] = upper
        return basis, placed, np.abs(np.diag(upper))
    span, square = scipy.linalg.qr(rows.T, mode="economic")
    basis, factor, pivots = _pivoted(square.T)
    return basis, factor @ span.T, pivots


class Operator(NamedTuple):
    """A matrix A by its products: S itself, or (I − ssᵀ)S with a unit vector s."""

    stored: Any  # (n, m): S, dense or sparse
    shares: Matrix | None  # (n,): s; None if A is S

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers n of rows and m of columns."""
        return int(self.stored.shape[0]), int(self.stored.shape[1])

    @property
    def total(self) -> float:
        """Sum of the squares of the entries."""
        if scipy.sparse.issparse(self.stored):
            found = float((self.stored.data**2).sum())
        else:
            found = float(np.vdot(self.stored, self.stored))
        return found - (0.0 if self.shares is None else self.cancelled)

    @property
    def cancelled(self) -> float:
        """Squared norm of the mean of the rows, which centring subtracts; 0 if S is centred."""
        return 0.0 if self.shares is None else float(((self.shares @ self.stored) ** 2).sum())

    def _centred(self, codes: Matrix) -> Matrix:
        if self.shares is None:
            return codes
        return np.asarray(codes - np.multiply.outer(self.shares, self.shares @ codes))

    def times(self, right: Matrix) -> Matrix:
        """Return AV."""
        return self._centred(np.asarray(self.stored @ right))

    def back(self, codes: Matrix) -> Matrix:
        """Return AᵀZ."""
        return np.asarray(self.stored.T @ self._centred(codes))

    def gram(self) -> Matrix:
        """Return the smaller one of AAᵀ and AᵀA."""
        (n, m), S = self.shape, self.stored
        if scipy.sparse.issparse(S):
            first, second = (S, S.T.tocsc()) if n <= m else (S.T.tocsr(), S.tocsc())
            parts = [first[i : i + 256] @ second for i in range(0, first.shape[0], 256)]
            found = np.concatenate([part.toarray() for part in parts])
        else:
            found = S @ S.T if n <= m else S.T @ S
        if self.shares is not None and n <= m:
            found = self._centred(self._centred(found).T)
        elif self.shares is not None:
            mean = self.shares @ S
            found = found - np.outer(mean, mean)
        return np.asarray((found + found.T) / 2)


def _centred_rows(data: JudgedRows) -> tuple[Operator, Matrix | None, KnownMoment]:
    """Return the centred and weighted rows, their outputs, and mean and deviations of [x | y]."""
    X, Y, n = data.X, data.Y, data.X.shape[0]
    weights = np.ones(n) if data.weights is None else np.asarray(data.weights, dtype=float)
    numbers = np.flatnonzero(weights > 0)
    if len(numbers) < n:
        X, Y, weights = X[numbers], None if Y is None else Y[numbers], weights[numbers]
    total = float(weights.sum())
    share = weights / total
    roots = np.sqrt(share)
    sparse = scipy.sparse.issparse(X)
    with np.errstate(over="ignore", invalid="ignore"):
        if sparse:
            S = scipy.sparse.csr_array(X, dtype=np.float64)
            S = scipy.sparse.csr_array(S.multiply(roots[:, None]))
            mean = S.T @ roots * data.centered
            squares = np.asarray(S.multiply(S).sum(axis=0)).ravel()
            variances = np.clip(squares - mean**2, 0.0, None)
            far = float(mean @ mean) > LARGE_MEAN * float(variances.sum())
            sparse = not (far and X.shape[0] * X.shape[1] <= LARGEST_COPY)
        if not sparse:
            S, mean, offset = _dense_centred(_dense(X), share, data.centered)
            variances = (S**2 * share[:, None]).sum(axis=0)
        else:
            offset = np.zeros_like(mean)
    if not math.isfinite(float(variances.sum())):
        raise ValueError(
            "the squares of X overflow double precision: divide X by a constant, and give the "
            "result to both fit and certify."
        )
    deviations = np.sqrt(variances)
    varies = deviations > gamma(0) * np.abs(mean + offset) * data.centered
    deviations = deviations * varies
    if not sparse:
        S *= roots[:, None] * varies
    elif not varies.all():
        S = scipy.sparse.csr_array(S.multiply(varies))
    outputs, lengths = None, np.zeros(len(numbers))
    if Y is not None:
        Y, y_mean, y_offset = _dense_centred(_dense(Y), share, data.centered)
        outputs = Y * roots[:, None]
        spread = np.sqrt((outputs**2).sum(axis=0))
        constant = spread <= gamma(0) * np.abs(y_mean + y_offset) * data.centered
        outputs, spread = outputs * ~constant, spread * ~constant
        mean, offset = np.append(mean, y_mean), np.append(offset, y_offset)
        deviations = np.append(deviations, spread)
        lengths = lengths + (outputs**2).sum(axis=1) / max(float((spread**2).sum()), 1e-300)
    squared = S.multiply(S) if sparse else S * S
    rows = np.asarray(squared.sum(axis=1)).ravel()
    lengths = lengths + rows / max(float(rows.sum()), 1e-300)
    top = np.argsort(-lengths, kind="stable")[:PEAKS]
    moment = KnownMoment(
        mean,
        offset,
        gamma(n) * (deviations + np.abs(mean) * sparse),
        deviations,
        total,
        data.centered,
        np.stack([numbers[top], lengths[top] / max(float(lengths.sum()), 1e-300)]),
    )
    return Operator(S, roots if sparse and data.centered else None), outputs, moment


def _dense_centred(rows: Matrix, share: Matrix, centered: bool) -> tuple[Matrix, Matrix, Matrix]:
    """Return rows minus their mean, and the mean as the sum of two vectors."""
    zeros = np.zeros(rows.shape[1])
    if not centered:
        return 1.0 * rows, zeros, zeros
    mean = share @ rows
    away = rows - mean
    offset = share @ away
    away -= offset
    return away, mean, offset


def _of_few_rows(data: JudgedRows, judged: Judged) -> Iterator[White]:
    """Yield the problem of fewer rows A than features, from their Gram matrix AAᵀ = unit²·TTᵀ.

    f depends on V through AV, and M on the range of A. If the rows are linearly independent, the
    range is everything (less the direction that centring removes), whatever their condition.
    """
    n, m = data.X.shape
    if n > LARGEST_ROWS:
        raise UnprojectedError(
            f"with {n} rows the Gram matrix that the comparison with the optimum needs takes too "
            f"much memory (more than {LARGEST_ROWS} rows of more than {n} features)."
        )
    A, outputs, moment = _centred_rows(data)
    assert outputs is not None
    n, m = A.shape
    gram = A.gram()
    top = float(np.diag(gram).max(initial=0.0))
    size = math.sqrt(top) if top > 0 else 1.0
    shares = 0.0 if A.shares is None else float((A.shares**2).max())
    doubt = gamma(m) * (1.0 + shares * A.cancelled / size / size)
    factor, order, rank, _ = scipy.linalg.lapack.dpstrf(gram / size / size, tol=n * doubt, lower=1)
    rank = int(rank) if top > 0 else 0
    order = np.arange(n) if rank == 0 else order - 1
    lower = np.tril(factor[:, :rank])
    pivots = np.diag(lower[:rank]) ** 2
    placed = np.empty_like(lower)
    placed[order] = lower
    least = float(scipy.linalg.svdvals(lower[:rank])[-1]) ** 2 if rank else 1.0
    turned = n * doubt / least
    basis = scipy.linalg.qr(placed, mode="economic")[0] if rank else np.zeros((n, 1))
    unclear = rank < n - data.centered or float(pivots.min(initial=1.0)) < CLEAR
    unclear = unclear and rank > 0 and n * m <= LARGEST_COPY
    if unclear:  # the digits of the Gram matrix do not suffice
        d = np.where(moment.deviations[:m] > 0, moment.deviations[:m], 1.0)
        dense = A.stored.toarray() if scipy.sparse.issparse(A.stored) else A.stored
        dense = dense if A.shares is None else A._centred(dense)
        basis, _, pivots = _pivoted(dense / d)
        basis = basis[:, pivots > 4 * gamma(m) * float(pivots.max())]
        rank = basis.shape[1]
        turned = gamma(m + n) * float(pivots[0] / pivots[rank - 1])
    spanned = turned
    turned = 0.0 if rank == n - data.centered else turned
    hidden = A.times(judged.right)
    lengths = moment.deviations[:m] + np.abs(moment.shift[:m]) * (A.shares is not None)
    rounding = gamma(m) * (lengths @ np.abs(judged.right))
    rounding += np.linalg.norm(hidden - basis @ (basis.T @ hidden), axis=0)
    # Of rows that are not made dense, small pivots of the Gram matrix may be more than rounding.
    vague = not unclear and 0 < rank < n - data.centered
    energy = float((outputs**2).sum())
    unit = _unit(math.sqrt(energy))
    outputs = outputs / unit
    span = _span(A, lower, order, size, hidden, judged.right)
    outside = Ball(float(np.linalg.norm(span[1])) / (float(np.linalg.norm(judged.right)) or 1.0))
    outside = _outside(judged.right, basis.T @ dense, 0.0) if unclear else outside
    outside = replace(outside, error=spanned)
    if judged.alpha > 0.0:
        target, inner, turned = _with_ridge(judged, moment, placed, size, outputs, span, doubt)
    else:
        target, inner = outputs.T @ basis, basis.T @ hidden
    left, inner = _scaled(judged, inner, unit)
    rest = float((outputs**2).sum() - (target**2).sum())
    residual = outputs.T @ outputs - target @ target.T
    yield White(
        target,
        left,
        inner,
        max(rest, 0.0),
        energy / unit / unit,
        unit,
        (turned + gamma(n)) * math.sqrt(energy) / unit,
        rounding / math.sqrt(unit) + (turned + gamma(n)) * np.linalg.norm(inner, axis=0),
        lost=max(rest, 0.0) if vague else 0.0,
        condition=1.0 / least,
        dropped=m - rank - int((moment.deviations[:m] == 0).sum()),
        outside=outside,
        n_rows=moment.weight - moment.centered,
        residual=residual,
        moment=moment,
    )


def _span(
    A: Operator, lower: Matrix, order: Matrix, size: float, hidden: Matrix, right: Matrix
) -> tuple[Matrix, Matrix]:
    """Return QᵀV for A = size·TQᵀ, and the part of V outside of the span of the rows."""
    rank, codes = lower.shape[1], np.zeros_like(hidden)
    inside = np.zeros((rank, hidden.shape[1]))
    if rank:
        pivots, square = order[:rank], lower[:rank]
        inside = scipy.linalg.solve_triangular(square, hidden[pivots] / size, lower=True)
        codes[pivots] = scipy.linalg.solve_triangular(square, inside, lower=True, trans=1) / size
    return inside, right - A.back(codes)


def _with_ridge(
    judged: Judged,
    moment: KnownMoment,
    placed: Matrix,
    size: float,
    outputs: Matrix,
    span: tuple[Matrix, Matrix],
    doubt: float,
) -> tuple[Matrix, Matrix, float]:
    """Return M and V' of few rows with a ridge penalty ρ, and their relative error.

    A = size·TQᵀ with orthonormal columns Q, so that C + ρI is size²TᵀT + ρI in the coordinates Q
    and ρ outside of their span.
    """
    ridge = judged.alpha / moment.weight
    inside, rest = span
    loaded = placed.T @ placed + np.eye(placed.shape[1]) * (ridge / size / size)
    upper = scipy.linalg.cholesky(loaded)
    target = scipy.linalg.solve_triangular(upper, placed.T @ outputs, trans="T").T
    beyond = math.sqrt(ridge) * scipy.linalg.qr(rest, mode="r")[0][: rest.shape[1]]
    inner = np.vstack([size * (upper @ inside), beyond])
    target = np.hstack([target, np.zeros((len(target), len(beyond)))])
    least = float(scipy.linalg.svdvals(upper)[-1]) ** 2 if len(upper) else 1.0
    return target, inner, len(placed) * doubt / least


def has_many_features(shape: tuple[int, ...], width: int) -> bool:
    """Tell whether rows of this shape are projected to judge an autoencoder."""
    n, m = shape
    return m > SMALL and (n < m or FEW * (width + 1) <= m)


def _projected_rows(data: JudgedRows, judged: Judged) -> White:
    """Return the problem of an autoencoder, projected on a few directions.

    f depends on UᵀCV, VᵀCV and tr C, and its gradient lies in the span of U, V, CU and CV. The
    minimum depends on tr C and the r leading singular values of the rows A, C = AᵀA. So nothing
    changes on a basis of these vectors and the leading singular vectors, except that the variance
    outside is a constant (`White.rest`).
    """
    A, _, moment = _centred_rows(data)
    energy = float((moment.deviations**2).sum())
    unit = _unit(math.sqrt(energy))
    A = A._replace(stored=A.stored / unit)
    _, leading, upper = _leading(A, judged.strength, judged.width)
    U, V = judged.left, judged.right
    sides = _unit_columns(np.concatenate([U, V], axis=1))
    basis = _basis(leading, [U, V, A.back(A.times(sides))])
    factor = scipy.linalg.qr(A.times(basis), mode="r")[0][: basis.shape[1]]
    left, inner = _scaled(judged, unit * (factor @ (basis.T @ V)), unit)
    total = energy / unit / unit
    rounding = gamma(sum(A.shape)) * math.sqrt(total + A.cancelled)
    return White(
        factor.T,
        basis.T @ left,
        inner,
        0.0,
        total,
        unit,
        rounding,
        rounding * math.sqrt(unit) * np.linalg.norm(V, axis=0),
        rest=_remainder(total, float((factor**2).sum())),
        upper=upper,
        n_rows=moment.weight - moment.centered,
        moment=moment,
    )


def _leading(A: Operator, strength: float, width: int) -> tuple[Matrix, Matrix, Matrix | None]:
    """Return leading left and right singular vectors of A, and bounds on its singular values.

    They are eigenvectors of the smaller Gram matrix G and the normalised products of A or Aᵀ with
    them, one more than hidden units. Lanczos iteration may miss some, so that the singular values
    are bounded; the bounds are None if all of G was decomposed.
    """
    (n, m), count = A.shape, min(width + 1, *A.shape)
    size, upper = min(n, m), None
    first, second = (A.times, A.back) if n > m else (A.back, A.times)
    if not A.total > 0:
        vectors = np.zeros((size, 0))
    elif size > SMALL and FEW * count <= size:
        gram = Gram(size, lambda v: second(first(v)), A)
        try:
            vectors, upper = _by_lanczos(gram, count, strength, width)
        except ArpackError as error:  # no convergence, or a start that the matrix maps to zero
            if size > LARGEST_GRAM:
                raise UnprojectedError(
                    f"the {count} leading singular values of the data were not found by "
                    f"{RESTARTS} restarts of the Lanczos iteration, because they are too close to "
                    "each other: the weights cannot be judged. With another number of hidden "
                    "units the values may be found."
                ) from error
            vectors = _eigenvectors(A, count)
    else:
        vectors = _eigenvectors(A, count)
    images = scipy.linalg.qr(first(vectors), mode="economic")[0] if vectors.size else first(vectors)
    return (images, vectors, upper) if n > m else (vectors, images, upper)


def _eigenvectors(A: Operator, count: int) -> Matrix:
    """Return the leading eigenvectors of the smaller Gram matrix of A, less those of value zero."""
    values, vectors = scipy.linalg.eigh(A.gram(), driver="evd")
    return _nonzero(A, values[-count:], vectors[:, -count:])[1]


def _nonzero(A: Operator, values: Matrix, vectors: Matrix) -> tuple[Matrix, Matrix]:
    """Return eigenvalues, descending, and their eigenvectors, without those that are zero."""
    values, vectors = values[::-1], vectors[:, ::-1]
    present = values > gamma(sum(A.shape)) * max(float(values.max(initial=0.0)), 1e-300)
    return values[present], vectors[:, present]


class Gram(NamedTuple):
    """The smaller Gram matrix G of a matrix A, by its products."""

    size: int
    apply: Callable[[Matrix], Matrix]
    of: Operator

    @property
    def rounding(self) -> float:
        """Bound on the rounding error of a product of G with a unit vector."""
        return gamma(sum(self.of.shape)) * (self.of.total + self.of.cancelled)


def _by_lanczos(gram: Gram, count: int, strength: float, width: int) -> tuple[Matrix, Matrix]:
    """Return leading eigenvectors of G by Lanczos iteration, and bounds on the singular values.

    If no eigenvalue of G outside of the span of the vectors S with R = GS − SΘ exceeds β, the i-th
    largest eigenvalue of G exceeds the i-th largest of Θ and β, β, … by at most ‖R‖ (Weyl). β does
    not rely on S being complete. If it shows that vectors were missed, such as those of equal
    eigenvalues, the iteration starts again from a vector that contains them.
    """
    size, digest = gram.size, digest_of(gram.of.stored)
    operator = LinearOperator(
        (size, size), matvec=lambda v: gram.apply(np.asarray(v).reshape(-1)), dtype=np.float64
    )
    start = drawn_after((1, size), digest)[0]
    for _ in range(ATTEMPTS):
        found = eigsh(
            operator,
            k=count,
            which="LA",
            v0=start,
            ncv=min(size, max(2 * count + 1, count + 20)),
            tol=1e-10,
            maxiter=RESTARTS,
        )
        values, vectors = _nonzero(gram.of, *found)
        residual = float(np.linalg.norm(gram.apply(vectors) - vectors * values)) + gram.rounding
        last = float(values[width - 1]) if len(values) >= width else 0.0
        # An eigenvalue up to this level is not among the r largest, or dropout removes it.
        level = threshold(np.sqrt(np.clip(values[:width], 0.0, None)), strength, width) ** 2
        level = max(last, level) + NEGLIGIBLE * gram.of.total / width
        bound, space = complement_bound(gram, vectors, level, digest)
        others = np.full(width, max(bound, 0.0))
        upper = np.sort(np.concatenate([np.clip(values, 0.0, None), others]) + residual)[::-1]
        if space.found <= level:
            break
        missed = space.above(level).T
        vectors = np.concatenate([vectors, missed], axis=1)
        start = missed.sum(axis=1) + start / np.linalg.norm(start)
    return vectors, np.sqrt(upper[:width])


def complement_bound(
    gram: Gram, vectors: Matrix, level: float, digest: bytes
) -> tuple[float, Complement]:
    """Return a bound on the eigenvalues of G outside of the span of `vectors`.

    It comes from a block Krylov space with random starts (`lucidae.certificates.complement`), which
    is extended until the bound is at most `level`, or until further steps cannot decide; or from a
    Cholesky factorisation of level · I − PGP with the projection P onto the complement, which
    exists only if all eigenvalues of PGP are below `level` (Rump 2006).
    """
    size = gram.size
    starts = drawn_after((min(STARTS, size - vectors.shape[1]), size), digest, vectors)
    space = Complement(lambda rows: gram.apply(rows.T).T, vectors, gram.rounding, starts)
    space.bound = max(gram.of.total, 0.0)
    for steps in STEPS:
        hopeless = space.found + space.final_slack() > level
        if space.bound <= level or hopeless or not space.extend(steps):
            break
    bound = space.bound
    if bound > level >= space.found and size**2 * max(gram.of.shape) <= LARGEST_CHOLESKY:
        matrix = gram.of.gram()
        images = matrix @ vectors
        inside = vectors.T @ images
        matrix = images @ vectors.T + vectors @ images.T - vectors @ inside @ vectors.T - matrix
        matrix.flat[:: size + 1] += level
        _, failed = scipy.linalg.lapack.dpotrf(matrix, lower=1, clean=0, overwrite_a=1)
        if not failed:
            bound = min(bound, level + gamma(size) * size * level + 4 * gram.rounding)
    return bound, space


def _basis(first: Matrix, others: list[Matrix]) -> Matrix:
    """Return an orthonormal basis of all columns, which begins with those of `first`."""
    columns = np.concatenate([_unit_columns(other) for other in others], axis=1)
    if not first.size and not columns.size:
        return np.eye(len(first), 1)  # zero data, where every direction is as good
    for _ in range(2):  # twice is enough (Kahan, Parlett)
        columns = columns - first @ (first.T @ columns)
    if not columns.size:
        return first
    span, upper, _ = scipy.linalg.qr(columns, mode="economic", pivoting=True)
    span = span[:, np.abs(np.diag(upper)) > gamma(len(first))]
    span, _ = scipy.linalg.qr(span - first @ (first.T @ span), mode="economic")
    return np.concatenate([first, span], axis=1)


def _unit_columns(columns: Matrix) -> Matrix:
    """Return the nonzero columns, scaled to unit length without squaring large entries."""
    peaks = np.abs(columns).max(axis=0, initial=0.0)
    columns = columns[:, peaks > 0] / peaks[peaks > 0]
    return np.asarray(columns / np.sqrt((columns**2).sum(axis=0)))


def _remainder(energy: float, inside: float) -> float:
    """Return the sum of squares outside of a basis; 0 if it is as small as rounding errors."""
    rest = energy - inside
    return rest if math.isfinite(rest) and rest > gamma(1000) * energy else 0.0


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
    """Return the minimum Σ min(sᵢ, α)² + rα²/λ + Σ_{i>r} sᵢ² of f − floor."""
    level = threshold(leading, strength, width)
    penalty = width * level**2 / strength if strength > 0 else 0.0
    return float((np.minimum(leading, level) ** 2).sum()) + tail + penalty


def possible_saving(
    leading: Matrix, tail: float, upper: Matrix, strength: float, width: int
) -> float:
    """Return how much smaller the minimum can be if singular values are up to `upper`.

    The sum of squares of all is known. The minimum decreases in sᵢ: its derivative is −2(sᵢ − α)₊.
    """
    computed = np.zeros(len(upper))
    computed[: len(leading)] = leading[: len(upper)]
    largest = np.maximum(computed, upper)
    left = tail + float((computed**2).sum() - (largest**2).sum())
    before = smallest_loss(computed, tail, strength, width)
    return max(before - smallest_loss(largest, left, strength, width), 0.0)


class Slope(NamedTuple):
    """The expected dropout loss and its gradient as functions of one vector of all weights."""

    cross: Matrix  # (d, m): E[yxᵀ]
    inputs: Matrix | None  # (m, m): C; None for the identity
    strength: float
    tied: bool
    point: Matrix  # the weights that are examined: U and V (tied: U alone), flattened and joined
    width: int

    @property
    def size(self) -> float:
        """Typical size of the Hessian of the loss: ‖E[yxᵀ]‖, or 1 if it is zero."""
        return float(np.linalg.norm(self.cross)) or 1.0

    def _layers(self, flat: Matrix) -> tuple[Matrix, Matrix]:
        """Return U and V from one vector that joins them; leading batch axes are allowed."""
        cut = self.cross.shape[0] * self.width
        U = flat[..., :cut].reshape(*flat.shape[:-1], -1, self.width)
        return U, U if self.tied else flat[..., cut:].reshape(*flat.shape[:-1], -1, self.width)

    def value(self, flat: Matrix) -> float:
        """Return the expected dropout loss minus E‖y‖²."""
        U, V = self._layers(flat)
        seen = V if self.inputs is None else self.inputs @ V
        fitted = ((U.T @ U) * (V.T @ seen)).sum() - 2 * (U * (self.cross @ V)).sum()
        return float(fitted + self.strength * (U**2).sum(axis=0) @ (V * seen).sum(axis=0))

    def __call__(self, flat: Matrix) -> Matrix:
        """Return the gradient of the expected dropout loss; leading batch axes are allowed."""
        U, V = self._layers(flat)
        seen = V if self.inputs is None else self.inputs @ V
        outgoing = (U**2).sum(axis=-2, keepdims=True)
        incoming = (V * seen).sum(axis=-2, keepdims=True)
        residual = U @ V.swapaxes(-1, -2)
        # With E = UVᵀC − E[yxᵀ] the gradients of the loss are 2EV and 2EᵀU.
        error = (residual if self.inputs is None else residual @ self.inputs) - self.cross
        on_left = 2 * (error @ V + self.strength * U * incoming)
        on_right = 2 * (error.swapaxes(-1, -2) @ U + self.strength * seen * outgoing)
        stack = flat.shape[:-1]
        if self.tied:
            return np.asarray((on_left + on_right).reshape(*stack, -1))
        return np.concatenate([p.reshape(*stack, -1) for p in (on_left, on_right)], axis=-1)

    def curvature_along(self, directions: Matrix) -> Matrix:
        """Return the products of the Hessian at `point` with directions (last axis).

        The gradient g is a polynomial of degree three. Its difference quotient of fourth order,
        (8(g(h) − g(−h)) − (g(2h) − g(−2h)))/12h, is therefore exact for every step h. A step of the
        size of the optimal weights has the smallest rounding errors.
        """
        lengths = np.linalg.norm(directions, axis=-1, keepdims=True)
        step = math.sqrt(self.size) / np.where(lengths > 0, lengths, 1.0)
        near, at = step * directions, self.point
        first, second = self(at + near) - self(at - near), self(at + 2 * near) - self(at - 2 * near)
        return np.asarray((8 * first - second) / (12 * step))

    def smallest_curvature(self) -> float:
        """Return the smallest eigenvalue of the Hessian over its size; NaN if it is not found.

        Of many weights it is computed by Lanczos iteration. The Hessian is shifted by twice its
        size, so that the relative tolerance refers to it: the eigenvalues zero, which belong to
        rotations of the hidden layer, would not converge.
        """
        size, shift = len(self.point), 2 * self.size
        if size <= DENSE:
            hessian = self.curvature_along(np.eye(size))
            return float(scipy.linalg.eigvalsh((hessian + hessian.T) / 2)[0]) / self.size

        def shifted(vector: Matrix) -> Matrix:
            flat = np.asarray(vector).reshape(-1)
            return self.curvature_along(flat) + shift * flat

        operator = LinearOperator((size, size), matvec=shifted, dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(size)
        options = {"v0": start, "tol": 1e-4, "maxiter": 20 * size}
        try:
            found = eigsh(operator, k=1, which="SA", return_eigenvectors=False, **options)
        except ArpackError:
            return math.nan
        return (float(found[0]) - shift) / self.size

    def decrease(self) -> float:
        """Return the loss at `point` minus the smallest loss that L-BFGS finds: zero or more.

        It starts near the point, moved by a small random step that leaves a saddle; for small
        networks also at random weights. A positive result proves that the point is not a global
        minimum; zero proves nothing.
        """
        (outputs, features), size = self.cross.shape, len(self.point)
        typical = math.sqrt(self.size / max(outputs, features))
        noise = np.random.default_rng(0).standard_normal((4, size))
        starts = [self.point + 1e-2 * typical * noise[0]]
        if size <= 5 * DENSE:
            starts += list(0.5 * typical * noise[1:])
        work = 4.0 * max(outputs, features) ** 2 * (self.width + features)
        steps = int(np.clip(DESCENT_WORK / work / len(starts), 5, 500))
        options = {"maxiter": steps, "maxfun": 2 * steps, "ftol": 0.0, "gtol": 1e-9}
        here = self.value(self.point)
        with np.errstate(over="ignore", invalid="ignore"):
            found = [
                minimize(self.value, start, jac=self, method="L-BFGS-B", options=options).fun
                for start in starts
            ]
        return max(here - float(np.nanmin([*found, here])), 0.0)


ATTRIBUTES = 1e-6
"""Largest relative difference between a fitted attribute and its value computed from the data,
beyond the rounding of its dtype. On well-conditioned data the exact solver and the verifier agree
to about 1e-12."""


@dataclass(frozen=True)
class DropoutFigures:
    """Values measured for given weights U and V; balls are values with bounds on their errors."""

    strength: float
    width: int
    tied: bool
    known: bool  # whether the global minimum is known: not for tied layers and correlated inputs
    white: bool  # whether the inputs are white
    # (f − min f)/‖M‖², and how much of its error can only make the minimum smaller; if the minimum
    # is not known, that of separate layers, a lower bound, takes its place
    gap: Ball
    missed: float  # part of that error caused by singular values that were not computed
    lost: float  # part of that error caused by inputs that count as constant
    decrease: float  # what a descent gains over ‖M‖², if the minimum is not known
    stationarity: Ball  # norm of the gradient in white coordinates, relative to 2‖M‖‖(U, V')‖
    # variance of the scores ‖uᵢ‖‖v'ᵢ‖ over their squared mean, and Σ scoresᵢ² over its minimum for
    # the same product minus 1; a gap of ε implies at most `unequal` · ε for both
    equalized: Ball
    path: Ball
    unequal: float
    # ‖UV'ᵀ − X*‖/‖X*‖; a gap of ε implies at most `far` · √ε; None if the minimum is not known
    product: Ball | None
    far: float
    subgradient: Ball | None  # violation of the optimality conditions of X over ‖M‖
    rank: int
    optimal_rank: int | None
    rank_band: tuple[int, int]  # ranks that a product with an allowed gap may have
    curvature: float | None  # smallest eigenvalue of the Hessian over ‖M‖
    reason: str  # why the curvature was not measured
    attributes: Ball | None  # largest relative difference of a fitted attribute, and which one
    attribute: str
    paper_bound: float | None
    condition: float
    dropped: int
    from_rows: bool
    unexplained: float  # E‖y‖² over ‖M‖²
    precision: float
    spectrum: Matrix | None  # singular values of M; None if only the leading ones were computed
    residual: Matrix | None
    n_inputs: int
    n_rows: float | None
    peaks: Matrix | None  # (2, ≤ PEAKS): numbers of rows and their shares of the energy
    evidence: dict[str, Any]

    def vague(self, tolerance: float) -> bool:
        """Tell whether rounding errors leave open what the claims say."""
        undecided = self.attributes is not None and self.attributes.verdict(ATTRIBUTES) is None
        unclear = self.stationarity.error > math.sqrt(tolerance) / 2
        return self.gap.error > tolerance or undecided or unclear


class Optimum(NamedTuple):
    """The minimum of f − floor over all products of rank at most r, and its product X*."""

    values: Matrix  # all singular values of M
    left: Matrix  # P of X*
    shrunk: Matrix  # the singular values of X*, positive
    right: Matrix  # Q of X*
    threshold: float
    tail: float  # sum of the squares of all singular values after the first r
    value: float


def _optimum(white: White, strength: float, width: int, tied: bool) -> Optimum:
    """Return the optimum; for tied weights M is symmetric and s are its positive eigenvalues."""
    target, missing = white.target, 0.0
    if white.diagonal:
        values = np.diag(target)
        left = right = np.eye(len(values))
    elif tied:
        values, left = scipy.linalg.eigh(target)
        values, left = np.clip(values[::-1], 0.0, None), left[:, ::-1]
        right, missing = left, float((target**2).sum() - (values**2).sum())
    else:
        # ‖Mw‖ is accurate where the eigenvalue of the Gram matrix, its square, is not.
        wide = target.shape[0] < target.shape[1]
        _, first = scipy.linalg.eigh(target @ target.T if wide else target.T @ target)
        second = target.T @ first if wide else target @ first
        values = np.linalg.norm(second, axis=0)
        order = np.argsort(-values, kind="stable")
        values, first, second = values[order], first[:, order], second[:, order]
        second = np.divide(second, values, out=np.zeros_like(second), where=values > 0)
        left, right = (first, second) if wide else (second, first)
    level = threshold(values[:width], strength, width)
    rank = int((values[:width] > level).sum())
    tail = float((values[width:] ** 2).sum()) + white.rest
    value = smallest_loss(values[:width], tail + missing, strength, width)
    shrunk = values[:rank] - level
    return Optimum(values, left[:, :rank], shrunk, right[:, :rank], level, tail, value)


def measure(
    data: Data, judged: Judged, tolerance: float, fitted: FittedArrays | None = None
) -> DropoutFigures:
    """Return the measured values from which the certificate of dropout weights is made."""
    found = None
    for white in problems(data, judged):
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            found = _measured(white, judged, tolerance, fitted)
        if not found.vague(tolerance):
            break
    assert found is not None
    return found


def _measured(
    white: White, judged: Judged, tolerance: float, fitted: FittedArrays | None
) -> DropoutFigures:
    """Return the measured values of weights for white inputs."""
    left, inner, target, width = white.left, white.inner, white.target, judged.width
    strength, explained, level = judged.strength, white.explained, math.sqrt(tolerance)
    tied = white.tied_problem is not None
    known = not tied or white.tied_problem[1] is None  # type: ignore[index]
    best = _optimum(white, strength, width, tied and known)
    size, outgoing = math.sqrt(explained), np.linalg.norm(left, axis=0)
    rest, away, length = np.zeros((0, 0)), math.inf, 1.0
    # 1) the loss and its minimum, without the loss of least squares, which may be much larger
    lengths = np.linalg.norm(inner, axis=0)
    wrong = white.wrong + np.zeros(width)
    if not known:  # the minimum of separate layers is a lower bound
        value, scores = _tied_loss(white, strength)
    else:
        rest, scores = target - left @ inner.T, outgoing * lengths
        value = float((rest**2).sum() + strength * (scores**2).sum()) + white.rest
        value = value if white.value is None else white.value
    rounding = gamma(sum(target.shape) + width) * (size + float(scores.sum()))
    off = float(outgoing @ wrong) + math.sqrt(strength) * float(np.linalg.norm(outgoing * wrong))
    loss = _square(value, white.blur + off + rounding)
    gap = value - best.value
    # 2) the product of the weights, and the error of the gap
    doubt = white.blur + gamma(sum(target.shape)) * float(best.values.max(initial=0.0))
    noise = white.blur + gamma(sum(target.shape)) * float(np.linalg.norm(target))
    learned = float(best.shrunk.max(initial=0.0)) > noise or noise == 0.0
    negligible = 0.0 if learned else level * size
    first, upper = scipy.linalg.qr(left, mode="economic")
    second, lower = scipy.linalg.qr(inner, mode="economic")
    P, sizes, Qt = scipy.linalg.svd(upper @ lower.T, full_matrices=False)
    P, Q = first @ P, second @ Qt.T
    rank = _count(sizes, level, negligible)
    error = loss + _square(best.value, white.blur + rounding)
    product, near = None, math.inf
    if known:
        near, away, length = _distance(white, best, doubt, learned)
        # Errors of first order cancel near the optimum: see the docstring of the module.
        steep = 2.0 * (strength * inner * outgoing**2 - rest.T @ left)
        second_order = 2.0 * white.blur * away + float(np.linalg.norm(steep)) * float(
            np.linalg.norm(wrong)
        )
        second_order += (white.blur + off) ** 2 + off**2 + (white.blur * near) ** 2
        second_order += 4.0 * rounding * size + rounding**2
        error = min(error, second_order)
        if white.losses is not None:
            error = min(error, sum(white.losses) + 4.0 * rounding * size)
    missed = 0.0
    if white.upper is not None:
        saved = possible_saving(best.values[:width], best.tail, white.upper, strength, width)
        missed = saved / explained
    lost = white.lost / explained
    distance = Ball(gap / explained, error / explained + missed + lost)
    far = 1.0
    if known:
        far, bound = near * size / length, near * math.sqrt(max(gap + error, 0.0)) / length
        wrong_by = (doubt * near**2 + off + gamma(width) * size) / length
        product = Ball(away / length, min(wrong_by, max(bound, away / length)))
    # 3) relative errors of the scores, and of what follows from UV'ᵀ and M
    ratios = np.divide(wrong, lengths, out=0.0 * lengths, where=lengths > 0)
    uneven = 4.0 * (gamma(sum(target.shape) + width) + float(ratios.max()))
    balanced = float(
        np.linalg.norm(ratios * np.sqrt(scores)) / (np.linalg.norm(np.sqrt(scores)) or 1.0)
    )
    relative = 4.0 * rounding / size
    steep_error = relative + (4.0 * balanced if white.slope is None else white.slope)
    relative += 4.0 * (off + white.blur) / size if white.relative is None else white.relative
    if white.slope is None:
        steep_error += relative
    # 4) derivatives
    slope, scale = _slope(white, judged, learned)
    inside = math.sqrt(max(1.0 - white.rest / explained, 0.0))
    steepness = inside * float(np.linalg.norm(slope(slope.point))) / scale
    optimal = abs(distance.value) + distance.error <= tolerance
    curvature, reason = _curvature(slope, steepness, level, optimal)
    unit = white.unit
    loss = loss if white.doubt is None else min(loss, white.doubt)
    total = Ball(value + white.floor, loss + gamma(sum(target.shape)) * white.energy)
    attribute, worst = "", None
    if fitted is not None:
        differences = compared(fitted, judged, white, best, total, doubt)
        attribute, worst = max(differences, key=lambda pair: pair[1].low)
        if worst.low <= ATTRIBUTES:
            attribute, worst = max(differences, key=lambda pair: pair[1].high)
    nuclear = float(sizes.sum())
    positive = float(best.values.max(initial=0.0)) if tied and known else 0.0
    return DropoutFigures(
        strength=strength,
        width=width,
        tied=tied,
        known=known,
        white=known if tied else white.n_rows is None,
        gap=distance,
        missed=missed,
        lost=lost,
        decrease=0.0 if known or optimal else slope.decrease() * slope_size(slope, white),
        stationarity=Ball(steepness, steep_error),
        equalized=_quadratic(_relative_variance(scores, negligible), uneven),
        path=_quadratic(_path_excess(scores, nuclear, negligible), uneven),
        unequal=explained * width / (strength * nuclear**2) if strength * nuclear > 0 else 1.0,
        product=product,
        far=far,
        subgradient=Ball(_violation(white, P, sizes, Q, rank, judged, tied), relative)
        if known
        else None,
        rank=rank,
        optimal_rank=_count(best.shrunk, level, negligible) if known else None,
        rank_band=_band(best, width, level, doubt, near * level * size if known else 0.0),
        curvature=curvature,
        reason=reason,
        attributes=worst,
        attribute=attribute,
        paper_bound=_paper_bound(best.values, width, positive) if tied and known else None,
        condition=white.condition,
        dropped=white.dropped,
        from_rows=white.from_rows,
        unexplained=white.energy / explained,
        precision=0.0 if fitted is None else fitted.precision,
        spectrum=None if white.rest > 0 else best.values,
        residual=white.residual,
        n_inputs=len(inner),
        n_rows=white.n_rows,
        peaks=None if white.moment is None else white.moment.peaks,
        evidence=_evidence(white, best, judged, total.value, scores, sizes, known) | {"unit": unit},
    )


def _square(square: float, error: float) -> float:
    """Return a bound on the error of a number whose square root has the given error."""
    return 2.0 * math.sqrt(max(square, 0.0)) * error + error**2


def _quadratic(value: float, error: float) -> Ball:
    """Return a value that is zero at its minimum and quadratic in numbers with a given error."""
    return Ball(value, 2 * error * math.sqrt(max(value, 0.0)) + error**2)


def _count(values: Matrix, level: float, negligible: float) -> int:
    """Return how many singular values exceed `level` times the largest one, and `negligible`."""
    largest = float(values.max(initial=0.0))
    return int((values > max(level * largest, negligible)).sum()) if largest > 0 else 0


def _tied_loss(white: White, strength: float) -> tuple[float, Matrix]:
    """Return f − floor of tied weights for inputs that are not white, and the scores of units."""
    assert white.tied_problem is not None
    cross, inputs, own = white.tied_problem
    slope = Slope(cross, inputs, strength, True, own.ravel(), own.shape[1])
    hidden = np.sqrt(np.clip((own * (inputs @ own)).sum(axis=0), 0.0, None))
    scores = hidden * np.linalg.norm(own, axis=0)
    return slope.value(slope.point) + white.energy - white.floor, scores


def _distance(
    white: White, best: Optimum, doubt: float, learned: bool
) -> tuple[float, float, float]:
    """Return 1/√κ, ‖X − X*‖, and the norm to which this distance is relative.

    Errors of M move X* by at most their norm divided by κ.
    """
    width, size, convexity = white.left.shape[1], math.sqrt(white.explained), 1.0
    if len(best.shrunk) == width and len(best.values) > width:
        last, following = float(best.shrunk[-1]), float(best.values[width]) - best.threshold
        if last > doubt:
            convexity = 1.0 - max(following + doubt, 0.0) / (last - doubt)
    near = 1.0 / math.sqrt(convexity) if convexity > 0 else math.inf
    product = white.left @ white.inner.T
    away = float(np.linalg.norm(product - (best.left * best.shrunk) @ best.right.T))
    length = (float(np.linalg.norm(best.shrunk)) or size) if learned else size
    return near, away, length


def _band(best: Optimum, width: int, level: float, doubt: float, moved: float) -> tuple[int, int]:
    """Return the smallest and the largest rank of a product whose gap is at most the tolerance.

    Its singular values differ from the optimal ones by at most its distance `moved` (Weyl).
    """
    # Differences sᵢ − α of the removed singular values are negative, but perhaps by rounding only.
    shrunk = best.values[:width] - best.threshold
    top = max(float(shrunk.max(initial=0.0)), 0.0)
    off = doubt + moved
    if top == 0.0:
        return 0, 0
    return int((shrunk > level * top + off).sum()), int((shrunk > level * top - off).sum())


def _violation(
    white: White,
    P: Matrix,
    sizes: Matrix,
    Q: Matrix,
    rank: int,
    judged: Judged,
    tied: bool,
) -> float:
    """Return by how much the product X = PΣQᵀ of the weights violates its optimality conditions.

    With α = λ‖X‖_*/r and N = M − X − αPQᵀ, X is optimal if and only if PᵀN = 0, NQ = 0 and no
    singular value of N exceeds α or, if X has the full rank r, α + σᵣ. For tied weights only the
    largest eigenvalue of N counts. The violation is divided by ‖M‖.
    """
    level = judged.strength * float(sizes.sum()) / judged.width
    kept, across = P[:, :rank], Q[:, :rank]
    normal = white.target - (P * sizes) @ Q.T - level * kept @ across.T
    inside = max(float(np.linalg.norm(kept.T @ normal)), float(np.linalg.norm(normal @ across)))
    outside = normal - kept @ (kept.T @ normal)
    outside = outside - (outside @ across) @ across.T
    if tied:
        largest = _largest_eigenvalue((outside + outside.T) / 2)
    else:
        tall = outside.shape[0] >= outside.shape[1]
        gram = outside.T @ outside if tall else outside @ outside.T
        largest = math.sqrt(max(_largest_eigenvalue(gram), 0.0))
    allowed = level + (float(sizes[rank - 1]) if 0 < rank == judged.width else 0.0)
    return max(inside, largest - allowed, 0.0) / math.sqrt(white.explained)


def _largest_eigenvalue(symmetric: Matrix) -> float:
    """Return the largest eigenvalue of a symmetric matrix; 0 if it is empty."""
    last = len(symmetric) - 1
    if last < 0:
        return 0.0
    return float(scipy.linalg.eigh(symmetric, eigvals_only=True, subset_by_index=[last, last])[0])


def _slope(white: White, judged: Judged, learned: bool) -> tuple[Slope, float]:
    """Return the loss as a `Slope`, and the size of its gradient at weights far from optimal ones.

    For separate layers both weight vectors of a hidden unit get equal norms, which does not change
    the loss.
    """
    left, inner, tied = white.left, white.inner, white.tied_problem is not None
    if white.tied_problem is not None:
        cross, inputs, own = white.tied_problem
        point = own.ravel()
    else:
        norms = np.linalg.norm(inner, axis=0), np.linalg.norm(left, axis=0)
        usable = (norms[0] > 0) & (norms[1] > 0)
        turn = np.sqrt(np.divide(*norms, out=np.ones(judged.width), where=usable))
        point = np.concatenate([(left * turn).ravel(), (inner / turn).ravel()])
        cross, inputs = white.target, None
    unit = float(np.linalg.norm(cross)) or 1.0
    slope = Slope(
        cross / unit, inputs, judged.strength, tied, point / math.sqrt(unit), judged.width
    )
    # Where the optimal weights are zero, weights are small compared with √‖M‖, one in this scale.
    length = max(float(np.linalg.norm(slope.point)), 0.0 if learned else 1.0)
    return slope, ((4 if tied else 2) * slope.size * length) or 1.0


def slope_size(slope: Slope, white: White) -> float:
    """Return the factor that makes differences of the loss of a `Slope` relative to ‖M‖²."""
    assert white.tied_problem is not None
    return float((white.tied_problem[0] ** 2).sum()) / slope.size**2 / white.explained


def _curvature(
    slope: Slope, steepness: float, level: float, optimal: bool
) -> tuple[float | None, str]:
    """Return the smallest eigenvalue of the Hessian at a critical point, and a sentence on it."""
    size = len(slope.point)
    if steepness > level:
        return None, "Not measured: the gradient is not zero, so this is not a critical point."
    if size > MOST_WEIGHTS:
        return None, f"Not measured: the network has more than {MOST_WEIGHTS} weights."
    if size > DENSE and optimal:
        return None, f"Not measured: the loss is minimal and there are more than {DENSE} weights."
    smallest = slope.smallest_curvature()
    if math.isnan(smallest):
        return None, "Not measured: the Lanczos iteration did not converge."
    return (
        smallest,
        "lucidae.dropout.smallest_curvature returns the direction of smallest curvature.",
    )


def _relative_variance(scores: Matrix, negligible: float) -> float:
    """Return the variance of the scores divided by their squared mean; 0 if all are negligible."""
    mean = float(scores.mean())
    return float(((scores / mean - 1.0) ** 2).mean()) if (scores > negligible).any() else 0.0


def _path_excess(scores: Matrix, nuclear: float, negligible: float) -> float:
    """Return the squared path norm divided by its minimum for the same product, minus 1.

    ψ² = Σ scoresᵢ² ≥ (Σ scoresᵢ)²/r by Cauchy–Schwarz, and Σ ‖uᵢ‖‖v'ᵢ‖ is at least the nuclear norm
    of UV'ᵀ, whose square divided by r is therefore the minimum.
    """
    if not (scores > negligible).any():
        return 0.0
    return len(scores) * float(((scores / nuclear) ** 2).sum()) - 1.0 if nuclear else math.inf


def _paper_bound(values: Matrix, width: int, top: float) -> float:
    """Return r s_r / Σ_{i≤r} (sᵢ − s_r), where optimal tied weights lose full rank.

    s are the positive eigenvalues of the target (Mianjy et al. 2018, Theorem 4.3).
    """
    if len(values) < width or values[width - 1] <= 2 * gamma(len(values)) * top:
        return 0.0
    excess = float((values[:width] - values[width - 1]).sum())
    return width * float(values[width - 1]) / excess if excess > 0 else math.inf


def compared(
    fitted: FittedArrays, judged: Judged, white: White, best: Optimum, loss: Ball, doubt: float
) -> list[tuple[str, Ball]]:
    """Return the relative difference of each fitted attribute from what data and weights imply.

    NaN counts as infinite.
    """
    unit, width, precision = white.unit, judged.width, fitted.precision
    values, given = best.values, np.asarray(fitted.singular_values, dtype=float) / unit
    top = float(values.max(initial=0.0)) or 1.0
    doubt += math.sqrt(white.lost)  # of directions that count as constant
    errors = np.full(len(values), doubt)
    if white.losses is not None:
        errors = np.asarray(Ball(values**2, np.full(len(values), white.square)).sqrt().error)
    error = float(errors[: len(best.shrunk)].max(initial=0.0)) if len(best.shrunk) else doubt
    # A loss below 10⁻⁷ of E‖y‖² consists of rounding errors.
    scale = max(loss.value, 4 * loss.error / ATTRIBUTES, 1e-7 * white.energy)
    scale = min(scale, white.energy or 1.0) or 1.0
    objective = abs(fitted.objective / unit / unit - loss.value) / scale
    found = [
        ("objective_", Ball(objective, loss.error / scale)),
        ("threshold_", _spectral(abs(fitted.threshold / unit - best.threshold) / top, error / top)),
        ("right_", _spectral(max(white.outside.value - precision, 0.0), white.outside.error)),
    ]
    # Singular values outside of the range of the inputs may be given as zeros or left out.
    count = min(len(given), len(values))
    away = np.abs(given[:count] - values[:count]) - precision * values[:count]
    pairs = [*zip(away, errors, strict=False), (float(given[count:].max(initial=0.0)), error)]
    pairs.append(
        (float(values[count:width].max(initial=0.0)), float(errors[count:].max(initial=0.0)))
    )
    found += [("singular_values_", _spectral(float(a) / top, float(e) / top)) for a, e in pairs]
    if len(given) > width:
        found.append(("singular_values_", Ball(math.inf)))
    # α < s_ρ and, unless ρ = r, s_{ρ+1} ≤ α.
    rank, level = fitted.rank, fitted.threshold / unit
    if white.lost > 0:  # the directions that were dropped may be some of the range
        values = np.append(values, np.zeros(max(width - len(values), 0)))
    known = min(len(values), width)
    if not 0 <= rank <= known:
        found.append(("rank_", Ball(math.inf)))
    else:
        after = float(values[rank]) - level if rank < known else 0.0
        before = level - float(values[rank - 1]) if rank > 0 else 0.0
        found.append(("rank_", _spectral(max(after, before, 0.0) / top, error / top)))
    found += _of_function(fitted, judged, white)
    found += [("settings", Ball(abs(a - b) / (abs(b) or 1.0))) for a, b in fitted.settings]
    return [(name, ball if math.isfinite(ball.value) else Ball(math.inf)) for name, ball in found]


def _spectral(value: float, error: float) -> Ball:
    """Return the difference of a singular value, or of V from its span, for the known moment.

    The error of the moment itself may change the value by up to 10⁻³, as other distances; only a
    difference above its limit must exceed this error, to be one for certain.
    """
    return Ball(value, error if value > ATTRIBUTES else error * math.sqrt(ATTRIBUTES))


def _of_function(fitted: FittedArrays, judged: Judged, white: White) -> list[tuple[str, Ball]]:
    """Return relative differences of ``coef_``, ``intercept_`` and ``mean_``."""
    moment, found = white.moment, []
    precision = fitted.precision
    if moment is None:
        return []
    mean, parts, d = moment.shift + moment.offset, (moment.shift, moment.offset), moment.deviations
    m = len(judged.right)
    if fitted.mean is not None:
        away = np.abs((fitted.mean - parts[0]) - parts[1]) - precision * np.abs(mean)
        found.append(("mean_", _deviations_away(away, d[:m], moment.mean_error[:m])))
    if fitted.coef is None:
        return found
    product = judged.left @ judged.right.T
    wrong = np.clip(np.abs(fitted.coef - product) - precision * np.abs(product), 0.0, None)
    noise = gamma(judged.width) * (np.abs(judged.left) @ np.abs(judged.right).T)
    size, top = math.sqrt(white.energy) * white.unit or 1.0, float(np.abs(product).max()) or 1.0
    length = float(np.linalg.norm(product / top)) or 1.0
    # relative to ‖UVᵀ‖, and weighted by the deviations of the features to the predictions
    for part, scale in ((1.0 / top, length), (d[:m] / size, 1.0)):
        away, error = (float(np.linalg.norm(given * part)) for given in (wrong, noise))
        found.append(("coef_", Ball(away / scale, error / scale)))
    if fitted.bias is None or fitted.center is None or fitted.intercept is None:
        return found
    mean, parts = mean * moment.centered, (parts[0] * moment.centered, parts[1] * moment.centered)
    coef, expected = fitted.coef, mean[m:]
    errors = moment.mean_error * moment.centered
    doubt = np.abs(coef) @ errors[:m] + errors[m:]
    shift = (parts[0][:m] - fitted.center[0]) + (parts[1][:m] - fitted.center[1])
    away = np.abs(coef @ shift + ((fitted.bias - parts[0][m:]) - parts[1][m:]))
    away = np.clip(away - 2 * precision * np.abs(expected), 0.0, None)
    for number in range(len(away)):
        found.append(("intercept_", Ball(float(away[number]) / size, float(doubt[number]) / size)))
    through = coef @ mean[:m]
    rounding = np.abs(expected) + np.abs(coef) @ np.abs(mean[:m])
    away = np.abs(fitted.intercept - (expected - through))
    away = np.clip(away - (m + 8) * max(precision, gamma(0)) * rounding, 0.0, None)
    for number in range(len(away)):
        found.append(("intercept_", Ball(float(away[number]) / size, float(doubt[number]) / size)))
    return found


def _deviations_away(away: Matrix, deviations: Matrix, error: Matrix) -> Ball:
    """Return the largest distance of a mean in standard deviations; ∞ for a constant feature."""
    varies = deviations > 0
    ratios = np.divide(away, deviations, out=np.zeros_like(away), where=varies)
    errors = np.divide(error, deviations, out=np.zeros_like(away), where=varies)
    if np.any(away[~varies] > error[~varies]) or np.any(np.isnan(away)):
        return Ball(math.inf)
    worst = int(np.argmax(ratios - errors)) if len(ratios) else 0
    worst = worst if ratios[worst] - errors[worst] > ATTRIBUTES else int(np.argmax(ratios + errors))
    return Ball(max(float(ratios[worst]), 0.0), float(errors[worst]))


def _evidence(
    white: White,
    best: Optimum,
    judged: Judged,
    value: float,
    scores: Matrix,
    sizes: Matrix,
    known: bool,
) -> dict[str, Any]:
    """Return numbers by name from which the measured values can be computed again by hand."""
    unit, explained = white.unit, float((white.target**2).sum()) + white.rest
    found = {
        "strength": judged.strength,
        "width": judged.width,
        "energy": white.energy * unit**2,
        "value": value * unit**2,
        "importance": scores * unit,
        "product_singular_values": sizes * unit,
        "floor": white.floor * unit**2,
        "target_squared_norm": explained * unit**2,
        "condition": white.condition,
        "dropped_directions": white.dropped,
        "n_rows": white.n_rows,
    }
    minimum = (best.value + white.floor) * unit**2
    if not known:
        return found | {"lower_bound": minimum}
    return found | {
        "bound": minimum,
        "singular_values": best.values[: judged.width + 1] * unit,
        "threshold": best.threshold * unit,
        "rank": len(best.shrunk),
        "tail": best.tail * unit**2,
    }
