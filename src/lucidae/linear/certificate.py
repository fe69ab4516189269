"""Claims of the certificate of a linear autoencoder, from the values that the verifier measured."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lucidae.arrays import Array, as_double, like, namespace
from lucidae.certificates.certify import certifies, check_settings
from lucidae.certificates.claims import (
    Certificate,
    Claim,
    at_least,
    at_most,
    does_not_apply,
    reported,
    undecided,
)
from lucidae.counting import REFERENCES
from lucidae.data import aligned_blocks, in_memory, read_moment
from lucidae.data.kinds import AlignedBlocks
from lucidae.data.passes import Passes
from lucidae.linear.batches import check_repeatable, loaded_rows
from lucidae.linear.methods import Options
from lucidae.linear.probe import EPS, Estimate
from lucidae.linear.references import SelfJudged, reference_of
from lucidae.linear.verified_blocks import ReadBlocks, data_of_any
from lucidae.linear.verified_data import DENSE_FEATURES
from lucidae.linear.verifier import LinearFigures, measure
from lucidae.linear.weights import TiedWeights, UntiedWeights
from lucidae.moments import SecondMoment
from lucidae.rows.routes import EXACT_FEATURES
from lucidae.rows.sources import MomentSource, source_of
from lucidae.rows.sums import BlocksSource
from lucidae.sampling import TURNED
from lucidae.validation import check_rows, check_weights

__all__ = ["LinearFigures", "certify_weights", "claims", "measure"]

Vector = np.ndarray[Any, Any]

DISTANCE = 1e-3
"""Threshold of the claims `subspace` and `alignment`: a mean squared sine, of an angle of 1.8°.

For k > 500 latents the threshold is 0.5/k instead, because one wrong latent among k gives 1/k."""

GAP = 1e-6
"""Threshold of the claim `gap`: excess of the loss over its minimum, divided by the total variance.

For a linear VAE the excess is divided by the number of features. Stochastic solvers reach 1e-6."""

BALANCE = 1e-3
"""Threshold of the claim `balance`: relative difference of W₁W₁ᵀ (encoder) and W₂ᵀW₂ (decoder)."""

RISE = 1e-6
"""Threshold of the claim `order`: increase of the variance from one latent to the next.

The increase is divided by the largest variance. The threshold is far above rounding errors."""

STATIONARITY = (1e-9, 1e-3)
"""Smallest and largest threshold of the claim `stationarity`.

Within this range the threshold is ten times the estimator's `tol`. Float64 cannot reach a tolerance
of 0, and a large tolerance must not make every fit pass."""

MOMENT = 1e-6
"""Threshold of the claim `moment`: difference of the stored covariance to that of the rows.

