"""Array processing: the methods by their definitions, and claims that a wrong method fails."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from lucidae.datasets import make_array_snapshots
from lucidae_papers import experiment
from lucidae_papers.sparsity.arrays import (
    EXPERIMENT,
    SPECTRA,
    ArrayStudy,
    lasso_strength,
    measure,
    resolved,
)
from lucidae_papers.sparsity.methods import group_lasso
from papers.judging import flat, measured, verdicts

SMALL = ArrayStudy((-7.5, 20.0), (1, 3), (10.0,), 2)


def draw(seed=0, **settings):
    data = make_array_snapshots(8, 30, angles=61, random_state=seed, **settings)
    return data, (data.dictionary, data.responses, data.noise_variance, 2)


@pytest.fixture(scope="module")
def results():
    return measured(SMALL)


NEED_MORE = {"snapshots/full ≥ snapshots/group lasso", "in phase/group lasso ≥ in phase/full"}
"""Claims on differences that two problems do not show."""


def test_the_claims_hold_on_a_few_problems(results):
    claims = verdicts(SMALL, EXPERIMENT.at("smoke").expect, results)
    assert {name for name, holds in claims.items() if not holds} <= NEED_MORE


def test_exchanged_methods_fail(monkeypatch):
    wrong = {**SPECTRA, "full": SPECTRA["beamforming"], "beamforming": SPECTRA["full"]}
    for name, spectrum in wrong.items():
        monkeypatch.setitem(SPECTRA, name, spectrum)
    failed = {
        name
        for name, holds in verdicts(SMALL, EXPERIMENT.at("smoke").expect).items()
        if holds is False
    }
    assert {"ratio/beamforming", "coherent/full", "ratio/full ≥ ratio/beamforming"} <= failed


def test_music_is_infinite_at_the_sources_without_noise():
    data, (A, X, _, _) = draw(1, snr_db=None, source_angles=[-12.0, 9.0])
    spectrum = SPECTRA["music"](A, X, 0.0, 2)
    assert set(np.argsort(-spectrum)[:2]) == set(data.support)
    assert np.sort(spectrum)[-3] < 1e-3 * np.sort(spectrum)[-2]


def test_beamforming_is_the_power_of_a_matched_filter():
    _, given = draw(2)
    A, X = given[:2]
    weights = A[:, 17] / 8  # passes the direction with gain one
    power = np.mean(np.abs(weights.conj() @ X) ** 2)
    assert_allclose(SPECTRA["beamforming"](*given)[17], power)
    lone = make_array_snapshots(8, 20_000, source_angles=[12.0], angles=61, random_state=3)
    found = SPECTRA["beamforming"](lone.dictionary, lone.responses, lone.noise_variance, 1)
    assert_allclose(found.max(), 1.0 + lone.noise_variance / 8, rtol=0.03)


def test_the_group_lasso_satisfies_its_subgradient_conditions():
    # ½‖X − AU‖² + λ Σ‖u‖: the rows of Aᴴ(X − AU) have norm λ where u ≠ 0, parallel to u.
    _, (A, X, noise, _) = draw(4)
    A, strength = A / np.sqrt(8), lasso_strength(noise, 61, 30)
    found = group_lasso(A[None], X[None], np.array([strength**2]), tol=1e-8, max_iter=5000)
    U = found.value.coef[0].T
    slopes = A.conj().T @ (X - A @ U)
    norms = np.linalg.norm(U, axis=1)
    active = norms > 1e-3 * norms.max()
    assert active.any()
    assert (np.linalg.norm(slopes, axis=1) <= strength * (1 + 1e-3)).all()
    expected = strength * U[active] / norms[active, None]
    assert_allclose(slopes[active], expected, atol=2e-2 * strength)


def test_peaks_must_be_the_sources_and_nothing_else():
    angles = np.arange(10.0)
    spectrum = np.array([0, 5, 0, 0, 4, 0, 0, 1, 0, 0.0])
    assert resolved(spectrum, angles, [1.0, 4.0])
    assert not resolved(spectrum, angles, [1.0, 7.0])  # the second highest peak is elsewhere
    assert not resolved(np.where(angles == 1, 1.0, 0.0), angles, [1.0, 4.0])
    assert resolved(spectrum[::-1], angles, [5.0, 8.0])
    assert not resolved(np.zeros(10), angles, [1.0, 4.0])


def test_problems_are_those_that_the_settings_name(results):
    cell = next(cell for cell in SMALL.cells() if cell.settings["panel"] == "in phase")
    assert cell.settings["problem"]["correlation"] == 1.0
    again = measure([cell.settings], "cpu")[0]
    for method in SPECTRA:
        assert again[method].shape == (2,)
        assert again[method].dtype == bool
    assert_allclose(np.diff(again["sources"]), 6.0)
    found = results.one(panel="in phase").arrays
    for method in SPECTRA:
        assert_allclose(found[f"spectrum/{method}"], again[f"spectrum/{method}"], rtol=1e-6)


def test_the_figure_shows_every_method(results):
    pytest.importorskip("matplotlib")
    from types import SimpleNamespace

    from lucidae_papers.drawings import recovery

    outcome = SimpleNamespace(
        setting=SMALL, curves=SMALL.curves(results), results=results, experiment=EXPERIMENT
    )
    (plot,) = recovery.arrays(outcome)
    assert {name.partition("/")[2] for name in plot.numbers["series"]} == set(SPECTRA)


def test_it_is_registered_with_three_kinds_of_verdicts():
    declared = experiment("sparse-arrays")
    assert declared is EXPERIMENT
    assert len({statement.kind for statement in declared.statements.values()}) == 2
    for scale in ("smoke", "paper"):
        assert flat(declared.at(scale).expect)
        assert declared.at(scale).reported
