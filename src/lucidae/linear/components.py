"""Certificates of principal components from other libraries, such as scikit-learn's PCA."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from lucidae.arrays import as_double, is_array, to_numpy
from lucidae.certificate import Certificate, Claim, at_most, certifies, does_not_apply
from lucidae.linear.certificate import checked_data, claims
from lucidae.linear.methods import Options
from lucidae.linear.verified_spectrum import Data, data_of
from lucidae.linear.verifier import measure
from lucidae.linear.weights import TiedWeights
from lucidae.validation import check_rows

__all__ = ["certify_components"]

Vector = np.ndarray[Any, Any]

JUDGED = ("subspace", "alignment", "order", "gap", "eigengap", "sampling")
"""Claims of a linear autoencoder that speak of its components and not of its training."""

WORDS = {
    "the decoder spans": "the components span",
    "latent": "component",
    "the loss is its global minimum": "the reconstruction error is the smallest possible",
}
"""What the statements of these claims say about components instead of weights."""

ATTRIBUTES = 1e-3
"""Largest difference of the mean, in standard deviations, and of a variance, relative to the
largest: as accurate as the distances. Randomised and incremental solvers reach it."""

_TINY = float(np.finfo(float).tiny)


@certifies("components")
def certify_components(subject: Any, X: Any, *, sample_weight: Any = None) -> Certificate:
    """Certify any fitted object with `components_` as principal components of the rows of `X`.

    The components are judged as the axes of a linear autoencoder that encodes by them and decodes
    by their transpose: the subspace, each axis, their order, and the reconstruction error. An
    object with `mean_` is judged on centred rows, one without it (scikit-learn's `TruncatedSVD`) on
    rows as they are. `mean_` and `explained_variance_` are compared with the data where they exist.

    Parameters
    ----------
    subject : object
        A fitted object such as scikit-learn's `PCA`, `IncrementalPCA` or `TruncatedSVD`;
        `components_` has shape (k, m).
    X : array-like of shape (n, m) or SecondMoment
        The data, or their moment.
    sample_weight : array-like of shape (n,), optional
        Frequencies of the rows.

    Returns
    -------
    Certificate

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
            f"{type(subject).__name__} is certified on data: give X or its SecondMoment."
        )
    components = _numbers(subject.components_, "components_")
    centred = data_of(*checked_data(X, sample_weight))
    k, m = components.shape
    if m != centred.n_features:
        raise ValueError(
            f"components_ has {m} columns, but X has {centred.n_features} features: expected as "
            "many."
        )
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
    """Return a claim of an autoencoder in the words of principal components."""
    statement = claim.statement
    for old, new in WORDS.items():
        statement = statement.replace(old, new)
    return replace(claim, statement=statement, advice=claim.advice.replace("latent", "component"))


def _numbers(values: Any, name: str) -> Vector:
    """Return an attribute as a matrix of finite doubles."""
    try:
        rows = check_rows(values if is_array(values) else np.asarray(values), name=name)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is not a matrix of finite numbers: {error}") from error
    return to_numpy(as_double(rows))


def _about_zero(data: Data) -> Data:
    """Return the second moment about zero, Σ + μμᵀ, of data given by their covariance.

    It has no number of rows, because it is not a covariance: the theory of sampling noise does not
    apply to it.
    """
    mean = data.mean
    matrix = None if data.matrix is None else data.matrix + np.outer(mean, mean)

    def product(rows: Vector) -> Vector:
        return np.asarray(data.product(rows) + (rows @ mean)[:, None] * mean)

    total = data.trace + float(mean @ mean)
    return replace(data, mean=0.0 * mean, trace=total, product=product, matrix=matrix, weight=None)


def _attributes_claim(subject: Any, components: Vector, mean: Any, data: Data) -> Claim:
    statement = "mean_ and explained_variance_ are those of the data"
    reference = "definition of the attributes"
    variances = getattr(subject, "explained_variance_", None)
    if mean is None and variances is None:
        why = f"{type(subject).__name__} has neither mean_ nor explained_variance_."
        return does_not_apply("attributes", statement, reference, why)
    differences = {}
    if mean is not None:
        unit = math.sqrt(max(data.trace, _TINY))
        differences["mean_"] = _apart(mean, data.mean) / unit
    if variances is not None:
        differences["explained_variance_"] = _variance_difference(variances, components, data)
    wrong = max(differences, key=lambda name: differences[name])
    advice = f"{wrong} is not that of these data: it was changed, or the data are others."
    value = differences[wrong]
    return at_most("attributes", statement, reference, value, ATTRIBUTES, advice)


def _variance_difference(given: Any, components: Vector, data: Data) -> float:
    """Return the difference of the variances along the components, relative to the largest.

    PCA divides by n − 1 and TruncatedSVD by n: the smaller difference counts.
    """
    along = np.sum(data.apply(components) * components, axis=1)
    unit = max(float(np.max(along)), _TINY)
    rows = data.weight or math.inf
    unbiased = rows / (rows - 1.0) if 1.0 < rows < math.inf else 1.0
    return min(_apart(given, along * factor) / unit for factor in (1.0, unbiased))


def _apart(given: Any, expected: Vector) -> float:
    """Return the largest difference, infinite where the shape differs or a number is missing."""
    try:
        found = np.asarray(to_numpy(given), dtype=float)
    except (TypeError, ValueError):
        return math.inf
    if found.shape != expected.shape or not np.all(np.isfinite(found)):
        return math.inf
    return float(np.max(np.abs(found - expected), initial=0.0))
