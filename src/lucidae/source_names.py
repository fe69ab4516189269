"""Names of sources by hemisphere or source space and vertex number, as MNE-Python counts them."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["center_of", "source_names"]

HEMISPHERES = {101: "lh", 102: "rh"}
"""Identifiers of the two surfaces in files of MNE, and the names of the hemispheres."""


def source_names(spaces: Any, vertices: Any) -> list[str]:
    """Return the names of sources: hemisphere or source space, and number of the vertex.

    The names are such as "lh 258" for surfaces and "vertex 1133" for a single volume. Further
    volumes have the name of their segment, or the index of their source space, from 0.
    """
    prefixes = [_space_name(space, index, len(spaces)) for index, space in enumerate(spaces)]
    for index, prefix in enumerate(prefixes):
        if prefixes.count(prefix) > 1:  # two source spaces of one segment
            prefixes[index] = f"space {index} {prefix}"
    return [
        f"{prefix} {vertex}"
        for prefix, numbers in zip(prefixes, vertices, strict=True)
        for vertex in numbers
    ]


def _space_name(space: Any, index: int, count: int) -> str:
    """Return the name that precedes the vertex numbers of source space `index` of `count`."""
    if space.get("type") == "surf" and int(space.get("id", -1)) in HEMISPHERES:
        return HEMISPHERES[int(space["id"])]
    if count == 1:
        return "vertex"
    return str(space.get("seg_name") or f"space {index} vertex")


def center_of(positions: Any) -> int:
    """Return the index of the point that is nearest to the mean of several points (n, 3)."""
    points = np.asarray(positions, dtype=float)
    return int(np.argmin(np.linalg.norm(points - points.mean(axis=0), axis=1)))
