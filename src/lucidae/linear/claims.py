"""Claims of the certificate of a linear autoencoder, from the values that the verifier measured.

Components, latents and rows are counted from 0 in all texts and in the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from lucidae.arrays import as_double, to_numpy
from lucidae.certificates.bounds import TINY, Ball, gamma
from lucidae.certificates.claims import (
    Certificate,
    Claim,
    at_least,
    at_most,
    does_not_apply,
    reported,
    undecided,
)
from lucidae.counting import CRITERIA, REFERENCES, ComponentCount, count_wanted, is_criterion
from lucidae.linear.methods import Method
from lucidae.linear.model import Model
from lucidae.linear.optimizers import DescentSettings
from lucidae.linear.references import SelfJudged, reference_of
from lucidae.linear.theory import predicted_epochs
from lucidae.linear.verify import (
    IDENTIFIABLE,
    LEVERAGE,
    Data,
    Leading,
    WeightFigures,
    measure,
)
from lucidae.linear.weights import map_fields
from lucidae.rows.spectrum import Spectrum
from lucidae.sampling import (
    TURNED,
    component_sampling_error,
    components_above_noise,
    subspace_sampling_error,
)

__all__ = ["LinearFigures", "certificate", "claims", "figures_of", "with_changes"]

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

MOMENT = 1e-8
"""Threshold of the claim `moment`: bound on the relative error of the covariance of the solver.

Rounding errors in double precision stay below it. What is below it changes no other claim."""

SINGLE = 32.0
"""Factor by which this bound may exceed the error of single precision that the covariance states.

The bound from eight random vectors is 6 to 40 times the error itself."""

ATTRIBUTES = 1e-9
"""Threshold of the claim `attributes`: relative difference to what weights and data imply."""

REACHED = 1e-3
"""Alignment distance (mean squared sine to the principal axes) for which `epochs` are predicted."""

MOST_EPOCHS = 1e15
"""Predictions above it are not reported: no descent takes so many steps."""


class Sampling(NamedTuple):
    """Result of the tests which components stand out of sampling noise."""

    above: Vector  # components whose eigenvalue exceeds that of noise
    # of these, the ones whose direction another sample could turn into that of others
    similar: Vector
    # if the method finds the subspace alone, the expected mean squared sine of the angles between
    # the principal subspaces of the sample and of the population; otherwise None
    turned: float | None


@dataclass(frozen=True)
class LinearFigures:
    """Measured values of given weights, with what theory says about their method."""

    method: Method  # the method with which the weights were trained
    k: int  # number of latents
    tolerance: float  # the estimator's argument `tol`, with which training stops
    measured: WeightFigures
    # condition number of the Hessian at the optimum; its zero eigenvalues are left out
    conditioning: float | None
    # predicted number of epochs until the mean squared sine between axes and columns is 1e-3
    epochs: float | None
    # tests of the components against sampling noise, or why these cannot be made
    sampling: Sampling | str
    # if `n_components` names a criterion, the number of components that it finds, then those of the
    # other criteria, or why they are not known; otherwise None
    counts: tuple[ComponentCount, ...] | str | None
    # the fitted attribute that differs most from its recomputed value; None without a model
    attributes: tuple[str, float] | None
    # relative error that the covariance of the fit states for its products in single precision
    fit_rounding: float = 0.0
    exact: bool = False  # whether the weights are a closed form; more training changes nothing
    from_elsewhere: bool = False  # whether a pair of weights was given; no advice on training
    # the numbers from which the measured values can be computed again
    evidence: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def leading(self) -> Leading:
        """Leading eigenvalues, and the decoder's distance to the principal axes."""
        return self.measured.leading

    @property
    def inexact(self) -> bool:
        """Whether the covariance has an error well above rounding errors in double precision."""
        moment = self.measured.data.moment
        return moment is not None and bool(moment.high > MOMENT)


