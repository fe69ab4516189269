"""Certificates of linear autoencoders: figures measured on weights, and the claims they support."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import Array, as_double, like, namespace, scalar, to_numpy
from lucidae.certificate import Certificate, Claim, at_most, does_not_apply, reported
from lucidae.linear.data import KEPT_FEATURES, Covariance, MomentSource, Source, source_of
from lucidae.linear.methods import Method, relative_direction
from lucidae.linear.objectives import LinearVAE, NonUniformL2
from lucidae.linear.options import Options
from lucidae.linear.spectrum import Spectrum
from lucidae.linear.theory import (
    alignment_rate,
    dying_latents,
    objective_curvatures,
    predicted_epochs,
    residual_bounds,
    smallest_gap,
    subspace_determined,
    unidentifiable,
)
from lucidae.linear.weights import TiedWeights, UntiedWeights, VariationalWeights
from lucidae.metrics import axis_alignment_distance, subspace_distance
from lucidae.moments import SecondMoment
from lucidae.validation import check_number, check_rows, check_weights

Vector = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class LinearFigures:
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

    def values(self) -> Vector:
        """Return the known eigenvalues on the host; none where they are out of reach."""
        return np.empty(0) if self.spectrum is None else to_numpy(self.spectrum.values)

    def dead(self) -> Vector:
        """Return the latents, counted from 1, that must die under their penalties."""
        objective = self.method.objective
        if self.spectrum is None or not isinstance(objective, NonUniformL2):
            return np.empty(0, dtype=int)
        return dying_latents(self.values()[: self.k], to_numpy(objective.penalties))

    def shared(self) -> Vector:
        """Return the components, counted from 1, that the data do not tell apart."""
        if self.spectrum is None:
            return np.empty(0, dtype=int)
        return unidentifiable(self.values(), self.k)

    def determined(self) -> bool:
        """Tell whether the data determine the subspace, as far as the spectrum is known."""
        return self.spectrum is None or subspace_determined(self.values(), self.k)

    def curvatures(self) -> Vector | None:
        """Return the eigenvalues of the Hessian at the optimum, where they are known."""
        return None if self.spectrum is None else objective_curvatures(self.method, self.values())

    def variances(self) -> Vector:
        """Return the variance along each decoder column, penalties put in ascending order."""
        atoms = as_double(self.weights.atoms)
        xp = namespace(atoms)
        power = to_numpy(xp.sum(atoms * atoms, axis=-1))
        along = to_numpy(xp.sum(self.covariance.apply(atoms) * atoms, axis=-1))
        variances = along / np.maximum(power, np.finfo(float).tiny)
        if isinstance(self.method.objective, NonUniformL2):
            variances = variances[np.argsort(to_numpy(self.method.objective.penalties))]
        return np.asarray(variances)

    def stationarity(self) -> float:
        """Return the size of the rule's direction, relative to its scale and to the weights."""
        method = self.method.expected() if self.method.needs_rows else self.method
        spectrum = self.spectrum or self._ritz_spectrum()
        scale = max(method.scale(spectrum), np.finfo(float).tiny)
        return scalar(relative_direction(method, self.weights, self.covariance, scale))

    def _ritz_spectrum(self) -> Spectrum:
        atoms = as_double(self.weights.atoms)
        bounds = residual_bounds(self.covariance, atoms, n_iter=1)
        return Spectrum(bounds.values, atoms.mT, float(self.covariance.trace))


DISTANCE = 1e-3
"""Largest subspace and alignment distance that counts as recovered."""

GAP = 1e-6
"""Largest excess of the loss over its minimum, relative to the total variance."""

BALANCE = 1e-3
"""Largest relative difference of W₁W₁ᵀ and W₂ᵀW₂."""

_TINY = float(np.finfo(float).tiny)
_DEFINITIONS = "Bao et al. 2020, Definition"


def linear_claims(evidence: LinearFigures) -> Iterator[Claim]:
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


def _distances(evidence: LinearFigures) -> Iterator[Claim]:
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


def _subspace(evidence: LinearFigures, subspace: float, how: str) -> Claim:
    statement = "the decoder spans the principal subspace" + how
    reference = f"{_DEFINITIONS} 7.2"
    if not evidence.determined():
        k = evidence.k
        why = f"eigenvalues {k} and {k + 1} are equal, so the subspace is not defined"
        return Claim("subspace", statement, reference, subspace, advice=why)
    return at_most("subspace", statement, reference, subspace, DISTANCE, _why_far(evidence))