The difference is measured along random directions, in standard deviations of the rows."""

ATTRIBUTES = 1e-9
"""Threshold of the claim `attributes`: relative difference to what weights and data imply."""


def claims(figures: LinearFigures) -> tuple[Claim, ...]:
    """Return all claims about a linear autoencoder, given its measured values.

    The most important claim comes first.
    """
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
        *_count_claims(figures),
        _conditioning_claim(figures),
        _epochs_claim(figures),
        _attributes_claim(figures),
        _moment_claim(figures),
    )


_NO_SPECTRUM = "Not all eigenvalues were computed, because there are more than 1024 features."
_DEFINITIONS = "Bao et al. 2020, Definition"
_KRYLOV = "Boyd & Balakrishnan 1990, failure probability 1e-9"
_GRAM = "Weyl 1912, Gram matrix of the rows tested with failure probability 1e-9"
_ROWS = "Wedin 1972; Cholesky factorisation outside of the decoder's span"
_NO_NOISE = (
    "The components explain all variance of the data, so none remains for the noise of the linear "
    "VAE: its likelihood is not bounded and has no maximum. Choose n_components below the rank of "
    "the data."
)


def _cited(figures: LinearFigures, theorem: str) -> str:
    """Return `theorem`, or, for a method without reference formulas, that it judges itself."""
    judge = reference_of(figures.method.expected())
    return theorem if judge.independent else SelfJudged.citation


def _judged(claim: Claim, figures: LinearFigures) -> Claim:
    """Return the claim, with a note if its value is known only up to bounds.

    Only bounds are known if not all eigenvalues of the second moment of the data were computed. If
    all were computed, the claim is not changed.
    """
    if figures.leading.dense:
        return claim
    statement = claim.statement + " (not computed exactly: bounds from residuals)"
    source = f"Davis & Kahan 1970; {_GRAM if figures.leading.by_gram else _KRYLOV}"
    reference = f"{claim.reference}; {_ROWS if figures.leading.by_rows else source}"
    advice = claim.advice
    if claim.holds is None and claim.value is not None:
        advice = (
            f"Not decided: the value lies between {max(claim.value - claim.error, 0.0):.3g} and "
            f"{claim.value + claim.error:.3g}. With more than 1024 features only bounds are "
            "computed, and the bound on the eigenvalues outside of the decoder's span is not below "
            "the eigenvalues inside."
        )
    return replace(claim, statement=statement, reference=reference, advice=advice)


def _allowed(k: int) -> float:
    return min(DISTANCE, 0.5 / k)


def _subspace_claim(figures: LinearFigures) -> Claim:
    statement = "the decoder spans the principal subspace (mean squared sine of the angles)"
    reference, (value, error) = f"{_DEFINITIONS} 7.2", figures.leading.subspace
    k = figures.k
    if figures.leading.dense and not figures.leading.determined(k):
        bound = figures.leading.resolution(k)
        why = (
            f"Eigenvalues {k} and {k + 1} of the covariance differ by less than {bound:.1g}, which "
            "rounding errors can change: the principal subspace of these data is not unique."
        )
        if figures.leading.values[k - 1] <= bound:
            why = (
                f"Eigenvalue {k} of the covariance is below {bound:.1g}, the size of its rounding "
                "errors: these data do not determine the last directions of the subspace."
            )
        if figures.leading.hidden:
            return undecided("subspace", statement, reference, _hidden_note(figures), value)
        why += _single_note(figures)
        return Claim("subspace", statement, reference, value, advice=why, error=error)
    advice = _distance_advice(figures)
    claim = at_most("subspace", statement, reference, value, _allowed(k), advice, error=error)
    return _judged(claim, figures)


def _alignment_claim(figures: LinearFigures) -> Claim:
    statement = "each principal axis is parallel to a decoder column (mean squared sine)"
    reference = f"{_DEFINITIONS} 7.1"
    leading, k = figures.leading, figures.k
    if not figures.method.expected().aligns:
        distance = float(np.mean(leading.misalignments))
        why = (
            f"Method {figures.method.name!r} determines the latents only up to a rotation, so the "
            "mean squared sine is not judged."
        )
        return Claim("alignment", statement, reference, distance, advice=why)
    # Where only bounds are known, a component that they do not separate may be a wrong latent.
    shared = leading.unidentifiable(k) if leading.dense else np.empty(0, dtype=int)
    identifiable = np.setdiff1d(np.arange(k), shared - 1)
    if not len(identifiable):
        why = (
            "Each of the leading eigenvalues equals the one before or after it up to rounding, so "
            "these data determine no principal axis."
        )
        if leading.hidden:
            return undecided("alignment", statement, reference, _hidden_note(figures))
        if leading.uncertainty:
            return undecided("alignment", statement, reference, why + _single_note(figures))
        return does_not_apply("alignment", statement, reference, why)
    value, error = _mean_misalignment(figures, identifiable)
    advice = _distance_advice(figures)
    bound = _allowed(len(identifiable))
    claim = at_most("alignment", statement, reference, value, bound, advice, error=error)
    claim = _judged(claim, figures)
    if not len(shared):
        return claim
    limit = f"{_components(shared)} not determined by these data and left out of the mean."
    limit = _hidden_note(figures) if leading.hidden else limit + _single_note(figures)
    # The rows may determine what their products do not.
    if claim.holds and (leading.hidden or leading.uncertainty):
        return undecided("alignment", statement, reference, limit, value, bound)
    return replace(claim, advice=f"{claim.advice} {limit}".strip())


def _hidden_note(figures: LinearFigures) -> str:
    """Return advice for claims about components that only the rows can determine."""
    shared = figures.leading.unidentifiable(figures.k)
    return (
        f"The digits of component{'s' * (len(shared) > 1)} {_listed(shared)}, unless the variance "
        "is zero, were lost in the second moment of rows that cannot be read again, beside much "
        "larger variances: give the rows as an array, a file or a function that returns the "
        "batches again."
    )


def _single_note(figures: LinearFigures) -> str:
    """Return advice for claims that products in single precision leave undecided.

    The text is empty if all products were computed in double precision.
    """
    if not figures.leading.uncertainty:
        return ""
    return (
        " The products of these float32 rows were computed in single precision, with an error of "
        f"{figures.leading.uncertainty:.1g}: give X as float64 to fit or to lucidae.certify."
    )


def _mean_misalignment(figures: LinearFigures, identifiable: Vector) -> Estimate:
    """Return the mean squared sine between principal axes and their nearest decoder columns."""
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
        f"{_zero_sentence(figures)}; this alone gives a mean squared sine of "
        f"{len(zero) / figures.k:.3g}. Lower l2, or use l2='auto' or method='rag'."
    )


def _training_advice(figures: LinearFigures) -> str:
    """Return the advice for weights that are not optimal: to train longer, or to check the data."""
    if figures.from_elsewhere:
        return (
            "These weights are not optimal for these data: check that rows, method and penalties "
            "are those of their training, and that the weights were trained on centred rows."
        )
    return (
        f"{_more_training(figures)} If X is not the data that was passed to fit, this result is "
        "expected."
    )


def _more_training(figures: LinearFigures) -> str:
    """Return the advice on how to improve a fit, which depends on why the training stopped.

    More steps help only if the training did not stop at the tolerance `tol`.
    """
    exact = ", or use solver='exact'" if figures.method.objective.has_minimizer else ""
    met = figures.stationarity is not None and figures.stationarity[0] <= figures.tolerance
    if not met:
        return f"Train longer (increase max_iter){exact}."
    return (
        f"The stopping rule is met (tol={figures.tolerance:g}), but the directions of large "
        "variance dominate it: standardise the columns of X, lower tol and raise max_iter"
        f"{exact}."
    )


def _zero_sentence(figures: LinearFigures) -> str:
    zero = _listed(figures.zero_latents)
    if len(figures.zero_latents) == 1:
        one = f"Penalty {zero} is not below the eigenvalue of its component, so latent {zero}"
        return one + " is zero at the optimum"
    many = f"Penalties {zero} are not below the eigenvalues of their components, so latents {zero}"
    return many + " are zero at the optimum"


def _order_claim(figures: LinearFigures) -> Claim:
    statement = "the latents are in descending order of variance (largest relative increase)"
    reference = _cited(figures, "Bao et al. 2020, Theorems 3 and 5")
    if figures.rise is None:
        why = f"Method {figures.method.name!r} does not order its latents."
        return does_not_apply("order", statement, reference, why)
    advice = "Sort the latents by their variance, largest first."
    if not figures.from_elsewhere:
        advice = f"{_more_training(figures)} Or sort the latents by their variance."
    value, error = figures.rise
    reference = reference_of(figures.method.expected()).citation
    return at_most("order", statement, reference, value, RISE, advice, error=error)


def _stationarity_claim(figures: LinearFigures) -> Claim:
    name = "stationarity"
    statement = "the weights are a fixed point of the update rule (relative norm of the update)"
    reference = _cited(figures, "definition of a stationary point")
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


def _gap_claim(figures: LinearFigures) -> Claim:
    judge = reference_of(figures.method.objective)
    statement, reference = figures.method.objective.gap_statement, judge.citation
    if figures.gap is None:
        why = _NO_NOISE
        if not judge.independent:
            why = "The global minimum of this objective is not known: the gap cannot be computed."
        return undecided("gap", statement, reference, why)
    value, error = figures.gap
    if value < -GAP:
        advice = (
            "The loss is below the global minimum that theory gives for these data, which is "
            "impossible: the weights do not belong to these data."
        )
        return at_least("gap", statement, reference, value, -GAP, advice, error=error)
    advice = _training_advice(figures)
    return at_most("gap", statement, reference, value, GAP, advice, error=error)


def _balance_claim(figures: LinearFigures) -> Claim:
    statement = "encoder W₁ and decoder W₂ are balanced: W₁W₁ᵀ = W₂ᵀW₂ (relative difference)"
    reference = _cited(figures, "Bao et al. 2020, Theorem 1")
    if figures.balance is None:
        why = "At the optimum of this method the scale of a latent is not determined."
        return does_not_apply("balance", statement, reference, why)
    advice = (
        "Gradient steps on untied weights disturb the balance in proportion to the learning rate: "
        "set tied=True, or lower learning_rate."
    )
    value, error = figures.balance
    return at_most("balance", statement, reference, value, BALANCE, advice, error=error)


def _nonzero_claim(figures: LinearFigures) -> Claim:
    name = "nonzero_latents"
    statement = "every penalty is below the eigenvalue of its component (number of exceptions)"
    reference = _cited(figures, "Bao et al. 2020, Theorem 2 (assumption)")
    if not figures.method.objective.has_penalties:
        return does_not_apply(name, statement, reference, "This method has no penalties.")
    zero, k = len(figures.zero_latents), figures.k
    if not zero and len(figures.uncertain_latents):
        why = (
            f"Penalties {_listed(figures.uncertain_latents)} differ from the eigenvalues of their "
            f"components by less than the rounding error {figures.leading.error:.1g}, so the claim "
            "cannot be tested. The other claims judge the fit without this assumption."
            f"{_single_note(figures)}"
        )
        return does_not_apply(name, statement, reference, why)
    advice = ""
    if zero:
        advice = (
            f"{_zero_sentence(figures)}: the smallest possible value of the claim subspace is "
            f"{zero}/{k} = {zero / k:.3g}."
        )
    return at_most(name, statement, reference, float(zero), 0.0, advice)


def _eigengap_claim(figures: LinearFigures) -> Claim:
    statement = (
        "neighbouring eigenvalues differ, so these data determine each component (relative "
        "difference of eigenvalues)"
    )
    reference = _cited(figures, "Bao et al. 2020, Section 2 (assumption)")
    if not figures.method.expected().aligns:
        why = f"Method {figures.method.name!r} finds the principal subspace but not its axes."
        return does_not_apply("eigengap", statement, reference, why)
    leading, k = figures.leading, figures.k
    unit = max(float(leading.values[0]), float(np.finfo(float).tiny))
    (gap, bound), shared = leading.weakest(k), leading.unidentifiable(k)
    gap, bound = gap / unit, bound / unit
    why = (
        f"{_components(shared)} not determined by these data: the eigenvalue differs from the one "
        "before or after it, or from zero, by no more than rounding errors."
    )
    if not leading.dense and len(shared):
        why = (
            "Not decided: with more than 1024 features the eigenvalues are only bounded, and the "
            f"bounds do not separate the eigenvalues of components {_listed(shared)} from others."
        )
        known = gap if math.isfinite(gap) else None
        return undecided("eigengap", statement, reference, why, known, bound)
    if leading.hidden:
        return undecided("eigengap", statement, reference, _hidden_note(figures), gap, bound)
    if leading.uncertainty and len(shared):
        why += _single_note(figures)
        return undecided("eigengap", statement, reference, why, gap, bound)
    return at_least("eigengap", statement, reference, gap, bound, why)


def _sampling_claim(figures: LinearFigures) -> Claim:
    """Return the claim `sampling`, which reports how many components exceed sampling noise."""
    axes = figures.method.expected().aligns
    statement = "number of components separated from sampling noise, for independent Gaussian rows"
    if not axes:
        statement = "number of eigenvalues above sampling noise, for independent Gaussian rows"
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
    """Return a sentence: `count` of k components are separated from sampling noise."""
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
            f"squared sine of its angles to the subspace of the population is about {turned:.2g}."
        )
    reason = f"only {count} of the {k} leading eigenvalues exceed the noise"
    if count == k:
        reason = f"eigenvalues {k} and {k + 1} are too close for the number of rows"
    return (
        f"The subspace is not separated from sampling noise ({reason}): another sample of as many "
        f"rows could give another subspace. {_FEWER}"
    )


def _count_claims(figures: LinearFigures) -> tuple[Claim, ...]:
    """Return the claim `component_count` if `n_components` names a criterion, otherwise nothing."""
    counts = figures.counts
    if counts is None:
        return ()
    name, statement = "component_count", "number of components that the criterion finds"
    if isinstance(counts, str):
        reference = "Minka 2000; Horn 1965; Gavish & Donoho 2014"
        return (does_not_apply(name, statement, reference, counts),)
    chosen, *others = counts
    advice = chosen.summary()
    if all(other.n_components == chosen.n_components for other in others):
        advice += " The other criteria find the same number."
    else:
        advice += " " + " ".join(other.summary() for other in others)
    found = float(chosen.n_components)
    return (reported(name, statement, REFERENCES[chosen.criterion], found, advice),)


def _conditioning_claim(figures: LinearFigures) -> Claim:
    statement = "condition number of the loss's Hessian at the optimum (zero eigenvalues left out)"
    reference = _cited(figures, "Bao et al. 2020, Sections 4.3 and 5")
    if figures.conditioning is None:
        why = "The Hessian is not known for this method, or all latents are zero at its optimum."
        why = why + _single_note(figures) if figures.leading.dense else _NO_SPECTRUM
        return does_not_apply("conditioning", statement, reference, why)
    return reported("conditioning", statement, reference, figures.conditioning)


def _epochs_claim(figures: LinearFigures) -> Claim:
    statement = "predicted training epochs until the value of the claim alignment is 0.001"
    reference = _cited(figures, "Bao et al. 2020, Theorem 5 (half of its rate) and Section 4.3")
    if figures.epochs is None:
        why = (
            "The rate of convergence near the optimum is not known for this method, or training "
            "would take more than 1e15 epochs, because eigenvalues are equal or differ by orders "
            "of magnitude, or because learning_rate is tiny."
        )
        why = why if figures.leading.dense else _NO_SPECTRUM
        return does_not_apply("epochs", statement, reference, why)
    return reported("epochs", statement, reference, figures.epochs)


_ATTRIBUTES = "fitted components, variances and mean agree with weights and data (relative error)"
_DEFINED = "definition of the attributes"


def _attributes_claim(figures: LinearFigures) -> Claim:
    statement, reference = _ATTRIBUTES, _DEFINED
    if figures.attributes is None:
        why = "A pair of weights was given, which has no fitted attributes."
        return does_not_apply("attributes", statement, reference, why)
    advice = "The estimator was changed after fit, or X is not the data that was passed to fit."
    unsure = figures.leading.uncertainty / max(figures.evidence["trace"], np.finfo(float).tiny)
    error = 8 * figures.n_features * EPS + max(unsure, figures.fit_rounding)
    # With more than 280 000 features, or products in single precision, the rounding errors are half
    # of the threshold and more.
    value, bound = figures.attributes, max(ATTRIBUTES, 2 * error)
    return at_most("attributes", statement, reference, value, bound, advice, error=error)


def _moment_claim(figures: LinearFigures) -> Claim:
    statement = "the stored covariance agrees with the rows (difference in standard deviations)"
    reference = "definition of the covariance"
    if figures.moment is None:
        why = (
            "No covariance was computed, or it was given without its rows, or the rows have more "
            "than 2 million entries."
        )
        return does_not_apply("moment", statement, reference, why)
    value, error = figures.moment
    advice = "The stored covariance was changed after it had been computed: fit again."
    return at_most("moment", statement, reference, value, MOMENT, advice, error=error)


def _components(numbers: Vector) -> str:
    """Return “Component 3 is” or “Components 3, 5 are” for the given numbers of components."""
    return (
        f"Component {_listed(numbers)} is"
        if len(numbers) == 1
        else (f"Components {_listed(numbers)} are")
    )


def _listed(numbers: Vector) -> str:
    """Return ascending integers as text with runs abbreviated, such as “3–5, 9” for 3, 4, 5, 9."""
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
    """Judge how close a given encoder and decoder are to the optimum for given data.

    The weights may have been trained by any program.

    Parameters
    ----------
    encoder : array of shape (k, m)
        Encoder weights: latent i of a centred row x is the product of row i and x.
    decoder : array of shape (m, k)
        Decoder weights: the reconstruction of x is the decoder times the latents.
    X : array-like of shape (n, m) or SecondMoment
        The rows of data, or their second moment. Rows are centred before they are used.
    sample_weight : array-like of shape (n,), optional
        Weight of each row, as if the row occurred that many times; by default 1 for all rows.
    noise_variance : float, optional
        Observation variance of the decoder. Required for ``method="linear_vae"``, whose posterior
        variances are set to their optimum; not used otherwise.
    **settings
        Arguments of `LinearAutoencoder` with which the weights were trained: `method`, `l2`,
        `prior`, `tied`, `tol`, `learning_rate`, `optimizer`, `momentum`.

    Returns
    -------
    Certificate
        The claims with their verdicts.

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
            "shapes (k, m) and (m, k) with k latents and m features."
        )
    X, row_weights = checked_data(X, sample_weight)
    data = data_of_any(X, row_weights)
    if rows.shape[1] != data.n_features:
        raise ValueError(
            f"encoder has {rows.shape[1]} columns, but X has {data.n_features} features: the two "
            "numbers must be equal."
        )
    check_latents(rows.shape[0], rows.shape[1], "encoder")
    spectrum = None
    if options.needs_spectrum:
        source = _source(X, row_weights)
        k, m = rows.shape
        spectrum = source.spectrum(None if m <= DENSE_FEATURES else min(k + 1, m))
    method = options.make(rows.shape[0], spectrum, options.rng())
    weights = method.objective.completed(
        _weights(rows, columns, data.mean, method.tied), noise_variance
    )
    return certificate(
        f"weights(method={method.name!r})", measure(method, weights, data, options.training)
    )


