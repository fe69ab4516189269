"""Every kind of data: recognised, read in blocks, and fitted like an array."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
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
from lucidae.datasets import read_table
from lucidae.rows import row_blocks


def spread_rows(n=2000, m=12, dtype=np.float64, seed=0):
    """Return rows with separated variances and a mean that is not zero."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, m)) * np.linspace(6, 1, m) + 3).astype(dtype)


def memory_map(X, folder):
    np.save(folder / "rows.npy", X)
    return np.load(folder / "rows.npy", mmap_mode="r")


def fortran_map(X, folder):
    array = np.memmap(folder / "rows.raw", X.dtype, "w+", shape=X.shape, order="F")
    array[:] = X
    return array


def frame_of(X):
    return require("pandas").DataFrame(X).add_prefix("c")


def npy_path(X, folder):
    memory_map(X, folder)
    return str(folder / "rows.npy")


def parquet_path(X, folder):
    require("pyarrow")
    frame_of(X).to_parquet(folder / "rows.parquet", row_group_size=700)
    return folder / "rows.parquet"


def csv_path(X, folder):
    frame = frame_of(X)
    frame.insert(3, "label", "text")
    frame.to_csv(folder / "rows.csv", index=False)
    return folder / "rows.csv"


def hdf5_array(X, folder):
    h5py = require("h5py")
    with h5py.File(folder / "rows.h5", "w") as file:
        file.create_dataset("rows", data=X, chunks=(130, 2))
    return h5py.File(folder / "rows.h5", "r")["rows"]


def hdf5_path(X, folder):
    hdf5_array(X, folder).file.close()
    return folder / "rows.h5"


def zarr_array(X, folder):
    zarr = require("zarr")
    path, chunks = folder / "rows.zarr", (170, min(5, X.shape[1]))
    array = zarr.create_array(path, shape=X.shape, chunks=chunks, dtype=X.dtype, overwrite=True)
    array[:] = X
    return array


def zarr_path(X, folder):
    zarr_array(X, folder)
    return folder / "rows.zarr"


def generator(X, folder):
    return (X[start : start + 300] for start in range(0, len(X), 300))


def data_loader(X, folder):
    torch = require("torch")
    rows = torch.utils.data.TensorDataset(torch.asarray(np.array(X)))
    return torch.utils.data.DataLoader(rows, batch_size=256)


def dask_array(X, folder):
    return require("dask.array").from_array(X, chunks=(311, 5))


def dask_frame(X, folder):
    return require("dask.dataframe").from_pandas(frame_of(X), npartitions=7)


def anndata_of(rows, folder, backed=None):
    """Return an AnnData with variables c0, c1, …, in memory or, if `backed`, in a file."""
    anndata = require("anndata")
    cells = anndata.AnnData(rows)
    cells.var_names = [f"c{at}" for at in range(rows.shape[1])]
    if backed is None:
        return cells
    cells.write_h5ad(folder / "rows.h5ad")
    return anndata.read_h5ad(folder / "rows.h5ad", backed=backed)


def anndata_backed(X, folder):
    return anndata_of(X, folder, "r")


def anndata_path(X, folder):
    anndata_backed(X, folder).file.close()
    return folder / "rows.h5ad"


def anndata_of_dask(X, folder):
    return anndata_of(require("dask.array").from_array(X, chunks=(311, X.shape[1])), folder)


STORED = [
    memory_map,
    fortran_map,
    npy_path,
    parquet_path,
    hdf5_array,
    hdf5_path,
    zarr_array,
    zarr_path,
    dask_array,
    dask_frame,
    anndata_backed,
    anndata_path,
    anndata_of_dask,
]
ALL = [*STORED, generator, data_loader]


KINDS = pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)


@KINDS
def test_fits_equal_those_in_memory(kind, tmp_path_factory, small_blocks):
    for dtype, tolerance in ((np.float64, 1e-10), (np.float32, 1e-5)):
        X = spread_rows(dtype=dtype)
        expected = LinearAutoencoder(4).fit(X)
        model = LinearAutoencoder(4).fit(kind(X, tmp_path_factory.mktemp("x")))
        assert str(model.components_.dtype).endswith(X.dtype.name)
        assert_allclose(model.components_, expected.components_, atol=tolerance)
        assert_allclose(model.explained_variance_, expected.explained_variance_, rtol=tolerance)
        assert (model.n_samples_seen_, model.n_features_in_) == (len(X), 12)
    X = spread_rows()
    expected = DropoutAutoencoder(3, dropout=0.3).fit(X)
    model = DropoutAutoencoder(3, dropout=0.3).fit(kind(X, tmp_path_factory.mktemp("x")))
    assert_allclose(model.objective_, expected.objective_, rtol=1e-10)
    product = np.asarray(model.right_) @ np.asarray(model.left_).T
    assert_allclose(product, expected.right_ @ expected.left_.T, atol=1e-10)
    moment = SecondMoment.of(kind(X, tmp_path_factory.mktemp("x")))
    assert_allclose(moment.covariance, np.cov(X.T, bias=True), atol=1e-10)


