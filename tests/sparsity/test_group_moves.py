"""Exact moves of groups of columns, and the working set of groups."""

import numpy as np
import pytest
import scipy.linalg
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning

from lucidae import SparseVAE
from lucidae.sparsity import group_blocks as block_functions
from lucidae.sparsity import group_moves, group_solver
from lucidae.sparsity.group_blocks import group_blocks
from lucidae.sparsity.group_covariance import (
    GroupCovariance,
    _axes_of_unit_columns,
    evaluate_covariances,
    evaluate_groups,
)
from lucidae.sparsity.group_moves import (
    at_rest,
    full_moves,
    multiples_of_identity,
    rank_groups,
    spherical_moves,
)
from lucidae.sparsity.group_solver import (
    repeat_group_update,
    solve_groups,
    without_vanishing_groups,
)
from lucidae.sparsity.group_workspace import GroupWorkspace
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import FullCovariance
from lucidae.sparsity.problem import normalise
from lucidae.sparsity.solvers import repeat_update, solve
from lucidae.sparsity.state import evaluate, flat_start
from lucidae.sparsity.working_set import improve, solve_working_set

LABELS = np.array([0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 6, 6])


def draw(seed, d=12, labels=LABELS, n=4, noise=0.1, kind=float):
    """Return a problem in which some groups are relevant, and its groups."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        real = rng.standard_normal(shape)
        return real + 1j * rng.standard_normal(shape) if kind is complex else real

    groups = Groups.of(labels, labels.size)
    relevant = np.isin(groups.labels, rng.choice(groups.count, max(2, groups.count // 6)))
    Phi = normal(d, labels.size)
    signal = Phi @ (normal(labels.size, n) * relevant[:, None])
    y = signal + np.sqrt(noise * np.mean(np.abs(signal) ** 2)) * normal(d, n)
    problem, _ = normalise(Phi, y, groups=groups)
    return problem.with_noise(noise), groups


def change_of_energy(change, S, Q):
    """Return how the energy per response changes when a group's covariance changes."""
    T = np.eye(len(S)) + change @ S
    return np.linalg.slogdet(T)[1] - np.trace(np.linalg.solve(T, change @ Q)).real


def blocks(rng, size):
    """Return a metric and an explained moment of random scales."""
    A = rng.standard_normal((size, size + 2)) * np.exp(rng.standard_normal((size, 1)))
    B = rng.standard_normal((size, 3)) * np.exp(rng.standard_normal(3))
    return A @ A.T, 3.0 * B @ B.T


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_no_relevance_of_a_fine_grid_beats_the_move_of_a_group(size):
    rng = np.random.default_rng(size)
    for _ in range(20):
        S, Q = blocks(rng, size)
        w = rng.choice([0.0, 0.5 / np.linalg.eigvalsh(S)[-1]])
        moved, gain = spherical_moves(multiples_of_identity(np.array([w]), size), S[None], Q[None])
        grid = np.concatenate([[0.0], np.exp(np.linspace(-20, 12, 3000))]) - w
        best = min(change_of_energy(change * np.eye(size), S, Q) for change in grid)
        assert -gain[0] <= best + 1e-8 * max(1.0, abs(best))
        assert_allclose(
            change_of_energy(moved[0] - w * np.eye(size), S, Q), -gain[0], rtol=1e-7, atol=1e-9
        )


def test_a_group_may_gain_although_its_relevance_first_raises_the_energy():
    S, Q = np.diag([1.0, 200.0]), np.diag([60.0, 20.0])
    assert np.trace(Q) < np.trace(S)
    moved, gain = spherical_moves(np.zeros((1, 2, 2)), S[None], Q[None])
    assert moved[0, 0, 0] > 1.0
    assert gain[0] > 1.0


