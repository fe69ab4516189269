"""Seeded damage to every kind of file that lucidae reads.

A damaged file has one allowed outcome besides being read: a `ValueError` of one line. For the
store of experiments, a damaged cell is a cell that is not done.
"""

from __future__ import annotations

import io
import json
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import lucidae
from lucidae_papers.cells import Cell, Work
from lucidae_papers.store import Store

METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
JUNK = (
    None, True, 0, -1, 2**70, 1e308, float("nan"), "", "x" * 300, [], {}, [[]], {"array": "array0"},
    {"array": "absent"}, {"list": [1]}, {"map": [[[], 1]]}, {"map": [1]}, {"tuple": 3},
    {"record": "lucidae.moment/1", "fields": {}}, {"record": 3}, {"member": "lucidae.status/1"},
    {"dtype": "O"}, {"dtype": "V8"}, {"random": {}}, {"names": [[1]]}, {"array": "model.encoder"},
    {"estimator": "SparseVAE", "parameters": {}, "attributes": {}, "values": {}},
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kind of file: the suffix of its name, an intact file, and the function that reads it."""

    suffix: str
    content: bytes
    read: Callable[[Path], Any]


def fuzz_files(count: int, seed: int) -> list[str]:
    """Damage `count` files and return one sentence for each reader that broke its promise.

    Parameters
    ----------
    count : int
        Number of damaged files.
    seed : int
        Seed of the damages; the same seed gives the same files.
    """
    rng = np.random.default_rng(seed)
    findings = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            name = list(kinds())[rng.integers(len(kinds()))]
            kind, damage = kinds()[name], DAMAGES[rng.integers(len(DAMAGES))]
            path = Path(folder) / f"damaged{kind.suffix}"
            path.write_bytes(damage(kind.content, rng))
            failure = failure_of(kind.read, path)
            if failure:
                where = f"number {number} of fuzz_files({count}, {seed})"
                findings.append(f"{name}, {damage.__name__}: {failure} ({where})")
    return findings


def failure_of(read: Callable[[Path], Any], path: Path) -> str:
    """Return what is wrong with the answer to a file; empty if nothing is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read(path)
    except ValueError as error:
        lines = str(error).splitlines()
        return "" if len(lines) == 1 else f"a message of {len(lines)} lines"
    except BaseException as error:  # also what no `except Exception` would catch
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {error}"
    return ""


@cache
def kinds() -> dict[str, Kind]:
    """Return the kinds of files by name, each with a small intact file."""
    with tempfile.TemporaryDirectory() as folder:
        return {**_models(Path(folder)), **_stores(Path(folder)), **_tables(Path(folder))}


def _models(folder: Path) -> dict[str, Kind]:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 5))
    Y = X @ rng.standard_normal((5, 3))
    fitted = {
        "linear model": lucidae.LinearAutoencoder(2).fit(X),
        "stream": lucidae.LinearAutoencoder(2).partial_fit(X),
        "dropout regression": lucidae.DropoutRegressor(2).fit(X, Y),
        "dropout autoencoder": lucidae.DropoutAutoencoder(2).fit(X),
        "factorization": lucidae.DropoutFactorization(2).fit(X),
        "sparse model": lucidae.SparseVAE(noise_variance=0.1).fit(X, Y),
        "pipeline": make_pipeline(StandardScaler(), lucidae.LinearAutoencoder(2)).fit(X),
    }
    found = {}
    for name, model in fitted.items():
        lucidae.save(model, folder / "model.npz")
        found[name] = Kind(".npz", (folder / "model.npz").read_bytes(), _use_model)
    with zipfile.ZipFile(Path(__file__).parents[1] / "data" / "0.3.0.zip") as earlier:
        for name in ("linear-stream", "dropout-regressor", "completion", "sparse-groups",
                     "pipeline-scalers"):  # fmt: skip
            found[f"{name} of 0.3.0"] = Kind(".npz", earlier.read(f"{name}.npz"), _use_model)
    lucidae.SecondMoment.of(X).save(folder / "moment.npz")
    read = lucidae.SecondMoment.load
    return found | {"moment": Kind(".npz", (folder / "moment.npz").read_bytes(), read)}


def _use_model(path: Path) -> None:
    """Load a model; what was loaded must process rows."""
    model = lucidae.load(path)
    rows = np.ones((2, model.n_features_in_))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.transform(rows) if hasattr(model, "transform") else model.predict(rows)
        except Exception as error:
            raise AssertionError(f"loaded, but not usable: {error}") from error


def _stores(folder: Path) -> dict[str, Kind]:
    cell = Cell(Work("test.fuzz/1", lambda group, device: []), {"seed": 0, "rates": [0.1, 1e-4]})
    about = {"seconds": 1.0, "versions": {"numpy": "2"}, "machine": "any", "device": "cpu"}
    store = Store(folder / "cells")
    store.save(cell, {"a": np.arange(20.0), "b": np.array([True])}, about)

    def find(path: Path) -> None:
        with tempfile.TemporaryDirectory() as place:
            damaged = Store(place)
            damaged.path(cell).parent.mkdir(parents=True)
            damaged.path(cell).write_bytes(path.read_bytes())
            try:
                damaged.missing([cell])
            except ValueError as error:
                raise AssertionError("the store must not raise") from error

    return {"cell": Kind(".npz", store.path(cell).read_bytes(), find)}


