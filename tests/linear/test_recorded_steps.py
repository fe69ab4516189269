"""Steps recorded as CUDA graphs give what the steps give; a stand-in plays the device."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning

from lucidae import DropoutAutoencoder, LinearAutoencoder
from lucidae.arrays import graphs
from lucidae.arrays.graphs import Replay, Steps, copied, keeper, replayable
from lucidae.iteration import Below, Status, iterate
from lucidae.linear import (
    NestedDropoutRule,
    Plan,
    Run,
    Spectrum,
    TiedWeights,
    UntiedWeights,
    epochs_to_alignment,
    geometric_prior,
    simulate,
    simulation,
    solvers,
    uniform_prior,
)
from lucidae.linear.rules import PrefixNumbers
from lucidae.rows.covariances import rows_covariance
from tape import Tape

X = np.random.default_rng(2).standard_normal((60, 8)) * np.linspace(3, 0.5, 8)
K = 3


@pytest.fixture
def tape(monkeypatch):
    """Let the steps of all fits and simulations be recorded."""
    tape = Tape()
    monkeypatch.setattr(graphs, "recorder", lambda _: tape.record)
    monkeypatch.setattr(simulation, "replayable", lambda step, _: Replay(step, tape.record))
    monkeypatch.setattr(solvers, "CHECK_RECORDED", solvers.CHECK_EVERY)
    return tape


# Fits.

FITS = [
    (name, optimizer)
    for name in ("rag", "gha", "plain", "nonuniform_l2", "expected_nested_dropout", "linear_vae")
    for optimizer in ("nesterov", "heavy_ball", "gradient_descent", "adam")
    if optimizer != "adam" or name not in ("rag", "gha")  # which refuse it
]


@pytest.mark.covering
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("name", "optimizer"), [*FITS, ("brockett", "nesterov")])
@pytest.mark.parametrize("max_iter", [600, 137])
def test_a_fit_by_recorded_steps_is_the_same(name, optimizer, max_iter, monkeypatch, request):
    given = {"method": name, "optimizer": optimizer, "solver": "gradient", "max_iter": max_iter}
    eager = LinearAutoencoder(K, random_state=0, tol=1e-5, **given).fit(X)
    tape = request.getfixturevalue("tape")
    replayed = LinearAutoencoder(K, random_state=0, tol=1e-5, **given).fit(X)
    assert bool(tape.recordings) == (name != "brockett"), "which calls a QR factorisation"
    assert tape.recordings <= 4, "strides and single steps, with and without the distance"
    assert replayed.n_iter_ < 500 or tape.replays < replayed.n_iter_
    assert_array_equal(replayed.encoder_, eager.encoder_)
    assert (replayed.n_iter_, replayed.status_) == (eager.n_iter_, eager.status_)
    assert_array_equal(replayed.history_["loss"], eager.history_["loss"])
    assert replayed.certificate_.to_dict() == eager.certificate_.to_dict()


@pytest.mark.usefixtures("tape")
def test_a_divergence_returns_the_state_before_it_although_steps_overwrite():
    with pytest.warns(ConvergenceWarning, match="Diverged"):
        fitted = LinearAutoencoder(K, solver="gradient", learning_rate=30.0, random_state=0).fit(X)
    assert fitted.status_ is Status.DIVERGED
    assert np.isfinite(fitted.encoder_).all()


def test_a_library_that_cannot_be_recorded_is_called_without_graphs(monkeypatch):
    def failing(rehearsal, work):
        raise RuntimeError("operation not permitted when stream is capturing")

    expected = LinearAutoencoder(K, solver="gradient", random_state=0).fit(X)
    monkeypatch.setattr(graphs, "recorder", lambda _: failing)
    monkeypatch.setattr(solvers, "CHECK_RECORDED", solvers.CHECK_EVERY)
    found = LinearAutoencoder(K, solver="gradient", random_state=0).fit(X)
    assert found.n_iter_ == expected.n_iter_
    assert_array_equal(found.encoder_, expected.encoder_)


def test_errors_of_a_step_itself_are_raised():
    def broken(state):
        raise RuntimeError("wrong")

    steps = Steps(broken, lambda state: state[0], (np.zeros(()),), stride=5)
    with pytest.raises(RuntimeError, match="wrong"):
        iterate(steps, steps.start((np.ones(()),)), stop=Below(lambda s: s.distance, 0.0), limit=3)


def test_a_sparse_matrix_of_cupy_is_refused_in_one_sentence(monkeypatch):
    class Sparse:
        shape, dtype = (5, 3), np.dtype(float)

        def __getitem__(self, index):
            raise AssertionError("not read")

    module = SimpleNamespace(issparse=lambda values: isinstance(values, Sparse))
    monkeypatch.setitem(sys.modules, "cupyx.scipy.sparse", module)
    for estimator in (LinearAutoencoder(2), DropoutAutoencoder(2)):
        with pytest.raises(ValueError, match=r"sparse CuPy matrix, .* give X.toarray\(\)"):
            estimator.fit(Sparse())


# Simulations.

SIMULATIONS = [
    ("rag", "nesterov"),
    ("nonuniform_l2", "adam"),
    ("nested_dropout", "nesterov"),
    ("nested_dropout", "adam"),
    ("linear_vae", "adam"),
]


def plan(n_epochs=200, **settings):
    rows = X - X.mean(axis=0)
    values, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    spectrum = Spectrum(values[::-1], vectors[:, ::-1], values.sum())
    return Plan(spectrum, K, n_epochs, rows=rows, init_scale=1e-2, **settings)


@pytest.mark.parametrize(("method", "optimizer"), SIMULATIONS)
def test_a_recorded_simulation_is_the_eager_one(tape, method, optimizer, monkeypatch):
    trajectory, race = (Run(method, optimizer, rate, tied=False) for rate in (0.01, 0.005))
    (replayed,) = simulate([trajectory], plan(60))
    assert (tape.recordings, tape.replays) == (1, 60)
    every = (1, 10, 7)
    raced = [epochs_to_alignment([race], plan(), 0.3, check) for check in every]
    assert tape.recordings == 4
    monkeypatch.undo()
    (eager,) = simulate([trajectory], plan(60))
    for name, series in eager.values.items():
        assert_array_equal(replayed.values[name], series)
    assert_array_equal(replayed.weights.atoms, eager.weights.atoms)
    for check, found in zip(every, raced, strict=True):
        assert_array_equal(found, epochs_to_alignment([race], plan(), 0.3, check))


def test_looks_between_stretches_find_the_epoch_that_a_trajectory_shows():
    run = Run("rag", "nesterov", 0.005, tied=False)
    (full,) = simulate([run], plan(300, record_at=range(301)))
    arrived = np.flatnonzero(full.values["alignment"][::10] <= 0.3)[0] * 10
    assert epochs_to_alignment([run], plan(300), 0.3, 10) == [arrived]


def test_runs_that_leave_a_recorded_crowd_do_not_disturb_the_others(tape):
    runs = [Run("rag", "nesterov", rate, tied=False) for rate in (0.02, 0.002, 50.0, 0.005)]
    together = epochs_to_alignment(runs, plan(1000), 0.3, 10)
    assert tape.recordings > 1, "another shape is recorded anew"
    alone = [epochs_to_alignment([run], plan(1000), 0.3, 10)[0] for run in runs]
    assert_array_equal(together, alone)
    assert np.isnan(together[2])
    assert np.isfinite(together[[0, 1, 3]]).all()


# Random masks that are drawn before steps are recorded.


def test_numbers_drawn_for_many_epochs_are_those_of_each_epoch():
    at_once = PrefixNumbers(uniform_prior(K), np.random.default_rng(3), 60)
    one_by_one = np.random.default_rng(3)
    for _ in range(2):
        numbers, _ = at_once(4, 2)
        assert_array_equal(numbers, [one_by_one.random((2, 60)) for _ in range(4)])
        at_once.prepare(4, 2)


@pytest.mark.parametrize("kind", [UntiedWeights, TiedWeights])
def test_latents_beyond_the_longest_prefix_get_no_gradient_and_need_no_work(kind):
    rng = np.random.default_rng(0)
    k, prior = 100, geometric_prior(100)
    covariance = rows_covariance(rng.standard_normal((60, 120)), np.zeros(120), np.ones(60))
    weights = kind(*rng.standard_normal((len(kind._fields), k, 120)))
    (drawn,), width = PrefixNumbers(prior, np.random.default_rng(1), 60)(1, 1)
    assert 32 <= width < k, "a case in which some latents are out of reach"
    rule = NestedDropoutRule(prior)
    narrow = rule.sampled(weights, covariance, drawn[0], width)
    for found, expected in zip(narrow, rule.sampled(weights, covariance, drawn[0]), strict=True):
        assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
        assert not found[width:].any()


def test_the_width_follows_the_longest_prefix():
    draws = PrefixNumbers(geometric_prior(200), np.random.default_rng(0), 60)
    for length in (1, 31, 32, 33, 64, 150, 200):
        smallest = 1 - 0.9 ** (length - 1)  # the least number that keeps so many latents
        assert length <= draws.width(smallest + 1e-10) <= length + 32
    assert draws.width(1 - 1e-16) == 200


# Recordings themselves.


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
    step = Replay(lambda state: (state[0], (state[1][0] + state[0],)), Tape().record)
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
