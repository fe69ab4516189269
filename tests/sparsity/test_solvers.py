"""Every solver ends at a stationary point, and invariances of the problem hold."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from lucidae import SparseVAE
from lucidae.datasets import make_sparse_regression
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import Autoencoder, DiagonalCovariance, FullCovariance
from lucidae.sparsity.problem import normalise
from lucidae.sparsity.solvers import SOLVERS, methods_for, repeat_update, solve
from lucidae.sparsity.state import evaluate
from lucidae.sparsity.working_set import is_accepted

METHODS = [name for name in SOLVERS if name != "auto"]
SETTINGS = [  # d, κ, r, n, signal-to-noise ratio in dB
    (10, 20, 3, 4, 20), (10, 20, 3, 1, 10), (20, 8, 3, 5, 10), (12, 30, 2, 50, 20),
    (15, 25, 12, 6, 30),
]  # fmt: skip


def prepared(Phi, X, noise, groups=None):
    problem, units = normalise(Phi, X, groups=groups)
    return problem.with_noise(float(units.normalised_noise(noise))), units


def solved(Phi, X, noise, method="auto", objective=None, **options):
    problem, units = prepared(Phi, X, noise)
    solution = solve(problem, objective or FullCovariance(), method=method, **options)
    return solution, units


def drawn(setting, seed):
    d, kappa, r, n, snr = setting
    p = make_sparse_regression(d, kappa, r, n, snr_db=snr, random_state=seed)
    return p.dictionary, p.responses, p.noise_variance


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_solver_ends_at_a_stationary_point(method, setting):
    for seed in range(8):
        solution, _ = solved(*drawn(setting, seed), method)
        assert solution.status.ok
        # measured afresh, on all columns, and not by the loop that stopped
        state = evaluate(solution.value.problem, solution.value.relevance)
        assert float(FullCovariance().violation(state)) < 1e-6
        energies = solution.history["energy"]
        assert (np.diff(energies) <= 1e-10 * np.abs(energies[:-1])).all()


@pytest.mark.parametrize("method", METHODS)
def test_every_solver_ends_at_a_stationary_point_on_larger_problems(method):
    for seed in range(0, 20, 4):
        setting = (100, 200, 10 + 3 * seed, 20, 20)
        solution, _ = solved(*drawn(setting, seed), method)
        state = evaluate(solution.value.problem, solution.value.relevance)
        assert float(FullCovariance().violation(state)) < 1e-6


@pytest.mark.parametrize("objective", [DiagonalCovariance(), Autoencoder()])
def test_the_relatives_end_at_stationary_points_of_their_own_energies(objective):
    for setting in SETTINGS:
        for seed in range(3):
            solution, _ = solved(*drawn(setting, seed), objective=objective, limit=20_000)
            assert solution.status.ok
            state = evaluate(solution.value.problem, solution.value.relevance)
            assert float(objective.violation(state)) < 1e-6


@pytest.mark.parametrize("row_scaling", ["unit", "jeffreys"])
def test_where_one_minimum_is_left_all_solvers_find_its_energy(row_scaling):
    for seed in range(3):
        p = make_sparse_regression(
            30, 60, 10, 20, 20, row_scaling=row_scaling, snr_db=30, random_state=seed
        )
        energies = []
        for method in SOLVERS:
            solution, units = solved(p.dictionary, p.responses, p.noise_variance, method)
            energies.append(float(units.energy(FullCovariance().value(solution.value))))
        assert_allclose(energies, energies[0], rtol=1e-6)


def test_beyond_half_the_rows_solvers_may_part_but_never_by_much():
    spreads = []
    for seed in range(4):
        p = make_sparse_regression(30, 60, 22, 10, 3, snr_db=20, random_state=seed)
        energies = []
        for method in SOLVERS:
            solution, _ = solved(p.dictionary, p.responses, p.noise_variance, method)
            energies.append(float(FullCovariance().value(solution.value)))
        spreads.append(max(energies) - min(energies))
    # per response, in units of log-likelihood times two; some problem has several minima
    assert 1e-6 < max(spreads) < 15.0


def test_auto_ends_lower_than_coordinates_where_minima_are_many():
    for setting in ((50, 100, 15, 1, 20), (50, 100, 35, 10, 20)):
        ends = {"auto": [], "coordinate": []}
        for seed in range(6):
            for method, energies in ends.items():
                solution, _ = solved(*drawn(setting, seed), method)
                energies.append(float(FullCovariance().value(solution.value)))
        assert np.mean(ends["auto"]) < np.mean(ends["coordinate"]) - 0.1


@pytest.mark.parametrize(
    ("shape", "noise", "first"),
    [
        ((20, 40, 1), 0.1, "em"), ((20, 40, 5), 0.1, "mackay"), ((20, 40, 5), 1e-9, "coordinate"),
        ((20, 400, 5), 0.1, "coordinate"), ((20, 20_000, 5), 0.1, "coordinate"),
        ((20, 20_000, 1), 0.1, "coordinate"),
    ],
)  # fmt: skip
def test_auto_chooses_its_method_by_size_responses_and_noise(shape, noise, first):
    d, kappa, n = shape
    rng = np.random.default_rng(0)
    problem, _ = normalise(rng.standard_normal((d, kappa)), rng.standard_normal((d, n)))
    assert methods_for(problem.with_noise(noise))[0] == first


def orthonormal_optimum(dictionary, responses, noise):
    """Return the optimum for orthonormal columns, wⱼ = max(0, ‖φⱼᵀX‖²/n − γ)."""
    return np.maximum(((dictionary.T @ responses) ** 2).mean(axis=1) - noise, 0.0)


def test_orthonormal_columns_give_the_closed_form():
    rng = np.random.default_rng(0)
    Phi, _ = np.linalg.qr(rng.standard_normal((12, 12)))
    X = Phi @ (rng.standard_normal((12, 7)) * np.linspace(0.1, 3, 12)[:, None])
    for method in SOLVERS:
        for columns in (12, 5):
            solution, units = solved(Phi[:, :columns], X, 0.8, method)
            found = units.relevance(solution.value.relevance)
            assert_allclose(found, orthonormal_optimum(Phi[:, :columns], X, 0.8), atol=1e-5)
            assert (found == 0).any()


@pytest.mark.parametrize("method", SOLVERS)
def test_permutations_signs_rotations_and_scales_change_nothing(method):
    rng = np.random.default_rng(2)
    Phi, X, noise = drawn((12, 20, 3, 5, 20), 2)
    reference, units = solved(Phi, X, noise, method)
    expected = units.relevance(reference.value.relevance)
    order, signs = rng.permutation(20), np.where(rng.uniform(size=20) < 0.5, -1, 1)
    Q, _ = np.linalg.qr(rng.standard_normal((5, 5)))
    R, _ = np.linalg.qr(rng.standard_normal((12, 12)))
    columns = np.exp(rng.uniform(-9, 9, 20))

    def relevance(*data):
        solution, scales = solved(*data, method)
        return scales.relevance(solution.value.relevance)

    close = {"rtol": 1e-5, "atol": 1e-8 * expected.max()}
    assert_allclose(relevance(Phi[:, order] * signs, X, noise), expected[order], **close)
    assert_allclose(relevance(R @ Phi, R @ X @ Q, noise), expected, **close)
    assert_allclose(relevance(Phi, 1e6 * X, 1e12 * noise) / 1e12, expected, **close)
    assert_allclose(relevance(Phi * columns, X, noise) * columns**2, expected, **close)


@pytest.mark.parametrize("noise", [1e-12, 1e-8, 1e-4, 1.0, 1e4])
@pytest.mark.parametrize("method", ["auto", "mm", "em", "mackay"])
def test_noise_from_tiny_to_huge_is_safe(method, noise):
    p = make_sparse_regression(20, 40, 5, 8, random_state=3)
    X = p.responses / np.sqrt(np.mean(p.responses**2))
    solution, units = solved(p.dictionary, X, noise, method)
    assert solution.status.ok
    relevance = units.relevance(solution.value.relevance)
    assert np.isfinite(relevance).all()
    if noise <= 1e-4:
        assert_allclose(np.flatnonzero(relevance > 1e-3 * relevance.max()), p.support)
    if noise == 1e4:
        assert not relevance.any()


@pytest.mark.parametrize("method", SOLVERS)
def test_duplicate_and_zero_columns_are_harmless(method):
    Phi, X, noise = drawn((12, 20, 3, 5, 20), 4)
    plain, _ = solved(Phi, X, noise, method)
    crowded = np.hstack([Phi, Phi[:, :6], np.zeros((12, 3))])
    solution, units = solved(crowded, X, noise, method)
    assert solution.status.ok
    relevance = units.relevance(solution.value.relevance)
    assert not relevance[-3:].any()
    energy = FullCovariance().value
    assert_allclose(energy(solution.value), energy(plain.value), rtol=1e-7)
    merged = relevance[:20] + np.concatenate([relevance[20:26], np.zeros(14)])
    assert_allclose(merged, solved(Phi, X, noise, method)[1].relevance(plain.value.relevance),
                    atol=1e-4 * relevance.max())  # fmt: skip


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 1, 3), (1, 6, 2), (3, 3, 1)])
def test_the_smallest_problems_are_solved(shape):
    d, kappa, n = shape
    rng = np.random.default_rng(7)
    solution, _ = solved(rng.standard_normal((d, kappa)), rng.standard_normal((d, n)), 0.1)
    assert solution.status.ok


def test_twenty_thousand_columns_are_solved():
    p = make_sparse_regression(60, 20_000, 5, 10, 10, snr_db=20, random_state=0)
    solution, units = solved(p.dictionary, p.responses, p.noise_variance)
    assert solution.status.ok
    relevance = units.relevance(solution.value.relevance)
    assert set(p.support) <= set(np.argsort(-relevance)[:8])


def test_responses_of_zeros_need_no_column():
    solution, _ = solved(np.eye(4), np.zeros((4, 2)), 1.0)
    assert solution.status.ok
    assert not solution.value.relevance.any()


def test_groups_end_stationary_and_singletons_are_no_groups():
    Phi, X, noise = drawn((12, 21, 3, 5, 20), 8)
    groups = Groups.of(np.arange(21) // 3, 21)
    problem, _ = prepared(Phi, X, noise, groups)
    energies = []
    for method in ("auto", "em", "mackay"):
        solution = solve(problem, FullCovariance(groups), method=method)
        assert solution.status.ok
        assert float(FullCovariance(groups).violation(solution.value)) < 1e-6
        energies.append(float(FullCovariance(groups).value(solution.value)))
    assert_allclose(energies, energies[0], rtol=1e-4)
    alone = Groups.of(np.arange(21), 21)
    single, _ = prepared(Phi, X, noise, alone)
    assert_allclose(
        FullCovariance().value(solve(single, FullCovariance(alone)).value),
        FullCovariance().value(solve(single, FullCovariance(), method="mm").value),
        rtol=1e-6,
    )


def test_pruned_columns_come_back_as_zeros_and_change_nothing():
    Phi, X, noise = drawn((12, 60, 3, 5, 40), 9)
    problem, _ = prepared(Phi, X, noise)
    state = repeat_update(problem, FullCovariance(), "mackay", tolerance=1e-6, limit=3000).value
    assert state.relevance.shape == (60,)
    assert (state.relevance == 0).sum() > 6
    assert float(FullCovariance().violation(state)) < 1e-6


def test_a_warm_start_at_the_optimum_is_kept():
    Phi, X, noise = drawn((12, 20, 3, 5, 20), 10)
    solution, _ = solved(Phi, X, noise)
    again, _ = solved(Phi, X, noise, start=solution.value.relevance)
    assert again.n_iter == 0
    assert_allclose(again.value.relevance, solution.value.relevance)


def test_an_exhausted_limit_is_reported():
    Phi, X, noise = drawn((12, 20, 3, 5, 20), 11)
    solution, _ = solved(Phi, X, noise, "em", limit=3)
    assert solution.status == "iteration limit"
    assert solution.n_iter == 3


@pytest.mark.parametrize("seed", range(12))
def test_newton_steps_below_the_rounding_of_the_energy_go_on(seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((26, 45)) + 1.0
    y = 3.0 * X[:, [5, 20]] @ rng.standard_normal((2, 6)) + 0.4 * rng.standard_normal((26, 6))
    noise = 10.0 ** rng.uniform(-3, 0)
    settings = {"noise_variance": noise, "fit_intercept": False, "tol": 1e-10}
    for posterior in ("diagonal", "full"):  # a warning would be an error
        model = SparseVAE(posterior=posterior, **settings).fit(X, y)
        assert model.history_["distance"][-1] <= 1e-10


def test_a_step_that_raises_the_energy_by_rounding_must_halve_the_distance():
    noise, energy = np.asarray(1e-3), -40.0
    up = energy + 1e-11
    assert is_accepted(energy, energy - 1e-3, noise, lambda: (1.0, 2.0))
    assert is_accepted(energy, up, noise, lambda: (1e-6, 1e-8))
    assert not is_accepted(energy, up, noise, lambda: (1e-6, 9e-7))  # the distance hardly falls
    assert not is_accepted(energy, up, noise, lambda: (0.5, 1e-8))  # far from a minimum
    assert not is_accepted(energy, energy + 1e-6, noise, lambda: (1e-6, 1e-8))
    assert not is_accepted(energy, np.nan, noise, lambda: (1e-6, 1e-8))
    several = np.array([energy, energy]), np.array([up, np.nan])
    chosen = is_accepted(*several, np.full(2, 1e-3), lambda: (1e-6, 1e-8), lazily=False)
    assert chosen.tolist() == [True, False]
