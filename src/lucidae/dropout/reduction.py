"""The verifier's transformation to white inputs, by pivoted triangular factorisations.

The solver transforms the inputs to white ones (second moment I) by an eigendecomposition or a
singular value decomposition; here Cholesky and QR factorisations are used instead, so that no code
is shared.

Few rows with very many features (`white_rows`): let A be the n centred and weighted rows of m > n
features, and Y their outputs. The dropout loss depends on the incoming weights V through AV alone,
and the least-squares map depends on the range of A, a subspace of the n-dimensional space. So n × n
matrices and products with A suffice: AAᵀ is computed by products of A with blocks of columns of Aᵀ,
and factorised by Cholesky's method with pivoting.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse

from lucidae.arrays import Array, like, namespace, scalar, squared_norm, to_numpy
from lucidae.dropout.figures import EPSILON, ReportedAttributes
from lucidae.dropout.problem import LinearProblem, RowReduction, Weights, WideRows

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
    """Units of inputs and outputs, powers of four, in which second moments are of the order of one.

    Division by a power of four, and by its square root, is exact.
    """

    inputs: float
    outputs: float

    @classmethod
    def of(cls, data: Moments) -> DataUnits:
        """Return units near the largest standard deviation of x and √E‖y‖²."""
        deviation = float(data.deviations.max(initial=0.0))
        return cls(_power_of_four(deviation), _power_of_four(math.sqrt(data.energy)))

    def weights(self, left: Matrix, right: Matrix, *, tied: bool) -> tuple[Matrix, Matrix]:
        """Return the weights for data divided by these units; tied layers stay equal."""
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

    With C = E[xxᵀ] = RᵀR, incoming weights V for x are V' = RV for x'.
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
    # `lucidae.dropout.problem.LinearProblem`
    rest: float = 0.0


class Product(NamedTuple):
    """Singular value decomposition U V'ᵀ = left · diag(values) · rightᵀ of the weights' product."""

    left: Matrix
    values: Matrix
    right: Matrix


class Optimum(NamedTuple):
    """The minimum of the dropout loss over all products of rank at most r, and its product."""

    value: float  # the minimum of the loss
    reducible: float  # the minimum without the loss of least squares
    threshold: float
    rank: int
    singular_values: Matrix  # (r + 1,): the first ones of M
    tail: float  # sum of the squares of all after the first r
    product: Matrix  # the optimal product UV'ᵀ
    spectrum: Matrix  # all singular values of M


class Case(NamedTuple):
    """The weights of one network and the data on which they are judged, in units of order one."""

    units: DataUnits
    data: Moments
    reduced: Reduced
    left: Matrix  # U
    right: Matrix  # V
    inner: Matrix  # V', the incoming weights for white inputs
    product: Product
    target: Matrix  # what UV'ᵀ approximates
    optimum: Optimum | None  # None if it is not known
    bound: Optimum  # of separate layers, which bounds the loss from below
    strength: float
    tied: bool
    white: bool

    @property
    def width(self) -> int:
        """The number of hidden units."""
        return int(self.left.shape[1])

    @property
    def scale(self) -> float:
        """E‖y‖², or 1 if it is zero; differences of fitted attributes are relative to it."""
        return self.data.energy if self.data.energy > 0 else 1.0

    @property
    def explainable(self) -> float:
        """The part of E‖y‖² that least squares explains, or all of it if that is zero.

        Losses minus their minimum are divided by it: the other part is the same for all weights and
        may be much larger.
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
    """Return the problem for white inputs, from the factor of the rows if there is one."""
    if data.root is not None:
        return _reduce_rows(data, data.root)
    if data.reduction is not None:
        return _reduced_before(data, data.reduction)
    if data.inputs is None:
        floor = data.energy - data.rest - float((data.cross**2).sum())
        return Reduced(data.cross, None, floor, 0.0, 0.0, np.zeros(0), 1.0, 0, 0.0, data.rest)
    return _reduce_moment(data, data.inputs)


