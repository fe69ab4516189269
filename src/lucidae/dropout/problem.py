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
F_yᵀP and the whitening matrix B = WS⁻¹ (x' = Bᵀx), with errors of the order ε·√cond(C).
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
    diagonal,
    eigh_descending,
    eye_like,
    is_array,
    is_numpy,
    largest,
    like,
    machine_epsilon,
    namespace,
    scalar,
    squared_norm,
    squared_norms,
    svd_thin,
    to_numpy,
    trace,
    where_set,
)
from lucidae.moments import SecondMoment
from lucidae.validation import check_rows


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
        C = E[x xᵀ]. None with a `root` means that C is not formed, because there are fewer rows
        than features; None without one means the identity, the white inputs of Mianjy et al. 2018.
    energy : float
        E‖y‖², the mean squared norm of the outputs.
    root : array of shape (k, d2 + d1), optional
        Triangular factor F of a QR factorisation of the rows, with FᵀF = E[(x, y)(x, y)ᵀ]. Its
        condition number is the square root of that of the moment, so it is given if C is
        ill-conditioned. It may be the k centred and scaled rows themselves.
    outputs : array of shape (d1, d1), optional
        E[y yᵀ]; None if y is x itself or a matrix was given.
    n_rows : float, optional
        Number of rows, minus one if their mean was subtracted; None if a matrix was given.
    resolution : float, default=0.0
        Standard deviation of the standardised inputs below which a direction counts as constant,
        because the inputs were rounded to single precision (`resolved`). Directions that
        double precision does not resolve count as constant in any case.
    rows : WideRows, optional
        The centred and scaled rows, instead of `inputs` and `root`, if they have very many
        features; only products with them are computed.

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
    rows: WideRows | None = None

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
        return cls(checked, None, _checked_energy(checked))

    @classmethod
    def from_moment(
        cls,
        moment: SecondMoment,
        n_features: int,
        *,
        centered: bool = True,
        root: Array | None = None,
    ) -> Self:
        """Return the problem of rows [x | y] from their `SecondMoment`.

        If `centered`, the mean is subtracted: optimal biases of both layers remove the means of the
        hidden units and of the outputs.
        """
        second = _second(moment, centered)
        outputs = second[n_features:, n_features:]
        return cls(
            second[n_features:, :n_features],
            second[:n_features, :n_features],
            scalar(trace(outputs)),
            root,
            outputs,
            moment.weight - centered,
        )

    @classmethod
    def from_root(cls, root: Array, n_features: int, n_rows: float | None = None) -> Self:
        """Return the problem of few rows [x | y] with many features, without E[xxᵀ].

        `root` is a matrix F with FᵀF = E[(x, y)(x, y)ᵀ], such as the centred rows divided by the
        square root of their number.
        """
        inward, outward = root[:, :n_features], root[:, n_features:]
        outputs = outward.mT @ outward
        energy = scalar(trace(outputs))
        return cls(outward.mT @ inward, None, energy, root, outputs, n_rows)

    @classmethod
    def from_rows(cls, rows: Any, n_features: int, n_rows: float | None = None) -> Self:
        """Return the problem of few rows, given as `WideRows` or as a matrix to be factorised."""
        if not isinstance(rows, WideRows):
            return cls.from_root(rows, n_features, n_rows)
        outputs = rows.outputs.mT @ rows.outputs
        energy = scalar(trace(outputs))
        cross = rows.back(rows.outputs).mT
        return cls(cross, None, energy, outputs=outputs, n_rows=n_rows, rows=rows)

    @classmethod
    def autoencoder(cls, moment: SecondMoment, *, centered: bool = True) -> Self:
        """Return the problem whose output is its input x, from the second moment of x."""
        second = _second(moment, centered)
        return cls(second, second, scalar(trace(second)), n_rows=moment.weight - centered)

    def through_inputs(self, right: Array) -> Array:
        """Return C V for incoming weights V."""
        if self.inputs is not None:
            return self.inputs @ right
        factor = self.factor
        if factor is None:
            return right
        return factor.back(factor.times(right)) + factor.ridge * right

    @property
    def factor(self) -> WideRows | None:
        """F_x and F_y with FᵀF = E[(x, y)(x, y)ᵀ]: the rows or the `root`, which is not squared."""
        if self.root is None:
            return self.rows
        size = self.cross.shape[1]
        return WideRows(self.root[:, size:], squares_of_columns(self), self.root[:, :size])


