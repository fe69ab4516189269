"""The whitened inverse problem of one or several evokeds, prepared by functions of MNE.

This module and `evoked_checks` are the only ones that import private functions of MNE. By the same
functions
`mne.inverse_sparse.gamma_map` and `mixed_norm` whiten the data, weight the sources and select
channels. Bad channels, projections, the average reference and the rank are therefore treated as in
these functions.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import mne
import numpy as np
import scipy.sparse

try:
    from mne.inverse_sparse.mxne_inverse import (
        _check_ori,
        _compute_residual,
        _make_sparse_stc,
        _prepare_gain,
        _split_gof,
    )
    from mne.minimum_norm.inverse import (
        _check_reference,
        _log_exp_var,
        _select_orient_forward,
        _triage_loose,
    )
except ImportError as error:  # pragma: no cover
    raise ImportError(
        f"lucidae.mne uses functions of MNE-Python that version {mne.__version__} does not have "
        f"({error}): install a version from 1.12 on that lucidae was tested with, such as 1.13."
    ) from error

from lucidae.mne.evoked_checks import (
    check_kind,
    check_normals,
    check_values,
    checked_channels,
    checked_evokeds,
    checked_weights,
    number_of_averages,
    places,
    samples_of,
)
from lucidae.sparsity.whitening import rotation_to_rows
from lucidae.validation import check_number, warn_user

__all__ = [
    "EvokedProblem",
    "log_explained",
    "logging_at",
    "make_stc",
    "split_goodness_of_fit",
]

Floats = np.ndarray[Any, Any]

NO_FIELD = 1e-6
"""Largest norm of the field of a source, relative to the largest one, that counts as zero.

In a spherical head, the source at the centre has no field but rounding errors."""


FEW_SAMPLES = 10
"""Number of samples of a noise covariance for each dimension below which to warn.

