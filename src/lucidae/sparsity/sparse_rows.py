"""Rows of a sparse dictionary: `Rows` with the means of columns beside a CSR matrix."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from lucidae.arrays import Array, as_double, to_numpy
from lucidae.sparsity.dictionary import (
    BLOCK_ENTRIES,
    LARGEST_SIDE,
    SparseDictionary,
    canonical_entries,
)
from lucidae.sparsity.problem import CONSTANT, Mean, Rows, canonical, row_sizes, sortable


def rows_of(X: Any, responses: Array, weights: Array | None, intercept: bool) -> Rows:
    """Return the rows of a dictionary, dense or sparse, with their responses and weights."""
    if not scipy.sparse.issparse(X):
        return Rows(as_double(X), responses, weights, intercept)
    if min(X.shape) > LARGEST_SIDE:
        raise ValueError(
            f"X is a sparse matrix of shape {tuple(X.shape)}, expected at most {LARGEST_SIDE} rows "
            f"or at most {LARGEST_SIDE} columns, because a dense square matrix of the smaller size "
            "is factorised. Leave out rows or columns."
        )
    matrix = scipy.sparse.csr_array(canonical_entries(X), dtype=np.float64)
    return SparseRows(matrix, responses, weights, intercept)


def distinct_rows(given: Rows) -> Rows:
    """Return the distinct rows of positive weight, sorted, with the total weight of each."""
    if isinstance(given, SparseRows):
        return _distinct_sparse(given)
    return canonical(given.dictionary, given.responses, given.frequencies, given.intercept)


class RowSubset(NamedTuple):
    """Some rows of a CSR matrix, copied only while they are needed, so that folds share memory."""

    matrix: Any
    index: Any

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns of the subset."""
        return len(self.index), int(self.matrix.shape[1])

    @property
    def dtype(self) -> Any:
        """Type of the entries of the subset, float64."""
        return self.matrix.dtype


class SparseRows(Rows):
    """Rows of a sparse dictionary with their responses and weights; see `Rows`."""

    @property
    def matrix(self) -> Any:
        """The dictionary as a CSR matrix."""
        part = self.dictionary
        if isinstance(part, RowSubset):
            return scipy.sparse.csr_array(part.matrix[part.index])
        return part

    @property
    def weights(self) -> Array:
        """Weights of the rows; all are 1 if none were given."""
        return np.ones(self.count) if self.frequencies is None else self.frequencies

    @property
    def indexable(self) -> Any:
        """The dictionary as a matrix that scikit-learn's splitters can index by rows."""
        return self.matrix

    @cached_property
    def offsets(self) -> tuple[Mean, Mean]:
        """Weighted means of the dictionary and of the responses; zeros without an intercept."""
        return self._column_means(), self._offset(self.responses)

    def _column_means(self) -> Mean:
        """Return the weighted means of the columns of the dictionary, in two parts (see `Mean`)."""
        A = self.matrix
        if not self.intercept:
            return Mean(np.zeros(A.shape[1]), np.zeros(A.shape[1]))
        shares = to_numpy(self.weights) / self.total_weight
        center = shares @ A
        center = center + _mean_of_differences(A, center, shares)
        return Mean(center, _mean_of_differences(A, center, shares))

    @cached_property
    def weighted(self) -> tuple[Any, Array]:
        """Centred dictionary and responses, each row times the square root of its weight."""
        A, mean = self.matrix, self.offsets[0]
        roots = np.sqrt(to_numpy(self.weights))
        row = np.repeat(roots, np.diff(A.indptr))
        # A column with a zero varies at least as much as its mean, divided by √d: nothing cancels
        # when its mean is removed implicitly. The mean of a column without zeros is removed from
        # its entries, which is accurate even if the column is far from zero.
        filled = _filled(A) & self.intercept
        data = np.where(filled[A.indices], mean.removed_from_entries(A), A.data)
        peaks, spread = (np.zeros(A.shape[1]) for _ in range(2))
        np.maximum.at(peaks, A.indices, np.abs(A.data))
        np.maximum.at(spread, A.indices, np.abs(data))
        constant = filled & (spread <= CONSTANT * np.finfo(float).eps * peaks)
        data[constant[A.indices]] = 0.0
        matrix = scipy.sparse.csr_array((data * row, A.indices, A.indptr), shape=A.shape)
        center = np.where(filled, 0.0, mean.rounded + mean.rest)
        columns = scipy.sparse.csc_array(matrix)
        dictionary = SparseDictionary(columns, roots, center, np.ones(center.size))
        return dictionary, self.centred_responses() * roots[:, None]

    def take(self, index: Any) -> SparseRows:
        """Return the rows with the integer indices `index`."""
        chosen = np.asarray(index)
        subset = RowSubset(self.matrix, chosen)
        return SparseRows(subset, self.responses[chosen], self.weights[chosen], self.intercept)

    def columns(self, index: Any) -> Array:
        """Return the columns `index` as a dense array, neither centred nor weighted."""
        return self.matrix[:, index].toarray()


