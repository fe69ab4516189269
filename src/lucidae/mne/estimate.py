"""Coefficients of the selected sources of a whitened problem, and their posterior."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning

from lucidae.certificate import Certificate
from lucidae.mne.certificate import SelectedSources, with_selection
from lucidae.sparsity.estimator import SparseVAE
from lucidae.sparsity.group_covariance import GroupCovariance
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.noise import WAYS, checked_noise
from lucidae.sparsity.objectives import FullCovariance
from lucidae.sparsity.path import NoisePath, noise_path
from lucidae.sparsity.posterior import ActiveFactor
from lucidae.sparsity.problem import normalise
from lucidae.sparsity.solvers import advice_on, solve
from lucidae.sparsity.support import (
    covariance_threshold,
    removal_cost,
    significance_threshold,
)
from lucidae.validation import check_choice, check_number, warn_user

__all__ = ["GroupEstimate", "observable_basis"]

Floats = np.ndarray[Any, Any]

NEGLIGIBLE = 1e-8
"""Largest ratio of a source's prior variance along an axis to its largest that counts as zero.

It is also the relative singular value below which a least-squares fit leaves a direction out."""

UNSEEN = 1e-6
"""A direction of a source has no field if its singular value is below this part of the largest.

Files store fields in float32."""

DOUBT = 3.0
"""A source is doubtful if it is not significant at this multiple of the noise variance."""

PATH_STEP = 10.0**-0.25
"""Ratio of each noise variance on the default path to the one before.

