"""The kinds of data that lucidae takes, and checks of data and of arguments, for all modules."""

from __future__ import annotations

import math
import mmap
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from enum import Enum
from functools import partial
from inspect import isroutine
from numbers import Integral, Number, Real
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import sklearn
from sklearn.utils.validation import check_array, validate_data

from lucidae.arrays import (
    Array,
    as_float,
    as_plain,
    device,
    is_array,
    is_complex,
    like,
    namespace,
    to_numpy,
)
from lucidae.columns import Frame, column_numbers, frame_names, numeric_frame, some

COPIED_BYTES = 2**25
"""Memory maps of at most this many bytes are copied before they are used."""

LONGEST_VALUE = 200
"""Number of characters after which the representation of a value is cut in errors."""

_FLOATS = (np.float64, np.float32)

_NO_NUMBERS = (bool, np.bool_, np.timedelta64)
"""Types that Python counts among the integers; NumPy derives durations from its integers."""

_TEXT = (
    "Leave out columns of text, or encode them as numbers first (OneHotEncoder of scikit-learn)."
)

ACCEPTED = (
    "an array (NumPy, torch, CuPy, h5py, zarr), a list of rows, a SciPy sparse matrix, a data "
    "frame (pandas, polars, Arrow), an AnnData, the path of a file, an iterator of batches of "
    "rows, a function that returns one, or a Dask array or data frame"
)


def check_rows(
    X: Any,
    *,
    name: str = "X",
    estimator: Any = None,
    reset: bool = True,
    every_column: bool = False,
    flat: bool = False,
    accept_sparse: bool = True,
    accept_complex: bool = False,
    finite: bool | str = True,
    least: int = 1,
) -> Array:
    """Return `X` as a finite, non-empty, two-dimensional floating array; otherwise raise an error.

    Columns of a data frame that are not numbers are left out with a warning, or refused if
    `every_column` is needed. If `flat`, a vector or a series becomes one column. NumPy arrays,
    lists, data frames and sparse matrices are validated by scikit-learn's `check_array`; arrays of
    other libraries stay in their library and on their device. If `finite` is false, NaN and
    infinity are not searched for, and with ``"allow-nan"`` infinity alone is refused. At least
    `least` rows are needed.

    Names and number of the columns are stored in an `estimator` if `reset`, else compared with
    those of its fit.
    """
    # 1) A data frame with its columns of numbers; what NumPy would misread is refused.
    if flat and hasattr(X, "to_frame"):
        X = X.to_frame(name=X.name or name)
    if not isinstance(X, np.ndarray):
        needed = None if reset else getattr(estimator, "feature_names_in_", None)
        X = numeric_columns(X, name, list(map(str, frame_names(X))) if every_column else needed)
    table = X = check_kind(X, name)
    if isinstance(X, list | tuple):  # scikit-learn refuses complex numbers by their dtype
        try:
            X = np.asarray(X)
        except ValueError as error:
            raise ValueError(_refusal(X, name, "rows of numbers of equal length")) from error
    if flat:
        if scipy.sparse.issparse(X) or hasattr(X, "sparse"):  # pandas has the latter
            raise ValueError(
                f"{name} is a sparse matrix, expected a dense array: give {name}.toarray()."
            )
        X = X if hasattr(X, "shape") else np.asarray(X)
        X = X[:, None] if len(X.shape) == 1 else X
    # 2) Floating numbers. scikit-learn knows neither other libraries nor complex numbers.
    complex_numbers = accept_complex and has_complex(X)
    X = np.asarray(X) if complex_numbers and not is_array(X) else X  # a data frame
    plain = not finite and type(X) is np.ndarray and X.dtype in _FLOATS and X.ndim == 2
    if plain and X.size and len(X) >= least:
        rows = X  # what scikit-learn's check would return, at a cost above that of a small fit
    elif complex_numbers or (is_array(X) and not isinstance(X, np.ndarray)):
        rows = _checked_array(X, name, complex_numbers, finite, estimator, least)
    else:
        try:
            rows = check_array(
                X,
                accept_sparse=("csr",) if accept_sparse else False,
                dtype=_FLOATS,
                ensure_all_finite=finite,
                ensure_min_samples=least,
                estimator=estimator,
                input_name=name,
            )
        except (OverflowError, TypeError, ValueError) as error:
            _explain(error, name, table)
            raise
        # It reads the dtypes of pandas only, and returns other data frames as float64.
        kinds = getattr(getattr(X, "schema", None), "types", None)  # of Arrow
        kinds = getattr(X, "dtypes", None) if kinds is None else kinds  # a list for polars
        if isinstance(kinds, list) and {str(kind) for kind in kinds} <= {"Float32", "float"}:
            rows = rows.astype(np.float32, copy=False)
    # 3) Columns. scikit-learn knows no names of sparse matrices, and reads them from a data frame.
    seen = type(table) is np.ndarray and getattr(estimator, "n_features_in_", None) == X.shape[1]
    if seen and not reset and not hasattr(estimator, "feature_names_in_"):
        return rows  # for small batches of a stream, scikit-learn would take longer than their sums
    if estimator is not None:
        if (names := getattr(table, "feature_names", None)) is not None:
            import pandas as pd

            table = pd.DataFrame(columns=names, dtype=float)
        validate_data(estimator, table, reset=reset, skip_check_array=True)
    return rows


