"""Theorem 4.4 as an algorithm: exact one-dimensional minimisers on a working set.

With all other relevances fixed, the full energy is unimodal in one of them, and its minimiser
needs nothing but the current curvature z and alignment Q of that column. On a small working set
a step costs one rank-one update of the columns' Gram matrix in the metric Σ⁻¹.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from lucidae._arrays import Array, diagonal, namespace, rank_one_, squared_norms
from lucidae.iterate import Below, iterate
from lucidae.sparsity.problem import Problem, covariance, whiten


def best_change(relevance: Array, curvature: Array, alignment: Array) -> Array:
    """Change of each wⱼ to its exact minimiser max(0, wⱼ + (Qⱼ − zⱼ)/zⱼ²) (Wipf 2023, Thm 4.4).

    Curvatures must be positive, as those of all columns that are not zero are.
    """
    free = (alignment - curvature) / (curvature * curvature)
    return namespace(relevance).maximum(-relevance, free)


def gain_of(change: Array, curvature: Array, alignment: Array) -> Array:
    """Decrease of the energy per response when one relevance moves by `change`."""
    growth = change * curvature
    return alignment * change / (1.0 + growth) - namespace(change).log1p(growth)


def coordinate_gains(relevance: Array, curvature: Array, alignment: Array) -> Array:
    """Decrease of the energy per response that each coordinate alone can bring."""
    return gain_of(best_change(relevance, curvature, alignment), curvature, alignment)


class Workspace(NamedTuple):
    """Owned buffers of a descent on a few columns.

    `gram` is [ΦᵀΣ⁻¹Φ | ΦᵀΣ⁻¹X/√n] of those columns; curvature and alignment are its diagonal
    and the squared row norms of its right part.
    """

    relevance: Array
    gram: Array
    curvature: Array
    alignment: Array

    @property
    def loading(self) -> Array:
        """The part ΦᵀΣ⁻¹X/√n, a view."""
        return self.gram[:, self.gram.shape[0] :]

    @property
    def metric(self) -> Array:
        """The part ΦᵀΣ⁻¹Φ, a view."""
        return self.gram[:, : self.gram.shape[0]]


def open_workspace(problem: Problem, relevance: Array) -> Workspace:
    """Factorise Σ anew for a problem that is already restricted to the working set."""
    white = whiten(covariance(problem.dictionary, relevance, problem.noise), problem.responses)
    return gather_workspace(white.inverse @ problem.dictionary, white.responses, relevance)


def gather_workspace(whitened: Array, responses: Array, relevance: Array) -> Workspace:
    """Build the buffers from whitened columns and whitened responses."""
    xp = namespace(whitened)
    gram = xp.concat([whitened.mT @ whitened, whitened.mT @ responses], axis=1)
    size = whitened.shape[1]
    loading = gram[:, size:]
    curvature = diagonal(gram[:, :size]) + 0.0
    return Workspace(relevance + 0.0, gram, curvature, squared_norms(loading, -1))


def move_coordinate_(space: Workspace, index: int, change: float) -> Workspace:
    """Move one relevance and update the buffers in place by one rank-one term."""
    size = space.gram.shape[0]
    row = space.gram[index, :] + 0.0
    coupling = row[:size]
    shrink = change / (1.0 + change * float(coupling[index]))
    rank_one_(space.gram, coupling, row, -shrink)
    moved = float(space.relevance[index]) + change
    space.relevance[index] = moved if moved > 0.0 else 0.0
    curvature = space.curvature - shrink * coupling**2
    alignment = squared_norms(space.gram[:, size:], -1)
    return Workspace(space.relevance, space.gram, curvature, alignment)


def best_coordinate_step(space: Workspace) -> Workspace:
    """Move the coordinate that lowers the energy most."""
    xp = namespace(space.gram)
    changes = best_change(space.relevance, space.curvature, space.alignment)
    index = int(xp.argmax(gain_of(changes, space.curvature, space.alignment)))
    return move_coordinate_(space, index, float(changes[index]))


def cyclic_sweep(space: Workspace) -> Workspace:
    """Move every coordinate of the working set once, in order."""
    for index in range(space.gram.shape[0]):
        change = best_change(
            space.relevance[index : index + 1],
            space.curvature[index : index + 1],
            space.alignment[index : index + 1],
        )
        space = move_coordinate_(space, index, float(change[0]))
    return space


ORDERS: dict[str, tuple[Callable[[Workspace], Workspace], int]] = {
    "best": (best_coordinate_step, 16),
    "cyclic": (cyclic_sweep, 1),
}
"""The step of each order, and how many of them lie between two looks at the gains."""


def descend(space: Workspace, *, tolerance: float, limit: int, order: str = "best") -> Workspace:
    """Lower the energy coordinate by coordinate until none gains more than `tolerance`.

    Parameters
    ----------
    space : Workspace
        Owned by the caller and overwritten.
    tolerance : float
        Largest gain per response that may be left.
    limit : int
        Largest number of coordinate moves (of sweeps, for the cyclic order).
    order : {"best", "cyclic"}
        Which coordinate moves next.

    Returns
    -------
    Workspace
    """
    step, stride = ORDERS[order]

    def largest_gain(state: Workspace) -> float:
        gains = coordinate_gains(state.relevance, state.curvature, state.alignment)
        return float(namespace(gains).max(gains))

    stop = Below(largest_gain, tolerance)
    return iterate(step, space, stop=stop, limit=limit, check_every=stride).value
