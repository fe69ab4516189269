"""Solvers that are broken on purpose do not get a certificate.

`tests/mutants.py` breaks one node of the source of one function at a time. Each mutant is fitted
to the problems below, and what comes out is judged by `brute_force.py`, which shares no code with
the package: *crashed*, *unchanged*, *legitimate* (another result, which is stationary and a
posterior mean too), or *wrong*. The certificate of a wrong fit must not hold.

Counts of an earlier run over all mutants (``LUCIDAE_ALL_MUTANTS=1``, before predictions, variances
and the support were among them), of 2026-11-16; a mutant with wrong results is wrong on at least
one problem, and fits that take too long count as crashed:

=======  ===================  =======  ==========  =======  ======  =========
mutants  with wrong results   crashed  unchanged   wrong    caught  certified
                              (fits)   (fits)      (fits)   (fits)  (fits)
=======  ===================  =======  ==========  =======  ======  =========
674      199                  573      3472        673      673     0
=======  ===================  =======  ==========  =======  ======  =========

To these come 184 hand-made breaks: a factor dropped from each fitted attribute, a stale state, a
column off by one and a wrong threshold of convergence.
"""

import warnings
from functools import cache, partial

import numpy as np
import pytest

from lucidae import SparseVAE
from lucidae.datasets import make_sparse_regression
from lucidae.sparsity import (
    estimator,
    noise,
    objectives,
    posterior,
    prior,
    problem,
    solve,
    working_set,
)
from mutants import mutants
from sparsity.broken_fits import lines_of, outcome, sampled, surveyed
from sparsity.brute_force import (
    centred,
    energy,
    noise_slope,
    parts,
    significant,
    variances,
    violation,
)

PARTS = ("coef_", "relevance_", "noise_variance_", "energy_", "intercept_")

SAMPLES = [60, pytest.param(600, marks=pytest.mark.slow)]
"""Numbers of mutants that the tests run; all of them with LUCIDAE_ALL_MUTANTS=1."""


def drawn(d, kappa, r, n, seed, snr=15):
    p = make_sparse_regression(d, kappa, r, n, snr_db=snr, random_state=seed)
    return p.dictionary + 0.3, p.responses + 0.5


