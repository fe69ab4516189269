"""The Gaussian posterior of the coefficients, predictions from it, and its storage.

With S = ΦW^½ on the a active columns and C = (I + SᵀS/γ)⁻¹ the covariance is W^½CW^½ and the mean
W^½CSᵀX/γ. By Woodbury's identity C = I − Sᵀ(SSᵀ + γI)⁻¹S and CSᵀ/γ = Sᵀ(SSᵀ + γI)⁻¹. The smaller of
the two matrices is factorised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from lucidae.arrays import (
    Array,
    adjoint,
    as_double,
    cholesky,
    is_array,
    machine_epsilon,
    matched,
    namespace,
    scalar,
    solve_lower,
    squared_moduli,
    to_numpy,
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
    def of(cls, dictionary: Dictionary, relevance: Any, noise: float, axes: Any = None) -> Self:
        """Return the `ActiveFactor` of a dictionary whose rows are already centred and weighted."""
        active = np.flatnonzero(relevance)
        roots = np.sqrt(relevance[active])
        columns = dense_columns if axes is None else axes.columns_at
        scaled = columns(dictionary, active) * roots
        explicit = scaled.shape[1] <= scaled.shape[0]
        gram = adjoint(scaled) @ scaled if explicit else scaled @ adjoint(scaled)
        largest = np.diagonal(gram).real.max(initial=0.0)
        lower, definite = cholesky(gram + noise * np.eye(len(gram)))
        basis = None
        if not bool(definite) or noise < ILL_CONDITIONED * largest:
            lower, basis = root_by_qr(scaled if explicit else adjoint(scaled), noise)
        return cls(active, roots, scaled, lower, basis, explicit, relevance.shape[0], axes)

    def mean(self, responses: Any) -> Any:
        """Return the posterior mean WΦᵀΣ⁻¹X, of shape (κ, n)."""
        index, found = self.nonzero_mean(responses)
        mean = np.zeros((self.n_columns, responses.shape[1]), found.dtype)
        mean[index] = found
        return mean

    def nonzero_mean(self, responses: Any) -> tuple[Any, Any]:
        """Return the indices of the columns whose coefficients are not zero, and their mean."""
        if responses.dtype.kind == "c" and self.scaled.dtype.kind != "c":
            index, real = self.nonzero_mean(responses.real)
            return index, real + 1j * self.nonzero_mean(responses.imag)[1]
        found = self.roots[:, None] * self._latent(responses.astype(self.scaled.dtype))
        if self.axes is None:
            return self.active, found
        return self.axes.coefficients_from(found, self.active)  # type: ignore[no-any-return]

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
        if self.explicit:  # C = γ(SᵀS + γI)⁻¹ = KᵀK with K = √γ L⁻¹
            half = noise**0.5 * solve_lower(self.lower, np.eye(len(self.lower)))
        else:
            half = solve_lower(self.lower, self.scaled)
        return Posterior(
            self.active, self.roots, half, self.explicit, self.n_columns, self.axes
        )  # fmt: skip


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

    @property
    def involved(self) -> Any:
        """Indices of the columns on which predictions depend: active ones and their groups."""
        return self.active if self.axes is None else self.axes.among(self.active)[1]

    def variance(self, columns: Any) -> Any:
        """Return xᵀCx, the variance of the predicted mean, for rows x of the columns `involved`."""
        if self.axes is not None:
            part, involved = self.axes.among(self.active)
            columns = part.columns(columns)[:, np.searchsorted(involved, self.active)]
        scaled = columns * self.roots
        inner = squared_moduli(scaled @ adjoint(self.factor)).sum(axis=1)
        if self.explicit:
            return inner
        return np.maximum(squared_moduli(scaled).sum(axis=1) - inner, 0.0)

    def covariance(self, indices: Any) -> Any:
        """Return the posterior covariance of the coefficients of the columns `indices`."""
        # Coefficients are HW^½v for latents v with covariance KᵀK or I − KᵀK; H are the rows of the
        # identity, or of the axes of groups.
        half = np.eye(self.active.size)
        index = self.active
        if self.axes is not None:
            index, half = self.axes.coefficients_from(half, self.active)
        turn = np.zeros((len(indices), self.active.size), half.dtype)
        known = np.isin(indices, index)
        turn[known] = half[np.searchsorted(index, np.asarray(indices)[known])] * self.roots
        inner = turn @ adjoint(self.factor)
        inner = inner @ adjoint(inner)
        return inner if self.explicit else turn @ adjoint(turn) - inner


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

    @property
    def involved(self) -> Any:
        """Indices of the columns on which predictions depend."""
        return self.active

    def variance(self, columns: Any) -> Any:
        """Return the variance of the predicted means, (n_rows, n_responses), for `columns`."""
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


def level_at_center(coef: Any, intercept: Any, center: Any, level: Any) -> Any:
    """Return the prediction cU + b for the mean training row c.

    Rows are predicted as (x − c)U + (cU + b), which loses no digits far from zero. The more
    accurate `level` of the fit is returned if it agrees with the stored, rounded b; it does not if
    a user assigned other values.
    """
    stored = machine_epsilon(intercept if is_array(intercept) else coef)
    plain = coef @ center + to_numpy(intercept)
    if level is None:
        return plain
    terms = np.abs(coef) @ np.abs(center) + np.abs(level)
    return np.where(np.abs(plain - level) <= 4.0 * stored * terms, level, plain)


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
