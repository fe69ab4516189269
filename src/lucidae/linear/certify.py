"""Certificates of linear autoencoders: each claim tied to a theorem of Bao et al. 2020."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae._arrays import Array, as_double, namespace, scalar, to_numpy
from lucidae.certificate import Certificate, Claim, at_most, does_not_apply, reported
from lucidae.linear.covariance import Covariance
from lucidae.linear.methods import Method, relative_direction
from lucidae.linear.objectives import LinearVAE, NonUniformL2
from lucidae.linear.spectrum import Spectrum
from lucidae.linear.theory import (
    alignment_rate,
    dying_latents,
    objective_curvatures,
    predicted_epochs,
    residual_bounds,
    smallest_gap,
    unidentifiable,
)
from lucidae.linear.weights import TiedWeights
from lucidae.metrics import axis_alignment_distance, subspace_distance

DISTANCE = 1e-3
"""Largest subspace and alignment distance that counts as recovered."""

GAP = 1e-6
"""Largest excess of the loss over its minimum, relative to the total variance."""

BALANCE = 1e-3
"""Largest relative difference of W₁W₁ᵀ and W₂ᵀW₂."""

_DEFINITIONS = "Bao et al. 2020, Definition"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a certificate is drawn from.

    Parameters
    ----------
    method : Method
        The method, with its penalties or prior.
    weights : weights
        Encoder and decoder as trained, latents in their own order.
    covariance : Covariance
        Products with the second moment.
    spectrum : Spectrum or None
        Leading eigenpairs, at least k of them; None where they are out of reach.
    tolerance : float
        What the fit asked of its stationarity.
    learning_rate : float or None
        The step size that was used, for the prediction of epochs.
    momentum : float
        The momentum that was used.
    """

    method: Method
    weights: Any
    covariance: Covariance
    spectrum: Spectrum | None
    tolerance: float = 1e-6
    learning_rate: float | None = None
    momentum: float = 0.0

    @property
    def k(self) -> int:
        """Number of latents."""
        return int(self.weights.encoder.shape[-2])


def certify_evidence(evidence: Evidence, title: str) -> Certificate:
    """Return the certificate of a linear autoencoder."""
    return Certificate(title, tuple(_claims(evidence)))


def _claims(evidence: Evidence) -> Iterator[Claim]:
    yield from _distances(evidence)
    yield _order(evidence)
    yield _stationarity(evidence)
    yield _gap(evidence)
    yield _balance(evidence)
    yield _alive(evidence)
    yield _eigengap(evidence)
    yield _conditioning(evidence)
    yield _epochs(evidence)


def _distances(evidence: Evidence) -> Iterator[Claim]:
    atoms = as_double(evidence.weights.atoms)
    spectrum, k = evidence.spectrum, evidence.k
    if spectrum is None:
        bounds = residual_bounds(evidence.covariance, atoms)
        subspace, alignment = bounds.subspace, bounds.alignment
        how = " (Davis–Kahan bound from the residual)"
    else:
        axes = spectrum.vectors[:, :k]
        subspace = float(subspace_distance(atoms.mT, axes))
        alignment = float(axis_alignment_distance(atoms.mT, axes))
        how = ""
    yield at_most(
        "subspace",
        "the decoder spans the principal subspace" + how,
        f"{_DEFINITIONS} 7.2",
        subspace,
        DISTANCE,
        _why_far(evidence),
    )
    yield _alignment(evidence, alignment, how)


def _alignment(evidence: Evidence, alignment: float, how: str) -> Claim:
    statement = "each latent is one principal direction" + how
    reference = f"{_DEFINITIONS} 7.1"
    if not evidence.method.aligns:
        why = f"{evidence.method.name!r} leaves the latents free up to a rotation; measured: "
        return Claim("alignment", statement, reference, alignment, advice=why + f"{alignment:.3g}")
    shared = _unidentifiable(evidence)
    if len(shared):
        why = f"components {_listed(shared)} share an eigenvalue, so their axes are not defined"
        return Claim("alignment", statement, reference, alignment, advice=why)
    return at_most("alignment", statement, reference, alignment, DISTANCE, _why_far(evidence))


