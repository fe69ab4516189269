"""A fitted linear autoencoder: ordered latents, their variances, and the Gaussian model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import (
    Array,
    as_double,
    cholesky,
    diagonal,
    eigh_descending,
    eye_like,
    largest,
    machine_epsilon,
    namespace,
    scalar,
    solve_lower,
    to_numpy,
    where_set,
)
from lucidae.arrays.eigen import column_signs
from lucidae.io.models import saved_as
from lucidae.iteration import History, Status
from lucidae.linear.data import Covariance
from lucidae.linear.methods import Method
from lucidae.linear.spectrum import TINY
from lucidae.linear.weights import orthonormal_rows

ZERO_LATENT = 1e-8
"""A latent counts as zero when the product of the lengths of its encoder row and its decoder column
is at most this number. The product does not change when a scale moves from one to the other."""


@saved_as("lucidae.linear.trained/1", formerly="lucidae.linear.model:Outcome")
@dataclass(frozen=True, slots=True)
class TrainedWeights:
    """The trained weights, and how the solver found them."""

    weights: Any
    method: Method
    status: Status
    n_iter: int
    history: History
    learning_rate: float | None = None


@saved_as("lucidae.linear.model/1", formerly="lucidae.linear.model:Model")
@dataclass(frozen=True, slots=True)
class Model:
    """The fitted model in double precision; latents ordered by variance, signs fixed.

    Parameters
    ----------
    mean : array of shape (m,)
        Mean of the data.
    encoder, atoms, components : arrays of shape (k, m)
        Encoder rows, decoder columns, and decoder columns at unit length (0 for zero latents).
    variances : array of shape (k,)
        Variance of the data along each component; the divisor is the total weight minus 1.
    code_deviations : array of shape (k,)
        Standard deviation of each code, 1 where it is 0.
    total_variance : float
        Trace of the covariance; the divisor is the total weight minus 1.
    basis, inside : arrays of shape (m, r), (r, r)
        Orthonormal basis of the decoder's span and the covariance in it.
    noise_variance : float
        Mean variance outside of the basis, 0 when the basis is complete.
    weight : float
        Total weight of the data.
    outcome : TrainedWeights
        The weights as trained, before ordering, and how they were found.
    """

    mean: Array
    encoder: Array
    atoms: Array
    components: Array
    variances: Array
    code_deviations: Array
    total_variance: float
    basis: Array
    inside: Array
    noise_variance: float
    weight: float
    outcome: TrainedWeights

    @property
    def degrees(self) -> float:
        """Degrees of freedom: the total weight minus 1, and at least the machine epsilon."""
        return max(self.weight - 1.0, np.finfo(float).eps)

    def precision(self) -> Array:
        """Return the inverse of the model covariance, of shape (m, m); see `covariance`."""
        # Q and its complement are invariant: M is inverted inside and s² outside, so that the
        # inverse is Q(M⁻¹ − s⁻²I)Qᵀ + s⁻²I.
        inside, noise = self._floored()
        inverse = namespace(inside).linalg.inv(inside)
        inner = self.basis @ (inverse if noise is None else _minus_diagonal(inverse, 1 / noise))
        precision = inner @ self.basis.mT
        return precision if noise is None else _minus_diagonal(precision, -1 / noise)

    def covariance(self) -> Array:
        """Return the model covariance Q(M − s²I)Qᵀ + s²I, of shape (m, m).

        Q is the basis of the components' span, M the covariance in it and s² the noise variance.
        """
        noise = self.noise_variance
        inner = self.basis @ _minus_diagonal(self.inside, noise) @ self.basis.mT
        return _minus_diagonal(inner, -noise)

    def log_likelihood(self, centred: Array) -> Array:
        """Return the Gaussian log-likelihood of centred rows (probabilistic PCA)."""
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
        """Return the covariance in the basis and the noise variance, with a lower bound on both.

        The bound is the machine epsilon times the largest variance: without it, data of deficient
        rank would have an infinite likelihood. The second value is None if the basis is complete.
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