def figures_of(
    method: Method,
    weights: Any,
    data: Data,
    training: DescentSettings,
    learning_rate: float | None = None,
    model: Model | None = None,
    wanted: Any = None,
    *,
    running: bool = False,
    fit_rounding: float = 0.0,
) -> LinearFigures:
    """Measure how close weights are to the optimum for given data."""
    weights = map_fields(lambda rows: to_numpy(as_double(rows)), weights)
    objective, rule = reference_of(method.objective), reference_of(method.expected())
    found = measure(objective, rule, weights, data, _host(model), running=running)
    k, leading, data = len(weights.encoder), found.leading, found.data
    attributes = found.attributes
    if attributes is not None and not _is_wanted_number(k, wanted, leading, data.weight):
        attributes = ("n_components_", math.inf)
    sampling = _sampling(method, leading, k, data)
    return LinearFigures(
        method,
        k,
        training.tol,
        found,
        _conditioning(method, leading, data),
        _epochs(method, leading, k, data, learning_rate, training),
        sampling,
        None if model is None else _counts(wanted, leading, data.weight),
        attributes,
        fit_rounding,
        exact=model is not None and learning_rate is None,
        from_elsewhere=model is None,
        evidence=_evidence(found, k, sampling) | objective.evidence(),
    )


def _host(model: Model | None) -> Any:
    """Return the fitted arrays of a model as float64 arrays of NumPy."""
    if model is None:
        return None
    names = ("mean", "encoder", "atoms", "components", "variances", "code_deviations")
    arrays: Any = {
        name: to_numpy(as_double(getattr(model, name))) for name in (*names, "basis", "inside")
    }
    return replace(model, **arrays)


def _conditioning(method: Method, leading: Leading, data: Data) -> float | None:
    """Return the condition number of the Hessian at the optimum, without its zero eigenvalues."""
    if not leading.complete:
        return None
    curvatures = method.objective.hessian_eigenvalues(leading.values.value)
    if curvatures is None:
        return None
    positive = curvatures[curvatures > 1e-12 * curvatures[-1]]
    if not positive.size or positive[0] <= IDENTIFIABLE * data.error:
        return None
    return float(positive[-1] / positive[0])


def _epochs(
    method: Method,
    leading: Leading,
    k: int,
    data: Data,
    learning_rate: float | None,
    training: DescentSettings,
) -> float | None:
    """Return the predicted number of training epochs until the alignment distance is `REACHED`."""
    if not leading.complete or data.trace <= 0.0:
        return None
    values = leading.values.value
    if learning_rate is None:
        zeros = np.zeros((data.n_features, k))  # eigenvectors, which no curvature depends on
        spectrum = Spectrum(values[:k], zeros, data.trace)
        learning_rate = training.rate(method.rule.curvature(spectrum))
    rate = method.expected().alignment_rate(values, k)
    if rate is None:
        return None
    epochs = predicted_epochs(rate, learning_rate, training.effective_momentum, REACHED)
    return epochs if epochs <= MOST_EPOCHS else None


def _sampling(method: Method, leading: Leading, k: int, data: Data) -> Sampling | str:
    """Return which of the k components stand out of sampling noise, or why this is not known."""
    if not leading.complete:
        return _NO_SPECTRUM
    if data.weight is None:
        return "The rows were not centred, but the theory of sampling noise holds for covariances."
    if not data.weight > 2.0 or not data.trace > 0.0:
        return "At least three rows, not all equal, are needed to judge sampling noise."
    # Eigenvalues below their rounding error are not sampling noise of the data.
    values, rows = _resolved(leading), data.weight - 1.0
    if not method.expected().aligns and k == data.n_features:
        return "There are as many components as features, so the subspace is the whole space."
    above = np.flatnonzero(components_above_noise(values, rows, k))
    if not method.expected().aligns:
        none = np.empty(0, dtype=int)
        return Sampling(above, none, subspace_sampling_error(values, rows, k))
    turned = component_sampling_error(values, rows)
    return Sampling(above, above[turned[above] >= TURNED], None)


def _resolved(leading: Leading, factor: float = 1.0) -> Vector:
    """Return all eigenvalues, with zero for those of at most `factor` times their error."""
    values = leading.values
    return np.where(values.value > factor * values.error, values.value, 0.0)


def _counts(
    wanted: Any, leading: Leading, weight: float | None
) -> tuple[ComponentCount, ...] | str | None:
    """Return the number of components that the criterion `wanted` finds, then all others'."""
    if not is_criterion(wanted):
        return None
    if not leading.complete or weight is None:
        return _NO_SPECTRUM
    values = _resolved(leading)
    chosen = count_wanted(wanted, values, weight, len(values))
    others = (name for name in CRITERIA if name != chosen.criterion)
    return chosen, *(count_wanted(name, values, weight, len(values)) for name in others)


