"""The verifier's transformation to white inputs, by pivoted triangular factorisations.

The verifier checks the results of the solver and shares no code with it. The solver transforms the
inputs to white ones (second moment I) by an eigendecomposition or a singular value decomposition
(`lucidae.dropout.moments`); here Cholesky and QR factorisations are used instead.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse

from lucidae.arrays import Array, like, namespace, scalar, squared_norm, to_numpy
from lucidae.dropout.figures import EPSILON, ReportedAttributes
from lucidae.dropout.objectives import LinearProblem, RowReduction, Weights

Matrix = np.ndarray[Any, Any]

WHITE = 1e-8
"""Inputs count as white if each entry of their second moment differs by at most this from the
identity."""

RANGE_FACTOR = 10.0
"""A pivot of the Cholesky factorisation of the second moment of m standardised features counts as a
rounding error below RANGE_FACTOR · m · ε, with the rounding unit ε."""

LARGEST_WEIGHT = 1e70
"""Largest weight that is accepted, for data scaled to the order of one. The loss contains fourth
powers of weights, which are finite up to this value."""

ROWS = 4096
"""Number of rows that `row_objective` converts to double precision at a time."""

SPARSE_ROWS = 128
"""Number of sparse rows that `row_objective` makes dense at a time."""


class DataUnits(NamedTuple):
    """Units of inputs and outputs, which are powers of four.

    The data are divided by them, so that their second moments are of the order of one and no
    product of them overflows. Division by a power of four is exact, and so is that by its square
    root.
    """

    inputs: float
    outputs: float

    @classmethod
    def of(cls, data: Moments) -> DataUnits:
        """Return units for second moments: near the largest standard deviation of x, and √E‖y‖².

        x are the inputs and y the outputs. Both units are rounded to powers of four.
        """
        deviation = float(data.deviations.max(initial=0.0))
        return cls(_power_of_four(deviation), _power_of_four(math.sqrt(data.energy)))

    def weights(self, left: Matrix, right: Matrix, *, tied: bool) -> tuple[Matrix, Matrix]:
        """Return the weights U (`left`) and V (`right`), rescaled for data divided by these units.

        If `tied`, both are multiplied by the same factor, so that equal layers stay equal.
        """
        if tied:
            factor = math.sqrt(self.inputs) / math.sqrt(self.outputs)
            left, right = left * factor, right * factor
        else:
            root = math.sqrt(self.outputs)
            left, right = left / root, right / root * self.inputs
        size = max(float(np.abs(part).max(initial=0.0)) for part in (left, right))
        if not size <= LARGEST_WEIGHT:
            raise ValueError(
                f"the weights are about {size:.1g} times as large as weights that fit the data, so "
                "that their loss overflows double precision. Give the weights that belong to the "
                "data."
            )
        return left, right

    def reported(self, given: ReportedAttributes) -> ReportedAttributes:
        """Return the fitted attributes of an estimator for data divided by these units."""

        def divided(values: Any, *units: float) -> Any:
            if values is None:
                return None
            values = host(values)
            for unit in units:
                values = values / unit
            return values

        a, b = self
        rows = None if given.rows is None else (given.rows[0] / b / b, given.rows[1] / b / b)
        return given._replace(
            objective=given.objective / b / b,
            threshold=given.threshold / b,
            singular_values=divided(given.singular_values, b),
            coef=divided(given.coef, b, 1.0 / a),
            output_bias=divided(given.output_bias, b),
            output_bias_error=divided(given.output_bias_error, b),
            mean_shift=divided(given.mean_shift, a),
            rows=rows,
        )


def _power_of_four(size: float) -> float:
    """Return the power of four that is nearest to a positive number; 1 for zero."""
    return 4.0 ** round(math.log(size, 4.0)) if size > 0 else 1.0


class Moments(NamedTuple):
    """Second moments of inputs and outputs as NumPy arrays, with the fields of `LinearProblem`."""

    cross: Matrix
    inputs: Matrix | None
    energy: float
    root: Matrix | None
    outputs: Matrix | None
    n_rows: float | None
    rest: float = 0.0
    largest_values: Matrix | None = None
    resolution: float = 0.0
    reduction: RowReduction | None = None

    @classmethod
    def of(cls, problem: LinearProblem) -> Moments:
        """Return the second moments of a problem as NumPy arrays, from any library and device."""
        arrays = (problem.inputs, problem.root, problem.outputs, problem.largest_values)
        inputs, root, outputs, values = (None if part is None else host(part) for part in arrays)
        energy, cross, rest = float(problem.energy), host(problem.cross), float(problem.rest)
        numbers = (problem.n_rows, rest, values, float(problem.resolution), problem.reduction)
        return cls(cross, inputs, energy, root, outputs, *numbers)

    def in_units(self, units: DataUnits) -> Moments:
        """Return the second moments of the inputs x and outputs y divided by their units."""
        a, b = units
        columns = np.repeat([a, b], self.cross.shape[::-1])
        return self._replace(
            cross=self.cross / a / b,
            inputs=None if self.inputs is None else self.inputs / a / a,
            energy=self.energy / b / b,
            root=None if self.root is None else self.root / columns,
            outputs=None if self.outputs is None else self.outputs / b / b,
            rest=self.rest / b / b,
            largest_values=None if self.largest_values is None else self.largest_values / b,
            reduction=None if self.reduction is None else _scaled(self.reduction, b),
        )

    @property
    def deviations(self) -> Matrix:
        """Square roots of the mean squares of the inputs; ones for white inputs."""
        features = self.cross.shape[1]
        if self.inputs is not None:
            return np.asarray(np.sqrt(np.clip(np.diag(self.inputs), 0.0, None)))
        if self.root is not None:
            return np.asarray(np.sqrt((self.root[:, :features] ** 2).sum(axis=0)))
        return np.ones(features)

    @property
    def white(self) -> bool:
        """Whether the second moment E[xxᵀ] of the inputs is the identity, up to `WHITE`."""
        if self.inputs is None:
            return self.root is None
        return bool(np.abs(self.inputs - np.eye(len(self.inputs))).max() <= WHITE)


def _scaled(given: RowReduction, unit: float) -> RowReduction:
    """Return the rounding errors of a problem whose outputs are divided by `unit`."""
    floor, doubt = given.floor / unit / unit, given.doubt / unit / unit
    return given._replace(floor=floor, doubt=doubt, blur=given.blur / unit)


class Reduced(NamedTuple):
    """The problem for white inputs x', with bounds on its rounding errors.

    The second moment of the original inputs x is C = E[xxᵀ] = RᵀR; incoming weights V for x are V'
    = RV for x', and x' has the identity as second moment.
    """

    matrix: Matrix  # (d1, q): the least-squares map M = E[yx'ᵀ] from x' to the outputs y
    lower: Matrix | None  # (q, d2): R; None if the inputs are white already
    floor: float  # E‖y‖² − ‖M‖², the loss of least squares
    # bound on the rounding error of the minimum of the dropout loss without `floor`
    undecided: float
    blur: float  # bound on the rounding error of M, in Frobenius norm
    doubts: Matrix  # (q,): relative rounding errors of the rows of R
    condition: float  # as in `lucidae.dropout.figures.DropoutFigures`
    dropped: int
    inconsistency: float
    # the part of E‖y‖² outside of the coordinates of the problem, as in
    # `lucidae.dropout.objectives.LinearProblem`
    rest: float = 0.0


class Product(NamedTuple):
    """Singular value decomposition U V'ᵀ = left · diag(values) · rightᵀ of the weights' product.

    U are the outgoing weights and V' the incoming weights for white inputs.
    """

    left: Matrix
    values: Matrix
    right: Matrix


class Optimum(NamedTuple):
    """The minimum of the dropout loss over all products of rank at most r, and the optimal product.

    r is the number of hidden units, M the least-squares map for white inputs.
    """

    # the minimum of the loss
    value: float
    reducible: float
    threshold: float
    rank: int
    # the first r + 1 singular values of M; the sum of the squares of all after the first r; all
    # singular values of M
    singular_values: Matrix
    tail: float
    # the optimal product UV'ᵀ of outgoing weights U and incoming weights V' for white inputs
    product: Matrix
    spectrum: Matrix


class Case(NamedTuple):
    """The weights of one network and the data on which they are judged, in units of order one.

    `left` are the outgoing weights U, `right` the incoming weights V, and `inner` the incoming
    weights V' for white inputs. `product` is the singular value decomposition of U V'ᵀ, and
    `target` the matrix that this product approximates. `optimum` is the minimum of the dropout
    loss; None if it is not known. `bound` is the minimum for separate layers, which bounds the loss
    from below.
    """

    units: DataUnits
    data: Moments
    reduced: Reduced
    left: Matrix
    right: Matrix
    inner: Matrix
    product: Product
    target: Matrix
    optimum: Optimum | None
    bound: Optimum
    strength: float
    tied: bool
    white: bool

    @property
    def width(self) -> int:
        """The number of hidden units."""
        return int(self.left.shape[1])

    @property
    def scale(self) -> float:
        """E‖y‖², the mean squared norm of the outputs y, or 1 if it is zero.

        Differences of fitted attributes are relative to it.
        """
        return self.data.energy if self.data.energy > 0 else 1.0

    @property
    def explainable(self) -> float:
        """The part of E‖y‖² that least squares explains, for outputs y; E‖y‖² if this part is zero.

        Losses minus their minimum are divided by it. The other part of E‖y‖² is the same for all
        weights and may be much larger.
        """
        return float((self.reduced.matrix**2).sum()) + self.reduced.rest or self.scale

    @property
    def uncertainty(self) -> float:
        """Bound on the rounding error of each singular value of the weights' optimal product."""
        noise = (sum(self.target.shape) + 10) * EPSILON
        return noise * float(self.bound.singular_values.max(initial=0.0)) + self.reduced.blur


