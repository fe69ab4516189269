"""Runs of dropout SGD as cells."""

import numpy as np
import pytest

from lucidae_papers.dropout import convergence
from lucidae_papers.dropout.convergence import STRENGTHS, Convergence, expect
from papers.judging import flat, measured

SMALL = Convergence((30, 20), (5,), STRENGTHS, 1500, 16, 10, 10)
CLAIMS = expect((5,), 0.05)


def test_dropout_runs_are_shared_out_and_none_falls_below_the_optimum():
    setting = Convergence((6, 4), (2,), (0.5,), 200, 4, 6, 3)
    cells = setting.cells()
    assert len(cells) == 2
    found = [cell.work([cell.settings], "cpu")[0] for cell in cells]
    assert all(one["objective"].shape[1] == 3 for one in found)
    assert not np.array_equal(found[0]["objective"], found[1]["objective"])
    assert all(np.min(one["objective"]) >= one["optimum"] * (1 - 1e-12) for one in found)


@pytest.fixture(scope="module")
def results():
    return measured(SMALL)


def test_what_is_seen_on_a_small_network(results):
    curves = SMALL.curves(results)
    seen = {
        name: all(verdict.judge(curves, "a paper").holds for verdict in found)
        for name, found in CLAIMS.items()
    }
    assert seen == {
        "optimum": True,
        "equalized": False,  # at λ = 0.1 this training is too short
        "monotone": False,
        "faster": True,
        "bound": True,
    }


@pytest.mark.parametrize(("factor", "kept"), [(1.1, "at least"), (0.9, "at most")])
def test_a_wrong_optimum_fails(results, factor, kept, monkeypatch):
    right = convergence.optimal_value
    monkeypatch.setattr(convergence, "optimal_value", lambda *given: factor * right(*given))
    curves = SMALL.curves(measured(SMALL))
    judged = [claim.judge(curves, "a paper") for claim in flat(CLAIMS) if "excess" in str(claim)]
    failing = [claim for claim in judged if not claim.holds]
    assert len(failing) == len(STRENGTHS)
    assert all(kept in claim.statement for claim in failing)


def test_speeds_of_equalization_in_the_wrong_order_fail(results):
    curves = dict(SMALL.curves(results))
    first, last = "relative variance/5/0.1", "relative variance/5/1"
    curves[first], curves[last] = curves[last], curves[first]
    assert CLAIMS["faster"][0].judge(curves, "a paper").holds is False
