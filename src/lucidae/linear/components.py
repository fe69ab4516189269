"""Certificates of principal components from other libraries, such as scikit-learn's PCA."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from lucidae.arrays import as_double, is_array, to_numpy
from lucidae.certificates.certify import certifies
from lucidae.certificates.claims import Certificate, Claim, at_most, does_not_apply
from lucidae.linear.attributes import mean_difference
from lucidae.linear.certificate import check_latents, checked_data, claims
from lucidae.linear.methods import Options
from lucidae.linear.probe import FEWEST_ROUNDINGS
from lucidae.linear.verified_blocks import data_of_any
from lucidae.linear.verified_data import Data
from lucidae.linear.verifier import measure
from lucidae.linear.weights import TiedWeights
from lucidae.validation import check_rows

__all__ = ["certify_components"]

Vector = np.ndarray[Any, Any]

JUDGED = ("subspace", "alignment", "order", "gap", "eigengap", "sampling")
"""Names of those claims about a linear autoencoder that also apply to principal components."""

WORDS = {
    "the decoder spans": "the components span",
    "a decoder column": "a component",
    "latent": "component",
    "the loss is its global minimum": "the reconstruction error is the smallest possible",
}
"""Replacements that turn a statement about autoencoder weights into one about components."""

ATTRIBUTES = 5e-4
"""Threshold of the claim `attributes`, which randomised solvers reach.

