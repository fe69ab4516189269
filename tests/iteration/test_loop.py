"""The loop: its end, its history, its callbacks, and that a stack equals its problems."""

import json
import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import threadpool_info

from lucidae.arrays import Array, namespace, to_numpy
from lucidae.arrays.graphs import Replay
from lucidae.datasets import make_sparse_regression
from lucidae.iteration import (
    Below,
    History,
    Status,
    iterate,
    iterate_batch,
    limited_blas,
    log_grid,
)
from lucidae.sparsity import solve_batch
from tape import Tape

NEVER = Below(abs, -1.0)


def halve(x):
    return x / 2


def double(x):
    return 2 * x


# The end of an iteration.


def test_it_converges_at_the_first_check_below_the_tolerance():
    solution = iterate(halve, 1.0, stop=Below(abs, 2.0**-10), limit=100)
    assert solution.status is Status.CONVERGED
    assert (solution.n_iter, solution.value, solution.distance) == (10, 2.0**-10, 2.0**-10)


@pytest.mark.parametrize("limit", [0, 1, 7])
@pytest.mark.parametrize("check_every", [1, 3, 100])
def test_the_limit_is_reached_exactly(limit, check_every):
    solution = iterate(halve, 1.0, stop=NEVER, limit=limit, check_every=check_every)
    assert solution.status is Status.ITERATION_LIMIT
    assert (solution.n_iter, solution.value) == (limit, 2.0**-limit)


def test_the_distance_is_looked_at_only_now_and_then():
    looked = []
    stop = Below(lambda x: looked.append(x) or abs(x), 2.0**-5)
    solution = iterate(halve, 1.0, stop=stop, limit=100, check_every=4)
    assert looked == [1.0, 2.0**-4, 2.0**-8]
    assert solution.n_iter == 8


@pytest.mark.parametrize("check_every", [1, 4])
def test_a_step_that_overwrites_its_buffers_is_fine_with_a_copy(check_every):
    def step(x):
        x *= -3.0
        return x

    start = np.ones(2)
    solution = iterate(
        step,
        start,
        stop=Below(lambda x: np.abs(x).max(), 0.0),
        limit=1000,
        check_every=check_every,
        record={"first": lambda x: x[0]},
        copy=np.copy,
    )
    pure = iterate(
        lambda x: -3.0 * x,
        np.ones(2),
        stop=Below(lambda x: np.abs(x).max(), 0.0),
        limit=1000,
        check_every=check_every,
        record={"first": lambda x: x[0]},
    )
    assert solution.status is pure.status is Status.DIVERGED
    assert_array_equal(solution.value, pure.value)
    assert_array_equal(solution.history["first"], pure.history["first"])
    assert np.abs(solution.value).max() == solution.distance


# Divergence, stalling and advice.


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


def test_bad_stopping_rules_are_refused():
    with pytest.raises(ValueError, match="tolerance"):
        Below(abs, math.nan)
    with pytest.raises(ValueError, match="patience"):
        Below(abs, 1.0, patience=0)


# The history.


def recorded(limit=20, **settings):
    solution = iterate(halve, 1.0, stop=NEVER, limit=limit, **settings)
    history = solution.history
    assert_array_equal(history["distance"], 2.0**-history.iterations)
    return history.iterations.tolist()


def test_records_fall_on_the_asked_iterations():
    assert recorded(check_every=5) == [0, 5, 10, 15, 20]
    assert recorded(check_every=20, record_at=6) == [0, 6, 12, 18, 20]
    assert recorded(check_every=7, record_at=np.int64(10)) == [0, 10, 20]
    assert recorded(check_every=7, record_at=[13, 0, 2, 2, 99]) == [0, 2, 13]
    assert recorded(check_every=50, record_at=log_grid(20, 2)) == [*log_grid(20, 2)]
    assert recorded(limit=0, record_at=3) == [0]


def test_recording_changes_neither_values_nor_the_count_of_steps():
    steps = []

    def step(x):
        steps.append(x)
        return halve(x)

    solution = iterate(
        step, 1.0, stop=NEVER, limit=10, check_every=4, record={"square": lambda x: x * x},
        record_at=[1, 3, 9],
    )  # fmt: skip
    assert steps == [2.0**-i for i in range(10)]
    assert_array_equal(solution.history["square"], [2.0**-2, 2.0**-6, 2.0**-18])
    assert solution.history.names == ("distance", "square")


def test_arrays_of_any_library_are_recorded_as_numpy(xp):
    solution = iterate(
        halve,
        xp.ones(3),
        stop=Below(xp.max, 0.1),
        limit=10,
        record={"state": lambda x: x, "sum": xp.sum},
    )
    assert solution.status.ok
    assert solution.history["state"].shape == (5, 3)
    assert_array_equal(solution.history["sum"], 3.0 * 2.0 ** -np.arange(5))
    assert namespace(solution.value) is namespace(xp.ones(1))


