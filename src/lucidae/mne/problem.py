"""The whitened inverse problem of one or several evokeds, with the checks of what was given.

This is the only module that imports private functions of MNE. By the same functions
`mne.inverse_sparse.gamma_map` and `mixed_norm` whiten the data, weight the sources and select
channels. Bad channels, projections, the average reference and the rank are therefore treated as in
these functions.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import mne
import numpy as np
import scipy.sparse

from lucidae.sparsity.covariances import rotation_to_rows
from lucidae.validation import check_number, check_vector, warn_user

try:
    from mne._fiff.proj import make_projector
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

__all__ = ["EvokedProblem", "log_explained", "logging_at", "make_stc", "split_goodness_of_fit"]

Floats = np.ndarray[Any, Any]

NOT_SEEN = (
    "No source of forward has a field at the channels in use, such as radial currents in a "
    "spherical head at magnetometers: give other orientations (loose=1), or channels that measure "
    "these sources."
)

NO_FIELD = 1e-6
"""Largest norm of the field of a source, relative to the largest one, that counts as zero.

In a spherical head, the source at the centre has no field but rounding errors."""


FEW_SAMPLES = 10
"""Number of samples of a noise covariance for each dimension below which to warn.

With as many, the largest variance of the whitened noise is about 2."""

LARGEST_ADVISED = 20.0
"""Largest noise variance that is advised for a covariance of few samples."""

MISSING_SHARE = 0.1
"""Share of the good channels of an evoked without forward or covariance above which to warn."""


SAME = 1e-5
"""Largest difference of entries of equal projectors or transformations; files store float32."""


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

        If `scale_matters` is False, the result does not depend on the scale of each column, and
        weights for the depth, which take MNE as much time as the whitening, are not computed.
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
        # The columns of the sources that have a field.
        powers = powers.reshape(forward["nsource"], -1)
        seen = np.repeat(powers.max(axis=1) > NO_FIELD**2 * powers.max(), powers.shape[1])
        if not (mask & seen).any():
            raise ValueError(NOT_SEEN)
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

        There is no warning if `noise_variance` is large enough for the whitened noise, or chosen by
        cross-validation.
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
        """Return columns of the whitened lead field, without depth or other weights."""
        return np.asarray(self.whitener @ self.forward["sol"]["data"][:, columns])

    def residual(self, index: int, amplitudes: Floats, columns: Any) -> Any:
        """Return evoked number `index` minus the field of the sources that were found."""
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
    """Return MNE's source estimate of evoked number `index`, in the orientation `ori`."""
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
    """Return the percentage of the power that each source component explains, (a, n_times)."""
    if not len(amplitudes):
        return np.zeros(amplitudes.shape)
    return np.asarray(_split_gof(responses, amplitudes, lead_field))


def log_explained(responses: Floats, fitted: Floats) -> None:
    """Write to MNE's log which percentage of the power of whitened responses is explained."""
    if responses.any():
        _log_exp_var(responses, fitted, prefix="")


def _prepared(
    forward: Any, info: Any, noise_cov: Any, loose: Any, rank: Any
) -> tuple[Any, Floats, Any, Floats, Floats]:
    """Return forward solution, gain, channels, whitener and weighting, without depth or weights.

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


def check_kind(value: Any, kind: type, name: str, maker: str) -> None:
    """Raise an error if an argument is not of type `kind`, such as returned by `maker`."""
    if not isinstance(value, kind):
        raise ValueError(
            f"{name} is of type {type(value).__name__}, expected mne.{kind.__name__}, such as "
            f"returned by {maker}."
        )


def checked_evokeds(evoked: Any) -> list[Any]:
    """Return a list of copies of evokeds after checking that one whitened problem suits them all.

    They need the same channels, projections and, for MEG, position of the head.
    """
    evokeds = list(evoked) if isinstance(evoked, list | tuple) else [evoked]
    if not evokeds:
        raise ValueError("evoked is an empty list, expected an Evoked or a list of them.")
    for one in evokeds:
        check_kind(one, mne.Evoked, "evoked", "epochs.average()")
        if np.iscomplexobj(one.data):
            raise ValueError(
                "evoked is complex, expected real data: give its real and its imaginary part as a "
                "list of two evokeds, which then have the same sources."
            )
    first = evokeds[0]
    for one in evokeds[1:]:
        if one.ch_names != first.ch_names or set(one.info["bads"]) != set(first.info["bads"]):
            raise ValueError(
                "The evokeds have different channels or bad channels, expected the same ones in "
                "the same order: call mne.channels.equalize_channels, and mark a channel that is "
                "bad in one evoked as bad in all of them."
            )
    _check_projections(evokeds)
    _check_heads(evokeds)
    return [one.copy() for one in evokeds]


def _check_projections(evokeds: list[Any]) -> None:
    """Raise an error if evokeds have different projections, whether these are applied or not."""
    first = evokeds[0].info
    for number, one in enumerate(evokeds[1:], start=1):
        if not np.allclose(_projector(first), _projector(one.info), rtol=0.0, atol=SAME):
            raise ValueError(
                f"evoked[0] and evoked[{number}] have different projections: "
                f"{_listed(first['projs'])} and {_listed(one.info['projs'])}, expected the same "
                "ones, because they are applied to the forward solution too: give all evokeds the "
                "same projections with evoked.add_proj, or call sparse_vae for each evoked."
            )


def _projector(info: Any) -> Floats:
    """Return the matrix that applies all projections of an info to its channels."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MNE repeats its warnings when the forward is projected
        return np.asarray(make_projector(info["projs"], info["ch_names"], info["bads"])[0])


