"""Broken solvers of groups, noise covariances, complex and correlated data get no certificate.

As in `test_broken_solvers.py`, one node of the source of one function is changed at a time. Here
the functions are all those of the modules that serve one option of the estimator each, and what
comes out is judged by the dense formulas of `general_model.py`.

Counts of an earlier run over all mutants (``LUCIDAE_ALL_MUTANTS=1``), of 2026-11-16; fits that take
too long count as crashed:

=======  ===================  =======  ==========  =======  ======  =========
mutants  with wrong results   crashed  unchanged   wrong    caught  certified
                              (fits)   (fits)      (fits)   (fits)  (fits)
=======  ===================  =======  ==========  =======  ======  =========
1553     276                  680      2667        493      493     0
=======  ===================  =======  ==========  =======  ======  =========
"""

import inspect
import warnings
from functools import cache, partial

import numpy as np
import pytest

from lucidae import SparseVAE
from lucidae.sparsity import covariances, prior, working_set
from mutants import mutants
from sparsity.broken_fits import lines_of, outcome, sampled, surveyed
from sparsity.general_model import Model

SAMPLES = [40, pytest.param(600, marks=pytest.mark.slow)]
"""Numbers of mutants that the tests run; all of them with LUCIDAE_ALL_MUTANTS=1."""


def drawn(d, kappa, n, seed, *, active=3, kind=float, noise=0.1):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        values = rng.standard_normal(shape)
        return values + 1j * rng.standard_normal(shape) if kind is complex else values

    X, coef = normal(d, kappa), np.zeros((kappa, n), kind)
    coef[rng.choice(kappa, active, replace=False)] = normal(active, n)
    return X, X @ coef + noise * normal(d, n)


def a_covariance(d, seed, rank=None):
    root = np.random.default_rng(seed).standard_normal((d, rank or 2 * d))
    return root @ root.T / root.shape[1]


def correlated(d, kappa, n, seed, rho=0.9):
    rng = np.random.default_rng(seed)
    X, coef = rng.standard_normal((d, kappa)), np.zeros((kappa, n))
    steps = rng.standard_normal((2, n))
    for t in range(1, n):
        steps[:, t] = rho * steps[:, t - 1] + np.sqrt(1 - rho**2) * steps[:, t]
    coef[:2] = steps
    return X, X @ coef + 0.1 * rng.standard_normal((d, n))


AR = 0.7 ** np.abs(np.subtract.outer(np.arange(5), np.arange(5)))
GIVEN = {"noise_variance": 0.05, "fit_intercept": False}
PROBLEMS = {
    "full": (drawn(8, 12, 5, 0), GIVEN | {"groups": 3, "group_covariance": "full"}, {}),
    "full, intercept": (
        drawn(9, 12, 4, 1),
        {"noise_variance": 0.05, "groups": 3, "group_covariance": "full"},
        {"sample_weight": np.arange(9) % 2 + 1},
    ),
    "full, mm": (
        drawn(7, 6, 4, 2),
        GIVEN | {"groups": 3, "group_covariance": "full", "solver": "mm", "max_iter": 400},
        {},
    ),
    "spherical": (drawn(9, 15, 4, 3), GIVEN | {"groups": 3}, {}),
    "coloured": (drawn(8, 12, 4, 4), GIVEN, {"noise_cov": a_covariance(8, 4)}),
    "coloured, intercept": (
        drawn(8, 10, 4, 5), {"noise_variance": 0.05}, {"noise_cov": a_covariance(8, 5)},
    ),
    "low rank": (
        drawn(9, 12, 4, 6), GIVEN | {"groups": 3}, {"noise_cov": a_covariance(9, 6, rank=7)},
    ),
    "variances": (
        drawn(8, 10, 4, 7), GIVEN, {"noise_cov": np.linspace(0.5, 2.0, 8)},
    ),
    "complex": (drawn(8, 12, 4, 9, kind=complex), GIVEN, {}),
    "complex, full": (
        drawn(9, 12, 5, 10, kind=complex),
        GIVEN | {"groups": 3, "group_covariance": "full"},
        {},
    ),
    "given responses": (drawn(8, 10, 5, 11), GIVEN | {"response_covariance": AR}, {}),
    "learned responses": (
        correlated(8, 10, 12, 12), GIVEN | {"response_covariance": "learn"}, {},
    ),
}  # fmt: skip

COLOURED = ("coloured", "coloured, intercept", "low rank", "variances")
SERVED = {
    working_set: ("full", "full, intercept", "full, mm", "spherical", "complex, full"),
    prior: ("full", "spherical", "low rank", "complex, full"),
    covariances: (*COLOURED, "given responses", "learned responses"),
}
"""The modules whose functions are broken, with the problems that use them."""


def functions(module):
    """Yield the functions and methods that a module defines."""
    for found in vars(module).values():
        if getattr(found, "__module__", "") != module.__name__:
            continue
        if inspect.isfunction(found):
            yield found
        elif inspect.isclass(found):
            for member in vars(found).values():
                method = getattr(member, "fget", None) or getattr(member, "func", None)
                method = method or getattr(member, "__func__", member)
                if inspect.isfunction(method) and method.__code__.co_filename == module.__file__:
                    yield method


def fitted(name):
    (X, y), options, given = PROBLEMS[name]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return SparseVAE(**({"max_iter": 100} | options)).fit(X, y, **given)


def numbers(model):
    new = np.random.default_rng(0).standard_normal((5, model.n_features_in_))
    mean, spread = model.predict(new, return_std=True)
    return np.concatenate(
        [
            np.ravel(model.coef_),
            np.ravel(model.intercept_),
            np.ravel(model.relevance_),
            [model.noise_variance_, model.energy_],
            np.isin(np.arange(model.n_features_in_), model.support_),
            np.ravel(getattr(model, "group_covariances_", 0.0)),
            np.ravel(getattr(model, "response_covariance_", 0.0)),
            np.ravel(mean),
            np.ravel(spread),
        ]
    )


