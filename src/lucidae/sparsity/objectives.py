"""The energies that sparse solvers minimise: value, gradient, distance to stationarity, updates.

They are per response and in the units of the canonical problem; `problem` defines the terms. The
VAEs share the data term tr(XXᵀΣ⁻¹) and differ in their log-volume, which does not depend on X. The
deterministic autoencoder has a penalty on its coefficients instead.

Update rules are written with the alignment Q and not with the mean square a = w²Q of the
coefficients, which would give 0/0 if a relevance is zero; none raises the energy.

The state of a problem are the quantities that follow from one factorisation Σ = LLᵀ. The
*curvature* of a column is z = φᵀΣ⁻¹φ and its *alignment* Q = ‖φᵀΣ⁻¹X‖²/n, the derivatives of
log|Σ| and, with the opposite sign, of the data term in its relevance. *Whitened* columns are L⁻¹φ,
and the *loading* is ΦᵀΣ⁻¹Y. Only `factorise` factorises Σ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from lucidae.arrays import (
    Array,
    adjoint,
    cholesky,
    diagonal,
    eye_like,
    inverse_lower,
    like,
    machine_epsilon,
    multiply_lower,
    namespace,
    real_part,
    squared_moduli,
    squared_norm,
    squared_norms,
    to_numpy,
)
from lucidae.sparsity.prior import Axes, Groups
from lucidae.sparsity.problem import (
    Dictionary,
    Problem,
    SparseDictionary,
    Units,
    adjoint_times,
    column_squares,
    covariance,
    dense_columns,
    norms_after,
    root_by_qr,
)
from lucidae.validation import check_choice, check_number


class Factor(NamedTuple):
    """A Cholesky factorisation Σ = LLᵀ: L⁻¹, L⁻¹Y and log|Σ|."""

    inverse: Array
    responses: Array
    log_determinant: Array


class State(NamedTuple):
    """A problem with relevances, and the quantities that follow from them (Wipf 2023, eq. 18).

    Y has p columns and YYᵀ = XXᵀ/n. With several problems every field has one more leading axis.
    The last four fields have shape (0, 0) if they are not stored.
    """

    dictionary: Dictionary  # the fields of `Problem`
    responses: Array
    noise: Array
    outside: Array
    spare: Array
    relevance: Array  # (κ,): the relevances
    curvature: Array  # (κ,): φⱼᵀΣ⁻¹φⱼ for each column
    alignment: Array  # (κ,): ‖φⱼᵀΣ⁻¹X‖²/n for each column
    fit: Array  # (): the data term tr(XXᵀΣ⁻¹)/n, and log|Σ|
    log_determinant: Array
    inverse: Array  # (d, d): the inverse L⁻¹ of the Cholesky factor
    # (d, p): L⁻¹Y and L⁻¹Φ. The latter is never stored for a sparse dictionary
    whitened_responses: Array
    whitened: Array
    loading: Array  # (κ, p): φᵀΣ⁻¹Y. It is never stored for a sparse dictionary

    @property
    def problem(self) -> Problem:
        """The problem without its relevances."""
        return Problem(*self[:5])

    @property
    def energy_of_fit(self) -> Array:
        """Data term tr(XXᵀΣ⁻¹)/n, including responses outside the span of the dictionary."""
        return self.fit + self.outside / self.noise

    @property
    def residual(self) -> Array:
        """Squared residual ‖X − ΦU‖²/n of the posterior mean U.

        X − ΦU = γΣ⁻¹X and Σ⁻¹ = γΣ⁻² + Σ⁻¹ΦWΦᵀΣ⁻¹, so it is γ² tr(XXᵀΣ⁻²)/n = γ(tr(XXᵀΣ⁻¹)/n − Σⱼ
        wⱼQⱼ).
        """
        explained = namespace(self.relevance).sum(self.relevance * self.alignment, axis=-1)
        return self.noise * (self.fit - explained) + self.outside

    def compact(self) -> State:
        """Return the state without the four fields of matrices, which saves memory."""
        nothing = self.inverse[..., :0, :0]
        return self._replace(
            inverse=nothing, whitened_responses=nothing, whitened=nothing, loading=nothing
        )


class PrincipalState(State):
    """The state of a problem in the principal axes of the covariances of its groups."""

    axes: Axes  # the principal axes
    groups: Groups  # the groups of columns

    @classmethod
    def at(cls, state: State, axes: Axes, groups: Groups) -> PrincipalState:
        """Return a `PrincipalState` with the fields of `state`, and with these axes and groups."""
        made = cls(*state)
        made.axes, made.groups = axes, groups
        return made

    @property
    def covariances(self) -> Array:
        """The prior covariance of each group, of shape (g, m, m), padded with zeros."""
        return self.axes.covariances(self.relevance, self.groups)


def prior_in_units(state: State, units: Units) -> tuple[Array, Array | None]:
    """Return the relevances in the units of the data, and the covariances of groups, if any.

    With covariances, the relevances of the columns are their diagonals.
    """
    relevance = units.relevance * state.relevance
    if not isinstance(state, PrincipalState):
        return relevance, None
    covariances = state.axes.covariances(relevance, state.groups)
    return state.groups.spread(real_part(diagonal(covariances))), covariances


def factorise(problem: Problem, relevance: Array) -> Factor:
    """Return the factorisation of the covariance Σ at given relevances.

    If rounding makes Σ indefinite, QR serves a single problem; among several its factor is NaN.
    """
    xp, dictionary = namespace(problem.noise), problem.dictionary
    factor, definite = cholesky(covariance(dictionary, relevance, problem.noise))
    if relevance.ndim == 1 and not bool(definite) and bool(xp.all(xp.isfinite(relevance))):
        dictionary = dense_columns(dictionary, np.arange(dictionary.shape[1]))
        factor, _ = root_by_qr(adjoint(dictionary * xp.sqrt(relevance)[None, :]), problem.noise)
    log_determinant = 2.0 * xp.sum(xp.log(xp.abs(xp.linalg.diagonal(factor))), axis=-1)
    inverse = inverse_lower(factor)
    return Factor(inverse, inverse @ problem.responses, log_determinant)


def evaluate(
    problem: Problem, relevance: Array, *, columns: bool = False, curvature: bool = True
) -> State:
    """Return the state at given relevances: one Cholesky factorisation, one product with Φ.

    `columns` stores the whitened columns and the loading of a dense dictionary, in place of L⁻¹.
    Without `curvature`, which not all energies need, the curvatures are NaN.
    """
    factor = factorise(problem, relevance)
    nothing = factor.inverse[..., :0, :0]
    stored = (factor.inverse, factor.responses, nothing, nothing)
    if not curvature or isinstance(problem.dictionary, SparseDictionary):
        precise = adjoint(factor.inverse) @ factor.responses
        alignment = squared_norms(adjoint_times(problem.dictionary, precise), -1)
        norms = namespace(relevance).full_like(relevance, np.nan)
        if curvature:
            norms = norms_after(problem.dictionary, factor.inverse)
    else:
        whitened = multiply_lower(factor.inverse, problem.dictionary)
        loading = adjoint(whitened) @ factor.responses
        norms, alignment = squared_norms(whitened, -2), squared_norms(loading, -1)
        if columns:
            stored = (nothing, nothing, whitened, loading)
    fit = squared_norm(factor.responses)
    return State(*problem, relevance, norms, alignment, fit, factor.log_determinant, *stored)


def whitened_columns(state: State, index: Any) -> tuple[Array, Array]:
    """Return L⁻¹Φ and ΦᵀΣ⁻¹Y for the columns Φ with the indices `index`, of one problem."""
    if state.whitened.shape[-1]:
        return state.whitened[:, index], state.loading[index]
    whitened = multiply_lower(state.inverse, dense_columns(state.dictionary, index))
    return whitened, adjoint(whitened) @ state.whitened_responses


def flat_start(problem: Problem, groups: Groups | None = None) -> Array:
    """Return equal relevances for which the prior variance of a response is its mean square.

    Zero columns get zero, but a zero column of a group the relevance of its group.
    """
    # Newton steps and the test of significance read a group's relevance off its first column.
    squares, (rows, columns) = column_squares(problem.dictionary), problem.dictionary.shape[-2:]
    squares = squares if groups is None else groups.share(squares)
    return namespace(squares).where(squares > 0, rows / columns, 0.0 * squares)


def positive(values: Array) -> Array:
    """Return `values` with entries that are not positive replaced by one, as divisors."""
    xp = namespace(values)
    return xp.where(values > 0, values, xp.ones_like(values))


def leave_one_out(state: State) -> tuple[Array, Array]:
    """Return the sparsity sⱼ and the squared quality qⱼ² of each column (Tipping & Faul 2003).

    These are zⱼ and Qⱼ after the column is left out of Σ: by Sherman–Morrison sⱼ = zⱼ/(1 − wⱼzⱼ)
    and qⱼ² = Qⱼ/(1 − wⱼzⱼ)². The divisor, the posterior variance of the column's latent, is kept
    above zero.
    """
    xp = namespace(state.relevance)
    variance = 1.0 - state.relevance * state.curvature
    variance = xp.maximum(variance, xp.full_like(variance, machine_epsilon(variance)))
    return state.curvature / variance, state.alignment / variance**2


SMALLEST = 1e-300
"""Mean square of a column's coefficients below which they count as zero."""


