"""Tables with bad cells and misleading layouts: read right, or refused with a sentence.

The same table as a file and as a data frame gives the same numbers or an error about the same cell.
"""

import csv
import datetime as dt
import decimal
import warnings

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from extras import require
from lucidae import DropoutRegressor, LinearAutoencoder, SecondMoment
from lucidae.datasets import read_table

pandas, polars, arrow = require("pandas"), require("polars"), require("pyarrow")
parquet = require("pyarrow.parquet")

NUMBERS = ["1", "2.5", "3", "4.25", "5", "6", "7.5", "8"]
ROW = 3  # of the cell that is exchanged


def written(cells, folder, suffix):
    """Write the numbers as column a, and cells of text as column b."""
    path = folder / f"t.{suffix}"
    if suffix == "parquet":
        frame(cells).to_parquet(path)
        return path
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, delimiter="\t" if suffix == "tsv" else ",")
        writer.writerows([("a", "b"), *zip(NUMBERS, cells, strict=True)])
    return path


def frame(cells):
    return pandas.DataFrame({"a": list(map(float, NUMBERS)), "b": pandas.Series(cells, dtype=str)})


def parsed(cells, folder):
    return pandas.read_csv(written(cells, folder, "csv"))


def of_polars(cells, folder):
    return polars.DataFrame({"a": list(map(float, NUMBERS)), "b": cells})


CONTAINERS = {
    "csv": lambda cells, folder: written(cells, folder, "csv"),
    "tsv": lambda cells, folder: written(cells, folder, "tsv"),
    "parquet": lambda cells, folder: written(cells, folder, "parquet"),
    "frame": lambda cells, folder: frame(cells),
    "frame of read_csv": parsed,
    "polars": of_polars,
    "arrow": lambda cells, folder: of_polars(cells, folder).to_arrow(),
}
ALL = pytest.mark.parametrize("container", CONTAINERS)


