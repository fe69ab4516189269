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
"""Largest difference of a feature's mean, in its standard deviations, and of a variance, relative
to itself: as accurate as the distances. Randomised and incremental solvers reach it."""

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
    statement = "mean_ and explained_variance_ are those of the data"
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
    advice = f"{wrong} is not that of these data: it was changed, or the data are others."
    value = differences[wrong]
    return at_most("attributes", statement, reference, value, ATTRIBUTES, advice)


def _variance_difference(given: Any, components: Vector, data: Data) -> float:
    """Return the largest difference of a variance along a component, relative to that variance.

    Rounding errors of the largest variance do not count. PCA divides by n − 1 and TruncatedSVD by
    n: the smaller difference counts.
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
    found = _finite(given, data.mean.shape)
    return math.inf if found is None else mean_difference(found[0], data, found[1])


def _finite(given: Any, shape: tuple[int, ...]) -> tuple[Vector, float] | None:
    """Return an attribute as doubles, and the rounding unit of its dtype.

    None if the shape differs or not all entries are finite numbers.
    """
    try:
        host = to_numpy(given) if is_array(given) else np.asarray(given)
        found = np.asarray(host, dtype=float)
    except (TypeError, ValueError):
        return None
    if found.shape != shape or not np.all(np.isfinite(found)):
        return None
    return found, float(np.finfo(host.dtype if host.dtype.kind == "f" else float).eps)
