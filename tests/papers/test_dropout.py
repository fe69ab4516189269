"""Experiments on dropout: runs of SGD as cells, and claims that wrong results fail."""

import numpy as np
import pytest

from lucidae_papers import dropout
from lucidae_papers.dropout import (
    INIT_SCALES,
    STARTS,
    STRENGTHS,
    Convergence,
    Paths,
    distance,
    expect_of_convergence,
    expect_of_paths,
)
from papers.judging import flat, measured, verdicts

NETWORKS = Convergence((30, 20), (5,), STRENGTHS, 1500, 16, 10, 10)
CLAIMS = expect_of_convergence((5,), 0.05)


def test_dropout_runs_are_shared_out_and_none_falls_below_the_optimum():
    setting = Convergence((6, 4), (2,), (0.5,), 200, 4, 6, 3)
    cells = setting.cells()
    assert len(cells) == 2 * len(INIT_SCALES)
    found = [cell.work([cell.settings], "cpu")[0] for cell in cells]
    assert all(one["objective"].shape[1] == 3 for one in found)
    assert not np.array_equal(found[0]["objective"], found[1]["objective"])
    assert all(np.min(one["objective"]) >= one["optimum"] * (1 - 1e-12) for one in found)


@pytest.fixture(scope="module")
def trained():
    return measured(NETWORKS)


def test_what_is_seen_on_a_small_network(trained):
    curves = NETWORKS.curves(trained)
    seen = {
        name: all(verdict.judge(curves, "a paper").holds for verdict in found)
        for name, found in CLAIMS.items()
    }
    assert seen == {
        "optimum": True,
        "equalized": False,  # at λ = 0.1 this training is too short
        "monotone": False,
        "faster": False,  # from initial weights as large as the optimum
        "bound": True,
    }


@pytest.mark.parametrize(("factor", "kept"), [(1.1, "at least"), (0.9, "at most")])
def test_a_wrong_optimum_fails(trained, factor, kept, monkeypatch):
    right = dropout.optimal_value
    monkeypatch.setattr(dropout, "optimal_value", lambda *given: factor * right(*given))
    curves = NETWORKS.curves(measured(NETWORKS))
    judged = [claim.judge(curves, "a paper") for claim in flat(CLAIMS) if "excess" in str(claim)]
    failing = [claim for claim in judged if not claim.holds]
    assert len(failing) == len(STRENGTHS)
    assert all(kept in claim.statement for claim in failing)


SMALL = Paths((0.1, 0.5, 1.0), 1500, 64, 0.1, 2)


@pytest.fixture(scope="module")
def paths_taken():
    return measured(SMALL)


def test_a_path_begins_at_its_start_and_contains_every_step(paths_taken):
    assert len(paths_taken.cells) == 6
    for cell in paths_taken.cells:
        path = cell.arrays["path"]
        assert path.shape == (SMALL.n_steps + 1, len(STARTS), 2)
        np.testing.assert_array_equal(path[0], STARTS)


def test_paths_end_at_an_optimum_and_other_seeds_take_other_paths(paths_taken):
    assert set(verdicts(SMALL, expect_of_paths(0.1), paths_taken).values()) == {True}
    first, second = (cell.arrays["path"] for cell in paths_taken.where(strength=1.0).cells)
    assert not np.array_equal(first, second)
    ends = [distance(path[[0, -1], 1], 1.0) for path in (first, second)]
    assert all(start > 0.5 > 10 * end for start, end in ends)


def test_a_wrong_dropout_strength_ends_elsewhere(paths_taken):
    (cell, _) = paths_taken.where(strength=1.0).cells
    assert distance(cell.arrays["path"][-1:, 0], 0.1) > 0.1