def _checked_array(
    X: Any, name: str, accept_complex: bool, finite: bool | str, estimator: Any, least: int
) -> Array:
    """Return an array of any library with the checks of scikit-learn's `check_array`.

    It is detached from automatic differentiation.
    """
    X, xp = as_plain(X), namespace(X)
    if not accept_complex and is_complex(X):
        raise ValueError(
            f"{name} is complex ({X.dtype}), expected real numbers: give the real and the "
            "imaginary parts as separate columns."
        )
    if X.ndim != 2:
        raise ValueError(
            f"{name} must have two dimensions (samples, features), got shape {tuple(X.shape)}. "
            "Reshape it first."
        )
    if 0 in X.shape:
        raise ValueError(
            f"{name} is empty: its shape is {tuple(X.shape)}. Give at least one row and one column."
        )
    if X.shape[0] < least:
        raise ValueError(
            f"Found array with n_samples={X.shape[0]}, while {type(estimator).__name__} requires a "
            f"minimum of {least}."
        )
    X = as_float(X)
    if finite == "allow-nan":
        if bool(xp.any(xp.isinf(X))):
            raise ValueError(f"{name} contains infinity. Remove or impute those entries first.")
    elif finite and not bool(xp.all(xp.isfinite(X))):
        raise ValueError(f"{name} contains NaN or infinity. Remove or impute those entries first.")
    return X


def numeric_columns(X: Any, name: str, fitted: Any = None) -> Any:
    """Return a data frame with its columns of numbers, as `numeric_frame`, and issue its warnings.

    `fitted` are the names of columns that must be numbers. What is not a data frame is returned as
    it is.
    """
    if X is None or isinstance(X, Number | np.generic):
        raise ValueError(f"{name} is of type {type(X).__name__}, expected {ACCEPTED}.")
    X, messages = numeric_frame(X, name, fitted)
    for message in messages:
        warn_user(message)
    return X


def install_command(extras: str) -> str:
    """Return the commands that install extras, given with commas between them.

    The second command is the one that works while lucidae is not on a package index.
    """
    return f'pip install "lucidae[{extras}]", or in a clone of lucidae pip install ".[{extras}]"'


def _explain(error: Exception, name: str, table: Any) -> None:
    """Raise an error of scikit-learn about text or NaN with column names and a remedy."""
    if isinstance(error, OverflowError):
        raise ValueError(
            f"{name} contains integers that are too large for float64. Divide them by a constant "
            "first."
        ) from error
    first = str(error).partition("\n")[0].rstrip(".")
    if first.startswith("Complex data not supported") or first.endswith("'complex'"):
        raise ValueError(
            "Complex data not supported: give the real and the imaginary parts as separate columns."
        ) from error
    gaps = columns_with_gaps(table, name) if f"Input {name} " in first else ""
    if "could not convert string to float" in first:
        what = _TEXT
    elif f"Input {name} contains NaN" in first:
        what = (
            "Remove or impute the missing entries first: drop these rows, or put scikit-learn's "
            "SimpleImputer before the estimator."
        )
    elif f"Input {name} contains infinity" in first:
        what = "Remove or replace these entries first."
    else:
        return
    raise ValueError(f"{first}{gaps}.\n{what}") from error


