"""Data that can be read once, and files that change while they are read."""

import os
import subprocess
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from extras import require
from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
    LinearAutoencoder,
    SecondMoment,
    SparseVAE,
    certify,
)
from lucidae.data import row_blocks
from lucidae.linear import batches as linear_batches


def rows_of(n=4000, m=6, seed=0):
    return np.random.default_rng(seed).standard_normal((n, m)) * np.arange(m, 0, -1) + 1


def batches_of(X, size=100):
    return (X[start : start + size] for start in range(0, len(X), size))


class OneIterator:
    """Iterable that is not an iterator, but returns the same iterator each time."""

    def __init__(self, X):
        self.batches = batches_of(X)

    def __iter__(self):
        return self.batches


class OneSource(OneIterator):
    """Iterable that returns new iterators, which take their batches from one source."""

    def __iter__(self):
        yield from self.batches


ONCE = {
    "generator": batches_of,
    "one iterator": OneIterator,
    "one source": OneSource,
    "function": lambda X: (lambda batches: lambda: batches)(batches_of(X)),
}


@pytest.mark.parametrize("kind", ONCE)
@pytest.mark.parametrize("block_bytes", [2**25, 2**12])
def test_no_batch_is_lost_or_read_twice(kind, block_bytes, monkeypatch):
    monkeypatch.setattr("lucidae.data.blocks.BLOCK_BYTES", block_bytes)
    X, y = rows_of(), rows_of() @ np.arange(6.0)
    assert_array_equal(np.concatenate(list(row_blocks(ONCE[kind](X)))), X)
    model = LinearAutoencoder(2).fit(ONCE[kind](X))
    assert model.n_samples_seen_ == len(X)
    assert_allclose(model.components_, LinearAutoencoder(2).fit(X).components_, atol=1e-10)
    assert_allclose(SecondMoment.of(ONCE[kind](X)).covariance, np.cov(X.T, bias=True))
    assert_allclose(model.transform(ONCE[kind](X)), model.transform(X), atol=1e-9)
    assert certify(model, ONCE[kind](X)).holds
    regressor = DropoutRegressor(dropout=0.1).fit(ONCE[kind](X), y)
    assert_allclose(regressor.coef_, DropoutRegressor(dropout=0.1).fit(X, y).coef_, atol=1e-10)


@pytest.mark.parametrize("kind", ONCE)
def test_a_second_pass_over_such_data_is_refused_in_one_sentence(kind):
    data = row_blocks(ONCE[kind](rows_of()))
    next(iter(data))  # the first pass begins
    again = r"read already: give a new one|yielded 4000 rows when it was read first, but 0"
    if kind == "one source":  # nothing tells that it continues, until its length is known
        data = row_blocks(ONCE[kind](rows_of()))
        list(data)
    with pytest.raises(ValueError, match=again) as caught:
        list(data)
    assert "\n" not in str(caught.value)


def test_batches_that_can_be_read_again_are_read_again():
    X = rows_of()
    data = row_blocks(lambda: batches_of(X))
    for _ in range(2):
        assert_array_equal(np.concatenate(list(data)), X)


@pytest.mark.parametrize("kind", ONCE)
def test_many_features_need_data_that_can_be_read_again(kind, monkeypatch):
    monkeypatch.setattr(linear_batches, "EXACT_FEATURES", 5)
    monkeypatch.setattr(linear_batches, "LOADED_BYTES", 2**10)
    model = LinearAutoencoder(2).fit(rows_of(50))
    before = dict(vars(model))
    with pytest.raises(
        ValueError, match=r"can be read only once|read already|read again"
    ) as caught:
        model.fit(ONCE[kind](rows_of()))
    assert "\n" not in str(caught.value)
    assert vars(model) == before


@pytest.mark.parametrize("kind", ONCE)
def test_fit_transform_of_data_that_can_be_read_once_keeps_the_earlier_fit(kind):
    model = LinearAutoencoder(2).fit(rows_of(50))
    before = dict(vars(model))
    with pytest.raises(ValueError, match=r"can be read only once|yields no rows"):
        model.fit_transform(ONCE[kind](rows_of()))
    assert vars(model) == before


@pytest.mark.parametrize("wrong", [lambda X: batches_of(X), lambda _: "rows.npy", lambda X: X.sum])
def test_estimators_of_arrays_refuse_other_kinds_in_one_sentence(wrong):
    X, y = rows_of(20), np.ones(20)
    for call in (
        lambda: SparseVAE().fit(wrong(X), y),
        lambda: SparseVAE().fit(X, wrong(y)),
        lambda: DropoutFactorization(2).fit(wrong(X)),
        lambda: SecondMoment.of(X).update(wrong(X)),
    ):
        with pytest.raises(ValueError, match="load the rows into memory first") as caught:
            call()
        assert "\n" not in str(caught.value)