@pytest.mark.filterwarnings("ignore:Columns of 'rows.csv' were left out")
@pytest.mark.parametrize("kind", [*STORED, csv_path], ids=lambda kind: kind.__name__)
def test_results_equal_those_in_memory(kind, tmp_path, small_blocks):
    X, rng = spread_rows(), np.random.default_rng(1)
    data = kind(X, tmp_path)
    for make in (LinearAutoencoder, DropoutAutoencoder):
        model, expected = make(3).fit(data), make(3).fit(X)
        assert_allclose(model.transform(data), expected.transform(X), atol=1e-9)
        assert_allclose(model.score(data), expected.score(X), rtol=1e-10)
        assert certify(model, data).holds
    Y = X @ rng.standard_normal((12, 3)) + rng.standard_normal((2000, 3))
    weights = rng.integers(0, 3, 2000).astype(float)
    (tmp_path / "y").mkdir()
    targets = kind(Y, tmp_path / "y")
    expected = DropoutRegressor(dropout=0.2).fit(X, Y, weights)
    model = DropoutRegressor(dropout=0.2).fit(data, targets, weights)
    assert_allclose(model.coef_, expected.coef_, atol=1e-10)
    assert_allclose(model.intercept_, expected.intercept_, atol=1e-9)
    assert_allclose(model.predict(data), expected.predict(X), atol=1e-9)
    assert_allclose(model.score(data, targets), expected.score(X, Y))
    assert certify(model, data, targets, sample_weight=weights).holds


@KINDS
def test_data_of_one_block_are_loaded_and_can_be_fitted_by_any_solver(kind, tmp_path):
    X = spread_rows(300)
    settings = {"solver": "stochastic", "max_iter": 50, "random_state": 0}
    with pytest.warns(UserWarning, match="max_iter"):
        model = LinearAutoencoder(2, **settings).fit(kind(X, tmp_path))
    with pytest.warns(UserWarning, match="max_iter"):
        expected = LinearAutoencoder(2, **settings).fit(X)
    assert_allclose(model.components_, expected.components_, atol=1e-6)
    assert len(model.certificate_) == len(expected.certificate_)


@pytest.mark.parametrize("kind", [memory_map, generator, dask_array], ids=lambda k: k.__name__)
def test_certificates_of_large_data_equal_those_in_memory(kind, tmp_path, small_blocks):
    X = spread_rows(30_000, 70)  # more entries than a fit compares with its moment
    expected = LinearAutoencoder(4).fit(X)
    model = LinearAutoencoder(4).fit(kind(X, tmp_path))
    pairs = [
        (model.certificate_, expected.certificate_),
        (certify(model, kind(X, tmp_path)), certify(expected, X)),
    ]
    for found, wanted in pairs:
        assert found.holds
        for claim, other in zip(found, wanted, strict=True):
            assert (claim.name, claim.holds) == (other.name, other.holds)
            if claim.name == "leverage":  # of rows that are not known any more, the distances
                continue
            assert_allclose(claim.value or 0.0, other.value or 0.0, atol=1e-7, rtol=1e-6)


@KINDS
def test_no_moment_is_formed_of_data_with_fewer_rows_than_columns(
    kind, tmp_path, small_blocks, monkeypatch
):
    X = spread_rows(300, 500)

    def refuse(*_, **__):
        raise AssertionError("the moment of the features was formed")

    monkeypatch.setattr("lucidae.linear.estimator.read_blocks", refuse)
    model = LinearAutoencoder(3).fit(kind(X, tmp_path))
    assert_allclose(model.components_, LinearAutoencoder(3).fit(X).components_, atol=1e-9)


@KINDS
def test_blocks_are_bounded_and_begin_at_any_row(kind, tmp_path, small_blocks):
    X = spread_rows()
    if kind is dask_frame:
        with pytest.raises(ValueError, match="first_row=777"):
            row_blocks(kind(X, tmp_path), first_row=777)
        return
    data = row_blocks(kind(X, tmp_path), first_row=777)
    parts = [np.asarray(part) for part in data]
    assert_array_equal(np.concatenate(parts), X[777:])
    assert len(parts) > 1
    assert all(part.nbytes <= 2**16 for part in parts)
    assert data.n_rows in (None, 2000, 1223)


