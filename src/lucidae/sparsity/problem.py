"""Checked rows of data, and the canonical problem that every sparse solver works on.

Terms of this subpackage: Φ is the dictionary (d, κ) with columns φ, and X are the n responses (d,
n); public functions call them ``X`` and ``y``, as scikit-learn does. The *relevance* wⱼ of a column
is the prior variance of its coefficients, W = diag(w), γ is the noise variance and Σ = ΦWΦᵀ + γI
the covariance of a response. Columns with w > 0 are *active*. The *energy* is the loss as a
function of w and γ; the full one is tr(XXᵀΣ⁻¹) + n log|Σ|, minus twice the log-likelihood of real
responses and minus once that of circular complex ones. For complex data a transpose ᵀ is the
conjugate transpose, and a square that of the absolute value.

`normalise` makes the *canonical* problem: columns of unit norm, responses of unit mean square, a
square root of XXᵀ in place of more responses than rows, and the span of the columns in place of
more rows than columns. `Units` converts back.

A dictionary is a dense array or a `SparseDictionary`, and solvers use it through the functions here
only. None forms a dense array with as many entries
as a sparse dictionary: results are vectors, or are computed in blocks of columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    add_diagonal,
    adjoint,
    as_complex,
    as_double,
    conjugate,
    device,
    diagonal,
    eye_like,
    is_array,
    is_complex,
    like,
    machine_epsilon,
    namespace,
    squared_moduli,
    squared_norm,
    squared_norms,
    to_numpy,
)
from lucidae.sparsity.prior import Groups, Matrices

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
        varied = (S.data - inside * self.center[column]) ** 2
        total = np.bincount(column, varied, minlength=S.shape[1])
        # Rows in which S is zero contribute (rᵢcⱼ)² each; a full column has none.
        missing = (self.roots**2).sum() - np.bincount(column, inside**2, S.shape[1])
        missing = np.where(counts < S.shape[0], np.maximum(missing, 0.0), 0.0)
        return (total + self.center**2 * missing) / self.norms**2

    def divided(self, norms: Any) -> SparseDictionary:
        """Return the dictionary with each column divided by its entry of `norms`."""
        return replace(self, norms=self.norms * norms)

    def columns(self, index: Any) -> Any:
        """Return the columns with the integer indices `index` as a dense array."""
        chosen = self.entries[:, index].toarray()
        return (chosen - self.roots[:, None] * self.center[index]) / self.norms[index]

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
            products = self.entries[:, part].T @ right
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


def canonical_entries(X: Any) -> Any:
    """Return a CSR array with sorted indices, without duplicates and zeros; X is never changed."""
    matrix = scipy.sparse.csr_array(X)
    if not matrix.has_canonical_format or not matrix.data.all():
        matrix = matrix.copy()
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
    return matrix


def dense_columns(dictionary: Dictionary, index: Any) -> Array:
    """Return the columns with the integer indices `index` of one dictionary as a dense array."""
    if isinstance(dictionary, SparseDictionary):
        return dictionary.columns(index)
    xp = namespace(dictionary)
    return xp.take(dictionary, xp.asarray(index, device=device(dictionary)), axis=1)


def column_squares(dictionary: Dictionary) -> Array:
    """Return the squared norms of the columns."""
    if isinstance(dictionary, SparseDictionary):
        return dictionary.squares
    return squared_norms(dictionary, -2)


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


def compressed(
    dictionary: Dictionary, responses: Array, few: bool = True
) -> tuple[Dictionary, Array, Array]:
    """Return dictionary and responses with fewest rows and responses that have the same energies.

    The third value is the squared norm of the responses outside the span of the columns. More
    responses than rows are replaced only if `few`.
    """
    xp = namespace(responses)
    # 1) With a real dictionary energies depend on Re XXᴴ alone: [Re X, Im X] replaces a complex X.
    if is_complex(dictionary):
        responses = as_complex(responses)
    elif is_complex(responses):
        responses = xp.concat([xp.real(responses), xp.imag(responses)], axis=-1)
    # 2) For d > κ let Φ = QR. In the basis [Q, Q⊥], Σ is RWRᵀ + γI on the span and γI outside, so
    # the energy is that of (R, QᵀX) plus ‖Q⊥ᵀX‖²/γ + n(d − κ) log γ.
    outside = squared_norm(responses) * 0.0
    if dictionary.shape[-1] < dictionary.shape[-2]:
        if isinstance(dictionary, SparseDictionary):
            dictionary, responses, outside = _reduced_by_blocks(dictionary, responses)
        else:
            basis, dictionary = xp.linalg.qr(dictionary)
            inside = adjoint(basis) @ responses
            responses, outside = inside, squared_norm(responses - basis @ inside)
    # 3) With Xᵀ = QR, Y = Rᵀ has YYᵀ = XXᵀ.
    if few and responses.shape[-1] > responses.shape[-2]:
        responses = adjoint(xp.linalg.qr(adjoint(responses))[1])
    return dictionary, responses, outside


def _reduced_by_blocks(dictionary: SparseDictionary, responses: Any) -> tuple[Any, Any, Any]:
    """Return a tall sparse dictionary in a basis of its span, where it is dense; see `compressed`.

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