def test_history_is_a_small_mapping_that_json_understands():
    history = History(np.array([0, 1]), {"loss": np.array([1.0, np.inf])})
    assert "loss" in history
    assert "gain" not in history
    assert [*history] == ["loss"]
    assert len(history) == 2
    written = json.dumps(history.to_dict(), allow_nan=False)
    assert json.loads(written) == {"iteration": [0, 1], "loss": [1.0, "inf"]}


# Callbacks.


def test_every_callback_is_called_at_every_check_and_any_can_stop():
    seen, asked = [], []
    solution = iterate(
        halve,
        1.0,
        stop=Below(abs, 0.0),
        limit=100,
        check_every=2,
        callbacks=[lambda p: p.n_iter >= 6, seen.append, lambda p: asked.append(p) or None],
    )
    assert (solution.status, solution.n_iter, solution.value) == (Status.STOPPED, 6, 2.0**-6)
    assert [p.n_iter for p in seen] == [p.n_iter for p in asked] == [0, 2, 4, 6]
    assert (seen[1].limit, seen[1].tolerance, seen[1].distance) == (100, 0.0, 0.25)
    assert seen[1].state == 0.25


def test_a_callback_does_not_overrule_convergence_or_see_a_divergence():
    stop = Below(abs, 0.5)
    assert iterate(halve, 1.0, stop=stop, limit=9, callbacks=[lambda p: p.n_iter]).status.ok
    seen = []
    iterate(double, 1.0, stop=NEVER, limit=1000, callbacks=[seen.append])
    assert all(p.distance <= 1e10 for p in seen)


class Closing:
    def __init__(self):
        self.closed = 0

    def __call__(self, progress):
        return False

    def close(self):
        self.closed += 1


@pytest.mark.parametrize("stack", [False, True])
def test_callbacks_are_closed_also_after_an_exception(stack):
    first, second = Closing(), Closing()

    def fail(state):
        raise KeyError("broken step")

    settings = {"limit": 5, "callbacks": [first, second]}
    if stack:
        start, stop = Numbers(np.ones(2), np.ones(2)), Below(lambda s: s.x, 0.0)
        run, step = iterate_batch, lambda s: s
    else:
        start, stop, run, step = 1.0, NEVER, iterate, halve
    run(step, start, stop=stop, **settings)
    assert first.closed == second.closed == 1
    with pytest.raises(KeyError, match="broken step"):
        run(fail, start, stop=stop, **settings)
    assert first.closed == second.closed == 2


# Continuation of an interrupted run.


@given(st.integers(0, 30), st.integers(1, 7), st.sampled_from([0.0, 2.0**-13, 2.0**-29]))
def test_a_run_that_goes_on_ends_like_one_that_was_never_cut(cut, check_every, tolerance):
    settings = {"stop": Below(abs, tolerance), "check_every": check_every}
    whole = iterate(halve, 1.0, limit=30, **settings)
    cut_short = iterate(halve, 1.0, limit=cut, **settings)
    if cut_short.status is Status.CONVERGED:
        return
    rest = iterate(halve, cut_short.value, limit=30, first=cut, **settings)
    assert (rest.status, rest.n_iter, rest.value) == (whole.status, whole.n_iter, whole.value)


# A stack of problems.


class Numbers(NamedTuple):
    x: Array
    rate: Array


def shrink(state):
    return Numbers(state.x * state.rate, state.rate)


def size_of(state):
    return abs(state.x)


RATES = st.sampled_from([0.0, 0.3, 0.9, 0.999, 1.0, 1.5, 40.0, 1e200, math.nan])


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 1e-9, 1.0, 7.0]), RATES), min_size=1, max_size=8),
    st.integers(1, 6),
    st.integers(0, 60),
    st.sampled_from([None, 1, 5]),
)
def test_a_stack_is_its_problems_one_by_one(problems, check_every, limit, patience):
    x, rate = (np.array(column) for column in zip(*problems, strict=True))
    settings = {"limit": limit, "check_every": check_every}
    stop = Below(size_of, 1e-6, patience=patience)
    ended = iterate_batch(shrink, Numbers(x, rate), stop=stop, **settings)
    assert len(ended) == len(problems)
    for i in range(len(problems)):
        alone = iterate(
            shrink,
            Numbers(x[i : i + 1], rate[i : i + 1]),
            stop=Below(lambda s: abs(s.x[0]), 1e-6, patience=patience),
            **settings,
        )
        together = ended[i]
        assert together.status is alone.status
        assert together.n_iter == alone.n_iter
        assert_array_equal(together.distance, alone.distance)
        assert_array_equal(together.value.x, alone.value.x[0])
        assert_array_equal(together.value.rate, alone.value.rate[0])
        assert together.advice == alone.advice
    assert_array_equal(ended.converged, [status is Status.CONVERGED for status in ended.status])


