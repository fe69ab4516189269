"""Tables from NPY, NPZ and Parquet; nothing is ever unpickled."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lucidae._tables.table import (
    Matrix,
    Table,
    as_real,
    default_names,
    first_line,
    picture_shape,
)

_PREFERRED_NAMES = ("X", "x", "data", "features")
_TARGET_NAMES = ("y", "Y", "target", "targets")
_UNREADABLE = (ValueError, EOFError, OSError, KeyError, TypeError, zipfile.BadZipFile)


def read_npy(file: Path, *, target: bool = False) -> Table:
    """Read one array: rows and columns, or a stack of images; as a target, a vector too."""
    try:
        with file.open("rb") as stream:
            array = np.load(stream, allow_pickle=False)
    except _UNREADABLE as error:
        raise ValueError(f"{file.name!r} is no NPY file of numbers: {first_line(error)}.") from None
    if isinstance(array, np.ndarray):
        return _from_array(file.name, _column(array) if target else array)
    raise ValueError(f"{file.name!r} is an NPZ archive; rename it to end in '.npz'.")


def read_npz(file: Path, *, target: bool = False) -> Table:
    """Read the one table of an archive, or the one named X; as a target, the one named y."""
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (*_UNREADABLE, AttributeError) as error:
        raise ValueError(f"{file.name!r} is no NPZ file of numbers: {first_line(error)}.") from None
    if target:
        arrays = {name: _column(array) for name, array in arrays.items()}
    preferred = _TARGET_NAMES if target else _PREFERRED_NAMES
    return _from_array(file.name, arrays[_name_to_read(file.name, arrays, preferred)])


def _name_to_read(file: str, arrays: Mapping[str, Matrix], preferred: Sequence[str]) -> str:
    tables = [name for name, array in arrays.items() if array.ndim >= 2]
    for name in preferred:
        if name in tables:
            return name
    if len(tables) == 1:
        return tables[0]
    raise ValueError(
        f"{file!r} holds {len(tables)} tables among its arrays ({', '.join(arrays) or 'none'}); "
        f"expected exactly one, or one named {preferred[0]!r}."
    )


def _column(array: Matrix) -> Matrix:
    return array[:, None] if array.ndim == 1 else array


def _from_array(name: str, array: Matrix) -> Table:
    if array.ndim < 2:
        raise ValueError(
            f"{name!r} holds an array of shape {array.shape}; expected rows and columns, "
            "(n_samples, n_features), or a stack of images."
        )
    if array.dtype.kind not in "buif":
        raise ValueError(f"{name!r} holds values of type {array.dtype}; expected real numbers.")
    shape = (int(array.shape[1]), int(array.shape[2])) if array.ndim == 3 else None
    values = as_real(array.reshape(len(array), int(np.prod(array.shape[1:]))))
    return Table(name, values, default_names(values.shape[1]), shape)


def read_parquet(file: Path) -> Table:
    """Read the columns of numbers; missing values are kept as NaN."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    except ImportError:
        raise ValueError("Reading Parquet needs pyarrow: pip install pyarrow") from None
    try:
        data = read_table(file)
    except (ArrowException, OSError) as error:
        raise ValueError(f"{file.name!r} is no Parquet file: {first_line(error)}.") from None
    kept = {name: data[name] for name in data.column_names if _is_numeric(data[name].type)}
    if not kept:
        raise ValueError(f"{file.name!r} has no column of numbers.")
    values = np.column_stack([as_real(column.to_numpy()) for column in kept.values()])
    left_out = tuple(name for name in data.column_names if name not in kept)
    return Table(file.name, values, tuple(kept), picture_shape(tuple(kept)), left_out)


def _is_numeric(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))
