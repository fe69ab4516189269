"""Sparse source localisation: `sparse_vae` for evokeds, and `solver` for whitened matrices."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse
import scipy.spatial

from lucidae.arrays.threads import one_thread
from lucidae.iteration.progress import elapsed
from lucidae.mne.certificate import MISFIT
from lucidae.mne.estimate import UNSEEN, GroupEstimate, observable_basis
from lucidae.mne.model_errors import fit_with_errors, grid_spacing
from lucidae.mne.problem import EvokedProblem, Floats, log_explained, logging_at
from lucidae.mne.result import SourceResult
from lucidae.sparsity.covariances import rotation_to_rows
from lucidae.sparsity.noise import checked_noise, noise_rule
from lucidae.sparsity.objectives import FullCovariance
from lucidae.validation import (
    check_choice,
    check_flag,
    check_integer,
    check_number,
    check_rows,
    warn_user,
)

__all__ = ["neighbourhoods", "solver", "sparse_vae"]

NO_SOURCE = (
    "No source was found: none explains more of the data than noise would. Give a smaller "
    "noise_variance, check that noise_cov and nave describe the noise of the evoked, or give "
    "significance=None to keep sources that are not significant."
)

FEWEST_SAMPLES = 5
"""Number of samples below which a learned noise variance is warned of.

