"""Stopping rules: divergence, stalling, and the advice of every status."""

import math

import numpy as np
import pytest

from lucidae.iteration import Below, Solution, Status, iterate

NEVER = Below(abs, -1.0)


def double(x):
    return 2 * x


@pytest.mark.parametrize("check_every", [1, 3])
def test_not_a_number_ends_it_with_the_last_finite_state(check_every):
    def step(x):
        return x - 1.0 if x > 1.0 else math.nan

    solution = iterate(step, 5.0, stop=NEVER, limit=100, check_every=check_every)
    assert solution.status is Status.DIVERGED
    assert solution.n_iter == {1: 5, 3: 6}[check_every]
    assert solution.value == {1: 1.0, 3: 2.0}[check_every]
    assert solution.distance == solution.value
    assert solution.history["distance"][-1] == solution.value


@pytest.mark.parametrize("start", [1e-3, 1.0, 1e5])
def test_an_explosion_ends_it_long_before_the_numbers_do(start):
    solution = iterate(double, start, stop=NEVER, limit=10_000)
    assert solution.status is Status.DIVERGED
    assert solution.n_iter < 60
    assert np.isfinite(solution.value)
    assert solution.value == start * 2.0 ** (solution.n_iter - 1)


def test_overflow_inside_a_step_is_a_divergence_and_not_a_warning():
    def square(x):
        return (x * np.array([1e30])) ** 2 - np.array([np.inf])

    solution = iterate(square, np.ones(1), stop=Below(np.max, 0.0), limit=50, check_every=7)
    assert solution.status is Status.DIVERGED
    assert solution.value == 1.0


def test_a_hopeless_start_is_returned_as_it_is():
    solution = iterate(pytest.fail, math.nan, stop=NEVER, limit=5)
    assert (solution.status, solution.n_iter) == (Status.DIVERGED, 0)
    assert len(solution.history) == 0


@pytest.mark.parametrize("patience", [1, 5])
def test_no_new_best_for_a_while_is_a_stall(patience):
    solution = iterate(
        lambda x: max(x / 2, 1.0), 8.0, stop=Below(abs, 0.5, patience=patience), limit=100
    )
    assert solution.status is Status.STALLED
    assert (solution.n_iter, solution.value) == (3 + patience, 1.0)


def test_without_patience_nothing_stalls():
    assert iterate(lambda x: x, 1.0, stop=Below(abs, 0.5), limit=50).n_iter == 50


@pytest.mark.parametrize("status", Status)
def test_every_status_says_what_happened_and_what_to_do(status):
    solution = Solution(None, status, 12, 0.5, 1e-3)
    assert "12 iterations" in solution.advice
    assert "0.5" in solution.advice
    assert solution.advice.endswith(".")
    assert status.ok == (status is Status.CONVERGED)
    if status in (Status.ITERATION_LIMIT, Status.DIVERGED, Status.STALLED):
        assert any(word in solution.advice for word in ("Raise", "Lower"))


def test_bad_stopping_rules_are_refused():
    with pytest.raises(ValueError, match="tolerance"):
        Below(abs, math.nan)
    with pytest.raises(ValueError, match="patience"):
        Below(abs, 1.0, patience=0)
