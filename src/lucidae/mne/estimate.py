"""Coefficients of the selected sources of a whitened problem, and their posterior.

Products with a few hundred sensors gain nothing from threads, which wait for each other: what is
fitted later than by `sparse_vae` uses one thread of BLAS as well.

The *evidence* of a group of columns (a source or a patch) is twice the decrease of the
log-likelihood without this group.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.special
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from lucidae.arrays.threads import one_thread
from lucidae.certificates.claims import Certificate
from lucidae.mne.certificate import SelectedSources, with_selection
from lucidae.sparsity.estimator import SparseVAE
from lucidae.sparsity.noise import checked_noise
from lucidae.sparsity.objectives import FullCovariance, GroupCovariance
from lucidae.sparsity.path import NoisePath, noise_path
from lucidae.sparsity.posterior import (
    covariance_threshold,
    removal_costs,
)
from lucidae.sparsity.prior import (
    Groups,
    full_moves,
    inverse_root,
    spherical_moves,
    square_root,
)
from lucidae.sparsity.problem import Problem, group_grams, normalise
from lucidae.sparsity.solve import advice_on, fitted_parameters
from lucidae.sparsity.working_set import SolverSettings, change_covariance_, move_all
from lucidae.validation import check_choice, check_number, check_rows, warn_user

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

LOUDEST = 1e-4
"""Noise variance, relative to the mean square of the data, below which all sources are fitted.

Updates of a selection lose too many digits then."""

ENTRY = 0.2
"""Share of its threshold that the evidence of a source exceeds when it enters a selection.

With 0.5 and 1, sources were missed: two that explain a third one together must both be in to
replace it."""

MOVED = 0.1
"""The same for a move of a source that has entered already."""

BETTER = 1.0
"""Twice the log-likelihood by which another place of a source must be better."""

STRONGEST = 0.1
"""Moves end below this share of the first one, until all sources are ranked again.

Others are better placed first: without this share, up to 20 times as many moves were needed."""

CANDIDATES = 40
"""Number of sources that may enter before all are ranked again."""

EXAMINED = 10
"""Number of sources whose evidence is computed again with the other sources fitted without them."""

NEARLY = 1.2
"""Evidence, relative to the threshold, below which the others are fitted again to full accuracy."""

REFITTED = 1e-3
"""Change of the evidence, relative to its threshold, at which this fit of other sources ends."""

SLOW = 0.05
"""Change of the evidence, relative to its distance from the threshold, at which the fit ends.

The changes of the rounds fall geometrically, and more of them would not reach the threshold."""

ROUNDS = 50
"""Largest number of times that each of the other sources is fitted again."""

PATH_STEP = 10.0**-0.25
"""Ratio of each noise variance on the default path to the one before.

