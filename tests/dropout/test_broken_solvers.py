"""Solvers and closed forms broken on purpose: the certificate of the fit itself notices.

Every mutant that `tests/mutants.py` generates of the functions below is run on the problems of
`FITS`, one after the other, until a result changes. A mutant *crashed* if a fit raised, is
*unchanged* if no fit changed beyond tolerance, and otherwise *changed*: then the certificate of
the first changed fit must not hold. None survives.
"""

import warnings
from collections import Counter

import numpy as np
import pytest
import scipy.sparse

from lucidae import DropoutAutoencoder, DropoutFactorization, DropoutRegressor, certify
from lucidae.dropout import autoencoder, problem, solvers, theory, verify
from lucidae.dropout.claims import certificate_of
from lucidae.dropout.network import NetworkState
from lucidae.dropout.problem import RowLift, WideRows
from lucidae.dropout.solvers import (
    equalized_factors,
    level_diagonal,
)
from lucidae.dropout.verify import Judged
from mutants import broken, calls_of, is_among, mutants

RNG = np.random.default_rng(12)
X = RNG.standard_normal((40, 5)) @ RNG.standard_normal((5, 5)) + [3.0, 0.0, -2.0, 1.0, 0.0]
Y = X @ RNG.standard_normal((5, 4)) + 0.5 * RNG.standard_normal((40, 4))
COLLINEAR = X[:, :1] + 1e-6 * X
COLLINEAR_Y = COLLINEAR @ RNG.standard_normal((5, 4)) + RNG.standard_normal((40, 4))
FREQUENCIES = RNG.integers(0, 4, size=40).astype(float)
SINGULAR = np.column_stack([X, X[:, 0] - X[:, 1], np.ones(40)])
FEW, FEW_Y = RNG.standard_normal((8, 12)) + 1.0, RNG.standard_normal((8, 3)) - 2.0
FEW_W = np.array([1.0, 2.0, 1.0, 1.0, 3.0, 1.0, 1.0, 2.0])
GRADED = X * [1e-6, 1.0, 1e4, 1.0, 1.0]


def stream(inputs, outputs):
    model = DropoutRegressor(2, dropout=0.3)
    for start in range(0, len(inputs), 10):
        model.partial_fit(inputs[start : start + 10], outputs[start : start + 10])
    return model


FITS = {
    "rank below the width": lambda: DropoutRegressor(4, dropout=0.7).fit(X, Y),
    "rank equal to the width": lambda: DropoutRegressor(2, dropout=0.1).fit(X, Y),
    "no dropout": lambda: DropoutRegressor(3, dropout=0.0).fit(X, Y),
    "wide": lambda: DropoutRegressor(7, dropout=0.2, fit_intercept=False).fit(X, Y),
    "collinear": lambda: DropoutRegressor(3, dropout=0.2).fit(COLLINEAR, COLLINEAR_Y, FREQUENCIES),
    "singular": lambda: DropoutRegressor(3, dropout=0.2).fit(SINGULAR, Y),
    "graded": lambda: stream(GRADED, Y),
    "autoencoder": lambda: DropoutAutoencoder(3, dropout=0.2).fit(X),
    "factorization": lambda: DropoutFactorization(3, dropout=0.3).fit(X),
    "gram": lambda: fitted_by_gram(),
    "many features": lambda: with_many_features(DropoutAutoencoder(3, dropout=0.2), X),
    "few rows": lambda: with_many_features(DropoutRegressor(2, dropout=0.1), FEW, FEW_Y, FEW_W),
    "products": lambda: with_many_features(
        DropoutRegressor(2, dropout=0.1), scipy.sparse.csr_array(FEW), FEW_Y, FEW_W, products=True
    ),
    "one target": lambda: DropoutRegressor(1, dropout=0.5).fit(X, Y[:, 0]),
    "tied": lambda: TiedFit(np.diag([4.0, 3.0, 1.0, -2.0]) + np.triu(X[:4, :4]) / 5, 0.3, 3),
}

REDUCED_RANK_FITS = {
    "reduced rank": lambda: DropoutRegressor(2, shrink=False).fit(X, Y),
    "reduced rank, ridge": lambda: DropoutRegressor(3, shrink=False, alpha=4.0).fit(SINGULAR, Y),
    "ridge of few rows": lambda: with_many_features(
        DropoutRegressor(2, dropout=0.1, alpha=2.0), FEW, FEW_Y, FEW_W
    ),
    "ridge of collinear rows": lambda: DropoutRegressor(2, dropout=0.2, alpha=1e-4).fit(
        COLLINEAR, COLLINEAR_Y, FREQUENCIES
    ),
}
"""Fits of the functions of reduced-rank regression and of the ridge penalty."""


