"""The expected dropout loss by plain formulas, its Hessian by differences, and a descent on it.

The verifier uses these functions in place of those of the solver, with which they share no code.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from scipy.optimize import minimize
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

Matrix = np.ndarray[Any, Any]

DENSE = 400
"""Up to this number of weights the Hessian is formed as a matrix and its smallest eigenvalue is
always computed."""

MOST_WEIGHTS = 20_000
"""Between `DENSE` and this number of weights the smallest eigenvalue of the Hessian is computed by
Lanczos iteration, unless the loss already shows that the weights are optimal. For more weights it
is not computed."""

PERTURBATION = 1e-2
"""Size of the random step with which a descent leaves the given weights, relative to the size of
the optimal weights. The step is needed because the gradient is zero at a saddle."""

DESCENT_WORK = 4e9
"""Number of floating point operations after which a descent stops, a few seconds' work."""

FEW_WEIGHTS = 2000
"""Up to this number of weights `decrease` also descends from random weights."""

_DIRECTION = "lucidae.dropout.smallest_curvature returns the direction of smallest curvature."


class Slope(NamedTuple):
    """The expected dropout loss and its gradient as functions of one vector of all weights."""

    cross: Matrix  # (d₁, d₂): second moment E[yxᵀ] of outputs y and inputs x
    inputs: Matrix | None  # (d₂, d₂): second moment E[xxᵀ] of the inputs; None for the identity
    strength: float  # strength λ = dropout / (1 − dropout) of dropout
    tied: bool  # whether both layers share their weights
    point: Matrix  # the weights that are examined: U and V (tied: U alone), flattened and joined
    shapes: tuple[int, int, int]  # (d₁, d₂, r), the numbers of outputs, inputs and hidden units

    @property
    def size(self) -> float:
        """Typical size of the Hessian of the loss: ‖E[yxᵀ]‖, or 1 if it is zero."""
        return float(np.linalg.norm(self.cross)) or 1.0

    def _layers(self, flat: Matrix) -> tuple[Matrix, Matrix]:
        """Return U and V from one vector that joins them; leading batch axes are allowed."""
        outputs, features, width = self.shapes
        stack = flat.shape[:-1]
        U = flat[..., : outputs * width].reshape(*stack, outputs, width)
        if self.tied:
            return U, U
        return U, flat[..., outputs * width :].reshape(*stack, features, width)

    def value(self, flat: Matrix) -> float:
        """Return the expected dropout loss minus E‖y‖²."""
        U, V = self._layers(flat)
        seen = V if self.inputs is None else self.inputs @ V
        fitted = ((U.T @ U) * (V.T @ seen)).sum() - 2 * (U * (self.cross @ V)).sum()
        return float(fitted + self.strength * (U**2).sum(axis=0) @ (V * seen).sum(axis=0))

    def __call__(self, flat: Matrix) -> Matrix:
        """Return the gradient of the expected dropout loss; leading batch axes are allowed."""
        U, V = self._layers(flat)
        stack = flat.shape[:-1]
        seen = V if self.inputs is None else self.inputs @ V
        outgoing = (U**2).sum(axis=-2, keepdims=True)
        incoming = (V * seen).sum(axis=-2, keepdims=True)
        residual = U @ V.swapaxes(-1, -2)
        through = residual if self.inputs is None else residual @ self.inputs
        # With E = UVᵀC − E[yxᵀ] and C = E[xxᵀ] the gradients of the loss are 2EV and 2EᵀU.
        error = through - self.cross
        on_left = 2 * (error @ V + self.strength * U * incoming)
        on_right = 2 * (error.swapaxes(-1, -2) @ U + self.strength * seen * outgoing)
        if self.tied:
            return np.asarray((on_left + on_right).reshape(*stack, -1))
        flats = [part.reshape(*stack, -1) for part in (on_left, on_right)]
        return np.concatenate(flats, axis=-1)

    def curvature_along(self, directions: Matrix) -> Matrix:
        """Return the products of the Hessian at `point` with directions (last axis).

        The gradient g is a polynomial of degree three. Its difference quotient of fourth order,
        (8(g(h) − g(−h)) − (g(2h) − g(−2h)))/12h, is therefore exact for every step h. A step of the
        size of the optimal weights has the smallest rounding errors.
        """
        lengths = np.linalg.norm(directions, axis=-1, keepdims=True)
        step = math.sqrt(self.size) / np.where(lengths > 0, lengths, 1.0)
        near, far = step * directions, 2 * step * directions
        at = self.point
        first, second = self(at + near) - self(at - near), self(at + far) - self(at - far)
        return np.asarray((8 * first - second) / (12 * step))


