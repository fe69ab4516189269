"""Callbacks: a bar after two seconds, a limit of time, a file from which a killed run goes on."""

import builtins
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from extras import require
from lucidae import progress
from lucidae._arrays import namespace, to_numpy
from lucidae.iterate import Below, Progress, iterate
from lucidae.progress import Checkpoint, ProgressBar, TimeLimit, resume
from lucidae.solution import Status

NEVER = Below(lambda state: 1.0, 0.5)


class Clock:
    """A clock that goes forward by `pace` seconds each time it is read."""

    def __init__(self):
        self.now, self.pace = 0.0, 1.0

    def __call__(self):
        self.now += self.pace
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    return clock


def at(n_iter, state=None, limit=100):
    return Progress(n_iter, limit, 0.25, 1e-6, state)


# The limit of time.


def test_time_is_counted_from_the_first_check_of_each_iteration(clock):
    limit = TimeLimit(3.0)
    for _ in range(2):
        solution = iterate(lambda x: x, 1.0, stop=NEVER, limit=100, callbacks=[limit])
        assert (solution.status, solution.n_iter) == (Status.STOPPED, 3)


@pytest.mark.parametrize("seconds", [-1.0, np.nan, np.inf, "1", None])
def test_bad_times_are_refused(seconds, tmp_path):
    with pytest.raises(ValueError, match="seconds="):
        TimeLimit(seconds)
    with pytest.raises(ValueError, match="every_seconds="):
        Checkpoint(tmp_path / "run.npz", seconds)
    with pytest.raises(ValueError, match="delay="):
        ProgressBar(delay=seconds)


# The bar.


def without_rich(monkeypatch):
    imported = builtins.__import__

    def absent(name, *args, **kwargs):
        if name.startswith("rich"):
            raise ImportError(name)
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)


@pytest.mark.parametrize("rich", [True, False])
def test_plain_lines_come_after_the_delay_and_not_too_often(clock, capsys, monkeypatch, rich):
    if not rich:
        without_rich(monkeypatch)
    bar = ProgressBar("fitting", delay=2.0)
    shown = {}
    clock.pace = 0.0
    for n_iter in range(0, 80, 10):
        bar(at(n_iter))
        shown[n_iter] = capsys.readouterr().err
        clock.now += 1.0
    bar.close()
    assert [n_iter for n_iter, line in shown.items() if line] == [20, 40, 60]
    # Twenty steps took two seconds, so the eighty that are left take eight at most.
    assert shown[20] == (
        "fitting: 20 of at most 100 steps, distance 2.50e-01 of 1.00e-06, at most 0:00:08 left\n"
    )


def test_a_bar_of_rich_is_drawn_on_a_terminal_and_taken_down(clock, monkeypatch):
    console = require("rich.console")
    drawn = []

    class Terminal(console.Console):
        def __init__(self, **settings):
            super().__init__(file=Screen(), force_terminal=True, width=120)

    class Screen:
        def write(self, text):
            drawn.append(text)

        def flush(self):
            pass

    monkeypatch.setattr(console, "Console", Terminal)
    bar = ProgressBar("[fitting]", delay=2.0)
    for n_iter in (0, 10, 20, 30):
        bar(at(n_iter))
    bar._display.bar.refresh()
    assert "[fitting]: 30 of at most 100 steps" in "".join(drawn)
    bar.close()
    assert bar._display is None
    bar.close()


def test_a_quick_iteration_shows_nothing(capsys):
    iterate(lambda x: x / 2, 1.0, stop=Below(abs, 1e-3), limit=99, callbacks=[ProgressBar()])
    assert capsys.readouterr() == ("", "")


def test_a_bar_serves_one_iteration_after_the_other(clock, capsys):
    bar = ProgressBar(delay=4.0)
    for _ in range(2):
        iterate(lambda x: x, 1.0, stop=NEVER, limit=12, callbacks=[bar])
        assert "of at most 12 steps" in capsys.readouterr().err


# The file to go on from.


class Weights(NamedTuple):
    encoder: Any
    decoder: Any


@dataclass(frozen=True)
class Momentum:
    velocity: Any
    rate: float


class State(NamedTuple):
    weights: Weights
    momentum: Momentum
    plain: tuple
    steps: int
    missing: None = None


def first_state(xp):
    return State(
        Weights(xp.ones((2, 3)), xp.ones((3, 2), dtype=xp.float32)),
        Momentum(xp.zeros((2, 3)), 0.1),
        (xp.asarray(1.0), 2.5),
        0,
    )


def heavy_ball(state):
    encoder, decoder = state.weights
    velocity = 0.9 * state.momentum.velocity - state.momentum.rate * encoder
    weights = Weights(encoder + velocity, decoder * 0.99)
    return State(weights, Momentum(velocity, 0.1), state.plain, state.steps + 1)


