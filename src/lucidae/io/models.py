"""Save and load estimators: one ``.npz`` file of arrays with a JSON header, without code.

The header describes a tree of numbers, texts, lists and records, whose arrays are named entries of
the file. A record has a stable tag (``lucidae.linear.fitted/1``: a name, and the version of its
fields) instead of a module path, so that files stay readable when a class is moved or renamed.
Reading creates only objects of types that were registered by `saved_as` and of a short list of
scikit-learn's types (`lucidae.io.contents.KINDS`), and executes no code from the file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from lucidae._families import import_families
from lucidae._version import __version__
from lucidae.arrays import is_array, to_numpy
from lucidae.io.atomic import load_arrays, reason_of, save_arrays
from lucidae.io.contents import (
    check_estimator,
    check_fields,
    check_plain,
    check_shapes,
    scikit_kinds,
)

__all__ = ["Source", "load", "reads", "save", "save_from", "saved_as", "source_of"]

_FORMAT = 2
_HEADER = "header"

Fields = dict[str, Any]
Kind = TypeVar("Kind", bound=type)


_BUILDERS: dict[str, Callable[[Fields], Any]] = {}
"""Functions that build an object from its fields, by the name of its type in the file.

The name is a tag, or the name that an earlier version wrote."""

_MEMBERS: dict[str, type[Enum]] = {}

_TAGS: dict[type, str] = {}

_NAMES: dict[str, str] = {}
"""Name of the class that each tag belongs to; a class that is defined again keeps its tag."""


def saved_as(
    tag: str,
    *,
    formerly: str | Sequence[str] = (),
    upgrade: Callable[[Fields], Fields] | None = None,
) -> Callable[[Kind], Kind]:
    """Register a type under a stable tag, so that `save` can write it and `load` can read it.

    Objects with a ``__dict__`` are written by their attributes, named tuples and dataclasses with
    slots by their fields, enumerations by their members.
    """

    def register(kind: Kind) -> Kind:
        holder = _NAMES.setdefault(tag, kind.__qualname__)
        if holder != kind.__qualname__:
            raise ValueError(f"The tag {tag!r} already belongs to {holder}; choose another tag.")
        earlier = (formerly,) if isinstance(formerly, str) else formerly
        for name, brought_up_to_date in ((tag, None), *((old, upgrade) for old in earlier)):
            if issubclass(kind, Enum):
                _MEMBERS[name] = kind
            else:
                _BUILDERS[name] = partial(_instance, kind, brought_up_to_date)
        _TAGS[kind] = tag
        return kind

    return register


def reads(name: str) -> Callable[[Callable[[Fields], Any]], Callable[[Fields], Any]]:
    """Register a function that builds an object from the fields that a file has under `name`.

    Use it for objects of types that earlier versions wrote and that no longer exist.
    """

    def register(builder: Callable[[Fields], Any]) -> Callable[[Fields], Any]:
        _BUILDERS[name] = builder
        return builder

    return register


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """Name and place of the data file to which ``lucidae fit`` fitted a model."""

    name: str  # name of the file without its folder
    place: str  # digest of its full path, so that a model that is passed on does not reveal folders

    @classmethod
    def of(cls, file: str | os.PathLike[str]) -> Source:
        """Return the name and the digest of the full path of a data file."""
        path = os.path.realpath(file)
        return cls(Path(file).name, hashlib.sha256(path.encode()).hexdigest()[:16])

    def is_of(self, file: str | os.PathLike[str]) -> bool:
        """Return whether this source has the name and the full path of `file`."""
        return self == Source.of(file)


def save(estimator: BaseEstimator, path: str | os.PathLike[str] | None = None) -> None:
    """Write a fitted estimator of this package to a file, completely or not at all.

    A pipeline is written, too, if its other steps are scikit-learn's scalers, `SimpleImputer`,
    `PCA`, or another type of `lucidae.io.contents.KINDS`. An estimator that `load` could not read
    back is refused.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator of this package, or a pipeline.
    path : path
        The file; its name usually ends in ``.npz``.

    Raises
    ------
    ValueError
        If the estimator contains something that cannot be written; the message names the
        attribute.

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
    _check_order(estimator, path)
    save_from(estimator, path, None)  # type: ignore[arg-type]  # the path is not None here


def _check_order(estimator: Any, path: Any) -> None:
    """Raise an error unless `save` was called with an estimator and then with a path."""
    is_estimator = hasattr(estimator, "fit") and not isinstance(estimator, type)
    if not is_estimator or not isinstance(path, str | os.PathLike):
        given = [type(part).__name__ for part in (estimator, path) if part is not None]
        raise ValueError(
            f"save was called with {' and '.join(given) or 'nothing'}, expected a fitted estimator "
            "and the path of the file, in this order: lucidae.save(estimator, path)."
        )


