"""Three ways to the optimum: its closed form, full-batch descent, mini-batch descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lucidae.arrays import Array, namespace, normal, scalar
from lucidae.io.models import saved_as
from lucidae.iteration import Below, Callback, ProgressBar, Solution, iterate, log_grid
from lucidae.linear.data import Covariance, StreamCovariance, ritz_spectrum
from lucidae.linear.methods import Method, relative_direction
from lucidae.linear.optimizers import OPTIMIZERS, Optimizer, largest_stable_product
from lucidae.linear.spectrum import Spectrum
from lucidae.linear.weights import VariationalWeights

SAFETY = 0.5
"""Share of the largest stable step that `learning_rate="auto"` takes."""

ADAM_RATE = 3e-3
"""Adam's steps do not depend on the scale of the loss; weights are of order one."""

HORIZON_SHARE = 0.05
"""Share of the steps after which a stochastic solver has halved its step size."""

CHECK_EVERY = 20
"""Steps between two looks at the distance to optimality."""


@saved_as("lucidae.linear.descent/1", formerly="lucidae.linear.solvers:Training")
@dataclass(frozen=True, slots=True)
class DescentSettings:
    """How to descend.

    Parameters
    ----------
    optimizer : str
        A key of `OPTIMIZERS`.
    learning_rate : float or "auto"
        The step size.
    momentum : float
        For heavy ball and Nesterov.
    max_iter : int
        Largest number of steps.
    tol : float
        Relative size of the direction at which the weights count as stationary.
    verbose : bool
        Whether to show progress.
    """

    optimizer: str = "nesterov"
    learning_rate: float | str = "auto"
    momentum: float = 0.9
    max_iter: int = 10_000
    tol: float = 1e-6
    verbose: bool = False

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """What watches the loop."""
        return (ProgressBar("training"),) if self.verbose else ()

    @property
    def effective_momentum(self) -> float:
        """The momentum that speeds up slow directions: Adam and plain descent have none."""
        return self.momentum if self.optimizer in ("nesterov", "heavy_ball") else 0.0

    def rate(self, curvature: float) -> float:
        """Return the step size: the given one, or half of what the curvature allows."""
        if self.learning_rate != "auto":
            return float(self.learning_rate)
        if self.optimizer == "adam":
            return ADAM_RATE
        # Heavy ball overshoots where the loss is still quartic: it steps no further than Nesterov.
        like = "nesterov" if self.optimizer == "heavy_ball" else self.optimizer
        return SAFETY * largest_stable_product(like, self.momentum) / curvature

    def build(self, curvature: float) -> Optimizer:
        """Return the optimizer with its step size."""
        return OPTIMIZERS[self.optimizer](self.rate(curvature), self.momentum)


class Stiffness(NamedTuple):
    """Bound on the curvature, for the step; scale of a direction, for the stopping rule."""

    curvature: float
    scale: float


def stiffness(method: Method, covariance: Covariance, start: Any, noise: float = 0.0) -> Stiffness:
    """Estimate both from a few power iterations; no eigendecomposition.

    Ritz values lie below the eigenvalues that they estimate, so a tenth is added. `noise` is what
    a batch adds to the largest eigenvalue, relative to the total variance: see `batch_noise`.
    """
    k = start.encoder.shape[-2] if method.name == "linear_vae" else 1
    spectrum = ritz_spectrum(covariance, k, start.encoder)
    top, curvature = scalar(spectrum.values[0]), method.curvature(spectrum)
    if curvature <= 0.0:
        return Stiffness(1.0, 1.0)
    sampled = noise * spectrum.trace / top if top > 0.0 else 0.0
    room = 1.1 * (1.0 + sampled) * _steepening(start)
    return Stiffness(room * curvature, method.scale(spectrum))


def _steepening(start: Any) -> float:
    """Return how much steeper the quartic loss may be at the first weights than at its minimum.

    Along W₁ = W₂ᵀ of norm w it curves with (6w² − 2)σ₁², at the minimum (w = 1) with 4σ₁²; the
    slope of 4 in place of 3/2 leaves room for momentum to overshoot. The ELBO has no such point.
    """
    if isinstance(start, VariationalWeights):
        return 1.0
    norm = namespace(start.encoder).linalg.matrix_norm
    size = max(scalar(norm(start.encoder, ord=2)), scalar(norm(start.atoms, ord=2)))
    return max(1.0, 4.0 * size**2 - 3.0)


def batch_noise(batch_size: int, n_rows: int, training: DescentSettings) -> float:
    """Return the share of the total variance by which a batch's top eigenvalue may exceed Σ's.

    A sample of b rows adds about tr Σ/b, and momentum μ adds up 1/(1 − μ) batches.
    """
    if batch_size >= n_rows:
        return 0.0
    return 1.0 / (batch_size * (1.0 - training.effective_momentum))