def _alignment(evidence: LinearFigures, alignment: float, how: str) -> Claim:
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


def _why_far(evidence: LinearFigures) -> str:
    dead = evidence.dead()
    if len(dead):
        cost = len(dead) / evidence.k
        return (
            f"Latents {_listed(dead)} must die under their penalties, which alone costs "
            f"{cost:.3g}. Lower l2, or use l2='auto' or method='rag'."
        )
    return "Train longer (max_iter), or use solver='exact'."


def _order(evidence: LinearFigures) -> Claim:
    statement = "latents come in descending order of variance"
    reference = "Bao et al. 2020, Theorem 3"
    if not evidence.method.orders:
        why = f"{evidence.method.name!r} promises no order"
        return does_not_apply("order", statement, reference, why)
    variances = evidence.variances()
    rise = float(np.max(np.diff(variances), initial=0.0)) / max(variances[0], _TINY)
    return at_most("order", statement, reference, rise, 1e-6, "Train longer, or relabel latents.")


def _stationarity(evidence: LinearFigures) -> Claim:
    return at_most(
        "stationarity",
        "the weights are a fixed point of the rule",
        "Bao et al. 2020, Theorem 2",
        evidence.stationarity(),
        max(10 * evidence.tolerance, 1e-9),
        "Train longer (max_iter) or with learning_rate='auto'.",
    )


def _gap(evidence: LinearFigures) -> Claim:
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


def _balance(evidence: LinearFigures) -> Claim:
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


def _alive(evidence: LinearFigures) -> Claim:
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


def _eigengap(evidence: LinearFigures) -> Claim:
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


def _conditioning(evidence: LinearFigures) -> Claim:
    statement = "condition number of the Hessian at the optimum (zero eigenvalues left out)"
    reference = "Bao et al. 2020, Sections 4.3 and 5"
    curvatures = evidence.curvatures()
    if curvatures is None:
        why = "no closed form for this method, or the spectrum was out of reach"
        return does_not_apply("conditioning", statement, reference, why)
    positive = curvatures[curvatures > 1e-12 * curvatures[-1]]
    ratio = float(positive[-1] / positive[0]) if positive.size else math.inf
    return reported("conditioning", statement, reference, ratio)


def _epochs(evidence: LinearFigures) -> Claim:
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


def certify_pair(
    rows: Array,
    columns: Array,
    X: Any,
    options: Options,
    *,
    sample_weight: Any = None,
    noise_variance: float | None = None,
) -> Certificate:
    """Certify a checked encoder and decoder that were trained for given options."""
    if tuple(columns.shape) != tuple(rows.shape)[::-1]:
        raise ValueError(
            f"encoder has shape {tuple(rows.shape)} and decoder {tuple(columns.shape)}, expected "
            "(k, m) and (m, k)."
        )
    source = data_source(X, sample_weight)
    _check_width(rows, source)
    spectrum = source.spectrum(_wanted(rows))
    method = options.make(rows.shape[0], spectrum, options.random())
    weights = _weights(rows, columns, source.mean, method.tied)
    if method.name == "linear_vae":
        weights = _with_variances(weights, noise_variance)
    training = options.training
    rate = None if spectrum is None else training.rate(method.curvature(spectrum))
    evidence = LinearFigures(
        method,
        weights,
        source.covariance,
        spectrum,
        training.tol,
        rate,
        training.effective_momentum,
    )
    return Certificate(f"weights(method={method.name!r})", tuple(linear_claims(evidence)))


def data_source(X: Any, sample_weight: Any) -> Source:
    """Return where certificates take the second moment of rows (or of a moment) from."""
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
    return TiedWeights(rows) if tied and same else UntiedWeights(rows, atoms)


def _with_variances(weights: UntiedWeights, noise_variance: float | None) -> VariationalWeights:
    """Complete the weights of a linear VAE: D = s²/(diag(WᵀW) + s²)."""
    noise = check_number(noise_variance, "noise_variance", low=0.0, open_low=True)
    xp = namespace(weights.atoms)
    power = xp.sum(weights.atoms * weights.atoms, axis=-1)[:, None]
    log_noise = 0.0 * power[:1, :] + math.log(noise)
    log_variances = math.log(noise) - xp.log(power + noise)
    return VariationalWeights(weights.encoder, weights.atoms, log_variances, log_noise)
