"""Certificates of linear autoencoders: the claims that the verifier's figures support."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lucidae.arrays import Array, as_double, like, namespace
from lucidae.certificate import (
    Certificate,
    Claim,
    at_least,
    at_most,
    certifies,
    check_settings,
    does_not_apply,
    reported,
    undecided,
)
from lucidae.linear.data import MomentSource, source_of
from lucidae.linear.methods import Options
from lucidae.linear.objectives import (
    ExpectedNestedDropout,
    LinearVAE,
    NonUniformL2,
    Reconstruction,
)
from lucidae.linear.probe import EPS, Estimate
from lucidae.linear.verified_spectrum import DENSE_FEATURES, data_of
from lucidae.linear.verifier import LinearFigures, measure
from lucidae.linear.weights import TiedWeights, UntiedWeights
from lucidae.moments import SecondMoment
from lucidae.sampling import TURNED
from lucidae.validation import check_rows, check_weights

__all__ = ["LinearFigures", "certify_weights", "claims", "measure"]

Vector = np.ndarray[Any, Any]

DISTANCE = 1e-3
"""Largest subspace and alignment distance that counts as recovered: a mean angle of 1.8°.

With k > 500 latents it is 0.5/k, because one wrong latent among k gives a distance of 1/k.
"""

GAP = 1e-6
"""Largest excess of the loss over its minimum, relative to the total variance.

Stochastic fits reach it, and the closed forms are at 1e-14.
"""

BALANCE = 1e-3
"""Largest relative difference of W₁W₁ᵀ and W₂ᵀW₂: as accurate as the distances."""

RISE = 1e-6
"""Largest increase of the variance from one latent to the next, relative to the largest variance.

It is far above rounding and below what a wrong order of distinct components gives.
"""

STATIONARITY = (1e-9, 1e-3)
"""Range of the bound on the relative direction, which is ten times `tol` inside of it.

