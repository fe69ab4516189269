"""Metrics of linear networks: distances from principal components, importance of hidden units."""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae.arrays import Array, eye_like, largest, namespace, squared_norm, svd_thin, where_set
from lucidae.metrics._inputs import (
    matrix,
    norms,
    pair,
    require,
    single_or_stack,
    unit_columns,
    with_room,
    within_range,
)
from lucidae.validation import check_number

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
    weights, directions = pair(decoder, U, ("decoder", "U"))
    _require_same_matrices(weights, directions)
    # A common factor of all weights does not matter, nor one of all directions.
    (weights,), (directions,) = with_room(weights), with_room(directions)
    return single_or_stack(alignment_of(weights, unit_columns(directions, 0.0), rtol))


def alignment_of(decoder: Array, axes: Array, rtol: float = 1e-6) -> Array:
    """Return the axis-alignment distance of decoders (..., m, k), without checking the arguments.

    The decoders have m features and k latents. All entries must be finite, and `axes`, the
    principal axes (m, k), must have columns of norm one. See `axis_alignment_distance` for the
    definition and `rtol`.
    """
    xp = namespace(decoder)
    cosines = xp.matrix_transpose(axes) @ unit_columns(decoder, rtol)
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
    weights, directions = pair(decoder, U, ("decoder", "U"))
    _require_same_matrices(weights, directions)
    xp = namespace(weights)
    if not _is_orthonormal(directions):
        raise ValueError(
            "the columns of U must be orthonormal; compute U by numpy.linalg.eigh, svd or qr."
        )
    basis, strengths, _ = svd_thin(*with_room(weights))
    overlaps = xp.sum((xp.matrix_transpose(directions) @ basis) ** 2, axis=-2)
    shared = where_set(overlaps, strengths <= rtol * strengths[..., :1], 0.0)
    distance = 1.0 - xp.sum(shared, axis=-1) / directions.shape[-1]
    return single_or_stack(xp.clip(distance, 0.0, 1.0))


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
    first, second = pair(encoder, decoder, ("encoder", "decoder"))
    fits = tuple(first.shape[-2:]) == tuple(second.shape[-2:])[::-1]
    expected = "an encoder of shape (..., k, m) and a decoder of shape (..., m, k)"
    require(fits, first, second, expected)
    with np.errstate(over="ignore", invalid="ignore"):
        difference = first - namespace(first).matrix_transpose(second)
        distance = squared_norm(difference) / first.shape[-2]
    return single_or_stack(within_range(distance, first, second))


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
    square = matrix(M, "M")
    if square.shape[-1] != square.shape[-2]:
        raise ValueError(f"M must be a square matrix; its shape is {tuple(square.shape)}.")
    xp = namespace(square)
    off_diagonal = where_set(square, eye_like(square.shape[-1], square) == 1, 0.0)
    with np.errstate(over="ignore"):
        total = xp.sum(xp.abs(off_diagonal), axis=(-2, -1))
    return single_or_stack(within_range(total, square))


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
    """Return the importance scores of the hidden units, and the validated weights U and V.

    The score of a unit is the norm of its outgoing weights (a column of U) times that of its
    incoming weights (a column of V).
    """
    outgoing, incoming = pair(U, V, ("U", "V"))
    same = outgoing.shape[-1] == incoming.shape[-1]
    expected = "U of shape (..., d1, r) and V of shape (..., d2, r), with equally many columns r"
    require(same, outgoing, incoming, expected)
    with np.errstate(over="ignore", invalid="ignore"):
        scores = norms(outgoing, axis=-2) * norms(incoming, axis=-2)
    return within_range(scores, outgoing, incoming), outgoing, incoming


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
    return single_or_stack(within_range(variance, *given))


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
        length = norms(scores, axis=-1)
    return single_or_stack(within_range(length, *given))


def _require_same_matrices(decoder: Any, U: Any) -> None:
    same = tuple(decoder.shape[-2:]) == tuple(U.shape[-2:])
    require(same, decoder, U, "a decoder and U of the same shape (..., m, k)")
