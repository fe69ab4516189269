"""Statements of Wipf 2023 on minima of the energies and on their proofs, checked directly."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from lucidae.sparsity.landscape import diagonal_slice, diagonal_slice_minima, scan_minima
from lucidae.sparsity.objectives import FullCovariance
from lucidae.sparsity.penalties import ArctanPenalty, LogPenalty, PowerPenalty
from lucidae.sparsity.problem import normalise
from lucidae.sparsity.solvers import solve
from lucidae.sparsity.state import evaluate

seeds = st.integers(0, 10**6)


@pytest.mark.parametrize("method", ["em", "mm", "mackay", "coordinate"])
@pytest.mark.parametrize("seed", range(3))
def test_rows_of_very_different_norms_leave_one_minimum(method, seed):
    """Wipf 2023, Theorem 4.1: from every start the one end is the sparse code, w = ‖u‖²/n."""
    rng = np.random.default_rng(seed)
    Phi, U = rng.standard_normal((6, 10)), np.zeros((10, 4))
    used = rng.choice(10, 3, replace=False)
    rows = rng.standard_normal((3, 4))
    U[used] = rows / np.linalg.norm(rows, axis=1, keepdims=True) * [[1.0], [1e-2], [1e-4]]
    problem, units = normalise(Phi, Phi @ U)
    problem = problem.with_noise(1e-14)
    for _ in range(4):
        start = None if method == "coordinate" else np.exp(rng.uniform(-6, 2, 10))
        found = solve(problem, FullCovariance(), method=method, start=start, limit=5000)
        relevance = np.asarray(units.relevance(found.value.relevance))
        expected = np.sum(U**2, axis=1) / 4
        assert_allclose(relevance[used], expected[used], rtol=2e-2)  # solvers stop at 1e-6
        others = np.delete(relevance, used)
        assert np.all(others < 1e-3 * expected[used].min())


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
    state = evaluate(problem.with_noise(1e-12), units.normalised_relevance(expected))
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
