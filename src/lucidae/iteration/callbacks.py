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
        self._display: _Display | None = None

    def __call__(self, progress: Progress) -> None:
        """Show `progress` if the iteration has already run for `delay` seconds."""
        now = time.monotonic()
        if self._begun is None:
            self._begun = (now, progress.n_iter)
        start, first = self._begun
        if now - start < self.delay or progress.n_iter == first:
            return
        if self._display is None:
            self._display = _display(self.description, self.delay)
        pace = (now - start) / (progress.n_iter - first)
        self._display.show(progress, pace * (progress.limit - progress.n_iter))

    def close(self) -> None:
        """Remove the bar; the callback can then be used for another iteration."""
        if self._display is not None:
            self._display.close()
        self._begun = self._display = None


class _Display(Protocol):
    def show(self, progress: Progress, seconds_left: float) -> None: ...

    def close(self) -> None: ...


def _display(description: str, pause: float) -> _Display:
    try:
        from rich.console import Console
    except ImportError:
        return _Lines(description, pause)
    console = Console(stderr=True)
    return _Bar(description, console) if console.is_terminal else _Lines(description, pause)


class _Lines:
    """Display that prints lines on standard error, at most one every `pause` seconds."""

    def __init__(self, description: str, pause: float) -> None:
        self.description = description
        self.pause = pause
        self.due = 0.0

    def show(self, progress: Progress, seconds_left: float) -> None:
        now = time.monotonic()
        if now < self.due:
            return
        self.due = now + self.pause
        print(_line(self.description, progress, seconds_left), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Do nothing, because printed lines stay visible."""


class _Bar:
    """Display that shows a progress bar of rich on standard error; it disappears at the end."""

    def __init__(self, description: str, console: Any) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self.description = description
        text = TextColumn("{task.description}", markup=False)
        self.bar = RichProgress(text, BarColumn(), console=console, transient=True)
        self.task = self.bar.add_task(description)
        self.bar.start()

    def show(self, progress: Progress, seconds_left: float) -> None:
        self.bar.update(
            self.task,
            total=progress.limit,
            completed=progress.n_iter,
            description=_line(self.description, progress, seconds_left),
        )

    def close(self) -> None:
        self.bar.stop()


def _line(description: str, progress: Progress, seconds_left: float) -> str:
    minutes, seconds = divmod(round(seconds_left), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{description}: {progress.n_iter} of at most {progress.limit} steps, distance to "
        f"optimality {progress.distance:.2e} (tolerance {progress.tolerance:.2e}), "
        f"at most {hours}:{minutes:02}:{seconds:02} left"
    )
