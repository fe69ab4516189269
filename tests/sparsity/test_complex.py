"""Complex dictionaries and responses: energies, gradients, updates, moves and Newton's Hessian.

Every quantity is compared with a naive formula, with finite differences, or with the real problem.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize_scalar

from lucidae.arrays import to_numpy
from lucidae.sparsity.evaluation import Sample, evaluate_relevances, leverages, weighted_rows
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import Autoencoder, DiagonalCovariance, FullCovariance
from lucidae.sparsity.posterior import ActiveFactor, posterior_mean
from lucidae.sparsity.problem import Problem, canonical, normalise, root_by_qr
from lucidae.sparsity.solvers import SOLVERS, solve
from lucidae.sparsity.state import evaluate, evaluate_fit, flat_start
from lucidae.sparsity.support import evidence_ratios, group_evidence, significant_columns
from lucidae.sparsity.updates import UPDATES, learned_noise
from lucidae.sparsity.working_set import (
    ROUNDING,
    NewtonPoint,
    best_change,
    descend,
    gain_of,
    move_coordinate_,
    newton_direction,
    open_workspace,
)

FULL, DIAGONAL = FullCovariance(), DiagonalCovariance()


def gaussian(rng, *shape):
    """Return circular complex normal numbers of unit variance."""
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)) / np.sqrt(2)


def draw(seed, d=7, kappa=12, n=4, noise=0.1):
    """Return a complex normalised problem, and relevances of which about half are zero."""
    rng = np.random.default_rng(seed)
    Phi = gaussian(rng, d, kappa)
    X = Phi[:, :3] @ gaussian(rng, 3, n) + 0.3 * gaussian(rng, d, n)
    problem, _ = normalise(Phi, X)
    relevance = rng.uniform(0, 1, kappa) * (rng.uniform(size=kappa) < 0.5)
    return problem.with_noise(noise), relevance


def naive(problem, relevance):
    """Return Σ, its inverse and C of a problem, formed with conjugate transposes."""
    Phi, Y = problem.dictionary, problem.responses
    sigma = Phi * relevance @ Phi.conj().T + float(problem.noise) * np.eye(problem.rows)
    return sigma, np.linalg.inv(sigma), Y @ Y.conj().T


def energy(problem, relevance, marginal=FULL):
    return float(marginal.value(evaluate(problem, relevance)))


@pytest.mark.parametrize("seed", range(4))
def test_energy_curvature_and_alignment_by_their_definitions(seed):
    problem, relevance = draw(seed)
    state = evaluate(problem, relevance)
    sigma, inverse, C = naive(problem, relevance)
    Phi = problem.dictionary
    assert_allclose(
        FULL.value(state),
        np.linalg.slogdet(sigma)[1] + np.trace(inverse @ C).real,
        rtol=1e-11,
    )
    assert_allclose(state.curvature, np.diagonal(Phi.conj().T @ inverse @ Phi).real, rtol=1e-10)
    assert_allclose(
        state.alignment, np.diagonal(Phi.conj().T @ inverse @ C @ inverse @ Phi).real, rtol=1e-10
    )
    mean = relevance[:, None] * (Phi.conj().T @ inverse @ problem.responses)
    left = problem.responses - Phi @ mean
    assert_allclose(state.residual, (np.abs(left) ** 2).sum(), rtol=1e-10)
    quick = evaluate_fit(problem, relevance)
    assert_allclose(quick.alignment, state.alignment, rtol=1e-10)
    for part in (state.relevance, state.curvature, state.alignment, state.fit, state.residual):
        assert np.asarray(part).dtype == np.float64


def test_a_tall_complex_problem_keeps_its_energy_in_the_span_of_its_columns():
    rng = np.random.default_rng(5)
    Phi, X = gaussian(rng, 20, 6), gaussian(rng, 20, 30)
    problem, units = normalise(Phi, X)
    assert problem.dictionary.shape == (6, 6)
    assert problem.responses.shape == (6, 6)
    w, noise = rng.uniform(0.5, 2.0, 6), 0.7
    at = problem.with_noise(noise / float(units.scale) ** 2)
    value = FULL.in_units(FULL.value(evaluate(at, units.normalised_relevance(w))), units)
    sigma = Phi * w @ Phi.conj().T + noise * np.eye(20)
    expected = 30 * np.linalg.slogdet(sigma)[1]
    expected += np.trace(np.linalg.solve(sigma, X @ X.conj().T)).real
    assert_allclose(float(value), expected, rtol=1e-11)


@pytest.mark.parametrize("marginal", [FULL, DIAGONAL])
def test_gradient_of_the_energy_by_differences(marginal):
    problem, relevance = draw(3)
    relevance = relevance + 0.2
    slopes = marginal.gradient(evaluate(problem, relevance))
    step = 1e-6
    for index in range(relevance.size):
        change = np.zeros_like(relevance)
        change[index] = step
        ahead, behind = (energy(problem, relevance + s * change, marginal) for s in (1, -1))
        assert_allclose(slopes[index], (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("labels", [None, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]])
@pytest.mark.parametrize("kind", [FullCovariance, DiagonalCovariance])
def test_newton_direction_by_second_differences(kind, labels):
    # Without damping the step solves H Δ = −gradient, with the Hessian by differences.
    problem, _ = draw(8)
    groups = None if labels is None else Groups.of(labels, 12)
    marginal = kind(groups)
    rng = np.random.default_rng(8)
    free = rng.uniform(1.0, 2.0, 12 if groups is None else 6)
    spread = np.eye(12) if groups is None else np.eye(6)[groups.labels]

    def slopes(at):
        state = evaluate(problem, spread @ at)
        return spread.T @ (marginal.pressure(state) - state.alignment)

    step = 1e-5
    hessian = np.array(
        [
            (slopes(free + step * unit) - slopes(free - step * unit)) / (2 * step)
            for unit in np.eye(free.size)
        ]
    )
    state = evaluate(problem, spread @ free, columns=True)
    damping = np.array(1.0)  # fades the concave part out: what is left is definite
    point = NewtonPoint.at(state, damping)
    metric = state.whitened.conj().T @ state.whitened
    concave = spread.T @ marginal.concavity(metric, marginal.pressure(state)) @ spread
    units = spread.T @ marginal.pressure(state)
    damped = hessian + concave + ROUNDING * np.diag(units**2)
    direction = newton_direction(point, marginal)
    expected = -np.linalg.solve(damped, slopes(free))
    assert_allclose(direction, spread @ expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_a_coordinate_move_is_the_exact_minimiser_and_its_gain_the_drop(seed):
    problem, relevance = draw(seed)
    state = evaluate(problem, relevance)
    changes = best_change(relevance, state.curvature, state.alignment)
    gains = gain_of(changes, state.curvature, state.alignment)
    for index in range(relevance.size):

        def along(value, index=index):
            return energy(problem, np.where(np.arange(relevance.size) == index, value, relevance))

        best = relevance[index] + changes[index]
        drop = energy(problem, relevance) - along(best)
        assert_allclose(gains[index], drop, atol=1e-10, rtol=1e-8)
        found = minimize_scalar(along, bounds=(0.0, 20.0), method="bounded")
        assert along(best) <= found.fun + 1e-9


def test_moves_in_the_workspace_follow_the_evaluated_state():
    problem, relevance = draw(2)
    workspace = open_workspace(evaluate(problem, relevance, columns=True))
    for index, change in ((0, 0.7), (5, 0.3), (0, -0.2), (11, 1.4)):
        workspace = move_coordinate_(workspace, index, change)
    state = evaluate(problem, workspace.relevance.copy(), columns=True)
    metric = state.whitened.conj().T @ state.whitened
    assert_allclose(workspace.gram, np.hstack([metric, state.loading]), atol=1e-10)
    assert_allclose(workspace.curvature, state.curvature, rtol=1e-9)
    assert_allclose(workspace.alignment, state.alignment, rtol=1e-9)
    lower = descend(workspace, tolerance=1e-10, limit=200).relevance
    assert energy(problem, lower) < energy(problem, state.relevance)


@pytest.mark.parametrize("rule", sorted(UPDATES))
@pytest.mark.parametrize("labels", [None, [0, 1] * 6])
def test_no_update_raises_the_energy(rule, labels):
    for seed in range(5):
        problem, _ = draw(seed)
        groups = None if labels is None else Groups.of(labels, 12)
        relevance = flat_start(problem, groups)
        values = [energy(problem, relevance)]
        for _ in range(30):
            relevance = UPDATES[rule](evaluate(problem, relevance), groups)
            values.append(energy(problem, relevance))
        assert (np.diff(values) <= 1e-10).all()
        assert values[-1] < values[0] - 0.1


def test_expectation_maximisation_is_the_posterior_second_moment():
    problem, relevance = draw(4)
    relevance = relevance + 0.1
    _, inverse, _ = naive(problem, relevance)
    W, Phi = np.diag(relevance), problem.dictionary
    mean = W @ Phi.conj().T @ inverse @ problem.responses
    covariance = W - W @ Phi.conj().T @ inverse @ Phi @ W
    second = (np.abs(mean) ** 2).sum(axis=1) + np.diagonal(covariance).real
    state = evaluate(problem, relevance)
    assert_allclose(UPDATES["em"](state), second, rtol=1e-9)
    noise = (np.abs(problem.responses - Phi @ mean) ** 2).sum()
    noise += float(problem.noise) * np.trace(Phi @ W @ Phi.conj().T @ inverse).real
    assert_allclose(learned_noise(state, state.used), noise / problem.rows, rtol=1e-10)


@pytest.mark.parametrize("objective", [FULL, DIAGONAL, Autoencoder()])
def test_solvers_end_at_stationary_points(objective):
    problem, _ = draw(6, d=12, kappa=20, n=8, noise=0.05)
    for name, solver in SOLVERS.items():
        if not solver.suits(objective):
            continue
        found = solve(problem, objective, method=name)
        assert found.status.ok
        assert float(objective.violation(found.value)) <= 1e-6
        assert found.value.relevance.dtype == np.float64


def test_real_data_cast_to_complex_have_the_same_relevances():
    rng = np.random.default_rng(7)
    Phi = rng.standard_normal((15, 25))
    X = Phi[:, :3] @ rng.standard_normal((3, 6)) + 0.2 * rng.standard_normal((15, 6))
    kinds = (float, complex)
    solutions = {
        (a, b): solve(normalise(Phi.astype(a), X.astype(b))[0].with_noise(0.05), FULL)
        for a in kinds
        for b in kinds
    }
    plain = solutions[float, float].value
    for found in solutions.values():
        assert_allclose(found.value.relevance, plain.relevance, atol=1e-7)
        assert_allclose(FULL.value(found.value), FULL.value(plain), rtol=1e-12)


def test_a_real_dictionary_with_complex_responses_stays_real():
    rng = np.random.default_rng(8)
    Phi, X = rng.standard_normal((9, 14)), gaussian(rng, 9, 5)
    light, _ = normalise(Phi, X)
    heavy, _ = normalise(Phi.astype(complex), X)
    assert light.dictionary.dtype == light.responses.dtype == np.float64
    assert heavy.dictionary.dtype == np.complex128
    w = rng.uniform(0, 1, 14)
    light, heavy = (evaluate(part.with_noise(0.2), w) for part in (light, heavy))
    assert_allclose(light.alignment, heavy.alignment, rtol=1e-10)
    assert_allclose(FULL.value(light), FULL.value(heavy), rtol=1e-12)


def test_stacked_real_and_imaginary_parts_are_another_model():
    # [Re Φ, −Im Φ; Im Φ, Re Φ] gives the real and the imaginary part of a coefficient relevances
    # of their own: twice as many numbers, and another energy unless the two agree.
    problem, relevance = draw(9)
    Phi, Y = problem.dictionary, problem.responses
    stacked = np.block([[Phi.real, -Phi.imag], [Phi.imag, Phi.real]])
    targets = np.vstack([Y.real, Y.imag])
    zero = np.array(0.0)
    real = Problem(stacked, targets * 2**0.5, problem.noise, zero, zero)
    both = np.concatenate([relevance, relevance])
    assert_allclose(energy(real, both), 2 * energy(problem, relevance), rtol=1e-11)
    found = solve(real, FULL).value.relevance
    assert np.abs(found[:12] - found[12:]).max() > 0.1
    assert energy(real, found) < 2 * energy(problem, solve(problem, FULL).value.relevance) - 1e-3


def test_evidence_is_twice_the_change_of_the_complex_log_likelihood():
    rng = np.random.default_rng(10)
    Phi, n = gaussian(rng, 8, 5), 6
    X = 2 * Phi[:, :2] @ gaussian(rng, 2, n) + 0.3 * gaussian(rng, 8, n)
    problem, units = normalise(Phi, X)
    problem = problem.with_noise(0.1)
    state = solve(problem, FULL).value
    rows = canonical(Phi, X, None, False)
    assert rows.real_responses == 2 * n
    assert canonical(Phi.real, X.real, None, False).real_responses == n
    # The log-likelihood −n(log|Σ| + tr Σ⁻¹C) of circular complex data, written out.
    noise = float(units.noise(problem.noise))

    def log_likelihood(w):
        sigma = Phi * w @ Phi.conj().T + noise * np.eye(8)
        fit = np.trace(np.linalg.solve(sigma, X @ X.conj().T)).real
        return -n * np.linalg.slogdet(sigma)[1] - fit

    w = units.relevance(state.relevance)
    found = evidence_ratios(state, rows.real_responses)
    for index in np.flatnonzero(w):
        without = np.where(np.arange(5) == index, 0.0, w)
        bought = 2 * (log_likelihood(w) - log_likelihood(without))
        assert_allclose(found[index], bought, rtol=1e-5)


def test_evidence_of_groups_is_that_of_their_removal():
    problem, _ = draw(11)
    groups = Groups.of(np.arange(12) // 3, 12)
    relevance = groups.expand(np.array([0.8, 0.0, 0.4, 1.3]))
    state = evaluate(problem, relevance)
    gains = group_evidence(state, groups, 10)
    for group in range(4):
        without = np.where(groups.labels == group, 0.0, relevance)
        lost = 10 * (energy(problem, without) - energy(problem, relevance))
        assert_allclose(gains[group], lost, rtol=1e-9, atol=1e-9)


def test_the_support_of_noise_has_the_stated_error_rate():
    # Bonferroni bounds the probability of any column by the significance; with half the evidence
    # (n in place of 2n) the test would miss true columns, and this bound would be far from sharp.
    rng = np.random.default_rng(12)
    found, runs = 0, 200
    for _ in range(runs):
        problem, _ = normalise(gaussian(rng, 10, 6), gaussian(rng, 10, 20))
        state = solve(problem.with_noise(1.0), FULL).value
        found += bool(significant_columns(state, 40, 0.2, FULL).any())
    assert 0.02 * runs < found < 0.2 * runs


@pytest.mark.parametrize("shape", [(6, 10), (12, 4)])
@pytest.mark.parametrize("noise", [0.1, 1e-12])
def test_posterior_mean_and_covariance(shape, noise):
    rng = np.random.default_rng(13)
    Phi, X = gaussian(rng, *shape), gaussian(rng, shape[0], 3)
    w = rng.uniform(0.5, 1.0, shape[1])
    sigma = Phi * w @ Phi.conj().T + noise * np.eye(shape[0])
    precise = np.linalg.inv(np.diag(1 / w) + Phi.conj().T @ Phi / noise)
    expected = np.linalg.lstsq(  # the mean as one least-squares problem, which keeps its digits
        np.vstack([Phi / noise**0.5, np.diag(w**-0.5)]),
        np.vstack([X / noise**0.5, np.zeros((shape[1], 3))]),
        rcond=None,
    )[0]
    assert_allclose(posterior_mean(Phi, X, w, noise), expected, rtol=1e-4, atol=1e-7)
    posterior = ActiveFactor.of(Phi, w, noise).posterior(noise)
    if noise > 1e-6:
        assert_allclose(posterior.covariance(np.arange(shape[1])), precise, atol=1e-10)
        rows = gaussian(rng, 5, shape[1])
        variance = np.diagonal(rows @ precise @ rows.conj().T).real
        assert_allclose(posterior.variance(rows), variance, rtol=1e-9)
        reduced = np.diag(w) - np.diag(w) @ Phi.conj().T @ np.linalg.solve(sigma, Phi * w)
        assert_allclose(posterior.covariance([1, 3]), reduced[np.ix_([1, 3], [1, 3])], atol=1e-10)


def test_the_factor_by_qr_has_a_positive_diagonal():
    rng = np.random.default_rng(14)
    A = gaussian(rng, 5, 8)
    lower, basis = root_by_qr(A, 0.3)
    assert_allclose(lower @ lower.conj().T, A.conj().T @ A + 0.3 * np.eye(8), atol=1e-12)
    assert_allclose(basis @ lower.conj().T, A, atol=1e-12)
    assert (np.diagonal(lower).real > 0).all()
    assert_allclose(np.diagonal(lower).imag, 0.0, atol=1e-14)


def test_the_verifier_evaluates_complex_relevances_by_its_own_route():
    rng = np.random.default_rng(15)
    for Phi, X in (
        (gaussian(rng, 6, 9), gaussian(rng, 6, 8)),
        (gaussian(rng, 9, 4), gaussian(rng, 9, 3)),
        (rng.standard_normal((6, 9)), gaussian(rng, 6, 2)),
        (gaussian(rng, 6, 9), rng.standard_normal((6, 2))),
    ):
        w, n, d = rng.uniform(0.0, 1.0, Phi.shape[1]), X.shape[1], X.shape[0]
        w[1] = 0.0
        rows = weighted_rows(Sample(Phi, X), None)
        scales = np.ldexp(1.0, rows.shifts)
        assert_array_equal(rows.dictionary * scales, Phi)
        found = evaluate_relevances(rows, w, 0.3)
        Phi, X = rows.dictionary, rows.responses
        sigma = Phi * w @ Phi.conj().T + 0.3 * np.eye(d)
        inverse = np.linalg.inv(sigma)
        assert_allclose(found.curvature, np.diagonal(Phi.conj().T @ inverse @ Phi).real)
        products = Phi.conj().T @ inverse @ X
        assert_allclose(found.alignment, (np.abs(products) ** 2).sum(axis=1) / n)
        assert_allclose(found.mean, w[:, None] * products, atol=1e-12)
        assert_allclose(found.fit, np.trace(X.conj().T @ inverse @ X).real / n)
        left = X - Phi @ found.mean
        assert_allclose(found.residual, (np.abs(left) ** 2).sum() / n)
        shares = np.diagonal((Phi * w) @ Phi.conj().T @ inverse).real
        assert_allclose(leverages(rows, w, 0.3), shares, atol=1e-12)


def test_repeated_complex_rows_are_merged():
    rng = np.random.default_rng(16)
    Phi, X = gaussian(rng, 5, 3), gaussian(rng, 5, 2)
    rows = canonical(np.vstack([Phi, Phi[:2]]), np.vstack([X, X[:2]]), None, True)
    assert rows.count == 5
    assert sorted(to_numpy(rows.weights)) == [1, 1, 1, 2, 2]
    again = canonical(Phi, X, np.array([2.0, 2.0, 1.0, 1.0, 1.0]), True)
    assert_array_equal(rows.dictionary, again.dictionary)
    dictionary, _ = rows.centred()
    assert_allclose(rows.weights @ dictionary, 0.0, atol=1e-14)


def test_complex_problems_run_on_every_array_library(xp):
    rng = np.random.default_rng(17)
    Phi = gaussian(rng, 2, 8, 12)
    X = Phi[..., :3] @ gaussian(rng, 2, 3, 5) + 0.1 * gaussian(rng, 2, 8, 5)
    for index in range(2):
        pair = (Phi[index], X[index])
        plain = solve(normalise(*pair)[0].with_noise(0.02), FULL).value
        moved = solve(normalise(*map(xp.asarray, pair))[0].with_noise(0.02), FULL).value
        assert_allclose(to_numpy(moved.relevance), plain.relevance, atol=1e-6)
        w = to_numpy(moved.relevance)
        means = [
            posterior_mean(library(Phi[index]), library(target), library(w), 0.02)
            for library in (np.asarray, xp.asarray)
            for target in (X[index], X[index].real)
        ]
        assert_allclose(to_numpy(means[2]), means[0], atol=1e-10)
        assert_allclose(to_numpy(means[3]), means[1], atol=1e-10)
