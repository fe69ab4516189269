"""Simulated runs: epochs to alignment, divergence, and what is refused."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from linear.problems import spectrum_from
from lucidae.linear.methods import MethodSettings, make_method
from lucidae.linear.prefixes import geometric_prior
from lucidae.linear.simulation import Plan, Run, epochs_to_alignment, simulate
from lucidae.linear.theory import predicted_epochs

VALUES = np.array([4.0, 2.6, 1.7, 1.0, 0.5, 0.2, 0.1, 0.05])
K = 4


def test_the_predicted_epochs_are_those_of_a_simulation():
    spectrum = spectrum_from([2.0, 1.7, 0.3, 0.1])
    plan = Plan(spectrum, 2, 20_000, init_scale=1e-2, momentum=0.9)
    run = Run("rag", "nesterov", 0.002, seed=1)
    near, far = (float(epochs_to_alignment([run], plan, t, 1)[0]) for t in (1e-3, 1e-6))
    method = make_method("rag", MethodSettings(np.zeros(2), geometric_prior(2), None))
    rate = method.rule.alignment_rate(spectrum.values, 2)
    assert_allclose(far - near, predicted_epochs(rate, 0.002, 0.9, 1e-6, 1e-3), rtol=0.05)


def test_a_race_counts_the_epochs_of_its_runs_and_marks_those_that_diverge():
    spectrum = spectrum_from(VALUES)
    plan = Plan(spectrum, K, 2000, init_scale=1e-2)
    runs = [Run("rag", "nesterov", rate, seed) for rate in (0.01, 0.02, 50.0) for seed in (0, 1)]
    epochs = epochs_to_alignment(runs, plan, target=0.3, check_every=1)
    assert np.isnan(epochs[4:]).all()
    for run, found in zip(runs[:4], epochs[:4], strict=True):
        (full,) = simulate(
            [run], Plan(spectrum, K, int(found), init_scale=1e-2, record_at=range(int(found) + 1))
        )
        assert full.values["alignment"][-1] <= 0.3 < full.values["alignment"][:-1].min()


def test_a_diverged_run_of_a_crowd_does_not_disturb_the_others():
    spectrum = spectrum_from(VALUES)
    plan = Plan(spectrum, K, 300, init_scale=1e-2)
    good, bad = Run("rag", "nesterov", 0.01), Run("rag", "nesterov", 50.0)
    (alone,) = simulate([good], plan)
    beside, lost = simulate([good, bad], plan)
    assert_allclose(beside.values["alignment"], alone.values["alignment"], atol=1e-12)
    assert np.isnan(lost.values["alignment"][-1])


@pytest.mark.parametrize("name", ["rag", "gha", "brockett"])
def test_adam_is_refused_for_the_rules_with_the_reason(name):
    with pytest.raises(ValueError, match="Adam rescales every coordinate"):
        simulate([Run(name, "adam", 0.1)], Plan(spectrum_from(VALUES), K, 1))
