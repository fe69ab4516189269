"""The energies: value, gradient, distance to stationarity, update rule and suitable solvers.

All energies are per response and in the units of the normalised problem. X are the responses, Φ is
the dictionary, w are the relevances, γ is the noise variance and Σ = Φ diag(w) Φᵀ + γI. The full
and the diagonal VAE share the data term tr(XXᵀΣ⁻¹) and differ in their log-volume, the term that
does not depend on the responses; the deterministic autoencoder penalises its estimate instead.
`POSTERIORS` contains them by name, and `register_posterior` adds one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeAlias

from lucidae.arrays import Array, eye_like, namespace, squared_norms
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.penalties import LogPenalty, Penalty, penalty_value, ridge_relevance
from lucidae.sparsity.problem import Units
from lucidae.sparsity.state import State, complementarity, positive
from lucidae.sparsity.updates import UPDATES
from lucidae.validation import check_choice


class Energy(ABC):
    """An energy of relevances w, with the properties that solvers use.

    A subclass defines `value`, `violation` and `update`, and overrides the attributes below
    where its mathematics allows more than repeating the update.

    Attributes
    ----------
    groups : Groups or None
        Columns that share one relevance.
    rules : tuple of str
        Names of its update rules; every energy has "mm".
    has_posterior : bool
        Whether its posterior has a variance, so that the noise variance can be learned.
    descends_between_noise_steps : bool
        Whether learning alternates full descents in w with steps in γ, instead of updating both
        in every step.
    needs_curvature : bool
        Whether update or violation depend on the curvatures z.
    patient : bool
        Whether many updates are spent before Newton steps take over.
    """

    groups: Groups | None = None
    rules: ClassVar[tuple[str, ...]] = ("mm",)
    has_posterior: ClassVar[bool] = False
    descends_between_noise_steps: ClassVar[bool] = False
    needs_curvature: ClassVar[bool] = True
    patient: ClassVar[bool] = False

    @property
    def exact_coordinates(self) -> bool:
        """Whether each relevance alone can be minimised in closed form (Wipf 2023, Thm 4.4)."""
        return False

    @property
    def prunes(self) -> bool:
        """Whether columns with a negligible relevance may be left out of the updates."""
        return False

    @property
    def marginal(self) -> Marginal | None:
        """The energy as a data term and a log-volume, for Newton steps; None for other forms."""
        return None

    @abstractmethod
    def value(self, state: State) -> Array:
        """Return the energy per response."""

    @abstractmethod
    def violation(self, state: State) -> Array:
        """Return the distance to stationarity, a dimensionless number."""

    @abstractmethod
    def update(self, rule: str = "mm") -> Callable[[State], Array]:
        """Return the update of that name: from a state to new relevances."""

    def degrees_of_freedom(self, state: State) -> Array:
        """Return the degrees of freedom of the posterior variance; zero for a point estimate."""
        return state.noise * 0.0

    def in_units(self, per_response: Array, units: Units) -> Array:
        """Return the energy of all responses in the caller's units."""
        return units.n_responses * per_response


