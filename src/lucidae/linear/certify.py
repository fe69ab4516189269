"""Certificates of linear autoencoders: of our estimators, and of weights that a user brings."""

from __future__ import annotations

import math
from typing import Any

from lucidae._arrays import Array, as_double, like, namespace
from lucidae._validation import check_number, check_rows, check_weights
from lucidae.certificate import Certificate
from lucidae.linear.claims import linear_claims
from lucidae.linear.estimators import LinearAutoencoder
from lucidae.linear.evidence import Evidence
from lucidae.linear.options import Options
from lucidae.linear.sources import KEPT_FEATURES, MomentSource, Source, source_of
from lucidae.linear.weights import TiedWeights, VariationalWeights, Weights
from lucidae.moments import SecondMoment

__all__ = ["certify_estimator", "certify_weights"]


def certify_estimator(
    estimator: LinearAutoencoder,
    X: Any = None,
    y: Any = None,  # noqa: ARG001  one signature for all families
    *,
    sample_weight: Any = None,
) -> Certificate:
    """Certify a fitted estimator on what it kept, or on the rows (or the moment) `X`."""
    if X is None:
        return estimator.certificate_
    return estimator._kept.certify(_source(X, sample_weight), type(estimator).__name__)


def certify_weights(
    encoder: Any,
    decoder: Any,
    X: Any,
    *,
    sample_weight: Any = None,
    noise_variance: float | None = None,
    **settings: Any,
) -> Certificate:
    """Certify an encoder and a decoder, wherever they were trained.

    Parameters
    ----------
    encoder : array of shape (k, m)
        Encoder W₁.
    decoder : array of shape (m, k)
        Decoder W₂.
    X : array-like of shape (n, m) or SecondMoment
        The data, or their moment.
    sample_weight : array-like of shape (n,), optional
        Frequencies of the rows.
    noise_variance : float, optional
        Observation variance, for ``method="linear_vae"``; the posterior variances are taken at
        their optimum.
    **settings
        Arguments of `LinearAutoencoder` that say what the weights were trained for: `method`,
        `l2`, `prior`, `tied`, `tol`, `learning_rate`, `optimizer`, `momentum`.

    Returns
    -------
    Certificate

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae.linear.certify import certify_weights
    >>> X = np.random.default_rng(0).standard_normal((100, 3)) * [3.0, 2.0, 1.0]
    >>> axes = np.linalg.svd(X - X.mean(0), full_matrices=False)[2][:2]
    >>> certify_weights(axes, axes.T, X, method="rag").holds
    True
    >>> turn = np.array([[0.6, 0.8], [-0.8, 0.6]])
    >>> certify_weights(turn @ axes, axes.T @ turn.T, X, method="rag")["alignment"].holds
    False
    """
    rows, columns = check_rows(encoder, name="encoder"), check_rows(decoder, name="decoder")
    if tuple(columns.shape) != tuple(rows.shape)[::-1]:
        raise ValueError(
            f"encoder has shape {tuple(rows.shape)} and decoder {tuple(columns.shape)}, expected "
            "(k, m) and (m, k)."
        )
    options = Options.of(LinearAutoencoder(rows.shape[0], **settings))
    source = _source(X, sample_weight)
    _check_width(rows, source)
    spectrum = source.spectrum(_wanted(rows))
    method = options.make(rows.shape[0], spectrum, options.random())
    weights = _weights(rows, columns, source.mean, method.tied)
    if method.name == "linear_vae":
        weights = _with_variances(weights, noise_variance)
    training = options.training
    rate = None if spectrum is None else training.rate(method.curvature(spectrum))
    evidence = Evidence(
        method,
        weights,
        source.covariance,
        spectrum,
        training.tol,
        rate,
        training.effective_momentum,
    )
    return Certificate(f"weights(method={method.name!r})", tuple(linear_claims(evidence)))


def _source(X: Any, sample_weight: Any) -> Source:
    if isinstance(X, SecondMoment):
        return MomentSource(X)
    X = check_rows(X)
    return source_of(X, check_weights(sample_weight, X), "auto")


def _check_width(encoder: Array, source: Source) -> None:
    m = source.covariance.n_features
    if encoder.shape[1] != m:
        raise ValueError(f"encoder has {encoder.shape[1]} columns, but X has {m} features.")


def _wanted(encoder: Array) -> int | None:
    """Return how many eigenpairs to compute: all where that is cheap."""
    k, m = encoder.shape
    return None if m <= KEPT_FEATURES else min(k + 1, m)


def _weights(encoder: Array, decoder: Array, ref: Array, tied: bool) -> Any:
    rows, atoms = like(as_double(encoder), ref), like(as_double(decoder), ref).mT
    xp = namespace(rows)
    same = bool(xp.all(rows == atoms))
    return TiedWeights(rows) if tied and same else Weights(rows, atoms)


def _with_variances(weights: Weights, noise_variance: float | None) -> VariationalWeights:
    """Complete the weights of a linear VAE: D = s²/(diag(WᵀW) + s²)."""
    noise = check_number(noise_variance, "noise_variance", low=0.0, open_low=True)
    xp = namespace(weights.atoms)
    power = xp.sum(weights.atoms * weights.atoms, axis=-1)[:, None]
    log_noise = 0.0 * power[:1, :] + math.log(noise)
    log_variances = math.log(noise) - xp.log(power + noise)
    return VariationalWeights(weights.encoder, weights.atoms, log_variances, log_noise)
