"""Mutation testing of the formula modules, in one process: ``python3 dev.py mutate [module …]``.

The tests of a module are collected once. A first run without mutants notes how long each test takes
and which functions of the module it calls. Every mutant is then given to the tests that call its
function, first those that are fast and have killed others, until one of them fails. Mutants that no
test kills are listed, unless `explained_mutants.py` says why no test can kill them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import os
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from explained_mutants import EXPLAINED
from fuzzing.oracle import DoesNotEndError, limited_time
from mutants import broken, mutants

ROOT = Path(__file__).resolve().parents[1]
SLOWEST = 3.0
"""Seconds of processor time of the slowest test that is repeated for mutants."""

KILLERS = {
    "linear.objectives": ("linear/test_objectives.py", "linear/test_formulas.py"),
    "linear.rules": ("linear/test_rules.py", "linear/test_formulas.py"),
    "linear.penalties": ("linear/test_penalties.py", "linear/test_formulas.py"),
    "linear.theory": ("linear/test_theory.py", "linear/test_formulas.py"),
    "linear.hessian": ("linear/test_hessian.py", "linear/test_formulas.py"),
    "dropout.theory": ("dropout/test_theory.py", "dropout/test_formulas.py"),
    "dropout.objectives": ("dropout/test_objectives.py", "dropout/test_formulas.py"),
    "dropout.equalize": ("dropout/test_equalize.py", "dropout/test_formulas.py"),
    "dropout.reduction": ("dropout/test_reduction.py", "dropout/test_verifier.py"),
    "sparsity.objectives": ("sparsity/test_objectives.py", "sparsity/test_formulas.py"),
    "sparsity.theory": ("sparsity/test_theory.py", "sparsity/test_formulas.py"),
    "sparsity.penalties": ("sparsity/test_penalties.py", "sparsity/test_formulas.py"),
    "sparsity.updates": ("sparsity/test_updates.py", "sparsity/test_formulas.py"),
    "sparsity.groups": ("sparsity/test_groups.py", "sparsity/test_formulas.py"),
    "moments": ("test_moments.py",),
    "row_sums": ("test_moments.py",),
    "sampling": ("test_sampling.py",),
    "metrics._linear": ("metrics/test_linear.py", "metrics/test_inputs.py"),
    "metrics._sparsity": ("metrics/test_sparsity.py", "metrics/test_inputs.py"),
}
"""The formula modules, each with the files of its tests."""


def main(arguments):
    """Run the mutants of the named modules; return 1 if any survives that is not explained."""
    parser = argparse.ArgumentParser(prog="dev.py mutate", description=__doc__.partition("\n")[0])
    parser.add_argument("module", nargs="*", help=f"default: all of {', '.join(KILLERS)}")
    parser.add_argument(
        "--function", action="append", help="only functions whose name contains this or another one"
    )
    parser.add_argument("--quick", action="store_true", help="do not try the explained mutants")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.module if name not in KILLERS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(KILLERS)}")
    rows = []
    for name in chosen.module or KILLERS:
        trial = Trial(name, chosen.function, chosen.quick)
        trial.run()
        rows.append((name, trial.tried, trial.killed, trial.explained, len(trial.survivors)))
    print("\n| module | mutants | killed | explained | left |\n|---|---|---|---|---|")
    for name, *counts in rows:
        print("| `{}` | {} | {} | {} | {} |".format(name, *counts))
    print("| all | {} | {} | {} | {} |".format(*(sum(row[k] for row in rows) for k in range(1, 5))))
    return int(any(row[-1] for row in rows))


class Trial:
    """The mutants of one module and the tests that may kill them."""

    def __init__(self, name, wanted=None, quick=False):
        self.name, self.quick = name, quick
        module = importlib.import_module(f"lucidae.{name}")
        self.functions = [
            function
            for function in functions_of(module)
            if any(part in function.__qualname__ for part in wanted or [""])
        ]
        self.codes = {function.__code__: function for function in self.functions}
        self.callers = {function: [] for function in self.functions}
        self.kills = Counter()
        self.tried = self.killed = self.explained = 0
        self.survivors = []

    def run(self):
        """Collect the tests and try all mutants."""
        places = [ROOT / "tests" / place for place in KILLERS[self.name]]
        places.append(ROOT / "src" / "lucidae" / f"{self.name.replace('.', '/')}.py")
        given = [str(place) for place in places]
        quiet = ["-q", "-m", "not slow"]
        for plugin in ("cacheprovider", "xdist", "unraisableexception", "threadexception"):
            quiet += ["-p", f"no:{plugin}"]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            code = pytest.main([*quiet, "--rootdir", str(ROOT), *given], plugins=[self])
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            sys.exit(f"the tests of {self.name} cannot be run:\n{printed.getvalue()[-3000:]}")

    def pytest_runtestloop(self, session):
        """Take the place of pytest's own loop."""
        if session.testsfailed:
            return True
        for item in session.items:
            self.observe(item)
        for function in self.functions:
            for words, code in mutants(function):
                self.try_mutant(function, words, code)
        say(f"{self.name}: {self.killed} of {self.tried} killed, {self.explained} explained")
        return True

    def observe(self, item):
        """Run a test without mutants and note which functions it calls."""
        called, before = set(), sys.getprofile()

        def note(frame, event, _):
            if event == "call" and frame.f_code in self.codes:
                called.add(frame.f_code)

        sys.setprofile(note)
        start = time.process_time()
        try:
            failed = fails(item)
        finally:
            sys.setprofile(before)
        if failed:
            say(f"{item.nodeid} fails without mutants and is left out")
        seconds = time.process_time() - start
        # A test that cannot be repeated would seem to kill every mutant.
        usable = called and not failed and seconds <= SLOWEST and not fails(item)
        for code in called if usable else ():
            self.callers[self.codes[code]].append((seconds, item))

    def try_mutant(self, function, words, code):
        """Give one mutant to the tests that call its function."""
        self.tried += 1
        if self.quick and is_explained(self.name, words):
            self.explained += 1
            return
        tests = sorted(self.callers[function], key=lambda pair: pair[0] / (1 + self.kills[pair[1]]))
        with broken(function, code):
            for _, item in tests:
                if fails(item):
                    self.kills[item] += 1
                    self.killed += 1
                    return
        if is_explained(self.name, words):
            self.explained += 1
            return
        where = inspect.getsourcelines(function)[1] - 1
        reason = "" if tests else "  (no test calls this function)"
        self.survivors.append(words)
        say(f"survived: {self.name} line {where} + {words}{reason}")


