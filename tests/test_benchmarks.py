"""The computing parts of the benchmarks: formulas of costs, references, verdicts and tables."""

import argparse
import json
import math
import signal
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from benchmarks import __main__ as command
from benchmarks import (
    _scaling_costs,
    _tables,
    completion,
    missing,
    peers,
    reduced_rank,
    scaling,
    shapes,
    streams,
)
from benchmarks._scaling_costs import Cost
from benchmarks.scaling import Measurement
from benchmarks.shapes import Result, Shape
from numpy.testing import assert_allclose
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, cross_val_predict

import extras
from lucidae import DropoutFactorization, DropoutRegressor

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"


# Times, errors and tables.


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(12.34, "12.3 s"), (0.9999, "1.00 s"), (0.0234, "23.4 ms"), (9.996e-4, "1.00 ms")],
)
def test_durations_have_three_digits(seconds, expected):
    assert _tables.duration(seconds) == expected


def test_times_show_median_and_spread():
    assert str(_tables.Times((0.3, 0.1, 0.2))) == "200 ms (100 ms to 300 ms)"
    assert str(_tables.Times((2.0,))) == "2.00 s (one run)"


def rotated(angle, k=3, m=8):
    reference = np.eye(k, m)
    found = reference.copy()
    found[-1, k - 1], found[-1, k] = math.cos(angle), math.sin(angle)
    return found, reference


@pytest.mark.parametrize("angle", [1e-9, 1e-3, 0.4])
def test_error_of_a_component_that_leaves_the_subspace(angle):
    found, reference = rotated(angle)
    # A chord is longer than the sine of its angle.
    assert_allclose(_tables.component_error(-2.0 * found, reference), 2 * math.sin(angle / 2))


def test_error_of_components_that_are_turned_inside_their_subspace():
    reference = np.eye(2, 5)
    turn = np.array([[0.6, 0.8], [-0.8, 0.6]])
    assert_allclose(_tables.component_error(turn @ reference, reference), math.sqrt(0.8))


def test_error_of_zero_or_dependent_components():
    reference = np.eye(2, 5)
    assert math.isnan(_tables.component_error(np.zeros((2, 5)), reference))
    assert _tables.component_error(reference[[0, 0]], reference) == 1.0


def test_time_limit_stops_python_code():
    with pytest.raises(TimeoutError, match=r"more than 0\.05 s"), _tables.limited(0.05):
        time.sleep(60)
    with _tables.limited(60.0):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)  # the limit ended with its block


def test_markdown_and_sections(tmp_path):
    table = _tables.markdown(("a", "b"), [(1, "x"), (2, "y")])
    assert table == "| a | b |\n| --- | --- |\n| 1 | x |\n| 2 | y |"
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- t -->\nold\n<!-- end of t -->\nafter\n", encoding="utf-8")
    for _ in range(2):
        _tables.write_section(page, "t", table)
    expected = f"before\n<!-- t -->\n{table}\n<!-- end of t -->\nafter\n"
    assert page.read_text(encoding="utf-8") == expected
    with pytest.raises(ValueError, match="must have one marker '<!-- other -->'"):
        _tables.write_section(page, "other", table)


@pytest.mark.parametrize(
    "name", ["shapes", "constants", "fit", "certificate", "predictions", "peers"]
)
def test_the_page_has_the_sections_that_the_benchmarks_write(name, tmp_path):
    copy = tmp_path / "scaling.md"
    copy.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    _tables.write_section(copy, name, "a new table")
    assert f"<!-- {name} -->\na new table\n<!-- end of {name} -->" in copy.read_text("utf-8")


def test_comparison_is_met_up_to_the_asked_ratio():
    def entry(ours, theirs, **settings):
        times = [None if value is None else _tables.Times((value,)) for value in (ours, theirs)]
        return _tables.Comparison("P0", "work", times[0], "peer", times[1], **settings)

    assert entry(1.1, 1.0, most=1.2).met == "yes"
    assert entry(1.3, 1.0, most=1.2).met == "**NO**"
    assert entry(1.1, 1.0, most=1.2, others_met=False).met == "**NO**"
    assert entry(1.0, None, most=1.2).met == entry(1.0, 1.0).met == "–"
    cells = entry(1.0, None, notes="not installed").cells()
    assert len(cells) == len(_tables.Comparison.HEADER)
    assert cells[5] == "–"
    assert cells[-1] == "not installed"


def test_missing_peers_are_named():
    packages = {"numpy": "here", "no_such_package": "a missing peer"}
    assert _tables.missing_peers(packages) == ["a missing peer"]