def columns_with_gaps(table: Any, name: str) -> str:
    """Return the names of columns with NaN or infinity, such as " (column 'age' of X)", or ""."""
    if not (hasattr(table, "columns") and hasattr(table, "dtypes")):
        return ""
    faults = [
        repr(heading)
        for at, heading in enumerate(table.columns)
        if _has_gaps(table.iloc[:, at] if hasattr(table, "iloc") else table[heading])
    ]
    return f" (column{'s' * (len(faults) > 1)} {some(faults, 5)} of {name})" if faults else ""


def refuse_text(values: Any, name: str) -> None:
    """Raise an error if a table contains text or categories, also readable as numbers."""
    found = []
    if (frame := Frame.of(values)) is not None:
        for at, (heading, kind) in enumerate(zip(frame.names, frame.kinds, strict=True)):
            if kind == "categories" or (kind == "cells" and _has_strings(frame.cells(at))):
                what = "text" if kind == "cells" else kind
                found.append(f"{what} in column {heading!r}")
    elif (
        isinstance(values, np.ndarray) and values.dtype.kind in "OSTU" and _has_strings(values.flat)
    ):
        found.append("text")
    if found:
        raise ValueError(
            f"{name} contains {found[0]}, expected numbers: leave it out, or convert it first."
        )


def _has_strings(cells: Iterable[Any]) -> bool:
    return any(isinstance(cell, str | bytes) for cell in cells)


def _has_gaps(column: Any) -> bool:
    """Tell whether a column of a data frame contains NaN, a missing value or infinity."""
    try:
        return not bool(np.all(np.isfinite(np.asarray(column).astype(float))))
    except (TypeError, ValueError):  # a missing value of pandas, or text
        values, bad = column_numbers(column, is_truth=False)
        return not bad and not bool(np.all(np.isfinite(values)))


def has_complex(values: Any) -> bool:
    """Tell whether an array, a list or a column of a data frame has a complex dtype.

    Sparse matrices are never counted, because complex ones are accepted nowhere.
    """
    if is_array(values):
        return is_complex(values)
    if scipy.sparse.issparse(values):
        return False
    return any(getattr(dtype, "kind", "") == "c" for dtype in _dtypes(values))


def check_kind(values: Any, name: str) -> Any:
    """Return `values`, or raise a ValueError for what NumPy would silently misread, or cannot read.

    NumPy would ignore a mask, and would convert dates to numbers of days or nanoseconds. A masked
    array without masked entries becomes a plain array, and a small memory map is copied.
    """
    if type(values) is np.ndarray and values.dtype in _FLOATS:
        owner = values if values.base is None else values.base
        if type(owner) is np.ndarray and owner.base is None:
            return values  # without the cost of the tests below, which counts in small fits
    kind = kind_of(values, name)
    if isinstance(values, np.ndarray):
        if missing := missing_bytes(values):
            raise ValueError(
                f"{name} is a memory map of a file that has become shorter by {missing} bytes: map "
                "the file again when nobody writes to it."
            )
        if kind is DataKind.MAP and values.nbytes <= COPIED_BYTES:
            values = np.array(values, subok=False)
        if type(values) is np.ndarray and values.dtype in _FLOATS:
            return values
    elif isinstance(values, Iterator) or kind in (
        DataKind.FILE,
        DataKind.FUNCTION,
        DataKind.BLOCKS,
        DataKind.DASK,
    ):
        how = "tables in files by lucidae.datasets.read_table(path)"
        raise ValueError(
            f"{name} is of type {type(values).__name__}, but an array, a data frame or a sparse "
            f"matrix is expected here: load the rows into memory first, "
            f"{f'by {name}.compute()' if kind is DataKind.DASK else how}."
        )
    elif kind is DataKind.ANNDATA:
        return anndata_rows(values if is_anndata_in_memory(values) else values.to_memory(), name)
    listed = isinstance(values, list | tuple)
    if listed and any(len(getattr(part, "shape", ())) == 2 for part in values):
        raise ValueError(
            f"{name} is a list of {len(values)} arrays of rows, expected one array: join them by "
            "np.concatenate, or give the list to fit_batches, if the estimator has it."
        )
    masked = sum(int(np.sum(np.ma.getmask(part))) for part in (values if listed else (values,)))
    if masked:
        raise ValueError(
            f"{name} has masked entries ({masked}), expected a value in every entry. Impute or "
            "remove the masked entries first."
        )
    for dtype in _dtypes(values):
        if isinstance(dtype, np.dtype) and dtype.kind in "SU":
            advice = _TEXT
        elif getattr(dtype, "kind", "") in ("m", "M"):
            advice = "Convert dates and durations to numbers first."
        elif isinstance(dtype, np.dtype) and dtype.names is not None:
            advice = (
                "Give its fields as columns (numpy.lib.recfunctions.structured_to_unstructured)."
            )
        else:
            continue
        raise ValueError(
            f"{name} contains values of dtype {dtype}, expected real numbers. {advice}"
        )
    return values.data if isinstance(values, np.ma.MaskedArray) else values


