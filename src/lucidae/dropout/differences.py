"""The expected dropout loss by plain formulas, its Hessian by differences, and a descent on it.

The verifier uses them in place of `lucidae.dropout.objectives` and `lucidae.dropout.landscape`,
with which they share no code.
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
"""The Hessian is formed as a matrix, and always measured, up to this number of weights."""

MOST_WEIGHTS = 20_000
"""Between `DENSE` and this number of weights the curvature is measured by Lanczos, where the gap
does not already show that the weights are optimal."""

PERTURBATION = 1e-2
"""Size of the random step with which a descent leaves the given weights, relative to that of the
optimal weights: a saddle has no gradient to follow."""

DESCENT_WORK = 4e9
"""Floating point operations after which a descent is given up: a few seconds."""

FEW_WEIGHTS = 2000
"""Up to this number of weights a descent is also tried from random starts."""


class Slope(NamedTuple):
    """Value and gradient of the expected dropout loss as functions of flat weights, and a point.

    Attributes
    ----------
    cross, inputs, strength, tied
        E[yxᵀ], E[xxᵀ] (None for the identity), the strength λ of dropout, and whether both layers
        share their weights.
    point : array
        The weights U and V (tied: U alone), flattened and joined.
    shapes : tuple
        (d₁, d₂, r), the numbers of outputs, inputs and hidden units.
    """

    cross: Matrix
    inputs: Matrix | None
    strength: float
    tied: bool
    point: Matrix
    shapes: tuple[int, int, int]

    @property
    def size(self) -> float:
        """‖E[yxᵀ]‖, the scale of the Hessian."""
        return float(np.linalg.norm(self.cross)) or 1.0

    def _layers(self, flat: Matrix) -> tuple[Matrix, Matrix]:
        """Return U and V of flat weights; leading axes are allowed."""
        outputs, features, width = self.shapes
        stack = flat.shape[:-1]
        U = flat[..., : outputs * width].reshape(*stack, outputs, width)
        if self.tied:
            return U, U
        return U, flat[..., outputs * width :].reshape(*stack, features, width)

    def value(self, flat: Matrix) -> float:
        """Return the loss at flat weights, less E‖y‖²."""
        U, V = self._layers(flat)
        seen = V if self.inputs is None else self.inputs @ V
        fitted = ((U.T @ U) * (V.T @ seen)).sum() - 2 * (U * (self.cross @ V)).sum()
        return float(fitted + self.strength * (U**2).sum(axis=0) @ (V * seen).sum(axis=0))

    def __call__(self, flat: Matrix) -> Matrix:
        """Return the gradient at flat weights; leading axes are allowed."""
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
        """Return the Hessian applied to directions (last axis).

        The gradient is a polynomial of degree three, for which the difference of fourth order
        (8(g(h) − g(−h)) − (g(2h) − g(−2h)))/12h is exact for every step h; a step of the size of
        the optimal weights has the smallest rounding errors.
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
    """Return the smallest eigenvalue of the Hessian relative to its scale, and a sentence.

    Parameters
    ----------
    slope : Slope
        The loss and the point.
    stationarity, level : float
        Relative norm of the gradient, and the largest one at which a point counts as critical.
    optimal : bool
        Whether the gap already shows that the point is a global minimum.

    Returns
    -------
    curvature : float or None
        None if it was not measured.
    reason : str
        Why it was not measured, or where to find the eigenvector.
    """
    size = len(slope.point)
    if stationarity > level:
        return None, "Not measured: the gradient does not vanish, so this is not a critical point."
    if size > MOST_WEIGHTS:
        return None, f"Not measured for networks of more than {MOST_WEIGHTS} weights."
    if size <= DENSE:
        hessian = slope.curvature_along(np.eye(size))
        smallest = float(scipy.linalg.eigvalsh((hessian + hessian.T) / 2)[0])
    elif optimal:
        return None, f"Not measured: the gap is zero and there are more than {DENSE} weights."
    else:
        smallest = _lanczos(slope)
        if math.isnan(smallest):
            return None, "Not measured: the Lanczos iteration did not converge."
    return smallest / slope.size, "lucidae.dropout.landscape.smallest_curvature has its direction."


def _lanczos(slope: Slope) -> float:
    """Return the smallest eigenvalue of the Hessian, NaN where the iteration does not converge.

    The Hessian is shifted by its scale, to which the tolerance of the iteration then refers;
    unshifted, the eigenvalue zero of the rotations of the hidden layer would never converge.
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
    """Return by how much L-BFGS from the point decreases the loss: zero or more.

    The first start is the point itself, moved by a small random step, from which a descent leaves
    a saddle; small networks are also started at random weights. Whatever it finds is a proof that
    the point is not a minimum; if it finds nothing, nothing is proved.
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
