"""Claims of the certificate of a linear autoencoder, from the values that the verifier measured.

Components, latents and rows are counted from 0 in all texts and in the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from lucidae.arrays import as_double, fields_beside, to_numpy
from lucidae.certificates.bounds import TINY, Ball, gamma
from lucidae.certificates.claims import Certificate, Claim, listed
from lucidae.certificates.rows import Data
from lucidae.counting import (
    CRITERIA,
    REFERENCES,
    TURNED,
    component_sampling_error,
    components_above_noise,
    count_wanted,
    is_criterion,
)
from lucidae.linear.methods import Model, Options, TrainedWeights
from lucidae.linear.references import known_spectrum, reference_of
from lucidae.linear.theory import predicted_epochs
from lucidae.linear.verify import IDENTIFIABLE, PAIRED_FEATURES, ObservedFigures, WeightFigures
from lucidae.linear.weights import map_fields

Vector = np.ndarray[Any, Any]

# Threshold of the claims `subspace` and `alignment`: a mean squared sine, of an angle of 1.8°. For
# k > 500 latents the threshold is 0.5/k instead, because one wrong latent among k gives 1/k.
DISTANCE = 1e-3

# Threshold of the claim `gap`: excess of the loss over its minimum, divided by the total variance.
# For a linear VAE the excess is divided by the number of features. Stochastic solvers reach 1e-6.
GAP = 1e-6

# Threshold of the claim `balance`: relative difference of W₁W₁ᵀ (encoder) and W₂ᵀW₂ (decoder).
BALANCE = 1e-3

# Threshold of the claim `order`: increase of the variance from one latent to the next. The increase
# is divided by the largest variance. The threshold is far above rounding errors.
RISE = 1e-6

# Smallest and largest threshold of the claim `stationarity`. Within this range the threshold is ten
# times the estimator's `tol`. Float64 cannot reach a tolerance of 0, and a large tolerance must not
# make every fit pass.
STATIONARITY = (1e-9, 1e-3)

# Threshold of the claim `moment`: bound on the relative error of the covariance of the solver.
# Rounding errors in double precision stay below it. What is below it changes no other claim.
MOMENT = 1e-8

# Factor by which this bound may exceed the error of single precision that the covariance states.
# The bound from eight random vectors is 6 to 40 times the error itself.
SINGLE = 32.0

# Threshold of the claim `attributes`: relative difference to what weights and data imply.
ATTRIBUTES = 1e-9

# Alignment distance (mean squared sine to the principal axes) for which `epochs` are predicted.
REACHED = 1e-3

# Predictions above it are not reported: no descent takes so many steps.
MOST_EPOCHS = 1e15


class LinearFigures(WeightFigures):
    """Measured values of given weights, with what theory says about their method.

    `wanted` is the estimator's argument `n_components`, and `fit_rounding` the relative error that
    the covariance of the fit states for its products in single precision. Without a `model`, a pair
    of weights was given; `shown` are the fitted attributes that users read.
    """

    def __init__(
        self,
        outcome: TrainedWeights,
        data: Data,
        training: Options,
        model: Model | None = None,
        wanted: Any = None,
        *,
        running: bool = False,
        fit_rounding: float = 0.0,
        observed: ObservedFigures | None = None,
        shown: Mapping[str, Any] | None = None,
    ) -> None:
        self.method, self.learning_rate = outcome.method, outcome.learning_rate
        self.training = training
        self.wanted, self.fit_rounding, self.observed = wanted, fit_rounding, observed
        # the rule to whose fixed point the weights converge
        self.rule = self.method.expected()
        self.fitted, self.k = model is not None, int(outcome.weights.encoder.shape[0])
        objective = reference = reference_of(self.method.objective)
        if self.rule is not self.method.objective:
            reference = reference_of(self.rule)
        weights = map_fields(lambda rows: to_numpy(as_double(rows)), outcome.weights)
        if model is not None:  # in the library of the training rows
            model = fields_beside(model, np.empty(0))
        with np.errstate(over="ignore", invalid="ignore"):
            super().__init__(objective, reference, weights, data, model, running, shown or {})

    @cached_property
    def limits(self) -> str:
        """Why the data do not decide claims about equal eigenvalues; empty if they do."""
        moment = self.data.moment
        if self.leading.hidden:
            return (
                "Digits of small variances were lost in the second moment of rows that cannot be "
                "read again: give the rows as an array, a file or a function that returns the "
                "batches again."
            )
        if moment is None or moment.high <= MOMENT:
            return ""
        why = ", from products of float32 rows: give float64." if self.fit_rounding else "."
        return f"The fit's covariance differs by up to {self.data.error:.1g} from that of X{why}"

    @cached_property
    def sampling(self) -> dict[str, Vector]:
        """Which components stand out of sampling noise; empty if this is not known.

        Of these, some have a direction that another sample could turn into that of others.
        """
        data, k = self.data, self.k
        known = self.observed is None and self.leading.complete and data.trace > 0.0
        weight = data.weight or 0.0  # None if the rows were not centred
        if not known or not weight > 2.0:
            return {}
        # Eigenvalues below their rounding error are not sampling noise of the data.
        values, rows = self.resolved(), weight - 1.0
        above = np.flatnonzero(components_above_noise(values, rows, k))
        values = values[: max(k + 1, np.count_nonzero(values))]  # zeros turn no component
        turned = component_sampling_error(values, rows)
        similar = above[turned[above] >= TURNED] if self.rule.aligns else above[:0]
        return {"components_above_noise": above, "components_of_similar_variance": similar}

    def resolved(self, factor: float = 1.0) -> Vector:
        """Return all eigenvalues, with zero for those of at most `factor` times their error."""
        values = self.leading.values
        return np.where(values.value > factor * values.error, values.value, 0.0)

    @property
    def tolerance(self) -> float:
        """Threshold of the claims `stationarity` and `likelihood`."""
        return float(np.clip(10 * self.training.tol, *STATIONARITY))

    @property
    def advice(self) -> str:
        """What to do about weights that are not optimal: train longer, or check the data."""
        if not self.fitted:
            return (
                "These weights are not optimal for these data: check that the rows were centred, "
                "and that rows, method and penalties are those of their training."
            )
        exact = ", or use solver='exact'" if self.method.objective.has_minimizer else ""
        found, tol = self.stationarity, self.training.tol
        if self.learning_rate is None:
            why = "The weights should be a closed form."
        elif found is None or not found.value <= tol:
            why = f"Train longer (increase max_iter){exact}."
        else:
            why = (
                f"The stopping rule is met (tol={tol:g}), but the directions of large variance "
                f"dominate it: standardise the columns of X, lower tol and raise max_iter{exact}."
            )
        return f"{why} If X is not the data that was passed to fit, this result is expected."

    @property
    def zero_sentence(self) -> str:
        """Which latents are zero because of their penalties."""
        names = listed("latent", self.zero_latents)
        are = "is" if len(self.zero_latents) == 1 else "are"
        return f"A penalty is not below the eigenvalue: {names} {are} zero at the optimum"


def certificate(title: str, figures: LinearFigures) -> Certificate:
    """Return the certificate of a linear autoencoder from its measured values.

    If a fit to rows with missing entries did not converge, claims that would hold are undecided.
    """
    found = claims(figures)
    if figures.observed is not None and not figures.observed.converged:
        unclear: Any = {"holds": None, "undecided": True, "advice": _NOT_CONVERGED}
        found = tuple(replace(claim, **unclear) if claim.holds else claim for claim in found)
    return Certificate(title, found, evidence(figures))


def evidence(figures: LinearFigures) -> dict[str, Any]:
    """Return the numbers from which the measured values can be computed again, by name."""
    leading = figures.leading
    numbers: dict[str, Any] = {
        "eigenvalues": leading.values.value[: figures.k + 1],
        "eigenvalue_error": float(leading.values.error[0]),
        "eigenvalue_after_k_at_most": leading.outside,
        "all_eigenvalues_computed": leading.complete,
        "trace": figures.data.trace,
        "n_rows": figures.data.weight,
        "moment_error": figures.data.error,
        "misalignments": leading.misalignments.value,
    } | figures.loss_terms
    if leading.complete:
        numbers["spectrum"] = leading.values.value
    numbers |= figures.sampling
    if figures.leverage is not None:
        numbers["leverage_rows"] = figures.leverage.rows
        numbers["leverage_shares"] = figures.leverage.shares
    for name in ("penalties", "prior"):
        if (known := getattr(figures.method.objective, name, None)) is not None:
            numbers[name] = to_numpy(known)
    return numbers | ({} if figures.observed is None else figures.observed.evidence)


Judge = Callable[[Claim, LinearFigures], Claim]

# The claims in their order, with the functions that judge them: see `judges`.
CLAIMS: dict[str, tuple[Claim, Judge]] = {}


def judges(
    name: str, statement: str = "", reference: str = "", headline: str = ""
) -> Callable[[Judge], Judge]:
    """Return a decorator that registers the function by which a claim is judged."""

    def register(judge: Judge) -> Judge:
        CLAIMS[name] = Claim(name, statement, reference, headline=headline), judge
        return judge

    return register


def claims(figures: LinearFigures, names: Iterable[str] = ()) -> tuple[Claim, ...]:
    """Return the claims of these names, or all of them, the most important ones first.

    The reference of a method without reference formulas says that it judges itself. Claims about
    missing entries are made if there are any, and judged on the rows alone.
    """
    rule, observed = reference_of(figures.rule), figures.observed
    counted = figures.fitted and is_criterion(figures.wanted)
    found: list[Claim] = []
    for name in names or CLAIMS:
        text, judge = CLAIMS[name]
        if (name == "component_count" and not counted) or (name in _OBSERVED and observed is None):
            continue
        if (name == "order" and figures.rule.orders) or (name in _RULES and not rule.independent):
            text = replace(text, reference=rule.citation)
        if name in _OBSERVED and observed is not None and observed.gradient is None:
            found.append(replace(text, advice=_NOT_STORED, undecided=bool(text.headline)))
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            found.append(judge(text, figures))
    return tuple(found)


_NO_SPECTRUM = "Not all eigenvalues were computed, because there are more than 1024 features."
_NO_SAMPLING = (
    "Sampling noise is judged for at least three rows, not all equal and without missing entries, "
    "but not for rows that were not centred or have more than 1024 features."
)
_BOUNDS = "bounds: Boyd & Balakrishnan 1990, failure probability 1e-9"
_BOUNDED = (
    "Not decided: with more than 1024 features the eigenvalues are only bounded, and the bounds do "
    "not separate those of the components from the others."
)
_OBSERVED = "likelihood", "identifiability", "missing_information"
# Claims whose theorem belongs to the rule.
_RULES = "order", "stationarity", "balance", "nonzero_latents", "eigengap", "conditioning", "epochs"
_NO_NOISE = (
    "The components explain all variance of the data, so none remains for the noise of the linear "
    "VAE: its likelihood is not bounded and has no maximum. Choose n_components below the rank of "
    "the data."
)


def _not_decided(text: Claim, why: str, figures: LinearFigures, **known: Any) -> Claim:
    """Return a claim that equal eigenvalues leave open, and which is undecided if data limit it."""
    limits = figures.limits
    why = limits if figures.leading.hidden else f"{why} {limits}".strip()
    return replace(text, advice=why, undecided=bool(limits), **known)


def _distance(text: Claim, found: Ball, size: int, figures: LinearFigures) -> Claim:
    """Return the verdict on a mean squared sine of so many axes."""
    advice, zero = figures.advice, len(figures.zero_latents) / figures.k
    if zero:
        why = f"{figures.zero_sentence}; this alone gives a mean squared sine of {zero:.3g}."
        advice = f"{why} Lower l2, or use l2='auto' or method='rag'."
    claim = text.judged(found, min(DISTANCE, 0.5 / size), advice)
    if figures.leading.complete:
        return claim
    advice = _BOUNDED if claim.undecided else claim.advice
    return replace(claim, reference=f"{text.reference}; {_BOUNDS}", advice=advice)


@judges(
    "subspace",
    "the decoder spans the principal subspace (mean squared sine of the angles)",
    "Bao et al. 2020, Definition 7.2",
)
def _subspace(text: Claim, figures: LinearFigures) -> Claim:
    k, leading, found = figures.k, figures.leading, figures.leading.subspace
    apart, needed = leading.steps(k)
    if not leading.complete or apart[-1] > needed[-1]:
        return _distance(text, found, k, figures)
    why = (
        f"Eigenvalue {k - 1} of the covariance, counted from 0, differs from the next one, or from "
        f"zero, by less than {float(needed[-1]):.1g}, which rounding errors can change: these data "
        "do not determine the principal subspace."
    )
    return _not_decided(text, why, figures, value=found.value, error=found.error)


@judges(
    "alignment",
    "each principal axis is parallel to a decoder column (mean squared sine)",
    "Bao et al. 2020, Definition 7.1",
)
def _alignment(text: Claim, figures: LinearFigures) -> Claim:
    leading, k = figures.leading, figures.k
    if not figures.rule.aligns:
        distance = float(np.mean(leading.misalignments.value))
        return replace(text, value=distance, advice=_rotated(figures))
    # Where only bounds are known, a component that they do not separate may be a wrong latent.
    shared = leading.unidentifiable(k) if leading.complete else np.empty(0, dtype=int)
    identifiable = np.setdiff1d(np.arange(k), shared)
    why = f"{_components(shared)} not determined by these data and left out of the mean."
    if not len(identifiable):
        return _not_decided(text, why, figures)
    found = leading.misalignments[identifiable].sum() / float(len(identifiable))
    claim = _distance(text, found, len(identifiable), figures)
    if not len(shared):
        return claim
    if claim.holds and figures.limits:  # the rows may determine what their products do not
        return _not_decided(text, why, figures, value=found.value, threshold=claim.threshold)
    return replace(claim, advice=f"{claim.advice} {why}".strip())


@judges(
    "order",
    "the latents are in descending order of variance (largest relative increase)",
    "Bao et al. 2020, Theorems 3 and 5",
)
def _order(text: Claim, figures: LinearFigures) -> Claim:
    if not figures.rule.orders:
        return replace(text, advice=f"Method {figures.method.name!r} does not order its latents.")
    advice = f"{figures.advice} Or sort the latents by their variance, largest first."
    return text.judged(figures.rise, RISE, advice)


@judges(
    "stationarity",
    "the weights are a fixed point of the update rule (relative norm of the update)",
    "definition of a stationary point",
)
def _stationarity(text: Claim, figures: LinearFigures) -> Claim:
    found = figures.stationarity
    if found is None:
        return replace(text, advice=_NO_NOISE, undecided=True)
    return text.judged(found, figures.tolerance, figures.advice)


@judges("gap")
def _gap(text: Claim, figures: LinearFigures) -> Claim:
    objective, losses = figures.method.objective, figures.losses
    reference = reference_of(objective)
    words: Any = {"statement": objective.gap_statement, "reference": reference.citation}
    # That of an estimated covariance may be a local maximum of the likelihood.
    headline = "global minimum of the loss" if figures.observed is None else ""
    text = replace(text, **words, headline=headline)
    if losses is None:
        why = _NO_NOISE
        if not reference.independent:
            why = "The global minimum of this objective is not known: the gap cannot be computed."
        return replace(text, advice=why, undecided=True)
    least = losses.gap.value < -GAP and math.isfinite(losses.gap.value)  # impossible for these data
    return text.judged(losses.gap, -GAP if least else GAP, figures.advice, least=least)


@judges(
    "balance",
    "encoder W₁ and decoder W₂ are balanced: W₁W₁ᵀ = W₂ᵀW₂ (relative difference)",
    "Bao et al. 2020, Theorem 1",
)
def _balance(text: Claim, figures: LinearFigures) -> Claim:
    if not figures.rule.balanced:
        why = "At the optimum of this method the scale of a latent is not determined."
        return replace(text, advice=why)
    advice = "Gradient steps disturb the balance of layers: set tied=True, or lower learning_rate."
    return text.judged(figures.balance, BALANCE, advice)


@judges(
    "nonzero_latents",
    "every penalty is below the eigenvalue of its component (number of exceptions)",
    "Bao et al. 2020, Theorem 2 (assumption)",
)
def _nonzero(text: Claim, figures: LinearFigures) -> Claim:
    if not figures.method.objective.has_penalties:
        return replace(text, advice="This method has no penalties.")
    zeros, uncertain = figures.zero_latents, figures.uncertain_latents
    # A component without variance has a latent of zero under every penalty: no exception.
    zero = int(np.sum(figures.resolved()[zeros] > 0.0))
    if not zero and (len(zeros) or len(uncertain)):
        why = (
            "Penalties of components without variance, or whose eigenvalue they equal up to "
            f"rounding errors, are not judged. {figures.limits}"
        )
        return replace(text, advice=why.strip())
    advice = (
        f"{figures.zero_sentence}: the smallest possible value of the claim subspace is "
        f"{zero}/{figures.k} = {zero / figures.k:.3g}."
    )
    return text.judged(zero, 0.0, advice)


@judges(
    "eigengap",
    "neighbouring eigenvalues differ, so these data determine each component (relative gap)",
    "Bao et al. 2020, Section 2 (assumption)",
)
def _eigengap(text: Claim, figures: LinearFigures) -> Claim:
    """Return the claim `eigengap`; equal eigenvalues are a property of the data, not a failure."""
    if not figures.rule.aligns:
        return replace(text, advice=_rotated(figures))
    leading, k = figures.leading, figures.k
    unit = max(float(leading.values.high[0]), TINY)
    apart, needed = leading.steps(k)
    shared = leading.unidentifiable(k)
    least = int(np.argmin(apart / needed if len(shared) else apart))
    gap, bound = apart[least] / unit, needed[least] / unit
    value = float(gap) if math.isfinite(gap) else None
    text = replace(text, value=value, threshold=bound)
    if not len(shared):
        return replace(text, holds=True)
    if not leading.complete:
        return replace(text, advice=_BOUNDED, undecided=True)
    why = (
        f"{_components(shared)} not determined by these data: up to rounding errors the eigenvalue "
        "equals the one before or after it, or zero. Interpret the subspace of such components."
    )
    return _not_decided(text, why, figures)


@judges(
    "sampling",
    "number of components that stand out of sampling noise, for independent rows",
    "Johnstone 2001; Anderson 1963",
)
def _sampling(text: Claim, figures: LinearFigures) -> Claim:
    """Return the claim `sampling`: how many components stand out, and which are alike."""
    if not figures.sampling:
        return replace(text, advice=_NO_SAMPLING)
    (above, similar), k = figures.sampling.values(), figures.k
    count, others = len(above), np.setdiff1d(np.arange(k), above)
    headline = f"sampling: {count} of {k}"
    advice = f"{count} of {k} components stand out of sampling noise."
    if len(others):
        names = listed("component", others)
        advice += (
            f" The others, {names}, may be noise: choose fewer components or collect more rows."
        )
    if len(similar):
        names = listed("component", similar)
        advice += f" Of nearly equal variance to others: {names}. Interpret them together."
    return replace(text, value=float(count), advice=advice, headline=headline)


@judges(
    "component_count",
    "number of components that the criterion finds",
    "Minka 2000; Horn 1965; Gavish & Donoho 2014",
)
def _component_count(text: Claim, figures: LinearFigures) -> Claim:
    """Return the claim `component_count`, if `n_components` names a criterion."""
    data, wanted = figures.data, figures.wanted
    if not figures.leading.complete or data.weight is None:
        return replace(text, advice=_NO_SPECTRUM)
    known = figures.resolved(), data.weight, data.variances
    chosen = count_wanted(wanted, *known)
    others = [count_wanted(name, *known) for name in CRITERIA if name != chosen.criterion]
    told = "The other criteria find the same number."
    if any(other.n_components != chosen.n_components for other in others):
        told = " ".join(other.summary() for other in others)
    found, reference = float(chosen.n_components), REFERENCES[chosen.criterion]
    return replace(text, value=found, reference=reference, advice=f"{chosen.summary()} {told}")


@judges(
    "leverage",
    "largest share of one row in a component or in the total variance",
    "Cook & Weisberg 1982",
)
def _leverage(text: Claim, figures: LinearFigures) -> Claim:
    """Return the claim `leverage`, which names rows that carry more than their share."""
    found = figures.leverage
    if found is None:
        why = "The rows are not known any more, or there are fewer than ten of them."
        return replace(text, advice=why)
    parts = [
        " of the total variance" if at < 0 else f" of component {at}" for at in found.components
    ]
    return text.influenced(found.rows, found.shares, found.largest, parts)


@judges(
    "conditioning",
    "condition number of the loss's Hessian at the optimum (zero eigenvalues left out)",
    "Bao et al. 2020, Sections 4.3 and 5",
)
def _conditioning(text: Claim, figures: LinearFigures) -> Claim:
    leading = figures.leading
    if not leading.complete:
        return replace(text, advice=_NO_SPECTRUM)
    found = figures.method.objective.hessian_eigenvalues(leading.values.value)
    if found is not None:
        found = found[found > 1e-12 * found[-1]]
    if found is None or not found.size or found[0] <= IDENTIFIABLE * figures.data.error:
        why = "The Hessian is not known for this method, or all latents are zero at its optimum. "
        return replace(text, advice=(why + figures.limits).strip())
    return replace(text, value=float(found[-1] / found[0]))


@judges(
    "epochs",
    "predicted training epochs until the value of the claim alignment is 0.001",
    "Bao et al. 2020, Theorem 5 (half of its rate) and Section 4.3",
)
def _epochs(text: Claim, figures: LinearFigures) -> Claim:
    leading, data, k = figures.leading, figures.data, figures.k
    if not leading.complete:
        return replace(text, advice=_NO_SPECTRUM)
    step, values, rate = figures.learning_rate, leading.values.value, None
    if data.trace > 0.0:
        rate = figures.rule.alignment_rate(values, k)
    if rate is not None:
        if step is None:
            curvature = figures.method.rule.curvature(known_spectrum(values[:k], data))
            step = figures.training.rate(curvature)
        epochs = predicted_epochs(rate, step, figures.training.effective_momentum, REACHED)
        if epochs <= MOST_EPOCHS:
            return replace(text, value=epochs)
    why = (
        "The rate of convergence near the optimum is not known, or training would take more than "
        "1e15 epochs: eigenvalues are nearly equal, or learning_rate is tiny."
    )
    return replace(text, advice=why)


@judges(
    "attributes",
    "fitted components, variances and mean agree with weights and data (relative error)",
    "definition of the attributes",
)
def _attributes(text: Claim, figures: LinearFigures) -> Claim:
    found, data = figures.attributes, figures.data
    if found is None:
        why = "A pair of weights was given, which has no fitted attributes."
        return replace(text, advice=why)
    name, value = found if _is_wanted_number(figures) else ("n_components_", math.inf)
    advice = (
        f"{name} differs most. The estimator was changed after fit, or X is not the data that was "
        "passed to fit."
    )
    known = data.error / max(data.trace, TINY) if data.trace > 0.0 else 0.0
    error = gamma(8 * data.n_features) + max(min(known, 1.0), figures.fit_rounding)
    # With products in single precision the errors are half of the threshold and more.
    return text.judged(Ball(value, error), max(ATTRIBUTES, 2 * error), advice)


def _is_wanted_number(figures: LinearFigures) -> bool:
    """Tell whether the number of latents k agrees with the estimator's argument `n_components`.

    An integer is the number itself, a float the share of the variance that the latents must
    explain, None stands for the rank, and a criterion counts. Eigenvalues between 0.01 and 100
    times their error may count or not. If the eigenvalues are not known, the result is True.
    """
    k, wanted, data = figures.k, figures.wanted, figures.data
    if isinstance(wanted, int):
        return k == wanted
    if not figures.leading.complete:
        return True
    if is_criterion(wanted):
        return data.weight is None or any(
            k == max(1, count_wanted(wanted, known, data.weight, data.variances).n_components)
            for known in (figures.resolved(factor) for factor in (1.0, 1e2, 1e-2))
        )
    values = figures.leading.values.value
    fewest, most = (max(1, int(np.sum(figures.resolved(f) > 0.0))) for f in (1e2, 1e-2))
    # The rank of the documentation counts eigenvalues above m ε λ₁, even if they are known better.
    fewest = min(fewest, max(1, int(np.sum(values > 1e2 * gamma(data.n_features) * values[0]))))
    if wanted is None:
        return fewest <= k <= most
    shares = np.append(0.0, np.cumsum(values)) / max(float(np.sum(values)), TINY)
    enough = bool(shares[k] >= wanted - 1e-9) or k >= fewest
    return enough and (k == 1 or bool(shares[k - 1] < wanted + 1e-9))


@judges(
    "moment",
    "the covariance of the fit is that of the rows (bound on the relative difference)",
    "Freivalds 1979, failure probability 1e-9",
)
def _moment(text: Claim, figures: LinearFigures) -> Claim:
    data = figures.data
    if data.moment is None:
        return replace(text, advice=_UNTESTED[data.origin], undecided=data.origin == "lost")
    advice = "The covariance was changed after it had been computed, or was computed wrongly."
    return text.judged(data.moment, max(MOMENT, SINGLE * figures.fit_rounding), advice)


_UNTESTED = {
    "rows": "No covariance was used: all values were computed from the rows.",
    "given": "A covariance was given without its rows, and was taken as the data.",
    "lost": "The rows of this covariance are not known any more, so that nothing tests it: call "
    "lucidae.certify(estimator, X) with all rows X.",
}


@judges(
    "likelihood",
    "the parameters are a stationary point of the likelihood of the observed entries (norm of the "
    "gradient per row)",
    "Tipping & Bishop 1999; Rubin 1976 (missing at random)",
    "stationary point of the likelihood",
)
def _likelihood(text: Claim, figures: LinearFigures) -> Claim:
    found: Any = figures.observed
    if found.noiseless:
        why = (
            "The likelihood has no maximum, because there is no noise: use a smaller n_components."
        )
        return replace(text, value=float(found.gradient.value), advice=why, undecided=True)
    advice = "Train longer (increase max_iter), unless X is not the data that was passed to fit."
    return text.judged(found.gradient, figures.tolerance, advice)


@judges(
    "identifiability",
    "every two features were observed together, so that their covariance is determined by data "
    "(number of pairs that hardly ever were)",
    "linear algebra of WWᵀ + γI",
    "every two features observed together",
)
def _identifiability(text: Claim, figures: LinearFigures) -> Claim:
    """Return the claim that data determine every covariance.

    The covariance of two features that were hardly ever observed together follows from the model
    alone. If they are linked to common features by fewer than k independent loadings, mirror images
    of the loadings have the same likelihood; with more links the fit may still be near the mirror
    image of the global maximum. So nothing is claimed then.
    """
    observed: Any = figures.observed
    pairs = observed.pairs
    if pairs is None:
        return replace(text, advice=_MANY_FEATURES)
    if not len(pairs):
        return text.judged(0.0, 0.0)
    shown = ", ".join(f"{i} and {j}" for i, j in pairs[:3])
    more = "" if len(pairs) <= 3 else f" and {len(pairs) - 3} other pairs"
    why = (
        f"Columns {shown}{more}, counted from 0, were never or hardly ever observed together: "
        "their covariance follows from the model alone, and other loadings may be as likely. "
        "Choose a smaller n_components, or collect rows that have both of these columns."
    )
    text = replace(text, value=float(len(pairs)), threshold=0.0, advice=why)
    # Groups of features without any link have no common covariance for certain.
    return replace(text, holds=False if observed.apart else None, undecided=not observed.apart)


@judges(
    "missing_information",
    "largest share of the variance of a code that the missing entries leave undetermined, on "
    "average over the rows",
    "law of total variance",
)
def _missing_information(text: Claim, figures: LinearFigures) -> Claim:
    observed: Any = figures.observed
    lost, known = observed.lost, observed.evidence
    shares = ", ".join(f"{100 * share:.2g} %" for share in lost[:10]) + " …" * (len(lost) > 10)
    told = (
        f"{100 * known['missing_share']:.2g} % of the entries are missing, in "
        f"{known['n_patterns']} patterns. By component, this share of the variance is lost: "
        f"{shares}."
    )
    return replace(text, value=float(np.max(lost)), advice=told)


_NOT_STORED = "The rows were not stored: call lucidae.certify(estimator, X) with all rows X."
_NOT_CONVERGED = (
    "The fit did not converge, so that nothing is claimed about it: increase max_iter, or choose a "
    "smaller n_components."
)
_MANY_FEATURES = f"Pairs of features are not examined for more than {PAIRED_FEATURES} features."


def _components(numbers: Vector) -> str:
    """Return “Component 3 is” or “Components 3, 5 are” for the given numbers of components."""
    return f"{listed('Component', numbers)} {'is' if len(numbers) == 1 else 'are'}"


def _rotated(figures: LinearFigures) -> str:
    return f"Method {figures.method.name!r} determines the latents only up to a rotation."
