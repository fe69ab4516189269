"""Slices of the energies: the claims hold, and each fails for a wrong implementation."""

import numpy as np
import pytest

from lucidae.sparsity.landscape import diagonal_slice, full_slice
from lucidae.sparsity.objectives import DiagonalCovariance, FullCovariance
from lucidae_papers.sparsity import slices
from lucidae_papers.sparsity.slices import ENERGIES, EXPECT, Slices
from papers.judging import verdicts

SETTING = Slices(2)


def test_the_claims_hold():
    assert all(verdicts(SETTING, EXPECT).values())


def test_the_measured_energies_are_those_of_the_paper_up_to_a_constant():
    settings = SETTING.cells()[0].settings
    (found,) = slices.measure_slice([settings], "cpu")
    weight = found["weight"]
    full = full_slice(weight, settings["power"], settings["inner"])
    diagonal = diagonal_slice(weight, settings["power"], settings["inner"], settings["outer"])
    assert np.ptp(found["full"] - full) < 1e-12
    assert np.ptp(found["diagonal"] - diagonal) < 1e-12


@pytest.mark.parametrize(
    ("name", "wrong", "failing"),
    [
        ("full", DiagonalCovariance(), {"minima/full", "random/full", "distance/full"}),
        ("diagonal", FullCovariance(), {"minima/diagonal", "several/diagonal"}),
    ],
)
def test_a_wrong_energy_fails(monkeypatch, name, wrong, failing):
    monkeypatch.setitem(ENERGIES, name, wrong)
    judged = verdicts(SETTING, EXPECT)
    assert {series for series, holds in judged.items() if not holds} == failing


def test_a_wrong_coordinate_move_fails(monkeypatch):
    right = slices.best_change
    monkeypatch.setattr(slices, "best_change", lambda w, z, q: 0.5 * right(w, z, q))
    assert verdicts(SETTING, EXPECT)["distance/full"] is False


def test_an_autoencoder_without_its_penalty_fails(monkeypatch):
    monkeypatch.setattr(slices, "autoencoder_slice", lambda u, a, gamma: u**2 - 2 * a * u)
    assert verdicts(SETTING, EXPECT)["minima/autoencoder"] is False
