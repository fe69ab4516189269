"""`lucidae reproduce` and `reproduce`: exit codes, files, and runs that are continued."""

import csv
import json
import subprocess
import sys

import pytest

import extras
from lucidae_papers import NAMES, Store, experiments, reproduce


@pytest.fixture
def claimed(toy, tmp_path, monkeypatch):
    """Put a toy experiment with a claim of our choice in the place of all experiments."""

    def put(bound):
        experiment = toy.experiment(tmp_path / "log", bound)
        monkeypatch.setattr(
            "lucidae_papers.reproduction.experiments", lambda names=(): [experiment]
        )
        return experiment

    return put


@pytest.fixture
def command(capsys, tmp_path):
    """Return a function from arguments of ``lucidae reproduce`` to (exit code, output, errors)."""
    extras.require("typer")
    extras.require("jinja2")
    from lucidae_app import main

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            main(["reproduce", "--out", str(tmp_path / "out"), "--jobs", "1", *arguments])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return call


def test_a_true_claim_gives_exit_code_0(claimed, command, tmp_path):
    claimed(2.0)
    code, out, _ = command()
    assert code == 0
    assert "1 of 1 claims of the paper seen; 1 of 1 findings of our own hold; 1 value rep" in out
    assert "Not seen here" not in out
    assert (tmp_path / "out" / "smoke" / "index.html").exists()


def test_a_deliberately_wrong_claim_gives_exit_code_1(claimed, command, tmp_path):
    claimed(0.5)
    code, out, _ = command()
    assert code == 1
    assert "0 of 1 claims of the paper seen; 1 of 1 findings of our own hold" in out
    assert "Not seen here" in out
    verdicts = json.loads((tmp_path / "out" / "smoke" / "verdicts.json").read_text())
    assert verdicts["holds"] is False
    (stored,) = verdicts["experiments"]
    kinds = {"small": "not seen", "large": "not judged", "mean": "holds"}
    assert {one["name"]: one["verdict"] for one in stored["statements"]} == kinds
    claims = [(one["kind"], one["holds"]) for one in stored["claims"]]
    assert claims == [("the paper's claim", False), ("our own finding", True), ("reported", None)]
    assert (stored["claims"][0]["value"], stored["claims"][0]["threshold"]) == (1.0, 0.5)


def test_a_run_out_of_time_is_not_complete_and_can_go_on(claimed, command):
    claimed(2.0)
    code, out, _ = command("--seconds", "0")
    assert code == 3
    assert "toy" in out
    assert "not complete: run the same command again" in out
    assert command()[0] == 0


def test_cells_can_be_packed_and_taken_in_elsewhere(claimed, tmp_path):
    experiment = claimed(2.0)
    there, here = Store(tmp_path / "there" / "cells"), Store(tmp_path / "here" / "cells")
    reproduce(out=tmp_path / "there", jobs=1, page=False)
    cells = experiment.at("smoke").setting.cells()
    assert there.pack(tmp_path / "packed.zip", cells) == here.unpack(tmp_path / "packed.zip") == 4
    tally = reproduce(out=tmp_path / "here", jobs=1, page=False).tally
    assert (tally.measured, tally.reused) == (0, 4)
    assert len((tmp_path / "log").read_text().split()) == 4


def test_numbers_and_settings_lie_beside_the_verdicts(claimed, tmp_path):
    claimed(2.0)
    done = reproduce(out=tmp_path / "out", jobs=1, page=False)
    assert done.holds
    assert done.page is None
    with (tmp_path / "out" / "smoke" / "toy.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["series"] for row in rows} == {"mean", "one"}
    verdicts = json.loads((tmp_path / "out" / "smoke" / "verdicts.json").read_text())
    (stored,) = verdicts["experiments"]
    assert stored["setting"] == {"cells": "4"}
    assert stored["cells"] == 4
    assert stored["versions"]["numpy"]
    assert stored["machines"]


def test_errors_are_one_sentence_and_exit_code_2(command, tmp_path):
    code, _, err = command("nonsense")
    assert code == 2
    assert err.startswith("no experiment is called 'nonsense'; expected one of ")
    assert err.count("\n") == 1
    with pytest.raises(ValueError, match="scale='huge'"):
        reproduce(scale="huge", out=tmp_path)


BARE = """
import sys
for name in ("matplotlib", "rich", "typer", "jinja2"):
    sys.modules[name] = None
from lucidae_papers import reproduce
if __name__ == "__main__":
    done = reproduce(["sparse-slices"], jobs=1, out=sys.argv[1], page=False)
    print(done.outcomes[0].counts)
    sys.exit(done.exit_code)
"""


def test_a_machine_without_the_extras_can_do_the_work(tmp_path):
    command = [sys.executable, "-c", BARE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "4 of 4 claims of the paper seen; 1 of 1 findings of our own hold" in done.stdout
    assert (tmp_path / "smoke" / "sparse-slices.csv").exists()


def test_every_experiment_says_what_it_shows():
    assert [one.name for one in experiments(NAMES)] == list(NAMES)
    assert all(len(one.shows.split()) > 3 for one in experiments(NAMES))