def missing_bytes(array: Any) -> int:
    """Return how many bytes of a mapped array are behind the present end of its file.

    The operating system ends a process that reads a page behind the end of a mapped file, without
    an error that Python could handle: the size of the file is compared before pages are read.
    """
    part = _mapped_part(array)
    return 0 if part is None else max(0, part[1] - part[0].size())


def forget_pages(array: np.memmap[Any, Any]) -> None:
    """Release the pages of a memory map that are in memory; they are read again when needed.

    The changes of a copy-on-write map (mode ``"c"``) are in memory only, so its pages stay.
    """
    part = _mapped_part(array)
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if part is not None and advice is not None and array.mode != "c":
        part[0].madvise(advice)


def mapping_of(array: Any) -> mmap.mmap | None:
    """Return the mapping of a file in which an array lies; None for other arrays."""
    while isinstance(array, np.ndarray):
        array = array.base
    array = array.obj if isinstance(array, memoryview) else array
    return array if isinstance(array, mmap.mmap) else None


def _mapped_part(array: Any) -> tuple[mmap.mmap, int] | None:
    """Return the mapping in which an array lies, and where the array ends in the file."""
    owner, found = array, None
    while isinstance(owner, np.ndarray):
        if isinstance(owner, np.memmap):
            found = owner
        owner = owner.base
    if found is None or not isinstance(owner, mmap.mmap) or not array.size:
        return None
    # A mapping begins at the last page boundary before the offset that was asked for.
    begin = found.offset - found.offset % mmap.ALLOCATIONGRANULARITY
    inside = np.lib.array_utils.byte_bounds(array)[1]
    inside -= np.frombuffer(owner, dtype=np.uint8).ctypes.data
    return owner, begin + inside


def _dtypes(values: Any) -> list[Any]:
    """Return the dtype of an array or a list, or the dtypes of the columns of a data frame."""
    if isinstance(values, list | tuple):
        try:
            values = np.asarray(values)
        except ValueError:  # its rows differ in length
            return []
    columns = getattr(values, "dtypes", None)
    return [getattr(values, "dtype", None)] if columns is None else list(np.ravel(columns))


def real_array(values: Any, name: str, *, accept_complex: bool = False) -> Array:
    """Return `values` as an array of real (or complex) numbers of any shape, in their library."""
    if hasattr(values, "to_frame") or hasattr(values, "columns"):
        table = check_rows(
            values,
            name=name,
            every_column=True,
            flat=True,
            accept_complex=accept_complex,
            finite=False,
        )
        return table[:, 0] if hasattr(values, "to_frame") else table
    if scipy.sparse.issparse(values):
        raise ValueError(
            f"{name} is a sparse matrix, expected a dense array: give {name}.toarray()."
        )
    values = values if isinstance(values, str) else check_kind(values, name)
    try:
        array = as_plain(values) if is_array(values) else np.asarray(values)
    except ValueError as error:
        raise ValueError(_refusal(values, name, "real numbers")) from error
    if isinstance(array, np.ndarray) and array.dtype == object and all(map(_is_number, array.flat)):
        with suppress(OverflowError):
            array = array.astype(np.float64)
    xp = namespace(array)
    kinds = ("bool", "integral", "real floating") + ("complex floating",) * accept_complex
    if array.dtype == object or not xp.isdtype(array.dtype, kinds):
        raise ValueError(
            f"{name} contains values of dtype {array.dtype}, expected real "
            f"{'or complex ' * accept_complex}numbers: {name}={_in_one_line(values)} was given."
        )
    return array


