"""What a table is, and what its readers share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Matrix = np.ndarray[Any, np.dtype[Any]]

_PIXEL_NAME = re.compile(r"(pixel|pix|px)[ _]?\d+([x_]\d+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of numbers with what is known about their columns.

    Parameters
    ----------
    name : str
        What the reader calls the data.
    values : ndarray of shape (n_samples, n_features)
        The numbers, float32 or float64.
    columns : tuple of str
        One name a column.
    image_shape : tuple of int or None
        Height and width when a row is a picture.
    left_out : tuple of str
        Names of the columns that hold no numbers and were dropped.
    target : ndarray of shape (n_samples, n_targets) or None
        Responses, where some columns are to be explained by the others.
    target_names : tuple of str
        One name a response.

    Examples
    --------
    >>> table = Table("pairs", np.eye(2), ("a", "b"))
    >>> table.values.shape, table.image_shape
    ((2, 2), None)
    >>> table.with_target(["b"]).columns
    ('a',)
    """

    name: str
    values: Matrix
    columns: tuple[str, ...]
    image_shape: tuple[int, int] | None = None
    left_out: tuple[str, ...] = ()
    target: Matrix | None = None
    target_names: tuple[str, ...] = ()

    def with_target(self, names: Sequence[str]) -> Table:
        """Return the table with the named columns split off as responses."""
        unknown = [name for name in names if name not in self.columns]
        if unknown:
            known = ", ".join(self.columns[:12]) + (", …" if len(self.columns) > 12 else "")
            raise ValueError(
                f"{self.name!r} has no column of numbers {unknown[0]!r}; it has: {known}."
            )
        if set(names) >= set(self.columns):
            raise ValueError(
                f"Every column of {self.name!r} is a target; none is left to explain it."
            )
        chosen = np.array([name in names for name in self.columns])
        return replace(
            self,
            values=self.values[:, ~chosen],
            columns=tuple(name for name in self.columns if name not in names),
            image_shape=None,
            target=self.values[:, chosen],
            target_names=tuple(name for name in self.columns if name in names),
        )


def as_real(array: Matrix) -> Matrix:
    """Return float32 and float64 as they are, anything else as float64."""
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def default_names(number: int) -> tuple[str, ...]:
    """Name columns that have no names."""
    return tuple(f"column {index + 1}" for index in range(number))


def picture_shape(names: tuple[str, ...]) -> tuple[int, int] | None:
    """Take rows for square pictures only where every column is named as a pixel."""
    side = round(len(names) ** 0.5)
    if side * side != len(names) or side < 2:
        return None
    return (side, side) if all(map(_PIXEL_NAME.fullmatch, names)) else None


def first_line(error: Exception) -> str:
    """Return an error's first line, without its full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
