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
from lucidae.arrays.eigen import column_signs, orthonormal_rows
from lucidae.iteration import History, Status
from lucidae.linear.methods import Method
from lucidae.rows.covariances import TINY, Covariance
from lucidae.spectrum import Spectrum

WELL_RESOLVED = 1e-4
"""Smallest ratio of an eigenvalue to the largest one for which it is used as the variance along its
eigenvector. The error of an eigenvalue is relative to the largest one; the variance of the data
along a given direction is more accurate if it is small."""

ZERO_LATENT = 1e-8
"""A latent counts as zero if the length of its encoder row times the length of its decoder column
is at most this number. The product is the same if a factor is moved from one layer to the other."""


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


def build_model(
    outcome: TrainedWeights,
    mean: Array,
    weight: float,
    covariance: Covariance,
    spectrum: Spectrum | None = None,
) -> Model:
    """Return the fitted model: latents ordered by variance, with fixed signs and their variances.

    `spectrum` are the eigenpairs from which a closed form was computed.
    """
    encoder, atoms = as_double(outcome.weights.encoder), as_double(outcome.weights.atoms)
    xp, (k, m), eps = namespace(atoms), atoms.shape, machine_epsilon(atoms)
    # 1) Components: decoder columns of unit length, and zeros for latents without any effect.
    norms = xp.sqrt(xp.sum(atoms * atoms, axis=-1))
    lengths = norms if encoder is atoms else xp.sqrt(xp.sum(encoder * encoder, axis=-1))
    zero = norms * lengths <= ZERO_LATENT
    components = atoms / where_set(norms, zero, 1.0)[:, None]
    components = where_set(components, zero[:, None], 0.0)
    # 2) An orthonormal basis of their span. At a closed form these are the components themselves,
    # whose inner products of m entries have rounding errors of about √m ε.
    basis, gram = components, components @ components.mT
    if not largest(gram - eye_like(k, gram)) <= (8 + math.sqrt(m)) * eps:
        chosen = np.flatnonzero(~to_numpy(zero))
        chosen = xp.asarray(chosen if len(chosen) else [0], device=atoms.device)
        basis = orthonormal_rows(xp.take(components, chosen, axis=0))
    # 3) Variances along the components, of the codes, and in the basis. At a closed form all of
    # them follow from the eigenvalues, or at least from one product.
    left, factors = None, xp.sum(encoder * components, axis=-1)
    bent = largest(encoder - factors[:, None] * components)
    if basis is components and bent <= 8 * eps * largest(encoder):
        if spectrum is not None and _are_eigenvectors(components, spectrum):
            inside = eye_like(k, spectrum.values) * spectrum.values[:k]
            if spectrum.beyond is not None:
                left = spectrum.noise(k) * (m - k)
        else:
            inside = covariance.apply(basis) @ basis.mT
        along = diagonal(inside)
        codes = factors * factors * along
    else:
        rows = xp.concat([components, encoder, basis])
        products = covariance.apply(rows)
        variances = xp.sum(products[: 2 * k, :] * rows[: 2 * k, :], axis=-1)
        along, codes, inside = variances[:k], variances[k:], products[2 * k :, :] @ basis.mT
    inside, trace = (inside + inside.mT) / 2, max(0.0, float(covariance.trace))
    if left is None:
        left = max(0.0, trace - scalar(xp.sum(diagonal(inside))))
    # 4) Zero latents come last, all others by descending variance, with fixed signs.
    order = np.lexsort((-to_numpy(along), to_numpy(zero)))
    index = xp.asarray(order, device=atoms.device)
    components = xp.take(components, index, axis=0)
    signs = column_signs(components.mT)[:, None]
    encoder, atoms = (xp.take(rows, index, axis=0) * signs for rows in (encoder, atoms))
    along, codes = xp.take(along, index), xp.take(codes, index)
    # A variance of a code that is a rounding error, for the length of its encoder row, counts as
    # none: such codes are not scaled.
    squares = xp.take(lengths * lengths, index)
    relative = codes / where_set(squares, squares <= 0.0, 1.0)
    negligible = relative <= eps * k * max(scalar(xp.max(relative)), 0.0)
    ratio = weight / max(weight - 1.0, np.finfo(float).eps)
    outside = m - basis.shape[0]
    return Model(
        mean,
        encoder,
        atoms,
        components * signs,
        ratio * where_set(along, along < 0, 0.0),
        xp.sqrt(where_set(ratio * codes, negligible, 1.0)),
        ratio * trace,
        basis.mT,
        ratio * inside,
        ratio * left / outside if outside else 0.0,
        weight,
        outcome,
    )


def _are_eigenvectors(components: Array, spectrum: Spectrum) -> bool:
    """Tell whether components (k, m) are the first k eigenvectors of `spectrum`, in their order.

    Small eigenvalues count only if `beyond` is known: then all of them are accurate.
    """
    k = components.shape[0]
    if spectrum.vectors.shape[1] < k:
        return False
    small = spectrum.values[k - 1] < WELL_RESOLVED * spectrum.values[0]
    if spectrum.beyond is None and bool(small):
        return False
    # Components were scaled to unit length, which may have changed their last digit.
    apart = largest(components - spectrum.vectors[:, :k].mT)
    return apart <= 4 * machine_epsilon(components)