def _mean_of_differences(A: Any, center: Any, shares: Any) -> Any:
    """Return the weighted mean of A − `center`, accurate for these differences."""
    row = np.repeat(shares, np.diff(A.indptr))
    inside = np.bincount(A.indices, row * (A.data - center[A.indices]), minlength=A.shape[1])
    present = np.bincount(A.indices, row, minlength=A.shape[1])
    zeros = np.where(_filled(A), 0.0, np.maximum(shares.sum() - present, 0.0))
    return inside - zeros * center


def _filled(A: Any) -> Any:
    """Return a mask of the columns of a CSR matrix that have no zero."""
    return np.bincount(A.indices, minlength=A.shape[1]) == A.shape[0]


def _distinct_sparse(given: SparseRows) -> SparseRows:
    """Return the distinct rows of positive weight, sorted as `canonical` sorts dense rows."""
    frequencies = to_numpy(given.weights)
    matrix = given.matrix
    keys = _row_keys(matrix, given.responses)
    totals: dict[bytes, float] = {}
    places: dict[bytes, int] = {}
    for place in np.flatnonzero(frequencies > 0):
        key = keys[place]
        places.setdefault(key, int(place))
        totals[key] = totals.get(key, 0.0) + float(frequencies[place])
    order = sorted(places)
    index = np.array([places[key] for key in order])
    merged = np.array([totals[key] for key in order])
    dictionary = scipy.sparse.csr_array(matrix[index])
    return SparseRows(dictionary, given.responses[index], merged, given.intercept)


def _row_keys(A: Any, responses: Array) -> list[bytes]:
    """Return byte strings that sort as `canonical` sorts the dense rows [responses | A].

    Among negative entries an earlier one makes the row smaller, among positive ones larger.
    """
    entry = np.dtype([("sign", "u1"), ("index", ">u8"), ("value", ">u8")])
    begins = sortable(np.concatenate([row_sizes(responses), to_numpy(responses) + 0.0], axis=1))
    keys: list[bytes] = []
    rows_a_time = max(1, BLOCK_ENTRIES * A.shape[0] // max(A.nnz, 1))
    for start in range(0, A.shape[0], rows_a_time):
        pointers = A.indptr[start : start + rows_a_time + 1]
        part = slice(pointers[0], pointers[-1])
        values, index = A.data[part], A.indices[part].astype(np.uint64)
        written = np.empty(values.size, dtype=entry)
        written["sign"] = np.where(values < 0, 0, 2)
        written["index"] = np.where(values < 0, index, np.uint64(A.shape[1]) - index)
        written["value"] = sortable(values)
        keys += [
            begins[start + place].tobytes() + written[a:b].tobytes() + b"\x01"
            for place, (a, b) in enumerate(np.lib.stride_tricks.sliding_window_view(
                pointers - pointers[0], 2
            ))
        ]  # fmt: skip
    return keys
