"""A callback of the iteration loop that shows a progress bar."""

from __future__ import annotations

import time
from typing import Any

from lucidae.iteration.loop import Progress
from lucidae.iteration.terminal import ProgressDisplay, display, is_shown, time_left
from lucidae.validation import check_number

__all__ = ["ProgressBar", "progress_bars"]


class ProgressBar:
    """Callback that shows the progress of an iteration and the longest time it may still take.

    Nothing is shown for an iteration that ends within `delay` seconds. On a terminal a bar is shown
    (that of the package rich, if it is installed), and in a notebook a line; both disappear at the
    end. Otherwise a line is printed on standard error every `delay` seconds. Of nested iterations
    the outer one is shown.

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


def progress_bars(description: str, verbose: Any) -> tuple[ProgressBar, ...]:
    """Return callbacks for the iteration loop: a progress bar, or none if nothing is to be shown.

    Parameters
    ----------
    description : str
        Text at the beginning of the bar.
    verbose : bool or "auto"
        Whether to show the progress: always, never, or if standard error is a terminal or belongs
        to a notebook.

    Examples
    --------
    >>> progress_bars("fitting", verbose=False)
    ()
    """
    return (ProgressBar(description),) if is_shown(verbose) else ()


def _line(description: str, progress: Progress, seconds_left: float) -> str:
    """Return a line on the steps, the distance to optimality and the time left of an iteration."""
    return (
        f"{description}: {progress.n_iter} of at most {progress.limit} steps, distance to "
        f"optimality {progress.distance:.2e} (tolerance {progress.tolerance:.2e}), "
        f"at most {time_left(seconds_left)} left"
    )
