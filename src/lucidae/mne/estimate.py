"""Coefficients of the selected sources of a whitened problem, and their posterior."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy.linalg
import scipy.sparse

from lucidae.sparsity.estimator import SparseVAE
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.path import NoisePath, noise_path
from lucidae.sparsity.posterior import ActiveFactor
from lucidae.validation import check_choice, check_number

__all__ = ["GroupEstimate", "observable_basis"]

Floats = np.ndarray[Any, Any]

NEGLIGIBLE = 1e-8
"""Prior variance along an axis of a source that counts as zero, relative to its largest one.

It is also the relative singular value below which a least-squares fit leaves a direction out."""

UNSEEN = 1e-6
"""Singular value of the field of a source below which a direction has no field.

It is relative to the largest singular value of the source. Files store fields in float32."""

PATH_STEP = 10.0**-0.25
"""Ratio of each noise variance on the default path to the one before.

The last one is that of the fit times this ratio. Below it, sources explain noise."""


def observable_basis(gain: Floats, labels: Floats) -> tuple[Floats, Any]:
    """Return the labels and the matrix of a basis of the directions of each group with a field.

    Radial dipoles in a spherical head have no magnetic field, up to rounding errors. Such
    directions of a group of columns are left out: the data say nothing about them, and the energy
    does not depend on them. Groups without such a direction keep their columns.

    Parameters
    ----------
    gain : ndarray of shape (d, κ)
        The columns.
    labels : ndarray of int of shape (κ,)
        Group of each column.

    Returns
    -------
    labels : ndarray of int of shape (r,)
        Group of each column of the basis.
    basis : sparse array of shape (κ, r)
        Orthonormal columns; ``gain @ basis`` are the columns to use.

    Examples
    --------
    >>> gain = np.array([[1.0, 1.0, 2.0], [0.0, 0.0, 1.0]])
    >>> labels, basis = observable_basis(gain, np.array([0, 0, 1]))
    >>> labels, abs(gain @ basis).round(3)
    (array([0, 1]), array([[1.414, 2.   ], [0.   , 1.   ]]))
    """
    rows, values, owners = [], [], []
    for _, members in Groups.of(labels, labels.size).by_size():
        blocks = gain[:, members].transpose(1, 2, 0)
        powers, axes = np.linalg.eigh(blocks @ blocks.transpose(0, 2, 1))
        seen = powers > UNSEEN**2 * powers[:, -1:]
        axes[seen.all(axis=1)] = np.eye(members.shape[1])
        group, axis = np.nonzero(seen)
        rows.append(members[group])
        values.append(axes[group, :, axis])
        owners.append(labels[members[group, 0]])
    sizes = np.concatenate([np.full(len(part), part.shape[1]) for part in rows])
    ends = np.concatenate([[0], np.cumsum(sizes)])
    flat = [np.concatenate([part.ravel() for part in parts]) for parts in (values, rows)]
    basis = scipy.sparse.csc_array((*flat, ends), shape=(labels.size, sizes.size))
    found = np.concatenate(owners)
    order = np.argsort(found, kind="stable")
    return found[order], basis[:, order]


@dataclass(frozen=True, eq=False)
class GroupEstimate:
    """A fit of `SparseVAE` to whitened data, and the posterior of the sources that it selects.

    The data M (d × n) are modelled as ΦU + noise of variance γ, where Φ is the gain. Let Γ be the
    prior covariance of the coefficients of the selected columns, which the fit has found. The
    posterior is that of the model with these columns alone: with Σ = ΦΓΦᵀ + γI, its mean is
    ΓΦᵀΣ⁻¹M and its covariance Γ − ΓΦᵀΣ⁻¹ΦΓ.

    Parameters
    ----------
    model : SparseVAE
        The estimator, fitted to all columns.
    gain : ndarray of shape (d, κ)
        The dictionary Φ.
    responses : ndarray of shape (d, n)
        The data M.
    labels : ndarray of int of shape (κ,)
        Group (source or patch) of each column.
    columns : ndarray of int of shape (a,)
        The columns of the selected groups.
    """

    model: SparseVAE
    gain: Floats
    responses: Floats
    labels: Floats
    columns: Floats

    @classmethod
    def fit(
        cls, gain: Floats, responses: Floats, labels: Floats, *, noise_variance: Any,
        group_covariance: Any, significance: Any, **settings: Any,
    ) -> Self:  # fmt: skip
        """Fit `SparseVAE` and select the groups; `settings` are further arguments of it."""
        if noise_variance == "learn_diagonal":
            raise ValueError(
                "noise_variance='learn_diagonal' was given, but the rows are whitened sensors, "
                "which have one noise variance: give a number, 'cv', 'cv_1se' or 'learn'."
            )
        kind = check_choice(group_covariance, "group_covariance", ("spherical", "full"))
        if significance is not None:
            check_number(
                significance, "significance", low=0.0, high=1.0, open_low=True, others=" or None"
            )
        single = np.unique(labels).size == labels.size
        model = SparseVAE(
            noise_variance=noise_variance,
            groups=None if single else labels,
            group_covariance="spherical" if single else kind,
            significance=0.05 if significance is None else significance,
            fit_intercept=False,
            **settings,
        ).fit(gain, responses)
        used = model.relevance_ > 0 if significance is None else model.support_
        columns = np.flatnonzero(np.isin(labels, labels[used]))
        return cls(model, gain, responses, labels, columns)

    @property
    def noise_variance(self) -> float:
        """The noise variance γ that was given or found."""
        return float(self.model.noise_variance_)

    @cached_property
    def groups(self) -> Floats:
        """Labels of the selected groups, ascending."""
        return np.unique(self.labels[self.columns])

    @cached_property
    def _roots(self) -> tuple[Floats, Floats]:
        """Matrix B with BBᵀ = Γ, and which of its columns have more than a negligible variance."""
        size = self.columns.size
        root, kept = np.zeros((size, size)), np.zeros(size, dtype=bool)
        selected = self.labels[self.columns]
        numbers = np.searchsorted(np.unique(self.labels), self.groups)
        for number, label in zip(numbers, self.groups, strict=True):
            here = np.flatnonzero(selected == label)
            prior = np.diag(self.model.relevance_[self.columns[here]])
            if hasattr(self.model, "group_covariances_"):
                prior = self.model.group_covariances_[number][: here.size, : here.size]
            variances, axes = np.linalg.eigh(prior)
            variances = np.maximum(variances, 0.0)
            root[np.ix_(here, here)] = axes * np.sqrt(variances)
            kept[here] = variances > NEGLIGIBLE * variances.max()
        return root, kept

    @cached_property
    def _factor(self) -> ActiveFactor:
        """Factor of the posterior of the latents Z with unit variance, where U = BZ."""
        scaled = self.gain[:, self.columns] @ self._roots[0]
        return ActiveFactor.of(scaled, np.ones(self.columns.size), self.noise_variance)

    @cached_property
    def mean(self) -> Floats:
        """Posterior mean of the coefficients of the selected columns, of shape (a, n)."""
        return np.asarray(self._roots[0] @ self._factor.mean(self.responses))

    @cached_property
    def covariance(self) -> Floats:
        """Posterior covariance of the coefficients of one response, of shape (a, a)."""
        if not self.columns.size:
            return np.zeros((0, 0))
        latent = self._factor.posterior(self.noise_variance)
        root = self._roots[0]
        return np.asarray(root @ latent.covariance(np.arange(self.columns.size)) @ root.T)

    @cached_property
    def debiased(self) -> Floats:
        """Least-squares coefficients of the selected columns, of shape (a, n), without shrinkage.

        Each group varies along the axes of its prior covariance that have a positive variance, so
        that a source whose orientation was found to be constant keeps this orientation.
        """
        root, kept = self._roots
        fields = self.gain[:, self.columns] @ root[:, kept]
        lengths = np.linalg.norm(fields, axis=0)
        scales = np.where(lengths > 0, 1.0 / np.where(lengths > 0, lengths, 1.0), 0.0)
        if not kept.any():
            return np.zeros_like(self.mean)
        found = scipy.linalg.lstsq(fields * scales, self.responses, cond=NEGLIGIBLE)[0]
        return np.asarray(root[:, kept] @ (scales[:, None] * found))

    def path(self, noise_variances: Any, cv: Any) -> NoisePath:
        """Return the solutions along a path of noise variances, see `SourceResult.noise_path`."""
        if noise_variances is None and cv is False:
            outer = self.responses @ self.responses.conj().T / self.responses.shape[1]
            high = float(np.linalg.eigvalsh(outer)[-1])
            steps = np.ceil(np.log(self.noise_variance / high) / np.log(PATH_STEP)) if high else 0
            noise_variances = self.noise_variance * PATH_STEP ** np.arange(-max(steps, 0.0), 2.0)
        names = ("groups", "group_covariance", "significance", "max_iter", "tol", "random_state")
        settings = {name: getattr(self.model, name) for name in names}
        return noise_path(
            self.gain, self.responses, noise_variances, cv, fit_intercept=False, **settings
        )
