"""Certificates of linear autoencoders: figures measured on weights, and the claims they support."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import Array, as_double, like, namespace, scalar, to_numpy
from lucidae.certificate import Certificate, Claim, at_most, certifies, does_not_apply, reported
from lucidae.linear.data import STORED_FEATURES, Covariance, MomentSource, Source, source_of
from lucidae.linear.methods import Method, Options, relative_direction
from lucidae.linear.optimizers import DescentSettings
from lucidae.linear.spectrum import Spectrum
from lucidae.linear.theory import (
    IDENTIFIABLE,
    predicted_epochs,
    residual_bounds,
    smallest_gap,
    subspace_determined,
    unidentifiable,
)
from lucidae.linear.weights import TiedWeights, UntiedWeights
from lucidae.metrics import axis_alignment_distance, subspace_distance
from lucidae.moments import SecondMoment
from lucidae.validation import check_rows, check_weights

__all__ = ["LinearFigures", "certify_weights", "claims", "measure"]

Vector = np.ndarray[Any, Any]

DISTANCE = 1e-3
"""Largest subspace and alignment distance that counts as recovered."""

GAP = 1e-6
"""Largest excess of the loss over its minimum, relative to `Objective.size`."""

BALANCE = 1e-3
"""Largest relative difference of W₁W₁ᵀ and W₂ᵀW₂."""

RISE = 1e-6
"""Largest relative increase of the variance from one latent to the next."""

_TINY = float(np.finfo(float).tiny)
_DEFINITIONS = "Bao et al. 2020, Definition"


@dataclass(frozen=True, slots=True)
class LinearFigures:
    """Figures about given weights, from which the claims follow. None: not known or not promised.

    Parameters
    ----------
    method : Method
        What the weights were trained for.
    k : int
        Number of latents.
    tolerance : float
        The tolerance of the stopping rule.
    spectrum_known : bool
        Whether eigenvalues were computed. If not, the distances are bounds from residuals.
    subspace, alignment : float
        Distances of the decoder to the principal subspace and to the principal axes.
    determined : bool
        Whether the data determine the subspace, as far as the spectrum is known.
    shared : ndarray of int
        Components, counted from 1, that share an eigenvalue with a neighbour.
    rise : float or None
        Largest relative increase of the variance from one latent to the next.
    stationarity : float
        ‖direction‖ / (scale · ‖weights‖).
    gap : float or None
        Relative excess of the loss over its minimum.
    balance : float or None
        ‖W₁W₁ᵀ − W₂ᵀW₂‖ / ‖W₂ᵀW₂‖.
    zero_latents : ndarray of int
        Latents, counted from 1, that are zero at the optimum.
    eigengap : float or None
        Smallest relative gap among the first k + 1 eigenvalues.
    conditioning : float or None
        Condition number of the Hessian at the optimum, zero eigenvalues left out.
    epochs : float or None
        Predicted epochs of descent to an alignment distance of `DISTANCE`.
    """

    method: Method
    k: int
    tolerance: float
    spectrum_known: bool
    subspace: float
    alignment: float
    determined: bool
    shared: Vector
    rise: float | None
    stationarity: float
    gap: float | None
    balance: float | None
    zero_latents: Vector
    eigengap: float | None
    conditioning: float | None
    epochs: float | None


def measure(
    method: Method,
    weights: Any,
    covariance: Covariance,
    spectrum: Spectrum | None,
    training: DescentSettings,
    learning_rate: float | None = None,
) -> LinearFigures:
    """Measure the figures of given weights on given data.

    Parameters
    ----------
    method : Method
        The method, with its penalties or prior.
    weights : weights
        Encoder and decoder as trained, latents in their own order.
    covariance : Covariance
        Products with the second moment.
    spectrum : Spectrum or None
        Leading eigenpairs, at least k of them; None where they were not computed.
    training : DescentSettings
        Tolerance and momentum of the fit.
    learning_rate : float, optional
        The step size that was used, for the prediction of epochs.
    """
    k = int(weights.encoder.shape[-2])
    subspace, alignment = _distances(weights, covariance, spectrum, k)
    figures: dict[str, Any] = {
        "determined": True,
        "shared": np.empty(0, dtype=int),
        "gap": None,
        "zero_latents": np.empty(0, dtype=int),
        "eigengap": None,
        "conditioning": None,
        "epochs": None,
    }
    if spectrum is not None:
        values = to_numpy(spectrum.values)
        figures = {
            "determined": subspace_determined(values, k),
            "shared": unidentifiable(values, k),
            "gap": _gap(method, weights, covariance, spectrum, k),
            "zero_latents": method.objective.zero_latents(values),
            "eigengap": smallest_gap(values, k) / max(float(values[0]), _TINY),
            "conditioning": _conditioning(method, values),
            "epochs": _epochs(method, values, k, learning_rate, training.effective_momentum),
        }
    return LinearFigures(
        method=method,
        k=k,
        tolerance=training.tol,
        spectrum_known=spectrum is not None,
        subspace=subspace,
        alignment=alignment,
        rise=_rise(method, weights, covariance) if method.expected().orders else None,
        stationarity=_stationarity(method, weights, covariance, spectrum),
        balance=_imbalance(weights) if method.expected().balanced else None,
        **figures,
    )


def _distances(
    weights: Any, covariance: Covariance, spectrum: Spectrum | None, k: int
) -> tuple[float, float]:
    """Return subspace and alignment distance, or bounds on them without a spectrum."""
    atoms = as_double(weights.atoms)
    if spectrum is None:
        bounds = residual_bounds(covariance, atoms)
        return bounds.subspace, bounds.alignment
    axes = spectrum.vectors[:, :k]
    return (
        float(subspace_distance(atoms.mT, axes)),
        float(axis_alignment_distance(atoms.mT, axes)),
    )


def _rise(method: Method, weights: Any, covariance: Covariance) -> float:
    atoms = as_double(weights.atoms)
    xp = namespace(atoms)
    power = to_numpy(xp.sum(atoms * atoms, axis=-1))
    along = to_numpy(xp.sum(covariance.apply(atoms) * atoms, axis=-1))
    variances = along / np.maximum(power, _TINY)
    variances = variances[method.objective.latent_order(len(variances))]
    return float(np.max(np.diff(variances), initial=0.0)) / max(float(variances[0]), _TINY)


def _stationarity(
    method: Method, weights: Any, covariance: Covariance, spectrum: Spectrum | None
) -> float:
    followed = method.expected()
    if spectrum is None:
        atoms = as_double(weights.atoms)
        ritz = residual_bounds(covariance, atoms, n_iter=1).values
        spectrum = Spectrum(ritz, atoms.mT, float(covariance.trace))
    scale = max(followed.scale(spectrum), _TINY)
    return scalar(relative_direction(followed, weights, covariance, scale))


def _gap(
    method: Method, weights: Any, covariance: Covariance, spectrum: Spectrum, k: int
) -> float | None:
    objective = method.objective
    minimum = objective.minimum(spectrum, k)
    if minimum is None or not math.isfinite(minimum):
        return None
    value = scalar(objective.value(weights, covariance))
    return max(0.0, (value - minimum) / objective.size(spectrum))


def _imbalance(weights: Any) -> float:
    encoder, atoms = as_double(weights.encoder), as_double(weights.atoms)
    gram, code = atoms @ atoms.mT, encoder @ encoder.mT
    xp = namespace(gram)
    difference = scalar(xp.sqrt(xp.sum((code - gram) ** 2)))
    return difference / max(scalar(xp.sqrt(xp.sum(gram * gram))), _TINY)


def _conditioning(method: Method, values: Vector) -> float | None:
    curvatures = method.objective.hessian_eigenvalues(values)
    if curvatures is None:
        return None
    positive = curvatures[curvatures > 1e-12 * curvatures[-1]]
    return float(positive[-1] / positive[0]) if positive.size else math.inf


def _epochs(
    method: Method, values: Vector, k: int, learning_rate: float | None, momentum: float
) -> float | None:
    rate = method.expected().alignment_rate(values, k)
    if rate is None or learning_rate is None:
        return None
    return predicted_epochs(rate, learning_rate, momentum, DISTANCE)


def claims(figures: LinearFigures) -> tuple[Claim, ...]:
    """Return the claims that the figures support, most important first."""
    return (
        _subspace_claim(figures),
        _alignment_claim(figures),
        _order_claim(figures),
        _stationarity_claim(figures),
        _gap_claim(figures),
        _balance_claim(figures),
        _nonzero_claim(figures),
        _eigengap_claim(figures),
        _conditioning_claim(figures),
        _epochs_claim(figures),
    )


_NO_SPECTRUM = "The spectrum was not computed, because both m and n exceed 8192."


def _bounded(figures: LinearFigures) -> str:
    return "" if figures.spectrum_known else " (Davis–Kahan bound from the residual)"


def _subspace_claim(figures: LinearFigures) -> Claim:
    statement = "the decoder spans the principal subspace" + _bounded(figures)
    reference = f"{_DEFINITIONS} 7.2"
    if not figures.determined:
        k = figures.k
        why = f"Eigenvalues {k} and {k + 1} are equal, so the subspace is not unique."
        return Claim("subspace", statement, reference, figures.subspace, advice=why)
    advice = _distance_advice(figures)
    return at_most("subspace", statement, reference, figures.subspace, DISTANCE, advice)


def _alignment_claim(figures: LinearFigures) -> Claim:
    statement = "each latent is one principal direction" + _bounded(figures)
    reference, alignment = f"{_DEFINITIONS} 7.1", figures.alignment
    if not figures.method.expected().aligns:
        why = (
            f"Method {figures.method.name!r} determines the latents only up to a rotation; the "
            f"measured distance is {alignment:.3g}."
        )
        return Claim("alignment", statement, reference, alignment, advice=why)
    if len(figures.shared):
        why = (
            f"Components {_listed(figures.shared)} share an eigenvalue: their axes are not unique."
        )
        return Claim("alignment", statement, reference, alignment, advice=why)
    advice = _distance_advice(figures)
    return at_most("alignment", statement, reference, alignment, DISTANCE, advice)


def _distance_advice(figures: LinearFigures) -> str:
    zero = figures.zero_latents
    if not len(zero):
        return "Train longer (max_iter), or use solver='exact'."
    return (
        f"{_zero_sentence(figures)}; this alone gives a subspace distance of "
        f"{len(zero) / figures.k:.3g}. Lower l2, or use l2='auto' or method='rag'."
    )


def _zero_sentence(figures: LinearFigures) -> str:
    zero = _listed(figures.zero_latents)
    if len(figures.zero_latents) == 1:
        return f"Penalty {zero} is at least its eigenvalue, so latent {zero} is zero at the optimum"
    many = f"Penalties {zero} are at least their eigenvalues, so latents {zero} are zero"
    return many + " at the optimum"


def _order_claim(figures: LinearFigures) -> Claim:
    statement = "latents are in descending order of variance"
    reference = "Bao et al. 2020, Theorem 3"
    if figures.rise is None:
        why = f"Method {figures.method.name!r} does not order its latents."
        return does_not_apply("order", statement, reference, why)
    advice = "Train longer (max_iter), or sort the latents by variance."
    return at_most("order", statement, reference, figures.rise, RISE, advice)


def _stationarity_claim(figures: LinearFigures) -> Claim:
    return at_most(
        "stationarity",
        "the weights are a fixed point of the rule",
        "Bao et al. 2020, Theorem 2",
        figures.stationarity,
        max(10 * figures.tolerance, 1e-9),
        "Train longer (max_iter), or use learning_rate='auto'.",
    )


def _gap_claim(figures: LinearFigures) -> Claim:
    statement, reference = figures.method.objective.gap_statement, "Bao et al. 2020, Theorem 3"
    if not figures.spectrum_known:
        return does_not_apply("gap", statement, reference, _NO_SPECTRUM)
    if figures.gap is None:
        why = (
            "The minimum of the objective is not known, or it is unbounded because no variance "
            "remains for the noise."
        )
        return does_not_apply("gap", statement, reference, why)
    advice = "Train longer (max_iter), or use solver='exact'."
    return at_most("gap", statement, reference, figures.gap, GAP, advice)


def _balance_claim(figures: LinearFigures) -> Claim:
    statement = "encoder and decoder are balanced, W₁W₁ᵀ = W₂ᵀW₂"
    reference = "Bao et al. 2020, Theorem 1"
    if figures.balance is None:
        why = "The optimum of this method does not determine the scale of a latent."
        return does_not_apply("balance", statement, reference, why)
    advice = (
        "Steps on untied weights change the balance by O(learning rate): tie the weights, or "
        "lower learning_rate."
    )
    return at_most("balance", statement, reference, figures.balance, BALANCE, advice)


def _nonzero_claim(figures: LinearFigures) -> Claim:
    name, statement = "nonzero_latents", "every penalty is below its eigenvalue, λ_k < σ_k²"
    reference = "Bao et al. 2020, Theorem 2 (assumption)"
    if not figures.method.objective.has_penalties:
        return does_not_apply(name, statement, reference, "This method has no penalties.")
    if not figures.spectrum_known:
        return does_not_apply(name, statement, reference, _NO_SPECTRUM)
    zero, k = len(figures.zero_latents), figures.k
    advice = ""
    if zero:
        advice = (
            f"{_zero_sentence(figures)}: the smallest possible subspace distance is "
            f"{zero}/{k} = {zero / k:.3g}."
        )
    return at_most(name, statement, reference, float(zero), 0.0, advice)


def _eigengap_claim(figures: LinearFigures) -> Claim:
    statement = "neighbouring eigenvalues differ, so the components are identifiable"
    reference = "Bao et al. 2020, Section 2 (assumption)"
    if figures.eigengap is None:
        return does_not_apply("eigengap", statement, reference, _NO_SPECTRUM)
    shared = figures.shared
    why = (
        f"Components {_listed(shared)} share an eigenvalue with a neighbour, so they are not "
        "identifiable from these data."
    )
    return Claim(
        "eigengap",
        statement,
        reference,
        figures.eigengap,
        IDENTIFIABLE,
        not len(shared),
        why if len(shared) else "",
    )


def _conditioning_claim(figures: LinearFigures) -> Claim:
    statement = "condition number of the Hessian at the optimum (zero eigenvalues left out)"
    reference = "Bao et al. 2020, Sections 4.3 and 5"
    if figures.conditioning is None:
        why = "No closed form is known for this method." if figures.spectrum_known else _NO_SPECTRUM
        return does_not_apply("conditioning", statement, reference, why)
    return reported("conditioning", statement, reference, figures.conditioning)


def _epochs_claim(figures: LinearFigures) -> Claim:
    statement = f"predicted epochs of descent to an alignment distance of {DISTANCE:g}"
    reference = "Bao et al. 2020, Theorem 5 (with the rate g/2) and Section 4.3"
    if figures.epochs is None:
        why = "No local rate is known for this method." if figures.spectrum_known else _NO_SPECTRUM
        return does_not_apply("epochs", statement, reference, why)
    return reported("epochs", statement, reference, figures.epochs)


def _listed(numbers: Vector) -> str:
    """Write 3, 4, 5, 9 as “3–5, 9”."""
    runs: list[list[int]] = []
    for number in map(int, numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


@certifies("linear")
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
    >>> from lucidae.linear import certify_weights
    >>> X = np.random.default_rng(0).standard_normal((100, 3)) * [3.0, 2.0, 1.0]
    >>> axes = np.linalg.svd(X - X.mean(0), full_matrices=False)[2][:2]
    >>> certify_weights(axes, axes.T, X, method="rag").holds
    True
    >>> turn = np.array([[0.6, 0.8], [-0.8, 0.6]])
    >>> certify_weights(turn @ axes, axes.T @ turn.T, X, method="rag")["alignment"].holds
    False
    """
    rows, columns = check_rows(encoder, name="encoder"), check_rows(decoder, name="decoder")
    options = Options.of(rows.shape[0], **settings)
    if tuple(columns.shape) != tuple(rows.shape)[::-1]:
        raise ValueError(
            f"encoder has shape {tuple(rows.shape)} and decoder {tuple(columns.shape)}, expected "
            "(k, m) and (m, k)."
        )
    source = data_source(X, sample_weight)
    if rows.shape[1] != source.covariance.n_features:
        raise ValueError(
            f"encoder has {rows.shape[1]} columns, but X has {source.covariance.n_features} "
            "features: expected as many."
        )
    spectrum = source.spectrum(spectrum_size(source, rows.shape[0]))
    method = options.make(rows.shape[0], spectrum, options.rng())
    weights = method.objective.completed(
        _weights(rows, columns, source.mean, method.tied), noise_variance
    )
    training = options.training
    rate = None if spectrum is None else training.rate(method.rule.curvature(spectrum))
    figures = measure(method, weights, source.covariance, spectrum, training, rate)
    return Certificate(f"weights(method={method.name!r})", claims(figures))


def data_source(X: Any, sample_weight: Any) -> Source:
    """Return the source of the second moment for certificates, from rows or from a moment."""
    if isinstance(X, SecondMoment):
        return MomentSource(X)
    X = check_rows(X)
    return source_of(X, check_weights(sample_weight, X), "auto")


def spectrum_size(source: Source, k: int) -> int | None:
    """Return how many eigenpairs a certificate computes: all (None) where that is cheap."""
    m = source.covariance.n_features
    return None if m <= STORED_FEATURES else min(k + 1, m)


def _weights(encoder: Array, decoder: Array, ref: Array, tied: bool) -> Any:
    rows, atoms = like(as_double(encoder), ref), like(as_double(decoder), ref).mT
    same = bool(namespace(rows).all(rows == atoms))
    return TiedWeights(rows) if tied and same else UntiedWeights(rows, atoms)
