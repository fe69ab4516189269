"""Verdicts: which claims hold, and what a page, a note and a count say of a refuted one."""

import math

import numpy as np
import pytest

import extras
from lucidae_papers.declaration import Experiment, Scale, VerdictKind
from lucidae_papers.results import Curve, Measured, Results
from lucidae_papers.verdicts import (
    Agree,
    AtLeast,
    AtMost,
    Counts,
    Ordered,
    Outweighs,
    Reported,
    Sooner,
    judge_results,
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
    Ordered(("stuck", "slow", "fast"), margin=0.2),
    Ordered(("slow", "stuck"), at=1),
    Ordered(("slow", "stuck"), margin=-0.5, at="everywhere"),
    Outweighs("slow", "fast", 25.0),
    Outweighs("slow", "zero", 1e9),
    Agree("slow", "stuck", 0.11, at=10),
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
    Ordered(("fast", "slow")),
    Ordered(("stuck", "slow", "fast"), margin=0.35),
    Ordered(("stuck", "lost")),
    Outweighs("fast", "slow", 1.0),
    Outweighs("lost", "slow", 0.0),
    Agree("slow", "stuck", 0.1),
    Agree("lost", "stuck", 1.0),
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


@pytest.mark.parametrize(("x", "y"), [([1, 2], [1]), ([], []), ([[1]], [[1]])])
def test_a_curve_of_the_wrong_shape_is_refused(x, y):
    with pytest.raises(ValueError, match="two vectors of equal length"):
        Curve(x, y)


ABOUT = {
    "machine": "a machine",
    "seconds": 1.0,
    "versions": {"numpy": np.__version__},
}


class Fixed:
    """A setting whose curves are given."""

    def __init__(self, **curves):
        self.given = curves

    def cells(self):
        return []

    def curves(self, results):
        return self.given

    def facts(self):
        return {"data": "given"}


def experiment(error, bound=0.5, early=100.0):
    curves = {
        "error": Curve([1, 2], [0.9, error], "epoch"),
        "gap": Curve([0], [0.1]),
        "fast": Curve([1, early, 1000], [0.9, 0.1, 0.1], "epoch"),
        "never": Curve([1, 100, 1000], [0.9, 0.8, 0.7], "epoch"),
    }
    scale = Scale(
        Fixed(**curves),
        {
            "error": (AtMost("error", bound, says="error of the model"),),
            "fast": (Sooner("fast", "never", 0.2, factor=5.0, says="fast against never"),),
            "gap": (AtLeast("gap", 0.0, says="the gap"),),
        },
        reported=(Reported("error", at=1, says="error at first"),),
        unjudged={"large": "the data are small."},
    )
    return Experiment(
        name="given",
        title="A subject",
        reference="Nobody 2020, Figure 1",
        about="Two curves are compared.",
        claims={
            "error": "The model has a low error.",
            "fast": "The model is fast.",
            "large": "This scales to large data.",
        },
        findings={"gap": "There is a gap."},
        smoke=scale,
        paper=scale,
    )


def outcome(error, **settings):
    results = Results((Measured({}, {}, ABOUT),))
    return judge_results(experiment(error, **settings), "smoke", results)


def test_kinds_are_counted_separately():
    both = [outcome(0.2), outcome(0.7)]
    assert Counts.of(both) == Counts(
        seen=3, partly=0, claims=4, held=2, findings=2, identities=0, reported=2, unjudged=2
    )
    assert str(both[1].counts) == (
        "1 of 2 claims of the paper seen; 1 of 1 findings of our own hold; 1 value reported; "
        "1 not judged"
    )
    assert both[0].holds
    assert not both[1].holds


def test_a_refuted_finding_is_no_finding():
    refuted = outcome(0.2)
    gap = Curve([0], [-1.0])
    declared = refuted.experiment
    declared.smoke.setting.given["gap"] = gap
    again = judge_results(declared, "smoke", refuted.results)
    (finding,) = again.of_kind(VerdictKind.OWN)
    assert finding.verdict == "does not hold"
    assert finding.prose.startswith("Our own expectation: There is a gap. This run does not confi")


SEEDS = {
    "all": Curve.over_seeds([1, 2], [[1.0, 0.1], [1.0, 0.2], [1.0, 0.3]]),
    "some": Curve.over_seeds([1, 2], [[1.0, 0.1], [1.0, 0.4], [1.0, 0.9]]),
    "one": Curve([1, 2], [1.0, 0.5]),
}


def judged(bounds, kind="claims", curves=SEEDS):
    """Judge one statement by several bounds on curves with three seeds."""
    expect = {"a": tuple(AtMost(name, bound, says=name) for name, bound in bounds)}
    declared = Experiment(
        name="seeds",
        title="A subject",
        reference="nobody",
        about="Nothing.",
        smoke=Scale(Fixed(**curves), expect),
        paper=Scale(Fixed(**curves), expect),
        **{kind: {"a": "A holds."}},
    )
    return judge_results(declared, "smoke", Results((Measured({}, {}, ABOUT),)))


def test_every_seed_is_judged_and_the_spread_is_shown():
    (claim,) = judged([("all", 0.3)]).claims
    assert claim.holds is True
    assert claim.value == pytest.approx(0.2)
    assert measured(claim) == "0.2 (0.1 to 0.3 over 3 seeds)"
    equal = {"all": Curve.over_seeds([1, 2], [[1.0, 0.2], [1.0, 0.2]])}
    (claim,) = judged([("all", 0.3)], curves=equal).claims
    assert measured(claim) == "0.2 (in each of 2 seeds)"
    (claim,) = judged([("some", 0.5)]).claims
    assert claim.holds is None
    assert "of which 2 satisfy the bound" in claim.advice
    assert judged([("all", 0.05)]).claims[0].holds is False
    assert judged([("some", 0.2)]).claims[0].holds is False  # one seed of three is chance


def test_seeds_that_diverged_are_counted_and_do_not_hide_the_others():
    lost = {"some": [[1.0, 0.1], [1.0, np.nan], [1.0, 0.3]], "all": [[1.0, np.nan]] * 3}
    curves = {name: Curve.over_seeds([1, 2], runs) for name, runs in lost.items()}
    some, every = judged([("some", 0.5), ("all", 0.5)], curves=curves).claims
    assert measured(some) == (
        "0.1 to 0.3 over 3 seeds, 1 of them not finite, of which 2 satisfy the bound"
    )
    assert (some.holds, every.holds) == (None, False)
    assert measured(every) == "not finite: a run diverged"


def test_curves_may_have_different_numbers_of_seeds():
    curves = SEEDS | {"two": Curve.over_seeds([1, 2], [[1.0, 0.1], [1.0, 0.2]])}
    first, second = judged([("all", 0.3), ("two", 0.3)], curves=curves).claims
    assert (first.advice, second.advice) == ("0.1 to 0.3 over 3 seeds", "0.1 to 0.2 over 2 seeds")


@pytest.mark.parametrize(
    ("bounds", "verdict", "holds"),
    [
        ([("all", 0.3), ("one", 0.5)], "seen", True),
        ([("some", 0.5)], "partly seen", None),
        ([("all", 0.3), ("one", 0.1)], "partly seen", None),
        ([("all", 0.05), ("one", 0.1)], "not seen", False),
    ],
)
def test_a_claim_of_the_paper_may_be_seen_in_part(bounds, verdict, holds):
    outcome = judged(bounds)
    (judgement,) = outcome.judgements
    assert (judgement.verdict, judgement.holds) == (verdict, holds)
    assert outcome.holds is (holds is not False)  # what was seen in part did not fail
    assert outcome.counts.partly == (verdict == "partly seen")
    if holds is None and len(bounds) == 2:
        assert "Not seen: one: at most 0.1" in judgement.prose
        assert "Seen: all: at most 0.3" in judgement.prose


@pytest.mark.parametrize("kind", ["findings", "identities"])
def test_what_we_say_ourselves_holds_entirely_or_not_at_all(kind):
    (judgement,) = judged([("all", 0.3), ("one", 0.1)], kind).judgements
    assert judgement.verdict == "does not hold"
    assert judgement.holds is False


def test_an_identity_is_no_evidence():
    outcome = judged([("all", 0.3)], "identities")
    assert (outcome.counts.identities, outcome.counts.claims, outcome.counts.findings) == (1, 0, 0)
    assert outcome.judgements[0].prose.startswith("Identity, which tests the code")
    assert str(outcome.counts) == "1 identity holds"


def page_of(outcomes, tmp_path):
    for package in ("matplotlib", "jinja2"):
        extras.require(package)
    from lucidae_papers.pages import write_page

    return write_page(outcomes, tmp_path / "page.html", 1.0).read_text("utf-8")


def test_the_page_of_a_refuted_run_says_so(tmp_path):
    text = page_of([outcome(0.7)], tmp_path)
    assert "1 of 2" in text
    assert "Claims of the papers that our runs do not confirm at this scale" in text
    assert "✗ given: The model has a low error." in text
    assert "Not seen here: error of the model: at most 0.5 at epoch 2 (measured 0.7)." in text
    assert "the paper&#39;s claim: not seen" in text or "the paper's claim: not seen" in text
    # The sentence of a claim never stands alone: "The paper says" or a row with its verdict.
    for before in text.split("The model has a low error.")[:-1]:
        assert before.endswith(("The paper says: ", "given: "))


def test_a_value_is_never_measured_inf_or_nan():
    late = outcome(0.2)
    rows = {claim.name: claim for claim in late.claims}
    assert rows["fast before never"].value == 10.0
    assert measured(rows["fast before never"]) == (
        "10 (a lower bound: the second curve did not fall to 0.2)"
    )
    lost = outcome(math.nan)
    assert "measured not finite: a run diverged" in lost.judgements[0].prose
    assert lost.judgements[0].verdict == "not seen"
    curves = {"one": Curve([0], [1.0]), "zero": Curve([0], [0.0])}
    ratio = Outweighs("one", "zero", 2.0, says="one over zero").judge(curves, "nobody")
    assert ratio.advice == "the second quantity is zero"
    for one in (late, lost):
        text = " ".join([*(shown.prose for shown in one.judgements), *map(measured, one.claims)])
        assert "inf" not in text
        assert "nan" not in text


@pytest.mark.parametrize(
    ("expect", "unjudged"),
    [
        ({}, {}),
        ({"a": ()}, {}),
        ({"a": (AtMost("x", 1.0),)}, {"a": "a reason."}),
        ({"a": (AtMost("x", 1.0),), "b": (AtMost("x", 1.0),)}, {}),
    ],
    ids=["forgotten", "no verdict", "both", "unknown"],
)
def test_a_statement_that_is_neither_judged_nor_excused_is_refused(expect, unjudged):
    with pytest.raises(ValueError, match="expected each of"):
        Experiment(
            name="given",
            title="A subject",
            reference="nobody",
            about="Nothing.",
            claims={"a": "A holds."},
            smoke=Scale(Fixed(), expect, unjudged=unjudged),
            paper=Scale(Fixed(), expect, unjudged=unjudged),
        )
