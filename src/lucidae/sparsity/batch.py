"""Stacks of sparse problems, solved together on the device where they live."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed

from lucidae.arrays import (
    Array,
    as_double,
    as_float,
    cholesky,
    device,
    is_array,
    keeper,
    like,
    namespace,
    on_host,
    replayable,
    solve_lower,
)
from lucidae.iteration import BatchSolution, Below, Solution, Status, iterate_batch, limited_blas
from lucidae.sparsity.noise import learn_noise
from lucidae.sparsity.objectives import Autoencoder, Energy, FullCovariance, Marginal
from lucidae.sparsity.penalties import as_penalty
from lucidae.sparsity.problem import Problem, Units, covariance, normalise, rounding_distance
from lucidae.sparsity.solvers import (
    BASIN,
    FEW_RESPONSES,
    POSTERIORS,
    basin_limit,
    em_steps,
    make_objective,
    solve,
    thinned,
)
from lucidae.sparsity.state import State, evaluate, evaluate_fit, flat_start
from lucidae.sparsity.updates import SMALLEST_LEARNED, UPDATES, noise_by_expectation, update_of
from lucidae.sparsity.working_set import look, newton_step
from lucidae.validation import check_choice, check_integer, check_number

__all__ = ["SparseBatch", "solve_batch"]


class BatchSettings(NamedTuple):
    """How a stack is solved."""

    posterior: str
    solver: str
    penalty: Any
    tol: float
    max_iter: int

    def checked(self) -> BatchSettings:
        """Refuse what cannot be meant, and give the penalty by its object."""
        check_choice(self.posterior, "posterior", POSTERIORS)
        check_choice(self.solver, "solver", ("auto", *UPDATES))
        check_number(self.tol, "tol", low=0.0)
        check_integer(self.max_iter, "max_iter", low=1)
        return self._replace(penalty=as_penalty(self.penalty))


def checked_stack(Phi: Any, X: Any) -> tuple[Array, Array]:
    """Return finite arrays (B, d, κ) and (B, d, n) of one library, floats as they came."""
    X = X if is_array(X) else np.asarray(X)
    Phi = Phi if is_array(Phi) else np.asarray(Phi)
    xp = namespace(Phi, X)
    if X.ndim != 3 or Phi.ndim not in (2, 3):
        raise ValueError(
            f"Phi has shape {tuple(Phi.shape)} and X {tuple(X.shape)}, expected (B, d, κ) or "
            "(d, κ), and (B, d, n): problems along the leading axis."
        )
    if Phi.ndim == 2:
        Phi = xp.broadcast_to(Phi, (X.shape[0], *Phi.shape))
    if Phi.shape[:2] != X.shape[:2] or 0 in (*Phi.shape, *X.shape):
        raise ValueError(
            f"Phi has shape {tuple(Phi.shape)} and X {tuple(X.shape)}: the first two axes, "
            "problems and rows, must agree and none may be empty."
        )
    Phi, X = as_float(Phi), as_float(X)
    if not bool(xp.all(xp.isfinite(Phi))) or not bool(xp.all(xp.isfinite(X))):
        raise ValueError("Phi or X contains NaN or infinity. Remove those problems first.")
    return Phi, X


def checked_noise(noise: Any, X: Array, posterior: str) -> Any:
    """Return one positive noise variance for each problem, or "learn"."""
    xp = namespace(X)
    if isinstance(noise, str):
        check_choice(noise, "noise_variance", ("learn",))
        if posterior == "point":
            raise ValueError(
                'noise_variance="learn" needs a posterior, and a point estimate has none: its '
                'evidence falls without end as γ → 0. Give a number, or posterior="full".'
            )
        return noise
    ones = as_double(xp.ones_like(X[:, 0, 0]))
    values = ones * like(noise, ones) if is_array(noise) or isinstance(noise, list) else (
        ones * check_number(noise, "noise_variance", low=0.0, open_low=True)
    )  # fmt: skip
    if not bool(xp.all(xp.isfinite(values) & (values > 0))):
        raise ValueError("noise_variance must be finite and above 0 for every problem.")
    return values


NEWTON_COLUMNS = 10
"""Newton steps form κ × κ, so they are taken up to this many columns per row."""


class Looks(NamedTuple):
    """Steps between two looks at the distances: of updates, and of Newton steps."""

    updates: int
    newton: int


LOOKS, LOOKS_AT_DEVICE = Looks(5, 1), Looks(15, 2)
"""On a device each look waits for it, while steps that problems no longer need are nearly free."""

PATIENCE = 16
"""Newton steps without progress after which a problem is left as it is."""


def first_noise(problem: Problem) -> Array:
    """Residual variance where there are more rows than columns, a tenth elsewhere."""
    xp = namespace(problem.noise)
    spare = xp.maximum(problem.spare, xp.ones_like(problem.spare))
    estimate = xp.where(problem.spare >= 1, problem.outside / spare, 0.1 * problem.noise)
    return xp.maximum(estimate, xp.full_like(estimate, SMALLEST_LEARNED))


def solve_each(
    problem: Problem, objective: Energy, settings: BatchSettings, learn: bool
) -> BatchSolution[State]:
    """Solve one problem after the other; a processor is no faster on all of them at once."""

    def alone(index: int) -> Solution[State]:
        one = Problem(*(field[index, ...] for field in problem))
        solved = learn_noise if learn else solve
        return solved(
            one, objective, method="auto", tolerance=settings.tol, limit=settings.max_iter
        )

    ended = [alone(index) for index in range(problem.dictionary.shape[0])]
    xp = namespace(problem.dictionary)
    fields = zip(*(solution.value for solution in ended), strict=True)
    return BatchSolution(
        State(*(xp.stack([xp.asarray(part) for part in parts]) for parts in fields)),
        tuple(solution.status for solution in ended),
        np.array([solution.n_iter for solution in ended]),
        np.array([solution.distance for solution in ended]),
        max(solution.tolerance for solution in ended),
    )


def solve_together(
    problem: Problem, objective: Energy, settings: BatchSettings, learn: bool
) -> BatchSolution[State]:
    """Update to the basin, then take Newton steps if κ × κ is small."""
    reachable = max(settings.tol, rounding_distance(problem))
    large = problem.columns > NEWTON_COLUMNS * problem.rows
    if learn or large or reachable >= BASIN or not isinstance(objective, Marginal):
        return _updated(problem, objective, settings, reachable, settings.max_iter, learn)
    settings, updates = _rule(problem, objective, settings)
    limit = min(settings.max_iter, updates)
    basin = _updated(problem, objective, settings, BASIN, limit, learn)
    left = settings.max_iter - int(basin.n_iter.max())
    if left >= 1:
        return _polished(basin, objective, reachable, left)
    status = tuple(
        Status.ITERATION_LIMIT if ended.ok and distance > reachable else ended
        for ended, distance in zip(basin.status, basin.distance, strict=True)
    )
    return replace(basin, status=status, tolerance=reachable)


def _rule(
    problem: Problem, objective: Energy, settings: BatchSettings
) -> tuple[BatchSettings, int]:
    """Return the update that chooses the basin, and how often it may be repeated."""
    if settings.solver == "auto" and isinstance(objective, FullCovariance):
        if problem.responses.shape[-1] <= FEW_RESPONSES:
            return settings._replace(solver="em"), em_steps(problem)
        settings = settings._replace(solver="mackay")
    return settings, basin_limit(objective, settings.solver)


def _updated(
    problem: Problem, objective: Energy, settings: BatchSettings, tolerance: float, limit: int,
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
    return LOOKS if on_host(example) else LOOKS_AT_DEVICE


def _polished(
    basin: BatchSolution[State], objective: Marginal, tolerance: float, limit: int
) -> BatchSolution[State]:
    """Reach the bottoms of the basins by damped Newton steps on all columns, all problems at once.

    Steps on the columns in play alone would be less work, but more launches, which cost more.
    """
    problem = basin.value.problem
    relevance = thinned(basin.value, objective)
    stride = _looks(relevance).newton
    ended = iterate_batch(
        lambda point: newton_step(point, None, objective.volume),
        look(problem, relevance, volume=objective.volume),
        stop=Below(lambda point: point.violation(), tolerance, patience=PATIENCE // stride),
        limit=limit,
        check_every=stride,
        size=problem.rows,
    )
    state = evaluate(problem, ended.value.relevance)
    return replace(ended, value=state, n_iter=basin.n_iter + ended.n_iter)


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
    solver: str = "auto",
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
    solver : {"auto", "mm", "em", "mackay"}
        How the full energy goes down; the other posteriors have one update each. "auto" gives
        the processor one problem at a time, solved as `SparseVAE` does. An accelerator updates
        all of them at once: by EM for one or two responses, by MacKay's rule for more.
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
    settings = BatchSettings(posterior, solver, penalty, tol, max_iter)
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


def _solve_stack(Phi: Array, X: Array, noise: Any, settings: BatchSettings) -> BatchSolution[Any]:
    settings = settings.checked()
    objective = make_objective(settings.posterior, settings.penalty, None)
    dictionary, responses = as_double(Phi), as_double(X)
    with limited_blas(dictionary.shape[-2]):
        problem, units = normalise(dictionary, responses)
        learn = isinstance(noise, str)
        level = first_noise(problem) if learn else units.normalised_noise(noise)
        alone = settings.solver == "auto" and settings.posterior == "full" and on_host(X)
        solved = solve_each if alone else solve_together
        solution = solved(problem._replace(noise=level), objective, settings, learn)
        value = _finished(dictionary, responses, solution.value, units, objective)
    ended = (solution.status, solution.n_iter, solution.distance, solution.tolerance)
    narrow = SparseBatch(*(like(part, X) for part in value))
    return BatchSolution(narrow, *ended)


def _finished(
    dictionary: Array, responses: Array, state: State, units: Units, objective: Energy
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
