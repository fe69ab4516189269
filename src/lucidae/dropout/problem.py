"""The problem: second moments of the data, the expected dropout loss, and white coordinates.

The network x ↦ U Vᵀx has d₂ inputs, r hidden units and d₁ outputs: U has shape (d₁, r) and V has
shape (d₂, r). In training a hidden unit is kept with probability θ and rescaled by 1/θ;
λ = (1 − θ)/θ is the strength of dropout. All functions accept leading batch axes on the weights.

Correlated inputs are reduced to white ones exactly. Let C = E[xxᵀ] = LLᵀ, V' = LᵀV and
M = E[yxᵀ]L⁻ᵀ. Then vᵢᵀC vᵢ = ‖v'ᵢ‖², and completing the square in E‖y − UVᵀx‖² gives the expected
dropout loss ‖M − UV'ᵀ‖² + λΣ‖uᵢ‖²‖v'ᵢ‖² plus the constant E‖y‖² − ‖M‖². If C is singular, the
reduction works on its range.

If M is computed from C, its errors are of the order ε·cond(C). If that is too much and the rows are
available, they are factorised instead of their moment: `row_root` returns F with FᵀF = E[(x, y)(x,
y)ᵀ], whose columns are F_x and F_y. From the singular value decomposition F_x = PSWᵀ follow M =
F_yᵀP and the whitening matrix B = WS⁻¹ (x' = Bᵀx), with errors of the order ε·√cond(C). Of fewer
rows than features (`WideRows`) C is not formed: P and S² are those of their Gram matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    add_diagonal,
    as_double,
    beside,
    device,
    diagonal,
    eigh_descending,
    eye_like,
    is_array,
    largest,
    like,
    machine_epsilon,
    namespace,
    squared_norm,
    svd_thin,
    to_numpy,
    where_set,
)
from lucidae.base import reference_array
from lucidae.certificates.sketch import Sketch, column_scales, sketch_pairs
from lucidae.moments import SecondMoment
from lucidae.rows.kinds import AlignedBlocks
from lucidae.rows.operator import STORED_FEATURES, RowOperator, centred_block, stacked
from lucidae.rows.passes import fold, nothing_read
from lucidae.validation import check_row_count, check_rows


def host(values: Any) -> np.ndarray[Any, Any]:
    """Return an array of any library as a float64 NumPy array."""
    return np.asarray(to_numpy(values), dtype=np.float64)


class Weights(NamedTuple):
    """Outgoing weights U (`left`) and incoming weights V (`right`) of the hidden units.

    U has shape (d1, r) for d1 outputs and V has shape (d2, r) for d2 inputs: one column per hidden
    unit.
    """

    left: Array
    right: Array


def check_hidden_units(left: Array, right: Array) -> None:
    """Raise an error unless U and V have one column per hidden unit each."""
    if left.shape[1] != right.shape[1]:
        raise ValueError(
            f"U has {left.shape[1]} columns and V has {right.shape[1]}, expected equal numbers, "
            "one column per hidden unit."
        )


SMALLEST_ENERGY = 1e-280
"""A sum of squares below this has lost digits to underflow."""


CONSTANT = 4 * float(np.finfo(np.float64).eps)
"""Ratio of standard deviation and mean up to which a column counts as constant."""


SINGLE = 1e-10
"""A rounding unit above this value means single precision."""


@dataclass(frozen=True, slots=True, eq=False)
class LinearProblem:
    """The second moments of inputs x and outputs y on which the expected dropout loss depends.

    The expectation E is a mean over rows or a population.

    Parameters
    ----------
    cross : array of shape (d1, d2)
        E[y xᵀ], the second moment of outputs and inputs.
    inputs : array of shape (d2, d2) or None
        C = E[x xᵀ]. None means the identity, the white inputs of Mianjy et al. 2018.
    energy : float
        E‖y‖², the mean squared norm of the outputs.
    root : array of shape (d2 + d1, d2 + d1), optional
        Triangular factor F of a QR factorisation of the rows, with FᵀF = E[(x, y)(x, y)ᵀ]. Its
        condition number is the square root of that of the moment, so it is given if C is
        ill-conditioned.
    outputs : array of shape (d1, d1), optional
        E[y yᵀ]; None if y is x itself or a matrix was given.
    n_rows : float, optional
        Number of rows, minus one if their mean was subtracted; None if a matrix was given.
    resolution : float, default=0.0
        Standard deviation of the standardised inputs below which a direction counts as constant,
        because the inputs were rounded to single precision. Directions that double precision does
        not resolve count as constant in any case.

    Examples
    --------
    >>> import numpy as np
    >>> problem = LinearProblem.from_matrix(np.diag([3.0, 1.0]))
    >>> problem.energy
    10.0
    """

    cross: Array
    inputs: Array | None
    energy: float
    root: Array | None = None
    outputs: Array | None = None
    n_rows: float | None = None
    resolution: float = 0.0

    @classmethod
    def from_matrix(cls, matrix: Any) -> Self:
        """Return the second moments of white inputs x with outputs y = Mx, M being `matrix`.

        White inputs have the identity as second moment. The loss of this problem without dropout is
        ‖M − UVᵀ‖², that of factorising M into outgoing weights U and incoming weights V.

        Parameters
        ----------
        matrix : array-like of shape (d1, d2)
            M, finite and not empty; the problem holds it in double precision.

        Returns
        -------
        LinearProblem
            With ``cross`` equal to M, and None as ``inputs``.
        """
        checked = as_double(check_rows(matrix, accept_sparse=False, name="matrix"))
        with np.errstate(over="ignore", under="ignore"):
            energy, size = float(squared_norm(checked)), largest(checked)
        if not math.isfinite(energy) or (energy < SMALLEST_ENERGY and size > 0):
            leaves, change = ("over", "Divide") if size > 1.0 else ("under", "Multiply")
            raise ValueError(
                f"the squares of the matrix {leaves}flow double precision: its largest entry is "
                f"{size:.3g}. {change} the matrix by a constant first."
            )
        return cls(checked, None, energy)

    @classmethod
    def from_moment(
        cls,
        moment: SecondMoment,
        n_features: int | None,
        *,
        centered: bool = True,
        root: Array | None = None,
        precision: float = 0.0,
    ) -> Self:
        """Return the problem of rows [x | y] from their `SecondMoment`.

        If `centered`, the mean is subtracted: optimal biases of both layers remove the means of the
        hidden units and of the outputs. `precision` is the rounding unit of the inputs' dtype.
        """
        mean, second = moment.mean, moment.covariance
        if centered:  # constant columns get zeros
            varies = varying(diagonal(second), mean)
            second = second * varies[:, None] * varies[None, :]
        else:
            with np.errstate(over="ignore"):
                second = second + mean[:, None] * mean[None, :]
            if not math.isfinite(largest(second)):
                raise ValueError(
                    "the squares of X overflow double precision: the largest entry of its mean is "
                    f"{largest(mean):.3g}. Divide X (and y) by a constant first."
                )
            mean = 0.0 * mean
        own, targets = slice(n_features), slice(n_features or 0, None)
        inputs, outputs, resolution = second[own, own], second[targets, targets], 0.0
        if precision > SINGLE:
            # With the rounding unit ε, a standardised input of variance d² and mean square q has
            # rounding errors of up to ε√q/(2d), so that no direction has more than ε/2 · √(Σ q/d²)
            # by rounding alone; four times this is the resolution.
            squares = diagonal(inputs)
            ratios = 1.0 + mean[own] ** 2 / where_set(squares, squares <= 0, 1.0)
            total = float(namespace(ratios).sum(where_set(ratios, squares <= 0, 0.0)))
            resolution = 2.0 * precision * math.sqrt(total)
        return cls(
            second[targets, own],
            inputs,
            float(namespace(outputs).linalg.trace(outputs)),
            root,
            outputs,
            moment.weight - centered,
            resolution,
        )

    @classmethod
    def autoencoder(cls, moment: SecondMoment, *, centered: bool = True) -> Self:
        """Return the problem whose output is its input x, from the second moment of x."""
        return cls.from_moment(moment, None, centered=centered)

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of outputs and inputs."""
        return int(self.cross.shape[0]), int(self.cross.shape[1])

    def through_inputs(self, right: Array) -> Array:
        """Return C V for incoming weights V."""
        return right if self.inputs is None else self.inputs @ right


