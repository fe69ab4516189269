"""Descent on a working set: exact coordinate moves, rank-one updates, Newton steps."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from lucidae.sparsity.objectives import FullCovariance
from lucidae.sparsity.problem import Problem, normalise
from lucidae.sparsity.state import empty_start, evaluate
from lucidae.sparsity.working_set import (
    DEFINITE,
    ROUNDING,
    NewtonPoint,
    best_change,
    best_coordinate_step,
    coordinate_gains,
    descend,
    gain_of,
    move_coordinate_,
    newton_direction,
    newton_step,
    noise_stages,
    open_workspace,
    polish,
    solve_working_set,
    working_set,
)


def draw(seed, d=8, kappa=14, n=3, noise=0.1):
    rng = np.random.default_rng(seed)
    Phi = rng.standard_normal((d, kappa))
    X = Phi[:, :3] @ rng.standard_normal((3, n)) + 0.3 * rng.standard_normal((d, n))
    problem, _ = normalise(Phi, X)
    relevance = rng.uniform(0, 1, kappa) * (rng.uniform(size=kappa) < 0.5)
    return problem.with_noise(noise), relevance


def at(problem, relevance):
    return evaluate(problem, relevance, columns=True)


def energy(problem, relevance):
    return float(FullCovariance().value(evaluate(problem, relevance)))


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), index=st.integers(0, 13))
def test_one_coordinate_is_minimised_exactly_and_its_gain_is_the_drop(seed, index):
    problem, relevance = draw(seed)
    state = evaluate(problem, relevance)
    change = best_change(state.relevance, state.curvature, state.alignment)
    gains = gain_of(change, state.curvature, state.alignment)
    moved = relevance.copy()
    moved[index] += change[index]
    drop = energy(problem, relevance) - energy(problem, moved)
    assert_allclose(drop, gains[index], atol=1e-10, rtol=1e-8)
    for other in np.geomspace(1e-4, 10, 30):
        trial = relevance.copy()
        trial[index] = other
        assert energy(problem, trial) >= energy(problem, moved) - 1e-11


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_rank_one_updates_follow_a_fresh_factorisation(seed):
    problem, relevance = draw(seed)
    space = open_workspace(at(problem, relevance))
    for _ in range(20):
        space = best_coordinate_step(space)
    fresh = open_workspace(at(problem, space.relevance))
    assert_allclose(space.gram, fresh.gram, atol=1e-9)
    assert_allclose(space.curvature, fresh.curvature, rtol=1e-9)
    assert_allclose(space.alignment, fresh.alignment, rtol=1e-7, atol=1e-9)


def test_a_move_to_the_edge_leaves_exactly_zero():
    problem, relevance = draw(0)
    space = open_workspace(at(problem, relevance))
    index = int(np.flatnonzero(relevance)[0])
    moved = move_coordinate_(space, index, -float(relevance[index]))
    assert moved.relevance[index] == 0.0


def test_descent_ends_where_no_coordinate_gains():
    problem, _ = draw(5)
    space = open_workspace(at(problem, np.zeros(14)))
    ended = descend(space, tolerance=1e-12, limit=20_000)
    state = evaluate(problem, ended.relevance)
    assert coordinate_gains(state.relevance, state.curvature, state.alignment).max() < 1e-10
    assert float(FullCovariance().violation(state)) < 1e-5


def test_newton_solves_the_system_of_the_finite_difference_hessian():
    problem, relevance = draw(7)
    relevance = relevance + 0.5
    point = NewtonPoint.at(at(problem, relevance))
    objective, step = FullCovariance(), 1e-6

    def gradient(weights):
        return objective.gradient(evaluate(problem, weights))

    columns = [
        (gradient(relevance + step * unit) - gradient(relevance - step * unit)) / (2 * step)
        for unit in np.eye(14)
    ]
    hessian = np.array(columns)
    direction = newton_direction(point._replace(damping=np.array(2.0)))
    concave = (point.whitened.T @ point.whitened) ** 2
    damped = hessian + 2.0 * (concave + ROUNDING * np.diag(np.diag(concave)))
    assert_allclose(damped @ direction, -gradient(relevance), atol=1e-5)


def test_a_damping_of_one_always_leaves_a_descent_direction():
    for seed in range(20):
        problem, relevance = draw(seed, n=1)
        point = NewtonPoint.at(at(problem, relevance), np.array(DEFINITE))
        direction = newton_direction(point)
        gradient = FullCovariance().gradient(evaluate(problem, relevance))
        assert (direction * gradient).sum() < 0


def test_an_indefinite_hessian_is_met_with_a_safe_damping():
    problem, relevance = draw(11, n=1)
    point = NewtonPoint.at(at(problem, relevance))
    assert np.isnan(newton_direction(point)).any()
    before = FullCovariance().reduced_value(point.state)
    reached = FullCovariance().reduced_value(newton_step(point).state)
    assert reached < before  # one problem tries again at once
    stacked = Problem(*(np.asarray(field)[None] for field in problem))
    refused = newton_step(NewtonPoint.at(at(stacked, relevance[None]).without_factor()))
    assert_allclose(refused.relevance, relevance[None])
    assert_allclose(refused.damping, DEFINITE)
    assert FullCovariance().reduced_value(newton_step(refused).state)[0] < before


def test_polishing_never_raises_the_energy_and_ends_stationary():
    problem, relevance = draw(8)
    polished = polish(at(problem, relevance + 0.1), tolerance=1e-10, limit=100).relevance
    assert energy(problem, polished) <= energy(problem, relevance + 0.1)
    assert float(FullCovariance().violation(evaluate(problem, polished))) < 1e-8


def test_the_working_set_holds_all_active_columns_and_only_promising_others():
    problem, relevance = draw(9)
    state = evaluate(problem, relevance)
    chosen = working_set(state)
    assert set(np.flatnonzero(relevance)) <= set(chosen)
    others = np.setdiff1d(chosen, np.flatnonzero(relevance))
    assert (state.alignment[others] > state.curvature[others]).all()


def test_energy_falls_from_sweep_to_sweep():
    problem, _ = draw(10, d=30, kappa=200, n=5, noise=0.02)
    energies = solve_working_set(at(problem, empty_start(problem))).history["energy"]
    assert (np.diff(energies) <= 1e-10).all()


def test_continuation_has_one_stage_per_decade_and_none_for_large_noise():
    assert noise_stages(5.0) == noise_stages(0.5) == []
    assert len(noise_stages(1e-10)) == 9
