"""Extended sources: patches of neighbouring sources, which become further columns of the gain."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse
import scipy.spatial

from lucidae.mne.evoked_problem import EvokedProblem, Floats
from lucidae.validation import check_integer, check_number

__all__ = ["expanded", "neighbourhoods"]

Members = np.ndarray[Any, Any]

LARGEST_RADIUS = 0.1
"""Largest radius of a patch in metres. Larger numbers are taken for millimetres or centimetres."""


def checked_sizes(patches: Any) -> list[int | float]:
    """Return the argument `patches` as a list of sizes after checking it.

    Integers are neighbour orders, and floats are radii in metres, of at most `LARGEST_RADIUS`.
    """
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
    """Yield, for each source, the indices of the sources within a radius (metres) around it.

    Only sources of the same source space are included.
    """
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
    """Return the adjacency matrix of the sources of one source space, as a sparse matrix.

    The entry of two neighbouring sources is positive. `order` is only used in the error message.
    """
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
    """Return the gain with a further group of columns for each patch (extended source).

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
