"""What a table is, and what its readers share."""

from __future__ import annotations

import re
from dataclasses import dataclass
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

    Examples
    --------
    >>> table = Table("pairs", np.eye(2), ("a", "b"))
    >>> table.values.shape, table.image_shape
    ((2, 2), None)
    """

    name: str
    values: Matrix
    columns: tuple[str, ...]
    image_shape: tuple[int, int] | None = None
    left_out: tuple[str, ...] = ()


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
