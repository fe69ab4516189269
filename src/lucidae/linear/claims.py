"""The claims of a linear autoencoder's certificate, each tied to a theorem of Bao et al. 2020."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from lucidae._arrays import as_double, namespace, scalar
from lucidae.certificate import Claim, at_most, does_not_apply, reported
from lucidae.linear.evidence import Evidence
from lucidae.linear.objectives import LinearVAE, NonUniformL2
from lucidae.linear.theory import (
    alignment_rate,
    predicted_epochs,
    residual_bounds,
    smallest_gap,
)
from lucidae.metrics import axis_alignment_distance, subspace_distance

DISTANCE = 1e-3
"""Largest subspace and alignment distance that counts as recovered."""

GAP = 1e-6
"""Largest excess of the loss over its minimum, relative to the total variance."""

BALANCE = 1e-3
"""Largest relative difference of W₁W₁ᵀ and W₂ᵀW₂."""

_TINY = float(np.finfo(float).tiny)
_DEFINITIONS = "Bao et al. 2020, Definition"


def linear_claims(evidence: Evidence) -> Iterator[Claim]:
    """Yield every claim, most important first."""
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
    yield _subspace(evidence, subspace, how)
    yield _alignment(evidence, alignment, how)


def _subspace(evidence: Evidence, subspace: float, how: str) -> Claim:
    statement = "the decoder spans the principal subspace" + how
    reference = f"{_DEFINITIONS} 7.2"
    if not evidence.determined():
        k = evidence.k
        why = f"eigenvalues {k} and {k + 1} are equal, so the subspace is not defined"
        return Claim("subspace", statement, reference, subspace, advice=why)
    return at_most("subspace", statement, reference, subspace, DISTANCE, _why_far(evidence))


def _alignment(evidence: Evidence, alignment: float, how: str) -> Claim:
    statement = "each latent is one principal direction" + how
    reference = f"{_DEFINITIONS} 7.1"
    if not evidence.method.aligns:
        why = f"{evidence.method.name!r} leaves the latents free up to a rotation; measured: "
        return Claim("alignment", statement, reference, alignment, advice=why + f"{alignment:.3g}")
    shared = evidence.shared()
    if len(shared):
        why = f"components {_listed(shared)} share an eigenvalue, so their axes are not defined"
        return Claim("alignment", statement, reference, alignment, advice=why)
    return at_most("alignment", statement, reference, alignment, DISTANCE, _why_far(evidence))


def _why_far(evidence: Evidence) -> str:
    dead = evidence.dead()
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
    variances = evidence.variances()
    rise = float(np.max(np.diff(variances), initial=0.0)) / max(variances[0], _TINY)
    return at_most("order", statement, reference, rise, 1e-6, "Train longer, or relabel latents.")


def _stationarity(evidence: Evidence) -> Claim:
    return at_most(
        "stationarity",
        "the weights are a fixed point of the rule",
        "Bao et al. 2020, Theorem 2",
        evidence.stationarity(),
        max(10 * evidence.tolerance, 1e-9),
        "Train longer (max_iter) or with learning_rate='auto'.",
    )


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
    dead = evidence.dead()
    advice = (
        f"latents {_listed(dead)} must die: the best subspace distance of this objective is "
        f"{len(dead)}/{evidence.k} = {len(dead) / evidence.k:.3g}"
    )
    return at_most("alive", statement, reference, float(len(dead)), 0.0, advice)


def _eigengap(evidence: Evidence) -> Claim:
    statement = "neighbouring eigenvalues differ, so the components are identifiable"
    reference = "Bao et al. 2020, Section 2 (assumption)"
    if evidence.spectrum is None:
        return does_not_apply("eigengap", statement, reference, "the spectrum was out of reach")
    values = evidence.values()
    gap = smallest_gap(values, evidence.k) / max(float(values[0]), _TINY)
    shared = evidence.shared()
    why = f"components {_listed(shared)} are not identifiable: the data do not tell them apart"
    return Claim(
        "eigengap", statement, reference, gap, 1e-8, not len(shared), why if len(shared) else ""
    )


def _conditioning(evidence: Evidence) -> Claim:
    statement = "condition number of the Hessian at the optimum (zero eigenvalues left out)"
    reference = "Bao et al. 2020, Sections 4.3 and 5"
    curvatures = evidence.curvatures()
    if curvatures is None:
        why = "no closed form for this method, or the spectrum was out of reach"
        return does_not_apply("conditioning", statement, reference, why)
    positive = curvatures[curvatures > 1e-12 * curvatures[-1]]
    ratio = float(positive[-1] / positive[0]) if positive.size else math.inf
    return reported("conditioning", statement, reference, ratio)


def _epochs(evidence: Evidence) -> Claim:
    statement = f"predicted epochs of descent to an alignment distance of {DISTANCE:g}"
    reference = "Bao et al. 2020, Theorem 5 (with the rate g/2) and Section 4.3"
    if evidence.spectrum is None:
        return does_not_apply("epochs", statement, reference, "the spectrum was out of reach")
    values = evidence.values()
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