@dataclass(frozen=True, slots=True)
class Marginal(Energy):
    """An energy with the data term tr(XXᵀΣ⁻¹) and a log-volume that does not depend on X."""

    groups: Groups | None = None
    has_posterior: ClassVar[bool] = True

    @property
    def prunes(self) -> bool:
        """True without groups; the columns of a group could only be removed together."""
        return self.groups is None

    @property
    def marginal(self) -> Marginal:
        """The energy itself."""
        return self

    @abstractmethod
    def volume(self, state: State) -> Array:
        """Return the log-volume on the rows of the normalised problem."""

    @abstractmethod
    def pressure(self, state: State) -> Array:
        """Return the derivative of the log-volume in each relevance, without regard to groups."""

    @abstractmethod
    def concavity(self, metric: Array, pressure: Array) -> Array:
        """Return minus the Hessian of the log-volume; `metric` is G = ΦᵀΣ⁻¹Φ."""

    def reduced_value(self, state: State) -> Array:
        """Return the part of the energy that depends on w."""
        return state.fit + self.volume(state)

    def value(self, state: State) -> Array:
        """Return the energy per response."""
        xp = namespace(state.noise)
        return state.energy_of_fit + self.volume(state) + state.spare * xp.log(state.noise)

    def gradient(self, state: State) -> Array:
        """Return the derivative of the energy per response in w."""
        slope = self.pressure(state) - state.alignment
        return slope if self.groups is None else self.groups.share(slope)

    def violation(self, state: State) -> Array:
        """Return the distance to the KKT conditions."""
        return complementarity(state.relevance, state.alignment, self.pressure(state), self.groups)

    def degrees_of_freedom(self, state: State) -> Array:
        """Return the sum of all wⱼ times their pressures: tr(ΦWΦᵀΣ⁻¹) for the full posterior."""
        xp = namespace(state.noise)
        return xp.sum(state.relevance * self.pressure(state), axis=-1)

    def in_units(self, per_response: Array, units: Units) -> Array:
        """Return the energy of all responses; the log-volume depends on their scale."""
        return units.energy(per_response)


@dataclass(frozen=True, slots=True)
class FullCovariance(Marginal):
    """Energy of the full-covariance VAE: tr(XXᵀΣ⁻¹) + n log|Σ| (Wipf 2023, eq. 18).

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae.sparsity.problem import Problem
    >>> from lucidae.sparsity.state import evaluate
    >>> one, zero = np.array(1.0), np.array(0.0)
    >>> problem = Problem(np.eye(2), np.eye(2), one, zero, zero)
    >>> float(FullCovariance().value(evaluate(problem, np.zeros(2))))
    2.0
    """

    rules: ClassVar[tuple[str, ...]] = tuple(UPDATES)
    descends_between_noise_steps: ClassVar[bool] = True

    @property
    def exact_coordinates(self) -> bool:
        """True without groups (Wipf 2023, Theorem 4.4)."""
        return self.groups is None

    def update(self, rule: str = "mm") -> Callable[[State], Array]:
        """Return EM, MM or MacKay's rule."""
        update = UPDATES[rule]
        return lambda state: update(state, self.groups)

    def volume(self, state: State) -> Array:
        """Return log|Σ|."""
        return state.log_determinant

    def pressure(self, state: State) -> Array:
        """Return z = diag(G)."""
        return state.curvature

    def concavity(self, metric: Array, pressure: Array) -> Array:  # noqa: ARG002
        """Return G ∘ G."""
        return metric * metric


@dataclass(frozen=True, slots=True)
class DiagonalCovariance(Marginal):
    """Energy of the VAE with a diagonal posterior covariance (Wipf 2023, eq. 50).

    It is tr(XXᵀΣ⁻¹) + n Σⱼ log(γ + wⱼ‖φⱼ‖²) + n(d − κ) log γ for a dictionary of d rows and κ
    columns φⱼ.
    """

    needs_curvature: ClassVar[bool] = False
    patient: ClassVar[bool] = True

    def update(self, rule: str = "mm") -> Callable[[State], Array]:  # noqa: ARG002
        """Return the update: the minimiser of the energy in w with fixed coefficients.

        For a row with mean square a and a column with squared norm c, these are the terms
        a/w + log(γ + wc) of Wipf 2023, eq. 50.
        """
        return self._update if self.groups is None else partial(self._grouped_update, self.groups)

    def _update(self, state: State) -> Array:
        """Return the positive root of w² − aw − aγ/c = 0, where the derivative in w vanishes."""
        power = state.power
        offset = 4.0 * state.noise[..., None] / positive(squared_norms(state.dictionary, -2))
        return (power + namespace(power).sqrt(power * (power + offset))) / 2.0

    def _grouped_update(self, groups: Groups, state: State) -> Array:
        """Return the minimiser with tangents in place of the logarithms.

        The sum of the logarithms over a group has no minimiser in closed form.
        """
        pressure = positive(groups.share(self.pressure(state)))
        return namespace(pressure).sqrt(groups.share(state.power) / pressure)

    def volume(self, state: State) -> Array:
        """Return Σⱼ log(1 + wⱼ‖φⱼ‖²/γ) + d log γ."""
        xp = namespace(state.relevance)
        ratios = state.relevance * squared_norms(state.dictionary, -2) / state.noise[..., None]
        rows = state.dictionary.shape[-2]
        return xp.sum(xp.log1p(ratios), axis=-1) + rows * xp.log(state.noise)

    def pressure(self, state: State) -> Array:
        """Return ‖φ‖²/(γ + w‖φ‖²)."""
        norms = squared_norms(state.dictionary, -2)
        return norms / (state.noise[..., None] + state.relevance * norms)

    def concavity(self, metric: Array, pressure: Array) -> Array:
        """Return diag(pressure²)."""
        return eye_like(metric.shape[-1], metric) * (pressure**2)[..., None, :]