# The command.


def test_options_follow_the_names_of_benchmarks(capsys):
    assert command.divided(["shapes", "--only", "a"]) == (["shapes"], ["--only", "a"])
    assert command.main(["nothing"]) == 2
    assert command.main(["shapes", "scaling", "--small"]) == 2
    assert "one benchmark" in capsys.readouterr().out
    assert set(command.INCLUDED) <= set(command.names())
    assert set(command.INCLUDED.values()) <= set(command.names())


# The grid of shapes.


def test_the_grid_covers_what_is_asked():
    grid = shapes.GRID
    assert len({shape.label for shape in grid}) == len(grid) >= 24
    sides = [side for shape in grid for side in (shape.n, shape.m)]
    assert (min(sides), max(sides)) == (100, 50_000)
    assert max(shape.nbytes for shape in grid) == 2e9
    components = [shape.k for shape in grid]
    assert (min(components), max(components)) == (2, 200)
    for name, values in (("spectrum", {"flat", "decaying"}), ("dtype", {"float32", "float64"})):
        for sparse in (True, False):
            assert {getattr(s, name) for s in grid if s.sparse == sparse} == values


def test_shapes_are_selected_by_words_and_size():
    assert {s.m for s in shapes.selected(["×6000"], False)} == {6000}
    small = shapes.selected([], True)
    assert 0 < len(small) < len(shapes.GRID)
    assert all(shape.nbytes <= 1e8 for shape in small)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spectrum", ["flat", "decaying"])
def test_dense_rows_have_their_spectrum_and_a_mean(spectrum, dtype):
    shape = Shape(4000, 40, 4, spectrum, dtype)
    X = shapes.rows_of(shape)
    assert X.shape == (4000, 40)
    assert X.dtype == dtype
    wanted, noise = shapes.factor_eigenvalues(shape)
    found = np.linalg.eigvalsh(np.cov(X.T.astype(float)))[::-1]
    assert_allclose(found[: len(wanted)], wanted + noise, rtol=0.15)
    edge = noise * (1 + math.sqrt(40 / 4000)) ** 2
    assert found[len(wanted)] <= 1.1 * edge < found[len(wanted) - 1]
    mean = np.linalg.norm(X.mean(axis=0))
    assert mean > 0.3 * math.sqrt(wanted.sum())


@pytest.mark.parametrize("spectrum", ["flat", "decaying"])
def test_sparse_rows_have_their_density_and_groups(spectrum):
    X = shapes.rows_of(Shape(1500, 400, 5, spectrum, density=0.05))
    assert scipy.sparse.issparse(X)
    if spectrum == "flat":
        assert_allclose(X.nnz / (1500 * 400), 0.05, rtol=0.15)  # some entries coincide
    values = np.linalg.eigvalsh(np.cov(X.toarray().T))[::-1]
    gaps = values[:30] / values[1:31]
    if spectrum == "flat":
        assert np.argmax(gaps) == 18  # twenty groups, less one by centring
        assert values[20] < 3 * values[200]
    else:
        assert values[20] > 5 * values[200]


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


def result(error, *seconds):
    return Result(list(seconds), error)


def test_a_peer_counts_if_it_is_as_accurate():
    assert shapes.counts(9e-12, 1e-15, "float64")
    assert not shapes.counts(2e-10, 1e-15, "float64")
    assert shapes.counts(2e-10, 3e-11, "float64")
    assert shapes.counts(9e-6, 1e-8, "float32")
    assert not shapes.counts(math.nan, 1e-15, "float64")
    assert shapes.counts(1e-12, math.nan, "float64")
    assert not shapes.counts(1e-3, math.nan, "float64")


def test_the_fastest_accurate_peer_decides():
    results = {
        "ours": result(1e-14, 1.0, 1.2, 1.1),
        "randomized": result(1e-3, 0.1),
        "arpack": result(1e-13, 1.0, 1.05, 1.02),
        "full": result(1e-14, 3.0),
        "covariance_eigh": Result(note="not run"),
    }
    assert shapes.best_peer(results, "float64") == "arpack"
    assert shapes.verdict(results, "float64") == "yes"
    results["arpack"].seconds = [0.9, 0.95]
    assert shapes.verdict(results, "float64") == "**NO: asked ≤ 1.1**"
    row = shapes.table_row(Shape(10, 5, 2, "flat"), results)
    assert len(row) == len(shapes.HEADER)
    assert row[6:9] == ["arpack", "925 ms (900 ms to 950 ms)", "1.19"]