def _why_far(evidence: Evidence) -> str:
    dead = _dead(evidence)
    if len(dead):
        cost = len(dead) / evidence.k
        return (
            f"Latents {_listed(dead)} must die under their penalties, which alone costs "
            f"{cost:.3g}. Lower l2, or use l2='auto' or method='rag'."
        )
    return "Train longer (max_iter), or use solver='exact'."


def _order(evidence: Evidence) -> Claim:
    statement = "latents come in descending order of variance"
    reference = "Bao et al. 2020, Theorem 3"
    if not evidence.method.orders:
        why = f"{evidence.method.name!r} promises no order"
        return does_not_apply("order", statement, reference, why)
    variances = _variances(evidence)
    rise = float(np.max(np.diff(variances), initial=0.0)) / max(variances[0], _TINY)
    return at_most("order", statement, reference, rise, 1e-6, "Train longer, or relabel latents.")


_TINY = float(np.finfo(float).tiny)


def _variances(evidence: Evidence) -> np.ndarray[Any, Any]:
    """Return the variance along each decoder column, penalties put in ascending order."""
    atoms = as_double(evidence.weights.atoms)
    xp = namespace(atoms)
    power = xp.sum(atoms * atoms, axis=-1)
    along = xp.sum(evidence.covariance.apply(atoms) * atoms, axis=-1)
    variances = to_numpy(along) / np.maximum(to_numpy(power), _TINY)
    if isinstance(evidence.method.objective, NonUniformL2):
        variances = variances[np.argsort(np.asarray(evidence.method.objective.penalties))]
    return np.asarray(variances)


def _stationarity(evidence: Evidence) -> Claim:
    method, spectrum = evidence.method, evidence.spectrum
    if method.needs_rows:
        method = method.expected()
    scale = method.scale(spectrum or _scale_only(evidence))
    distance = scalar(
        relative_direction(method, evidence.weights, evidence.covariance, max(scale, _TINY))
    )
    return at_most(
        "stationarity",
        "the weights are a fixed point of the rule",
        "Bao et al. 2020, Theorem 2",
        distance,
        max(10 * evidence.tolerance, 1e-9),
        "Train longer (max_iter) or with learning_rate='auto'.",
    )


def _scale_only(evidence: Evidence) -> Spectrum:
    bounds = residual_bounds(evidence.covariance, as_double(evidence.weights.atoms), n_iter=1)
    return Spectrum(bounds.values, evidence.weights.atoms.mT, float(evidence.covariance.trace))


def _gap(evidence: Evidence) -> Claim:
    statement = "the loss is its global minimum (excess over the total variance)"
    reference = "Bao et al. 2020, Theorem 3"
    objective, spectrum = evidence.method.objective, evidence.spectrum
    if spectrum is None:
        return does_not_apply("gap", statement, reference, "the spectrum was out of reach")
    minimum = objective.minimum(spectrum, evidence.k)
    if not math.isfinite(minimum):
        why = "no variance is left for the noise, so the likelihood is unbounded"
        return does_not_apply("gap", statement, reference, why)
    value = scalar(objective.value(evidence.weights, evidence.covariance))
    if isinstance(objective, LinearVAE):
        statement = "−ELBO is the negative log-likelihood of the optimum (excess per feature)"
        size = float(spectrum.n_features)
    else:
        size = max(spectrum.trace, _TINY)
    excess = max(0.0, (value - minimum) / size)
    return at_most("gap", statement, reference, excess, GAP, "Train longer, or solver='exact'.")


def _balance(evidence: Evidence) -> Claim:
    statement = "encoder and decoder are balanced, W₁W₁ᵀ = W₂ᵀW₂"
    reference = "Bao et al. 2020, Theorem 1"
    if evidence.method.name not in ("rag", "gha", "brockett", "uniform_l2", "nonuniform_l2"):
        why = "the optimum of this method leaves the scale of a latent free"
        return does_not_apply("balance", statement, reference, why)
    encoder, atoms = as_double(evidence.weights.encoder), as_double(evidence.weights.atoms)
    gram, code = atoms @ atoms.mT, encoder @ encoder.mT
    xp = namespace(gram)
    difference = scalar(xp.sqrt(xp.sum((code - gram) ** 2)))
    relative = difference / max(scalar(xp.sqrt(xp.sum(gram * gram))), _TINY)
    return at_most(
        "balance",
        statement,
        reference,
        relative,
        BALANCE,
        "Untied steps drift from balance by O(learning rate): tie the weights, or step less far.",
    )


