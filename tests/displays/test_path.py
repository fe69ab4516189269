"""The displays of a path of noise variances and of a path of ranks."""

import numpy as np
import pytest

import extras
from lucidae.displays import NoisePathDisplay, RankPathDisplay
from lucidae.dropout import rank_path
from lucidae.sparsity import noise_path

plt = extras.require("matplotlib.pyplot")


def test_it_shows_which_columns_stay_and_which_come_and_go():
    nan = np.nan
    shares = [[0.5, 0.6, 0.6], [nan, 0.2, 0.3], [nan, 0.1, nan], [0.3, nan, 0.3]]
    display = NoisePathDisplay([1.0, 0.1, 0.01], [4, 7, 2, 9], shares, marks={"best": 0.1})
    assert display.stays.tolist() == [True, True, False, False]
    display.plot()
    labels = [label.get_text() for label in display.ax_.get_yticklabels()]
    assert labels == ["4", "7", "2 *", "9 *"]
    assert display.ax_.get_xlim()[0] > display.ax_.get_xlim()[1]
    assert display.mesh_.get_array().shape == (4, 3)


def test_the_cells_of_a_path_are_its_contributions_where_columns_are_significant():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 30))
    y = X[:, [3, 21]] @ rng.standard_normal((2, 8)) + 0.3 * rng.standard_normal((40, 8))
    path = noise_path(X, y)
    display = path.plot()
    assert set(display.columns) == set(np.concatenate(path.supports))
    for row, column in enumerate(display.columns):
        used = [column in support for support in path.supports]
        cells = display.contributions[row]
        np.testing.assert_array_equal(~np.isnan(cells), used)
        np.testing.assert_allclose(cells[used], path.contributions[used, column])
    assert len(NoisePathDisplay.from_path(path, max_columns=1).columns) == 1


def test_a_path_without_significant_columns_says_so():
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((30, 5)), rng.standard_normal((30, 2))
    display = noise_path(X, y, [100.0], cv=False).plot()
    assert display.columns.size == 0
    assert "no column" in display.ax_.texts[0].get_text()


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="contributions has shape"):
        NoisePathDisplay([1.0], [1, 2], np.ones((2, 3)))


def test_the_curves_of_a_path_of_ranks_are_its_errors():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 5))
    path = rank_path(X, X[:, :4] * [3.0, 2.0, 0.1, 0.1] + rng.standard_normal((60, 4)))
    display = path.plot()
    training, held_out = display.lines_
    np.testing.assert_allclose(training.get_ydata(), path.error)
    np.testing.assert_allclose(held_out.lines[0].get_ydata(), path.held_out_error)
    bars = np.array(held_out.lines[2][0].get_segments())
    np.testing.assert_allclose(np.ptp(bars[:, :, 1], axis=1), 2 * path.standard_error)
    assert list(display.marks.values()) == [path.best, path.one_se]
    alone = RankPathDisplay.from_path(rank_path(X, X[:, :2], cv=None))
    assert len(alone.lines_) == 1
    assert alone.marks == {}
    with pytest.raises(ValueError, match="standard_error has shape"):
        RankPathDisplay([0, 1], [1.0, 2.0], [1.0, 2.0], [1.0])
