"""The energies that sparse solvers minimise: value, gradient, distance to stationarity, updates.

They are per response and in the units of the canonical problem; `problem` defines the terms. The
VAEs share the data term tr(XXᵀΣ⁻¹) and differ in their log-volume, which does not depend on X. The
deterministic autoencoder has a penalty on its coefficients instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeAlias

from lucidae.arrays import Array, eye_like, namespace, squared_moduli
from lucidae.sparsity.dictionary import column_squares
from lucidae.sparsity.penalties import LogPenalty, Penalty, penalty_value, ridge_relevance
from lucidae.sparsity.prior import BlockPrior, Groups
from lucidae.sparsity.problem import Units
from lucidae.sparsity.state import State, complementarity, positive
from lucidae.sparsity.updates import UPDATES
from lucidae.validation import check_choice


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
    descends_between_noise_steps : bool
        How the noise variance is learned. If True, minimisations over the relevances alternate with
        updates of the noise variance. If False, both are updated in every step.
    needs_curvature : bool
        Whether `update` or `violation` depend on the field `curvature` of the state.
    patient : bool
        Whether up to 300 updates are made before Newton steps take over; otherwise at most
        the number that `solvers.BASIN_LIMIT` gives for the update rule.
    """

    groups: Groups | None = None
    rules: ClassVar[tuple[str, ...]] = ("mm",)
    has_posterior: ClassVar[bool] = False
    descends_between_noise_steps: ClassVar[bool] = False
    needs_curvature: ClassVar[bool] = True
    patient: ClassVar[bool] = False

    @property
    def exact_coordinates(self) -> bool:
        """Whether the minimum of the energy (loss) in one relevance can be found exactly.

        All other relevances are fixed (Wipf 2023, Theorem 4.4). The relevance of a column is the
        prior variance of its coefficients. It may be shared by a group of columns.
        """
        return False

    @property
    def prunes(self) -> bool:
        """Whether updates may leave out columns with a negligible relevance (prior variance)."""
        return False

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
        return units.n_responses * per_response


@dataclass(frozen=True, slots=True)
class Marginal(Energy):
    """An energy that is the sum of the data term tr(XXᵀΣ⁻¹) and a log-volume of Φ, w and γ."""

    groups: Groups | None = None
    has_posterior: ClassVar[bool] = True

    @property
    def prunes(self) -> bool:
        """Whether updates may leave out columns: those of a group only together."""
        return self.groups is None

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
        xp = namespace(state.noise)
        return state.energy_of_fit + self.volume(state) + state.spare * xp.log(state.noise)

    def gradient(self, state: State) -> Array:
        """Return the derivative of the energy per response in each relevance (of a group)."""
        slope = self.pressure(state) - state.alignment
        return slope if self.groups is None else self.groups.share(slope)

    def violation(self, state: State) -> Array:
        """Return the distance to the KKT conditions, that of `complementarity`."""
        return complementarity(state.relevance, state.alignment, self.pressure(state), self.groups)

    def degrees_of_freedom(self, state: State) -> Array:
        """Return Σⱼ wⱼ·pressureⱼ, the effective parameters; tr(ΦWΦᵀΣ⁻¹) for the full energy."""
        xp = namespace(state.noise)
        return xp.sum(state.relevance * self.pressure(state), axis=-1)

    def in_units(self, per_response: Array, units: Units) -> Array:
        """Return the energy of all responses in data units; scaling shifts the log-volume."""
        return units.energy(per_response)


@dataclass(frozen=True, slots=True)
class FullCovariance(Marginal):
    """tr(XXᵀΣ⁻¹) + n log|Σ|: the VAE with a full posterior covariance (Wipf 2023, eq. 18)."""

    rules: ClassVar[tuple[str, ...]] = tuple(UPDATES)
    descends_between_noise_steps: ClassVar[bool] = True

    @property
    def exact_coordinates(self) -> bool:
        """True: each relevance has an exact minimiser (Wipf 2023, Theorem 4.4; `group_moves`)."""
        return True

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

    copies: int = 1  # sets of columns in each group that have the same covariance
    rules: ClassVar[tuple[str, ...]] = ("mm",)

    @property
    def prior(self) -> BlockPrior:
        """The prior of the groups."""
        assert self.groups is not None
        return BlockPrior(self.groups, True, self.copies)

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
    patient: ClassVar[bool] = True

    def update(self, rule: str = "mm") -> Callable[[State], Array]:  # noqa: ARG002
        """Return the update that minimises a/w + log(γ + wc) (Wipf 2023, eq. 50).

        a is the mean square of a column's coefficients and c its squared norm.
        """
        return self._update if self.groups is None else partial(self._grouped_update, self.groups)

    def _update(self, state: State) -> Array:
        """Return the positive root of w² − aw − aγ/c = 0, the minimum of a/w + log(γ + wc)."""
        power = state.power
        offset = 4.0 * state.noise[..., None] / positive(column_squares(state.dictionary))
        return (power + namespace(power).sqrt(power * (power + offset))) / 2.0

    def _grouped_update(self, groups: Groups, state: State) -> Array:
        """Return the minimiser of a bound with tangents: groups have no closed form."""
        pressure = positive(groups.share(self.pressure(state)))
        return namespace(pressure).sqrt(groups.share(state.power) / pressure)

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
        if self.groups is None:
            return state.power
        ones = namespace(state.noise).ones_like(state.relevance)
        return self.groups.share(state.power) / self.groups.share(ones)

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
    >>> type(make_objective("marginal", LogPenalty(), None)).__name__
    'FullCovariance'
    >>> del POSTERIORS["marginal"]
    """
    if not isinstance(name, str) or not name or name in POSTERIORS:  # type: ignore[redundant-expr]
        known = ", ".join(map(repr, POSTERIORS))
        raise ValueError(
            f"name={name!r} was given, expected a string that is not yet in use. Names in use: "
            f"{known}."
        )
    POSTERIORS[name] = factory


def make_objective(
    posterior: Any, penalty: Penalty, groups: Groups | None, group_covariance: Any = "spherical"
) -> Energy:
    """Return the energy that belongs to arguments of `SparseVAE` with these names."""
    kind = check_choice(group_covariance, "group_covariance", ("spherical", "full"))
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