def columns_in_order(columns: Any, index: Matrices) -> Array:
    """Return the columns with the indices `index`, without a copy if these are consecutive."""
    if not isinstance(columns, np.ndarray) or not (np.diff(index) == 1).all():
        return dense_columns(columns, index)
    return columns[:, int(index[0]) : int(index[-1]) + 1]


def group_grams(columns: Any, members: Matrices) -> Matrices:
    """Return AᵀA for the columns A of each group, of shape (k, m, m)."""
    (count, size), columns = members.shape, columns_in_order(columns, members.ravel())
    if size == 1:
        return np.asarray(squared_norms(columns, -2))[:, None, None]
    columns = np.moveaxis(columns.reshape(-1, count, size), 1, 0)
    return np.asarray(adjoint(columns) @ columns)


NOISE_FLOOR = 1e-14
"""Smallest noise variance that float64 can resolve, relative to the mean square response."""

CONSTANT = 8.0
"""A column is constant if it varies, relative to its largest entry, by at most this many ε."""

LEAST_ACCURACY = 1e-2
"""Largest distance to optimality that is accepted if the noise variance is very small."""


class Problem(NamedTuple):
    """One sparse problem in normalised units, or several along the leading axis of every field."""

    dictionary: Dictionary  # (d, κ): the dictionary, with columns of unit norm
    # (d, p): A matrix Y with YYᵀ = XXᵀ/n, where X are the n responses with unit mean square
    responses: Array
    noise: Array  # (): the noise variance, relative to the mean square response
    # (): squared norm of the responses outside the span of the dictionary, divided by n
    outside: Array
    spare: Array  # (): number of independent rows outside this span, where the data are noise alone

    def with_noise(self, noise: Any, units: Units | None = None) -> Problem:
        """Return the same problem with another noise variance, in the `units` of the data if given.

        Then it is at least `NOISE_FLOOR`.
        """
        xp = namespace(self.noise)
        noise = noise if isinstance(noise, float) else like(noise, self.noise)
        noise = xp.zeros_like(self.noise) + noise
        if units is not None:
            noise = noise / units.scale / units.scale
            noise = xp.maximum(noise, xp.full_like(noise, NOISE_FLOOR))
        return self._replace(noise=noise)

    def restricted(self, index: Any) -> Problem:
        """Return the problem of the columns `index` alone, dense, reduced to their span.

        Its energies are those of this problem if the relevances of all other columns are zero.
        """
        columns = dense_columns(self.dictionary, index)
        dictionary, responses, outside = compressed(columns, self.responses, few=False)
        spare = self.spare + float(self.dictionary.shape[-2] - dictionary.shape[-2])
        return Problem(dictionary, responses, self.noise, self.outside + outside, spare)


class Units(NamedTuple):
    """Units of a normalised problem: what a number is multiplied by to be one of the data."""

    norms: Array  # (..., n_columns): norms by which the columns were divided
    scale: Array  # (...): root mean square by which the responses were divided
    relevance: Array  # (..., n_columns): unit of the relevances, (scale/norms)²
    noise: Array  # (...): unit of the noise variance, scale²
    # number of independent rows of the data: the sum of the weights, minus one if there is an
    # intercept
    dimension: float
    n_responses: int  # number of responses
    log_volume: float = 0.0  # log-determinant of the noise covariance R, without γ


