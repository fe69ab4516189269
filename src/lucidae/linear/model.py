"""The fitted linear autoencoder: ordered latents, their variances, and the Gaussian model.

The Gaussian model is that of probabilistic PCA, from which likelihoods are computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import (
    Array,
    cholesky,
    diagonal,
    eigh_descending,
    machine_epsilon,
    namespace,
    scalar,
    solve_lower,
    where_set,
)
from lucidae.iteration import History, Status
from lucidae.linear.methods import Method
from lucidae.rows.covariances import TINY


@dataclass(frozen=True, slots=True)
class TrainedWeights:
    """The weights that a solver returned, and how the solver found them."""

    weights: Any  # encoder and decoder, latents in the order of training
    method: Method  # the training method
    status: Status  # how the solver ended
    n_iter: int  # number of steps; 1 for a closed form
    history: History  # the recorded loss; empty for a closed form
    learning_rate: float | None = None  # the step size; None for a closed form


@dataclass(frozen=True, slots=True)
class Model:
    """The fitted linear autoencoder as float64 arrays, for m features and k latents.

    The latents are in descending order of variance, and the entry of largest magnitude of each
    component is positive.
    """

    mean: Array  # (m,): mean of the training rows
    encoder: Array  # (k, m): rows of the encoder
    atoms: Array  # (k, m): columns of the decoder, as rows
    # (k, m): columns of the decoder scaled to unit length, as rows; 0 for zero latents
    components: Array
    # (k,): variance of the data along each component; the divisor is the total weight minus 1
    variances: Array
    code_deviations: Array  # (k,): standard deviation of each code; 1 for a code without variance
    total_variance: float  # trace of the covariance; the divisor is the total weight minus 1
    basis: Array  # (m, r): orthonormal basis of the span of the decoder's columns
    inside: Array  # (r, r): covariance of the data in that basis
    # mean variance of the data per dimension orthogonal to the basis; 0 if r equals m
    noise_variance: float
    weight: float  # sum of the weights of the training rows
    outcome: TrainedWeights  # the weights as trained, before ordering, and how they were found

    @property
    def degrees(self) -> float:
        """Divisor of the variances: the total weight minus 1, but at least the machine epsilon."""
        return max(self.weight - 1.0, np.finfo(float).eps)

    def precision(self) -> Array:
        """Return the inverse of the covariance of the Gaussian model, (m, m) for m features.

        Variances of zero are first replaced by the machine epsilon times the largest variance.
        """
        # Q and its complement are invariant: M is inverted inside and s² outside, so that the
        # inverse is Q(M⁻¹ − s⁻²I)Qᵀ + s⁻²I.
        inside, noise = self._floored()
        inverse = namespace(inside).linalg.inv(inside)
        inner = self.basis @ (inverse if noise is None else _minus_diagonal(inverse, 1 / noise))
        precision = inner @ self.basis.mT
        return precision if noise is None else _minus_diagonal(precision, -1 / noise)

    def covariance(self) -> Array:
        """Return the covariance Q(M − s²I)Qᵀ + s²I of the Gaussian model, (m, m) for m features.

        Q (m × r) is an orthonormal basis of the span of the components, which has the dimension r,
        M (r × r) the covariance of the data in this basis, and s² the noise variance.
        """
        noise = self.noise_variance
        inner = self.basis @ _minus_diagonal(self.inside, noise) @ self.basis.mT
        return _minus_diagonal(inner, -noise)

    def log_likelihood(self, centred: Array) -> Array:
        """Return the log-likelihood of each row under probabilistic PCA, shape (n,)."""
        xp, m = namespace(centred), centred.shape[1]
        inside, noise = self._floored()
        factor, _ = cholesky(inside)
        codes = centred @ self.basis
        whitened = solve_lower(factor, codes.mT)
        misfit = xp.sum(whitened * whitened, axis=0)
        log_determinant = 2 * scalar(xp.sum(xp.log(diagonal(factor))))
        if noise is not None:
            rest = centred - codes @ self.basis.mT
            misfit = misfit + xp.sum(rest * rest, axis=1) / noise
            log_determinant += (m - inside.shape[0]) * math.log(noise)
        return -(misfit + log_determinant + m * math.log(2 * math.pi)) / 2

    def _floored(self) -> tuple[Array, float | None]:
        """Return the covariance inside the components' span (r × r) and the noise variance outside.

        Variances smaller than the machine epsilon times the largest variance are raised to this
        number; otherwise data of deficient rank would have an infinite likelihood. The noise
        variance is None if the r components span all m features (r = m).
        """
        values, vectors = eigh_descending(self.inside)
        floor = machine_epsilon(values) * max(scalar(values[0]), self.noise_variance, TINY)
        inside = (vectors * where_set(values, values < floor, floor)) @ vectors.mT
        if self.basis.shape[0] == self.basis.shape[1]:
            return inside, None
        return inside, max(self.noise_variance, floor)


def _minus_diagonal(A: Array, value: float) -> Array:
    xp = namespace(A)
    return A - value * xp.eye(A.shape[0], dtype=A.dtype, device=A.device)
