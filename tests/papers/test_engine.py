"""Runs of experiments: stored, continued, in processes and on clusters; the command; devices."""

import contextlib
import csv
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import joblib
import numpy as np
import pytest

from extras import require
from lucidae_papers import Cell, Results, Store, Work, device, reproduce, run


def numbers(store, cells):
    return np.stack([store.load(cell).arrays["values"] for cell in cells])


def test_finished_cells_are_never_measured_again(toy, tmp_path):
    log, store = tmp_path / "log", Store(tmp_path / "cells")
    cells = toy.cells(log)
    first = run(cells, store, jobs=1)
    again = run(cells + cells, store, jobs=1)
    assert (first.measured, first.reused, first.left) == (6, 0, 0)
    assert (again.measured, again.reused, again.left) == (0, 6, 0)
    assert sorted(log.read_text().split()) == [str(seed) for seed in range(6)]


def test_a_work_of_the_main_script_is_refused_by_other_processes():
    def work(group, device):
        return [{} for _ in group]

    work.__module__ = "__main__"
    with pytest.raises(ValueError, match=r"'script\.work/1'.* is defined in the main script"):
        pickle.dumps(Work("script.work/1", work))


def test_groups_give_the_same_numbers(toy, tmp_path):
    require("torch")
    stores = [Store(tmp_path / name) for name in ("turn", "group")]
    cells = toy.cells(tmp_path / "log")
    run(cells, stores[0], jobs=1)
    run(cells, stores[1], device="cpu:0")  # torch's processor: cells that belong together at once
    assert np.array_equal(numbers(stores[1], cells), numbers(stores[0], cells))
    assert stores[1].load(cells[0]).about["device"] == "cpu:0"


def test_the_workers_of_a_dask_cluster_measure_the_cells(toy, tmp_path):
    distributed = require("distributed")
    stores = [Store(tmp_path / name) for name in ("turn", "cluster")]
    cells, log = toy.cells(tmp_path / "log"), tmp_path / "log"
    run(cells, stores[0], jobs=1)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
        joblib.parallel_config("dask"),
    ):
        before = client.run_on_scheduler(_transitions)
        first = run(cells[:4], stores[1])
        assert client.run_on_scheduler(_transitions) > before
        again = run(cells, stores[1])
        assert run(cells, Store(tmp_path / "none"), seconds=0.0).left == 6
    assert (first.measured, again.measured, again.reused) == (4, 2, 4)
    assert np.array_equal(numbers(stores[1], cells), numbers(stores[0], cells))
    assert len(log.read_text().split()) == 12


def _transitions(dask_scheduler):
    return dask_scheduler.transition_counter


SCRIPT = """
import sys, time, toy
from lucidae_papers import Store, run
if __name__ == "__main__":
    log, folder, work = sys.argv[1:]
    run(toy.cells(log, 10, work=getattr(toy, work)), Store(folder), jobs=2)
    time.sleep(600)
"""


