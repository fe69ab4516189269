"""`lucidae fit meg`: its page, what it prints, the files that it writes, and its errors."""

import csv
import io
import re
import sys
from urllib.parse import unquote

import numpy as np
import pytest

from extras import require

require("typer")
require("rich")
require("jinja2")
require("matplotlib")
mne = require("mne")

from evoked_recordings import localised, patch_around, simulated
from lucidae.mne import sparse_vae
from lucidae_app.report.page import Clock
from lucidae_app.report.sources import sources_page

FILES = ("a-ave.fif", "a-fwd.fif", "a-cov.fif")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a folder with an evoked, its forward model and its noise covariance, as files."""
    folder = tmp_path_factory.mktemp("recording")
    recording = simulated("grid", sources=(5, 21))
    mne.write_evokeds(folder / FILES[0], recording.evoked, verbose="ERROR")
    mne.write_forward_solution(folder / FILES[1], recording.forward, verbose="ERROR")
    mne.write_cov(folder / FILES[2], recording.cov, verbose="ERROR")
    other = recording.evoked.copy()
    other.comment = "other"
    mne.write_evokeds(folder / "two-ave.fif", [recording.evoked, other], verbose="ERROR")
    (folder / "words-ave.fif").write_text("no recording")
    (folder / "empty-fwd.fif").write_text("")
    return folder


@pytest.fixture
def run(call_main, written, tmp_path, monkeypatch):
    """Return a function that runs ``lucidae fit meg`` in an empty folder with the three files."""
    monkeypatch.chdir(tmp_path)

    def call(*options, files=FILES):
        return call_main("fit", "meg", *(written / name for name in files), *options)

    return call


def read(written, name=FILES[0]):
    evoked = mne.read_evokeds(written / name, condition=0, verbose="ERROR")
    forward = mne.read_forward_solution(written / FILES[1], verbose="ERROR")
    cov = mne.read_cov(written / FILES[2], verbose="ERROR")
    cov["data"] = np.array(cov["data"], dtype=float)  # MNE does not take its byte order
    return evoked, forward, cov


def test_page_and_source_estimate_are_those_of_the_function(run, written, tmp_path):
    code, out, err = run("--stc", "estimates/mine")
    assert (code, err) == (0, "")
    expected = sparse_vae(*read(written), return_result=True, verbose="ERROR")
    assert sorted(expected.sources) == [5, 21]
    assert "Sources: 2;" in out
    assert "✓ stationarity" in out
    page = (tmp_path / "a-ave-sources.html").read_text(encoding="utf-8")
    assert "Sources of a-ave.fif, simulated" in page
    assert page.count("<svg") == 2
    for entry in expected.to_dict()["sources"]:
        place = ", ".join(f"{1e3 * value:.1f}" for value in entry["position"])
        assert f"<td>{place}</td>" in page
        assert f"<td>{entry['name']}</td>" in page
        amplitude = f"{1e9 * entry['amplitude']:.3g} nA·m"
        assert f": {entry['name']}, ({place}) mm, {amplitude}" in out
    assert expected.names == ["vertex 124", "vertex 74"]
    assert "norm of its three components" in page
    for name, source in (("74", "5"), ("124", "21")):
        rows = [row for row in table_of(page, "sources.csv") if row["source"] == source]
        assert [(row["name"], row["size"]) for row in rows] == [(f"vertex {name}", "1")]
    stc = mne.read_source_estimate(tmp_path / "estimates" / "mine-vl.stc")
    np.testing.assert_allclose(stc.data, expected.stc.data, rtol=1e-5)
    assert sorted(re.findall(r"Written: (.*)", out)) == sorted(
        map(str, (tmp_path / "a-ave-sources.html", tmp_path / "estimates" / "mine-vl.stc"))
    )


def table_of(page, name):
    """Return the rows of a table that a page contains as a file to download."""
    (link,) = re.findall(rf'download="{name}" href="data:text/csv;charset=utf-8,([^"]*)"', page)
    return list(csv.DictReader(io.StringIO(unquote(link))))


def test_a_patch_is_one_line_of_the_page():
    recording = simulated("surface", "mag", sources=(), noise=0.0, fixed=True)
    patch = patch_around(7, 2)
    rng = np.random.default_rng(0)
    field = recording.field[:, patch].sum(axis=1)
    noise = np.sqrt(recording.cov.data)[:, None] * rng.standard_normal((field.size, 12))
    recording.evoked.data[:] = np.outer(field, 30e-9 * rng.standard_normal(12)) + noise
    result = localised(recording, loose=0.0, patches=[2])
    page = sources_page(result, name="patch", clock=Clock(), with_path=False)
    assert page.count("<td>patch of 16 at lh 7</td>") == 2  # table of the page, and of the figure
    assert "<td>lh " not in page
    (row,) = table_of(page, "sources.csv")
    assert (row["name"], row["size"], row["source"]) == ("patch of 16 at lh 7", "16", "7")
    assert "three components" not in page  # the orientation is fixed
    assert "its share is that of the whole patch" in page


def mixed_files(folder):
    """Write a recording with a mixed source space, and return the names of its files."""
    recording = simulated("mixed", "both", sources=(5, 100), noise=0.5)
    names = [f"mixed-{kind}.fif" for kind in ("ave", "fwd", "cov")]
    mne.write_evokeds(folder / names[0], recording.evoked, overwrite=True, verbose="ERROR")
    mne.write_forward_solution(folder / names[1], recording.forward, True, verbose="ERROR")
    mne.write_cov(folder / names[2], recording.cov, overwrite=True, verbose="ERROR")
    return names


def test_missing_h5io_is_said_before_a_fit_to_a_mixed_source_space(
    run, written, tmp_path, monkeypatch
):
    files = mixed_files(written)
    calls = []
    monkeypatch.setattr("lucidae.mne.sparse_vae", lambda *given, **options: calls.append(given))
    monkeypatch.setattr("lucidae_app.meg.find_spec", lambda name: None)
    code, out, err = run("--stc", "mine", files=files)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "h5io, which is not installed: pip install h5io, or omit --stc." in err
    assert not calls
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("--no-path", files=files)
    assert code == 0
    assert re.search(r"1: (lh 5|space 2 vertex 16), \(", out)


def test_options_reach_the_function(run, written, monkeypatch):
    given = {}

    def recorded(evoked, forward, cov, **options):
        given.update(options, times=evoked.times, comment=evoked.comment)
        raise ValueError("enough")

    monkeypatch.setattr("lucidae.mne.sparse_vae", recorded)
    options = ("--noise-variance", "learn", "--fixed", "--depth", "0", "--debias", "--tmax", "0")
    files = ("two-ave.fif", *FILES[1:])
    assert run(*options, "--condition", "other", files=files)[0] == 2
    assert (given["noise_variance"], given["loose"], given["debias"]) == ("learn", 0.0, True)
    assert given["depth"] is None
    assert given["comment"] == "other"
    assert given["times"][-1] == pytest.approx(0.0, abs=1e-9)
    run("--condition", "0", "--loose", "0.3", "--noise-variance", "2.5", files=files)
    assert (given["comment"], given["loose"], given["noise_variance"]) == ("simulated", 0.3, 2.5)


def test_no_source_is_a_page_with_advice(run, tmp_path):
    code, out, err = run("--noise-variance", "1e9", "--out", "none.html")
    assert code == 0
    assert "No source was found" in err
    assert "Sources: 0;" in out
    assert "No source is significant" in (tmp_path / "none.html").read_text(encoding="utf-8")


ERRORS = {
    "--noise-variance 0": "--noise-variance 0 was given, expected one of cv",
    "--loose 2": "--loose 2 was given, expected a number from 0 to 1, or auto.",
    "--loose 0.2 --fixed": "--fixed and --loose 0.2 were given: omit one of them.",
    "--condition left": "but a-ave.fif has the evoked responses 'simulated'",
    "--tmin 5 --tmax 6": "--tmin 5 --tmax 6 was given, expected times of the evoked",
    "--tmin 5": "--tmin 5 was given, expected times of the evoked response",
}


@pytest.mark.parametrize("options", ERRORS)
def test_wrong_option_is_one_sentence_and_leaves_no_file(run, tmp_path, options):
    code, out, err = run(*options.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert ERRORS[options] in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (("none-ave.fif", *FILES[1:]), "There is no file"),
        (
            ("words-ave.fif", *FILES[1:]),
            "words-ave.fif' could not be read as a file of evoked responses, expected a FIF file",
        ),
        ((FILES[0], "empty-fwd.fif", FILES[2]), "a forward solution, expected a FIF file"),
        ((*FILES[:2], "empty-fwd.fif"), "a noise covariance, expected a FIF file"),
        ((FILES[0], FILES[2], FILES[2]), "could not be read as a forward solution"),
        ((*FILES[:2], FILES[0]), "could not be read as a noise covariance"),
        (("two-ave.fif", *FILES[1:]), "choose one with --condition: 'simulated', 'other'."),
    ],
)
def test_wrong_file_is_one_sentence(run, tmp_path, files, message):
    code, out, err = run(files=files)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not list(tmp_path.iterdir())


def test_files_that_are_no_results_are_kept(run, tmp_path):
    (tmp_path / "a-ave-sources.html").write_text("mine")
    assert "is not a report of lucidae" in run()[2]
    (tmp_path / "x-vl.stc").write_text("mine")
    code, _, err = run("--out", "new.html", "--stc", "x")
    assert (code, err.count("\n")) == (2, 1)
    assert "'x-vl.stc' exists: give another prefix with --stc" in err
    assert (tmp_path / "x-vl.stc").read_text() == "mine"
    assert run("--force", "--stc", "x")[0] == 0
    assert (tmp_path / "x-vl.stc").stat().st_size > 100


def test_a_folder_as_page_is_refused_before_the_fit(run, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("lucidae.mne.sparse_vae", lambda *given, **options: calls.append(given))
    (tmp_path / "pages").mkdir()
    for options in ((), ("--force",)):
        code, out, err = run("--out", "pages/", *options)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "'pages' is a folder, expected the path of a file" in err
    assert not calls


def test_without_mne_the_command_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "mne", None)
    code, _, err = run()
    assert code == 2
    assert err == (
        'This command needs MNE, which is not installed: pip install "lucidae[cli,mne]", '
        'or in a clone of lucidae pip install ".[cli,mne]"\n'
    )


def test_the_path_of_noise_variances_can_be_left_out(run, tmp_path, monkeypatch):
    def refused(*_, **__):
        raise AssertionError("the path was computed")

    monkeypatch.setattr("lucidae.mne.result.SourceResult.noise_path", refused)
    code, _, err = run("--no-path")
    assert (code, err) == (0, "")
    page = (tmp_path / "a-ave-sources.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    assert "noise variances" not in page.split("three projections")[1].split("</figcaption>")[0]
