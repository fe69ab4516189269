"""The update rules never raise their energy and are fixed exactly at stationary points."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import Autoencoder, DiagonalCovariance, FullCovariance
from lucidae.sparsity.penalties import ArctanPenalty, PowerPenalty
from lucidae.sparsity.problem import normalise
from lucidae.sparsity.solvers import repeat_update
from lucidae.sparsity.state import evaluate, flat_start
from lucidae.sparsity.updates import UPDATES, learned_noise

ENERGIES = {
    **{name: (FullCovariance(), name) for name in UPDATES},
    "diagonal": (DiagonalCovariance(), "mm"),
    "power": (Autoencoder(PowerPenalty(0.5)), "mm"),
    "arctan": (Autoencoder(ArctanPenalty()), "mm"),
    "log": (Autoencoder(), "mm"),
}


def majorized_noise(state):
    """MM for γ, an independent rule with the same fixed points: √(‖X − ΦU‖²/(n tr Σ⁻¹))."""
    rows = state.dictionary.shape[-2]
    inverse_trace = (rows - state.used + state.spare) / state.noise
    return np.sqrt(state.residual / inverse_trace)


def draw(seed, d=8, kappa=14, n=3, noise=0.1):
    rng = np.random.default_rng(seed)
    Phi = rng.standard_normal((d, kappa))
    X = Phi[:, :3] @ rng.standard_normal((3, n)) + 0.3 * rng.standard_normal((d, n))
    problem, _ = normalise(Phi, X)
    return problem.with_noise(noise)


def assert_never_rises(energies):
    rises = np.diff(energies)
    assert (rises <= 1e-11 * np.abs(energies[:-1]) + 1e-11).all(), rises.max()


@pytest.mark.parametrize("name", ENERGIES)
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), noise=st.sampled_from([1e-8, 1e-3, 0.1, 3.0]))
def test_no_update_raises_its_energy(name, seed, noise):
    problem = draw(seed, noise=noise)
    solution = repeat_update(problem, *ENERGIES[name], tolerance=1e-9, limit=25)
    assert_never_rises(solution.history["energy"])


@pytest.mark.parametrize("name", UPDATES)
def test_grouped_updates_do_not_raise_the_energy(name):
    groups = Groups.of(np.arange(14) // 3, 14)
    rng = np.random.default_rng(3)
    problem, _ = normalise(rng.standard_normal((8, 14)), rng.standard_normal((8, 4)), groups=groups)
    for objective, rule in [(FullCovariance(groups), name), (DiagonalCovariance(groups), "mm")]:
        solution = repeat_update(problem.with_noise(0.1), objective, rule, tolerance=1e-8, limit=60)
        assert_never_rises(solution.history["energy"])
        shared = groups.gather(solution.value.relevance)[:, 0]
        assert_allclose(groups.expand(shared), solution.value.relevance)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_learning_the_noise_by_expectation_is_monotone(seed):
    problem = draw(seed, d=20, kappa=6)
    for objective, rule in [(FullCovariance(), "em"), (DiagonalCovariance(), "mm")]:
        solution = repeat_update(problem, objective, rule, tolerance=1e-10, limit=25, learn=True)
        assert_never_rises(solution.history["energy"])


def test_noise_updates_stand_still_where_the_noise_gradient_vanishes():
    problem = draw(0, d=30, kappa=5, n=10)
    solution = repeat_update(
        problem, FullCovariance(), "mackay", tolerance=1e-10, limit=5000, learn=True
    )
    state = solution.value
    assert solution.status.ok
    level, step = float(state.noise), 1e-5

    def energy(noise):
        return float(
            FullCovariance().value(evaluate(state.problem.with_noise(noise), state.relevance))
        )

    slope = (energy(level * (1 + step)) - energy(level * (1 - step))) / (2 * step)
    assert abs(slope) < 1e-6
    assert_allclose(majorized_noise(state), state.noise, rtol=1e-8)
    assert_allclose(learned_noise(state, state.used), state.noise, rtol=1e-8)


@pytest.mark.parametrize("name", ["em", "mm", "mackay"])
def test_every_rule_stands_still_exactly_at_stationary_points(name):
    problem = draw(1)
    state = repeat_update(problem, FullCovariance(), "mackay", tolerance=1e-9, limit=20_000).value
    used = state.relevance * state.curvature > 1e-3
    assert_allclose(UPDATES[name](state, None)[used], state.relevance[used], rtol=1e-6)
    other = evaluate(problem, state.relevance * 1.3)
    assert np.abs(UPDATES[name](other, None)[used] / other.relevance[used] - 1).max() > 1e-2


def test_the_diagonal_update_minimises_its_majoriser():
    state = evaluate(draw(2), flat_start(draw(2)))
    best = DiagonalCovariance().update()(state)

    def majoriser(weights):
        return state.power / weights + np.log(state.noise + weights)

    for factor in (0.9, 0.99, 1.01, 1.1):
        assert (majoriser(best) <= majoriser(factor * best)).all()


@pytest.mark.parametrize("labels", [None, np.arange(14) // 3, np.arange(14) % 2])
def test_the_em_step_is_the_posterior_second_moment(labels):
    rng = np.random.default_rng(5)
    groups = None if labels is None else Groups.of(labels, 14)
    problem, _ = normalise(rng.standard_normal((8, 14)), rng.standard_normal((8, 4)), groups=groups)
    problem = problem.with_noise(0.3)
    w = rng.gamma(2.0, 1.0, 14)
    w = w if groups is None else groups.expand(w[: groups.count])
    Phi, Y = problem.dictionary, problem.responses
    covariance = np.linalg.inv(Phi.T @ Phi / 0.3 + np.diag(1 / w))
    mean = covariance @ Phi.T @ Y / 0.3
    moments = (mean**2).sum(axis=1) + np.diagonal(covariance)  # YYᵀ has the 1/n already
    if groups is not None:
        moments = np.array([moments[labels == label].mean() for label in labels])
    assert_allclose(UPDATES["em"](evaluate(problem, w), groups), moments, rtol=1e-10)