The smallest noise variance is that of the fit times this ratio. At still smaller ones, sources
would explain noise."""


def observable_basis(gain: Floats, labels: Floats, least: float) -> tuple[Floats, Any]:
    """Return, for each source, a basis of those current directions that produce a field.

    Radial currents in a spherical head have no magnetic field, up to rounding errors. Directions
    whose field is below `least` times the strongest are left out, because the data contain no
    information about them. If all directions of a source have a field, its columns are unchanged.
    """
    rows, values, owners = [], [], []
    for _, members in Groups.of(labels, labels.size).by_size:
        powers, axes = np.linalg.eigh(group_grams(gain, members))
        seen = powers > least**2 * powers[:, -1:]
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
    if len(owners) == 1:  # the columns are in the order of the sources
        return found, basis
    order = np.argsort(found, kind="stable")
    return found[order], basis[:, order]


@dataclass(frozen=True, eq=False)
class GroupEstimate:
    """The sources that a fit of `SparseVAE` to whitened data selects, and their posterior.

    The data M (d × n) are n samples of d whitened sensors. They are modelled as ΦU + noise of
    variance γ, where Φ is the gain and U are the coefficients of its κ columns. With the prior
    covariance Γ of the coefficients of the a selected columns, and Σ = ΦΓΦᵀ + γI on these columns,
    the posterior has the mean ΓΦᵀΣ⁻¹M and the covariance Γ − ΓΦᵀΣ⁻¹ΦΓ.
    """

    template: SparseVAE  # an estimator with the parameters of the fit, which is not fitted itself
    gain: Floats  # (d, κ): the dictionary Φ
    responses: Floats  # (d, n): the data M
    labels: Floats  # (κ,): group (source or patch) of each column
    columns: Floats  # (a,): the columns of the selected groups
    prior: Floats  # (a, a): the prior covariance Γ of the coefficients of these columns
    noise_variance: float  # the noise variance γ
    # the significance level, the probability of any false group under the model
    level: float | None = None
    # the number of independent samples, None for all n of them
    samples: float | None = None
    fitted: SparseVAE | None = None  # the fit to all columns, if there is one already

    @classmethod
    def fit(
        cls, gain: Floats, responses: Floats, labels: Floats, *, noise_variance: float | str,
        group_covariance: str, significance: float | None, **settings: Any,
    ) -> GroupEstimate:  # fmt: skip
        """Return the estimate for whitened data, with groups that are significant so far.

        The method `significant` tests whether others can replace them.
        """
        checked_noise(noise_variance)
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
        template._checked_objective(gain.shape[1])
        for rows in (gain, responses):
            check_rows(rows)
        simple = settings.keys() <= {"cv", "random_state", "max_iter", "tol"}
        small = not isinstance(noise_variance, str) and (
            float(noise_variance) < LOUDEST * np.mean(responses**2)
        )
        if isinstance(noise_variance, str) or significance is None or small or not simple:
            model = _fitted(template, gain, responses)
            columns = np.flatnonzero(np.isin(labels, labels[np.asarray(model.relevance_) > 0]))
            prior, noise = _prior_of(model, labels, columns), float(model.noise_variance_)
        else:
            model, noise = None, float(noise_variance)
            columns, prior = np.zeros(0, dtype=int), np.zeros((0, 0))
        found = cls(
            template, gain, responses, labels, columns, prior, noise, significance, fitted=model
        )
        if model is not None:
            return found
        columns, prior = forward_selection(
            gain, responses, labels, noise, found.thresholds, found.full
        )
        found = replace(found, columns=columns, prior=prior)
        return found._restricted(found._significant())

    def significant(self, samples: float | None = None) -> GroupEstimate:
        """Return the estimate of significant groups only, fitted again without the others.

        `samples` is the number of independent samples, by default that of all samples.
        """
        found = replace(self, samples=samples)
        while (kept := found.kept()).size < found.columns.size:
            found = found._restricted(kept)
        return found

    def kept(self) -> Floats:
        """Return the columns without groups that are not significant, or without a replaceable one.

        They are all columns if every group is significant and none can be replaced by others.
        """
        if self.level is None:
            return self.columns
        kept = self._significant()
        return kept if kept.size < self.columns.size else self._without_replaceable()

    @cached_property
    @one_thread()
    def model(self) -> SparseVAE:
        """The fit to all columns."""
        return self.fitted or _fitted(self.template, self.gain, self.responses)

    @cached_property
    def groups(self) -> Floats:
        """Labels of the selected groups, ascending."""
        return np.unique(self.labels[self.columns])

    @cached_property
    @one_thread()
    def doubtful(self) -> Floats:
        """Labels of selected groups that are not significant at `DOUBT` times the noise variance.

        Such groups may be artefacts of errors of the gain. The fit represents these errors by
        weak sources near the true ones.
        """
        return np.setdiff1d(self.groups, self.remaining(DOUBT))

    @one_thread()
    def remaining(self, factor: float) -> Floats:
        """Return the labels of the groups that are significant at a multiple of the noise."""
        if not self.columns.size:
            return self.groups
        level = float(self.template.significance)
        return replace(self.louder(factor), level=level).significant(self.samples).groups

    def louder(self, factor: float) -> GroupEstimate:
        """Return the estimate of the same groups, fitted at a multiple of the noise variance."""
        noise = factor * self.noise_variance
        return replace(self, noise_variance=noise, fitted=None)._restricted(self.columns)

    @cached_property
    def thresholds(self) -> dict[int, float]:
        """The evidence in all samples that a group must exceed, by its number of columns.

        If n samples count as s independent ones, the evidence in these, s/n of that in all samples,
        must exceed the threshold of the test.
        """
        if self.level is None:
            return {}
        _, sizes = np.unique(self.labels, return_counts=True)
        ratio = 1.0 if self.samples is None else self.responses.shape[1] / self.samples
        return {
            int(size): ratio * covariance_threshold(self.level, sizes.size, int(size))
            if self.full
            else ratio * float(scipy.special.chdtri(1, self.level / sizes.size))
            for size in np.unique(sizes)
        }

    @property
    def full(self) -> bool:
        """Whether each group has a covariance of its own, instead of one variance."""
        return bool(self.template.group_covariance == "full")

    def at(self, priors: dict[int, Floats]) -> GroupEstimate:
        """Return the estimate of other groups, with given prior covariances by label."""
        columns = np.flatnonzero(np.isin(self.labels, list(priors)))
        owners, prior = self.labels[columns], np.zeros((columns.size,) * 2)
        for label, one in priors.items():
            here = np.flatnonzero(owners == label)
            shared = np.trace(one) / here.size * np.eye(here.size)
            prior[np.ix_(here, here)] = one if self.full else shared
        return replace(self, columns=columns, prior=prior)

    def reduced(self, labels: Floats, basis: Any) -> GroupEstimate:
        """Return the estimate for the columns Φ`basis` of fewer directions of each source."""
        columns = np.flatnonzero(np.isin(labels, self.groups))
        turn = basis[:, columns].tocsr()[self.columns].toarray()
        template = clone(self.template)
        if template.groups is not None:
            template.set_params(groups=labels)
        gain, prior = self.gain @ basis, turn.T @ self.prior @ turn
        found = replace(self, gain=gain, labels=labels, columns=columns, prior=prior)
        return replace(found, template=template, fitted=None)

    def moved(self, gain: Floats, responses: Floats) -> GroupEstimate:
        """Return the estimate of the same groups, fitted to another gain and other data."""
        there = replace(self, gain=gain, responses=responses, fitted=None)
        return there._restricted(self.columns)

    def _significant(self) -> Floats:
        """Return the columns of the significant groups; other groups are removed one by one.

        A group is significant if its evidence exceeds its threshold (see `thresholds`). In each
        step the group with the smallest difference of the two is removed, until all remaining
        groups are significant. One by one, because two groups with nearly the same field can
        replace each other: neither is significant while both are present, but one of them is when
        it is alone.
        """
        if not self.columns.size:
            return self.columns
        groups = Groups.of(self.labels[self.columns], self.columns.size)
        left, moment = self._latent_moments()
        sizes = groups.by_size
        while any(len(numbers) for numbers, _ in sizes):
            excess = self._excess(left, moment, sizes, groups.count)
            least = int(excess.argmin())
            if excess[least] > 0.0:
                break
            # The inverse of `left` is the posterior precision. Removing a group deletes its rows
            # and columns there, which is a Schur complement here.
            (gone,) = (members[n == least][0] for n, members in sizes if least in n)
            share = np.linalg.solve(left[gone[:, None], gone], left[gone]).T
            half = moment[gone] - 0.5 * moment[gone[:, None], gone] @ share.T
            both = share @ half
            left -= share @ left[gone]
            moment -= both + both.T
            sizes = [(n[n != least], members[n != least]) for n, members in sizes]
        kept = np.concatenate([numbers for numbers, _ in sizes])
        return np.asarray(self.columns[np.isin(groups.labels, kept)])

    def _excess(self, left: Floats, moment: Floats, sizes: Any, count: int) -> Floats:
        """Return by how much the evidence of groups exceeds their thresholds; others have ∞."""
        found = np.full(count, np.inf)
        for numbers, members in sizes:
            place = (members[:, :, None], members[:, None, :])
            lost = removal_costs(left[place], moment[place])
            found[numbers] = self.responses.shape[1] * lost - self.thresholds[members.shape[1]]
        return found

    def _without_replaceable(self) -> Floats:
        """Return the columns without the group that others can replace best, if there is one.

        The evidence of a group in `_significant` is computed with the prior covariances of the
        other groups fixed. Here these are fitted again without the group, which lowers the
        evidence, to low accuracy unless it is near the threshold. If that of some groups falls
        below their thresholds, the one with the smallest difference is left out. Only the
        `EXAMINED` weakest groups are examined.
        """
        size = self.columns.size
        groups = Groups.of(self.labels[self.columns], size) if size else None
        if groups is None or groups.count < 2:
            return self.columns
        worst, gone = 0.0, -1
        problem, present = self._in_span(groups)
        if not np.isfinite(before := energy_of(problem, groups, present)):
            return self.columns
        excess = self._excess(*self._latent_moments(), groups.by_size, groups.count)
        for number in np.argsort(excess)[:EXAMINED]:
            kind = full_moves if self.full else spherical_moves
            threshold = self.thresholds[int(np.sum(groups.labels == number))]
            lost = loss_without(problem, groups, kind, number, threshold, present, before)
            if threshold <= lost < NEARLY * threshold:
                energy = energy_of(problem, groups, self._refitted(groups, number))
                lost = min(lost, self.responses.shape[1] * (energy - before))
            if lost - threshold < worst:
                worst, gone = lost - threshold, number
        return np.asarray(self.columns[groups.labels != gone])

    def _refitted(self, groups: Groups, number: int) -> list[Floats]:
        """Return the prior covariances, as by `_in_span`, fitted without the group `number`."""
        rest = self._restricted(self.columns[groups.labels != number])
        prior = np.zeros_like(self.prior)
        here = np.searchsorted(self.columns, rest.columns)
        prior[np.ix_(here, here)] = rest.prior
        return _blocks(prior, groups)

    def _in_span(self, groups: Groups) -> tuple[Problem, list[Floats]]:
        """Return the problem of the selected columns in their span, and the prior covariances."""
        # Responses outside of the span only add a constant to the energy.
        basis, columns = np.linalg.qr(self.gain[:, self.columns])
        nothing = np.zeros(())
        problem = Problem(
            columns, basis.T @ self.responses, nothing + self.noise_variance, nothing, nothing
        )
        return problem, _blocks(self.prior, groups)

    def _latent_moments(self) -> tuple[Floats, Floats]:
        """Return the posterior covariance of the latents, and the second moment of their means."""
        # With D = ΦB, P = DᵀΣ⁻¹D and Q = DᵀΣ⁻¹M/√n, a group costs log|I − P| + tr(Qᵀ(I − P)⁻¹Q) on
        # its own rows and columns. By Woodbury's identity I − P is the posterior covariance of the
        # latents, and Q their posterior mean divided by √n.
        mean, covariance = self._latents
        return covariance.copy(), mean @ mean.T / self.responses.shape[1]

    @cached_property
    @one_thread()
    def certificate(self) -> Certificate:
        """Claims about the selected groups, followed by those of the fit to all groups."""
        selected = SelectedSources(
            self.gain, self.responses, self.labels, self.columns, self.prior, self.mean,
            self.noise_variance, self.full, self.thresholds, float(self.template.tol),
        )  # fmt: skip
        return with_selection(self.model.certificate_, selected)

    def _restricted(self, columns: Floats) -> GroupEstimate:
        """Return the estimate for fewer `columns`; their prior covariances are fitted again."""
        if not columns.size:
            return replace(self, columns=columns, prior=np.zeros((0, 0)))
        here = np.searchsorted(self.columns, columns)
        used, prior = fit_prior(
            self.template, self.gain[:, columns], self.responses, self.labels[columns],
            self.noise_variance, self.prior[np.ix_(here, here)],
        )  # fmt: skip
        return replace(self, columns=columns[used], prior=prior)

    @cached_property
    def _roots(self) -> tuple[Floats, Floats]:
        """Matrix B with BBᵀ = Γ, the prior covariance of the coefficients, and a mask.

        The mask is False for the columns of B that count as zero (see `NEGLIGIBLE`).
        """
        size = self.columns.size
        root, kept = np.zeros((size, size)), np.zeros(size, dtype=bool)
        if not size:
            return root, kept
        for _, members in Groups.of(self.labels[self.columns], size).by_size:
            place = (members[:, :, None], members[:, None, :])
            variances, axes = np.linalg.eigh(self.prior[place])
            variances = np.maximum(variances, 0.0)
            root[place] = axes * np.sqrt(variances)[:, None, :]
            kept[members] = variances > NEGLIGIBLE * variances.max(axis=1, keepdims=True)
        return root, kept

    @cached_property
    def _latents(self) -> tuple[Floats, Floats]:
        """Posterior mean (a, n) and covariance (a, a) of the latents Z, with the prior N(0, I).

        The coefficients of the selected columns are BZ, where BBᵀ is their prior covariance.
        """
        fields = self.gain[:, self.columns] @ self._roots[0]
        # ΦB = V diag(s) Pᵀ without its square, so that no digits are lost if the noise is small.
        # Rows of zeros give P all directions of the latents.
        padding = np.zeros((max(self.columns.size - len(fields), 0), self.columns.size))
        left, sizes, right = np.linalg.svd(np.vstack([fields, padding]), full_matrices=False)
        total = (sizes**2 + self.noise_variance)[:, None]
        mean = right.T @ (sizes[:, None] / total * (left[: len(fields)].T @ self.responses))
        return mean, right.T @ (self.noise_variance / total * right)

    @cached_property
    def mean(self) -> Floats:
        """Posterior mean of the coefficients of the a selected columns for n responses, (a, n)."""
        return np.asarray(self._roots[0] @ self._latents[0])

    @cached_property
    def covariance(self) -> Floats:
        """Posterior covariance (a, a) of the coefficients of the a selected columns."""
        root = self._roots[0]
        return np.asarray(root @ self._latents[1] @ root.T)

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

    @one_thread()
    def path(self, noise_variances: Any, cv: Any) -> NoisePath:
        """Return the fits for a series of noise variances."""
        if noise_variances is None and cv is False:
            outer = self.responses @ self.responses.conj().T / self.responses.shape[1]
            high = float(np.linalg.eigvalsh(outer)[-1])
            steps = np.ceil(np.log(self.noise_variance / high) / np.log(PATH_STEP)) if high else 0
            noise_variances = self.noise_variance * PATH_STEP ** np.arange(-max(steps, 0.0), 2.0)
        names = ("groups", "group_covariance", "significance", "max_iter", "tol", "random_state")
        settings = {name: getattr(self.template, name) for name in names}
        return noise_path(
            self.gain, self.responses, noise_variances, cv, fit_intercept=False, **settings
        )

    @one_thread()
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
            at = replace(self, columns=columns, prior=prior, noise_variance=float(noise))
            found.append(at.significant(self.samples).columns)
        return found


def _blocks(prior: Floats, groups: Groups) -> list[Floats]:
    """Return the diagonal blocks of a prior covariance, (k, m, m) for the k groups of each size."""
    return [prior[index[:, :, None], index[:, None, :]] for _, index in groups.by_size]


def _check_folds(cv: Any, n_rows: int) -> None:
    """Raise an error if `cv` is a number of folds that is larger than the number of rows."""
    if isinstance(cv, int | np.integer) and cv > n_rows:
        raise ValueError(
            f"cv={cv} was given, expected at most {n_rows} folds, the number of whitened sensors "
            "(the rank of the noise covariance): a fold has at least one of them."
        )


def _fitted(template: SparseVAE, gain: Floats, responses: Floats) -> SparseVAE:
    """Return a fitted copy of `template`; its certificate is computed when it is first read."""
    model: SparseVAE = clone(template)
    return model._fit_on(gain, responses, None, None, None, zeros=True)


def _prior_of(model: SparseVAE, labels: Floats, columns: Floats) -> Floats:
    """Return the prior covariance of the coefficients of some `columns` of a fitted model."""
    if model.group_covariance == "spherical":
        return np.diag(np.asarray(model.relevance_)[columns])
    groups = Groups.of(labels, labels.size)
    return block_diagonal(groups, np.asarray(model.group_covariances_), columns)


def fit_prior(
    template: SparseVAE, gain: Floats, responses: Floats, labels: Floats, noise: float,
    prior: Floats,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Fit the prior covariances of groups of columns to whitened data, by minimising the energy.

    Only what `GroupEstimate` needs of the fit is computed, which takes less time than a fit of the
    estimator.
    """
    groups = None if template.groups is None else Groups.of(labels, labels.size)
    full = groups is not None and template.group_covariance == "full"
    energy = GroupCovariance(groups) if full else FullCovariance(groups)
    problem, units = normalise(gain, responses, groups=groups)
    problem, factors = problem.with_noise(noise, units), units.relevance
    if groups is not None and full:
        factors = factors[groups.members[:, :1, None]]
        start = prior[groups.members[:, :, None], groups.members[:, None, :]]
        start = start * (groups.present[:, :, None] * groups.present[:, None, :]) / factors
    else:
        start = np.diagonal(prior) / factors
    settings = SolverSettings(tolerance=template.tol, limit=template.max_iter)
    solution, fitted = fitted_parameters(problem, energy, settings, start)
    if not solution.status.ok:
        warn_user(advice_on(solution), ConvergenceWarning)
    variances = np.asarray(fitted) * factors
    if groups is None or not full:
        columns = np.flatnonzero(variances)
        return columns, np.diag(variances[columns])
    columns = groups.columns(np.flatnonzero(variances.any(axis=(1, 2))))
    return columns, block_diagonal(groups, variances, columns)


