"""Checks of the evokeds, the forward solution and the noise covariance given to `sparse_vae`."""

from __future__ import annotations

import warnings
from typing import Any

import mne
import numpy as np

try:
    from mne._fiff.proj import make_projector
except ImportError as error:  # pragma: no cover
    raise ImportError(
        f"lucidae.mne uses a function of MNE-Python that version {mne.__version__} does not have "
        f"({error}): install a version from 1.12 on that lucidae was tested with, such as 1.13."
    ) from error

from lucidae.validation import check_number, check_vector, warn_user

__all__ = [
    "check_kind",
    "check_normals",
    "check_values",
    "checked_channels",
    "checked_evokeds",
    "checked_weights",
    "number_of_averages",
    "places",
    "samples_of",
]

Floats = np.ndarray[Any, Any]

MISSING_SHARE = 0.1
"""Share of the good channels of an evoked without forward or covariance above which to warn."""


SAME = 1e-5
"""Largest difference of entries of equal projectors or transformations; files store float32."""


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
    """Return the names of the channels in use.

    These are the good channels of the evoked that the forward solution and the noise covariance
    contain. An error is raised if there are none. A warning is issued if the forward solution or
    the covariance lacks many good channels of a type (magnetometers, gradiometers, electrodes) of
    which it contains others.
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
    """Raise an error if the data, the forward solution or the noise covariance contain NaN.

    Only the channels `used` are checked. Infinity raises an error as well, and so does a noise
    covariance without a positive variance.
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
    """Return the argument `weights` of `sparse_vae` after checking it.

    It is None, a source estimate, or a vector with a weight of at least 0 for each source.
    """
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
    """Return the number of averaged epochs, by which the noise covariance of an evoked is divided.

    It is `nave` if this is not None, otherwise that of the evoked. The latter may be below 1, such
    as 0.5 for the difference of two single epochs.
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

    Return None if it is not known, if the covariance is diagonal, or if it was regularised by
    `mne.compute_covariance`.
    """
    samples = int(noise_cov["nfree"])
    regularised = noise_cov.get("method") not in (None, "empirical")
    return None if samples < 1 or noise_cov["diag"] or regularised else samples
