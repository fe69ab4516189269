"""Fits by solvers that are broken on purpose: how they are classified and counted."""

import inspect
import os
from collections import Counter

import numpy as np

from fuzzing.oracle import limited_time
from mutants import broken


def sampled(drawn, size, seed):
    """Return so many of the mutants, in their order; all with LUCIDAE_ALL_MUTANTS=1."""
    if "LUCIDAE_ALL_MUTANTS" in os.environ:
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


def surveyed(drawn, outcome_of, called):
    """Return how many mutants (words, problems, function, code) are effective, and the survivors.

    A mutant is effective if it makes a fit wrong; a survivor is a wrong fit with a certificate.
    `called` has the code of the functions that the fit of each problem calls: a mutant of another
    function leaves this fit unchanged.
    """
    counts, survivors, refused = Counter(), [], []
    effective = 0
    for words, problems, function, code in drawn:
        kinds, healthy_code = set(), inspect.unwrap(function).__code__
        with broken(function, code):
            for name in problems:
                if healthy_code not in called[name]:
                    counts["unchanged"] += 1
                    continue
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