def _listed(projections: Any) -> str:
    """Return the descriptions of projections as text, for messages."""
    return f"[{', '.join(repr(str(one['desc'])) for one in projections)}]"


def _check_heads(evokeds: list[Any]) -> None:
    """Raise an error if MEG evokeds were recorded at different positions of the head."""
    if not mne.pick_types(evokeds[0].info, meg=True, ref_meg=False).size:
        return
    places = [one.info["dev_head_t"] for one in evokeds]
    known = [None if one is None else one["trans"] for one in places]
    for number, one in enumerate(known[1:], start=1):
        same = one is known[0] or (
            one is not None
            and known[0] is not None
            and np.allclose(one, known[0], rtol=0.0, atol=SAME)
        )
        if not same:
            raise ValueError(
                f"evoked[0] and evoked[{number}] have different positions of the head "
                "(info['dev_head_t']), expected the same one, because there is one forward "
                "solution: move the data to one position, for example with destination= of "
                "mne.preprocessing.maxwell_filter, or call sparse_vae for each evoked with its own "
                "forward."
            )


def checked_channels(info: Any, forward: Any, noise_cov: Any) -> list[str]:
    """Return the good channels of the evoked that the forward and the noise covariance contain.

    A warning is issued if one of these lacks many good channels of a type of which it has others.
    """
    good = [name for name in info["ch_names"] if name not in info["bads"]]
    if not good:
        raise ValueError(
            f"All {len(info['ch_names'])} channels of evoked are marked as bad in "
            "evoked.info['bads'], expected some good ones: correct this list."
        )
    have = {"forward": forward["sol"]["row_names"], "noise_cov": noise_cov["names"]}
    known = {name: set(names) for name, names in have.items()}
    for name, names in have.items():
        if not known[name].intersection(good):
            raise ValueError(
                f"{name} has none of the {len(good)} good channels of evoked: it has "
                f"{len(names)} channels such as {_examples(names)}, and evoked has "
                f"{_examples(good)}. Give the {name} of this recording."
            )
    common = [one for one in good if all(one in names for names in known.values())]
    used = [one for one in common if one not in noise_cov["bads"]]
    if not used:
        counts = [len(names.intersection(good)) for names in known.values()]
        reason = (
            f"noise_cov['bads'] marks all {len(common)} that both have as bad: correct this list."
            if common
            else "no channel is in both: give the forward and the noise_cov of the same channels."
        )
        raise ValueError(
            f"forward has {counts[0]} and noise_cov has {counts[1]} of the {len(good)} good "
            f"channels of evoked, but {reason}"
        )
    types = dict(zip(info["ch_names"], info.get_channel_types(), strict=True))
    for name, names in known.items():
        kinds = {types[one] for one in good if one in names}
        expected = [one for one in good if types[one] in kinds]
        missing = [one for one in expected if one not in names]
        if len(missing) > MISSING_SHARE * len(expected):
            warn_user(
                f"{name} lacks {len(missing)} of {len(expected)} good channels of evoked, such as "
                f"{_examples(missing)}: {len(used)} channels are used. Give the {name} of all "
                "channels, or pick those that it has from the evoked."
            )
    return used


def _examples(names: Any) -> str:
    """Return the first three names of channels as text, for messages."""
    return ", ".join(repr(str(name)) for name in names[:3])