@runtime_checkable
class Penalty(Protocol):
    """A concave, non-decreasing function of the mean square of a column's coefficients."""

    def value(self, power: Array) -> Array:
        """Return the penalty at each of the positive mean squares `power` of coefficients."""
        ...

    def supergradient(self, power: Array) -> Array:
        """Return the derivative of the penalty at the mean squares `power` of coefficients."""
        ...


@dataclass(frozen=True, slots=True)
class LogPenalty:
    """h(a) = log a, the limit of the diagonal VAE as γ → 0 (Wipf 2023, Lemma 4.3)."""

    def value(self, power: Array) -> Array:
        """Return the penalty, the logarithm of the mean squares `power` of coefficients."""
        return namespace(power).log(power)

    def supergradient(self, power: Array) -> Array:
        """Return the derivative of the penalty, 1 divided by the mean squares `power`."""
        return 1.0 / power


@dataclass(frozen=True, slots=True)
class PowerPenalty:
    """h(a) = a^p / p with 0 < p ≤ 1; p = ½ gives the penalty of the group lasso."""

    exponent: float = 0.25

    def __post_init__(self) -> None:
        check_number(self.exponent, "exponent", low=0.0, high=1.0, open_low=True)

    def value(self, power: Array) -> Array:
        """Return the penalty a^p / p at the mean squares a = `power`, with the exponent p."""
        return power**self.exponent / self.exponent

    def supergradient(self, power: Array) -> Array:
        """Return h′(a) = a^(p−1) at the mean squares a = `power`."""
        return power ** (self.exponent - 1.0)


