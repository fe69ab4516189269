"""Curves and figures of experiments, from results that are made up."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import extras
from lucidae.dropout import scalar_surface
from lucidae_papers.declaration import with_settings
from lucidae_papers.engine import experiment
from lucidae_papers.results import Curve, Measured, Results
from lucidae_papers.verdicts import Outcome

extras.require("matplotlib")
extras.require("jinja2")
extras.require("pandas")

from lucidae_papers.drawings import plots, training


def outcome_of(name, measure=None, curves=None):
    """Return an outcome at smoke scale, from arrays that `measure` makes up, or from curves."""
    one = experiment(name)
    setting = one.at("smoke").setting
    results = Results(())
    if measure is not None:
        cells = enumerate(setting.cells())
        results = Results(tuple(Measured(c.settings, measure(c, i), {}) for i, c in cells))
        curves = setting.curves(results)
    return Outcome(one, "smoke", results, curves, ())


def check_numbers(plot, curves, name):
    """The numbers beside a figure are those of the curve of this name."""
    chosen = [i for i, series in enumerate(plot.numbers["series"]) if series == name]
    assert_allclose([plot.numbers["x"][i] for i in chosen], curves[name].x)
    assert_allclose([plot.numbers["y"][i] for i in chosen], curves[name].y)
    assert plot.svg.lstrip().startswith("<svg")


def test_condition_numbers_and_their_growth_are_those_of_the_runs():
    from lucidae_papers.linear.penalties import QUANTITIES

    outcome = outcome_of(
        "lae-conditioning", lambda _, i: dict.fromkeys(QUANTITIES, np.array(2.0 * 3.0**i))
    )
    count = len(outcome.setting.sizes)
    for name in QUANTITIES:
        assert_allclose(outcome.curves[name].y, 2.0 * 3.0 ** np.arange(count))
    grown = outcome.curves["exponent/nonuniform/best"]
    assert_allclose((grown.x / outcome.setting.sizes[0]) ** grown.y, 3.0 ** np.arange(1, count))
    assert "exponent/nested/bound" not in outcome.curves
    (plot,) = plots(outcome)
    check_numbers(plot, outcome.curves, "nonuniform/best")


def test_shares_of_right_counts_are_those_of_the_runs():
    from lucidae_papers.linear.counts import COUNTERS

    outcome = outcome_of(
        "component-counts", lambda _, i: dict.fromkeys(COUNTERS, np.array([5, 0, 5, i + 6]))
    )
    assert_allclose(outcome.curves["strength/mle"].y, 0.5)
    assert_allclose(outcome.curves["none/horn"].y, 0.75)
    assert_allclose(outcome.curves["mean/strength/share"].y, (16.0 + np.arange(3)) / 4.0)
    (plot,) = plots(outcome)
    check_numbers(plot, outcome.curves, "tails/parallel_analysis")
    assert all(isinstance(words, str) for words in outcome.setting.facts().values())


def test_a_diverged_run_of_the_learning_rates_counts_as_one():
    outcome = outcome_of(
        "lae-learning-rates", lambda _, i: {"alignment": np.array([1.0, np.nan if i == 0 else 0.2])}
    )
    (method, optimizer), rates = next(iter(outcome.setting.search.items()))
    curve = outcome.curves[f"alignment/{method}/{optimizer}"]
    assert_allclose(curve.x, rates)
    assert curve.seeds[0][0] == 1.0
    assert_allclose(curve.seeds[0][1:], 0.2)
    assert_allclose(curve.seeds[1:], 0.2)
    (plot,) = plots(outcome)
    check_numbers(plot, outcome.curves, f"alignment/{method}/{optimizer}")


def test_a_model_all_of_whose_runs_diverged_at_once_is_drawn_without_a_line():
    runs = {"rag": [0.5, 0.1], "nonuniform_l2": [np.nan, np.nan]}
    curves = {
        f"{measure}/{method}/nesterov": Curve([1.0, 10.0], y)
        for measure in ("alignment", "subspace")
        for method, y in runs.items()
    }
    (plot,) = plots(outcome_of("lae-dynamics", curves=curves))
    check_numbers(plot, curves, "alignment/rag/nesterov")


def test_a_run_that_misses_the_target_needs_at_least_the_limit():
    setting = experiment("lae-scaling").at("smoke").setting
    largest = max(setting.sizes)

    def epochs(cell, _):
        missed = f"'k': {largest}" in str(cell.settings)
        return {"epochs": np.array(np.nan if missed else 7.0)}

    outcome = outcome_of("lae-scaling", epochs)
    method, optimizer = next(iter(setting.rates))
    reached = outcome.curves[f"epochs/{method}/{optimizer}"].y
    assert_allclose(reached[:-1], 7.0)
    assert np.isinf(reached[-1])
    assert outcome.curves[f"epochs at least/{method}/{optimizer}"].y[-1] == setting.limit
    (plot,) = plots(outcome)
    check_numbers(plot, outcome.curves, f"epochs/{method}/{optimizer}")


def test_decoders_that_equal_the_principal_directions_are_ordered():
    from lucidae_papers.linear.training import spectrum

    setting = experiment("lae-weights").at("smoke").setting
    atoms = spectrum(setting.baseline.data).vectors[:, : setting.baseline.k].T
    outcome = outcome_of("lae-weights", lambda *_: {"atoms": 3.0 * atoms})
    for name, curve in outcome.curves.items():
        assert_allclose(curve.y, 1.0, err_msg=name)
    swapped = outcome_of("lae-weights", lambda *_: {"atoms": 3.0 * atoms[::-1]})
    assert_allclose(swapped.curves["matched/rag"].y, 1.0)
    assert np.all(swapped.curves["ordered/rag"].y < 0.2)
    cosines, images = plots(outcome)
    check_numbers(cosines, outcome.curves, "ordered/rag")
    check_numbers(images, outcome.curves, "matched/rag")


@pytest.mark.parametrize("name", ["sparse-unit", "sparse-noise"])
def test_success_rates_are_means_over_the_trials(name):
    outcome = outcome_of(
        name, lambda *_: {"rows": np.ones(4), "frobenius": np.eye(4)[0], "support": np.zeros(4)}
    )
    setting = outcome.setting
    for method in setting.methods:
        for criterion, rate in (("rows", 1.0), ("frobenius", 0.25), ("support", 0.0)):
            curve = outcome.curves[f"{criterion}/{method}"]
            assert_allclose(curve.x, setting.active)
            assert_allclose(curve.y, rate)
    (plot,) = plots(outcome)
    check_numbers(plot, outcome.curves, f"{setting.criterion}/full")


def test_paths_that_stay_at_an_optimum_have_no_distance():
    def stay(cell, _):
        best = scalar_surface(2.0, cell.settings["strength"], points=2).minima[0]
        return {"path": np.tile(best, (cell.settings["n_steps"] + 1, 2, 1))}

    outcome = outcome_of("dropout-paths", stay)
    assert len(outcome.curves) == 2 * len(outcome.setting.strengths)
    for name, curve in outcome.curves.items():
        assert_allclose(curve.y, 0.0, atol=1e-12, err_msg=name)
    (plot,) = plots(outcome)
    check_numbers(plot, outcome.curves, next(iter(outcome.curves)))


def test_a_single_strength_has_a_figure_too():
    declared = with_settings(experiment("dropout-paths"), "smoke", {"strengths": [0.5]})
    setting = declared.at("smoke").setting
    arrays = {"path": np.zeros((setting.n_steps + 1, 2, 2))}
    results = Results(tuple(Measured(cell.settings, arrays, {}) for cell in setting.cells()))
    outcome = Outcome(declared, "smoke", results, setting.curves(results), ())
    (plot,) = plots(outcome)
    check_numbers(plot, outcome.curves, "distance/0.5/start 1")


def sizes(setting):
    return dict.fromkeys(trial.batch_size for trial in setting.trials)


def networks(setting):
    return [f"{width}/{lam:g}" for width in setting.widths for lam in setting.strengths]


# The names of the curves that the figure of an experiment shows.
DRAWN = {
    "lae-dynamics": lambda _: [f"{p}/rag/adam" for p in training.PANELS],
    "lae-minibatch": lambda s: [
        f"{p}/rag/nesterov/{size}" for p in training.PANELS for size in sizes(s)
    ],
    "lae-penalties": lambda s: [
        *(f"penalties/{rule}" for rule in training.RULES),
        *(
            f"{panel}/{rule}/{rate:g}"
            for panel in training.PANELS
            for rule in training.RULES
            for rate in s.rates
        ),
    ],
    "dropout-convergence": lambda s: [
        f"{kind}/{name}" for kind in ("objective", "variance", "optimum") for name in networks(s)
    ],
    "vae-mnist": lambda s: [
        f"{name}/{arm}"
        for name in ("mse", "variances of coordinates", "variances of directions")
        for arm in s.arms
    ],
}


@pytest.mark.parametrize("name", DRAWN)
def test_curves_are_drawn_with_all_their_points(name):
    rng = np.random.default_rng(0)
    curves = {
        series: Curve([1, 2, 10], np.sort(rng.uniform(0.1, 1.0, 3))[::-1], "epoch")
        for series in DRAWN[name](experiment(name).at("smoke").setting)
    }
    (plot,) = plots(outcome_of(name, curves=curves))
    for series in set(curves) & set(plot.numbers["series"]):
        check_numbers(plot, curves, series)
    assert len(set(plot.numbers["series"])) > len(curves) // 2
