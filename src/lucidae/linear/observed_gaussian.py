"""The Gaussian model of rows with missing entries: predictions, likelihoods, statistics for EM.

A row x of m features has the distribution N(μ, C) with C = WWᵀ + γI, loadings W (m × k) and noise
variance γ. Of a row, only the entries o are observed, with the distribution N(μ_o, C_oo). With the
k × k matrix G = W_oᵀW_o + γI, the latents z of the row have the posterior mean
G⁻¹W_oᵀ(x_o − μ_o) and the posterior covariance γG⁻¹; no m × m matrix is factorised.

Rows with the same observed features have the same posterior covariance, so that `ObservedRows` are
grouped by the set of observed features (a pattern), and one G is factorised for each pattern and
not for each row. The expected sufficient `Statistics` of expectation maximisation (EM) are sums
over the rows of posterior moments of z.
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
    device,
    diagonal,
    eigh_descending,
    eye_like,
    like,
    machine_epsilon,
    namespace,
    normal,
    scalar,
    svd_thin,
    to_numpy,
    where_set,
    zeros_like_shape,
)
from lucidae.linear.model import Model
from lucidae.rows.covariances import TINY
from lucidae.spectrum import Spectrum

BLOCK_ENTRIES = 2**22
"""Largest number of entries of k × k matrices, and of rows, that are in memory at a time."""

Vector = np.ndarray[Any, Any]

SMALLEST_NOISE = 1e-13
"""Smallest noise variance, in units of the mean variance of the observed entries. If the noise
tends to zero, the likelihood has no maximum, and the fit ends at this number."""


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
            density = where_set(-(misfit + volume) / 2, count == 0.0, 0.0)  # without rounding
            yield _RowBlock(part, mask, latents, inverse, density)


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


@dataclass(frozen=True, slots=True)
class ObservedRows:
    """Observed entries of weighted rows, centred, scaled and grouped by the observed features.

    A pattern is a set of observed features; there are p different ones among the n rows of m
    features. The likelihood depends on the rows x of a pattern, with weights w, only through the
    second moment of the extended rows √w (1, x). Any other extended rows (a, v) with this second
    moment can be stored in their place. For a pattern with many rows, these are the rows of the
    triangular factor of a QR factorisation, so that r ≤ n rows are stored in all.
    """

    mask: Array  # (p, m): for each pattern, 1 for observed features and 0 for others
    counts: Array  # (p,): sum of the weights of the rows of each pattern
    # (r, m): the parts v of the stored rows, pattern by pattern, computed from data from which
    # `center` was subtracted and which were divided by `unit`; 0 where entries are missing
    rows: Array
    intercepts: Array  # (r,): the parts a of the stored rows
    starts: Vector  # (p + 1,): index of the first stored row of each pattern, and r at the end
    center: Array  # (m,): mean of the observed entries of each feature
    unit: float  # root of the mean variance of the observed entries
    weight: float  # sum of the weights of all rows with an observed entry

    @classmethod
    def of(cls, X: Array, weights: Array | None) -> ObservedRows:
        """Return the observed entries of the rows X (n, m), centred, scaled and grouped.

        Each feature must have an observed entry.
        """
        xp, X = namespace(X), as_double(X)
        if weights is None:
            weights = xp.ones(X.shape[0], dtype=xp.float64, device=device(X))
        seen = ~xp.isnan(X)
        mask = xp.astype(seen, xp.float64)
        share = weights @ mask
        center = (weights @ where_set(X, ~seen, 0.0)) / share
        # The mean of the deviations from a first mean corrects its rounding error.
        center = center + (weights @ where_set(X - center, ~seen, 0.0)) / share
        filled = where_set(X - center, ~seen, 0.0)
        scatter = scalar(xp.sum(weights @ (filled * filled)))
        unit = math.sqrt(scatter / scalar(xp.sum(share)))
        return cls._grouped(filled / (unit or 1.0), mask, weights, center, unit)

    @classmethod
    def _grouped(
        cls, filled: Array, mask: Array, weights: Array, center: Array, unit: float
    ) -> ObservedRows:
        """Return the `ObservedRows` of centred and scaled rows, sorted by pattern."""
        xp, seen, mass = namespace(filled), to_numpy(mask) > 0.0, to_numpy(weights)
        used = np.flatnonzero(seen.any(axis=1) & (mass > 0.0))
        packed = np.ascontiguousarray(np.packbits(seen[used], axis=1))
        keys = packed.view(np.dtype((np.void, packed.shape[1])))[:, 0]
        _, first, pattern = np.unique(keys, return_index=True, return_inverse=True)
        order = xp.asarray(used[np.argsort(pattern, kind="stable")], device=device(filled))
        chosen = xp.asarray(used[first], device=device(filled))
        roots = xp.sqrt(xp.take(weights, order))
        rows = xp.take(filled, order, axis=0) * roots[:, None]
        sizes, patterns = np.bincount(pattern), seen[used[first]]
        rows, roots, sizes = _compressed(rows, roots, sizes, patterns)
        counts = np.bincount(pattern, mass[used])
        return cls(
            xp.take(mask, chosen, axis=0),
            like(counts, filled),
            rows,
            roots,
            np.concatenate([[0], np.cumsum(sizes)]),
            center,
            unit,
            float(counts.sum()),
        )

    @property
    def entries(self) -> float:
        """Number of observed entries, each counted with the weight of its row."""
        return scalar(self.counts @ namespace(self.mask).sum(self.mask, axis=1))

    def statistics(self, beta: Array, noise: float) -> Statistics:
        """Return the expected sufficient statistics of the rows, and their log-likelihood.

        For m features and k latents, `beta` (m, k + 1) contains the loadings and, as its last
        column, the mean; `noise` is the noise variance γ. They belong to the centred and scaled
        data.
        """
        xp, (m, k) = namespace(beta), (beta.shape[0], beta.shape[1] - 1)
        W, mean = beta[:, :k], beta[:, k]
        squares = outer_squares(W)
        information = zeros_like_shape((m, (k + 1) ** 2), beta)
        cross, value, rest = zeros_like_shape((m, k + 1), beta), 0.0, 0.0
        for patterns, part in self._parts((k + 1) ** 2):
            mask, counts = self.mask[patterns, :], self.counts[patterns]
            rows, a = self.rows[part, :], self.intercepts[part]
            owner = self._owners(patterns)
            per_row = mask if owner is None else xp.take(mask, owner, axis=0)
            centred = rows - (a[:, None] * per_row) * mean
            G = add_diagonal(xp.reshape(mask @ squares, (-1, k, k)), noise)
            inverse, log_det = inverses(G)
            of_row = inverse if owner is None else xp.take(inverse, owner, axis=0)
            z = (of_row @ (centred @ W)[:, :, None])[:, :, 0]
            error = centred - per_row * (z @ W.mT)
            misfit = scalar(xp.sum(error * error)) + noise * scalar(xp.sum(z * z))
            observed = xp.sum(mask, axis=1)
            volume = log_det + (observed - k) * math.log(noise) + observed * math.log(2 * math.pi)
            value -= (misfit / noise + scalar(counts @ volume)) / 2
            shrunk = noise * xp.linalg.trace(inverse)
            rest += scalar(xp.sum(error * error)) + noise * scalar(counts @ (k - shrunk))
            latents = xp.concat([z, a[:, None]], axis=1)
            moments = self._summed(latents, patterns, owner)
            # The posterior covariance γG⁻¹ of every row is added to the moments of its mean.
            spread = (noise * counts)[:, None, None] * inverse
            moments = moments + _bordered(spread)
            information = information + mask.mT @ xp.reshape(moments, (-1, (k + 1) ** 2))
            cross = cross + rows.mT @ latents
        information = xp.reshape(information, (m, k + 1, k + 1))
        total = scalar(xp.sum(self.rows * self.rows))
        return Statistics(information, cross, total, self.entries, rest, value)

    def scored_covariance(self, beta: Array, noise: float) -> Array:
        """Return an estimate of the covariance (m, m) without a restriction of its rank.

        It is one step of Fisher scoring from the fitted C = WWᵀ + γI: C + C∇C/p, where
        ∇ = Σ aaᵀ − C_oo⁻¹, a = C_oo⁻¹(x_o − μ_o), is twice the gradient of the log-likelihood with
        respect to C, and p is `pairs`, the information that the rows have on a covariance. Without
        missing entries it is the covariance of the rows, whatever the fit is. `beta` (m, k + 1)
        contains the loadings W and, as its last column, the mean μ; `noise` is γ.
        """
        xp, (m, k) = namespace(beta), (beta.shape[0], beta.shape[1] - 1)
        W, mean = beta[:, :k], beta[:, k]
        squares, gradient = outer_squares(W), zeros_like_shape((m, m), beta)
        for patterns, part in self._parts(m * (k + 1)):
            mask, counts = self.mask[patterns, :], self.counts[patterns]
            owner = self._owners(patterns)
            G = add_diagonal(xp.reshape(mask @ squares, (-1, k, k)), noise)
            inverse, _ = inverses(G)
            per_row = mask if owner is None else xp.take(mask, owner, axis=0)
            of_row = inverse if owner is None else xp.take(inverse, owner, axis=0)
            centred = self.rows[part, :] - (self.intercepts[part][:, None] * per_row) * mean
            z = (of_row @ (centred @ W)[:, :, None])[:, :, 0]
            a = (centred - per_row * (z @ W.mT)) / noise
            # C_oo⁻¹ = (I − W_o G⁻¹ W_oᵀ)/γ (Woodbury), summed over patterns as one product.
            inside = mask[:, :, None] * W
            left = xp.permute_dims((counts[:, None, None] * inside) @ inverse, (1, 0, 2))
            right = xp.permute_dims(inside, (1, 0, 2))
            explained = xp.reshape(left, (m, -1)) @ xp.reshape(right, (m, -1)).mT
            precision = add_diagonal(-explained, counts @ mask) / noise
            gradient = gradient + a.mT @ a - precision
        C = add_diagonal(W @ W.mT, noise)
        return C + C @ gradient @ C / self.pairs

    @property
    def varying(self) -> Vector:
        """For each feature, whether its observed entries differ by more than rounding errors."""
        xp = namespace(self.rows)
        rounding = 8 * np.finfo(float).eps / (self.unit or 1.0) * np.abs(to_numpy(self.center))
        return np.asarray(to_numpy(xp.max(xp.abs(self.rows), axis=0)) > rounding)

    @property
    def pairs(self) -> float:
        """Mean number of rows in which two features are observed together, at least 2.

        The covariance of these features has the sampling error of this number of complete rows.
        """
        xp, m = namespace(self.mask), self.mask.shape[1]
        seen = xp.sum(self.mask, axis=1)
        together = scalar(self.counts @ (seen * (seen - 1.0))) / max(1, m * (m - 1))
        return float(max(2.0, together))

    def _parts(self, entries: int) -> Iterator[tuple[slice, slice]]:
        """Yield pairs of slices: some patterns of observed features, and their stored rows.

        Each part is so small that the matrices of all its rows, with so many entries each, fit into
        memory.
        """
        most = max(1, BLOCK_ENTRIES // max(self.mask.shape[1], entries))
        first, last = 0, len(self.starts) - 1
        while first < last:
            limit = int(np.searchsorted(self.starts, self.starts[first] + most, side="right")) - 1
            end = min(last, max(first + 1, limit))
            yield slice(first, end), slice(int(self.starts[first]), int(self.starts[end]))
            first = end

    def _owners(self, patterns: slice) -> Array | None:
        """Return the index of the pattern to which each stored row belongs, for some patterns."""
        sizes = np.diff(self.starts[patterns.start : patterns.stop + 1])
        if np.all(sizes == 1):
            return None
        owner = np.repeat(np.arange(len(sizes)), sizes)
        return namespace(self.mask).asarray(owner, device=device(self.mask))

    def _summed(self, latents: Array, patterns: slice, owner: Array | None) -> Array:
        """Return the sum of zzᵀ over the stored rows of each of p patterns, (p, k + 1, k + 1)."""
        outer = latents[:, :, None] * latents[:, None, :]
        if owner is None:
            return outer
        xp = namespace(latents)
        sums = xp.cumulative_sum(outer, axis=0, include_initial=True)
        local = self.starts[patterns.start : patterns.stop + 1] - self.starts[patterns.start]
        edges = xp.take(sums, xp.asarray(local, device=device(latents)), axis=0)
        return edges[1:, :, :] - edges[:-1, :, :]


def _bordered(A: Array) -> Array:
    """Return the k × k matrices A (p, k, k) with a row and a column of zeros appended to each."""
    xp, (p, k, _) = namespace(A), A.shape
    wide = xp.concat([A, zeros_like_shape((p, k, 1), A)], axis=2)
    return xp.concat([wide, zeros_like_shape((p, 1, k + 1), A)], axis=1)


def _compressed(
    rows: Array, roots: Array, sizes: Vector, patterns: Vector
) -> tuple[Array, Array, Vector]:
    """Replace the rows of each large pattern by a triangular factor with the same second moment.

    A pattern is a set of observed features; with q features it is large if it has at least
    2(q + 1) rows. `rows` are sorted by pattern, `roots` are the square roots of their weights,
    `sizes` are the numbers of rows of the p patterns, and `patterns` (p, m) says which of the m
    features are observed. The new values of `rows`, `roots` and `sizes` are returned.
    """
    xp, ends = namespace(rows), np.cumsum(sizes)
    widths = patterns.sum(axis=1) + 1
    large = np.flatnonzero(sizes >= 2 * widths)
    if not len(large):
        return rows, roots, sizes
    pieces, last = [], 0
    for p in large:
        start, end = int(ends[p] - sizes[p]), int(ends[p])
        pieces.append((rows[last:start, :], roots[last:start]))
        columns = xp.asarray(np.flatnonzero(patterns[p]), device=device(rows))
        table = xp.concat(
            [roots[start:end, None], xp.take(rows[start:end, :], columns, axis=1)], axis=1
        )
        factor = _triangle(table)
        places = xp.take(eye_like(rows.shape[1], rows), columns, axis=0)
        pieces.append((factor[:, 1:] @ places, factor[:, 0]))
        last = end
    pieces.append((rows[last:, :], roots[last:]))
    joined = (xp.concat([piece[i] for piece in pieces]) for i in (0, 1))
    return *joined, np.where(sizes >= 2 * widths, widths, sizes)


def _triangle(table: Array) -> Array:
    """Return the triangular factor R (q, q) of a table A (n, q), n ≥ q, so that RᵀR = AᵀA."""
    xp, (n, q) = namespace(table), table.shape
    step = max(4 * q, 1024)
    factor = table[:0, :]
    for start in range(0, n, step):
        block = table[start : min(start + step, n), :]
        factor = xp.linalg.qr(xp.concat([factor, block]))[1]
    return factor


class Statistics(NamedTuple):
    """Expected sufficient statistics of rows with missing entries, and their likelihood.

    Let z̃ = (z, 1) be the latents z of a row x, extended by 1, and E the posterior mean given the
    observed entries of the row. For each feature j, `information` (m, k + 1, k + 1) is the sum of
    E[z̃z̃ᵀ], and `cross` (m, k + 1) the sum of xⱼE[z̃], over the rows in which j is observed.
    `squares` is the sum of the squares of the observed entries and `rest` the sum of their expected
    squared errors; `entries` is the number of these entries, and `value` the log-likelihood.
    """

    information: Array
    cross: Array
    squares: float
    entries: float
    rest: float
    value: float

    def maximized(self) -> tuple[Array, float]:
        """Return the parameters that maximise the expected log-likelihood: the M-step of EM.

        They are an array (m, k + 1), for m features and k latents, with the loadings and, as its
        last column, the mean; and the noise variance.
        """
        xp = namespace(self.cross)
        beta = self.divided(self.cross)
        noise = (self.squares - scalar(xp.sum(beta * self.cross))) / self.entries
        return beta, max(noise, SMALLEST_NOISE)

    def divided(self, slope: Array) -> Array:
        """Return, for each feature, its inverse `information` times its row of `slope` (m, k + 1).

        Rounding errors can make the information of a feature singular; its largest eigenvalue
        times a hundred machine epsilons is added to the diagonal.
        """
        xp = namespace(slope)
        ridge = 100 * machine_epsilon(slope) * xp.linalg.trace(self.information)
        matrix = add_diagonal(self.information, ridge[:, None] + 0.0 * slope)
        return xp.linalg.solve(matrix, slope[:, :, None])[:, :, 0]
