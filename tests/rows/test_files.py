"""Files of numbers: what is read, in blocks and as a table, and the error for a bad file.

Each file is read by `fit` and as the table of the command and the report, with the same result.
"""

import ast
import io
import os
import signal
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal

from extras import require
from lucidae import DropoutRegressor, LinearAutoencoder
from lucidae.datasets import load_digits
from lucidae.datasets import read_table as read_frame
from lucidae.rows import ReadInterrupted, files, row_blocks
from lucidae.rows.files import blocks_of_file
from lucidae.rows.tables import ReadOptions, Table

pandas, pyarrow = require("pandas"), require("pyarrow")

NUMBERS = np.array([[1.0, 2.5], [3.0, -4.0], [5.0, 1e-3]])


def read_table(path, **options):
    """Return the table in a file, and make sure that its blocks are the same."""
    given = ReadOptions(**options)
    table, data = files.read_table(path, given), blocks_of_file(path, options=given)
    rows = np.concatenate(list(data))
    assert_array_equal(rows[:, data.chosen.features], table.values)
    assert (data.feature_names or data.chosen.names) == data.chosen.names
    assert data.chosen.left_out == table.left_out
    return table


def error_of(path):
    """Return the error for a bad file, which is the same for an estimator and for a table."""
    with pytest.raises(ValueError, match=path.name) as caught:
        files.read_table(path)
    with pytest.raises(ValueError, match=path.name) as of_fit:
        LinearAutoencoder(1).fit(path)
    assert str(of_fit.value).startswith(str(caught.value))  # it may add an advice
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def write(tmp_path):
    """Return a function that writes text, bytes, arrays or a data frame, and gives the path."""

    def writer(name, content, **options):
        path = tmp_path / name
        if isinstance(content, pandas.DataFrame):
            content.to_parquet(path)
        elif isinstance(content, np.ndarray) and path.suffix == ".npy":
            np.save(path, content)
        elif isinstance(content, dict):
            np.savez(path, **content)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return writer


# What is read from text.


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("header", ["", "height{0}weight\n", '"the height"{0}"the weight"\n'])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_text_with_any_delimiter_with_and_without_header(write, delimiter, header, mark):
    lines = "\n".join(delimiter.join(map(str, row)) for row in NUMBERS)
    table = read_table(write("data.csv", mark + header.format(delimiter) + lines))
    assert_array_equal(table.values, NUMBERS)
    assert table.columns[0].endswith("height" if header else "column 0")