def test_short_fits_may_take_twice_as_long():
    results = {"ours": result(1e-14, 0.019), "arpack": result(1e-14, 0.01)}
    assert shapes.verdict(results, "float64") == "yes"
    results = {"ours": result(1e-14, 0.038), "arpack": result(1e-14, 0.02)}
    assert shapes.verdict(results, "float64") == "**NO: asked ≤ 1.1**"


def test_an_inaccurate_or_stopped_fit_is_a_miss():
    inaccurate = {"ours": result(1e-4, 0.1), "arpack": result(1e-14, 1.0)}
    assert shapes.verdict(inaccurate, "float64") == "**NO: error**"
    stopped = {"ours": Result(note="more than 5 s"), "arpack": result(1e-14, 1.0)}
    assert shapes.verdict(stopped, "float64") == "**NO: more than 5 s**"
    alone = {"ours": result(1e-14, 0.1), "arpack": Result(note="more than 5 s")}
    assert shapes.verdict(alone, "float64") == "yes"
    assert "none accurate in time" in shapes.table_row(Shape(9, 9, 2, "flat"), alone)


def test_slow_peers_are_not_run_or_not_repeated():
    limits = shapes.Limits(fit=10.0, shape=30.0, repeats=3, rate=1e9)
    shape = Shape(1000, 1000, 5, "flat")
    measured = {"ours": result(0.0, 0.1), "arpack": result(0.0, 0.2)}
    assert shapes.reason_to_skip("full", shape, {}, limits) == ""
    assert "4.00 s" in shapes.reason_to_skip("full", shape, measured, limits)
    large = Shape(10_000, 10_000, 5, "flat")
    assert "not run" in shapes.reason_to_skip("full", large, {}, limits)
    assert shapes.reason_to_skip("arpack", large, {}, limits) == ""
    measured |= {"full": result(0.0, 2.0), "randomized": result(0.0, 0.01)}
    assert shapes.contending(measured) == ["ours", "arpack", "randomized"]
    assert shapes.rounds_of(0.001, 3) == 21
    assert shapes.rounds_of(2.0, 3) == 3
    assert shapes.rounds_of(0.001, 1) == 1


@pytest.mark.parametrize("density", [1.0, 0.2])
def test_a_small_shape_is_measured(density):
    shape = Shape(60, 30, 3, "decaying", density=density)
    limits = shapes.Limits(fit=20.0, shape=20.0, repeats=2, rate=1e12)
    results = shapes.measure(shape, limits)
    assert set(results) == {"ours", *shapes.peers_of(shape)}
    assert len(results["ours"].seconds) >= 2
    assert results["ours"].error < 1e-10
    assert results["covariance_eigh"].error < 1e-10
    (entry,) = json.loads(shapes.as_json([(shape, results)]))
    assert entry["n"] == 60
    assert entry["solvers"]["ours"]["seconds"] == results["ours"].seconds
    assert shape.label in shapes.progress(shape, results, 1.0)


# The cost model.


def test_operations_of_the_products_are_those_of_loops():
    n, m, k, passes = 5, 4, 2, 3
    # Half of a symmetric product, two operations for each pair of entries.
    pairs = sum(2 for _ in range(n) for i in range(m) for j in range(m) if i < j)
    assert _scaling_costs.moment_cost(n, m, k).products == pairs + n * m
    pairs = sum(2 for _ in range(m) for i in range(n) for j in range(n) if i < j)
    assert _scaling_costs.gram_cost(n, m, k).products == pairs + n * m + 2 * n * m * k
    b = _scaling_costs.block_width(m, k)
    projections = sum(3 * 2 * (2 * m * b * b * j) for j in range(1, passes + 1))
    expected = passes * 2 * (2 * n * m * b) + projections
    assert _scaling_costs.krylov_cost(n, m, k, passes).products == expected


def test_restarts_keep_the_basis_small():
    sizes = _scaling_costs.basis_sizes(10, 17, 100)
    assert sizes[:3] == [17, 34, 51]
    assert sizes[-1] == sizes[50] == max(sizes)
    costs = [_scaling_costs.pass_cost(10**6, 10**6, 10, passes) for passes in (20, 40)]
    assert costs[1].space == costs[0].space


@pytest.mark.parametrize("chunks", [1, 2, 8, 9, 64, 65, 1000])
def test_tree_has_the_tasks_and_levels_of_the_reduction(chunks):
    parts, tasks, levels = chunks, chunks, 0
    while parts > 1:
        parts = len(range(0, parts, _scaling_costs.FAN_IN))
        tasks, levels = tasks + parts, levels + 1
    assert _scaling_costs.tasks_of_tree(chunks) == tasks
    assert _scaling_costs.tree_depth(chunks) == levels


