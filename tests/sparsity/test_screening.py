"""Fits of low accuracy: all columns evaluated from the active ones, and a path that ends early."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose

from lucidae.arrays import to_numpy
from lucidae.datasets import make_sparse_regression
from lucidae.sparsity import held_out, low_rank
from lucidae.sparsity.dictionary import SparseDictionary
from lucidae.sparsity.held_out import held_out_errors
from lucidae.sparsity.objectives import FullCovariance
from lucidae.sparsity.posterior import ActiveFactor
from lucidae.sparsity.problem import Problem, Rows, normalise
from lucidae.sparsity.screening import DictionaryProducts, Screening, coarse_fit, continuation
from lucidae.sparsity.state import empty_start, evaluate
from lucidae.sparsity.working_set import COARSE, noise_stages, open_workspace, solve_working_set

FULL = FullCovariance()


def draw(seed, noise=0.05, complex_data=False, active=8, scale=5.0):
    rng = np.random.default_rng(seed)
    Phi, X = rng.standard_normal((20, 50)), rng.standard_normal((20, 6))
    if complex_data:
        Phi = Phi + 1j * rng.standard_normal(Phi.shape)
        X = X + 1j * rng.standard_normal(X.shape)
    problem, _ = normalise(Phi, X)
    relevance = np.zeros(50)
    relevance[rng.choice(50, active, replace=False)] = rng.uniform(0.1, scale, active)
    return problem.with_noise(noise), relevance


@pytest.mark.parametrize("complex_data", [False, True])
@pytest.mark.parametrize("active", [0, 8, 30])
def test_a_screening_has_the_values_of_a_factorisation(complex_data, active):
    problem, relevance = draw(1, complex_data=complex_data, active=active)
    found = Screening.of(problem, relevance)
    exact = evaluate(problem, relevance, columns=True)
    assert_allclose(found.state.curvature, exact.curvature, rtol=1e-9)
    assert_allclose(found.state.alignment, exact.alignment, rtol=1e-9)
    index = np.union1d(np.flatnonzero(relevance), np.arange(0, 50, 3))
    workspace, expected = found.workspace(index), open_workspace(exact.take(index))
    for ours, theirs in zip(workspace, expected, strict=True):
        assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


def test_moves_from_large_relevances_begin_at_accurate_values():
    problem, relevance = draw(1, scale=1e13)
    found = Screening.of(problem, relevance)
    exact = evaluate(problem, relevance, columns=True)
    index = np.flatnonzero(relevance)
    active = exact.curvature[index]
    assert_allclose(found.workspace(index).curvature, active, rtol=1e-5)
    assert np.abs(found.state.curvature[index] / active - 1.0).max() > 1e-3  # by differences


def test_a_sparse_dictionary_is_screened_like_the_dense_one():
    problem, relevance = draw(2)
    dictionary = np.where(np.abs(problem.dictionary) > 0.2, problem.dictionary, 0.0)
    S = SparseDictionary(scipy.sparse.csc_array(dictionary), np.ones(20), np.zeros(50), np.ones(50))
    dense, sparse = (
        Screening.of(problem._replace(dictionary=each), relevance) for each in (dictionary, S)
    )
    assert DictionaryProducts.of(problem._replace(dictionary=S)).responses is None
    assert_allclose(sparse.state.curvature, dense.state.curvature, rtol=1e-9)
    assert_allclose(sparse.state.alignment, dense.state.alignment, rtol=1e-9)


def test_an_indefinite_gram_matrix_is_decomposed_by_qr(monkeypatch):
    problem, relevance = draw(3)
    expected = Screening.of(problem, relevance)
    healthy = low_rank.cholesky
    monkeypatch.setattr(low_rank, "cholesky", lambda A: (np.nan * healthy(A)[0], np.array(False)))
    found = Screening.of(problem, relevance)
    assert_allclose(found.state.curvature, expected.state.curvature, rtol=1e-9)
    assert_allclose(found.residual, expected.residual, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("complex_data", [False, True])
@pytest.mark.parametrize("count", [7, 35])
def test_a_restricted_problem_has_the_energies_of_all_columns(complex_data, count):
    problem, _ = draw(4, complex_data=complex_data)
    index = np.arange(count)
    relevance = np.where(np.arange(50) < count, 0.7, 0.0)
    small = problem.restricted(index)
    assert small.dictionary.shape == (min(count, 20), count)
    ours, theirs = evaluate(small, relevance[:count]), evaluate(problem, relevance)
    assert_allclose(float(FULL.value(ours)), float(FULL.value(theirs)), rtol=1e-12)
    assert_allclose(ours.curvature, theirs.curvature[:count], rtol=1e-9)
    assert_allclose(ours.alignment, theirs.alignment[:count], rtol=1e-9)
    assert_allclose(float(ours.residual), float(theirs.residual), rtol=1e-9)
    assert_allclose(float(ours.dimension), float(theirs.dimension))


@pytest.mark.parametrize("noise", [0.3, 1e-3, 1e-9])
def test_a_coarse_fit_is_nearly_optimal_on_its_columns_and_lowers_the_energy(noise):
    problem, _ = draw(5)
    problem, start = problem.with_noise(noise), empty_start(problem)
    relevance, index, state = coarse_fit(problem, FULL, start, DictionaryProducts.of(problem))
    assert state is not None
    others = np.setdiff1d(np.arange(50), index)
    assert (relevance[others] == 0).all()
    assert_allclose(relevance[index], state.relevance)
    before, after = (float(FULL.value(evaluate(problem, w))) for w in (start, relevance))
    assert after < before - 1.0
    first = float(FULL.violation(evaluate(problem, start)))
    assert float(FULL.violation(state)) <= max(COARSE, 1.1e-2 * first)
    again, _, _ = coarse_fit(problem, FULL, relevance, DictionaryProducts.of(problem))
    assert float(FULL.value(evaluate(problem, again))) <= after + 1e-9


def test_a_stage_of_the_continuation_is_that_of_exact_sweeps():
    problem, _ = draw(6, noise=0.02)
    (noise,) = noise_stages(0.02)
    found = continuation(problem, FULL)
    first = evaluate(problem.with_noise(noise), empty_start(problem), columns=True)
    exact = solve_working_set(first, FULL, tolerance=COARSE, limit=20).value
    assert_allclose(found.relevance, exact.relevance, rtol=1e-6, atol=1e-9)
    assert found.complete


@pytest.mark.parametrize("complex_responses", [False, True])
def test_the_error_of_held_out_rows_needs_the_active_columns_alone(complex_responses):
    rng = np.random.default_rng(7)
    Phi, X = rng.standard_normal((30, 12)), rng.standard_normal((30, 3))
    X = X + 1j * rng.standard_normal(X.shape) if complex_responses else X
    rows = Rows(Phi, X, None, True)
    train, test = rows.take(np.arange(20)), rows.take(np.arange(20, 30))
    relevance = np.where(rng.random(12) < 0.4, 1.0, 0.0)
    dictionary, responses = train.weighted
    factor = ActiveFactor.of(dictionary, relevance, 0.3)
    index, coefficients = factor.nonzero_mean(responses)
    assert_allclose(index, np.flatnonzero(relevance))
    mean = factor.mean(responses)
    assert_allclose(mean[index], coefficients)
    assert np.count_nonzero(mean.any(axis=1)) == index.size
    left = (X - X[:20].mean(axis=0) - (Phi - Phi[:20].mean(axis=0)) @ mean)[20:]
    assert_allclose(test.squared_error(index, coefficients, train), (np.abs(left) ** 2).sum())


def test_the_path_ends_where_the_training_rows_are_interpolated(monkeypatch):
    p = make_sparse_regression(50, 800, 6, 30, 5, snr_db=15, random_state=0)
    rows = Rows(p.dictionary, p.responses, None, False)
    splits = [(np.arange(50) % 5 != k, np.arange(50) % 5 == k) for k in range(5)]
    monkeypatch.setattr(held_out, "is_small", lambda _: False)
    longer = held_out_errors(rows, splits, FULL, patience=4)
    usual = held_out_errors(rows, splits, FULL)
    assert usual.best == longer.best
    assert usual.minimum() == longer.minimum()
    assert usual.noise.size == usual.best + 2  # one noise variance after the best
    monkeypatch.setattr(held_out, "WORSE", np.inf)
    assert held_out_errors(rows, splits, FULL).noise.size == longer.best + 3  # LARGE_PATIENCE


def test_problem_fields_survive_a_restriction():
    problem, _ = draw(8)
    spare = problem._replace(outside=np.array(2.0), spare=np.array(3.0))
    small = Problem(*spare).restricted(np.arange(4))
    assert float(small.outside) > 2.0
    assert float(small.spare) == 3.0 + 16.0


@pytest.mark.parametrize("complex_data", [False, True])
def test_fits_of_low_accuracy_agree_for_every_array_library(xp, complex_data):
    problem, _ = draw(9, complex_data=complex_data)
    moved = Problem(*(xp.asarray(part) for part in problem))
    ours, theirs = (
        coarse_fit(each, FULL, empty_start(each), DictionaryProducts.of(each))[0]
        for each in (moved, problem)
    )
    assert_allclose(to_numpy(ours), theirs, rtol=1e-6, atol=1e-9)
    ours, theirs = (continuation(each, FULL).relevance for each in (moved, problem))
    assert_allclose(to_numpy(ours), theirs, rtol=1e-6, atol=1e-9)
