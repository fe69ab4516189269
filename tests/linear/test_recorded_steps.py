"""Steps recorded as CUDA graphs give what the steps give; a stand-in plays the device."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import extras
from lucidae import DropoutAutoencoder, LinearAutoencoder
from lucidae.arrays.graphs import Replay, copied, keeper, replayable
from lucidae.linear import Plan, Run, Spectrum, epochs_to_alignment, simulate, simulation, solvers
from tape import Tape

X = np.random.default_rng(2).standard_normal((60, 8)) * np.linspace(3, 0.5, 8)
K = 3


@pytest.fixture
def tape(monkeypatch):
    """Let the steps of all simulations and estimators be recorded."""
    tape = Tape()
    for module in (simulation, solvers):
        monkeypatch.setattr(module, "replayable", lambda step, _: Replay(step, tape.record))
    return tape


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


def test_runs_that_have_ended_do_not_disturb_the_others(tape):
    runs = [Run("rag", "nesterov", rate, tied=False) for rate in (0.02, 0.002, 50.0, 0.005)]
    together = epochs_to_alignment(runs, plan(1000), 0.3, 10)
    assert tape.recordings == 1
    alone = [epochs_to_alignment([run], plan(1000), 0.3, 10)[0] for run in runs]
    assert_array_equal(together, alone)
    assert np.isnan(together[2])
    assert np.isfinite(together[[0, 1, 3]]).all()


@pytest.mark.parametrize("method", ["rag", "brockett", "nonuniform_l2", "linear_vae"])
def test_recorded_steps_of_an_estimator_are_the_eager_ones(tape, method, monkeypatch):
    model = LinearAutoencoder(K, method=method, solver="gradient", tol=0.0, max_iter=50)
    model.set_params(l2=np.linspace(0.1, 0.3, K) if method == "nonuniform_l2" else "auto")
    model.set_params(random_state=0)
    with pytest.warns(ConvergenceWarning):
        replayed = clone(model).fit(X)
    assert (tape.recordings, tape.replays) == (1, 50)
    monkeypatch.undo()
    with pytest.warns(ConvergenceWarning):
        eager = clone(model).fit(X)
    assert_array_equal(replayed.encoder_, eager.encoder_)
    assert_array_equal(replayed.history_["loss"], eager.history_["loss"])


@pytest.mark.parametrize("method", ["rag", "plain", "uniform_l2", "nonuniform_l2", "linear_vae"])
def test_a_step_copies_no_array_from_the_host(method, monkeypatch):
    """Such a copy cannot be recorded: the step would be launched kernel by kernel."""
    torch = extras.require("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        seen = ()

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen += (str(function),)
            return function(*args, **(kwargs or {}))

    names = Names()

    def watched(step, _):
        def watched_step(state):
            with names:
                return step(state)

        return watched_step

    monkeypatch.setattr(solvers, "replayable", watched)
    l2 = np.linspace(0.1, 0.3, K) if method == "nonuniform_l2" else 0.1
    model = LinearAutoencoder(K, method=method, l2=l2, solver="gradient", tol=0.0, max_iter=3)
    with pytest.warns(ConvergenceWarning):
        model.fit(torch.asarray(X))
    assert "aten.mm.default" in names.seen
    assert not [name for name in names.seen if "lift_fresh" in name or "_to_copy" in name]


# Recordings themselves.


def test_a_step_that_cannot_be_recorded_is_made_all_the_same():
    def refused(rehearsal, work):
        raise RuntimeError("operation not permitted when stream is capturing")

    step = Replay(lambda state: (state[0] + 1.0,), refused)
    state = step(step((np.zeros(2),)))
    assert_array_equal(state[0], [2.0, 2.0])


def test_a_recording_reads_inputs_from_its_own_arrays():
    tape = Tape()
    step = Replay(lambda state, given: (state[0] + given,), tape.record)
    state = (np.zeros(2),)
    first = step(state, np.ones(2))
    kept = keeper(step)(first)
    second = step(first, np.full(2, 5.0))
    third = copied(step(second, np.ones(2)))
    assert (tape.recordings, tape.replays) == (1, 3)
    assert second is first is step.own
    assert_array_equal(kept[0], [1.0, 1.0])
    assert_array_equal(third[0], [7.0, 7.0])
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