def block_diagonal(groups: Groups, covariances: Floats, columns: Floats) -> Floats:
    """Return the covariance of the coefficients of some columns from those of all groups."""
    found = np.zeros((columns.size, columns.size))
    numbers, places = np.unique(groups.labels[columns], return_inverse=True)
    if not numbers.size:
        return found
    for here, members in Groups.of(places, columns.size).by_size:
        blocks = covariances[numbers[here], : members.shape[1], : members.shape[1]]
        found[members[:, :, None], members[:, None, :]] = blocks
    return found


def loss_without(
    problem: Problem, groups: Groups, kind: Any, number: int, threshold: float,
    present: list[Floats], before: float,
) -> float:  # fmt: skip
    """Return twice the log-likelihood that is lost without a group, with the others fitted again.

    They move one after the other to their best prior covariances, until the loss is below
    the threshold, or until a round changes it by less than `REFITTED` times the threshold or `SLOW`
    times its distance from the threshold. So a result above the threshold is an upper bound.
    """
    n_responses, loss = problem.responses.shape[1], np.inf
    kept = [numbers != number for numbers, _ in groups.by_size]
    members = [index[mask] for (_, index), mask in zip(groups.by_size, kept, strict=True)]
    priors = [prior[mask] for prior, mask in zip(present, kept, strict=True)]
    with suppress(np.linalg.LinAlgError):  # the rest is impossible up to rounding
        for _ in range(ROUNDS):
            energy, gram = _energy_and_gram(problem, members, priors)
            change, loss = loss - n_responses * (energy - before), n_responses * (energy - before)
            if loss < threshold or change < max(REFITTED * threshold, SLOW * (loss - threshold)):
                break
            move_all(gram, members, priors, kind)
    return float(loss)


