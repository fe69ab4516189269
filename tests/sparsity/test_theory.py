"""Bounds that prove uniqueness, slices of the energies, and statements of Wipf 2023 on minima."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from lucidae import certify
from lucidae.sparsity import theory
from lucidae.sparsity.objectives import (
    ArctanPenalty,
    Autoencoder,
    DiagonalCovariance,
    FullCovariance,
    LogPenalty,
    PowerPenalty,
    evaluate,
    scan_minima,
)
from lucidae.sparsity.problem import normalise
from lucidae_papers.sparsity.slices import (
    autoencoder_slice,
    diagonal_slice,
    diagonal_slice_minima,
    full_slice,
    full_slice_minima,
    slice_parameters,
)

EPS = float(np.finfo(float).eps)
seeds = st.integers(0, 10**6)


def test_coherence_spark_and_rank_in_closed_form():
    rng = np.random.default_rng(7)
    Phi = rng.standard_normal((5, 2500))
    Phi[:, 7] = 0.0
    Phi[:, 2400] = -3.0 * Phi[:, 3]
    assert_allclose(theory.coherence(Phi), 1.0)
    small = Phi[:, :6]
    unit = small / np.linalg.norm(small, axis=0)
    assert_allclose(theory.coherence(small), np.abs(unit.T @ unit - np.eye(6)).max())
    assert theory.coherence(np.eye(3)) == 0.0
    assert theory.spark_bound(0.0) == np.inf
    assert theory.spark_bound(0.5) == 3.0
    assert theory.uniqueness_bound(11, 3) == 6.5
    assert_allclose(theory.row_scale_ratios(np.array([4.0, 0.0, 1.0, 2.0])), [0.5, 0.5])


def test_the_spark_bound_leaves_room_for_rounding():
    assert theory.spark_bound(0.25) == 5.0
    assert theory.spark_bound(0.0, 3) == pytest.approx(1 + 1 / (10 * EPS))
    assert theory.spark_bound(0.5, 10) == pytest.approx(1 + 1 / (0.5 + 24 * EPS), rel=1e-15)
    assert theory.uniqueness_bound(5.0, 2) == 3.0


def test_coherence_finds_a_pair_in_every_block():
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((30, 2100))
    for first, second in ((0, 1), (0, 1023), (0, 1024), (1023, 1024), (1024, 2099), (2048, 2099)):
        changed = Phi.copy()
        changed[:, second] = changed[:, first]
        assert theory.coherence(changed) == pytest.approx(1.0)
    assert theory.coherence(Phi) < 0.95
    assert theory.coherence(np.zeros((3, 2))) == 0.0


def test_row_scale_ratios_are_those_of_neighbours_in_descending_order():
    assert_allclose(theory.row_scale_ratios(np.array([1.0, 0.0, 8.0, 2.0])), [0.25, 0.5])


def test_implied_relevance_is_the_relevance_of_a_posterior_mean():
    rng = np.random.default_rng(3)
    Phi, X, noise = rng.standard_normal((6, 4)), rng.standard_normal((6, 2)), 0.2
    w = np.array([0.7, 0.0, 1.3, 0.1])
    mean = w[:, None] * (Phi.T @ np.linalg.solve((Phi * w) @ Phi.T + noise * np.eye(6), X))
    evidence = certify(mean.T, Phi, X, noise_variance=noise).evidence
    assert evidence["active"].tolist() == [0, 2, 3]
    assert_allclose(evidence["relevance"], w[w > 0], rtol=1e-10)
    exact = np.eye(3)  # no finite relevance interpolates
    found = certify(exact[:, :1].T, exact, exact[:, :1], noise_variance=1.0)
    assert found["stationarity"].holds is False


def position(columns, used, coefficients=None, weakest=1.0):
    """Try to prove that the active columns with these coefficients (ones) are the only ones."""
    columns, used = np.asarray(columns, float), np.asarray(used)
    coefficients = np.ones((used.size, 1)) if coefficients is None else coefficients
    responses = columns[:, used] @ coefficients
    rank = int(np.linalg.matrix_rank(responses))
    return theory.position_of(columns, used, responses, rank, weakest)


def represented_by_others(columns, used, responses):
    """Return the other sets of as few columns whose span contains the responses, by trying all."""
    found = []
    for size in range(1, used.size + 1):
        for chosen in combinations(range(columns.shape[1]), size):
            fitted = np.linalg.lstsq(columns[:, chosen], responses, rcond=None)[0]
            exact = np.linalg.norm(responses - columns[:, chosen] @ fitted) < 1e-9
            if exact and not set(chosen) >= set(used.tolist()):
                found.append(chosen)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_what_is_proved_agrees_with_all_sets_of_as_few_columns(seed):
    # Small integers make coincidences likely: columns in the span of others, or equal up to a sign.
    rng = np.random.default_rng(seed)
    d, kappa, size, n = 5, 8, int(rng.integers(1, 4)), int(rng.integers(1, 3))
    Phi = rng.integers(-1, 2, size=(d, kappa)).astype(float)
    Phi[0, ~Phi.any(axis=0)] = 1.0
    used = np.sort(rng.permutation(kappa)[:size])
    U = rng.standard_normal((size, n))
    others = represented_by_others(Phi, used, Phi[:, used] @ U)
    if position(Phi, used, U).unique:
        assert not others


def test_generic_dictionaries_are_proved_and_the_certain_coincidence_is_found():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        Phi, U = rng.standard_normal((6, 8)), rng.standard_normal((3, 1))
        used = np.array([0, 1, 2])
        assert position(Phi, used, U).unique
        assert not represented_by_others(Phi, used, Phi[:, used] @ U)
        # Columns 3 and 4 and a new one represent the same response.
        Phi[:, 5] = Phi[:, used] @ U[:, 0] - Phi[:, 3] - Phi[:, 4]
        assert not position(Phi, used, U).unique
        assert represented_by_others(Phi, used, Phi[:, used] @ U) == [(3, 4, 5)]


def test_independent_columns_represent_anything_in_one_way():
    found = position(np.eye(4)[:, :3], [0, 2])
    assert found.unique is True
    assert found.spark == np.inf
    assert "all columns are linearly independent" in found.reason


def test_dependent_active_columns_prove_nothing():
    Phi = np.column_stack([np.eye(3), np.eye(3)[:, :1]])
    found = position(Phi, [0, 3])
    assert found.unique is False
    assert found.reason == "The active columns are linearly dependent."


def test_a_column_in_the_span_of_the_active_ones_can_replace_one():
    Phi = np.column_stack([np.eye(3), [1.0, 1.0, 0.0]])
    found = position(Phi, [0, 1])
    assert found.unique is False
    assert found.spark == 4.0
    assert "Column 3" in found.reason
    # A zero column before it shifts the index that is named.
    assert "Column 4" in position(np.column_stack([np.zeros(3), Phi]), [1, 2]).reason


def test_responses_of_full_rank_are_represented_by_their_span_alone():
    # q = 2 − 2 + 1 = 1: only a column in the span of the responses could take part.
    Phi = np.column_stack([np.eye(3), [1.0, 1.0, 1.0]])
    found = position(Phi, [0, 1], np.eye(2))
    assert found.unique is True
    assert found.reason == theory.NO_OTHER


def test_the_sets_that_are_checked_have_as_many_columns_as_the_rank_leaves_free():
    # Three active columns: q = 3 − rank + 1 columns that are not all active, so the same dictionary
    # is proved for responses of rank two, whatever dependence of three columns it has.
    Phi = np.random.default_rng(5).standard_normal((8, 9))
    U = np.random.default_rng(6).standard_normal((3, 2))
    Phi[:, 5] = Phi[:, :3] @ U[:, 0] - Phi[:, 3] - Phi[:, 4]
    one, two = position(Phi, [0, 1, 2], U[:, :1]), position(Phi, [0, 1, 2], U)
    assert one.unique is False
    assert one.reason.startswith("All sets of 3 columns were checked: with some")
    assert two.unique is True
    assert "All sets of 2 columns were checked: no other" in two.reason


def test_a_pair_of_columns_that_represents_the_response_is_found_in_every_block(monkeypatch):
    monkeypatch.setattr(theory, "BLOCK_COLUMNS", 4)
    Phi = np.random.default_rng(7).standard_normal((7, 11))
    assert position(Phi, [0, 1]).unique is True
    for first, second in ((2, 3), (3, 4), (1, 10), (8, 10)):
        changed = Phi.copy()
        changed[:, second] = Phi[:, 0] + Phi[:, 1] - Phi[:, first]
        assert position(changed, [0, 1]).unique is False


def test_general_position_is_not_assumed_where_there_are_too_many_sets(monkeypatch):
    Phi = np.random.default_rng(8).standard_normal((9, 12))
    assert position(Phi, [0, 1, 2]).unique is True  # 220 sets of three columns
    monkeypatch.setattr(theory, "SUBSETS", 219)
    found = position(Phi, [0, 1, 2])
    assert found.unique is False
    assert found.spark == 10.0
    assert found.reason.startswith(theory.UNCHECKED)
    assert "sets of 3 columns" in found.reason
    monkeypatch.setattr(theory, "SUBSETS", 220)
    assert position(Phi, [0, 1, 2]).unique is True
    monkeypatch.setattr(theory, "SUBSETS", 3)
    assert position(Phi, [0, 1]).unique is True  # pairs have a limit of their own
    monkeypatch.setattr(theory, "PAIR_WORK", 12.0**2 * 9)
    assert position(Phi, [0, 1]).unique is True
    monkeypatch.setattr(theory, "PAIR_WORK", 12.0**2 * 9 - 1)
    assert position(Phi, [0, 1]).unique is False


def test_a_representation_too_weak_to_be_told_apart_is_not_unique():
    Phi = np.column_stack([np.eye(3)[:, :2], [0.0, 1e-3, 1.0]])
    assert position(Phi, [0, 1], np.eye(2), weakest=1e-2).unique is True
    assert position(Phi, [0, 1], np.eye(2), weakest=1e-7).unique is False
    assert position(Phi, [0, 1], np.eye(2), weakest=0.0).unique is False


# --- slices of the energies ----------------------------------------------------------------------


def linear_vae_decoder(responses, noise):
    """Optimal decoder of a VAE with a free linear decoder (Wipf 2023, Lemma 3.2)."""
    directions, values, _ = np.linalg.svd(
        responses / np.sqrt(responses.shape[1]), full_matrices=False
    )
    return directions * np.sqrt(np.maximum(values**2 - noise, 0.0))


GRID = np.concatenate([[0.0], np.geomspace(1e-9, 300, 9000)])
POSITIVE = st.floats(0.02, 20)


@settings(max_examples=25)
@given(power=POSITIVE, inner=POSITIVE)
def test_the_full_slice_has_one_minimum(power, inner):
    assume(abs(power / inner - 1) > 1e-2)  # else rounding hides the slope at zero
    found = scan_minima(GRID, full_slice(GRID, power, inner))
    assert len(found) == 1
    assert_allclose(found, full_slice_minima(power, inner), rtol=5e-3, atol=1e-3)


@settings(max_examples=25)
@given(power=POSITIVE, inner=POSITIVE, share=st.floats(1e-3, 1))
def test_the_diagonal_slice_has_the_minima_of_equation_56(power, inner, share):
    outer = share * inner
    discriminant = power**2 + 4 * power * (outer - inner)
    # a grid cannot tell where a minimum is about to appear or to vanish
    assume(abs(discriminant) > 1e-2 * power**2)
    assume(abs(power * outer / inner**2 - 1) > 1e-2)
    expected = diagonal_slice_minima(power, inner, outer)
    found = scan_minima(GRID, diagonal_slice(GRID, power, inner, outer))
    assert len(found) == len(expected)
    assert_allclose(found, expected, rtol=5e-3, atol=1e-3)


def test_the_two_minima_of_corollary_4_5():
    assert_allclose(diagonal_slice_minima(10.0, 1.0, 0.01), [0.0, (8 + np.sqrt(60.4)) / 2])
    values = diagonal_slice(np.array(diagonal_slice_minima(10.0, 1.0, 0.01)), 10.0, 1.0, 0.01)
    assert values[1] < values[0]  # the minimum at zero is a bad one
    assert full_slice_minima(10.0, 1.0) == [9.0]


def test_with_the_other_means_fixed_the_diagonal_vae_has_one_minimum_again():
    # γ'' = γ' turns eq. 55 into eq. 59
    for power in (0.5, 2.0, 30.0):
        assert len(diagonal_slice_minima(power, 1.0, 1.0)) == 1
        assert_allclose(diagonal_slice_minima(power, 1.0, 1.0), [max(0.0, power - 1.0)], atol=1e-12)


def test_the_autoencoder_keeps_bad_minima_in_one_coefficient():
    grid = np.linspace(-1.0, 6.0, 70_001)
    minima = scan_minima(grid[1:-1], autoencoder_slice(grid[1:-1], target=3.0, noise=1.0))
    assert len(minima) == 2
    assert abs(minima[0]) < 1e-3
    assert_allclose(minima[1], (3 + np.sqrt(5)) / 2, atol=1e-3)  # u − a + γ/u = 0


@settings(max_examples=25)
@given(seed=st.integers(0, 10**5))
def test_slices_of_a_real_problem_are_those_of_the_theorem(seed):
    rng = np.random.default_rng(seed)
    problem, _ = normalise(rng.standard_normal((5, 8)), rng.standard_normal((5, 3)))
    problem = problem.with_noise(0.2)
    relevance = rng.uniform(0.1, 1, 8)
    power, inner, outer = slice_parameters(evaluate(problem, relevance), 2)
    assert outer <= inner * (1 + 1e-9)
    weights = np.array([0.0, 0.3, 2.0])

    def energies(objective):
        values = []
        for weight in weights:
            moved = relevance.copy()
            moved[2] = weight
            values.append(float(objective.value(evaluate(problem, moved))))
        return np.array(values)

    for objective, slices in [
        (FullCovariance(), full_slice(weights, power, inner)),
        (DiagonalCovariance(), diagonal_slice(weights, power, inner, outer)),
    ]:
        assert_allclose(np.diff(energies(objective)), np.diff(slices), atol=1e-9)


def test_diagonal_and_autoencoder_energies_become_one_as_the_noise_vanishes():
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((6, 6))
    problem, _ = normalise(Phi, rng.standard_normal((6, 4)))
    gaps = []
    for noise in (1e-4, 1e-6, 1e-8):
        problem = problem.with_noise(noise)
        differences = []
        for seed in range(3):
            # At the autoencoder's own relevances, w = a of an exact fit (Lemma 4.3).
            U = np.linalg.solve(problem.dictionary, problem.responses)
            relevance = (U**2).sum(axis=1) * np.exp(
                1e-2 * np.random.default_rng(seed).normal(size=6)
            )
            state = evaluate(problem, relevance)
            diagonal = float(DiagonalCovariance().value(state))
            point = float(Autoencoder().value(state))
            differences.append(diagonal - point)
        gaps.append(np.ptp(differences))
    assert gaps[0] > 0
    assert max(gaps) < 1e-2


@pytest.mark.parametrize("noise", [0.05, 0.5, 1e-9])
def test_a_free_linear_decoder_uses_as_many_dimensions_as_exceed_the_noise(noise):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((8, 3)) @ rng.standard_normal((3, 40))
    decoder = linear_vae_decoder(X, noise)
    values = np.linalg.svd(X / np.sqrt(40), compute_uv=False)
    active = np.linalg.norm(decoder, axis=0) > 1e-6
    assert active.sum() == (values > np.sqrt(noise)).sum()

    def energy(W):
        sigma = W @ W.T + noise * np.eye(8)
        return np.trace(X.T @ np.linalg.solve(sigma, X)) / 40 + np.linalg.slogdet(sigma)[1]

    for _ in range(50):
        assert energy(decoder) <= energy(decoder + 0.01 * rng.standard_normal(decoder.shape)) + 1e-9


# --- statements on minima ------------------------------------------------------------------------


@settings(max_examples=20)
@given(seed=seeds)
def test_as_many_columns_as_rows_have_one_minimum_without_noise(seed):
    """Wipf 2023, Lemma C.6: w = ‖u‖²/n of the only exact fit."""
    rng = np.random.default_rng(seed)
    Phi, X = rng.standard_normal((4, 4)) + 2 * np.eye(4), rng.standard_normal((4, 3))
    coefficients = np.linalg.solve(Phi, X)
    expected = np.sum(coefficients**2, axis=1) / 3
    for w in rng.uniform(0.3, 3, (2, 4)):  # the energy is a sum over columns (eq. 38)
        sigma = (Phi * w) @ Phi.T
        energy = np.trace(np.linalg.solve(sigma, X @ X.T)) / 3 + np.linalg.slogdet(sigma)[1]
        separate = np.sum(expected / w + np.log(w)) + 2 * np.linalg.slogdet(Phi)[1]
        assert energy == pytest.approx(separate, rel=1e-6)
    problem, units = normalise(Phi, X)
    state = evaluate(problem.with_noise(1e-12), expected / units.relevance)
    assert float(FullCovariance().violation(state)) < 1e-4


@pytest.mark.parametrize("exponent", [0.2, 0.45])
@pytest.mark.parametrize("n", [1, 3])
def test_every_basic_exact_fit_is_a_local_minimum_of_the_autoencoder(n, exponent):
    """Wipf 2023, Theorem 4.2: the scales of the rows do not remove these minima."""
    rng = np.random.default_rng(n)
    d, kappa = 3, 6
    Phi, U = rng.standard_normal((d, kappa)), np.zeros((kappa, n))
    U[:2] = rng.standard_normal((2, n)) * [[1.0], [1e-3]]  # as far apart as Theorem 4.1 may ask
    X = Phi @ U
    null = np.linalg.svd(Phi)[2][d:].T
    penalty = PowerPenalty(exponent)

    def value(candidate):
        power = np.sum(candidate**2, axis=1) / n
        return np.sum(penalty.value(np.maximum(power, 1e-300)))

    best, minima = value(U), 0
    for columns in combinations(range(kappa), d):
        basic = np.zeros((kappa, n))
        basic[list(columns)] = np.linalg.solve(Phi[:, columns], X)
        lowest = value(basic)
        for _ in range(30):
            step = null @ rng.standard_normal((kappa - d, n))
            assert value(basic + 1e-12 * step) > lowest
        minima += lowest > best * (1 + 1e-9)
    assert minima >= 15  # of 20 exact fits, those that do not use both true columns


@settings(max_examples=10)
@given(seed=seeds)
def test_minima_of_the_autoencoder_are_linear_in_the_responses(seed):
    """Wipf 2023, Lemma D.1: Z = BX although Z was free, so its rows lie in the row space of X."""
    rng = np.random.default_rng(seed)
    A, X = rng.standard_normal((2, 4)), rng.standard_normal((2, 5))
    width = 0.3

    def both(flat):
        Z = flat.reshape(4, 5)
        rest, power = X - A @ Z, np.sum(Z**2, axis=1)
        value = np.sum(rest**2) / 0.1 + np.sum(np.log(power + width))
        slope = -2 * A.T @ rest / 0.1 + 2 * Z / (power + width)[:, None]
        return value, slope.ravel()

    options = {"gtol": 1e-10, "ftol": 0.0, "maxiter": 5000}
    ended = minimize(both, rng.standard_normal(20), jac=True, method="L-BFGS-B", options=options)
    Z = ended.x.reshape(4, 5)
    _, _, rows = np.linalg.svd(X, full_matrices=False)
    assert_allclose(Z - Z @ rows.T @ rows, 0, atol=1e-5)


@pytest.mark.parametrize("penalty", [LogPenalty(), PowerPenalty(0.3), ArctanPenalty(0.5)])
def test_the_reduced_penalty_is_concave_in_the_norm(penalty):
    """Wipf 2023, Lemma D.2: inf over α of x²/α + h(α) is concave and does not fall in x ≥ 0."""
    x = np.linspace(0.05, 2, 80)
    alpha = np.geomspace(1e-6, 1e4, 100_001)
    reduced = np.array([np.min(point**2 / alpha + penalty.value(alpha)) for point in x])
    assert np.all(np.diff(reduced) > -1e-9)
    assert np.all(np.diff(reduced, 2) < 1e-6)
    if isinstance(penalty, LogPenalty):
        assert_allclose(reduced, 1 + 2 * np.log(x), atol=1e-6)


@settings(max_examples=25)
@given(power=st.floats(0.02, 20), inner=st.floats(0.02, 20), factor=st.floats(1, 1e3))
def test_with_the_other_means_fixed_the_full_vae_has_one_minimum_too(power, inner, factor):
    """Wipf 2023, Corollary 4.5, second part: γ'' ≥ γ' leaves one minimum of eq. 55."""
    outer = factor * inner
    assume(abs(power * outer / inner**2 - 1) > 1e-2)  # else rounding hides the slope at zero
    assert len(diagonal_slice_minima(power, inner, outer)) == 1
    grid = inner * np.concatenate([[0.0], np.geomspace(1e-3, 1e8, 3000)])
    assert len(scan_minima(grid, diagonal_slice(grid, power, inner, outer))) == 1