def _read(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Columns of .* were left out")
        lucidae.datasets.read_table(path)


def _tables(folder: Path) -> dict[str, Kind]:
    import pandas as pd

    values = np.random.default_rng(1).standard_normal((12, 4))
    frame = pd.DataFrame(values, columns=["a", "b c", "2020", 'q"'])
    frame["word"] = list("xyzxyzxyzxyz")
    frame.to_csv(folder / "a.csv")
    frame.to_csv(folder / "a.txt", sep=";", decimal=",")
    frame.to_parquet(folder / "a.parquet")
    np.save(folder / "a.npy", values)
    np.savez_compressed(folder / "a.npz", X=values, y=np.arange(12.0))
    suffixes = (".csv", ".txt", ".parquet", ".npy", ".npz")
    return {
        f"table{suffix}": Kind(suffix, (folder / f"a{suffix}").read_bytes(), _read)
        for suffix in suffixes
    }


def flip_bits(content: bytes, rng: Any) -> bytes:
    """Flip one to three bits."""
    damaged = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
    return bytes(damaged)


def change_bytes(content: bytes, rng: Any) -> bytes:
    """Overwrite a short stretch by random bytes, zeros or ones."""
    damaged, start = bytearray(content), rng.integers(len(content))
    length = min(int(rng.integers(1, 40)), len(content) - start)
    fill = [rng.bytes(length), bytes(length), b"\xff" * length][rng.integers(3)]
    damaged[start : start + length] = fill
    return bytes(damaged)


def cut(content: bytes, rng: Any) -> bytes:
    """Keep the beginning or the end only."""
    at = rng.integers(len(content))
    return content[:at] if rng.random() < 0.7 else content[at:]


def repeat(content: bytes, rng: Any) -> bytes:
    """Insert a copy of a stretch elsewhere, or remove it."""
    start, stop, at = np.sort(rng.integers(len(content), size=3))
    if rng.random() < 0.5:
        return content[:start] + content[stop:]
    return content[:at] + content[start:stop] + content[at:]


def rewrite_archive(content: bytes, rng: Any) -> bytes:
    """Damage the members of an archive and write it again with valid check sums."""
    members = _members(content)
    if not members:
        return flip_bits(content, rng)
    name = list(members)[rng.integers(len(members))]
    damage = (flip_bits, change_bytes, cut, repeat)[rng.integers(4)]
    if members[name]:
        # Most headers are within the first 128 bytes, where damage is most interesting.
        head = members[name][:128] if rng.random() < 0.6 else members[name]
        members[name] = damage(head, rng) + members[name][len(head) :]
    return _archive(members, METHODS[rng.integers(4)] if rng.random() < 0.3 else METHODS[0])


def change_arrays(content: bytes, rng: Any) -> bytes:
    """Drop an array of an archive, or give it another shape, type or value."""
    members = _members(content)
    if not members:
        return change_bytes(content, rng)
    name = list(members)[rng.integers(len(members))]
    if members[name].startswith(b"PK"):  # a packed store: its members are archives themselves
        return _archive(members | {name: change_arrays(members[name], rng)})
    array = np.load(io.BytesIO(members[name]), allow_pickle=False)
    changed = [
        None,
        array.ravel(),
        array[..., None],
        array[..., :1] if array.ndim else array,
        np.concatenate([array.ravel()] * 2),
        array.astype(bool) if array.dtype.kind == "f" else array,
        np.full(array.shape, np.nan),
        array.astype("S4") if array.dtype.kind != "U" else array.astype("U9"),
        np.empty((0, 3)),
    ][rng.integers(9)]
    members.pop(name)
    if changed is not None:
        stream = io.BytesIO()
        np.save(stream, changed)
        members[name] = stream.getvalue()
    return _archive(members)


def change_header(content: bytes, rng: Any) -> bytes:
    """Change one value of the JSON text in an archive, anywhere in its tree."""
    members = _members(content)
    for inner, inside in members.items():
        if inside.startswith(b"PK"):
            return _archive(members | {inner: change_header(inside, rng)})
    name = next((name for name in members if name in ("header.npy", "about.npy")), None)
    if name is None:
        return repeat(content, rng)
    tree = json.loads(str(np.load(io.BytesIO(members[name]))))
    _spoil(tree, rng)
    text = json.dumps(tree)
    if rng.random() < 0.05:
        text = "[" * int(rng.integers(1, 200_000)) + text
    stream = io.BytesIO()
    np.save(stream, np.array(text))
    return _archive(members | {name: stream.getvalue()})


def _spoil(tree: Any, rng: Any) -> None:
    """Delete or replace one value at a random place of a tree of lists and dictionaries."""
    places = list(tree) if isinstance(tree, dict) else range(len(tree))
    if not len(places):
        return
    place = places[int(rng.integers(len(places)))]
    if isinstance(tree[place], dict | list) and len(tree[place]) and rng.random() < 0.85:
        _spoil(tree[place], rng)
    elif rng.random() < 0.4:
        del tree[place]
    else:
        tree[place] = JUNK[rng.integers(len(JUNK))]


DAMAGES = (flip_bits, change_bytes, cut, repeat, rewrite_archive, change_arrays, change_header)


def _members(content: bytes) -> dict[str, bytes]:
    if not content.startswith(b"PK"):
        return {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _archive(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in members.items():
            member = zipfile.ZipInfo(name)  # with a fixed date
            member.compress_type = method
            archive.writestr(member, content)
    return stream.getvalue()