def alive(pid):
    """Tell whether a process runs; one that has ended may remain as a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.fixture
def killed_when(toy, tmp_path):
    """Return a function that kills a run in two processes when a condition on its store holds.

    It makes sure that the workers end, too, where the system tells which processes run.
    """

    def kill(work, condition):
        script, log, folder = tmp_path / "script.py", tmp_path / "log", tmp_path / "cells"
        script.write_text(SCRIPT)
        command = [sys.executable, script, log, folder, work]
        process = subprocess.Popen(command, start_new_session=True, env=dict(os.environ))
        cells, store = toy.cells(log, 10, work=getattr(toy, work)), Store(folder)
        try:
            assert wait_until(lambda: condition(store, cells))
            workers = {int(line) for line in toy.workers(log).read_text().split()}
            assert all(map(alive, workers)) or not Path("/proc/self/stat").exists()
            process.kill()
            process.wait()
            assert wait_until(lambda: not any(map(alive, workers))), "a worker outlived its parent"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return cells, store, log

    return kill


def test_a_killed_run_ends_its_workers_and_goes_on_to_the_same_numbers(toy, tmp_path, killed_when):
    # Seeds 0 to 3 are measured; the others wait, so that the run is killed half-way.
    cells, store, log = killed_when("gated", lambda store, cells: store.missing(cells) == cells[4:])
    toy.gate(log).touch()
    tally = run(cells, store, jobs=1)
    assert (tally.measured, tally.reused) == (6, 4)
    assert sorted(log.read_text().split()) == [str(seed) for seed in range(10)]
    whole = Store(tmp_path / "whole")
    run(cells, whole, jobs=1)
    assert np.array_equal(numbers(store, cells), numbers(whole, cells))
    files = [path for path in store.folder.rglob("*.npz") if not path.name.startswith(".")]
    assert len(files) == 10, "half a file was taken for a whole one"


@pytest.mark.slow
def test_idle_workers_end_with_a_killed_parent(killed_when):
    killed_when("measure", lambda store, cells: not store.missing(cells))


def test_exact_settings_versions_and_seconds_are_stored(toy, tmp_path):
    store, cells = Store(tmp_path / "cells"), toy.cells(tmp_path / "log", 1)
    run(cells, store, jobs=1)
    about = store.load(cells[0]).about
    assert about["cell"]["settings"] == cells[0].settings
    assert about["cell"]["work"] == "toy.work/1"
    assert {"lucidae", "numpy", "scipy", "python"} <= set(about["versions"])
    assert about["seconds"] >= 0
    assert about["processor_seconds"] >= 0
    assert about["device"] == "cpu"
    assert about["machine"]
    assert about["finished"]


def test_the_budget_of_time_is_kept_and_the_rest_is_left(toy, tmp_path):
    store, cells = Store(tmp_path / "cells"), toy.cells(tmp_path / "log", 6, 0.02)
    assert run(cells, store, jobs=1, seconds=0).left == 6
    ticks = []
    assert run(cells, store, jobs=1, report=ticks.append).measured == 6
    assert [tick.done for tick in ticks] == [1, 2, 3, 4, 5, 6]
    assert ticks[0].total == 6
    assert ticks[0].seconds_left > 0
    assert ticks[-1].seconds_left == pytest.approx(0)


def test_a_failure_names_the_cell_and_keeps_what_is_done(toy, tmp_path):
    store = Store(tmp_path / "cells")
    good, (bad,) = toy.cells(tmp_path / "log", 2), toy.cells("", 1, work=toy.broken)
    cheap = Cell(bad.work, bad.settings, 0.1)
    with pytest.raises(RuntimeError, match=r"toy\.broken/1.*by design"):
        run([*good, cheap], store, jobs=1)
    assert store.missing(good) == []


@pytest.mark.parametrize("settings", [{"jobs": 0}, {"seconds": -1.0}, {"device": "abacus"}])
def test_bad_settings_are_refused_before_any_work(toy, tmp_path, settings):
    log = tmp_path / "log"
    with pytest.raises(ValueError, match=r"jobs|seconds|abacus"):
        run(toy.cells(log), Store(tmp_path / "cells"), **settings)
    assert not Path(log).exists()


def test_one_result_is_found_by_its_settings(toy, tmp_path):
    store, cells = Store(tmp_path / "cells"), toy.cells(tmp_path / "log", 3)
    run(cells, store, jobs=1)
    results = Results(tuple(store.load(cell) for cell in cells))
    assert results.one(seed=2).settings["seed"] == 2
    with pytest.raises(ValueError, match=r"0 runs have the settings {'seed': 9}, expected exactly"):
        results.one(seed=9)
    with pytest.raises(ValueError, match=r"3 runs have the settings {}"):
        results.one()


@pytest.fixture
def claimed(toy, tmp_path, monkeypatch):
    """Put a toy experiment with a claim of our choice in the place of all experiments."""

    def put(bound):
        experiment = toy.experiment(tmp_path / "log", bound)
        monkeypatch.setattr("lucidae_papers.engine.experiments", lambda names=(): [experiment])
        return experiment

    return put


@pytest.fixture
def command(capsys, tmp_path):
    """Return a function from arguments of ``lucidae reproduce`` to (exit code, output, errors)."""
    require("typer")
    require("jinja2")
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
    done = reproduce(["dropout-landscape"], jobs=1, out=sys.argv[1], page=False)
    print(done.outcomes[0].counts)
    sys.exit(done.exit_code)
"""


def test_a_machine_without_the_extras_can_do_the_work(tmp_path):
    command = [sys.executable, "-c", BARE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "4 identities hold" in done.stdout
    assert (tmp_path / "smoke" / "dropout-landscape.csv").exists()


def test_a_device_that_is_absent_is_refused():
    require("torch")
    with pytest.raises(ValueError, match="device='nonsense' is not available here"):
        device.reference("nonsense")


def test_a_figure_with_other_settings_and_data_is_not_judged(tmp_path):
    """A student's run: own rows, fewer latents, another rate; the curves are those of these."""
    rows = np.random.default_rng(0).normal(size=(80, 6)) * np.arange(6, 0, -1)
    np.save(tmp_path / "rows.npy", rows)
    changes = {"data": str(tmp_path / "rows.npy"), "k": 2, "n_epochs": 30, "learning_rate": 0.001}
    done = reproduce(
        ["lae-dynamics"], out=tmp_path, settings=changes, page=False, jobs=1, verbose=False
    )
    (outcome,) = done.outcomes
    assert done.exit_code == 0
    assert {one.verdict for one in outcome.judgements} == {"not judged"}
    assert {cell.settings["learning_rate"] for cell in outcome.results} == {0.001}
    assert outcome.curves["alignment/rag/nesterov"].x[-1] == 30
    assert outcome.results.cells[0].arrays["loss"][0] == pytest.approx(rows.var(axis=0).sum())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"kk": 3}, "no setting 'kk'; expected one of .*n_epochs"),
        ({"k": "many"}, "k='many' was given, expected a value like 10"),
        ({"data": "nothing"}, "data='nothing'"),
    ],
)
def test_a_wrong_setting_is_refused(settings, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        reproduce(["lae-dynamics"], out=tmp_path, settings=settings, page=False, jobs=1)


def test_settings_of_the_command_are_read_as_values(command):
    code, _, wrong = command("dropout-landscape", "--set", "points")
    assert code == 2
    assert "--set points was given, expected NAME=VALUE" in wrong
    code, out, _ = command("dropout-landscape", "--set", "points=11")
    assert code == 0
    assert "4 not judged" in out