def test_the_tree_on_one_worker_is_a_stream():
    tree = _scaling_costs.tree_moment_cost(10_000, 50, 5, chunks=1, workers=1)
    stream = _scaling_costs.streamed_moment_cost(10_000, 50, 5)
    for term in ("products", "eigen", "disk", "network"):
        assert getattr(tree, term) == getattr(stream, term)
    half = _scaling_costs.tree_moment_cost(10_000, 50, 5, chunks=8, workers=2)
    assert half.products == stream.products / 2
    assert half.disk == stream.disk / 2
    assert half.network > 0.0


def test_costs_grow_with_rows_passes_and_workers():
    costs = [_scaling_costs.pass_cost(n, 300, 5, 10) for n in (1000, 2000)]
    assert costs[1].disk == 2 * costs[0].disk
    assert costs[1].space == costs[0].space
    shared = [
        _scaling_costs.pass_cost(10**6, 300, 5, 10, row_chunks=640, workers=w).terms()[:4]
        for w in (2, 4, 8)
    ]
    assert all(np.all(more <= fewer) for fewer, more in pairwise(shared))


def test_square_chunks_send_less_than_chunks_of_whole_rows():
    rows = _scaling_costs.pass_cost(10**6, 10**6, 10, 5, row_chunks=14_400, workers=100)
    square = _scaling_costs.pass_cost(
        10**6, 10**6, 10, 5, row_chunks=120, column_chunks=120, workers=100
    )
    assert square.network < 0.25 * rows.network
    assert square.disk == rows.disk
    assert square.messages > rows.messages


CONSTANTS = {
    "products": 2e-11,
    "eigen": 1e-10,
    "memory": 3e-10,
    "disk": 2e-9,
    "network": 1e-9,
    "messages": 1e-3,
}


def synthetic(constants):
    rng = np.random.default_rng(3)
    for _ in range(12):
        work = {name: rng.uniform(0.1, 1.0) / value for name, value in CONSTANTS.items()}
        cost = Cost(**work)
        yield Measurement("route", "size", cost, scaling.predicted_seconds(cost, constants))


def test_fit_recovers_the_constants_of_exact_measurements():
    found = scaling.fitted_constants(list(synthetic(CONSTANTS)))
    assert_allclose(list(found.values()), list(CONSTANTS.values()), rtol=1e-8)


def test_constants_are_never_negative_and_unknown_ones_are_nan():
    without = CONSTANTS | {"disk": 0.0}
    assert_allclose(scaling.fitted_constants(list(synthetic(without)))["disk"], 0.0, atol=1e-16)
    costs = [_scaling_costs.moment_cost(n, m, 5) for n, m in ((1000, 100), (5000, 300), (300, 500))]
    entries = [Measurement("moment", "", c, scaling.predicted_seconds(c, CONSTANTS)) for c in costs]
    found = scaling.fitted_constants(entries)
    assert math.isnan(found["messages"])
    assert all(value >= 0.0 for value in found.values() if not math.isnan(value))
    assert_allclose(scaling.predicted_seconds(costs[0], found), entries[0].seconds, rtol=1e-8)
    assert math.isnan(scaling.predicted_seconds(Cost(messages=1.0), found))


def test_predictions_say_what_breaks_first():
    by_route = {(q.data, q.route.split(",")[0], q.workers): q for q in scaling.questions()}
    square = by_route["10⁶ × 10⁶", "Dask tree", 100]
    assert square.cost.space >= 8e12
    assert "memory" in scaling.breaks_first(square, CONSTANTS, 16e9)
    tall = by_route["10⁹ × 1000", "streamed moment", 1]
    assert tall.cost.disk == 4e12
    assert tall.cost.products == 1e15
    # 20 000 s of products, 8000 s of reading, 6000 s of memory.
    assert scaling.breaks_first(tall, CONSTANTS, 16e9).startswith("matrix products")
    slow = scaling.with_limits(CONSTANTS, disk=1e8, network=1e12)
    assert slow["disk"] == 1e-8
    assert slow["network"] == CONSTANTS["network"]
    assert scaling.breaks_first(tall, slow, 16e9).startswith("reading files")


