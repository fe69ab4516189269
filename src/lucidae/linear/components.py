"""Certificates of principal components from other libraries, such as scikit-learn's PCA."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from lucidae.arrays import as_double, is_array, to_numpy
from lucidae.certificate import Certificate, Claim, at_most, certifies, does_not_apply
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

ATTRIBUTES = 1e-3
"""Threshold of the claim `attributes`, which randomised and incremental solvers reach.

It is compared with the difference of the mean of each feature, in its standard deviations, and
with the difference of each variance along a component, divided by this variance."""

_TINY = float(np.finfo(float).tiny)


@certifies("components")
def certify_components(subject: Any, X: Any, *, sample_weight: Any = None) -> Certificate:
    """Judge how close the `components_` of a fitted object are to the principal components of `X`.

    Claims are made about the subspace that the components span, each principal axis, the order of
    the components, and the reconstruction error. If the object has `mean_`, the rows are centred
    first; otherwise (scikit-learn's `TruncatedSVD`) they are used as they are. `mean_` and
    `explained_variance_`, if present, are compared with the data.

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
    matrix = None if data.matrix is None else data.matrix + np.outer(mean, mean)

    def product(rows: Vector) -> Vector:
        return np.asarray(data.product(rows) + (rows @ mean)[:, None] * mean)

    total = data.trace + float(mean @ mean)
    return replace(
        data,
        mean=0.0 * mean,
        trace=total,
        product=product,
        variances=data.variances + mean**2,
        matrix=matrix,
        weight=None,
    )


def _attributes_claim(subject: Any, components: Vector, mean: Any, data: Data) -> Claim:
    statement = "mean_ and explained_variance_ agree with the data (largest relative difference)"
    reference = "definition of the attributes"
    variances = getattr(subject, "explained_variance_", None)
    if mean is None and variances is None:
        why = f"{type(subject).__name__} has neither mean_ nor explained_variance_."
        return does_not_apply("attributes", statement, reference, why)
    differences = {}
    if mean is not None:
        differences["mean_"] = _mean_difference(mean, data)
    if variances is not None:
        differences["explained_variance_"] = _variance_difference(variances, components, data)
    wrong = max(differences, key=lambda name: differences[name])
    advice = f"{wrong} does not agree with X: it was changed, or X is not the data passed to fit."
    value = differences[wrong]
    return at_most("attributes", statement, reference, value, ATTRIBUTES, advice)


def _variance_difference(given: Any, components: Vector, data: Data) -> float:
    """Return the largest relative difference of `given` to the variances along the components.

    Differences within the rounding errors of the largest variance do not count. For n rows, PCA
    divides sums of squares by n − 1 and TruncatedSVD by n, so `given` is compared with both
    variances, and the smaller difference is returned.
    """
    along = np.sum(data.apply(components) * components, axis=1)
    found = _finite(given, along.shape)
    if found is None:
        return math.inf
    values, eps = found
    roundings = max(data.n_features, FEWEST_ROUNDINGS) * eps * float(np.max(along))
    rows = data.weight or math.inf
    unbiased = rows / (rows - 1.0) if 1.0 < rows < math.inf else 1.0
    with np.errstate(over="ignore"):  # of a direction without variance
        return min(
            float(np.max(np.maximum(np.abs(values - size) - 4 * roundings, 0.0) / size))
            for size in (np.maximum(along * factor, _TINY) for factor in (1.0, unbiased))
        )


def _mean_difference(given: Any, data: Data) -> float:
    """Return the largest difference of `given` to the mean of the rows, in standard deviations."""
    found = _finite(given, data.mean.shape)
    return math.inf if found is None else mean_difference(found[0], data, found[1])


def _finite(given: Any, shape: tuple[int, ...]) -> tuple[Vector, float] | None:
    """Return an attribute as a float64 array, and the machine epsilon of its dtype.

    The result is None if the attribute does not have the given shape, or has entries that are not
    finite numbers.
    """
    try:
        host = to_numpy(given) if is_array(given) else np.asarray(given)
        found = np.asarray(host, dtype=float)
    except (TypeError, ValueError):
        return None
    if found.shape != shape or not np.all(np.isfinite(found)):
        return None
    return found, float(np.finfo(host.dtype if host.dtype.kind == "f" else float).eps)
