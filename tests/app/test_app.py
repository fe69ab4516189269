"""The command line: output, exit codes, and one sentence for every error."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import lucidae
from extras import require
from interpreters import results_of
from lucidae import datasets
from lucidae_app import MISSING, PACKAGES

require("typer")
require("rich")
require("pandas")


@pytest.fixture
def run(call_main, monkeypatch, tmp_path):
    """Return `call_main`, in an empty folder and with an empty cache of data sets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LUCIDAE_DATA", str(tmp_path / "cache"))
    return call_main


def assert_one_sentence(result, *words):
    code, out, err = result
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert "Traceback" not in err
    for word in words:
        assert word in err


def test_version(run):
    assert run("--version") == (0, f"lucidae {lucidae.__version__}\n", "")


def test_without_a_command_the_help_is_shown(run):
    code, out, _ = run()
    assert code == 0
    for command in ("report", "list", "data"):
        assert command in out


def test_list_has_one_entry_a_line_each_with_a_summary_of_its_own(run):
    code, out, _ = run("list")
    lines = out.splitlines()
    assert code == 0
    for name in ("load_digits", "make_sparse_regression", "SparseVAE", "gha", "lae-dynamics"):
        assert sum(name in line.split() for line in lines) == 1
    summaries = [line[37:] for line in lines]
    assert all(summaries)
    assert len(set(summaries)) == len(summaries)


def test_data_where_honours_the_environment(run, tmp_path):
    assert run("data", "where") == (0, f"{tmp_path / 'cache'}\n", "")


def test_data_fetch_takes_files_from_a_folder_and_refuses_wrong_ones(run, tmp_path):
    assert_one_sentence(run("data", "fetch", "mnist", "--path", tmp_path / "nowhere"), "nowhere")


def test_data_fetch_reports_what_was_verified(run, monkeypatch, tmp_path):
    asked = {}

    def fetch(subset, **options):
        asked.update(options, subset=subset)
        return datasets.load_digits()

    monkeypatch.setattr(datasets, "fetch_mnist", fetch)
    code, out, _ = run("data", "fetch")
    assert code == 0
    assert "1797 rows × 64 columns, verified" in out
    assert asked["subset"] == "all"


def test_unknown_data_set_command_and_option_are_one_sentence(run):
    assert_one_sentence(run("data", "fetch", "moon"), "moon", "mnist")
    assert_one_sentence(run("dance"), "dance")
    assert_one_sentence(run("--dance"), "--dance")
    assert_one_sentence(run("repot"), "Did you mean 'report'? See lucidae --help.")
    families = "expected one of linear, dropout, sparse, meg. See lucidae fit --help."
    assert_one_sentence(run("fit"), f"Missing command, {families}")
    assert_one_sentence(run("fit", "my.csv"), f"No such command 'my.csv', {families}")
    assert_one_sentence(run("reproduce", "--scale", "huge"), "'--scale': 'huge' is not one of")


def test_bad_file_is_one_sentence_and_leaves_no_page(run, tmp_path):
    (tmp_path / "words.csv").write_text("a,b\nx,y\n")
    assert_one_sentence(run("report", "words.csv"), "no numeric column")
    assert_one_sentence(run("report", "none.csv"), "There is no file")
    assert_one_sentence(run("report", "."), "'.' is a folder")
    (tmp_path / "years.csv").write_text("2019,2020,2021\n" + "1.5,0.3,2.5\n0.2,7.5,0.1\n" * 3)
    assert_one_sentence(run("report", "years.csv"), "say which by --header or --no-header")
    assert not (tmp_path / "lucidae-report.html").exists()


def test_output_that_cannot_be_written_is_one_sentence(run, tmp_path, short_page):
    (tmp_path / "file").write_text("")
    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=(20, 3)))
    assert_one_sentence(run("report", "a.npy", "--out", tmp_path / "file" / "page.html"), "file")
    if Path("/proc/self").exists():  # a folder in which nobody can write
        assert_one_sentence(run("laboratory", "--out", "/proc/page.html"), "'/proc/page.html'")


def test_unforeseen_error_is_one_sentence_with_its_type(run, monkeypatch):
    def collapse():
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr("lucidae_papers.commands.catalogue", collapse)
    assert_one_sentence(run("list"), "ZeroDivisionError: two lines", "--debug")


def test_debug_shows_the_traceback(run):
    code, _, err = run("--debug", "report", "none.csv")
    assert code == 2
    assert "Traceback" in err
    assert err.splitlines()[-1] == "There is no file 'none.csv': check the path."


