"""Evaluation of a function for many items by joblib: in this process, in others, or on a cluster.

The items are folds, parts of a stack of problems, or other independent parts of a computation.
Inside of ``with joblib.parallel_config("dask")`` they are evaluated by the workers of a Dask
cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sklearn.utils.parallel import Parallel, delayed

from lucidae.iteration.loop import Callback, iterate
from lucidae.iteration.stopping import Below

__all__ = ["of_each"]


def of_each(
    function: Callable[..., Any],
    items: Sequence[tuple[Any, ...]],
    *,
    n_jobs: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> list[Any]:
    """Return the values of a function for all items, in their order.

    Parameters
    ----------
    function : callable
        A function of a module, because other processes import it by its name.
    items : sequence of tuples
        The arguments of each call.
    n_jobs : int, optional
        Number of calls at a time, as in scikit-learn; not more than there are items.
    callbacks : sequence of callable
        As in `iterate`; a step is a value that has arrived, and the distance is the number of items
        that are left.

    Returns
    -------
    list
        The values.

    Examples
    --------
    >>> of_each(pow, [(2, 3), (3, 2)])
    [8, 9]
    """
    if n_jobs is not None:  # joblib starts as many workers as it is told, whatever their use
        n_jobs = min(n_jobs, max(len(items), 1))
    # Without callbacks nobody waits for single values, and more backends of joblib can be used.
    pool = Parallel(n_jobs=n_jobs, return_as="generator" if callbacks else "list")
    values = iter(pool(delayed(function)(*item) for item in items))
    none: tuple[Any, ...] = ()
    found = iterate(
        lambda done: (*done, next(values)),
        none,
        stop=Below(lambda done: float(len(items) - len(done)), 0.0),
        limit=len(items),
        callbacks=callbacks,
    ).value
    return [*found, *values]  # none are left; joblib wants its generator to be read to the end
