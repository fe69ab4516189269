"""The computing parts of the benchmark of source localisation, and a run of a few seconds."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

import extras

mne = extras.require("mne")
extras.require("matplotlib")

from benchmarks import _meg_calls, _meg_energies, _meg_heads, _meg_runs, meg
from benchmarks._meg_runs import CELLS, Cell, Estimate, figures, matched, time_courses

import lucidae.mne as mne_module

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "meg.md"
TRUTH = np.array([[0.0, 0.0, 0.0], [0.04, 0.0, 0.0]])
COURSES = np.array([[3.0, 4.0], [1.0, 0.0]])


def judged(found, estimated=None, strengths=None):
    found = np.reshape(found, (-1, 3))
    estimated = np.zeros((len(found), 2)) if estimated is None else np.array(estimated)
    strengths = np.arange(len(found), 0.0, -1.0) if strengths is None else np.array(strengths)
    return figures(TRUTH, COURSES, found, estimated, strengths)


def test_exact_sources_have_no_errors():
    assert judged(TRUTH[::-1], COURSES[::-1]) == {
        "localisation": 0.0, "f1": 1.0, "spurious": 0.0, "amplitude": 0.0, "found": 2.0,
    }  # fmt: skip


def test_pairs_are_as_many_and_as_near_as_possible():
    # The nearest pair alone would leave the second source without a partner.
    rows, columns, distances = matched(TRUTH, np.array([[0.012, 0, 0], [-0.014, 0, 0]]), 0.03)
    assert (rows.tolist(), columns.tolist()) == ([0, 1], [1, 0])
    assert_allclose(distances, [0.014, 0.028])


def test_only_the_strongest_sources_are_localised_and_missing_ones_count_fifty_millimetres():
    none = judged(np.zeros((0, 3)))
    assert (none["localisation"], none["f1"], none["amplitude"]) == (50.0, 0.0, 1.0)
    one = judged([TRUTH[0], [0.0, 0.2, 0.0], [0.0, 0.0, 0.01]], strengths=[3.0, 2.0, 1.0])
    assert one["localisation"] == 25.0
    assert (one["f1"], one["spurious"]) == (0.4, 2.0)  # a source explains one source only


def test_amplitude_error_is_relative_and_one_for_missing_sources():
    assert_allclose(judged([TRUTH[0]], [[3.0, 3.0]])["amplitude"], (0.2 + 1.0) / 2)
    assert np.isnan(judged([TRUTH[0]], [[np.nan, np.nan]])["amplitude"])


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.99])
def test_time_courses_have_the_asked_correlation(correlation):
    rows = time_courses(4, correlation, np.random.default_rng(0))
    expected = np.full((4, 4), correlation)
    np.fill_diagonal(expected, 1.0)
    assert_allclose(rows @ rows.T, expected, atol=1e-12)


@pytest.fixture(scope="module")
def lead_field(tmp_path_factory):
    """Return a file with the lead field of a few sources in a spherical head."""
    head = _meg_heads.spherical("mag", _meg_heads.grid(0.035))
    forward = head.forward
    path = tmp_path_factory.mktemp("leadfield") / "mine.npz"
    np.savez(path, gain=forward["sol"]["data"], positions=forward["source_rr"])
    return path


def test_recordings_have_the_asked_ratio_of_signal_and_noise(lead_field):
    quiet = Cell("x", "x", model=str(lead_field), sources=2, snr=60.0)
    recording = _meg_runs.simulate(quiet, 0, "")
    scale = np.sqrt(np.diag(recording.noise_cov.data))
    power = np.mean((recording.evoked.data / scale[:, None]) ** 2)
    assert_allclose(10.0 * np.log10(power), 60.0, atol=1e-3)
    distance = np.linalg.norm(np.diff(recording.positions, axis=0))
    assert distance >= _meg_runs.APART
    again = _meg_runs.simulate(quiet, 0, "")
    assert np.array_equal(recording.evoked.data, again.evoked.data)


@pytest.mark.parametrize("kind", ["in space", "in time"])
def test_noise_has_the_asked_covariance(kind):
    rng = np.random.default_rng(0)
    gain, scale = rng.standard_normal((5, 300)), np.arange(1.0, 6.0)
    covariance = _meg_runs.noise_covariance(kind, gain, scale, rng)
    samples = _meg_runs.noise_samples(kind, np.linalg.cholesky(covariance), rng, 60_000)
    spread = np.outer(scale, scale)
    assert_allclose(samples @ samples.T / 60_000 / spread, covariance / spread, atol=0.05)
    memory = np.mean(samples[:, 1:] * samples[:, :-1], axis=1) / np.diag(covariance)
    assert_allclose(memory, 0.8 if kind == "in time" else 0.0, atol=0.03)


def test_negligible_sources_are_left_out_for_all_methods(lead_field):
    cell = Cell("x", "x", model=str(lead_field), sources=1)
    recording = _meg_runs.simulate(cell, 0, "")
    near = np.linalg.norm(recording.forward["source_rr"] - recording.positions[0], axis=1)
    order = np.argsort(near)[[0, -1]]
    magnitudes = np.concatenate([recording.magnitudes, 1e-4 * recording.magnitudes])
    result = _meg_runs.judged(recording, Estimate(order, magnitudes))
    assert (result["f1"], result["found"], result["returned"]) == (1.0, 1.0, 2.0)


def test_run_on_a_lead_field_is_stored_and_resumed(lead_field, tmp_path, monkeypatch, capsys):
    words = [
        "--leadfield", str(lead_field), "--only", "1 source", "--seeds", "2", "--folder",
        str(tmp_path), "--methods", "lucidae", "dSPM", "--json", str(tmp_path / "all.json"),
    ]  # fmt: skip
    assert meg.main(words) == 0
    table = capsys.readouterr().out
    assert "| 1 source | 1.00 ± 0.00 |" in table
    assert len(list((tmp_path / "runs").iterdir())) == 4

    def never(*_):
        raise AssertionError("stored results are used")

    monkeypatch.setattr(_meg_runs, "measured", never)
    assert meg.main(words) == 0
    assert capsys.readouterr().out == table
    results = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))
    assert [result["seed"] for result in results] == [0, 0, 1, 1]
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- meg -->\n<!-- end of meg -->\n", encoding="utf-8")
    read = ["--read", str(tmp_path / "all.json"), "--write", str(page)]
    assert meg.main([*read, "--plots", str(tmp_path)]) == 0
    assert "| 1 source | 1.00" in page.read_text(encoding="utf-8")
    assert (tmp_path / "meg-factors.png").stat().st_size > 1000
    assert (tmp_path / "meg-cells.png").stat().st_size > 1000


def test_energies_of_gamma_map_are_those_of_its_prior_variances(lead_field, tmp_path, capsys):
    rng = np.random.default_rng(0)
    gain, samples = rng.standard_normal((8, 6)), rng.standard_normal((8, 5))
    variances = np.repeat([0.7, 0.0], 3)
    covariance = (gain * variances) @ gain.T + 0.5 * np.eye(8)
    amplitudes = (variances[:, None] * gain.T) @ np.linalg.solve(covariance, samples)
    active = np.arange(3)
    found = _meg_energies.variances_of(gain, samples, amplitudes[active], active, 0.5, 3)
    assert_allclose(found, variances, atol=1e-12)
    fit = np.trace(np.linalg.solve(covariance, samples @ samples.T)) / 5
    expected = fit + np.linalg.slogdet(covariance)[1]
    assert_allclose(_meg_energies.energy(gain, samples, variances, 0.5), expected)
    page = tmp_path / "page.md"
    page.write_text("<!-- meg energies -->\n<!-- end of meg energies -->\n", encoding="utf-8")
    words = ["--energies", "--leadfield", str(lead_field), "--only", "base", "--seeds", "1"]
    assert meg.main([*words, "--write", str(page)]) == 0
    assert "| base | +" in page.read_text(encoding="utf-8")  # never below ours
    assert "Medians over 1 recordings" in capsys.readouterr().out


def test_failed_runs_are_results_and_late_ones_are_left_out(tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("no convergence")

    monkeypatch.setattr(_meg_runs, "measured", broken)
    result = _meg_runs.run(str(tmp_path), CELLS[0], 0, "dSPM", np.inf)
    assert result["error"] == "RuntimeError: no convergence"
    assert _meg_runs.run(str(tmp_path), CELLS[0], 1, "dSPM", 0.0) is None
    assert _meg_runs.run(str(tmp_path), CELLS[0], 0, "dSPM", 0.0) == result
    assert "1 runs ended with an error" in meg.summary({}, [result])


def test_a_peer_is_better_beyond_two_standard_errors_of_the_difference():
    def runs(*scores):
        return {s: {"f1": f, "localisation": 0.0, "seconds": 1.0} for s, f in enumerate(scores)}

    ours, theirs = runs(0.5, 0.6, 0.5, 0.6), runs(0.7, 0.7, 0.7, 0.7)
    assert meg.is_better(ours, theirs, "f1")
    assert not meg.is_better(theirs, ours, "f1")
    assert not meg.is_better(ours, runs(0.5, 0.9, 0.1, 0.9), "f1")
    results = {("base", "lucidae"): ours, ("base", "gamma_map 1"): theirs}
    assert meg.better_peers(results) == ["base: gamma_map 1, F1, by 0.15 ± 0.03"]
    verdict = meg.summary(results, [])
    assert "better than `lucidae` by more than two standard errors in 1 of 1 cells" in verdict
    assert "* base: gamma_map 1, F1, by 0.15 ± 0.03." in verdict


def test_times_of_gamma_map_are_compared_at_free_orientation_with_three_choices_of_alpha():
    def theirs(best, one):
        seconds = {0.3: best, 1.0: one, 3.0: 1.0, 10.0: 2.0}
        trials = [{"setting": [alpha, 1], "seconds": each} for alpha, each in seconds.items()]
        return {"seconds": best, "tried": trials}

    ours = {seed: {"seconds": 0.5, "preparation": 0.25} for seed in range(3)}
    peers = {0: theirs(4.0, 6.0), 1: theirs(5.0, 7.0), 2: {}, 9: theirs(1.0, 1.0)}
    results = {
        (cell, name): runs
        for cell in ("base", "surface, fixed orientation")
        for name, runs in (("lucidae", ours), ("gamma_map 1", peers))
    }
    # Medians of 8 and 10, of 12 and 14, of 26 and 30; the seeds 2 and 9 have no pair of times.
    assert meg.ratio(results, "base", "gamma_map 1", meg.BEST) == 9.0
    assert meg.ratio(results, "base", "gamma_map 1", 1.0) == 13.0
    assert meg.ratio(results, "base", "gamma_map 1", meg.ALL) == 28.0
    assert meg.ratio(results, "base", "gamma_map 1", 1.0, "preparation") == 26.0
    assert np.isnan(meg.ratio(results, "base", "gamma_map 1", 2.0))
    assert np.isnan(meg.ratio(results, "base", "gamma_map 2", meg.ALL))
    shown = meg.speed(results)
    row = "9 | 13 | 28 | 26 |"
    assert f"| base | {row}\n| median of the cells | {row}" in shown
    assert "surface, fixed orientation" not in shown
    assert "gamma_map 1, best α: 0 of 1 cells, median 9" in shown
    assert "gamma_map 1, α = 1: 1 of 1 cells, median 13" in shown
    assert "gamma_map 1, all α: 1 of 1 cells, median 28" in shown
    assert "gamma_map 2" not in shown  # it was not run
    assert meg.speed({}) == "gamma_map was not run at free orientation."
    assert "Seeds of each cell: 3 to 4" in meg.counted(results)


def test_the_fastest_of_equally_good_settings_is_the_best_one():
    def found(f1, localisation, seconds):
        return {"f1": f1, "localisation": localisation, "seconds": seconds}

    good, fast = found(1.0, 0.0, 2.0), found(1.0, 1e-9, 0.2)
    assert max(good, fast, key=_meg_runs.merit) is fast
    assert max(fast, found(1.0, 1.0, 0.1), key=_meg_runs.merit) is fast
    assert max(fast, found(0.8, 0.0, 0.1), key=_meg_runs.merit) is fast


def test_all_settings_of_a_method_are_kept_and_the_best_one_is_the_result(lead_field):
    cell = Cell("x", "x", model=str(lead_field), sources=1)
    result = _meg_runs.measured(cell, 0, "gamma_map 1", "")
    assert [one["setting"][0] for one in result["tried"]] == list(_meg_runs.ALPHAS)
    best = next(one for one in result["tried"] if one["setting"] == result["setting"])
    assert all(best[key] == result[key] for key in ("f1", "localisation", "seconds"))
    assert result["f1"] == max(one["f1"] for one in result["tried"])
    equal = [
        one for one in result["tried"] if _meg_runs.merit(one)[:2] == _meg_runs.merit(best)[:2]
    ]
    assert best["seconds"] == min(one["seconds"] for one in equal)


def test_single_calls_are_compared_in_turn(lead_field, tmp_path, capsys, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("<!-- meg calls -->\n<!-- end of meg calls -->\n", encoding="utf-8")
    order = []
    monkeypatch.setattr(_meg_calls, "ENOUGH", np.inf)
    originals = _meg_calls.gamma_map, mne_module.sparse_vae
    monkeypatch.setattr(
        _meg_calls, "gamma_map", lambda *a: order.append("peer") or originals[0](*a)
    )
    monkeypatch.setattr(
        mne_module, "sparse_vae", lambda *a, **k: order.append("own") or originals[1](*a, **k)
    )
    words = ["--calls", "--leadfield", str(lead_field), "--only", "1 source", "--seeds", "1"]
    assert meg.main([*words, "--folder", str(tmp_path), "--write", str(page)]) == 0
    assert order == ["own", *(5 * ["own"] + ["peer"]) * 5]  # the first call is not counted
    assert "| 1 source | " in page.read_text(encoding="utf-8")
    assert "of 1 cells" in capsys.readouterr().out
    fixed = [cell for cell in CELLS if cell.loose == 0.0]
    assert _meg_calls.calls(fixed, 1, str(tmp_path)) == "No cell has free orientation."
    with pytest.raises(SystemExit):
        meg.parsed(["--calls", "--energies"])


def test_cells_change_one_factor_of_the_base():
    base = CELLS[0]
    for cell in CELLS[1:]:
        changed = [
            name
            for name in ("sources", "correlation", "snr", "noise", "loose")
            if getattr(cell, name) != getattr(base, name)
        ]
        assert len(changed) <= 1
        assert changed or cell.model != base.model or cell.truth
        assert {cell.model, cell.truth or cell.model} <= set(_meg_heads.HEADS)
    assert len({cell.name for cell in CELLS}) == len(CELLS)


def test_the_page_has_the_section_that_the_benchmark_writes(tmp_path):
    copy = tmp_path / "meg.md"
    copy.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    meg.write_section(copy, "meg", "a new table")
    assert "<!-- meg -->\na new table\n<!-- end of meg -->" in copy.read_text("utf-8")
