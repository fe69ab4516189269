"""The metric S = Φ_gᵀΣ⁻¹Φ_g and the explained moment Q = Φ_gᵀΣ⁻¹CΣ⁻¹Φ_g of every group.

C is XXᵀ/n. The best move of a group follows from S and Q alone (`group_moves`). `group_screening`
computes them from the active columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lucidae.arrays import Array, adjoint, device, multiply_lower, namespace, to_numpy
from lucidae.sparsity.dictionary import is_sparse
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.state import State

Matrices: TypeAlias = np.ndarray[Any, Any]

MANY = 200
"""Number of groups from which on their Gram matrices are computed entry by entry."""

IN_CACHE = 200_000
"""Largest number of entries of the dictionary that are whitened at a time, to stay in the cache."""

CHUNK = 4_000_000
"""Largest number of entries of the dictionary that are rearranged by group at a time."""


class Blocks(NamedTuple):
    """The matrices S and Q (metric and explained moment) of k groups of m columns each."""

    numbers: Matrices  # (k,): numbers of the groups
    members: Matrices  # (k, m): their columns
    # (k, m, m): the matrices Φ_gᵀΣ⁻¹Φ_g and Φ_gᵀΣ⁻¹CΣ⁻¹Φ_g of each group of columns Φ_g, where Σ is
    # the covariance and C the second moment of the responses
    metric: Matrices
    explained: Matrices


class ScreenedState(State):
    """A `State` of groups from the active columns alone, without `whitened` and `loading`."""

    known: list[Blocks]  # the matrices of all groups, for each size of groups


def group_blocks(state: State, groups: Groups) -> Iterator[Blocks]:
    """Yield the matrices S and Q of all groups (see `Blocks`), for one size of groups at a time."""
    if isinstance(state, ScreenedState):
        yield from state.known
        return
    chunk = CHUNK if state.complete or not isinstance(state.inverse, np.ndarray) else IN_CACHE
    for numbers, members in groups.by_size():
        step = max(1, chunk // (state.dictionary.shape[0] * members.shape[1]))
        parts = [
            _products(state, members[first : first + step])
            for first in range(0, len(members), step)
        ]
        metric, explained = (np.concatenate(part) for part in zip(*parts, strict=True))
        yield Blocks(numbers, members, metric, explained)


def _products(state: State, members: Matrices) -> tuple[Matrices, Matrices]:
    """Return the matrices Φ_gᵀΣ⁻¹Φ_g and Φ_gᵀΣ⁻¹XXᵀΣ⁻¹Φ_g/n of groups with the columns Φ_g."""
    flat, xp = members.ravel(), namespace(state.responses)
    first, last, consecutive = int(flat[0]), int(flat[-1]) + 1, in_order(flat)
    if is_sparse(state.dictionary):
        part = state.take(flat)
        columns, loading = part.whitened, part.loading
    elif not state.complete:
        columns = multiply_lower(state.inverse, columns_in_order(state.dictionary, flat))
        loading = adjoint(adjoint(state.whitened_responses) @ columns)
    elif consecutive:  # such columns need no copy
        columns, loading = state.whitened[:, first:last], state.loading[first:last, :]
    else:
        index = xp.asarray(flat, device=device(state.whitened))
        columns = xp.take(state.whitened, index, axis=1)
        loading = xp.take(state.loading, index, axis=0)
    count, size = members.shape
    metric = _grams(columns, count, size)
    if isinstance(loading, np.ndarray) and loading.T.flags.c_contiguous:
        return metric, _grams(adjoint(loading), count, size)
    loading = xp.reshape(loading, (count, size, -1))
    return metric, to_numpy(loading @ adjoint(loading))


def group_grams(columns: Array, members: Matrices) -> Matrices:
    """Return AᵀA for the columns A of each group, of shape (k, m, m)."""
    return _grams(columns_in_order(columns, members.ravel()), *members.shape)


def in_order(index: Matrices) -> bool:
    """Tell whether indices are consecutive."""
    return bool((np.diff(index) == 1).all())


def columns_in_order(columns: Array, index: Matrices) -> Array:
    """Return the columns with the indices `index`, without a copy if these are consecutive."""
    if not in_order(index):
        xp = namespace(columns)
        return xp.take(columns, xp.asarray(index, device=device(columns)), axis=1)
    if index.size == columns.shape[1]:
        return columns
    return columns[:, int(index[0]) : int(index[-1]) + 1]


def _grams(columns: Array, count: int, size: int) -> Matrices:
    """Return the Gram matrices of `count` groups of `size` consecutive columns."""
    if isinstance(columns, np.ndarray) and count >= MANY and not np.iscomplexobj(columns):
        return _metrics(columns, size)
    xp = namespace(columns)
    columns = xp.permute_dims(xp.reshape(columns, (-1, count, size)), (1, 0, 2))
    return to_numpy(adjoint(columns) @ columns)


def _metrics(columns: Matrices, size: int) -> Matrices:
    """Return the Gram matrices of groups of `size` consecutive columns of a real matrix."""
    total = columns.shape[1]
    found = np.empty((total // size, size, size))
    # Products with columns further to the right are computed for all columns, because strided
    # access would take longer; those with columns of the next group are not used.
    for distance in range(size):
        left, right = columns[:, : total - distance], columns[:, distance:]
        entries = np.zeros(total)
        entries[: total - distance] = np.einsum("dk,dk->k", left, right)
        for row in range(size - distance):
            found[:, row, row + distance] = found[:, row + distance, row] = entries[row::size]
    return found