def check_vector(
    value: Any, name: str, *, expected: str = "a vector of numbers of at least 0"
) -> np.ndarray[Any, Any]:
    """Return `value` as a NumPy vector of finite numbers of at least 0; otherwise raise an error.

    A single number becomes a zero-dimensional array. `expected` describes in the error all values
    that the caller accepts.
    """
    try:
        vector = to_numpy(real_array(value, name))
    except ValueError as error:
        raise ValueError(_refusal(value, name, expected)) from error
    wrong = vector.dtype == bool or vector.ndim > 1 or vector.size == 0
    if wrong or not np.all(np.isfinite(vector)) or np.any(vector < 0):
        raise ValueError(_refusal(value, name, expected))
    return np.array(vector, dtype=float)


def check_row_count(X: Array, y: Array) -> None:
    """Raise an error unless X and y have the same number of rows."""
    if y.shape[0] != X.shape[0]:
        raise ValueError(
            f"X has {X.shape[0]} rows and y has {y.shape[0]}: give one row of y for each row of X."
        )


def pair_of_rows(split: Any, n_rows: int, number: int) -> tuple[Any, Any]:
    """Return the row indices of both parts of a fold of `cv`, given as integers or as masks."""
    try:
        train, test = (
            np.arange(n_rows)[np.asarray(part) if len(part) else slice(0)] for part in split
        )
    except (IndexError, TypeError, ValueError):
        train = test = np.empty((0, 0), dtype=int)
    if train.ndim != 1 or test.ndim != 1:
        raise ValueError(
            f"fold {number} of cv is {split!r}, expected row indices (integers from 0 to "
            f"{n_rows - 1}) in two arrays: the rows to train on, and those to hold out."
        )
    return train, test


def check_weights(sample_weight: Any, X: Array, *, allow_zero: bool = False) -> Array | None:
    """Return sample weights as a float64 vector with one entry per row of `X`; None stays None.

    Not all of them may be zero, unless `allow_zero`.
    """
    if sample_weight is None:
        return None
    n_rows = X.shape[0]
    reference = np.empty(0) if scipy.sparse.issparse(X) else X
    xp = namespace(reference)
    ones = xp.ones(n_rows, dtype=xp.float64, device=device(reference))
    if isinstance(sample_weight, Real):
        weights = ones * check_number(sample_weight, "sample_weight", low=0.0)
    else:
        weights = like(real_array(sample_weight, "sample_weight"), ones)
    if tuple(weights.shape) != (n_rows,):
        raise ValueError(
            f"sample_weight has shape {tuple(weights.shape)}, expected ({n_rows},): "
            "one weight per row."
        )
    if not bool(xp.all(xp.isfinite(weights))) or bool(xp.any(weights < 0)):
        raise ValueError(
            "sample_weight contains NaN, infinite or negative entries. Weights are frequencies: "
            "give finite numbers of at least 0."
        )
    with np.errstate(over="ignore"):
        total = float(xp.sum(weights))
    if not (0.0 < total < math.inf or (allow_zero and total == 0.0)):
        raise ValueError(
            f"sample_weight sums to {total:g}, expected a positive finite number: not all weights "
            "may be zero, and their sum must not overflow."
        )
    return weights


def check_integer(
    value: Any, name: str, *, low: int, high: int | None = None, others: str = ""
) -> int:
    """Return `value` as an int if it is an integer from `low` to `high`; otherwise raise an error.

    `others` names in the error what the caller accepts besides integers, such as ``" or None"``.
    """
    if not _is_number(value, Integral) or value < low or (high is not None and value > high):
        expected = (
            f"an integer of at least {low}" if high is None else f"an integer in [{low}, {high}]"
        )
        raise ValueError(_refusal(value, name, expected, others))
    return int(value)


def check_number(
    value: Any,
    name: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    open_high: bool = False,
    others: str = "",
) -> float:
    """Return `value` as a float if it is finite and from `low` to `high`; otherwise raise an error.

    `low` itself is accepted unless `open_low`, and `high` unless `open_high`.
    """
    number = math.nan
    if _is_number(value):
        with suppress(OverflowError):
            number = float(value)
    inside = low <= number <= high and math.isfinite(number)
    if not inside or (open_low and number == low) or (open_high and number == high):
        expected = _interval(low, high, open_low, open_high)
        raise ValueError(_refusal(value, name, expected, others))
    return number