def host(values: Any) -> Matrix:
    """Return an array of any library as a float64 NumPy array."""
    return np.asarray(to_numpy(values), dtype=np.float64)


def reduce_inputs(data: Moments) -> Reduced:
    """Return the problem for white inputs, from the triangular factor of the rows if it is given.

    The triangular factor of the rows is `data.root`; without it, the second moment of the inputs is
    factorised.
    """
    if data.root is not None:
        return _reduce_rows(data, data.root)
    if data.reduction is not None:
        return _reduced_before(data, data.reduction)
    if data.inputs is None:
        floor = data.energy - data.rest - float((data.cross**2).sum())
        return Reduced(data.cross, None, floor, 0.0, 0.0, np.zeros(0), 1.0, 0, 0.0, data.rest)
    return _reduce_moment(data, data.inputs)


def _reduced_before(data: Moments, given: RowReduction) -> Reduced:
    """Return a problem that was transformed to white inputs before, with its rounding errors.

    White inputs have the identity as second moment (see `lucidae.dropout.verified_rows`).
    """
    size = float(np.linalg.norm(data.cross))
    undecided = 2 * size * given.blur + given.blur**2 + given.doubt
    return Reduced(
        data.cross,
        None,
        given.floor,
        undecided,
        given.blur,
        np.full(1, given.ratio),
        given.condition,
        given.dropped,
        0.0,
    )