def energy_of(problem: Problem, groups: Groups, present: list[Floats]) -> float:
    """Return the energy per response, infinite if rounding errors make it impossible."""
    try:
        return _energy_and_gram(problem, [index for _, index in groups.by_size], present)[0]
    except np.linalg.LinAlgError:
        return np.inf


def _energy_and_gram(
    problem: Problem, members: list[Floats], priors: list[Floats]
) -> tuple[float, Floats]:
    """Return the energy per response, and the matrix `gram` of `blocks.move_all`."""
    columns, n_responses = problem.dictionary, problem.responses.shape[1]
    covariance = float(problem.noise) * np.eye(len(columns))
    for index, prior in zip(members, priors, strict=True):
        fields = columns[:, index.ravel()]
        turned = columns[:, index].transpose(1, 0, 2) @ prior
        covariance += turned.transpose(1, 0, 2).reshape(fields.shape) @ fields.T
    lower = np.linalg.cholesky(covariance)
    both = np.hstack([columns, problem.responses / np.sqrt(n_responses)])
    white = scipy.linalg.solve_triangular(lower, both, lower=True)
    fit = float((white[:, columns.shape[1] :] ** 2).sum())
    gram = white[:, : columns.shape[1]].T @ white
    return fit + 2.0 * float(np.log(np.diagonal(lower)).sum()), gram


