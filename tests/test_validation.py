"""Input validation: what is accepted, and the errors for everything else."""

import datetime as dt
import math
import os
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from extras import require
from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
    LinearAutoencoder,
    SparseVAE,
    certify,
)
from lucidae.arrays import namespace, to_numpy
from lucidae.sparsity import noise_path, solve_batch, solve_joint
from lucidae.validation import (
    check_number,
    check_rows,
    check_vector,
    check_weights,
    missing_bytes,
)

ROWS = [[1.0, 2.0], [3.0, 4.0]]


def test_rows_stay_in_their_library_and_keep_single_precision(xp):
    for dtype in (xp.float32, xp.float64):
        X = xp.asarray(ROWS, dtype=dtype)
        checked = check_rows(X)
        assert namespace(checked) is namespace(X)
        assert checked.dtype == dtype
    assert check_rows(xp.asarray([[1, 2]])).dtype == xp.float64


def test_sparse_rows_stay_sparse_unless_refused():
    X = scipy.sparse.coo_array(np.array(ROWS))
    assert scipy.sparse.issparse(check_rows(X))
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        check_rows(X, accept_sparse=False)


def test_words_are_refused():
    with pytest.raises(ValueError, match=r"could not convert string.*\n.*OneHotEncoder"):
        check_rows(np.array([["a", "b"]], dtype=object))


@pytest.mark.parametrize("text", [[["1", "2"], ["3", "5"]], np.array([["1_0"], ["2"]]), b"1 2 3"])
def test_arrays_of_text_are_refused_also_if_it_reads_as_numbers(text):
    text = np.array(text.split())[:, None] if isinstance(text, bytes) else text
    for use in (LinearAutoencoder(1).fit, DropoutAutoencoder(1).fit, check_rows):
        with pytest.raises(ValueError, match=r"X contains values of dtype .*OneHotEncoder"):
            use(text)


@pytest.mark.parametrize("estimator", [DropoutRegressor(), SparseVAE(noise_variance=0.1)])
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_targets_in_a_series_or_a_frame_are_numbers(estimator, library):
    X, frames = np.random.default_rng(0).standard_normal((6, 2)), require(library)
    typed = [Decimal("1.5"), Decimal(2), *map(Decimal, range(4))]
    with_text = frames.DataFrame({"a": X[:, 0], "b": [*"uvwxyz"]})
    for y, sentence in (
        (frames.Series([*"abcdef"]), "column 'y' of y is not numeric: 'a' in row 0"),
        (frames.DataFrame({"kg": [*"12345k"]})["kg"], "'kg' of y .*'k' in row 5"),
        (frames.Series([dt.date(2020, 1, day) for day in range(1, 7)]), "not numeric"),
        (with_text, "column 'b' of y is not numeric"),
    ):
        with pytest.raises(ValueError, match=sentence) as caught:
            estimator.fit(X, y)
        assert "\n" not in str(caught.value)
        with pytest.raises(ValueError, match=sentence):
            clone(estimator).fit(X, X[:, 0]).score(X, y)
    exact = clone(estimator).fit(X, np.array(typed, dtype=float))
    assert_array_equal(clone(estimator).fit(X, frames.Series(typed)).coef_, exact.coef_)
    with pytest.warns(UserWarning, match="Columns of text of y were read as numbers: 'y'"):
        estimator.fit(X, frames.Series([*map(str, typed)]))
    assert_array_equal(estimator.coef_, exact.coef_)


ESTIMATORS = [
    LinearAutoencoder(1),
    DropoutAutoencoder(1),
    DropoutRegressor(),
    SparseVAE(noise_variance=0.1),
]
COMPLETING = [LinearAutoencoder(1, handle_missing="em"), DropoutFactorization(1)]


@pytest.mark.parametrize("estimator", [*ESTIMATORS, *COMPLETING])
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_text_in_a_data_frame_is_left_out_with_a_warning_that_names_its_column(estimator, library):
    frames = require(library)
    X = frames.DataFrame({"city": ["Köln", "Rom", "Bonn"], "height": [1.0, 2.0, 4.0]})
    words = r"^Columns of X were left out: 'city' \('Köln' in row 0 is not a number\)\.$"
    with pytest.warns(UserWarning, match=words):
        model = clone(estimator).fit(X, [0.0, 1.0, 2.0])
    assert model.feature_names_in_.tolist() == ["height"]
    use = model.predict if hasattr(model, "predict") else model.transform
    alone = X[["height"]]
    assert_array_equal(use(X), use(alone))  # the fit has said what it leaves out
    for bad in (["1", "2", "3 m"], ["a", "b", "c"]):
        changed = (
            X.assign(height=bad)
            if library == "pandas"
            else X.with_columns(frames.Series("height", bad))
        )
        with pytest.raises(ValueError, match=r"column 'height' of X .*'(3 m|a)' in row \d"):
            use(changed)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_gaps_in_a_data_frame_are_refused_with_the_name_of_their_column(estimator, library):
    frames = require(library)
    X = frames.DataFrame({"height": [1.0, 2.0, 4.0], "weight": [1.0, math.nan, 2.0]})
    with pytest.raises(ValueError, match=r"contains NaN \(column 'weight' of X\)") as caught:
        estimator.fit(X, [0.0, 1.0, 2.0])
    assert "HistGradientBoosting" not in str(caught.value)
    assert re.search(r"impute|handle_missing", str(caught.value))