def save_from(
    estimator: BaseEstimator, path: str | os.PathLike[str], source: Source | None
) -> None:
    """Write a fitted estimator as `save` does, with a note of the data file it was fitted to.

    If `source` is None, the file contains no such note.
    """
    owner = type(estimator).__name__
    check_is_fitted(estimator)
    arrays: dict[str, Any] = {}
    try:
        tree = _describe(estimator, arrays, owner)
        text = json.dumps(tree)
    except RecursionError:
        raise ValueError(
            f"{owner} contains itself or is nested too deeply, so it cannot be written to a file."
        ) from None
    try:
        _fitted(_rebuild(json.loads(text), arrays), arrays)
    except Exception as error:
        raise ValueError(
            f"This {owner} cannot be written to a file, because it could not be read back: "
            f"{reason_of(error)}."
        ) from error
    header = {"format": _FORMAT, "version": __version__, "estimator": tree}
    if source is not None:
        header["source"] = dataclasses.asdict(source)
    save_arrays(path, {_HEADER: np.array(json.dumps(header)), **arrays})


def source_of(path: str | os.PathLike[str]) -> Source | None:
    """Return name and place (a digest of the path) of the data file that a model was fitted to.

    Return None if `path` is not a saved model, or was written by `save`, which does not store them.
    """
    try:
        header = json.loads(str(load_arrays(path, "a saved estimator")[_HEADER]))
        return Source(str(header["source"]["name"]), str(header["source"]["place"]))
    except Exception:  # not a saved model, or one that `save` wrote
        return None


def load(path: str | os.PathLike[str]) -> Any:
    """Read an estimator that `save` or ``lucidae fit`` wrote.

    Files of all earlier versions can be read.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    estimator
        Fitted, as it was saved; its arrays are NumPy arrays.

    Raises
    ------
    ValueError
        If the file is not a saved estimator, is damaged, or comes from a newer version.
    """
    arrays = load_arrays(path, "a saved estimator")
    import_families()
    try:
        header = json.loads(str(arrays[_HEADER]))
        if not 1 <= header["format"] <= _FORMAT:
            raise ValueError(
                f"the file has format {header['format']!r}, but this version of lucidae reads "
                f"formats 1 to {_FORMAT} only; update lucidae."
            )
        return _fitted(_rebuild(header["estimator"], arrays), arrays)
    # A header with other content than `save` writes can raise almost anything.
    except Exception as error:
        raise ValueError(
            f"{os.fspath(path)!r} cannot be read as a saved estimator: {reason_of(error)}."
        ) from error


def _fitted(estimator: Any, arrays: Mapping[str, Any]) -> Any:
    """Return `estimator` if it is a fitted estimator that can be used; otherwise raise an error.

    `arrays` are all arrays of the file from which it was built.
    """
    if not isinstance(estimator, BaseEstimator):
        raise ValueError(
            f"the file contains an object of type {type(estimator).__name__}, expected an "
            "estimator."
        )
    check_is_fitted(estimator)
    check_estimator(estimator, sum(values.size for values in arrays.values()))
    return estimator