The smallest noise variance is that of the fit times this ratio. At still smaller ones, sources
would explain noise."""


def observable_basis(gain: Floats, labels: Floats) -> tuple[Floats, Any]:
    """Return, for each source, a basis of those current directions that produce a field.

    A source is a group of columns of the gain, one for each direction of its current. Radial
    currents in a spherical head have no magnetic field, up to rounding errors. Such directions are
    left out, because the data contain no information about them. If all directions of a source have
    a field, its columns are unchanged.

    Parameters
    ----------
    gain : ndarray of shape (d, κ)
        The gain: the fields of κ unit currents at d sensors.
    labels : ndarray of int of shape (κ,)
        Source (group) of each column.

    Returns
    -------
    labels : ndarray of int of shape (r,)
        Source of each of the r columns of the basis.
    basis : sparse array of shape (κ, r)
        Orthonormal columns; ``gain @ basis`` is the gain of the remaining directions.

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

    The data M (d × n) are n samples of d whitened sensors. They are modelled as ΦU + noise of
    variance γ, where Φ is the gain and U are the coefficients of its κ columns. With the prior
    covariance Γ of the coefficients of the a selected columns, and Σ = ΦΓΦᵀ + γI on these columns,
    the posterior has the mean ΓΦᵀΣ⁻¹M and the covariance Γ − ΓΦᵀΣ⁻¹ΦΓ.

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
    prior : ndarray of shape (a, a)
        The prior covariance Γ of the coefficients of these columns.
    factor : float, default=1.0
        The noise variance γ is that of the model times this factor.
    level : float, optional
        The significance level, the probability of any false group under the model. None if all
        groups with a positive prior variance are selected.
    """

    model: SparseVAE
    gain: Floats
    responses: Floats
    labels: Floats
    columns: Floats
    prior: Floats
    factor: float = 1.0
    level: float | None = None

    @classmethod
    def fit(
        cls, gain: Floats, responses: Floats, labels: Floats, *, noise_variance: Any,
        group_covariance: Any, significance: Any, **settings: Any,
    ) -> GroupEstimate:  # fmt: skip
        """Fit `SparseVAE` to whitened data, and select the groups of columns that are significant.

        The groups (sources or patches) that are not significant are removed, and the prior
        covariances of the remaining groups are fitted again. If `significance` is None, all groups
        with a positive prior variance are selected. `gain`, `responses` and `labels` are those of
        the class; `settings` are further arguments of `SparseVAE`.
        """
        if isinstance(noise_variance, str) and noise_variance == "learn_diagonal":
            raise ValueError(
                "noise_variance='learn_diagonal' was given, but the rows are whitened sensors, "
                "which have one noise variance: give a number, 'cv', 'cv_1se' or 'learn'."
            )
        checked_noise(noise_variance, tuple(way for way in WAYS if way != "learn_diagonal"))
        kind = check_choice(group_covariance, "group_covariance", ("spherical", "full"))
        _check_folds(settings.get("cv"), len(gain))
        level = 0.05 if significance is None else significance
        check_number(level, "significance", low=0.0, high=1.0, open_low=True, others=" or None")
        single = np.unique(labels).size == labels.size
        template = SparseVAE(
            noise_variance=noise_variance,
            groups=None if single else labels,
            group_covariance="spherical" if single else kind,
            significance=level,
            fit_intercept=False,
            **settings,
        )
        model = template._fit_on(gain, responses, None, None, deferred=True, zeros=True)
        columns = np.flatnonzero(np.isin(labels, labels[np.asarray(model.relevance_) > 0]))
        prior = _prior_of(model, labels, columns)
        found = cls(model, gain, responses, labels, columns, prior, level=significance)
        return found._without_insignificant()

    def _without_insignificant(self) -> GroupEstimate:
        """Return an estimate that contains only significant groups, fitted again without others.

        If `level` is None, all groups are kept.
        """
        if self.level is None:
            return self
        found, kept = self, self._significant(self.level)
        while kept.size < found.columns.size:
            found = found._restricted(kept)
            kept = found._significant(self.level)
        return found

    @property
    def noise_variance(self) -> float:
        """The noise variance γ of the fitted model (given or estimated), times `factor`."""
        return self.factor * float(self.model.noise_variance_)

    @cached_property
    def groups(self) -> Floats:
        """Labels of the selected groups, ascending."""
        return np.unique(self.labels[self.columns])

    @cached_property
    def doubtful(self) -> Floats:
        """Labels of selected groups that are not significant at `DOUBT` times the noise variance.

        Such groups may be artefacts of errors of the gain. The fit represents these errors by
        weak sources near the true ones.
        """
        if not self.columns.size:
            return self.groups
        level = float(self.model.significance)
        louder = replace(self, factor=DOUBT * self.factor, level=level)._restricted(self.columns)
        remaining = louder._without_insignificant()
        return np.setdiff1d(self.groups, remaining.groups)

    def _significant(self, significance: float) -> Floats:
        """Return the columns of the significant groups; other groups are removed one at a time.

        A group is significant if its evidence exceeds its threshold (see `_thresholds`). In each
        step the group with the smallest difference of the two is removed, until all remaining
        groups are significant. One at a time, because two groups with nearly the same field can
        replace each other: neither is significant while both are present, but one of them is when
        it is alone.
        """
        if not self.columns.size:
            return self.columns
        groups = Groups.of(self.labels[self.columns], self.columns.size)
        n_responses, thresholds = self.responses.shape[1], self._thresholds(significance)
        # With D = ΦB, P = DᵀΣ⁻¹D and Q = DᵀΣ⁻¹M/√n, a group costs log|I − P| + tr(Qᵀ(I − P)⁻¹Q) on
        # its own rows and columns. By Woodbury's identity I − P is the posterior covariance of the
        # latents, and Q their posterior mean divided by √n.
        left = self._factor.posterior(self.noise_variance).covariance(np.arange(groups.labels.size))
        loading = self._factor.mean(self.responses) / np.sqrt(n_responses)
        kept, sizes = np.ones(groups.count, dtype=bool), groups.by_size()
        while kept.any():
            excess = np.full(groups.count, np.inf)
            for numbers, members in sizes:
                here = kept[numbers]
                index = members[here]
                blocks = left[index[:, :, None], index[:, None, :]]
                lost = removal_cost(blocks, loading[index], 1.0)
                excess[numbers[here]] = n_responses * lost - thresholds[numbers[here]]
            least = int(excess.argmin())
            if excess[least] > 0.0:
                break
            # The inverse of `left` is the posterior precision. Removing a group deletes its rows
            # and columns there, which is a Schur complement here.
            kept[least] = False
            gone = np.flatnonzero(groups.labels == least)
            share = np.linalg.solve(left[np.ix_(gone, gone)], left[gone]).T
            loading = loading - share @ loading[gone]
            left = left - share @ left[gone]
        return np.asarray(self.columns[kept[groups.labels]])

    def _thresholds(self, significance: float) -> Floats:
        """Return, for each selected group, the evidence that it must exceed to be significant.

        The evidence of a group is twice the decrease of the log-likelihood without this group.
        """
        _, sizes = np.unique(self.labels[self.columns], return_counts=True)
        by_size = self._thresholds_by_size(significance, np.unique(sizes))
        return np.array([by_size[int(size)] for size in sizes])

    def _thresholds_by_size(self, significance: float, sizes: Floats) -> dict[int, float]:
        """Return the thresholds of `_thresholds` by the number of columns of a group."""
        count, full = np.unique(self.labels).size, self.model.group_covariance == "full"
        return {
            int(size): covariance_threshold(significance, count, int(size))
            if full
            else significance_threshold(significance, count)
            for size in sizes
        }

    @cached_property
    def certificate(self) -> Certificate:
        """Claims about the selected groups, followed by those of the fit to all groups."""
        _, sizes = np.unique(self.labels, return_counts=True)
        level, parameters = self.level, self.model._state.parameters
        assert parameters is not None
        thresholds = None if level is None else self._thresholds_by_size(level, np.unique(sizes))
        selected = SelectedSources(
            self.gain, self.responses, self.labels, self.columns, self.prior, self.mean,
            self.noise_variance, self.model.group_covariance == "full", thresholds,
            float(parameters["tol"]),
        )  # fmt: skip
        return with_selection(self.model.certificate_, selected)

    def _restricted(self, columns: Floats) -> GroupEstimate:
        """Return the estimate for fewer `columns`; their prior covariances are fitted again."""
        if not columns.size:
            return replace(self, columns=columns, prior=np.zeros((0, 0)))
        here = np.searchsorted(self.columns, columns)
        labels = self.labels[columns]
        prior = self._refitted(columns, labels, self.prior[np.ix_(here, here)])
        used = np.isin(labels, labels[np.diagonal(prior) > 0])
        return replace(self, columns=columns[used], prior=prior[np.ix_(used, used)])

    def _refitted(self, columns: Floats, labels: Floats, prior: Floats) -> Floats:
        """Return the prior covariance of some columns that minimises the energy (loss).

        `columns` are some of the selected columns and `labels` their groups. The solver starts from
        `prior`, their covariance in the fit to all selected columns.
        """
        model, size = self.model, columns.size
        groups = None if model.groups is None else Groups.of(labels, size)
        full = groups is not None and model.group_covariance == "full"
        energy = GroupCovariance(groups) if full else FullCovariance(groups)
        problem, units = normalise(self.gain[:, columns], self.responses, groups=groups)
        problem = problem.with_noise(float(units.normalised_noise(self.noise_variance)))
        start = units.normalised_relevance(np.diagonal(prior))
        factors = units.relevance(np.ones(size))
        if groups is not None and full:
            start = prior[groups.members[:, :, None], groups.members[:, None, :]]
            start = start * (groups.present[:, :, None] * groups.present[:, None, :])
            start = start / factors[groups.members[:, :1, None]]
        solution = solve(problem, energy, start=start, tolerance=model.tol, limit=model.max_iter)
        if not solution.status.ok:
            warn_user(advice_on(solution), ConvergenceWarning)
        if groups is None or not full:
            return np.diag(units.relevance(solution.value.relevance))
        found = np.zeros((size, size))
        for number, block in enumerate(energy.parameters(solution.value)):
            index = groups.members[number][groups.present[number] > 0]
            found[np.ix_(index, index)] = block[: index.size, : index.size] * factors[index[0]]
        return found

    @cached_property
    def _roots(self) -> tuple[Floats, Floats]:
        """Matrix B with BBᵀ = Γ, the prior covariance of the coefficients, and a mask.

        The mask is False for the columns of B that count as zero (see `NEGLIGIBLE`).
        """
        size = self.columns.size
        root, kept = np.zeros((size, size)), np.zeros(size, dtype=bool)
        selected = self.labels[self.columns]
        for label in self.groups:
            here = np.flatnonzero(selected == label)
            variances, axes = np.linalg.eigh(self.prior[np.ix_(here, here)])
            variances = np.maximum(variances, 0.0)
            root[np.ix_(here, here)] = axes * np.sqrt(variances)
            kept[here] = variances > NEGLIGIBLE * variances.max()
        return root, kept

    @cached_property
    def _factor(self) -> ActiveFactor:
        """Factorised posterior covariance of the latents Z, which have the prior N(0, I).

        The coefficients of the selected columns are BZ, where BBᵀ is their prior covariance.
        """
        scaled = self.gain[:, self.columns] @ self._roots[0]
        return ActiveFactor.of(scaled, np.ones(self.columns.size), self.noise_variance)

    @cached_property
    def mean(self) -> Floats:
        """Posterior mean of the coefficients of the a selected columns for n responses, (a, n)."""
        return np.asarray(self._roots[0] @ self._factor.mean(self.responses))

    @cached_property
    def covariance(self) -> Floats:
        """Posterior covariance (a, a) of the coefficients of the a selected columns.

        It is the same for every response.
        """
        if not self.columns.size:
            return np.zeros((0, 0))
        latent = self._factor.posterior(self.noise_variance)
        root = self._roots[0]
        return np.asarray(root @ latent.covariance(np.arange(self.columns.size)) @ root.T)

    @cached_property
    def debiased(self) -> Floats:
        """Least-squares coefficients (a, n) of the a selected columns for n responses.

        The prior does not shrink them towards zero. The coefficients of a group are restricted to
        the axes of its prior covariance that have a positive variance. A source that was found to
        have a constant orientation therefore keeps it.
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
        """Return the fits for a series of noise variances.

        The arguments are those of `SourceResult.noise_path`.
        """
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

    def selected_along(self, path: NoisePath) -> list[Floats]:
        """Return the columns that are selected at each noise variance of a path, as by `fit`.

        Groups that are not significant are removed one at a time. The test of `noise_path` removes
        all of them at once, and so both of two groups with nearly the same field.
        """
        found = []
        for number, noise in enumerate(path.noise_variances):
            relevance = path.relevances[number]
            columns = np.flatnonzero(np.isin(self.labels, self.labels[relevance > 0]))
            prior = path.prior_covariance(number, columns)
            at = replace(
                self, columns=columns, prior=prior, factor=noise / float(self.model.noise_variance_)
            )
            found.append(at._without_insignificant().columns)
        return found


def _check_folds(cv: Any, n_rows: int) -> None:
    """Raise an error if `cv` is a number of folds that is larger than the number of rows."""
    if isinstance(cv, int | np.integer) and cv > n_rows:
        raise ValueError(
            f"cv={cv} was given, expected at most {n_rows} folds, the number of whitened sensors "
            "(the rank of the noise covariance): a fold has at least one of them."
        )


def _prior_of(model: SparseVAE, labels: Floats, columns: Floats) -> Floats:
    """Return the prior covariance of the coefficients of some `columns` of a fitted model.

    `labels` are the groups of all columns of the model.
    """
    prior = np.diag(np.asarray(model.relevance_)[columns])
    if model.group_covariance == "spherical":
        return prior
    numbers = np.searchsorted(np.unique(labels), labels[columns])
    for number in np.unique(numbers):
        here = np.flatnonzero(numbers == number)
        prior[np.ix_(here, here)] = model.group_covariances_[number][: here.size, : here.size]
    return prior
