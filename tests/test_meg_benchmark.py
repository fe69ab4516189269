"""The computing parts of the benchmark of source localisation, and a run of a few seconds."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose

import extras

mne = extras.require("mne")
extras.require("matplotlib")

from benchmarks import _meg_calls, _meg_energies, _meg_heads, _meg_runs, meg
from benchmarks._meg_runs import Cell, figures, matched

import lucidae.mne as mne_module

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


def test_calls_are_compared_with_one_and_all_penalties(lead_field, tmp_path, capsys, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("<!-- meg calls -->\n<!-- end of meg calls -->\n", encoding="utf-8")
    order = []
    originals = _meg_calls.gamma_map, mne_module.sparse_vae
    monkeypatch.setattr(
        _meg_calls, "gamma_map", lambda *a: order.append("peer") or originals[0](*a)
    )
    monkeypatch.setattr(
        mne_module, "sparse_vae", lambda *a, **k: order.append("own") or originals[1](*a, **k)
    )
    words = ["--calls", "--leadfield", str(lead_field), "--only", "1 source", "--seeds", "1"]
    assert meg.main([*words, "--folder", str(tmp_path), "--write", str(page)]) == 0
    assert order == [*4 * ["own"], *4 * ["peer"]]  # the first call is not counted
    assert "| 1 source | " in page.read_text(encoding="utf-8")
    assert "of 1 cells" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        meg.parsed(["--calls", "--energies"])
