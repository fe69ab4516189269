"""Progress is shown after two seconds to somebody who can see it: one display, which disappears."""

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
from sklearn.base import clone

import lucidae
from lucidae import (
    DropoutAutoencoder,
    DropoutRegressor,
    LinearAutoencoder,
    SecondMoment,
    SparseVAE,
    certify,
)
from lucidae.data import read_moment
from lucidae.data.kinds import aligned_blocks
from lucidae.dropout import rank_path
from lucidae.iteration import Below, ProgressBar, iterate, of_each, progress_bars, terminal
from lucidae.iteration.terminal import Elapsed, Occupied, is_shown, is_watched
from lucidae.sparsity import noise_path, solve_batch, solve_joint

ESTIMATORS = [LinearAutoencoder, DropoutRegressor, DropoutAutoencoder, SparseVAE]
NEVER = Below(lambda state: 1.0, 0.5)


class Terminal(io.StringIO):
    """A terminal that records what is written to it."""

    def isatty(self):
        return True

    @property
    def screen(self):
        """The text on its last line, after carriage returns."""
        line = []
        for part in self.getvalue().split("\r"):
            line[: len(part)] = part
        return "".join(line).rstrip()


@pytest.fixture
def tty(monkeypatch):
    found = Terminal()
    # pytest assigns its own sys.stderr after the fixtures
    system = SimpleNamespace(stderr=found, modules=sys.modules)
    monkeypatch.setattr(terminal, "sys", system)
    monkeypatch.setenv("TERM", "xterm")
    return found


@pytest.fixture
def at_once(monkeypatch):
    """Show progress at once; the screen of another test, if it were left behind, is an error."""
    for name, value in (("DELAY", 0.0), ("TICK", 0.001), ("TIMED_ENTRIES", 0)):
        monkeypatch.setattr(terminal, name, value)
    monkeypatch.setattr("lucidae.data.passes.DELAY", 0.0)
    monkeypatch.setattr(ProgressBar.__init__, "__defaults__", ("iterating", 0.0))
    assert terminal._SCREEN._bar is terminal._SCREEN._clock is None
    yield
    assert terminal._SCREEN._bar is terminal._SCREEN._clock is None
    assert not clocks()


@pytest.fixture
def plain(monkeypatch):
    """Draw bars of plain characters, as without rich."""
    monkeypatch.setattr(terminal, "_drawn", lambda text, pause: terminal._Rewritten(0.0))


def clocks():
    return [thread for thread in threading.enumerate() if thread.name == "lucidae-elapsed"]


def wait_for(condition):
    end = time.monotonic() + 20.0
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    assert condition()


def rows(n=60, m=5):
    X = np.random.default_rng(0).standard_normal((n, m)) * np.arange(m, 0, -1)
    return X, X[:, :2] + 0.1 * np.random.default_rng(1).standard_normal((n, 2))


def test_somebody_watches_a_terminal_and_a_notebook_alone(tty, monkeypatch):
    assert is_watched()
    monkeypatch.setenv("TERM", "dumb")
    assert not is_watched()
    monkeypatch.setattr(terminal.sys, "stderr", io.StringIO())
    assert not is_watched()
    monkeypatch.setattr(terminal.sys, "stderr", None)
    assert not is_watched()
    shell = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert is_watched()
    del shell.kernel  # IPython on a console
    assert not is_watched()


def test_verbose_decides_and_auto_asks_who_is_watching(tty, monkeypatch):
    assert is_shown("auto")
    for junk in ("yes", None, [1], np.ones(2), 0.5):
        assert not is_shown(junk)
    monkeypatch.setattr(terminal.sys, "stderr", io.StringIO())
    assert not is_shown("auto")
    for loud in (True, np.True_, 1):
        assert is_shown(loud)
    for silent in (False, np.False_, 0):
        assert not is_shown(silent)


def test_threads_and_processes_of_n_jobs_are_silent(tty):
    with joblib.parallel_config("threading"):
        assert of_each(is_shown, [("auto",)] * 2, n_jobs=2) == [False, False]
    assert of_each(_is_shown_on_a_terminal, [()] * 2, n_jobs=2) == [False, False]


