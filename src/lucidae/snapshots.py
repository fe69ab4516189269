"""Values of a snapshot: flat names, the schema that they follow, and how a file stores them.

A *snapshot* is what is stored of a fitted estimator: its public name, its parameters (the arguments
of the constructor), and its fitted arrays and numbers under flat names such as ``model.encoder``.
The classes in which a fitted state keeps them are no part of it.

A *schema* has one entry per name: ``int``, ``float``, ``bool``, ``str``, ``object`` (anything that
can be stored), or the axes of an array of real or complex numbers, one letter each (``"i:"`` before
them: of integers). Equal letters are equal sizes within the snapshot; m is the number of features.
A tuple lists alternatives. A name that ends in ``.*`` stands for all names that begin like it. An
entry that is None is not stored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from lucidae.arrays import is_array, to_numpy
from lucidae.certificate import Certificate, Claim
from lucidae.iteration import History

__all__ = [
    "CERTIFICATE",
    "HISTORY",
    "Schema",
    "SnapshotForm",
    "Values",
    "certificate_of",
    "certificate_values",
    "check_schema",
    "described",
    "digest",
    "flat",
    "history_of",
    "history_values",
    "part",
    "restored",
]

Values = dict[str, Any]
Schema = Mapping[str, Any]

HISTORY: Schema = {"history.iterations": "i:h", "history.values.*": object}
CERTIFICATE: Schema = {
    "certificate.title": str,
    "certificate.claims": object,
    "certificate.evidence": object,
}


class SnapshotForm(NamedTuple):
    """The schema of the snapshots of an estimator, and the conversion of its state and parameters.

    `parameters` makes plain values of parameters that are objects of lucidae, and `given` the
    objects of these values.
    """

    schema: Schema
    values: Callable[[Any], Values]  # of a fitted state
    state: Callable[[Values], Any]  # the fitted state with these values
    parameters: Callable[[Values], Values] = dict
    given: Callable[[Values], Values] = dict


def flat(name: str, record: Any) -> Values:
    """Return the fields of a mapping, named tuple or dataclass as ``name.field``; {} for None."""
    if record is None:
        return {}
    if dataclasses.is_dataclass(record):
        record = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    elif not isinstance(record, Mapping):
        record = record._asdict()
    return {f"{name}.{key}": value for key, value in record.items()}


def part(values: Mapping[str, Any], name: str) -> Values | None:
    """Return the values under ``name.`` without this prefix; None if there are none."""
    start = f"{name}."
    found = {key.removeprefix(start): v for key, v in values.items() if key.startswith(start)}
    return found or None


def history_values(history: History) -> Values:
    """Return the values of a history."""
    return {"history.iterations": history.iterations} | flat("history.values", history.values)


def history_of(values: Values) -> History:
    """Return the history of a snapshot."""
    return History(values["history.iterations"], part(values, "history.values") or {})


def certificate_values(certificate: Certificate) -> Values:
    """Return the values of a certificate."""
    return {
        "certificate.title": certificate.title,
        "certificate.claims": [dataclasses.asdict(claim) for claim in certificate.claims],
        "certificate.evidence": certificate.evidence,
    }


def certificate_of(values: Values) -> Certificate | None:
    """Return the certificate of a snapshot; None if it has none."""
    if "certificate.claims" not in values:
        return None
    claims = tuple(Claim(**claim) for claim in values["certificate.claims"])
    return Certificate(values["certificate.title"], claims, values["certificate.evidence"])


def check_schema(values: Values, schema: Schema, features: Any) -> None:
    """Raise a ValueError unless all values have the kinds and shapes of their schema.

    `features` is the number m of features.
    """
    sizes = {"m": features, "1": 1}
    for name, value in values.items():
        kinds = schema.get(name, schema.get(f"{name.rpartition('.')[0]}.*"))
        if kinds is None:
            raise ValueError(f"{name} is not known: update lucidae")
        alternatives = kinds if isinstance(kinds, tuple) else (kinds,)
        if not any(_is_of(value, kind, sizes) for kind in alternatives):
            found = f"the shape {value.shape}" if is_array(value) else f"the value {value!r:.60}"
            wanted = " or ".join(str(getattr(kind, "__name__", kind)) for kind in alternatives)
            raise ValueError(f"{name} has {found}, expected {wanted} with {sizes}")


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

    `name` is the path of names that leads to the value.
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
        place = name if name not in arrays else f"{name}.{len(arrays)}"
        arrays[place] = np.asarray(to_numpy(value))
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
    (kind, content), *others = tree.items()
    if others:
        raise ValueError(f"the file has an entry {tree!r:.60} that this version does not know")
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
    raise ValueError(f"the file has an entry of the kind {kind!r} that this version does not know")


def digest(header: Mapping[str, Any], arrays: Mapping[str, Any]) -> str:
    """Return the SHA-256 digest of a header, as JSON, and of the arrays with their names."""
    found = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        found.update(array.tobytes())
    return found.hexdigest()
