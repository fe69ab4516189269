"""Operations on the columns of a dictionary, which is a dense array or a `SparseDictionary`.

Solvers use a dictionary through these functions only. None forms a dense array with as many entries
as a sparse dictionary: results are vectors, or are computed in blocks of columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse

from lucidae.arrays import Array, adjoint, device, namespace, squared_norm, squared_norms

DENSE_ENTRIES = 200_000
"""Number of entries up to which a sparse matrix is converted to a dense array, which is faster."""

BLOCK_ENTRIES = 2_000_000
"""Largest number of entries of a dense block (16 MB) in computations with a sparse dictionary."""

LARGEST_SIDE = 20_000
"""Largest smaller side of a sparse dictionary: a square matrix of 20 000 rows takes 3.2 GB."""


@dataclass(frozen=True, eq=False)
class SparseDictionary:
    """A dictionary Φ = (S − r cᵀ)N⁻¹ with a sparse matrix S, vectors r and c and a diagonal N.

    With roots r of the row weights and column means c it is centred and weighted, although only S
    is stored.
    """

    entries: Any  # (d, κ): the sparse matrix S
    roots: Any  # (d,): the vector r
    center: Any  # (κ,): the vector c; zero for columns that are not centred
    norms: Any  # (κ,): the diagonal of N, by which the columns are divided

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns of the dictionary."""
        return int(self.entries.shape[0]), int(self.entries.shape[1])

    @property
    def dtype(self) -> Any:
        """Type of the entries of the dictionary, float64."""
        return self.entries.dtype

    @cached_property
    def squares(self) -> Any:
        """Squared norms of the columns."""
        S, counts = self.entries, np.diff(self.entries.indptr)
        column = np.repeat(np.arange(S.shape[1], dtype=S.indices.dtype), counts)
        inside = self.roots[S.indices]
        total = _sums(column, (S.data - inside * self.center[column]) ** 2, S.shape[1])
        # Rows in which S is zero contribute (rᵢcⱼ)² each; a full column has none.
        missing = (self.roots**2).sum() - _sums(column, inside**2, S.shape[1])
        missing = np.where(counts < S.shape[0], np.maximum(missing, 0.0), 0.0)
        return (total + self.center**2 * missing) / self.norms**2

    def divided(self, norms: Any) -> SparseDictionary:
        """Return the dictionary with each column divided by its entry of `norms`."""
        return replace(self, norms=self.norms * norms)

    def columns(self, index: Any) -> Any:
        """Return the columns with the integer indices `index` as a dense array."""
        chosen = self.entries[:, index].toarray()
        return (chosen - self.roots[:, None] * self.center[index]) / self.norms[index]

    def selected(self, index: Any) -> SparseDictionary:
        """Return the columns with the integer indices `index` as a sparse dictionary."""
        chosen = scipy.sparse.csc_array(self.entries[:, index])
        return SparseDictionary(chosen, self.roots, self.center[index], self.norms[index])

    def adjoint_times(self, right: Any) -> Any:
        """Return ΦᵀA, of shape (κ, p), for this dictionary Φ of κ columns and a matrix A (d, p)."""
        product = self.entries.T @ right
        product -= self.center[:, None] * (self.roots @ right)
        product /= self.norms[:, None]
        return product

    def norms_after(self, left: Any) -> Any:
        """Return ‖Aφ‖² for all columns φ and a matrix A of shape (m, d), in blocks of columns."""
        result = np.zeros(self.shape[1])
        right, shifts = np.ascontiguousarray(left.T), left @ self.roots
        for part in self._parts(max(left.shape[0], 1)):
            products = _rows_of_transpose(self.entries, part) @ right
            products -= self.center[part, None] * shifts
            result[part] = squared_norms(products, -1)
        return result / self.norms**2

    def covariance(self, relevance: Any) -> Any:
        """Return ΦWΦᵀ, of shape (d, d)."""
        S, roots, weights = self.entries, self.roots, relevance / self.norms**2
        keep = np.flatnonzero(weights)
        half = S if keep.size == S.shape[1] else S[:, keep]
        scaled = half.data * np.repeat(np.sqrt(weights[keep]), np.diff(half.indptr))
        half = scipy.sparse.csc_array((scaled, half.indices, half.indptr), shape=half.shape)
        product = (half @ half.T).toarray()
        means = S @ (weights * self.center)
        product -= means[:, None] * roots + roots[:, None] * means
        product += float(weights @ self.center**2) * (roots[:, None] * roots)
        return product

    def _parts(self, height: int) -> Iterator[slice]:
        """Return slices of columns so narrow that a dense block of `height` rows fits in memory."""
        width, count = max(BLOCK_ENTRIES // height, 1), self.shape[1]
        return (slice(a, min(a + width, count)) for a in range(0, count, width))


Dictionary: TypeAlias = Any
"""A dictionary: an array of shape (..., d, κ), or a `SparseDictionary` of shape (d, κ)."""


def _sums(column: Any, values: Any, count: int) -> Any:
    """Return, for each of `count` columns, the sum of its values."""
    return np.bincount(column, values, minlength=count)


def _rows_of_transpose(S: Any, part: slice) -> Any:
    """Return the columns `part` of a CSC matrix as rows of a CSR matrix, without a copy."""
    start, stop = S.indptr[part.start], S.indptr[part.stop]
    pointers = S.indptr[part.start : part.stop + 1] - start
    data = (S.data[start:stop], S.indices[start:stop], pointers)
    return scipy.sparse.csr_array(data, shape=(part.stop - part.start, S.shape[0]))


def canonical_entries(X: Any) -> Any:
    """Return a CSR array with sorted indices, without duplicates and zeros; X is never changed."""
    matrix = scipy.sparse.csr_array(X)
    if not matrix.has_canonical_format or not matrix.data.all():
        matrix = matrix.copy()
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
    return matrix


def is_sparse(dictionary: Dictionary) -> bool:
    """Tell whether a dictionary is stored as a sparse matrix."""
    return isinstance(dictionary, SparseDictionary)


def dense_columns(dictionary: Dictionary, index: Any) -> Array:
    """Return the columns with the integer indices `index` of one dictionary as a dense array."""
    if isinstance(dictionary, SparseDictionary):
        return dictionary.columns(index)
    xp = namespace(dictionary)
    return xp.take(dictionary, xp.asarray(index, device=device(dictionary)), axis=1)


def selected_columns(dictionary: Dictionary, index: Any) -> Dictionary:
    """Return the columns `index` of one dictionary, as a dense array if there are few of them."""
    if isinstance(dictionary, SparseDictionary) and len(index) * dictionary.shape[0] > (
        BLOCK_ENTRIES
    ):
        return dictionary.selected(index)
    return dense_columns(dictionary, index)


def column_squares(dictionary: Dictionary) -> Array:
    """Return the squared norms of the columns."""
    if isinstance(dictionary, SparseDictionary):
        return dictionary.squares
    return squared_norms(dictionary, -2)


def nonzero_columns(dictionary: Dictionary) -> Array:
    """Return a Boolean mask of the columns that are not zero."""
    if isinstance(dictionary, SparseDictionary):
        return dictionary.squares > 0
    return namespace(dictionary).any(dictionary != 0, axis=-2)


def adjoint_times(dictionary: Dictionary, right: Array) -> Array:
    """Return the product ΦᵀA of the dictionary Φ with a matrix A, one row for each column of Φ."""
    if isinstance(dictionary, SparseDictionary):
        return dictionary.adjoint_times(right)
    return adjoint(dictionary) @ right


def norms_after(dictionary: Dictionary, left: Array) -> Array:
    """Return ‖Aφ‖² for a matrix A (`left`) and all columns φ of the dictionary."""
    if isinstance(dictionary, SparseDictionary):
        return dictionary.norms_after(left)
    return squared_norms(left @ dictionary, -2)


def weighted_gram(dictionary: Dictionary, relevance: Array) -> Array:
    """Return ΦWΦᵀ for the dictionary Φ and the diagonal matrix W of the relevances."""
    if isinstance(dictionary, SparseDictionary):
        return dictionary.covariance(relevance)
    xp = namespace(dictionary)
    weighted = dictionary * xp.sqrt(relevance)[..., None, :]
    return weighted @ adjoint(weighted)


def divided(dictionary: Dictionary, norms: Array) -> Dictionary:
    """Return the dictionary with each column divided by its entry of `norms`."""
    if isinstance(dictionary, SparseDictionary):
        return dictionary.divided(norms)
    return dictionary / norms[..., None, :]


def reduced_to_span(dictionary: Dictionary, responses: Array) -> tuple[Dictionary, Array, Array]:
    """Return dictionary and responses in an orthonormal basis of the span of the columns.

    For d > κ let Φ = QR. In the basis [Q, Q⊥], Σ is RWRᵀ + γI on the span and γI outside, so the
    energy is that of (R, QᵀX) plus ‖Q⊥ᵀX‖²/γ + n(d − κ) log γ. The third value is ‖Q⊥ᵀX‖².
    """
    if dictionary.shape[-1] >= dictionary.shape[-2]:
        return dictionary, responses, squared_norm(responses) * 0.0
    if isinstance(dictionary, SparseDictionary):
        return _reduced_by_blocks(dictionary, responses)
    xp = namespace(dictionary)
    basis, triangle = xp.linalg.qr(dictionary)
    inside = adjoint(basis) @ responses
    return triangle, inside, squared_norm(responses - basis @ inside)


def _reduced_by_blocks(dictionary: SparseDictionary, responses: Any) -> tuple[Any, Any, Any]:
    """Return `reduced_to_span` of a tall sparse dictionary, which becomes dense.

    The triangle of [Φ | X], updated by blocks of rows, has [R | QᵀX] in its first κ rows; the norm
    of the others is that of the responses outside the span.
    """
    count, width = dictionary.shape[1], dictionary.shape[1] + responses.shape[1]
    rows = scipy.sparse.csr_array(dictionary.entries)
    triangle: Any = np.zeros((0, width))
    step = max(BLOCK_ENTRIES // width, width)
    for start in range(0, dictionary.shape[0], step):
        part = slice(start, start + step)
        block = rows[part].toarray() - dictionary.roots[part, None] * dictionary.center
        block /= dictionary.norms
        stacked = np.vstack([triangle, np.hstack([block, responses[part]])])
        triangle = np.linalg.qr(stacked, mode="r")
    outside = np.asarray((triangle[count:, count:] ** 2).sum())
    return triangle[:count, :count], triangle[:count, count:], outside


def dense_if_small(X: Any) -> Any:
    """Return a sparse matrix as a dense array if it is small, and as a CSR array otherwise."""
    if not scipy.sparse.issparse(X):
        return X
    if X.shape[0] * X.shape[1] <= DENSE_ENTRIES:
        return X.toarray()
    return canonical_entries(X)
