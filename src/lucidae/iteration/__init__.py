"""The iteration loop of all solvers, with stopping rules, history, status and callbacks."""

from lucidae.iteration.loop import (
    Below,
    Callback,
    Progress,
    iterate,
    iterate_batch,
    limited_blas,
    log_grid,
    of_each,
)
from lucidae.iteration.progress import ProgressBar, progress_bars
from lucidae.iteration.solution import BatchSolution, History, Solution, Status

__all__ = [
    "BatchSolution",
    "Below",
    "Callback",
    "History",
    "Progress",
    "ProgressBar",
    "Solution",
    "Status",
    "iterate",
    "iterate_batch",
    "limited_blas",
    "log_grid",
    "of_each",
    "progress_bars",
]