In simulated noise at 33 electrodes with 60 free sources, sources were found in 71 of 100 recordings
of one sample, 7 of 30 of two samples, 2 of 60 of three and none of 40 of five samples."""

LARGEST_POWER = 1e10
"""Largest mean square of whitened data; units that are wrong by a prefix give at least 1e12."""

SMALLEST_POWER = 0.1
"""Mean square of whitened data, about 1 for noise alone, below which to warn."""

LARGEST_MOMENT = 1e-5
"""Amplitude in A·m that no source in a head has; nor one of less than 1e-7 times as much."""

SETTINGS = ("cv", "random_state", "max_iter", "tol", "solver", "n_jobs", "verbose")
"""Further arguments of `solver`: those of `SparseVAE` that do not change the model."""


def sparse_vae(
    evoked: Any,
    forward: Any,
    noise_cov: Any,
    *,
    loose: Any = "auto",
    depth: Any = 0.8,
    rank: Any = None,
    pick_ori: str | None = None,
    noise_variance: float | str = 1.0,
    position_error: float | str = "auto",
    model_error: float | str = "auto",
    samples: str = "auto",
    group_covariance: str = "full",
    weights: Any = None,
    weights_min: float = 0.0,
    nave: float | None = None,
    significance: float | None = 0.05,
    patches: Any = None,
    debias: bool = False,
    cv: Any = None,
    random_state: Any = None,
    max_iter: int = 1000,
    tol: float = 1e-6,
    return_residual: bool = False,
    return_as_dipoles: bool = False,
    return_result: bool = False,
    verbose: Any = None,
) -> Any:
    """Localise the few sources of evoked responses, by the VAE with full posterior covariance.

    The arguments, the preparation of the data and the returned types are those of
    `mne.inverse_sparse.gamma_map` and `mixed_norm`, whose model this is: the amplitudes of each
    source have a Gaussian prior, and the covariances of all priors are found by maximising the
    likelihood of the data. Most of them are zero at the maximum. A regularisation parameter need
    not be chosen, because `noise_cov` describes the noise.

    Parameters
    ----------
    evoked : Evoked or list of Evoked
        The responses. The sources of several evokeds are the same ones, with different amplitudes.
        Bad channels are left out, and projections (also those that are not yet applied, such as an
        average reference) are applied to the forward solution too, as everywhere in MNE.
    forward : Forward
        The forward solution.
    noise_cov : Covariance
        Covariance of the noise of a single epoch, see `nave`. If it was estimated from fewer than
        ten samples for each of its dimensions, a warning says which `noise_variance` allows for the
        errors of the estimate; or regularise it, by ``method="shrunk"`` of
        `mne.compute_covariance`.
    loose : float, "auto" or dict, default="auto"
        0 for sources along the normals of a surface (fixed orientation), 1 for free orientation,
        between them for loose orientation; "auto" is 0.2 for surfaces and 1 for volumes. With
        ``group_covariance="full"`` the data decide about the orientations of loose sources, so that
        0.2 and 1 give the same sources with the same field. Only a component that has no field
        (the radial one of MEG in a spherical head) is set by the prior; for free sources it is
        zero.
    pick_ori : None or "vector", default=None
        "vector" returns the three components of loose and free sources, None their norm.
    noise_variance : float, "cv", "cv_1se", "learn" or "auto", default=1.0
        Factor γ of the noise covariance. "cv" sets γ to the mean squared error of predicting
        held-out sensors, and "cv_1se" to the largest γ at which this error is within one standard
        error of its smallest value. "learn" maximises the likelihood over γ too, and "auto" chooses
        between "learn" and "cv" as in `SparseVAE`. From fewer than five samples of all evokeds
        together γ should not be learned: it may become far too small, and a warning says so.
    position_error : float or "auto", default="auto"
        Standard deviation, in metres along each axis, of the errors of position of sensors, head
        and sources. The fields that such errors produce are added to the noise; without them they
        would be explained by spurious sources. "auto" is 0.006, or half the distance of
        neighbouring sources if that is larger. 0 takes all positions as exact. With any errors,
        directions of a current whose field is below a tenth of the strongest are left out. If this
        and `model_error` are "auto", and noise raised by `model_error` neither leaves out a source
        of the fit without errors nor makes it doubtful, both are 0 (``SourceResult.errors``).
    model_error : float or "auto", default="auto"
        Share of the power of the data at the sensors that is added to the noise variance, for
        errors that no shift describes (conductivities, shape of the head). "auto" is 0.1. With an
        estimated `noise_variance`, which contains all errors, both errors are 0.
    samples : {"auto", "independent"}, default="auto"
        How many independent samples the evidence of a source counts. Noise that is correlated in
        time, as after a filter, has fewer than there are samples; "auto" estimates their number
        from the autocorrelation of the residual (``SourceResult.errors.samples``).
    nave : float, optional
        The noise of an average of `nave` epochs has the covariance γ `noise_cov` / `nave`. By
        default this is ``evoked.nave``, as in `mne.minimum_norm.apply_inverse`,
        `mne.whiten_evoked` and `mne.simulation.simulate_evoked` (`gamma_map` and `mixed_norm`
        ignore it). Give 1 if `noise_cov` is already that of the average. With several evokeds
        the prior variance of a source is the same in units of each evoked's noise.
    significance : float or None, default=0.05
        Only sources that are statistically significant at this level are returned. The level is the
        probability under the model that any of them is false. Other sources are removed one at a
        time, the least significant one first, and the prior variances of the remaining ones are
        then fitted again. The fit from which they are removed is accurate enough for this; the
        tolerance `tol` is that of the remaining sources, and of ``SourceResult.model``.
        None returns all sources with a positive prior variance, as `gamma_map` does.
    patches : list of float or int, optional
        Sizes of extended sources, which are searched for along with the point sources: radii in
        metres (floats, such as 0.01, at most 0.1; straight-line distances within one source space)
        or neighbour orders (integers). Around every source there is one patch of each size, in
        which all sources have the same amplitude.
    return_residual : bool, default=False
        Whether to return the residual as well.
    return_as_dipoles : bool, default=False
        Whether to return a list of dipoles instead of a source estimate.
    return_result : bool, default=False
        Whether to return a `SourceResult` instead, which has the source estimate, the dipoles, the
        residual, the certificate, standard deviations of the amplitudes, the goodness of fit and
        the path of noise variances.
    verbose : bool, str, int or None, default=None
        Level of MNE's log, also when attributes of a `SourceResult` are read. If the call takes
        longer than two seconds, its elapsed time is shown with True, and with None if standard
        error is a terminal or belongs to a notebook.

    Other Parameters
    ----------------
    depth : float, dict or None, default=0.8
        Depth weighting of MNE. The prior variance of every source is found from the data, whatever
        the scale of its columns, so that the result does not depend on it.
    rank : None, "info", "full" or dict, default=None
        Rank of the noise covariance, as in MNE.
    group_covariance : {"full", "spherical"}, default="full"
        Prior covariance of the three components of a loose or free source. ``"full"``: any
        covariance matrix, so that results do not depend on the axes. ``"spherical"``: one variance
        for all three components, as with ``xyz_same_gamma=True`` of `gamma_map`.
    weights : array of shape (n_sources,) or SourceEstimate, optional
        Weights of the sources, as in `mixed_norm`. Like `depth`, they only scale columns and do not
        change the result, except that sources with small weights are left out (`weights_min`).
    weights_min : float, default=0.0
        Sources whose weight is not larger than this are left out.
    debias : bool, default=False
        Whether to return the amplitudes of least squares on the sources that were found, which the
        prior does not shrink towards zero. Only amplitudes are fitted again, together with what
        follows from them: source estimate, dipoles, residual and goodness of fit. The sources,
        those axes of each source along which it has a prior variance, and the noise variance stay
        as they are, and so do the posterior mean, its standard deviations and the certificate.
    cv, random_state, max_iter, tol : optional
        As in `SparseVAE`: folds over sensors for ``noise_variance="cv"``, their seed, the largest
        number of iterations, and the distance to optimality at which to stop.

    Returns
    -------
    stc : SourceEstimate, VolSourceEstimate, MixedSourceEstimate, their vector forms, or list
        The source estimate with the vertices of the sources that were found, or a list of dipoles
        (`return_as_dipoles`), or a `SourceResult` (`return_result`). For a list of evokeds, a list
        with one entry for each. If no source was found, a warning is issued, and the estimate has
        no vertices.
    residual : Evoked or list of Evoked
        The data that the sources do not explain. Only if `return_residual`.

    See Also
    --------
    solver : The same for whitened matrices.

    Notes
    -----
    From files to a plot::

        import mne
        from lucidae.mne import sparse_vae

        evoked = mne.read_evokeds("sample-ave.fif", condition=0, baseline=(None, 0))
        forward = mne.read_forward_solution("sample-fwd.fif")
        noise_cov = mne.read_cov("sample-cov.fif")
        result = sparse_vae(evoked.crop(0.05, 0.15), forward, noise_cov, return_result=True)
        print(result, result.certificate.summary())
        result.stc.plot(subject="sample", subjects_dir="subjects", hemi="both")

    References
    ----------
    Wipf 2023, Marginalization is not marginal: no bad VAE local minima when learning optimal
    sparse representations. Wipf & Nagarajan 2009, A unified Bayesian framework for MEG/EEG source
    imaging (the model of `gamma_map`).

    Examples
    --------
    Magnetometers of a helmet around a spherical head, with two of 60 possible sources active:

    >>> import mne
    >>> from lucidae.mne import sparse_vae
    >>> info = mne.channels.read_meg_canonical_info("neuromag")
    >>> info = mne.pick_info(info, mne.pick_types(info, meg="mag"))
    >>> places = np.random.default_rng(0).uniform([-0.05, -0.05, 0.01], 0.05, (60, 3))
    >>> src = mne.setup_volume_source_space(pos={"rr": places, "nn": places}, verbose=False)
    >>> sphere = mne.make_sphere_model((0.0, 0.0, 0.0), 0.09, info=info, verbose=False)
    >>> forward = mne.make_forward_solution(info, None, src, sphere, eeg=False, verbose=False)
    >>> noise_cov = mne.make_ad_hoc_cov(info, verbose=False)
    >>> rng = np.random.default_rng(1)
    >>> moments = 50e-9 * rng.standard_normal((6, 20))
    >>> data = forward["sol"]["data"][:, [30, 31, 32, 120, 121, 122]] @ moments
    >>> data += 5e-15 * rng.standard_normal(data.shape)
    >>> evoked = mne.EvokedArray(data, info, verbose=False)
    >>> stc = sparse_vae(evoked, forward, noise_cov, verbose=False)
    >>> stc.vertices
    [array([10, 40])]
    >>> result = sparse_vae(evoked, forward, noise_cov, return_result=True, verbose=False)
    >>> result.certificate["stationarity"].holds
    True
    """
    for name, flag in (
        ("debias", debias),
        ("return_residual", return_residual),
        ("return_as_dipoles", return_as_dipoles),
        ("return_result", return_result),
    ):
        check_flag(flag, name)
    check_choice(samples, "samples", ("auto", "independent"))
    if return_result and (return_residual or return_as_dipoles):
        raise ValueError(
            "return_result=True was given with return_residual or return_as_dipoles, but the "
            "result has both, as residual and dipoles: leave these arguments out."
        )
    shown = elapsed("sparse_vae", "auto" if verbose is None else verbose is True)
    # Products with a few hundred sensors gain nothing from threads, which wait for each other.
    with shown, logging_at(verbose), one_thread():
        problem = EvokedProblem.of(
            evoked, forward, noise_cov, loose=loose, depth=depth, rank=rank, pick_ori=pick_ori,
            weights=weights, weights_min=weights_min, nave=nave,
            scale_matters=group_covariance != "full" or patches is not None,
        )  # fmt: skip
        problem.warn_of_noise(noise_variance)
        _check_power(float(np.mean(problem.responses**2)))
        problem = problem.along_sensors() if isinstance(noise_variance, str) else problem
        gain, labels, expansion = problem.gain, problem.labels, problem.expansion
        if patches is not None:
            gain, labels, expansion = expanded(problem, patches)
        position, share = checked_errors(problem, noise_variance, position_error, model_error)
        labels, basis = observable_basis(gain, labels, UNSEEN)
        gain, expansion = gain @ basis, expansion @ basis
        fit = partial(
            GroupEstimate.fit, noise_variance=noise_variance, group_covariance=group_covariance,
            significance=significance, cv=cv, random_state=random_state, max_iter=max_iter, tol=tol,
        )  # fmt: skip
        estimate, expansion, errors = fit_with_errors(
            fit, problem, gain, labels, expansion, noise_variance=noise_variance,
            position_error=position, model_error=share,
            chosen=position_error == model_error == "auto", independent=samples == "independent",
        )  # fmt: skip
        _warn_of_few_samples(noise_variance, gain, problem.responses)
        if not estimate.columns.size:
            warn_user(NO_SOURCE)
        results = [
            SourceResult(
                problem, estimate, expansion, index, pick_ori, bool(debias), verbose, errors
            )
            for index in range(len(problem.evokeds))
        ]
        _warn_of_misfit(results)
        log_explained(problem.responses, results[0].fields @ estimate.mean)
        several = isinstance(evoked, list | tuple)
        if return_result:
            return results if several else results[0]
        found = [one.dipoles if return_as_dipoles else one.stc for one in results]
        residuals = [one.residual for one in results] if return_residual else None
    out: Any = found if several else found[0]
    if residuals is None:
        return out
    return out, residuals if several else residuals[0]


def solver(
    M: Any,
    G: Any,
    n_orient: int = 1,
    *,
    noise_variance: float | str = 1.0,
    group_covariance: str = "full",
    significance: float | None = 0.05,
    debias: bool = False,
    **settings: Any,
) -> tuple[Floats, Floats]:
    """Find the sources of whitened data, in the form of MNE's example of a custom inverse solver.

    Parameters
    ----------
    M : array of shape (n_channels, n_times)
        The whitened data.
    G : array of shape (n_channels, n_columns)
        The whitened gain, in which each `n_orient` consecutive columns belong to a source.
    n_orient : int, default=1
        Number of columns of a source: 1 for fixed orientation, 3 for loose and free ones.
    noise_variance : float or str, default=1.0
        Factor γ of the noise covariance. If this is the covariance of single epochs and the data
        are an average of `nave` of them, give ``functools.partial(solver, noise_variance=1/nave)``.
    group_covariance, significance, debias : optional
        As in `sparse_vae`.
    **settings
        Further arguments of `SparseVAE`: `cv`, `random_state`, `max_iter`, `tol`, `solver`,
        `n_jobs` and `verbose`. Others are refused, because the amplitudes are those of its default
        model, the VAE with a full posterior covariance.

    Returns
    -------
    X : ndarray of shape (n_active, n_times)
        Amplitudes of the columns that belong to the sources that were found.
    active_set : ndarray of bool of shape (n_columns,)
        True for the columns whose amplitudes are in X: all columns of each source that was found.

    Examples
    --------
    >>> from lucidae.mne import solver
    >>> rng = np.random.default_rng(0)
    >>> G = rng.standard_normal((30, 60))
    >>> M = 5.0 * G[:, 12:15] @ rng.standard_normal((3, 8)) + rng.standard_normal((30, 8))
    >>> X, active_set = solver(M, G, 3)
    >>> np.flatnonzero(active_set), X.shape
    (array([12, 13, 14]), (3, 8))
    """
    check_flag(debias, "debias")
    refused = [name for name in settings if name not in SETTINGS]
    if refused:
        raise ValueError(
            f"solver was called with {', '.join(refused)}, expected no further arguments but "
            f"{', '.join(SETTINGS)}: the model is the VAE with a full posterior covariance. Use "
            "lucidae.SparseVAE for other models."
        )
    data, gain = check_rows(M, name="M"), check_rows(G, name="G")
    size = check_integer(n_orient, "n_orient", low=1)
    if data.shape[0] != gain.shape[0] or gain.shape[1] % size:
        raise ValueError(
            f"M has shape {data.shape}, G has shape {gain.shape} and n_orient={size} was given, "
            "expected as many rows in M as in G, and n_orient columns in G for each source."
        )
    if isinstance(noise_variance, str):
        data, gain = _without_null_space(data, gain)
    sources = np.arange(gain.shape[1]) // size
    with one_thread():
        labels, basis = observable_basis(gain, sources, UNSEEN)
        estimate = GroupEstimate.fit(
            gain @ basis, data, labels, noise_variance=noise_variance,
            group_covariance=group_covariance, significance=significance, **settings,
        ).significant()  # fmt: skip
    _warn_of_few_samples(noise_variance, estimate.gain, data)
    if not estimate.columns.size:
        warn_user(NO_SOURCE)
    active_set = np.isin(sources, estimate.groups)
    found = estimate.debiased if debias else estimate.mean
    return basis[:, estimate.columns].tocsr()[active_set] @ found, active_set


POSITION_ERROR = 0.006
"""Default standard deviation, in metres, of errors of position along each axis."""

MODEL_ERROR = 0.1
"""Default share of the power that is added to the noise variance."""


def checked_errors(
    problem: EvokedProblem, noise_variance: Any, position_error: Any, model_error: Any
) -> tuple[float, float]:
    """Return the errors of position (metres) and of the model (share of the power) as numbers."""
    checked_noise(noise_variance)
    found = []
    spacing = grid_spacing(problem.forward["source_rr"])
    defaults = {"position_error": max(POSITION_ERROR, 0.5 * spacing), "model_error": MODEL_ERROR}
    given = {"position_error": position_error, "model_error": model_error}
    for name, value in given.items():
        if isinstance(value, str) and value == "auto":
            found.append(0.0 if isinstance(noise_variance, str) else defaults[name])
            continue
        high = LARGEST_RADIUS if name == "position_error" else 1.0
        found.append(check_number(value, name, low=0.0, high=high, others=' or "auto"'))
    if isinstance(noise_variance, str) and any(found):
        raise ValueError(
            f"noise_variance={noise_variance!r} was given with position_error or model_error, but "
            "an estimated noise variance contains the errors of the model already: give a number, "
            "or position_error=0 and model_error=0."
        )
    return found[0], found[1]


def _warn_of_few_samples(noise_variance: Any, gain: Floats, responses: Floats) -> None:
    """Warn if the noise variance was learned from fewer than `FEWEST_SAMPLES` samples."""
    samples = responses.shape[1]
    if samples >= FEWEST_SAMPLES:
        return
    if noise_rule(noise_variance, FullCovariance(), *gain.shape) == "learn":
        warn_user(
            f"The noise variance was learned from {samples} sample{'s' * (samples > 1)}, expected "
            f"at least {FEWEST_SAMPLES}: with so few it may become far too small, so that sources "
            "are found in noise alone. Give noise_variance as a number (1 if noise_cov and nave "
            "describe the noise), noise_variance='cv', or more samples."
        )


def _check_power(power: float) -> None:
    """Raise an error, or warn, if the mean square of whitened data cannot be that of noise."""
    if power > LARGEST_POWER:
        raise ValueError(
            f"evoked is {power**0.5:.2g} times as large as the noise of noise_cov, expected at "
            f"most {LARGEST_POWER**0.5:.0g} times: give both in the units of MNE, T, T/m and V."
        )
    if power < SMALLEST_POWER:
        warn_user(
            f"The power of evoked is {power:.2g} times that of the noise of noise_cov, which it "
            "contains: noise_cov, nave or units do not describe the noise. Give both in the units "
            "of MNE (T, T/m and V), and the number of averaged epochs as nave."
        )


def _warn_of_misfit(results: list[SourceResult]) -> None:
    """Warn if something beside the sources and noise is in the data, or if units are wrong."""
    first = results[0]
    samples, every = first.errors.samples, first.problem.responses.shape[1]
    known = first.problem.noise_samples
    filtered = (
        f" If the noise is as correlated in time as what is left ({every} samples count as "
        f"{samples:.0f}), the {known} samples of noise_cov count as {known * samples / every:.0f}, "
        f"expected at least 10 for each of its {len(first.problem.whitener)} dimensions."
        if known is not None and samples < 0.5 * every
        else ""
    )
    if first.misfit > 1.0:
        warn_user(
            f"The model does not fit: what the sources leave of the data is {first.misfit:.2g} "
            f"times as large as noise. {MISFIT}{filtered}"
        )
    if samples < FEWEST_SAMPLES < every:
        warn_user(
            f"The noise is so correlated in time that the {every} samples count as {samples:.1f} "
            "independent ones: few sources can be significant. Give a longer window, or data with "
            "less of a low-pass filter."
        )
    largest = max((float(np.abs(one.amplitudes).max(initial=0.0)) for one in results), default=0.0)
    if largest and not LARGEST_MOMENT / 1e7 < largest < LARGEST_MOMENT:
        warn_user(
            f"The largest amplitude is {largest:.2g} A·m, expected some nA·m: give evoked and "
            "forward in the units of MNE (T, T/m or V, and these per A·m)."
        )


def _without_null_space(data: Floats, gain: Floats) -> tuple[Floats, Floats]:
    """Return data and gain after reduction to linearly independent rows.

    If a projection was applied, the whitened rows are linearly dependent: their noise has fewer
    dimensions than there are rows. Without the reduction, an estimated noise variance would be too
    small.
    """
    both = np.hstack([data / max(np.linalg.norm(data), 1e-300), gain / np.linalg.norm(gain)])
    values, vectors = np.linalg.eigh(both @ both.conj().T)
    kept = vectors[:, values > 1e-12 * values[-1]]
    turn = rotation_to_rows(kept, np.linalg.norm(both, axis=1)) @ kept.conj().T
    return turn @ data, turn @ gain


Members = np.ndarray[Any, Any]

LARGEST_RADIUS = 0.1
"""Largest radius of a patch in metres. Larger numbers are taken for millimetres or centimetres."""


def checked_sizes(patches: Any) -> list[int | float]:
    """Return the argument `patches` as a list of neighbour orders (int) and radii (float)."""
    given = list(patches) if np.ndim(patches) == 1 else [patches]
    if not given:
        raise ValueError(
            "patches is an empty list, expected radii in metres, such as [0.01, 0.02], or "
            "neighbour orders, such as [1, 2]; None for point sources only."
        )
    return [
        check_integer(size, "patches", low=1) if isinstance(size, Integral) else _radius(size)
        for size in given
    ]


def _radius(size: Any) -> float:
    """Return a radius in metres after checking it."""
    radius = check_number(size, "patches", low=0.0, open_low=True)
    if radius > LARGEST_RADIUS:
        raise ValueError(
            f"patches contains the radius {radius:g}, but radii are in metres and at most "
            f"{LARGEST_RADIUS:g}: give 0.015 for 15 mm. Neighbour orders are integers, such as 1."
        )
    return radius


def neighbourhoods(src: Any, patches: Any) -> list[Members]:
    """Return the sources of each patch: one patch around every source, in every size."""
    found: dict[bytes, Members] = {}
    for size in checked_sizes(patches):
        near = _by_order(src, size) if isinstance(size, int) else _by_radius(src, size)
        for members in near:
            if members.size > 1:
                found.setdefault(members.tobytes(), members)
    return list(found.values())


def _by_radius(src: Any, radius: float) -> Iterator[Members]:
    """Yield, for each source, those of its source space within a radius (metres) around it."""
    first = 0
    for space in src:
        places = space["rr"][space["vertno"]]
        tree = scipy.spatial.cKDTree(places)
        for near in tree.query_ball_point(places, radius):
            yield first + np.sort(np.asarray(near, dtype=np.int64))
        first += len(places)


def _by_order(src: Any, order: int) -> Iterator[Members]:
    """Yield, for each source, the indices of the sources that are at most `order` edges away.

    Edges join neighbouring sources of the same surface or of the same volume grid.
    """
    first = 0
    for space in src:
        edges = _edges(space, order)
        reach = (edges + edges.T + scipy.sparse.eye_array(edges.shape[0])).tocsr()
        within = reach
        for _ in range(order - 1):
            within = within @ reach
        for begin, end in pairwise(within.indptr):
            yield first + np.sort(within.indices[begin:end]).astype(np.int64)
        first += edges.shape[0]


def _edges(space: Any, order: int) -> Any:
    """Return the adjacency matrix of the sources of one source space, as a sparse matrix."""
    vertices = np.asarray(space["vertno"])
    if vertices.size < 2:
        return scipy.sparse.coo_array((vertices.size,) * 2)
    if space["type"] == "surf":
        triangles = _triangles(space, order)
        pairs = triangles[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2)
        pairs = np.searchsorted(vertices, pairs[np.isin(pairs, vertices).all(axis=1)])
    elif space.get("shape") is not None:
        places = space["rr"][vertices]
        tree = scipy.spatial.cKDTree(places)
        spacing = tree.query(places, k=2)[0][:, 1].min()
        pairs = tree.query_pairs(1.01 * spacing, output_type="ndarray")
    else:
        raise ValueError(
            f"patches={order} was given as a neighbour order, but the sources are neither on a "
            "surface nor on a grid, so that they have no neighbours: give radii in metres, such "
            "as 0.01."
        )
    ones = np.ones(len(pairs))
    return scipy.sparse.coo_array((ones, tuple(pairs.T)), shape=(vertices.size,) * 2)


def _triangles(space: Any, order: int) -> Floats:
    """Return the triangles between the sources of a surface, as numbers of vertices.

    Without them an error is raised: MNE deletes them if some sources are selected, and those of the
    whole surface do not join sources that are a subset of its vertices.
    """
    triangles = space["tris"] if space.get("use_tris") is None else space["use_tris"]
    if not np.size(triangles):
        raise ValueError(
            f"patches={order} was given as a neighbour order, but a surface of forward['src'] has "
            "no triangles between its sources, such as after mne.forward.restrict_forward_to_stc: "
            "give radii in metres, such as 0.01, or the forward of all sources with weights=, 0 "
            "for sources to leave out."
        )
    return np.asarray(triangles)


def expanded(problem: EvokedProblem, patches: Any) -> tuple[Floats, Floats, Any]:
    """Return the gain, labels and expansion with further columns for each patch (extended source).

    All sources of a patch have the same amplitude. On a surface whose orientations are relative to
    its normals, the sources point along the normals, and a patch is one column. Elsewhere they
    share one direction, and a patch is a group of three columns for the axes x, y and z.
    """
    axes = problem.n_orient
    usable = np.zeros(problem.weighting.size // axes, dtype=bool)
    usable[problem.labels] = True
    normal = _along_normals(problem)
    rows: list[Any] = []
    values: list[Any] = []
    labels: list[int] = []
    for number, members in enumerate(neighbourhoods(problem.forward["src"], patches)):
        if not usable[members].all():
            continue
        for part in [axes - 1] if normal[members[0]] else range(axes):
            rows.append(members * axes + part)
            # The mean weight of the members keeps the scale of a patch near that of its points.
            scale = np.mean(problem.weighting[rows[-1]]) / members.size
            values.append(np.full(members.size, scale))
            labels.append(usable.size + number)
    if not rows:
        raise ValueError(
            f"patches={patches!r} was given, but no patch of this size has two or more sources. "
            "Give a larger radius in metres, or a neighbour order such as 1."
        )
    ends = np.cumsum([0, *(part.size for part in rows)])
    shape = (problem.weighting.size, len(rows))
    extra = scipy.sparse.csc_array((np.concatenate(values), np.concatenate(rows), ends), shape)
    gain = np.hstack([problem.gain, problem.lead_field(slice(None)) @ extra])
    expansion = scipy.sparse.hstack([problem.expansion, extra], format="csc")
    return gain, np.concatenate([problem.labels, labels]), expansion


def _along_normals(problem: EvokedProblem) -> Floats:
    """Return, for each source, whether the sources of a patch around it point along the normals."""
    forward = problem.forward
    known = problem.n_orient == 1 or bool(forward["surf_ori"])
    kinds = [np.full(len(space["vertno"]), space["type"] == "surf") for space in forward["src"]]
    return known & (np.concatenate(kinds) | (problem.n_orient == 1))