@dataclass(frozen=True, slots=True)
class ArctanPenalty:
    """h(a) = arctan(a/ε) with ε = `width`, bounded: nearly a count of the columns in use."""

    width: float = 1e-2

    def __post_init__(self) -> None:
        check_number(self.width, "width", low=0.0, open_low=True)

    def value(self, power: Array) -> Array:
        """Return the penalty: the arctangent of the mean squares `power` divided by the width."""
        return namespace(power).atan(power / self.width)

    def supergradient(self, power: Array) -> Array:
        """Return h′(a) = ε/(ε² + a²) at the mean squares a = `power`."""
        return self.width / (self.width**2 + power**2)


PENALTIES: dict[str, Penalty] = {
    "log": LogPenalty(),
    "power": PowerPenalty(),
    "arctan": ArctanPenalty(),
}


def stored_penalty(penalty: Any) -> Any:
    """Return a penalty of this module as its name and constants, anything else as it is."""
    names = {type(known): name for name, known in PENALTIES.items()}
    known = type(penalty) in names
    return {"name": names[type(penalty)], **asdict(penalty)} if known else penalty


def penalty_of(stored: Any) -> Any:
    """Return the penalty that `stored_penalty` has converted."""
    if not isinstance(stored, dict):
        return stored
    constants = dict(stored)
    kind: Any = type(PENALTIES[constants.pop("name")])
    return kind(**constants)


def penalty_value(penalty: Penalty, power: Array) -> Array:
    """Return the penalty at the mean squares `power`, but at least `SMALLEST`, of coefficients."""
    xp = namespace(power)
    return penalty.value(xp.maximum(power, xp.full_like(power, SMALLEST)))


def ridge_relevance(penalty: Penalty, power: Array) -> Array:
    """Return 1/h′(a), zero if h′(a) is infinite.

    Ridge regression with it bounds the penalised problem and is equal to it at a.
    """
    xp = namespace(power)
    # h(a) ≤ h(a₀) + h′(a₀)(a − a₀): the tangent of a concave h majorises it, and is the ridge
    # penalty a/w with w = 1/h′(a₀). At the floor, w is SMALLEST for h = log: the row stays zero.
    weights = 1.0 / penalty.supergradient(xp.maximum(power, xp.full_like(power, SMALLEST)))
    return xp.where(weights > 2.0 * SMALLEST, weights, 0.0 * weights)


