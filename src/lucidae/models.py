"""Save and load estimators: one ``.npz`` file of arrays with a JSON header, without code.

The header has one snapshot for each estimator of lucidae, and a digest of header and arrays: of a
file that was changed afterwards, the certificates are undecided. Objects of scikit-learn around the
estimators are stored by skops, which executes no code from a file either. `lucidae.legacy` reads
the files of versions 0.1 to 0.3.

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
import io
import json
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from lucidae._version import __version__
from lucidae.arrays import is_array, to_numpy
from lucidae.base import CertifiedMixin
from lucidae.certificates.claims import Certificate, Claim
from lucidae.certificates.sketch import Sketch
from lucidae.io import (
    EXPANSION,
    SMALL,
    claimed_bytes,
    load_arrays,
    open_member,
    reason_of,
    require_size,
    save_arrays,
)
from lucidae.iteration import History, Status
from lucidae.moments import SecondMoment
from lucidae.validation import install_command

FORMAT = 3

FAMILIES = {
    "DropoutAutoencoder": "lucidae.dropout.snapshot",
    "DropoutFactorization": "lucidae.dropout.snapshot",
    "DropoutRegressor": "lucidae.dropout.snapshot",
    "LinearAutoencoder": "lucidae.linear.snapshot",
    "LowRankImputer": "lucidae.impute",
    "SparseVAE": "lucidae.sparsity.snapshot",
}
"""Public names of the estimators, each with the module whose `SNAPSHOTS` has its form."""

CHANGED = (
    "The file was changed after the estimator was saved: its digest is not that of its content. "
    "Load the original file, or call lucidae.certify with the estimator and its data."
)

SAFE = ("sklearn.metrics.", "sklearn.model_selection.", "sklearn.gaussian_process.kernels")
"""Beginnings of the modules of scikit-learn whose types and functions can be read from a file."""

TREE = "sklearn.tree._tree.Tree"

DTYPE_NAME = "numpy.dtype"  # stored as an empty array; scikit-learn's imputers have some

_HEADER = "header"
_SCIKIT = "scikit"

_PLACE = "\x00lucidae:"
"""Text that stands, with a number, for an estimator of lucidae in what skops stores."""


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


def save(estimator: BaseEstimator, path: str | os.PathLike[str] | None = None) -> None:
    """Write a fitted estimator to a file, completely or not at all.

    Pipelines, ``FeatureUnion``, ``ColumnTransformer``, ``GridSearchCV`` and other estimators of
    scikit-learn are written, too, with or without estimators of this package in them; they need the
    package skops. An estimator that `load` could not read back is refused.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator of this package, or of scikit-learn.
    path : path
        The file; its name usually ends in ``.npz``.

    Raises
    ------
    ValueError
        If the estimator contains something that cannot be written; the message names the
        attribute or the type.

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
    is_estimator = hasattr(estimator, "fit") and not isinstance(estimator, type)
    if not is_estimator or not isinstance(path, str | os.PathLike):
        given = [type(part).__name__ for part in (estimator, path) if part is not None]
        raise ValueError(
            f"save was called with {' and '.join(given) or 'nothing'}, expected a fitted estimator "
            "and the path of the file, in this order: lucidae.save(estimator, path)."
        )
    save_from(estimator, path, None)


def save_from(
    estimator: BaseEstimator, path: str | os.PathLike[str], source: Source | None
) -> None:
    """Write a fitted estimator as `save` does, with a note of the data file it was fitted to."""
    check_is_fitted(estimator)
    owner = type(estimator).__name__
    arrays: dict[str, Any] = {}
    try:
        own, prefixes = [estimator], [""]
        if not _is_own(estimator):
            content, own = _scikit_content(estimator)
            arrays[_SCIKIT] = np.frombuffer(content, dtype=np.uint8)
            prefixes = [f"{at}/" for at in range(len(own))]
        snapshots = [_snapshot(*pair, arrays) for pair in zip(own, prefixes, strict=True)]
        header: Any = {"format": FORMAT, "version": __version__, "estimators": snapshots}
        header = json.loads(json.dumps(header))
    except RecursionError:
        raise ValueError(
            f"{owner} contains itself or is nested too deeply, so it cannot be written to a file."
        ) from None
    try:
        _loaded(header, arrays, None)
    except Exception as error:
        raise ValueError(
            f"This {owner} cannot be written to a file, because it could not be read back: "
            f"{_reason(error)}."
        ) from error
    if source is not None:
        header["source"] = dataclasses.asdict(source)
    header["digest"] = digest(header, arrays)
    save_arrays(path, {_HEADER: np.array(json.dumps(header)), **arrays})


