"""Energies, penalties, update rules and partitions of columns, by their formulas.

Each is compared with a dense formula, finite differences, or figures computed by hand; the energies
also with the loss of the VAE from which they come (Wipf 2023, eq. 5).
"""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import approx_fprime, minimize, minimize_scalar

from lucidae.datasets import make_sparse_regression
from lucidae.sparsity.objectives import (
    SMALLEST,
    SMALLEST_LEARNED,
    UPDATES,
    ArctanPenalty,
    Autoencoder,
    DiagonalCovariance,
    FullCovariance,
    LogPenalty,
    PowerPenalty,
    as_penalty,
    evaluate,
    learned_noise,
    leave_one_out,
    penalty_value,
    ridge_relevance,
)
from lucidae.sparsity.posterior import (
    covariance_threshold,
    evidence_ratios,
    group_evidence,
)
from lucidae.sparsity.prior import Groups
from lucidae.sparsity.problem import Problem, normalise
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
    problem = problem.with_noise(noise, units)
    return evaluate(problem, w / units.relevance), units


def mean_squares(state):
    return state.relevance**2 * state.alignment


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("objective", "dense"),
    [(FullCovariance(), dense_full), (DiagonalCovariance(), dense_diagonal)],
)
def test_energy_is_the_dense_formula_whatever_was_reduced(shape, objective, dense):
    Phi, X, w, noise = draw(*shape)
    state, units = state_of(Phi, X, w, noise)
    assert_allclose(
        objective.in_units(objective.value(state), units), dense(Phi, X, w, noise), rtol=1e-11
    )


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
    assert_allclose(
        FullCovariance().in_units(FullCovariance().value(state), units), expected, rtol=1e-12
    )


LABELS = [0, 0, 1, 1, 1, 2, 0]


def stacked_state(groups=None):
    """Return the states of two problems together, and each of them alone."""
    problems, relevances = [], []
    for seed in (0, 1):
        Phi, X, w, noise = draw(5, 7, 4, seed)
        problem, units = normalise(Phi, X, groups=groups)
        # The columns of a normalised dictionary have unit length, which would hide their norms.
        problem = problem._replace(dictionary=problem.dictionary * np.linspace(0.5, 2.0, 7))
        problems.append(problem.with_noise(noise, units))
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
        for w, a, c in zip(row, mean_squares(state), norms, strict=True):

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
            expected = np.sqrt(mean_squares(state)[own].sum() / pressure[own].sum())
            assert_allclose(row[own], expected)
        assert objective.value(evaluate(state.problem, row)) < objective.value(state)


def test_the_autoencoder_averages_over_groups_and_measures_its_next_step():
    groups = Groups.of(LABELS, 7)
    both, alone = stacked_state(groups)
    objective = Autoencoder(PowerPenalty(0.5), groups)
    power, violation = objective.power(both), objective.violation(both)
    for run, state in enumerate(alone):
        means = np.array(
            [mean_squares(state)[groups.labels == label].mean() for label in groups.labels]
        )
        assert_allclose(power[run], means)
        target = 1 / PowerPenalty(0.5).supergradient(means)
        assert_allclose(objective.update()(state), target)
        changes = [
            abs(new - old) / (max(new, old) + float(state.noise))
            for new, old in zip(target, state.relevance, strict=True)
        ]
        assert_allclose([violation[run], objective.violation(state)], max(changes))


# --- penalties -----------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [LogPenalty(), PowerPenalty(0.3), ArctanPenalty(0.1)])
def test_supergradient_is_the_derivative_and_bounds_a_concave_function(penalty):
    at = np.array([0.05, 0.3, 2.0])
    step = 1e-6 * at
    slope = (penalty.value(at + step) - penalty.value(at - step)) / (2 * step)
    assert_allclose(penalty.supergradient(at), slope, rtol=1e-6)
    elsewhere = np.linspace(0.01, 4, 50)[:, None]
    tangent = penalty.value(at) + penalty.supergradient(at) * (elsewhere - at)
    assert (penalty.value(elsewhere) <= tangent + 1e-12).all()


