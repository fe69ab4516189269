"""Training runs of linear autoencoders as cells."""

import numpy as np
import pytest

import extras
from lucidae_papers.linear.training import Trial
from lucidae_papers.linear.training import measure as train


@pytest.mark.parametrize(
    ("method", "optimizer", "batch_size"),
    [
        ("rag", "nesterov", None),
        ("linear_vae", "adam", None),
        ("nested_dropout", "nesterov", None),
        ("expected_nested_dropout", "adam", 500),
    ],
)
def test_torch_trains_as_numpy_does(method, optimizer, batch_size):
    extras.require("torch")
    trial = Trial(method, optimizer, 1e-2, "digits", 3, 12, batch_size=batch_size)
    (ours,), (theirs,) = (train([trial.cell.settings], device) for device in ("cpu", "cpu:0"))
    for name in ("alignment", "subspace", "loss"):
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-9)


def test_runs_that_differ_in_their_rate_go_together():
    trials = [Trial("rag", "nesterov", rate, "digits", 3, 20) for rate in (1e-2, 2e-2)]
    assert trials[0].cell.together == trials[1].cell.together
    both = train([trial.cell.settings for trial in trials], "cpu")
    for found, trial in zip(both, trials, strict=True):
        (alone,) = train([trial.cell.settings], "cpu")
        np.testing.assert_allclose(found["alignment"], alone["alignment"], atol=1e-10)
    stochastic = Trial("nested_dropout", "nesterov", 1e-2, "digits", 3, 20)
    assert stochastic.cell.together == ""
