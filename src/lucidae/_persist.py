"""Estimators on disk: one ``.npz`` of arrays with a JSON header, and nothing to execute.

The header describes a tree: numbers, texts, lists, and records of this package's own types, whose
arrays are named entries of the file. Reading builds only such records: no other type, no code.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
from enum import Enum
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from lucidae._arrays import is_array, to_numpy
from lucidae._estimators import Kept
from lucidae._files import load_arrays, save_arrays
from lucidae._version import __version__

__all__ = ["load", "save"]

_FORMAT = 1
_HEADER = "header"


def save(estimator: BaseEstimator, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator of this package to a file, whole or not at all.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator of this package.
    path : path
        The file, by custom ending in ``.npz``.

    See Also
    --------
    load : Read it back.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> import lucidae
    >>> X = lucidae.datasets.load_digits().data
    >>> model = lucidae.LinearAutoencoder(3).fit(X)
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "digits.npz"
    >>> lucidae.save(model, file)
    >>> (lucidae.load(file).transform(X) == model.transform(X)).all()
    np.True_
    """
    check_is_fitted(estimator)
    arrays: dict[str, Any] = {}
    tree = _describe(estimator, arrays)
    header = {"format": _FORMAT, "version": __version__, "estimator": tree}
    save_arrays(path, {_HEADER: np.array(json.dumps(header)), **arrays})


def load(path: str | os.PathLike[str]) -> Any:
    """Read an estimator that `save` or ``lucidae fit`` wrote.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    estimator
        Fitted, as it was saved; its arrays are NumPy's.

    Raises
    ------
    ValueError
        If the file is no saved estimator, is damaged, or comes from a newer format.
    """
    arrays = load_arrays(path, "a saved estimator")
    try:
        header = json.loads(str(arrays[_HEADER]))
        if header["format"] != _FORMAT:
            raise ValueError(
                f"format {header['format']!r} was met, expected {_FORMAT}: update lucidae."
            )
        estimator = _rebuild(header["estimator"], arrays)
        if not isinstance(estimator, BaseEstimator):
            raise ValueError(f"it holds {type(estimator).__name__}.")
        return estimator
    except (KeyError, TypeError, AttributeError, ImportError, ValueError) as error:
        raise ValueError(f"{os.fspath(path)!r} is not a saved estimator: {error}") from error


def _describe(value: Any, arrays: dict[str, Any]) -> Any:
    """Return a JSON tree of `value`, its arrays laid aside under names."""
    if value is None or isinstance(value, bool | str) or type(value) in (int, float):
        return value
    if isinstance(value, np.ndarray) and value.dtype == object:
        return {"names": [str(item) for item in value]}
    if is_array(value) or isinstance(value, np.generic):
        name = f"array{len(arrays)}"
        arrays[name] = to_numpy(value)
        return {"array": name}
    if isinstance(value, np.random.Generator):
        return {"random": _plain_state(value.bit_generator.state)}
    if isinstance(value, Enum):
        return {"member": _type_name(type(value)), "name": value.name}
    if isinstance(value, dict):
        return {"map": [[key, _describe(item, arrays)] for key, item in value.items()]}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _record(value, dict(zip(value._fields, value, strict=True)), arrays)
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_describe(item, arrays) for item in value]}
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _record(value, fields, arrays)
    if isinstance(value, Kept | BaseEstimator):
        return _record(value, vars(value), arrays)
    raise ValueError(f"{type(value).__name__} cannot be written without pickle.")


def _record(value: Any, fields: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
    described = {name: _describe(item, arrays) for name, item in fields.items()}
    return {"record": _type_name(type(value)), "fields": described}


def _rebuild(tree: Any, arrays: dict[str, Any]) -> Any:
    """Return the value that a tree describes."""
    if not isinstance(tree, dict):
        return tree
    if "array" in tree:
        return _value(arrays[tree["array"]])
    if "names" in tree:
        return np.array(tree["names"], dtype=object)
    if "list" in tree:
        return [_rebuild(item, arrays) for item in tree["list"]]
    if "tuple" in tree:
        return tuple(_rebuild(item, arrays) for item in tree["tuple"])
    if "map" in tree:
        return {key: _rebuild(item, arrays) for key, item in tree["map"]}
    if "random" in tree:
        return _generator(tree["random"])
    if "member" in tree:
        return _member(_own_type(tree["member"]), tree["name"])
    fields = {name: _rebuild(item, arrays) for name, item in tree["fields"].items()}
    return _instance(_own_type(tree["record"]), fields)


def _value(array: Any) -> Any:
    """Return an array, or the NumPy scalar that it was."""
    return array[()] if array.ndim == 0 else array


def _instance(kind: type, fields: dict[str, Any]) -> Any:
    if issubclass(kind, Kept | BaseEstimator):
        made: Any = object.__new__(kind)
        made.__dict__.update(fields)
        return made
    if not (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")):
        raise ValueError(f"{kind.__name__} is no record of lucidae.")
    return kind(**fields)


def _member(kind: type, name: str) -> Any:
    if not issubclass(kind, Enum):
        raise ValueError(f"{kind.__name__} has no members.")
    return kind[name]


def _type_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _own_type(name: str) -> type:
    """Return a type that this package defines itself."""
    module, _, qualified = name.partition(":")
    if not module.startswith("lucidae.") or "." in qualified:
        raise ValueError(f"{name!r} is no type of lucidae.")
    kind = getattr(importlib.import_module(module), qualified)
    if not isinstance(kind, type) or kind.__module__ != module:
        raise ValueError(f"{name!r} is no type of lucidae.")
    return kind


def _plain_state(state: Any) -> Any:
    """Return a generator's state as JSON keeps it exactly."""
    if isinstance(state, dict):
        return {key: _plain_state(item) for key, item in state.items()}
    return state if isinstance(state, str) else int(state)


def _generator(state: dict[str, Any]) -> np.random.Generator:
    if state.get("bit_generator") != "PCG64":
        raise ValueError("the random state is not one that lucidae writes.")
    random = np.random.Generator(np.random.PCG64(0))
    random.bit_generator.state = state
    return random
