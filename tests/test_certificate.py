"""Claims and certificates: verdicts, text, HTML that holds any text, JSON for any reader."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extras import require
from lucidae.certificates import (
    Certificate,
    Claim,
    at_least,
    at_most,
    does_not_apply,
    reported,
)

PAPER = "Bao et al. 2020, Theorem 3"
HOLDS = at_most("gap", "the loss is minimal", PAPER, 1e-9, 1e-6, "Train longer.")
FAILS = at_least("gap to next", "the values differ", PAPER, 0.1, 0.5, "Ask for fewer.")
FIGURE = reported("epochs", "predicted number", PAPER, 1234.5)
ABSENT = does_not_apply("order", "the components are ordered", PAPER, "Two eigenvalues are equal.")


@pytest.mark.parametrize(
    ("make", "value", "threshold", "holds"),
    [
        (at_most, 1.0, 2.0, True),
        (at_most, 2.0, 2.0, True),
        (at_most, 3.0, 2.0, False),
        (at_most, np.nan, 2.0, False),
        (at_most, np.inf, 2.0, False),
        (at_least, 3.0, 2.0, True),
        (at_least, 2.0, 2.0, True),
        (at_least, 1.0, 2.0, False),
        (at_least, np.nan, 2.0, False),
    ],
)
def test_verdicts_follow_the_figure_and_keep_advice_for_failures(make, value, threshold, holds):
    for kind in (float, np.float32, np.asarray):
        claim = make("name", "statement", PAPER, kind(value), kind(threshold), "do this")
        assert claim.holds is holds
        assert claim.advice == ("" if holds else "do this")
        assert type(claim.value) is type(claim.threshold) is float


@pytest.mark.parametrize(
    ("value", "error", "holds"),
    [(1.0, 0.5, True), (1.6, 0.5, None), (2.4, 0.5, None), (2.6, 0.5, False), (np.nan, 0.5, False)],
)
def test_a_figure_within_its_own_error_of_the_threshold_has_no_verdict(value, error, holds):
    upper = at_most("name", "statement", PAPER, value, 2.0, "do this", error=error)
    lower = at_least("name", "statement", PAPER, -value, -2.0, "do this", error=error)
    for claim in (upper, lower):
        assert claim.holds is holds
        assert claim.error == error
        assert ("float64 does not decide" in claim.advice) is (holds is None)


def test_the_evidence_of_a_certificate_travels_as_plain_numbers():
    evidence = {"eigenvalues": np.array([2.0, np.inf]), "rank": np.int64(3)}
    certificate = Certificate("a fit", (HOLDS,), evidence)
    assert json.loads(json.dumps(certificate.to_dict()))["evidence"] == {
        "eigenvalues": [2.0, "inf"],
        "rank": 3,
    }
    assert certificate == Certificate("a fit", (HOLDS,))


def test_scalars_of_other_libraries_become_plain_python():
    torch = require("torch")
    claim = at_most("name", "statement", PAPER, torch.tensor(1.0), torch.tensor(2.0))
    assert claim.holds is True
    assert type(claim.value) is float
    by_hand = Claim("name", "statement", PAPER, np.float32(3), None, np.False_)
    assert by_hand.holds is False
    assert Certificate("fit", (by_hand,)).summary().startswith("fit: the claim fails")


@pytest.mark.parametrize(
    ("claims", "holds", "headline"),
    [
        ((), None, "no claim applies"),
        ((ABSENT, FIGURE), None, "no claim applies"),
        ((HOLDS, ABSENT), True, "the claim holds"),
        ((HOLDS, HOLDS, FIGURE), True, "both claims hold"),
        ((HOLDS, FAILS, ABSENT), False, "1 of 2 claims fails"),
        ((FAILS, FAILS), False, "2 of 2 claims fail"),
    ],
)
def test_a_certificate_holds_when_every_claim_that_applies_does(claims, holds, headline):
    certificate = Certificate("fit", claims)
    assert certificate.holds is holds
    assert certificate.summary().splitlines()[0] == f"fit: {headline}"
    assert len(certificate) == len(claims)
    assert tuple(certificate) == claims


def test_the_first_line_says_what_is_certified_and_what_is_not():
    claims = [
        replace(HOLDS, headline="global minimum of the loss"),
        replace(FAILS, headline="order of the components"),
        replace(FIGURE, headline="influence: row 137"),
        ABSENT,
    ]
    certificate = Certificate("fit", tuple(claims))
    line = certificate.summary().splitlines()[0]
    assert line == (
        "fit: 1 of 2 claims fails. Global minimum of the loss: yes. "
        "Order of the components: no. Influence: row 137."
    )
    assert line in certificate._repr_html_()
    assert certificate.to_dict()["claims"][2]["headline"] == "influence: row 137"


def test_claims_are_found_by_name():
    certificate = Certificate("fit", (HOLDS, ABSENT))
    assert certificate["order"] is ABSENT
    assert "gap" in certificate
    assert "other" not in certificate
    with pytest.raises(KeyError, match="of this certificate are: gap, order"):
        certificate["other"]


def test_the_text_is_a_table_with_figures_references_and_reasons():
    text = str(Certificate("fit", (HOLDS, FAILS, FIGURE, ABSENT)))
    assert text == "\n".join(
        [
            "fit: 1 of 2 claims fails",
            f"✓ gap          1e-09 < 1e-06  the loss is minimal [{PAPER}]",
            f"✗ gap to next  0.1 < 0.5      the values differ [{PAPER}]",
            "               Ask for fewer.",
            f"– epochs       1.23e+03       predicted number [{PAPER}]",
            f"– order                       the components are ordered [{PAPER}]",
            "               Two eigenvalues are equal.",
            (
                "(✓ holds, ✗ fails, – not judged: a value that is only reported, or a claim "
                "that does not apply)"
            ),
        ]
    )


numbers = st.none() | st.floats() | st.floats(width=32).map(np.float32) | st.integers().map(float)


@given(st.lists(st.tuples(numbers, numbers, st.sampled_from([True, False, None, np.True_]))))
def test_the_dictionary_survives_json(figures):
    claims = tuple(Claim("a", "b", PAPER, *figure) for figure in figures)
    certificate = Certificate("fit", claims)
    written = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    assert written == certificate.to_dict()
    assert written["holds"] == certificate.holds
    for claim, entry in zip(claims, written["claims"], strict=True):
        back = Claim(**entry)
        assert back.holds == claim.holds
        np.testing.assert_equal((back.value, back.threshold), (claim.value, claim.threshold))