def _checked_energy(matrix: Array) -> float:
    """Return the squared Frobenius norm of a matrix; an overflow or underflow is an error."""
    with np.errstate(over="ignore", under="ignore"):
        energy = scalar(squared_norm(matrix))
    size = largest(matrix)
    if not math.isfinite(energy) or (energy < SMALLEST_ENERGY and size > 0):
        leaves = "overflow" if size > 1.0 else "underflow"
        change = "Divide" if size > 1.0 else "Multiply"
        raise ValueError(
            f"the squares of the matrix {leaves} double precision: its largest entry is "
            f"{size:.3g}. {change} the matrix by a constant first."
        )
    return energy


def _second(moment: SecondMoment, centered: bool) -> Array:
    """Return the second moment about the mean, with zeros for constant columns, or about zero."""
    mean, second = moment.mean, moment.covariance
    if centered:
        varies = varying(diagonal(second), mean)
        return second * varies[:, None] * varies[None, :]
    with np.errstate(over="ignore"):
        second = second + mean[:, None] * mean[None, :]
    if not math.isfinite(largest(second)):
        raise ValueError(
            "the squares of X overflow double precision: the largest entry of its mean is "
            f"{largest(mean):.3g}. Divide X (and y) by a constant first."
        )
    return second


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
        factor = self.problem.factor
        if factor is not None:
            return factor.loss(left, right)
        # E‖UVᵀx‖² = tr(UᵀU VᵀCV): two r × r matrices instead of one of size d₁ × d₂.
        inward = self.problem.through_inputs(right)
        fitted = trace((left.mT @ left) @ (right.mT @ inward))
        agreement = namespace(left).sum(left * (self.problem.cross @ right), axis=(-2, -1))
        return self.problem.energy - 2 * agreement + fitted

    def importance(self, weights: Weights) -> Array:
        """Return the importance score ‖uᵢ‖ √(vᵢᵀC vᵢ) of every hidden unit (section 6)."""
        xp = namespace(weights.left)
        factor = self.problem.factor
        if factor is not None:
            incoming = factor.incoming(weights.right)
        else:
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
        size = top * scalar(squared_norm(self.problem.cross / top)) ** 0.5 if top > 0 else 1.0
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


BLOCK = 256
"""Number of rows whose products with all rows are computed at a time."""


