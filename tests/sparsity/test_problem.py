"""The normalised problem has the energy of the data, whatever was reduced."""

import numpy as np
from numpy.testing import assert_allclose

from lucidae.sparsity.objectives import FullCovariance
from lucidae.sparsity.problem import normalise
from lucidae.sparsity.solvers import solve


def solved(Phi, X, noise):
    problem, units = normalise(Phi, X)
    level = float(units.normalised_noise(noise))
    return solve(problem.with_noise(level), FullCovariance()), units


def test_many_responses_cost_no_more_than_their_gram_matrix():
    rng = np.random.default_rng(5)
    Phi = rng.standard_normal((15, 30))
    X = Phi[:, :4] @ rng.standard_normal((4, 100_000)) + rng.standard_normal((15, 100_000))
    problem, _ = normalise(Phi, X)
    assert problem.responses.shape == (15, 15)
    assert_allclose(problem.responses @ problem.responses.T * np.mean(X**2), X @ X.T / 1e5)
    solution, units = solved(Phi, X, 1.0)
    assert_allclose(units.relevance(solution.value.relevance)[:4], 1.0, rtol=0.05)


def test_a_tall_dictionary_is_reduced_to_its_span_without_a_trace():
    rng = np.random.default_rng(6)
    Phi, X = rng.standard_normal((50, 6)), rng.standard_normal((50, 4))
    X[:, 0] += 3 * Phi[:, 0]
    problem, units = normalise(Phi, X)
    assert problem.dictionary.shape == (6, 6)
    solution, _ = solved(Phi, X, 0.9)
    relevance = units.relevance(solution.value.relevance)
    sigma = Phi @ np.diag(relevance) @ Phi.T + 0.9 * np.eye(50)
    pulled = np.linalg.solve(sigma, Phi)
    slack = ((pulled.T @ X) ** 2).sum(axis=1) / 4 - (Phi * pulled).sum(axis=0)
    assert np.abs(relevance * slack).max() < 1e-6
    assert slack.max() < 1e-6