def as_penalty(penalty: Any) -> Penalty:
    """Return the penalty of that name, or `penalty` if it has `value` and `supergradient`."""
    if isinstance(penalty, str) and penalty in PENALTIES:
        return PENALTIES[penalty]
    if isinstance(penalty, Penalty) and not isinstance(penalty, type | str):
        return penalty
    named = ", ".join(map(repr, PENALTIES))
    raise ValueError(
        f"penalty={penalty!r} was given, expected one of {named}, or an object with the methods "
        "value(power) and supergradient(power)."
    )


Update: TypeAlias = Callable[[State, Groups | None], Array]

SMALLEST_LEARNED = 1e-10
"""Smallest value of a learned noise variance, relative to the mean square response."""


def _totals(state: State, groups: Groups | None) -> tuple[Array, Array]:
    """Return the alignment and the curvature of each column, or of its group if it has one."""
    if groups is None:
        return state.alignment, state.curvature
    return groups.share(state.alignment), groups.share(state.curvature)


def expectation_maximization(state: State, groups: Groups | None = None) -> Array:
    """Return w + w²(Q − z), the posterior second moment: one EM step (Wipf & Rao 2007)."""
    alignment, curvature = _totals(state, groups)
    slope = alignment - curvature
    if groups is not None:
        slope = slope / groups.share(namespace(slope).ones_like(slope))
    grown = state.relevance * (1.0 + state.relevance * slope)
    return namespace(grown).maximum(grown, 0.0 * grown)


def majorize_minimize(state: State, groups: Groups | None = None) -> Array:
    """Return w √(Q/z), one step of majorise–minimise (Wipf 2023, eq. 21).

    It minimises an upper bound of the energy that is equal to it at w.
    """
    # log|Σ| is concave in w, with gradient z; the data term is the minimum over U of
    # ‖X − ΦU‖²/γ + Σ a/w. So a/w + zw majorises the energy, and is minimal at w = √(a/z).
    alignment, curvature = _totals(state, groups)
    return state.relevance * namespace(alignment).sqrt(alignment / positive(curvature))


def mackay(state: State, groups: Groups | None = None) -> Array:
    """Return w Q/z, one step of MacKay's rule (MacKay 1992).

    The bound of `majorize_minimize` has the same value before and after it, so that the energy does
    not rise.
    """
    alignment, curvature = _totals(state, groups)
    return state.relevance * (alignment / positive(curvature))


UPDATES: dict[str, Update] = {
    "em": expectation_maximization,
    "mm": majorize_minimize,
    "mackay": mackay,
}
"""The update rules, by name, for the loss of the VAE with full posterior covariance."""


def learned_noise(state: State, degrees_of_freedom: Array) -> Array:
    """Return (‖X − ΦU‖²/n + γ f)/d, at least `SMALLEST_LEARNED`: one EM step of γ.

    f are the effective parameters, `degrees_of_freedom`.
    """
    xp = namespace(state.noise)
    # The independent rows of the data, including those outside the span of the dictionary.
    dimension = state.spare + float(state.dictionary.shape[-2])
    noise = (state.residual + state.noise * degrees_of_freedom) / positive(dimension)
    return xp.maximum(noise, xp.full_like(noise, SMALLEST_LEARNED))