def _is_wanted_number(k: int, wanted: Any, leading: Leading, weight: float | None) -> bool:
    """Tell whether the number of latents k agrees with the estimator's argument `n_components`.

    An integer is the number itself, a float the share of the variance that the latents must
    explain, None stands for the rank, and a criterion counts. Eigenvalues between 0.01 and 100
    times their error may count or not. If the eigenvalues are not known, the result is True.
    """
    if isinstance(wanted, int):
        return k == wanted
    if not leading.complete:
        return True
    values = leading.values.value
    fewest, most = (max(1, int(np.sum(_resolved(leading, f) > 0.0))) for f in (1e2, 1e-2))
    if wanted is None:
        return fewest <= k <= most
    if is_criterion(wanted):
        return weight is None or any(
            k == max(1, count_wanted(wanted, known, weight, len(known)).n_components)
            for known in (_resolved(leading, factor) for factor in (1.0, 1e2, 1e-2))
        )
    shares = np.cumsum(values) / max(float(np.sum(values)), TINY)
    enough = bool(shares[k - 1] >= wanted - 1e-9) or k >= fewest
    return enough and (k == 1 or bool(shares[k - 2] < wanted + 1e-9))


def _evidence(found: WeightFigures, k: int, sampling: Sampling | str) -> dict[str, Any]:
    """Return the numbers from which the measured values can be computed again, by name."""
    leading, data, (loss, minimum, size) = found.leading, found.data, found.loss_terms
    numbers: dict[str, Any] = {
        "eigenvalues": leading.values.value[: k + 1],
        "eigenvalue_error": float(leading.values.error[0]),
        "eigenvalue_after_k_at_most": leading.outside,
        "all_eigenvalues_computed": leading.complete,
        "trace": data.trace,
        "n_rows": data.weight,
        "moment_error": data.error,
        "misalignments": leading.misalignments.value,
        "loss": loss,
        "minimum": minimum,
        "loss_size": size,
    }
    if leading.complete:
        numbers["spectrum"] = leading.values.value
    if isinstance(sampling, Sampling):
        numbers["components_above_noise"] = sampling.above
        numbers["components_of_similar_variance"] = sampling.similar
    if found.leverage is not None:
        numbers["leverage_rows"] = found.leverage.rows
        numbers["leverage_shares"] = found.leverage.shares
    return numbers


def certificate(title: str, figures: LinearFigures) -> Certificate:
    """Return the certificate of a linear autoencoder from its measured values."""
    return Certificate(title, claims(figures), figures.evidence)


def claims(figures: LinearFigures) -> tuple[Claim, ...]:
    """Return all claims about a linear autoencoder, the most important ones first."""
    return (
        _subspace_claim(figures),
        _alignment_claim(figures),
        _order_claim(figures),
        _stationarity_claim(figures),
        replace(_gap_claim(figures), headline="global minimum of the loss"),
        _balance_claim(figures),
        _nonzero_claim(figures),
        _eigengap_claim(figures),
        _sampling_claim(figures),
        *_count_claims(figures),
        _leverage_claim(figures),
        _conditioning_claim(figures),
        _epochs_claim(figures),
        _attributes_claim(figures),
        _moment_claim(figures),
    )


_NO_SPECTRUM = "Not all eigenvalues were computed, because there are more than 1024 features."
_DEFINITIONS = "Bao et al. 2020, Definition"
_SOURCES = {
    "eigenvalues": "Davis & Kahan 1970",
    "Krylov": "Davis & Kahan 1970; Boyd & Balakrishnan 1990, failure probability 1e-9",
    "Gram": "Davis & Kahan 1970; Weyl 1912, Gram matrix of the rows tested with failure "
    "probability 1e-9",
    "Cholesky": "Davis & Kahan 1970; Cholesky factorisation outside of the decoder's span",
}
_NO_NOISE = (
    "The components explain all variance of the data, so none remains for the noise of the linear "
    "VAE: its likelihood is not bounded and has no maximum. Choose n_components below the rank of "
    "the data."
)


def _cited(figures: LinearFigures, theorem: str) -> str:
    """Return `theorem`, or, for a method without reference formulas, that it judges itself."""
    judge = reference_of(figures.method.expected())
    return theorem if judge.independent else SelfJudged.citation


