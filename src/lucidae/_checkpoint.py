"""The state of an iteration on disk, and the way back from it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from lucidae._arrays import Array, is_array, like, to_numpy
from lucidae._files import load_arrays, save_arrays
from lucidae._validation import check_number
from lucidae.iterate import Progress

_FORMAT = 1


class Resumed(NamedTuple):
    """Where an interrupted iteration stood: give them to `iterate` as `start` and `first`.

    Parameters
    ----------
    state : object
        The last state that was written.
    n_iter : int
        The number of steps that led to it.

    Examples
    --------
    >>> Resumed(1.0, 3).n_iter
    3
    """

    state: Any
    n_iter: int


class Checkpoint:
    """Write the state to a file from time to time, so that a killed run can go on.

    The file is replaced atomically and holds arrays and numbers only, nothing that a reader
    would execute. `resume` reads it. Meant for `iterate`; a stack of problems is best resumed
    problem by problem.

    Parameters
    ----------
    path : path
        The file, by custom with the suffix ``.npz``.
    every_seconds : float, default=60.0
        Time between two writes; 0 writes at every check.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from lucidae.iterate import Below, iterate
    >>> path = Path(tempfile.mkdtemp()) / "run.npz"
    >>> start, stop = (np.ones(2),), Below(lambda state: state[0].max(), 1e-3)
    >>> def halve(state):
    ...     return (state[0] / 2,)
    >>> cut_short = iterate(halve, start, stop=stop, limit=4, callbacks=[Checkpoint(path, 0)])
    >>> state, first = resume(path, start)
    >>> first
    4
    >>> iterate(halve, state, stop=stop, limit=100, first=first).n_iter
    10
    """

    def __init__(self, path: str | os.PathLike[str], every_seconds: float = 60.0) -> None:
        self.path = Path(path)
        self.every_seconds = check_number(every_seconds, "every_seconds", low=0.0)
        self._written: float | None = None

    def __call__(self, progress: Progress) -> None:
        """Write the state if it is time."""
        now = time.monotonic()
        if self._written is None and self.every_seconds > 0:
            self._written = now
        if self._written is None or now - self._written >= self.every_seconds:
            save_arrays(self.path, _contents(progress))
            self._written = now


def resume(path: str | os.PathLike[str], start: Any) -> Resumed:
    """Return the state that a `Checkpoint` wrote, or `start` and 0 where there is no file yet.

    Parameters
    ----------
    path : path
        The file of the `Checkpoint`.
    start : object
        A state of the same structure, shapes and types, such as the first one: arrays and
        numbers in tuples, named tuples and dataclasses. It says where the arrays shall live.

    Returns
    -------
    Resumed
        The state and the number of steps that led to it.

    Raises
    ------
    ValueError
        If the file is damaged, or belongs to another kind of state.

    Examples
    --------
    >>> resume("never-written.npz", 1.0)
    Resumed(state=1.0, n_iter=0)
    """
    if not Path(path).exists():
        return Resumed(start, 0)
    stored = load_arrays(path, "a checkpoint")
    try:
        if stored.pop("format") != _FORMAT:
            raise ValueError("it was written in another format")
        n_iter = int(stored.pop("n_iter"))
        leaves = [stored.pop(f"leaf{index}") for index in range(len(stored))]
        return Resumed(_rebuilt(start, iter(_matched(start, leaves))), n_iter)
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"{os.fspath(path)!r} is no checkpoint of this iteration: {error}. "
            "Remove it, or give the state that it was written for."
        ) from error


def _contents(progress: Progress) -> dict[str, Any]:
    leaves = (to_numpy(leaf) for leaf in _leaves(progress.state))
    named = {f"leaf{index}": leaf for index, leaf in enumerate(leaves)}
    return {"format": _FORMAT, "n_iter": progress.n_iter} | named


def _matched(start: Any, leaves: list[Array]) -> list[Array]:
    expected = [(leaf.shape, leaf.dtype) for leaf in map(to_numpy, _leaves(start))]
    found = [(leaf.shape, leaf.dtype) for leaf in leaves]
    if found != expected:
        raise ValueError(f"it holds {found}, expected {expected}")
    return leaves


def _parts(state: Any) -> list[Any] | None:
    """Return what a tuple, a dataclass or None is made of; None for an array or a number."""
    if state is None:
        return []
    if isinstance(state, tuple):
        return list(state)
    if is_dataclass(state):
        return [getattr(state, part.name) for part in fields(state)]
    return None


def _leaves(state: Any) -> Iterator[Any]:
    parts = _parts(state)
    if parts is None:
        yield state
    for part in parts or []:
        yield from _leaves(part)


def _rebuilt(template: Any, leaves: Iterator[Array]) -> Any:
    """Return a state built like `template` from the stored leaves, in their order."""
    parts = _parts(template)
    if parts is None:
        leaf = next(leaves)
        return like(leaf, template) if is_array(template) else type(template)(leaf.item())
    rebuilt = [_rebuilt(part, leaves) for part in parts]
    if is_dataclass(template) and not isinstance(template, type):
        names = (part.name for part in fields(template))
        return replace(template, **dict(zip(names, rebuilt, strict=True)))
    if hasattr(template, "_fields"):
        return type(template)(*rebuilt)
    return tuple(rebuilt) if isinstance(template, tuple) else None