def forward_selection(
    gain: Floats, responses: Floats, labels: Floats, noise: float, thresholds: dict[int, float],
    full: bool,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return the columns of groups that explain more than noise beside each other, and their prior.

    The covariance of that group moves to its best value, with all others fixed, whose evidence
    grows most beyond a share of its threshold (`ENTRY`, `MOVED`). If there is none, a group gives
    its place to another one that explains more beside the others, until there is none either.
    """
    groups, count = Groups.of(labels, labels.size), responses.shape[1]
    moves, width = full_moves if full else spherical_moves, groups.members.shape[1]
    least = np.array([thresholds[int(size)] for size in groups.present.sum(axis=1)])
    # The columns of the groups; smaller ones are padded by zeros.
    stack = np.moveaxis(gain[:, groups.members] * groups.present, 1, 0)
    basis = np.eye(width)
    if full:  # orthonormal columns, since differences of S lose the digits of weak directions
        basis = np.swapaxes(inverse_root(np.swapaxes(stack, 1, 2) @ stack), 1, 2)
        stack = stack @ basis
    gain = np.moveaxis(stack, 0, 1).reshape(len(gain), -1)
    members = np.arange(gain.shape[1]).reshape(-1, width)
    # A root R of the moment of the data, and ΦᵀΣ⁻¹Φ and ΦᵀΣ⁻¹R without sources.
    root = np.asarray(np.linalg.qr(responses.T, mode="r")).T / np.sqrt(count)
    metrics, loadings = group_grams(gain, members) / noise, gain.T @ root / noise
    products: dict[Any, Floats] = {}  # ΦᵀΦ_g of the groups that have been present

    def candidates(covariances: Floats) -> tuple[Floats, Floats]:
        """Return the present groups and those that may explain most, with their ΦᵀΣ⁻¹[Φ, R]."""
        # With sources, Σ⁻¹ = I/γ − HHᵀ (Woodbury), H = AL⁻ᵀ/√γ, AAᵀ = Σ − γI, LLᵀ = γI + AᵀA.
        active = np.flatnonzero(covariances.any(axis=(1, 2)))
        roots = square_root(covariances[active])
        products.update({g: gain.T @ stack[g] for g in active if g not in products})
        crossed = [products[g] @ half for g, half in zip(active, roots, strict=True)]
        fields = np.hstack(list(stack[active] @ roots) or [gain[:, :0]])
        lower = np.linalg.cholesky(noise * np.eye(fields.shape[1]) + fields.T @ fields)
        turn = scipy.linalg.solve_triangular(lower, np.eye(len(lower)), lower=True) / np.sqrt(noise)
        seen = np.hstack(crossed or [gain.T[:, :0]]) @ turn.T  # ΦᵀH
        loading = seen @ (turn @ (fields.T @ root))
        np.subtract(loadings, loading, out=loading)  # a second array would take most of the time
        # The gain Σᵢ λᵢ − 1 − log λᵢ, over eigenvalues λᵢ > 1 of S⁻¹Q, is at most t − 1 − log t,
        # t = Σᵢ λᵢ.
        parts, loads = seen.reshape(*members.shape, -1), loading.reshape(*members.shape, -1)
        metric = metrics - parts @ np.swapaxes(parts, 1, 2)
        sizes = np.trace(metric, axis1=1, axis2=2)[:, None, None]
        tiny = np.where(sizes > 0.0, 1e-12 * sizes, 1.0) * np.eye(width)
        quality = loads @ np.swapaxes(loads, 1, 2)
        ratios = np.einsum("gij,gij->g", np.linalg.inv(metric + tiny), quality)
        ratios = np.maximum(ratios, 1.0)
        bounds = count * (ratios - 1.0 - np.log(ratios)) - ENTRY * least
        bounds[active] = 0.0
        best = np.argsort(-bounds)[:CANDIDATES]
        chosen = np.concatenate([active, best[bounds[best] > 0.0]])
        index = members[chosen].ravel()
        part, inside = gain[:, index], seen[index]
        gram = part.T @ part / noise - inside @ inside.T
        return chosen, np.hstack([gram, loading[index]])

    def best_moves(now: Floats, gram: Floats) -> tuple[Floats, Floats]:
        """Return the best covariance of each group beside the others, and the evidence it adds."""
        place = np.arange(len(gram)).reshape(-1, width)
        loads = gram[place, len(gram) :]
        metric = gram[place[:, :, None], place[:, None, :]]
        moved, gains = moves(now, metric, loads @ np.swapaxes(loads, 1, 2))
        return moved, count * gains

    covariances, changed = np.zeros((groups.count, width, width)), True
    while changed:
        # 1) Move the groups that may gain most, that which gains most first.
        chosen, gram = candidates(covariances)
        now, floor, changed = covariances[chosen], 0.0, False
        while chosen.size:
            moved, gains = best_moves(now, gram)
            excess = gains - np.where(now.any(axis=(1, 2)), MOVED, ENTRY) * least[chosen]
            first = int(excess.argmax())
            floor = max(floor, STRONGEST * float(excess[first]))
            if excess[first] <= floor:
                break
            changed = True
            index = np.arange(first * width, (first + 1) * width)
            change_covariance_(gram, index, moved[first] - now[first])
            now[first] = moved[first]
        covariances[chosen] = now
        # 2) If none does, replace each group by that which explains most beside the others.
        for group in () if changed else np.flatnonzero(covariances.any(axis=(1, 2))):
            others = covariances.copy()
            others[group] = 0.0
            chosen, gram = candidates(others)
            moved, gains = best_moves(others[chosen], gram)
            excess = np.where(others[chosen].any(axis=(1, 2)), -np.inf, gains - least[chosen])
            first = int(excess.argmax())
            if excess[first] > excess[chosen == group].max(initial=-np.inf) + BETTER:
                others[chosen[first]] = moved[first]
                covariances, changed = others, True
    columns = groups.columns(np.flatnonzero(covariances.any(axis=(1, 2))))
    covariances = basis @ covariances @ np.swapaxes(basis, -1, -2)
    return columns, block_diagonal(groups, covariances, columns)
