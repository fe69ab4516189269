"""Data with many features in blocks: a small problem embedded in a large one."""

from functools import partial

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose

from extras import require
from lucidae import DropoutAutoencoder, LinearAutoencoder, SecondMoment, certify
from lucidae.data import aligned_blocks, blocks
from lucidae.data.passes import Passes, ReadInterrupted
from lucidae.linear import batches, certify_weights
from lucidae.linear.verified_blocks import data_of_passes
from lucidae.rows.sums import BlocksSource, ProductPass, RowsPass, sparse_sums

MANY = 100_000
DENSE = 9000


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Make blocks of 1 MiB, and load nothing that is larger."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2**20)
    monkeypatch.setattr(batches, "LOADED_BYTES", 2**16)


def problem(n=300, q=40, seed=0):
    """Return rows with a decaying spectrum, half of them zeros, and a mean that is not zero."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, q)) * 2.0 ** -np.arange(q) * (rng.random((n, q)) < 0.5)
    rows[:, 2] += 5.0
    return rows


def embedded(rows, m, seed=1):
    """Return sparse rows whose columns are those of `rows`, scattered among m, and their places."""
    n, q = rows.shape
    places = np.sort(np.random.default_rng(seed).choice(m, q, replace=False))
    at = (np.repeat(np.arange(n), q), np.tile(places, n))
    return scipy.sparse.csr_array((rows.ravel(), at), shape=(n, m)), places


def parts(X, size=70):
    return [X[i : i + size] for i in range(0, X.shape[0], size)]


def function(X, _):
    return partial(parts, X)


def memory_map(X, folder):
    np.save(folder / "rows.npy", X.toarray())
    return np.load(folder / "rows.npy", mmap_mode="r")


def npy_path(X, folder):
    memory_map(X, folder)
    return folder / "rows.npy"


def hdf5_path(X, folder):
    with require("h5py").File(folder / "rows.h5", "w") as file:
        file.create_dataset("rows", data=X.toarray(), chunks=(50, 3000))
    return folder / "rows.h5"


def zarr_array(X, folder):
    return require("zarr").create_array(folder / "x.zarr", data=X.toarray(), chunks=(20, 5000))


def dask_rows(X, _):
    return require("dask.array").from_array(X.toarray(), chunks=(70, X.shape[1]))


def dask_grid(X, _):
    return require("dask.array").from_array(X.toarray(), chunks=(70, 2500))


def dask_unknown(X, folder):
    chunks = dask_rows(X, folder)
    return chunks[require("dask.array").ones(X.shape[0], chunks=70) > 0]


def dask_sparse(X, _, step=None):
    da, delayed = require("dask.array"), require("dask").delayed
    step, meta = step or X.shape[1], scipy.sparse.csr_array((0, 0))
    return da.concatenate(
        [
            da.concatenate(
                [
                    da.from_delayed(
                        delayed(part[:, a : a + step]), (part.shape[0], step), X.dtype, meta
                    )
                    for a in range(0, X.shape[1], step)
                ],
                axis=1,
            )
            for part in parts(X)
        ]
    )


def dask_sparse_grid(X, _):
    return dask_sparse(X, _, X.shape[1] // 4)


@pytest.fixture(autouse=True)
def threads():
    """Compute with the threads of this process."""
    with require("dask").config.set(scheduler="threads"):
        yield


CASES = [
    (function, MANY),
    (dask_sparse, 20_000),
    (dask_sparse_grid, 20_000),
    (memory_map, DENSE),
    (npy_path, DENSE),
    (hdf5_path, DENSE),
    (zarr_array, DENSE),
    (dask_rows, DENSE),
    (dask_grid, DENSE),
    (dask_unknown, DENSE),
]


@pytest.mark.parametrize(("kind", "m"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_a_small_problem_embedded_in_a_large_one(kind, m, tmp_path):
    rows = problem()
    X, places = embedded(rows, m)
    expected = LinearAutoencoder(3).fit(rows)
    data = kind(X, tmp_path)
    model = LinearAutoencoder(3).fit(data)
    elsewhere = np.setdiff1d(np.arange(m), places)
    assert_allclose(model.components_[:, places], expected.components_, atol=1e-10)
    assert_allclose(model.components_[:, elsewhere], 0.0, atol=1e-10)
    assert_allclose(model.explained_variance_, expected.explained_variance_, rtol=1e-10)
    assert_allclose(model.mean_[places], expected.mean_, atol=1e-12)
    assert model.n_features_in_ == m
    assert model.n_samples_seen_ == 300
    assert model.certificate_.holds
    assert_allclose(model.transform(data), expected.transform(rows), atol=1e-10)


def test_a_tampered_decoder_fails_on_blocks():
    X, _ = embedded(problem(), DENSE)
    data = function(X, None)
    model = LinearAutoencoder(3).fit(data)
    encoder = np.array(model.encoder_)
    assert certify(model, data).holds
    assert certify_weights(encoder, encoder.T, data).holds
    encoder[1] = 0.9 * encoder[1] + 0.1 * encoder[2]
    assert certify_weights(encoder, encoder.T, data).holds is False
    model.components_ = encoder
    assert model.certificate_["attributes"].holds is False


@pytest.mark.parametrize("weighted", [False, True])
def test_products_of_solver_and_verifier_are_those_of_the_covariance(weighted):
    rng = np.random.default_rng(0)
    X = scipy.sparse.random_array((90, 60), density=0.2, rng=rng).tolil()
    X[:, 5] = 1e12 + rng.integers(-3, 4, 90)  # a column without zeros and with a huge mean
    X, w = X.tocsr(), rng.uniform(0.0, 2.0, 90) if weighted else np.ones(90)
    centred = X.toarray()
    centred[:, 5] -= 1e12
    mean = w @ centred / w.sum()
    covariance = ((centred - mean).T * w) @ (centred - mean) / w.sum()
    vectors = rng.standard_normal((3, 60))
    dask_blocks = dask_sparse(X, None, 20)
    dense = [part.toarray() for part in parts(X, 40)]
    tensors = [require("torch").asarray(part) for part in dense]
    for given in (parts(X, 40), dense, tensors, dask_blocks):
        passes = Passes(aligned_blocks(given, None, w if weighted else None))
        with require("dask").config.set(scheduler="synchronous"):
            solver, verifier = BlocksSource(passes), data_of_passes(passes, vectors[:2])
            found = solver.covariance.apply(vectors), verifier.product(vectors)
        for product in found:
            assert_allclose(product, vectors @ covariance, atol=1e-12)
        for trace in (solver.covariance.trace, verifier.trace):
            assert trace == pytest.approx(np.trace(covariance), rel=1e-12)
        assert_allclose(verifier.variances, np.diag(covariance), atol=1e-12)
        assert solver.weight == pytest.approx(w.sum())


def test_sums_of_sparse_columns_with_a_huge_mean():
    rng = np.random.default_rng(0)
    X = scipy.sparse.csr_array(np.column_stack([1e12 + rng.integers(-3, 4, 50), np.eye(50)[0]]))
    first, rest, squares, full = sparse_sums(X, None, 50.0)
    assert_allclose(squares / 50, np.var(X.toarray() - [1e12, 0.0], axis=0), rtol=1e-12)
    assert_allclose(first + rest, X.toarray().mean(axis=0), rtol=1e-15)
    assert full.tolist() == [True, False]


@pytest.mark.parametrize("n", [200, 1000])
def test_sparse_rows_with_a_huge_mean_keep_their_variance(n):
    rng = np.random.default_rng(0)
    X = scipy.sparse.random_array((n, 1500), density=0.01, rng=rng).tolil()
    X[:, 7] = 1e12 + rng.integers(-3, 4, n)
    X = X.tocsr()
    centred = X.toarray()
    centred[:, 7] -= 1e12
    model, expected = LinearAutoencoder(3).fit(X), LinearAutoencoder(3).fit(centred)
    assert_allclose(model.explained_variance_, expected.explained_variance_, rtol=1e-10)
    assert_allclose(model.components_, expected.components_, atol=1e-10)
    assert model.certificate_["attributes"].holds
    assert model.certificate_.holds is not False


def test_the_weights_of_the_rows_count():
    rows, rng = problem(), np.random.default_rng(3)
    X, places = embedded(rows, DENSE)
    w = rng.integers(0, 3, len(rows)).astype(float)
    expected = LinearAutoencoder(3).fit(rows, sample_weight=w)
    model = LinearAutoencoder(3).fit(function(X, None), sample_weight=w)
    assert_allclose(model.components_[:, places], expected.components_, atol=1e-10)
    assert model.certificate_.holds


def test_data_that_can_be_read_once_are_refused():
    X, _ = embedded(problem(), MANY)
    with pytest.raises(ValueError, match="read only once: give a file"):
        LinearAutoencoder(2).fit(iter(parts(X)))
    with pytest.raises(ValueError, match="n_components as an integer"):
        LinearAutoencoder(0.5).fit(function(X, None))
    with pytest.raises(ValueError, match="without start"):
        LinearAutoencoder(2).fit_batches(parts(X), start=SecondMoment.of(np.eye(3)))


def test_few_rows_of_an_iterator_are_loaded(monkeypatch):
    monkeypatch.setattr(batches, "LOADED_BYTES", 2**28)
    rows = problem()
    X, places = embedded(rows, DENSE)
    model = LinearAutoencoder(3).fit(iter(parts(X)))
    expected = LinearAutoencoder(3).fit(rows)
    assert_allclose(model.components_[:, places], expected.components_, atol=1e-10)


def test_data_that_change_between_passes_are_refused():
    X, _ = embedded(problem(), DENSE)
    calls = []

    def shrinking():
        calls.append(1)
        return parts(X)[: 5 if len(calls) < 4 else 2]

    with pytest.raises(ValueError, match="300 rows when it was read first, but 140 "):
        LinearAutoencoder(2).fit(shrinking)


@pytest.mark.parametrize("kind", [function, dask_sparse_grid, dask_grid])
def test_nan_is_located(kind):
    X, _ = embedded(problem(), DENSE)
    X = X.tolil()
    X[150, 8765] = np.nan
    X = X.tocsr()
    where = "NaN in block 2, row 150, column 8765"
    with (
        require("dask").config.set(scheduler="synchronous"),
        pytest.raises(ValueError, match=where),
    ):
        LinearAutoencoder(2).fit(kind(X, None))


def test_ctrl_c_leaves_the_estimator_as_it_was():
    rows = problem()
    X, _ = embedded(rows, DENSE)
    calls = []

    def interrupted():
        calls.append(1)
        yield from parts(X)[:2]
        if len(calls) == 5:
            raise KeyboardInterrupt
        yield from parts(X)[2:]

    model = LinearAutoencoder(3).fit(rows)
    before = model.components_
    with pytest.raises(ReadInterrupted):
        model.fit(interrupted)
    assert model.components_ is before
    assert model.n_features_in_ == 40


def test_progress_names_passes_and_rows(monkeypatch, capsys):
    monkeypatch.setattr("lucidae.data.passes.DELAY", 0.0)
    X, _ = embedded(problem(), DENSE)
    LinearAutoencoder(2, verbose=True).fit(function(X, None))
    assert "pass 3, reading rows: 70 rows" in capsys.readouterr().err
    with require("dask").config.set(scheduler="threads"):
        LinearAutoencoder(2, verbose=True).fit(dask_grid(X, None))
    assert "of 300 rows" in capsys.readouterr().err


def test_decoded_chunks_are_not_larger_than_a_few_blocks():
    da = require("dask.array")
    X, places = embedded(problem(), MANY)
    model = LinearAutoencoder(3).fit(function(X, None))
    codes = model.transform(function(X, None))
    decoded = model.inverse_transform(da.from_array(codes, chunks=(150, 3)))
    assert decoded.shape == X.shape
    assert max(decoded.chunks[0]) * MANY * 8 <= 4 * blocks.BLOCK_BYTES
    first = decoded[:3].compute(scheduler="synchronous")
    assert_allclose(first[:, places], model.inverse_transform(codes[:3])[:, places])


def test_sums_of_parts_of_the_columns_are_those_of_all():
    rng = np.random.default_rng(0)
    rows, vectors = rng.standard_normal((20, 12)), rng.standard_normal((2, 12))
    pieces = [slice(0, 5), slice(5, 12)]
    for leaf in (RowsPass(), ProductPass(vectors, rows.mean(axis=0), np.ones(12, bool))):
        codes = [leaf.columns(piece).codes(rows[:, piece]) for piece in pieces]
        whole = None if codes[0] is None else sum(codes)
        parts_ = [leaf.columns(p).sums(rows[:, p], whole, None) for p in pieces]
        for found, expected in zip(leaf.joined(parts_), leaf(rows, None, None), strict=True):
            assert_allclose(found, expected, atol=1e-12)


def test_a_moment_alone_is_fitted():
    rows = problem()
    moment = SecondMoment.of(rows)
    expected = LinearAutoencoder(3).fit(rows)
    model = LinearAutoencoder(3).fit_batches(None, start=moment)
    assert_allclose(model.components_, expected.components_, atol=1e-12)
    assert model.n_features_in_ == 40
    assert model.n_samples_seen_ == 300
    assert model.certificate_.holds
    found = DropoutAutoencoder(3, dropout=0.2).fit_batches(None, start=moment)
    expected = DropoutAutoencoder(3, dropout=0.2).fit(rows)
    assert found.objective_ == pytest.approx(expected.objective_, rel=1e-12)
    for estimator in (LinearAutoencoder(3), DropoutAutoencoder(3)):
        with pytest.raises(ValueError, match="the moment of all rows as start"):
            estimator.fit_batches(None)