def is_explained(module, words):
    """Return whether a mutant is recorded with a reason why no test can kill it."""
    place, _, changed = words.partition(": ")
    name = place.partition(":")[0]
    return any((name, changed) in places for places in EXPLAINED.get(module, {}).values())


def say(line):
    """Print to the terminal although pytest and the trial capture the output."""
    print(line, file=sys.__stdout__, flush=True)


def fails(item):
    """Run a collected test once more and return whether it fails, or does not end."""
    item.funcargs = {}
    try:
        with limited_time(10.0), warnings.catch_warnings():
            reports = runtestprotocol(item, nextitem=None, log=False)
    except DoesNotEndError:
        return True
    return any(report.failed for report in reports)


def functions_of(module):
    """Return the functions and methods that a module defines, those with a closure left out."""
    found = []
    for value in vars(module).values():
        members = vars(value).values() if inspect.isclass(value) else [value]
        for member in members:
            member = getattr(member, "__func__", getattr(member, "fget", member))
            member = inspect.unwrap(member) if callable(member) else member
            if not inspect.isfunction(member) or member.__module__ != module.__name__:
                continue
            # The generated methods of a dataclass have no source.
            written = Path(inspect.getsourcefile(member) or "") == Path(module.__file__)
            if written and member not in found:
                found.append(member)
    return found


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
