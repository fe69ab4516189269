"""Maximum likelihood of probabilistic PCA for rows with missing entries.

A row x of m features has the distribution N(μ, C) with C = WWᵀ + γI, loadings W (m × k) and noise
variance γ. Of a row, only the entries o are observed, whose distribution is N(μ_o, C_oo). The
likelihood of all observed entries is maximised over W, μ and γ. With the k × k matrix
G = W_oᵀW_o + γI, the latents z of a row have the posterior mean G⁻¹W_oᵀ(x_o − μ_o) and the
posterior covariance γG⁻¹; no m × m matrix is factorised. Rows with the same observed features have
the same posterior covariance, so that `ObservedRows` are grouped by the set of observed features (a
pattern), and one G is factorised for each pattern and not for each row.

The gradient of the log-likelihood follows from these moments (Fisher's identity), and one step of
expectation maximisation (EM; Tipping & Bishop 1999, Ilin & Raiko 2010) is a preconditioned gradient
step: the gradient for the loadings and the mean of each feature is divided by the complete-data
information, the matrix of second derivatives that the likelihood would have if the latents were
observed. The solver is a quasi-Newton acceleration of EM (Jamshidian & Jennrich 1997): L-BFGS with
this preconditioner as initial inverse Hessian. A step is accepted only if the likelihood increases;
if no such step is found, an EM step is taken, which never lowers the likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning

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
    svd_thin,
    to_numpy,
    where_set,
    zeros_like_shape,
)
from lucidae.arrays.eigen import krylov_eigenpairs
from lucidae.counting import ComponentCount, count_wanted, is_criterion
from lucidae.iteration import Below, History, Solution, iterate, log_grid
from lucidae.iteration.progress import progress_bars
from lucidae.linear.methods import Model, Options, check_features, reaching
from lucidae.moments import check_squares
from lucidae.rows.covariances import TINY
from lucidae.spectrum import Spectrum, padded
from lucidae.validation import warn_user

Vector = np.ndarray[Any, Any]

BLOCK_ENTRIES = 2**22
"""Largest number of entries of k × k matrices, and of rows, that are in memory at a time."""

SMALLEST_NOISE = 1e-13
"""Smallest noise variance, in units of the mean variance of the observed entries. If the noise
tends to zero, the likelihood has no maximum, and the fit ends at this number."""


PAIRWISE_FEATURES = 1024
"""Largest number of features for which the first loadings are eigenvectors of the covariance of
pairs of features. With more features, missing entries are replaced by the mean instead."""

MEMORY = 20
"""Number of earlier steps from which L-BFGS estimates the curvature."""

HALVINGS = 12
"""Number of times that a step is halved until the likelihood increases."""

DECREASE = 1e-4
"""Share of the decrease predicted by the gradient that a step must reach (Armijo)."""

PATIENCE = 200
"""Number of steps without a smaller gradient after which the solver ends as stalled."""

PATH_TOLERANCE = 1e-3
"""Tolerance of the fits by which the number of latents is found. The standard error of parameters
estimated from n rows is 1/√n in the same units, so that this is accurate up to a million rows."""
PATH_STEPS = 500
"""Largest number of steps of each of these fits. They need 10 to 100, unless so many latents are
fitted that the noise variance tends to zero."""


@dataclass(frozen=True, slots=True)
class ObservedGaussian:
    """The Gaussian model N(μ, WWᵀ + γI) of rows whose entries may be missing (NaN)."""

    mean: Annotated[Array, "m"]  # the mean μ
    # the loadings W: orthogonal columns in descending order of length
    loadings: Annotated[Array, "mo"]
    noise: float  # the noise variance γ
    weight: float  # sum of the weights of the rows from which the parameters were estimated
    # whether the likelihood had a maximum; if not, γ tended to zero and has a tiny value instead
    bounded: bool = True

    def expectation(self, X: Array) -> Array:
        """Return the rows X (n, m) with their missing entries replaced by E[x | observed entries].

        Observed entries are not changed. A row without observed entries becomes the mean.
        """
        xp = namespace(X)
        latents = xp.concat([part.latents for part in self._posteriors(X)])
        return xp.where(xp.isnan(X), like(self.mean + latents @ self.loadings.mT, X), X)

    def deviations(self, X: Array) -> Array:
        """Return the standard deviation of each missing entry given the observed ones of its row.

        That of feature j with loadings w is √(γ(1 + wᵀG⁻¹w)); it is 0 for observed entries.
        """
        xp, found = namespace(self.mean), []
        for part in self._posteriors(X):
            spread = xp.sum((self.loadings @ part.inverse) * self.loadings, axis=-1)
            found.append((1.0 - part.of_row) * xp.sqrt(self.noise * (1.0 + spread)))
        return xp.concat(found)

    def log_likelihood(self, X: Array) -> Array:
        """Return the log-density of the observed entries of each row of X (n, m), in nats.

        It is 0 for a row without observed entries.
        """
        xp, found = namespace(self.mean), []
        for part in self._posteriors(X):
            squares = part.errors * part.errors / self.noise
            misfit = xp.sum(squares, axis=1) + xp.sum(part.latents * part.latents, axis=1)
            empty = xp.max(part.of_row, axis=1) == 0.0
            found.append(where_set(-(misfit + part.log_det) / 2, empty, 0.0))
        return xp.concat(found)

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
        for part in self._posteriors(X):
            hidden = 1.0 - part.of_row
            B = xp.reshape(hidden @ mixed, (-1, k, q))
            spread = B @ part.inverse @ B.mT + xp.reshape(hidden @ own, (-1, k, k))
            found.append(self.noise * spread)
        return xp.concat(found)

    @property
    def trace(self) -> float:
        """Total variance: the trace of the covariance."""
        squares = float(namespace(self.loadings).sum(self.loadings * self.loadings))
        return squares + int(self.loadings.shape[0]) * self.noise

    def apply(self, rows: Array) -> Array:
        """Return the product of `rows` (…, k, m) with the covariance WWᵀ + γI."""
        return (rows @ self.loadings) @ self.loadings.mT + self.noise * rows

    def spectrum(self, k: int) -> Spectrum:
        """Return the `k` leading eigenpairs of the covariance WWᵀ + γI.

        Eigenvalues after those of the loadings W equal γ; their eigenvectors are arbitrary, but
        orthonormal.
        """
        vectors, lengths, _ = svd_thin(self.loadings)
        found = padded(Spectrum(lengths * lengths, vectors, self.trace), k)
        return replace(found, values=found.values + self.noise)

    def _posteriors(self, X: Array) -> Iterator[_PatternPosterior]:
        """Yield the posteriors of the latents of the rows X (n, m), some at a time.

        Each row counts as a pattern of its own.
        """
        xp, (m, k) = namespace(self.mean), self.loadings.shape
        rows = like(as_double(X), self.mean)
        mask = xp.astype(~xp.isnan(rows), xp.float64)
        centred = where_set(rows - self.mean, mask == 0.0, 0.0)
        one = 1.0 + 0.0 * centred[:, 0]
        starts = np.arange(X.shape[0] + 1)
        each = ObservedRows(mask, one, centred, one, starts, self.mean, 1.0, float(X.shape[0]))
        beta = xp.concat([self.loadings, 0.0 * self.mean[:, None]], axis=1)
        return each._posteriors(beta, self.noise, m * k)


def has_missing(X: Any) -> bool:
    """Tell whether rows contain NaN; sparse rows with NaN were refused before."""
    return not scipy.sparse.issparse(X) and bool(namespace(X).any(namespace(X).isnan(X)))


def gaussian_of(model: Model, *, maximum_likelihood: bool = False) -> ObservedGaussian:
    """Return the Gaussian of a fitted model, from which missing entries are predicted.

    Variances of zero are replaced by the machine epsilon times the largest variance. The divisor
    of the variances is the total weight n of the rows minus one, or n if `maximum_likelihood`.
    """
    axes, values, noise = model._eigenpairs()
    xp, full = namespace(axes), axes.shape[0] == axes.shape[1]
    noise = max(float(values[-1]) if full else noise, TINY)
    lengths = values - noise
    loadings = axes * xp.sqrt(where_set(lengths, lengths < 0.0, 0.0))
    share = model.degrees / model.weight if maximum_likelihood else 1.0
    return ObservedGaussian(model.mean, math.sqrt(share) * loadings, share * noise, model.weight)


def inverses(mask: Array, W: Array, noise: float) -> tuple[Array, Array]:
    """Return G⁻¹ (p, k, k) and log det G (p,) of G = W_oᵀW_o + γI, for p sets o in `mask` (p, m).

    Both are NaN for a matrix that is not positive definite up to rounding errors.
    """
    xp, (m, k) = namespace(W), W.shape
    squares = xp.reshape(W[:, :, None] * W[:, None, :], (m, k * k))  # wwᵀ of each row w
    G = add_diagonal(xp.reshape(mask @ squares, (-1, k, k)), noise)
    factor, ok = cholesky(G)
    log_det = 2 * xp.sum(xp.log(diagonal(factor)), axis=-1)
    # The factor has a positive diagonal, while a pivot of G itself may be rounded to zero.
    factor = xp.where(ok[:, None, None], factor, eye_like(k, G))
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
            weights = xp.ones(X.shape[0], dtype=xp.float64, device=X.device)
        mask = xp.astype(~xp.isnan(X), xp.float64)
        center, filled = _centred(X, weights)
        scatter = float(xp.sum(weights @ (filled * filled)))
        unit = math.sqrt(scatter / float(xp.sum(weights @ mask)))
        filled = filled / (unit or 1.0)
        # Sorted by pattern.
        patterns, mass = to_numpy(mask) > 0.0, to_numpy(weights)
        used = np.flatnonzero(patterns.any(axis=1) & (mass > 0.0))
        packed = np.packbits(patterns[used], axis=1)
        _, first, pattern = np.unique(packed, axis=0, return_index=True, return_inverse=True)
        pattern = np.ravel(pattern)  # NumPy 2.0 keeps the axis
        order = xp.asarray(used[np.argsort(pattern, kind="stable")], device=filled.device)
        chosen = xp.asarray(used[first], device=filled.device)
        roots = xp.sqrt(xp.take(weights, order))[:, None]
        table = xp.concat([roots, xp.take(filled, order, axis=0) * roots], axis=1)
        # The rows of a large pattern are replaced by a triangular factor with the same second
        # moment, in the columns that the pattern observes.
        pieces: list[Array] = []
        ends = np.cumsum(np.bincount(pattern))
        for seen, start, end in zip(patterns[used[first]], [0, *ends[:-1]], ends, strict=True):
            piece, columns = table[start:end, :], np.flatnonzero(np.append(True, seen))
            if end - start >= 2 * len(columns):
                index = xp.asarray(columns, device=filled.device)
                factor = xp.linalg.qr(xp.take(piece, index, axis=1))[1]
                piece = factor @ xp.take(eye_like(table.shape[1], table), index, axis=0)
            pieces.append(piece)
        table = xp.concat(pieces)
        counts = np.bincount(pattern, mass[used])
        return cls(
            xp.take(mask, chosen, axis=0),
            like(counts, filled),
            table[:, 1:],
            table[:, 0],
            np.cumsum([0, *(piece.shape[0] for piece in pieces)]),
            center,
            unit,
            float(counts.sum()),
        )

    @property
    def entries(self) -> float:
        """Number of observed entries, each counted with the weight of its row."""
        return float(self.counts @ namespace(self.mask).sum(self.mask, axis=1))

    def statistics(self, beta: Array, noise: float) -> Statistics:
        """Return the expected sufficient statistics of the rows, and their log-likelihood.

        For m features and k latents, `beta` (m, k + 1) contains the loadings and, as its last
        column, the mean; `noise` is the noise variance γ. They belong to the centred and scaled
        data.
        """
        xp, (m, k) = namespace(beta), (beta.shape[0], beta.shape[1] - 1)
        information = zeros_like_shape((m, (k + 1) ** 2), beta)
        cross, value, rest = zeros_like_shape((m, k + 1), beta), 0.0, 0.0
        for patterns, part, of_row, z, error, inverse, log_det in self._posteriors(
            beta, noise, (k + 1) ** 2
        ):
            mask, counts = self.mask[patterns, :], self.counts[patterns]
            misfit = float(xp.sum(error * error)) + noise * float(xp.sum(z * z))
            value -= (misfit / noise + float(counts @ log_det)) / 2
            shrunk = noise * xp.linalg.trace(inverse)
            rest += float(xp.sum(error * error)) + noise * float(counts @ (k - shrunk))
            latents = xp.concat([z, self.intercepts[part][:, None]], axis=1)
            outer = xp.reshape(latents[:, :, None] * latents[:, None, :], (-1, (k + 1) ** 2))
            # The posterior covariance γG⁻¹ of every row is added to the moments of its mean.
            spread = xp.zeros((counts.shape[0], k + 1, k + 1), dtype=z.dtype, device=z.device)
            spread[:, :k, :k] = (noise * counts)[:, None, None] * inverse
            information = information + of_row.mT @ outer
            information = information + mask.mT @ xp.reshape(spread, (-1, (k + 1) ** 2))
            cross = cross + self.rows[part, :].mT @ latents
        information = xp.reshape(information, (m, k + 1, k + 1))
        total = float(xp.sum(self.rows * self.rows))
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
        W, gradient = beta[:, :k], zeros_like_shape((m, m), beta)
        for patterns, _, _, _, error, inverse, _ in self._posteriors(beta, noise, m * (k + 1)):
            mask, counts = self.mask[patterns, :], self.counts[patterns]
            a = error / noise
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
        together = float(self.counts @ (seen * (seen - 1.0))) / max(1, m * (m - 1))
        return float(max(2.0, together))

    def _posteriors(self, beta: Array, noise: float, entries: int) -> Iterator[_PatternPosterior]:
        """Yield, for some patterns at a time, the posterior of the latents of their stored rows.

        Each part is so small that arrays with so many `entries` for each row fit into memory.
        """
        xp, (m, k) = namespace(beta), (beta.shape[0], beta.shape[1] - 1)
        W, mean, starts = beta[:, :k], beta[:, k], self.starts
        most = max(1, BLOCK_ENTRIES // max(m, entries))
        first, last = 0, len(starts) - 1
        while first < last:
            limit = int(np.searchsorted(starts, starts[first] + most, side="right")) - 1
            end = min(last, max(first + 1, limit))
            patterns, part = slice(first, end), slice(int(starts[first]), int(starts[end]))
            mask, sizes = self.mask[patterns, :], np.diff(starts[first : end + 1])
            inverse, log_det = inverses(mask, W, noise)
            owner = xp.asarray(np.repeat(np.arange(len(sizes)), sizes), device=mask.device)
            of_row, per_row = (xp.take(array, owner, axis=0) for array in (mask, inverse))
            centred = self.rows[part, :] - (self.intercepts[part][:, None] * of_row) * mean
            z = (per_row @ (centred @ W)[:, :, None])[:, :, 0]
            errors, observed = centred - of_row * (z @ W.mT), xp.sum(mask, axis=1)
            volume = log_det + (observed - k) * math.log(noise) + observed * math.log(2 * math.pi)
            yield _PatternPosterior(patterns, part, of_row, z, errors, inverse, volume)
            first = end


class _PatternPosterior(NamedTuple):
    """Posterior of the latents of the stored rows (a, v) of some patterns of observed features."""

    patterns: slice
    rows: slice  # the stored rows of these patterns
    of_row: Array  # the mask of each of these rows
    latents: Array  # the posterior means z
    errors: Array  # v − aμ − Wz in the observed features
    inverse: Array  # G⁻¹ of each pattern
    log_det: Array  # log det 2πC_oo of each pattern o


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
        noise = (self.squares - float(xp.sum(beta * self.cross))) / self.entries
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


def unmasked(X: Any) -> Any:
    """Return `X`; masked entries of a NumPy array become NaN."""
    if not isinstance(X, np.ma.MaskedArray) or not np.ma.is_masked(X):
        return X
    double = X.dtype if X.dtype in (np.float32, np.float64) else np.dtype(float)
    return np.ma.filled(X.astype(double), np.nan)


def observed_part(X: Array, weights: Array | None, names: Any = None) -> tuple[Array, Array]:
    """Return the rows of X (n, m) that have an observed entry and a positive weight, with weights.

    A feature without an observed entry raises a ValueError, and so do fewer than two rows; `names`
    are the names of the features for the message, or None. If all observed entries of each feature
    are equal, they also replace the missing ones.
    """
    xp = namespace(X)
    if weights is None:
        weights = xp.ones(X.shape[0], dtype=xp.float64, device=X.device)
    seen = ~to_numpy(xp.isnan(X))
    used = seen.any(axis=1) & (to_numpy(weights) > 0.0)
    never = np.flatnonzero(~seen[used].any(axis=0))
    if used.sum() < 2:
        raise ValueError(
            f"X has {used.sum()} rows with an observed entry and a positive weight, expected at "
            "least 2: n_samples is too small."
        )
    if len(never):
        listed = [str(j) if names is None else repr(str(names[j])) for j in never[:10]]
        more = f" and {len(never) - 10} more" if len(never) > 10 else ""
        raise ValueError(
            f"features {', '.join(listed)}{more} of X have no observed entry, so that nothing can "
            "be estimated about them. Remove these columns."
        )
    index = xp.asarray(np.flatnonzero(used), device=X.device)
    X, weights = xp.take(X, index, axis=0), xp.take(weights, index)
    with np.errstate(over="ignore", invalid="ignore"):
        center, apart = _centred(as_double(X), weights)
        filled = xp.where(xp.isnan(X), like(center, X), X)
        scatter = float(xp.sum(apart * apart))
    check_squares(filled, center, scatter, float(xp.sum(weights)))
    rounding = 8 * np.finfo(float).eps * float(xp.max(xp.abs(center)))
    return (filled if float(xp.max(xp.abs(apart))) <= rounding else X), weights


def _centred(X: Array, weights: Array) -> tuple[Array, Array]:
    """Return the mean of the observed entries of each feature, and deviations, 0 for missing ones.

    The mean of the deviations from a first mean corrects its rounding error.
    """
    xp, missing, center = namespace(X), namespace(X).isnan(X), 0.0
    share = weights @ xp.astype(~missing, xp.float64)
    for _ in range(2):
        center = center + (weights @ where_set(X - center, missing, 0.0)) / share
    return center, where_set(X - center, missing, 0.0)


class _Point(NamedTuple):
    """State of the solver: parameters θ, the loss and its derivatives at θ, and earlier steps.

    θ (`theta`) contains the loadings and the mean of each feature, and the logarithm of the noise
    variance. `loss` is the negative log-likelihood per row, `gradient` its gradient, and `distance`
    the scaled norm of the gradient, by which the solver stops. `statistics` are the expected
    sufficient statistics at θ, and `pairs` contains the last changes of θ and of the gradient, for
    L-BFGS.
    """

    theta: Array
    loss: float
    gradient: Array
    distance: float
    statistics: Statistics
    pairs: tuple[tuple[Array, Array], ...]


def _unpacked(theta: Array, k: int) -> tuple[Array, float]:
    """Return loadings and mean as one array (m, k + 1), and the noise variance, from θ.

    θ (`theta`) is the vector of all parameters, for m features and k latents; the mean is the last
    column of the array.
    """
    beta = namespace(theta).reshape(theta[:-1], (-1, k + 1))
    return beta, max(math.exp(min(float(theta[-1]), 700.0)), SMALLEST_NOISE)


def _packed(beta: Array, noise: float) -> Array:
    """Return the vector θ of all parameters: the inverse of `_unpacked`."""
    xp = namespace(beta)
    last = zeros_like_shape((1,), beta) + math.log(noise)
    return xp.concat([xp.reshape(beta, (-1,)), last])


@dataclass(frozen=True, slots=True)
class _ObservedLikelihood:
    """Negative log-likelihood of given rows under probabilistic PCA with k latents.

    It has methods for its value and gradient, and for one step of the solver.
    """

    rows: ObservedRows
    k: int

    def at(self, theta: Array, pairs: tuple[tuple[Array, Array], ...] = ()) -> _Point:
        """Return the solver's state (loss, gradient and more) at the parameters `theta`."""
        xp = namespace(theta)
        beta, noise = _unpacked(theta, self.k)
        found, n = self.rows.statistics(beta, noise), self.rows.weight
        slope = found.cross - (found.information @ beta[:, :, None])[:, :, 0]
        on_noise = (found.entries - found.rest / noise) / (2 * n)
        on_beta = -slope / (noise * n)
        size = noise * float(xp.sum(on_beta * on_beta)) + 2 / beta.shape[0] * on_noise**2
        if noise <= SMALLEST_NOISE and on_noise > 0.0:
            size = 0.0  # the likelihood has no maximum: the noise variance tends to zero
        last = zeros_like_shape((1,), beta) + on_noise
        gradient = xp.concat([xp.reshape(on_beta, (-1,)), last])
        return _Point(theta, -found.value / n, gradient, math.sqrt(size), found, pairs)

    def step(self, point: _Point) -> _Point:
        """Return the solver's state after one quasi-Newton step; the likelihood never decreases.

        If no quasi-Newton step increases the likelihood, an EM step is tried. If that fails too,
        the given state itself is returned.
        """
        direction = self._direction(point)
        slope = float(namespace(direction).sum(direction * point.gradient))
        rounding = 8 * np.finfo(float).eps * (abs(point.loss) + self.rows.mask.shape[1])
        # A large change of the noise could end at loadings of zero, which is a saddle point.
        length = 1.0 / max(1.0, abs(float(direction[-1])))
        for _ in range(HALVINGS if slope < 0.0 else 0):
            trial = self.at(point.theta + length * direction)
            enough = trial.loss <= point.loss + DECREASE * length * slope
            nearer = trial.loss <= point.loss + rounding and trial.distance < point.distance
            if enough or nearer:
                return self._remembered(point, trial)
            length /= 2
        trial = self.at(_packed(*point.statistics.maximized()))
        return trial if trial.loss < point.loss else point

    def _direction(self, point: _Point) -> Array:
        """Return −Hg for the gradient g, where H approximates the inverse Hessian (L-BFGS)."""
        xp = namespace(point.theta)
        g, used = point.gradient, []
        for change, turn in reversed(point.pairs):
            scale = 1.0 / float(xp.sum(change * turn))
            alpha = scale * float(xp.sum(change * g))
            g = g - alpha * turn
            used.append((change, turn, scale, alpha))
        g = self._em_step(point, g)
        for change, turn, scale, alpha in reversed(used):
            g = g + (alpha - scale * float(xp.sum(turn * g))) * change
        return -g

    def _em_step(self, point: _Point, gradient: Array) -> Array:
        """Return the step of expectation maximisation (EM) at `point`, for the given gradient.

        It is the gradient divided by the complete-data information: the second derivatives that the
        likelihood would have if the latents were observed. If the noise variance is small, EM
        hardly changes the loadings W and the mean μ within the span of W. The step of
        parameter-expanded EM (Liu, Rubin & Wu 1998), which also estimates mean and covariance of
        the latents, is therefore added: W sym(WᵀG)/2 for the gradient G of W, where
        sym(A) = (A + Aᵀ)/2, and WWᵀg for the gradient g of μ.
        """
        xp, found = namespace(gradient), point.statistics
        beta, noise = _unpacked(point.theta, self.k)
        W, on_beta = beta[:, :-1], xp.reshape(gradient[:-1], (-1, self.k + 1))
        factor = noise * self.rows.weight
        moved = factor * found.divided(on_beta)
        inside = W.mT @ on_beta
        turned = (inside[:, :-1] + inside[:, :-1].mT) / 4
        moved = moved + W @ xp.concat([turned, inside[:, -1:]], axis=1)
        on_noise = gradient[-1:] * (2.0 * self.rows.weight / found.entries)
        return xp.concat([xp.reshape(moved, (-1,)), on_noise])

    def _remembered(self, point: _Point, trial: _Point) -> _Point:
        """Return the state `trial`, with the change from `point` to it stored for L-BFGS.

        The changes of parameters and gradient are appended to its field `pairs`.
        """
        xp = namespace(point.theta)
        change, turn = trial.theta - point.theta, trial.gradient - point.gradient
        sizes = (float(xp.sum(a * b)) for a, b in ((change, turn), (change, change), (turn, turn)))
        inner, first, second = sizes
        if not inner > 1e-12 * math.sqrt(first * second):
            return trial._replace(pairs=point.pairs)
        return trial._replace(pairs=(*point.pairs, (change, turn))[-MEMORY:])


