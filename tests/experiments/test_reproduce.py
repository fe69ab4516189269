import csv
import json
import subprocess
import sys

import pytest

import extras
from lucidae.experiments.__main__ import main
from lucidae.experiments.catalogue import NAMES
from lucidae.experiments.reproduce import reproduce


@pytest.fixture
def claimed(toy, tmp_path, monkeypatch):
    """Put a toy experiment with a claim of our choice in the place of all experiments."""

    def put(bound):
        experiment = toy.experiment(tmp_path / "log", bound)
        for place in ("lucidae.experiments.reproduce", "lucidae.experiments.__main__"):
            monkeypatch.setattr(f"{place}.experiments", lambda names=(): [experiment])

    return put


def test_a_true_claim_gives_exit_code_0(claimed, tmp_path, capsys):
    claimed(2.0)
    assert main(["run", "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert "1 of 1 claims of the paper seen; 1 of 1 findings of our own hold; 1 value rep" in out
    assert "✓ the paper's claim, seen: One is small." in out
    assert "– the paper's claim, not judged: Many are large." in out


def test_a_deliberately_wrong_claim_gives_exit_code_1(claimed, tmp_path, capsys):
    claimed(0.5)
    assert main(["run", "--out", str(tmp_path / "out"), "--jobs", "1"]) == 1
    out = capsys.readouterr().out
    assert "0 of 1 claims of the paper seen; 1 of 1 findings of our own hold" in out
    assert "✗ the paper's claim, not seen: One is small." in out
    verdicts = json.loads((tmp_path / "out" / "smoke" / "verdicts.json").read_text())
    assert verdicts["holds"] is False
    (stored,) = verdicts["experiments"]
    kinds = {"small": "not seen", "large": "not judged", "mean": "holds"}
    assert {one["name"]: one["verdict"] for one in stored["statements"]} == kinds
    assert [one["kind"] for one in stored["claims"]] == [
        "the paper's claim",
        "our own finding",
        "reported",
    ]
    claim = stored["claims"][0]
    assert claim["holds"] is False
    assert claim["value"] == 1.0
    assert claim["threshold"] == 0.5


@pytest.mark.parametrize(("bound", "code"), [(2.0, 0), (0.5, 1)])
def test_the_command_line_has_the_same_exit_codes(claimed, tmp_path, capsys, bound, code):
    extras.require("typer")
    extras.require("jinja2")
    from lucidae.cli.app import run

    claimed(bound)
    assert run(["reproduce", "--out", str(tmp_path / "out"), "--jobs", "1"]) == code
    told = capsys.readouterr().out
    assert ("1 of 1 claims of the paper seen" in told) is (code == 0)
    assert ("Not seen here" in told) is (code == 1)
    assert (tmp_path / "out" / "smoke" / "index.html").exists()


def test_a_run_out_of_time_is_not_complete_and_can_go_on(claimed, tmp_path, capsys):
    claimed(2.0)
    out = str(tmp_path / "out")
    assert main(["run", "--out", out, "--jobs", "1", "--seconds", "0"]) == 3
    assert "Not complete: toy" in capsys.readouterr().out
    assert main(["run", "--out", out, "--jobs", "1"]) == 0


def test_cells_can_be_packed_and_taken_in_elsewhere(claimed, toy, tmp_path, capsys):
    claimed(2.0)
    packed = str(tmp_path / "packed.zip")
    assert main(["run", "--out", str(tmp_path / "there"), "--jobs", "1", "--pack", packed]) == 0
    assert main(["run", "--out", str(tmp_path / "here"), "--jobs", "1", "--take", packed]) == 0
    assert "0 runs measured, 4 reused" in capsys.readouterr().out
    assert len((tmp_path / "log").read_text().split()) == 4


def test_numbers_and_settings_lie_beside_the_verdicts(claimed, tmp_path):
    claimed(2.0)
    done = reproduce(out=tmp_path / "out", jobs=1, page=False)
    assert done.holds
    assert done.page is None
    with (tmp_path / "out" / "smoke" / "toy.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["series"] for row in rows} == {"mean", "one"}
    (stored,) = json.loads((tmp_path / "out" / "smoke" / "verdicts.json").read_text())[
        "experiments"
    ]
    assert stored["setting"] == {"cells": "4"}
    assert stored["cells"] == 4
    assert stored["versions"]["numpy"]
    assert stored["machines"]


def test_errors_are_one_sentence_and_exit_code_2(tmp_path, capsys):
    assert main(["run", "nonsense", "--out", str(tmp_path)]) == 2
    assert "no experiment is called 'nonsense'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="scale='huge'"):
        reproduce(scale="huge", out=tmp_path)


BARE = """
import sys
for name in ("matplotlib", "rich", "typer", "jinja2"):
    sys.modules[name] = None
from lucidae.experiments.__main__ import main
from lucidae.experiments.catalogue import NAMES
if __name__ == "__main__":
    sys.exit(main(["run", "sparse-slices", "--jobs", "1", "--out", sys.argv[1]]))
"""


def test_a_machine_without_the_extras_can_do_the_work(tmp_path):
    command = [sys.executable, "-c", BARE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "4 of 4 claims of the paper seen; 1 of 1 findings of our own hold" in done.stdout
    assert (tmp_path / "smoke" / "sparse-slices.csv").exists()


def test_the_list_names_every_experiment_and_what_it_shows(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(NAMES)
    assert all(len(line.split()) > 3 for line in lines)