class Energy(ABC):
    """Base class of energies: losses, functions of the relevances, that solvers minimise.

    The relevances are the prior variances of the coefficients. A subclass defines `value`,
    `violation` and `update`. It overrides the attributes below if solvers can do more with it than
    repeat the update.

    Attributes
    ----------
    groups : Groups or None
        Groups of columns that share one relevance; None if every column has its own.
    rules : tuple of str
        Names of the update rules that the energy has; every energy has "mm".
    has_posterior : bool
        Whether the posterior has a variance, so that the noise variance can be learned.
    needs_curvature : bool
        Whether `update` or `violation` depend on the field `curvature` of the state.
    exact_coordinates : bool
        Whether the minimum of the energy in one relevance, which a group of columns may share, can
        be found exactly, with all others fixed (Wipf 2023, Theorem 4.4).
    """

    groups: Groups | None = None
    rules: ClassVar[tuple[str, ...]] = ("mm",)
    has_posterior: ClassVar[bool] = False
    needs_curvature: ClassVar[bool] = True
    exact_coordinates: ClassVar[bool] = False

    @property
    def marginal(self) -> Marginal | None:
        """The energy as a `Marginal`, which allows Newton steps; None if it has another form.

        A `Marginal` is the sum of a data term and a log-volume, a term that does not depend on the
        responses. The energy is the loss that is minimised.
        """
        return None

    @abstractmethod
    def value(self, state: State) -> Array:
        """Return the energy at the relevances of `state`, divided by the number of responses.

        The energy is the loss, a bound on minus the log-likelihood. The relevance of a column is
        the prior variance of its coefficients.
        """

    @abstractmethod
    def violation(self, state: State) -> Array:
        """Return the distance of the relevances in `state` to optimality, a dimensionless number.

        The relevance of a column is the prior variance of its coefficients.
        """

    @abstractmethod
    def update(self, rule: str = "mm") -> Callable[[State], Array]:
        """Return the update rule of that name: a function from a state to new relevances.

        The relevance of a column is the prior variance of its coefficients.
        """

    def parameters(self, state: State) -> Array:
        """Return what was fitted, from which another fit can start: the relevances of `state`.

        The relevance of a column is the prior variance of its coefficients. An energy (loss) with
        other parameters, such as covariances of groups, returns those.
        """
        return state.relevance

    def degrees_of_freedom(self, state: State) -> Array:
        """Return the effective number of parameters of the fit; zero for a point estimate.

        The noise variance is updated with the squared residual plus this number times the old noise
        variance.
        """
        return state.noise * 0.0

    def in_units(self, per_response: Array, units: Units) -> Array:
        """Return the energy (loss) of all responses in the units of the data.

        `per_response` is the energy per response, as `value` returns it for the scaled dictionary
        and responses, and `units` contains the scales and the number of responses.
        """
        return units.n_responses * (per_response + units.log_volume * self.has_posterior)


@dataclass(frozen=True, slots=True)
class Marginal(Energy):
    """An energy that is the sum of the data term tr(XXᵀΣ⁻¹) and a log-volume of Φ, w and γ."""

    groups: Groups | None = None
    has_posterior: ClassVar[bool] = True

    @property
    def marginal(self) -> Marginal:
        """The energy itself, since it is a data term plus a term without the responses."""
        return self

    @abstractmethod
    def volume(self, state: State) -> Array:
        """Return the log-volume, of the rows of the canonical problem alone."""

    @abstractmethod
    def pressure(self, state: State) -> Array:
        """Return the derivative of the log-volume in each relevance, without groups."""

    @abstractmethod
    def concavity(self, metric: Array, pressure: Array) -> Array:
        """Return minus the Hessian of the log-volume in the relevances; `metric` is ΦᵀΣ⁻¹Φ."""

    def reduced_value(self, state: State) -> Array:
        """Return the part of the energy per response that depends on the relevances."""
        return state.fit + self.volume(state)

    def value(self, state: State) -> Array:
        """Return the energy at the relevances of `state`, divided by the number of responses."""
        noise = state.noise
        constant = state.outside / noise + state.spare * namespace(noise).log(noise)
        return state.fit + self.volume(state) + constant

    def gradient(self, state: State) -> Array:
        """Return the derivative of the energy per response in each relevance (of a group)."""
        slope = self.pressure(state) - state.alignment
        return slope if self.groups is None else self.groups.share(slope)

    def violation(self, state: State) -> Array:
        """Return the distance to the KKT conditions Q = z if w > 0 and Q ≤ z if w = 0.

        For groups, Q and z are sums over their columns.
        """
        alignment, pressure = state.alignment, self.pressure(state)
        if self.groups is not None:
            alignment, pressure = self.groups.share(alignment), self.groups.share(pressure)
        xp, slope = namespace(pressure), alignment - pressure
        slack = xp.max(state.relevance * xp.abs(slope), axis=-1)
        return xp.maximum(slack, xp.max(slope / positive(pressure), axis=-1))

    def degrees_of_freedom(self, state: State) -> Array:
        """Return Σⱼ wⱼ·pressureⱼ, the effective parameters; tr(ΦWΦᵀΣ⁻¹) for the full energy."""
        xp = namespace(state.noise)
        return xp.sum(state.relevance * self.pressure(state), axis=-1)

    def in_units(self, per_response: Array, units: Units) -> Array:
        """Return the energy of all responses in data units; scaling shifts the log-volume."""
        shift = 2.0 * units.dimension * namespace(units.scale).log(units.scale)
        return units.n_responses * (per_response + shift + units.log_volume)