def check_values(evokeds: list[Any], forward: Any, noise_cov: Any, used: list[str]) -> None:
    """Raise an error if the data, the forward solution or the noise covariance are not finite.

    Only the channels `used` are checked. A noise covariance without a positive variance is an error
    as well.
    """
    for one in evokeds:
        finite = np.isfinite(one.data[places(one.ch_names, used)]).all(axis=1)
        wrong = [name for name, sound in zip(used, finite, strict=True) if not sound]
        if wrong:
            raise ValueError(
                f"evoked contains NaN or infinity in {len(wrong)} of the {len(used)} channels in "
                f"use, such as {_examples(wrong)}. Interpolate these channels, or mark them as bad."
            )
    rows = places(forward["sol"]["row_names"], used)
    # Sums need no array of the size of the lead field, and overflow only far from its range.
    if not np.isfinite(forward["sol"]["data"].sum(axis=1)[rows]).all():
        raise ValueError(
            "forward contains NaN or infinity in the lead field of the channels in use: compute it "
            "again with mne.make_forward_solution."
        )
    if not forward["sol"]["data"][rows].any():  # MNE's weights for depth would fail
        raise ValueError(NOT_SEEN)
    rows = places(noise_cov["names"], used)
    values = noise_cov["data"][rows]
    values = values if noise_cov["diag"] else values[:, rows]
    if not np.isfinite(values).all():
        raise ValueError(
            "noise_cov contains NaN or infinity in the channels in use: compute it again, for "
            "example with mne.compute_covariance, from data without such values."
        )
    variances = values if noise_cov["diag"] else np.diagonal(values)
    if not noise_cov["diag"]:
        _check_symmetry(values)
    if not (variances > 0).any():
        raise ValueError(
            f"noise_cov has no positive variance in the {len(used)} channels in use, expected the "
            "covariance of the noise, such as from mne.compute_covariance or "
            "mne.make_ad_hoc_cov."
        )


def _check_symmetry(covariance: Floats) -> None:
    """Raise an error if a noise covariance is not symmetric, of which MNE uses one triangle."""
    scales = np.sqrt(np.abs(np.diagonal(covariance)))
    limit = SAME * scales * scales[:, None]
    difference = np.abs(covariance - covariance.T)
    if (difference > limit).any():
        row, column = np.unravel_index(np.argmax(difference - limit), difference.shape)
        raise ValueError(
            "noise_cov is not symmetric in the channels in use: two entries that should be equal "
            f"are {covariance[row, column]:.3g} and {covariance[column, row]:.3g}. Give the "
            "covariance of the noise, such as from mne.compute_covariance."
        )


def check_normals(forward: Any) -> None:
    """Warn if sources of a volume have a fixed orientation: MNE takes one axis for all of them."""
    if not mne.forward.is_fixed_orient(forward):
        return
    for space in forward["src"]:
        normals = np.asarray(space["nn"])[space["inuse"] > 0]
        if space["type"] != "surf" and len(normals) > 1 and not np.ptp(normals, axis=0).any():
            warn_user(
                "The orientation of the sources is fixed (loose=0), but sources of a volume have "
                "no normals, so that MNE takes the same axis for all of them. Give loose=1 for "
                "sources of any orientation."
            )
            return


def checked_weights(weights: Any, n_sources: int) -> Any:
    """Return the argument `weights`: None, a source estimate, or a weight of each source."""
    if weights is None or hasattr(weights, "vertices"):
        return weights
    given = np.asarray(weights)
    if given.ndim and given.dtype.kind in "iuf":
        wrong = np.flatnonzero(~(np.isfinite(given) & (given >= 0)))
        if wrong.size:
            raise ValueError(
                f"weights is negative, NaN or infinite for {wrong.size} of {given.size} sources, "
                f"the first with index {wrong[0]}, expected one finite number of at least 0 for "
                "each source: give 0 to leave a source out."
            )
    found = check_vector(weights, "weights")
    if found.shape != (n_sources,) or not found.any():
        raise ValueError(
            f"weights has shape {found.shape} and the largest entry {found.max():g}, expected one "
            f"number of at least 0 for each of the {n_sources} sources, not all of them zero."
        )
    return found


def number_of_averages(evoked: Any, nave: Any) -> float:
    """Return the number of averaged epochs, by which the noise covariance is divided.

    That of the evoked may be below 1, such as 0.5 for the difference of two single epochs.
    """
    if nave is not None:
        return check_number(nave, "nave", low=0.0, open_low=True, others=" or None")
    count = float(evoked.nave)
    if not (np.isfinite(count) and count > 0.0):
        raise ValueError(
            f"evoked.nave is {evoked.nave}, expected a finite number above 0, by which the noise "
            "covariance is divided: give the number of averaged epochs as nave, or 1 if noise_cov "
            "is that of the average."
        )
    return count


def places(names: Any, wanted: Any) -> list[int]:
    """Return the index of each of the `wanted` names in a list of names."""
    index = {name: place for place, name in enumerate(names)}
    return [index[name] for name in wanted]


def samples_of(noise_cov: Any) -> int | None:
    """Return the number of samples from which a noise covariance was estimated.

    It is None if it is not known, or if the covariance is diagonal or regularised.
    """
    samples = int(noise_cov["nfree"])
    regularised = noise_cov.get("method") not in (None, "empirical")
    return None if samples < 1 or noise_cov["diag"] or regularised else samples
