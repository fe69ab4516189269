"""Metrics of Bao et al. 2020, Mianjy et al. 2018 and Wipf 2023 for weights and coefficients.

Every metric accepts NumPy, torch and CuPy arrays and lists. Arrays with leading axes, such as
(runs, m, k), are batches of problems: the result is a Python number for one problem, and an array
with these leading axes for a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lucidae.arrays import (
    Array,
    arange_like,
    as_float,
    eye_like,
    is_complex,
    largest,
    like,
    matched,
    namespace,
    of_one_kind,
    squared_norm,
    svd_thin,
    where_set,
)
from lucidae.validation import check_choice, check_flag, check_number, real_array

__all__ = [
    "active_dimensions",
    "axis_alignment_distance",
    "equalization_variance",
    "exact_recovery",
    "imbalance",
    "importance_scores",
    "non_diagonality",
    "path_norm",
    "subspace_distance",
    "support_recovery",
]

ORTHONORMAL_TOLERANCE = 1e-4
"""Columns of a matrix U count as orthonormal if no entry of UᵀU differs from the identity by more
than this number."""


def axis_alignment_distance(decoder: Any, U: Any, *, rtol: float = 1e-6) -> Any:
    """Return the distance of the columns of a decoder from the principal axes of the data.

    The distance is 1 − (1/k) Σᵢ maxⱼ cos²(uᵢ, wⱼ), where uᵢ are the columns of U, wⱼ those of the
    decoder, and cos is the cosine of their angle (Bao et al. 2020, Definition 7.1). It is zero if
    every uᵢ equals some column of the decoder up to scale and sign, in any order.

    Parameters
    ----------
    decoder : array of shape (..., m, k)
        Decoder weights for m features and k latents; leading axes are a batch of decoders.
    U : array of shape (m, k) or (..., m, k)
        The k leading principal axes (eigenvectors of the covariance), as columns.
    rtol : float, default=1e-6
        A decoder column counts as zero, with cosine 0, if its norm is at most this number times the
        largest norm of a column.

    Returns
    -------
    float, or array of shape (...)
        The distance of each decoder, between 0 (aligned) and 1.

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae.metrics import axis_alignment_distance
    >>> axis_alignment_distance(np.eye(3)[:, [1, 0]] * [2.0, -5.0], np.eye(3)[:, :2])
    0.0
    >>> round(axis_alignment_distance([[1.0, 1.0], [1.0, -1.0]], np.eye(2)), 12)
    0.5
    """
    rtol = check_number(rtol, "rtol", low=0.0)
    weights, directions = _decoder_and_axes(decoder, U)
    # A common factor of all weights does not matter, nor one of all directions.
    (weights,), (directions,) = _with_room(weights), _with_room(directions)
    return _single_or_stack(alignment_of(weights, _unit_columns(directions, 0.0), rtol))


def alignment_of(decoder: Array, axes: Array, rtol: float = 1e-6) -> Array:
    """Return `axis_alignment_distance` of finite decoders and unit `axes`, without checks."""
    xp = namespace(decoder)
    cosines = xp.matrix_transpose(axes) @ _unit_columns(decoder, rtol)
    closest = xp.max(cosines * cosines, axis=-1)
    return xp.clip(1.0 - xp.mean(closest, axis=-1), 0.0, 1.0)


def subspace_distance(decoder: Any, U: Any, *, rtol: float = 1e-6) -> Any:
    """Return the distance between a decoder's column space and the principal subspace.

    The distance is 1 − (1/k) tr(UUᵀQQᵀ), where Q is an orthonormal basis of the decoder's column
    space (Bao et al. 2020, Definition 7.2). Singular directions of the decoder whose singular value
    is at most `rtol` times the largest do not enter Q. A latent whose decoder column is zero up to
    rounding errors therefore adds 1/k to the distance.

    Parameters
    ----------
    decoder : array of shape (..., m, k)
        Decoder weights for m features and k latents; leading axes are a batch of decoders.
    U : array of shape (m, k) or (..., m, k)
        Orthonormal basis of the principal subspace, as columns: the k leading principal axes.
    rtol : float, default=1e-6
        Largest ratio of a singular value of the decoder to its largest one that counts as zero.

    Returns
    -------
    float, or array of shape (...)
        The distance of each decoder, between 0 (equal subspaces) and 1 (orthogonal ones).

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae.metrics import subspace_distance
    >>> U = np.eye(3)[:, :2]
    >>> round(subspace_distance(U @ [[1.0, 2.0], [3.0, 4.0]], U), 12)
    0.0
    >>> subspace_distance(U * [1.0, 0.0], U)
    0.5
    """
    rtol = check_number(rtol, "rtol", low=0.0)
    weights, directions = _decoder_and_axes(decoder, U)
    xp = namespace(weights)
    if not _is_orthonormal(directions):
        raise ValueError(
            "the columns of U must be orthonormal; compute U by numpy.linalg.eigh, svd or qr."
        )
    basis, strengths, _ = svd_thin(*_with_room(weights))
    overlaps = xp.sum((xp.matrix_transpose(directions) @ basis) ** 2, axis=-2)
    shared = where_set(overlaps, strengths <= rtol * strengths[..., :1], 0.0)
    distance = 1.0 - xp.sum(shared, axis=-1) / directions.shape[-1]
    return _single_or_stack(xp.clip(distance, 0.0, 1.0))


def _is_orthonormal(directions: Array) -> bool:
    """Tell whether the columns of a matrix are orthonormal.

    Entries above 1 are searched for first, so that products of large entries cannot overflow.
    """
    if largest(directions) > 1.0 + ORTHONORMAL_TOLERANCE:
        return False
    gram = namespace(directions).matrix_transpose(directions) @ directions
    return largest(gram - eye_like(gram.shape[-1], gram)) <= ORTHONORMAL_TOLERANCE


def imbalance(encoder: Any, decoder: Any) -> Any:
    """Return the squared distance of the encoder from the transposed decoder, per latent.

    With the encoder W₁ and the decoder W₂ of k latents it is ‖W₁ − W₂ᵀ‖²/k in the Frobenius norm.
    It is zero at every minimum of an ℓ₂-regularised linear autoencoder (Bao et al. 2020,
    Theorem 3).

    Parameters
    ----------
    encoder : array of shape (..., k, m)
        Encoder weights W₁; leading axes are a batch of autoencoders.
    decoder : array of shape (..., m, k)
        Decoder weights W₂.

    Returns
    -------
    float, or array of shape (...)
        The imbalance of each autoencoder, at least 0.

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae.metrics import imbalance
    >>> imbalance(np.ones((2, 3)), np.zeros((3, 2)))
    3.0
    """
    first, second = _pair(encoder, decoder, ("encoder", "decoder"))
    fits = tuple(first.shape[-2:]) == tuple(second.shape[-2:])[::-1]
    expected = "an encoder of shape (..., k, m) and a decoder of shape (..., m, k)"
    _require(fits, first, second, expected)
    with np.errstate(over="ignore", invalid="ignore"):
        difference = first - namespace(first).matrix_transpose(second)
        distance = squared_norm(difference) / first.shape[-2]
    return _single_or_stack(_within_range(distance, first, second))


def non_diagonality(M: Any) -> Any:
    """Return the sum of the absolute off-diagonal entries of M (Bao et al. 2020, Definition 6.1).

    Parameters
    ----------
    M : array of shape (..., k, k)
        A square matrix, such as the second moment of k codes; leading axes are a batch of matrices.

    Returns
    -------
    float, or array of shape (...)
        The sum for each matrix; 0 for a diagonal matrix.

    Examples
    --------
    >>> from lucidae.metrics import non_diagonality
    >>> non_diagonality([[5.0, -1.0], [2.0, 7.0]])
    3.0
    """
    square = _matrix(M, "M")
    if square.shape[-1] != square.shape[-2]:
        raise ValueError(f"M must be a square matrix; its shape is {tuple(square.shape)}.")
    xp = namespace(square)
    off_diagonal = where_set(square, eye_like(square.shape[-1], square) == 1, 0.0)
    with np.errstate(over="ignore"):
        total = xp.sum(xp.abs(off_diagonal), axis=(-2, -1))
    return _single_or_stack(_within_range(total, square))


def importance_scores(U: Any, V: Any) -> Array:
    """Return the importance of each hidden unit of a linear network with one hidden layer.

    The importance of unit i is ‖uᵢ‖‖vᵢ‖, the norm of its outgoing weights uᵢ times that of its
    incoming weights vᵢ (Mianjy et al. 2018, Section 6).

    Parameters
    ----------
    U : array of shape (..., d1, r)
        Outgoing weights: one column uᵢ for each of the r hidden units, one row per output.
    V : array of shape (..., d2, r)
        Incoming weights: one column vᵢ for each hidden unit, one row per input. If the second
        moment E[xxᵀ] of the inputs x is not the identity, give LᵀV instead of V, where
        E[xxᵀ] = LLᵀ. For tied weights, give U twice.

    Returns
    -------
    array of shape (..., r)
        One importance score per hidden unit.

    Examples
    --------
    >>> from lucidae.metrics import importance_scores
    >>> importance_scores([[3.0, 0.0], [4.0, 2.0]], [[1.0, 5.0]])
    array([ 5., 10.])
    """
    return _scores_of(U, V)[0]


def _scores_of(U: Any, V: Any) -> tuple[Array, Array, Array]:
    """Return the importance scores of the hidden units, and the validated weights U and V."""
    outgoing, incoming = _pair(U, V, ("U", "V"))
    same = outgoing.shape[-1] == incoming.shape[-1]
    expected = "U of shape (..., d1, r) and V of shape (..., d2, r), with equally many columns r"
    _require(same, outgoing, incoming, expected)
    with np.errstate(over="ignore", invalid="ignore"):
        scores = _norms(outgoing, axis=-2) * _norms(incoming, axis=-2)
    return _within_range(scores, outgoing, incoming), outgoing, incoming


def equalization_variance(U: Any, V: Any) -> Any:
    """Return the variance of the importance scores of the r hidden units (divisor r).

    The importance score of a unit is the norm of its outgoing weights times that of its incoming
    weights. The variance is zero if and only if all hidden units have the same importance, as at
    every global optimum of dropout training (Mianjy et al. 2018, Theorem 3.4 and the right panels
    of Figure 3).

    Parameters
    ----------
    U : array of shape (..., d1, r)
        Outgoing weights: one column for each of the r hidden units.
    V : array of shape (..., d2, r)
        Incoming weights, one column per hidden unit; see `importance_scores`.

    Returns
    -------
    float, or array of shape (...)
        The variance for each network.

    Examples
    --------
    >>> from lucidae.metrics import equalization_variance
    >>> equalization_variance([[3.0, 0.0], [4.0, 2.0]], [[1.0, 5.0]])
    6.25
    """
    scores, *given = _scores_of(U, V)
    with np.errstate(over="ignore", invalid="ignore"):
        variance = namespace(scores).var(scores, axis=-1)
    return _single_or_stack(_within_range(variance, *given))


def path_norm(U: Any, V: Any) -> Any:
    """Return the path norm of a linear network with one hidden layer.

    The path norm is ψ₂ = (Σᵢ ‖uᵢ‖²‖vᵢ‖²)^½, where uᵢ are the outgoing and vᵢ the incoming weights
    of hidden unit i. If each hidden unit is kept with probability θ, dropout adds λψ₂² to the
    expected squared loss, where λ = (1 − θ)/θ (Mianjy et al. 2018, Section 1).

    Parameters
    ----------
    U : array of shape (..., d1, r)
        Outgoing weights: one column for each of the r hidden units.
    V : array of shape (..., d2, r)
        Incoming weights, one column per hidden unit; see `importance_scores`.

    Returns
    -------
    float, or array of shape (...)
        The path norm of each network.

    Examples
    --------
    >>> from lucidae.metrics import path_norm
    >>> path_norm([[3.0, 0.0]], [[1.0, 5.0]])
    3.0
    """
    scores, *given = _scores_of(U, V)
    with np.errstate(over="ignore"):
        length = _norms(scores, axis=-1)
    return _single_or_stack(_within_range(length, *given))


def support_recovery(coef: Any, true_coef: Any) -> Any:
    """Return the fraction of the true features that have the largest estimated coefficients.

    A feature is true if its true coefficients are not all zero; let r be their number. A true
    feature is found if the norm of its column in `coef` is larger than the (r + 1)-th largest norm
    of a column. So 1.0 means that the r largest columns are exactly the true ones; true features
    whose norm equals the (r + 1)-th largest are not found. Since r features are selected, precision
    and recall agree. If there are no true features, the result is 1.0 if `coef` is zero, otherwise
    0.0.

    Parameters
    ----------
    coef : array of shape (kappa,) or (..., n, kappa)
        Estimated coefficients of kappa features for n responses, in the orientation of
        scikit-learn's ``coef_``; further leading axes are a batch of problems.
    true_coef : array of the same shape
        The true coefficients.

    Returns
    -------
    float, or array of shape (...)
        The fraction for each problem, between 0 and 1.

    Examples
    --------
    >>> from lucidae.metrics import support_recovery
    >>> support_recovery([0.9, 0.2, 0.1, 0.0], [1.0, 0.0, 1.0, 0.0])
    0.5
    """
    found, truth = _coefficients(coef, true_coef)
    xp = namespace(found)
    lengths, true = _norms(found, axis=-2), _norms(truth, axis=-2) > 0
    count = xp.sum(xp.astype(true, lengths.dtype), axis=-1)
    ordered = xp.sort(lengths, axis=-1, descending=True)
    # The entry at position r is selected by a mask, since r differs between the problems.
    runner_up = where_set(ordered, arange_like(ordered) != count[..., None], 0.0)
    threshold = xp.sum(runner_up, axis=-1, keepdims=True)
    hits = xp.sum(xp.astype(true & (lengths > threshold), lengths.dtype), axis=-1)
    nothing = xp.astype(ordered[..., 0] == 0, lengths.dtype)
    fraction = hits / where_set(count, count == 0, 1.0)
    return _single_or_stack(where_set(fraction, count == 0, nothing))


def _frobenius_recovered(found: Array, truth: Array, rtol: float) -> Array:
    """Tell whether the Frobenius norm of the error is at most `rtol` times that of the truth."""
    return _norms(_norms(found - truth, axis=-2), axis=-1) <= rtol * _norms(
        _norms(truth, axis=-2), axis=-1
    )


def _rows_recovered(found: Array, truth: Array, rtol: float) -> Array:
    """Tell whether the error of every column is at most `rtol` times the norm of its true column.

    For a column that is zero in the truth, the error is compared with the smallest norm of the
    other true columns.
    """
    xp = namespace(found)
    lengths = _norms(truth, axis=-2)
    largest = xp.max(lengths, axis=-1, keepdims=True)
    smallest = xp.min(where_set(lengths, lengths == 0, largest), axis=-1, keepdims=True)
    measure = xp.where(lengths > 0, lengths, smallest)
    return xp.all(_norms(found - truth, axis=-2) <= rtol * measure, axis=-1)


CRITERIA: dict[str, Callable[[Array, Array, float], Array]] = {
    "frobenius": _frobenius_recovered,
    "rows": _rows_recovered,
}


def exact_recovery(
    coef: Any, true_coef: Any, rtol: float = 1e-3, *, criterion: str = "frobenius"
) -> Any:
    """Tell whether the coefficients equal the true coefficients up to a relative error.

    Parameters
    ----------
    coef : array of shape (kappa,) or (..., n, kappa)
        Estimated coefficients of kappa features for n responses, in the orientation of
        scikit-learn's ``coef_``; further leading axes are a batch of problems.
    true_coef : array of the same shape
        The true coefficients.
    rtol : float, default=1e-3
        Relative error that still counts as equal.
    criterion : {"frobenius", "rows"}, default="frobenius"
        ``"frobenius"``: the Frobenius norm of the error of all coefficients is at most `rtol` times
        that of the true coefficients. ``"rows"``: the norm of the error of each feature's
        coefficients is at most `rtol` times the norm of its true coefficients; for features whose
        true coefficients are zero, at most `rtol` times the smallest norm of the others. The second
        criterion also detects errors in features with small coefficients.

    Returns
    -------
    bool, or boolean array of shape (...)
        The answer for each problem.

    Examples
    --------
    >>> from lucidae.metrics import exact_recovery
    >>> exact_recovery([1.0, 0.0, 0.0], [1.0, 0.0, 1e-4])
    True
    >>> exact_recovery([1.0, 0.0, 0.0], [1.0, 0.0, 1e-4], criterion="rows")
    False
    """
    check_choice(criterion, "criterion", CRITERIA)
    check_number(rtol, "rtol", low=0.0)
    found, truth = _coefficients(coef, true_coef)
    verdicts = CRITERIA[criterion](found, truth, float(rtol))
    return bool(verdicts) if verdicts.ndim == 0 else verdicts


def active_dimensions(
    mean: Any,
    variance: Any,
    *,
    max_variance: float = 0.9,
    min_spread: float = 0.01,
    return_mask: bool = False,
) -> Any:
    """Return the number of latent dimensions of a VAE that carry information about the data.

    The posterior of a superfluous latent dimension of a variational autoencoder collapses to the
    prior N(0, 1): its variance tends to 1 and its mean to a constant (Wipf 2023, section 3). A
    dimension is active if the average of its posterior variance over the samples is below
    `max_variance`, and the variance of its posterior mean over the samples is above `min_spread`.

    Parameters
    ----------
    mean : array of shape (..., n_samples, k)
        Posterior means of k latent dimensions for at least two samples; leading axes are a batch of
        VAEs.
    variance : array of shape (..., n_samples, k) or (k,)
        Posterior variances, for each sample or the same for all samples.
    max_variance : float, default=0.9
        A dimension is active only if its average posterior variance is below this number.
    min_spread : float, default=0.01
        A dimension is active only if the variance of its posterior mean is above this number.
    return_mask : bool, default=False
        Whether to return also a mask of the active dimensions.

    Returns
    -------
    count : int, or integer array of shape (...)
        Number of active dimensions of each VAE.
    mask : boolean array of shape (..., k)
        Whether each dimension is active. Only returned if `return_mask` is true.

    Examples
    --------
    >>> from lucidae.metrics import active_dimensions
    >>> active_dimensions([[1.0, 0.0], [-1.0, 0.0]], [[0.1, 1.0], [0.1, 1.0]])
    1
    """
    max_variance = check_number(max_variance, "max_variance", low=0.0)
    min_spread = check_number(min_spread, "min_spread", low=0.0)
    check_flag(return_mask, "return_mask")
    means = _finite_array(mean, "mean", least_axes=2)
    variances = like(_finite_array(variance, "variance", least_axes=1), means)
    shared = variances.ndim == 1 and variances.shape[0] == means.shape[-1]
    same = tuple(variances.shape) == tuple(means.shape)
    expected = "a mean of shape (..., n, k), and a variance of the same shape or of shape (k,)"
    _require(shared or same, means, variances, expected)
    xp = namespace(means)
    if means.shape[-2] < 2:
        raise ValueError(
            "mean has one sample, but the variance over samples needs at least two; give more "
            "samples."
        )
    if bool(xp.any(variances < 0)):
        raise ValueError("variance contains negative values; give variances, not their logarithms.")
    with np.errstate(over="ignore"):  # an infinite average is above the limit
        average = variances if shared else xp.mean(variances, axis=-2)
    mask = (average < max_variance) & _varies(means, min_spread)
    counts = xp.sum(xp.astype(mask, xp.int64), axis=-1)
    count = int(counts) if counts.ndim == 0 else counts
    return (count, mask) if return_mask else count


def _varies(means: Array, min_spread: float) -> Array:
    """Return for each latent whether the variance of its means over samples exceeds `min_spread`.

    The means are scaled to avoid overflow.
    """
    xp = namespace(means)
    peaks = xp.max(xp.abs(means), axis=-2)
    unit = xp.where(peaks > 1, peaks, xp.ones_like(peaks))
    return xp.var(means / unit[..., None, :], axis=-2) > min_spread / unit / unit


def _coefficients(coef: Any, true_coef: Any) -> tuple[Array, Array]:
    """Return both arrays of coefficients, checked and in the shape (..., n, kappa)."""
    found = _finite_array(coef, "coef", least_axes=1, accept_complex=True)
    truth = _finite_array(true_coef, "true_coef", least_axes=1, accept_complex=True)
    found, truth = of_one_kind(found, matched(truth, found))
    same = tuple(found.shape) == tuple(truth.shape)
    _require(
        same, found, truth, "coef and true_coef of the same shape, (kappa,) or (..., n, kappa)"
    )
    found, truth = _with_room(found, truth)
    return (found[None, :], truth[None, :]) if found.ndim == 1 else (found, truth)


def _finite_array(x: Any, name: str, least_axes: int, *, accept_complex: bool = False) -> Array:
    """Return `x` as a finite floating array with at least `least_axes` axes, or raise an error."""
    array = real_array(x, name, accept_complex=accept_complex)
    xp = namespace(array)
    if array.ndim < least_axes or 0 in array.shape:
        raise ValueError(
            f"{name} must have at least {least_axes} axes, and each of them at least one entry; "
            f"got shape {tuple(array.shape)}."
        )
    array = as_float(array)
    if not bool(xp.all(xp.isfinite(array))):
        raise ValueError(f"{name} contains NaN or infinite values; give finite numbers.")
    return array


def _matrix(x: Any, name: str) -> Array:
    return _finite_array(x, name, least_axes=2)


def _pair(first: Any, second: Any, names: tuple[str, str]) -> tuple[Array, Array]:
    """Return two matrices, or batches that broadcast, in the library and dtype of the first."""
    left, right = _matrix(first, names[0]), _matrix(second, names[1])
    try:
        np.broadcast_shapes(tuple(left.shape[:-2]), tuple(right.shape[:-2]))
    except ValueError as error:
        raise ValueError(
            f"the leading axes of {names[0]}, which has shape {tuple(left.shape)}, and of "
            f"{names[1]}, which has shape {tuple(right.shape)}, do not match: give equally "
            "many matrices of both, or a single matrix for one of them."
        ) from error
    return left, like(right, left)


def _decoder_and_axes(decoder: Any, U: Any) -> tuple[Array, Array]:
    """Return a decoder and principal axes after validation: they must have the same shape."""
    weights, axes = _pair(decoder, U, ("decoder", "U"))
    same = tuple(weights.shape[-2:]) == tuple(axes.shape[-2:])
    _require(same, weights, axes, "a decoder and U of the same shape (..., m, k)")
    return weights, axes


def _require(condition: bool, first: Array, second: Array, expected: str) -> None:
    """Raise a ValueError with the shapes of both arrays unless `condition` is true."""
    if not condition:
        shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
        raise ValueError(f"expected {expected}; got shapes {shapes}.")


def _norms(x: Array, axis: int) -> Array:
    """Return the Euclidean norms of the vectors of `x` along `axis`.

    The vectors are divided by their largest entry before squaring, which prevents overflow.
    """
    xp = namespace(x)
    x = xp.abs(x) if is_complex(x) else x
    scale = xp.max(xp.abs(x), axis=axis, keepdims=True)
    scaled = x / where_set(scale, scale == 0, 1.0)
    return xp.squeeze(scale, axis=axis) * xp.sqrt(xp.sum(scaled * scaled, axis=axis))


def _unit_columns(x: Array, rtol: float) -> Array:
    """Return the matrices `x` (…, m, k) with every column scaled to norm one.

    Columns whose norm is at most `rtol` times the largest norm become zero.
    """
    xp = namespace(x)
    lengths = _norms(x, axis=-2)[..., None, :]
    negligible = lengths <= rtol * xp.max(lengths, axis=-1, keepdims=True)
    return where_set(x / where_set(lengths, negligible, 1.0), negligible, 0.0)


ROOM = 2.0**32
"""Number by which entries are divided, so that sums of up to 2³² of them do not overflow."""


def _with_room(*arrays: Array) -> tuple[Array, ...]:
    """Return the arrays; all are divided by 2³² (`ROOM`) if sums of their entries could overflow.

    The result of the caller must not change if all arrays are multiplied by the same number.
    """
    limit = float(namespace(arrays[0]).finfo(arrays[0].dtype).max) / ROOM
    if max(largest(array) for array in arrays) <= limit:
        return arrays
    return tuple(array / ROOM for array in arrays)


def _within_range(result: Array, *given: Array) -> Array:
    """Return `result`; raise an error if it overflows, with the largest of the `given` entries."""
    if bool(namespace(result).all(namespace(result).isfinite(result))):
        return result
    peak = max(largest(array) for array in given)
    raise ValueError(
        f"the result overflows {given[0].dtype}: the largest entry of the given matrices is "
        f"{peak:.3g}. Divide them by a constant first."
    )


def _single_or_stack(values: Array) -> Any:
    """Return a zero-dimensional array (one problem) as a Python float, other arrays unchanged."""
    return float(values) if values.ndim == 0 else values
