"""Tables of numbers: which columns of a file are read, under which names, and a table in memory.

All readers of files ask `choose_columns`, so a rule about columns stands only here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from lucidae.columns import NUMERIC, Column, refuse_bad_cells, some

__all__ = [
    "ChosenColumns",
    "ReadOptions",
    "Table",
    "choose_columns",
    "column_positions",
    "default_names",
    "image_shape_from_names",
    "some",
    "unique_names",
]

Matrix = np.ndarray[Any, np.dtype[Any]]

INDEX = "it is the index of the rows"
"""Reason for which a column is left out that counts or names the rows."""

PIXEL_NAME = re.compile(r"(pixel|pix|px)[ _]?\d+([x_]\d+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Choices of the user for reading a table; what is not given is decided from the file."""

    # whether the first line of a text file contains the names of the columns; by default this is
    # decided from the first lines
    header: bool | None = None
    # the columns to read, by name or by 0-based index; by default all columns of numbers except an
    # index of the rows
    columns: tuple[str, ...] = ()
    # the decimal separator of a text file; by default it is decided from the first lines
    decimal: str | None = None
    # the columns to be explained by the others, by name or by 0-based index
    targets: tuple[str, ...] = ()
    # cells that mean a missing value, besides the usual ones, as text or as numbers
    missing_values: tuple[str | float, ...] = ()

    def __post_init__(self) -> None:
        if self.decimal not in (None, ".", ","):
            raise ValueError(f"decimal={self.decimal!r} was given, expected '.' or ','.")

    def without_layout(self) -> ReadOptions:
        """Return the options that files of numbers have: nothing about the layout of a text."""
        return replace(self, header=None, decimal=None)


class ChosenColumns(NamedTuple):
    """The columns of a file that are read."""

    positions: list[int]  # those that are read, targets included, among all columns of the file
    names: tuple[str, ...]  # their names
    targets: list[int]  # positions of the targets among those that are read
    left_out: dict[str, str]  # names of other columns of the file, with the reason for each

    @property
    def features(self) -> list[int]:
        """Positions among the columns that are read of those that are no targets."""
        return [at for at in range(len(self.names)) if at not in self.targets]


def choose_columns(
    file: str,
    names: Sequence[str],
    judged: Sequence[Column],
    options: ReadOptions,
    index: Sequence[int] = (),
) -> ChosenColumns:
    """Return which columns of a file are read.

    `judged` say for each of the `names` what the column contains; a bad cell in a column that is
    read is an error.
    `index` are the positions of columns that may be an index of the rows. They are left out unless
    the user asked for them or there is no other column of numbers.
    """
    if not names:
        raise ValueError(f"{file!r} contains no columns: at least one must contain numbers.")
    reasons = [column.reason for column in judged]
    usable = [name for at, name in enumerate(names) if at not in index and not reasons[at]]
    targets = column_positions(options.targets, names, file, usable)
    wanted: list[int] = [*range(len(names))]
    if options.columns:
        wanted = [
            *dict.fromkeys([*column_positions(options.columns, names, file, usable), *targets])
        ]
    for at in wanted if options.columns else targets:
        if reasons[at]:
            raise ValueError(
                f"{file!r} has no numeric column {names[at]!r}: {reasons[at]}; its numeric columns "
                f"are: {some(usable)}."
            )
    read = [at for at in wanted if not reasons[at]]
    left_out = {names[at]: reasons[at] for at in wanted if reasons[at]}
    for at in () if options.columns else index:
        if at in read and at not in targets and len(read) > 1:
            read.remove(at)
            left_out[names[at]] = INDEX
    if not read:
        raise ValueError(
            f"{file!r} has no numeric column: {names[0]!r} is left out because {reasons[0]}; at "
            "least one column must contain only numbers"
            f"{', and cells must be separated by , ; or tabs' if len(names) == 1 else ''}."
        )
    for at in read:
        if judged[at].bad:
            refuse_bad_cells(repr(file), names[at], judged[at].bad, judged[at])
    if set(read) <= set(targets):
        raise ValueError(
            f"Every column of {file!r} was given as a target, so that no feature is left; give "
            "fewer targets."
        )
    places = sorted({read.index(at) for at in targets})
    return ChosenColumns(read, tuple(names[at] for at in read), places, left_out)


