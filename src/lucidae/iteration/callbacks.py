"""A callback of the iteration loop that shows a progress bar."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

from lucidae.iteration.loop import Progress
from lucidae.validation import check_number

__all__ = ["ProgressBar"]


class ProgressBar:
    """Callback that shows the progress of an iteration and the longest time it may still take.

    Nothing is shown for an iteration that ends within `delay` seconds. If the package rich is
    installed and standard error is a terminal, a bar is shown; otherwise a line is printed on
    standard error every `delay` seconds.

    Parameters
    ----------
    description : str, default="iterating"
        Text at the beginning of the bar or line.
    delay : float, default=2.0
        Seconds before anything is shown, and between two printed lines.

    Examples
    --------
    >>> from lucidae.iteration.loop import Below, iterate
    >>> solution = iterate(
    ...     lambda x: x / 2, 1.0, stop=Below(abs, 1e-3), limit=100, callbacks=[ProgressBar()])
    >>> solution.n_iter
    10
    """

    def __init__(self, description: str = "iterating", delay: float = 2.0) -> None:
        self.description = description
        self.delay = check_number(delay, "delay", low=0.0)
        self._begun: tuple[float, int] | None = None
        self._display: ProgressDisplay | None = None

    def __call__(self, progress: Progress) -> None:
        """Show `progress` if the iteration has already run for `delay` seconds."""
        now = time.monotonic()
        if self._begun is None:
            self._begun = (now, progress.n_iter)
        start, first = self._begun
        if now - start < self.delay or progress.n_iter == first:
            return
        if self._display is None:
            self._display = display(self.description, self.delay)
        pace = (now - start) / (progress.n_iter - first)
        line = _line(self.description, progress, pace * (progress.limit - progress.n_iter))
        self._display.show(line, progress.n_iter, progress.limit)

    def close(self) -> None:
        """Remove the bar; the callback can then be used for another iteration."""
        if self._display is not None:
            self._display.close()
        self._begun = self._display = None


class ProgressDisplay(Protocol):
    """Interface of what shows progress: a bar on a terminal, or printed lines."""

    def show(self, line: str, completed: int, total: int | None) -> None:
        """Show a line, and a bar of `completed` parts of `total` (None if it is not known)."""

    def close(self) -> None:
        """Remove the bar."""


def display(description: str, pause: float) -> ProgressDisplay:
    """Return a bar of rich if standard error is a terminal, else lines every `pause` seconds."""
    try:
        from rich.console import Console
    except ImportError:
        return _Lines(pause)
    console = Console(stderr=True)
    return _Bar(description, console) if console.is_terminal else _Lines(pause)


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


def _line(description: str, progress: Progress, seconds_left: float) -> str:
    """Return a line on the steps, the distance to optimality and the time left of an iteration."""
    return (
        f"{description}: {progress.n_iter} of at most {progress.limit} steps, distance to "
        f"optimality {progress.distance:.2e} (tolerance {progress.tolerance:.2e}), "
        f"at most {time_left(seconds_left)} left"
    )


def time_left(seconds: float) -> str:
    """Return a number of seconds as text in hours, minutes and seconds.

    Examples
    --------
    >>> time_left(3723.4)
    '1:02:03'
    """
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}"
