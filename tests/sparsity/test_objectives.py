"""Energies, gradients and the loss from which they come."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime, minimize, minimize_scalar

from lucidae.datasets import make_sparse_regression
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import (
    Autoencoder,
    DiagonalCovariance,
    FullCovariance,
)
from lucidae.sparsity.penalties import ArctanPenalty, LogPenalty, PowerPenalty
from lucidae.sparsity.problem import Problem, normalise
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


LABELS = [0, 0, 1, 1, 1, 2, 0]


def stacked_state(groups=None):
    """Return the states of two problems together, and each of them alone."""
    problems, relevances = [], []
    for seed in (0, 1):
        Phi, X, w, noise = draw(5, 7, 4, seed)
        problem, units = normalise(Phi, X, groups=groups)
        # The columns of a normalised dictionary have unit length, which would hide their norms.
        problem = problem._replace(dictionary=problem.dictionary * np.linspace(0.5, 2.0, 7))
        problems.append(problem.with_noise(float(units.normalised_noise(noise))))
        relevances.append(w if groups is None else groups.expand(w[: groups.count]))
    both = Problem(*(np.stack(parts) for parts in zip(*problems, strict=True)))
    alone = [evaluate(*pair) for pair in zip(problems, relevances, strict=True)]
    return evaluate(both, np.stack(relevances)), alone


def covariance_of(state):
    Phi = state.dictionary
    return (Phi * state.relevance) @ Phi.T + float(state.noise) * np.eye(len(Phi))


def test_degrees_of_freedom_by_their_definitions():
    both, alone = stacked_state()
    full, diagonal = [], []
    for state in alone:
        signal = covariance_of(state) - state.noise * np.eye(5)
        full.append(np.trace(signal @ np.linalg.inv(covariance_of(state))))
        signals = state.relevance * (state.dictionary**2).sum(axis=0)
        diagonal.append(np.sum(signals / (state.noise + signals)))
    assert_allclose(FullCovariance().degrees_of_freedom(both), full)
    assert_allclose(DiagonalCovariance().degrees_of_freedom(both), diagonal)
    assert_allclose(DiagonalCovariance().degrees_of_freedom(alone[0]), diagonal[0])
    assert Autoencoder().degrees_of_freedom(both).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("objective", [FullCovariance(), DiagonalCovariance()])
def test_the_reduced_value_differs_from_the_energy_by_a_constant(objective):
    state, _ = state_of(*draw(12, 5, 3))
    other = evaluate(state.problem, 3.0 * state.relevance)
    change = objective.value(other) - objective.value(state)
    assert abs(change) > 0.1
    assert_allclose(objective.reduced_value(other) - objective.reduced_value(state), change)


@pytest.mark.parametrize("objective", [FullCovariance(), DiagonalCovariance()])
def test_concavity_is_minus_the_derivative_of_the_pressure(objective):
    state, _ = state_of(*draw(5, 7, 3))
    metric = state.dictionary.T @ np.linalg.solve(covariance_of(state), state.dictionary)
    found = objective.concavity(metric, objective.pressure(state))
    for column in range(7):
        sides = []
        for step in (1e-5, -1e-5):
            moved = state.relevance.copy()
            moved[column] += step
            sides.append(objective.pressure(evaluate(state.problem, moved)))
        assert_allclose(found[:, column], (sides[1] - sides[0]) / 2e-5, rtol=1e-6, atol=1e-8)


def test_the_diagonal_update_minimises_the_energy_at_fixed_coefficients():
    """Each relevance w minimises a/w + log(γ + wc), with the mean square a and squared norm c."""
    both, alone = stacked_state()
    found = DiagonalCovariance().update()(both)
    for row, state in zip(found, alone, strict=True):
        norms = (state.dictionary**2).sum(axis=0)
        for w, a, c in zip(row, state.power, norms, strict=True):

            def bound(log_w, a=a, c=c, noise=float(state.noise)):
                return a * np.exp(-log_w) + np.log(noise + np.exp(log_w) * c)

            best = minimize_scalar(bound, bracket=(np.log(w) - 1, np.log(w) + 1), tol=1e-10)
            assert_allclose(np.log(w), best.x, atol=1e-6)


def test_the_grouped_diagonal_update_minimises_its_bound():
    """Each shared w minimises Σ (aⱼ/w + zⱼw) over its group, with the pressures zⱼ."""
    groups = Groups.of(LABELS, 7)
    both, alone = stacked_state(groups)
    objective = DiagonalCovariance(groups)
    found = objective.update()(both)
    for row, state in zip(found, alone, strict=True):
        pressure = objective.pressure(state)
        for label in range(3):
            own = groups.labels == label
            expected = np.sqrt(state.power[own].sum() / pressure[own].sum())
            assert_allclose(row[own], expected)
        assert objective.value(evaluate(state.problem, row)) < objective.value(state)


def test_the_autoencoder_averages_over_groups_and_measures_its_next_step():
    groups = Groups.of(LABELS, 7)
    both, alone = stacked_state(groups)
    objective = Autoencoder(PowerPenalty(0.5), groups)
    power, violation = objective.power(both), objective.violation(both)
    for run, state in enumerate(alone):
        means = np.array([state.power[groups.labels == label].mean() for label in groups.labels])
        assert_allclose(power[run], means)
        target = 1 / PowerPenalty(0.5).supergradient(means)
        assert_allclose(objective.update()(state), target)
        changes = [
            abs(new - old) / (max(new, old) + float(state.noise))
            for new, old in zip(target, state.relevance, strict=True)
        ]
        assert_allclose([violation[run], objective.violation(state)], max(changes))


def test_energies_in_the_units_of_the_data():
    Phi, X, w, noise = draw(6, 10, 4)
    state, units = state_of(Phi, X, w, noise)
    full = FullCovariance()
    assert_allclose(full.in_units(full.value(state), units), dense_full(Phi, X, w, noise))
    assert Autoencoder().in_units(1.5, units) == 6.0