@settings(max_examples=20)
@given(seed=seeds)
def test_the_volume_with_fixed_means_is_at_least_that_of_the_column_alone(seed):
    """γ'' = 1/(φᵀΨ⁻¹φ) ≥ γ' = γ/‖φ‖² in the second part of Wipf 2023, Corollary 4.5."""
    rng = np.random.default_rng(seed)
    Phi, w, gamma = rng.standard_normal((4, 6)), rng.uniform(0, 2, 6), 0.3
    w[2] = 0.0
    rest, column = (Phi * w) @ Phi.T + gamma * np.eye(4), Phi[:, 2]
    outer, inner = 1 / (column @ np.linalg.solve(rest, column)), gamma / (column @ column)
    assert outer >= inner
    X, other = rng.standard_normal((2, 4, 3))  # the fixed means enter through the residual alone

    def energy(weight):
        residual = X - other
        fit = np.trace(
            residual.T
            @ np.linalg.solve(weight * np.outer(column, column) + gamma * np.eye(4), residual)
        )
        volume = np.linalg.slogdet(rest + weight * np.outer(column, column))[1]
        return fit / 3 + volume

    power = np.sum((column @ (X - other)) ** 2) / 3 / (column @ column) ** 2
    weights = np.array([0.0, 0.4, 3.0])
    found = np.array([energy(weight) for weight in weights])
    assert_allclose(np.diff(found), np.diff(diagonal_slice(weights, power, inner, outer)))