def _interval(low: float, high: float, open_low: bool, open_high: bool) -> str:
    if math.isinf(high) and math.isinf(low):
        return "a finite number"
    if math.isinf(high):
        return f"a finite number {'above' if open_low else 'of at least'} {low:g}"
    if math.isinf(low):
        return f"a finite number {'below' if open_high else 'of at most'} {high:g}"
    return f"a number in {'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"


def _refusal(value: Any, name: str, expected: str, others: str = "") -> str:
    return f"{name}={_in_one_line(value)} was given, expected {expected}{others}."


def _in_one_line(value: Any) -> str:
    """Return the representation of a value for an error message, without line breaks and short."""
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def check_flag(value: Any, name: str) -> bool:
    """Return `value` if it is a bool; texts such as ``"False"`` and numbers raise an error."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(_refusal(value, name, "True or False"))
    return bool(value)


def _is_number(value: Any, kind: type = Real) -> bool:
    return isinstance(value, kind) and not isinstance(value, _NO_NUMBERS)


_FLAG = "True or False", lambda value: isinstance(value, bool | np.bool_)

ARGUMENTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "fit_intercept": _FLAG,
    "warm_start": _FLAG,
    "verbose": (
        "an integer of at least 0, True, False or 'auto'",
        lambda value: (
            isinstance(value, bool | np.bool_)
            or (isinstance(value, str) and value == "auto")
            or (_is_number(value, Integral) and value >= 0)
        ),
    ),
    "n_jobs": (
        "None or an integer other than 0",
        lambda value: value is None or (_is_number(value, Integral) and value != 0),
    ),
    "random_state": (
        f"an integer in [0, {2**32 - 1}], a numpy.random.RandomState or None",
        lambda value: (
            value is None
            or value is np.random
            or isinstance(value, np.random.RandomState)
            or (_is_number(value, Integral) and 0 <= value < 2**32)
        ),
    ),
}
"""Arguments that mean the same everywhere, as in scikit-learn: what is accepted, and its test."""


def check_argument(value: Any, name: str) -> Any:
    """Return an argument of `ARGUMENTS` if it is accepted; otherwise raise a ValueError.

    Estimators that draw no random numbers check their `random_state` too.
    """
    expected, is_accepted = ARGUMENTS[name]
    if not is_accepted(value):
        raise ValueError(_refusal(value, name, expected))
    return value


def check_choice(value: Any, name: str, choices: Any, *, others: str = "") -> str:
    """Return `value` if it is one of the strings `choices`; otherwise raise a ValueError."""
    options = tuple(choices)
    if not isinstance(value, str) or value not in options:
        named = ", ".join(repr(option) for option in options)
        raise ValueError(_refusal(value, name, f"one of {named}", others))
    return value


_PACKAGES = tuple(f"{Path(file).parent}{os.sep}" for file in (__file__, str(sklearn.__file__)))


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that points to the innermost line outside lucidae and scikit-learn.

    A fixed ``stacklevel`` would point into a package if a value is computed when it is first read,
    or if scikit-learn calls `fit`.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGES):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


class DataKind(Enum):
    """DataKind of data, by the way in which they are read."""

    ROWS = "rows in memory"
    MAP = "memory map"
    ANNDATA = "AnnData"
    FILE = "path of a file"
    STORED = "array outside memory, such as one of h5py or zarr"
    BATCHES = "iterable of batches of rows"
    FUNCTION = "function that returns an iterable of batches"
    BLOCKS = "blocks of rows, as `lucidae.rows.row_blocks` returns them"
    DASK = "Dask array or data frame"


def kind_of(X: Any, name: str = "X") -> DataKind:
    """Return the kind of `X`; raise a ValueError that lists what is accepted if it has none.

    No library is imported for this.
    """
    if isinstance(X, np.memmap):
        return DataKind.MAP
    if X is None or isinstance(X, np.ndarray | list | tuple | Number):
        return DataKind.ROWS
    if isinstance(X, str | os.PathLike):
        return DataKind.FILE
    if _is_of("anndata", "AnnData", X):
        return DataKind.ANNDATA
    if is_dask(X):
        return DataKind.DASK
    _refuse_similar(X, name)
    if is_array(X) or scipy.sparse.issparse(X) or hasattr(X, "to_numpy"):
        return DataKind.ROWS
    if hasattr(X, "rows_per_block"):
        return DataKind.BLOCKS
    if not isinstance(X, type):
        if all(hasattr(X, part) for part in ("shape", "dtype", "__getitem__")) and len(X.shape):
            return DataKind.STORED
        if isroutine(X) or isinstance(X, partial):
            return DataKind.FUNCTION
        if hasattr(X, "__array__"):
            return DataKind.ROWS
        if isinstance(X, Iterable) and not isinstance(X, Mapping | AbstractSet | bytes):
            return DataKind.BATCHES
    raise ValueError(f"{name} is of type {type(X).__name__}, expected {ACCEPTED}.")


def _is_of(module: str, name: str, X: Any) -> bool:
    """Tell whether `X` is an instance of a class of a module, which is not imported for this."""
    return isinstance(X, getattr(sys.modules.get(module), name, ()))


def _refuse_similar(X: Any, name: str) -> None:
    """Raise an error with the remedy for what is not accepted, but contains what is."""
    if _is_of("h5py", "HLObject", X) and not X:
        raise ValueError(
            f"a {type(X).__name__} of h5py that is closed was given: open the file again, and keep "
            "it open while it is read."
        )
    if _is_of("polars", "LazyFrame", X):
        raise ValueError(
            f"{name} is a LazyFrame of polars, expected a data frame: give {name}.collect(), or "
            "write it by sink_parquet and give the path of the file."
        )
    sparse = sys.modules.get("cupyx.scipy.sparse")
    if sparse is not None and sparse.issparse(X):
        raise ValueError(
            f"{name} is a sparse CuPy matrix, expected a dense CuPy array or a SciPy sparse "
            f"matrix: give {name}.toarray(), or {name}.get() for the CPU."
        )
    for module in ("h5py", "zarr"):
        if _is_of(module, "Group", X):
            found = [key for key in X if len(getattr(X[key], "shape", ()))]
            names = ", ".join(map(repr, found)) or "no array"
            example = repr(found[0]) if found else "name"
            raise ValueError(
                f"{name} is an open file or group of {module} with {names}, expected one array: "
                f"give the array itself, such as file[{example}]."
            )


def is_dask(X: Any) -> bool:
    """Tell whether `X` is a Dask array or data frame; Dask is not imported for this.

    Other collections of Dask, such as a bag, raise a ValueError.
    """
    dask = sys.modules.get("dask")
    if dask is None or not dask.is_dask_collection(X):
        return False
    # A delayed value has every attribute.
    is_delayed = isinstance(X, getattr(sys.modules.get("dask.delayed"), "Delayed", ()))
    if is_delayed or not hasattr(X, "ndim"):
        raise ValueError(
            f"a Dask {type(X).__name__} was given, expected a Dask array or data frame: convert it "
            "by dask.array.from_delayed, dask.dataframe.from_delayed or, for a bag, to_dataframe."
        )
    return True


def is_anndata_in_memory(X: Any) -> bool:
    """Tell whether the rows of an AnnData are an array or a sparse matrix in memory."""
    if X.isbacked:
        return False
    return X.X is None or isinstance(X.X, np.ndarray) or scipy.sparse.issparse(X.X)


def anndata_rows(X: Any, name: str) -> Any:
    """Return the rows of an AnnData in memory with the names of their variables.

    They are a data frame without a copy of the rows, or a sparse matrix with names.
    """
    if X.X is None:
        raise ValueError(f"{name} is an AnnData without X: set X, or give a layer as an array.")
    names = [str(one) for one in X.var_names]
    if scipy.sparse.issparse(X.X):
        return named_sparse(X.X, names)
    import pandas as pd

    return pd.DataFrame(np.asarray(X.X), columns=names, copy=False)


def named_sparse(rows: Any, names: Any) -> Any:
    """Return a sparse matrix with the names of its columns, as `feature_names`."""
    named = scipy.sparse.csr_array(rows)
    named.feature_names = list(names)
    return named