def column_positions(
    given: Iterable[str], columns: Sequence[str], file: str, usable: Sequence[str] | None = None
) -> list[int]:
    """Return the positions of columns that are given by their name or by their 0-based index.

    A column whose name is a number, such as 2020, is found by its name. The error for a name that
    is not among the `columns` of `file` lists the `usable` ones.
    """
    found = {name: at for at, name in enumerate(columns)}
    for name in given:
        if name not in found:
            if not (name.isdecimal() and len(name) < 10 and int(name) < len(columns)):
                raise ValueError(
                    f"{file!r} has no numeric column {name!r}{_meant(name, columns)}; its numeric "
                    f"columns are: {some(columns if usable is None else usable)} (or the indices 0 "
                    f"to {len(columns) - 1})."
                )
            found[name] = int(name)
    return [found[name] for name in given]


def _meant(name: str, columns: Sequence[str]) -> str:
    """Return a hint for an unknown name: the most similar one, or how to give several columns."""
    parts = [part.strip() for part in name.split(",")]
    if len(parts) > 1 and all(part in columns for part in parts):
        return f" (give several as {' '.join(f'--target {part}' for part in parts)})"
    lowered = {column.lower(): column for column in reversed(columns)}
    near = difflib.get_close_matches(name.lower(), lowered, 1)
    return f" (did you mean {lowered[near[0]]!r}?)" if near else ""


def default_names(number: int) -> tuple[str, ...]:
    """Return the names "column 0", "column 1", … for columns that have none.

    The indices are those of ``SparseVAE.support_``.
    """
    return tuple(f"column {index}" for index in range(number))


def unique_names(given: Sequence[str]) -> tuple[str, ...]:
    """Return one unique name per column, numbered as pandas does: a, a.1, a.2.

    A column without a name is called "column" and its 0-based index.
    """
    used: dict[str, int] = {}
    for index, name in enumerate(given):
        plain = name or f"column {index}"
        unique, repeats = plain, used.get(plain, 0)
        while unique in used:
            repeats += 1
            unique = f"{plain}.{repeats}"
        used[unique] = 0
        used[plain] = repeats
    return tuple(used)


def image_shape_from_names(names: Sequence[str]) -> tuple[int, int] | None:
    """Return height and width of square images if all columns are named as pixels, else None."""
    side = round(len(names) ** 0.5)
    if side * side != len(names) or side < 2:
        return None
    return (side, side) if all(map(PIXEL_NAME.fullmatch, names)) else None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of numbers with the names of their columns and, optionally, responses."""

    name: str  # name of the data in messages and in the report
    values: Matrix  # (n_samples, n_features): the numbers, float32 or float64
    columns: tuple[str, ...]  # one name per column
    image_shape: tuple[int, int] | None = None  # height and width if every row is an image
    # names of the columns of the file that were left out, with the reason for each
    left_out: Mapping[str, str] = field(default_factory=dict)
    # (n_samples, n_targets): responses to be explained by the columns; None if there are none
    target: Matrix | None = None
    target_names: tuple[str, ...] = ()  # one name per response
    header: str = ""  # clause that says whether a text file has a header; empty for other files
    # for a large file, the moment of all rows; `values` and `target` are then a sample of them
    moment: Any = None
    is_named: bool = False  # whether the names of the columns are those of a fit to the file

    @property
    def n_rows(self) -> int:
        """Number of rows of the data, of which `values` may be a sample."""
        return len(self.values) if self.moment is None else round(self.moment.weight)

    @property
    def reading(self) -> str:
        """One sentence on the header of the file and the columns that were left out, if any."""
        reasons = [f"{name} ({why})" for name, why in self.left_out.items()]
        left_out = f"columns left out: {some(reasons)}" if reasons else ""
        parts = [part for part in (self.header, left_out) if part]
        return f"{self.name}: {'; '.join(parts)}." if parts else ""

    def with_target(self, names: Sequence[str]) -> Table:
        """Return a copy of the table in which some columns are responses instead of features."""
        options = ReadOptions(targets=tuple(names))
        numeric = [NUMERIC] * len(self.columns)
        chosen = choose_columns(self.name, self.columns, numeric, options)
        return replace(
            self,
            values=self.values[:, chosen.features],
            columns=tuple(self.columns[at] for at in chosen.features),
            image_shape=None,
            target=self.values[:, chosen.targets],
            target_names=tuple(self.columns[at] for at in chosen.targets),
        )