def varying(variances: Array, mean: Array) -> Array:
    """Return 1 for each column that varies and 0 for each that is constant.

    The mean of equal numbers has an error of up to CONSTANT times itself, so that they seem to
    vary.
    """
    xp = namespace(variances)
    deviations = xp.sqrt(xp.where(variances > 0, variances, 0.0 * variances))
    return xp.astype(deviations > CONSTANT * xp.abs(mean), variances.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class DropoutObjective:
    """Expected dropout loss f(U, V) = E‖y − UVᵀx‖² + λ Σᵢ ‖uᵢ‖² · vᵢᵀC vᵢ.

    U and V are the outgoing and incoming weights with columns uᵢ and vᵢ, λ is the strength of
    dropout and C = E[xxᵀ] the second moment of the inputs. This is Mianjy et al. 2018, eq. 2 and
    Lemma A.1, for any C. The methods for tied weights evaluate the same formulas at V = U; by the
    chain rule the derivatives with respect to both layers add up.

    Parameters
    ----------
    problem : LinearProblem
        The second moments of the data.
    strength : float or array
        Strength λ = dropout / (1 − dropout). An array has one entry for each network if the
        weights of several networks are given at once, along a first axis.

    Examples
    --------
    >>> import numpy as np
    >>> objective = DropoutObjective(LinearProblem.from_matrix(np.array([[2.0]])), 0.5)
    >>> u = np.array([[1.0, 0.0]])
    >>> float(objective.value(Weights(u, u)))
    1.5
    """

    problem: LinearProblem
    strength: Any

    def loss(self, weights: Weights) -> Array:
        """Return the mean squared error E‖y − UVᵀx‖² of the network without dropout."""
        left, right = weights
        # E‖UVᵀx‖² = tr(UᵀU VᵀCV): two r × r matrices instead of one of size d₁ × d₂.
        inward = self.problem.through_inputs(right)
        fitted = namespace(left).linalg.trace((left.mT @ left) @ (right.mT @ inward))
        agreement = namespace(left).sum(left * (self.problem.cross @ right), axis=(-2, -1))
        return self.problem.energy - 2 * agreement + fitted

    def importance(self, weights: Weights) -> Array:
        """Return the importance score ‖uᵢ‖ √(vᵢᵀC vᵢ) of every hidden unit (section 6)."""
        xp = namespace(weights.left)
        inward = self.problem.through_inputs(weights.right)
        incoming = xp.sum(weights.right * inward, axis=-2)
        outgoing = xp.sum(weights.left * weights.left, axis=-2)
        return xp.sqrt(xp.clip(incoming, 0.0, None)) * xp.sqrt(outgoing)

    def regularizer(self, weights: Weights) -> Array:
        """Return the penalty λ Σᵢ ‖uᵢ‖² vᵢᵀC vᵢ that dropout adds to the loss."""
        scores = self.importance(weights)
        return self.strength * namespace(scores).sum(scores * scores, axis=-1)

    def value(self, weights: Weights) -> Array:
        """Return the expected dropout loss."""
        return self.loss(weights) + self.regularizer(weights)

    def gradient(self, weights: Weights) -> Weights:
        """Return the gradient of the expected dropout loss."""
        # The regulariser loads the diagonals of both Gram matrices by 1 + λ, since
        # ∂/∂uᵢ of ‖uᵢ‖² vᵢᵀC vᵢ is 2uᵢ (VᵀCV)ᵢᵢ, and ∂/∂vᵢ is 2C vᵢ (UᵀU)ᵢᵢ.
        left, right = weights
        inward = self.problem.through_inputs(right)
        outer, inner = left.mT @ left, right.mT @ inward
        cross = self.problem.cross
        on_left = left @ self._loaded(inner) - cross @ right
        on_right = inward @ self._loaded(outer) - cross.mT @ left
        return Weights(2 * on_left, 2 * on_right)

    def hessian_product(self, weights: Weights, direction: Weights) -> Weights:
        """Return the Hessian of the expected dropout loss at `weights` times a direction."""
        # The derivative of the gradient U·D(VᵀCV) − E[yxᵀ]V along (Z_U, Z_V), by the product
        # rule; D(G) = G + λ diag(G) is linear, so the change of a Gram matrix VᵀCV, which is
        # VᵀCZ_V + (VᵀCZ_V)ᵀ, passes through D like the matrix itself. The other part is the same
        # with U and V exchanged.
        (left, right), (turn_left, turn_right) = weights, direction
        inward, turn_inward = map(self.problem.through_inputs, (right, turn_right))
        outer, inner = left.mT @ left, right.mT @ inward
        inner_change, outer_change = right.mT @ turn_inward, left.mT @ turn_left
        cross = self.problem.cross
        on_left = (
            turn_left @ self._loaded(inner)
            + left @ self._loaded(inner_change + inner_change.mT)
            - cross @ turn_right
        )
        on_right = (
            turn_inward @ self._loaded(outer)
            + inward @ self._loaded(outer_change + outer_change.mT)
            - cross.mT @ turn_left
        )
        return Weights(2 * on_left, 2 * on_right)

    def tied_value(self, factor: Array) -> Array:
        """Return f(U, U); for white inputs, Mianjy et al. 2018, Problem 4."""
        return self.value(Weights(factor, factor))

    def tied_gradient(self, factor: Array) -> Array:
        """Return the gradient of f(U, U)."""
        on_left, on_right = self.gradient(Weights(factor, factor))
        return on_left + on_right

    def tied_hessian_product(self, factor: Array, direction: Array) -> Array:
        """Return the Hessian of f(U, U) times a direction."""
        on_left, on_right = self.hessian_product(
            Weights(factor, factor), Weights(direction, direction)
        )
        return on_left + on_right

    def stationarity(self, weights: Weights) -> Array:
        """Return the norm of the gradient divided by 2‖E[yxᵀ]‖ ‖(U, V)‖.

        It is about 1 at a small random start, 0 at a critical point.
        """
        return self._relative(self.gradient(weights), weights, 2.0)

    def tied_stationarity(self, factor: Array) -> Array:
        """Return the norm of the tied gradient divided by 4‖E[yxᵀ]‖ ‖U‖."""
        return self._relative((self.tied_gradient(factor),), (factor,), 4.0)

    def _relative(self, slope: Sequence[Array], point: Sequence[Array], factor: float) -> Array:
        """Return ‖slope‖ / (factor · ‖E[yxᵀ]‖ · ‖point‖).

        The gradient is divided first: its square would overflow for outputs beyond 1e100.
        """
        top = largest(self.problem.cross)
        size = top * float(squared_norm(self.problem.cross / top)) ** 0.5 if top > 0 else 1.0
        steepness = sum(squared_norm(part / size) for part in slope)
        length = sum(squared_norm(part) for part in point)
        xp = namespace(length)
        scale = factor * xp.sqrt(xp.where(length > 0, length, xp.ones_like(length)))
        return xp.sqrt(steepness) / (scale if top > 0 else xp.ones_like(scale))

    def _loaded(self, gram: Array) -> Array:
        """Return G + λ diag(G), the mean Gram matrix of units that are masked and rescaled."""
        strength = self.strength[..., None] if is_array(self.strength) else self.strength
        return add_diagonal(gram, strength * diagonal(gram))


def draw_masks(rng: np.random.RandomState, shape: tuple[int, ...], keep: Array) -> Array:
    """Return random masks of zeros and ones; `keep` is the probability of a one."""
    uniform = like(rng.random_sample(shape), keep)
    return namespace(keep).astype(uniform < keep, keep.dtype)


def sampled_gradient(weights: Weights, X: Array, Y: Array, masks: Array, keep: Any) -> Weights:
    """Return the gradient of the dropout loss of a batch for given masks of the hidden units.

    The loss is the mean over rows of ‖y − U diag(b) Vᵀx / θ‖², with the mask b of a row and the
    probability θ of keeping a unit (Mianjy et al. 2018, eq. 1). Their Algorithm 1 steps along θ/2
    times this gradient, because its update does not rescale the factor that is propagated back; see
    `paper_direction`.
    """
    gates = masks / keep
    hidden = (X @ weights.right) * gates
    residual = hidden @ weights.left.mT - Y
    scale = 2.0 / X.shape[-2]
    on_left = residual.mT @ hidden
    on_right = X.mT @ ((residual @ weights.left) * gates)
    return Weights(scale * on_left, scale * on_right)


def paper_direction(weights: Weights, X: Array, Y: Array, masks: Array, keep: Any) -> Weights:
    """Return what Mianjy et al. 2018, Algorithm 1 subtracts: θ/2 times `sampled_gradient`."""
    exact = sampled_gradient(weights, X, Y, masks, keep)
    return Weights(exact.left * (keep / 2), exact.right * (keep / 2))


def shared_direction(direction: Callable[..., Weights]) -> Callable[..., Weights]:
    """Return a function for tied weights that adds the directions of both layers."""

    def shared(*arguments: Any) -> Weights:
        both = sum(direction(*arguments))
        return Weights(both, both)

    return shared


RANGE_FACTOR = 10.0
"""Eigenvalues of the second moment C of the d₂ inputs (or of the Gram matrix of d₂ rows) count as
zero below RANGE_FACTOR · d₂ · ε times the largest: in directions in which the inputs are constant,
rounding errors are as large."""


CONDITION = 1e6
"""Condition number of the second moment C of the inputs above which its eigendecomposition is not
accurate enough. At this number the relative error of the least-squares map is about
CONDITION · ε = 2e-10, far below the relative error of 1e-6 in the loss that certificates allow."""


GRAM_CONDITION = 1e4
"""Largest condition number of the second moment of the inputs, on their range, for which the Gram
matrix of the rows is decomposed instead of the rows; the relative error is then about 1e-12."""


@dataclass(frozen=True, slots=True, eq=False)
class Whitened:
    """A problem for white inputs x', and the map from weights for x' to weights for x."""

    matrix: Array  # (d1, q): the least-squares map M from x' to y; q is the rank of C
    lift: Array | RowLift | None  # (d2, q): whitening matrix B, V = BV'; None if x is white already
    floor: float  # E‖y‖² − ‖M‖², the loss of least squares


def whiten(problem: LinearProblem | WideRows, ridge: float = 0.0) -> Whitened:
    """Return a problem with its inputs transformed so that their second moment is the identity.

    Its loss contains the `ridge` penalty ρ‖UVᵀ‖². ρ‖B‖² is the squared error of coefficients B on
    the additional inputs √ρ e₁, √ρ e₂, … with the outputs zero. C becomes C + ρI, and E[yxᵀ] does
    not change, so that everything known about least squares and dropout holds for the new problem:
    with dropout the units are dropped for these inputs too.

    An entry cᵢⱼ of C has an error of the order ε√(cᵢᵢcⱼⱼ). For inputs that are divided by their
    standard deviations D all errors have the same size, so that an input of small scale is as
    accurate as one of large scale. Directions in which the inputs do not vary are removed; a
    constant input has the weight zero.
    """
    if isinstance(problem, WideRows):
        return problem.whiten(ridge)
    inputs, root = problem.inputs, problem.root
    if inputs is None:
        return Whitened(problem.cross, None, 0.0)
    xp, size, varies = namespace(inputs), inputs.shape[0], diagonal(inputs) > 0
    if ridge > 0.0:  # constant inputs have zero coefficients in any case
        added = ridge * xp.astype(varies, inputs.dtype)
        inputs = add_diagonal(inputs, added)
        if root is not None:
            root = stacked(root, eye_like(root.shape[1], root)[:size, :] * xp.sqrt(added)[:, None])
    squares = diagonal(inputs)
    deviations = where_set(xp.sqrt(xp.clip(squares, 0.0, None)), ~varies, 1.0)
    noise = RANGE_FACTOR * size * machine_epsilon(squares)
    # 1) C = D W S² Wᵀ D, from C itself or from the factor F_x = P S Wᵀ D of the rows
    if root is None:
        variances, W = eigh_descending(inputs / (deviations[:, None] * deviations))
        scales, noise = xp.sqrt(xp.clip(variances, 0.0, None)), noise**0.5
    else:
        P, scales, Wt = svd_thin(root[:, :size] / deviations)
        W = Wt.mT
    # 2) the range of C; constant inputs get exact zeros, whatever their units
    level = max(noise * largest(scales[:1]), problem.resolution)
    count = max(int(xp.sum(xp.astype(scales > level, xp.int64))), 1)
    scales = where_set(scales, scales <= level, 0.0)[:count]
    W = W[:, :count] * xp.astype(varies, W.dtype)[:, None]
    # 3) the whitening matrix B = D⁻¹WS⁻¹, for which BᵀCB = I. Incoming weights are products with B
    # and must be zero outside of the range of C, that of DWS, if C is singular.
    lift = W / where_set(scales, scales == 0, 1.0) / deviations[:, None]
    if count < size:
        basis = (
            xp.linalg.qr(deviations[:, None] * W * scales)[0] * xp.astype(varies, W.dtype)[:, None]
        )
        lift = basis @ (basis.mT @ lift)
    # 4) M = E[yxᵀ]B = F_yᵀP; outside of the range E[yxᵀ] is zero, so that nothing is lost
    if root is None:
        matrix = problem.cross @ lift
        floor = max(problem.energy - float(squared_norm(matrix)), 0.0)
    else:
        P = P[:, :count] * xp.astype(scales > 0, scales.dtype)
        matrix = root[:, size:].mT @ P
        floor = float(squared_norm(root[:, size:] - P @ matrix.mT))
    return Whitened(matrix, lift, floor)


BLOCK_ROWS = 16_384
"""Number of rows of which X and Y are joined at a time, so that a large X is never copied whole."""

ROOT_ROWS = 4096
"""Number of rows that are factorised at a time, or twice the number of columns if that is more."""

LARGEST_ENTRY = 1e150
"""Largest entry of y that is accepted: the sum of the squares of larger ones may overflow."""


def rows_problem(
    X: Any,
    Y: Any,
    weights: Array | None,
    *,
    centered: bool,
    moment: SecondMoment | None = None,
) -> tuple[LinearProblem | WideRows, SecondMoment | RowMean]:
    """Return the problem of predicting Y from X, and the moment or mean of rows [x | y].

    With fewer rows than features the second moment is not formed. If that of the inputs is
    ill-conditioned, the rows are factorised. `moment` is the moment of [X | Y], if it is known.
    """
    if is_wide(X):
        return WideRows.of(X, Y, weights, centered=centered)
    moment = joint_moment(X, Y, weights) if moment is None else moment
    precision = machine_epsilon(reference_array(X))
    problem = LinearProblem.from_moment(moment, X.shape[1], centered=centered, precision=precision)
    if is_ill_conditioned(problem):
        root = row_root(X, Y, weights, moment, centered=centered)
        problem = replace(problem, root=root)
    return problem, moment


def is_ill_conditioned(problem: LinearProblem) -> bool:
    """Tell whether the condition number of E[xxᵀ] exceeds `CONDITION`."""
    variances = namespace(problem.inputs).linalg.eigvalsh(problem.inputs)
    return not float(variances[0]) * CONDITION >= float(variances[-1])


def joint_moment(X: Any, Y: Array | None, weights: Array | None = None) -> SecondMoment:
    """Return the second moment of the rows of [X | Y], or of X; a sparse X stays sparse."""
    if Y is None:
        return SecondMoment.of(X, weights)
    moment = None
    for start in range(0, X.shape[0], BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        part = None if weights is None else weights[rows]
        if part is None or bool(namespace(part).any(part > 0)):  # otherwise there is no mean
            block = SecondMoment._of_rows(_joined(X, Y, rows), part)
            moment = block if moment is None else moment.merge(block)
    assert moment is not None
    # `SecondMoment` itself tests only the sum over all columns, in which one may be negligible.
    _refuse_underflow(diagonal(moment.squares), moment.mean, X.shape[1])
    return moment


def _joined(X: Any, Y: Array, rows: slice) -> Any:
    """Return the given rows of [X | Y], sparse if X is, in the wider dtype of the two."""
    if scipy.sparse.issparse(X):
        parts = [X[rows].astype(np.float64), scipy.sparse.csr_array(Y[rows])]
        return scipy.sparse.hstack(parts, format="csr")
    inputs, outputs = X[rows, :], beside(Y[rows, :], X)
    if inputs.dtype != outputs.dtype:  # a target in float64 keeps its digits beside float32 inputs
        inputs, outputs = as_double(inputs), as_double(outputs)
    return namespace(X).concat([inputs, outputs], axis=1)


def checked_targets(X: Any, y: Any) -> tuple[Array, bool]:
    """Return the targets y as finite columns in the array library of X, and whether y was flat.

    There must be one row per row of X.
    """
    if y is None:
        raise ValueError("a regression requires y to be passed, but the target y is None.")
    Y = check_rows(y, name="y", every_column=True, flat=True)
    Y = Y if scipy.sparse.issparse(X) else beside(Y, X)
    check_row_count(X, Y)
    _refuse_overflow(Y)
    return Y, len(y.shape if hasattr(y, "shape") else np.asarray(y).shape) == 1


def _refuse_overflow(Y: Array) -> None:
    """Raise an error if the squares of targets overflow."""
    if largest(Y) > LARGEST_ENTRY:
        raise ValueError(
            f"the squares of y overflow double precision: its largest entry is {largest(Y):.3g}, "
            f"expected at most {LARGEST_ENTRY:g}. Divide y by a constant first."
        )


def _refuse_underflow(squares: Array, mean: Array, n_features: int) -> None:
    """Raise an error if a column is not constant, but its sum of squares underflows."""
    sizes, center = np.sqrt(np.clip(to_numpy(squares), 0.0, None)), np.abs(to_numpy(mean))
    varies = (sizes > 1e-15 * center) | ((center > 0) & (center < SMALLEST_ENERGY**0.5))
    for column in np.flatnonzero(varies & (sizes**2 < SMALLEST_ENERGY)):
        name = f"column {column} of X" if column < n_features else "y"
        raise ValueError(
            f"the squares of {name} underflow double precision. Multiply it by a constant first."
        )


def row_root(
    X: Any, Y: Array, weights: Array | None, moment: SecondMoment, *, centered: bool
) -> Array:
    """Return the triangular factor F of the rows [x | y], for which FᵀF is their second moment.

    Blocks of rows are joined to the factor of the rows before them and factorised again, so that
    only one block is dense at a time. The mean is the sum of two vectors, which are subtracted one
    after the other to preserve deviations that are far smaller than the mean.
    """
    size = moment.n_features
    step = max(ROOT_ROWS, 2 * size)
    total = None
    for start in range(0, X.shape[0], step):
        joined = _joined(X, Y, slice(start, start + step))
        rows = centred_block(joined, moment.center * float(centered))
        rows = rows - moment.offset if centered else rows
        if weights is not None:
            own = like(weights[start : start + step], rows)
            rows = rows * namespace(rows).sqrt(own)[:, None]
        total = stacked(total, rows / moment.weight**0.5)
    return total * varying(diagonal(moment.covariance), moment.mean) if centered else total


def take(values: Any, indices: np.ndarray[Any, Any]) -> Any:
    """Return the rows with the given indices of an array or of a sparse matrix."""
    if scipy.sparse.issparse(values):
        return values[indices]
    xp = namespace(values)
    return xp.take(values, xp.asarray(indices, device=device(values)), axis=0)


def is_wide(X: Any) -> bool:
    """Tell whether a regression works on rows instead of on their second moment."""
    return bool(X.shape[0] < X.shape[1] and X.shape[1] > STORED_FEATURES)


@dataclass(frozen=True, eq=False)
class RowMean:
    """Mean of rows whose second moment is not stored."""

    weight: float  # sum of the weights of the rows
    center: Array  # (m,): two vectors whose sum is the mean
    offset: Array

    @property
    def mean(self) -> Array:
        """Weighted mean of the rows, shape (m,)."""
        return self.center + self.offset

    @property
    def n_features(self) -> int:
        """Number m of features, the entries of a row."""
        return int(self.center.shape[0])

    def merge(self, other: Any) -> Any:
        """Raise an error: a fit without the second moment cannot continue with other rows."""
        del other
        raise ValueError(
            f"fit does not store the second moment of {self.n_features} features, so partial_fit "
            "cannot continue from it. Start a new estimator and give all batches to partial_fit."
        )


@dataclass(frozen=True, eq=False)
class WideRows:
    """The problem of predicting outputs B from rows A (n × m) with more features than rows.

    Both are centred and multiplied by the square roots of the shares of the rows in the total
    weight, and AAᵀ = PS²Pᵀ. Neither AᵀA nor A are formed, so that sparse rows stay sparse.
    """

    rows: Any  # (n, m)
    mean: Array  # (m,): A = diag(roots)(rows − mean)
    roots: Array  # (n,): square roots of the shares
    varies: Array  # (m,): 1 for each column that varies, 0 for the others, which get zero weights
    left: Array  # (n, q): P, with the rank q of the rows
    squares: Array  # (q,): S²
    outputs: Array  # (n, d1): B

    @classmethod
    def of(
        cls, X: Any, Y: Any, weights: Array | None, *, centered: bool
    ) -> tuple[WideRows, RowMean]:
        """Return the problem, and the mean of the rows [x | y]."""
        m = X.shape[1]
        Y = as_double(Y)
        Y = to_numpy(Y) if scipy.sparse.issparse(X) else Y
        if weights is not None:
            positive = np.flatnonzero(to_numpy(weights) > 0)
            X, Y, weights = (take(part, positive) for part in (X, Y, weights))
        rows, targets = RowOperator.of(X, weights), RowOperator.of(Y, weights)
        xp, weight = namespace(rows.mean), rows.weight
        mean, variances = (
            xp.concat(both) for both in zip(rows._statistics, targets._statistics, strict=True)
        )
        squares = variances if centered else variances + mean * mean
        _refuse_underflow(squares * weight, mean, m)
        varies = xp.astype((varying(variances, mean) if centered else squares) > 0, mean.dtype)
        # 1) The Gram matrix of the rows and the outputs, about the mean or about zero, where
        # ⟨x, z⟩ = ⟨x − μ, z − μ⟩ + ⟨x, μ⟩ + ⟨z, μ⟩ − ⟨μ, μ⟩ for the mean μ.
        roots, gram = xp.sqrt(rows.shares), rows.gram()
        (data, center), outputs = rows.products, centred_block(*targets.products)
        if not centered:
            along = as_double(X) @ rows.mean - rows.mean @ rows.mean / 2
            gram = gram + (along[:, None] + along) * (roots[:, None] * roots)
            data, center, outputs = X, 0.0 * center, Y
        outputs = outputs * roots[:, None] * varies[m:]
        # 2) P and S², from the rows themselves if their squares have too few digits
        squares, P = eigh_descending(gram)
        level = RANGE_FACTOR * len(roots) * machine_epsilon(squares)
        least = squares > level * squares[0]
        if rows.can_factor and bool(xp.any(least & (squares < squares[0] / GRAM_CONDITION))):
            dense = centred_block(data, center) * roots[:, None]
            P, scales, _ = svd_thin(stacked(None, dense.mT).mT)
            squares, level = scales * scales, level * level
        count = int(xp.sum(xp.astype(squares > level * squares[0], xp.int64)))
        if not count or not bool(xp.any(varies[:m] > 0)):
            P, squares, count = 0.0 * P, xp.ones_like(squares), 1
        found = cls(data, center, roots, varies[:m], P[:, :count], squares[:count], outputs)
        return found, RowMean(weight, mean, 0.0 * mean)

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of outputs and inputs."""
        return int(self.outputs.shape[1]), int(self.varies.shape[0])

    def whiten(self, ridge: float) -> Whitened:
        """Return the problem for white inputs, with the ridge penalty ρ.

        The columns of W = AᵀPS⁻¹ are orthonormal, and C = W(S² + ρ)Wᵀ on the span of the rows. So
        the whitening matrix is W(S² + ρ)^-½, and M = BᵀPS(S² + ρ)^-½.
        """
        xp, loaded = namespace(self.squares), self.squares + ridge
        codes = self.outputs.mT @ self.left
        outside = self.outputs - self.left @ codes.mT
        matrix = codes * xp.sqrt(self.squares / loaded)
        floor = squared_norm(outside) + xp.sum(codes * codes * (ridge / loaded))
        lift = RowLift(self, self.left / xp.sqrt(self.squares) / xp.sqrt(loaded))
        return Whitened(matrix, lift, float(floor))


@dataclass(frozen=True, eq=False)
class RowLift:
    """The matrix Aᵀ Z (m × q), of which only the rows A and the matrix Z (n × q) are stored."""

    of: WideRows
    codes: Array

    def __matmul__(self, right: Array) -> Array:
        """Return AᵀZ times a matrix."""
        codes = (self.codes @ right) * self.of.roots[:, None]
        sums = namespace(codes).sum(codes, axis=0)
        rows = self.of.rows if scipy.sparse.issparse(self.of.rows) else as_double(self.of.rows)
        return (rows.T @ codes - self.of.mean[:, None] * sums) * self.of.varies[:, None]


class Passed(NamedTuple):
    """What remains of rows that have passed: their second moment, and a sketch to test it."""

    moment: SecondMoment
    sketch: Sketch | None  # of the rows divided by `scales`; None if some rows were not seen
    scales: Any  # (p,): powers of two

    def merge(self, other: Passed) -> Passed:
        """Return what remains of the rows of both, those of `other` after those of this one."""
        sketch = self.sketch and other.sketch and self.sketch.merge(other.sketch)
        return Passed(self.moment.merge(other.moment), sketch, other.scales)


def sketch_scales(X: Any, Y: Any, *, centered: bool = True) -> Any:
    """Return the units of the columns in which rows [x | y] are sketched.

    Inputs of a regression are whitened, so that columns of small scale count as much as others. The
    loss of an autoencoder, whose outputs are its inputs, is in their own units.
    """
    return np.ones(X.shape[1]) if Y is None else column_scales(X, Y, centered=centered)


@dataclass
class PassedLeaf:
    """Function that returns what remains of a block of rows.

    The units of the columns are those of the first block, unless the blocks are summarised in
    parallel: sketches in different units cannot be joined.
    """

    scales: Any = None

    def __call__(self, rows: Any, targets: Any, weights: Any) -> Passed:
        """Return the moment and the sketch of one block."""
        if targets is not None:
            _refuse_overflow(targets)
        moment = joint_moment(rows, targets, weights)  # refuses rows that are not finite
        if self.scales is None:
            self.scales = sketch_scales(rows, targets)
        sketch = sketch_pairs(rows, targets, weights, self.scales)
        return Passed(moment, sketch, self.scales)


def read_passed(
    data: AlignedBlocks, start: SecondMoment | None = None, *, verbose: bool | str
) -> Passed:
    """Return the second moment of data that are read in blocks, and the sketch of their rows."""
    leaf = PassedLeaf()
    if hasattr(data, "fold"):  # in parallel
        n_targets = 0 if data.targets is None else data.targets.n_features
        leaf = PassedLeaf(np.ones(data.rows.n_features + n_targets))
    before = None if start is None else Passed(start, None, None)
    found: Passed | None = fold(data, leaf, Passed.merge, start=before, verbose=verbose)
    if found is None:
        raise nothing_read(data)
    return found