@dataclass(frozen=True, slots=True)
class FullCovariance(Marginal):
    """tr(XXᵀΣ⁻¹) + n log|Σ|: the VAE with a full posterior covariance (Wipf 2023, eq. 18)."""

    rules: ClassVar[tuple[str, ...]] = tuple(UPDATES)
    exact_coordinates: ClassVar[bool] = True

    def update(self, rule: str = "mm") -> Callable[[State], Array]:
        """Return the update rule "em", "mm" or "mackay": a function from a state to relevances."""
        update = UPDATES[rule]
        return lambda state: update(state, self.groups)

    def volume(self, state: State) -> Array:
        """Return the logarithm of the determinant of the covariance of a response."""
        return state.log_determinant

    def pressure(self, state: State) -> Array:
        """Return φᵀΣ⁻¹φ, the derivatives of log|Σ| in the relevances."""
        return state.curvature

    def concavity(self, metric: Array, pressure: Array) -> Array:  # noqa: ARG002
        """Return |metric|², entry by entry: minus the Hessian of log|Σ| in the relevances."""
        return squared_moduli(metric)


@dataclass(frozen=True, slots=True)
class GroupCovariance(FullCovariance):
    """The full energy with a covariance of its own for every group of columns (`prior`)."""

    rules: ClassVar[tuple[str, ...]] = ("mm",)

    @property
    def marginal(self) -> None:  # type: ignore[override]
        """None: Newton steps in the relevances do not apply to this energy."""
        return None

    def parameters(self, state: Any) -> Array:
        """Return the covariances of all groups (g, m, m), from which another fit can start."""
        return state.covariances


@dataclass(frozen=True, slots=True)
class DiagonalCovariance(Marginal):
    """tr(XXᵀΣ⁻¹) + n Σⱼ log(γ + wⱼ‖φⱼ‖²) + n(d − κ) log γ: the diagonal VAE (eq. 50)."""

    needs_curvature: ClassVar[bool] = False

    def update(self, rule: str = "mm") -> Callable[[State], Array]:  # noqa: ARG002
        """Return the update that minimises a/w + log(γ + wc) (Wipf 2023, eq. 50).

        a is the mean square of a column's coefficients and c its squared norm.
        """
        return self._update

    def _update(self, state: State) -> Array:
        """Return the positive root of w² − aw − aγ/c = 0, the minimum of a/w + log(γ + wc).

        Groups have no closed form, but the minimiser of a bound with tangents.
        """
        power, xp = state.relevance**2 * state.alignment, namespace(state.relevance)
        if self.groups is not None:
            pressure = positive(self.groups.share(self.pressure(state)))
            return xp.sqrt(self.groups.share(power) / pressure)
        offset = 4.0 * state.noise[..., None] / positive(column_squares(state.dictionary))
        return (power + xp.sqrt(power * (power + offset))) / 2.0

    def volume(self, state: State) -> Array:
        """Return Σⱼ log(1 + wⱼ‖φⱼ‖²/γ) + d log γ."""
        xp = namespace(state.relevance)
        ratios = state.relevance * column_squares(state.dictionary) / state.noise[..., None]
        rows = state.dictionary.shape[-2]
        return xp.sum(xp.log1p(ratios), axis=-1) + rows * xp.log(state.noise)

    def pressure(self, state: State) -> Array:
        """Return the derivative ‖φ‖²/(γ + w‖φ‖²) of the log-volume in each relevance."""
        norms = column_squares(state.dictionary)
        return norms / (state.noise[..., None] + state.relevance * norms)

    def concavity(self, metric: Array, pressure: Array) -> Array:
        """Return minus the Hessian of the log-volume: a diagonal matrix with `pressure` squared."""
        return eye_like(metric.shape[-1], pressure) * (pressure**2)[..., None, :]