@pytest.mark.parametrize("estimator", [DropoutRegressor(), SparseVAE(noise_variance=0.1)])
def test_errors_about_a_table_of_targets_name_its_columns(estimator):
    frames = require("pandas")
    y = frames.DataFrame({"price": [1.0, 2.0, 3.0], "risk": [1.0, math.inf, 2.0]})
    with pytest.raises(ValueError, match=r"y contains infinity.* \(column 'risk' of y\)"):
        estimator.fit(np.eye(3), y)
    with pytest.raises(ValueError, match="column 'risk' of y is not numeric: 'high' in row 0"):
        estimator.fit(np.eye(3), y.assign(risk=["high", "low", "low"]))


def test_many_columns_are_counted_and_missing_values_of_pandas_are_found():
    frames = require("pandas")
    X = frames.DataFrame([["a"] * 7 + [1.0]] * 2, columns=[*"abcdefgh"])
    with pytest.warns(UserWarning, match=r"left out: 'a' \('a' in row 0 is not a number\), 'b'"):
        assert check_rows(X).shape == (2, 1)
    gaps = frames.DataFrame({"a": frames.array([1, None], dtype="Int64"), "b": [1.0, 2.0]})
    with pytest.raises(ValueError, match=r"\(column 'a' of X\)"):
        check_rows(gaps)


def test_sparse_tensors_are_refused_with_the_way_out():
    torch = require("torch")
    with pytest.raises(ValueError, match="to_dense"):
        check_rows(torch.ones(2, 2).to_sparse())


def test_without_finite_the_entries_are_not_looked_at(xp):
    assert np.isnan(to_numpy(check_rows(xp.asarray([[xp.nan]]), finite=False))).all()


def test_weights_come_beside_the_rows_in_double_precision(xp):
    X = xp.asarray(ROWS, dtype=xp.float32)
    for given in ([1, 2], np.float32([1, 2]), xp.asarray([1.0, 2.0])):
        weights = check_weights(given, X)
        assert namespace(weights) is namespace(X)
        assert weights.dtype == xp.float64
        assert_array_equal(to_numpy(weights), [1.0, 2.0])
    assert_array_equal(to_numpy(check_weights(3, X)), [3.0, 3.0])
    assert check_weights(None, X) is None


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ([1.0], r"shape \(1,\), expected \(2,\)"),
        ([[1.0, 1.0]], "one weight per row"),
        ([1.0, -1.0], "negative entries"),
        ([1.0, np.nan], "finite"),
        ([1.0, np.inf], "finite"),
        ([1.0, None], "dtype object, expected real numbers"),
        ([0.0, 0.0], "sums to 0"),
        ([1e308, 1e308], "sums to inf"),
        (0.0, "sums to 0"),
        (np.nan, "finite"),
        (["a", "b"], "dtype <U1, expected real numbers"),
        (np.timedelta64(3, "s"), "expected a finite number"),
        ([1 + 0j, 1.0], "dtype complex128, expected real numbers"),
    ],
)
def test_bad_weights_are_refused(weights, sentence):
    with pytest.raises(ValueError, match=sentence):
        check_weights(weights, np.array(ROWS))


def test_ends_of_a_range_count_unless_open():
    assert check_number(0.0, "rate", low=0.0, high=1.0) == 0.0
    assert check_number(1.0, "rate", low=0.0, high=1.0, open_low=True) == 1.0
    with pytest.raises(ValueError, match=r"\(0, 1\]"):
        check_number(0.0, "rate", low=0.0, high=1.0, open_low=True)
    with pytest.raises(ValueError, match="above 0"):
        check_number(0, "rate", low=0.0, open_low=True)
    with pytest.raises(ValueError, match="of at least 0"):
        check_number(-1, "rate", low=0.0)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        check_number(1.5, "rate", low=0.0, high=1.0)


X = np.random.default_rng(0).standard_normal((30, 5))
LINEAR = LinearAutoencoder(2, solver="gradient", max_iter=1, random_state=0)
WARNING_CALLS = {
    "fit": lambda: clone(LINEAR).fit(X),
    "fit_transform": lambda: clone(LINEAR).fit_transform(X),
    "pipeline": lambda: make_pipeline(clone(LINEAR)).fit(X),
    "read after partial_fit": lambda: clone(LINEAR).partial_fit(X).components_,
    "transform after partial_fit": lambda: clone(LINEAR).partial_fit(X).transform(X),
    "warm start": lambda: (
        clone(LINEAR).set_params(max_iter=10_000, tol=1e-2, warm_start=True).fit(X).fit(X[:, :4])
    ),
    "sgd": lambda: DropoutRegressor(2, solver="sgd", max_iter=1, random_state=0).fit(X, X),
    "sparse": lambda: SparseVAE(noise_variance=0.1, max_iter=1, tol=0.0).fit(X, X[:, 0]),
}