def test_finished_problems_cost_nothing_more(xp):
    work = []

    def step(state):
        work.append(state.x.shape[0])
        return shrink(state)

    rates = [2.0**-30, 0.5, 2.0**-10, 2.0**-30]
    start = Numbers(xp.ones(4), xp.asarray(rates))
    ended = iterate_batch(step, start, stop=Below(size_of, 2.0**-30), limit=100)
    assert work == [4, 2, 2] + [1] * 27
    assert_array_equal(ended.n_iter, [1, 30, 3, 1])
    assert_array_equal(to_numpy(ended.value.rate), rates)
    assert namespace(ended.value.x) is namespace(xp.ones(1))
    assert ended.converged.all()


def test_a_callback_sees_what_is_left_and_stops_it():
    seen = []

    def callback(progress):
        seen.append((progress.n_iter, progress.state.x.shape[0], progress.distance))
        return progress.n_iter == 3

    start = Numbers(np.ones(3), np.array([0.0, 0.5, 1e200]))
    ended = iterate_batch(shrink, start, stop=Below(size_of, 1e-6), limit=50, callbacks=[callback])
    assert seen == [(0, 3, 1.0), (1, 1, 0.5), (2, 1, 0.25), (3, 1, 0.125)]
    assert ended.status == (Status.CONVERGED, Status.STOPPED, Status.DIVERGED)
    assert_array_equal(ended.n_iter, [1, 3, 1])
    assert_array_equal(ended.value.x, [0.0, 0.125, 1.0])


def test_an_empty_stack_has_an_empty_solution():
    start = Numbers(np.empty(0), np.empty(0))
    ended = iterate_batch(pytest.fail, start, stop=Below(size_of, 1.0), limit=5)
    assert len(ended) == 0
    assert ended.value.x.shape == (0,)


def test_a_distance_of_the_wrong_shape_is_refused():
    start = Numbers(np.ones(3), np.ones(3))
    with pytest.raises(ValueError, match="one entry per problem"):
        iterate_batch(shrink, start, stop=Below(lambda s: np.ones(2), 1.0), limit=5)


@given(st.integers(0, 10**6), st.integers(1, 50))
def test_a_logarithmic_grid_rises_from_zero_to_the_limit(limit, per_decade):
    grid = log_grid(limit, per_decade)
    assert grid[0] == 0
    assert grid[-1] == limit
    assert [*grid] == sorted(set(grid))
    assert len(grid) <= per_decade * max(math.log10(max(limit, 1)), 1) + 3


# Threads and invalid settings.


def blas_threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@pytest.mark.parametrize(
    ("size", "limited"), [(10, True), (499, True), (500, False), (None, False)]
)
def test_small_problems_run_on_one_thread_and_the_rest_is_restored(size, limited):
    with limited_blas(None):
        before = blas_threads()
    during = []

    def step(x):
        during.append(blas_threads())
        return halve(x)

    def fail(x):
        raise RuntimeError("broken step")

    iterate(step, 1.0, stop=NEVER, limit=1, size=size)
    assert during == [[1] * len(before) if limited else before]
    assert blas_threads() == before
    with pytest.raises(RuntimeError, match="broken step"):
        iterate(fail, 1.0, stop=NEVER, limit=1, size=size)
    assert blas_threads() == before


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"limit": -1}, "limit"),
        ({"limit": 1.5}, "limit"),
        ({"limit": None}, "limit"),
        ({"check_every": 0}, "check_every"),
        ({"record_at": 0}, "record_at"),
        ({"record_at": [1, -1]}, "record_at"),
        ({"record_at": [0.5]}, "record_at"),
        ({"first": 6}, "first"),
        ({"first": -1}, "first"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, name):
    with pytest.raises(ValueError, match=name):
        iterate(halve, 1.0, **({"stop": NEVER, "limit": 5} | settings))


@pytest.mark.parametrize(
    ("posterior", "noise"), [("full", None), ("point", None), ("full", "learn")]
)
def test_recorded_steps_of_a_stack_give_what_the_steps_give(monkeypatch, posterior, noise):
    drawn = [make_sparse_regression(12, 20, 2, 5, snr_db=20, random_state=i) for i in range(6)]
    Phi, X = (np.stack([getattr(p, name) for p in drawn]) for name in ("dictionary", "responses"))
    gamma = np.array([p.noise_variance for p in drawn])
    settings = {
        "posterior": posterior,
        "noise_variance": gamma if noise is None else noise,
        "solver": "mm",
    }
    expected = solve_batch(Phi, X, **settings)
    tape = Tape()
    recorded = "lucidae.sparsity.batch.replayable"
    monkeypatch.setattr(recorded, lambda step, _: Replay(step, tape.record))
    found = solve_batch(Phi, X, **settings)
    assert tape.replays > tape.recordings > 0
    assert found.status == expected.status
    for one, other in zip(found.value, expected.value, strict=True):
        assert_allclose(one, other, rtol=1e-12, atol=1e-14)