class TiedFit:
    """The tied optimum in the shape of a fitted estimator; no estimator shares its weights."""

    def __init__(self, matrix, strength, width):
        found = solvers.solve_tied(matrix, strength, width)
        self.left_, self.right_ = found.weights
        self.objective_, self.rank_, self.threshold_ = found.value, found.rank, found.threshold
        self.singular_values_ = found.singular_values
        self.certificate_ = certificate_of(
            matrix,
            Judged(*found.weights, strength, tied=True),
            title="tied",
            attributes=vars(self),
        )


def fitted_by_gram():
    """Fit through the Gram matrix, which is used for large matrices only."""
    before = solvers.SMALLEST_FAST, solvers.FEW
    solvers.SMALLEST_FAST, solvers.FEW = 3, 1
    try:
        return DropoutFactorization(2, dropout=0.3).fit(X)
    finally:
        solvers.SMALLEST_FAST, solvers.FEW = before


def with_many_features(model, X, y=None, weights=None, products=False):
    """Fit without the second moment of all features, which is used for many features only."""
    places = ((problem, "STORED_FEATURES"), (verify, "SMALL"), (autoencoder, "STORED_FEATURES"))
    before, cheapest = [getattr(*place) for place in places], autoencoder.scatter_is_cheapest
    try:
        for place in places:
            setattr(*place, 3)
        autoencoder.scatter_is_cheapest = lambda *_: False
        model.fit(X, y, weights)
        assert not hasattr(model._state.moment, "squares")
        assert model.certificate_
        return model
    finally:
        for place, value in zip(places, before, strict=True):
            setattr(*place, value)
        autoencoder.scatter_is_cheapest = cheapest


def result(model):
    """Return what a user reads from a fit: figures, and the function that it computes."""
    values = np.zeros(8)
    values[: len(model.singular_values_)] = model.singular_values_
    return {
        "objective": np.array([model.objective_]),
        "rank": np.array([float(model.rank_)]),
        "threshold": np.array([model.threshold_]),
        "singular values": values,
        "product": model.left_ @ model.right_.T,
        "intercept": np.atleast_1d(getattr(model, "intercept_", 0.0)),
    }


TOLERANCES = {"product": 3e-3, "intercept": 3e-3}


def differs(found, healthy):
    """Tell whether a result differs beyond what a certificate of tolerance 1e-6 resolves."""
    for name, expected in healthy.items():
        size = max(np.abs(expected).max(), 1e-12)
        if found[name].shape != expected.shape:
            return True
        if not np.abs(found[name] - expected).max() <= TOLERANCES.get(name, 3e-6) * size:
            return True
    return False


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    """Read the few rows of the problems in several blocks, as millions of rows would be."""
    before = problem.BLOCK_ROWS, problem.ROOT_ROWS
    problem.BLOCK_ROWS, problem.ROOT_ROWS = 16, 8
    yield
    problem.BLOCK_ROWS, problem.ROOT_ROWS = before


@pytest.fixture(scope="module")
def healthy(small_blocks):
    """Return the result of each fit, and the code of the functions that it calls."""
    fits = FITS | REDUCED_RANK_FITS
    return {name: calls_of(lambda fit=fit: result(fit())) for name, fit in fits.items()}