def _reduced_before(data: Moments, given: RowReduction) -> Reduced:
    """Return a problem that `white_rows` has transformed, with its rounding errors."""
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
    """Return the problem for white inputs, from their second moment.

    The moment of the standardised inputs is factorised by Cholesky's method with diagonal pivoting.
    Its relative errors η are magnified by the pivot pⱼ of a column: relative to its length, a
    column of the least-squares map is wrong by η/(2pⱼ), and by the error of E[yxᵀ] by a further
    η√E‖y‖²/√pⱼ. Directions dropped because of a small pivot can reduce the loss at most by that of
    least squares.
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
    """Return the problem for white inputs, from the triangular factor F of the rows.

    The standardised columns of F that belong to the inputs are factorised by pivoted QR. Relative
    errors η of F turn column j of the orthonormal factor by η/Rⱼⱼ: they are proportional to the
    condition number, not to its square. Along directions with a small pivot the rows contain
    rounding errors only. Those that single precision does not resolve explain a known part of the
    outputs, by which the minimum may be smaller.
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
    """Return Q and T of a pivoted QR factorisation A = QT, T in the order of A, and its pivots.

    If A has fewer rows than columns, Aᵀ is first factorised without pivoting, which is faster.
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
    """Return the largest difference of the given second moments and FᵀF, in standard deviations."""
    size = math.sqrt(data.energy) if data.energy > 0 else 1.0
    differences = [(outward.T @ inward - data.cross) / deviations / size]
    if data.inputs is not None:
        difference = inward.T @ inward - data.inputs
        differences.append(difference / np.outer(deviations, deviations))
    on_outputs = (float((outward**2).sum()) + data.rest - data.energy) / size**2
    return max(*(float(np.abs(part).max()) for part in differences), abs(on_outputs))


def relative_distance(given: Matrix, expected: Matrix) -> float:
    """Return ‖given − expected‖ / ‖expected‖ (undivided if zero); ∞ if the shapes differ."""
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

    Moments are not used, so that a wrong second moment is noticed.
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
    """Return E‖U diag(b/θ) Vᵀ‖² = ‖UVᵀ‖² + λΣ‖uᵢ‖²‖vᵢ‖², and a bound on its rounding error."""
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
    """Return the dropout loss and a bound on its rounding error, from two passes over the rows."""
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
    """Return the first row, and the mean of all rows minus the first; zeros unless `centered`.

    They are subtracted one after the other, because their sum would be a rounded mean.
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
    """Yield inputs, outputs and weights (a column) of successive rows, dense in float64."""
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

    A hidden unit Σⱼ vⱼᵢxⱼ of d₂ terms is wrong by at most d₂ · ε · Σⱼ |vⱼᵢ||xⱼ|.
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


LARGEST_ROWS = 16_384
"""Largest number of rows whose Gram matrix the verifier factorises: two gibibytes. Weights for more
rows are not judged."""

COLUMNS = 64
"""Number of columns of Aᵀ that are multiplied with A at a time, for rows A."""

FEATURES = 4096
"""Number of features whose coefficients are compared at a time."""


class WhiteRows(NamedTuple):
    """A problem for white inputs, with the weights and reported attributes that belong to it."""

    problem: LinearProblem
    weights: Weights
    reported: ReportedAttributes | None


class _Products(NamedTuple):
    """The centred and weighted rows A, by products with them.

    The weighted mean of the stored rows S is Sᵀs with the unit vector s of `shares`, so that A = (I
    − ssᵀ)S: the mean that the solver computed is not used.
    """

    stored: Any  # S, dense or sparse
    shares: Matrix | None  # square roots of the shares of the rows; None if S is A itself

    @classmethod
    def of(cls, rows: WideRows) -> _Products:
        """Return the products with the given rows."""
        if rows.entries is None:
            return cls(host(rows.dense), None)
        entries = tuple(np.asarray(part) for part in rows.entries)
        stored = scipy.sparse.csr_array(entries, shape=rows.shape)
        return cls(stored, host(rows.shares) if rows.centered else None)

    def _centred(self, codes: Matrix) -> Matrix:
        if self.shares is None:
            return codes
        return np.asarray(codes - np.multiply.outer(self.shares, self.shares @ codes))

    def times(self, right: Matrix) -> Matrix:
        """Return AV for a matrix V (`right`)."""
        return self._centred(np.asarray(self.stored @ right))

    def back(self, codes: Matrix) -> Matrix:
        """Return AᵀZ for a matrix Z (`codes`)."""
        return np.asarray(self.stored.T @ self._centred(codes))


