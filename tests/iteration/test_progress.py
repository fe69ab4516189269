"""Progress is shown after two seconds to somebody who can see it, and disappears at the end."""

import io
import re
import sys
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
from lucidae.dropout import rank_path
from lucidae.iteration import Below, Progress, ProgressBar, iterate, of_each, progress
from lucidae.iteration.progress import elapsed, is_shown, progress_bars, silenced
from lucidae.sparsity import noise_path, solve_batch, solve_joint

ESTIMATORS = [LinearAutoencoder, DropoutRegressor, DropoutAutoencoder, SparseVAE]
NEVER = Below(lambda state: 1.0, 0.5)


class Terminal(io.StringIO):
    """A terminal that records what is written to it."""

    def isatty(self):
        return True

    @property
    def screen(self):
        """The text on its lines, after carriage returns and moves of the cursor."""
        lines, row, column = {}, 0, 0
        for part in re.findall(r"\r|\n|\x1b\[A|[^\r\n\x1b]+", self.getvalue()):
            if part in ("\r", "\n", "\x1b[A"):
                row += {"\r": 0, "\n": 1}.get(part, -1)
                column = 0
                continue
            line = lines.setdefault(row, [])
            line[column : column + len(part)] = part
            column += len(part)
        return "\n".join("".join(lines[row]).rstrip() for row in sorted(lines)).rstrip()


@pytest.fixture
def tty(monkeypatch):
    found = Terminal()
    # pytest assigns its own sys.stderr after the fixtures
    system = SimpleNamespace(stderr=found, modules=sys.modules)
    monkeypatch.setattr(progress, "sys", system)
    monkeypatch.setenv("TERM", "xterm")
    return found


@pytest.fixture
def at_once(monkeypatch):
    """Show progress at once, and check that no thread and no bar is left behind."""
    for name, value in (("DELAY", 0.0), ("TICK", 0.001), ("TIMED_ENTRIES", 0)):
        monkeypatch.setattr(progress, name, value)
    yield
    assert not clocks()
    assert not progress._bar_class(False)._instances


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


def slow_steps(callbacks, limit=5):
    return iterate(lambda x: x, 1.0, stop=NEVER, limit=limit, callbacks=callbacks)


def test_verbose_decides_and_auto_asks_who_is_watching(tty, monkeypatch):
    assert is_shown("auto")
    for junk in ("yes", None, [1], np.ones(2), 0.5):
        assert not is_shown(junk)
    with silenced():
        assert not is_shown("auto")
        assert not is_shown(True)
    monkeypatch.setenv("TERM", "dumb")
    assert not is_shown("auto")
    for stream in (io.StringIO(), None):
        monkeypatch.setattr(progress.sys, "stderr", stream)
        assert not is_shown("auto")
        assert all(is_shown(loud) for loud in (True, np.True_, 1))
        assert not any(is_shown(silent) for silent in (False, np.False_, 0))
    shell = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert is_shown("auto")
    del shell.kernel  # IPython on a console
    assert not is_shown("auto")


def test_threads_of_n_jobs_are_silent(tty):
    with joblib.parallel_config("threading"):
        assert of_each(is_shown, [("auto",)] * 2, n_jobs=2) == [False, False]


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
    slow_steps([ProgressBar()])
    assert tty.getvalue() == ""
    assert not clocks()


@pytest.mark.parametrize("delay", [-1.0, np.nan, np.inf, "1"])
def test_bad_delays_are_refused(delay):
    with pytest.raises(ValueError, match="delay="):
        ProgressBar(delay=delay)


def test_the_elapsed_time_is_drawn_on_one_line_and_erased(tty, at_once):
    with elapsed("waiting"):
        wait_for(lambda: tty.screen == "waiting: 00:00")
        assert len(clocks()) == 1
        with elapsed("not shown"):
            pass
    assert tty.screen == ""
    assert "\n" not in tty.getvalue()
    assert "not shown" not in tty.getvalue()


