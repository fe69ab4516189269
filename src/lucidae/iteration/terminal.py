"""Displays of progress on a terminal or in a notebook, and the decision whether to show them."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import wraps
from math import prod
from numbers import Integral
from typing import Any, Protocol, Self, TypeVar

import numpy as np

__all__ = [
    "DELAY",
    "TIMED_FEATURES",
    "Elapsed",
    "Occupied",
    "ProgressDisplay",
    "display",
    "elapsed_on",
    "is_shown",
    "is_watched",
    "time_left",
    "timed_fit",
]

DELAY = 2.0
"""Seconds before any progress is shown, and between two lines that are printed to a log."""

TICK = 0.5
"""Seconds between two updates of the elapsed time."""

LOG_PAUSE = 10.0
"""Seconds between two lines with the elapsed time, where lines cannot be written over."""

TIMED_ENTRIES = 2**18
"""Number of entries of an array X below which `elapsed_on` starts no thread.

A smaller fit either ends long before the delay or iterates, which has its own progress bar. The
start of a thread, about 0.1 ms, would be a noticeable part of its time."""

TIMED_FEATURES = 256
"""Number of features below which solutions and certificates from a second moment are not timed."""

Method = TypeVar("Method", bound=Callable[..., Any])


def is_shown(verbose: Any) -> bool:
    """Return whether an argument `verbose` asks for progress to be shown, here and now.

    ``"auto"`` does if somebody can see it (`is_watched`). Values that `check_verbose` refuses do
    not, because this function is also called before arguments are checked.
    """
    if isinstance(verbose, str):
        return verbose == "auto" and is_watched()
    return isinstance(verbose, bool | np.bool_ | Integral) and bool(verbose)


def is_watched() -> bool:
    """Return whether standard error is a terminal or belongs to a notebook.

    Other processes than the first one and other threads than the main one, in which `n_jobs` may
    run this function, are not watched: their displays would overwrite each other.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if multiprocessing.parent_process() is not None or multiprocessing.current_process().daemon:
        return False
    return _on_terminal() or _in_notebook()


def _on_terminal() -> bool:
    """Return whether standard error is a terminal on which a line can be written over."""
    try:
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # None in programs without a console, or a closed file
        return False