def never_beaten(count, starts):
    """Check the closed form against L-BFGS from several starts, on random blocks."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        size = int(rng.integers(2, 5))
        S, Q = blocks(rng, size)
        present = rng.standard_normal((size, size)) * rng.choice([0.0, 1.0])
        present = 0.5 * present @ present.T / (1e-9 + np.linalg.norm(present @ present.T @ S, 2))
        moved, gain = full_moves(present[None], S[None], Q[None])

        def energy(flat, S=S, Q=Q, present=present, size=size):
            T = flat.reshape(size, size)
            change = T @ T.T - present
            inverse = np.linalg.inv(np.eye(size) + S @ change)  # (I + SΔ)⁻¹
            slope = inverse @ S - inverse @ Q @ inverse.T
            return change_of_energy(change, S, Q), (2.0 * slope @ T).ravel()

        found = [
            minimize(energy, rng.standard_normal(size**2), jac=True, method="L-BFGS-B").fun
            for _ in range(starts)
        ]
        assert -gain[0] <= min(found) + 1e-7 * max(1.0, abs(min(found)))
        assert_allclose(change_of_energy(moved[0] - present, S, Q), -gain[0], rtol=1e-6, atol=1e-7)


def test_quasi_newton_never_beats_the_covariance_in_closed_form():
    never_beaten(12, 4)


@pytest.mark.slow
def test_quasi_newton_never_beats_the_covariance_in_closed_form_in_any_of_200_blocks():
    never_beaten(200, 20)


@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize("rule", [spherical_moves, full_moves])
def test_updates_of_rank_m_follow_a_fresh_factorisation(rule, kind):
    problem, groups = draw(1, kind=kind)
    state = evaluate(problem, flat_start(problem, groups), columns=True)
    covariances = [
        multiples_of_identity(state.relevance[members[:, 0]], members.shape[1]).astype(kind)
        for _, members in groups.by_size()
    ]
    workspace = GroupWorkspace.of(state, groups, covariances, rule)
    before = FullCovariance().value(state)
    total = 0.0
    for size, place in ((0, 1), (2, 1), (1, 0), (2, 1)):
        moved, gains = workspace.best_moves()[size]
        workspace.move(size, place, moved[place])
        total += gains[place]
    fresh = follows_a_factorisation(workspace, problem, groups)
    assert_allclose(before - FullCovariance().value(fresh), total, rtol=1e-8)


def follows_a_factorisation(workspace, problem, groups):
    """Assert that a workspace has the matrices of its covariances; return the state at these."""
    padded = np.zeros((groups.count, 3, 3), dtype=workspace.gram.dtype)
    for (numbers, members), covariance in zip(groups.by_size(), workspace.covariances, strict=True):
        m = members.shape[1]
        padded[numbers, :m, :m] = covariance
    fresh = evaluate_groups(problem, groups, padded)
    lower = fresh.inverse @ problem.dictionary
    expected = np.hstack([lower.conj().T @ lower, lower.conj().T @ fresh.whitened_responses])
    assert_allclose(workspace.gram, expected, atol=1e-9)
    return fresh


def at_zero(problem, groups, rule):
    """Return a workspace in which all groups have the covariance zero, and its state."""
    none = [np.zeros((len(m), m.shape[1], m.shape[1])) for _, m in groups.by_size()]
    none = [each.astype(problem.responses.dtype) for each in none]
    state = evaluate(problem, np.zeros(groups.labels.size), columns=True)
    return GroupWorkspace.of(state, groups, none, rule), state


@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize("rule", [spherical_moves, full_moves])
def test_groups_that_move_together_lower_the_energy_or_stay(rule, kind):
    moved_at_once = set()
    for seed in range(8):
        problem, groups = draw(seed, d=40 if seed % 2 else 5, n=8, kind=kind)
        workspace, state = at_zero(problem, groups, rule)
        before, start = FullCovariance().value(state), workspace.gram.copy()
        best = workspace.best_moves()
        moves = [
            (size, place, moved[place], float(gains[place]))
            for size, (moved, gains) in enumerate(best)
            for place in np.flatnonzero(gains > 1e-3)
        ]
        moved_at_once.add(len(moves) > 1 and workspace.move_together(moves))
        fresh = follows_a_factorisation(workspace, problem, groups)
        fall = before - FullCovariance().value(fresh)
        if np.array_equal(workspace.gram, start):
            assert_allclose(fall, 0.0, atol=1e-9)
        else:
            assert fall >= 0.5 * sum(gain for *_, gain in moves)
    assert moved_at_once == {True, False}


def test_which_groups_depend_on_each_other_does_not_depend_on_their_axes():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 3)
    Phi, y = rng.standard_normal((20, 24)), rng.standard_normal((20, 5))
    Phi[:, 3:6] = Phi[:, :3] + 0.3 * rng.standard_normal((20, 3))  # groups 0 and 1 are similar
    Phi = np.hstack([np.linalg.qr(Phi[:, first : first + 3])[0] for first in range(0, 24, 3)])
    turns = np.zeros((24, 24))
    for first in range(0, 24, 3):
        turns[first : first + 3, first : first + 3] = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    groups, found = Groups.of(labels, 24), []
    for columns in (Phi, Phi @ turns):
        problem, _ = normalise(columns, y, groups=groups)
        workspace, _ = at_zero(problem.with_noise(0.1), groups, full_moves)
        found.append(workspace.apart([(0, place) for place in range(8)]))
    assert found[0] == found[1]
    assert 0 in found[0]
    assert 1 not in found[0]
    assert len(found[0]) > 2


@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_largest_ratio_is_an_eigenvalue_also_if_a_metric_is_singular(size, kind):
    _, S, Q = stacks(3, size, 1, kind)
    S[:5, :, -1] = S[:5, -1, :] = Q[:5, :, -1] = Q[:5, -1, :] = 0.0  # a column of zeros
    found = group_moves.largest_ratios(S, Q)
    for value, metric, explained in zip(found[5:], S[5:], Q[5:], strict=True):
        assert_allclose(value, scipy.linalg.eigh(explained, metric, eigvals_only=True)[-1])
    inside = slice(0, size - 1)
    for value, metric, explained in zip(found[:5], S[:5], Q[:5], strict=True):
        part = (explained[inside, inside], metric[inside, inside])
        rest = scipy.linalg.eigh(*part, eigvals_only=True)[-1] if size > 1 else 0.0
        assert_allclose(value, rest)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("kind", ["real", "complex"])
def test_gains_of_groups_that_are_zero_are_those_of_their_best_moves(size, kind):
    _, S, Q = stacks(5, size, 1, kind)
    S[0] = np.outer(np.arange(1.0, size + 1), np.arange(1.0, size + 1)) + 1e-9 * np.eye(size)
    gains, largest = group_moves.entry_gains(S, Q)
    _, expected = full_moves(np.zeros_like(S), S, Q)
    assert_allclose(gains, expected, rtol=1e-7, atol=1e-12)
    assert_allclose(largest.max(), group_moves.largest_ratios(S, Q).max())
    Q *= 1e-3  # no group gains
    gains, largest = group_moves.entry_gains(S, Q)
    assert not gains[1:].any()
    assert largest[1:].max() < 1.0


@pytest.mark.parametrize("correlation", [-1.0, -0.6, 0.0, 0.3, 1.0 - 1e-9, None])
def test_axes_of_two_unit_columns_are_their_eigenvectors(correlation):
    gram = np.zeros((1, 2, 2)) if correlation is None else np.eye(2)[None].repeat(2, 0)
    if correlation is not None:
        gram[:, 0, 1] = gram[:, 1, 0] = correlation
    values, vectors = _axes_of_unit_columns(gram)
    assert_allclose(values, np.linalg.eigvalsh(gram), atol=1e-15)
    assert_allclose(vectors.mT @ vectors, np.eye(2)[None].repeat(len(gram), 0), atol=1e-15)
    assert_allclose((vectors * values[:, None, :]) @ vectors.mT, gram, atol=1e-15)


def test_one_nearly_singular_metric_does_not_change_the_moves_of_other_groups():
    covariance, S, Q = stacks(4, 2, 1)
    alone, gained = group_moves.full_moves(covariance, S, Q)
    S[7] = np.outer([1.0, 2.0], [1.0, 2.0]) + 1e-9 * np.eye(2)
    covariance[7], Q[7] = 0.0, 3.0 * S[7]
    moved, gains = group_moves.full_moves(covariance, S, Q)
    others = np.arange(len(S)) != 7
    assert_array_equal(moved[others], alone[others])
    assert_array_equal(gains[others], gained[others])
    expected, gain = group_moves._by_eigenvalues(covariance[7:8], S[7:8], Q[7:8])
    assert_allclose(moved[7], expected[0])
    assert_allclose(gains[7], gain[0])


@pytest.mark.parametrize("kind", [float, complex])
def test_the_gain_of_a_group_is_the_drop_of_the_energy(kind):
    problem, groups = draw(2, kind=kind)
    relevance = flat_start(problem, groups) * (groups.labels % 2)
    state = evaluate(problem, relevance, columns=True)
    ranking = rank_groups(state, groups)
    for numbers, members, metric, explained in group_blocks(state, groups):
        present = multiples_of_identity(relevance[members[:, 0]], members.shape[1])
        moved, gains = spherical_moves(present, metric, explained)
        assert_allclose(ranking.gains[numbers], gains)
        for index, new, gain in zip(members, moved, gains, strict=True):
            changed = relevance.copy()
            changed[index] = new[0, 0]
            drop = FullCovariance().value(state) - FullCovariance().value(
                evaluate(problem, changed)
            )
            assert_allclose(drop, gain, atol=1e-9)


@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize("labels", [LABELS, np.arange(60) // 3])
def test_the_working_set_of_groups_ends_stationary_and_lowers_the_energy(labels, kind):
    problem, groups = draw(3, labels=labels, kind=kind)
    energy = FullCovariance(groups)
    start = evaluate(problem, 0.0 * flat_start(problem), columns=True)
    solution = solve_working_set(start, energy)
    assert solution.status.ok
    assert (np.diff(solution.history["energy"]) <= 1e-9).all()
    assert energy.violation(solution.value) <= 1e-6
    assert rank_groups(solution.value, groups).gains.max() <= 1e-6
    w = solution.value.relevance
    assert_allclose(w, groups.expand(groups.gather(w)[:, 0]))
    again = improve(solution.value, energy, 1e-6)
    assert_allclose(energy.value(again), energy.value(solution.value), rtol=1e-9)


def no_higher_than_updates(seed, updates):
    """Check both kinds of groups of one problem against many majorise–minimise updates."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 12, 36) if seed % 2 else np.arange(36) // 3
    problem, groups = draw(seed, d=20, labels=labels, n=int(rng.choice([2, 5, 20])))
    energy = FullCovariance(groups)
    updated = repeat_update(problem, energy, tolerance=1e-12, limit=updates)
    found = energy.value(solve(problem, energy).value)
    assert found <= energy.value(updated.value) + 1e-6
    full = GroupCovariance(groups)
    begin = flat_start(problem, groups)
    slow = repeat_group_update(problem, groups, begin, 1e-12, updates)
    assert (np.diff(slow.history["energy"]) <= 1e-9).all()
    reached = full.value(solve(problem, full).value)
    assert reached <= full.value(slow.value) + 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_groups_end_no_higher_than_many_updates(seed):
    no_higher_than_updates(seed, 200)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_groups_end_no_higher_than_5000_updates(seed):
    no_higher_than_updates(seed, 5000)