def test_arrays_in_memory_are_blocks_too(tmp_path, small_blocks):
    X = spread_rows()
    for given in (X, scipy.sparse.csr_array(X), X.tolist(), require("polars").DataFrame(X)):
        parts = list(row_blocks(given))
        parts = [part.toarray() if scipy.sparse.issparse(part) else part for part in parts]
        assert_allclose(np.concatenate(parts), X)
    model = LinearAutoencoder(4).fit(X)
    codes = model.transform(spread_rows(6000))
    found = model.inverse_transform(memory_map(codes, tmp_path))
    assert_allclose(found, model.inverse_transform(codes))


@pytest.mark.parametrize("form", ["array", "csr_matrix", "csc_array", "view"])
def test_anndata_in_memory_is_fitted_like_its_matrix_with_names(form, tmp_path):
    X = spread_rows(200)
    matrix = X if form in ("array", "view") else getattr(scipy.sparse, form)(X)
    cells = anndata_of(matrix, tmp_path)
    cells = cells[:, :] if form == "view" else cells
    names = [f"c{at}" for at in range(12)]
    for model in (
        LinearAutoencoder(2).fit(cells),
        LinearAutoencoder(2, handle_missing="em").fit(cells),
        LinearAutoencoder(2).partial_fit(cells[:50]).partial_fit(cells[50:]),
        DropoutAutoencoder(2).fit(cells),
        DropoutRegressor(dropout=0.1).fit(cells, X[:, 0]),
        SparseVAE(noise_variance=1.0).fit(cells, X[:, 0]),
    ):
        assert model.feature_names_in_.tolist() == names
        assert certify(model, cells, *[X[:, 0]] * hasattr(model, "predict")).holds
        use = model.predict if hasattr(model, "predict") else model.transform
        assert_allclose(use(cells), use(frame_of(X)), atol=1e-10)
        other = cells.copy()
        other.var_names = [f"d{at}" for at in range(12)]
        with pytest.raises(ValueError, match="feature names"):
            use(other)
    with pytest.raises(ValueError, match="X is an AnnData without X"):
        LinearAutoencoder(2).fit(require("anndata").AnnData(shape=(5, 3)))


@pytest.mark.parametrize("form", ["csr_matrix", "csc_matrix"])
def test_sparse_anndata_on_disk_is_read_in_blocks(form, tmp_path, small_blocks):
    X = spread_rows()
    expected = LinearAutoencoder(3).fit(X)
    cells = anndata_of(getattr(scipy.sparse, form)(X), tmp_path, "r")
    for given in (cells, tmp_path / "rows.h5ad"):
        model = LinearAutoencoder(3).fit(given)
        assert_allclose(model.components_, expected.components_, atol=1e-10)
        assert model.feature_names_in_[11] == "c11"
        assert_allclose(model.transform(given), expected.transform(X), atol=1e-9)
        assert certify(model, given).holds
        assert len(list(row_blocks(given))) > 1
    table = read_table(tmp_path / "rows.h5ad", columns=["c3", "c0"])
    assert_allclose(table, X[:, [3, 0]])
    assert_allclose(LinearAutoencoder(3).partial_fit(cells).mean_, X.mean(axis=0))


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dok", "lil", "bsr", "dia"])
def test_sparse_matrices_of_every_form_are_rows(form):
    X = spread_rows(40, 4)
    expected = LinearAutoencoder(2).fit(X)
    for kind in ("matrix", "array"):
        given = getattr(scipy.sparse, f"{form}_{kind}")(X)
        model = LinearAutoencoder(2).fit(given)
        assert_allclose(model.components_, expected.components_, atol=1e-10)
        assert_allclose(model.transform(given), expected.transform(X), atol=1e-9)
        assert_allclose(SecondMoment.of(given).mean, X.mean(axis=0))


def test_a_vector_of_targets_stays_a_vector(tmp_path, small_blocks):
    X = spread_rows()
    y = X[:, 0] - X[:, 5]
    np.save(tmp_path / "y.npy", y)
    batches = [(X[i : i + 100], y[i : i + 100]) for i in range(0, 2000, 100)]
    for model in (
        DropoutRegressor(dropout=0.1).fit(memory_map(X, tmp_path), y),
        DropoutRegressor(dropout=0.1).fit(X, tmp_path / "y.npy"),
        DropoutRegressor(dropout=0.1).fit_batches(batches),
        DropoutRegressor(dropout=0.1).fit_batches(iter(batches)),
    ):
        assert model.coef_.shape == (12,)
        assert isinstance(model.intercept_, float)
        assert model.predict(X).shape == (2000,)