@dataclass(frozen=True, eq=False)
class WideRows:
    """Centred and weighted rows A (n × m) of inputs, with their outputs.

    Dense rows are stored as they are. Sparse rows are stored before centring; the mean is
    subtracted from products with them.
    """

    # (n, d1): the outputs, centred and multiplied by the same square roots as the rows
    outputs: Array
    squares: Array  # (m,): mean squares of the centred inputs: the diagonal of AᵀA
    dense: Array | None = None  # (n, m): the rows A; None if they are sparse
    # the entries, column numbers and row limits (CSR format) of the sparse rows S; None if the rows
    # are dense
    entries: tuple[Array, Array, Array] | None = None
    # (n,): square roots s of the shares of the rows in the total weight, of sparse rows
    shares: Array | None = None
    # (m,): mean μ of sparse rows, so that A = S − sμᵀ; zeros if the rows are not centred
    mean: Array | None = None
    centered: bool = True  # whether the mean was subtracted
    ridge: float = 0.0  # ridge penalty ρ on the mean squared error

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers n of rows and m of features."""
        return int(self.outputs.shape[0]), int(self.squares.shape[0])

    @property
    def _sparse(self) -> Any:
        """The sparse rows before centring, which share memory with `entries`."""
        assert self.entries is not None
        return scipy.sparse.csr_array(self.entries, shape=self.shape)

    @property
    def cancelled(self) -> float:
        """Largest squared norm s² ‖μ‖² that centring subtracts from a sparse row.

        Entries of the Gram matrix have rounding errors relative to it.
        """
        if self.dense is not None:
            return 0.0
        shares, mean = np.asarray(self.shares), np.asarray(self.mean)
        return float(shares.max(initial=0.0)) ** 2 * float(mean @ mean)

    def times(self, right: Array) -> Array:
        """Return AV."""
        if self.dense is not None:
            return self.dense @ right
        return self._sparse @ right - np.multiply.outer(np.asarray(self.shares), self.mean @ right)

    def back(self, codes: Array) -> Array:
        """Return AᵀZ."""
        if self.dense is not None:
            return self.dense.mT @ codes
        return self._sparse.T @ codes - np.multiply.outer(
            np.asarray(self.mean), self.shares @ codes
        )

    def gram(self) -> Array:
        """Return the Gram matrix AAᵀ, shape (n, n)."""
        if self.dense is not None:
            return self.dense @ self.dense.mT
        rows, n = self._sparse, self.shape[0]
        turned = scipy.sparse.csc_array(rows.T)
        found = np.empty((n, n))
        for start in range(0, n, BLOCK):
            found[start : start + BLOCK] = (rows[start : start + BLOCK] @ turned).toarray()
        # (S − sμᵀ)(S − sμᵀ)ᵀ = SSᵀ − (Sμ)sᵀ − s(Sμ)ᵀ + ‖μ‖² ssᵀ
        shares, mean = np.asarray(self.shares), np.asarray(self.mean)
        half = rows @ mean - (mean @ mean) / 2 * shares
        found -= np.multiply.outer(half, shares)
        found -= np.multiply.outer(shares, half)
        return found

    def loss(self, left: Array, right: Array) -> Array:
        """Return E‖y − UVᵀx‖² + ρ‖UVᵀ‖² for weights U (`left`) and V (`right`)."""
        gram = (left.mT @ left) * (right.mT @ right)
        penalty = self.ridge * namespace(gram).sum(gram, axis=(-2, -1))
        return squared_norm(self.outputs - self.times(right) @ left.mT) + penalty

    def incoming(self, right: Array) -> Array:
        """Return vᵢᵀ(C + ρI)vᵢ for the columns vᵢ of V (`right`)."""
        return squared_norms(self.times(right), axis=-2) + self.ridge * squared_norms(
            right, axis=-2
        )

    def decomposed(self) -> tuple[Array, Array]:
        """Return P and S² of AAᵀ = PS²Pᵀ on the range of A; a zero column and 1 if A is zero."""
        squares, P = eigh_descending(self.gram())
        xp = namespace(squares)
        top = max(scalar(squares[0]), 0.0) + self.cancelled
        level = RANGE_FACTOR * self.shape[0] * machine_epsilon(squares) * top
        count = int(xp.sum(xp.astype(squares > level, xp.int64)))
        if count == 0:
            return 0.0 * P[:, :1], xp.ones_like(squares[:1])
        return P[:, :count], squares[:count]


@dataclass(frozen=True, eq=False)
class RowLift:
    """The matrix Aᵀ W (m × q), of which only the rows A and the matrix W (n × q) are stored."""

    rows: WideRows
    codes: Array

    def __matmul__(self, right: Array) -> Array:
        """Return AᵀWZ for a matrix Z (`right`)."""
        return self.rows.back(self.codes @ right)


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


def resolved(
    problem: LinearProblem, moment: Any, precision: float, *, centered: bool
) -> LinearProblem:
    """Return a problem with the standard deviation that rounding gives to constant inputs.

    The inputs are standardised. With the rounding unit ε of their dtype, an input of mean square q
    and standard deviation d has rounding errors of up to ε√q/(2d), so that no direction has more
    than ε/2 · √(Σ q/d²) by rounding alone; four times this is the `resolution`. It is 0 for double
    precision, whose rounding errors are those of the computation. `moment` is a `SecondMoment` or a
    `RowMean`.
    """
    if precision <= SINGLE:
        return problem
    squares = squares_of_columns(problem)
    mean = moment.mean[: squares.shape[0]] * float(centered)
    ratios = 1.0 + mean**2 / where_set(squares, squares <= 0, 1.0)
    sizes = where_set(ratios, squares <= 0, 0.0)
    found = 2.0 * precision * math.sqrt(scalar(namespace(sizes).sum(sizes)))
    return replace(problem, resolution=found)


def ridged(problem: LinearProblem, penalty: float) -> LinearProblem:
    """Return second moments whose loss contains the ridge penalty ρ‖UVᵀ‖².

    ρ‖B‖² is the squared error of coefficients B on the additional inputs √ρ e₁, √ρ e₂, … with the
    outputs zero. C becomes C + ρI, and E[yxᵀ] does not change, so that everything known about least
    squares and dropout holds for the new problem: with dropout the units are dropped for these
    inputs too. Constant inputs have zero coefficients in any case and get no additional row. If C
    is not formed, orthonormal directions that span the rows take the place of the unit vectors,
    because optimal coefficients are zero outside of their span.
    """
    if penalty == 0.0:
        return problem
    if problem.rows is not None:
        return replace(problem, rows=replace(problem.rows, ridge=penalty))
    root, inputs = problem.root, problem.inputs
    size = problem.cross.shape[1]
    xp = namespace(problem.cross)
    varies = xp.astype(squares_of_columns(problem) > 0, problem.cross.dtype)
    if root is not None:
        wide = inputs is None and root.shape[0] < size
        added = xp.linalg.qr(root[:, :size].mT)[0].mT if wide else eye_like(size, root)
        added = added * varies  # not even rounding errors, which standardised inputs would magnify
        outputs = xp.zeros_like(root[:1, size:]) + 0.0 * added[:, :1]
        root = xp.concat([root, xp.concat([penalty**0.5 * added, outputs], axis=1)], axis=0)
        root = root if wide else triangle(root)
    if inputs is not None:
        inputs = add_diagonal(inputs, penalty * varies)
    return replace(problem, inputs=inputs, root=root)


def triangle(rows: Array) -> Array:
    """Return the triangular factor R of the QR factorisation of `rows`."""
    if is_numpy(rows):
        return np.linalg.qr(rows, mode="r")
    return namespace(rows).linalg.qr(rows)[1]


def squares_of_columns(problem: LinearProblem) -> Array:
    """Return the mean square of each input."""
    if problem.rows is not None:
        return problem.rows.squares
    if problem.inputs is not None:
        return diagonal(problem.inputs)
    assert problem.root is not None
    return squared_norms(problem.root[:, : problem.cross.shape[1]], axis=-2)


@dataclass(frozen=True, slots=True, eq=False)
class Whitened:
    """A problem for white inputs x', and the maps between weights for x and for x'."""

    matrix: Array  # (d1, q): the least-squares map M from x' to y; q is the rank of C
    # (d2, q): the whitening matrix B, V = BV'; None if x is white already
    lift: Array | RowLift | None
    lower: Array | None  # (d2, q): L with C = LLᵀ, V' = LᵀV; None if only products are computed
    floor: float  # E‖y‖² − ‖M‖², the loss of least squares

    def raise_weights(self, weights: Weights) -> Weights:
        """Return weights for white inputs as weights for the original inputs."""
        if self.lift is None:
            return weights
        return Weights(weights.left, self.lift @ weights.right)


def whiten(problem: LinearProblem) -> Whitened:
    """Return a problem with its inputs transformed so that their second moment is the identity.

    An entry cᵢⱼ of C has an error of the order ε√(cᵢᵢcⱼⱼ). For inputs that are divided by their
    standard deviations D all errors have the same size, so that an input of small scale is as
    accurate as one of large scale. Directions in which the inputs do not vary are removed; a
    constant input has the weight zero.
    """
    if problem.rows is not None:
        return _whiten_wide(problem.rows)
    if problem.inputs is None and problem.root is None:
        return Whitened(problem.cross, None, None, 0.0)
    squares, root, size = squares_of_columns(problem), problem.root, problem.cross.shape[1]
    xp, varies = namespace(squares), squares > 0
    deviations = where_set(xp.sqrt(xp.clip(squares, 0.0, None)), ~varies, 1.0)
    noise = RANGE_FACTOR * size * machine_epsilon(squares)
    # 1) C = D W S² Wᵀ D, from C itself or from the factor F_x = P S Wᵀ D of the rows
    if root is None:
        variances, W = eigh_descending(problem.inputs / (deviations[:, None] * deviations))
        scales, noise = xp.sqrt(xp.clip(variances, 0.0, None)), noise**0.5
    else:
        P, scales, Wt = svd_thin(root[:, :size] / deviations)
        W = Wt.mT
    # 2) the range of C; constant inputs get exact zeros, whatever their units
    level = max(noise * largest(scales[:1]), problem.resolution)
    count = max(int(xp.sum(xp.astype(scales > level, xp.int64))), 1)
    scales = where_set(scales, scales <= level, 0.0)[:count]
    W = W[:, :count] * xp.astype(varies, W.dtype)[:, None]
    # 3) L = DWS and the whitening matrix B = D⁻¹WS⁻¹, for which BᵀCB = I and LᵀB = I. Incoming
    # weights are products with B and must be zero outside of the range of C, as C is singular.
    lower = deviations[:, None] * W * scales
    lift = W / where_set(scales, scales == 0, 1.0) / deviations[:, None]
    if count < size:
        basis = xp.linalg.qr(lower)[0] * xp.astype(varies, W.dtype)[:, None]
        lift = basis @ (basis.mT @ lift)
    # 4) M = E[yxᵀ]B = F_yᵀP; outside of the range E[yxᵀ] is zero, so that nothing is lost
    if root is None:
        matrix = problem.cross @ lift
        floor = max(problem.energy - scalar(squared_norm(matrix)), 0.0)
    else:
        P = P[:, :count] * xp.astype(scales > 0, scales.dtype)
        matrix = root[:, size:].mT @ P
        floor = scalar(squared_norm(root[:, size:] - P @ matrix.mT))
    return Whitened(matrix, lift, lower, floor)


def _whiten_wide(rows: WideRows) -> Whitened:
    """Return the problem for white inputs of few rows A with very many features.

    With AAᵀ = PS²Pᵀ and W = AᵀPS⁻¹, whose columns are orthonormal, C = W(S² + ρ)Wᵀ on the span of
    the rows, with the ridge penalty ρ. So B = W(S² + ρ)^-½, and the outputs Y give
    M = YᵀPS(S² + ρ)^-½.
    """
    P, squares = rows.decomposed()
    xp = namespace(squares)
    loaded = squares + rows.ridge
    codes = rows.outputs.mT @ P
    outside = rows.outputs - P @ codes.mT
    matrix = codes * xp.sqrt(squares / loaded)
    floor = scalar(squared_norm(outside)) + scalar(xp.sum(codes * codes * (rows.ridge / loaded)))
    return Whitened(matrix, RowLift(rows, P / xp.sqrt(squares) / xp.sqrt(loaded)), None, floor)
