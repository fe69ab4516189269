"""Recorded steps must give what the steps themselves give: a stand-in plays the device."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from lucidae.arrays.graphs import Replay, copied, keeper, replayable
from lucidae.linear.prefixes import PrefixNumbers, geometric_prior, uniform_prior
from lucidae.linear.rules import NestedDropoutRule
from lucidae.linear.simulation import Plan, Run, ensemble, epochs_to_alignment, simulate
from lucidae.linear.weights import TiedWeights, UntiedWeights
from lucidae.rows.covariances import rows_covariance
from lucidae.rows.spectrum import Spectrum
from tape import Tape

N, M, K = 60, 8, 3
CASES = [
    ("rag", "nesterov"),
    ("nonuniform_l2", "adam"),
    ("expected_nested_dropout", "nesterov"),
    ("nested_dropout", "nesterov"),
    ("nested_dropout", "adam"),
    ("linear_vae", "adam"),
]


@pytest.fixture
def tape(monkeypatch):
    tape = Tape()
    monkeypatch.setattr(ensemble, "replayable", lambda step, _: Replay(step, tape.record))
    return tape


@pytest.fixture
def plan():
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((N, M)) * np.linspace(2.0, 0.3, M)
    rows -= rows.mean(axis=0)
    values, vectors = np.linalg.eigh(rows.T @ rows / N)
    spectrum = Spectrum(values[::-1], vectors[:, ::-1], values.sum())

    def make(n_epochs=200, **settings):
        return Plan(spectrum, K, n_epochs, rows=rows, init_scale=1e-2, **settings)

    return make


@pytest.mark.parametrize(("method", "optimizer"), CASES)
def test_a_recorded_trajectory_is_the_eager_one(plan, tape, method, optimizer, monkeypatch):
    runs = [Run(method, optimizer, 0.01, tied=False)]
    (replayed,) = simulate(runs, plan(60))
    assert (tape.recordings, tape.replays) == (1, 60)
    monkeypatch.undo()
    (eager,) = simulate(runs, plan(60))
    for name, series in eager.values.items():
        assert_array_equal(replayed.values[name], series)
    assert_array_equal(replayed.weights.atoms, eager.weights.atoms)


@pytest.mark.parametrize(("method", "optimizer"), CASES)
@pytest.mark.parametrize("check_every", [1, 10, 7])
def test_a_recorded_race_counts_the_same_epochs(
    plan, tape, method, optimizer, check_every, monkeypatch
):
    runs = [Run(method, optimizer, 0.02, tied=False)]
    replayed = epochs_to_alignment(runs, plan(), 0.3, check_every)
    monkeypatch.undo()
    assert tape.recordings == 1
    assert_array_equal(replayed, epochs_to_alignment(runs, plan(), 0.3, check_every))


@pytest.mark.parametrize("method", ["rag", "expected_nested_dropout"])
def test_looks_between_stretches_find_the_epoch_that_a_trajectory_shows(plan, method):
    run = Run(method, "nesterov", 0.02, tied=False)
    (full,) = simulate([run], plan(300, record_at=range(301)))
    arrived = np.flatnonzero(full.values["alignment"][::10] <= 0.3)[0] * 10
    assert epochs_to_alignment([run], plan(300), 0.3, 10) == [arrived]


def test_runs_that_leave_a_recorded_crowd_do_not_disturb_the_others(plan, tape):
    runs = [Run("rag", "nesterov", rate, tied=False) for rate in (0.05, 0.01, 50.0, 0.02)]
    together = epochs_to_alignment(runs, plan(1000), 0.3, 10)
    assert tape.recordings > 1, "another shape is recorded anew"
    alone = [epochs_to_alignment([run], plan(1000), 0.3, 10)[0] for run in runs]
    assert_array_equal(together, alone)
    assert np.isnan(together[2])
    assert np.isfinite(together[[0, 1, 3]]).all()


def test_numbers_drawn_for_many_epochs_are_those_of_each_epoch():
    at_once = PrefixNumbers(uniform_prior(K), np.random.default_rng(3), N)
    numbers, _ = at_once(4, 2)
    one_by_one = np.random.default_rng(3)
    assert_array_equal(numbers, [one_by_one.random((2, N)) for _ in range(4)])
    at_once.prepare(4, 2)
    following, _ = at_once(4, 2)
    assert_array_equal(following, [one_by_one.random((2, N)) for _ in range(4)])


@pytest.mark.parametrize("kind", [UntiedWeights, TiedWeights])
def test_latents_beyond_the_longest_prefix_get_no_gradient_and_need_no_work(kind):
    rng = np.random.default_rng(0)
    k, prior = 100, geometric_prior(100)
    rows = rng.standard_normal((N, 120))
    covariance = rows_covariance(rows, np.zeros(120), np.ones(N))
    weights = kind(*rng.standard_normal((len(kind._fields), k, 120)))
    draws = PrefixNumbers(prior, np.random.default_rng(1), N)
    (drawn,), width = draws(1, 1)
    assert 32 <= width < k, "a case in which some latents are out of reach"
    rule = NestedDropoutRule(prior)
    narrow = rule.sampled(weights, covariance, drawn[0], width)
    for found, expected in zip(narrow, rule.sampled(weights, covariance, drawn[0]), strict=True):
        assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
        assert not found[width:].any()


def test_the_width_follows_the_longest_prefix():
    draws = PrefixNumbers(geometric_prior(200), np.random.default_rng(0), N)
    for length in (1, 31, 32, 33, 64, 150, 200):
        smallest = 1 - 0.9 ** (length - 1)  # the least number that keeps so many latents
        assert length <= draws.width(smallest + 1e-10) <= length + 32
    assert draws.width(1 - 1e-16) == 200


def test_a_recording_reads_inputs_from_its_own_arrays_and_is_kept_by_setting():
    tape = Tape()
    step = Replay(lambda state, given, times: (state[0] + times * given,), tape.record)
    state = (np.zeros(2),)
    first = step(state, np.ones(2), times=1)
    kept = keeper(step)(first)
    second = step(first, np.full(2, 5.0), times=1)
    third = copied(step(second, np.ones(2), times=3))
    assert (tape.recordings, tape.replays) == (2, 3)
    assert second is first is step.own
    assert_array_equal(kept[0], [1.0, 1.0])
    assert_array_equal(third[0], [9.0, 9.0])
    assert_array_equal(state[0], [0.0, 0.0])


def test_what_is_kept_shares_what_no_replay_writes_to():
    tape = Tape()
    step = Replay(lambda state: (state[0], (state[1][0] + state[0],)), tape.record)
    first = (np.ones(2), (np.zeros(2),))
    assert step.keep(first) is first
    state = step(first)
    kept = step.keep(state)
    assert kept[0] is state[0]
    assert_array_equal(step(state)[1][0], [2.0, 2.0])
    assert_array_equal(kept[1][0], [1.0, 1.0])
    other = step((np.full(2, 7.0), (np.zeros(2),)))  # would write to what is shared
    assert_array_equal(other[1][0], [7.0, 7.0])
    assert_array_equal(kept[0], [1.0, 1.0])


def test_where_there_is_no_device_a_step_stays_as_it_is():
    def step(state):
        return state

    assert replayable(step, (np.zeros(1),)) is step
    assert keeper(step) is None