def said_by(read, data):
    """Return the result of reading the data, and what warnings said."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = read(data)
    return found, " ".join(str(warning.message) for warning in caught)


BAD_CELLS = [
    *("12.5 k", "-", "1_000", "0x10", "yes", "1,234", "1 234", "$5", "5%", "1.2.3", "12-05", "=A1"),
    *("2020-01-01", "12:30", "1e5x", "--", "n.a.", "unknown", "1/2", "½", "−5", "1,5", "∞", "1d5"),
    *("#DIV/0!", "true", "FALSE", "[1]", "1+2j", "5 kg", '5"', "5'", "a\nb", "1'234"),
]


@ALL
@pytest.mark.parametrize("cell", BAD_CELLS)
def test_a_bad_cell_is_named_with_its_row_and_can_be_read_as_missing(tmp_path, container, cell):
    data = CONTAINERS[container]([*NUMBERS[:ROW], cell, *NUMBERS[ROW + 1 :]], tmp_path)
    is_file = not hasattr(data, "shape")
    for use in (LinearAutoencoder(1).fit, SecondMoment.of, *[read_table] * is_file):
        with pytest.raises(
            ValueError, match=r"^column 'b' of .*in row 3 \(counted from 0\)"
        ) as bad:
            use(data)
        message = str(bad.value)
        assert cell.lower() in message.lower().replace("\\n", "\n").replace('\\"', '"')
        assert ("read_table(path, missing_values=" in message) == is_file
        assert ("--missing-values" in message) == is_file
    if is_file:
        given = cell.title() if cell.lower() in ("true", "false") else cell
        table, said = said_by(lambda path: read_table(path, missing_values=[given, cell]), data)
        expected = np.array(NUMBERS, dtype=float)
        expected[ROW] = np.nan
        assert_array_equal(table["b"], expected)
        assert "left out" not in said


NONE = ("", "NA", "NaN", "nan", "null", "None", "?", "#N/A", "<NA>", "n/a", " ")
GOOD_CELLS = dict.fromkeys(NONE, np.nan) | {
    cell: float(cell) for cell in ("+5", "1e3", "1E-3", ".5", "5.", " 5 ", "007", "٣", "-0")
}


@ALL
@pytest.mark.parametrize("cell", GOOD_CELLS)
def test_a_number_or_a_missing_value_is_read(tmp_path, container, cell):
    data = CONTAINERS[container]([*NUMBERS[:ROW], cell, *NUMBERS[ROW + 1 :]], tmp_path)
    expected = np.column_stack([NUMBERS, NUMBERS]).astype(float)
    expected[ROW, 1] = GOOD_CELLS[cell]
    if not hasattr(data, "shape"):
        assert_array_equal(said_by(read_table, data)[0], expected)
    model, _ = said_by(LinearAutoencoder(1, handle_missing="em").fit, data)
    assert model.feature_names_in_.tolist() == ["a", "b"]
    if np.isnan(GOOD_CELLS[cell]):
        with pytest.raises(ValueError, match="NaN"):
            said_by(LinearAutoencoder(1).fit, data)
    else:
        model, _ = said_by(LinearAutoencoder(1).fit, data)
        assert_array_equal(model.mean_, expected.mean(axis=0))


TRUE_FALSE = ["true", "false", "true", "true", "false", "false", "true", "false"]
COLUMNS = {
    "true and false": (TRUE_FALSE, [1, 0, 1, 1, 0, 0, 1, 0]),
    "TRUE and FALSE": ([cell.upper() for cell in TRUE_FALSE], [1, 0, 1, 1, 0, 0, 1, 0]),
    "yes and no": (["yes", "no"] * 4, None),
    "words": ([*"abcdefgh"], None),
    "words and numbers": (["1", "x"] * 4, None),
    "truth and numbers": (["1", "true"] * 4, None),
    "numbers in words": (["12.5 k"] * 8, None),
    "thousands": (["1,234"] * 8, None),
    "dates": (["2020-01-02"] * 8, None),
    "times": (["12:30"] * 8, None),
    "nothing": (["", "NA", "", "", "?", "", "", ""], None),
    "one truth is bad": (["maybe", *TRUE_FALSE[1:]], "'maybe' in row 0"),
    "two are bad": (["x", *NUMBERS[1:7], "y"], "'x' in row 0, 'y' in row 7"),
    "many are bad": ([*NUMBERS[:5], "x", "y", "z"], "'x' in row 5, 'y' in row 6, 'z' in row 7"),
}


@ALL
@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_is_what_most_of_its_cells_are(tmp_path, container, name):
    cells, expected = COLUMNS[name]
    data = CONTAINERS[container](cells, tmp_path)
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=r"^column 'b' of") as bad:
            LinearAutoencoder(1).fit(data)
        assert expected in str(bad.value)
        return
    model, said = said_by(LinearAutoencoder(1).fit, data)
    columns = [np.array(NUMBERS, dtype=float), expected]
    means = [np.mean(column) for column in columns if column is not None]
    assert_array_equal(model.mean_, means)
    assert ("were left out: 'b' (" in said) == (expected is None)
    codes, _ = said_by(model.transform, data)
    assert codes.shape == (8, 1)


TYPED = {
    "decimals": ([decimal.Decimal("1.50"), decimal.Decimal("-2.25"), None], [1.5, -2.25, np.nan]),
    "truth values": ([True, False, True], [1, 0, 1]),
    "truth and gaps": ([True, None, False], [1, np.nan, 0]),
    "whole numbers and gaps": ([1, None, 3], [1, np.nan, 3]),
    "dates": ([dt.date(2020, 1, day) for day in (1, 2, 3)], None),
    "moments": ([dt.datetime(2020, 1, day) for day in (1, 2, 3)], None),
    "durations": ([dt.timedelta(days) for days in (1, 2, 3)], None),
    "lists": ([[1, 2], [3], []], None),
    "nothing": ([None, None, None], None),
}


@pytest.mark.parametrize("name", TYPED)
def test_typed_columns_are_the_same_in_frames_and_in_parquet(tmp_path, name):
    cells, expected = TYPED[name]
    table = arrow.table({"a": [1.0, 2.0, 4.0], "b": arrow.array(cells)})
    parquet.write_table(table, tmp_path / "t.parquet")
    plain = table.to_pandas(date_as_object=False)
    nullable = table.to_pandas(types_mapper=pandas.ArrowDtype)
    for data in (tmp_path / "t.parquet", plain, nullable, table, polars.from_arrow(table)):
        model, said = said_by(LinearAutoencoder(1, handle_missing="em").fit, data)
        if expected is None:
            assert model.feature_names_in_.tolist() == ["a"]
            assert "were left out: 'b' (" in said
        else:
            assert model.n_features_in_ == 2
            assert "Columns" not in said
            if not np.isnan(expected).any():
                assert model.mean_[1] == np.mean(expected)


def test_categories_are_left_out(tmp_path):
    data = frame(NUMBERS).astype({"b": "category"})
    data.to_parquet(tmp_path / "t.parquet")
    for given in (data, tmp_path / "t.parquet", polars.from_pandas(data)):
        with pytest.warns(UserWarning, match=r"left out: 'b' \(its entries are categories\)"):
            assert LinearAutoencoder(1).fit(given).n_features_in_ == 1


def test_batches_of_arrow_keep_their_names_and_lose_no_column():
    table = arrow.table({"a": [1.0, 2.0, 4.0], "b": [3.0, 1.0, 0.0], "c": ["x", "y", "z"]})
    numbers = table.drop_columns("c")
    batch = numbers.to_batches()[0]
    for data in (batch, iter([numbers, numbers]), iter([batch, batch])):
        assert LinearAutoencoder(1).fit(data).feature_names_in_.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="text in column 'c'"):
        LinearAutoencoder(1).fit(iter([table, table]))
    equal = arrow.table([[1.0, 2.0], ["x", "y"], [2.0, 5.0]], names=["a", "b", "b"])
    with pytest.warns(UserWarning, match="left out: 'b'"):
        assert SecondMoment.of(equal).n_features == 2


def test_parquet_with_equal_names_is_refused(tmp_path):
    equal = arrow.table([[1.0, 2.0], [3.0, 5.0], [2.0, 5.0]], names=["a", "b", "b"])
    parquet.write_table(equal, tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"'t\.parquet' .*several columns have the same name"):
        LinearAutoencoder(1).fit(tmp_path / "t.parquet")


def test_numbers_beyond_double_precision_are_no_numbers():
    huge = pandas.Series([1, 10**400, 2], dtype=object)
    with pytest.raises(ValueError, match=r"'b' of X contains numbers, but '10000.* in row 1 "):
        LinearAutoencoder(1).fit(pandas.DataFrame({"a": [1.0, 2.0, 4.0], "b": huge}))


def test_a_frame_without_numbers_and_equal_names():
    with pytest.raises(ValueError, match=r"X has no numeric column: 'b' \('x' in row 0"):
        LinearAutoencoder(1).fit(pandas.DataFrame({"b": ["x", "y"]}))
    twice = pandas.DataFrame([[1.0, "x", "1"], [2.0, "y", "5"]], columns=["a", "a", "b"])
    model, said = said_by(LinearAutoencoder(1).fit, twice)
    assert_array_equal(model.mean_, [1.5, 3.0])
    assert said == (
        "Columns of X were left out: 'a' ('x' in row 0 is not a number). "
        "Columns of text of X were read as numbers: 'b'."
    )


@pytest.mark.parametrize("sign", ",.")
def test_the_decimal_sign_that_was_taken_is_said_where_another_is_possible(tmp_path, sign):
    path = tmp_path / "t.csv"
    path.write_text(f"a;b\n1{sign}234;5{sign}678\n9{sign}876;4{sign}321\n")
    words = rf"'{sign}' was taken for the decimal sign, so that '1{sign}234' is 1.234; if it "
    for read in (read_table, LinearAutoencoder(1).fit):
        with pytest.warns(UserWarning, match=words):
            read(path)
    assert_array_equal(read_table(path, decimal=sign), [[1.234, 5.678], [9.876, 4.321]])
    for certain in ("0{}234;5{}678\n", "1{}5;1{}234\n", "1234{}567;1\n"):
        path.write_text("a;b\n" + 2 * certain.replace("{}", sign))
        read_table(path)  # without a warning
    path.write_text("a;b\n1.234;5.678\n9.876;4.321\n")
    assert_array_equal(read_table(path, decimal=","), [[1234, 5678], [9876, 4321]])


def test_cells_with_another_sign_are_named_with_what_to_do(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('a,b\n950,1\n"1,234",2\n12,4\n')
    with pytest.raises(ValueError, match=r"if ',' is the decimal sign, .* thousands, remove it"):
        read_table(path)
    path.write_text("a;b\n0,5;1.25\n2,5;1,5\n3,5;2,5\n")
    with pytest.raises(ValueError, match=r"if '\.' is the decimal sign, give decimal='\.'"):
        read_table(path, decimal=",")
    path.write_text('a,b\n1,"1,234,567"\n3,"7,654,321"\n')
    with pytest.warns(UserWarning, match="not a number; if ',' separates thousands, remove it"):
        assert list(read_table(path)) == ["a"]
    path.write_text("a,b\n1,true\n3,false\n2,7\n2,true\n")
    with pytest.raises(ValueError, match="true and false, but '7' in row 2") as caught:
        read_table(path)
    assert "sign" not in str(caught.value)


def test_a_point_behind_many_decimal_commas_is_said(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a;b\n" + "1,5;2\n" * 2000 + "1.500;2\n" * 2)
    words = (
        r"^'t\.csv': ',' was taken for the decimal sign, so that '1\.500' is 1500; if it is 1\.5"
    )
    for read in (read_table, LinearAutoencoder(1).fit):
        with pytest.warns(UserWarning, match=words) as said:
            read(path)
        assert len(said) == 1
    assert read_table(path, decimal=",").to_numpy()[-1].tolist() == [1500, 2]  # without a warning
    path.write_text("a;b\n" + "1,5;2.345.678\n" * 2000 + "1.500;2\n")
    read_table(path)  # without a warning: the points are known to separate thousands


def test_the_choices_of_the_user(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,x,y,z\n1,-999,2,a\n2,5,-999.0,b\n3,7,-,c\n")
    table = read_table(path, columns=["y", 1], missing_values=[-999, "-"])
    assert table.columns.tolist() == ["y", "x"]
    assert_array_equal(table, [[2, np.nan], [np.nan, 5], [np.nan, 7]])
    np.save(tmp_path / "t.npy", [[1, -999, 3], [4, 5, -999]])
    assert_array_equal(
        read_table(tmp_path / "t.npy", missing_values="-999", columns=(1, 2)),
        [[np.nan, 3], [5, np.nan]],
    )
    with path.open() as stream, pytest.raises(ValueError, match="path is of type TextIOWrapper"):
        read_table(stream)
    with pytest.raises(ValueError, match="no numeric column 'w'"):
        read_table(path, columns="w")
    for wrong in ({"header": 1}, {"decimal": "x"}, {"missing_values": None}, {"columns": [[0]]}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}=.* was given, expected"):
            read_table(path, **wrong)


def test_sparse_truth_values_are_numbers():
    encoded = pandas.get_dummies(pandas.Series([*"abca"]), sparse=True)
    assert_array_equal(LinearAutoencoder(1).fit(encoded).mean_, [0.5, 0.25, 0.25])


def test_sparse_frames_of_targets_are_refused():
    encoded = pandas.get_dummies(pandas.Series([*"abca"]), sparse=True, dtype=float)
    with pytest.raises(ValueError, match="y is a sparse matrix, expected a dense array"):
        DropoutRegressor().fit(encoded, encoded)


@pytest.mark.parametrize("open_quote", [True, False])
def test_a_cell_of_many_pages_is_refused_with_advice(tmp_path, open_quote):
    path = tmp_path / "t.csv"
    path.write_text(f'a,b\n1,2\n3,"{"4 " * 99_999}{"" if open_quote else chr(34)}\n')
    for read in (read_table, LinearAutoencoder(1).fit):
        with pytest.raises(ValueError, match=r"^'t\.csv' .*close its quotation mark"):
            read(path)
