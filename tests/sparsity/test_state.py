"""The state of a problem: what one factorisation of Σ gives, and that there is only one."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from lucidae import SparseVAE
from lucidae.datasets import make_sparse_regression
from lucidae.sparsity import state as state_module
from lucidae.sparsity import working_set
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import Autoencoder, DiagonalCovariance, FullCovariance
from lucidae.sparsity.problem import normalise
from lucidae.sparsity.solvers import repeat_update, solve
from lucidae.sparsity.state import empty_start, evaluate, evaluate_fit, evaluate_from, flat_start
from lucidae.sparsity.support import group_evidence


def draw(d=15, kappa=40, n=6, noise=0.02, seed=0, groups=None):
    p = make_sparse_regression(d, kappa, 4, n, snr_db=20, random_state=seed)
    problem, _ = normalise(p.dictionary, p.responses, groups=groups)
    return problem.with_noise(noise)


@pytest.fixture
def factorised(monkeypatch):
    """All Σ that were factorised, in order."""
    sigmas = []
    cholesky = state_module.cholesky

    def counting(sigma):
        sigmas.append(np.array(sigma))
        return cholesky(sigma)

    monkeypatch.setattr(state_module, "cholesky", counting)
    return sigmas


def sparse_relevance(problem, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(0.1, 1, problem.columns) * (rng.uniform(size=problem.columns) < 0.2)


@pytest.mark.parametrize("shape", [(15, 40), (15, 6), (6, 6)])
def test_a_state_has_the_quantities_of_the_dense_formulas(shape):
    problem = draw(*shape)
    for relevance in (sparse_relevance(problem), flat_start(problem)):
        state = evaluate(problem, relevance, columns=True)
        Phi, Y, noise = problem.dictionary, problem.responses, float(problem.noise)
        sigma = Phi * relevance @ Phi.T + noise * np.eye(len(Phi))
        precise = np.linalg.solve(sigma, Y)
        assert_allclose(state.curvature, np.diag(Phi.T @ np.linalg.solve(sigma, Phi)))
        assert_allclose(state.alignment, ((Phi.T @ precise) ** 2).sum(axis=1))
        assert_allclose(state.loading, Phi.T @ precise, atol=1e-10)
        assert_allclose(state.fit, np.trace(Y.T @ precise))
        assert_allclose(state.log_determinant, np.linalg.slogdet(sigma)[1])
        assert_allclose(state.residual - state.outside, noise**2 * (precise**2).sum(), rtol=1e-9)
        assert_allclose(state.whitened.T @ state.whitened, Phi.T @ np.linalg.solve(sigma, Phi))


def test_some_columns_of_a_state_are_a_state():
    problem = draw()
    relevance = sparse_relevance(problem)
    index = np.flatnonzero(relevance)
    small = problem._replace(dictionary=problem.dictionary[:, index])
    taken = evaluate(problem, relevance, columns=True).take(index)
    fresh = evaluate(small, relevance[index], columns=True)
    for name, one, other in zip(fresh._fields, taken, fresh, strict=True):
        assert_allclose(one, other, atol=1e-10, err_msg=name)


def test_matrices_are_stored_only_where_they_are_asked_for():
    problem = draw()
    state = evaluate(problem, flat_start(problem))
    assert state.whitened.size == state.loading.size == 0
    assert state.compact().inverse.size == state.compact().whitened_responses.size == 0
    assert state.compact().factor is None
    assert evaluate_fit(problem, flat_start(problem)).factor is None


def test_a_known_factor_is_not_computed_again(factorised):
    problem = draw()
    state = evaluate(problem, flat_start(problem))
    with_columns = evaluate_from(state, state.relevance)
    assert len(factorised) == 1
    assert with_columns.whitened.shape == problem.dictionary.shape
    assert evaluate_from(with_columns, state.relevance) is with_columns
    evaluate_from(with_columns, 2.0 * state.relevance)
    assert len(factorised) == 2


@pytest.mark.parametrize(
    ("objective", "rule"),
    [(FullCovariance(), "mackay"), (DiagonalCovariance(), "mm"), (Autoencoder(), "mm")],
)
def test_an_update_factorises_sigma_once(factorised, objective, rule):
    solution = repeat_update(draw(), objective, rule, tolerance=1e-4, limit=50)
    assert len(factorised) == solution.n_iter + 1


def test_pruned_columns_are_restored_without_a_factorisation(factorised):
    solution = repeat_update(
        draw(noise=1e-3), FullCovariance(), "mackay", tolerance=1e-6, limit=3000
    )
    assert (solution.value.relevance == 0).sum() > 4
    assert len(factorised) == solution.n_iter + 1


@pytest.mark.parametrize("grouped", [False, True])
def test_a_sweep_factorises_sigma_once_beside_its_newton_steps(factorised, monkeypatch, grouped):
    groups = Groups.of(np.arange(200) // 2, 200) if grouped else None
    problem = draw(d=30, kappa=200, groups=groups)
    steps = []
    newton_step = working_set.newton_step
    monkeypatch.setattr(
        working_set, "newton_step", lambda *given: steps.append(0) or newton_step(*given)
    )
    start = evaluate(problem, empty_start(problem), columns=True)
    solution = working_set.solve_working_set(start, FullCovariance(groups))
    assert solution.status.ok
    assert solution.n_iter >= 2
    # Newton steps begin at a new Σ after coordinate moves, and each tries one. If few columns are
    # free, these Σ have as many rows as columns; then a sweep factorises the Σ of all rows once.
    # Otherwise it uses the factor of the last Newton step, or of the start.
    whole = sum(len(sigma) == problem.rows for sigma in factorised)
    assert 1 <= whole <= 1 + len(steps) + solution.n_iter
    assert len(steps) <= len(factorised) <= 1 + len(steps) + 2 * solution.n_iter
    assert grouped or whole <= 1 + solution.n_iter  # at most half as many free columns as rows


@pytest.mark.parametrize("method", ["auto", "mm", "em", "mackay", "coordinate"])
def test_a_solve_never_factorises_the_same_sigma_twice(factorised, method):
    solve(draw(d=30, kappa=60, noise=0.05), FullCovariance(), method=method)
    different = {np.round(sigma, 10).tobytes() for sigma in factorised}
    assert len(factorised) == len(different)


def test_grouped_evidence_uses_the_factor_of_the_solution(factorised):
    groups = Groups.of(np.arange(40) // 2, 40)
    for objective in (FullCovariance(groups), Autoencoder(groups=groups)):
        state = solve(draw(groups=groups), objective).value
        count = len(factorised)
        group_evidence(state, groups, 6)
        assert len(factorised) == count


def test_copying_out_does_not_factorise_sigma(factorised, monkeypatch):
    p = make_sparse_regression(20, 40, 3, 5, snr_db=20, random_state=1)
    counts = []
    copy_out = SparseVAE._copied_out
    monkeypatch.setattr(
        SparseVAE, "_copied_out", lambda *given: counts.append(len(factorised)) or copy_out(*given)
    )
    SparseVAE(noise_variance=p.noise_variance).fit(p.dictionary, p.responses)
    assert len(factorised) == counts[0] > 0
