"""Workers end with the process that started them, also if it is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = """
import os, sys, time
from pathlib import Path
import joblib
from lucidae.experiments.workers import end_with_parent

def task(number, parent, folder):
    end_with_parent(parent)
    Path(folder, str(os.getpid())).touch()
    time.sleep(120)

if __name__ == "__main__":
    with joblib.parallel_config(backend="loky", n_jobs=2):
        joblib.Parallel()(joblib.delayed(task)(i, os.getpid(), sys.argv[1]) for i in range(2))
"""


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A process that has ended but was not waited for still has a number.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def test_workers_end_with_a_killed_parent(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    folder = tmp_path / "workers"
    folder.mkdir()
    program = [sys.executable, tmp_path / "program.py", folder]
    parent = subprocess.Popen(program, stderr=subprocess.DEVNULL)  # of the resource tracker
    try:
        assert wait_until(lambda: len(list(folder.iterdir())) == 2)
        workers = [int(path.name) for path in folder.iterdir()]
        assert all(map(alive, workers))
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert wait_until(lambda: not any(map(alive, workers)), seconds=20)


def test_the_engine_watches_its_workers(monkeypatch, tmp_path):
    from lucidae.experiments import engine

    watched = []
    monkeypatch.setattr(engine, "end_with_parent", watched.append)
    monkeypatch.setattr(engine, "measure_and_store", lambda *arguments: 1.0)
    assert engine._numbered(3, (), tmp_path, "cpu", 17) == (3, 1.0)
    assert watched == [17]