PROBLEMS = {
    "wide": (drawn(10, 16, 3, 4, 0), {"noise_variance": 0.05}, None),
    "tall, learned": (drawn(18, 4, 2, 3, 1), {"noise_variance": "learn"}, None),
    "one response": (
        drawn(10, 14, 2, 1, 2), {"noise_variance": 0.02, "fit_intercept": False}, None,
    ),
    "coordinates, many responses": (
        drawn(6, 18, 2, 9, 3), {"noise_variance": 0.05, "solver": "coordinate"}, None,
    ),
    "groups, weights": (
        drawn(9, 12, 3, 3, 4),
        {"noise_variance": 0.05, "groups": np.arange(12) // 3, "solver": "mm"},
        np.arange(9) % 3 + 1,
    ),
    "diagonal": (drawn(8, 10, 2, 3, 5), {"noise_variance": 0.1, "posterior": "diagonal"}, None),
    "em": (drawn(8, 10, 2, 3, 6), {"noise_variance": 0.1, "solver": "em", "max_iter": 400}, None),
}  # fmt: skip

METHODS = {
    problem.Problem: ("with_noise",),
    problem.Rows: ("_offset", "normalised"),
    problem.Mean: ("removed_from",),
    posterior.Posterior: ("fitted", "variance"),
    estimator.SparseState: ("_moved", "predicted", "variances"),
    working_set.ColumnPoint: ("swept", "without_vanishing", "states"),
    objectives.State: ("residual",),
    objectives.Marginal: (
        "value",
        "gradient",
        "violation",
        "reduced_value",
        "degrees_of_freedom",
        "in_units",
    ),
    objectives.FullCovariance: ("volume", "pressure", "concavity"),
    objectives.DiagonalCovariance: ("_update", "volume", "pressure", "concavity"),
}
FUNCTIONS = {
    objectives: (
        "expectation_maximization", "majorize_minimize", "mackay", "learned_noise",
        "factorise", "evaluate", "whitened_columns", "flat_start",
        "leave_one_out",
    ),
    prior: ("best_change", "gain_of"),
    working_set: (
        "candidates", "descend_coordinates", "remaining_relevances", "is_accepted", "averaged",
        "newton_direction", "newton_step", "_raised", "polish_relevances",
        "descend", "continuation", "first_point",
    ),
    problem: (
        "normalise", "compressed", "covariance", "distinct_rows", "_sortable",
        "column_squares",
    ),
    posterior: (
        "level_at_center", "evidence_ratios", "active_columns", "significant_columns",
        "group_evidence", "removal_costs",
    ),
    noise: ("first_noise", "learn_noise"),
    solve: ("repeat_update",),
}  # fmt: skip


def targets():
    """Yield the functions that are broken."""
    for module, names in FUNCTIONS.items():
        yield from (getattr(module, name) for name in names)
    for kind, names in METHODS.items():
        for name in names:
            found = vars(kind)[name]
            found = getattr(found, "fget", None) or getattr(found, "func", found)
            yield getattr(found, "__func__", found)


def fitted(name):
    (X, y), options, weights = PROBLEMS[name]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return SparseVAE(**({"max_iter": 60} | options)).fit(X, y, sample_weight=weights)


def numbers(model):
    return np.concatenate(
        [
            np.ravel(model.coef_),
            np.ravel(model.intercept_),
            np.ravel(model.relevance_),
            [model.noise_variance_, model.energy_],
            np.isin(np.arange(model.n_features_in_), model.support_),
            *predictions(model),
        ]
    )


def predictions(model):
    """Return the means, as one vector, and the standard deviations that a fit predicts."""
    new = np.random.default_rng(0).standard_normal((5, model.n_features_in_))
    mean, spread = model.predict(new, return_std=True)
    return np.ravel(mean), spread


def is_right(name, model):
    """Judge a fit by brute force: stationary, a posterior mean, γ and the energy as stated."""
    (X, y), options, weights = PROBLEMS[name]
    rows, targets = centred(X, y, weights, model.fit_intercept)
    w, gamma, kind = model.relevance_, model.noise_variance_, model.posterior
    spare = -float(model.fit_intercept)
    if not np.isfinite(numbers(model)).all() or (w < 0).any() or gamma <= 0:
        return False
    coef = np.atleast_2d(model.coef_)
    _, _, mean, *_ = parts(rows, targets, w, gamma)
    repeated = centred(X, y, weights, False)
    offset = repeated[1].mean(axis=0) - coef @ repeated[0].mean(axis=0)
    if not model.fit_intercept:
        offset = 0.0 * offset
    given = options["noise_variance"]
    new = np.random.default_rng(0).standard_normal((5, w.size))
    mean_of_new, spread = predictions(model)
    moved = new - repeated[0].mean(axis=0) * model.fit_intercept
    checks = [
        np.allclose(mean_of_new, np.ravel(new @ coef.T + offset), rtol=1e-6, atol=1e-6),
        np.allclose(spread, np.sqrt(gamma + variances(rows, w, gamma, moved)), rtol=1e-6),
        np.array_equal(model.support_, significant(rows, targets, w, gamma, options.get("groups"))),
        violation(rows, targets, w, gamma, kind, options.get("groups")) < 2e-6,
        np.allclose(coef.T, mean, rtol=1e-6, atol=1e-6 * np.abs(mean).max()),
        np.allclose(model.intercept_, offset, rtol=1e-6, atol=1e-7),
        np.isclose(model.energy_, energy(rows, targets, w, gamma, spare, kind), rtol=1e-7),
        abs(noise_slope(rows, targets, w, gamma, spare, kind)) < 1e-4
        if given == "learn"
        else np.isclose(gamma, given, rtol=1e-8),
    ]
    return all(checks)


@pytest.fixture(scope="module")
def healthy():
    """Return the numbers of each fit, and the lines of the functions that it runs."""
    broken = {function for _, _, function, _ in all_mutants()}
    return {name: lines_of(lambda name=name: numbers(fitted(name)), broken) for name in PROBLEMS}


@cache
def all_mutants():
    return [
        (words, PROBLEMS, function, code)
        for function in targets()
        for words, code in mutants(function)
    ]


def test_the_healthy_solvers_are_right_and_certified():
    for name in PROBLEMS:
        model = fitted(name)
        assert is_right(name, model), name
        assert model.certificate_.holds, (name, str(model.certificate_))


@pytest.mark.parametrize("size", SAMPLES)
def test_no_wrong_result_of_a_broken_solver_is_certified(healthy, size):
    def outcome_of(name):
        judge = partial(is_right, name)
        return outcome(partial(fitted, name), numbers, judge, healthy[name][0], seconds=0.25)

    drawn = sampled(all_mutants(), healthy, size, seed=13)
    effective, survivors = surveyed(drawn, outcome_of, healthy)
    assert not survivors, survivors
    assert effective >= 15


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name != "tall, learned"])
@pytest.mark.parametrize("factor", [0.5, 0.99, 1.001, 1.01, 2.0, -1.0])
@pytest.mark.parametrize(
    "part", ["coef_", "relevance_", "noise_variance_", "energy_", "intercept_"]
)
def test_a_dropped_factor_in_any_attribute_is_caught(name, part, factor):
    model = fitted(name)
    model._state.results[part] = model._state.results[part] * factor
    if part == "intercept_" and not model.fit_intercept:
        assert model.certificate_.holds  # zero times the factor
        return
    assert model.certificate_.holds is False


def test_a_stale_state_is_caught():
    (X, y), options, _ = PROBLEMS["wide"]
    first, second = (SparseVAE(**options).fit(X, each) for each in (y, y[::-1]))
    second._state.results = first._state.results
    assert first.certificate_.holds
    assert second.certificate_.holds is False
