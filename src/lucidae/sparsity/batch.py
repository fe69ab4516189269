"""Many sparse regression problems of equal shape, solved together on the device of their arrays."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.sparse
from joblib import effective_n_jobs

from lucidae.arrays import (
    Array,
    adjoint,
    as_complex,
    as_double,
    as_float,
    cholesky,
    conjugate,
    device,
    diagonal,
    is_complex,
    matched,
    namespace,
    on_host,
    real_part,
    solve_lower,
    to_numpy,
)
from lucidae.arrays.graphs import keeper, replayable
from lucidae.iteration import BatchSolution, Below, Status, iterate_batch, limited_blas, of_each
from lucidae.iteration.progress import elapsed
from lucidae.sparsity.noise import check_learnable, checked_levels, first_noise, learn_noise
from lucidae.sparsity.objectives import (
    UPDATES,
    Energy,
    GroupCovariance,
    Marginal,
    State,
    evaluate,
    flat_start,
    learned_noise,
    make_objective,
    prior_in_units,
)
from lucidae.sparsity.posterior import Posterior, narrowed
from lucidae.sparsity.problem import (
    Problem,
    covariance,
    normalise,
    refuse_extremes,
    refuse_zero_problem,
    root_by_qr,
    rounding_distances,
)
from lucidae.sparsity.solve import (
    BASIN,
    BASIN_LIMIT,
    EM_PER_COLUMN,
    EM_STEPS,
    FEW_RESPONSES,
    basin_limit,
    check_suited,
    solve,
)
from lucidae.sparsity.working_set import (
    FIRST_DAMPING,
    SolverSettings,
    newton_step,
    remaining_relevances,
)
from lucidae.validation import check_argument, check_choice, check_integer, check_number, real_array

__all__ = ["SparseBatch", "SparseGroupBatch", "solve_batch"]

NEWTON_COLUMNS = 10
"""Largest ratio of columns to rows for Newton steps, which form a κ × κ matrix."""

PATIENCE = 16
"""Number of Newton steps without progress after which the iteration of a problem ends."""


ILL_CONDITIONED = 1e-8
"""Noise variance, over the largest squared norm, below which QR replaces Cholesky factors.

