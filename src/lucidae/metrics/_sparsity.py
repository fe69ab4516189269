"""Metrics of sparse codes: recovered support, recovered coefficients, active dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lucidae.arrays import Array, arange_like, like, matched, namespace, of_one_kind, where_set
from lucidae.metrics._inputs import finite_array, norms, require, single_or_stack, with_room
from lucidae.validation import check_choice, check_flag, check_number


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
    lengths, true = norms(found, axis=-2), norms(truth, axis=-2) > 0
    count = xp.sum(xp.astype(true, lengths.dtype), axis=-1)
    ordered = xp.sort(lengths, axis=-1, descending=True)
    # The entry at position r is selected by a mask, since r differs between the problems.
    runner_up = where_set(ordered, arange_like(ordered) != count[..., None], 0.0)
    threshold = xp.sum(runner_up, axis=-1, keepdims=True)
    hits = xp.sum(xp.astype(true & (lengths > threshold), lengths.dtype), axis=-1)
    nothing = xp.astype(ordered[..., 0] == 0, lengths.dtype)
    fraction = hits / where_set(count, count == 0, 1.0)
    return single_or_stack(where_set(fraction, count == 0, nothing))


def frobenius_recovered(found: Array, truth: Array, rtol: float) -> Array:
    """Tell whether the Frobenius norm of the error is at most `rtol` times that of the truth.

    `found` and `truth` are the estimated and the true coefficients of kappa features for n
    responses, of shape (..., n, kappa); leading axes are a batch of problems.
    """
    return norms(norms(found - truth, axis=-2), axis=-1) <= rtol * norms(
        norms(truth, axis=-2), axis=-1
    )


def rows_recovered(found: Array, truth: Array, rtol: float) -> Array:
    """Tell whether the error of every column is at most `rtol` times the norm of its true column.

    For a column that is zero in the truth, the error is compared with the smallest norm of the
    other true columns. `found` and `truth` are the estimated and the true coefficients of kappa
    features (columns) for n responses, of shape (..., n, kappa).
    """
    xp = namespace(found)
    lengths = norms(truth, axis=-2)
    largest = xp.max(lengths, axis=-1, keepdims=True)
    smallest = xp.min(where_set(lengths, lengths == 0, largest), axis=-1, keepdims=True)
    measure = xp.where(lengths > 0, lengths, smallest)
    return xp.all(norms(found - truth, axis=-2) <= rtol * measure, axis=-1)


CRITERIA: dict[str, Callable[[Array, Array, float], Array]] = {
    "frobenius": frobenius_recovered,
    "rows": rows_recovered,
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
    means = finite_array(mean, "mean", least_axes=2)
    variances = like(finite_array(variance, "variance", least_axes=1), means)
    shared = variances.ndim == 1 and variances.shape[0] == means.shape[-1]
    same = tuple(variances.shape) == tuple(means.shape)
    expected = "a mean of shape (..., n, k), and a variance of the same shape or of shape (k,)"
    require(shared or same, means, variances, expected)
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

    `means` has the shape (..., n_samples, k) for k latents. The means are scaled to avoid overflow.
    """
    xp = namespace(means)
    peaks = xp.max(xp.abs(means), axis=-2)
    unit = xp.where(peaks > 1, peaks, xp.ones_like(peaks))
    return xp.var(means / unit[..., None, :], axis=-2) > min_spread / unit / unit


def _coefficients(coef: Any, true_coef: Any) -> tuple[Array, Array]:
    """Return both arrays of coefficients, checked and in the shape (..., n, kappa).

    They may be complex. Vectors of shape (kappa,) are the coefficients of one response and become
    (1, kappa).
    """
    found = finite_array(coef, "coef", least_axes=1, accept_complex=True)
    truth = finite_array(true_coef, "true_coef", least_axes=1, accept_complex=True)
    found, truth = of_one_kind(found, matched(truth, found))
    same = tuple(found.shape) == tuple(truth.shape)
    require(same, found, truth, "coef and true_coef of the same shape, (kappa,) or (..., n, kappa)")
    found, truth = with_room(found, truth)
    return (found[None, :], truth[None, :]) if found.ndim == 1 else (found, truth)