@pytest.mark.parametrize("name", WARNING_CALLS)
def test_a_warning_names_the_line_of_the_user(name):
    with pytest.warns(UserWarning, match="tart|topped") as warned:
        WARNING_CALLS[name]()
    assert [warning.filename for warning in warned] == [__file__]


@pytest.mark.parametrize(
    "value", ["x", ["a", "b"], [1j], [[1.0]], [], [True], [-1.0], [np.nan], [np.inf]], ids=str
)
def test_what_is_no_vector_of_numbers_is_refused(value):
    words = "prior=.* was given, expected a vector of numbers of at least 0"
    with pytest.raises(ValueError, match=words):
        check_vector(value, "prior")


def test_vectors_are_copied_and_numbers_have_no_axes():
    given = np.array([1.0, 2.0])
    found = check_vector(given, "prior")
    found[0] = 5.0
    assert given[0] == 1.0
    assert check_vector(3, "prior").shape == ()
    assert_array_equal(check_vector([Fraction(1, 2), 2], "prior"), [0.5, 2.0])


def test_intervals_with_an_upper_end_alone_are_described():
    for open_high, words in ((True, "below 1"), (False, "of at most 1")):
        with pytest.raises(ValueError, match=f"x=2 was given, expected a finite number {words}"):
            check_number(2, "x", high=1.0, open_high=open_high)
    assert check_number(-1e300, "x", high=1.0) == -1e300


@pytest.mark.parametrize("form", [object, str, "S"])
def test_complex_numbers_as_objects_or_text_are_refused(form):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((20, 4)), rng.standard_normal((20, 2))
    wrong = (X + 1j).astype(form), (y + 1j).astype(form)
    complex_fit = SparseVAE(noise_variance=0.1).fit(X + 1j * rng.standard_normal(X.shape), y)
    before = complex_fit.coef_.copy()
    for call in (
        lambda: complex_fit.fit(wrong[0], y),
        lambda: complex_fit.fit(X, wrong[1]),
        lambda: complex_fit.predict(wrong[0]),
        lambda: certify(complex_fit, wrong[0], y),
        lambda: certify(before, X, wrong[1]),
        lambda: noise_path(wrong[0], y, [0.1]),
        lambda: solve_batch(wrong[0][None], y[None]),
        lambda: solve_joint([X, wrong[0]], [y, y]),
        lambda: LinearAutoencoder(1).fit(wrong[0]),
        lambda: LinearAutoencoder(1).fit(wrong[0].tolist()),
        lambda: DropoutRegressor(1).fit(X, wrong[1]),
        lambda: DropoutFactorization(1).fit(wrong[0]),
    ):
        with pytest.raises(ValueError, match=r"omplex|string|numbers|object"):
            call()
    assert_array_equal(complex_fit.coef_, before)  # the last fit was kept


@pytest.mark.parametrize("offset", [0, 24, 5000])
def test_bytes_behind_the_end_of_a_mapped_file_are_counted(offset, tmp_path):
    (tmp_path / "x").write_bytes(bytes(offset) + np.arange(4000.0).tobytes())
    mapped = np.memmap(tmp_path / "x", dtype=float, mode="r", offset=offset, shape=(1000, 4))
    parts = (mapped, mapped[10:900], mapped[::7, 1:3], np.asarray(mapped)[:500], mapped.T)
    assert [missing_bytes(part) for part in parts] == [0] * 5
    os.truncate(tmp_path / "x", offset + 800)
    last = [mapped[-1, -1:], mapped[899, -1:], mapped[994, 2:3], mapped[499, -1:], mapped[-1, -1:]]
    ends = [one.ctypes.data - mapped.ctypes.data + 8 for one in last]
    assert [missing_bytes(part) for part in parts] == [end - 800 for end in ends]
    assert (missing_bytes(mapped[:25]), missing_bytes(mapped[:26])) == (0, 32)
    assert missing_bytes(np.eye(3)[1:]) == missing_bytes([1.0]) == 0
    with pytest.raises(ValueError, match="file that has become shorter by 31200 bytes"):
        SparseVAE(noise_variance=0.1).fit(mapped, np.ones(1000))


def test_errors_show_a_value_in_one_short_line():
    with pytest.raises(ValueError, match=r"^sample_weight contains values of dtype") as error:
        SparseVAE(noise_variance=0.1).fit(np.eye(40), np.ones(40), np.ones(40, dtype=complex))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_dask_is_refused_by_name_where_rows_are_needed_in_memory():
    array = require("dask.array")
    matrix = array.from_array(np.random.default_rng(0).standard_normal((20, 4)))
    with pytest.raises(ValueError, match=r"X is of type Array, .*, by X\.compute\(\)\.$"):
        DropoutFactorization(2).fit(matrix)