def outcome(healthy, fits):
    """Return crashed, unchanged, caught, or the name of the fit whose certificate holds."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for name, fit in fits.items():
            try:
                model = fit()
                changed = differs(result(model), healthy[name][0])
            except Exception:
                return "crashed"
            if changed:
                return "caught" if model.certificate_.holds is not True else f"SURVIVED in {name}"
    return "unchanged"


FUNCTIONS = {
    "closed form": (
        theory.shrink,
        theory.optimal_rank,
        theory.breakpoints,
        theory.rank_tolerance,
        theory.optimal_value,
    ),
    "solver": (
        solvers.assemble,
        solvers.solve,
        solvers.leading_svd,
    ),
    "tied solver": (solvers.solve_tied,),
    "reduced rank": (solvers.assemble, problem.whiten),
    "whitening": (problem.whiten,),
    "factorised rows": (
        problem.rows_problem,
        problem.is_ill_conditioned,
        problem.row_root,
    ),
    "many features": (solvers.solve_autoencoder,),
    "products with rows": (
        WideRows.of.__func__,
        WideRows.whiten,
        RowLift.__matmul__,
    ),
    "equalizer": (equalized_factors, level_diagonal),
    "moments": (
        problem.joint_moment,
        problem._joined,
        problem.LinearProblem.from_moment.__func__,
        problem.LinearProblem.autoencoder.__func__,
        NetworkState.centers,
    ),
    "objective": (
        problem.DropoutObjective.loss,
        problem.DropoutObjective.importance,
        problem.DropoutObjective.regularizer,
        problem.DropoutObjective.value,
    ),
}


@pytest.mark.parametrize("group", FUNCTIONS)
def test_no_mutant_that_changes_a_result_is_certified(group, healthy, record_property):
    counts, survivors = Counter(), []
    fits = REDUCED_RANK_FITS if group == "reduced rank" else FITS
    for function in FUNCTIONS[group]:
        using = {name: fit for name, fit in fits.items() if is_among(function, healthy[name][1])}
        for words, code in mutants(function):
            with broken(function, code):
                found = outcome(healthy, using)
            counts[found.split()[0]] += 1
            if found.startswith("SURVIVED"):
                survivors.append(f"{words}: {found}")
    total = sum(counts.values())
    row = f"{group:<40}  {total:>7}  {counts['crashed']:>7}  {counts['unchanged']:>9}"
    print(f"\n{row}  {counts['caught']:>6}")
    record_property("caught", counts["caught"])
    assert not survivors, "\n".join(survivors)
    assert counts["caught"] >= 3


def off_by_one_rank(values, strength, width):
    rank = ORIGINAL_SHRINK(values, strength, width).rank - 1
    kept = values[:rank]
    threshold = strength * kept.sum() / (width + strength * rank)
    shrunk = np.where(np.arange(len(values)) < rank, values - threshold, 0.0)
    return theory.Shrinkage(rank, float(threshold), shrunk)


def wrong_threshold(factor):
    def shrink(values, strength, width):
        found = ORIGINAL_SHRINK(values, strength, width)
        threshold = factor * found.threshold
        return theory.Shrinkage(found.rank, threshold, np.clip(values - threshold, 0.0, None))

    return shrink


def unshrunk(values, strength, width):
    found = ORIGINAL_SHRINK(values, strength, width)
    kept = np.where(np.arange(len(values)) < found.rank, values, 0.0)
    return found._replace(values=kept)


ORIGINAL_SHRINK = theory.shrink


@pytest.mark.parametrize("name", [name for name in FITS if name != "no dropout"])
@pytest.mark.parametrize(
    "shrink",
    [off_by_one_rank, wrong_threshold(1.01), wrong_threshold(0.9), wrong_threshold(0.0), unshrunk],
)
def test_a_wrong_rank_or_threshold_is_noticed(name, shrink, monkeypatch):
    monkeypatch.setattr(solvers, "shrink", shrink)
    assert FITS[name]().certificate_.holds is not True


def changed_weights(model):
    model._state.network.weights.left.__imul__(1.01)
    model._state.changed()


@pytest.mark.parametrize(
    "change",
    [
        changed_weights,
        lambda model: model.left_.__imul__(1.01),
        lambda model: model.coef_.__imul__(5.0),
        lambda model: model.intercept_.__iadd__(1.0),
        lambda model: model.singular_values_.__imul__(1.001),
        lambda model: model._state._attributes.update(threshold_=model.threshold_ * 1.001),
        lambda model: model._state._attributes.update(rank_=model.rank_ - 1),
        lambda model: model._state._attributes.update(objective_=model.objective_ * 0.99),
    ],
)
def test_stale_or_changed_state_is_noticed(change):
    model = DropoutRegressor(3, dropout=0.3).fit(X, Y)
    change(model)
    assert model.certificate_.holds is False
    again = DropoutRegressor(3, dropout=0.3).fit(X, Y)
    change(again)
    assert certify(again, X, Y).holds is False


def test_weights_of_an_earlier_fit_are_noticed(monkeypatch):
    earlier = DropoutRegressor(3, dropout=0.3).fit(X[:20], Y[:20])._state.network
    monkeypatch.setattr(NetworkState, "network", property(lambda _: earlier))
    assert DropoutRegressor(3, dropout=0.3).fit(X, Y).certificate_.holds is False


def test_an_attribute_that_a_user_assigned_is_noticed():
    model = DropoutRegressor(3, dropout=0.3).fit(X, Y)
    model.coef_ = 5 * model.coef_
    assert certify(model, X, Y)["attributes"].holds is False