def _describe(value: Any, arrays: dict[str, Any], place: str) -> Any:
    """Return a description of `value` that JSON can store: nested dicts, lists, numbers and text.

    Arrays in `value` are added to `arrays` under new names, and the description contains these
    names. `place` is the path of attributes that leads to `value`, for error messages.
    """
    if isinstance(value, Enum):  # before text: some enumerations are text, too
        return {"member": _tag(type(value), place), "name": value.name}
    if value is None or isinstance(value, bool | str) or type(value) in (int, float):
        return value
    if isinstance(value, np.ndarray) and value.dtype == object:
        return {"names": _texts(value, place)}
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError(
            f"{place} is a masked array, which cannot be written to a file. Replace it by a plain "
            "array, for example with its method filled()."
        )
    if isinstance(value, np.dtype) and value.kind in "biuf":
        return {"dtype": value.str}
    value = np.complex128(value) if type(value) is complex else value
    if is_array(value) or isinstance(value, np.generic):
        name = f"array{len(arrays)}"
        arrays[name] = to_numpy(value)
        if arrays[name].dtype.hasobject:
            raise ValueError(f"{place} contains Python objects, which cannot be written to a file.")
        return {"array": name} | _layout(arrays[name])
    if isinstance(value, np.random.Generator) and isinstance(value.bit_generator, np.random.PCG64):
        return {"random": _plain_state(value.bit_generator.state)}
    if isinstance(value, dict):
        keys = [_describe(key, arrays, f"the key {key!r} of {place}") for key in value]
        items = [_describe(item, arrays, f"{place}[{key!r}]") for key, item in value.items()]
        return {"map": [list(pair) for pair in zip(keys, items, strict=True)]}
    if type(value) in (list, tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {
            kind: [_describe(item, arrays, f"{place}[{index}]") for index, item in enumerate(value)]
        }
    tag = _tag(type(value), place)
    fields = {
        name: _describe(item, arrays, f"{place}.{name}") for name, item in _fields(value).items()
    }
    return {"record": tag, "fields": fields}


def _texts(values: np.ndarray[Any, Any], place: str) -> list[str]:
    """Return an array of text, such as the names of features, as a list.

    Raise an error, which names the attribute by `place`, if the array contains other objects.
    """
    if values.ndim != 1 or not all(isinstance(item, str) for item in values):
        raise ValueError(
            f"{place} is an array of Python objects, which cannot be written to a file. Use an "
            "array of numbers or a one-dimensional array of text."
        )
    return [str(item) for item in values]


def _fields(value: Any) -> Fields:
    """Return the attributes of an object to be written, by name.

    They are what its method ``saved_fields`` returns if it has one, otherwise its ``__dict__``,
    otherwise the fields of a named tuple or a dataclass.
    """
    if hasattr(value, "saved_fields"):
        return dict(value.saved_fields())
    if hasattr(value, "__dict__"):
        attributes: Fields = vars(value)
        return attributes
    if isinstance(value, tuple):
        return dict(zip(value._fields, value, strict=True))  # type: ignore[attr-defined]
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _tag(kind: type, place: str) -> str:
    """Return the tag under which a type is written, or raise an error if it is not registered.

    `place` is the path of attributes that leads to the object, for the message.
    """
    if kind in _TAGS:
        return _TAGS[kind]
    for tag, scikit in scikit_kinds().items():
        if kind is scikit:
            return tag
    parent = next((parent for parent in kind.__mro__ if parent in _TAGS), None)
    if kind.__module__.startswith("sklearn."):
        allowed = ", ".join(sorted(known.__name__ for known in scikit_kinds().values()))
        raise ValueError(
            f"{place} is of scikit-learn's type {kind.__name__}, which lucidae.save does not "
            f"write; of scikit-learn it writes {allowed}. Save the estimator of lucidae alone, or "
            "use skops.io.dump or joblib.dump."
        )
    subclass = f", a subclass of {parent.__name__}" if parent is not None else ""
    raise ValueError(
        f"{place} is of the type {kind.__name__}{subclass}, which cannot be written to a file: it "
        "was not registered by lucidae.io.models.saved_as. Give the estimator plain values (an "
        "integer as random_state, a number of folds as cv), register the type, or use "
        "joblib.dump, whose files only this version of the software can read."
    )


def _rebuild(tree: Any, arrays: dict[str, Any]) -> Any:
    """Return the Python value described by `tree`, parsed JSON as `_describe` wrote it.

    Arrays are looked up by name in `arrays`.
    """
    if not isinstance(tree, dict):
        return tree
    if "array" in tree:
        return _value(_checked_array(arrays[tree["array"]], tree))
    if "names" in tree:
        return np.array(tree["names"], dtype=object)
    if "list" in tree:
        return [_rebuild(item, arrays) for item in tree["list"]]
    if "tuple" in tree:
        return tuple(_rebuild(item, arrays) for item in tree["tuple"])
    if "map" in tree:
        pairs = ((_rebuild(key, arrays), _rebuild(item, arrays)) for key, item in tree["map"])
        return {key: _with_status(key, item) for key, item in pairs}
    if "random" in tree:
        return _generator(tree["random"])
    if "dtype" in tree:
        return _number_type(tree["dtype"])
    if "member" in tree:
        return _known(_MEMBERS, tree["member"])[tree["name"]]
    pairs = ((name, _rebuild(item, arrays)) for name, item in tree["fields"].items())
    fields = {name: _with_status(name, item) for name, item in pairs}
    tag = tree["record"]
    if tag.startswith("sklearn.") and tag in scikit_kinds():
        return _instance(scikit_kinds()[tag], None, fields)
    return _known(_BUILDERS, tag)(fields)


def _with_status(name: Any, value: Any) -> Any:
    """Return the value of the field `name`; a status of a fit written as text becomes a `Status`.

    Earlier versions wrote it as text. All other values are returned unchanged.
    """
    kind = _MEMBERS.get("lucidae.status/1")
    if name in ("status", "status_") and isinstance(value, str) and kind is not None:
        return kind(value)
    return value


def _layout(array: Any) -> dict[str, Any]:
    """Return the shape and the dtype of an array in the form in which the header stores them."""
    return {"shape": list(array.shape), "dtype": array.dtype.str}


def _checked_array(array: Any, tree: Mapping[str, Any]) -> Any:
    """Return `array` if it has the shape and dtype that the header states; else raise an error.

    `tree` is the description of the array in the header. Headers of earlier versions state neither
    shape nor dtype.
    """
    stated = {name: tree[name] for name in ("shape", "dtype") if name in tree}
    if stated and stated != _layout(array):
        raise ValueError(
            f"the array {tree['array']} has the shape {array.shape} and the dtype "
            f"{array.dtype.str}, but the header of the file states {stated}: the file is damaged; "
            "save the estimator again"
        )
    return array


def _known(registered: Mapping[str, Any], name: str) -> Any:
    """Return the entry of the table `registered` for the name of a type in a file.

    Raise an error if the table has no such name.
    """
    if name not in registered:
        raise ValueError(
            f"the file contains the type {name!r}, which this version of lucidae does not know; "
            "update lucidae, or import the module that registers the type."
        )
    return registered[name]


def _value(array: Any) -> Any:
    """Return `array`; if it is zero-dimensional, return a NumPy scalar, because one was saved."""
    return array[()] if array.ndim == 0 else array


def _instance(
    kind: type, brought_up_to_date: Callable[[Fields], Fields] | None, fields: Fields
) -> Any:
    """Return an object of the type `kind` with the given fields, checked for consistency.

    `brought_up_to_date` converts the fields of an earlier version; None leaves them unchanged.
    """
    fields = fields if brought_up_to_date is None else brought_up_to_date(fields)
    check_fields(kind, fields)
    made: Any
    if kind.__dictoffset__ == 0:  # named tuples, and dataclasses with slots
        made = kind(**fields)
        check_shapes(_TAGS[kind], made)
        return made
    hidden = [name for name in fields if callable(getattr(kind, name, None))]
    if hidden:
        raise ValueError(
            f"{hidden[0]!r} is a method of {kind.__name__}, but the file gives it a value as if it "
            "were an attribute."
        )
    made = object.__new__(kind)
    made.__dict__.update(_defaults(kind) | fields)
    check_plain(made)
    return made


def _defaults(kind: type) -> Fields:
    """Return the default values of an estimator's parameters by name; empty for other types.

    They are used for parameters that a file of an earlier version does not contain.
    """
    if not issubclass(kind, BaseEstimator):
        return {}
    parameters = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    return {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.default is not parameter.empty
    }


def _plain_state(state: Any) -> Any:
    """Return the state of a random generator as dicts of integers and text, for JSON."""
    if isinstance(state, dict):
        return {key: _plain_state(item) for key, item in state.items()}
    return state if isinstance(state, str) else int(state)


def _number_type(name: Any) -> np.dtype[Any]:
    """Return the NumPy dtype of that name; raise an error if it is not a dtype of numbers."""
    found = np.dtype(str(name))
    if found.kind not in "biuf":
        raise ValueError(f"the file contains the dtype {name!r}, expected a dtype of numbers.")
    return found


def _generator(state: dict[str, Any]) -> np.random.Generator:
    """Return a NumPy random generator (PCG64) with the given state."""
    if state.get("bit_generator") != "PCG64":
        raise ValueError("the random state in the file does not belong to a PCG64 generator.")
    rng = np.random.Generator(np.random.PCG64(0))
    rng.bit_generator.state = state
    return rng


class _MovedModules(MetaPathFinder):
    """An import finder that explains why a pickle of an earlier version cannot be read.

    A pickle contains names of modules. If all other finders have failed to find a module that has
    moved since lucidae 0.1.0, this finder raises an error that says what to do instead.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: Any = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if any(name.startswith(f"{fullname}:") for name in (*_BUILDERS, *_MEMBERS)):
            raise ModuleNotFoundError(
                f"The module {fullname} of lucidae 0.1.0 has moved. A pickle can be read only by "
                "the version that wrote it. Fit the estimator again, or read the pickle with "
                "lucidae 0.1.0 and write the estimator by lucidae.save; all later versions can "
                "load that file.",
                name=fullname,
            )
        return None


sys.meta_path.append(_MovedModules())
