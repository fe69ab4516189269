"""Paths of dropout SGD on two hidden units, as cells."""

import numpy as np
import pytest

from lucidae_papers.dropout.paths import STARTS, Paths, distance, expect
from papers.judging import measured, verdicts

SMALL = Paths((0.1, 0.5, 1.0), 1500, 64, 0.1, 2)


@pytest.fixture(scope="module")
def results():
    return measured(SMALL)


def test_a_path_begins_at_its_start_and_contains_every_step(results):
    assert len(results.cells) == 6
    for cell in results.cells:
        path = cell.arrays["path"]
        assert path.shape == (SMALL.n_steps + 1, len(STARTS), 2)
        np.testing.assert_array_equal(path[0], STARTS)


def test_paths_end_at_an_optimum_and_other_seeds_take_other_paths(results):
    assert set(verdicts(SMALL, expect(0.1), results).values()) == {True}
    first, second = (cell.arrays["path"] for cell in results.where(strength=1.0).cells)
    assert not np.array_equal(first, second)
    ends = [distance(path[[0, -1], 1], 1.0) for path in (first, second)]
    assert all(start > 0.5 > 10 * end for start, end in ends)


def test_a_wrong_dropout_strength_ends_elsewhere(results):
    (cell, _) = results.where(strength=1.0).cells
    assert distance(cell.arrays["path"][-1:, 0], 0.1) > 0.1
