"""Save and load estimators: one ``.npz`` file of arrays with a JSON header, without code.

The header has one snapshot (`lucidae.snapshots`) for each estimator of lucidae, and a digest of
header and arrays: of a file that was changed afterwards, the certificates are undecided. Objects of
scikit-learn around the estimators are stored by skops, which executes no code from a file either.
`lucidae.legacy` reads the files of versions 0.1 to 0.3.
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
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from lucidae._version import __version__
from lucidae.base import CertifiedMixin
from lucidae.io.atomic import (
    EXPANSION,
    SMALL,
    claimed_bytes,
    load_arrays,
    open_member,
    reason_of,
    require_size,
    save_arrays,
)
from lucidae.snapshots import (
    CERTIFICATE,
    Snapshot,
    Values,
    check_schema,
    described,
    digest,
    object_of,
    restored,
    schema_of,
    values_of,
)
from lucidae.validation import install_command

__all__ = ["Source", "built", "check_part", "check_row", "load", "save", "save_from", "source_of"]

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

DTYPE = "numpy.dtype"  # stored as an empty array; scikit-learn's imputers have some

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

    def is_of(self, file: str | os.PathLike[str]) -> bool:
        """Return whether this source has the name and the full path of `file`."""
        return self == Source.of(file)


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
    arrays = load_arrays(path, "a saved estimator")
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
        return name in (TREE, DTYPE)
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
