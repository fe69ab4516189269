"""The part of an energy that does not see the data: the log-volume of the model.

The full and the diagonal VAE share the data term tr(XXᵀΣ⁻¹) and differ in their volume. Value,
slope and curvature of the volume are all that a second-order method has to know about that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from lucidae.arrays import Array, add_diagonal, eye_like, like, namespace, squared_norm, trace
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.penalties import LogPenalty, Penalty, penalty_value, ridge_relevance
from lucidae.sparsity.problem import Problem
from lucidae.sparsity.state import State, complementarity, positive


class Volume(Protocol):
    """Value, gradient and (negated) Hessian of a log-volume in the relevances."""

    def value(self, problem: Problem, relevance: Array, log_determinant: Array) -> Array:
        """Return the log-volume of the rows kept."""
        ...

    def pressure(self, problem: Problem, relevance: Array, curvature: Array) -> Array:
        """Return its derivative in each relevance."""
        ...

    def bend(self, metric: Array, pressure: Array) -> Array:
        """Return minus its Hessian."""
        ...


@dataclass(frozen=True, slots=True)
class LogDeterminant:
    """log|Σ|: slope z = diag(G), Hessian −G ∘ G with G = ΦᵀΣ⁻¹Φ (Wipf 2023, eq. 18)."""

    def value(self, problem: Problem, relevance: Array, log_determinant: Array) -> Array:  # noqa: ARG002
        """Return log|Σ|."""
        return log_determinant

    def pressure(self, problem: Problem, relevance: Array, curvature: Array) -> Array:  # noqa: ARG002
        """Return z."""
        return curvature

    def bend(self, metric: Array, pressure: Array) -> Array:  # noqa: ARG002
        """Return G ∘ G."""
        return metric * metric


@dataclass(frozen=True, slots=True)
class SumOfLogs:
    """Σⱼ log(γ + wⱼ‖φⱼ‖²) + (d − κ) log γ: separable (Wipf 2023, eq. 50)."""

    def value(self, problem: Problem, relevance: Array, log_determinant: Array) -> Array:  # noqa: ARG002
        """Return the sum of logarithms for d rows."""
        xp = namespace(relevance)
        norms = xp.sum(problem.dictionary**2, axis=-2)
        ratios = relevance * norms / problem.noise[..., None]
        return xp.sum(xp.log1p(ratios), axis=-1) + problem.rows * xp.log(problem.noise)

    def pressure(self, problem: Problem, relevance: Array, curvature: Array) -> Array:  # noqa: ARG002
        """Return ‖φ‖²/(γ + w‖φ‖²)."""
        norms = namespace(relevance).sum(problem.dictionary**2, axis=-2)
        return norms / (problem.noise[..., None] + relevance * norms)

    def bend(self, metric: Array, pressure: Array) -> Array:
        """Return diag(pressure²)."""
        return eye_like(metric.shape[-1], metric) * (pressure**2)[..., None, :]


class Energy(Protocol):
    """What a solver asks of an energy."""

    @property
    def groups(self) -> Groups | None:
        """Columns that share one relevance."""
        ...

    def value(self, state: State) -> Array:
        """Energy per response."""
        ...

    def violation(self, state: State) -> Array:
        """Distance to stationarity, free of units."""
        ...

    def degrees_of_freedom(self, state: State) -> Array:
        """Noise-free degrees of freedom that the posterior believes it uses."""
        ...


@dataclass(frozen=True, slots=True)
class Marginal:
    """An energy with the data term tr(XXᵀΣ⁻¹) and a log-volume."""

    groups: Groups | None = None

    @property
    def volume(self) -> Volume:
        """The log-volume that tells the marginal energies apart."""
        return LogDeterminant()

    def pressure(self, state: State) -> Array:
        """Return the derivative of the log-volume in w."""
        return self.volume.pressure(state.problem, state.relevance, state.curvature)

    def value(self, state: State) -> Array:
        """Energy per response."""
        xp = namespace(state.noise)
        volume = self.volume.value(state.problem, state.relevance, state.log_determinant)
        return state.energy_of_fit + volume + state.spare * xp.log(state.noise)

    def gradient(self, state: State) -> Array:
        """Return the derivative of the energy per response in w."""
        slope = self.pressure(state) - state.alignment
        return slope if self.groups is None else self.groups.share(slope)

    def violation(self, state: State) -> Array:
        """Distance to the KKT conditions."""
        return complementarity(state.relevance, state.alignment, self.pressure(state), self.groups)

    def degrees_of_freedom(self, state: State) -> Array:
        """Sum of wⱼ times its pressure: tr(ΦWΦᵀΣ⁻¹) for the full posterior."""
        xp = namespace(state.noise)
        return xp.sum(state.relevance * self.pressure(state), axis=-1)


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

    def noise_gradient(self, state: State) -> Array:
        """Return the derivative of the energy per response in γ."""
        inside = (state.dictionary.shape[-2] - state.used) / state.noise - state.pull
        return inside + state.spare / state.noise - state.outside / state.noise**2


@dataclass(frozen=True, slots=True)
class DiagonalCovariance(Marginal):
    """Energy of the VAE with a diagonal posterior covariance (Wipf 2023, eq. 50).

    tr(XXᵀΣ⁻¹) + n Σⱼ log(γ + wⱼ‖φⱼ‖²) + n(d − κ) log γ.
    """

    @property
    def volume(self) -> Volume:
        """The separable log-volume."""
        return SumOfLogs()


@dataclass(frozen=True, slots=True)
class Autoencoder:
    """Energy of the deterministic autoencoder: ‖X − ΦU‖²/γ + n Σⱼ h(‖uⱼ‖²/n) (Wipf 2023, eq. 48).

    h is concave and not decreasing, given by value and supergradient. With h = log the energy
    is −∞ as soon as one row of U vanishes; `value` then reports a floored penalty.
    """

    penalty: Penalty = field(default_factory=LogPenalty)
    groups: Groups | None = None

    def power(self, state: State) -> Array:
        """Mean square of each row of U, averaged over its group."""
        if self.groups is None:
            return state.power
        ones = namespace(state.noise).ones_like(state.relevance)
        return self.groups.share(state.power) / self.groups.share(ones)

    def value(self, state: State) -> Array:
        """Energy per response."""
        penalties = penalty_value(self.penalty, self.power(state))
        residual = state.residual / state.noise
        return residual + namespace(state.noise).sum(penalties, axis=-1)

    def target(self, state: State) -> Array:
        """Relevances of the reweighted ridge problem that majorises the energy here: 1/h′."""
        return ridge_relevance(self.penalty, self.power(state))

    def violation(self, state: State) -> Array:
        """How far the reweighting is from its fixed point, relative to w + γ."""
        xp = namespace(state.noise)
        target = self.target(state)
        largest = xp.maximum(target, state.relevance) + state.noise[..., None]
        return xp.max(xp.abs(target - state.relevance) / largest, axis=-1)

    def degrees_of_freedom(self, state: State) -> Array:
        """Zero: a point estimate believes that it is certain."""
        return state.used * 0.0


@dataclass(frozen=True, slots=True)
class GroupLasso:
    """Convex relative: ½‖X − ΦU‖² + λ Σⱼ ‖uⱼ‖ over the rows of U.

    Examples
    --------
    >>> import numpy as np
    >>> GroupLasso(1.0).value(np.eye(2), np.eye(2), np.zeros((2, 2)))
    1.0
    """

    strength: float

    def value(self, dictionary: Array, responses: Array, rows: Array) -> float:
        """Energy of an estimate U of shape (κ, n)."""
        xp = namespace(dictionary)
        norms = xp.sqrt(xp.sum(rows**2, axis=-1))
        residual = squared_norm(responses - dictionary @ rows)
        return float(0.5 * residual + self.strength * xp.sum(norms))

    def violation(self, dictionary: Array, responses: Array, rows: Array) -> float:
        """Largest excess of a subgradient condition, relative to λ."""
        xp = namespace(dictionary)
        slopes = dictionary.mT @ (responses - dictionary @ rows)
        norms = xp.sqrt(xp.sum(rows**2, axis=-1))
        active = norms > 0
        directions = rows / positive(norms)[:, None]
        inside = xp.sqrt(xp.sum((slopes - self.strength * directions) ** 2, axis=-1))
        outside = xp.sqrt(xp.sum(slopes**2, axis=-1)) - self.strength
        excess = xp.where(active, inside, xp.maximum(outside, 0.0 * outside))
        return float(xp.max(excess)) / self.strength


def unreduced_loss(
    dictionary: Array,
    responses: Array,
    decoder: Array,
    encoder: Array,
    spread: Array,
    noise: float,
) -> Array:
    """Return the VAE loss itself, encoder included (Wipf 2023, eq. 5).

    Parameters
    ----------
    dictionary : array of shape (d, κ)
    responses : array of shape (d, n)
    decoder : array of shape (κ,)
        The decoder's weights w_x, whose squares are the relevances.
    encoder : array of shape (κ, d)
        The encoder's matrix W_z.
    spread : array of shape (κ, κ)
        The factor S of the posterior covariance SSᵀ; a diagonal matrix gives eq. 50's model.
    noise : float
        The decoder's variance γ.

    Returns
    -------
    array of shape ()
    """
    xp = namespace(dictionary)
    rows, n_responses = responses.shape
    weighted = dictionary * decoder[None, :]
    means = encoder @ responses
    posterior = spread @ xp.matrix_transpose(spread)
    reconstruction = squared_norm(responses - weighted @ means) / noise
    uncertainty = squared_norm(weighted @ spread) / noise
    _, log_determinant = xp.linalg.slogdet(posterior)
    shared = uncertainty + rows * xp.log(like(noise, decoder)) + trace(posterior) - log_determinant
    return reconstruction + squared_norm(means) + n_responses * shared


def optimal_encoder(dictionary: Array, decoder: Array, noise: float) -> Array:
    """Return the encoder W_z that minimises eq. 5 for a given decoder (Wipf 2023, eq. 15)."""
    xp = namespace(dictionary)
    weighted = dictionary * decoder[None, :]
    sigma = add_diagonal(weighted @ xp.matrix_transpose(weighted), noise)
    return xp.matrix_transpose(xp.linalg.solve(sigma, weighted))


def optimal_posterior(dictionary: Array, decoder: Array, noise: float, diagonal: bool) -> Array:
    """Return the posterior covariance SSᵀ that minimises eq. 5 (Wipf 2023, appendix C.1)."""
    xp = namespace(dictionary)
    weighted = dictionary * decoder[None, :]
    if diagonal:
        variances = 1.0 / (1.0 + xp.sum(weighted**2, axis=0) / noise)
        return add_diagonal(xp.zeros_like(weighted.mT @ weighted), variances)
    precision = add_diagonal(xp.matrix_transpose(weighted) @ weighted / noise, 1.0)
    return xp.linalg.inv(precision)
