"""Choices of penalties: the search is independent, and wrong penalties fail the claims."""

import numpy as np
import pytest

from lucidae.linear.penalties import paper_penalties, rotation_bound
from lucidae_papers.linear import penalties as module
from lucidae_papers.linear.penalties import Penalties, expect, search_eq16
from lucidae_papers.linear.training import DIGITS
from papers.judging import measured, verdicts

CONDITIONING = {
    name: found for name, found in expect(0.03).items() if name not in ("slow", "later")
}


class Untrained(Penalties):
    """The choices of penalties without the training."""

    def cells(self):
        return super().cells()[:4]


SETTING = Untrained(DIGITS, ())


@pytest.fixture(scope="module")
def results():
    return measured(SETTING)


def broken(results, rule, change):
    """Return the results with the penalties of one rule changed, and measured again."""
    right = module.penalties

    def wrong(settings, data, k):
        found = right(settings, data, k)
        return change(found) if settings["rule"] == rule else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "penalties", wrong)
        return verdicts(SETTING, CONDITIONING, measured(SETTING))


def test_the_claims_hold(results):
    judged = verdicts(SETTING, CONDITIONING, results)
    assert len(judged) == 7
    assert all(judged.values())


@pytest.mark.parametrize("seed", range(3))
def test_the_search_agrees_with_the_walk(seed):
    rng = np.random.default_rng(seed)
    values = np.sort(rng.uniform(1.0, 20.0, size=8))[::-1]
    searched, walked = search_eq16(values), paper_penalties(values)
    np.testing.assert_allclose(
        rotation_bound(values, searched), rotation_bound(values, walked), rtol=1e-6
    )


def test_penalties_that_do_not_minimise_eq_16_fail(results):
    judged = broken(results, "paper", lambda found: 0.5 * found + 0.01 * found[-1])
    assert judged["eq16/search / eq16/paper"] is False
    assert judged["flatness/paper"] is False


def test_penalties_that_are_not_the_best_conditioned_fail(results):
    judged = broken(results, "best", lambda found: np.linspace(0.05, 0.95, len(found)) * found[-1])
    assert judged["condition/moved / condition/best"] is False
    at_the_end = broken(results, "best", lambda found: found * (found >= found[-1]) + 1e-12)
    assert at_the_end["smallest/best"] is False


def test_a_search_that_stops_at_its_start_fails(monkeypatch):
    def idle(values):
        return np.linspace(0.02, 0.98, len(values)) * values[-1]

    monkeypatch.setattr(module, "search_eq16", idle)
    judged = verdicts(SETTING, CONDITIONING, measured(SETTING))
    assert judged["smallest/search"] is judged["largest/search"] is False