class _Factor(NamedTuple):
    """Pivoted Cholesky factorisation AAᵀ = unit² · TTᵀ of the Gram matrix of rows A of rank k."""

    lower: Matrix  # (n, k): rows of T in the order of the pivots; the first k are triangular
    order: Matrix
    unit: float
    condition: float  # of the triangular part
    blur: float  # errors of the Gram matrix in units of ε · unit²: 1, or more after centring

    @property
    def rank(self) -> int:
        """The rank k of the rows."""
        return int(self.lower.shape[1])

    @property
    def placed(self) -> Matrix:
        """T, with its rows in the order of the rows of A."""
        found = np.empty_like(self.lower)
        found[self.order] = self.lower
        return found

    def solved(self, hidden: Matrix, trans: int = 0) -> Matrix:
        """Return the solution of a triangular system with the first k rows of `lower`."""
        triangle = self.lower[: self.rank]
        return np.asarray(scipy.linalg.solve_triangular(triangle, hidden, lower=True, trans=trans))


def white_rows(
    problem: LinearProblem,
    weights: Weights,
    strength: float,
    reported: ReportedAttributes | None,
) -> WhiteRows:
    """Return the problem of few rows with very many features for white inputs."""
    rows = problem.rows
    assert rows is not None
    left, right = host(weights.left), host(weights.right)
    products = _Products.of(rows)
    hidden = products.times(right)
    factor = _factorised(rows, products)
    outputs = host(rows.outputs)
    matrix, inner, floor, lost = _whitened(factor, outputs, hidden, rows)
    n, m = rows.shape
    deviations = np.sqrt(host(rows.squares))
    noise = (n + len(left) + 10) * EPSILON
    # ‖δ(Avᵢ)‖ ≤ (m + 10) ε Σⱼ ‖aⱼ‖ |vⱼᵢ|, with the columns aⱼ of A, before centring if sparse.
    sizes = deviations if rows.mean is None else np.hypot(deviations, np.abs(host(rows.mean)))
    wrong = (m + 10) * EPSILON * (sizes @ np.abs(right))
    lengths, outgoing = np.sqrt((inner**2).sum(axis=0)), (left**2).sum(axis=0)
    wrong = wrong + noise * (factor.blur * factor.condition**2 if rows.ridge > 0 else 1.0) * lengths
    through = float(np.sqrt(outgoing) @ wrong)
    rest = float(np.linalg.norm(matrix - left @ inner.T))
    doubt = 2 * rest * through + through**2
    doubt += 2 * strength * float(outgoing @ (lengths * wrong)) + strength * float(
        outgoing @ wrong**2
    )
    ratios = np.divide(wrong, lengths, out=np.zeros_like(wrong), where=lengths > 0)
    constant = int((deviations == 0).sum())
    reduction = RowReduction(
        floor,
        doubt,
        noise * lost * math.sqrt(problem.energy),
        float(ratios.max(initial=0.0)),
        factor.condition**2,
        m - factor.rank - constant,
    )
    found = replace(
        problem, cross=matrix, inputs=None, rows=None, resolution=0.0, reduction=reduction
    )
    if reported is not None:
        outside = _outside_span(products, factor, hidden, right)
        reported = _compared(reported, left, right, deviations, problem.energy, outside)
    return WhiteRows(found, Weights(left, inner), reported)


def _factorised(rows: WideRows, products: _Products) -> _Factor:
    """Return the pivoted Cholesky factorisation of the Gram matrix AAᵀ of the rows A."""
    n = rows.shape[0]
    gram = np.empty((n, n))
    for start in range(0, n, COLUMNS):
        columns = np.zeros((n, min(COLUMNS, n - start)))
        np.fill_diagonal(columns[start:], 1.0)
        gram[:, start : start + COLUMNS] = products.times(products.back(columns))
    top = float(np.diag(gram).max(initial=0.0))
    unit = math.sqrt(top) if top > 0 else 1.0
    gram /= unit
    gram /= unit
    blur = 1.0 + rows.cancelled / unit / unit
    factor, order, rank, _ = scipy.linalg.lapack.dpstrf(
        gram, tol=RANGE_FACTOR * n * EPSILON * blur, lower=1, overwrite_a=1
    )
    # A zero matrix has rank 0; LAPACK then leaves the order unset.
    rank = int(rank) if top > 0 else 0
    order = np.arange(n) if rank == 0 else order - 1
    lower = np.tril(factor[:, :rank])
    condition = 1.0
    if rank > 0:
        inverse, _ = scipy.linalg.lapack.dtrcon(lower[:rank], norm="1", uplo="L")
        condition = 1.0 / inverse if inverse > 0 else math.inf
    return _Factor(lower, order, unit, condition, blur)


