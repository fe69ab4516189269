"""The kinds of data that lucidae takes, told apart in one place."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import partial
from inspect import isroutine
from numbers import Number
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import is_array

__all__ = [
    "ACCEPTED",
    "DataKind",
    "anndata_rows",
    "heading_of",
    "is_anndata_in_memory",
    "is_dask",
    "kind_of",
    "named_sparse",
]

ACCEPTED = (
    "an array (NumPy, torch, CuPy, h5py, zarr), a list of rows, a SciPy sparse matrix, a data "
    "frame (pandas, polars, Arrow), an AnnData, the path of a file, an iterator of batches of "
    "rows, a function that returns one, or a Dask array or data frame"
)


class DataKind(Enum):
    """DataKind of data, by the way in which they are read."""

    ROWS = "rows in memory"
    MAP = "memory map"
    ANNDATA = "AnnData"
    FILE = "path of a file"
    STORED = "array outside memory, such as one of h5py or zarr"
    BATCHES = "iterable of batches of rows"
    FUNCTION = "function that returns an iterable of batches"
    BLOCKS = "blocks of rows, as `lucidae.data.row_blocks` returns them"
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
    """Return a sparse matrix with the names of its columns, for `heading_of`."""
    named = scipy.sparse.csr_array(rows)
    named.feature_names = list(names)
    return named


def heading_of(rows: Any) -> Any:
    """Return something of which scikit-learn reads the number and the names of the columns.

    It does not know the names of a sparse matrix, for which a data frame without rows is returned.
    """
    names = getattr(rows, "feature_names", None)
    if names is None:
        return rows
    import pandas as pd

    return pd.DataFrame(columns=names, dtype=float)