def _enclosed(claim: Claim, figures: LinearFigures) -> Claim:
    """Return the claim with a note if its value is only enclosed by bounds."""
    if figures.leading.complete:
        return claim
    statement = claim.statement + " (not computed exactly: bounds from residuals)"
    reference = f"{claim.reference}; {_SOURCES[figures.leading.source]}"
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


def _judge(
    name: str, statement: str, reference: str, figure: Ball, threshold: float, advice: str
) -> Claim:
    value, error = float(figure.value), float(figure.error)
    return at_most(name, statement, reference, value, threshold, advice, error=error)


def _subspace_claim(figures: LinearFigures) -> Claim:
    statement = "the decoder spans the principal subspace (mean squared sine of the angles)"
    reference, found = f"{_DEFINITIONS} 7.2", figures.leading.subspace
    k, leading = figures.k, figures.leading
    if leading.complete and not leading.determined(k):
        bound = float(leading.steps(k)[1][-1])
        why = (
            f"Eigenvalues {k - 1} and {k} of the covariance, counted from 0, differ by less than "
            f"{bound:.1g}, which rounding errors can change: the principal subspace of these data "
            "is not unique."
        )
        if leading.values.value[k - 1] <= bound:
            why = (
                f"Eigenvalue {k - 1} of the covariance, counted from 0, is below {bound:.1g}, the "
                "size of its rounding errors: these data do not determine the last directions of "
                "the subspace."
            )
        value = float(found.value)
        if leading.hidden or figures.inexact:
            why = _hidden_note(figures) if leading.hidden else why + _inexact_note(figures)
            return undecided("subspace", statement, reference, why, value)
        return Claim("subspace", statement, reference, value, advice=why, error=float(found.error))
    advice = _distance_advice(figures)
    claim = _judge("subspace", statement, reference, found, _allowed(k), advice)
    return _enclosed(claim, figures)


def _alignment_claim(figures: LinearFigures) -> Claim:
    statement = "each principal axis is parallel to a decoder column (mean squared sine)"
    reference = f"{_DEFINITIONS} 7.1"
    leading, k = figures.leading, figures.k
    if not figures.method.expected().aligns:
        distance = float(np.mean(leading.misalignments.value))
        why = (
            f"Method {figures.method.name!r} determines the latents only up to a rotation, so the "
            "mean squared sine is not judged."
        )
        return Claim("alignment", statement, reference, distance, advice=why)
    # Where only bounds are known, a component that they do not separate may be a wrong latent.
    shared = leading.unidentifiable(k) if leading.complete else np.empty(0, dtype=int)
    identifiable = np.setdiff1d(np.arange(k), shared)
    if not len(identifiable):
        why = (
            "Each of the leading eigenvalues equals the one before or after it up to rounding, so "
            "these data determine no principal axis."
        )
        if leading.hidden or figures.inexact:
            why = _hidden_note(figures) if leading.hidden else why + _inexact_note(figures)
            return undecided("alignment", statement, reference, why)
        return does_not_apply("alignment", statement, reference, why)
    bound, found = _allowed(len(identifiable)), leading.alignment(identifiable)
    advice = _distance_advice(figures)
    claim = _enclosed(_judge("alignment", statement, reference, found, bound, advice), figures)
    if not len(shared):
        return claim
    limit = f"{_components(shared)} not determined by these data and left out of the mean."
    limit = _hidden_note(figures) if leading.hidden else limit + _inexact_note(figures)
    # The rows may determine what their products do not.
    if claim.holds and (leading.hidden or figures.inexact):
        return undecided("alignment", statement, reference, limit, float(found.value), bound)
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


def _inexact_note(figures: LinearFigures) -> str:
    """Return advice for claims that an inexact covariance leaves undecided; empty otherwise."""
    if not figures.inexact:
        return ""
    error = f"{figures.measured.data.error:.1g}"
    if not figures.fit_rounding:
        return f" The covariance of the fit is known to be that of the rows only up to {error}."
    return (
        f" The covariance of the fit differs from that of the rows by up to {error}, because "
        "products of float32 rows were computed in single precision: give X as float64 to fit or "
        "to lucidae.certify."
    )