@dataclass(frozen=True, slots=True)
class Autoencoder(Energy):
    """‖X − ΦU‖²/γ + n Σⱼ h(‖uⱼ‖²/n): the deterministic autoencoder (Wipf 2023, eq. 48).

    h is concave and does not fall. With h = log the energy is −∞ as soon as one row of U vanishes;
    `value` then takes the logarithm of `SMALLEST`.
    """

    penalty: Penalty = field(default_factory=LogPenalty)
    groups: Groups | None = None
    needs_curvature: ClassVar[bool] = False

    def power(self, state: State) -> Array:
        """Return the mean square of the coefficients of each column, averaged over its group."""
        power = state.relevance**2 * state.alignment
        if self.groups is None:
            return power
        return self.groups.share(power) / self.groups.share(namespace(power).ones_like(power))

    def value(self, state: State) -> Array:
        """Return the energy per response at the coefficients of `state`."""
        penalties = penalty_value(self.penalty, self.power(state))
        residual = state.residual / state.noise
        return residual + namespace(state.noise).sum(penalties, axis=-1)

    def update(self, rule: str = "mm") -> Callable[[State], Array]:  # noqa: ARG002
        """Return the update w = 1/h′(a): one step of iteratively reweighted ridge regression."""
        return self.ridge_relevance

    def ridge_relevance(self, state: State) -> Array:
        """Return 1/h′(a) for the mean squares a of the coefficients."""
        return ridge_relevance(self.penalty, self.power(state))

    def violation(self, state: State) -> Array:
        """Return the largest change of w in the next update, over the larger value plus γ."""
        xp = namespace(state.noise)
        target = self.ridge_relevance(state)
        largest = xp.maximum(target, state.relevance) + state.noise[..., None]
        return xp.max(xp.abs(target - state.relevance) / largest, axis=-1)


EnergyFactory: TypeAlias = Callable[[Penalty, Groups | None], Energy]

POSTERIORS: dict[str, EnergyFactory] = {
    "full": lambda _, groups: FullCovariance(groups),
    "diagonal": lambda _, groups: DiagonalCovariance(groups),
    "point": Autoencoder,
}
"""For each name of a posterior, the function of penalty and groups that makes its energy."""


def register_posterior(name: str, factory: EnergyFactory) -> None:
    """Make an energy (loss) available as ``SparseVAE(posterior=name)`` and in `solve_batch`.

    Parameters
    ----------
    name : str
        Name of the posterior, which must not be in use.
    factory : callable
        Function that returns an `Energy`. Its arguments are the penalty (an object with ``value``
        and ``supergradient``) and the groups of columns (a `Groups` or None). Saved estimators
        contain the name alone, so register it again before a loaded estimator is refitted or
        certified on data.

    Examples
    --------
    >>> register_posterior("marginal", lambda penalty, groups: FullCovariance(groups))
    >>> POSTERIORS["marginal"](LogPenalty(), None).groups is None
    True
    >>> del POSTERIORS["marginal"]
    """
    if not isinstance(name, str) or not name or name in POSTERIORS:  # type: ignore[redundant-expr]
        known = ", ".join(map(repr, POSTERIORS))
        raise ValueError(
            f"name={name!r} was given, expected a string that is not yet in use. Names in use: "
            f"{known}."
        )
    POSTERIORS[name] = factory


def make_objective(settings: Mapping[str, Any], n_columns: int) -> Energy:
    """Return the energy that belongs to arguments of `SparseVAE` with these names."""
    posterior, labels = settings["posterior"], settings["groups"]
    groups = None if labels is None else Groups.of(labels, n_columns)
    penalty = as_penalty(settings["penalty"])
    kind = check_choice(settings["group_covariance"], "group_covariance", ("spherical", "full"))
    factory = POSTERIORS[check_choice(posterior, "posterior", POSTERIORS)]
    if kind == "spherical":
        return factory(penalty, groups)
    if groups is None or posterior != "full":
        raise ValueError(
            "group_covariance='full' needs groups of columns and posterior='full', but "
            f"groups={'None' if groups is None else 'labels'} and posterior={posterior!r} were "
            "given."
        )
    return GroupCovariance(groups)


SLICE_POINTS = 400
"""Number of relevances at which a slice is evaluated."""

SLICE_RANGE = 1e-4, 1e2
"""Smallest and largest positive relevance of a slice, relative to its scale."""