def test_penalties_by_hand():
    a = np.array([4.0, 0.25])
    assert_allclose(PowerPenalty(0.5).value(a), [4.0, 1.0])
    assert_allclose(PowerPenalty(0.5).supergradient(a), [0.5, 2.0])
    assert_allclose(ArctanPenalty(0.25).value(a[1:]), [np.pi / 4])
    assert_allclose(ArctanPenalty(0.25).supergradient(a[1:]), [2.0])
    assert_allclose(LogPenalty().value(a), np.log(a))
    for wrong in (1.0 + 1e-9, 0.0, -0.5):
        with pytest.raises(ValueError, match="exponent"):
            PowerPenalty(wrong)
    assert PowerPenalty(1.0).exponent == 1.0
    for wrong in (0.0, -1.0):
        with pytest.raises(ValueError, match="width"):
            ArctanPenalty(wrong)
    assert ArctanPenalty(0.5).width == 0.5


def test_a_row_that_has_vanished_counts_with_the_smallest_mean_square():
    assert penalty_value(LogPenalty(), np.array([0.0, 1.0])).tolist() == [np.log(SMALLEST), 0.0]
    powers = np.array([0.0, SMALLEST, 2 * SMALLEST, 2.5 * SMALLEST, 2.0])
    assert_allclose(
        ridge_relevance(LogPenalty(), powers), [0.0, 0.0, 0.0, 2.5 * SMALLEST, 2.0], rtol=1e-12
    )
    steep = SimpleNamespace(supergradient=lambda power: np.full_like(power, np.inf))
    assert ridge_relevance(steep, np.array([1.0])).tolist() == [0.0]
    assert_allclose(ridge_relevance(PowerPenalty(0.5), np.array([4.0])), [2.0])


def test_names_and_objects_of_penalties():
    assert as_penalty("arctan") == ArctanPenalty()
    own = PowerPenalty(0.1)
    assert as_penalty(own) is own
    for wrong in ("l1", LogPenalty, 3):
        with pytest.raises(ValueError, match="penalty"):
            as_penalty(wrong)


# --- update rules --------------------------------------------------------------------------------


def state(seed=0, groups=None, noise=0.3):
    """Return an evaluated state of a small problem, with one relevance zero."""
    rng = np.random.default_rng(seed)
    problem, _ = normalise(rng.standard_normal((6, 5)), rng.standard_normal((6, 3)), groups=groups)
    w = np.array([0.5, 0.5, 1.5, 1.5, 0.0])
    return evaluate(problem.with_noise(noise), w)


def test_update_rules_by_their_formulas():
    now = state()
    w, Q, z = now.relevance, now.alignment, now.curvature
    assert_allclose(UPDATES["em"](now), np.maximum(w + w**2 * (Q - z), 0.0), rtol=1e-12)
    assert_allclose(UPDATES["mm"](now), w * np.sqrt(Q / z), rtol=1e-12)
    assert_allclose(UPDATES["mackay"](now), w * Q / z, rtol=1e-12)


def test_expectation_maximization_does_not_leave_the_positive_numbers():
    # A posterior second moment below zero is a rounding error, here a large one.
    now = state()
    wrong = now._replace(curvature=1e3 * now.curvature)
    assert UPDATES["em"](wrong).tolist() == [0.0] * 5


def test_update_rules_of_groups_by_their_formulas():
    groups = Groups.of([0, 0, 1, 1, 2], 5)
    now = state(groups=groups)
    w = now.relevance
    Q, z, size = (
        np.array([values[groups.labels == label].sum() for label in groups.labels])
        for values in (now.alignment, now.curvature, np.ones(5))
    )
    assert_allclose(UPDATES["em"](now, groups), np.maximum(w + w**2 * (Q - z) / size, 0.0))
    assert_allclose(UPDATES["mm"](now, groups), w * np.sqrt(Q / z))
    assert_allclose(UPDATES["mackay"](now, groups), w * Q / z)


def test_learned_noise_by_its_formula_and_its_floor():
    now = state()
    expected = (now.residual + now.noise * 1.7) / (now.spare + len(now.responses))
    assert_allclose(learned_noise(now, 1.7), expected, rtol=1e-12)
    assert learned_noise(now, -1e9) == SMALLEST_LEARNED


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


