"""Faults in any function that a fit calls: no certificate holds that the true data refute.

Every function of the sparse family that a fit calls returns wrong numbers: a factor, two entries
exchanged, one entry left out, or one column in another unit. If the certificate of such a fit
holds, then `certify` of the fitted attributes on the data, by code without the fault, does not
fail. Reading and checking the input (`CHECKS`, `checked_noise_cov`) is left out: it returns the
data. Every run draws a tenth of the faults; the slow test injects all of them.
"""

import importlib
import inspect
import pkgutil
import warnings
from contextlib import contextmanager
from functools import cache, cached_property

import numpy as np
import pytest

import lucidae.sparsity
from fuzzing.oracle import limited_time
from lucidae import SparseVAE, certify
from lucidae.sparsity import solve_joint
from mutants import calls_of

READ = ("verify", "claims", "theory", "snapshot")
"""Modules of the verifier, and the one that reads files."""

CHECKS = (
    "checked_noise_cov", "check_covariance",
    "_column_peaks", "dense_if_small", "checked_attributes",
    "_as_number", "_as_indices",
)  # fmt: skip
"""Functions that check the data or assigned attributes, and return them."""


def drawn(d, kappa, n, seed, kind=float):
    rng = np.random.default_rng(seed)
    X, U = rng.standard_normal((d, kappa)).astype(kind), np.zeros((kappa, n), kind)
    if kind is complex:
        X = X + 1j * rng.standard_normal((d, kappa))
    U[[1, kappa // 2]] = rng.standard_normal((2, n))
    return X + 0.3, X @ U + 0.3 * rng.standard_normal((d, n)) + 1.0


def covariance(d, seed):
    root = np.random.default_rng(seed).standard_normal((d, 2 * d))
    return root @ root.T / (2 * d)


GIVEN = {"noise_variance": 0.1}
PROBLEMS = {
    "columns": (drawn(12, 18, 4, 0), GIVEN, {}),
    "learned, weights": (
        drawn(20, 5, 3, 1), {"noise_variance": "learn"}, {"sample_weight": np.arange(20) % 3 + 0.5},
    ),
    "held out": (drawn(16, 12, 3, 2), {"noise_variance": "cv", "cv": 3}, {}),
    "groups": (drawn(12, 15, 4, 3), GIVEN | {"groups": np.arange(15) // 3}, {}),
    "covariances": (drawn(12, 9, 6, 4), GIVEN | {"groups": 3, "group_covariance": "full"}, {}),
    "noise": (drawn(10, 12, 4, 5), GIVEN, {"noise_cov": covariance(10, 5)}),
    "diagonal": (drawn(12, 10, 4, 7), GIVEN | {"posterior": "diagonal", "max_iter": 1000}, {}),
    "point": (drawn(12, 10, 4, 8), GIVEN | {"posterior": "point", "penalty": "power"}, {}),
    "complex": (drawn(10, 14, 4, 9, complex), GIVEN, {}),
    "correlated": (drawn(10, 8, 6, 10), GIVEN | {"response_covariance": "learn"}, {}),
    "joint": ([drawn(12, 10, 3, seed) for seed in (11, 12)], None, {}),
}  # fmt: skip


def fitted(name):
    data, options, given = PROBLEMS[name]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if options is None:
            return solve_joint(*zip(*data, strict=True), noise_variance=0.1).value
        return SparseVAE(**({"max_iter": 100} | options)).fit(*data, **given)


def judged(name, model):
    """Return the certificate of what a fit returned, on the data."""
    data, options, given = PROBLEMS[name]
    if options is None:
        return certify(model, *zip(*data, strict=True))
    return certify(model, *data, **given)


def numbers(found, path=()):
    """Yield the places of arrays of floating-point numbers in nested results."""
    if isinstance(found, np.ndarray) and found.dtype.kind in "fc" and found.size:
        yield path
    elif isinstance(found, tuple | list) and len(path) < 2:
        for place, each in enumerate(found):
            yield from numbers(each, (*path, place))


def with_fault(found, fault):
    """Return a result with a fault in the first of its numbers."""
    if isinstance(found, float | np.floating) and not isinstance(found, np.ndarray):
        return type(found)(fault(np.array([float(found)]))[0])
    place = next(numbers(found), None)
    return found if place is None else _replaced(found, place, fault)


def _replaced(found, place, fault):
    if not place:
        return fault(found.copy())
    parts = list(found)
    parts[place[0]] = _replaced(parts[place[0]], place[1:], fault)
    return type(found)(*parts) if hasattr(found, "_fields") else type(found)(parts)


def _exchanged(values):
    flat = values.reshape(-1)
    flat[[0, -1]] = flat[[-1, 0]]
    return values


def _left_out(values):
    values.reshape(-1)[0] = 0.0
    return values


def _another_unit(values):
    values[..., 0] *= 1e3
    return values


FAULTS = {
    "factor": lambda values: 1.01 * values,
    "exchanged": _exchanged,
    "left out": _left_out,
    "another unit": _another_unit,
}


@cache
def functions():
    """Return the functions of the solvers by code, with every place where they are stored."""
    names = [module.name for module in pkgutil.iter_modules(lucidae.sparsity.__path__)]
    modules = [importlib.import_module(f"lucidae.sparsity.{name}") for name in names]
    owned, places = {}, {}
    for module in modules:
        own = module.__name__.rpartition(".")[2] not in READ
        for name, value in vars(module).items():
            if inspect.isfunction(value):
                places.setdefault(value.__code__, []).append((module, name, value))
                if own and value.__module__ == module.__name__ and name not in CHECKS:
                    owned[value.__code__] = value
            elif inspect.isclass(value) and value.__module__ == module.__name__ and own:
                for member, entry in vars(value).items():
                    inner = getattr(entry, "fget", None) or getattr(entry, "func", None)
                    inner = inner or getattr(entry, "__func__", entry)
                    if inspect.isfunction(inner) and member not in ("__init__", "of", *CHECKS):
                        places.setdefault(inner.__code__, []).append((value, member, entry))
                        owned[inner.__code__] = inner
    return {code: places[code] for code in owned}


@contextmanager
def injected(code, fault):
    """Replace a function, wherever it is stored, by one whose results have a fault."""
    places = functions()[code]
    try:
        for holder, name, entry in places:
            setattr(holder, name, _faulty(entry, name, fault))
        yield
    finally:
        for holder, name, entry in places:
            setattr(holder, name, entry)


def _faulty(entry, name, fault):
    def wrapped(function):
        def call(*given, **named):
            return with_fault(function(*given, **named), fault)

        return call

    if isinstance(entry, property):
        return property(wrapped(entry.fget))
    if isinstance(entry, cached_property):
        again = cached_property(wrapped(entry.func))
        again.__set_name__(None, name)
        return again
    if isinstance(entry, classmethod | staticmethod):
        return type(entry)(wrapped(entry.__func__))
    return wrapped(entry)


@cache
def all_faults():
    """Return the problem, the function and the fault of every injection.

    A function is broken in three of the problems that call it.
    """
    found, times = [], {}
    for name in PROBLEMS:
        _, called = calls_of(lambda name=name: fitted(name))
        known = sorted(
            (code for code in called if code in functions()), key=lambda c: c.co_qualname
        )
        for code in known:
            times[code] = times.get(code, 0) + 1
            found += [(name, code, fault) for fault in FAULTS if times[code] <= 3]
    return found


def test_fits_without_a_fault_hold():
    for name in PROBLEMS:
        model = fitted(name)
        assert model.certificate_.holds, (name, str(model.certificate_))
        assert judged(name, model).holds, name


def test_every_part_of_the_family_has_faults():
    names = {code.co_qualname for _, code, _ in all_faults()}
    assert len(names) > 180
    for part in ("evaluate", "mackay", "Rows.weighted", "whitened_rows", "Groups.expand",
                 "Posterior.fitted", "significant_columns", "HeldOut.found"):  # fmt: skip
        assert part in names, part


@pytest.mark.parametrize("share", [0.1, pytest.param(1.0, marks=pytest.mark.slow)])
def test_no_certificate_holds_that_the_data_refute(share):
    faults, counts = all_faults(), {"crashed": 0, "holds": 0, "refused": 0}
    chosen = np.random.default_rng(4).choice(len(faults), int(share * len(faults)), replace=False)
    wrong = []
    for name, code, fault in (faults[index] for index in np.sort(chosen)):
        try:
            with injected(code, FAULTS[fault]), limited_time(1.0):
                model = fitted(name)
                holds = model.certificate_.holds
        except KeyboardInterrupt:
            raise
        except BaseException:
            counts["crashed"] += 1
            continue
        counts["holds" if holds else "refused"] += 1
        if holds:
            with np.errstate(all="ignore"):
                if judged(name, model).holds is False:
                    wrong.append((name, code.co_qualname, fault))
    print(len(chosen), counts)
    assert not wrong, wrong
    assert counts["refused"] > 0.1 * len(chosen)
