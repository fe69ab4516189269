"""The result of source localisation: sources, amplitudes with errors, residual and certificate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import mne
import numpy as np

from lucidae.cards import card, table
from lucidae.certificates.claims import Certificate
from lucidae.displays._sources import source_names
from lucidae.mne.certificate import forward_claims, misfit, noise_covariance_claim
from lucidae.mne.estimate import DOUBT, GroupEstimate
from lucidae.mne.model_errors import FittedNoise
from lucidae.mne.problem import (
    EvokedProblem,
    Floats,
    logging_at,
    make_stc,
    split_goodness_of_fit,
)
from lucidae.sparsity.estimator import SparseVAE
from lucidae.sparsity.path import NoisePath

__all__ = ["FoundSource", "SourceResult", "counted"]


@dataclass(frozen=True, eq=False, repr=False)
class SourceResult:
    """Sources of one evoked, as found by `lucidae.mne.sparse_vae` with ``return_result=True``.

    Everything is computed when it is first read. Amplitudes are in A·m, positions in metres in head
    coordinates, times in seconds. n is the number of sources with non-zero amplitude.

    Parameters
    ----------
    problem : EvokedProblem
        The whitened data and gain of all evokeds of the fit.
    estimate : GroupEstimate
        The fit with the posterior of its coefficients.
    expansion : sparse array of shape (n_columns, κ)
        Matrix that multiplies the coefficients of the fit to give the amplitudes of the `n_columns`
        columns of the forward solution.
    index : int
        Index of the evoked among those of the fit, from 0.
    pick_ori : None or "vector"
        Orientation of the source estimate, see `sparse_vae`.
    debias : bool
        Whether `amplitudes` are the least-squares estimates, which the prior does not shrink.
    verbose : bool, str, int or None
        Level of MNE's log while attributes are computed.
    errors : FittedNoise
        The errors of the forward solution that the fit allows for: ``position_error``,
        ``model_error``, the ``covariance`` of the whitened noise with them, and ``samples``, the
        number of independent samples that counted.

    Notes
    -----
    Notebooks show a table of the sources and the certificate; `plot` draws the sources.

    Examples
    --------
    >>> from lucidae.mne import sparse_vae
    >>> info = mne.channels.read_meg_canonical_info("neuromag")
    >>> info = mne.pick_info(info, mne.pick_types(info, meg="mag"))
    >>> places = np.random.default_rng(0).uniform([-0.05, -0.05, 0.01], 0.05, (60, 3))
    >>> src = mne.setup_volume_source_space(pos={"rr": places, "nn": places}, verbose=False)
    >>> sphere = mne.make_sphere_model((0.0, 0.0, 0.0), 0.09, info=info, verbose=False)
    >>> forward = mne.make_forward_solution(info, None, src, sphere, eeg=False, verbose=False)
    >>> noise_cov = mne.make_ad_hoc_cov(info, verbose=False)
    >>> rng = np.random.default_rng(1)
    >>> data = forward["sol"]["data"][:, 30:33] @ (5e-8 * rng.standard_normal((3, 20)))
    >>> data += 2e-14 * rng.standard_normal(data.shape)
    >>> evoked = mne.EvokedArray(data, info, verbose=False)
    >>> result = sparse_vae(evoked, forward, noise_cov, return_result=True, verbose=False)
    >>> result.sources, result.amplitudes.shape, result.certificate.holds
    (array([10]), (1, 3, 20), True)
    """

    problem: EvokedProblem
    estimate: GroupEstimate
    expansion: Any
    index: int
    pick_ori: str | None
    debias: bool
    verbose: Any
    errors: FittedNoise

    @property
    def model(self) -> SparseVAE:
        """The estimator, fitted to the whitened and weighted columns of all sources.

        Directions of a source without a field, such as radial ones in a spherical head, have no
        column. If `noise_variance` was given as a number, the returned sources were selected from a
        fit of lower accuracy. It is continued up to the tolerance `tol` when this attribute or the
        certificate is first read.
        """
        return self.estimate.model

    @cached_property
    def certificate(self) -> Certificate:
        """Claims about the returned sources and about the fit, each with a verdict.

        The claims whose names begin with ``selected_`` and ``left_out_`` are about the sources that
        are returned, ``forward_model`` compares the residual with the noise covariance,
        ``error_covariance`` is about the errors of position that the fit allows for, and
        ``noise_covariance`` about the number of samples of the covariance. The others are about
        the fit to all sources, `model`, which is completed first. All evokeds of the fit share
        them.
        """
        problem, estimate = self.problem, self.estimate
        counts = {factor: estimate.remaining(factor).size for factor in (1.0, 3.0, 10.0, 30.0)}
        forward = forward_claims(self.misfit, counts, self.errors.change)
        covariance = noise_covariance_claim(
            problem.noise_samples, len(problem.whitener), problem.largest_noise, self.noise_variance
        )
        found = estimate.certificate
        return replace(found, claims=(*forward, *found.claims, covariance))

    @cached_property
    def misfit(self) -> float:
        """Power of what the sources leave of the data of all evokeds, in units of noise.

        It is divided by the most that noise of this covariance would have, in total and along the
        largest direction, so that above 1 something beside the returned sources and noise is in the
        data. The claim ``forward_model`` is that it is at most 1.
        """
        problem = self.problem
        rank, samples = len(problem.whitener), problem.noise_samples
        excess = 0 if samples is None else samples - rank - 1
        inflation = 1.0 + (rank + 1.0) / excess if excess > 0 else 1.0
        return misfit(
            problem.responses, self.fields, self.noise_variance, self.errors.samples,
            (inflation, problem.largest_noise),
        )  # fmt: skip

    @cached_property
    def fields(self) -> Floats:
        """Fields of the coefficients of the fit at the whitened sensors, (d, a)."""
        currents = self.expansion[:, self.estimate.columns].tocsr()
        rows = np.unique(currents.nonzero()[0])
        return np.asarray(self.problem.lead_field(rows) @ currents[rows].toarray())

    @property
    def noise_variance(self) -> float:
        """Factor γ of the noise covariance, as it was given or estimated."""
        return self.estimate.noise_variance

    @property
    def forward(self) -> Any:
        """The forward solution of the channels in use, in the orientation of the fit."""
        return self.problem.forward

    @property
    def evoked(self) -> Any:
        """The evoked that was localised."""
        return self.problem.evokeds[self.index]

    @property
    def times(self) -> Floats:
        """Times of the samples of the evoked, in seconds."""
        return np.asarray(self.evoked.times)

    @property
    def n_orient(self) -> int:
        """Number of components of a source: 1 for fixed orientation, 3 for loose and free ones."""
        return self.problem.n_orient

    @cached_property
    def groups(self) -> Floats:
        """Labels of the point sources and patches that were found, as in ``estimate.labels``.

        The one whose field has the largest power at the sensors, in all evokeds of the fit, is
        first, as in everything that lists sources. The largest moment is often that of a deep
        source with a weak field.
        """
        order = np.argsort([-power.sum() for power in self._powers.values()], kind="stable")
        return np.asarray(self.estimate.groups[order])

    @cached_property
    def sources(self) -> Floats:
        """Indices of the n found sources, in the concatenated source spaces of `forward`.

        They are in the order of `groups`, the one that explains most at the sensors first.
        """
        every = np.concatenate([np.zeros(0, dtype=int), *self.patches])
        return np.asarray(every[np.sort(np.unique(every, return_index=True)[1])])

    @property
    def names(self) -> list[str]:
        """Names of the n sources by hemisphere or source space and vertex number, as in `vertices`.

        Such names are "lh 258" or "rh 258" for surfaces and "vertex 1133" for a single volume.
        Further source spaces have the name of their segment, or their index.
        """
        return [self._all_names[source] for source in self.sources]

    @cached_property
    def doubtful_sources(self) -> Floats:
        """Indices of the sources that are not significant at three times the noise variance.

        Errors of the forward solution (positions, conductivities, a coarse grid of sources) look
        like weak sources near the strong ones, and cannot be seen in the residual. Weak true
        sources may be doubtful too.
        """
        columns, labels = self.estimate.columns, self.estimate.labels
        doubtful = self._sources_of(columns[np.isin(labels[columns], self.estimate.doubtful)])
        sure = self._sources_of(columns[~np.isin(labels[columns], self.estimate.doubtful)])
        return np.setdiff1d(doubtful, sure)

    @property
    def advice(self) -> str:
        """What to do about doubtful sources and patches, as text; empty if there is none.

        They are those that are not significant at three times the noise variance, see
        `doubtful_sources`. A patch counts once.
        """
        count, sizes = self.estimate.doubtful.size, [part.size for part in self.patches]
        if not count:
            return ""
        noun = "source" if max(sizes) == 1 else "patch" if min(sizes) > 1 else "source and patch"
        if len(sizes) > 1:
            noun = noun.replace("source", "sources").replace("patch", "patches")
        samples, cause = self.problem.noise_samples, ""
        if samples is not None and self.problem.largest_noise > self.noise_variance + 1.0:
            cause = f" or of the noise covariance, which was estimated from {samples} samples"
        return (
            f"{count} of {len(sizes)} {noun} would not be significant at {DOUBT:g} times the "
            f"noise: weak sources, or errors of the forward solution{cause}. Believe them only if "
            "they are found in other recordings too."
        )

    @cached_property
    def patches(self) -> list[Floats]:
        """Indices of the sources of each found point source (one index) or patch (several).

        They are in the order of `groups`.
        """
        return [self._sources_of(self._columns_of(group)) for group in self.groups]

    @cached_property
    def found_sources(self) -> list[FoundSource]:
        """The point sources and patches that were found, in the order of `groups`.

        Each has a name, the positions of its sources, amplitudes with standard deviations, and its
        share of the power. Tables and figures have one line for each of them.
        """
        parts = zip(self.groups, self.patches, self._turns, self._shares, strict=True)
        return [self._found_source(*part) for part in parts]

    @cached_property
    def vertices(self) -> list[Floats]:
        """Vertex numbers of the sources in each source space, as ``stc.vertices``."""
        found, first, ascending = [], 0, np.sort(self.sources)
        for space in self.forward["src"]:
            here = ascending[ascending >= first] - first
            found.append(np.asarray(space["vertno"])[here[here < len(space["vertno"])]])
            first += len(space["vertno"])
        return found

    @property
    def positions(self) -> Floats:
        """Positions of the n sources in metres, in head coordinates, of shape (n, 3)."""
        return np.asarray(self.forward["source_rr"][self.sources])

    @property
    def orientations(self) -> Floats:
        """Unit vectors of the components of the n sources, of shape (n, n_orient, 3)."""
        axes = np.reshape(self.forward["source_nn"], (-1, self.n_orient, 3))
        return np.asarray(axes[self.sources])

    @cached_property
    def posterior_mean(self) -> Floats:
        """Posterior mean of the amplitudes of the n sources, of shape (n, n_orient, n_times)."""
        return self._amplitudes(self.estimate.mean)

    @cached_property
    def debiased_amplitudes(self) -> Floats:
        """Amplitudes that fit the data best, by least squares on the selected sources.

        They have shape (n, n_orient, n_times) for n sources with `n_orient` components. The prior
        does not shrink them towards zero. A source that was found to have a constant orientation
        keeps it.
        """
        return self._amplitudes(self.estimate.debiased)

    @property
    def amplitudes(self) -> Floats:
        """Amplitudes of the source estimate: debiased if `debias`, otherwise the posterior mean."""
        return self.debiased_amplitudes if self.debias else self.posterior_mean

    @cached_property
    def posterior_covariance(self) -> Floats:
        """Posterior covariance of the amplitudes, of shape (n · n_orient, n · n_orient).

        Its rows are ordered by source, and by component within a source. It is the same for all
        samples. It describes the error caused by noise, but not errors caused by a wrong forward
        solution or wrong sources. The learned prior covariance of a source counts as exact: if it
        allows one direction only, errors of this direction are not in the posterior covariance.
        """
        spread = self._transfer @ self.estimate.covariance @ self._transfer.T
        return np.asarray(spread / self.problem.averages[self.index])

    @property
    def posterior_std(self) -> Floats:
        """Posterior standard deviations of the amplitudes, (n, n_orient), equal for all samples.

        They are the roots of the diagonal of `posterior_covariance`. With three components for each
        source, the direction of a source is learned and counts as exact, so that errors across this
        direction are not contained, and the true amplitudes may lie further away than these numbers
        suggest.
        """
        variances = np.maximum(np.diagonal(self.posterior_covariance), 0.0)
        return np.asarray(np.sqrt(variances).reshape(-1, self.n_orient))

    @cached_property
    def stc(self) -> Any:
        """The source estimate of MNE, whose vertices are in ascending order."""
        order = np.argsort(self._rows)
        flat = self.amplitudes.reshape(-1, self.times.size)[order]
        with logging_at(self.verbose):
            return make_stc(flat, self._rows[order], self.problem, self.index, self.pick_ori)

    @cached_property
    def residual(self) -> Any:
        """The evoked minus the field of the sources."""
        flat = self.amplitudes.reshape(-1, self.times.size)
        with logging_at(self.verbose):
            return self.problem.residual(self.index, flat, self._rows)

    @cached_property
    def dipoles(self) -> list[Any]:
        """One dipole of MNE for each source, with its goodness of fit."""
        moments = np.einsum("not,noi->nti", self.amplitudes, self.orientations)
        lengths = np.linalg.norm(moments, axis=2)
        found = []
        for source in range(self.sources.size):
            place = np.tile(self.positions[source], (self.times.size, 1))
            if self.n_orient == 1:  # the orientation is known, the amplitude has a sign
                size = self.amplitudes[source, 0]
                direction = np.tile(self.orientations[source, 0], (self.times.size, 1))
            else:
                size = lengths[source]
                direction = moments[source] / np.where(size > 0, size, 1.0)[:, None]
            share = self.source_goodness_of_fit[source]
            found.append(mne.Dipole(self.times, place, size, direction, share))
        return found

    @cached_property
    def goodness_of_fit(self) -> float:
        """Percentage of the power of the whitened data that the sources explain."""
        return float(explained(*self._whitened, axis=None))

    @cached_property
    def goodness_of_fit_per_time(self) -> Floats:
        """Percentage of the power of the whitened data that the sources explain, for each sample.

        It has shape (n_times,).
        """
        return explained(*self._whitened, axis=0)

    @cached_property
    def source_goodness_of_fit(self) -> Floats:
        """Percentage of the power of the whitened data that each source explains.

        It has shape (n, n_times) for n sources. The part that several sources explain together is
        divided among them as in MNE.
        """
        flat = self.amplitudes.reshape(-1, self.times.size)
        return self._split(flat, self.problem.lead_field(self._rows))

    def noise_path(self, noise_variances: Any = None, cv: Any = False) -> NoisePath:
        """Return the sources that are found for each of several noise variances.

        There is one fit for each noise variance, so that this takes many times as long as the fit.

        Parameters
        ----------
        noise_variances : array-like of shape (m,), optional
            Factors of the noise covariance. By default there are four per decade, from a factor for
            which no source is found down to one step below that of the fit; with `cv`, they are
            those of `lucidae.sparsity.noise_path`.
        cv : int, splitter, iterable, None or False, default=False
            Folds over whitened sensors for held-out errors, as in `noise_path`; False for none.

        Returns
        -------
        NoisePath
            The path of the whitened problem of all evokeds of the fit. Its columns are those of
            `model`; `path_sources` gives the sources.

        Notes
        -----
        The numbers of columns in the ``repr`` of the path, and its attributes `supports` and
        `n_columns`, are from a test that removes all columns that are not significant at once.
        `sparse_vae` removes sources one at a time, and may so keep one of several sources that can
        replace each other. Hence `path_sources` may return other sources, mostly more, than those
        of these columns. The plots of a result show what `path_sources` returns.
        """
        if cv is False:
            return self.estimate.path(noise_variances, cv)
        turned = self.problem.along_sensors()
        turn = turned.whitener @ np.linalg.pinv(self.problem.whitener)
        fit = replace(
            self.estimate, gain=turn @ self.estimate.gain, responses=turn @ self.estimate.responses
        )
        return fit.path(noise_variances, cv)

    def path_sources(self, path: NoisePath) -> list[Floats]:
        """Return the sources that `sparse_vae` selects at each noise variance of a path.

        Parameters
        ----------
        path : NoisePath
            A path that `noise_path` has returned.

        Returns
        -------
        list of ndarray of int
            Indices of the sources, as `sources`.
        """
        return [self._sources_of(columns) for columns in self.estimate.selected_along(path)]

    def group_name(self, group: int) -> str:
        """Return the name of a possible point source or patch.

        Parameters
        ----------
        group : int
            Label of the group of columns of the fit, as in ``estimate.labels``.

        Returns
        -------
        str
            The name of a point source, or the size of a patch and the name of its central source.
        """
        sources = self._sources_of(np.flatnonzero(self.estimate.labels == group))
        name = self._all_names[sources[center_of(self.forward["source_rr"][sources])]]
        return name if sources.size == 1 else f"patch of {sources.size} at {name}"

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers and texts of the result by name, in a form that JSON can store.

        The entry "sources" has a dictionary for each source, and "patches" one for each patch with
        its sources and its central source. The entry "patches" of a source has the indices of the
        patches to which it belongs, and is empty for a point source.
        """
        extended = [found for found in self.found_sources if found.size > 1]
        strength = np.linalg.norm(self.amplitudes, axis=1)
        peaks = np.argmax(strength, axis=1)
        spaces = self.forward["src"]
        counts = [len(space["vertno"]) for space in spaces]
        owners = np.repeat(np.arange(len(spaces)), counts)[self.sources]
        vertices = np.concatenate([space["vertno"] for space in spaces])[self.sources]
        rows = [
            {
                "source": int(source),
                "name": self._all_names[source],
                "space": int(owners[number]),
                "vertex": int(vertices[number]),
                "position": [float(value) for value in self.positions[number]],
                "amplitude": float(strength[number, peaks[number]]),
                "standard_deviation": float(np.linalg.norm(self.posterior_std[number])),
                "time": float(self.times[peaks[number]]),
                "goodness_of_fit": float(self.source_goodness_of_fit[number, peaks[number]]),
                "patches": [
                    place for place, patch in enumerate(extended) if source in patch.sources
                ],
            }
            for number, source in enumerate(self.sources)
        ]
        return {
            "comment": str(self.evoked.comment),
            "n_sources": int(self.sources.size),
            "goodness_of_fit": float(self.goodness_of_fit),
            "noise_variance": self.noise_variance,
            "doubtful_sources": [int(source) for source in self.doubtful_sources],
            "debiased": bool(self.debias),
            "sources": rows,
            "patches": [patch.to_dict() for patch in extended],
        }

    def __repr__(self) -> str:
        samples, every = self.errors.samples, self.problem.responses.shape[1]
        fewer = "" if samples > 0.95 * every else f" (those of the fit count as {samples:.0f})"
        return (
            f"SourceResult({counted([part.size for part in self.patches])}, "
            f"{self.times.size} samples{fewer}, {self.goodness_of_fit:.1f} % explained, "
            f"noise variance {self.noise_variance:.3g})"
        )

    def _repr_html_(self) -> str:
        names = ("number", "source", "x, y, z (mm)", "peak (nA·m)", "at (ms)", "power (%)")
        entries = [found.to_dict() for found in self.found_sources]
        rows: list[Sequence[str]] = [
            (
                f"{number}",
                entry["name"] + " (doubtful)" * entry["doubtful"],
                ", ".join(f"{1e3 * value:.1f}" for value in entry["center"]),
                f"{1e9 * entry['amplitude']:.3g} ± {1e9 * entry['standard_deviation']:.2g}",
                f"{1e3 * entry['time']:.1f}",
                f"{entry['power']:.1f}",
            )
            for number, entry in enumerate(entries, start=1)
        ]
        columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
        advice = [self.advice] if self.advice else []
        shown = card(repr(self), table(columns, most=None), *advice)
        return shown + self.certificate._folded_html()

    def plot(self, *, path: Any = False, ax: Any = None, **style: Any) -> Any:
        """Draw the sources in three projections of the head; see `lucidae.displays.SourceDisplay`.

        Parameters
        ----------
        path : bool or NoisePath, default=False
            Whether to draw the path of noise variances below, which takes many fits, or a path that
            `noise_path` has returned.
        ax : sequence of matplotlib axes, optional
            Three axes, or four with a path; by default a new figure is made.
        **style
            Keyword arguments of ``ax.scatter``.

        Returns
        -------
        SourceDisplay
            The display, already drawn; its axes are ``ax_``.
        """
        from lucidae.displays import SourceDisplay

        return SourceDisplay.from_result(self, path=path, ax=ax, **style)

    @cached_property
    def _all_names(self) -> list[str]:
        """Names of all sources of the forward solution."""
        spaces = self.forward["src"]
        return source_names(spaces, [space["vertno"] for space in spaces])

    def _found_source(
        self, group: int, sources: Floats, turn: Floats, share: Floats
    ) -> FoundSource:
        """Return a point source or patch with the given label, sources and share of the power.

        `turn` multiplies the coefficients of the fit to give the amplitudes of each of its sources.
        """
        positions = np.asarray(self.forward["source_rr"][sources])
        center = center_of(positions)
        axes = self.forward["source_nn"].reshape(-1, self.n_orient, 3)
        variances = np.diagonal(turn @ self.estimate.covariance @ turn.T)
        total = float(np.sum(np.abs(self.problem.responses[:, self._samples]) ** 2))
        return FoundSource(
            name=self.group_name(group),
            sources=sources,
            power=100.0 * float(self._powers[int(group)][self._samples].sum()) / (total or 1.0),
            doubtful=bool(np.isin(group, self.estimate.doubtful)),
            center=int(sources[center]),
            positions=positions,
            position=positions[center],
            orientations=np.asarray(axes[sources[center]]),
            amplitudes=turn @ self._coefficients,
            posterior_std=np.sqrt(np.maximum(variances, 0.0) / self.problem.averages[self.index]),
            goodness_of_fit=share,
            times=self.times,
        )

    @cached_property
    def _turns(self) -> list[Floats]:
        """Matrices that multiply coefficients to give the amplitudes of point sources and patches.

        They have `n_orient` rows, because the amplitudes of all sources of a patch are equal.
        """
        labels = self.estimate.labels[self.estimate.columns]
        firsts = [int(np.argmax(self.sources == sources[0])) for sources in self.patches]
        return [
            self._transfer[first * self.n_orient :][: self.n_orient] * (labels == group)
            for group, first in zip(self.groups, firsts, strict=True)
        ]

    @cached_property
    def _powers(self) -> dict[int, Floats]:
        """Power of the whitened field of each source or patch, for each sample of all evokeds."""
        coefficients, found = self.estimate.debiased if self.debias else self.estimate.mean, {}
        for group in self.estimate.groups:
            columns = self._columns_of(group)
            currents = self.expansion[:, columns].tocsr()
            rows = np.unique(currents.nonzero()[0])
            here = np.searchsorted(self.estimate.columns, columns)
            field = self.problem.lead_field(rows) @ (currents[rows] @ coefficients[here])
            found[int(group)] = np.sum(np.abs(field) ** 2, axis=0)
        return found

    @cached_property
    def _shares(self) -> Floats:
        """Percentage of the power that each point source or patch explains, (n_groups, n_times).

        MNE divides the power by the squares of the fields of single sources, whose sum is smaller
        than the square of the field of a patch. The field of a patch is therefore added up first.
        """
        if not self.patches:
            return np.zeros((0, self.times.size))
        rows = [
            sources * self.n_orient + axis
            for sources in self.patches
            for axis in range(self.n_orient)
        ]
        fields = [self.problem.lead_field(part).sum(axis=1) for part in rows]
        flat = np.concatenate([turn @ self._coefficients for turn in self._turns])
        return self._split(flat, np.column_stack(fields))

    def _split(self, amplitudes: Floats, lead_field: Floats) -> Floats:
        """Return the percentages of the power that points or patches explain, as in MNE."""
        data = self._whitened[0] / np.sqrt(self.problem.averages[self.index])
        with logging_at(self.verbose):
            shares = split_goodness_of_fit(data, amplitudes, lead_field)
        return np.asarray(shares.reshape(-1, self.n_orient, self.times.size).sum(axis=1))

    @cached_property
    def _rows(self) -> Floats:
        """Indices of the columns of the forward solution that belong to the found sources."""
        return (self.sources[:, None] * self.n_orient + np.arange(self.n_orient)).ravel()

    @property
    def _samples(self) -> slice:
        """The samples of this evoked among those of the fit."""
        return self.problem.samples(self.index)

    @cached_property
    def _transfer(self) -> Floats:
        """Matrix that multiplies coefficients of the selected columns to give the amplitudes."""
        chosen = self.expansion[:, self.estimate.columns].tocsr()[self._rows]
        return np.asarray(chosen.toarray())

    @cached_property
    def _whitened(self) -> tuple[Floats, Floats]:
        """Whitened data of the evoked, and the part of these data that the sources explain."""
        flat = self.amplitudes.reshape(-1, self.times.size)
        fitted = self.problem.lead_field(self._rows) @ flat
        fitted *= np.sqrt(self.problem.averages[self.index])
        return self.problem.responses[:, self._samples], fitted

    @cached_property
    def _coefficients(self) -> Floats:
        """Coefficients of the selected columns for the samples of this evoked, as `amplitudes`."""
        return self._of_evoked(self.estimate.debiased if self.debias else self.estimate.mean)

    def _of_evoked(self, coefficients: Floats) -> Floats:
        """Return the coefficients for the samples of this evoked, in units of its data."""
        part = coefficients[:, self._samples]
        return np.asarray(part / np.sqrt(self.problem.averages[self.index]))

    def _columns_of(self, group: Any) -> Floats:
        """Return the selected columns of the fit that belong to a point source or patch."""
        columns = self.estimate.columns
        return np.asarray(columns[self.estimate.labels[columns] == group])

    def _sources_of(self, columns: Any) -> Floats:
        """Return the indices, ascending, of the sources to which given columns of the fit belong.

        A column of a patch belongs to all sources of the patch.
        """
        rows = self.expansion[:, np.asarray(columns, dtype=int)].indices
        return np.unique(rows // self.n_orient)

    def _amplitudes(self, coefficients: Floats) -> Floats:
        """Return the amplitudes (n, n_orient, n_times) of the n sources of this evoked.

        A source has `n_orient` components.
        """
        found = self._transfer @ self._of_evoked(coefficients)
        return np.asarray(found.reshape(-1, self.n_orient, self.times.size))


@dataclass(frozen=True, eq=False)
class FoundSource:
    """A point source, or a patch (extended source), whose sources all have the same amplitude."""

    name: str  # name of the source, or of the patch and its central source
    # (k,): indices of the sources of the patch, as ``SourceResult.sources``; one index for a point
    sources: Floats
    power: float  # percentage of the power of the whitened data in its field
    doubtful: bool  # whether it is among ``SourceResult.doubtful_sources``
    center: int  # index of the source that is nearest to the mean of the positions of the sources
    positions: Floats  # (k, 3): positions of the sources in metres, in head coordinates
    position: Floats  # (3,): position of the central source
    orientations: Floats  # (n_orient, 3): unit vectors of the components of the central source
    amplitudes: Floats  # (n_orient, n_times): amplitude in A·m of each source of the patch
    posterior_std: Floats  # (n_orient,): posterior standard deviations of the amplitudes
    # (n_times,): percentage of the power of the whitened data that the point or the whole patch
    # explains
    goodness_of_fit: Floats
    times: Floats  # (n_times,): times in seconds

    @property
    def size(self) -> int:
        """Number of sources: 1 for a point, more for a patch."""
        return int(self.sources.size)

    @property
    def peak(self) -> int:
        """Index of the time at which the amplitude is largest."""
        return int(np.argmax(np.linalg.norm(self.amplitudes, axis=0)))

    @property
    def amplitude(self) -> float:
        """Largest amplitude over time of one source, in A·m; the norm of its components."""
        return float(np.linalg.norm(self.amplitudes[:, self.peak]))

    @property
    def direction(self) -> Floats:
        """Direction of the current of the central source at its peak, a unit vector or zero."""
        moment = self.amplitudes[:, self.peak] @ self.orientations
        length = np.linalg.norm(moment)
        return np.asarray(moment / length) if length else np.zeros(3)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers at the peak by name, in a form that JSON can store."""
        return {
            "name": self.name,
            "power": self.power,
            "doubtful": self.doubtful,
            "size": self.size,
            "center": [float(value) for value in self.position],
            "center_source": self.center,
            "sources": [int(source) for source in self.sources],
            "amplitude": self.amplitude,
            "standard_deviation": float(np.linalg.norm(self.posterior_std)),
            "time": float(self.times[self.peak]),
            "goodness_of_fit": float(self.goodness_of_fit[self.peak]),
        }


def counted(sizes: Sequence[int]) -> str:
    """Return the number of point sources and of patches as text, from their numbers of sources."""
    extended = [size for size in sizes if size > 1]
    points = len(sizes) - len(extended)
    parts = []
    if points or not extended:
        parts.append(f"{points} source{'s' * (points != 1)}")
    if extended:
        low, high = min(extended), max(extended)
        range_of_sizes = f"{high}" if low == high else f"{low} to {high}"
        noun = "patch" if len(extended) == 1 else "patches"
        parts.append(f"{len(extended)} {noun} of {range_of_sizes} sources")
    return " and ".join(parts)


def explained(data: Floats, fitted: Floats, axis: int | None) -> Floats:
    """Return the percentage of the power of data that is explained, 0 where there is none."""
    total, lost = np.sum(data**2, axis=axis), np.sum((data - fitted) ** 2, axis=axis)
    return 100.0 * np.where(total > 0, 1.0 - lost / np.where(total > 0, total, 1.0), 0.0)


def center_of(positions: Any) -> int:
    """Return the index of the point that is nearest to the mean of several points (n, 3)."""
    points = np.asarray(positions, dtype=float)
    return int(np.argmin(np.linalg.norm(points - points.mean(axis=0), axis=1)))