class ObservedFit(NamedTuple):
    """Result of maximum likelihood from rows with missing entries."""

    gaussian: ObservedGaussian
    n_components: int  # what `n_components` means for these rows
    criterion: ComponentCount | None  # result of the criterion that `n_components` names
    # How the iteration ended: that for the number of latents, if it did not converge, or the last.
    ended: Solution[_Point]
    history: History  # of the last iteration

    def warn(self) -> None:
        """Warn if the solver did not converge, or if the likelihood has no maximum."""
        if not self.ended.status.ok:
            warn_user(self.ended.advice, ConvergenceWarning)
        elif not self.gaussian.bounded:
            warn_user(
                "The likelihood of the observed entries has no maximum: so many components explain "
                "these entries without noise. The noise variance was set to a tiny number; choose "
                "a smaller n_components to estimate it.",
                ConvergenceWarning,
            )


def fit_observed(
    X: Array,
    weights: Array | None,
    wanted: Any,
    training: Options,
    previous: ObservedGaussian | None = None,
) -> ObservedFit:
    """Return the maximum-likelihood parameters of rows X (n, m) with missing entries.

    `wanted` is the argument `n_components`. None stands for all components that differ from noise:
    at most n − 1, and fewer than features vary if some are constant. For a share of the variance
    and for a criterion, k is the smallest number for which the fit with k latents says that k
    components suffice.
    """
    rows = ObservedRows.of(X, weights)
    n, m = int(X.shape[0]), int(X.shape[1])
    # With as many latents as features vary, the noise variance would tend to zero.
    varying = int(np.sum(rows.varying))
    most = max(1, varying - 1)
    # The last component of features that all vary is the direction of the noise.
    every = m if varying == m else most
    path: dict[int, tuple[int, Solution[_Point]]] = {}
    counts: dict[int, ComponentCount] = {}
    if isinstance(wanted, int):
        check_features(wanted, m)
        k = wanted
    elif wanted is None:
        k = min(every, n - 1)
    else:
        # Find k by fits that start from each other, between the bounds known so far.
        limit, tol = min(training.max_iter, PATH_STEPS), max(training.tol, PATH_TOLERANCE)
        rough = replace(training, max_iter=limit, tol=tol)
        low, high, k = 1, most, 1
        if not is_criterion(wanted):
            # Of many features, as many eigenvalues as are quickly found.
            values, _, trace = _start_eigenpairs(rows, most if m <= PAIRWISE_FEATURES else 50)
            k = min(most, reaching(wanted, to_numpy(values), trace))
        while k not in path:
            solution = _maximized(rows, k, rough, previous)
            beta, noise = _unpacked(solution.value.theta, k)
            previous = gaussian(beta, noise, rows)
            if is_criterion(wanted):
                counts[k] = _count(wanted, rows, beta, noise)
                needed = max(1, counts[k].n_components)
            else:
                spectrum = previous.spectrum(m)
                needed = reaching(wanted, to_numpy(spectrum.values), spectrum.trace)
            needed = needed if previous.bounded else min(needed, k)
            path[k] = min(needed, every), solution
            low, high = (k + 1, high) if needed > k else (low, k)
            k = min(max(needed, low), high)
        k = max(k, path[k][0])
    final = _maximized(rows, min(k, most), training, previous)
    found = gaussian(*_unpacked(final.value.theta, min(k, most)), rows)
    failed = [solution for _, solution in path.values() if not solution.status.ok]
    ended = failed[0] if failed and final.status.ok else final
    return ObservedFit(found, k, counts.get(min(k, most)), ended, final.history)


