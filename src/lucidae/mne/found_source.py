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
    """A point source, or a patch (extended source), whose sources all have the same amplitude."""

    name: str  # name of the source, or of the patch and its central source
    # (k,): indices of the sources of the patch, as ``SourceResult.sources``; one index for a point
    sources: Floats
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