def mapped(tmp_path, X, mode="r", order="C"):
    np.save(tmp_path / "x.npy", np.asarray(X, order=order))
    return np.load(tmp_path / "x.npy", mmap_mode=mode)


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_kind_of_map_gives_its_rows(mode, order, tmp_path, small_blocks):
    X = rows_of()
    rows = mapped(tmp_path, X, mode, order)
    if mode != "r":
        rows[7] = X[7] = 3.0  # of a copy-on-write map, this change is in memory only
    for part in (slice(None), slice(100, 3000), slice(5, None, 3)):
        assert_array_equal(np.concatenate(list(row_blocks(rows[part]))), X[part])
    assert_allclose(LinearAutoencoder(2).fit(rows).mean_, X.mean(axis=0))
    assert_array_equal(rows[7], X[7])


def test_a_map_whose_file_was_replaced_before_the_fit_gives_the_mapped_rows(tmp_path, small_blocks):
    X = rows_of()
    rows = mapped(tmp_path, X)
    np.save(tmp_path / "other.npy", X + 5.0)
    (tmp_path / "other.npy").replace(tmp_path / "x.npy")
    assert_allclose(LinearAutoencoder(2).fit(rows).mean_, X.mean(axis=0))
    assert_allclose(LinearAutoencoder(2).fit(tmp_path / "x.npy").mean_, X.mean(axis=0) + 5.0)


def kinds_of_files(tmp_path, X):
    """Yield the path and the data of files whose rows are `X`."""
    np.save(tmp_path / "x.npy", X)
    yield tmp_path / "x.npy", np.load(tmp_path / "x.npy", mmap_mode="r")
    yield tmp_path / "x.npy", tmp_path / "x.npy"
    require("pyarrow")
    frame = require("pandas").DataFrame(X, columns=list("abcdef"))
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=500)
    yield tmp_path / "x.parquet", tmp_path / "x.parquet"
    with require("h5py").File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("rows", data=X, chunks=(500, 6))
    yield tmp_path / "x.h5", tmp_path / "x.h5"


@pytest.mark.parametrize("change", ["replaced", "rewritten", "removed"])
def test_a_file_that_changes_during_a_pass_is_refused(change, tmp_path, small_blocks):
    X = rows_of(40_000)
    for path, data in kinds_of_files(tmp_path, X):
        blocks = iter(row_blocks(data))
        next(blocks)
        content = path.read_bytes()
        if change == "replaced":
            (tmp_path / "other").write_bytes(content)
            (tmp_path / "other").replace(path)
        elif change == "rewritten":
            path.write_bytes(content)
            os.utime(path, ns=(0, 0))
        else:
            path.unlink()
        with pytest.raises(ValueError, match="changed while it was read") as caught:
            list(blocks)
        assert "\n" not in str(caught.value)
        path.write_bytes(content)


def test_a_failed_fit_to_a_changed_map_keeps_the_earlier_fit(tmp_path, small_blocks):
    rows = mapped(tmp_path, rows_of())
    model = LinearAutoencoder(2).fit(rows_of(50))
    before = dict(vars(model))
    os.truncate(tmp_path / "x.npy", 128 + 48 * 1000)
    for call in (model.fit, DropoutAutoencoder(2).fit, SecondMoment.of, model.transform):
        with pytest.raises(ValueError, match="declares 4000 rows, but ends after 1000"):
            call(rows)
    assert vars(model) == before


SHRUNK = """
import os, sys
import numpy as np
from lucidae import *
rows = np.lib.format.open_memmap("x.npy", mode="w+", shape=(4000, 6), dtype=float)
rows[:] = np.random.default_rng(0).standard_normal((4000, 6))
rows.flush()
rows, targets = np.load("x.npy", mmap_mode="r"), np.ones(4000)
model = LinearAutoencoder(2).fit(rows)
os.truncate("x.npy", 5000)
calls = [
    lambda: model.fit(rows), lambda: model.partial_fit(rows), lambda: model.transform(rows),
    lambda: certify(model, rows), lambda: SecondMoment.of(rows), lambda: model.fit(rows[100:]),
    lambda: model.fit(np.asarray(rows)), lambda: SparseVAE().fit(rows, targets),
    lambda: DropoutRegressor(dropout=0.1).fit(rows, targets),
    lambda: DropoutRegressor(dropout=0.1).fit(np.ones((4000, 2)), rows),
    lambda: model.fit(np.ones((4000, 6)), sample_weight=rows[:, 0]),
    lambda: LinearAutoencoder(2, solver="stochastic").fit(rows),
]
for number, call in enumerate(calls):
    try:
        call()
    except ValueError as error:
        assert "shorter" in str(error) or "ends after" in str(error), (number, error)
        assert "\\n" not in str(error), (number, error)
    else:
        raise AssertionError(number)
print("done")
"""