def _is_shown_on_a_terminal():
    sys.stderr = Terminal()
    return is_shown("auto")


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_auto_is_the_default_which_is_cloned_and_saved(kind, tmp_path):
    assert kind().verbose == clone(kind()).get_params()["verbose"] == "auto"
    X, y = rows()
    for verbose in ("auto", False, True):
        model = kind(verbose=verbose).fit(X, y)
        lucidae.save(model, tmp_path / "model.npz")
        assert lucidae.load(tmp_path / "model.npz").verbose == verbose


def test_nothing_is_shown_within_two_seconds(tty):
    X, y = rows(3000, 40)
    for model in (LinearAutoencoder(2), DropoutRegressor(2), DropoutAutoencoder(2)):
        model.fit(X, y).certificate_  # noqa: B018
    LinearAutoencoder(2).fit(iter([X, X]))
    assert tty.getvalue() == ""
    assert not clocks()


def test_the_elapsed_time_is_drawn_on_one_line_and_erased(tty, at_once):
    with Elapsed("waiting"):
        wait_for(lambda: tty.screen == "waiting: 0:00:00")
        assert len(clocks()) == 1
    assert tty.screen == ""
    assert "\n" not in tty.getvalue()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_or_ctrl_c_ends_the_display(tty, at_once, plain, error):
    def fail(_=None):
        raise error

    def interrupted():
        with Elapsed("waiting"):
            wait_for(lambda: "waiting" in tty.screen)
            fail()

    with pytest.raises(error):
        interrupted()
    assert tty.screen == ""
    callbacks = [*progress_bars("fitting", "auto"), lambda at: at.n_iter > 5 and fail(at)]
    with pytest.raises(error):
        iterate(lambda x: x, 1.0, stop=NEVER, limit=9, callbacks=callbacks)
    assert "fitting" in tty.getvalue()
    assert tty.screen == ""


def test_a_bar_replaces_the_time_and_gives_its_place_back(tty, at_once, plain):
    with Elapsed("outside"):
        wait_for(lambda: "outside" in tty.screen)
        (bar,) = progress_bars("inside", "auto")
        with Elapsed("not shown"):
            for n_iter in range(3):
                bar(SimpleNamespace(n_iter=n_iter, limit=2, distance=1.0, tolerance=0.1))
            assert tty.screen.startswith(f"[{'#' * 20}] inside: 2 of at most 2 steps")
            assert "outside" not in tty.screen
        bar.close()
        wait_for(lambda: tty.screen.startswith("outside"))
    assert "not shown" not in tty.getvalue()


def test_of_nested_bars_the_outer_one_is_shown(tty, at_once, plain):
    def inner(x):
        return iterate(
            lambda x: x, x, stop=NEVER, limit=3, callbacks=progress_bars("inner", "auto")
        ).value

    iterate(inner, 1.0, stop=NEVER, limit=5, callbacks=progress_bars("outer", "auto"))
    drawn = [part for part in tty.getvalue().split("\r") if "er: " in part]
    first = next(i for i, part in enumerate(drawn) if "outer" in part)
    assert all("outer" in part for part in drawn[first:])
    assert "outer: 5 of at most 5 steps" in drawn[-1]


def test_a_caller_that_draws_a_display_of_its_own_stays_alone(tty, at_once, plain):
    with Occupied():
        iterate(lambda x: x, 1.0, stop=NEVER, limit=5, callbacks=progress_bars("x", "auto"))
        with Elapsed("waiting"):
            time.sleep(0.02)
    assert tty.getvalue() == ""


def test_a_long_line_is_cut_to_the_width_of_the_terminal(tty):
    line = terminal._Rewritten(0.0)
    line.show("x" * 300, 0, None)
    assert tty.screen == "x" * 79
    line.show("short", 1, 4)
    assert tty.screen == "[#####---------------] short"
    line.close()
    assert tty.screen == ""


def test_a_pass_over_blocks_shows_rows_per_second_and_the_time_left(tty, at_once, plain):
    X, _ = rows(4000, 5)
    blocks = aligned_blocks(X[i : i + 1000] for i in range(0, 4000, 1000))
    read_moment(blocks)
    assert "reading rows: 4000 rows" in tty.getvalue()
    assert "rows per second" in tty.getvalue()
    assert tty.screen == ""