def described(name, model):
    """Return the model of a fit, its groups, and whether these have covariances of their own."""
    (X, y), options, given = PROBLEMS[name]
    kappa, full = X.shape[1], options.get("group_covariance") == "full"
    size = options.get("groups", 1)
    labels = np.arange(kappa) // size
    prior = np.diag(model.relevance_).astype(X.dtype)
    if full:
        for number, block in enumerate(model.group_covariances_):
            inside = slice(number * size, (number + 1) * size)
            prior[inside, inside] = block
    R = given.get("noise_cov", np.ones(len(X)))
    B = getattr(model, "response_covariance_", np.eye(y.shape[1]))
    index = np.repeat(np.arange(len(X)), given.get("sample_weight", np.ones(len(X), int)))
    R = np.diag(R[index]) if R.ndim == 1 else R
    found = Model(X[index], y[index], prior, model.noise_variance_, R, B, model.fit_intercept)
    return found, labels, full


def is_right(name, model):
    """Judge a fit by dense formulas."""
    _, options, given = PROBLEMS[name]
    if not np.isfinite(numbers(model)).all() or model.noise_variance_ <= 0:
        return False
    if options.get("group_covariance") == "full" and not hasattr(model, "group_covariances_"):
        return False
    truth, labels, full = described(name, model)
    blocks = [truth.prior[np.ix_(labels == k, labels == k)] for k in np.unique(labels)]
    if any(np.linalg.eigvalsh(block)[0] < -1e-8 * np.abs(block).max() for block in blocks):
        return False
    mean, coef = truth.mean(), model.coef_.T
    checks = [
        truth.violation(labels, full) < 2e-6,
        np.allclose(coef, mean, rtol=1e-6, atol=1e-6 * np.abs(mean).max()),
        np.isclose(model.energy_, truth.energy(), rtol=1e-7),
    ]
    if not full:
        checks.append(all(np.ptp(np.diagonal(b).real) <= 1e-9 * b[0, 0].real for b in blocks))
    checks.append(np.isclose(model.noise_variance_, options["noise_variance"], rtol=1e-8))
    # Complex groups with full covariances have another distribution; the certificate tests them.
    if "groups" in options and not (full and np.iscomplexobj(truth.X)):
        checks.append(np.array_equal(model.support_, truth.support(labels, full)))
    if "noise_cov" not in given:
        checks.append(_predicts(model, truth, options))
    if isinstance(options.get("response_covariance"), str):
        checks.append(_best_correlation(truth, model.response_covariance_[0, 1]))
    return all(checks)


def _predicts(model, truth, options):
    new = np.random.default_rng(0).standard_normal((5, model.n_features_in_))
    moved = new - truth.X.mean(axis=0) if model.fit_intercept else new
    level = truth.y.mean(axis=0) if model.fit_intercept else 0.0
    mean, spread = model.predict(new, return_std=True)
    right = np.allclose(mean, moved @ model.coef_.T + level, rtol=1e-6, atol=1e-6)
    if "response_covariance" not in options:
        expected = np.sqrt(truth.noise + truth.spread(moved))
        right = right and np.allclose(spread, expected, rtol=1e-6)
    return right


def _best_correlation(truth, rho):
    """Return whether no correlation near ρ has a lower energy, other things equal."""
    lags = np.abs(np.subtract.outer(np.arange(len(truth.B)), np.arange(len(truth.B))))

    def energy(value):
        truth.B = value**lags
        return truth.energy()

    at = energy(rho)
    return all(
        energy(value) > at - 1e-6 * abs(at)
        for value in np.clip([rho - 0.01, rho + 0.005, rho + 0.01], -0.999, 0.9999)
    )


@pytest.fixture(scope="module")
def healthy():
    """Return the numbers of each fit, and the lines of the functions that it runs."""
    broken = {function for _, _, function, _ in all_mutants()}
    return {name: lines_of(lambda name=name: numbers(fitted(name)), broken) for name in PROBLEMS}


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_the_healthy_solvers_are_right_and_certified(name):
    model = fitted(name)
    assert is_right(name, model)
    assert model.certificate_.holds, str(model.certificate_)


@cache
def all_mutants():
    return [
        (words, names, function, code)
        for module, names in SERVED.items()
        for function in functions(module)
        for words, code in mutants(function)
    ]


@pytest.mark.parametrize("size", SAMPLES)
def test_no_wrong_result_of_a_broken_solver_is_certified(healthy, size):
    def outcome_of(name):
        judge = partial(is_right, name)
        return outcome(partial(fitted, name), numbers, judge, healthy[name][0], seconds=0.4)

    drawn = sampled(all_mutants(), healthy, size, seed=18)
    effective, survivors = surveyed(drawn, outcome_of, healthy)
    assert not survivors, survivors
    assert effective >= 3


OWN = {
    "coef_": list(PROBLEMS),
    "relevance_": list(PROBLEMS),
    "group_covariances_": [name for name in PROBLEMS if "full" in name],
    "noise_variances_": list(COLOURED),
    "response_covariance_": [name for name in PROBLEMS if "responses" in name],
}


@pytest.mark.parametrize("factor", [0.999, 2.0])
@pytest.mark.parametrize(
    ("part", "name"), [(part, name) for part, names in OWN.items() for name in names]
)
def test_a_dropped_factor_in_any_attribute_is_caught(name, part, factor):
    model = fitted(name)
    model._state.results[part] = model._state.results[part] * factor
    assert model.certificate_.holds is False