def normalise(
    dictionary: Dictionary,
    responses: Array,
    *,
    dimension: float | None = None,
    groups: Groups | None = None,
    compress: bool = True,
    log_volume: float = 0.0,
) -> tuple[Problem, Units]:
    """Return the problem scaled to unit columns and unit mean square, and the units."""
    xp = namespace(responses)
    rows, n_responses = responses.shape[-2:]
    dimension = float(rows) if dimension is None else dimension
    squares = column_squares(dictionary)
    # Columns of a group share one relevance, so only their common scale can be moved into it.
    squares = squares if groups is None else groups.share(squares)
    norms = xp.sqrt(xp.where(squares > 0, squares, xp.ones_like(squares)))
    if groups is not None and is_complex(responses) and is_array(dictionary):
        dictionary = as_complex(dictionary)  # a group may have a complex covariance of its own
    power = squared_norm(responses) / (rows * n_responses)
    scale = xp.sqrt(xp.where(power > 0, power, xp.ones_like(power)))
    sparse = isinstance(dictionary, SparseDictionary)
    unit = dictionary.divided(norms) if sparse else dictionary / norms[..., None, :]
    scaled = responses / scale[..., None, None] / n_responses**0.5
    unit, scaled, outside = compressed(unit, scaled, compress)
    ones = xp.ones_like(outside)
    problem = Problem(unit, scaled, ones, outside, ones * (dimension - unit.shape[-2]))
    relevance = (scale[..., None] / norms) ** 2
    return problem, Units(norms, scale, relevance, scale**2, dimension, n_responses, log_volume)


def covariance(dictionary: Dictionary, relevance: Array, noise: Array) -> Array:
    """Return Σ = Φ diag(w) Φᵀ + γI (Wipf 2023, eq. 18)."""
    if isinstance(dictionary, SparseDictionary):
        return add_diagonal(dictionary.covariance(relevance), noise[..., None])
    xp = namespace(dictionary)
    if relevance.ndim == 1 and 2 * np.count_nonzero(to_numpy(relevance)) <= relevance.shape[0]:
        active = np.flatnonzero(to_numpy(relevance))
        dictionary = dense_columns(dictionary, active)
        relevance = xp.take(relevance, xp.asarray(active, device=device(relevance)), axis=0)
    half = dictionary * xp.sqrt(relevance)[..., None, :]
    return add_diagonal(half @ adjoint(half), noise[..., None])


def root_by_qr(tall: Array, noise: Any) -> tuple[Array, Array]:
    """Return the Cholesky factor L of AᵀA + γI for A = `tall`, γ = `noise`, and B with A = BLᵀ.

    AᵀA is not formed: rounding may make AᵀA + γI indefinite, while [A; √γ I] = QR always exists. L
    is Rᵀ and B are the first rows of Q, with signs that make the diagonal of L positive.
    """
    xp = namespace(tall)
    root = noise**0.5 if isinstance(noise, float) else noise[..., None, None] ** 0.5
    below = like(eye_like(tall.shape[-1], tall) * root, tall)
    basis, triangle = xp.linalg.qr(xp.concat([tall, below], axis=-2))
    signs = diagonal(triangle) / xp.abs(diagonal(triangle))
    upper = triangle * conjugate(signs)[..., :, None]
    return adjoint(upper), basis[..., : tall.shape[-2], :] * signs[..., None, :]


def rounding_distances(noise: Array) -> Array:
    """Return the distance to optimality that rounding allows: of the order of cond(Σ), 1/γ."""
    xp = namespace(noise)
    errors = 32.0 * machine_epsilon(noise) / noise
    return xp.minimum(errors, xp.full_like(errors, LEAST_ACCURACY))


class Mean(NamedTuple):
    """A weighted mean as a rounded float64 array and its rounding error."""

    rounded: Any
    rest: Any

    def removed_from(self, values: Any, ones: Any) -> Any:
        """Return rows of values minus the mean, accurately even if they are far from zero.

        Columns that vary by rounding errors only become exactly zero.
        """
        moved = values - ones * self.rounded
        moved -= ones * self.rest  # in place: a new array of this size costs more than arithmetic
        constant = _column_peaks(moved) <= CONSTANT * np.finfo(float).eps * _column_peaks(values)
        moved[:, constant] = 0.0
        return moved


