"""Progress bars of tqdm on a terminal or in a notebook, and the decision whether to show them.

Nothing is shown within the first two seconds, and tqdm is imported only after them.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import cache
from math import prod
from numbers import Integral
from typing import Any, TypeVar

import numpy as np

from lucidae.arrays.threads import fork_safe
from lucidae.iteration.loop import Progress
from lucidae.validation import check_number

DELAY = 2.0
"""Seconds before any progress is shown, and between two lines of a bar in a log."""

TICK = 0.5
"""Seconds between two updates of the elapsed time."""

LOG_PAUSE = 10.0
"""Seconds between two lines with the elapsed time in a log."""

TIMED_ENTRIES = 2**18
"""Number of entries of an array X below which `elapsed_on` starts no thread.

A smaller fit either ends long before the delay or iterates, which has its own progress bar. The
start of a thread, about 0.1 ms, would be a noticeable part of its time."""

TIMED_FEATURES = 256
"""Number of features below which solutions and certificates from a second moment are not timed."""

Method = TypeVar("Method", bound=Callable[..., Any])

_SILENCED = ContextVar("silenced", default=False)
_CLOCKS: list[threading.Thread] = []
_LOCK = fork_safe(threading.RLock())


def is_shown(verbose: Any) -> bool:
    """Return whether an argument `verbose` asks for progress to be shown, here and now.

    With "auto" it is if standard error is a terminal or belongs to a notebook, but not in other
    processes than the first one or other threads than the main one, in which `n_jobs` may run this
    function: nobody has asked for a bar of each of them. Values that `check_argument` refuses show
    nothing, because this function is also called before arguments are checked.
    """
    if _SILENCED.get():
        return False
    if not isinstance(verbose, str):
        return isinstance(verbose, bool | np.bool_ | Integral) and bool(verbose)
    in_main_thread = threading.current_thread() is threading.main_thread()
    is_child = multiprocessing.parent_process() or multiprocessing.current_process().daemon
    return verbose == "auto" and in_main_thread and not is_child and bool(_screen())


@contextmanager
def silenced() -> Iterator[None]:
    """Show nothing in a ``with`` block, because the caller draws a display of its own."""
    token = _SILENCED.set(True)
    try:
        yield
    finally:
        _SILENCED.reset(token)


def _screen() -> str:
    """Return "terminal" or "notebook" if a line on standard error can be written over, else ""."""
    ipython = sys.modules.get("IPython")
    shell = getattr(ipython, "get_ipython", lambda: None)()
    if hasattr(shell, "kernel"):
        return "notebook"
    try:
        on_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # None in programs without a console, or a closed file
        on_terminal = False
    return "terminal" if on_terminal else ""


@cache
def _bar_class(in_notebook: bool) -> Any:
    """Return the class of bars: tqdm's widget where a notebook can show it, or tqdm's line."""
    from tqdm import notebook, std

    kind = notebook.tqdm if in_notebook and notebook.IProgress is not None else std.tqdm

    class Bar(kind):  # type: ignore[misc, valid-type]
        monitor_interval = 0  # no thread: every update looks at the clock (miniters=1)

        def __init__(self, **settings: Any) -> None:
            try:
                super().__init__(**settings)
            except BaseException:  # Ctrl-C while it was drawn
                with suppress(Exception):
                    self.display(" " * len(str(self)))
                    self.clear()
                    self.close()
                raise

        def close(self) -> None:
            """Remove the bar; in a notebook, tqdm would keep one that is not complete."""
            self.total = None
            super().close()

        # tqdm's own two methods do not release the lock if drawing is interrupted by an exception.
        def refresh(self, nolock: bool = False, lock_args: Any = None) -> Any:  # noqa: ARG002
            """Draw the bar again."""
            with nullcontext() if nolock else _LOCK:
                return super().refresh(nolock=True)

        def clear(self, nolock: bool = False) -> None:
            """Erase the bar."""
            with nullcontext() if nolock else _LOCK:
                super().clear(nolock=True)

        def display(self, msg: str | None = None, *arguments: Any, **named: Any) -> Any:
            """Draw the bar; in a log, print it as a line of its own."""
            if _screen():
                return super().display(msg, *arguments, **named)
            if msg != "":  # by which tqdm erases a line
                print(self if msg is None else msg, file=sys.stderr, flush=True)
            return True

    # tqdm's default is a lock for all processes, which a forked one would inherit locked.
    Bar.set_lock(_LOCK)
    return Bar


def _new_bar(description: str, **settings: Any) -> Any:
    """Return a bar of tqdm, already drawn."""
    screen = _screen()
    return _bar_class(screen == "notebook")(
        desc=description,
        file=sys.stderr,
        leave=False,
        position=None if screen else 1,  # tqdm ends the bar at position 0 by a carriage return
        dynamic_ncols=bool(screen),
        mininterval=0.1 if screen else DELAY,
        miniters=1,
        smoothing=0.0,
        **settings,
    )


class CountedBar:
    """A progress bar of counted things, which appears `delay` seconds after it began."""

    def __init__(
        self, description: str, unit: str, *, delay: float | None = None, began: float | None = None
    ) -> None:
        self.description, self.unit = description, unit
        self.delay = DELAY if delay is None else delay
        self._began = began
        self._bar: Any = None

    def show(self, count: int, total: int | None = None, remark: str = "") -> None:
        """Show that `count` things of `total` (None if it is not known) are finished."""
        with _LOCK:  # several threads of Dask may report progress at the same time
            now = time.monotonic()
            if self._began is None:
                self._began = now
            elif now - self._began < self.delay:
                return
            elif self._bar is None:
                settings: dict[str, Any] = {"unit": f" {self.unit}", "postfix": remark or None}
                self._bar = _new_bar(self.description, total=total, initial=count, **settings)
            else:
                self._bar.set_postfix_str(remark, refresh=False)
                self._bar.update(count - self._bar.n)

    def close(self) -> None:
        """Remove the bar, which may be used again."""
        if self._bar is not None:
            self._bar.close()
        self._bar = self._began = None


class ProgressBar(CountedBar):
    """Callback that shows the progress of an iteration, as a bar of tqdm.

    Nothing is shown for an iteration that ends within `delay` seconds. On a terminal and in a
    notebook the bar disappears at the end. Otherwise a line is printed on standard error every two
    seconds.

    Parameters
    ----------
    description : str, default="iterating"
        Text at the beginning of the bar.
    delay : float, default=2.0
        Seconds before anything is shown.

    Examples
    --------
    >>> from lucidae.iteration.loop import Below, iterate
    >>> solution = iterate(
    ...     lambda x: x / 2, 1.0, stop=Below(abs, 1e-3), limit=100, callbacks=[ProgressBar()])
    >>> solution.n_iter
    10
    """

    def __init__(self, description: str = "iterating", delay: float | None = None) -> None:
        delay = None if delay is None else check_number(delay, "delay", low=0.0)
        super().__init__(description, "steps", delay=delay)

    def __call__(self, progress: Progress) -> None:
        """Show `progress` if the iteration has already run for `delay` seconds."""
        remark = f"distance {progress.distance:.1e}, tolerance {progress.tolerance:.1e}"
        self.show(progress.n_iter, progress.limit, remark)


def progress_bars(description: str, verbose: Any) -> tuple[ProgressBar, ...]:
    """Return callbacks for the iteration loop: a progress bar, or none if nothing is to be shown.

    Parameters
    ----------
    description : str
        Text at the beginning of the bar.
    verbose : bool or "auto"
        Whether to show the progress: always, never, or if standard error is a terminal or belongs
        to a notebook.

    Returns
    -------
    tuple of ProgressBar
        One callback or none.

    Examples
    --------
    >>> progress_bars("fitting", verbose=False)
    ()
    """
    return (ProgressBar(description),) if is_shown(verbose) else ()


@contextmanager
def elapsed(description: str, verbose: Any = "auto") -> Iterator[None]:
    """Show the elapsed time of a ``with`` block, from the third second on.

    It is for computations whose length is not known, such as an eigendecomposition. A thread of its
    own draws the line, because the computation does not return before its end; the thread ends with
    the block. Inside of another such block nothing is done. If `verbose` asks for silence,
    nothing is shown inside of the block either.
    """
    if not is_shown(verbose):
        with silenced():
            yield
        return
    if _CLOCKS:
        yield
        return
    ended = threading.Event()
    clock = threading.Thread(
        target=_show_time, args=(description, ended), name="lucidae-elapsed", daemon=True
    )
    _CLOCKS.append(clock)
    try:
        with suppress(RuntimeError):  # systems without threads, such as WebAssembly
            clock.start()
        yield
    finally:
        _CLOCKS.clear()
        ended.set()
        if clock.is_alive():
            clock.join()


def _show_time(description: str, ended: threading.Event) -> None:
    if ended.wait(DELAY):
        return
    with _new_bar(description, bar_format="{desc}: {elapsed}") as bar:
        bar.start_t -= DELAY
        while not ended.wait(TICK if _screen() else LOG_PAUSE):
            bar.refresh()


def elapsed_on(X: Any, description: str, verbose: Any) -> AbstractContextManager[None]:
    """Return `elapsed` for a computation with data X; nothing is shown if X is a small array."""
    shape: Any = None
    with suppress(Exception):  # datasets of closed files raise errors of several types
        shape = getattr(X, "shape", None)
    known = isinstance(shape, tuple) and all(isinstance(size, int) for size in shape)
    if known and prod(shape) < TIMED_ENTRIES:  # the lengths of Dask collections may be unknown
        return nullcontext()
    return elapsed(description, verbose)
