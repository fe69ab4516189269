"""Programs that are run in new interpreters, of which all but one need no time to start."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

FORKING = """
import json, os, sys
import numpy, scipy.linalg, scipy.optimize, scipy.sparse.linalg, scipy.stats, sklearn.linear_model
folder, programs, codes = sys.argv[1], json.loads(sys.argv[2]), []
sys.argv = ["-c"]
for number, program in enumerate(programs):
    child = os.fork()
    if not child:
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}/{number}.{name}", os.O_WRONLY | os.O_CREAT), stream)
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
        sys.exit()
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(codes))
"""


ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())
"""


def without(names, program):
    """Return a program in which packages cannot be imported."""
    return ABSENT.format(names=set(names)) + program


class Result(NamedTuple):
    """The exit code of a program, and what it wrote."""

    code: int
    out: str
    err: str


def results_of(programs):
    """Run each program in an interpreter that has not imported lucidae; return their results.

    The interpreters are copies of one that has imported NumPy, SciPy and scikit-learn, which takes
    most of the time. Where processes cannot be copied, each program starts from nothing.
    """
    if not hasattr(os, "fork"):
        return [_separate(program) for program in programs]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", FORKING, folder, json.dumps(list(programs))]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        texts = [
            [
                Path(folder, f"{number}.{name}").read_text(encoding="utf-8")
                for name in ("out", "err")
            ]
            for number in range(len(programs))
        ]
    return [Result(code, *text) for code, text in zip(json.loads(done.stdout), texts, strict=True)]


def _separate(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return Result(done.returncode, done.stdout, done.stderr)
