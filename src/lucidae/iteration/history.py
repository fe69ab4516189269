"""The history of an iteration: recorded quantities, and the schedule of the records."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lucidae.arrays import to_numpy
from lucidae.cards import Html, card, sparkline, table
from lucidae.io.atomic import json_safe
from lucidae.io.models import saved_as
from lucidae.validation import check_integer


@saved_as("lucidae.history/1", formerly="lucidae.solution:History")
@dataclass(frozen=True, slots=True)
class History:
    """Quantities recorded during an iteration, such as the loss.

    Parameters
    ----------
    iterations : ndarray of shape (n_records,)
        Number of steps before each record; 0 is the start.
    values : mapping of str to ndarray
        One array per recorded quantity, by name. The first axis has one entry per record.

    Notes
    -----
    Notebooks show the first and the last value and a small curve of each quantity; `plot` draws
    one of them.

    Examples
    --------
    >>> history = History(np.array([0, 10]), {"energy": np.array([3.0, 1.0])})
    >>> history["energy"][-1], history.names
    (np.float64(1.0), ('energy',))
    """

    iterations: np.ndarray[Any, Any]
    values: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self.values[name]

    def __contains__(self, name: object) -> bool:
        return name in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.iterations)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the recorded quantities."""
        return tuple(self.values)

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the history as a dict of lists that JSON can store.

        Returns
        -------
        dict of str to list
            The iterations under ``"iteration"``, and each quantity under its name. Infinities and
            NaN become strings.
        """
        recorded = {name: json_safe(series.tolist()) for name, series in self.values.items()}
        return {"iteration": self.iterations.tolist()} | recorded

    def plot(self, *, quantity: str | None = None, ax: Any = None, **line: Any) -> Any:
        """Draw a recorded quantity against the iterations; see `lucidae.displays.HistoryDisplay`.

        Parameters
        ----------
        quantity : str, optional
            Name of the quantity. By default it is the loss, the energy or the objective if one of
            them was recorded, otherwise the distance to optimality.
        ax : matplotlib axes, optional
            Axes to draw on; by default a new figure is made.
        **line
            Keyword arguments of ``ax.plot``.

        Returns
        -------
        HistoryDisplay
            The display, already drawn; its axes are ``ax_``.
        """
        from lucidae.displays import HistoryDisplay

        return HistoryDisplay(self, quantity=quantity).plot(ax=ax, **line)

    def _repr_html_(self) -> str:
        return card(self._headline, self._html_table())

    @property
    def _headline(self) -> str:
        if not len(self):
            return "History without records"
        count, last = len(self), self.iterations[-1]
        return f"History: {count} record{'s' * (count != 1)} up to iteration {last}"

    def _html_table(self) -> Html:
        """Return a table of the recorded quantities; empty if there are no records."""
        if not len(self) or not self.values:
            return Html("")
        series = [np.asarray(values) for values in self.values.values()]
        return table(
            {
                "quantity": self.names,
                "first": [values[0] for values in series],
                "last": [values[-1] for values in series],
                "smallest": [_smallest(values) for values in series],
                "course": [
                    sparkline(values, f"{name}, first {values[0]}, last {values[-1]}")
                    for name, values in zip(self.names, series, strict=True)
                ],
            }
        )


def _smallest(values: np.ndarray[Any, Any]) -> float | None:
    """Return the smallest finite value of a vector; None for other arrays, or if none is finite."""
    finite = values[np.isfinite(values)] if values.ndim == 1 else values[:0]
    return float(finite.min()) if finite.size else None


class Schedule:
    """The steps after which the stopping rule is evaluated, and those that are recorded."""

    def __init__(
        self,
        limit: int,
        check_every: int,
        record_at: int | Iterable[int] | None = None,
        first: int = 0,
    ) -> None:
        self.limit = check_integer(limit, "limit", low=0)
        self.check_every = check_integer(check_every, "check_every", low=1)
        check_integer(first, "first", low=0, high=limit)
        self.record_every: int | None = None
        self.fixed: list[int] | None = None
        if isinstance(record_at, int | np.integer):
            self.record_every = check_integer(record_at, "record_at", low=1)
        elif record_at is not None:
            self.fixed = sorted({check_integer(i, "record_at", low=0) for i in record_at})

    def after(self, n_iter: int) -> int:
        """Return the number of the next step that is checked or recorded, after step `n_iter`."""
        following = [self.limit, _next_multiple(n_iter, self.check_every)]
        if self.record_every is not None:
            following.append(_next_multiple(n_iter, self.record_every))
        if self.fixed is not None:
            position = bisect_right(self.fixed, n_iter)
            following.extend(self.fixed[position : position + 1])
        return min(following)

    def records(self, n_iter: int) -> bool:
        """Tell whether the state after `n_iter` steps is recorded."""
        if self.record_every is not None:
            return n_iter % self.record_every == 0 or n_iter == self.limit
        if self.fixed is not None:
            position = bisect_right(self.fixed, n_iter)
            return position > 0 and self.fixed[position - 1] == n_iter
        return True


def _next_multiple(n_iter: int, stride: int) -> int:
    return (n_iter // stride + 1) * stride


class Recorder:
    """Recorder of the distance to optimality and of further quantities during an iteration.

    `quantities` are functions of the state, by the name under which their values are recorded.
    """

    def __init__(self, quantities: Mapping[str, Callable[[Any], Any]]) -> None:
        self.quantities = quantities
        self.iterations: list[int] = []
        self.values: dict[str, list[Any]] = {name: [] for name in ("distance", *quantities)}

    def take(self, n_iter: int, state: Any, distance: float) -> None:
        """Record the distance and all quantities of the state after `n_iter` steps."""
        self.iterations.append(n_iter)
        self.values["distance"].append(distance)
        for name, quantity in self.quantities.items():
            self.values[name].append(to_numpy(quantity(state)))

    def history(self) -> History:
        """Return everything recorded so far."""
        return History(
            np.array(self.iterations, dtype=int),
            {name: np.array(series) for name, series in self.values.items()},
        )