def _reduce_moment(data: Moments, inputs: Matrix) -> Reduced:
    """Return the problem for white inputs, from the second moment of the inputs x.

    The moment of the standardised inputs is factorised by Cholesky's method with diagonal pivoting.
    It has errors of relative size η of the order of the rounding unit, which the pivot pⱼ of a
    column magnifies by 1/pⱼ: relative to its length, a column of the least-squares map is wrong by
    η/(2pⱼ), and by the error of E[yxᵀ], with outputs y, by a further η√E‖y‖²/√pⱼ. Directions that
    were dropped because their pivot is too small can reduce the loss at most by the loss of least
    squares (`floor`).
    """
    size = len(inputs)
    deviations = np.sqrt(np.clip(np.diag(inputs), 0.0, None))
    constant = int((deviations == 0).sum())
    deviations[deviations == 0] = 1.0
    standard = inputs / np.outer(deviations, deviations)
    factor, order, rank, _ = scipy.linalg.lapack.dpstrf(
        standard, tol=max(RANGE_FACTOR * size * EPSILON, data.resolution**2), lower=0
    )
    # A zero matrix has rank 0; LAPACK then leaves the order unset.
    order = np.arange(size) if rank == 0 else order - 1
    triangle = np.triu(factor)[:rank]
    cross = (data.cross / deviations)[:, order[:rank]]
    matrix = scipy.linalg.solve_triangular(triangle[:, :rank], cross.T, trans="T").T
    lower = np.zeros((rank, size))
    lower[:, order] = triangle
    floor = data.energy - float((matrix**2).sum())
    pivots = np.diag(triangle[:, :rank]) ** 2
    dropped = size - rank - constant
    lengths = np.sqrt((matrix**2).sum(axis=0))
    noise = (size + len(matrix) + 10) * EPSILON
    wrong = noise * (lengths / (2 * pivots) + math.sqrt(data.energy) / np.sqrt(pivots))
    undecided = float((2 * lengths * wrong + wrong**2 + noise * lengths**2).sum())
    lost = max(floor, 0.0) if dropped else 0.0
    return Reduced(
        matrix,
        lower * deviations,
        floor,
        undecided + lost,
        math.sqrt(float((wrong**2).sum()) + lost),
        noise * (1 / (2 * pivots) + 1 / np.sqrt(pivots)),
        _condition(triangle) ** 2,
        dropped,
        0.0,
    )


