"""The methods of the sparse experiments: the lower of two minima, and states without curvature."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from lucidae.datasets import make_sparse_regression
from lucidae.sparsity.batch import solve_batch
from lucidae.sparsity.problem import normalise
from lucidae.sparsity.state import evaluate, evaluate_fit, flat_start
from lucidae_papers.sparsity import methods as sparse_methods

LIMITS = {"tol": 1e-6, "max_iter": 600}


def stack(*sizes, snr_db=None):
    drawn = [
        make_sparse_regression(
            20, 40, r, 8, 3, row_scaling="jeffreys", snr_db=snr_db, random_state=seed
        )
        for r in sizes
        for seed in range(4)
    ]
    noise = np.array([data.noise_variance or 1e-10 for data in drawn])
    return (
        np.stack([data.dictionary for data in drawn]),
        np.stack([data.responses for data in drawn]),
        noise,
    )


def solved(Phi, X, noise, solver):
    return solve_batch(Phi, X, noise_variance=noise, solver=solver, **LIMITS)


def test_the_lower_minimum_is_kept_and_sparse_answers_are_not_solved_twice():
    problems = stack(4, 17)
    found = sparse_methods.full(*problems, **LIMITS)
    quick, slow = (solved(*problems, solver) for solver in ("mm", "em"))
    twice = found.n_iter != quick.n_iter
    assert not twice[:4].any(), "four of twenty rows: MM's answer is sparse"
    assert twice[4:].any(), "seventeen of twenty rows: MM's answer is not"
    lower = np.minimum(quick.value.energy, slow.value.energy)
    expected = np.where(twice, lower, quick.value.energy)
    assert_allclose(found.value.energy, expected, rtol=1e-9)
    assert (found.value.energy < quick.value.energy - 1.0).any(), "a case in which EM is better"
    for problem in range(8):
        chosen = quick if found.value.energy[problem] == quick.value.energy[problem] else slow
        assert_allclose(found.value.coef[problem], chosen.value.coef[problem], atol=1e-6)
        assert found.status[problem] is chosen.status[problem]


def test_noisy_problems_are_solved_once():
    problems = stack(17, snr_db=20.0)
    found = sparse_methods.full(*problems, **LIMITS)
    assert_array_equal(found.n_iter, solved(*problems, "mm").n_iter)


@pytest.mark.parametrize("noise", [1e-8, 1e-2])
def test_a_state_without_curvatures_has_everything_else(noise):
    Phi, X, _ = stack(4)
    problem, _ = normalise(Phi, X)
    problem = problem._replace(noise=noise * problem.noise)
    light, whole = (look(problem, flat_start(problem)) for look in (evaluate_fit, evaluate))
    assert np.isnan(light.curvature).all()
    for name in ("alignment", "fit", "log_determinant", "residual", "relevance"):
        assert_allclose(getattr(light, name), getattr(whole, name), rtol=1e-7, err_msg=name)
