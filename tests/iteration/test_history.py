"""The history: what is recorded, and at which iterations."""

import json

import numpy as np
from numpy.testing import assert_array_equal

from lucidae.arrays import namespace
from lucidae.iteration import Below, History, iterate, log_grid

NEVER = Below(abs, -1.0)


def halve(x):
    return x / 2


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