@given(
    arrays(
        np.float64, st.tuples(st.integers(2, 5), st.integers(1, 4)), elements=st.floats(-1e9, 1e9)
    )
)
def test_text_round_trip_is_exact(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("round") / "a.csv"
    header = ",".join(f"name{index}" for index in range(values.shape[1]))
    np.savetxt(path, values, delimiter=",", fmt="%.17g", header=header, comments="")
    assert_array_equal(read_table(path).values, values)


# The text of a file, the names of its columns and the number of its rows.
LAYOUTS = {
    "years": ("country,2020,2021\nFrance,67.5,67.7\nPeru,32.9,33.3\n", ("2020", "2021"), 2),
    "years of integers": ("country,2020,2021\nFrance,67,68\nPeru,33,34\n", ("2020", "2021"), 2),
    "one year": ("city;2000\nParis;2125\nLima;7,5\n", ("2000",), 2),
    "numbered last": ("height,weight,1\n170,60,0\n165,55,1\n", ("height", "weight", "1"), 2),
    "pandas index": (",a,b\n0,1,2\n1,3,4\n", ("a", "b"), 2),
    "pandas index and numbers": (",0,1\n0,1,2\n1,3,4\n", ("0", "1"), 2),
    "filtered pandas index": (",a\n3,1\n17,3\n5,2\n", ("a",), 3),
    "index of R": ('"","a"\n"1",4\n"2",6\n', ("a",), 2),
    "reset index": ("index,a\n0,4\n1,6\n", ("a",), 2),
    "index alone": ("index\n0\n1\n", ("index",), 2),
    "dates": ("date,1,2\n2020-01-01,5,6\n2020-01-02,7,8\n", ("1", "2"), 2),
    "dates as names": ("id,2020-01,2020-02\nx,5,6\ny,7,8\n", ("2020-01", "2020-02"), 2),
    "dates without names": ("2020-01-01,5,6\n2020-01-02,7,8\n", ("column 1", "column 2"), 2),
    "truth values": ("flag,b,7\ntrue,1,1\nfalse,2,3\n", ("flag", "b", "7"), 2),
    "truth without header": ("true,1.5\nfalse,2.5\n", ("column 0", "column 1"), 2),
    "names without header": ("Ada,170,60\nEmmy,165,55\n", ("column 1", "column 2"), 2),
    "iris without header": ("5.1,3,setosa\n4.9,3,setosa\n", ("column 0", "column 1"), 2),
    "no header": ("1,2\n3,4\n5,6\n", ("column 0", "column 1"), 3),
    "rows of equal distance": (
        "0,10,20,30\n1,11,21,31\n",
        tuple(f"column {i}" for i in range(4)),
        2,
    ),
    "a count": ("0,1,2,3\n4,5,6,7\n", ("column 0", "column 1", "column 2", "column 3"), 2),
    "rows of years": ("1990,1991\n1995,1996\n", ("column 0", "column 1"), 2),
    "one column": ("kg\n60\n55\n", ("kg",), 2),
    "one column without header": ("60\n55\n", ("column 0",), 2),
    "quoted names": ('"a, b","c"\n1,2\n3,4\n', ("a, b", "c"), 2),
    "nameless column": ("a,,c\n1,2,3\n4,5,6\n", ("a", "column 1", "c"), 2),
    "equal names": ("a,a,b\n1,2,x\n3,4,y\n", ("a", "a.1"), 2),
    "empty first line": ("\n\na;b\n1;2\n3;4\n", ("a", "b"), 2),
    "semicolons in text": ('name,x\n"a;b",1\n"c;d",2\n', ("x",), 2),
    "name of two lines": ('"a\nb" , c\n1 , 2\n 3, 4 \n', ("a\nb", "c"), 2),
    "answers are text": ("a,b,c\nyes,1,1\nno,1,2\n", ("b", "c"), 2),
    "a scale": ("1,2,3\n3,1,1\n2,2,1\n3,3,1\n", ("column 0", "column 1", "column 2"), 4),
    "one number first": ("2000\n67\n33\n", ("column 0",), 3),
    "blanks": ("1.5 2\n 3  4\n5 -6\n", ("column 0", "column 1"), 3),
    "names of savetxt": ("# a b\n1.5 2\n3 4\n", ("a", "b"), 2),
    "powers": ("a,b,c\n1e3,x,1\n+.5,y,2\n", ("a", "c"), 2),
    "underscores": ("a,b\n1_000,1\n2_000,2\n", ("b",), 2),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_header_and_index_are_told_from_data(write, name):
    text, columns, rows = LAYOUTS[name]
    path = write("a.csv", text)
    table = read_table(path)
    assert (table.columns, len(table.values)) == (columns, rows)
    assert ("no header" in table.reading) == columns[-1].startswith("column")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frame = read_frame(path)
    assert (tuple(frame.columns), len(frame)) == (columns, rows)
    said = " ".join(str(warning.message) for warning in caught)
    assert [name for name in table.left_out if repr(name) not in said] == []
    assert bool(said) == bool(table.left_out)


UNCLEAR = {
    "years": "1990,1991,1992\n1.5,2,3\n4,5,6\n",
    "decades": "1990,2000,2010\n15,2,3\n4,5,6\n",
    "years backwards": "2021,2020\n15,2\n4,5\n",
    "pandas": "0,1\n0.5,1.5\n2.5,3.5\n",
    "counts": "0,1,2,3\n7,0,0,1\n5,0,2,9\n",
    "wavelengths": "400,410,420,430\n7.5,2,3,4\n4,5,6,7\n",
    "wavenumbers": "4000,3996,3992,3988\n15,2,3,4\n4,5,6,7\n",
    "from five": "5,6,7\n10,20,30\n20,10,3\n",
    "a bad cell": "12.5 k,3,4\n1,2,3\n4,9,6\n",
    "a name": "a,7\n1,2\n4,9\n",
    "a missing cell": "Ada,NA\nEmmy,165\nRosa,170\n",
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_a_first_line_that_may_be_both_is_asked_for(write, name):
    path = write("a.csv", UNCLEAR[name])
    assert "header=True) or header=False, or by --header" in error_of(path)
    n_lines = len(UNCLEAR[name].splitlines())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of text columns
        assert len(read_frame(path, header=True)) == n_lines - 1
        if name != "a bad cell" and name != "a name":
            assert len(read_frame(path, header=False)) == n_lines


@pytest.mark.parametrize("how", [{}, {"delimiter": ","}, {"delimiter": ";", "fmt": "%.3f"}])
def test_what_savetxt_wrote_is_data(tmp_path, how):
    rng = np.random.default_rng(0)
    for first in ([0, 1, 2], [1990, 1991, 1992], [0.5, 0, 3]):
        X = np.vstack([first, rng.standard_normal((9, 3)).round(3)])
        np.savetxt(tmp_path / "x.txt", X, **how)
        assert LinearAutoencoder(2).fit(tmp_path / "x.txt").n_samples_seen_ == 10
        assert_allclose(read_frame(tmp_path / "x.txt"), X)


def test_decimal_is_what_the_user_says(write):
    path = write("a.csv", "a;b\n1,5;2.5\n3,5;4.5\n")
    table = read_table(path)
    assert table.columns == ("b",)
    assert "if ',' is the decimal sign, give decimal=',' (--decimal ,)" in table.reading
    assert_array_equal(read_table(path, decimal=",").values, [[1.5], [3.5]])
    alone = read_table(write("kg.csv", "kg\n60,5\n55,5\n"), decimal=",")
    assert_array_equal(alone.values, [[60.5], [55.5]])
    quoted = write("q.csv", 'a,b\n"1,5","2"\n"3,5","4"\n')
    assert_array_equal(read_table(quoted, decimal=",").values, [[1.5, 2], [3.5, 4]])
    with pytest.raises(ValueError, match=r"decimal='x' was given, expected '\.' or ','"):
        ReadOptions(decimal="x")
    for content in ("a,b,c\n1.5,2,3\n2.5,3,4\n", "a,b,c\n1,2,3\n2,3,4\n"):
        path = write("a.csv", content)
        assert read_table(path).columns == ("a", "b", "c")
        with pytest.raises(ValueError, match=r"'a\.csv', and a comma cannot be both: leave out"):
            read_table(path, decimal=",")


def test_points_in_a_file_of_decimal_commas_are_said(write):
    path = write("a.csv", "a;b\n11,41;2\n7.641;3\n")
    with pytest.warns(UserWarning, match=r"so that '7\.641' is 7641; if it is 7\.641, write all"):
        assert_array_equal(read_frame(path).a, [11.41, 7641])
    clear = write("b.csv", "a;b\n11,41;2\n7.641;3\n1.234,5;4\n")
    assert_array_equal(read_frame(clear).a, [11.41, 7641, 1234.5])  # and no warning


@pytest.mark.parametrize("cell", ["true", "12.5 k", "(3)", '"1,234.5"', "#DIV/0!"])
def test_what_the_error_about_a_cell_advises_works(write, cell):
    lines = "".join(f"{number}.5,{number % 7}\n" for number in range(2000))
    path = write("a.csv", f"a,b\n{lines}{cell},1\n")
    message = error_of(path)
    advised = ast.literal_eval(message[message.index("=[") + 1 : message.index("])") + 1])
    assert np.isnan(read_frame(path, missing_values=advised).a).sum() == 1


def test_header_is_what_the_user_says(write):
    table = read_table(write("a.csv", "1,2\n3,4\n5,6\n"), header=True)
    assert (table.columns, len(table.values)) == (("1", "2"), 2)
    table = read_table(write("b.csv", "a,2020\nx,67.5\ny,3\n"), header=False)
    assert_array_equal(table.values, [[2020], [67.5], [3]])


@pytest.mark.parametrize("option", [{"header": False}, {"decimal": ","}])
def test_the_layout_of_a_text_is_refused_for_other_files(tmp_path, option):
    np.save(tmp_path / "a.npy", np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"'a\.npy' is not a text file.* leave out header"):
        read_frame(tmp_path / "a.npy", **option)


def test_many_equal_names_are_made_different_in_linear_time(write):
    path = write("a.csv", "a," * 19_999 + "a\n" + ("1," * 19_999 + "2\n") * 2)
    names = blocks_of_file(path).feature_names
    assert names[:2] + names[-1:] == ("a", "a.1", "a.19999")


# What is read from arrays and Parquet.


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "uint8", "bool"])
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_arrays_keep_floats_and_turn_the_rest_into_doubles(write, dtype, suffix):
    array = np.ones((3, 2), dtype)
    path = write(f"a.{suffix}", {"X": array} if suffix == "npz" else array)
    assert read_table(path).values.dtype == (dtype if dtype.startswith("float") else "float64")
    assert not hasattr(LinearAutoencoder(1).fit(path), "feature_names_in_")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_stack_of_images_becomes_rows_with_a_shape(write, order, suffix):
    array = np.asarray(np.arange(24.0).reshape(2, 3, 4), order=order)
    path = write(f"a.{suffix}", {"X": array} if suffix == "npz" else array)
    table = read_table(path)
    assert table.image_shape == (3, 4)
    assert_array_equal(table.values, np.arange(24.0).reshape(2, 12))
    assert LinearAutoencoder(1).fit(path).n_features_in_ == 12


def test_digits_are_known_for_pictures_by_their_column_names(write):
    digits = load_digits()
    names = digits.feature_names
    frame = pandas.DataFrame(digits.data[:9], columns=names)
    assert read_table(write("a.parquet", frame)).image_shape == (8, 8)
    assert read_table(write("b.parquet", frame[names[:63]])).image_shape is None
    assert (
        read_table(write("c.parquet", frame[names[:4]].set_axis([*"abcd"], axis=1))).image_shape
        is None
    )


def test_array_of_an_archive_is_found_by_its_name(write):
    path = write("a.npz", {"X": NUMBERS, "other": np.eye(4), "y": np.arange(3)})
    assert_array_equal(read_table(path).values, NUMBERS)
    assert_array_equal(files.read_table(path, target=True).values, np.arange(3.0)[:, None])
    path = write("b.npz", {"only": NUMBERS, "label": np.arange(3)})
    assert_array_equal(read_table(path).values, NUMBERS)


def test_columns_of_parquet_are_those_of_numbers(write):
    days = pandas.to_datetime(["2020-01-01", "2020-01-02"])
    frame = pandas.DataFrame(
        {"a": [1, 2], "day": days, "digits": ["1", "2"], "b.c": [0.5, 1], "hole": [np.nan] * 2}
    )
    path = write("a.parquet", frame.astype({"b.c": "float32"}))
    table = read_table(path)
    assert_array_equal(table.values, [[1, 1, 0.5], [2, 2, 1]])
    assert table.columns == ("a", "digits", "b.c")
    assert table.left_out["day"].startswith("its entries are of type timestamp")
    assert table.left_out["hole"] == "it has no entries"
    with pytest.raises(ValueError, match=r"no numeric column 'day': its entries are of type"):
        read_table(path, targets=("day",))
    assert "contains no rows" in error_of(write("empty.parquet", frame.iloc[:0]))


@pytest.mark.parametrize("name", [None, "time"])
def test_the_index_of_a_parquet_file_is_left_out_unless_it_is_asked_for(write, name):
    frame = pandas.DataFrame(NUMBERS, columns=list("ab"), index=[7, 8, 5]).rename_axis(name)
    table = read_table(write("a.parquet", frame))
    expected = {} if name is None else {"time": "it is the index of the rows"}
    assert (table.columns, table.left_out) == (("a", "b"), expected)
    if name is not None:
        chosen = read_table(write("a.parquet", frame), columns=("b", "time"))
        assert_array_equal(chosen.values, np.column_stack([NUMBERS[:, 1], [7, 8, 5]]))


def test_no_level_of_an_index_is_a_feature(write):
    levels = pandas.MultiIndex.from_tuples([(0, 1), (0, 2), (1, 1)], names=["site", "visit"])
    path = write("a.parquet", pandas.DataFrame(NUMBERS, columns=list("ab"), index=levels))
    table = read_table(path)
    assert table.columns == ("a", "b")
    assert [*table.left_out] == ["site", "visit"]
    assert read_table(path, columns=("visit", "a")).columns == ("visit", "a")


# Columns and targets that the user chooses.


@pytest.mark.parametrize("suffix", ["csv", "npy", "npz", "parquet"])
def test_columns_are_chosen_by_name_or_index(write, suffix):
    values = np.arange(12.0).reshape(3, 4) ** 2
    is_named = suffix in ("csv", "parquet")
    names = ["a", "b", "2020", "c"] if is_named else [f"column {i}" for i in range(4)]
    frame = pandas.DataFrame(values, columns=names)
    contents = {"csv": frame.to_csv(index=False), "npy": values, "npz": {"X": values}}
    path = write(f"t.{suffix}", contents.get(suffix, frame))
    chosen = ("2020", "0") if is_named else ("2", "column 0")
    table = read_table(path, columns=chosen, targets=("3",))
    assert_array_equal(table.values, values[:, [2, 0]])
    assert_array_equal(table.target, values[:, [3]])
    same = read_table(path, columns=(*chosen, "3"), targets=(names[3],))
    assert_array_equal(same.values, table.values)
    for wrong in ("d", "4", "-1", "99999999999"):
        with pytest.raises(ValueError, match=f"no numeric column '{wrong}'.*indices 0 to 3"):
            read_table(path, columns=(wrong,))


def test_a_wrong_name_is_answered_with_the_nearest_and_with_numeric_columns_only(write):
    path = write("a.csv", ",city,weight,Price,risk\n0,Rome,1,2,4\n1,Bonn,2,3,5\n")
    expected = (
        r"'wieght' \(did you mean 'weight'\?\); its numeric columns are: weight, Price, risk \("
    )
    for options, words in [
        ({"columns": ("wieght",)}, expected),
        ({"targets": ("wieght",)}, expected),
        ({"targets": ("price",)}, "did you mean 'Price'"),
        ({"targets": ("Price,risk",)}, "give several as --target Price --target risk"),
        ({"targets": ("zzz",)}, "no numeric column 'zzz';"),
        ({"columns": ("city",)}, "no numeric column 'city': 'Rome' in row 0 is not a number"),
        ({"columns": ("2", "3"), "targets": ("2", "3")}, "no feature is left"),
    ]:
        with pytest.raises(ValueError, match=words):
            read_table(path, **options)


def test_an_index_that_was_chosen_is_a_column(write):
    path = write("a.csv", ",a\n3,1\n17,3\n5,2\n")
    assert_array_equal(read_table(path, columns=("0",)).values, [[3], [17], [5]])
    assert_array_equal(read_table(path, targets=("0",)).target, [[3], [17], [5]])


def test_targets_of_a_table_are_split_off():
    table = Table("a.csv", np.arange(6.0).reshape(2, 3), ("a", "b", "c")).with_target(["b"])
    assert_array_equal(table.values, [[0, 2], [3, 5]])
    assert_array_equal(table.target, [[1], [4]])
    assert (table.columns, table.target_names) == (("a", "c"), ("b",))
    with pytest.raises(ValueError, match="no numeric column 'd'; its numeric columns are: a, c"):
        table.with_target(["d"])
    with pytest.raises(ValueError, match="no feature is left"):
        table.with_target(["a", "c"])


# Bad files.

BAD = {
    "empty.csv": ("", "is empty"),
    "blank.csv": ("\n\n", "is empty"),
    "header.csv": ("a,b\n", "header but no rows"),
    "words.csv": ("a,b\nx,y\nz,w\n", "no numeric column"),
    "ragged.csv": ("a,b\n1,2\n3\n", "line 3 has 1 cell,"),
    "ragged-words.csv": ("a,b\nx,2\n3\n", "line 3 has 1 cell,"),
    "ragged-end.csv": ("a,b\n1,x\n3\n", "line 3 has 1 cell,"),
    "ragged-first.csv": ("1,2\n3,4,5\n6,7,8\n", "line 2 has 3 cells, but the first line has 2"),
    "short-header.csv": ("a,b\n1,2,3\n4,5,6\n", "2 names in its header but 3 columns"),
    "short-header-words.csv": ("a,b\n1,2,x\n3,4,\n", "2 names in its header but 3 columns"),
    "long-header.csv": ("a,b,c\n1,2\n3,4\n", "3 names in its header but 2 columns"),
    "commas.csv": ("kg\n60,5\n55,5\n", "2 columns: .*; if the comma.*--decimal ,"),
    "comment.csv": ("# numbers\n60,5\n55,5\n", "1 names in its header but 2 columns"),
    "long.csv": ("a,b\n1,2\n3,4,5\n", "line 3 has 3 cells"),
    "quote.csv": ('a,b\n1,2\n"3,4\n', "line 3 has 1 cell,|cannot be read as CSV"),
    "open-quote.csv": ('a,b\n1,2\n3,"4\n5,6\n', "CSV|cell"),
    "late-latin.csv": (("a,b\n" + "1,2\n" * 9 + "ö,2\n").encode("latin-1"), "UTF-8"),
    "latin.csv": ("größe,b\n1,2\n".encode("latin-1"), "UTF-8"),
    "utf-16.csv": ("a,b\n1,2\n3,4\n".encode("utf-16"), "NUL byte|UTF-8"),
    "nul.csv": (b"a,b\n1,2\n3\x004,5\n", "NUL byte"),
    "late-nul.csv": (b"a,b\n" + b"1,2\n" * 9999 + b"3\x004,5\n", "NUL byte"),
    "sheet.csv": (b"PK\x03\x04\x14\x00\x06\x00", "NUL byte"),
    "short-blank-row.csv": ("a,b,c\n1,2,3\n\n,\n3,4,5\n", "line 4 has 2 cells"),
    "late-word.csv": ("a,b\n" + "1,2\n" * 39_999 + "3,NAN?\n", r"'NAN\?' in row 39999 "),
    "infinite.csv": ("a,b\n1,2\n3,inf\n", "contains infinity in block 0, row 1, column 1, 'b'"),
    "first.csv": ("NA,NA\n1,2\n", "contains NaN in block 0, row 0"),
    "row.csv": ("a,b\n1,2\nNA,NA\n3,4\n", "contains NaN in block 0, row 1"),
    **{
        f"hole{at}.csv": (
            f"a,b,c\n1,2,3\n4,{hole},6\n",
            "contains NaN in block 0, row 1, column 1, 'b'",
        )
        for at, hole in enumerate(["", " ", "NA", "n/a", "NaN", "Null", "none", "?", "nA"])
    },
    "fake.npy": ("hello", "is not a complete NPY file"),
    "fake.npz": ("hello", "is not an NPZ file"),
    "fake.parquet": ("hello", "cannot be read as Parquet"),
    "fake.h5": ("hello", "is not an HDF5 file"),
    "fake.zarr": ("hello", "is not a Zarr array"),
    "table.xlsx": ("hello", r"the suffix '\.xlsx', expected one of \.csv.*Save the sheet as"),
    "several.npz": ({"left": NUMBERS, "right": NUMBERS}, "the arrays left, right, of which 2 can"),
}
BAD_ARRAYS = {
    "vector": (np.arange(3.0), r"has shape \(3,\), expected rows and columns"),
    "objects": (np.array([["a", 1], ["b", 2]], dtype=object), "Python objects|of type object"),
    "complex": (np.ones((2, 2)) * 1j, "complex128, expected real numbers"),
    "words": (np.array([["a"], ["b"]]), "expected real numbers"),
    "no rows": (np.empty((0, 3)), "contains no rows"),
    "no columns": (np.empty((3, 0)), "contains no columns"),
    "nan": (np.array([[1.0, np.nan], [1.0, 2.0]]), "contains NaN in block 0, row 0, column 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_file_gets_one_sentence(write, name):
    for package in ("h5py", "zarr"):
        require(package)
    content, words = BAD[name]
    assert_matches(words, error_of(write(name, content)))


@pytest.mark.parametrize("name", BAD_ARRAYS)
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_bad_array_gets_one_sentence(write, name, suffix):
    array, words = BAD_ARRAYS[name]
    if (name, suffix) == ("vector", "npz"):
        words = "can be read as a table"
    path = write(f"bad.{suffix}", {"X": array} if suffix == "npz" else array)
    assert_matches(words, error_of(path))


def assert_matches(words, text):
    with pytest.raises(ValueError, match=words):
        raise ValueError(text)


def test_other_bad_files_get_one_sentence(write, tmp_path, monkeypatch):
    whole = write("whole.npz", {"X": NUMBERS}).read_bytes()
    assert "is not an NPZ file" in error_of(write("half.npz", whole[:150]))
    assert "is an NPZ archive" in error_of(write("a.npy", whole))
    assert "There is no file" in error_of(tmp_path / "none.csv")
    assert "is a folder: give the path of a file in it" in error_of(tmp_path)
    assert "contains no columns" in error_of(write("a.parquet", pandas.DataFrame(index=range(3))))
    scipy.sparse.save_npz(tmp_path / "s.npz", scipy.sparse.csr_array(NUMBERS))
    assert "give scipy.sparse.load_npz(path)" in error_of(tmp_path / "s.npz")
    os.mkfifo(tmp_path / "pipe.csv")
    assert "is a pipe or a device, which cannot be read twice" in error_of(tmp_path / "pipe.csv")
    with pytest.raises(ValueError, match=r"'one\.csv' contains 1 row; at least two rows"):
        files.read_table(write("one.csv", "a,b\n1,2\n"))

    def exhausted(file, **how):
        raise MemoryError

    path = write("a.csv", "1,2\n3,4\n")
    monkeypatch.setattr(pandas, "read_csv", exhausted)
    with pytest.raises(ValueError, match=r"'a\.csv' is too large for the memory of this computer"):
        files.read_table(path)


def header_of(shape):
    stream = io.BytesIO()
    claim = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, claim)
    return stream.getvalue()


def bombs(folder):
    """Yield small files that claim to contain much more than they may."""
    (folder / "lie.npy").write_bytes(header_of((10**7, 100)) + bytes(800))
    yield folder / "lie.npy", "states that it contains 8 GB"
    with zipfile.ZipFile(folder / "lie.npz", "w") as archive:
        archive.writestr("X.npy", header_of((10**7, 100)) + bytes(800))
    yield folder / "lie.npz", "states that it contains 8 GB"
    with zipfile.ZipFile(folder / "big.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", header_of((10**5, 10)) + bytes(8 * 10**6))
    yield folder / "big.npz", "states that it contains 8 MB"
    with zipfile.ZipFile(folder / "lzma.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("X.npy", header_of((10, 10)) + bytes(800))
    yield folder / "lzma.npz", "a method other than deflate"
    (folder / "wide.csv").write_text(("1," * 300_000 + "2\n") * 2)
    yield folder / "wide.csv", "300001 columns, expected at most 100000"
    frame = pandas.DataFrame({"a": np.zeros(10**5), "b": np.zeros(10**5)})
    frame.to_parquet(folder / "runs.parquet")
    yield folder / "runs.parquet", "states that it contains 1.6 MB"


def test_files_that_claim_too_much_are_refused_before_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SMALL", 1 << 20)
    for path, words in bombs(tmp_path):
        tracemalloc.start()
        with pytest.raises(ValueError, match=words):
            files.read_table(path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < (60e6 if path.suffix == ".csv" else 1e6), path
    np.savez_compressed(tmp_path / "a.npz", X=NUMBERS, other=np.zeros(10**6))
    assert_array_equal(files.read_table(tmp_path / "a.npz").values, NUMBERS)


# Text files of several blocks.

ROWS = 3000
MANY = (1000 * np.random.default_rng(0).standard_normal((ROWS, 3))).round(2)


def comma(number):
    """Return a number in the German way, such as 1.234,5."""
    return f"{number:,.2f}".translate(str.maketrans(",.", ".,"))


LINES = {
    "names": (["a,b,c", *(f"{x},{y},{z}" for x, y, z in MANY)], MANY),
    "blank lines": (["", "", "a,b,c", "", *(f"{x}, {y} ,{z}" for x, y, z in MANY)], MANY),
    "no names": ([f"{x},{y},{z}" for x, y, z in MANY], MANY),
    "decimal comma": (["a;b;c", *(";".join(map(comma, row)) for row in MANY)], MANY),
    "text and truth": (
        ["a,b,c,d", *(f"{x},word {x},{z > 0},{y}" for x, y, z in MANY)],
        np.column_stack([MANY[:, 0], MANY[:, 2] > 0, MANY[:, 1]]),
    ),
    "late entries": (
        ["a,b", *(f"{x},{y if i >= 2000 else ''}" for i, (x, y, _) in enumerate(MANY))],
        np.where((np.arange(ROWS) >= 2000)[:, None] | [True, False], MANY[:, :2], np.nan),
    ),
    "index": ([",a,b", *(f"{i},{y},{z}" for i, (_, y, z) in enumerate(MANY))], MANY[:, 1:]),
    "whole numbers first": (
        ["a", *(f"{i if i < 2000 else i + 0.5}" for i in range(ROWS))],
        np.array([[i if i < 2000 else i + 0.5] for i in range(ROWS)]),
    ),
    "rows without entries": (
        ["a,b", *("," if i == 2500 else f"{i},{i % 7}" for i in range(ROWS))],
        np.array([[np.nan] * 2 if i == 2500 else [i, i % 7] for i in range(ROWS)]),
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_text_files_in_blocks(write, monkeypatch, name):
    monkeypatch.setattr("lucidae.rows.blocks.BLOCK_BYTES", 2**13)
    lines, expected = LINES[name]
    path = write("rows.csv", "\n".join(lines) + "\n")
    assert len(list(blocks_of_file(path))) > 1
    assert_array_equal(np.concatenate(list(blocks_of_file(path))), expected)
    later = list(blocks_of_file(path, first_row=2600))
    assert_array_equal(np.concatenate(later), expected[2600:])


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("1,2,3", "line 3002 has 3 cells, but the first line has 2"),
        ("1", "line 3002 has 1 cell, but the first line has 2"),
        ("true,1", "column 'a' of 'rows.csv' contains numbers, but 'true' in row 3000 "),
        ("1 kg,1", "column 'a' of 'rows.csv' contains numbers, but '1 kg' in row 3000 "),
    ],
)
def test_a_bad_line_far_behind_the_first_is_named(write, small_blocks, line, sentence):
    lines = ["a,b", *(f"{x},{y}" for x, y, _ in MANY), line, *["1,2"] * 2000]
    assert sentence in error_of(write("rows.csv", "\n".join(lines)))


class InterruptedFile(io.BytesIO):
    """A file during whose reading Ctrl-C is pressed, after `size` bytes."""

    size = 0

    def read1(self, count=-1):
        if self.tell() > self.size:
            signal.raise_signal(signal.SIGINT)
        return super().read1(count)


@pytest.fixture
def press_ctrl_c(monkeypatch, ctrl_c):
    """Return a function that sets after how many bytes of a text file Ctrl-C is pressed."""
    read = pandas.read_csv

    def press(size):
        def interrupted(file, **how):
            stream = InterruptedFile(file.read_bytes())
            stream.size = size
            return read(stream, **how)

        monkeypatch.setattr(pandas, "read_csv", interrupted)

    return press


@pytest.mark.parametrize("share", [0.3, 0.8])  # while the size is found out, and afterwards
def test_ctrl_c_while_a_text_file_is_read_gives_the_moment(
    tmp_path, press_ctrl_c, monkeypatch, share
):
    monkeypatch.setattr("lucidae.rows.blocks.BLOCK_BYTES", 2**18)
    X = np.random.default_rng(0).standard_normal((60_000, 3)).round(6)
    file = tmp_path / "rows.csv"
    pandas.DataFrame(X, columns=list("abc")).to_csv(file, index=False)
    model, whole = LinearAutoencoder(2), LinearAutoencoder(2).fit(X)
    press_ctrl_c(share * file.stat().st_size)
    with pytest.raises(ReadInterrupted) as caught:
        model.fit(file)
    with pytest.raises(ReadInterrupted) as regression:
        DropoutRegressor(dropout=0.1).fit(file, X[:, 0])
    stop = caught.value
    assert 0 < stop.n_rows < len(X)
    assert_allclose(stop.moment.mean, X[: stop.n_rows].mean(axis=0))
    assert regression.value.moment.n_features == 4
    monkeypatch.undo()
    model.fit_batches(row_blocks(file, first_row=stop.n_rows), start=stop.moment)
    assert_allclose(abs(model.components_), abs(whole.components_), atol=1e-8)