def _count(wanted: Any, rows: ObservedRows, beta: Array, noise: float) -> ComponentCount:
    """Return what a criterion finds by the eigenvalues of `ObservedRows.scored_covariance`.

    The number of rows is that of complete rows with the same sampling error, `ObservedRows.pairs`.
    """
    covariance = rows.scored_covariance(beta, noise)
    values, _ = eigh_descending(covariance)
    m = values.shape[0]
    size = min(m, max(1, int(rows.pairs) - 1))
    # Of fewer rows than features, only so many eigenvalues are positive. The estimate need not be
    # positive definite, but the noise is: zero would stand for data without noise.
    spread = np.maximum(to_numpy(values)[:size], 1e-3 * noise) * rows.unit**2
    return count_wanted(wanted, spread, rows.pairs, np.diag(to_numpy(covariance)))


def _maximized(
    rows: ObservedRows, k: int, training: Options, previous: ObservedGaussian | None
) -> Solution[_Point]:
    """Maximise the likelihood of the rows with k latents, from an earlier fit if there is one."""
    problem = _ObservedLikelihood(rows, k)
    # The log-likelihood per row increases by this if the data are divided by `rows.unit`.
    scale = rows.entries * math.log(rows.unit) / rows.weight
    return iterate(
        problem.step,
        problem.at(_packed(*first_parameters(rows, k, previous))),
        stop=Below(lambda point: point.distance, training.tol, patience=PATIENCE),
        limit=training.max_iter,
        record={"loss": lambda point: point.loss + scale},
        record_at=log_grid(training.max_iter),
        callbacks=progress_bars(f"training {k} components", training.verbose),
        size=rows.mask.shape[1],
    )


