"""Data that can be read once, and files that change while they are read."""

import os
import shutil

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from extras import require
from lucidae import (
    DropoutAutoencoder,
    DropoutRegressor,
    LinearAutoencoder,
    SecondMoment,
    SparseVAE,
    certify,
)
from lucidae.rows import row_blocks


def rows_of(n=4000, m=6):
    return np.random.default_rng(0).standard_normal((n, m)) * np.arange(m, 0, -1) + 1


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


@pytest.mark.covering
@pytest.mark.parametrize("kind", ONCE)
@pytest.mark.parametrize("block_bytes", [2**25, 2**12])
def test_no_batch_is_lost_or_read_twice(kind, block_bytes, monkeypatch):
    monkeypatch.setattr("lucidae.rows.blocks.BLOCK_BYTES", block_bytes)
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
def test_a_second_pass_over_such_data_is_refused_and_keeps_the_last_fit(kind, monkeypatch):
    data = row_blocks(ONCE[kind](rows_of()))
    next(iter(data))  # the first pass begins
    if kind == "one source":  # nothing tells that it continues, until its length is known
        data = row_blocks(ONCE[kind](rows_of()))
        list(data)
    again = r"read already: give a new one|yielded 4000 rows when it was read first, but 0"
    with pytest.raises(ValueError, match=again) as caught:
        list(data)
    assert "\n" not in str(caught.value)
    model = LinearAutoencoder(2).fit(rows_of(50))
    before = dict(vars(model))
    once = r"can be read only once|yields no rows|read already|read again"
    with pytest.raises(ValueError, match=once):
        model.fit_transform(ONCE[kind](rows_of()))
    # Of many features the data are read several times.
    monkeypatch.setattr("lucidae.linear.certify.EXACT_FEATURES", 5)
    monkeypatch.setattr("lucidae.linear.estimator.EXACT_FEATURES", 5)
    monkeypatch.setattr("lucidae.linear.certify.LOADED_BYTES", 2**10)
    with pytest.raises(ValueError, match=once) as caught:
        model.fit(ONCE[kind](rows_of()))
    assert "\n" not in str(caught.value)
    assert vars(model) == before


# Files.


def mapped(folder, X, mode="r", order="C"):
    np.save(folder / "x.npy", np.asarray(X, order=order))
    return np.load(folder / "x.npy", mmap_mode=mode)


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_kind_of_map_gives_its_rows(mode, order, tmp_path, small_blocks):
    X = rows_of()
    rows = mapped(tmp_path, X, mode, order)
    if mode != "r":
        rows[7] = X[7] = 3.0  # of a copy-on-write map, this change is in memory only
    every = slice(None)
    for part in (every, slice(100, 3000), slice(5, None, 3), slice(None, None, -1)):
        assert_array_equal(np.concatenate(list(row_blocks(rows[part]))), X[part])
    assert_array_equal(np.concatenate(list(row_blocks(rows[5:, 2:4][3:]))), X[8:, 2:4])
    assert_allclose(LinearAutoencoder(2).fit(rows).mean_, X.mean(axis=0))
    assert_array_equal(rows[7], X[7])


def test_a_map_whose_file_was_replaced_before_the_fit_gives_the_mapped_rows(tmp_path, small_blocks):
    X = rows_of()
    rows = mapped(tmp_path, X)
    np.save(tmp_path / "other.npy", X + 5.0)
    (tmp_path / "other.npy").replace(tmp_path / "x.npy")
    assert_allclose(LinearAutoencoder(2).fit(rows).mean_, X.mean(axis=0))
    assert_allclose(LinearAutoencoder(2).fit(tmp_path / "x.npy").mean_, X.mean(axis=0) + 5.0)


def kinds_of_files(folder, X):
    """Yield the path and the data of files whose rows are `X`."""
    yield folder / "x.npy", mapped(folder, X)
    yield folder / "x.npy", folder / "x.npy"
    require("pyarrow")
    frame = require("pandas").DataFrame(X, columns=list("abcdef"))
    frame.to_parquet(folder / "x.parquet", row_group_size=500)
    yield folder / "x.parquet", folder / "x.parquet"
    with require("h5py").File(folder / "x.h5", "w") as file:
        file.create_dataset("rows", data=X, chunks=(500, 6))
    yield folder / "x.h5", folder / "x.h5"


@pytest.mark.parametrize("change", ["replaced", "rewritten", "removed"])
def test_a_file_that_changes_during_a_pass_is_refused(change, tmp_path, small_blocks):
    for path, data in kinds_of_files(tmp_path, rows_of(40_000)):
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


@pytest.mark.parametrize("left", [1400, 1500.5])
def test_a_map_that_shrinks_raises_and_does_not_crash(left, tmp_path, small_blocks):
    rows = mapped(tmp_path, rows_of())
    model = LinearAutoencoder(2).fit(rows_of(50))
    before, blocks = dict(vars(model)), iter(row_blocks(rows))
    next(blocks)
    os.truncate(tmp_path / "x.npy", 128 + int(left * 48))
    words = f"declares 4000 rows, but ends after {int(left)}"
    with pytest.raises(ValueError, match=words):
        list(blocks)
    for call in (model.fit, DropoutAutoencoder(2).fit, SecondMoment.of, model.transform):
        with pytest.raises(ValueError, match=words):
            call(rows)
    # Without the check, a read behind the end of the file ends the process by a bus error.
    targets = np.ones(4000)
    for call in (
        lambda: model.partial_fit(rows),
        lambda: model.fit(np.asarray(rows)),
        lambda: model.fit(rows_of(), sample_weight=rows[:, 0]),
        lambda: certify(model, rows),
        lambda: SparseVAE().fit(rows, targets),
        lambda: DropoutRegressor(dropout=0.1).fit(rows, targets),
        lambda: DropoutRegressor(dropout=0.1).fit(rows_of(), rows),
        lambda: LinearAutoencoder(2, solver="stochastic").fit(rows),
    ):
        with pytest.raises(ValueError, match=r"shorter|ends after"):
            call()
    assert vars(model) == before
    with pytest.raises(ValueError, match=r"'x.npy' is not a complete NPY file"):
        LinearAutoencoder(2).fit(tmp_path / "x.npy")


def test_other_files_that_shrink_while_they_are_read_are_one_sentence(tmp_path, small_blocks):
    X = rows_of(20_000, 4)
    pandas, zarr = require("pandas"), require("zarr")
    require("pyarrow")
    frame = pandas.DataFrame(X, columns=list("abcd"))
    frame.to_csv(tmp_path / "x.csv", index=False)
    zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(500, 4))
    for name in ("x.csv", "x.zarr"):
        blocks = iter(row_blocks(tmp_path / name))
        next(blocks)
        if name == "x.csv":
            os.truncate(tmp_path / name, (tmp_path / name).stat().st_size // 2)
        else:
            shutil.rmtree(tmp_path / name / "c" / "30")
        with pytest.raises(ValueError, match="has changed while it was read") as error:
            list(blocks)
        assert "\n" not in str(error.value)
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=1000)
    data = row_blocks(tmp_path / "x.parquet")
    frame[:900].to_parquet(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="declares 20000 rows, but ends after 900"):
        list(data)
    os.truncate(tmp_path / "x.parquet", 3000)
    with pytest.raises(ValueError, match=r"'x.parquet' cannot be read to its end"):
        list(data)


def test_a_closed_hdf5_file_is_one_sentence(tmp_path, small_blocks):
    h5py, X = require("h5py"), rows_of()
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
