"""Newton steps in covariances of groups, and moves that change their ranks."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from lucidae.sparsity import group_newton
from lucidae.sparsity.group_covariance import (
    evaluate_covariances,
    orthonormal,
)
from lucidae.sparsity.group_moves import full_moves
from lucidae.sparsity.group_newton import polish_groups
from lucidae.sparsity.group_solver import change_ranks
from lucidae.sparsity.group_workspace import GroupWorkspace
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.problem import normalise

KINDS = pytest.mark.parametrize("kind", [float, complex])


def normal(rng, kind, *shape):
    real = rng.standard_normal(shape)
    return real + 1j * rng.standard_normal(shape) if kind is complex else real


def draw(seed, kind=float, d=30, labels=None, noise=0.05):
    """Return a problem with orthonormal columns in groups of one to three columns, and groups."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(20), np.arange(20) % 3 + 1) if labels is None else labels
    groups = Groups.of(labels, labels.size)
    Phi = normal(rng, kind, d, labels.size)
    active = np.isin(groups.labels, [2, 4, 11])
    y = Phi[:, active] @ normal(rng, kind, np.count_nonzero(active), 6)
    y = y + np.sqrt(noise * np.mean(np.abs(y) ** 2)) * normal(rng, kind, d, 6)
    problem, _ = normalise(Phi, y, groups=groups)
    problem, _ = orthonormal(problem.with_noise(noise), groups)
    return problem, groups


def random_covariances(groups, numbers, kind, rank=None):
    """Return random covariances of some groups, padded with zeros; of rank one by default."""
    rng = np.random.default_rng(7)
    size = groups.members.shape[1]
    half = normal(rng, kind, len(numbers), size, rank or 1) * groups.present[numbers][:, :, None]
    return half @ half.conj().swapaxes(1, 2)


def workspace_of(problem, groups, numbers, kind, rank):
    """Return a workspace in which some groups have random covariances of a rank."""
    blocks = np.zeros((groups.count, *groups.members.shape[1:] * 2), dtype=kind)
    blocks[numbers] = random_covariances(groups, numbers, kind, rank)
    state = evaluate_covariances(problem, groups, numbers, blocks[numbers])
    covariances = [
        blocks[these, : members.shape[1], : members.shape[1]] for these, members in groups.by_size()
    ]
    every = np.arange(groups.labels.size)
    return state, GroupWorkspace.of(state.take(every), groups, covariances, full_moves)


@KINDS
@pytest.mark.parametrize("quiet", [False, True])
def test_the_derivatives_of_a_newton_step_are_those_of_the_energy(kind, quiet, monkeypatch):
    """Differences of energies, with the range of each covariance turned or its variances changed.

    Quiet problems are measured by rows, and loud ones by columns.
    """
    if quiet:
        monkeypatch.setattr(group_newton, "LOUD", 1.0)
    problem, groups = draw(1, kind, labels=np.repeat(np.arange(8), 3))
    rng = np.random.default_rng(0)
    members = [groups.members[[2, 4, 5]]]
    covariance = random_covariances(groups, np.array([2, 4, 5]), kind)
    covariance[0] += 0.3 * random_covariances(groups, np.array([4, 2, 5]), kind, rank=2)[1]
    measured = group_newton._measures(problem, members)
    assert measured.__name__ == ("by_rows" if quiet else "by_columns")
    zeros = [np.zeros((3, 3), dtype=bool)]
    at = group_newton._latents(measured, zeros, [covariance])
    rows, others, weights = group_newton._directions(at.group, at.inside, kind is complex)
    G, K = at.metric, at.explained
    slope = 2.0 * (weights * (G - K)[others, rows]).real
    hessian = group_newton._curvature(G, 2.0 * K - G, rows, others, weights)
    hessian = hessian + group_newton._curvature_of_turns(at, G - K, rows, others, weights)

    def energy(step):
        change = np.zeros(G.shape, dtype=G.dtype)
        np.add.at(change, (rows, others), weights * step)
        np.add.at(change, (others, rows), np.conj(weights) * step)
        return group_newton._latents(measured, zeros, group_newton._stepped(at, change)).energy

    for chosen in (at.inside[others], ~at.inside[others]):
        assert chosen.any()
        step, h = rng.standard_normal(rows.size) * chosen, 1e-4
        up, down = energy(h * step), energy(-h * step)
        assert_allclose((up - down) / (2 * h), slope @ step, rtol=1e-5)
        assert_allclose((up + down - 2 * at.energy) / h**2, step @ hessian @ step, rtol=1e-3)


@KINDS
def test_newton_steps_turn_the_range_of_covariances_and_end_stationary(kind):
    """Covariances that are cut to rank one end at the best ones of rank one."""
    problem, groups = draw(2, kind)
    _, workspace = workspace_of(problem, groups, np.array([2, 4, 11]), kind, rank=1)
    for _ in range(5):
        workspace.move_all()
    for place, covariance in enumerate(workspace.covariances):
        values, vectors = np.linalg.eigh(covariance)
        axes = vectors[:, :, -1:]
        workspace.covariances[place] = values[:, -1, None, None] * axes * axes.conj().swapaxes(1, 2)
    found = polish_groups(problem, workspace, 1e-9, limit=60)
    turned = 0.0
    blocks = np.zeros((groups.count, *groups.members.shape[1:] * 2), dtype=kind)
    parts = zip(groups.by_size(), found, workspace.covariances, strict=True)
    for (these, members), covariances, before in parts:
        blocks[these, : members.shape[1], : members.shape[1]] = covariances
        kept = covariances.any(axis=(1, 2))
        values, vectors = np.linalg.eigh(covariances[kept])
        assert (values[:, :-1] <= 1e-9 * values[:, -1:]).all()
        first = np.linalg.eigh(before[kept])[1][:, :, -1]
        overlap = np.abs((first.conj() * vectors[:, :, -1]).sum(axis=1))
        turned = max(turned, (1.0 - overlap).max(initial=0.0))
    assert turned > 1e-6
    reached = evaluate_covariances(problem, groups, np.arange(groups.count), blocks)
    for these, _, metric, explained in reached.matrices():
        # Stationary among covariances TTᵀ of its rank: (Q − S)T = 0.
        size = metric.shape[1]
        assert_allclose((explained - metric) @ blocks[these, :size, :size], 0.0, atol=1e-6)


def test_ranks_change_where_this_lowers_the_energy():
    problem, groups = draw(3)
    _, workspace = workspace_of(problem, groups, np.array([0, 3]), float, rank=1)
    before = [covariance.any(axis=(1, 2)) for covariance in workspace.covariances]
    change_ranks(workspace, 1e-6)
    reached = workspace._evaluated()
    assert float(reached.energy_of_fit + reached.log_determinant) < workspace.energy
    after = [covariance.any(axis=(1, 2)) for covariance in workspace.covariances]
    assert sum(int((new & ~old).sum()) for new, old in zip(after, before, strict=True)) > 0