def gaussian(beta: Array, noise: float, rows: ObservedRows) -> ObservedGaussian:
    """Return the Gaussian model of the original data, from parameters of the scaled data.

    For m features and k latents, `beta` (m, k + 1) contains the loadings and, as its last column,
    the mean of the scaled data; `noise` is their noise variance.
    """
    k, unit = beta.shape[1] - 1, rows.unit
    left, lengths, _ = svd_thin(beta[:, :k])
    mean = rows.center + unit * beta[:, k]
    bounded = noise > 10 * SMALLEST_NOISE
    return ObservedGaussian(mean, unit * left * lengths, unit**2 * noise, rows.weight, bounded)


def first_parameters(
    rows: ObservedRows, k: int, previous: ObservedGaussian | None
) -> tuple[Array, float]:
    """Return the parameters from which the solver starts: loadings with mean, and noise variance.

    They come from the leading eigenpairs of an estimated covariance or from an earlier fit
    (`previous`): of more than k latents, the last ones become noise; fewer are completed by the
    eigenpairs, made orthogonal to its loadings.
    """
    xp = namespace(rows.rows)
    values, vectors, trace = _start_eigenpairs(rows, k)
    m = vectors.shape[0]
    noise = max((trace - float(xp.sum(values))) / (m - k), 0.01 * trace / m)
    lengths = values - noise
    W = vectors * xp.sqrt(where_set(lengths, lengths < noise / 4, noise / 4))
    mean = 0.0 * rows.center
    if previous is not None:
        mean = (like(previous.mean, W) - rows.center) / rows.unit
        every = like(previous.loadings, W) / rows.unit
        kept = min(k, every.shape[1])
        known, dropped = every[:, :kept], every[:, kept:]
        lost = float(xp.sum(dropped * dropped)) / (m - k)
        noise = max(previous.noise / rows.unit**2 + lost, 100 * SMALLEST_NOISE)
        basis, _ = xp.linalg.qr(known)
        left, _, _ = svd_thin(W - basis @ (basis.mT @ W))
        W = xp.concat([known, math.sqrt(noise) * left[:, : k - kept]], axis=1)
    return xp.concat([W, mean[:, None]], axis=1), noise


def _start_eigenpairs(rows: ObservedRows, k: int) -> tuple[Array, Array, float]:
    """Return k eigenvalues and eigenvectors of an estimated covariance, and its trace.

    With more than `PAIRWISE_FEATURES` features, missing entries count as zero, and each feature is
    rescaled by the share of its observed entries instead.
    """
    xp, m = namespace(rows.rows), rows.mask.shape[1]
    together = (rows.counts[:, None] * rows.mask).mT
    own = xp.sum(together, axis=1)
    variances = xp.sum(rows.rows * rows.rows, axis=0) / own
    trace = float(xp.sum(variances))
    if m <= PAIRWISE_FEATURES:
        number = together @ rows.mask
        products = rows.rows.mT @ rows.rows
        values, vectors = eigh_descending(products / where_set(number, number <= 0.0, 1.0))
        return values[:k], vectors[:, :k], trace
    # A feature that is observed in a share p of the rows is divided by √p, which makes the
    # diagonal unbiased.
    scaled = rows.rows / xp.sqrt(own)
    pairs = krylov_eigenpairs(lambda block: (block @ scaled.mT) @ scaled, k, own)
    assert pairs is not None, "without a limit of passes, the iteration goes on until it converges"
    return *pairs, trace
