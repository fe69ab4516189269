"""`partial_fit` and missing entries with Dask collections, and warnings of reading in blocks."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require
from lucidae import (
    DropoutAutoencoder,
    DropoutRegressor,
    LinearAutoencoder,
    SecondMoment,
    certify,
)
from lucidae.data import dask_collections
from lucidae.linear import batches as linear_batches


def rows_of(n=400, m=6, seed=0):
    return np.random.default_rng(seed).standard_normal((n, m)) * np.arange(m, 0, -1) + 1


def collections(X):
    """Return Dask collections of the rows X: chunks in both directions, unknown sizes, a frame."""
    da, dd = require("dask.array"), require("dask.dataframe")
    frame = require("pandas").DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    array = da.from_array(X, chunks=(70, 4))
    return [array, array[array[:, 0] > -np.inf], dd.from_pandas(frame, npartitions=5)]


@pytest.mark.parametrize("at", range(3))
def test_partial_fit_of_a_dask_collection_equals_fit_to_its_rows(at):
    X, w = rows_of(), np.random.default_rng(1).integers(0, 3, 400).astype(float)
    w[:70] = 0.0  # the first chunk counts nothing
    Y = X[:, :2] @ np.ones((2, 3))
    for weights in (None, w):
        for estimator in (LinearAutoencoder(2), DropoutAutoencoder(2)):
            given = {} if weights is None else {"sample_weight": weights}
            found = type(estimator)(2).partial_fit(collections(X)[at], **given)
            fitted = estimator.fit(X, sample_weight=weights)
            codes = np.asarray(found.transform(collections(X)[at]))
            assert_allclose(codes, fitted.transform(X), atol=1e-9)
            assert_allclose(found.mean_, fitted.mean_)
    for y in (Y, Y[:, 0], require("dask.array").from_array(Y, chunks=(70, 1))):
        found = DropoutRegressor(dropout=0.1).partial_fit(collections(X)[at], y)
        fitted = DropoutRegressor(dropout=0.1).fit(X, np.asarray(y))
        assert_allclose(found.coef_, fitted.coef_, atol=1e-10)
        assert found.coef_.shape == fitted.coef_.shape


def test_a_bad_chunk_is_named_and_the_earlier_fit_stays():
    X = rows_of()
    model = LinearAutoencoder(2).fit(X)
    before = dict(vars(model))
    X[301, 2] = np.nan
    with pytest.raises(ValueError, match="X contains NaN in block 4, row 301, column 2"):
        model.partial_fit(collections(X)[0])
    for weights, sentence in (
        (np.zeros(400), "sample_weight sums to 0"),
        (np.ones((400, 1)), r"sample_weight has shape \(400, 1\)"),
        (np.ones(300), "sample_weight has fewer rows than X"),
    ):
        with pytest.raises(ValueError, match=sentence):
            model.partial_fit(collections(rows_of())[0], sample_weight=weights)
    with pytest.raises(ValueError, match="y"):
        DropoutRegressor(dropout=0.1).partial_fit(collections(rows_of())[0])
    with pytest.raises(ValueError, match="expected a Dask array or data frame"):
        model.partial_fit(require("dask").delayed(np.eye)(3))
    assert vars(model) == before


@pytest.mark.parametrize("at", range(3))
def test_missing_entries_of_wide_dask_collections(at):
    X = rows_of(20, 50)
    X[::3, 4] = np.nan
    whole = LinearAutoencoder(2, handle_missing="em").fit(X)
    model = LinearAutoencoder(2, handle_missing="em").fit(collections(X)[at])
    assert_allclose(model.components_, whole.components_, atol=1e-8)
    found = certify(model, collections(X)[at])
    assert found.holds == certify(whole, X).holds
    assert [claim.name for claim in found] == [claim.name for claim in certify(whole, X)]


def test_codes_of_wide_dask_rows_with_missing_entries_are_those_of_the_rows(monkeypatch):
    X = rows_of(20, 50)
    X[::3, 4] = np.nan
    model = LinearAutoencoder(2, handle_missing="em").fit(X)
    monkeypatch.setattr(dask_collections, "_is_too_wide", lambda _: True)
    assert_allclose(model.transform(collections(X)[0]).compute(), model.transform(X), atol=1e-9)


def test_missing_entries_of_large_wide_dask_collections_are_one_sentence(monkeypatch):
    monkeypatch.setattr(linear_batches, "EXACT_FEATURES", 40)
    monkeypatch.setattr(linear_batches, "LOADED_BYTES", 2**10)
    X = rows_of(20, 50)
    X[3, 4] = np.nan
    model = LinearAutoencoder(2, handle_missing="em")
    with pytest.raises(ValueError, match=r"NaN in block 0, row 3, column 4 .*load all rows") as e:
        model.fit(collections(X)[0])
    assert "\n" not in str(e.value)
    assert not hasattr(model, "components_")


def warnings_of(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("make", [LinearAutoencoder, DropoutAutoencoder])
def test_warnings_about_names_are_issued_once(make, tmp_path, monkeypatch):
    monkeypatch.setattr("lucidae.data.blocks.BLOCK_BYTES", 2**10)
    X = rows_of()
    array, _, frame = collections(X)
    named, plain = make(2).fit(frame.compute()), make(2).fit(X)
    np.save(tmp_path / "x.npy", X)
    frame.compute().to_parquet(tmp_path / "x.parquet")
    without = (
        array,
        tmp_path / "x.npy",
        np.load(tmp_path / "x.npy", mmap_mode="r"),
        lambda: [X, X],
    )
    for data in without:
        for method in (named.transform, named.partial_fit) if data is array else (named.transform,):
            found = warnings_of(lambda call=method, rows=data: np.asarray(call(rows)))
            assert len(found) == 1
            assert "does not have valid feature names" in found[0]
    for data in (frame, tmp_path / "x.parquet"):
        found = warnings_of(lambda rows=data: np.asarray(plain.transform(rows)))
        assert len(found) == 1
        assert "X has feature names" in found[0]
    for data in (frame, tmp_path / "x.parquet"):
        assert warnings_of(lambda rows=data: np.asarray(named.transform(rows))) == []
    codes = require("dask.array").from_array(plain.transform(X), chunks=(70, 2))
    assert warnings_of(lambda: named.inverse_transform(codes).compute()) == []


def test_a_limit_of_steps_is_one_warning():
    array, _, frame = collections(rows_of())
    for data in (array, frame, lambda: iter([rows_of(), rows_of()])):
        model = LinearAutoencoder(2, solver="gradient", max_iter=2)
        assert len(warnings_of(lambda rows=data, m=model: m.fit(rows).components_)) == 1


TWICE = """
import sys
import numpy as np
import dask.array as da
from lucidae import LinearAutoencoder, SecondMoment
from lucidae.data import blocks
assert "distributed" not in sys.modules
blocks.BLOCK_BYTES = 2**10
rows = da.from_array(np.random.default_rng(0).standard_normal((400, 6)), chunks=(50, 3))
for _ in range(2):
    assert LinearAutoencoder(2).fit(rows).n_samples_seen_ == 400