def test_ill_conditioned_inputs_are_factorised_block_by_block(tmp_path, small_blocks):
    X = spread_rows()
    X[:, 1] = X[:, 0] + 1e-6 * X[:, 1]
    y = X[:, 0] - 3 * X[:, 1] + X[:, 2]
    expected = DropoutRegressor(dropout=0.0).fit(X, y)
    for kind in (memory_map, dask_array):
        data = kind(X, tmp_path)
        found = DropoutRegressor(dropout=0.0).fit(data, y)
        assert_allclose(found.predict(X), expected.predict(X), atol=1e-9)
        # The moment with the bound of the sketch has too few digits; the rows have them.
        assert found.certificate_.holds is not False
        assert certify(found, data, y).holds


def test_weights_and_labels_of_batches(small_blocks):
    X, rng = spread_rows(), np.random.default_rng(1)
    w = rng.integers(0, 4, 2000).astype(float)
    w[300:600] = 0.0  # one whole batch
    batches = [(X[i : i + 300], None, w[i : i + 300]) for i in range(0, 2000, 300)]
    model = LinearAutoencoder(3).fit_batches(batches)
    assert model.n_samples_seen_ == w.sum()
    assert_allclose(model.mean_, SecondMoment.of(X, w).mean)
    assert_allclose(LinearAutoencoder(3).fit_batches((X, X), 2.0).n_samples_seen_, 2 * 2 * len(X))
    labelled = [[part, np.full(len(part), 7.0)] for part in np.split(X, 8)]
    for estimator in (LinearAutoencoder(3), DropoutAutoencoder(3)):  # labels are ignored
        assert_allclose(estimator.fit_batches(labelled).mean_, X.mean(axis=0))


@pytest.mark.parametrize("dtype", [">f4", "int16", "float16", "bool", "uint8"])
def test_other_types_of_numbers_are_read_as_floats(dtype, tmp_path, small_blocks):
    X = (10 * spread_rows(20_000)).astype(dtype)
    data = row_blocks(memory_map(X, tmp_path))
    assert data.dtype == np.float64
    assert_array_equal(np.concatenate(list(data)), X.astype(float))
    expected = SecondMoment.of(X)
    assert_allclose(SecondMoment.of(tmp_path / "rows.npy").covariance, expected.covariance)


def test_frames_of_float32_stay_float32():
    X = spread_rows(30, 3, np.float32)
    columns = {name: X[:, at] for at, name in enumerate("abc")}
    for frame in (require("polars").DataFrame(columns), require("pyarrow").table(columns)):
        for estimator in (LinearAutoencoder(2), DropoutAutoencoder(2)):
            codes = estimator.fit(frame).transform(frame)
            assert codes.dtype == np.float32
            assert_allclose(codes, estimator.fit(X).transform(X), atol=1e-5)
        regressor = DropoutRegressor(dropout=0.1).fit(frame, X[:, 0])
        assert regressor.coef_.dtype == DropoutRegressor(dropout=0.1).fit(X, X[:, 0]).coef_.dtype
        assert SecondMoment.of(frame).mean.dtype == SecondMoment.of(X).mean.dtype


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_batches_of_integers_have_the_type_of_the_first_batch(dtype):
    X = np.random.default_rng(0).integers(-9, 9, (40, 3))
    for whole in (X[20:], X[20:].tolist(), scipy.sparse.csr_array(X[20:])):
        first = X[:20].astype(dtype)
        first = scipy.sparse.csr_array(first) if scipy.sparse.issparse(whole) else first
        model = LinearAutoencoder(2).fit_batches([first, whole])
        assert model.components_.dtype == dtype
        assert_allclose(model.mean_, X.mean(axis=0), rtol=1e-6)