def leaves(state):
    arrays = (*state.weights, state.momentum.velocity, *state.plain)
    return [to_numpy(a).tobytes() for a in arrays] + [state.momentum.rate, state.steps]


def test_a_run_that_broke_goes_on_with_the_same_numbers(xp, tmp_path):
    path = tmp_path / "deep" / "run.npz"
    settings = {
        "stop": Below(lambda s: xp.max(xp.abs(s.weights.encoder)), 1e-3),
        "limit": 500,
        "check_every": 7,
    }
    whole = iterate(heavy_ball, first_state(xp), **settings)

    def breaks(state):
        if state.steps == 40:
            raise MemoryError
        return heavy_ball(state)

    with pytest.raises(MemoryError):
        iterate(breaks, first_state(xp), callbacks=[Checkpoint(path, 0)], **settings)
    state, first = resume(path, first_state(xp))
    assert first == state.steps == 35
    assert isinstance(state.steps, int)
    assert isinstance(state.momentum, Momentum)
    assert state.weights.decoder.dtype == xp.float32
    assert namespace(state.weights.encoder) is namespace(xp.ones(1))
    resumed = iterate(heavy_ball, state, first=first, **settings)
    assert (resumed.status, resumed.n_iter) == (whole.status, whole.n_iter)
    assert whole.status is Status.CONVERGED
    assert leaves(resumed.value) == leaves(whole.value)
    assert [*path.parent.iterdir()] == [path]


def test_a_killed_process_leaves_a_whole_file(tmp_path):
    path = tmp_path / "run.npz"
    code = f"""
        import numpy as np
        from lucidae.iterate import Below, iterate
        from lucidae.progress import Checkpoint

        def report(progress):
            if progress.n_iter == 20:
                print("running", flush=True)

        start = (np.ones(200_000), 0)
        step = lambda s: (s[0] * 0.999, s[1] + 1)
        iterate(step, start, stop=Below(lambda s: s[0][0], 0.0), limit=10**9,
                callbacks=[Checkpoint({str(path)!r}, 0), report])
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "running\n"
        os.kill(process.pid, signal.SIGKILL)
    state, first = resume(path, (np.empty(200_000), 0))
    assert first == state[1] >= 20
    expected = np.ones(1)
    for _ in range(first):
        expected = expected * 0.999
    assert_array_equal(state[0], np.full(200_000, expected[0]))


def test_without_a_file_a_run_begins_at_the_start(tmp_path):
    start = (np.ones(2),)
    assert resume(tmp_path / "absent.npz", start) == (start, 0)


def test_writing_waits_for_its_time(clock, tmp_path):
    path = tmp_path / "run.npz"
    checkpoint = Checkpoint(path, every_seconds=3)
    written = []
    for n_iter in range(8):
        checkpoint(at(n_iter, (np.ones(1),)))
        written.append(resume(path, (np.ones(1),)).n_iter)
    assert written == [0, 0, 0, 3, 3, 3, 6, 6]


def test_a_divergence_is_never_written(tmp_path):
    path = tmp_path / "run.npz"
    iterate(
        lambda s: (s[0] * 100,),
        (np.ones(1),),
        stop=Below(lambda s: s[0][0], 0.0),
        limit=100,
        callbacks=[Checkpoint(path, 0)],
    )
    state, first = resume(path, (np.ones(1),))
    assert state[0] == 100.0**first <= 1e10


@pytest.mark.parametrize(
    "start",
    [
        (np.ones(3),),
        (np.ones(2, dtype=np.float32),),
        (np.ones(2), 1),
        (),
        (1,),
    ],
    ids=["shape", "type", "more", "nothing", "a number"],
)
def test_a_file_of_another_state_is_refused(tmp_path, start):
    path = tmp_path / "run.npz"
    Checkpoint(path, 0)(at(3, (np.ones(2),)))
    with pytest.raises(ValueError, match="no checkpoint of this iteration"):
        resume(path, start)


@pytest.mark.parametrize("arrays", [{}, {"n_iter": 3}, {"format": 9, "n_iter": 3, "leaf0": [1.0]}])
def test_another_archive_is_refused(tmp_path, arrays):
    path = tmp_path / "run.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match="no checkpoint of this iteration"):
        resume(path, (np.ones(1),))


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "run.npz"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="not a checkpoint"):
        resume(path, (np.ones(1),))


def test_a_state_that_holds_more_than_numbers_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Python objects"):
        Checkpoint(tmp_path / "run.npz", 0)(at(0, (np.random.default_rng(0),)))


def test_public_names_are_all_there():
    assert all(hasattr(progress, name) for name in progress.__all__)