def _source(X: Any, weights: Any) -> Any:
    if isinstance(X, AlignedBlocks):
        return BlocksSource(Passes(X))
    if isinstance(X, ReadBlocks):
        return MomentSource(X.moment)
    return MomentSource(X) if isinstance(X, SecondMoment) else source_of(X, weights)


_SETTINGS = tuple(inspect.signature(Options.of).parameters)


def certificate(title: str, figures: LinearFigures) -> Certificate:
    """Return the certificate of a linear autoencoder from its measured values (`measure`).

    It contains the claims about the weights, each with its verdict.
    """
    return Certificate(title, claims(figures), figures.evidence)


def with_changes(found: Certificate, changed: Mapping[str, float]) -> Certificate:
    """Return a certificate whose claim `attributes` fails if a user changed fitted attributes."""
    if not changed:
        return found
    names = ", ".join(changed)
    advice = (
        f"{names} {'was' if len(changed) == 1 else 'were'} changed after `fit`, but `transform` "
        "and `inverse_transform` use the fitted weights. Fit again, or certify other weights by "
        "certify((encoder, decoder), X, family='linear')."
    )
    failed = at_most("attributes", _ATTRIBUTES, _DEFINED, max(changed.values()), ATTRIBUTES, advice)
    others = tuple(claim for claim in found if claim.name != "attributes")
    return Certificate(found.title, (*others, failed), found.evidence)