It is compared with the difference of the mean of each feature, in its standard deviations, and
with the relative differences of the other attributes. If the claim holds, it fails after one of
these is changed by one part in a thousand."""

MEASURED = (
    "explained_variance_",
    "explained_variance_ratio_",
    "singular_values_",
    "noise_variance_",
)
"""Attributes besides `mean_` that are compared with the data, if the subject has them."""

_TINY = float(np.finfo(float).tiny)


@certifies("components")
def certify_components(subject: Any, X: Any, *, sample_weight: Any = None) -> Certificate:
    """Judge how close the `components_` of a fitted object are to the principal components of `X`.

    Claims are made about the subspace that the components span, each principal axis, the order of
    the components, and the reconstruction error. If the object has `mean_`, the rows are centred
    first; otherwise (scikit-learn's `TruncatedSVD`) they are used as they are. If present, `mean_`,
    `explained_variance_`, `explained_variance_ratio_`, `singular_values_` and `noise_variance_` are
    compared with the data; the last one not if the object was fitted in several batches.

    Parameters
    ----------
    subject : object
        A fitted object such as scikit-learn's `PCA`, `IncrementalPCA` or `TruncatedSVD`, whose
        `components_` has shape (k, m).
    X : array-like of shape (n, m) or SecondMoment
        The rows of data, or their second moment.
    sample_weight : array-like of shape (n,), optional
        Weight of each row, as if the row occurred that many times; by default 1 for all rows.

    Returns
    -------
    Certificate
        The claims with their verdicts.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.decomposition import PCA
    >>> from lucidae import certify
    >>> X = np.random.default_rng(0).standard_normal((200, 4)) * [4, 3, 2, 1]
    >>> pca = PCA(2).fit(X)
    >>> certify(pca, X).holds
    True
    >>> pca.components_ = pca.components_[::-1]
    >>> [claim.name for claim in certify(pca, X) if claim.holds is False]
    ['order', 'attributes']
    """
    if X is None:
        raise ValueError(
            f"certify was called with {type(subject).__name__} but without data: give the rows X, "
            "or their SecondMoment."
        )
    components = _numbers(subject.components_, "components_")
    centred = data_of_any(*checked_data(X, sample_weight))
    k, m = components.shape
    if m != centred.n_features:
        raise ValueError(
            f"components_ has {m} columns, but X has {centred.n_features} features: the two "
            "numbers must be equal."
        )
    check_latents(k, m, "components_")
    mean = getattr(subject, "mean_", None)
    data = _about_zero(centred) if mean is None else centred
    options = Options.of(k, method="rag")
    figures = measure(
        options.make(k, None, options.rng()), TiedWeights(components), data, options.training
    )
    judged = tuple(_renamed(claim) for claim in claims(figures) if claim.name in JUDGED)
    attributes = _attributes_claim(subject, components, mean, centred)
    title = type(subject).__name__ + (" (rows not centred)" if mean is None else "")
    return Certificate(title, (*judged, attributes), figures.evidence)


def _renamed(claim: Claim) -> Claim:
    """Return a claim about an autoencoder with "component" in place of "latent" and "decoder"."""
    statement = claim.statement
    for old, new in WORDS.items():
        statement = statement.replace(old, new)
    return replace(claim, statement=statement, advice=claim.advice.replace("latent", "component"))


def _numbers(values: Any, name: str) -> Vector:
    """Return an attribute as a float64 matrix; raise a ValueError if it is not a finite matrix."""
    try:
        rows = check_rows(values if is_array(values) else np.asarray(values), name=name)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is not a matrix of finite numbers: {error}") from error
    return to_numpy(as_double(rows))


def _about_zero(data: Data) -> Data:
    """Return the second moment about zero, Σ + μμᵀ, for the covariance Σ and mean μ in `data`.

    The number of rows (`weight`) of the result is None, because the theory of sampling noise needs
    a covariance.
    """
    mean = data.mean
    with np.errstate(over="ignore"):
        total = data.trace + float(mean @ mean)
    if not math.isfinite(total):
        raise ValueError(
            "the squares of X about zero overflow double precision: divide X by a constant, and "
            "fit and certify again."
        )
    matrix = None if data.matrix is None else data.matrix + np.outer(mean, mean)

    def product(rows: Vector) -> Vector:
        return np.asarray(data.product(rows) + (rows @ mean)[:, None] * mean)

    return replace(
        data,
        mean=0.0 * mean,
        trace=total,
        product=product,
        variances=data.variances + mean**2,
        matrix=matrix,
        weight=None,
        rows=None,  # they would be centred
    )


def _attributes_claim(subject: Any, components: Vector, mean: Any, data: Data) -> Claim:
    """Return the claim that the attributes of the subject besides `components_` agree with data."""
    statement = "the other attributes agree with the data (largest relative difference)"
    reference = "definition of the attributes"
    differences = {
        name: difference
        for name, difference in _differences(subject, components, mean, data).items()
        if difference is not None
    }
    if not differences:
        why = f"{type(subject).__name__} has neither mean_ nor variances of its components."
        return does_not_apply("attributes", statement, reference, why)
    wrong = max(differences, key=lambda name: differences[name])
    advice = f"{wrong} does not agree with X: it was changed, or X is not the data passed to fit."
    value = differences[wrong]
    return at_most("attributes", statement, reference, value, ATTRIBUTES, advice)


def _differences(
    subject: Any, components: Vector, mean: Any, data: Data
) -> dict[str, float | None]:
    """Return the relative difference of each attribute of the subject to its definition.

    It is None for attributes that the subject does not have, and for those whose definition needs
    more than the data. For n rows, PCA divides sums of squares by n − 1 and TruncatedSVD by n, so
    that both are tried.
    """
    given = {name: getattr(subject, name, None) for name in MEASURED}
    along = _along(components, data)
    rows = data.weight
    unbiased = rows / (rows - 1.0) if rows is not None and rows > 1.0 else 1.0
    factors = (1.0, unbiased)
    found: dict[str, float | None] = dict.fromkeys((*MEASURED, "mean_"))
    if mean is not None:
        found["mean_"] = _mean_difference(mean, data)
    variances = given["explained_variance_"]
    if variances is not None:
        found["explained_variance_"] = _difference(variances, along, factors, data.n_features)
    ratios = given["explained_variance_ratio_"]
    if ratios is not None:
        total = max(data.trace, _TINY)
        found["explained_variance_ratio_"] = _difference(
            ratios, along / total, (1.0,), data.n_features
        )
    singular = given["singular_values_"]
    if singular is not None and rows is not None:
        squares = along if mean is not None else _along(components, _about_zero(data))
        found["singular_values_"] = _singular_difference(singular, rows * squares, data.n_features)
    noise = given["noise_variance_"]
    if noise is not None and rows is not None and not _is_incremental(subject, rows):
        left = _left_variances(variances, along, factors, data)
        found["noise_variance_"] = _noise_difference(noise, left, len(components), rows, data)
    return found


def _along(components: Vector, data: Data) -> Vector:
    """Return the variances of the data along the components; their divisor is the weight."""
    return np.asarray(np.sum(data.apply(components) * components, axis=1))


def _is_incremental(subject: Any, rows: float) -> bool:
    """Tell whether the subject was fitted in several batches.

    IncrementalPCA computes `noise_variance_` from what the last batch leaves unexplained, so that
    it depends on the batches and not on the data alone.
    """
    return hasattr(subject, "partial_fit") and not (getattr(subject, "batch_size_", 0) >= rows)


def _difference(given: Any, expected: Vector, factors: tuple[float, ...], n_features: int) -> float:
    """Return the largest relative difference of `given` to `expected` times one of the factors.

    Of several factors, that with the smallest difference is used.
    """
    found = _finite(given, expected.shape)
    if found is None:
        return math.inf
    values, eps = found
    return min(
        _largest_difference(values, factor * expected, eps, n_features) for factor in factors
    )


def _largest_difference(values: Vector, expected: Vector, eps: float, n_features: int) -> float:
    """Return the largest relative difference of two vectors of variances.

    Differences within the rounding errors of the largest variance do not count; `eps` is the
    machine epsilon of `values`.
    """
    roundings = 4 * max(n_features, FEWEST_ROUNDINGS) * eps * float(np.max(expected))
    apart = np.maximum(np.abs(values - expected) - roundings, 0.0)
    with np.errstate(over="ignore"):  # of a direction without variance
        return float(np.max(apart / np.maximum(expected, _TINY)))


def _singular_difference(given: Any, squares: Vector, n_features: int) -> float:
    """Return the largest relative difference of singular values to the roots of `squares`.

    The squares are compared, since the rounding errors are those of the squares.
    """
    found = _finite(given, squares.shape)
    if found is None or np.any(found[0] < 0):
        return math.inf
    # A relative difference d of a singular value is one of about 2d of its square.
    return _largest_difference(found[0] ** 2, squares, found[1], n_features) / 2


def _left_variances(
    variances: Any, along: Vector, factors: tuple[float, ...], data: Data
) -> list[float]:
    """Return what the components leave of the total variance, for each divisor of the variances.

    The variances along the components are subtracted from the total, or those that the subject
    states: small errors of a randomised solver would be large ones of what is left.
    """
    stated = None if variances is None else _finite(variances, along.shape)
    left = []
    for factor in factors:
        subtracted = [factor * along] if stated is None else [factor * along, stated[0]]
        left += [max(0.0, factor * data.trace - float(np.sum(part))) for part in subtracted]
    return left


def _noise_difference(given: Any, left: list[float], k: int, rows: float, data: Data) -> float:
    """Return the relative difference of `noise_variance_` to the mean of the variances left.

    scikit-learn divides by min(n, m) − k, for n rows, m features and k components, and Tipping &
    Bishop (1999) by m − k; the smaller difference is returned.
    """
    found = _finite(given, ())
    if found is None:
        return math.inf
    value, eps = float(found[0]), found[1]
    counts = [min(rows, data.n_features) - k, data.n_features - k]
    differences = []
    for total, count in product(left, counts):
        level = total / count if count > 0 else 0.0
        roundings = 4 * max(data.n_features, FEWEST_ROUNDINGS) * eps * data.trace
        apart = max(0.0, abs(value - level) - roundings / max(count, 1.0))
        differences.append(apart / max(level, _TINY))
    return min(differences)


def _mean_difference(given: Any, data: Data) -> float:
    """Return the largest difference of `given` to the mean of the rows, in standard deviations."""
    found = _finite(given, data.mean.shape)
    return math.inf if found is None else mean_difference(found[0], data, found[1])


def _finite(given: Any, shape: tuple[int, ...]) -> tuple[Vector, float] | None:
    """Return an attribute as a float64 array, and the machine epsilon of its dtype."""
    try:
        host = to_numpy(given) if is_array(given) else np.asarray(given)
        found = np.asarray(host, dtype=float)
    except (TypeError, ValueError):
        return None
    if found.shape != shape or not np.all(np.isfinite(found)):
        return None
    return found, float(np.finfo(host.dtype if host.dtype.kind == "f" else float).eps)