def build_model(
    outcome: TrainedWeights, mean: Array, weight: float, covariance: Covariance
) -> Model:
    """Order the latents of `outcome`, fix their signs and measure them on the data."""
    encoder, atoms = as_double(outcome.weights.encoder), as_double(outcome.weights.atoms)
    xp = namespace(atoms)
    components, nonzero = _unit_rows(encoder, atoms)
    ratio = weight / max(weight - 1.0, np.finfo(float).eps)
    basis = _basis(components, nonzero)
    along, codes, inside = _measured(covariance, components, encoder, basis)
    # Zero latents come last, all others by descending variance along their component.
    order = np.lexsort((-to_numpy(along), ~nonzero))
    index = xp.asarray(order, device=atoms.device)
    components = xp.take(components, index, axis=0)
    signs = column_signs(components.mT)[:, None]
    components = components * signs
    encoder, atoms = (xp.take(rows, index, axis=0) * signs for rows in (encoder, atoms))
    along, codes = xp.take(along, index) * ratio, xp.take(codes, index) * ratio
    total = max(0.0, float(covariance.trace)) * ratio
    outside = basis.shape[1] - basis.shape[0]
    left = max(0.0, total - ratio * scalar(xp.sum(diagonal(inside))))
    return Model(
        mean,
        encoder,
        atoms,
        components,
        where_set(along, along < 0, 0.0),
        xp.sqrt(where_set(codes, codes <= _negligible(codes), 1.0)),
        total,
        basis.mT,
        inside * ratio,
        left / outside if outside else 0.0,
        weight,
        outcome,
    )


def _negligible(codes: Array) -> float:
    """Return the code variance below which whitening would only amplify rounding errors."""
    top = max(scalar(namespace(codes).max(codes)), 0.0)
    return machine_epsilon(codes) * float(codes.shape[0]) * top


def _unit_rows(encoder: Array, atoms: Array) -> tuple[Array, np.ndarray[Any, Any]]:
    """Return decoder columns as unit rows (0 for zero latents), and which latents are not zero."""
    xp = namespace(atoms)
    norms = xp.sqrt(xp.sum(atoms * atoms, axis=-1))
    reach = norms if encoder is atoms else xp.sqrt(xp.sum(encoder * encoder, axis=-1))
    gains = norms * reach
    zero = gains <= ZERO_LATENT
    unit = atoms / where_set(norms, zero, 1.0)[:, None]
    return where_set(unit, zero[:, None], 0.0), ~to_numpy(zero)


def _basis(components: Array, nonzero: np.ndarray[Any, Any]) -> Array:
    """Return orthonormal rows with the span of the latents that are not zero.

    Where all are zero, the span is that of one arbitrary direction.
    """
    if nonzero.all():
        gram = components @ components.mT
        if largest(gram - eye_like(gram.shape[0], gram)) <= 8 * machine_epsilon(gram):
            return components  # as at a closed form: a factorisation would return the same rows
    xp = namespace(components)
    chosen = np.flatnonzero(nonzero) if nonzero.any() else np.zeros(1, dtype=int)
    return orthonormal_rows(
        xp.take(components, xp.asarray(chosen, device=components.device), axis=0)
    )


def _measured(
    covariance: Covariance, components: Array, encoder: Array, basis: Array
) -> tuple[Array, Array, Array]:
    """Return the variances along components and of codes, and the covariance in the basis."""
    xp, k = namespace(basis), components.shape[0]
    factors = xp.sum(encoder * components, axis=-1)
    bent = largest(encoder - factors[:, None] * components)
    if basis is components and bent <= 8 * machine_epsilon(encoder) * largest(encoder):
        # At a closed form all three have the same directions, and one product serves for all.
        inside = covariance.apply(components) @ components.mT
        along = diagonal(inside)
        return along, factors * factors * along, (inside + inside.mT) / 2
    rows = xp.concat([components, encoder, basis])
    products = covariance.apply(rows)
    variances = xp.sum(products[: 2 * k, :] * rows[: 2 * k, :], axis=-1)
    inside = products[2 * k :, :] @ basis.mT
    return variances[:k], variances[k:], (inside + inside.mT) / 2