def _distance_advice(figures: LinearFigures) -> str:
    zero = figures.measured.zero_latents
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
    """Return the advice on how to improve a fit, which depends on why the training stopped."""
    if figures.exact:
        return "The weights are a closed form, which should be the optimum of the data of the fit."
    exact = ", or use solver='exact'" if figures.method.objective.has_minimizer else ""
    found = figures.measured.stationarity
    if found is None or not found.value <= figures.tolerance:
        return f"Train longer (increase max_iter){exact}."
    return (
        f"The stopping rule is met (tol={figures.tolerance:g}), but the directions of large "
        "variance dominate it: standardise the columns of X, lower tol and raise max_iter"
        f"{exact}."
    )


def _zero_sentence(figures: LinearFigures) -> str:
    zero = _listed(figures.measured.zero_latents)
    if len(figures.measured.zero_latents) == 1:
        one = f"Penalty {zero} is not below the eigenvalue of its component, so latent {zero}"
        return one + " is zero at the optimum"
    many = f"Penalties {zero} are not below the eigenvalues of their components, so latents {zero}"
    return many + " are zero at the optimum"


def _order_claim(figures: LinearFigures) -> Claim:
    statement = "the latents are in descending order of variance (largest relative increase)"
    if not figures.method.expected().orders:
        reference = _cited(figures, "Bao et al. 2020, Theorems 3 and 5")
        why = f"Method {figures.method.name!r} does not order its latents."
        return does_not_apply("order", statement, reference, why)
    advice = "Sort the latents by their variance, largest first."
    if not figures.from_elsewhere:
        advice = f"{_more_training(figures)} Or sort the latents by their variance."
    reference = reference_of(figures.method.expected()).citation
    return _judge("order", statement, reference, figures.measured.rise, RISE, advice)


def _stationarity_claim(figures: LinearFigures) -> Claim:
    name = "stationarity"
    statement = "the weights are a fixed point of the update rule (relative norm of the update)"
    reference = _cited(figures, "definition of a stationary point")
    found = figures.measured.stationarity
    if found is None:
        return undecided(name, statement, reference, _NO_NOISE)
    bound = float(np.clip(10 * figures.tolerance, *STATIONARITY))
    return _judge(name, statement, reference, found, bound, _training_advice(figures))


def _gap_claim(figures: LinearFigures) -> Claim:
    judge = reference_of(figures.method.objective)
    statement, reference = figures.method.objective.gap_statement, judge.citation
    found = figures.measured.losses.gap
    if found is None:
        why = _NO_NOISE
        if not judge.independent:
            why = "The global minimum of this objective is not known: the gap cannot be computed."
        return undecided("gap", statement, reference, why)
    if found.value < -GAP:
        advice = (
            "The loss is below the global minimum that theory gives for these data, which is "
            "impossible: the weights do not belong to these data."
        )
        value, error = float(found.value), float(found.error)
        return at_least("gap", statement, reference, value, -GAP, advice, error=error)
    return _judge("gap", statement, reference, found, GAP, _training_advice(figures))


def _balance_claim(figures: LinearFigures) -> Claim:
    statement = "encoder W₁ and decoder W₂ are balanced: W₁W₁ᵀ = W₂ᵀW₂ (relative difference)"
    reference = _cited(figures, "Bao et al. 2020, Theorem 1")
    if not figures.method.expected().balanced:
        why = "At the optimum of this method the scale of a latent is not determined."
        return does_not_apply("balance", statement, reference, why)
    advice = (
        "Gradient steps on untied weights disturb the balance in proportion to the learning rate: "
        "set tied=True, or lower learning_rate."
    )
    return _judge("balance", statement, reference, figures.measured.balance, BALANCE, advice)


def _nonzero_claim(figures: LinearFigures) -> Claim:
    name = "nonzero_latents"
    statement = "every penalty is below the eigenvalue of its component (number of exceptions)"
    reference = _cited(figures, "Bao et al. 2020, Theorem 2 (assumption)")
    if not figures.method.objective.has_penalties:
        return does_not_apply(name, statement, reference, "This method has no penalties.")
    zeros, uncertain = figures.measured.zero_latents, figures.measured.uncertain_latents
    # A component without variance has a latent of zero under every penalty: no exception.
    values = _resolved(figures.leading)
    zero = int(np.sum(values[zeros] > 0.0))
    if len(zeros) and not zero:
        why = f"{_components(zeros)} without variance, so that every penalty makes them zero."
        return does_not_apply(name, statement, reference, why)
    if not zero and len(uncertain):
        why = (
            f"Penalties {_listed(uncertain)} differ from the eigenvalues of their components by "
            f"less than the rounding error {float(figures.leading.values.error[0]):.1g}, so the "
            "claim cannot be tested. The other claims judge the fit without this assumption."
            f"{_inexact_note(figures)}"
        )
        return does_not_apply(name, statement, reference, why)
    advice = ""
    if zero:
        advice = (
            f"{_zero_sentence(figures)}: the smallest possible value of the claim subspace is "
            f"{zero}/{figures.k} = {zero / figures.k:.3g}."
        )
    return at_most(name, statement, reference, float(zero), 0.0, advice)


