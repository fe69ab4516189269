"""Stacks of problems, solved together on whatever device they live."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed

from lucidae._arrays import (
    Array,
    as_double,
    cholesky,
    device,
    is_numpy,
    keeper,
    like,
    namespace,
    replayable,
    solve_lower,
)
from lucidae.iterate import Below, iterate_batch, limited_blas
from lucidae.solution import BatchSolution, Status
from lucidae.sparsity.newton import look, newton_step
from lucidae.sparsity.objectives import Autoencoder, FullCovariance, Marginal, Objective
from lucidae.sparsity.problem import Problem, Units, covariance, normalise, rounding_distance
from lucidae.sparsity.repetition import SMALLEST_LEARNED, update_of
from lucidae.sparsity.solvers import BASIN, basin_limit, make_objective, thinned
from lucidae.sparsity.stacks import Settings, checked_noise, checked_stack
from lucidae.sparsity.state import State, evaluate, evaluate_fit, flat_start
from lucidae.sparsity.updates import noise_by_expectation

__all__ = ["SparseBatch", "solve_batch"]

NEWTON_COLUMNS = 10
"""Newton steps form κ × κ, so they are taken up to this many columns per row."""


class Looks(NamedTuple):
    """Steps between two looks at the distances: of updates, and of Newton steps."""

    updates: int
    newton: int


LOOKS, LOOKS_AT_DEVICE = Looks(5, 1), Looks(10, 4)
"""On a device each look waits for it, while steps that problems no longer need are nearly free."""

PATIENCE = 16
"""Newton steps without progress after which a problem is left as it is."""


class SparseBatch(NamedTuple):
    """What a stack of problems was solved to; every field has the problems along its first axis.

    Fields are coef (B, n, κ), relevance (B, κ), noise_variance (B,) and energy (B,).
    """

    coef: Array
    relevance: Array
    noise_variance: Array
    energy: Array


def solve_batch(
    Phi: Array,
    X: Array,
    *,
    posterior: str = "full",
    noise_variance: Any = "learn",
    solver: str = "mm",
    penalty: Any = "log",
    tol: float = 1e-6,
    max_iter: int = 1000,
    n_jobs: int | None = None,
) -> BatchSolution[SparseBatch]:
    """Solve a stack of sparse problems at once, each stopping on its own.

    Parameters
    ----------
    Phi : array of shape (B, d, κ) or (d, κ)
        Dictionaries; a single one is shared by all problems.
    X : array of shape (B, d, n)
        Responses.
    posterior : {"full", "diagonal", "point"}
        Which energy is minimised.
    noise_variance : float, array of shape (B,) or "learn"
        γ of all problems, of each, or learned by evidence (safe where κ ≤ d/2).
    solver : {"mm", "em", "mackay"}
        Update of the full posterior; the other posteriors have one each.
    penalty : str or object, default="log"
        Concave penalty of the point estimate.
    tol : float
        Distance to stationarity at which a problem leaves the stack.
    max_iter : int
        Largest number of updates.
    n_jobs : int, optional
        Number of processes among which the stack is divided (as in joblib); NumPy arrays only.

    Returns
    -------
    BatchSolution
        ``value`` is a `SparseBatch`; ``status``, ``n_iter`` and ``distance`` are per problem.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> Phi = rng.standard_normal((3, 20, 30))
    >>> X = 2.0 * Phi[:, :, :2] @ rng.standard_normal((3, 2, 8))
    >>> solution = solve_batch(Phi, X, noise_variance=1e-6)
    >>> solution.converged
    array([ True,  True,  True])
    >>> np.flatnonzero(np.linalg.norm(solution.value.coef[0], axis=0) > 1e-3)
    array([0, 1])
    """
    Phi, X = checked_stack(Phi, X)
    settings = Settings(posterior, solver, penalty, tol, max_iter)
    noise = checked_noise(noise_variance, X, posterior)
    if n_jobs in (None, 1):
        return _solve_stack(Phi, X, noise, settings)
    count = max(1, min(X.shape[0], _cores(n_jobs)))
    parts = np.array_split(np.arange(X.shape[0]), count)
    solved = Parallel(n_jobs=count)(
        delayed(_solve_stack)(_some(Phi, part), _some(X, part), _some(noise, part), settings)
        for part in parts
    )
    return _gathered(solved)


def _some(values: Any, index: Any) -> Any:
    """Return some of the problems; a word stands for all of them."""
    if isinstance(values, str):
        return values
    xp = namespace(values)
    return xp.take(values, xp.asarray(index, device=device(values)), axis=0)


def _cores(n_jobs: Any) -> int:
    return int(Parallel(n_jobs=n_jobs)._effective_n_jobs())


def _solve_stack(Phi: Array, X: Array, noise: Any, settings: Settings) -> BatchSolution[Any]:
    settings = settings.checked()
    objective = make_objective(settings.posterior, settings.penalty, None)
    dictionary, responses = as_double(Phi), as_double(X)
    with limited_blas(dictionary.shape[-2]):
        problem, units = normalise(dictionary, responses)
        learn = isinstance(noise, str)
        level = _first_noise(problem) if learn else units.normalised_noise(noise)
        solution = _iterate(problem._replace(noise=level), objective, settings, learn)
        value = _finished(dictionary, responses, solution.value, units, objective)
    ended = (solution.status, solution.n_iter, solution.distance, solution.tolerance)
    narrow = SparseBatch(*(like(part, X) for part in value))
    return BatchSolution(narrow, *ended)


def _first_noise(problem: Problem) -> Array:
    xp = namespace(problem.noise)
    spare = xp.maximum(problem.spare, xp.ones_like(problem.spare))
    estimate = xp.where(problem.spare >= 1, problem.outside / spare, 0.1 * problem.noise)
    return xp.maximum(estimate, xp.full_like(estimate, SMALLEST_LEARNED))


def _iterate(
    problem: Problem, objective: Objective, settings: Settings, learn: bool
) -> BatchSolution[State]:
    """Update to the basin, then take Newton steps if κ × κ is small."""
    reachable = max(settings.tol, rounding_distance(problem))
    small = problem.columns <= NEWTON_COLUMNS * problem.rows
    if learn or not small or not isinstance(objective, Marginal):
        return _updated(problem, objective, settings, reachable, settings.max_iter, learn)
    basin = _updated(
        problem, objective, settings, max(BASIN, reachable),
        min(settings.max_iter, basin_limit(objective, settings.solver)), learn,
    )  # fmt: skip
    left = settings.max_iter - int(basin.n_iter.max())
    if reachable >= BASIN:
        return basin
    if left >= 1:
        return _polished(basin, objective, reachable, left)
    status = tuple(
        Status.ITERATION_LIMIT if ended.ok and distance > reachable else ended
        for ended, distance in zip(basin.status, basin.distance, strict=True)
    )
    return replace(basin, status=status, tolerance=reachable)


def _updated(
    problem: Problem, objective: Objective, settings: Settings, tolerance: float, limit: int,
    learn: bool,
) -> BatchSolution[State]:  # fmt: skip
    update = update_of(objective, settings.solver)
    look_at = evaluate if isinstance(objective, FullCovariance) else evaluate_fit
    xp = namespace(problem.noise)

    def learned(state: State) -> Array:
        noise = noise_by_expectation(state, objective.degrees_of_freedom(state))
        return xp.maximum(noise, xp.full_like(noise, SMALLEST_LEARNED))

    def step(state: State) -> State:
        following = state.problem._replace(noise=learned(state)) if learn else state.problem
        return look_at(following, update(state, None))

    def distance(state: State) -> Array:
        violation = objective.violation(state)
        change = xp.abs(learned(state) / state.noise - 1.0) if learn else 0.0 * violation
        return xp.maximum(violation, change)

    start = look_at(problem, flat_start(problem))
    recorded = replayable(step, start)
    return iterate_batch(
        recorded,
        start,
        stop=Below(distance, tolerance),
        limit=limit,
        check_every=_looks(start.noise).updates,
        copy=keeper(recorded),
        size=problem.rows,
    )


def _looks(example: Array) -> Looks:
    return LOOKS if is_numpy(example) else LOOKS_AT_DEVICE


def _polished(
    basin: BatchSolution[State], objective: Marginal, tolerance: float, limit: int
) -> BatchSolution[State]:
    """Reach the bottoms of the basins by damped Newton steps, all problems at once."""
    problem = basin.value.problem
    start = thinned(basin.value, objective)
    stride = _looks(start).newton
    ended = iterate_batch(
        lambda point: newton_step(point, None, objective.volume),
        look(problem, start, volume=objective.volume),
        stop=Below(lambda point: point.violation(), tolerance, patience=PATIENCE // stride),
        limit=limit,
        check_every=stride,
        size=problem.rows,
    )
    state = evaluate(problem, ended.value.relevance)
    n_iter = basin.n_iter + ended.n_iter
    return BatchSolution(state, ended.status, n_iter, ended.distance, tolerance)


def _finished(
    dictionary: Array, responses: Array, state: State, units: Units, objective: Objective
) -> SparseBatch:
    """Bring relevances, coefficients and energies back to the units of the data."""
    xp = namespace(state.noise)
    relevance, noise = units.relevance(state.relevance), units.noise(state.noise)
    factor, _ = cholesky(covariance(dictionary, relevance, noise))
    pulled = solve_lower(factor, solve_lower(factor, responses), transpose=True)
    coef = xp.matrix_transpose(pulled) @ dictionary * relevance[:, None, :]
    energy = objective.value(state)
    plain = isinstance(objective, Autoencoder)
    return SparseBatch(
        coef, relevance, noise, units.n_responses * energy if plain else units.energy(energy)
    )


def _gathered(solved: list[BatchSolution[Any]]) -> BatchSolution[SparseBatch]:
    xp = namespace(*solved[0].value)
    value = SparseBatch(*(xp.concat([part.value[i] for part in solved], axis=0) for i in range(4)))
    return BatchSolution(
        value,
        tuple(status for part in solved for status in part.status),
        np.concatenate([part.n_iter for part in solved]),
        np.concatenate([part.distance for part in solved]),
        solved[0].tolerance,
    )
