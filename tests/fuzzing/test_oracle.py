"""The fuzzers find what they are for: defects that are planted here."""

import os

import numpy as np
import pytest
from sklearn.base import BaseEstimator

import lucidae
from extras import require
from fuzzing import oracle
from fuzzing.oracle import Case, judged

require("mpmath")
require("pandas")

from fuzzing import metamorphic
from lucidae.certificates import Certificate, at_most


class Fragile(BaseEstimator):
    """An estimator that changes before it fails."""

    def fit(self, X):
        self.n_features_in_ = np.shape(X)[1]
        self.mean_ = np.mean(X, axis=0)
        if np.max(X) > 100.0:
            raise ValueError("the largest entry of X is above 100, expected smaller ones.")
        return self


def planted_overflow(X):
    return np.multiply(X, 1e308) * 1e308


def planted_print(X):
    os.write(2, b" ** On entry to DTRTRS parameter number 7 had an illegal value\n")


def planted_change(X):
    X[0, 0] = 7.0


def planted_claim(X):
    return Certificate("a fit", (at_most("gap", "it is small", "here", np.nan, 1.0),))


PLANTED = {
    "np.linalg.inv(np.zeros((2, 2)))": "LinAlgError",
    "1 / 0": "ZeroDivisionError",
    "[][1]": "IndexError",
    "np.ones(3) + np.ones(4)": "accidental refusal",
    "int('x')": "",
    "(_ for _ in ()).throw(ValueError('no'))": "refusal without a sentence",
    "planted_overflow(X)": "RuntimeWarning",
    "planted_print(X)": "printed on stderr",
    "planted_change(X)": "X changed",
    "np.array([1.0, np.nan])": "result not finite",
    "planted_claim(X)": "claim gap is absurd",
    "Fragile().fit(X * 1000)": "",
    "model.fit(X * 1000)": "mean_ changed by a failed call",
}


@pytest.mark.parametrize(("call", "kind"), PLANTED.items())
def test_the_oracle_sees_a_planted_defect(call, kind, monkeypatch):
    for planted in (planted_overflow, planted_print, planted_change, planted_claim, Fragile):
        monkeypatch.setitem(oracle.NAMES, planted.__name__, planted)
    setup = ("X = np.ones((3, 2))", "model = Fragile().fit(X)")
    kinds = [finding.kind for finding in judged(Case("planted", setup, f"result = {call}"))]
    assert any(kind in found for found in kinds) if kind else not kinds, kinds


@pytest.mark.parametrize(("expected", "kind"), [("refusal", "accepted"), ("success", "")])
def test_the_oracle_knows_what_must_be_refused(expected, kind):
    found = judged(Case("planted", (), "result = np.ones(2)", expected))
    assert [finding.kind for finding in found] == [kind] * bool(kind)


def test_a_call_without_end_is_ended(monkeypatch):
    monkeypatch.setattr(oracle, "PATIENCE", 0.05)
    (finding,) = judged(Case("planted", (), "while True: pass"))
    assert "DoesNotEndError" in finding.kind


@pytest.mark.parametrize("relation", ["rotation", "feature_order", "scale", "translation"])
def test_metamorphic_relations_notice_an_estimator_that_breaks_them(relation, monkeypatch):
    monkeypatch.setattr(
        lucidae.LinearAutoencoder,
        "inverse_transform",
        lambda self, codes: (
            codes @ self.components_ + self.mean_ + 1e-3 * np.arange(len(self.mean_))
        ),
    )
    case = metamorphic.Relation("LinearAutoencoder(2)", relation, 5)
    changed = metamorphic.check(case)
    # Adding a constant commutes with translations alone.
    assert bool(changed) == (relation != "translation")