@dataclass(frozen=True, eq=False)
class EnergySlice:
    """Energies (losses) along one relevance, with all others fixed (Wipf 2023, Figure 1).

    `SparseVAE.energy_slice` computes one.

    Parameters
    ----------
    column : int
        The column, or a column of the group, whose relevance (prior variance) is varied.
    fitted : float
        Its fitted relevance.
    relevance : ndarray of shape (m,)
        The relevances, ascending; the first is zero.
    full, diagonal, point : ndarray of shape (m,)
        Energies of the VAE with a full and with a diagonal posterior covariance, and of the
        deterministic autoencoder, summed over the outputs. The last one tends to −∞ with the
        relevance if its penalty is the logarithm; at zero it is NaN.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((20, 30))
    >>> y = X[:, [4]] @ rng.standard_normal((1, 5)) + 0.1 * rng.standard_normal((20, 5))
    >>> from lucidae import SparseVAE
    >>> model = SparseVAE(noise_variance=0.01).fit(X, y)
    >>> along = model.energy_slice(4)
    >>> [len(along.minima(name)) for name in ("full", "diagonal")]
    [1, 1]
    """

    column: int
    fitted: float
    relevance: Any
    full: Any
    diagonal: Any
    point: Any

    def __repr__(self) -> str:
        return f"EnergySlice(column={self.column}, {len(self.relevance)} relevances)"

    def minima(self, posterior: str) -> Any:
        """Return the relevances at which an energy has a local minimum on the slice.

        Parameters
        ----------
        posterior : {"full", "diagonal", "point"}
            Which of the three energies.

        Returns
        -------
        ndarray of float
            The relevances, ascending. The point estimate has no minimum at zero where its energy is
            −∞.
        """
        name = check_choice(posterior, "posterior", ("full", "diagonal", "point"))
        values = getattr(self, name)
        # The ends are minima only at zero: beyond the others the energies continue.
        found = scan_minima(self.relevance[np.isfinite(values)], values[np.isfinite(values)])
        ends = [self.relevance[-1], self.relevance[1]] if name == "point" else [self.relevance[-1]]
        return np.array([w for w in found if w not in ends], dtype=float)

    def plot(self, *, ax: Any = None, **line: Any) -> Any:
        """Draw the three energies; see `lucidae.displays.EnergySliceDisplay`.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Axes to draw on; by default a new figure is made.
        **line
            Keyword arguments of ``ax.plot``.

        Returns
        -------
        EnergySliceDisplay
            The display, already drawn.
        """
        from lucidae.displays import EnergySliceDisplay

        return EnergySliceDisplay(self).plot(ax=ax, **line)


def energy_slice(
    problem: Problem, units: Units, relevance: Array, column: int, penalty: Penalty,
    groups: Groups | None,
) -> EnergySlice:  # fmt: skip
    """Return the energies along the relevance of one column (or its group) of a problem."""
    moving = np.array([column])
    if groups is not None:
        moving = np.flatnonzero(groups.labels == groups.labels[column])
    # Columns of relevance zero add constants alone, so that they are left out.
    index = np.union1d(np.flatnonzero(to_numpy(relevance)), moving)
    part = problem.restricted(index)
    inside = None if groups is None else groups.restricted(index)
    weights, chosen = to_numpy(relevance)[index], np.isin(index, moving)
    state = evaluate(part, like(np.where(chosen, 0.0, weights), problem.noise))
    z, Q = (to_numpy(values)[chosen].sum() for values in (state.curvature, state.alignment))
    scale = max(float(weights[chosen].max()), chosen.sum() / z, Q / z**2) if z > 0 else 1.0
    grid = np.concatenate([[0.0], scale * np.geomspace(*SLICE_RANGE, SLICE_POINTS)])
    energies = {
        "full": FullCovariance(inside),
        "diagonal": DiagonalCovariance(inside),
        "point": Autoencoder(penalty, inside),
    }
    found: dict[str, list[float]] = {name: [] for name in energies}
    for value in grid:
        at = evaluate(part, like(np.where(chosen, value, weights), problem.noise))
        for name, energy in energies.items():
            found[name].append(float(energy.in_units(energy.value(at), units)))
    arrays = {name: np.array(values) for name, values in found.items()}
    arrays["point"][0] = np.nan
    given = to_numpy(units.relevance)[column]
    fitted = float(weights[chosen][0] * given)
    return EnergySlice(column, fitted, grid * given, **arrays)


def scan_minima(grid: Any, values: Any) -> list[float]:
    """Return the grid points at which sampled values have a strict local minimum, ends included."""
    heights = np.concatenate([[np.inf], to_numpy(values), [np.inf]])
    below = (heights[1:-1] < heights[:-2]) & (heights[1:-1] < heights[2:])
    return [float(point) for point in to_numpy(grid)[below]]
