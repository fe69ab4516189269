"""Fits by solvers that are broken on purpose: how they are classified and counted."""

import ast
import inspect
import os
import sys
import textwrap
from collections import Counter
from functools import cache

import numpy as np

from fuzzing.oracle import limited_time
from mutants import broken


def lines_of(action, functions):
    """Run an action; return its result and the lines (file, number) of the functions that ran.

    A mutant of any other line cannot change the result.
    """
    files, ran = {inspect.unwrap(function).__code__.co_filename for function in functions}, set()

    def line(frame, event, _):
        ran.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    previous = sys.gettrace()
    sys.settrace(lambda frame, *_: line if frame.f_code.co_filename in files else None)
    try:
        return action(), ran
    finally:
        sys.settrace(previous)


def reached(mutant, ran):
    """Tell whether the statement that a mutant changes is among the lines that ran."""
    words, _, function, _ = mutant
    code = inspect.unwrap(function).__code__
    number = int(words.partition(":")[2].split()[0])
    begin, end = min(
        (span for span in _statements(code) if span[0] <= number <= span[1]),
        key=lambda span: span[1] - span[0],
    )
    first = code.co_firstlineno - 1
    return any((code.co_filename, first + at) in ran for at in range(begin, end + 1))


@cache
def _statements(code):
    """Return the first and last line of each statement of a function, without its body."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    spans = []
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            spans.append((node.lineno, body[0].lineno - 1 if body else node.end_lineno))
    return [(begin, max(begin, end)) for begin, end in spans]


def sampled(drawn, runs, size, seed):
    """Return so many of the mutants that a problem reaches, in their order.

    All with LUCIDAE_ALL_MUTANTS=1.
    """
    drawn = [each for each in drawn if any(reached(each, runs[name][1]) for name in each[1])]
    if "LUCIDAE_ALL_MUTANTS" in os.environ or size >= len(drawn):
        return drawn
    chosen = np.random.default_rng(seed).choice(len(drawn), size, replace=False)
    return [drawn[index] for index in np.sort(chosen)]


def outcome(fit, numbers, is_right, expected, seconds):
    """Return what a broken solver made of a problem, and whether the certificate accepted it.

    `fit` returns the model, `numbers` its fitted numbers, which are `expected` of a healthy solver,
    and `is_right` judges a model by brute force.
    """
    try:
        with limited_time(seconds):
            model = fit()
            certificate, got = model.certificate_, numbers(model)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "crashed", False
    with np.errstate(all="ignore"):
        if got.shape == expected.shape and np.allclose(got, expected, rtol=1e-5, atol=1e-8):
            return "unchanged", certificate.holds is True
        try:
            right = is_right(model)
        except (np.linalg.LinAlgError, ZeroDivisionError):  # singular in the digits of mpmath
            right = False
    return ("legitimate" if right else "wrong"), certificate.holds is True


def surveyed(drawn, outcome_of, runs):
    """Return how many mutants (words, problems, function, code) are effective, and the survivors.

    A mutant is effective if it makes a fit wrong; a survivor is a wrong fit with a certificate.
    `runs` has the result and the lines of the healthy fit of each problem.
    """
    counts, survivors, refused = Counter(), [], []
    effective = 0
    for mutant in drawn:
        words, problems, function, code = mutant
        kinds = set()
        names = [name for name in problems if reached(mutant, runs[name][1])]
        counts["unchanged"] += len(problems) - len(names)
        with broken(function, code):
            for name in names:
                kind, accepted = outcome_of(name)
                kinds.add(kind)
                counts[kind] += 1
                if kind == "wrong" and accepted:
                    survivors.append((words, name))
                if kind in ("unchanged", "legitimate") and not accepted:
                    refused.append((words, name, kind))
        effective += "wrong" in kinds
    print(f"\n{len(drawn)} mutants, {effective} with wrong results; fits: {dict(counts)}")
    print(f"refused although right: {refused}")
    return effective, survivors
