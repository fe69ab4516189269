"""Runs of dropout SGD as cells."""

import numpy as np

from lucidae.experiments.dropout.convergence import Convergence


def test_dropout_runs_are_shared_out_and_none_falls_below_the_optimum():
    setting = Convergence((6, 4), (2,), (0.5,), 200, 4, 6, 3)
    cells = setting.cells()
    assert len(cells) == 2
    found = [cell.work([cell.settings], "cpu")[0] for cell in cells]
    assert all(one["objective"].shape[1] == 3 for one in found)
    assert not np.array_equal(found[0]["objective"], found[1]["objective"])
    assert all(np.min(one["objective"]) >= one["optimum"] * (1 - 1e-12) for one in found)