@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_groups_at_rest_have_no_move(size, kind):
    rng = np.random.default_rng(size)

    def gram(width):
        factor = rng.standard_normal((300, size, width)).astype(kind)
        if kind is complex:
            factor += 1j * rng.standard_normal(factor.shape)
        return factor @ np.conj(factor.swapaxes(1, 2))

    metric, explained = gram(4), 0.3 * gram(4)
    resting = at_rest(metric, explained)
    whitening = np.linalg.inv(np.linalg.cholesky(metric))
    ratios = np.linalg.eigvalsh(whitening @ explained @ np.conj(whitening.swapaxes(1, 2)))
    assert 0 < resting.sum() < 300
    assert_array_equal(resting, ratios[:, -1] < 1.0)
    none = np.zeros_like(metric)
    _, gains = full_moves(none, metric, explained)
    assert_array_equal(gains > 0, ~resting)
    _, gains = spherical_moves(none.real, metric, explained)
    assert not gains[resting].any()


def test_vanishing_groups_are_dropped_only_if_the_energy_does_not_rise():
    problem, groups = draw(0, d=20, labels=np.arange(60) // 3, n=20)
    full = GroupCovariance(groups)
    state = repeat_group_update(problem, groups, flat_start(problem, groups), 1e-2, 30).value
    reached = without_vanishing_groups(problem, state)
    assert full.value(reached) <= full.value(state)
    active = [np.count_nonzero(each.covariances.any(axis=(1, 2))) for each in (state, reached)]
    assert active[1] < active[0] == groups.count


@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize("labels", [LABELS, np.arange(60) // 3])
def test_covariances_end_stationary_and_every_sweep_lowers_the_energy(labels, kind):
    problem, groups = draw(5, labels=labels, kind=kind)
    full = GroupCovariance(groups)
    for method in ("coordinate", "mm"):
        solution = solve_groups(problem, full, method=method, start=None, tolerance=1e-6, limit=100)
        assert solution.status.ok
        assert (np.diff(solution.history["energy"]) <= 1e-9).all()


def test_sweeps_that_lower_neither_energy_nor_distance_end_with_advice(monkeypatch):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((12, 18)), rng.standard_normal((12, 4))

    def without_gain(state, *_):  # as rounding errors do if the noise is far too small
        blocks = (1.0 + 1e-3 * rng.standard_normal()) * state.blocks
        return evaluate_covariances(state.problem, state.groups, state.numbers, blocks)

    for name in ("improve_groups", "move_groups"):
        monkeypatch.setattr(group_solver, name, without_gain)
    model = SparseVAE(groups=3, group_covariance="full", noise_variance=0.1, solver="mm")
    with pytest.warns(
        ConvergenceWarning, match=r"Stalled.*noise variance is 0.* larger one"
    ) as got:
        model.fit(X, y)
    assert "if the data are float32, give them as float64" in str(got[0].message)
    assert model.n_iter_ < 60  # of 1000


@pytest.mark.parametrize(
    ("seed", "spread", "noise"), [(0, 1e-5, 1e-10), (1, 1e-5, 1e-10), (2, 1e-4, 1e-8)]
)
@pytest.mark.parametrize("method", ["mm", "coordinate", "spherical"])
def test_the_energy_does_not_rise_if_columns_are_nearly_dependent(seed, spread, noise, method):
    """The energy falls up to the error ε/γ of the log-determinant of an ill-conditioned Σ."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((12, 4)) @ rng.standard_normal((4, 45))
    X = X + spread * rng.standard_normal(X.shape)
    y = X[:, :6] @ rng.standard_normal((6, 4)) + noise**0.5 * rng.standard_normal((12, 4))
    groups = Groups.of(3, 45)
    problem, _ = normalise(X, y, groups=groups)
    problem = problem.with_noise(noise)
    if method == "spherical":
        solution = solve(problem, FullCovariance(groups), tolerance=1e-6, limit=100)
    else:
        settings = {"method": method, "start": None, "tolerance": 1e-6, "limit": 100}
        solution = solve_groups(problem, GroupCovariance(groups), **settings)
    energies = np.asarray(solution.history["energy"])
    rounding = 32 * np.finfo(float).eps / noise * np.abs(energies[-1])
    assert np.isfinite(energies).all()
    assert (np.diff(energies) <= rounding).all()


def test_a_move_that_raises_the_energy_is_undone():
    problem, groups = draw(3, noise=1e-6)
    start = [np.zeros((len(each), each.shape[1], each.shape[1])) for _, each in groups.by_size()]
    none = evaluate_groups(problem, groups, np.zeros(groups.labels.size))
    moved = GroupWorkspace.of(none, groups, start, full_moves)
    moved.make(lambda: moved.move_all() and None)
    covariances = [covariance + 0.0 for covariance in moved.covariances]
    workspace = GroupWorkspace.of(moved._evaluated(), groups, moved.covariances, full_moves)
    energy, last = workspace.energy, len(covariances) - 1
    place = int(np.argmax(covariances[last].any(axis=(1, 2))))

    def far_too_large():
        workspace.move(last, place, 1e6 * np.eye(covariances[last].shape[1]))

    workspace.make(far_too_large)
    for found, expected in zip(workspace.covariances, covariances, strict=True):
        assert_array_equal(found, expected)
    assert workspace.energy == energy
    assert workspace.fixed[last][place]
    assert workspace.best_moves()[last][1][place] == 0.0  # the group does not move again
    workspace.move_all()
    assert_array_equal(workspace.covariances[last][place], covariances[last][place])
    assert workspace.energy < energy


def stacks(seed, size, rank, kind=float, count=60):
    """Return covariances, metrics and explained moments of groups; every third is inactive."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        real = rng.standard_normal(shape)
        return real + 1j * rng.standard_normal(shape) if kind is complex else real

    half, other = normal(count, size, 2 * size), normal(count, size, 2 * size)
    other = 2.0 * other * rng.random((count, 1, 1))
    S, Q = half @ half.conj().mT, other @ other.conj().mT
    inverse = np.linalg.inv(np.linalg.cholesky(S))
    part = normal(count, size, rank)
    part = part @ part.conj().mT
    part = part / np.linalg.eigvalsh(part)[:, -1:, None] * rng.random((count, 1, 1))
    covariance = inverse.conj().mT @ part @ inverse
    covariance[::3] = 0.0
    return covariance, S, Q


@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize(("size", "rank"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (5, 2)])
def test_fast_moves_are_those_by_eigenvalues(size, rank, kind):
    blocks = stacks(0, size, rank, kind)
    moved, gains = group_moves._by_eigenvalues(*blocks)
    fast = [group_moves._by_triangles]
    if size == 2 and kind is float:
        fast.append(group_moves._of_pairs)
    for rule in fast:
        found, gained = rule(*blocks)
        assert_allclose(found, moved, atol=1e-10 * np.abs(moved).max())
        assert_allclose(gained, gains, rtol=1e-9, atol=1e-10)
        # What the best covariance leaves out is left out exactly: no axis has a variance of
        # rounding errors.
        assert_array_equal(np.linalg.matrix_rank(found), np.linalg.matrix_rank(moved))


@pytest.mark.parametrize("size", [2, 3])
def test_fast_moves_give_columns_of_zeros_no_variance_and_lose_no_digits(size):
    covariance, S, Q = stacks(1, size, size)
    for each in (covariance, S, Q):
        each[:, 1] = each[:, :, 1] = 0.0
    moved, gains = full_moves(covariance, S, Q)
    expected = group_moves._by_eigenvalues(covariance, S, Q)
    assert not moved[:, 1].any()
    assert_allclose(moved, expected[0], atol=1e-10)
    assert_allclose(gains, expected[1], atol=1e-10)
    nearly = S + 0.0  # two columns that are dependent up to rounding errors
    nearly[:, 1], nearly[:, :, 1] = nearly[:, 0], nearly[:, :, 0]
    with pytest.raises(np.linalg.LinAlgError):
        group_moves._by_triangles(0.0 * S, nearly, Q)
    assert np.isfinite(full_moves(0.0 * S, nearly, nearly)[1]).all()


@pytest.mark.parametrize("most", [5, 20])
def test_a_ranking_of_the_best_groups_has_the_largest_gains_of_all(most):
    rng = np.random.default_rng(0)
    half, other = rng.standard_normal((2, 400, 3, 6))
    other = other * rng.uniform(0.2, 3.0, (400, 1, 1))
    S, Q = half @ half.mT, other @ other.mT
    weights = np.where(rng.random(400) < 0.05, 0.1 / np.linalg.eigvalsh(S)[:, -1], 0.0)
    present = multiples_of_identity(weights, 3)
    _, every = spherical_moves(present, S, Q)
    _, best = spherical_moves(present, S, Q, most)
    active = weights > 0
    assert_allclose(best[active], every[active])
    order = np.argsort(-np.where(active, 0.0, every))[:most]
    assert_allclose(best[order], every[order])
    assert (best <= every + 1e-12).all()
    assert np.count_nonzero(best) < np.count_nonzero(every)


def test_many_groups_of_consecutive_columns_have_the_same_metric():
    columns = np.random.default_rng(0).standard_normal((7, 1800))
    expected = np.einsum("dki,dkj->kij", *[columns.reshape(7, 600, 3)] * 2)
    assert_allclose(block_functions._metrics(columns, 3), expected, atol=1e-12)


def test_one_pair_moves_as_it_does_among_many():
    blocks = stacks(2, 2, 2)
    moved, gains = group_moves._of_pairs(*blocks)
    for place, (covariance, metric, explained) in enumerate(zip(*blocks, strict=True)):
        found, gain = group_moves.of_one_pair(covariance, metric, explained)
        assert_allclose(found, moved[place], rtol=1e-12, atol=1e-14)
        assert_allclose(gain, gains[place], rtol=1e-10, atol=1e-13)
    singular = np.ones((2, 2))
    with pytest.raises(np.linalg.LinAlgError):
        group_moves.of_one_pair(0.0 * singular, singular, singular)
    with pytest.raises(np.linalg.LinAlgError):  # rounding errors made the metric indefinite
        group_moves.of_one_pair(0.0 * singular, -np.eye(2), np.eye(2))


@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize("rule", [spherical_moves, full_moves])
def test_the_move_of_one_group_is_that_among_all(rule, kind):
    problem, groups = draw(4, labels=np.append(LABELS, [7, 7]), kind=kind)
    state = evaluate(problem, np.zeros(groups.labels.size), columns=True)
    none = [
        np.zeros((len(each), each.shape[1], each.shape[1]), dtype=kind)
        for _, each in groups.by_size()
    ]
    workspace = GroupWorkspace.of(state, groups, none, rule)
    workspace.move_all()
    for size, (moved, gains) in enumerate(workspace.best_moves()):
        for place in range(len(gains)):
            found, gain = workspace.best_move(size, place)
            assert_allclose(found, moved[place], rtol=1e-9, atol=1e-11)
            assert_allclose(gain, gains[place], rtol=1e-6, atol=1e-11)


@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize("labels", [LABELS, np.arange(900) % 300, np.arange(900) // 3])
def test_states_with_given_columns_have_the_energy_and_distance_of_principal_axes(labels, kind):
    problem, groups = draw(6, labels=labels, kind=kind)
    rng = np.random.default_rng(0)
    size, numbers = groups.members.shape[1], np.array([0, 2, 4, 6])
    half = 0.1 * rng.standard_normal((4, size, size)).astype(kind)
    present = groups.present[numbers]
    half = half * present[:, :, None] * present[:, None, :]
    blocks = half @ half.conj().mT
    state = evaluate_covariances(problem, groups, numbers, blocks)
    expected = evaluate_groups(problem, groups, state.covariances)
    full = GroupCovariance(groups)
    for other in (state, state.in_principal_axes()):
        assert_allclose(full.value(other), full.value(expected), rtol=1e-10)
        assert_allclose(full.parameters(other), state.covariances, atol=1e-12)
        assert_allclose(full.violation(other), full.violation(expected), rtol=1e-7)
        assert_allclose(other.ranking.gains, expected.ranking.gains, rtol=1e-6, atol=1e-9)
    # The distance is the largest one over all groups, although most of them are not examined.
    distances = []
    for number, covariance in enumerate(state.covariances):
        index = groups.members[number][groups.present[number] > 0]
        part, count = state.take(index), index.size
        S = part.whitened.conj().T @ part.whitened
        Q = part.loading @ part.loading.conj().T
        whitening = np.linalg.inv(np.linalg.cholesky(S))
        distances += [np.linalg.eigvalsh(whitening @ Q @ whitening.conj().T)[-1] - 1.0]
        values, axes = np.linalg.eigh(covariance[:count, :count])
        root = axes * np.sqrt(np.maximum(values, 0.0))
        distances += [np.abs(np.linalg.eigvalsh(root.conj().T @ (Q - S) @ root)).max()]
    assert_allclose(full.violation(state), max(distances), rtol=1e-7)


def test_the_search_for_one_relevance_ends_where_that_for_many_does():
    rng = np.random.default_rng(0)
    s, q = rng.uniform(0.1, 2.0, (2, 50, 3))
    q = 3.0 * q
    target = (q - s) / s**2
    low, high = np.maximum(target.min(axis=1), -0.4), target.max(axis=1)
    many = group_moves._root_of_slope(low, high, s, q)
    one = [
        group_moves._root_of_slope(low[i : i + 1], high[i : i + 1], s[i : i + 1], q[i : i + 1])[0]
        for i in range(50)
    ]
    assert_allclose(one, many, rtol=1e-4)
    inverse = 1.0 / (1.0 + np.array(one)[:, None] * s)
    slope = (s * inverse - q * inverse**2).sum(axis=1)
    assert np.abs(slope).max() < 1e-3
