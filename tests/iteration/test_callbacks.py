"""The progress bar: shown after two seconds, as a bar of rich or as plain lines."""

import builtins

import numpy as np
import pytest

from extras import require
from lucidae.iteration import Below, Progress, iterate
from lucidae.iteration.callbacks import ProgressBar

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


@pytest.mark.parametrize("delay", [-1.0, np.nan, np.inf, "1", None])
def test_bad_delays_are_refused(delay):
    with pytest.raises(ValueError, match="delay="):
        ProgressBar(delay=delay)


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
        "fitting: 20 of at most 100 steps, distance to optimality 2.50e-01 "
        "(tolerance 1.00e-06), "
        "at most 0:00:08 left\n"
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
    bar._display.drawn.bar.refresh()
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