def _whitened(
    factor: _Factor, outputs: Matrix, hidden: Matrix, rows: WideRows
) -> tuple[Matrix, Matrix, float, float]:
    """Return M and V' for white inputs, the least-squares loss, and how much errors are magnified.

    Without a ridge penalty, T = QR gives M = YᵀQ and V' = QᵀAV. If A has full row rank, Q spans the
    whole space (less the direction removed by centring), whatever the condition number is. With a
    ridge penalty ρ, unit² TᵀT + ρI = unit² RᵀR gives M = YᵀTR⁻¹, and V' = unit RZ with unit TZ =
    AV.
    """
    triangle = factor.placed
    if factor.rank == 0:
        width = hidden.shape[1]
        empty = np.zeros((outputs.shape[1], 1)), np.zeros((1, width))
        return *empty, float((outputs**2).sum()), 1.0
    if rows.ridge == 0.0:
        basis, _ = scipy.linalg.qr(triangle, mode="economic", overwrite_a=True, check_finite=False)
        matrix = outputs.T @ basis
        rest = outputs - basis @ matrix.T
        full = factor.rank == rows.shape[0] - rows.centered
        lost = 1.0 if full else factor.blur * factor.condition**2
        return matrix, basis.T @ hidden, float((rest**2).sum()), lost
    loaded = triangle.T @ triangle
    loaded[np.diag_indices_from(loaded)] += rows.ridge / factor.unit / factor.unit
    upper = scipy.linalg.cholesky(loaded)
    matrix = scipy.linalg.solve_triangular(upper, triangle.T @ outputs, trans="T").T
    inner = upper @ factor.solved(hidden[factor.order[: factor.rank]])
    inverse, _ = scipy.linalg.lapack.dtrcon(upper, norm="1", uplo="U")
    floor = float((outputs**2).sum() - (matrix**2).sum())
    return matrix, inner, floor, factor.blur / inverse**2 if inverse > 0 else math.inf


def _outside_span(products: _Products, factor: _Factor, hidden: Matrix, right: Matrix) -> float:
    """Return the relative norm of the part of V outside of the span of the rows, less its error.

    The loss does not depend on it; the weights of smallest norm, which estimators return, have
    none.
    """
    if factor.rank == 0:
        return 1.0 if np.any(right) else 0.0
    pivots = factor.order[: factor.rank]
    first = factor.solved(hidden[pivots] / factor.unit)
    codes = np.zeros_like(hidden)
    codes[pivots] = factor.solved(first, trans=1) / factor.unit
    inside = products.back(codes)
    error = (len(hidden) + 10) * EPSILON * factor.blur * factor.condition**2
    return max(relative_distance(inside, right) - error, 0.0)


def _compared(
    reported: ReportedAttributes,
    left: Matrix,
    right: Matrix,
    deviations: Matrix,
    energy: float,
    outside: float,
) -> ReportedAttributes:
    """Return the attributes with errors of coefficients as entries of ``settings``.

    They are relative to ‖UVᵀ‖ and, weighted by the standard deviations of the features, to √E‖y‖².
    """
    found = [max(outside - reported.precision, 0.0)]
    if reported.coef is not None:
        coef = host(reported.coef).reshape(len(left), len(right))
        sums = np.zeros(3)
        for start in range(0, len(right), FEATURES):
            part = slice(start, start + FEATURES)
            product = left @ right[part].T
            allowed = reported.precision * np.abs(product)
            allowed += left.shape[1] * EPSILON * (np.abs(left) @ np.abs(right[part]).T)
            wrong = np.clip(np.abs(coef[:, part] - product) - allowed, 0.0, None)
            effect = (wrong * deviations[part]) ** 2
            sums += [(wrong**2).sum(), (product**2).sum(), effect.sum()]
        plain, size = math.sqrt(sums[1]) or 1.0, math.sqrt(energy) or 1.0
        found += [math.sqrt(sums[0]) / plain, math.sqrt(sums[2]) / size]
    pairs = tuple((1.0 + error, 1.0) for error in found)
    return reported._replace(coef=None, settings=(*reported.settings, *pairs))