def _in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = getattr(ipython, "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class ProgressDisplay(Protocol):
    """Interface of what shows progress: a bar on a terminal, or printed lines."""

    def show(self, line: str, completed: int, total: int | None) -> None:
        """Show a line, and a bar of `completed` parts of `total` (None if it is not known)."""

    def close(self) -> None:
        """Remove the bar."""


def display(description: str, pause: float) -> ProgressDisplay:
    """Return a display for the progress of one task, which is drawn while there is no other one.

    On a terminal it is a bar of rich, or of plain characters if rich is not installed, and in a
    notebook a line; both disappear at the end. Elsewhere lines are printed every `pause` seconds.
    """
    return _Turn(lambda: _drawn(description, pause))


def _drawn(description: str, pause: float) -> ProgressDisplay:
    if _in_notebook():
        return _Rewritten()
    try:
        from rich.console import Console
    except ImportError:
        return _Rewritten() if _on_terminal() else _Lines(pause)
    console = Console(stderr=True)
    return _Bar(description, console) if console.is_terminal else _Lines(pause)


class _Screen:
    """The place where progress is shown: at most one display at a time, of all threads.

    The elapsed time of a function is shown only while no bar is, which says more.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all displays."""
        self.lock = threading.RLock()
        self._bar: object | None = None
        self._clock: Elapsed | None = None

    def take(self, bar: object) -> bool:
        """Return whether `bar` is drawn now: it is if there was no other bar."""
        with self.lock:
            if self._bar is None:
                self._bar = bar
                if self._clock is not None:
                    self._clock.erase()
            return self._bar is bar

    def leave(self, bar: object) -> None:
        """Let another bar be drawn after `bar`."""
        with self.lock:
            if self._bar is bar:
                self._bar = None

    def start(self, clock: Elapsed) -> bool:
        """Return whether `clock` shows the elapsed time: the clock of the outermost call does."""
        with self.lock:
            if self._clock is None:
                self._clock = clock
            return self._clock is clock

    def stop(self, clock: Elapsed) -> None:
        """Let a later call show its elapsed time after `clock`."""
        with self.lock:
            if self._clock is clock:
                self._clock = None

    def tick(self, clock: Elapsed) -> None:
        """Draw the elapsed time, unless a bar is shown."""
        with self.lock:
            if self._bar is None:
                clock.draw()


_SCREEN = _Screen()
_NOTHING = nullcontext()
if hasattr(os, "register_at_fork"):  # the thread that holds the lock does not exist in the child
    os.register_at_fork(after_in_child=_SCREEN.reset)


class Occupied:
    """Context manager in which other progress bars are not drawn, because the caller draws one."""

    def __enter__(self) -> Self:
        _SCREEN.take(self)
        return self

    def __exit__(self, *error: object) -> None:
        _SCREEN.leave(self)


class _Turn:
    """Display that is made and drawn as soon as no other bar is shown."""

    def __init__(self, make: Callable[[], ProgressDisplay]) -> None:
        self._make = make
        self._closed = False
        self.drawn: Any = None

    def show(self, line: str, completed: int, total: int | None) -> None:
        with _SCREEN.lock:  # several threads of Dask may report progress at the same time
            if self._closed or not _SCREEN.take(self):
                return
            if self.drawn is None:
                self.drawn = self._make()
            self.drawn.show(line, completed, total)

    def close(self) -> None:
        self._closed = True
        try:
            if self.drawn is not None:
                self.drawn.close()
        finally:
            _SCREEN.leave(self)


class _Lines:
    """Display that prints lines on standard error, at most one every `pause` seconds."""

    def __init__(self, pause: float) -> None:
        self.pause = pause
        self.due = 0.0

    def show(self, line: str, completed: int, total: int | None) -> None:  # noqa: ARG002
        now = time.monotonic()
        if now < self.due:
            return
        self.due = now + self.pause
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Do nothing, because printed lines stay visible."""


class _Rewritten:
    """Display of one line on standard error, which is written over and erased at the end.

    It needs carriage returns alone, so that it works in notebooks and on every terminal.
    """

    def __init__(self, pause: float = 0.1) -> None:
        self._stream, self._pause = sys.stderr, pause
        self._length, self._due = 0, 0.0

    def show(self, line: str, completed: int, total: int | None) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + self._pause
        if total:
            filled = round(20 * min(completed / total, 1.0))
            line = f"[{'#' * filled}{'-' * (20 - filled)}] {line}"
        line = line[: _columns(self._stream) - 1]  # a longer line could not be erased
        self._stream.write("\r" + line.ljust(self._length))
        self._stream.flush()
        self._length = len(line)

    def close(self) -> None:
        if self._length:
            self._stream.write("\r" + " " * self._length + "\r")
            self._stream.flush()
        self._length, self._due = 0, 0.0


def _columns(stream: Any) -> int:
    """Return the number of characters in a line of the terminal to which `stream` writes."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (AttributeError, OSError, ValueError):  # a notebook, or a stream without a file
        return 80


class _Bar:
    """Display that shows a progress bar of rich on standard error; it disappears at the end."""

    def __init__(self, description: str, console: Any) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        text = TextColumn("{task.description}", markup=False)
        self.bar = RichProgress(text, BarColumn(), console=console, transient=True)
        self.task = self.bar.add_task(description)
        self.bar.start()

    def show(self, line: str, completed: int, total: int | None) -> None:
        self.bar.update(self.task, total=total, completed=completed, description=line)

    def close(self) -> None:
        self.bar.stop()


class Elapsed:
    """Context manager that shows the elapsed time of its block, from the third second on.

    It is for computations whose length is not known, such as an eigendecomposition. A thread of its
    own draws the line, because the computation does not return before its end; the thread ends with
    the block. While a progress bar is shown the line is not, and inside of another `Elapsed`
    nothing is done.
    """

    def __init__(self, description: str, verbose: Any = "auto") -> None:
        self.description = description
        self.verbose = verbose
        self._thread: threading.Thread | None = None
        self._display: ProgressDisplay | None = None

    def __enter__(self) -> Self:
        if not is_shown(self.verbose) or not _SCREEN.start(self):
            return self
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lucidae-elapsed", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._thread is None:
            return
        try:
            self._ended.set()
            self._thread.join()
        finally:
            self._thread = None
            _SCREEN.stop(self)

    def _run(self) -> None:
        wait = DELAY
        try:
            while not self._ended.wait(wait):
                wait = TICK
                _SCREEN.tick(self)
        finally:
            self.erase()

    def draw(self) -> None:
        """Draw the line with the time since the beginning of the block."""
        if self._display is None:
            rewritten = _on_terminal() or _in_notebook()
            self._display = _Rewritten() if rewritten else _Lines(LOG_PAUSE)
        seconds = time.monotonic() - self._began
        self._display.show(f"{self.description}: {time_left(seconds)}", 0, None)

    def erase(self) -> None:
        """Remove the line; it may be drawn again."""
        if self._display is not None:
            self._display.close()


def timed_fit(method: Method) -> Method:
    """Let a method of an estimator that is fitted to data show its elapsed time.

    The first argument of the method are the data. The estimator's parameter `verbose` decides, as
    in `Elapsed`.
    """

    @wraps(method)
    def timed(self: Any, *arguments: Any, **named: Any) -> Any:
        data = next(iter((*arguments, *named.values())), None)
        verbose = getattr(self, "verbose", "auto")
        with elapsed_on(data, f"fitting {type(self).__name__}", verbose):
            return method(self, *arguments, **named)

    return timed  # type: ignore[return-value]


def elapsed_on(X: Any, description: str, verbose: Any) -> AbstractContextManager[Any]:
    """Return an `Elapsed` for a computation with data X; it does nothing if X is a small array."""
    shape: Any = None
    with suppress(Exception):  # datasets of closed files raise errors of several types
        shape = getattr(X, "shape", None)
    known = isinstance(shape, tuple) and all(isinstance(size, int) for size in shape)
    if known and prod(shape) < TIMED_ENTRIES:  # the lengths of Dask collections may be unknown
        return _NOTHING
    return Elapsed(description, verbose)


def time_left(seconds: float) -> str:
    """Return a number of seconds as text in hours, minutes and seconds."""
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}"
