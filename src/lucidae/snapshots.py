"""Snapshots: what is stored of a fitted estimator, and how a file stores it.

A *snapshot* has the public name of an estimator, its parameters (the arguments of the constructor),
and its fitted arrays and numbers under flat names such as ``model.encoder``, which follow a schema.
The classes in which a fitted state keeps them are no part of it.

A `Record` describes an object by the kinds of its fields. A *kind* is ``int``, ``float``, ``bool``,
``str``, ``object`` (anything that `described` can store), a `Record` (whose fields get the prefix
``field.``), an `As`, or the axes of an array of real or complex numbers, one letter each (``"i:"``
before them: of integers). Equal letters are equal sizes within a snapshot; m is the number of
features. A tuple lists alternatives. What is None is not stored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from lucidae.arrays import is_array, to_numpy
from lucidae.certificates.claims import Certificate, Claim
from lucidae.iteration import History, Status

__all__ = [
    "CERTIFICATE",
    "DTYPE",
    "HISTORY",
    "STATUS",
    "As",
    "Record",
    "Snapshot",
    "Values",
    "check_schema",
    "described",
    "digest",
    "object_of",
    "restored",
    "schema_of",
    "values_of",
    "with_size",
]

Values = dict[str, Any]


class As(NamedTuple):
    """A kind whose values are stored as another kind."""

    kind: Any
    stored: Callable[[Any], Any]
    made: Callable[[Any], Any]


class Record:
    """A class of objects that are stored by their fields, with the kinds of these fields.

    `read` returns the fields of an object by name, by default its attributes; `make` returns an
    object with those fields that were stored.
    """

    def __init__(
        self,
        of: type,
        read: Callable[[Any], Mapping[str, Any]] | None = None,
        make: Callable[..., Any] | None = None,
        /,
        **fields: Any,
    ) -> None:
        self.of, self.make, self.fields = of, make or of, fields
        self.read = read or (lambda found: {name: getattr(found, name) for name in fields})


def with_size(kind: Any, old: str, new: str) -> Any:
    """Return a kind in which the size `old` is called `new`, such as the features of a part."""
    if isinstance(kind, Record):
        fields = {name: with_size(inner, old, new) for name, inner in kind.fields.items()}
        return Record(kind.of, kind.read, kind.make, **fields)
    if isinstance(kind, As):
        return kind._replace(kind=with_size(kind.kind, old, new))
    if isinstance(kind, tuple):
        return tuple(with_size(one, old, new) for one in kind)
    if isinstance(kind, str):
        prefix, colon, letters = kind.rpartition(":")
        return prefix + colon + letters.replace(old, new)
    return kind


class Snapshot(NamedTuple):
    """How the state of an estimator is stored, and those parameters that are not plain values."""

    state: Any  # a `Record`, or several of them
    parameters: Mapping[str, As] = {}


STATUS = As(str, lambda status: status.value, Status)
DTYPE = As(str, lambda array: str(to_numpy(array).dtype), lambda name: np.empty(0, dtype=name))
HISTORY = Record(History, iterations="i:h", values=object)
CERTIFICATE = Record(
    Certificate,
    title=str,
    claims=As(
        object,
        lambda claims: [dataclasses.asdict(claim) for claim in claims],
        lambda claims: tuple(Claim(**fields) for fields in claims),
    ),
    evidence=object,
)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return kind if isinstance(kind, tuple) else (kind,)


def schema_of(kind: Any, name: str = "") -> dict[str, tuple[Any, ...]]:
    """Return the kinds of all values by their flat names."""
    found: dict[str, tuple[Any, ...]] = {}
    for one in _alternatives(kind):
        inner = {name: (one.kind if isinstance(one, As) else one,)}
        if isinstance(one, Record):
            parts = [schema_of(own, _joined(name, key)) for key, own in one.fields.items()]
            inner = {key: kinds for part in parts for key, kinds in part.items()}
        for key, kinds in inner.items():
            found[key] = tuple(dict.fromkeys((*found.get(key, ()), *kinds)))
    return found


def _joined(name: str, field: str) -> str:
    return f"{name}.{field}" if name else field


def values_of(kind: Any, value: Any, name: str = "") -> Values:
    """Return the values of an object under their flat names."""
    if value is None:
        return {}
    for one in _alternatives(kind):
        if isinstance(one, Record) and one.of is type(value):
            read = one.read(value)
            parts = [
                values_of(own, read.get(field), _joined(name, field))
                for field, own in one.fields.items()
            ]
            return {key: part[key] for part in parts for key in part}
    return {name: kind.stored(value) if isinstance(kind, As) else value}


def object_of(kind: Any, values: Values, name: str = "") -> Any:
    """Return the object that has these values; None if it has none."""
    if name in values:
        return kind.made(values[name]) if isinstance(kind, As) else values[name]
    start = _joined(name, "")
    names = {key.removeprefix(start).partition(".")[0] for key in values if key.startswith(start)}
    for one in _alternatives(kind):
        if isinstance(one, Record) and names and names <= one.fields.keys():
            fields = {key: object_of(one.fields[key], values, start + key) for key in names}
            return one.make(**fields)
    if names:
        raise ValueError(f"it has {', '.join(sorted(names))} of {name}, which exclude each other")
    return None


def check_schema(values: Values, schema: Mapping[str, tuple[Any, ...]], features: Any) -> None:
    """Raise a ValueError unless all values have the kinds and shapes of their schema."""
    sizes = {"m": features, "1": 1, "0": 0}
    for name, value in values.items():
        if name not in schema:
            raise ValueError(f"{name} is not known: update lucidae")
        if not any(_is_of(value, kind, sizes) for kind in schema[name]):
            found = f"the shape {value.shape}" if is_array(value) else f"the value {value!r:.60}"
            wanted = " or ".join(str(getattr(kind, "__name__", kind)) for kind in schema[name])
            raise ValueError(f"{name} has {found}, expected {wanted} with {sizes}")
    most = sum(value.size for value in values.values() if is_array(value))
    if type(features) is not int or not 1 <= features <= most:
        raise ValueError(f"n_features_in_ is {features!r:.60}, but no array has that many entries")


def _is_of(value: Any, kind: Any, sizes: dict[str, Any]) -> bool:
    """Tell whether a value is of a kind; the sizes of a matching array are added to `sizes`."""
    if kind is object:
        return True
    if isinstance(kind, type):
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if kind is float:
            return whole or isinstance(value, float | complex | np.floating)
        return whole if kind is int else isinstance(value, kind)
    prefix, _, letters = kind.rpartition(":")
    if not isinstance(value, np.ndarray) or value.dtype.kind not in ("iu" if prefix else "fc"):
        return False
    known = dict(sizes)
    agrees = len(letters) == value.ndim and all(
        known.setdefault(letter, size) == size
        for letter, size in zip(letters, value.shape, strict=True)
    )
    if agrees:
        sizes.update(known)
    return agrees


def described(value: Any, name: str, arrays: dict[str, Any]) -> Any:
    """Return a value as JSON can store it; its arrays are added to `arrays` under their names.

    `name` is the path of names that leads to the value. An array that has a name already keeps it.
    """
    if value is None or isinstance(value, bool | str) or type(value) in (int, float):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError(
            f"{name} is a masked array, which cannot be written to a file. Replace it by a plain "
            "array, for example with its method filled()."
        )
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        if value.ndim != 1 or not all(isinstance(item, str) for item in value):
            raise ValueError(
                f"{name} is an array of Python objects, which cannot be written to a file. Use an "
                "array of numbers or a one-dimensional array of text."
            )
        return {"names": [str(item) for item in value]}
    value = np.complex128(value) if type(value) is complex else value
    if is_array(value) or isinstance(value, np.generic):
        array = np.asarray(to_numpy(value))
        known = [key for key, other in arrays.items() if other is array]
        place = known[0] if known else name if name not in arrays else f"{name}.{len(arrays)}"
        arrays[place] = array
        return {"array": place}
    if isinstance(value, np.random.Generator) and isinstance(value.bit_generator, np.random.PCG64):
        return {"random": json.loads(json.dumps(value.bit_generator.state, default=int))}
    if type(value) in (list, tuple):
        items = [described(item, f"{name}.{at}", arrays) for at, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, dict):
        pairs = []
        for at, (key, item) in enumerate(value.items()):
            last = key if isinstance(key, str) and key.isidentifier() else str(at)
            stored = described(key, f"the key {key!r} of {name}", arrays)
            pairs.append([stored, described(item, f"{name}.{last}", arrays)])
        return {"map": pairs}
    raise ValueError(
        f"{name} is of the type {type(value).__name__}, which cannot be written to a file. Give "
        "the estimator plain values (an integer as random_state, a number of folds as cv), or use "
        "joblib.dump, whose files only this version of the software can read."
    )


def restored(tree: Any, arrays: Mapping[str, Any]) -> Any:
    """Return the value that `described` has described."""
    if isinstance(tree, list):
        return [restored(item, arrays) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "array":
        array = arrays[content]
        return array[()] if array.ndim == 0 else array
    if kind == "names":
        return np.array([str(item) for item in content], dtype=object)
    if kind == "tuple":
        return tuple(restored(content, arrays))
    if kind == "map":
        return {restored(key, arrays): restored(item, arrays) for key, item in content}
    if kind == "random":
        generator = np.random.Generator(np.random.PCG64(0))
        generator.bit_generator.state = content
        return generator
    raise ValueError(f"it has an entry of the kind {kind!r:.60}, which is not known")


def digest(header: Mapping[str, Any], arrays: Mapping[str, Any]) -> str:
    """Return the SHA-256 digest of a header, as JSON, and of the arrays with their names."""
    found = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()
