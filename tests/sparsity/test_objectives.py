"""Energies, gradients and the loss from which they come."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime, minimize

from lucidae.datasets import make_sparse_regression
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import (
    Autoencoder,
    DiagonalCovariance,
    FullCovariance,
)
from lucidae.sparsity.penalties import ArctanPenalty, LogPenalty, PowerPenalty
from lucidae.sparsity.problem import normalise
from lucidae.sparsity.state import evaluate
from unreduced_vae import optimal_encoder, optimal_posterior, unreduced_loss

SHAPES = [(6, 10, 3), (6, 10, 40), (12, 5, 3), (12, 5, 40), (4, 1, 1), (1, 3, 2)]


def draw(d, kappa, n, seed=0, scale=3.0):
    rng = np.random.default_rng(seed)
    Phi = rng.standard_normal((d, kappa)) * np.exp(rng.uniform(-2, 2, kappa))
    X = scale * rng.standard_normal((d, n))
    return Phi, X, rng.uniform(0.1, 2.0, kappa), rng.uniform(0.2, 0.8)


def dense_full(Phi, X, w, noise):
    sigma = Phi @ np.diag(w) @ Phi.T + noise * np.eye(len(Phi))
    _, log_determinant = np.linalg.slogdet(sigma)
    return np.trace(X @ X.T @ np.linalg.inv(sigma)) + X.shape[1] * log_determinant


def dense_diagonal(Phi, X, w, noise):
    d, kappa = Phi.shape
    sigma = Phi @ np.diag(w) @ Phi.T + noise * np.eye(d)
    volume = np.log(noise + w * (Phi**2).sum(axis=0)).sum() + (d - kappa) * np.log(noise)
    return np.trace(X @ X.T @ np.linalg.inv(sigma)) + X.shape[1] * volume


def state_of(Phi, X, w, noise, groups=None):
    problem, units = normalise(Phi, X, groups=groups)
    problem = problem.with_noise(float(units.normalised_noise(noise)))
    return evaluate(problem, units.normalised_relevance(w)), units


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("objective", "dense"),
    [(FullCovariance(), dense_full), (DiagonalCovariance(), dense_diagonal)],
)
def test_energy_is_the_dense_formula_whatever_was_reduced(shape, objective, dense):
    Phi, X, w, noise = draw(*shape)
    state, units = state_of(Phi, X, w, noise)
    assert_allclose(units.energy(objective.value(state)), dense(Phi, X, w, noise), rtol=1e-11)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("objective", [FullCovariance(), DiagonalCovariance()])
def test_gradient_is_the_slope_of_the_energy(shape, objective):
    Phi, X, w, noise = draw(*shape)
    state, _ = state_of(Phi, X, w, noise)

    def energy(relevance):
        return float(objective.value(evaluate(state.problem, relevance)))

    slope = approx_fprime(np.asarray(state.relevance), energy, 1e-7)
    assert_allclose(objective.gradient(state), slope, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("objective", [FullCovariance, DiagonalCovariance])
def test_a_group_has_the_slope_of_its_shared_relevance(objective):
    Phi, X, _, noise = draw(6, 9, 4)
    groups = Groups.of([0, 0, 1, 1, 1, 2, 0, 3, 3], 9)
    shared = np.array([0.5, 1.0, 0.0, 2.0])
    state, _ = state_of(Phi, X, groups.expand(shared), noise, groups)

    def energy(weights):
        return float(objective(groups).value(evaluate(state.problem, groups.expand(weights))))

    held = groups.gather(state.relevance)[:, 0]
    slope = approx_fprime(held, energy, 1e-7)
    gradient = groups.gather(objective(groups).gradient(state))[:, 0]
    assert_allclose(gradient, slope, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("penalty", [LogPenalty(), PowerPenalty(0.3), ArctanPenalty(0.1)])
def test_autoencoder_energy_is_the_penalised_residual(penalty):
    Phi, X, w, noise = draw(6, 10, 4)
    state, units = state_of(Phi, X, w, noise)
    sigma = Phi @ np.diag(w) @ Phi.T + noise * np.eye(6)
    U = np.diag(w) @ Phi.T @ np.linalg.solve(sigma, X)
    powers = (U**2).mean(axis=1) * (units.norms / units.scale) ** 2
    expected = ((X - Phi @ U) ** 2).sum() / noise + 4 * penalty.value(powers).sum()
    assert_allclose(4 * Autoencoder(penalty).value(state), expected, rtol=1e-10)


@pytest.mark.parametrize("diagonal", [False, True])
def test_optimising_the_encoder_away_gives_equations_18_and_50(diagonal):
    Phi, X, w, noise = draw(5, 7, 6)
    decoder = np.sqrt(w)
    encoder = optimal_encoder(Phi, decoder, noise)
    spread = np.linalg.cholesky(optimal_posterior(Phi, decoder, noise, diagonal))
    reduced = (dense_diagonal if diagonal else dense_full)(Phi, X, w, noise)
    loss = unreduced_loss(Phi, X, decoder, encoder, spread, noise)
    assert_allclose(loss, reduced + X.shape[1] * Phi.shape[1], rtol=1e-11)


@pytest.mark.parametrize("diagonal", [False, True])
def test_no_encoder_beats_the_optimal_one(diagonal):
    Phi, X, w, noise = draw(3, 4, 5)
    decoder = np.sqrt(w)
    best = unreduced_loss(
        Phi, X, decoder, optimal_encoder(Phi, decoder, noise),
        np.linalg.cholesky(optimal_posterior(Phi, decoder, noise, diagonal)), noise,
    )  # fmt: skip

    def loss(flat):
        encoder = flat[:12].reshape(4, 3)
        spread = np.diag(flat[12:16]) if diagonal else np.tril(flat[12:].reshape(4, 4))
        return float(unreduced_loss(Phi, X, decoder, encoder, spread, noise))

    start = np.concatenate([np.zeros(12), np.ones(4) if diagonal else np.eye(4).ravel()])
    found = minimize(loss, start, method="BFGS", options={"gtol": 1e-6}).fun
    assert found >= best - 1e-8
    assert_allclose(found, best, rtol=1e-6)


def test_energies_do_not_see_signs_of_the_decoder_or_rotations_of_the_responses():
    Phi, X, w, noise = draw(6, 10, 4)
    Q, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((4, 4)))
    state, _ = state_of(Phi, X, w, noise)
    flipped, _ = state_of(Phi * np.where(np.arange(10) % 2, -1, 1), X @ Q, w, noise)
    for objective in (FullCovariance(), DiagonalCovariance(), Autoencoder()):
        assert_allclose(objective.value(flipped), objective.value(state), rtol=1e-12)


def test_the_problem_of_the_paper_has_the_energy_of_its_noise():
    p = make_sparse_regression(20, 30, 3, 50, snr_db=10, random_state=0)
    state, units = state_of(p.dictionary, p.responses, np.zeros(30), p.noise_variance)
    expected = (p.responses**2).sum() / p.noise_variance + 50 * 20 * np.log(p.noise_variance)
    assert_allclose(units.energy(FullCovariance().value(state)), expected, rtol=1e-12)
