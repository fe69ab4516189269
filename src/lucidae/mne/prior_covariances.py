"""Prior covariances of groups of columns, fitted to whitened data: to all groups or to some."""

from __future__ import annotations

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

__all__ = ["block_diagonal", "fit_prior", "loss_without"]

Floats = np.ndarray[Any, Any]

REFITTED = 1e-3
"""Change of the evidence, relative to its threshold, at which this fit of other sources ends."""

SLOW = 0.05
"""Change of the evidence, relative to its distance from the threshold, at which the fit ends.

The changes of the rounds fall geometrically, and more of them would not reach the threshold."""

HARDLY = 3.0
"""The fit ends when the evidence exceeds its threshold by this many times what moves gain.

The gains are those of moves of each of the other sources alone."""

ROUNDS = 50
"""Largest number of times that each of the other sources is fitted again."""


def fit_prior(
    template: SparseVAE, gain: Floats, responses: Floats, labels: Floats, noise: float,
    accuracy: float, prior: Floats | None = None,
) -> tuple[Floats, Floats, Any]:  # fmt: skip
    """Fit the prior covariances of groups of columns to whitened data, by minimising the energy.

    The energy is the loss of `SparseVAE`. Only what is selected by `GroupEstimate` is needed of the
    fit, which takes less time than a fit of the estimator.

    Parameters
    ----------
    template : SparseVAE
        An estimator with the parameters of the fit.
    gain : ndarray of shape (d, κ)
        The columns.
    responses : ndarray of shape (d, n)
        The data.
    labels : ndarray of int of shape (κ,)
        The group of each column.
    noise : float
        The noise variance.
    accuracy : float
        Distance to optimality at which to stop.
    prior : ndarray of shape (κ, κ), optional
        Prior covariance of the coefficients to start from.

    Returns
    -------
    columns : ndarray of int of shape (a,)
        The columns of the groups whose covariance is not zero.
    prior : ndarray of shape (a, a)
        The prior covariance of their coefficients.
    fitted : array
        What was fitted to all columns, in the units of the normalised problem.
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


def loss_without(
    problem: Problem, groups: Groups, rule: MoveRule, number: int, threshold: float,
    present: list[Floats],
) -> float:  # fmt: skip
    """Return twice the log-likelihood that is lost without a group, with the others fitted again.

    They move one after the other to their best prior covariances by `rule`, until the loss is below
    the threshold, or until a round changes it by less than `REFITTED` times the threshold or
    `SLOW` times its distance from the threshold.

    Parameters
    ----------
    problem : Problem
        The problem of the selected columns.
    groups : Groups
        Their groups.
    rule : callable
        `full_moves` or `spherical_moves`.
    number : int
        The group that is left out.
    threshold : float
        The loss at which the group is significant.
    present : list of ndarray of shape (k, m, m)
        Prior covariances of the k groups of each size m.
    """
    n_responses = problem.responses.shape[1]
    before = _energy_and_gram(problem, [index for _, index in groups.by_size()], present)[0]
    kept = [numbers != number for numbers, _ in groups.by_size()]
    members = [index[mask] for (_, index), mask in zip(groups.by_size(), kept, strict=True)]
    priors = [prior[mask] for prior, mask in zip(present, kept, strict=True)]
    loss = np.inf
    for _ in range(ROUNDS):
        energy, gram = _energy_and_gram(problem, members, priors)
        change, loss = loss - n_responses * (energy - before), n_responses * (energy - before)
        if loss < threshold or change < max(REFITTED * threshold, SLOW * (loss - threshold)):
            break
        workspace = GroupWorkspace(gram, members, priors, rule, problem, 0.0)
        single = sum(float(gains.sum()) for _, gains in workspace.best_moves())
        if loss - HARDLY * n_responses * single > threshold:
            break
        try:
            workspace.move_all()
        except np.linalg.LinAlgError:  # the moves are impossible up to rounding
            break
    return float(loss)


def _energy_and_gram(
    problem: Problem, members: list[Floats], priors: list[Floats]
) -> tuple[float, Floats]:
    """Return the energy (loss) per response, and the matrix `gram` of a `GroupWorkspace`.

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
