import json

import numpy as np
import pytest

from lucidae_papers.cells import Cell, Work, work
from lucidae_papers.engine import run
from lucidae_papers.store import Store

ABOUT = {"seconds": 1.0, "versions": {"numpy": "2"}, "machine": "any", "device": "cpu"}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cells")


@work("test.any/1")
def any_work(group, device):
    return [{} for _ in group]


def cell(seed=0, work=any_work):
    return Cell(work, {"seed": seed, "nested": {"rates": [0.1, 1e-4]}, "tied": False})


def test_what_is_saved_is_loaded_bit_by_bit(store):
    arrays = {"a": np.array([0.1, np.nan, np.inf]), "b": np.array([True]), "c": np.arange(3)}
    store.save(cell(), arrays, ABOUT)
    found = store.load(cell())
    for name, values in arrays.items():
        assert np.array_equal(found.arrays[name], values, equal_nan=name == "a")
        assert found.arrays[name].dtype == values.dtype


def test_a_key_depends_on_every_setting_and_on_nothing_else():
    same = Cell(any_work, {"tied": False, "nested": {"rates": [0.1, 1e-4]}, "seed": 0}, cost=9.0)
    assert same.key == cell().key
    others = [Work(name, any_work) for name in ("test.any/2", "test.other/1")]
    assert len({cell(0).key, cell(1).key, *(cell(0, one).key for one in others)}) == 4
    with pytest.raises(ValueError, match="JSON"):
        Cell(any_work, {"rate": float("nan")}).key  # noqa: B018


@pytest.mark.parametrize("name", ["any:work", "any", "any/0", "any/one", "Any/1", "/1", ""])
def test_a_work_needs_a_name_and_a_version(name):
    with pytest.raises(ValueError, match="expected a name and a version"):
        Work(name, any_work)


def test_a_cell_of_an_earlier_version_counts_as_not_done(store):
    newer = [cell(seed, Work("test.any/3", any_work)) for seed in range(3)]
    store.save(cell(0), {"a": np.zeros(1)}, ABOUT)
    store.save(cell(1, Work("test.any/2", any_work)), {"a": np.zeros(1)}, ABOUT)
    assert store.missing(newer) == newer
    assert store.outdated(newer) == newer[:2]
    tally = run(newer, store, jobs=1)
    assert (tally.measured, tally.reused, tally.outdated) == (3, 0, 2)
    assert "2 runs had been measured by an earlier version" in tally.note
    again = run(newer, store, jobs=1)
    assert (again.measured, again.reused, again.outdated) == (0, 3, 0)
    assert "earlier version" not in again.note


def test_another_cell_under_this_name_is_refused(store):
    store.save(cell(1), {"a": np.zeros(1)}, ABOUT)
    store.path(cell(0)).parent.mkdir(parents=True, exist_ok=True)
    store.path(cell(0)).write_bytes(store.path(cell(1)).read_bytes())
    assert store.load(cell(0)) is None
    assert store.load(cell(1)) is not None


@pytest.mark.parametrize("about", ["{}", "[]", "no json", json.dumps({"format": 99}), "3"])
def test_foreign_files_are_refused(store, about):
    store.path(cell()).parent.mkdir(parents=True)
    np.savez(store.path(cell()), a=np.zeros(1), about=np.array(about))
    assert store.load(cell()) is None


def test_a_pickle_is_refused_and_never_executed(store):
    store.path(cell()).parent.mkdir(parents=True)
    with store.path(cell()).open("wb") as stream:
        np.savez(stream, about=np.array([{"seconds": 1}], dtype=object))
    assert store.load(cell()) is None


def test_a_save_that_fails_leaves_nothing(store):
    with pytest.raises(ValueError, match="objects"):
        store.save(cell(), {"a": np.array([object()])}, ABOUT)
    with pytest.raises(ValueError, match="reserved"):
        store.save(cell(), {"about": np.zeros(1)}, ABOUT)
    assert not list(store.folder.rglob("*.npz"))