def test_frames_and_files_as_batches_need_the_same_columns(tmp_path, small_blocks):
    frame = frame_of(spread_rows(40, 3))
    for other in (frame[["c1", "c2", "c0"]], frame.rename(columns={"c0": "z"})):
        for batches in ([frame, other], iter([frame, other])):
            with pytest.raises(ValueError, match=r"block 1 of .* other columns than the first"):
                LinearAutoencoder(2).fit_batches(batches)
    mixed = LinearAutoencoder(2).fit_batches([frame, frame.to_numpy()])
    assert_array_equal(mixed.feature_names_in_, ["c0", "c1", "c2"])
    cells = require("anndata").AnnData(frame.set_axis([*map(str, frame.index)], axis=0))
    of_cells = LinearAutoencoder(2).fit_batches([cells, cells])
    assert_array_equal(of_cells.feature_names_in_, ["c0", "c1", "c2"])
    X, paths = spread_rows(4000), []
    for number, part in enumerate(np.split(X, 4)):
        (tmp_path / str(number)).mkdir()
        paths.append(parquet_path(part, tmp_path / str(number)))
    model = LinearAutoencoder(3).fit_batches(paths)
    assert_allclose(model.components_, LinearAutoencoder(3).fit(X).components_, atol=1e-10)
    assert_array_equal(model.feature_names_in_, [f"c{i}" for i in range(12)])
    assert_allclose(SecondMoment.of(iter(paths)).mean, X.mean(axis=0))
    frame_of(X[:9]).add_prefix("d").to_parquet(tmp_path / "other.parquet")
    with pytest.raises(ValueError, match=r"'other.parquet' has other columns"):
        LinearAutoencoder(3).fit_batches([*paths, tmp_path / "other.parquet"])


def test_wrong_fits_are_refuted_on_data_in_blocks(tmp_path, small_blocks):
    X = spread_rows()
    path, y = npy_path(X, tmp_path), X @ np.arange(12.0)
    linear = LinearAutoencoder(2).fit(path)
    autoencoder = DropoutAutoencoder(3, dropout=0.3).fit(path)
    regressor = DropoutRegressor(dropout=0.1).fit(path, y)
    linear_pair = (linear.encoder_, linear.decoder_)
    dropout_pair = (autoencoder.left_, autoencoder.right_)
    data = memory_map(X, tmp_path)
    assert certify(linear_pair, data, family="linear", method="rag").holds
    assert certify(dropout_pair, data, family="dropout", dropout=0.3).holds
    assert certify(dropout_pair, data, data, family="dropout", dropout=0.3).holds
    assert all(certify(model, path).holds for model in (linear, autoencoder))
    assert certify(regressor, path, y).holds
    linear.mean_ = linear.mean_ + 1.0
    autoencoder.mean_ = autoencoder.mean_ + 1.0
    regressor.coef_ = regressor.coef_ * 1.1
    assert certify(linear, path).holds is False
    assert certify(autoencoder, path).holds is False
    assert certify(regressor, path, y).holds is False


MEASURED = """
import sys
import numpy as np
from lucidae import LinearAutoencoder

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024

warm = np.random.default_rng(0).standard_normal((5000, 100))
LinearAutoencoder(3).fit(warm).transform(warm)
rows = np.load(sys.argv[1], mmap_mode="r")
before = peak()
model = LinearAutoencoder(3).fit(rows)
codes = model.transform(rows)
print(peak() - before, codes.shape[0])
"""


MEASURED_PARQUET = """
import sys
import pyarrow
from lucidae import SecondMoment

moment = SecondMoment.of(sys.argv[1])
print(pyarrow.default_memory_pool().max_memory() / 2**20, int(moment.weight))
"""


def test_pyarrow_does_not_keep_what_it_has_read(tmp_path):
    require("pyarrow")
    pq, pa = require("pyarrow.parquet"), require("pyarrow")
    block = np.random.default_rng(0).standard_normal((20_000, 30), dtype=np.float32)
    table = pa.table({f"c{i}": column for i, column in enumerate(block.T)})
    with pq.ParquetWriter(tmp_path / "large.parquet", table.schema) as writer:
        for _ in range(60):  # 144 MB
            writer.write_table(table)
    command = [sys.executable, "-c", MEASURED_PARQUET, str(tmp_path / "large.parquet")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    megabytes, rows = result.stdout.split()
    assert int(rows) == 1_200_000
    assert float(megabytes) < 170  # with the defaults of pyarrow: 293


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_a_memory_map_of_400_megabytes_is_never_in_memory_as_a_whole(tmp_path):
    rng, n = np.random.default_rng(0), 1_000_000
    array = np.lib.format.open_memmap(
        tmp_path / "large.npy", mode="w+", dtype=np.float32, shape=(n, 100)
    )
    block = rng.standard_normal((n // 20, 100), dtype=np.float32)
    for start in range(0, n, len(block)):
        array[start : start + len(block)] = block
    array.flush()
    del array
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "large.npy")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    megabytes, rows = result.stdout.split()
    assert int(rows) == n
    # Two blocks of 32 MiB, what the products need, and 12 MB of codes.
    assert float(megabytes) < 160
