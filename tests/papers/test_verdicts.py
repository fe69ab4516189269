import math

import numpy as np
import pytest

from lucidae_papers.declaration import Curve
from lucidae_papers.verdicts import (
    Agree,
    AtLeast,
    AtMost,
    Between,
    Falls,
    Ordered,
    Outweighs,
    Reported,
    Sooner,
    arrival,
    figures,
    measured,
)

CURVES = {
    "fast": Curve([1, 10, 100, 1000], [0.9, 0.5, 0.1, 0.01]),
    "slow": Curve([1, 10, 100, 1000], [0.9, 0.8, 0.6, 0.3]),
    "stuck": Curve([1, 10, 100, 1000], [0.9, 0.7, 0.7, 0.7]),
    "lost": Curve([1, 10, 100, 1000], [0.9, 0.5, math.nan, math.nan]),
    "wavy": Curve([1, 10, 100, 1000], [0.9, 0.2, 0.4, 0.1]),
    "zero": Curve([1, 10, 100, 1000], [0.0, 0.0, 0.0, 0.0]),
}

RIGHT = [
    AtMost("fast", 0.01),
    AtMost("fast", 0.1, at=100),
    AtMost("fast", 0.9, at="everywhere"),
    AtMost("fast", 0.3, at=(10, 100)),
    AtLeast("stuck", 0.7, at="everywhere"),
    AtLeast("slow", 0.65, at="mean"),
    Between("stuck", 0.6, 0.8),
    Ordered(("stuck", "slow", "fast"), margin=0.2),
    Ordered(("slow", "stuck"), at=1),
    Ordered(("slow", "stuck"), margin=-0.5, at="everywhere"),
    Outweighs("slow", "fast", 25.0),
    Outweighs("slow", "zero", 1e9),
    Agree("slow", "stuck", 0.11, at=10),
    Falls("fast"),
    Falls("wavy", slack=0.21),
    Sooner("fast", "slow", 0.35, factor=5.0),
    Sooner("fast", "stuck", 0.1, factor=10.0),  # the second curve ends at 1000
]
WRONG = [
    AtMost("fast", 0.009),
    AtMost("fast", 0.5, at="everywhere"),
    AtMost("lost", 1.0),
    AtLeast("lost", 0.0),
    AtLeast("fast", 0.02),
    AtLeast("fast", 0.02, at="everywhere"),
    Between("stuck", 0.71, 0.8),
    Between("fast", 0.0, 0.5, at="everywhere"),
    Between("lost", 0.0, 1.0, at="everywhere"),
    Ordered(("fast", "slow")),
    Ordered(("stuck", "slow", "fast"), margin=0.35),
    Ordered(("stuck", "lost")),
    Outweighs("fast", "slow", 1.0),
    Outweighs("lost", "slow", 0.0),
    Agree("slow", "stuck", 0.1),
    Agree("lost", "stuck", 1.0),
    Falls("wavy"),
    Falls("lost"),
    Sooner("slow", "fast", 0.35),
    Sooner("stuck", "stuck", 0.1),
    Sooner("fast", "slow", 0.35, factor=11.0),
    Sooner("fast", "stuck", 0.1, factor=11.0),
]


@pytest.mark.parametrize("verdict", RIGHT, ids=repr)
def test_a_true_claim_holds(verdict):
    claim = verdict.judge(CURVES, "nobody")
    assert claim.holds is True
    assert claim.reference == "nobody"
    assert claim.statement


@pytest.mark.parametrize("verdict", WRONG, ids=repr)
def test_a_false_claim_fails(verdict):
    assert verdict.judge(CURVES, "nobody").holds is False


def test_a_reported_figure_has_no_verdict():
    claim = Reported("fast", at=100).judge(CURVES, "nobody")
    assert claim.holds is None
    assert claim.value == 0.1


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        (AtMost("nothing", 1.0), "no curve is called 'nothing'"),
        (AtMost("fast", 1.0, at=7), "no point at 7"),
        (AtMost("fast", 1.0, at=(2, 3)), "no point at"),
        (AtMost("fast", 1.0, at="sometimes"), "sometimes"),
    ],
)
def test_a_claim_that_cannot_be_read_says_why(verdict, says):
    with pytest.raises(ValueError, match=says):
        verdict.judge(CURVES, "nobody")


def test_where_a_claim_looks():
    assert figures(CURVES, "slow", "end") == [0.3]
    assert figures(CURVES, "slow", 10) == [0.8]
    assert figures(CURVES, "slow", (10, 1000)) == pytest.approx(np.mean([0.8, 0.6, 0.3]))
    assert arrival(CURVES["fast"], 0.5) == 10
    assert arrival(CURVES["stuck"], 0.5) == math.inf


@pytest.mark.parametrize(("x", "y"), [([1, 2], [1]), ([], []), ([[1]], [[1]])])
def test_a_curve_of_the_wrong_shape_is_refused(x, y):
    with pytest.raises(ValueError, match="two vectors of equal length"):
        Curve(x, y)


def test_a_statement_names_the_grid_and_the_bound():
    epochs = {"loss": Curve([1, 10], [2.0, 1.0], "epoch"), "one": Curve([0], [1.0])}
    said = {
        AtMost("loss", 3.0, says="loss"): "loss: at most 3 at epoch 10",
        AtMost("loss", 3.0, at=1, says="loss"): "loss: at most 3 at epoch 1",
        AtMost("loss", 3.0, at="everywhere", says="loss"): "loss: at most 3 everywhere",
        AtMost(
            "loss", 3.0, at=(1, 10), says="loss"
        ): "loss: at most 3 on average over epoch 1 to 10",
        Between("one", 1, 1, says="minima"): "minima: exactly 1",
        Between("one", 0, 2, says="minima"): "minima: from 0 to 2",
    }
    for verdict, statement in said.items():
        claim = verdict.judge(epochs, "nobody")
        assert claim.statement == statement
        assert claim.holds


def test_a_reported_figure_is_formatted_like_a_judged_one():
    claim = Reported("fast", at=100, says="the fast one").judge(CURVES, "nobody")
    assert measured(claim) == "0.1"