def _reduce_rows(data: Moments, root: Matrix) -> Reduced:
    """Return the problem for white inputs, from the triangular factor F (`root`) of the rows.

    The standardised columns of F that belong to the inputs are factorised by QR with pivoting, with
    a triangular factor R. F has errors of relative size η, of the order of the rounding unit, which
    turn column j of the orthonormal factor by η/Rⱼⱼ. The errors are proportional to the condition
    number, and not to its square as for the second moment.

    Directions whose pivot is too small are dropped. Along them the rows contain only rounding
    errors, so that the minimum does not change. Directions that are dropped because the rows were
    rounded to single precision (`Moments.resolution`) explain a known part of the outputs, by which
    the minimum may be smaller.
    """
    size = data.cross.shape[1]
    inward, outward = root[:, :size], root[:, size:]
    deviations = np.sqrt((inward**2).sum(axis=0))
    constant = int((deviations == 0).sum())
    deviations[deviations == 0] = 1.0
    basis, triangle, pivots = _pivoted(inward / deviations)
    level = RANGE_FACTOR * size * EPSILON * max(pivots.max(initial=0.0), 1e-300)
    rank = int((pivots > max(level, data.resolution)).sum())
    unresolved = basis[:, rank : int((pivots > level).sum())]
    lost = float(((outward.T @ unresolved) ** 2).sum())
    basis, lower, pivots = basis[:, :rank], triangle[:rank], pivots[:rank]
    matrix = outward.T @ basis
    rest = outward - basis @ matrix.T
    lengths = np.sqrt((matrix**2).sum(axis=0))
    noise = (size + len(matrix) + 10) * EPSILON
    wrong = noise * math.sqrt(data.energy) / pivots
    return Reduced(
        matrix,
        lower * deviations,
        float((rest**2).sum()),
        float((2 * lengths * wrong + wrong**2 + noise * lengths**2).sum()) + lost,
        math.sqrt(float((wrong**2).sum()) + lost),
        noise / pivots,
        _condition(lower) ** 2,
        size - rank - constant,
        _inconsistency(data, inward, outward, deviations),
        data.rest,
    )