def test_a_shrunk_map_does_not_end_the_process(tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", SHRUNK], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.stdout.strip() == "done", found.stderr


def weights_of_shape(kind, shape, tmp_path):
    w = np.ones(shape)
    if kind == "frame":
        return require("pandas").DataFrame(w)
    if kind == "list":
        return w.tolist()
    if kind == "dask":
        return require("dask.array").from_array(w, chunks=(100, 1))
    if kind == "file":
        np.save(tmp_path / "w.npy", w)
        return tmp_path / "w.npy"
    return batches_of(w, 80) if kind == "batches" else w


@pytest.mark.parametrize("kind", ["array", "frame", "list", "dask", "file", "batches"])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("block_bytes", [2**25, 2**12])
def test_weights_with_two_dimensions_are_refused(kind, width, block_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr("lucidae.data.blocks.BLOCK_BYTES", block_bytes)
    X = rows_of(400)
    y = X[:, 0]
    np.save(tmp_path / "x.npy", X)
    rows = {
        "array": lambda: X,
        "map": lambda: np.load(tmp_path / "x.npy", mmap_mode="r"),
        "batches": lambda: batches_of(X, 50),
        "dask": lambda: require("dask.array").from_array(X, chunks=(100, 3)),
    }
    model = LinearAutoencoder(2).fit(X)
    calls = {
        "linear": lambda x, w: LinearAutoencoder(2).fit(x, sample_weight=w),
        "moment": SecondMoment.of,
        "regressor": lambda x, w: DropoutRegressor(dropout=0.1).fit(x, y, sample_weight=w),
        "autoencoder": lambda x, w: DropoutAutoencoder(2).fit(x, sample_weight=w),
        "certify": lambda x, w: certify(model, x, sample_weight=w),
    }
    for name, make in rows.items():
        for what, call in calls.items():
            with pytest.raises(
                ValueError, match=r"sample_weight has shape .*one weight per row"
            ) as e:
                call(make(), weights_of_shape(kind, (400, width), tmp_path))
            assert "\n" not in str(e.value), (name, what)


def test_weights_with_two_dimensions_in_batches_are_refused():
    X = rows_of(400)
    weighted = ((rows, None, np.ones((len(rows), 1))) for rows in batches_of(X))
    with pytest.raises(ValueError, match=r"block 0: sample_weight has shape \(100, 1\)"):
        LinearAutoencoder(2).fit_batches(weighted)
    with pytest.raises(ValueError, match=r"sample_weight has shape \(400, 1\)"):
        LinearAutoencoder(2).partial_fit(X, sample_weight=np.ones((400, 1)))
    with pytest.raises(ValueError, match=r"sample_weight has shape \(400, 1\)"):
        SecondMoment.of(X).update(X, np.ones((400, 1)))


def test_a_closed_hdf5_file_is_one_sentence(tmp_path, small_blocks):
    h5py = require("h5py")
    X = rows_of()
    with h5py.File(tmp_path / "x.h5", "w") as file:
        rows = file.create_dataset("rows", data=X)
    model = LinearAutoencoder(2).fit(X)
    before = dict(vars(model))
    for call in (
        lambda: model.fit(rows),
        lambda: model.partial_fit(rows),
        lambda: model.transform(rows),
        lambda: certify(model, rows),
        lambda: SecondMoment.of(rows),
        lambda: model.fit(X, sample_weight=rows),
        lambda: SparseVAE().fit(rows, X[:, 0]),
        lambda: model.fit(file),
    ):
        with pytest.raises(ValueError, match=r"of h5py that is closed was given") as caught:
            call()
        assert "\n" not in str(caught.value)
    with h5py.File(tmp_path / "x.h5", "r") as file:
        blocks = iter(row_blocks(file["rows"]))
        next(blocks)
    with pytest.raises(ValueError, match=r"X cannot be read from row \d+ on") as caught:
        list(blocks)
    assert "\n" not in str(caught.value)
    assert vars(model) == before


def test_complex_rows_are_one_sentence():
    for rows in (rows_of(20) + 1j, iter([rows_of(20) + 1j])):
        with pytest.raises(ValueError, match="Complex data not supported") as caught:
            LinearAutoencoder(2).fit(rows)
        assert "\n" not in str(caught.value)


def test_arrays_without_rows_have_none(tmp_path):
    np.save(tmp_path / "x.npy", np.empty((0, 3)))
    with pytest.raises(ValueError, match=r"'x.npy' contains no rows"):
        LinearAutoencoder(1).fit(tmp_path / "x.npy")