Below it, the Cholesky factor would lose more than half of the digits."""

ON_HOST, ON_DEVICE = (5, 1), (15, 2)
"""Updates, and Newton steps, between two checks of the stopping rule; the CPU waits for each check
of an accelerator."""


class SparseBatch(NamedTuple):
    """The solutions of B sparse problems, with the problems along the first axis of every field.

    Parameters
    ----------
    coef : array of shape (B, n, κ)
        Coefficients of the κ columns of the dictionary, for each of the n responses.
    relevance : array of shape (B, κ)
        Relevances: the prior variances of the coefficients of each column.
    noise_variance : array of shape (B,)
        Noise variances, given or learned, in squared units of the responses.
    energy : array of shape (B,)
        Minimised energies (losses), summed over the responses.
    """

    coef: Array
    relevance: Array
    noise_variance: Array
    energy: Array


class SparseGroupBatch(NamedTuple):
    """The solutions of B sparse problems whose groups of columns have covariances of their own.

    Parameters
    ----------
    coef, relevance, noise_variance, energy : array
        As in `SparseBatch`. The relevances are the diagonals of the covariances.
    group_covariances : array of shape (B, g, m, m)
        Prior covariance of the coefficients of each of the g groups, in double precision. Groups
        are in the order of their labels, and padded with zeros to the size m of the largest.
    """

    coef: Array
    relevance: Array
    noise_variance: Array
    energy: Array
    group_covariances: Array


NewtonPoint = cast("Any", namedtuple)("NewtonPoint", (*State._fields, "damping"))
"""The fields of a `State`, and the damping of the next step, flat for `iterate_batch`."""


def solve_batch(
    X: Array,
    y: Array,
    *,
    posterior: str = "full",
    noise_variance: Any = "learn",
    solver: str = "auto",
    groups: Any = None,
    group_covariance: str = "spherical",
    penalty: Any = "log",
    tol: float = 1e-6,
    max_iter: int = 1000,
    n_jobs: int | None = None,
    verbose: bool | str = "auto",
) -> BatchSolution[Any]:
    """Solve many sparse regression problems of equal shape at once, as `SparseVAE` solves one.

    The iteration of each problem stops by itself. The model has no intercept.

    Parameters
    ----------
    X : array of shape (B, d, κ) or (d, κ)
        Dictionaries of the B problems, each with d rows and κ columns. A single dictionary is
        shared by all problems. They may be complex.
    y : array of shape (B, d, n)
        The n responses of each problem; they may be complex.
    posterior : {"full", "diagonal", "point"} or a name given to `register_posterior`
        Posterior covariance of the coefficients, which determines the energy that is minimised:
        full, diagonal, or none ("point", the deterministic autoencoder).
    noise_variance : float, array of shape (B,) or "learn"
        Noise variance of all problems or of each problem. "learn" learns it together with the
        relevances (prior variances), which is reliable if there are at most half as many columns
        as rows.
    solver : {"auto", "mm", "em", "mackay"}
        How the energy (loss) of the full posterior is minimised: by majorise–minimise (MM),
        expectation–maximisation (EM) or MacKay's rule. The other posteriors have one update each.
        On a CPU "auto" solves one problem after the other, as `SparseVAE` does. On an accelerator
        it updates all of them at once: by EM for one or two responses, by MacKay's rule for more.
    groups : int or array-like of int of shape (κ,), optional
        Group label of each column, the same for all problems, or the number of consecutive columns
        in each group.
    group_covariance : {"spherical", "full"}, default="spherical"
        Prior covariance of the coefficients of a group. "spherical": the columns of a group share
        one relevance. "full": each group has a covariance matrix of its own; this needs `groups`,
        ``posterior="full"`` and ``solver="auto"`` or "mm", and the problems are solved one after
        the other on every device.
    penalty : {"log", "power", "arctan"} or object, default="log"
        Concave penalty of the point estimate: a name, or an object with the methods ``value`` and
        ``supergradient``.
    tol : float
        Distance to the optimality (KKT) conditions, a dimensionless number, at which a problem
        stops.
    max_iter : int
        Largest number of iterations (updates and Newton steps together).
    n_jobs : int, optional
        Number of processes among which the problems are divided, by joblib; NumPy arrays only.
        None means 1, unless the function is called inside of a `joblib.parallel_config` context;
        with ``joblib.parallel_config("dask")`` the workers of a Dask cluster solve them.
    verbose : bool or "auto", default="auto"
        Whether to show the elapsed time of a call of more than two seconds: always, never, or, with
        ``"auto"``, if standard error is a terminal or belongs to a notebook.

    Returns
    -------
    BatchSolution
        ``value`` is a `SparseBatch` with the solutions, and with ``group_covariance="full"`` a
        `SparseGroupBatch`. ``status`` (how the iteration ended),
        ``n_iter`` and ``distance`` (to the optimality conditions) have one entry per problem.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((3, 20, 30))
    >>> y = 2.0 * X[:, :, :2] @ rng.standard_normal((3, 2, 8))
    >>> solution = solve_batch(X, y, noise_variance=1e-6)
    >>> solution.converged
    array([ True,  True,  True])
    >>> np.flatnonzero(np.linalg.norm(solution.value.coef[0], axis=0) > 1e-3)
    array([0, 1])
    """
    X, y = _checked_stack(X, y)
    check_choice(solver, "solver", ("auto", *UPDATES))
    check_number(tol, "tol", low=0.0)
    check_integer(max_iter, "max_iter", low=1)
    named = {"posterior": posterior, "penalty": penalty, "groups": groups}
    objective = make_objective(named | {"group_covariance": group_covariance}, X.shape[-1])
    if isinstance(objective, GroupCovariance):
        check_suited(solver, objective)
    noise = checked_levels(noise_variance, y.shape[0])
    if noise is None:
        check_learnable(objective)
    settings = SolverSettings(solver, tol, max_iter)
    # None means one job, or as many as a `joblib.parallel_config` context around this call says.
    check_argument(n_jobs, "n_jobs")
    check_argument(verbose, "verbose")
    jobs = effective_n_jobs(n_jobs) if isinstance(y, np.ndarray) or n_jobs is not None else 1
    count = max(1, min(y.shape[0], jobs))
    with elapsed(f"solving {y.shape[0]} sparse problems", verbose):
        if count == 1:
            return _solve_stack(X, y, noise, objective, settings)
        ends = np.linspace(0, y.shape[0], count + 1).astype(int).tolist()
        given = [
            (X[a:b], y[a:b], None if noise is None else noise[a:b], objective, settings)
            for a, b in pairwise(ends)
        ]
        return _concatenated(of_each(_solve_stack, given, n_jobs=count))


def _checked_stack(X: Any, y: Any) -> tuple[Array, Array]:
    """Return the checked dictionaries and responses of all problems as float arrays."""
    if scipy.sparse.issparse(X):
        raise ValueError(
            "X is a sparse matrix, expected a dense stack of dictionaries. Give X.toarray(), or "
            "fit a SparseVAE, which does not make X dense."
        )
    X, y = (real_array(part, name, accept_complex=True) for part, name in ((X, "X"), (y, "y")))
    xp = namespace(X, y)
    if y.ndim != 3 or X.ndim not in (2, 3):
        raise ValueError(
            f"X has shape {tuple(X.shape)} and y has shape {tuple(y.shape)}, expected X of shape "
            "(problems, rows, columns) or (rows, columns) and y of shape (problems, rows, "
            "responses)."
        )
    if X.ndim == 2:
        X = xp.broadcast_to(X, (y.shape[0], *X.shape))
    if X.shape[:2] != y.shape[:2] or 0 in (*X.shape, *y.shape):
        raise ValueError(
            f"X has shape {tuple(X.shape)} and y has shape {tuple(y.shape)}: the first two axes, "
            "problems and rows, must agree, and no axis may be empty."
        )
    X, y = as_float(X), as_float(y)
    if not bool(xp.all(xp.isfinite(X))) or not bool(xp.all(xp.isfinite(y))):
        raise ValueError("X or y contains NaN or infinity. Remove the problems that contain them.")
    refuse_extremes(X, "X")
    refuse_extremes(y, "y")
    empty = np.flatnonzero(to_numpy(xp.all(y == 0, axis=(1, 2))))
    if empty.size:
        refuse_zero_problem(int(empty[0]))
    return X, y


def _solve_stack(
    X: Array, y: Array, noise: Any, objective: Energy, settings: SolverSettings
) -> BatchSolution[Any]:
    """Return the solutions of checked problems, in one process and in the precision of y."""
    dictionary, responses = as_double(X), as_double(y)
    full = isinstance(objective, GroupCovariance)
    with limited_blas(dictionary.shape[-2]):
        if full or (settings.method == "auto" and objective.exact_coordinates and on_host(y)):
            return _solve_one_by_one(dictionary, responses, noise, objective, settings, y)
        problem, units = normalise(dictionary, responses, groups=objective.groups)
        learn = noise is None
        begin = problem.with_noise(*((first_noise(problem),) if learn else (noise, units)))
        solution = _solve_together(begin, objective, settings, learn)
        state = solution.value
        relevance, level = units.relevance * state.relevance, units.noise * state.noise
        # The canonical problem has a root of XXᵀ in place of X: means come from the given data.
        coef = _posterior_means(dictionary, responses, relevance, level)
        energy = objective.in_units(objective.value(state), units)
        value = SparseBatch(coef, relevance, level, energy)
    return _reported(solution, value, units.norms, y)


def _solve_one_by_one(
    X: Array, y: Array, noise: Any, objective: Energy, settings: SolverSettings, given: Array
) -> BatchSolution[Any]:
    """Return the solutions of problems solved one after the other, which is as fast on a CPU."""
    groups, X, y = objective.groups, to_numpy(X), to_numpy(y)
    ended, values, norms = [], [], []
    for index in range(y.shape[0]):
        problem, units = normalise(X[index], y[index], groups=groups)
        if noise is None:
            solution = learn_noise(problem, objective, settings)
        else:
            at = problem.with_noise(float(noise[index]), units)
            solution = solve(at, objective, settings)
        state = solution.value
        latent, level = units.relevance * state.relevance, units.noise * state.noise
        axes = getattr(state, "axes", None)
        _, mean = Posterior.fitted(X[index], y[index], latent, float(level), axes)
        relevance, covariances = prior_in_units(state, units)
        fields = [mean.T, relevance, level, objective.in_units(objective.value(state), units)]
        ended.append(solution)
        values.append(fields if covariances is None else [*fields, covariances])
        norms.append(units.norms)
    kind: Any = SparseGroupBatch if isinstance(objective, GroupCovariance) else SparseBatch
    stacked = kind(*(np.stack(parts) for parts in zip(*values, strict=True)))
    found = BatchSolution(
        stacked,
        tuple(solution.status for solution in ended),
        np.array([solution.n_iter for solution in ended]),
        np.array([solution.distance for solution in ended]),
        max(solution.tolerance for solution in ended),
    )
    return _reported(found, stacked, np.stack(norms), given)


def _reported(
    solution: BatchSolution[Any], value: Any, norms: Array, y: Array
) -> BatchSolution[Any]:
    """Return the solutions as arrays of the library and the dtype of y; raise if a number is lost.

    A problem whose coefficients or energy are not finite has diverged, and does not stop others.
    The covariance of a group is not rounded, because that would change its small eigenvalues.
    """
    xp = namespace(value.coef)
    parts = {name: getattr(value, name) for name in SparseBatch._fields}
    for name, part in parts.items():
        finite = xp.where(xp.isfinite(part), part, xp.zeros_like(part))
        sizes = xp.abs(finite) * norms[:, None, :] if name == "coef" else None
        narrowed(finite, y, name, sizes)
    narrow = value._replace(**{name: matched(part, y) for name, part in parts.items()})
    if isinstance(value, SparseGroupBatch):
        wide = namespace(y).asarray(value.group_covariances, device=device(y))
        narrow = narrow._replace(group_covariances=wide)
    finite = xp.all(xp.isfinite(value.coef), axis=(1, 2)) & xp.isfinite(value.energy)
    status = tuple(
        ended if sound else Status.DIVERGED
        for ended, sound in zip(solution.status, to_numpy(finite), strict=True)
    )
    return replace(solution, value=narrow, status=status)


def _solve_together(
    problem: Problem, objective: Energy, settings: SolverSettings, learn: bool
) -> BatchSolution[State]:
    """Return the solutions of all problems, whose energies are minimised at once.

    An update chooses a basin of attraction, and Newton steps find its minimum where the energy, the
    tolerance and the number of columns allow them.
    """
    errors = rounding_distances(problem.noise)
    reachable = max(settings.tolerance, float(namespace(errors).max(errors)))
    rows, columns = problem.dictionary.shape[-2:]
    large = columns > NEWTON_COLUMNS * rows
    marginal = objective.marginal
    rule = settings.method if settings.method in objective.rules else "mm"
    if learn or large or reachable >= BASIN or marginal is None:
        return _update(problem, objective, rule, reachable, settings.limit, learn)
    updates = basin_limit(objective, rule)
    if settings.method == "auto" and objective.exact_coordinates:
        few = problem.responses.shape[-1] <= FEW_RESPONSES
        steps = int(np.clip(EM_PER_COLUMN * columns // rows, *EM_STEPS))
        rule, updates = ("em", steps) if few else ("mackay", BASIN_LIMIT["mackay"])
    basin = _update(problem, objective, rule, BASIN, min(settings.limit, updates), learn)
    left = settings.limit - int(basin.n_iter.max())
    if left >= 1:
        return _polish(basin, marginal, reachable, left)
    status = tuple(
        Status.ITERATION_LIMIT if ended.ok and distance > reachable else ended
        for ended, distance in zip(basin.status, basin.distance, strict=True)
    )
    return replace(basin, status=status, tolerance=reachable)


def _update(
    problem: Problem, objective: Energy, rule: str, tolerance: float, limit: int, learn: bool
) -> BatchSolution[State]:
    """Repeat an update of the relevances on all problems at once, until each is stationary."""
    update = objective.update(rule)
    xp = namespace(problem.noise)

    def evaluated(at: Problem, relevance: Array) -> State:
        # Recorded steps copy their state: matrices that no update reads stay out of it.
        return evaluate(at, relevance, curvature=objective.needs_curvature).compact()

    def learned(state: State) -> Array:
        return learned_noise(state, objective.degrees_of_freedom(state))

    def step(state: State) -> State:
        following = state.problem._replace(noise=learned(state)) if learn else state.problem
        return evaluated(following, update(state))

    def distance(state: State) -> Array:
        violation = objective.violation(state)
        change = xp.abs(learned(state) / state.noise - 1.0) if learn else 0.0 * violation
        return xp.maximum(violation, change)

    start = evaluated(problem, flat_start(problem, objective.groups))
    recorded = replayable(step, start)
    return iterate_batch(
        recorded,
        start,
        stop=Below(distance, tolerance),
        limit=limit,
        check_every=(ON_HOST if on_host(start.noise) else ON_DEVICE)[0],
        copy=keeper(recorded),
        size=problem.dictionary.shape[-2],
    )


def _polish(
    basin: BatchSolution[State], marginal: Marginal, tolerance: float, limit: int
) -> BatchSolution[State]:
    """Find the minimum of each problem's energy by damped Newton steps.

    Leaving out columns at zero would need further kernel launches, which cost more than arithmetic.
    """
    state = basin.value
    remaining = remaining_relevances([state], marginal)
    state = evaluate(state.problem, remaining, columns=True)
    damping = namespace(state.noise).full_like(state.noise, FIRST_DAMPING)
    start = NewtonPoint(*state, damping)
    stride = (ON_HOST if on_host(start.noise) else ON_DEVICE)[1]
    stop = Below(
        lambda point: marginal.violation(State(*point[:-1])), tolerance, patience=PATIENCE // stride
    )

    def step(point: Any) -> Any:
        (reached,), damping = newton_step([State(*point[:-1])], point.damping, marginal)
        return NewtonPoint(*reached, damping)

    ended = iterate_batch(
        step,
        start,
        stop=stop,
        limit=limit,
        check_every=stride,
        size=start.dictionary.shape[-2],
    )
    value = State(*ended.value[:-1])
    return replace(ended, value=value, n_iter=basin.n_iter + ended.n_iter)


def _posterior_means(X: Array, y: Array, relevance: Array, noise: Array) -> Array:
    """Return the posterior means of the coefficients of B problems, of shape (B, n, κ)."""
    xp = namespace(noise)
    if is_complex(X) or is_complex(y):
        X, y = as_complex(X), as_complex(y)
    sigma = covariance(X, relevance, noise)
    factor, _ = cholesky(sigma)
    precise = solve_lower(factor, solve_lower(factor, y), transpose=True)
    coef = xp.matrix_transpose(precise) @ conjugate(X) * relevance[:, None, :]
    ill = noise < ILL_CONDITIONED * xp.max(real_part(diagonal(sigma)), axis=-1)
    if not bool(xp.any(ill)):
        return coef
    # With S = ΦW^½ and Sᵀ = BLᵀ, where Σ = LLᵀ is not formed, W^½SᵀΣ⁻¹X is W^½BL⁻¹X.
    roots = xp.sqrt(relevance)
    lower, basis = root_by_qr(adjoint(X * roots[:, None, :]), noise)
    exact = xp.matrix_transpose(basis @ solve_lower(lower, y)) * roots[:, None, :]
    return xp.where(ill[:, None, None], exact, coef)


def _concatenated(solved: list[BatchSolution[Any]]) -> BatchSolution[Any]:
    """Return the solutions of several lists of problems as one `BatchSolution`, in their order."""
    xp = namespace(*solved[0].value)
    fields = zip(*(part.value for part in solved), strict=True)
    value = type(solved[0].value)(*(xp.concat(list(parts), axis=0) for parts in fields))
    return BatchSolution(
        value,
        tuple(status for part in solved for status in part.status),
        np.concatenate([part.n_iter for part in solved]),
        np.concatenate([part.distance for part in solved]),
        solved[0].tolerance,
    )
