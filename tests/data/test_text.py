"""Text files in blocks of rows are read by the rules of `lucidae.io.tables.read_table`."""

import io
import signal

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from extras import require
from lucidae import DropoutRegressor, LinearAutoencoder
from lucidae.data import ReadInterrupted, row_blocks

pandas = require("pandas")

from lucidae.data.files import blocks_of_file
from lucidae.io.tables import ReadOptions, read_table

ROWS = 3000
NUMBERS = (1000 * np.random.default_rng(0).standard_normal((ROWS, 3))).round(2)


def comma(number):
    """Return a number in the German way, such as 1.234,5."""
    return f"{number:,.1f}".translate(str.maketrans(",.", ".,"))


LINES = {
    "names": ["a,b,c", *(f"{x},{y},{z}" for x, y, z in NUMBERS)],
    "blank lines": ["", "", "a,b,c", "", *(f"{x}, {y} ,{z}" for x, y, z in NUMBERS)],
    "no names": [f"{x},{y},{z}" for x, y, z in NUMBERS],
    "years": ["2020,2021,2022", *(f"{x},{y},{z}" for x, y, z in NUMBERS)],
    "tabs": ["a\tb\tc", *(f"{x}\t{y}\t{z}" for x, y, z in NUMBERS)],
    "decimal comma": ["a;b;c", *(";".join(map(comma, row)) for row in NUMBERS)],
    "text and truth": ["a,b,c,d", *(f"{x},word {x},{z > 0},{y}" for x, y, z in NUMBERS)],
    "index": [",a,b", *(f"{i},{y},{z}" for i, (_, y, z) in enumerate(NUMBERS))],
    "whole numbers first": ["a,b", *(f"{i},{i if i < 2000 else i + 0.5}" for i in range(ROWS))],
    "blank rows": ["a,b", *("," if i == 2500 else f"{i},{i % 7}" for i in range(ROWS))],
    "equal names": ["a,a,", *(f"{x},{y},{z}" for x, y, z in NUMBERS)],
}


@pytest.fixture(params=LINES)
def path(request, tmp_path, small_blocks):
    """Write a text file of several blocks."""
    (tmp_path / "rows.csv").write_text("\n".join(LINES[request.param]) + "\n")
    return tmp_path / "rows.csv"


def test_blocks_are_those_of_the_loaded_table(path):
    table, data = read_table(path), row_blocks(path)
    assert data.feature_names == table.columns
    assert data.left_out == table.left_out
    assert data.header == table.header
    blocks = list(data)
    assert len(blocks) > 1
    assert_array_equal(np.concatenate(blocks), table.values)
    later = list(row_blocks(path, first_row=2600))
    assert_array_equal(np.concatenate(later), table.values[2600:])


@pytest.mark.parametrize("header", [True, False])
def test_options_are_those_of_the_loaded_table(tmp_path, small_blocks, header):
    (tmp_path / "rows.txt").write_text("\n".join(LINES["years" if header else "no names"]))
    options = ReadOptions(header=header, columns=("2", "0"))
    table, data = (
        read_table(tmp_path / "rows.txt", options),
        blocks_of_file(tmp_path / "rows.txt", options=options),
    )
    assert data.feature_names == table.columns
    assert_array_equal(np.concatenate(list(data)), table.values)
    with pytest.raises(ValueError, match="has no numeric column '7'"):
        blocks_of_file(tmp_path / "rows.txt", options=ReadOptions(columns=("7",)))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("1,2,3", "line 3002 has 3 cells, but the first line has 2"),
        ("1", "line 3002 has 1 cell, but the first line has 2"),
        ("true,1", "column 'a' of 'rows.csv' contains text after row"),
    ],
)
def test_a_bad_line_far_behind_the_first_is_named(tmp_path, small_blocks, line, sentence):
    lines = ["a,b", *(f"{x},{y}" for x, y, _ in NUMBERS), line, *["1,2"] * 2000]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=sentence):
        list(row_blocks(tmp_path / "rows.csv"))


def test_missing_values_are_nan_and_blank_rows_are_left_out(tmp_path, small_blocks):
    lines = ["a,b", *(f"{x},{y}" for x, y, _ in NUMBERS), "NA,n/a", ",", "1,"]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    rows = np.concatenate(list(row_blocks(tmp_path / "rows.csv")))
    assert_array_equal(rows[ROWS:], [[np.nan, np.nan], [1.0, np.nan]])
    assert_array_equal(rows[:ROWS], NUMBERS[:, :2])


def test_the_index_of_a_parquet_file_is_left_out(tmp_path):
    require("pyarrow")
    frame = pandas.DataFrame(NUMBERS, columns=list("abc"), index=np.arange(ROWS) * 2)
    frame.to_parquet(tmp_path / "unnamed.parquet")
    frame.rename_axis("time").to_parquet(tmp_path / "named.parquet")
    for name in ("unnamed", "named"):
        path = tmp_path / f"{name}.parquet"
        table, data = read_table(path), row_blocks(path)
        assert data.feature_names == table.columns == ("a", "b", "c")
        assert data.left_out == table.left_out
    options = ReadOptions(columns=("b", "time"))
    table = read_table(path, options)
    data = blocks_of_file(path, options=options)
    assert data.feature_names == table.columns == ("b", "time")
    assert_array_equal(np.concatenate(list(data)), table.values)


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
    monkeypatch.setattr("lucidae.data.blocks.BLOCK_BYTES", 2**18)
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


def test_ctrl_c_before_the_first_block_is_no_error_of_the_file(tmp_path, press_ctrl_c):
    (tmp_path / "rows.csv").write_text("\n".join(LINES["names"]))
    press_ctrl_c(0)
    with pytest.raises(KeyboardInterrupt):
        LinearAutoencoder(1).fit(tmp_path / "rows.csv")
    with pytest.raises(KeyboardInterrupt):
        read_table(tmp_path / "rows.csv")