def test_fits_and_functions_show_their_time_on_a_terminal(tty, at_once, monkeypatch):
    leave = Elapsed.__exit__

    def leave_when_drawn(self, *error):
        wait_for(lambda: self._thread is None or self._display is not None)
        leave(self, *error)

    monkeypatch.setattr(Elapsed, "__exit__", leave_when_drawn)
    X, y = rows(200, 300)
    calls = {
        "fitting LinearAutoencoder": lambda v: LinearAutoencoder(2, verbose=v).fit(X),
        "fitting DropoutRegressor": lambda v: DropoutRegressor(2, verbose=v).fit(X, y),
        "fitting SparseVAE": lambda v: SparseVAE(noise_variance=1.0, verbose=v).fit(X, y),
        "certificate": lambda v: certify(LinearAutoencoder(2, verbose=v).fit(X), X),
        "solving 3 sparse problems": lambda v: solve_batch(
            X[None, :, :40].repeat(3, 0), y[None].repeat(3, 0), noise_variance=1.0, verbose=v
        ),
        "solving 2 joint sparse problems": lambda v: solve_joint(
            [X[:, :40]] * 2, [y, y], noise_variance=1.0, verbose=v
        ),
        "noise_path": lambda v: noise_path(X[:, :40], y, [1.0], cv=False, verbose=v),
        "rank_path": lambda v: rank_path(X[:, :40], y, verbose=v),
    }
    for text, call in calls.items():
        call("auto")
        assert text in tty.getvalue(), text
        tty.truncate(0)
        tty.seek(0)
        call(False)
        assert tty.getvalue() == "", text


@pytest.mark.parametrize("call", [
    lambda X, y, v: solve_batch(X[None], y[None], noise_variance=1.0, verbose=v),
    lambda X, y, v: solve_joint([X], [y], noise_variance=1.0, verbose=v),
    lambda X, y, v: rank_path(X, y, verbose=v),
    lambda X, y, v: SecondMoment.of(X, verbose=v),
    lambda X, y, v: noise_path(X, y, [1.0], cv=False, verbose=v),
])  # fmt: skip
def test_other_values_are_refused(call):
    with pytest.raises(ValueError, match=r"verbose='loud' was given, expected .* or 'auto'"):
        call(*rows(), "loud")


def test_true_prints_the_time_to_a_log(capsys, at_once, monkeypatch):
    with Elapsed("waiting", verbose=True):
        wait_for(lambda: terminal._SCREEN._clock._display is not None)
        time.sleep(0.01)
    assert capsys.readouterr().err == "waiting: 0:00:00\n"


def test_single_values_of_a_backend_without_generators_are_shown_at_the_end(capsys):
    bars = [ProgressBar("folds", delay=0.0)]
    with joblib.parallel_config("multiprocessing"):
        assert of_each(divmod, [(7, 2), (8, 2)], n_jobs=2, callbacks=bars) == [(3, 1), (4, 0)]


SCRIPT = """
    import json, sys, threading, time
    import numpy as np
    from lucidae import LinearAutoencoder
    from lucidae.iteration import terminal
    terminal.DELAY, terminal.TICK = 0.05, 0.05

    def batches():
        for _ in range(400):
            time.sleep(0.05)
            yield np.random.default_rng(0).standard_normal((1000, 20))

    try:
        LinearAutoencoder(2).fit(batches())
    except KeyboardInterrupt as stop:
        print(json.dumps([type(stop).__name__, threading.active_count()]))
"""


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="this system has no pseudo-terminals")
def test_ctrl_c_on_a_real_terminal_erases_the_line_and_shows_the_cursor():
    outer, inner = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        stdout=subprocess.PIPE, stderr=inner, stdin=subprocess.DEVNULL,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(inner)
    shown = b""
    try:
        while b"fitting LinearAutoencoder" not in shown:
            shown += os.read(outer, 4096)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        while True:
            try:
                more = os.read(outer, 4096)
            except OSError:
                break
            if not more:
                break
            shown += more
    finally:
        process.kill()
        process.wait()
        os.close(outer)
    raised, threads = json.loads(out)
    assert raised in ("KeyboardInterrupt", "ReadInterrupted")  # before or after the first block
    assert threads == 1
    assert shown.count(b"\x1b[?25l") == shown.count(b"\x1b[?25h")  # hidden as often as shown
    assert shown.endswith(b" \r") or b"\x1b[2K" in shown
