"""Bad data: one sentence that names the block and the row, and an estimator left as it was."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose

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
from lucidae.rows import ReadInterrupted, row_blocks

ROWS = np.random.default_rng(0).standard_normal((4000, 6)) * np.arange(6, 0, -1) + 1
FEW = ROWS[:200]
Y, ONES = FEW[:, :3], np.ones(200)


def batches_of(X, size=100):
    return (X[start : start + size] for start in range(0, len(X), size))


def mapped(X, folder):
    np.save(folder / "x.npy", X)
    return np.load(folder / "x.npy", mmap_mode="r")


def linear():
    return LinearAutoencoder(2)


def regressor():
    return DropoutRegressor(dropout=0.1)


# Batches and other kinds of data that are refused, with what is said. In what is said, `|` and what
# follows only tell cases apart.
REFUSED = {
    "block 1 of X has 5 columns, but 6 are expected": lambda: linear().fit(
        iter([ROWS, ROWS[:, :5]])
    ),
    "block 1 of X has 5 columns, but 6 are|": lambda: DropoutAutoencoder(2).fit(
        iter([ROWS, ROWS[:, :5]])
    ),
    "block 1 of X has dtype float32, but float64": lambda: linear().fit(
        iter([ROWS, ROWS.astype(np.float32)])
    ),
    "X yields no rows": lambda: linear().fit(iter([])),
    "X yields no rows|empty": lambda: linear().fit(iter([np.empty((0, 3))])),
    "X yields no rows|moment": lambda: SecondMoment.of(iter([])),
    "X yields float, expected batches of rows": lambda: linear().fit(iter([1.0, 2.0])),
    "block 0 of X, from row 0 on: Expected 2D array": lambda: linear().fit(iter(np.ones((4, 3)))),
    "Complex data not supported": lambda: linear().fit(iter([FEW + 1j])),
    "X is of type object": lambda: row_blocks(object()),
    "X is of type set, expected an array .*, an AnnData, the path of a file": lambda: linear().fit(
        {1, 2}
    ),
    "X is of type dict, expected an array .*, or a Dask": lambda: DropoutAutoencoder().fit(
        {"a": [1.0]}
    ),
    "X is of type dict, expected an array|": lambda: linear().partial_fit({"a": [1.0]}),
    "y is of type dict, expected an array": lambda: regressor().fit(FEW, {"a": [1.0]}),
    "y is of type set, expected an array": lambda: certify(regressor().fit(FEW, Y), FEW, {1}),
    "sample_weight is of type dict": lambda: linear().fit(FEW, sample_weight={"a": 1.0}),
    "sample_weight is of type dict|moment": lambda: SecondMoment.of(FEW, {"a": 1.0}),
    "sample_weight is of type dict|certify": lambda: certify(
        linear().fit(FEW), FEW, sample_weight={"a": 1.0}
    ),
    r"y is a sparse matrix, expected a dense array: give y\.toarray": lambda: regressor().fit(
        FEW, scipy.sparse.csr_array(Y)
    ),
    r"sample_weight is a sparse matrix.*give sample_weight\.toarray": lambda: linear().fit(
        FEW, sample_weight=scipy.sparse.csr_array(Y)
    ),
    r"X contains values of dtype .*structured_to_unstructured": lambda: linear().fit(
        np.rec.fromarrays(FEW.T)
    ),
    "X contains integers that are too large for float64": lambda: linear().fit(
        [[10**400, 1], [2, 3], [4, 9]]
    ),
    "X is of type int, expected an array": lambda: linear().fit(5),
    "X is of type NoneType, expected an array": lambda: SparseVAE().fit(None, ONES),
    "X is of type bytes, expected an array": lambda: linear().fit(FEW).transform(b"1"),
    "X is of type type, expected an array": lambda: certify(linear().fit(FEW), int),
    "a function was given that returns int": lambda: linear().fit(lambda: 5),
    "a batch of X has 4 parts": lambda: regressor().fit_batches([(np.ones((2, 2)),) * 4]),
    "requires y": lambda: regressor().fit_batches(FEW),
    "the first 300 rows are to be left out": lambda: row_blocks(FEW, first_row=300),
    "the first 300 rows are|iterator": lambda: list(row_blocks(iter([FEW]), first_row=300)),
    "first_row=-5 was given, expected an integer": lambda: row_blocks(FEW, first_row=-5),
    "block 1 of X has 3 targets per row, but 2 are": lambda: regressor().fit_batches(
        [(FEW, Y[:, :2]), (FEW, Y)]
    ),
    "block 1 of X has no targets": lambda: regressor().fit_batches([(FEW, Y), FEW]),
    "block 0 of X has no targets": lambda: regressor().fit_batches([FEW, (FEW, Y)]),
    "block 1 of X has no weights, but the first block has": lambda: regressor().fit_batches(
        [(FEW, Y, ONES), (FEW, Y)]
    ),
    "block 1 of X has weights, but the first block has none": lambda: regressor().fit_batches(
        [(FEW, Y), (FEW, Y, ONES)]
    ),
    "block 1 of X has no weights": lambda: linear().fit_batches([(FEW, None, ONES), FEW]),
    r"block 0: sample_weight has shape \(200, 1\)": lambda: linear().fit_batches(
        [(FEW, None, ONES[:, None])]
    ),
    r"sample_weight has shape \(200, 1\)": lambda: linear().partial_fit(FEW, None, ONES[:, None]),
    r"sample_weight has shape \(200, 1\)|frame": lambda: linear().fit(
        FEW, sample_weight=framed(ONES[:, None])
    ),
    r"sample_weight has shape \(n, 1\)|batches": lambda: linear().fit(
        batches_of(FEW, 50), sample_weight=batches_of(ONES[:, None], 80)
    ),
    r"sample_weight has shape \(200, 1\)|moment": lambda: SecondMoment.of(FEW).update(
        FEW, ONES[:, None]
    ),
    "sample_weight contains NaN": lambda: linear().fit_batches([(FEW, None, -ONES)]),
    "sample_weight contains NaN|": lambda: linear().fit_batches([(FEW, None, np.nan * ONES)]),
    "start has 3 features": lambda: linear().fit_batches(FEW, start=SecondMoment.of(np.eye(3))),
    "start has 3 features|": lambda: DropoutAutoencoder(2).fit_batches(
        FEW, start=SecondMoment.of(np.eye(3))
    ),
    "start=3 was given, expected a SecondMoment": lambda: linear().fit_batches([FEW], start=3),
    "start=3 was given, expected a|": lambda: linear().fit_batches(None, start=3),
    r"X is a list of 2 arrays of rows.*fit_batches": lambda: linear().fit([FEW, FEW[:50]]),
    r"fit_transform reads X twice.*iterator": lambda: linear().fit_transform(batches_of(FEW)),
    r"fit_transform reads X twice|": lambda: linear().fit_transform(row_blocks(batches_of(FEW))),
    r"partial_fit expects one batch.*fit_batches": lambda: linear().partial_fit("rows.npy"),
    r"partial_fit expects one batch.*fit_batches|": lambda: DropoutAutoencoder(2).partial_fit(
        batches_of(FEW)
    ),
    r"partial_fit expects one batch|function": lambda: linear().partial_fit(lambda: [FEW]),
    r"X has 3 features, but .* expecting 6": lambda: certify(linear().fit(FEW), FEW[:, :3]),
    r"X has 3 features, but .* expecting 6|batches": lambda: certify(
        linear().fit(FEW), batches_of(FEW[:, :3])
    ),
    r"X has 3 features, but .* expecting 6|moment": lambda: certify(
        linear().fit(FEW), SecondMoment.of(FEW[:, :3])
    ),
    "load the rows into memory first": lambda: SparseVAE().fit(batches_of(FEW), ONES),
    "load the rows into memory first|y": lambda: SparseVAE().fit(FEW, "rows.npy"),
    "load the rows into memory first|factors": lambda: DropoutFactorization(2).fit("rows.npy"),
    "load the rows into memory first|moment": lambda: SecondMoment.of(FEW).update(FEW.sum),
    "draws rows in random order": lambda: LinearAutoencoder(2, solver="stochastic").fit(
        batches_of(ROWS)
    ),
    "draws rows in random order|nested": lambda: LinearAutoencoder(
        2, method="nested_dropout", solver="gradient"
    ).fit(batches_of(ROWS)),
    "draws rows in random order|dropout": lambda: DropoutAutoencoder(2, solver="sgd").fit(
        batches_of(ROWS)
    ),
    "divides the rows into folds": lambda: DropoutRegressor(dropout="cv").fit_batches(
        (part, part) for part in batches_of(ROWS)
    ),
    "n_components=7 was given, but X has 6 features": lambda: LinearAutoencoder(7).fit(
        batches_of(ROWS)
    ),
    "tol=-1": lambda: DropoutRegressor(tol=-1).fit_batches([(FEW, Y)]),
    "fit_intercept='x'": lambda: DropoutRegressor(fit_intercept="x").fit_batches([(FEW, Y)]),
    "expected a Dask array or data frame": lambda: linear().fit(
        require("dask.bag").from_sequence([1, 2])
    ),
    "expected a Dask array or|": lambda: linear().fit(require("dask").delayed(np.eye)(3)),
    r"X is a LazyFrame of polars.*X\.collect\(\)": lambda: linear().fit(
        require("polars").LazyFrame({"a": [1.0, 2.0, 4.0]})
    ),
    "X has an unknown number of columns: call compute_chunk": lambda: linear().fit(unknown()),
    "X has an unknown number of columns|": lambda: linear().fit(FEW).transform(unknown()),
}


def unknown():
    da = require("dask.array")
    return da.from_array(FEW)[:, da.from_array(FEW[0] > -np.inf)]


@pytest.mark.parametrize("words", REFUSED)
def test_bad_data_are_refused_by_one_sentence(words, small_blocks):
    with pytest.raises(ValueError, match=words.split("|")[0]) as caught:
        REFUSED[words]()
    assert "\n" not in str(caught.value)
    assert "handle_missing" not in str(caught.value)


def test_what_is_similar_but_right_is_taken():
    model = linear().fit(iter([ROWS[:2000], ROWS[2000:].astype(object)]))
    assert_allclose(model.components_, linear().fit(ROWS).components_)
    codes = model.fit_transform(lambda: batches_of(FEW, 10))
    assert_allclose(codes, model.transform(FEW), atol=1e-9)
    assert_allclose(model.transform(unknown().compute_chunk_sizes()), model.transform(FEW))
    frame = require("polars").LazyFrame({"a": [1.0, 2.0, 4.0], "b": [2.0, 1.0, 0.0]})
    assert linear().fit(frame.collect()).n_features_in_ == 2


def framed(X):
    return require("pandas").DataFrame(X).add_prefix("c")


TEXTS = {
    "text": (lambda X: X.astype(str), "text"),
    "bytes": (lambda X: X.astype("S"), "text"),
    "objects": (lambda X: X.astype(str).astype(object), "text"),
    "list": (lambda X: X.astype(str).tolist(), "text"),
    "column": (lambda X: framed(X).astype({"c1": str}), "text in column 'c1'"),
    "objects in a column": (
        lambda X: framed(X).astype({"c1": str}).astype({"c1": object}),
        "text in column 'c1'",
    ),
    "categories": (
        lambda X: framed(X.round()).astype({"c2": "category"}),
        "categories in column 'c2'",
    ),
    "polars": (
        lambda X: require("polars").DataFrame(X).cast({"column_3": require("polars").String}),
        "text in column 'column_3'",
    ),
}


@pytest.mark.covering
@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("blocks_are_small", [True, False])
def test_text_that_could_be_read_as_numbers_is_refused_in_batches(kind, blocks_are_small, request):
    if blocks_are_small:
        request.getfixturevalue("small_blocks")
    convert, what = TEXTS[kind]
    for at in (0, 27):
        batches = list(batches_of(ROWS))
        batches[at] = convert(batches[at])
        place = rf"^block {at} of X, from row {100 * at} on: "
        with pytest.raises(
            ValueError, match=rf"{place}X contains {what}, expected numbers.*first\.$"
        ):
            linear().fit(iter(batches))
    bad = convert(ROWS)
    if blocks_are_small and kind not in ("list", "polars"):
        is_frame = hasattr(bad, "columns")
        dask = require("dask.dataframe") if is_frame else require("dask.array")
        lazy = dask.from_pandas(bad, 1) if is_frame else dask.from_array(bad, chunks=(4000, 6))
        with pytest.raises(ValueError, match=rf"^block 0 of X, .* on: X contains {what}"):
            linear().fit(lazy)


@pytest.mark.covering
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("wrap", [np.asarray, scipy.sparse.csr_array])
def test_the_block_and_the_row_of_a_bad_entry_are_named(bad, wrap, small_blocks):
    X = np.array(ROWS)
    X[2733, 4] = bad
    kind = "NaN" if np.isnan(bad) else "infinity"
    where = rf"X contains {kind} in block 27, row 2733, column 4 \(all counted from 0\)"
    batches = [wrap(batch) for batch in batches_of(X)]
    calls = [linear().fit, DropoutAutoencoder(2).fit, SecondMoment.of, linear().fit(ROWS).transform]
    for call in calls:
        with pytest.raises(ValueError, match=where):
            call(iter(batches))


def test_bad_entries_of_small_data_tiny_batches_and_targets_are_named_too(tmp_path, small_blocks):
    X = np.array(FEW)
    X[57, 0] = np.nan
    with pytest.raises(ValueError, match="X contains NaN in block 5, row 57, column 0"):
        linear().fit(batches_of(X, 10))
    X = np.random.default_rng(0).standard_normal((9000, 40))
    X[1234, 7] = np.nan
    with pytest.raises(ValueError, match="X contains NaN in block 411, row 1234, column 7"):
        SecondMoment.of(batches_of(X, 3))
    X[1234, 7] = 1e200
    with pytest.raises(ValueError, match=r"block 405 to 431 of X \(rows 1215 to 1295.*overflow"):
        SecondMoment.of(batches_of(X, 3))
    X[1234, 7] = 0.0
    assert_allclose(SecondMoment.of(batches_of(X, 3)).covariance, np.cov(X.T, bias=True))
    y = np.ones(4000)
    y[3001] = np.nan
    with pytest.raises(ValueError, match=r"y contains NaN in block \d+, row 3001, column 0"):
        DropoutRegressor().fit(mapped(ROWS, tmp_path), y)


@pytest.mark.parametrize("n_rows", [100, 4000])
def test_missing_values_of_files_are_named_by_their_column(tmp_path, small_blocks, n_rows):
    require("pyarrow")
    frame = framed(ROWS[:n_rows, :3])
    model = LinearAutoencoder(1).fit(frame)
    frame.iloc[57, 2] = np.nan
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.round().astype("Int64").to_parquet(tmp_path / "x.parquet")
    for name in ("x.csv", "x.parquet"):
        for use in (LinearAutoencoder(1).fit, model.transform, SecondMoment.of):
            with pytest.raises(ValueError, match=r"row 57, column 2, 'c2' \(all counted from 0\)"):
                use(tmp_path / name)


@pytest.mark.parametrize("module", ["h5py", "zarr"])
def test_files_of_several_arrays_are_refused(module, tmp_path):
    library, is_hdf5 = require(module), module == "h5py"
    path = tmp_path / ("x.h5" if is_hdf5 else "x.zarr")
    file = library.File(path, "w") if is_hdf5 else library.open_group(path, mode="w")
    for name in ("rows", "other"):
        (file.create_dataset if is_hdf5 else file.create_array)(name, data=FEW)
    with pytest.raises(ValueError, match=rf"X is an open file or group of {module} with .*'rows'"):
        linear().fit(file)
    linear().fit(file["rows"])
    if is_hdf5:
        file.close()
    with pytest.raises(ValueError, match="contains 2 tables, expected exactly one"):
        linear().fit(path)


@pytest.mark.parametrize("count", [3999, 4001])
def test_targets_of_another_length_are_refused(count, tmp_path, small_blocks):
    with pytest.raises(ValueError, match=r"y has (fewer|more) rows than X"):
        DropoutRegressor().fit(mapped(ROWS, tmp_path), np.ones(count))
    chunks = require("dask.array").from_array(ROWS, chunks=(500, 6))
    with pytest.raises(ValueError, match=f"{count}"):
        DropoutRegressor().fit(chunks, np.ones(count))


def test_a_memory_map_can_be_fitted_by_solvers_that_draw_rows(tmp_path, small_blocks):
    rows = mapped(ROWS, tmp_path)
    settings = {"solver": "stochastic", "random_state": 0, "max_iter": 3000, "tol": 1e-2}
    model = LinearAutoencoder(1, **settings).fit(rows)
    assert_allclose(model.components_, LinearAutoencoder(1, **settings).fit(ROWS).components_)
    assert DropoutRegressor(dropout="cv").fit(rows, ROWS[:, 0]).dropout_ >= 0.0


def interrupted_after(X, count, size=100):
    for number, batch in enumerate(batches_of(X, size)):
        if number == count:
            raise KeyboardInterrupt
        yield batch


@pytest.mark.parametrize("estimator", [LinearAutoencoder(3), DropoutAutoencoder(3)])
def test_an_interruption_leaves_the_estimator_and_a_moment_to_go_on(estimator, small_blocks):
    estimator.fit(ROWS[:50])
    before = dict(vars(estimator))
    with pytest.raises(ReadInterrupted) as caught:
        estimator.fit(interrupted_after(ROWS, 17))
    stop = caught.value
    assert vars(estimator) == before
    assert stop.n_rows == 1700
    assert_allclose(stop.moment.mean, ROWS[:1700].mean(axis=0))
    rest = row_blocks(ROWS, first_row=stop.n_rows)
    whole = stop.moment.merge(SecondMoment.of(rest))
    assert_allclose(whole.covariance, np.cov(ROWS.T, bias=True))
    estimator.fit_batches(rest, start=stop.moment)
    assert_allclose(estimator.mean_, ROWS.mean(axis=0))


def test_an_interrupted_regression_goes_on(small_blocks):
    y = ROWS @ np.arange(6.0)
    with pytest.raises(ReadInterrupted) as caught:
        regressor().fit(interrupted_after(ROWS, 20), y)
    stop = caught.value
    assert stop.moment.n_features == 7
    rest = slice(stop.n_rows, None)
    model = regressor().fit_batches(ROWS[rest], y[rest], start=stop.moment)
    assert_allclose(model.coef_, regressor().fit(ROWS, y).coef_, atol=1e-10)


def test_an_interruption_of_dask_before_the_first_chunk_has_no_moment(monkeypatch, small_blocks):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dask.compute", interrupt)
    with pytest.raises(ReadInterrupted) as caught:
        linear().fit(require("dask.array").from_array(ROWS, chunks=(500, 6)))
    assert (caught.value.moment, caught.value.n_rows) == (None, 0)
