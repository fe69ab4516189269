"""The computing parts of the benchmarks: references, verdicts and tables."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from benchmarks import (
    _tables,
    completion,
    missing,
    reduced_rank,
    shapes,
    streams,
)
from benchmarks.shapes import Shape
from numpy.testing import assert_allclose
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, cross_val_predict

import extras
from lucidae import DropoutFactorization, DropoutRegressor

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "scaling.md"


# Times, errors and tables.


def test_the_error_of_components():
    reference = np.eye(3, 8)
    for angle in (1e-9, 1e-3, 0.4):  # one component leaves the subspace
        found = reference.copy()
        found[-1, 2], found[-1, 3] = math.cos(angle), math.sin(angle)
        # A chord is longer than the sine of its angle.
        assert_allclose(_tables.component_error(-2.0 * found, reference), 2 * math.sin(angle / 2))
    reference, turn = np.eye(2, 5), np.array([[0.6, 0.8], [-0.8, 0.6]])
    assert_allclose(_tables.component_error(turn @ reference, reference), math.sqrt(0.8))
    assert math.isnan(_tables.component_error(np.zeros((2, 5)), reference))
    assert _tables.component_error(reference[[0, 0]], reference) == 1.0


# The command.


# The grid of shapes.


def sample(kind):
    shape = {
        "tall": Shape(300, 40, 5, "decaying"),
        "wide": Shape(40, 300, 5, "decaying"),
        "float32": Shape(300, 40, 5, "decaying", "float32"),
        "sparse tall": Shape(300, 60, 4, "decaying", density=0.2),
        "sparse wide": Shape(60, 300, 4, "decaying", density=0.2),
    }[kind]
    return shape, shapes.rows_of(shape)


@pytest.mark.parametrize("kind", ["tall", "wide", "float32", "sparse tall", "sparse wide"])
def test_references_are_the_singular_vectors_of_the_centred_rows(kind):
    shape, X = sample(kind)
    rows = (X.toarray() if scipy.sparse.issparse(X) else X).astype(float)
    exact = np.linalg.svd(rows - rows.mean(axis=0))[2][: shape.k]
    mean = shapes.mean_of(X)
    assert _tables.component_error(shapes.dense_reference(X, mean, shape.k), exact) < 1e-12
    noise = 1e-4 * np.random.default_rng(0).standard_normal(exact.shape)
    # Each round takes the residuals into the span, so that the error is at least squared.
    refined = shapes.refined_reference(X, mean, shape.k, [exact + noise], rounds=12)
    assert _tables.component_error(refined, exact) < 1e-11
    good = shapes.refined_reference(X, mean, shape.k, [exact + 1e-6 * noise, exact])
    assert _tables.component_error(good, exact) < 1e-12


def test_a_small_shape_is_measured():
    shape = Shape(60, 30, 3, "decaying")
    limits = shapes.Limits(fit=20.0, shape=20.0, repeats=2, rate=1e12)
    results = shapes.measure(shape, limits)
    assert set(results) == {"ours", *shapes.peers_of(shape)}
    assert len(results["ours"].seconds) >= 2
    assert max(results[name].error for name in ("ours", "covariance_eigh")) < 1e-10
    (entry,) = json.loads(shapes.as_json([(shape, results)]))
    assert entry["solvers"]["ours"]["seconds"] == results["ours"].seconds


# Streams.


def test_exact_components_are_those_of_the_whole_file(tmp_path):
    path = streams.write("npy", tmp_path, 0.004, 16)
    rows = np.load(path).astype(float)
    assert len(rows) > streams.BLOCK_ROWS
    _, vectors = np.linalg.eigh(np.cov(rows.T))
    exact = vectors[:, ::-1][:, : streams.COMPONENTS].T
    assert _tables.component_error(streams.exact_components(16), exact) < 1e-10
    assert sum(len(batch) for batch in streams.batches_of_npy(str(path))) == len(rows)


def test_reduced_rank_is_compared_on_rows_that_no_method_has_seen(tmp_path):
    X, Y = reduced_rank.simulated(2, n=40, features=4, targets=3)
    table = reduced_rank.Table("simulated (40 × 4)", X, Y)
    regressors = {"least squares": LinearRegression(), "dropout": DropoutRegressor(1, dropout=0.0)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reduced_rank, "methods", lambda _: regressors)
        results = reduced_rank.compare(table, 2)
    folds = KFold(5, shuffle=True, random_state=1)
    expected = r2_score(Y, cross_val_predict(LinearRegression(), X, Y, cv=folds))
    assert results["least squares"].scores[1] == pytest.approx(expected)
    assert set(results["least squares"].ranks) == {3}
    assert set(results["dropout"].ranks) == {1}
    text = reduced_rank.comparison_table({table.name: results})
    assert text.count("\n") == 3
    assert text.count("**") == 2
    page = tmp_path / "reduced_rank.md"
    page.write_text((PAGE.parent / "reduced_rank.md").read_text("utf-8"), "utf-8")
    _tables.write_section(page, "comparison", text)
    _tables.write_section(page, "coverage", "none")
    extras.require("matplotlib")
    reduced_rank.draw_comparison({table.name: results}, tmp_path / "figures" / "comparison.svg")
    found = {"rank 1": [reduced_rank.coverage(1.0, {"n_components": 1, "shrink": False}, 60, 3)]}
    assert 0.5 < found["rank 1"][0].covered <= 1.0
    assert "n = 60" in reduced_rank.coverage_table(found)
    reduced_rank.draw_coverage(found, tmp_path / "figures" / "coverage.svg")
    assert (tmp_path / "figures" / "coverage.svg").stat().st_size > 1000


def test_the_peers_of_completion_have_the_minimum_that_is_certified():
    problem = completion.synthetic(0.5)
    entries = problem.training.taken(np.flatnonzero(problem.training.columns < 20))
    entries = completion.ObservedEntries(
        (40, 20),
        entries.starts[:41],
        entries.columns[: entries.starts[40]],
        entries.values[: entries.starts[40]],
    )
    small = problem._replace(training=entries, width=20)
    model = DropoutFactorization(
        20, dropout=0.5, handle_missing="complete", missing_values="absent", tol=1e-10
    ).fit(completion.stored(entries))
    rng = np.random.default_rng(0)
    imputing = np.zeros((40, 0)), np.zeros((20, 0))
    turning = rng.standard_normal((40, 20)), rng.standard_normal((20, 20))
    steps = completion.soft_impute(small, model.threshold_), completion.alternating(small)
    for _ in range(150):
        imputing, turning = steps[0](imputing), steps[1](turning)
    for state in (imputing, turning):
        assert small.loss(state) >= model.objective_ * (1 - 1e-8)
        assert small.loss(state) == pytest.approx(model.objective_, rel=1e-3)


# Missing entries.


def test_errors_of_methods_for_missing_entries():
    rows, basis = missing.make_rows(300, seed=1)
    hidden = missing.removed(rows, "at random", 0.2, seed=1)
    exact = missing.Fitted(rows.mean(axis=0), 3.0 * basis.T, rows)
    assert_allclose(missing.judged(exact, rows, hidden, basis, 1.0)[:4], [0, 0, 0, 1], atol=1e-12)
    found, seconds = missing.timed(missing.by_em, np.where(hidden, np.nan, rows))
    ours = missing.judged(found, rows, hidden, basis, seconds)
    found, seconds = missing.timed(missing.METHODS["mean + PCA"], np.where(hidden, np.nan, rows))
    mean = missing.judged(found, rows, hidden, basis, seconds)
    assert ours.entries < 0.6 < 0.95 < mean.entries
    assert ours.subspace < mean.subspace
    cells = missing.cells("ours", "20%", [ours, ours])
    assert cells[:2] == ["20%", "ours"]
    assert "refuses 1 of 2: no" in missing.cells("x", "y", [ours, ours._replace(problem="no")])[2]