def test_interruption_has_its_own_exit_code(run, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr("lucidae_papers.commands.catalogue", interrupt)
    assert run("list") == (130, "", "Interrupted.\n")


ABSENT = {"typer": [], "pandas": [], "matplotlib": ["report"]}

INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in background jobs
import lucidae_app, lucidae_app.app as app
def interrupt(*text, **style):
    os.kill(os.getpid(), signal.SIGINT)
app.errors.print = interrupt  # the second one, while the first is handled
app._sentence = lambda error: "unused"
sys.argv = ["lucidae", "list"]
import lucidae_papers.commands as listing
listing.catalogue = interrupt
lucidae_app.main()
"""


@pytest.fixture(scope="module")
def processes():
    """Return what the command does in new interpreters: interrupted, and without some packages."""
    programs = {
        absent: f"import sys; sys.modules[{absent!r}] = None; "
        f"from lucidae_app import main; main({command})"
        for absent, command in ABSENT.items()
    }
    programs["interrupted"] = INTERRUPTED
    return dict(zip(programs, results_of(programs.values()), strict=True))


def test_a_second_interruption_prints_no_traceback(processes):
    assert processes["interrupted"] == (130, "", "Interrupted.\n")


def test_without_the_extra_one_sentence_says_what_to_install(processes):
    for absent in ABSENT:
        assert processes[absent] == (2, "", MISSING + "\n"), absent


def test_the_packages_of_the_extra_are_those_of_the_project():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    extra = project["project"]["optional-dependencies"]["cli"]
    assert {re.match(r"\w+", line)[0] for line in extra} == set(PACKAGES)


def test_report_standardizes_columns_when_asked(run, tmp_path, short_page):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=(200, 3)) * [1e6, 1, 1])
    run("report", "a.npy", "--out", "raw.html")
    run("report", "a.npy", "--out", "even.html", "--standardize")
    assert "scale the columns" in (tmp_path / "raw.html").read_text(encoding="utf-8")
    assert "scale the columns" not in (tmp_path / "even.html").read_text(encoding="utf-8")


def test_report_never_replaces_its_input_or_a_foreign_file(run, tmp_path, short_page):
    rows = np.random.default_rng(0).normal(size=(20, 3))
    np.savetxt(tmp_path / "my.csv", rows, delimiter=",")
    np.save(tmp_path / "a.npy", rows)
    content = (tmp_path / "my.csv").read_bytes()
    assert_one_sentence(
        run("report", "my.csv", "--out", "my.csv"), "is an input file of this command"
    )
    assert_one_sentence(run("report", "my.csv", "--out", "my.csv", "--force"), "is an input")
    assert_one_sentence(
        run("report", "a.npy", "--out", "my.csv"), "not a report of lucidae", "--force"
    )
    assert (tmp_path / "my.csv").read_bytes() == content
    for _ in range(2):  # an earlier page is replaced
        assert run("report", "a.npy")[0] == 0
    assert run("report", "a.npy", "--out", "my.csv", "--force")[0] == 0
    assert "<!DOCTYPE html>" in (tmp_path / "my.csv").read_text(encoding="utf-8")


def test_report_takes_the_options_of_a_table(run, tmp_path, short_page):
    (tmp_path / "a.csv").write_text("a;2020;2021\nx;1,5;2\ny;3,5;7\nz;4;1\n")
    code, _, err = run("report", "a.csv", "--columns", "2020", "--decimal", ",", "--header")
    assert (code, err) == (0, "a.csv: the first line is the header (a, 2020, 2021).\n")
    page = (tmp_path / "lucidae-report.html").read_text(encoding="utf-8")
    assert "the first line is the header (a, 2020, 2021)" in page
    assert_one_sentence(run("report", "--columns", "a"), "no FILE was given")


INTERRUPTED_IMPORT = """
import os, signal, sys
write = os.write
def write_and_interrupt(file, text):
    write(file, text)
    os.kill(os.getpid(), signal.SIGINT)  # the second one, when the first has printed its line
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
if {times} > 1:
    os.write = write_and_interrupt
import lucidae_app
sys.argv = ["lucidae", "list"]
lucidae_app.main()
"""


@pytest.mark.covering
@pytest.mark.parametrize("name", ["numpy", "lucidae_app.app"])
@pytest.mark.parametrize("times", [1, 2])
def test_interruptions_during_the_import_print_no_traceback(name, times):
    program = [sys.executable, "-c", INTERRUPTED_IMPORT.format(name=name, times=times)]
    result = subprocess.run(program, capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "Interrupted.\n")
