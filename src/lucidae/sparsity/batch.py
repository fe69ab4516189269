"""Stacks of problems, solved together on whatever device they live."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed

from lucidae._arrays import (
    Array,
    as_double,
    cholesky,
    device,
    like,
    namespace,
    on_host,
    solve_lower,
)
from lucidae.iterate import limited_blas
from lucidae.solution import BatchSolution
from lucidae.sparsity.objectives import Autoencoder, Objective
from lucidae.sparsity.problem import Units, covariance, normalise
from lucidae.sparsity.solvers import make_objective
from lucidae.sparsity.stacked import first_noise, solve_each, solve_together
from lucidae.sparsity.stacks import Settings, checked_noise, checked_stack
from lucidae.sparsity.state import State

__all__ = ["SparseBatch", "solve_batch"]


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
        level = first_noise(problem) if learn else units.normalised_noise(noise)
        alone = settings.solver == "auto" and settings.posterior == "full" and on_host(X)
        solved = solve_each if alone else solve_together
        solution = solved(problem._replace(noise=level), objective, settings, learn)
        value = _finished(dictionary, responses, solution.value, units, objective)
    ended = (solution.status, solution.n_iter, solution.distance, solution.tolerance)
    narrow = SparseBatch(*(like(part, X) for part in value))
    return BatchSolution(narrow, *ended)


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