def random_start(method: Method, k: int, m: int, scale: float, random: Any, ref: Array) -> Any:
    """Draw first weights: independent normal entries of standard deviation `scale`."""
    encoder = scale * normal(random, (k, m), ref)
    atoms = encoder if method.tied else scale * normal(random, (k, m), ref)
    return method.start(encoder, atoms)


def solve_exact(method: Method, spectrum: Spectrum, k: int) -> Any:
    """Return the closed form of the method's optimum."""
    return method.objective.minimizer(spectrum, k)


def solve_gradient(
    method: Method,
    covariance: Covariance,
    start: Any,
    training: DescentSettings,
    stiff: Stiffness | None = None,
) -> Solution[Any]:
    """Descend on the full batch through the second moment; the data are not touched again."""
    stiff = stiff or stiffness(method, covariance, start)
    optimizer = training.build(stiff.curvature)

    def step(state: Any) -> Any:
        moved = optimizer.update(state, method.rule.direction(state.weights, covariance))
        return moved._replace(weights=method.rule.retract(moved.weights))

    solution = iterate(
        step,
        optimizer.start(start),
        stop=Below(
            lambda state: relative_direction(method, state.weights, covariance, stiff.scale),
            training.tol,
        ),
        limit=training.max_iter,
        check_every=CHECK_EVERY,
        record={"loss": lambda state: method.objective.value(state.weights, covariance)},
        record_at=log_grid(training.max_iter),
        callbacks=training.callbacks,
        size=covariance.n_features,
    )
    return _unwrap(solution)


@saved_as("lucidae.linear.stream.steps/1", formerly="lucidae.linear.solvers:Stream")
class Stream(NamedTuple):
    """State of a stochastic solver: the optimizer's state and the number of batches seen."""

    optimizer: Any
    steps: int

    @property
    def weights(self) -> Any:
        """The weights."""
        return self.optimizer.weights


def batch_step(
    method: Method, optimizer: Optimizer, state: Stream, covariance: Covariance, horizon: float
) -> Stream:
    """Take one step on the rows of one batch, with a rate that falls as 1/(1 + t/horizon)."""
    scale = 1.0 / (1.0 + state.steps / horizon)
    direction = method.rule.direction(state.weights, covariance)
    moved = optimizer.update(state.optimizer, direction, scale)
    return Stream(moved._replace(weights=method.rule.retract(moved.weights)), state.steps + 1)


def solve_stochastic(
    method: Method,
    rows: StreamCovariance,
    start: Any,
    training: DescentSettings,
    batch_size: int,
    random: np.random.Generator,
    stiff: Stiffness | None = None,
) -> Solution[Any]:
    """Descend on mini-batches: memory O(mk) beside one batch, one full pass per check."""
    n_rows = rows.rows.shape[0]
    noise = batch_noise(batch_size, n_rows, training)
    stiff = stiff or stiffness(method, rows, start, noise)
    optimizer = training.build(stiff.curvature)
    per_epoch = max(1, -(-n_rows // batch_size))
    horizon = max(10.0, HORIZON_SHARE * training.max_iter)
    batches = _shuffled(n_rows, batch_size, random)

    def step(state: Stream) -> Stream:
        batch = rows.batch(next(batches))
        if batch.total == 0.0:
            return state._replace(steps=state.steps + 1)
        return batch_step(method, optimizer, state, batch, horizon)

    solution = iterate(
        step,
        Stream(optimizer.start(start), 0),
        stop=Below(
            lambda state: _expected_distance(method, state.weights, rows, stiff.scale), training.tol
        ),
        limit=training.max_iter,
        check_every=max(per_epoch, CHECK_EVERY),
        record={"loss": lambda state: method.objective.value(state.weights, rows)},
        callbacks=training.callbacks,
        size=rows.n_features,
    )
    return _unwrap(solution)


def _expected_distance(method: Method, weights: Any, rows: Covariance, scale: float) -> Array:
    """Measure stationarity of the expected loss where the rule itself samples masks."""
    followed = method.expected() if method.needs_rows else method
    return relative_direction(followed, weights, rows, scale)


def _shuffled(n_rows: int, batch_size: int, random: np.random.Generator) -> Any:
    """Yield index arrays: a new permutation for each pass, cut into batches."""
    while True:
        order = random.permutation(n_rows)
        for start in range(0, n_rows, batch_size):
            yield np.sort(order[start : start + batch_size])


def _unwrap(solution: Solution[Any]) -> Solution[Any]:
    return Solution(
        solution.value.weights,
        solution.status,
        solution.n_iter,
        solution.distance,
        solution.tolerance,
        solution.history,
    )