def _eigengap_claim(figures: LinearFigures) -> Claim:
    """Return the claim `eigengap`; equal eigenvalues are a property of the data, not a failure."""
    statement = (
        "neighbouring eigenvalues differ, so these data determine each component (relative "
        "difference of eigenvalues)"
    )
    reference = _cited(figures, "Bao et al. 2020, Section 2 (assumption)")
    if not figures.method.expected().aligns:
        why = f"Method {figures.method.name!r} finds the principal subspace but not its axes."
        return does_not_apply("eigengap", statement, reference, why)
    leading, k = figures.leading, figures.k
    unit = max(float(leading.values.value[0]), TINY)
    apart, needed = leading.steps(k)
    shared = leading.unidentifiable(k)
    least = int(np.argmin(apart / needed if len(shared) else apart))
    gap, bound = apart[least] / unit, needed[least] / unit
    if not len(shared):
        return at_least("eigengap", statement, reference, float(gap), float(bound))
    value = float(gap) if math.isfinite(gap) else None
    if not leading.complete:
        why = (
            "Not decided: with more than 1024 features the eigenvalues are only bounded, and the "
            f"bounds do not separate the eigenvalues of components {_listed(shared)} from others."
        )
        return undecided("eigengap", statement, reference, why, value, float(bound))
    why = (
        f"{_components(shared)} not determined by these data: the eigenvalue differs from the one "
        "before or after it, or from zero, by no more than rounding errors. This is no fault of "
        "the fit: interpret the subspace of such components, not each of them."
    )
    if leading.hidden or figures.inexact:
        why = _hidden_note(figures) if leading.hidden else why + _inexact_note(figures)
        return undecided("eigengap", statement, reference, why, value, float(bound))
    return Claim("eigengap", statement, reference, value, float(bound), advice=why)


_FEWER = "Choose fewer components, or collect more rows, before you interpret them."


def _sampling_claim(figures: LinearFigures) -> Claim:
    """Return the claim `sampling`: how many components stand out, and which are alike."""
    statement = "number of components that stand out of sampling noise, for independent rows"
    reference = "Johnstone 2001; Anderson 1963"
    if isinstance(figures.sampling, str):
        return does_not_apply("sampling", statement, reference, figures.sampling)
    (above, similar, turned), k = figures.sampling, figures.k
    count = len(above)
    if count == k:
        which = {1: "The component stands", 2: "Both components stand"}
        advice = f"{which.get(k, f'All {k} components stand')} out of sampling noise."
    else:
        others = np.setdiff1d(np.arange(k), above)
        advice = (
            f"{count} of {k} components {'stands' if count == 1 else 'stand'} out of sampling "
            f"noise; component{'s' * (len(others) > 1)} {_listed(others)} "
            f"{'does' if len(others) == 1 else 'do'} not: another sample of as many rows could "
            f"give other directions. {_FEWER}"
        )
    if len(similar) == 1:
        advice += (
            f" The variance of component {_listed(similar)} is close to that of others: another "
            "sample of as many rows could turn its direction towards theirs."
        )
    elif len(similar):
        advice += (
            f" Components {_listed(similar)} have nearly equal variances: another sample of as "
            "many rows could give other directions in their subspace. Interpret them together."
        )
    if turned is not None and turned < TURNED and count == k:
        advice += (
            " The mean squared sine of the angles of their subspace to that of the population is "
            f"about {turned:.2g}."
        )
    elif turned is not None and count == k:
        advice = (
            f"The variance of component {k - 1} is too close to that of component {k} for this "
            f"number of rows: another sample could give another subspace. {_FEWER}"
        )
    claim = reported("sampling", statement, reference, float(count), advice)
    return replace(claim, headline=f"sampling: {count} of {k}")


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