With as many, the largest variance of the whitened noise is about 2."""

LARGEST_ADVISED = 20.0
"""Largest noise variance that is advised for a covariance of few samples."""


def logging_at(verbose: Any) -> AbstractContextManager[Any]:
    """Return a context manager in which MNE logs at the level `verbose`; None changes nothing."""
    found: AbstractContextManager[Any]
    found = nullcontext() if verbose is None else mne.use_log_level(verbose)
    return found


@dataclass(frozen=True, eq=False)
class EvokedProblem:
    """The inverse problem M ≈ GX: whitened evokeds M, whitened gain G, unknown coefficients X."""

    evokeds: list[Any]  # copies of the responses, with the same channels
    # the forward solution of the channels in use, with fixed, surface or Cartesian orientation
    forward: Any
    info: Any  # the channels in use
    # (d, n_channels): matrix that makes the covariance of the noise the identity; d is the rank of
    # the covariance
    whitener: Floats
    gain: Floats  # (d, κ): whitened lead field of the κ columns in use, each times its weight
    columns: Floats  # (κ,): indices of the columns of `gain` among those of the forward solution
    # (n_columns,): weight of every column of the forward solution: depth, orientation and user's
    # weights
    weighting: Floats
    # (d, n_times): whitened data of all evokeds, one after the other, each times the root of its
    # number of averages, so that the noise has unit variance
    responses: Floats
    averages: tuple[float, ...]  # number of epochs that were averaged for each evoked
    # number of samples from which the noise covariance was estimated, if it is known and the
    # covariance was not regularised
    noise_samples: int | None = None

    @classmethod
    def of(
        cls, evoked: Any, forward: Any, noise_cov: Any, *, loose: Any, depth: Any, rank: Any,
        pick_ori: Any, weights: Any, weights_min: float, nave: Any, scale_matters: bool = True,
    ) -> EvokedProblem:  # fmt: skip
        """Return the inverse problem of an evoked or of a list of evokeds.

        The arguments are those of `sparse_vae`; invalid ones raise an error. If `scale_matters` is
        False, the result does not depend on the scale of each column, and weights for the depth,
        which take MNE as much time as the whitening, are not computed.
        """
        evokeds = checked_evokeds(evoked)
        check_kind(forward, mne.Forward, "forward", "mne.make_forward_solution")
        check_kind(noise_cov, mne.Covariance, "noise_cov", "mne.compute_covariance")
        # Covariances are read from files in a byte order that MNE's whitening may refuse.
        noise_cov = noise_cov.copy()
        noise_cov.update(data=np.array(noise_cov["data"], dtype=float))
        used = checked_channels(evokeds[0].info, forward, noise_cov)
        check_values(evokeds, forward, noise_cov, used)
        if depth is not None and not isinstance(depth, dict):
            depth = check_number(depth, "depth", low=0.0, others=", a dict or None")
            depth = depth if scale_matters else None
        weights = checked_weights(weights, forward["nsource"])
        low = check_number(weights_min, "weights_min", low=0.0)
        for one in evokeds:
            _check_reference(one)
        rank = dict(rank) if isinstance(rank, dict) else rank  # MNE writes into it
        if depth is None and weights is None:
            forward, gain, info, whitener, weighting = _prepared(
                forward, evokeds[0].info, noise_cov, loose, rank
            )
            mask = None
        else:
            forward, gain, info, whitener, weighting, mask = _prepare_gain(
                forward, evokeds[0].info, noise_cov, True, depth, loose, rank, weights, low
            )
        _check_ori(pick_ori, forward)
        check_normals(forward)
        counts = tuple(number_of_averages(one, nave) for one in evokeds)
        parts = [
            np.sqrt(count) * (whitener @ one.data[places(one.ch_names, info["ch_names"])])
            for one, count in zip(evokeds, counts, strict=True)
        ]
        mask = np.ones(weighting.size, dtype=bool) if mask is None else mask
        if weights is None and weighting.all():
            powers = np.einsum("dk,dk->k", gain, gain) / weighting**2
        else:
            powers = np.sum((whitener @ forward["sol"]["data"]) ** 2, axis=0)
        seen = _with_field(powers, forward["nsource"])
        if not (mask & seen).any():
            raise ValueError(
                "No source of forward has a field at the channels in use, such as radial currents "
                "in a spherical head at magnetometers: give other orientations (loose=1), or "
                "channels that measure these sources."
            )
        return cls(
            evokeds, forward, info, whitener, gain if seen.all() else gain[:, seen[mask]],
            np.flatnonzero(mask & seen), weighting, np.concatenate(parts, axis=1), counts,
            samples_of(noise_cov),
        )  # fmt: skip

    @property
    def largest_noise(self) -> float:
        """Largest variance of the whitened noise along any direction; 1 for an exact covariance.

        It is (1 − √(d/N))⁻² for a covariance of d dimensions that was estimated from N samples, the
        limit for many of both (Marchenko & Pastur 1967), and infinite for N ≤ d. Whitening by such
        an estimate makes some directions of the noise larger than others.
        """
        if self.noise_samples is None:
            return 1.0
        share = len(self.whitener) / self.noise_samples
        return (1.0 - share**0.5) ** -2 if share < 1.0 else np.inf

    def warn_of_noise(self, noise_variance: Any) -> None:
        """Warn if the noise covariance has so few samples that spurious sources are to be expected.

        `noise_variance` is the argument of `sparse_vae`. If it is large enough for the whitened
        noise, or chosen by cross-validation, there is no warning.
        """
        largest, rank = self.largest_noise, len(self.whitener)
        if self.noise_samples is None or self.noise_samples >= FEW_SAMPLES * rank:
            return
        given = 1.0 if noise_variance == "learn" else noise_variance
        if not isinstance(given, Real) or not given < 0.5 * (1.0 + largest):
            return
        advice = f"noise_variance={largest:.2g}, or " if largest < LARGEST_ADVISED else ""
        warn_user(
            f"noise_cov was estimated from {self.noise_samples} samples, expected at least "
            f"{FEW_SAMPLES} for each of its {rank} dimensions: the whitened noise has variances of "
            f"up to {largest:.2g} instead of 1 in some directions, and spurious sources explain "
            f"them. Give {advice}a covariance of more samples, or a regularised one, such as "
            "mne.compute_covariance(..., method='shrunk')."
        )

    @property
    def n_orient(self) -> int:
        """Number of columns of a source: 1 for fixed orientation, 3 for loose and free ones."""
        return 1 if mne.forward.is_fixed_orient(self.forward) else 3

    @property
    def labels(self) -> Floats:
        """For each column of the gain, the index of its source."""
        return self.columns // self.n_orient

    @property
    def expansion(self) -> Any:
        """Sparse matrix that multiplies coefficients of the gain to give amplitudes in A·m."""
        place = (self.columns, np.arange(self.columns.size))
        shape = (self.weighting.size, self.columns.size)
        return scipy.sparse.csc_array((self.weighting[self.columns], place), shape=shape)

    def samples(self, index: int) -> slice:
        """Return the slice of the columns of `responses` that belongs to evoked number `index`."""
        ends = np.cumsum([0, *(len(one.times) for one in self.evokeds)])
        return slice(int(ends[index]), int(ends[index + 1]))

    def lead_field(self, columns: Any) -> Floats:
        """Return some columns of the whitened lead field, without depth or other weights.

        `columns` are indices of columns of the forward solution.
        """
        return np.asarray(self.whitener @ self.forward["sol"]["data"][:, columns])

    def residual(self, index: int, amplitudes: Floats, columns: Any) -> Any:
        """Return evoked number `index` minus the field of the sources that were found.

        `amplitudes` are those of the given `columns` of the forward solution.
        """
        evoked = self.evokeds[index]
        return _compute_residual(self.forward, evoked, amplitudes, columns, self.info)

    def along_sensors(self) -> EvokedProblem:
        """Return an equivalent problem, rotated so that each row is close to one sensor.

        The rows of MNE's whitened data are principal components of the noise, some of which contain
        much more signal than others. If each row belongs to one sensor instead, the folds of a
        cross-validation over rows have similar amounts of signal. If the rank is lower than the
        number of sensors, as with an average reference, the sensors with the larger field and data
        have rows. The choice depends neither on units nor on the order of the channels.
        """
        axes = self.whitener / np.linalg.norm(self.whitener, axis=1, keepdims=True)
        powers = [
            np.sum((axes.T @ part) ** 2, axis=1) / max(np.sum(part**2), 1e-300)
            for part in (self.gain, self.responses)
        ]
        turn = rotation_to_rows(axes.T, sum(powers))
        return replace(
            self, whitener=turn @ self.whitener, gain=turn @ self.gain,
            responses=turn @ self.responses,
        )  # fmt: skip


def make_stc(amplitudes: Floats, columns: Any, problem: EvokedProblem, index: int, ori: Any) -> Any:
    """Return MNE's source estimate of evoked number `index`.

    `amplitudes` are those of the given columns of the forward solution, and `ori` is the argument
    `pick_ori` of `sparse_vae`.
    """
    evoked = problem.evokeds[index]
    tstep = 1.0 / evoked.info["sfreq"]
    # MNE makes no vector estimate without vertices: it is made with one, which is then removed.
    empty = ori == "vector" and not len(columns)
    if empty:
        columns, amplitudes = np.arange(problem.n_orient), np.zeros((problem.n_orient, 1))
    stc = _make_sparse_stc(
        amplitudes, columns, problem.forward, evoked.times[0], tstep,
        active_is_idx=True, pick_ori=ori,
    )  # fmt: skip
    if not empty:
        return stc
    data = np.zeros((0, 3, evoked.times.size))
    return type(stc)(data, [part[:0] for part in stc.vertices], stc.tmin, tstep, stc.subject)


def split_goodness_of_fit(responses: Floats, amplitudes: Floats, lead_field: Floats) -> Floats:
    """Return the percentage of the power of the responses that each source component explains.

    `responses` (d, n_times) are whitened data of d rows, `amplitudes` (a, n_times) those of the a
    source components, and `lead_field` (d, a) their whitened fields. The result, of shape
    (a, n_times), is computed by the function of MNE.
    """
    if not len(amplitudes):
        return np.zeros(amplitudes.shape)
    return np.asarray(_split_gof(responses, amplitudes, lead_field))


def log_explained(responses: Floats, fitted: Floats) -> None:
    """Write to MNE's log which percentage of the power of whitened responses is explained.

    `fitted` is the part of `responses` that the sources explain.
    """
    if responses.any():
        _log_exp_var(responses, fitted, prefix="")


def _with_field(powers: Floats, n_sources: int) -> Floats:
    """Return, for each column of a whitened lead field, whether its source produces a field.

    `powers` are the squared norms of the columns. A field counts as zero if its norm is at most
    `NO_FIELD` times the largest one.
    """
    powers = powers.reshape(n_sources, -1)
    seen = powers.max(axis=1) > NO_FIELD**2 * powers.max()
    return np.repeat(seen, powers.shape[1])


def _prepared(
    forward: Any, info: Any, noise_cov: Any, loose: Any, rank: Any
) -> tuple[Any, Floats, Any, Floats, Floats]:
    """Return forward solution, gain, channels, whitener and weighting, without depth or weights.

    The results are those of MNE's `_prepare_gain`, up to one factor of all columns of the gain.
    That function prepares the noise covariance twice, which takes half of its time.
    """
    forward = forward.copy()
    found = _triage_loose(forward["src"], loose)
    if all(value == 0.0 for value in found.values()):
        if not mne.forward.is_fixed_orient(forward):
            settings = {"force_fixed": True, "use_cps": True, "copy": False}
            mne.convert_forward_solution(forward, **settings)
    elif mne.forward.is_fixed_orient(forward):
        raise ValueError(
            f"loose={loose!r} was given, but the orientations of forward are fixed: give loose=0, "
            "or a forward solution with free orientations."
        )
    elif any(value < 1.0 for value in found.values()) and not forward["surf_ori"]:
        mne.convert_forward_solution(forward, surf_ori=True, use_cps=True, copy=False)
    with _trusted(forward["info"]), _trusted(info):
        forward, picked = _select_orient_forward(forward, info, noise_cov, copy=False)
    with _trusted(picked):
        noise_cov = mne.cov.prepare_noise_cov(
            noise_cov, picked, picked["ch_names"], rank, on_rank_mismatch="warn"
        )
    whitener, _ = mne.cov.compute_whitener(noise_cov, pca=True, verbose=False)
    weighting = np.sqrt(mne.forward.compute_orient_prior(forward, loose=found))
    gain = whitener @ forward["sol"]["data"]
    gain = gain if (weighting == 1.0).all() else gain * weighting
    return forward, gain, picked, whitener, weighting


def _trusted(info: Any) -> AbstractContextManager[Any]:
    """Return a context in which MNE does not check an info again at every step.

    These checks take most of the time of the preparation, and functions of MNE leave them out in
    the same way. `_select_orient_forward` checks the info of the channels in use. Versions before
    1.13 do not have this context.
    """
    skip = getattr(info, "_skip_checks", nullcontext)
    found: AbstractContextManager[Any] = skip()
    return found