A tolerance of 0 cannot be reached in float64, and a large one must not certify anything.
"""

MOMENT = 1e-6
"""Largest difference of the second moment to its rows, in standard deviations: as for `GAP`."""

ATTRIBUTES = 1e-9
"""Largest relative difference of fitted attributes: they are sums of at most m products."""


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
        _sampling_claim(figures),
        _conditioning_claim(figures),
        _epochs_claim(figures),
        _attributes_claim(figures),
        _moment_claim(figures),
    )


_NO_SPECTRUM = "Not all eigenvalues were computed, because there are more than 1024 features."
_DEFINITIONS = "Bao et al. 2020, Definition"
_KRYLOV = "Kuczyński & Woźniakowski 1992, failure probability 6e-9"
_NO_NOISE = (
    "No variance remains for the noise of the model, so the likelihood is not bounded and has no "
    "maximum: choose n_components below the rank of the data."
)


def _judged(claim: Claim, figures: LinearFigures) -> Claim:
    """Add to a claim about a figure that was only bounded how it was, or was not, decided."""
    if figures.leading.dense:
        return claim
    statement = claim.statement + " (bounds from residuals)"
    reference = f"{claim.reference}; Davis & Kahan 1970; {_KRYLOV}"
    advice = claim.advice
    if claim.holds is None and claim.value is not None:
        advice = (
            f"Not decided: the figure lies between {max(claim.value - claim.error, 0.0):.3g} and "
            f"{claim.value + claim.error:.3g}, because the bound on the eigenvalue outside of the "
            "subspace is not below the smallest one inside."
        )
    return replace(claim, statement=statement, reference=reference, advice=advice)


def _allowed(k: int) -> float:
    return min(DISTANCE, 0.5 / k)


def _subspace_claim(figures: LinearFigures) -> Claim:
    statement = "the decoder spans the principal subspace"
    reference, (value, error) = f"{_DEFINITIONS} 7.2", figures.leading.subspace
    k = figures.k
    if figures.leading.dense and not figures.leading.determined(k):
        bound = figures.leading.resolution()
        why = (
            f"Eigenvalues {k} and {k + 1} differ by less than {bound:.1g}, within which rounding "
            "errors decide: the principal subspace of these data is not unique."
        )
        if figures.leading.values[k - 1] <= bound:
            why = (
                f"Eigenvalue {k} is below {bound:.1g}, where the second moment in float64 has only "
                "rounding errors: these data do not determine the last directions of the subspace."
            )
        return Claim("subspace", statement, reference, value, advice=why, error=error)
    advice = _distance_advice(figures)
    claim = at_most("subspace", statement, reference, value, _allowed(k), advice, error=error)
    return _judged(claim, figures)


def _alignment_claim(figures: LinearFigures) -> Claim:
    statement, reference = "each latent is one principal direction", f"{_DEFINITIONS} 7.1"
    leading, k = figures.leading, figures.k
    if not figures.method.expected().aligns:
        distance = float(np.mean(leading.misalignments))
        why = (
            f"Method {figures.method.name!r} determines the latents only up to a rotation; the "
            f"measured distance is {distance:.3g}."
        )
        return Claim("alignment", statement, reference, distance, advice=why)
    # Where only bounds are known, a component that they do not separate may be a wrong latent.
    shared = leading.unidentifiable(k) if leading.dense else np.empty(0, dtype=int)
    identifiable = np.setdiff1d(np.arange(k), shared - 1)
    if not len(identifiable):
        why = (
            "Each of the leading eigenvalues equals a neighbour up to rounding, so these data "
            "determine no principal direction."
        )
        return does_not_apply("alignment", statement, reference, why)
    value, error = _mean_misalignment(figures, identifiable)
    advice = _distance_advice(figures)
    bound = _allowed(len(identifiable))
    claim = at_most("alignment", statement, reference, value, bound, advice, error=error)
    claim = _judged(claim, figures)
    if not len(shared):
        return claim
    limit = f"{_components(shared)} not determined by these data and left out."
    return replace(claim, advice=f"{claim.advice} {limit}".strip())


def _mean_misalignment(figures: LinearFigures, identifiable: Vector) -> Estimate:
    """Return the alignment distance over components with distinct eigenvalues, and its error."""
    leading = figures.leading
    found, angles = leading.misalignments[identifiable], leading.angles[identifiable]
    mean = float(np.mean(found))
    if not leading.dense:
        return Estimate.between(min(leading.unaligned, mean), mean)
    # The sine of an angle that is known to ±e is known to ±e, its square to 2se + e².
    return Estimate(mean, float(np.mean(2 * np.sqrt(found) * angles + angles**2)))


def _distance_advice(figures: LinearFigures) -> str:
    zero = figures.zero_latents
    if not len(zero):
        return _training_advice(figures)
    return (
        f"{_zero_sentence(figures)}; this alone gives a subspace distance of "
        f"{len(zero) / figures.k:.3g}. Lower l2, or use l2='auto' or method='rag'."
    )


def _training_advice(figures: LinearFigures) -> str:
    """Return what to do about weights that are not optimal."""
    if figures.from_elsewhere:
        return (
            "These weights are not optimal for these data: check that rows, method and penalties "
            "are those of their training, and that the weights belong to centred rows."
        )
    return (
        "Train longer (max_iter), or use solver='exact'. On other data than those of the fit, this "
        "is expected."
    )


def _zero_sentence(figures: LinearFigures) -> str:
    zero = _listed(figures.zero_latents)
    if len(figures.zero_latents) == 1:
        return f"Penalty {zero} is at least its eigenvalue, so latent {zero} is zero at the optimum"
    many = f"Penalties {zero} are at least their eigenvalues, so latents {zero} are zero"
    return many + " at the optimum"


def _order_claim(figures: LinearFigures) -> Claim:
    statement = "latents are in descending order of variance"
    reference = "Bao et al. 2020, Theorems 3 and 5"
    if figures.rise is None:
        why = f"Method {figures.method.name!r} does not order its latents."
        return does_not_apply("order", statement, reference, why)
    advice = "Sort the latents by their variance."
    if not figures.from_elsewhere:
        advice = "Train longer (max_iter), or sort the latents by their variance."
    value, error = figures.rise
    return at_most("order", statement, reference, value, RISE, advice, error=error)


def _stationarity_claim(figures: LinearFigures) -> Claim:
    name, statement = "stationarity", "the weights are a fixed point of the update rule"
    reference = "definition of a stationary point"
    if figures.stationarity is None:
        return undecided(name, statement, reference, _NO_NOISE)
    value, error = figures.stationarity
    return at_most(
        name,
        statement,
        reference,
        value,
        float(np.clip(10 * figures.tolerance, *STATIONARITY)),
        _training_advice(figures),
        error=error,
    )


_MINIMA = {
    Reconstruction: "Baldi & Hornik 1989",
    NonUniformL2: "Bao et al. 2020, Theorem 3",
    ExpectedNestedDropout: "Rippel et al. 2014; Bao et al. 2020, Section 5",
    LinearVAE: "Tipping & Bishop 1999; Bao et al. 2020, Appendix F",
}
"""Where the global minimum of each objective is derived."""


def _gap_claim(figures: LinearFigures) -> Claim:
    objective = figures.method.objective
    statement = objective.gap_statement
    reference = _MINIMA.get(type(objective), "as declared by the objective")
    if figures.gap is None:
        why = _NO_NOISE
        if figures.declared:
            why = "The minimum of this objective is not known, so the gap cannot be computed."
        return undecided("gap", statement, reference, why)
    value, error = figures.gap
    if value < -GAP:
        advice = (
            "The loss is below the minimum that theory gives, which is impossible: the weights do "
            "not belong to these data."
        )
        return at_least("gap", statement, reference, value, -GAP, advice, error=error)
    advice = _training_advice(figures)
    return at_most("gap", statement, reference, value, GAP, advice, error=error)


def _balance_claim(figures: LinearFigures) -> Claim:
    statement = "encoder W₁ and decoder W₂ are balanced, W₁W₁ᵀ = W₂ᵀW₂"
    reference = "Bao et al. 2020, Theorem 1"
    if figures.balance is None:
        why = "The optimum of this method does not determine the scale of a latent."
        return does_not_apply("balance", statement, reference, why)
    advice = (
        "Steps on untied weights change the balance by O(learning rate): tie the weights, or "
        "lower learning_rate."
    )
    value, error = figures.balance
    return at_most("balance", statement, reference, value, BALANCE, advice, error=error)


def _nonzero_claim(figures: LinearFigures) -> Claim:
    name, statement = "nonzero_latents", "every penalty is below the eigenvalue of its component"
    reference = "Bao et al. 2020, Theorem 2 (assumption)"
    if not figures.method.objective.has_penalties:
        return does_not_apply(name, statement, reference, "This method has no penalties.")
    zero, k = len(figures.zero_latents), figures.k
    if not zero and len(figures.uncertain_latents):
        why = (
            f"Penalties {_listed(figures.uncertain_latents)} differ from their eigenvalues by less "
            f"than the rounding error of these, {figures.leading.error:.1g}. The assumption is one "
            "about data and penalties; the other claims judge the fit without it."
        )
        return does_not_apply(name, statement, reference, why)
    advice = ""
    if zero:
        advice = (
            f"{_zero_sentence(figures)}: the smallest possible subspace distance is "
            f"{zero}/{k} = {zero / k:.3g}."
        )
    return at_most(name, statement, reference, float(zero), 0.0, advice)


def _eigengap_claim(figures: LinearFigures) -> Claim:
    statement = "neighbouring eigenvalues differ, so these data determine each component"
    reference = "Bao et al. 2020, Section 2 (assumption)"
    if not figures.method.expected().aligns:
        why = f"Method {figures.method.name!r} does not promise axes."
        return does_not_apply("eigengap", statement, reference, why)
    leading, k = figures.leading, figures.k
    unit = max(float(leading.values[0]), np.finfo(float).tiny)
    gap, shared = float(np.min(leading.gaps(k))) / unit, leading.unidentifiable(k)
    bound = leading.resolution() / unit
    why = (
        f"{_components(shared)} not determined by these data: the eigenvalue differs from the next "
        "one, or from zero, by no more than rounding errors."
    )
    if not leading.dense and len(shared):
        why = (
            "Not decided: the bounds on the eigenvalues do not separate those of components "
            f"{_listed(shared)}."
        )
        known = gap if math.isfinite(gap) else None
        return undecided("eigengap", statement, reference, why, known, bound)
    return at_least("eigengap", statement, reference, gap, bound, why)


def _sampling_claim(figures: LinearFigures) -> Claim:
    """Report how many components another sample of as many rows would show again."""
    axes = figures.method.expected().aligns
    statement = "components that are separated from sampling noise (independent Gaussian rows)"
    if not axes:
        statement = "leading eigenvalues above sampling noise (independent Gaussian rows)"
    reference = "Johnstone 2001; Anderson 1963"
    if isinstance(figures.sampling, str):
        return does_not_apply("sampling", statement, reference, figures.sampling)
    separated, k = figures.sampling.separated, figures.k
    count, turned = int(np.sum(separated)), figures.sampling.turned
    if turned is None:
        advice = _component_sentence(count, k, 1 + np.flatnonzero(~separated))
    else:
        advice = _subspace_sentence(count, k, turned)
    return reported("sampling", statement, reference, float(count), advice)


_FEWER = "Choose fewer components, or collect more rows, before you interpret them."


def _component_sentence(count: int, k: int, others: Vector) -> str:
    """Say which components are separated; `others` are not, counted from 1."""
    if count == k:
        which = {1: "The component is", 2: "Both components are"}.get(k, f"All {k} components are")
        return f"{which} separated from sampling noise."
    are, them = ("is" if count == 1 else "are"), ("it" if len(others) == 1 else "them")
    return (
        f"{count} of {k} components {are} separated from sampling noise; "
        f"{_components(others).replace('Component', 'component')} not: another sample of as many "
        f"rows could give {them} another direction. {_FEWER}"
    )


def _subspace_sentence(count: int, k: int, turned: float) -> str:
    if count == k and turned < TURNED:
        return (
            f"The subspace of the {k} components is separated from sampling noise: the mean "
            f"squared sine of its angles to that of the population is about {turned:.2g}."
        )
    reason = f"{count} of {k} eigenvalues exceed the noise"
    if count == k:
        reason = f"eigenvalues {k} and {k + 1} are too close for the number of rows"
    return (
        f"The subspace is not separated from sampling noise ({reason}): another sample of as many "
        f"rows could give another one. {_FEWER}"
    )


def _conditioning_claim(figures: LinearFigures) -> Claim:
    statement = "condition number of the Hessian at the optimum (zero eigenvalues left out)"
    reference = "Bao et al. 2020, Sections 4.3 and 5"
    if figures.conditioning is None:
        why = "No closed form is known for this method, or no latent is above zero at its optimum."
        why = why if figures.leading.dense else _NO_SPECTRUM
        return does_not_apply("conditioning", statement, reference, why)
    return reported("conditioning", statement, reference, figures.conditioning)


def _epochs_claim(figures: LinearFigures) -> Claim:
    statement = "predicted epochs of descent to an alignment distance of 0.001"
    reference = "Bao et al. 2020, Theorem 5 (half of its rate) and Section 4.3"
    if figures.epochs is None:
        why = "No local rate is known for this method, or it is zero because eigenvalues are equal."
        why = why if figures.leading.dense else _NO_SPECTRUM
        return does_not_apply("epochs", statement, reference, why)
    return reported("epochs", statement, reference, figures.epochs)


_ATTRIBUTES = "components, variances and mean are those of the weights and the data"
_DEFINED = "definition of the attributes"


def _attributes_claim(figures: LinearFigures) -> Claim:
    statement, reference = _ATTRIBUTES, _DEFINED
    if figures.attributes is None:
        why = "Weights without an estimator have no such attributes."
        return does_not_apply("attributes", statement, reference, why)
    advice = "The estimator was changed after its fit, or these are not the data of the fit."
    error = 8 * figures.n_features * EPS
    value = figures.attributes
    return at_most("attributes", statement, reference, value, ATTRIBUTES, advice, error=error)


def _moment_claim(figures: LinearFigures) -> Claim:
    statement = "the second moment is that of the rows, along random directions"
    reference = "definition of the covariance"
    if figures.moment is None:
        why = (
            "No second moment was formed, its rows were not given, or they are more than 2 million "
            "numbers."
        )
        return does_not_apply("moment", statement, reference, why)
    value, error = figures.moment
    advice = "The moment was changed after its rows were added."
    return at_most("moment", statement, reference, value, MOMENT, advice, error=error)


def _components(numbers: Vector) -> str:
    """Return the subject and verb of a sentence about components, counted from 1."""
    return (
        f"Component {_listed(numbers)} is"
        if len(numbers) == 1
        else (f"Components {_listed(numbers)} are")
    )


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
    allowed = [name for name in _SETTINGS if name != "n_components"]
    check_settings(settings, ["sample_weight", "noise_variance", *allowed], "a pair of weights")
    rows, columns = check_rows(encoder, name="encoder"), check_rows(decoder, name="decoder")
    options = Options.of(rows.shape[0], **settings)
    if tuple(columns.shape) != tuple(rows.shape)[::-1]:
        raise ValueError(
            f"encoder has shape {tuple(rows.shape)} and decoder {tuple(columns.shape)}, expected "
            "(k, m) and (m, k)."
        )
    X, row_weights = checked_data(X, sample_weight)
    data = data_of(X, row_weights)
    if rows.shape[1] != data.n_features:
        raise ValueError(
            f"encoder has {rows.shape[1]} columns, but X has {data.n_features} features: expected "
            "as many."
        )
    spectrum = None
    if options.needs_spectrum:
        source = MomentSource(X) if isinstance(X, SecondMoment) else source_of(X, row_weights)
        k, m = rows.shape
        spectrum = source.spectrum(None if m <= DENSE_FEATURES else min(k + 1, m))
    method = options.make(rows.shape[0], spectrum, options.rng())
    weights = method.objective.completed(
        _weights(rows, columns, data.mean, method.tied), noise_variance
    )
    return certificate(
        f"weights(method={method.name!r})", measure(method, weights, data, options.training)
    )


_SETTINGS = tuple(inspect.signature(Options.of).parameters)


def certificate(title: str, figures: LinearFigures) -> Certificate:
    """Return the certificate that figures support, with the numbers behind it."""
    return Certificate(title, claims(figures), figures.evidence)


def with_changes(found: Certificate, changed: Mapping[str, float]) -> Certificate:
    """Return a certificate whose claim `attributes` fails if a user changed fitted attributes.

    Parameters
    ----------
    found : Certificate
        The certificate of the fitted state.
    changed : mapping
        The changed attributes with their relative difference, see `changed_attributes`.
    """
    if not changed:
        return found
    names = ", ".join(changed)
    advice = (
        f"{names} {'was' if len(changed) == 1 else 'were'} changed after the fit, but `transform` "
        "and `inverse_transform` use the fitted weights. Fit again, or certify other weights as "
        "certify((encoder, decoder), X, family='linear')."
    )
    failed = at_most("attributes", _ATTRIBUTES, _DEFINED, max(changed.values()), ATTRIBUTES, advice)
    others = tuple(claim for claim in found if claim.name != "attributes")
    return Certificate(found.title, (*others, failed), found.evidence)


def checked_data(X: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Return checked rows and weights, or the given moment."""
    if isinstance(X, SecondMoment):
        return X, None
    X = check_rows(X)
    return X, check_weights(sample_weight, X)


def _weights(encoder: Array, decoder: Array, ref: Array, tied: bool) -> Any:
    rows, atoms = like(as_double(encoder), ref), like(as_double(decoder), ref).mT
    same = bool(namespace(rows).all(rows == atoms))
    return TiedWeights(rows) if tied and same else UntiedWeights(rows, atoms)
