"""The Gaussian model of rows with missing entries: predictions, likelihoods, uncertainty of codes.

A row x of m features has the distribution N(μ, C) with C = WWᵀ + γI, loadings W (m × k) and noise
variance γ. Of a row, only the entries o are observed, with the distribution N(μ_o, C_oo). With the
k × k matrix G = W_oᵀW_o + γI, the latents z of the row have the posterior mean
G⁻¹W_oᵀ(x_o − μ_o) and the posterior covariance γG⁻¹; no m × m matrix is factorised.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    add_diagonal,
    as_double,
    cholesky,
    diagonal,
    eigh_descending,
    eye_like,
    like,
    machine_epsilon,
    namespace,
    normal,
    scalar,
    svd_thin,
    where_set,
    zeros_like_shape,
)
from lucidae.linear.model import Model
from lucidae.rows.covariances import TINY, Spectrum

BLOCK_ENTRIES = 2**22
"""Largest number of entries of k × k matrices, and of rows, that are in memory at a time."""


@dataclass(frozen=True, slots=True)
class ObservedGaussian:
    """The Gaussian model N(μ, WWᵀ + γI) of rows whose entries may be missing (NaN)."""

    mean: Array  # (m,): the mean μ
    loadings: Array  # (m, k): the loadings W: orthogonal columns in descending order of length
    noise: float  # the noise variance γ
    weight: float  # sum of the weights of the rows from which the parameters were estimated
    # whether the likelihood had a maximum; if not, γ tended to zero and has a tiny value instead
    bounded: bool = True

    def expectation(self, X: Array) -> Array:
        """Return the rows X (n, m) with their missing entries replaced by E[x | observed entries].

        Observed entries are not changed. A row without observed entries becomes the mean.
        """
        xp = namespace(X)
        filled = []
        for block in self._blocks(X):
            guess = self.mean + block.latents @ self.loadings.mT
            rows = X[block.rows, :]
            filled.append(xp.where(xp.isnan(rows), like(guess, X), rows))
        return xp.concat(filled)

    def deviations(self, X: Array) -> Array:
        """Return the standard deviation of each missing entry given the observed ones of its row.

        That of feature j with loadings w is √(γ(1 + wᵀG⁻¹w)); it is 0 for observed entries.
        """
        xp, found = namespace(self.mean), []
        for block in self._blocks(X):
            spread = xp.sum((self.loadings @ block.inverse) * self.loadings, axis=-1)
            found.append((1.0 - block.mask) * xp.sqrt(self.noise * (1.0 + spread)))
        return xp.concat(found)

    def log_likelihood(self, X: Array) -> Array:
        """Return the log-density of the observed entries of each row of X (n, m), in nats.

        It is 0 for a row without observed entries.
        """
        xp = namespace(self.mean)
        return xp.concat([block.log_density for block in self._blocks(X)])

    def code_covariance(self, X: Array, encoder: Array) -> Array:
        """Return the covariance of the codes W₁(x − μ) given the observed entries of each row x.

        It has shape (n, k, k) for an `encoder` W₁ (k, m), and is zero for rows without missing
        entries. The model has the mean μ, the loadings W and the noise variance γ. Let o be the
        observed and u the missing features of a row, and G = W_oᵀW_o + γI; then the covariance is
        γ(BG⁻¹Bᵀ + W₁ᵤW₁ᵤᵀ), where B = W₁ᵤWᵤ.
        """
        xp, (k, q) = namespace(self.mean), (encoder.shape[0], self.loadings.shape[1])
        mixed = xp.reshape(encoder.mT[:, :, None] * self.loadings[:, None, :], (-1, k * q))
        own = xp.reshape(encoder.mT[:, :, None] * encoder.mT[:, None, :], (-1, k * k))
        found = []
        for block in self._blocks(X):
            hidden = 1.0 - block.mask
            B = xp.reshape(hidden @ mixed, (-1, k, q))
            spread = B @ block.inverse @ B.mT + xp.reshape(hidden @ own, (-1, k, k))
            found.append(self.noise * spread)
        return xp.concat(found)

    @property
    def trace(self) -> float:
        """Total variance: the trace of the covariance."""
        return self.spectrum(None).trace

    def apply(self, rows: Array) -> Array:
        """Return the product of `rows` (…, k, m) with the covariance WWᵀ + γI."""
        return (rows @ self.loadings) @ self.loadings.mT + self.noise * rows

    def spectrum(self, k: int | None) -> Spectrum:
        """Return the `k` leading eigenpairs of the covariance WWᵀ + γI.

        W are the loadings and γ is the noise variance. If `k` is None, as many eigenpairs are
        returned as W has columns. All further eigenvalues equal γ; their eigenvectors are
        arbitrary, but orthonormal.
        """
        xp = namespace(self.loadings)
        m, q = self.loadings.shape
        vectors, lengths, _ = svd_thin(self.loadings)
        values, extra = lengths * lengths + self.noise, max(0, (q if k is None else k) - q)
        if extra:
            drawn = normal(np.random.default_rng(0), (m, extra), vectors)
            completed, _ = xp.linalg.qr(xp.concat([vectors, drawn], axis=1))
            vectors = xp.concat([vectors, completed[:, q:]], axis=1)
            values = xp.concat([values, self.noise + zeros_like_shape((extra,), values)])
        trace = scalar(xp.sum(lengths * lengths)) + m * self.noise
        found = Spectrum(values, vectors, trace)
        return found if k is None else found.leading(k)

    def _blocks(self, X: Array) -> Iterator[_RowBlock]:
        """Yield blocks of the rows X (n, m), each with the posterior of the latents of its rows."""
        xp, (m, k) = namespace(self.mean), self.loadings.shape
        squares, noise = outer_squares(self.loadings), self.noise
        size = max(1, BLOCK_ENTRIES // max(m * k, k * k))
        for start in range(0, X.shape[0], size):
            part = slice(start, min(start + size, X.shape[0]))
            rows = like(as_double(X[part, :]), self.mean)
            mask = xp.astype(~xp.isnan(rows), xp.float64)
            centred = where_set(rows - self.mean, mask == 0.0, 0.0)
            G = add_diagonal(xp.reshape(mask @ squares, (-1, k, k)), noise)
            inverse, log_det = inverses(G)
            latents = (inverse @ (centred @ self.loadings)[:, :, None])[:, :, 0]
            rest = centred - mask * (latents @ self.loadings.mT)
            misfit = xp.sum(rest * rest, axis=1) / noise + xp.sum(latents * latents, axis=1)
            count = xp.sum(mask, axis=1)
            volume = log_det + (count - k) * math.log(noise) + count * math.log(2 * math.pi)
            yield _RowBlock(part, mask, latents, inverse, -(misfit + volume) / 2)


def has_missing(X: Any) -> bool:
    """Tell whether rows contain NaN; a sparse matrix with NaN raises a ValueError."""
    if scipy.sparse.issparse(X):
        if np.isnan(X.data).any():
            raise ValueError(
                "X is a sparse matrix with NaN among its entries, expected a dense array: with "
                "handle_missing='em', missing entries of a sparse matrix are not supported. Give "
                "X.toarray()."
            )
        return False
    xp = namespace(X)
    return bool(xp.any(xp.isnan(X)))


def gaussian_of(model: Model, *, maximum_likelihood: bool = False) -> ObservedGaussian:
    """Return the Gaussian of a fitted model, from which missing entries are predicted.

    Variances of zero are replaced by the machine epsilon times the largest variance. The divisor
    of the variances is the total weight n of the rows minus one, or n if `maximum_likelihood`.
    """
    xp = namespace(model.basis)
    values, vectors = eigh_descending(model.inside)
    m, r = model.basis.shape
    noise = scalar(values[-1]) if m == r else model.noise_variance
    noise = max(noise, machine_epsilon(values) * max(scalar(values[0]), noise), TINY)
    lengths = values - noise
    loadings = (model.basis @ vectors) * xp.sqrt(where_set(lengths, lengths < 0.0, 0.0))
    share = model.degrees / model.weight if maximum_likelihood else 1.0
    return ObservedGaussian(model.mean, math.sqrt(share) * loadings, share * noise, model.weight)


class _RowBlock(NamedTuple):
    """Some rows with missing entries, and the posterior of their latents.

    The fields are a slice of the rows, the mask of their observed entries, the posterior means of
    the k latents, the inverse of G = WᵀW + γI (k × k) over the observed features of each row, with
    loadings W and noise variance γ, and the log-density of the observed entries.
    """

    rows: slice
    mask: Array
    latents: Array
    inverse: Array
    log_density: Array


def outer_squares(loadings: Array) -> Array:
    """Return the k² entries of wwᵀ for each row w of the loadings (m, k), as an array (m, k²)."""
    m, k = loadings.shape
    return namespace(loadings).reshape(loadings[:, :, None] * loadings[:, None, :], (m, k * k))


def inverses(G: Array) -> tuple[Array, Array]:
    """Return the inverses of positive definite matrices (…, k, k), and log-determinants (…).

    Both are NaN for a matrix that is not positive definite up to rounding errors.
    """
    xp = namespace(G)
    factor, ok = cholesky(G)
    log_det = 2 * xp.sum(xp.log(diagonal(factor)), axis=-1)
    # The factor has a positive diagonal, while a pivot of G itself may be rounded to zero.
    factor = xp.where(ok[:, None, None], factor, eye_like(G.shape[-1], G))
    root = xp.linalg.inv(factor)
    return where_set(root.mT @ root, ~ok[:, None, None], xp.nan), log_det