def smallest_curvature(
    slope: Slope, stationarity: float, level: float, optimal: bool
) -> tuple[float | None, str]:
    """Return the smallest eigenvalue of the Hessian, relative to its size, and a sentence on it.

    It is measured at critical points only.
    """
    size = len(slope.point)
    if stationarity > level:
        return None, "Not measured: the gradient is not zero, so this is not a critical point."
    if size > MOST_WEIGHTS:
        return None, f"Not measured: the network has more than {MOST_WEIGHTS} weights."
    if size <= DENSE:
        hessian = slope.curvature_along(np.eye(size))
        smallest = float(scipy.linalg.eigvalsh((hessian + hessian.T) / 2)[0])
    elif optimal:
        return None, f"Not measured: the loss is minimal and there are more than {DENSE} weights."
    else:
        smallest = _lanczos(slope)
        if math.isnan(smallest):
            return None, "Not measured: the Lanczos iteration did not converge."
    return smallest / slope.size, _DIRECTION


def _lanczos(slope: Slope) -> float:
    """Return the Hessian's smallest eigenvalue by Lanczos iteration; NaN if that fails.

    The Hessian is shifted by twice its typical size, so that the relative tolerance refers to that
    size: the eigenvalues zero, which belong to rotations of the hidden layer, would not converge.
    """
    size, shift = len(slope.point), 2 * slope.size

    def shifted(vector: Matrix) -> Matrix:
        flat = np.asarray(vector).reshape(-1)
        return slope.curvature_along(flat) + shift * flat

    operator = LinearOperator((size, size), matvec=shifted, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(size)
    try:
        values = eigsh(
            operator,
            k=1,
            which="SA",
            v0=start,
            tol=1e-4,
            maxiter=20 * size,
            return_eigenvectors=False,
        )
    except ArpackError:
        return math.nan
    return float(values[0]) - shift


def decrease(slope: Slope) -> float:
    """Return the loss at `slope.point` minus the smallest loss that L-BFGS finds: zero or more.

    It starts at the point, moved by a small random step that leaves a saddle; for small networks
    also at random weights. A positive result proves that the point is not a global minimum; zero
    proves nothing.
    """
    outputs, features, width = slope.shapes
    rng, size = np.random.default_rng(0), len(slope.point)
    typical = math.sqrt(slope.size / max(outputs, features))
    noise = rng.standard_normal((4, size))
    starts = [slope.point + PERTURBATION * typical * noise[0]]
    if size <= FEW_WEIGHTS:
        starts += list(0.5 * typical * noise[1:])
    work = 4.0 * max(outputs, features) ** 2 * (width + features)
    steps = int(np.clip(DESCENT_WORK / work / len(starts), 5, 500))
    options = {"maxiter": steps, "maxfun": 2 * steps, "ftol": 0.0, "gtol": 1e-9}
    with np.errstate(over="ignore", invalid="ignore"):
        found = [
            minimize(slope.value, start, jac=slope, method="L-BFGS-B", options=options).fun
            for start in starts
        ]
    here = slope.value(slope.point)
    return max(here - float(np.nanmin([*found, here])), 0.0)