@dataclass(frozen=True, slots=True)
class Autoencoder(Energy):
    """Energy of the deterministic autoencoder: ‖X − ΦU‖²/γ + n Σⱼ h(‖uⱼ‖²/n) (Wipf 2023, eq. 48).

    U are the coefficients with rows uⱼ, and the penalty h is concave and not decreasing. With h =
    log the energy is −∞ as soon as one row of U vanishes; `value` then takes the logarithm of
    `SMALLEST`.
    """

    penalty: Penalty = field(default_factory=LogPenalty)
    groups: Groups | None = None
    needs_curvature: ClassVar[bool] = False

    def power(self, state: State) -> Array:
        """Return the mean square of each row of the coefficients, averaged over its group."""
        if self.groups is None:
            return state.power
        ones = namespace(state.noise).ones_like(state.relevance)
        return self.groups.share(state.power) / self.groups.share(ones)

    def value(self, state: State) -> Array:
        """Return the energy per response."""
        penalties = penalty_value(self.penalty, self.power(state))
        residual = state.residual / state.noise
        return residual + namespace(state.noise).sum(penalties, axis=-1)

    def update(self, rule: str = "mm") -> Callable[[State], Array]:  # noqa: ARG002
        """Return iteratively reweighted ridge regression, w ← 1/h′(a)."""
        return self.ridge_relevance

    def ridge_relevance(self, state: State) -> Array:
        """Return 1/h′(a), the relevances of the ridge problem that majorises the energy."""
        return ridge_relevance(self.penalty, self.power(state))

    def violation(self, state: State) -> Array:
        """Return the distance of the reweighting from its fixed point, relative to w + γ."""
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
"""The energy of each posterior, from the penalty of point estimates and the groups."""


def register_posterior(name: str, factory: EnergyFactory) -> None:
    """Make an energy available as ``SparseVAE(posterior=name)`` and in `solve_batch`.

    Parameters
    ----------
    name : str
        The name; it must be new.
    factory : callable
        From the penalty (an object with ``value`` and ``supergradient``) and the groups of
        columns (or None) to an `Energy`. Saved estimators contain the name alone: register it
        again before a loaded estimator is refitted or certified on data.

    Examples
    --------
    >>> register_posterior("marginal", lambda penalty, groups: FullCovariance(groups))
    >>> type(make_objective("marginal", LogPenalty(), None)).__name__
    'FullCovariance'
    >>> del POSTERIORS["marginal"]
    """
    if not isinstance(name, str) or not name or name in POSTERIORS:
        known = ", ".join(map(repr, POSTERIORS))
        raise ValueError(
            f"name={name!r} was given, expected a new name; there are already {known}."
        )
    POSTERIORS[name] = factory


def make_objective(posterior: Any, penalty: Penalty, groups: Groups | None) -> Energy:
    """Return the energy that belongs to the name of a posterior."""
    return POSTERIORS[check_choice(posterior, "posterior", POSTERIORS)](penalty, groups)
