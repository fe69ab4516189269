"""Files of numbers: what is read, and the error for a file that cannot be read."""

import io
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_array_equal

from extras import require
from lucidae.datasets import load_digits

require("pandas")
from lucidae.io import tables
from lucidae.io.tables import ReadOptions, image_shape_from_names, read_table

NUMBERS = np.array([[1.0, 2.5], [3.0, -4.0], [5.0, 1e-3]])


@pytest.fixture
def write(tmp_path):
    """Return a function that writes text or bytes under a name and gives the path."""

    def writer(name, content):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return writer


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("header", ["", "height{0}weight\n", '"the height"{0}"the weight"\n'])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_text_with_any_delimiter_with_and_without_header(write, delimiter, header, mark):
    lines = "\n".join(delimiter.join(map(str, row)) for row in NUMBERS)
    table = read_table(write("data.csv", mark + header.format(delimiter) + lines))
    assert_array_equal(table.values, NUMBERS)
    assert len(table.columns) == 2
    assert table.columns[0].endswith("height" if header else "column 0")


def test_columns_of_words_are_left_out_and_named(write):
    table = read_table(write("people.csv", "name,cm,town\nAda,170,x\nEmmy,165,y\n"))
    assert_array_equal(table.values, [[170.0], [165.0]])
    assert [*table.left_out] == ["name", "town"]
    assert table.reading == (
        "people.csv: the first line is the header (name, cm, town); columns left out: "
        "name ('Ada' in row 0 is not a number), town ('x' in row 0 is not a number)."
    )


def test_columns_of_the_same_name_are_told_apart(write):
    table = read_table(write("twins.csv", "a,a,b\n1,2,x\n3,4,y\n"))
    assert table.columns == ("a", "a.1")


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "uint8", "bool"])
def test_npy_keeps_floats_and_turns_the_rest_into_doubles(tmp_path, dtype):
    np.save(tmp_path / "a.npy", np.ones((3, 2), dtype))
    values = read_table(tmp_path / "a.npy").values
    assert values.dtype == (dtype if dtype.startswith("float") else "float64")


def test_stack_of_images_becomes_rows_with_a_shape(tmp_path):
    np.save(tmp_path / "faces.npy", np.arange(24.0).reshape(2, 3, 4))
    table = read_table(tmp_path / "faces.npy")
    assert table.values.shape == (2, 12)
    assert table.image_shape == (3, 4)


def test_npz_prefers_the_array_named_x(tmp_path):
    np.savez(tmp_path / "a.npz", X=NUMBERS, other=np.eye(4), label=np.arange(3))
    assert_array_equal(read_table(tmp_path / "a.npz").values, NUMBERS)
    np.savez(tmp_path / "b.npz", only=NUMBERS, label=np.arange(3))
    assert_array_equal(read_table(tmp_path / "b.npz").values, NUMBERS)