@dataclass(frozen=True)
class Rows:
    """Rows of a dictionary with their responses and weights, as NumPy arrays."""

    dictionary: Any  # (n_rows, n_columns): the dictionary
    responses: Any  # (n_rows, n_responses): the responses
    weights: Any  # (n_rows,): frequencies: weight 2 is the same as giving the row twice
    intercept: bool  # whether the model has an intercept, so that weighted means are removed
    # the column whose coefficient is the intercept: 1, or the whitened ones, of shape (n_rows, 1)
    ones: Any = 1.0
    # means of dictionary and responses that were removed before the rows were whitened
    origin: tuple[Mean, Mean] | None = None
    log_volume: float = 0.0  # log-determinant of the noise covariance R, without γ

    @cached_property
    def is_complex(self) -> bool:
        """Whether data are complex; complex dtypes with imaginary parts of zero count as real."""
        parts = (self.dictionary, self.responses)
        return any(part.dtype.kind == "c" and bool((part.imag != 0).any()) for part in parts)

    @cached_property
    def offsets(self) -> tuple[Mean, Mean]:
        """Weighted means of the dictionary and of the responses; zeros without an intercept."""
        return self._offset(self.dictionary), self._offset(self.responses)

    def _offset(self, values: Any) -> Mean:
        """Return the weighted mean of the rows of `values`; zeros without an intercept."""
        if not self.intercept:
            return Mean(0.0 * values[0], 0.0 * values[0])
        # With whitened ones t, the coefficient of t by least squares is tᴴWA/(tᴴWt). Differences of
        # rows are rounded relative to themselves. So the mean of the rows less their rounded mean
        # is accurate relative to their spread, and not only to the mean.
        ones, shares = self.ones, self.weights * np.conj(self.ones).ravel()
        shares = shares / (shares @ np.broadcast_to(ones, (len(values), 1)))
        center = shares @ values
        center = center + shares @ (values - ones * center)
        return Mean(center, shares @ (values - ones * center))

    @cached_property
    def weighted(self) -> tuple[Any, Any]:
        """Centred dictionary and responses, each row times the square root of its weight."""
        pairs = zip((self.dictionary, self.responses), self.offsets, strict=True)
        dictionary, responses = (mean.removed_from(values, self.ones) for values, mean in pairs)
        if (self.weights == 1.0).all():
            return dictionary, responses
        roots = np.sqrt(self.weights)[:, None]
        return dictionary * roots, responses * roots

    def normalised(self, groups: Groups | None, compress: bool = True) -> tuple[Problem, Units]:
        """Return the canonical problem of the centred and weighted rows, and its units."""
        dimension = float(self.weights.sum()) - self.intercept  # the number of independent rows
        return normalise(
            *self.weighted, dimension=dimension, groups=groups, compress=compress,
            log_volume=self.log_volume,
        )  # fmt: skip

    def mean_square(self) -> float:
        """Return the weighted mean square of the centred responses."""
        responses = self.weighted[1]
        total = float(squared_moduli(responses).sum())
        return total / float(self.weights.sum() * responses.shape[1])

    def take(self, index: Any) -> Rows:
        """Return the rows with the integer indices `index`."""
        ones = self.ones if isinstance(self.ones, float) else self.ones[index]
        return replace(
            self, dictionary=self.dictionary[index], responses=self.responses[index],
            weights=self.weights[index], ones=ones,
        )  # fmt: skip

    def row_keys(self) -> list[bytes]:
        """Return byte strings that sort the rows of the dictionary."""
        return [key.tobytes() for key in _sortable(self.dictionary + 0.0)]


def distinct_rows(given: Rows) -> Rows:
    """Return the distinct rows of positive weight, sorted, with the total weight of each.

    Results then do not depend on the order of rows. Norms of responses come first, so that the
    order survives permutations, signs and rotations of columns inside groups and of responses.
    """
    plain = isinstance(given.ones, float)
    values = given.responses if plain else np.hstack([given.responses, given.ones])
    sizes = np.sum(squared_moduli(values), axis=1, keepdims=True)
    keys = [key.tobytes() for key in _sortable(sizes)]
    if len(set(keys)) < len(keys):  # equal norms: the entries decide
        whole = _sortable(np.hstack([sizes, values]) + 0.0)  # no negative zeros
        keys = [a.tobytes() + b for a, b in zip(whole, given.row_keys(), strict=True)]
    totals: dict[bytes, float] = {}
    places: dict[bytes, int] = {}
    for place in np.flatnonzero(given.weights > 0):
        places.setdefault(keys[place], int(place))
        totals[keys[place]] = totals.get(keys[place], 0.0) + float(given.weights[place])
    order = sorted(places)
    found = given.take(np.array([places[key] for key in order], dtype=int))
    return replace(found, weights=np.array([totals[key] for key in order]))


def _sortable(values: Any) -> Any:
    """Return unsigned integers such that the bytes of two rows sort as the float64 rows do.

    Positive factors of columns do not change the order, so that folds of sorted rows stay the same.
    """
    # The bits of positive doubles increase with their value and those of negative ones decrease:
    # the sign bit is set for the former, and all bits are inverted for the latter.
    kind = np.complex128 if values.dtype.kind == "c" else np.float64
    bits = np.ascontiguousarray(values, dtype=kind).view(np.uint64)
    sign = np.uint64(1) << np.uint64(63)
    return np.where(bits & sign, ~bits, bits | sign).astype(">u8")


