"""The runs of experiments: small computations with exact settings, by functions with a version.

A run is called a cell in this package: one training, or one method on one problem size. It is
identified by the function that measures it (its `Work`, with a name and a version) and by its exact
settings, so that it can be measured in any order and on any machine, once.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from lucidae.validation import install_command

Settings = Mapping[str, Any]
Arrays = Mapping[str, np.ndarray[Any, Any]]
Measure = Callable[[Sequence[Settings], str], Sequence[Arrays]]
"""Function that does some runs: it takes the settings of each run and the name of a device, and
returns the measured arrays of each run by name.
"""

WORK_NAME = re.compile(r"[a-z][a-z0-9._-]*/[1-9][0-9]*")


class Work:
    """A function that does runs of an experiment (each a `Cell`), with a stable name and a version.

    The decorator `work` makes one. Finished runs are stored under the name and the version, so that
    the function can move to another module, and so that results of an older version of the
    computation are not used again.
    The object takes the place of the function in its module and is pickled as a reference to that
    place: a worker process that receives a `Cell` imports the right module by itself.

    Parameters
    ----------
    identifier : str
        Name and version, such as ``"linear.training/1"``.
    measure : callable
        Takes a sequence of settings, one mapping per run, and the name of a device; returns for
        each run its measured arrays by name.
    """

    def __init__(self, identifier: str, measure: Measure) -> None:
        if not WORK_NAME.fullmatch(identifier):
            raise ValueError(
                f"the function that computes runs is called {identifier!r}, expected a name and a "
                "version such as 'linear.training/1'."
            )
        functools.update_wrapper(self, measure)
        self._place = measure.__qualname__
        self.name, _, version = identifier.partition("/")
        self.version = int(version)
        self.measure = measure

    def __call__(self, group: Sequence[Settings], device: str) -> Sequence[Arrays]:
        """Do the runs with the settings in `group` on a device; return the arrays they measure."""
        return self.measure(group, device)

    def __str__(self) -> str:
        return f"{self.name}/{self.version}"

    def __repr__(self) -> str:
        return f"Work({str(self)!r})"

    def __reduce__(self) -> str:
        if self.__module__ == "__main__":
            raise ValueError(
                f"the function {str(self)!r}, which computes runs, is defined in the main script, "
                "expected a module that worker processes can import: move it to a module, or use "
                "jobs=1."
            )
        return self._place  # pickle reads a string as the name of an object in `__module__`


def work(identifier: str) -> Callable[[Measure], Work]:
    """Return a decorator that turns a function that does runs into a `Work` with name and version.

    Increase the version when the function computes something else: runs that an earlier version
    has stored then count as not done.

    Parameters
    ----------
    identifier : str
        Name and version, such as ``"linear.training/1"``.

    Examples
    --------
    >>> @work("examples.doubled/1")
    ... @on_processor
    ... def doubled(settings):
    ...     return {"double": np.array(2 * settings["x"])}
    >>> doubled.name, doubled.version
    ('examples.doubled', 1)
    >>> doubled([{"x": 1}, {"x": 2}], "cpu")
    [{'double': array(2)}, {'double': array(4)}]
    """
    return lambda measure: Work(identifier, measure)


def work_with_torch(module: str) -> Work:
    """Import a module of `lucidae_papers` whose runs need PyTorch; return its `measure`."""
    try:
        found: Work = import_module(f"lucidae_papers.{module}").measure
    except ImportError as error:
        raise ValueError(
            "the runs of this experiment need PyTorch, which is not installed: "
            f"{install_command('torch')}."
        ) from error
    return found


def on_processor(measure: Callable[[Settings], Arrays]) -> Measure:
    """Turn a function that does one run from its settings into a function that does many runs.

    The returned function takes the settings of all runs and the name of a device. It does the runs
    one after the other with NumPy; the device is ignored.
    """

    @functools.wraps(measure)
    def one_by_one(group: Sequence[Settings], _device: str) -> list[Arrays]:
        return [measure(settings) for settings in group]

    return one_by_one


@dataclass(frozen=True, slots=True)
class Cell:
    """One small computation of an experiment, such as one training run, with its exact settings.

    Parameters
    ----------
    work : Work
        The function that does this run.
    settings : mapping
        Everything that the result depends on, the seed included: numbers, strings, lists, mappings.
    cost : float, default=1.0
        Approximate duration in seconds on one core; used to start long runs first and to estimate
        the time left.
    together : str, default=""
        Label of a group: on an accelerator, cells with the same label and the same work are
        computed in one call. A cell with an empty label is computed alone.

    Examples
    --------
    >>> doubled = Work("examples.doubled/1", lambda group, device: [])
    >>> Cell(doubled, {"x": 0}).key == Cell(doubled, {"x": 1}).key
    False
    """

    work: Work
    settings: Settings
    cost: float = 1.0
    together: str = ""

    @property
    def description(self) -> dict[str, Any]:
        """Name and version of the function that does this run, and the settings of the run.

        They are stored with the result.
        """
        return {"work": str(self.work), "settings": self.settings}

    @property
    def key(self) -> str:
        """SHA-256 digest of function, version and settings: the file name of the stored result."""
        return digest(self.description)


def canonical(description: Mapping[str, Any]) -> str:
    """Return the description of a run (function, version, settings) as JSON with sorted keys."""
    return json.dumps(description, sort_keys=True, allow_nan=False, separators=(",", ":"))


def digest(description: Mapping[str, Any]) -> str:
    """Return the SHA-256 digest of the description of a run (function, settings) as hex digits."""
    return hashlib.sha256(canonical(description).encode()).hexdigest()


def grid(
    work: Work,
    axes: Mapping[str, Iterable[Any]],
    shared: Settings,
    cost: float | Callable[[Settings], float] = 1.0,
) -> list[Cell]:
    """Return one `Cell` for each combination of the values in `axes`; the last axis varies fastest.

    A `Cell` is one run of an experiment with its settings.
    """
    combinations = itertools.product(*axes.values())
    every = [{**shared, **dict(zip(axes, values, strict=True))} for values in combinations]
    return [Cell(work, one, cost(one) if callable(cost) else cost) for one in every]


def settings_of(part: Any, *names: str) -> dict[str, Any]:
    """Return some fields of a dataclass by name, as settings of a run: tuples become lists."""
    values = {name: getattr(part, name) for name in names}
    return {name: list(one) if isinstance(one, tuple) else one for name, one in values.items()}