def test_parquet_round_trip_with_words_left_out(tmp_path):
    require("pyarrow")
    frame = require("pandas").DataFrame({"a": [1, 2, 3], "word": list("xyz"), "b": NUMBERS[:, 1]})
    frame.to_parquet(tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet")
    assert_array_equal(table.values, np.column_stack([[1, 2, 3], NUMBERS[:, 1]]))
    assert (table.columns, [*table.left_out]) == (("a", "b"), ["word"])


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


def test_digits_are_known_for_pictures_by_their_column_names():
    names = tuple(load_digits().feature_names)
    assert image_shape_from_names(names) == (8, 8)
    assert image_shape_from_names(names[:63]) is None
    assert image_shape_from_names(("a", "b", "c", "d")) is None


BAD_TEXT = {
    "empty.csv": ("", "is empty"),
    "blank.csv": ("\n\n", "is empty"),
    "header.csv": ("a,b\n", "header but no rows"),
    "one.csv": ("a,b\n1,2\n", "at least two rows"),
    "words.csv": ("a,b\nx,y\nz,w\n", "no numeric column"),
    "ragged.csv": ("a,b\n1,2\n3\n", "line 3 has 1 cell,"),
    "ragged-words.csv": ("a,b\nx,2\n3\n", "line 3 has 1 cell,"),
    "ragged-end.csv": ("a,b\n1,x\n3\n", "line 3 has 1 cell,"),
    "ragged-first.csv": ("1,2\n3,4,5\n6,7,8\n", "line 2 has 3 cells, but the first line has 2"),
    "short-header-words.csv": ("a,b\n1,2,x\n3,4,\n", "2 names in its header but 3 columns"),
    "long.csv": ("a,b\n1,2\n3,4,5\n", "line 3 has 3 cells"),
    "quote.csv": ('a,b\n1,2\n"3,4\n', "line 3 has 1 cell,|cannot be read as CSV"),
    "late-latin.csv": (("a,b\n" + "1,2\n" * 9 + "ö,2\n").encode("latin-1"), "UTF-8"),
    "hole.csv": ("a,b\n1,2\n,4\n3,5\n", "1 missing.*row 1 .*column 'a'"),
    "infinite.csv": ("a,b\n1,2\n3,inf\n", "missing or infinite.*column 'b'"),
    "short-header.csv": ("a,b\n1,2,3\n4,5,6\n", "2 names in its header but 3 columns"),
    "latin.csv": ("größe,b\n1,2\n".encode("latin-1"), "UTF-8"),
    "fake.npy": ("hello", "not an NPY file"),
    "fake.npz": ("hello", "not an NPZ file"),
    "fake.parquet": ("hello", "not a Parquet file"),
    "table.xlsx": ("hello", r"the suffix '\.xlsx', expected one of \.csv"),
}


@pytest.mark.parametrize("name", BAD_TEXT)
def test_bad_file_gets_one_sentence(write, name):
    content, message = BAD_TEXT[name]
    if name.endswith("parquet"):
        require("pyarrow")
    with pytest.raises(ValueError, match=message) as caught:
        read_table(write(name, content))
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


BAD_ARRAYS = {
    "vector": (np.arange(3.0), "shape"),
    "objects": (np.array([["a", 1], ["b", 2]], dtype=object), "Python objects"),
    "complex": (np.ones((2, 2)) * 1j, "complex128"),
    "words": (np.array([["a"], ["b"]]), "expected real numbers"),
    "no rows": (np.empty((0, 3)), "0 rows"),
    "no columns": (np.empty((3, 0)), "0 numbers"),
    "nan": (np.array([[1.0, np.nan], [1.0, 2.0]]), "1 missing"),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_bad_array_gets_one_sentence(tmp_path, name, suffix):
    array, message = BAD_ARRAYS[name]
    path = tmp_path / f"bad.{suffix}"
    np.save(path, array) if suffix == "npy" else np.savez(path, X=array)
    expected = "can be read as a table" if (name, suffix) == ("vector", "npz") else message
    with pytest.raises(ValueError, match=expected):
        read_table(path)


def test_truncated_archive_gets_one_sentence(tmp_path):
    np.savez(tmp_path / "whole.npz", X=NUMBERS)
    (tmp_path / "half.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:150])
    with pytest.raises(ValueError, match="not an NPZ file"):
        read_table(tmp_path / "half.npz")


def test_archive_with_several_tables_says_which_there_are(tmp_path):
    np.savez(tmp_path / "many.npz", left=NUMBERS, right=NUMBERS)
    with pytest.raises(ValueError, match=r"the arrays left, right, of which 2 can"):
        read_table(tmp_path / "many.npz")


def test_parquet_without_its_reader_says_what_to_install(write, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ValueError, match="pip install pyarrow"):
        read_table(write("a.parquet", "x"))


@pytest.mark.parametrize("hole", ["", " ", "NA", "n/a", "NaN", "Null", "none", "?", "nA"])
def test_missing_value_is_named_however_it_is_spelled(write, hole):
    with pytest.raises(ValueError, match=r"1 missing.*row 1 .*column 'b'"):
        read_table(write("a.csv", f"a,b,c\n1,2,3\n4,{hole},6\n"))


def test_rows_and_columns_without_any_value_are_left_out(write):
    table = read_table(write("a.csv", "\n\na;b;\n1;2;\n;;\n3;4;\n\n"))
    assert_array_equal(table.values, [[1.0, 2.0], [3.0, 4.0]])
    assert (table.columns, table.left_out) == (("a", "b"), {"column 2": "it has no entries"})


def test_row_of_missing_values_is_refused(write):
    with pytest.raises(ValueError, match=r"2 missing.*row 1 .*column 'a'"):
        read_table(write("a.csv", "a,b\n1,2\nNA,NA\n3,4\n"))


@pytest.mark.parametrize("cells", ["true,1", "1e3,x", "+.5,y"])
def test_only_what_python_reads_as_a_number_is_one(write, cells):
    table = read_table(write("a.csv", f"a,b,c\n{cells},1\n{cells},2\n"))
    assert table.columns == (("b", "c") if cells == "true,1" else ("a", "c"))


def test_header_may_span_lines_and_cells_may_have_spaces(write):
    table = read_table(write("a.csv", '"a\nb" , c\n1 , 2\n 3, 4 \n'))
    assert table.columns == ("a\nb", "c")
    assert_array_equal(table.values, [[1.0, 2.0], [3.0, 4.0]])


def test_named_index_of_a_parquet_file_is_left_out_unless_it_is_asked_for(tmp_path):
    require("pyarrow")
    frame = require("pandas").DataFrame({"id": [7, 8], "a": [1.0, 2.0]}).set_index("id")
    frame.to_parquet(tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet")
    assert (table.columns, table.left_out) == (("a",), {"id": "it is the index of the rows"})
    chosen = read_table(tmp_path / "a.parquet", ReadOptions(columns=("a", "id")))
    assert_array_equal(chosen.values, [[1.0, 7.0], [2.0, 8.0]])


def test_missing_file_and_folder_are_refused(tmp_path):
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(ValueError, match="There is no file"):
            read_table(path)


def test_target_is_split_off_by_name(write):
    table = read_table(write("a.csv", "a,b,c\n1,2,3\n4,5,6\n")).with_target(["b"])
    assert_array_equal(table.values, [[1.0, 3.0], [4.0, 6.0]])
    assert_array_equal(table.target, [[2.0], [5.0]])
    assert (table.columns, table.target_names) == (("a", "c"), ("b",))
    with pytest.raises(ValueError, match="no numeric column 'd'; its numeric columns are: a, c"):
        table.with_target(["d"])
    with pytest.raises(ValueError, match="no feature is left"):
        table.with_target(["a", "c"])


def test_archive_under_the_name_of_an_array_is_told_apart(tmp_path):
    np.savez(tmp_path / "a.npz", X=NUMBERS)
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with pytest.raises(ValueError, match="is an NPZ archive"):
        read_table(tmp_path / "a.npy")


LAYOUTS = {
    "years": ("country,2020,2021\nFrance,67.5,67.7\nPeru,32.9,33.3\n", ("2020", "2021"), 2),
    "years of integers": ("country,2020,2021\nFrance,67,68\nPeru,33,34\n", ("2020", "2021"), 2),
    "one year": ("city;2000\nParis;2125\nLima;7,5\n", ("2000",), 2),
    "years alone": ("1990,1991,1992\n1.5,2,3\n4,5,6\n", ("1990", "1991", "1992"), 2),
    "numbered last": ("height,weight,1\n170,60,0\n165,55,1\n", ("height", "weight", "1"), 2),
    "pandas numbers": ("0,1\n0.5,1.5\n2.5,3.5\n", ("0", "1"), 2),
    "many pandas numbers": ("0,1,2,3\n7,0,0,1\n5,0,2,9\n", ("0", "1", "2", "3"), 2),
    "pandas index": (",a,b\n0,1,2\n1,3,4\n", ("a", "b"), 2),
    "pandas index and numbers": (",0,1\n0,1,2\n1,3,4\n", ("0", "1"), 2),
    "filtered pandas index": (",a\n3,1\n17,3\n5,2\n", ("a",), 3),
    "index of R": ('"","a"\n"1",4\n"2",6\n', ("a",), 2),
    "reset index": ("index,a\n0,4\n1,6\n", ("a",), 2),
    "dates": ("date,1,2\n2020-01-01,5,6\n2020-01-02,7,8\n", ("1", "2"), 2),
    "dates as names": ("id,2020-01,2020-02\nx,5,6\ny,7,8\n", ("2020-01", "2020-02"), 2),
    "dates without names": ("2020-01-01,5,6\n2020-01-02,7,8\n", ("column 1", "column 2"), 2),
    "truth values": ("flag,7\ntrue,1\nfalse,2\n", ("7",), 2),
    "names without header": ("Ada,170,60\nEmmy,165,55\n", ("column 1", "column 2"), 2),
    "iris without header": ("5.1,3,setosa\n4.9,3,setosa\n", ("column 0", "column 1"), 2),
    "no header": ("1,2\n3,4\n5,6\n", ("column 0", "column 1"), 3),
    "a count": ("0,1,2,3\n4,5,6,7\n", ("column 0", "column 1", "column 2", "column 3"), 2),
    "rows of years": ("1990,1991\n1995,1996\n", ("column 0", "column 1"), 2),
    "first row with a hole": ("NA,NA\n1,2\n", None, "missing"),
    "one column": ("kg\n60\n55\n", ("kg",), 2),
    "one column without header": ("60\n55\n", ("column 0",), 2),
    "one column with decimal commas": (
        "kg\n60,5\n55,5\n",
        None,
        "1 names.*2 columns: .*; if the comma.*--decimal ,",
    ),
    "comment": ("# numbers\n60,5\n55,5\n", None, "1 names in its header but 2 columns"),
    "quoted names": ('"a, b","2"\n1,2\n3,4\n', ("a, b", "2"), 2),
    "nameless column": ("a,,c\n1,2,3\n4,5,6\n", ("a", "column 1", "c"), 2),
    "empty first line": ("\n\na;b\n1;2\n3;4\n", ("a", "b"), 2),
    "semicolons in text": ('name,x\n"a;b",1\n"c;d",2\n', ("x",), 2),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_header_and_index_are_told_from_data(write, name):
    text, columns, rows = LAYOUTS[name]
    if columns is None:
        with pytest.raises(ValueError, match=rows):
            read_table(write("a.csv", text))
        return
    table = read_table(write("a.csv", text))
    assert (table.columns, len(table.values)) == (columns, rows)
    assert ("no header" in table.reading) == columns[-1].startswith("column")


EUROPEAN = {
    "semicolons": ("a;b\n1,5;2\n-3,25;1e3\n", [[1.5, 2], [-3.25, 1000]]),
    "no header": ("1,5;2,5;3,5\n4,5;5,5;6,5\n", [[1.5, 2.5, 3.5], [4.5, 5.5, 6.5]]),
    "tabs": ("a\tb\n1,5\t2\n3,5\t4\n", [[1.5, 2], [3.5, 4]]),
    "thousands": ("a;b\n1.234,5;1.000\n2,5;12.345.678\n", [[1234.5, 1000], [2.5, 12345678]]),
    "points": ("a;b\n1.5;2\n3.5;4\n", [[1.5, 2], [3.5, 4]]),
    "missing cells": ("a;b;c\n1,5;2;x\n3,5;4;NA\n", [[1.5, 2], [3.5, 4]]),
}


@pytest.mark.parametrize("name", EUROPEAN)
def test_decimal_commas_are_found(write, name):
    text, expected = EUROPEAN[name]
    assert_array_equal(read_table(write("a.csv", text)).values, expected)


def test_decimal_is_what_the_user_says(write):
    path = write("a.csv", "a;b\n1,5;2.5\n3,5;4.5\n")
    table = read_table(path)
    assert table.columns == ("b",)
    assert "--decimal , reads it" in table.reading
    assert_array_equal(read_table(path, ReadOptions(decimal=",")).values, [[1.5], [3.5]])
    alone = read_table(write("kg.csv", "kg\n60,5\n55,5\n"), ReadOptions(decimal=","))
    assert_array_equal(alone.values, [[60.5], [55.5]])
    quoted = write("q.csv", 'a,b\n"1,5","2"\n"3,5","4"\n')
    assert_array_equal(read_table(quoted, ReadOptions(decimal=",")).values, [[1.5, 2], [3.5, 4]])
    with pytest.raises(ValueError, match=r"decimal='x' was given, expected '\.' or ','"):
        ReadOptions(decimal="x")


@pytest.mark.parametrize("content", ["a,b,c\n1.5,2,3\n2.5,3,4\n", "a,b,c\n1,2,3\n2,3,4\n"])
def test_a_comma_cannot_separate_columns_and_decimals(write, content):
    path = write("a.csv", content)
    assert read_table(path).columns == ("a", "b", "c")
    with pytest.raises(ValueError, match=r"'a\.csv', and a comma cannot be both: leave out"):
        read_table(path, ReadOptions(decimal=","))


def test_a_wrong_name_is_answered_with_the_nearest_and_with_numeric_columns_only(write):
    path = write("a.csv", ",city,weight,Price,risk\n0,Rome,1,2,4\n1,Bonn,2,3,5\n")
    expected = (
        r"'wieght' \(did you mean 'weight'\?\); its numeric columns are: weight, Price, risk \("
    )
    for options in (ReadOptions(columns=("wieght",)), ReadOptions(targets=("wieght",))):
        with pytest.raises(ValueError, match=expected):
            read_table(path, options)
    with pytest.raises(ValueError, match="did you mean 'Price'"):
        read_table(path, ReadOptions(targets=("price",)))
    with pytest.raises(ValueError, match="give several as --target Price --target risk"):
        read_table(path, ReadOptions(targets=("Price,risk",)))
    with pytest.raises(ValueError, match="no numeric column 'zzz';"):
        read_table(path, ReadOptions(targets=("zzz",)))


def test_header_is_what_the_user_says(write):
    path = write("a.csv", "1,2\n3,4\n5,6\n")
    table = read_table(path, ReadOptions(header=True))
    assert (table.columns, len(table.values)) == (("1", "2"), 2)
    path = write("b.csv", "a,2020\nx,67.5\ny,3\n")
    assert_array_equal(read_table(path, ReadOptions(header=False)).values, [[2020], [67.5], [3]])


@pytest.mark.parametrize("suffix", ["csv", "npy", "npz", "parquet"])
def test_columns_are_chosen_by_name_or_index(tmp_path, suffix):
    pandas, values = require("pandas"), np.arange(12.0).reshape(3, 4) ** 2
    named = suffix in ("csv", "parquet")
    names = ["a", "b", "2020", "c"] if named else [f"column {i}" for i in range(4)]
    frame, path = pandas.DataFrame(values, columns=names), tmp_path / f"t.{suffix}"
    writers = {
        "csv": lambda: frame.to_csv(path, index=False),
        "npy": lambda: np.save(path, values),
        "npz": lambda: np.savez(path, X=values),
        "parquet": lambda: frame.to_parquet(path),
    }
    writers[suffix]()
    chosen = ("2020", "0") if named else ("2", "column 0")
    table = read_table(path, ReadOptions(columns=chosen, targets=("3",)))
    assert_array_equal(table.values, values[:, [2, 0]])
    assert_array_equal(table.target, values[:, [3]])
    same = read_table(path, ReadOptions(columns=(*chosen, "3"), targets=(names[3],)))
    assert_array_equal(same.values, table.values)
    for wrong in ("d", "4", "-1", "99999999999"):
        with pytest.raises(ValueError, match=f"no numeric column '{wrong}'.*indices 0 to 3"):
            read_table(path, ReadOptions(columns=(wrong,)))


def test_chosen_column_of_words_is_refused(write):
    path = write("a.csv", "name,cm\nAda,170\nEmmy,165\n")
    with pytest.raises(
        ValueError, match="no numeric column 'name': 'Ada' in row 0 is not a number"
    ):
        read_table(path, ReadOptions(columns=("name",)))


def test_chosen_index_is_a_column(write):
    path = write("a.csv", ",a\n3,1\n17,3\n5,2\n")
    assert_array_equal(read_table(path, ReadOptions(columns=("0",))).values, [[3], [17], [5]])
    assert_array_equal(read_table(path, ReadOptions(targets=("0",))).target, [[3], [17], [5]])


def test_lone_index_is_data(write):
    assert read_table(write("a.csv", "index\n0\n1\n")).columns == ("index",)


def test_many_equal_names_are_made_different_in_linear_time(write):
    table = read_table(write("a.csv", "a," * 19_999 + "a\n" + ("1," * 19_999 + "2\n") * 2))
    assert table.columns[:2] + table.columns[-1:] == ("a", "a.1", "a.19999")


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
    require("pyarrow")
    frame = require("pandas").DataFrame({"a": np.zeros(10**5), "b": np.zeros(10**5)})
    frame.to_parquet(folder / "runs.parquet")
    yield folder / "runs.parquet", "states that it contains 1.6 MB"


def test_files_that_claim_too_much_are_refused_before_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("lucidae.io.tables.SMALL", 1 << 20)
    for path, words in bombs(tmp_path):
        tracemalloc.start()
        with pytest.raises(ValueError, match=words):
            read_table(path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < (60e6 if path.suffix == ".csv" else 1e6), path


def test_only_the_table_of_an_archive_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("lucidae.io.tables.SMALL", 1 << 20)
    np.savez_compressed(tmp_path / "a.npz", X=NUMBERS, other=np.zeros(10**6))
    assert_array_equal(read_table(tmp_path / "a.npz").values, NUMBERS)


def test_a_file_that_does_not_fit_into_memory_is_named(write, monkeypatch):
    def exhausted(file, options):
        raise MemoryError

    path = write("a.csv", "1,2\n3,4\n")
    monkeypatch.setitem(tables.READERS, ".csv", exhausted)
    with pytest.raises(ValueError, match=r"'a\.csv' is too large for the memory of this computer"):
        read_table(path)


def test_columns_of_parquet_without_numbers_are_left_out_with_their_type(tmp_path):
    require("pyarrow")
    pd = require("pandas")
    days = pd.to_datetime(["2020-01-01", "2020-01-02"])
    frame = pd.DataFrame({"a": [1.0, 2.0], "day": days, "digits": ["1", "2"]})
    frame.to_parquet(tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet")
    assert table.columns == ("a",)
    assert table.left_out["day"].startswith("its entries are of type datetime64")
    assert table.left_out["digits"].startswith("its entries are of type ")
    with pytest.raises(ValueError, match=r"no numeric column 'day': its entries .* columns are: a"):
        table.with_target(["day"])
    frame.iloc[:0].to_parquet(tmp_path / "empty.parquet")
    with pytest.raises(ValueError, match=r"'empty\.parquet' contains 0 rows"):
        read_table(tmp_path / "empty.parquet")
