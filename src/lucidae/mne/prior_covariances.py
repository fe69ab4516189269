"""Prior covariances of groups of columns, fitted to whitened data: to all groups or to some.

Also what is lost without groups: one with the others fitted again, or several with them fixed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import scipy.linalg
from sklearn.exceptions import ConvergenceWarning

from lucidae.sparsity.estimator import SparseVAE
from lucidae.sparsity.group_covariance import GroupCovariance
from lucidae.sparsity.group_moves import MoveRule
from lucidae.sparsity.group_workspace import GroupWorkspace
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import FullCovariance
from lucidae.sparsity.problem import Problem, normalise
from lucidae.sparsity.solvers import advice_on, fitted_parameters
from lucidae.validation import warn_user

__all__ = ["block_diagonal", "energy_of", "fit_prior", "loss_without", "without_weakest"]

Floats = np.ndarray[Any, Any]

REFITTED = 1e-3
"""Change of the evidence, relative to its threshold, at which this fit of other sources ends."""

SLOW = 0.05
"""Change of the evidence, relative to its distance from the threshold, at which the fit ends.

The changes of the rounds fall geometrically, and more of them would not reach the threshold."""

ROUNDS = 50
"""Largest number of times that each of the other sources is fitted again."""


def fit_prior(
    template: SparseVAE, gain: Floats, responses: Floats, labels: Floats, noise: float,
    accuracy: float, prior: Floats | None = None,
) -> tuple[Floats, Floats, Any]:  # fmt: skip
    """Fit the prior covariances of groups of columns to whitened data, by minimising the energy.

    The energy is the loss of `SparseVAE`. Only what is selected by `GroupEstimate` is needed of the
    fit, which takes less time than a fit of the estimator.
    """
    groups = None if template.groups is None else Groups.of(labels, labels.size)
    full = groups is not None and template.group_covariance == "full"
    energy = GroupCovariance(groups) if full else FullCovariance(groups)
    problem, units = normalise(gain, responses, groups=groups)
    problem = problem.with_noise(float(units.normalised_noise(noise)))
    factors, start = units.relevance(np.ones(labels.size)), None
    if groups is not None and full:
        factors = factors[groups.members[:, :1, None]]
    if prior is not None and groups is not None and full:
        start = prior[groups.members[:, :, None], groups.members[:, None, :]]
        start = start * (groups.present[:, :, None] * groups.present[:, None, :]) / factors
    elif prior is not None:
        start = np.diagonal(prior) / factors
    solution, fitted = fitted_parameters(
        problem, energy, start=start, tolerance=accuracy, limit=template.max_iter
    )
    if not solution.status.ok:
        warn_user(advice_on(solution), ConvergenceWarning)
    variances = np.asarray(fitted) * factors
    if groups is None or not full:
        columns = np.flatnonzero(variances)
        return columns, np.diag(variances[columns]), fitted
    columns = groups.columns(np.flatnonzero(variances.any(axis=(1, 2))))
    return columns, block_diagonal(groups, variances, columns), fitted


def block_diagonal(groups: Groups, covariances: Floats, columns: Floats) -> Floats:
    """Return the covariance of the coefficients of some columns from those of all groups.

    `covariances` has shape (g, m, m) for g groups of at most m columns, and `columns` contains all
    columns of some of them, in ascending order.
    """
    found = np.zeros((columns.size, columns.size))
    numbers, places = np.unique(groups.labels[columns], return_inverse=True)
    if not numbers.size:
        return found
    for here, members in Groups.of(places, columns.size).by_size():
        blocks = covariances[numbers[here], : members.shape[1], : members.shape[1]]
        found[members[:, :, None], members[:, None, :]] = blocks
    return found


BySize = list[tuple[Floats, Floats]]
"""Numbers of groups and their members, for each size of groups."""


def without_weakest(
    left: Floats, moment: Floats, sizes: BySize, excess: Floats, allowed: Floats
) -> tuple[Floats, Floats, BySize]:
    """Remove several groups at once, those with the least evidence.

    The result is that of removing one group after the other in order of their evidence.
    """
    order = np.argsort(np.concatenate([excess[numbers] for numbers, _ in sizes]), kind="stable")
    numbers = np.concatenate([numbers for numbers, _ in sizes])[order]
    parts = [members for _, these in sizes for members in these]
    index = np.concatenate([parts[place] for place in order])
    ends = np.cumsum([parts[place].size for place in order])
    try:
        lower = np.linalg.cholesky(left[index[:, None], index])
    except np.linalg.LinAlgError:  # the removal of single groups is more robust
        return left, moment, sizes
    # With left = LLᵀ, the leading blocks of L and of T = L⁻¹CL⁻ᵀ give the costs log|LLᵀ| + tr T of
    # removing the first groups. The last blocks give the matrices for the remaining ones.
    half = scipy.linalg.solve_triangular(lower, moment[index[:, None], index], lower=True)
    inner = scipy.linalg.solve_triangular(lower, half.T, lower=True)
    costs = np.cumsum(2.0 * np.log(np.diagonal(lower)) + np.diagonal(inner))[ends - 1]
    count = int((np.diff(costs, prepend=0.0) <= allowed[numbers]).cumprod().sum())
    if count < 2:
        return left, moment, sizes
    first, gone = ends[count - 1], numbers[:count]
    root, places = lower[first:, first:], np.full(len(left), -1)
    places[index[first:]] = np.arange(len(root))
    remaining = []
    for these, members in sizes:
        kept = ~np.isin(these, gone)
        remaining.append((these[kept], places[members[kept]]))
    return root @ root.T, root @ inner[first:, first:] @ root.T, remaining


def loss_without(
    problem: Problem, groups: Groups, rule: MoveRule, number: int, threshold: float,
    present: list[Floats], before: float,
) -> float:  # fmt: skip
    """Return twice the log-likelihood that is lost without a group, with the others fitted again.

    They move one after the other to their best prior covariances by `rule`, until the loss is below
    the threshold, or until a round changes it by less than `REFITTED` times the threshold or
    `SLOW` times its distance from the threshold. So a result above the
    threshold is an upper bound.
    """
    n_responses, loss = problem.responses.shape[1], np.inf
    kept = [numbers != number for numbers, _ in groups.by_size()]
    members = [index[mask] for (_, index), mask in zip(groups.by_size(), kept, strict=True)]
    priors = [prior[mask] for prior, mask in zip(present, kept, strict=True)]
    with suppress(np.linalg.LinAlgError):  # the rest is impossible up to rounding
        for _ in range(ROUNDS):
            energy, gram = _energy_and_gram(problem, members, priors)
            change, loss = loss - n_responses * (energy - before), n_responses * (energy - before)
            if loss < threshold or change < max(REFITTED * threshold, SLOW * (loss - threshold)):
                break
            GroupWorkspace(gram, members, priors, rule, problem, 0.0).move_all()
    return float(loss)


def energy_of(problem: Problem, groups: Groups, present: list[Floats]) -> float:
    """Return the energy per response, infinite if rounding errors make it impossible.

    The arguments are those of `loss_without`.
    """
    try:
        return _energy_and_gram(problem, [index for _, index in groups.by_size()], present)[0]
    except np.linalg.LinAlgError:
        return np.inf


def _energy_and_gram(
    problem: Problem, members: list[Floats], priors: list[Floats]
) -> tuple[float, Floats]:
    """Return the energy per response, and the matrix `gram` of a `GroupWorkspace`.

    `members` are the columns of the groups and `priors` their prior covariances, for each size of
    groups.
    """
    columns, n_responses = problem.dictionary, problem.responses.shape[1]
    covariance = float(problem.noise) * np.eye(len(columns))
    for index, prior in zip(members, priors, strict=True):
        fields = columns[:, index.ravel()]
        turned = columns[:, index].transpose(1, 0, 2) @ prior
        covariance += turned.transpose(1, 0, 2).reshape(fields.shape) @ fields.T
    lower = np.linalg.cholesky(covariance)
    both = np.hstack([columns, problem.responses / np.sqrt(n_responses)])
    white = scipy.linalg.solve_triangular(lower, both, lower=True)
    fit = float((white[:, columns.shape[1] :] ** 2).sum())
    gram = white[:, : columns.shape[1]].T @ white
    return fit + 2.0 * float(np.log(np.diagonal(lower)).sum()), gram
