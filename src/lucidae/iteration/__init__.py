"""The iteration loop of all solvers, with stopping rules, history, status and callbacks."""

from lucidae.iteration.history import History
from lucidae.iteration.loop import (
    Callback,
    Progress,
    iterate,
    iterate_batch,
    limited_blas,
    log_grid,
    of_each,
)
from lucidae.iteration.progress import ProgressBar, progress_bars
from lucidae.iteration.status import BatchSolution, Solution, Status
from lucidae.iteration.stopping import Below

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