class SparseRows(Rows):
    """Rows of a sparse dictionary, a CSR array, with their responses and weights; see `Rows`."""

    @cached_property
    def offsets(self) -> tuple[Mean, Mean]:
        """Weighted means of the dictionary and of the responses; zeros without an intercept."""
        A, means = self.dictionary, self._offset(self.responses)
        if not self.intercept:
            return Mean(np.zeros(A.shape[1]), np.zeros(A.shape[1])), means
        shares = self.weights / self.weights.sum()
        center = shares @ A
        center = center + _mean_of_differences(A, center, shares)
        return Mean(center, _mean_of_differences(A, center, shares)), means

    @cached_property
    def weighted(self) -> tuple[Any, Any]:
        """Centred dictionary and responses, each row times the square root of its weight."""
        A, (mean, level) = self.dictionary, self.offsets
        roots = np.sqrt(self.weights)
        row = np.repeat(roots, np.diff(A.indptr))
        # A column with a zero varies at least as much as its mean, divided by √d: nothing cancels
        # when its mean is removed implicitly. The mean of a column without zeros is removed from
        # its entries, which is accurate even if the column is far from zero.
        filled = _filled(A) & self.intercept
        moved = (A.data - mean.rounded[A.indices]) - mean.rest[A.indices]
        data = np.where(filled[A.indices], moved, A.data)
        peaks, spread = (np.zeros(A.shape[1]) for _ in range(2))
        np.maximum.at(peaks, A.indices, np.abs(A.data))
        np.maximum.at(spread, A.indices, np.abs(data))
        constant = filled & (spread <= CONSTANT * np.finfo(float).eps * peaks)
        data[constant[A.indices]] = 0.0
        matrix = scipy.sparse.csr_array((data * row, A.indices, A.indptr), shape=A.shape)
        center = np.where(filled, 0.0, mean.rounded + mean.rest)
        columns = scipy.sparse.csc_array(matrix)
        dictionary = SparseDictionary(columns, roots, center, np.ones(center.size))
        return dictionary, level.removed_from(self.responses, self.ones) * roots[:, None]

    def row_keys(self) -> list[bytes]:
        """Return byte strings of indices and values that sort the rows of the dictionary."""
        A, values = self.dictionary, _sortable(self.dictionary.data)
        ends, indices = A.indptr, A.indices.astype(">u8")
        return [indices[a:b].tobytes() + values[a:b].tobytes() for a, b in pairwise(ends)]


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


def sparse_rows(X: Any, responses: Any, weights: Any, intercept: bool) -> SparseRows:
    """Return the rows of a sparse dictionary with their responses and weights."""
    if min(X.shape) > LARGEST_SIDE:
        raise ValueError(
            f"X is a sparse matrix of shape {tuple(X.shape)}, expected at most {LARGEST_SIDE} rows "
            f"or at most {LARGEST_SIDE} columns, because a dense square matrix of the smaller size "
            "is factorised. Leave out rows or columns."
        )
    matrix = scipy.sparse.csr_array(canonical_entries(X), dtype=np.float64)
    return SparseRows(matrix, responses, weights, intercept)


LARGEST = 1e75
"""Largest absolute value in X and y; columns below its inverse are refused, unless zero."""


def refuse_zero_problem(number: int) -> None:
    """Raise the error for responses that are zero in the problem `number` of several problems."""
    raise ValueError(
        f"y[{number}] is zero, so that there is nothing to explain and no noise to learn: leave "
        "this problem out, or give responses that are not all zero."
    )


def refuse_extremes(values: Array, name: str) -> None:
    """Raise an error if squares of values, or their ratios, leave the float64 range."""
    peaks = _column_peaks(values)
    xp = namespace(peaks)
    tiny = (peaks > 0) & (peaks < 1.0 / LARGEST)
    if bool(xp.any(peaks > LARGEST)) or bool(xp.any(tiny)):
        worst = float(xp.min(peaks[tiny])) if bool(xp.any(tiny)) else float(xp.max(peaks))
        raise ValueError(
            f"{name} has a column whose largest absolute value is {worst:.3g}; the squares of such "
            "numbers are too large or too small for float64. Rescale the column so that this "
            f"value lies between {1 / LARGEST:g} and {LARGEST:g}."
        )


def _column_peaks(values: Any) -> Array:
    """Return the largest absolute value of each column, as float64."""
    if scipy.sparse.issparse(values):
        return abs(values).max(axis=0).toarray().ravel().astype(np.float64)
    xp = namespace(values)
    if is_complex(values):
        return as_double(xp.max(xp.abs(values), axis=-2))
    # Without an array of the size of all values.
    return as_double(xp.maximum(xp.max(values, axis=-2), -xp.min(values, axis=-2)))