def _pivoted(rows: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """Return the factors Q and T of a pivoted QR factorisation A = QT, and its pivots.

    The columns of T are in the order of those of A (`rows`). If A has fewer rows than columns, Aᵀ
    is first factorised without pivoting, which is faster, and then the square factor.
    """
    if rows.shape[0] >= rows.shape[1]:
        basis, triangle, order = scipy.linalg.qr(rows, mode="economic", pivoting=True)
        placed = np.zeros_like(triangle)
        placed[:, order] = triangle
        return basis, placed, np.abs(np.diag(triangle))
    span, square = scipy.linalg.qr(rows.T, mode="economic")
    basis, factor, pivots = _pivoted(square.T)
    return basis, factor @ span.T, pivots


def _condition(triangle: Matrix) -> float:
    """Return the condition number of a triangular factor of full row rank; 1 if it is empty."""
    if triangle.shape[0] == 0:
        return 1.0
    if 2 * triangle.shape[0] < triangle.shape[1]:
        triangle = scipy.linalg.qr(triangle.T, mode="r")[0][: triangle.shape[0]]
    values = scipy.linalg.svdvals(triangle)
    return float(values[0] / values[-1]) if values[-1] > 0 else math.inf


def _inconsistency(data: Moments, inward: Matrix, outward: Matrix, deviations: Matrix) -> float:
    """Return the largest difference between the two given second moments of the rows.

    One is `data`, the other FᵀF for the triangular factor F of a QR factorisation of the rows, with
    the columns `inward` of the inputs and `outward` of the outputs. Differences are in units of
    standard deviations.
    """
    size = math.sqrt(data.energy) if data.energy > 0 else 1.0
    differences = [(outward.T @ inward - data.cross) / deviations / size]
    if data.inputs is not None:
        difference = inward.T @ inward - data.inputs
        differences.append(difference / np.outer(deviations, deviations))
    on_outputs = (float((outward**2).sum()) + data.rest - data.energy) / size**2
    return max(*(float(np.abs(part).max()) for part in differences), abs(on_outputs))


def relative_distance(given: Matrix, expected: Matrix) -> float:
    """Return ‖given − expected‖ / ‖expected‖; infinity if the shapes differ.

    If `expected` is zero, the distance is not divided.
    """
    if given.shape != expected.shape:
        return math.inf
    size = float(np.linalg.norm(expected)) or 1.0
    return float(np.linalg.norm(given - expected)) / size


def row_objective(
    X: Any,
    Y: Any,
    sample_weight: Array | None,
    weights: Weights,
    strength: float,
    centered: bool,
    *,
    alpha: float = 0.0,
) -> tuple[float, float]:
    """Return the expected dropout loss measured on the rows, and a bound on its rounding error.

    One pass finds the means, another the residuals and the hidden units of every row. Moments are
    not used, so that a wrong second moment is noticed.
    """
    ref = weights.left
    total = float(X.shape[0])
    if sample_weight is not None:
        total = scalar(namespace(ref).sum(like(sample_weight, ref)))
    with np.errstate(over="ignore", invalid="ignore"):  # infinite for absurd weights
        found = _summed(X, Y, sample_weight, weights, strength, centered, total)
        if alpha == 0.0:
            return found
        penalty = _penalty(host(weights.left), host(weights.right), strength)
        return found[0] + alpha / total * penalty[0], found[1] + alpha / total * penalty[1]


def _penalty(left: Matrix, right: Matrix, strength: float) -> tuple[float, float]:
    """Return ‖UVᵀ‖² + λΣ‖uᵢ‖²‖vᵢ‖² and a bound on its rounding error.

    It is the expectation of the squared norm of the coefficients of a network whose hidden units
    are dropped, with outgoing weights U (`left`), incoming weights V (`right`), their columns uᵢ
    and vᵢ, and the strength λ of dropout.
    """
    noise = (len(left) + len(right) + left.shape[1] + 10) * EPSILON
    dropped = strength * float((left**2).sum(axis=0) @ (right**2).sum(axis=0))
    value = float(((left.T @ left) * (right.T @ right)).sum()) + dropped
    sizes = np.abs(left), np.abs(right)
    doubt = float(((sizes[0].T @ sizes[0]) * (sizes[1].T @ sizes[1])).sum()) + dropped
    return value, noise * doubt


def _summed(
    X: Any,
    Y: Any,
    sample_weight: Array | None,
    weights: Weights,
    strength: float,
    centered: bool,
    total: float,
) -> tuple[float, float]:
    """Return the dropout loss and a bound on its rounding error, from two passes over the rows.

    The arguments are those of `row_objective`; `total` is the sum of the weights of the rows.
    """
    left, right = weights
    xp = namespace(left)
    first, means = _centers(X, Y, sample_weight, weights, total, centered)
    loss, spread, inputs, incoming = 0.0, 0.0, 0.0 * right[:, 0], 0.0 * left[0, :]
    for x, y, w in _row_blocks(X, Y, sample_weight, left):
        x, y, w = (x - first[0]) - means[0], (y - first[1]) - means[1], w / total
        hidden = x @ right
        loss += scalar(squared_norm(xp.sqrt(w) * (y - hidden @ left.mT)))
        incoming = incoming + xp.sum(w * hidden * hidden, axis=0)
        spread, inputs = spread + scalar(xp.sum(w * y * y)), inputs + xp.sum(w * x * x, axis=0)
    sizes = host(xp.sqrt(inputs))
    return _with_error(loss, spread, sizes, host(incoming), host(left), host(right), strength)


def _centers(
    X: Any, Y: Any, sample_weight: Array | None, weights: Weights, total: float, centered: bool
) -> tuple[list[Array], list[Array]]:
    """Return the first row (inputs x, outputs y), and the mean of all rows minus the first row.

    Both are zero unless `centered`. To centre the rows, both are subtracted, one after the other:
    their sum would be a rounded mean, which matters if the mean is much larger than the standard
    deviation.
    """
    left, right = weights
    xp, first = namespace(left), [0.0 * right[:, 0], 0.0 * left[:, 0]]
    means = [1.0 * part for part in first]
    if not centered:
        return first, means
    for number, (x, y, w) in enumerate(_row_blocks(X, Y, sample_weight, left)):
        if number == 0:
            first = [x[0, :], y[0, :]]
        for index, part in enumerate((x, y)):
            means[index] = means[index] + xp.sum(w * (part - first[index]), axis=0) / total
    return first, means


def _row_blocks(X: Any, Y: Any, sample_weight: Array | None, ref: Array) -> Any:
    """Yield inputs, outputs and weights (a column) of successive rows, as dense float64 arrays.

    `ref` is an array of the library and device in which they are returned.
    """
    step = SPARSE_ROWS if scipy.sparse.issparse(X) else ROWS
    for start in range(0, X.shape[0], step):
        rows = slice(start, start + step)
        x, y = (
            like(part[rows].toarray() if scipy.sparse.issparse(part) else part[rows, :], ref)
            for part in (X, Y)
        )
        column = 0.0 * x[:, :1] + 1.0
        if sample_weight is not None:
            column = column * like(sample_weight[rows], ref)[:, None]
        yield x, y, column


def _with_error(
    loss: float,
    outputs: float,
    inputs: Matrix,
    incoming: Matrix,
    left: Matrix,
    right: Matrix,
    strength: float,
) -> tuple[float, float]:
    """Return the dropout loss and a bound on its rounding error, from sums over the rows.

    `loss` is the mean squared error without dropout, `outputs` is the mean squared norm E‖y‖² of
    the outputs y, `inputs` are the root mean squares of the inputs xⱼ, and `incoming` are the mean
    squares of the hidden units. The value of a hidden unit, Σⱼ vⱼᵢxⱼ with its incoming weights vⱼᵢ
    and d₂ terms, is wrong by at most d₂ · ε · Σⱼ |vⱼᵢ||xⱼ|, with the rounding unit ε.
    """
    noise = (len(left) + len(right) + left.shape[1] + 10) * EPSILON
    outgoing = (left**2).sum(axis=0)
    value = loss + strength * float(outgoing @ incoming)
    hidden = inputs @ np.abs(right)
    residual = math.sqrt(outputs) + float(np.sqrt(outgoing) @ hidden)
    error = 2 * math.sqrt(loss) * residual + noise * residual * residual
    error += 2 * strength * float(outgoing @ (np.sqrt(incoming) * hidden))
    error += noise * strength * float(outgoing @ hidden**2) + value
    return value, noise * error