# --- evidence of columns and groups --------------------------------------------------------------


def at_unit_lengths(groups=None):
    rng = np.random.default_rng(0)
    Phi, X = rng.standard_normal((7, 12)), rng.standard_normal((7, 5))
    problem, _ = normalise(Phi, X, groups=groups)
    return problem.with_noise(0.3), rng.uniform(0.1, 1, 12)


def test_sparsity_and_quality_are_those_without_the_column():
    problem, relevance = at_unit_lengths()
    sparsity, quality = leave_one_out(evaluate(problem, relevance))
    for index in range(12):
        others = np.where(np.arange(12) == index, 0.0, relevance)
        without = evaluate(problem, others)
        assert_allclose(sparsity[index], without.curvature[index])
        assert_allclose(quality[index], without.alignment[index])


def test_the_evidence_of_a_column_is_the_drop_of_the_energy_at_its_best_relevance():
    problem, relevance = at_unit_lengths()
    state = evaluate(problem, relevance)
    sparsity, quality = leave_one_out(state)
    evidence = evidence_ratios(state, 5)
    for index in range(12):
        best = relevance.copy()
        best[index] = max(0.0, (quality[index] - sparsity[index]) / sparsity[index] ** 2)
        without = np.where(np.arange(12) == index, 0.0, relevance)
        energies = [FullCovariance().value(evaluate(problem, each)) for each in (without, best)]
        assert_allclose(evidence[index], 5 * (energies[0] - energies[1]), atol=1e-9)


def test_the_evidence_of_a_group_is_what_its_removal_costs():
    groups = Groups.of(np.arange(12) // 3, 12)
    problem, relevance = at_unit_lengths(groups)
    relevance = groups.expand(relevance[:4])
    state = evaluate(problem, relevance)
    evidence = group_evidence(state, groups, 5)
    for group in range(4):
        without = np.where(groups.labels == group, 0.0, relevance)
        cost = FullCovariance().value(evaluate(problem, without)) - FullCovariance().value(state)
        assert_allclose(evidence[group], 5 * cost, atol=1e-9)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_threshold_bounds_the_rate_of_spurious_groups(size):
    rng = np.random.default_rng(size)
    for n in (1, 20, 200):
        latent = rng.standard_normal((10_000, size, n))
        ratios = np.linalg.eigvalsh(latent @ np.swapaxes(latent, 1, 2) / n)
        excess = np.maximum(ratios - 1.0, 0.0)
        evidence = n * (excess - np.log1p(excess)).sum(axis=1)
        for level in (0.05, 0.005):
            rate = np.mean(evidence > covariance_threshold(level, 1, size))
            assert rate < level + 3.0 * np.sqrt(level / 10_000), (n, level)
            assert n < 200 or rate > 0.5 * level


# --- partitions of the columns -------------------------------------------------------------------


def test_groups_of_unequal_sizes_are_gathered_and_spread():
    groups = Groups.of([5, 2, 5, 7, 2, 5], 6)
    values = np.arange(10.0, 16.0)
    assert_array_equal(groups.gather(values), [[11, 14, 0], [10, 12, 15], [13, 0, 0]])
    assert_array_equal(groups.spread(groups.gather(values)), values)
    # Places without a column do not matter, whatever they contain.
    filled = np.where(groups.present > 0, groups.gather(values), -99.0)
    assert_array_equal(groups.spread(filled), values)
    assert_array_equal(groups.columns(np.array([2, 0])), [1, 3, 4])
    sizes = [(numbers.tolist(), members.tolist()) for numbers, members in groups.by_size]
    assert sizes == [([2], [[3]]), ([0], [[1, 4]]), ([1], [[0, 2, 5]])]


def test_a_number_of_columns_per_group():
    assert_array_equal(Groups.of(3, 6).labels, [0, 0, 0, 1, 1, 1])
    assert_array_equal(Groups.of(1, 3).labels, [0, 1, 2])
    for wrong in (0, -2, 4):
        with pytest.raises(ValueError, match=f"groups={wrong} was given for 6 columns"):
            Groups.of(wrong, 6)