def check_latents(k: int, m: int, name: str) -> None:
    """Raise an error if there are more latents k than features m."""
    if k > m:
        raise ValueError(
            f"{name} has {k} rows, but X has {m} features, and so only {m} principal components: "
            f"give at most {m} rows."
        )


def checked_data(X: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Return validated data and the weights of their rows, in the form in which they are certified.

    Rows in memory are returned with their weights, and a `SecondMoment` as it is. Of data that are
    read in blocks the second moment is returned, as `ReadBlocks` if they can be read again, or,
    with very many features, the blocks themselves.
    """
    if isinstance(X, SecondMoment):
        return X, None
    if not (in_memory(X) and in_memory(sample_weight)):
        given = isinstance(X, AlignedBlocks)
        blocks = X if given else aligned_blocks(X, None, sample_weight)
        small = loaded_rows(blocks)
        if small is None and blocks.rows.n_features > EXACT_FEATURES:
            check_repeatable(blocks)
            return blocks, None
        if small is None:
            moment = read_moment(blocks)
            return (ReadBlocks(moment, Passes(blocks)) if blocks.repeatable else moment), None
        X, sample_weight = small.rows, small.weights
    X = check_rows(X)
    return X, check_weights(sample_weight, X)


def _weights(encoder: Array, decoder: Array, ref: Array, tied: bool) -> Any:
    rows, atoms = like(as_double(encoder), ref), like(as_double(decoder), ref).mT
    same = bool(namespace(rows).all(rows == atoms))
    return TiedWeights(rows) if tied and same else UntiedWeights(rows, atoms)
