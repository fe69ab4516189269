"""The Gaussian posterior of the coefficients, predictions from it, and its storage.

With S = ΦW^½ on the a active columns and C = (I + SᵀS/γ)⁻¹ the covariance is W^½CW^½ and the mean
W^½CSᵀX/γ. By Woodbury's identity C = I − Sᵀ(SSᵀ + γI)⁻¹S and CSᵀ/γ = Sᵀ(SSᵀ + γI)⁻¹. The smaller of
the two matrices is factorised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import (
    Array,
    add_diagonal,
    adjoint,
    as_complex,
    as_double,
    cholesky,
    device,
    diagonal,
    eye_like,
    is_array,
    is_complex,
    like,
    machine_epsilon,
    matched,
    namespace,
    of_one_kind,
    put,
    real_part,
    scalar,
    solve_lower,
    squared_moduli,
    to_numpy,
    zeros_like_shape,
)
from lucidae.sparsity.dictionary import Dictionary, dense_columns
from lucidae.sparsity.problem import root_by_qr

ILL_CONDITIONED = 1e-8
"""Noise variance, over the largest squared norm, below which QR replaces Cholesky factors.

Below it, the Cholesky factor would lose more than half of the digits."""


@dataclass(frozen=True, slots=True)
class ActiveFactor:
    """The active columns of a dictionary, with the matrix factor that gives their posterior."""

    # (a,): indices of the active columns, those with positive relevance
    active: np.ndarray[Any, Any]
    roots: Array  # (a,): square roots of their relevances
    scaled: Array  # (d, a): the active columns times these roots, called S below
    # (a, a): lower triangular Cholesky factor, with the noise variance γ, of SᵀS + γI if
    # `explicit`, and of SSᵀ + γI otherwise
    lower: Array
    # if the factored matrix is ill-conditioned, B with S = BLᵀ (or Sᵀ = BLᵀ) from a QR
    # decomposition, where L is `lower`; else None
    basis: Array | None
    explicit: bool  # whether there are no more active columns than rows
    n_columns: int  # number of all columns of the dictionary
    # principal axes of groups of columns, along which the columns are taken; None for the columns
    # themselves
    axes: Any = None

    @classmethod
    def of(
        cls, dictionary: Dictionary, relevance: Array, noise: float, axes: Any = None
    ) -> ActiveFactor:
        """Return the `ActiveFactor` of a dictionary whose rows are already centred and weighted."""
        xp = namespace(relevance)
        active = np.flatnonzero(to_numpy(relevance))
        index = xp.asarray(active, device=device(relevance))
        roots = xp.sqrt(xp.take(relevance, index, axis=0))
        if axes is None:
            columns = dense_columns(dictionary, active)
        else:
            columns = axes.columns_at(dictionary, active)
        scaled = columns * roots[None, :]
        explicit = scaled.shape[1] <= scaled.shape[0]
        gram = adjoint(scaled) @ scaled if explicit else scaled @ adjoint(scaled)
        lower, definite = cholesky(add_diagonal(gram, noise))
        basis = None
        if not bool(definite) or noise < ILL_CONDITIONED * _largest(real_part(diagonal(gram))):
            lower, basis = root_by_qr(scaled if explicit else adjoint(scaled), noise)
        return cls(active, roots, scaled, lower, basis, explicit, relevance.shape[0], axes)

    def mean(self, responses: Array) -> Array:
        """Return the posterior mean WΦᵀΣ⁻¹X, of shape (κ, n)."""
        index, found = self._possible_mean(responses)
        nothing = zeros_like_shape((self.n_columns, responses.shape[1]), found)
        return put(nothing, index, found) if index.size else nothing

    def _possible_mean(self, responses: Array) -> tuple[np.ndarray[Any, Any], Array]:
        """Return the indices of columns whose coefficients may not be zero, and their mean."""
        found = self._active_mean(responses)
        if self.axes is None:
            return self.active, found
        return self.axes.coefficients_from(found, self.active)  # type: ignore[no-any-return]

    def nonzero_mean(self, responses: Array) -> tuple[np.ndarray[Any, Any], Array]:
        """Return the indices of the columns whose coefficients are not zero, and their mean."""
        index, mean = self._possible_mean(responses)
        if self.axes is None:
            return index, mean
        xp = namespace(mean)
        kept = np.flatnonzero(to_numpy(xp.any(mean != 0, axis=1)))
        return index[kept], xp.take(mean, xp.asarray(kept, device=device(mean)), axis=0)

    def _active_mean(self, responses: Array) -> Array:
        """Return the posterior mean of the coefficients of active columns (or axes)."""
        if is_complex(responses) and not is_complex(self.scaled):
            xp = namespace(responses)  # the mean is linear in X, with real factors
            parts = xp.real(responses), xp.imag(responses)
            return self._active_mean(parts[0]) + 1j * self._active_mean(parts[1])
        responses = as_complex(responses) if is_complex(self.scaled) else responses
        if not self.active.size:
            return zeros_like_shape((0, responses.shape[1]), responses)
        return self.roots[:, None] * self._latent(responses)

    def _latent(self, responses: Array) -> Array:
        """Return the posterior mean divided by the prior standard deviations, shape (a, n)."""
        lower, scaled = self.lower, self.scaled
        if self.basis is not None:
            # With S = BLᵀ, L⁻ᵀL⁻¹SᵀX is L⁻ᵀBᵀX, the least-squares solution for [S; √γ I]; with
            # Sᵀ = BLᵀ, SᵀL⁻ᵀL⁻¹X is BL⁻¹X. Products with S would lose the digits that QR keeps.
            if self.explicit:
                return solve_lower(lower, adjoint(self.basis) @ responses, transpose=True)
            return self.basis @ solve_lower(lower, responses)
        if self.explicit:
            half = solve_lower(lower, adjoint(scaled) @ responses)
            return solve_lower(lower, half, transpose=True)
        half = solve_lower(lower, responses)
        return adjoint(scaled) @ solve_lower(lower, half, transpose=True)

    def posterior(self, noise: float) -> Posterior:
        """Return the posterior covariance of the coefficients as a `Posterior`."""
        shape = (self.explicit, self.n_columns, self.axes)
        if not self.active.size:
            return Posterior(self.active, self.roots, self.lower, *shape)
        if self.explicit:
            root = noise**0.5  # C = γ(SᵀS + γI)⁻¹ = KᵀK with K = √γ L⁻¹
            half = root * solve_lower(self.lower, eye_like(self.lower.shape[0], self.lower))
        else:
            half = solve_lower(self.lower, self.scaled)
        return Posterior(self.active, self.roots, half, *shape)


def _largest(values: Array) -> float:
    """Return the largest entry of a vector as a float; 0 if the vector is empty."""
    return scalar(namespace(values).max(values)) if values.shape[0] else 0.0


def posterior_mean(
    dictionary: Dictionary, responses: Array, relevance: Array, noise: float, axes: Any = None
) -> Array:
    """Return the posterior mean of the coefficients, of shape (n_columns, n_responses)."""
    return ActiveFactor.of(dictionary, relevance, noise, axes).mean(responses)


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """Posterior covariance of the coefficients, which is the same for all responses.

    On the active columns it is W^½KᵀKW^½ if these are at most as many as rows (`explicit`), and
    W^½(I − KᵀK)W^½ otherwise.
    """

    active: Any  # (a,): indices of the active columns, those with positive relevance
    roots: Array  # (a,): square roots of their relevances
    factor: Array  # (min(a, n_rows): the matrix K
    explicit: bool  # whether the covariance is W^½ KᵀK W^½; if False, it is W^½ (I − KᵀK) W^½
    n_columns: int  # number of all columns of the dictionary
    axes: Any = None  # principal axes of the covariances of groups of columns

    def prior_roots(self, groups: Any) -> Any:
        """Return square roots A of the prior covariances AAᵀ of groups with `axes`."""
        deviations = np.zeros(self.n_columns)
        deviations[self.active] = to_numpy(self.roots)
        return self.axes.covariance_roots(deviations, groups)

    def variance(self, rows: Array) -> Array:
        """Return xᵀCx, the variance of the mean predicted for each row x, without the noise."""
        xp = namespace(rows)
        if self.axes is not None:
            return self.active_variance(self.axes.columns_at(rows, self.active))
        index = xp.asarray(self.active, device=device(rows))
        return self.active_variance(xp.take(rows, index, axis=1))

    def active_variance(self, columns: Array) -> Array:
        """Return `variance` for rows of the active columns alone."""
        xp = namespace(columns)
        scaled, factor = columns * self.roots, self.factor
        if is_complex(scaled) or is_complex(factor):
            scaled, factor = as_complex(scaled), as_complex(factor)
        inner = xp.sum(squared_moduli(scaled @ adjoint(factor)), axis=1)
        if self.explicit:
            return inner
        spread = xp.sum(squared_moduli(scaled), axis=1) - inner
        return xp.maximum(spread, 0.0 * spread)

    def covariance(self, indices: Any) -> Array:
        """Return the posterior covariance of the coefficients of the columns `indices`."""
        wanted = np.asarray(indices)
        if self.axes is None:
            return self._along_axes(wanted)
        # The coefficients are linear in those along the axes of the groups that are involved.
        involved = self.axes.closure(wanted)
        block = self._along_axes(involved)
        xp = namespace(block)
        chosen = np.zeros((self.n_columns, involved.size))
        chosen[involved, np.arange(involved.size)] = 1.0
        turn = self.axes.coefficients(like(chosen, block))
        turn = xp.take(turn, xp.asarray(wanted, device=device(block)), axis=0)
        return turn @ block @ adjoint(turn)

    def _along_axes(self, wanted: Any) -> Array:
        """Return the posterior covariance along some principal axes of groups."""
        xp = namespace(self.roots)
        place = np.full(self.n_columns, -1)
        place[self.active] = np.arange(self.active.size)
        found = place[wanted]
        known = xp.asarray(np.flatnonzero(found >= 0), device=device(self.roots))
        chosen = xp.asarray(found[found >= 0], device=device(self.roots))
        columns = xp.take(self.factor, chosen, axis=1)
        core = adjoint(columns) @ columns
        if not self.explicit:
            core = eye_like(core.shape[0], core) - core
        roots = xp.take(self.roots, chosen, axis=0)
        block = core * roots[:, None] * roots[None, :]
        selection = like(xp.take(eye_like(wanted.size, self.roots), known, axis=1), block)
        return selection @ block @ selection.mT


@dataclass(frozen=True, slots=True, eq=False)
class CorrelatedPosterior:
    """Posterior of the coefficients if those of different responses are correlated.

    Let S = ΦW^½ = QD^½Pᵀ on the active columns and B = VΛVᵀ the covariance over the n responses. In
    the basis V the coefficients of response t have the covariance W^½(λₜI − P diag(λₜ²D/(λₜD +
    γ))Pᵀ)W^½.
    """

    active: Any  # (a,): indices of the active columns, those with positive relevance
    roots: Any  # (a,): square roots of their relevances
    # (r, a): the matrix Pᵀ and the diagonal of D, where r is the smaller of a and the number of
    # rows
    directions: Any
    powers: Any
    values: Any  # (n,): eigenvalues λ and eigenvectors V of B
    vectors: Any
    noise: float  # the noise variance γ
    n_columns: int  # number of all columns of the dictionary

    @classmethod
    def fitted(
        cls,
        dictionary: Any,
        responses: Any,
        relevance: Any,
        noise: float,
        values: Any,
        vectors: Any,
    ) -> tuple[CorrelatedPosterior, Any]:
        """Return the posterior, and its mean of shape (n_columns, n_responses)."""
        active = np.flatnonzero(relevance)
        roots = np.sqrt(relevance[active])
        scaled = dense_columns(dictionary, active) * roots
        basis, singular, directions = np.linalg.svd(scaled, full_matrices=False)
        shrunk = np.outer(singular, values) / (np.outer(singular**2, values) + noise)
        latent = (shrunk * (basis.T @ responses @ vectors)) @ vectors.T
        mean = np.zeros((relevance.size, responses.shape[1]))
        mean[active] = roots[:, None] * (directions.T @ latent)
        powers = singular**2
        return cls(active, roots, directions, powers, values, vectors, noise, relevance.size), mean

    @property
    def _explained(self) -> Any:
        """Return λₜ²D/(λₜD + γ) along directions, rotated back to the responses, (r, n)."""
        ratios = self.values**2 * self.powers[:, None]
        return (ratios / (np.outer(self.powers, self.values) + self.noise)) @ (self.vectors**2).T

    def variance(self, rows: Any) -> Any:
        """Return the posterior variance of each predicted mean, of shape (n_rows, n_responses)."""
        return self.active_variance(rows[:, self.active])

    def active_variance(self, columns: Any) -> Any:
        """Return `variance` for rows of the active columns alone."""
        scaled = columns * self.roots
        prior = (scaled**2).sum(axis=1)[:, None] * (self.vectors**2 @ self.values)
        spread = prior - (scaled @ self.directions.T) ** 2 @ self._explained
        return np.maximum(spread, 0.0)

    def covariance(self, indices: Any) -> Any:
        """Return the posterior covariance matrices of the coefficients of the columns `indices`."""
        place = np.full(self.n_columns, -1)
        place[self.active] = np.arange(self.active.size)
        found = place[np.asarray(indices)]
        roots = np.where(found >= 0, np.append(self.roots, 0.0)[found], 0.0)
        chosen = self.directions[:, found]
        explained = np.einsum("ri,rs,rj->sij", chosen, self._explained, chosen)
        same = np.asarray(indices)[:, None] == np.asarray(indices)
        prior = (self.vectors**2 @ self.values)[:, None, None] * same
        return (prior - explained) * roots[:, None] * roots


KEPT_DIGITS = 1e-5
"""Largest relative change of a fitted number that matters when it is stored as float32."""


def level_at_center(coef: Array, intercept: Any, center: Array, level: Array | None) -> Array:
    """Return the prediction cU + b for the mean training row c.

    Rows are predicted as (x − c)U + (cU + b), which loses no digits far from zero. The more
    accurate `level` of the fit is returned if it agrees with the stored, rounded b; it does not if
    a user assigned other values.
    """
    xp = namespace(coef)
    stored = machine_epsilon(intercept if is_array(intercept) else coef)
    offset = matched(intercept, coef) if is_array(intercept) else intercept + 0.0 * coef[:, 0]
    coef, center = of_one_kind(coef, center)
    plain = coef @ center + offset
    if level is None:
        return plain
    terms = xp.abs(coef) @ xp.abs(center) + xp.abs(level)
    return xp.where(xp.abs(plain - level) <= 4.0 * stored * terms, level, plain)


def determination(targets: Any, predicted: Any, weights: Any) -> float:
    """Return R² of complex predictions, averaged over outputs as `r2_score` does."""
    mean = weights @ targets / weights.sum()
    errors = weights @ np.abs(targets - predicted) ** 2
    spread = weights @ np.abs(targets - mean) ** 2
    varies = spread > 0
    ratios = errors / np.where(varies, spread, 1.0)
    return float(np.where(varies, 1.0 - ratios, errors == 0).mean())


def narrowed(values: Array, ref: Array, name: str) -> Array:
    """Return `values` in library, precision and device of `ref`; raise if they leave its range."""
    xp = namespace(values)
    if bool(xp.all(xp.abs(values) <= namespace(ref).finfo(ref.dtype).max)):
        return matched(values, ref)
    largest = scalar(xp.max(xp.abs(values)))
    if as_double(ref).dtype == ref.dtype or not largest < float("inf"):
        raise ValueError(
            f"{name} is not finite, because numbers in the computation leave the range of float64. "
            "Rescale X and y, or give a larger noise_variance."
        )
    raise ValueError(
        f"{name} has an entry of magnitude {largest:.3g}, which is outside the range of "
        f"{ref.dtype}. Rescale X or y, or give X as float64."
    )


def check_kept(exact: Array, stored: Array, sizes: Array, name: str) -> None:
    """Raise an error if entries that matter are too small to be stored in the dtype of the data."""
    xp = namespace(exact)
    largest = xp.abs(exact)
    ones = xp.ones_like(largest)
    lost = xp.abs(stored - exact) / xp.where(exact == 0, ones, largest)
    if bool(xp.any((lost > KEPT_DIGITS) & (sizes > KEPT_DIGITS * xp.max(sizes)))):
        smallest = scalar(xp.min(xp.where(exact == 0, xp.inf * ones, largest)))
        raise ValueError(
            f"{name} has entries of magnitude {smallest:.3g}, which are too small for float32. "
            "Rescale X or y, or give X as float64."
        )
