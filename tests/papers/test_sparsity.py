"""Experiments on sparse codes: methods by their definitions, and claims that wrong ones fail."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import MultiTaskLasso

from lucidae.datasets import make_array_snapshots, make_sparse_regression
from lucidae.sparsity import solve_batch
from lucidae_papers.sparsity import recovery, slices
from lucidae_papers.sparsity.arrays import (
    EXPERIMENT,
    SPECTRA,
    ArrayStudy,
    lasso_strength,
    measure,
    resolved,
)
from lucidae_papers.sparsity.recovery import Recovery, group_lasso
from lucidae_papers.sparsity.slices import ENERGIES, EXPECT, Slices
from papers.judging import measured, verdicts

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

    from lucidae_papers.drawings import plots

    outcome = SimpleNamespace(
        setting=SMALL, curves=SMALL.curves(results), results=results, experiment=EXPERIMENT
    )
    (plot,) = plots(outcome)
    assert {name.partition("/")[2] for name in plot.numbers["series"]} == set(SPECTRA)


LIMITS = {"tol": 1e-6, "max_iter": 600}


def stack(*sizes, snr_db=None):
    drawn = [
        make_sparse_regression(
            20, 40, r, 8, 3, row_scaling="jeffreys", snr_db=snr_db, random_state=seed
        )
        for r in sizes
        for seed in range(4)
    ]
    noise = np.array([data.noise_variance or 1e-10 for data in drawn])
    return (
        np.stack([data.dictionary for data in drawn]),
        np.stack([data.responses for data in drawn]),
        noise,
    )


def solved(Phi, X, noise, solver):
    return solve_batch(Phi, X, noise_variance=noise, solver=solver, **LIMITS)


def test_the_lower_minimum_is_kept_and_sparse_answers_are_not_solved_twice():
    problems = stack(4, 17)
    found = recovery.full(*problems, **LIMITS)
    quick, slow = (solved(*problems, solver) for solver in ("mm", "em"))
    twice = found.n_iter != quick.n_iter
    assert not twice[:4].any(), "four of twenty rows: MM's answer is sparse"
    assert twice[4:].any(), "seventeen of twenty rows: MM's answer is not"
    lower = np.minimum(quick.value.energy, slow.value.energy)
    expected = np.where(twice, lower, quick.value.energy)
    assert_allclose(found.value.energy, expected, rtol=1e-9)
    assert (found.value.energy < quick.value.energy - 1.0).any(), "a case in which EM is better"
    for problem in range(8):
        chosen = quick if found.value.energy[problem] == quick.value.energy[problem] else slow
        assert_allclose(found.value.coef[problem], chosen.value.coef[problem], atol=1e-6)
        assert found.status[problem] is chosen.status[problem]


def test_noisy_problems_are_solved_once():
    problems = stack(17, snr_db=20.0)
    found = recovery.full(*problems, **LIMITS)
    assert_array_equal(found.n_iter, solved(*problems, "mm").n_iter)


EXACT = Recovery((3, 9), 2, d=12, kappa=24, n=6)
NOISY = Recovery((3, 9), 2, d=12, kappa=24, n=6, snr_db=20.0, criterion="support", tol=1e-4)


def test_the_batched_group_lasso_is_scikit_learns():
    (cell,) = Recovery((4,), 3, d=15, kappa=25, n=6, snr_db=20.0).cells()[-1:]
    stack = recovery._stack([cell.settings["problem"]], "cpu")
    found = group_lasso(stack.dictionary, stack.responses, stack.noise, tol=1e-10, max_iter=5000)
    for place, noise in enumerate(stack.noise):
        alpha = np.sqrt(noise) / stack.dictionary.shape[1]  # their data term is ‖·‖²/(2d)
        lasso = MultiTaskLasso(alpha=alpha, fit_intercept=False, tol=1e-12, max_iter=100_000)
        lasso.fit(stack.dictionary[place], stack.responses[place])
        np.testing.assert_allclose(found.value.coef[place], lasso.coef_, atol=1e-5)


@pytest.mark.parametrize("setting", [EXACT, NOISY], ids=["exact", "noisy"])
def test_cells_measured_together_are_cells_measured_alone(setting):
    group = [cell.settings for cell in setting.cells()]
    together = recovery.measure(group, "cpu")
    alone = [recovery.measure([settings], "cpu")[0] for settings in group]
    for one, other in zip(together, alone, strict=True):
        for name in ("rows", "frobenius", "support"):
            assert np.array_equal(one[name], other[name])


def test_every_method_sees_the_same_problems():
    first, *others = [
        cell.settings["problem"] for cell in EXACT.cells() if cell.settings["problem"]["r"] == 3
    ]
    assert all(problem == first for problem in others)
    assert len(others) == 3


SETTING = Slices(2)


def test_the_claims_hold():
    assert all(verdicts(SETTING, EXPECT).values())


def test_the_measured_energies_are_those_of_the_paper_up_to_a_constant():
    settings = SETTING.cells()[0].settings
    (found,) = slices.measure_slice([settings], "cpu")
    weight, inner = found["weight"], settings["inner"]
    fit = settings["power"] / (weight + inner)  # eqs. 54 and 55 without their logarithms
    assert np.ptp(found["full"] - fit - np.log(weight + inner)) < 1e-12
    assert np.ptp(found["diagonal"] - fit - np.log(weight + settings["outer"])) < 1e-12


@pytest.mark.parametrize(
    ("name", "wrong", "failing"),
    [
        ("full", "diagonal", {"minima/full", "random/full", "distance/full"}),
        ("diagonal", "full", {"minima/diagonal", "several/diagonal"}),
    ],
)
def test_a_wrong_energy_fails(monkeypatch, name, wrong, failing):
    monkeypatch.setitem(ENERGIES, name, ENERGIES[wrong])
    judged = verdicts(SETTING, EXPECT)
    assert {series for series, holds in judged.items() if not holds} == failing
