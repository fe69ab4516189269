import json
import zipfile

import numpy as np
import pytest

from lucidae.experiments.declaration import Cell
from lucidae.experiments.store import Store
from lucidae.io.atomic import save_arrays

ABOUT = {"seconds": 1.0, "versions": {"numpy": "2"}, "machine": "any", "device": "cpu"}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cells")


def cell(seed=0):
    return Cell("any:work", {"seed": seed, "nested": {"rates": [0.1, 1e-4]}, "tied": False})


def test_what_is_saved_is_loaded_bit_by_bit(store):
    arrays = {"a": np.array([0.1, np.nan, np.inf]), "b": np.array([True]), "c": np.arange(3)}
    store.save(cell(), arrays, ABOUT)
    found = store.load(cell())
    for name, values in arrays.items():
        assert np.array_equal(found.arrays[name], values, equal_nan=name == "a")
        assert found.arrays[name].dtype == values.dtype


def test_a_key_depends_on_every_setting_and_on_nothing_else():
    same = Cell("any:work", {"tied": False, "nested": {"rates": [0.1, 1e-4]}, "seed": 0}, cost=9.0)
    assert same.key == cell().key
    assert len({cell(0).key, cell(1).key, Cell("other:work", cell().settings).key}) == 3
    with pytest.raises(ValueError, match="JSON"):
        Cell("any:work", {"rate": float("nan")}).key  # noqa: B018


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, -1])
def test_a_truncated_file_counts_as_not_done(store, keep):
    store.save(cell(), {"a": np.arange(1000.0)}, ABOUT)
    path = store.path(cell())
    content = path.read_bytes()
    count = int(keep * len(content)) if isinstance(keep, float) else keep
    path.write_bytes(content[:count])
    assert store.load(cell()) is None
    assert store.missing([cell()]) == [cell()]


def test_a_flipped_bit_counts_as_not_done(store):
    store.save(cell(), {"a": np.arange(1000.0)}, ABOUT)
    path = store.path(cell())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    assert store.load(cell()) is None


def test_another_cell_under_this_name_is_refused(store):
    store.save(cell(1), {"a": np.zeros(1)}, ABOUT)
    store.path(cell(0)).parent.mkdir(parents=True, exist_ok=True)
    store.path(cell(0)).write_bytes(store.path(cell(1)).read_bytes())
    assert store.load(cell(0)) is None
    assert store.load(cell(1)) is not None


@pytest.mark.parametrize("about", ["{}", "[]", "no json", json.dumps({"format": 99}), "3"])
def test_foreign_files_are_refused(store, about):
    save_arrays(store.path(cell()), {"a": np.zeros(1), "about": np.array(about)})
    assert store.load(cell()) is None


def test_a_pickle_is_refused_and_never_executed(store):
    store.path(cell()).parent.mkdir(parents=True)
    with store.path(cell()).open("wb") as stream:
        np.savez(stream, about=np.array([{"seconds": 1}], dtype=object))
    assert store.load(cell()) is None


def test_a_save_that_fails_leaves_nothing(store):
    with pytest.raises(ValueError, match="objects"):
        store.save(cell(), {"a": np.array([object()])}, ABOUT)
    with pytest.raises(ValueError, match="about"):
        store.save(cell(), {"about": np.zeros(1)}, ABOUT)
    assert not list(store.folder.rglob("*.npz"))


def test_a_packed_store_travels(store, tmp_path):
    cells = [cell(seed) for seed in range(3)]
    for one in cells[:2]:
        store.save(one, {"a": np.full(2, one.settings["seed"])}, ABOUT)
    assert store.pack(tmp_path / "packed.zip", cells) == 2
    other = Store(tmp_path / "other")
    assert other.unpack(tmp_path / "packed.zip") == 2
    assert other.missing(cells) == cells[2:]
    assert np.array_equal(other.load(cells[1]).arrays["a"], [1, 1])


def test_no_path_in_a_packed_file_is_followed(store, tmp_path):
    store.save(cell(), {"a": np.zeros(1)}, ABOUT)
    content = store.path(cell()).read_bytes()
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
        archive.writestr("../../escaped.npz", content)
    other = Store(tmp_path / "deep" / "other")
    other.unpack(tmp_path / "evil.zip")
    assert not list(tmp_path.rglob("escaped*"))
    assert other.load(cell()) is not None


def test_junk_is_no_packed_store(store, tmp_path):
    (tmp_path / "junk.zip").write_bytes(b"junk")
    with pytest.raises(ValueError, match="no packed store"):
        store.unpack(tmp_path / "junk.zip")
    with zipfile.ZipFile(tmp_path / "foreign.zip", "w") as archive:
        archive.writestr("a.npz", b"junk")
    with pytest.raises(ValueError, match="not a finished cell"):
        store.unpack(tmp_path / "foreign.zip")