def source_of(path: str | os.PathLike[str]) -> Source | None:
    """Return name and place (a digest of the path) of the data file that a model was fitted to."""
    try:
        header = json.loads(str(load_arrays(path, "a saved estimator")[_HEADER]))
        return Source(str(header["source"]["name"]), str(header["source"]["place"]))
    except Exception:  # not a saved model, or one that `save` wrote
        return None


def load(path: str | os.PathLike[str]) -> Any:
    """Read an estimator that `save` or ``lucidae fit`` wrote.

    Files of all earlier versions can be read. If the file was changed after it was saved, the
    certificate of what is loaded is undecided and says so.

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
    arrays = load_arrays(path, "a file that lucidae.save has written")
    try:
        header = json.loads(str(arrays.pop(_HEADER)))
        if not 1 <= header["format"] <= FORMAT:
            raise ValueError(
                f"the file has format {header['format']!r}, but this version of lucidae reads "
                f"formats 1 to {FORMAT} only; update lucidae."
            )
        if header["format"] < FORMAT:
            return import_module("lucidae.legacy").loaded(header["estimator"], arrays)
        stated = header.pop("digest", None)
        return _loaded(header, arrays, None if stated == digest(header, arrays) else CHANGED)
    # A header with other content than `save` writes can raise almost anything.
    except Exception as error:
        raise ValueError(
            f"{os.fspath(path)!r} cannot be read as a saved estimator: {_reason(error)}."
        ) from error


def _reason(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else reason_of(error)


def _loaded(header: Values, arrays: Mapping[str, Any], doubt: str | None) -> Any:
    """Return the estimator of a file of the present format, with a `doubt` about all of it."""
    own = []
    for snapshot in header["estimators"]:
        parts = [
            None if part is None else {key: restored(tree, arrays) for key, tree in part.items()}
            for part in (snapshot[name] for name in ("parameters", "attributes", "values"))
        ]
        own.append(built(snapshot["estimator"], *parts))
        if snapshot["values"] is not None:
            own[-1]._state.doubt = doubt or snapshot.get("doubt")
    found = _scikit_loaded(arrays[_SCIKIT].tobytes(), own) if _SCIKIT in arrays else own[0]
    check_is_fitted(found)
    return found


def _is_own(estimator: Any) -> bool:
    """Tell whether an object is an estimator of lucidae; one of a subclass is an error."""
    if not isinstance(estimator, CertifiedMixin):
        return False
    kind: type = type(estimator)
    if kind.__name__ in FAMILIES and kind is _class_of(kind.__name__):
        return True
    parents = [parent.__name__ for parent in kind.__mro__ if parent.__name__ in FAMILIES]
    raise ValueError(
        f"{kind.__name__}, a subclass of {', '.join(parents)}, cannot be written to a file, "
        "because lucidae.load could not find it. Use joblib.dump, whose files only this version of "
        "the software can read."
    )


def snapshot_of(name: str) -> Snapshot:
    """Return how the estimator with a public name is stored."""
    if name not in FAMILIES:
        raise ValueError(f"it contains an estimator {name!r:.60}, which is not known")
    found: Snapshot = import_module(FAMILIES[name]).SNAPSHOTS[name]
    return found


def _class_of(name: str) -> Any:
    """Return the estimator with a public name."""
    return getattr(import_module(FAMILIES[name].removesuffix(".snapshot")), name)


def schema(name: str) -> dict[str, Any]:
    """Return the kinds of all values of the estimator with a public name, by flat names."""
    return schema_of(snapshot_of(name).state) | schema_of(CERTIFICATE, "certificate")


def _snapshot(estimator: Any, prefix: str, arrays: dict[str, Any]) -> Values:
    """Return the snapshot of an estimator for the header; its arrays are added to `arrays`."""
    name, rest = type(estimator).__name__, dict(vars(estimator))
    form, state, values = snapshot_of(name), rest.pop("_state", None), None
    parameters = {key: rest.pop(key) for key in estimator.get_params(deep=False)}
    for key, kind in form.parameters.items():
        parameters[key] = kind.stored(parameters[key])
    if state is not None:
        values = values_of(form.state, state)
        rest = state.changed_in_place() | rest
        if state.keeps_certificate:
            values |= values_of(CERTIFICATE, state.certificate(name), "certificate")

    def stored(part: Values, start: str) -> Values:
        return {key: described(v, f"{prefix}{start}{key}", arrays) for key, v in part.items()}

    return {
        "estimator": name,
        "parameters": stored(parameters, f"{name}."),
        "attributes": stored(rest, f"{name}."),
        "values": None if values is None else stored(values, ""),
        "doubt": None if state is None else state.doubt,
    }


def built(name: str, parameters: Any, attributes: Any, values: Any) -> Any:
    """Return the estimator of a snapshot after checks; without `values` it is not fitted."""
    form, kind = snapshot_of(name), _class_of(name)
    for key in form.parameters.keys() & parameters.keys():
        parameters[key] = form.parameters[key].made(parameters[key])
    estimator = kind(**parameters)
    hidden = [key for key in attributes if callable(getattr(kind, key, None)) or key == "_state"]
    if hidden:
        raise ValueError(f"{hidden[0]!r} of {name} is not an attribute that can have a value")
    if values is not None:
        check_schema(values, schema(name), attributes["n_features_in_"])
        own = {key: v for key, v in values.items() if not key.startswith("certificate.")}
        estimator._state = object_of(form.state, own)
        estimator._state._certificate = object_of(CERTIFICATE, values, "certificate")
    vars(estimator).update(attributes)
    if values is not None:
        check_row(estimator)
    return estimator


def check_row(estimator: Any) -> None:
    """Raise an error unless a fitted estimator returns one row for one row of data."""
    row = np.zeros((1, estimator.n_features_in_))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the row has no names of features
        use = estimator.transform if hasattr(estimator, "transform") else estimator.predict
        output = use(row)
    if output.shape[0] != 1:
        raise ValueError(f"for one row of data the estimator returns {output.shape[0]} rows")


def _skops() -> Any:
    try:
        return import_module("skops.io")
    except ImportError:
        raise ValueError(
            "files with estimators of scikit-learn need the package skops: "
            f"{install_command('skops')}"
        ) from None


def _scikit_content(whole: Any) -> tuple[bytes, list[Any]]:
    """Return what skops stores of an object, and the estimators of lucidae within it."""
    own: list[Any] = []

    def place(part: Any) -> int | None:
        if not _is_own(part):
            return None
        found = [at for at, known in enumerate(own) if known is part]
        own.extend([] if found else [part])
        return found[0] if found else len(own) - 1

    try:
        content: bytes = _skops().dumps(_exchanged(whole, place, lambda at: f"{_PLACE}{at}"))
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise ValueError(
            f"This {type(whole).__name__} contains something that cannot be written to a file: "
            f"{str(error).partition(chr(10))[0]}"
        ) from error
    return content, own


def _scikit_loaded(content: bytes, own: list[Any]) -> Any:
    """Return the object that skops has stored, with the given estimators of lucidae within it."""
    skops = _skops()
    _check_archive(content, max(SMALL, EXPANSION * len(content)))
    types = skops.get_untrusted_types(data=content)
    refused = [name for name in types if not _is_safe(name)]
    if refused:
        raise ValueError(f"it contains {refused[0]}, which is not safe to read from a file")

    def place(part: Any) -> int | None:
        check_part(part)
        stands = isinstance(part, str) and part.startswith(_PLACE)
        return int(part.removeprefix(_PLACE)) if stands else None

    return _exchanged(skops.loads(content, trusted=types), place, own.__getitem__)


def _exchanged(whole: Any, place: Callable[[Any], int | None], at: Callable[[int], Any]) -> Any:
    """Return a copy of an object in which parts with a `place` are exchanged for `at` that place.

    The copy is made in memory by pickle, which visits every part; no pickle is read from a file.
    """

    class Writer(pickle.Pickler):
        def persistent_id(self, part: Any) -> int | None:
            return place(part)

    class Reader(pickle.Unpickler):
        def persistent_load(self, number: int) -> Any:
            return at(number)

    stream = io.BytesIO()
    Writer(stream, protocol=pickle.HIGHEST_PROTOCOL).dump(whole)
    stream.seek(0)
    return Reader(stream).load()


def _is_safe(name: str) -> bool:
    """Tell whether a type that skops does not trust can be read from a file all the same.

    These are scikit-learn's metrics, scorers, splitters of data, kernels and decision trees, which
    are checked by `check_part`, and types of arrays.
    """
    module, _, kind = name.rpartition(".")
    if not module.startswith(SAFE):
        return name in (TREE, DTYPE_NAME)
    return getattr(getattr(import_module(module), kind, None), "__module__", None) == module


def check_part(part: Any) -> None:
    """Raise an error for a part of an object of scikit-learn that could do harm.

    The folder of a cache is chosen by the file, and `fit` would read pickles from it. Prediction by
    trees reads memory at the numbers of their nodes and features, which are not checked there.
    """
    if not isinstance(part, BaseEstimator):
        return
    if getattr(part, "memory", None) is not None:
        raise ValueError(
            "an estimator with a cache cannot be written to a file or read from one; remove the "
            "cache by set_params(memory=None)"
        )
    members = getattr(part, "estimators_", ())
    members = members.ravel() if isinstance(members, np.ndarray) else members
    owners = [one for one in (part, *members) if hasattr(one, "tree_")]
    widths = {width for one in owners for width in (one.tree_.n_features, one.n_features_in_)}
    known = not owners or (len(widths) == 1 and widths.pop() <= part.n_features_in_)
    if not (known and all(_is_tree(one.tree_) for one in owners if one is part)):
        raise ValueError("a decision tree of the file has nodes that no fit produces")


def _is_tree(tree: Any) -> bool:
    """Tell whether the nodes of a decision tree lead to later nodes, and have known features."""
    inner = tree.children_left != -1
    children = np.stack([tree.children_left, tree.children_right])[:, inner]
    later = (children > np.flatnonzero(inner)) & (children < tree.node_count)
    features = tree.feature[inner]
    return bool(later.all() and ((features >= 0) & (features < tree.n_features)).all())


def _check_archive(content: bytes, limit: int) -> None:
    """Raise an error if an archive states that it contains more than `limit` bytes."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        require_size(sum(info.file_size for info in archive.infolist()), limit)
        for info in archive.infolist():
            if info.filename.endswith(".npz"):  # a sparse matrix
                _check_archive(archive.read(info), limit)
            elif info.filename.endswith(".npy"):
                with open_member(archive, info) as entry:
                    require_size(claimed_bytes(entry), limit)


# The form of a snapshot.

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
MOMENT = Record(SecondMoment, weight=float, squares="mm", center="m", offset="m", rounding=float)
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


def sketch_record(m: str, images: str, peaks: str) -> Record:
    """Return how a sketch is stored, with the letters of features, random directions and peaks."""
    sums = {"shift": m, "sums": m, "images": images, "peaks": peaks}
    return Record(Sketch, weight=float, size=float, depth=int, rows=int, **sums)


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