def test_a_bar_shows_steps_and_distance_and_serves_again(tty, at_once):
    bar = ProgressBar("[fitting]")
    for n_iter in (0, 10, 40):
        bar(Progress(n_iter, 100, 0.25, 1e-6, None))
        time.sleep(0.12)
    assert re.match(
        r"\[fitting\]:  40%.* 40/100 .*, distance 2.5e-01, tolerance 1.0e-06", tty.screen
    )
    bar.close()
    bar.close()
    assert tty.screen == ""
    for _ in range(2):
        tty.truncate(0)
        slow_steps([bar])
        assert "1/5" in tty.getvalue()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_or_ctrl_c_ends_the_display(tty, at_once, error):
    def fail(_=None):
        raise error

    def interrupted():
        with elapsed("waiting"):
            wait_for(lambda: "waiting" in tty.screen)
            fail()

    with pytest.raises(error):
        interrupted()
    assert tty.screen == ""
    with pytest.raises(error):
        slow_steps([*progress_bars("fitting", "auto"), lambda at: at.n_iter > 3 and fail(at)])
    assert "fitting" in tty.getvalue()
    assert tty.screen == ""


def test_nested_bars_and_the_time_have_a_line_each(tty, at_once):
    seen = []

    def inner(_):
        slow_steps([*progress_bars("inner", "auto"), lambda _: seen.append(tty.screen)])

    with elapsed("outside"):
        wait_for(lambda: "outside" in tty.screen)
        outer = progress_bars("outer", "auto")
        iterate(inner, 1.0, stop=NEVER, limit=3, callbacks=outer)
        fullest = max(seen, key=len).splitlines()
        assert [line.partition(":")[0] for line in fullest] == ["outside", "outer", "inner"]
    assert tty.screen == ""


def test_a_caller_that_draws_a_display_of_its_own_stays_alone(tty, at_once):
    with silenced():
        slow_steps(progress_bars("x", "auto"))
        with elapsed("waiting"):
            time.sleep(0.02)
    assert tty.getvalue() == ""


def test_fits_and_functions_show_their_time_on_a_terminal(tty, at_once, monkeypatch):
    true = progress._show_time

    def wait_until_drawn(description, ended):
        ended.wait()  # the block is finished, and waits for this thread
        answers = iter([False, True])
        true(description, SimpleNamespace(wait=lambda _: next(answers)))

    monkeypatch.setattr(progress, "_show_time", wait_until_drawn)
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
        "second moment": lambda v: SecondMoment.of(X, verbose=v),
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


def test_true_prints_whole_lines_to_a_log(capsys, at_once):
    slow_steps(progress_bars("fitting", True))
    slow_steps(progress_bars("fitting", "auto"))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("|")[0] for line in lines] == [
        f"fitting: {share:3}%" for share in (20, 40, 60, 80, 100)
    ]
    with elapsed("waiting", verbose=True):
        wait_for(lambda: progress._bar_class(False)._instances)
        time.sleep(0.01)
    assert capsys.readouterr().err == "waiting: 00:00\n"


def test_an_iteration_on_a_system_without_threads_has_no_time(tty, at_once, monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with elapsed("waiting"):
        slow_steps(progress_bars("fitting", "auto"))
    assert "fitting" in tty.getvalue()


def test_ctrl_c_while_a_bar_is_drawn_leaves_nothing_behind(tty, at_once, monkeypatch):
    write = tty.write

    def interrupted(text):
        write(text)
        if "fitting" in text:
            raise KeyboardInterrupt

    monkeypatch.setattr(tty, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        slow_steps(progress_bars("fitting", "auto"))
    assert "fitting" in tty.getvalue()
    assert tty.screen == ""


def show_steps(description):
    """Show three steps by a new bar."""
    bar = ProgressBar(description, delay=0.0)
    for n in range(3):
        bar(Progress(n, 10, 1.0, 0.1, None))


def test_a_bar_that_cannot_be_drawn_leaves_others_free(monkeypatch):
    class Broken(io.StringIO):
        def write(self, text):
            raise OSError("the disk is full")

    monkeypatch.setattr("sys.stderr", Broken())
    with pytest.raises(OSError, match="full"):
        show_steps("fitting")
    monkeypatch.setattr("sys.stderr", io.StringIO())
    other = threading.Thread(target=show_steps, args=("solving",), daemon=True)
    other.start()
    other.join(10.0)
    assert not other.is_alive()
