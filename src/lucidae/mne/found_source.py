"""Point sources and patches as they are listed and drawn, each with its amplitude and share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.mne.evoked_problem import Floats

__all__ = ["FoundSource", "counted"]


@dataclass(frozen=True, eq=False)
class FoundSource:
    """A point source, or a patch (extended source), whose sources all have the same amplitude.

    Parameters
    ----------
    name : str
        Name of the source, or of the patch and its central source.
    sources : ndarray of int of shape (k,)
        Indices of the sources of the patch, as ``SourceResult.sources``; one index for a point.
    center : int
        Index of the source that is nearest to the mean of the positions of the sources.
    positions : ndarray of shape (k, 3)
        Positions of the sources in metres, in head coordinates.
    position : ndarray of shape (3,)
        Position of the central source.
    orientations : ndarray of shape (n_orient, 3)
        Unit vectors of the components of the central source.
    amplitudes : ndarray of shape (n_orient, n_times)
        Amplitude in A·m of each source of the patch. Other patches that contain the same source are
        not included.
    posterior_std : ndarray of shape (n_orient,)
        Posterior standard deviations of the amplitudes.
    goodness_of_fit : ndarray of shape (n_times,)
        Percentage of the power of the whitened data that the point or the whole patch explains.
    times : ndarray of shape (n_times,)
        Times in seconds.
    """

    name: str
    sources: Floats
    center: int
    positions: Floats
    position: Floats
    orientations: Floats
    amplitudes: Floats
    posterior_std: Floats
    goodness_of_fit: Floats
    times: Floats

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
    def strength(self) -> float:
        """Largest amplitude over time, summed over the sources of a patch, in A·m."""
        return self.size * self.amplitude

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
    """Return the number of point sources and of patches as text, from their numbers of sources.

    Examples
    --------
    >>> counted([1]), counted([1, 1, 23]), counted([7, 23]), counted([])
    ('1 source', '2 sources and 1 patch of 23 sources', '2 patches of 7 to 23 sources', '0 sources')
    """
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