assert SecondMoment.of(rows).weight == 400.0
print("done")
"""


def test_two_fits_in_a_process_that_has_not_imported_distributed():
    require("distributed")
    found = subprocess.run(
        [sys.executable, "-c", TWICE], capture_output=True, text=True, check=False
    )
    assert found.stdout.strip() == "done", found.stderr


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        (np.ones(400) * 1j, "sample_weight contains values of dtype complex128"),
        (np.array(["a"] * 400), "sample_weight contains values of dtype <U1"),
        (np.zeros(400, "datetime64[s]"), "sample_weight contains values of dtype datetime64"),
        (-np.ones(400), "sample_weight contains NaN, infinite or negative"),
        (np.full(400, np.inf), "sample_weight contains NaN, infinite or negative"),
        (np.zeros(400), "sample_weight sums to 0"),
    ],
)
def test_bad_weights_of_dask_are_one_sentence(weights, sentence, monkeypatch):
    monkeypatch.setattr("lucidae.data.blocks.BLOCK_BYTES", 2**10)
    lazy = require("dask.array").from_array(weights, chunks=100)
    for given in (weights, lazy):
        with pytest.raises(ValueError, match=sentence) as caught:
            LinearAutoencoder(2).fit(collections(rows_of())[0], sample_weight=given)
        assert "\n" not in str(caught.value)


def test_collections_without_rows_or_columns_are_one_sentence():
    da, dd, pd = require("dask.array"), require("dask.dataframe"), require("pandas")
    model = LinearAutoencoder(2).fit(rows_of())
    for call in (model.fit, SecondMoment.of, model.partial_fit):
        with pytest.raises(ValueError, match="X contains no rows: at least one row is needed"):
            call(da.ones((0, 6)))
    for empty in (da.ones((4, 0)), dd.from_pandas(pd.DataFrame(index=range(4)), npartitions=1)):
        with pytest.raises(ValueError, match="X has no columns"):
            model.transform(empty)
    for flat in (da.ones(4), dd.from_pandas(pd.Series([1.0, 2.0]), npartitions=1)):
        with pytest.raises(ValueError, match="X has 1 dimensions, expected rows and columns: two"):
            model.transform(flat)