def test_tables_of_the_model():
    entries = list(synthetic(CONSTANTS))
    entries[0] = Measurement("Gram matrix", "2 × 3", entries[0].cost, entries[0].seconds, 9.0)
    assert "Median of the absolute relative errors: 0%" in scaling.fit_table(entries, CONSTANTS)
    table = scaling.constants_table(CONSTANTS | {"disk": 0.0, "network": math.nan})
    assert "50.0 Gflop per second" in table
    assert "1000 tasks per second" in table
    assert "not separable" in table
    assert "not measured" in table
    assert scaling.certificate_table(entries).count("\n") == 2
    predictions = scaling.predictions_table(CONSTANTS, 16e9)
    assert predictions.count("\n") == 1 + len(scaling.questions())
    assert "**memory**" in predictions
    assert scaling.long_duration(7200.0) == "2.00 h"
    assert scaling.long_duration(math.nan) == "not known"


def test_number_of_passes_and_eigenpairs_of_blocks():
    X = scaling.random_rows(200, 30)
    passes = scaling.eigenpairs(lambda: iter((X[:50], X[50:])))
    assert passes == scaling.eigenpairs(scaling.whole(X)) >= 1


# Streams.


def test_exact_components_are_those_of_the_whole_file(tmp_path):
    path = streams.write("npy", tmp_path, 0.004, 16)
    rows = np.load(path).astype(float)
    assert len(rows) > streams.BLOCK_ROWS
    _, vectors = np.linalg.eigh(np.cov(rows.T))
    exact = vectors[:, ::-1][:, : streams.COMPONENTS].T
    assert _tables.component_error(streams.exact_components(16), exact) < 1e-10
    assert sum(len(batch) for batch in streams.batches_of_npy(str(path))) == len(rows)


def test_peers_have_a_limit_of_their_own(monkeypatch):
    jobs = {
        "ours": streams.Job("ours", "npy", Path("rows.npy"), 1),
        "Dask": streams.Job("dask", "lucidae", Path("rows.npy"), 1),
        "peer": streams.Job("dask", "full", Path("rows.npy"), 1),
    }

    def run(job, limit):
        if not job.is_ours:
            raise RuntimeError(f"stopped after {limit:g} s")
        return {"seconds": limit, "megabytes": 1.0}

    monkeypatch.setattr(streams.Job, "run", run)
    arguments = argparse.Namespace(repeats=2, time_limit=9.0, peer_limit=3.0)
    found = streams.measured(jobs, arguments)
    assert found["ours"].times == found["Dask"].times == _tables.Times((9.0, 9.0))
    assert found["peer"].failure == "stopped after 3 s"


def test_figures_of_failed_and_finished_jobs():
    failed = streams.figures([], "stopped after 5 s")
    assert failed.times is None
    assert failed.notes("peer") == "peer: stopped after 5 s"
    quick = {"seconds": 1.0, "megabytes": 10.0, "error": 1e-9}
    slow = {"seconds": 3.0, "megabytes": 20.0, "error": 1e-8}
    done = streams.figures([quick, slow, quick], "")
    assert done.times.median == 1.0
    assert done.notes("ours") == "ours: peak 20 MB, error 1e-08"


def test_components_and_imports_of_the_table_of_peers():
    X = np.random.default_rng(0).standard_normal((50, 6)) * np.arange(6, 0, -1) + 3.0
    exact = np.linalg.svd(X - X.mean(axis=0))[2][:2]
    assert _tables.component_error(peers.exact_components(X, 2), exact) < 1e-12
    assert peers.import_seconds("math") >= 0.0


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


def test_every_method_of_the_comparison_fits():
    X, Y = reduced_rank.simulated(2, n=30, features=4, targets=3)
    for name, regressor in reduced_rank.methods(X).items():
        if not name.endswith(("ridge", "NetCV")):
            assert 1 <= reduced_rank.rank_of(regressor.fit(X, Y)) <= 3
    assert [table.Y.shape[1] for table in reduced_rank.tables(small=True)] == [3, 15, 15]


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
    ).fit(entries.sparse())
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


@pytest.mark.parametrize("kind", ["at random", "by another feature", "by their own value"])
def test_shares_of_removed_entries(kind):
    rows, basis = missing.make_rows(400, seed=0)
    hidden = missing.removed(rows, kind, 0.3, seed=0)
    assert_allclose(hidden.mean(), 0.3, atol=1e-3)
    assert not hidden[:, 0].any()
    kept = rows[:, 1:][~hidden[:, 1:]].mean() - rows[:, 1:].mean()
    assert (kept < -0.1) == (kind == "by their own value")
    assert_allclose(basis.T @ basis, np.eye(missing.FACTORS), atol=1e-12)


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