def _leverage_claim(figures: LinearFigures) -> Claim:
    """Return the claim `leverage`, which names rows that carry more than their share."""
    statement = "largest share of one row in a component or in the total variance"
    reference, found = "Cook & Weisberg 1982", figures.measured.leverage
    if found is None:
        why = "The rows are not known any more, or there are fewer than ten of them."
        return does_not_apply("leverage", statement, reference, why)
    if not len(found.rows):
        return reported("leverage", statement, reference, found.largest)
    named = ", ".join(
        f"row {row} has {100 * share:.3g} % of "
        f"{'the total variance' if at < 0 else f'component {at}'}"
        for row, share, at in list(zip(*found[1:], strict=True))[:3]
    )
    more = "" if len(found.rows) <= 3 else f", and {len(found.rows) - 3} more rows"
    advice = (
        f"Counted from 0, {named}{more}: more than {100 * LEVERAGE:.2g} %. Look at such rows, and "
        "fit without them to see what they change."
    )
    rows = (
        f"{'row' if len(found.rows) == 1 else 'rows'} {', '.join(map(str, found.rows[:3]))}{more}"
    )
    headline = f"influence: {rows}"
    claim = Claim("leverage", statement, reference, found.largest, LEVERAGE, advice=advice)
    return replace(claim, headline=headline)


def _conditioning_claim(figures: LinearFigures) -> Claim:
    statement = "condition number of the loss's Hessian at the optimum (zero eigenvalues left out)"
    reference = _cited(figures, "Bao et al. 2020, Sections 4.3 and 5")
    if figures.conditioning is None:
        why = "The Hessian is not known for this method, or all latents are zero at its optimum."
        why = why + _inexact_note(figures) if figures.leading.complete else _NO_SPECTRUM
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
        why = why if figures.leading.complete else _NO_SPECTRUM
        return does_not_apply("epochs", statement, reference, why)
    return reported("epochs", statement, reference, figures.epochs)


_ATTRIBUTES = "fitted components, variances and mean agree with weights and data (relative error)"
_DEFINED = "definition of the attributes"


def _attributes_claim(figures: LinearFigures) -> Claim:
    statement, reference = _ATTRIBUTES, _DEFINED
    if figures.attributes is None:
        why = "A pair of weights was given, which has no fitted attributes."
        return does_not_apply("attributes", statement, reference, why)
    name, value = figures.attributes
    advice = (
        f"{name} differs most. The estimator was changed after fit, or X is not the data that was "
        "passed to fit."
    )
    data = figures.measured.data
    known = data.error / max(data.trace, TINY) if data.trace > 0.0 else 0.0
    error = gamma(8 * data.n_features) + max(min(known, 1.0), figures.fit_rounding)
    # With products in single precision the errors are half of the threshold and more.
    bound = max(ATTRIBUTES, 2 * error)
    return at_most("attributes", statement, reference, value, bound, advice, error=error)


def _moment_claim(figures: LinearFigures) -> Claim:
    statement = (
        "the covariance of the fit is that of the rows (bound on the difference, divided by the "
        "total variance)"
    )
    reference, found = "Freivalds 1979, failure probability 1e-9", figures.measured.data.moment
    if found is None:
        why = "No covariance was used: all values were computed from the rows."
        origin = figures.measured.data.origin
        if origin == "given":
            why = "A covariance was given without its rows, and was taken as the data."
        if origin == "lost":
            why = (
                "The rows of this covariance are not known any more, so that nothing tests it: "
                "call lucidae.certify(estimator, X) with all rows X."
            )
            return undecided("moment", statement, reference, why)
        return does_not_apply("moment", statement, reference, why)
    advice = "The covariance was changed after it had been computed, or was computed wrongly."
    bound = max(MOMENT, SINGLE * figures.fit_rounding)
    return _judge("moment", statement, reference, found, bound, advice)


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


def _components(numbers: Vector) -> str:
    """Return “Component 3 is” or “Components 3, 5 are” for the given numbers of components."""
    one = len(numbers) == 1
    return f"Component{'' if one else 's'} {_listed(numbers)} {'is' if one else 'are'}"


def _listed(numbers: Vector) -> str:
    """Return ascending integers as text with runs abbreviated, such as “3–5, 9” for 3, 4, 5, 9."""
    runs: list[list[int]] = []
    for number in map(int, numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)
