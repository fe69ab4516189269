import contextlib
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
from lucidae_papers.declaration import Cell, Results, Work
from lucidae_papers.engine import duration, run
from lucidae_papers.store import Store


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


def test_more_cells_cost_only_themselves(toy, tmp_path):
    log, store = tmp_path / "log", Store(tmp_path / "cells")
    run(toy.cells(log, 3), store, jobs=1)
    tally = run(toy.cells(log, 5), store, jobs=1)
    assert (tally.measured, tally.reused) == (2, 3)


def test_processes_and_groups_give_the_same_numbers(toy, tmp_path):
    stores = [Store(tmp_path / name) for name in ("turn", "processes", "group", "threads")]
    cells = toy.cells(tmp_path / "log")
    run(cells, stores[0], jobs=1)
    run(cells, stores[1], jobs=2)
    pytest.importorskip("torch")
    run(cells, stores[2], device="cpu:0")  # torch's processor: cells that belong together at once
    run(cells, stores[3], device="cpu:0", jobs=2, threads=True)
    expected = numbers(stores[0], cells)
    for store in stores[1:]:
        assert np.array_equal(numbers(store, cells), expected)
    assert stores[2].load(cells[0]).about["device"] == "cpu:0"


SCRIPT = """
import sys, toy
from lucidae_papers.engine import run
from lucidae_papers.store import Store
if __name__ == "__main__":
    run(toy.cells(sys.argv[1], 10, work=toy.gated), Store(sys.argv[2]), jobs=2)
"""


def test_the_workers_of_a_dask_cluster_measure_the_cells(toy, tmp_path):
    distributed = require("distributed")
    stores = [Store(tmp_path / name) for name in ("turn", "cluster")]
    cells, log = toy.cells(tmp_path / "log"), tmp_path / "log"
    run(cells, stores[0], jobs=1)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
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


def test_a_killed_run_goes_on_and_ends_with_the_same_numbers(toy, tmp_path):
    script, log, folder = tmp_path / "script.py", tmp_path / "log", tmp_path / "cells"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, script, log, folder], start_new_session=True, env=dict(os.environ)
    )
    cells, store = toy.cells(log, 10, work=toy.gated), Store(folder)
    try:
        # Seeds 0 to 3 are measured; the others wait, so that the run is killed half-way.
        assert wait_until(lambda: store.missing(cells) == cells[4:], 60)
    finally:
        process.kill()  # SIGKILL to the engine, then to its workers
        process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    toy.gate(log).touch()
    tally = run(cells, store, jobs=1)
    assert (tally.measured, tally.reused) == (6, 4)
    assert sorted(log.read_text().split()) == [str(seed) for seed in range(10)]
    whole = Store(tmp_path / "whole")
    run(cells, whole, jobs=1)
    assert np.array_equal(numbers(store, cells), numbers(whole, cells))
    files = [path for path in folder.rglob("*.npz") if not path.name.startswith(".")]
    assert len(files) == 10, "half a file was taken for a whole one"


KILLED = """
import sys, time, toy
from lucidae_papers.engine import run
from lucidae_papers.store import Store
if __name__ == "__main__":
    log, folder, pause = sys.argv[1:]
    run(toy.cells(log, 4, float(pause), work=toy.sleep), Store(folder), jobs=2)
    time.sleep(600)
"""


def alive(pid):
    """Tell whether a process runs; one that has ended may remain as a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("pause", [300.0, 0.05], ids=["at work", "idle"])
def test_workers_end_with_a_killed_parent(toy, tmp_path, pause):
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(KILLED)
    command = [sys.executable, script, log, tmp_path / "cells", str(pause)]
    process = subprocess.Popen(command, start_new_session=True, env=dict(os.environ))

    def workers():
        return {int(line) for line in log.read_text().split()} if log.exists() else set()

    try:
        assert wait_until(lambda: len(workers()) >= (2 if pause > 1 else 1), 60)
        if pause < 1:
            store, cells = Store(tmp_path / "cells"), toy.cells(log, 4, pause, work=toy.sleep)
            assert wait_until(lambda: not store.missing(cells), 60)
        pids = workers()
        assert all(map(alive, pids))
        process.kill()
        process.wait()
        assert wait_until(lambda: not any(map(alive, pids)), 60), "a worker outlived its parent"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


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


def test_durations_read_well():
    assert [duration(s) for s in (0.04, 12.3, 61, 3600)] == [
        "0.04 s",
        "12 s",
        "1 min 1 s",
        "1 h 0 min",
    ]


def test_one_result_is_found_by_its_settings(toy, tmp_path):
    store, cells = Store(tmp_path / "cells"), toy.cells(tmp_path / "log", 3)
    run(cells, store, jobs=1)
    results = Results(tuple(store.load(cell) for cell in cells))
    assert results.one(seed=2).settings["seed"] == 2
    with pytest.raises(ValueError, match=r"0 runs have the settings {'seed': 9}, expected exactly"):
        results.one(seed=9)
    with pytest.raises(ValueError, match=r"3 runs have the settings {}"):
        results.one()