def _alive(evidence: Evidence) -> Claim:
    statement = "no penalty exceeds its eigenvalue, λ_k < σ_k²"
    reference = "Bao et al. 2020, Theorem 2 (assumption)"
    objective = evidence.method.objective
    if not isinstance(objective, NonUniformL2):
        return does_not_apply("alive", statement, reference, "this method has no penalties")
    if evidence.spectrum is None:
        return does_not_apply("alive", statement, reference, "the spectrum was out of reach")
    dead = _dead(evidence)
    advice = (
        f"latents {_listed(dead)} must die: the best subspace distance of this objective is "
        f"{len(dead)}/{evidence.k} = {len(dead) / evidence.k:.3g}"
    )
    return at_most("alive", statement, reference, float(len(dead)), 0.0, advice)


def _dead(evidence: Evidence) -> np.ndarray[Any, Any]:
    objective, spectrum = evidence.method.objective, evidence.spectrum
    if spectrum is None or not isinstance(objective, NonUniformL2):
        return np.empty(0, dtype=int)
    values = to_numpy(spectrum.values)[: evidence.k]
    return dying_latents(values, np.asarray(objective.penalties))


def _unidentifiable(evidence: Evidence) -> np.ndarray[Any, Any]:
    if evidence.spectrum is None:
        return np.empty(0, dtype=int)
    return unidentifiable(to_numpy(evidence.spectrum.values), evidence.k)


def _eigengap(evidence: Evidence) -> Claim:
    statement = "neighbouring eigenvalues differ, so the components are identifiable"
    reference = "Bao et al. 2020, Section 2 (assumption)"
    if evidence.spectrum is None:
        return does_not_apply("eigengap", statement, reference, "the spectrum was out of reach")
    values = to_numpy(evidence.spectrum.values)
    gap = smallest_gap(values, evidence.k) / max(float(values[0]), _TINY)
    shared = _unidentifiable(evidence)
    why = f"components {_listed(shared)} are not identifiable: the data do not tell them apart"
    return Claim(
        "eigengap", statement, reference, gap, 1e-8, not len(shared), why if len(shared) else ""
    )


def _conditioning(evidence: Evidence) -> Claim:
    statement = "condition number of the Hessian at the optimum (zero eigenvalues left out)"
    reference = "Bao et al. 2020, Sections 4.3 and 5"
    curvatures = _curvatures(evidence)
    if curvatures is None:
        why = "no closed form for this method, or the spectrum was out of reach"
        return does_not_apply("conditioning", statement, reference, why)
    positive = curvatures[curvatures > 1e-12 * curvatures[-1]]
    ratio = float(positive[-1] / positive[0]) if positive.size else math.inf
    return reported("conditioning", statement, reference, ratio)


def _curvatures(evidence: Evidence) -> np.ndarray[Any, Any] | None:
    if evidence.spectrum is None:
        return None
    values = to_numpy(evidence.spectrum.values)
    return objective_curvatures(evidence.method, values)


def _epochs(evidence: Evidence) -> Claim:
    statement = f"predicted epochs of descent to an alignment distance of {DISTANCE:g}"
    reference = "Bao et al. 2020, Theorem 5 (with the rate g/2) and Section 4.3"
    if evidence.spectrum is None:
        return does_not_apply("epochs", statement, reference, "the spectrum was out of reach")
    values = to_numpy(evidence.spectrum.values)
    rate = alignment_rate(evidence.method, values, evidence.k)
    if rate is None or evidence.learning_rate is None:
        return does_not_apply("epochs", statement, reference, "no local rate is known")
    epochs = predicted_epochs(rate, evidence.learning_rate, evidence.momentum, DISTANCE)
    return reported("epochs", statement, reference, epochs)


def _listed(numbers: np.ndarray[Any, Any]) -> str:
    """Write 3, 4, 5, 9 as “3–5, 9”."""
    runs: list[list[int]] = []
    for number in map(int, numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


def weights_from_user(encoder: Array, decoder: Array, tied: bool) -> Any:
    """Return weights in our layout from an encoder (k, m) and a decoder (m, k)."""
    from lucidae.linear.weights import Weights

    return TiedWeights(encoder) if tied else Weights(encoder, decoder.mT)
